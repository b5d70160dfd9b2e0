/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/activation.h"
#include "tensor/error-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/ops/product-private.h"
#include "tensor/ops/shape.h"

/* Activations (tanh, sigmoid, ReLU, GELU, SiLU), softmax and dropout. */

/**
 * ebb_tanh:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The hyperbolic tangent of each element.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_tanh (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_TANH, x, error);
}

/**
 * ebb_relu:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The rectified linear unit, y = max (x, 0). The gradient at 0 is 0; NaN passes it on.
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_relu (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_RELU, x, error);
}

/**
 * ebb_silu:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The sigmoid linear unit, y = x / (1 + e^-x), also known as swish (Elfwing et al., 2017, equation 3).
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_silu (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_SILU, x, error);
}

/**
 * ebb_sigmoid:
 * @x: a tensor of f32 or bf16, of any shape
 * @error: return location for an error
 *
 * The logistic function, y = 1 / (1 + e^-x).
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_sigmoid (EbbTensor *x, GError **error)
{
  return ebb_unary (EBB_UNARY_SIGMOID, x, error);
}

/**
 * ebb_gelu:
 * @x: a tensor of f32 or bf16, of any shape
 * @kind: which form of GELU
 * @error: return location for an error
 *
 * The Gaussian error linear unit (Hendrycks and Gimpel, 2016, section 2): y = x * Phi (x), or its approximation
 * y = x / 2 * (1 + tanh (sqrt (2 / pi) * (x + 0.044715 * x^3))).
 *
 * Fails with %EBB_ERROR_DTYPE for a tensor of another dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_gelu (EbbTensor *x, EbbGeluKind kind, GError **error)
{
  return ebb_unary (kind == EBB_GELU_TANH ? EBB_UNARY_GELU_TANH : EBB_UNARY_GELU, x, error);
}

/* -- bias and gelu ------------------------------------------------------------------------------------------------ */

static gboolean
bias_gelu_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *x = ctx->saved[0];
  g_autoptr (EbbTensor) bias = ebb_tensor_into_dtype (ebb_tensor_ref (ctx->saved[1]), x->view.dtype, error);
  g_autoptr (EbbTensor) dy = NULL;
  g_autoptr (EbbTensor) dx = NULL;

  if (bias == NULL || (dy = ebb_backward_take_grad (ctx, 0, x->view.dtype, error)) == NULL
      || (dx = ebb_tensor_new_reusing (dy, error)) == NULL
      || !EBB_LAUNCH (EBB_KERNEL_BIAS_GELU_GRAD, ctx->params, 3, error, dy, x, bias, dx))
    return FALSE;

  if (ctx->needs & 2)
    {
      gboolean accumulate = FALSE;
      EbbView rows;

      ebb_view_as_rows (&rows, dx);
      ctx->grad_inputs[1] = ebb_backward_grad_buffer (ctx, 1, EBB_DTYPE_F32, EBB_FULL_SHAPE (bias), &accumulate, error);
      if (ctx->grad_inputs[1] == NULL || !ebb_launch_column_sum (&rows, ctx->grad_inputs[1], accumulate, error))
        return FALSE;
    }
  if (ctx->needs & 1)
    ctx->grad_inputs[0] = g_steal_pointer (&dx);
  return TRUE;
}

static gboolean
rematerialize_bias_gelu (const EbbRematerializeArgs *how, EbbTensor **operands, EbbTensor *output, GError **error)
{
  return EBB_LAUNCH (EBB_KERNEL_BIAS_GELU, &how->params, 2, error, operands[0], operands[1], output);
}

static const EbbOp bias_gelu_op = { "bias_gelu", EBB_OP_POINTWISE, EBB_KERNEL_BIAS_GELU, NULL, bias_gelu_backward };

/**
 * ebb_bias_gelu:
 * @x: a tensor `[…, N]` of f32 or bf16
 * @bias: a tensor `[N]`; cast to the dtype of @x
 * @kind: which form of GELU
 * @error: return location for an error
 *
 * GELU of the sum of @x and @bias, as ebb_gelu () of ebb_add (), in one pass over memory. For the backward pass only @x
 * and @bias are kept.
 *
 * Fails with %EBB_ERROR_SHAPE when @bias is not as long as the last dimension of @x, and with %EBB_ERROR_DTYPE when one
 * of both is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_bias_gelu (EbbTensor *x, EbbTensor *bias, EbbGeluKind kind, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &bias_gelu_op, error, 2, x, bias) || !ebb_op_check_floating (&call, error))
    return NULL;
  if (x->view.n_dims < 1 || bias->view.n_dims != 1 || bias->view.shape[0] != x->view.shape[x->view.n_dims - 1])
    return ebb_op_fail_null (
        &call, error, EBB_ERROR_SHAPE,
        "bias of shape %s does not fit x of shape %s; it must be as long as the last dimension of x",
        ebb_show_shape (bias), ebb_show_shape (x));
  if (!ebb_op_contiguous (&call, 0, error) || !ebb_op_cast (&call, 1, x->view.dtype, error)
      || !ebb_op_contiguous (&call, 1, error))
    return NULL;
  call.params.gelu.tanh = kind == EBB_GELU_TANH;
  ebb_op_add_output_like (&call, x);
  ebb_op_save_input (&call, 0);
  ebb_op_save_input (&call, 1);
  ebb_op_rematerialize_output (&call, 0, rematerialize_bias_gelu, 2, 0, 1);
  return ebb_op_finish1 (&call, error);
}

/* -- gated activation --------------------------------------------------------------------------------------------- */

static gboolean
gated_activation_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *gate = ctx->saved[0];
  g_autoptr (EbbTensor) dy = NULL;
  EbbLaunch launch;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, gate->view.dtype, error);
  if (dy == NULL)
    return FALSE;
  for (guint i = 0; i < 2; i++)
    if (ctx->needs & (1u << i))
      {
        /* The first of both lies in the gradient's own memory, if nobody else can see that. */
        ctx->grad_inputs[i] = ebb_tensor_new_reusing (dy, error);
        if (ctx->grad_inputs[i] == NULL)
          return FALSE;
      }
  ebb_launch_init (&launch, EBB_KERNEL_GATED_ACTIVATION_GRAD);
  launch.params = *ctx->params;
  ebb_launch_input (&launch, dy);
  ebb_launch_input (&launch, gate);
  ebb_launch_input (&launch, ctx->saved[1]);
  ebb_launch_output (&launch, ctx->grad_inputs[0]);
  ebb_launch_output (&launch, ctx->grad_inputs[1]);
  return ebb_launch (EBB_DEVICE_OF (gate), &launch, error);
}

static gboolean
rematerialize_gated_activation (const EbbRematerializeArgs *how,
                                EbbTensor **operands,
                                EbbTensor *output,
                                GError **error)
{
  return EBB_LAUNCH (EBB_KERNEL_GATED_ACTIVATION, &how->params, 2, error, operands[0], operands[1], output);
}

static const EbbOp gated_activation_op = { "gated_activation", EBB_OP_POINTWISE, EBB_KERNEL_GATED_ACTIVATION, NULL,
                                           gated_activation_backward };

/**
 * ebb_gated_activation:
 * @gate: a tensor of f32 or bf16, with at least one dimension
 * @up: a tensor of the same shape
 * @kind: the activation
 * @error: return location for an error
 *
 * The activation of @gate times @up (Shazeer, GLU Variants Improve Transformer, 2020), in one pass over memory. Both
 * are cast to f32 if one of them is. They may be halves of one tensor: the data is not copied if the last stride is 1.
 * For the backward pass only @gate and @up are kept.
 *
 * Fails with %EBB_ERROR_SHAPE when the shapes differ, with %EBB_ERROR_DTYPE when one of both is not f32 or bf16, and
 * with %EBB_ERROR_INVALID_ARGUMENT when @kind is unknown.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @gate, or %NULL with @error set
 */
EbbTensor *
ebb_gated_activation (EbbTensor *gate, EbbTensor *up, EbbActivation kind, GError **error)
{
  static const EbbUnaryOp ops[] = { EBB_UNARY_GELU, EBB_UNARY_GELU_TANH, EBB_UNARY_SILU };
  EbbOpCall call;
  EbbDType dtype;

  if (!ebb_op_begin (&call, &gated_activation_op, error, 2, gate, up) || !ebb_op_check_floating (&call, error))
    return NULL;
  if ((guint) kind >= G_N_ELEMENTS (ops))
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT,
                             "kind is %d; must be a member of Activation, 0 to %u", (int) kind,
                             (guint) G_N_ELEMENTS (ops) - 1);
  if (gate->view.n_dims == 0 || !ebb_shapes_equal (&gate->view, &up->view))
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE, "gate is %s and up is %s; must be of one shape [.., N]",
                             ebb_show_shape (gate), ebb_show_shape (up));
  dtype = ebb_dtype_promote (gate->view.dtype, up->view.dtype);
  for (guint i = 0; i < 2; i++)
    if (!ebb_op_cast (&call, i, dtype, error) || !ebb_op_dense_rows (&call, i, error))
      return NULL;
  call.params.gated.op = ops[kind];
  ebb_op_add_output_like (&call, call.inputs[0]);
  ebb_op_save_input (&call, 0);
  ebb_op_save_input (&call, 1);
  ebb_op_rematerialize_output (&call, 0, rematerialize_gated_activation, 2, 0, 1);
  return ebb_op_finish1 (&call, error);
}

/* -- softmax ------------------------------------------------------------------------------------------------------ */

static gboolean
softmax_backward (EbbBackward *ctx, GError **error)
{
  EbbTensor *y = ctx->saved[0];
  g_autoptr (EbbTensor) dy = ebb_backward_take_grad (ctx, 0, y->view.dtype, error);

  return dy != NULL && (ctx->grad_inputs[0] = ebb_tensor_new_like (y, error)) != NULL
         && EBB_LAUNCH (EBB_KERNEL_SOFTMAX_GRAD, ctx->params, 2, error, dy, y, ctx->grad_inputs[0]);
}

static const EbbOp softmax_ops[2] = {
  { "softmax", EBB_OP_NORMALIZATION, EBB_KERNEL_SOFTMAX, NULL, softmax_backward },
  { "log_softmax", EBB_OP_NORMALIZATION, EBB_KERNEL_SOFTMAX, NULL, softmax_backward },
};

/* Over the last dimension of @x, which has one. */
static EbbTensor *
softmax_rows (EbbTensor *x, gboolean log, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &softmax_ops[log], error, 1, x) || !ebb_op_check_floating (&call, error)
      || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  call.params.softmax.log = log;
  ebb_op_add_output_like (&call, x);
  ebb_op_save_output (&call, 0);
  return ebb_op_finish1 (&call, error);
}

static EbbTensor *
softmax (EbbTensor *x, int dim, gboolean log, GError **error)
{
  guint n_dims;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  n_dims = (guint) x->view.n_dims;
  if (!ebb_normalize_dim (softmax_ops[log].name, &dim, MAX (n_dims, 1), error))
    return NULL;
  if (n_dims == 0)
    {
      g_autoptr (EbbTensor) row = ebb_unsqueeze (x, 0, error);
      g_autoptr (EbbTensor) y = softmax_rows (row, log, error);

      return ebb_squeeze (y, 0, error);
    }
  if (dim + 1 < (int) n_dims)
    {
      g_autoptr (EbbTensor) rows = ebb_transpose (x, dim, -1, error);
      g_autoptr (EbbTensor) y = softmax_rows (rows, log, error);

      return ebb_transpose (y, dim, -1, error);
    }
  return softmax_rows (x, log, error);
}

/**
 * ebb_softmax:
 * @x: a tensor of f32 or bf16
 * @dim: the dimension along which the result sums to 1; negative ones count from the end
 * @error: return location for an error
 *
 * y = e^x / sum (e^x) along @dim, computed without overflow. Along the last dimension it is one pass; others are
 * transposed.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range and with %EBB_ERROR_DTYPE when @x is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_softmax (EbbTensor *x, int dim, GError **error)
{
  return softmax (x, dim, FALSE, error);
}

/**
 * ebb_log_softmax:
 * @x: a tensor of f32 or bf16
 * @dim: the dimension along which the exponential of the result sums to 1; negative ones count from the end
 * @error: return location for an error
 *
 * y = x - log (sum (e^x)) along @dim: the logarithm of ebb_softmax (), without its loss of precision.
 *
 * Fails with %EBB_ERROR_INDEX when @dim is out of range and with %EBB_ERROR_DTYPE when @x is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_log_softmax (EbbTensor *x, int dim, GError **error)
{
  return softmax (x, dim, TRUE, error);
}

/* -- dropout ------------------------------------------------------------------------------------------------------ */

/* The mask comes back from the name of its first draw: nothing is saved. */
static gboolean
dropout_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = NULL;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  dy = ebb_backward_take_grad (ctx, 0, ctx->grad_outputs[0]->view.dtype, error);
  return dy != NULL && (ctx->grad_inputs[0] = ebb_tensor_new_reusing (dy, error)) != NULL
         && EBB_LAUNCH (EBB_KERNEL_DROPOUT, ctx->params, 1, error, dy, ctx->grad_inputs[0]);
}

static const EbbOp dropout_op = { "dropout", EBB_OP_RANDOM, EBB_KERNEL_DROPOUT, NULL, dropout_backward };

/**
 * ebb_dropout:
 * @x: a tensor of f32 or bf16, of any shape
 * @p: the probability with which an element becomes 0, in [0, 1]
 * @training: whether anything is to be dropped
 * @generator: (nullable): where the draws come from, or %NULL for the thread's default
 * @error: return location for an error
 *
 * Sets elements to 0 with probability @p and multiplies the others by 1 / (1 - @p) (Srivastava et al., 2014). With @p 0
 * or without @training the result shares the data of @x. The mask is not kept for the backward pass but drawn again.
 *
 * Fails with %EBB_ERROR_INVALID_ARGUMENT when @p is not in [0, 1] and with %EBB_ERROR_DTYPE when @x is not f32 or bf16.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_dropout (EbbTensor *x, double p, gboolean training, EbbGenerator *generator, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &dropout_op, error, 1, x) || !ebb_op_check_floating (&call, error))
    return NULL;
  if (!(p >= 0.0 && p <= 1.0))
    return ebb_op_fail_null (&call, error, EBB_ERROR_INVALID_ARGUMENT, "p is %g; a probability is in [0, 1]", p);
  if (p == 0.0 || !training)
    {
      ebb_op_clear (&call);
      return ebb_identity (x, error);
    }
  if (!ebb_op_contiguous (&call, 0, error))
    return NULL;
  call.params.random.p = p;
  call.params.random.philox = ebb_generator_take (generator, (guint64) x->n_elements);
  ebb_op_add_output_like (&call, x);
  return ebb_op_finish1 (&call, error);
}
