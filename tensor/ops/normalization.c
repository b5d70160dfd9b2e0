/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/normalization.h"

#include <string.h>

#include "tensor/ops/norm-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/thread-private.h"

/* Layer norm, RMS norm and batch norm, and their gradients. */

/* -- shared with residual-norm.c ---------------------------------------------------------------------------------- */

gboolean
ebb_norm_check (EbbOpCall *call,
                guint first,
                const char *const *names,
                guint n_names,
                gint64 size,
                GError **error)
{
  for (guint i = 0; i < n_names; i++)
    {
      EbbTensor *vector = call->inputs[first + i];

      if (vector == NULL)
        continue;
      if (vector->view.n_dims != 1 || vector->view.shape[0] != size)
        return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is %s and %s is %s; %s must be [%" G_GINT64_FORMAT "]",
                            ebb_show_shape (call->inputs[0]), names[i], ebb_show_shape (vector), names[i], size);
      if (!ebb_op_contiguous (call, first + i, error))
        return FALSE;
    }
  return ebb_op_check_floating (call, error);
}

void
ebb_norm_add_statistics (EbbOpCall *call,
                         guint n)
{
  const EbbView *x = &call->inputs[0]->view;

  for (guint i = 0; i < n; i++)
    {
      call->non_differentiable |= 1u << call->n_outputs;
      ebb_op_add_output (call, EBB_DTYPE_F32, x->shape, (guint) x->n_dims - 1);
    }
}

gboolean
ebb_norm_give_vector (EbbBackward *ctx,
                      EbbLaunch *launch,
                      guint index,
                      gint64 size,
                      gboolean *accumulate,
                      GError **error)
{
  if (!(ctx->needs & (1u << index)))
    {
      ebb_launch_output (launch, NULL);
      return TRUE;
    }
  ctx->grad_inputs[index] = ebb_backward_grad_buffer (ctx, index, EBB_DTYPE_F32, &size, 1, accumulate, error);
  if (ctx->grad_inputs[index] == NULL)
    return FALSE;
  ebb_launch_output (launch, ctx->grad_inputs[index]);
  return TRUE;
}

/* One dimension at least; the vectors behind x. */
static gboolean
check_rows (EbbOpCall *call,
            const char *const *names,
            guint n_names,
            GError **error)
{
  EbbTensor *x = call->inputs[0];

  if (x->view.n_dims == 0)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is []; must have at least one dimension");
  return ebb_norm_check (call, 1, names, n_names, x->view.shape[x->view.n_dims - 1], error);
}

/* -- norms of rows ------------------------------------------------------------------------------------------------ */

enum
{
  SAVED_X,
  SAVED_WEIGHT,
  SAVED_STATISTICS /* from there on: mean and rstd, or rstd alone */
};

/* Starts @launch with what the norms share; the gradients of vectors are still to be added. Returns the gradient of the
 * result, which has to live until the launch. */
static EbbTensor *
prepare_row_gradient (EbbBackward *ctx,
                      EbbLaunch *launch,
                      EbbKernel kernel,
                      guint n_statistics,
                      GError **error)
{
  EbbTensor *x = ctx->saved[SAVED_X];
  g_autoptr (EbbTensor) dy = ebb_backward_take_grad (ctx, 0, x->view.dtype, error);

  if (dy == NULL)
    return NULL;
  ebb_launch_init (launch, kernel);
  launch->params = *ctx->params;
  ebb_launch_input (launch, dy);
  ebb_launch_input (launch, x);
  ebb_launch_input (launch, ctx->saved[SAVED_WEIGHT]);
  for (guint i = 0; i < n_statistics; i++)
    ebb_launch_input (launch, ctx->saved[SAVED_STATISTICS + i]);
  if (ctx->needs & 1)
    {
      ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error);
      if (ctx->grad_inputs[0] == NULL)
        return NULL;
    }
  ebb_launch_output (launch, ctx->grad_inputs[0]);
  return g_steal_pointer (&dy);
}

static gint64
get_row_size (EbbTensor *x)
{
  return x->view.shape[x->view.n_dims - 1];
}

static gboolean
rematerialize (EbbKernel kernel,
               const EbbKernelParams *params,
               EbbTensor **operands,
               guint n_operands,
               guint n_statistics,
               EbbTensor *output,
               GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, kernel);
  launch.params = *params;
  for (guint i = 0; i < n_operands; i++)
    ebb_launch_input (&launch, operands[i]);
  ebb_launch_output (&launch, output);
  for (guint i = 0; i < n_statistics; i++)
    ebb_launch_output (&launch, NULL);
  return ebb_launch (EBB_DEVICE_OF (output), &launch, error);
}

/* -- layer norm --------------------------------------------------------------------------------------------------- */

static gboolean
layer_norm_backward (EbbBackward *ctx,
                     GError **error)
{
  EbbTensor *x = ctx->saved[SAVED_X];
  gint64 size = get_row_size (x);
  g_autoptr (EbbTensor) dy = NULL;
  EbbLaunch launch;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = prepare_row_gradient (ctx, &launch, EBB_KERNEL_LAYER_NORM_GRAD, 2, error);
  if (dy == NULL)
    return FALSE;
  ebb_launch_input (&launch, NULL);
  return ebb_norm_give_vector (ctx, &launch, 1, size, &launch.params.norm.accumulate_weight, error)
         && ebb_norm_give_vector (ctx, &launch, 2, size, &launch.params.norm.accumulate_bias, error)
         && ebb_launch (EBB_DEVICE_OF (x), &launch, error);
}

gboolean
ebb_layer_norm_rematerialize (const EbbRematerializeArgs *how,
                              EbbTensor **operands,
                              EbbTensor *output,
                              GError **error)
{
  return rematerialize (EBB_KERNEL_LAYER_NORM, &how->params, operands, 3, 2, output, error);
}

static const EbbOp op_layer_norm = { "layer_norm", EBB_OP_NORMALIZATION, EBB_KERNEL_LAYER_NORM, NULL,
                                     layer_norm_backward };

/**
 * ebb_layer_norm:
 * @x: (nullable): a tensor [.., N], f32 or bf16
 * @weight: (nullable): [N], f32 or bf16; %NULL for ones
 * @bias: (nullable): [N], f32 or bf16; %NULL for zeros
 * @eps: what is added to the variance
 * @error: return location for an error
 *
 * Computes (x - mean) / sqrt (variance + eps) * weight + bias, with mean and biased variance over the last dimension
 * (Ba, Kiros and Hinton, Layer Normalization, 2016, equation 4), in f32. Backward keeps @x, @weight and two numbers a
 * row.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x; %NULL with %EBB_ERROR_SHAPE if @weight or
 *   @bias are not [N], %EBB_ERROR_DTYPE for other dtypes
 */
EbbTensor *
ebb_layer_norm (EbbTensor *x,
                EbbTensor *weight,
                EbbTensor *bias,
                double eps,
                GError **error)
{
  static const char *const names[] = { "weight", "bias" };
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_layer_norm, error, 1, x) || !ebb_op_add_optional (&call, weight, error)
      || !ebb_op_add_optional (&call, bias, error) || !check_rows (&call, names, 2, error)
      || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  call.params.norm.eps = eps;
  ebb_op_add_output_like (&call, x);
  ebb_norm_add_statistics (&call, 2);
  ebb_op_save_input (&call, 0);
  ebb_op_save_optional (&call, 1);
  ebb_op_save_output (&call, 1);
  ebb_op_save_output (&call, 2);
  ebb_op_rematerialize_output (&call, 0, ebb_layer_norm_rematerialize, 3, 0, 1, 2);
  return ebb_op_finish1 (&call, error);
}

/* -- RMS norm ----------------------------------------------------------------------------------------------------- */

static gboolean
rms_norm_backward (EbbBackward *ctx,
                   GError **error)
{
  EbbTensor *x = ctx->saved[SAVED_X];
  g_autoptr (EbbTensor) dy = NULL;
  EbbLaunch launch;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = prepare_row_gradient (ctx, &launch, EBB_KERNEL_RMS_NORM_GRAD, 1, error);
  if (dy == NULL)
    return FALSE;
  ebb_launch_input (&launch, NULL);
  return ebb_norm_give_vector (ctx, &launch, 1, get_row_size (x), &launch.params.norm.accumulate_weight, error)
         && ebb_launch (EBB_DEVICE_OF (x), &launch, error);
}

gboolean
ebb_rms_norm_rematerialize (const EbbRematerializeArgs *how,
                            EbbTensor **operands,
                            EbbTensor *output,
                            GError **error)
{
  return rematerialize (EBB_KERNEL_RMS_NORM, &how->params, operands, 2, 1, output, error);
}

static const EbbOp op_rms_norm = { "rms_norm", EBB_OP_NORMALIZATION, EBB_KERNEL_RMS_NORM, NULL, rms_norm_backward };

static EbbTensor *
rms_norm (EbbTensor *x,
          EbbTensor *weight,
          double eps,
          gboolean unit_offset,
          GError **error)
{
  static const char *const names[] = { "weight" };
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_rms_norm, error, 1, x) || !ebb_op_add_optional (&call, weight, error)
      || !check_rows (&call, names, 1, error) || !ebb_op_dense_rows (&call, 0, error))
    return NULL;
  call.params.norm.eps = eps;
  call.params.norm.unit_offset = unit_offset;
  ebb_op_add_output_like (&call, x);
  ebb_norm_add_statistics (&call, 1);
  ebb_op_save_input (&call, 0);
  ebb_op_save_optional (&call, 1);
  ebb_op_save_output (&call, 1);
  ebb_op_rematerialize_output (&call, 0, ebb_rms_norm_rematerialize, 2, 0, 1);
  return ebb_op_finish1 (&call, error);
}

/**
 * ebb_rms_norm:
 * @x: (nullable): a tensor [.., N], f32 or bf16
 * @weight: (nullable): [N], f32 or bf16; %NULL for ones
 * @eps: what is added to the mean square
 * @error: return location for an error
 *
 * Computes x / sqrt (mean (x^2) + eps) * weight over the last dimension (Zhang and Sennrich, Root Mean Square Layer
 * Normalization, 2019, equation 4), in f32. Any strides of @x will do; the data is not copied if the last one is 1.
 * Backward keeps @x, @weight and one number a row.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x; %NULL with %EBB_ERROR_SHAPE if @weight is
 *   not [N], %EBB_ERROR_DTYPE for other dtypes
 */
EbbTensor *
ebb_rms_norm (EbbTensor *x,
              EbbTensor *weight,
              double eps,
              GError **error)
{
  return rms_norm (x, weight, eps, FALSE, error);
}

/**
 * ebb_unit_offset_rms_norm:
 * @x: (nullable): a tensor [.., N], f32 or bf16
 * @weight: (nullable): [N], f32 or bf16; %NULL for zeros
 * @eps: what is added to the mean square
 * @error: return location for an error
 *
 * Computes ebb_rms_norm() with the factor 1 + @weight, as in Gemma.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x; %NULL with %EBB_ERROR_SHAPE if @weight is
 *   not [N], %EBB_ERROR_DTYPE for other dtypes
 */
EbbTensor *
ebb_unit_offset_rms_norm (EbbTensor *x,
                          EbbTensor *weight,
                          double eps,
                          GError **error)
{
  return rms_norm (x, weight, eps, TRUE, error);
}

/* -- batch norm --------------------------------------------------------------------------------------------------- */

enum
{
  BATCH_X,
  BATCH_WEIGHT,
  BATCH_MEAN,
  BATCH_RSTD
};

/* The contiguous [N, C, ..] as [N, C, L]. */
static void
view_channels (EbbView *view,
               EbbTensor *x)
{
  ebb_view_around_dim (view, &x->view, 1);
}

static gboolean
batch_norm_run (EbbOpCall *call,
                GError **error)
{
  EbbTensor *running_mean = call->inputs[3], *running_var = call->inputs[4];
  gboolean moves = call->params.norm.training && running_mean != NULL;
  EbbView x, y;
  EbbLaunch launch;

  /* A recompute must not move the statistics a second time. */
  if (moves && ebb_modes.recomputing > 0)
    {
      running_mean = running_var = NULL;
      moves = FALSE;
    }
  view_channels (&x, call->inputs[0]);
  view_channels (&y, call->outputs[0]);
  ebb_launch_init (&launch, EBB_KERNEL_BATCH_NORM);
  launch.params = call->params;
  launch.inputs[launch.n_inputs++] = &x;
  ebb_launch_input (&launch, call->inputs[1]);
  ebb_launch_input (&launch, call->inputs[2]);
  ebb_launch_input (&launch, running_mean);
  ebb_launch_input (&launch, running_var);
  launch.outputs[launch.n_outputs++] = &y;
  ebb_launch_output (&launch, call->outputs[1]);
  ebb_launch_output (&launch, call->outputs[2]);
  if (moves)
    {
      ebb_storage_change (running_mean->storage);
      ebb_storage_change (running_var->storage);
    }
  return ebb_launch (EBB_DEVICE_OF (call->outputs[0]), &launch, error);
}

static gboolean
batch_norm_backward (EbbBackward *ctx,
                     GError **error)
{
  EbbTensor *x = ctx->saved[BATCH_X];
  g_autoptr (EbbTensor) dy = NULL;
  EbbView dy_view, x_view, dx_view;
  EbbLaunch launch;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, x->view.dtype, error);
  if (dy == NULL)
    return FALSE;
  if (ctx->needs & 1)
    {
      ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error);
      if (ctx->grad_inputs[0] == NULL)
        return FALSE;
    }
  view_channels (&dy_view, dy);
  view_channels (&x_view, x);
  ebb_launch_init (&launch, EBB_KERNEL_BATCH_NORM_GRAD);
  launch.params = *ctx->params;
  launch.inputs[launch.n_inputs++] = &dy_view;
  launch.inputs[launch.n_inputs++] = &x_view;
  ebb_launch_input (&launch, ctx->saved[BATCH_WEIGHT]);
  ebb_launch_input (&launch, ctx->saved[BATCH_MEAN]);
  ebb_launch_input (&launch, ctx->saved[BATCH_RSTD]);
  if (ctx->grad_inputs[0] != NULL)
    view_channels (&dx_view, ctx->grad_inputs[0]);
  launch.outputs[launch.n_outputs++] = ctx->grad_inputs[0] != NULL ? &dx_view : NULL;
  return ebb_norm_give_vector (ctx, &launch, 1, x->view.shape[1], &launch.params.norm.accumulate_weight, error)
         && ebb_norm_give_vector (ctx, &launch, 2, x->view.shape[1], &launch.params.norm.accumulate_bias, error)
         && ebb_launch (EBB_DEVICE_OF (x), &launch, error);
}

static const EbbOp op_batch_norm = { "batch_norm", EBB_OP_NORMALIZATION, EBB_KERNEL_BATCH_NORM, batch_norm_run,
                                     batch_norm_backward };

static gboolean
batch_norm_check (EbbOpCall *call,
                  gboolean training,
                  GError **error)
{
  static const char *const names[] = { "weight", "bias", "running_mean", "running_var" };
  EbbTensor *x = call->inputs[0];

  if (x->view.n_dims < 2)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is %s; must be [N, C], [N, C, L] or [N, C, H, W]",
                        ebb_show_shape (x));
  if ((call->inputs[3] == NULL) != (call->inputs[4] == NULL) || (!training && call->inputs[3] == NULL))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "running_mean and running_var must be given both or, in training, neither");
  for (guint i = 3; i < 5; i++)
    if (call->inputs[i] != NULL
        && (call->inputs[i]->view.dtype != EBB_DTYPE_F32 || !ebb_view_is_contiguous (&call->inputs[i]->view)))
      return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "%s is %s; must be contiguous f32", names[i - 1],
                          ebb_dtype_get_name (call->inputs[i]->view.dtype));
  if (training && x->view.shape[1] > 0 && x->n_elements == x->view.shape[1])
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is %s; training needs more than one value a channel",
                        ebb_show_shape (x));
  return ebb_norm_check (call, 1, names, 4, x->view.shape[1], error) && ebb_op_contiguous (call, 0, error);
}

/**
 * ebb_batch_norm:
 * @x: (nullable): [N, C], [N, C, L] or [N, C, H, W], f32 or bf16
 * @weight: (nullable): [C], f32 or bf16; %NULL for ones
 * @bias: (nullable): [C], f32 or bf16; %NULL for zeros
 * @running_mean: (nullable): [C], f32; moved in place by @momentum in training; required otherwise
 * @running_var: (nullable): [C], f32; the same, with the unbiased variance
 * @training: whether to normalise by the statistics of this batch
 * @momentum: the part of this batch in the running statistics, in [0, 1]
 * @eps: what is added to the variance
 * @error: return location for an error
 *
 * Computes (x - mean) / sqrt (variance + eps) * weight + bias with mean and biased variance of each channel (Ioffe and
 * Szegedy, Batch Normalization, 2015, algorithm 1), in f32. A recompute leaves the running statistics alone, so each
 * batch is counted once. Backward keeps @x, @weight and two numbers a channel.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, or %EBB_ERROR_INVALID_ARGUMENT if running statistics are missing
 */
EbbTensor *
ebb_batch_norm (EbbTensor *x,
                EbbTensor *weight,
                EbbTensor *bias,
                EbbTensor *running_mean,
                EbbTensor *running_var,
                gboolean training,
                double momentum,
                double eps,
                GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_batch_norm, error, 1, x) || !ebb_op_add_optional (&call, weight, error)
      || !ebb_op_add_optional (&call, bias, error) || !ebb_op_add_optional (&call, running_mean, error)
      || !ebb_op_add_optional (&call, running_var, error) || !batch_norm_check (&call, training, error))
    return NULL;
  call.params.norm.training = training;
  call.params.norm.momentum = momentum;
  call.params.norm.eps = eps;
  ebb_op_add_output_like (&call, x);
  ebb_op_add_output (&call, EBB_DTYPE_F32, &x->view.shape[1], 1);
  ebb_op_add_output (&call, EBB_DTYPE_F32, &x->view.shape[1], 1);
  call.non_differentiable = 1u << 1 | 1u << 2;
  call.updated = training ? 1u << 3 | 1u << 4 : 0;
  ebb_op_save_input (&call, 0);
  ebb_op_save_optional (&call, 1);
  ebb_op_save_output (&call, 1);
  ebb_op_save_output (&call, 2);
  return ebb_op_finish1 (&call, error);
}
