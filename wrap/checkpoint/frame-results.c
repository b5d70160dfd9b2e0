/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Results that a policy saves: a recompute restores them instead of running their ops. Many of them nothing will read
 * then, such as results that only go into other ops whose results are saved. They are freed as soon as nothing can read
 * them any more, and a recompute has a placeholder in their place, as after an early stop. */
#include "wrap/checkpoint/frame-private.h"
#include "wrap/checkpoint/options-private.h"

/* A saved result that nothing was seen to read: an entry of frame->unread. */
typedef struct
{
  guint result, output;
} UnreadResult;

/* -- forward ------------------------------------------------------------------------------------------------------- */

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
      ok = ebb_frame_save_outside (self, &result.outputs[i].saved, call->op, call->outputs[i], error);
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

/* -- recompute ----------------------------------------------------------------------------------------------------- */

/* A restored result must look like the op's, or kernels would read beyond its end. */
static gboolean
is_as_described (EbbTensor *saved,
                 EbbTensor *output)
{
  return saved->view.dtype == output->view.dtype && ebb_shapes_equal (&saved->view, &output->view);
}

static gboolean
refuse (const EbbSavedResult *result,
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
    return refuse (result, call, error);
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
    return refuse (result, call, error);
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
    return refuse (result, call, error);
  if (result->is_placeholder) /* a backward pass inside the forward asks for it now */
    return TRUE;
  for (guint i = 0; i < result->n_outputs; i++)
    if (!(result->pruned & (1u << i) ? restore_placeholder (result, call, i, error)
                                     : restore_result (self, result, call, i, error)))
      return FALSE;
  *cached = TRUE;
  return TRUE;
}
