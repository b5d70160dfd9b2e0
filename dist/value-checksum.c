/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/value-checksum-private.h"

#include "nn/files/state-tree-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"

/* Read in place where the host can: ebb_tensor_get_bytes () would pin the storage. */
static gboolean
sum_contiguous (EbbTensor *tensor,
                guint64 *checksum,
                GError **error)
{
  const EbbDevice *device = tensor->storage->device;
  const gsize size = ebb_tensor_get_n_bytes (tensor);
  g_autofree void *values = NULL;

  *checksum = 0;
  if (size == 0)
    return TRUE;
  if (!device->backend->host_memory)
    {
      values = g_malloc (size);
      if (!device->backend->copy (device->index, values, tensor->view.data, size, TRUE, error))
        return FALSE;
    }
  *checksum = ebb_state_checksum (values != NULL ? values : tensor->view.data, size);
  return TRUE;
}

gboolean
ebb_value_checksum (EbbTensor *tensor,
                    guint64 *checksum,
                    GError **error)
{
  g_autoptr (EbbTensor) alias = NULL;
  g_autoptr (EbbTensor) dense = NULL;

  if (ebb_view_is_contiguous (&tensor->view))
    return sum_contiguous (tensor, checksum, error);
  alias = ebb_tensor_alias (tensor);
  ebb_push_grad_enabled (FALSE);
  dense = ebb_contiguous (alias, error);
  ebb_pop_grad_enabled ();
  return dense != NULL && sum_contiguous (dense, checksum, error);
}
