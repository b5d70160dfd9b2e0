/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread */
/* A training that is planned or estimated by its own step goes on as one that isn't: dry steps leave nothing behind. */
#include "dist/group/process-group-private.h"
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

/* -- parameters in host memory ------------------------------------------------------------------------------------- */

#define N_LINEARS 6
#define WIDTH 64
#define UNIT ((WIDTH + 1) * WIDTH * sizeof (float))

typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbTensor *input;
} Offloaded;

static void
offloaded_init (Offloaded *self)
{
  const gint64 shape[] = { 8, WIDTH };
  g_autoptr (EbbProcessGroup) group = ebb_single_group_new ();
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (GError) error = NULL;

  g_object_set (options, "offload", TRUE, NULL);
  self->model = ebb_sequential_new ();
  for (guint i = 0; i < N_LINEARS; i++)
    {
      g_autoptr (EbbModule) linear = ebb_linear_new (WIDTH, WIDTH, TRUE, &error);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (self->model), linear, &error));
    }
  g_assert_true (ebb_fully_shard_wrap_each (self->model, EBB_TYPE_LINEAR, group, options, &error));
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->model, 1e-3, &error));
  self->input = ebb_zeros (shape, 2, EBB_DTYPE_F32, test_device (), &error);
  g_assert_no_error (error);
}

static gboolean
step_offloaded (EbbModule *model,
                gpointer user_data,
                GError **error)
{
  Offloaded *self = user_data;
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, self->input, error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, error);

  if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  return TRUE;
}

static guint64
get_peak (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

/* They count where they are, and the device's plan and its check look at the device. */
static void
test_offloaded (void)
{
  Offloaded self = { 0 };
  g_autoptr (GError) error = NULL;

  offloaded_init (&self);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbMemoryEstimate) estimate =
          ebb_memory_estimate_new (self.model, test_device (), step_offloaded, &self, &error);
      guint64 least;

      g_assert_no_error (error);
      for (guint k = 0; k < 2; k++)
        {
          ebb_memory_reset_peaks (test_device ());
          ebb_memory_reset_peaks (NULL);
          g_assert_true (step_offloaded (self.model, &self, &error));
        }
      g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, get_peak (test_device ()));
      /* When collectives give their workspace back is a matter of time. */
      least = ebb_memory_estimate_get_host_peak_total (estimate) - (test_device () == ebb_device_get_cpu () ? 0 : UNIT);
      g_assert_cmpuint (get_peak (NULL), >=, least);
      g_assert_cmpuint (get_peak (NULL), <=, least + UNIT);
    }
  ebb_tensor_unref (self.input);
  g_object_unref (self.optimizer);
  g_object_unref (self.model);
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
  g_test_add_func ("/plan/dry-steps/offloaded-parameters-stay-in-host-memory", test_offloaded);
  return g_test_run ();
}
