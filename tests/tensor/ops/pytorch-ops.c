/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

/* Single ops against PyTorch's results, which were computed in float64 and rounded once. The bounds leave room for
 * float32 sums in another order and for nothing else: what a wrong formula gives is shown to lie far beyond them. */

/* The largest difference relative to the largest value expected. */
#define BOUND 1e-6
#define FAR (20 * BOUND)

static double
distance (EbbTensor *a,
          EbbTensor *expected)
{
  g_autoptr (EbbTensor) zero = ebb_mul_scalar (expected, 0, NULL);

  return test_difference (a, expected) / test_difference (expected, zero);
}

static void
assert_close (EbbTensor *a,
              EbbArgs *fixture,
              const char *prefix,
              const char *name)
{
  g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "%s.%s", prefix, name);
  double d;

  g_assert_nonnull (a);
  d = distance (a, expected);
  g_test_message ("%s.%s: %.2g", prefix, name, d);
  g_assert_cmpfloat (d, <, BOUND);
}

static void
assert_far (EbbTensor *a,
            EbbArgs *fixture,
            const char *prefix,
            const char *name)
{
  g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "%s.%s", prefix, name);

  g_assert_nonnull (a);
  g_assert_cmpfloat (distance (a, expected), >, FAR);
}

/* Goes back from @out with the fixture's gradient, and compares that of each leaf. */
static void
assert_gradients (EbbTensor *out,
                  EbbArgs *fixture,
                  const char *prefix,
                  const char *const *names,
                  EbbTensor **leaves)
{
  g_autoptr (EbbTensor) grad_out = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_nonnull (out);
  if (ebb_tensor_get_n_dims (out) > 0)
    grad_out = test_fixture_tensor (fixture, "%s.grad_out", prefix);
  ebb_backward (&out, 1, grad_out != NULL ? &grad_out : NULL, grad_out != NULL, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autofree char *grad_name = g_strconcat ("grad_", names[i], NULL);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (leaves[i]);

      assert_close (grad, fixture, prefix, grad_name);
    }
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

static const char *const qkv_names[] = { "q", "k", "v", NULL };

typedef struct
{
  const char *name; /* in the fixture */
  gboolean causal, padding, packed;
} AttentionCase;

static const AttentionCase attention_cases[] = {
  { "attention.full", FALSE, FALSE, TRUE },
  { "attention.causal", TRUE, FALSE, TRUE },
  { "attention.padding", FALSE, TRUE, TRUE },
  { "attention.causal_padding", TRUE, TRUE, TRUE },
  { "attention.long_causal", TRUE, FALSE, TRUE },
  { "attention.long_causal_padding", TRUE, TRUE, TRUE },
  { "attention.cross", FALSE, FALSE, FALSE },
};

/* [B, T] to [B, 1, 1, T] */
static EbbTensor *
take_mask (EbbArgs *fixture,
           const AttentionCase *test)
{
  g_autoptr (EbbTensor) keys = NULL;
  g_autoptr (EbbTensor) between = NULL;

  if (!test->padding)
    return NULL;
  keys = test_fixture_tensor (fixture, "%s.key_mask", test->name);
  between = ebb_unsqueeze (keys, 1, NULL);
  return ebb_unsqueeze (between, 1, NULL);
}

/* [B, H, T, D] to [B, T, H D] */
static EbbTensor *
join_heads (EbbTensor *x)
{
  g_autoptr (EbbTensor) swapped = ebb_transpose (x, 1, 2, NULL);

  return ebb_flatten (swapped, 2, 3, NULL);
}

static EbbTensor *
split_heads (EbbTensor *x,
             gint64 n_heads)
{
  const gint64 shape[] = { ebb_tensor_get_dim (x, 0), ebb_tensor_get_dim (x, 1), n_heads,
                           ebb_tensor_get_dim (x, 2) / n_heads };
  g_autoptr (EbbTensor) split = ebb_reshape (x, shape, 4, NULL);

  return ebb_transpose (split, 1, 2, NULL);
}

/* The same by the op that takes queries, keys and values side by side. */
static EbbTensor *
attend_packed (EbbTensor **qkv,
               EbbTensor *mask,
               gboolean causal,
               GError **error)
{
  EbbTensor *parts[3];
  g_autoptr (EbbTensor) packed = NULL;
  g_autoptr (EbbTensor) out = NULL;
  gint64 n_heads = ebb_tensor_get_dim (qkv[0], 1);

  for (guint i = 0; i < 3; i++)
    parts[i] = join_heads (qkv[i]);
  packed = ebb_cat (parts, 3, 2, error);
  for (guint i = 0; i < 3; i++)
    ebb_tensor_unref (parts[i]);
  out = ebb_self_attention (packed, (guint) n_heads, mask, causal, 0, 0, NULL, error);
  return split_heads (out, n_heads);
}

static void
check_attention (EbbArgs *fixture,
                 const AttentionCase *test,
                 gboolean packed)
{
  EbbTensor *qkv[3];
  g_autoptr (EbbTensor) mask = take_mask (fixture, test);
  g_autoptr (EbbTensor) out = NULL;
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 3; i++)
    qkv[i] = test_fixture_leaf (fixture, test->name, qkv_names[i]);
  out = packed ? attend_packed (qkv, mask, test->causal, &error)
               : ebb_scaled_dot_product_attention (qkv[0], qkv[1], qkv[2], mask, test->causal, 0, 0, NULL, &error);
  g_assert_no_error (error);
  assert_close (out, fixture, test->name, "out");
  assert_gradients (out, fixture, test->name, qkv_names, qkv);
  for (guint i = 0; i < 3; i++)
    ebb_tensor_unref (qkv[i]);
}

static void
attention_is_pytorchs (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-attention.safetensors");

  for (guint i = 0; i < G_N_ELEMENTS (attention_cases); i++)
    {
      check_attention (fixture, &attention_cases[i], FALSE);
      if (attention_cases[i].packed)
        check_attention (fixture, &attention_cases[i], TRUE);
    }
}

static void
attention_shows_wrong_formulas (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-attention.safetensors");

  for (guint i = 0; i < G_N_ELEMENTS (attention_cases); i++)
    {
      const AttentionCase *test = &attention_cases[i];
      g_autoptr (EbbTensor) q = test_fixture_tensor (fixture, "%s.q", test->name);
      g_autoptr (EbbTensor) k = test_fixture_tensor (fixture, "%s.k", test->name);
      g_autoptr (EbbTensor) v = test_fixture_tensor (fixture, "%s.v", test->name);
      g_autoptr (EbbTensor) mask = take_mask (fixture, test);
      g_autoptr (EbbTensor) unscaled =
          ebb_scaled_dot_product_attention (q, k, v, mask, test->causal, 1, 0, NULL, NULL);
      g_autoptr (EbbTensor) other_order =
          ebb_scaled_dot_product_attention (q, k, v, mask, !test->causal, 0, 0, NULL, NULL);
      g_autoptr (EbbTensor) unmasked =
          ebb_scaled_dot_product_attention (q, k, v, NULL, test->causal, 0, 0, NULL, NULL);

      assert_far (unscaled, fixture, test->name, "out");
      assert_far (other_order, fixture, test->name, "out");
      if (test->padding)
        assert_far (unmasked, fixture, test->name, "out");
    }
}

/* -- cross entropy ------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  double smoothing;
  EbbReduction reduction;
} LossCase;

static const LossCase loss_cases[] = {
  { "cross_entropy.smoothing_0.0.mean", 0.0, EBB_REDUCTION_MEAN },
  { "cross_entropy.smoothing_0.0.sum", 0.0, EBB_REDUCTION_SUM },
  { "cross_entropy.smoothing_0.0.none", 0.0, EBB_REDUCTION_NONE },
  { "cross_entropy.smoothing_0.1.mean", 0.1, EBB_REDUCTION_MEAN },
  { "cross_entropy.smoothing_0.1.sum", 0.1, EBB_REDUCTION_SUM },
  { "cross_entropy.smoothing_0.1.none", 0.1, EBB_REDUCTION_NONE },
};

/* The logits are those of an identity matrix. */
static EbbTensor *
make_identity (gint64 n)
{
  const gint64 shape[] = { n, n };
  g_autoptr (EbbTensor) ones = ebb_ones (shape, 2, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) upper = ebb_triu (ones, 0, NULL);

  return ebb_tril (upper, 0, NULL);
}

static void
cross_entropy_is_pytorchs (void)
{
  static const char *const names[] = { "logits", NULL };
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-cross-entropy.safetensors");
  g_autoptr (EbbTensor) identity = make_identity (13);

  for (guint i = 0; i < 2 * G_N_ELEMENTS (loss_cases); i++)
    {
      const LossCase *test = &loss_cases[i / 2];
      gboolean joined = i % 2;
      g_autoptr (EbbTensor) logits = test_fixture_leaf (fixture, test->name, "logits");
      g_autoptr (EbbTensor) targets = test_fixture_tensor (fixture, "%s.targets", test->name);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) loss =
          joined ? ebb_fused_linear_cross_entropy (logits, identity, NULL, targets, -100, test->smoothing,
                                                   test->reduction, &error)
                 : ebb_cross_entropy_full (logits, targets, -100, test->smoothing, test->reduction, &error);

      g_assert_no_error (error);
      assert_close (loss, fixture, test->name, "out");
      assert_gradients (loss, fixture, test->name, names, &logits);
    }
}

static void
cross_entropy_shows_wrong_formulas (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-cross-entropy.safetensors");

  for (guint i = 0; i < G_N_ELEMENTS (loss_cases); i++)
    {
      const LossCase *test = &loss_cases[i];
      g_autoptr (EbbTensor) logits = test_fixture_tensor (fixture, "%s.logits", test->name);
      g_autoptr (EbbTensor) targets = test_fixture_tensor (fixture, "%s.targets", test->name);
      g_autoptr (EbbTensor) ignored = ebb_eq_scalar (targets, -100, NULL);
      g_autoptr (EbbTensor) first = ebb_mul_scalar (targets, 0, NULL);
      g_autoptr (EbbTensor) counted = ebb_where (ignored, first, targets, NULL);
      g_autoptr (EbbTensor) other_smoothing =
          ebb_cross_entropy_full (logits, targets, -100, 0.1 - test->smoothing, test->reduction, NULL);
      g_autoptr (EbbTensor) none_ignored =
          ebb_cross_entropy_full (logits, counted, -100, test->smoothing, test->reduction, NULL);

      assert_far (other_smoothing, fixture, test->name, "out");
      assert_far (none_ignored, fixture, test->name, "out");
      if (test->reduction == EBB_REDUCTION_MEAN)
        {
          g_autoptr (EbbTensor) sum =
              ebb_cross_entropy_full (logits, targets, -100, test->smoothing, EBB_REDUCTION_SUM, NULL);
          g_autoptr (EbbTensor) mean_of_all = ebb_div_scalar (sum, 10, NULL);

          assert_far (mean_of_all, fixture, test->name, "out");
        }
    }
}

/* -- norms --------------------------------------------------------------------------------------------------------- */

static const char *const norm_names[] = { "x", "weight", "bias", NULL };
static const char *const rms_norm_names[] = { "x", "weight", NULL };

static void
take_norm_leaves (EbbArgs *fixture,
                  const char *prefix,
                  const char *const *names,
                  EbbTensor **leaves)
{
  for (guint i = 0; names[i] != NULL; i++)
    leaves[i] = test_fixture_leaf (fixture, prefix, names[i]);
}

static void
drop_leaves (EbbTensor **leaves,
             guint n)
{
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (leaves[i]);
}

static void
layer_norm_is_pytorchs (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-norms.safetensors");
  g_autoptr (GError) error = NULL;
  EbbTensor *leaves[3];
  g_autoptr (EbbTensor) out = NULL;
  g_autoptr (EbbTensor) other = NULL;

  take_norm_leaves (fixture, "layer_norm", norm_names, leaves);
  out = ebb_layer_norm (leaves[0], leaves[1], leaves[2], 1e-5, &error);
  g_assert_no_error (error);
  assert_close (out, fixture, "layer_norm", "out");
  other = ebb_layer_norm (leaves[0], leaves[1], leaves[2], 1e-3, NULL);
  assert_far (other, fixture, "layer_norm", "out");
  assert_gradients (out, fixture, "layer_norm", norm_names, leaves);
  drop_leaves (leaves, 3);
}

static void
rms_norm_is_pytorchs (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-norms.safetensors");
  g_autoptr (GError) error = NULL;
  EbbTensor *leaves[2];
  g_autoptr (EbbTensor) out = NULL;
  g_autoptr (EbbTensor) other = NULL;

  take_norm_leaves (fixture, "rms_norm", rms_norm_names, leaves);
  out = ebb_rms_norm (leaves[0], leaves[1], 1e-5, &error);
  g_assert_no_error (error);
  assert_close (out, fixture, "rms_norm", "out");
  other = ebb_layer_norm (leaves[0], leaves[1], NULL, 1e-5, NULL);
  assert_far (other, fixture, "rms_norm", "out");
  assert_gradients (out, fixture, "rms_norm", rms_norm_names, leaves);
  drop_leaves (leaves, 2);
}

static void
check_batch_norm (EbbArgs *fixture,
                  const char *prefix)
{
  const gint64 shape[] = { 6 };
  g_autoptr (GError) error = NULL;
  EbbTensor *leaves[3];
  g_autoptr (EbbTensor) mean = ebb_zeros (shape, 1, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) variance = ebb_ones (shape, 1, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) out = NULL;
  g_autoptr (EbbTensor) fixed = NULL;
  g_autoptr (EbbTensor) x = test_fixture_tensor (fixture, "%s.x", prefix);
  g_autoptr (EbbTensor) doubled = ebb_mul_scalar (x, 2, NULL);
  g_autoptr (EbbTensor) shifted = ebb_sub_scalar (doubled, 1, NULL);

  take_norm_leaves (fixture, prefix, norm_names, leaves);
  out = ebb_batch_norm (leaves[0], leaves[1], leaves[2], mean, variance, TRUE, 0.1, 1e-5, &error);
  g_assert_no_error (error);
  assert_close (out, fixture, prefix, "out");
  assert_close (mean, fixture, prefix, "running_mean_1");
  assert_close (variance, fixture, prefix, "running_var_1");
  assert_far (mean, fixture, prefix, "running_mean_2");
  ebb_tensor_unref (ebb_batch_norm (shifted, leaves[1], leaves[2], mean, variance, TRUE, 0.1, 1e-5, &error));
  g_assert_no_error (error);
  assert_close (mean, fixture, prefix, "running_mean_2");
  assert_close (variance, fixture, prefix, "running_var_2");
  fixed = ebb_batch_norm (leaves[0], leaves[1], leaves[2], mean, variance, FALSE, 0.1, 1e-5, &error);
  g_assert_no_error (error);
  assert_close (fixed, fixture, prefix, "eval_out");
  assert_far (fixed, fixture, prefix, "out");
  assert_close (mean, fixture, prefix, "running_mean_2");
  assert_gradients (out, fixture, prefix, norm_names, leaves);
  drop_leaves (leaves, 3);
}

static void
batch_norm_is_pytorchs (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-norms.safetensors");

  check_batch_norm (fixture, "batch_norm");
  check_batch_norm (fixture, "batch_norm_3d");
}

/* -- activations --------------------------------------------------------------------------------------------------- */

static EbbTensor *
gelu_tanh (EbbTensor *x,
           GError **error)
{
  return ebb_gelu (x, EBB_GELU_TANH, error);
}

static EbbTensor *
gelu_erf (EbbTensor *x,
          GError **error)
{
  return ebb_gelu (x, EBB_GELU_EXACT, error);
}

static EbbTensor *
softmax (EbbTensor *x,
         GError **error)
{
  return ebb_softmax (x, -1, error);
}

static EbbTensor *
log_softmax (EbbTensor *x,
             GError **error)
{
  return ebb_log_softmax (x, -1, error);
}

/* As assert_close(), but each element relative to itself, or to 1 where it is less. */
static void
assert_elements_close (EbbTensor *a,
                       EbbArgs *fixture,
                       const char *prefix,
                       const char *name)
{
  g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "%s.%s", prefix, name);
  double worst = 0;

  test_assert_near (a, expected, 1e-4);
  for (gsize i = 0; i < (gsize) ebb_tensor_get_n_elements (expected); i++)
    {
      double right = test_at (expected, i);

      worst = MAX (worst, fabs (test_at (a, i) - right) / MAX (fabs (right), 1));
    }
  g_test_message ("%s.%s: %.2g", prefix, name, worst);
  g_assert_cmpfloat (worst, <, BOUND);
}

static void
activations_are_pytorchs (void)
{
  static const struct
  {
    const char *name;
    EbbTensor *(*function) (EbbTensor *x,
                            GError **error);
  } cases[] = {
    { "gelu_tanh", gelu_tanh },
    { "gelu_erf", gelu_erf },
    { "silu", ebb_silu },
    { "sigmoid", ebb_sigmoid },
    { "tanh", ebb_tanh },
    { "relu", ebb_relu },
    { "softmax", softmax },
    { "log_softmax", log_softmax },
  };
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-activations.safetensors");

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = test_fixture_leaf (fixture, cases[i].name, "x");
      g_autoptr (EbbTensor) grad_out = test_fixture_tensor (fixture, "%s.grad_out", cases[i].name);
      g_autoptr (EbbTensor) out = cases[i].function (x, &error);
      g_autoptr (EbbTensor) grad = NULL;

      g_assert_no_error (error);
      assert_elements_close (out, fixture, cases[i].name, "out");
      ebb_backward (&out, 1, &grad_out, 1, NULL, 0, FALSE, &error);
      g_assert_no_error (error);
      grad = ebb_tensor_get_grad (x);
      assert_elements_close (grad, fixture, cases[i].name, "grad_x");
    }
}

/* The two forms differ by 5e-4 at most. */
static void
each_gelu_is_its_own (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-activations.safetensors");
  g_autoptr (EbbTensor) x = test_fixture_tensor (fixture, "gelu_tanh.x");
  g_autoptr (EbbTensor) by_tanh = gelu_tanh (x, NULL);
  g_autoptr (EbbTensor) by_erf = gelu_erf (x, NULL);
  const gint64 shape[] = { 1 };
  g_autoptr (EbbTensor) zero = ebb_zeros (shape, 1, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) none = ebb_expand (zero, (gint64[]){ ebb_tensor_get_dim (x, 0) }, 1, NULL);

  for (EbbGeluKind kind = EBB_GELU_EXACT; kind <= EBB_GELU_TANH; kind++)
    {
      const char *name = kind == EBB_GELU_TANH ? "gelu_tanh" : "gelu_erf";
      g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "%s.out", name);
      g_autoptr (EbbTensor) biased = ebb_bias_gelu (x, none, kind, NULL);

      assert_elements_close (biased, fixture, name, "out");
      g_assert_cmpfloat (test_difference (kind == EBB_GELU_TANH ? by_erf : by_tanh, expected), >, 1e-4);
    }
}

/* -- casts --------------------------------------------------------------------------------------------------------- */

/* Bits of 16-bit floats; any NaN is any other. */
static void
assert_same_bits (EbbTensor *a,
                  EbbTensor *expected,
                  guint16 infinity)
{
  const guint16 *p = test_read (a), *q = test_read (expected);
  const guint16 sign = 0x8000;

  g_assert_cmpint (ebb_tensor_get_dtype (a), ==, ebb_tensor_get_dtype (expected));
  g_assert_cmpint (ebb_tensor_get_n_elements (a), ==, ebb_tensor_get_n_elements (expected));
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (a); i++)
    if ((p[i] & ~sign) <= infinity || (q[i] & ~sign) <= infinity)
      if (p[i] != q[i])
        g_error ("element %d is 0x%04x, not 0x%04x", (int) i, p[i], q[i]);
}

/* Every value of f16 is one of f32. */
static double
half_to_double (guint16 bits)
{
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023, value;

  if (exponent == 31)
    value = fraction != 0 ? NAN : INFINITY;
  else
    value = exponent == 0 ? ldexp (fraction, -24) : ldexp (fraction + 1024, exponent - 25);
  return bits >> 15 ? -value : value;
}

static double
brain_to_double (guint16 bits)
{
  guint32 wide = (guint32) bits << 16;
  float value;

  memcpy (&value, &wide, sizeof value);
  return value;
}

static void
casts_round_as_pytorch (void)
{
  static const struct
  {
    EbbDType dtype;
    const char *name;
    guint16 infinity;
    double (*widen) (guint16 bits);
  } cases[] = {
    { EBB_DTYPE_BF16, "bf16", 0x7f80, brain_to_double },
    { EBB_DTYPE_F16, "f16", 0x7c00, half_to_double },
  };
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-casts.safetensors");
  g_autoptr (EbbTensor) x = test_fixture_tensor (fixture, "cast.x");

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "cast.%s", cases[i].name);
      g_autoptr (EbbTensor) narrowed = ebb_cast (x, cases[i].dtype, &error);
      g_autoptr (EbbTensor) widened = ebb_cast (expected, EBB_DTYPE_F32, &error);
      const guint16 *bits = test_read (expected);
      const float *values = test_read (widened);

      g_assert_no_error (error);
      assert_same_bits (narrowed, expected, cases[i].infinity);
      for (gint64 k = 0; k < ebb_tensor_get_n_elements (x); k++)
        {
          double right = cases[i].widen (bits[k]);

          g_assert_true (isnan (right) ? isnan (values[k])
                                       : values[k] == right && !signbit (values[k]) == !signbit (right));
        }
    }
}

static void
casts_to_integers_cut_off (void)
{
  g_autoptr (EbbArgs) fixture = test_load_fixture ("op-casts.safetensors");
  g_autoptr (EbbTensor) x = test_fixture_tensor (fixture, "cast.x");
  g_autoptr (EbbTensor) expected = test_fixture_tensor (fixture, "cast.i64_from_finite");
  g_autoptr (EbbTensor) finite = ebb_narrow (x, 0, ebb_tensor_get_dim (x, 0) - 96, 96, NULL);
  g_autoptr (EbbTensor) whole = ebb_cast (finite, EBB_DTYPE_I64, NULL);

  g_assert_true (ebb_tensor_equal (whole, expected));
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/pytorch-ops/attention/is-pytorchs", attention_is_pytorchs);
  g_test_add_func ("/pytorch-ops/attention/shows-wrong-formulas", attention_shows_wrong_formulas);
  g_test_add_func ("/pytorch-ops/cross-entropy/is-pytorchs", cross_entropy_is_pytorchs);
  g_test_add_func ("/pytorch-ops/cross-entropy/shows-wrong-formulas", cross_entropy_shows_wrong_formulas);
  g_test_add_func ("/pytorch-ops/layer-norm/is-pytorchs", layer_norm_is_pytorchs);
  g_test_add_func ("/pytorch-ops/rms-norm/is-pytorchs", rms_norm_is_pytorchs);
  g_test_add_func ("/pytorch-ops/batch-norm/is-pytorchs", batch_norm_is_pytorchs);
  g_test_add_func ("/pytorch-ops/activations/are-pytorchs", activations_are_pytorchs);
  g_test_add_func ("/pytorch-ops/activations/each-gelu-is-its-own", each_gelu_is_its_own);
  g_test_add_func ("/pytorch-ops/casts/round-as-pytorch", casts_round_as_pytorch);
  g_test_add_func ("/pytorch-ops/casts/to-integers-cut-off", casts_to_integers_cut_off);
  return g_test_run ();
}
