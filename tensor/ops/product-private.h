/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"

/* Shared by ops made of matrix products. */

G_BEGIN_DECLS

/* Casts the first @n inputs to the dtype of the product: that of autocast when it is on, else f32 or bf16 to which they
 * promote. FALSE: error, call cleared. */
gboolean ebb_op_cast_for_product (EbbOpCall *call,
                                  guint n,
                                  EbbDType *dtype,
                                  GError **error);
/* The dtype in which a gradient of an edge of @dtype is made; what differs is cast by the engine. */
EbbDType ebb_product_grad_dtype (EbbDType dtype);

/* ebb_add_linear () to a tensor that only the caller holds and reads no more: the sum lies in its memory. */
EbbTensor *ebb_add_linear_over (EbbTensor *y,
                                EbbTensor *x,
                                EbbTensor *weight,
                                GError **error);

/* ebb_mul_scalar () with a result that backward keeps, for one that a later op saves as well. A recompute may end as
 * soon as it is there, before the ops in between. */
EbbTensor *ebb_mul_scalar_saved (EbbTensor *a,
                                 double b,
                                 GError **error);

/* A dense view of @shape at @data. */
void ebb_view_init (EbbView *view,
                    void *data,
                    EbbDType dtype,
                    const gint64 *shape,
                    guint n_dims);
/* The contiguous @tensor as [rows, last dimension]. */
void ebb_view_as_rows (EbbView *view,
                       EbbTensor *tensor);
/* Rows [first, first + n) of a matrix. */
void ebb_view_slice_rows (EbbView *view,
                          const EbbView *matrix,
                          gint64 first,
                          gint64 n);
/* Swaps the last two dimensions. */
void ebb_view_transpose (EbbView *view);

/* c = a b + bias, or c += a b + bias if @accumulate. @bias may be NULL. */
gboolean ebb_launch_matmul (EbbDevice *device,
                            const EbbView *a,
                            const EbbView *b,
                            const EbbView *bias,
                            EbbView *c,
                            gboolean accumulate,
                            GError **error);

/* sum (+)= the sums of the columns of a dense matrix, by row blocks: see EbbBackend. The last
 * block, which comes first, has the rows that are left over as well. */
gboolean ebb_launch_column_sum (const EbbView *rows,
                                EbbTensor *sum,
                                gboolean accumulate,
                                GError **error);

G_END_DECLS
