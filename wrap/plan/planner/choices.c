/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds what each block of a model may do within a plan, by dry steps. */
#include "wrap/plan/planner/choices-private.h"

#include "offload/kinds/store-kinds-private.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/wrapper.h"
#include "wrap/plan/estimate-private.h"
#include "wrap/plan/mlp-tiles-private.h"
#include "wrap/plan/planner/on-ranks-private.h"

#include <string.h>

/* Choices of a class that are moved, too. */
#define MAX_MOVED 8

/* -- classes of blocks --------------------------------------------------------------------------------------------- */

static void
choice_clear (gpointer data)
{
  g_free (((EbbPlanChoice *) data)->saved);
}

static EbbPlanClass *
class_new (GArray *ops)
{
  EbbPlanClass *self = g_new (EbbPlanClass, 1);

  self->members = g_array_new (FALSE, FALSE, sizeof (guint));
  self->choices = g_array_new (FALSE, FALSE, sizeof (EbbPlanChoice));
  self->ops = g_array_ref (ops);
  g_array_set_clear_func (self->choices, choice_clear);
  return self;
}

static void
class_free (gpointer data)
{
  EbbPlanClass *self = data;

  g_array_unref (self->members);
  g_array_unref (self->choices);
  g_array_unref (self->ops);
  g_free (self);
}

static gboolean
has_ops (EbbPlanClass *self,
         GArray *ops)
{
  if (self->ops->len != ops->len)
    return FALSE;
  for (guint i = 0; i < ops->len; i++)
    {
      const EbbPlanTrace *a = &g_array_index (self->ops, EbbPlanTrace, i), *b = &g_array_index (ops, EbbPlanTrace, i);

      if (a->name != b->name || a->n_bytes != b->n_bytes)
        return FALSE;
    }
  return TRUE;
}

static EbbPlanClass *
find_class (EbbPlanChoices *self,
            GArray *ops)
{
  for (guint i = 0; i < self->classes->len; i++)
    if (has_ops (self->classes->pdata[i], ops))
      return self->classes->pdata[i];
  g_ptr_array_add (self->classes, class_new (ops));
  return self->classes->pdata[self->classes->len - 1];
}

/* -- the ops of blocks --------------------------------------------------------------------------------------------- */

/* Listens to a checkpoint's policy. */
typedef struct
{
  EbbProbe *probe;
  GArray *ops; /* of EbbPlanTrace */
} Recorder;

static EbbCheckpointPolicy
record (const char *op,
        guint ordinal,
        guint64 n_bytes,
        gpointer user_data,
        GError **error)
{
  Recorder *self = user_data;
  const EbbPlanTrace trace = { g_intern_string (op), n_bytes, ebb_probe_get_n_launches (self->probe), 0 };

  if (ordinal == 0) /* of each forward in the step, the last one counts */
    g_array_set_size (self->ops, 0);
  g_array_append_val (self->ops, trace);
  return EBB_CHECKPOINT_POLICY_MUST_SAVE;
}

static gboolean
wrap_to_record (EbbModule *module,
                Recorder *recorder,
                GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) wrapped = NULL;

  ebb_checkpoint_options_set_policy (options, record, recorder, NULL);
  wrapped = ebb_checkpoint_wrapper (module, options, error);
  return wrapped != NULL;
}

/* Fills in the seconds of the ops of the block at @stage. */
static void
price_ops (EbbPlanChoices *self,
           const EbbProbeStep *step,
           guint stage,
           GArray *ops)
{
  guint at = 0;

  for (guint i = 0; i < ops->len; i++)
    {
      EbbPlanTrace *trace = &g_array_index (ops, EbbPlanTrace, i);

      for (; at < MIN (trace->end, step->launches->len); at++)
        {
          const EbbProbeLaunch *launch = &g_array_index (step->launches, EbbProbeLaunch, at);

          if (launch->stage == stage && launch->part == EBB_PROBE_FORWARD)
            trace->seconds += ebb_cost_table_get_seconds (self->costs, launch->cost);
        }
    }
}

/* A step in which all blocks are recorded, @recorders[i] that at i. */
static EbbProbeStep *
run_recorded (EbbPlanChoices *self,
              Recorder *recorders,
              GError **error)
{
  EbbProbeStep *step;
  guint n_wrapped = 0;
  gboolean ok = TRUE;

  for (; ok && n_wrapped < self->blocks->len; n_wrapped++)
    {
      const EbbPlanBlock *block = &g_array_index (self->blocks, EbbPlanBlock, n_wrapped);

      ok = block->is_taken || wrap_to_record (block->module, &recorders[n_wrapped], error);
    }
  step = ok ? ebb_probe_run (self->probe, error) : NULL;
  for (guint i = 0; i < n_wrapped; i++)
    {
      const EbbPlanBlock *block = &g_array_index (self->blocks, EbbPlanBlock, i);

      if (!block->is_taken)
        ebb_checkpoint_unwrap (block->module);
    }
  return step;
}

static Recorder *
recorders_new (EbbPlanChoices *self)
{
  Recorder *recorders = g_new0 (Recorder, self->blocks->len);

  for (guint i = 0; i < self->blocks->len; i++)
    recorders[i] = (Recorder){ self->probe, g_array_new (FALSE, FALSE, sizeof (EbbPlanTrace)) };
  return recorders;
}

static void
recorders_free (EbbPlanChoices *self,
                Recorder *recorders)
{
  for (guint i = 0; i < self->blocks->len; i++)
    g_array_unref (recorders[i].ops);
  g_free (recorders);
}

/* Of a step with no plan but the tiles. */
static gboolean
announce (EbbPlanChoices *self,
          const char *kind,
          GError **error)
{
  g_autofree char *step = g_strdup_printf ("%s%" G_GINT64_FORMAT, kind, self->tile_rows);

  return ebb_plan_ranks_announce (self->group, step, error);
}

/* Sorts the blocks into classes. */
static gboolean
record_blocks (EbbPlanChoices *self,
               GError **error)
{
  Recorder *recorders = recorders_new (self);
  g_autoptr (EbbProbeStep) step = NULL;
  GError *failure = NULL;

  if (announce (self, EBB_PLAN_STEP_RECORD, error))
    {
      step = run_recorded (self, recorders, &failure);
      step = ebb_plan_ranks_merge (self->group, step, failure, error);
    }
  for (guint i = 0; step != NULL && i < self->blocks->len; i++)
    {
      if (g_array_index (self->blocks, EbbPlanBlock, i).is_taken)
        continue;
      price_ops (self, step, i + 1, recorders[i].ops);
      self->class_of[i] = find_class (self, recorders[i].ops);
      g_array_append_val (self->class_of[i]->members, i);
    }
  recorders_free (self, recorders);
  return step != NULL;
}

/* -- where blocks may move what they keep -------------------------------------------------------------------------- */

gboolean
ebb_plan_find_place (EbbDevice *device,
                     EbbSavedTensorHooks *store,
                     EbbMemoryPlace *place,
                     GError **error)
{
  *place = store != NULL ? ebb_store_kind_find_place (store) : EBB_MEMORY_PLACE_HOST;
  if (*place == EBB_MEMORY_PLACE_DEVICE)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "a plan moves what blocks keep to a %s store, not to an %s",
                     ebb_in_message (ebb_store_kind_join_moving (" store or a ")), G_OBJECT_TYPE_NAME (store));
  if (*place == EBB_MEMORY_PLACE_HOST && device->backend->host_memory)
    *place = EBB_MEMORY_PLACE_DEVICE;
  return TRUE;
}

static void
set_store (EbbPlanChoices *self,
           EbbMemoryPlan *plan)
{
  if (self->store != NULL && self->place != EBB_MEMORY_PLACE_DEVICE)
    ebb_memory_plan_set_store (plan, self->place, self->store);
}

/* The rates of copies to the place and back. */
static gboolean
measure_place (EbbPlanChoices *self,
               guint64 max_bytes,
               GError **error)
{
  g_autofree char *folder = NULL;

  if (self->place == EBB_MEMORY_PLACE_DEVICE)
    return TRUE;
  if (self->place == EBB_MEMORY_PLACE_DISK)
    g_object_get (self->store, "folder", &folder, NULL);
  return ebb_cost_table_measure_host (self->costs, max_bytes, error)
         && (folder == NULL || ebb_cost_table_measure_folder (self->costs, folder, error));
}

/* -- trying choices ------------------------------------------------------------------------------------------------ */

void
ebb_plan_choices_fill (EbbPlanChoices *self,
                       const guint *choices,
                       EbbMemoryPlan *plan)
{
  for (guint i = 0; i < self->blocks->len; i++)
    {
      const EbbPlanBlock *block = &g_array_index (self->blocks, EbbPlanBlock, i);
      const EbbPlanChoices *untiled = self->untiled != NULL ? self->untiled : self;
      const EbbPlanChoice *choice, *all;
      EbbPlanRow row = { .path = g_strdup (block->path), .is_taken = block->is_taken };

      if (!block->is_taken)
        {
          all = &g_array_index (untiled->class_of[i]->choices, EbbPlanChoice, EBB_PLAN_KEEP_ALL);
          choice = &g_array_index (self->class_of[i]->choices, EbbPlanChoice, choices[i]);
          row.is_checkpoint = choice->is_checkpoint;
          row.place = choice->place;
          row.saved = g_memdup2 (choice->saved, choice->n_saved * sizeof *choice->saved);
          row.n_saved = choice->n_saved;
          row.kept_bytes = choice->kept;
          row.freed_bytes = all->kept > choice->kept ? all->kept - choice->kept : 0;
          row.seconds = choice->seconds;
        }
      ebb_memory_plan_add_row (plan, &row);
    }
  if (self->tile_rows > 0)
    ebb_memory_plan_add_rung (plan, EBB_PLAN_MLP_TILES, self->tile_rows);
  set_store (self, plan);
}

static EbbProbeStep *
run_with (EbbPlanChoices *self,
          EbbMemoryPlan *plan,
          GError **error)
{
  EbbProbeStep *step;

  if (!ebb_memory_plan_apply (plan, error))
    return NULL;
  step = ebb_probe_run (self->probe, error);
  ebb_memory_plan_unapply (plan);
  return step;
}

EbbProbeStep *
ebb_plan_choices_try (EbbPlanChoices *self,
                      EbbMemoryPlan *plan,
                      GError **error)
{
  g_autofree char *json = self->group != NULL ? ebb_memory_plan_to_json (plan) : NULL;
  GError *failure = NULL;
  EbbProbeStep *step;

  if (!ebb_plan_ranks_announce (self->group, json, error))
    return NULL;
  step = run_with (self, plan, &failure);
  step = ebb_plan_ranks_merge (self->group, step, failure, error);
  if (step != NULL)
    ebb_probe_price (self->probe, step);
  return step;
}

/* A dry step in which each block makes its choice of @choices. */
static EbbProbeStep *
try_numbers (EbbPlanChoices *self,
             const guint *choices,
             GError **error)
{
  g_autoptr (EbbMemoryPlan) plan = ebb_memory_plan_new_empty (self->model);

  ebb_plan_choices_fill (self, choices, plan);
  return ebb_plan_choices_try (self, plan, error);
}

/* The kept bytes of stage @stage of @step. */
static guint64
get_kept (const EbbProbeStep *step,
          guint stage)
{
  const guint64 before = step->stages[stage].start, after = step->stages[stage + 1].start;

  return after > before ? after - before : 0;
}

static void
take_figures (EbbPlanChoice *choice,
              const EbbProbeStep *step,
              guint stage)
{
  choice->kept = get_kept (step, stage);
  choice->rise = step->stages[stage].rise;
  choice->back_rise = step->stages[stage].back_rise;
  choice->seconds = step->stages[stage].seconds[EBB_PROBE_RECOMPUTE];
}

/* The members of a class that try choices: where there are enough, not the first and the last one, beside which other
 * things happen. */
static void
get_tried (EbbPlanClass *class,
           guint *first,
           guint *n)
{
  *first = class->members->len > 3 ? 1 : 0;
  *n = class->members->len - (class->members->len > 3 ? 2 : 0);
}

/* Tries the choices of each class from number @from on. */
static gboolean
measure_choices (EbbPlanChoices *self,
                 guint from,
                 GError **error)
{
  g_autofree guint *choices = g_new0 (guint, self->blocks->len);
  gboolean more = TRUE;

  for (guint round = 0; more; round++)
    {
      g_autoptr (EbbProbeStep) step = NULL;

      more = FALSE;
      for (guint c = 0; c < self->classes->len; c++)
        {
          EbbPlanClass *class = self->classes->pdata[c];
          guint first, n;

          get_tried (class, &first, &n);
          for (guint i = 0; i < class->members->len; i++)
            {
              const guint choice = from + round * n + i - first, block = g_array_index (class->members, guint, i);

              choices[block] = i >= first && i < first + n && choice < class->choices->len ? choice : 0;
            }
          more |= from + (round + 1) * n < class->choices->len;
        }
      step = try_numbers (self, choices, error);
      if (step == NULL)
        return FALSE;
      for (guint i = 0; i < self->blocks->len; i++)
        if (choices[i] >= from && choices[i] > 0)
          take_figures (&g_array_index (self->class_of[i]->choices, EbbPlanChoice, choices[i]), step, i + 1);
    }
  return TRUE;
}

/* -- choices that move what blocks keep to host memory or a disk and back, while computing ------------------------- */

/* What a block copies out of the device or, where that is the host, out of staging memory. The last bytes stay there
 * until another block's first ones come. */
typedef struct
{
  guint64 all, last;
} Copied;

/* To the host: those of the last group of packs stay. */
static void
count_to_host (Copied *copied,
               const EbbProbeCopy *copy,
               guint *group)
{
  if (copy->event.kind != EBB_COPY_TO_HOST)
    return;
  if (copy->launch != *group)
    copied->last = 0;
  *group = copy->launch;
  copied->all += copy->event.n_bytes;
  copied->last += copy->event.n_bytes;
}

/* To the disk: those that weren't waited for stay in staging memory. @sizes: of the block's writes by their numbers. */
static void
count_to_disk (Copied *copied,
               const EbbProbeCopy *copy,
               GHashTable *sizes)
{
  const EbbCopyEvent *event = &copy->event;

  if (event->kind == EBB_COPY_TO_DISK)
    {
      g_hash_table_insert (sizes, (gpointer) &event->number, (gpointer) &event->n_bytes);
      copied->all += event->n_bytes;
      copied->last += event->n_bytes;
    }
  else if (event->kind == EBB_COPY_AWAITED)
    {
      const guint64 *size = g_hash_table_lookup (sizes, &event->number);

      copied->last -= size != NULL ? *size : 0;
      g_hash_table_remove (sizes, &event->number);
    }
}

static Copied
count_copied (const EbbPlanChoices *self,
              const EbbProbeStep *step,
              guint stage)
{
  g_autoptr (GHashTable) sizes = g_hash_table_new (g_int64_hash, g_int64_equal);
  Copied copied = { 0 };
  guint group = G_MAXUINT;

  for (guint i = 0; i < step->copies->len; i++)
    {
      const EbbProbeCopy *copy = &g_array_index (step->copies, EbbProbeCopy, i);

      if (copy->stage != stage || copy->part != EBB_PROBE_FORWARD)
        continue;
      if (self->place == EBB_MEMORY_PLACE_HOST)
        count_to_host (&copied, copy, &group);
      else
        count_to_disk (&copied, copy, sizes);
    }
  return copied;
}

/* On an accelerator what leaves it for a disk lies in host memory meanwhile. */
static guint64
count_staying (const EbbPlanChoices *self,
               const Copied *copied)
{
  return self->place == EBB_MEMORY_PLACE_HOST || self->costs->device->backend->host_memory ? copied->last : 0;
}

static const EbbCostRates *
get_rates (const EbbPlanChoices *self)
{
  return self->place == EBB_MEMORY_PLACE_DISK ? &self->costs->disk_rates : &self->costs->host_rates;
}

static double
subtract (double a,
          double b)
{
  return MAX (0, a - b);
}

/* Every group but the last is copied within the block: computing waits for it when the next group comes. The chain
 * counts the wait for the last group. */
static void
price (EbbPlanChoice *choice,
       const Copied *copied,
       guint64 staying,
       const EbbCostRates *rates,
       const EbbProbeStage *stage,
       double waited)
{
  const double forward = stage->seconds[EBB_PROBE_FORWARD], backward = stage->seconds[EBB_PROBE_BACKWARD];
  const double last_out = (double) copied->last / rates->out, last_back = (double) copied->last / rates->in;

  choice->moving = staying;
  choice->out_seconds = MIN ((double) copied->all / rates->out, last_out + forward);
  choice->back_seconds = last_back;
  choice->seconds +=
      subtract (waited, subtract (last_out, forward) + subtract (last_back, backward + choice->seconds));
}

/* @follows: the block before it moves as many bytes. */
static void
take_moved_figures (EbbPlanChoices *self,
                    EbbPlanChoice *choice,
                    const EbbProbeStep *step,
                    guint block,
                    gboolean follows)
{
  const guint at = block + 1;
  const EbbProbeStage *stage = &step->stages[at], *none = &self->none->stages[at];
  const Copied copied = count_copied (self, step, at);
  const guint64 staying = count_staying (self, &copied);
  const guint64 base = step->stages[0].start, before = follows ? staying : 0;
  const guint64 unmoved = self->none->stages[at + 1].start - base; /* which the chain takes off the backward's start */
  const guint64 back = stage->back_start + stage->back_rise;
  const guint64 back_base = none->back_start > unmoved ? none->back_start - unmoved : 0;
  const guint64 left = stage[1].start + before, taken = stage->start + staying;

  choice->kept = left > taken ? left - taken : 0;
  choice->rise = before + stage->rise;
  choice->back_rise = back + base > back_base + stage->start + choice->kept
                          ? back + base - back_base - stage->start - choice->kept
                          : 0;
  price (choice, &copied, staying, get_rates (self), none, stage->waited);
}

/* Whether no other choice in place keeps less and is as fast. */
static gboolean
is_best (const EbbPlanClass *class,
         guint number)
{
  const EbbPlanChoice *choice = &g_array_index (class->choices, EbbPlanChoice, number);

  for (guint i = 0; i < class->n_in_place; i++)
    {
      const EbbPlanChoice *other = &g_array_index (class->choices, EbbPlanChoice, i);

      if (i != number && other->kept <= choice->kept && other->seconds <= choice->seconds
          && (i < number || other->kept < choice->kept || other->seconds < choice->seconds))
        return FALSE;
    }
  return TRUE;
}

static void
add_moved (EbbPlanClass *class,
           EbbMemoryPlace place)
{
  for (guint i = 0; i < class->n_in_place && class->choices->len - class->n_in_place < MAX_MOVED; i++)
    {
      EbbPlanChoice choice = g_array_index (class->choices, EbbPlanChoice, i);

      if (i > EBB_PLAN_RECOMPUTE_ALL && !is_best (class, i))
        continue;
      choice.place = place;
      choice.saved = g_memdup2 (choice.saved, choice.n_saved * sizeof *choice.saved);
      g_array_append_val (class->choices, choice);
    }
}

/* A choice is tried by two members in a row where there are two: the second one finds on the device what the first one
 * left in flight, as in a plan in which all blocks move. */
static guint
get_choice (const EbbPlanClass *class,
            guint round,
            guint member)
{
  const guint n_pairs = MAX (1, class->members->len / 2);
  const guint choice = class->n_in_place + round * n_pairs + member / 2;

  return member / 2 < n_pairs && choice < class->choices->len ? choice : EBB_PLAN_KEEP_ALL;
}

static void
take_tried (EbbPlanChoices *self,
            EbbPlanClass *class,
            const guint *choices,
            const EbbProbeStep *step)
{
  for (guint i = 0; i < class->members->len; i++)
    {
      const guint block = g_array_index (class->members, guint, i);
      const gboolean follows = i % 2 == 1 && g_array_index (class->members, guint, i - 1) + 1 == block;

      if (choices[block] > 0 && (i % 2 == 1 || class->members->len == 1))
        take_moved_figures (self, &g_array_index (class->choices, EbbPlanChoice, choices[block]), step, block, follows);
    }
}

static gboolean
measure_moved (EbbPlanChoices *self,
               GError **error)
{
  g_autofree guint *choices = g_new0 (guint, self->blocks->len);
  gboolean more = TRUE;

  for (guint round = 0; more; round++)
    {
      g_autoptr (EbbProbeStep) step = NULL;

      more = FALSE;
      for (guint c = 0; c < self->classes->len; c++)
        {
          const EbbPlanClass *class = self->classes->pdata[c];

          for (guint i = 0; i < class->members->len; i++)
            choices[g_array_index (class->members, guint, i)] = get_choice (class, round, i);
          more |= get_choice (class, round + 1, 0) != EBB_PLAN_KEEP_ALL;
        }
      step = try_numbers (self, choices, error);
      if (step == NULL)
        return FALSE;
      for (guint c = 0; c < self->classes->len; c++)
        take_tried (self, self->classes->pdata[c], choices, step);
    }
  return TRUE;
}

/* Adds the choices that move what blocks keep to another place, where they may and the rates of copies are known. */
static gboolean
add_moved_choices (EbbPlanChoices *self,
                   GError **error)
{
  const EbbCostRates *rates = get_rates (self);

  if (self->place == EBB_MEMORY_PLACE_DEVICE || rates->out <= 0 || rates->in <= 0)
    return TRUE;
  for (guint i = 0; i < self->classes->len; i++)
    add_moved (self->classes->pdata[i], self->place);
  return measure_moved (self, error);
}

/* -- all of it ----------------------------------------------------------------------------------------------------- */

static void
take_none (EbbPlanChoices *self)
{
  for (guint i = 0; i < self->classes->len; i++)
    {
      EbbPlanClass *class = self->classes->pdata[i];
      guint first, n;

      get_tried (class, &first, &n);
      take_figures (&g_array_index (class->choices, EbbPlanChoice, 0), self->none,
                    g_array_index (class->members, guint, first) + 1);
    }
}

/* Recomputes launch what forwards do. Measuring takes memory, so the dry runs give back what they don't need. */
static gboolean
measure_launches (EbbPlanChoices *self,
                  double max_seconds,
                  guint64 max_bytes,
                  GError **error)
{
  ebb_probe_trim (self->probe);
  return (max_seconds < 0 || ebb_cost_table_measure (self->costs, max_seconds, max_bytes, error))
         && measure_place (self, max_bytes, error);
}

static EbbProbeStep *
run_none (EbbPlanChoices *self,
          GError **error)
{
  GError *failure = NULL;
  EbbProbeStep *step;

  if (!announce (self, EBB_PLAN_STEP_NONE, error))
    return NULL;
  step = ebb_probe_run (self->probe, &failure);
  return ebb_plan_ranks_merge (self->group, step, failure, error);
}

/* A plan is for a step that is always the same. */
static gboolean
check_twice (EbbPlanChoices *self,
             GError **error)
{
  g_autoptr (EbbProbeStep) again = run_none (self, error);
  g_autofree char *difference = NULL;

  if (again == NULL)
    return FALSE;
  difference = ebb_probe_compare (self->probe, again, self->probe, self->none);
  return difference == NULL
         || ebb_fail (error, EBB_ERROR_STATE, "the step isn't the same twice: the second time %s", difference);
}

/* Applies a plan that has nothing but tiles of @n_rows rows; 0: not even those. */
static EbbMemoryPlan *
put_tiles (EbbModule *model,
           gint64 n_rows,
           GError **error)
{
  g_autoptr (EbbMemoryPlan) tiles = ebb_memory_plan_new_empty (model);

  if (n_rows > 0)
    ebb_memory_plan_add_rung (tiles, EBB_PLAN_MLP_TILES, n_rows);
  return ebb_memory_plan_apply (tiles, error) ? g_steal_pointer (&tiles) : NULL;
}

/* Steps with nothing wrapped by the plan but its tiles. */
static gboolean
look_at_none (EbbPlanChoices *self,
              double max_seconds,
              guint64 max_bytes,
              GError **error)
{
  g_autoptr (EbbMemoryPlan) tiles = put_tiles (self->model, self->tile_rows, error);
  gboolean ok;

  if (tiles == NULL)
    return FALSE;
  self->none = run_none (self, error);
  ok = self->none != NULL && (self->untiled != NULL || check_twice (self, error))
       && (max_seconds == 0 || measure_launches (self, max_seconds, max_bytes, error)) && record_blocks (self, error);
  ebb_memory_plan_unapply (tiles);
  if (ok)
    ebb_probe_price (self->probe, self->none);
  return ok;
}

static gboolean
find_choices (EbbPlanChoices *self,
              double max_seconds,
              guint64 max_bytes,
              GError **error)
{
  guint n_singles = 0;

  if (!look_at_none (self, max_seconds, max_bytes, error))
    return FALSE;
  for (guint i = 0; i < self->classes->len; i++)
    ebb_plan_class_add_singles (self->classes->pdata[i]);
  take_none (self);
  if (self->classes->len == 0)
    return TRUE;
  if (!measure_choices (self, 1, error))
    return FALSE;
  for (guint i = 0; i < self->classes->len; i++)
    {
      EbbPlanClass *class = self->classes->pdata[i];

      n_singles = i == 0 ? class->choices->len : MIN (n_singles, class->choices->len);
      ebb_plan_class_add_subsets (class);
    }
  if (!measure_choices (self, n_singles, error))
    return FALSE;
  for (guint i = 0; i < self->classes->len; i++)
    {
      EbbPlanClass *class = self->classes->pdata[i];

      class->n_in_place = class->choices->len;
    }
  return add_moved_choices (self, error);
}

/* Runs the probe's first step, as all ranks do. */
static EbbPlanChoices *
choices_new (const EbbPlanRequest *request,
             GError **error)
{
  g_autoptr (EbbPlanChoices) self = g_new0 (EbbPlanChoices, 1);
  GError *failure = NULL;

  self->model = g_object_ref (request->model);
  self->group = request->group;
  self->blocks = ebb_plan_find_blocks (request->model);
  self->costs = ebb_cost_table_new (request->device);
  self->classes = g_ptr_array_new_with_free_func (class_free);
  self->class_of = g_new0 (EbbPlanClass *, self->blocks->len);
  g_set_object (&self->store, request->store);
  if (request->is_real || ebb_plan_find_place (request->device, request->store, &self->place, &failure))
    self->probe = ebb_probe_new (request, self->blocks, self->costs, &failure);
  return ebb_plan_ranks_agree (request->group, failure, error) ? g_steal_pointer (&self) : NULL;
}

EbbPlanChoices *
ebb_plan_choices_new (const EbbPlanRequest *request,
                      double max_seconds,
                      guint64 max_bytes,
                      GError **error)
{
  g_autoptr (EbbPlanChoices) self = choices_new (request, error);

  return self != NULL && find_choices (self, max_seconds, max_bytes, error) ? g_steal_pointer (&self) : NULL;
}

static EbbProbeStep *
run_announced (EbbPlanChoices *self,
               const char *step,
               GError **error)
{
  const gboolean records = g_str_has_prefix (step, EBB_PLAN_STEP_RECORD);
  g_autoptr (EbbMemoryPlan) plan = NULL;
  Recorder *recorders;
  EbbProbeStep *result;

  if (!records && !g_str_has_prefix (step, EBB_PLAN_STEP_NONE))
    {
      plan = ebb_memory_plan_new_of_rank (self->model, step, error);
      if (plan == NULL)
        return NULL;
      set_store (self, plan);
      return run_with (self, plan, error);
    }
  plan = put_tiles (self->model, g_ascii_strtoll (strchr (step, ' '), NULL, 10), error);
  if (plan == NULL)
    return NULL;
  recorders = recorders_new (self);
  result = records ? run_recorded (self, recorders, error) : ebb_probe_run (self->probe, error);
  recorders_free (self, recorders);
  ebb_memory_plan_unapply (plan);
  return result;
}

/* A failure here comes back from the first rank, to which it was sent. */
EbbMemoryPlan *
ebb_plan_choices_follow (const EbbPlanRequest *request,
                         GError **error)
{
  g_autoptr (EbbPlanChoices) self = choices_new (request, NULL);
  EbbMemoryPlan *plan = NULL;
  char *announced;

  while ((announced = ebb_plan_ranks_receive (request->group, request->model, &plan, error)) != NULL)
    {
      const gboolean begins_again = strcmp (announced, EBB_PLAN_STEP_AGAIN) == 0;
      GError *failure = NULL;
      EbbProbeStep *own = begins_again ? NULL : run_announced (self, announced, &failure);
      g_autoptr (EbbProbeStep) merged = begins_again ? NULL : ebb_plan_ranks_merge (request->group, own, failure, NULL);

      g_free (announced);
      if (!begins_again)
        continue;
      g_clear_pointer (&self, ebb_plan_choices_free);
      self = choices_new (request, NULL);
    }
  if (plan != NULL && self != NULL)
    set_store (self, plan);
  return plan;
}

EbbPlanChoices *
ebb_plan_choices_new_tiled (EbbPlanChoices *untiled,
                            gint64 n_rows,
                            double max_seconds,
                            guint64 max_bytes,
                            GError **error)
{
  g_autoptr (EbbPlanChoices) self = g_new0 (EbbPlanChoices, 1);

  self->untiled = untiled;
  self->tile_rows = n_rows;
  self->place = untiled->place;
  g_set_object (&self->store, untiled->store);
  self->group = untiled->group;
  self->model = g_object_ref (untiled->model);
  self->blocks = g_array_ref (untiled->blocks);
  self->costs = untiled->costs;
  self->classes = g_ptr_array_new_with_free_func (class_free);
  self->class_of = g_new0 (EbbPlanClass *, self->blocks->len);
  self->probe = untiled->probe;
  return find_choices (self, max_seconds, max_bytes, error) ? g_steal_pointer (&self) : NULL;
}

void
ebb_plan_choices_free (EbbPlanChoices *self)
{
  g_clear_pointer (&self->none, ebb_probe_step_free);
  g_ptr_array_unref (self->classes);
  g_free (self->class_of);
  if (self->untiled == NULL)
    {
      g_clear_pointer (&self->probe, ebb_probe_free);
      ebb_cost_table_free (self->costs);
    }
  g_array_unref (self->blocks);
  g_clear_object (&self->store);
  g_object_unref (self->model);
  g_free (self);
}
