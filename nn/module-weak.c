/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"

/* Not a GWeakRef: getting that takes a reference under a lock of GLib's own, which tells a binding's wrapper, which
 * waits for its interpreter, while another thread of the interpreter waits for the lock. Here the lock is the module's.
 */
struct _EbbModuleWeak
{
  int ref_count;
  GMutex lock;
  EbbModule *module; /* NULL: gone */
};

static EbbModuleWeak *
weak_ref (EbbModuleWeak *weak)
{
  __atomic_add_fetch (&weak->ref_count, 1, __ATOMIC_RELAXED);
  return weak;
}

EbbModuleWeak *
ebb_module_get_weak (EbbModule *self)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbModuleWeak *weak = g_atomic_pointer_get (&priv->weak);

  if (weak == NULL)
    {
      weak = g_new0 (EbbModuleWeak, 1);
      weak->ref_count = 1;
      weak->module = self;
      g_mutex_init (&weak->lock);
      if (!g_atomic_pointer_compare_and_exchange (&priv->weak, NULL, weak))
        {
          ebb_module_weak_free (weak);
          weak = g_atomic_pointer_get (&priv->weak);
        }
    }
  return weak_ref (weak);
}

EbbModule *
ebb_module_weak_get (EbbModuleWeak *weak)
{
  EbbModule *module;

  g_mutex_lock (&weak->lock);
  module = weak->module != NULL ? g_object_ref (weak->module) : NULL;
  g_mutex_unlock (&weak->lock);
  return module;
}

void
ebb_module_weak_free (EbbModuleWeak *weak)
{
  if (__atomic_sub_fetch (&weak->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  g_mutex_clear (&weak->lock);
  g_free (weak);
}

void
ebb_module_weak_clear (EbbModulePrivate *priv)
{
  EbbModuleWeak *weak = g_atomic_pointer_get (&priv->weak);

  if (weak == NULL)
    return;
  g_mutex_lock (&weak->lock);
  weak->module = NULL;
  g_mutex_unlock (&weak->lock);
}
