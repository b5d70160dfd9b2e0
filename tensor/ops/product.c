/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/product.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/product-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* Matrix products and linear layers, and their gradients. */

/* How two operands are multiplied; kept for backward in extra.i, since an operand is not saved for its shape alone. */
typedef struct
{
  gint64 transpose_a, transpose_b;
  gint64 is_vector_a, is_vector_b;
  gint64 m, n, k;
  gint64 broadcast_a, broadcast_b; /* of the batch: see ebb_broadcast_encode () */
  gint64 dtype_a, dtype_b;         /* of the edges */
  gint64 n_batch;
} Product;

G_STATIC_ASSERT (sizeof (Product) <= sizeof (((EbbOpCall *) NULL)->extra.i));

/* -- shapes ------------------------------------------------------------------------------------------------------- */

/* An operand as [.., rows, columns] after its transposition; a vector is a row on the left, a column on the right. */
static void
view_as_matrix (EbbView *matrix,
                const EbbView *operand,
                gboolean is_vector,
                gboolean is_left,
                gboolean transpose)
{
  *matrix = *operand;
  if (is_vector)
    {
      int one = is_left ? 0 : 1;

      matrix->n_dims = 2;
      matrix->shape[1 - one] = operand->shape[0];
      matrix->strides[1 - one] = operand->strides[0];
      matrix->shape[one] = 1;
      matrix->strides[one] = operand->strides[0] == 1 ? MAX (operand->shape[0], 1) : 1;
    }
  else if (transpose)
    ebb_view_transpose (matrix);
}

static gboolean
fail_on_shapes (EbbOpCall *call,
                const char *what,
                GError **error)
{
  return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "shapes %s and %s do not fit; %s", ebb_show_shape (call->inputs[0]),
                      ebb_show_shape (call->inputs[1]), what);
}

/* Fills @p and the shape of the result. */
static gboolean
check_shapes (EbbOpCall *call,
              Product *p,
              gboolean transpose_a,
              gboolean transpose_b,
              gint64 *shape,
              guint *n_dims,
              GError **error)
{
  EbbView a, b;

  if (call->inputs[0]->view.n_dims == 0 || call->inputs[1]->view.n_dims == 0)
    return fail_on_shapes (call, "each needs at least one dimension", error);
  memset (p, 0, sizeof *p);
  p->is_vector_a = call->inputs[0]->view.n_dims == 1;
  p->is_vector_b = call->inputs[1]->view.n_dims == 1;
  p->transpose_a = transpose_a && !p->is_vector_a;
  p->transpose_b = transpose_b && !p->is_vector_b;
  view_as_matrix (&a, &call->inputs[0]->view, p->is_vector_a, TRUE, p->transpose_a);
  view_as_matrix (&b, &call->inputs[1]->view, p->is_vector_b, FALSE, p->transpose_b);
  p->m = a.shape[a.n_dims - 2];
  p->k = a.shape[a.n_dims - 1];
  p->n = b.shape[b.n_dims - 1];
  if (b.shape[b.n_dims - 2] != p->k)
    return fail_on_shapes (call,
                           ebb_in_message (g_strdup_printf ("the %s dimension of the first, %" G_GINT64_FORMAT
                                                            ", must be the %s of the second, %" G_GINT64_FORMAT,
                                                            p->transpose_a ? "second last" : "last", p->k,
                                                            p->transpose_b || p->is_vector_b ? "last" : "second last",
                                                            b.shape[b.n_dims - 2])),
                           error);

  a.n_dims -= 2;
  b.n_dims -= 2;
  p->n_batch = MAX (a.n_dims, b.n_dims);
  for (int i = 0; i < p->n_batch; i++)
    {
      int from_a = a.n_dims - (int) p->n_batch + i, from_b = b.n_dims - (int) p->n_batch + i;
      gint64 size_a = from_a >= 0 ? a.shape[from_a] : 1, size_b = from_b >= 0 ? b.shape[from_b] : 1;

      if (size_a != size_b && size_a != 1 && size_b != 1)
        return fail_on_shapes (call, "dimensions before the last two must be equal, or 1", error);
      shape[i] = size_a == 1 ? size_b : size_a;
    }
  p->broadcast_a = ebb_broadcast_encode (&a, shape, (guint) p->n_batch);
  p->broadcast_b = ebb_broadcast_encode (&b, shape, (guint) p->n_batch);
  *n_dims = (guint) p->n_batch;
  if (!p->is_vector_a)
    shape[(*n_dims)++] = p->m;
  if (!p->is_vector_b)
    shape[(*n_dims)++] = p->n;
  return TRUE;
}

/* Kernels read matrices of which one of the last two strides is 1. */
static gboolean
make_readable (EbbOpCall *call,
               guint index,
               gboolean is_vector,
               GError **error)
{
  EbbView matrix;
  int last;

  view_as_matrix (&matrix, &call->inputs[index]->view, is_vector, index == 0, FALSE);
  last = matrix.n_dims - 1;
  if (is_vector || matrix.strides[last] == 1 || matrix.strides[last - 1] == 1)
    return TRUE;
  return ebb_op_contiguous (call, index, error);
}

/* -- matmul ------------------------------------------------------------------------------------------------------- */

static void
get_operand (EbbView *view,
             EbbTensor *operand,
             const Product *p,
             guint index,
             const gint64 *batch)
{
  gint64 shape[EBB_MAX_DIMS];
  EbbView matrix;

  if (index == 0)
    view_as_matrix (&matrix, &operand->view, p->is_vector_a, TRUE, p->transpose_a);
  else
    view_as_matrix (&matrix, &operand->view, p->is_vector_b, FALSE, p->transpose_b);
  memcpy (shape, batch, sizeof (gint64) * (gsize) p->n_batch);
  shape[p->n_batch] = matrix.shape[matrix.n_dims - 2];
  shape[p->n_batch + 1] = matrix.shape[matrix.n_dims - 1];
  ebb_view_expand_to (view, &matrix, shape, (guint) p->n_batch + 2);
}

/* The dense result, or its gradient, as [.., M, N]. */
static void
get_result (EbbView *view,
            EbbTensor *result,
            const Product *p)
{
  gint64 shape[EBB_MAX_DIMS];

  memcpy (shape, result->view.shape, sizeof (gint64) * (gsize) p->n_batch);
  shape[p->n_batch] = p->m;
  shape[p->n_batch + 1] = p->n;
  ebb_view_init (view, result->view.data, result->view.dtype, shape, (guint) p->n_batch + 2);
}

static gboolean
matmul_run (EbbOpCall *call,
            GError **error)
{
  const Product *p = (const Product *) call->extra.i;
  EbbTensor *result = call->outputs[0];
  EbbView a, b, c;

  get_operand (&a, call->inputs[0], p, 0, result->view.shape);
  get_operand (&b, call->inputs[1], p, 1, result->view.shape);
  get_result (&c, result, p);
  return ebb_launch_matmul (EBB_DEVICE_OF (result), &a, &b, NULL, &c, FALSE, error);
}

/* The gradient of operand @index = left right, made in the operand's own layout. Where the operand was broadcast the
 * sum over the batch comes after. */
static gboolean
give_product (EbbBackward *ctx,
              guint index,
              const Product *p,
              const EbbView *left,
              const EbbView *right,
              const gint64 *batch,
              GError **error)
{
  gint64 code = index == 0 ? p->broadcast_a : p->broadcast_b;
  gboolean is_vector = index == 0 ? p->is_vector_a : p->is_vector_b;
  EbbDType dtype = ebb_product_grad_dtype ((EbbDType) (index == 0 ? p->dtype_a : p->dtype_b));
  gint64 vector_size = p->k;
  guint n_dims = (guint) p->n_batch + 2;
  gint64 shape[EBB_MAX_DIMS];
  gboolean accumulate = FALSE;
  EbbTensor *grad;
  EbbView c;

  memcpy (shape, batch, sizeof (gint64) * (gsize) p->n_batch);
  shape[n_dims - 2] = left->shape[left->n_dims - 2];
  shape[n_dims - 1] = right->shape[right->n_dims - 1];
  if (code != 0)
    grad = ebb_tensor_new_uninitialized (shape, n_dims, dtype, ctx->device, error);
  else if (is_vector)
    grad = ebb_backward_grad_buffer (ctx, index, dtype, &vector_size, 1, &accumulate, error);
  else
    grad = ebb_backward_grad_buffer (ctx, index, dtype, shape, n_dims, &accumulate, error);
  if (grad == NULL)
    return FALSE;
  ebb_view_init (&c, grad->view.data, dtype, shape, n_dims);
  if (!ebb_launch_matmul (EBB_DEVICE_OF (grad), left, right, NULL, &c, accumulate, error))
    {
      ebb_tensor_unref (grad);
      return FALSE;
    }
  grad = ebb_broadcast_reverse (grad, code, error);
  if (grad != NULL && code != 0 && is_vector)
    grad = ebb_tensor_into_shape (grad, &vector_size, 1, error);
  ctx->grad_inputs[index] = grad;
  return grad != NULL;
}

/* One matrix on the right of a dense batch: the batch is rows of one product, and no sum comes after. */
static gboolean
give_folded_right (EbbBackward *ctx,
                   Product p,
                   EbbView *grad,
                   GError **error)
{
  EbbView a;

  ebb_view_as_rows (&a, ctx->saved[0]);
  ebb_view_init (grad, grad->data, grad->dtype, (gint64[]){ a.shape[0], p.n }, 2);
  p.n_batch = 0;
  p.broadcast_b = 0;
  if (p.transpose_b)
    ebb_view_transpose (grad);
  else
    ebb_view_transpose (&a);
  return p.transpose_b ? give_product (ctx, 1, &p, grad, &a, a.shape, error)
                       : give_product (ctx, 1, &p, &a, grad, a.shape, error);
}

static gboolean
can_fold_right (EbbBackward *ctx,
                const Product *p)
{
  return p->n_batch > 0 && (p->broadcast_b & 0xff) == p->n_batch && p->broadcast_a == 0 && !p->transpose_a
         && !p->is_vector_a && !p->is_vector_b && ebb_view_is_contiguous (&ctx->saved[0]->view);
}

static gboolean
matmul_backward (EbbBackward *ctx,
                 GError **error)
{
  const Product *p = (const Product *) ctx->extra_i;
  EbbTensor *saved = ctx->saved[0] ? ctx->saved[0] : ctx->saved[1];
  g_autoptr (EbbTensor) dense = NULL;
  const gint64 *batch;
  EbbView grad, grad_transposed, a, b;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dense = ebb_backward_take_grad (ctx, 0, saved->view.dtype, error);
  if (dense == NULL)
    return FALSE;
  batch = dense->view.shape;
  get_result (&grad, dense, p);
  grad_transposed = grad;
  ebb_view_transpose (&grad_transposed);
  if (ctx->needs & 1)
    {
      get_operand (&b, ctx->saved[1], p, 1, batch);
      if (!p->transpose_a)
        ebb_view_transpose (&b);
      if (!(p->transpose_a ? give_product (ctx, 0, p, &b, &grad_transposed, batch, error)
                           : give_product (ctx, 0, p, &grad, &b, batch, error)))
        return FALSE;
    }
  if (!(ctx->needs & 2))
    return TRUE;
  if (can_fold_right (ctx, p))
    return give_folded_right (ctx, *p, &grad, error);
  get_operand (&a, ctx->saved[0], p, 0, batch);
  if (!p->transpose_b)
    ebb_view_transpose (&a);
  return p->transpose_b ? give_product (ctx, 1, p, &grad_transposed, &a, batch, error)
                        : give_product (ctx, 1, p, &a, &grad, batch, error);
}

static const EbbOp op_matmul = { "matmul", EBB_OP_PRODUCT, EBB_KERNEL_MATMUL, matmul_run, matmul_backward };

/* Each operand is needed for the gradient of the other. */
static void
save_for (EbbOpCall *call,
          guint index,
          guint needed_by)
{
  if (ebb_tensor_needs_grad (call->edges[needed_by]))
    ebb_op_save_input (call, index);
  else
    ebb_op_save_nothing (call);
}

/**
 * ebb_matmul_transposed:
 * @a: (nullable): the left matrices [.., M, K], or [.., K, M] if @transpose_a; or a vector [K]
 * @b: (nullable): the right matrices [.., K, N], or [.., N, K] if @transpose_b; or a vector [K]
 * @transpose_a: whether the last two dimensions of @a are swapped first; of no meaning for a vector
 * @transpose_b: the same for @b
 * @error: return location for an error
 *
 * Multiplies matrices of f32 or bf16. Dimensions before the last two are a batch and broadcast. A vector on the left is
 * a row and one on the right a column; that dimension is left out of the result. The result is f32 if an operand is,
 * else bf16; under autocast both are cast to its dtype. Sums run in f32 at least.
 *
 * Returns: (transfer full) (nullable): a tensor [.., M, N]; %NULL with %EBB_ERROR_SHAPE if the shapes do not fit,
 *   %EBB_ERROR_DTYPE for other dtypes
 */
EbbTensor *
ebb_matmul_transposed (EbbTensor *a,
                       EbbTensor *b,
                       gboolean transpose_a,
                       gboolean transpose_b,
                       GError **error)
{
  EbbOpCall call;
  Product product;
  gint64 shape[2 * EBB_MAX_DIMS];
  guint n_dims = 0;
  EbbDType dtype;

  if (!ebb_op_begin (&call, &op_matmul, error, 2, a, b))
    return NULL;
  if (!check_shapes (&call, &product, transpose_a, transpose_b, shape, &n_dims, error))
    return NULL;
  product.dtype_a = a->view.dtype;
  product.dtype_b = b->view.dtype;
  if (!ebb_op_cast_for_product (&call, 2, &dtype, error)
      || !make_readable (&call, 0, product.is_vector_a, error) || !make_readable (&call, 1, product.is_vector_b, error))
    return NULL;
  memcpy (call.extra.i, &product, sizeof product);
  call.params.matmul.accumulate = FALSE;
  save_for (&call, 0, 1);
  save_for (&call, 1, 0);
  ebb_op_add_output (&call, dtype, shape, n_dims);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_matmul:
 * @a: (nullable): the left matrices [.., M, K], or a vector [K]
 * @b: (nullable): the right matrices [.., K, N], or a vector [K]
 * @error: return location for an error
 *
 * Multiplies matrices: ebb_matmul_transposed() without transposition.
 *
 * Returns: (transfer full) (nullable): a tensor [.., M, N]; %NULL with an error
 */
EbbTensor *
ebb_matmul (EbbTensor *a,
            EbbTensor *b,
            GError **error)
{
  return ebb_matmul_transposed (a, b, FALSE, FALSE, error);
}

/* -- linear ------------------------------------------------------------------------------------------------------- */

enum
{
  LINEAR_DTYPE_X,
  LINEAR_DTYPE_WEIGHT,
  LINEAR_DTYPE /* of the product */
};

static gboolean
linear_run (EbbOpCall *call,
            GError **error)
{
  EbbTensor *bias = call->inputs[2];
  EbbView x, weight = call->inputs[1]->view, y;

  ebb_view_as_rows (&x, call->inputs[0]);
  ebb_view_transpose (&weight);
  ebb_view_as_rows (&y, call->outputs[0]);
  return ebb_launch_matmul (EBB_DEVICE_OF (call->outputs[0]), &x, &weight, bias ? &bias->view : NULL, &y, FALSE, error);
}

/* dx = dy W */
static gboolean
linear_give_x (EbbBackward *ctx,
               EbbTensor *dy,
               const EbbView *dy_rows,
               GError **error)
{
  EbbTensor *weight = ctx->saved[1];
  EbbDType dtype = ebb_product_grad_dtype ((EbbDType) ctx->extra_i[LINEAR_DTYPE_X]);
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims = (guint) dy->view.n_dims;
  gboolean accumulate = FALSE;
  EbbView dx_rows;

  memcpy (shape, dy->view.shape, sizeof shape);
  shape[n_dims - 1] = weight->view.shape[1];
  ctx->grad_inputs[0] = ebb_backward_grad_buffer (ctx, 0, dtype, shape, n_dims, &accumulate, error);
  if (ctx->grad_inputs[0] == NULL)
    return FALSE;
  ebb_view_as_rows (&dx_rows, ctx->grad_inputs[0]);
  return ebb_launch_matmul (EBB_DEVICE_OF (dy), dy_rows, &weight->view, NULL, &dx_rows, accumulate, error);
}

/* A gradient that is a sum over rows adds up blocks of so many: see EbbBackend. Another dtype than f32 would be rounded
 * after each block. 0: all rows at once. */
static gint64
get_row_block (EbbTensor *sum)
{
  return sum->view.dtype == EBB_DTYPE_F32 ? EBB_DEVICE_OF (sum)->backend->row_block : 0;
}

/* sum (+)= a^T b, over the rows of both, by row blocks. */
static gboolean
launch_product_of_rows (const EbbView *a,
                        const EbbView *b,
                        EbbTensor *sum,
                        gboolean accumulate,
                        GError **error)
{
  const EbbKernelParams params = { .matmul = { accumulate, get_row_block (sum) } };
  EbbView a_columns = *a;

  ebb_view_transpose (&a_columns);
  return EBB_LAUNCH_VIEWS (EBB_DEVICE_OF (sum), EBB_KERNEL_MATMUL, &params, 3, error, &a_columns, b, NULL, &sum->view);
}

/* dW = dy^T x */
static gboolean
linear_give_weight (EbbBackward *ctx,
                    EbbTensor *dy,
                    const EbbView *dy_rows,
                    GError **error)
{
  EbbDType dtype = ebb_product_grad_dtype ((EbbDType) ctx->extra_i[LINEAR_DTYPE_WEIGHT]);
  EbbTensor *x = ebb_backward_get_saved (ctx, 0, error);
  EbbView x_rows;
  gboolean accumulate = FALSE;

  if (x == NULL)
    return FALSE;
  ebb_view_as_rows (&x_rows, x);
  ctx->grad_inputs[1] = ebb_backward_grad_buffer (ctx, 1, dtype, (gint64[]){ dy_rows->shape[1], x_rows.shape[1] }, 2,
                                                  &accumulate, error);
  if (ctx->grad_inputs[1] == NULL)
    return FALSE;
  return launch_product_of_rows (dy_rows, &x_rows, ctx->grad_inputs[1], accumulate, error);
}

static gboolean
linear_give_bias (EbbBackward *ctx,
                  const EbbView *dy_rows,
                  GError **error)
{
  gboolean accumulate = FALSE;

  ctx->grad_inputs[2] =
      ebb_backward_grad_buffer (ctx, 2, EBB_DTYPE_F32, &dy_rows->shape[1], 1, &accumulate, error);
  return ctx->grad_inputs[2] != NULL && ebb_launch_column_sum (dy_rows, ctx->grad_inputs[2], accumulate, error);
}

static gboolean
linear_backward (EbbBackward *ctx,
                 GError **error)
{
  g_autoptr (EbbTensor) dy = NULL;
  EbbView dy_rows;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, (EbbDType) ctx->extra_i[LINEAR_DTYPE], error);
  if (dy == NULL)
    return FALSE;
  ebb_view_as_rows (&dy_rows, dy);
  /* x is done with before its gradient, which is as large, is made. */
  if ((ctx->needs & 2) && !linear_give_weight (ctx, dy, &dy_rows, error))
    return FALSE;
  if (ctx->saved[0] != NULL)
    ebb_tensor_unref (ebb_backward_take_saved (ctx, 0));
  return (!(ctx->needs & 1) || linear_give_x (ctx, dy, &dy_rows, error))
         && (!(ctx->needs & 4) || linear_give_bias (ctx, &dy_rows, error));
}

static const EbbOp op_linear = {
  "linear", EBB_OP_PRODUCT, EBB_KERNEL_MATMUL, linear_run, linear_backward, .asks = TRUE
};

static gboolean
linear_fail (EbbOpCall *call,
             guint index,
             const char *name,
             const char *right,
             GError **error)
{
  return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "%s is %s and weight is %s; %s", name,
                      ebb_show_shape (call->inputs[index]), ebb_show_shape (call->inputs[1]), right);
}

static gboolean
linear_check (EbbOpCall *call,
              GError **error)
{
  const EbbView *x = &call->inputs[0]->view, *weight = &call->inputs[1]->view;
  const EbbView *bias = call->inputs[2] ? &call->inputs[2]->view : NULL;

  if (weight->n_dims != 2)
    return linear_fail (call, 0, "x", "weight must be [out, in]", error);
  if (x->n_dims == 0 || x->shape[x->n_dims - 1] != weight->shape[1])
    return linear_fail (call, 0, "x", "the last dimension of x must be that of weight", error);
  if (bias != NULL && (bias->n_dims != 1 || bias->shape[0] != weight->shape[0]))
    return linear_fail (call, 2, "bias", "bias must have as many elements as weight has rows", error);
  if (bias != NULL && bias->dtype != EBB_DTYPE_F32 && bias->dtype != EBB_DTYPE_BF16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "bias is %s; must be f32 or bf16",
                        ebb_dtype_get_name (bias->dtype));
  return TRUE;
}

/**
 * ebb_linear:
 * @x: (nullable): a tensor [.., in]
 * @weight: (nullable): a matrix [out, in]
 * @bias: (nullable): a vector [out]; %NULL for none
 * @error: return location for an error
 *
 * Computes x W^T + b of f32 or bf16; the result is f32 if @x or @weight is, else bf16. Under autocast @x and @weight
 * are cast to its dtype, and the weight's gradient comes out in the weight's own. In the backward pass the gradients of
 * @weight and @bias are added straight to those that they already have.
 *
 * Returns: (transfer full) (nullable): a tensor [.., out]; %NULL with %EBB_ERROR_SHAPE if the shapes do not fit,
 *   %EBB_ERROR_DTYPE for other dtypes
 */
EbbTensor *
ebb_linear (EbbTensor *x,
            EbbTensor *weight,
            EbbTensor *bias,
            GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  EbbDType dtype;

  if (!ebb_op_begin (&call, &op_linear, error, 2, x, weight) || !ebb_op_add_optional (&call, bias, error)
      || !linear_check (&call, error))
    return NULL;
  call.extra.i[LINEAR_DTYPE_X] = x->view.dtype;
  call.extra.i[LINEAR_DTYPE_WEIGHT] = weight->view.dtype;
  memcpy (shape, x->view.shape, sizeof shape);
  shape[x->view.n_dims - 1] = weight->view.shape[0];
  if (!ebb_op_cast_for_product (&call, 2, &dtype, error) || !ebb_op_contiguous (&call, 0, error)
      || !make_readable (&call, 1, FALSE, error))
    return NULL;
  call.extra.i[LINEAR_DTYPE] = dtype;
  call.params.matmul.accumulate = FALSE;
  save_for (&call, 0, 1);
  save_for (&call, 1, 0);
  ebb_op_add_output (&call, dtype, shape, (guint) x->view.n_dims);
  return ebb_op_finish1 (&call, error);
}

/* -- a product that is added -------------------------------------------------------------------------------------- */

/* The operands are those of a linear layer, with y in place of the bias: y + x W^T, in the memory of y where that is
 * the result's as well. */
static gboolean
add_linear_run (EbbOpCall *call,
                GError **error)
{
  EbbTensor *y = call->inputs[2], *sum = call->outputs[0];
  EbbView x, weight = call->inputs[1]->view, rows;

  if (sum->storage == y->storage)
    ebb_storage_change (sum->storage);
  else if (!ebb_launch_copy (y, sum, error))
    return FALSE;
  ebb_view_as_rows (&x, call->inputs[0]);
  ebb_view_transpose (&weight);
  ebb_view_as_rows (&rows, sum);
  return ebb_launch_matmul (EBB_DEVICE_OF (sum), &x, &weight, NULL, &rows, TRUE, error);
}

/* y has the gradient of the sum, which is handed over when x and the weight have theirs. */
static gboolean
add_linear_backward (EbbBackward *ctx,
                     GError **error)
{
  g_autoptr (EbbTensor) dy = NULL;
  EbbTensor *whole = ctx->grad_outputs[0] != NULL ? ebb_tensor_ref (ctx->grad_outputs[0]) : NULL;
  EbbView dy_rows;

  if (whole == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, (EbbDType) ctx->extra_i[LINEAR_DTYPE], error);
  if (ctx->needs & 4)
    ctx->grad_inputs[2] = whole;
  else
    ebb_tensor_unref (whole);
  if (dy == NULL)
    return FALSE;
  ebb_view_as_rows (&dy_rows, dy);
  return (!(ctx->needs & 2) || linear_give_weight (ctx, dy, &dy_rows, error))
         && (!(ctx->needs & 1) || linear_give_x (ctx, dy, &dy_rows, error));
}

static const EbbOp op_add_linear = {
  "add_linear", EBB_OP_PRODUCT, EBB_KERNEL_MATMUL, add_linear_run, add_linear_backward, .asks = TRUE
};

static gboolean
add_linear_check (EbbOpCall *call,
                  GError **error)
{
  const EbbView *x = &call->inputs[0]->view, *weight = &call->inputs[1]->view, *y = &call->inputs[2]->view;
  gboolean fits = weight->n_dims == 2 && x->n_dims > 0 && x->n_dims == y->n_dims
                  && x->shape[x->n_dims - 1] == weight->shape[1] && y->shape[y->n_dims - 1] == weight->shape[0];
  g_autofree char *y_shape = NULL;
  g_autofree char *right = NULL;

  for (int i = 0; fits && i + 1 < y->n_dims; i++)
    fits = x->shape[i] == y->shape[i];
  for (guint i = 0; fits && i < 3; i++)
    if (call->inputs[i]->view.dtype != EBB_DTYPE_F32 && call->inputs[i]->view.dtype != EBB_DTYPE_BF16)
      return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "operand %u is %s; must be f32 or bf16", i,
                          ebb_dtype_get_name (call->inputs[i]->view.dtype));
  if (fits)
    return TRUE;
  y_shape = ebb_tensor_shape_to_string (call->inputs[2]);
  right = g_strdup_printf ("y is %s; it must be [.., out] for x [.., in] and weight [out, in]", y_shape);
  return linear_fail (call, 0, "x", right, error);
}

static EbbTensor *
add_linear (EbbTensor *y,
            EbbTensor *x,
            EbbTensor *weight,
            gboolean is_given_away,
            GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_add_linear, error, 3, x, weight, y) || !add_linear_check (&call, error))
    return NULL;
  call.extra.i[LINEAR_DTYPE_X] = x->view.dtype;
  call.extra.i[LINEAR_DTYPE_WEIGHT] = weight->view.dtype;
  call.extra.i[LINEAR_DTYPE] = y->view.dtype;
  if (!ebb_op_cast (&call, 0, y->view.dtype, error) || !ebb_op_cast (&call, 1, y->view.dtype, error)
      || !ebb_op_contiguous (&call, 0, error) || !make_readable (&call, 1, FALSE, error))
    return NULL;
  save_for (&call, 0, 1);
  save_for (&call, 1, 0);
  if (is_given_away && !ebb_is_stopped () && ebb_tensor_is_spent (y))
    call.outputs[call.n_outputs++] = ebb_tensor_alias (y);
  else
    ebb_op_add_output_like (&call, y);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_add_linear:
 * @y: (nullable): a tensor [.., out] of f32 or bf16
 * @x: (nullable): a tensor [.., in] of f32 or bf16, with the same dimensions before the last one
 * @weight: (nullable): a matrix [out, in] of f32 or bf16
 * @error: return location for an error
 *
 * Computes y + x W^T in the dtype of @y, to which @x and @weight are cast: the product is added to a copy of @y as it
 * is made. The low-rank branch of LoRA is such a product.
 *
 * Returns: (transfer full) (nullable): a tensor [.., out]; %NULL with %EBB_ERROR_SHAPE if the shapes do not fit,
 *   %EBB_ERROR_DTYPE for other dtypes
 */
EbbTensor *
ebb_add_linear (EbbTensor *y,
                EbbTensor *x,
                EbbTensor *weight,
                GError **error)
{
  return add_linear (y, x, weight, FALSE, error);
}

EbbTensor *
ebb_add_linear_over (EbbTensor *y,
                     EbbTensor *x,
                     EbbTensor *weight,
                     GError **error)
{
  return add_linear (y, x, weight, TRUE, error);
}

gboolean
ebb_launch_column_sum (const EbbView *rows,
                       EbbTensor *sum,
                       gboolean accumulate,
                       GError **error)
{
  gint64 size = get_row_block (sum), end = rows->shape[0];
  EbbView block;

  if (size == 0)
    size = MAX (end, 1);
  for (gint64 i = MAX (end / size, 1) - 1; i >= 0; i--)
    {
      const EbbKernelParams params = { .column_sum = { accumulate } };

      ebb_view_slice_rows (&block, rows, i * size, end - i * size);
      if (!EBB_LAUNCH_VIEWS (EBB_DEVICE_OF (sum), EBB_KERNEL_COLUMN_SUM, &params, 1, error, &block, &sum->view))
        return FALSE;
      end = i * size;
      accumulate = TRUE;
    }
  return TRUE;
}
