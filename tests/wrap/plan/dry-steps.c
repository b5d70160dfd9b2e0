/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread */
/* A training that is planned or estimated by its own step goes on as one that isn't: dry steps leave nothing behind. */
#include "nn/optim/optimizer-private.h"
#include "support/device.h"
#include "support/planned-training.h"
#include "wrap/plan/memory-plan-private.h"

typedef enum
{
  PLANNED,
  TOO_LITTLE, /* there is no plan */
  FAILED,     /* a dry step fails half-way */
  ESTIMATED,
  N_KINDS
} Kind;

static void
run_dry (TestPlanned *self, Kind kind)
{
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_autoptr (GError) error = NULL;

  self->n_dry = 0;
  self->fails_dry = kind == FAILED ? 2 : 0;
  if (kind == ESTIMATED)
    estimate = ebb_memory_estimate_new (self->model, test_device (), test_planned_step, self, &error);
  else
    plan = ebb_memory_plan_make (self->model, test_device (), NULL, test_planned_step, self,
                                 kind == TOO_LITTLE ? 1 : G_MAXINT64, 0, &error);
  g_assert_true ((plan != NULL || estimate != NULL) == (error == NULL));
  g_assert_true ((error == NULL) == (kind == PLANNED || kind == ESTIMATED));
  g_assert_cmpuint (self->n_dry, >=, 2);
}

/* All that isn't a tensor. */
typedef struct
{
  gint64 position, n_steps;
  double lr_scale, grad_scale;
  guint64 seed, offset;
} Numbers;

static Numbers
get_numbers (TestPlanned *self)
{
  const EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self->optimizer);
  EbbGenerator *generator = ebb_generator_get_default ();
  Numbers numbers = { .n_steps = priv->n_steps,
                      .lr_scale = priv->lr_scale,
                      .grad_scale = priv->grad_scale,
                      .seed = ebb_generator_get_seed (generator),
                      .offset = ebb_generator_get_offset (generator) };

  g_object_get (self->dataset, "position", &numbers.position, NULL);
  return numbers;
}

static void
assert_same_numbers (Numbers a, Numbers b)
{
  g_assert_cmpint (a.position, ==, b.position);
  g_assert_cmpint (a.n_steps, ==, b.n_steps);
  g_assert_cmpfloat (a.lr_scale, ==, b.lr_scale);
  g_assert_cmpfloat (a.grad_scale, ==, b.grad_scale);
  g_assert_cmpuint (a.seed, ==, b.seed);
  g_assert_cmpuint (a.offset, ==, b.offset);
}

static void
train (TestPlanned *self, gboolean in_backward, gboolean zeroes_first)
{
  test_planned_init (self, in_backward);
  self->zeroes_first = zeroes_first;
}

static void
step (TestPlanned *self)
{
  g_autoptr (GError) error = NULL;

  test_planned_step (self->model, self, &error);
  g_assert_no_error (error);
}

/* Before each step, and so before the first one, where there is no state yet. */
static void
each_step (gboolean in_backward, gboolean zeroes_first)
{
  g_auto (TestPlanned) plain = { 0 };

  train (&plain, in_backward, zeroes_first);
  for (guint i = 0; i < TEST_PLANNED_STEPS; i++)
    step (&plain);
  for (Kind kind = 0; kind < N_KINDS; kind++)
    {
      g_auto (TestPlanned) training = { 0 };

      train (&training, in_backward, zeroes_first);
      for (guint i = 0; i < TEST_PLANNED_STEPS; i++)
        {
          const Numbers before = get_numbers (&training);

          run_dry (&training, kind);
          assert_same_numbers (get_numbers (&training), before);
          step (&training);
        }
      test_assert_same_planned (&training, &plain);
    }
}

static void
test_zero_last (void)
{
  each_step (FALSE, FALSE);
}

static void
test_zero_first (void)
{
  each_step (FALSE, TRUE);
}

static void
test_in_backward (void)
{
  each_step (TRUE, FALSE);
}

static void
assert_pending (TestPlanned *self, EbbTensor *factor)
{
  const EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self->optimizer);

  g_assert_true (priv->grad_factor == factor);
  g_assert_cmpfloat (priv->grad_scale, ==, 0.25);
  g_assert_cmpfloat (ebb_optimizer_get_group_lr (self->optimizer, 0), ==, 0.125);
  for (guint i = 0; i < priv->n_slots; i++)
    g_assert_nonnull (priv->slots[i].parameter->grad);
}

/* A scale and a clipping that the next step is to take stay for it, though dry steps have ones of their own. */
static void
test_pending (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbTensor) norm = NULL;
  EbbTensor *factor;

  train (&training, FALSE, TRUE);
  step (&training);
  norm = ebb_optimizer_clip_grad_norm (training.optimizer, 0.5, NULL);
  g_assert_nonnull (norm);
  ebb_optimizer_scale_grad (training.optimizer, 0.25);
  ebb_optimizer_set_group_lr (training.optimizer, 0, 0.125);
  factor = ebb_optimizer_get_private (training.optimizer)->grad_factor;
  for (Kind kind = 0; kind < N_KINDS; kind++)
    {
      run_dry (&training, kind);
      assert_pending (&training, factor);
    }
}

/* -- steps that change more ---------------------------------------------------------------------------------------- */

static gboolean
change_more (EbbModule *model, gpointer user_data, GError **error)
{
  TestPlanned *self = user_data;

  g_object_set (self->dataset, "position", (gint64) 77, "shuffle", FALSE, NULL);
  ebb_optimizer_set_group_lr (self->optimizer, 0, 5);
  ebb_optimizer_set_group_weight_decay (self->optimizer, 0, 5);
  g_object_set (self->optimizer, "lr", 5.0, NULL);
  return ebb_optimizer_step (self->optimizer, error); /* of no gradient */
}

static void
test_more (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  EbbOptimizer *optimizer;
  gint64 position;
  gboolean shuffle;
  double lr;

  train (&training, FALSE, FALSE);
  optimizer = training.optimizer;
  estimate = ebb_memory_estimate_new (training.model, test_device (), change_more, &training, NULL);
  g_assert_nonnull (estimate);
  g_object_get (training.dataset, "position", &position, "shuffle", &shuffle, NULL);
  g_object_get (optimizer, "lr", &lr, NULL);
  g_assert_cmpint (position, ==, 0);
  g_assert_true (shuffle);
  g_assert_cmpfloat (lr, ==, 1e-2);
  g_assert_cmpfloat (ebb_optimizer_get_group_lr (optimizer, 0), ==, 1e-2);
  g_assert_cmpfloat (ebb_optimizer_get_group_weight_decay (optimizer, 0), <, 1);
  g_assert_cmpint (ebb_optimizer_get_n_steps (optimizer), ==, 0);
}

/* A run inside another one gives back what the outer one has changed, and the outer one what it found. */
static void
test_nested (void)
{
  g_auto (TestPlanned) training = { 0 };
  g_autoptr (EbbTensor) tokens = NULL, targets = NULL;
  gint64 position;

  train (&training, FALSE, FALSE);
  ebb_push_dry_run ();
  g_object_set (training.dataset, "position", (gint64) 5, NULL);
  run_dry (&training, ESTIMATED);
  g_object_get (training.dataset, "position", &position, NULL);
  g_assert_cmpint (position, ==, 5);
  ebb_pop_dry_run ();
  g_object_get (training.dataset, "position", &position, NULL);
  g_assert_cmpint (position, ==, 0);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  g_test_add_func ("/plan/dry-steps/change-no-bit", test_zero_last);
  g_test_add_func ("/plan/dry-steps/change-no-bit-of-steps-that-drop-gradients-first", test_zero_first);
  g_test_add_func ("/plan/dry-steps/change-no-bit-of-steps-in-backward", test_in_backward);
  g_test_add_func ("/plan/dry-steps/leave-scales-and-clipping-to-the-next-step", test_pending);
  g_test_add_func ("/plan/dry-steps/give-back-properties", test_more);
  g_test_add_func ("/plan/dry-steps/nest", test_nested);
  return g_test_run ();
}
