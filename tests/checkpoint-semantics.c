/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <string.h>

/* What a checkpointed forward promises beside equal gradients. */

static EbbTensor *
randn2 (gint64 rows,
        gint64 columns,
        gboolean requires_grad)
{
  const gint64 shape[] = { rows, columns };
  GError *error = NULL;
  EbbTensor *x = ebb_randn (shape, 2, EBB_DTYPE_F32, NULL, NULL, &error);

  g_assert_no_error (error);
  ebb_tensor_set_requires_grad (x, requires_grad, &error);
  return x;
}

static EbbModule *
make_mlp (guint64 seed)
{
  GError *error = NULL;
  EbbModule *sequence;
  EbbModule *parts[4];

  ebb_manual_seed (seed);
  sequence = ebb_sequential_new ();
  parts[0] = ebb_linear_new (8, 16, TRUE, &error);
  parts[1] = ebb_tanh_new ();
  parts[2] = ebb_dropout_new (0.3, &error);
  parts[3] = ebb_linear_new (16, 8, TRUE, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (parts); i++)
    {
      g_autofree char *name = g_strdup_printf ("%u", i);

      g_assert_true (ebb_module_register_child (sequence, name, parts[i], &error));
      g_object_unref (parts[i]);
    }
  return sequence;
}

static EbbTensor *
loss_of (EbbTensor *y)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) square = ebb_mul (y, y, &error);
  EbbTensor *loss = ebb_sum (square, NULL, 0, FALSE, &error);

  g_assert_no_error (error);
  return loss;
}

static EbbTensor *
first_grad (EbbModule *module)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n);
  EbbTensor *grad = ebb_tensor_get_grad (parameters[0]);

  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  return grad;
}

/* Forward and backward of @module on @x from a fixed seed; returns the first parameter's gradient. */
static EbbTensor *
train_once (EbbModule *module,
            EbbTensor *x)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_manual_seed (99);
  ebb_module_zero_grad (module);
  y = ebb_module_call1 (module, x, &error);
  g_assert_no_error (error);
  loss = loss_of (y);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  return first_grad (module);
}

/* -- gradient rules ------------------------------------------------------------------------------------------------ */

static void
test_works_when_no_input_requires_a_gradient (void)
{
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) plain = train_once (mlp, x);
  g_autoptr (EbbTensor) wrapped = NULL;

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, NULL));
  wrapped = train_once (mlp, x);
  g_assert_nonnull (plain);
  g_assert_true (ebb_tensor_equal (plain, wrapped));
}

static void
test_frozen_module_is_never_recomputed (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) frozen = make_mlp (1);
  g_autoptr (EbbModule) trained = make_mlp (2);
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_module_set_requires_grad (frozen, FALSE, &error);
  g_object_unref (ebb_checkpoint_wrapper (frozen, NULL, &error));
  g_object_unref (ebb_checkpoint_wrapper (trained, NULL, &error));
  y = ebb_module_call1 (frozen, x, &error);
  g_assert_false (ebb_tensor_get_requires_grad (y));
  g_assert_cmpuint (ebb_module_get_forward_counter (frozen), ==, 0);
  z = ebb_module_call1 (trained, y, &error);
  g_assert_cmpuint (ebb_module_get_forward_counter (trained), ==, 1);
  loss = loss_of (z);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (frozen), ==, 0);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (trained), ==, 1);
}

static void
test_plain_forward_without_gradients_or_when_disabled (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) quiet = NULL;
  g_autoptr (EbbTensor) plain = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  ebb_push_grad_enabled (FALSE);
  quiet = ebb_module_call1 (mlp, x, &error);
  ebb_pop_grad_enabled ();
  g_assert_cmpuint (ebb_module_get_forward_counter (mlp), ==, 0);
  ebb_push_checkpointing_disabled ();
  plain = ebb_module_call1 (mlp, x, &error);
  ebb_pop_checkpointing_disabled ();
  g_assert_cmpuint (ebb_module_get_forward_counter (mlp), ==, 0);
  loss = loss_of (plain);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (mlp), ==, 0);
}

/* -- counters ------------------------------------------------------------------------------------------------------ */

static void
test_counter_follows_forwards_and_backwards (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbModule) inner = ebb_module_get_child (mlp, "0");
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor *y[3];

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  for (guint i = 0; i < G_N_ELEMENTS (y); i++)
    {
      y[i] = ebb_module_call1 (mlp, x, &error);
      g_assert_cmpuint (ebb_module_get_forward_counter (mlp), ==, i + 1);
      g_assert_cmpuint (ebb_module_get_forward_counter (inner), ==, i + 1);
    }
  loss = loss_of (y[1]);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_cmpuint (ebb_module_get_forward_counter (inner), ==, 2);
  ebb_tensor_unref (y[0]); /* dropped without backward */
  g_assert_cmpuint (ebb_module_get_forward_counter (inner), ==, 1);
  ebb_tensor_unref (y[1]);
  ebb_tensor_unref (y[2]);
  g_assert_cmpuint (ebb_module_get_forward_counter (mlp), ==, 0);
}

/* -- graphs -------------------------------------------------------------------------------------------------------- */

static void
test_retained_graph_is_recomputed_again (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) once = train_once (mlp, x);
  g_autoptr (EbbTensor) twice = NULL;
  g_autoptr (EbbTensor) sum = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor *output;

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  ebb_manual_seed (99);
  ebb_module_zero_grad (mlp);
  y = ebb_module_call1 (mlp, x, &error);
  loss = output = loss_of (y);
  g_assert_true (ebb_backward (&output, 1, NULL, 0, NULL, 0, TRUE, &error));
  g_assert_true (ebb_backward (&output, 1, NULL, 0, NULL, 0, FALSE, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (mlp), ==, 2);
  twice = first_grad (mlp);
  sum = ebb_add (once, once, &error);
  g_assert_true (ebb_tensor_equal (twice, sum));

  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_GRAPH);
  g_clear_error (&error);
}

static void
test_chosen_inputs_get_gradients_and_leaves_none (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbTensor) x = randn2 (3, 8, TRUE);
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (EbbTensor) of_weight = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor *output, *input;
  EbbTensor **grads;
  guint n;

  of_weight = train_once (mlp, x);
  expected = ebb_tensor_get_grad (x);
  ebb_tensor_set_grad (x, NULL, &error);
  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  ebb_manual_seed (99);
  ebb_module_zero_grad (mlp);
  y = ebb_module_call1 (mlp, x, &error);
  loss = output = loss_of (y);
  input = x;
  grads = ebb_grad (&output, 1, &input, 1, NULL, 0, FALSE, &n, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n, ==, 1);
  g_assert_true (ebb_tensor_equal (grads[0], expected));
  g_assert_null (ebb_tensor_get_grad (x));
  g_assert_null (first_grad (mlp));
  ebb_tensor_unref (grads[0]);
  g_free (grads);
}

/* -- any call ------------------------------------------------------------------------------------------------------ */

/* Takes (a, scale=..., rest={"b": [tensor], "n": 3}); gives ([a * b * scale, None], {"n": 3}). */
static EbbArgs *
combine (EbbArgs *args,
         gpointer user_data,
         GError **error)
{
  g_autoptr (EbbTensor) a = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbArgs) rest = ebb_args_get_args (args, (guint) ebb_args_find (args, "rest"));
  g_autoptr (EbbArgs) list = ebb_args_get_args (rest, (guint) ebb_args_find (rest, "b"));
  g_autoptr (EbbTensor) b = ebb_args_get_tensor (list, 0);
  g_autoptr (EbbTensor) product = ebb_mul (a, b, error);
  g_autoptr (EbbTensor) tanh = ebb_tanh (product, error);
  g_autoptr (EbbTensor) scaled =
      ebb_mul_scalar (tanh, ebb_args_get_double (args, (guint) ebb_args_find (args, "scale")), error);
  EbbArgs *result;
  g_autoptr (EbbArgs) first = NULL;
  g_autoptr (EbbArgs) second = NULL;

  if (scaled == NULL)
    return NULL;
  ++*(guint *) user_data;
  result = ebb_args_new (EBB_ARGS_TUPLE);
  first = ebb_args_new (EBB_ARGS_LIST);
  ebb_args_add_tensor (first, NULL, scaled);
  ebb_args_add_none (first, NULL);
  second = ebb_args_new (EBB_ARGS_DICT);
  ebb_args_add_int (second, "n", ebb_args_get_int (rest, (guint) ebb_args_find (rest, "n")));
  ebb_args_add_args (result, NULL, first);
  ebb_args_add_args (result, NULL, second);
  return result;
}

static void
test_arguments_and_results_nest (void)
{
  GError *error = NULL;
  guint calls = 0;
  g_autoptr (EbbTensor) a = randn2 (2, 3, TRUE);
  g_autoptr (EbbTensor) b = randn2 (2, 3, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) rest = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbArgs) first = NULL;
  g_autoptr (EbbArgs) second = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor *grad;

  ebb_args_add_tensor (list, NULL, b);
  ebb_args_add_args (rest, "b", list);
  ebb_args_add_int (rest, "n", 3);
  ebb_args_add_tensor (args, NULL, a);
  ebb_args_add_double (args, "scale", 0.5);
  ebb_args_add_args (args, "rest", rest);

  result = ebb_checkpoint (combine, &calls, NULL, args, NULL, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_args_get_kind (result), ==, EBB_ARGS_TUPLE);
  first = ebb_args_get_args (result, 0);
  second = ebb_args_get_args (result, 1);
  g_assert_cmpint (ebb_args_get_kind (first), ==, EBB_ARGS_LIST);
  g_assert_cmpint (ebb_args_get_kind (second), ==, EBB_ARGS_DICT);
  g_assert_cmpint (ebb_args_get_value_kind (first, 1), ==, EBB_VALUE_NONE);
  g_assert_cmpint (ebb_args_get_int (second, 0), ==, 3);
  y = ebb_args_get_tensor (first, 0);
  loss = loss_of (y);
  g_assert_true (ebb_tensor_backward (loss, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (calls, ==, 2);
  grad = ebb_tensor_get_grad (b); /* the nested one is differentiated too */
  g_assert_nonnull (grad);
  ebb_tensor_unref (grad);
}

/* -- what can go wrong --------------------------------------------------------------------------------------------- */

static void
test_input_changed_in_place_is_an_error (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  y = ebb_module_call1 (mlp, x, &error);
  loss = loss_of (y);
  g_assert_true (ebb_tensor_fill (x, 1.0, &error));
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
  g_assert_nonnull (strstr (error->message, "changed in place"));
  g_clear_error (&error);
  g_assert_cmpuint (ebb_module_get_forward_counter (mlp), <=, 1);
}

/* Gives a different shape each time. */
static EbbArgs *
wander (EbbArgs *args,
        gpointer user_data,
        GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) part = ebb_narrow (x, 0, 0, 1 + (*(gint64 *) user_data)++, error);
  g_autoptr (EbbTensor) y = ebb_exp (part, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

static void
test_recompute_that_differs_is_an_error (void)
{
  GError *error = NULL;
  gint64 calls = 0;
  g_autoptr (EbbTensor) x = randn2 (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = ebb_checkpoint (wander, &calls, NULL, args, NULL, &error);
  g_autoptr (EbbTensor) z = ebb_args_get_tensor (result, 0);
  g_autoptr (EbbTensor) loss = loss_of (z);

  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE);
  g_assert_nonnull (strstr (error->message, "shape [1, 4]"));
  g_assert_nonnull (strstr (error->message, "shape [2, 4]"));
  g_clear_error (&error);
}

typedef struct
{
  guint calls;
} Changing;

/* A product first; in the recompute, another op of two results. */
static EbbArgs *
change_op (EbbArgs *args,
           gpointer user_data,
           GError **error)
{
  Changing *changing = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = changing->calls++ == 0 ? ebb_matmul (x, x, error) : ebb_softmax (x, 1, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

/* A product whose result has another shape in the recompute. */
static EbbArgs *
change_shape (EbbArgs *args,
              gpointer user_data,
              GError **error)
{
  Changing *changing = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) part = ebb_narrow (x, 0, 0, changing->calls++ == 0 ? 1 : 4, error);
  g_autoptr (EbbTensor) y = ebb_matmul (part, x, error);
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

static void
assert_kept_result_is_refused (EbbCheckpointFunc func)
{
  GError *error = NULL;
  Changing changing = { 0 };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new_selective ();
  g_autoptr (EbbTensor) x = randn2 (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = ebb_checkpoint (func, &changing, NULL, args, options, &error);
  g_autoptr (EbbTensor) z = ebb_args_get_tensor (result, 0);
  g_autoptr (EbbTensor) loss = loss_of (z);

  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE);
  g_clear_error (&error);
}

static void
test_kept_result_stands_in_for_its_own_op_alone (void)
{
  assert_kept_result_is_refused (change_op);
  assert_kept_result_is_refused (change_shape);
}

/* Backward reads beyond the end of a tensor that came back smaller, whatever checks were asked for. */
static void
test_smaller_tensor_is_refused_without_checks (void)
{
  GError *error = NULL;
  gint64 calls = 1;
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = randn2 (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_checkpoint_options_set_determinism_check (options, EBB_DETERMINISM_CHECK_NONE);
  result = ebb_checkpoint (wander, &calls, NULL, args, options, &error);
  z = ebb_args_get_tensor (result, 0);
  loss = loss_of (z);
  calls = 0;
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE);
  g_clear_error (&error);
}

static void
test_backward_may_run_with_checkpointing_disabled (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) before = make_mlp (1);
  g_autoptr (EbbModule) inner = make_mlp (2);
  g_autoptr (EbbModule) after = make_mlp (3);
  g_autoptr (EbbModule) outer = ebb_sequential_new ();
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) expected = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) grad = NULL;

  g_assert_true (ebb_module_register_child (outer, "0", before, &error));
  g_assert_true (ebb_module_register_child (outer, "1", inner, &error));
  g_assert_true (ebb_module_register_child (outer, "2", after, &error));
  expected = train_once (outer, x);
  g_object_unref (ebb_checkpoint_wrapper (inner, NULL, &error));
  g_object_unref (ebb_checkpoint_wrapper (outer, NULL, &error));
  ebb_manual_seed (99);
  ebb_module_zero_grad (outer);
  y = ebb_module_call1 (outer, x, &error);
  loss = loss_of (y);
  ebb_push_checkpointing_disabled ();
  g_assert_true (ebb_tensor_backward (loss, &error));
  ebb_pop_checkpointing_disabled ();
  g_assert_no_error (error);
  grad = first_grad (outer);
  g_assert_true (ebb_tensor_equal (grad, expected));
}

/* Changes its argument before anything is kept. */
static EbbArgs *
change_argument (EbbArgs *args,
                 gpointer user_data,
                 GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  gboolean changed = ebb_tensor_scale (x, 2, error);
  g_autoptr (EbbTensor) y = changed ? ebb_add (x, user_data, error) : NULL;
  g_autoptr (EbbTensor) z = ebb_exp (y, error);

  return z ? ebb_args_new_for_tensor (z) : NULL;
}

static void
assert_changed_argument_is_refused (EbbSavedTensorHooks *store)
{
  GError *error = NULL;
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = randn2 (4, 4, FALSE);
  g_autoptr (EbbTensor) weight = randn2 (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) z = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_checkpoint_options_set_store (options, store);
  result = ebb_checkpoint (change_argument, weight, NULL, args, options, &error);
  z = ebb_args_get_tensor (result, 0);
  loss = loss_of (z);
  g_assert_no_error (error);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_VERSION);
  g_clear_error (&error);
}

static void
test_argument_changed_inside_is_an_error (void)
{
  GError *error = NULL;
  g_autoptr (EbbSavedTensorHooks) disk = ebb_disk_store_new (NULL, &error);

  g_assert_no_error (error);
  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (disk), 0);
  assert_changed_argument_is_refused (NULL);
  assert_changed_argument_is_refused (disk);
}

typedef struct
{
  guint calls;
  gboolean fail_again;
} Failing;

static EbbArgs *
fail_sometimes (EbbArgs *args,
                gpointer user_data,
                GError **error)
{
  Failing *failing = user_data;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_exp (x, error);

  if (++failing->calls == (failing->fail_again ? 2 : 1))
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "tired");
      return NULL;
    }
  return ebb_args_new_for_tensor (y);
}

static void
test_failures_come_out_as_themselves (void)
{
  GError *error = NULL;
  Failing failing = { 0, FALSE };
  g_autoptr (EbbTensor) x = randn2 (4, 4, TRUE);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_assert_null (ebb_checkpoint (fail_sometimes, &failing, NULL, args, NULL, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
  g_clear_error (&error);
  g_assert_false (ebb_is_checkpointing ());

  failing = (Failing){ 0, TRUE };
  result = ebb_checkpoint (fail_sometimes, &failing, NULL, args, NULL, &error);
  y = ebb_args_get_tensor (result, 0);
  loss = loss_of (y);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
  g_clear_error (&error);
  g_assert_false (ebb_is_recomputing ());
  g_assert_true (ebb_is_grad_enabled ());
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void
test_steps_leave_nothing_behind (void)
{
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  EbbModule *mlp = make_mlp (1);

  g_object_unref (mlp);
  before = ebb_memory_get_stats (NULL);
  mlp = make_mlp (1);
  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, NULL));
  for (guint i = 0; i < 200; i++)
    ebb_tensor_unref (train_once (mlp, x));
  g_object_unref (mlp);
  after = ebb_memory_get_stats (NULL);
  g_assert_cmpuint (ebb_memory_stats_get_total (after), ==, ebb_memory_stats_get_total (before));
}

static void
test_steady_state_asks_the_system_for_nothing (void)
{
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);

  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, NULL));
  for (guint i = 0; i < 2; i++)
    ebb_tensor_unref (train_once (mlp, x));
  before = ebb_memory_get_stats (NULL);
  for (guint i = 0; i < 50; i++)
    ebb_tensor_unref (train_once (mlp, x));
  after = ebb_memory_get_stats (NULL);
  g_assert_cmpuint (ebb_memory_stats_get_system_calls (after), ==, ebb_memory_stats_get_system_calls (before));
}

/* -- side effects -------------------------------------------------------------------------------------------------- */

static void
test_running_statistics_move_once_a_step (void)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) x = randn2 (6, 8, FALSE);
  g_autoptr (EbbModule) plain = ebb_sequential_new ();
  g_autoptr (EbbModule) wrapped = ebb_sequential_new ();
  EbbModule *both[] = { plain, wrapped };
  EbbTensor *mean[2];

  g_object_unref (ebb_checkpoint_wrapper (wrapped, NULL, &error));
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) norm = ebb_batch_norm1d_new (8, 1e-5, 0.1, &error);
      g_autoptr (EbbModule) tanh = ebb_tanh_new ();

      g_assert_no_error (error);
      ebb_module_register_child (both[i], "0", norm, &error);
      ebb_module_register_child (both[i], "1", tanh, &error);
      ebb_tensor_unref (train_once (both[i], x));
      mean[i] = ebb_module_get_buffer (norm, "running_mean");
    }
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (wrapped), ==, 1);
  g_assert_true (ebb_tensor_equal (mean[0], mean[1]));
  ebb_tensor_unref (mean[0]);
  ebb_tensor_unref (mean[1]);
}

/* -- sequences, wrapping ------------------------------------------------------------------------------------------- */

static void
test_sequence_in_segments_is_bitwise_equal (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_autoptr (EbbTensor) x = randn2 (3, 8, FALSE);
  g_autoptr (EbbTensor) plain = train_once (mlp, x);

  for (guint n = 1; n <= 4; n++)
    {
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbTensor) grad = NULL;

      ebb_manual_seed (99);
      ebb_module_zero_grad (mlp);
      y = ebb_checkpoint_sequential (mlp, n, x, &error);
      g_assert_no_error (error);
      loss = loss_of (y);
      g_assert_true (ebb_tensor_backward (loss, &error));
      grad = first_grad (mlp);
      g_assert_true (ebb_tensor_equal (grad, plain));
    }
  g_assert_null (ebb_checkpoint_sequential (mlp, 5, x, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
}

static void
test_wrapping_changes_no_name_and_comes_off (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) mlp = make_mlp (1);
  g_auto (GStrv) before = ebb_module_get_parameter_names (mlp, TRUE);
  g_auto (GStrv) after = NULL;
  g_autoptr (EbbModule) same = ebb_checkpoint_wrapper (mlp, NULL, &error);

  g_assert_true (same == mlp);
  g_object_unref (ebb_checkpoint_wrapper (mlp, NULL, &error));
  after = ebb_module_get_parameter_names (mlp, TRUE);
  g_assert_true (g_strv_equal ((const char *const *) before, (const char *const *) after));
  g_assert_true (ebb_checkpoint_unwrap (mlp));
  g_assert_true (ebb_checkpoint_is_wrapped (mlp));
  g_assert_true (ebb_checkpoint_unwrap (mlp));
  g_assert_false (ebb_checkpoint_is_wrapped (mlp));
  g_assert_false (ebb_checkpoint_unwrap (mlp));
  g_object_set (mlp, "activation-checkpointing", TRUE, NULL);
  g_assert_true (ebb_checkpoint_is_wrapped (mlp));
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
#define TEST(name, func) g_test_add_func ("/checkpoint/" name, func)
  TEST ("works-when-no-input-requires-a-gradient", test_works_when_no_input_requires_a_gradient);
  TEST ("frozen-module-is-never-recomputed", test_frozen_module_is_never_recomputed);
  TEST ("plain-forward-without-gradients-or-when-disabled", test_plain_forward_without_gradients_or_when_disabled);
  TEST ("counter-follows-forwards-and-backwards", test_counter_follows_forwards_and_backwards);
  TEST ("retained-graph-is-recomputed-again", test_retained_graph_is_recomputed_again);
  TEST ("chosen-inputs-get-gradients-and-leaves-none", test_chosen_inputs_get_gradients_and_leaves_none);
  TEST ("arguments-and-results-nest", test_arguments_and_results_nest);
  TEST ("input-changed-in-place-is-an-error", test_input_changed_in_place_is_an_error);
  TEST ("recompute-that-differs-is-an-error", test_recompute_that_differs_is_an_error);
  TEST ("kept-result-stands-in-for-its-own-op-alone", test_kept_result_stands_in_for_its_own_op_alone);
  TEST ("smaller-tensor-is-refused-without-checks", test_smaller_tensor_is_refused_without_checks);
  TEST ("backward-may-run-with-checkpointing-disabled", test_backward_may_run_with_checkpointing_disabled);
  TEST ("argument-changed-inside-is-an-error", test_argument_changed_inside_is_an_error);
  TEST ("failures-come-out-as-themselves", test_failures_come_out_as_themselves);
  TEST ("steps-leave-nothing-behind", test_steps_leave_nothing_behind);
  TEST ("steady-state-asks-the-system-for-nothing", test_steady_state_asks_the_system_for_nothing);
  TEST ("running-statistics-move-once-a-step", test_running_statistics_move_once_a_step);
  TEST ("sequence-in-segments-is-bitwise-equal", test_sequence_in_segments_is_bitwise_equal);
  TEST ("wrapping-changes-no-name-and-comes-off", test_wrapping_changes_no_name_and_comes_off);
  return g_test_run ();
}
