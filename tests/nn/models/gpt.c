/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "support/device.h"
#include "support/generation.h"
#include "support/tensors.h"

#define VOCAB 11
#define CONTEXT 8

static EbbGptConfig *
small_config (void)
{
  EbbGptConfig *config = ebb_gpt_config_new_preset ("tiny");

  config->vocab = VOCAB;
  config->context = CONTEXT;
  config->width = 24;
  config->heads = 2;
  config->layers = 2;
  config->dropout = 0;
  return config;
}

static EbbModule *
small_gpt (guint64 seed, gboolean tied)
{
  g_autoptr (EbbGptConfig) config = small_config ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->tied = tied;
  ebb_manual_seed (seed);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static EbbTensor *
call (EbbModule *module, EbbTensor *x)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *y = ebb_module_call1 (module, x, &error);

  g_assert_no_error (error);
  return y;
}

/* Weights that matter: with GPT-2's small ones all logits are near zero. */
static void
enlarge_weights (EbbModule *gpt)
{
  guint n;
  EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, &n);

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.4, NULL, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  g_free (parameters);
}

/* -- configuration ------------------------------------------------------------------------------------------------- */

static void
presets_have_the_published_sizes (void)
{
  static const struct
  {
    const char *name;
    int layers, width, heads;
    double millions; /* of parameters, with tied weights */
  } expected[] = {
    { "gpt2", 12, 768, 12, 124.439808 },
    { "gpt2-medium", 24, 1024, 16, 354.823168 },
    { "gpt2-large", 36, 1280, 20, 774.030080 },
    { "gpt2-xl", 48, 1600, 25, 1557.611200 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (expected); i++)
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset (expected[i].name);
      double width = config->width;
      double block = 12 * width * width + 13 * width;
      double count = width * (config->vocab + config->context + 2.0)
                     + block * config->layers;

      g_assert_cmpint (config->layers, ==, expected[i].layers);
      g_assert_cmpint (config->width, ==, expected[i].width);
      g_assert_cmpint (config->heads, ==, expected[i].heads);
      g_assert_cmpfloat (count, ==, 1e6 * expected[i].millions);
      g_assert_cmpstr (ebb_gpt_config_get_preset_names ()[i], ==, expected[i].name);
    }
}

static void
bad_configurations_are_refused (void)
{
  g_autoptr (EbbGptConfig) unknown = ebb_gpt_config_new_preset ("gpt5");
  g_autoptr (EbbGptConfig) uneven = small_config ();
  g_autoptr (EbbGptConfig) empty = small_config ();
  g_autoptr (EbbModule) bare = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_gpt_new (unknown, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"gpt5\"", "gpt2, gpt2-medium, gpt2-large, gpt2-xl, tiny");
  g_clear_error (&error);
  uneven->heads = 5;
  g_assert_null (ebb_gpt_new (uneven, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "24", "5 heads");
  g_clear_error (&error);
  empty->layers = 0;
  g_assert_false (ebb_gpt_config_check (empty, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "layers is 0");
  g_clear_error (&error);
  bare = g_initable_new (EBB_TYPE_GPT, NULL, &error, NULL);
  g_assert_null (bare);
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "config is missing");
}

/* -- structure ----------------------------------------------------------------------------------------------------- */

static void
names_are_gpt2s (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbModule) untied = small_gpt (1, FALSE);
  g_autoptr (EbbTensor) c_attn = ebb_module_get_parameter (gpt, "h.1.attn.c_attn.weight");
  g_autoptr (EbbModule) block = ebb_module_get_child (gpt, "h.1");
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);
  g_auto (GStrv) untied_names = ebb_module_get_parameter_names (untied, TRUE);
  g_autofree char *joined = NULL;

  g_assert_true (EBB_IS_TRANSFORMER_BLOCK (block));
  test_assert_shape (c_attn, "[72, 24]");
  g_assert_cmpuint (g_strv_length (names), ==, 28);
  g_free (names[14]);
  names[14] = NULL;
  joined = g_strjoinv (" ", names);
  g_assert_cmpstr (joined, ==,
                   "wte.weight wpe.weight h.0.ln_1.weight h.0.ln_1.bias h.0.attn.c_attn.weight h.0.attn.c_attn.bias "
                   "h.0.attn.c_proj.weight h.0.attn.c_proj.bias h.0.ln_2.weight h.0.ln_2.bias h.0.mlp.c_fc.weight "
                   "h.0.mlp.c_fc.bias h.0.mlp.c_proj.weight h.0.mlp.c_proj.bias");
  g_assert_cmpuint (g_strv_length (untied_names), ==, 29);
  g_assert_cmpstr (untied_names[28], ==, "lm_head.weight");
  for (guint i = 15; i < 28; i++)
    g_free (names[i]);
}

static double
deviation (EbbModule *gpt, const char *name)
{
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (gpt, name);
  g_autoptr (EbbTensor) square = ebb_square (weight, NULL);

  return sqrt (test_sum (square) / (double) ebb_tensor_get_n_elements (weight));
}

static void
weights_start_as_gpt2s (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) gpt = ebb_gpt_new (config, NULL);

  g_assert_cmpfloat (fabs (deviation (gpt, "wte.weight") - 0.02), <, 5e-4);
  g_assert_cmpfloat (fabs (deviation (gpt, "wpe.weight") - 0.01), <, 3e-4);
  g_assert_cmpfloat (fabs (deviation (gpt, "h.0.attn.c_attn.weight") - 0.02), <, 5e-4);
  g_assert_cmpfloat (fabs (deviation (gpt, "h.3.mlp.c_proj.weight") - 0.02 / sqrt (8)), <, 2e-4);
  g_assert_cmpfloat (fabs (deviation (gpt, "h.3.attn.c_proj.weight") - 0.02 / sqrt (8)), <, 2e-4);
  g_assert_cmpfloat (deviation (gpt, "h.0.attn.c_attn.bias"), ==, 0);
  g_assert_cmpfloat (deviation (gpt, "ln_f.bias"), ==, 0);
  g_assert_cmpfloat (deviation (gpt, "ln_f.weight"), ==, 1);
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

static void
the_loss_is_the_cross_entropy_of_the_logits (gconstpointer data)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, GPOINTER_TO_INT (data));
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, 3, CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (3, VOCAB, 3, CONTEXT, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);
  guint n, n_grads;
  EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, &n);

  enlarge_weights (gpt);
  logits = call (gpt, tokens);
  test_assert_shape (logits, "[3, 8, 11]");
  expected = ebb_cross_entropy (logits, targets, &error);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  g_assert_no_error (error);
  test_assert_shape (loss, "[]");
  test_assert_near (loss, expected, 1e-5);

  /* and so are the gradients */
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) by_loss = NULL;
      g_autoptr (EbbTensor) by_logits = NULL;
      EbbTensor **grads = ebb_grad (&loss, 1, &parameters[i], 1, NULL, 0, TRUE, &n_grads, &error);

      g_assert_no_error (error);
      by_loss = grads[0];
      g_free (grads);
      grads = ebb_grad (&expected, 1, &parameters[i], 1, NULL, 0, TRUE, &n_grads, &error);
      g_assert_no_error (error);
      by_logits = grads[0];
      g_free (grads);
      if (!(test_difference (by_loss, by_logits) < 1e-5))
        g_error ("%s differs by %g", names[i], test_difference (by_loss, by_logits));
      ebb_tensor_unref (parameters[i]);
    }
  g_free (parameters);
}

static void
targets_may_be_left_out_of_the_mean (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, 1, 2, -1);
  g_autoptr (EbbTensor) first = ebb_narrow (tokens, 1, 0, 1, NULL);
  g_autoptr (EbbTensor) both_targets = ebb_tensor_new_from_ints ((gint64[]){ 4, -100 }, 2, (gint64[]){ 1, 2 }, 2, NULL);
  g_autoptr (EbbTensor) target = ebb_narrow (both_targets, 1, 0, 1, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, both_targets, &error);
  g_autoptr (EbbTensor) expected = ebb_gpt_loss (EBB_GPT (gpt), first, target, &error);

  g_assert_no_error (error);
  test_assert_near (loss, expected, 1e-6);
}

static void
bad_tokens_are_refused (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbTensor) flat = test_tokens (1, VOCAB, 4, -1);
  g_autoptr (EbbTensor) long_one = test_tokens (1, VOCAB, 1, CONTEXT + 1, -1);
  g_autoptr (EbbTensor) outside = ebb_tensor_new_from_ints ((gint64[]){ VOCAB }, 1, (gint64[]){ 1, 1 }, 2, NULL);
  g_autoptr (EbbTensor) fine = test_tokens (1, VOCAB, 1, 1, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_module_call1 (gpt, flat, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "Gpt: tokens [4]", "[B, T]");
  g_clear_error (&error);
  g_assert_null (ebb_module_call1 (gpt, long_one, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "[1, 9]", "at most 8");
  g_clear_error (&error);
  g_assert_null (test_await_failure (ebb_module_call1 (gpt, outside, &error), &error));
  test_assert_error (error, EBB_ERROR_INDEX, test_device_is_cpu () ? "wte: " : "", "11");
  g_clear_error (&error);
  g_assert_null (test_await_failure (ebb_gpt_loss (EBB_GPT (gpt), fine, outside, &error), &error));
  test_assert_error (error, EBB_ERROR_INDEX, "11");
  g_clear_error (&error);
  g_assert_null (ebb_module_call (gpt, args, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Gpt: tokens is missing");
}

static void
dropout_follows_the_training_flag (void)
{
  g_autoptr (EbbGptConfig) config = small_config ();
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, 2, CONTEXT, -1);
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) c = NULL;
  g_autoptr (EbbTensor) d = NULL;

  config->dropout = 0.5;
  gpt = ebb_gpt_new (config, NULL);
  a = call (gpt, tokens);
  b = call (gpt, tokens);
  g_assert_cmpfloat (test_difference (a, b), >, 1e-3);
  ebb_module_set_training (gpt, FALSE);
  c = call (gpt, tokens);
  d = call (gpt, tokens);
  test_assert_near (c, d, 0);
}

/* -- sampling ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
generate (EbbModule *gpt, EbbTensor *tokens, int n, double temperature, int top_k, guint64 seed)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *sequence = test_generate (gpt, tokens, n, temperature, top_k, seed, NULL, &error);

  g_assert_no_error (error);
  return sequence;
}

static void
temperature_zero_takes_the_likeliest (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbTensor) start = test_tokens (2, VOCAB, 2, 3, -1);
  g_autoptr (EbbTensor) sequence = NULL;
  g_autoptr (EbbTensor) by_one = NULL;
  g_autoptr (EbbTensor) by_k = NULL;

  enlarge_weights (gpt);
  sequence = generate (gpt, start, 12, 0, 0, 1); /* longer than the context */
  by_k = generate (gpt, start, 12, 1, 1, 1);
  test_assert_shape (sequence, "[2, 15]");
  test_assert_near (by_k, sequence, 0);
  g_assert_cmpint (ebb_tensor_get_dtype (sequence), ==, EBB_DTYPE_I64);

  by_one = ebb_tensor_ref (start);
  for (int i = 0; i < 12; i++)
    {
      gint64 length = 3 + i, seen = MIN (length, CONTEXT);
      g_autoptr (EbbTensor) window = ebb_narrow (by_one, 1, length - seen, seen, NULL);
      g_autoptr (EbbTensor) logits = call (gpt, window);
      g_autoptr (EbbTensor) last = ebb_select (logits, 1, seen - 1, NULL);
      g_autoptr (EbbTensor) next = ebb_argmax (last, 1, TRUE, NULL);
      EbbTensor *longer = ebb_cat ((EbbTensor *[]){ by_one, next }, 2, 1, NULL);

      ebb_tensor_unref (by_one);
      by_one = longer;
    }
  test_assert_near (by_one, sequence, 0);
}

static void
the_seed_makes_the_text (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbTensor) start = test_tokens (2, VOCAB, 1, 1, -1);
  g_autoptr (EbbTensor) a = generate (gpt, start, 40, 1, 5, 7);
  g_autoptr (EbbTensor) b = generate (gpt, start, 40, 1, 5, 7);
  g_autoptr (EbbTensor) c = generate (gpt, start, 40, 1, 5, 8);

  test_assert_near (a, b, 0);
  g_assert_cmpfloat (test_difference (a, c), >, 0);
}

/* Draws follow the model's own probabilities, of the k likeliest tokens alone where k is given. */
static void
draws_follow_the_probabilities (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbTensor) start = ebb_zeros ((gint64[]){ 4000, 1 }, 2, EBB_DTYPE_I64, NULL, NULL);
  g_autoptr (EbbTensor) one = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) probabilities = NULL;

  enlarge_weights (gpt);
  one = ebb_narrow (start, 0, 0, 1, NULL);
  logits = call (gpt, one);
  probabilities = ebb_softmax (logits, -1, NULL);
  for (int k = 0; k <= 3; k += 3)
    {
      g_autoptr (EbbTensor) sequence = generate (gpt, start, 1, 1, k, 7);
      double count[VOCAB] = { 0 }, kept = 0;
      guint n_seen = 0;

      for (gsize i = 0; i < 4000; i++)
        count[(int) test_at (sequence, 2 * i + 1)] += 1.0 / 4000;
      for (guint i = 0; i < VOCAB; i++)
        {
          n_seen += count[i] > 0;
          kept += count[i] > 0 ? test_at (probabilities, i) : 0;
        }
      g_assert_cmpuint (n_seen, <=, k > 0 ? k : VOCAB);
      for (guint i = 0; i < VOCAB; i++)
        if (count[i] > 0)
          g_assert_cmpfloat (fabs (count[i] - test_at (probabilities, i) / kept), <, 0.03);
    }
}

static void
sampling_leaves_the_model_alone (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbModule) frozen = ebb_module_get_child (gpt, "h.1");
  g_autoptr (EbbTensor) start = test_tokens (2, VOCAB, 1, 1, -1);
  g_autoptr (EbbTensor) sequence = NULL;

  ebb_module_set_training (frozen, FALSE);
  sequence = generate (gpt, start, 3, 1, 0, 1);
  g_assert_true (ebb_module_get_training (gpt));
  g_assert_false (ebb_module_get_training (frozen));
  g_assert_true (ebb_is_grad_enabled ());
  g_assert_false (ebb_tensor_get_requires_grad (sequence));
}

static void
sampling_refuses_what_makes_no_sense (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbTensor) start = test_tokens (2, VOCAB, 1, 1, -1);
  g_autoptr (EbbTensor) nothing = ebb_zeros ((gint64[]){ 1, 0 }, 2, EBB_DTYPE_I64, NULL, NULL);
  g_autoptr (GCancellable) cancellable = g_cancellable_new ();
  g_autoptr (GError) error = NULL;

  g_assert_null (test_generate (gpt, start, 3, -1, 0, 1, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "temperature is -1");
  g_clear_error (&error);
  g_assert_null (test_generate (gpt, start, -3, 1, 0, 1, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "max-tokens is -3");
  g_clear_error (&error);
  g_assert_null (test_generate (gpt, nothing, 3, 1, 0, 1, NULL, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "prompt 0 is empty");
  g_clear_error (&error);
  g_cancellable_cancel (cancellable);
  g_assert_null (test_generate (gpt, start, 3, 1, 0, 1, cancellable, &error));
  test_assert_error (error, EBB_ERROR_CANCELLED, "0 of 3");
}

/* -- GPT-2's file format ------------------------------------------------------------------------------------------- */

static void
the_published_format_goes_round (void)
{
  g_autoptr (EbbModule) a = small_gpt (1, TRUE);
  g_autoptr (EbbModule) b = small_gpt (2, TRUE);
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, 2, CONTEXT, -1);
  g_autoptr (EbbTensor) mask = test_randn (1, 1, 1, 8, 8, -1);
  g_autoptr (EbbTensor) from_a = call (a, tokens);
  g_autoptr (EbbTensor) from_b = NULL;
  g_autoptr (EbbTensor) c_fc = NULL;
  g_autoptr (EbbTensor) head = NULL;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) published = ebb_gpt_to_gpt2_state (EBB_GPT (a), &error);
  g_autoptr (EbbArgs) prefixed = ebb_args_new (EBB_ARGS_DICT);

  g_assert_no_error (error);
  c_fc = ebb_args_get_tensor (published, (guint) ebb_args_find (published, "h.0.mlp.c_fc.weight"));
  head = ebb_args_get_tensor (published, (guint) ebb_args_find (published, "wte.weight"));
  test_assert_shape (c_fc, "[24, 96]");
  for (guint i = 0; i < ebb_args_get_length (published); i++)
    {
      g_autofree char *name = g_strconcat ("transformer.", ebb_args_get_key (published, i), NULL);
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (published, i);

      ebb_args_add_tensor (prefixed, name, tensor);
    }
  ebb_args_add_tensor (prefixed, "transformer.h.0.attn.bias", mask);
  ebb_args_add_tensor (prefixed, "transformer.h.1.attn.masked_bias", mask);
  ebb_args_add_tensor (prefixed, "lm_head.weight", head); /* a file may hold the tied weight a second time */
  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (b), prefixed, &error));
  g_assert_no_error (error);
  from_b = call (b, tokens);
  test_assert_near (from_a, from_b, 0);
}

static void
weights_of_another_model_are_refused (void)
{
  g_autoptr (EbbModule) gpt = small_gpt (1, TRUE);
  g_autoptr (EbbModule) untied = small_gpt (2, FALSE);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) published = ebb_gpt_to_gpt2_state (EBB_GPT (gpt), &error);
  g_autoptr (EbbArgs) own = ebb_module_get_state_dict (gpt);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (untied, "wte.weight");
  g_autoptr (EbbTensor) before = ebb_copy (weight, NULL);

  g_assert_false (ebb_gpt_load_gpt2 (EBB_GPT (untied), published, &error));
  test_assert_error (error, EBB_ERROR_STATE, "missing (1): lm_head.weight");
  test_assert_near (weight, before, 0);
  g_clear_error (&error);
  g_assert_false (ebb_gpt_load_gpt2 (EBB_GPT (gpt), own, &error)); /* the other way round */
  test_assert_error (error, EBB_ERROR_STATE, "of another shape (6): h.0.attn.c_attn.weight [72, 24], not [24, 72]");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/gpt/presets-have-the-published-sizes", presets_have_the_published_sizes);
  g_test_add_func ("/gpt/bad-configurations-are-refused", bad_configurations_are_refused);
  g_test_add_func ("/gpt/names-are-gpt2s", names_are_gpt2s);
  g_test_add_func ("/gpt/weights-start-as-gpt2s", weights_start_as_gpt2s);
  g_test_add_data_func ("/gpt/tied-loss-is-the-cross-entropy-of-the-logits", GINT_TO_POINTER (TRUE),
                        the_loss_is_the_cross_entropy_of_the_logits);
  g_test_add_data_func ("/gpt/untied-loss-is-the-cross-entropy-of-the-logits", GINT_TO_POINTER (FALSE),
                        the_loss_is_the_cross_entropy_of_the_logits);
  g_test_add_func ("/gpt/targets-may-be-left-out-of-the-mean", targets_may_be_left_out_of_the_mean);
  g_test_add_func ("/gpt/bad-tokens-are-refused", bad_tokens_are_refused);
  g_test_add_func ("/gpt/dropout-follows-the-training-flag", dropout_follows_the_training_flag);
  g_test_add_func ("/generate/temperature-zero-takes-the-likeliest", temperature_zero_takes_the_likeliest);
  g_test_add_func ("/generate/the-seed-makes-the-text", the_seed_makes_the_text);
  g_test_add_func ("/generate/draws-follow-the-probabilities", draws_follow_the_probabilities);
  g_test_add_func ("/generate/leaves-the-model-alone", sampling_leaves_the_model_alone);
  g_test_add_func ("/generate/refuses-what-makes-no-sense", sampling_refuses_what_makes_no_sense);
  g_test_add_func ("/gpt2/the-published-format-goes-round", the_published_format_goes_round);
  g_test_add_func ("/gpt2/weights-of-another-model-are-refused", weights_of_another_model_are_refused);
  return g_test_run ();
}
