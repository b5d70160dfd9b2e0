/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "support/device.h"

/* Products, attention, norms and losses asked wrongly: one line says what, and what would be right. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))

#define assert_fails(result, error, code, text)     \
  G_STMT_START                                      \
  {                                                 \
    g_assert_false (result);                        \
    g_assert_error ((error), EBB_ERROR, (code));    \
    g_assert_cmpstr ((error)->message, ==, (text)); \
    g_clear_error (&(error));                       \
  }                                                 \
  G_STMT_END

static EbbTensor *
make (const gint64 *shape,
      guint n_dims,
      EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *tensor = ebb_ones (shape, n_dims, dtype, NULL, &error);

  g_assert_no_error (error);
  return tensor;
}

static void
products (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) a = make (SHAPE (2, 3, 4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) b = make (SHAPE (5, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) c = make (SHAPE (3, 4, 5), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) scalar = ebb_scalar (1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) whole = make (SHAPE (4, 5), EBB_DTYPE_I64);
  g_autoptr (EbbTensor) half = make (SHAPE (4, 5), EBB_DTYPE_F16);
  g_autoptr (EbbTensor) bias = make (SHAPE (4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) d = make (SHAPE (4, 5), EBB_DTYPE_F16);

  assert_fails (
      ebb_matmul (a, b, &error), error, EBB_ERROR_SHAPE,
      "matmul: shapes [2, 3, 4] and [5, 3] do not fit; the last dimension of the first, 4, must be the second "
      "last of the second, 5");
  assert_fails (
      ebb_matmul_transposed (a, b, TRUE, FALSE, &error), error, EBB_ERROR_SHAPE,
      "matmul: shapes [2, 3, 4] and [5, 3] do not fit; the second last dimension of the first, 3, must be the "
      "second last of the second, 5");
  assert_fails (
      ebb_matmul (a, c, &error), error, EBB_ERROR_SHAPE,
      "matmul: shapes [2, 3, 4] and [3, 4, 5] do not fit; dimensions before the last two must be equal, or 1");
  assert_fails (ebb_matmul (a, scalar, &error), error, EBB_ERROR_SHAPE,
                "matmul: shapes [2, 3, 4] and [] do not fit; each needs at least one dimension");
  assert_fails (ebb_matmul (a, whole, &error), error, EBB_ERROR_DTYPE, "matmul: operand 1 is i64; must be f32 or bf16");
  assert_fails (ebb_matmul_transposed (half, d, FALSE, TRUE, &error), error, EBB_ERROR_DTYPE,
                "matmul: can't multiply in f16; cast to f32 or bf16");
  assert_fails (ebb_linear (a, b, NULL, &error), error, EBB_ERROR_SHAPE,
                "linear: x is [2, 3, 4] and weight is [5, 3]; the last dimension of x must be that of weight");
  assert_fails (ebb_linear (b, c, NULL, &error), error, EBB_ERROR_SHAPE,
                "linear: x is [5, 3] and weight is [3, 4, 5]; weight must be [out, in]");
  assert_fails (ebb_linear (b, b, bias, &error), error, EBB_ERROR_SHAPE,
                "linear: bias is [4] and weight is [5, 3]; bias must have as many elements as weight has rows");
}

static void
attention (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) q = make (SHAPE (2, 3, 5, 4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) k = make (SHAPE (2, 2, 5, 4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) flat = make (SHAPE (2, 5, 12), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) mask = make (SHAPE (5, 4), EBB_DTYPE_BOOL);
  g_autoptr (EbbTensor) flags = make (SHAPE (2, 5), EBB_DTYPE_BOOL);
  g_autoptr (EbbTensor) numbers = make (SHAPE (5, 5), EBB_DTYPE_I64);
  g_autoptr (EbbTensor) leaf = make (SHAPE (5, 5), EBB_DTYPE_F32);

  assert_fails (ebb_scaled_dot_product_attention (q, k, k, NULL, FALSE, 0, 0, NULL, &error), error, EBB_ERROR_SHAPE,
                "scaled_dot_product_attention: query is [2, 3, 5, 4], key [2, 2, 5, 4], value [2, 2, 5, 4]; must be "
                "[B, H, T, D], [B, G, S, D], [B, G, S, D] with H a multiple of G");
  assert_fails (ebb_scaled_dot_product_attention (q, q, q, NULL, FALSE, 0, 1.5, NULL, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "scaled_dot_product_attention: dropout_p is 1.5; must be in [0, 1]");
  assert_fails (ebb_scaled_dot_product_attention (q, q, q, mask, FALSE, 0, 0, NULL, &error), error, EBB_ERROR_SHAPE,
                "scaled_dot_product_attention: mask is [5, 4]; must broadcast to [B, H, T, S], here [2, 3, 5, 5]");
  assert_fails (ebb_self_attention (flat, 2, numbers, FALSE, 0, 0, NULL, &error), error, EBB_ERROR_DTYPE,
                "self_attention: mask is i64; must be bool (true: attend), or f32 or bf16 (added to the scores)");
  assert_fails (ebb_self_attention (flat, 3, NULL, FALSE, 0, 0, NULL, &error), error, EBB_ERROR_SHAPE,
                "self_attention: qkv is [2, 5, 12] with 3 heads; must be [B, T, 3 C] with C a multiple of the heads");
  assert_fails (ebb_self_attention (flat, 0, NULL, FALSE, 0, 0, NULL, &error), error, EBB_ERROR_SHAPE,
                "self_attention: qkv is [2, 5, 12] with 0 heads; must be [B, T, 3 C] with C a multiple of the heads");
  assert_fails (ebb_attention (q, q, q, NULL, flat, NULL, NULL, &error), error, EBB_ERROR_SHAPE,
                "attention: starts is [2, 5, 12]; must broadcast to [B, T], here [2, 5]");
  assert_fails (ebb_attention (q, q, q, NULL, mask, NULL, NULL, &error), error, EBB_ERROR_SHAPE,
                "attention: starts is [5, 4]; must broadcast to [B, T], here [2, 5]");
  assert_fails (ebb_self_attention_full (flat, 2, NULL, leaf, NULL, NULL, &error), error, EBB_ERROR_SHAPE,
                "self_attention: starts is [5, 5]; must broadcast to [B, T], here [2, 5]");
  assert_fails (ebb_attention (q, q, q, NULL, flags, NULL, NULL, &error), error, EBB_ERROR_DTYPE,
                "attention: starts is bool; must be i64 or i32 (for each token where its document begins)");
  assert_fails (ebb_attention (q, q, q, NULL, NULL, &(EbbAttentionForm){ .window = -1 }, NULL, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "attention: window is -1; must be positive, or 0 for no window");
  assert_fails (ebb_attention (q, q, q, NULL, NULL, &(EbbAttentionForm){ .softcap = -2 }, NULL, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "attention: softcap is -2; must be positive, or 0 for no cap");
  assert_fails (ebb_attention (q, q, q, NULL, NULL, &(EbbAttentionForm){ .first_query = -3 }, NULL, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "attention: first_query is -3; must be the position of a key, 0 or more");
  assert_fails (ebb_self_attention_full (flat, 2, NULL, NULL, &(EbbAttentionForm){ .first_query = 3 }, NULL, &error),
                error, EBB_ERROR_INVALID_ARGUMENT,
                "self_attention: first_query is 3; must be 0 where keys and queries are of the same tokens");
  ebb_tensor_set_requires_grad (leaf, TRUE, NULL);
  assert_fails (ebb_self_attention (flat, 2, leaf, FALSE, 0, 0, NULL, &error), error, EBB_ERROR_NOT_SUPPORTED,
                "self_attention: mask requires a gradient, which is not computed; detach it");
}

static void
norms (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (SHAPE (4, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) row = make (SHAPE (1, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) weight = make (SHAPE (4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) three = make (SHAPE (3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) half = make (SHAPE (3), EBB_DTYPE_BF16);
  g_autoptr (EbbTensor) scalar = ebb_scalar (1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) whole = make (SHAPE (4, 3), EBB_DTYPE_I64);
  EbbTensor *sum = NULL, *normalized = NULL;

  assert_fails (ebb_layer_norm (x, weight, NULL, 1e-5, &error), error, EBB_ERROR_SHAPE,
                "layer_norm: x is [4, 3] and weight is [4]; weight must be [3]");
  assert_fails (ebb_rms_norm (scalar, NULL, 1e-5, &error), error, EBB_ERROR_SHAPE,
                "rms_norm: x is []; must have at least one dimension");
  assert_fails (ebb_layer_norm (whole, NULL, NULL, 1e-5, &error), error, EBB_ERROR_DTYPE,
                "layer_norm: needs a floating-point tensor, not i64; cast to f32 or bf16 first");
  assert_fails (ebb_batch_norm (three, NULL, NULL, NULL, NULL, TRUE, 0.1, 1e-5, &error), error, EBB_ERROR_SHAPE,
                "batch_norm: x is [3]; must be [N, C], [N, C, L] or [N, C, H, W]");
  assert_fails (ebb_batch_norm (x, NULL, NULL, NULL, NULL, FALSE, 0.1, 1e-5, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "batch_norm: running_mean and running_var must be given both or, in training, neither");
  assert_fails (ebb_batch_norm (x, NULL, NULL, three, half, TRUE, 0.1, 1e-5, &error), error, EBB_ERROR_DTYPE,
                "batch_norm: running_var is bf16; must be contiguous f32");
  assert_fails (ebb_batch_norm (row, NULL, NULL, three, three, TRUE, 0.1, 1e-5, &error), error, EBB_ERROR_SHAPE,
                "batch_norm: x is [1, 3]; training needs more than one value a channel");
  assert_fails (ebb_residual_dropout_layer_norm (x, row, NULL, NULL, 1e-5, 0, TRUE, NULL, &sum, &normalized, &error),
                error, EBB_ERROR_SHAPE,
                "residual_dropout_layer_norm: x is [4, 3] and residual is [1, 3]; must be of one shape");
  assert_fails (ebb_residual_dropout (x, x, -1, TRUE, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "residual_dropout: dropout_p is -1; must be in [0, 1]");
  g_assert_null (sum);
  g_assert_null (normalized);
}

static void
parts_of_decoders (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (SHAPE (2, 5, 3, 8), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) row = make (SHAPE (4, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) other = make (SHAPE (4, 2), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) frequencies = make (SHAPE (4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) many = make (SHAPE (5), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) half = make (SHAPE (4), EBB_DTYPE_BF16);
  g_autoptr (EbbTensor) starts = make (SHAPE (2, 4), EBB_DTYPE_I64);
  EbbTensor *sum = NULL, *normalized = NULL;

  assert_fails (ebb_rotary (row, frequencies, NULL, 0, 1, 1, &error), error, EBB_ERROR_SHAPE,
                "rotary: x is [4, 3]; must be [B, T, H, D]");
  assert_fails (ebb_rotary (starts, frequencies, NULL, 0, 1, 1, &error), error, EBB_ERROR_DTYPE,
                "rotary: needs a floating-point tensor, not i64; cast to f32 or bf16 first");
  assert_fails (ebb_rotary (x, many, NULL, 0, 1, 1, &error), error, EBB_ERROR_SHAPE,
                "rotary: inverse_frequencies is [5] and x is [2, 5, 3, 8]; must be [R / 2] with 0 < R <= D and "
                "[B, T, H, D]");
  assert_fails (ebb_rotary (x, half, NULL, 0, 1, 1, &error), error, EBB_ERROR_DTYPE,
                "rotary: inverse_frequencies is bf16; must be f32");
  assert_fails (ebb_rotary (x, frequencies, starts, 0, 1, 1, &error), error, EBB_ERROR_SHAPE,
                "rotary: starts is [2, 4] and x is [2, 5, 3, 8]; must be [B, T] and [B, T, H, D]");
  assert_fails (ebb_rotary (x, frequencies, row, 0, 1, 1, &error), error, EBB_ERROR_DTYPE,
                "rotary: starts is f32; must be i64 or i32");
  assert_fails (ebb_rotary (x, frequencies, NULL, -2, 1, 1, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "rotary: first is -2; must be the index of a token in its row, 0 or more");
  assert_fails (ebb_rotary (x, frequencies, NULL, 0, INFINITY, 1, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "rotary: factor is inf; must be finite");
  assert_fails (ebb_rotary (x, frequencies, NULL, 0, 1, 0, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "rotary: ntk is 0; must be positive and finite");
  assert_fails (ebb_gated_activation (row, other, EBB_ACTIVATION_SILU, &error), error, EBB_ERROR_SHAPE,
                "gated_activation: gate is [4, 3] and up is [4, 2]; must be of one shape [.., N]");
  assert_fails (ebb_gated_activation (row, row, (EbbActivation) 9, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "gated_activation: kind is 9; must be a member of Activation, 0 to 2");
  assert_fails (ebb_soft_cap (row, 0, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "soft_cap: cap is 0; must be positive and finite");
  assert_fails (ebb_unit_offset_rms_norm (row, many, 1e-5, &error), error, EBB_ERROR_SHAPE,
                "rms_norm: x is [4, 3] and weight is [5]; weight must be [3]");
  assert_fails (ebb_residual_dropout_rms_norm (row, row, many, NULL, 1e-5, TRUE, 0, TRUE, NULL, &sum, &normalized,
                                               &error),
                error, EBB_ERROR_SHAPE,
                "residual_dropout_rms_norm: x is [4, 3] and branch_weight is [5]; branch_weight must be [3]");
  assert_fails (ebb_fused_linear_cross_entropy_full (row, row, NULL, frequencies, -100, 0, -1, EBB_REDUCTION_MEAN,
                                                     &error),
                error, EBB_ERROR_INVALID_ARGUMENT,
                "fused_linear_cross_entropy: softcap is -1; must be positive, or 0 for none");
}

static void
losses (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = make (SHAPE (2, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) empty = make (SHAPE (2, 0), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) weight = make (SHAPE (5, 4), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) one = ebb_tensor_new_from_ints ((const gint64[]){ 1 }, 1, SHAPE (1), &error);
  g_autoptr (EbbTensor) targets = ebb_tensor_new_from_ints ((const gint64[]){ 1, 3 }, 2, SHAPE (2), &error);
  g_autoptr (EbbTensor) negative = ebb_tensor_new_from_ints ((const gint64[]){ -1, 0 }, 2, SHAPE (2), &error);

  assert_fails (ebb_cross_entropy (logits, one, &error), error, EBB_ERROR_SHAPE,
                "cross_entropy: logits is [2, 3] and targets is [1]; targets must have its shape without the last "
                "dimension, or with 1 there");
  assert_fails (test_await_failure (ebb_cross_entropy (logits, targets, &error), &error), error, EBB_ERROR_INDEX,
                "cross_entropy: index 3 at position 1 is out of range; indices must be in [0, 3)");
  assert_fails (test_await_failure (ebb_cross_entropy (logits, negative, &error), &error), error, EBB_ERROR_INDEX,
                "cross_entropy: index -1 at position 0 is out of range; indices must be in [0, 3)");
  assert_fails (ebb_cross_entropy (empty, targets, &error), error, EBB_ERROR_SHAPE,
                "cross_entropy: there are no classes; must be one at least");
  assert_fails (ebb_cross_entropy_full (logits, negative, -1, 1.5, EBB_REDUCTION_MEAN, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "cross_entropy: label_smoothing is 1.5; must be in [0, 1]");
  assert_fails (ebb_cross_entropy_full (logits, negative, -1, 0, (EbbReduction) 3, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "cross_entropy: there is no reduction 3");
  assert_fails (ebb_fused_linear_cross_entropy (logits, weight, NULL, targets, -100, 0, EBB_REDUCTION_MEAN, &error),
                error, EBB_ERROR_SHAPE,
                "fused_linear_cross_entropy: x is [2, 3] and weight is [5, 4]; must be [.., C] and [V, C]");
}

/* A straight line of calls ends with the first error, which nothing after it changes. */
static void
first_error_stays (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) a = make (SHAPE (2, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) b = ebb_matmul (a, a, &error);
  g_autoptr (EbbTensor) c = ebb_layer_norm (b, NULL, NULL, 1e-5, &error);
  g_autoptr (EbbTensor) d = ebb_linear (a, a, NULL, &error);

  g_assert_null (b);
  g_assert_null (c);
  g_assert_null (d);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_SHAPE);
  g_assert_true (g_str_has_prefix (error->message, "matmul: "));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/bad-input-layers/products", products);
  g_test_add_func ("/bad-input-layers/attention", attention);
  g_test_add_func ("/bad-input-layers/norms", norms);
  g_test_add_func ("/bad-input-layers/parts-of-decoders", parts_of_decoders);
  g_test_add_func ("/bad-input-layers/losses", losses);
  g_test_add_func ("/bad-input-layers/first-error-stays", first_error_stays);
  return g_test_run ();
}
