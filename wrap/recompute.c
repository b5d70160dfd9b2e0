/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/checkpoint-options-private.h"
#include "wrap/frame-private.h"

/* Sets the training flags of @module and all inside it to @flags, and leaves there what they were. */
static void
swap_training (EbbModule *module,
               GByteArray *flags)
{
  g_autofree EbbModule **modules = NULL;
  g_autofree guint8 *old = NULL;
  guint n_modules;
  gboolean differ = FALSE;

  modules = ebb_module_get_modules (module, &n_modules);
  old = g_new (guint8, n_modules + 1);
  for (guint i = 0; i < n_modules; i++)
    {
      old[i] = (guint8) ebb_module_get_training (modules[i]);
      differ = differ || (i < flags->len && old[i] != flags->data[i]);
    }
  for (guint i = 0; i < n_modules; i++)
    {
      /* Parents come before children, so that setting a whole subtree is then corrected below. */
      if (differ && n_modules == flags->len)
        {
          ebb_module_set_training (modules[i], flags->data[i]);
          flags->data[i] = old[i];
        }
      g_object_unref (modules[i]);
    }
}

/* Puts the generators where they were before the forward; self->current notes where to put them back. */
static void
rewind_generators (EbbCheckpointFrame *self)
{
  self->current = g_array_new (FALSE, FALSE, sizeof (EbbDraw));
  g_array_set_clear_func (self->current, ebb_frame_clear_draw);
  if (!ebb_checkpoint_options_get_preserve_rng_state (self->target->options))
    return;
  for (guint i = 0; i < self->draws->len; i++)
    {
      const EbbDraw *draw = &g_array_index (self->draws, EbbDraw, i);

      ebb_frame_note_draw (self, draw->generator);
      ebb_generator_set_state (draw->generator, draw->seed, draw->offset);
    }
}

static void
return_generators (EbbCheckpointFrame *self)
{
  gboolean preserve = ebb_checkpoint_options_get_preserve_rng_state (self->target->options);

  for (guint i = 0; preserve && i < self->current->len; i++)
    {
      const EbbDraw *draw = &g_array_index (self->current, EbbDraw, i);

      ebb_generator_set_state (draw->generator, draw->seed, draw->offset);
    }
  g_clear_pointer (&self->current, g_array_unref);
}

/* As if at the time of the forward, with this frame alone at the door. */
static void
enter (EbbCheckpointFrame *self)
{
  self->recomputing = TRUE;
  self->stopped = FALSE;
  self->next_slot = self->next_kept = self->n_ops = 0;
  rewind_generators (self);
  self->mark = ebb_storage_get_next_birth ();
  self->watch.observer.outer = NULL;
  ebb_thread.no_grad = FALSE;
  ebb_thread.autocast = self->autocast;
  ebb_thread.autocast_dtype = self->autocast_dtype;
  ebb_thread.stopped = 0;
  ebb_thread.hooks = EBB_SAVED_TENSOR_HOOKS (self);
  ebb_thread.observers = &self->watch.observer;
  ebb_thread.checkpointing = 0;
  ebb_thread.checkpointing_disabled = 0; /* it was not, or there would be no frame */
  ebb_thread.recomputing++;
}

static gboolean
run_again (EbbCheckpointFrame *self,
           EbbModule *module,
           EbbArgs *args,
           GError **error)
{
  EbbThreadModes modes = ebb_thread_save_modes ();
  int checkpointing = ebb_thread.checkpointing, disabled = ebb_thread.checkpointing_disabled;
  EbbOpObserver *outer = self->watch.observer.outer;
  EbbArgs *result;
  GError *local = NULL;

  if (self->training != NULL)
    swap_training (module, self->training);
  enter (self);
  result = ebb_checkpoint_target_run (self->target, module, args, &local);
  if (result != NULL)
    ebb_args_unref (result);
  ebb_thread.recomputing--;
  ebb_thread.checkpointing = checkpointing;
  ebb_thread.checkpointing_disabled = disabled;
  ebb_thread_restore_modes (&modes);
  self->watch.observer.outer = outer;
  return_generators (self);
  if (self->training != NULL)
    swap_training (module, self->training);
  g_array_set_size (self->provided, 0);
  self->recomputing = FALSE;

  if (local != NULL && self->stopped && g_error_matches (local, EBB_ERROR, EBB_ERROR_STOP))
    g_clear_error (&local);
  if (local == NULL && self->next_slot < self->slots->len)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_RECOMPUTE,
                 "the recompute saves %u of the %u tensors of the forward; does it take another branch?",
                 self->next_slot, self->slots->len);
  if (local == NULL)
    return TRUE;
  g_propagate_prefixed_error (error, local, "recompute of %s: ", self->target->name);
  return FALSE;
}

gboolean
ebb_frame_recompute (EbbCheckpointFrame *self,
                     GError **error)
{
  g_autoptr (EbbModule) module = g_weak_ref_get (&self->target->module);
  g_autoptr (EbbArgs) args = NULL;
  gboolean ok;

  if (self->recomputing)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE, "%s: its recompute needs its own result", self->target->name);
      return FALSE;
    }
  if (self->target->func == NULL && module == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_GRAPH,
                   "%s: backward must recompute it, but the module was finalized after its forward; keep a reference "
                   "until backward is done",
                   self->target->name);
      return FALSE;
    }
  args = ebb_frame_restore_args (self, error);
  if (args == NULL)
    return FALSE;

  ebb_frame_call_at_end (self);
  ok = run_again (self, module, args, error) && ebb_frame_check_outers (self, error);
  if (!ok)
    ebb_frame_drop_values (self);
  ebb_frame_count_down (self);
  self->target->n_recomputes++;
  return ok;
}
