/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/schedule.h"

#include "tensor/util/property-private.h"

#include <math.h>

/* Schedules of the learning rate: the base class, and a warm-up followed by half a cosine. */

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

  ebb_optimizer_set_option (optimizer, "lr-scale",
                            ebb_schedule_get_factor (self, ebb_optimizer_get_n_steps (optimizer)), NULL);
}

/* -- cosine -------------------------------------------------------------------------------------------------------- */

struct _EbbCosineSchedule
{
  EbbSchedule parent_instance;

  gint64 warmup_steps, total_steps;
  double min_factor;
};

G_DEFINE_FINAL_TYPE (EbbCosineSchedule, ebb_cosine_schedule, EBB_TYPE_SCHEDULE)

static double
ebb_cosine_schedule_get_factor (EbbSchedule *schedule,
                                gint64 step)
{
  EbbCosineSchedule *self = EBB_COSINE_SCHEDULE (schedule);
  double progress;

  if (step < self->warmup_steps)
    return (double) (step + 1) / (double) self->warmup_steps;
  if (step >= self->total_steps)
    return self->min_factor;
  progress = (double) (step - self->warmup_steps) / (double) (self->total_steps - self->warmup_steps);
  return self->min_factor + (1 - self->min_factor) * 0.5 * (1 + cos (G_PI * progress));
}

static void
ebb_cosine_schedule_class_init (EbbCosineScheduleClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT_ONLY | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  EBB_SCHEDULE_CLASS (klass)->get_factor = ebb_cosine_schedule_get_factor;

  /**
   * EbbCosineSchedule:warmup-steps:
   *
   * How many steps the factor rises, in equal parts, up to 1.
   */
  g_object_class_install_property (object_class, offsetof (EbbCosineSchedule, warmup_steps),
                                   g_param_spec_int64 ("warmup-steps", NULL, NULL, 0, G_MAXINT64, 0, flags));
  /**
   * EbbCosineSchedule:total-steps:
   *
   * The step, warm-up included, from which on the factor stays at its last value.
   */
  g_object_class_install_property (object_class, offsetof (EbbCosineSchedule, total_steps),
                                   g_param_spec_int64 ("total-steps", NULL, NULL, 0, G_MAXINT64, 1, flags));
  /**
   * EbbCosineSchedule:min-factor:
   *
   * The last value.
   */
  g_object_class_install_property (object_class, offsetof (EbbCosineSchedule, min_factor),
                                   g_param_spec_double ("min-factor", NULL, NULL, 0, 1, 0, flags));
}

static void
ebb_cosine_schedule_init (EbbCosineSchedule *self)
{
}

/**
 * ebb_cosine_schedule_new:
 * @warmup_steps: how many steps the factor rises, 0 or more
 * @total_steps: the step, warm-up included, from which on the factor is @min_factor
 * @min_factor: the last value, 0 to 1
 *
 * Makes a linear warm-up to 1 followed by half a cosine down to @min_factor (Loshchilov and Hutter, "SGDR: Stochastic
 * gradient descent with warm restarts", 2017, equation 5, without restarts). Step s of the warm-up has (s + 1) /
 * @warmup_steps, so no step is lost to a learning rate of 0.
 *
 * Returns: (transfer full): the schedule
 */
EbbSchedule *
ebb_cosine_schedule_new (gint64 warmup_steps,
                         gint64 total_steps,
                         double min_factor)
{
  return g_object_new (EBB_TYPE_COSINE_SCHEDULE, "warmup-steps", warmup_steps, "total-steps", total_steps, "min-factor",
                       min_factor, NULL);
}
