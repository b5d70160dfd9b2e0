/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"

#include <math.h>
#include <string.h>

/* Bad input is an error of one line that names the argument and its value and says what would be right; nothing
 * changes. */

#define SHAPE(...) (const gint64[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const gint64[]){ __VA_ARGS__ }))
#define DIMS(...) (const int[]){ __VA_ARGS__ }, G_N_ELEMENTS (((const int[]){ __VA_ARGS__ }))

/* Checks that @result is none and why, and makes @error ready for the next one. */
#define assert_fails(result, error, code, text)     \
  G_STMT_START                                      \
  {                                                 \
    g_assert_null (result);                         \
    g_assert_error ((error), EBB_ERROR, (code));    \
    g_assert_cmpstr ((error)->message, ==, (text)); \
    g_clear_error (&(error));                       \
  }                                                 \
  G_STMT_END

static EbbTensor *
make (const gint64 *shape, guint n_dims, EbbDType dtype)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *tensor = ebb_ones (shape, n_dims, dtype, NULL, &error);

  g_assert_no_error (error);
  return tensor;
}

static void
shapes_that_do_not_broadcast (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) a = make (SHAPE (2, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) b = make (SHAPE (4, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) c = make (SHAPE (2), EBB_DTYPE_F32);

  assert_fails (ebb_add (a, b, &error), error, EBB_ERROR_SHAPE,
                "add: shapes [2, 3] and [4, 3] do not broadcast: sizes must be equal or 1, counted from the last "
                "dimension");
  assert_fails (ebb_expand (a, SHAPE (2, 2, 4), &error), error, EBB_ERROR_SHAPE,
                "expand: shape [2, 3] can't be expanded to [2, 2, 4]; from the right, sizes must be equal or 1");
  assert_fails (ebb_bias_gelu (a, c, EBB_GELU_TANH, &error), error, EBB_ERROR_SHAPE,
                "bias_gelu: bias of shape [2] does not fit x of shape [2, 3]; it must be as long as the last dimension "
                "of x");
  assert_fails (ebb_cat ((EbbTensor *[]){ a, b }, 2, 1, &error), error, EBB_ERROR_SHAPE,
                "cat: shapes [2, 3] and [4, 3] (number 1) do not fit; all sizes but that of dimension 1 must be equal");
  assert_fails (ebb_stack ((EbbTensor *[]){ a, b }, 2, 1, &error), error, EBB_ERROR_SHAPE,
                "stack: shapes [2, 3] and [4, 3] (number 1) differ; all must be equal");
  assert_fails (ebb_reshape (a, SHAPE (4, -1), &error), error, EBB_ERROR_SHAPE,
                "reshape: shape [2, 3] has 6 elements and can't be seen as [4, -1]; the number must be the same, with "
                "one -1 at most, in at most 8 dimensions");
  g_assert_false (ebb_tensor_copy_from (a, b, &error));
  assert_fails (NULL, error, EBB_ERROR_SHAPE,
                "copy_from: a tensor of shape [4, 3] does not broadcast to [2, 3]; sizes must be equal or 1");
}

static void
indices_out_of_range (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (SHAPE (5, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) tokens = ebb_tensor_new_from_ints ((const gint64[]){ 1, 5, 2 }, 3, SHAPE (3), &error);
  g_autoptr (EbbTensor) negative = ebb_tensor_new_from_ints ((const gint64[]){ 1, -1 }, 2, SHAPE (1, 2), &error);
  g_autoptr (EbbTensor) small = ebb_cast (tokens, EBB_DTYPE_I32, &error);

  g_assert_no_error (error);
  assert_fails (test_await_failure (ebb_embedding (x, tokens, &error), &error), error, EBB_ERROR_INDEX,
                "embedding: index 5 at position 1 is out of range; indices must be in [0, 5)");
  assert_fails (test_await_failure (ebb_embedding (x, small, &error), &error), error, EBB_ERROR_INDEX,
                "embedding: index 5 at position 1 is out of range; indices must be in [0, 5)");
  assert_fails (test_await_failure (ebb_index_select (x, 1, tokens, &error), &error), error, EBB_ERROR_INDEX,
                "index_select: index 5 at position 1 is out of range; indices must be in [0, 3)");
  assert_fails (test_await_failure (ebb_gather (x, 0, negative, &error), &error), error, EBB_ERROR_INDEX,
                "gather: index -1 at position 1 is out of range; indices must be in [0, 5)");
  assert_fails (test_await_failure (ebb_scatter_add (x, 0, negative, x, &error), &error), error, EBB_ERROR_INDEX,
                "scatter_add: index -1 at position 1 is out of range; indices must be in [0, 5)");
  assert_fails (ebb_select (x, 1, 3, &error), error, EBB_ERROR_INDEX,
                "select: index 3 is out of range; along dimension 1 it must be in [-3, 3)");
  assert_fails (ebb_narrow (x, 0, 4, 2, &error), error, EBB_ERROR_INDEX,
                "narrow: 2 elements from 4 are out of range; dimension 0 has 5");
  assert_fails (ebb_narrow (x, 0, 1, G_MAXINT64, &error), error, EBB_ERROR_INDEX,
                "narrow: 9223372036854775807 elements from 1 are out of range; dimension 0 has 5");
  assert_fails (ebb_softmax (x, 2, &error), error, EBB_ERROR_INDEX,
                "softmax: dimension 2 of a tensor with 2: must be from -2 to 1");
  assert_fails (ebb_sum (x, DIMS (0, -2), FALSE, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "sum: dimension -2 is given twice");
  assert_fails (ebb_permute (x, DIMS (1, 1), &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "permute: the tensor has 2 dimensions; each of them must be given once");
}

static void
memory_that_can_not_be_had (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) one = make (SHAPE (1, 1), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (EbbTensor) huge = NULL;
  EbbMemoryStats *stats = ebb_memory_get_stats (ebb_device_get_cpu ());
  guint64 before = ebb_memory_stats_get_total (stats);

  ebb_memory_stats_free (stats);
  g_assert_null (ebb_zeros (SHAPE (G_GINT64_CONSTANT (1) << 50), EBB_DTYPE_F32, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_assert_true (g_str_has_prefix (error->message, "zeros: "));
  g_assert_nonnull (strstr (error->message, "4503599627370496"));
  g_clear_error (&error);
  g_assert_null (ebb_randn (SHAPE (G_GINT64_CONSTANT (1) << 40, G_GINT64_CONSTANT (1) << 40), EBB_DTYPE_F32, NULL,
                            NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_clear_error (&error);
  g_assert_null (ebb_arange (0, 1e30, 1, EBB_DTYPE_I64, NULL, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_clear_error (&error);

  /* A view of any size costs nothing, its copy everything. */
  wide = ebb_expand (one, SHAPE (1 << 20, G_GINT64_CONSTANT (1) << 30), &error);
  g_assert_no_error (error);
  g_assert_null (ebb_neg (wide, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
  g_clear_error (&error);
  assert_fails (
      ebb_expand (one, SHAPE (G_GINT64_CONSTANT (1) << 40, G_GINT64_CONSTANT (1) << 40), &error), error,
      EBB_ERROR_SHAPE,
      "expand: shape [1, 1] can't be expanded to [1099511627776, 1099511627776]; from the right, sizes must be "
      "equal or 1");
  stats = ebb_memory_get_stats (ebb_device_get_cpu ());
  g_assert_cmpuint (ebb_memory_stats_get_total (stats), ==, before);
  ebb_memory_stats_free (stats);
}

static void
dtypes_that_do_not_fit (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) real = make (SHAPE (2), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) half = make (SHAPE (2), EBB_DTYPE_F16);
  g_autoptr (EbbTensor) integer = make (SHAPE (2), EBB_DTYPE_I64);
  g_autoptr (EbbTensor) truth = make (SHAPE (2), EBB_DTYPE_BOOL);

  assert_fails (ebb_add (half, real, &error), error, EBB_ERROR_DTYPE,
                "add: f16 holds data only; cast to f32 or bf16 first");
  assert_fails (ebb_sum (half, NULL, 0, FALSE, &error), error, EBB_ERROR_DTYPE,
                "sum: f16 holds data only; cast to f32 or bf16 first");
  assert_fails (ebb_exp (integer, &error), error, EBB_ERROR_DTYPE,
                "exp: needs a floating-point tensor, not i64; cast to f32 or bf16 first");
  assert_fails (ebb_mul (truth, truth, &error), error, EBB_ERROR_DTYPE,
                "mul: bool holds no numbers; cast to i64 or f32 first");
  assert_fails (ebb_where (integer, real, real, &error), error, EBB_ERROR_DTYPE,
                "where: the condition must be of bool, not i64; compare first, as with ne");
  assert_fails (ebb_embedding (real, real, &error), error, EBB_ERROR_SHAPE,
                "embedding: weight of shape [2] and indices of shape [2]; must be [V, C] and at most 7 dimensions");
  assert_fails (ebb_index_select (real, 0, real, &error), error, EBB_ERROR_DTYPE,
                "index_select: indices must be i64 or i32, not f32");
  assert_fails (ebb_zeros (SHAPE (2), (EbbDType) 99, NULL, &error), error, EBB_ERROR_DTYPE,
                "zeros: dtype number 99: there is none");
  assert_fails (ebb_cast (real, (EbbDType) 99, &error), error, EBB_ERROR_DTYPE,
                "cast: there is no dtype of number 99");
}

static void
numbers_out_of_range (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (SHAPE (2, 3), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) zeros = ebb_zeros (SHAPE (2, 3), EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbTensor) none = make (SHAPE (2, 0), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) drawn = NULL;
  guint n_parts = 77;

  assert_fails (ebb_dropout (x, 1.5, TRUE, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "dropout: p is 1.5; a probability is in [0, 1]");
  assert_fails (ebb_dropout (x, NAN, TRUE, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "dropout: p is nan; a probability is in [0, 1]");
  assert_fails (ebb_clamp (x, 2, 1, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "clamp: from 2 to 1 is no range; min must not exceed max");
  assert_fails (ebb_split (x, 0, 0, &n_parts, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "split: parts of size 0; it must be one or more");
  g_assert_cmpuint (n_parts, ==, 77);
  assert_fails (ebb_slice (x, 0, 0, 2, 0, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "slice: a step of 0; it must be one or more");
  assert_fails (
      ebb_arange (0, 5, -1, EBB_DTYPE_F32, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT,
      "arange: a step of -1 does not lead from 0 to 5; all must be finite and the step have the sign of end - "
      "start");
  assert_fails (
      ebb_max (none, DIMS (1), FALSE, &error), error, EBB_ERROR_SHAPE,
      "max: a tensor of shape [2, 0] has no elements along the reduced dimensions; there must be one or more");
  g_assert_false (ebb_topk (x, 4, TRUE, NULL, NULL, &error));
  assert_fails (NULL, error, EBB_ERROR_INVALID_ARGUMENT, "topk: k is 4; rows of 3 elements have from 1 to 3");
  drawn = ebb_multinomial (zeros, 1, NULL, &error);
  if (!test_device_is_cpu () && drawn != NULL) /* found when it is computed: the next to ask is told */
    g_assert_null (ebb_tensor_get_bytes (drawn, &error));
  else
    g_assert_null (drawn);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  assert_fails (ebb_randint (3, 3, SHAPE (2), EBB_DTYPE_I64, NULL, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "randint: can't draw i64 from [3, 3); low must be less than high, both within 9007199254740992");
  assert_fails (ebb_zeros (SHAPE (2, -3), EBB_DTYPE_F32, NULL, &error), error, EBB_ERROR_SHAPE,
                "zeros: shape [2, -3]: sizes must be 0 or more");
}

#define MISSING "is NULL: the call that should have made it failed; pass that call an error to see why"

/* A call whose error nobody took has made nothing. Whatever is done with nothing has an error of its own, so that a
 * program that shows `error->message` later never reads from NULL. */
static void
nothing_is_an_error (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (SHAPE (2, 2), EBB_DTYPE_F32);
  g_autoptr (EbbModule) no_model = ebb_linear_new (-1, 2, FALSE, NULL);
  double value;

  g_assert_null (no_model);
  assert_fails (ebb_module_call1 (no_model, x, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_module_call1: self " MISSING);
  assert_fails (ebb_adamw_new (no_model, 1, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "AdamW: module " MISSING);
  assert_fails (ebb_gpt_new (NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT, "ebb_gpt_new: config " MISSING);
  assert_fails (ebb_bert_new (NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT, "ebb_bert_new: config " MISSING);
  assert_fails (ebb_checkpoint_wrapper (no_model, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_checkpoint_wrapper: module " MISSING);
  assert_fails (ebb_add (x, NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT, "add: an operand " MISSING);
  assert_fails (ebb_tanh (NULL, &error), error, EBB_ERROR_INVALID_ARGUMENT, "tanh: an operand " MISSING);
  assert_fails (ebb_softmax (NULL, 0, &error), error, EBB_ERROR_INVALID_ARGUMENT, "softmax: x " MISSING);
  assert_fails (ebb_cast (NULL, EBB_DTYPE_BF16, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "cast: an operand " MISSING);
  assert_fails (ebb_cat ((EbbTensor *[]){ x, NULL }, 2, 0, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "cat: a tensor " MISSING);
  assert_fails (ebb_cross_entropy (NULL, x, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "cross_entropy: an operand " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_tensor_fill (NULL, 0, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "fill: tensor " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_tensor_backward (NULL, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_tensor_backward: tensor " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_tensor_get_item (NULL, &value, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "reading values: tensor " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_optimizer_step (NULL, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_optimizer_step: self " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_tensor_copy_from (x, NULL, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_tensor_copy_from: source " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_tensor_add_scaled (x, NULL, 1, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_tensor_add_scaled: other " MISSING);
  assert_fails (GINT_TO_POINTER (ebb_tensor_add_in_place (x, NULL, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "add_in_place: other " MISSING);
  assert_fails (ebb_clip_grad_norm (NULL, 1, 1, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "ebb_clip_grad_p_norm: parameters " MISSING);
  assert_fails (ebb_clip_grad_norm ((EbbTensor *[]){ NULL }, 1, 1, &error), error,
                EBB_ERROR_INVALID_ARGUMENT, "ebb_clip_grad_p_norm: a parameter " MISSING);
  assert_fails (ebb_sgd_new_for_parameters (NULL, 1, 1, &error), error, EBB_ERROR_INVALID_ARGUMENT,
                "Sgd: parameters " MISSING);
  g_assert_null (ebb_add (x, NULL, NULL));
}

static void
sizes (void)
{
  static const struct
  {
    const char *text;
    guint64 n_bytes;
  } right[] = { { "0", 0 },
                { "1500000", 1500000 },
                { "7 B", 7 },
                { "1.5GiB", G_GUINT64_CONSTANT (3) << 29 },
                { "1500MB", 1500000000 },
                { "2k", 2048 },
                { ".5tb", G_GUINT64_CONSTANT (500000000000) } };
  static const char *const wrong[] = {
    "", " ", "-1", ".", "x", "1x", "1GiBx", "0x10", "inf", "nan", "8388608T", "1e400"
  };
  g_autoptr (GError) error = NULL;
  guint64 n_bytes = 0;

  for (guint i = 0; i < G_N_ELEMENTS (right); i++)
    {
      g_assert_true (ebb_memory_parse_size (right[i].text, &n_bytes, &error));
      g_assert_cmpuint (n_bytes, ==, right[i].n_bytes);
    }
  for (guint i = 0; i < G_N_ELEMENTS (wrong); i++)
    {
      g_assert_false (ebb_memory_parse_size (wrong[i], &n_bytes, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
      g_clear_error (&error);
    }
  assert_fails (GINT_TO_POINTER (ebb_memory_parse_size ("1\n2", &n_bytes, &error)), error, EBB_ERROR_INVALID_ARGUMENT,
                "\"1\\n2\" is not a size: write bytes or a unit, as 1500000, 1500MB or 1.5GiB");
}

/* With an error that is there already nothing happens, and the error stays. */
static void
errors_pass_through (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = make (SHAPE (2, 2), EBB_DTYPE_F32);
  g_autoptr (EbbTensor) y = NULL;
  g_autofree char *first = NULL;

  g_assert_null (ebb_select (x, 0, 9, &error));
  first = g_strdup (error->message);
  y = ebb_add (x, x, &error);
  g_assert_null (y);
  g_assert_null (ebb_add (y, NULL, &error));
  g_assert_null (ebb_zeros (SHAPE (2), EBB_DTYPE_F32, NULL, &error));
  g_assert_null (ebb_contiguous (x, &error));
  g_assert_null (ebb_transpose (x, 0, 9, &error));
  g_assert_null (ebb_dropout (x, 0, FALSE, NULL, &error));
  g_assert_false (ebb_tensor_fill (x, 5, &error));
  g_assert_cmpstr (error->message, ==, first);
  g_clear_error (&error);
  y = ebb_ones (SHAPE (2, 2), EBB_DTYPE_F32, NULL, &error);
  g_assert_true (ebb_tensor_equal (x, y));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/bad-input/shapes-that-do-not-broadcast", shapes_that_do_not_broadcast);
  g_test_add_func ("/bad-input/indices-out-of-range", indices_out_of_range);
  g_test_add_func ("/bad-input/memory-that-can-not-be-had", memory_that_can_not_be_had);
  g_test_add_func ("/bad-input/dtypes-that-do-not-fit", dtypes_that_do_not_fit);
  g_test_add_func ("/bad-input/numbers-out-of-range", numbers_out_of_range);
  g_test_add_func ("/bad-input/nothing-is-an-error", nothing_is_an_error);
  g_test_add_func ("/bad-input/errors-pass-through", errors_pass_through);
  g_test_add_func ("/bad-input/sizes", sizes);
  return g_test_run ();
}
