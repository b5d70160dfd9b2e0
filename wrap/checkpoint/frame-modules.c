/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"
#include "wrap/checkpoint/frame-private.h"

/* What a frame does to the modules that it stands for: their forward counters and training flags. */

typedef struct
{
  EbbModuleWeak *module;
  gboolean training; /* in the forward; while it is run again, what it was in between */
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
      Entry entry = { ebb_module_get_weak (module), ebb_module_get_training (module) };

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
 * by itself: a module that is shared may come before one of its parents. Nobody is notified. */
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
