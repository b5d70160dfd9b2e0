/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Generates text: the prompts in one call, then a token for each row that goes on, and again. */
#include "nn/models/generate.h"

#include "nn/args-private.h"
#include "nn/layers/key-value-cache.h"
#include "nn/models/generation-options-private.h"
#include "nn/models/generation-private.h"
#include "nn/models/gpt.h"
#include "nn/models/token-choice-private.h"
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/reduction.h"
#include "tensor/ops/shape.h"

#include <math.h>

typedef struct
{
  EbbModule *model;
  EbbGenerationOptions *options;
  EbbGeneration *result;
  EbbGenerationFunc func;
  gpointer user_data;
  EbbDevice *device;
  gint64 limit; /* positions of the model */
  /* Tokens in a row from which on other frequencies count, so that keys are computed anew: of full layers and of
   * sliding layers. 0: none. */
  gint64 reset_at[2];
  guint *active; /* the rows that go on, ascending */
  guint n_active;
  EbbKeyValueCache *cache; /* NULL: the next call begins from the first token */
  EbbTensor *starts;       /* [n_active, 1] for calls with one token; NULL: no row has padding */
  EbbTokenChoice *choice;
  gint64 *next; /* [n_active]: what the last call gave */
  gboolean is_stopped;
} Run;

/* -- the model's calls --------------------------------------------------------------------------------------------- */

static EbbTensor *
make_ints (Run *run, const gint64 *values, gint64 n_rows, gint64 n_columns, GError **error)
{
  const gint64 shape[] = { n_rows, n_columns };

  return ebb_tensor_new_from_values (values, (gsize) (n_rows * n_columns), shape, 2, EBB_DTYPE_I64, run->device, error);
}

/* Logits [n_active, 1, vocab] of the position after the last. */
static EbbTensor *
call_model (Run *run, EbbTensor *tokens, EbbTensor *starts, GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);

  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_boolean (args, "last", TRUE);
  if (starts != NULL)
    ebb_args_add_tensor (args, "starts", starts);
  if (run->cache != NULL)
    ebb_args_add_object (args, "cache", G_OBJECT (run->cache));
  return ebb_module_call_for_tensor (run->model, args, error);
}

static EbbGenerationRow *
get_active (Run *run, guint i)
{
  return &run->result->rows[run->active[i]];
}

/* How much of a row the model sees. */
static gint64
get_seen (Run *run, guint i)
{
  return MIN ((gint64) get_active (run, i)->tokens->len, run->limit);
}

/* All tokens of the rows that go on, with padding before the shorter ones. Rows that are longer than the context have
 * no place in a cache: their positions change with each token. */
static EbbTensor *
call_from_start (Run *run, GError **error)
{
  gint64 n_columns = 0, longest = 0;
  gboolean is_padded = FALSE;
  g_autofree gint64 *values = NULL;
  g_autofree gint64 *begins = NULL;
  g_autofree gint64 *paddings = g_new0 (gint64, run->n_active);
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) starts = NULL;

  for (guint i = 0; i < run->n_active; i++)
    {
      n_columns = MAX (n_columns, get_seen (run, i));
      longest = MAX (longest, (gint64) get_active (run, i)->tokens->len);
    }
  values = g_new0 (gint64, n_columns * run->n_active);
  begins = g_new0 (gint64, n_columns * run->n_active);
  for (guint i = 0; i < run->n_active; i++)
    {
      const GArray *row = get_active (run, i)->tokens;
      const gint64 seen = get_seen (run, i), padding = n_columns - seen;

      paddings[i] = padding;
      is_padded = is_padded || padding > 0;
      memcpy (values + i * n_columns + padding, &g_array_index (row, gint64, row->len - seen),
              sizeof (gint64) * (gsize) seen);
      for (gint64 j = 0; j < n_columns; j++)
        begins[i * n_columns + j] = padding;
    }
  tokens = make_ints (run, values, run->n_active, n_columns, error);
  if (tokens == NULL)
    return NULL;
  if (is_padded)
    {
      starts = make_ints (run, begins, run->n_active, n_columns, error);
      run->starts = starts != NULL ? make_ints (run, paddings, run->n_active, 1, error) : NULL;
      if (run->starts == NULL)
        return NULL;
    }
  if (run->options->use_cache && longest <= run->limit)
    run->cache = ebb_key_value_cache_new (MIN (run->limit, n_columns + MAX (1, run->options->max_tokens)));
  return call_model (run, tokens, starts, error);
}

static void
drop_cache (Run *run)
{
  g_clear_object (&run->cache);
  g_clear_pointer (&run->starts, ebb_tensor_unref);
}

/* LongRoPE chooses frequencies by the number of columns, so cached keys are wrong from the original context on. Once
 * the longest row has ended, columns are padding that a call without a cache would not have. */
static gboolean
changes_frequencies (Run *run, gint64 n_columns)
{
  gint64 longest = 0;

  for (guint i = 0; i < run->n_active; i++)
    longest = MAX (longest, get_seen (run, i));
  for (guint i = 0; i < G_N_ELEMENTS (run->reset_at); i++)
    if (run->reset_at[i] != 0 && n_columns >= run->reset_at[i]
        && (n_columns == run->reset_at[i] || longest < run->reset_at[i]))
      return TRUE;
  return FALSE;
}

/* The next logits: of one token for each row where the others are in the cache and there is room, else of all. */
static EbbTensor *
compute_logits (Run *run, GError **error)
{
  gint64 length = run->cache != NULL ? ebb_key_value_cache_get_length (run->cache) : 0;
  g_autoptr (EbbTensor) tokens = NULL;

  if (run->cache == NULL || length + 1 > ebb_key_value_cache_get_capacity (run->cache)
      || changes_frequencies (run, length + 1))
    {
      drop_cache (run);
      return call_from_start (run, error);
    }
  tokens = make_ints (run, run->next, run->n_active, 1, error);
  return tokens != NULL ? call_model (run, tokens, run->starts, error) : NULL;
}

/* -- choosing ------------------------------------------------------------------------------------------------------ */

static gboolean
refuse_logits (const Run *run, guint i, GError **error)
{
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                   "generate: the logits of row %u are not numbers; the model's weights may have overflowed",
                   run->active[i]);
}

/* The likeliest tokens, where nothing else counts: only they and their logits leave the device. */
static gboolean
take_likeliest (Run *run, EbbTensor *logits, GError **error)
{
  g_autoptr (EbbTensor) values = NULL;
  g_autoptr (EbbTensor) best = NULL;
  g_autoptr (EbbTensor) host = NULL;
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) moved = NULL;
  const gint64 *tokens;
  const float *scores;

  if (!ebb_max_along (logits, -1, FALSE, &values, &best, error))
    return FALSE;
  host = ebb_to_device (best, ebb_device_get_cpu (), error);
  cast = host != NULL ? ebb_cast (values, EBB_DTYPE_F32, error) : NULL;
  moved = ebb_to_device (cast, ebb_device_get_cpu (), error);
  tokens = moved != NULL ? ebb_tensor_get_data (host, error) : NULL;
  scores = tokens != NULL ? ebb_tensor_get_data (moved, error) : NULL;
  if (scores == NULL)
    return FALSE;
  for (guint i = 0; i < run->n_active; i++)
    if (isnan (scores[i]))
      return refuse_logits (run, i, error);
  memcpy (run->next, tokens, sizeof (gint64) * run->n_active);
  return TRUE;
}

/* A number for each prompt, so that what a row gets doesn't depend on which others go on. */
static EbbTensor *
draw_numbers (Run *run, GError **error)
{
  const gint64 n = run->result->n_rows;

  return ebb_rand (&n, 1, EBB_DTYPE_F32, ebb_device_get_cpu (), run->options->generator, error);
}

static gboolean
choose (Run *run, EbbTensor *logits, GError **error)
{
  const gint64 vocab = ebb_tensor_get_dim (logits, -1);
  g_autoptr (EbbTensor) cast = NULL;
  g_autoptr (EbbTensor) moved = NULL;
  g_autoptr (EbbTensor) host = NULL;
  g_autoptr (EbbTensor) numbers = NULL;
  const float *scores, *uniforms = NULL;

  if (ebb_generation_options_take_likeliest (run->options))
    return take_likeliest (run, logits, error);
  cast = ebb_cast (logits, EBB_DTYPE_F32, error);
  moved = ebb_to_device (cast, ebb_device_get_cpu (), error);
  host = ebb_contiguous (moved, error);
  scores = host != NULL ? ebb_tensor_get_data (host, error) : NULL;
  if (scores == NULL)
    return FALSE;
  if (run->options->temperature > 0)
    {
      numbers = draw_numbers (run, error);
      uniforms = numbers != NULL ? ebb_tensor_get_data (numbers, error) : NULL;
      if (uniforms == NULL)
        return FALSE;
    }
  if (run->choice == NULL)
    run->choice = ebb_token_choice_new (run->options, vocab);
  for (guint i = 0; i < run->n_active; i++)
    {
      const GArray *row = get_active (run, i)->tokens;

      run->next[i] = ebb_token_choice_choose (run->choice, scores + i * vocab, (const gint64 *) (gpointer) row->data,
                                              row->len, get_active (run, i)->n_prompt,
                                              uniforms != NULL ? (double) uniforms[run->active[i]] : 0);
      if (run->next[i] == EBB_TOKEN_CHOICE_NONE)
        return ebb_fail (
            error, EBB_ERROR_INVALID_ARGUMENT,
            "generate: row %u has no next token: the options suppress, or let not repeat or end it, all of "
            "the vocabulary's %" G_GINT64_FORMAT,
            run->active[i], vocab);
      if (run->next[i] < 0)
        return refuse_logits (run, i, error);
    }
  return TRUE;
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

static gboolean
is_stop_token (Run *run, gint64 token)
{
  const GArray *stops = run->options->stop_tokens;

  for (guint i = 0; i < stops->len; i++)
    if (g_array_index (stops, gint64, i) == token)
      return TRUE;
  return FALSE;
}

/* Adds row @i's next token. *is_over: it is the row's last. */
static gboolean
take_token (Run *run, guint i, gboolean *is_over, GError **error)
{
  EbbGenerationOptions *options = run->options;
  EbbGenerationRow *row = get_active (run, i);
  const char *const *strings = (const char *const *) options->stop_strings;
  const gint64 token = run->next[i];
  const gboolean stops = is_stop_token (run, token);
  g_autofree char *text = NULL;
  gboolean has_string;

  if (!ebb_generation_row_push (row, token, stops, options->tokenizer, strings, &has_string, error))
    return FALSE;
  *is_over = TRUE;
  if (stops)
    row->end = EBB_GENERATION_END_TOKEN;
  else if (has_string)
    row->end = EBB_GENERATION_END_STRING;
  else if ((gint64) row->tokens->len - row->n_prompt >= options->max_tokens)
    row->end = EBB_GENERATION_END_LENGTH;
  else if (row->tokens->len > run->limit && !options->slides)
    row->end = EBB_GENERATION_END_CONTEXT;
  else
    *is_over = FALSE;
  if (*is_over && !ebb_generation_row_finish (row, strings, &has_string, error))
    return FALSE;
  if (has_string)
    row->end = EBB_GENERATION_END_STRING;
  text = ebb_generation_row_take_text (row, strings, *is_over);
  if (run->func != NULL && !run->func (run->active[i], token, text, run->user_data))
    run->is_stopped = TRUE;
  return TRUE;
}

/* Ends all rows that go on. */
static gboolean
stop_rows (Run *run, GError **error)
{
  const char *const *strings = (const char *const *) run->options->stop_strings;

  for (guint i = 0; i < run->n_active; i++)
    {
      gboolean has_string = FALSE;

      if (!ebb_generation_row_finish (get_active (run, i), strings, &has_string, error))
        return FALSE;
      get_active (run, i)->end = has_string ? EBB_GENERATION_END_STRING : EBB_GENERATION_END_STOPPED;
    }
  run->n_active = 0;
  return TRUE;
}

/* Goes on with the rows at @places of the active ones. */
static gboolean
keep_rows (Run *run, const gint64 *places, guint n, GError **error)
{
  g_autofree gint64 *paddings = NULL;

  if (n == run->n_active)
    return TRUE;
  if (n > 0 && run->cache != NULL && !ebb_key_value_cache_keep_rows (run->cache, places, n, error))
    return FALSE;
  if (n > 0 && run->starts != NULL)
    {
      const EbbTensor *old = run->starts;
      g_autoptr (EbbTensor) host = ebb_to_device ((EbbTensor *) old, ebb_device_get_cpu (), error);
      const gint64 *values = host != NULL ? ebb_tensor_get_data (host, error) : NULL;

      if (values == NULL)
        return FALSE;
      paddings = g_new (gint64, n);
      for (guint i = 0; i < n; i++)
        paddings[i] = values[places[i]];
      ebb_tensor_unref (run->starts);
      run->starts = make_ints (run, paddings, n, 1, error);
      if (run->starts == NULL)
        return FALSE;
    }
  for (guint i = 0; i < n; i++)
    {
      run->active[i] = run->active[places[i]];
      run->next[i] = run->next[places[i]];
    }
  run->n_active = n;
  return TRUE;
}

static gboolean
take_tokens (Run *run, GError **error)
{
  g_autofree gint64 *places = g_new (gint64, run->n_active);
  guint n = 0;

  for (guint i = 0; i < run->n_active; i++)
    {
      gboolean is_over = FALSE;

      if (!run->is_stopped && !take_token (run, i, &is_over, error))
        return FALSE;
      if (!is_over)
        places[n++] = i;
    }
  return keep_rows (run, places, n, error) && (!run->is_stopped || stop_rows (run, error));
}

static double
get_seconds (gint64 since)
{
  return (double) (g_get_monotonic_time () - since) / G_USEC_PER_SEC;
}

static gboolean
generate (Run *run, GCancellable *cancellable, GError **error)
{
  gint64 began = g_get_monotonic_time ();

  for (int n = 0; run->n_active > 0; n++)
    {
      g_autoptr (EbbTensor) logits = NULL;

      if (g_cancellable_is_cancelled (cancellable))
        return ebb_fail (error, EBB_ERROR_CANCELLED, "generate: cancelled after %d of %d tokens", n,
                         run->options->max_tokens);
      logits = compute_logits (run, error);
      if (logits == NULL || !choose (run, logits, error))
        return FALSE;
      if (n == 0)
        {
          run->result->prompt_seconds = get_seconds (began);
          began = g_get_monotonic_time ();
        }
      if (run->cache != NULL)
        run->result->cache_bytes = MAX (run->result->cache_bytes, ebb_key_value_cache_get_n_bytes (run->cache));
      if (!take_tokens (run, error))
        return FALSE;
    }
  run->result->token_seconds = get_seconds (began);
  return TRUE;
}

/* -- modes --------------------------------------------------------------------------------------------------------- */

/* Puts all modules below the model in evaluation mode; the old modes are given back by restore_training (). */
static gboolean *
suspend_training (EbbModule **modules, guint n_modules)
{
  gboolean *saved = g_new (gboolean, n_modules);

  for (guint i = 0; i < n_modules; i++)
    {
      EbbModulePrivate *priv = ebb_module_get_private (modules[i]);

      saved[i] = priv->training;
      priv->training = FALSE;
    }
  return saved;
}

static void
restore_training (EbbModule **modules, guint n_modules, gboolean *saved)
{
  for (guint i = 0; i < n_modules; i++)
    {
      ebb_module_get_private (modules[i])->training = saved[i] != FALSE;
      g_object_unref (modules[i]);
    }
  g_free (saved);
  g_free (modules);
}

static gboolean
generate_in_evaluation (Run *run, GCancellable *cancellable, GError **error)
{
  guint n_modules;
  EbbModule **modules = ebb_module_get_modules (run->model, &n_modules);
  gboolean *saved = suspend_training (modules, n_modules);
  gboolean generated;

  ebb_push_grad_enabled (FALSE);
  generated = generate (run, cancellable, error);
  ebb_pop_grad_enabled ();
  restore_training (modules, n_modules, saved);
  return generated;
}

/* -- beginning ----------------------------------------------------------------------------------------------------- */

/* The prompts' device if it is not the CPU, else that of the parameters. */
static EbbDevice *
find_device (EbbModule *model, EbbTensor *prompt)
{
  EbbDevice *device = ebb_tensor_get_device (prompt);

  return device != ebb_device_get_cpu () ? device : ebb_module_find_device (model, device);
}

/* Sliding layers have frequencies of their own if local_rotary has a theta. */
static void
find_resets (Run *run, const EbbGptConfig *config)
{
  const EbbRotaryConfig *kinds[] = { &config->rotary, &config->local_rotary };

  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    if (config->positions == EBB_POSITIONS_ROTARY && kinds[i]->theta != 0 && kinds[i]->scaling == EBB_ROTARY_LONGROPE)
      run->reset_at[i] = (kinds[i]->original_context > 0 ? kinds[i]->original_context : config->context) + 1;
}

static gboolean
check_lengths (Run *run, GError **error)
{
  for (guint i = 0; i < run->result->n_rows && !run->options->slides; i++)
    if (run->result->rows[i].n_prompt > run->limit)
      return ebb_fail (error, EBB_ERROR_SHAPE,
                       "generate: prompt %u has %u tokens, more than the model's %" G_GINT64_FORMAT " positions", i,
                       run->result->rows[i].n_prompt, run->limit);
  return TRUE;
}

static gboolean
check_forced (const EbbGenerationOptions *options, gint64 vocab, GError **error)
{
  gint64 most = options->forced_bos_token;

  for (guint i = 0; i < options->forced_eos_tokens->len; i++)
    most = MAX (most, g_array_index (options->forced_eos_tokens, gint64, i));
  return most < vocab
         || ebb_fail (error, EBB_ERROR_INDEX,
                      "generate: forced token %" G_GINT64_FORMAT " must be in [0, %" G_GINT64_FORMAT
                      "), the vocabulary",
                      most, vocab);
}

/**
 * ebb_model_generate:
 * @model: an #EbbGpt
 * @prompts: (array length=n_prompts): where to begin: for each row its tokens, i64 or i32 `[n]`, one at least
 * @n_prompts: how many rows
 * @options: (nullable): how to choose tokens and when to end; what is not set, or all if it is %NULL, comes from the
 *   folder that the model was opened from, see #EbbGenerationOptions
 * @func: (nullable) (scope call) (closure user_data): takes tokens as they come
 * @user_data: data for @func
 * @cancellable: (nullable): stops between two tokens, with an error
 * @error: return location for an error
 *
 * Continues each prompt token by token, in evaluation mode and without gradients, whatever the model's modes are.
 * Prompts may have different lengths: shorter ones get padding before them that nothing sees. Rows that have ended cost
 * nothing more.
 *
 * Returns: (transfer full) (nullable): what was generated, or %NULL with @error set, to %EBB_ERROR_CANCELLED if it was
 *   cancelled
 */
EbbGeneration *
ebb_model_generate (EbbModule *model,
                    EbbTensor **prompts,
                    gsize n_prompts,
                    EbbGenerationOptions *options,
                    EbbGenerationFunc func,
                    gpointer user_data,
                    GCancellable *cancellable,
                    GError **error)
{
  g_autoptr (EbbGenerationOptions) own = NULL;
  g_autoptr (EbbGptConfig) config = NULL;
  g_autoptr (EbbGeneration) result = NULL;
  Run run;
  gboolean generated;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, model);
  if (!EBB_IS_GPT (model))
    return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED,
                          "generate: %s can't continue text: it takes an EbbGpt, such as GPT-2 or Llama",
                          ebb_module_get_type_name (model));
  config = ebb_gpt_get_config (EBB_GPT (model));
  own = ebb_generation_options_complete (options, model, error);
  if (own == NULL || !ebb_generation_options_check (own, error)
      || !check_forced (own, config->vocab, error))
    return NULL;
  result = ebb_generation_new (prompts, n_prompts, config->vocab, own->tokenizer, error);
  if (result == NULL)
    return NULL;
  run = (Run){ .model = model, .options = own, .result = result, .func = func, .user_data = user_data };
  run.limit = ebb_gpt_get_max_positions (EBB_GPT (model));
  find_resets (&run, config);
  if (!check_lengths (&run, error))
    return NULL;
  run.device = find_device (model, prompts[0]);
  run.active = g_new (guint, n_prompts);
  run.next = g_new (gint64, n_prompts);
  for (guint i = 0; i < n_prompts; i++)
    run.active[i] = i;
  run.n_active = own->max_tokens > 0 ? (guint) n_prompts : 0;
  generated = generate_in_evaluation (&run, cancellable, error);
  drop_cache (&run);
  g_clear_pointer (&run.choice, ebb_token_choice_free);
  g_free (run.active);
  g_free (run.next);
  return generated ? g_steal_pointer (&result) : NULL;
}

/**
 * ebb_model_generate_texts:
 * @model: an #EbbGpt
 * @texts: (array zero-terminated=1): the texts to continue, one for each row
 * @options: as of ebb_model_generate(), with a tokenizer
 * @func: (nullable) (scope call) (closure user_data): takes tokens as they come
 * @user_data: data for @func
 * @cancellable: (nullable): stops between two tokens, with an error
 * @error: return location for an error
 *
 * Continues texts as ebb_model_generate() continues tokens. Their tokens begin with the special tokens that the
 * tokenizer adds to a text, as they do in transformers.
 *
 * Returns: (transfer full) (nullable): what was generated, or %NULL with @error set
 */
EbbGeneration *
ebb_model_generate_texts (EbbModule *model,
                          const char *const *texts,
                          EbbGenerationOptions *options,
                          EbbGenerationFunc func,
                          gpointer user_data,
                          GCancellable *cancellable,
                          GError **error)
{
  g_autoptr (GPtrArray) prompts = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);

  EBB_RETURN_UNLESS_BEGUN (NULL, error, model);
  if (options == NULL || options->tokenizer == NULL)
    return ebb_fail_null (error, EBB_ERROR_INVALID_ARGUMENT,
                          "generate: the prompts are texts, which need options with a tokenizer");
  for (guint i = 0; texts != NULL && texts[i] != NULL; i++)
    {
      g_autoptr (GError) failure = NULL;
      gsize n = 0;
      g_autofree gint64 *tokens = ebb_tokenizer_encode_text_full (options->tokenizer, texts[i], TRUE, &n, &failure);
      const gint64 size = (gint64) n;
      EbbTensor *prompt;

      if (failure == NULL && n == 0)
        ebb_error_set (&failure, EBB_ERROR_SHAPE, "generate: prompt %u is empty; it must have a token at least", i);
      prompt = failure == NULL ? ebb_tensor_new_from_ints (tokens, n, &size, 1, &failure) : NULL;
      if (prompt == NULL)
        {
          g_propagate_error (error, g_steal_pointer (&failure));
          return NULL;
        }
      g_ptr_array_add (prompts, prompt);
    }
  return ebb_model_generate (model, (EbbTensor **) prompts->pdata, prompts->len, options, func, user_data, cancellable,
                             error);
}
