/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Launches: kernels on views of tensors, now, as ops and whatever prepares their operands ask for them. */
#include "tensor/autograd/op-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"

static gboolean
has_elements (const EbbView *view)
{
  for (int i = 0; i < view->n_dims; i++)
    if (view->shape[i] == 0)
      return FALSE;
  return TRUE;
}

/* Refuses operands without memory: placeholders that were carried out of a stopped recompute. */
static gboolean
check_data (const EbbView *view,
            const EbbLaunch *launch,
            GError **error)
{
  return G_LIKELY (view == NULL || view->data != NULL) || !has_elements (view)
         || ebb_fail (error, EBB_ERROR_STOP,
                      "%s: the operand has no data: it was made after a recompute had all it needed",
                      ebb_kernel_get_name (launch->kernel));
}

static void
touch_operands (const EbbLaunch *launch)
{
  for (guint i = 0; i < launch->n_inputs; i++)
    if (launch->inputs[i] != NULL)
      ebb_thread_touch (launch->inputs[i]->data);
  for (guint i = 0; i < launch->n_outputs; i++)
    if (launch->outputs[i] != NULL)
      ebb_thread_touch (launch->outputs[i]->data);
  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      if (launch->items[i].data[k] != NULL)
        ebb_thread_touch (launch->items[i].data[k]);
}

gboolean
ebb_launch (EbbDevice *device,
            EbbLaunch *launch,
            GError **error)
{
  /* These two check indices even where there is nothing to add to, so that any index is out of range. */
  gboolean any = launch->n_items > 0 || launch->kernel == EBB_KERNEL_INDEX_ADD
                 || launch->kernel == EBB_KERNEL_SCATTER_ADD;

  if (G_UNLIKELY (ebb_modes.stopped))
    return TRUE;
  for (guint i = 0; i < launch->n_inputs; i++)
    if (!check_data (launch->inputs[i], launch, error))
      return FALSE;
  for (guint i = 0; i < launch->n_outputs; i++)
    {
      if (!check_data (launch->outputs[i], launch, error))
        return FALSE;
      any = any || (launch->outputs[i] != NULL && has_elements (launch->outputs[i]));
    }
  if (!any)
    return TRUE;
  if (G_UNLIKELY (ebb_modes.observers != NULL))
    touch_operands (launch);
  if (G_UNLIKELY (device->kernels[launch->kernel] == NULL))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "device %s has no kernel %s", device->name,
                     ebb_kernel_get_name (launch->kernel));
  ebb_thread.n_launches++;
  if (G_UNLIKELY (ebb_thread.observer != NULL))
    return ebb_thread.observer->launch (ebb_thread.observer, device, launch, error);
  return ebb_device_launch (device, launch, error);
}

void
ebb_launch_init (EbbLaunch *launch,
                 EbbKernel kernel)
{
  launch->kernel = kernel;
  launch->n_inputs = launch->n_outputs = launch->n_items = 0;
  launch->changes = FALSE;
  launch->op = NULL;
  ebb_kernel_params_clear (&launch->params);
}

void
ebb_launch_input (EbbLaunch *launch,
                  EbbTensor *tensor)
{
  launch->inputs[launch->n_inputs++] = tensor ? &tensor->view : NULL;
}

/* It has values up to @tensor's last byte. */
static void
note_values (EbbTensor *tensor)
{
  const EbbView *view = &tensor->view;
  EbbStorage *storage = tensor->storage;
  gint64 last = 0;
  gsize end;

  if (tensor->n_elements == 0)
    return;
  for (int i = 0; i < view->n_dims; i++)
    last += (view->shape[i] - 1) * view->strides[i];
  end = (gsize) view->data - (gsize) storage->data + (gsize) (last + 1) * ebb_dtype_get_size (view->dtype);
  storage->n_blank = MIN (storage->n_blank, storage->size - end);
}

void
ebb_launch_output (EbbLaunch *launch,
                   EbbTensor *tensor)
{
  /* A node that saved this storage before must notice that its values change. */
  if (tensor != NULL && !ebb_modes.stopped)
    {
      ebb_storage_change (tensor->storage);
      if (G_UNLIKELY (tensor->storage->n_blank > 0))
        note_values (tensor);
    }
  if (tensor != NULL)
    ebb_tensor_note_dry_output (tensor);
  launch->outputs[launch->n_outputs++] = tensor ? &tensor->view : NULL;
}
