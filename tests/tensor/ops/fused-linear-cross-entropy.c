/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>

#define N_ROWS 100
#define WIDTH 4
#define IGNORED 7

typedef struct
{
  EbbTensor *x, *weight, *targets;
  EbbTensor *bias; /* or NULL */
} Operands;

/* A vocabulary so large that the rows take several chunks of logits. A GPU's chunk is a sixteenth of its memory, which
 * main () makes small: there an eighth of the classes is enough. */
static gint64
get_n_classes (void)
{
  return test_device_of_same_bits () == ebb_device_get_cpu () ? 300000 : 37500;
}

static guint64
get_chunk_bytes (void)
{
  return (test_device_of_same_bits () == ebb_device_get_cpu () ? 64 : 8) * 1024 * 1024;
}

static EbbTensor *
make_normal (gint64 rows,
             gint64 columns)
{
  g_autoptr (GError) error = NULL;
  const gint64 shape[] = { rows, columns };
  EbbTensor *tensor = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, &error);

  ebb_tensor_set_requires_grad (tensor, TRUE, &error);
  g_assert_no_error (error);
  return tensor;
}

static void
setup (Operands *o)
{
  g_autoptr (GError) error = NULL;
  gint64 targets[N_ROWS], shape = N_ROWS;

  ebb_manual_seed (3);
  for (int i = 0; i < N_ROWS; i++)
    targets[i] = i % 5 == 0 ? IGNORED : i * 2999 % get_n_classes ();
  o->x = make_normal (N_ROWS, WIDTH);
  o->weight = make_normal (get_n_classes (), WIDTH);
  o->bias = NULL;
  o->targets = ebb_tensor_new_from_ints (targets, N_ROWS, &shape, 1, &error);
  g_assert_no_error (error);
}

static void
add_bias (Operands *o)
{
  g_autoptr (GError) error = NULL;
  const gint64 shape = get_n_classes ();

  ebb_manual_seed (4);
  o->bias = ebb_randn (&shape, 1, EBB_DTYPE_F32, NULL, NULL, &error);
  ebb_tensor_set_requires_grad (o->bias, TRUE, &error);
  g_assert_no_error (error);
}

static void
teardown (Operands *o)
{
  g_clear_pointer (&o->bias, ebb_tensor_unref);
  ebb_tensor_unref (o->x);
  ebb_tensor_unref (o->weight);
  ebb_tensor_unref (o->targets);
}

static EbbTensor *
compute (Operands *o,
         gboolean fused,
         EbbReduction reduction,
         double factor)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) scaled = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  if (fused)
    loss = ebb_fused_linear_cross_entropy (o->x, o->weight, o->bias, o->targets, IGNORED, 0.1, reduction, &error);
  else
    {
      logits = ebb_linear (o->x, o->weight, o->bias, &error);
      loss = ebb_cross_entropy_full (logits, o->targets, IGNORED, 0.1, reduction, &error);
    }
  scaled = factor == 1.0 ? ebb_tensor_ref (loss) : ebb_mul_scalar (loss, factor, &error);
  /* Each row with a weight of its own. */
  if (reduction == EBB_REDUCTION_NONE)
    {
      g_autoptr (EbbTensor) weights = ebb_arange (0, N_ROWS, 1, EBB_DTYPE_F32, NULL, &error);
      g_autoptr (EbbTensor) product = ebb_mul (scaled, weights, &error);

      sum = ebb_sum (product, NULL, 0, FALSE, &error);
    }
  g_assert_true (ebb_tensor_backward (sum ? sum : scaled, &error));
  g_assert_no_error (error);
  return g_steal_pointer (&loss);
}

/* The relative distance in the Euclidean norm. */
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

static EbbTensor *
copy_grad (EbbTensor *leaf)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (leaf);
  EbbTensor *copy = ebb_copy (grad, &error);

  g_assert_no_error (error);
  return copy;
}

static double
measure_grad (EbbTensor *leaf,
              EbbTensor *expected)
{
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (leaf);

  return measure_distance (grad, expected);
}

static void
check_equal_with (EbbReduction reduction,
                  double factor,
                  gboolean with_bias)
{
  Operands o, plain;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (EbbTensor) x_grad = NULL;
  g_autoptr (EbbTensor) weight_grad = NULL;

  setup (&o);
  setup (&plain);
  if (with_bias)
    {
      add_bias (&o);
      add_bias (&plain);
    }
  loss = compute (&o, TRUE, reduction, factor);
  expected = compute (&plain, FALSE, reduction, factor);
  g_assert_cmpfloat (measure_distance (loss, expected), <, 1e-6);
  x_grad = ebb_tensor_get_grad (plain.x);
  weight_grad = ebb_tensor_get_grad (plain.weight);
  g_assert_cmpfloat (measure_grad (o.x, x_grad), <, 1e-5);
  g_assert_cmpfloat (measure_grad (o.weight, weight_grad), <, 1e-5);
  if (with_bias)
    {
      g_autoptr (EbbTensor) bias_grad = ebb_tensor_get_grad (plain.bias);

      g_assert_cmpfloat (measure_grad (o.bias, bias_grad), <, 1e-5);
    }
  teardown (&o);
  teardown (&plain);
}

static void
check_equal (EbbReduction reduction,
             double factor)
{
  check_equal_with (reduction, factor, FALSE);
  check_equal_with (reduction, factor, TRUE);
}

static void
mean_equals_that_of_all_logits (void)
{
  check_equal (EBB_REDUCTION_MEAN, 1.0);
  check_equal (EBB_REDUCTION_MEAN, 0.25);
}

static void
sum_equals_that_of_all_logits (void)
{
  check_equal (EBB_REDUCTION_SUM, 1.0);
}

static void
rows_equal_those_of_all_logits (void)
{
  check_equal (EBB_REDUCTION_NONE, 1.0);
}

static guint64
get_peak_total (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_peak_total (stats);
}

static guint64
get_total (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_total (stats);
}

static void
all_logits_are_never_held (void)
{
  const EbbReduction reductions[] = { EBB_REDUCTION_MEAN, EBB_REDUCTION_NONE };

  for (guint i = 0; i < G_N_ELEMENTS (reductions); i++)
    {
      Operands o;
      guint64 before;
      g_autoptr (EbbTensor) loss = NULL;

      setup (&o);
      before = get_total ();
      ebb_memory_reset_peaks (test_device ());
      loss = compute (&o, TRUE, reductions[i], 1.0);
      g_assert_cmpuint (get_peak_total () - before, <, (guint64) N_ROWS * get_n_classes () * sizeof (float));
      teardown (&o);
    }
}

/* Smaller chunks hold less; what they compute is the same but for the order of sums. */
static void
a_smaller_chunk_takes_less_memory (void)
{
  EbbDevice *device = test_device ();
  const guint64 own = ebb_device_get_loss_chunk (device);
  EbbTensor *grads[2], *losses[2];
  guint64 peaks[2];

  for (guint i = 0; i < 2; i++)
    {
      Operands o;
      guint64 before;

      ebb_device_set_loss_chunk (device, i == 0 ? 0 : own / 2);
      setup (&o);
      before = get_total ();
      ebb_memory_reset_peaks (device);
      losses[i] = compute (&o, TRUE, EBB_REDUCTION_MEAN, 1.0);
      peaks[i] = get_peak_total () - before;
      grads[i] = ebb_tensor_get_grad (o.x);
      teardown (&o);
    }
  g_assert_cmpuint (ebb_device_get_loss_chunk (device), ==, own / 2);
  ebb_device_set_loss_chunk (device, 0);
  g_assert_cmpuint (ebb_device_get_loss_chunk (device), ==, own);
  g_assert_cmpuint (peaks[1], <, peaks[0] - own / 4);
  g_assert_cmpfloat (test_difference (grads[0], grads[1]), <, 1e-6);
  g_assert_cmpfloat (test_difference (losses[0], losses[1]), <, 1e-5);
  for (guint i = 0; i < 2; i++)
    {
      ebb_tensor_unref (grads[i]);
      ebb_tensor_unref (losses[i]);
    }
}

/* The gradient that was made along with the loss becomes the weight's own: no second one, no copy. */
static void
gradient_of_the_weight_is_handed_over (void)
{
  Operands o;
  guint64 before;
  const guint64 chunk = get_chunk_bytes (), gradient = (guint64) get_n_classes () * WIDTH * sizeof (float);
  g_autoptr (EbbTensor) loss = NULL;

  setup (&o);
  before = get_total ();
  ebb_memory_reset_peaks (test_device ());
  loss = compute (&o, TRUE, EBB_REDUCTION_MEAN, 0.5);
  g_assert_cmpuint (get_peak_total () - before, <, chunk + gradient + gradient / 2);
  g_assert_cmpuint (get_total () - before, <, gradient + gradient / 2);
  teardown (&o);
}

static void
retained_graph_gives_the_gradient_again (void)
{
  g_autoptr (GError) error = NULL;
  Operands o;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) once = NULL;
  g_autoptr (EbbTensor) doubled = NULL;

  setup (&o);
  loss = ebb_fused_linear_cross_entropy (o.x, o.weight, NULL, o.targets, IGNORED, 0.0, EBB_REDUCTION_MEAN, &error);
  g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, &error));
  once = copy_grad (o.weight);
  doubled = ebb_mul_scalar (once, 2.0, &error);
  g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, FALSE, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat (measure_grad (o.weight, doubled), <, 1e-7);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  teardown (&o);
}

static void
no_gradient_costs_no_memory (void)
{
  g_autoptr (GError) error = NULL;
  Operands o;
  guint64 before;
  g_autoptr (EbbTensor) loss = NULL;

  setup (&o);
  before = get_total ();
  ebb_push_grad_enabled (FALSE);
  loss = ebb_fused_linear_cross_entropy (o.x, o.weight, NULL, o.targets, IGNORED, 0.0, EBB_REDUCTION_MEAN, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  g_assert_cmpuint (get_total () - before, <, 1024);
  g_assert_true (ebb_tensor_is_leaf (loss));
  teardown (&o);
}

static void
mean_of_nothing_is_nan_with_zero_gradients (void)
{
  g_autoptr (GError) error = NULL;
  const float values[] = { 1, 2, 3, 4 };
  const gint64 ignored[] = { -100, -100 }, shape[] = { 2, 2 };
  g_autoptr (EbbTensor) x = ebb_tensor_new_from_floats (values, 4, shape, 2, &error);
  g_autoptr (EbbTensor) targets = ebb_tensor_new_from_ints (ignored, 2, shape, 1, &error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) size = NULL;
  double value;

  ebb_tensor_set_requires_grad (x, TRUE, &error);
  loss = ebb_cross_entropy (x, targets, &error);
  g_assert_true (ebb_tensor_get_item (loss, &value, &error));
  g_assert_true (isnan (value));
  g_assert_true (ebb_tensor_backward (loss, &error));
  grad = ebb_tensor_get_grad (x);
  size = ebb_norm (grad, &error);
  g_assert_true (ebb_tensor_get_item (size, &value, &error));
  g_assert_cmpfloat (value, ==, 0.0);
}

/* Logits of a million: the bias alone. */
static void
large_logits_have_exact_gradients (void)
{
  enum
  {
    CLASSES = 1000,
    ROWS = 3
  };
  g_autoptr (GError) error = NULL;
  const gint64 x_shape[] = { ROWS, 2 }, weight_shape[] = { CLASSES, 2 }, rows = ROWS, classes = CLASSES;
  g_autoptr (EbbTensor) x = ebb_zeros (x_shape, 2, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) weight = ebb_zeros (weight_shape, 2, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) targets = ebb_full (&rows, 1, 5, EBB_DTYPE_I64, NULL, &error);
  float values[CLASSES];
  double best = -INFINITY, sum = 0;

  for (int i = 0; i < CLASSES; i++)
    {
      values[i] = 1e6f + (float) (i * 37 % 256) / 16;
      best = MAX (best, values[i]);
    }
  for (int i = 0; i < CLASSES; i++)
    sum += exp (values[i] - best);
  for (EbbReduction reduction = EBB_REDUCTION_MEAN; reduction <= EBB_REDUCTION_NONE; reduction++)
    {
      g_autoptr (EbbTensor) bias = ebb_tensor_new_from_floats (values, CLASSES, &classes, 1, &error);
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbTensor) all = NULL;
      g_autoptr (EbbTensor) grad = NULL;
      double n = reduction == EBB_REDUCTION_MEAN ? 1 : ROWS;

      ebb_tensor_set_requires_grad (bias, TRUE, &error);
      loss = ebb_fused_linear_cross_entropy (x, weight, bias, targets, -100, 0, reduction, &error);
      all = ebb_sum (loss, NULL, 0, FALSE, &error);
      g_assert_true (ebb_tensor_backward (all, &error));
      g_assert_no_error (error);
      grad = ebb_tensor_get_grad (bias);
      for (int i = 0; i < CLASSES; i++)
        g_assert_cmpfloat_with_epsilon (((const float *) test_read (grad))[i],
                                        n * (exp (values[i] - best) / sum - (i == 5)), n * 2e-7);
    }
}

/* As datasets have them whose labels are a column: PyTorch's own loss refuses these, OneFlow's takes them. */
static void
a_column_of_targets_is_the_targets (void)
{
  g_autoptr (GError) error = NULL;
  const gint64 column[] = { N_ROWS, 1 };

  for (int fused = 0; fused < 2; fused++)
    for (EbbReduction reduction = EBB_REDUCTION_MEAN; reduction <= EBB_REDUCTION_NONE; reduction++)
      {
        g_autoptr (EbbTensor) expected = NULL, loss = NULL, expected_grad = NULL, grad = NULL, targets = NULL;
        Operands flat, o;

        setup (&flat);
        setup (&o);
        targets = g_steal_pointer (&o.targets);
        o.targets = ebb_reshape (targets, column, 2, &error);
        g_assert_no_error (error);
        expected = compute (&flat, fused, reduction, 1.0);
        loss = compute (&o, fused, reduction, 1.0);
        expected_grad = ebb_tensor_get_grad (flat.weight);
        grad = ebb_tensor_get_grad (o.weight);
        g_assert_true (ebb_tensor_equal (loss, expected) && ebb_tensor_equal (grad, expected_grad));
        teardown (&flat);
        teardown (&o);
      }
}

int
main (int argc, char **argv)
{
  g_setenv ("EBB_CUDA_MEMORY", "128M", TRUE);
  test_init (&argc, &argv);
  g_test_add_func ("/fused-linear-cross-entropy/mean-equals-that-of-all-logits", mean_equals_that_of_all_logits);
  g_test_add_func ("/fused-linear-cross-entropy/sum-equals-that-of-all-logits", sum_equals_that_of_all_logits);
  g_test_add_func ("/fused-linear-cross-entropy/rows-equal-those-of-all-logits", rows_equal_those_of_all_logits);
  g_test_add_func ("/fused-linear-cross-entropy/all-logits-are-never-held", all_logits_are_never_held);
  g_test_add_func ("/fused-linear-cross-entropy/a-smaller-chunk-takes-less-memory", a_smaller_chunk_takes_less_memory);
  g_test_add_func ("/fused-linear-cross-entropy/gradient-of-the-weight-is-handed-over",
                   gradient_of_the_weight_is_handed_over);
  g_test_add_func ("/fused-linear-cross-entropy/retained-graph-gives-the-gradient-again",
                   retained_graph_gives_the_gradient_again);
  g_test_add_func ("/fused-linear-cross-entropy/no-gradient-costs-no-memory", no_gradient_costs_no_memory);
  g_test_add_func ("/fused-linear-cross-entropy/mean-of-nothing-is-nan-with-zero-gradients",
                   mean_of_nothing_is_nan_with_zero_gradients);
  g_test_add_func ("/fused-linear-cross-entropy/large-logits-have-exact-gradients", large_logits_have_exact_gradients);
  g_test_add_func ("/fused-linear-cross-entropy/a-column-of-targets-is-the-targets",
                   a_column_of_targets_is_the_targets);
  return g_test_run ();
}
