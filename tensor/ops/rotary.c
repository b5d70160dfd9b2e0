/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/rotary.h"

#include <math.h>

#include "tensor/autograd/op-support-private.h"

/* Rotary positions of queries and keys. */

enum
{
  INPUT_X,
  INPUT_FREQUENCIES,
  INPUT_STARTS
};

/* A rotation's gradient is the rotation back. */
static gboolean
rotary_backward (EbbBackward *ctx,
                 GError **error)
{
  EbbKernelParams params = *ctx->params;
  EbbTensor *grad;
  g_autoptr (EbbTensor) dy = NULL;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  grad = ctx->grad_outputs[0];
  dy = grad->view.strides[3] == 1 ? ebb_backward_steal_grad (ctx, 0)
                                  : ebb_backward_take_grad (ctx, 0, grad->view.dtype, error);
  if (dy == NULL)
    return FALSE;
  params.rotary.reversed = TRUE;
  ctx->grad_inputs[INPUT_X] = ebb_tensor_new_reusing (dy, error);
  return ctx->grad_inputs[INPUT_X] != NULL
         && EBB_LAUNCH (EBB_KERNEL_ROTARY, &params, 3, error, dy, ctx->saved[0], ctx->saved[1],
                        ctx->grad_inputs[INPUT_X]);
}

static gboolean
rematerialize_rotary (const EbbRematerializeArgs *how,
                      EbbTensor **operands,
                      EbbTensor *output,
                      GError **error)
{
  return EBB_LAUNCH (EBB_KERNEL_ROTARY, &how->params, 3, error, operands[0], operands[1], operands[2], output);
}

static const EbbOp op_rotary = { "rotary", EBB_OP_POINTWISE, EBB_KERNEL_ROTARY, NULL, rotary_backward };

static gboolean
check_starts (EbbOpCall *call,
              GError **error)
{
  const EbbView *x = &call->inputs[INPUT_X]->view;
  EbbTensor *starts = call->inputs[INPUT_STARTS];

  if (starts == NULL)
    return TRUE;
  if (starts->view.dtype != EBB_DTYPE_I64 && starts->view.dtype != EBB_DTYPE_I32)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "starts is %s; must be i64 or i32",
                        ebb_dtype_get_name (starts->view.dtype));
  if (starts->view.n_dims != 2 || (starts->view.shape[0] != 1 && starts->view.shape[0] != x->shape[0])
      || (starts->view.shape[1] != 1 && starts->view.shape[1] != x->shape[1]))
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "starts is %s and x is %s; must be [B, T] and [B, T, H, D]",
                        ebb_show_shape (starts), ebb_show_shape (call->inputs[INPUT_X]));
  ebb_op_expand (call, INPUT_STARTS, x->shape, 2);
  return TRUE;
}

static gboolean
check_frequencies (EbbOpCall *call,
                   GError **error)
{
  EbbTensor *x = call->inputs[INPUT_X], *frequencies = call->inputs[INPUT_FREQUENCIES];

  if (frequencies->view.dtype != EBB_DTYPE_F32)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "inverse_frequencies is %s; must be f32",
                        ebb_dtype_get_name (frequencies->view.dtype));
  if (frequencies->view.n_dims != 1 || frequencies->view.shape[0] == 0
      || 2 * frequencies->view.shape[0] > x->view.shape[3])
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE,
                        "inverse_frequencies is %s and x is %s; must be [R / 2] with 0 < R <= D and [B, T, H, D]",
                        ebb_show_shape (frequencies), ebb_show_shape (x));
  if (call->needs_grad && ebb_tensor_needs_grad (frequencies))
    return ebb_op_fail (call, error, EBB_ERROR_NOT_SUPPORTED,
                        "inverse_frequencies requires a gradient, which is not computed; detach it");
  return ebb_op_contiguous (call, INPUT_FREQUENCIES, error);
}

static gboolean
check_numbers (EbbOpCall *call,
               gint64 first,
               double factor,
               double ntk,
               GError **error)
{
  if (first < 0 || first > G_MAXINT64 - call->inputs[INPUT_X]->view.shape[1])
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT,
                        "first is %" G_GINT64_FORMAT "; must be the index of a token in its row, 0 or more", first);
  if (!isfinite (factor))
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "factor is %g; must be finite", factor);
  if (!isfinite (ntk) || ntk <= 0.0)
    return ebb_op_fail (call, error, EBB_ERROR_INVALID_ARGUMENT, "ntk is %g; must be positive and finite", ntk);
  return TRUE;
}

/**
 * ebb_rotary:
 * @x: (nullable): queries or keys, [B, T, H, D], f32 or bf16
 * @inverse_frequencies: (nullable): f32 [R / 2], R <= D: by how much the angle of each pair grows from one position to
 *   the next
 * @starts: (nullable): i64 or i32 [B, T]: for each token the index in its row at which its document begins, or %NULL
 *   for 0
 * @first: the index in its row of the first token of @x
 * @factor: what cosines and sines are multiplied by; 1 as a rule
 * @ntk: frequency i is divided by @ntk to the power of 2 i / R; 1 for frequencies as they are
 * @error: return location for an error
 *
 * Rotates elements i and i + R / 2 of each head, as a pair, by the position times frequency i (Su et al., RoFormer,
 * 2021, equation 34, with the pairs as in Llama), and copies the elements behind R. The position of token t is
 * @first + t less its start, 0 at least. Angles, cosines and sines are f32, so the result is rounded once for bf16 as
 * well. Any strides of @x will do; the data is not copied if the last one is 1. Backward keeps @inverse_frequencies and
 * @starts.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, %EBB_ERROR_INVALID_ARGUMENT for a number out of range, %EBB_ERROR_NOT_SUPPORTED for frequencies
 *   that require a gradient
 */
EbbTensor *
ebb_rotary (EbbTensor *x,
            EbbTensor *inverse_frequencies,
            EbbTensor *starts,
            gint64 first,
            double factor,
            double ntk,
            GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, &op_rotary, error, 2, x, inverse_frequencies))
    return NULL;
  if (x->view.dtype != EBB_DTYPE_F32 && x->view.dtype != EBB_DTYPE_BF16)
    {
      ebb_op_check_floating (&call, error);
      return NULL;
    }
  if (x->view.n_dims != 4)
    return ebb_op_fail_null (&call, error, EBB_ERROR_SHAPE, "x is %s; must be [B, T, H, D]", ebb_show_shape (x));
  if (!ebb_op_add_optional (&call, starts, error) || !check_frequencies (&call, error) || !check_starts (&call, error)
      || !check_numbers (&call, first, factor, ntk, error) || !ebb_op_dense_rows (&call, INPUT_X, error))
    return NULL;
  call.params.rotary.first = first;
  call.params.rotary.factor = factor;
  call.params.rotary.ntk = ntk;
  ebb_op_add_output_like (&call, x);
  ebb_op_save_input (&call, INPUT_FREQUENCIES);
  if (starts != NULL)
    ebb_op_save_input (&call, INPUT_STARTS);
  else
    ebb_op_save_nothing (&call);
  /* After a norm of queries or keys backward keeps what the norm had: neither its result nor this one. Without a norm
   * this result costs no more than x. */
  if (x->rematerialization != NULL)
    {
      call.rematerializes_operands = TRUE;
      ebb_op_rematerialize_output (&call, 0, rematerialize_rotary, 3, INPUT_X, INPUT_FREQUENCIES, INPUT_STARTS);
    }
  return ebb_op_finish1 (&call, error);
}
