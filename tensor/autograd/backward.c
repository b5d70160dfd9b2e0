/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/autograd/autograd-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/thread-private.h"

#include <string.h>

/* Helpers of backward functions, and functions that a pass calls when a node is done or when it ends itself. */

EbbTensor *
ebb_tensor_new_zeros_like (EbbTensor *tensor,
                           GError **error)
{
  EbbLaunch launch;
  EbbTensor *zeros = ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                                   tensor->storage->device, error);

  if (zeros == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  ebb_launch_output (&launch, zeros);
  if (!ebb_launch (tensor->storage->device, &launch, error))
    g_clear_pointer (&zeros, ebb_tensor_unref);
  return zeros;
}

EbbTensor *
ebb_backward_grad_buffer (EbbBackward *ctx,
                          guint index,
                          EbbDType dtype,
                          const gint64 *shape,
                          guint n_dims,
                          gboolean *accumulate,
                          GError **error)
{
  EbbTensor *leaf = ctx->node->edges[index].leaf;
  gboolean captures = ebb_backward_pass_captures (ctx->node);
  EbbTensor *grad;

  /* Before the gradient is looked at: an owner may have one there that must stay as it is. */
  if (leaf != NULL && !captures && !ebb_parameter_prepare (leaf, error))
    return NULL;
  grad = leaf != NULL && !captures ? leaf->grad : NULL;
  *accumulate = grad != NULL && grad->view.dtype == dtype
                && ebb_view_is_contiguous (&grad->view) && ebb_view_has_shape (&grad->view, shape, n_dims);
  if (*accumulate)
    return ebb_tensor_ref (grad);
  return ebb_tensor_new_uninitialized (shape, n_dims, dtype, ctx->device, error);
}

EbbTensor *
ebb_backward_take_grad (EbbBackward *ctx,
                        guint index,
                        EbbDType dtype,
                        GError **error)
{
  EbbTensor *grad = ctx->grad_outputs[index];
  EbbTensor *converted;

  g_return_val_if_fail (grad != NULL, NULL);

  ctx->grad_outputs[index] = NULL;
  if (grad->view.dtype == dtype && ebb_view_is_contiguous (&grad->view))
    return grad;
  converted = ebb_tensor_convert (grad, dtype, error);
  ebb_tensor_unref (grad);
  return converted;
}

EbbTensor *
ebb_backward_get_saved (EbbBackward *ctx,
                        guint index,
                        GError **error)
{
  EbbSavedTensor *saved = &ctx->node->saved[index];

  if (ctx->saved[index] == NULL && saved->rematerialized != NULL)
    ctx->saved[index] = ebb_saved_tensor_unpack (saved, ctx->op, error);
  return ctx->saved[index];
}

EbbTensor *
ebb_tensor_new_reusing (EbbTensor *tensor,
                        GError **error)
{
  if (ebb_tensor_is_unshared (tensor) && ebb_view_is_contiguous (&tensor->view))
    return ebb_tensor_ref (tensor);
  return ebb_tensor_new_uninitialized (tensor->view.shape, (guint) tensor->view.n_dims, tensor->view.dtype,
                                       tensor->storage->device, error);
}

EbbTensor *
ebb_sum_to_shape (EbbTensor *grad,
                  const gint64 *shape,
                  guint n_dims,
                  GError **error)
{
  EbbLaunch launch;
  gint64 kept[EBB_MAX_DIMS];
  guint lead = (guint) grad->view.n_dims - n_dims;
  guint32 dims = 0;
  EbbTensor *sum, *result;

  for (guint i = 0; i < (guint) grad->view.n_dims; i++)
    {
      gboolean reduced = i < lead || (shape[i - lead] == 1 && grad->view.shape[i] != 1);

      kept[i] = reduced ? 1 : grad->view.shape[i];
      dims |= reduced ? 1u << i : 0;
    }
  if (dims == 0)
    return ebb_tensor_ref (grad);
  sum = ebb_tensor_new_uninitialized (kept, (guint) grad->view.n_dims, grad->view.dtype, grad->storage->device, error);
  if (sum == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_REDUCE);
  launch.params.reduce.op = EBB_REDUCE_SUM;
  launch.params.reduce.dims = dims;
  ebb_launch_input (&launch, grad);
  ebb_launch_output (&launch, sum);
  if (!ebb_launch (grad->storage->device, &launch, error))
    {
      ebb_tensor_unref (sum);
      return NULL;
    }
  result = ebb_tensor_new_view (sum->storage, 0, shape, NULL, n_dims, sum->view.dtype);
  ebb_tensor_unref (sum);
  return result;
}

EbbTensor *
ebb_backward_seed (EbbTensor *output,
                   EbbTensor *given,
                   GError **error)
{
  EbbLaunch launch;
  EbbTensor *seed;

  if (given != NULL && !ebb_shapes_equal (&output->view, &given->view))
    {
      g_autofree char *a = ebb_tensor_shape_to_string (given);
      g_autofree char *b = ebb_tensor_shape_to_string (output);

      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
                   "backward: the gradient has shape %s, but its output has shape %s", a, b);
      return NULL;
    }
  if (given != NULL)
    return ebb_tensor_alias (given);
  if (output->n_elements != 1)
    {
      g_autofree char *text = ebb_tensor_shape_to_string (output);

      g_set_error (error, EBB_ERROR, EBB_ERROR_SHAPE,
                   "backward: the output has shape %s; it must be a scalar, or its gradient be given", text);
      return NULL;
    }
  seed = ebb_tensor_new_uninitialized (output->view.shape, (guint) output->view.n_dims, output->view.dtype,
                                       output->storage->device, error);
  if (seed == NULL)
    return NULL;
  ebb_launch_init (&launch, EBB_KERNEL_FILL);
  launch.params.fill.value = 1;
  ebb_thread.computes_dry = output->storage->device->backend->host_memory; /* backward looks at it */
  ebb_launch_output (&launch, seed);
  if (!ebb_launch (output->storage->device, &launch, error))
    g_clear_pointer (&seed, ebb_tensor_unref);
  ebb_thread.computes_dry = FALSE;
  return seed;
}

/* -- when a node or a pass has ended ------------------------------------------------------------------------------- */

typedef struct _AtEnd AtEnd;

struct _AtEnd
{
  AtEnd *next;
  EbbBackwardEndFunc func;
  gpointer data;
};

static __thread AtEnd *at_end __attribute__ ((tls_model ("initial-exec")));
static __thread AtEnd *after_node __attribute__ ((tls_model ("initial-exec")));

static void
add (AtEnd **list,
     EbbBackwardEndFunc func,
     gpointer data)
{
  AtEnd *entry = g_new (AtEnd, 1);

  *entry = (AtEnd){ *list, func, data };
  *list = entry;
}

/* Calls all of them and reports the first failure. */
static gboolean
run (AtEnd **list,
     GError **error)
{
  gboolean ok = TRUE;

  while (*list != NULL)
    {
      AtEnd *entry = *list;

      *list = entry->next;
      if (!entry->func (entry->data, ok ? error : NULL))
        ok = FALSE;
      g_free (entry);
    }
  return ok;
}

void
ebb_backward_call_at_end (EbbBackwardEndFunc func,
                          gpointer data)
{
  add (&at_end, func, data);
}

void
ebb_backward_call_after_node (EbbBackwardEndFunc func,
                              gpointer data)
{
  add (&after_node, func, data);
}

gboolean
ebb_backward_run_after_node (GError **error)
{
  return run (&after_node, error);
}

gpointer
ebb_backward_begin_pass (void)
{
  return g_steal_pointer (&after_node);
}

gboolean
ebb_backward_end_pass (gpointer outer,
                       GError **error)
{
  /* A failed pass may have dropped functions that a node was still to call. */
  gboolean ok = run (&after_node, error);

  after_node = outer;
  return ok;
}

gboolean
ebb_backward_run_at_end (GError **error)
{
  return run (&at_end, error);
}
