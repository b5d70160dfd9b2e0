/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint/frame-private.h"
#include "wrap/checkpoint/options-private.h"

#include <string.h>

/* What a policy keeps: the results of an op, which stand in for them when the forward is run again. Many of them nobody
 * will read then, as those that only go into other ops whose results are kept. They are let go as soon as nobody can
 * read them any more, and a recompute has a placeholder in their place, as after an early stop. */

/* A result that is kept and that nobody was seen to read: an entry of frame->open. */
typedef struct
{
  guint kept, output;
} Open;

/* -- forward ------------------------------------------------------------------------------------------------------- */

/* Provided by a frame outside that had let it go. */
static gboolean
is_placeholder (EbbOpCall *call)
{
  for (guint i = 0; i < call->n_outputs; i++)
    if (call->outputs[i]->storage->placeholder)
      return TRUE;
  return FALSE;
}

gboolean
ebb_frame_keep_results (EbbCheckpointFrame *self,
                        EbbOpCall *call,
                        GError **error)
{
  EbbKept kept = { .op = call->op, .ordinal = self->n_ops, .n_outputs = call->n_outputs };
  gboolean ok = ebb_frame_save_args (self, error);

  kept.is_placeholder = is_placeholder (call);
  for (guint i = 0; ok && i < call->n_outputs; i++)
    {
      kept.outputs[i].start = call->outputs[i]->view.data;
      kept.outputs[i].n_bytes = ebb_tensor_get_n_bytes (call->outputs[i]);
      ok = ebb_frame_save_outside (self, &kept.outputs[i].saved, call->op, call->outputs[i], error);
    }
  for (guint i = 0; !ok && i < call->n_outputs; i++)
    ebb_saved_tensor_clear (&kept.outputs[i].saved);
  if (ok)
    g_array_append_val (self->kept, kept);
  if (ok && !kept.is_placeholder && self->target->options->early_stop)
    for (guint i = 0; i < call->n_outputs; i++)
      {
        Open open = { self->kept->len - 1, i };

        g_array_append_val (self->open, open);
      }
  return ok;
}

void
ebb_frame_drop_kept (EbbCheckpointFrame *self,
                     guint from_ordinal)
{
  while (self->kept->len > 0 && ebb_frame_kept (self, self->kept->len - 1)->ordinal >= from_ordinal)
    {
      EbbKept *kept = ebb_frame_kept (self, self->kept->len - 1);

      for (guint i = 0; i < kept->n_outputs; i++)
        ebb_saved_tensor_clear (&kept->outputs[i].saved);
      g_array_set_size (self->kept, self->kept->len - 1);
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

/* Nobody but the frame has it. What a store has taken over can't be known. */
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
  for (guint i = self->open->len; i > 0; i--)
    {
      const Open open = g_array_index (self->open, Open, i - 1);
      EbbKept *kept = open.kept < self->kept->len ? ebb_frame_kept (self, open.kept) : NULL;
      EbbSavedTensor *saved = kept != NULL ? &kept->outputs[open.output].saved : NULL;

      if (saved != NULL && !at_end && !is_abandoned (saved->tensor))
        continue;
      if (saved != NULL && !is_slot (self, saved->birth))
        {
          ebb_saved_tensor_clear (saved);
          kept->pruned |= 1u << open.output;
          self->has_pruned = TRUE;
        }
      g_array_remove_index_fast (self->open, i - 1);
    }
}

static gboolean
is_within (const EbbKept *kept,
           guint output,
           const char *data)
{
  return data >= kept->outputs[output].start && data < kept->outputs[output].start + kept->outputs[output].n_bytes;
}

static void
note_touched (EbbCheckpointFrame *self,
              const char *data)
{
  for (guint i = self->open->len; i > 0; i--)
    {
      const Open open = g_array_index (self->open, Open, i - 1);

      if (is_within (ebb_frame_kept (self, open.kept), open.output, data))
        g_array_remove_index_fast (self->open, i - 1);
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
ebb_frame_prune_kept (EbbCheckpointFrame *self)
{
  prune (self, FALSE);
}

void
ebb_frame_finish_kept (EbbCheckpointFrame *self)
{
  ebb_frame_drop_kept (self, self->n_ops_needed);
  prune (self, TRUE);
}

gboolean
ebb_frame_is_among_kept (EbbCheckpointFrame *self,
                         guint64 birth)
{
  for (guint i = 0; i < self->kept->len; i++)
    {
      const EbbKept *kept = ebb_frame_kept (self, i);

      for (guint j = 0; j < kept->n_outputs; j++)
        if (!(kept->pruned & (1u << j)) && kept->outputs[j].saved.birth == birth)
          return TRUE;
    }
  return FALSE;
}

guint64
ebb_frame_count_kept (EbbCheckpointFrame *self)
{
  guint64 n_bytes = 0;

  for (guint i = 0; i < self->kept->len; i++)
    {
      const EbbKept *kept = ebb_frame_kept (self, i);

      for (guint j = 0; j < kept->n_outputs; j++)
        n_bytes += kept->pruned & (1u << j) ? 0 : kept->outputs[j].n_bytes;
    }
  return n_bytes;
}

/* -- recompute ----------------------------------------------------------------------------------------------------- */

/* What stands in for a result must be what the op would have given, or kernels would read beyond its end. */
static gboolean
is_as_described (EbbTensor *kept,
                 EbbTensor *output)
{
  return kept->view.dtype == output->view.dtype && ebb_shapes_equal (&kept->view, &output->view);
}

static gboolean
refuse (const EbbKept *kept,
        EbbOpCall *call,
        GError **error)
{
  g_set_error (
      error, EBB_ERROR, EBB_ERROR_RECOMPUTE,
      "op %u, whose result was kept, was %s, and is %s or of another shape in the recompute; " EBB_RECOMPUTE_CAUSES,
      kept->ordinal, kept->op->name, call->op->name);
  return FALSE;
}

/* A size without memory. */
static gboolean
provide_placeholder (const EbbKept *kept,
                     EbbOpCall *call,
                     guint i,
                     GError **error)
{
  EbbTensor *output = call->outputs[i];

  if (ebb_tensor_get_n_bytes (output) != kept->outputs[i].n_bytes)
    return refuse (kept, call, error);
  if (output->storage != NULL)
    return TRUE;
  ebb_modes.stopped++;
  output->storage = ebb_storage_new (ebb_op_call_get_device (call), kept->outputs[i].n_bytes, error);
  ebb_modes.stopped--;
  return output->storage != NULL;
}

static gboolean
provide_kept (EbbCheckpointFrame *self,
              EbbKept *kept,
              EbbOpCall *call,
              guint i,
              GError **error)
{
  g_autoptr (EbbTensor) tensor = ebb_saved_tensor_unpack (&kept->outputs[i].saved, call->op, error);

  if (tensor == NULL)
    return FALSE;
  if (!is_as_described (tensor, call->outputs[i]))
    return refuse (kept, call, error);
  ebb_tensor_unref (call->outputs[i]);
  call->outputs[i] = ebb_tensor_alias (tensor);
  ebb_frame_note_provided (self, tensor->storage->birth);
  return TRUE;
}

gboolean
ebb_frame_provide_results (EbbCheckpointFrame *self,
                           EbbOpCall *call,
                           gboolean *provided,
                           GError **error)
{
  EbbKept *kept = self->next_kept < self->kept->len ? ebb_frame_kept (self, self->next_kept) : NULL;

  if (kept == NULL || kept->ordinal != self->n_ops)
    return TRUE;
  self->next_kept++;
  if (kept->op != call->op || kept->n_outputs != call->n_outputs)
    return refuse (kept, call, error);
  if (kept->is_placeholder) /* a backward pass inside the forward asks for it now */
    return TRUE;
  for (guint i = 0; i < kept->n_outputs; i++)
    if (!(kept->pruned & (1u << i) ? provide_placeholder (kept, call, i, error)
                                   : provide_kept (self, kept, call, i, error)))
      return FALSE;
  *provided = TRUE;
  return TRUE;
}
