/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/schedule.h"

#include <math.h>

G_DEFINE_ABSTRACT_TYPE (EbbSchedule, ebb_schedule, G_TYPE_OBJECT)

static double
ebb_schedule_real_get_factor (EbbSchedule *self,
                              gint64 step)
{
  return 1;
}

static void
ebb_schedule_class_init (EbbScheduleClass *klass)
{
  klass->get_factor = ebb_schedule_real_get_factor;
}

static void
ebb_schedule_init (EbbSchedule *self)
{
}

/**
 * ebb_schedule_get_factor:
 * @self: a schedule
 * @step: a step, counted from 0
 *
 * Returns: the factor of all learning rates in that step
 */
double
ebb_schedule_get_factor (EbbSchedule *self,
                         gint64 step)
{
  double factor;

  g_return_val_if_fail (EBB_IS_SCHEDULE (self), 1);
  g_return_val_if_fail (step >= 0, 1);

  factor = EBB_SCHEDULE_GET_CLASS (self)->get_factor (self, step);
  g_return_val_if_fail (factor >= 0 && isfinite (factor), 1);
  return factor;
}

/**
 * ebb_schedule_apply:
 * @self: (nullable): a schedule
 * @optimizer: (nullable): an optimizer
 *
 * Sets #EbbOptimizer:lr-scale for the step that @optimizer will take next. It depends on the number of steps that were
 * taken, so there is nothing of a schedule to save.
 */
void
ebb_schedule_apply (EbbSchedule *self,
                    EbbOptimizer *optimizer)
{
  if (self == NULL || optimizer == NULL)
    return;
  g_return_if_fail (EBB_IS_SCHEDULE (self) && EBB_IS_OPTIMIZER (optimizer));

  ebb_optimizer_set_lr_scale (optimizer, ebb_schedule_get_factor (self, ebb_optimizer_get_n_steps (optimizer)));
}
