/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/tracker-state-private.h"

#include "nn/args-private.h"
#include "nn/state/training-state-private.h"

/* The tracker's part of a training state. */

static EbbArgs *
get_states (void)
{
  EbbArgs *states = ebb_generator_tracker_get_states (ebb_generator_tracker_get_default ());

  if (ebb_args_get_length (states) == 0)
    g_clear_pointer (&states, ebb_args_unref);
  return states;
}

static gboolean
set_states (EbbArgs *states,
            gboolean check_only,
            GError **error)
{
  g_autoptr (EbbGeneratorTracker) scratch = check_only ? ebb_generator_tracker_new () : NULL;

  return ebb_generator_tracker_set_states (check_only ? scratch : ebb_generator_tracker_get_default (), states, error);
}

void
ebb_tracker_state_install (void)
{
  static const EbbNamedGenerators funcs = { get_states, set_states };

  ebb_training_state_set_named_generators (&funcs);
}

EbbArgs *
ebb_tracker_state_advance (EbbArgs *saved)
{
  g_autoptr (EbbArgs) own = ebb_generator_tracker_get_states (ebb_generator_tracker_get_default ());
  EbbArgs *states = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < ebb_args_get_length (own); i++)
    {
      const char *name = ebb_args_get_key (own, i);
      EbbArgs *state = ebb_args_peek_args (own, i);
      int there = ebb_args_find (saved, name);
      EbbArgs *other = there >= 0 ? ebb_args_peek_args (saved, (guint) there) : NULL;
      int offset = other != NULL ? ebb_args_find (other, "offset") : -1;
      g_autoptr (EbbArgs) moved = ebb_args_new (EBB_ARGS_DICT);

      for (guint k = 0; k < ebb_args_get_length (state); k++)
        if (offset >= 0 && g_str_equal (ebb_args_get_key (state, k), "offset"))
          ebb_args_add_value (moved, "offset", other, (guint) offset);
        else
          ebb_args_add_value (moved, ebb_args_get_key (state, k), state, k);
      ebb_args_add_args (states, name, moved);
    }
  return states;
}
