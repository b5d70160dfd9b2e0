/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/offload-runs.h"

#include <string.h>

/* The first steps allocate, and make oneDNN's primitives. */
#define N_LEFT_OUT 2
#define CALIBRATION_STEPS 3

/* -- the rule ------------------------------------------------------------------------------------------------------ */

/* Floating-point operations of a token in a block of width h over s tokens: products 24 h^2, of which the last 8 h^2
 * are not run again; causal attention 2 s h, which its backward makes once more. */
static void
count_operations (OffloadRuns *self)
{
  const BenchSettings *settings = &self->settings;
  double width = settings->width, context = settings->context, tokens = (double) settings->batch * context;
  double products = 24 * width * width, attention = 2 * context * width;
  double head = 2 * width * settings->vocab;

  self->input_bytes = (guint64) (tokens * width) * sizeof (float);
  self->forward_flop = tokens * (products + attention);
  self->backward_flop = tokens * (products * 2 / 3 + attention + 2 * products + 2.5 * attention);
  self->step_flop = settings->layers * (self->forward_flop + self->backward_flop) + tokens * 3 * head;
}

double
offload_runs_predict (OffloadRuns *self,
                      const OffloadRun *run)
{
  double copy, forward, backward, step = self->step_flop / self->flop_per_second;

  if (run->bandwidth == 0)
    return 1;
  copy = (double) self->input_bytes / run->bandwidth;
  forward = self->forward_flop / self->flop_per_second;
  backward = self->backward_flop / self->flop_per_second;
  return 1 + (self->settings.layers - 1) * (MAX (copy - forward, 0) + MAX (copy - backward, 0)) / step;
}

/* -- making -------------------------------------------------------------------------------------------------------- */

static void
run_free (gpointer data)
{
  OffloadRun *self = data;

  g_clear_pointer (&self->training, bench_training_free);
  g_clear_object (&self->hooks);
  g_array_unref (self->seconds);
  g_free (self);
}

OffloadRuns *
offload_runs_new (const BenchSettings *settings,
                  int prefetch,
                  const char *folder)
{
  OffloadRuns *self = g_new0 (OffloadRuns, 1);

  self->settings = *settings;
  self->settings.strategy = "full";
  self->prefetch = prefetch;
  self->folder = folder;
  self->runs = g_ptr_array_new_with_free_func (run_free);
  count_operations (self);
  return self;
}

void
offload_runs_free (OffloadRuns *self)
{
  g_ptr_array_unref (self->runs);
  g_free (self);
}

void
offload_runs_add (OffloadRuns *self,
                  const char *store,
                  gboolean on_sim,
                  double factor)
{
  OffloadRun *run = g_new0 (OffloadRun, 1);

  run->store = store;
  run->on_sim = on_sim;
  run->factor = factor;
  run->seconds = g_array_new (FALSE, FALSE, sizeof (double));
  g_ptr_array_add (self->runs, run);
}

static OffloadRun *
get_run (OffloadRuns *self,
         guint i)
{
  return g_ptr_array_index (self->runs, i);
}

/* A device reads its settings when it is opened, so each bandwidth has a device of its own. */
static EbbDevice *
open_sim (double bandwidth,
          GError **error)
{
  static int n_opened;
  g_autofree char *name = g_strdup_printf ("sim:%d", 1 + n_opened++);
  g_autofree char *text = g_strdup_printf ("%.0f", bandwidth);

  if (bandwidth > 0)
    g_setenv ("EBB_SIM_BANDWIDTH", text, TRUE);
  else
    g_unsetenv ("EBB_SIM_BANDWIDTH");
  return ebb_device_get (name, error);
}

static EbbSavedTensorHooks *
make_store (OffloadRuns *self,
            const OffloadRun *run,
            GError **error)
{
  if (strcmp (run->store, "keep") == 0)
    return ebb_keep_store_new ();
  if (strcmp (run->store, "host") == 0)
    return ebb_host_store_new ();
  if (strcmp (run->store, "contiguous") == 0)
    return ebb_contiguous_store_new ((guint) self->settings.layers, NULL, error);
  return ebb_disk_store_new (self->folder, error);
}

static gboolean
make_training (OffloadRuns *self,
               OffloadRun *run,
               GError **error)
{
  BenchSettings settings = self->settings;

  run->hooks = make_store (self, run, error);
  if (run->hooks == NULL)
    return FALSE;
  g_object_set (run->hooks, "least-size", (guint64) 0, NULL);
  g_object_set (run->hooks, "prefetch", (guint) self->prefetch, NULL);
  settings.device = run->device;
  settings.store = run->hooks;
  run->training = bench_training_new (&settings, error);
  return run->training != NULL;
}

/* -- running ------------------------------------------------------------------------------------------------------- */

static gboolean
take_step (OffloadRun *run,
           gboolean counts,
           GError **error)
{
  double seconds[BENCH_N_PARTS], loss;

  if (!bench_training_step (run->training, seconds, &loss, error))
    return FALSE;
  if (counts)
    g_array_append_val (run->seconds, seconds[BENCH_STEP]);
  return TRUE;
}

/* The bytes of a training besides parameters, gradients and moments. */
static guint64
get_other_bytes (EbbMemoryStats *stats,
                 guint64 total)
{
  for (int i = EBB_PURPOSE_PARAMETER; i <= EBB_PURPOSE_OPTIMIZER; i++)
    total -= ebb_memory_stats_get_current (stats, (EbbPurpose) i);
  return total;
}

static gboolean
warm_up (OffloadRun *run,
         GError **error)
{
  double seconds[BENCH_N_PARTS];

  for (int i = 0; i < N_LEFT_OUT; i++)
    if (!bench_training_step (run->training, seconds, &run->losses[i], error))
      return FALSE;
  return TRUE;
}

/* Measures how fast this machine computes, by a step of the first run. */
static gboolean
calibrate (OffloadRuns *self,
           OffloadRun *run,
           GError **error)
{
  double seconds[CALIBRATION_STEPS];

  for (int i = 0; i < CALIBRATION_STEPS; i++)
    {
      double parts[BENCH_N_PARTS];

      if (!bench_training_step (run->training, parts, NULL, error))
        return FALSE;
      seconds[i] = parts[BENCH_STEP];
    }
  self->flop_per_second = self->step_flop / bench_median (seconds, CALIBRATION_STEPS);
  self->to_host = (double) self->input_bytes * self->flop_per_second / self->forward_flop;
  self->from_host = (double) self->input_bytes * self->flop_per_second / self->backward_flop;
  return TRUE;
}

/* Counters of one step, after which nothing moves any more. Gradients are there before it: in a step that makes them,
 * the most may be in use when the last ones come, and say nothing of what was stored. */
static gboolean
count_step (OffloadRun *run,
            guint64 before,
            GError **error)
{
  EbbActivationStore *store = EBB_ACTIVATION_STORE (run->hooks);
  g_autoptr (EbbMemoryStats) stats = NULL;

  if (!bench_training_accumulate (run->training, error) || !ebb_activation_store_synchronize (store, error))
    return FALSE;
  ebb_activation_store_reset_stats (store);
  ebb_memory_reset_peaks (run->device);
  if (!bench_training_accumulate (run->training, error) || !ebb_activation_store_synchronize (store, error))
    return FALSE;
  stats = ebb_memory_get_stats (run->device);
  run->put = ebb_activation_store_get_bytes_put (store);
  run->got = ebb_activation_store_get_bytes_got (store);
  run->moving = ebb_activation_store_get_seconds_moving (store);
  run->waited = ebb_activation_store_get_seconds_waited (store);
  run->stored = ebb_activation_store_get_bytes_peak (store);
  run->peak = get_other_bytes (stats, ebb_memory_stats_get_peak_total (stats)) - before;
  return take_step (run, FALSE, error);
}

static gboolean
begin_run (OffloadRuns *self,
           OffloadRun *run,
           GError **error)
{
  g_autoptr (EbbMemoryStats) stats = NULL;
  guint64 before;

  run->bandwidth = run->factor * self->to_host;
  run->device = run->on_sim ? open_sim (run->bandwidth, error) : ebb_device_get_cpu ();
  if (run->device == NULL)
    return FALSE;
  stats = ebb_memory_get_stats (run->device);
  before = get_other_bytes (stats, ebb_memory_stats_get_total (stats));
  return make_training (self, run, error) && warm_up (run, error)
         && (run != get_run (self, 0) || calibrate (self, run, error)) && count_step (run, before, error);
}

static gboolean
take_turns (OffloadRuns *self,
            int rounds,
            int steps,
            GError **error)
{
  for (int round = 0; round < rounds; round++)
    for (guint i = 0; i < self->runs->len; i++)
      {
        guint turn = round % 2 == 0 ? i : self->runs->len - 1 - i;

        /* The first step doesn't count, because another run has filled the caches. */
        for (int step = -1; step < steps; step++)
          if (!take_step (get_run (self, turn), step >= 0, error))
            return FALSE;
      }
  return TRUE;
}

/* -- what came of it ----------------------------------------------------------------------------------------------- */

static double
get_median (const GArray *numbers)
{
  g_autofree double *sorted = g_memdup2 (numbers->data, numbers->len * sizeof (double));

  return bench_median (sorted, numbers->len);
}

static double
get_ratio (const OffloadRun *run,
           const OffloadRun *base)
{
  g_autofree double *ratios = g_new (double, run->seconds->len);

  for (guint i = 0; i < run->seconds->len; i++)
    ratios[i] = g_array_index (run->seconds, double, i) / g_array_index (base->seconds, double, i);
  return bench_median (ratios, run->seconds->len);
}

const OffloadRun *
offload_runs_get_keep (OffloadRuns *self,
                       gboolean on_sim)
{
  for (guint i = 0; i < self->runs->len; i++)
    if (get_run (self, i)->on_sim == on_sim && strcmp (get_run (self, i)->store, "keep") == 0)
      return get_run (self, i);
  return NULL;
}

static gboolean
check_losses (OffloadRuns *self,
              GError **error)
{
  for (guint i = 1; i < self->runs->len; i++)
    if (strcmp (get_run (self, i)->store, "bf16") != 0
        && memcmp (get_run (self, i)->losses, get_run (self, 0)->losses, sizeof get_run (self, 0)->losses) != 0)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE, "%s on %s: the losses are not those of keep",
                     get_run (self, i)->store, ebb_device_get_name (get_run (self, i)->device));
        return FALSE;
      }
  return TRUE;
}

/* One more step with its queues recorded. */
static char *
record_step (OffloadRun *run,
             GError **error)
{
  if (!ebb_stream_trace_start (run->device, error) || !take_step (run, FALSE, error))
    return NULL;
  return ebb_stream_trace_stop (run->device, error);
}

static gboolean
measure_run (OffloadRun *run,
             GError **error)
{
  g_autofree char *trace = NULL;

  if (!run->on_sim)
    return TRUE;
  trace = record_step (run, error);
  return trace != NULL && stream_times_read (&run->queues, trace, error);
}

gboolean
offload_runs_trace (OffloadRuns *self,
                    const char *path,
                    GError **error)
{
  OffloadRun *run = NULL;

  for (guint i = 0; i < self->runs->len; i++)
    if (get_run (self, i)->on_sim)
      run = get_run (self, i);
  if (run == NULL)
    {
      g_set_error_literal (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED, "--trace: the CPU has no queues");
      return FALSE;
    }
  return ebb_stream_trace_start (run->device, error) && take_step (run, FALSE, error)
         && ebb_stream_trace_save (run->device, path, error);
}

gboolean
offload_runs_measure (OffloadRuns *self,
                      int rounds,
                      int steps,
                      GError **error)
{
  for (guint i = 0; i < self->runs->len; i++)
    if (!begin_run (self, get_run (self, i), error))
      return FALSE;
  if (!check_losses (self, error) || !take_turns (self, rounds, steps, error))
    return FALSE;
  for (guint i = 0; i < self->runs->len; i++)
    {
      OffloadRun *run = get_run (self, i);

      if (!measure_run (run, error))
        return FALSE;
      run->median = get_median (run->seconds);
      run->ratio = get_ratio (run, offload_runs_get_keep (self, run->on_sim));
    }
  return TRUE;
}
