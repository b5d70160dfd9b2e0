/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/dataset.h"

G_BEGIN_DECLS

#define EBB_TYPE_MASKED_DATASET (ebb_masked_dataset_get_type ())

/**
 * EbbMaskedDataset:
 *
 * Rows of another dataset for a masked language model, as BERT is trained: some tokens are masked, and those are the
 * targets.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMaskedDataset, ebb_masked_dataset, EBB, MASKED_DATASET, EbbDataset)

EBB_AVAILABLE_IN_ALL
EbbMaskedDataset *ebb_masked_dataset_new (EbbDataset *source,
                                          EbbTokenizer *tokenizer,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
gint64 ebb_masked_dataset_get_mask_token (EbbMaskedDataset *self);

EBB_AVAILABLE_IN_ALL
guint ebb_masked_dataset_get_vocab_size (EbbMaskedDataset *self);

G_END_DECLS
