/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

/**
 * EbbParallelStyle:
 * @EBB_PARALLEL_STYLE_COLUMN: an #EbbLinear becomes an #EbbColumnParallelLinear, whose result stays divided
 * @EBB_PARALLEL_STYLE_COLUMN_QKV: the same of a product that gives queries, keys and values side by side, each of which
 *   is divided
 * @EBB_PARALLEL_STYLE_COLUMN_GATHERED: an #EbbLinear becomes an #EbbColumnParallelLinear, whose result is gathered: an
 *   output layer
 * @EBB_PARALLEL_STYLE_ROW: an #EbbLinear becomes an #EbbRowParallelLinear, whose input is divided already
 * @EBB_PARALLEL_STYLE_ROW_SCATTERED: an #EbbLinear becomes an #EbbRowParallelLinear, whose input all ranks have
 * @EBB_PARALLEL_STYLE_VOCAB: an #EbbEmbedding becomes an #EbbVocabParallelEmbedding
 * @EBB_PARALLEL_STYLE_PARAMETER: a parameter, which the pattern names, is cut along its first dimension: what goes with
 *   an output that is divided, as its bias
 * @EBB_PARALLEL_STYLE_ATTENTION: a module whose projections are divided by heads: its number of heads (the property
 *   "heads", if it has one) must be a multiple of the ranks, and what it draws, the dropout of its weights, differs
 *   between them
 * @EBB_PARALLEL_STYLE_SEQUENCE: a list or sequence of modules between which the sequence is divided, if
 *   #EbbParallelOptions:sequence-parallel asks for it
 *
 * What becomes of a module, or of a parameter, when ranks divide a model.
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
 * Which modules of a tree are divided among ranks, and how: patterns of paths, as in `h.*.attn.c_proj`, with a style
 * for each. `*` stands for one part of a path, between dots.
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
 * How ebb_parallelize() divides a model among ranks.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbParallelOptions, ebb_parallel_options, EBB, PARALLEL_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbParallelOptions *ebb_parallel_options_new (void);

G_END_DECLS
