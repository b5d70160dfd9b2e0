/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs the forward of a frame again, with the modes, generators and training flags that it had. */
#include "wrap/checkpoint/options-private.h"
#include "wrap/checkpoint/frame-private.h"
#include "tensor/autograd/parameter-owner-private.h"

#include "tensor/profile/profiler-private.h"

/* -- generators ---------------------------------------------------------------------------------------------------- */

static void
draw_clear (gpointer draw)
{
  g_object_unref (((EbbDraw *) draw)->generator);
}

GArray *
ebb_draws_new (void)
{
  GArray *draws = g_array_new (FALSE, FALSE, sizeof (EbbDraw));

  g_array_set_clear_func (draws, draw_clear);
  return draws;
}

void
ebb_draws_note (GArray *draws,
                EbbGenerator *generator)
{
  EbbDraw draw = { generator, ebb_generator_get_seed (generator), ebb_generator_get_offset (generator) };

  for (guint i = 0; i < draws->len; i++)
    if (g_array_index (draws, EbbDraw, i).generator == generator)
      return;
  g_object_ref (generator);
  g_array_append_val (draws, draw);
}

/* The observers do not see it: outer frames would take the state in between for one that they began with. */
void
ebb_draws_put_back (GArray *draws)
{
  EbbOpObserver *observers = ebb_modes.observers;

  ebb_modes.observers = NULL;
  for (guint i = 0; i < draws->len; i++)
    {
      const EbbDraw *draw = &g_array_index (draws, EbbDraw, i);

      ebb_generator_set_state (draw->generator, draw->seed, draw->offset);
    }
  ebb_modes.observers = observers;
}

/* Puts the generators where they were before the forward; self->current notes where to put them back. */
static void
rewind_generators (EbbCheckpointFrame *self)
{
  self->current = ebb_draws_new ();
  if (!self->target->options->preserve_rng_state)
    return;
  for (guint i = 0; i < self->draws->len; i++)
    ebb_draws_note (self->current, g_array_index (self->draws, EbbDraw, i).generator);
  ebb_draws_put_back (self->draws);
}

static void
return_generators (EbbCheckpointFrame *self,
                   gboolean failed)
{
  if (failed || self->target->options->preserve_rng_state)
    ebb_draws_put_back (self->current);
  g_clear_pointer (&self->current, g_array_unref);
}

/* -- running again ------------------------------------------------------------------------------------------------- */

static guint
count_needed (EbbCheckpointFrame *self)
{
  guint n = self->slots->len;

  while (n > 0 && ebb_frame_slot (self, n - 1)->n_wanted == 0)
    n--;
  return n;
}

/* Enters the modes of the forward, in which this frame alone packs saved tensors. */
static EbbModes
enter (EbbCheckpointFrame *self)
{
  EbbModes modes = self->modes;

  self->recomputing = TRUE;
  self->stopped = FALSE;
  self->next_slot = self->next_result = self->n_ops = 0;
  self->n_slots_needed = count_needed (self);
  rewind_generators (self);
  self->mark = ebb_storage_get_next_birth ();
  modes.frame = ebb_frame_take_number ();
  modes.rematerialization_log = &self->rematerialization_log;
  self->rematerialization_log.repeats = TRUE;
  self->rematerialization_log.next = 0;
  self->observer.base.outer = NULL;
  modes.stopped = 0;
  modes.in_backward = ebb_modes.in_backward;
  modes.recomputing = ebb_modes.recomputing + 1;
  modes.hooks = EBB_SAVED_TENSOR_HOOKS (self);
  modes.observers = &self->observer.base;
  modes.slots[ebb_checkpoint_slot] = NULL;
  return ebb_modes_enter (&modes);
}

/* Whether the recompute has filled the slots and left the inputs alone. */
static gboolean
check_run (EbbCheckpointFrame *self,
           GError **error)
{
  if (self->next_slot >= self->n_slots_needed)
    return ebb_frame_check_inputs (self, error);
  return ebb_fail (
      error, EBB_ERROR_RECOMPUTE,
      "it saves %u of the %u tensors of the forward, where the next was saved by %s; " EBB_RECOMPUTE_CAUSES,
      self->next_slot, self->slots->len, ebb_frame_slot (self, self->next_slot)->op->name);
}

/* The forward ended early, because it read data of a placeholder after the early stop. */
static gboolean
is_early_end (EbbCheckpointFrame *self,
              GError *error)
{
  return self->stopped && error != NULL && g_error_matches (error, EBB_ERROR, EBB_ERROR_STOP);
}

static gboolean
run_again (EbbCheckpointFrame *self,
           GPtrArray *modules,
           EbbArgs *args,
           GError **error)
{
  EbbOpObserver *outer = self->observer.base.outer;
  EbbModes modes;
  /* Of the forward, which may be going on: it may run a backward pass itself. */
  const guint64 mark = self->mark;
  const guint n_ops = self->n_ops, n_products = self->n_products, n_cached = self->cached->len;
  EbbProfileMark mark_of_profile = ebb_profile_push_range ("recompute", EBB_PHASE_RECOMPUTE);
  EbbArgs *result;
  GError *local = NULL;

  ebb_frame_swap_training (self);
  modes = enter (self);
  result = ebb_checkpoint_target_run (self->target, modules, args, &local);
  if (result != NULL)
    ebb_args_unref (result);
  ebb_modes_leave (&modes);
  self->observer.base.outer = outer;
  if (is_early_end (self, local))
    g_clear_error (&local);
  return_generators (self, local != NULL);
  ebb_frame_swap_training (self);
  g_array_set_size (self->cached, n_cached);
  self->mark = mark;
  self->n_ops = n_ops;
  self->n_products = n_products;
  self->recomputing = FALSE;
  self->rematerialization_log.repeats = FALSE;
  ebb_profile_pop (mark_of_profile);
  if (local == NULL)
    return check_run (self, error);
  return ebb_fail_with (error, local);
}

/* Between the callbacks; the one at the end is called however it went. */
static gboolean
run_announced (EbbCheckpointFrame *self,
               GPtrArray *modules,
               EbbArgs *args,
               GError **error)
{
  EbbCheckpointTally *tally = &self->target->tally;
  EbbModule *module = self->target->func == NULL ? g_ptr_array_index (modules, 0) : NULL;
  gint64 begin;
  gboolean ok;

  if (!ebb_checkpoint_options_announce (self->target->options, module, EBB_RECOMPUTE_BEGIN, error))
    return FALSE;
  begin = g_get_monotonic_time ();
  ok = run_again (self, modules, args, error);
  tally->recompute_us += (guint64) (g_get_monotonic_time () - begin);
  tally->n_recomputes++;
  return ebb_checkpoint_options_announce (self->target->options, module, EBB_RECOMPUTE_END, ok ? error : NULL) && ok;
}

/* Whether each module that runs again has its own parameter owner, which enters inside the frame. */
static gboolean
have_own_owners (EbbCheckpointFrame *self,
                 GPtrArray *modules)
{
  for (guint i = 0; i < modules->len; i++)
    {
      EbbParameterOwner *owner = ebb_module_get_parameter_owner (g_ptr_array_index (modules, i));

      if (owner == NULL || (self->owners != NULL && g_ptr_array_find (self->owners, owner, NULL)))
        return FALSE;
    }
  return modules->len > 0;
}

gboolean
ebb_frame_recompute (EbbCheckpointFrame *self,
                     GError **error)
{
  g_autoptr (GPtrArray) modules = NULL;
  g_autoptr (EbbArgs) args = NULL;
  gboolean ok;

  if (self->recomputing)
    return ebb_fail (error, EBB_ERROR_RECOMPUTE, "%s: its recompute is running and needs its own result",
                     ebb_in_message (ebb_checkpoint_target_describe (self->target)));
  modules = ebb_checkpoint_target_get_modules (self->target, error);
  if (modules == NULL)
    return FALSE;
  ebb_frame_call_at_end (self);
  /* The recompute reads parameters of the modules whose forward it is a part of. */
  if (ebb_parameter_owners_prepare_recompute (self->owners, !have_own_owners (self, modules), error))
    args = ebb_frame_restore_args (self, error);
  ok = args != NULL && run_announced (self, modules, args, error);
  if (!ok)
    {
      g_autofree char *who = ebb_checkpoint_target_describe (self->target);

      g_prefix_error (error, "recompute of %s: ", who);
      ebb_frame_drop_values (self);
    }
  if (self->call_args == NULL)
    ebb_frame_count_down (self);
  ebb_checkpoint_level_subtract (&self->target->tally.dropped, self->dropped_bytes);
  ebb_checkpoint_savings_subtract (self->target->savings, self->dropped_bytes);
  self->dropped_bytes = 0;
  return ok;
}
