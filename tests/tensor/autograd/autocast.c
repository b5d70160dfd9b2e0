/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

/* Under autocast products and attention run in bf16, parameters and their gradients stay f32. */

static EbbTensor *
make_leaf (const gint64 *shape,
           guint n_dims)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *tensor = ebb_randn (shape, n_dims, EBB_DTYPE_F32, NULL, NULL, &error);

  ebb_tensor_scale (tensor, 0.3, &error);
  ebb_tensor_set_requires_grad (tensor, TRUE, &error);
  g_assert_no_error (error);
  return tensor;
}

#define LEAF(...) make_leaf ((const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ })))

static double
measure_distance (EbbTensor *a,
                  EbbTensor *b)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) difference = ebb_sub (a, b, &error);
  g_autoptr (EbbTensor) distance = ebb_norm (difference, &error);
  g_autoptr (EbbTensor) size = ebb_norm (b, &error);
  double x, y;

  g_assert_true (ebb_tensor_get_item (distance, &x, &error) && ebb_tensor_get_item (size, &y, &error));
  return x / y;
}

typedef struct
{
  EbbTensor *x, *weight, *bias, *norm_weight, *norm_bias, *vocabulary, *targets;
} Model;

static void
model_init (Model *model)
{
  g_autoptr (GError) error = NULL;
  const gint64 shape[] = { 2, 6 };

  ebb_manual_seed (5);
  model->x = LEAF (2, 6, 16);
  model->weight = LEAF (48, 16);
  model->bias = LEAF (48);
  model->norm_weight = LEAF (16);
  model->norm_bias = LEAF (16);
  model->vocabulary = LEAF (11, 16);
  model->targets = ebb_randint (0, 11, shape, 2, EBB_DTYPE_I64, NULL, NULL, &error);
  g_assert_no_error (error);
}

static void
model_clear (Model *model)
{
  ebb_tensor_unref (model->x);
  ebb_tensor_unref (model->weight);
  ebb_tensor_unref (model->bias);
  ebb_tensor_unref (model->norm_weight);
  ebb_tensor_unref (model->norm_bias);
  ebb_tensor_unref (model->vocabulary);
  ebb_tensor_unref (model->targets);
}

/* Attention, norm and loss of a small transformer, one after another. */
static EbbTensor *
model_run (Model *model,
           EbbDType products)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) qkv = ebb_linear (model->x, model->weight, model->bias, &error);
  g_autoptr (EbbTensor) attention = ebb_self_attention (qkv, 4, NULL, TRUE, 0, 0, NULL, &error);
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) normalized = NULL;
  EbbTensor *loss;

  ebb_residual_dropout_layer_norm (attention, model->x, model->norm_weight, model->norm_bias, 1e-5, 0, FALSE, NULL,
                                   &sum, &normalized, &error);
  loss = ebb_fused_linear_cross_entropy (normalized, model->vocabulary, NULL, model->targets, -100, 0,
                                         EBB_REDUCTION_MEAN, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (qkv), ==, products);
  g_assert_cmpint (ebb_tensor_get_dtype (attention), ==, products);
  g_assert_cmpint (ebb_tensor_get_dtype (sum), ==, EBB_DTYPE_F32);
  g_assert_cmpint (ebb_tensor_get_dtype (loss), ==, EBB_DTYPE_F32);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  return loss;
}

static void
assert_near (EbbTensor *leaf,
             EbbTensor *plain)
{
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (leaf);
  g_autoptr (EbbTensor) expected = ebb_tensor_get_grad (plain);

  g_assert_cmpint (ebb_tensor_get_dtype (grad), ==, EBB_DTYPE_F32);
  g_assert_cmpfloat (measure_distance (grad, expected), <, 2e-2);
  g_assert_cmpfloat (measure_distance (grad, expected), >, 0);
}

static void
products_are_bf16_and_gradients_f32 (void)
{
  Model model, plain;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) expected = NULL;

  model_init (&model);
  model_init (&plain);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  loss = model_run (&model, EBB_DTYPE_BF16);
  ebb_pop_autocast ();
  expected = model_run (&plain, EBB_DTYPE_F32);
  g_assert_cmpfloat (measure_distance (loss, expected), <, 1e-2);
  assert_near (model.x, plain.x);
  assert_near (model.weight, plain.weight);
  assert_near (model.bias, plain.bias);
  assert_near (model.norm_weight, plain.norm_weight);
  assert_near (model.norm_bias, plain.norm_bias);
  assert_near (model.vocabulary, plain.vocabulary);
  model_clear (&model);
  model_clear (&plain);
}

static void
gradients_are_added_in_f32 (void)
{
  g_autoptr (GError) error = NULL;
  Model model;
  g_autoptr (EbbTensor) first = NULL;
  g_autoptr (EbbTensor) second = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) doubled = NULL;

  model_init (&model);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  first = model_run (&model, EBB_DTYPE_BF16);
  grad = ebb_tensor_get_grad (model.weight);
  doubled = ebb_mul_scalar (grad, 2, &error);
  g_clear_pointer (&grad, ebb_tensor_unref);
  second = model_run (&model, EBB_DTYPE_BF16);
  ebb_pop_autocast ();
  grad = ebb_tensor_get_grad (model.weight);
  g_assert_no_error (error);
  g_assert_cmpfloat (measure_distance (grad, doubled), <, 1e-6);
  model_clear (&model);
}

static guint64
get_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_total (stats);
}

/* A graph that is still alive holds the bf16 copy of a parameter that has changed since; nothing holds it longer. */
static void
copies_of_changed_parameters_are_let_go (void)
{
  const guint64 before = get_bytes ();
  g_autoptr (GError) error = NULL;
  EbbTensor *x = LEAF (32, 64), *weight = LEAF (64, 64);

  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  for (int i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) first = ebb_linear (x, weight, NULL, &error);
      g_autoptr (EbbTensor) second = NULL;

      ebb_push_grad_enabled (FALSE);
      ebb_tensor_scale (weight, 0.5, &error);
      ebb_pop_grad_enabled ();
      second = ebb_linear (x, weight, NULL, &error);
      g_assert_no_error (error);
    }
  ebb_pop_autocast ();
  ebb_tensor_unref (x);
  ebb_tensor_unref (weight);
  g_assert_cmpuint (get_bytes (), ==, before);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/autocast/products-are-bf16-and-gradients-f32", products_are_bf16_and_gradients_f32);
  g_test_add_func ("/autocast/gradients-are-added-in-f32", gradients_are_added_in_f32);
  g_test_add_func ("/autocast/copies-of-changed-parameters-are-let-go", copies_of_changed_parameters_are_let_go);
  return g_test_run ();
}
