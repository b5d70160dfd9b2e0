/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/dataset.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_dataset_check_files (const char *const *paths,
                                  const char *held_out,
                                  gboolean pack,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
EbbDataset *ebb_dataset_open (const char *const *paths,
                              EbbTokenizer *tokenizer,
                              gboolean pack,
                              guint64 seed,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbDataset *ebb_dataset_open_held_out (const char *held_out,
                                       EbbDataset *data,
                                       EbbTokenizer *tokenizer,
                                       gboolean pack,
                                       guint64 seed,
                                       GError **error);

G_END_DECLS
