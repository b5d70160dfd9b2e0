/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/thread-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

#include <string.h>

/* Copies in another dtype, layout or place. The node that takes the gradient casts it to the operand's dtype. */

static gboolean
copy_backward (EbbBackward *ctx, GError **error)
{
  ctx->grad_inputs[0] = ebb_backward_steal_grad (ctx, 0);
  return TRUE;
}

static const EbbOp cast_op = { "cast", EBB_OP_COPY, EBB_KERNEL_COPY, NULL, copy_backward };
static const EbbOp copy_op = { "copy", EBB_OP_COPY, EBB_KERNEL_COPY, NULL, copy_backward };
static const EbbOp contiguous_op = { "contiguous", EBB_OP_COPY, EBB_KERNEL_COPY, NULL, copy_backward };

static EbbTensor *
copy (const EbbOp *op, EbbTensor *x, EbbDType dtype, GError **error)
{
  EbbOpCall call;

  if (!ebb_op_begin (&call, op, error, 1, x))
    return NULL;
  ebb_op_add_output (&call, dtype, EBB_FULL_SHAPE (x));
  return ebb_op_finish1 (&call, error);
}

/* @x itself, or nothing if an error is set already. */
static EbbTensor *
pass (EbbTensor *x, GError **error)
{
  return error != NULL && *error != NULL ? NULL : ebb_tensor_ref (x);
}

/**
 * ebb_cast:
 * @x: a tensor of any dtype and shape
 * @dtype: the dtype of the result
 * @error: return location for an error
 *
 * Converts elements: floating-point numbers are rounded to the nearest, those that become integers toward zero; what is
 * not 0 becomes true. If @x is of @dtype already it is returned itself.
 *
 * Fails with %EBB_ERROR_DTYPE when there is no such dtype.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape of @x, or %NULL with @error set
 */
EbbTensor *
ebb_cast (EbbTensor *x, EbbDType dtype, GError **error)
{
  if (x != NULL && x->view.dtype == dtype)
    return pass (x, error);
  if ((guint) dtype >= EBB_N_DTYPES)
    {
      if (error == NULL || *error == NULL)
        ebb_error_set (error, EBB_ERROR_DTYPE, "cast: there is no dtype of number %d", (int) dtype);
      return NULL;
    }
  return copy (&cast_op, x, dtype, error);
}

/**
 * ebb_copy:
 * @x: a tensor of any dtype and shape
 * @error: return location for an error
 *
 * Copies @x to memory of its own, contiguous.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_copy (EbbTensor *x, GError **error)
{
  return x != NULL ? copy (&copy_op, x, x->view.dtype, error) : NULL;
}

/**
 * ebb_contiguous:
 * @x: a tensor of any dtype and shape
 * @error: return location for an error
 *
 * Makes sure that the elements lie in row-major order without gaps: @x itself if they do, else a copy.
 *
 * Returns: (transfer full) (nullable): a contiguous tensor of the shape and dtype of @x, or %NULL with @error set
 */
EbbTensor *
ebb_contiguous (EbbTensor *x, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, x);
  return ebb_view_is_contiguous (&x->view) ? pass (x, error) : copy (&contiguous_op, x, x->view.dtype, error);
}

/* -- devices ------------------------------------------------------------------------------------------------------ */

/* Between two places of which the host can read and write at least one. */
static gboolean
transfer (EbbTensor *from, EbbTensor *to, GError **error)
{
  const EbbBackend *source = EBB_DEVICE_OF (from)->backend, *target = EBB_DEVICE_OF (to)->backend;
  gsize size = ebb_tensor_get_n_bytes (from);

  if (size == 0)
    return TRUE;
  if (source->host_memory && target->host_memory)
    {
      memcpy (to->view.data, from->view.data, size);
      return TRUE;
    }
  if (source->host_memory)
    return target->copy (EBB_DEVICE_OF (to)->index, to->view.data, from->view.data, size, FALSE, error);
  return source->copy (EBB_DEVICE_OF (from)->index, to->view.data, from->view.data, size, TRUE, error);
}

/* Integers that came from the host go with a dry run's copies: a model may count its targets. */
static gboolean
transfer_dry (EbbTensor *from, EbbTensor *to, GError **error)
{
  const gsize size = ebb_tensor_get_n_bytes (from);
  const gboolean from_host = EBB_DEVICE_OF (from)->backend->host_memory;
  const gboolean to_host = EBB_DEVICE_OF (to)->backend->host_memory;
  const void *known = size == from->storage->size ? ebb_storage_get_known (from->storage) : NULL;

  to->storage->no_data = TRUE;
  if (size == 0 || ebb_dtype_is_floating_point (from->view.dtype) || from_host == to_host)
    return TRUE;
  if (from_host && !from->storage->no_data && !ebb_storage_map (from->storage, error))
    return FALSE;
  if (from_host && !from->storage->no_data)
    ebb_storage_set_known (to->storage, from->view.data);
  if (from_host || (known == NULL && from->storage->no_data))
    return TRUE;
  if (!ebb_storage_map (to->storage, error))
    return FALSE;
  to->storage->no_data = FALSE;
  if (known == NULL)
    return EBB_DEVICE_OF (from)->backend->copy (EBB_DEVICE_OF (from)->index, to->view.data, from->view.data, size, TRUE,
                                                error);
  memcpy (to->view.data, known, size);
  return TRUE;
}

static gboolean
to_device_run (EbbOpCall *call, GError **error)
{
  EbbTensor *from = call->inputs[0], *to = call->outputs[0];
  g_autoptr (EbbTensor) staged = NULL;

  if (ebb_is_dry () && !ebb_thread.computes_dry)
    return transfer_dry (from, to, error);
  if (EBB_DEVICE_OF (from)->backend->host_memory || EBB_DEVICE_OF (to)->backend->host_memory)
    return transfer (from, to, error);
  staged = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (from), from->view.dtype, ebb_device_get_cpu (), error);
  return staged != NULL && transfer (from, staged, error) && transfer (staged, to, error);
}

static gboolean
to_device_backward (EbbBackward *ctx, GError **error)
{
  g_autoptr (EbbTensor) dy = ebb_backward_steal_grad (ctx, 0);

  if (dy == NULL)
    return TRUE;
  ctx->grad_inputs[0] = ebb_to_device (dy, GSIZE_TO_POINTER ((gsize) ctx->extra_i[0]), error);
  return ctx->grad_inputs[0] != NULL;
}

static const EbbOp to_device_op = { "to_device", EBB_OP_COPY, EBB_N_KERNELS, to_device_run, to_device_backward };

/**
 * ebb_to_device:
 * @x: a tensor of any dtype and shape
 * @device: (nullable): where, or %NULL for the CPU
 * @error: return location for an error
 *
 * Copies @x to another device, contiguous. If it is there already it is returned itself.
 *
 * Fails with %EBB_ERROR_NO_MEMORY when the device has not enough of it, and with %EBB_ERROR_DEVICE when the copy fails.
 *
 * Returns: (transfer full) (nullable): a tensor of the shape and dtype of @x on @device, or %NULL with @error set
 */
EbbTensor *
ebb_to_device (EbbTensor *x, EbbDevice *device, GError **error)
{
  EbbOpCall call;

  if (device == NULL)
    device = ebb_device_get_cpu ();
  if (x == NULL || EBB_DEVICE_OF (x) == device)
    return x != NULL ? pass (x, error) : NULL;
  if (!ebb_op_begin (&call, &to_device_op, error, 1, x) || !ebb_op_contiguous (&call, 0, error))
    return NULL;
  /* Outputs belong to the device of the inputs, unless they are there already. */
  call.outputs[0] = ebb_tensor_new_uninitialized (EBB_FULL_SHAPE (x), x->view.dtype, device, error);
  if (call.outputs[0] == NULL)
    {
      ebb_op_clear (&call);
      return NULL;
    }
  call.n_outputs = 1;
  call.extra.i[0] = (gint64) GPOINTER_TO_SIZE (EBB_DEVICE_OF (x));
  return ebb_op_finish1 (&call, error);
}
