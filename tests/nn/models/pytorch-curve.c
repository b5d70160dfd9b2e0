/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <math.h>

/* Twenty steps of a small GPT, as PyTorch took them from the same weights and data. A looser bound on the losses would
 * let real mistakes pass: three are planted here, and each must be seen. */

#define LOSS_BOUND 2e-6 /* relative, at each step */
#define GRAD_BOUND 1e-5 /* relative, in the Euclidean norm, each parameter at the first step */

typedef enum
{
  PLANTED_NOTHING,
  PLANTED_EPSILON,
  PLANTED_NO_DECAY,
  PLANTED_OTHER_GELU
} Planted;

typedef enum
{
  CHECKPOINT_NONE,
  CHECKPOINT_SELECTIVE,
  CHECKPOINT_FULL
} Checkpoint;

typedef struct
{
  const char *name;
  Planted planted;
  Checkpoint checkpoint;
  int n_threads;
} Run;

typedef struct
{
  double loss; /* the largest relative difference over the steps */
  double grad; /* and over the parameters */
} Distance;

static EbbModule *
make_gpt (const Run *run)
{
  EbbModule *gpt = test_fixture_gpt (
      67, 32, 72, run->planted == PLANTED_OTHER_GELU ? EBB_ACTIVATION_GELU : EBB_ACTIVATION_GELU_TANH);
  g_autoptr (EbbArgs) weights = test_load_fixture ("curve-weights.safetensors");
  g_autoptr (GError) error = NULL;

  ebb_gpt_load_gpt2 (EBB_GPT (gpt), weights, &error);
  g_assert_no_error (error);
  if (run->checkpoint != CHECKPOINT_NONE)
    {
      g_autoptr (EbbCheckpointOptions) options = run->checkpoint == CHECKPOINT_SELECTIVE
                                                     ? ebb_checkpoint_options_new_selective ()
                                                     : ebb_checkpoint_options_new ();

      ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
      g_assert_no_error (error);
    }
  return gpt;
}

/* The fixture was made with the defaults. */
static EbbOptimizer *
make_optimizer (const Run *run,
                EbbModule *gpt)
{
  g_autoptr (GError) error = NULL;
  EbbOptimizer *optimizer = ebb_adamw_new (gpt, 3e-4, &error);

  g_assert_no_error (error);
  if (run->planted == PLANTED_EPSILON)
    g_object_set (optimizer, "eps", 1e-7, NULL);
  else if (run->planted == PLANTED_NO_DECAY)
    g_object_set (optimizer, "weight-decay", 0.0, NULL);
  return optimizer;
}

/* Of attention's joint bias the middle third, the keys', is left out: it is zero except for rounding, because every
 * key's bias moves all scores of a query alike. */
static double
compare_gradient (EbbTensor *grad,
                  EbbTensor *expected,
                  gboolean has_keys)
{
  gint64 third = ebb_tensor_get_dim (grad, 0) / 3;
  EbbTensor *parts[2] = { NULL }, *expected_parts[2] = { NULL };
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;

  if (!has_keys)
    return test_relative_difference (grad, expected);
  for (guint i = 0; i < 2; i++)
    {
      parts[i] = ebb_narrow (grad, 0, 2 * i * third, third, NULL);
      expected_parts[i] = ebb_narrow (expected, 0, 2 * i * third, third, NULL);
    }
  a = ebb_cat (parts, 2, 0, NULL);
  b = ebb_cat (expected_parts, 2, 0, NULL);
  for (guint i = 0; i < 2; i++)
    {
      ebb_tensor_unref (parts[i]);
      ebb_tensor_unref (expected_parts[i]);
    }
  return test_relative_difference (a, b);
}

static double
compare_gradients (EbbModule *gpt,
                   EbbArgs *curve)
{
  g_auto (GStrv) names = ebb_module_get_parameter_names (gpt, TRUE);
  double worst = 0;

  g_assert_cmpuint (g_strv_length (names), ==, 2 + 2 * 12 + 2);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (gpt, names[i]);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);
      g_autoptr (EbbTensor) published = test_fixture_tensor (curve, "grad.%s", names[i]);
      gboolean turned = g_str_has_prefix (names[i], "h.") && ebb_tensor_get_n_dims (published) == 2;
      g_autoptr (EbbTensor) expected = turned ? ebb_transpose (published, 0, 1, NULL) : ebb_tensor_ref (published);
      double distance = compare_gradient (grad, expected, g_str_has_suffix (names[i], "c_attn.bias"));

      if (distance > worst)
        g_test_message ("gradient of %s: %g", names[i], distance);
      worst = MAX (worst, distance);
    }
  return worst;
}

static Distance
train (const Run *run)
{
  g_autoptr (EbbArgs) curve = test_load_fixture ("curve.safetensors");
  g_autoptr (EbbTensor) all_tokens = test_fixture_tensor (curve, "tokens");
  g_autoptr (EbbTensor) all_targets = test_fixture_tensor (curve, "targets");
  g_autoptr (EbbTensor) losses = test_fixture_tensor (curve, "losses");
  g_autoptr (EbbModule) gpt = make_gpt (run);
  g_autoptr (EbbOptimizer) optimizer = make_optimizer (run, gpt);
  Distance distance = { 0, 0 };

  g_assert_cmpint (ebb_tensor_get_n_elements (losses), ==, 20);
  ebb_set_num_threads (run->n_threads);
  for (guint step = 0; step < 20; step++)
    {
      g_autoptr (EbbTensor) tokens = ebb_select (all_tokens, 0, step, NULL);
      g_autoptr (EbbTensor) targets = ebb_select (all_targets, 0, step, NULL);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);

      ebb_tensor_backward (loss, &error);
      g_assert_no_error (error);
      distance.loss = MAX (distance.loss, fabs ((double) test_at (loss, 0) / test_at (losses, step) - 1));
      if (step == 0)
        distance.grad = compare_gradients (gpt, curve);
      ebb_optimizer_step (optimizer, &error);
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (optimizer);
    }
  g_test_message ("losses differ by %g, first gradients by %g", distance.loss, distance.grad);
  return distance;
}

static void
is_pytorchs (gconstpointer data)
{
  Distance distance = train (data);

  g_assert_cmpfloat (distance.loss, <, LOSS_BOUND);
  g_assert_cmpfloat (distance.grad, <, GRAD_BOUND);
}

static void
shows_a_planted_mistake (gconstpointer data)
{
  const Run *run = data;
  Distance distance = train (run);

  g_assert_cmpfloat (distance.loss, >, 2 * LOSS_BOUND);
  if (run->planted == PLANTED_OTHER_GELU)
    g_assert_cmpfloat (distance.grad, >, 2 * GRAD_BOUND);
  else
    g_assert_cmpfloat (distance.grad, <, GRAD_BOUND);
}

static const Run runs[] = {
  { "/pytorch-curve/is-pytorchs/none/1-thread", PLANTED_NOTHING, CHECKPOINT_NONE, 1 },
  { "/pytorch-curve/is-pytorchs/none/2-threads", PLANTED_NOTHING, CHECKPOINT_NONE, 2 },
  { "/pytorch-curve/is-pytorchs/selective/1-thread", PLANTED_NOTHING, CHECKPOINT_SELECTIVE, 1 },
  { "/pytorch-curve/is-pytorchs/selective/2-threads", PLANTED_NOTHING, CHECKPOINT_SELECTIVE, 2 },
  { "/pytorch-curve/is-pytorchs/full/1-thread", PLANTED_NOTHING, CHECKPOINT_FULL, 1 },
  { "/pytorch-curve/is-pytorchs/full/2-threads", PLANTED_NOTHING, CHECKPOINT_FULL, 2 },
  { "/pytorch-curve/shows-another-adam-epsilon", PLANTED_EPSILON, CHECKPOINT_NONE, 1 },
  { "/pytorch-curve/shows-missing-weight-decay", PLANTED_NO_DECAY, CHECKPOINT_NONE, 1 },
  { "/pytorch-curve/shows-the-other-gelu", PLANTED_OTHER_GELU, CHECKPOINT_NONE, 1 },
};

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (runs); i++)
    g_test_add_data_func (runs[i].name, &runs[i], runs[i].planted ? shows_a_planted_mistake : is_pytorchs);
  return g_test_run ();
}
