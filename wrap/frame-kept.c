/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint-policy-private.h"
#include "wrap/frame-private.h"

#include <string.h>

/* What a policy keeps: the results of an op, which stand in for them when the forward is run again. Many of them nobody
 * will read then, as those that only go into other ops whose results are kept. They are let go at the forward's end,
 * and a recompute has a phantom in their place, as after an early stop. */

/* -- forward ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_frame_keep_results (EbbCheckpointFrame *self,
                        EbbOpCall *call,
                        GError **error)
{
  EbbSavedTensorHooks *hooks = ebb_thread.hooks;
  EbbKept kept = { .op = call->op, .ordinal = self->n_ops, .n_outputs = call->n_outputs };
  gboolean ok = ebb_frame_save_args (self, error);

  ebb_thread.hooks = self->outside;
  for (guint i = 0; ok && i < call->n_outputs; i++)
    {
      kept.outputs[i].start = call->outputs[i]->view.data;
      kept.outputs[i].n_bytes = ebb_tensor_get_n_bytes (call->outputs[i]);
      ok = ebb_saved_tensor_save (&kept.outputs[i].saved, call->op, call->outputs[i], NULL, error);
    }
  ebb_thread.hooks = hooks;
  g_array_append_val (self->kept, kept);
  /* What the op read it will not read again. What was read on the way to it (a cast, a copy) will be. */
  g_array_set_size (self->touched, MIN (self->touched->len, self->n_touched_before));
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

static int
compare_addresses (gconstpointer a,
                   gconstpointer b)
{
  const char *first = *(const char *const *) a, *second = *(const char *const *) b;

  return (first > second) - (first < second);
}

/* Whether anything in the memory of output @i was touched by what a recompute does again. */
static gboolean
is_touched (EbbCheckpointFrame *self,
            const EbbKept *kept,
            guint i)
{
  const char *start = kept->outputs[i].start;
  guint low = 0, high = self->touched->len;

  while (low < high)
    {
      guint middle = (low + high) / 2;

      if (g_array_index (self->touched, const char *, middle) < start)
        low = middle + 1;
      else
        high = middle;
    }
  return low < self->touched->len
         && g_array_index (self->touched, const char *, low) < start + kept->outputs[i].n_bytes;
}

static GHashTable *
collect_slot_births (EbbCheckpointFrame *self)
{
  GHashTable *births = g_hash_table_new (g_int64_hash, g_int64_equal);

  for (guint i = 0; i < self->slots->len; i++)
    g_hash_table_add (births, &ebb_frame_slot (self, i)->birth);
  return births;
}

void
ebb_frame_prune_kept (EbbCheckpointFrame *self)
{
  g_autoptr (GHashTable) births = NULL;

  /* Without an early stop, what comes after the last slot is run again too, and may read anything; so may a backward
   * pass inside the forward. */
  if (self->kept->len > 0 && !self->runs_backward
      && ebb_checkpoint_options_get_early_stop (self->target->options))
    births = collect_slot_births (self);
  if (births != NULL)
    g_array_sort (self->touched, compare_addresses);
  for (guint i = 0; births != NULL && i < self->kept->len; i++)
    {
      EbbKept *kept = ebb_frame_kept (self, i);

      for (guint j = 0; j < kept->n_outputs; j++)
        if (!g_hash_table_contains (births, &kept->outputs[j].saved.birth) && !is_touched (self, kept, j))
          {
            ebb_saved_tensor_clear (&kept->outputs[j].saved);
            kept->pruned |= 1u << j;
            self->has_pruned = TRUE;
          }
    }
  g_array_set_size (self->touched, 0);
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
  return kept->view.dtype == output->view.dtype && kept->view.n_dims == output->view.n_dims
         && memcmp (kept->view.shape, output->view.shape, sizeof (gint64) * (gsize) kept->view.n_dims) == 0;
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
provide_phantom (const EbbKept *kept,
                 EbbOpCall *call,
                 guint i,
                 GError **error)
{
  EbbTensor *output = call->outputs[i];

  if (ebb_tensor_get_n_bytes (output) != kept->outputs[i].n_bytes)
    return refuse (kept, call, error);
  if (output->storage != NULL)
    return TRUE;
  ebb_thread.stopped++;
  output->storage = ebb_storage_new (ebb_op_call_get_device (call), kept->outputs[i].n_bytes, error);
  ebb_thread.stopped--;
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
  for (guint i = 0; i < kept->n_outputs; i++)
    if (!(kept->pruned & (1u << i) ? provide_phantom (kept, call, i, error)
                                   : provide_kept (self, kept, call, i, error)))
      return FALSE;
  *provided = TRUE;
  return TRUE;
}
