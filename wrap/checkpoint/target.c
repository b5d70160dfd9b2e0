/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The target of a checkpoint: how it is described, run and counted. */
#include "wrap/checkpoint/target-private.h"

#include "nn/args-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"

static EbbCheckpointTarget *
target_new (char *name,
            EbbModule *const *modules,
            guint n_modules,
            EbbCheckpointOptions *options)
{
  EbbCheckpointTarget *target = g_new0 (EbbCheckpointTarget, 1);

  target->ref_count = 1;
  target->name = name;
  target->modules = g_new0 (EbbModuleWeak *, n_modules);
  target->n_modules = n_modules;
  for (guint i = 0; i < n_modules; i++)
    target->modules[i] = ebb_module_weak_new (modules[i]);
  target->options = options ? g_object_ref (options) : ebb_checkpoint_options_new ();
  return target;
}

EbbCheckpointTarget *
ebb_checkpoint_target_new (EbbModule *module,
                           EbbCheckpointOptions *options)
{
  return target_new (g_strdup (G_OBJECT_TYPE_NAME (module)), &module, 1, options);
}

EbbCheckpointTarget *
ebb_checkpoint_target_new_func (const char *name,
                                EbbCheckpointFunc func,
                                gpointer data,
                                GDestroyNotify destroy,
                                EbbModule *const *modules,
                                guint n_modules,
                                EbbCheckpointOptions *options)
{
  EbbCheckpointTarget *target = target_new (g_strdup (name), modules, n_modules, options);

  target->func = func;
  target->data = data;
  target->destroy = destroy;
  return target;
}

EbbCheckpointTarget *
ebb_checkpoint_target_ref (EbbCheckpointTarget *target)
{
  __atomic_add_fetch (&target->ref_count, 1, __ATOMIC_RELAXED);
  return target;
}

void
ebb_checkpoint_target_unref (EbbCheckpointTarget *target)
{
  if (__atomic_sub_fetch (&target->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  for (guint i = 0; i < target->n_modules; i++)
    ebb_module_weak_free (target->modules[i]);
  g_free (target->modules);
  if (target->destroy != NULL)
    target->destroy (target->data);
  g_clear_object (&target->options);
  g_free (target->name);
  g_free (target);
}

char *
ebb_checkpoint_target_describe (EbbCheckpointTarget *target)
{
  g_autoptr (EbbModule) module = target->func == NULL ? ebb_module_weak_get (target->modules[0]) : NULL;
  g_autofree char *path = module ? ebb_module_get_path (module) : NULL;

  return path != NULL && *path != '\0' ? g_strdup_printf ("%s (%s)", path, target->name) : g_strdup (target->name);
}

GPtrArray *
ebb_checkpoint_target_get_modules (EbbCheckpointTarget *target,
                                   GError **error)
{
  g_autoptr (GPtrArray) modules = g_ptr_array_new_full (target->n_modules, g_object_unref);

  for (guint i = 0; i < target->n_modules; i++)
    {
      EbbModule *module = ebb_module_weak_get (target->modules[i]);

      if (module == NULL)
        return ebb_fail_null (error, EBB_ERROR_GRAPH,
                              target->func == NULL
                                  ? "%s: backward must recompute it, but the module was finalized after its forward; "
                                    "keep a reference until backward is done"
                                  : "%s: backward must recompute it, but a module that it calls was finalized after "
                                    "the forward; keep a reference until backward is done",
                              target->name);
      g_ptr_array_add (modules, module);
    }
  return g_steal_pointer (&modules);
}

GPtrArray *
ebb_checkpoint_target_expand (GPtrArray *modules)
{
  GPtrArray *all = g_ptr_array_new_with_free_func (g_object_unref);
  g_autoptr (GHashTable) seen = modules->len > 1 ? g_hash_table_new (NULL, NULL) : NULL;

  for (guint i = 0; i < modules->len; i++)
    {
      guint n;
      g_autofree EbbModule **below = ebb_module_get_modules (g_ptr_array_index (modules, i), &n);

      for (guint j = 0; j < n; j++)
        if (seen == NULL || g_hash_table_add (seen, below[j]))
          g_ptr_array_add (all, below[j]);
        else
          g_object_unref (below[j]);
    }
  return all;
}

EbbArgs *
ebb_checkpoint_target_run (EbbCheckpointTarget *target,
                           GPtrArray *modules,
                           EbbArgs *args,
                           GError **error)
{
  GError *local = NULL;
  EbbArgs *result;

  if (target->func == NULL)
    return ebb_module_call_inside (g_ptr_array_index (modules, 0), target->interceptor, args, error);
  if (!ebb_args_check_depth (args, error))
    return NULL;
  if (!ebb_thread_deepen ())
    {
      ebb_thread_report_depth (target->name, error);
      return NULL;
    }
  result = target->func (args, target->data, &local);
  ebb_thread.call_depth--;
  if (result == NULL && local == NULL)
    g_set_error (&local, EBB_ERROR, EBB_ERROR_CALLBACK, "%s failed without saying why", target->name);
  if (result != NULL && local == NULL)
    ebb_args_check_depth (result, &local);
  if (local != NULL)
    {
      g_clear_pointer (&result, ebb_args_unref);
      g_propagate_error (error, local);
    }
  return result;
}

/* -- tally --------------------------------------------------------------------------------------------------------- */

void
ebb_checkpoint_level_add (EbbCheckpointLevel *level,
                          guint64 n_bytes)
{
  guint64 now = __atomic_add_fetch (&level->now, n_bytes, __ATOMIC_RELAXED);
  guint64 peak = __atomic_load_n (&level->peak, __ATOMIC_RELAXED);

  while (now > peak
         && !__atomic_compare_exchange_n (&level->peak, &peak, now, TRUE, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    ;
}

void
ebb_checkpoint_level_subtract (EbbCheckpointLevel *level,
                               guint64 n_bytes)
{
  __atomic_sub_fetch (&level->now, n_bytes, __ATOMIC_RELAXED);
}
