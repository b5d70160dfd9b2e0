/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/partition-private.h"
#include "nn/layers/layer-private.h"

/* What parallel layers have in common: their ranks, the parameters that they have a part of, and how a tensor gets from
 * the computations that all ranks do alike to those that they divide, and back. */

G_BEGIN_DECLS

/* -- a parallelized model ------------------------------------------------------------------------------------------ */

/* What the layers of one model share. */
typedef struct
{
  int ref_count;
  EbbProcessGroup *group;
  gboolean has_sequence; /* made for sequence parallel... */
  gboolean sequence_on;  /* which is switched on */
} EbbParallelModel;

EbbParallelModel *ebb_parallel_model_new (EbbProcessGroup *group,
                                          gboolean has_sequence);
EbbParallelModel *ebb_parallel_model_ref (EbbParallelModel *self);
void ebb_parallel_model_unref (EbbParallelModel *self);
/* TRUE if this thread runs what lies between the boundaries where the sequence is divided, or runs it again. @self
 * NULL: FALSE. */
gboolean ebb_parallel_model_is_divided (EbbParallelModel *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbParallelModel, ebb_parallel_model_unref)

/* The boundary of a stack, see nn/layers/stack-private.h, inside which the sequence is divided. */
void ebb_parallel_sequence_install (EbbModule *stack,
                                    EbbParallelModel *model);
/* The parameters of a normalisation inside, which each rank applies to its part of the sequence: their gradients are
 * summed over the ranks. */
void ebb_parallel_sequence_share (EbbModule *norm,
                                  EbbParallelModel *model);
/* What draws on tensors that differ between the ranks draws from the tracker's generator. @n_heads: of the full, of
 * which the ranks have their parts; 0: not known. */
void ebb_parallel_attention_install (EbbModule *attention,
                                     gint64 n_heads,
                                     EbbProcessGroup *group);
gboolean ebb_parallel_attention_is_installed (EbbModule *attention);

/* -- a layer ------------------------------------------------------------------------------------------------------- */

#define EBB_PARALLEL_MAX_CUTS 2

typedef struct
{
  EbbProcessGroup *group;  /* NULL until built */
  EbbParallelModel *model; /* NULL: it was made by itself */
  EbbCut *cuts[EBB_PARALLEL_MAX_CUTS];
  guint n_cuts;
  gboolean adopts; /* building makes no parameters: those of another layer are taken over */
} EbbParallelLayer;

void ebb_parallel_layer_clear (EbbParallelLayer *self);
/* Takes the default group if there is none. */
void ebb_parallel_layer_begin (EbbParallelLayer *self);
/* Cuts @parameter, which was just made; NULL: nothing to do. */
gboolean ebb_parallel_layer_cut (EbbParallelLayer *self,
                                 EbbTensor *parameter,
                                 const char *name,
                                 guint dim,
                                 GError **error);
/* A layer of @type, not built yet, in the place of @old: training as it is, of its model. */
EbbModule *ebb_parallel_layer_adopt (EbbModule *made,
                                     EbbParallelLayer *layer,
                                     EbbModule *old,
                                     EbbParallelModel *model,
                                     EbbCut *const *cuts,
                                     guint n_cuts,
                                     GError **error);

/* To what the ranks do in parts: x that all have, or the full of a divided sequence. */
EbbTensor *ebb_parallel_layer_enter (const EbbParallelLayer *self,
                                     EbbTensor *x,
                                     GError **error);
/* Back: the sum of what the ranks have, or this rank's part of it; may lie in the memory of @summand, which the caller
 * alone holds and reads no more. */
EbbTensor *ebb_parallel_layer_leave (const EbbParallelLayer *self,
                                     EbbTensor *summand,
                                     GError **error);

/* -- taking over --------------------------------------------------------------------------------------------------- */

/* The parallel forms of existing layers, with their parameters, which are cut already or about to be. @bias NULL: none,
 * or one that stays full. */
EbbModule *ebb_column_parallel_linear_adopt (EbbModule *linear,
                                             gboolean gather_output,
                                             EbbParallelModel *model,
                                             EbbCut *weight,
                                             EbbCut *bias,
                                             GError **error);
EbbModule *ebb_row_parallel_linear_adopt (EbbModule *linear,
                                          gboolean input_is_parallel,
                                          EbbParallelModel *model,
                                          EbbCut *weight,
                                          GError **error);
EbbModule *ebb_vocab_parallel_embedding_adopt (EbbModule *embedding,
                                               EbbParallelModel *model,
                                               EbbCut *weight,
                                               GError **error);

G_END_DECLS
