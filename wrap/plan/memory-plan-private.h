/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/plan/watch-private.h"

G_BEGIN_DECLS

#define EBB_N_MEMORY_PLACES 4

/* An op of a block's forward, whose results a checkpoint saves. */
typedef struct
{
  guint ordinal;    /* ops of the forward before it, as a policy counts them */
  const char *name; /* interned */
} EbbPlanOp;

/* What one block does. */
typedef struct
{
  char *path;             /* of the block */
  gboolean is_taken;      /* as its user has wrapped it; the choice is unset */
  gboolean is_checkpoint; /* else it keeps everything */
  EbbPlanOp *saved;       /* those of a checkpoint, in their order; none: everything is recomputed */
  guint n_saved;
  EbbMemoryPlace place; /* of what it keeps */
  guint64 kept_bytes;   /* on the budgeted device, from its forward to its backward */
  guint64 freed_bytes;  /* which it would keep without the plan */
  double seconds;       /* what it takes longer than without the plan */
} EbbPlanRow;

/* A choice for the whole step, as "mlp-tiles" and the rows of a tile. */
typedef struct
{
  char *name;
  gint64 value;
} EbbPlanRung;

struct _EbbMemoryPlan
{
  GObject parent_instance;

  EbbModule *model;      /* NULL: made without one, which can be looked at alone, or detached from it */
  GPtrArray *parameters; /* of a detached plan: as ebb_plan_describe_parameters () says of its model; else NULL */
  char *step;            /* shapes of what the step was planned for: "8 x 512 tokens" */
  GArray *rows;          /* of EbbPlanRow, in the order of the model's blocks */
  GArray *rungs;         /* of EbbPlanRung */
  guint64 budget_bytes, predicted_peak_bytes, least_bytes;
  guint64 unplanned_peak_bytes; /* of the step with nothing wrapped by the plan */
  double seconds;               /* what a step takes longer than that one */
  double step_seconds;          /* with the plan; 0: not estimated */
  gboolean is_on_ranks;         /* several ranks run the step together, so it never runs again */
  GStrv needs;                  /* changes of values that it was planned with, as "8bit-moments"; NULL: none */
  char *binds;                  /* where the peak is: "the backward of h.11" */
  EbbMemoryPlan *lower;         /* that takes less, made together with this one; NULL: none does */
  guint64 n_steps;              /* by ebb_memory_plan_run_step () */
  EbbPlanWatch *watch;          /* the second of them, until the next one; NULL: none */
  guint n_lowered;              /* how often a lower one has taken the place of what this was */

  EbbSavedTensorHooks *stores[EBB_N_MEMORY_PLACES];
  GArray *applied; /* of the wrappers that this has put on; NULL: not applied */
};

/* As ebb_memory_plan_new () and ebb_memory_plan_new_on_ranks (), with the seconds for which kernels may be measured: 0
 * takes the figures that are there. */
EbbMemoryPlan *ebb_memory_plan_make (EbbModule *model,
                                     EbbDevice *device,
                                     EbbSavedTensorHooks *store,
                                     EbbStepFunc step,
                                     gpointer user_data,
                                     guint64 budget_bytes,
                                     double max_seconds,
                                     GError **error);
EbbMemoryPlan *ebb_memory_plan_make_on_ranks (EbbModule *model,
                                              EbbDevice *device,
                                              EbbSavedTensorHooks *store,
                                              EbbProcessGroup *group,
                                              EbbStepFunc step,
                                              gpointer user_data,
                                              guint64 budget_bytes,
                                              double max_seconds,
                                              GError **error);
EbbMemoryPlan *ebb_memory_plan_new_empty (EbbModule *model);
/* As ebb_memory_plan_new_from_json (), of another rank's plan. */
EbbMemoryPlan *ebb_memory_plan_new_of_rank (EbbModule *model,
                                            const char *json,
                                            GError **error);
/* Takes the plan off its model and lets go of that and of the stores, so that the plan outlives a dry run. It can be
 * looked at, and be attached to a model of the same structure. */
void ebb_memory_plan_detach (EbbMemoryPlan *self);
/* FALSE with EBB_ERROR_STATE if @model has other parameters than the one that the plan was made for. */
gboolean ebb_memory_plan_attach (EbbMemoryPlan *self,
                                 EbbModule *model,
                                 GError **error);
/* An empty plan for the same model and budget, to which @self may be lowered. */
EbbMemoryPlan *ebb_memory_plan_new_below (EbbMemoryPlan *self);
void ebb_plan_row_clear (EbbPlanRow *row);
/* Takes the row. */
void ebb_memory_plan_add_row (EbbMemoryPlan *self,
                              const EbbPlanRow *row);
void ebb_memory_plan_add_rung (EbbMemoryPlan *self,
                               const char *name,
                               gint64 value);
/* FALSE with EBB_ERROR_STATE if there is no such rung, or not with this value. */
gboolean ebb_plan_rung_check (const EbbPlanRung *rung,
                              GError **error);
gboolean ebb_plan_row_equal (const EbbPlanRow *a,
                             const EbbPlanRow *b);

extern const char *const ebb_memory_place_names[EBB_N_MEMORY_PLACES];

/* The names of @model's parameters, each followed by what it is: "f32 [768, 2304]". */
GPtrArray *ebb_plan_describe_parameters (EbbModule *model);

G_END_DECLS
