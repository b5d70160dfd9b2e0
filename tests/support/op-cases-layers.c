/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/op-cases.h"

/* Products, attention, normalizations and losses. */

/* -- products ----------------------------------------------------------------------------------------------------- */

static gboolean
run_matmul_transposed (EbbTensor **x,
                       const double *numbers,
                       EbbTensor **y,
                       GError **error)
{
  y[0] = ebb_matmul_transposed (x[0], x[1], numbers[0] != 0, numbers[1] != 0, error);
  return y[0] != NULL;
}

static gboolean
run_linear (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  y[0] = ebb_linear (x[0], x[1], x[2], error);
  return y[0] != NULL;
}

static gboolean
run_add_linear (EbbTensor **x,
                const double *numbers,
                EbbTensor **y,
                GError **error)
{
  y[0] = ebb_add_linear (x[2], x[0], x[1], error);
  return y[0] != NULL;
}

/* 2 [rows, columns] [inner], the inner size being that of the first operand's last dimension */
static double
count_product (EbbTensor **x,
               EbbTensor **y)
{
  return 2.0 * (double) ebb_tensor_get_n_elements (y[0]) * (double) ebb_tensor_get_dim (x[0], -1);
}

/* -- attention ---------------------------------------------------------------------------------------------------- */

static gboolean
run_sdpa (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] =
      ebb_scaled_dot_product_attention (x[0], x[1], x[2], x[3], numbers[0] != 0, numbers[1], numbers[2], NULL, error);
  return y[0] != NULL;
}

/* As a layer makes them: [B, T, H, D] in memory, seen as [B, H, T, D]. */
static gboolean
run_sdpa_swapped (EbbTensor **x,
                  const double *numbers,
                  EbbTensor **y,
                  GError **error)
{
  g_autoptr (EbbTensor) q = ebb_transpose (x[0], 1, 2, error);
  g_autoptr (EbbTensor) k = ebb_transpose (x[1], 1, 2, error);
  g_autoptr (EbbTensor) v = ebb_transpose (x[2], 1, 2, error);
  g_autoptr (EbbTensor) o =
      ebb_scaled_dot_product_attention (q, k, v, x[3], numbers[0] != 0, numbers[1], numbers[2], NULL, error);

  y[0] = ebb_transpose (o, 1, 2, error);
  return y[0] != NULL;
}

static gboolean
run_sdpa_either (EbbTensor **x,
                 const double *numbers,
                 EbbTensor **y,
                 GError **error)
{
  return numbers[3] != 0 ? run_sdpa_swapped (x, numbers, y, error) : run_sdpa (x, numbers, y, error);
}

static double
count_sdpa (EbbTensor **x,
            EbbTensor **y)
{
  return 4.0 * (double) ebb_tensor_get_n_elements (x[0]) * (double) ebb_tensor_get_dim (x[1], 2);
}

/* numbers: the first query (below 0: -1 - it, and queries, keys and values are as a layer makes them), window, softcap,
 * dropout; always causal. */
static gboolean
run_attention (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  gboolean is_swapped = numbers[0] < 0;
  EbbAttentionForm form = { .causal = TRUE,
                            .window = (gint64) numbers[1],
                            .softcap = numbers[2],
                            .dropout_p = numbers[3] };
  g_autoptr (EbbTensor) q = is_swapped ? ebb_transpose (x[0], 1, 2, error) : ebb_tensor_ref (x[0]);
  g_autoptr (EbbTensor) k = is_swapped ? ebb_transpose (x[1], 1, 2, error) : ebb_tensor_ref (x[1]);
  g_autoptr (EbbTensor) v = is_swapped ? ebb_transpose (x[2], 1, 2, error) : ebb_tensor_ref (x[2]);
  g_autoptr (EbbTensor) o = NULL;

  form.first_query = (gint64) (is_swapped ? -1 - numbers[0] : numbers[0]);
  o = ebb_attention (q, k, v, x[3], x[4], &form, NULL, error);
  y[0] = is_swapped ? ebb_transpose (o, 1, 2, error) : g_steal_pointer (&o);
  return y[0] != NULL;
}

/* With starts: the windows and documents of ebb_self_attention_full (). */
static gboolean
run_self_attention_full (EbbTensor **x,
                         const double *numbers,
                         EbbTensor **y,
                         GError **error)
{
  EbbAttentionForm form = { .causal = numbers[0] != 0, .window = (gint64) numbers[1], .softcap = numbers[2] };

  y[0] = ebb_self_attention_full (x[0], (guint) numbers[3], x[1], x[2], &form, NULL, error);
  return y[0] != NULL;
}

static gboolean
run_self_attention (EbbTensor **x,
                    const double *numbers,
                    EbbTensor **y,
                    GError **error)
{
  y[0] = ebb_self_attention (x[0], (guint) numbers[3], x[1], numbers[0] != 0, numbers[1], numbers[2], NULL, error);
  return y[0] != NULL;
}

static double
count_self_attention (EbbTensor **x,
                      EbbTensor **y)
{
  return 4.0 * (double) ebb_tensor_get_n_elements (y[0]) * (double) ebb_tensor_get_dim (y[0], 1);
}

/* Of a causal window of 64: each query has as many keys, as good as. */
static double
count_windowed (EbbTensor **x,
                EbbTensor **y)
{
  return 4.0 * (double) ebb_tensor_get_n_elements (x[0]) * 64;
}

/* -- positions: numbers are the first index, the factor, ntk, and whether x is seen through a transposition -------- */

static gboolean
run_rotary (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  g_autoptr (EbbTensor) swapped = numbers[3] != 0 ? ebb_transpose (x[0], 1, 2, error) : NULL;

  y[0] = ebb_rotary (swapped ?: x[0], x[1], x[2], (gint64) numbers[0], numbers[1], numbers[2], error);
  return y[0] != NULL;
}

/* -- normalizations ----------------------------------------------------------------------------------------------- */

static gboolean
run_layer_norm (EbbTensor **x,
                const double *numbers,
                EbbTensor **y,
                GError **error)
{
  y[0] = ebb_layer_norm (x[0], x[1], x[2], 1e-5, error);
  return y[0] != NULL;
}

static gboolean
run_rms_norm (EbbTensor **x,
              const double *numbers,
              EbbTensor **y,
              GError **error)
{
  y[0] = ebb_rms_norm (x[0], x[1], 1e-6, error);
  return y[0] != NULL;
}

/* The number says whether x[0] is [.., 2 N], of which the second half is normalized. */
static gboolean
run_unit_offset_rms_norm (EbbTensor **x,
                          const double *numbers,
                          EbbTensor **y,
                          GError **error)
{
  gint64 half = ebb_tensor_get_dim (x[0], -1) / 2;
  g_autoptr (EbbTensor) part = numbers[0] != 0 ? ebb_narrow (x[0], -1, half, half, error) : NULL;

  y[0] = ebb_unit_offset_rms_norm (part ?: x[0], x[1], 1e-6, error);
  return y[0] != NULL;
}

/* The running statistics are results too; the operands stay as they are. */
static gboolean
run_batch_norm (EbbTensor **x,
                const double *numbers,
                EbbTensor **y,
                GError **error)
{
  EbbTensor *mean = x[3] != NULL ? ebb_copy (x[3], error) : NULL;
  EbbTensor *var = x[4] != NULL ? ebb_copy (x[4], error) : NULL;

  y[0] = ebb_batch_norm (x[0], x[1], x[2], mean, var, numbers[0] != 0, numbers[1], 1e-5, error);
  y[1] = mean;
  y[2] = var;
  return y[0] != NULL;
}

static gboolean
run_residual_norm (EbbTensor **x,
                   const double *numbers,
                   EbbTensor **y,
                   GError **error)
{
  return ebb_residual_dropout_layer_norm (x[0], x[1], x[2], x[3], 1e-5, numbers[0], numbers[1] != 0, NULL, &y[0], &y[1],
                                          error);
}

static gboolean
run_residual_rms_norm (EbbTensor **x,
                       const double *numbers,
                       EbbTensor **y,
                       GError **error)
{
  return ebb_residual_dropout_rms_norm (x[0], x[1], x[2], x[3], 1e-5, numbers[2] != 0, numbers[0], numbers[1] != 0,
                                        NULL, &y[0], &y[1], error);
}

static gboolean
run_residual_dropout (EbbTensor **x,
                      const double *numbers,
                      EbbTensor **y,
                      GError **error)
{
  y[0] = ebb_residual_dropout (x[0], x[1], numbers[0], numbers[1] != 0, NULL, error);
  return y[0] != NULL;
}

/* -- losses: numbers are the target to ignore, the smoothing, the reduction ---------------------------------------- */

static gboolean
run_cross_entropy_full (EbbTensor **x,
                        const double *numbers,
                        EbbTensor **y,
                        GError **error)
{
  y[0] = ebb_cross_entropy_full (x[0], x[1], (gint64) numbers[0], numbers[1], (EbbReduction) numbers[2], error);
  return y[0] != NULL;
}

static gboolean
run_fused_linear_cross_entropy (EbbTensor **x,
                                const double *numbers,
                                EbbTensor **y,
                                GError **error)
{
  y[0] = ebb_fused_linear_cross_entropy (x[0], x[1], x[2], x[3], (gint64) numbers[0], numbers[1],
                                         (EbbReduction) numbers[2], error);
  return y[0] != NULL;
}

/* The fourth number is the cap. */
static gboolean
run_fused_linear_cross_entropy_full (EbbTensor **x,
                                     const double *numbers,
                                     EbbTensor **y,
                                     GError **error)
{
  y[0] = ebb_fused_linear_cross_entropy_full (x[0], x[1], x[2], x[3], (gint64) numbers[0], numbers[1], numbers[3],
                                              (EbbReduction) numbers[2], error);
  return y[0] != NULL;
}

static double
count_fused_linear_cross_entropy (EbbTensor **x,
                                  EbbTensor **y)
{
  return 2.0 * (double) ebb_tensor_get_n_elements (x[0]) * (double) ebb_tensor_get_dim (x[1], 0);
}

/* -- the table ---------------------------------------------------------------------------------------------------- */

const OpCase op_cases_layers[] = {
  { .name = "matmul",
    .binary = ebb_matmul,
    .variants = { { "n:5x7 n:7x3" },
                  { "n:2x3x4 n:4x5" },
                  { "n:2x3x4 n:2x4x5" },
                  { "n:3x1x2x4 n:2x4x5" },
                  { "n:4 n:4" },
                  { "n:4 n:2x4x3" },
                  { "n:2x3x4t n:4" },
                  { "n:40x33t n:33x50t" },
                  { "h:5x7 h:7x3" },
                  { "h:2x20x33 n:33x50" } },
    .timing = { "n:1024x768 n:768x3072" },
    .count_operations = count_product },
  { .name = "matmul_transposed",
    .run = run_matmul_transposed,
    .variants = { { "n:7x5 n:7x3", { 1, 0 } },
                  { "n:5x7 n:3x7", { 0, 1 } },
                  { "n:7x5 n:3x7", { 1, 1 } },
                  { "n:2x4x3 n:5x4", { 1, 1 } },
                  { "n:2x3x4 n:5x4", { 0, 1 } },
                  { "n:2x4x3 n:3x1x4x5", { 1, 0 } },
                  { "n:4 n:3x4", { 1, 1 } },
                  { "h:33x40 h:50x33t", { 1, 1 } } },
    .timing = { "n:1024x768 n:3072x768", { 0, 1 } },
    .count_operations = count_product },
  { .name = "linear",
    .run = run_linear,
    .variants = { { "n:5x7 n:3x7 n:3" },
                  { "n:2x3x7 n:4x7 -" },
                  { "n:7 n:3x7 n:3" },
                  { "n:7x5t n:3x5t n:3" },
                  { "c:5x7 n:3x7 n:3" },
                  { "n:5x7 c:3x7 n:3" },
                  { "c:5x7 c:3x7 n:3" },
                  { "n:40x33 n:50x33 n:50" },
                  { "h:5x7 n:3x7 n:3" },
                  { "h:40x33 h:50x33 h:50" } },
    .timing = { "n:4x256x768 n:3072x768 n:3072" },
    .count_operations = count_product },

  { .name = "add_linear",
    .run = run_add_linear,
    .variants = { { "n:5x7 n:3x7 n:5x3" },
                  { "n:2x3x7 n:4x7 n:2x3x4" },
                  { "n:7x5t n:3x5t n:7x3t" },
                  { "c:5x7 n:3x7 n:5x3" },
                  { "n:5x7 n:3x7 c:5x3" },
                  { "n:40x33 n:50x33 n:40x50" },
                  { "h:40x33 h:50x33 h:40x50" } },
    .timing = { "n:4x256x16 n:3072x16 n:4x256x3072" },
    .count_operations = count_product },

  { .name = "scaled_dot_product_attention",
    .tolerance = 2e-5,
    .run = run_sdpa_either,
    .variants = { { "n:2x3x5x4 n:2x3x5x4 n:2x3x5x4 -", { 0, 0, 0 } },
                  { "n:2x2x7x8 n:2x2x7x8 n:2x2x7x8 -", { 1, 0.3, 0 } },
                  { "n:1x2x5x4 n:1x2x9x4 n:1x2x9x4 b:5x9", { 0, 0, 0 } },
                  { "n:2x4x5x4 n:2x2x6x4 n:2x2x6x4 b:2x1x1x6", { 1, 0, 0 } },
                  { "n:2x2x5x4 n:2x2x5x4 n:2x2x5x4 c:1x2x5x5", { 0, 0, 0 } },
                  { "n:2x2x5x4 n:2x2x5x4 n:2x2x5x4 -", { 1, 0, 0.4 } },
                  { "n:2x5x3x4 n:2x6x3x4 n:2x6x3x4 b:2x1x1x6", { 0, 0, 0, 1 } },
                  { "n:1x2x70x16 n:1x2x70x16 n:1x2x70x16 -", { 1, 0, 0.1 } },
                  { "h:2x2x9x8 h:2x2x9x8 h:2x2x9x8 b:9x9", { 1, 0, 0 } },
                  { "n:2x3x5x4t h:2x3x5x4 h:2x3x5x4 -", { 0, 0, 0 } } },
    .timing = { "n:4x12x256x64 n:4x12x256x64 n:4x12x256x64 -", { 0, 0, 0 } },
    .count_operations = count_sdpa },
  { .name = "attention",
    .tolerance = 2e-5,
    .run = run_attention,
    .variants = { { "n:2x3x5x4 n:2x3x5x4 n:2x3x5x4 - -", { 0, 0, 0, 0 } },
                  { "n:2x4x9x4 n:2x2x9x4 n:2x2x9x4 - -", { 0, 4, 0, 0 } },
                  { "n:2x4x9x4 n:2x2x9x4 n:2x2x9x4 - i6:2x9", { 0, 0, 0, 0 } },
                  { "n:2x9x4x4 n:2x9x2x4 n:2x9x2x4 - j9:9", { -1, 5, 1.5, 0 } },
                  { "n:2x4x3x4 n:2x2x9x4 n:2x2x9x4 b:2x1x1x9 i6:2x1", { 6, 0, 0, 0 } },
                  { "n:1x6x1x8 n:1x2x70x8 n:1x2x70x8 - -", { 69, 33, 0, 0 } },
                  { "n:1x4x6x8 n:1x2x9x8 n:1x2x9x8 c:6x9 -", { 3, 0, 2, 0.3 } },
                  { "n:1x2x70x16 n:1x2x70x16 n:1x2x70x16 - i60:1x70", { 0, 20, 0, 0.1 } },
                  { "h:2x9x4x8 h:2x9x2x8 h:2x9x2x8 - i5:2x9", { -1, 4, 3, 0 } } },
    .timing = { "n:4x256x12x64 n:4x256x4x64 n:4x256x4x64 - -", { -1, 64, 0, 0 } },
    .count_operations = count_windowed },
  { .name = "self_attention_full",
    .tolerance = 2e-5,
    .run = run_self_attention_full,
    .variants = { { "n:2x7x24 - -", { 1, 3, 0, 2 } },
                  { "n:2x7x24 - i5:2x7", { 1, 0, 2, 2 } },
                  { "n:2x7x24 b:2x1x1x7 j3:2x1", { 0, 3, 0, 2 } },
                  { "h:2x9x48 - i5:2x9", { 1, 4, 0, 2 } } } },
  { .name = "self_attention",
    .tolerance = 2e-5,
    .run = run_self_attention,
    .variants = { { "n:2x5x12 -", { 0, 0, 0, 1 } },
                  { "n:2x7x24 -", { 1, 0, 0, 2 } },
                  { "n:2x5x12 b:2x1x1x5", { 1, 0.2, 0, 2 } },
                  { "n:2x6x12 c:6x6", { 0, 0, 0, 2 } },
                  { "n:2x6x12 -", { 1, 0, 0.3, 4 } },
                  { "n:2x5x12t -", { 1, 0, 0, 2 } },
                  { "h:2x9x48 -", { 1, 0, 0.1, 2 } } },
    .timing = { "n:4x256x2304 -", { 1, 0, 0, 12 } },
    .count_operations = count_self_attention },

  { .name = "rotary",
    .run = run_rotary,
    .variants = { { "n:2x3x4x6 v:3 -", { 0, 1, 1 } },
                  { "n:1x7x2x64 v:32 -", { 9, 1.5, 1 } },
                  { "n:2x5x3x10 v:3 i6:2x5", { 2, 1, 1 } },
                  { "n:2x5x1x8 v:4 j9:2x1", { 3, 1, 4 } },
                  { "n:3x4x2x40 v:20 i4:1x4", { 0, 0.5, 2 } },
                  { "n:2x3x5x8 v:4 -", { 1, 1, 1, 1 } },
                  { "n:2x3x8x5t v:2 -", { 1, 1, 1 } },
                  { "c:2x3x4x6 v:3 -", { 0, 1, 1 } },
                  { "h:2x3x4x70 v:33 i3:2x3", { 5, 1, 1 } } },
    .timing = { "n:8x512x12x64 v:32 -", { 0, 1, 1 } } },

  { .name = "layer_norm",
    .run = run_layer_norm,
    .variants = { { "n:2x3x8 n:8 n:8" },
                  { "n:5x33 - -" },
                  { "n:33x5t n:5 -" },
                  { "n:9 - n:9" },
                  { "n:3x8 c:8 c:8" },
                  { "c:3x8 n:8 n:8" },
                  { "n:70x40 n:40 n:40" },
                  { "h:3x40 n:40 n:40" },
                  { "h:3x8 h:8 h:8" } },
    .timing = { "n:1024x768 n:768 n:768" } },
  { .name = "rms_norm",
    .run = run_rms_norm,
    .variants = { { "n:2x3x8 n:8" },
                  { "n:5x33 -" },
                  { "n:33x5t n:5" },
                  { "n:9 c:9" },
                  { "c:9x4 n:4" },
                  { "h:3x40 n:40" } },
    .timing = { "n:1024x768 n:768" } },
  { .name = "unit_offset_rms_norm",
    .run = run_unit_offset_rms_norm,
    .variants = { { "n:2x3x8 n:8" },
                  { "n:5x33 -" },
                  { "n:33x5t n:5" },
                  { "n:2x3x4x16 n:8", { 1 } },
                  { "n:70x66 n:33", { 1 } },
                  { "c:2x3x4x16 n:8", { 1 } },
                  { "n:9 c:9" },
                  { "h:3x40 n:40" },
                  { "h:2x3x80 h:40", { 1 } } },
    .timing = { "n:8x512x12x64 n:64" } },
  { .name = "batch_norm",
    .tolerance = 2e-5,
    .run = run_batch_norm,
    .variants = { { "n:6x3 n:3 n:3 c:3 v:3", { 1, 0.1 } },
                  { "n:4x3x5 n:3 n:3 c:3 v:3", { 1, 0.3 } },
                  { "n:2x3x4x5 n:3 n:3 - -", { 1, 0.1 } },
                  { "n:2x3x4x5 - - c:3 v:3", { 0, 0.1 } },
                  { "n:6x3 n:3 n:3 c:3 v:3", { 0, 0.1 } },
                  { "n:4x5x3t c:5 n:5 c:5 v:5", { 1, 0.1 } },
                  { "h:6x3x7 n:3 n:3 c:3 v:3", { 1, 0.1 } } },
    .timing = { "n:32x64x1024 n:64 n:64 v:64 v:64", { 1, 0.1 } } },
  { .name = "residual_dropout_layer_norm",
    .run = run_residual_norm,
    .variants = { { "n:2x3x8 n:2x3x8 n:8 n:8", { 0, 1 } },
                  { "n:5x33 n:5x33 - -", { 0.3, 1 } },
                  { "n:5x33 n:5x33 n:33 n:33", { 0.3, 0 } },
                  { "c:5x9 n:5x9 n:9 n:9", { 0.3, 1 } },
                  { "n:5x9 c:5x9 n:9 -", { 0.3, 1 } },
                  { "n:9x5t n:9x5 n:5 n:5", { 0.5, 1 } },
                  { "h:5x40 h:5x40 n:40 n:40", { 0.1, 1 } },
                  { "h:5x40 n:5x40 n:40 n:40", { 0.1, 1 } } },
    .timing = { "n:1024x768 n:1024x768 n:768 n:768", { 0.1, 1 } } },
  { .name = "residual_dropout_rms_norm",
    .tolerance = 2e-5,
    .run = run_residual_rms_norm,
    .variants = { { "n:2x3x8 n:2x3x8 - n:8", { 0, 1, 0 } },
                  { "n:2x3x8 n:2x3x8 n:8 n:8", { 0, 1, 0 } },
                  { "n:5x33 n:5x33 n:33 n:33", { 0.3, 1, 1 } },
                  { "n:5x33 n:5x33 - n:33", { 0.3, 1, 1 } },
                  { "n:5x33 n:5x33 - -", { 0.3, 0, 0 } },
                  { "c:5x9 n:5x9 n:9 n:9", { 0.3, 1, 1 } },
                  { "c:5x9 n:5x9 c:9 n:9", { 0.3, 1, 1 } },
                  { "n:5x9 c:5x9 n:9 -", { 0.3, 1, 0 } },
                  { "n:5x9 c:5x9 c:9 -", { 0, 1, 0 } },
                  { "n:9x5t n:9x5 n:5 n:5", { 0.5, 1, 1 } },
                  { "h:5x40 h:5x40 - n:40", { 0.1, 1, 0 } },
                  { "h:5x40 n:5x40 n:40 n:40", { 0.1, 1, 1 } } },
    .timing = { "n:1024x768 n:1024x768 n:768 n:768", { 0, 1, 1 } } },
  { .name = "residual_dropout",
    .run = run_residual_dropout,
    .variants = { { "n:2x3x8 n:2x3x8", { 0, 1 } },
                  { "n:5x33 n:5x33", { 0.3, 1 } },
                  { "n:9x5t n:9x5", { 0.5, 0 } },
                  { "c:5x9 n:5x9", { 0.3, 1 } },
                  { "h:5x9 n:5x9", { 0.3, 1 } } },
    .timing = { "n:1024x768 n:1024x768", { 0.1, 1 } } },

  { .name = "cross_entropy",
    .binary = ebb_cross_entropy,
    .variants = { { "n:5x7 i7:5" }, { "n:2x3x70 j70:2x3" }, { "n:7 i7:" }, { "h:5x9 i9:5" } },
    .timing = { "n:1024x8192 i8192:1024" } },
  { .name = "cross_entropy_full",
    .run = run_cross_entropy_full,
    .variants = { { "n:5x7 i7:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "n:9x7 i7:9", { 3, 0.1, EBB_REDUCTION_SUM } },
                  { "n:2x3x70 i70:2x3", { -100, 0.2, EBB_REDUCTION_NONE } },
                  { "n:9x4t i4:9", { 1, 0.1, EBB_REDUCTION_MEAN } },
                  { "h:5x9 i9:5", { 2, 0.1, EBB_REDUCTION_MEAN } } },
    .timing = { "n:1024x8192 i8192:1024", { -100, 0.1, EBB_REDUCTION_MEAN } } },
  { .name = "fused_linear_cross_entropy",
    .run = run_fused_linear_cross_entropy,
    .variants = { { "n:5x4 n:7x4 - i7:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "n:2x3x4 n:9x4t - i9:2x3", { -100, 0.1, EBB_REDUCTION_SUM } },
                  { "n:5x4 n:7x4 - i7:5", { 3, 0.1, EBB_REDUCTION_NONE } },
                  { "c:5x4 n:7x4 - i7:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "n:5x4 c:7x4 - i7:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "c:5x4 n:7x4 - i7:5", { 3, 0, EBB_REDUCTION_NONE } },
                  { "h:5x8 n:7x8 - i7:5", { -100, 0, EBB_REDUCTION_MEAN } },
                  { "h:5x8 h:9x8 - i9:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "n:5x4 n:7x4 n:7 i7:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "n:2x3x4 n:9x4 n:9 i9:2x3", { -100, 0.1, EBB_REDUCTION_SUM } },
                  { "n:5x4 n:7x4 n:7 i7:5", { 3, 0.1, EBB_REDUCTION_NONE } },
                  { "c:5x4 c:7x4 n:7 i7:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "n:5x4 n:7x4 c:7 i7:5", { 3, 0, EBB_REDUCTION_NONE } },
                  { "h:5x8 n:9x8 n:9 i9:5", { 3, 0, EBB_REDUCTION_MEAN } },
                  { "h:5x8 h:9x8 h:9 i9:5", { 3, 0, EBB_REDUCTION_NONE } } },
    .timing = { "n:1024x768 n:50257x768 - i50257:1024", { -100, 0, EBB_REDUCTION_MEAN } },
    .count_operations = count_fused_linear_cross_entropy },
  { .name = "fused_linear_cross_entropy_full",
    .run = run_fused_linear_cross_entropy_full,
    .variants = { { "n:5x4 n:7x4 - i7:5", { 3, 0, EBB_REDUCTION_MEAN, 2 } },
                  { "n:2x3x4 n:9x4t - i9:2x3", { -100, 0.1, EBB_REDUCTION_SUM, 1 } },
                  { "n:5x4 n:7x4 n:7 i7:5", { 3, 0.1, EBB_REDUCTION_NONE, 3 } },
                  { "c:5x4 n:7x4 - i7:5", { 3, 0, EBB_REDUCTION_MEAN, 30 } },
                  { "h:5x8 n:7x8 - i7:5", { -100, 0, EBB_REDUCTION_MEAN, 4 } },
                  { "h:5x8 h:9x8 h:9 i9:5", { 3, 0, EBB_REDUCTION_NONE, 4 } } },
    .timing = { "n:1024x768 n:50257x768 - i50257:1024", { -100, 0, EBB_REDUCTION_MEAN, 30 } },
    .count_operations = count_fused_linear_cross_entropy },
  { NULL }
};
