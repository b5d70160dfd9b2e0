/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels cpu-only cudaemu */

/* Elementwise and random kernels on shapes with tails, strides and broadcasting, of every instruction set. */

#include "support/kernel-run.h"
#include "support/device.h"
#include "support/kernel-case-private.h"

#include <math.h>

#include "tensor/cpu/cpu-private.h"

static const EbbDType floats[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };
static const EbbDType integers[] = { EBB_DTYPE_I32, EBB_DTYPE_I64, EBB_DTYPE_U8 };

/* Sizes around the width of a vector, of a block, and large enough for several threads */
static KernelShape
get_shape (guint k)
{
  switch (k)
    {
    case 0: return KERNEL_SHAPE (1);
    case 1: return KERNEL_SHAPE (3, 5);
    case 2: return KERNEL_SHAPE (2, 3, 17);
    case 3: return KERNEL_SHAPE (4, 1, 64, 3);
    case 4: return KERNEL_SHAPE (33, 47);
    case 5: return KERNEL_SHAPE (5, 130, 7);
    case 6: return KERNEL_SHAPE (2, 3, 64); /* rows of whole vectors */
    default: return KERNEL_SHAPE (3, 231, 103);
    }
}

#define N_SHAPES 8

/* The large shape is slow in the references: two layouts will do. */
static KernelLayout
get_n_layouts (guint shape)
{
  return shape == N_SHAPES - 1 ? KERNEL_LAYOUT_PERMUTED + 1 : KERNEL_N_LAYOUTS;
}

static KernelCase
case_new (const char *name,
          EbbKernel kernel)
{
  return (KernelCase){ .name = name, .kernel = kernel, .n_outputs = 1, .in_place = -1, .tolerance = 1e-6, .scale = 1 };
}

static void
set_unary (KernelCase *test,
           EbbDType x_dtype,
           EbbDType y_dtype,
           guint shape,
           KernelLayout layout,
           double low,
           double high)
{
  test->n_inputs = 1;
  test->inputs[0] = kernel_operand_new (x_dtype, get_shape (shape), layout, low, high);
  test->outputs[0] = kernel_operand_new (y_dtype, get_shape (shape), KERNEL_LAYOUT_CONTIGUOUS, 0, 2);
}

static void
test_copy (void)
{
  for (EbbDType from = EBB_DTYPE_F32; from <= EBB_DTYPE_BOOL; from++)
    for (EbbDType to = EBB_DTYPE_F32; to <= EBB_DTYPE_BOOL; to++)
      for (guint shape = 0; shape < N_SHAPES; shape += from == to || from + to == 1 ? 1 : 3)
        for (KernelLayout layout = 0; layout < get_n_layouts (shape); layout++)
          for (KernelLayout target = KERNEL_LAYOUT_CONTIGUOUS; target <= KERNEL_LAYOUT_STRIDED; target++)
            {
              KernelCase test = case_new ("copy", EBB_KERNEL_COPY);
              gboolean is_unsigned = to == EBB_DTYPE_U8 || from == EBB_DTYPE_BOOL;

              test.n_inputs = 1;
              test.inputs[0] = kernel_operand_new (from, get_shape (shape), layout, is_unsigned ? 0 : -3,
                                                   from == EBB_DTYPE_BOOL ? 2 : 3);
              test.outputs[0] = kernel_operand_new (to, get_shape (shape), target, 0, 2);
              test.tolerance = 0;
              kernel_case_check (&test);
            }
}

/* Every value of 16 bits, and what f32 rounds to them. */
static void
test_copy_rounds (void)
{
  for (EbbDType to = EBB_DTYPE_BF16; to <= EBB_DTYPE_F16; to++)
    {
      KernelCase test = case_new ("copy", EBB_KERNEL_COPY);

      set_unary (&test, to, EBB_DTYPE_F32, N_SHAPES - 1, KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
      for (guint i = 0; i < 65536; i++)
        ((guint16 *) test.inputs[0].view.data)[i] = (guint16) i;
      kernel_case_check (&test);

      test = case_new ("copy", EBB_KERNEL_COPY);
      set_unary (&test, EBB_DTYPE_F32, to, N_SHAPES - 1, KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
      for (guint i = 0; i < 65536; i++)
        {
          /* all exponents, with the bits of the fraction at, just above and just below a tie */
          guint32 bits = (i & 0xffff) << 16 | (i * 2654435761u >> 30) * 0x4000u | (i & 1 ? 0x1000 : 0) | (i >> 1 & 1);

          ((guint32 *) test.inputs[0].view.data)[i] = bits;
        }
      kernel_case_check (&test);
    }
}

static void
test_fill (void)
{
  for (EbbDType dtype = EBB_DTYPE_F32; dtype <= EBB_DTYPE_BOOL; dtype++)
    for (guint shape = 0; shape < N_SHAPES; shape += 2)
      for (KernelLayout layout = KERNEL_LAYOUT_CONTIGUOUS; layout <= KERNEL_LAYOUT_STRIDED; layout++)
        {
          KernelCase test = case_new ("fill", EBB_KERNEL_FILL);

          test.outputs[0] = kernel_operand_new (dtype, get_shape (shape), layout, 0, 2);
          test.params.fill.value = dtype == EBB_DTYPE_BOOL ? 1 : dtype > EBB_DTYPE_F16 ? 7
                                                                                       : -1.25;
          kernel_case_check (&test);
          if (dtype == EBB_DTYPE_BOOL)
            continue;
          test = case_new ("arange", EBB_KERNEL_ARANGE);
          test.outputs[0] = kernel_operand_new (dtype, get_shape (dtype == EBB_DTYPE_U8 ? 2 : shape), layout, 0, 2);
          test.params.arange.start = 3;
          test.params.arange.step = dtype > EBB_DTYPE_F16 ? 2 : 0.37;
          kernel_case_check (&test);
        }
}

static void
test_unary (void)
{
  for (EbbUnaryOp op = 0; op < EBB_N_UNARY_OPS; op++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint shape = 0; shape < N_SHAPES; shape++)
        for (KernelLayout layout = 0; layout < get_n_layouts (shape); layout++)
          {
            gboolean positive = op == EBB_UNARY_LOG || op == EBB_UNARY_SQRT || op == EBB_UNARY_RSQRT;
            KernelCase test = case_new ("unary", EBB_KERNEL_UNARY);

            test.params.unary.op = op;
            test.params.unary.cap = 4;
            set_unary (&test, floats[d], op == EBB_UNARY_LOGICAL_NOT ? EBB_DTYPE_BOOL : floats[d], shape, layout,
                       positive ? 0.01 : -9, 9);
            if (layout == KERNEL_LAYOUT_CONTIGUOUS && op != EBB_UNARY_LOGICAL_NOT)
              test.in_place = 0;
            kernel_case_check (&test);
          }
}

static void
test_unary_integers (void)
{
  static const EbbUnaryOp ops[] = { EBB_UNARY_NEG, EBB_UNARY_ABS, EBB_UNARY_LOGICAL_NOT };

  for (guint o = 0; o < G_N_ELEMENTS (ops); o++)
    for (guint d = 0; d < 2; d++)
      for (guint shape = 0; shape < N_SHAPES; shape++)
        {
          KernelCase test = case_new ("unary", EBB_KERNEL_UNARY);

          test.params.unary.op = ops[o];
          set_unary (&test, integers[d], ops[o] == EBB_UNARY_LOGICAL_NOT ? EBB_DTYPE_BOOL : integers[d], shape,
                     KERNEL_LAYOUT_PERMUTED, -5, 5);
          kernel_case_check (&test);
        }
}

static void
test_unary_grad (void)
{
  for (EbbUnaryOp op = 0; op < EBB_UNARY_LOGICAL_NOT; op++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint shape = 0; shape < N_SHAPES; shape++)
        for (KernelLayout layout = KERNEL_LAYOUT_CONTIGUOUS; layout <= KERNEL_LAYOUT_BROADCAST; layout++)
          {
            gboolean positive = op == EBB_UNARY_LOG || op == EBB_UNARY_SQRT || op == EBB_UNARY_RSQRT;
            KernelCase test = case_new ("unary_grad", EBB_KERNEL_UNARY_GRAD);

            test.params.unary.op = op;
            test.params.unary.cap = 4;
            set_unary (&test, floats[d], floats[d], shape, layout, -2, 2);
            test.n_inputs = 3;
            test.inputs[1] = kernel_operand_new (floats[d], get_shape (shape), layout, positive ? 0.1 : -6, 6);
            test.inputs[2] = kernel_operand_new (floats[d], get_shape (shape), layout, positive ? 0.1 : -1, 1);
            test.in_place = layout == KERNEL_LAYOUT_CONTIGUOUS ? 0 : -1;
            kernel_case_check (&test);
          }
}

/* In units of the last place of the f32 that is right, for every 65536th f32 there is: denormals, infinities, NaN. */
static void
check_units (const char *simd,
             EbbUnaryOp op)
{
  KernelOperand x = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (65536), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  KernelOperand y = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (65536), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  KernelOperand want = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (65536), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
  EbbLaunch launch = { .kernel = EBB_KERNEL_UNARY, .n_inputs = 1, .n_outputs = 1, .inputs = { &x.view } };

  for (guint i = 0; i < 65536; i++)
    ((guint32 *) x.view.data)[i] = i << 16 | (i * 40503u & 0xffff);
  launch.params.unary.op = op;
  launch.outputs[0] = &want.view;
  g_assert_true (ebb_reference_kernels[EBB_KERNEL_UNARY](&launch, NULL));
  launch.outputs[0] = &y.view;
  g_assert_true (test_kernel_run (test_kernels_of (simd)[EBB_KERNEL_UNARY], &launch, NULL));
  for (guint i = 0; i < 65536; i++)
    {
      double a = ((float *) y.view.data)[i], b = ((float *) want.view.data)[i];
      double unit =
          b != 0 && isfinite (b) ? MAX (ldexp (1, ilogb (b) - 23), 1.401298464324817e-45) : 1.401298464324817e-45;

      if (a != b && !(isnan (a) && isnan (b)) && !(fabs (a - b) <= 3 * unit))
        g_error ("unary %d on %s: f (%.9g) is %.9g instead of %.9g", op, simd, ((float *) x.view.data)[i], a, b);
    }
  g_free (x.memory);
  g_free (y.memory);
  g_free (want.memory);
}

static void
test_units (void)
{
  static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };
  static const EbbUnaryOp ops[] = { EBB_UNARY_EXP, EBB_UNARY_LOG, EBB_UNARY_TANH, EBB_UNARY_SIGMOID, EBB_UNARY_SQRT,
                                    EBB_UNARY_RSQRT, EBB_UNARY_RELU, EBB_UNARY_ABS };

  for (guint k = 0; k < G_N_ELEMENTS (simd_names); k++)
    for (guint o = 0; o < G_N_ELEMENTS (ops) && test_kernels_of (simd_names[k]) != NULL; o++)
      check_units (simd_names[k], ops[o]);
}

/* The slopes of GELU are 1 and 0 far out, where powers of x overflow. */
static void
test_gelu_extremes (void)
{
  for (guint tanh = 0; tanh < 2; tanh++)
    {
      static const float extremes[] = { 1e20f, -1e20f, 3e38f, -3e38f, 40, -40, 1e-30f, -1e-30f };
      KernelCase test = case_new ("unary_grad", EBB_KERNEL_UNARY_GRAD);
      float *x;

      set_unary (&test, EBB_DTYPE_F32, EBB_DTYPE_F32, 4, KERNEL_LAYOUT_CONTIGUOUS, 1, 2);
      test.n_inputs = 2;
      test.inputs[1] = kernel_operand_new (EBB_DTYPE_F32, get_shape (4), KERNEL_LAYOUT_CONTIGUOUS, -1, 1);
      x = test.inputs[1].view.data;
      for (guint i = 0; i < G_N_ELEMENTS (extremes); i++)
        x[i] = extremes[i];
      test.params.unary.op = tanh ? EBB_UNARY_GELU_TANH : EBB_UNARY_GELU;
      if (tanh) /* the reference itself is 0 * inf there */
        x[0] = x[1] = x[2] = x[3] = 50;
      kernel_case_check (&test);
    }
}

static void
check_binary (EbbBinaryOp op,
              EbbDType dtype,
              guint shape,
              KernelLayout a,
              KernelLayout b)
{
  gboolean gives_bool = op >= EBB_BINARY_EQ;
  gboolean is_float = ebb_dtype_is_floating_point (dtype);
  double low = dtype == EBB_DTYPE_U8 || op == EBB_BINARY_POW ? 1 : -4;
  KernelCase test = case_new ("binary", EBB_KERNEL_BINARY);

  test.params.binary.op = op;
  set_unary (&test, dtype, gives_bool ? EBB_DTYPE_BOOL : dtype, shape, a, dtype == EBB_DTYPE_U8 ? 4 : low, 5);
  test.n_inputs = 2;
  test.inputs[1] = kernel_operand_new (dtype, get_shape (shape), b, is_float && op < EBB_BINARY_EQ ? 0.5 : low, 4);
  test.in_place = a == KERNEL_LAYOUT_CONTIGUOUS && !gives_bool ? 0 : -1;
  kernel_case_check (&test);
}

static void
test_binary (void)
{
  for (EbbBinaryOp op = 0; op < EBB_N_BINARY_OPS; op++)
    for (guint shape = 0; shape < N_SHAPES; shape++)
      for (KernelLayout layout = 0; layout < get_n_layouts (shape); layout++)
        {
          for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
            check_binary (op, floats[d], shape, layout == KERNEL_LAYOUT_ROW ? layout : 0, layout);
          if (shape < 5)
            for (guint d = 0; d < G_N_ELEMENTS (integers); d++)
              check_binary (op, integers[d], shape, layout, KERNEL_LAYOUT_CONTIGUOUS);
        }
}

static void
test_binary_scalar (void)
{
  static const double values[] = { 2, 3, 0.5, -1, -0.5, 1, 1.7 };

  for (EbbBinaryOp op = 0; op < EBB_N_BINARY_OPS; op++)
    for (guint k = 0; k < G_N_ELEMENTS (values); k++)
      for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
        for (gboolean reverse = FALSE; reverse <= TRUE; reverse++)
          {
            KernelCase test = case_new ("binary_scalar", EBB_KERNEL_BINARY_SCALAR);

            test.params.binary.op = op;
            test.params.binary.value = reverse && op == EBB_BINARY_POW ? fabs (values[k]) : values[k];
            test.params.binary.reverse = reverse;
            set_unary (&test, floats[d], op >= EBB_BINARY_EQ ? EBB_DTYPE_BOOL : floats[d], k, k % KERNEL_N_LAYOUTS, 0.5,
                       3);
            kernel_case_check (&test);
          }
}

static void
test_integer_scalar (void)
{
  for (EbbBinaryOp op = 0; op < EBB_N_BINARY_OPS; op++)
    for (double value = -2; value <= 3; value++)
      {
        KernelCase test = case_new ("binary_scalar", EBB_KERNEL_BINARY_SCALAR);

        if (op == EBB_BINARY_POW && value < 0)
          continue;
        test.params.binary.op = op;
        test.params.binary.value = value;
        set_unary (&test, EBB_DTYPE_I64, op >= EBB_BINARY_EQ ? EBB_DTYPE_BOOL : EBB_DTYPE_I64, 4,
                   KERNEL_LAYOUT_STRIDED, -6, 6);
        kernel_case_check (&test);
      }
}

static void
test_where (void)
{
  for (EbbDType dtype = EBB_DTYPE_F32; dtype <= EBB_DTYPE_BOOL; dtype++)
    for (guint shape = 0; shape < N_SHAPES; shape += 2)
      for (KernelLayout layout = 0; layout < get_n_layouts (shape); layout++)
        {
          KernelCase test = case_new ("where", EBB_KERNEL_WHERE);

          set_unary (&test, EBB_DTYPE_BOOL, dtype, shape, layout, 0, 2);
          test.n_inputs = 3;
          test.inputs[1] = kernel_operand_new (dtype, get_shape (shape), KERNEL_LAYOUT_CONTIGUOUS, 0, 2);
          test.inputs[2] = kernel_operand_new (dtype, get_shape (shape), layout, 0, 2);
          test.tolerance = 0;
          kernel_case_check (&test);
        }
}

static void
test_clamp (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_I32, EBB_DTYPE_I64 };

  for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
    for (guint shape = 0; shape < N_SHAPES; shape++)
      for (KernelLayout layout = 0; layout < get_n_layouts (shape); layout++)
        {
          KernelCase test = case_new ("clamp", EBB_KERNEL_CLAMP);

          test.params.clamp.min = shape % 2 ? -INFINITY : -2;
          test.params.clamp.max = 3;
          set_unary (&test, dtypes[d], dtypes[d], shape, layout, -5, 5);
          test.in_place = layout == KERNEL_LAYOUT_CONTIGUOUS ? 0 : -1;
          kernel_case_check (&test);
          if (d >= 2)
            continue;
          test = case_new ("clamp_grad", EBB_KERNEL_CLAMP_GRAD);
          test.params.clamp.min = -2;
          test.params.clamp.max = 3;
          set_unary (&test, dtypes[d], dtypes[d], shape, layout, -5, 5);
          test.n_inputs = 2;
          test.inputs[1] = kernel_operand_new (dtypes[d], get_shape (shape), layout, -5, 5);
          kernel_case_check (&test);
        }
}

/* Operands of two dtypes give a result of the wider one. */
static void
check_add_scaled (EbbDType dtype, EbbDType other, guint shape, KernelLayout layout)
{
  const EbbDType result = dtype == other ? dtype : EBB_DTYPE_F32;
  KernelCase test = case_new ("add_scaled", EBB_KERNEL_ADD_SCALED);

  test.params.add_scaled.alpha = 0.75;
  test.params.add_scaled.beta = -1.5;
  set_unary (&test, dtype, result, shape, KERNEL_LAYOUT_CONTIGUOUS, -5, 5);
  test.n_inputs = 2;
  test.inputs[1] = kernel_operand_new (other, get_shape (shape), layout, -5, 5);
  test.in_place = dtype == result ? 0 : -1;
  kernel_case_check (&test);
}

static void
test_add_scaled (void)
{
  for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
    for (guint other = 0; other < G_N_ELEMENTS (floats); other++)
      for (guint shape = 0; shape < N_SHAPES; shape++)
        for (KernelLayout layout = 0; layout < get_n_layouts (shape); layout++)
          check_add_scaled (floats[d], floats[other], shape, layout);
}

static void
test_triangle (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16, EBB_DTYPE_I64, EBB_DTYPE_BOOL };

  for (guint d = 0; d < G_N_ELEMENTS (dtypes); d++)
    for (guint shape = 1; shape < N_SHAPES; shape++)
      for (gint64 diagonal = -2; diagonal <= 3; diagonal++)
        for (gboolean upper = FALSE; upper <= TRUE; upper++)
          {
            KernelCase test = case_new ("triangle", EBB_KERNEL_TRIANGLE);

            test.params.triangle.diagonal = diagonal;
            test.params.triangle.upper = upper;
            set_unary (&test, dtypes[d], dtypes[d], shape, (guint) (diagonal + 2) % 3, 0, 2);
            kernel_case_check (&test);
          }
}

/* -- random -------------------------------------------------------------------------------------------------------- */

static void
test_random (EbbKernel kernel,
             const EbbDType *dtypes,
             guint n_dtypes)
{
  for (guint d = 0; d < n_dtypes; d++)
    for (guint shape = 0; shape < N_SHAPES; shape++)
      for (KernelLayout layout = KERNEL_LAYOUT_CONTIGUOUS; layout <= KERNEL_LAYOUT_STRIDED; layout++)
        {
          KernelCase test = case_new ("random", kernel);

          /* the low word of the counter overflows within a vector of blocks */
          test.params.random.philox = (EbbPhilox){ 0x123456789abcdef0, 0xfffffff5 };
          test.params.random.low = -3;
          test.params.random.high = 11;
          test.params.random.mean = 0.5;
          test.params.random.std = 2;
          test.scale = 10; /* u * 14 - 3 cancels */
          test.outputs[0] = kernel_operand_new (dtypes[d], get_shape (shape), layout, 0, 2);
          kernel_case_check (&test);
        }
}

static void
test_uniform (void)
{
  test_random (EBB_KERNEL_UNIFORM, floats, G_N_ELEMENTS (floats));
}

static void
test_normal (void)
{
  test_random (EBB_KERNEL_NORMAL, floats, G_N_ELEMENTS (floats));
}

static void
test_randint (void)
{
  test_random (EBB_KERNEL_RANDINT, integers, 2);
}

static void
test_dropout (void)
{
  static const double ps[] = { 0, 0.1, 0.5, 0.999, 1 };

  for (guint k = 0; k < G_N_ELEMENTS (ps); k++)
    for (guint d = 0; d < G_N_ELEMENTS (floats); d++)
      for (guint shape = 0; shape < N_SHAPES; shape++)
        {
          KernelCase test = case_new ("dropout", EBB_KERNEL_DROPOUT);

          test.params.random.philox = (EbbPhilox){ 42, 7 };
          test.params.random.p = ps[k];
          set_unary (&test, floats[d], floats[d], shape, KERNEL_LAYOUT_CONTIGUOUS, -5, 5);
          test.in_place = 0;
          kernel_case_check (&test);
        }
}

static void
test_multinomial (void)
{
  for (gint64 n = 1; n < 3000; n = n * 3 + 1)
    {
      KernelCase test = case_new ("multinomial", EBB_KERNEL_MULTINOMIAL);

      test.params.random.philox = (EbbPhilox){ 42, 7 };
      test.n_inputs = 1;
      test.inputs[0] = kernel_operand_new (EBB_DTYPE_F32, KERNEL_SHAPE (3, n), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
      ((float *) test.inputs[0].view.data)[n - 1] = 0.5f;
      if (n > 1)
        ((float *) test.inputs[0].view.data)[0] = 0;
      test.outputs[0] = kernel_operand_new (EBB_DTYPE_I64, KERNEL_SHAPE (3, 37), KERNEL_LAYOUT_CONTIGUOUS, 0, 1);
      kernel_case_check (&test);
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/kernels/copy-equals-reference", test_copy);
  g_test_add_func ("/kernels/copy-rounds-to-nearest-even", test_copy_rounds);
  g_test_add_func ("/kernels/fill-and-arange-equal-reference", test_fill);
  g_test_add_func ("/kernels/unary-equals-reference", test_unary);
  g_test_add_func ("/kernels/unary-of-integers-equals-reference", test_unary_integers);
  g_test_add_func ("/kernels/unary-grad-equals-reference", test_unary_grad);
  g_test_add_func ("/kernels/functions-are-near-over-all-of-f32", test_units);
  g_test_add_func ("/kernels/gelu-slope-is-finite-everywhere", test_gelu_extremes);
  g_test_add_func ("/kernels/binary-equals-reference", test_binary);
  g_test_add_func ("/kernels/binary-scalar-equals-reference", test_binary_scalar);
  g_test_add_func ("/kernels/integer-scalar-equals-reference", test_integer_scalar);
  g_test_add_func ("/kernels/where-equals-reference", test_where);
  g_test_add_func ("/kernels/clamp-equals-reference", test_clamp);
  g_test_add_func ("/kernels/add-scaled-equals-reference", test_add_scaled);
  g_test_add_func ("/kernels/triangle-equals-reference", test_triangle);
  g_test_add_func ("/kernels/uniform-draws-are-philox", test_uniform);
  g_test_add_func ("/kernels/normal-draws-are-philox", test_normal);
  g_test_add_func ("/kernels/randint-draws-are-philox", test_randint);
  g_test_add_func ("/kernels/dropout-decisions-are-philox", test_dropout);
  g_test_add_func ("/kernels/multinomial-is-inverse-cumulative-sum", test_multinomial);
  return g_test_run ();
}
