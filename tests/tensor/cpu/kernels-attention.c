/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Attention: each instruction set that this processor has, on one thread and on two, against the float64 reference,
 * with odd shapes, strides and dtypes. */

#include <math.h>
#include <string.h>

#include "support/device.h"
#include "support/kernel-run.h"
#include "support/operand-case-private.h"
#include "tensor/cpu/cpu-private.h"

/* -- attention ----------------------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 n_batches, n_heads, n_key_heads, n_queries, n_keys, width;
  gboolean causal;
  double p;
  int mask; /* 0: none; 1: bool by key; 2: bool by query and key; 3: f32 by head; 4: bf16 by key */
  EbbDType dtype;
  gint64 first_query, window;
  double softcap;
  int starts; /* 0: none; 1: documents of 40; 2: i32, padding before the rows, others in each; 3: out of range */
  gboolean is_aligned; /* rows begin at multiples of 16 bytes */
} Attention;

static TestOperand
attention_operand (const Attention *a,
                   EbbDType dtype,
                   gint64 heads,
                   gint64 length)
{
  /* As a slice of a projection to three of them: the heads of a token lie side by side. */
  gint64 row = 3 * heads * a->width + (a->is_aligned ? 0 : 1);
  TestOperand operand = test_operand_new (dtype, 4, TEST_SHAPE (a->n_batches, heads, length, a->width),
                                          TEST_SHAPE (length * row, a->width, row, 1), -1.0, 1.0);

  if (a->is_aligned)
    operand.view.data = operand.memory + 16;
  return operand;
}

static TestOperand
attention_mask (const Attention *a)
{
  gint64 b = a->n_batches, h = a->n_heads, t = a->n_queries, s = a->n_keys;

  switch (a->mask)
    {
    case 1: return test_operand_new (EBB_DTYPE_BOOL, 4, TEST_SHAPE (b, 1, 1, s), TEST_SHAPE (s, 0, 0, 1), 0.0, 2.0);
    case 2: return test_operand_new (EBB_DTYPE_BOOL, 4, TEST_SHAPE (b, h, t, s), TEST_SHAPE (0, 0, s, 1), 0.0, 2.0);
    case 3:
      return test_operand_new (EBB_DTYPE_F32, 4, TEST_SHAPE (b, h, t, s), TEST_SHAPE (h * t * s, t * s, s, 1), -3.0,
                               3.0);
    case 4:
      return test_operand_new (EBB_DTYPE_BF16, 4, TEST_SHAPE (b, h, t, s), TEST_SHAPE (2 * s, 0, 0, 2), -3.0, 3.0);
    default: return (TestOperand){ .memory = NULL };
    }
}

static TestOperand
attention_starts (const Attention *a)
{
  EbbDType dtype = a->starts == 2 ? EBB_DTYPE_I32 : EBB_DTYPE_I64;
  TestOperand starts = { .memory = NULL };

  if (!a->starts)
    return starts;
  starts = test_operand_new (dtype, 2, TEST_SHAPE (a->n_batches, a->n_queries),
                             a->starts == 2 ? TEST_SHAPE (1, 0) : TEST_SHAPE (2 * a->n_queries, 2), 0, 0);
  for (gint64 b = 0; b < a->n_batches; b++)
    for (gint64 t = 0; t < a->n_queries; t++)
      {
        gint64 far = b % 2 == 0 ? G_MININT64 : G_MAXINT64, position = a->first_query + t;
        gint64 value = a->starts == 1 ? position / 40 * 40 : a->starts == 2 ? 37 * (b + 1)
                                                         : t % 3 == 1       ? far
                                                                            : b;

        if (dtype == EBB_DTYPE_I32)
          ((gint32 *) starts.view.data)[b] = (gint32) value;
        else
          ((gint64 *) starts.view.data)[b * starts.view.strides[0] + t * starts.view.strides[1]] = value;
      }
  return starts;
}

static void
check_attention (const Attention *a)
{
  TestCase forward = { .kernel = EBB_KERNEL_ATTENTION, .n_inputs = 5, .n_outputs = 2, .tolerance = 3e-6 };
  TestCase backward = { .kernel = EBB_KERNEL_ATTENTION_GRAD, .n_inputs = 8, .n_outputs = 3, .tolerance = 1e-5 };
  TestOperand results[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  g_autofree char *name =
      g_strdup_printf ("attention B%d H%d/%d T%d S%d D%d%s p=%g mask %d %s first %d window %d cap %g starts %d",
                       (int) a->n_batches, (int) a->n_heads, (int) a->n_key_heads, (int) a->n_queries, (int) a->n_keys,
                       (int) a->width, a->causal ? " causal" : "", a->p, a->mask, ebb_dtype_get_name (a->dtype),
                       (int) a->first_query, (int) a->window, a->softcap, a->starts);

  forward.name = backward.name = name;
  forward.inputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  forward.inputs[1] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  forward.inputs[2] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  forward.inputs[3] = attention_mask (a);
  forward.inputs[4] = attention_starts (a);
  forward.outputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  forward.outputs[1] =
      test_operand_new (EBB_DTYPE_F32, 4, TEST_SHAPE (a->n_batches, a->n_heads, a->n_queries, 2), NULL, 0, 0);
  forward.params.attention.scale = 2.0 / sqrt ((double) a->width);
  forward.params.attention.causal = a->causal;
  forward.params.attention.first_query = a->first_query;
  forward.params.attention.window = a->window;
  forward.params.attention.softcap = a->softcap;
  forward.params.attention.p = a->p;
  forward.params.attention.philox = (EbbPhilox){ 0x123456789abcdefu, 0xfffffff0u };
  backward.params = forward.params;

  test_case_run (&forward, ebb_reference_kernels[EBB_KERNEL_ATTENTION], results);
  backward.inputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  for (int i = 0; i < 3; i++)
    backward.inputs[1 + i] = test_operand_copy (&forward.inputs[i]);
  backward.inputs[4] = results[0];
  backward.inputs[5] = results[1];
  if (a->mask)
    backward.inputs[6] = test_operand_copy (&forward.inputs[3]);
  if (a->starts)
    backward.inputs[7] = test_operand_copy (&forward.inputs[4]);
  backward.outputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  backward.outputs[1] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  backward.outputs[2] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  /* Probabilities are rounded to be multiplied in pairs; the output that backward is given was rounded in any case. */
  forward.pairs_tolerance = 4e-3;
  if (a->dtype == EBB_DTYPE_BF16)
    backward.tolerance = 1e-2;
  test_case_check (&forward);
  test_case_check (&backward);
}

static void
test_attention (void)
{
  static const Attention cases[] = {
    { 1, 1, 1, 1, 1, 1, FALSE, 0.0, 0, EBB_DTYPE_F32 },
    { 1, 1, 1, 3, 5, 4, FALSE, 0.0, 0, EBB_DTYPE_F32 },
    { 2, 3, 3, 33, 70, 20, FALSE, 0.0, 0, EBB_DTYPE_F32 },
    { 2, 3, 3, 70, 70, 64, TRUE, 0.0, 0, EBB_DTYPE_F32 },
    { 1, 2, 2, 130, 130, 64, TRUE, 0.2, 0, EBB_DTYPE_F32 },
    { 1, 2, 2, 65, 65, 16, TRUE, 0.0, 0, EBB_DTYPE_F32 },
    { 1, 2, 2, 67, 131, 128, TRUE, 0.0, 0, EBB_DTYPE_F32 },
    { 1, 2, 2, 131, 67, 17, TRUE, 0.3, 0, EBB_DTYPE_F32 },
    { 2, 2, 2, 65, 65, 33, FALSE, 0.1, 1, EBB_DTYPE_F32 },
    { 2, 2, 2, 40, 65, 8, TRUE, 0.1, 2, EBB_DTYPE_F32 },
    { 2, 3, 3, 40, 66, 100, FALSE, 0.0, 3, EBB_DTYPE_F32 },
    { 2, 2, 2, 40, 66, 24, TRUE, 0.5, 4, EBB_DTYPE_F32 },
    { 2, 6, 2, 40, 66, 24, TRUE, 0.1, 0, EBB_DTYPE_F32 },
    { 1, 4, 1, 300, 80, 16, FALSE, 0.0, 1, EBB_DTYPE_F32 },
    { 1, 2, 2, 40, 66, 24, FALSE, 1.0, 0, EBB_DTYPE_F32 },
    { 2, 2, 2, 70, 70, 64, TRUE, 0.1, 0, EBB_DTYPE_BF16 },
    { 1, 4, 2, 35, 129, 19, FALSE, 0.0, 1, EBB_DTYPE_BF16 },
    { 1, 2, 2, 131, 67, 17, TRUE, 0.3, 0, EBB_DTYPE_BF16 },
    { 1, 4, 2, 67, 131, 128, TRUE, 0.0, 2, EBB_DTYPE_BF16 },
    { 2, 2, 2, 65, 65, 33, FALSE, 0.1, 3, EBB_DTYPE_BF16 },
    { 1, 2, 1, 0, 5, 8, TRUE, 0.0, 0, EBB_DTYPE_BF16 },
    { 1, 2, 1, 5, 0, 8, TRUE, 0.0, 0, EBB_DTYPE_BF16 },
    { 1, 1, 1, 5, 0, 8, FALSE, 0.0, 0, EBB_DTYPE_F32 },
    { 1, 1, 1, 0, 5, 8, TRUE, 0.0, 0, EBB_DTYPE_F32 },
    /* Windows: shorter than a block, of a block, longer than all; keys on one side or both hidden */
    { 1, 2, 2, 200, 200, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 0, 1 },
    { 1, 2, 2, 200, 200, 20, TRUE, 0.1, 0, EBB_DTYPE_F32, 0, 33 },
    { 1, 4, 2, 330, 330, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 0, 64 },
    { 1, 2, 1, 300, 300, 16, TRUE, 0.0, 2, EBB_DTYPE_BF16, 0, 100 },
    { 1, 2, 2, 70, 190, 16, FALSE, 0.0, 0, EBB_DTYPE_F32, 0, 7 },
    { 1, 2, 2, 65, 66, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 0, 1000 },
    /* Keys before the queries, as from a cache; few queries, whose heads go together */
    { 2, 6, 2, 1, 131, 64, TRUE, 0.0, 0, EBB_DTYPE_F32, 130 },
    { 2, 6, 2, 5, 140, 24, TRUE, 0.2, 2, EBB_DTYPE_F32, 135, 70 },
    { 1, 8, 1, 3, 200, 33, TRUE, 0.0, 3, EBB_DTYPE_BF16, 197 },
    { 2, 4, 4, 3, 70, 8, TRUE, 0.0, 1, EBB_DTYPE_F32, 67, 0, 2.0, 2 },
    { 1, 3, 3, 70, 200, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 130, 65 },
    { 1, 2, 2, 70, 100, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 90, 20 },
    /* Documents and padding */
    { 2, 2, 1, 150, 150, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 0, 0, 0.0, 1 },
    { 2, 2, 2, 150, 150, 20, TRUE, 0.1, 0, EBB_DTYPE_F32, 0, 30, 0.0, 1 },
    { 3, 2, 1, 140, 140, 16, TRUE, 0.0, 0, EBB_DTYPE_BF16, 0, 0, 0.0, 2 },
    { 2, 4, 2, 5, 145, 24, TRUE, 0.0, 0, EBB_DTYPE_BF16, 140, 50, 5.0, 2 },
    { 2, 2, 2, 70, 70, 16, TRUE, 0.0, 0, EBB_DTYPE_F32, 0, 0, 0.0, 3 },
    { 2, 2, 2, 70, 70, 16, FALSE, 0.0, 0, EBB_DTYPE_F32, 0, 0, 0.0, 3 },
    /* Soft caps, with a mask outside of them */
    { 1, 2, 2, 70, 70, 20, TRUE, 0.1, 0, EBB_DTYPE_F32, 0, 0, 1.5 },
    { 1, 2, 2, 65, 131, 16, FALSE, 0.0, 3, EBB_DTYPE_F32, 0, 0, 1.0 },
    { 1, 4, 2, 130, 130, 16, TRUE, 0.0, 0, EBB_DTYPE_BF16, 0, 40, 3.0, 1 },
    /* Rows that vectors can read, of the usual widths; dropout whose rows begin at whole blocks of draws, and others */
    { 1, 2, 2, 150, 150, 64, TRUE, 0.0, 0, EBB_DTYPE_BF16, 0, 0, 0.0, 0, TRUE },
    { 1, 2, 1, 140, 140, 64, TRUE, 0.2, 0, EBB_DTYPE_BF16, 0, 0, 0.0, 0, TRUE },
    { 1, 1, 1, 66, 72, 80, FALSE, 0.1, 4, EBB_DTYPE_BF16, 0, 0, 0.0, 0, TRUE },
    { 1, 2, 1, 135, 70, 96, TRUE, 0.0, 0, EBB_DTYPE_BF16, 0, 0, 0.0, 0, TRUE },
    { 1, 2, 1, 70, 140, 128, TRUE, 0.0, 0, EBB_DTYPE_BF16, 70, 0, 0.0, 1, TRUE },
    { 1, 1, 1, 20, 36, 256, TRUE, 0.1, 0, EBB_DTYPE_BF16, 16, 0, 0.0, 0, TRUE },
    { 1, 1, 1, 70, 66, 256, TRUE, 0.0, 0, EBB_DTYPE_BF16, 0, 0, 0.0, 0, TRUE },
    { 1, 1, 1, 66, 72, 80, TRUE, 0.2, 1, EBB_DTYPE_F32, 0, 0, 0.0, 0, TRUE },
    { 1, 1, 1, 35, 40, 256, FALSE, 0.1, 0, EBB_DTYPE_F32, 0, 0, 0.0, 0, TRUE },
    /* Few queries and many keys, as when text is generated */
    { 2, 6, 2, 1, 1100, 64, TRUE, 0.0, 0, EBB_DTYPE_BF16, 1099, 0, 0.0, 0, TRUE },
    { 1, 4, 2, 3, 1030, 24, TRUE, 0.1, 0, EBB_DTYPE_BF16, 1020, 600 },
    { 2, 4, 2, 1, 1030, 32, TRUE, 0.0, 1, EBB_DTYPE_F32, 1029, 0, 0.0, 2, TRUE },
    { 1, 2, 1, 3, 1060, 20, TRUE, 0.1, 0, EBB_DTYPE_F32, 10, 0, 2.0 },
  };

  for (gsize i = 0; i < G_N_ELEMENTS (cases); i++)
    check_attention (&cases[i]);
}

/* A row's result is the same bits in whatever company and on however many threads it is computed. */
static void
test_attention_threads (void)
{
  Attention a = { 2, 3, 3, 300, 300, 64, TRUE, 0.1, 0, EBB_DTYPE_F32 };
  TestOperand q = attention_operand (&a, EBB_DTYPE_F32, 3, 300), k = attention_operand (&a, EBB_DTYPE_F32, 3, 300);
  TestOperand o = attention_operand (&a, EBB_DTYPE_F32, 3, 300);
  TestOperand l = test_operand_new (EBB_DTYPE_F32, 4, TEST_SHAPE (2, 3, 300, 2), NULL, 0, 0);
  TestCase test = { "attention", EBB_KERNEL_ATTENTION, { q, k, k }, { o, l }, 3, 2, .tolerance = 0.0 };

  test.params.attention.scale = 0.125;
  test.params.attention.causal = TRUE;
  test.params.attention.p = 0.1;
  for (gsize i = 0; i < TEST_N_SIMD; i++)
    {
      const EbbKernelFunc *kernels = test_kernels_of (test_simd_names[i]);
      TestOperand one[EBB_LAUNCH_MAX_OUTPUTS] = { 0 }, many[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

      if (!kernels)
        continue;
      test_kernel_set_threads (1);
      test_case_run (&test, kernels[EBB_KERNEL_ATTENTION], one);
      test_kernel_set_threads (7);
      test_case_run (&test, kernels[EBB_KERNEL_ATTENTION], many);
      g_assert_cmpmem (one[0].memory, one[0].size, many[0].memory, many[0].size);
      g_assert_cmpmem (one[1].memory, one[1].size, many[1].memory, many[1].size);
      for (int j = 0; j < 2; j++)
        {
          test_operand_clear (&one[j]);
          test_operand_clear (&many[j]);
        }
    }
  test_kernel_set_threads (0);
  test_operand_clear (&q);
  test_operand_clear (&k);
  test_operand_clear (&o);
  test_operand_clear (&l);
}

#define FAR_LENGTH 70
#define FAR_WIDTH 8

/* Scores of 2^20 that differ by little: products of whole numbers of halves, which f32 holds. Backward's
 * probabilities are those of forward: with a gradient of 1 each query gives 1 in all to the values. */
static void
test_attention_far_from_zero (void)
{
  const gint64 *shape = TEST_SHAPE (1, 1, FAR_LENGTH, FAR_WIDTH);
  TestOperand q = test_operand_new (EBB_DTYPE_F32, 4, shape, NULL, 0, 0), k = test_operand_copy (&q),
              d_out = test_operand_copy (&q);
  TestOperand v = test_operand_new (EBB_DTYPE_F32, 4, shape, NULL, -1, 1);
  TestOperand l = test_operand_new (EBB_DTYPE_F32, 4, TEST_SHAPE (1, 1, FAR_LENGTH, 2), NULL, 0, 0);
  TestCase forward = { "attention", EBB_KERNEL_ATTENTION, { q, k, v }, { q, l }, 3, 2, .tolerance = 3e-6 };
  TestOperand expected[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  TestCase backward = { "attention gradient", EBB_KERNEL_ATTENTION_GRAD, .n_inputs = 6, .n_outputs = 3 };
  TestOperand expected_grads[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

  forward.params.attention.scale = backward.params.attention.scale = 1;
  for (gint64 i = 0; i < FAR_LENGTH * FAR_WIDTH; i++)
    {
      ebb_reference_store (&q.view, i, i % FAR_WIDTH == 0 ? 1024 : floor (test_case_uniform (-2, 3)) / 2);
      ebb_reference_store (&k.view, i, i % FAR_WIDTH == 0 ? 1024 : floor (test_case_uniform (-2, 3)) / 2);
      ebb_reference_store (&d_out.view, i, 1);
    }
  test_case_run (&forward, ebb_reference_kernels[EBB_KERNEL_ATTENTION], expected);
  memcpy (backward.inputs, (TestOperand[]){ d_out, q, k, v, expected[0], expected[1] }, 6 * sizeof (TestOperand));
  memcpy (backward.outputs, (TestOperand[]){ q, q, q }, 3 * sizeof (TestOperand));
  test_case_run (&backward, ebb_reference_kernels[EBB_KERNEL_ATTENTION_GRAD], expected_grads);
  for (gsize i = 0; i < TEST_N_SIMD; i++)
    {
      const EbbKernelFunc *kernels = test_kernels_of (test_simd_names[i]);
      TestOperand results[EBB_LAUNCH_MAX_OUTPUTS] = { 0 }, grads[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
      double sum = 0;

      if (!kernels)
        continue;
      test_case_run (&forward, kernels[EBB_KERNEL_ATTENTION], results);
      backward.inputs[4] = results[0];
      backward.inputs[5] = results[1];
      test_case_run (&backward, kernels[EBB_KERNEL_ATTENTION_GRAD], grads);
      for (gint64 row = 0; row < FAR_LENGTH; row++)
        sum += ebb_reference_load (&grads[2].view, row * FAR_WIDTH);
      g_assert_cmpfloat_with_epsilon (sum / FAR_LENGTH, 1, 1e-6);
      /* Without fused multiply-add scores times 1 / log (2) are rounded, to 2^-3 here. */
      if (!g_str_equal (test_simd_names[i], "portable"))
        {
          test_case_compare (&forward, test_simd_names[i], 0, &expected[0], &results[0]);
          test_case_compare (&forward, test_simd_names[i], 2, &expected_grads[2], &grads[2]);
        }
      for (int j = 0; j < 3; j++)
        {
          test_operand_clear (&results[j]);
          test_operand_clear (&grads[j]);
        }
    }
  for (int j = 0; j < 3; j++)
    {
      test_operand_clear (&expected[j]);
      test_operand_clear (&expected_grads[j]);
    }
  test_operand_clear (&q);
  test_operand_clear (&k);
  test_operand_clear (&v);
  test_operand_clear (&d_out);
  test_operand_clear (&l);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/attention/equals-reference", test_attention);
  g_test_add_func ("/kernels/attention/threads-change-no-bit", test_attention_threads);
  g_test_add_func ("/kernels/attention/is-as-exact-far-from-zero", test_attention_far_from_zero);
  return g_test_run ();
}
