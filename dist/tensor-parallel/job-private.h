/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/layer-private.h"
#include "dist/tensor-parallel/plan-private.h"

/* Applies a plan to a module tree: matches it (match.c), then prepares, takes and applies its steps (apply.c). Nothing
 * is sent. */

G_BEGIN_DECLS

typedef struct
{
  EbbParallelStyle style;
  char *path;
  EbbModule *module;    /* a reference */
  EbbTensor *parameter; /* of PARAMETER: a reference */
  guint n_sections;
  EbbModule *made; /* replaces @module; NULL until it is prepared, and for styles that replace nothing */
} EbbParallelStep;

typedef struct
{
  EbbModule *root;
  EbbProcessGroup *group;
  const EbbParallelPlan *plan;
  gboolean sequence;    /* shard it */
  GArray *steps;        /* of EbbParallelStep */
  GHashTable *layers;   /* module -> its path, for modules that a style shards */
  GHashTable *cuts;     /* parameter -> EbbCut, when ready */
  GPtrArray *kept_cuts; /* of PARAMETER, which the parallelized model holds */
  EbbParallelModel *model;
} EbbParallelJob;

EbbParallelJob *ebb_parallel_job_new (EbbModule *root,
                                      EbbProcessGroup *group,
                                      const EbbParallelPlan *plan,
                                      gboolean sequence);
void ebb_parallel_job_free (EbbParallelJob *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbParallelJob, ebb_parallel_job_free)

/* Matches the plan's patterns with the tree, and checks the steps that follow from them. */
gboolean ebb_parallel_job_check (EbbParallelJob *self,
                                 GError **error);
/* Makes layers and cuts; the tree doesn't change. */
gboolean ebb_parallel_job_prepare (EbbParallelJob *self,
                                   GError **error);
/* Copies the shards of the parameters. */
gboolean ebb_parallel_job_take (EbbParallelJob *self,
                                GError **error);
/* Puts layers and shards in place; can't fail. */
void ebb_parallel_job_apply (EbbParallelJob *self);

/* The property "heads" of an attention; 0: it has none. */
gint64 ebb_parallel_get_heads (EbbModule *module);
/* "12 heads can't be divided among 5 ranks". @n_kv_heads: those of keys and values. */
gboolean ebb_parallel_check_heads (const char *path,
                                   gint64 n_heads,
                                   gint64 n_kv_heads,
                                   EbbProcessGroup *group,
                                   GError **error);
/* Fails while a graph holds a parameter of @root; @what names the attempt. */
gboolean ebb_parallel_check_no_graph (EbbModule *root,
                                      const char *what,
                                      GError **error);

G_END_DECLS
