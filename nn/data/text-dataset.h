/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/dataset.h"

G_BEGIN_DECLS

#define EBB_TYPE_TEXT_DATASET (ebb_text_dataset_get_type ())

/**
 * EbbTextDataset:
 *
 * Text as a stream of tokens, and batches of windows out of it.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbTextDataset, ebb_text_dataset, EBB, TEXT_DATASET, EbbDataset)

EBB_AVAILABLE_IN_ALL
EbbTextDataset *ebb_text_dataset_new (const char *const *paths,
                                      EbbTokenizer *tokenizer,
                                      guint64 seed,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTextDataset *ebb_text_dataset_new_from_bytes (GBytes *text,
                                                 EbbTokenizer *tokenizer,
                                                 guint64 seed,
                                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_text_dataset_get_batch (EbbTextDataset *self,
                                     gint64 batch,
                                     gint64 context,
                                     EbbTensor **tokens,
                                     EbbTensor **targets,
                                     GError **error);

G_END_DECLS
