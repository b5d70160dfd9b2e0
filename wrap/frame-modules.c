/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"
#include "wrap/frame-private.h"

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

/* Notes the training flags of the modules and all inside them, and counts the forward. A recompute's is no new one. */
void
ebb_frame_enter_modules (EbbCheckpointFrame *self,
                         GPtrArray *modules)
{
  g_autoptr (GPtrArray) all = NULL;

  if (modules->len == 0)
    return;
  all = ebb_checkpoint_target_expand (modules);
  self->is_counted = ebb_thread.recomputing == 0;
  self->modules = g_array_sized_new (FALSE, FALSE, sizeof (Entry), all->len);
  g_array_set_clear_func (self->modules, entry_clear);
  for (guint i = 0; i < all->len; i++)
    {
      EbbModule *module = g_ptr_array_index (all, i);
      Entry entry = { ebb_module_get_weak (module), ebb_module_get_training (module) };

      g_array_append_val (self->modules, entry);
      if (self->is_counted)
        ebb_module_add_to_forward_counter (module, 1);
    }
}

/* Once for each frame: when it is recomputed, or dropped. Children may have come or gone since the forward. */
void
ebb_frame_count_down (EbbCheckpointFrame *self)
{
  gboolean was_counted = self->is_counted;

  self->is_counted = FALSE;
  for (guint i = 0; was_counted && i < self->modules->len; i++)
    {
      g_autoptr (EbbModule) module = ebb_module_weak_get (g_array_index (self->modules, Entry, i).module);

      if (module != NULL)
        ebb_module_add_to_forward_counter (module, -1);
    }
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
