/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/decoders.h"
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* A module in tiles gives what it gives untiled, and has its inner activations for one tile alone. */

#define ROWS 960 /* of a tile on one thread */

static EbbModule *
tile (EbbModule *module,
      gint64 n_rows)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_tile_wrapper (module, n_rows, &error);

  g_assert_no_error (error);
  g_assert_true (same == module);
  return module;
}

static EbbTensor *
new_input (gint64 rows,
           gint64 width,
           EbbDType dtype)
{
  g_autoptr (EbbTensor) start = test_randn (3, (int) rows, (int) width, -1);
  EbbTensor *x = ebb_cast (start, dtype, NULL);

  g_assert_true (ebb_tensor_set_requires_grad (x, TRUE, NULL));
  return x;
}

/* -- bits ---------------------------------------------------------------------------------------------------------- */

static EbbModule *
new_gelu (int width)
{
  return ebb_mlp_new (width, 0, EBB_ACTIVATION_GELU_TANH, NULL);
}

static EbbModule *
new_silu (int width)
{
  return ebb_mlp_new (width, 3 * width + 4, EBB_ACTIVATION_SILU, NULL);
}

/* As in a Llama: a gate and no biases. */
static EbbModule *
new_gated (int width)
{
  g_autoptr (EbbGptConfig) config = test_decoder_config ("llama2");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) gpt = NULL, layers = NULL, block = NULL;

  config->width = width;
  config->hidden = 2 * width + 4;
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  layers = ebb_module_get_child (gpt, "layers");
  block = ebb_module_get_child (layers, "0");
  return ebb_module_get_child (block, "mlp");
}

/* Dropout before, between and after the products. */
static EbbModule *
new_dropping (int width)
{
  return test_chain_new (ebb_dropout_new (0.2, NULL), ebb_linear_new (width, 2 * width, TRUE, NULL),
                         ebb_gelu_new (EBB_GELU_EXACT), ebb_dropout_new (0.3, NULL),
                         ebb_linear_new (2 * width, width + 4, TRUE, NULL), ebb_dropout_new (0.1, NULL), NULL);
}

typedef struct
{
  const char *name;
  EbbModule *(*new_module) (int width);
} Kind;

static const Kind kinds[] = {
  { "gelu", new_gelu },
  { "silu", new_silu },
  { "gated", new_gated },
  { "dropout", new_dropping },
};

static double
largest (EbbTensor *tensor)
{
  g_autoptr (EbbTensor) wide = ebb_cast (tensor, EBB_DTYPE_F32, NULL);
  g_autoptr (EbbTensor) size = ebb_abs (wide, NULL);
  g_autoptr (EbbTensor) most = NULL;

  if (ebb_tensor_get_n_elements (tensor) == 0)
    return 0;
  most = ebb_max (size, NULL, 0, FALSE, NULL);
  return test_at (most, 0);
}

/* On a GPU, tiles are multiplied and their gradients added in another order. */
static gboolean
is_exact (void)
{
  return !g_str_has_prefix (ebb_device_get_name (test_device ()), "cuda");
}

/* Names that begin with @prefix up to @tolerance of the greatest element, all others bit for bit. */
static void
assert_near (const TestOutcome *a,
             const TestOutcome *b,
             const char *prefix,
             double tolerance)
{
  g_assert_cmpuint (a->tensors->len, ==, b->tensors->len);
  g_assert_cmpuint (a->offset, ==, b->offset);
  for (guint i = 0; i < a->tensors->len; i++)
    test_assert_near (a->tensors->pdata[i], b->tensors->pdata[i],
                      g_str_has_prefix (a->names->pdata[i], prefix) ? tolerance * largest (a->tensors->pdata[i]) : 0.0);
}

static void
assert_same (const TestOutcome *a,
             const TestOutcome *b)
{
  if (is_exact ())
    test_assert_same_outcome (a, b);
  else
    assert_near (a, b, "", 2e-5);
}

/* In bf16 itself, gradients of weights are rounded after each tile: then the others are compared alone. */
static void
compare (const TestMode *mode,
         const TestOutcome *a,
         const TestOutcome *b)
{
  if (mode->dtype == EBB_DTYPE_F32 && !(mode->autocast && !is_exact ()))
    assert_same (a, b);
  else
    assert_near (a, b, is_exact () ? "gradient of " : "", 0.05);
}

static void
compare_tiles (const Kind *kind,
               const TestMode *mode,
               int width,
               gint64 n_rows)
{
  const gint64 least = ebb_tile_get_least_rows ();
  g_autoptr (EbbModule) module = kind->new_module (width);
  g_autoptr (EbbTensor) x = new_input (n_rows, width, mode->dtype);
  g_autoptr (TestOutcome) expected = NULL;
  g_autoptr (GError) error = NULL;

  ebb_module_to_dtype (module, mode->dtype, &error);
  g_assert_no_error (error);
  expected = test_train1 (module, x);
  for (gint64 of_tile = least; 2 * of_tile <= n_rows; of_tile += ebb_tile_get_row_block ())
    {
      g_autoptr (TestOutcome) outcome = NULL;

      tile (module, of_tile == least ? 0 : of_tile);
      g_assert_cmpint (ebb_tile_get_rows (module), ==, of_tile);
      outcome = test_train1 (module, x);
      compare (mode, expected, outcome);
      test_assert_counters (module, 0);
      g_assert_true (ebb_tile_unwrap (module));
    }
}

/* At every size of a tile that a planner may choose: full tiles alone, rows left over, one row more than two tiles. */
static void
bits_are_those_of_an_untiled_call (const TestMode *mode,
                                   gconstpointer data)
{
  const gint64 least = ebb_tile_get_least_rows ();

  g_assert_cmpint (least, ==, ebb_get_num_threads () * ROWS);
  compare_tiles (data, mode, 8, 2 * least + 1);
  if (mode->dtype == EBB_DTYPE_F32 && !mode->autocast)
    {
      compare_tiles (data, mode, 8, 4 * least);
      compare_tiles (data, mode, 24, 3 * least - 1);
    }
}

static void
bits_are_the_same_on_an_odd_number_of_threads (void)
{
  const int before = ebb_get_num_threads ();

  const TestMode mode = { "f32", EBB_DTYPE_F32, FALSE, 3 };

  ebb_set_num_threads (3);
  compare_tiles (&kinds[0], &mode, 24, 2 * ebb_tile_get_least_rows () + 77);
  ebb_set_num_threads (before);
}

/* Tiles of few rows have no row blocks. */
static void
compare_with_small_tiles (int width)
{
  g_autoptr (EbbModule) module = new_gelu (width);
  g_autoptr (EbbTensor) x = new_input (2 * ebb_tile_get_least_rows () + 256, width, EBB_DTYPE_F32);
  g_autoptr (TestOutcome) expected = test_train1 (module, x);
  g_autoptr (TestOutcome) outcome = test_train1 (tile (module, 100), x);

  for (guint i = 0; i < expected->tensors->len; i++)
    test_assert_near (expected->tensors->pdata[i], outcome->tensors->pdata[i],
                      1e-5 * largest (expected->tensors->pdata[i]));
}

/* oneDNN chooses its kernels by the sizes of a product: as wide as in real models. */
static void
bits_are_the_same_at_real_widths (gconstpointer data)
{
  const int before = ebb_get_num_threads ();
  const int width = GPOINTER_TO_INT (data);

  for (int n_threads = 1; n_threads <= (width > 256 ? 3 : 2); n_threads++)
    {
      const TestMode mode = { "f32", EBB_DTYPE_F32, FALSE, n_threads };

      ebb_set_num_threads (n_threads);
      compare_tiles (&kinds[0], &mode, width, 2 * ebb_tile_get_least_rows () + 256);
      compare_with_small_tiles (width);
    }
  ebb_set_num_threads (before);
}

/* Inputs of other forms: more dimensions, the last two swapped in memory, no gradient, arguments around the tensor. */
static void
forms_of_input_are_those_of_an_untiled_call (void)
{
  g_autoptr (EbbModule) module = new_dropping (8);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) deep = test_randn (1, 3, 700, 8, -1);
  g_autoptr (EbbTensor) wide = test_randn (2, 8, 2 * ROWS + 3, -1);
  g_autoptr (EbbTensor) across = NULL;
  g_autoptr (EbbTensor) plain = test_randn (2, 2 * ROWS + 3, 8, -1);
  g_autoptr (EbbTensor) one = test_randn (2, 8, -1);
  g_autoptr (EbbTensor) none = test_randn (2, 0, 8, -1);
  EbbTensor *inputs[6];

  ebb_tensor_set_requires_grad (deep, TRUE, NULL);
  ebb_tensor_set_requires_grad (wide, TRUE, NULL);
  across = ebb_transpose (wide, 0, 1, &error);
  g_assert_no_error (error);
  memcpy (inputs, ((EbbTensor *[]){ deep, across, plain, one, none, wide }), sizeof inputs);
  for (guint i = 0; i < 5; i++)
    {
      g_autoptr (TestOutcome) expected = test_train1 (module, inputs[i]);
      g_autoptr (EbbTensor) wide_grad = ebb_tensor_get_grad (wide);
      g_autoptr (EbbTensor) expected_wide = wide_grad != NULL ? ebb_copy (wide_grad, NULL) : NULL;
      g_autoptr (TestOutcome) outcome = NULL;

      ebb_tensor_set_grad (wide, NULL, NULL);
      tile (module, ROWS);
      outcome = test_train1 (module, inputs[i]);
      assert_same (expected, outcome);
      g_clear_pointer (&wide_grad, ebb_tensor_unref);
      wide_grad = ebb_tensor_get_grad (wide);
      if (expected_wide != NULL)
        test_assert_near (expected_wide, wide_grad, is_exact () ? 0.0 : 1e-4);
      ebb_tensor_set_grad (wide, NULL, NULL);
      ebb_tile_unwrap (module);
    }
}

/* Gradients add up over passes, with and without what was there; the graph may be kept. */
static void
gradients_accumulate (void)
{
  g_autoptr (EbbModule) module = new_gelu (8);
  g_autoptr (EbbTensor) x = new_input (2 * ROWS + 5, 8, EBB_DTYPE_F32);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  TestOutcome *outcomes[2];
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 2; i++)
    {
      if (i == 1)
        tile (module, ROWS);
      ebb_module_zero_grad (module);
      ebb_tensor_set_grad (x, NULL, NULL);
      for (guint pass = 0; pass < 2; pass++)
        {
          g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);
          g_autoptr (EbbTensor) loss = test_loss (y);

          g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, &error));
          test_backward (loss);
        }
      outcomes[i] = test_outcome_new (module, args);
    }
  assert_same (outcomes[0], outcomes[1]);
  test_outcome_free (outcomes[0]);
  test_outcome_free (outcomes[1]);
}

/* Tiles of any other number of rows differ by rounding alone, as said in docs/checkpointing.md. */
static void
other_sizes_differ_by_rounding (void)
{
  static const gint64 sizes[] = { 4, 12, 64, 100, 1000 };
  g_autoptr (EbbModule) module = new_dropping (8);
  g_autoptr (EbbTensor) x = new_input (2 * ROWS + 2, 8, EBB_DTYPE_F32);
  g_autoptr (TestOutcome) expected = test_train1 (module, x);

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      g_autoptr (TestOutcome) outcome = NULL;

      tile (module, sizes[i]);
      g_assert_cmpint (ebb_tile_get_rows (module), ==, sizes[i]);
      outcome = test_train1 (module, x);
      for (guint j = 0; j < expected->tensors->len; j++)
        test_assert_near (expected->tensors->pdata[j], outcome->tensors->pdata[j],
                          2e-5 * largest (expected->tensors->pdata[j]));
      g_assert_cmpuint (outcome->offset, ==, expected->offset);
    }
}

/* -- with other wrappers ------------------------------------------------------------------------------------------- */

static EbbModule *
get_child (EbbModule *chain,
           guint i)
{
  g_autofree char *name = g_strdup_printf ("%u", i);
  g_autoptr (EbbModule) child = ebb_module_get_child (chain, name);

  return child; /* the chain holds it */
}

typedef enum
{
  IN_CHECKPOINT,
  IN_SELECTIVE_CHECKPOINT,
  CHECKPOINT_ON_IT,
  CHECKPOINT_INSIDE,
  TILES_INSIDE,
  STORE_AROUND,
  STORE_OF_CHECKPOINT,
  N_WAYS
} Way;

static const char *const way_names[] = { "in-checkpoint", "in-selective-checkpoint", "checkpoint-on-it",
                                         "checkpoint-inside", "tiles-inside", "store-around", "store-of-checkpoint" };

static void
wrap_as (EbbModule *chain,
         Way way,
         EbbSavedTensorHooks *store)
{
  g_autoptr (EbbCheckpointOptions) selective = ebb_checkpoint_options_new_selective ();
  g_autoptr (EbbCheckpointOptions) stored = ebb_checkpoint_options_new ();
  EbbModule *middle = get_child (chain, 1);
  g_autoptr (EbbModule) same = NULL;

  ebb_checkpoint_options_set_store (stored, store);
  if (way == CHECKPOINT_INSIDE)
    test_wrap (get_child (middle, 0), NULL);
  if (way == TILES_INSIDE)
    tile (get_child (middle, 1), ROWS);
  tile (middle, way == TILES_INSIDE ? 2 * ROWS : ROWS);
  if (way == IN_CHECKPOINT || way == STORE_OF_CHECKPOINT)
    test_wrap (chain, way == STORE_OF_CHECKPOINT ? stored : NULL);
  if (way == IN_SELECTIVE_CHECKPOINT)
    test_wrap (chain, selective);
  if (way == CHECKPOINT_ON_IT)
    test_wrap (middle, NULL);
  if (way == STORE_AROUND)
    same = ebb_offload_wrapper (chain, store, NULL);
}

static EbbModule *
new_chain (void)
{
  return test_chain_new (ebb_linear_new (8, 8, TRUE, NULL), test_mlp_new (4), ebb_linear_new (8, 8, TRUE, NULL), NULL);
}

static void
works_with_other_wrappers (gconstpointer data)
{
  const Way way = GPOINTER_TO_UINT (data);
  g_autoptr (EbbTensor) x = new_input (4 * ROWS + 60, 8, EBB_DTYPE_F32);
  g_autoptr (EbbModule) chain = new_chain ();
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (g_get_tmp_dir ());
  g_autoptr (TestOutcome) expected = test_train1 (chain, x);
  g_autoptr (TestOutcome) outcome = NULL;

  wrap_as (chain, way, store);
  outcome = test_train1 (chain, x);
  assert_same (expected, outcome);
  test_assert_counters (chain, 0);
  if (way == STORE_AROUND || way == STORE_OF_CHECKPOINT)
    g_assert_cmpuint (ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store)), >, 0);
  g_assert_cmpuint (test_held (store), ==, 0);
}

/* Training flags are those of the forward, also where they change before backward. */
static void
training_state_is_that_of_the_forward (void)
{
  g_autoptr (EbbModule) module = new_dropping (8);
  g_autoptr (EbbTensor) x = new_input (3 * ROWS, 8, EBB_DTYPE_F32);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  TestOutcome *outcomes[4];

  for (guint i = 0; i < 4; i++)
    {
      const gboolean training = i < 2;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      if (i % 2 == 1)
        tile (module, ROWS);
      ebb_module_set_training (module, training);
      y = test_forward1 (module, x);
      loss = test_loss (y);
      ebb_module_set_training (module, !training);
      test_backward (loss);
      g_assert_true (ebb_module_get_training (module) == !training);
      outcomes[i] = test_outcome_new (module, args);
      ebb_tile_unwrap (module);
    }
  assert_same (outcomes[0], outcomes[1]);
  assert_same (outcomes[2], outcomes[3]);
  test_assert_other_outcome (outcomes[0], outcomes[2]);
  for (guint i = 0; i < 4; i++)
    test_outcome_free (outcomes[i]);
}

/* Each parameter moves when its last tile is done. */
static void
optimizers_step_in_backward (void)
{
  EbbModule *chains[2];

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) x = new_input (3 * ROWS, 8, EBB_DTYPE_F32);
      g_autoptr (EbbOptimizer) optimizer = NULL;
      g_autoptr (GError) error = NULL;

      chains[i] = test_mlp_new (1);
      if (i == 1)
        tile (chains[i], ROWS);
      optimizer = ebb_adamw_new (chains[i], 1e-3, &error);
      g_object_set (optimizer, "step-in-backward", i == 1, NULL);
      for (guint step = 0; step < 2; step++)
        {
          g_autoptr (EbbTensor) y = test_forward1 (chains[i], x);
          g_autoptr (EbbTensor) loss = test_loss (y);

          test_backward (loss);
          g_assert_true (ebb_optimizer_step (optimizer, &error));
          ebb_optimizer_zero_grad (optimizer);
        }
    }
  {
    guint n;
    g_autofree EbbTensor **a = ebb_module_get_parameters (chains[0], TRUE, &n);
    g_autofree EbbTensor **b = ebb_module_get_parameters (chains[1], TRUE, &n);

    for (guint i = 0; i < n; i++)
      {
        test_assert_near (a[i], b[i], is_exact () ? 0.0 : 1e-4);
        ebb_tensor_unref (a[i]);
        ebb_tensor_unref (b[i]);
      }
  }
  g_object_unref (chains[0]);
  g_object_unref (chains[1]);
}

/* -- off ----------------------------------------------------------------------------------------------------------- */

static void
without_gradients_nothing_is_recomputed (void)
{
  guint calls = 0;
  g_autoptr (EbbModule) module = test_counting_new (1, &calls);
  g_autoptr (EbbTensor) x = test_randn (1, 3 * ROWS, 8, -1);
  g_autoptr (EbbTensor) plain = test_forward1 (module, x);
  g_autoptr (EbbTensor) tiled = NULL;
  g_autoptr (EbbTensor) disabled = NULL;

  tile (module, ROWS);
  calls = 0;
  ebb_push_grad_enabled (FALSE);
  tiled = test_forward1 (module, x);
  ebb_pop_grad_enabled ();
  g_assert_cmpuint (calls, ==, 3);
  g_assert_false (ebb_tensor_get_requires_grad (tiled));
  g_assert_cmpfloat (test_difference (plain, tiled), ==, 0.0);
  ebb_push_checkpointing_disabled ();
  disabled = test_forward1 (module, x);
  ebb_pop_checkpointing_disabled ();
  g_assert_cmpuint (calls, ==, 4);
  g_assert_cmpfloat (test_difference (plain, disabled), ==, 0.0);
}

static void
a_wrapper_is_put_on_and_taken_off (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) chain = test_chain_new (new_gelu (8), new_silu (8), test_mlp_new (1), NULL);
  g_auto (GStrv) before = ebb_module_get_parameter_names (chain, TRUE);
  g_auto (GStrv) after = NULL;

  g_assert_false (ebb_tile_unwrap (chain));
  g_assert_cmpint (ebb_tile_get_rows (chain), ==, 0);
  g_assert_true (ebb_tile_wrap_each (chain, EBB_TYPE_MLP, 0, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_tile_is_wrapped (get_child (chain, 0)) && ebb_tile_is_wrapped (get_child (chain, 1)));
  g_assert_false (ebb_tile_is_wrapped (get_child (chain, 2)) || ebb_tile_is_wrapped (chain));
  g_assert_cmpint (ebb_tile_get_rows (get_child (chain, 0)), ==, ROWS);
  tile (get_child (chain, 0), 7);
  g_assert_cmpint (ebb_tile_get_rows (get_child (chain, 0)), ==, 7);
  after = ebb_module_get_parameter_names (chain, TRUE);
  g_assert_true (g_strv_equal ((const char *const *) before, (const char *const *) after));
  g_assert_true (ebb_tile_unwrap (get_child (chain, 0)));
  g_assert_false (ebb_tile_is_wrapped (get_child (chain, 0)));
}

/* -- errors -------------------------------------------------------------------------------------------------------- */

static void
mistakes_are_named (void)
{
  g_autoptr (EbbModule) module = new_gelu (8);
  g_autoptr (EbbModule) list = EBB_MODULE (ebb_module_list_new ());
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_tile_wrapper (module, -3, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "-3 rows", "one or more", "960");
  g_clear_error (&error);
  g_assert_null (ebb_tile_wrapper (list, 0, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "ModuleList", "never called");
  g_clear_error (&error);
  g_assert_false (ebb_tile_wrap_each (module, EBB_TYPE_TRANSFORMER_BLOCK, 0, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "TransformerBlock");
  g_clear_error (&error);
  g_assert_null (ebb_tile_wrapper (NULL, 0, &error));
  g_assert_nonnull (error);
}

static EbbTensor *
mean_of_rows (EbbModule *self,
              EbbTensor *x,
              gpointer data,
              GError **error)
{
  return ebb_mean (x, (const int[]){ 0 }, 1, TRUE, error);
}

static EbbTensor *
drop_columns (EbbModule *self,
              EbbTensor *x,
              gpointer data,
              GError **error)
{
  g_autoptr (EbbTensor) noise = ebb_rand ((const gint64[]){ 1, 7 }, 2, EBB_DTYPE_F32, NULL, NULL, error);
  g_autoptr (EbbTensor) few = ebb_narrow (noise, 1, 0, 1, error);

  return ebb_mul (x, few, error);
}

static EbbTensor *
fail_at_the_second (EbbModule *self,
                    EbbTensor *x,
                    gpointer data,
                    GError **error)
{
  guint *calls = data;
  g_autoptr (EbbTensor) dropped = ebb_dropout (x, 0.5, TRUE, NULL, error);

  if (++*calls == 2)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "stumbled");
      return NULL;
    }
  return g_steal_pointer (&dropped);
}

static EbbArgs *
give_two (EbbModule *self,
          EbbArgs *args,
          gpointer data,
          GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  EbbArgs *result = ebb_args_new (EBB_ARGS_TUPLE);

  ebb_args_add_tensor (result, NULL, x);
  ebb_args_add_tensor (result, NULL, x);
  return result;
}

static void
modules_that_dont_work_by_rows_fail (void)
{
  guint calls = 0;
  const struct
  {
    EbbModule *module;
    int code;
    const char *words[3];
  } cases[] = {
    { test_with_gain (test_lambda1_new (mean_of_rows, NULL), 1), EBB_ERROR_SHAPE, { "[1, 8]", "[960, 8]", "row" } },
    { test_lambda1_new (drop_columns, NULL), EBB_ERROR_NOT_SUPPORTED, { "random numbers", "each row" } },
    { test_lambda1_new (fail_at_the_second, &calls), EBB_ERROR_CALLBACK, { "stumbled" } },
    { test_lambda_new (give_two, NULL), EBB_ERROR_INVALID_ARGUMENT, { "one tensor" } },
  };
  g_autoptr (EbbTensor) x = new_input (3 * ROWS, 8, EBB_DTYPE_F32);
  g_autoptr (EbbArgs) two = ebb_args_new (EBB_ARGS_TUPLE);

  ebb_args_add_tensor (two, NULL, x);
  ebb_args_add_tensor (two, NULL, x);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) module = tile (cases[i].module, ROWS);
      TestState state;

      ebb_manual_seed (4);
      state = test_state_now ();
      g_assert_null (ebb_module_call1 (module, x, &error));
      test_assert_error (error, cases[i].code, cases[i].words[0], cases[i].words[1], cases[i].words[2]);
      test_assert_state (state);
      test_assert_counters (module, 0);
      g_clear_error (&error);
      g_assert_null (ebb_module_call (module, two, &error));
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "2 tensors");
    }
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

#define WIDTH 32

/* The most bytes at a time from a forward to the end of its backward, beyond parameters, gradients and what was there,
 * in tensors of [rows, WIDTH] that a call of all rows has; *workspace are those of kernels alone. */
static double
measure_step (EbbModule *module,
              EbbTensor *x,
              EbbTensor *dy,
              double *workspace)
{
  const double unit = (double) ebb_tensor_get_n_elements (x) * sizeof (float);
  g_autoptr (GError) error = NULL;
  guint64 before, most;

  /* The first step makes gradients and products' plans. */
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbMemoryStats) start = NULL;
      g_autoptr (EbbMemoryStats) end = NULL;

      ebb_tensor_set_grad (x, NULL, NULL);
      ebb_memory_reset_peaks (test_device ());
      start = ebb_memory_get_stats (test_device ());
      before = ebb_memory_stats_get_total (start);
      y = ebb_module_call1 (module, x, &error);
      g_assert_true (ebb_backward (&y, 1, &dy, 1, NULL, 0, FALSE, &error));
      g_assert_no_error (error);
      end = ebb_memory_get_stats (test_device ());
      most = ebb_memory_stats_get_peak_total (end) - before;
      *workspace = (double) ebb_memory_stats_get_peak (end, EBB_PURPOSE_WORKSPACE) / unit;
    }
  return (double) most / unit;
}

static void
inner_activations_exist_for_one_tile (void)
{
  const int n_tiles = 8;
  g_autoptr (EbbModule) module = ebb_mlp_new (WIDTH, 0, EBB_ACTIVATION_SILU, NULL);
  g_autoptr (EbbTensor) x = new_input (n_tiles * ROWS, WIDTH, EBB_DTYPE_F32);
  g_autoptr (EbbTensor) dy = test_randn (2, n_tiles * ROWS, WIDTH, -1);
  double workspace, plain = measure_step (module, x, dy, &workspace), tiled;

  tile (module, ROWS);
  tiled = measure_step (module, x, dy, &workspace); /* products of a GPU have some, and so may those with AVX-512 */
  /* Untiled: y and the hidden tensor of 4, its SiLU and the result's gradient, each of 4 again, and what was there.
   * Tiled: y, then the gradient of x, and as much of the rest as one tile has, of 8: two of 4 / 8 and the tile's y. */
  g_assert_cmpfloat (plain, >=, 9);
  g_assert_cmpfloat (tiled, <=, plain - 8 * (1 - 1.0 / n_tiles) + 1 + workspace);
  g_assert_cmpfloat (tiled, <=, 1 + 1 + 8.0 / n_tiles + workspace);
}

int
main (int argc,
      char **argv)
{
  static const int widths[] = { 256, 768, 1024 };

  test_init (&argc, &argv);
  ebb_set_num_threads (1);
  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    {
      g_autofree char *path = g_strdup_printf ("/tiles/bits-are-those-of-an-untiled-call/%s", kinds[i].name);

      test_add_modes_data (path, bits_are_those_of_an_untiled_call, &kinds[i]);
    }
  g_test_add_func ("/tiles/bits-are-the-same-on-an-odd-number-of-threads",
                   bits_are_the_same_on_an_odd_number_of_threads);
  for (guint i = 0; i < G_N_ELEMENTS (widths); i++)
    {
      g_autofree char *path = g_strdup_printf ("/tiles/bits-are-the-same-at-real-widths/%d", widths[i]);

      if (test_device_is_cpu () && (i == 0 || g_getenv ("EBB_LONG") != NULL))
        g_test_add_data_func (path, GINT_TO_POINTER (widths[i]), bits_are_the_same_at_real_widths);
    }
  g_test_add_func ("/tiles/forms-of-input-are-those-of-an-untiled-call", forms_of_input_are_those_of_an_untiled_call);
  g_test_add_func ("/tiles/gradients-accumulate", gradients_accumulate);
  g_test_add_func ("/tiles/other-sizes-differ-by-rounding", other_sizes_differ_by_rounding);
  for (guint i = 0; i < N_WAYS; i++)
    {
      g_autofree char *path = g_strdup_printf ("/tiles/works-with-other-wrappers/%s", way_names[i]);

      g_test_add_data_func (path, GUINT_TO_POINTER (i), works_with_other_wrappers);
    }
  g_test_add_func ("/tiles/training-state-is-that-of-the-forward", training_state_is_that_of_the_forward);
  g_test_add_func ("/tiles/optimizers-step-in-backward", optimizers_step_in_backward);
  g_test_add_func ("/tiles/without-gradients-nothing-is-recomputed", without_gradients_nothing_is_recomputed);
  g_test_add_func ("/tiles/a-wrapper-is-put-on-and-taken-off", a_wrapper_is_put_on_and_taken_off);
  g_test_add_func ("/tiles/mistakes-are-named", mistakes_are_named);
  g_test_add_func ("/tiles/modules-that-dont-work-by-rows-fail", modules_that_dont_work_by_rows_fail);
  g_test_add_func ("/tiles/inner-activations-exist-for-one-tile", inner_activations_exist_for_one_tile);
  return g_test_run ();
}
