/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/layers/embedding.h"

G_BEGIN_DECLS

#define EBB_TYPE_VOCAB_PARALLEL_EMBEDDING (ebb_vocab_parallel_embedding_get_type ())

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
