/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/memory-budget.h"

/* A budget as a trainer uses it. For parts that new_within () makes in a dry run, ebb_memory_budget_plan () plans; the
 * next call of it, outside, puts that plan onto the real parts. ebb_concessions_search () goes around the attempts. */

G_BEGIN_DECLS

/* Called between plans, on all ranks the same number of times. FALSE with an error, on all ranks alike, ends planning.
 */
typedef gboolean (*EbbBudgetPoll) (gpointer data,
                                   GError **error);

void ebb_memory_budget_set_poll (EbbMemoryBudget *self,
                                 EbbBudgetPoll poll,
                                 gpointer data);
/* The changes that a search has made. */
void ebb_memory_budget_set_taken (EbbMemoryBudget *self,
                                  EbbConcessions taken);
/* Resident bytes of this process that are no blocks of the heap of tensors. Waits for nothing; trim the heap and
 * malloc () before, where what lies free is not to count. */
guint64 ebb_memory_budget_count_own_bytes (void);

/* -- between the files of a budget --------------------------------------------------------------------------------- */

/* The bytes of the smallest budget. */
typedef struct
{
  guint64 tensors; /* of the rank that needs most */
  guint64 gaps;    /* between them; 0 on a device */
  guint64 own;     /* the program itself; 0 on a device */
} EbbBudgetLeast;

struct _EbbMemoryBudget
{
  GObject parent_instance;

  guint64 bytes; /* 0: all that is free */
  EbbMemoryScope scope;
  EbbDevice *device; /* NULL: that of the model's parameters */
  EbbConcessions allow, has, taken;
  EbbSavedTensorHooks *store; /* NULL: blocks move nothing */
  char *plan_file;            /* NULL: the plan is in no file */
  EbbProcessGroup *group;     /* NULL: one process trains alone */
  guint64 own_bytes;          /* 0: not measured yet */
  guint64 least_bytes;        /* 0: not known */
  EbbBudgetPoll poll;
  gpointer poll_data;

  /* The plan. */
  EbbMemoryPlan *plan;  /* NULL: there is none */
  gboolean is_detached; /* made in a dry run, for parts that come */
  gboolean is_from_file;
  guint64 total;     /* what of "bytes" became */
  guint64 heap;      /* of each rank: for its tensors and the gaps between them */
  guint64 most;      /* the heap if nothing is held back for growth */
  guint64 limit;     /* of each rank: for its tensors */
  guint64 extent;    /* the heap that the plan needs */
  guint64 retained;  /* own bytes that trimming gives back and each step takes again */
  guint64 transient; /* own bytes that libraries take within a step and give back */
  guint64 lost;      /* of the heap, to gaps that dry steps don't have */
  guint n_here;      /* ranks of this process, which share the budget */
  guint n_threads;   /* of the rank that has most */
  EbbBudgetLeast least;

  /* The training. */
  EbbTrainingState *training;
  EbbDevice *held;     /* the device whose limit the budget has set; NULL: none */
  guint64 peak_before; /* of the tensors of the device, before the training */
  guint n_attempts;    /* at the step that runs */
  char *reason;        /* why the first one failed; NULL: it didn't */
  guint n_watched;     /* steps that were compared with the plan that there is */
  guint n_steps;
  gboolean is_corrected; /* it was planned again for less, which the first steps cause once */
  gboolean is_outdated;  /* the next step begins with another plan */
  gboolean is_least;     /* it goes on with the plan that needs least, though that is too much */
  guint64 resident;      /* after the last step that was looked at */
  GPtrArray *notes;
};

/* What is planned for. */
typedef struct
{
  EbbModule *model;
  EbbDevice *device;
  gboolean is_process; /* the budget is one of resident bytes */
  EbbStepFunc step;
  gpointer data;
} EbbBudgetSubject;

gboolean ebb_budget_subject_init (EbbBudgetSubject *self,
                                  EbbMemoryBudget *budget,
                                  EbbTrainingState *training,
                                  EbbStepFunc step,
                                  gpointer data,
                                  GError **error);
/* The store that the budget names takes the place of one that @plan would make. */
gboolean ebb_budget_set_store (EbbMemoryBudget *self,
                               const EbbBudgetSubject *subject,
                               EbbMemoryPlan *plan,
                               GError **error);
/* Reads the plan of the file, or makes one. Collective, as all that has a group. */
gboolean ebb_budget_find_plan (EbbMemoryBudget *self,
                               const EbbBudgetSubject *subject,
                               GError **error);
/* A plan for the bytes that are left beside own bytes, as these were last counted. */
EbbMemoryPlan *ebb_budget_plan_again (EbbMemoryBudget *self,
                                      const EbbBudgetSubject *subject,
                                      GError **error);
/* A uint64 property of @plan. */
guint64 ebb_budget_get_bytes (EbbMemoryPlan *plan,
                              const char *property);
/* @a - @b, or 0 where @b is more. */
static inline guint64
ebb_budget_subtract (guint64 a,
                     guint64 b)
{
  return a > b ? a - b : 0;
}
/* Resident bytes of the process, nearly: the system counts some pages of each thread later. */
guint64 ebb_budget_read_resident (void);

/* Held back for the growth of own bytes while the first steps of a plan run, which are tables and threads' stacks, and
 * for a huge page that the heap needs beyond a dry run's. */
#define EBB_BUDGET_RESERVE ((guint64) 13 << 18)
/* The same after these, for what planning again leaves behind. */
#define EBB_BUDGET_LATER_RESERVE ((guint64) 11 << 18)
/* Steps that are compared with the plan; the first one makes the optimizer's state. */
#define EBB_BUDGET_N_WATCHED 2

G_END_DECLS
