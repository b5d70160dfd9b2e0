/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* --memory, --plan and --checkpoint auto: the memory budget of the training. */

G_BEGIN_DECLS

/* How long kernels are timed that this machine hasn't timed before. */
#define PLANNING_MAX_SECONDS 5

typedef struct
{
  Ranks *ranks;                 /* each has a Planning with the same figures; NULL: one process trains alone */
  EbbMemoryBudget *budget;      /* NULL: the training has none */
  gboolean draws;               /* the step without the plan, too */
  char *taken;                  /* of what --allow names; NULL: nothing */
  EbbMemoryTimeline *unplanned; /* of a step without the plan, by a dry run, for --memory-timeline; or NULL */
} Planning;

/* Plans, by dry runs of the training, before any memory is taken for it. Refuses a budget that is too small. @ranks:
 * NULL where one process trains alone. */
gboolean planning_init (Planning *self,
                        Options *options,
                        Ranks *ranks,
                        GError **error);
void planning_clear (Planning *self);
/* Puts the plan onto the model, writes it to the file of --plan, and prints it. From then on tensors have the limit. */
gboolean planning_apply (Planning *self,
                         Trainer *trainer,
                         GError **error);
/* FALSE with G_IO_ERROR_CANCELLED after Ctrl-C, SIGTERM, or SIGHUP; on ranks as of their last exchange. */
gboolean planning_refuse_interrupt (Ranks *ranks,
                                    GError **error);
/* An EbbStepFunc: a step of @trainer, which such a signal ends. */
gboolean planning_run_step (EbbModule *model,
                            gpointer trainer,
                            GError **error);
/* The parts of the least --memory, in bytes. */
typedef struct
{
  guint64 tensors; /* the least for which there is a plan, of the rank that needs most */
  guint64 gaps;    /* between that rank's tensors; 0 on an accelerator */
  guint64 own;     /* the process itself takes, beside the tensors of all its ranks; 0 on an accelerator */
  guint64 all;     /* the sum, with the tensors and gaps of all ranks of this process */
} PlanningNeed;

/* Finds them, in a dry run. Collective. */
gboolean planning_find_need (Trainer *trainer,
                             PlanningNeed *need,
                             GError **error);
/* A number of what ebb_memory_budget_to_json () says, as "limit_bytes". */
guint64 planning_get_bytes (EbbMemoryBudget *budget,
                            const char *name);
/* Adds budget, prediction and plan to a report. */
void planning_add_json (const Trainer *trainer,
                        JsonBuilder *builder);

G_END_DECLS
