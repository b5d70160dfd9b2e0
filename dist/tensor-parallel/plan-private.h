/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/plan.h"

G_BEGIN_DECLS

struct _EbbParallelOptions
{
  GObject parent_instance;

  EbbParallelPlan *plan; /* NULL: the model's own */
  gboolean sequence_parallel;
  gboolean synchronize_weights;
};

guint ebb_parallel_plan_get_n_rules (const EbbParallelPlan *self);
const char *ebb_parallel_plan_get_pattern (const EbbParallelPlan *self,
                                           guint index);
EbbParallelStyle ebb_parallel_plan_get_style (const EbbParallelPlan *self,
                                              guint index);
gboolean ebb_parallel_plan_matches (const EbbParallelPlan *self,
                                    guint index,
                                    const char *path);
/* "column_qkv" */
const char *ebb_parallel_style_get_name (EbbParallelStyle style);

G_END_DECLS
