/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Products, cross entropy and indices: each instruction set that this processor has, on one thread and on two, against
 * the float64 references, with odd shapes, strides and dtypes. */

#include <string.h>

#include "support/device.h"
#include "support/kernel-run.h"
#include "support/operand-case-private.h"
#include "tensor/backend/backend-private.h"
#include "tensor/cpu/cpu-private.h"
#include "tensor/util/half-private.h"

/* -- matmul -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 m, n, k;
  gboolean transpose_a, transpose_b;
  EbbDType dtype, result;
  int bias; /* -1: none, else its dtype */
  gboolean accumulate;
} Product;

/* GPUs round an f32 bias to bf16 before they add it to a bf16 result of bf16 operands: here it has such values. */
static TestOperand
make_bias (EbbDType dtype,
           gint64 n,
           const gint64 *strides,
           EbbDType operands,
           EbbDType result)
{
  TestOperand bias = test_operand_new (dtype, 1, TEST_SHAPE (n), strides, -1, 1);
  float *values = bias.view.data;

  if (test_device_is_cpu () || dtype != EBB_DTYPE_F32 || operands != EBB_DTYPE_BF16 || result != EBB_DTYPE_BF16)
    return bias;
  for (gint64 i = 0; i < n; i++)
    values[i * bias.view.strides[0]] = ebb_bf16_to_float (ebb_bf16_from_float (values[i * bias.view.strides[0]]));
  return bias;
}

static void
check_product (const Product *p)
{
  TestCase test = { .kernel = EBB_KERNEL_MATMUL, .n_inputs = 3, .n_outputs = 1, .tolerance = 2e-6 };
  g_autofree char *name = g_strdup_printf ("[%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT "] x [%" G_GINT64_FORMAT
                                           ", %" G_GINT64_FORMAT "]%s%s %s -> %s%s%s",
                                           p->m, p->k, p->k, p->n, p->transpose_a ? " ta" : "",
                                           p->transpose_b ? " tb" : "", ebb_dtype_get_name (p->dtype),
                                           ebb_dtype_get_name (p->result), p->bias >= 0 ? " bias" : "",
                                           p->accumulate ? " accumulate" : "");

  test.name = name;
  test.params.matmul.accumulate = p->accumulate;
  test.inputs[0] = test_operand_new (p->dtype, 2, TEST_SHAPE (p->m, p->k),
                                     p->transpose_a ? TEST_SHAPE (1, p->m + 3) : TEST_SHAPE (p->k + 5, 1), -1.0, 1.0);
  test.inputs[1] = test_operand_new (p->dtype, 2, TEST_SHAPE (p->k, p->n),
                                     p->transpose_b ? TEST_SHAPE (1, p->k) : TEST_SHAPE (p->n, 1), -1.0, 1.0);
  if (p->bias >= 0)
    test.inputs[2] = make_bias ((EbbDType) p->bias, p->n, NULL, p->dtype, p->result);
  test.outputs[0] = test_operand_new (p->result, 2, TEST_SHAPE (p->m, p->n), NULL, -1.0, 1.0);
  test_case_check (&test);
}

static void
test_matmul_shapes (void)
{
  static const gint64 sizes[][3] = { { 1, 1, 1 },     { 1, 5, 0 },    { 3, 0, 4 },     { 0, 3, 4 },
                                     { 7, 5, 3 },     { 1, 67, 33 },  { 33, 1, 129 },  { 31, 33, 17 },
                                     { 1, 129, 257 }, { 129, 1, 65 }, { 65, 67, 130 }, { 128, 96, 64 } };
  static const EbbDType dtypes[][2] = { { EBB_DTYPE_F32, EBB_DTYPE_F32 },
                                        { EBB_DTYPE_BF16, EBB_DTYPE_F32 },
                                        { EBB_DTYPE_BF16, EBB_DTYPE_BF16 },
                                        { EBB_DTYPE_F32, EBB_DTYPE_BF16 } };

  for (gsize i = 0; i < G_N_ELEMENTS (sizes); i++)
    for (gsize d = 0; d < G_N_ELEMENTS (dtypes); d++)
      for (int flags = 0; flags < 16; flags++)
        {
          Product p = { sizes[i][0], sizes[i][1], sizes[i][2], (flags & 1) != 0, (flags & 2) != 0, dtypes[d][0],
                        dtypes[d][1], -1, (flags & 8) != 0 };

          if (flags & 4)
            p.bias = (int) (flags & 1 ? dtypes[d][1] : EBB_DTYPE_F32);
          /* GPUs add no bias of another dtype where there is nothing to multiply: no op asks for that. */
          if (p.k == 0 && p.accumulate && p.bias >= 0 && p.bias != (int) p.result && !test_device_is_cpu ())
            continue;
          check_product (&p);
        }
}

static void
check_batches (const char *name,
               EbbDType dtype,
               TestOperand a,
               TestOperand b,
               TestOperand c)
{
  TestCase test = { name, EBB_KERNEL_MATMUL, { a, b }, { c }, 2, 1, .tolerance = 2e-6 };

  test_case_check (&test);
}

static void
test_matmul_batches (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };

  for (gsize d = 0; d < G_N_ELEMENTS (dtypes); d++)
    {
      EbbDType t = dtypes[d];

#define NEW(n_dims, shape, strides) test_operand_new (t, n_dims, shape, strides, -1.0, 1.0)
      check_batches ("rows folded", t, NEW (3, TEST_SHAPE (3, 17, 40), NULL), NEW (2, TEST_SHAPE (40, 33), NULL),
                     NEW (3, TEST_SHAPE (3, 17, 33), NULL));
      check_batches ("weight expanded", t, NEW (3, TEST_SHAPE (3, 17, 40), NULL),
                     NEW (3, TEST_SHAPE (3, 40, 33), TEST_SHAPE (0, 33, 1)), NEW (3, TEST_SHAPE (3, 17, 33), NULL));
      check_batches ("one row each", t, NEW (3, TEST_SHAPE (50, 1, 40), TEST_SHAPE (80, 7, 1)),
                     NEW (2, TEST_SHAPE (40, 33), NULL), NEW (3, TEST_SHAPE (50, 1, 33), NULL));
      check_batches ("heads", t, NEW (4, TEST_SHAPE (2, 3, 20, 16), TEST_SHAPE (20 * 144, 16, 144, 1)),
                     NEW (4, TEST_SHAPE (2, 3, 16, 20), TEST_SHAPE (20 * 144, 16, 1, 144)),
                     NEW (4, TEST_SHAPE (2, 3, 20, 20), NULL));
      check_batches ("left broadcast", t, NEW (2, TEST_SHAPE (20, 40), NULL), NEW (3, TEST_SHAPE (5, 40, 9), NULL),
                     NEW (3, TEST_SHAPE (5, 20, 9), NULL));
      check_batches ("both broadcast", t, NEW (4, TEST_SHAPE (4, 3, 20, 16), TEST_SHAPE (320, 0, 16, 1)),
                     NEW (4, TEST_SHAPE (4, 3, 16, 9), TEST_SHAPE (0, 144, 9, 1)),
                     NEW (4, TEST_SHAPE (4, 3, 20, 9), NULL));
      check_batches ("right repeated", t, NEW (4, TEST_SHAPE (2, 3, 20, 16), NULL),
                     NEW (4, TEST_SHAPE (2, 3, 16, 9), TEST_SHAPE (144, 0, 9, 1)),
                     NEW (4, TEST_SHAPE (2, 3, 20, 9), NULL));
      check_batches ("rows apart", t, NEW (3, TEST_SHAPE (3, 17, 40), TEST_SHAPE (17 * 40 + 8, 40, 1)),
                     NEW (2, TEST_SHAPE (40, 33), NULL), NEW (3, TEST_SHAPE (3, 17, 33), NULL));
      check_batches ("neither varies", t, NEW (3, TEST_SHAPE (4, 20, 16), TEST_SHAPE (0, 16, 1)),
                     NEW (3, TEST_SHAPE (4, 16, 19), TEST_SHAPE (0, 19, 1)), NEW (3, TEST_SHAPE (4, 20, 19), NULL));
      check_batches ("rows are one", t, NEW (2, TEST_SHAPE (40, 64), TEST_SHAPE (0, 1)),
                     NEW (2, TEST_SHAPE (64, 33), NULL), NEW (2, TEST_SHAPE (40, 33), NULL));
      check_batches ("columns are one", t, NEW (2, TEST_SHAPE (40, 64), NULL),
                     NEW (2, TEST_SHAPE (64, 33), TEST_SHAPE (1, 0)), NEW (2, TEST_SHAPE (40, 33), NULL));
      check_batches ("windows", t, NEW (2, TEST_SHAPE (40, 64), TEST_SHAPE (3, 1)), NEW (2, TEST_SHAPE (64, 33), NULL),
                     NEW (2, TEST_SHAPE (40, 33), NULL));
#undef NEW
    }
}

/* Rows and columns that fill tiles and don't, every length of a row's tail, results in f32 and bf16. */
static void
test_matmul_few_rows (void)
{
  static const gint64 widths[] = { 2, 63, 64, 77, 96, 131, 260 };

  for (gint64 m = 1; m <= 16; m += m < 6 ? 1 : 5)
    for (gsize i = 0; i < G_N_ELEMENTS (widths); i++)
      for (int form = 0; form < 4; form++)
        {
          EbbDType dtype = form % 2 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, result = form < 3 ? dtype : EBB_DTYPE_F32;
          gint64 n = 11 + m % 3, k = widths[i];
          TestCase test = { "few rows", EBB_KERNEL_MATMUL, .n_inputs = 3, .n_outputs = 1, .tolerance = 2e-6 };

          test.has_few_rows = TRUE;
          test.params.matmul.accumulate = form >= 2;
          test.inputs[0] = test_operand_new (dtype, 2, TEST_SHAPE (m, k), TEST_SHAPE (k + 3, 1), -1, 1);
          test.inputs[1] = test_operand_new (dtype, 2, TEST_SHAPE (k, n), TEST_SHAPE (1, k + form), -1, 1);
          if (form > 0)
            test.inputs[2] = make_bias (form > 1 ? EBB_DTYPE_F32 : dtype, n, TEST_SHAPE (2), dtype, result);
          test.outputs[0] = test_operand_new (result, 2, TEST_SHAPE (m, n), TEST_SHAPE (n + 1, 1), -1, 1);
          test_case_check (&test);
        }
}

/* A row of a large product is the same bits whatever rows are beside it and on however many threads. */
static void
test_matmul_few_rows_alone (void)
{
  if (!test_device_is_cpu ())
    {
      g_test_skip ("the CPU chooses other kernels for few rows");
      return;
    }
  for (int b = 0; b < 2; b++)
    {
      EbbDType dtype = b ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
      TestOperand x = test_operand_new (dtype, 2, TEST_SHAPE (16, 259), NULL, -1, 1);
      TestOperand w = test_operand_new (dtype, 2, TEST_SHAPE (259, 600), TEST_SHAPE (1, 259), -1, 1);
      TestOperand all = test_operand_new (EBB_DTYPE_F32, 2, TEST_SHAPE (16, 600), NULL, 0, 0);
      TestOperand one = test_operand_new (EBB_DTYPE_F32, 2, TEST_SHAPE (1, 600), NULL, 0, 0);
      TestCase of_all = { "all rows", EBB_KERNEL_MATMUL, { x, w }, { all }, 2, 1 };
      TestOperand rows[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

      test_kernel_set_threads (3);
      test_case_run (&of_all, ebb_cpu_matmul, rows);
      test_kernel_set_threads (1);
      for (gint64 i = 0; i < 16; i++)
        {
          TestCase of_one = { "one row", EBB_KERNEL_MATMUL, { x, w }, { one }, 2, 1 };
          TestOperand row[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

          of_one.inputs[0].view.shape[0] = 1;
          of_one.inputs[0].view.data = (char *) x.view.data + i * 259 * (gint64) ebb_dtype_get_size (dtype);
          test_case_run (&of_one, ebb_cpu_matmul, row);
          g_assert_cmpmem ((float *) rows[0].view.data + i * 600, 600 * 4, row[0].view.data, 600 * 4);
          test_operand_clear (&row[0]);
        }
      test_kernel_set_threads (0);
      test_operand_clear (&rows[0]);
      test_operand_clear (&x);
      test_operand_clear (&w);
      test_operand_clear (&all);
      test_operand_clear (&one);
    }
}

/* Operands of a weight [rows, width]. */
static void
add_quantised (TestCase *test,
               gboolean is_nf4,
               gint64 rows,
               gint64 width)
{
  const gint64 n_blocks = (rows * width + 63) / 64;

  test->params.dequantize.width = width;
  if (!is_nf4)
    {
      test->inputs[0] = test_operand_new (EBB_DTYPE_U8, 2, TEST_SHAPE (rows, width), NULL, 0, 255);
      test->inputs[1] = test_operand_new (EBB_DTYPE_F32, 1, TEST_SHAPE (rows), NULL, 0.1, 2);
      return;
    }
  test->inputs[0] = test_operand_new (EBB_DTYPE_U8, 1, TEST_SHAPE ((rows * width + 1) / 2), NULL, 0, 255);
  test->inputs[1] = test_operand_new (EBB_DTYPE_U8, 1, TEST_SHAPE (n_blocks), NULL, 0, 255);
  test->inputs[2] = test_operand_new (EBB_DTYPE_F32, 1, TEST_SHAPE ((n_blocks + 255) / 256), NULL, 0.1, 0.5);
  test->inputs[3] = test_operand_new (EBB_DTYPE_F32, 1, TEST_SHAPE (256), NULL, -1, 1);
  test->inputs[4] = test_operand_new (EBB_DTYPE_F32, 1, TEST_SHAPE (1), NULL, 1, 2);
}

/* Panels that begin in the middle of a byte, a block and a vector, and end there. */
static void
test_dequantize (void)
{
  static const gint64 places[][5] = { { 3, 37, 0, 0, 0 },   { 9, 64, 2, 0, 0 }, { 9, 64, 2, 5, 1 },
                                      { 5, 131, 1, 64, 3 }, { 4, 77, 1, 1, 0 }, { 2, 300, 1, 63, 170 },
                                      { 70, 300, 0, 0, 0 }, { 1, 1, 0, 0, 0 },  { 33, 17, 30, 16, 0 } };

  for (gsize i = 0; i < G_N_ELEMENTS (places); i++)
    for (int form = 0; form < 4; form++)
      {
        const gint64 rows = places[i][0], width = places[i][1], row = places[i][2], column = places[i][3];
        TestCase test = { "dequantize", EBB_KERNEL_DEQUANTIZE, .n_inputs = 5, .n_outputs = 1, .tolerance = 3e-7 };

        test.params.dequantize.row = row;
        test.params.dequantize.column = column;
        add_quantised (&test, form % 2, rows, width);
        test.outputs[0] = test_operand_new (form < 2 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16, 2,
                                            TEST_SHAPE (rows - row, width - column - places[i][4]), NULL, 0, 0);
        test_case_check (&test);
      }
}

/* Groups of other sizes than a nested block, as shards have them. */
static void
test_dequantize_groups (void)
{
  static const gint64 groups[] = { 1, 4, 64 };

  for (gsize i = 0; i < G_N_ELEMENTS (groups); i++)
    {
      const gint64 n = (5 * 1000 / 64 + groups[i]) / groups[i];
      TestCase test = { "groups", EBB_KERNEL_DEQUANTIZE, .n_inputs = 5, .n_outputs = 1, .tolerance = 3e-7 };

      add_quantised (&test, TRUE, 5, 1000);
      test_operand_clear (&test.inputs[2]);
      test.inputs[2] = test_operand_new (EBB_DTYPE_F32, 2, TEST_SHAPE (n, groups[i]), TEST_SHAPE (1, 0), 0.1, 0.5);
      test.outputs[0] = test_operand_new (EBB_DTYPE_F32, 2, TEST_SHAPE (5, 1000), NULL, 0, 0);
      test_case_check (&test);
    }
}

/* Weights with tiles of fewer than four rows at the end, rows that are no whole vectors, blocks that begin in a row. */
static void
test_quantized_few_rows (void)
{
  static const gint64 sizes[][3] = {
    { 1, 4, 64 },
    { 1, 257, 131 },
    { 2, 66, 1000 },
    { 3, 67, 37 },
    { 5, 128, 96 },
    { 16, 71, 259 },
    { 7, 1030, 300 },
    { 2, 35, 640 },
    { 1, 300, 128 }
  }; /* rows of x and W, K */

  if (!test_device_is_cpu ())
    {
      g_test_skip ("other devices dequantise panels");
      return;
    }
  for (gsize i = 0; i < G_N_ELEMENTS (sizes); i++)
    for (int form = 0; form < 16; form++)
      {
        const gint64 m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        const EbbDType dtype = form & 2 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
        TestCase test = {
          "quantised, few rows", EBB_KERNEL_DEQUANTIZE, .n_inputs = 7, .n_outputs = 1, .tolerance = 2e-6
        };

        add_quantised (&test, form % 2, n, k);
        test.inputs[5] = test_operand_new (dtype, 2, TEST_SHAPE (m, k), TEST_SHAPE (k + 5, 1), -1, 1);
        if (form & 4)
          test.inputs[6] = test_operand_new (dtype, 1, TEST_SHAPE (n), NULL, -1, 1);
        test.outputs[0] = test_operand_new (form & 8 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, 2, TEST_SHAPE (m, n),
                                            TEST_SHAPE (n + 3, 1), 0, 0);
        test_case_check (&test);
      }
}

/* A bias of any stride is what oneDNN lacks on all processors: such products are computed by tiles in f32. */
static TestCase
make_tiled_product (gint64 m,
                    gint64 n,
                    gint64 k,
                    int form)
{
  const EbbDType result = form & 4 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16;
  TestCase test = { "tiles", EBB_KERNEL_MATMUL, .n_inputs = 3, .n_outputs = 1, .tolerance = 2e-6 };

  test.params.matmul.accumulate = (form & 8) != 0;
  test.inputs[0] = test_operand_new (EBB_DTYPE_BF16, 2, TEST_SHAPE (m, k),
                                     form & 1 ? TEST_SHAPE (1, m + 3) : TEST_SHAPE (k + 5, 1), -1, 1);
  test.inputs[1] = test_operand_new (EBB_DTYPE_BF16, 2, TEST_SHAPE (k, n),
                                     form & 2 ? TEST_SHAPE (1, k) : TEST_SHAPE (n, 1), -1, 1);
  test.inputs[2] = test_operand_new (form & 1 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16, 1, TEST_SHAPE (n), TEST_SHAPE (2), -1,
                                     1);
  test.outputs[0] = test_operand_new (result, 2, TEST_SHAPE (m, n), TEST_SHAPE (n + 1, 1), -1, 1);
  return test;
}

static void
clear_product (TestCase *test)
{
  for (guint i = 0; i < test->n_inputs; i++)
    test_operand_clear (&test->inputs[i]);
  test_operand_clear (&test->outputs[0]);
}

/* Several tiles of rows, of columns and of what is summed, each with a rest: equal to the reference, the same bits on
 * one, two and three threads, and for the rows from a row block on. */
static void
test_matmul_tiles (void)
{
  const gint64 m = EBB_HOST_ROW_BLOCK + 170, n = 391, k = 1130, size = (gint64) sizeof (float);

  if (!test_device_is_cpu ())
    {
      g_test_skip ("the CPU divides products into tiles");
      return;
    }
  for (int form = 0; form < 16; form++)
    {
      TestCase test = make_tiled_product (m, n, k, form);
      TestOperand all[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

      if (form == 5 || form == 10)
        {
          test_case_check (&test);
          continue;
        }
      test_kernel_set_threads (1);
      test_case_run (&test, ebb_cpu_matmul, all);
      for (int threads = 2; threads <= 3; threads++)
        {
          TestOperand shared[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

          test_kernel_set_threads (threads);
          test_case_run (&test, ebb_cpu_matmul, shared);
          g_assert_cmpmem (all[0].memory, all[0].size, shared[0].memory, shared[0].size);
          test_operand_clear (&shared[0]);
        }
      if (form == 4) /* f32 from rows of bf16 */
        {
          TestCase rest = test;
          TestOperand rows[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

          rest.inputs[0].view.shape[0] = rest.outputs[0].view.shape[0] = m - EBB_HOST_ROW_BLOCK;
          rest.inputs[0].view.data = (char *) rest.inputs[0].view.data + EBB_HOST_ROW_BLOCK * (k + 5) * 2;
          test_case_run (&rest, ebb_cpu_matmul, rows);
          for (gint64 i = 0; i < m - EBB_HOST_ROW_BLOCK; i++)
            g_assert_cmpmem ((char *) all[0].view.data + (EBB_HOST_ROW_BLOCK + i) * (n + 1) * size, n * size,
                             (char *) rows[0].view.data + i * (n + 1) * size, n * size);
          test_operand_clear (&rows[0]);
        }
      test_kernel_set_threads (0);
      test_operand_clear (&all[0]);
      clear_product (&test);
    }
}

/* The logits of Llama-3.2-1B: their weight would be 1 GiB in f32. */
static void
test_matmul_tiles_memory (void)
{
  EbbView x = { NULL, EBB_DTYPE_BF16, 2, { 1024, 2048 }, { 2048, 1 } };
  EbbView weight = { NULL, EBB_DTYPE_BF16, 2, { 2048, 128256 }, { 1, 2048 } };
  EbbView bias = { NULL, EBB_DTYPE_BF16, 1, { 128256 }, { 2 } };
  EbbView y = { NULL, EBB_DTYPE_BF16, 2, { 1024, 128256 }, { 128256, 1 } };
  const EbbLaunch launch = {
    .kernel = EBB_KERNEL_MATMUL,
    .n_inputs = 3,
    .n_outputs = 1,
    .inputs = { &x, &weight, &bias },
    .outputs = { &y }
  };

  if (!test_device_is_cpu ())
    {
      g_test_skip ("the CPU divides products into tiles");
      return;
    }
  for (int threads = 1; threads <= 2; threads++)
    {
      test_kernel_set_threads (threads);
      g_assert_cmpuint (ebb_cpu_matmul_workspace (&launch), <=, (gsize) threads * (11 << 20));
    }
  test_kernel_set_threads (0);
}

static void
test_matmul_many_plans (void)
{
  EbbKernelFunc matmul = test_device_is_cpu () ? ebb_cpu_matmul : test_kernels_of ("portable")[EBB_KERNEL_MATMUL];

  /* More products than the table of plans holds. */
  for (gint64 round = 0; round < 2; round++)
    for (gint64 m = 1; m < 1100; m++)
      {
        float a[1100 * 2], b[2 * 4], c[1100 * 4];
        EbbView views[3] = { { a, EBB_DTYPE_F32, 2, { m, 2 }, { 2, 1 } },
                             { b, EBB_DTYPE_F32, 2, { 2, 4 }, { 4, 1 } },
                             { c, EBB_DTYPE_F32, 2, { m, 4 }, { 4, 1 } } };
        EbbLaunch launch = { EBB_KERNEL_MATMUL, 2, 1, { &views[0], &views[1] }, { &views[2] }, { { 0 } } };

        for (int i = 0; i < 2 * m; i++)
          a[i] = (float) i;
        for (int i = 0; i < 8; i++)
          b[i] = (float) (i % 3);
        g_assert_true (test_kernel_run (matmul, &launch, NULL));
        for (int i = 0; i < 4 * m; i++)
          g_assert_cmpfloat (c[i], ==, a[i / 4 * 2] * b[i % 4] + a[i / 4 * 2 + 1] * b[4 + i % 4]);
      }
}

/* -- cross entropy ------------------------------------------------------------------------------------------------- */

static void
check_cross_entropy (gint64 rows,
                     gint64 n,
                     EbbDType dtype,
                     EbbDType index_dtype,
                     double smoothing,
                     gboolean one_gradient)
{
  TestOperand logits = test_operand_new (dtype, 2, TEST_SHAPE (rows, n), NULL, -20.0, 20.0);
  TestOperand target = test_operand_new (index_dtype, 1, TEST_SHAPE (rows), NULL, 0.0, (double) n);
  TestOperand loss = test_operand_new (EBB_DTYPE_F32, 1, TEST_SHAPE (rows), NULL, 0.0, 0.0),
              results[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  TestCase forward = { "cross entropy",
                       EBB_KERNEL_CROSS_ENTROPY,
                       { logits, target, { .memory = NULL } },
                       { loss, test_operand_new (EBB_DTYPE_F32, 2, TEST_SHAPE (rows, 2), NULL, 0.0, 0.0) },
                       3,
                       2,
                       .tolerance = 2e-6 };
  TestCase backward = {
    "cross entropy gradient",
    EBB_KERNEL_CROSS_ENTROPY_GRAD,
    { { .memory = NULL } },
    { { .memory = NULL } },
    4,
    1,
    .tolerance = 2e-6
  };

  if (rows > 2)
    ebb_reference_store_integer (&target.view, 1, -100);
  forward.params.xent.ignore_index = -100;
  forward.params.xent.smoothing = smoothing;
  forward.params.xent.n_classes = n;
  backward.params = forward.params;
  test_case_run (&forward, ebb_reference_kernels[EBB_KERNEL_CROSS_ENTROPY], results);
  test_operand_clear (&results[0]);
  backward.inputs[0] =
      test_operand_new (EBB_DTYPE_F32, 1, TEST_SHAPE (rows), one_gradient ? TEST_SHAPE (0) : TEST_SHAPE (1), 0.1, 1.0);
  backward.inputs[1] = test_operand_copy (&logits);
  backward.inputs[2] = test_operand_copy (&target);
  backward.inputs[3] = results[1];
  backward.outputs[0] = test_operand_new (dtype, 2, TEST_SHAPE (rows, n), NULL, 0.0, 1.0);
  test_case_check (&forward);
  test_case_check (&backward);
}

static void
test_cross_entropy (void)
{
  check_cross_entropy (1, 1, EBB_DTYPE_F32, EBB_DTYPE_I64, 0.0, FALSE);
  check_cross_entropy (3, 7, EBB_DTYPE_F32, EBB_DTYPE_I32, 0.0, TRUE);
  check_cross_entropy (5, 1000, EBB_DTYPE_F32, EBB_DTYPE_I64, 0.1, FALSE);
  check_cross_entropy (5, 5027, EBB_DTYPE_F32, EBB_DTYPE_I64, 0.0, FALSE);
  check_cross_entropy (4, 3001, EBB_DTYPE_BF16, EBB_DTYPE_I64, 0.1, TRUE);
  check_cross_entropy (0, 7, EBB_DTYPE_F32, EBB_DTYPE_I64, 0.0, FALSE);
}

/* -- indices ------------------------------------------------------------------------------------------------------- */

static void
test_index_select (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_I64, EBB_DTYPE_BOOL };

  for (gsize i = 0; i < G_N_ELEMENTS (dtypes); i++)
    for (int strided = 0; strided < 2; strided++)
      {
        TestCase test = { "index select",
                          EBB_KERNEL_INDEX_SELECT,
                          { test_operand_new (dtypes[i], 3, TEST_SHAPE (3, 11, 77),
                                              strided ? TEST_SHAPE (2000, 160, 2) : NULL, 0.0, 2.0),
                            test_operand_new (i % 2 ? EBB_DTYPE_I32 : EBB_DTYPE_I64, 1, TEST_SHAPE (600), NULL, 0.0,
                                              11.0) },
                          { test_operand_new (dtypes[i], 3, TEST_SHAPE (3, 600, 77), NULL, 0.0, 1.0) },
                          2,
                          1,
                          .tolerance = 0.0 };

        test_case_check (&test);
      }
}

static void
check_index_add (EbbDType dtype,
                 EbbDType source,
                 gint64 outer,
                 gint64 n,
                 gint64 k,
                 gint64 inner)
{
  gboolean is_floating = ebb_dtype_is_floating_point (dtype);
  TestCase test = { "index add",
                    EBB_KERNEL_INDEX_ADD,
                    { test_operand_new (source, 3, TEST_SHAPE (outer, k, inner), NULL, 0.0, is_floating ? 1.0 : 100.0),
                      test_operand_new (EBB_DTYPE_I64, 1, TEST_SHAPE (k), NULL, 0.0, (double) n) },
                    { test_operand_new (dtype, 3, TEST_SHAPE (outer, n, inner), NULL, 0.0, is_floating ? 1.0 : 100.0) },
                    2,
                    1,
                    .tolerance = is_floating ? 1e-6 : 0.0 };

  test_case_check (&test);
}

static void
test_index_add (void)
{
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_F32, 1, 13, 300, 200);
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_BF16, 1, 13, 300, 259);
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_F32, 1, 2, 300, 40); /* sums that go over several of a GPU's pieces */
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_F32, 3, 1000, 5000, 11);
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_BF16, 2, 3, 5, 1);
  check_index_add (EBB_DTYPE_I64, EBB_DTYPE_I64, 2, 7, 50, 9);
  check_index_add (EBB_DTYPE_I32, EBB_DTYPE_I32, 2, 7, 50, 9);
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_F32, 2, 7, 0, 9);
}

static void
test_gather_and_scatter (void)
{
  for (int dim = 0; dim < 3; dim++)
    for (int large = 0; large < 2; large++)
      {
        gint64 n = large ? 150 : 5;
        const gint64 shape[3] = { 7, n, 19 };
        gint64 x_shape[3] = { 7, n, 19 };
        TestCase gather = { "gather", EBB_KERNEL_GATHER, { { .memory = NULL } }, { { .memory = NULL } }, 2,
                            1,        .tolerance = 0 };
        TestCase scatter = {
          "scatter add",
          EBB_KERNEL_SCATTER_ADD,
          { { .memory = NULL } },
          { { .memory = NULL } },
          2,
          1,
          .tolerance = 2e-6
        };

        x_shape[dim] = 9;
        gather.params.index.dim = scatter.params.index.dim = dim;
        gather.inputs[0] = test_operand_new (EBB_DTYPE_BF16, 3, x_shape, TEST_SHAPE (1, 7, 7 * 160), -1.0, 1.0);
        gather.inputs[1] = test_operand_new (EBB_DTYPE_I64, 3, shape, TEST_SHAPE (19 * n + 3, 19, 1), 0.0, 9.0);
        gather.outputs[0] = test_operand_new (EBB_DTYPE_BF16, 3, shape, NULL, -1.0, 1.0);
        scatter.inputs[0] =
            test_operand_new (large ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, 3, shape, TEST_SHAPE (1, 7, 7 * n), -1.0, 1.0);
        scatter.inputs[1] = test_operand_copy (&gather.inputs[1]);
        scatter.outputs[0] = test_operand_new (EBB_DTYPE_F32, 3, x_shape, NULL, -1.0, 1.0);
        test_case_check (&gather);
        test_case_check (&scatter);
      }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/matmul/shapes-and-dtypes", test_matmul_shapes);
  g_test_add_func ("/kernels/matmul/batches-broadcast", test_matmul_batches);
  g_test_add_func ("/kernels/matmul/few-rows", test_matmul_few_rows);
  g_test_add_func ("/kernels/matmul/few-rows-alone", test_matmul_few_rows_alone);
  g_test_add_func ("/kernels/matmul/tiles-on-any-threads", test_matmul_tiles);
  g_test_add_func ("/kernels/matmul/tiles-are-all-that-is-copied", test_matmul_tiles_memory);
  g_test_add_func ("/kernels/dequantize", test_dequantize);
  g_test_add_func ("/kernels/dequantize-groups", test_dequantize_groups);
  g_test_add_func ("/kernels/quantized-few-rows", test_quantized_few_rows);
  g_test_add_func ("/kernels/matmul/plans-come-and-go", test_matmul_many_plans);
  g_test_add_func ("/kernels/cross-entropy/equals-reference", test_cross_entropy);
  g_test_add_func ("/kernels/index/select", test_index_select);
  g_test_add_func ("/kernels/index/add", test_index_add);
  g_test_add_func ("/kernels/index/gather-and-scatter-add", test_gather_and_scatter);
  return g_test_run ();
}
