/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Compares a training's second step with its plan. */
#include "wrap/plan/watch-private.h"

#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "wrap/plan/memory-plan-private.h"
#include "wrap/plan/probe-private.h"

/* A step that was looked at. */
struct _EbbPlanWatch
{
  EbbDevice *device;
  EbbCostTable *costs;
  GArray *blocks;
  EbbProbe *probe;
  EbbProbeStep *step;
};

static EbbPlanWatch *
watch_new (EbbModule *model)
{
  EbbPlanWatch *self = g_new0 (EbbPlanWatch, 1);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  self->device = n > 0 ? ebb_parameter_get_device (parameters[0]) : ebb_device_get_cpu ();
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  self->costs = ebb_cost_table_new (self->device);
  self->blocks = ebb_plan_find_blocks (model);
  self->probe = ebb_probe_new_idle (model, self->device, self->blocks, self->costs);
  return self;
}

void
ebb_plan_watch_free (EbbPlanWatch *self)
{
  g_clear_pointer (&self->step, ebb_probe_step_free);
  ebb_probe_free (self->probe);
  g_array_unref (self->blocks);
  ebb_cost_table_free (self->costs);
  g_free (self);
}

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbPlanWatch, ebb_plan_watch_free)

EbbPlanWatch *
ebb_plan_watch_run (EbbModule *model,
                    EbbStepFunc step,
                    gpointer user_data,
                    guint64 missing_bytes,
                    GError **error)
{
  g_autoptr (EbbPlanWatch) self = watch_new (model);

  self->step = ebb_probe_watch (self->probe, step, user_data, error);
  if (self->step == NULL)
    return NULL;
  self->step->start += missing_bytes;
  return g_steal_pointer (&self);
}

/* -- comparing ----------------------------------------------------------------------------------------------------- */

/* What the same step does in a dry run. */
static char *
find_difference (EbbMemoryPlan *self,
                 EbbStepFunc step,
                 gpointer user_data,
                 GError **error)
{
  g_autoptr (EbbPlanWatch) dry = watch_new (self->model);

  g_clear_pointer (&dry->probe, ebb_probe_free);
  dry->probe = ebb_probe_new (self->model, dry->device, dry->blocks, dry->costs, FALSE, NULL, step, user_data, error);
  dry->step = dry->probe != NULL ? ebb_probe_run (dry->probe, error) : NULL;
  return dry->step != NULL ? ebb_probe_compare (self->watch->probe, self->watch->step, dry->probe, dry->step) : NULL;
}

/**
 * ebb_memory_plan_check_step:
 * @self: a plan that is applied
 * @step: (scope call) (closure user_data): the same step
 * @user_data: user data of @step
 * @error: return location for an error
 *
 * Compares the second step by ebb_memory_plan_run_step() with the plan: call it right after that step. The first step
 * makes the optimizer's state, so the second is the first of which all others should be like. @step runs twice as a dry
 * run, which changes nothing, as in ebb_memory_plan_new().
 *
 * Returns: %FALSE with %EBB_ERROR_STATE, which names the first op that differs and its block, or the bytes; or with
 *   what @step reports
 */
gboolean
ebb_memory_plan_check_step (EbbMemoryPlan *self,
                            EbbStepFunc step,
                            gpointer user_data,
                            GError **error)
{
  g_autofree char *difference = NULL;
  GError *failure = NULL;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_MEMORY_PLAN (self) && step != NULL, FALSE);

  if (self->watch == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "there is no step to check: it is the second one by ebb_memory_plan_run_step (), before the third");
      return FALSE;
    }
  difference = find_difference (self, step, user_data, &failure);
  if (failure != NULL)
    {
      g_propagate_error (error, failure);
      return FALSE;
    }
  g_clear_pointer (&self->watch, ebb_plan_watch_free);
  if (difference != NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the step isn't as it was planned: %s", difference);
  return difference == NULL;
}
