/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

#include "common/command.h"

#include <stdio.h>

#define AT(member) .place = G_STRUCT_OFFSET (Options, member)
#define FOLDERS .shown = "the folder's"

static const char *const dtypes[] = { "auto", "f32", "bf16", NULL };
static const char *const bases[] = { "auto", "int8", "nf4", NULL };

/* clang-format off */
static const OptionRow rows[] = {
  { OPTION_GROUP, "model", .metavar = "Model:" },
  { OPTION_PATH, "model", 'm', AT (model), .metavar = "FOLDER",
    .help = "Folder in Hugging Face's format: config.json, model.safetensors, tokenizer.json; or a GGUF file" },
  { OPTION_PATH, "adapter", 'a', AT (adapter), .metavar = "FOLDER",
    .help = "LoRA adapter of that model: adapter_config.json, adapter_model.safetensors; or a GGUF file" },
  { OPTION_TEXT, "dtype", AT (dtype), .metavar = "NAME", .fallback = "auto", .names = dtypes,
    .help = "Type of the weights in memory: auto, the files' own; f32; bf16" },
  { OPTION_TEXT, "base", AT (base), .metavar = "NAME", .fallback = "auto", .names = bases,
    .help = "Weights of linear layers: auto (as in the files), int8 or nf4 (quantised as they are read)" },
  { OPTION_DEVICE, "device", AT (device), .metavar = "NAME", .fallback = "cpu", .help = "Device to compute on" },
  { OPTION_INT, "threads", AT (threads), .metavar = "N", .fallback = "0", .least = 0, .most = 1024,
    .help = "Number of threads; 0: one for each core" },

  { OPTION_GROUP, "text", .metavar = "Text:" },
  { OPTION_RAW, "prompt", 'p', AT (prompt), .metavar = "TEXT",
    .help = "Text to continue; without it and the next two, the arguments, or standard input" },
  { OPTION_PATH, "file", 'f', AT (file), .metavar = "FILE", .help = "File with the text to continue" },
  { OPTION_PATH, "batch", 'b', AT (batch), .metavar = "FILE",
    .help = "File with a prompt in each line: all are continued together, and printed with a line between them" },
  { OPTION_FLAG, "chat", 'c', AT (chat),
    .help = "Answer as an assistant, by the folder's chat template; without a prompt on a terminal, in a conversation: "
            "/reset begins a new one, /quit ends it, Ctrl-C stops an answer" },
  { OPTION_RAW, "system", AT (system), .metavar = "TEXT", .shown = "", .help = "System message of the conversation" },
  { OPTION_FLAG, "no-thinking", AT (no_thinking), .help = "Have Qwen 3 answer without reasoning first" },

  { OPTION_GROUP, "choice", .metavar = "Choice of tokens:" },
  { OPTION_INT, "tokens", 'n', AT (tokens), .metavar = "N", .fallback = "256", .least = 1, .most = G_MAXINT,
    .help = "Most tokens to generate" },
  { OPTION_DOUBLE, "temperature", 't', AT (temperature), .metavar = "X", .fallback = "0", FOLDERS,
    .help = "What logits are divided by; 0: always the likeliest token" },
  { OPTION_INT, "top-k", AT (top_k), .metavar = "N", .fallback = "0", FOLDERS, .least = 0, .most = G_MAXINT,
    .help = "Choose among this many of the likeliest tokens; 0: all" },
  { OPTION_DOUBLE, "top-p", AT (top_p), .metavar = "P", .fallback = "1", FOLDERS,
    .help = "Choose among the likeliest tokens that have this probability together; 1: all" },
  { OPTION_DOUBLE, "min-p", AT (min_p), .metavar = "P", .fallback = "0", FOLDERS,
    .help = "Choose among tokens with at least this part of the likeliest one's probability" },
  { OPTION_DOUBLE, "repetition-penalty", AT (repetition_penalty), .metavar = "X", .fallback = "1", FOLDERS,
    .help = "Above 1, tokens that are in the text already become less likely" },
  { OPTION_PATHS, "stop", AT (stop), .metavar = "TEXT", .help = "End before this text; may be given several times" },
  { OPTION_INT64, "seed", AT (seed), .metavar = "N", .fallback = "1", .least = 0, .most = G_MAXINT64,
    .help = "Seed of all random numbers" },
  { OPTION_FLAG, "no-cache", AT (no_cache),
    .help = "Compute all tokens anew for each, which is slow and needs less memory" },

  { OPTION_GROUP, "files", .metavar = "Files:" },
  { OPTION_PATH, "report", AT (report), .metavar = "FILE",
    .help = "Write texts, tokens, speed and memory to FILE as JSON" },
  { .name = NULL },
};
/* clang-format on */

void
options_init (Options *self)
{
  *self = (Options){ .printed = FALSE };
  option_table_init (&self->state, rows, FALSE, NULL);
}

void
options_clear (Options *self)
{
  option_table_clear (&self->state);
  g_strfreev (self->words);
}

static GOptionContext *
make_context (Options *self)
{
  GOptionContext *context = g_option_context_new ("[TEXT] - continue a text, or answer, with a model from a folder");
  const GOptionEntry rest[] = {
    { G_OPTION_REMAINING, 0, 0, G_OPTION_ARG_FILENAME_ARRAY, &self->words, NULL, NULL },
    { NULL }
  };
  const char *name = g_get_prgname ();
  g_autofree char *description =
      g_strdup_printf ("Examples: %s --model Llama-3.2-1B --prompt \"Once upon a time\" --temperature 0.8\n"
                       "          %s --model Qwen3-0.6B --chat \"Why is the sky blue?\"\n"
                       "          %s --model Qwen3-0.6B --chat\n"
                       "Defaults that are the folder's come from its generation_config.json.\n"
                       "Exit status: 0; 1 for a failure; 2 for wrong options; 130 after Ctrl-C.\n",
                       name, name, name);

  g_option_context_set_help_enabled (context, FALSE);
  g_option_context_add_main_entries (context, rest, NULL);
  option_table_add_groups (&self->state, context);
  g_option_context_set_description (context, description);
  return context;
}

static void
print (const Options *self,
       GOptionContext *context)
{
  g_autofree char *help = command_get_help (context);

  if (self->state.help)
    fputs (help, stdout);
  else
    command_print_version ();
}

/* Whether there is one source of the prompt at most. */
static gboolean
check_sources (const Options *self,
               GError **error)
{
  const struct
  {
    const char *name;
    gboolean is_given;
  } sources[] = { { "--prompt", self->prompt != NULL },
                  { "--file", self->file != NULL },
                  { "--batch", self->batch != NULL },
                  { "a text as an argument", self->words != NULL } };
  const char *first = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (sources); i++)
    {
      if (!sources[i].is_given)
        continue;
      if (first != NULL)
        return options_refuse (error, "%s and %s: give one of them", first, sources[i].name);
      first = sources[i].name;
    }
  if (self->batch != NULL && self->chat)
    return options_refuse (error, "--batch and --chat: give one of them");
  if (self->system != NULL && !self->chat)
    return options_refuse (error, "--system: it needs --chat");
  if (self->no_thinking && !self->chat)
    return options_refuse (error, "--no-thinking: it needs --chat");
  return TRUE;
}

static gboolean
check_values (const Options *self,
              GError **error)
{
  if (self->model == NULL)
    return options_refuse (error, "--model is missing: name the folder of a model");
  if (self->top_p > 1)
    return options_refuse (error, "--top-p %g: it must be from 0 to 1", self->top_p);
  if (self->min_p > 1)
    return options_refuse (error, "--min-p %g: it must be from 0 to 1", self->min_p);
  if (OPTION_WAS_GIVEN (self, repetition_penalty) && self->repetition_penalty <= 0)
    return options_refuse (error, "--repetition-penalty %g: it must be above 0", self->repetition_penalty);
  for (guint i = 0; self->stop != NULL && self->stop[i] != NULL; i++)
    if (*self->stop[i] == '\0' || !g_utf8_validate (self->stop[i], -1, NULL))
      return options_refuse (error, "--stop: it must be a text in UTF-8 that is not empty");
  return TRUE;
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  g_autoptr (GOptionContext) context = make_context (self);
  g_autoptr (GError) failure = NULL;

  if (!g_option_context_parse (context, &argc, &argv, error))
    return FALSE;
  self->printed = self->state.help || self->state.version;
  if (self->printed)
    {
      print (self, context);
      return TRUE;
    }
  option_table_fill (&self->state);
  if (!option_table_check (&self->state, error) || !check_sources (self, error) || !check_values (self, error))
    return FALSE;
  if (ebb_device_get (self->device, &failure) == NULL)
    return options_refuse (error, "--device %s: %s", self->device, failure->message);
  return TRUE;
}

EbbGenerationOptions *
options_make_generation (const Options *self,
                         EbbTokenizer *tokenizer,
                         GError **error)
{
  g_autoptr (EbbGenerationOptions) made = ebb_generation_options_open (self->model, error);
  g_autoptr (EbbGenerator) generator = ebb_generator_new ((guint64) self->seed);
  const gint64 end = ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_EOS);
  gsize n_stops;

  if (made == NULL)
    return NULL;
  g_object_set (made, "max-tokens", self->tokens, "use-cache", !self->no_cache, "generator", generator, "tokenizer",
                tokenizer, "stop-strings", self->stop, NULL);
  ebb_generation_options_get_stop_tokens (made, &n_stops);
  if (n_stops == 0 && end >= 0)
    ebb_generation_options_add_stop_token (made, end);
#define TAKE(name, member)             \
  if (OPTION_WAS_GIVEN (self, member)) \
  g_object_set (made, name, self->member, NULL)
  TAKE ("temperature", temperature);
  TAKE ("top-k", top_k);
  TAKE ("top-p", top_p);
  TAKE ("min-p", min_p);
  TAKE ("repetition-penalty", repetition_penalty);
#undef TAKE
  return ebb_generation_options_check (made, error) ? g_steal_pointer (&made) : NULL;
}
