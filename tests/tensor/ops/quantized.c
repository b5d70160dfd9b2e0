/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers kernels */

/* Quantised weights of linear layers: their codes and their errors, products and gradients against float64, the same
 * bits whatever the threads, and what bitsandbytes computes. */

#include <math.h>
#include <string.h>

#include "nn/layers/layer-private.h"
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"
#include "tensor/ops/quantized-private.h"
#include "tensor/util/half-private.h"

static const EbbQuantization quantizations[] = { EBB_QUANTIZATION_INT8, EBB_QUANTIZATION_NF4 };

/* A layer with random weights before it is quantised, which *@values then has. */
static EbbLinear *
new_layer (EbbQuantization quantization,
           gint64 n_rows,
           gint64 n_columns,
           EbbTensor **values)
{
  g_autoptr (GError) error = NULL;
  EbbModule *layer = ebb_linear_new ((int) n_columns, (int) n_rows, TRUE, &error);
  g_autoptr (EbbTensor) weight = NULL;

  g_assert_no_error (error);
  weight = ebb_module_get_parameter (layer, "weight");
  if (values != NULL)
    *values = ebb_tensor_ref (weight);
  g_assert_true (ebb_quantize (layer, quantization, &error));
  g_assert_no_error (error);
  g_assert_cmpint (ebb_get_quantization (layer), ==, quantization);
  return (EbbLinear *) layer;
}

static EbbTensor *
decode (EbbLinear *layer,
        EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *decoded = ebb_linear_dequantize (layer, dtype, &error);

  g_assert_no_error (error);
  return decoded;
}

/* -- codes --------------------------------------------------------------------------------------------------------- */

/* The tensors of a weight, each read once. */
typedef struct
{
  const EbbQuantizedWeight *weight;
  const guint8 *codes;
  gconstpointer absmax;
  const float *nested_absmax, *nested_map, *nested_offset;
} Bytes;

static Bytes
read_bytes (EbbLinear *layer)
{
  const EbbQuantizedWeight *weight = &layer->quantized;
  const gboolean is_nf4 = weight->quantization == EBB_QUANTIZATION_NF4;

  return (Bytes){ .weight = weight,
                  .codes = test_read (weight->codes),
                  .absmax = test_read (weight->absmax),
                  .nested_absmax = is_nf4 ? test_read (weight->nested_absmax) : NULL,
                  .nested_map = is_nf4 ? test_read (weight->nested_map) : NULL,
                  .nested_offset = is_nf4 ? test_read (weight->nested_offset) : NULL };
}

static float
get_scale (const Bytes *bytes,
           gint64 element)
{
  const gint64 block = element / EBB_NF4_BLOCK;

  if (bytes->weight->quantization == EBB_QUANTIZATION_INT8)
    return ((const float *) bytes->absmax)[element / bytes->weight->n_columns];
  return bytes->nested_map[((const guint8 *) bytes->absmax)[block]] * bytes->nested_absmax[block / EBB_NF4_NESTED_BLOCK]
         + *bytes->nested_offset;
}

/* The values of the published code book by hand, from the bytes. */
static double
get_expected (const Bytes *bytes,
              gint64 element)
{
  const guint8 *codes = bytes->codes;

  if (bytes->weight->quantization == EBB_QUANTIZATION_INT8)
    return (double) (gint8) codes[element] * (double) get_scale (bytes, element) / 127.0;
  return (double) ebb_nf4_codes[element % 2 != 0 ? codes[element / 2] & 15 : codes[element / 2] >> 4]
         * (double) get_scale (bytes, element);
}

/* Half of the widest gap of the code book beside the block's scale, or half a step of int8. */
static void
check_errors (EbbQuantization quantization,
              gint64 n_rows,
              gint64 n_columns)
{
  g_autoptr (EbbTensor) values = NULL;
  g_autoptr (EbbLinear) layer = new_layer (quantization, n_rows, n_columns, &values);
  g_autoptr (EbbTensor) decoded = decode (layer, EBB_DTYPE_F32);
  const float *before = test_read (values), *after = test_read (decoded);
  const Bytes bytes = read_bytes (layer);
  const gint64 n = n_rows * n_columns, group = quantization == EBB_QUANTIZATION_NF4 ? EBB_NF4_BLOCK : n_columns;

  for (gint64 first = 0; first < n; first += group)
    {
      const double scale = (double) get_scale (&bytes, first);
      double absmax = 0, bound;

      for (gint64 i = first; i < MIN (first + group, n); i++)
        absmax = MAX (absmax, fabs ((double) before[i]));
      bound = quantization == EBB_QUANTIZATION_NF4 ? 0.15191 * absmax + fabs (scale - absmax) : absmax / 253.99;
      for (gint64 i = first; i < MIN (first + group, n); i++)
        {
          g_assert_cmpfloat (fabs ((double) before[i] - (double) after[i]), <=, bound);
          g_assert_cmpfloat (fabs (get_expected (&bytes, i) - (double) after[i]), <=, 2.5e-7 * fabs (scale));
        }
      /* The scale's own error: half of the widest gap of its map. */
      g_assert_cmpfloat (fabs (scale - absmax), <=, 0.008 * absmax);
    }
}

static void
errors_are_bounded_by_the_code_book (void)
{
  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      check_errors (quantizations[q], 40, 128);
      check_errors (quantizations[q], 3, 37);
      check_errors (quantizations[q], 300, 77);
      check_errors (quantizations[q], 1, 1);
    }
}

/* The reciprocal of the largest distance of these scales from their mean is no number. */
static void
scales_near_zero_have_codes (void)
{
  static const float largest[] = { 0, 1e-40f, 5e-41f };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) values = ebb_zeros ((gint64[]){ 3, 64 }, 2, EBB_DTYPE_F32, ebb_device_get_cpu (), &error);
  g_autoptr (EbbTensor) decoded = NULL;
  EbbQuantizedWeight weight;
  const float *read;

  for (int i = 0; i < 3; i++)
    ((float *) ebb_tensor_get_data (values, &error))[64 * i] = largest[i];
  g_assert_no_error (error);
  g_assert_true (ebb_quantized_weight_init (&weight, EBB_QUANTIZATION_NF4, 3, 64, test_device (), &error));
  g_assert_true (ebb_quantized_weight_encode (&weight, values, &error));
  decoded = ebb_quantized_decode (&weight, EBB_DTYPE_F32, &error);
  g_assert_no_error (error);
  read = test_read (decoded);
  for (int i = 0; i < 3 * 64; i++)
    g_assert_cmpfloat (fabsf (read[i]), <=, 2e-40f);
  ebb_quantized_weight_clear (&weight);
}

static void
equals_bitsandbytes (void)
{
  static const char *const cases[] = { "wide", "short", "row" };
  g_autoptr (EbbArgs) fixture = test_load_fixture ("quantized.safetensors");

  for (gsize i = 0; i < G_N_ELEMENTS (cases); i++)
    for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
      {
        const gboolean is_nf4 = quantizations[q] == EBB_QUANTIZATION_NF4;
        g_autoptr (EbbTensor) there = test_fixture_tensor (fixture, "%s.values", cases[i]);
        g_autoptr (EbbTensor) codes = test_fixture_tensor (fixture, "%s.%s", cases[i], is_nf4 ? "weight" : "int8");
        g_autoptr (EbbTensor) absmax = test_fixture_tensor (fixture, "%s.%s", cases[i], is_nf4 ? "absmax" : "scb");
        g_autoptr (EbbTensor) decoded = test_fixture_tensor (fixture, "%s.decoded", cases[i]);
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbTensor) values = ebb_to_device (there, ebb_device_get_cpu (), &error);
        const gint64 *shape = ebb_tensor_get_shape (values, NULL);
        EbbQuantizedWeight weight;

        g_assert_true (
            ebb_quantized_weight_init (&weight, quantizations[q], shape[0], shape[1], test_device (), &error));
        g_assert_true (ebb_quantized_weight_encode (&weight, values, &error));
        g_assert_no_error (error);
        g_assert_cmpmem (test_read (weight.codes), ebb_tensor_get_n_bytes (weight.codes), test_read (codes),
                         ebb_tensor_get_n_bytes (codes));
        g_assert_cmpmem (test_read (weight.absmax), ebb_tensor_get_n_bytes (weight.absmax), test_read (absmax),
                         ebb_tensor_get_n_bytes (absmax));
        if (is_nf4)
          {
            g_autoptr (EbbTensor) own = ebb_quantized_decode (&weight, EBB_DTYPE_F32, &error);
            g_autoptr (EbbTensor) nested = test_fixture_tensor (fixture, "%s.nested_absmax", cases[i]);
            g_autoptr (EbbTensor) map = test_fixture_tensor (fixture, "%s.nested_map", cases[i]);
            g_autoptr (EbbTensor) offset = test_fixture_tensor (fixture, "%s.nested_offset", cases[i]);
            g_autoptr (EbbTensor) book = test_fixture_tensor (fixture, "%s.quant_map", cases[i]);

            g_assert_cmpmem (test_read (weight.nested_map), 1024, test_read (map), 1024);
            g_assert_cmpmem (ebb_nf4_codes, sizeof ebb_nf4_codes, test_read (book), sizeof ebb_nf4_codes);
            g_assert_cmpfloat (test_relative_difference (own, decoded), <=,
                               ebb_tensor_get_dtype (values) == EBB_DTYPE_BF16 ? 0.003 : 2e-7);
            /* A mean, whose sum has another order there. */
            g_assert_cmpfloat_with_epsilon (test_at (weight.nested_offset, 0), test_at (offset, 0),
                                            2e-7 * (double) test_at (offset, 0));
            g_assert_cmpfloat (test_difference (weight.nested_absmax, nested), <=, 2e-7 * (double) test_at (offset, 0));
          }
        ebb_quantized_weight_clear (&weight);
      }
}

/* -- products ------------------------------------------------------------------------------------------------------ */

/* All elements, which the caller frees. */
static double *
read_doubles (EbbTensor *tensor)
{
  const gint64 n = ebb_tensor_get_n_elements (tensor);
  const gboolean is_f32 = ebb_tensor_get_dtype (tensor) == EBB_DTYPE_F32;
  gconstpointer from = test_read (tensor);
  double *values = g_new (double, n);

  for (gint64 i = 0; i < n; i++)
    values[i] =
        (double) (is_f32 ? ((const float *) from)[i] : ebb_bf16_to_float (((const guint16 *) from)[i]));
  return values;
}

/* Element (i, j) of y is the sum over k of a[i, k] b[j, k], b with the strides given, and bias[j], which a GPU rounds
 * to the dtype of y before it adds it. */
static void
check_against_f64 (EbbTensor *y,
                   EbbTensor *a,
                   EbbTensor *b,
                   gint64 b_row,
                   gint64 b_column,
                   EbbTensor *bias,
                   gint64 m,
                   gint64 n,
                   gint64 k)
{
  const double rounding = ebb_tensor_get_dtype (y) == EBB_DTYPE_BF16 ? 0.004 : 0;
  g_autofree double *ys = read_doubles (y);
  g_autofree double *as = read_doubles (a);
  g_autofree double *bs = read_doubles (b);
  g_autofree double *biases = bias != NULL ? read_doubles (bias) : NULL;

  for (gint64 i = 0; i < m; i++)
    for (gint64 j = 0; j < n; j++)
      {
        double sum = bias != NULL ? biases[j] : 0, size = fabs (sum);
        const double rounded = test_device_is_cpu () ? 0 : fabs (sum);

        for (gint64 l = 0; l < k; l++)
          {
            const double term = as[i * k + l] * bs[j * b_row + l * b_column];

            sum += term;
            size += fabs (term);
          }
        g_assert_cmpfloat (fabs (ys[i * n + j] - sum), <=,
                           2e-6 * size + rounding * (fabs (sum) + rounded) + 1e-30);
      }
}

static void
check_product (EbbQuantization quantization,
               EbbDType dtype,
               gint64 m,
               gint64 n_rows,
               gint64 n_columns)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (quantization, n_rows, n_columns, NULL);
  g_autoptr (EbbTensor) weight = decode (layer, dtype);
  g_autoptr (EbbTensor) drawn = test_randn (5, m, n_columns, -1);
  g_autoptr (EbbTensor) x = ebb_cast (drawn, dtype, &error);
  g_autoptr (EbbTensor) sent_f32 = test_randn (6, m, n_rows, -1);
  g_autoptr (EbbTensor) sent = ebb_cast (sent_f32, dtype, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) dx = NULL;
  g_autoptr (EbbTensor) db = NULL;
  g_autofree double *dbs = NULL;
  g_autofree double *sents = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  y = ebb_module_call1 (EBB_MODULE (layer), x, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (y), ==, dtype);
  check_against_f64 (y, x, weight, n_columns, 1, layer->bias, m, n_rows, n_columns);
  g_assert_true (ebb_backward (&y, 1, &sent, 1, NULL, 0, FALSE, &error));
  g_assert_no_error (error);
  dx = ebb_tensor_get_grad (x);
  g_assert_cmpint (ebb_tensor_get_dtype (dx), ==, dtype);
  check_against_f64 (dx, sent, weight, 1, n_columns, NULL, m, n_columns, n_rows);
  db = ebb_tensor_get_grad (layer->bias);
  dbs = read_doubles (db);
  sents = read_doubles (sent);
  for (gint64 j = 0; j < n_rows; j++)
    {
      double sum = 0, size = 0;

      for (gint64 i = 0; i < m; i++)
        {
          sum += sents[i * n_rows + j];
          size += fabs (sents[i * n_rows + j]);
        }
      g_assert_cmpfloat (fabs (dbs[j] - sum), <=, 1e-6 * size);
    }
}

static void
products_and_gradients_equal_f64 (void)
{
  static const gint64 sizes[][3] = { { 5, 7, 3 }, { 1, 130, 64 }, { 3, 65, 129 }, { 33, 40, 192 }, { 20, 9, 31 } };

  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    for (gsize i = 0; i < G_N_ELEMENTS (sizes); i++)
      {
        check_product (quantizations[q], EBB_DTYPE_F32, sizes[i][0], sizes[i][1], sizes[i][2]);
        check_product (quantizations[q], EBB_DTYPE_BF16, sizes[i][0], sizes[i][1], sizes[i][2]);
      }
}

/* Several panels in both directions: of 4 MiB on the CPU. */
static void
products_of_several_panels_equal_f64 (void)
{
  if (test_device_is_slow ())
    {
      g_test_skip ("the emulated GPU is slow");
      return;
    }
  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      check_product (quantizations[q], EBB_DTYPE_F32, 2, 1300, 1000);
      check_product (quantizations[q], EBB_DTYPE_BF16, 17, 1700, 1300);
    }
}

/* A kernel that reads codes alone, whose bits depend neither on other rows nor on the panels that there might be. */
static void
few_rows_have_the_bits_of_the_dequantised_weight (void)
{
  static const gint64 sizes[][3] = {
    { 1, 300, 257 },
    { 4, 258, 640 },
    { 16, 3000, 131 },
    { 1, 259, 640 },
    { 2, 517, 128 },
    /* Weights below the least for which it is taken and of it, and the first number of rows that is too great. */
    { 16, 255, 128 },
    { 16, 256, 128 },
    { 17, 256, 128 }
  };

  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    for (gsize i = 0; i < 2 * G_N_ELEMENTS (sizes); i++)
      {
        const EbbDType dtype = i % 2 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
        const gint64 *size = sizes[i / 2];
        g_autoptr (GError) error = NULL;
        g_autoptr (EbbLinear) layer = new_layer (quantizations[q], size[1], size[2], NULL);
        g_autoptr (EbbTensor) weight = decode (layer, dtype);
        g_autoptr (EbbTensor) drawn = test_randn (5, size[0], size[2], -1);
        g_autoptr (EbbTensor) x = ebb_cast (drawn, dtype, &error);
        g_autoptr (EbbTensor) last = ebb_narrow (x, 0, size[0] - 1, 1, &error);
        g_autoptr (EbbTensor) y = ebb_module_call1 (EBB_MODULE (layer), x, &error);
        g_autoptr (EbbTensor) y_last = ebb_module_call1 (EBB_MODULE (layer), last, &error);
        g_autoptr (EbbTensor) of_y = ebb_narrow (y, 0, size[0] - 1, 1, &error);
        g_autoptr (EbbTensor) expected = ebb_linear (x, weight, layer->bias, &error);

        g_assert_no_error (error);
        if (test_device_is_cpu ())
          {
            g_assert_true (ebb_tensor_equal (y, expected));
            if (EBB_HAS_FEW_ROWS (size[0], size[1], size[2]))
              g_assert_true (ebb_tensor_equal (y_last, of_y));
          }
      }
}

static const char *program;

/* Which kernels are used is settled when the first one runs, so each instruction set has a process of its own. */
static void
each_instruction_set_has_products (void)
{
  static const char *const names[] = { "portable", "avx2", "avx512", "avx512bf16" };

  for (gsize i = 0; test_device_is_cpu () && i < G_N_ELEMENTS (names); i++)
    {
      const char *argv[] = { program, "-p", "/quantized/products-and-gradients-equal-f64", "-p",
                             "/quantized/few-rows-have-the-bits-of-the-dequantised-weight", NULL };
      g_auto (GStrv) environment = g_environ_setenv (g_get_environ (), "EBB_CPU_SIMD", names[i], TRUE);
      g_autofree char *output = NULL;
      g_autofree char *messages = NULL;
      g_autoptr (GError) error = NULL;
      int status;

      g_spawn_sync (NULL, (char **) argv, environment, G_SPAWN_DEFAULT, NULL, NULL, &output, &messages, &status,
                    &error);
      g_assert_no_error (error);
      if (i > 0 && strstr (messages, "does not have") != NULL)
        {
          g_test_message ("%s: not on this processor or in this build", names[i]);
          continue;
        }
      g_spawn_check_wait_status (status, &error);
      if (error != NULL)
        g_error ("%s: %s: %s%s", names[i], error->message, output, messages);
      g_assert_nonnull (strstr (output, "ok 2 "));
    }
}

static void
gradients_add_up (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (EBB_QUANTIZATION_NF4, 24, 70, NULL);
  g_autoptr (EbbTensor) x = test_randn (5, 4, 70, -1);
  g_autoptr (EbbTensor) once = NULL;
  g_autoptr (EbbTensor) twice = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
  for (int i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = ebb_module_call1 (EBB_MODULE (layer), x, &error);
      g_autoptr (EbbTensor) sum = ebb_sum (y, NULL, 0, FALSE, &error);

      g_assert_true (ebb_tensor_backward (sum, &error));
      g_assert_no_error (error);
      if (i == 0)
        {
          g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (x);

          once = ebb_mul_scalar (grad, 2, &error);
        }
    }
  twice = ebb_tensor_get_grad (x);
  test_assert_near (once, twice, 1e-6);
}

/* Autocast gives what bf16 gives. */
static void
autocast_casts_the_input (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (EBB_QUANTIZATION_NF4, 24, 70, NULL);
  g_autoptr (EbbTensor) x = test_randn (5, 4, 70, -1);
  g_autoptr (EbbTensor) cast = ebb_cast (x, EBB_DTYPE_BF16, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) expected = ebb_module_call1 (EBB_MODULE (layer), cast, &error);

  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  y = ebb_module_call1 (EBB_MODULE (layer), x, &error);
  ebb_pop_autocast ();
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (y), ==, EBB_DTYPE_BF16);
  test_assert_near (y, expected, 0);
}

static void
threads_change_no_bit (void)
{
  g_autoptr (GError) error = NULL;

  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      g_autoptr (EbbTensor) values = NULL;
      g_autoptr (EbbLinear) layer = new_layer (quantizations[q], 1000, 1200, &values);
      g_autoptr (EbbTensor) x = test_randn (5, 40, 1200, -1);
      EbbTensor *results[2], *grads[2];
      EbbQuantizedWeight again;

      g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, &error));
      for (int n = 0; n < 2; n++)
        {
          g_autoptr (EbbTensor) sum = NULL;
          g_autoptr (EbbTensor) square = NULL;

          ebb_set_num_threads (n + 1);
          ebb_tensor_zero_grad (x);
          results[n] = ebb_module_call1 (EBB_MODULE (layer), x, &error);
          square = ebb_square (results[n], &error);
          sum = ebb_sum (square, NULL, 0, FALSE, &error);
          g_assert_true (ebb_tensor_backward (sum, &error));
          grads[n] = ebb_tensor_get_grad (x);
        }
      test_assert_near (results[0], results[1], 0);
      test_assert_near (grads[0], grads[1], 0);
      for (int n = 0; n < 2; n++)
        {
          ebb_tensor_unref (results[n]);
          ebb_tensor_unref (grads[n]);
        }
      ebb_set_num_threads (1);
      if (test_device_is_cpu ())
        {
          g_assert_true (ebb_quantized_weight_init (&again, quantizations[q], 1000, 1200, test_device (), &error));
          g_assert_true (ebb_quantized_weight_encode (&again, values, &error));
          test_assert_near (again.codes, layer->quantized.codes, 0);
          ebb_quantized_weight_clear (&again);
        }
      ebb_set_num_threads (2);
    }
}

/* -- memory and errors --------------------------------------------------------------------------------------------- */

static guint64
get_parameter_bytes (void)
{
  EbbMemoryStats *stats = ebb_memory_get_stats (test_device ());
  const guint64 n = ebb_memory_stats_get_current (stats, EBB_PURPOSE_PARAMETER);

  ebb_memory_stats_free (stats);
  return n;
}

/* 0.5 + 1 / 64 + 4 / 16384 bytes an element in nf4, beside the map and the offset; 1 and 4 for a row in int8. */
static void
bytes_are_counted_as_parameters (void)
{
  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      const guint64 before = get_parameter_bytes ();
      g_autoptr (EbbLinear) layer = new_layer (quantizations[q], 512, 1024, NULL);
      const guint64 n = 512 * 1024;
      const guint64 expected = quantizations[q] == EBB_QUANTIZATION_NF4 ? n / 2 + n / 64 + n / 4096 + 1024 + 4
                                                                        : n + 512 * 4;

      g_assert_cmpuint (get_parameter_bytes () - before, ==, expected + 512 * 4);
      g_assert_nonnull (layer);
    }
}

static void
a_weight_has_no_gradient (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (EBB_QUANTIZATION_NF4, 8, 16, NULL);
  g_autoptr (EbbTensor) weight = ebb_module_get_buffer (EBB_MODULE (layer), "weight");
  g_autoptr (EbbTensor) x = test_randn (5, 2, 15, -1);

  g_assert_null (ebb_module_get_parameter (EBB_MODULE (layer), "weight"));
  g_assert_false (ebb_tensor_set_requires_grad (weight, TRUE, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "u8", "quantised", "ebb_lora_wrap");
  g_clear_error (&error);
  g_assert_null (ebb_module_call1 (EBB_MODULE (layer), x, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "[2, 15]", "[8, 16]");
  g_clear_error (&error);
  g_assert_false (ebb_quantize (EBB_MODULE (layer), EBB_QUANTIZATION_INT8, &error));
  test_assert_error (error, EBB_ERROR_STATE, "nf4 already");
}

static void
bad_values_are_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) layer = ebb_linear_new (64, 3, FALSE, &error);
  g_autoptr (EbbModule) norm = ebb_layer_norm_new (8, 1e-5, TRUE, &error);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (layer, "weight");
  g_autoptr (EbbTensor) still = NULL;

  g_assert_false (ebb_quantize (norm, EBB_QUANTIZATION_NF4, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "LayerNorm", "no linear layer");
  g_clear_error (&error);
  g_assert_false (ebb_quantize (layer, EBB_QUANTIZATION_NONE, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "int8 or nf4");
  g_clear_error (&error);
  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (weight, INFINITY, &error));
  ebb_pop_grad_enabled ();
  g_assert_false (ebb_quantize (layer, EBB_QUANTIZATION_NF4, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "not finite", "nf4");
  still = ebb_module_get_parameter (layer, "weight");
  g_assert_true (still == weight);
}

/* Casting a model leaves codes and scales as they are. */
static void
casts_leave_the_weight (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (EBB_QUANTIZATION_NF4, 24, 70, NULL);
  g_autoptr (EbbTensor) before = decode (layer, EBB_DTYPE_F32);
  g_autoptr (EbbTensor) after = NULL;

  g_assert_true (ebb_module_to_dtype (EBB_MODULE (layer), EBB_DTYPE_BF16, &error));
  g_assert_cmpint (ebb_tensor_get_dtype (layer->bias), ==, EBB_DTYPE_BF16);
  after = decode (layer, EBB_DTYPE_F32);
  test_assert_near (before, after, 0);
}

/* A buffer in the place of codes or scales that isn't as theirs. */
static void
check_replaced (EbbQuantization quantization,
                const char *name,
                EbbTensor *buffer)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (quantization, 24, 70, NULL);
  g_autoptr (EbbTensor) x = test_randn (5, 4, 70, -1);

  g_assert_true (ebb_module_register_buffer (EBB_MODULE (layer), name, buffer, TRUE, &error));
  g_assert_null (ebb_module_call1 (EBB_MODULE (layer), x, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "linear: ", name, "[24, 70]");
  g_clear_error (&error);
  g_assert_null (ebb_linear_dequantize (layer, EBB_DTYPE_F32, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "linear_dequantize: ", name, "contiguous");
}

static void
replaced_buffers_are_checked (void)
{
  static const char *const names[] = { "weight", "weight_absmax", "weight_nested_absmax", "weight_nested_map",
                                       "weight_nested_offset" };
  g_autoptr (GError) error = NULL;

  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    {
      g_autoptr (EbbTensor) floats = test_randn (5, 24, 70, -1);
      g_autoptr (EbbTensor) columns = ebb_zeros ((gint64[]){ 70, 24 }, 2, EBB_DTYPE_U8, test_device (), &error);
      g_autoptr (EbbTensor) transposed = ebb_transpose (columns, 0, 1, &error);
      g_autoptr (EbbTensor) few = ebb_zeros ((gint64[]){ 2 }, 1, EBB_DTYPE_F32, test_device (), &error);

      g_assert_no_error (error);
      check_replaced (quantizations[q], "weight", NULL);
      check_replaced (quantizations[q], "weight", floats);
      check_replaced (quantizations[q], "weight", transposed);
      for (gsize i = 0; i < (quantizations[q] == EBB_QUANTIZATION_NF4 ? 5 : 2); i++)
        check_replaced (quantizations[q], names[i], few);
    }
}

static void
the_name_of_a_weight_is_taken (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (EBB_QUANTIZATION_INT8, 24, 70, NULL);
  g_autoptr (EbbTensor) floats = test_randn (5, 24, 70, -1);

  g_assert_false (ebb_module_register_parameter (EBB_MODULE (layer), "weight", floats, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"weight\" can't name a parameter, it is a buffer already");
}

/* The codes of int8 have the shape and the name of the full weight. */
static void
states_of_full_weights_are_refused (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbLinear) layer = new_layer (EBB_QUANTIZATION_INT8, 24, 70, NULL);
  g_autoptr (EbbLinear) other = new_layer (EBB_QUANTIZATION_INT8, 24, 70, NULL);
  g_autoptr (EbbModule) full = ebb_linear_new (70, 24, TRUE, &error);
  g_autoptr (EbbArgs) codes = ebb_module_get_state_dict (EBB_MODULE (other));
  g_autoptr (EbbArgs) floats = ebb_module_get_state_dict (full);

  g_assert_false (ebb_module_load_state_dict (EBB_MODULE (layer), floats, FALSE, &error));
  test_assert_error (error, EBB_ERROR_STATE, "of another dtype (1): weight f32, not u8");
  g_clear_error (&error);
  g_assert_false (ebb_module_load_state_dict (full, codes, FALSE, &error));
  test_assert_error (error, EBB_ERROR_STATE, "of another dtype (1): weight u8, not f32");
  g_clear_error (&error);
  g_assert_true (ebb_module_load_state_dict (EBB_MODULE (layer), codes, TRUE, &error));
  g_assert_no_error (error);
  test_assert_near (layer->quantized.codes, other->quantized.codes, 0);
}

int
main (int argc,
      char **argv)
{
  program = argv[0];
  test_init (&argc, &argv);
  g_test_add_func ("/quantized/errors-are-bounded-by-the-code-book", errors_are_bounded_by_the_code_book);
  g_test_add_func ("/quantized/scales-near-zero-have-codes", scales_near_zero_have_codes);
  g_test_add_func ("/quantized/equals-bitsandbytes", equals_bitsandbytes);
  g_test_add_func ("/quantized/products-and-gradients-equal-f64", products_and_gradients_equal_f64);
  g_test_add_func ("/quantized/products-of-several-panels-equal-f64", products_of_several_panels_equal_f64);
  g_test_add_func ("/quantized/gradients-add-up", gradients_add_up);
  g_test_add_func ("/quantized/few-rows-have-the-bits-of-the-dequantised-weight",
                   few_rows_have_the_bits_of_the_dequantised_weight);
  g_test_add_func ("/quantized/each-instruction-set-has-products", each_instruction_set_has_products);
  g_test_add_func ("/quantized/autocast-casts-the-input", autocast_casts_the_input);
  g_test_add_func ("/quantized/threads-change-no-bit", threads_change_no_bit);
  g_test_add_func ("/quantized/bytes-are-counted-as-parameters", bytes_are_counted_as_parameters);
  g_test_add_func ("/quantized/a-weight-has-no-gradient", a_weight_has_no_gradient);
  g_test_add_func ("/quantized/bad-values-are-refused", bad_values_are_refused);
  g_test_add_func ("/quantized/casts-leave-the-weight", casts_leave_the_weight);
  g_test_add_func ("/quantized/replaced-buffers-are-checked", replaced_buffers_are_checked);
  g_test_add_func ("/quantized/the-name-of-a-weight-is-taken", the_name_of_a_weight_is_taken);
  g_test_add_func ("/quantized/states-of-full-weights-are-refused", states_of_full_weights_are_refused);
  return g_test_run ();
}
