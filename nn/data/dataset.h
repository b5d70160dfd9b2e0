/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"
#include "nn/data/tokenizer.h"

G_BEGIN_DECLS

#define EBB_TYPE_DATASET (ebb_dataset_get_type ())

/**
 * EbbDataset:
 *
 * Rows of tokens to train on, in an order that a seed and a position name: #EbbTextDataset, #EbbDocumentDataset and
 * #EbbMaskedDataset. Each epoch takes each row once, in an order of its own.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbDataset, ebb_dataset, EBB, DATASET, GObject)

/**
 * EbbDatasetClass:
 *
 * The class of datasets. They are the library's own.
 */
struct _EbbDatasetClass
{
  GObjectClass parent_class;

  /*< private >*/
  gconstpointer kind;
  gpointer padding[4];
};

EBB_AVAILABLE_IN_ALL
gint64 ebb_dataset_get_n_tokens (EbbDataset *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_dataset_check_context (EbbDataset *self,
                                    gint64 context,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
gint64 ebb_dataset_get_n_rows (EbbDataset *self,
                               gint64 context);

EBB_AVAILABLE_IN_ALL
gboolean ebb_dataset_get_rows (EbbDataset *self,
                               gint64 n_rows,
                               gint64 context,
                               EbbTensor **tokens,
                               EbbTensor **targets,
                               EbbTensor **starts,
                               GError **error);

EBB_AVAILABLE_IN_ALL
EbbDataset *ebb_dataset_hold_out (EbbDataset *self,
                                  double share,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_dataset_get_state (EbbDataset *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_dataset_load_state (EbbDataset *self,
                                 EbbArgs *state,
                                 GError **error);

G_END_DECLS
