/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/gpt-step.h"

#include "support/device.h"
#include "support/tensors.h"

#define VOCAB 29

void
test_gpt_step_clear (TestGptStep *step)
{
  g_clear_pointer (&step->loss, ebb_tensor_unref);
  for (guint i = 0; i < step->n_grads; i++)
    ebb_tensor_unref (step->grads[i]);
  g_clear_pointer (&step->grads, g_free);
  step->n_grads = 0;
}

EbbModule *
test_gpt_step_model (int layers, double dropout)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->layers = layers;
  config->width = TEST_GPT_WIDTH;
  config->heads = TEST_GPT_HEADS;
  config->context = TEST_GPT_CONTEXT;
  config->vocab = VOCAB;
  config->dropout = dropout;
  ebb_manual_seed (7);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

static EbbTensor *
call_gpt (EbbModule *gpt, gboolean with_mask, GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (11, VOCAB, TEST_GPT_BATCH, TEST_GPT_CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (12, VOCAB, TEST_GPT_BATCH, TEST_GPT_CONTEXT, -1);
  g_autoptr (EbbTensor) mask = test_randn (13, TEST_GPT_BATCH, TEST_GPT_CONTEXT, TEST_GPT_CONTEXT, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, NULL, targets);
  if (with_mask)
    ebb_args_add_tensor (args, "mask", mask);
  result = ebb_module_call (gpt, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

void
test_gpt_step_run (EbbModule *gpt, gboolean with_mask, TestGptStep *step)
{
  g_autofree EbbTensor **parameters = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  GError *error = NULL;

  ebb_manual_seed (5);
  ebb_module_zero_grad (gpt);
  ebb_memory_reset_peaks (test_device ());
  step->loss = call_gpt (gpt, with_mask, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (test_device ());
  step->held = ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
  g_clear_pointer (&stats, ebb_memory_stats_free);
  ebb_tensor_backward (step->loss, &error);
  g_assert_no_error (error);
  stats = ebb_memory_get_stats (test_device ());
  step->peak = ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
  step->offset = ebb_generator_get_offset (ebb_generator_get_default ());
  parameters = ebb_module_get_parameters (gpt, TRUE, &step->n_grads);
  step->grads = g_new0 (EbbTensor *, step->n_grads);
  for (guint i = 0; i < step->n_grads; i++)
    {
      step->grads[i] = ebb_tensor_get_grad (parameters[i]);
      g_assert_nonnull (step->grads[i]);
      ebb_tensor_unref (parameters[i]);
    }
}

void
test_assert_same_gpt_step (const TestGptStep *a, const TestGptStep *b)
{
  g_assert_true (ebb_tensor_equal (a->loss, b->loss));
  g_assert_cmpuint (a->n_grads, ==, b->n_grads);
  for (guint i = 0; i < a->n_grads; i++)
    g_assert_true (ebb_tensor_equal (a->grads[i], b->grads[i]));
  g_assert_cmpuint (a->offset, ==, b->offset);
}
