/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "support/device.h"
#include "support/tensors.h"
#include "support/test-modules.h"

/* -- calls --------------------------------------------------------------------------------------------------------- */

static float
call_with (EbbModule *module, float value)
{
  g_autoptr (EbbTensor) x = test_floats (&value, 1, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);

  g_assert_no_error (error);
  return test_at (y, 0);
}

static float
call_args_with (EbbModule *module, float value)
{
  g_autoptr (EbbTensor) x = test_floats (&value, 1, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;

  ebb_args_add_tensor (args, NULL, x);
  result = ebb_module_call (module, args, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_args_get_kind (result), ==, EBB_ARGS_BARE);
  y = ebb_args_get_tensor (result, 0);
  return test_at (y, 0);
}

static void
either_forward_serves_either_call (void)
{
  g_autoptr (EbbModule) scale = test_scale_new (3);
  g_autoptr (EbbModule) flexible = test_flexible_new ();

  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpfloat (call_args_with (scale, 2), ==, 6);
  g_assert_cmpfloat (call_with (flexible, 2), ==, -2);
  g_assert_cmpfloat (call_args_with (flexible, 2), ==, -2);
}

static void
an_override_is_not_bypassed (void)
{
  g_autoptr (EbbModule) scale = test_scale_new (3); /* its class is used first */
  g_autoptr (EbbModule) shifted = test_shifted_new (3);

  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpfloat (call_with (shifted, 2), ==, 106);
  g_assert_cmpfloat (call_args_with (shifted, 2), ==, 106);
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
}

static void
arguments_and_results_may_be_anything (void)
{
  g_autoptr (EbbModule) flexible = test_flexible_new ();
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1, 2 }, 2, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) result = NULL;
  g_autofree char *text = NULL;

  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_int (args, "factor", 3);
  result = ebb_module_call (flexible, args, &error);
  g_assert_no_error (error);
  text = ebb_args_to_string (result);
  g_assert_cmpstr (text, ==, "(f32[2], {\"n\": 2})");
}

static void
check_call_error (EbbModule *module, EbbError code, const char *words)
{
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1 }, 1, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_module_call1 (module, x, &error));
  test_assert_error (error, (gint) code, words);
  g_clear_error (&error);
  g_assert_null (ebb_module_call (module, args, &error));
  test_assert_error (error, (gint) code, words);
}

static void
failures_say_which_type (void)
{
  g_autoptr (EbbModule) empty = test_empty_new ();
  g_autoptr (EbbModule) silent = test_silent_new ();
  g_autoptr (EbbModule) loop = test_loop_new ();
  g_autoptr (EbbModule) unbuilt = g_object_new (EBB_TYPE_LINEAR, NULL);

  check_call_error (empty, EBB_ERROR_CALLBACK, "TestEmpty implements neither forward nor forward1");
  check_call_error (silent, EBB_ERROR_CALLBACK, "TestSilent: forward failed without saying why");
  check_call_error (loop, EBB_ERROR_CALLBACK, "TestLoop implements neither");
  check_call_error (unbuilt, EBB_ERROR_CALLBACK, "Linear: called before it was initialised");
}

static void
failures_say_where (void)
{
  g_autoptr (EbbModule) innermost = test_empty_new ();
  g_autoptr (EbbModule) middle = test_outer_new (innermost);
  g_autoptr (EbbModule) sequential = ebb_sequential_new ();
  g_autoptr (EbbModule) outer = test_outer_new (sequential);
  g_autoptr (EbbModule) scale = test_scale_new (1);
  g_autoptr (GError) error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (sequential), scale, &error);
  ebb_sequential_append (EBB_SEQUENTIAL (sequential), middle, &error);
  g_assert_no_error (error);
  check_call_error (outer, EBB_ERROR_CALLBACK, "inner.1.inner: TestEmpty implements");
  check_call_error (middle, EBB_ERROR_CALLBACK, "inner: TestEmpty implements");
}

static void
an_error_on_entry_touches_nothing (void)
{
  g_autoptr (EbbModule) scale = test_scale_new (3);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1 }, 1, -1);
  g_autoptr (EbbTensor) gain = NULL;
  g_autoptr (GError) error = g_error_new (EBB_ERROR, EBB_ERROR_IO, "earlier");

  g_assert_null (ebb_module_call1 (scale, x, &error));
  g_assert_false (ebb_module_register_parameter (scale, "gain", NULL, &error));
  g_assert_null (ebb_linear_new (2, 2, TRUE, &error));
  g_assert_cmpstr (error->message, ==, "earlier");
  gain = ebb_module_get_parameter (scale, "gain");
  g_assert_nonnull (gain);
  g_clear_error (&error);
  g_assert_null (ebb_module_call1 (scale, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "input is NULL");
  g_clear_error (&error);
  g_assert_null (ebb_module_call1 (NULL, x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "self is NULL");
  g_clear_error (&error);
}

/* -- hooks --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  GString *log;
  const char *word;
  guint remove; /* a hook to remove when called */
  gboolean refuse;
} Hook;

static gboolean
log_call (EbbModule *module, EbbArgs *args, EbbArgs *result, gpointer user_data, GError **error)
{
  Hook *hook = user_data;

  g_string_append_printf (hook->log, "%s%s ", hook->word, result != NULL ? "!" : "?");
  if (hook->remove != 0)
    g_assert_true (ebb_module_remove_hook (module, hook->remove));
  return !hook->refuse;
}

static void
forget (gpointer data)
{
  Hook *hook = data;

  g_string_append_printf (hook->log, "~%s ", hook->word);
}

static void
hooks_run_around_forward (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  Hook first = { log, "a", 0, FALSE }, second = { log, "b", 0, FALSE }, after = { log, "c", 0, FALSE };

  ebb_module_add_forward_hook (scale, log_call, &after, forget);
  first.remove = ebb_module_add_forward_pre_hook (scale, log_call, &first, forget);
  ebb_module_add_forward_pre_hook (scale, log_call, &second, forget);
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "a? b? c! ~a "); /* its data lives until the call is over */
  g_string_truncate (log, 0);
  g_assert_cmpfloat (call_args_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "b? c! ");
  g_assert_false (ebb_module_remove_hook (scale, first.remove));
  g_string_truncate (log, 0);
  g_clear_object (&scale);
  g_assert_cmpstr (log->str, ==, "~c ~b ");
}

static void
a_hook_may_refuse (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  Hook hook = { log, "a", 0, TRUE };

  ebb_module_add_forward_pre_hook (scale, log_call, &hook, NULL);
  check_call_error (scale, EBB_ERROR_CALLBACK, "TestScale: a forward hook failed without saying why");
  g_assert_cmpstr (log->str, ==, "a? a? ");
}

/* Adds a number to the one tensor of the arguments, or of the result. */
static gboolean
add_number (EbbModule *module, EbbArgs *args, EbbArgs *result, gpointer user_data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (result != NULL ? result : args, 0);
  g_autoptr (EbbTensor) sum = ebb_add_scalar (x, *(const double *) user_data, error);
  g_autoptr (EbbArgs) value = ebb_args_new (EBB_ARGS_BARE);

  ebb_args_add_tensor (value, NULL, sum);
  return ebb_module_hand_over (module, value, error);
}

static void
a_hook_may_hand_over (void)
{
  static double one = 1, ten = 10;
  g_autoptr (EbbModule) scale = test_scale_new (3);
  g_autoptr (EbbArgs) value = ebb_args_new (EBB_ARGS_BARE);
  g_autoptr (GError) error = NULL;

  ebb_module_add_forward_pre_hook (scale, add_number, &one, NULL);
  ebb_module_add_forward_pre_hook (scale, add_number, &one, NULL); /* sees what the first has made */
  ebb_module_add_forward_hook (scale, add_number, &ten, NULL);
  g_assert_cmpfloat (call_with (scale, 2), ==, 3 * (2 + 1 + 1) + 10);
  g_assert_cmpfloat (call_args_with (scale, 2), ==, 3 * (2 + 1 + 1) + 10);
  g_assert_false (ebb_module_hand_over (scale, value, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "TestScale: hand_over: no forward hook");
}

/* -- registration -------------------------------------------------------------------------------------------------- */

static void
names_are_checked (void)
{
  g_autoptr (EbbModule) scale = test_scale_new (1);
  g_autoptr (EbbModule) child = test_scale_new (1);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1 }, 1, -1);
  g_autoptr (EbbTensor) index = test_tokens (1, 10, 3, -1);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_module_register_parameter (scale, "a.b", x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "TestScale", "\"a.b\"", "no dot");
  g_clear_error (&error);
  g_assert_false (ebb_module_register_child (scale, "", child, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "at least one character");
  g_clear_error (&error);
  g_assert_false (ebb_module_register_buffer (scale, "\xff", x, TRUE, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_true (g_utf8_validate (error->message, -1, NULL));
  g_clear_error (&error);
  g_assert_false (ebb_module_register_child (scale, "gain", child, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"gain\" can't name a child, it is a parameter already");
  g_clear_error (&error);
  g_assert_false (ebb_module_register_parameter (scale, "calls", x, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "it is a buffer already");
  g_clear_error (&error);
  g_assert_false (ebb_module_register_parameter (scale, "index", index, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "i64", "buffers");
  g_clear_error (&error);
  g_assert_true (ebb_module_register_buffer (scale, "index", index, TRUE, &error));
}

static void
a_parameter_is_the_tensor_itself (void)
{
  g_autoptr (EbbModule) module = g_object_new (EBB_TYPE_MODULE, NULL);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1, 2, 3 }, 3, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) same = NULL;
  g_autoptr (EbbMemoryStats) before = ebb_memory_get_stats (test_device ());
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_module_register_parameter (module, "w", x, &error));
  same = ebb_module_get_parameter (module, "w");
  g_assert_true (same == x);
  g_assert_true (ebb_tensor_get_requires_grad (x));
  after = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_current (after, EBB_PURPOSE_PARAMETER), >=,
                    ebb_memory_stats_get_current (before, EBB_PURPOSE_PARAMETER) + 12);
  y = ebb_mul_scalar (x, 2, &error);
  g_assert_false (ebb_module_register_parameter (module, "y", y, &error));
  test_assert_error (error, EBB_ERROR_GRAPH, "\"y\"", "detach");
}

static void
null_removes (void)
{
  g_autoptr (EbbModule) linear = ebb_linear_new (2, 3, TRUE, NULL);
  g_autoptr (EbbModule) outer = test_outer_new (linear);
  g_autoptr (EbbTensor) x = test_randn (1, 4, 2, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) with_bias = ebb_module_call1 (linear, x, &error);
  g_autoptr (EbbTensor) bias = ebb_module_get_parameter (outer, "inner.bias");
  g_autoptr (EbbTensor) without = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) again = NULL;
  g_auto (GStrv) names = NULL;

  g_assert_true (ebb_module_register_parameter (linear, "bias", NULL, &error));
  names = ebb_module_get_parameter_names (outer, TRUE);
  g_assert_cmpuint (g_strv_length (names), ==, 1);
  g_assert_cmpstr (names[0], ==, "inner.weight");
  without = ebb_module_call1 (linear, x, &error);
  sum = ebb_add (without, bias, &error);
  test_assert_near (sum, with_bias, 1e-6);
  g_assert_true (ebb_module_register_parameter (linear, "bias", bias, &error));
  again = ebb_module_call1 (linear, x, &error);
  test_assert_near (again, with_bias, 0);
  g_assert_true (ebb_module_register_child (outer, "inner", NULL, &error));
  g_assert_null (ebb_module_get_child (outer, "inner"));
  g_assert_true (ebb_module_register_child (outer, "inner", NULL, &error));
  g_assert_no_error (error);
}

static void
cycles_are_refused (void)
{
  g_autoptr (EbbModule) inner = g_object_new (EBB_TYPE_MODULE, NULL);
  g_autoptr (EbbModule) middle = test_outer_new (inner);
  g_autoptr (EbbModule) outer = test_outer_new (middle);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_module_register_child (inner, "back", outer, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"back\"", "holds the module itself");
  g_clear_error (&error);
  g_assert_false (ebb_module_register_child (inner, "self", inner, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
}

static void
modules_are_freed_with_their_parent (void)
{
  EbbModule *inner = test_scale_new (1);
  EbbModule *outer = test_outer_new (inner);
  gpointer watched = inner;

  g_object_add_weak_pointer (G_OBJECT (inner), &watched);
  g_object_unref (inner);
  g_assert_nonnull (watched);
  g_object_unref (outer);
  g_assert_null (watched);
}

/* -- traversal ----------------------------------------------------------------------------------------------------- */

/* A sequence of two scales, the first of which is also the third. */
static EbbModule *
shared_sequence (void)
{
  EbbModule *sequence = ebb_sequential_new ();
  g_autoptr (EbbModule) a = test_scale_new (2);
  g_autoptr (EbbModule) b = test_scale_new (3);
  g_autoptr (GError) error = NULL;

  ebb_sequential_append (EBB_SEQUENTIAL (sequence), a, &error);
  ebb_sequential_append (EBB_SEQUENTIAL (sequence), b, &error);
  ebb_sequential_append (EBB_SEQUENTIAL (sequence), a, &error);
  g_assert_no_error (error);
  return sequence;
}

static void
assert_names (char **names, const char *expected)
{
  g_autofree char *joined = g_strjoinv (" ", names);

  g_assert_cmpstr (joined, ==, expected);
  g_strfreev (names);
}

static void
free_tensors (EbbTensor **tensors, guint n)
{
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (tensors[i]);
  g_free (tensors);
}

static void
shared_ones_are_listed_once (void)
{
  g_autoptr (EbbModule) sequence = shared_sequence ();
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (sequence);
  EbbTensor **tensors;
  EbbModule **modules;
  guint n;

  assert_names (ebb_module_get_parameter_names (sequence, TRUE), "0.gain 1.gain");
  assert_names (ebb_module_get_buffer_names (sequence, TRUE), "0.calls 1.calls");
  assert_names (ebb_module_get_parameter_names (sequence, FALSE), "");
  assert_names (ebb_module_get_child_names (sequence), "0 1 2");
  assert_names (ebb_module_get_module_names (sequence), " 0 1");
  tensors = ebb_module_get_parameters (sequence, TRUE, &n);
  g_assert_cmpuint (n, ==, 2);
  g_assert_null (tensors[2]);
  free_tensors (tensors, n);
  modules = ebb_module_get_modules (sequence, &n);
  g_assert_cmpuint (n, ==, 3);
  g_assert_true (modules[0] == sequence);
  for (guint i = 0; i < n; i++)
    g_object_unref (modules[i]);
  g_free (modules);
  g_assert_cmpuint (ebb_module_count_parameters (sequence), ==, 2);
  g_assert_cmpuint (ebb_args_get_length (state), ==, 6); /* but the state has every name */
  g_assert_cmpstr (ebb_args_get_key (state, 4), ==, "2.gain");
  g_assert_cmpfloat (call_with (sequence, 1), ==, 12);
}

static void
training_reaches_all_below (void)
{
  g_autoptr (EbbModule) sequence = shared_sequence ();
  g_autoptr (EbbModule) inner = ebb_module_get_child (sequence, "1");
  gboolean training;

  g_assert_true (ebb_module_get_training (inner));
  g_object_set (sequence, "training", FALSE, NULL);
  g_assert_false (ebb_module_get_training (inner));
  ebb_module_set_training (sequence, TRUE);
  g_object_get (inner, "training", &training, NULL);
  g_assert_true (training);
}

static void
a_description_shows_the_tree (void)
{
  g_autoptr (EbbModule) linear = ebb_linear_new (2, 3, FALSE, NULL);
  g_autoptr (EbbModule) outer = test_outer_new (linear);
  g_autofree char *text = ebb_module_to_string (outer);

  g_assert_cmpstr (text, ==, "TestOuter ()\n  inner: Linear (in-features=2, out-features=3, bias=false)");
}

static void
choices_are_described_by_their_names (void)
{
  g_autoptr (EbbModule) mlp =
      g_initable_new (EBB_TYPE_MLP, NULL, NULL, "width", 2, "hidden", 3, "activation", EBB_ACTIVATION_SILU, NULL);
  g_autofree char *text = ebb_module_to_string (mlp);

  g_assert_true (g_str_has_prefix (text, "Mlp (width=2, hidden=3, activation=silu, bias="));
}

/* -- state --------------------------------------------------------------------------------------------------------- */

static EbbModule *
two_linears (guint64 seed)
{
  EbbModule *sequence = ebb_sequential_new ();
  g_autoptr (EbbModule) a = NULL;
  g_autoptr (EbbModule) b = NULL;

  ebb_manual_seed (seed);
  a = ebb_linear_new (3, 4, TRUE, NULL);
  b = ebb_linear_new (4, 2, FALSE, NULL);
  ebb_sequential_append (EBB_SEQUENTIAL (sequence), a, NULL);
  ebb_sequential_append (EBB_SEQUENTIAL (sequence), b, NULL);
  return sequence;
}

static void
a_state_makes_modules_equal (void)
{
  g_autoptr (EbbModule) a = two_linears (1);
  g_autoptr (EbbModule) b = two_linears (2);
  g_autoptr (EbbTensor) x = test_randn (3, 5, 3, -1);
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (a);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (b, "0.weight");
  g_autoptr (EbbTensor) same = NULL;
  g_autoptr (EbbTensor) source = NULL;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) from_a = ebb_module_call1 (a, x, &error);
  g_autoptr (EbbTensor) before = ebb_module_call1 (b, x, &error);
  g_autoptr (EbbTensor) from_b = NULL;

  g_assert_cmpfloat (test_difference (from_a, before), >, 0.01);
  g_assert_true (ebb_module_load_state_dict (b, state, TRUE, &error));
  g_assert_no_error (error);
  from_b = ebb_module_call1 (b, x, &error);
  test_assert_near (from_a, from_b, 0);
  same = ebb_module_get_parameter (b, "0.weight");
  g_assert_true (same == weight);
  g_assert_true (ebb_tensor_get_requires_grad (weight));
  source = ebb_args_get_tensor (state, 0);
  g_assert_false (ebb_tensor_shares_storage (source, weight));
}

static void
a_state_that_does_not_fit_changes_nothing (void)
{
  g_autoptr (EbbModule) module = two_linears (1);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "0.weight");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) before = ebb_copy (weight, &error);
  g_autoptr (EbbTensor) other = test_randn (9, 4, 3, -1);
  g_autoptr (EbbTensor) odd = test_randn (9, 7, -1);
  g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_tensor (state, "0.weight", other);
  ebb_args_add_tensor (state, "0.bias", odd);
  ebb_args_add_tensor (state, "1.bias", odd);
  g_assert_false (ebb_module_load_state_dict (module, state, TRUE, &error));
  g_assert_cmpstr (error->message, ==,
                   "Sequential: the state dict does not fit: missing (1): 1.weight; unexpected (1): 1.bias; "
                   "of another shape (1): 0.bias [7], not [4]");
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  test_assert_near (weight, before, 0);
  g_clear_error (&error);
  g_assert_false (ebb_module_load_state_dict (module, state, FALSE, &error)); /* shapes matter anyway */
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  test_assert_near (weight, before, 0);
  g_clear_error (&error);
  ebb_args_add_none (state, "0.bias");
  g_assert_false (ebb_module_load_state_dict (module, state, FALSE, &error));
  test_assert_error (error, EBB_ERROR_STATE, "\"0.bias\"", "not a tensor");
}

static void
a_loose_load_takes_what_fits (void)
{
  g_autoptr (EbbModule) module = two_linears (1);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "0.weight");
  g_autoptr (EbbTensor) other = test_randn (9, 4, 3, -1);
  g_autoptr (EbbTensor) half = NULL;
  g_autoptr (EbbTensor) rounded = NULL;
  g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;

  half = ebb_cast (other, EBB_DTYPE_BF16, &error);
  rounded = ebb_cast (half, EBB_DTYPE_F32, &error);
  ebb_args_add_tensor (state, "0.weight", half);
  ebb_args_add_tensor (state, "nowhere", other);
  g_assert_true (ebb_module_load_state_dict (module, state, FALSE, &error));
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dtype (weight), ==, EBB_DTYPE_F32);
  test_assert_near (weight, rounded, 0);
}

static void
a_comparison_names_what_a_loose_load_leaves (void)
{
  static const struct
  {
    const char *names[3], *advice, *unexpected;
  } cases[] = {
    { { "net.0.weight", "net.0.bias", "net.1.weight" }, "state's names begin with \"net.\"", "net.0.bias" },
    { { "net.0.weight", "net.0.bias", "epoch" }, "state's names begin with \"net.\"", "epoch" },
    { { "net.0.bias", "net.1.bias", "epoch" }, NULL, "epoch" }, /* one of three is no rule */
    { { "weight", "bias", NULL }, "module's names begin with \"0.\"", "bias" },
    { { "weight", NULL }, NULL, "weight" }, /* either child may be meant */
    { { "0.weight", "0.bias", "1.weight" }, NULL, NULL },
  };
  g_autoptr (EbbModule) module = two_linears (1);
  g_autoptr (EbbTensor) value = test_randn (9, 4, 3, -1);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);
      g_auto (GStrv) missing = NULL;
      g_auto (GStrv) unexpected = NULL;
      g_autofree char *advice = NULL;

      for (guint j = 0; j < 3 && cases[i].names[j] != NULL; j++)
        ebb_args_add_tensor (state, cases[i].names[j], value);
      g_assert_true (ebb_module_compare_state_dict (module, state, &missing, &unexpected, &advice, &error));
      g_assert_no_error (error);
      g_assert_cmpuint (g_strv_length (missing), ==, cases[i].unexpected != NULL ? 3 : 0);
      g_assert_cmpstr (unexpected[0], ==, cases[i].unexpected);
      g_assert_true (cases[i].advice == NULL ? advice == NULL : strstr (advice, cases[i].advice) != NULL);
    }
}

static void
one_name_of_a_shared_parameter_is_enough (void)
{
  g_autoptr (EbbModule) sequence = shared_sequence ();
  g_autoptr (EbbTensor) seven = test_floats ((float[]){ 7 }, 1, -1);
  g_autoptr (EbbArgs) state = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (GError) error = NULL;

  ebb_args_add_tensor (state, "2.gain", seven);
  ebb_args_add_tensor (state, "2.calls", seven);
  ebb_args_add_tensor (state, "1.gain", seven);
  ebb_args_add_tensor (state, "1.calls", seven);
  g_assert_true (ebb_module_load_state_dict (sequence, state, TRUE, &error));
  g_assert_no_error (error);
  g_assert_cmpfloat (call_with (sequence, 1), ==, 343);
}

static void
buffers_may_stay_out_of_the_state (void)
{
  g_autoptr (EbbModule) module = test_scale_new (1);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 1 }, 1, -1);
  g_autoptr (EbbArgs) state = NULL;

  g_assert_true (ebb_module_register_buffer (module, "cache", x, FALSE, NULL));
  state = ebb_module_get_state_dict (module);
  g_assert_cmpint (ebb_args_find (state, "cache"), ==, -1);
  g_assert_cmpint (ebb_args_find (state, "calls"), >=, 0);
  assert_names (ebb_module_get_buffer_names (module, TRUE), "calls cache");
}

static void
a_cast_keeps_the_parameters (void)
{
  g_autoptr (EbbModule) module = two_linears (1);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "0.weight");
  g_autoptr (EbbTensor) same = NULL;
  g_autoptr (EbbTensor) before = NULL;
  g_autoptr (GError) error = NULL;

  before = ebb_copy (weight, &error);
  g_assert_false (ebb_module_to_dtype (module, EBB_DTYPE_I64, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "i64");
  g_clear_error (&error);
  g_assert_true (ebb_module_to_dtype (module, EBB_DTYPE_BF16, &error));
  same = ebb_module_get_parameter (module, "0.weight");
  g_assert_true (same == weight);
  g_assert_cmpint (ebb_tensor_get_dtype (weight), ==, EBB_DTYPE_BF16);
  g_assert_true (ebb_tensor_get_requires_grad (weight));
  test_assert_near (weight, before, 4e-3);
  g_assert_true (ebb_module_to_device (module, ebb_device_get_cpu (), &error));
  g_assert_no_error (error);
}

static void
freezing_and_zeroing_reach_all (void)
{
  g_autoptr (EbbModule) module = two_linears (1);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "1.weight");
  g_autoptr (EbbTensor) x = test_randn (1, 2, 3, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);
  g_autoptr (EbbTensor) loss = ebb_sum (y, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) grad = NULL;

  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  grad = ebb_tensor_get_grad (weight);
  g_assert_nonnull (grad);
  ebb_module_zero_grad (module);
  g_assert_null (ebb_tensor_get_grad (weight));
  g_assert_true (ebb_module_set_requires_grad (module, FALSE, &error));
  g_assert_false (ebb_tensor_get_requires_grad (weight));
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/module/either-forward-serves-either-call", either_forward_serves_either_call);
  g_test_add_func ("/module/an-override-is-not-bypassed", an_override_is_not_bypassed);
  g_test_add_func ("/module/arguments-and-results-may-be-anything", arguments_and_results_may_be_anything);
  g_test_add_func ("/module/failures-say-which-type", failures_say_which_type);
  g_test_add_func ("/module/failures-say-where", failures_say_where);
  g_test_add_func ("/module/an-error-on-entry-touches-nothing", an_error_on_entry_touches_nothing);
  g_test_add_func ("/module/hooks-run-around-forward", hooks_run_around_forward);
  g_test_add_func ("/module/a-hook-may-refuse", a_hook_may_refuse);
  g_test_add_func ("/module/a-hook-may-hand-over", a_hook_may_hand_over);
  g_test_add_func ("/module/names-are-checked", names_are_checked);
  g_test_add_func ("/module/a-parameter-is-the-tensor-itself", a_parameter_is_the_tensor_itself);
  g_test_add_func ("/module/null-removes", null_removes);
  g_test_add_func ("/module/cycles-are-refused", cycles_are_refused);
  g_test_add_func ("/module/modules-are-freed-with-their-parent", modules_are_freed_with_their_parent);
  g_test_add_func ("/module/shared-ones-are-listed-once", shared_ones_are_listed_once);
  g_test_add_func ("/module/training-reaches-all-below", training_reaches_all_below);
  g_test_add_func ("/module/a-description-shows-the-tree", a_description_shows_the_tree);
  g_test_add_func ("/module/choices-are-described", choices_are_described_by_their_names);
  g_test_add_func ("/module/a-state-makes-modules-equal", a_state_makes_modules_equal);
  g_test_add_func ("/module/a-state-that-does-not-fit-changes-nothing", a_state_that_does_not_fit_changes_nothing);
  g_test_add_func ("/module/a-loose-load-takes-what-fits", a_loose_load_takes_what_fits);
  g_test_add_func ("/module/a-comparison-names-what-a-loose-load-leaves", a_comparison_names_what_a_loose_load_leaves);
  g_test_add_func ("/module/one-name-of-a-shared-parameter-is-enough", one_name_of_a_shared_parameter_is_enough);
  g_test_add_func ("/module/buffers-may-stay-out-of-the-state", buffers_may_stay_out_of_the_state);
  g_test_add_func ("/module/a-cast-keeps-the-parameters", a_cast_keeps_the_parameters);
  g_test_add_func ("/module/freezing-and-zeroing-reach-all", freezing_and_zeroing_reach_all);
  return g_test_run ();
}
