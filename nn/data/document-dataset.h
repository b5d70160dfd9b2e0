/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/chat-template.h"
#include "nn/data/dataset.h"

G_BEGIN_DECLS

#define EBB_TYPE_DOCUMENT_DATASET (ebb_document_dataset_get_type ())

/**
 * EbbDocumentDataset:
 *
 * Documents, packed into rows in which they don't see each other: JSON lines with `text`, with `prompt` and
 * `completion`, or with `messages`; or whole text files.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbDocumentDataset, ebb_document_dataset, EBB, DOCUMENT_DATASET, EbbDataset)

EBB_AVAILABLE_IN_ALL
EbbDocumentDataset *ebb_document_dataset_new (const char *const *paths,
                                              EbbTokenizer *tokenizer,
                                              guint64 seed,
                                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbDocumentDataset *ebb_document_dataset_new_from_bytes (GBytes *lines,
                                                         EbbTokenizer *tokenizer,
                                                         guint64 seed,
                                                         GError **error);

EBB_AVAILABLE_IN_ALL
gint64 ebb_document_dataset_get_n_documents (EbbDocumentDataset *self);

EBB_AVAILABLE_IN_ALL
gint64 ebb_document_dataset_get_n_left_out (EbbDocumentDataset *self);

EBB_AVAILABLE_IN_ALL
gint64 ebb_document_dataset_count_split (EbbDocumentDataset *self,
                                         gint64 context);

G_END_DECLS
