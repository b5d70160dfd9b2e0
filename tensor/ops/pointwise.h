/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_add (EbbTensor *a,
                    EbbTensor *b,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_sub (EbbTensor *a,
                    EbbTensor *b,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_mul (EbbTensor *a,
                    EbbTensor *b,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_div (EbbTensor *a,
                    EbbTensor *b,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_pow (EbbTensor *a,
                    EbbTensor *b,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_maximum (EbbTensor *a,
                        EbbTensor *b,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_minimum (EbbTensor *a,
                        EbbTensor *b,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_eq (EbbTensor *a,
                   EbbTensor *b,
                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_ne (EbbTensor *a,
                   EbbTensor *b,
                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_lt (EbbTensor *a,
                   EbbTensor *b,
                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_le (EbbTensor *a,
                   EbbTensor *b,
                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_gt (EbbTensor *a,
                   EbbTensor *b,
                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_ge (EbbTensor *a,
                   EbbTensor *b,
                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_logical_and (EbbTensor *a,
                            EbbTensor *b,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_logical_or (EbbTensor *a,
                           EbbTensor *b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_add_scalar (EbbTensor *a,
                           double b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_sub_scalar (EbbTensor *a,
                           double b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_mul_scalar (EbbTensor *a,
                           double b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_div_scalar (EbbTensor *a,
                           double b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_pow_scalar (EbbTensor *a,
                           double b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_eq_scalar (EbbTensor *a,
                          double b,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_ne_scalar (EbbTensor *a,
                          double b,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_lt_scalar (EbbTensor *a,
                          double b,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_le_scalar (EbbTensor *a,
                          double b,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_gt_scalar (EbbTensor *a,
                          double b,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_ge_scalar (EbbTensor *a,
                          double b,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_rsub_scalar (EbbTensor *a,
                            double b,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_rdiv_scalar (EbbTensor *a,
                            double b,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_neg (EbbTensor *x,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_abs (EbbTensor *x,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_exp (EbbTensor *x,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_log (EbbTensor *x,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_sqrt (EbbTensor *x,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_rsqrt (EbbTensor *x,
                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_square (EbbTensor *x,
                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_sin (EbbTensor *x,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_cos (EbbTensor *x,
                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_bitwise_and (EbbTensor *a,
                            EbbTensor *b,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_bitwise_or (EbbTensor *a,
                           EbbTensor *b,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_bitwise_not (EbbTensor *x,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_logical_not (EbbTensor *x,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_where (EbbTensor *condition,
                      EbbTensor *a,
                      EbbTensor *b,
                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_clamp (EbbTensor *x,
                      double min,
                      double max,
                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tril (EbbTensor *x,
                     gint64 diagonal,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_triu (EbbTensor *x,
                     gint64 diagonal,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_cast (EbbTensor *x,
                     EbbDType dtype,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_copy (EbbTensor *x,
                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_to_device (EbbTensor *x,
                          EbbDevice *device,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_soft_cap (EbbTensor *x,
                         double cap,
                         GError **error);

G_END_DECLS
