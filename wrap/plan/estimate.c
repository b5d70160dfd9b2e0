/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/plan/estimate.h"

#include "tensor/backend/backend-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/error-private.h"

/* The memory of a training step by a dry run: the second step counts, for which the first has made the optimizer's
 * state. */

#define N_STEPS 2

struct _EbbMemoryEstimate
{
  GObject parent_instance;

  guint64 peaks[EBB_N_PURPOSES], peak_total, host_peak_total, extent;
};

G_DEFINE_FINAL_TYPE (EbbMemoryEstimate, ebb_memory_estimate, G_TYPE_OBJECT)

static void
ebb_memory_estimate_class_init (EbbMemoryEstimateClass *klass)
{
}

static void
ebb_memory_estimate_init (EbbMemoryEstimate *self)
{
}

static gboolean
adopt_all (EbbDryRun *run,
           EbbTensor **tensors,
           guint n,
           EbbDevice *device,
           GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < n; i++)
    ok = ebb_dry_run_adopt (run, tensors[i], device, error);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (tensors[i]);
  g_free (tensors);
  return ok;
}

static gboolean
adopt_model (EbbDryRun *run,
             EbbModule *model,
             EbbDevice *device,
             GError **error)
{
  guint n_parameters, n_buffers;
  EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n_parameters);
  EbbTensor **buffers = ebb_module_get_buffers (model, TRUE, &n_buffers);
  const gboolean ok = adopt_all (run, parameters, n_parameters, device, error);

  return adopt_all (run, buffers, n_buffers, device, ok ? error : NULL) && ok;
}

static gboolean
run_steps (EbbModule *model,
           EbbDevice *device,
           EbbStepFunc step,
           gpointer user_data,
           GError **error)
{
  for (guint i = 0; i < N_STEPS; i++)
    {
      ebb_memory_reset_peaks (device);
      ebb_memory_reset_peaks (NULL);
      if (!step (model, user_data, error))
        {
          if (error != NULL && *error == NULL)
            g_set_error_literal (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the step failed without saying why");
          return FALSE;
        }
    }
  return TRUE;
}

static void
take_counts (EbbMemoryEstimate *self,
             EbbDryRun *run,
             EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
  g_autoptr (EbbMemoryStats) host = ebb_memory_get_stats (NULL);

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    self->peaks[i] = ebb_memory_stats_get_peak (stats, (EbbPurpose) i);
  self->peak_total = ebb_memory_stats_get_peak_total (stats);
  self->host_peak_total = ebb_memory_stats_get_peak_total (host);
  self->extent = ebb_dry_run_get_extent (run, device);
}

/**
 * ebb_memory_estimate_new:
 * @model: the model, whose parameters may be on any device, `meta` too
 * @device: (nullable): the device that the step is to run on; %NULL for the CPU
 * @step: (scope call) (closure user_data): one training step
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Runs @step twice as a dry run on @device: everything happens but the computing, and nothing that is allocated costs
 * memory. Afterwards parameters, gradients and the optimizer's state are as they were.
 *
 * Returns: (transfer full) (nullable): the memory of a step, or %NULL with what @step reports: %EBB_ERROR_DRY_RUN if it
 *   reads values
 */
EbbMemoryEstimate *
ebb_memory_estimate_new (EbbModule *model,
                         EbbDevice *device,
                         EbbStepFunc step,
                         gpointer user_data,
                         GError **error)
{
  EbbMemoryEstimate *self = NULL;
  EbbDryRun *run;
  EbbDryScope outer;

  g_return_val_if_fail (EBB_IS_MODULE (model) && step != NULL, NULL);

  if (error != NULL && *error != NULL)
    return NULL;
  if (device == NULL)
    device = ebb_device_get_cpu ();
  run = ebb_dry_run_new ();
  ebb_dry_run_enter (run, &outer);
  ebb_modes.default_device = device;
  if (adopt_model (run, model, device, error) && run_steps (model, device, step, user_data, error))
    {
      self = g_object_new (EBB_TYPE_MEMORY_ESTIMATE, NULL);
      take_counts (self, run, device);
    }
  ebb_dry_run_leave (run, &outer);
  ebb_dry_run_free (run);
  return self;
}

/**
 * ebb_memory_estimate_get_peak:
 * @self: an estimate
 * @purpose: a purpose
 *
 * Returns: the most bytes of the device that are in use for @purpose at one time, as
 *   ebb_memory_stats_get_peak() would count them in the second step
 */
guint64
ebb_memory_estimate_get_peak (EbbMemoryEstimate *self,
                              EbbPurpose purpose)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self) && (guint) purpose < EBB_N_PURPOSES, 0);

  return self->peaks[purpose];
}

/**
 * ebb_memory_estimate_get_peak_total:
 * @self: an estimate
 *
 * Returns: the most bytes of the device that are in use at one time
 */
guint64
ebb_memory_estimate_get_peak_total (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), 0);

  return self->peak_total;
}

/**
 * ebb_memory_estimate_get_host_peak_total:
 * @self: an estimate
 *
 * Returns: the most bytes of host memory that are in use at one time, by stores for example; on the CPU the same as
 *   ebb_memory_estimate_get_peak_total()
 */
guint64
ebb_memory_estimate_get_host_peak_total (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), 0);

  return self->host_peak_total;
}

/**
 * ebb_memory_estimate_get_extent:
 * @self: an estimate
 *
 * Returns: the bytes that the device's heap takes for the step, with the gaps between blocks
 */
guint64
ebb_memory_estimate_get_extent (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), 0);

  return self->extent;
}
