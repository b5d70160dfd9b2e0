/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"
#include "wrap/plan/memory-plan-private.h"

#include <string.h>

/* Checkpoints that save next to nothing say so, once and after the first step. Wrappers on modules of one type are
 * judged together and once, so each case here has a type of its own. */

static GPtrArray *messages;

static GLogWriterOutput
note (GLogLevelFlags level,
      const GLogField *fields,
      gsize n_fields,
      gpointer data)
{
  for (gsize i = 0; i < n_fields; i++)
    if ((level & G_LOG_LEVEL_MESSAGE) && strcmp (fields[i].key, "MESSAGE") == 0)
      g_ptr_array_add (messages, g_strdup (fields[i].value));
  return G_LOG_WRITER_HANDLED;
}

static void
take_step (EbbModule *module)
{
  g_autoptr (EbbTensor) x = test_randn (3, 64, 8, -1);
  g_autoptr (EbbTensor) y = test_forward1 (module, x);
  g_autoptr (EbbTensor) loss = test_loss (y);

  test_backward (loss);
}

/* A layer that needs more than all else by far. */
static EbbTensor *
hold (void)
{
  return ebb_zeros ((const gint64[]){ 4, 1024, 1024 }, 3, EBB_DTYPE_F32, NULL, NULL);
}

/* Each frees little; a warning names one and the bytes. */
static void
small_modules_are_named_once (void)
{
  g_autoptr (EbbTensor) large = hold ();
  g_autoptr (EbbModule) chain = test_chain_new (ebb_linear_new (8, 8, TRUE, NULL), ebb_gelu_new (EBB_GELU_TANH),
                                                ebb_linear_new (8, 8, TRUE, NULL), NULL);
  g_autoptr (GError) error = NULL;

  g_assert_nonnull (large);
  g_assert_true (ebb_checkpoint_wrap_each (chain, EBB_TYPE_LINEAR, NULL, &error));
  take_step (chain);
  g_assert_cmpuint (messages->len, ==, 0);
  for (guint i = 0; i < 3; i++)
    take_step (chain);
  g_assert_cmpuint (messages->len, ==, 1);
  g_assert_nonnull (strstr (messages->pdata[0], "checkpoints of Linear, as 0, free "));
  g_assert_nonnull (strstr (messages->pdata[0], " of the peak of "));
  g_ptr_array_set_size (messages, 0);
}

/* Many that free little each, and much together. */
static void
blocks_of_a_deep_model_are_not (void)
{
  g_autoptr (EbbTensor) large = hold ();
  g_autoptr (EbbModule) chain = EBB_MODULE (ebb_sequential_new ());
  g_autoptr (GError) error = NULL;

  ebb_memory_reset_peaks (test_device ());
  for (guint i = 0; i < 150; i++)
    {
      g_autoptr (EbbModule) mlp = ebb_mlp_new (8, 16, EBB_ACTIVATION_GELU_TANH, &error);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (chain), mlp, &error));
    }
  g_assert_true (ebb_checkpoint_wrap_each (chain, EBB_TYPE_MLP, NULL, &error));
  for (guint i = 0; i < 3; i++)
    take_step (chain);
  g_assert_cmpuint (messages->len, ==, 0);
}

/* Less than a mebibyte in all. */
static void
a_toy_is_not (void)
{
  g_autoptr (EbbTensor) large = ebb_zeros ((const gint64[]){ 220, 1024 }, 2, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbModule) chain = test_chain_new (ebb_linear_new (8, 8, TRUE, NULL), ebb_tanh_new (), NULL);
  g_autoptr (GError) error = NULL;

  ebb_memory_reset_peaks (test_device ());
  g_assert_nonnull (large);
  g_assert_true (ebb_checkpoint_wrap_each (chain, EBB_TYPE_TANH, NULL, &error));
  for (guint i = 0; i < 3; i++)
    take_step (chain);
  g_assert_cmpuint (messages->len, ==, 0);
}

static gboolean
step (EbbModule *module,
      gpointer data,
      GError **error)
{
  take_step (module);
  return TRUE;
}

/* Neither is one whose graph was dropped, nor one in a dry run. */
static void
nothing_is_said_before_a_backward (void)
{
  g_autoptr (EbbTensor) large = hold ();
  g_autoptr (EbbModule) norm = ebb_layer_norm_new (8, 1e-5, TRUE, NULL);
  g_autoptr (EbbTensor) x = test_randn (3, 64, 8, -1);
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_autoptr (GError) error = NULL;

  test_wrap (norm, NULL);
  for (guint i = 0; i < 3; i++)
    ebb_tensor_unref (test_forward1 (norm, x));
  estimate = ebb_memory_estimate_new (norm, test_device (), step, NULL, &error);
  g_assert_no_error (error);
  ebb_tensor_unref (test_forward1 (norm, x));
  g_assert_cmpuint (messages->len, ==, 0);
  take_step (norm);
  take_step (norm);
  g_assert_cmpuint (messages->len, ==, 1);
  g_assert_nonnull (strstr (messages->pdata[0], "LayerNorm, as the model itself"));
  g_ptr_array_set_size (messages, 0);
}

/* A plan wraps what its budget needs, however little that is. */
static void
wrappers_of_a_plan_are_not_judged (void)
{
  g_autoptr (EbbTensor) large = hold ();
  g_autoptr (EbbModule) chain = EBB_MODULE (ebb_sequential_new ()), first = NULL;
  g_autoptr (EbbMemoryPlan) any = NULL, least = NULL;
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) block =
          test_chain_new (ebb_linear_new (8, 8, TRUE, NULL), ebb_gelu_new (EBB_GELU_TANH), NULL);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (chain), block, &error));
    }
  any = ebb_memory_plan_make (chain, test_device (), NULL, step, NULL, G_MAXINT64, 0, &error);
  g_assert_no_error (error);
  least = ebb_memory_plan_make (chain, test_device (), NULL, step, NULL, any->least_bytes, 0, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (least, &error));
  first = ebb_module_get_child (chain, "0");
  g_assert_true (ebb_checkpoint_is_wrapped (first));
  for (guint i = 0; i < 3; i++)
    take_step (chain);
  g_assert_cmpuint (messages->len, ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  messages = g_ptr_array_new_with_free_func (g_free);
  g_log_set_writer_func (note, NULL, NULL);
  g_test_add_func ("/savings/small-modules-are-named-once", small_modules_are_named_once);
  g_test_add_func ("/savings/blocks-of-a-deep-model-are-not", blocks_of_a_deep_model_are_not);
  g_test_add_func ("/savings/a-toy-is-not", a_toy_is_not);
  g_test_add_func ("/savings/nothing-is-said-before-a-backward", nothing_is_said_before_a_backward);
  g_test_add_func ("/savings/wrappers-of-a-plan-are-not-judged", wrappers_of_a_plan_are_not_judged);
  return g_test_run ();
}
