/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs steps, dry ones mostly, and counts what each stage of the model adds to the bytes in use. */
#include "wrap/plan/probe-private.h"

#include "dist/agree-private.h"
#include "nn/module-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/error-private.h"
#include "tensor/profile/profiler-private.h"
#include "wrap/plan/estimate-private.h"

#include <string.h>

struct _EbbProbe
{
  EbbMemoryObserver observer; /* first */
  EbbModule *model;
  EbbDevice *device;
  GArray *blocks; /* of EbbPlanBlock */
  EbbCostTable *costs;
  EbbStepFunc step;
  gpointer user_data;
  EbbDryRun *run;         /* NULL: steps are real */
  EbbProcessGroup *group; /* NULL, or ranks that run the step together */
  GPtrArray *paths;       /* of the blocks, from the top of the module tree, of which the model may be a part */
  GHashTable *stages;     /* GQuark of a module's path -> the stage of its block, 0: of none */
  char *input;
  gint64 n_rows;        /* of the first block's input, if it stays f32 */
  gboolean makes_grads; /* a parameter of a block got one */
  gboolean has_backward;

  /* of the step that runs */
  EbbProbeStep *result;
  EbbProbePart part;
  guint stage;
  guint64 live, start; /* bytes in use now, and when the stage began */
  guint64 purposes[EBB_N_PURPOSES];
};

/* -- where the step is --------------------------------------------------------------------------------------------- */

static gboolean
is_at_or_below (const char *path,
                const char *root)
{
  const gsize length = strlen (root);

  return length == 0 || (strncmp (path, root, length) == 0 && (path[length] == '\0' || path[length] == '.'));
}

/* The stage of the block that has the module; 0: none has. */
static guint
find_stage (EbbProbe *self,
            GQuark path)
{
  gpointer known;
  guint stage = 0;

  if (path == 0)
    return 0;
  if (g_hash_table_lookup_extended (self->stages, GUINT_TO_POINTER (path), NULL, &known))
    return GPOINTER_TO_UINT (known);
  for (guint i = 0; i < self->blocks->len && stage == 0; i++)
    if (is_at_or_below (g_quark_to_string (path), self->paths->pdata[i]))
      stage = i + 1;
  g_hash_table_insert (self->stages, GUINT_TO_POINTER (path), GUINT_TO_POINTER (stage));
  return stage;
}

/* What is in no block comes before the first one or after the last one, or belongs to the block before it. */
static guint
find_next_stage (EbbProbe *self,
                 EbbProbePart part)
{
  const guint last = self->blocks->len + 1, block = find_stage (self, ebb_thread.module_path);

  if (block > 0)
    return block;
  if (part == EBB_PROBE_FORWARD)
    return self->part != part ? 0 : self->stage == last - 1 ? last
                                                            : self->stage;
  return self->part != part ? last : self->stage == 1 ? 0
                                                      : self->stage;
}

static void
go_to (EbbProbe *self,
       EbbProbePart part,
       guint stage)
{
  self->part = part;
  self->stage = stage;
  self->start = self->live;
  if (part == EBB_PROBE_FORWARD)
    self->result->stages[stage].start = self->live;
  else
    self->result->stages[stage].back_start = self->live;
}

/* Memory is taken, or something is launched. What was freed before it belongs to the stage before. */
static void
move_on (EbbProbe *self)
{
  EbbProbePart part = EBB_PROBE_BACKWARD;
  guint stage;

  switch (ebb_get_phase ())
    {
    case EBB_PHASE_FORWARD: part = EBB_PROBE_FORWARD; break;
    case EBB_PHASE_RECOMPUTE:
    case EBB_PHASE_BACKWARD: self->has_backward = TRUE; break;
    case EBB_PHASE_OPTIMIZER: self->part = EBB_PROBE_REST; return;
    case EBB_PHASE_OTHER:
    default: return;
    }
  stage = find_next_stage (self, part);
  if (part != self->part || stage != self->stage)
    go_to (self, part, stage);
}

/* -- observing ----------------------------------------------------------------------------------------------------- */

static void
note_peak (EbbProbe *self)
{
  EbbProbeStep *result = self->result;

  result->peak = self->live;
  result->peak_stage = self->stage;
  result->peak_part = self->part;
  memcpy (result->purposes, self->purposes, sizeof result->purposes);
}

static void
note_rise (EbbProbe *self)
{
  EbbProbeStage *stage = &self->result->stages[self->stage];
  const guint64 rise = self->live > self->start ? self->live - self->start : 0;

  if (self->part == EBB_PROBE_REST)
    self->result->rest_peak = MAX (self->result->rest_peak, self->live);
  else if (self->part == EBB_PROBE_FORWARD)
    stage->rise = MAX (stage->rise, rise);
  else
    stage->back_rise = MAX (stage->back_rise, rise);
}

static void
changed (EbbMemoryObserver *observer,
         EbbDevice *device,
         const void *data,
         guint8 from,
         guint8 to,
         gsize n_bytes)
{
  EbbProbe *self = (EbbProbe *) observer;

  if (device != self->device)
    return;
  if (from == EBB_N_PURPOSES)
    move_on (self);
  else
    {
      self->purposes[from] -= n_bytes;
      self->live -= n_bytes;
    }
  if (to == EBB_N_PURPOSES)
    return;
  self->makes_grads |= to == EBB_PURPOSE_GRADIENT && self->part == EBB_PROBE_BACKWARD && self->stage > 0
                       && self->stage <= self->blocks->len;
  self->purposes[to] += n_bytes;
  self->live += n_bytes;
  if (self->live > self->result->peak)
    note_peak (self);
  note_rise (self);
}

static void
launched (EbbMemoryObserver *observer,
          EbbDevice *device,
          const EbbLaunch *launch)
{
  EbbProbe *self = (EbbProbe *) observer;
  EbbProbeLaunch entry = { ebb_cost_table_add (self->costs, launch) };

  move_on (self);
  entry.stage = (guint16) self->stage;
  entry.part = (guint8) (ebb_get_phase () == EBB_PHASE_RECOMPUTE ? EBB_PROBE_RECOMPUTE : self->part);
  g_array_append_val (self->result->launches, entry);
}

static void
copied (EbbMemoryObserver *observer,
        EbbDevice *device,
        const EbbCopyEvent *event)
{
  EbbProbe *self = (EbbProbe *) observer;
  const EbbProbeCopy copy = { *event, self->result->launches->len, (guint16) self->stage, (guint8) self->part };

  if (device == self->device)
    g_array_append_val (self->result->copies, copy);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

static EbbProbeStep *
step_new (EbbProbe *self)
{
  EbbProbeStep *step = g_new0 (EbbProbeStep, 1);

  step->n_stages = self->blocks->len + 2;
  step->stages = g_new0 (EbbProbeStage, step->n_stages);
  step->launches = g_array_new (FALSE, FALSE, sizeof (EbbProbeLaunch));
  step->copies = g_array_new (FALSE, FALSE, sizeof (EbbProbeCopy));
  return step;
}

/* @current: the bytes that are in use, by purpose, then the total. */
static void
begin_step (EbbProbe *self,
            EbbProbeStep *step,
            const guint64 *current)
{
  memcpy (self->purposes, current, sizeof self->purposes);
  step->start = step->peak = self->live = self->start = current[EBB_N_PURPOSES];
  self->part = EBB_PROBE_REST;
  self->stage = 0;
  self->result = step;
}

static gboolean
end_step (gboolean ok,
          GError **error)
{
  if (!ok && error != NULL && *error == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the step failed without saying why");
  return ok;
}

static EbbProbeStep *
run_dry (EbbProbe *self,
         GError **error)
{
  EbbMemoryAccount *account = ebb_dry_run_get_account (self->run);
  g_autoptr (EbbProbeStep) step = step_new (self);
  EbbDryScope outer;
  gboolean ok;

  ebb_dry_run_enter (self->run, &outer);
  ebb_modes.default_device = self->device;
  begin_step (self, step, account->devices[self->device->number].current);
  ebb_memory_account_push_observer (account, &self->observer);
  ok = self->step (self->model, self->user_data, error);
  ebb_memory_account_pop_observer (account, &self->observer);
  ebb_dry_run_leave (self->run, &outer);
  return end_step (ok, error) ? g_steal_pointer (&step) : NULL;
}

static EbbProbeStep *
run_once (EbbProbe *self,
          GError **error)
{
  return self->run != NULL ? run_dry (self, error) : ebb_probe_watch (self, self->step, self->user_data, error);
}

static void
clear_caches (EbbProbe *self)
{
  EbbDryScope outer;

  ebb_dry_run_enter (self->run, &outer);
  ebb_dry_run_clear_caches (self->run);
  ebb_dry_run_leave (self->run, &outer);
}

#define FAILED "failed"
#define USES_STORES "uses stores"

/* Whether the step, which is @ok on this rank, uses stores on any rank, and failed on none: what one rank saves may be
 * too small for a store, and ranks run as many steps as each other. */
static gboolean
find_stores (EbbProbe *self,
             gboolean ok,
             gboolean *uses_stores,
             GError **error)
{
  g_auto (GStrv) texts = NULL;

  *uses_stores = ok && ebb_dry_run_has_caches (self->run);
  if (self->group == NULL)
    return TRUE;
  texts = ebb_agree_gather_texts (self->group, !ok ? FAILED : *uses_stores ? USES_STORES
                                                                           : "",
                                  error);
  if (texts == NULL)
    return FALSE;
  *uses_stores = g_strv_contains ((const char *const *) texts, USES_STORES)
                 && !g_strv_contains ((const char *const *) texts, FAILED);
  return TRUE;
}

/* Stores keep memory for what the last step saved, in which blocks may have done something else. A step that uses them
 * runs twice: in the first one they take what the second one needs. */
EbbProbeStep *
ebb_probe_run (EbbProbe *self,
               GError **error)
{
  g_autoptr (EbbProbeStep) step = NULL;
  gboolean uses_stores;

  if (self->run != NULL)
    clear_caches (self);
  step = run_once (self, error);
  if (self->run == NULL)
    return g_steal_pointer (&step);
  if (!find_stores (self, step != NULL, &uses_stores, step != NULL ? error : NULL))
    return NULL;
  if (!uses_stores)
    return g_steal_pointer (&step);
  g_clear_pointer (&step, ebb_probe_step_free);
  return run_once (self, error);
}

void
ebb_probe_trim (EbbProbe *self)
{
  if (self->run != NULL)
    ebb_dry_run_trim (self->run);
}

EbbProbeStep *
ebb_probe_watch (EbbProbe *self,
                 EbbStepFunc function,
                 gpointer user_data,
                 GError **error)
{
  EbbMemoryAccount *account = ebb_thread.account;
  g_autoptr (EbbProbeStep) step = step_new (self);
  gboolean ok;

  begin_step (self, step, account != NULL ? account->devices[self->device->number].current : self->device->current);
  ebb_memory_account_push_observer (account, &self->observer);
  ok = function (self->model, user_data, error);
  ebb_memory_account_pop_observer (account, &self->observer);
  return end_step (ok, error) ? g_steal_pointer (&step) : NULL;
}

void
ebb_probe_step_free (EbbProbeStep *step)
{
  g_array_unref (step->launches);
  g_array_unref (step->copies);
  g_free (step->stages);
  g_free (step);
}

guint
ebb_probe_get_n_launches (EbbProbe *self)
{
  return self->result->launches->len;
}

/* -- seconds ------------------------------------------------------------------------------------------------------- */

/* What goes on beside computing. */
typedef struct
{
  double now;              /* seconds of the step at which computing is, */
  double to_host, to_disk; /* ... at which each queue has done all that it was given, */
  double from_host, from_disk;
  guint64 first; /* number of the step's first copy */
  GArray *ends;  /* double: of copies from it on */
} Clock;

static double
get_end (const Clock *self,
         guint64 number)
{
  return number >= self->first && number - self->first < self->ends->len
             ? g_array_index (self->ends, double, number - self->first)
             : 0;
}

static double
get_seconds (guint64 n_bytes,
             double rate)
{
  return rate > 0 ? (double) n_bytes / rate : 0;
}

/* @begin: of the copy at the earliest. Returns its end. */
static double
run_on_queue (double *queue,
              double begin,
              double seconds)
{
  *queue = MAX (*queue, begin) + seconds;
  return *queue;
}

/* A disk has one thread, which reads before it writes more: a read waits for the piece that is being written, and for
 * reads before it, and what is to be written waits for the read. */
static double
run_disk_read (Clock *clock,
               double begin,
               double seconds,
               double piece_seconds)
{
  begin = MAX (begin, clock->from_disk);
  if (clock->to_disk > begin)
    {
      clock->to_disk += seconds;
      begin += MIN (clock->to_disk - seconds - begin, piece_seconds);
    }
  return run_on_queue (&clock->from_disk, begin, seconds);
}

static double
find_end (EbbProbe *self,
          Clock *clock,
          const EbbCopyEvent *event)
{
  const EbbCostRates *host = &self->costs->host_rates, *disk = &self->costs->disk_rates;
  const double begin = MAX (clock->now, get_end (clock, event->after));

  switch (event->kind)
    {
    case EBB_COPY_TO_HOST: return run_on_queue (&clock->to_host, begin, get_seconds (event->n_bytes, host->out));
    case EBB_COPY_FROM_HOST: return run_on_queue (&clock->from_host, begin, get_seconds (event->n_bytes, host->in));
    case EBB_COPY_TO_DISK:
      return run_on_queue (&clock->to_disk, MAX (begin, clock->from_disk), get_seconds (event->n_bytes, disk->out));
    case EBB_COPY_FROM_DISK:
      return run_disk_read (clock, begin, get_seconds (event->n_bytes, disk->in),
                            get_seconds (event->n_bytes, disk->out));
    case EBB_COPY_AWAITED:
    default: return clock->now;
    }
}

static void
run_copy (EbbProbe *self,
          Clock *clock,
          const EbbProbeCopy *copy,
          EbbProbeStep *step)
{
  const EbbCopyEvent *event = &copy->event;
  double end;

  if (event->kind == EBB_COPY_AWAITED)
    {
      const double waited = MAX (0, get_end (clock, event->number) - clock->now);

      step->stages[copy->stage].waited += waited;
      clock->now += waited;
      return;
    }
  end = find_end (self, clock, event);
  if (clock->ends->len == 0)
    clock->first = event->number;
  if (event->number - clock->first >= clock->ends->len)
    g_array_set_size (clock->ends, (guint) (event->number - clock->first) + 1);
  g_array_index (clock->ends, double, event->number - clock->first) = end;
}

void
ebb_probe_price (EbbProbe *self,
                 EbbProbeStep *step)
{
  g_autoptr (GArray) ends = g_array_new (FALSE, TRUE, sizeof (double));
  Clock clock = { .ends = ends };
  guint at = 0;

  for (guint i = 0; i < step->n_stages; i++)
    {
      memset (step->stages[i].seconds, 0, sizeof step->stages[i].seconds);
      step->stages[i].waited = 0;
    }
  for (guint i = 0; i < step->launches->len; i++)
    {
      const EbbProbeLaunch *launch = &g_array_index (step->launches, EbbProbeLaunch, i);
      const double seconds = ebb_cost_table_get_seconds (self->costs, launch->cost);

      for (; at < step->copies->len && g_array_index (step->copies, EbbProbeCopy, at).launch <= i; at++)
        run_copy (self, &clock, &g_array_index (step->copies, EbbProbeCopy, at), step);
      step->stages[launch->stage].seconds[launch->part] += seconds;
      clock.now += seconds;
    }
}

double
ebb_probe_get_seconds (EbbProbe *self,
                       const EbbProbeStep *step)
{
  double seconds = 0;

  for (guint i = 0; i < step->launches->len; i++)
    seconds += ebb_cost_table_get_seconds (self->costs, g_array_index (step->launches, EbbProbeLaunch, i).cost);
  for (guint i = 0; i < step->n_stages; i++)
    seconds += step->stages[i].waited;
  return seconds;
}

/* -- comparing ----------------------------------------------------------------------------------------------------- */

char *
ebb_probe_describe_place (EbbProbe *self,
                          guint stage,
                          EbbProbePart part)
{
  static const char *const names[EBB_N_PROBE_PARTS] = { "optimizer", "forward", "backward", "recompute" };

  if (part == EBB_PROBE_REST || self->blocks->len == 0)
    return g_strdup_printf ("the %s", names[part]);
  if (stage == 0)
    return g_strdup_printf ("the %s before the blocks", names[part]);
  if (stage > self->blocks->len)
    return g_strdup_printf ("the %s after the blocks", names[part]);
  return g_strdup_printf ("the %s of %s", names[part],
                          ebb_plan_describe_block (g_array_index (self->blocks, EbbPlanBlock, stage - 1).path));
}

static const EbbCostLaunch *
get_launch (EbbProbe *self,
            const EbbProbeStep *step,
            guint number,
            const EbbProbeLaunch **entry)
{
  *entry = &g_array_index (step->launches, EbbProbeLaunch, number);
  return ebb_cost_table_get_launch (self->costs, (*entry)->cost);
}

/* "matmul (1024 bytes) in the forward of h.0" */
static char *
describe_launch (EbbProbe *self,
                 const EbbProbeStep *step,
                 guint number)
{
  const EbbProbeLaunch *entry;
  const EbbCostLaunch *launch = get_launch (self, step, number, &entry);
  g_autofree char *place = ebb_probe_describe_place (self, entry->stage, (EbbProbePart) entry->part);

  return g_strdup_printf ("%s (%" G_GUINT64_FORMAT " bytes) in %s", ebb_kernel_get_name (launch->kernel), launch->bytes,
                          place);
}

char *
ebb_probe_compare (EbbProbe *self,
                   const EbbProbeStep *step,
                   EbbProbe *other,
                   const EbbProbeStep *before)
{
  const guint64 rise = step->peak - step->start, was = before->peak - before->start;
  const guint n = MIN (step->launches->len, before->launches->len);

  for (guint i = 0; i < n; i++)
    {
      const EbbProbeLaunch *a, *b;
      const EbbCostLaunch *x = get_launch (self, step, i, &a), *y = get_launch (other, before, i, &b);
      g_autofree char *now = NULL, *then = NULL;

      if (x->kernel == y->kernel && x->bytes == y->bytes && a->stage == b->stage && a->part == b->part)
        continue;
      now = describe_launch (self, step, i);
      then = describe_launch (other, before, i);
      return g_strdup_printf ("op %u is %s, and was %s", i, now, then);
    }
  if (step->launches->len != before->launches->len)
    return g_strdup_printf ("it has %u ops, and had %u", step->launches->len, before->launches->len);
  if (rise != was)
    {
      g_autofree char *place = ebb_probe_describe_place (self, step->peak_stage, step->peak_part);

      return g_strdup_printf ("it takes %" G_GUINT64_FORMAT " bytes, most of all in %s, and took %" G_GUINT64_FORMAT,
                              rise, place, was);
    }
  return NULL;
}

/* -- beginning and end --------------------------------------------------------------------------------------------- */

static gint64
count_rows (EbbTensor *input)
{
  const EbbView *view = &input->view;
  EbbDType lower;
  gint64 n = 1;

  if (view->n_dims < 2 || view->dtype != EBB_DTYPE_F32 || ebb_autocast_get (&lower))
    return 0;
  for (int i = 0; i + 1 < view->n_dims; i++)
    n *= view->shape[i];
  return n;
}

static gboolean
note_input (EbbModule *module,
            EbbArgs *args,
            EbbArgs *result,
            gpointer user_data,
            GError **error)
{
  EbbProbe *self = user_data;
  g_autoptr (EbbTensor) input = NULL;

  if (ebb_args_get_length (args) > 0 && ebb_args_get_value_kind (args, 0) == EBB_VALUE_TENSOR)
    input = ebb_args_get_tensor (args, 0);
  if (input != NULL)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (input);

      g_free (self->input);
      self->input = g_strdup_printf ("%s %s", ebb_dtype_get_name (ebb_tensor_get_dtype (input)), shape);
      self->n_rows = count_rows (input);
    }
  return TRUE;
}

/* A hook would show in what blocks do, so it is there in this step alone. */
static gboolean
run_first_step (EbbProbe *self,
                GError **error)
{
  EbbModule *first = self->blocks->len > 0 ? g_array_index (self->blocks, EbbPlanBlock, 0).module : NULL;
  const guint hook = first != NULL ? ebb_module_add_forward_pre_hook (first, note_input, self, NULL) : 0;
  g_autoptr (EbbProbeStep) step = ebb_probe_run (self, error);

  if (hook != 0)
    ebb_module_remove_hook (first, hook);
  if (step == NULL)
    return FALSE;
  return self->has_backward
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "the step ran no backward pass, and a plan chooses what is saved for one: call backward () on "
                      "the loss");
}

EbbProbe *
ebb_probe_new_idle (EbbModule *model,
                    EbbDevice *device,
                    GArray *blocks,
                    EbbCostTable *costs)
{
  EbbProbe *self = g_new0 (EbbProbe, 1);

  self->observer.changed = changed;
  self->observer.launched = launched;
  self->observer.copied = copied;
  self->model = model;
  self->device = device;
  self->blocks = blocks;
  self->costs = costs;
  self->input = g_strdup ("");
  self->stages = g_hash_table_new (NULL, NULL);
  self->paths = g_ptr_array_new_with_free_func (g_free);
  for (guint i = 0; i < blocks->len; i++)
    g_ptr_array_add (self->paths, ebb_module_get_path (g_array_index (blocks, EbbPlanBlock, i).module));
  return self;
}

EbbProbe *
ebb_probe_new (const EbbPlanRequest *request,
               GArray *blocks,
               EbbCostTable *costs,
               GError **error)
{
  g_autoptr (EbbProbe) self = ebb_probe_new_idle (request->model, request->device, blocks, costs);
  EbbDryScope outer;
  gboolean ok;

  self->step = request->step;
  self->user_data = request->user_data;
  self->group = request->group;
  if (request->is_real)
    return run_first_step (self, error) ? g_steal_pointer (&self) : NULL;
  self->run = ebb_dry_run_new ();
  ebb_dry_run_enter (self->run, &outer);
  ok = ebb_memory_estimate_adopt_model (self->run, self->model, self->device, error);
  ebb_dry_run_leave (self->run, &outer);
  return ok && run_first_step (self, error) ? g_steal_pointer (&self) : NULL;
}

const char *
ebb_probe_get_input (EbbProbe *self)
{
  return self->input;
}

gint64
ebb_probe_get_n_rows (EbbProbe *self)
{
  return self->makes_grads ? self->n_rows : 0;
}

void
ebb_probe_free (EbbProbe *self)
{
  g_clear_pointer (&self->run, ebb_dry_run_free);
  g_hash_table_unref (self->stages);
  g_ptr_array_unref (self->paths);
  g_free (self->input);
  g_free (self);
}
