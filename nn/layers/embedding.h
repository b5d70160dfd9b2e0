/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_EMBEDDING (ebb_embedding_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbEmbedding, ebb_embedding, EBB, EMBEDDING, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_embedding_new (int num_embeddings,
                              int embedding_dim,
                              GError **error);

G_END_DECLS
