/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"
#include "nn/module-instance-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"

/* A class may implement forward, forward1 or both, and its ancestor the other one. A subclass that overrides forward
 * alone must not be bypassed by the forward1 that it inherits, nor the other way round. So which of the two was
 * overridden nearer to the class is found once and kept in the class. A class begins as a copy of its parent, and
 * bindings set its functions late: the copy tells itself by its address and by the functions it was made for. */
typedef enum
{
  DISPATCH_EACH = 1, /* both at the same level: each as it is */
  DISPATCH_FORWARD,  /* forward is nearer */
  DISPATCH_FORWARD1, /* forward1 is nearer */
} Dispatch;

static Dispatch
find_dispatch (EbbModuleClass *klass)
{
  for (GType type = G_TYPE_FROM_CLASS (klass); type != EBB_TYPE_MODULE; type = g_type_parent (type))
    {
      const EbbModuleClass *own = g_type_class_peek (type);
      const EbbModuleClass *parent = g_type_class_peek (g_type_parent (type));
      gboolean has_forward = own->forward != parent->forward;
      gboolean has_forward1 = own->forward1 != parent->forward1;

      if (has_forward || has_forward1)
        return has_forward && has_forward1 ? DISPATCH_EACH : has_forward ? DISPATCH_FORWARD
                                                                         : DISPATCH_FORWARD1;
    }
  return DISPATCH_EACH;
}

static inline Dispatch
class_get_dispatch (EbbModuleClass *klass)
{
  /* Several threads may call a class for the first time: they all write the same. */
  if (G_UNLIKELY (__atomic_load_n (&klass->dispatch[0], __ATOMIC_ACQUIRE) != (gpointer) klass
                  || __atomic_load_n (&klass->dispatch[1], __ATOMIC_RELAXED) != (gpointer) klass->forward
                  || __atomic_load_n (&klass->dispatch[2], __ATOMIC_RELAXED) != (gpointer) klass->forward1))
    {
      __atomic_store_n (&klass->dispatch[1], (gpointer) klass->forward, __ATOMIC_RELAXED);
      __atomic_store_n (&klass->dispatch[2], (gpointer) klass->forward1, __ATOMIC_RELAXED);
      __atomic_store_n (&klass->dispatch[3], GUINT_TO_POINTER (find_dispatch (klass)), __ATOMIC_RELAXED);
      __atomic_store_n (&klass->dispatch[0], (gpointer) klass, __ATOMIC_RELEASE);
    }
  return (Dispatch) GPOINTER_TO_UINT (__atomic_load_n (&klass->dispatch[3], __ATOMIC_RELAXED));
}

/* Who reported an error last: lets each module above prepend the path to it, at no cost where nothing fails. Modules
 * and errors are compared, never followed. */
static _Thread_local struct
{
  const GError *error;
  guint message_hash;
  const EbbModule *module;
  gboolean has_path;
} last_failure;

typedef struct
{
  const EbbModule *sought;
  char *path;
} PathSearch;

static gboolean
compare_module (EbbModule *module, const char *path, gpointer user_data)
{
  PathSearch *search = user_data;

  if (module != search->sought || *path == '\0')
    return TRUE;
  search->path = g_strdup (path);
  return FALSE;
}

/* Calls deeper than this are missing in the path, which is for people. */
#define MAX_PATH_DEPTH 64

/* What a call that returned nothing leaves behind: an error in any case, with the path of the module below @self that
 * it comes from, as in "h.3.attn.c_proj: linear: ...". */
static void
report_failure (EbbModule *self, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);

  if (error == NULL)
    return;
  if (!priv->is_built && g_error_matches (*error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT)) /* for want of parameters */
    g_clear_error (error);
  if (*error == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK,
                 priv->is_built ? "%s: forward failed without saying why"
                                : "%s: called before it was initialised, see g_initable_init ()",
                 ebb_module_get_type_name (self));
  if (g_error_matches (*error, EBB_ERROR, EBB_ERROR_STOP) || ebb_thread.call_depth > MAX_PATH_DEPTH)
    return;

  if (last_failure.error != *error || last_failure.message_hash != g_str_hash ((*error)->message))
    last_failure.has_path = FALSE;
  else if (last_failure.module != self)
    {
      PathSearch search = { last_failure.module, NULL };

      ebb_module_visit (self, compare_module, &search);
      if (search.path != NULL)
        {
          g_prefix_error (error, "%s%s", search.path, last_failure.has_path ? "." : ": ");
          last_failure.has_path = TRUE;
        }
      g_free (search.path);
    }
  last_failure.error = *error;
  last_failure.message_hash = g_str_hash ((*error)->message);
  last_failure.module = self;
}

EbbTensor *
ebb_module_take_only_tensor (EbbModule *self, EbbArgs *result, GError **error)
{
  EbbTensor *tensor = ebb_args_peek_only_tensor (result);
  g_autofree char *text = NULL;

  if (result == NULL)
    return NULL;
  if (tensor != NULL)
    return ebb_tensor_ref (tensor);
  text = ebb_args_to_string (result);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: one tensor was asked for, but it gave %s",
               ebb_module_get_type_name (self), text);
  return NULL;
}

EbbTensor *
ebb_module_call_for_tensor (EbbModule *self, EbbArgs *args, GError **error)
{
  g_autoptr (EbbArgs) result = ebb_module_call (self, args, error);

  return ebb_module_take_only_tensor (self, result, error);
}

EbbArgs *
ebb_module_default_forward (EbbModule *self, EbbArgs *args, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbModuleClass *klass = EBB_MODULE_GET_CLASS (self);
  EbbTensor *input = ebb_args_peek_only_tensor (args);
  g_autoptr (EbbTensor) output = NULL;
  gboolean outer = priv->in_default_forward;

  if (klass->forward1 == ebb_module_default_forward1)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s implements neither forward nor forward1",
                   ebb_module_get_type_name (self));
      return NULL;
    }
  if (input == NULL)
    {
      g_autofree char *text = ebb_args_to_string (args);

      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: takes one tensor, but got %s",
                   ebb_module_get_type_name (self), text);
      return NULL;
    }
  priv->in_default_forward = TRUE;
  output = klass->forward1 (self, input, error);
  priv->in_default_forward = outer;
  return output != NULL ? ebb_args_new_for_tensor (output) : NULL;
}

EbbTensor *
ebb_module_default_forward1 (EbbModule *self, EbbTensor *input, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbModuleClass *klass = EBB_MODULE_GET_CLASS (self);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;

  /* A forward1 that chains up while forward is already here has nobody left to go to. */
  if (klass->forward == ebb_module_default_forward || priv->in_default_forward)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s implements neither forward nor forward1",
                   ebb_module_get_type_name (self));
      return NULL;
    }
  args = ebb_args_new_for_tensor (input);
  result = klass->forward (self, args, error);
  return ebb_module_take_only_tensor (self, result, error);
}

static inline gboolean
has_error (GError **error)
{
  return error != NULL && *error != NULL;
}

/* Hooks are the caller's business: this is the class's own computation, whichever function has it. */
static EbbArgs *
call_class (EbbModule *self, EbbArgs *args, GError **error)
{
  EbbModuleClass *klass = EBB_MODULE_GET_CLASS (self);
  EbbTensor *input;
  EbbArgs *result;

  if (!ebb_args_check_depth (args, error))
    return NULL;
  if (class_get_dispatch (klass) == DISPATCH_FORWARD1 && (input = ebb_args_peek_only_tensor (args)) != NULL)
    {
      g_autoptr (EbbTensor) output = klass->forward1 (self, input, error);

      result = output != NULL ? ebb_args_new_for_tensor (output) : NULL;
    }
  else
    result = klass->forward (self, args, error);
  /* An implementation that gave both, or too much. */
  if (result != NULL && (has_error (error) || !ebb_args_check_depth (result, error)))
    g_clear_pointer (&result, ebb_args_unref);
  return result;
}

EbbArgs *
ebb_module_call_forward (EbbModule *self, EbbArgs *args, GError **error)
{
  g_autoptr (EbbArgs) result = NULL;
  EbbCallPlan *plan = ebb_call_plan_hold (ebb_module_get_private (self)); /* hooks may change the hooks */
  gboolean hooked;

  if (plan == NULL)
    return call_class (self, args, error);

  hooked = ebb_call_plan_run_hooks (plan, self, args, NULL, error);
  if (hooked)
    result = call_class (self, args, error);
  if (result != NULL && !ebb_call_plan_run_hooks (plan, self, args, result, error))
    g_clear_pointer (&result, ebb_args_unref);
  ebb_call_plan_unref (plan);
  return g_steal_pointer (&result);
}

/* With everything that stands between the caller and forward. Drops @plan. */
static EbbArgs *
call_through_plan (EbbModule *self, EbbCallPlan *plan, EbbArgs *args, GError **error)
{
  EbbArgs *result;

  g_object_ref (self); /* a hook may drop the caller's */
  result = ebb_call_plan_run (plan, self, args, error);
  if (result == NULL)
    report_failure (self, error);
  g_object_unref (self);
  ebb_call_plan_unref (plan);
  return result;
}

/**
 * ebb_module_call:
 * @self: a module
 * @args: the arguments
 * @error: return location for an error
 *
 * Calls a module: its wrappers, its hooks, its forward.
 *
 * Returns: (transfer full) (nullable): the result, or %NULL with @error set. An error that a module below @self reports
 *   begins with the path to it, as in `h.3.attn.c_proj: `
 */
EbbArgs *
ebb_module_call (EbbModule *self, EbbArgs *args, GError **error)
{
  EbbCallPlan *plan;
  EbbProfileMark mark;
  EbbArgs *result;
  gboolean is_outermost;

  if (!EBB_MAY_BEGIN (error, self, args))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  if (!ebb_thread_deepen ())
    {
      ebb_thread_report_depth (ebb_module_get_type_name (self), error);
      return NULL;
    }
  mark = ebb_module_push_profile (self);
  is_outermost = ebb_thread_begin_call ();
  plan = ebb_call_plan_hold (ebb_module_get_private (self));
  if (plan != NULL)
    result = call_through_plan (self, plan, args, error);
  else
    {
      result = call_class (self, args, error);
      if (result == NULL)
        report_failure (self, error);
    }
  if (is_outermost)
    ebb_thread.call = 0;
  ebb_profile_pop (mark);
  ebb_thread.call_depth--;
  return result;
}

/* TRUE if nothing stands between the caller and forward, or only what would go on to it at once. */
static gboolean
is_bare (EbbModule *self)
{
  EbbCallPlan *plan = ebb_call_plan_hold (ebb_module_get_private (self));
  const gboolean bare = plan == NULL || ebb_call_plan_is_idle (plan);

  ebb_call_plan_unref (plan);
  return bare;
}

/**
 * ebb_module_call1:
 * @self: a module
 * @input: a tensor
 * @error: return location for an error
 *
 * Calls a module that takes one tensor and gives one.
 *
 * Returns: (transfer full) (nullable): the result, or %NULL with @error set, as ebb_module_call() says
 */
EbbTensor *
ebb_module_call1 (EbbModule *self, EbbTensor *input, GError **error)
{
  EbbModuleClass *klass;
  EbbProfileMark mark;
  EbbTensor *output;
  gboolean is_outermost;

  if (!EBB_MAY_BEGIN (error, self, input))
    return NULL;

  /* No check of the type, which costs twice the rest of the way. */
  klass = EBB_MODULE_GET_CLASS (self);
  if (!is_bare (self) || class_get_dispatch (klass) == DISPATCH_FORWARD)
    {
      g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (input);
      g_autoptr (EbbArgs) result = ebb_module_call (self, args, error);

      output = ebb_module_take_only_tensor (self, result, error);
      return output;
    }
  if (!ebb_thread_deepen ())
    {
      ebb_thread_report_depth (ebb_module_get_type_name (self), error);
      return NULL;
    }
  mark = ebb_module_push_profile (self);
  is_outermost = ebb_thread_begin_call ();
  output = klass->forward1 (self, input, error);
  if (is_outermost)
    ebb_thread.call = 0;
  ebb_profile_pop (mark);
  ebb_thread.call_depth--;
  if (output != NULL && has_error (error))
    g_clear_pointer (&output, ebb_tensor_unref);
  if (output == NULL)
    report_failure (self, error);
  return output;
}
