/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The memory budget of a training: plans within it, and keeps it while steps run. */
#include "train/memory-budget-private.h"

#include "nn/state/training-state-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/cpu/host-allocator-private.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/util/json-writer-private.h"
#include "tensor/util/property-private.h"
#include "train/concessions-private.h"
#include "wrap/plan/memory-plan-private.h"

#include <pthread.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
/* A plan is made again for more bytes if they are at least this part of the heap. */
#define PART_WORTH_PLANNING 128
/* Bytes that comparing a step with its plan leaves behind. */
#define LEFT_BEHIND ((guint64) 1 << 19)
/* The heap takes pages of this size, so less would not change it. */
#define PAGE ((guint64) 2 << 20)
/* Growth of the process for which own bytes are counted again. */
#define GROWTH ((guint64) 1 << 18)

G_DEFINE_FINAL_TYPE (EbbMemoryBudget, ebb_memory_budget, G_TYPE_OBJECT)

G_DEFINE_ENUM_TYPE (EbbMemoryScope,
                    ebb_memory_scope,
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_SCOPE_AUTO, "auto"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_SCOPE_PROCESS, "process"),
                    G_DEFINE_ENUM_VALUE (EBB_MEMORY_SCOPE_DEVICE, "device"))

G_DEFINE_FLAGS_TYPE (EbbConcessions,
                     ebb_concessions,
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_NONE, "none"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_LOSS_CHUNK, "loss-chunk"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_MICRO_BATCHES, "micro-batches"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_BF16_MOMENTS, "bf16-moments"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_EIGHT_BIT_MOMENTS, "eight-bit-moments"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_BF16_RESIDUAL, "bf16-residual"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_STEP_IN_BACKWARD, "step-in-backward"),
                     G_DEFINE_ENUM_VALUE (EBB_CONCESSIONS_BF16_WEIGHTS, "bf16-weights"))

/**
 * ebb_memory_budget_new:
 * @bytes: the bytes of the budget; 0 for all bytes that are free when the training is planned
 *
 * Makes a budget. Its properties say what it limits and what may be done to keep it.
 *
 * Returns: (transfer full): the budget
 */
EbbMemoryBudget *
ebb_memory_budget_new (guint64 bytes)
{
  return g_object_new (EBB_TYPE_MEMORY_BUDGET, "bytes", bytes, NULL);
}

/**
 * ebb_memory_budget_new_parse:
 * @size: a size as ebb_memory_parse_size() reads it, `1.5GiB` for example, or `auto` for all bytes that are free when
 *   the training is planned
 * @error: return location for an error
 *
 * Makes a budget of a size as people write it.
 *
 * Returns: (transfer full): the budget, or %NULL with %EBB_ERROR_INVALID_ARGUMENT, which names the text and what would
 *   be right
 */
EbbMemoryBudget *
ebb_memory_budget_new_parse (const char *size,
                             GError **error)
{
  guint64 n_bytes = 0;

  if (!EBB_MAY_BEGIN (error, size))
    return NULL;
  if (strcmp (size, "auto") == 0)
    return ebb_memory_budget_new (0);
  if (!ebb_memory_parse_size (size, &n_bytes, error))
    {
      g_prefix_error (error, "memory budget: ");
      return NULL;
    }
  if (n_bytes > 0)
    return ebb_memory_budget_new (n_bytes);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "memory budget: \"%s\" is less than a byte: write more, or \"auto\" for all that is free", size);
  return NULL;
}

/* -- the limit of a device ----------------------------------------------------------------------------------------- */

static pthread_mutex_t holders_lock = PTHREAD_MUTEX_INITIALIZER;

/* Budgets that limit a device: one, or those of ranks that are threads. */
typedef struct
{
  guint n;
  gboolean are_ranks;
  guint64 before; /* the limit that returns; 0: none */
} Holders;

static GHashTable *holders; /* EbbDevice to Holders */

static gboolean
hold (EbbMemoryBudget *self,
      EbbDevice *device,
      GError **error)
{
  Holders *found;
  gboolean ok;

  pthread_mutex_lock (&holders_lock);
  if (holders == NULL)
    holders = g_hash_table_new (NULL, NULL);
  found = g_hash_table_lookup (holders, device);
  if (found == NULL)
    {
      found = g_new0 (Holders, 1);
      g_hash_table_insert (holders, device, found);
    }
  ok = found->n == 0 || (found->are_ranks && self->group != NULL);
  if (ok && found->n++ == 0)
    {
      found->are_ranks = self->group != NULL;
      found->before = device->limit != G_MAXUINT64 ? device->limit : 0;
    }
  if (ok)
    self->held = device;
  pthread_mutex_unlock (&holders_lock);
  return ok
         || ebb_fail (error, EBB_ERROR_STATE,
                      "memory budget: another one limits %s: release it by ebb_memory_budget_release () first",
                      ebb_device_get_name (device));
}

static void
let_go (EbbMemoryBudget *self)
{
  Holders *found;

  if (self->held == NULL)
    return;
  pthread_mutex_lock (&holders_lock);
  found = g_hash_table_lookup (holders, self->held);
  if (--found->n == 0)
    ebb_memory_set_limit (self->held, found->before);
  self->held = NULL;
  pthread_mutex_unlock (&holders_lock);
}

static void
set_limit (EbbMemoryBudget *self)
{
  if (self->held != NULL && self->heap > 0)
    ebb_memory_set_limit (self->held, self->heap * self->n_here);
}

static guint64
get_peak (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

static gboolean
put_on (EbbMemoryBudget *self, const EbbBudgetSubject *subject, GError **error)
{
  const gboolean writes = self->plan_file != NULL && !self->is_from_file
                          && (self->group == NULL || ebb_process_group_get_rank (self->group) == 0);

  return ebb_budget_set_store (self, subject, self->plan, error)
         && (ebb_is_dry_run () || hold (self, subject->device, error)) && ebb_memory_plan_apply (self->plan, error)
         && (!writes || ebb_memory_plan_save (self->plan, self->plan_file, error));
}

/* Puts the plan onto the model. From then on tensors have the limit. After a failure a plan that was made in a dry run
 * waits for other parts, and any other one goes. */
static gboolean
bind (EbbMemoryBudget *self, EbbTrainingState *training, const EbbBudgetSubject *subject, GError **error)
{
  if (self->is_detached && !ebb_memory_plan_attach (self->plan, subject->model, error))
    return FALSE;
  if (!put_on (self, subject, error))
    {
      ebb_memory_plan_detach (self->plan);
      if (!self->is_detached)
        g_clear_object (&self->plan);
      let_go (self);
      return FALSE;
    }
  self->is_detached = FALSE;
  g_set_object (&self->training, training);
  self->peak_before = get_peak (subject->device);
  set_limit (self);
  if (self->held != NULL)
    ebb_memory_trim (subject->device); /* timing kernels and dry steps take some, too */
  return TRUE;
}

/**
 * ebb_memory_budget_plan:
 * @self: a budget
 * @training: what a step changes: the model, the optimizer, the data and all generators
 * @step: (scope call) (closure user_data): one training step, as for ebb_memory_plan_new()
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Makes the fastest plan with which @step keeps the budget, puts it onto the model, and sets the device's limit. @step
 * runs several times as a dry run. With #EbbMemoryBudget:plan-file the plan comes from the file, if that is there.
 *
 * In a dry run (ebb_push_dry_run()) it only plans. The next call, for parts of the same structure, then puts that plan
 * onto their model: so a budget that is too small is refused before anything is allocated.
 *
 * Returns: %FALSE with %EBB_ERROR_NO_MEMORY if the budget is too small, which names the smallest one that would do;
 * with %EBB_ERROR_STATE if the budget has a plan already or another one limits the device; or with what @step,
 *   ebb_memory_plan_new(), and ebb_memory_plan_load() report
 */
gboolean
ebb_memory_budget_plan (EbbMemoryBudget *self,
                        EbbTrainingState *training,
                        EbbStepFunc step,
                        gpointer user_data,
                        GError **error)
{
  EbbBudgetSubject subject;
  gboolean ok;

  if (!EBB_MAY_BEGIN (error, self, training))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_BUDGET (self) && EBB_IS_TRAINING_STATE (training) && step != NULL, FALSE);

  if (self->plan != NULL && !self->is_detached)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "memory budget: it has a plan already; ebb_memory_budget_release () takes it off");
  if (!ebb_budget_subject_init (&subject, self, training, step, user_data, error))
    return FALSE;
  if (self->is_detached)
    return bind (self, training, &subject, error);
  ok = ebb_budget_find_plan (self, &subject, error);
  if (!ok || !ebb_is_dry_run ())
    return ok && bind (self, training, &subject, error);
  ebb_memory_plan_detach (self->plan);
  self->is_detached = TRUE;
  return TRUE;
}

/**
 * ebb_memory_budget_release:
 * @self: a budget
 *
 * Takes the plan off the model, and gives the device the limit back that it had before. The budget can plan again. What
 * is freed with the budget needs no release.
 */
void
ebb_memory_budget_release (EbbMemoryBudget *self)
{
  g_return_if_fail (EBB_IS_MEMORY_BUDGET (self));

  if (self->plan != NULL)
    ebb_memory_plan_unapply (self->plan);
  g_clear_object (&self->plan);
  g_clear_object (&self->training);
  g_clear_pointer (&self->reason, g_free);
  self->is_detached = self->is_corrected = self->is_least = self->is_outdated = FALSE;
  self->n_watched = self->n_steps = 0;
  self->lost = 0;
  let_go (self);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

static guint note_signal;

/* Takes @text. */
static void
note (EbbMemoryBudget *self,
      char *text)
{
  g_ptr_array_add (self->notes, text);
  g_signal_emit (self, note_signal, 0, text);
}

typedef struct
{
  EbbMemoryBudget *budget;
  EbbStepFunc step;
  gpointer data;
} Attempt;

static gboolean
run_attempt (EbbModule *model,
             gpointer data,
             GError **error)
{
  Attempt *self = data;
  EbbMemoryBudget *budget = self->budget;
  GError *failure = NULL;

  if (ebb_is_dry_run ())
    return self->step (model, self->data, error);
  budget->n_attempts++;
  if (self->step (model, self->data, &failure))
    return TRUE;
  if (budget->reason == NULL && failure != NULL)
    budget->reason = g_strdup (failure->message);
  if (failure != NULL)
    g_propagate_error (error, failure);
  return FALSE;
}

/* Takes the plan that needs least. */
static gboolean
take_least (EbbMemoryBudget *self,
            GError **error)
{
  if (!ebb_memory_plan_apply (self->plan, error))
    return FALSE;
  while (ebb_memory_plan_lower (self->plan, NULL))
    ;
  return TRUE;
}

/* Plans once more for the bytes that are left beside own bytes. @too_much: bytes over the budget, which the note names;
 * 0: there is room for more. A new plan is compared with its own second step. */
static gboolean
plan_again (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            guint64 too_much,
            GError **error)
{
  g_autoptr (EbbMemoryPlan) plan = NULL;
  const guint64 extent = self->extent, limit = self->limit;
  GError *failure = NULL;
  guint64 peak;

  self->is_outdated = FALSE;
  ebb_memory_plan_unapply (self->plan);
  ebb_memory_trim (subject->device); /* planning takes some, too */
  plan = ebb_budget_plan_again (self, subject, &failure);
  if (plan == NULL && !g_error_matches (failure, EBB_ERROR, EBB_ERROR_NO_MEMORY))
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  g_clear_error (&failure);
  if (plan != NULL && too_much == 0 && plan->seconds >= self->plan->seconds && extent <= self->heap)
    {
      g_clear_object (&plan);
      self->extent = extent;
      self->limit = limit;
      return ebb_memory_plan_apply (self->plan, error);
    }
  if (plan != NULL)
    {
      g_object_set (plan, "needs", self->plan->needs, NULL);
      g_set_object (&self->plan, plan);
      self->n_watched = 0;
    }
  if (!(plan != NULL ? ebb_budget_set_store (self, subject, plan, error) && ebb_memory_plan_apply (plan, error)
                     : take_least (self, error)))
    return FALSE;
  peak = ebb_budget_get_bytes (self->plan, "predicted-peak-bytes");
  self->is_least = plan == NULL && too_much > 0;
  if (plan == NULL)
    {
      self->limit = peak;
      self->heap = self->extent = MAX (self->heap, peak);
    }
  g_object_set (self->plan, "budget-bytes", self->limit, NULL);
  set_limit (self);
  if (too_much > 0)
    note (self,
          g_strdup_printf ("the training took %.1f MiB more than its budget of %.1f MiB; %s, whose peak is %.1f MiB",
                           (double) too_much / MIB, (double) self->total / MIB,
                           plan != NULL ? "it was planned again" : "it goes on with the plan that needs least",
                           (double) peak / MIB));
  return TRUE;
}

/* Counts own bytes after a step, before anything is given back: in the first steps, and where the process has grown
 * since. TRUE: they were counted. */
static gboolean
count_own_bytes (EbbMemoryBudget *self)
{
  const guint64 resident = ebb_budget_read_resident ();
  guint64 in_heap;

  if (self->n_steps > EBB_BUDGET_N_WATCHED && resident <= self->resident + GROWTH)
    return FALSE;
  self->resident = MAX (self->resident, resident);
  self->own_bytes = ebb_memory_budget_count_own_bytes ();
  self->retained = 0; /* it is there now */
  /* Tensors of a step may lie less densely than those of a dry step, which began with an empty heap. */
  in_heap = ebb_host_heap_get_resident (ebb_host_heap_get_own ());
  if (in_heap > self->heap)
    {
      self->lost = MAX (self->lost, in_heap - self->heap);
      self->extent = MAX (self->extent, in_heap);
    }
  return TRUE;
}

/* Plans again where own bytes leave less than the plan needs. After the first steps the next one begins with another
 * plan where they leave much more, or nothing for what comparing the step leaves behind. */
static gboolean
check_room (EbbMemoryBudget *self,
            const EbbBudgetSubject *subject,
            GError **error)
{
  const gboolean is_first = self->n_steps <= EBB_BUDGET_N_WATCHED;
  const guint64 most = ebb_budget_subtract (self->total, self->own_bytes + self->transient);

  /* Nothing was exceeded yet, but comparing the step with the plan leaves some behind. */
  if (self->n_steps == EBB_BUDGET_N_WATCHED && !self->is_corrected && most >= self->extent
      && most < self->extent + LEFT_BEHIND)
    self->is_outdated = TRUE;
  if (most < self->extent)
    {
      if (self->is_least || (self->is_corrected && is_first))
        return TRUE;
      self->is_corrected = TRUE;
      return plan_again (self, subject, self->extent - most, error);
    }
  if (most < self->heap)
    {
      self->heap = self->most = most;
      set_limit (self);
    }
  else if (self->n_steps == EBB_BUDGET_N_WATCHED && !self->is_corrected && !self->is_from_file
           && self->plan->seconds > 0
           && most >= self->extent + EBB_BUDGET_LATER_RESERVE + MAX (self->heap / PART_WORTH_PLANNING, PAGE))
    self->is_outdated = TRUE;
  return TRUE;
}

/* The bytes by which tensors of a device exceed the budget. */
static gboolean
check_device (EbbMemoryBudget *self,
              const EbbBudgetSubject *subject,
              GError **error)
{
  guint64 peak;

  if (self->is_corrected || self->n_steps > EBB_BUDGET_N_WATCHED)
    return TRUE;
  peak = get_peak (subject->device);
  if (peak <= MAX (self->limit, self->peak_before))
    return TRUE;
  self->is_corrected = TRUE;
  self->total = ebb_budget_subtract (self->total, peak - self->limit);
  return plan_again (self, subject, peak - self->limit, error);
}

/* A check that fails itself, for lack of memory for example, is no correction: the training goes on. */
static void
compare (EbbMemoryBudget *self,
         const EbbBudgetSubject *subject,
         Attempt *attempt)
{
  g_autoptr (GError) failure = NULL;

  ebb_memory_trim (subject->device); /* a dry step takes some, too */
  if (ebb_memory_plan_check_step (self->plan, run_attempt, attempt, &failure))
    return;
  if (g_error_matches (failure, EBB_ERROR, EBB_ERROR_STATE))
    note (self, g_strdup (failure->message));
  else
    {
      g_autofree char *text = g_strdup_printf ("the step wasn't compared with its plan: %s", failure->message);

      g_signal_emit (self, note_signal, 0, text);
    }
}

/**
 * ebb_memory_budget_run_step:
 * @self: a budget with a plan that is on the model
 * @step: (scope call) (closure user_data): the step that was planned
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Runs a step. If memory runs out in it before it has changed anything lasting, a lower plan takes over and the step
 * runs again with the same bits, as by ebb_memory_plan_run_step(). After the step own bytes are looked at: where they
 * leave less than the plan needs, the training is planned again; after the first two steps it is planned again for
 * more, too. The second step of a plan is compared with it. #EbbMemoryBudget::note names what was done.
 *
 * A step that several ranks run together only runs.
 *
 * Returns: %FALSE with what @step or planning reports; %EBB_ERROR_NO_MEMORY also says why the step can't run again;
 *   %EBB_ERROR_STATE without a plan
 */
gboolean
ebb_memory_budget_run_step (EbbMemoryBudget *self,
                            EbbStepFunc step,
                            gpointer user_data,
                            GError **error)
{
  Attempt attempt = { self, step, user_data };
  EbbBudgetSubject subject;
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbTrainingState) training = NULL;
  gboolean is_counted;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_BUDGET (self) && step != NULL, FALSE);

  if (self->plan == NULL || self->training == NULL)
    return ebb_fail (error, EBB_ERROR_STATE, "memory budget: there is no plan; ebb_memory_budget_plan () makes one");
  if (self->group != NULL || ebb_is_dry_run ())
    return step (self->training->module, user_data, error);
  if (!ebb_budget_subject_init (&subject, self, self->training, run_attempt, &attempt, error)
      || (self->is_outdated && !plan_again (self, &subject, 0, error)))
    return FALSE;
  self->n_attempts = 0;
  g_clear_pointer (&self->reason, g_free);
  plan = g_object_ref (self->plan);
  training = g_object_ref (self->training);
  if (!ebb_memory_plan_run_step (plan, training, run_attempt, &attempt, error))
    return FALSE;
  if (self->plan != plan)
    return ebb_fail (error, EBB_ERROR_STATE, "memory budget: the step released its plan: release it between steps");
  self->n_steps++;
  if (self->n_attempts > 1)
    {
      self->extent = MIN (self->extent, ebb_budget_get_bytes (self->plan, "predicted-peak-bytes"));
      note (self, g_strdup_printf ("%s; it ran again with a lower plan, whose peak is %.1f MiB", self->reason,
                                   (double) ebb_budget_get_bytes (self->plan, "predicted-peak-bytes") / MIB));
    }
  is_counted = subject.is_process && count_own_bytes (self);
  if (self->n_watched < EBB_BUDGET_N_WATCHED && ++self->n_watched == EBB_BUDGET_N_WATCHED)
    compare (self, &subject, &attempt);
  if (subject.is_process)
    return !is_counted || check_room (self, &subject, error);
  return check_device (self, &subject, error);
}

/**
 * ebb_memory_budget_get_plan:
 * @self: a budget
 *
 * Returns: (transfer none) (nullable): the plan that there is; %NULL if there is none
 */
EbbMemoryPlan *
ebb_memory_budget_get_plan (EbbMemoryBudget *self)
{
  g_return_val_if_fail (EBB_IS_MEMORY_BUDGET (self), NULL);

  return self->plan;
}

/**
 * ebb_memory_budget_to_json:
 * @self: a budget
 *
 * What the budget came to, as one JSON object: "budget_bytes"; of them "own_bytes", those of the program itself,
 * "heap_bytes" of each rank for tensors and the gaps between them, and "limit_bytes" for the tensors; "least_bytes",
 * the smallest budget that would do, if it is known, with its parts "tensors", "gaps" and "own" in "least"; "taken",
 * names of changes; "plan" as by ebb_memory_plan_to_json(), if there is one; and "corrections", the lines of what was
 * done while it trained to keep the budget.
 *
 * Returns: (transfer full): the object
 */
char *
ebb_memory_budget_to_json (EbbMemoryBudget *self)
{
  g_auto (EbbJsonWriter) writer = { NULL };
  g_autofree char *names = NULL, *plan = NULL;
  g_auto (GStrv) taken = NULL;

  g_return_val_if_fail (EBB_IS_MEMORY_BUDGET (self), NULL);

  names = ebb_concessions_to_string (self->taken);
  taken = g_strsplit (names, ",", -1);
  ebb_json_writer_begin (&writer, NULL, '{');
  ebb_json_writer_add_int (&writer, "budget_bytes", (gint64) MIN (self->total, (guint64) G_MAXINT64));
  ebb_json_writer_add_int (&writer, "own_bytes", (gint64) self->own_bytes);
  ebb_json_writer_add_int (&writer, "heap_bytes", (gint64) MIN (self->heap, (guint64) G_MAXINT64));
  ebb_json_writer_add_int (&writer, "limit_bytes", (gint64) MIN (self->limit, (guint64) G_MAXINT64));
  if (self->least_bytes > 0)
    ebb_json_writer_add_int (&writer, "least_bytes", (gint64) MIN (self->least_bytes, (guint64) G_MAXINT64));
  if (self->least.tensors > 0)
    {
      ebb_json_writer_begin (&writer, "least", '{');
      ebb_json_writer_add_int (&writer, "tensors", (gint64) self->least.tensors);
      ebb_json_writer_add_int (&writer, "gaps", (gint64) self->least.gaps);
      ebb_json_writer_add_int (&writer, "own", (gint64) self->least.own);
      ebb_json_writer_end (&writer);
    }
  ebb_json_writer_begin (&writer, "taken", '[');
  for (guint i = 0; taken[i] != NULL; i++)
    ebb_json_writer_add_string (&writer, NULL, taken[i]);
  ebb_json_writer_end (&writer);
  plan = self->plan != NULL ? ebb_memory_plan_to_json (self->plan) : NULL;
  if (plan != NULL)
    ebb_json_writer_add_json (&writer, "plan", plan);
  ebb_json_writer_begin (&writer, "corrections", '[');
  for (guint i = 0; i < self->notes->len; i++)
    ebb_json_writer_add_string (&writer, NULL, self->notes->pdata[i]);
  ebb_json_writer_end (&writer);
  ebb_json_writer_end (&writer);
  return ebb_json_writer_finish (&writer);
}

/* -- for a trainer ------------------------------------------------------------------------------------------------- */

void
ebb_memory_budget_set_poll (EbbMemoryBudget *self,
                            EbbBudgetPoll function,
                            gpointer data)
{
  self->poll = function;
  self->poll_data = data;
}

void
ebb_memory_budget_set_taken (EbbMemoryBudget *self,
                             EbbConcessions taken)
{
  self->taken = taken;
}

/* -- class --------------------------------------------------------------------------------------------------------- */

static void
ebb_memory_budget_init (EbbMemoryBudget *self)
{
  self->notes = g_ptr_array_new_with_free_func (g_free);
}

static void
ebb_memory_budget_dispose (GObject *object)
{
  ebb_memory_budget_release (EBB_MEMORY_BUDGET (object));
  G_OBJECT_CLASS (ebb_memory_budget_parent_class)->dispose (object);
}

static void
ebb_memory_budget_finalize (GObject *object)
{
  EbbMemoryBudget *self = EBB_MEMORY_BUDGET (object);

  g_clear_object (&self->store);
  g_clear_object (&self->group);
  g_free (self->plan_file);
  g_ptr_array_unref (self->notes);
  G_OBJECT_CLASS (ebb_memory_budget_parent_class)->finalize (object);
}

static void
ebb_memory_budget_class_init (EbbMemoryBudgetClass *klass)
{
  const GParamFlags reads = G_PARAM_READABLE | G_PARAM_STATIC_STRINGS;
  const GParamFlags flags = reads | G_PARAM_WRITABLE | G_PARAM_CONSTRUCT;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->dispose = ebb_memory_budget_dispose;
  object_class->finalize = ebb_memory_budget_finalize;
  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;

  /**
   * EbbMemoryBudget:bytes:
   *
   * The bytes of the budget; 0 for all bytes that are free when the training is planned, or for the budget of the plan
   * in #EbbMemoryBudget:plan-file.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, bytes),
                                   g_param_spec_uint64 ("bytes", NULL, NULL, 0, G_MAXUINT64, 0, flags));
  /**
   * EbbMemoryBudget:scope:
   *
   * The memory that the budget limits.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, scope),
                                   g_param_spec_enum ("scope", NULL, NULL, EBB_TYPE_MEMORY_SCOPE,
                                                      EBB_MEMORY_SCOPE_AUTO, flags));
  /**
   * EbbMemoryBudget:device:
   *
   * The device that computes; %NULL for the device of the model's parameters.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, device),
                                   g_param_spec_boxed ("device", NULL, NULL, EBB_TYPE_DEVICE, flags));
  /**
   * EbbMemoryBudget:allow:
   *
   * The changes of values that may be made to keep the budget.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, allow),
                                   g_param_spec_flags ("allow", NULL, NULL, EBB_TYPE_CONCESSIONS, EBB_CONCESSIONS_NONE,
                                                       flags));
  /**
   * EbbMemoryBudget:store:
   *
   * The store to which blocks may move what they keep for the backward pass; %NULL for none.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, store),
                                   g_param_spec_object ("store", NULL, NULL, EBB_TYPE_SAVED_TENSOR_HOOKS, flags));
  /**
   * EbbMemoryBudget:plan-file:
   *
   * A file from which the plan is read; if it is not there, the plan is made and written to it. %NULL for no file.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, plan_file),
                                   g_param_spec_string ("plan-file", NULL, NULL, NULL, flags));
  /**
   * EbbMemoryBudget:group:
   *
   * The ranks that plan together. %NULL if one process trains alone.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, group),
                                   g_param_spec_object ("group", NULL, NULL, EBB_TYPE_PROCESS_GROUP, flags));
  /**
   * EbbMemoryBudget:has:
   *
   * The changes of values that the training has by settings of its own. A plan of a file that was made with other
   * changes is refused.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, has),
                                   g_param_spec_flags ("has", NULL, NULL, EBB_TYPE_CONCESSIONS, EBB_CONCESSIONS_NONE,
                                                       flags));
  /**
   * EbbMemoryBudget:taken:
   *
   * The changes of values that were made to keep the budget.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, taken),
                                   g_param_spec_flags ("taken", NULL, NULL, EBB_TYPE_CONCESSIONS, EBB_CONCESSIONS_NONE,
                                                       reads));
  /**
   * EbbMemoryBudget:own-bytes:
   *
   * Resident bytes of the process that are no tensors, as last measured; 0 before the training is planned and with
   * %EBB_MEMORY_SCOPE_DEVICE.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, own_bytes),
                                   g_param_spec_uint64 ("own-bytes", NULL, NULL, 0, G_MAXUINT64, 0, reads));
  /**
   * EbbMemoryBudget:least-bytes:
   *
   * The bytes of the smallest budget with which the training would run, after one that was too small; G_MAXUINT64 if it
   * is not known. 0 otherwise.
   */
  g_object_class_install_property (object_class, offsetof (EbbMemoryBudget, least_bytes),
                                   g_param_spec_uint64 ("least-bytes", NULL, NULL, 0, G_MAXUINT64, 0, reads));

  /**
   * EbbMemoryBudget::note:
   * @self: the budget
   * @text: what was done, in one line
   *
   * Emitted where the training is planned again because it took more than its budget, where a step ran again with a
   * lower plan, and where a step wasn't as it was planned.
   */
  note_signal = g_signal_new ("note", EBB_TYPE_MEMORY_BUDGET, G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 1,
                              G_TYPE_STRING);
}
