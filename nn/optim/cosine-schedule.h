/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/optim/schedule.h"

G_BEGIN_DECLS

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
