/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <math.h>

/* Single ops against PyTorch's results, at NaN, infinities, zeros, ties and bounds. */

/* Of an element relative to itself, or to 1 where it is less. */
#define BOUND 2e-6

typedef struct
{
  const char *name;
  EbbTensor *(*unary) (EbbTensor *x,
                       GError **error);
  EbbTensor *(*binary) (EbbTensor *a,
                        EbbTensor *b,
                        GError **error);
  EbbTensor *(*other) (EbbTensor *x,
                       const double *numbers,
                       GError **error);
  double numbers[2];
} Special;

static EbbTensor *
gelu_tanh (EbbTensor *x,
           GError **error)
{
  return ebb_gelu (x, EBB_GELU_TANH, error);
}

static EbbTensor *
gelu_erf (EbbTensor *x,
          GError **error)
{
  return ebb_gelu (x, EBB_GELU_EXACT, error);
}

static EbbTensor *
softmax (EbbTensor *x,
         GError **error)
{
  return ebb_softmax (x, -1, error);
}

static EbbTensor *
log_softmax (EbbTensor *x,
             GError **error)
{
  return ebb_log_softmax (x, -1, error);
}

static EbbTensor *
pow_scalar (EbbTensor *x,
            const double *numbers,
            GError **error)
{
  return ebb_pow_scalar (x, numbers[0], error);
}

static EbbTensor *
clamp (EbbTensor *x,
       const double *numbers,
       GError **error)
{
  return ebb_clamp (x, numbers[0], numbers[1], error);
}

static EbbTensor *
sum (EbbTensor *x,
     GError **error)
{
  return ebb_sum (x, NULL, 0, FALSE, error);
}

static EbbTensor *
mean (EbbTensor *x,
      GError **error)
{
  return ebb_mean (x, NULL, 0, FALSE, error);
}

static EbbTensor *
var (EbbTensor *x,
     GError **error)
{
  return ebb_var (x, NULL, 0, 1, FALSE, error);
}

static EbbTensor *
max_of_all (EbbTensor *x,
            GError **error)
{
  return ebb_max (x, NULL, 0, FALSE, error);
}

static EbbTensor *
min_of_all (EbbTensor *x,
            GError **error)
{
  return ebb_min (x, NULL, 0, FALSE, error);
}

static EbbTensor *
max_over (EbbTensor *x,
          const double *numbers,
          GError **error)
{
  return ebb_max (x, (int[]){ (int) numbers[0] }, 1, FALSE, error);
}

static EbbTensor *
min_over (EbbTensor *x,
          const double *numbers,
          GError **error)
{
  return ebb_min (x, (int[]){ (int) numbers[0] }, 1, FALSE, error);
}

static EbbTensor *
max_along (EbbTensor *x,
           const double *numbers,
           GError **error)
{
  EbbTensor *values = NULL;

  ebb_max_along (x, (int) numbers[0], FALSE, &values, NULL, error);
  return values;
}

/* Every third element is the first operand's. */
static EbbTensor *
where (EbbTensor *a,
       EbbTensor *b,
       GError **error)
{
  const gint64 n = ebb_tensor_get_n_elements (a);
  g_autofree float *values = g_new (float, n);
  g_autoptr (EbbTensor) numbers = NULL;
  g_autoptr (EbbTensor) condition = NULL;

  for (gint64 i = 0; i < n; i++)
    values[i] = i % 3 == 0;
  numbers = ebb_tensor_new_from_floats (values, (gsize) n, &n, 1, error);
  condition = ebb_gt_scalar (numbers, 0, error);
  return ebb_where (condition, a, b, error);
}

static EbbTensor *
run_special (const Special *special,
             EbbTensor *const *x,
             GError **error)
{
  if (special->unary != NULL)
    return special->unary (x[0], error);
  return special->binary != NULL ? special->binary (x[0], x[1], error) : special->other (x[0], special->numbers, error);
}

static guint
count_differences (EbbTensor *a,
                   EbbTensor *expected,
                   const char *what)
{
  guint n_wrong = 0;

  g_assert_cmpint (ebb_tensor_get_n_elements (a), ==, ebb_tensor_get_n_elements (expected));
  for (gsize i = 0; i < (gsize) ebb_tensor_get_n_elements (expected); i++)
    {
      double value = test_at (a, i), right = test_at (expected, i);

      if (isnan (right) ? isnan (value)
                        : value == right || fabs (value - right) <= BOUND * MAX (fabs (right), 1))
        continue;
      g_test_message ("%s: element %d is %g; PyTorch has %g", what, (int) i, value, right);
      n_wrong++;
    }
  return n_wrong;
}

static void
specials_are_pytorchs (gconstpointer data)
{
  const Special *special = data;
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-specials.safetensors");
  g_autoptr (EbbTensor) sent = test_fixture_tensor (fixture, "special.sent");
  g_autofree char *prefix = g_strconcat ("special.", special->name, NULL);
  g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "%s.out", prefix);
  guint n_wrong = 0;

  for (gint64 k = 0; k < ebb_tensor_get_dim (sent, 0); k++)
    {
      g_autoptr (GError) error = NULL;
      EbbTensor *x[2] = { test_fixture_leaf (fixture, prefix, "x0"), NULL };
      g_autoptr (EbbTensor) out = NULL;
      g_autoptr (EbbTensor) one = ebb_select (sent, 0, k, NULL);
      g_autoptr (EbbTensor) grad_out = NULL;

      if (special->binary != NULL)
        x[1] = test_fixture_leaf (fixture, prefix, "x1");
      out = run_special (special, x, &error);
      grad_out = out != NULL ? ebb_expand (one, ebb_tensor_get_shape (out, NULL), ebb_tensor_get_n_dims (out), &error)
                             : NULL;
      g_assert_no_error (error);
      n_wrong += count_differences (out, expected, "result");
      ebb_backward (&out, 1, &grad_out, 1, NULL, 0, FALSE, &error);
      g_assert_no_error (error);
      for (guint i = 0; i < 2 && x[i] != NULL; i++)
        {
          g_autofree char *what = g_strdup_printf ("gradient of operand %u, %g sent back", i, test_at (one, 0));
          g_autoptr (EbbTensor) all = test_fixture_tensor (fixture, "%s.grad_x%u", prefix, i);
          g_autoptr (EbbTensor) right = ebb_select (all, 0, k, NULL);
          g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (x[i]);

          n_wrong += count_differences (grad, right, what);
        }
      for (guint i = 0; i < 2; i++)
        g_clear_pointer (&x[i], ebb_tensor_unref);
    }
  if (n_wrong > 0)
    g_error ("%s: %u values are not PyTorch's", special->name, n_wrong);
}

static const Special specials[] = {
  { "abs", .unary = ebb_abs },
  { "relu", .unary = ebb_relu },
  { "sqrt", .unary = ebb_sqrt },
  { "rsqrt", .unary = ebb_rsqrt },
  { "exp", .unary = ebb_exp },
  { "log", .unary = ebb_log },
  { "square", .unary = ebb_square },
  { "sin", .unary = ebb_sin },
  { "cos", .unary = ebb_cos },
  { "tanh", .unary = ebb_tanh },
  { "sigmoid", .unary = ebb_sigmoid },
  { "silu", .unary = ebb_silu },
  { "gelu", .unary = gelu_erf },
  { "gelu_tanh", .unary = gelu_tanh },
  { "norm", .unary = ebb_norm },
  { "norm.zeros", .unary = ebb_norm },
  { "norm.infinite", .unary = ebb_norm },
  { "norm.masked", .unary = ebb_norm },
  { "softmax", .unary = softmax },
  { "softmax.zeros", .unary = softmax },
  { "softmax.infinite", .unary = softmax },
  { "softmax.masked", .unary = softmax },
  { "log_softmax", .unary = log_softmax },
  { "log_softmax.zeros", .unary = log_softmax },
  { "log_softmax.infinite", .unary = log_softmax },
  { "log_softmax.masked", .unary = log_softmax },
  { "pow_scalar.0", .other = pow_scalar, .numbers = { 0 } },
  { "pow_scalar.1", .other = pow_scalar, .numbers = { 1 } },
  { "pow_scalar.2", .other = pow_scalar, .numbers = { 2 } },
  { "pow_scalar.3", .other = pow_scalar, .numbers = { 3 } },
  { "pow_scalar.4", .other = pow_scalar, .numbers = { 0.5 } },
  { "pow_scalar.5", .other = pow_scalar, .numbers = { -1 } },
  { "pow_scalar.6", .other = pow_scalar, .numbers = { -0.5 } },
  { "pow_scalar.7", .other = pow_scalar, .numbers = { 1.7 } },
  { "pow_scalar.8", .other = pow_scalar, .numbers = { -2 } },
  { "clamp.0", .other = clamp, .numbers = { -1, 1 } },
  { "clamp.1", .other = clamp, .numbers = { -INFINITY, 1 } },
  { "clamp.2", .other = clamp, .numbers = { -0.5, INFINITY } },
  { "clamp.3", .other = clamp, .numbers = { 0, 0 } },
  { "clamp.4", .other = clamp, .numbers = { 0, 2 } },
  { "add", .binary = ebb_add },
  { "sub", .binary = ebb_sub },
  { "mul", .binary = ebb_mul },
  { "div", .binary = ebb_div },
  { "pow", .binary = ebb_pow },
  { "maximum", .binary = ebb_maximum },
  { "minimum", .binary = ebb_minimum },
  { "where", .binary = where },
  { "max.all", .unary = max_of_all },
  { "max.all.0", .other = max_over, .numbers = { 0 } },
  { "max.all.1", .other = max_over, .numbers = { 1 } },
  { "max.numbers", .unary = max_of_all },
  { "max.numbers.0", .other = max_over, .numbers = { 0 } },
  { "max.numbers.1", .other = max_over, .numbers = { 1 } },
  { "max.infinite", .unary = max_of_all },
  { "max.infinite.0", .other = max_over, .numbers = { 0 } },
  { "max.infinite.1", .other = max_over, .numbers = { 1 } },
  { "min.all", .unary = min_of_all },
  { "min.all.0", .other = min_over, .numbers = { 0 } },
  { "min.all.1", .other = min_over, .numbers = { 1 } },
  { "min.numbers", .unary = min_of_all },
  { "min.numbers.0", .other = min_over, .numbers = { 0 } },
  { "min.numbers.1", .other = min_over, .numbers = { 1 } },
  { "min.infinite", .unary = min_of_all },
  { "min.infinite.0", .other = min_over, .numbers = { 0 } },
  { "min.infinite.1", .other = min_over, .numbers = { 1 } },
  { "max_along.all.0", .other = max_along, .numbers = { 0 } },
  { "max_along.all.1", .other = max_along, .numbers = { 1 } },
  { "max_along.numbers.0", .other = max_along, .numbers = { 0 } },
  { "max_along.numbers.1", .other = max_along, .numbers = { 1 } },
  { "max_along.infinite.0", .other = max_along, .numbers = { 0 } },
  { "max_along.infinite.1", .other = max_along, .numbers = { 1 } },
  { "sum.nan", .unary = sum },
  { "sum.infinite", .unary = sum },
  { "sum.finite", .unary = sum },
  { "mean.nan", .unary = mean },
  { "mean.infinite", .unary = mean },
  { "mean.finite", .unary = mean },
  { "var.nan", .unary = var },
  { "var.infinite", .unary = var },
  { "var.finite", .unary = var },
};

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (specials); i++)
    {
      g_autofree char *path = g_strconcat ("/pytorch-ops/specials-are-pytorchs/", specials[i].name, NULL);

      g_test_add_data_func (path, &specials[i], specials_are_pytorchs);
    }
  return g_test_run ();
}
