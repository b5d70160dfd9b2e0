/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/normalization.h"

#include "tensor/ops/norm-private.h"
#include "tensor/autograd/op-support-private.h"

/* The residual connection of a transformer: dropout of a branch, its sum with the stream, and the norm that follows. */

/* -- shared ------------------------------------------------------------------------------------------------------- */

/* The operands x and residual, inputs 0 and 1, are made contiguous, and of the dtype to which they promote unless the
 * kernel takes two dtypes. */
static gboolean
check_residual (EbbOpCall *call,
                double dropout_p,
                gboolean takes_two_dtypes,
                GError **error)
{
  EbbTensor *x = call->inputs[0], *residual = call->inputs[1];
  EbbDType dtype;

  if (!ebb_shapes_equal (&x->view, &residual->view))
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is %s and residual is %s; must be of one shape",
                        ebb_show_shape (x), ebb_show_shape (residual));
  if (!(dropout_p >= 0.0 && dropout_p <= 1.0))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "dropout_p is %g; must be in [0, 1]", dropout_p);
  if (!ebb_op_check_floating (call, error))
    return FALSE;
  dtype = ebb_dtype_promote (x->view.dtype, residual->view.dtype);
  for (guint i = 0; i < 2; i++)
    if (call->inputs[i]->view.dtype != dtype && !takes_two_dtypes ? !ebb_op_cast (call, i, dtype, error)
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

  /* Dropout writes the dtype that it reads. */
  if (!ebb_op_begin (&call, &op_residual_dropout, error, 2, x, residual)
      || !check_residual (&call, dropout_p, !training || dropout_p == 0.0, error))
    return NULL;
  call.params.random.p = training ? dropout_p : 0.0;
  if (call.params.random.p > 0.0)
    call.params.random.philox = ebb_generator_take (generator, (guint64) x->n_elements);
  ebb_op_add_output (&call, ebb_dtype_promote (call.inputs[0]->view.dtype, call.inputs[1]->view.dtype), x->view.shape,
                     (guint) x->view.n_dims);
  return ebb_op_finish1 (&call, error);
}

/* -- shared by the ops with a norm -------------------------------------------------------------------------------- */

/* The tensors that both save first; statistics follow. */
enum
{
  SAVED_SUM,
  SAVED_WEIGHT,
  SAVED_STATISTICS
};

static EbbTensor *
launch_norm_grad (EbbBackward *ctx,
                  EbbLaunch *launch,
                  EbbTensor *dy,
                  EbbTensor *dsum,
                  guint n_statistics,
                  guint n_vectors,
                  GError **error)
{
  EbbTensor *sum = ctx->saved[SAVED_SUM];
  gint64 size = sum->view.shape[sum->view.n_dims - 1];
  gboolean *const accumulate[] = { &launch->params.norm.accumulate_weight, &launch->params.norm.accumulate_bias };
  g_autoptr (EbbTensor) grad = NULL;

  if (dsum != NULL && ebb_tensor_is_unshared (dsum))
    grad = ebb_tensor_ref (dsum);
  else
    grad = ebb_tensor_new_reusing (dy, error);
  if (grad == NULL)
    return NULL;
  launch->params = *ctx->params;
  ebb_launch_input (launch, dy);
  ebb_launch_input (launch, sum);
  ebb_launch_input (launch, ctx->saved[SAVED_WEIGHT]);
  for (guint i = 0; i < n_statistics; i++)
    ebb_launch_input (launch, ctx->saved[SAVED_STATISTICS + i]);
  ebb_launch_input (launch, dsum);
  ebb_launch_output (launch, grad);
  for (guint i = 0; i < n_vectors; i++)
    if (!ebb_norm_give_vector (ctx, launch, 2 + i, size, accumulate[i], error))
      return NULL;
  return ebb_launch (EBB_DEVICE_OF (sum), launch, error) ? g_steal_pointer (&grad) : NULL;
}

/* The gradient of the sum: through the norm, plus what came to the sum itself. Owned. The norm has as many vectors as
 * statistics: weight and bias, mean and rstd, or one of each. */
static EbbTensor *
compute_sum_grad (EbbBackward *ctx,
                  EbbKernel kernel,
                  guint n_statistics,
                  GError **error)
{
  EbbDType dtype = ctx->saved[SAVED_SUM]->view.dtype;
  g_autoptr (EbbTensor) dsum = NULL;
  g_autoptr (EbbTensor) dy = NULL;
  EbbLaunch launch;

  if (ctx->grad_outputs[1] == NULL)
    return ebb_backward_take_grad (ctx, 0, dtype, error);
  if (ctx->grad_outputs[0] != NULL)
    {
      dsum = ebb_backward_take_grad (ctx, 0, dtype, error);
      if (dsum == NULL)
        return NULL;
    }
  dy = ebb_backward_take_grad (ctx, 1, dtype, error);
  if (dy == NULL)
    return NULL;
  ebb_launch_init (&launch, kernel);
  return launch_norm_grad (ctx, &launch, dy, dsum, n_statistics, n_statistics, error);
}

/* Begins a call on @x, @residual and two vectors, each of which may be NULL; checks, and describes the sum and its
 * norm. FALSE: error, call cleared. */
static gboolean
describe_sum_and_norm (EbbOpCall *call,
                       const EbbOp *op,
                       EbbTensor *x,
                       EbbTensor *residual,
                       EbbTensor *const vectors[2],
                       const char *const names[2],
                       double eps,
                       double dropout_p,
                       gboolean training,
                       EbbGenerator *generator,
                       GError **error)
{
  if (!ebb_op_begin (call, op, error, 2, x, residual) || !ebb_op_add_optional (call, vectors[0], error)
      || !ebb_op_add_optional (call, vectors[1], error))
    return FALSE;
  if (x->view.n_dims == 0)
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is []; must have at least one dimension");
  if (!check_residual (call, dropout_p, FALSE, error)
      || !ebb_norm_check (call, 2, names, 2, x->view.shape[x->view.n_dims - 1], error))
    return FALSE;
  call->params.norm.eps = eps;
  call->params.norm.p = training ? dropout_p : 0.0;
  if (call->params.norm.p > 0.0)
    call->params.norm.philox = ebb_generator_take (generator, (guint64) x->n_elements);
  ebb_op_add_output_like (call, call->inputs[0]);
  ebb_op_add_output_like (call, call->inputs[0]);
  return TRUE;
}

static gboolean
finish_sum_and_norm (EbbOpCall *call,
                     EbbTensor **sum,
                     EbbTensor **normalized,
                     GError **error)
{
  if (!ebb_op_finish (call, error))
    return FALSE;
  *sum = call->outputs[0];
  *normalized = call->outputs[1];
  for (guint i = 2; i < call->n_outputs; i++)
    ebb_tensor_unref (call->outputs[i]);
  return TRUE;
}

/* -- residual_dropout_layer_norm ---------------------------------------------------------------------------------- */

static gboolean
residual_layer_norm_backward (EbbBackward *ctx,
                              GError **error)
{
  EbbTensor *grad;

  if (ctx->grad_outputs[0] == NULL && ctx->grad_outputs[1] == NULL)
    return TRUE;
  grad = compute_sum_grad (ctx, EBB_KERNEL_LAYER_NORM_GRAD, 2, error);
  return grad != NULL && give_branches (ctx, grad, ctx->params->norm.p, ctx->params->norm.philox, error);
}

static const EbbOp op_residual_layer_norm = { "residual_dropout_layer_norm", EBB_OP_NORMALIZATION,
                                              EBB_KERNEL_ADD_LAYER_NORM, NULL, residual_layer_norm_backward };

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

  if (!describe_sum_and_norm (&call, &op_residual_layer_norm, x, residual, (EbbTensor *[]){ weight, bias }, names, eps,
                              dropout_p, training, generator, error))
    return FALSE;
  ebb_norm_add_statistics (&call, 2);
  ebb_op_save_output (&call, 0);
  ebb_op_save_optional (&call, 2);
  ebb_op_save_output (&call, 2);
  ebb_op_save_output (&call, 3);
  ebb_op_rematerialize_output (&call, 1, ebb_layer_norm_rematerialize, 3, ~0, 2, 3);
  return finish_sum_and_norm (&call, sum, normalized, error);
}

/* -- residual_dropout_rms_norm ------------------------------------------------------------------------------------ */

enum
{
  INPUT_BRANCH_WEIGHT = 3,
  OUTPUT_RSTD = 2,
  OUTPUT_BRANCH_RSTD
};

enum
{
  SAVED_BRANCH = SAVED_STATISTICS + 1,
  SAVED_BRANCH_WEIGHT,
  SAVED_BRANCH_RSTD
};

/* From the gradient of the normalised branch to those of x and of the branch's weight. */
static gboolean
differentiate_branch (EbbBackward *ctx,
                      GError **error)
{
  EbbTensor *x = ctx->saved[SAVED_BRANCH];
  g_autoptr (EbbTensor) grad = g_steal_pointer (&ctx->grad_inputs[0]);
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_RMS_NORM_GRAD);
  launch.params = *ctx->params;
  ebb_launch_input (&launch, grad);
  ebb_launch_input (&launch, x);
  ebb_launch_input (&launch, ctx->saved[SAVED_BRANCH_WEIGHT]);
  ebb_launch_input (&launch, ctx->saved[SAVED_BRANCH_RSTD]);
  ebb_launch_input (&launch, NULL);
  if (ctx->needs & 1)
    {
      ctx->grad_inputs[0] = ebb_tensor_new_reusing (grad, error);
      if (ctx->grad_inputs[0] == NULL)
        return FALSE;
    }
  ebb_launch_output (&launch, ctx->grad_inputs[0]);
  return ebb_norm_give_vector (ctx, &launch, INPUT_BRANCH_WEIGHT, x->view.shape[x->view.n_dims - 1],
                               &launch.params.norm.accumulate_weight, error)
         && ebb_launch (EBB_DEVICE_OF (x), &launch, error);
}

static gboolean
residual_rms_norm_backward (EbbBackward *ctx,
                            GError **error)
{
  const guint32 needs = ctx->needs, branch = 1u | 1u << INPUT_BRANCH_WEIGHT;
  EbbTensor *grad;
  gboolean ok;

  if (ctx->grad_outputs[0] == NULL && ctx->grad_outputs[1] == NULL)
    return TRUE;
  grad = compute_sum_grad (ctx, EBB_KERNEL_RMS_NORM_GRAD, 1, error);
  if (grad == NULL)
    return FALSE;
  if (!ctx->params->norm.normalizes_branch)
    return give_branches (ctx, grad, ctx->params->norm.p, ctx->params->norm.philox, error);
  if (needs & branch)
    ctx->needs |= 1;
  ok = give_branches (ctx, grad, ctx->params->norm.p, ctx->params->norm.philox, error);
  ctx->needs = needs;
  return ok && (!(needs & branch) || differentiate_branch (ctx, error));
}

static const EbbOp op_residual_rms_norm = { "residual_dropout_rms_norm", EBB_OP_NORMALIZATION, EBB_KERNEL_ADD_RMS_NORM,
                                            NULL, residual_rms_norm_backward };

/**
 * ebb_residual_dropout_rms_norm:
 * @x: (nullable): a tensor [.., N], f32 or bf16: what a branch gave
 * @residual: (nullable): a tensor of the same shape: the stream that it is added to
 * @branch_weight: (nullable): [N], f32 or bf16: normalizes @x with that before it is added; %NULL to add it as it is
 * @weight: (nullable): [N], f32 or bf16: of the norm of the sum; %NULL for no factor
 * @eps: what is added to the mean square
 * @unit_offset: whether the factors are 1 + weight, as in Gemma
 * @dropout_p: the probability in [0, 1] with which an element of the branch is dropped; the others are divided by 1 - p
 * @training: %FALSE for no dropout
 * @generator: (nullable): where dropout draws from; %NULL for the thread's default
 * @sum: (out) (transfer full): residual + dropout (x), or residual + dropout (norm (x)); f32 if one of them is, else
 * bf16
 * @normalized: (out) (transfer full): the RMS norm of @sum, of its dtype; see ebb_rms_norm()
 * @error: return location for an error
 *
 * Ends a branch of a transformer block and begins the next in one pass over memory, as
 * ebb_residual_dropout_layer_norm() does with layer norms. Backward keeps @sum, @weight and one number a row, and as
 * much of @x if that is normalized; the mask is drawn again.
 *
 * Returns: %TRUE; %FALSE with %EBB_ERROR_SHAPE, %EBB_ERROR_DTYPE, or %EBB_ERROR_INVALID_ARGUMENT for a probability that
 *   is out of range
 */
gboolean
ebb_residual_dropout_rms_norm (EbbTensor *x,
                               EbbTensor *residual,
                               EbbTensor *branch_weight,
                               EbbTensor *weight,
                               double eps,
                               gboolean unit_offset,
                               double dropout_p,
                               gboolean training,
                               EbbGenerator *generator,
                               EbbTensor **sum,
                               EbbTensor **normalized,
                               GError **error)
{
  static const char *const names[] = { "weight", "branch_weight" };
  const gboolean normalizes_branch = branch_weight != NULL;
  EbbOpCall call;

  if (!describe_sum_and_norm (&call, &op_residual_rms_norm, x, residual, (EbbTensor *[]){ weight, branch_weight },
                              names, eps, dropout_p, training, generator, error))
    return FALSE;
  call.params.norm.unit_offset = unit_offset;
  call.params.norm.normalizes_branch = normalizes_branch;
  ebb_norm_add_statistics (&call, normalizes_branch ? 2 : 1);
  ebb_op_save_output (&call, 0);
  ebb_op_save_optional (&call, 2);
  ebb_op_save_output (&call, OUTPUT_RSTD);
  if (normalizes_branch)
    {
      ebb_op_save_input (&call, 0);
      ebb_op_save_input (&call, INPUT_BRANCH_WEIGHT);
      ebb_op_save_output (&call, OUTPUT_BRANCH_RSTD);
    }
  ebb_op_rematerialize_output (&call, 1, ebb_rms_norm_rematerialize, 2, ~0, 2);
  return finish_sum_and_norm (&call, sum, normalized, error);
}
