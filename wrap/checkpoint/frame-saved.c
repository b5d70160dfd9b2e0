/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What a frame has of its forward: inputs from outside, slots of tensors made inside, and results that a policy saves.
 */
#include "wrap/checkpoint/frame-private.h"

#include "offload/activation-store-private.h"
#include "offload/transfer/transfer-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/util/checksum-private.h"
#include "wrap/checkpoint/options-private.h"

#include <string.h>

/* -- checksums ----------------------------------------------------------------------------------------------------- */

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

/* Whether @tensor's values are known not to be those of @checksum. */
static gboolean
checksum_differs (guint64 checksum,
                  EbbTensor *tensor)
{
  guint64 now = checksum != 0 ? ebb_slot_checksum (tensor) : 0;

  return now != 0 && now != checksum;
}

/* -- inputs: saved once, and found again by views ------------------------------------------------------------------ */

static const EbbOp checkpoint_op = { .name = "checkpoint" };

static gboolean
same_view (const EbbView *a,
           const EbbView *b)
{
  gsize n = sizeof (gint64) * (gsize) a->n_dims;

  return a->n_dims == b->n_dims && memcmp (a->shape, b->shape, n) == 0 && memcmp (a->strides, b->strides, n) == 0;
}

/* Whether @tensor can be found again inside @input, which comes back with the same strides. A parameter is itself,
 * whatever it points at: a shard and the full parameter have one birth, and other places in other storages. Any other
 * tensor is told by what its values are: storages of one birth and one version hold the same values, in a full buffer
 * or in a shard. The storage of @input may be gone, and its address tells only full buffers from shards: shards stay
 * where they are. */
static gboolean
covers (const EbbFrameInput *input,
        EbbTensor *tensor)
{
  gint64 last = 0, n = 1;

  if (tensor->is_parameter)
    return input->parameter == tensor;
  if (input->saved.birth != tensor->storage->birth || input->saved.version != tensor->storage->version
      || input->storage != tensor->storage || input->view.dtype != tensor->view.dtype)
    return FALSE;
  if (input->offset == tensor->offset && same_view (&input->view, &tensor->view))
    return TRUE;
  if (!ebb_view_is_contiguous (&input->view))
    return FALSE;
  for (int i = 0; i < input->view.n_dims; i++)
    n *= input->view.shape[i];
  for (int i = 0; i < tensor->view.n_dims; i++)
    last += (tensor->view.shape[i] - 1) * tensor->view.strides[i];
  return tensor->offset >= input->offset && tensor->offset + last < input->offset + n;
}

/* Through the hooks outside. */
static gboolean
save_outside (EbbCheckpointFrame *self,
              EbbSavedTensor *saved,
              const EbbOp *op,
              EbbTensor *tensor,
              GError **error)
{
  const EbbModes modes = ebb_modes;
  const gboolean compares = ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES;
  gboolean ok;

  ebb_modes.hooks = self->outside;
  ebb_modes_set_save_hints (&ebb_modes, (compares ? EBB_SAVE_HINT_COMPARE_VALUES : 0)
                                            | (op != &checkpoint_op ? EBB_SAVE_HINT_RESULT : 0));
  ok = ebb_saved_tensor_save (saved, op, tensor, NULL, error);
  ebb_modes_leave_forward (&modes);
  return ok;
}

/* Finds @tensor among the inputs, or saves it through the hooks outside. */
gboolean
ebb_frame_take_input (EbbCheckpointFrame *self,
                      EbbTensor *tensor,
                      EbbInputView *view,
                      GError **error)
{
  EbbFrameInput input = { .storage = tensor->storage,
                          .view = tensor->view,
                          .offset = tensor->offset,
                          .n_bytes = ebb_tensor_get_n_bytes (tensor),
                          .is_there = tensor->is_parameter || tensor->is_buffer };
  gboolean ok;

  *view = (EbbInputView){ .is_parameter = tensor->is_parameter,
                          .view = tensor->view,
                          .needs_grad = ebb_tensor_needs_grad (tensor) };
  for (; view->input < self->inputs->len; view->input++)
    if (covers (ebb_frame_input (self, view->input), tensor))
      {
        view->offset = tensor->offset - ebb_frame_input (self, view->input)->offset;
        return TRUE;
      }
  ok = save_outside (self, &input.saved, &checkpoint_op, tensor, error);
  if (!ok)
    {
      ebb_saved_tensor_clear (&input.saved);
      return FALSE;
    }
  if (tensor->is_parameter)
    input.parameter = ebb_tensor_ref (tensor);
  view->input = self->inputs->len;
  g_array_append_val (self->inputs, input);
  return TRUE;
}

EbbTensor *
ebb_frame_get_input (EbbCheckpointFrame *self,
                     const EbbInputView *view,
                     GError **error)
{
  EbbTensor *tensor = ebb_frame_input (self, view->input)->unpacked;

  if (tensor == NULL)
    {
      tensor = ebb_saved_tensor_unpack (&ebb_frame_input (self, view->input)->saved, &checkpoint_op, error);
      if (tensor == NULL)
        return NULL;
      ebb_frame_input (self, view->input)->unpacked = tensor;
      ebb_frame_input (self, view->input)->version = tensor->storage->version;
      ebb_frame_call_at_end (self);
    }
  if (!ebb_parameter_prepare (tensor, error))
    return NULL;
  if (view->is_parameter || same_view (&tensor->view, &view->view))
    return ebb_tensor_ref (tensor);
  return ebb_tensor_new_view (tensor->storage, tensor->offset + view->offset, view->view.shape, view->view.strides,
                              (guint) view->view.n_dims, view->view.dtype);
}

/* An empty tensor marks the place. */
static EbbTensor *
save_arg (EbbTensor *tensor,
          gpointer data,
          GError **error)
{
  static const gint64 nothing[] = { 0 };
  EbbCheckpointFrame *self = data;
  EbbInputView view;

  if (!ebb_frame_take_input (self, tensor, &view, error))
    {
      g_prefix_error (error, "argument %u: ", self->arg_views->len);
      return NULL;
    }
  if (ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES)
    view.checksum = ebb_slot_checksum (tensor);
  g_array_append_val (self->arg_views, view);
  return ebb_tensor_new_uninitialized (nothing, 1, EBB_DTYPE_U8, NULL, error);
}

/* The arguments are saved once it is certain that backward will need something. */
gboolean
ebb_frame_save_args (EbbCheckpointFrame *self,
                     GError **error)
{
  if (self->args == NULL)
    self->args = ebb_args_map_tensors (self->call_args, save_arg, self, error);
  return self->args != NULL;
}

static EbbTensor *
restore_arg (EbbTensor *place,
             gpointer data,
             GError **error)
{
  EbbCheckpointFrame *self = data;
  const EbbInputView view = g_array_index (self->arg_views, EbbInputView, self->next_arg++);
  EbbTensor *tensor = ebb_frame_get_input (self, &view, error);
  EbbTensor *argument;

  if (tensor != NULL && ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES
      && checksum_differs (view.checksum, tensor))
    {
      g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

      g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE,
                   "argument %u, %s of shape %s, has other values than in the forward; " EBB_RECOMPUTE_CAUSES,
                   self->next_arg - 1, ebb_dtype_get_name (tensor->view.dtype), shape);
      g_clear_pointer (&tensor, ebb_tensor_unref);
    }
  if (tensor == NULL || tensor->is_parameter || tensor->is_buffer)
    return tensor;
  /* The recompute's graph must end here. */
  argument = ebb_tensor_alias (tensor);
  argument->requires_grad = view.needs_grad != FALSE;
  ebb_tensor_unref (tensor);
  return argument;
}

EbbArgs *
ebb_frame_restore_args (EbbCheckpointFrame *self,
                        GError **error)
{
  self->next_arg = 0;
  return ebb_args_map_tensors (self->args, restore_arg, self, error);
}

gboolean
ebb_frame_check_inputs (EbbCheckpointFrame *self,
                        GError **error)
{
  for (guint i = 0; i < self->inputs->len; i++)
    {
      const EbbFrameInput *input = ebb_frame_input (self, i);

      if (input->unpacked != NULL && input->unpacked->storage->version != input->version)
        return ebb_fail (error, EBB_ERROR_VERSION,
                         "the forward changes a tensor of shape %s in place that it was given or found, so it can't be "
                         "run again from the same values",
                         ebb_show_shape (input->unpacked));
    }
  return TRUE;
}

/* -- slots: how a tensor that was made inside looked, and its value after the recompute ---------------------------- */

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
  return slot->view.dtype == tensor->view.dtype && slot->device == tensor->storage->device
         && (check == EBB_DETERMINISM_CHECK_NONE
                 ? ebb_shapes_equal (&slot->view, &tensor->view)
                 : same_view (&slot->view, &tensor->view) && slot->op == ebb_modes.saving);
}

static gboolean
refuse_tensor (const EbbFrameSlot *slot,
               guint index,
               EbbTensor *tensor,
               const char *how,
               GError **error)
{
  return ebb_fail (error, EBB_ERROR_RECOMPUTE,
                   "saved tensor %u was %s, and is %s%s in the recompute; " EBB_RECOMPUTE_CAUSES, index,
                   ebb_in_message (describe (&slot->view, slot->device, slot->op)),
                   ebb_in_message (describe (&tensor->view, tensor->storage->device, ebb_modes.saving)), how);
}

gboolean
ebb_slot_fill (EbbFrameSlot *slot,
               guint index,
               EbbTensor *tensor,
               EbbDeterminismCheck check,
               GError **error)
{
  if (!looks_alike (slot, tensor, check))
    return refuse_tensor (slot, index, tensor, "", error);
  if (check == EBB_DETERMINISM_CHECK_VALUES && checksum_differs (slot->checksum, tensor))
    return refuse_tensor (slot, index, tensor, " with other values", error);
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
  return (again ? slot->again : slot->birth) == tensor->storage->birth && slot->offset == tensor->offset
         && slot->version == tensor->storage->version && slot->view.dtype == tensor->view.dtype
         && same_view (&slot->view, &tensor->view);
}

EbbTensor *
ebb_slot_take (EbbFrameSlot *slot,
               gboolean retain,
               GError **error)
{
  EbbTensor *value = slot->value;

  if (value->storage->version != slot->version)
    return ebb_fail_null (error, EBB_ERROR_VERSION,
                          "a tensor of shape %s that backward needs was changed in place after it was used",
                          ebb_show_shape (value));
  if (retain || slot->n_taken < slot->n_wanted)
    return ebb_tensor_ref (value);
  slot->value = NULL;
  ebb_storage_drop_saved (value->storage);
  return value;
}

/* -- results that a policy saves, in the forward ------------------------------------------------------------------- */

/* A recompute restores saved results instead of running their ops. Many of them nothing will read then, such as results
 * that only go into other ops whose results are saved. They are freed as soon as nothing can read them any more, and a
 * recompute has a placeholder in their place, as after an early stop. */

/* A saved result that nothing was seen to read: an entry of frame->unread. */
typedef struct
{
  guint result, output;
} UnreadResult;

/* Restored by a frame outside that had freed it. */
static gboolean
is_placeholder (EbbOpCall *call)
{
  for (guint i = 0; i < call->n_outputs; i++)
    if (call->outputs[i]->storage->placeholder)
      return TRUE;
  return FALSE;
}

gboolean
ebb_frame_save_results (EbbCheckpointFrame *self,
                        EbbOpCall *call,
                        GError **error)
{
  EbbSavedResult result = { .op = call->op, .ordinal = self->n_ops, .n_outputs = call->n_outputs };
  gboolean ok = ebb_frame_save_args (self, error);

  result.is_placeholder = is_placeholder (call);
  for (guint i = 0; ok && i < call->n_outputs; i++)
    {
      result.outputs[i].start = call->outputs[i]->view.data;
      result.outputs[i].n_bytes = ebb_tensor_get_n_bytes (call->outputs[i]);
      ok = save_outside (self, &result.outputs[i].saved, call->op, call->outputs[i], error);
    }
  for (guint i = 0; !ok && i < call->n_outputs; i++)
    ebb_saved_tensor_clear (&result.outputs[i].saved);
  if (ok)
    g_array_append_val (self->results, result);
  if (ok && !result.is_placeholder && self->target->options->early_stop)
    for (guint i = 0; i < call->n_outputs; i++)
      {
        UnreadResult unread = { self->results->len - 1, i };

        g_array_append_val (self->unread, unread);
      }
  return ok;
}

void
ebb_frame_drop_results (EbbCheckpointFrame *self,
                        guint from_ordinal)
{
  while (self->results->len > 0 && ebb_frame_result (self, self->results->len - 1)->ordinal >= from_ordinal)
    {
      EbbSavedResult *result = ebb_frame_result (self, self->results->len - 1);

      for (guint i = 0; i < result->n_outputs; i++)
        ebb_saved_tensor_clear (&result->outputs[i].saved);
      g_array_set_size (self->results, self->results->len - 1);
    }
}

static gboolean
is_slot (EbbCheckpointFrame *self,
         guint64 birth)
{
  for (guint i = self->slots->len; i > 0; i--)
    if (ebb_frame_slot (self, i - 1)->birth == birth)
      return TRUE;
  return FALSE;
}

/* Only the frame has it. Whether a store has it for others is unknown. */
static gboolean
is_abandoned (EbbTensor *tensor)
{
  return tensor != NULL && __atomic_load_n (&tensor->ref_count, __ATOMIC_ACQUIRE) == 1
         && __atomic_load_n (&tensor->storage->ref_count, __ATOMIC_ACQUIRE) == 1;
}

static void
prune (EbbCheckpointFrame *self,
       gboolean at_end)
{
  for (guint i = self->unread->len; i > 0; i--)
    {
      const UnreadResult unread = g_array_index (self->unread, UnreadResult, i - 1);
      EbbSavedResult *result = unread.result < self->results->len ? ebb_frame_result (self, unread.result) : NULL;
      EbbSavedTensor *saved = result != NULL ? &result->outputs[unread.output].saved : NULL;

      if (saved != NULL && !at_end && !is_abandoned (saved->tensor))
        continue;
      if (saved != NULL && !is_slot (self, saved->birth))
        {
          ebb_saved_tensor_clear (saved);
          result->pruned |= 1u << unread.output;
          self->has_pruned = TRUE;
        }
      g_array_remove_index_fast (self->unread, i - 1);
    }
}

static gboolean
is_within (const EbbSavedResult *result,
           guint output,
           const char *data)
{
  return data >= result->outputs[output].start
         && data < result->outputs[output].start + result->outputs[output].n_bytes;
}

static void
note_touched (EbbCheckpointFrame *self,
              const char *data)
{
  for (guint i = self->unread->len; i > 0; i--)
    {
      const UnreadResult unread = g_array_index (self->unread, UnreadResult, i - 1);

      if (is_within (ebb_frame_result (self, unread.result), unread.output, data))
        g_array_remove_index_fast (self->unread, i - 1);
    }
}

void
ebb_frame_flush_touched (EbbCheckpointFrame *self)
{
  for (guint i = 0; i < self->touched->len; i++)
    note_touched (self, g_array_index (self->touched, const char *, i));
  g_array_set_size (self->touched, 0);
}

void
ebb_frame_prune_results (EbbCheckpointFrame *self)
{
  prune (self, FALSE);
}

void
ebb_frame_finish_results (EbbCheckpointFrame *self)
{
  ebb_frame_drop_results (self, self->n_ops_needed);
  prune (self, TRUE);
}

gboolean
ebb_frame_is_saved_result (EbbCheckpointFrame *self,
                           guint64 birth)
{
  for (guint i = 0; i < self->results->len; i++)
    {
      const EbbSavedResult *result = ebb_frame_result (self, i);

      for (guint j = 0; j < result->n_outputs; j++)
        if (!(result->pruned & (1u << j)) && result->outputs[j].saved.birth == birth)
          return TRUE;
    }
  return FALSE;
}

guint64
ebb_frame_count_saved_results (EbbCheckpointFrame *self)
{
  guint64 n_bytes = 0;

  for (guint i = 0; i < self->results->len; i++)
    {
      const EbbSavedResult *result = ebb_frame_result (self, i);

      for (guint j = 0; j < result->n_outputs; j++)
        n_bytes += result->pruned & (1u << j) ? 0 : result->outputs[j].n_bytes;
    }
  return n_bytes;
}

/* -- results that a policy saves, in the recompute ----------------------------------------------------------------- */

/* A restored result must look like the op's, or kernels would read beyond its end. */
static gboolean
is_as_described (EbbTensor *saved,
                 EbbTensor *output)
{
  return saved->view.dtype == output->view.dtype && ebb_shapes_equal (&saved->view, &output->view);
}

static gboolean
refuse_op (const EbbSavedResult *result,
           EbbOpCall *call,
           GError **error)
{
  return ebb_fail (
      error, EBB_ERROR_RECOMPUTE,
      "op %u, whose result was saved, was %s, and is %s or of another shape in the recompute; " EBB_RECOMPUTE_CAUSES,
      result->ordinal, result->op->name, call->op->name);
}

/* The frames open inside @self take it for a fresh result too, though its storage is older. */
static void
note_cached (EbbCheckpointFrame *self,
             guint64 birth)
{
  for (EbbOpObserver *observer = ebb_modes.observers; observer != NULL; observer = observer->outer)
    if (observer->before == self->observer.base.before)
      {
        EbbCheckpointFrame *frame = ((EbbFrameObserver *) observer)->frame;

        g_array_append_val (frame->cached, birth);
        if (frame == self)
          return;
      }
}

/* A size without memory. */
static gboolean
restore_placeholder (const EbbSavedResult *result,
                     EbbOpCall *call,
                     guint i,
                     GError **error)
{
  EbbTensor *output = call->outputs[i];

  if (ebb_tensor_get_n_bytes (output) != result->outputs[i].n_bytes)
    return refuse_op (result, call, error);
  if (output->storage != NULL)
    return TRUE;
  ebb_modes.stopped++;
  output->storage = ebb_storage_new (ebb_op_call_get_device (call), result->outputs[i].n_bytes, error);
  ebb_modes.stopped--;
  return output->storage != NULL;
}

static gboolean
restore_result (EbbCheckpointFrame *self,
                EbbSavedResult *result,
                EbbOpCall *call,
                guint i,
                GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_saved_tensor_unpack (&result->outputs[i].saved, call->op, error);

  if (tensor == NULL)
    return FALSE;
  if (!is_as_described (tensor, call->outputs[i]))
    return refuse_op (result, call, error);
  ebb_tensor_unref (call->outputs[i]);
  call->outputs[i] = ebb_tensor_alias (tensor);
  note_cached (self, tensor->storage->birth);
  return TRUE;
}

gboolean
ebb_frame_restore_results (EbbCheckpointFrame *self,
                           EbbOpCall *call,
                           gboolean *cached,
                           GError **error)
{
  EbbSavedResult *result = self->next_result < self->results->len ? ebb_frame_result (self, self->next_result) : NULL;

  if (result == NULL || result->ordinal != self->n_ops)
    return TRUE;
  self->next_result++;
  if (result->op != call->op || result->n_outputs != call->n_outputs)
    return refuse_op (result, call, error);
  if (result->is_placeholder) /* a backward pass inside the forward asks for it now */
    return TRUE;
  for (guint i = 0; i < result->n_outputs; i++)
    if (!(result->pruned & (1u << i) ? restore_placeholder (result, call, i, error)
                                     : restore_result (self, result, call, i, error)))
      return FALSE;
  *cached = TRUE;
  return TRUE;
}
