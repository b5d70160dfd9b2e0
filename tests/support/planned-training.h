/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* A training for plans, with all that a step changes: dropout, running statistics, clipping, a scale of gradients, a
 * schedule, rows of a text and two batches a step. */

G_BEGIN_DECLS

#define TEST_PLANNED_STEPS 3

typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbSchedule *schedule;
  EbbDataset *dataset;
  EbbTrainingState *state;
  EbbMemoryPlan *plan;
  gboolean in_backward;        /* parameters move in backward: one batch, and no clipping */
  gboolean zeroes_first;       /* gradients go at the step's beginning, and not at its end */
  gboolean varies, varies_dry; /* a later step has fewer rows */
  guint n_dry;                 /* dry steps so far... */
  guint fails_dry;             /* of which this one fails, after clipping; 0: none does */
  double losses[TEST_PLANNED_STEPS];
  guint n_steps;
} TestPlanned;

/* Always the same one, on the tested device. */
void test_planned_init (TestPlanned *self,
                        gboolean in_backward);
void test_planned_clear (TestPlanned *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (TestPlanned, test_planned_clear)

/* One step; @user_data is the training. */
gboolean test_planned_step (EbbModule *model,
                            gpointer user_data,
                            GError **error);
/* Puts on the plan. */
void test_planned_apply (TestPlanned *self,
                         const char *json);
/* Losses, weights and running statistics. */
void test_assert_same_planned (TestPlanned *a,
                               TestPlanned *b);

G_END_DECLS
