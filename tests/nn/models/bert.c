/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include <glib/gstdio.h>

#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#define VOCAB 97
#define CONTEXT 16
#define BATCH 3
#define LENGTH 12

static EbbBertConfig *
small_config (double dropout)
{
  EbbBertConfig *config = ebb_bert_config_new_preset ("tiny");

  config->vocab = VOCAB;
  config->context = CONTEXT;
  config->segments = 3;
  config->width = 32;
  config->heads = 4;
  config->layers = 2;
  config->hidden = 96;
  config->dropout = dropout;
  return config;
}

static EbbModule *
small_bert (guint64 seed, double dropout)
{
  g_autoptr (EbbBertConfig) config = small_config (dropout);
  g_autoptr (GError) error = NULL;
  EbbModule *bert;

  ebb_manual_seed (seed);
  bert = ebb_bert_new (config, &error);
  g_assert_no_error (error);
  return bert;
}

/* The fixture's weights and batch. */
typedef struct
{
  EbbModule *bert;
  EbbArgs *step;
  EbbTensor *tokens, *segments, *mask, *targets;
} Fixture;

static void
fixture_setup (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbArgs) weights = test_load_fixture ("bert-tiny.safetensors");
  g_autoptr (GError) error = NULL;

  f->bert = small_bert (1, 0);
  f->step = test_load_fixture ("bert-tiny-step.safetensors");
  f->tokens = test_fixture_tensor (f->step, "tokens");
  f->segments = test_fixture_tensor (f->step, "segments");
  f->mask = test_fixture_tensor (f->step, "mask");
  f->targets = test_fixture_tensor (f->step, "targets");
  g_assert_true (ebb_bert_load_published (EBB_BERT (f->bert), weights, &error));
  g_assert_no_error (error);
}

static void
fixture_teardown (Fixture *f, gconstpointer data)
{
  g_clear_object (&f->bert);
  g_clear_pointer (&f->step, ebb_args_unref);
  g_clear_pointer (&f->tokens, ebb_tensor_unref);
  g_clear_pointer (&f->segments, ebb_tensor_unref);
  g_clear_pointer (&f->mask, ebb_tensor_unref);
  g_clear_pointer (&f->targets, ebb_tensor_unref);
}

static EbbTensor *
call (EbbModule *bert, EbbTensor *tokens, EbbTensor *segments, EbbTensor *mask)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (GError) error = NULL;

  ebb_args_add_tensor (args, NULL, tokens);
  if (segments != NULL)
    ebb_args_add_tensor (args, "segments", segments);
  if (mask != NULL)
    ebb_args_add_tensor (args, "mask", mask);
  result = ebb_module_call (bert, args, &error);
  g_assert_no_error (error);
  return ebb_args_get_tensor (result, 0);
}

static EbbTensor *
compute_loss (EbbModule *bert, EbbTensor *tokens, EbbTensor *segments, EbbTensor *mask, EbbTensor *targets)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *loss = ebb_bert_loss (EBB_BERT (bert), tokens, segments, mask, targets, &error);

  g_assert_no_error (error);
  return loss;
}

/* -- configuration ------------------------------------------------------------------------------------------------- */

static void
presets_have_the_published_sizes (void)
{
  static const struct
  {
    const char *name;
    int layers, width, heads;
    double millions; /* of parameters, with the masked-language-model head, without a pooler */
  } expected[] = { { "bert-base", 12, 768, 12, 109.514298 }, { "bert-large", 24, 1024, 16, 335.174458 } };

  for (guint i = 0; i < G_N_ELEMENTS (expected); i++)
    {
      g_autoptr (EbbBertConfig) config = ebb_bert_config_new_preset (expected[i].name);
      double width = config->width, hidden = config->hidden;
      double vocab = config->vocab;
      double block = 4 * width * (width + 1) + hidden * (width + 1) + width * (hidden + 1) + 4 * width;
      double tables = vocab + config->context + config->segments;
      double count = width * (tables + 2) + block * config->layers;
      double head = width * (width + 1) + 2 * width + vocab;

      g_assert_cmpint (config->layers, ==, expected[i].layers);
      g_assert_cmpint (config->width, ==, expected[i].width);
      g_assert_cmpint (config->heads, ==, expected[i].heads);
      g_assert_cmpfloat (config->norm_eps, ==, 1e-12);
      g_assert_cmpfloat (count + head, ==, 1e6 * expected[i].millions);
      g_assert_cmpstr (ebb_bert_config_get_preset_names ()[i], ==, expected[i].name);
    }
}

static void
bad_configurations_are_refused (void)
{
  g_autoptr (EbbBertConfig) unknown = ebb_bert_config_new_preset ("bert-huge");
  g_autoptr (EbbBertConfig) uneven = small_config (0);
  g_autoptr (EbbBertConfig) empty = small_config (0);
  g_autoptr (EbbBertConfig) dropped = small_config (1);
  g_autoptr (EbbModule) bare = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_bert_new (unknown, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"bert-huge\"", "bert-base, bert-large, tiny");
  g_clear_error (&error);
  uneven->heads = 5;
  g_assert_null (ebb_bert_new (uneven, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "32", "5 heads");
  g_clear_error (&error);
  empty->segments = 0;
  g_assert_false (ebb_bert_config_check (empty, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "segments is 0");
  g_clear_error (&error);
  g_assert_null (ebb_bert_new (dropped, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "dropout is 1");
  g_clear_error (&error);
  bare = g_initable_new (EBB_TYPE_BERT, NULL, &error, NULL);
  g_assert_null (bare);
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "config is missing");
}

static void
weights_start_as_berts (void)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0);
  g_auto (GStrv) names = ebb_module_get_parameter_names (bert, TRUE);

  g_assert_cmpuint (g_strv_length (names), ==, 5 + 2 * 12 + 5);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (bert, names[i]);
      g_autoptr (EbbTensor) square = ebb_square (parameter, NULL);
      double n = (double) ebb_tensor_get_n_elements (parameter), deviation = sqrt (test_sum (square) / n);

      if (ebb_tensor_get_n_dims (parameter) == 2)
        g_assert_cmpfloat (fabs (deviation - 0.02), <, 0.02 * 3 / sqrt (2 * n));
      else
        g_assert_cmpfloat (deviation, ==, g_str_has_suffix (names[i], "bias") ? 0 : 1);
    }
}

/* -- the published model ------------------------------------------------------------------------------------------- */

static void
logits_are_pytorchs (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbTensor) expected = test_fixture_tensor (f->step, "logits");
  g_autoptr (EbbTensor) expected_plain = test_fixture_tensor (f->step, "plain_logits");
  g_autoptr (EbbTensor) logits = call (f->bert, f->tokens, f->segments, f->mask);
  g_autoptr (EbbTensor) plain = call (f->bert, f->tokens, NULL, NULL);

  test_assert_shape (logits, "[3, 12, 97]");
  g_test_message ("largest differences %g, %g", test_difference (logits, expected),
                  test_difference (plain, expected_plain));
  test_assert_near (logits, expected, 2e-5);
  test_assert_near (plain, expected_plain, 2e-5);
}

static void
loss_and_gradients_are_pytorchs (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbTensor) expected = test_fixture_tensor (f->step, "loss");
  g_autoptr (EbbTensor) loss = compute_loss (f->bert, f->tokens, f->segments, f->mask, f->targets);
  g_autoptr (EbbModule) twin = small_bert (2, 0);
  g_autoptr (EbbArgs) published = NULL;
  g_autoptr (GError) error = NULL;
  guint n;
  EbbTensor **parameters = ebb_module_get_parameters (f->bert, TRUE, &n);
  g_autofree EbbTensor **of_twin = ebb_module_get_parameters (twin, TRUE, &n);

  test_assert_near (loss, expected, 1e-5);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  /* A model whose weights are the gradients gives them by their published names. */
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_assert_true (ebb_tensor_copy_from (of_twin[i], grad, &error));
      ebb_tensor_unref (parameters[i]);
      ebb_tensor_unref (of_twin[i]);
    }
  ebb_pop_grad_enabled ();
  g_free (parameters);
  published = ebb_bert_to_published_state (EBB_BERT (twin), &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_args_get_length (published), ==, 5 + 2 * 16 + 5);
  for (guint i = 0; i < ebb_args_get_length (published); i++)
    {
      const char *name = ebb_args_get_key (published, i);
      g_autoptr (EbbTensor) grad = ebb_args_get_tensor (published, i);
      g_autoptr (EbbTensor) right = test_fixture_tensor (f->step, "grad.%s", name);

      if (g_str_has_suffix (name, "self.key.bias"))
        continue; /* zero in theory */
      if (!(test_relative_difference (grad, right) < 1e-4))
        g_error ("the gradient of %s differs by %g", name, test_relative_difference (grad, right));
    }
}

static void
published_state_goes_round (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbModule) other = small_bert (2, 0);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) published = ebb_bert_to_published_state (EBB_BERT (f->bert), &error);
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "ebb-bert-XXXXXX", NULL);
  g_autoptr (EbbArgs) loaded = NULL;
  g_autoptr (EbbTensor) logits = call (f->bert, f->tokens, f->segments, f->mask);
  g_autoptr (EbbTensor) again = NULL;
  int file = g_mkstemp (path);

  g_assert_no_error (error);
  g_assert_cmpint (file, >=, 0);
  close (file);
  g_assert_true (ebb_save_safetensors (path, published, NULL, &error));
  loaded = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_bert_load_published (EBB_BERT (other), loaded, &error));
  g_assert_no_error (error);
  again = call (other, f->tokens, f->segments, f->mask);
  test_assert_near (again, logits, 0);
  g_unlink (path);
}

/* As the files that were converted from the first release have it. */
static void
old_names_of_norms_are_understood (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbModule) other = small_bert (2, 0);
  g_autoptr (EbbArgs) published = ebb_bert_to_published_state (EBB_BERT (f->bert), NULL);
  g_autoptr (EbbArgs) old = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) logits = call (f->bert, f->tokens, NULL, NULL);
  g_autoptr (EbbTensor) again = NULL;
  g_autoptr (GError) error = NULL;
  guint n_renamed = 0;

  for (guint i = 0; i < ebb_args_get_length (published); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (published, i);
      g_autoptr (GString) name = g_string_new (ebb_args_get_key (published, i));

      n_renamed += g_string_replace (name, "LayerNorm.weight", "LayerNorm.gamma", 0);
      n_renamed += g_string_replace (name, "LayerNorm.bias", "LayerNorm.beta", 0);
      ebb_args_add_tensor (old, name->str, tensor);
    }
  g_assert_cmpuint (n_renamed, ==, 2 * (2 * 2 + 2));
  g_assert_true (ebb_bert_load_published (EBB_BERT (other), old, &error));
  g_assert_no_error (error);
  again = call (other, f->tokens, NULL, NULL);
  test_assert_near (again, logits, 0);
}

static void
weights_of_another_model_are_refused (void)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0);
  g_autoptr (EbbBertConfig) config = small_config (0);
  g_autoptr (EbbModule) wide = NULL;
  g_autoptr (EbbArgs) own = ebb_module_get_state_dict (bert);
  g_autoptr (EbbArgs) numbers = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) published = NULL;
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (bert, "word_embeddings.weight");
  g_autoptr (EbbTensor) before = ebb_copy (weight, NULL);
  g_autoptr (EbbTensor) other = NULL;
  g_autoptr (GError) error = NULL;

  config->hidden = 64;
  ebb_manual_seed (2);
  wide = ebb_bert_new (config, &error);
  published = ebb_bert_to_published_state (EBB_BERT (wide), &error);
  g_assert_no_error (error);
  g_assert_false (ebb_bert_load_published (EBB_BERT (bert), published, &error));
  test_assert_error (error, EBB_ERROR_STATE,
                     "of another shape (6): bert.encoder.layer.0.intermediate.dense.weight [64, 32], not [96, 32]");
  g_clear_error (&error);
  g_assert_false (ebb_bert_load_published (EBB_BERT (bert), own, &error));
  test_assert_error (error, EBB_ERROR_STATE,
                     "missing (42): cls.predictions.bias, bert.embeddings.word_embeddings.weight", "unexpected (34): ");
  g_clear_error (&error);
  g_clear_pointer (&published, ebb_args_unref);
  published = ebb_bert_to_published_state (EBB_BERT (bert), &error);
  g_assert_no_error (error);
  ebb_args_add_tensor (published, "cls.predictions.decoder.weight", before);
  g_assert_true (ebb_bert_load_published (EBB_BERT (bert), published, &error));
  other = ebb_mul_scalar (before, 2, &error);
  ebb_args_add_tensor (published, "cls.predictions.decoder.weight", other);
  g_assert_false (ebb_bert_load_published (EBB_BERT (bert), published, &error));
  test_assert_error (error, EBB_ERROR_STATE,
                     "cls.predictions.decoder.weight differs from bert.embeddings.word_embeddings.weight");
  g_clear_error (&error);
  ebb_args_add_tensor (published, "cls.predictions.decoder.weight", before);
  ebb_args_add_tensor (published, "bert.embeddings.LayerNorm.gamma", other);
  g_assert_false (ebb_bert_load_published (EBB_BERT (bert), published, &error));
  test_assert_error (error, EBB_ERROR_STATE, "bert.embeddings.LayerNorm.weight is there twice");
  g_clear_error (&error);
  ebb_args_add_int (numbers, "bert.embeddings.word_embeddings.weight", 3);
  g_assert_false (ebb_bert_load_published (EBB_BERT (bert), numbers, &error));
  test_assert_error (error, EBB_ERROR_STATE, "bert.embeddings.word_embeddings.weight", "not a tensor");
  test_assert_near (weight, before, 0);
}

/* -- padding and targets ------------------------------------------------------------------------------------------- */

/* @tokens with others where the fixture has padding. */
static EbbTensor *
change_padding (Fixture *f)
{
  g_autoptr (EbbTensor) others = test_tokens (3, VOCAB, BATCH, LENGTH, -1);
  g_autoptr (GError) error = NULL;
  EbbTensor *changed = ebb_where (f->mask, f->tokens, others, &error);

  g_assert_no_error (error);
  return changed;
}

/* Zero where there is padding, of which logits may be anything. */
static EbbTensor *
blank_padding (Fixture *f, EbbTensor *logits)
{
  g_autoptr (EbbTensor) column = ebb_unsqueeze (f->mask, 2, NULL);
  g_autoptr (EbbTensor) zero = ebb_mul_scalar (logits, 0, NULL);
  g_autoptr (GError) error = NULL;
  EbbTensor *blanked = ebb_where (column, logits, zero, &error);

  g_assert_no_error (error);
  return blanked;
}

static void
padding_does_not_matter (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbTensor) changed = change_padding (f);
  g_autoptr (EbbTensor) a = call (f->bert, f->tokens, f->segments, f->mask);
  g_autoptr (EbbTensor) b = call (f->bert, changed, f->segments, f->mask);
  g_autoptr (EbbTensor) a_seen = blank_padding (f, a);
  g_autoptr (EbbTensor) b_seen = blank_padding (f, b);
  g_autoptr (EbbTensor) unmasked = call (f->bert, changed, f->segments, NULL);
  g_autoptr (EbbTensor) unmasked_seen = blank_padding (f, unmasked);
  g_autoptr (EbbTensor) loss_a = compute_loss (f->bert, f->tokens, f->segments, f->mask, f->targets);
  g_autoptr (EbbTensor) loss_b = compute_loss (f->bert, changed, f->segments, f->mask, f->targets);

  test_assert_near (a_seen, b_seen, 0);
  test_assert_near (loss_a, loss_b, 0);
  g_assert_cmpfloat (test_difference (a, b), >, 0.01);
  g_assert_cmpfloat (test_difference (unmasked_seen, a_seen), >, 0.01);
}

static void
masks_of_integers_are_those_of_bool (Fixture *f, gconstpointer data)
{
  const EbbDType dtypes[] = { EBB_DTYPE_I64, EBB_DTYPE_I32, EBB_DTYPE_U8 };
  g_autoptr (EbbTensor) expected = call (f->bert, f->tokens, f->segments, f->mask);

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autoptr (EbbTensor) ones = ebb_cast (f->mask, dtypes[i], NULL);
      g_autoptr (EbbTensor) numbers = ebb_mul_scalar (ones, 7, NULL);
      g_autoptr (EbbTensor) mask = ebb_cast (numbers, dtypes[i], NULL);
      g_autoptr (EbbTensor) logits = call (f->bert, f->tokens, f->segments, mask);

      test_assert_near (logits, expected, 0);
    }
}

/* The head runs for a part of the positions, and that is not seen in the loss. */
static void
the_loss_is_that_of_all_logits (Fixture *f, gconstpointer data)
{
  g_autoptr (EbbTensor) all_targets = test_tokens (4, VOCAB, BATCH, LENGTH, -1);
  EbbTensor *targets[] = { f->targets, all_targets };
  g_autoptr (EbbTensor) logits = call (f->bert, f->tokens, f->segments, f->mask);

  for (guint i = 0; i < G_N_ELEMENTS (targets); i++)
    {
      g_autoptr (EbbTensor) narrow = ebb_cast (targets[i], EBB_DTYPE_I32, NULL);
      g_autoptr (EbbTensor) expected = ebb_cross_entropy (logits, targets[i], NULL);
      g_autoptr (EbbTensor) loss = compute_loss (f->bert, f->tokens, f->segments, f->mask, targets[i]);
      g_autoptr (EbbTensor) of_narrow = compute_loss (f->bert, f->tokens, f->segments, f->mask, narrow);

      test_assert_near (loss, expected, 1e-5);
      test_assert_near (of_narrow, loss, 0);
    }
}

static void
the_head_leaves_out_what_does_not_count (void)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0);
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, BATCH, LENGTH, -1);
  g_autofree gint64 *values = g_new (gint64, BATCH * LENGTH);
  const gint64 shape[] = { BATCH, LENGTH };
  guint64 kept[2];

  for (int n_targets = 1; n_targets <= BATCH * LENGTH; n_targets += BATCH * LENGTH - 1)
    {
      g_autoptr (EbbTensor) targets = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbMemoryStats) stats = NULL;

      for (int i = 0; i < BATCH * LENGTH; i++)
        values[i] = i < n_targets ? i : -100;
      targets = ebb_tensor_new_from_ints (values, BATCH * LENGTH, shape, 2, NULL);
      loss = compute_loss (bert, tokens, NULL, NULL, targets);
      stats = ebb_memory_get_stats (test_device ());
      kept[n_targets > 1] = ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
    }
  /* Of 36 positions 20 are left out. Two tensors are that much smaller, what the dense layer gave and the gradient of
   * the last product's operand, and one is new: the rows that are left. */
  g_assert_cmpuint (kept[0] + 2 * 20 * 32 * sizeof (float) - 16 * 32 * sizeof (float), <=, kept[1]);
}

static void
no_target_at_all_is_no_number (void)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0);
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, 1, 2, -1);
  g_autoptr (EbbTensor) targets = ebb_tensor_new_from_ints ((gint64[]){ -100, -100 }, 2, (gint64[]){ 1, 2 }, 2, NULL);
  g_autoptr (EbbTensor) loss = compute_loss (bert, tokens, NULL, NULL, targets);

  g_assert_true (isnan (test_at (loss, 0)));
}

static void
bad_input_is_refused (void)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0);
  g_autoptr (EbbTensor) tokens = test_tokens (1, VOCAB, 2, 4, -1);
  g_autoptr (EbbTensor) flat = test_tokens (1, VOCAB, 4, -1);
  g_autoptr (EbbTensor) long_one = test_tokens (1, VOCAB, 1, CONTEXT + 1, -1);
  g_autoptr (EbbTensor) outside = ebb_full ((gint64[]){ 2, 4 }, 2, VOCAB, EBB_DTYPE_I64, NULL, NULL);
  g_autoptr (EbbTensor) additive = test_randn (1, 2, 4, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_module_call1 (bert, flat, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "Bert: tokens [4]", "[B, T]");
  g_clear_error (&error);
  g_assert_null (ebb_module_call1 (bert, long_one, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "[1, 17]", "at most 16");
  g_clear_error (&error);
  g_assert_null (test_await_failure (ebb_module_call1 (bert, outside, &error), &error));
  test_assert_error (error, EBB_ERROR_INDEX, "97");
  g_clear_error (&error);
  g_assert_null (test_await_failure (ebb_bert_loss (EBB_BERT (bert), tokens, outside, NULL, tokens, &error), &error));
  test_assert_error (error, EBB_ERROR_INDEX, "97");
  g_clear_error (&error);
  g_assert_null (test_await_failure (ebb_bert_loss (EBB_BERT (bert), tokens, NULL, NULL, outside, &error), &error));
  test_assert_error (error, EBB_ERROR_INDEX, "97");
  g_clear_error (&error);
  g_assert_null (ebb_bert_loss (EBB_BERT (bert), tokens, flat, NULL, tokens, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "Bert: segments [4]; it must be [2, 4], as tokens");
  g_clear_error (&error);
  g_assert_null (ebb_bert_loss (EBB_BERT (bert), tokens, NULL, flat, tokens, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "Bert: mask [4]; it must be [2, 4], as tokens");
  g_clear_error (&error);
  g_assert_null (ebb_bert_loss (EBB_BERT (bert), tokens, NULL, additive, tokens, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "Bert: mask is f32", "zero for padding");
  g_clear_error (&error);
  g_assert_null (ebb_bert_loss (EBB_BERT (bert), tokens, NULL, NULL, flat, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "Bert: targets [4]; it must be [2, 4], as tokens");
  g_clear_error (&error);
  g_assert_null (ebb_bert_loss (EBB_BERT (bert), tokens, NULL, NULL, additive, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "f32");
  g_clear_error (&error);
  g_assert_null (ebb_module_call (bert, args, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Bert: tokens is missing");
}

/* -- checkpoint ---------------------------------------------------------------------------------------------------- */

typedef enum
{
  NONE,
  SELECTIVE,
  FULL,
  STACK, /* all layers as one */
  WHOLE, /* the model as one */
  N_STRATEGIES
} Strategy;

static void
wrap (EbbModule *bert, Strategy strategy)
{
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (GError) error = NULL;

  if (strategy == NONE)
    return;
  options = strategy == SELECTIVE ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  if (strategy == STACK)
    {
      g_autoptr (EbbModule) layer = ebb_module_get_child (bert, "layer");

      g_assert_true (ebb_checkpoint_wrap_uniform (layer, 2, options, &error));
    }
  else if (strategy == WHOLE)
    {
      g_autoptr (EbbModule) wrapped = ebb_checkpoint_wrapper (bert, options, &error);

      g_assert_true (wrapped == bert);
    }
  else
    g_assert_true (ebb_checkpoint_wrap_each (bert, EBB_TYPE_TRANSFORMER_BLOCK, options, &error));
  g_assert_no_error (error);
}

/* The loss of one training step with dropout, and the gradients by name. */
static EbbArgs *
run_step (Strategy strategy)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0.1);
  g_autoptr (EbbArgs) step = test_load_fixture ("bert-tiny-step.safetensors");
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (step, "tokens");
  g_autoptr (EbbTensor) segments = test_fixture_tensor (step, "segments");
  g_autoptr (EbbTensor) mask = test_fixture_tensor (step, "mask");
  g_autoptr (EbbTensor) targets = test_fixture_tensor (step, "targets");
  g_auto (GStrv) names = ebb_module_get_parameter_names (bert, TRUE);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) error = NULL;
  EbbArgs *result = ebb_args_new (EBB_ARGS_DICT);

  wrap (bert, strategy);
  ebb_manual_seed (9);
  loss = compute_loss (bert, tokens, segments, mask, targets);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  ebb_args_add_tensor (result, "loss", loss);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (bert, names[i]);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);

      g_assert_nonnull (grad);
      ebb_args_add_tensor (result, names[i], grad);
    }
  ebb_args_add_int (result, "offset", (gint64) ebb_generator_get_offset (ebb_generator_get_default ()));
  return result;
}

static void
checkpoints_give_the_same_bits (void)
{
  g_autoptr (EbbArgs) expected = run_step (NONE);
  guint n = ebb_args_get_length (expected);

  for (int strategy = SELECTIVE; strategy < N_STRATEGIES; strategy++)
    {
      g_autoptr (EbbArgs) result = run_step ((Strategy) strategy);

      for (guint i = 0; i + 1 < n; i++)
        {
          g_autoptr (EbbTensor) a = ebb_args_get_tensor (expected, i);
          g_autoptr (EbbTensor) b = ebb_args_get_tensor (result, i);

          if (memcmp (test_read (a), test_read (b), ebb_tensor_get_n_bytes (a)) != 0)
            g_error ("strategy %d: %s differs by %g", strategy, ebb_args_get_key (expected, i), test_difference (a, b));
        }
      g_assert_cmpint (ebb_args_get_int (result, n - 1), ==, ebb_args_get_int (expected, n - 1));
    }
}

static void
dropout_follows_the_training_flag (void)
{
  g_autoptr (EbbModule) bert = small_bert (1, 0.5);
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, 2, CONTEXT, -1);
  g_autoptr (EbbTensor) a = call (bert, tokens, NULL, NULL);
  g_autoptr (EbbTensor) b = call (bert, tokens, NULL, NULL);
  g_autoptr (EbbTensor) c = NULL;
  g_autoptr (EbbTensor) d = NULL;

  g_assert_cmpfloat (test_difference (a, b), >, 1e-3);
  ebb_module_set_training (bert, FALSE);
  c = call (bert, tokens, NULL, NULL);
  d = call (bert, tokens, NULL, NULL);
  test_assert_near (c, d, 0);
}

#define ADD_FIXTURE(path, func) g_test_add (path, Fixture, NULL, fixture_setup, func, fixture_teardown)

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/bert/presets-have-the-published-sizes", presets_have_the_published_sizes);
  g_test_add_func ("/bert/bad-configurations-are-refused", bad_configurations_are_refused);
  g_test_add_func ("/bert/weights-start-as-berts", weights_start_as_berts);
  ADD_FIXTURE ("/bert/logits-are-pytorchs", logits_are_pytorchs);
  ADD_FIXTURE ("/bert/loss-and-gradients-are-pytorchs", loss_and_gradients_are_pytorchs);
  ADD_FIXTURE ("/bert/published-state-goes-round", published_state_goes_round);
  ADD_FIXTURE ("/bert/old-names-of-norms-are-understood", old_names_of_norms_are_understood);
  g_test_add_func ("/bert/weights-of-another-model-are-refused", weights_of_another_model_are_refused);
  ADD_FIXTURE ("/bert/padding-does-not-matter", padding_does_not_matter);
  ADD_FIXTURE ("/bert/masks-of-integers-are-those-of-bool", masks_of_integers_are_those_of_bool);
  ADD_FIXTURE ("/bert/the-loss-is-that-of-all-logits", the_loss_is_that_of_all_logits);
  g_test_add_func ("/bert/the-head-leaves-out-what-does-not-count", the_head_leaves_out_what_does_not_count);
  g_test_add_func ("/bert/no-target-at-all-is-no-number", no_target_at_all_is_no_number);
  g_test_add_func ("/bert/bad-input-is-refused", bad_input_is_refused);
  g_test_add_func ("/bert/checkpoints-give-the-same-bits", checkpoints_give_the_same_bits);
  g_test_add_func ("/bert/dropout-follows-the-training-flag", dropout_follows_the_training_flag);
  return g_test_run ();
}
