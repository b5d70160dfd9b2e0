/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"

#include "nn/module-instance-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

#include <string.h>

/* Calls modules: through the hooks and interceptors that stand around a forward, to the function of the class. Here is
 * also how hooks and interceptors are added and removed. */

static EbbArgs *call_forward (EbbModule *self,
                              EbbArgs *args,
                              GError **error);

/* -- hooks and interceptors ---------------------------------------------------------------------------------------- */

/* Hooks and interceptors of one module. A call holds the plan it began with, and adding or removing makes a new plan,
 * so the plan may change at any time, by another thread too; what was removed is passed over by calls under way, and
 * its data is freed when the last of them is done. A plan and its stations never change once others can see them, but
 * for the mark of a removed station. */

typedef enum
{
  STATION_INTERCEPTOR,
  STATION_PRE_HOOK,
  STATION_HOOK
} StationKind;

typedef struct
{
  int ref_count;
  guint id;
  StationKind station;
  gboolean removed;
  const char *kind; /* of an interceptor */
  EbbForwardInterceptor interceptor;
  gboolean (*is_idle) (gpointer user_data); /* NULL: never */
  EbbForwardHook hook;
  gpointer user_data;
  GDestroyNotify destroy;
} Station;

struct _EbbCallPlan
{
  int ref_count;
  guint n_stations;
  Station *stations[]; /* by id: an interceptor that comes later stands further outside */
};

struct _EbbForwardChain
{
  EbbCallPlan *plan;
  guint n_inside; /* stations that may still be interceptors on the way */
};

static void
station_unref (Station *station)
{
  if (__atomic_sub_fetch (&station->ref_count, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  if (station->destroy != NULL)
    station->destroy (station->user_data);
  g_free (station);
}

static gboolean
is_removed (const Station *station)
{
  return __atomic_load_n (&station->removed, __ATOMIC_RELAXED);
}

static EbbCallPlan *
hold_locked (EbbModulePrivate *priv)
{
  EbbCallPlan *plan;

  EBB_AUTO_LOCK (&priv->plan_lock);
  plan = priv->plan;
  if (plan != NULL)
    __atomic_add_fetch (&plan->ref_count, 1, __ATOMIC_RELAXED);
  return plan;
}

/* The plan of now, with a reference, whatever other threads wrap or unwrap; NULL: none. */
static inline EbbCallPlan *
call_plan_hold (EbbModulePrivate *priv)
{
  return __atomic_load_n (&priv->plan, __ATOMIC_RELAXED) != NULL ? hold_locked (priv) : NULL;
}

static void
call_plan_unref (EbbCallPlan *plan)
{
  if (plan == NULL || __atomic_sub_fetch (&plan->ref_count, 1, __ATOMIC_ACQ_REL) > 0)
    return;
  for (guint i = 0; i < plan->n_stations; i++)
    station_unref (plan->stations[i]);
  g_free (plan);
}

/* Replaces the plan of @priv, which is locked, by one without @removed and with @added, each of which may be NULL. The
 * caller drops the one before when it has unlocked: what that frees may call anything. */
static EbbCallPlan *
change_plan (EbbModulePrivate *priv, Station *removed, Station *added)
{
  EbbCallPlan *old = priv->plan;
  guint n = old != NULL ? old->n_stations : 0;
  EbbCallPlan *plan = g_malloc0 (sizeof *plan + (n + 1) * sizeof plan->stations[0]);

  plan->ref_count = 1;
  for (guint i = 0; i < n; i++)
    if (old->stations[i] != removed)
      {
        plan->stations[plan->n_stations++] = old->stations[i];
        __atomic_add_fetch (&old->stations[i]->ref_count, 1, __ATOMIC_RELAXED);
      }
  if (added != NULL)
    plan->stations[plan->n_stations++] = added;
  if (plan->n_stations == 0)
    g_clear_pointer (&plan, g_free);
  priv->free_plan = call_plan_unref;
  __atomic_store_n (&priv->plan, plan, __ATOMIC_RELAXED);
  return old;
}

/* @id, if it isn't NULL, is there before other threads see the station. */
static guint
add_station (EbbModule *self, Station station, guint *id)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  Station *added = g_memdup2 (&station, sizeof station);
  EbbCallPlan *old;
  guint own;

  pthread_mutex_lock (&priv->plan_lock);
  added->ref_count = 1;
  added->id = own = ++priv->last_id;
  if (id != NULL)
    *id = own;
  old = change_plan (priv, NULL, added);
  pthread_mutex_unlock (&priv->plan_lock);
  call_plan_unref (old);
  return own;
}

static Station *
find_station (EbbCallPlan *plan, guint id)
{
  for (guint i = 0; plan != NULL && i < plan->n_stations; i++)
    if (plan->stations[i]->id == id)
      return plan->stations[i];
  return NULL;
}

static gboolean
remove_station (EbbModule *self, guint id, gboolean is_interceptor)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbCallPlan *old = NULL;
  Station *station;

  pthread_mutex_lock (&priv->plan_lock);
  station = find_station (priv->plan, id);
  if (station != NULL && (station->station == STATION_INTERCEPTOR) == is_interceptor)
    {
      __atomic_store_n (&station->removed, TRUE, __ATOMIC_RELAXED);
      old = change_plan (priv, station, NULL);
    }
  pthread_mutex_unlock (&priv->plan_lock);
  call_plan_unref (old);
  return old != NULL;
}

guint
ebb_module_add_interceptor (EbbModule *self,
                            const char *kind,
                            EbbForwardInterceptor func,
                            gpointer user_data,
                            GDestroyNotify destroy)
{
  return add_station (self,
                      (Station){ .station = STATION_INTERCEPTOR,
                                 .kind = kind,
                                 .interceptor = func,
                                 .user_data = user_data,
                                 .destroy = destroy },
                      NULL);
}

void
ebb_module_add_idle_interceptor (EbbModule *self,
                                 const char *kind,
                                 EbbForwardInterceptor func,
                                 gboolean (*is_idle) (gpointer user_data),
                                 gpointer user_data,
                                 GDestroyNotify destroy,
                                 guint *id)
{
  add_station (self,
               (Station){ .station = STATION_INTERCEPTOR,
                          .kind = kind,
                          .interceptor = func,
                          .is_idle = is_idle,
                          .user_data = user_data,
                          .destroy = destroy },
               id);
}

gboolean
ebb_module_remove_interceptor (EbbModule *self, guint id)
{
  return remove_station (self, id, TRUE);
}

guint
ebb_module_next_interceptor (EbbModule *self, const char *kind, guint id)
{
  EbbCallPlan *plan = call_plan_hold (ebb_module_get_private (self));
  guint next = 0;

  for (guint i = plan != NULL ? plan->n_stations : 0; i > 0 && next == 0; i--)
    if (plan->stations[i - 1]->station == STATION_INTERCEPTOR && (id == 0 || plan->stations[i - 1]->id < id)
        && strcmp (plan->stations[i - 1]->kind, kind) == 0)
      next = plan->stations[i - 1]->id;
  call_plan_unref (plan);
  return next;
}

guint
ebb_module_find_interceptor (EbbModule *self, const char *kind)
{
  return ebb_module_next_interceptor (self, kind, 0);
}

struct _EbbParameterOwner *
ebb_module_get_parameter_owner (EbbModule *self)
{
  return ebb_module_get_interceptor_data (self, ebb_module_find_interceptor (self, EBB_PARAMETER_OWNER_INTERCEPTOR));
}

gpointer
ebb_module_get_interceptor_data (EbbModule *self, guint id)
{
  EbbCallPlan *plan = call_plan_hold (ebb_module_get_private (self));
  Station *station = find_station (plan, id);
  gpointer data = station != NULL && station->station == STATION_INTERCEPTOR ? station->user_data : NULL;

  call_plan_unref (plan);
  return data;
}

EbbArgs *
ebb_forward_chain_call (const EbbForwardChain *inside, EbbModule *module, EbbArgs *args, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, args);

  for (guint i = inside->n_inside; i > 0; i--)
    {
      Station *station = inside->plan->stations[i - 1];
      EbbForwardChain rest = { inside->plan, i - 1 };
      EbbArgs *result;

      if (station->station != STATION_INTERCEPTOR || is_removed (station))
        continue;
      if (!ebb_thread_deepen ())
        {
          ebb_thread_report_depth (ebb_module_get_type_name (module), error);
          return NULL;
        }
      result = station->interceptor (module, args, &rest, station->user_data, error);
      ebb_thread.call_depth--;
      if (result != NULL && error != NULL && *error != NULL)
        g_clear_pointer (&result, ebb_args_unref);
      return result;
    }
  return call_forward (module, args, error);
}

static gboolean
plan_is_idle (EbbCallPlan *plan)
{
  for (guint i = 0; i < plan->n_stations; i++)
    if (plan->stations[i]->is_idle == NULL || !plan->stations[i]->is_idle (plan->stations[i]->user_data))
      return FALSE;
  return TRUE;
}

static gboolean
has_hooks (EbbCallPlan *plan)
{
  for (guint i = 0; i < plan->n_stations; i++)
    if (plan->stations[i]->station != STATION_INTERCEPTOR && !is_removed (plan->stations[i]))
      return TRUE;
  return FALSE;
}

gboolean
ebb_module_is_plain (EbbModule *module, GType type)
{
  return module != NULL && G_OBJECT_TYPE (module) == type
         && __atomic_load_n (&ebb_module_get_private (module)->plan, __ATOMIC_RELAXED) == NULL;
}

gboolean
ebb_module_is_only_wrapped (EbbModule *module, GType type)
{
  EbbCallPlan *plan = module != NULL ? call_plan_hold (ebb_module_get_private (module)) : NULL;
  const gboolean is_only = plan != NULL && G_OBJECT_TYPE (module) == type && !has_hooks (plan);

  call_plan_unref (plan);
  return is_only;
}

typedef struct HookCall HookCall;

struct HookCall
{
  EbbModule *module;
  EbbArgs *value; /* handed over; owned */
  HookCall *outer;
};

static _Thread_local HookCall *innermost;

/* Runs one hook. @args or @result, NULL before the forward, point to what it hands over afterwards. */
static gboolean
run_hook (EbbForwardHook hook,
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
    ebb_error_set (error, EBB_ERROR_CALLBACK, "%s: a forward hook failed without saying why",
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

/* @result: NULL before the forward. Hooks may replace what @args or @result point to. */
static gboolean
run_hooks (EbbCallPlan *plan, EbbModule *module, EbbArgs **args, EbbArgs **result, GError **error)
{
  StationKind wanted = result == NULL ? STATION_PRE_HOOK : STATION_HOOK;

  for (guint i = 0; i < plan->n_stations; i++)
    {
      Station *station = plan->stations[i];

      if (station->station != wanted || is_removed (station))
        continue;
      if (!run_hook (station->hook, station->user_data, module, args, result, error))
        return FALSE;
    }
  return TRUE;
}

/**
 * ebb_module_add_forward_pre_hook:
 * @self: a module
 * @hook: (scope notified) (closure user_data) (destroy destroy): what to call before each forward; its result is %NULL
 * @user_data: data for @hook
 * @destroy: (nullable): frees @user_data when the hook is gone
 *
 * Adds a function that sees the arguments of each forward, a recompute included, and may refuse or replace them.
 *
 * Returns: the hook's id, for ebb_module_remove_hook()
 */
guint
ebb_module_add_forward_pre_hook (EbbModule *self, EbbForwardHook hook, gpointer user_data, GDestroyNotify destroy)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), 0);
  g_return_val_if_fail (hook != NULL, 0);

  return add_station (
      self, (Station){ .station = STATION_PRE_HOOK, .hook = hook, .user_data = user_data, .destroy = destroy }, NULL);
}

/**
 * ebb_module_add_forward_hook:
 * @self: a module
 * @hook: (scope notified) (closure user_data) (destroy destroy): what to call after each forward
 * @user_data: data for @hook
 * @destroy: (nullable): frees @user_data when the hook is gone
 *
 * Adds a function that sees the arguments and the result of each forward, a recompute included, and may refuse them or
 * replace the result.
 *
 * Returns: the hook's id, for ebb_module_remove_hook()
 */
guint
ebb_module_add_forward_hook (EbbModule *self, EbbForwardHook hook, gpointer user_data, GDestroyNotify destroy)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), 0);
  g_return_val_if_fail (hook != NULL, 0);

  return add_station (
      self, (Station){ .station = STATION_HOOK, .hook = hook, .user_data = user_data, .destroy = destroy }, NULL);
}

/**
 * ebb_module_remove_hook:
 * @self: a module
 * @id: what the function that added the hook returned
 *
 * Removes a hook. It is safe during a call, which passes over the hook if it has not come to it yet.
 *
 * Returns: %TRUE if there was such a hook
 */
gboolean
ebb_module_remove_hook (EbbModule *self, guint id)
{
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  return remove_station (self, id, FALSE);
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
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, value);
  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  if (innermost == NULL || innermost->module != self)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: hand_over: no forward hook of this module is running on this thread; call it in the hook",
                     ebb_module_get_type_name (self));
  g_clear_pointer (&innermost->value, ebb_args_unref);
  innermost->value = ebb_args_ref (value);
  return TRUE;
}

/* -- forward ------------------------------------------------------------------------------------------------------- */

/* A class may implement forward, forward1 or both, and its ancestor the other one. A subclass that overrides forward
 * alone must not be bypassed by the forward1 that it inherits, nor the other way round. So which of the two was
 * overridden nearer to the class is found once and kept in the class. A class begins as a copy of its parent, and
 * bindings set its functions late: the copy is recognised by its address and by the functions it was made for. */
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

/* Sets an error if a call returned nothing without one, and prefixes it with the path of the failed module below @self,
 * as in "h.3.attn.c_proj: linear: ...". */
static void
report_failure (EbbModule *self, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);

  if (error == NULL)
    return;
  if (!priv->is_built && g_error_matches (*error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT)) /* for want of parameters */
    g_clear_error (error);
  if (*error == NULL)
    ebb_error_set (error, EBB_ERROR_CALLBACK,
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
ebb_module_call_for_tensor (EbbModule *self, EbbArgs *args, GError **error)
{
  g_autoptr (EbbArgs) result = ebb_module_call (self, args, error);

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

static EbbArgs *
call_forward (EbbModule *self, EbbArgs *given, GError **error)
{
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;
  EbbCallPlan *plan = call_plan_hold (ebb_module_get_private (self)); /* hooks may change the hooks */
  gboolean hooked;

  if (plan == NULL)
    return call_class (self, given, error);

  args = ebb_args_ref (given);
  hooked = run_hooks (plan, self, &args, NULL, error);
  if (hooked)
    result = call_class (self, args, error);
  if (result != NULL && !run_hooks (plan, self, &args, &result, error))
    g_clear_pointer (&result, ebb_args_unref);
  call_plan_unref (plan);
  return g_steal_pointer (&result);
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

static EbbProfileMark
open_profile (EbbModule *self)
{
  g_autofree char *path = ebb_module_get_path (self);

  return ebb_profile_open_module (ebb_module_get_type_name (self), g_quark_from_string (path));
}

/* Reports to those who watch this thread, if any do, that a call of @self begins. */
static inline EbbProfileMark
push_profile (EbbModule *self)
{
  return ebb_is_watched () ? open_profile (self) : EBB_NO_PROFILE_MARK;
}

/* With everything that stands between the caller and forward. Drops @plan. */
static EbbArgs *
call_through_plan (EbbModule *self, EbbCallPlan *plan, EbbArgs *args, GError **error)
{
  const EbbForwardChain chain = { plan, plan->n_stations };
  EbbArgs *result;

  g_object_ref (self); /* a hook may drop the caller's */
  result = ebb_forward_chain_call (&chain, self, args, error);
  if (result == NULL)
    report_failure (self, error);
  g_object_unref (self);
  call_plan_unref (plan);
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

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, args);
  g_return_val_if_fail (EBB_IS_MODULE (self), NULL);

  if (!ebb_thread_deepen ())
    {
      ebb_thread_report_depth (ebb_module_get_type_name (self), error);
      return NULL;
    }
  mark = push_profile (self);
  is_outermost = ebb_thread_begin_call ();
  plan = call_plan_hold (ebb_module_get_private (self));
  if (plan != NULL)
    result = call_through_plan (self, plan, args, error);
  else
    {
      result = call_class (self, args, error);
      if (result == NULL)
        report_failure (self, error);
    }
  if (is_outermost)
    ebb_modes.call = 0;
  ebb_profile_pop (mark);
  ebb_thread.call_depth--;
  return result;
}

/* TRUE if nothing stands between the caller and forward, or only what would go on to it at once. */
static gboolean
is_bare (EbbModule *self)
{
  EbbCallPlan *plan = call_plan_hold (ebb_module_get_private (self));
  const gboolean bare = plan == NULL || plan_is_idle (plan);

  call_plan_unref (plan);
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

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self, input);

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
  mark = push_profile (self);
  is_outermost = ebb_thread_begin_call ();
  output = klass->forward1 (self, input, error);
  if (is_outermost)
    ebb_modes.call = 0;
  ebb_profile_pop (mark);
  ebb_thread.call_depth--;
  if (output != NULL && has_error (error))
    g_clear_pointer (&output, ebb_tensor_unref);
  if (output == NULL)
    report_failure (self, error);
  return output;
}

EbbArgs *
ebb_module_call_inside (EbbModule *self, guint id, EbbArgs *args, GError **error)
{
  EbbForwardChain chain = { NULL, 0 };
  EbbProfileMark mark;
  EbbArgs *result;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, args);
  /* Else it is inside a call that is seen. */
  mark = ebb_modes.recomputing > 0 ? push_profile (self) : EBB_NO_PROFILE_MARK;
  chain.plan = call_plan_hold (ebb_module_get_private (self));
  if (chain.plan == NULL)
    {
      result = call_forward (self, args, error);
      ebb_profile_pop (mark);
      return result;
    }

  while (chain.n_inside < chain.plan->n_stations && chain.plan->stations[chain.n_inside]->id < id)
    chain.n_inside++;
  result = ebb_forward_chain_call (&chain, self, args, error);
  call_plan_unref (chain.plan);
  ebb_profile_pop (mark);
  return result;
}
