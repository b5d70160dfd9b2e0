/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs a few steps of the model with some of OSLO's options, and measures this rank's memory. */
#include "way.h"

#include <string.h>

static const char *
to_json (gboolean value)
{
  return value ? "true" : "false";
}

char *
way_make_json (const Way *self,
               guint n_ranks)
{
  return g_strdup_printf ("{\"model_parallelism\": {\"enable\": true, \"tensor_parallel_size\": %u}, "
                          "\"activation_checkpointing\": {\"enable\": true, \"partitioned_checkpointing\": %s, "
                          "\"contiguous_checkpointing\": %s, \"cpu_checkpointing\": %s}}",
                          n_ranks, to_json (self->partitioned), to_json (self->contiguous), to_json (self->host));
}

/* The store of the checkpoints; NULL: none. */
static EbbActivationStore *
get_store (EbbModule *model)
{
  EbbSavedTensorHooks *hooks = ebb_checkpoint_options_get_store (ebb_initialize_get_options (model));

  return hooks != NULL ? EBB_ACTIVATION_STORE (hooks) : NULL;
}

/* Every way begins with the same weights and draws the same random numbers. */
static EbbModule *
make_model (const Way *self,
            const Options *options,
            EbbProcessGroup *group,
            EbbDevice *device,
            GError **error)
{
  g_autofree char *json = way_make_json (self, ebb_process_group_get_size (group));
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbModule) same = NULL;

  ebb_manual_seed ((guint64) options->seed);
  model = options_make_model (options, error);
  if (model == NULL || !ebb_module_to_device (model, device, error))
    return NULL;
  same = ebb_initialize (model, json, error);
  if (same == NULL
      || !ebb_model_parallel_manual_seed ((guint64) options->seed, NULL, error))
    return NULL;
  if (get_store (model) != NULL)
    g_object_set (get_store (model), "prefetch", (guint) options->prefetch, NULL);
  ebb_memory_trim (device);
  return g_steal_pointer (&model);
}

/* -- measuring ----------------------------------------------------------------------------------------------------- */

/* The bytes that the checkpoints hold in place. */
static guint64
sum_saved_bytes (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 sum = 0;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbCheckpointStats) stats = ebb_checkpoint_get_stats (modules[i]);

      sum += stats != NULL ? stats->saved_bytes : 0;
      g_object_unref (modules[i]);
    }
  return sum;
}

static gboolean
measure_forward (const Way *self,
                 EbbModule *model,
                 EbbDevice *device,
                 gint64 *figures,
                 GError **error)
{
  EbbActivationStore *store = get_store (model);
  g_autoptr (EbbMemoryStats) stats = NULL;
  guint64 kept;

  if ((store != NULL && !ebb_activation_store_synchronize (store, error)) || !ebb_device_synchronize (device, error))
    return FALSE;
  stats = ebb_memory_get_stats (device);
  kept = store != NULL ? ebb_activation_store_get_bytes_held (store) : sum_saved_bytes (model);
  figures[self->host && device != ebb_device_get_cpu () ? KEPT_ON_HOST : KEPT_ON_DEVICE] = (gint64) kept;
  figures[ALL_AFTER] = (gint64) ebb_memory_stats_get_total (stats);
  return TRUE;
}

static EbbTensor *
compute_loss (EbbModule *model,
              const Batch *batch,
              GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  ebb_args_add_tensor (args, NULL, batch->tokens);
  ebb_args_add_tensor (args, "targets", batch->targets);
  if (batch->mask != NULL)
    ebb_args_add_tensor (args, "mask", batch->mask);
  result = ebb_module_call (model, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

static gboolean
run_step (const Way *self,
          EbbModule *model,
          EbbOptimizer *optimizer,
          const Batch *batch,
          gint64 *figures,
          GError **error)
{
  EbbDevice *device = ebb_tensor_get_device (batch->tokens);
  g_autoptr (EbbTensor) loss = compute_loss (model, batch, error);
  g_autoptr (EbbTensor) host_loss = NULL;
  double value;

  if (loss == NULL || !measure_forward (self, model, device, figures, error) || !ebb_tensor_backward (loss, error)
      || !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  host_loss = ebb_to_device (loss, ebb_device_get_cpu (), error);
  if (host_loss == NULL || !ebb_tensor_get_item (host_loss, &value, error))
    return FALSE;
  memcpy (&figures[LOSS], &value, sizeof value);
  return TRUE;
}

static gboolean
run_steps (const Way *self,
           const Options *options,
           const Text *text,
           EbbModule *model,
           EbbDevice *device,
           gint64 *figures,
           GError **error)
{
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, options->lr, error);
  g_autoptr (EbbMemoryStats) stats = NULL;

  if (optimizer == NULL)
    return FALSE;
  /* One row of text first: the optimizer's state exists from the first step on. */
  for (int step = -1; step < options->steps; step++)
    {
      const int rows = step < 0 ? 1 : options->batch;
      const gint64 began = g_get_monotonic_time ();
      g_auto (Batch) batch = { NULL };

      memset (figures, 0, N_FIGURES * sizeof *figures);
      ebb_memory_reset_peaks (device);
      if (!text_get_batch (text, options, MAX (step, 0), rows, device, &batch, error)
          || !run_step (self, model, optimizer, &batch, figures, error))
        return FALSE;
      figures[MICROSECONDS] = g_get_monotonic_time () - began;
    }
  stats = ebb_memory_get_stats (device);
  figures[ACTIVATIONS_PEAK] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  figures[ALL_PEAK] = (gint64) ebb_memory_stats_get_peak_total (stats);
  return TRUE;
}

gboolean
way_run (const Way *self,
         const Options *options,
         const Text *text,
         EbbProcessGroup *group,
         gint64 *figures,
         GError **error)
{
  EbbDevice *device = ebb_device_get (options->device, error);
  g_autoptr (EbbModule) model = NULL;

  if (device == NULL)
    return FALSE;
  model = make_model (self, options, group, device, error);
  return model != NULL && run_steps (self, options, text, model, device, figures, error);
}
