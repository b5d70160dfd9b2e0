/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/plan/estimate-private.h"

#include "nn/optim/memory-names.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/profile/cost-private.h"
#include "tensor/profile/timeline-private.h"

/* The memory of a training step by a dry run: the second step counts, for which the first has made the optimizer's
 * state. Where more bytes are in use after it than before, a third one shows whether each step leaves some. */

/* Of another device than the estimate's: its time isn't counted. */
#define NO_COST G_MAXUINT
#define N_HOLDERS 10
#define N_LEAKS 3 /* whose makers are named */

struct _EbbMemoryEstimate
{
  GObject parent_instance;

  EbbDevice *device;
  guint64 peaks[EBB_N_PURPOSES], peak_total, host_peak_total, extent;
  EbbCostTable *costs;
  GArray *launches; /* guint: of the second step, in the table; or NO_COST */
  EbbMemoryTimeline *timeline;
  guint64 leaked; /* bytes by which each step leaves more in use */
  char *leak;     /* NULL: none */
};

G_DEFINE_FINAL_TYPE (EbbMemoryEstimate, ebb_memory_estimate, G_TYPE_OBJECT)

static void
ebb_memory_estimate_finalize (GObject *object)
{
  EbbMemoryEstimate *self = EBB_MEMORY_ESTIMATE (object);

  g_clear_pointer (&self->costs, ebb_cost_table_free);
  g_array_unref (self->launches);
  g_clear_object (&self->timeline);
  g_free (self->leak);
  G_OBJECT_CLASS (ebb_memory_estimate_parent_class)->finalize (object);
}

static void
ebb_memory_estimate_class_init (EbbMemoryEstimateClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = ebb_memory_estimate_finalize;
}

static void
ebb_memory_estimate_init (EbbMemoryEstimate *self)
{
  self->launches = g_array_new (FALSE, FALSE, sizeof (guint));
  self->timeline = ebb_memory_timeline_new (NULL);
}

/* -- what is watched ----------------------------------------------------------------------------------------------- */

/* Takes the launches in their order, which is that of the timeline. */
typedef struct
{
  EbbMemoryObserver observer; /* first */
  EbbMemoryEstimate *estimate;
} Watch;

static void
note_launch (EbbMemoryObserver *observer,
             EbbDevice *device,
             const EbbLaunch *launch)
{
  EbbMemoryEstimate *self = ((Watch *) observer)->estimate;
  const guint index = device == self->device ? ebb_cost_table_add (self->costs, launch) : NO_COST;

  g_array_append_val (self->launches, index);
}

static void
append_all (GPtrArray *all,
            EbbTensor **tensors,
            guint n)
{
  for (guint i = 0; i < n; i++)
    g_ptr_array_add (all, tensors[i]);
  g_free (tensors);
}

static gboolean
computes_any (GPtrArray *tensors,
              EbbDevice *device)
{
  for (guint i = 0; i < tensors->len; i++)
    if (ebb_parameter_get_device (tensors->pdata[i]) == device)
      return TRUE;
  return FALSE;
}

gboolean
ebb_memory_estimate_adopt_model (EbbDryRun *run,
                                 EbbModule *model,
                                 EbbDevice *device,
                                 GError **error)
{
  g_autoptr (GPtrArray) tensors = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  EbbTensor **some;
  gboolean is_there, ok = TRUE;
  guint n;

  some = ebb_module_get_parameters (model, TRUE, &n);
  append_all (tensors, some, n);
  some = ebb_module_get_buffers (model, TRUE, &n);
  append_all (tensors, some, n);
  is_there = computes_any (tensors, device);
  for (guint i = 0; ok && i < tensors->len; i++)
    ok = ebb_dry_run_adopt (run, tensors->pdata[i], is_there ? ebb_tensor_get_device (tensors->pdata[i]) : device,
                            error);
  ebb_dry_run_count_outside (run, device);
  ebb_dry_run_count_outside (run, ebb_device_get_cpu ());
  return ok;
}

static gboolean
run_step (EbbModule *model,
          EbbDevice *device,
          EbbStepFunc step,
          gpointer user_data,
          GError **error)
{
  gboolean ok;

  ebb_memory_reset_peaks (device);
  ebb_memory_reset_peaks (NULL);
  ok = step (model, user_data, error);
  if (!ok && error != NULL && *error == NULL)
    g_set_error_literal (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the step failed without saying why");
  return ok;
}

/* The second step counts. @before: the bytes in use when it begins. */
static gboolean
run_steps (EbbMemoryEstimate *self,
           EbbDryRun *run,
           EbbModule *model,
           EbbStepFunc step,
           gpointer user_data,
           guint64 *before,
           GError **error)
{
  EbbMemoryAccount *account = ebb_dry_run_get_account (run);
  Watch watch = { { .launched = note_launch }, self };
  gboolean ok;

  if (!run_step (model, self->device, step, user_data, error)
      || !ebb_memory_timeline_start (self->timeline, self->device, error))
    return FALSE;
  *before = account->devices[self->device->number].current[EBB_N_PURPOSES];
  ebb_memory_timeline_name_module (self->timeline, model);
  ebb_memory_account_push_observer (account, &watch.observer);
  ok = run_step (model, self->device, step, user_data, error);
  ebb_memory_account_pop_observer (account, &watch.observer);
  ebb_memory_timeline_stop (self->timeline);
  return ok;
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

/* -- leaks --------------------------------------------------------------------------------------------------------- */

/* Which of the tensors that the second step left are still there. */
typedef struct
{
  EbbMemoryObserver observer; /* first */
  EbbDevice *device;
  GHashTable *left; /* addresses */
} Leaks;

static void
note_change (EbbMemoryObserver *observer,
             EbbDevice *device,
             const void *data,
             guint8 from G_GNUC_UNUSED,
             guint8 to,
             gsize n_bytes G_GNUC_UNUSED)
{
  const Leaks *self = (Leaks *) observer;

  if (device == self->device && to == EBB_N_PURPOSES)
    g_hash_table_remove (self->left, data);
}

/* "each step leaves 4 bytes in 1 tensor made by loss: sum (forward), f32 [1, 1, 1]: the training will grow" */
static void
describe_leak (EbbMemoryEstimate *self,
               GHashTable *left)
{
  g_autoptr (GArray) holders = ebb_memory_timeline_list_left (self->timeline, left);
  GString *text = g_string_new (NULL);
  guint n_tensors = 0;

  for (guint i = 0; i < holders->len; i++)
    n_tensors += g_array_index (holders, EbbMemoryHolder, i).n_blocks;
  g_string_append_printf (text, "each step leaves %" G_GUINT64_FORMAT " bytes", self->leaked);
  if (n_tensors > 0)
    g_string_append_printf (text, " in %u tensor%s made by ", n_tensors, n_tensors == 1 ? "" : "s");
  for (guint i = 0; i < MIN (holders->len, N_LEAKS); i++)
    {
      g_autofree char *name = ebb_memory_holder_to_string (&g_array_index (holders, EbbMemoryHolder, i));

      g_string_append_printf (text, "%s%s", i > 0 ? "; " : "", name);
    }
  g_string_append_printf (text, "%s: the training will grow", holders->len > N_LEAKS ? "; and others" : "");
  self->leak = g_string_free (text, FALSE);
}

/* @before: the bytes in use before the second step. Other ranks would have to run a third one as well: there leaks
 * aren't looked for. */
static gboolean
find_leak (EbbMemoryEstimate *self,
           EbbDryRun *run,
           EbbModule *model,
           EbbStepFunc step,
           gpointer user_data,
           guint64 before,
           GError **error)
{
  EbbMemoryAccount *account = ebb_dry_run_get_account (run);
  const guint64 *now = &account->devices[self->device->number].current[EBB_N_PURPOSES];
  const guint64 after = *now;
  g_autoptr (GHashTable) left = NULL;
  Leaks leaks = { { .changed = note_change }, self->device };
  gboolean ok;

  if (after <= before || ebb_dry_run_has_collectives (run))
    return TRUE;
  leaks.left = left = ebb_memory_timeline_list_addresses (self->timeline);
  ebb_memory_account_push_observer (account, &leaks.observer);
  ok = run_step (model, self->device, step, user_data, error);
  ebb_memory_account_pop_observer (account, &leaks.observer);
  if (!ok || *now <= after)
    return ok;
  self->leaked = *now - after;
  describe_leak (self, left);
  return TRUE;
}

/**
 * ebb_memory_estimate_new:
 * @model: the model, whose parameters may be on any device
 * @device: (nullable): the device that the step is to run on; %NULL for the CPU
 * @step: (scope call) (closure user_data): one training step
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Runs @step twice as a dry run on @device: everything happens but the computing, and nothing that is allocated costs
 * memory. Where the second step leaves more bytes in use than the first, @step runs once more, to see whether each step
 * does: see ebb_memory_estimate_get_leak(). What else is in use on the device when it begins counts as well, each byte
 * once: tensors that the step reads, another model, and what earlier steps have left. A model of which no tensor is on
 * @device counts as if it were there; else each tensor counts where it is, so shards that #EbbFullyShardOptions:offload
 * keeps in host memory count there. Afterwards parameters, buffers, gradients, optimizers, generators and the
 * positions of datasets are as they were; what your own code counts, it counts only where ebb_is_dry_run() says no.
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
  g_autoptr (EbbMemoryEstimate) self = NULL;
  EbbDryRun *run;
  EbbDryScope outer;
  guint64 before;
  gboolean ok;

  g_return_val_if_fail (EBB_IS_MODULE (model) && step != NULL, NULL);

  if (error != NULL && *error != NULL)
    return NULL;
  self = g_object_new (EBB_TYPE_MEMORY_ESTIMATE, NULL);
  self->device = device != NULL ? device : ebb_device_get_cpu ();
  self->costs = ebb_cost_table_new (self->device);
  run = ebb_dry_run_new ();
  ebb_dry_run_enter (run, &outer);
  ebb_modes.default_device = self->device;
  ok = ebb_memory_estimate_adopt_model (run, model, self->device, error)
       && run_steps (self, run, model, step, user_data, &before, error);
  if (ok)
    take_counts (self, run, self->device);
  ok = ok && find_leak (self, run, model, step, user_data, before, error);
  ebb_dry_run_leave (run, &outer);
  ebb_dry_run_free (run);
  return ok ? g_steal_pointer (&self) : NULL;
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

/**
 * ebb_memory_estimate_get_leaked_bytes:
 * @self: an estimate
 *
 * Returns: by how many bytes of the device more is in use after each step than after the one before: 0 for a training
 *   that doesn't grow. It is 0 for steps on several ranks, too, where it is not looked for
 */
guint64
ebb_memory_estimate_get_leaked_bytes (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), 0);

  return self->leaked;
}

/**
 * ebb_memory_estimate_get_leak:
 * @self: an estimate
 *
 * Says what ebb_memory_estimate_get_leaked_bytes() counts and which modules and ops made the tensors, as "each step
 * leaves 4 bytes in 1 tensor made by loss: sum (forward), f32 [1, 1, 1]: the training will grow".
 *
 * Returns: (transfer none) (nullable): a line, or %NULL for a training that doesn't grow
 */
const char *
ebb_memory_estimate_get_leak (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), NULL);

  return self->leak;
}

/**
 * ebb_memory_estimate_measure_seconds:
 * @self: an estimate
 * @max_seconds: how long measuring may take; 0 to use only what earlier measurements have kept
 * @error: return location for an error
 *
 * Adds up the time of each kernel that a step launches. A kernel that wasn't launched with such operands on this
 * machine before is measured alone, on random data; the figures are kept for the next time. ebb_timing_set_func() shows
 * how far that is. The timeline of the estimate gets these times.
 *
 * Returns: the seconds of a step; 0 with @error set
 */
double
ebb_memory_estimate_measure_seconds (EbbMemoryEstimate *self,
                                     double max_seconds,
                                     GError **error)
{
  g_autofree double *times = NULL;
  double seconds = 0;

  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), 0);

  if (max_seconds > 0
      && !ebb_cost_table_measure (self->costs, max_seconds, EBB_ESTIMATE_MEASURED_BYTES, error))
    return 0;
  times = g_new0 (double, self->launches->len + 1);
  for (guint i = 0; i < self->launches->len; i++)
    {
      const guint launch = g_array_index (self->launches, guint, i);

      if (launch != NO_COST)
        seconds += times[i] = ebb_cost_table_get_seconds (self->costs, launch);
    }
  ebb_timeline_set_seconds (self->timeline, times, self->launches->len);
  return seconds;
}

gboolean
ebb_memory_estimate_run_products (EbbMemoryEstimate *self,
                                  guint64 max_bytes,
                                  guint64 *n_taken,
                                  GError **error)
{
  return ebb_cost_table_run_products (self->costs, max_bytes, n_taken, error);
}

/**
 * ebb_memory_estimate_is_disturbed:
 * @self: an estimate
 *
 * Whether the seconds of ebb_memory_estimate_measure_seconds() are too high, since other programs took the processor
 * while kernels were timed. Such kernels are timed again by the next estimate or plan that finds the machine quiet.
 *
 * Returns: %TRUE if the time of a kernel is too high
 */
gboolean
ebb_memory_estimate_is_disturbed (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), FALSE);

  return ebb_cost_table_get_n_disturbed (self->costs) > 0;
}

/**
 * ebb_memory_estimate_get_timeline:
 * @self: an estimate
 *
 * Who holds which bytes when, in the second step of the dry run: the ten largest holders of the peak by
 * ebb_memory_timeline_get_table(), a picture by ebb_memory_timeline_save_html(). Seconds are known once
 * ebb_memory_estimate_measure_seconds() was called.
 *
 * Returns: (transfer none): a timeline that doesn't run
 */
EbbMemoryTimeline *
ebb_memory_estimate_get_timeline (EbbMemoryEstimate *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), NULL);

  return self->timeline;
}

static void
append_mib (GString *text,
            const char *name,
            guint64 n_bytes)
{
  g_string_append_printf (text, "%-14s %10.1f MiB\n", name, (double) n_bytes / (1 << 20));
}

/**
 * ebb_memory_estimate_to_string:
 * @self: an estimate
 *
 * Returns: (transfer full): a table of the peaks, of all purposes together and of each, and of the ten largest holders;
 *   then the line of ebb_memory_estimate_get_leak(), if there is one
 */
char *
ebb_memory_estimate_to_string (EbbMemoryEstimate *self)
{
  GString *text = g_string_new (NULL);

  g_return_val_if_fail (EBB_IS_MEMORY_ESTIMATE (self), NULL);

  append_mib (text, "peak", self->peak_total);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    if (self->peaks[i] > 0)
      append_mib (text, ebb_purpose_get_name ((EbbPurpose) i), self->peaks[i]);
  g_string_append (text, "at the peak the largest are\n");
  ebb_memory_timeline_append_holders (self->timeline, N_HOLDERS, text);
  if (self->leak != NULL)
    g_string_append_printf (text, "%s\n", self->leak);
  return g_string_free (text, FALSE);
}
