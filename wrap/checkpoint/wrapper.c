/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Wraps modules and functions so that their forwards are checkpointed. */
#include "wrap/checkpoint/wrapper.h"

#include "nn/layers/module-list.h"
#include "tensor/error-private.h"
#include "wrap/checkpoint/stack-private.h"
#include "wrap/checkpoint/frame-private.h"
#include "wrap/checkpoint/options-private.h"

/* Wrapping installs an interceptor on the module, which owns it. The interceptor has a weak reference to the module. */

static EbbArgs *
checkpointed_forward (EbbModule *module,
                      EbbArgs *args,
                      const EbbForwardChain *inside,
                      gpointer user_data,
                      GError **error)
{
  if (ebb_checkpoint_is_plain ())
    return ebb_forward_chain_call (inside, module, args, error);
  ebb_checkpoint_savings_judge (((EbbCheckpointTarget *) user_data)->savings, module);
  return ebb_checkpoint_frame_run (user_data, inside, args, error);
}

static gboolean
is_idle (gpointer user_data)
{
  return ebb_checkpoint_is_plain ();
}

/* -- wrapping ------------------------------------------------------------------------------------------------------ */

static void
wrap (EbbModule *module,
      EbbCheckpointOptions *options)
{
  EbbCheckpointTarget *target = ebb_checkpoint_target_new (module, options);
  gboolean is_first = !ebb_checkpoint_is_wrapped (module);

  if (options == NULL || !options->is_planned)
    target->savings = ebb_checkpoint_savings_get (G_OBJECT_TYPE (module));
  ebb_module_add_idle_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR, checkpointed_forward, is_idle, target,
                                   (GDestroyNotify) ebb_checkpoint_target_unref, &target->interceptor);
  if (is_first)
    ebb_module_notify_activation_checkpointing (module);
}

/**
 * ebb_checkpoint_wrapper:
 * @module: a module
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Wraps a module in place: from now on, the activations inside it are freed after its forward and recomputed, bit for
 * bit, in the backward pass. Type, properties, names of parameters and state dict stay what they were. Wrapping twice
 * nests.
 *
 * Returns: (transfer full) (nullable): @module
 */
EbbModule *
ebb_checkpoint_wrapper (EbbModule *module,
                        EbbCheckpointOptions *options,
                        GError **error)
{
  if (!EBB_MAY_BEGIN (error, module))
    return NULL;
  wrap (module, options);
  return g_object_ref (module);
}

/**
 * ebb_checkpoint_unwrap:
 * @module: a module
 *
 * Takes the outermost checkpoint wrapper off; the chunks of ebb_checkpoint_wrap_uniform() are the innermost one.
 *
 * Returns: %FALSE if there is none
 */
gboolean
ebb_checkpoint_unwrap (EbbModule *module)
{
  guint id;

  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  if (!ebb_checkpoint_is_wrapped (module))
    return FALSE;
  id = ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR);
  if (id != 0)
    ebb_module_remove_interceptor (module, id);
  else
    ebb_checkpoint_stack_unwrap (module);
  if (!ebb_checkpoint_is_wrapped (module))
    ebb_module_notify_activation_checkpointing (module);
  return TRUE;
}

/**
 * ebb_checkpoint_is_wrapped:
 * @module: a module
 *
 * Returns: %TRUE if a checkpoint wrapper, or a division into chunks, is on @module
 */
gboolean
ebb_checkpoint_is_wrapped (EbbModule *module)
{
  g_return_val_if_fail (EBB_IS_MODULE (module), FALSE);

  return ebb_module_find_interceptor (module, EBB_CHECKPOINT_INTERCEPTOR) != 0
         || ebb_checkpoint_stack_is_wrapped (module);
}

static void
wrap_all (GPtrArray *modules,
          EbbCheckpointOptions *options)
{
  for (guint i = 0; i < modules->len; i++)
    wrap (modules->pdata[i], options);
}

/**
 * ebb_checkpoint_wrap_if:
 * @root: where to look
 * @pick: (scope call) (closure user_data): says which modules to wrap
 * @user_data: user data
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Wraps every module below @root, and @root itself, that @pick picks. Which ones is decided before the first is
 * wrapped.
 *
 * Returns: %FALSE with an error
 */
gboolean
ebb_checkpoint_wrap_if (EbbModule *root,
                        EbbCheckpointPickFunc pick,
                        gpointer user_data,
                        EbbCheckpointOptions *options,
                        GError **error)
{
  g_autoptr (GPtrArray) modules = NULL;

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  modules = ebb_module_select (root, pick, user_data);
  wrap_all (modules, options);
  return TRUE;
}

/**
 * ebb_checkpoint_wrap_each:
 * @root: where to look
 * @type: a type of modules, as %EBB_TYPE_BLOCK
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Wraps every module of @type (or derived from it) below @root, and @root itself.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is none
 */
gboolean
ebb_checkpoint_wrap_each (EbbModule *root,
                          GType type,
                          EbbCheckpointOptions *options,
                          GError **error)
{
  g_autoptr (GPtrArray) modules = NULL;

  if (!EBB_MAY_BEGIN (error, root))
    return FALSE;
  modules = ebb_module_select_each (root, type, error);
  if (modules != NULL)
    wrap_all (modules, options);
  return modules != NULL;
}

/* -- functions ----------------------------------------------------------------------------------------------------- */

/**
 * ebb_checkpoint:
 * @func: (scope notified) (closure user_data) (destroy destroy): what to do; must do the same each time it is called
 * @user_data: user data
 * @destroy: frees @user_data when no backward needs @func any more
 * @args: the arguments
 * @options: (nullable): how; %NULL for the defaults
 * @error: return location for an error
 *
 * Calls a function as ebb_checkpoint_wrapper() would have a module called.
 *
 * Returns: (transfer full) (nullable): the result of @func
 */
EbbArgs *
ebb_checkpoint (EbbCheckpointFunc func,
                gpointer user_data,
                GDestroyNotify destroy,
                EbbArgs *args,
                EbbCheckpointOptions *options,
                GError **error)
{
  EbbCheckpointTarget *target;
  EbbArgs *result;

  if (!EBB_MAY_BEGIN (error, args))
    {
      if (destroy != NULL)
        destroy (user_data);
      return NULL;
    }
  target = ebb_checkpoint_target_new_func ("a checkpointed function", func, user_data, destroy, NULL, 0, options);
  if (ebb_checkpoint_is_plain ())
    result = ebb_checkpoint_target_run (target, NULL, args, error);
  else
    result = ebb_checkpoint_frame_run (target, NULL, args, error);
  ebb_checkpoint_target_unref (target);
  return result;
}

/* -- the property of modules --------------------------------------------------------------------------------------- */

static gboolean
set_activation_checkpointing (EbbModule *module,
                              gboolean enabled,
                              GError **error)
{
  g_autoptr (EbbModule) held = g_object_ref (module); /* a handler of the notification may drop it */

  if (enabled && EBB_IS_MODULE_LIST (module))
    return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED,
                     "%s: activation_checkpointing would do nothing, since a list is never called itself: set it on "
                     "the modules of the list, or use ebb_checkpoint_wrap_uniform ()",
                     ebb_module_get_type_name (module));
  if (enabled)
    wrap (held, NULL);
  else
    while (ebb_checkpoint_unwrap (held))
      ;
  return TRUE;
}

/* The static library's users get this file, and with it the property, whether they wrap or not: see EbbLibrary.cmake.
 */
static void __attribute__ ((constructor))
register_property (void)
{
  static const EbbActivationCheckpointingFuncs funcs = { ebb_checkpoint_is_wrapped, set_activation_checkpointing };

  ebb_module_set_activation_checkpointing_funcs (&funcs);
}
