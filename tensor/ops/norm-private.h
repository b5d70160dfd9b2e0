/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"

/* Shared by the normalizations. */

G_BEGIN_DECLS

/* Inputs [first, first + n_names) are vectors of @size or left out, and everything is floating; makes them contiguous.
 */
gboolean ebb_norm_check (EbbOpCall *call,
                         guint first,
                         const char *const *names,
                         guint n_names,
                         gint64 size,
                         GError **error);
/* Describes @n outputs of one f32 for each row of input 0. */
void ebb_norm_add_statistics (EbbOpCall *call,
                              guint n);
/* Adds the gradient of vector @index to the launch's outputs, or nothing if it is not needed. */
gboolean ebb_norm_give_vector (EbbBackward *ctx,
                               EbbLaunch *launch,
                               guint index,
                               gint64 size,
                               gboolean *accumulate,
                               GError **error);

/* Makes a layer norm again from its input, weight and bias. */
gboolean ebb_layer_norm_rematerialize (const EbbRematerializeArgs *how,
                                       EbbTensor **operands,
                                       EbbTensor *output,
                                       GError **error);
/* Makes an RMS norm again from its input and weight. */
gboolean ebb_rms_norm_rematerialize (const EbbRematerializeArgs *how,
                                     EbbTensor **operands,
                                     EbbTensor *output,
                                     GError **error);

G_END_DECLS
