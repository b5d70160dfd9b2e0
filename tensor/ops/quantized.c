/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Linear layers with quantised weights. A product takes one panel of the weight after the other: the panel is
 * dequantised into memory that fits a cache, and multiplied as any matrix. So every backend has the products that it
 * has of other weights, and the weight never stands in memory in another form. */
#include "tensor/ops/quantized-private.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/product-private.h"

#include <string.h>

/* The bytes of a panel: on the CPU, so many that the second and third caches keep them, and enough columns for oneDNN;
 * on a GPU, enough work for each launch. Constants, so that bits depend neither on threads nor on the machine. */
#define HOST_PANEL ((gint64) 4 << 20)
#define GPU_PANEL ((gint64) 16 << 20)
#define PANEL_UNIT 64 /* rows, or columns of whole blocks */

enum
{
  LINEAR_DTYPE_X,
  LINEAR_DTYPE, /* of the product */
  LINEAR_ROWS,
  LINEAR_COLUMNS,
  LINEAR_GROUP,
  N_LINEAR
};

/* Operands, in the order of EbbQuantizedWeight's tensors after x. */
enum
{
  INPUT_X,
  INPUT_WEIGHT,
  INPUT_INDEX = INPUT_WEIGHT + EBB_QUANTIZED_TENSORS,
  INPUT_BIAS,
  N_WEIGHT = INPUT_BIAS - INPUT_WEIGHT
};

typedef struct
{
  EbbDevice *device;
  EbbTensor *const *weight; /* N_WEIGHT of them, NULL where there is none */
  gint64 n_rows, n_columns, blocks_per_scale;
  EbbTensor *scales; /* of a shard of nf4: the nested absmax of each group of its blocks, owned; NULL: not picked */
} Weight;

static Weight
weight_of (EbbDevice *device,
           EbbTensor *const *tensors,
           const gint64 *extra)
{
  return (Weight){ device, tensors, extra[LINEAR_ROWS], extra[LINEAR_COLUMNS], extra[LINEAR_GROUP], NULL };
}

/* Picks the nested absmax of each group among those of the full weight. */
static gboolean
weight_begin (Weight *self,
              GError **error)
{
  EbbTensor *index = self->weight[INPUT_INDEX - INPUT_WEIGHT], *nested = self->weight[2];
  EbbView all, picked;

  if (index == NULL)
    return TRUE;
  self->scales =
      ebb_tensor_new_uninitialized (&index->n_elements, 1, EBB_DTYPE_F32, self->device, error);
  if (self->scales == NULL)
    return FALSE;
  ebb_view_init (&all, nested->view.data, EBB_DTYPE_F32, (gint64[]){ 1, nested->n_elements, 1 }, 3);
  ebb_view_init (&picked, self->scales->view.data, EBB_DTYPE_F32, (gint64[]){ 1, index->n_elements, 1 }, 3);
  return EBB_LAUNCH_VIEWS (self->device, EBB_KERNEL_INDEX_SELECT, EBB_NO_PARAMS, 2, error, &all, &index->view, &picked);
}

static void
weight_end (Weight *self)
{
  g_clear_pointer (&self->scales, ebb_tensor_unref);
}

/* The views of the weight's tensors as kernels take them, with @groups for those of a shard. */
static void
view_weight (const Weight *weight,
             const EbbView *views[EBB_QUANTIZED_TENSORS],
             EbbView *groups)
{
  for (guint i = 0; i < EBB_QUANTIZED_TENSORS; i++)
    views[i] = weight->weight[i] != NULL ? &weight->weight[i]->view : NULL;
  if (weight->scales == NULL)
    return;
  *groups = (EbbView){
    weight->scales->view.data,
    EBB_DTYPE_F32,
    2,
    { weight->scales->n_elements, weight->blocks_per_scale },
    { 1, 0 }
  };
  views[2] = groups;
}

/* The elements of the weight that @panel has room for, from (row, column) on. */
static gboolean
launch_dequantize (const Weight *weight,
                   gint64 row,
                   gint64 column,
                   EbbView *panel,
                   GError **error)
{
  const EbbKernelParams params = { .dequantize = { row, column, weight->n_columns } };
  const EbbView *views[EBB_QUANTIZED_TENSORS];
  EbbView groups;

  view_weight (weight, views, &groups);
  return EBB_LAUNCH_VIEWS (weight->device, EBB_KERNEL_DEQUANTIZE, &params, EBB_QUANTIZED_TENSORS, error, views[0],
                           views[1], views[2], views[3], views[4], panel);
}

static gboolean
is_host (EbbDevice *device)
{
  return device->backend->host_memory || device->backend->row_block > 0;
}

/* TRUE if codes are multiplied one by one, without a panel. */
static gboolean
has_few_rows (const Weight *weight,
              const EbbView *left)
{
  return is_host (weight->device) && EBB_HAS_FEW_ROWS (left->shape[0], weight->n_rows, weight->n_columns);
}

static gboolean
launch_few_rows (const Weight *weight,
                 const EbbView *left,
                 const EbbView *bias,
                 const EbbView *result,
                 GError **error)
{
  const EbbKernelParams params = { .dequantize = { 0, 0, weight->n_columns } };
  const EbbView *views[EBB_QUANTIZED_TENSORS];
  EbbView groups;

  view_weight (weight, views, &groups);
  return EBB_LAUNCH_VIEWS (weight->device, EBB_KERNEL_DEQUANTIZE, &params, EBB_QUANTIZED_TENSORS + 2, error, views[0],
                           views[1], views[2], views[3], views[4], left, bias, result);
}

/* How many lines (rows or columns) of @length elements a panel has, of @n in all: about as many in each. */
static gint64
get_panel_size (EbbDevice *device,
                EbbDType dtype,
                gint64 n,
                gint64 length)
{
  const gint64 n_bytes = is_host (device) ? HOST_PANEL : GPU_PANEL;
  const gint64 fits = n_bytes / MAX (1, length * (gint64) ebb_dtype_get_size (dtype)) / PANEL_UNIT * PANEL_UNIT;
  const gint64 most = MAX (fits, PANEL_UNIT), n_panels = (n + most - 1) / most;

  return MIN (n, (n / MAX (n_panels, 1) + PANEL_UNIT - 1) / PANEL_UNIT * PANEL_UNIT);
}

static void
slice_columns (EbbView *view,
               const EbbView *matrix,
               gint64 first,
               gint64 n)
{
  const int last = matrix->n_dims - 1;

  *view = *matrix;
  view->data = (char *) matrix->data + first * matrix->strides[last] * (gint64) ebb_dtype_get_size (matrix->dtype);
  view->shape[last] = n;
}

/* result (+)= left W^T + bias if @transposed, a panel being rows of W; else left W, a panel being columns. Each element
 * of the result is one sum over all of left's columns. */
static gboolean
multiply_panels (const Weight *weight,
                 gboolean transposed,
                 const EbbView *left,
                 const EbbView *bias,
                 const EbbView *result,
                 gboolean accumulate,
                 GError **error)
{
  const gint64 n = transposed ? weight->n_rows : weight->n_columns;
  const gint64 length = transposed ? weight->n_columns : weight->n_rows;
  const gint64 step = get_panel_size (weight->device, left->dtype, n, length);
  const gint64 shape[] = { transposed ? step : length, transposed ? length : step };
  g_autoptr (EbbTensor) memory = NULL;

  if (n == 0 || result->shape[0] == 0)
    return TRUE;
  if (transposed && !accumulate && has_few_rows (weight, left))
    return launch_few_rows (weight, left, bias, result, error);
  memory = ebb_tensor_new_uninitialized (shape, 2, left->dtype, weight->device, error);
  for (gint64 first = 0; memory != NULL && first < n; first += step)
    {
      const gint64 size = MIN (step, n - first);
      EbbView panel, columns, bias_part;

      ebb_view_init (&panel, memory->view.data, left->dtype,
                     (gint64[]){ transposed ? size : length, transposed ? length : size }, 2);
      if (!launch_dequantize (weight, transposed ? first : 0, transposed ? 0 : first, &panel, error))
        return FALSE;
      if (transposed)
        ebb_view_transpose (&panel);
      slice_columns (&columns, result, first, size);
      if (bias != NULL)
        slice_columns (&bias_part, bias, first, size);
      if (!ebb_launch_matmul (weight->device, left, &panel, bias != NULL ? &bias_part : NULL, &columns, accumulate,
                              error))
        return FALSE;
    }
  return memory != NULL;
}

/* The same of a weight that wasn't begun. */
static gboolean
multiply (Weight weight,
          gboolean transposed,
          const EbbView *left,
          const EbbView *bias,
          const EbbView *result,
          gboolean accumulate,
          GError **error)
{
  const gboolean ok =
      weight_begin (&weight, error) && multiply_panels (&weight, transposed, left, bias, result, accumulate, error);

  weight_end (&weight);
  return ok;
}

/* -- linear -------------------------------------------------------------------------------------------------------- */

static gboolean
linear_run (EbbOpCall *call,
            GError **error)
{
  EbbTensor *bias = call->inputs[INPUT_BIAS];
  EbbView x, y;

  ebb_view_as_rows (&x, call->inputs[INPUT_X]);
  ebb_view_as_rows (&y, call->outputs[0]);
  return multiply (weight_of (EBB_DEVICE_OF (call->outputs[0]), &call->inputs[INPUT_WEIGHT], call->extra.i), TRUE, &x,
                   bias != NULL ? &bias->view : NULL, &y, FALSE, error);
}

/* dx = dy W */
static gboolean
linear_give_x (EbbBackward *ctx,
               EbbTensor *dy,
               const EbbView *dy_rows,
               GError **error)
{
  const Weight weight = weight_of (EBB_DEVICE_OF (dy), ctx->saved, ctx->extra_i);
  EbbDType dtype = ebb_product_grad_dtype ((EbbDType) ctx->extra_i[LINEAR_DTYPE_X]);
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims = (guint) dy->view.n_dims;
  gboolean accumulate = FALSE;
  EbbView dx_rows;

  memcpy (shape, dy->view.shape, sizeof shape);
  shape[n_dims - 1] = weight.n_columns;
  ctx->grad_inputs[INPUT_X] = ebb_backward_grad_buffer (ctx, INPUT_X, dtype, shape, n_dims, &accumulate, error);
  if (ctx->grad_inputs[INPUT_X] == NULL)
    return FALSE;
  ebb_view_as_rows (&dx_rows, ctx->grad_inputs[INPUT_X]);
  return multiply (weight, FALSE, dy_rows, NULL, &dx_rows, accumulate, error);
}

static gboolean
linear_give_bias (EbbBackward *ctx,
                  const EbbView *dy_rows,
                  GError **error)
{
  gboolean accumulate = FALSE;
  EbbTensor *grad =
      ebb_backward_grad_buffer (ctx, INPUT_BIAS, EBB_DTYPE_F32, &dy_rows->shape[1], 1, &accumulate, error);

  ctx->grad_inputs[INPUT_BIAS] = grad;
  return grad != NULL && ebb_launch_column_sum (dy_rows, grad, accumulate, error);
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
  return (!(ctx->needs & 1u << INPUT_X) || linear_give_x (ctx, dy, &dy_rows, error))
         && (!(ctx->needs & 1u << INPUT_BIAS) || linear_give_bias (ctx, &dy_rows, error));
}

/* A policy that is asked about "linear" decides on these too. */
static const EbbOp op_linear = { "linear", EBB_OP_PRODUCT, EBB_KERNEL_MATMUL, linear_run, linear_backward };

static gboolean
linear_check (EbbOpCall *call,
              const EbbQuantizedWeight *weight,
              GError **error)
{
  const EbbView *x = &call->inputs[INPUT_X]->view;
  const EbbView *bias = call->inputs[INPUT_BIAS] != NULL ? &call->inputs[INPUT_BIAS]->view : NULL;

  if (bias != NULL && bias->dtype != EBB_DTYPE_F32 && bias->dtype != EBB_DTYPE_BF16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "bias is %s; must be f32 or bf16",
                        ebb_dtype_get_name (bias->dtype));
  if (x->n_dims > 0 && x->shape[x->n_dims - 1] == weight->n_columns
      && (bias == NULL || (bias->n_dims == 1 && bias->shape[0] == weight->n_rows)))
    return TRUE;
  return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                      "x is %s and weight is [%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT
                      "]; the last dimension of x must be that of weight, and bias must have as many elements as "
                      "weight has rows",
                      ebb_show_shape (call->inputs[INPUT_X]), weight->n_rows, weight->n_columns);
}

EbbTensor *
ebb_quantized_linear (EbbTensor *x,
                      const EbbQuantizedWeight *weight,
                      EbbTensor *bias,
                      GError **error)
{
  EbbOpCall call;
  gint64 shape[EBB_MAX_DIMS];
  EbbDType dtype;

  G_STATIC_ASSERT (N_LINEAR <= G_N_ELEMENTS (call.extra.i));
  if (!ebb_quantized_weight_check (weight, op_linear.name, error)
      || !ebb_op_begin (&call, &op_linear, error, 3, x, weight->codes, weight->absmax)
      || !ebb_op_add_optional (&call, weight->nested_absmax, error)
      || !ebb_op_add_optional (&call, weight->nested_map, error)
      || !ebb_op_add_optional (&call, weight->nested_offset, error)
      || !ebb_op_add_optional (&call, weight->nested_index, error) || !ebb_op_add_optional (&call, bias, error)
      || !linear_check (&call, weight, error))
    return NULL;
  call.extra.i[LINEAR_DTYPE_X] = x->view.dtype;
  call.extra.i[LINEAR_ROWS] = weight->n_rows;
  call.extra.i[LINEAR_COLUMNS] = weight->n_columns;
  call.extra.i[LINEAR_GROUP] = weight->blocks_per_scale;
  memcpy (shape, x->view.shape, sizeof shape);
  shape[x->view.n_dims - 1] = weight->n_rows;
  if (!ebb_op_cast_for_product (&call, 1, &dtype, error) || !ebb_op_contiguous (&call, INPUT_X, error))
    return NULL;
  call.extra.i[LINEAR_DTYPE] = dtype;
  for (guint i = 0; i < N_WEIGHT; i++)
    if (call.inputs[INPUT_WEIGHT + i] != NULL && ebb_tensor_needs_grad (call.edges[INPUT_X]))
      ebb_op_save_input (&call, INPUT_WEIGHT + i);
    else
      ebb_op_save_nothing (&call);
  ebb_op_add_output (&call, dtype, shape, (guint) x->view.n_dims);
  return ebb_op_finish1 (&call, error);
}

EbbTensor *
ebb_quantized_decode (const EbbQuantizedWeight *weight,
                      EbbDType dtype,
                      GError **error)
{
  EbbTensor *const tensors[] = { weight->codes, weight->absmax, weight->nested_absmax, weight->nested_map,
                                 weight->nested_offset, weight->nested_index };
  Weight all = { NULL, tensors, weight->n_rows, weight->n_columns, weight->blocks_per_scale, NULL };
  g_autoptr (EbbTensor) decoded = NULL;
  gboolean ok;

  if (!ebb_quantized_weight_check (weight, "linear_dequantize", error))
    return NULL;
  all.device = EBB_DEVICE_OF (weight->codes);
  decoded = ebb_tensor_new_uninitialized ((gint64[]){ weight->n_rows, weight->n_columns }, 2, dtype, all.device, error);
  ok = decoded != NULL && weight_begin (&all, error) && launch_dequantize (&all, 0, 0, &decoded->view, error);
  weight_end (&all);
  return ok ? g_steal_pointer (&decoded) : NULL;
}
