/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A slot describes a tensor that was made inside a frame, and holds its value after the recompute. */
#include "wrap/checkpoint/slot-private.h"

#include "tensor/backend/backend-private.h"
#include "offload/transfer/transfer-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

typedef struct
{
  guint64 hash, word;
  guint n_bytes; /* in word */
} Checksum;

static void
add_bytes (Checksum *self,
           const char *data,
           gsize size)
{
  for (; size >= 8; data += 8, size -= 8)
    {
      guint64 word;

      memcpy (&word, data, 8);
      self->hash = ebb_hash_add (self->hash, word);
    }
  memcpy (&self->word, data, size);
  self->n_bytes = (guint) size;
}

/* Element sizes divide 8. */
static void
add_elements (Checksum *self,
              const EbbView *view,
              int dim,
              const char *data,
              gsize element)
{
  gint64 step = dim < view->n_dims ? view->strides[dim] * (gint64) element : 0;

  if (dim == view->n_dims)
    {
      memcpy ((char *) &self->word + self->n_bytes, data, element);
      self->n_bytes += (guint) element;
      if (self->n_bytes < 8)
        return;
      self->hash = ebb_hash_add (self->hash, self->word);
      self->word = self->n_bytes = 0;
      return;
    }
  for (gint64 i = 0; i < view->shape[dim]; i++)
    add_elements (self, view, dim + 1, data + i * step, element);
}

/* The memory between the first and the last element; NULL if the device fails, which its next work will report. */
static char *
copy_to_host (EbbTensor *tensor)
{
  gint64 last = 0;
  gsize size;
  char *copy;

  for (int i = 0; i < tensor->view.n_dims; i++)
    last += (tensor->view.shape[i] - 1) * tensor->view.strides[i];
  size = tensor->n_elements > 0 ? (gsize) (last + 1) * ebb_dtype_get_size (tensor->view.dtype) : 0;
  copy = g_try_malloc (MAX (size, 1));
  if (copy != NULL && !ebb_transfer_to_host (tensor->storage->device, copy, tensor->view.data, size, NULL))
    g_clear_pointer (&copy, g_free);
  return copy;
}

/* Reads the memory in place: a contiguous copy may not fit, and bytes of the tensor would pin its storage. After an
 * early stop nothing compares the checksum. */
guint64
ebb_slot_checksum (EbbTensor *tensor)
{
  Checksum self = { .hash = EBB_HASH_BEGIN };
  g_autofree char *copy = NULL;
  const char *data = tensor->view.data;

  if (ebb_is_stopped () || data == NULL || ebb_is_dry ())
    return 0;
  if (!tensor->storage->device->backend->host_memory)
    {
      data = copy = copy_to_host (tensor);
      if (data == NULL)
        return 0;
    }
  if (ebb_view_is_contiguous (&tensor->view))
    add_bytes (&self, data, ebb_tensor_get_n_bytes (tensor));
  else
    add_elements (&self, &tensor->view, 0, data, ebb_dtype_get_size (tensor->view.dtype));
  if (self.n_bytes > 0)
    self.hash = ebb_hash_add (self.hash, self.word);
  return self.hash;
}

gboolean
ebb_slot_checksum_differs (guint64 checksum,
                           EbbTensor *tensor)
{
  guint64 now = checksum != 0 ? ebb_slot_checksum (tensor) : 0;

  return now != 0 && now != checksum;
}

void
ebb_slot_describe (EbbFrameSlot *slot,
                   EbbTensor *tensor,
                   EbbDeterminismCheck check)
{
  *slot = (EbbFrameSlot){ .view = tensor->view,
                          .device = tensor->storage->device,
                          .op = ebb_modes.saving,
                          .birth = tensor->storage->birth,
                          .n_bytes = tensor->storage->size,
                          .offset = tensor->offset,
                          .n_wanted = 1,
                          .version = tensor->storage->version };
  slot->view.data = NULL;
  if (check == EBB_DETERMINISM_CHECK_VALUES)
    slot->checksum = ebb_slot_checksum (tensor);
}

static char *
describe (const EbbView *view,
          EbbDevice *device,
          const EbbOp *op)
{
  g_autofree char *shape = ebb_shape_to_string (view->shape, (guint) view->n_dims);
  g_autofree char *strides = ebb_shape_to_string (view->strides, (guint) view->n_dims);

  return g_strdup_printf ("%s of shape %s, strides %s on %s, saved by %s", ebb_dtype_get_name (view->dtype), shape,
                          strides, ebb_device_get_name (device), op->name);
}

/* Always compares shape, dtype and device: backward would read beyond the end of a smaller tensor. */
static gboolean
looks_alike (const EbbFrameSlot *slot,
             EbbTensor *tensor,
             EbbDeterminismCheck check)
{
  gsize n = sizeof (gint64) * (gsize) slot->view.n_dims;

  return slot->view.dtype == tensor->view.dtype && slot->view.n_dims == tensor->view.n_dims
         && slot->device == tensor->storage->device && memcmp (slot->view.shape, tensor->view.shape, n) == 0
         && (check == EBB_DETERMINISM_CHECK_NONE
             || (memcmp (slot->view.strides, tensor->view.strides, n) == 0 && slot->op == ebb_modes.saving));
}

static gboolean
refuse (const EbbFrameSlot *slot,
        guint index,
        EbbTensor *tensor,
        const char *how,
        GError **error)
{
  g_autofree char *was = describe (&slot->view, slot->device, slot->op);
  g_autofree char *is = describe (&tensor->view, tensor->storage->device, ebb_modes.saving);

  return ebb_fail (error, EBB_ERROR_RECOMPUTE,
                   "saved tensor %u was %s, and is %s%s in the recompute; " EBB_RECOMPUTE_CAUSES, index, was, is, how);
}

gboolean
ebb_slot_fill (EbbFrameSlot *slot,
               guint index,
               EbbTensor *tensor,
               EbbDeterminismCheck check,
               GError **error)
{
  if (!looks_alike (slot, tensor, check))
    return refuse (slot, index, tensor, "", error);
  if (check == EBB_DETERMINISM_CHECK_VALUES && ebb_slot_checksum_differs (slot->checksum, tensor))
    return refuse (slot, index, tensor, " with other values", error);
  slot->again = tensor->storage->birth;
  slot->offset = tensor->offset;
  slot->version = tensor->storage->version;
  if (slot->n_wanted == 0)
    return TRUE;
  ebb_slot_clear (slot);
  slot->value = ebb_tensor_alias (tensor);
  slot->n_taken = 0;
  slot->n_fills++;
  ebb_storage_hold_saved (tensor->storage);
  return TRUE;
}

gboolean
ebb_slot_is_of (const EbbFrameSlot *slot,
                EbbTensor *tensor,
                gboolean again)
{
  gsize n = sizeof (gint64) * (gsize) tensor->view.n_dims;

  return (again ? slot->again : slot->birth) == tensor->storage->birth && slot->offset == tensor->offset
         && slot->version == tensor->storage->version && slot->view.dtype == tensor->view.dtype
         && slot->view.n_dims == tensor->view.n_dims && memcmp (slot->view.shape, tensor->view.shape, n) == 0
         && memcmp (slot->view.strides, tensor->view.strides, n) == 0;
}

EbbTensor *
ebb_slot_take (EbbFrameSlot *slot,
               gboolean retain,
               GError **error)
{
  EbbTensor *value = slot->value;

  if (value->storage->version != slot->version)
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (value);

      return ebb_fail_null (error, EBB_ERROR_VERSION,
                            "a tensor of shape %s that backward needs was changed in place after it was used", shape);
    }
  if (retain || slot->n_taken < slot->n_wanted)
    return ebb_tensor_ref (value);
  slot->value = NULL;
  ebb_storage_drop_saved (value->storage);
  return value;
}

void
ebb_slot_clear (EbbFrameSlot *slot)
{
  if (slot->value == NULL)
    return;
  ebb_storage_drop_saved (slot->value->storage);
  g_clear_pointer (&slot->value, ebb_tensor_unref);
}
