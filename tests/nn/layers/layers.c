/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "support/device.h"
#include "support/tensors.h"

static EbbTensor *
call (EbbModule *module, EbbTensor *x)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *y = ebb_module_call1 (module, x, &error);

  g_assert_no_error (error);
  return y;
}

/* Calls with x and, where it is given, one more tensor by name. */
static EbbTensor *
call_with (EbbModule *module, EbbTensor *x, const char *name, EbbTensor *other)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (GError) error = NULL;

  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, name, other);
  result = ebb_module_call (module, args, &error);
  g_assert_no_error (error);
  return ebb_args_get_tensor (result, 0);
}

static EbbTensor *
parameter (EbbModule *module, const char *name)
{
  EbbTensor *tensor = ebb_module_get_parameter (module, name);

  g_assert_nonnull (tensor);
  return tensor;
}

/* A hook that sees all and changes nothing, to keep a module from being fused with its neighbours. */
static gboolean
look_on (EbbModule *module, EbbArgs *args, EbbArgs *result, gpointer user_data, GError **error)
{
  return TRUE;
}

static void
hook_all (EbbModule *module)
{
  EbbModule **modules;
  guint n;

  modules = ebb_module_get_modules (module, &n);
  for (guint i = 0; i < n; i++)
    {
      ebb_module_add_forward_hook (modules[i], look_on, NULL, NULL);
      g_object_unref (modules[i]);
    }
  g_free (modules);
}

/* The mean of squares, backwards; then every parameter must have a gradient that is not zero throughout. */
static void
check_all_parameters_learn (EbbModule *module, EbbTensor *output)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) squares = ebb_square (output, &error);
  g_autoptr (EbbTensor) loss = ebb_mean (squares, NULL, 0, FALSE, &error);
  g_auto (GStrv) names = ebb_module_get_parameter_names (module, TRUE);

  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) weight = parameter (module, names[i]);
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (weight);
      g_autoptr (EbbTensor) zero = ebb_mul_scalar (weight, 0, &error);

      if (grad == NULL || !(test_difference (grad, zero) > 0) || isinf (test_difference (grad, zero)))
        g_error ("%s has no gradient", names[i]);
    }
}

/* -- single layers ------------------------------------------------------------------------------------------------- */

static void
linear_starts_within_its_bound (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) linear = ebb_linear_new (100, 50, TRUE, &error);
  g_autoptr (EbbTensor) weight = parameter (linear, "weight");
  g_autoptr (EbbTensor) bias = parameter (linear, "bias");
  g_autoptr (EbbTensor) square = ebb_square (weight, &error);
  g_autoptr (EbbTensor) zero = ebb_mul_scalar (weight, 0, &error);
  double largest = test_difference (weight, zero);

  test_assert_shape (weight, "[50, 100]");
  test_assert_shape (bias, "[50]");
  g_assert_cmpfloat (largest, <=, 0.1);
  g_assert_cmpfloat (largest, >, 0.099);
  g_assert_cmpfloat (fabs (test_sum (square) / 5000 - 0.01 / 3), <, 2e-4); /* the variance of a uniform draw */
  g_assert_cmpfloat (fabs (test_sum (weight) / 5000), <, 3e-3);
}

static void
linear_is_a_product_and_a_bias (void)
{
  g_autoptr (EbbModule) linear = ebb_linear_new (2, 3, TRUE, NULL);
  g_autoptr (EbbTensor) weight = test_floats ((float[]){ 1, 2, 3, 4, 5, 6 }, 3, 2, -1);
  g_autoptr (EbbTensor) bias = test_floats ((float[]){ 10, 20, 30 }, 3, -1);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1, -1 }, 1, 2, -1);
  g_autoptr (EbbTensor) expected = test_floats ((float[]){ 9, 19, 29 }, 1, 3, -1);
  g_autoptr (EbbTensor) y = NULL;

  ebb_module_register_parameter (linear, "weight", weight, NULL);
  ebb_module_register_parameter (linear, "bias", bias, NULL);
  y = call (linear, x);
  test_assert_near (y, expected, 0);
}

static void
the_seed_makes_the_weights (void)
{
  g_autoptr (EbbModule) a = NULL;
  g_autoptr (EbbModule) b = NULL;
  g_autoptr (EbbModule) c = NULL;
  g_autoptr (EbbTensor) weight_a = NULL;
  g_autoptr (EbbTensor) weight_b = NULL;
  g_autoptr (EbbTensor) weight_c = NULL;

  ebb_manual_seed (5);
  a = ebb_linear_new (8, 8, TRUE, NULL);
  c = ebb_linear_new (8, 8, TRUE, NULL);
  ebb_manual_seed (5);
  b = ebb_linear_new (8, 8, TRUE, NULL);
  weight_a = parameter (a, "weight");
  weight_b = parameter (b, "weight");
  weight_c = parameter (c, "weight");
  test_assert_near (weight_a, weight_b, 0);
  g_assert_cmpfloat (test_difference (weight_a, weight_c), >, 0.01);
}

static void
sizes_that_make_no_sense_are_refused (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_linear_new (0, 3, TRUE, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Linear: in-features is 0", "at least 1");
  g_clear_error (&error);
  g_assert_null (ebb_embedding_new (10, -3, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Embedding: embedding-dim is -3");
  g_clear_error (&error);
  g_assert_null (ebb_layer_norm_new (4, NAN, TRUE, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "LayerNorm: eps is nan");
  g_clear_error (&error);
  g_assert_null (ebb_dropout_new (1.5, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Dropout: p is 1.5", "from 0 to 1");
  g_clear_error (&error);
  g_assert_null (ebb_multi_head_attention_new (10, 3, 0, TRUE, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "a width of 10 can't be divided among 3 heads");
  g_clear_error (&error);
  g_assert_null (ebb_transformer_block_new (10, 3, 0, TRUE, TRUE, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_null (ebb_mlp_new (G_MAXINT, 0, EBB_ACTIVATION_GELU_TANH, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Mlp: hidden is 0");
  g_clear_error (&error);
  g_assert_null (ebb_linear_new (G_MAXINT, G_MAXINT, TRUE, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY);
}

static void
embedding_picks_rows (void)
{
  g_autoptr (EbbModule) embedding = ebb_embedding_new (5, 3, NULL);
  g_autoptr (EbbTensor) weight = parameter (embedding, "weight");
  g_autoptr (EbbTensor) indices = ebb_tensor_new_from_ints ((gint64[]){ 4, 0 }, 2, (gint64[]){ 1, 2 }, 2, NULL);
  g_autoptr (EbbTensor) bad = ebb_tensor_new_from_ints ((gint64[]){ 5 }, 1, (gint64[]){ 1 }, 1, NULL);
  g_autoptr (EbbTensor) rows = call (embedding, indices);
  g_autoptr (GError) error = NULL;

  test_assert_shape (rows, "[1, 2, 3]");
  g_assert_cmpfloat (test_at (rows, 1), ==, test_at (weight, 13));
  g_assert_cmpfloat (test_at (rows, 5), ==, test_at (weight, 2));
  g_assert_null (test_await_failure (ebb_module_call1 (embedding, bad, &error), &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
}

static void
norms_start_as_plain_norms (void)
{
  g_autoptr (EbbModule) layer_norm = ebb_layer_norm_new (64, 0, TRUE, NULL);
  g_autoptr (EbbModule) rms_norm = ebb_rms_norm_new (64, 0, NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 10, 64, -1);
  g_autoptr (EbbTensor) by_layer = call (layer_norm, x);
  g_autoptr (EbbTensor) by_rms = call (rms_norm, x);
  g_autoptr (EbbTensor) layer_square = ebb_square (by_layer, NULL);
  g_autoptr (EbbTensor) rms_square = ebb_square (by_rms, NULL);

  g_assert_cmpfloat (fabs (test_sum (by_layer)), <, 1e-3);
  g_assert_cmpfloat (fabs (test_sum (layer_square) - 640), <, 1e-2);
  g_assert_cmpfloat (fabs (test_sum (by_rms)), >, 1e-2);
  g_assert_cmpfloat (fabs (test_sum (rms_square) - 640), <, 1e-2);
}

static void
batch_norm_learns_its_statistics (void)
{
  g_autoptr (EbbModule) norm = ebb_batch_norm1d_new (2, 1e-5, 0.5, NULL);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1, 10, 3, 30 }, 2, 2, -1);
  g_autoptr (EbbTensor) in_training = call (norm, x);
  g_autoptr (EbbTensor) expected = test_floats ((float[]){ -1, -1, 1, 1 }, 2, 2, -1);
  g_autoptr (EbbTensor) mean = ebb_module_get_buffer (norm, "running_mean");
  g_autoptr (EbbTensor) var = ebb_module_get_buffer (norm, "running_var");
  g_autoptr (EbbTensor) expected_mean = test_floats ((float[]){ 1, 10 }, 2, -1);
  g_autoptr (EbbTensor) expected_var = test_floats ((float[]){ 1.5, 100.5 }, 2, -1);
  g_autoptr (EbbTensor) in_evaluation = NULL;
  g_autoptr (EbbTensor) zero = test_floats ((float[]){ 0, 0, 1.632988f, 1.995018f }, 2, 2, -1);

  test_assert_near (in_training, expected, 1e-5);
  test_assert_near (mean, expected_mean, 1e-6);
  test_assert_near (var, expected_var, 1e-4);
  ebb_module_set_training (norm, FALSE);
  in_evaluation = call (norm, x);
  test_assert_near (in_evaluation, zero, 1e-4);
  test_assert_near (mean, expected_mean, 1e-6); /* evaluation moves nothing */
}

static void
batch_norm_without_statistics_takes_the_batchs (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) norm = g_initable_new (EBB_TYPE_BATCH_NORM1D, NULL, &error, "num-features", 2,
                                               "track-running-stats", FALSE, NULL);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1, 10, 3, 30 }, 2, 2, -1);
  g_autoptr (EbbTensor) expected = test_floats ((float[]){ -1, -1, 1, 1 }, 2, 2, -1);
  g_autoptr (EbbTensor) in_evaluation = NULL;

  g_assert_no_error (error);
  ebb_module_set_training (norm, FALSE);
  in_evaluation = call (norm, x);
  test_assert_near (in_evaluation, expected, 1e-5);
}

static void
dropout_is_for_training (void)
{
  g_autoptr (EbbModule) dropout = ebb_dropout_new (0.25, NULL);
  g_autoptr (EbbTensor) ones = ebb_ones ((gint64[]){ 10000 }, 1, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) dropped = NULL;
  g_autoptr (EbbTensor) kept = NULL;

  ebb_manual_seed (1);
  dropped = call (dropout, ones);
  g_assert_cmpfloat (fabs (test_sum (dropped) / 10000 - 1), <, 0.03);
  g_assert_cmpfloat (test_difference (dropped, ones), ==, 1);
  ebb_module_set_training (dropout, FALSE);
  kept = call (dropout, ones);
  test_assert_near (kept, ones, 0);
}

static void
activations_are_their_ops (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 100, -1);
  EbbModule *modules[] = { ebb_gelu_new (EBB_GELU_EXACT), ebb_gelu_new (EBB_GELU_TANH), ebb_relu_new (),
                           ebb_tanh_new (), ebb_silu_new (), ebb_sigmoid_new () };
  EbbTensor *expected[] = { ebb_gelu (x, EBB_GELU_EXACT, NULL), ebb_gelu (x, EBB_GELU_TANH, NULL), ebb_relu (x, NULL),
                            ebb_tanh (x, NULL), ebb_silu (x, NULL), ebb_sigmoid (x, NULL) };

  for (guint i = 0; i < G_N_ELEMENTS (modules); i++)
    {
      g_autoptr (EbbTensor) y = call (modules[i], x);

      test_assert_near (y, expected[i], 0);
      for (guint j = 0; j < i; j++)
        g_assert_cmpfloat (test_difference (expected[i], expected[j]), >, 0);
    }
  for (guint i = 0; i < G_N_ELEMENTS (modules); i++)
    {
      ebb_tensor_unref (expected[i]);
      g_object_unref (modules[i]);
    }
}

static void
a_list_is_not_called (void)
{
  g_autoptr (EbbModule) list = ebb_module_list_new ();
  g_autoptr (EbbModule) relu = ebb_relu_new ();
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 2, -1);
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_module_list_append (EBB_MODULE_LIST (list), relu, &error));
  g_assert_cmpuint (ebb_module_list_get_length (EBB_MODULE_LIST (list)), ==, 1);
  same = ebb_module_list_get (EBB_MODULE_LIST (list), 0);
  g_assert_true (same == relu);
  g_assert_null (ebb_module_list_get (EBB_MODULE_LIST (list), 1));
  g_assert_null (ebb_module_call1 (list, x, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "can't be called");
}

static void
an_empty_sequence_changes_nothing (void)
{
  g_autoptr (EbbModule) sequence = ebb_sequential_new ();
  g_autoptr (EbbTensor) x = test_randn (1, 2, -1);
  g_autoptr (EbbTensor) y = call (sequence, x);

  g_assert_true (y == x);
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

static EbbModule *
make_attention (gboolean causal)
{
  ebb_manual_seed (3);
  return ebb_multi_head_attention_new (12, 3, 0, causal, NULL);
}

static EbbTensor *
first_positions (EbbTensor *x, gint64 n)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) part = ebb_narrow (x, 1, 0, n, &error);
  EbbTensor *copy = ebb_contiguous (part, &error);

  g_assert_no_error (error);
  return copy;
}

static void
a_causal_position_sees_no_later_one (void)
{
  g_autoptr (EbbModule) causal = make_attention (TRUE);
  g_autoptr (EbbModule) full = make_attention (FALSE);
  g_autoptr (EbbTensor) x = test_randn (1, 2, 7, 12, -1);
  g_autoptr (EbbTensor) beginning = first_positions (x, 4);
  g_autoptr (EbbTensor) long_causal = call (causal, x);
  g_autoptr (EbbTensor) long_full = call (full, x);
  g_autoptr (EbbTensor) short_causal = call (causal, beginning);
  g_autoptr (EbbTensor) short_full = call (full, beginning);
  g_autoptr (EbbTensor) cut_causal = first_positions (long_causal, 4);
  g_autoptr (EbbTensor) cut_full = first_positions (long_full, 4);

  test_assert_shape (long_causal, "[2, 7, 12]");
  test_assert_near (short_causal, cut_causal, 1e-6);
  g_assert_cmpfloat (test_difference (short_full, cut_full), >, 1e-3);
}

static void
padding_is_not_seen (void)
{
  g_autoptr (EbbModule) attention = make_attention (FALSE);
  g_autoptr (EbbTensor) x = test_randn (1, 1, 6, 12, -1);
  g_autoptr (EbbTensor) beginning = first_positions (x, 4);
  g_autoptr (EbbTensor) without = call (attention, beginning);
  g_autoptr (EbbTensor) index = ebb_arange (0, 6, 1, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) is_text = ebb_lt_scalar (index, 4, NULL);
  g_autoptr (EbbTensor) mask = ebb_unsqueeze (is_text, 0, NULL);                      /* [1, 6] */
  g_autoptr (EbbTensor) by_query = ebb_expand (mask, (gint64[]){ 1, 6, 6 }, 3, NULL); /* [1, 6, 6] */
  g_autoptr (EbbTensor) masked = call_with (attention, x, "mask", mask);
  g_autoptr (EbbTensor) masked_by_query = call_with (attention, x, "mask", by_query);
  g_autoptr (EbbTensor) cut = first_positions (masked, 4);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (GError) error = NULL;

  test_assert_near (cut, without, 1e-6);
  test_assert_near (masked, masked_by_query, 1e-6);

  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, "mask", is_text);
  g_assert_null (ebb_module_call (attention, args, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "mask [6]", "[B, S]");
  g_clear_error (&error);
  ebb_args_add_tensor (args, "maks", mask);
  g_assert_null (ebb_module_call (attention, args, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "there is no argument \"maks\"", "x, context, mask");
}

/* Cross attention to the sequence itself, given the same weights, is self attention. */
static void
cross_attention_agrees_with_self_attention (void)
{
  g_autoptr (EbbModule) self = make_attention (FALSE);
  g_autoptr (EbbModule) cross = ebb_multi_head_attention_new_cross (12, 3, 12, 0, NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 2, 5, 12, -1);
  g_autoptr (EbbTensor) context = test_randn (2, 2, 9, 12, -1);
  g_autoptr (EbbArgs) own = ebb_module_get_state_dict (self);
  g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) from_self = call (self, x);
  g_autoptr (EbbTensor) from_cross = NULL;
  g_autoptr (EbbTensor) from_context = NULL;
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < ebb_args_get_length (own); i++)
    {
      const char *name = ebb_args_get_key (own, i);
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (own, i);

      if (g_str_has_prefix (name, "c_attn"))
        {
          g_autofree char *query_name = g_strconcat ("q_attn", strchr (name, '.'), NULL);
          g_autoptr (EbbTensor) query = ebb_narrow (tensor, 0, 0, 12, &error);
          g_autoptr (EbbTensor) rest = ebb_narrow (tensor, 0, 12, 24, &error);

          ebb_args_add_tensor (state, query_name, query);
          ebb_args_add_tensor (state, name, rest);
        }
      else
        ebb_args_add_tensor (state, name, tensor);
    }
  g_assert_true (ebb_module_load_state_dict (cross, state, TRUE, &error));
  g_assert_no_error (error);
  from_cross = call_with (cross, x, "context", x);
  test_assert_near (from_self, from_cross, 1e-6);
  from_context = call_with (cross, x, "context", context);
  test_assert_shape (from_context, "[2, 5, 12]");
  check_all_parameters_learn (cross, from_context);

  g_assert_null (ebb_module_call1 (cross, x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "context is missing");
}

static void
inputs_of_another_shape_are_refused (void)
{
  g_autoptr (EbbModule) block = ebb_transformer_block_new (12, 3, 0, TRUE, FALSE, NULL);
  g_autoptr (EbbTensor) narrow = test_randn (1, 2, 5, 8, -1);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_module_call1 (block, narrow, &error));
  test_assert_error (error, EBB_ERROR_SHAPE, "attn: MultiHeadAttention: x [2, 5, 8]", "[B, T, 12]");
}

/* -- composed ------------------------------------------------------------------------------------------------------ */

static void
mlp_is_linear_gelu_linear (void)
{
  g_autoptr (EbbModule) mlp = ebb_mlp_new (6, 0, EBB_ACTIVATION_GELU_TANH, NULL);
  g_autoptr (EbbModule) fc = ebb_module_get_child (mlp, "c_fc");
  g_autoptr (EbbModule) proj = ebb_module_get_child (mlp, "c_proj");
  g_autoptr (EbbTensor) x = test_randn (1, 4, 6, -1);
  g_autoptr (EbbTensor) y = call (mlp, x);
  g_autoptr (EbbTensor) hidden = call (fc, x);
  g_autoptr (EbbTensor) activated = ebb_gelu (hidden, EBB_GELU_TANH, NULL);
  g_autoptr (EbbTensor) expected = call (proj, activated);

  test_assert_shape (hidden, "[4, 24]");
  test_assert_near (y, expected, 1e-6);
  check_all_parameters_learn (mlp, y);
}

static EbbTensor *
compose_block (EbbModule *block, EbbTensor *x, gboolean pre_norm)
{
  g_autoptr (EbbModule) ln_1 = ebb_module_get_child (block, "ln_1");
  g_autoptr (EbbModule) attn = ebb_module_get_child (block, "attn");
  g_autoptr (EbbModule) ln_2 = ebb_module_get_child (block, "ln_2");
  g_autoptr (EbbModule) mlp = ebb_module_get_child (block, "mlp");
  g_autoptr (EbbTensor) a = pre_norm ? call (ln_1, x) : ebb_tensor_ref (x);
  g_autoptr (EbbTensor) b = call (attn, a);
  g_autoptr (EbbTensor) c = ebb_add (x, b, NULL);
  g_autoptr (EbbTensor) d = call (pre_norm ? ln_2 : ln_1, c);
  g_autoptr (EbbTensor) e = call (mlp, d);
  g_autoptr (EbbTensor) f = ebb_add (pre_norm ? c : d, e, NULL);

  return pre_norm ? ebb_tensor_ref (f) : call (ln_2, f);
}

static void
a_block_is_its_parts (gconstpointer data)
{
  gboolean pre_norm = GPOINTER_TO_INT (data);
  g_autoptr (EbbModule) block = ebb_transformer_block_new (12, 3, 0, TRUE, pre_norm, NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 2, 5, 12, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) expected = NULL;
  g_auto (GStrv) names = ebb_module_get_parameter_names (block, TRUE);
  g_autofree char *joined = g_strjoinv (" ", names);

  /* Norms of ones and zeros could be exchanged, and the loss of a norm's output is constant. */
  for (guint i = 0; names[i] != NULL; i++)
    {
      g_autoptr (EbbTensor) weight = parameter (block, names[i]);

      ebb_push_grad_enabled (FALSE);
      ebb_tensor_fill_uniform (weight, 0.1, 0.5, NULL, NULL);
      ebb_pop_grad_enabled ();
    }
  g_assert_cmpstr (joined, ==,
                   "ln_1.weight ln_1.bias attn.c_attn.weight attn.c_attn.bias attn.c_proj.weight attn.c_proj.bias "
                   "ln_2.weight ln_2.bias mlp.c_fc.weight mlp.c_fc.bias mlp.c_proj.weight mlp.c_proj.bias");
  y = call (block, x);
  expected = compose_block (block, x, pre_norm);
  test_assert_near (y, expected, 1e-5);
  check_all_parameters_learn (block, y);
}

/* Hooks and wrappers of a child must not change a bit, though the fused forms then give way to single ops. */
static void
fused_forms_give_the_same_bits (gconstpointer data)
{
  gboolean pre_norm = GPOINTER_TO_INT (data);
  EbbTensor *outputs[2];
  EbbTensor *grads[2];
  g_autoptr (GError) error = NULL;

  for (int hooked = 0; hooked < 2; hooked++)
    {
      g_autoptr (EbbModule) block = NULL;
      g_autoptr (EbbTensor) x = test_randn (1, 2, 33, 96, -1);
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbTensor) square = NULL;

      ebb_manual_seed (4);
      block = ebb_transformer_block_new (96, 3, 0.1, TRUE, pre_norm, NULL);
      if (hooked)
        hook_all (block);
      ebb_tensor_set_requires_grad (x, TRUE, NULL);
      outputs[hooked] = call (block, x);
      square = ebb_square (outputs[hooked], &error);
      loss = ebb_sum (square, NULL, 0, FALSE, &error);
      g_assert_true (ebb_tensor_backward (loss, &error));
      g_assert_no_error (error);
      grads[hooked] = ebb_tensor_get_grad (x);
    }
  test_assert_near (outputs[0], outputs[1], 0);
  test_assert_near (grads[0], grads[1], 0);
  for (int i = 0; i < 2; i++)
    {
      ebb_tensor_unref (outputs[i]);
      ebb_tensor_unref (grads[i]);
    }
}

static void
a_mask_reaches_attention_through_a_block (void)
{
  g_autoptr (EbbModule) block = ebb_transformer_block_new (12, 3, 0, FALSE, TRUE, NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 1, 6, 12, -1);
  g_autoptr (EbbTensor) beginning = first_positions (x, 4);
  g_autoptr (EbbTensor) index = ebb_arange (0, 6, 1, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) is_text = ebb_lt_scalar (index, 4, NULL);
  g_autoptr (EbbTensor) mask = ebb_unsqueeze (is_text, 0, NULL);
  g_autoptr (EbbTensor) masked = call_with (block, x, "mask", mask);
  g_autoptr (EbbTensor) cut = first_positions (masked, 4);
  g_autoptr (EbbTensor) without = call (block, beginning);

  test_assert_near (cut, without, 1e-6);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/layers/linear-starts-within-its-bound", linear_starts_within_its_bound);
  g_test_add_func ("/layers/linear-is-a-product-and-a-bias", linear_is_a_product_and_a_bias);
  g_test_add_func ("/layers/the-seed-makes-the-weights", the_seed_makes_the_weights);
  g_test_add_func ("/layers/sizes-that-make-no-sense-are-refused", sizes_that_make_no_sense_are_refused);
  g_test_add_func ("/layers/embedding-picks-rows", embedding_picks_rows);
  g_test_add_func ("/layers/norms-start-as-plain-norms", norms_start_as_plain_norms);
  g_test_add_func ("/layers/batch-norm-learns-its-statistics", batch_norm_learns_its_statistics);
  g_test_add_func ("/layers/batch-norm-without-statistics-takes-the-batchs",
                   batch_norm_without_statistics_takes_the_batchs);
  g_test_add_func ("/layers/dropout-is-for-training", dropout_is_for_training);
  g_test_add_func ("/layers/activations-are-their-ops", activations_are_their_ops);
  g_test_add_func ("/layers/a-list-is-not-called", a_list_is_not_called);
  g_test_add_func ("/layers/an-empty-sequence-changes-nothing", an_empty_sequence_changes_nothing);
  g_test_add_func ("/attention/a-causal-position-sees-no-later-one", a_causal_position_sees_no_later_one);
  g_test_add_func ("/attention/padding-is-not-seen", padding_is_not_seen);
  g_test_add_func ("/attention/cross-agrees-with-self", cross_attention_agrees_with_self_attention);
  g_test_add_func ("/attention/inputs-of-another-shape-are-refused", inputs_of_another_shape_are_refused);
  g_test_add_func ("/block/mlp-is-linear-gelu-linear", mlp_is_linear_gelu_linear);
  g_test_add_data_func ("/block/pre-norm-is-its-parts", GINT_TO_POINTER (TRUE), a_block_is_its_parts);
  g_test_add_data_func ("/block/post-norm-is-its-parts", GINT_TO_POINTER (FALSE), a_block_is_its_parts);
  g_test_add_data_func ("/block/fused-pre-norm-gives-the-same-bits", GINT_TO_POINTER (TRUE),
                        fused_forms_give_the_same_bits);
  g_test_add_data_func ("/block/fused-post-norm-gives-the-same-bits", GINT_TO_POINTER (FALSE),
                        fused_forms_give_the_same_bits);
  g_test_add_func ("/block/a-mask-reaches-attention", a_mask_reaches_attention_through_a_block);
  return g_test_run ();
}
