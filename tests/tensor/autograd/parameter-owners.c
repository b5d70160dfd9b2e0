/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/autograd/leaf-hook-private.h"

#include <math.h>
#include <string.h>

/* The calls of optimizers, clipping and modules to the owner of a parameter. */

typedef struct
{
  EbbParameterOwner base;
  gpointer shard_group;
  double others; /* what other ranks add to a sum of squares */
  gint64 n_elements;
  gboolean is_full;
  EbbTensor *pending; /* that finalize () gives as the gradient */
  guint n_finalized, n_dropped, n_sums;
} Owner;

static gboolean
finalize (EbbParameterOwner *owner, EbbTensor *parameter, GError **error)
{
  Owner *self = (Owner *) owner;

  self->n_finalized++;
  if (self->pending != NULL)
    ebb_tensor_set_grad (parameter, self->pending, NULL);
  return TRUE;
}

static gboolean
fail_to_finalize (EbbParameterOwner *owner, EbbTensor *parameter, GError **error)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "can't be finalized");
  return FALSE;
}

static void
drop_grads (EbbParameterOwner *owner, EbbTensor *parameter)
{
  ((Owner *) owner)->n_dropped++;
}

static gpointer
get_shard_group (EbbParameterOwner *owner)
{
  return ((Owner *) owner)->shard_group;
}

static gboolean
reduce_over_shards (EbbParameterOwner *owner, EbbReduceKind op, EbbTensor *values, GError **error)
{
  Owner *self = (Owner *) owner;
  const gint64 one = 1;
  g_autoptr (EbbTensor) sum = NULL;
  double value;
  gint64 bits;

  g_assert_cmpint (values->n_elements, ==, 1);
  g_assert_cmpint (op, ==, EBB_REDUCE_SUM);
  self->n_sums++;
  memcpy (&value, test_read (values), sizeof value);
  value += self->others;
  memcpy (&bits, &value, sizeof bits);
  sum = ebb_tensor_new_from_ints (&bits, 1, &one, 1, error);
  return sum != NULL && ebb_tensor_copy_from (values, sum, error);
}

static gboolean
is_full (EbbParameterOwner *owner, EbbTensor *parameter)
{
  return ((Owner *) owner)->is_full;
}

static gint64
get_n_elements (EbbParameterOwner *owner, EbbTensor *parameter)
{
  return ((Owner *) owner)->n_elements;
}

static const EbbParameterOwnerFuncs funcs = {
  .finalize = finalize,
  .drop_grads = drop_grads,
  .get_shard_group = get_shard_group,
  .reduce_over_shards = reduce_over_shards,
  .is_full = is_full,
  .get_n_elements = get_n_elements,
};
static const EbbParameterOwnerFuncs failing_funcs = { .finalize = fail_to_finalize };

/* Parameters weight [3, 2] and bias [3]. */
static EbbModule *
linear_new (void)
{
  EbbModule *module;

  ebb_manual_seed (1);
  module = ebb_linear_new (2, 3, TRUE, NULL);
  return module;
}

static EbbTensor *
peek (EbbModule *module, const char *name)
{
  EbbTensor *parameter = ebb_module_get_parameter (module, name);

  ebb_tensor_unref (parameter);
  return parameter;
}

static void
set_ones (EbbTensor *parameter)
{
  g_autoptr (EbbTensor) ones =
      ebb_ones (parameter->view.shape, (guint) parameter->view.n_dims, EBB_DTYPE_F32, NULL, NULL);

  ebb_tensor_set_grad (parameter, ones, NULL);
}

/* -- clipping ------------------------------------------------------------------------------------------------------ */

/* 6 ones here and 10 squares elsewhere in the weight's split, 3 ones in the bias, which every rank has. */
static void
test_norm_is_that_of_all_parts (void)
{
  int place;
  Owner owner = { { &funcs }, .shard_group = &place, .others = 10 };
  g_autoptr (EbbModule) module = linear_new ();
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 0.1, NULL);
  EbbTensor *weight = peek (module, "weight"), *bias = peek (module, "bias");
  EbbTensor *parameters[] = { weight, bias };
  double norm;

  set_ones (weight);
  set_ones (bias);
  weight->owner = &owner.base;
  g_assert_true (test_clip_grad (optimizer, 100, 2, &norm, NULL));
  g_assert_cmpfloat_with_epsilon (norm, sqrt (19), 1e-6);
  g_assert_cmpuint (owner.n_sums, ==, 1);
  g_assert_true (test_clip_grads_of (parameters, 2, 1, 2, &norm, NULL));
  g_assert_cmpfloat_with_epsilon (norm, sqrt (19), 1e-6);
  g_assert_cmpfloat_with_epsilon (test_at (bias->grad, 0), 1 / sqrt (19), 1e-5);

  /* A rank that has nothing to add makes the same calls. */
  ebb_tensor_set_grad (weight, NULL, NULL);
  ebb_tensor_set_grad (bias, NULL, NULL);
  g_assert_true (test_clip_grad (optimizer, 100, 2, &norm, NULL));
  g_assert_cmpuint (owner.n_sums, ==, 3);
  g_assert_cmpfloat_with_epsilon (norm, sqrt (10), 1e-6);
  weight->owner = NULL;
}

static void
test_each_split_is_summed_once (void)
{
  int place, other_place;
  Owner first = { { &funcs }, .shard_group = &place, .others = 1 };
  Owner second = { { &funcs }, .shard_group = &place, .others = 1 };
  Owner third = { { &funcs }, .shard_group = &other_place, .others = 100 };
  Owner *const owners[] = { &first, &second, &third };
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  EbbTensor *parameters[3];
  double norm;

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) linear = linear_new ();
      g_autofree char *name = g_strdup_printf ("%u", i);

      parameters[i] = peek (linear, "weight");
      set_ones (parameters[i]);
      parameters[i]->owner = &owners[i]->base;
      ebb_module_register_child (module, name, linear, NULL);
    }
  g_assert_true (test_clip_grads_of (parameters, 3, 1e9, 2, &norm, NULL));
  g_assert_cmpfloat_with_epsilon (norm, sqrt (6 * 3 + 1 + 100), 1e-6);
  g_assert_cmpuint (first.n_sums, ==, 1);
  g_assert_cmpuint (second.n_sums, ==, 0);
  g_assert_cmpuint (third.n_sums, ==, 1);
  for (guint i = 0; i < 3; i++)
    parameters[i]->owner = NULL;
}

/* -- settling and forgetting --------------------------------------------------------------------------------------- */

static void
test_steps_finalize_before_they_look (void)
{
  g_autoptr (EbbModule) module = linear_new ();
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, NULL);
  EbbTensor *weight = peek (module, "weight");
  g_autoptr (EbbTensor) pending = ebb_ones (weight->view.shape, 2, EBB_DTYPE_F32, NULL, NULL);
  Owner owner = { { &funcs }, .pending = pending, .is_full = TRUE };
  float before = test_at (weight, 0);
  guint n_dropped;

  weight->owner = &owner.base;
  g_assert_true (ebb_optimizer_step (optimizer, NULL));
  g_assert_cmpuint (owner.n_finalized, ==, 1);
  g_assert_cmpfloat_with_epsilon (test_at (weight, 0), before - 1, 1e-6);
  n_dropped = owner.n_dropped;
  ebb_optimizer_zero_grad (optimizer);
  g_assert_cmpuint (owner.n_dropped, >, n_dropped);
  g_assert_null (weight->grad);
  n_dropped = owner.n_dropped;
  ebb_module_zero_grad (module);
  g_assert_cmpuint (owner.n_dropped, >, n_dropped);
  n_dropped = owner.n_dropped;
  g_assert_true (ebb_optimizer_zero_grad_in_place (optimizer, NULL));
  g_assert_cmpuint (owner.n_dropped, >, n_dropped);
  weight->owner = NULL;
}

static void
test_an_owner_that_fails_to_finalize_stops_the_step (void)
{
  Owner owner = { { &failing_funcs } };
  g_autoptr (EbbModule) module = linear_new ();
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, NULL);
  g_autoptr (GError) error = NULL;
  EbbTensor *weight = peek (module, "weight"), *bias = peek (module, "bias");
  float before = test_at (bias, 0);

  set_ones (bias);
  weight->owner = &owner.base;
  g_assert_false (ebb_optimizer_step (optimizer, &error));
  test_assert_error (error, EBB_ERROR_STATE, "can't be finalized");
  g_clear_error (&error);
  g_assert_false (test_clip_grad (optimizer, 1, 2, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "can't be finalized");
  g_assert_cmpfloat (test_at (bias, 0), ==, before);
  g_assert_cmpint (ebb_optimizer_get_n_steps (optimizer), ==, 0);
  weight->owner = NULL;
}

static gboolean
count_call (EbbTensor *leaf, gpointer data, GError **error)
{
  ++*(guint *) data;
  return TRUE;
}

/* The pass can't know when the gradient of a parameter with an owner is final. */
static void
test_the_owner_reports_final_gradients (void)
{
  const EbbParameterOwnerFuncs none = { 0 };
  Owner owner = { { &none } };
  g_autoptr (EbbModule) module = linear_new ();
  g_autoptr (EbbTensor) x = test_randn (1, 4, 2, -1);
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, NULL);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, NULL);
  EbbTensor *weight = peek (module, "weight"), *bias = peek (module, "bias");
  guint n_weight = 0, n_bias = 0;

  ebb_leaf_set_hook (weight, count_call, &n_weight);
  ebb_leaf_set_hook (bias, count_call, &n_bias);
  weight->owner = &owner.base;
  g_assert_true (ebb_leaf_notify (weight, NULL)); /* without a gradient there is nothing to tell */
  g_assert_true (ebb_tensor_backward (loss, NULL));
  g_assert_cmpuint (n_weight, ==, 0);
  g_assert_cmpuint (n_bias, ==, 1);
  g_assert_true (ebb_leaf_notify (weight, NULL));
  g_assert_cmpuint (n_weight, ==, 1);
  weight->owner = NULL;
  ebb_leaf_clear_hook (weight, &n_weight);
  g_assert_true (ebb_leaf_notify (weight, NULL));
  g_assert_cmpuint (n_weight, ==, 1);
  ebb_leaf_clear_hook (bias, &n_bias);
}

/* -- modules ------------------------------------------------------------------------------------------------------- */

static void
test_split_parameters_are_not_changed_by_others (void)
{
  Owner owner = { { &funcs }, .n_elements = 24 };
  g_autoptr (EbbModule) module = linear_new ();
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (module);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) other = test_randn (1, 3, 2, -1);
  EbbTensor *weight = peek (module, "weight");

  weight->owner = &owner.base;
  g_assert_cmpuint (ebb_module_count_parameters (module), ==, 24 + 3);
  g_assert_false (ebb_module_to_dtype (module, EBB_DTYPE_BF16, &error));
  test_assert_error (error, EBB_ERROR_STATE, "Linear", "weight", "before ebb_fully_shard()");
  g_clear_error (&error);
  g_assert_false (ebb_module_to_device (module, ebb_device_get_cpu (), &error));
  test_assert_error (error, EBB_ERROR_STATE, "weight");
  g_clear_error (&error);
  g_assert_false (ebb_module_load_state_dict (module, state, TRUE, &error));
  test_assert_error (error, EBB_ERROR_STATE, "weight", "ebb_load_full_state_dict()", "ebb_summon_full_params()");
  g_clear_error (&error);
  g_assert_false (ebb_module_register_parameter (module, "weight", other, &error));
  test_assert_error (error, EBB_ERROR_STATE, "\"weight\"", "before ebb_fully_shard()");
  g_clear_error (&error);
  owner.is_full = TRUE; /* summoned */
  g_assert_true (ebb_module_load_state_dict (module, state, TRUE, NULL));
  weight->owner = NULL;
}

/* -- parts without elements ---------------------------------------------------------------------------------------- */

static void
step_without_elements (EbbOptimizer *optimizer, EbbModule *module)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) state = NULL;
  double norm;

  for (guint step = 0; step < 2; step++)
    {
      set_ones (peek (module, "none"));
      set_ones (peek (module, "some"));
      g_assert_true (test_clip_grad (optimizer, 1, 2, &norm, &error));
      g_assert_cmpfloat_with_epsilon (norm, 2, 1e-6);
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
    }
  state = ebb_optimizer_get_state (optimizer);
  g_assert_true (ebb_optimizer_load_state (optimizer, state, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
}

static void
test_parameters_without_elements (void)
{
  for (guint format = EBB_MOMENT_FORMAT_F32; format <= EBB_MOMENT_FORMAT_EIGHT_BIT + 1; format++)
    {
      g_autoptr (EbbModule) module = ebb_sequential_new ();
      g_autoptr (EbbTensor) none = test_randn (1, 0, 5, -1);
      g_autoptr (EbbTensor) some = test_randn (2, 1, 4, -1);
      g_autoptr (EbbOptimizer) optimizer = NULL;
      g_auto (GStrv) names = NULL;

      ebb_module_register_parameter (module, "none", none, NULL);
      ebb_module_register_parameter (module, "some", some, NULL);
      if (format > EBB_MOMENT_FORMAT_EIGHT_BIT)
        optimizer = ebb_sgd_new (module, 0.1, NULL);
      else
        {
          optimizer = ebb_adamw_new (module, 0.1, NULL);
          g_object_set (optimizer, "moment-format", (EbbMomentFormat) format, NULL);
        }
      g_assert_true (ebb_optimizer_exclude_from_decay (optimizer, NULL));
      names = ebb_optimizer_get_group_names (optimizer, 0);
      g_assert_cmpuint (g_strv_length (names), ==, 2);
      step_without_elements (optimizer, module);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/parameter-owners/norm-is-that-of-all-parts", test_norm_is_that_of_all_parts);
  g_test_add_func ("/parameter-owners/each-split-is-summed-once", test_each_split_is_summed_once);
  g_test_add_func ("/parameter-owners/steps-finalize-before-they-look", test_steps_finalize_before_they_look);
  g_test_add_func ("/parameter-owners/an-owner-that-fails-to-finalize-stops-the-step",
                   test_an_owner_that_fails_to_finalize_stops_the_step);
  g_test_add_func ("/parameter-owners/the-owner-reports-final-gradients", test_the_owner_reports_final_gradients);
  g_test_add_func ("/parameter-owners/split-parameters-are-not-changed-by-others",
                   test_split_parameters_are_not_changed_by_others);
  g_test_add_func ("/parameter-owners/parameters-without-elements", test_parameters_without_elements);
  return g_test_run ();
}
