/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

/**
 * EbbParallelStyle:
 * @EBB_PARALLEL_STYLE_COLUMN: an #EbbLinear becomes an #EbbColumnParallelLinear, whose result stays sharded
 * @EBB_PARALLEL_STYLE_COLUMN_QKV: the same for a product of queries, keys and values side by side, each of which is
 *   sharded
 * @EBB_PARALLEL_STYLE_COLUMN_GATHERED: an #EbbLinear becomes an #EbbColumnParallelLinear, whose result is gathered: an
 *   output layer
 * @EBB_PARALLEL_STYLE_ROW: an #EbbLinear becomes an #EbbRowParallelLinear, whose input is sharded already
 * @EBB_PARALLEL_STYLE_ROW_SCATTERED: an #EbbLinear becomes an #EbbRowParallelLinear, whose input all ranks have
 * @EBB_PARALLEL_STYLE_VOCAB: an #EbbEmbedding becomes an #EbbVocabParallelEmbedding
 * @EBB_PARALLEL_STYLE_PARAMETER: a parameter, which the pattern names, is sharded along its first dimension, as the
 *   bias of a sharded output
 * @EBB_PARALLEL_STYLE_ATTENTION: a module whose projections are sharded by heads: its number of heads (the property
 *   "heads", if it has one) must be a multiple of the number of ranks, and the dropout of its weights differs between
 *   them
 * @EBB_PARALLEL_STYLE_SEQUENCE: a list or sequence of modules that is sequence-sharded inside, if
 *   #EbbParallelOptions:sequence-parallel is set
 *
 * How ranks shard a module, or a parameter, of a model.
 */
typedef enum
{
  EBB_PARALLEL_STYLE_COLUMN,
  EBB_PARALLEL_STYLE_COLUMN_QKV,
  EBB_PARALLEL_STYLE_COLUMN_GATHERED,
  EBB_PARALLEL_STYLE_ROW,
  EBB_PARALLEL_STYLE_ROW_SCATTERED,
  EBB_PARALLEL_STYLE_VOCAB,
  EBB_PARALLEL_STYLE_PARAMETER,
  EBB_PARALLEL_STYLE_ATTENTION,
  EBB_PARALLEL_STYLE_SEQUENCE
} EbbParallelStyle;

#define EBB_TYPE_PARALLEL_PLAN (ebb_parallel_plan_get_type ())

/**
 * EbbParallelPlan:
 *
 * Which modules of a tree are sharded over ranks, and how: patterns of paths, as in `h.*.attn.c_proj`, with a style for
 * each. `*` stands for one component of a path, between dots.
 */
typedef struct _EbbParallelPlan EbbParallelPlan;

EBB_AVAILABLE_IN_ALL
GType ebb_parallel_plan_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbParallelPlan *ebb_parallel_plan_new (void);

EBB_AVAILABLE_IN_ALL
EbbParallelPlan *ebb_parallel_plan_new_for (EbbModule *module,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbParallelPlan *ebb_parallel_plan_copy (const EbbParallelPlan *self);

EBB_AVAILABLE_IN_ALL
void ebb_parallel_plan_free (EbbParallelPlan *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_parallel_plan_add (EbbParallelPlan *self,
                                const char *pattern,
                                EbbParallelStyle style,
                                GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_parallel_plan_to_string (const EbbParallelPlan *self);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbParallelPlan, ebb_parallel_plan_free)

#define EBB_TYPE_PARALLEL_OPTIONS (ebb_parallel_options_get_type ())

/**
 * EbbParallelOptions:
 *
 * How ebb_parallelize() shards a model over ranks.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbParallelOptions, ebb_parallel_options, EBB, PARALLEL_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbParallelOptions *ebb_parallel_options_new (void);

G_END_DECLS
