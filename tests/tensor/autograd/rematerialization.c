/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/gpt-step.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <glib/gstdio.h>

/* Results that one cheap kernel recomputes from tensors that are kept anyway are not kept: norms, GELU, SiLU, gated
 * activations, rotations of a norm. Each of these is compared with itself behind a view, whose data is kept as it is.
 */

enum
{
  ROWS = 6,
  SIZE = 16,
  OUT = 8
};

#define UNIT (ROWS * SIZE * 4)

/* -- ops ----------------------------------------------------------------------------------------------------------- */

typedef enum
{
  GELU,
  GELU_TANH,
  SILU,
  BIAS_GELU,
  LAYER_NORM,
  LAYER_NORM_BARE,
  RMS_NORM,
  RMS_NORM_BARE,
  RESIDUAL_NORM,
  GATED_GELU,
  GATED_SILU,
  RMS_NORM_UNIT,
  RESIDUAL_RMS_NORM,
  RESIDUAL_RMS_NORMS,
  N_MAKERS
} Maker;

typedef struct
{
  EbbTensor *x, *residual, *scale, *shift, *weight;
} Leaves;

static EbbTensor *
leaf (guint64 seed, gint64 rows, gint64 columns, EbbDType dtype)
{
  g_autoptr (EbbTensor) values = rows > 0 ? test_randn (seed, rows, columns, -1) : test_randn (seed, columns, -1);
  EbbTensor *tensor = ebb_cast (values, dtype, NULL);

  ebb_tensor_set_requires_grad (tensor, TRUE, NULL);
  return tensor;
}

static void
leaves_init (Leaves *leaves, EbbDType dtype)
{
  leaves->x = leaf (1, ROWS, SIZE, dtype);
  leaves->residual = leaf (2, ROWS, SIZE, dtype);
  leaves->scale = leaf (3, 0, SIZE, EBB_DTYPE_F32);
  leaves->shift = leaf (4, 0, SIZE, EBB_DTYPE_F32);
  leaves->weight = leaf (5, OUT, SIZE, dtype);
}

static void
leaves_clear (Leaves *leaves)
{
  ebb_tensor_unref (leaves->x);
  ebb_tensor_unref (leaves->residual);
  ebb_tensor_unref (leaves->scale);
  ebb_tensor_unref (leaves->shift);
  ebb_tensor_unref (leaves->weight);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Leaves, leaves_clear)

static EbbTensor *
make (Maker maker, const Leaves *leaves)
{
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (GError) error = NULL;
  EbbTensor *y = NULL;

  switch (maker)
    {
    case GELU:
    case GELU_TANH:
      y = ebb_gelu (leaves->x, maker == GELU ? EBB_GELU_EXACT : EBB_GELU_TANH, &error);
      break;
    case SILU:
      y = ebb_silu (leaves->x, &error);
      break;
    case BIAS_GELU:
      y = ebb_bias_gelu (leaves->x, leaves->shift, EBB_GELU_TANH, &error);
      break;
    case LAYER_NORM:
      y = ebb_layer_norm (leaves->x, leaves->scale, leaves->shift, 1e-5, &error);
      break;
    case LAYER_NORM_BARE:
      y = ebb_layer_norm (leaves->x, NULL, NULL, 1e-5, &error);
      break;
    case RMS_NORM:
      y = ebb_rms_norm (leaves->x, leaves->scale, 1e-5, &error);
      break;
    case RMS_NORM_BARE:
      y = ebb_rms_norm (leaves->x, NULL, 1e-5, &error);
      break;
    case GATED_GELU:
    case GATED_SILU:
      y = ebb_gated_activation (leaves->x, leaves->residual,
                                maker == GATED_GELU ? EBB_ACTIVATION_GELU_TANH : EBB_ACTIVATION_SILU, &error);
      break;
    case RMS_NORM_UNIT:
      y = ebb_unit_offset_rms_norm (leaves->x, leaves->scale, 1e-5, &error);
      break;
    case RESIDUAL_RMS_NORM:
    case RESIDUAL_RMS_NORMS:
      ebb_residual_dropout_rms_norm (leaves->x, leaves->residual, maker == RESIDUAL_RMS_NORMS ? leaves->shift : NULL,
                                     leaves->scale, 1e-5, TRUE, 0.25, TRUE, generator, &sum, &y, &error);
      break;
    case RESIDUAL_NORM:
    default:
      ebb_residual_dropout_layer_norm (leaves->x, leaves->residual, leaves->scale, leaves->shift, 1e-5, 0.25, TRUE,
                                       generator, &sum, &y, &error);
    }
  g_assert_no_error (error);
  return y;
}

/* A loss to which every element of the product contributes something else. */
static EbbTensor *
loss_of (EbbTensor *y, EbbTensor *weight)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) product = ebb_linear (y, weight, NULL, &error);
  g_autoptr (EbbTensor) exact = ebb_cast (product, EBB_DTYPE_F32, &error);
  g_autoptr (EbbTensor) factors = test_randn (9, ROWS, OUT, -1);
  g_autoptr (EbbTensor) weighted = ebb_mul (exact, factors, &error);
  EbbTensor *loss = ebb_sum (weighted, NULL, 0, FALSE, &error);

  g_assert_no_error (error);
  return loss;
}

/* A view has no kernel that could rematerialize it. */
static EbbTensor *
seen_through_a_view (EbbTensor *y)
{
  EbbTensor *view = ebb_reshape (y, (gint64[]){ ROWS, SIZE }, 2, NULL);

  g_assert_nonnull (view);
  return view;
}

static void
assert_same_bits (EbbTensor *a, EbbTensor *b)
{
  g_autoptr (GBytes) first = NULL;
  g_autoptr (GBytes) second = NULL;

  g_assert_true ((a == NULL) == (b == NULL));
  if (a == NULL)
    return;
  first = ebb_tensor_get_bytes (a, NULL);
  second = ebb_tensor_get_bytes (b, NULL);
  g_assert_true (g_bytes_equal (first, second));
}

static void
assert_same_grads (const Leaves *a, const Leaves *b)
{
  EbbTensor *const first[] = { a->x, a->residual, a->scale, a->shift, a->weight };
  EbbTensor *const second[] = { b->x, b->residual, b->scale, b->shift, b->weight };

  for (guint i = 0; i < G_N_ELEMENTS (first); i++)
    {
      g_autoptr (EbbTensor) one = ebb_tensor_get_grad (first[i]);
      g_autoptr (EbbTensor) other = ebb_tensor_get_grad (second[i]);

      assert_same_bits (one, other);
    }
}

static void
backward (EbbTensor *loss)
{
  g_autoptr (GError) error = NULL;

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static guint64
activations (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

/* -- values -------------------------------------------------------------------------------------------------------- */

static void
train (Maker maker, gboolean view, EbbSavedTensorHooks *hooks, Leaves *leaves)
{
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) seen = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  if (hooks != NULL)
    ebb_push_saved_tensor_hooks (hooks);
  y = make (maker, leaves);
  seen = view ? seen_through_a_view (y) : ebb_tensor_ref (y);
  loss = loss_of (seen, leaves->weight);
  if (hooks != NULL)
    ebb_pop_saved_tensor_hooks ();
  g_clear_pointer (&y, ebb_tensor_unref);
  g_clear_pointer (&seen, ebb_tensor_unref);
  backward (loss);
}

typedef enum
{
  IN_F32,
  IN_BF16,
  IN_AUTOCAST
} Precision;

static void
gradients_are_the_same_to_the_last_bit (gconstpointer data)
{
  const Precision precision = (Precision) GPOINTER_TO_INT (data);
  const EbbDType dtype = precision == IN_BF16 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;

  ebb_push_autocast (precision == IN_AUTOCAST, EBB_DTYPE_BF16);
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      g_auto (Leaves) kept = { 0 };
      g_auto (Leaves) rematerialized = { 0 };

      leaves_init (&kept, dtype);
      leaves_init (&rematerialized, dtype);
      train (maker, TRUE, NULL, &kept);
      train (maker, FALSE, NULL, &rematerialized);
      assert_same_grads (&kept, &rematerialized);
    }
  ebb_pop_autocast ();
}

static void
any_store_may_keep_the_operands (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-rematerialized-XXXXXX", NULL);
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (folder);

  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      g_auto (Leaves) plain = { 0 };
      g_auto (Leaves) stored = { 0 };

      leaves_init (&plain, EBB_DTYPE_F32);
      leaves_init (&stored, EBB_DTYPE_F32);
      train (maker, TRUE, NULL, &plain);
      train (maker, FALSE, store, &stored);
      assert_same_grads (&plain, &stored);
      g_assert_cmpuint (test_held (store), ==, 0);
    }
  g_clear_object (&store);
  g_assert_cmpint (g_rmdir (folder), ==, 0);
}

/* -- bytes --------------------------------------------------------------------------------------------------------- */

static void
result_is_not_kept (void)
{
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      g_auto (Leaves) leaves = { 0 };
      guint64 kept[2];

      leaves_init (&leaves, EBB_DTYPE_F32);
      for (int view = 0; view < 2; view++)
        {
          const guint64 before = activations ();
          g_autoptr (EbbTensor) y = make (maker, &leaves);
          g_autoptr (EbbTensor) seen = view ? seen_through_a_view (y) : ebb_tensor_ref (y);
          g_autoptr (EbbTensor) loss = loss_of (seen, leaves.weight);

          kept[view] = activations () - before;
        }
      /* The shift of a norm is kept for this alone: of a module it is a parameter. */
      g_assert_cmpuint (kept[1] - kept[0], ==,
                        maker == LAYER_NORM || maker == RESIDUAL_NORM ? UNIT - SIZE * 4 : UNIT);
    }
}

/* Heads [1, ROWS, 2, SIZE / 2] of queries and keys, normalized, rotated and attended to. @views: with views between
 * that nothing can rematerialize. */
static EbbTensor *
attend (EbbTensor *x, EbbTensor *scale, EbbTensor *frequencies, gboolean views)
{
  const gint64 shape[] = { 1, ROWS, 2, SIZE / 2 };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) heads = ebb_reshape (x, shape, 4, &error);
  g_autoptr (EbbTensor) normalized = ebb_rms_norm (heads, scale, 1e-5, &error);
  g_autoptr (EbbTensor) seen = views ? ebb_reshape (normalized, shape, 4, &error) : ebb_tensor_ref (normalized);
  g_autoptr (EbbTensor) rotated = ebb_rotary (seen, frequencies, NULL, 3, 1, 1, &error);
  g_autoptr (EbbTensor) q = ebb_transpose (rotated, 1, 2, &error);
  g_autoptr (EbbTensor) v = ebb_transpose (heads, 1, 2, &error);
  g_autoptr (EbbTensor) attended = ebb_scaled_dot_product_attention (q, q, v, NULL, TRUE, 0, 0, NULL, &error);
  g_autoptr (EbbTensor) by_position = ebb_transpose (attended, 1, 2, &error);
  EbbTensor *y = ebb_reshape (by_position, (gint64[]){ ROWS, SIZE }, 2, &error);

  g_assert_no_error (error);
  return y;
}

/* Of queries that are normalized and rotated, what the norm had is kept: neither of the two results, though attention
 * sees a transposed one. */
static void
rotated_queries_are_not_kept (void)
{
  guint64 kept[2];
  g_autoptr (EbbTensor) frequencies = test_randn (8, SIZE / 4, -1);
  Leaves leaves[2];

  for (int views = 0; views < 2; views++)
    {
      const guint64 before = activations ();
      g_autoptr (EbbTensor) scale = leaf (6, 0, SIZE / 2, EBB_DTYPE_F32);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      leaves_init (&leaves[views], EBB_DTYPE_F32);
      y = attend (leaves[views].x, scale, frequencies, views);
      loss = loss_of (y, leaves[views].weight);
      kept[views] = activations () - before;
      backward (loss);
    }
  assert_same_grads (&leaves[0], &leaves[1]);
  g_assert_cmpuint (kept[1] - kept[0], ==, UNIT);
  for (int views = 0; views < 2; views++)
    leaves_clear (&leaves[views]);
}

/* Input, queries with keys and values, attention's result, the sum, what GELU is taken of; a number or two for each row
 * of the norms and of the scores. */
static void
block_keeps_ten_times_its_input (void)
{
  const gint64 tokens = TEST_GPT_BATCH * TEST_GPT_CONTEXT, unit = tokens * TEST_GPT_WIDTH * 4;
  const guint64 statistics = (guint64) tokens * (2 * 2 + 2 * TEST_GPT_HEADS) * 4;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) block =
      ebb_transformer_block_new (TEST_GPT_WIDTH, TEST_GPT_HEADS, 0, TRUE, TRUE, &error);
  g_autoptr (EbbTensor) input = test_randn (1, TEST_GPT_BATCH, TEST_GPT_CONTEXT, TEST_GPT_WIDTH, -1);
  const guint64 before = activations ();
  g_autoptr (EbbTensor) output = ebb_module_call1 (block, input, &error);

  g_assert_no_error (error);
  g_assert_cmpuint (activations () - before, ==, 10 * (guint64) unit + statistics);
}

static void
nothing_is_held_with_gradients_off (void)
{
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      const guint64 before = test_bytes_in_use ();
      g_autoptr (EbbTensor) y = NULL;
      Leaves leaves;

      leaves_init (&leaves, EBB_DTYPE_F32);
      ebb_push_grad_enabled (FALSE);
      y = make (maker, &leaves);
      ebb_pop_grad_enabled ();
      leaves_clear (&leaves);
      g_assert_cmpuint (test_bytes_in_use () - before, ==, UNIT);
    }
}

/* A recomputed result is freed when its node is done, however many passes the graph is retained for. */
static void
retained_graph_holds_no_more_of_a_recompute (void)
{
  guint64 peaks[2];

  for (int retain = 0; retain < 2; retain++)
    {
      g_autoptr (EbbModule) gpt = test_gpt_step_model (4, 0);
      g_autoptr (EbbTensor) tokens = test_tokens (1, 20, TEST_GPT_BATCH, TEST_GPT_CONTEXT, -1);
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbMemoryStats) stats = NULL;
      g_autoptr (GError) error = NULL;

      ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error);
      ebb_memory_reset_peaks (test_device ());
      loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, &error);
      ebb_backward (&loss, 1, NULL, 0, NULL, 0, retain, &error);
      g_assert_no_error (error);
      stats = ebb_memory_get_stats (test_device ());
      peaks[retain] = ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
    }
  g_assert_cmpuint (peaks[1], <, peaks[0] + peaks[0] / 4);
}

/* -- graphs -------------------------------------------------------------------------------------------------------- */

static void
graph_may_be_gone_through_again (void)
{
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      g_auto (Leaves) once = { 0 };
      g_auto (Leaves) again = { 0 };
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      leaves_init (&once, EBB_DTYPE_F32);
      leaves_init (&again, EBB_DTYPE_F32);
      train (maker, TRUE, NULL, &once);
      train (maker, TRUE, NULL, &once);
      y = make (maker, &again);
      loss = loss_of (y, again.weight);
      ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, &error);
      g_assert_no_error (error);
      backward (loss);
      assert_same_grads (&once, &again);
    }
}

static void
single_gradients_are_those_of_all (void)
{
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      g_auto (Leaves) leaves = { 0 };
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      leaves_init (&leaves, EBB_DTYPE_F32);
      train (maker, TRUE, NULL, &leaves);
      y = make (maker, &leaves);
      loss = loss_of (y, leaves.weight);
      for (int i = 0; i < 2; i++)
        {
          EbbTensor *wanted = i == 0 ? leaves.x : leaves.weight;
          g_autoptr (EbbTensor) all = ebb_tensor_get_grad (wanted);
          guint n_grads;
          g_autofree EbbTensor **grads = ebb_grad (&loss, 1, &wanted, 1, NULL, 0, TRUE, &n_grads, &error);

          g_assert_no_error (error);
          assert_same_bits (grads[0], all);
          ebb_tensor_unref (grads[0]);
        }
    }
}

/* -- changes in place ---------------------------------------------------------------------------------------------- */

static void
double_in_place (EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;

  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_scale (tensor, 2, &error));
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
}

/* The product has read the result, and rematerializes it. */
static void
result_may_change_after_it_was_read (void)
{
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      g_auto (Leaves) plain = { 0 };
      g_auto (Leaves) changed = { 0 };
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      leaves_init (&plain, EBB_DTYPE_F32);
      leaves_init (&changed, EBB_DTYPE_F32);
      train (maker, TRUE, NULL, &plain);
      y = make (maker, &changed);
      loss = loss_of (y, changed.weight);
      double_in_place (y);
      backward (loss);
      assert_same_grads (&plain, &changed);
    }
}

static void
double_from_outside (EbbTensor *tensor)
{
  float *values = (float *) (gsize) ebb_tensor_get_address (tensor, NULL);

  g_assert_nonnull (values);
  for (gint64 i = 0; i < ebb_tensor_get_n_elements (tensor); i++)
    values[i] *= 2;
}

/* The product reads values that differ from the op's result, so they are saved. */
static void
result_that_changed_before_is_kept_as_it_is (gconstpointer data)
{
  void (*change) (EbbTensor * tensor) = data != NULL ? double_from_outside : double_in_place;

  if (change == double_from_outside && !test_device_is_cpu ())
    {
      g_test_skip ("only the CPU's memory can be written from outside");
      return;
    }
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    {
      Leaves leaves[2] = { { 0 } };

      for (int view = 0; view < 2; view++)
        {
          g_autoptr (EbbTensor) y = NULL;
          g_autoptr (EbbTensor) seen = NULL;
          g_autoptr (EbbTensor) loss = NULL;

          leaves_init (&leaves[view], EBB_DTYPE_F32);
          y = make (maker, &leaves[view]);
          change (y);
          seen = view ? seen_through_a_view (y) : ebb_tensor_ref (y);
          loss = loss_of (seen, leaves[view].weight);
          backward (loss);
        }
      assert_same_grads (&leaves[0], &leaves[1]);
      leaves_clear (&leaves[0]);
      leaves_clear (&leaves[1]);
    }
}

/* An operand is no longer what the result was made from when the product reads that: the result is kept. What else the
 * change does to the pass, an error or another gradient of the operand, it does behind a view as well. */
static void
result_whose_operand_changed_is_kept (gconstpointer data)
{
  void (*change) (EbbTensor * tensor) = data != NULL ? double_from_outside : double_in_place;
  guint n_done = 0;

  if (change == double_from_outside && !test_device_is_cpu ())
    {
      g_test_skip ("only the CPU's memory can be written from outside");
      return;
    }
  for (Maker maker = 0; maker < N_MAKERS; maker++)
    for (int operand = 0; operand < 4; operand++)
      {
        Leaves leaves[2] = { { 0 } };
        gboolean done[2];

        for (int view = 0; view < 2; view++)
          {
            Leaves *self = &leaves[view];
            g_autoptr (EbbTensor) y = NULL;
            g_autoptr (EbbTensor) seen = NULL;
            g_autoptr (EbbTensor) loss = NULL;
            g_autoptr (GError) error = NULL;

            leaves_init (self, EBB_DTYPE_F32);
            y = make (maker, self);
            change ((EbbTensor *[]){ self->x, self->residual, self->scale, self->shift }[operand]);
            seen = view ? seen_through_a_view (y) : ebb_tensor_ref (y);
            loss = loss_of (seen, self->weight);
            done[view] = ebb_tensor_backward (loss, &error);
            g_assert_true (done[view] || g_error_matches (error, EBB_ERROR, EBB_ERROR_VERSION));
          }
        g_assert_true (done[0] == done[1]);
        if (done[0])
          assert_same_grads (&leaves[0], &leaves[1]);
        n_done += (guint) done[0];
        leaves_clear (&leaves[0]);
        leaves_clear (&leaves[1]);
      }
  g_assert_cmpuint (n_done, >=, N_MAKERS);
}

static void
operand_that_changed_is_an_error (void)
{
  for (Maker maker = 0; maker < RESIDUAL_NORM; maker++)
    {
      g_auto (Leaves) leaves = { 0 };
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      leaves_init (&leaves, EBB_DTYPE_F32);
      y = make (maker, &leaves);
      loss = loss_of (y, leaves.weight);
      double_in_place (leaves.x);
      g_assert_false (ebb_tensor_backward (loss, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/rematerialization/same-to-the-last-bit/f32", GINT_TO_POINTER (IN_F32),
                        gradients_are_the_same_to_the_last_bit);
  g_test_add_data_func ("/rematerialization/same-to-the-last-bit/bf16", GINT_TO_POINTER (IN_BF16),
                        gradients_are_the_same_to_the_last_bit);
  g_test_add_data_func ("/rematerialization/same-to-the-last-bit/autocast", GINT_TO_POINTER (IN_AUTOCAST),
                        gradients_are_the_same_to_the_last_bit);
  g_test_add_func ("/rematerialization/any-store-may-keep-the-operands", any_store_may_keep_the_operands);
  g_test_add_func ("/rematerialization/result-is-not-kept", result_is_not_kept);
  g_test_add_func ("/rematerialization/rotated-queries-are-not-kept", rotated_queries_are_not_kept);
  g_test_add_func ("/rematerialization/block-keeps-ten-times-its-input", block_keeps_ten_times_its_input);
  g_test_add_func ("/rematerialization/nothing-is-held-with-gradients-off", nothing_is_held_with_gradients_off);
  g_test_add_func ("/rematerialization/retained-graph-holds-no-more", retained_graph_holds_no_more_of_a_recompute);
  g_test_add_func ("/rematerialization/graph-may-be-gone-through-again", graph_may_be_gone_through_again);
  g_test_add_func ("/rematerialization/single-gradients", single_gradients_are_those_of_all);
  g_test_add_func ("/rematerialization/result-may-change-after-it-was-read", result_may_change_after_it_was_read);
  g_test_add_data_func ("/rematerialization/changed-before-it-was-read/in-place", NULL,
                        result_that_changed_before_is_kept_as_it_is);
  g_test_add_data_func ("/rematerialization/changed-before-it-was-read/from-outside", "outside",
                        result_that_changed_before_is_kept_as_it_is);
  g_test_add_data_func ("/rematerialization/operand-changed-before-the-result-was-read/in-place", NULL,
                        result_whose_operand_changed_is_kept);
  g_test_add_data_func ("/rematerialization/operand-changed-before-the-result-was-read/from-outside", "outside",
                        result_whose_operand_changed_is_kept);
  g_test_add_func ("/rematerialization/operand-that-changed-is-an-error", operand_that_changed_is_an_error);
  return g_test_run ();
}
