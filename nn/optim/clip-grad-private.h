/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/clip-grad.h"

G_BEGIN_DECLS

gboolean ebb_check_clip (double max_norm,
                         double p,
                         GError **error);
/* The p-norm of all gradients: each gradient by a kernel, their sum in double in the order given. */
gboolean ebb_compute_grad_norm (EbbTensor **parameters,
                                guint n_parameters,
                                double p,
                                double *norm,
                                GError **error);
/* At most 1; 1 if @norm is not finite. */
double ebb_get_clip_factor (double norm,
                            double max_norm);

G_END_DECLS
