/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Measuring the launches of a table: each a few times, on memory that is as cold as in the step; the median counts.
 * Where other programs took the processor meanwhile, the launch is timed again. If they take it each time, the least of
 * all times counts, and the launch is measured again when the machine is quiet. */
#include "tensor/profile/cost-private.h"

#include "tensor/error-private.h"
#include "tensor/n-threads-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/profile/rerun-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/checksum-private.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define LEAST_RUNS 3
#define MOST_RUNS 15
#define ENOUGH_SECONDS 10e-3  /* of all runs of a launch */
#define LONGEST_SECONDS 50e-3 /* of one run: longer launches leave rows out */
#define GROWTH 4              /* of the rows of a launch that leaves some out, from one try to the next */
#define BATCH 4               /* launches that a device with queues gets at a time */
#define MOST_TRIES 3          /* of timing a launch while other programs run */
#define LOST_SHARE 0.05       /* of a time that other programs may take */

static double
get_now (void)
{
  return (double) ebb_profiler_get_time () * 1e-9;
}

/* -- other programs ------------------------------------------------------------------------------------------------ */

/* Whether times of kernels on @self's device grow with what other programs do: on the CPU, as long as its threads don't
 * wait for each other's cores. */
static gboolean
can_be_disturbed (EbbCostTable *self)
{
  return self->device->backend->launch == NULL && self->n_threads <= (int) g_get_num_processors ();
}

/* The seconds for which threads of this process were ready to run and had no core, so far: the second number of each
 * thread's schedstat (Documentation/scheduler/sched-stats.rst of Linux). 0 where the kernel doesn't count them. */
static double
count_seconds_without_core (void)
{
  g_autoptr (GDir) threads = g_dir_open ("/proc/self/task", 0, NULL);
  guint64 sum = 0;

  for (const char *name; threads != NULL && (name = g_dir_read_name (threads)) != NULL;)
    {
      g_autofree char *path = g_strdup_printf ("/proc/self/task/%s/schedstat", name);
      g_autofree char *text = NULL;
      guint64 ran, waited;

      if (g_file_get_contents (path, &text, NULL, NULL)
          && sscanf (text, "%" G_GUINT64_FORMAT " %" G_GUINT64_FORMAT, &ran, &waited) == 2)
        sum += waited;
    }
  return (double) sum * 1e-9;
}

double (*ebb_cost_get_lost_seconds) (void) = count_seconds_without_core;

typedef struct
{
  gboolean counts;
  double before;
} Disturbance;

static Disturbance
disturbance_begin (EbbCostTable *self)
{
  const gboolean counts = can_be_disturbed (self);

  return (Disturbance){ counts, counts ? ebb_cost_get_lost_seconds () : 0 };
}

/* Whether other programs took much of @seconds since then. */
static gboolean
disturbance_end (const Disturbance *self,
                 double seconds)
{
  return self->counts && ebb_cost_get_lost_seconds () - self->before > seconds * LOST_SHARE;
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

/* Also returns the least of all times, and their sum. */
static gboolean
time_runs (EbbCostRun *run,
           double *median,
           double *least,
           double *sum,
           GError **error)
{
  double times[MOST_RUNS];
  guint n = 0;

  *sum = 0;
  *least = G_MAXDOUBLE;
  while (n < LEAST_RUNS || (n < MOST_RUNS && *sum < ENOUGH_SECONDS))
    {
      if (!time_once (run, &times[n], error))
        return FALSE;
      *least = MIN (*least, times[n]);
      *sum += times[n++];
    }
  *median = ebb_rerun_take_median (times, n);
  return TRUE;
}

static gboolean
time_undisturbed (EbbCostTable *self,
                  EbbCostRun *run,
                  EbbCostFigure *figure,
                  GError **error)
{
  double least_of_all = G_MAXDOUBLE;

  for (guint i = 0; i < MOST_TRIES; i++)
    {
      const Disturbance disturbance = disturbance_begin (self);
      double median, least, sum;

      if (!time_runs (run, &median, &least, &sum, error))
        return FALSE;
      figure->is_disturbed = disturbance_end (&disturbance, sum);
      least_of_all = MIN (least_of_all, least);
      figure->seconds = figure->is_disturbed ? least_of_all : median;
      if (!figure->is_disturbed)
        break;
    }
  return TRUE;
}

/* With @share of the rows. The first run, which counts as @first alone, makes what the kernel keeps for this shape. */
static gboolean
time_share (EbbCostTable *self,
            EbbCostMemory *memory,
            const EbbCostLaunch *cost,
            double share,
            gboolean only_first,
            EbbCostFigure *figure,
            double *got_share,
            GError **error)
{
  EbbCostRun run;
  Disturbance disturbance;
  gboolean ok = ebb_cost_run_init (&run, memory, cost, share, error);

  *got_share = run.share;
  ok = ok && ebb_rerun_launch (memory->device, &run.launch, error);
  disturbance = disturbance_begin (self);
  ok = ok && time_once (&run, &figure->seconds, error);
  figure->is_disturbed = disturbance_end (&disturbance, figure->seconds);
  if (ok && !only_first && figure->seconds <= LONGEST_SECONDS * 4)
    ok = time_undisturbed (self, &run, figure, error);
  ebb_cost_run_clear (&run);
  return ok;
}

/* FALSE without an error: it can't be measured here. */
static gboolean
measure_launch (EbbCostTable *self,
                EbbCostMemory *memory,
                const EbbCostLaunch *cost,
                EbbCostFigure *figure,
                GError **error)
{
  double share = LONGEST_SECONDS / ebb_cost_table_estimate (self, cost), got;

  /* An estimate may be far too high, and so is the time of a few rows times their number, where a launch has a cost of
   * its own: more rows are taken as long as they take little time. */
  while (share < 1)
    {
      if (!time_share (self, memory, cost, share, TRUE, figure, &got, error))
        return FALSE;
      if (figure->seconds >= LONGEST_SECONDS / GROWTH || got < share / 2)
        {
          share = LONGEST_SECONDS / MAX (figure->seconds / got, 1e-9);
          if (share < got * 1.5 && share > got / GROWTH)
            share = got;
          break;
        }
      share = got * GROWTH;
    }
  if (!time_share (self, memory, cost, MIN (share, 1), FALSE, figure, &got, error))
    return FALSE;
  figure->seconds = MAX (figure->seconds / got, 1e-9);
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
  double whole = G_MAXDOUBLE, kernel = G_MAXDOUBLE;

  if (x == NULL || !ebb_rerun_fill_random (self->device, &x->view, 1, error))
    return FALSE;
  for (guint i = 0; i < MOST_TRIES; i++)
    {
      double seconds[2];

      if (!time_small_launch (self->device, x, TRUE, &seconds[0], error)
          || !time_small_launch (self->device, x, FALSE, &seconds[1], error))
        return FALSE;
      whole = MIN (whole, seconds[0]);
      kernel = MIN (kernel, seconds[1]);
    }
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

/* Those without a figure, or those with a disturbed one: the longest first. */
static Candidate *
list_candidates (EbbCostTable *self,
                 gboolean disturbed,
                 guint *n_candidates)
{
  Candidate *candidates = g_new (Candidate, self->launches->len);
  guint n = 0;

  for (guint i = 0; i < self->launches->len; i++)
    {
      EbbCostLaunch *launch = ebb_cost_table_get_launch (self, i);
      const double seconds = launch->figure.seconds;

      if (disturbed ? launch->figure.is_disturbed : seconds < 0)
        candidates[n++] = (Candidate){ launch, (double) launch->count
                                                   * (disturbed ? seconds : ebb_cost_table_estimate (self, launch)) };
    }
  qsort (candidates, n, sizeof (Candidate), compare_candidates);
  *n_candidates = n;
  return candidates;
}

/* What is going on while launches are measured. */
typedef struct
{
  EbbCostMemory memory;
  double end;
  gboolean changes_file;
} Measuring;

/* Of two disturbed figures the lower one is nearer. */
static void
take_figure (EbbCostTable *self,
             Measuring *measuring,
             EbbCostLaunch *launch,
             EbbCostFigure figure)
{
  if (launch->figure.seconds >= 0 && figure.is_disturbed && figure.seconds >= launch->figure.seconds)
    return;
  launch->figure = figure;
  g_hash_table_replace (self->known, g_memdup2 (&launch->key, sizeof launch->key),
                        g_memdup2 (&figure, sizeof figure));
  measuring->changes_file = TRUE;
}

static gboolean
measure_candidates (EbbCostTable *self,
                    Measuring *measuring,
                    gboolean disturbed,
                    GError **error)
{
  guint n_candidates;
  g_autofree Candidate *candidates = list_candidates (self, disturbed, &n_candidates);

  for (guint i = 0; i < n_candidates && get_now () < measuring->end; i++)
    {
      EbbCostLaunch *launch = candidates[i].launch;
      EbbCostFigure figure = { -1, FALSE };
      g_autoptr (GError) local_error = NULL;

      if (measure_launch (self, &measuring->memory, launch, &figure, &local_error))
        take_figure (self, measuring, launch, figure);
      else if (local_error != NULL)
        {
          g_propagate_prefixed_error (error, g_steal_pointer (&local_error), "cost of kernel %s: ",
                                      ebb_kernel_get_name (launch->kernel));
          return FALSE;
        }
      ebb_timing_notify (ebb_cost_table_get_n_measured (self), self->launches->len);
      if (disturbed && figure.is_disturbed)
        break;
    }
  return TRUE;
}

static gboolean
measure_all (EbbCostTable *self,
             Measuring *measuring,
             guint64 max_bytes,
             GError **error)
{
  gboolean ok;

  if (ebb_cost_table_get_n_measured (self) == self->launches->len && ebb_cost_table_get_n_disturbed (self) == 0)
    return TRUE;
  if (!ebb_cost_memory_init (&measuring->memory, self->device, self->cache_bytes, max_bytes, error))
    return FALSE;
  ebb_timing_notify (ebb_cost_table_get_n_measured (self), self->launches->len);
  ok = measure_candidates (self, measuring, FALSE, error) && measure_candidates (self, measuring, TRUE, error);
  ebb_timing_notify (0, 0);
  ebb_cost_memory_clear (&measuring->memory);
  return ok;
}

/* What a thread has aside while launches run: neither a dry run's account nor a profiler is to see any of it. */
typedef struct
{
  EbbModes modes;
  EbbMemoryAccount *account;
  EbbThreadObserver *observer;
  int n_threads;
} Outer;

static void
outer_leave (Outer *self,
             const EbbCostTable *table)
{
  *self = (Outer){ ebb_modes_enter_internal (), ebb_thread.account, ebb_thread.observer, ebb_cpu_get_n_threads () };
  ebb_thread.account = NULL;
  ebb_thread.observer = NULL;
  ebb_cpu_set_n_threads (table->n_threads);
}

static void
outer_return (const Outer *self)
{
  ebb_cpu_set_n_threads (self->n_threads);
  ebb_thread.account = self->account;
  ebb_thread.observer = self->observer;
  ebb_modes_leave (&self->modes);
}

gboolean
ebb_cost_table_measure (EbbCostTable *self,
                        double max_seconds,
                        guint64 max_bytes,
                        GError **error)
{
  const double host_seconds = self->host_seconds;
  Measuring measuring = { .end = get_now () + max_seconds };
  gboolean ok;
  Outer outer;

  outer_leave (&outer, self);
  ok = (host_seconds >= 0 || measure_host (self, error))
       && measure_all (self, &measuring, max_bytes > 0 ? max_bytes : EBB_COST_MAX_BYTES, error);
  outer_return (&outer);
  if (measuring.changes_file || self->host_seconds != host_seconds)
    ebb_cost_file_save (self);
  return ok;
}

/* -- products ------------------------------------------------------------------------------------------------------ */

/* Addresses of zeros that are not resident until they are written. */
typedef struct
{
  char *data;
  gsize size;
} Zeros;

static gboolean
zeros_init (Zeros *self,
            gsize size,
            GError **error)
{
  self->size = MAX (size, 1);
  self->data = mmap (NULL, self->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (self->data == MAP_FAILED)
    {
      self->data = NULL;
      return ebb_fail (error, EBB_ERROR_NO_MEMORY, "no address space for %" G_GSIZE_FORMAT " bytes of operands", size);
    }
  madvise (self->data, self->size, MADV_NOHUGEPAGE);
  return TRUE;
}

static void
zeros_clear (Zeros *self)
{
  if (self->data != NULL)
    munmap (self->data, self->size);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Zeros, zeros_clear)

static gsize
get_extent (const EbbCostLaunch *cost,
            gboolean of_outputs)
{
  gsize most = 0;

  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    if (cost->views[k].n_dims >= 0 && (k >= EBB_LAUNCH_MAX_INPUTS) == of_outputs)
      most = MAX (most, ebb_rerun_get_extent (&cost->views[k]));
  return most;
}

/* Pages that threads of this process have touched for the first time so far, in bytes. */
static guint64
count_touched_bytes (void)
{
  struct rusage usage;

  return getrusage (RUSAGE_SELF, &usage) == 0 ? (guint64) usage.ru_minflt * (guint64) sysconf (_SC_PAGESIZE) : 0;
}

/* All inputs are the same zeros. The second run finds code and operands there, so that the pages which it touches first
 * are those that the library takes for the run, and gives back. */
static gboolean
run_product (EbbCostTable *self,
             const EbbCostLaunch *cost,
             const Zeros *inputs,
             const Zeros *outputs,
             guint64 *n_taken,
             GError **error)
{
  EbbView views[EBB_LAUNCH_MAX_OPERANDS];
  EbbLaunch launch;
  guint64 before;
  gboolean ok;

  memcpy (views, cost->views, sizeof views);
  ebb_cost_launch_init (cost, views, &launch);
  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    views[k].data = k < EBB_LAUNCH_MAX_INPUTS ? inputs->data : outputs->data;
  ok = ebb_rerun_launch (self->device, &launch, error);
  before = count_touched_bytes ();
  ok = ok && ebb_rerun_launch (self->device, &launch, error);
  *n_taken = count_touched_bytes () - before;
  madvise (outputs->data, outputs->size, MADV_DONTNEED);
  return ok;
}

/* The bytes that products took while they ran, by their keys: each runs once in a process, with each number of threads.
 */
static pthread_mutex_t products_lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *products; /* guint64 to guint64 */

static guint64
get_product_key (const EbbCostTable *self,
                 const EbbCostLaunch *cost)
{
  return ebb_hash_add (cost->key, (guint64) self->n_threads);
}

static gboolean
find_product (const EbbCostTable *self,
              const EbbCostLaunch *cost,
              guint64 *n_taken)
{
  const guint64 key = get_product_key (self, cost);
  const guint64 *found;

  pthread_mutex_lock (&products_lock);
  found = products != NULL ? g_hash_table_lookup (products, &key) : NULL;
  *n_taken = found != NULL ? *found : 0;
  pthread_mutex_unlock (&products_lock);
  return found != NULL;
}

static void
note_product (const EbbCostTable *self,
              const EbbCostLaunch *cost,
              guint64 n_taken)
{
  const guint64 key = get_product_key (self, cost);

  pthread_mutex_lock (&products_lock);
  if (products == NULL)
    products = g_hash_table_new_full (g_int64_hash, g_int64_equal, g_free, g_free);
  g_hash_table_replace (products, g_memdup2 (&key, sizeof key), g_memdup2 (&n_taken, sizeof n_taken));
  pthread_mutex_unlock (&products_lock);
}

gboolean
ebb_cost_table_run_products (EbbCostTable *self,
                             guint64 max_bytes,
                             guint64 *n_taken,
                             GError **error)
{
  g_auto (Zeros) inputs = { 0 }, outputs = { 0 };
  gsize n_in = 0, n_out = 0;
  gboolean ok;
  Outer outer;

  *n_taken = 0;
  for (guint i = 0; i < self->launches->len; i++)
    {
      const EbbCostLaunch *cost = ebb_cost_table_get_launch (self, i);

      if (cost->kernel != EBB_KERNEL_MATMUL || get_extent (cost, TRUE) > max_bytes)
        continue;
      n_in = MAX (n_in, get_extent (cost, FALSE));
      n_out = MAX (n_out, get_extent (cost, TRUE));
    }
  if (!zeros_init (&inputs, n_in, error) || !zeros_init (&outputs, n_out, error))
    return FALSE;
  outer_leave (&outer, self);
  ok = TRUE;
  for (guint i = 0; ok && i < self->launches->len; i++)
    {
      const EbbCostLaunch *cost = ebb_cost_table_get_launch (self, i);
      guint64 n_bytes;

      if (cost->kernel != EBB_KERNEL_MATMUL || get_extent (cost, TRUE) > max_bytes)
        continue;
      if (!find_product (self, cost, &n_bytes))
        {
          ok = run_product (self, cost, &inputs, &outputs, &n_bytes, error);
          note_product (self, cost, n_bytes);
        }
      *n_taken = MAX (*n_taken, n_bytes);
    }
  outer_return (&outer);
  return ok;
}
