/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Opens a model, continues texts with it, and reports. */
#include "session.h"

#include "common/command.h"
#include "common/model-path.h"
#include "common/print-text.h"
#include "common/read-file.h"
#include "common/written-file.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024.0 * 1024.0)

/* -- Ctrl-C -------------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void
note (int number)
{
  if (interrupted)
    _exit (128 + number);
  interrupted = 1;
}

void
session_watch_interrupts (void)
{
  struct sigaction action = { .sa_handler = note }; /* without SA_RESTART: a line that is being read ends */

  sigemptyset (&action.sa_mask);
  sigaction (SIGINT, &action, NULL);
}

gboolean
session_take_interrupt (void)
{
  const gboolean was = interrupted != 0;

  interrupted = 0;
  return was;
}

/* -- opening ------------------------------------------------------------------------------------------------------- */

static int
get_dtype (const Options *options)
{
  return strcmp (options->dtype, "f32") == 0    ? (int) EBB_DTYPE_F32
         : strcmp (options->dtype, "bf16") == 0 ? (int) EBB_DTYPE_BF16
                                                : EBB_MODEL_KEEP_DTYPE;
}

/* An answer ends with the token that ends turns. */
static gboolean
open_template (Session *self,
               GError **error)
{
  gint64 token;

  self->template = ebb_chat_template_open (self->options->model, error);
  if (self->template == NULL)
    return FALSE;
  g_object_set (self->template, "thinking", !self->options->no_thinking, NULL);
  if (self->options->no_thinking && !ebb_chat_template_has_thinking (self->template))
    {
      g_autofree char *message =
          g_strdup_printf ("--no-thinking changes nothing: the chat template %s has no such switch",
                           ebb_chat_template_get_name (self->template));

      command_fail (0, message);
    }
  token = ebb_tokenizer_find_token (self->tokenizer, ebb_chat_template_get_end_of_turn (self->template));
  if (token >= 0)
    ebb_generation_options_add_stop_token (self->generation, token);
  return TRUE;
}

static gboolean
open_model (Session *self,
            GError **error)
{
  const Options *options = self->options;
  g_autoptr (EbbModule) adapted = NULL;
  EbbQuantization base = EBB_QUANTIZATION_NONE;

  if (strcmp (options->base, "auto") != 0 && !ebb_quantization_from_name (options->base, &base, error))
    return FALSE;
  self->model = ebb_model_open_quantized (options->model, get_dtype (options), base, error);
  if (self->model == NULL)
    return FALSE;
  if (!EBB_IS_GPT (self->model))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "%s: a %s can't continue text; GPT-2 or Llama can",
                   options->model, G_OBJECT_TYPE_NAME (self->model));
      return FALSE;
    }
  if (options->adapter != NULL && (adapted = ebb_lora_load (self->model, options->adapter, NULL, error)) == NULL)
    return FALSE;
  return ebb_module_to_device (self->model, self->device, error);
}

gboolean
session_open (Session *self,
              const Options *options,
              GError **error)
{
  *self = (Session){ .options = options };
  self->prompts = g_ptr_array_new_with_free_func (g_free);
  self->results = g_ptr_array_new_with_free_func (g_object_unref);
  if (!written_file_check ("report", options->report, options->overwrite ? WRITTEN_ANY : WRITTEN_REPORT, error)
      || !model_path_check (options->model, TRUE, error))
    return FALSE;
  if (options->threads > 0)
    ebb_set_num_threads (options->threads);
  self->device = ebb_device_get (options->device, error);
  if (self->device == NULL)
    return FALSE;
  self->tokenizer = ebb_tokenizer_open (options->model, error);
  if (self->tokenizer == NULL)
    return FALSE;
  self->generation = options_make_generation (options, self->tokenizer, error);
  if (self->generation == NULL || (options->chat && !open_template (self, error)))
    return FALSE;
  return open_model (self, error);
}

void
session_close (Session *self)
{
  g_clear_object (&self->model);
  g_clear_object (&self->tokenizer);
  g_clear_object (&self->generation);
  g_clear_object (&self->template);
  g_clear_pointer (&self->prompts, g_ptr_array_unref);
  g_clear_pointer (&self->results, g_ptr_array_unref);
}

/* -- generating ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  gboolean is_silent; /* the texts of a batch are printed when they are complete */
  gboolean trims;     /* space before the first word of an answer is not printed */
} Printing;

static gboolean
take_text (guint row,
           gint64 token,
           const char *text,
           gpointer user_data)
{
  Printing *self = user_data;

  if (self->trims)
    {
      while (g_ascii_isspace (*text))
        text++;
      self->trims = *text == '\0';
    }
  if (!self->is_silent)
    print_text (text);
  return !interrupted;
}

static gboolean
check_length (Session *self,
              gint64 n_tokens,
              const char *what,
              GError **error)
{
  const gint64 limit = ebb_gpt_get_max_positions (EBB_GPT (self->model));

  if (n_tokens <= limit)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
               "%s has %" G_GINT64_FORMAT " tokens, more than the model's %" G_GINT64_FORMAT " positions", what,
               n_tokens, limit);
  return FALSE;
}

/* The tokens of a prompt, with those that begin a text. */
static EbbTensor *
encode (Session *self,
        const char *text,
        const char *what,
        GError **error)
{
  g_autofree gint64 *tokens = NULL;
  g_autoptr (GError) failure = NULL;
  gsize n;
  gint64 size;

  if (!g_utf8_validate (text, -1, NULL))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s is not UTF-8", what);
      return NULL;
    }
  tokens = ebb_tokenizer_encode_text_full (self->tokenizer, text, TRUE, &n, &failure);
  if (failure != NULL)
    {
      g_propagate_prefixed_error (error, g_steal_pointer (&failure), "%s: ", what);
      return NULL;
    }
  if (*text == '\0' || n == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s is empty: there is nothing to continue", what);
      return NULL;
    }
  size = (gint64) n;
  if (!check_length (self, size, what, error))
    return NULL;
  return ebb_tensor_new_from_ints (tokens, n, &size, 1, error);
}

static EbbGeneration *
generate (Session *self,
          EbbTensor **prompts,
          gsize n,
          Printing *printing,
          GError **error)
{
  EbbGeneration *result =
      ebb_model_generate (self->model, prompts, n, self->generation, take_text, printing, NULL, error);

  if (result != NULL)
    g_ptr_array_add (self->results, g_object_ref (result));
  for (guint i = 0; result != NULL && i < n; i++)
    self->met_context |= ebb_generation_get_end (result, i) == EBB_GENERATION_END_CONTEXT;
  return result;
}

/* Says on standard error that the last text ended because the model has no more positions. */
static void
tell_context (Session *self)
{
  g_autofree char *message = NULL;

  if (self->met_context)
    {
      message = g_strdup_printf ("the text ends here: the model has %" G_GINT64_FORMAT " positions%s",
                                 ebb_gpt_get_max_positions (EBB_GPT (self->model)),
                                 self->is_conversation ? "; /reset begins a new conversation" : "");
      command_fail (0, message);
    }
  self->met_context = FALSE;
}

gboolean
session_continue (Session *self,
                  const char *text,
                  GError **error)
{
  g_autoptr (EbbTensor) prompt = encode (self, text, "the prompt", error);
  g_autoptr (EbbGeneration) result = NULL;
  Printing printing = { FALSE };

  if (prompt == NULL)
    return FALSE;
  g_ptr_array_add (self->prompts, g_strdup (text));
  print_text (text);
  result = generate (self, &prompt, 1, &printing, error);
  putchar ('\n');
  tell_context (self);
  return result != NULL;
}

/* FALSE with @error if a line can't be a prompt. */
static gboolean
encode_lines (Session *self,
              const char *path,
              char **lines,
              GPtrArray *prompts,
              GError **error)
{
  guint n_lines = g_strv_length (lines);

  for (guint i = 0; i < n_lines; i++)
    if (g_str_has_suffix (lines[i], "\r"))
      lines[i][strlen (lines[i]) - 1] = '\0';
  while (n_lines > 0 && *lines[n_lines - 1] == '\0') /* after the last line break */
    n_lines--;
  for (guint i = 0; i < n_lines; i++)
    {
      g_autofree char *what = g_strdup_printf ("%s, line %u", path, i + 1);
      EbbTensor *prompt;

      prompt = encode (self, lines[i], what, error);
      if (prompt == NULL)
        return FALSE;
      g_ptr_array_add (prompts, prompt);
      g_ptr_array_add (self->prompts, g_strdup (lines[i]));
    }
  if (prompts->len > 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--batch %s: the file is empty", path);
  return FALSE;
}

char *
session_read_text (const char *option,
                   const char *path,
                   GError **error)
{
  gsize length;
  g_autofree char *text = read_file_or_pipe (path, &length, error);

  if (text == NULL)
    {
      if (path != NULL)
        g_prefix_error (error, "%s: ", option);
      return NULL;
    }
  if (strlen (text) == length)
    return g_steal_pointer (&text);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s%s%s: it is not text, it has a byte 0", option,
               path != NULL ? " " : "", path != NULL ? path : "");
  return NULL;
}

gboolean
session_continue_lines (Session *self,
                        const char *path,
                        GError **error)
{
  g_autofree char *text = NULL;
  g_auto (GStrv) lines = NULL;
  g_autoptr (GPtrArray) prompts = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_autoptr (EbbGeneration) result = NULL;
  Printing printing = { .is_silent = TRUE };

  text = session_read_text ("--batch", path, error);
  if (text == NULL)
    return FALSE;
  lines = g_strsplit (text, "\n", -1);
  if (!encode_lines (self, path, lines, prompts, error))
    return FALSE;
  result = generate (self, (EbbTensor **) prompts->pdata, prompts->len, &printing, error);
  if (result == NULL)
    return FALSE;
  for (guint i = 0; i < prompts->len; i++)
    {
      if (i > 0)
        putchar ('\n');
      print_text (self->prompts->pdata[i]);
      print_text (ebb_generation_get_text (result, i));
      putchar ('\n');
    }
  tell_context (self);
  return TRUE;
}

gboolean
session_answer (Session *self,
                GPtrArray *roles,
                GPtrArray *contents,
                char **answer,
                GError **error)
{
  g_autoptr (EbbTensor) prompt = NULL;
  g_autoptr (EbbGeneration) result = NULL;
  Printing printing = { .trims = TRUE };

  *answer = NULL;
  g_ptr_array_add (roles, NULL);
  g_ptr_array_add (contents, NULL);
  prompt = ebb_chat_template_encode (self->template, self->tokenizer, (const char *const *) roles->pdata,
                                     (const char *const *) contents->pdata, TRUE, NULL, error);
  g_ptr_array_set_size (roles, (int) roles->len - 1);
  g_ptr_array_set_size (contents, (int) contents->len - 1);
  if (prompt == NULL
      || !check_length (self, ebb_tensor_get_dim (prompt, 0),
                        self->is_conversation ? "the conversation (/reset begins a new one)" : "the question", error))
    return FALSE;
  g_ptr_array_add (self->prompts, g_strdup (contents->pdata[contents->len - 1]));
  result = generate (self, &prompt, 1, &printing, error);
  putchar ('\n');
  if (result == NULL)
    return FALSE;
  tell_context (self);
  *answer = g_strstrip (g_strdup (ebb_generation_get_text (result, 0)));
  return TRUE;
}

/* -- reporting ----------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint64 prompt_tokens, tokens, cache_bytes;
  guint64 rows;
  double prompt_seconds, token_seconds;
} Sums;

static void
add_result (Sums *sums,
            EbbGeneration *result)
{
  for (guint i = 0; i < ebb_generation_get_n_rows (result); i++)
    {
      g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (result, i);

      sums->tokens += (guint64) ebb_tensor_get_dim (tokens, 0);
      sums->rows++;
    }
  sums->prompt_tokens += ebb_generation_get_prompt_tokens (result);
  sums->prompt_seconds += ebb_generation_get_prompt_seconds (result);
  sums->token_seconds += ebb_generation_get_token_seconds (result);
  sums->cache_bytes = MAX (sums->cache_bytes, ebb_generation_get_cache_bytes (result));
}

/* Tokens a second after the first of each row, which the prompt's time is for. */
static double
get_speed (const Sums *sums)
{
  return sums->tokens > sums->rows && sums->token_seconds > 0
             ? (double) (sums->tokens - sums->rows) / sums->token_seconds
             : 0;
}

static const char *const end_names[] = { "length", "token", "string", "context", "stopped" };

static void
add_rows (Session *self,
          JsonBuilder *builder)
{
  guint n = 0;

  json_builder_set_member_name (builder, "rows");
  json_builder_begin_array (builder);
  for (guint i = 0; i < self->results->len; i++)
    for (guint row = 0; row < ebb_generation_get_n_rows (self->results->pdata[i]); row++)
      {
        EbbGeneration *result = self->results->pdata[i];
        g_autoptr (EbbTensor) tokens = ebb_generation_get_tokens (result, row);
        const gint64 n_tokens = ebb_tensor_get_dim (tokens, 0);
        const gint64 *data = n_tokens > 0 ? ebb_tensor_get_data (tokens, NULL) : NULL;

        json_builder_begin_object (builder);
        json_builder_set_member_name (builder, "prompt");
        json_builder_add_string_value (builder, self->prompts->pdata[n++]);
        json_builder_set_member_name (builder, "text");
        json_builder_add_string_value (builder, ebb_generation_get_text (result, row));
        json_builder_set_member_name (builder, "end");
        json_builder_add_string_value (builder, end_names[ebb_generation_get_end (result, row)]);
        json_builder_set_member_name (builder, "tokens");
        json_builder_begin_array (builder);
        for (gint64 j = 0; j < n_tokens; j++)
          json_builder_add_int_value (builder, data[j]);
        json_builder_end_array (builder);
        json_builder_end_object (builder);
      }
  json_builder_end_array (builder);
}

static void
add_integer (JsonBuilder *builder,
             const char *name,
             guint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, (gint64) value);
}

static gboolean
write_report (Session *self,
              const Sums *sums,
              EbbMemoryStats *stats,
              GError **error)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  json_builder_begin_object (builder);
  add_rows (self, builder);
  add_integer (builder, "prompt_tokens", sums->prompt_tokens);
  add_integer (builder, "tokens", sums->tokens);
  json_builder_set_member_name (builder, "prompt_seconds");
  json_builder_add_double_value (builder, sums->prompt_seconds);
  json_builder_set_member_name (builder, "token_seconds");
  json_builder_add_double_value (builder, sums->token_seconds);
  json_builder_set_member_name (builder, "tokens_per_second");
  json_builder_add_double_value (builder, get_speed (sums));
  add_integer (builder, "cache_bytes", sums->cache_bytes);
  add_integer (builder, "parameter_bytes", ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER));
  add_integer (builder, "peak_bytes", ebb_memory_stats_get_peak_total (stats));
  option_table_add_program (&self->options->state, builder);
  json_builder_set_member_name (builder, "version");
  json_builder_add_string_value (builder, ebb_get_version_string ());
  json_builder_set_member_name (builder, "config");
  json_builder_begin_object (builder);
  option_table_add_json (&self->options->state, TRUE, builder);
  option_table_add_given (&self->options->state, builder);
  json_builder_end_object (builder);
  json_builder_end_object (builder);
  return written_file_write_json (self->options->report, builder, error);
}

gboolean
session_report (Session *self,
                GError **error)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (self->device);
  Sums sums = { 0 };

  for (guint i = 0; i < self->results->len; i++)
    add_result (&sums, self->results->pdata[i]);
  if (isatty (STDERR_FILENO) && sums.tokens > 0)
    {
      fflush (stdout);
      fprintf (stderr,
               "%" G_GUINT64_FORMAT " tokens, %.1f tokens/s after a prompt of %" G_GUINT64_FORMAT
               " in %.2f s; peak memory %.1f MiB, %.1f of it keys and values\n",
               sums.tokens, get_speed (&sums), sums.prompt_tokens, sums.prompt_seconds,
               (double) ebb_memory_stats_get_peak_total (stats) / MIB, (double) sums.cache_bytes / MIB);
    }
  return self->options->report == NULL || write_report (self, &sums, stats, error);
}
