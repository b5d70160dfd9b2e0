/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/clip-grad.h"

G_BEGIN_DECLS

gboolean ebb_check_clip (double max_norm,
                         double p,
                         GError **error);
/* What scales gradients already: the host's factor times that of a device, f32 [1], or NULL. */
typedef struct
{
  double scale;
  EbbTensor *factor;
} EbbGradScale;

/* The p-norm of all gradients times what scales them, f32 []: each gradient by a kernel, their sum in f64 in the order
 * given, by kernels too; the host waits for nothing. @factor: (out) (transfer full): f32 [1], by which gradients times
 * the host's and the device's factor are clipped to @max_norm: all three in one. NULL with @error set. */
EbbTensor *ebb_compute_grad_norm (EbbTensor **parameters,
                                  guint n_parameters,
                                  double p,
                                  double max_norm,
                                  const EbbGradScale *scale,
                                  EbbTensor **factor,
                                  GError **error);

G_END_DECLS
