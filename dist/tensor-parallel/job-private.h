/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/layer-private.h"
#include "dist/tensor-parallel/plan-private.h"

/* What a plan does to a module tree: found and checked first, then made ready, then done. Nothing is sent. */

G_BEGIN_DECLS

typedef struct
{
  EbbParallelStyle style;
  char *path;
  EbbModule *module;    /* a reference */
  EbbTensor *parameter; /* of PARAMETER: a reference */
  guint n_sections;
  EbbModule *made; /* what takes the place of @module; NULL until it is ready, and where none does */
} EbbParallelStep;

typedef struct
{
  EbbModule *root;
  EbbProcessGroup *group;
  const EbbParallelPlan *plan;
  gboolean sequence;    /* is to be divided */
  GArray *steps;        /* of EbbParallelStep */
  GHashTable *layers;   /* module -> its path, of those that a style divides */
  GHashTable *cuts;     /* parameter -> EbbCut, when ready */
  GPtrArray *kept_cuts; /* of PARAMETER, for whoever keeps the model's state */
  EbbParallelModel *model;
} EbbParallelJob;

EbbParallelJob *ebb_parallel_job_new (EbbModule *root,
                                      EbbProcessGroup *group,
                                      const EbbParallelPlan *plan,
                                      gboolean sequence);
void ebb_parallel_job_free (EbbParallelJob *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbParallelJob, ebb_parallel_job_free)

/* Finds what the plan's patterns mean, and whether it can be done. */
gboolean ebb_parallel_job_check (EbbParallelJob *self,
                                 GError **error);
/* Makes layers and describes parts; the tree is as before. */
gboolean ebb_parallel_job_prepare (EbbParallelJob *self,
                                   GError **error);
/* Makes the parts, from the values that the parameters have now. */
gboolean ebb_parallel_job_take (EbbParallelJob *self,
                                GError **error);
/* Exchanges them; can't fail. */
void ebb_parallel_job_apply (EbbParallelJob *self);

/* "12 heads can't be divided among 5 ranks" */
gboolean ebb_parallel_check_heads (const char *path,
                                   gint64 n_heads,
                                   EbbProcessGroup *group,
                                   GError **error);
/* Fails while a graph holds a parameter of @root; @what is to be done. */
gboolean ebb_parallel_check_no_graph (EbbModule *root,
                                      const char *what,
                                      GError **error);

G_END_DECLS
