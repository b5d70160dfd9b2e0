/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/column.h"
#include "dist/tensor-parallel/partition-private.h"
#include "dist/tensor-parallel/plan.h"
#include "dist/tensor-parallel/row.h"
#include "dist/tensor-parallel/vocab-embedding.h"
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
/* To what the ranks do in parts: x that all have, or the full of a divided sequence. */
EbbTensor *ebb_parallel_layer_enter (const EbbParallelLayer *self,
                                     EbbTensor *x,
                                     GError **error);
/* Back: the sum of what the ranks have, or this rank's part of it; may lie in the memory of @summand, which the caller
 * alone holds and reads no more. */
EbbTensor *ebb_parallel_layer_leave (const EbbParallelLayer *self,
                                     EbbTensor *summand,
                                     GError **error);

/* -- the classes --------------------------------------------------------------------------------------------------- */

struct _EbbColumnParallelLinear
{
  EbbLinear parent_instance;

  EbbParallelLayer layer;
  gboolean gather_output;
};

struct _EbbRowParallelLinear
{
  EbbLinear parent_instance;

  EbbParallelLayer layer;
  gboolean input_is_parallel;
};

struct _EbbVocabParallelEmbedding
{
  EbbEmbedding parent_instance;

  EbbParallelLayer layer;
  guint n_checked; /* forwards whose tokens were read from a device to compare them */
};

/* The parallel form of a Linear or an Embedding, with its parameters, which are cut already or about to be. Not of
 * other types. @cuts: of the weight and the bias; NULL: the bias stays full, or there is none. */
EbbModule *ebb_parallel_layer_adopt (EbbModule *old,
                                     EbbParallelStyle style,
                                     EbbParallelModel *model,
                                     EbbCut *const cuts[EBB_PARALLEL_MAX_CUTS],
                                     GError **error);

G_END_DECLS
