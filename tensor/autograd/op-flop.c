/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/op-private.h"

/* The operations of an op, by convention: two for each multiplication of a product, one for each element of another
 * op's result. They depend on shapes alone. */

static guint64
last_size (EbbTensor *tensor)
{
  return tensor->view.n_dims > 0 ? (guint64) tensor->view.shape[tensor->view.n_dims - 1] : 1;
}

/* Queries by keys and weights by values, where they see each other. The second output has two numbers for each row of
 * scores, [B, H, T, 2]; keys are [B, G, S, D], or, with queries and values beside them, [B, T, 3 H D]. */
static guint64
attention_flop (const EbbOpCall *call)
{
  const gint64 *rows = call->outputs[1]->view.shape;
  gboolean is_packed = call->inputs[0]->view.n_dims == 3;
  const EbbView *keys = is_packed ? NULL : &call->inputs[1]->view;
  gint64 n_keys = keys ? keys->shape[2] : rows[2];
  guint64 size = keys ? (guint64) keys->shape[3] : last_size (call->outputs[0]) / (guint64) MAX (rows[1], 1);

  return ebb_attention_count_flop (&call->params, rows[2], n_keys, 4 * (guint64) (rows[0] * rows[1]) * size);
}

/* A loss with the product before it, of x [.., C] and weight [V, C]: the logits, and each gradient that is an output
 * after the loss and the logsumexp. */
static guint64
linear_loss_flop (const EbbOpCall *call)
{
  EbbTensor *bias = call->edges[3];
  guint n_products = call->n_outputs - 1;

  if (call->n_outputs > 2 && bias != NULL && ebb_tensor_needs_grad (bias))
    n_products--; /* its gradient is a sum */
  return 2 * (guint64) call->inputs[0]->n_elements * (guint64) call->inputs[1]->view.shape[0] * n_products;
}

guint64
ebb_op_call_get_flop (const EbbOpCall *call)
{
  guint64 n_elements = 0;

  if (call->op->kind == EBB_OP_VIEW || call->op->kind == EBB_OP_COLLECTIVE)
    return 0;
  if (call->op->kind == EBB_OP_PRODUCT)
    return 2 * (guint64) call->outputs[0]->n_elements * last_size (call->inputs[0]);
  if (call->op->kind == EBB_OP_ATTENTION)
    return attention_flop (call);
  if (call->op->kind == EBB_OP_LOSS && call->n_inputs == 4)
    return linear_loss_flop (call);
  for (guint i = 0; i < call->n_outputs; i++)
    n_elements += (guint64) call->outputs[i]->n_elements;
  return n_elements;
}
