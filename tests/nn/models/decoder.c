/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Decoders of every kind: documents that share a row, prompts with padding, a cache, and what backward keeps of a
 * block.
 */

#include <math.h>
#include <string.h>

#include "support/decoders.h"
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"
#include "support/training.h"

#define VOCAB 64
#define CLOSE 2e-6

/* GPT-2 is the last one. */
static EbbModule *
new_model (const char *name)
{
  g_autoptr (EbbGptConfig) config = NULL;
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  if (!g_str_equal (name, "gpt2"))
    return test_decoder_new (name, 1);
  config = ebb_gpt_config_new ();
  config->vocab = VOCAB;
  config->context = 48;
  config->width = 24;
  config->heads = 4;
  config->layers = 2;
  config->dropout = 0;
  ebb_manual_seed (1);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static EbbTensor *
new_indices (const gint64 *values, gint64 rows, gint64 columns)
{
  const gint64 shape[] = { rows, columns };
  EbbTensor *tensor = ebb_tensor_new_from_ints (values, (gsize) (rows * columns), shape, 2, NULL);

  g_assert_nonnull (tensor);
  return tensor;
}

/* The logits of @tokens, with the other arguments that there are. */
static EbbTensor *
call (EbbModule *gpt, EbbTensor *tokens, EbbTensor *starts, EbbKeyValueCache *cache, GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, tokens);
  if (starts != NULL)
    ebb_args_add_tensor (args, "starts", starts);
  if (cache != NULL)
    ebb_args_add_object (args, "cache", G_OBJECT (cache));
  result = ebb_module_call (gpt, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

static EbbTensor *
take (EbbTensor *x, int dim, gint64 first, gint64 length)
{
  g_autoptr (EbbTensor) part = ebb_narrow (x, dim, first, length, NULL);

  return ebb_contiguous (part, NULL);
}

static double
compare (EbbTensor *a, EbbTensor *b)
{
  g_autoptr (EbbTensor) x = ebb_to_device (a, ebb_device_get_cpu (), NULL);
  g_autoptr (EbbTensor) y = ebb_to_device (b, ebb_device_get_cpu (), NULL);

  return test_relative_difference (x, y);
}

static void
assert_close (EbbTensor *a, EbbTensor *b)
{
  g_assert_cmpfloat (compare (a, b), <=, CLOSE);
}

/* -- documents that share a row ------------------------------------------------------------------------------------ */

/* A document in the middle of a row gives what it gives alone, and so does its gradient. */
static void
documents_do_not_see_each_other (gconstpointer data)
{
  static const gint64 starts_values[] = { 0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 5, 5, 12, 12, 12, 12 };
  static const gint64 lengths[] = { 5, 7, 4 };
  g_autoptr (EbbModule) gpt = new_model (data);
  g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 1, 16, -1);
  g_autoptr (EbbTensor) starts = new_indices (starts_values, 1, 16);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) together = call (gpt, tokens, starts, NULL, &error);
  g_autoptr (EbbTensor) blind = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (TestOutcome) apart = NULL;
  gint64 first = 0;

  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (lengths); i++)
    {
      g_autoptr (EbbTensor) document = take (tokens, 1, first, lengths[i]);
      g_autoptr (EbbTensor) alone = call (gpt, document, NULL, NULL, &error);
      g_autoptr (EbbTensor) own = take (together, 1, first, lengths[i]);
      g_autoptr (EbbTensor) square = NULL;

      g_assert_no_error (error);
      assert_close (own, alone);
      square = test_loss (alone);
      test_backward (square);
      first += lengths[i];
    }
  blind = call (gpt, tokens, NULL, NULL, &error);
  g_assert_cmpfloat (compare (blind, together), >, 1e-3);

  apart = test_outcome_new (gpt, NULL);
  ebb_module_zero_grad (gpt);
  loss = test_loss (together);
  test_backward (loss);
  for (guint i = 0; i < apart->tensors->len; i++)
    {
      g_autoptr (TestOutcome) joined = test_outcome_new (gpt, NULL);
      EbbTensor *a = g_ptr_array_index (apart->tensors, i), *b = g_ptr_array_index (joined->tensors, i);

      if (a != NULL && b != NULL && ebb_dtype_is_floating_point (ebb_tensor_get_dtype (a)))
        g_assert_cmpfloat (compare (b, a), <=, 2e-5);
    }
}

/* A prompt with padding before it gives what it gives without. */
static void
padding_changes_nothing (gconstpointer data)
{
  static const gint64 starts_values[2][9] = { { 4, 4, 4, 4, 4, 4, 4, 4, 4 }, { 0, 0, 0, 0, 0, 0, 0, 0, 0 } };
  g_autoptr (EbbModule) gpt = new_model (data);
  g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 2, 9, -1);
  g_autoptr (EbbTensor) starts = new_indices (starts_values[0], 2, 9);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) batch = call (gpt, tokens, starts, NULL, &error);

  g_assert_no_error (error);
  for (gint64 row = 0; row < 2; row++)
    {
      gint64 start = starts_values[row][0];
      g_autoptr (EbbTensor) whole = take (tokens, 0, row, 1);
      g_autoptr (EbbTensor) prompt = take (whole, 1, start, 9 - start);
      g_autoptr (EbbTensor) alone = call (gpt, prompt, NULL, NULL, &error);
      g_autoptr (EbbTensor) of_row = take (batch, 0, row, 1);
      g_autoptr (EbbTensor) own = take (of_row, 1, start, 9 - start);

      g_assert_no_error (error);
      assert_close (own, alone);
    }
}

/* -- a cache ------------------------------------------------------------------------------------------------------- */

/* Tokens that come in parts give what they give at once: with padding, beyond the window. */
static void
parts_through_a_cache_give_the_whole (gconstpointer data)
{
  static const gint64 lengths[] = { 7, 1, 1, 4, 1 };
  gint64 starts_values[2][14] = { { 0 }, { 0 } };
  g_autoptr (EbbModule) gpt = new_model (data);
  g_autoptr (EbbTensor) tokens = test_tokens (5, VOCAB, 2, 14, -1);
  g_autoptr (GError) error = NULL;

  for (int i = 0; i < 14; i++)
    starts_values[1][i] = 3;
  ebb_push_grad_enabled (FALSE);
  for (int with_starts = 0; with_starts < 2; with_starts++)
    {
      g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (14);
      g_autoptr (EbbTensor) starts = with_starts ? new_indices (starts_values[0], 2, 14) : NULL;
      g_autoptr (EbbTensor) at_once = call (gpt, tokens, starts, NULL, &error);
      gint64 first = 0;

      g_assert_no_error (error);
      for (guint i = 0; i < G_N_ELEMENTS (lengths); i++)
        {
          g_autoptr (EbbTensor) part = take (tokens, 1, first, lengths[i]);
          g_autoptr (EbbTensor) starts_part = with_starts ? take (starts, 1, first, lengths[i]) : NULL;
          g_autoptr (EbbTensor) logits = call (gpt, part, starts_part, cache, &error);
          g_autoptr (EbbTensor) expected = take (at_once, 1, first, lengths[i]);

          g_assert_no_error (error);
          if (!with_starts || first > 0)
            assert_close (logits, expected);
          first += lengths[i];
          g_assert_cmpint (ebb_key_value_cache_get_length (cache), ==, first);
        }
      /* Full. */
      {
        g_autoptr (EbbTensor) part = take (tokens, 1, 0, 1);
        g_autoptr (EbbTensor) logits = call (gpt, part, NULL, cache, &error);

        g_assert_null (logits);
        test_assert_error (error, EBB_ERROR_INDEX, "capacity of 14");
        g_clear_error (&error);
        g_assert_cmpint (ebb_key_value_cache_get_length (cache), ==, 14);
      }
    }
  ebb_pop_grad_enabled ();
}

static void
a_cache_takes_no_gradients (void)
{
  g_autoptr (EbbModule) gpt = new_model ("llama2");
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (8);
  g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 1, 4, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = call (gpt, tokens, NULL, cache, &error);

  g_assert_null (logits);
  test_assert_error (error, EBB_ERROR_GRAPH, "without gradients");
  g_assert_cmpint (ebb_key_value_cache_get_length (cache), ==, 0);
}

static void
bad_inputs_are_refused (void)
{
  g_autoptr (EbbModule) gpt = new_model ("llama2");
  g_autoptr (EbbModule) extended = new_model ("llama-dynamic");
  g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 1, 4, -1);
  g_autoptr (EbbTensor) long_tokens = test_tokens (3, VOCAB, 1, 49, -1);
  g_autoptr (EbbTensor) starts = test_tokens (3, 1, 1, 3, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (100);
  g_autoptr (GError) error = NULL;

  g_assert_null (call (gpt, tokens, starts, NULL, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "starts [1, 3]", "it must be [1, 4], as tokens");
  g_clear_error (&error);
  g_assert_null (call (gpt, long_tokens, NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "tokens [1, 49]", "at most 48, the context");
  g_clear_error (&error);
  g_assert_null (call (extended, long_tokens, NULL, NULL, &error)); /* three times a context of 16 */
  test_assert_error (error, EBB_ERROR_SHAPE, "at most 48, the context");
  g_clear_error (&error);

  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_object (args, "cache", G_OBJECT (gpt));
  g_assert_null (ebb_module_call (gpt, args, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "cache must be EbbKeyValueCache");
  g_clear_error (&error);

  ebb_push_grad_enabled (FALSE);
  {
    g_autoptr (EbbTensor) part = take (long_tokens, 1, 0, 46);
    g_autoptr (EbbTensor) logits = call (gpt, part, NULL, cache, &error);

    g_assert_no_error (error);
    g_assert_null (call (gpt, tokens, NULL, cache, &error));
    test_assert_error (error, EBB_ERROR_SHAPE, "tokens [1, 4] after 46 in the cache", "at most 48 together");
  }
  ebb_pop_grad_enabled ();
}

/* The scaling of a row depends on its length, which is not that of its documents. */
static void
documents_beyond_the_original_context_are_refused (void)
{
  static const char *const names[] = { "llama-dynamic", "phi3-longrope" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbModule) gpt = new_model (names[i]);
      g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 1, 24, -1);
      g_autoptr (EbbTensor) starts = test_tokens (3, 1, 1, 24, -1);
      g_autoptr (EbbTensor) few = take (tokens, 1, 0, 16);
      g_autoptr (EbbTensor) few_starts = take (starts, 1, 0, 16);
      g_autoptr (EbbTensor) logits = NULL;
      g_autoptr (EbbTensor) whole = NULL;
      g_autoptr (GError) error = NULL;

      g_assert_null (call (gpt, tokens, starts, NULL, &error));
      test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "starts in rows of 24 tokens", "at most 16");
      g_clear_error (&error);
      logits = call (gpt, few, few_starts, NULL, &error);
      g_assert_no_error (error);
      whole = call (gpt, tokens, NULL, NULL, &error);
      g_assert_no_error (error);
    }
}

/* Without gradients a row may be longer if all of it is one document, with padding before it or not. */
static void
packed_documents_are_refused_without_gradients_too (void)
{
  static const char *const names[] = { "llama-dynamic", "phi3-longrope" };

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbModule) gpt = new_model (names[i]);
      g_autoptr (EbbTensor) tokens = test_tokens (3, VOCAB, 2, 24, -1);
      g_autoptr (EbbTensor) first = take (tokens, 1, 0, 12);
      g_autoptr (EbbTensor) second = take (tokens, 1, 12, 12);
      gint64 padded[48] = { 0 }, packed[48] = { 0 }, later[24] = { 0 };
      g_autoptr (EbbTensor) padded_starts = NULL;
      g_autoptr (EbbTensor) packed_starts = NULL;
      g_autoptr (EbbTensor) later_starts = NULL;
      g_autoptr (EbbKeyValueCache) cache = ebb_key_value_cache_new (24);
      g_autoptr (EbbTensor) logits = NULL;
      g_autoptr (EbbTensor) begun = NULL;
      g_autoptr (EbbTensor) continued = NULL;
      g_autoptr (GError) error = NULL;

      for (guint j = 0; j < 12; j++)
        {
          padded[24 + j] = padded[36 + j] = 5;
          packed[36 + j] = later[12 + j] = 12;
        }
      padded_starts = ebb_tensor_new_from_ints (padded, 48, (gint64[]){ 2, 24 }, 2, NULL);
      packed_starts = ebb_tensor_new_from_ints (packed, 48, (gint64[]){ 2, 24 }, 2, NULL);
      later_starts = ebb_tensor_new_from_ints (later, 24, (gint64[]){ 2, 12 }, 2, NULL);
      logits = call (gpt, tokens, padded_starts, NULL, &error);
      g_assert_no_error (error);
      g_assert_null (call (gpt, tokens, packed_starts, NULL, &error));
      test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "starts in rows of 24 tokens", "at most 16");
      g_clear_error (&error);
      begun = call (gpt, first, NULL, cache, &error);
      g_assert_no_error (error);
      g_assert_null (call (gpt, second, later_starts, cache, &error));
      test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "starts in rows of 24 tokens", "at most 16");
      g_clear_error (&error);
      continued = call (gpt, second, NULL, cache, &error);
      g_assert_no_error (error);
    }
  ebb_pop_grad_enabled ();
}

/* -- what backward keeps ------------------------------------------------------------------------------------------- */

#define ROWS 2
#define TOKENS 32

static guint64
get_activation_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static guint64
count_held (EbbModule *block, int width, gboolean autocast)
{
  g_autoptr (EbbTensor) x = test_randn (4, ROWS, TOKENS, width, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) input = NULL;
  guint64 before;

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  input = ebb_mul_scalar (x, 1, &error);
  before = get_activation_bytes ();
  ebb_push_autocast (autocast, EBB_DTYPE_BF16);
  y = ebb_module_call1 (block, input, &error);
  ebb_pop_autocast ();
  g_assert_no_error (error);
  return get_activation_bytes () - before;
}

/* The activations of one block, in numbers for each token, beside its input, which is the result of the block before
 * it. docs/models.md has the same table. */
static void
a_block_keeps_what_it_must (void)
{
  const struct
  {
    const char *name;
    guint64 width, queries, keys, hidden, heads;
    guint64 norms;   /* f32 numbers that norms keep of a token */
    guint64 streams; /* of the width: the sum after attention, the result */
    guint64 others;  /* what other norms read: in Gemma the results of attention and of the MLP */
  } rows[] = {
    { "llama2", 24, 24, 24, 36, 4, 2, 2, 0 },
    { "llama3", 24, 24, 12, 36, 4, 2, 2, 0 },
    { "mistral", 24, 32, 16, 36, 4, 2, 2, 0 },
    { "phi3", 24, 24, 12, 36, 4, 2, 2, 0 },
    { "gemma2", 24, 32, 16, 36, 4, 4, 2, 24 + 24 },
    { "qwen3", 24, 32, 16, 36, 4, 2 + 4 + 2, 2, 0 },
    { "llama-linear", 24, 24, 12, 36, 4, 2, 2, 0 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    for (int autocast = 0; autocast < 2; autocast++)
      {
        g_autoptr (EbbModule) gpt = test_decoder_new (rows[i].name, 1);
        g_autoptr (EbbModule) layers = ebb_module_get_child (gpt, "layers");
        g_autoptr (EbbModule) block = ebb_module_get_child (layers, "0");
        guint64 held = count_held (block, (int) rows[i].width, autocast);
        /* The queries, the result of attention; keys and values; gate and up: what products give, in bf16. */
        guint64 products = 2 * rows[i].queries + 2 * rows[i].keys + 2 * rows[i].hidden + rows[i].others;
        /* Two parts of the logsumexp of a head. */
        guint64 sums = rows[i].width * rows[i].streams + 2 * rows[i].heads + rows[i].norms;
        guint64 expected = (products * (autocast ? 2 : 4) + sums * 4) * ROWS * TOKENS;

        g_test_message ("%s: %" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT " bytes", rows[i].name, held, expected);
        g_assert_cmpuint (held, <=, expected);
      }
}

/* The copies of a part of a block under autocast, of whose weights there are copies already. */
static guint64
count_casts (EbbModule *part, EbbTensor *x)
{
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (GError) error = NULL;

  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  for (int i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = NULL;

      if (i == 1)
        ebb_profiler_start (profiler, &error);
      y = ebb_module_call1 (part, x, &error);
      g_assert_no_error (error);
    }
  ebb_profiler_stop (profiler);
  ebb_pop_autocast ();
  return ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, "copy");
}

static void
products_of_one_input_share_its_cast (void)
{
  g_autoptr (EbbModule) gpt = test_decoder_new ("llama2", 1);
  g_autoptr (EbbModule) layers = ebb_module_get_child (gpt, "layers");
  g_autoptr (EbbModule) block = ebb_module_get_child (layers, "0");
  g_autoptr (EbbTensor) x = test_randn (4, ROWS, TOKENS, 24, -1);
  static const char *const names[] = { "self_attn", "mlp" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbModule) part = ebb_module_get_child (block, names[i]);

      g_assert_cmpuint (count_casts (part, x), ==, 1);
    }
}

static gboolean
double_in_place (G_GNUC_UNUSED EbbModule *module,
                 G_GNUC_UNUSED EbbArgs *args,
                 G_GNUC_UNUSED EbbArgs *result,
                 gpointer user_data,
                 GError **error)
{
  return ebb_tensor_mul_scalar_in_place (user_data, 2, error);
}

/* The second product would compute with the values that the first one saw. */
static void
an_input_that_was_changed_is_cast_again (void)
{
  g_autoptr (EbbModule) gpt = test_decoder_new ("llama2", 1);
  g_autoptr (EbbModule) layers = ebb_module_get_child (gpt, "layers");
  g_autoptr (EbbModule) block = ebb_module_get_child (layers, "0");
  g_autoptr (EbbModule) mlp = ebb_module_get_child (block, "mlp");
  g_autoptr (EbbModule) second = ebb_module_get_child (mlp, "up_proj");
  g_autoptr (EbbTensor) x = test_randn (4, ROWS, TOKENS, 24, -1);

  ebb_module_add_forward_pre_hook (second, double_in_place, x, NULL);
  g_assert_cmpuint (count_casts (mlp, x), ==, 2);
}

/* -- dropout ------------------------------------------------------------------------------------------------------- */

static gboolean
is_trained_as_evaluated (EbbModule *gpt, double dropout, double attention_dropout)
{
  const gint64 values[] = { 3, 1, 4, 1, 5, 9, 2, 6 };
  g_autoptr (EbbTensor) tokens = new_indices (values, 2, 4);
  g_autoptr (EbbTensor) evaluated = NULL;
  g_autoptr (EbbTensor) trained = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_gpt_set_dropout (EBB_GPT (gpt), dropout, attention_dropout, &error));
  g_assert_no_error (error);
  ebb_module_set_training (gpt, FALSE);
  evaluated = call (gpt, tokens, NULL, NULL, NULL);
  ebb_module_set_training (gpt, TRUE);
  trained = call (gpt, tokens, NULL, NULL, NULL);
  return compare (trained, evaluated) <= CLOSE;
}

/* Where attention's results count for nothing, its dropout alone changes nothing, and any other does. */
static void
attention_has_its_own_dropout (gconstpointer name)
{
  g_autoptr (EbbModule) gpt = new_model (name);
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (gpt);
  g_autoptr (EbbGptConfig) config = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (is_trained_as_evaluated (gpt, 0, 0));
  g_assert_true (is_trained_as_evaluated (gpt, 0, -1));
  g_assert_false (is_trained_as_evaluated (gpt, 0, 0.5));
  g_assert_false (is_trained_as_evaluated (gpt, 0.5, -1));
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) weight = ebb_args_get_tensor (state, i);

      if (g_pattern_match_simple ("*attn*_proj.*", ebb_args_get_key (state, i)))
        g_assert_true (ebb_tensor_fill (weight, 0, NULL));
    }
  g_assert_true (is_trained_as_evaluated (gpt, 0, 0.5));
  g_assert_false (is_trained_as_evaluated (gpt, 0.5, 0));
  config = ebb_gpt_get_config (EBB_GPT (gpt));
  g_assert_cmpfloat (config->dropout, ==, 0.5);
  g_assert_cmpfloat (config->attention_dropout, ==, 0);
  g_assert_false (ebb_gpt_set_dropout (EBB_GPT (gpt), 0.5, 1, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Gpt: attention_dropout is 1", "below 1", NULL, NULL);
}

int
main (int argc, char **argv)
{
  static const char *const others[] = { "gpt2", NULL };
  const char *const *lists[] = { test_decoder_names, others };

  test_init (&argc, &argv);
  for (guint l = 0; l < G_N_ELEMENTS (lists); l++)
    for (const char *const *name = lists[l]; *name != NULL; name++)
      {
        g_autofree char *documents = g_strdup_printf ("/decoder/documents/%s", *name);
        g_autofree char *padding = g_strdup_printf ("/decoder/padding/%s", *name);
        g_autofree char *cache = g_strdup_printf ("/decoder/cache/%s", *name);
        g_autofree char *dropout = g_strdup_printf ("/decoder/dropout/%s", *name);

        g_test_add_data_func (dropout, *name, attention_has_its_own_dropout);
        g_test_add_data_func (documents, *name, documents_do_not_see_each_other);
        g_test_add_data_func (padding, *name, padding_changes_nothing);
        g_test_add_data_func (cache, *name, parts_through_a_cache_give_the_whole);
      }
  g_test_add_func ("/decoder/cache/gradients", a_cache_takes_no_gradients);
  g_test_add_func ("/decoder/bad-input", bad_inputs_are_refused);
  g_test_add_func ("/decoder/documents/scaled", documents_beyond_the_original_context_are_refused);
  g_test_add_func ("/decoder/documents/scaled-without-gradients", packed_documents_are_refused_without_gradients_too);
  g_test_add_func ("/decoder/kept", a_block_keeps_what_it_must);
  g_test_add_func ("/decoder/products-of-one-input-share-its-cast", products_of_one_input_share_its_cast);
  g_test_add_func ("/decoder/an-input-that-was-changed-is-cast-again", an_input_that_was_changed_is_cast_again);
  return g_test_run ();
}
