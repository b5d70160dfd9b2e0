/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer.h"

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

G_BEGIN_DECLS

#define EBB_TYPE_SCHEDULE (ebb_schedule_get_type ())

/**
 * EbbSchedule:
 *
 * How the learning rate changes over the steps of a training: a factor that depends on the number of the step alone.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbSchedule, ebb_schedule, EBB, SCHEDULE, GObject)

/**
 * EbbScheduleClass:
 * @get_factor: the factor of all learning rates in step @step, counted from 0
 *
 * The class of schedules.
 */
struct _EbbScheduleClass
{
  GObjectClass parent_class;

  double (*get_factor) (EbbSchedule *self,
                        gint64 step);

  /*< private >*/
  gpointer padding[4];
};

EBB_AVAILABLE_IN_ALL
double ebb_schedule_get_factor (EbbSchedule *self,
                                gint64 step);

EBB_AVAILABLE_IN_ALL
void ebb_schedule_apply (EbbSchedule *self,
                         EbbOptimizer *optimizer);

#define EBB_TYPE_COSINE_SCHEDULE (ebb_cosine_schedule_get_type ())

/**
 * EbbCosineSchedule:
 *
 * A linear warm-up, then half a cosine down to a last value.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbCosineSchedule, ebb_cosine_schedule, EBB, COSINE_SCHEDULE, EbbSchedule)

EBB_AVAILABLE_IN_ALL
EbbSchedule *ebb_cosine_schedule_new (gint64 warmup_steps,
                                      gint64 total_steps,
                                      double min_factor);

G_END_DECLS
