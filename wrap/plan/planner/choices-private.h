/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/probe-private.h"

/* What a block may do within a plan, and what each choice keeps and takes, as dry steps show it. Blocks that run the
 * same ops have the same choices, so that one step tries as many choices as there are such blocks. */

G_BEGIN_DECLS

typedef struct
{
  gboolean is_checkpoint; /* else it keeps everything */
  EbbMemoryPlace place;   /* of what it keeps */
  EbbPlanOp *saved;
  guint n_saved;
  guint64 kept, rise, back_rise; /* bytes, as in EbbProbeStage; @kept: from the end of the forward to the backward */
  double seconds;                /* of the recompute, and of waits within the block */
  /* Of one that moves what it keeps, as in EbbChainOption; its @rise is above what blocks before it keep, its
   * @back_rise above what they keep and it keeps itself. */
  guint64 moving;
  double out_seconds, back_seconds;
} EbbPlanChoice;

/* The first choices of each class. */
enum
{
  EBB_PLAN_KEEP_ALL,
  EBB_PLAN_RECOMPUTE_ALL
};

/* An op of a block's forward. */
typedef struct
{
  const char *name;
  guint64 n_bytes;
  guint end; /* launches of the step after it */
  double seconds;
} EbbPlanTrace;

/* Blocks that run the same ops. */
typedef struct
{
  GArray *members;  /* guint: their numbers */
  GArray *choices;  /* of EbbPlanChoice; the first one keeps everything... */
  guint n_in_place; /* ...and those from here on move what they keep */
  GArray *ops;      /* of EbbPlanTrace: those of their forward */
} EbbPlanClass;

typedef struct _EbbPlanChoices EbbPlanChoices;

struct _EbbPlanChoices
{
  const EbbPlanChoices *untiled; /* whose probe and costs it has; NULL: it is that one itself */
  gint64 tile_rows;              /* of the tiles that MLPs have in all its steps; 0: they have none */
  EbbModule *model;
  EbbProcessGroup *group;     /* of whose ranks this is the first; NULL: there are no others */
  EbbMemoryPlace place;       /* to which blocks may move what they keep; the device: they may not */
  EbbSavedTensorHooks *store; /* which it stands for; NULL: one of the plan's own */
  GArray *blocks;             /* of EbbPlanBlock */
  EbbCostTable *costs;
  EbbProbe *probe;
  EbbProbeStep *none;      /* a step with nothing wrapped by the plan */
  GPtrArray *classes;      /* of EbbPlanClass: of the blocks that aren't taken */
  EbbPlanClass **class_of; /* by block; NULL: taken */
};

/* Finds what a plan for @device calls the place of @store, which may be NULL. FALSE with EBB_ERROR_INVALID_ARGUMENT if
 * plans move nothing to such a store. */
gboolean ebb_plan_find_place (EbbDevice *device,
                              EbbSavedTensorHooks *store,
                              EbbMemoryPlace *place,
                              GError **error);
/* A number of seconds: kernels have the times that are known, and only copies to the place of a store are timed. */
#define EBB_PLAN_TIMES_COPIES (-1.0)

/* Runs steps until the choices are known. Kernels whose time isn't known are measured for @max_seconds at most, with
 * operands of @max_bytes. Other ranks of the request's group call ebb_plan_choices_follow () until the plan is given to
 * them. */
EbbPlanChoices *ebb_plan_choices_new (const EbbPlanRequest *request,
                                      double max_seconds,
                                      guint64 max_bytes,
                                      GError **error);
EbbMemoryPlan *ebb_plan_choices_follow (const EbbPlanRequest *request,
                                        GError **error);
/* The same with the MLPs in tiles of @n_rows rows. @untiled must live as long. */
EbbPlanChoices *ebb_plan_choices_new_tiled (EbbPlanChoices *untiled,
                                            gint64 n_rows,
                                            double max_seconds,
                                            guint64 max_bytes,
                                            GError **error);
void ebb_plan_choices_free (EbbPlanChoices *self);
/* Adds a row for each block to @plan: what it does by @choices, which has a number for each block; those of blocks that
 * are taken are ignored. */
void ebb_plan_choices_fill (EbbPlanChoices *self,
                            const guint *choices,
                            EbbMemoryPlan *plan);
/* choices-subsets.c: adds the choices of keeping everything, of recomputing everything, and of saving the results of
 * one op. */
void ebb_plan_class_add_singles (EbbPlanClass *class);
/* The same of several ops, once the figures of those are known. */
void ebb_plan_class_add_subsets (EbbPlanClass *class);
/* A dry step with @plan. */
EbbProbeStep *ebb_plan_choices_try (EbbPlanChoices *self,
                                    EbbMemoryPlan *plan,
                                    GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbPlanChoices, ebb_plan_choices_free)

G_END_DECLS
