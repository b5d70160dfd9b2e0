/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/column.h"
#include "dist/tensor-parallel/partition-private.h"
#include "dist/tensor-parallel/plan.h"
#include "dist/tensor-parallel/row.h"
#include "dist/tensor-parallel/vocab-embedding.h"
#include "nn/layers/layer-private.h"

/* Common to parallel layers: their ranks, their sharded parameters, and how a tensor enters and leaves a computation
 * that the ranks share. */

G_BEGIN_DECLS

/* -- a parallelized model ------------------------------------------------------------------------------------------ */

/* Shared by the layers of one model. */
typedef struct
{
  int ref_count;
  EbbProcessGroup *group;
  gboolean has_sequence; /* made for sequence parallel */
  gboolean sequence_on;  /* sequence parallel is switched on */
} EbbParallelModel;

EbbParallelModel *ebb_parallel_model_new (EbbProcessGroup *group,
                                          gboolean has_sequence);
EbbParallelModel *ebb_parallel_model_ref (EbbParallelModel *self);
void ebb_parallel_model_unref (EbbParallelModel *self);
/* TRUE if this thread runs a forward, or a recompute, between the boundaries inside which tensors are sequence-sharded.
 * @self NULL: FALSE. */
gboolean ebb_parallel_model_is_sequence_sharded (EbbParallelModel *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbParallelModel, ebb_parallel_model_unref)

/* Makes the modules inside @stack sequence-sharded, see nn/layers/stack-private.h. */
void ebb_parallel_sequence_install (EbbModule *stack,
                                    EbbParallelModel *model);
/* Sums the gradients of a norm's parameters over the ranks, each of which applies them to its shard of the sequence. */
void ebb_parallel_sequence_share (EbbModule *norm,
                                  EbbParallelModel *model);
/* Sums the gradients of the norms of queries and keys over the ranks, each of which applies them to its heads. */
void ebb_parallel_attention_share_norms (EbbModule *attention,
                                         EbbParallelModel *model);
/* Lets the input of attention or of an MLP enter once for all of its products, whose layers have is_entered. */
void ebb_parallel_input_share (EbbModule *module,
                               EbbParallelModel *model);
/* Makes dropout of attention, whose tensors differ between the ranks, draw from the tracker's generator. @n_heads:
 * those of all ranks; 0: not known. */
void ebb_parallel_attention_install (EbbModule *attention,
                                     gint64 n_heads,
                                     EbbProcessGroup *group);
gboolean ebb_parallel_attention_is_installed (EbbModule *attention);

/* -- a layer ------------------------------------------------------------------------------------------------------- */

#define EBB_PARALLEL_MAX_CUTS 3

typedef struct
{
  EbbProcessGroup *group;  /* NULL until built */
  EbbParallelModel *model; /* NULL: it was made by itself */
  EbbCut *cuts[EBB_PARALLEL_MAX_CUTS];
  guint n_cuts;
  gboolean adopts;     /* building makes no parameters, since another layer's are taken over */
  gboolean is_entered; /* the caller passes an input that has entered already, or, to a row layer, its shard */
} EbbParallelLayer;

void ebb_parallel_layer_clear (EbbParallelLayer *self);
/* Draws the full parameters as @parent_class does, so that the numbers don't depend on the ranks, and cuts the weight
 * along @dim, with 0 the bias too. Takes the default group if none was given. */
gboolean ebb_parallel_layer_build (EbbParallelLayer *self,
                                   EbbModule *module,
                                   gpointer parent_class,
                                   guint dim,
                                   GError **error);

#define EBB_SEQUENCE_DIM 1 /* of [B, T, C] */

/* Passes @x to the computation that the ranks share; gathers it if it is sequence-sharded. @model may be NULL. */
EbbTensor *ebb_parallel_enter (EbbParallelModel *model,
                               EbbProcessGroup *group,
                               EbbTensor *x,
                               GError **error);
/* The same for a layer, unless its input has entered already. */
EbbTensor *ebb_parallel_layer_enter (const EbbParallelLayer *self,
                                     EbbTensor *x,
                                     GError **error);
/* Sums the ranks' results; if tensors are sequence-sharded here, returns this rank's shard of the sum. The result may
 * lie in the memory of @summand, which only the caller holds and reads no more. */
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

/* -- quantised weights --------------------------------------------------------------------------------------------- */

/* How many sections of the weight's codes, or of its scales, are sharded along dimension @dim of each: see
 * EbbPartition. Blocks of nf4 lie row after row, so a shard of its columns is one of each row. */
typedef struct
{
  guint dim, n_sections;
} EbbQuantizedCut;

/* Plans to shard @weight [rows, columns] along @dim in @n_sections: how codes are cut and, unless each rank has all of
 * them, scales. Returns this rank's shard in @shard: its tensors are those of @weight, not owned, and are cut later;
 * the caller frees its nested_index. FALSE with an error that names @name if a rank would have parts of blocks. */
gboolean ebb_parallel_quantized_plan (const EbbQuantizedWeight *weight,
                                      const char *name,
                                      guint dim,
                                      guint n_sections,
                                      EbbProcessGroup *group,
                                      EbbQuantizedCut *codes,
                                      EbbQuantizedCut *scales,
                                      EbbQuantizedWeight *shard,
                                      GError **error);

G_END_DECLS
