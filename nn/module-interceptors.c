/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/module-instance-private.h"

#include <string.h>

/* Hooks and interceptors of one module. A call holds the plan it began with, and adding or removing makes a new plan,
 * so the plan may change at any time; what was removed is passed over by calls under way, and its data is freed when
 * the last of them is done. */

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
  if (--station->ref_count > 0)
    return;
  if (station->destroy != NULL)
    station->destroy (station->user_data);
  g_free (station);
}

EbbCallPlan *
ebb_call_plan_ref (EbbCallPlan *plan)
{
  plan->ref_count++;
  return plan;
}

void
ebb_call_plan_unref (EbbCallPlan *plan)
{
  if (--plan->ref_count > 0)
    return;
  for (guint i = 0; i < plan->n_stations; i++)
    station_unref (plan->stations[i]);
  g_free (plan);
}

/* Replaces the plan of @priv by one without @removed and with @added, each of which may be NULL. */
static void
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
        old->stations[i]->ref_count++;
      }
  if (added != NULL)
    plan->stations[plan->n_stations++] = added;
  if (plan->n_stations == 0)
    g_clear_pointer (&plan, g_free);
  priv->plan = plan;
  if (old != NULL)
    ebb_call_plan_unref (old);
}

static Station *
add_station (EbbModule *self, StationKind kind, gpointer user_data, GDestroyNotify destroy)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  Station *station = g_new0 (Station, 1);

  station->ref_count = 1;
  station->id = ++priv->last_id;
  station->station = kind;
  station->user_data = user_data;
  station->destroy = destroy;
  change_plan (priv, NULL, station);
  return station;
}

static Station *
find_station (EbbModule *self, guint id)
{
  EbbCallPlan *plan = ebb_module_get_private (self)->plan;

  for (guint i = 0; plan != NULL && i < plan->n_stations; i++)
    if (plan->stations[i]->id == id)
      return plan->stations[i];
  return NULL;
}

static void
remove_station (EbbModule *self, Station *station)
{
  station->removed = TRUE;
  change_plan (ebb_module_get_private (self), station, NULL);
}

guint
ebb_module_add_interceptor (EbbModule *self,
                            const char *kind,
                            EbbForwardInterceptor func,
                            gpointer user_data,
                            GDestroyNotify destroy)
{
  Station *station = add_station (self, STATION_INTERCEPTOR, user_data, destroy);

  station->kind = kind;
  station->interceptor = func;
  return station->id;
}

void
ebb_module_set_interceptor_idle_func (EbbModule *self, guint id, gboolean (*is_idle) (gpointer user_data))
{
  Station *station = find_station (self, id);

  g_return_if_fail (station != NULL && station->station == STATION_INTERCEPTOR);

  station->is_idle = is_idle;
}

gboolean
ebb_module_remove_interceptor (EbbModule *self, guint id)
{
  Station *station = find_station (self, id);

  if (station == NULL || station->station != STATION_INTERCEPTOR)
    return FALSE;
  remove_station (self, station);
  return TRUE;
}

guint
ebb_module_next_interceptor (EbbModule *self, const char *kind, guint id)
{
  EbbCallPlan *plan = ebb_module_get_private (self)->plan;

  for (guint i = plan != NULL ? plan->n_stations : 0; i > 0; i--)
    if (plan->stations[i - 1]->station == STATION_INTERCEPTOR && (id == 0 || plan->stations[i - 1]->id < id)
        && strcmp (plan->stations[i - 1]->kind, kind) == 0)
      return plan->stations[i - 1]->id;
  return 0;
}

guint
ebb_module_find_interceptor (EbbModule *self, const char *kind)
{
  return ebb_module_next_interceptor (self, kind, 0);
}

gpointer
ebb_module_get_interceptor_data (EbbModule *self, guint id)
{
  Station *station = find_station (self, id);

  return station != NULL && station->station == STATION_INTERCEPTOR ? station->user_data : NULL;
}

EbbArgs *
ebb_forward_chain_call (const EbbForwardChain *inside, EbbModule *module, EbbArgs *args, GError **error)
{
  if (args == NULL || (error != NULL && *error != NULL))
    return NULL;

  for (guint i = inside->n_inside; i > 0; i--)
    {
      Station *station = inside->plan->stations[i - 1];
      EbbForwardChain rest = { inside->plan, i - 1 };
      EbbArgs *result;

      if (station->station != STATION_INTERCEPTOR || station->removed)
        continue;
      result = station->interceptor (module, args, &rest, station->user_data, error);
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
    if (plan->stations[i]->station != STATION_INTERCEPTOR && !plan->stations[i]->removed)
      return TRUE;
  return FALSE;
}

EbbArgs *
ebb_module_call_inside (EbbModule *self, guint id, EbbArgs *args, GError **error)
{
  EbbModulePrivate *priv = ebb_module_get_private (self);
  EbbForwardChain chain = { priv->plan, 0 };
  EbbProfileMark mark;
  EbbArgs *result;

  if (args == NULL || (error != NULL && *error != NULL))
    return NULL;
  mark = ebb_thread.recomputing > 0 ? ebb_module_push_profile (self) : 0; /* else it is inside a call that is seen */
  if (chain.plan == NULL)
    {
      result = ebb_module_call_forward (self, args, error);
      ebb_profile_pop (mark);
      return result;
    }

  ebb_call_plan_ref (chain.plan);
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

      if (station->station != wanted || station->removed)
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
  Station *station;

  g_return_val_if_fail (EBB_IS_MODULE (self), 0);
  g_return_val_if_fail (hook != NULL, 0);

  station = add_station (self, STATION_PRE_HOOK, user_data, destroy);
  station->hook = hook;
  return station->id;
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
  Station *station;

  g_return_val_if_fail (EBB_IS_MODULE (self), 0);
  g_return_val_if_fail (hook != NULL, 0);

  station = add_station (self, STATION_HOOK, user_data, destroy);
  station->hook = hook;
  return station->id;
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
  Station *station;

  g_return_val_if_fail (EBB_IS_MODULE (self), FALSE);

  station = find_station (self, id);
  if (station == NULL || station->station == STATION_INTERCEPTOR)
    return FALSE;
  remove_station (self, station);
  return TRUE;
}
