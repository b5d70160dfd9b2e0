/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"

/* Shared by the ops' files: operand checks, views for launches, launches of single kernels. Nothing here records. */

G_BEGIN_DECLS

#define EBB_FULL_SHAPE(tensor) (tensor)->view.shape, (guint) (tensor)->view.n_dims
#define EBB_DEVICE_OF(tensor) ((tensor)->storage->device)

/* TRUE if all inputs are f32 or bf16, else fails, naming the dtype. */
gboolean ebb_op_check_floating (EbbOpCall *call,
                                GError **error);
/* TRUE if no input is f16, else fails. */
gboolean ebb_op_check_not_f16 (EbbOpCall *call,
                               GError **error);
/* The dtype in which inputs @a and @b meet: ebb_dtype_promote (), but a 0-dimensional one gives way within its kind. */
EbbDType ebb_op_promote (const EbbOpCall *call,
                         guint a,
                         guint b);
/* Casts input 0, if of bool or integers, to a dtype that holds @value too: f32 unless its own does. */
gboolean ebb_op_promote_to_scalar (EbbOpCall *call,
                                   double value,
                                   GError **error);
/* Expands inputs @a and @b to their common shape and notes in extra.i[a] and [b] how to sum the gradients back. FALSE:
 * error, call cleared. */
gboolean ebb_op_broadcast (EbbOpCall *call,
                           guint a,
                           guint b,
                           gint64 *shape,
                           guint *n_dims,
                           GError **error);
/* Replaces input @index by a contiguous copy unless the elements of its last dimension are neighbours in memory.
 * FALSE: error, call cleared. */
gboolean ebb_op_dense_rows (EbbOpCall *call,
                            guint index,
                            GError **error);
/* The next thing saved is nothing: comes back NULL. */
void ebb_op_save_nothing (EbbOpCall *call);
/* One of them, by whether the input is there. */
void ebb_op_save_optional (EbbOpCall *call,
                           guint index);
/* Input @index: fails unless it is of i64 or i32, and makes it contiguous. Kernels check the values. FALSE: error, call
 * cleared. */
gboolean ebb_op_prepare_indices (EbbOpCall *call,
                                 guint index,
                                 GError **error);

/* @source as it is seen in @shape, to which it is known to broadcast. */
void ebb_view_expand_to (EbbView *view,
                         const EbbView *source,
                         const gint64 *shape,
                         guint n_dims);
/* The contiguous @source as [outer, size of @dim, inner]. */
void ebb_view_around_dim (EbbView *view,
                          const EbbView *source,
                          int dim);
/* A result of a reduction of @n_dims dimensions over the mask @dims, with size 1 in these. */
void ebb_view_keep_dims (EbbView *view,
                         const EbbView *source,
                         guint32 dims,
                         guint n_dims);
/* The strides with which @view can be seen in @shape without a copy; FALSE if there are none. */
gboolean ebb_view_compute_strides (const EbbView *view,
                                   const gint64 *shape,
                                   guint n_dims,
                                   gint64 *strides);

/* ebb_tensor_new_empty () with errors that name @op_name; NULL if an error is set already. */
EbbTensor *ebb_tensor_new_checked (const char *op_name,
                                   const gint64 *shape,
                                   guint n_dims,
                                   EbbDType dtype,
                                   EbbDevice *device,
                                   GError **error);
EbbTensor *ebb_tensor_new_like (EbbTensor *tensor,
                                GError **error);
/* @tensor or a copy of it; takes the caller's reference to it. */
EbbTensor *ebb_tensor_into_dtype (EbbTensor *tensor,
                                  EbbDType dtype,
                                  GError **error);
/* The same elements in another shape: a view if it can be; takes the caller's reference to @tensor. */
EbbTensor *ebb_tensor_into_shape (EbbTensor *tensor,
                                  const gint64 *shape,
                                  guint n_dims,
                                  GError **error);
/* A tensor that views the storage of @tensor as @view says, which began as a copy of its view. */
EbbTensor *ebb_tensor_new_from_view (EbbTensor *tensor,
                                     const EbbView *view,
                                     gint64 offset);

/* How an operand was broadcast to @shape, in one number, and the sum of a gradient back to it (takes the reference). */
gint64 ebb_broadcast_encode (const EbbView *operand,
                             const gint64 *shape,
                             guint n_dims);
EbbTensor *ebb_broadcast_reverse (EbbTensor *grad,
                                  gint64 code,
                                  GError **error);

/* grad_outputs[index], now the caller's; may be NULL. */
EbbTensor *ebb_backward_steal_grad (EbbBackward *ctx,
                                    guint index);
/* A gradient buffer that holds zeros, or what is there already: the caller adds to it. */
EbbTensor *ebb_backward_sum_buffer (EbbBackward *ctx,
                                    guint index,
                                    EbbDType dtype,
                                    const gint64 *shape,
                                    guint n_dims,
                                    GError **error);

/* Launches of one kernel on tensors, with @params of its own: n_inputs inputs, NULL where one is left out, then
 * outputs, NULL where one is not wanted but the first, on whose device it runs.
 *
 *   EBB_LAUNCH (EBB_KERNEL_CLAMP_GRAD, ctx->params, 2, error, dy, x, dx) */
#define EBB_NO_PARAMS (&(const EbbKernelParams){ .fill = { 0 } })
#define EBB_LAUNCH(kernel, params, n_inputs, error, ...)                              \
  ebb_launch_tensors ((kernel), (params), (n_inputs), (EbbTensor *[]){ __VA_ARGS__ }, \
                      sizeof ((EbbTensor *[]){ __VA_ARGS__ }) / sizeof (EbbTensor *), (error))
gboolean ebb_launch_tensors (EbbKernel kernel,
                             const EbbKernelParams *params,
                             guint n_inputs,
                             EbbTensor *const *operands,
                             guint n_operands,
                             GError **error);
/* The same on views. A storage whose contents change must be marked by the caller, as ebb_storage_change () does. */
#define EBB_LAUNCH_VIEWS(device, kernel, params, n_inputs, error, ...)                            \
  ebb_launch_views ((device), (kernel), (params), (n_inputs), (const EbbView *[]){ __VA_ARGS__ }, \
                    sizeof ((const EbbView *[]){ __VA_ARGS__ }) / sizeof (const EbbView *), (error))
gboolean ebb_launch_views (EbbDevice *device,
                           EbbKernel kernel,
                           const EbbKernelParams *params,
                           guint n_inputs,
                           const EbbView *const *operands,
                           guint n_operands,
                           GError **error);
/* One output @y, to whose shape at most three inputs are broadcast. */
#define EBB_LAUNCH_ONTO(kernel, params, y, error, ...)                      \
  ebb_launch_onto ((kernel), (params), (y), (EbbTensor *[]){ __VA_ARGS__ }, \
                   sizeof ((EbbTensor *[]){ __VA_ARGS__ }) / sizeof (EbbTensor *), (error))
gboolean ebb_launch_onto (EbbKernel kernel,
                          const EbbKernelParams *params,
                          EbbTensor *y,
                          EbbTensor *const *inputs,
                          guint n_inputs,
                          GError **error);
/* The same for a change in place: after an index fault @y keeps its values, unless this is the first time that it gets
 * some. */
#define EBB_LAUNCH_IN_PLACE(kernel, params, y, error, ...)                      \
  ebb_launch_in_place ((kernel), (params), (y), (EbbTensor *[]){ __VA_ARGS__ }, \
                       sizeof ((EbbTensor *[]){ __VA_ARGS__ }) / sizeof (EbbTensor *), (error))
gboolean ebb_launch_in_place (EbbKernel kernel,
                              const EbbKernelParams *params,
                              EbbTensor *y,
                              EbbTensor *const *inputs,
                              guint n_inputs,
                              GError **error);
/* These do the same as EBB_LAUNCH_ONTO () for one kernel each. */
gboolean ebb_launch_copy (EbbTensor *x,
                          EbbTensor *y,
                          GError **error);
gboolean ebb_launch_fill (EbbTensor *y,
                          double value,
                          GError **error);
gboolean ebb_launch_unary (EbbUnaryOp op,
                           EbbTensor *x,
                           EbbTensor *y,
                           GError **error);
gboolean ebb_launch_binary (EbbBinaryOp op,
                            EbbTensor *a,
                            EbbTensor *b,
                            EbbTensor *y,
                            GError **error);
gboolean ebb_launch_scalar (EbbBinaryOp op,
                            EbbTensor *a,
                            double value,
                            EbbTensor *y,
                            GError **error);
/* The same by one f32 in memory of the device, for which nothing waits. */
gboolean ebb_launch_scalar_of (EbbBinaryOp op,
                               EbbTensor *a,
                               EbbTensor *scalar,
                               EbbTensor *y,
                               GError **error);
/* ebb_tensor_scale () by one f32 in memory of the device of @tensor. */
gboolean ebb_tensor_scale_by (EbbTensor *tensor,
                              EbbTensor *factor,
                              GError **error);
/* @a or @b NULL: zero. */
gboolean ebb_launch_where (EbbTensor *condition,
                           EbbTensor *a,
                           EbbTensor *b,
                           EbbTensor *y,
                           GError **error);
/* @y has the reduced dimensions with size 1, or not at all. */
gboolean ebb_launch_reduce (EbbReduceKind op,
                            EbbTensor *x,
                            guint32 dims,
                            EbbTensor *y,
                            GError **error);

/* Which saved tensor EBB_KERNEL_UNARY_GRAD reads. */
typedef enum
{
  EBB_UNARY_SAVES_NOTHING,
  EBB_UNARY_SAVES_X,
  EBB_UNARY_SAVES_Y
} EbbUnarySaves;

typedef struct
{
  EbbOp op;
  EbbUnarySaves saves;
  gboolean takes_integers;
} EbbUnaryInfo;

extern const EbbUnaryInfo ebb_unary_ops[EBB_N_UNARY_OPS];

/* The op of a row of the table above, from check to result. */
EbbTensor *ebb_unary (EbbUnaryOp which,
                      EbbTensor *x,
                      GError **error);
/* A view op that changes nothing: a new tensor in the graph. */
EbbTensor *ebb_identity (EbbTensor *x,
                         GError **error);

G_END_DECLS
