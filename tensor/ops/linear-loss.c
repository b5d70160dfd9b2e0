/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/ops/loss-private.h"

#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/product-private.h"

#include <string.h>

/* The logits of a language model, [B T, V], are its largest tensor by far. Here they exist for a chunk of rows at a
 * time. With one loss for all rows its gradient is known up to a factor as soon as a chunk's logits are: they turn
 * into their gradient in place and go on into those of x and weight at once, so the products are not done again in
 * backward. With one loss for each row the factors differ; then logits are made a second time in backward. */

/* A device says how many bytes of logits it holds at a time. Each chunk reads the weight twice and its gradient once
 * and writes that: chunks that are too small spend their time on this. The number of rows follows from shapes and that
 * setting alone, so sums have one order. */
#define CHUNK_ROW_UNIT 64 /* rows of a chunk are a multiple of it, as the products like best */
#define CHUNK_LEAST_ROWS 16

typedef struct
{
  EbbDevice *device;
  const char *op_name;
  EbbKernelParams params;
  EbbView x, weight, targets;
  gint64 n_rows, chunk_rows;
  const EbbView *bias; /* NULL for none */
  EbbTensor *memory;   /* owned: logits of a chunk, in rows as the device aligns them */
  gboolean adds;       /* the weight's gradient has something in it already */
  gboolean bias_adds;  /* the same for the bias */
} Chunks;

static gint64
count_chunk_rows (EbbDevice *device,
                  gint64 n_rows,
                  gint64 n_classes,
                  EbbDType dtype)
{
  const gint64 n_bytes = (gint64) MIN (ebb_device_get_loss_chunk (device), G_MAXINT64);
  gint64 most = MAX (n_bytes / (n_classes * (gint64) ebb_dtype_get_size (dtype)), CHUNK_LEAST_ROWS);
  gint64 unit = most >= CHUNK_ROW_UNIT ? CHUNK_ROW_UNIT : CHUNK_LEAST_ROWS;
  gint64 n_chunks, rows;

  most = most / unit * unit;
  n_chunks = MAX ((n_rows + most - 1) / most, 1);
  rows = (n_rows + n_chunks - 1) / n_chunks;
  return MIN ((rows + unit - 1) / unit * unit, MAX (n_rows, 1));
}

static gboolean
chunks_init (Chunks *self,
             const EbbOp *op,
             const EbbKernelParams *params,
             EbbTensor *x,
             EbbTensor *weight,
             EbbTensor *bias,
             EbbTensor *targets,
             gint64 n_chunk_classes,
             GError **error)
{
  gint64 shape[2], unit;

  self->device = EBB_DEVICE_OF (x);
  self->op_name = op->name;
  self->params = *params;
  self->adds = self->bias_adds = FALSE;
  self->bias = bias != NULL ? &bias->view : NULL;
  self->weight = weight->view;
  ebb_view_as_rows (&self->x, x);
  ebb_loss_flatten (&self->targets, targets);
  self->n_rows = self->x.shape[0];
  unit = MAX ((gint64) (self->device->backend->row_alignment / ebb_dtype_get_size (x->view.dtype)), 1);
  self->chunk_rows = count_chunk_rows (self->device, self->n_rows, (n_chunk_classes + unit - 1) / unit * unit,
                                       x->view.dtype);
  shape[0] = self->chunk_rows;
  shape[1] = (weight->view.shape[0] + unit - 1) / unit * unit;
  self->memory = ebb_tensor_new_uninitialized (shape, 2, x->view.dtype, self->device, error);
  return self->memory != NULL;
}

static void
chunks_clear (Chunks *self)
{
  g_clear_pointer (&self->memory, ebb_tensor_unref);
}

/* The logits of rows [first, first + n). */
static gboolean
chunks_compute_logits (Chunks *self,
                       gint64 first,
                       gint64 n,
                       EbbView *x,
                       EbbView *logits,
                       GError **error)
{
  EbbView weight = self->weight;

  ebb_view_slice_rows (x, &self->x, first, n);
  ebb_view_slice_rows (logits, &self->memory->view, 0, n);
  logits->shape[1] = weight.shape[0];
  ebb_view_transpose (&weight);
  return ebb_launch_matmul (self->device, x, &weight, self->bias, logits, FALSE, error);
}

static void
slice (EbbView *view,
       const EbbView *vector,
       gint64 first,
       gint64 n)
{
  ebb_view_slice_rows (view, vector, first, n);
}

/* The gradient of the bias: that of a chunk's logits summed over its rows, chunk after chunk. */
static gboolean
chunks_add_to_bias (Chunks *self,
                    const EbbView *logits_grad,
                    EbbTensor *bias_grad,
                    GError **error)
{
  EbbLaunch launch;

  ebb_launch_init (&launch, EBB_KERNEL_COLUMN_SUM);
  launch.params.column_sum.accumulate = self->bias_adds;
  launch.inputs[launch.n_inputs++] = logits_grad;
  ebb_launch_output (&launch, bias_grad);
  self->bias_adds = TRUE;
  return ebb_launch (self->device, &launch, error);
}

/* From the gradient of a chunk's logits to those of its x, of the weight and of the bias. Each may be NULL. */
static gboolean
chunks_give_gradients (Chunks *self,
                       gint64 first,
                       gint64 n,
                       const EbbView *x,
                       EbbView *logits_grad,
                       const EbbView *x_grad,
                       EbbTensor *weight_grad,
                       EbbTensor *bias_grad,
                       GError **error)
{
  if (bias_grad != NULL && !chunks_add_to_bias (self, logits_grad, bias_grad, error))
    return FALSE;
  if (x_grad != NULL)
    {
      EbbView rows;

      ebb_view_slice_rows (&rows, x_grad, first, n);
      if (!ebb_launch_matmul (self->device, logits_grad, &self->weight, NULL, &rows, FALSE, error))
        return FALSE;
    }
  if (weight_grad == NULL)
    return TRUE;
  ebb_view_transpose (logits_grad);
  if (!ebb_launch_matmul (self->device, logits_grad, x, NULL, &weight_grad->view, self->adds, error))
    return FALSE;
  self->adds = TRUE;
  return TRUE;
}

/* -- forward ------------------------------------------------------------------------------------------------------ */

enum
{
  EXTRA_REDUCTION,
  EXTRA_DTYPE_X,
  EXTRA_OUTPUT_X,      /* which output holds the gradient of x, or 0 */
  EXTRA_OUTPUT_WEIGHT, /* the same for weight */
  EXTRA_OUTPUT_BIAS,
  EXTRA_CHUNK_CLASSES /* by which the rows of a chunk are counted */
};

enum
{
  INPUT_X,
  INPUT_WEIGHT,
  INPUT_TARGETS,
  INPUT_BIAS
};

/* Sets gradients that no chunk has written to zero. */
static gboolean
chunks_finish (Chunks *self,
               EbbTensor *weight_grad,
               EbbTensor *bias_grad,
               GError **error)
{
  return (weight_grad == NULL || self->adds || ebb_launch_fill (weight_grad, 0.0, error))
         && (bias_grad == NULL || self->bias_adds || ebb_launch_fill (bias_grad, 0.0, error));
}

/* Losses and logsumexps of all rows, and gradients where they are wanted; @grad is f32 of stride 0. */
static gboolean
run_chunks (Chunks *self,
            EbbOpCall *call,
            EbbLossFunc func,
            EbbTensor *row_losses,
            EbbTensor *logsumexps,
            const EbbView *grad,
            const EbbView *x_grad,
            EbbTensor *weight_grad,
            EbbTensor *bias_grad,
            GError **error)
{
  EbbView losses_view, logsumexps_view;

  ebb_loss_flatten (&losses_view, row_losses);
  ebb_view_as_rows (&logsumexps_view, logsumexps);
  for (gint64 first = 0; first < self->n_rows; first += self->chunk_rows)
    {
      gint64 n = MIN (self->chunk_rows, self->n_rows - first);
      EbbView x, logits, targets, losses, logsumexp, chunk_grad;

      slice (&targets, &self->targets, first, n);
      slice (&losses, &losses_view, first, n);
      slice (&logsumexp, &logsumexps_view, first, n);
      call->params.xent.first_row = self->params.xent.first_row = first;
      if (!chunks_compute_logits (self, first, n, &x, &logits, error)
          || !func (call, &logits, &targets, &losses, &logsumexp, error))
        return FALSE;
      if (grad == NULL)
        continue;
      chunk_grad = *grad;
      chunk_grad.shape[0] = n;
      if (!ebb_loss_launch_grad (self->device, self->op_name, &self->params, &chunk_grad, &logits, &targets, &logsumexp,
                                 &logits, error)
          || !chunks_give_gradients (self, first, n, &x, &logits, x_grad, weight_grad, bias_grad, error))
        return FALSE;
    }
  return chunks_finish (self, weight_grad, bias_grad, error);
}

/* The gradient of the loss of each row: 1, or 1 / count. */
static EbbTensor *
compute_row_grad (EbbTensor *like,
                  EbbTensor *count,
                  GError **error)
{
  g_autoptr (EbbTensor) grad =
      ebb_tensor_new_uninitialized ((gint64[]){ 1 }, 1, EBB_DTYPE_F32, EBB_DEVICE_OF (like), error);

  if (grad == NULL || !ebb_launch_fill (grad, 1.0, error)
      || (count != NULL && !ebb_launch_binary (EBB_BINARY_DIV, grad, count, grad, error)))
    return NULL;
  return g_steal_pointer (&grad);
}

gboolean
ebb_linear_loss_run (EbbOpCall *call,
                     EbbLossFunc func,
                     GError **error)
{
  EbbReduction reduction = (EbbReduction) call->extra.i[EXTRA_REDUCTION];
  gint64 x_output = call->extra.i[EXTRA_OUTPUT_X], weight_output = call->extra.i[EXTRA_OUTPUT_WEIGHT];
  gint64 bias_output = call->extra.i[EXTRA_OUTPUT_BIAS];
  EbbTensor *loss = call->outputs[0], *logsumexp = call->outputs[1];
  g_autoptr (EbbTensor) rows = NULL;
  g_autoptr (EbbTensor) count = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  EbbView grad_view, x_grad;
  Chunks chunks;
  gboolean ok;

  rows = reduction == EBB_REDUCTION_NONE ? ebb_tensor_ref (loss)
                                         : ebb_loss_new_rows (call->inputs[INPUT_TARGETS], error);
  if (rows == NULL)
    return FALSE;
  if (reduction == EBB_REDUCTION_MEAN)
    {
      count = ebb_loss_count (call->inputs[INPUT_TARGETS], call->params.xent.ignore_index, error);
      if (count == NULL)
        return FALSE;
    }
  if (x_output || weight_output || bias_output)
    {
      grad = compute_row_grad (loss, count, error);
      if (grad == NULL)
        return FALSE;
      ebb_loss_flatten (&grad_view, grad);
      grad_view.strides[0] = 0;
    }
  if (x_output)
    ebb_view_as_rows (&x_grad, call->outputs[x_output]);
  if (!chunks_init (&chunks, call->op, &call->params, call->inputs[INPUT_X], call->inputs[INPUT_WEIGHT],
                    call->inputs[INPUT_BIAS], call->inputs[INPUT_TARGETS], call->extra.i[EXTRA_CHUNK_CLASSES], error))
    return FALSE;
  ok = run_chunks (&chunks, call, func, rows, logsumexp, grad ? &grad_view : NULL, x_output ? &x_grad : NULL,
                   weight_output ? call->outputs[weight_output] : NULL,
                   bias_output ? call->outputs[bias_output] : NULL, error);
  chunks_clear (&chunks);
  /* A whole gradient ahead of its time, the first that backward hands over: no activation to be moved elsewhere. */
  if (ok && weight_output)
    ebb_storage_set_purpose (call->outputs[weight_output]->storage, EBB_PURPOSE_GRADIENT);
  return ok && (reduction == EBB_REDUCTION_NONE || ebb_loss_reduce (rows, count, loss, error));
}

/* -- backward ----------------------------------------------------------------------------------------------------- */

/* Only where the host need not wait to see it. */
static gboolean
is_known_to_be_one (EbbTensor *factor)
{
  return EBB_DEVICE_OF (factor)->backend->host_memory && !factor->storage->no_data
         && factor->view.dtype == EBB_DTYPE_F32 && factor->view.data != NULL
         && *(const float *) factor->view.data == 1.0f;
}

/* The saved gradient times the loss's own, in its own memory if nobody else holds it. */
static gboolean
give_saved (EbbBackward *ctx,
            guint saved,
            guint index,
            GError **error)
{
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) factor = NULL;

  if (!(ctx->needs & (1u << index)))
    return TRUE;
  grad = ebb_backward_take_saved (ctx, saved);
  if (is_known_to_be_one (ctx->grad_outputs[0]))
    {
      ctx->grad_inputs[index] = g_steal_pointer (&grad);
      return TRUE;
    }
  factor = ebb_tensor_into_dtype (ebb_tensor_ref (ctx->grad_outputs[0]), EBB_DTYPE_F32, error);
  ctx->grad_inputs[index] = factor != NULL ? ebb_tensor_new_reusing (grad, error) : NULL;
  return ctx->grad_inputs[index] != NULL
         && ebb_launch_scalar_of (EBB_BINARY_MUL, grad, factor, ctx->grad_inputs[index], error);
}

enum
{
  SAVED_X,
  SAVED_WEIGHT,
  SAVED_TARGETS,
  SAVED_BIAS,
  SAVED_LOGSUMEXP
};

/* One gradient for each row: the logits are recomputed. */
static gboolean
backward_by_rows (EbbBackward *ctx,
                  GError **error)
{
  EbbTensor *x = ctx->saved[SAVED_X], *weight = ctx->saved[SAVED_WEIGHT];
  EbbView grad_view, logsumexp_view, x_grad;
  g_autoptr (EbbTensor) grad = NULL;
  Chunks chunks;
  gboolean ok = TRUE;

  grad = ebb_backward_take_grad (ctx, 0, EBB_DTYPE_F32, error);
  if (grad == NULL
      || !chunks_init (&chunks, ctx->op, ctx->params, x, weight, ctx->saved[SAVED_BIAS], ctx->saved[SAVED_TARGETS],
                       ctx->extra_i[EXTRA_CHUNK_CLASSES], error))
    return FALSE;
  if (ctx->needs & (1u << INPUT_X))
    {
      ctx->grad_inputs[INPUT_X] = ebb_tensor_new_uninitialized (
          EBB_FULL_SHAPE (x), ebb_product_grad_dtype ((EbbDType) ctx->extra_i[EXTRA_DTYPE_X]), chunks.device, error);
      ok = ctx->grad_inputs[INPUT_X] != NULL;
      if (ok)
        ebb_view_as_rows (&x_grad, ctx->grad_inputs[INPUT_X]);
    }
  if (ok && (ctx->needs & (1u << INPUT_WEIGHT)))
    {
      ctx->grad_inputs[INPUT_WEIGHT] =
          ebb_backward_grad_buffer (ctx, INPUT_WEIGHT, EBB_DTYPE_F32, EBB_FULL_SHAPE (weight), &chunks.adds, error);
      ok = ctx->grad_inputs[INPUT_WEIGHT] != NULL;
    }
  if (ok && (ctx->needs & (1u << INPUT_BIAS)))
    {
      ctx->grad_inputs[INPUT_BIAS] = ebb_backward_grad_buffer (ctx, INPUT_BIAS, EBB_DTYPE_F32, weight->view.shape, 1,
                                                               &chunks.bias_adds, error);
      ok = ctx->grad_inputs[INPUT_BIAS] != NULL;
    }
  ebb_loss_flatten (&grad_view, grad);
  ebb_view_as_rows (&logsumexp_view, ctx->saved[SAVED_LOGSUMEXP]);
  for (gint64 first = 0; ok && first < chunks.n_rows; first += chunks.chunk_rows)
    {
      gint64 n = MIN (chunks.chunk_rows, chunks.n_rows - first);
      EbbView x_rows, logits, targets, logsumexp, chunk_grad;

      slice (&targets, &chunks.targets, first, n);
      slice (&logsumexp, &logsumexp_view, first, n);
      slice (&chunk_grad, &grad_view, first, n);
      chunks.params.xent.first_row = first;
      ok = chunks_compute_logits (&chunks, first, n, &x_rows, &logits, error)
           && ebb_loss_launch_grad (chunks.device, chunks.op_name, &chunks.params, &chunk_grad, &logits, &targets,
                                    &logsumexp, &logits, error)
           && chunks_give_gradients (&chunks, first, n, &x_rows, &logits, ctx->needs & (1u << INPUT_X) ? &x_grad : NULL,
                                     ctx->grad_inputs[INPUT_WEIGHT], ctx->grad_inputs[INPUT_BIAS], error);
    }
  ok = ok && chunks_finish (&chunks, ctx->grad_inputs[INPUT_WEIGHT], ctx->grad_inputs[INPUT_BIAS], error);
  chunks_clear (&chunks);
  return ok;
}

gboolean
ebb_linear_loss_backward (EbbBackward *ctx,
                          GError **error)
{
  guint n_saved = 0;

  if (ctx->grad_outputs[0] == NULL)
    return TRUE;
  if (ctx->extra_i[EXTRA_REDUCTION] == EBB_REDUCTION_NONE)
    return backward_by_rows (ctx, error);
  if (ctx->extra_i[EXTRA_OUTPUT_X] && !give_saved (ctx, n_saved++, INPUT_X, error))
    return FALSE;
  if (ctx->extra_i[EXTRA_OUTPUT_WEIGHT] && !give_saved (ctx, n_saved++, INPUT_WEIGHT, error))
    return FALSE;
  return !ctx->extra_i[EXTRA_OUTPUT_BIAS] || give_saved (ctx, n_saved, INPUT_BIAS, error);
}

/* -- description --------------------------------------------------------------------------------------------------- */

static gboolean
check_product (EbbOpCall *call,
               GError **error)
{
  const EbbView *x = &call->inputs[INPUT_X]->view, *weight = &call->inputs[INPUT_WEIGHT]->view;
  EbbTensor *bias = call->inputs[INPUT_BIAS];

  if (weight->n_dims != 2 || x->n_dims == 0 || x->shape[x->n_dims - 1] != weight->shape[1])
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "x is %s and weight is %s; must be [.., C] and [V, C]",
                        ebb_show_shape (call->inputs[0]), ebb_show_shape (call->inputs[1]));
  if (bias != NULL && (bias->view.n_dims != 1 || bias->view.shape[0] != weight->shape[0]))
    return ebb_op_fail (call, error, EBB_ERROR_SHAPE, "bias is %s and weight is %s; must be [V] and [V, C]",
                        ebb_show_shape (bias), ebb_show_shape (call->inputs[INPUT_WEIGHT]));
  if (bias != NULL && bias->view.dtype != EBB_DTYPE_F32 && bias->view.dtype != EBB_DTYPE_BF16)
    return ebb_op_fail (call, error, EBB_ERROR_DTYPE, "bias is %s; must be f32 or bf16",
                        ebb_dtype_get_name (bias->view.dtype));
  return TRUE;
}

/* Gradients are outputs like any other, so that saved-tensor hooks see them. */
static void
add_gradients (EbbOpCall *call)
{
  EbbTensor *x = call->edges[INPUT_X], *weight = call->edges[INPUT_WEIGHT], *bias = call->edges[INPUT_BIAS];

  if (ebb_tensor_needs_grad (x))
    {
      call->extra.i[EXTRA_OUTPUT_X] = call->n_outputs;
      ebb_op_add_output (call, ebb_product_grad_dtype (x->view.dtype), EBB_FULL_SHAPE (x));
      ebb_op_save_output (call, call->n_outputs - 1);
    }
  if (ebb_tensor_needs_grad (weight))
    {
      call->extra.i[EXTRA_OUTPUT_WEIGHT] = call->n_outputs;
      ebb_op_add_output (call, EBB_DTYPE_F32, EBB_FULL_SHAPE (weight));
      ebb_op_save_output (call, call->n_outputs - 1);
    }
  if (bias != NULL && ebb_tensor_needs_grad (bias))
    {
      call->extra.i[EXTRA_OUTPUT_BIAS] = call->n_outputs;
      ebb_op_add_output (call, EBB_DTYPE_F32, EBB_FULL_SHAPE (bias));
      ebb_op_save_output (call, call->n_outputs - 1);
    }
}

gboolean
ebb_linear_loss_describe (EbbOpCall *call,
                          gint64 n_classes,
                          gint64 n_chunk_classes,
                          gint64 ignore_index,
                          double label_smoothing,
                          EbbReduction reduction,
                          GError **error)
{
  EbbTensor *x = call->inputs[INPUT_X];
  EbbDType dtype;

  if (!check_product (call, error)
      || !ebb_loss_check (call, INPUT_TARGETS, x, n_classes, ignore_index, label_smoothing, reduction, error)
      || !ebb_op_cast_for_product (call, 2, &dtype, error) || !ebb_op_contiguous (call, INPUT_X, error)
      || !ebb_op_contiguous (call, INPUT_WEIGHT, error))
    return FALSE;
  call->extra.i[EXTRA_REDUCTION] = reduction;
  call->extra.i[EXTRA_DTYPE_X] = x->view.dtype;
  call->extra.i[EXTRA_CHUNK_CLASSES] = n_chunk_classes;
  ebb_loss_add_output (call, reduction);
  ebb_loss_add_logsumexp (call);
  call->non_differentiable = ~1u;
  if (call->needs_grad && reduction != EBB_REDUCTION_NONE)
    add_gradients (call);
  else if (call->needs_grad)
    {
      for (guint i = 0; i <= INPUT_BIAS; i++)
        if (call->inputs[i] != NULL)
          ebb_op_save_input (call, i);
        else
          ebb_op_save_nothing (call);
      ebb_op_save_output (call, 1);
    }
  return TRUE;
}

static gboolean
fused_linear_cross_entropy_run (EbbOpCall *call,
                                GError **error)
{
  return ebb_linear_loss_run (call, ebb_loss_compute, error);
}

static const EbbOp op_fused_linear_cross_entropy = { "fused_linear_cross_entropy", EBB_OP_LOSS,
                                                     EBB_KERNEL_CROSS_ENTROPY, fused_linear_cross_entropy_run,
                                                     ebb_linear_loss_backward };

/**
 * ebb_fused_linear_cross_entropy:
 * @x: (nullable): a tensor [.., C], f32 or bf16
 * @weight: (nullable): a matrix [V, C]: the last layer of a language model
 * @bias: (nullable): a vector [V], f32 or bf16; %NULL for none
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32: the right class of each, in [0, V)
 * @ignore_index: a target that does not count
 * @label_smoothing: the part in [0, 1] of the target distribution that is spread evenly over all classes
 * @reduction: how the losses become one
 * @error: return location for an error
 *
 * Computes ebb_cross_entropy_full() of ebb_linear() of @x, @weight and @bias without ever holding all logits: at most
 * 64 MiB of them (or what the device's backend says), or 16 rows if these are more. With reduction to a mean or a sum
 * the gradients of @x, @weight and
 * @bias are computed along with the loss if they are wanted, and backward keeps them alone; without reduction it keeps
 * the operands and computes the logits again. Under autocast @x and @weight are cast to its dtype and logits are of it.
 *
 * Returns: (transfer full) (nullable): f32: one number [], or [..] without reduction; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, %EBB_ERROR_INDEX if a target is out of range, %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_fused_linear_cross_entropy (EbbTensor *x,
                                EbbTensor *weight,
                                EbbTensor *bias,
                                EbbTensor *targets,
                                gint64 ignore_index,
                                double label_smoothing,
                                EbbReduction reduction,
                                GError **error)
{
  return ebb_fused_linear_cross_entropy_full (x, weight, bias, targets, ignore_index, label_smoothing, 0.0, reduction,
                                              error);
}

/**
 * ebb_fused_linear_cross_entropy_full:
 * @x: (nullable): a tensor [.., C], f32 or bf16
 * @weight: (nullable): a matrix [V, C]: the last layer of a language model
 * @bias: (nullable): a vector [V], f32 or bf16; %NULL for none
 * @targets: (nullable): a tensor [..] or [.., 1] of i64 or i32: the right class of each, in [0, V)
 * @ignore_index: a target that does not count
 * @label_smoothing: the part in [0, 1] of the target distribution that is spread evenly over all classes
 * @softcap: the bound of ebb_soft_cap(), which is applied to the logits; 0 for none
 * @reduction: how the losses become one
 * @error: return location for an error
 *
 * The same as ebb_fused_linear_cross_entropy(), with all its choices.
 *
 * Returns: (transfer full) (nullable): f32: one number [], or [..] without reduction; %NULL with %EBB_ERROR_SHAPE,
 *   %EBB_ERROR_DTYPE, %EBB_ERROR_INDEX if a target is out of range, %EBB_ERROR_INVALID_ARGUMENT
 */
EbbTensor *
ebb_fused_linear_cross_entropy_full (EbbTensor *x,
                                     EbbTensor *weight,
                                     EbbTensor *bias,
                                     EbbTensor *targets,
                                     gint64 ignore_index,
                                     double label_smoothing,
                                     double softcap,
                                     EbbReduction reduction,
                                     GError **error)
{
  EbbOpCall call;
  gint64 n_classes;

  if (!ebb_op_begin (&call, &op_fused_linear_cross_entropy, error, 3, x, weight, targets)
      || !ebb_op_add_optional (&call, bias, error) || !ebb_loss_set_softcap (&call, softcap, error))
    return NULL;
  n_classes = weight->view.n_dims > 0 ? weight->view.shape[0] : 0;
  if (!ebb_linear_loss_describe (&call, n_classes, n_classes, ignore_index, label_smoothing, reduction, error))
    return NULL;
  return ebb_op_finish1 (&call, error);
}
