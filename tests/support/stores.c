/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/stores.h"

#include "support/device.h"
#include "support/tensors.h"

EbbSavedTensorHooks *
test_disk_store_new (const char *folder)
{
  GError *error = NULL;
  EbbSavedTensorHooks *store = ebb_disk_store_new (folder, &error);

  g_assert_no_error (error);
  g_object_set (store, "least-size", (guint64) 1, NULL);
  g_object_set (store, "in-flight", 0, NULL); /* originals go at once, as on the CPU */
  g_object_set (store, "staging-limit", (guint64) 0, NULL);
  return store;
}

guint64
test_bytes_in_use (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_total (stats);
}

EbbHandle *
test_pack (EbbSavedTensorHooks *store,
           EbbTensor *tensor)
{
  GError *error = NULL;
  EbbHandle *handle = ebb_saved_tensor_hooks_pack (store, tensor, &error);

  g_assert_no_error (error);
  return handle;
}

EbbTensor *
test_unpack (EbbSavedTensorHooks *store,
             EbbHandle *handle)
{
  GError *error = NULL;
  EbbTensor *tensor = ebb_saved_tensor_hooks_unpack (store, handle, &error);

  g_assert_no_error (error);
  return tensor;
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

void
test_step_clear (TestStep *step)
{
  g_clear_pointer (&step->loss, ebb_tensor_unref);
  for (guint i = 0; i < step->n_grads; i++)
    ebb_tensor_unref (step->grads[i]);
  g_clear_pointer (&step->grads, g_free);
  step->n_grads = 0;
}

EbbModule *
test_gpt_new (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  GError *error = NULL;
  EbbModule *gpt;

  config->layers = 3;
  config->width = 48;
  config->heads = 4;
  config->context = 24;
  config->vocab = 61;
  config->dropout = 0.1;
  ebb_manual_seed (7);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

EbbTensor *
test_gpt_forward (EbbModule *gpt,
                  GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (11, 61, 2, 24, -1);
  g_autoptr (EbbTensor) targets = test_tokens (12, 61, 2, 24, -1);

  ebb_manual_seed (13);
  return ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, error);
}

static void
collect (EbbModule *gpt,
         TestStep *step)
{
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, &step->n_grads);

  step->grads = g_new0 (EbbTensor *, step->n_grads);
  for (guint i = 0; i < step->n_grads; i++)
    {
      step->grads[i] = ebb_tensor_get_grad (parameters[i]);
      g_assert_nonnull (step->grads[i]);
      ebb_tensor_unref (parameters[i]);
    }
}

/* @hooks: for every tensor that is saved, or NULL. */
void
test_step_run (EbbModule *gpt,
               EbbSavedTensorHooks *hooks,
               TestStep *step)
{
  GError *error = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_module_zero_grad (gpt);
  ebb_memory_reset_peaks (test_device ());
  if (hooks != NULL)
    ebb_push_saved_tensor_hooks (hooks);
  step->loss = test_gpt_forward (gpt, &error);
  if (hooks != NULL)
    ebb_pop_saved_tensor_hooks ();
  g_assert_no_error (error);
  ebb_tensor_backward (step->loss, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (test_device ());
  step->peak = ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
  step->offset = ebb_generator_get_offset (ebb_generator_get_default ());
  collect (gpt, step);
}

void
test_step_assert_same (const TestStep *a,
                       const TestStep *b)
{
  g_assert_true (ebb_tensor_equal (a->loss, b->loss));
  g_assert_cmpuint (a->n_grads, ==, b->n_grads);
  g_assert_cmpuint (a->offset, ==, b->offset);
  for (guint i = 0; i < a->n_grads; i++)
    g_assert_true (ebb_tensor_equal (a->grads[i], b->grads[i]));
}
