/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Norms of gradients, and what clipping by them changes. */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

static void
clipping_in_place_and_by_factor_agree (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (40, 30, TRUE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) bias = ebb_module_get_parameter (module, "bias");
  EbbTensor *parameters[] = { weight, bias };
  g_autoptr (EbbTensor) start = ebb_copy (weight, &error);
  g_autoptr (EbbTensor) by_factor = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  double norm;

  /* The norm is 2 * sqrt (1230). */
  test_fill_grads (optimizer, 2);
  g_assert_true (test_clip_grad (optimizer, 0.5, 2, &norm, &error));
  g_assert_cmpfloat_with_epsilon (norm, 2 * sqrt (1230), 1e-5);
  g_assert_true (test_clip_grad (optimizer, 10, 2, &norm, &error));
  g_assert_cmpfloat_with_epsilon (norm, 0.5, 1e-6);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  by_factor = ebb_copy (weight, &error);

  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_copy_from (weight, start, &error));
  ebb_pop_grad_enabled ();
  g_assert_true (test_clip_grads_of (parameters, 2, 0.5, 2, &norm, &error));
  g_assert_cmpfloat_with_epsilon (norm, 2 * sqrt (1230), 1e-5);
  grad = ebb_tensor_get_grad (bias);
  g_assert_cmpfloat_with_epsilon (test_at (grad, 29), 0.5 / sqrt (1230), 1e-7);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
  for (int i = 0; i < 1200; i++)
    g_assert_cmpfloat_with_epsilon (test_at (weight, i), test_at (by_factor, i), 1e-7);
}

static void
small_norms_are_left_alone (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (60, 1, FALSE, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, &error);
  g_autoptr (EbbTensor) grad = NULL;
  double norm;

  test_fill_grads (optimizer, 0.125);
  g_assert_true (test_clip_grads_of (&weight, 1, 1, 2, &norm, &error));
  grad = ebb_tensor_get_grad (weight);
  g_assert_cmpfloat (test_at (grad, 0), ==, 0.125);
  test_fill_grads (optimizer, INFINITY);
  g_assert_true (test_clip_grad (optimizer, 1, 2, &norm, &error));
  g_assert_false (isfinite (norm));
  g_assert_false (test_clip_grad (optimizer, 0, 2, &norm, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
}

/* The same bits; a NaN may be another one, as a GPU knows one NaN alone. */
static void
assert_numbers (EbbTensor *tensor,
                const float *numbers,
                guint n)
{
  const float *own = test_read (tensor);

  for (guint i = 0; i < n; i++)
    if (!(isnan (own[i]) && isnan (numbers[i])))
      g_assert_cmpmem (&own[i], sizeof *own, &numbers[i], sizeof *numbers);
}

/* A norm that overflows, or that of a gradient that is not finite: the gradients stay as they are, bit for bit, and the
 * next step takes them as they are. */
static void
norms_that_are_not_finite_change_nothing (void)
{
  static const double p[] = { 1, 2, 3, INFINITY };
  static const float odd[] = { INFINITY, -INFINITY, NAN };

  for (guint i = 0; i < G_N_ELEMENTS (p); i++)
    for (guint k = 0; k < G_N_ELEMENTS (odd); k++)
      {
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbModule) module = ebb_linear_new (5, 3, TRUE, &error);
        g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, &error);
        g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
        g_autoptr (EbbTensor) bias = ebb_module_get_parameter (module, "bias");
        EbbTensor *parameters[] = { weight, bias };
        float numbers[15];
        g_autoptr (EbbTensor) before = ebb_copy (bias, &error);
        g_autoptr (EbbTensor) grad = NULL;
        g_autoptr (EbbTensor) bias_grad = NULL;
        double norm;

        test_fill_grads (optimizer, 0.375);
        for (guint j = 0; j < 15; j++)
          numbers[j] = j == 11 ? odd[k] : 0.25f * (float) j;
        grad = test_floats (numbers, 3, 5, -1);
        ebb_tensor_set_grad (weight, grad, &error);
        g_clear_pointer (&grad, ebb_tensor_unref);
        g_assert_true (test_clip_grads_of (parameters, 2, 0.5, p[i], &norm, &error));
        g_assert_false (isfinite (norm));
        grad = ebb_tensor_get_grad (weight);
        bias_grad = ebb_tensor_get_grad (bias);
        assert_numbers (grad, numbers, 15);
        for (guint j = 0; j < 3; j++)
          g_assert_cmpfloat (test_at (bias_grad, j), ==, 0.375);

        g_assert_true (test_clip_grad (optimizer, 0.5, p[i], &norm, &error));
        g_assert_false (isfinite (norm));
        assert_numbers (grad, numbers, 15);
        g_assert_true (ebb_optimizer_step (optimizer, &error));
        g_assert_no_error (error);
        for (guint j = 0; j < 3; j++)
          g_assert_cmpfloat (test_at (bias, j), ==, test_at (before, j) - 0.375f);
      }
}

/* By the formula, with a dtype that has no kernel for it, and against a factor that was noted before. */
static void
any_norm_clips (void)
{
  static const double p[] = { 0.5, 1, 2, 3, INFINITY };
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_F16 };

  for (guint i = 0; i < G_N_ELEMENTS (p); i++)
    for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
      {
        g_autoptr (GError) error = NULL;
        EbbTensor *parameters[2] = { NULL };
        const double max_norm = 0.5;
        double expected = 0, norm, after;

        for (gint64 t = 0; t < 2; t++)
          {
            const gint64 n = 37 + 100 * t;
            g_autoptr (EbbTensor) grad = NULL;
            float numbers[137];

            for (gint64 j = 0; j < n; j++)
              {
                numbers[j] = (float) ((j + t) % 9 - 5) / 4;
                expected = isinf (p[i]) ? MAX (expected, fabs ((double) numbers[j]))
                                        : expected + pow (fabs ((double) numbers[j]), p[i]);
              }
            parameters[t] = ebb_zeros (&n, 1, dtypes[d], NULL, &error);
            ebb_tensor_set_requires_grad (parameters[t], TRUE, &error);
            grad = test_floats (numbers, (int) n, -1);
            if (dtypes[d] != EBB_DTYPE_F32)
              {
                EbbTensor *narrow = ebb_cast (grad, dtypes[d], &error);

                ebb_tensor_unref (grad);
                grad = narrow;
              }
            ebb_tensor_set_grad (parameters[t], grad, &error);
            g_assert_no_error (error);
          }
        expected = isinf (p[i]) ? expected : pow (expected, 1 / p[i]);
        test_clip_grads_of (parameters, 2, max_norm, p[i], &norm, &error);
        g_assert_no_error (error);
        g_assert_cmpfloat_with_epsilon (norm, expected, 2e-6 * expected);
        test_clip_grads_of (parameters, 2, max_norm, p[i], &after, &error);
        g_assert_no_error (error);
        g_assert_cmpfloat_with_epsilon (after, MIN (norm, max_norm), dtypes[d] == EBB_DTYPE_F32 ? 1e-5 : 5e-3);
        ebb_tensor_unref (parameters[0]);
        ebb_tensor_unref (parameters[1]);
      }
}

static void
norms_that_make_no_sense_are_refused (void)
{
  static const double p[] = { 0, -1, NAN };
  g_autoptr (EbbModule) module = ebb_linear_new (60, 1, FALSE, NULL);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbOptimizer) optimizer = ebb_sgd_new (module, 1, NULL);

  for (guint i = 0; i < G_N_ELEMENTS (p); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_false (test_clip_grad (optimizer, 1, p[i], NULL, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "p must be more than 0");
      g_clear_error (&error);
      g_assert_false (test_clip_grads_of (&weight, 1, 1, p[i], NULL, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "p must be more than 0");
    }
}

/* -- gradients of every kind in one list --------------------------------------------------------------------------- */

typedef enum
{
  CONTIGUOUS,
  STRIDED,
  EMPTY,
  NONE,
  N_KINDS
} Kind;

#define N_VALUES 15
#define MAX_NORM 0.5
#define RATE 0.25

static float
grad_value (Kind kind, gint64 i)
{
  return (float) ((i * 7 + (gint64) kind * 5) % 11 - 5) / 4;
}

/* A parameter of 1, [3, 5] or [0, 5], and its gradient; a strided gradient is a view of its transpose. */
static EbbTensor *
make_parameter (Kind kind, GError **error)
{
  const gint64 shape[] = { kind == EMPTY ? 0 : 3, 5 };
  EbbTensor *parameter = ebb_ones (shape, 2, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbTensor) made = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  float values[N_VALUES];

  ebb_tensor_set_requires_grad (parameter, TRUE, error);
  if (kind == NONE)
    return parameter;
  for (gint64 i = 0; i < N_VALUES; i++)
    values[i] = grad_value (kind, kind == STRIDED ? i % 3 * 5 + i / 3 : i);
  if (kind == EMPTY)
    grad = ebb_zeros (shape, 2, EBB_DTYPE_F32, NULL, error);
  else if (kind == CONTIGUOUS)
    grad = test_floats (values, 3, 5, -1);
  else
    {
      made = test_floats (values, 5, 3, -1);
      grad = ebb_transpose (made, 0, 1, error);
      g_assert_false (ebb_tensor_is_contiguous (grad));
    }
  ebb_tensor_set_grad (parameter, grad, error);
  return parameter;
}

/* Clips a list of gradients in place, then takes a step of SGD, and compares both with float64. */
static void
check_list (const Kind *kinds, guint n)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = g_object_new (EBB_TYPE_MODULE, NULL);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  EbbTensor *parameters[N_KINDS];
  double sum = 0, norm, scale;

  for (guint i = 0; i < n; i++)
    {
      const char name[] = { (char) ('a' + i), '\0' };

      parameters[i] = make_parameter (kinds[i], &error);
      g_assert_true (ebb_module_register_parameter (module, name, parameters[i], &error));
      for (gint64 j = 0; (kinds[i] == CONTIGUOUS || kinds[i] == STRIDED) && j < N_VALUES; j++)
        sum += (double) grad_value (kinds[i], j) * grad_value (kinds[i], j);
    }
  optimizer = ebb_sgd_new (module, RATE, &error);
  g_assert_true (test_clip_grads_of (parameters, n, MAX_NORM, 2, &norm, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat_with_epsilon (norm, sqrt (sum), 1e-5);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
  scale = sum > MAX_NORM * MAX_NORM ? MAX_NORM / sqrt (sum) : 1;
  for (guint i = 0; i < n; i++)
    {
      const gboolean has_grad = kinds[i] == CONTIGUOUS || kinds[i] == STRIDED;

      for (gint64 j = 0; kinds[i] != EMPTY && j < N_VALUES; j++)
        g_assert_cmpfloat_with_epsilon (test_at (parameters[i], j),
                                        1 - (has_grad ? RATE * scale * grad_value (kinds[i], j) : 0), 1e-6);
      ebb_tensor_unref (parameters[i]);
    }
}

/* Each order of each list of two, three and four kinds, in which a kind may come twice. */
static void
lists_may_mix_gradients_of_every_kind (void)
{
  for (guint n = 1; n <= N_KINDS; n++)
    for (guint code = 0; code < (1u << (2 * n)); code++)
      {
        Kind kinds[N_KINDS];

        for (guint i = 0; i < n; i++)
          kinds[i] = (Kind) (code >> (2 * i) & 3);
        check_list (kinds, n);
      }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/clip-grad/clipping-in-place-and-by-factor-agree", clipping_in_place_and_by_factor_agree);
  g_test_add_func ("/clip-grad/small-norms-are-left-alone", small_norms_are_left_alone);
  g_test_add_func ("/clip-grad/norms-that-are-not-finite-change-nothing", norms_that_are_not_finite_change_nothing);
  g_test_add_func ("/clip-grad/any-norm-clips", any_norm_clips);
  g_test_add_func ("/clip-grad/lists-may-mix-gradients-of-every-kind", lists_may_mix_gradients_of_every_kind);
  g_test_add_func ("/clip-grad/norms-that-make-no-sense-are-refused", norms_that_make_no_sense_are_refused);
  return g_test_run ();
}
