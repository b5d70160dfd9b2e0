/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/pass-private.h"
#include "train/source-private.h"

/* The loss of a model on data that it is not trained on. */

G_BEGIN_DECLS

/* Measures the mean over what counts in @data, or without it in what the evaluate function gives. Training is as if it
 * had not been: modes and generators stay. It ends early, with NaN, if a rank is cancelled. */
gboolean ebb_train_evaluate (EbbTrainPass *pass,
                             EbbTrainSource *source,
                             EbbDataset *data,
                             double *loss,
                             GError **error);

G_END_DECLS
