/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs a checkpointed forward under a frame, and hands nodes what they need of it in backward. */
#include "wrap/checkpoint/frame-private.h"

#include "nn/args-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/object-private.h"
#include "wrap/checkpoint/options-private.h"

G_DEFINE_FINAL_TYPE (EbbCheckpointFrame, ebb_checkpoint_frame, EBB_TYPE_SAVED_TENSOR_HOOKS)

static void tally_forward (EbbCheckpointFrame *self,
                           gboolean nested);
static void release_all (EbbCheckpointFrame *self);

/* -- forward ------------------------------------------------------------------------------------------------------- */

static EbbCheckpointFrame *
frame_new (EbbCheckpointTarget *target,
           EbbArgs *args,
           gboolean nested)
{
  EbbCheckpointFrame *self = g_object_new (EBB_TYPE_CHECKPOINT_FRAME, NULL);

  self->target = ebb_checkpoint_target_ref (target);
  self->call_args = args;
  if (ebb_frame_get_check (self) == EBB_DETERMINISM_CHECK_VALUES)
    self->rematerialization_log.get_checksum = ebb_slot_checksum;
  ebb_modes_capture (&self->modes, ebb_generator_get_default ());
  /* The inputs of an inner frame were made in the outer one, which saves or recomputes them. */
  self->outside = ebb_checkpoint_options_get_effective_store (target->options);
  if (self->outside == NULL || nested)
    self->outside = ebb_modes.hooks;
  self->mark = ebb_storage_get_next_birth ();
  self->owners = ebb_parameter_owners_get_entered ();
  return self;
}

/* Nodes outside must not save operands from inside the frame in place of its results. */
static void
drop_rematerializations (EbbArgs *result,
                         guint64 frame)
{
  for (guint i = 0; i < ebb_args_get_length (result); i++)
    {
      EbbTensor *tensor = ebb_args_peek_tensor (result, i);
      EbbArgs *inside = ebb_args_peek_args (result, i);

      if (tensor != NULL)
        ebb_tensor_drop_rematerialization (tensor, frame);
      if (inside != NULL)
        drop_rematerializations (inside, frame);
    }
}

/* The thread's slot of checkpointing with the inside flag of @outer; what the forward has disabled stays so. */
static gpointer
leave_slot (const EbbModes *outer)
{
  const guint flag = GPOINTER_TO_UINT (outer->slots[ebb_checkpoint_slot]) & EBB_CHECKPOINT_INSIDE;
  const guint now = GPOINTER_TO_UINT (ebb_modes.slots[ebb_checkpoint_slot]) & ~EBB_CHECKPOINT_INSIDE;

  return GUINT_TO_POINTER (now | flag);
}

/* The modes that the forward itself changes stay changed, as they do without a checkpoint. */
static EbbArgs *
run_inside (EbbCheckpointFrame *self,
            const EbbForwardChain *inside,
            GPtrArray *modules,
            EbbArgs *args,
            GError **error)
{
  const EbbModes outer = ebb_modes;
  EbbArgs *result;

  ebb_modes.frame = ebb_frame_take_number ();
  ebb_modes.rematerialization_log = &self->rematerialization_log;
  ebb_modes.hooks = EBB_SAVED_TENSOR_HOOKS (self);
  ebb_thread_push_observer (&self->observer.base);
  ebb_modes.slots[ebb_checkpoint_slot] =
      GUINT_TO_POINTER (GPOINTER_TO_UINT (outer.slots[ebb_checkpoint_slot]) | EBB_CHECKPOINT_INSIDE);
  if (inside != NULL)
    result = ebb_forward_chain_call (inside, g_ptr_array_index (modules, 0), args, error);
  else
    result = ebb_checkpoint_target_run (self->target, modules, args, error);
  if (result != NULL)
    drop_rematerializations (result, ebb_modes.frame);
  ebb_thread_pop_observer (&self->observer.base);
  ebb_modes.hooks = outer.hooks;
  ebb_modes.frame = outer.frame;
  ebb_modes.rematerialization_log = outer.rematerialization_log;
  ebb_modes.slots[ebb_checkpoint_slot] = leave_slot (&outer);
  if (result == NULL)
    ebb_generator_pop_forks_to (outer.forks);
  self->call_args = NULL;
  self->outside = NULL;
  if (result == NULL || self->policy_error == NULL)
    return result;
  /* A recompute asks no policy, so it could not repeat the way that the forward took around the failure. */
  ebb_args_unref (result);
  g_propagate_prefixed_error (error, g_steal_pointer (&self->policy_error),
                              "the forward went on after its checkpoint policy had failed: ");
  return NULL;
}

EbbArgs *
ebb_checkpoint_frame_run (EbbCheckpointTarget *target,
                          const EbbForwardChain *inside,
                          EbbArgs *args,
                          GError **error)
{
  g_autoptr (GPtrArray) modules = ebb_checkpoint_target_get_modules (target, error);
  gboolean nested = ebb_modes.frame != 0;
  EbbCheckpointFrame *self;
  EbbArgs *result;

  if (modules == NULL)
    return NULL;
  self = frame_new (target, args, nested);
  if (!ebb_frame_begin_forward (self, modules, error))
    {
      g_object_unref (self);
      return NULL;
    }
  ebb_frame_enter_modules (self, modules);
  result = ebb_frame_end_forward (self, run_inside (self, inside, modules, args, error), error);
  ebb_frame_flush_touched (self);
  ebb_frame_finish_results (self);
  ebb_modes_capture_rest (&self->modes); /* what the forward made */
  if (result != NULL)
    {
      ebb_frame_count_up (self);
      target->tally.n_forwards += ebb_modes.recomputing == 0;
      tally_forward (self, nested);
    }
  else
    ebb_draws_put_back (self->draws);
  if (self->n_wanted == 0)
    release_all (self);
  g_object_unref (self);
  return result;
}

/* The bytes that this frame saves: none for an inner frame, whose inputs belong to the outer one. */
static guint64
count_saved (EbbCheckpointFrame *self)
{
  guint64 n_bytes = ebb_frame_count_saved_results (self);

  for (guint i = 0; i < self->inputs->len; i++)
    if (!ebb_frame_input (self, i)->is_there)
      n_bytes += ebb_frame_input (self, i)->n_bytes;
  return n_bytes;
}

static guint64
count_dropped (EbbCheckpointFrame *self)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (g_int64_hash, g_int64_equal);
  guint64 n_bytes = 0;

  for (guint i = 0; i < self->slots->len; i++)
    {
      EbbFrameSlot *slot = ebb_frame_slot (self, i);

      if (slot->n_wanted > 0 && g_hash_table_add (seen, &slot->birth) && !ebb_frame_is_saved_result (self, slot->birth))
        n_bytes += slot->n_bytes;
    }
  return n_bytes;
}

static void
tally_forward (EbbCheckpointFrame *self,
               gboolean nested)
{
  EbbCheckpointTally *tally = &self->target->tally;

  if (ebb_modes.recomputing > 0)
    return;
  self->saved_bytes = nested ? 0 : count_saved (self);
  self->dropped_bytes = count_dropped (self);
  ebb_checkpoint_level_add (&tally->saved, self->saved_bytes);
  ebb_checkpoint_level_add (&tally->dropped, self->dropped_bytes);
  ebb_checkpoint_savings_add (self->target->savings, self->dropped_bytes);
}

/* -- saved tensors ------------------------------------------------------------------------------------------------- */

#define N_SLOTS_SEARCHED 16

/* The handle that a node holds in place of a tensor. */
typedef struct
{
  EbbCheckpointFrame *frame;
  gboolean is_slot;
  guint index;       /* of the slot */
  guint fill;        /* of the slot, at which the value was last taken; 0: never */
  EbbInputView view; /* or of a frame input */
} PackedHandle;

static void packed_free (gpointer data);

static PackedHandle *
packed_new (EbbCheckpointFrame *self)
{
  PackedHandle *packed = ebb_object_new (PackedHandle);

  *packed = (PackedHandle){ .frame = g_object_ref (self) };
  self->n_wanted++;
  return packed;
}

static gboolean
is_inside (EbbCheckpointFrame *self,
           EbbTensor *tensor)
{
  if (tensor->is_parameter || tensor->is_buffer)
    return FALSE;
  if (tensor->storage->birth >= self->mark)
    return TRUE;
  for (guint i = 0; i < self->cached->len; i++)
    if (g_array_index (self->cached, guint64, i) == tensor->storage->birth)
      return TRUE;
  return FALSE;
}

/* The op that makes a tensor and the op that reads it both save it, usually one after the other: they share a slot, so
 * that a recompute may stop at the first of them. Forward and recompute search only the last few slots. */
static EbbFrameSlot *
find_slot (EbbCheckpointFrame *self,
           EbbTensor *tensor,
           guint n_slots,
           guint *index)
{
  for (guint i = n_slots; i > 0 && i + N_SLOTS_SEARCHED > n_slots; i--)
    if (ebb_slot_is_of (ebb_frame_slot (self, i - 1), tensor, self->recomputing))
      {
        *index = i - 1;
        return ebb_frame_slot (self, i - 1);
      }
  return NULL;
}

static gboolean
fill_next (EbbCheckpointFrame *self,
           EbbTensor *tensor,
           GError **error)
{
  guint i = self->next_slot;

  if (find_slot (self, tensor, i, &i) != NULL)
    return TRUE;
  if (i >= self->slots->len)
    return ebb_fail (error, EBB_ERROR_RECOMPUTE,
                     "%s saves a tensor where the forward, which saved %u, had ended; " EBB_RECOMPUTE_CAUSES,
                     ebb_modes.saving->name, self->slots->len);
  if (!ebb_slot_fill (ebb_frame_slot (self, i), i, tensor, ebb_frame_get_check (self), error))
    return FALSE;
  /* While the forward itself still runs, it is unknown how many more slots come. */
  if (++self->next_slot == self->n_slots_needed
      && (self->target->options->early_stop || self->has_pruned
          || self->call_args != NULL))
    {
      self->stopped = TRUE;
      ebb_modes.stopped++;
    }
  return TRUE;
}

/* Only a backward pass that the forward itself runs goes through the graph of a recompute. */
static EbbHandle *
pack_again (EbbCheckpointFrame *self,
            EbbTensor *tensor,
            gboolean inside,
            GError **error)
{
  if (inside && !ebb_is_stopped () && !fill_next (self, tensor, error))
    return NULL;
  return self->goes_back && !ebb_is_stopped () ? ebb_handle_new (tensor) : ebb_handle_new_for_data (NULL, NULL);
}

static void
pack_slot (EbbCheckpointFrame *self,
           PackedHandle *packed,
           EbbTensor *tensor)
{
  EbbFrameSlot fresh, *slot = find_slot (self, tensor, self->slots->len, &packed->index);

  packed->is_slot = TRUE;
  if (slot != NULL)
    {
      slot->n_wanted++;
      return;
    }
  ebb_slot_describe (&fresh, tensor, ebb_frame_get_check (self));
  packed->index = self->slots->len;
  g_array_append_val (self->slots, fresh);
  self->n_ops_needed = self->n_ops + (self->op_has_run ? 1 : 0);
}

static EbbHandle *
ebb_checkpoint_frame_pack (EbbSavedTensorHooks *hooks,
                           EbbTensor *tensor,
                           GError **error)
{
  EbbCheckpointFrame *self = EBB_CHECKPOINT_FRAME (hooks);
  gboolean inside = is_inside (self, tensor);
  EbbInputView view = { 0 };
  PackedHandle *packed;

  if (self->recomputing)
    return pack_again (self, tensor, inside, error);
  if (!ebb_frame_save_args (self, error) || (!inside && !ebb_frame_take_input (self, tensor, &view, error)))
    return NULL;
  packed = packed_new (self);
  packed->view = view;
  if (inside)
    pack_slot (self, packed, tensor);
  return ebb_handle_new_for_data (packed, packed_free);
}

static EbbTensor *
ebb_checkpoint_frame_unpack (EbbSavedTensorHooks *hooks,
                             EbbHandle *handle,
                             GError **error)
{
  EbbCheckpointFrame *self = EBB_CHECKPOINT_FRAME (hooks);
  PackedHandle *packed = ebb_handle_get_data (handle);
  EbbFrameSlot *slot;
  EbbTensor *tensor = ebb_handle_get_tensor (handle);

  if (tensor != NULL)
    return tensor;
  if (self->call_args != NULL)
    self->goes_back = TRUE;
  if (packed == NULL) /* packed in a recompute, whose graph no backward pass goes through */
    return ebb_fail_null (error, EBB_ERROR_GRAPH,
                          "%s: backward can't run through the graph of a recompute, which saves nothing",
                          ebb_in_message (ebb_checkpoint_target_describe (self->target)));
  if (!ebb_frame_begin_backward (self, error))
    return NULL;
  ebb_checkpoint_savings_note_backward (self->target->savings);
  if (!packed->is_slot)
    return ebb_frame_get_input (self, &packed->view, error);
  slot = ebb_frame_slot (self, packed->index);
  if (slot->value == NULL && !ebb_frame_recompute (self, error))
    return NULL;
  slot = ebb_frame_slot (self, packed->index); /* a forward that still runs may have added slots */
  slot->n_taken += packed->fill != slot->n_fills;
  packed->fill = slot->n_fills;
  return ebb_slot_take (slot, self->target->options->retain_recomputed, error);
}

/* -- end of backward ----------------------------------------------------------------------------------------------- */

static void
packed_free (gpointer data)
{
  PackedHandle *packed = data;
  EbbCheckpointFrame *self = packed->frame;

  if (packed->is_slot)
    {
      EbbFrameSlot *slot = ebb_frame_slot (self, packed->index);

      slot->n_taken -= packed->fill != 0 && packed->fill == slot->n_fills;
      if (--slot->n_wanted == 0)
        ebb_slot_clear (slot);
    }
  if (--self->n_wanted == 0 && !self->recomputing && self->call_args == NULL)
    {
      ebb_frame_leave_backward (self);
      release_all (self);
    }
  ebb_object_free (packed, sizeof *packed);
  g_object_unref (self);
}

/* No node will ask any more. */
static void
release_all (EbbCheckpointFrame *self)
{
  ebb_checkpoint_level_subtract (&self->target->tally.saved, self->saved_bytes);
  ebb_checkpoint_level_subtract (&self->target->tally.dropped, self->dropped_bytes);
  ebb_checkpoint_savings_subtract (self->target->savings, self->dropped_bytes);
  self->saved_bytes = self->dropped_bytes = 0;
  ebb_frame_drop_unpacked (self);
  ebb_frame_drop_values (self);
  ebb_frame_drop_results (self, 0);
  for (guint i = 0; i < self->inputs->len; i++)
    {
      ebb_saved_tensor_clear (&ebb_frame_input (self, i)->saved);
      g_clear_pointer (&ebb_frame_input (self, i)->parameter, ebb_tensor_unref);
    }
  g_array_set_size (self->inputs, 0);
  g_clear_pointer (&self->args, ebb_args_unref);
  ebb_frame_count_down (self);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void ebb_checkpoint_frame_finalize (GObject *object);

static void
ebb_checkpoint_frame_class_init (EbbCheckpointFrameClass *klass)
{
  EbbSavedTensorHooksClass *hooks_class = EBB_SAVED_TENSOR_HOOKS_CLASS (klass);

  G_OBJECT_CLASS (klass)->finalize = ebb_checkpoint_frame_finalize;
  hooks_class->pack = ebb_checkpoint_frame_pack;
  hooks_class->unpack = ebb_checkpoint_frame_unpack;
}

static void
ebb_checkpoint_frame_init (EbbCheckpointFrame *self)
{
  self->inputs = g_array_new (FALSE, FALSE, sizeof (EbbFrameInput));
  self->arg_views = g_array_new (FALSE, FALSE, sizeof (EbbInputView));
  self->slots = g_array_new (FALSE, FALSE, sizeof (EbbFrameSlot));
  self->results = g_array_new (FALSE, FALSE, sizeof (EbbSavedResult));
  self->draws = ebb_draws_new ();
  self->cached = g_array_new (FALSE, FALSE, sizeof (guint64));
  self->rematerialization_log.decisions = g_byte_array_new ();
  self->reads = g_array_new (FALSE, FALSE, sizeof (EbbRead));
  self->touched = g_array_new (FALSE, FALSE, sizeof (const void *));
  self->unread = g_array_new (FALSE, FALSE, 2 * sizeof (guint)); /* see frame-saved.c */
  ebb_frame_observer_init (self);
}

static void
ebb_checkpoint_frame_finalize (GObject *object)
{
  EbbCheckpointFrame *self = EBB_CHECKPOINT_FRAME (object);

  release_all (self);
  g_array_unref (self->inputs);
  g_array_unref (self->arg_views);
  g_array_unref (self->slots);
  g_array_unref (self->results);
  g_array_unref (self->draws);
  g_array_unref (self->cached);
  g_array_unref (self->reads);
  g_array_unref (self->touched);
  g_array_unref (self->unread);
  g_clear_pointer (&self->modules, g_array_unref);
  g_clear_pointer (&self->devices, g_ptr_array_unref);
  g_clear_pointer (&self->owners, g_ptr_array_unref);
  g_byte_array_unref (self->rematerialization_log.decisions);
  g_clear_error (&self->policy_error);
  ebb_modes_release (&self->modes);
  ebb_checkpoint_target_unref (self->target);
  G_OBJECT_CLASS (ebb_checkpoint_frame_parent_class)->finalize (object);
}
