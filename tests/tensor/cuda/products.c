/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only kernels */
#include "support/tensors.h"
#include "tensor/autograd/op-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"
#include "tensor/util/half-private.h"

#include <math.h>
#include <string.h>

/* Matrix products of the CUDA backend beside the CPU's, over the emulated GPU or the one that EBB_TEST_DEVICE names:
 * each kind of operand that cuBLASLt takes, or that goes through workspace. Wherever operands lie, the bits are the
 * same. */

#define MOST 4

typedef struct
{
  const char *name;
  gint64 batch[2], m, n, k; /* batch: 0 ends it */
  EbbDType operands, result;
  int bias; /* its dtype, -1: none */
  gint64 bias_stride;
  gboolean accumulate;
  gboolean transpose_a, transpose_b;
  gint64 pad_a, pad_b, pad_c; /* elements between rows, or columns */
  gboolean one_a, one_b;      /* the same matrix for the whole batch */
  gboolean swaps_batch;       /* the dimensions of the batch are in another order in memory */
  gboolean spread_a;          /* no stride of a is 1: its rows overlap */
} Case;

#define F32 EBB_DTYPE_F32
#define BF16 EBB_DTYPE_BF16

static const Case cases[] = {
  { "plain", .m = 33, .n = 17, .k = 40, .operands = F32, .result = F32, .bias = -1 },
  { "bf16", .m = 33, .n = 24, .k = 40, .operands = BF16, .result = BF16, .bias = -1 },
  { "bf16-to-f32", .m = 9, .n = 24, .k = 40, .operands = BF16, .result = F32, .bias = -1 },
  { "f32-to-bf16", .m = 9, .n = 24, .k = 40, .operands = F32, .result = BF16, .bias = -1 },
  { "f32-to-bf16-accumulated", .m = 9, .n = 24, .k = 40, .operands = F32, .result = BF16, .bias = F32,
    .accumulate = 1 },
  { "transposed-left", .m = 12, .n = 20, .k = 31, .operands = F32, .result = F32, .bias = -1, .transpose_a = TRUE },
  { "transposed-right", .m = 12, .n = 20, .k = 31, .operands = BF16, .result = F32, .bias = -1, .transpose_b = TRUE },
  { "transposed-both", .m = 12, .n = 20, .k = 31, .operands = F32, .result = F32, .bias = -1, .transpose_a = TRUE,
    .transpose_b = TRUE },
  { "padded", .m = 12, .n = 20, .k = 31, .operands = F32, .result = F32, .bias = -1, .pad_a = 5, .pad_b = 3 },
  { "bias", .m = 12, .n = 20, .k = 31, .operands = F32, .result = F32, .bias = F32 },
  { "bias-accumulated", .m = 12, .n = 20, .k = 31, .operands = BF16, .result = BF16, .bias = BF16, .accumulate = TRUE },
  { "bias-of-another-dtype", .m = 12, .n = 20, .k = 31, .operands = BF16, .result = BF16, .bias = F32 },
  { "bf16-bias-of-f32", .m = 12, .n = 20, .k = 31, .operands = F32, .result = F32, .bias = BF16 },
  { "bias-with-a-stride", .m = 12, .n = 20, .k = 31, .operands = F32, .result = F32, .bias = F32, .bias_stride = 3 },
  { "batch", .batch = { 5 }, .m = 7, .n = 6, .k = 8, .operands = F32, .result = F32, .bias = -1 },
  { "batch-with-bias", .batch = { 5 }, .m = 7, .n = 6, .k = 8, .operands = F32, .result = F32, .bias = F32 },
  { "one-right-for-a-batch", .batch = { 5 }, .m = 7, .n = 6, .k = 8, .operands = F32, .result = F32, .bias = -1,
    .one_b = TRUE },
  { "one-left-for-a-batch", .batch = { 2, 3 }, .m = 7, .n = 6, .k = 8, .operands = F32, .result = F32, .bias = -1,
    .one_a = TRUE },
  { "two-batches", .batch = { 2, 3 }, .m = 7, .n = 6, .k = 8, .operands = BF16, .result = BF16, .bias = -1,
    .swaps_batch = TRUE },
  { "rows-that-overlap", .batch = { 2 }, .m = 7, .n = 6, .k = 8, .operands = F32, .result = F32, .bias = -1,
    .spread_a = TRUE },
  { "one-row", .batch = { 4 }, .m = 1, .n = 6, .k = 8, .operands = F32, .result = F32, .bias = -1, .one_b = TRUE },
  { "few-rows", .m = 3, .n = 300, .k = 129, .operands = BF16, .result = BF16, .bias = BF16, .transpose_b = TRUE },
  { "one-column", .m = 40, .n = 1, .k = 33, .operands = F32, .result = F32, .bias = -1 },
  { "one-of-each", .m = 1, .n = 1, .k = 1, .operands = F32, .result = F32, .bias = F32 },
  { "no-terms", .m = 4, .n = 3, .k = 0, .operands = F32, .result = F32, .bias = -1 },
  { "no-terms-but-a-bias", .m = 4, .n = 3, .k = 0, .operands = F32, .result = BF16, .bias = F32 },
  { "no-terms-but-a-bias-added", .m = 4, .n = 3, .k = 0, .operands = F32, .result = F32, .bias = F32,
    .accumulate = TRUE },
  { "no-terms-but-a-bf16-bias-added", .batch = { 2 }, .m = 4, .n = 3, .k = 0, .operands = F32, .result = F32,
    .bias = BF16, .bias_stride = 2, .accumulate = TRUE },
  { "no-terms-but-an-f32-bias-added", .m = 4, .n = 3, .k = 0, .operands = BF16, .result = BF16, .bias = F32,
    .accumulate = TRUE },
  /* Large ones of which cuBLASLt gets rows, columns or terms up to a multiple of 8 first */
  { "columns-apart", .m = 520, .n = 1031, .k = 512, .operands = BF16, .result = F32, .bias = F32, .transpose_b = TRUE,
    .pad_c = 1 },
  { "columns-apart-to-bf16", .m = 520, .n = 1031, .k = 512, .operands = BF16, .result = BF16, .bias = F32,
    .transpose_b = TRUE, .pad_c = 1 },
  { "terms-apart", .m = 520, .n = 1032, .k = 511, .operands = BF16, .result = F32, .bias = F32, .accumulate = TRUE,
    .pad_a = 1 },
  { "terms-apart-to-bf16", .m = 520, .n = 1032, .k = 511, .operands = BF16, .result = BF16, .bias = F32,
    .accumulate = TRUE, .transpose_a = TRUE },
  { "rows-apart", .m = 521, .n = 1032, .k = 512, .operands = BF16, .result = F32, .bias = F32, .transpose_a = TRUE,
    .pad_a = 7 },
  { "rows-columns-and-terms-apart", .m = 521, .n = 1031, .k = 513, .operands = BF16, .result = F32, .bias = F32,
    .accumulate = TRUE, .transpose_a = TRUE, .pad_a = 7, .pad_b = 1, .pad_c = 1 },
  { "columns-and-terms-apart", .m = 520, .n = 1031, .k = 513, .operands = BF16, .result = F32, .bias = F32,
    .transpose_a = TRUE, .pad_b = 1, .pad_c = 1 },
  { "no-rows", .m = 0, .n = 3, .k = 5, .operands = F32, .result = F32, .bias = -1 },
};

static EbbDevice *device;

/* Memory of its own, and a view of it that begins @offset elements after the start. */
typedef struct
{
  EbbTensor *memory;
  EbbView view;
} Operand;

static gint64
get_extent (const EbbView *view)
{
  gint64 last = 0;

  for (int i = 0; i < view->n_dims; i++)
    last += MAX (view->shape[i] - 1, 0) * view->strides[i];
  return last + 1;
}

/* Values up to @scale, the same on each device, whatever the offset. */
static void
operand_init (Operand *self,
              const EbbView *shape,
              EbbDevice *where,
              gint64 offset,
              guint seed,
              double scale)
{
  const gint64 n = get_extent (shape), size = n + offset;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) memory = ebb_tensor_new_uninitialized (&size, 1, shape->dtype, NULL, &error);

  g_assert_no_error (error);
  for (gint64 i = 0; i < size; i++)
    {
      const float value = (float) (scale * sin (1.7 * (double) (i - offset) + seed));

      if (shape->dtype == F32)
        ((float *) memory->view.data)[i] = value;
      else
        ((guint16 *) memory->view.data)[i] = ebb_bf16_from_float (value);
    }
  self->memory = ebb_to_device (memory, where, &error);
  g_assert_no_error (error);
  self->view = *shape;
  self->view.data = (char *) self->memory->view.data + (gsize) offset * ebb_dtype_get_size (shape->dtype);
}

static void
fill_view (EbbView *view,
           const Case *c,
           gint64 rows,
           gint64 columns,
           gboolean transpose,
           gint64 pad,
           gboolean one,
           EbbDType dtype)
{
  const gint64 inner = (transpose ? rows : columns) + pad, matrix = inner * (transpose ? columns : rows);
  const int n_batch = (c->batch[0] > 0) + (c->batch[1] > 0);

  *view = (EbbView){ .dtype = dtype, .n_dims = n_batch + 2 };
  for (int i = 0; i < n_batch; i++)
    {
      const gboolean is_inner = (i == n_batch - 1) != c->swaps_batch;

      view->shape[i] = c->batch[i];
      view->strides[i] = one ? 0 : is_inner ? matrix
                                            : matrix * c->batch[n_batch - 1 - i];
    }
  view->shape[n_batch] = rows;
  view->shape[n_batch + 1] = columns;
  view->strides[n_batch] = transpose ? 1 : inner;
  view->strides[n_batch + 1] = transpose ? inner : 1;
}

/* The result as f32 on the CPU, with what lies before it if it has an offset. */
static EbbTensor *
run (const Case *c,
     EbbDevice *where,
     gint64 offset)
{
  const gboolean has_bias = c->bias >= 0;
  g_autoptr (GError) error = NULL;
  EbbView a_shape, b_shape, c_shape, bias_shape;
  Operand a, b, result, bias = { .memory = NULL };
  g_autoptr (EbbTensor) here = NULL;
  EbbTensor *wide;
  EbbLaunch launch;
  Case dense = *c;

  fill_view (&a_shape, c, c->m, c->k, c->transpose_a, c->pad_a, c->one_a, c->operands);
  if (c->spread_a)
    a_shape.strides[a_shape.n_dims - 2] = 1;
  fill_view (&b_shape, c, c->k, c->n, c->transpose_b, c->pad_b, c->one_b, c->operands);
  dense.swaps_batch = FALSE;
  fill_view (&c_shape, &dense, c->m, c->n, FALSE, c->pad_c, FALSE, c->result);
  operand_init (&a, &a_shape, where, offset, 1, 1);
  operand_init (&b, &b_shape, where, offset, 2, 1);
  operand_init (&result, &c_shape, where, offset, 3, 1);
  if (has_bias)
    {
      bias_shape = (EbbView){ .dtype = (EbbDType) c->bias,
                              .n_dims = 1,
                              .shape = { c->n },
                              .strides = { MAX (c->bias_stride, 1) } };
      /* A wrong one must be seen beside what the many terms of a large product may be off. */
      operand_init (&bias, &bias_shape, where, offset, 4, c->k > 256 ? 64 : 1);
    }
  ebb_launch_init (&launch, EBB_KERNEL_MATMUL);
  launch.n_inputs = 3;
  launch.inputs[0] = &a.view;
  launch.inputs[1] = &b.view;
  launch.inputs[2] = has_bias ? &bias.view : NULL;
  launch.n_outputs = 1;
  launch.outputs[0] = &result.view;
  launch.params.matmul.accumulate = c->accumulate;
  g_assert_true (ebb_device_launch (where, &launch, &error));
  g_assert_no_error (error);
  here = ebb_to_device (result.memory, NULL, &error);
  wide = ebb_cast (here, F32, &error);
  g_assert_no_error (error);
  ebb_tensor_unref (a.memory);
  ebb_tensor_unref (b.memory);
  ebb_tensor_unref (result.memory);
  g_clear_pointer (&bias.memory, ebb_tensor_unref);
  return wide;
}

static void
agrees_with_the_cpu (gconstpointer data)
{
  const Case *c = data;
  g_autoptr (EbbTensor) here = run (c, ebb_device_get_cpu (), 0), there = run (c, device, 0);
  /* The many terms of the large ones are of one sign, so their sums are up to k / 2: one unit in the last place of
   * that, and of f32, where each GPU rounds its own partial sums, some. */
  const gboolean is_large = c->k > 256;
  const double of_bf16 = is_large ? 2 : 1.0 / 32;
  const double of_f32 = is_large ? 2e-6 * (double) c->k : 1e-5 * (1 + sqrt ((double) c->k));
  const double tolerance = c->result == BF16 ? of_bf16 : of_f32;

  test_assert_near (here, there, tolerance);
}

static void
bits_do_not_depend_on_addresses (gconstpointer data)
{
  const Case *c = data;
  g_autoptr (EbbTensor) first = run (c, device, 0);
  const gsize n = (gsize) ebb_tensor_get_n_elements (first);

  for (gint64 offset = 1; offset <= MOST; offset += 1 + (offset == 2))
    {
      g_autoptr (EbbTensor) other = run (c, device, offset);

      g_assert_cmpmem (first->view.data, n * sizeof (float), (float *) other->view.data + offset, n * sizeof (float));
    }
}

/* The workspace that a product of @n x @n matrices needs whose left one begins @offset elements into @memory. */
static gsize
get_workspace (EbbTensor *memory,
               gint64 offset,
               gint64 n)
{
  const gint64 shape[] = { n, n };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) left = ebb_narrow (memory, 0, offset, n * n, &error);
  g_autoptr (EbbTensor) right = ebb_zeros (shape, 2, F32, device, &error);
  g_autoptr (EbbTensor) result = ebb_zeros (shape, 2, F32, device, &error);
  g_autoptr (EbbTensor) matrix = ebb_reshape (left, shape, 2, &error);
  EbbLaunch launch;

  g_assert_no_error (error);
  ebb_launch_init (&launch, EBB_KERNEL_MATMUL);
  launch.n_inputs = 3;
  launch.inputs[0] = &matrix->view;
  launch.inputs[1] = &right->view;
  launch.inputs[2] = NULL;
  launch.n_outputs = 1;
  launch.outputs[0] = &result->view;
  return device->backend->get_workspace (device->index, &launch);
}

/* Where a view begins in its storage decides, not where that lies: here over another library's memory, which it may be
 * shown from anywhere. */
static void
workspace_does_not_depend_on_addresses (void)
{
  enum
  {
    N = 12,
    MOST_OFFSET = 9
  };
  const gint64 size = N * N + MOST_OFFSET;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) memory = ebb_zeros (&size, 1, F32, device, &error);

  g_assert_no_error (error);
  g_assert_cmpuint ((gsize) memory->view.data % EBB_DEVICE_ALIGNMENT, ==, 0);
  for (gint64 i = 0; i < 3; i++)
    {
      const gint64 n_before = 1 + 67 * i;
      g_autoptr (EbbTensor) before = ebb_zeros (&n_before, 1, F32, device, &error);
      g_autoptr (EbbTensor) other = ebb_zeros (&size, 1, F32, device, &error);

      g_assert_cmpuint ((gsize) other->view.data % EBB_DEVICE_ALIGNMENT, ==, 0);
      for (gint64 offset = 0; offset < MOST_OFFSET; offset++)
        g_assert_cmpuint (get_workspace (memory, offset, N), ==, get_workspace (other, offset, N));
    }
  for (gint64 offset = 0; offset < MOST_OFFSET; offset++)
    {
      const gint64 rest = size - offset;
      g_autoptr (EbbTensor) shown = ebb_tensor_new_over_memory (
          device, (guint64) (gsize) ((float *) memory->view.data + offset), &rest, 1, NULL, 0, F32, NULL, NULL, &error);

      g_assert_no_error (error);
      g_assert_cmpuint ((gsize) shown->storage->data % EBB_DEVICE_ALIGNMENT, ==, 0);
      g_assert_cmpint (shown->offset, ==, offset);
      g_assert_cmpuint (get_workspace (shown, 0, N), ==, get_workspace (memory, offset, N));
    }
}

/* What ops say of heads that no kernel of the device takes. */
static void
check_refusal (EbbTensor *q,
               const char *expected)
{
  g_autoptr (EbbTensor) packed = NULL, y = NULL;
  g_autoptr (GError) error = NULL, packed_error = NULL;

  y = ebb_scaled_dot_product_attention (q, q, q, NULL, TRUE, 0, 0.5, NULL, &error);
  g_assert_null (y);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_true (g_str_has_prefix (error->message, "scaled_dot_product_attention: "));
  g_assert_nonnull (strstr (error->message, expected));
  packed = ebb_reshape (q, (gint64[]){ 1, 2, 3 * 257 }, 3, &packed_error);
  g_assert_no_error (packed_error);
  y = ebb_self_attention (packed, 1, NULL, TRUE, 0, 0.5, NULL, &packed_error);
  g_assert_null (y);
  g_assert_error (packed_error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_nonnull (strstr (packed_error->message, expected));
}

/* One line names the limit, in a dry run too, and nothing was drawn: the next random numbers are those from before. The
 * CPU takes any width. */
static void
heads_that_are_too_wide_are_refused (void)
{
  const gint64 shape[] = { 1, 2, 3, 257 };
  g_autofree char *expected =
      g_strdup_printf ("heads are 257 wide; on %s they must be at most 256 wide", ebb_device_get_name (device));
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) q = ebb_zeros (shape, 4, F32, device, &error);
  g_autoptr (EbbTensor) here = ebb_zeros (shape, 4, F32, NULL, &error);
  g_autoptr (EbbTensor) first = NULL, second = NULL, dry = NULL, y = NULL;

  g_assert_no_error (error);
  ebb_manual_seed (5);
  first = ebb_rand (shape, 4, F32, NULL, NULL, &error);
  ebb_manual_seed (5);
  check_refusal (q, expected);
  ebb_push_dry_run ();
  dry = ebb_zeros (shape, 4, F32, device, &error);
  check_refusal (dry, expected);
  g_clear_pointer (&dry, ebb_tensor_unref);
  ebb_pop_dry_run ();
  second = ebb_rand (shape, 4, F32, NULL, NULL, &error);
  g_assert_no_error (error);
  test_assert_near (first, second, 0);
  y = ebb_scaled_dot_product_attention (here, here, here, NULL, TRUE, 0, 0, NULL, &error);
  g_assert_no_error (error);
  g_assert_nonnull (y);
}

int
main (int argc,
      char *argv[])
{
  const char *name = g_getenv ("EBB_TEST_DEVICE");
  g_autoptr (GError) error = NULL;

  g_test_init (&argc, &argv, NULL);
  device = ebb_device_get (name != NULL ? name : "cudaemu", &error);
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *agrees = g_strdup_printf ("/cuda/products/agree-with-the-cpu/%s", cases[i].name);
      g_autofree char *bits = g_strdup_printf ("/cuda/products/bits-do-not-depend-on-addresses/%s", cases[i].name);

      g_test_add_data_func (agrees, &cases[i], agrees_with_the_cpu);
      g_test_add_data_func (bits, &cases[i], bits_do_not_depend_on_addresses);
    }
  g_test_add_func ("/cuda/products/workspace-does-not-depend-on-addresses", workspace_does_not_depend_on_addresses);
  g_test_add_func ("/cuda/products/heads-that-are-too-wide-are-refused", heads_that_are_too_wide_are_refused);
  return g_test_run ();
}
