/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"

#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"

/* After the early stop of a recompute ops go on with tensors that have a shape and no data: no op may fail, change
 * anything, or draw another number of random numbers than it would have. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))

typedef struct
{
  EbbTensor *x, *y, *row, *matrix, *truth, *indices;
  EbbGenerator *generator;
} Operands;

typedef EbbTensor *(*OpFunc) (Operands *o,
                              GError **error);

#define OP(name, expression)                   \
  static EbbTensor *op_##name (Operands *o,    \
                               GError **error) \
  {                                            \
    return expression;                         \
  }

OP (add, ebb_add (o->x, o->row, error))
OP (div, ebb_div (o->row, o->y, error))
OP (pow, ebb_pow_scalar (o->x, 3, error))
OP (less, ebb_lt (o->x, o->y, error))
OP (tanh, ebb_tanh (o->x, error))
OP (bias_gelu, ebb_bias_gelu (o->x, o->row, EBB_GELU_TANH, error))
OP (softmax, ebb_softmax (o->x, 0, error))
OP (dropout, ebb_dropout (o->x, 0.5, TRUE, o->generator, error))
OP (where, ebb_where (o->truth, o->x, o->row, error))
OP (clamp, ebb_clamp (o->x, 0, 1, error))
OP (tril, ebb_tril (o->x, 0, error))
OP (cast, ebb_cast (o->x, EBB_DTYPE_BF16, error))
OP (contiguous, ebb_contiguous (o->matrix, error))
OP (reshape, ebb_reshape (o->matrix, SHAPE (-1), error))
OP (expand, ebb_expand (o->row, SHAPE (2, 3, 4), error))
OP (select, ebb_select (o->x, 1, -1, error))
OP (cat, ebb_cat ((EbbTensor *[]){ o->x, o->y }, 2, 0, error))
OP (stack, ebb_stack ((EbbTensor *[]){ o->x, o->y }, 2, 0, error))
OP (embedding, ebb_embedding (o->x, o->indices, error))
OP (index_select, ebb_index_select (o->x, 0, o->indices, error))
OP (sum, ebb_sum (o->x, NULL, 0, FALSE, error))
OP (max, ebb_max (o->x, (const int[]){ 1 }, 1, TRUE, error))
OP (var, ebb_var (o->x, NULL, 0, 1, FALSE, error))
OP (norm, ebb_norm (o->x, error))
OP (argmax, ebb_argmax (o->x, 0, FALSE, error))
OP (zeros, ebb_zeros (SHAPE (2, 2), EBB_DTYPE_F32, NULL, error))
OP (arange, ebb_arange (0, 5, 1, EBB_DTYPE_I64, NULL, error))
OP (randn, ebb_randn (SHAPE (5, 3), EBB_DTYPE_F32, NULL, o->generator, error))
OP (randint, ebb_randint (0, 9, SHAPE (5, 3), EBB_DTYPE_I64, NULL, o->generator, error))
OP (multinomial, ebb_multinomial (o->x, 3, o->generator, error))

static EbbTensor *
op_gather (Operands *o, GError **error)
{
  g_autoptr (EbbTensor) column = ebb_unsqueeze (o->indices, 1, error);

  return ebb_gather (o->x, 1, column, error);
}

static EbbTensor *
op_scatter_add (Operands *o, GError **error)
{
  g_autoptr (EbbTensor) column = ebb_unsqueeze (o->indices, 1, error);

  return ebb_scatter_add (o->x, 1, column, o->y, error);
}

static EbbTensor *
op_max_along (Operands *o, GError **error)
{
  EbbTensor *values = NULL;

  ebb_max_along (o->x, 0, FALSE, &values, NULL, error);
  return values;
}

static EbbTensor *
op_topk (Operands *o, GError **error)
{
  EbbTensor *values = NULL;

  ebb_topk (o->x, 2, TRUE, &values, NULL, error);
  return values;
}

static EbbTensor *
op_split (Operands *o, GError **error)
{
  guint n = 0;
  g_autofree EbbTensor **parts = ebb_split (o->x, 1, 0, &n, error);

  for (guint i = 1; i < n; i++)
    ebb_tensor_unref (parts[i]);
  return parts != NULL ? parts[0] : NULL;
}

static EbbTensor *
op_fill_normal (Operands *o, GError **error)
{
  return ebb_tensor_fill_normal (o->y, 0, 1, o->generator, error) ? ebb_tensor_ref (o->y) : NULL;
}

static EbbTensor *
op_add_scaled (Operands *o, GError **error)
{
  return ebb_tensor_add_scaled (o->y, o->row, 2, error) ? ebb_tensor_ref (o->y) : NULL;
}

static const OpFunc ops[] = {
  op_add, op_div, op_pow, op_less, op_tanh, op_bias_gelu, op_softmax, op_dropout, op_where, op_clamp, op_tril, op_cast,
  op_contiguous, op_reshape, op_expand, op_select, op_cat, op_stack, op_embedding, op_index_select, op_gather,
  op_scatter_add, op_sum, op_max, op_var, op_norm, op_argmax, op_max_along, op_topk, op_split, op_zeros, op_arange,
  op_randn, op_randint, op_multinomial, op_fill_normal, op_add_scaled
};

static Operands
make_operands (void)
{
  g_autoptr (GError) error = NULL;
  Operands o;

  o.x = ebb_ones (SHAPE (3, 4), EBB_DTYPE_F32, NULL, &error);
  o.y = ebb_ones (SHAPE (3, 4), EBB_DTYPE_F32, NULL, &error);
  o.row = ebb_ones (SHAPE (4), EBB_DTYPE_F32, NULL, &error);
  o.matrix = ebb_transpose (o.x, 0, 1, &error);
  o.truth = ebb_gt_scalar (o.x, 0.5, &error);
  o.indices = ebb_arange (0, 3, 1, EBB_DTYPE_I64, NULL, &error);
  o.generator = ebb_generator_new (1);
  g_assert_no_error (error);
  return o;
}

static void
free_operands (Operands *o)
{
  ebb_tensor_unref (o->x);
  ebb_tensor_unref (o->y);
  ebb_tensor_unref (o->row);
  ebb_tensor_unref (o->matrix);
  ebb_tensor_unref (o->truth);
  ebb_tensor_unref (o->indices);
  g_object_unref (o->generator);
}

static void
assert_same_form (EbbTensor *a, EbbTensor *b)
{
  g_assert_cmpint (a->view.dtype, ==, b->view.dtype);
  g_assert_cmpmem (a->view.shape, sizeof (gint64) * (gsize) a->view.n_dims, b->view.shape,
                   sizeof (gint64) * (gsize) b->view.n_dims);
  g_assert_cmpmem (a->view.strides, sizeof (gint64) * (gsize) a->view.n_dims, b->view.strides,
                   sizeof (gint64) * (gsize) b->view.n_dims);
}

/* Each op once as it is, once stopped: with operands that have data, and with such that have none. */
static void
ops_go_on_without_data (void)
{
  Operands real = make_operands ();
  Operands placeholders;
  guint version = ebb_tensor_get_version (real.y);

  ebb_modes.stopped++;
  placeholders = make_operands ();
  ebb_modes.stopped--;
  g_assert_true (placeholders.x->storage->placeholder && placeholders.indices->storage->placeholder);
  for (guint i = 0; i < G_N_ELEMENTS (ops); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) of_real = NULL;
      g_autoptr (EbbTensor) of_placeholders = NULL;
      g_autoptr (EbbTensor) whole = NULL;
      guint64 offset;

      ebb_modes.stopped++;
      of_real = ops[i](&real, &error);
      g_assert_no_error (error);
      of_placeholders = ops[i](&placeholders, &error);
      g_assert_no_error (error);
      ebb_modes.stopped--;
      g_assert_cmpuint (ebb_tensor_get_version (real.y), ==, version);
      g_assert_true (of_placeholders->storage->placeholder);

      offset = ebb_generator_get_offset (real.generator);
      ebb_generator_set_state (real.generator, 1, 0);
      whole = ops[i](&real, &error);
      g_assert_no_error (error);
      g_assert_cmpuint (ebb_generator_get_offset (real.generator), ==, offset);
      g_assert_cmpuint (ebb_generator_get_offset (placeholders.generator), ==, offset);
      ebb_generator_set_state (real.generator, 1, 0);
      ebb_generator_set_state (placeholders.generator, 1, 0);
      assert_same_form (of_real, whole);
      assert_same_form (of_placeholders, whole);
      version = ebb_tensor_get_version (real.y);
    }
  free_operands (&real);
  free_operands (&placeholders);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/stopped-ops/ops-go-on-without-data", ops_go_on_without_data);
  return g_test_run ();
}
