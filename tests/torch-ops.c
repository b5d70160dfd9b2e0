/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <math.h>
#include <string.h>

/* Ops and their gradients against what PyTorch computed in float64: see tests/fixtures/README.md. */

#define TOLERANCE 2e-6 /* relative to the greatest value */

static EbbArgs *fixtures;

static void
open_fixtures (const char *name)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *file = g_strconcat (name, ".safetensors", NULL);
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", file, NULL);

  fixtures = ebb_load_safetensors (path, &error);
  g_assert_no_error (error);
}

static void
close_fixtures (void)
{
  g_clear_pointer (&fixtures, ebb_args_unref);
}

static EbbTensor *
find (const char *op,
      const char *name)
{
  g_autofree char *key = g_strconcat (op, ".", name, NULL);
  int index = ebb_args_find (fixtures, key);

  return index >= 0 ? ebb_args_get_tensor (fixtures, (guint) index) : NULL;
}

/* A leaf with the values of "op.name". */
static EbbTensor *
find_leaf (const char *op,
           const char *name)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *given = find (op, name);
  EbbTensor *leaf;

  g_assert_nonnull (given);
  leaf = ebb_copy (given, &error);
  ebb_tensor_set_requires_grad (leaf, TRUE, &error);
  g_assert_no_error (error);
  return leaf;
}

static void
assert_equals (const char *op,
               const char *name,
               EbbTensor *result)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *expected = find (op, name);
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GBytes) right_bytes = NULL;
  const float *values, *right;
  gsize size, right_size;
  double greatest = 0;

  if (expected == NULL || result == NULL)
    g_error ("%s.%s: there is none", op, name);
  bytes = ebb_tensor_get_bytes (result, &error);
  right_bytes = ebb_tensor_get_bytes (expected, &error);
  g_assert_no_error (error);
  values = g_bytes_get_data (bytes, &size);
  right = g_bytes_get_data (right_bytes, &right_size);
  g_assert_cmpuint (size, ==, right_size);
  for (gsize i = 0; i < size / sizeof (float); i++)
    greatest = MAX (greatest, fabs ((double) right[i]));
  for (gsize i = 0; i < size / sizeof (float); i++)
    if (!(fabs ((double) values[i] - (double) right[i]) <= TOLERANCE * greatest))
      g_error ("%s.%s: element %" G_GSIZE_FORMAT " is %.9g, PyTorch has %.9g", op, name, i, (double) values[i],
               (double) right[i]);
}

/* Checks the output, sends "grad_out" back (1 for a scalar) and checks the gradients of the leaves. */
static void
check (const char *op,
       EbbTensor *output,
       EbbTensor **leaves,
       const char *const *names)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *grad = find (op, "grad_out");

  g_assert_nonnull (output);
  assert_equals (op, "out", output);
  ebb_backward (&output, 1, grad ? &grad : NULL, grad ? 1 : 0, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autofree char *name = g_strconcat ("grad_", names[i], NULL);

      assert_equals (op, name, ebb_tensor_get_grad (leaves[i]));
    }
}

#define NAMES(...)      \
  (const char *const[]) \
  {                     \
    __VA_ARGS__, NULL   \
  }

/* -- attention ---------------------------------------------------------------------------------------------------- */

/* [B, T] to [B, 1, 1, T] */
static EbbTensor *
find_key_mask (const char *op)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *mask = find (op, "key_mask");
  g_autoptr (EbbTensor) wide = NULL;

  if (mask == NULL)
    return NULL;
  wide = ebb_unsqueeze (mask, 1, &error);
  return ebb_unsqueeze (wide, 1, &error);
}

static void
check_attention (const char *kind)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *op = g_strconcat ("attention.", kind, NULL);
  g_autoptr (EbbTensor) q = find_leaf (op, "q");
  g_autoptr (EbbTensor) k = find_leaf (op, "k");
  g_autoptr (EbbTensor) v = find_leaf (op, "v");
  g_autoptr (EbbTensor) mask = find_key_mask (op);
  g_autoptr (EbbTensor) output =
      ebb_scaled_dot_product_attention (q, k, v, mask, strstr (kind, "causal") != NULL, 0, 0, NULL, &error);

  g_assert_no_error (error);
  check (op, output, (EbbTensor *[]){ q, k, v }, NAMES ("q", "k", "v"));
}

static void
attention_equals_torch (void)
{
  const char *const kinds[] = { "full", "causal", "padding", "causal_padding", "long_causal", "long_causal_padding",
                                "cross" };

  open_fixtures ("op-attention");
  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    check_attention (kinds[i]);
  close_fixtures ();
}

/* The same from one packed tensor. */
static void
packed_attention_equals_torch (void)
{
  const char *const op = "attention.causal_padding";
  g_autoptr (GError) error = NULL;
  EbbTensor *parts[3], *heads[3];
  g_autoptr (EbbTensor) mask = NULL;
  g_autoptr (EbbTensor) qkv = NULL;
  g_autoptr (EbbTensor) attention = NULL;
  g_autoptr (EbbTensor) split = NULL;
  g_autoptr (EbbTensor) output = NULL;
  gint64 b, t, c;

  open_fixtures ("op-attention");
  mask = find_key_mask (op);
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) swapped = NULL;

      heads[i] = find_leaf (op, (const char *[]){ "q", "k", "v" }[i]);
      swapped = ebb_transpose (heads[i], 1, 2, &error);
      parts[i] = ebb_flatten (swapped, 2, 3, &error);
    }
  qkv = ebb_cat (parts, 3, -1, &error);
  attention = ebb_self_attention (qkv, 3, mask, TRUE, 0, 0, NULL, &error);
  g_assert_no_error (error);
  b = ebb_tensor_get_dim (attention, 0);
  t = ebb_tensor_get_dim (attention, 1);
  c = ebb_tensor_get_dim (attention, 2);
  split = ebb_view (attention, (const gint64[]){ b, t, 3, c / 3 }, 4, &error);
  output = ebb_transpose (split, 1, 2, &error);
  check (op, output, heads, NAMES ("q", "k", "v"));
  for (guint i = 0; i < 3; i++)
    {
      ebb_tensor_unref (parts[i]);
      ebb_tensor_unref (heads[i]);
    }
  close_fixtures ();
}

/* -- losses ------------------------------------------------------------------------------------------------------- */

static void
check_cross_entropy (const char *smoothing,
                     const char *reduction,
                     EbbReduction value)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *op = g_strdup_printf ("cross_entropy.smoothing_%s.%s", smoothing, reduction);
  g_autoptr (EbbTensor) logits = find_leaf (op, "logits");
  g_autoptr (EbbTensor) output =
      ebb_cross_entropy_full (logits, find (op, "targets"), -100, g_ascii_strtod (smoothing, NULL), value, &error);

  g_assert_no_error (error);
  check (op, output, &logits, NAMES ("logits"));
}

static void
cross_entropy_equals_torch (void)
{
  open_fixtures ("op-cross-entropy");
  for (guint i = 0; i < 2; i++)
    {
      const char *smoothing = i == 0 ? "0.0" : "0.1";

      check_cross_entropy (smoothing, "mean", EBB_REDUCTION_MEAN);
      check_cross_entropy (smoothing, "sum", EBB_REDUCTION_SUM);
      check_cross_entropy (smoothing, "none", EBB_REDUCTION_NONE);
    }
  close_fixtures ();
}

/* With the identity as the weight the logits are the operand. */
static void
linear_cross_entropy_equals_torch (void)
{
  const char *const op = "cross_entropy.smoothing_0.1.mean";
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) ones = NULL;
  g_autoptr (EbbTensor) lower = NULL;
  g_autoptr (EbbTensor) identity = NULL;
  g_autoptr (EbbTensor) output = NULL;

  open_fixtures ("op-cross-entropy");
  x = find_leaf (op, "logits");
  ones = ebb_ones ((const gint64[]){ 13, 13 }, 2, EBB_DTYPE_F32, NULL, &error);
  lower = ebb_tril (ones, 0, &error);
  identity = ebb_triu (lower, 0, &error);
  output = ebb_fused_linear_cross_entropy (x, identity, find (op, "targets"), -100, 0.1, EBB_REDUCTION_MEAN, &error);
  g_assert_no_error (error);
  check (op, output, &x, NAMES ("logits"));
  close_fixtures ();
}

/* -- normalizations ----------------------------------------------------------------------------------------------- */

static void
norms_equal_torch (void)
{
  g_autoptr (GError) error = NULL;

  open_fixtures ("op-norms");
  {
    g_autoptr (EbbTensor) x = find_leaf ("layer_norm", "x");
    g_autoptr (EbbTensor) weight = find_leaf ("layer_norm", "weight");
    g_autoptr (EbbTensor) bias = find_leaf ("layer_norm", "bias");
    g_autoptr (EbbTensor) output = ebb_layer_norm (x, weight, bias, 1e-5, &error);

    check ("layer_norm", output, (EbbTensor *[]){ x, weight, bias }, NAMES ("x", "weight", "bias"));
  }
  {
    g_autoptr (EbbTensor) x = find_leaf ("rms_norm", "x");
    g_autoptr (EbbTensor) weight = find_leaf ("rms_norm", "weight");
    g_autoptr (EbbTensor) output = ebb_rms_norm (x, weight, 1e-5, &error);

    check ("rms_norm", output, (EbbTensor *[]){ x, weight }, NAMES ("x", "weight"));
  }
  g_assert_no_error (error);
  close_fixtures ();
}

static void
check_batch_norm (const char *op)
{
  g_autoptr (GError) error = NULL;
  const gint64 channels = 6;
  g_autoptr (EbbTensor) x = find_leaf (op, "x");
  g_autoptr (EbbTensor) weight = find_leaf (op, "weight");
  g_autoptr (EbbTensor) bias = find_leaf (op, "bias");
  g_autoptr (EbbTensor) mean = ebb_zeros (&channels, 1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) var = ebb_ones (&channels, 1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) output = ebb_batch_norm (x, weight, bias, mean, var, TRUE, 0.1, 1e-5, &error);
  g_autoptr (EbbTensor) doubled = ebb_mul_scalar (x, 2, &error);
  g_autoptr (EbbTensor) other = ebb_sub_scalar (doubled, 1, &error);
  g_autoptr (EbbTensor) second = NULL;
  g_autoptr (EbbTensor) evaluated = NULL;

  check (op, output, (EbbTensor *[]){ x, weight, bias }, NAMES ("x", "weight", "bias"));
  assert_equals (op, "running_mean_1", mean);
  assert_equals (op, "running_var_1", var);
  second = ebb_batch_norm (other, weight, bias, mean, var, TRUE, 0.1, 1e-5, &error);
  assert_equals (op, "running_mean_2", mean);
  assert_equals (op, "running_var_2", var);
  evaluated = ebb_batch_norm (x, weight, bias, mean, var, FALSE, 0.1, 1e-5, &error);
  assert_equals (op, "eval_out", evaluated);
  g_assert_no_error (error);
}

static void
batch_norm_equals_torch (void)
{
  open_fixtures ("op-norms");
  check_batch_norm ("batch_norm");
  check_batch_norm ("batch_norm_3d");
  close_fixtures ();
}

/* -- activations -------------------------------------------------------------------------------------------------- */

static EbbTensor *
activate (const char *name,
          EbbTensor *x,
          GError **error)
{
  if (strcmp (name, "gelu_tanh") == 0)
    return ebb_gelu (x, EBB_GELU_TANH, error);
  if (strcmp (name, "gelu_erf") == 0)
    return ebb_gelu (x, EBB_GELU_EXACT, error);
  if (strcmp (name, "silu") == 0)
    return ebb_silu (x, error);
  if (strcmp (name, "sigmoid") == 0)
    return ebb_sigmoid (x, error);
  if (strcmp (name, "tanh") == 0)
    return ebb_tanh (x, error);
  if (strcmp (name, "relu") == 0)
    return ebb_relu (x, error);
  return strcmp (name, "softmax") == 0 ? ebb_softmax (x, -1, error) : ebb_log_softmax (x, -1, error);
}

static void
activations_equal_torch (void)
{
  const char *const names[] = { "gelu_tanh", "gelu_erf", "silu", "sigmoid", "tanh", "relu", "softmax", "log_softmax" };

  open_fixtures ("op-activations");
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) x = find_leaf (names[i], "x");
      g_autoptr (EbbTensor) output = activate (names[i], x, &error);

      g_assert_no_error (error);
      check (names[i], output, &x, NAMES ("x"));
    }
  close_fixtures ();
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/torch-ops/attention", attention_equals_torch);
  g_test_add_func ("/torch-ops/packed-attention", packed_attention_equals_torch);
  g_test_add_func ("/torch-ops/cross-entropy", cross_entropy_equals_torch);
  g_test_add_func ("/torch-ops/linear-cross-entropy", linear_cross_entropy_equals_torch);
  g_test_add_func ("/torch-ops/norms", norms_equal_torch);
  g_test_add_func ("/torch-ops/batch-norm", batch_norm_equals_torch);
  g_test_add_func ("/torch-ops/activations", activations_equal_torch);
  return g_test_run ();
}
