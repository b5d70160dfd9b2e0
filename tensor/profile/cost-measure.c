/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Measuring the launches of a table: each a few times, on memory that is as cold as in the step; the median counts. */
#include "tensor/profile/cost-private.h"

#include "tensor/n-threads-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/profile/rerun-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

#include <stdlib.h>

#define LEAST_RUNS 3
#define MOST_RUNS 15
#define ENOUGH_SECONDS 10e-3  /* of all runs of a launch */
#define LONGEST_SECONDS 50e-3 /* of one run: longer launches leave rows out */
#define BATCH 4               /* launches that a device with queues gets at a time */

static double
get_now (void)
{
  return (double) ebb_profiler_get_time () * 1e-9;
}

/* -- one launch ---------------------------------------------------------------------------------------------------- */

/* The seconds of one launch, with its operands moved. */
static gboolean
time_once (EbbCostRun *run,
           double *seconds,
           GError **error)
{
  EbbDevice *device = run->memory->device;
  const EbbBackend *backend = device->backend;
  guint n = backend->launch != NULL ? BATCH : 1;
  double began;

  if (backend->time_launches != NULL)
    {
      ebb_cost_run_move (run);
      return ebb_rerun_time_on_device (device, &run->launch, 1, seconds, error);
    }
  began = get_now ();
  for (guint i = 0; i < n; i++)
    {
      /* Moving takes next to nothing. */
      ebb_cost_run_move (run);
      if (!ebb_device_launch (device, &run->launch, error))
        return FALSE;
    }
  if (backend->synchronize != NULL && !backend->synchronize (device->index, error))
    return FALSE;
  *seconds = (get_now () - began) / n;
  return TRUE;
}

static gboolean
time_run (EbbCostRun *run,
          double *seconds,
          GError **error)
{
  double times[MOST_RUNS], sum = 0;
  guint n = 0;

  while (n < LEAST_RUNS || (n < MOST_RUNS && sum < ENOUGH_SECONDS))
    {
      if (!time_once (run, &times[n], error))
        return FALSE;
      sum += times[n++];
    }
  *seconds = ebb_rerun_take_median (times, n);
  return TRUE;
}

/* With @share of the rows. The first run, which counts as @first alone, makes what the kernel keeps for this shape. */
static gboolean
time_share (EbbCostMemory *memory,
            const EbbCostLaunch *cost,
            double share,
            gboolean only_first,
            double *seconds,
            double *got_share,
            GError **error)
{
  EbbCostRun run;
  double first = 0;
  gboolean ok = ebb_cost_run_init (&run, memory, cost, share, error);

  *got_share = run.share;
  *seconds = -1;
  if (ok)
    ok = ebb_rerun_launch (memory->device, &run.launch, error) && time_once (&run, &first, error);
  if (ok && (only_first || first > LONGEST_SECONDS * 4))
    *seconds = first;
  else if (ok)
    ok = time_run (&run, seconds, error);
  ebb_cost_run_clear (&run);
  return ok;
}

/* FALSE without an error: it can't be measured here. */
static gboolean
measure_launch (EbbCostTable *self,
                EbbCostMemory *memory,
                EbbCostLaunch *cost,
                GError **error)
{
  double share = LONGEST_SECONDS / ebb_cost_table_estimate (self, cost), seconds, got;

  /* An estimate may be far too high: a few rows say how many there may be. */
  if (share < 1)
    {
      if (!time_share (memory, cost, share, TRUE, &seconds, &got, error))
        return FALSE;
      share = LONGEST_SECONDS / MAX (seconds / got, 1e-9);
      if (share < got * 1.5 && share > got / 4)
        share = got;
    }
  if (!time_share (memory, cost, MIN (share, 1), FALSE, &seconds, &got, error))
    return FALSE;
  cost->seconds = MAX (seconds / got, 1e-9);
  return TRUE;
}

/* -- the host ------------------------------------------------------------------------------------------------------ */

#define N_HOST_LAUNCHES 200

/* A launch of a few elements. @whole: with all that an op does for it, each time into a tensor of its own. */
static gboolean
time_small_launch (EbbDevice *device,
                   EbbTensor *x,
                   gboolean whole,
                   double *seconds,
                   GError **error)
{
  double began = get_now ();

  for (guint i = 0; i < N_HOST_LAUNCHES; i++)
    {
      g_autoptr (EbbTensor) y = NULL;
      EbbLaunch launch;

      if (whole)
        y = ebb_tensor_new_uninitialized (x->view.shape, 1, EBB_DTYPE_F32, device, error);
      if (whole && y == NULL)
        return FALSE;
      ebb_launch_init (&launch, EBB_KERNEL_BINARY);
      launch.params.binary.op = EBB_BINARY_MUL;
      ebb_launch_input (&launch, x);
      ebb_launch_input (&launch, x);
      ebb_launch_output (&launch, whole ? y : x);
      if (whole ? !ebb_launch (device, &launch, error) : !ebb_device_launch (device, &launch, error))
        return FALSE;
    }
  *seconds = (get_now () - began) / N_HOST_LAUNCHES;
  return ebb_device_synchronize (device, error);
}

/* What a launch costs the host beside the kernel; of a device with queues, what enqueueing it costs. The node of the
 * graph and the module's call are about as much again. */
static gboolean
measure_host (EbbCostTable *self,
              GError **error)
{
  const gint64 n = 16;
  g_autoptr (EbbTensor) x = ebb_tensor_new_uninitialized (&n, 1, EBB_DTYPE_F32, self->device, error);
  gboolean has_queues = self->device->backend->launch != NULL;
  double whole, kernel = 0;

  if (x == NULL || !ebb_rerun_fill_random (self->device, &x->view, 1, error)
      || !time_small_launch (self->device, x, TRUE, &whole, error)
      || !time_small_launch (self->device, x, TRUE, &whole, error)
      || !time_small_launch (self->device, x, FALSE, &kernel, error))
    return FALSE;
  self->host_seconds = MAX (has_queues ? whole : 2 * (whole - kernel), 1e-8);
  return TRUE;
}

/* -- all of them --------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbCostLaunch *launch;
  double seconds;
} Candidate;

static int
compare_candidates (const void *a,
                    const void *b)
{
  const Candidate *x = a, *y = b;

  return x->seconds != y->seconds ? (x->seconds < y->seconds ? 1 : -1)
                                  : (x->launch->key < y->launch->key ? -1 : x->launch->key > y->launch->key);
}

/* Those without a figure, the longest first. */
static Candidate *
list_candidates (EbbCostTable *self,
                 guint *n_candidates)
{
  Candidate *candidates = g_new (Candidate, self->launches->len);
  guint n = 0;

  for (guint i = 0; i < self->launches->len; i++)
    {
      EbbCostLaunch *launch = ebb_cost_table_get_launch (self, i);

      if (launch->seconds < 0)
        candidates[n++] =
            (Candidate){ launch, (double) launch->count * ebb_cost_table_estimate (self, launch) };
    }
  qsort (candidates, n, sizeof (Candidate), compare_candidates);
  *n_candidates = n;
  return candidates;
}

static void
remember (EbbCostTable *self,
          guint64 key,
          double seconds)
{
  g_hash_table_replace (self->known, g_memdup2 (&key, sizeof key), g_memdup2 (&seconds, sizeof seconds));
}

static gboolean
measure_all (EbbCostTable *self,
             double end,
             guint64 max_bytes,
             EbbCostProgress progress,
             gpointer user_data,
             GError **error)
{
  guint n_candidates, n_measured = ebb_cost_table_get_n_measured (self);
  g_autofree Candidate *candidates = list_candidates (self, &n_candidates);
  EbbCostMemory memory;
  gboolean ok = TRUE;

  if (n_candidates == 0 || get_now () >= end)
    return TRUE;
  if (!ebb_cost_memory_init (&memory, self->device, self->cache_bytes, max_bytes, error))
    return FALSE;
  for (guint i = 0; i < n_candidates && ok && get_now () < end; i++)
    {
      EbbCostLaunch *launch = candidates[i].launch;
      g_autoptr (GError) local_error = NULL;

      if (measure_launch (self, &memory, launch, &local_error))
        {
          remember (self, launch->key, launch->seconds);
          n_measured++;
        }
      else if (local_error != NULL)
        {
          g_propagate_prefixed_error (error, g_steal_pointer (&local_error), "cost of kernel %s: ",
                                      ebb_kernel_get_name (launch->kernel));
          ok = FALSE;
        }
      if (progress != NULL)
        progress (n_measured, self->launches->len, user_data);
    }
  ebb_cost_memory_clear (&memory);
  return ok;
}

gboolean
ebb_cost_table_measure (EbbCostTable *self,
                        double max_seconds,
                        guint64 max_bytes,
                        EbbCostProgress progress,
                        gpointer user_data,
                        GError **error)
{
  const EbbModes outer = ebb_modes_enter_internal ();
  EbbMemoryAccount *account = ebb_thread.account;
  struct _EbbProfiler *profiler = ebb_thread.profiler;
  const int n_threads = ebb_cpu_get_n_threads ();
  const double end = get_now () + max_seconds;
  const guint n_known = g_hash_table_size (self->known);
  const double host_seconds = self->host_seconds;
  gboolean ok;

  /* Neither a dry run's account nor a profiler is to see any of it. */
  ebb_thread.account = NULL;
  ebb_thread.profiler = NULL;
  ebb_cpu_set_n_threads (self->n_threads);
  ok = (host_seconds >= 0 || measure_host (self, error))
       && measure_all (self, end, max_bytes > 0 ? max_bytes : EBB_COST_MAX_BYTES, progress, user_data, error);
  ebb_cpu_set_n_threads (n_threads);
  ebb_thread.account = account;
  ebb_thread.profiler = profiler;
  ebb_modes_leave (&outer);
  if (g_hash_table_size (self->known) != n_known || self->host_seconds != host_seconds)
    ebb_cost_file_save (self);
  return ok;
}
