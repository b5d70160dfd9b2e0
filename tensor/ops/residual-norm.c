/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/normalization.h"

#include "tensor/ops/norm-private.h"
#include "tensor/autograd/op-support-private.h"

/* The residual connection of a transformer: dropout of a branch, its sum with the stream, and the norm that follows. */

/* -- shared ------------------------------------------------------------------------------------------------------- */

/* The operands x and residual, inputs 0 and 1, are made contiguous and of the dtype to which they promote. */
static gboolean
check_residual (EbbOpCall *call,
                double dropout_p,
                GError **error)
{
  EbbTensor *x = call->inputs[0], *residual = call->inputs[1];
  EbbDType dtype;

  if (!ebb_shapes_equal (&x->view, &residual->view))
    {
      g_autofree char *x_shape = ebb_tensor_shape_to_string (x);
      g_autofree char *residual_shape = ebb_tensor_shape_to_string (residual);

      return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is %s and residual is %s; must be of one shape", x_shape,
                          residual_shape);
    }
  if (!(dropout_p >= 0.0 && dropout_p <= 1.0))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "dropout_p is %g; must be in [0, 1]", dropout_p);
  if (!ebb_op_check_floating (call, error))
    return FALSE;
  dtype = ebb_dtype_promote (x->view.dtype, residual->view.dtype);
  for (guint i = 0; i < 2; i++)
    if (call->inputs[i]->view.dtype != dtype ? !ebb_op_cast (call, i, dtype, error)
                                             : !ebb_op_contiguous (call, i, error))
      return FALSE;
  return TRUE;
}

/* From the gradient of the sum (taken over) to those of x and residual. */
static gboolean
give_branches (EbbBackward *ctx,
               EbbTensor *grad,
               double p,
               EbbPhilox philox,
               GError **error)
{
  const EbbKernelParams params = { .random = { .p = p, .philox = philox } };

  if (ctx->needs & 2)
    ctx->grad_inputs[1] = ebb_tensor_ref (grad);
  if (!(ctx->needs & 1) || p == 0.0)
    {
      if (ctx->needs & 1)
        ctx->grad_inputs[0] = ebb_tensor_ref (grad);
      ebb_tensor_unref (grad);
      return TRUE;
    }
  ctx->grad_inputs[0] = ebb_tensor_new_reusing (grad, error);
  if (ctx->grad_inputs[0] != NULL
      && !EBB_LAUNCH (EBB_KERNEL_DROPOUT, &params, 1, error, grad, ctx->grad_inputs[0]))
    g_clear_pointer (&ctx->grad_inputs[0], ebb_tensor_unref);
  ebb_tensor_unref (grad);
  return ctx->grad_inputs[0] != NULL;
}

/* -- residual_dropout --------------------------------------------------------------------------------------------- */

static gboolean
residual_dropout_run (EbbOpCall *call,
                      GError **error)
{
  const EbbKernelParams add = { .add_scaled = { 1.0, 1.0 } };
  EbbTensor *sum = call->outputs[0];
  gboolean drops = call->params.random.p > 0.0;

  return (!drops || EBB_LAUNCH (EBB_KERNEL_DROPOUT, &call->params, 1, error, call->inputs[0], sum))
         && EBB_LAUNCH (EBB_KERNEL_ADD_SCALED, &add, 2, error, drops ? sum : call->inputs[0], call->inputs[1], sum);
}

static gboolean
residual_dropout_backward (EbbBackward *ctx,
                           GError **error)
{
  EbbTensor *grad;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  grad = ebb_backward_take_grad (ctx, 0, ctx->grad_outputs[0]->view.dtype, error);
  return grad != NULL && give_branches (ctx, grad, ctx->params->random.p, ctx->params->random.philox, error);
}

static const EbbOp op_residual_dropout = { "residual_dropout", EBB_OP_POINTWISE, EBB_KERNEL_DROPOUT,
                                           residual_dropout_run, residual_dropout_backward };

/**
 * ebb_residual_dropout:
 * @x: (nullable): a tensor, f32 or bf16: what a branch gave
 * @residual: (nullable): a tensor of the same shape: the stream that it is added to
 * @dropout_p: the probability in [0, 1] with which an element of @x is dropped; the others are divided by 1 - p
 * @training: %FALSE for no dropout
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @error: return location for an error
 *
 * Computes residual + dropout (x). Backward keeps nothing: the mask is drawn again.
 *
 * Returns: (transfer full) (nullable): the sum, f32 if one of them is, else bf16; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, or %EBB_ERROR_INVALID_ARGUMENT for a probability out of range
 */
EbbTensor *
ebb_residual_dropout (EbbTensor *x,
                      EbbTensor *residual,
                      double dropout_p,
                      gboolean training,
                      EbbGenerator *generator,
                      GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_residual_dropout, error, 2, x, residual) || !check_residual (&call, dropout_p, error))
    return NULL;
  call.params.random.p = training ? dropout_p : 0.0;
  if (call.params.random.p > 0.0)
    call.params.random.philox = ebb_generator_take (generator, (guint64) x->n_elements);
  ebb_op_add_output_like (&call, call.inputs[0]);
  return ebb_op_finish1 (&call, error);
}

/* -- residual_dropout_layer_norm ---------------------------------------------------------------------------------- */

enum
{
  SAVED_SUM,
  SAVED_WEIGHT,
  SAVED_MEAN,
  SAVED_RSTD
};

/* The gradient of the sum: through the norm, plus what came to the sum itself. Owned. */
static EbbTensor *
compute_sum_grad (EbbBackward *ctx,
                  GError **error)
{
  EbbTensor *sum = ctx->saved[SAVED_SUM];
  gint64 size = sum->view.shape[sum->view.n_dims - 1];
  g_autoptr (EbbTensor) dsum = NULL;
  g_autoptr (EbbTensor) dy = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  EbbLaunch launch;

  if (ctx->grad_outputs[1] == NULL)
    return ebb_backward_take_grad (ctx, 0, sum->view.dtype, error);
  if (ctx->grad_outputs[0] != NULL)
    {
      dsum = ebb_backward_take_grad (ctx, 0, sum->view.dtype, error);
      if (dsum == NULL)
        return NULL;
    }
  dy = ebb_backward_take_grad (ctx, 1, sum->view.dtype, error);
  if (dy == NULL)
    return NULL;
  if (dsum != NULL && ebb_tensor_is_unshared (dsum))
    grad = ebb_tensor_ref (dsum);
  else
    grad = ebb_tensor_new_reusing (dy, error);
  if (grad == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_LAYER_NORM_GRAD);
  launch.params = *ctx->params;
  ebb_launch_input (&launch, dy);
  ebb_launch_input (&launch, sum);
  ebb_launch_input (&launch, ctx->saved[SAVED_WEIGHT]);
  ebb_launch_input (&launch, ctx->saved[SAVED_MEAN]);
  ebb_launch_input (&launch, ctx->saved[SAVED_RSTD]);
  ebb_launch_input (&launch, dsum);
  ebb_launch_output (&launch, grad);
  if (!ebb_norm_give_vector (ctx, &launch, 2, size, &launch.params.norm.accumulate_weight, error)
      || !ebb_norm_give_vector (ctx, &launch, 3, size, &launch.params.norm.accumulate_bias, error)
      || !ebb_launch (EBB_DEVICE_OF (sum), &launch, error))
    return NULL;
  return g_steal_pointer (&grad);
}

static gboolean
residual_norm_backward (EbbBackward *ctx,
                        GError **error)
{
  EbbTensor *grad;

  if (ctx->grad_outputs[0] == NULL && ctx->grad_outputs[1] == NULL)
    return TRUE;
  grad = compute_sum_grad (ctx, error);
  return grad != NULL && give_branches (ctx, grad, ctx->params->norm.p, ctx->params->norm.philox, error);
}

static const EbbOp op_residual_norm = { "residual_dropout_layer_norm", EBB_OP_NORMALIZATION, EBB_KERNEL_ADD_LAYER_NORM,
                                        NULL, residual_norm_backward };

/**
 * ebb_residual_dropout_layer_norm:
 * @x: (nullable): a tensor [.., N], f32 or bf16: what a branch gave
 * @residual: (nullable): a tensor of the same shape: the stream that it is added to
 * @weight: (nullable): [N], f32 or bf16; %NULL for ones
 * @bias: (nullable): [N], f32 or bf16; %NULL for zeros
 * @eps: what is added to the variance
 * @dropout_p: the probability in [0, 1] with which an element of @x is dropped; the others are divided by 1 - p
 * @training: %FALSE for no dropout
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @sum: (out) (transfer full): residual + dropout (x), f32 if one of them is, else bf16
 * @normalized: (out) (transfer full): the layer norm of @sum, of its dtype; see ebb_layer_norm()
 * @error: return location for an error
 *
 * Ends a branch of a transformer block and begins the next in one pass over memory. Backward keeps @sum, @weight and
 * two numbers a row; the mask is drawn again.
 *
 * Returns: %TRUE; %FALSE with %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE, or %EBB_ERROR_INVALID_ARGUMENT for a probability that
 *   is out of range
 */
gboolean
ebb_residual_dropout_layer_norm (EbbTensor *x,
                                 EbbTensor *residual,
                                 EbbTensor *weight,
                                 EbbTensor *bias,
                                 double eps,
                                 double dropout_p,
                                 gboolean training,
                                 EbbGenerator *generator,
                                 EbbTensor **sum,
                                 EbbTensor **normalized,
                                 GError **error)
{
  static const char *const names[] = { "weight", "bias" };
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_residual_norm, error, 2, x, residual) || !ebb_op_add_optional (&call, weight, error)
      || !ebb_op_add_optional (&call, bias, error))
    return FALSE;
  if (x->view.n_dims == 0)
    return ebb_op_fail (&call, error, EBB_ERROR_SHAPE, "x is []; must have at least one dimension");
  if (!check_residual (&call, dropout_p, error)
      || !ebb_norm_check (&call, 2, names, 2, x->view.shape[x->view.n_dims - 1], error))
    return FALSE;
  call.params.norm.eps = eps;
  call.params.norm.p = training ? dropout_p : 0.0;
  if (call.params.norm.p > 0.0)
    call.params.norm.philox = ebb_generator_take (generator, (guint64) x->n_elements);
  ebb_op_add_output_like (&call, call.inputs[0]);
  ebb_op_add_output_like (&call, call.inputs[0]);
  ebb_norm_add_statistics (&call, 2);
  ebb_op_save_output (&call, 0);
  if (weight != NULL)
    ebb_op_save_input (&call, 2);
  else
    ebb_op_save_nothing (&call);
  ebb_op_save_output (&call, 2);
  ebb_op_save_output (&call, 3);
  ebb_op_rematerialize_output (&call, 1, ebb_layer_norm_rematerialize, 3, ~0, 2, 3);
  if (!ebb_op_finish (&call, error))
    return FALSE;
  *sum = call.outputs[0];
  *normalized = call.outputs[1];
  ebb_tensor_unref (call.outputs[2]);
  ebb_tensor_unref (call.outputs[3]);
  return TRUE;
}
