/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"
#include "tensor/random.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_zeros (const gint64 *shape,
                      guint n_dims,
                      EbbDType dtype,
                      EbbDevice *device,
                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_ones (const gint64 *shape,
                     guint n_dims,
                     EbbDType dtype,
                     EbbDevice *device,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_full (const gint64 *shape,
                     guint n_dims,
                     double value,
                     EbbDType dtype,
                     EbbDevice *device,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_scalar (double value,
                       EbbDType dtype,
                       EbbDevice *device,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_arange (double start,
                       double end,
                       double step,
                       EbbDType dtype,
                       EbbDevice *device,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_rand (const gint64 *shape,
                     guint n_dims,
                     EbbDType dtype,
                     EbbDevice *device,
                     EbbGenerator *generator,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_randn (const gint64 *shape,
                      guint n_dims,
                      EbbDType dtype,
                      EbbDevice *device,
                      EbbGenerator *generator,
                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_randint (gint64 low,
                        gint64 high,
                        const gint64 *shape,
                        guint n_dims,
                        EbbDType dtype,
                        EbbDevice *device,
                        EbbGenerator *generator,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_multinomial (EbbTensor *weights,
                            gint64 n_samples,
                            EbbGenerator *generator,
                            GError **error);

G_END_DECLS
