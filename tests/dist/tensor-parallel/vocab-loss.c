/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

/* The cross entropy of classes that are divided among ranks, against that of all classes on one, and against sums in
 * float64. */

#define IGNORED 3

typedef struct
{
  gint64 n_rows, n_classes, width; /* @width 0: logits are given, else x [rows, width] and a weight [classes, width] */
  EbbReduction reduction;
  EbbDType dtype; /* of the logits, or of x and weight */
  gboolean with_bias, with_autocast, ignores_all;
  double softcap; /* of a product's logits; 0: none */
} Problem;

/* Leaves. */
typedef struct
{
  EbbTensor *x; /* or logits */
  EbbTensor *weight, *bias;
  EbbTensor *targets;
} Operands;

/* -- operands ------------------------------------------------------------------------------------------------------ */

static void
get_part (gint64 n,
          EbbProcessGroup *group,
          gint64 *first,
          gint64 *count)
{
  gint64 size = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);

  *first = rank * (n / size) + MIN (rank, n % size);
  *count = n / size + (rank < n % size);
}

/* This rank's part of @whole along @dim, or all of it, as a leaf of @dtype. */
static EbbTensor *
make_leaf (EbbTensor *whole,
           int dim,
           EbbProcessGroup *group,
           EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) view = NULL;
  g_autoptr (EbbTensor) copy = NULL;
  EbbTensor *leaf;
  gint64 first = 0, count = ebb_tensor_get_dim (whole, dim);

  if (group != NULL)
    get_part (count, group, &first, &count);
  ebb_push_grad_enabled (FALSE);
  view = ebb_narrow (whole, dim, first, count, &error);
  copy = ebb_copy (view, &error);
  leaf = ebb_cast (copy, dtype, &error);
  ebb_pop_grad_enabled ();
  ebb_tensor_set_requires_grad (leaf, TRUE, &error);
  g_assert_no_error (error);
  return leaf;
}

static EbbTensor *
make_targets (const Problem *problem)
{
  g_autofree gint64 *values = g_new (gint64, problem->n_rows);
  g_autoptr (GError) error = NULL;
  EbbTensor *targets;

  for (gint64 i = 0; i < problem->n_rows; i++)
    values[i] = problem->ignores_all || i % 5 == 1 ? IGNORED : i * 7919 % problem->n_classes;
  values[0] = problem->ignores_all ? IGNORED : problem->n_classes - 1;
  targets = ebb_tensor_new_from_ints (values, (gsize) problem->n_rows, &problem->n_rows, 1, &error);
  g_assert_no_error (error);
  return targets;
}

/* Of @group's part, or (NULL) of all classes: the same numbers. */
static void
operands_init (Operands *self,
               const Problem *problem,
               EbbProcessGroup *group)
{
  const int width = (int) problem->width, rows = (int) problem->n_rows, classes = (int) problem->n_classes;
  g_autoptr (EbbTensor) x = test_randn (1, rows, width > 0 ? width : classes, -1);
  g_autoptr (EbbTensor) weight = width > 0 ? test_randn (2, classes, width, -1) : NULL;
  g_autoptr (EbbTensor) bias = problem->with_bias ? test_randn (3, classes, -1) : NULL;

  self->x = make_leaf (x, 1, width > 0 ? NULL : group, problem->dtype);
  self->weight = weight ? make_leaf (weight, 0, group, problem->dtype) : NULL;
  self->bias = bias ? make_leaf (bias, 0, group, problem->dtype) : NULL;
  self->targets = make_targets (problem);
}

static void
operands_clear (Operands *self)
{
  g_clear_pointer (&self->x, ebb_tensor_unref);
  g_clear_pointer (&self->weight, ebb_tensor_unref);
  g_clear_pointer (&self->bias, ebb_tensor_unref);
  g_clear_pointer (&self->targets, ebb_tensor_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Operands, operands_clear)

/* -- losses -------------------------------------------------------------------------------------------------------- */

static EbbTensor *
compute_loss (const Operands *o,
              const Problem *problem,
              EbbProcessGroup *group,
              GError **error)
{
  EbbTensor *loss;

  if (problem->with_autocast)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  if (group == NULL && o->weight == NULL)
    loss = ebb_cross_entropy_full (o->x, o->targets, IGNORED, 0, problem->reduction, error);
  else if (group == NULL)
    loss = ebb_fused_linear_cross_entropy_full (o->x, o->weight, o->bias, o->targets, IGNORED, 0, problem->softcap,
                                                problem->reduction, error);
  else if (o->weight == NULL)
    loss = ebb_vocab_parallel_cross_entropy (o->x, o->targets, problem->n_classes, IGNORED, problem->reduction, group,
                                             error);
  else
    loss = ebb_vocab_parallel_linear_cross_entropy_full (o->x, o->weight, o->bias, o->targets, problem->n_classes,
                                                         IGNORED, problem->softcap, problem->reduction, group, error);
  if (problem->with_autocast)
    ebb_pop_autocast ();
  return loss;
}

/* Backward from the losses, each row's with a weight of its own. */
static void
go_back (EbbTensor *loss)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) weights = NULL;
  g_autoptr (EbbTensor) product = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  gint64 n = ebb_tensor_get_n_elements (loss);

  weights = ebb_arange (1, (double) n + 1, 1, EBB_DTYPE_F32, NULL, &error);
  product = ebb_mul (loss, weights, &error);
  sum = ebb_sum (product, NULL, 0, FALSE, &error);
  g_assert_true (ebb_tensor_backward (sum, &error));
  g_assert_no_error (error);
}

static EbbTensor *
as_f32 (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *cast;

  ebb_push_grad_enabled (FALSE);
  cast = ebb_cast (tensor, EBB_DTYPE_F32, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  return cast;
}

/* The distance of @a from @b in the Euclidean norm, relative to @b. */
static double
measure_distance (EbbTensor *a,
                  const double *b)
{
  g_autoptr (EbbTensor) numbers = as_f32 (a);
  const float *values = test_read (numbers);
  double distance = 0, size = 0;

  for (gint64 i = 0; i < ebb_tensor_get_n_elements (a); i++)
    {
      distance += (values[i] - b[i]) * (values[i] - b[i]);
      size += b[i] * b[i];
    }
  return distance == 0 ? 0 : sqrt (distance / size);
}

static double *
read_doubles (EbbTensor *tensor)
{
  g_autoptr (EbbTensor) numbers = as_f32 (tensor);
  const float *values = test_read (numbers);
  gint64 n = ebb_tensor_get_n_elements (tensor);
  double *doubles = g_new (double, n);

  for (gint64 i = 0; i < n; i++)
    doubles[i] = values[i];
  return doubles;
}

/* -- float64 ------------------------------------------------------------------------------------------------------- */

/* The right values, of all classes. */
typedef struct
{
  double *losses; /* one or [rows] */
  double *x_grad, *weight_grad, *bias_grad;
} Truth;

static void
truth_clear (Truth *self)
{
  g_free (self->losses);
  g_free (self->x_grad);
  g_free (self->weight_grad);
  g_free (self->bias_grad);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Truth, truth_clear)

static double
compute_logit (const Problem *p,
               const double *x,
               const double *weight,
               const double *bias,
               gint64 row,
               gint64 class)
{
  double logit = bias ? bias[class] : 0;

  if (weight == NULL)
    return x[row * p->n_classes + class];
  for (gint64 i = 0; i < p->width; i++)
    logit += x[row * p->width + i] * weight[class * p->width + i];
  return logit;
}

static void
add_gradient (const Problem *p,
              Truth *truth,
              const double *x,
              const double *weight,
              gint64 row,
              gint64 class,
              double grad)
{
  if (weight == NULL)
    truth->x_grad[row * p->n_classes + class] += grad;
  for (gint64 i = 0; weight != NULL && i < p->width; i++)
    {
      truth->x_grad[row * p->width + i] += grad * weight[class * p->width + i];
      truth->weight_grad[class * p->width + i] += grad * x[row * p->width + i];
    }
  if (truth->bias_grad != NULL)
    truth->bias_grad[class] += grad;
}

static void
truth_init (Truth *self,
            const Problem *p,
            const Operands *o)
{
  g_autofree double *x = read_doubles (o->x);
  g_autofree double *weight = o->weight ? read_doubles (o->weight) : NULL;
  g_autofree double *bias = o->bias ? read_doubles (o->bias) : NULL;
  g_autofree double *logits = g_new (double, p->n_classes);
  const gint64 *targets = test_read (o->targets);
  double count = 0;

  self->losses = g_new0 (double, p->n_rows);
  self->x_grad = g_new0 (double, ebb_tensor_get_n_elements (o->x));
  self->weight_grad = weight ? g_new0 (double, p->n_classes * p->width) : NULL;
  self->bias_grad = bias ? g_new0 (double, p->n_classes) : NULL;
  for (gint64 row = 0; row < p->n_rows; row++)
    count += targets[row] != IGNORED;
  for (gint64 row = 0; row < p->n_rows; row++)
    {
      gboolean is_alone = p->reduction == EBB_REDUCTION_NONE;
      double sum = 0, factor = is_alone ? (double) row + 1 : p->reduction == EBB_REDUCTION_MEAN ? 1 / count
                                                                                                : 1;

      if (targets[row] == IGNORED)
        continue;
      for (gint64 class = 0; class < p->n_classes; class ++)
        {
          logits[class] = compute_logit (p, x, weight, bias, row, class);
          if (p->softcap != 0)
            logits[class] = p->softcap * tanh (logits[class] / p->softcap);
          sum += exp (logits[class]);
        }
      self->losses[is_alone ? row : 0] += (log (sum) - logits[targets[row]]) * (is_alone ? 1 : factor);
      for (gint64 class = 0; class < p->n_classes; class ++)
        {
          double slope = p->softcap != 0 ? 1 - pow (logits[class] / p->softcap, 2) : 1;

          add_gradient (p, self, x, weight, row, class,
                        factor * slope * (exp (logits[class]) / sum - (class == targets[row])));
        }
    }
}

/* -- equality ------------------------------------------------------------------------------------------------------ */

/* Columns [first, first + count) of a matrix of @n columns. */
static double *
cut_columns (const double *matrix,
             gint64 n_rows,
             gint64 n,
             gint64 first,
             gint64 count)
{
  double *columns = g_new (double, n_rows *count);

  for (gint64 row = 0; row < n_rows; row++)
    memcpy (columns + row * count, matrix + row * n + first, count * sizeof (double));
  return columns;
}

static EbbTensor *
get_grad (EbbTensor *leaf)
{
  EbbTensor *grad = ebb_tensor_get_grad (leaf);

  g_assert_nonnull (grad);
  return grad;
}

static void
check_gradients (const Problem *p,
                 const Operands *o,
                 const Truth *truth,
                 EbbProcessGroup *group,
                 double tolerance)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x_grad = get_grad (o->x);
  g_autoptr (EbbTensor) numbers = as_f32 (x_grad);
  g_autoptr (EbbTensor) sum = ebb_copy (numbers, &error);
  gint64 first, count;

  get_part (p->n_classes, group, &first, &count);
  if (p->width == 0)
    {
      g_autofree double *expected = cut_columns (truth->x_grad, p->n_rows, p->n_classes, first, count);

      g_assert_cmpfloat (measure_distance (x_grad, expected), <=, tolerance);
      return;
    }
  g_assert_true (ebb_process_group_all_reduce (group, sum, EBB_REDUCE_OP_SUM, &error));
  g_assert_cmpfloat (measure_distance (sum, truth->x_grad), <=, tolerance);
  {
    g_autoptr (EbbTensor) weight_grad = get_grad (o->weight);

    g_assert_cmpfloat (measure_distance (weight_grad, truth->weight_grad + first * p->width), <=, tolerance);
  }
  if (o->bias != NULL)
    {
      g_autoptr (EbbTensor) bias_grad = get_grad (o->bias);

      g_assert_cmpfloat (measure_distance (bias_grad, truth->bias_grad + first), <=, tolerance);
    }
}

/* Sets the right values to the results of the op for all classes. */
static void
truth_init_whole (Truth *self,
                  const Problem *p,
                  const Operands *o)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = compute_loss (o, p, NULL, &error);
  g_autoptr (EbbTensor) x_grad = NULL;
  g_autoptr (EbbTensor) weight_grad = NULL;
  g_autoptr (EbbTensor) bias_grad = NULL;

  g_assert_no_error (error);
  go_back (loss);
  x_grad = get_grad (o->x);
  weight_grad = o->weight ? get_grad (o->weight) : NULL;
  bias_grad = o->bias ? get_grad (o->bias) : NULL;
  self->losses = read_doubles (loss);
  self->x_grad = read_doubles (x_grad);
  self->weight_grad = weight_grad ? read_doubles (weight_grad) : NULL;
  self->bias_grad = bias_grad ? read_doubles (bias_grad) : NULL;
}

static void
assert_same_on_all (EbbTensor *tensor,
                    EbbProcessGroup *group)
{
  const EbbReduceOp ops[] = { EBB_REDUCE_OP_MIN, EBB_REDUCE_OP_MAX };

  for (guint i = 0; i < G_N_ELEMENTS (ops); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) extreme = NULL;

      ebb_push_grad_enabled (FALSE);
      extreme = ebb_copy (tensor, &error);
      ebb_pop_grad_enabled ();
      g_assert_true (ebb_process_group_all_reduce (group, extreme, ops[i], &error));
      g_assert_cmpmem (test_read (extreme), ebb_tensor_get_n_elements (extreme) * sizeof (float), test_read (tensor),
                       ebb_tensor_get_n_elements (tensor) * sizeof (float));
    }
}

static gboolean
check_problem (EbbProcessGroup *group,
               gpointer data,
               GError **error)
{
  const Problem *problem = data;
  const gboolean is_exact = problem->dtype == EBB_DTYPE_F32 && !problem->with_autocast;
  g_auto (Operands) whole = { 0 };
  g_auto (Operands) part = { 0 };
  g_auto (Truth) truth = { 0 };
  g_auto (Truth) expected = { 0 };
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) again = NULL;

  operands_init (&whole, problem, NULL);
  operands_init (&part, problem, group);
  truth_init (&truth, problem, &whole);
  truth_init_whole (&expected, problem, &whole);
  again = compute_loss (&part, problem, group, error);
  loss = compute_loss (&part, problem, group, error);
  g_assert_no_error (*error);
  test_assert_near (loss, again, 0);
  assert_same_on_all (loss, group);
  go_back (loss);
  g_assert_cmpfloat (measure_distance (loss, truth.losses), <=, is_exact ? 1e-6 : 4e-3);
  g_assert_cmpfloat (measure_distance (loss, expected.losses), <=, is_exact ? 1e-6 : 4e-3);
  check_gradients (problem, &part, &truth, group, is_exact ? 1e-6 : 2e-2);
  check_gradients (problem, &part, &expected, group, is_exact ? 1e-6 : 2e-2);
  operands_clear (&whole);
  return TRUE;
}

static void
check_on_all (Problem problem)
{
  const guint n_ranks[] = { 1, 2, 4 };

  for (guint i = 0; i < G_N_ELEMENTS (n_ranks); i++)
    for (int reduction = EBB_REDUCTION_MEAN; reduction <= EBB_REDUCTION_NONE; reduction++)
      {
        problem.reduction = (EbbReduction) reduction;
        test_ranks_run (n_ranks[i], check_problem, &problem);
      }
}

static void
logits_in_parts_equal_the_whole (void)
{
  check_on_all ((Problem){ 40, 64, 0, .dtype = EBB_DTYPE_F32 });
  check_on_all ((Problem){ 9, 7, 0, .dtype = EBB_DTYPE_F32 });
  check_on_all ((Problem){ 3, 4, 0, .dtype = EBB_DTYPE_F32 });
  check_on_all ((Problem){ 21, 50257, 0, .dtype = EBB_DTYPE_F32 });
  check_on_all ((Problem){ 21, 509, 0, .dtype = EBB_DTYPE_BF16 });
}

static void
linear_in_parts_equals_the_whole (void)
{
  check_on_all ((Problem){ 40, 64, 16, .dtype = EBB_DTYPE_F32 });
  check_on_all ((Problem){ 9, 7, 5, .dtype = EBB_DTYPE_F32, .with_bias = TRUE });
  check_on_all ((Problem){ 130, 509, 33, .dtype = EBB_DTYPE_F32, .with_bias = TRUE });
  check_on_all ((Problem){ 40, 64, 16, .dtype = EBB_DTYPE_F32, .softcap = 3 });
  check_on_all ((Problem){ 40, 509, 32, .dtype = EBB_DTYPE_BF16 });
  check_on_all ((Problem){ 40, 509, 32, .dtype = EBB_DTYPE_F32, .with_bias = TRUE, .with_autocast = TRUE });
}

/* -- chunks -------------------------------------------------------------------------------------------------------- */

#define MANY_ROWS 100
#define MANY_CHUNKS 3

/* Rows of a chunk are 48 by the largest part, one class more than fits in 64; the other rank's part alone has room for
 * 64. A GPU's chunk is a sixteenth of its memory, which main () makes an eighth of the CPU's. */
static gint64
get_many_classes (void)
{
  return 2 * (test_device_of_same_bits () == ebb_device_get_cpu () ? 262144 : 32768) + 1;
}

static guint64
count_gathers (EbbProcessGroup *group)
{
  for (int i = 0; i < EBB_N_COLLECTIVES; i++)
    if (i != EBB_COLLECTIVE_ALL_GATHER)
      g_assert_cmpuint (ebb_process_group_get_n_calls (group, (EbbCollective) i), ==, 0);
  return ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER);
}

static gboolean
count_calls (EbbProcessGroup *group,
             gpointer data,
             GError **error)
{
  for (int reduction = EBB_REDUCTION_MEAN; reduction <= EBB_REDUCTION_NONE; reduction++)
    for (gint64 width = 0; width <= 2; width += 2)
      {
        Problem problem = { MANY_ROWS, width ? get_many_classes () : 100, width, (EbbReduction) reduction,
                            EBB_DTYPE_F32 };
        const guint64 expected = width ? MANY_CHUNKS : 1;
        g_auto (Operands) part = { 0 };
        g_autoptr (EbbTensor) loss = NULL;

        operands_init (&part, &problem, group);
        ebb_process_group_reset_counters (group);
        loss = compute_loss (&part, &problem, group, error);
        g_assert_no_error (*error);
        go_back (loss);
        g_assert_cmpuint (count_gathers (group), ==, expected);
        /* Three numbers a row go from each rank to the other, however many classes there are. */
        g_assert_cmpuint (ebb_process_group_get_n_bytes (group, EBB_COLLECTIVE_ALL_GATHER), <=,
                          2 * MANY_ROWS * 3 * sizeof (float));
      }
  return TRUE;
}

static void
each_chunk_takes_one_call (void)
{
  test_ranks_run (2, count_calls, NULL);
}

static guint64
get_total (gboolean peak)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return peak ? ebb_memory_stats_get_peak_total (stats) : ebb_memory_stats_get_total (stats);
}

static gboolean
measure_memory (EbbProcessGroup *group,
                gpointer data,
                GError **error)
{
  Problem problem = { MANY_ROWS, get_many_classes (), 2, *(EbbReduction *) data, EBB_DTYPE_F32 };
  g_auto (Operands) part = { 0 };
  g_autoptr (EbbTensor) loss = NULL;
  guint64 before;

  operands_init (&part, &problem, group);
  g_assert_true (ebb_process_group_barrier (group, error));
  before = get_total (FALSE);
  g_assert_true (ebb_process_group_barrier (group, error));
  if (ebb_process_group_get_rank (group) == 0)
    ebb_memory_reset_peaks (test_device ());
  g_assert_true (ebb_process_group_barrier (group, error));
  loss = compute_loss (&part, &problem, group, error);
  g_assert_no_error (*error);
  go_back (loss);
  g_assert_true (ebb_process_group_barrier (group, error));
  /* Of both ranks, whose memory is the same: a chunk is 48 of 100 rows. */
  g_assert_cmpuint (get_total (TRUE) - before, <, (guint64) MANY_ROWS * get_many_classes () * sizeof (float) * 6 / 10);
  return TRUE;
}

static void
all_logits_of_a_part_are_never_held (void)
{
  EbbReduction reductions[] = { EBB_REDUCTION_MEAN, EBB_REDUCTION_NONE };

  for (guint i = 0; i < G_N_ELEMENTS (reductions); i++)
    test_ranks_run (2, measure_memory, &reductions[i]);
}

/* -- ignored targets ----------------------------------------------------------------------------------------------- */

static gboolean
ignore_all (EbbProcessGroup *group,
            gpointer data,
            GError **error)
{
  for (int reduction = EBB_REDUCTION_MEAN; reduction <= EBB_REDUCTION_NONE; reduction++)
    for (gint64 width = 0; width <= 4; width += 4)
      {
        Problem problem = { 6, 11, width, (EbbReduction) reduction, EBB_DTYPE_F32, .ignores_all = TRUE };
        g_auto (Operands) part = { 0 };
        g_autoptr (EbbTensor) loss = NULL;
        g_autoptr (EbbTensor) grad = NULL;

        operands_init (&part, &problem, group);
        loss = compute_loss (&part, &problem, group, error);
        g_assert_no_error (*error);
        if (reduction == EBB_REDUCTION_MEAN)
          g_assert_true (isnan (test_at (loss, 0)));
        else
          g_assert_cmpfloat (test_sum (loss), ==, 0);
        g_assert_true (reduction == EBB_REDUCTION_NONE || ebb_tensor_backward (loss, error));
        if (reduction == EBB_REDUCTION_NONE)
          go_back (loss);
        grad = get_grad (width ? part.weight : part.x);
        for (gint64 i = 0; i < ebb_tensor_get_n_elements (grad); i++)
          g_assert_cmpfloat (test_at (grad, (gsize) i), ==, 0);
      }
  return TRUE;
}

static void
mean_of_nothing_is_nan_with_zero_gradients (void)
{
  test_ranks_run (2, ignore_all, NULL);
}

/* -- recompute ----------------------------------------------------------------------------------------------------- */

typedef struct
{
  Problem problem;
  Operands *part;
  EbbProcessGroup *group;
  gboolean is_beside; /* of what the result doesn't depend on */
} Recomputed;

static EbbArgs *
compute_again (EbbArgs *args,
               gpointer user_data,
               GError **error)
{
  const Recomputed *self = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_tanh (x, error);
  g_autoptr (EbbTensor) without_graph = y ? ebb_tensor_detach (y) : NULL;
  Operands operands = { self->is_beside ? without_graph : y, NULL, NULL, self->part->targets };
  g_autoptr (EbbTensor) loss = NULL;

  if (self->problem.width > 0 && !self->is_beside)
    operands.weight = self->part->weight;
  else if (self->problem.width > 0)
    operands.weight = ebb_tensor_detach (self->part->weight);
  loss = compute_loss (&operands, &self->problem, self->group, error);
  if (self->is_beside)
    g_clear_pointer (&operands.weight, ebb_tensor_unref);
  return ebb_args_new_for_tensor (self->is_beside ? y : loss);
}

static gboolean
recompute (EbbProcessGroup *group,
           gpointer data,
           GError **error)
{
  const gint64 width = *(gint64 *) data;
  Recomputed self = { { 20, 101, width, EBB_REDUCTION_MEAN, EBB_DTYPE_F32 }, NULL, group, FALSE };
  g_autoptr (EbbTensor) plain = NULL;
  g_auto (Operands) part = { 0 };

  self.part = &part;
  for (guint i = 0; i < 3; i++) /* plain, checkpointed, checkpointed with the loss beside */
    {
      g_autoptr (EbbArgs) args = NULL;
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbTensor) scalar = NULL;
      guint64 n_calls;

      operands_clear (&part);
      operands_init (&part, &self.problem, group);
      self.is_beside = i == 2;
      args = ebb_args_new_for_tensor (part.x);
      ebb_process_group_reset_counters (group);
      result =
          i == 0 ? compute_again (args, &self, error) : ebb_checkpoint (compute_again, &self, NULL, args, NULL, error);
      g_assert_no_error (*error);
      g_assert_cmpuint (count_gathers (group), ==, 1);
      loss = ebb_args_get_tensor (result, 0);
      scalar = ebb_sum (loss, NULL, 0, FALSE, error);
      g_assert_true (ebb_tensor_backward (scalar, error));
      n_calls = count_gathers (group);
      /* The recompute of what backward needs gathers again; it stops before what it doesn't. */
      g_assert_cmpuint (n_calls, ==, i == 1 ? 2 : 1);
      if (i == 0)
        plain = get_grad (part.x);
      else if (i == 1)
        {
          g_autoptr (EbbTensor) grad = get_grad (part.x);

          test_assert_near (grad, plain, 0);
        }
    }
  return TRUE;
}

static void
recompute_gathers_what_backward_needs (void)
{
  gint64 widths[] = { 0, 8 };

  for (guint i = 0; i < G_N_ELEMENTS (widths); i++)
    test_ranks_run (2, recompute, &widths[i]);
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_CUDA_MEMORY", "128M", TRUE);
  test_init (&argc, &argv);
  g_test_add_func ("/vocab-loss/logits-in-parts-equal-the-whole", logits_in_parts_equal_the_whole);
  g_test_add_func ("/vocab-loss/linear-in-parts-equals-the-whole", linear_in_parts_equals_the_whole);
  g_test_add_func ("/vocab-loss/each-chunk-takes-one-call", each_chunk_takes_one_call);
  g_test_add_func ("/vocab-loss/all-logits-of-a-part-are-never-held", all_logits_of_a_part_are_never_held);
  g_test_add_func ("/vocab-loss/mean-of-nothing-is-nan-with-zero-gradients",
                   mean_of_nothing_is_nan_with_zero_gradients);
  g_test_add_func ("/vocab-loss/recompute-gathers-what-backward-needs", recompute_gathers_what_backward_needs);
  return g_test_run ();
}
