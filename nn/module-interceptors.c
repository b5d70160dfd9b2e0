/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"

#include "tensor/error-private.h"

#include <string.h>

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

EbbCallPlan *
ebb_call_plan_hold_locked (EbbModulePrivate *priv)
{
  EbbCallPlan *plan;

  pthread_mutex_lock (&priv->plan_lock);
  plan = priv->plan;
  if (plan != NULL)
    __atomic_add_fetch (&plan->ref_count, 1, __ATOMIC_RELAXED);
  pthread_mutex_unlock (&priv->plan_lock);
  return plan;
}

void
ebb_call_plan_unref (EbbCallPlan *plan)
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
  ebb_call_plan_unref (old);
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
  ebb_call_plan_unref (old);
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
  EbbCallPlan *plan = ebb_call_plan_hold (ebb_module_get_private (self));
  guint next = 0;

  for (guint i = plan != NULL ? plan->n_stations : 0; i > 0 && next == 0; i--)
    if (plan->stations[i - 1]->station == STATION_INTERCEPTOR && (id == 0 || plan->stations[i - 1]->id < id)
        && strcmp (plan->stations[i - 1]->kind, kind) == 0)
      next = plan->stations[i - 1]->id;
  ebb_call_plan_unref (plan);
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
  guint id = ebb_module_find_interceptor (self, EBB_PARAMETER_OWNER_INTERCEPTOR);

  return id != 0 ? ebb_module_get_interceptor_data (self, id) : NULL;
}

gpointer
ebb_module_get_interceptor_data (EbbModule *self, guint id)
{
  EbbCallPlan *plan = ebb_call_plan_hold (ebb_module_get_private (self));
  Station *station = find_station (plan, id);
  gpointer data = station != NULL && station->station == STATION_INTERCEPTOR ? station->user_data : NULL;

  ebb_call_plan_unref (plan);
  return data;
}

EbbArgs *
ebb_forward_chain_call (const EbbForwardChain *inside, EbbModule *module, EbbArgs *args, GError **error)
{
  if (!EBB_MAY_BEGIN (error, args))
    return NULL;

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
  return ebb_module_call_forward (module, args, error);
}

EbbArgs *
ebb_call_plan_run (EbbCallPlan *plan, EbbModule *module, EbbArgs *args, GError **error)
{
  EbbForwardChain chain = { plan, plan->n_stations };

  return ebb_forward_chain_call (&chain, module, args, error);
}

gboolean
ebb_call_plan_is_idle (EbbCallPlan *plan)
{
  for (guint i = 0; i < plan->n_stations; i++)
    if (plan->stations[i]->is_idle == NULL || !plan->stations[i]->is_idle (plan->stations[i]->user_data))
      return FALSE;
  return TRUE;
}

gboolean
ebb_call_plan_has_hooks (EbbCallPlan *plan)
{
  for (guint i = 0; i < plan->n_stations; i++)
    if (plan->stations[i]->station != STATION_INTERCEPTOR && !is_removed (plan->stations[i]))
      return TRUE;
  return FALSE;
}

EbbArgs *
ebb_module_call_inside (EbbModule *self, guint id, EbbArgs *args, GError **error)
{
  EbbForwardChain chain = { NULL, 0 };
  EbbProfileMark mark;
  EbbArgs *result;

  if (!EBB_MAY_BEGIN (error, args))
    return NULL;
  mark = ebb_thread.recomputing > 0 ? ebb_module_push_profile (self) : 0; /* else it is inside a call that is seen */
  chain.plan = ebb_call_plan_hold (ebb_module_get_private (self));
  if (chain.plan == NULL)
    {
      result = ebb_module_call_forward (self, args, error);
      ebb_profile_pop (mark);
      return result;
    }

  while (chain.n_inside < chain.plan->n_stations && chain.plan->stations[chain.n_inside]->id < id)
    chain.n_inside++;
  result = ebb_forward_chain_call (&chain, self, args, error);
  ebb_call_plan_unref (chain.plan);
  ebb_profile_pop (mark);
  return result;
}

gboolean
ebb_call_plan_run_hooks (EbbCallPlan *plan, EbbModule *module, EbbArgs *args, EbbArgs *result, GError **error)
{
  StationKind wanted = result == NULL ? STATION_PRE_HOOK : STATION_HOOK;

  for (guint i = 0; i < plan->n_stations; i++)
    {
      Station *station = plan->stations[i];

      if (station->station != wanted || is_removed (station))
        continue;
      if (!station->hook (module, args, result, station->user_data, error))
        {
          if (error != NULL && *error == NULL)
            g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "%s: a forward hook failed without saying why",
                         ebb_module_get_type_name (module));
          return FALSE;
        }
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
 * Adds a function that sees the arguments of each forward, a recompute included, and may refuse them.
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
 * Adds a function that sees the arguments and the result of each forward, a recompute included, and may refuse them.
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
