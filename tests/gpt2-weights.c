/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "support/tensors.h"

/* Against PyTorch, from the fixtures that tests/fixtures/README.md describes. */

static EbbArgs *
load (const char *name)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", name, NULL);
  g_autoptr (GError) error = NULL;
  EbbArgs *tensors = ebb_load_safetensors (path, &error);

  g_assert_no_error (error);
  return tensors;
}

static EbbTensor *
take (EbbArgs *tensors, const char *name)
{
  int index = ebb_args_find (tensors, name);

  g_assert_cmpint (index, >=, 0);
  return ebb_args_get_tensor (tensors, (guint) index);
}

static EbbModule *
make_gpt (int vocab, int context, int width)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  ebb_gpt_config_set_vocab (config, vocab);
  ebb_gpt_config_set_context (config, context);
  ebb_gpt_config_set_width (config, width);
  ebb_gpt_config_set_heads (config, 4);
  ebb_gpt_config_set_layers (config, 2);
  ebb_gpt_config_set_dropout (config, 0);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static void
published_weights_give_pytorchs_logits (void)
{
  g_autoptr (EbbModule) gpt = make_gpt (97, 16, 32);
  g_autoptr (EbbArgs) weights = load ("gpt2-tiny.safetensors");
  g_autoptr (EbbArgs) expected = load ("gpt2-tiny-logits.safetensors");
  g_autoptr (EbbTensor) tokens = take (expected, "tokens");
  g_autoptr (EbbTensor) expected_logits = take (expected, "logits");
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error));
  g_assert_no_error (error);
  logits = ebb_module_call1 (gpt, tokens, &error);
  g_assert_no_error (error);
  g_test_message ("largest difference %g", test_difference (logits, expected_logits));
  test_assert_near (logits, expected_logits, 1e-5);
}

/* |a - b| / |b| in the Euclidean norm; of attention's joint bias without its middle third, the keys', which is zero but
 * for rounding: every key moves all scores of a query alike. */
static double
relative_difference (EbbTensor *a, EbbTensor *b, gboolean without_keys)
{
  gsize n = (gsize) ebb_tensor_get_n_elements (b);
  g_autoptr (EbbTensor) x = ebb_contiguous (a, NULL);
  g_autoptr (EbbTensor) y = ebb_contiguous (b, NULL);
  const float *p = ebb_tensor_get_data (x, NULL), *q = ebb_tensor_get_data (y, NULL);
  double difference = 0, norm = 0;

  g_assert_cmpint (ebb_tensor_get_n_elements (a), ==, (gint64) n);
  for (gsize i = 0; i < n; i++)
    if (!without_keys || i < n / 3 || i >= 2 * n / 3)
      {
        difference += ((double) p[i] - q[i]) * ((double) p[i] - q[i]);
        norm += (double) q[i] * q[i];
      }
  return sqrt (difference / norm);
}

static void
the_first_gradients_are_pytorchs (void)
{
  g_autoptr (EbbModule) gpt = make_gpt (67, 32, 72);
  g_autoptr (EbbArgs) weights = load ("curve-weights.safetensors");
  g_autoptr (EbbArgs) curve = load ("curve.safetensors");
  g_autoptr (EbbTensor) all_tokens = take (curve, "tokens");
  g_autoptr (EbbTensor) all_targets = take (curve, "targets");
  g_autoptr (EbbTensor) losses = take (curve, "losses");
  g_autoptr (EbbTensor) tokens = ebb_select (all_tokens, 0, 0, NULL);
  g_autoptr (EbbTensor) targets = ebb_select (all_targets, 0, 0, NULL);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) error = NULL;
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);
  double worst = 0;

  g_assert_true (ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error));
  g_assert_no_error (error);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat (fabs (test_at (loss, 0) / test_at (losses, 0) - 1), <, 2e-6);

  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autofree char *key = g_strconcat ("grad.", names[i], NULL);
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (gpt, names[i]);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);
      g_autoptr (EbbTensor) published = take (curve, key);
      gboolean turned = g_str_has_prefix (names[i], "h.") && ebb_tensor_get_n_dims (published) == 2;
      g_autoptr (EbbTensor) expected = turned ? ebb_transpose (published, 0, 1, NULL) : ebb_tensor_ref (published);
      double difference = relative_difference (grad, expected, g_str_has_suffix (names[i], "c_attn.bias"));

      worst = MAX (worst, difference);
      if (!(difference < 1e-5))
        g_error ("%s: %g", names[i], difference);
    }
  g_test_message ("largest relative difference %g", worst);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/gpt2-weights/give-pytorchs-logits", published_weights_give_pytorchs_logits);
  g_test_add_func ("/gpt2-weights/the-first-gradients-are-pytorchs", the_first_gradients_are_pytorchs);
  return g_test_run ();
}
