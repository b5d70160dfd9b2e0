/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

#define N 60

static EbbArgs *
load_fixture (void)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "op-optimizers.safetensors", NULL);
  g_autoptr (GError) error = NULL;
  EbbArgs *tensors = ebb_load_safetensors (path, &error);

  g_assert_no_error (error);
  return tensors;
}

static EbbTensor *
get (EbbArgs *args, const char *name)
{
  int index = ebb_args_find (args, name);
  g_autoptr (EbbTensor) tensor = NULL;

  g_assert_cmpint (index, >=, 0);
  tensor = ebb_args_get_tensor (args, (guint) index);
  return test_move (tensor);
}

static const float *
values (EbbTensor *tensor)
{
  g_assert_cmpint (ebb_tensor_get_dtype (tensor), ==, EBB_DTYPE_F32);
  return test_read (tensor);
}

static void
set_values (EbbTensor *tensor, EbbTensor *source)
{
  g_autoptr (GError) error = NULL;

  ebb_push_grad_enabled (FALSE);
  ebb_tensor_copy_from (tensor, source, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
}

static void
set_grad (EbbTensor *tensor, EbbTensor *grad)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) copy = ebb_copy (grad, &error);

  ebb_tensor_set_grad (tensor, copy, &error);
  g_assert_no_error (error);
}

/* A module with one parameter, weight [1, N]. */
static EbbModule *
make_module (EbbTensor **weight)
{
  g_autoptr (GError) error = NULL;
  EbbModule *module = ebb_linear_new (N, 1, FALSE, &error);

  g_assert_no_error (error);
  *weight = ebb_module_get_parameter (module, "weight");
  return module;
}

/* Takes the fixture's five steps; returns the largest distance from @expected, relative to the step's size. */
static double
follow_fixture (EbbArgs *fixture, EbbOptimizer *optimizer, EbbTensor *weight, const char *expected)
{
  g_autoptr (EbbTensor) start = get (fixture, "optimizer.start");
  g_autoptr (EbbTensor) gradients = get (fixture, "optimizer.gradients");
  g_autoptr (EbbTensor) wanted = get (fixture, expected);
  g_autoptr (GError) error = NULL;
  double worst = 0;

  set_values (weight, start);
  for (int step = 0; step < 5; step++)
    {
      g_autoptr (EbbTensor) grad = ebb_narrow (gradients, 0, step, 1, &error);

      set_grad (weight, grad);
      ebb_optimizer_step (optimizer, &error);
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (optimizer);
      for (int i = 0; i < N; i++)
        {
          double target = values (wanted)[step * N + i];

          worst = MAX (worst, fabs (values (weight)[i] - target) / (1e-7 * MAX (1, fabs (target))));
        }
    }
  return worst;
}

static void
adamw_equals_pytorch (void)
{
  g_autoptr (EbbArgs) fixture = load_fixture ();
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 3e-2, &error);
  g_autoptr (EbbOptimizer) other = ebb_adamw_new (module, 3e-2, &error);
  g_autoptr (EbbOptimizer) free = ebb_adamw_new (module, 3e-2, &error);

  g_assert_no_error (error);
  g_assert_cmpfloat (follow_fixture (fixture, optimizer, weight, "optimizer.adamw"), <, 5);
  /* The comparison sees what it must see. */
  g_object_set (other, "eps", 1e-7, NULL);
  g_assert_cmpfloat (follow_fixture (fixture, other, weight, "optimizer.adamw"), >, 50);
  g_object_set (free, "weight-decay", 0.0, NULL);
  g_assert_cmpfloat (follow_fixture (fixture, free, weight, "optimizer.adamw"), >, 50);
}

static void
sgd_equals_pytorch (void)
{
  g_autoptr (EbbArgs) fixture = load_fixture ();
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) plain = ebb_sgd_new (module, 0.1, &error);
  g_autoptr (EbbOptimizer) heavy = ebb_sgd_new (module, 0.1, &error);

  g_assert_no_error (error);
  g_assert_cmpfloat (follow_fixture (fixture, plain, weight, "optimizer.sgd"), <, 5);
  g_object_set (heavy, "momentum", 0.9, "weight-decay", 0.01, NULL);
  g_assert_cmpfloat (follow_fixture (fixture, heavy, weight, "optimizer.sgd_momentum"), <, 5);
}

/* Both optimizers with all their options against the formulas in double. */
typedef struct
{
  double w[N], a[N], b[N];
} Reference;

static void
step_adamw (Reference *r, const float *g, int t, double lr, double decay, double scale)
{
  for (int i = 0; i < N; i++)
    {
      double grad = g[i] * scale;

      r->w[i] -= lr * decay * r->w[i];
      r->a[i] = 0.8 * r->a[i] + 0.2 * grad;
      r->b[i] = 0.95 * r->b[i] + 0.05 * grad * grad;
      r->w[i] -= lr / (1 - pow (0.8, t)) * r->a[i] / (sqrt (r->b[i] / (1 - pow (0.95, t))) + 1e-3);
    }
}

static void
step_sgd (Reference *r, const float *g, int t, double lr, double decay, double scale)
{
  for (int i = 0; i < N; i++)
    {
      double grad = g[i] * scale + decay * r->w[i];

      r->a[i] = t == 1 ? grad : 0.7 * r->a[i] + grad;
      r->w[i] -= lr * (grad + 0.7 * r->a[i]);
    }
}

static void
step_damped_sgd (Reference *r, const float *g, int t, double lr, double decay, double scale)
{
  for (int i = 0; i < N; i++)
    {
      double grad = g[i] * scale + decay * r->w[i];

      r->a[i] = t == 1 ? grad : 0.7 * r->a[i] + 0.6 * grad;
      r->w[i] -= lr * r->a[i];
    }
}

static void
follow_reference (EbbOptimizer *optimizer,
                  EbbTensor *weight,
                  void (*step) (Reference *, const float *, int, double, double, double))
{
  g_autoptr (EbbArgs) fixture = load_fixture ();
  g_autoptr (EbbTensor) start = get (fixture, "optimizer.start");
  g_autoptr (EbbTensor) gradients = get (fixture, "optimizer.gradients");
  g_autoptr (GError) error = NULL;
  Reference reference = { .w = { 0 } };

  set_values (weight, start);
  for (int i = 0; i < N; i++)
    reference.w[i] = values (start)[i];
  g_object_set (optimizer, "lr-scale", 0.5, NULL);
  for (int t = 1; t <= 5; t++)
    {
      g_autoptr (EbbTensor) grad = ebb_narrow (gradients, 0, t - 1, 1, &error);

      set_grad (weight, grad);
      /* Only the third step's gradient is scaled. */
      if (t == 3)
        ebb_optimizer_scale_grad (optimizer, 0.25);
      ebb_optimizer_step (optimizer, &error);
      g_assert_no_error (error);
      step (&reference, values (grad), t, 0.5 * 0.02, 0.1, t == 3 ? 0.25 : 1);
      for (int i = 0; i < N; i++)
        g_assert_cmpfloat_with_epsilon (values (weight)[i], reference.w[i], 6e-7);
    }
  g_assert_cmpint (ebb_optimizer_get_n_steps (optimizer), ==, 5);
}

static void
adamw_follows_its_formula (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 0.02, &error);

  g_assert_no_error (error);
  g_object_set (optimizer, "beta1", 0.8, "beta2", 0.95, "eps", 1e-3, "weight-decay", 0.1, NULL);
  follow_reference (optimizer, weight, step_adamw);
}

static void
nesterov_follows_its_formula (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0.02, &error);

  g_assert_no_error (error);
  g_object_set (optimizer, "momentum", 0.7, "nesterov", TRUE, "weight-decay", 0.1, NULL);
  follow_reference (optimizer, weight, step_sgd);
}

/* The first gradient is taken as it is, the later ones damped. */
static void
dampening_follows_its_formula (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0.02, &error);

  g_assert_no_error (error);
  g_object_set (optimizer, "momentum", 0.7, "dampening", 0.4, "weight-decay", 0.1, NULL);
  follow_reference (optimizer, weight, step_damped_sgd);
}

/* With decay the moments see the parameter: Adam's gradient is g + weight_decay * w, AdamW's is g. */
static void
step_adam (Reference *r, const float *g, int t, double lr, double decay, double scale)
{
  float decayed[N];

  for (int i = 0; i < N; i++)
    decayed[i] = (float) (g[i] * scale + decay * r->w[i]);
  step_adamw (r, decayed, t, lr, 0, 1);
}

static void
adam_adds_the_decay_to_the_gradient (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adam_new (module, 0.02, &error);

  g_assert_no_error (error);
  g_assert_cmpfloat (test_get_double (optimizer, "weight-decay"), ==, 0);
  g_object_set (optimizer, "beta1", 0.8, "beta2", 0.95, "eps", 1e-3, "weight-decay", 0.1, NULL);
  follow_reference (optimizer, weight, step_adam);
}

/* -- groups -------------------------------------------------------------------------------------------------------- */

static void
biases_and_norms_can_be_spared_decay (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_mlp_new (8, 16, EBB_ACTIVATION_GELU_TANH, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 0.1, &error);
  g_auto (GStrv) all = ebb_module_get_parameter_names (module, TRUE);
  g_auto (GStrv) decayed = NULL;
  g_auto (GStrv) spared = NULL;

  g_assert_no_error (error);
  g_assert_true (ebb_optimizer_exclude_from_decay (optimizer, &error));
  g_assert_cmpuint (ebb_optimizer_get_n_groups (optimizer), ==, 2);
  decayed = ebb_optimizer_get_group_names (optimizer, 0);
  spared = ebb_optimizer_get_group_names (optimizer, 1);
  g_assert_cmpuint (g_strv_length (decayed) + g_strv_length (spared), ==, g_strv_length (all));
  for (guint i = 0; decayed[i] != NULL; i++)
    g_assert_true (g_str_has_suffix (decayed[i], "weight"));
  for (guint i = 0; spared[i] != NULL; i++)
    g_assert_true (g_str_has_suffix (spared[i], "bias"));
  g_assert_cmpfloat (ebb_optimizer_get_group_weight_decay (optimizer, 0), ==, 0.01);
  g_assert_cmpfloat (ebb_optimizer_get_group_weight_decay (optimizer, 1), ==, 0);
  g_object_set (optimizer, "lr", 0.2, NULL);
  g_assert_cmpfloat (ebb_optimizer_get_group_lr (optimizer, 1), ==, 0.2);
}

static void
groups_have_their_own_rates (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (4, 4, TRUE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0.5, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) bias = ebb_module_get_parameter (module, "bias");
  const char *patterns[] = { "b*", NULL }, *wrong[] = { "weight", "gain", NULL };
  guint group;

  g_assert_no_error (error);
  ebb_push_grad_enabled (FALSE);
  ebb_tensor_fill (weight, 1, &error);
  ebb_tensor_fill (bias, 1, &error);
  ebb_pop_grad_enabled ();
  g_assert_true (ebb_optimizer_add_group (optimizer, patterns, 0.25, 2, &group, &error));
  g_assert_cmpuint (group, ==, 1);
  test_fill_grads (optimizer, 1);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpfloat (values (weight)[3], ==, 0.5f);
  g_assert_cmpfloat (values (bias)[3], ==, 0.25f);

  g_assert_false (ebb_optimizer_add_group (optimizer, wrong, 1, 1, &group, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_nonnull (strstr (error->message, "no parameter's name matches \"gain\""));
  g_assert_cmpuint (ebb_optimizer_get_n_groups (optimizer), ==, 2);
  g_clear_error (&error);

  /* Parameters without decay keep the rate of the group that they leave. */
  g_assert_true (ebb_optimizer_exclude_from_decay (optimizer, &error));
  g_assert_cmpuint (ebb_optimizer_get_n_groups (optimizer), ==, 3);
  g_assert_cmpfloat (ebb_optimizer_get_group_lr (optimizer, 2), ==, 0.25);
  g_assert_cmpfloat (ebb_optimizer_get_group_weight_decay (optimizer, 2), ==, 0);
}

/* -- gradients ----------------------------------------------------------------------------------------------------- */

static void
gradients_are_dropped_or_zeroed (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, &error);
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) after = NULL;

  test_fill_grads (optimizer, 3);
  grad = ebb_tensor_get_grad (weight);
  g_assert_true (ebb_optimizer_zero_grad_in_place (optimizer, &error));
  after = ebb_tensor_get_grad (weight);
  g_assert_true (after == grad);
  g_assert_cmpfloat (values (grad)[N - 1], ==, 0);
  ebb_optimizer_zero_grad (optimizer);
  g_assert_null (ebb_tensor_get_grad (weight));
}

static void
a_parameter_without_gradient_stays (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (4, 4, TRUE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 0.5, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) bias = ebb_module_get_parameter (module, "bias");
  g_autoptr (EbbTensor) before = ebb_copy (weight, &error);

  test_fill_grads (optimizer, 1);
  ebb_tensor_set_grad (weight, NULL, &error);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_tensor_equal (weight, before));
  /* Its first step is corrected as a first step, however late it comes. */
  test_fill_grads (optimizer, 1);
  ebb_tensor_set_grad (bias, NULL, &error);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpfloat_with_epsilon (values (weight)[0], values (before)[0] * (1 - 0.5 * 0.01) - 0.5, 1e-6);
}

/* As with an optimizer that was made before ebb_lora_wrap (). One that has trained may wait. */
static void
frozen_parameters_alone_are_no_training (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (4, 4, TRUE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 0.5, &error);
  g_autoptr (EbbTensor) bias = ebb_module_get_parameter (module, "bias");

  g_assert_true (ebb_module_set_requires_grad (module, FALSE, &error));
  g_assert_false (ebb_optimizer_step (optimizer, &error));
  test_assert_error (error, EBB_ERROR_STATE, "none of the parameters of the AdamW requires a gradient",
                     "make the optimizer after the adapter is added");
  g_clear_error (&error);
  g_assert_true (ebb_tensor_set_requires_grad (bias, TRUE, &error));
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_true (ebb_tensor_set_requires_grad (bias, FALSE, &error));
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
}

/* -- state --------------------------------------------------------------------------------------------------------- */

static guint64
optimizer_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_OPTIMIZER);
}

static void
state_is_made_by_the_first_step (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 1, &error);
  guint64 before = optimizer_bytes ();

  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpuint (optimizer_bytes (), ==, before);
  test_fill_grads (optimizer, 1);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpuint (optimizer_bytes (), >=, before + 2 * N * 4);
  g_clear_object (&optimizer);
  g_assert_cmpuint (optimizer_bytes (), ==, before);
}

static void
take_steps (EbbOptimizer *optimizer, EbbTensor *weight, int first, int n)
{
  g_autoptr (EbbArgs) fixture = load_fixture ();
  g_autoptr (EbbTensor) gradients = get (fixture, "optimizer.gradients");
  g_autoptr (GError) error = NULL;

  for (int step = first; step < first + n; step++)
    {
      g_autoptr (EbbTensor) row = ebb_narrow (gradients, 0, step, 1, &error);
      g_autoptr (EbbTensor) grad = ebb_cast (row, ebb_tensor_get_dtype (weight), &error);

      set_grad (weight, grad);
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
    }
}

static void
a_loaded_state_goes_on_bit_for_bit (gconstpointer data)
{
  EbbDType dtype = (EbbDType) GPOINTER_TO_INT (data);
  g_autoptr (EbbTensor) weight_a = NULL;
  g_autoptr (EbbTensor) weight_b = NULL;
  g_autoptr (EbbModule) a = make_module (&weight_a);
  g_autoptr (EbbModule) b = make_module (&weight_b);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) first = NULL;
  g_autoptr (EbbOptimizer) second = NULL;
  g_autoptr (EbbArgs) state = NULL;
  const char *patterns[] = { "weight", NULL };

  g_assert_true (ebb_module_to_dtype (a, dtype, &error) && ebb_module_to_dtype (b, dtype, &error));
  first = ebb_adamw_new (a, 0.03, &error);
  second = ebb_adamw_new (b, 0.5, &error);
  g_object_set (first, "beta1", 0.85, "eps", 1e-4, "weight-decay", 0.2, "lr-scale", 0.5, NULL);
  g_assert_true (ebb_optimizer_add_group (first, patterns, 0.01, -1, NULL, &error));
  take_steps (first, weight_a, 0, 3);

  set_values (weight_b, weight_a);
  state = ebb_optimizer_get_state (first);
  g_assert_true (ebb_optimizer_load_state (second, state, &error));
  g_assert_no_error (error);
  g_assert_cmpint (ebb_optimizer_get_n_steps (second), ==, 3);
  g_assert_cmpfloat (ebb_optimizer_get_group_lr (second, 1), ==, 0.01);
  take_steps (first, weight_a, 3, 2);
  take_steps (second, weight_b, 3, 2);
  g_assert_true (ebb_tensor_equal (weight_a, weight_b));
}

static void
a_state_that_does_not_fit_changes_nothing (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) other = ebb_linear_new (N, 2, FALSE, &error);
  g_autoptr (EbbModule) third = ebb_mlp_new (8, 16, EBB_ACTIVATION_GELU_TANH, &error);
  g_autoptr (EbbOptimizer) adamw = ebb_adamw_new (module, 0.1, &error);
  g_autoptr (EbbOptimizer) sgd = ebb_sgd_new (module, 0.1, &error);
  g_autoptr (EbbOptimizer) wider = ebb_adamw_new (other, 0.1, &error);
  g_autoptr (EbbOptimizer) renamed = ebb_adamw_new (third, 0.1, &error);
  g_autoptr (EbbArgs) state = NULL;

  take_steps (adamw, weight, 0, 2);
  state = ebb_optimizer_get_state (adamw);
  g_assert_false (ebb_optimizer_load_state (sgd, state, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_cmpstr (error->message, ==, "the state is one of the optimizer adamw: this one is sgd");
  g_clear_error (&error);
  g_assert_false (ebb_optimizer_load_state (wider, state, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_nonnull (strstr (error->message, "exp_avg of weight is f32 [1, 60]: it must be f32 [2, 60]"));
  g_assert_cmpint (ebb_optimizer_get_n_steps (wider), ==, 0);
  g_clear_error (&error);
  g_assert_false (ebb_optimizer_load_state (renamed, state, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_nonnull (strstr (error->message, "a parameter \"weight\", which it does not have"));
}

/* Steps of a thousandth of the weight are lost in bfloat16, unless they are summed up in 32 bits. */
static void
small_steps_add_up_in_bf16 (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbTensor) wide = NULL;

  g_assert_true (ebb_module_to_dtype (module, EBB_DTYPE_BF16, &error));
  optimizer = ebb_sgd_new (module, 1e-3, &error);
  ebb_push_grad_enabled (FALSE);
  ebb_tensor_fill (weight, 1, &error);
  ebb_pop_grad_enabled ();
  for (int i = 0; i < 250; i++)
    {
      test_fill_grads (optimizer, 1);
      g_assert_true (ebb_optimizer_step (optimizer, &error));
    }
  g_assert_no_error (error);
  wide = ebb_cast (weight, EBB_DTYPE_F32, &error);
  g_assert_cmpfloat (values (wide)[7], ==, 0.75f);

  /* Weights that are set later are taken over. */
  ebb_push_grad_enabled (FALSE);
  ebb_tensor_fill (weight, 3, &error);
  ebb_pop_grad_enabled ();
  test_fill_grads (optimizer, 1);
  g_object_set (optimizer, "lr", 1.0, NULL);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  wide = (ebb_tensor_unref (wide), ebb_cast (weight, EBB_DTYPE_F32, &error));
  g_assert_cmpfloat (values (wide)[7], ==, 2);
}

static void
autocast_sees_the_new_weights (void)
{
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbModule) module = make_module (&weight);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, &error);
  const gint64 shape[] = { 1, N };
  g_autoptr (EbbTensor) x = ebb_ones (shape, 2, EBB_DTYPE_F32, NULL, &error);
  double sums[2];

  for (int i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = NULL;

      ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
      y = ebb_module_call1 (module, x, &error);
      ebb_pop_autocast ();
      g_assert_true (ebb_tensor_get_item (y, &sums[i], &error));
      test_fill_grads (optimizer, 1);
      g_assert_true (ebb_optimizer_step (optimizer, &error));
    }
  g_assert_no_error (error);
  g_assert_cmpfloat_with_epsilon (sums[1], sums[0] - N, 1);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/optimizer/adamw-equals-pytorch", adamw_equals_pytorch);
  g_test_add_func ("/optimizer/sgd-equals-pytorch", sgd_equals_pytorch);
  g_test_add_func ("/optimizer/adamw-follows-its-formula", adamw_follows_its_formula);
  g_test_add_func ("/optimizer/adam-adds-the-decay-to-the-gradient", adam_adds_the_decay_to_the_gradient);
  g_test_add_func ("/optimizer/nesterov-follows-its-formula", nesterov_follows_its_formula);
  g_test_add_func ("/optimizer/dampening-follows-its-formula", dampening_follows_its_formula);
  g_test_add_func ("/optimizer/biases-and-norms-can-be-spared-decay", biases_and_norms_can_be_spared_decay);
  g_test_add_func ("/optimizer/groups-have-their-own-rates", groups_have_their_own_rates);
  g_test_add_func ("/optimizer/gradients-are-dropped-or-zeroed", gradients_are_dropped_or_zeroed);
  g_test_add_func ("/optimizer/a-parameter-without-gradient-stays", a_parameter_without_gradient_stays);
  g_test_add_func ("/optimizer/frozen-parameters-alone-are-no-training", frozen_parameters_alone_are_no_training);
  g_test_add_func ("/optimizer/state-is-made-by-the-first-step", state_is_made_by_the_first_step);
  g_test_add_data_func ("/optimizer/a-loaded-state-goes-on-bit-for-bit/f32", GINT_TO_POINTER (EBB_DTYPE_F32),
                        a_loaded_state_goes_on_bit_for_bit);
  g_test_add_data_func ("/optimizer/a-loaded-state-goes-on-bit-for-bit/bf16", GINT_TO_POINTER (EBB_DTYPE_BF16),
                        a_loaded_state_goes_on_bit_for_bit);
  g_test_add_func ("/optimizer/a-state-that-does-not-fit-changes-nothing", a_state_that_does_not_fit_changes_nothing);
  g_test_add_func ("/optimizer/small-steps-add-up-in-bf16", small_steps_add_up_in_bf16);
  g_test_add_func ("/optimizer/autocast-sees-the-new-weights", autocast_sees_the_new_weights);
  return g_test_run ();
}
