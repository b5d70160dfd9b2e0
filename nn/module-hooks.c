/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "tensor/error-private.h"

/* Runs the forward hooks of a module, and takes what they hand over in place of the arguments or of the result. */

typedef struct HookCall HookCall;

struct HookCall
{
  EbbModule *module;
  EbbArgs *value; /* handed over; owned */
  HookCall *outer;
};

static _Thread_local HookCall *innermost;

gboolean
ebb_forward_hook_run (EbbForwardHook hook,
                      gpointer user_data,
                      EbbModule *module,
                      EbbArgs **args,
                      EbbArgs **result,
                      GError **error)
{
  HookCall call = { module, NULL, innermost };
  EbbArgs **target = result != NULL ? result : args;
  gboolean done;

  innermost = &call;
  done = hook (module, *args, result != NULL ? *result : NULL, user_data, error);
  innermost = call.outer;
  if (!done && error != NULL && *error == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s: a forward hook failed without saying why",
                 ebb_module_get_type_name (module));
  done = done && (call.value == NULL || ebb_args_check_depth (call.value, error));
  if (done && call.value != NULL)
    {
      ebb_args_unref (*target);
      *target = g_steal_pointer (&call.value);
    }
  g_clear_pointer (&call.value, ebb_args_unref);
  return done;
}

/**
 * ebb_module_hand_over:
 * @self: a module, one of whose forward hooks is running on this thread
 * @value: what takes the place of its arguments, from a pre-hook, or of its result
 * @error: return location for an error
 *
 * Hands over arguments or a result from an #EbbForwardHook. The hooks that come later, forward, and the caller see
 * @value once the hook has returned %TRUE. Of several calls in one hook the last counts.
 *
 * Returns: %TRUE, or %FALSE with %EBB_ERROR_INVALID_ARGUMENT if no hook of @self is running
 */
gboolean
ebb_module_hand_over (EbbModule *self, EbbArgs *value, GError **error)
{
  if (!EBB_MAY_BEGIN (error, self, value))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (innermost == NULL || innermost->module != self)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "%s: hand_over: no forward hook of this module is running on this thread; call it in the hook",
                   ebb_module_get_type_name (self));
      return FALSE;
    }
  g_clear_pointer (&innermost->value, ebb_args_unref);
  innermost->value = ebb_args_ref (value);
  return TRUE;
}
