/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */

/* Moments in bf16 and in 8 bits, on each instruction set that this processor has, against plain code. */

#include <math.h>
#include <string.h>

#include "support/kernel-run.h"
#include "support/device.h"
#include "tensor/cpu/cpu-private.h"

#define N 1000 /* three blocks and a part of one */
#define N_BLOCKS 4

static const char *const simd_names[] = { "portable", "avx2", "avx512", "avx512bf16" };

/* -- plain code ---------------------------------------------------------------------------------------------------- */

/* The dynamic tree as it is defined: zeros in front say the power of ten, the rest is linear in it. */
static double
value_of_magnitude (int code,
                    int n_bits)
{
  int e = n_bits - 1;

  if (code == 0)
    return 0;
  while ((code & 1 << e) == 0)
    e--;
  return (0.1 + 0.9 * (code - (1 << e) + 0.5) / (1 << e)) * pow (10, e - n_bits + 1);
}

static double
value_of_code (guint8 code,
               gboolean is_signed)
{
  double top = value_of_magnitude (is_signed ? 127 : 255, is_signed ? 7 : 8);

  if (!is_signed)
    return value_of_magnitude (code, 8) / top;
  return (code & 0x80 ? -1 : 1) * value_of_magnitude (code & 0x7f, 7) / top;
}

/* Half the width of the cell in which @x of a scale of 1 lies; below the first one what is signed becomes 0, and what
 * is not becomes the least that there is. */
static double
get_bound (double x,
           gboolean is_signed)
{
  int n_bits = is_signed ? 7 : 8, e = (int) floor (log10 (fabs (x))) + n_bits;

  return e < 0 ? (is_signed ? pow (10, -n_bits) : 5.5e-8)
               : 0.45 * pow (10, e - n_bits + 1) / (1 << MIN (e, n_bits - 1)) * 1.02;
}

static float
bf16_to_float (guint16 h)
{
  guint32 bits = (guint32) h << 16;
  float f;

  memcpy (&f, &bits, 4);
  return f;
}

static guint16
float_to_bf16 (float f)
{
  guint32 bits;

  memcpy (&bits, &f, 4);
  return (guint16) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static guint32 random_state = 1;

static double
next_uniform (double low,
              double high)
{
  random_state = random_state * 1664525u + 1013904223u;
  return low + (high - low) * (random_state >> 8) / 16777216.0;
}

/* -- running ------------------------------------------------------------------------------------------------------- */

static EbbView
view_of (void *data,
         EbbDType dtype,
         gint64 n)
{
  return (EbbView){ .data = data, .dtype = dtype, .n_dims = 1, .shape = { n }, .strides = { 1 } };
}

static void
encode (const EbbKernelFunc *kernels,
        float *values,
        gint64 n,
        gboolean is_signed,
        guint8 *codes,
        float *absmax)
{
  EbbView x = view_of (values, EBB_DTYPE_F32, n), y = view_of (codes, EBB_DTYPE_U8, n);
  EbbView scale = view_of (absmax, EBB_DTYPE_F32, (n + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK);
  EbbLaunch launch = {
    .kernel = EBB_KERNEL_MOMENT_ENCODE,
    .n_inputs = 1,
    .n_outputs = 2,
    .inputs = { &x },
    .outputs = { &y, &scale }
  };

  launch.params.moment.is_signed = is_signed;
  g_assert_true (test_kernel_run (kernels[launch.kernel], &launch, NULL));
}

static void
decode (const EbbKernelFunc *kernels,
        guint8 *codes,
        float *absmax,
        gint64 n,
        gboolean is_signed,
        float *values)
{
  EbbView x = view_of (codes, EBB_DTYPE_U8, n), y = view_of (values, EBB_DTYPE_F32, n);
  EbbView scale = view_of (absmax, EBB_DTYPE_F32, (n + EBB_MOMENT_BLOCK - 1) / EBB_MOMENT_BLOCK);
  EbbLaunch launch = {
    .kernel = EBB_KERNEL_MOMENT_DECODE,
    .n_inputs = 2,
    .n_outputs = 1,
    .inputs = { &x, &scale },
    .outputs = { &y }
  };

  launch.params.moment.is_signed = is_signed;
  g_assert_true (test_kernel_run (kernels[launch.kernel], &launch, NULL));
}

typedef struct
{
  EbbDType dtype;
  float grad[N], parameter[N];
  guint8 m[4 * N], v[4 * N]; /* of any dtype */
  float absmax[2][N_BLOCKS];
} Update;

static void
update (const EbbKernelFunc *kernels,
        Update *u,
        gint64 step)
{
  gboolean is_8bit = u->dtype == EBB_DTYPE_U8;
  const EbbLaunchItem item = { .data = { u->grad, u->parameter, u->m, u->v, is_8bit ? u->absmax[0] : NULL,
                                         is_8bit ? u->absmax[1] : NULL },
                               .n_elements = N };
  EbbLaunch launch = { .kernel = EBB_KERNEL_ADAMW, .n_items = 1, .items = &item };

  launch.params.adamw.lr = 1e-2;
  launch.params.adamw.beta1 = 0.9;
  launch.params.adamw.beta2 = 0.999;
  launch.params.adamw.eps = 1e-8;
  launch.params.adamw.weight_decay = 0.1;
  launch.params.adamw.grad_scale = 0.5;
  launch.params.adamw.step = step;
  launch.params.adamw.grad_dtype = EBB_DTYPE_F32;
  launch.params.adamw.moment_dtype = u->dtype;
  launch.params.adamw.philox = (EbbPhilox){ 7, (guint64) step << 40 };
  g_assert_true (test_kernel_run (kernels[launch.kernel], &launch, NULL));
}

/* -- tests --------------------------------------------------------------------------------------------------------- */

static void
each_code_means_what_is_defined (const EbbKernelFunc *kernels)
{
  guint8 codes[256];
  float values[256], absmax = 3;

  for (int i = 0; i < 256; i++)
    codes[i] = (guint8) i;
  for (int is_signed = 0; is_signed < 2; is_signed++)
    {
      decode (kernels, codes, &absmax, 256, is_signed, values);
      for (int i = 0; i < 256; i++)
        g_assert_cmpfloat (fabs (values[i] - 3 * value_of_code ((guint8) i, is_signed)), <=, 2e-6 * fabs (values[i]));
      g_assert_cmpfloat (fabsf (values[is_signed ? 127 : 255] - 3), <, 1e-6);
    }
}

static void
an_element_is_in_its_cell (const EbbKernelFunc *kernels)
{
  float values[N], back[N], absmax[N_BLOCKS];
  guint8 codes[N], again[N];

  for (int is_signed = 0; is_signed < 2; is_signed++)
    {
      for (int i = 0; i < N; i++)
        values[i] = (float) (pow (10, next_uniform (-9, 2)) * (is_signed && i % 3 == 0 ? -1 : 1));
      encode (kernels, values, N, is_signed, codes, absmax);
      decode (kernels, codes, absmax, N, is_signed, back);
      for (int i = 0; i < N; i++)
        {
          double scale = absmax[i / EBB_MOMENT_BLOCK];
          double top = value_of_magnitude (is_signed ? 127 : 255, is_signed ? 7 : 8);

          g_assert_cmpfloat (fabs (values[i]), <=, scale);
          g_assert_cmpfloat (fabs (back[i] - values[i]) * top / scale, <=,
                             get_bound (values[i] * top / scale, is_signed));
          if (fabs (values[i]) == scale)
            g_assert_cmpfloat (fabs (back[i] - values[i]), <=, 1e-6 * scale);
          if (!is_signed) /* nothing comes down to 0 */
            g_assert_cmpfloat (back[i], >, 0);
        }
      encode (kernels, back, N, is_signed, again, absmax);
      g_assert_cmpmem (again, N, codes, N);
    }
}

static void
odd_blocks_stay_what_they_are (const EbbKernelFunc *kernels)
{
  float values[EBB_MOMENT_BLOCK] = { 0 }, back[EBB_MOMENT_BLOCK], absmax;
  guint8 codes[EBB_MOMENT_BLOCK];

  for (int is_signed = 0; is_signed < 2; is_signed++)
    {
      encode (kernels, values, EBB_MOMENT_BLOCK, is_signed, codes, &absmax);
      decode (kernels, codes, &absmax, EBB_MOMENT_BLOCK, is_signed, back);
      g_assert_cmpmem (back, sizeof back, values, sizeof values);
    }
  values[77] = NAN;
  encode (kernels, values, EBB_MOMENT_BLOCK, FALSE, codes, &absmax);
  decode (kernels, codes, &absmax, EBB_MOMENT_BLOCK, FALSE, back);
  g_assert_true (isnan (back[77]));
  for (int i = 0; i < EBB_MOMENT_BLOCK; i++) /* the whole block */
    g_assert_false (isfinite (back[i]));
  values[77] = INFINITY;
  encode (kernels, values, EBB_MOMENT_BLOCK, TRUE, codes, &absmax);
  decode (kernels, codes, &absmax, EBB_MOMENT_BLOCK, TRUE, back);
  for (int i = 0; i < EBB_MOMENT_BLOCK; i++)
    g_assert_false (isfinite (back[i]));
}

static void
fill (Update *u,
      const EbbKernelFunc *kernels,
      EbbDType dtype,
      double *m,
      double *v)
{
  float wide_m[N], wide_v[N];

  u->dtype = dtype;
  for (int i = 0; i < N; i++)
    {
      u->grad[i] = (float) next_uniform (-1, 1);
      u->parameter[i] = (float) next_uniform (-1, 1);
      wide_m[i] = (float) next_uniform (-1, 1);
      wide_v[i] = (float) next_uniform (0, 1);
      if (dtype != EBB_DTYPE_BF16)
        continue;
      ((guint16 *) u->m)[i] = float_to_bf16 (wide_m[i]);
      ((guint16 *) u->v)[i] = float_to_bf16 (wide_v[i]);
      wide_m[i] = bf16_to_float (((guint16 *) u->m)[i]);
      wide_v[i] = bf16_to_float (((guint16 *) u->v)[i]);
    }
  if (dtype == EBB_DTYPE_U8)
    {
      encode (kernels, wide_m, N, TRUE, u->m, u->absmax[0]);
      encode (kernels, wide_v, N, FALSE, u->v, u->absmax[1]);
    }
  for (int i = 0; i < N; i++)
    {
      int block = i / EBB_MOMENT_BLOCK;

      m[i] = dtype == EBB_DTYPE_U8 ? value_of_code (u->m[i], TRUE) * u->absmax[0][block] : wide_m[i];
      v[i] = dtype == EBB_DTYPE_U8 ? value_of_code (u->v[i], FALSE) * u->absmax[1][block] : wide_v[i];
    }
}

/* The update takes the moments before they are rounded, and they are rounded by less than one step of their format. */
static void
an_update_follows_its_formula (const EbbKernelFunc *kernels,
                               EbbDType dtype)
{
  g_autofree Update *u = g_new0 (Update, 1);
  g_autofree Update *before = NULL;
  g_autofree double *m = g_new (double, N), *v = g_new (double, N);
  float back_m[N], back_v[N];

  fill (u, kernels, dtype, m, v);
  before = g_memdup2 (u, sizeof *u);
  update (kernels, u, 3);
  if (dtype == EBB_DTYPE_U8)
    {
      decode (kernels, u->m, u->absmax[0], N, TRUE, back_m);
      decode (kernels, u->v, u->absmax[1], N, FALSE, back_v);
    }
  for (int i = 0; i < N; i++)
    {
      double g = 0.5 * before->grad[i], scale[] = { u->absmax[0][i / EBB_MOMENT_BLOCK],
                                                    u->absmax[1][i / EBB_MOMENT_BLOCK] };
      double bounds[2], step;

      m[i] += 0.1 * (g - m[i]);
      v[i] += 0.001 * (g * g - v[i]);
      step = 1e-2 / (1 - pow (0.9, 3)) * m[i] / (sqrt (v[i] / (1 - pow (0.999, 3))) + 1e-8);
      g_assert_cmpfloat_with_epsilon (u->parameter[i], before->parameter[i] * (1 - 1e-3) - step, 1e-6);
      if (dtype == EBB_DTYPE_BF16)
        {
          back_m[i] = bf16_to_float (((guint16 *) u->m)[i]);
          back_v[i] = bf16_to_float (((guint16 *) u->v)[i]);
          bounds[0] = ldexp (fabs (m[i]), -8) * 1.001;
          bounds[1] = ldexp (v[i], -7) * 1.001;
        }
      else
        {
          bounds[0] = get_bound (m[i] / scale[0], TRUE) * scale[0] * 1.01;
          bounds[1] = get_bound (v[i] / scale[1], FALSE) * scale[1] * 1.01;
        }
      g_assert_cmpfloat (fabs (back_m[i] - m[i]), <=, bounds[0]);
      g_assert_cmpfloat (fabs (back_v[i] - v[i]), <=, bounds[1]);
    }
}

/* Equal elements of a block are rounded by draws of their own. */
static void
equal_elements_round_differently (const EbbKernelFunc *kernels)
{
  const int half = EBB_MOMENT_BLOCK / 2;
  g_autofree Update *u = g_new0 (Update, 1);
  guint16 *v = (guint16 *) u->v;

  u->dtype = EBB_DTYPE_BF16;
  for (int i = 0; i < N; i++)
    u->grad[i] = 0.99013f; /* the moment lies half-way between two numbers of bf16 */
  update (kernels, u, 1);
  for (int i = 0; i < half; i += 8)
    g_assert_cmpint (memcmp (v + i, v + half + i, 8 * sizeof *v), !=, 0);
}

/* With gradients of 0 the second moment halves in 693 steps. Rounded to the nearest it stays where it was. */
static void
a_second_moment_comes_down (const EbbKernelFunc *kernels)
{
  g_autofree Update *u = g_new0 (Update, 1);
  guint16 nearest = float_to_bf16 (1), *v = (guint16 *) u->v;
  double mean = 0;

  u->dtype = EBB_DTYPE_BF16;
  for (int i = 0; i < N; i++)
    v[i] = float_to_bf16 (1);
  for (int step = 1; step <= 693; step++)
    {
      update (kernels, u, step);
      nearest = float_to_bf16 (0.999f * bf16_to_float (nearest));
    }
  for (int i = 0; i < N; i++)
    mean += bf16_to_float (v[i]) / N;
  g_assert_cmpfloat_with_epsilon (mean, 0.5, 0.005);
  g_assert_cmpfloat (bf16_to_float (nearest), >, 0.99);
}

/* Where it goes up or down depends on the step and the element, not on how many threads there are. */
static void
threads_change_no_bit (const EbbKernelFunc *kernels,
                       EbbDType dtype)
{
  g_autofree float *grad = g_new0 (float, 1 << 17), *p = g_new0 (float, 1 << 17);
  g_autofree guint16 *m1 = g_new0 (guint16, 1 << 17), *m2 = g_new0 (guint16, 1 << 17);
  g_autofree guint16 *v1 = g_new0 (guint16, 1 << 17), *v2 = g_new0 (guint16, 1 << 17);
  g_autofree float *scales = g_new0 (float, 4 << 9);
  guint16 *ms[] = { m1, m2 }, *vs[] = { v1, v2 };

  for (int i = 0; i < 1 << 17; i++)
    grad[i] = (float) next_uniform (-1, 1);
  for (int t = 0; t < 2; t++)
    {
      const EbbLaunchItem item = { .data = { grad, p, ms[t], vs[t], scales + 1024 * t, scales + 1024 * t + 512 },
                                   .n_elements = 1 << 17 };
      EbbLaunch launch = { .kernel = EBB_KERNEL_ADAMW, .n_items = 1, .items = &item };

      launch.params.adamw.grad_dtype = EBB_DTYPE_F32;
      launch.params.adamw.moment_dtype = dtype;
      launch.params.adamw.beta1 = 0.9;
      launch.params.adamw.beta2 = 0.999;
      launch.params.adamw.eps = 1e-8;
      launch.params.adamw.grad_scale = 1;
      ebb_cpu_set_n_threads (t == 0 ? 1 : 3);
      for (launch.params.adamw.step = 1; launch.params.adamw.step < 4; launch.params.adamw.step++)
        {
          launch.params.adamw.philox.offset = (guint64) launch.params.adamw.step << 40;
          g_assert_true (test_kernel_run (kernels[launch.kernel], &launch, NULL));
        }
    }
  ebb_cpu_set_n_threads (0);
  g_assert_cmpmem (ms[0], 2 << 17, ms[1], 2 << 17);
  g_assert_cmpmem (vs[0], 2 << 17, vs[1], 2 << 17);
  g_assert_cmpmem (scales, 4096, scales + 1024, 4096);
}

static void
on_each_instruction_set (gconstpointer data)
{
  for (guint i = 0; i < G_N_ELEMENTS (simd_names); i++)
    {
      const EbbKernelFunc *kernels = ebb_cpu_find_variant (simd_names[i]).kernels;

      g_test_message ("%s: %s", simd_names[i], kernels ? "runs" : "not here");
      if (kernels != NULL)
        ((void (*) (const EbbKernelFunc *)) data) (kernels);
    }
}

#define FOR_DTYPE(name)                                       \
  static void name##_in_bf16 (const EbbKernelFunc *kernels)   \
  {                                                           \
    name (kernels, EBB_DTYPE_BF16);                           \
  }                                                           \
  static void name##_in_8_bits (const EbbKernelFunc *kernels) \
  {                                                           \
    name (kernels, EBB_DTYPE_U8);                             \
  }

FOR_DTYPE (an_update_follows_its_formula)
FOR_DTYPE (threads_change_no_bit)

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
#define ADD(path, func) g_test_add_data_func (path, (gconstpointer) func, on_each_instruction_set)
  ADD ("/moments/each-code-means-what-is-defined", each_code_means_what_is_defined);
  ADD ("/moments/an-element-is-in-its-cell", an_element_is_in_its_cell);
  ADD ("/moments/odd-blocks-stay-what-they-are", odd_blocks_stay_what_they_are);
  ADD ("/moments/an-update-follows-its-formula/bf16", an_update_follows_its_formula_in_bf16);
  ADD ("/moments/an-update-follows-its-formula/8bit", an_update_follows_its_formula_in_8_bits);
  ADD ("/moments/equal-elements-round-differently", equal_elements_round_differently);
  ADD ("/moments/a-second-moment-comes-down-in-bf16", a_second_moment_comes_down);
  ADD ("/moments/threads-change-no-bit/bf16", threads_change_no_bit_in_bf16);
  ADD ("/moments/threads-change-no-bit/8bit", threads_change_no_bit_in_8_bits);
  return g_test_run ();
}
