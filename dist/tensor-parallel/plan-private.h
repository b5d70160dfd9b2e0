/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/plan.h"

G_BEGIN_DECLS

typedef struct
{
  char *pattern;
  EbbParallelStyle style;
} EbbParallelRule;

struct _EbbParallelPlan
{
  GArray *rules; /* of EbbParallelRule */
};

struct _EbbParallelOptions
{
  GObject parent_instance;

  EbbParallelPlan *plan; /* NULL: the model's own */
  gboolean sequence_parallel;
  gboolean synchronize_weights;
};

#define ebb_parallel_plan_get_rule(self, i) (&g_array_index ((self)->rules, EbbParallelRule, i))
gboolean ebb_parallel_rule_matches (const EbbParallelRule *self,
                                    const char *path);
/* "column_qkv" */
const char *ebb_parallel_style_get_name (EbbParallelStyle style);

G_END_DECLS
