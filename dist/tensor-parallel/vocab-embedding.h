/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/layers/embedding.h"

G_BEGIN_DECLS

#define EBB_TYPE_VOCAB_PARALLEL_EMBEDDING (ebb_vocab_parallel_embedding_get_type ())

/**
 * EbbVocabParallelEmbedding:
 *
 * An embedding of which each rank of a group has a shard of the rows (Shoeybi et al., "Megatron-LM: Training
 * Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3): each looks up its own rows,
 * returns zeros for the others, and the ranks' results are summed. Where the rows can't be divided evenly, the first
 * ranks have one more. If the output layer of a model shares the weight, each rank computes its shard of the logits,
 * and the loss doesn't gather them.
 *
 * The parameter is that of #EbbEmbedding, of which this rank has its shard; num-embeddings is that of the full table.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbVocabParallelEmbedding,
                      ebb_vocab_parallel_embedding,
                      EBB,
                      VOCAB_PARALLEL_EMBEDDING,
                      EbbEmbedding)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_vocab_parallel_embedding_new (int num_embeddings,
                                             int embedding_dim,
                                             EbbProcessGroup *group,
                                             GError **error);

G_END_DECLS
