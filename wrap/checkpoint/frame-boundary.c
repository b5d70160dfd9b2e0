/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The beginning and end of a checkpointed forward and of its backward: devices are synchronised and times are taken if
 * the options ask for it, forward counters are counted, and training flags are restored.
 *
 * A backward begins when a node first asks the frame for a tensor, and ends with the last node that needs one, or with
 * the pass. */
#include "wrap/checkpoint/frame-private.h"

#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/backend/backend-private.h"
#include "wrap/checkpoint/options-private.h"

static void
add_device (EbbCheckpointFrame *self,
            EbbDevice *device)
{
  if (device->backend->synchronize != NULL && !g_ptr_array_find (self->devices, device, NULL))
    g_ptr_array_add (self->devices, device);
}

static void
add_devices_of_args (EbbCheckpointFrame *self,
                     EbbArgs *args)
{
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      EbbTensor *tensor = ebb_args_peek_tensor (args, i);
      EbbArgs *inside = ebb_args_peek_args (args, i);

      if (tensor != NULL)
        add_device (self, tensor->storage->device);
      if (inside != NULL)
        add_devices_of_args (self, inside);
    }
}

static void
add_devices_of_module (EbbCheckpointFrame *self,
                       EbbModule *module)
{
  g_autoptr (GPtrArray) parameters = ebb_module_list_parameters (module);

  for (guint i = 0; i < parameters->len; i++)
    add_device (self, ((EbbTensor *) parameters->pdata[i])->storage->device);
}

/* Waits for all devices, whichever fails first. */
static gboolean
synchronize (EbbCheckpointFrame *self,
             GError **error)
{
  gboolean ok = TRUE;

  for (guint i = 0; i < self->devices->len; i++)
    if (!ebb_device_synchronize (g_ptr_array_index (self->devices, i), ok ? error : NULL))
      ok = FALSE;
  return ok;
}

static void
report_time (EbbCheckpointFrame *self,
             gboolean forward,
             guint64 us)
{
  EbbCheckpointTally *tally = &self->target->tally;
  EbbCheckpointTimes *times = &self->target->options->times;
  const char *pass = forward ? "forward" : "backward";
  char seconds[G_ASCII_DTOSTR_BUF_SIZE];
  g_autofree char *who = NULL;

  if (!self->target->options->profile)
    return;
  __atomic_add_fetch (forward ? &tally->forward_us : &tally->backward_us, us, __ATOMIC_RELAXED);
  __atomic_add_fetch (forward ? &times->forward_us : &times->backward_us, us, __ATOMIC_RELAXED);
  __atomic_add_fetch (forward ? &times->n_forwards : &times->n_backwards, 1, __ATOMIC_RELAXED);
  who = ebb_checkpoint_target_describe (self->target);
  g_ascii_formatd (seconds, sizeof seconds, "%.6f", (double) us * 1e-6);
  g_log_structured (G_LOG_DOMAIN, G_LOG_LEVEL_MESSAGE, "EBB_CHECKPOINT", who, "EBB_PASS", pass, "EBB_SECONDS", seconds,
                    "MESSAGE", "checkpoint of %s: %s %s s", who, pass, seconds);
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

gboolean
ebb_frame_begin_forward (EbbCheckpointFrame *self,
                         GPtrArray *modules,
                         GError **error)
{
  EbbCheckpointOptions *options = self->target->options;

  /* A forward inside a recompute is a part of a backward. */
  if (ebb_modes.recomputing > 0
      || (!options->synchronize && !options->profile))
    return TRUE;
  self->devices = g_ptr_array_new ();
  add_devices_of_args (self, self->call_args);
  for (guint i = 0; i < modules->len; i++)
    add_devices_of_module (self, g_ptr_array_index (modules, i));
  if (!synchronize (self, error))
    return FALSE;
  self->begun = g_get_monotonic_time ();
  return TRUE;
}

EbbArgs *
ebb_frame_end_forward (EbbCheckpointFrame *self,
                       EbbArgs *result,
                       GError **error)
{
  gint64 begun = self->begun;

  self->begun = 0;
  if (self->devices == NULL || result == NULL)
    return result;
  /* Of tensors that a function has not found in its arguments. */
  for (guint i = 0; i < self->slots->len; i++)
    add_device (self, ebb_frame_slot (self, i)->device);
  add_devices_of_args (self, result);
  if (!synchronize (self, error))
    {
      ebb_args_unref (result);
      return NULL;
    }
  report_time (self, TRUE, (guint64) (g_get_monotonic_time () - begun));
  return result;
}

/* -- backward ------------------------------------------------------------------------------------------------------ */

gboolean
ebb_frame_begin_backward (EbbCheckpointFrame *self,
                          GError **error)
{
  if (G_LIKELY (self->devices == NULL) || self->begun != 0 || self->call_args != NULL || !ebb_modes.in_backward)
    return TRUE;
  if (!synchronize (self, error))
    return FALSE;
  self->begun = g_get_monotonic_time ();
  self->passing = &ebb_thread;
  ebb_frame_call_at_end (self);
  return TRUE;
}

static gboolean
end_backward (EbbCheckpointFrame *self,
              GError **error)
{
  gint64 begun = self->begun;

  if (G_LIKELY (self->devices == NULL) || begun == 0)
    return TRUE;
  self->begun = 0;
  if (!synchronize (self, error))
    return FALSE;
  report_time (self, FALSE, (guint64) (g_get_monotonic_time () - begun));
  return TRUE;
}

static gboolean
node_is_done (gpointer data,
              GError **error)
{
  gboolean ok = end_backward (data, error);

  g_object_unref (data);
  return ok;
}

void
ebb_frame_leave_backward (EbbCheckpointFrame *self)
{
  if (G_UNLIKELY (self->devices != NULL) && self->begun != 0 && self->passing == (gpointer) &ebb_thread)
    ebb_backward_call_after_node (node_is_done, g_object_ref (self));
}

void
ebb_frame_drop_unpacked (EbbCheckpointFrame *self)
{
  for (guint i = 0; i < self->inputs->len; i++)
    g_clear_pointer (&ebb_frame_input (self, i)->unpacked, ebb_tensor_unref);
}

void
ebb_frame_drop_values (EbbCheckpointFrame *self)
{
  for (guint i = 0; i < self->slots->len; i++)
    ebb_slot_clear (ebb_frame_slot (self, i));
}

static gboolean
backward_ended (gpointer data,
                GError **error)
{
  EbbCheckpointFrame *self = data;
  gboolean ok = end_backward (self, error);

  self->at_end = FALSE;
  if (!self->target->options->retain_recomputed)
    ebb_frame_drop_values (self);
  ebb_frame_drop_unpacked (self);
  g_object_unref (self);
  return ok;
}

void
ebb_frame_call_at_end (EbbCheckpointFrame *self)
{
  if (self->at_end || !ebb_modes.in_backward)
    return;
  self->at_end = TRUE;
  ebb_backward_call_at_end (backward_ended, g_object_ref (self));
}

/* The mark would not do: two frames have the same one if nothing was made between them. */
guint64
ebb_frame_take_number (void)
{
  static guint64 last;

  return __atomic_add_fetch (&last, 1, __ATOMIC_RELAXED);
}

EbbDeterminismCheck
ebb_frame_get_check (EbbCheckpointFrame *self)
{
  return self->target->options->determinism_check;
}

/* -- counters and training flags of modules ------------------------------------------------------------------------ */

typedef struct
{
  EbbModuleWeak *module;
  gboolean training; /* in the forward; during the recompute, the flag from before it */
} Entry;

static void
entry_clear (gpointer data)
{
  ebb_module_weak_free (((Entry *) data)->module);
}

/* Notes the training flags of the modules and all inside them. */
void
ebb_frame_enter_modules (EbbCheckpointFrame *self,
                         GPtrArray *modules)
{
  g_autoptr (GPtrArray) all = NULL;

  if (modules->len == 0)
    return;
  all = ebb_checkpoint_target_expand (modules);
  self->modules = g_array_sized_new (FALSE, FALSE, sizeof (Entry), all->len);
  g_array_set_clear_func (self->modules, entry_clear);
  for (guint i = 0; i < all->len; i++)
    {
      EbbModule *module = g_ptr_array_index (all, i);
      Entry entry = { ebb_module_weak_new (module), ebb_module_get_training (module) };

      g_array_append_val (self->modules, entry);
    }
}

/* Children may have come or gone since the forward began. */
static void
count (EbbCheckpointFrame *self,
       int delta)
{
  self->is_counted = delta > 0;
  for (guint i = 0; self->modules != NULL && i < self->modules->len; i++)
    {
      g_autoptr (EbbModule) module = ebb_module_weak_get (g_array_index (self->modules, Entry, i).module);

      if (module != NULL)
        ebb_module_add_to_forward_counter (module, delta);
    }
}

/* Once for each frame, when its forward has come to its end, as in FairScale: what runs inside finds the forwards
 * before it. A forward inside a recompute is no new one. */
void
ebb_frame_count_up (EbbCheckpointFrame *self)
{
  if (ebb_modes.recomputing == 0)
    count (self, 1);
}

/* Once for each frame: when its recompute has come to its end, or when it is dropped. */
void
ebb_frame_count_down (EbbCheckpointFrame *self)
{
  if (self->is_counted)
    count (self, -1);
}

/* Gives each module the flag that it had in the forward, and notes the one it has; called again, puts these back. Each
 * by itself: a module that is shared may come before one of its parents. No property is notified. */
void
ebb_frame_swap_training (EbbCheckpointFrame *self)
{
  for (guint i = 0; self->modules != NULL && i < self->modules->len; i++)
    {
      Entry *entry = &g_array_index (self->modules, Entry, i);
      g_autoptr (EbbModule) module = ebb_module_weak_get (entry->module);
      gboolean now = module != NULL && ebb_module_get_training (module);

      if (module != NULL)
        ebb_module_get_private (module)->training = entry->training != FALSE;
      entry->training = now;
    }
}
