/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Activation checkpointing of the model, and an estimate of what it saves. */
#include "common/train/wrapping.h"

#include "common/train/model.h"
#include "common/train/store.h"

#include <string.h>

gboolean
wrapping_apply (EbbModule *model,
                const Options *options,
                EbbSavedTensorHooks *store,
                GError **error)
{
  g_autoptr (EbbCheckpointOptions) how = NULL;

  if (options->checkpoint_kind == CHECKPOINT_NONE || options->checkpoint_kind == CHECKPOINT_AUTO)
    return TRUE;
  how = options->checkpoint_kind == CHECKPOINT_SELECTIVE ? ebb_checkpoint_options_new_selective ()
                                                         : ebb_checkpoint_options_new ();
  if (store_is_used (options) || options->ranks.partition)
    ebb_checkpoint_options_set_store (how, store);
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_BLOCK, how, error);
}

guint64
wrapping_count_recomputes (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 n_recomputes = 0;

  for (guint i = 0; i < n; i++)
    {
      n_recomputes += ebb_checkpoint_get_n_recomputes (modules[i]);
      g_object_unref (modules[i]);
    }
  return n_recomputes;
}

/* Bytes kept after one forward over @length tokens. */
static double
measure (EbbModule *model,
         const Options *options,
         EbbDevice *device,
         int length)
{
  const gint64 shape[] = { 1, length };
  g_autofree gint64 *zeros = g_new0 (gint64, length);
  g_autoptr (EbbTensor) host = ebb_tensor_new_from_ints (zeros, (gsize) length, shape, 2, NULL);
  g_autoptr (EbbTensor) tokens = ebb_to_device (host, device, NULL);
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbMemoryStats) before = ebb_memory_get_stats (device);
  g_autoptr (EbbMemoryStats) after = NULL;

  /* A masked language model predicts about one token in seven. */
  for (int i = 0; options->program->is_masked && i < length; i++)
    zeros[i] = i % 7 == 0 ? 0 : -100;
  targets = options->program->is_masked ? ebb_tensor_new_from_ints (zeros, (gsize) length, shape, 2, NULL)
                                        : ebb_tensor_ref (tokens);
  if (strcmp (options->dtype, "bf16") == 0)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  loss = model_loss (model, tokens, targets, NULL, NULL);
  if (strcmp (options->dtype, "bf16") == 0)
    ebb_pop_autocast ();
  after = ebb_memory_get_stats (device);
  return loss == NULL ? 0
                      : (double) ebb_memory_stats_get_current (after, EBB_PURPOSE_ACTIVATION)
                            - (double) ebb_memory_stats_get_current (before, EBB_PURPOSE_ACTIVATION);
}

double
wrapping_estimate_plain (EbbModule *model,
                         const Options *options,
                         gint64 n_rows,
                         EbbDevice *device)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  guint64 seed = ebb_generator_get_seed (generator), offset = ebb_generator_get_offset (generator);
  int unit = options->ranks.sequence_parallel ? options->ranks.tensor_parallel : 1;
  int half = MIN (options->context, 64) / 2 / unit * unit, length = 2 * half;
  double small, large;

  if (half == 0)
    return 0;
  ebb_push_checkpointing_disabled ();
  small = measure (model, options, device, half);
  large = measure (model, options, device, length);
  ebb_pop_checkpointing_disabled ();
  ebb_generator_set_state (generator, seed, offset);
  ebb_memory_reset_peaks (device);
  if (small <= 0 || large <= small)
    return 0;
  return large + (large - small) / (length - half) * ((double) n_rows * options->context - length);
}
