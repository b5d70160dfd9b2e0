/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/text-dataset.h"

G_BEGIN_DECLS

/* Fails if ebb_text_dataset_load_state () would. */
gboolean ebb_text_dataset_check_state (EbbTextDataset *self,
                                       EbbArgs *state,
                                       GError **error);

G_END_DECLS
