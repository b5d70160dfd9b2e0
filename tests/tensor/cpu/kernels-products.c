/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only */

/* Products, attention, cross entropy and indices: each instruction set that this processor has, on one thread and on
 * two, against the float64 references, with odd shapes, strides and dtypes. */

#include <math.h>
#include <string.h>

#include "support/device.h"
#include "support/reference-private.h"
#include "tensor/cpu/cpu-private.h"

static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };

/* -- operands ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbView view;
  gsize size;   /* bytes of the memory behind the view */
  char *memory; /* view.data is somewhere in it: odd places are wanted */
} Operand;

static guint32 random_state = 1;

static double
next_uniform (double low,
              double high)
{
  random_state = random_state * 1664525u + 1013904223u;
  return low + (high - low) * (random_state >> 8) / 16777216.0;
}

/* A view with @strides of the given shape (NULL: contiguous), its memory filled with numbers in [low, high]. */
static Operand
operand_new (EbbDType dtype,
             int n_dims,
             const gint64 *shape,
             const gint64 *strides,
             double low,
             double high)
{
  Operand operand = { .view = { .dtype = dtype, .n_dims = n_dims } };
  gint64 extent = 1, stride = 1, skip = 3;
  EbbView all = { .dtype = dtype };

  for (int i = n_dims - 1; i >= 0; i--)
    {
      operand.view.shape[i] = shape[i];
      operand.view.strides[i] = strides ? strides[i] : stride;
      stride *= MAX (shape[i], 1);
      extent += MAX (shape[i] - 1, 0) * operand.view.strides[i];
    }
  operand.size = (extent + skip + 8) * ebb_dtype_get_size (dtype);
  operand.memory = g_malloc0 (operand.size);
  all.data = operand.memory;
  for (gint64 i = 0; i < extent + skip + 8; i++)
    if (ebb_dtype_is_floating_point (dtype))
      ebb_reference_store (&all, i, next_uniform (low, high));
    else
      ebb_reference_store_integer (&all, i, (gint64) floor (next_uniform (low, high)));
  operand.view.data = operand.memory + skip * ebb_dtype_get_size (dtype);
  return operand;
}

static Operand
operand_copy (const Operand *operand)
{
  Operand copy = *operand;

  copy.memory = g_memdup2 (operand->memory, operand->size);
  copy.view.data = copy.memory + ((char *) operand->view.data - operand->memory);
  return copy;
}

static void
operand_clear (Operand *operand)
{
  g_clear_pointer (&operand->memory, g_free);
}

/* -- comparison ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  EbbKernel kernel;
  Operand inputs[EBB_LAUNCH_MAX_INPUTS], outputs[EBB_LAUNCH_MAX_OUTPUTS];
  guint n_inputs, n_outputs;
  EbbKernelParams params;
  double
      tolerance; /* relative to the largest element of an output, or to 0.5; bf16 outputs get their rounding besides */
  double pairs_tolerance; /* that of bf16 outputs, if it is more, where pairs of bf16 are multiplied */
} Case;

static void
case_clear (Case *test)
{
  for (guint i = 0; i < test->n_inputs; i++)
    operand_clear (&test->inputs[i]);
  for (guint i = 0; i < test->n_outputs; i++)
    operand_clear (&test->outputs[i]);
}

static void
case_run (const Case *test,
          EbbKernelFunc kernel,
          Operand *outputs)
{
  EbbLaunch launch = { .kernel = test->kernel,
                       .n_inputs = test->n_inputs,
                       .n_outputs = test->n_outputs,
                       .params = test->params };
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < test->n_inputs; i++)
    launch.inputs[i] = test->inputs[i].memory ? &test->inputs[i].view : NULL;
  for (guint i = 0; i < test->n_outputs; i++)
    if (test->outputs[i].memory)
      {
        outputs[i] = operand_copy (&test->outputs[i]);
        launch.outputs[i] = &outputs[i].view;
      }
  if (!kernel (&launch, &error))
    g_error ("%s: %s", test->name, error->message);
}

/* Elements of the view are near; what lies between and around them is as it was. */
static void
compare_output (const Case *test,
                const char *label,
                guint index,
                const Operand *expected,
                const Operand *actual)
{
  const EbbView *view = &expected->view;
  double largest = 0.0, tolerance;
  gsize size = ebb_dtype_get_size (view->dtype);
  Operand untouched = operand_copy (actual);

  for (gint64 i = 0; i < ebb_reference_count (view); i++)
    {
      double value = fabs (ebb_reference_load (view, ebb_reference_offset (view, i)));

      largest = isfinite (value) ? MAX (largest, value) : largest;
    }
  tolerance = view->dtype == EBB_DTYPE_BF16 ? MAX (test->tolerance, test->pairs_tolerance) : test->tolerance;
  tolerance *= MAX (largest, 0.5);
  for (gint64 i = 0; i < ebb_reference_count (view); i++)
    {
      gint64 offset = ebb_reference_offset (view, i);
      double x = ebb_reference_load (view, offset), y = ebb_reference_load (&actual->view, offset);
      double allowed = tolerance + (view->dtype == EBB_DTYPE_BF16 ? fabs (x) / 128.0 : 0.0);

      if (!(x == y || (isnan (x) && isnan (y)) || fabs (x - y) <= allowed))
        g_error ("%s, %s: output %u, element %" G_GINT64_FORMAT ": %.9g expected, is %.9g (+- %.3g)", test->name, label,
                 index, i, x, y, allowed);
      memcpy ((char *) untouched.view.data + offset * size, (const char *) view->data + offset * size, size);
    }
  if (memcmp (untouched.memory, expected->memory, expected->size) != 0)
    g_error ("%s, %s: output %u: memory beside the elements was written", test->name, label, index);
  operand_clear (&untouched);
}

static void
check_kernel (const Case *test,
              EbbKernelFunc kernel,
              const char *simd,
              const Operand *expected)
{
  Operand first[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

  for (int n_threads = 1; n_threads <= 2; n_threads++)
    for (int again = 0; again < 2; again++)
      {
        g_autofree char *label = g_strdup_printf ("%s, %d threads", simd, n_threads);
        Operand outputs[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

        ebb_cpu_set_n_threads (n_threads);
        case_run (test, kernel, outputs);
        for (guint i = 0; i < test->n_outputs; i++)
          if (test->outputs[i].memory)
            {
              compare_output (test, label, i, &expected[i], &outputs[i]);
              if (again && memcmp (first[i].memory, outputs[i].memory, first[i].size) != 0)
                g_error ("%s, %s: output %u is not the same bits in a second run", test->name, label, i);
              if (again)
                operand_clear (&first[i]);
            }
        if (again)
          for (guint i = 0; i < test->n_outputs; i++)
            operand_clear (&outputs[i]);
        else
          memcpy (first, outputs, sizeof first);
      }
  ebb_cpu_set_n_threads (0);
}

/* Takes the operands. */
static void
case_check (Case *test)
{
  Operand expected[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

  case_run (test, ebb_reference_kernels[test->kernel], expected);
  if (test->kernel == EBB_KERNEL_MATMUL)
    check_kernel (test, ebb_cpu_matmul, "oneDNN", expected);
  else
    for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
      {
        const EbbKernelFunc *kernels = ebb_cpu_get_kernels_of (simd_names[i]);
        Case variant = *test;

        if (!g_str_equal (simd_names[i], "avx512bf16"))
          variant.pairs_tolerance = 0;
        if (kernels)
          check_kernel (&variant, kernels[test->kernel], simd_names[i], expected);
      }
  for (guint i = 0; i < test->n_outputs; i++)
    operand_clear (&expected[i]);
  case_clear (test);
}

#define SHAPE(...) \
  (const gint64[]) \
  {                \
    __VA_ARGS__    \
  }

/* -- matmul -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  gint64 m, n, k;
  gboolean transpose_a, transpose_b;
  EbbDType dtype, result;
  int bias; /* -1: none, else its dtype */
  gboolean accumulate;
} Product;

static void
check_product (const Product *p)
{
  Case test = { .kernel = EBB_KERNEL_MATMUL, .n_inputs = 3, .n_outputs = 1, .tolerance = 2e-6 };
  g_autofree char *name = g_strdup_printf ("[%" G_GINT64_FORMAT ", %" G_GINT64_FORMAT "] x [%" G_GINT64_FORMAT
                                           ", %" G_GINT64_FORMAT "]%s%s %s -> %s%s%s",
                                           p->m, p->k, p->k, p->n, p->transpose_a ? " ta" : "",
                                           p->transpose_b ? " tb" : "", ebb_dtype_get_name (p->dtype),
                                           ebb_dtype_get_name (p->result), p->bias >= 0 ? " bias" : "",
                                           p->accumulate ? " accumulate" : "");

  test.name = name;
  test.params.matmul.accumulate = p->accumulate;
  test.inputs[0] = operand_new (p->dtype, 2, SHAPE (p->m, p->k),
                                p->transpose_a ? SHAPE (1, p->m + 3) : SHAPE (p->k + 5, 1), -1.0, 1.0);
  test.inputs[1] = operand_new (p->dtype, 2, SHAPE (p->k, p->n),
                                p->transpose_b ? SHAPE (1, p->k) : SHAPE (p->n, 1), -1.0, 1.0);
  if (p->bias >= 0)
    test.inputs[2] = operand_new ((EbbDType) p->bias, 1, SHAPE (p->n), NULL, -1.0, 1.0);
  test.outputs[0] = operand_new (p->result, 2, SHAPE (p->m, p->n), NULL, -1.0, 1.0);
  case_check (&test);
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
          check_product (&p);
        }
}

static void
check_batches (const char *name,
               EbbDType dtype,
               Operand a,
               Operand b,
               Operand c)
{
  Case test = { name, EBB_KERNEL_MATMUL, { a, b }, { c }, 2, 1, .tolerance = 2e-6 };

  case_check (&test);
}

static void
test_matmul_batches (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };

  for (gsize d = 0; d < G_N_ELEMENTS (dtypes); d++)
    {
      EbbDType t = dtypes[d];

#define NEW(n_dims, shape, strides) operand_new (t, n_dims, shape, strides, -1.0, 1.0)
      check_batches ("rows folded", t, NEW (3, SHAPE (3, 17, 40), NULL), NEW (2, SHAPE (40, 33), NULL),
                     NEW (3, SHAPE (3, 17, 33), NULL));
      check_batches ("weight expanded", t, NEW (3, SHAPE (3, 17, 40), NULL),
                     NEW (3, SHAPE (3, 40, 33), SHAPE (0, 33, 1)), NEW (3, SHAPE (3, 17, 33), NULL));
      check_batches ("one row each", t, NEW (3, SHAPE (50, 1, 40), SHAPE (80, 7, 1)), NEW (2, SHAPE (40, 33), NULL),
                     NEW (3, SHAPE (50, 1, 33), NULL));
      check_batches ("heads", t, NEW (4, SHAPE (2, 3, 20, 16), SHAPE (20 * 144, 16, 144, 1)),
                     NEW (4, SHAPE (2, 3, 16, 20), SHAPE (20 * 144, 16, 1, 144)), NEW (4, SHAPE (2, 3, 20, 20), NULL));
      check_batches ("left broadcast", t, NEW (2, SHAPE (20, 40), NULL), NEW (3, SHAPE (5, 40, 9), NULL),
                     NEW (3, SHAPE (5, 20, 9), NULL));
      check_batches ("both broadcast", t, NEW (4, SHAPE (4, 3, 20, 16), SHAPE (320, 0, 16, 1)),
                     NEW (4, SHAPE (4, 3, 16, 9), SHAPE (0, 144, 9, 1)), NEW (4, SHAPE (4, 3, 20, 9), NULL));
      check_batches ("right repeated", t, NEW (4, SHAPE (2, 3, 20, 16), NULL),
                     NEW (4, SHAPE (2, 3, 16, 9), SHAPE (144, 0, 9, 1)), NEW (4, SHAPE (2, 3, 20, 9), NULL));
      check_batches ("rows apart", t, NEW (3, SHAPE (3, 17, 40), SHAPE (17 * 40 + 8, 40, 1)),
                     NEW (2, SHAPE (40, 33), NULL), NEW (3, SHAPE (3, 17, 33), NULL));
      check_batches ("neither varies", t, NEW (3, SHAPE (4, 20, 16), SHAPE (0, 16, 1)),
                     NEW (3, SHAPE (4, 16, 19), SHAPE (0, 19, 1)), NEW (3, SHAPE (4, 20, 19), NULL));
      check_batches ("rows are one", t, NEW (2, SHAPE (40, 64), SHAPE (0, 1)), NEW (2, SHAPE (64, 33), NULL),
                     NEW (2, SHAPE (40, 33), NULL));
      check_batches ("columns are one", t, NEW (2, SHAPE (40, 64), NULL), NEW (2, SHAPE (64, 33), SHAPE (1, 0)),
                     NEW (2, SHAPE (40, 33), NULL));
      check_batches ("windows", t, NEW (2, SHAPE (40, 64), SHAPE (3, 1)), NEW (2, SHAPE (64, 33), NULL),
                     NEW (2, SHAPE (40, 33), NULL));
#undef NEW
    }
}

static void
test_matmul_many_plans (void)
{
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
        g_assert_true (ebb_cpu_matmul (&launch, NULL));
        for (int i = 0; i < 4 * m; i++)
          g_assert_cmpfloat (c[i], ==, a[i / 4 * 2] * b[i % 4] + a[i / 4 * 2 + 1] * b[4 + i % 4]);
      }
}

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
} Attention;

static Operand
attention_operand (const Attention *a,
                   EbbDType dtype,
                   gint64 heads,
                   gint64 length)
{
  /* As a slice of a projection to three of them: the heads of a token lie side by side. */
  gint64 row = 3 * heads * a->width + 1;

  return operand_new (dtype, 4, SHAPE (a->n_batches, heads, length, a->width),
                      SHAPE (length * row, a->width, row, 1), -1.0, 1.0);
}

static Operand
attention_mask (const Attention *a)
{
  gint64 b = a->n_batches, h = a->n_heads, t = a->n_queries, s = a->n_keys;

  switch (a->mask)
    {
    case 1: return operand_new (EBB_DTYPE_BOOL, 4, SHAPE (b, 1, 1, s), SHAPE (s, 0, 0, 1), 0.0, 2.0);
    case 2: return operand_new (EBB_DTYPE_BOOL, 4, SHAPE (b, h, t, s), SHAPE (0, 0, s, 1), 0.0, 2.0);
    case 3: return operand_new (EBB_DTYPE_F32, 4, SHAPE (b, h, t, s), SHAPE (h * t * s, t * s, s, 1), -3.0, 3.0);
    case 4: return operand_new (EBB_DTYPE_BF16, 4, SHAPE (b, h, t, s), SHAPE (2 * s, 0, 0, 2), -3.0, 3.0);
    default: return (Operand){ .memory = NULL };
    }
}

static Operand
attention_starts (const Attention *a)
{
  EbbDType dtype = a->starts == 2 ? EBB_DTYPE_I32 : EBB_DTYPE_I64;
  Operand starts = { .memory = NULL };

  if (!a->starts)
    return starts;
  starts = operand_new (dtype, 2, SHAPE (a->n_batches, a->n_queries),
                        a->starts == 2 ? SHAPE (1, 0) : SHAPE (2 * a->n_queries, 2), 0, 0);
  for (gint64 b = 0; b < a->n_batches; b++)
    for (gint64 t = 0; t < a->n_queries; t++)
      {
        gint64 far = b % 2 == 0 ? G_MININT64 : G_MAXINT64, position = a->first_query + t;
        gint64 value = a->starts == 1 ? position / 40 * 40 : a->starts == 2 ? 37 * (b + 1) : t % 3 == 1 ? far : b;

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
  Case forward = { .kernel = EBB_KERNEL_ATTENTION, .n_inputs = 5, .n_outputs = 2, .tolerance = 3e-6 };
  Case backward = { .kernel = EBB_KERNEL_ATTENTION_GRAD, .n_inputs = 8, .n_outputs = 3, .tolerance = 1e-5 };
  Operand results[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  g_autofree char *name = g_strdup_printf ("attention B%d H%d/%d T%d S%d D%d%s p=%g mask %d %s first %d window %d cap %g starts %d",
                                           (int) a->n_batches,
                                           (int) a->n_heads, (int) a->n_key_heads, (int) a->n_queries, (int) a->n_keys,
                                           (int) a->width, a->causal ? " causal" : "", a->p, a->mask,
                                           ebb_dtype_get_name (a->dtype), (int) a->first_query, (int) a->window,
                                           a->softcap, a->starts);

  forward.name = backward.name = name;
  forward.inputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  forward.inputs[1] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  forward.inputs[2] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  forward.inputs[3] = attention_mask (a);
  forward.inputs[4] = attention_starts (a);
  forward.outputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  forward.outputs[1] = operand_new (EBB_DTYPE_F32, 4, SHAPE (a->n_batches, a->n_heads, a->n_queries, 2), NULL, 0, 0);
  forward.params.attention.scale = 2.0 / sqrt ((double) a->width);
  forward.params.attention.causal = a->causal;
  forward.params.attention.first_query = a->first_query;
  forward.params.attention.window = a->window;
  forward.params.attention.softcap = a->softcap;
  forward.params.attention.p = a->p;
  forward.params.attention.philox = (EbbPhilox){ 0x123456789abcdefu, 0xfffffff0u };
  backward.params = forward.params;

  case_run (&forward, ebb_reference_kernels[EBB_KERNEL_ATTENTION], results);
  backward.inputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  for (int i = 0; i < 3; i++)
    backward.inputs[1 + i] = operand_copy (&forward.inputs[i]);
  backward.inputs[4] = results[0];
  backward.inputs[5] = results[1];
  if (a->mask)
    backward.inputs[6] = operand_copy (&forward.inputs[3]);
  if (a->starts)
    backward.inputs[7] = operand_copy (&forward.inputs[4]);
  backward.outputs[0] = attention_operand (a, a->dtype, a->n_heads, a->n_queries);
  backward.outputs[1] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  backward.outputs[2] = attention_operand (a, a->dtype, a->n_key_heads, a->n_keys);
  /* Probabilities are rounded to be multiplied in pairs; the output that backward is given was rounded in any case. */
  forward.pairs_tolerance = 4e-3;
  if (a->dtype == EBB_DTYPE_BF16)
    backward.tolerance = 1e-2;
  case_check (&forward);
  case_check (&backward);
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
  };

  for (gsize i = 0; i < G_N_ELEMENTS (cases); i++)
    check_attention (&cases[i]);
}

/* A row's result is the same bits in whatever company and on however many threads it is computed. */
static void
test_attention_threads (void)
{
  Attention a = { 2, 3, 3, 300, 300, 64, TRUE, 0.1, 0, EBB_DTYPE_F32 };
  Operand q = attention_operand (&a, EBB_DTYPE_F32, 3, 300), k = attention_operand (&a, EBB_DTYPE_F32, 3, 300);
  Operand o = attention_operand (&a, EBB_DTYPE_F32, 3, 300);
  Operand l = operand_new (EBB_DTYPE_F32, 4, SHAPE (2, 3, 300, 2), NULL, 0, 0);
  Case test = { "attention", EBB_KERNEL_ATTENTION, { q, k, k }, { o, l }, 3, 2, .tolerance = 0.0 };

  test.params.attention.scale = 0.125;
  test.params.attention.causal = TRUE;
  test.params.attention.p = 0.1;
  for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbKernelFunc *kernels = ebb_cpu_get_kernels_of (simd_names[i]);
      Operand one[EBB_LAUNCH_MAX_OUTPUTS] = { 0 }, many[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

      if (!kernels)
        continue;
      ebb_cpu_set_n_threads (1);
      case_run (&test, kernels[EBB_KERNEL_ATTENTION], one);
      ebb_cpu_set_n_threads (7);
      case_run (&test, kernels[EBB_KERNEL_ATTENTION], many);
      g_assert_cmpmem (one[0].memory, one[0].size, many[0].memory, many[0].size);
      g_assert_cmpmem (one[1].memory, one[1].size, many[1].memory, many[1].size);
      for (int j = 0; j < 2; j++)
        {
          operand_clear (&one[j]);
          operand_clear (&many[j]);
        }
    }
  ebb_cpu_set_n_threads (0);
  operand_clear (&q);
  operand_clear (&k);
  operand_clear (&o);
  operand_clear (&l);
}

#define FAR_LENGTH 70
#define FAR_WIDTH 8

/* Scores of 2^20 that differ by little: products of whole numbers of halves, which f32 holds. Backward's
 * probabilities are those of forward: with a gradient of 1 each query gives 1 in all to the values. */
static void
test_attention_far_from_zero (void)
{
  const gint64 *shape = SHAPE (1, 1, FAR_LENGTH, FAR_WIDTH);
  Operand q = operand_new (EBB_DTYPE_F32, 4, shape, NULL, 0, 0), k = operand_copy (&q), d_out = operand_copy (&q);
  Operand v = operand_new (EBB_DTYPE_F32, 4, shape, NULL, -1, 1);
  Operand l = operand_new (EBB_DTYPE_F32, 4, SHAPE (1, 1, FAR_LENGTH, 2), NULL, 0, 0);
  Case forward = { "attention", EBB_KERNEL_ATTENTION, { q, k, v }, { q, l }, 3, 2, .tolerance = 3e-6 };
  Operand expected[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  Case backward = { "attention gradient", EBB_KERNEL_ATTENTION_GRAD, .n_inputs = 6, .n_outputs = 3 };
  Operand expected_grads[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };

  forward.params.attention.scale = backward.params.attention.scale = 1;
  for (gint64 i = 0; i < FAR_LENGTH * FAR_WIDTH; i++)
    {
      ebb_reference_store (&q.view, i, i % FAR_WIDTH == 0 ? 1024 : floor (next_uniform (-2, 3)) / 2);
      ebb_reference_store (&k.view, i, i % FAR_WIDTH == 0 ? 1024 : floor (next_uniform (-2, 3)) / 2);
      ebb_reference_store (&d_out.view, i, 1);
    }
  case_run (&forward, ebb_reference_kernels[EBB_KERNEL_ATTENTION], expected);
  memcpy (backward.inputs, (Operand[]){ d_out, q, k, v, expected[0], expected[1] }, 6 * sizeof (Operand));
  memcpy (backward.outputs, (Operand[]){ q, q, q }, 3 * sizeof (Operand));
  case_run (&backward, ebb_reference_kernels[EBB_KERNEL_ATTENTION_GRAD], expected_grads);
  for (gsize i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbKernelFunc *kernels = ebb_cpu_get_kernels_of (simd_names[i]);
      Operand results[EBB_LAUNCH_MAX_OUTPUTS] = { 0 }, grads[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
      double sum = 0;

      if (!kernels)
        continue;
      case_run (&forward, kernels[EBB_KERNEL_ATTENTION], results);
      backward.inputs[4] = results[0];
      backward.inputs[5] = results[1];
      case_run (&backward, kernels[EBB_KERNEL_ATTENTION_GRAD], grads);
      for (gint64 row = 0; row < FAR_LENGTH; row++)
        sum += ebb_reference_load (&grads[2].view, row * FAR_WIDTH);
      g_assert_cmpfloat_with_epsilon (sum / FAR_LENGTH, 1, 1e-6);
      /* Without fused multiply-add scores times 1 / log (2) are rounded, to 2^-3 here. */
      if (!g_str_equal (simd_names[i], "portable"))
        {
          compare_output (&forward, simd_names[i], 0, &expected[0], &results[0]);
          compare_output (&forward, simd_names[i], 2, &expected_grads[2], &grads[2]);
        }
      for (int j = 0; j < 3; j++)
        {
          operand_clear (&results[j]);
          operand_clear (&grads[j]);
        }
    }
  for (int j = 0; j < 3; j++)
    {
      operand_clear (&expected[j]);
      operand_clear (&expected_grads[j]);
    }
  operand_clear (&q);
  operand_clear (&k);
  operand_clear (&v);
  operand_clear (&d_out);
  operand_clear (&l);
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
  Operand logits = operand_new (dtype, 2, SHAPE (rows, n), NULL, -20.0, 20.0);
  Operand target = operand_new (index_dtype, 1, SHAPE (rows), NULL, 0.0, (double) n);
  Operand loss = operand_new (EBB_DTYPE_F32, 1, SHAPE (rows), NULL, 0.0, 0.0), results[EBB_LAUNCH_MAX_OUTPUTS] = { 0 };
  Case forward = { "cross entropy",
                   EBB_KERNEL_CROSS_ENTROPY,
                   { logits, target, { .memory = NULL } },
                   { loss, operand_new (EBB_DTYPE_F32, 2, SHAPE (rows, 2), NULL, 0.0, 0.0) },
                   3,
                   2,
                   .tolerance = 2e-6 };
  Case backward = {
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
  backward.params = forward.params;
  case_run (&forward, ebb_reference_kernels[EBB_KERNEL_CROSS_ENTROPY], results);
  operand_clear (&results[0]);
  backward.inputs[0] = operand_new (EBB_DTYPE_F32, 1, SHAPE (rows), one_gradient ? SHAPE (0) : SHAPE (1), 0.1, 1.0);
  backward.inputs[1] = operand_copy (&logits);
  backward.inputs[2] = operand_copy (&target);
  backward.inputs[3] = results[1];
  backward.outputs[0] = operand_new (dtype, 2, SHAPE (rows, n), NULL, 0.0, 1.0);
  case_check (&forward);
  case_check (&backward);
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
        Case test = { "index select",
                      EBB_KERNEL_INDEX_SELECT,
                      { operand_new (dtypes[i], 3, SHAPE (3, 11, 77), strided ? SHAPE (2000, 160, 2) : NULL, 0.0, 2.0),
                        operand_new (i % 2 ? EBB_DTYPE_I32 : EBB_DTYPE_I64, 1, SHAPE (600), NULL, 0.0, 11.0) },
                      { operand_new (dtypes[i], 3, SHAPE (3, 600, 77), NULL, 0.0, 1.0) },
                      2,
                      1,
                      .tolerance = 0.0 };

        case_check (&test);
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
  Case test = { "index add",
                EBB_KERNEL_INDEX_ADD,
                { operand_new (source, 3, SHAPE (outer, k, inner), NULL, 0.0, is_floating ? 1.0 : 100.0),
                  operand_new (EBB_DTYPE_I64, 1, SHAPE (k), NULL, 0.0, (double) n) },
                { operand_new (dtype, 3, SHAPE (outer, n, inner), NULL, 0.0, is_floating ? 1.0 : 100.0) },
                2,
                1,
                .tolerance = is_floating ? 1e-6 : 0.0 };

  case_check (&test);
}

static void
test_index_add (void)
{
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_F32, 1, 13, 300, 200);
  check_index_add (EBB_DTYPE_F32, EBB_DTYPE_BF16, 1, 13, 300, 259);
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
        Case gather = { "gather", EBB_KERNEL_GATHER, { { .memory = NULL } }, { { .memory = NULL } }, 2,
                        1,        .tolerance = 0 };
        Case scatter = { "scatter add",    EBB_KERNEL_SCATTER_ADD, { { .memory = NULL } }, { { .memory = NULL } }, 2, 1,
                         .tolerance = 2e-6 };

        x_shape[dim] = 9;
        gather.params.index.dim = scatter.params.index.dim = dim;
        gather.inputs[0] = operand_new (EBB_DTYPE_BF16, 3, x_shape, SHAPE (1, 7, 7 * 160), -1.0, 1.0);
        gather.inputs[1] = operand_new (EBB_DTYPE_I64, 3, shape, SHAPE (19 * n + 3, 19, 1), 0.0, 9.0);
        gather.outputs[0] = operand_new (EBB_DTYPE_BF16, 3, shape, NULL, -1.0, 1.0);
        scatter.inputs[0] =
            operand_new (large ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, 3, shape, SHAPE (1, 7, 7 * n), -1.0, 1.0);
        scatter.inputs[1] = operand_copy (&gather.inputs[1]);
        scatter.outputs[0] = operand_new (EBB_DTYPE_F32, 3, x_shape, NULL, -1.0, 1.0);
        case_check (&gather);
        case_check (&scatter);
      }
}

static void
test_index_check (void)
{
  static const gint64 values[][4] = { { 0, 4, 3, 1 }, { 0, 5, -7, 1 }, { 4, -100, 0, 0 }, { 4, -100, -1, 9 } };

  for (gsize i = 0; i < G_N_ELEMENTS (values); i++)
    for (int has_ignore = 0; has_ignore < 2; has_ignore++)
      for (int is_short = 0; is_short < 2; is_short++)
        {
          Case test = { "index check",
                        EBB_KERNEL_INDEX_CHECK,
                        { operand_new (is_short ? EBB_DTYPE_I32 : EBB_DTYPE_I64, 2, SHAPE (2, 2), NULL, 0.0, 1.0) },
                        { operand_new (EBB_DTYPE_I64, 1, SHAPE (1), NULL, 0.0, 1.0) },
                        1,
                        1,
                        .tolerance = 0.0 };

          for (int j = 0; j < 4; j++)
            ebb_reference_store_integer (&test.inputs[0].view, j, values[i][j]);
          test.params.index.limit = 5;
          test.params.index.ignore = -100;
          test.params.index.has_ignore = has_ignore;
          case_check (&test);
        }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/matmul/shapes-and-dtypes", test_matmul_shapes);
  g_test_add_func ("/kernels/matmul/batches-broadcast", test_matmul_batches);
  g_test_add_func ("/kernels/matmul/plans-come-and-go", test_matmul_many_plans);
  g_test_add_func ("/kernels/attention/equals-reference", test_attention);
  g_test_add_func ("/kernels/attention/threads-change-no-bit", test_attention_threads);
  g_test_add_func ("/kernels/attention/is-as-exact-far-from-zero", test_attention_far_from_zero);
  g_test_add_func ("/kernels/cross-entropy/equals-reference", test_cross_entropy);
  g_test_add_func ("/kernels/index/select", test_index_select);
  g_test_add_func ("/kernels/index/add", test_index_add);
  g_test_add_func ("/kernels/index/gather-and-scatter-add", test_gather_and_scatter);
  g_test_add_func ("/kernels/index/check", test_index_check);
  return g_test_run ();
}
