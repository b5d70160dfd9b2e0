/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A real step whose ops and bytes are noted, and compared with those of a dry step. */
#include "wrap/plan/watch-private.h"

#include "nn/module-private.h"
#include "wrap/plan/probe-private.h"

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

  self->device = ebb_module_find_device (model, ebb_device_get_cpu ());
  self->costs = ebb_cost_table_new (self->device);
  self->blocks = ebb_plan_find_blocks (model);
  self->probe = ebb_probe_new_idle (model, self->device, self->blocks, self->costs);
  return self;
}

void
ebb_plan_watch_free (EbbPlanWatch *self)
{
  g_clear_pointer (&self->step, ebb_probe_step_free);
  g_clear_pointer (&self->probe, ebb_probe_free); /* NULL after a dry step that failed */
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

char *
ebb_plan_watch_compare (EbbPlanWatch *self,
                        EbbModule *model,
                        EbbStepFunc step,
                        gpointer user_data,
                        GError **error)
{
  g_autoptr (EbbPlanWatch) dry = watch_new (model);

  g_clear_pointer (&dry->probe, ebb_probe_free);
  dry->probe =
      ebb_probe_new (&(EbbPlanRequest){ model, dry->device, .step = step, .user_data = user_data }, dry->blocks,
                     dry->costs, error);
  dry->step = dry->probe != NULL ? ebb_probe_run (dry->probe, error) : NULL;
  return dry->step != NULL ? ebb_probe_compare (self->probe, self->step, dry->probe, dry->step) : NULL;
}
