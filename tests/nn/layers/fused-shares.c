/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <string.h>

/* Layers that do a share of a fused op are asked for it through their call. Anyone may call them so: what does not fit
 * is an error that names it, and a wrapped layer gives the bits of the unwrapped one. */

static EbbArgs *
call (EbbModule *module,
      EbbTensor *x,
      EbbTensor *residual,
      double dropout,
      const char *more,
      GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);

  ebb_args_add_tensor (args, NULL, x);
  if (residual != NULL)
    ebb_args_add_tensor (args, "residual", residual);
  else
    ebb_args_add_none (args, "residual");
  ebb_args_add_double (args, "dropout", dropout);
  ebb_args_add_boolean (args, "training", TRUE);
  if (more != NULL)
    ebb_args_add_int (args, more, 3);
  return ebb_module_call (module, args, error);
}

static void
a_norm_names_what_does_not_fit (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) norm = ebb_layer_norm_new (4, 1e-5, TRUE, &error);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 4, -1);
  g_autoptr (EbbTensor) other = test_randn (2, 5, 4, -1);
  g_autoptr (EbbArgs) text = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) words = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) pair = NULL;

  g_assert_null (call (norm, x, NULL, 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "LayerNorm: residual must be a tensor");
  g_clear_error (&error);
  g_assert_null (call (norm, x, x, 0, "nonsense", &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "LayerNorm: there is no argument \"nonsense\"");
  g_clear_error (&error);
  g_assert_null (call (norm, x, x, 2, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "must be in [0, 1]");
  g_clear_error (&error);
  g_assert_null (call (norm, x, other, 0, NULL, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "residual is [5, 4]");
  g_clear_error (&error);

  ebb_args_add_string (text, NULL, "s");
  ebb_args_add_tensor (text, "residual", x);
  g_assert_null (ebb_module_call (norm, text, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "LayerNorm: input must be a tensor");
  g_clear_error (&error);
  ebb_args_add_tensor (words, NULL, x);
  ebb_args_add_tensor (words, "residual", x);
  ebb_args_add_string (words, "dropout", "much");
  g_assert_null (ebb_module_call (norm, words, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "LayerNorm: dropout must be a number");
  g_clear_error (&error);

  pair = call (norm, x, x, 0, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_args_get_length (pair), ==, 2);
}

static void
a_product_names_what_does_not_fit (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) linear = ebb_linear_new (4, 5, TRUE, &error);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 4, -1);
  const struct
  {
    const char *key, *more, *text;
  } cases[] = {
    { "add_bias", NULL, "Linear: add_bias must be a truth value" },
    { "targets", NULL, "Linear: targets must be a tensor or none" },
    { "targets", "nonsense", "Linear: " },
    { "nonsense", NULL, "nonsense" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);

      ebb_args_add_tensor (args, NULL, x);
      ebb_args_add_string (args, cases[i].key, "s");
      if (cases[i].more != NULL)
        ebb_args_add_int (args, cases[i].more, 3);
      g_assert_null (ebb_module_call (linear, args, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, cases[i].text);
      g_clear_error (&error);
    }
}

static EbbTensor **
train (gboolean wrap,
       EbbTensor **loss,
       guint *n)
{
  GError *error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbModule) head = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens (1, 64, 2, 8, -1);
  g_autoptr (EbbTensor) targets = test_tokens (2, 64, 2, 8, -1);
  EbbTensor **grads;

  ebb_manual_seed (3);
  config->layers = 2;
  config->width = 16;
  config->heads = 2;
  config->context = 8;
  config->vocab = 64;
  config->tied = FALSE;
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  head = ebb_module_get_child (gpt, "lm_head");
  if (wrap)
    g_object_unref (ebb_checkpoint_wrapper (head, NULL, &error));
  *loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  g_assert_true (ebb_tensor_backward (*loss, &error));
  g_assert_cmpuint (ebb_module_get_forward_counter (head), ==, 0);
  grads = ebb_module_get_parameters (gpt, TRUE, n);
  for (guint i = 0; i < *n; i++)
    {
      EbbTensor *parameter = grads[i];

      grads[i] = ebb_tensor_get_grad (parameter);
      ebb_tensor_unref (parameter);
    }
  return grads;
}

static void
a_wrapped_head_gives_the_same_bits (void)
{
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) wrapped_loss = NULL;
  guint n, n_wrapped;
  g_autofree EbbTensor **grads = train (FALSE, &loss, &n);
  g_autofree EbbTensor **wrapped_grads = train (TRUE, &wrapped_loss, &n_wrapped);

  g_assert_true (ebb_tensor_equal (loss, wrapped_loss));
  g_assert_cmpuint (n, ==, n_wrapped);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_equal (grads[i], wrapped_grads[i]));
      ebb_tensor_unref (grads[i]);
      ebb_tensor_unref (wrapped_grads[i]);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/fused-shares/a-norm-names-what-does-not-fit", a_norm_names_what_does_not_fit);
  g_test_add_func ("/fused-shares/a-product-names-what-does-not-fit", a_product_names_what_does_not_fit);
  g_test_add_func ("/fused-shares/a-wrapped-head-gives-the-same-bits", a_wrapped_head_gives_the_same_bits);
  return g_test_run ();
}
