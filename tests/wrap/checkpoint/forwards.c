/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

/* Whatever a forward does inside, wrapped it gives the same: each case is a forward of [4, 8] with a parameter "gain"
 * and two children, "a" and "b", that may be wrapped themselves. */

#define GAIN g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain")

static EbbTensor *
call_child (EbbModule *self, const char *name, EbbTensor *x, GError **error)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (self, name);

  return ebb_module_call1 (child, x, error);
}

static EbbTensor *
calls_two_children (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) a = call_child (self, "a", x, error);
  g_autoptr (EbbTensor) b = call_child (self, "b", x, error);
  g_autoptr (EbbTensor) product = ebb_mul (a, b, error);

  return ebb_sin (product, error);
}

static EbbTensor *
detaches (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  g_autoptr (EbbTensor) a = call_child (self, "a", x, error);
  g_autoptr (EbbTensor) cut = a != NULL ? ebb_tensor_detach (a) : NULL;
  g_autoptr (EbbTensor) b = call_child (self, "b", cut, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (b, gain, error);

  return ebb_mul (scaled, a, error);
}

static EbbTensor *
switches_gradients_off (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  g_autoptr (EbbTensor) quiet = NULL;
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) product = NULL;

  ebb_push_grad_enabled (FALSE);
  quiet = call_child (self, "a", x, error);
  ebb_pop_grad_enabled ();
  a = call_child (self, "b", x, error);
  product = ebb_mul (a, quiet, error);
  return ebb_mul (product, gain, error);
}

static EbbTensor *
switches_checkpointing_off (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;

  ebb_push_checkpointing_disabled ();
  a = call_child (self, "a", x, error);
  ebb_pop_checkpointing_disabled ();
  b = call_child (self, "b", a, error);
  return ebb_sin (b, error);
}

static EbbTensor *
switches_autocast (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) same = NULL;

  ebb_push_autocast (!ebb_is_autocast_enabled (), EBB_DTYPE_BF16);
  a = call_child (self, "a", x, error);
  ebb_pop_autocast ();
  same = a != NULL ? ebb_cast (a, ebb_tensor_get_dtype (x), error) : NULL;
  b = call_child (self, "b", same, error);
  return ebb_sin (b, error);
}

static EbbTensor *
switches_training (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (self, "a");
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;

  ebb_module_set_training (child, FALSE);
  a = ebb_module_call1 (child, x, error);
  ebb_module_set_training (child, TRUE);
  b = ebb_module_call1 (child, a, error);
  return ebb_sin (b, error);
}

static EbbTensor *
changes_its_own_in_place (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) noise = ebb_randn ((const gint64[]){ 8 }, 1, ebb_tensor_get_dtype (x), NULL, NULL, error);
  g_autoptr (EbbTensor) sum = NULL;

  if (noise == NULL || !ebb_tensor_scale (noise, 0.5, error) || !ebb_tensor_add_scaled (noise, noise, 1, error))
    return NULL;
  sum = ebb_mul (scaled, noise, error);
  return ebb_tanh (sum, error);
}

/* Another way if the mean is below zero, and a factor read from the tensor. */
static EbbTensor *
branches_on_values (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) a = call_child (self, "a", x, error);
  g_autoptr (EbbTensor) mean = ebb_mean (a, NULL, 0, FALSE, error);
  g_autoptr (EbbTensor) b = NULL;
  double value;

  if (mean == NULL || !ebb_tensor_get_item (mean, &value, error))
    return NULL;
  b = value < 0 ? call_child (self, "b", a, error) : ebb_exp (a, error);
  return ebb_mul_scalar (b, value, error);
}

static EbbArgs *
run_function (EbbArgs *args, gpointer user_data, GError **error)
{
  EbbModule *self = user_data;
  GAIN;
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (scaled, 0.3, TRUE, NULL, error);
  g_autoptr (EbbTensor) a = call_child (self, "a", dropped, error);

  return a != NULL ? ebb_args_new_for_tensor (a) : NULL;
}

static EbbTensor *
checkpoints_a_function (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) bent = ebb_sin (x, error);
  g_autoptr (EbbArgs) args = bent != NULL ? ebb_args_new_for_tensor (bent) : NULL;
  g_autoptr (EbbArgs) result = ebb_checkpoint (run_function, self, NULL, args, NULL, error);
  g_autoptr (EbbTensor) y = result != NULL ? ebb_args_get_tensor (result, 0) : NULL;

  return ebb_tanh (y, error);
}

/* With half of its rows, as long as there are two. */
static EbbTensor *
calls_itself (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  gint64 n_rows = ebb_tensor_get_dim (x, 0);
  GAIN;
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) a = ebb_tanh (scaled, error);
  g_autoptr (EbbTensor) half = n_rows > 1 ? ebb_narrow (a, 0, 0, n_rows / 2, error) : NULL;
  g_autoptr (EbbTensor) b = n_rows > 1 ? ebb_module_call1 (self, half, error) : g_steal_pointer (&a);

  return ebb_sin (b, error);
}

static EbbTensor *
makes_tensors (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  EbbDType dtype = ebb_tensor_get_dtype (x);
  g_autoptr (EbbTensor) noise = ebb_rand ((const gint64[]){ 4, 8 }, 2, dtype, NULL, NULL, error);
  g_autoptr (EbbTensor) ones = ebb_ones ((const gint64[]){ 4, 8 }, 2, dtype, NULL, error);
  g_autoptr (EbbTensor) rows = ebb_randint (0, 4, (const gint64[]){ 6 }, 1, EBB_DTYPE_I64, NULL, NULL, error);
  g_autoptr (EbbTensor) noisy = ebb_mul (x, noise, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (noisy, gain, error);
  g_autoptr (EbbTensor) sum = ebb_add (scaled, ones, error);
  g_autoptr (EbbTensor) picked = ebb_index_select (sum, 0, rows, error);

  return ebb_sin (picked, error);
}

static EbbTensor *
takes_views (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (scaled, 0, 1, error);
  g_autoptr (EbbTensor) part = ebb_narrow (turned, 0, 2, 4, error);
  g_autoptr (EbbTensor) square = ebb_matmul (part, part, error);
  g_autoptr (EbbTensor) flat = ebb_flatten (square, 0, -1, error);
  g_autoptr (EbbTensor) both = ebb_cat ((EbbTensor *[]){ flat, flat }, 2, 0, error);

  return ebb_softmax (both, 0, error);
}

/* Two parts of one tensor that differ in nothing but where they begin, both saved. */
static EbbTensor *
halves_a_tensor (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) first = ebb_narrow (scaled, 0, 0, 2, error);
  g_autoptr (EbbTensor) last = ebb_narrow (scaled, 0, 2, 2, error);
  g_autoptr (EbbTensor) a = ebb_sin (first, error);
  g_autoptr (EbbTensor) b = ebb_sin (last, error);

  return ebb_mul (a, b, error);
}

static EbbTensor *
gives_its_input (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  return ebb_tensor_ref (x);
}

static EbbTensor *
gives_nothing_in_it (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  GAIN;
  g_autoptr (EbbTensor) none = ebb_narrow (x, 0, 0, 0, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (none, gain, error);

  return ebb_tanh (scaled, error);
}

static EbbTensor *
gives_a_scalar (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) a = call_child (self, "a", x, error);
  g_autoptr (EbbTensor) b = call_child (self, "b", a, error);

  return ebb_mean (b, NULL, 0, FALSE, error);
}

static EbbTensor *
stands_at_the_door (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = ebb_keep_store_new ();
  g_autoptr (EbbTensor) before = call_child (self, "a", x, error);
  g_autoptr (EbbTensor) inside = NULL;
  g_autoptr (EbbTensor) product = NULL;

  ebb_push_saved_tensor_hooks (store);
  inside = call_child (self, "b", before, error);
  product = ebb_mul (inside, before, error);
  ebb_pop_saved_tensor_hooks ();
  return ebb_tanh (product, error);
}

/* Tensors from outside that the module has not been given: one to differentiate, and a parameter of another. */
static EbbTensor *
closes_over (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  EbbTensor **far = data;
  g_autoptr (EbbTensor) wide = ebb_cast (far[0], ebb_tensor_get_dtype (x), error);
  g_autoptr (EbbTensor) scaled = ebb_mul (x, wide, error);
  g_autoptr (EbbTensor) a = call_child (self, "a", scaled, error);
  g_autoptr (EbbTensor) narrow = ebb_cast (far[1], ebb_tensor_get_dtype (x), error);
  g_autoptr (EbbTensor) b = ebb_mul (a, narrow, error);

  return ebb_sin (b, error);
}

typedef struct
{
  const char *name;
  TestForward1 forward;
} Case;

static const Case cases[] = {
  { "calls-two-children", calls_two_children },
  { "detaches", detaches },
  { "switches-gradients-off", switches_gradients_off },
  { "switches-checkpointing-off", switches_checkpointing_off },
  { "switches-autocast", switches_autocast },
  { "switches-training", switches_training },
  { "changes-its-own-in-place", changes_its_own_in_place },
  { "branches-on-values", branches_on_values },
  { "checkpoints-a-function", checkpoints_a_function },
  { "calls-itself", calls_itself },
  { "makes-tensors", makes_tensors },
  { "takes-views", takes_views },
  { "halves-a-tensor", halves_a_tensor },
  { "gives-its-input", gives_its_input },
  { "gives-nothing-in-it", gives_nothing_in_it },
  { "gives-a-scalar", gives_a_scalar },
  { "stands-at-the-door", stands_at_the_door },
  { "closes-over-a-tensor", closes_over },
};

static EbbModule *
new_module (TestForward1 forward, EbbTensor *far[2], const TestMode *mode)
{
  EbbModule *module = test_with_gain (test_lambda1_new (forward, far), 3);
  g_autoptr (EbbModule) a = test_mlp_new (1);
  g_autoptr (EbbModule) b = test_mlp_new (2);

  ebb_module_register_child (module, "a", a, NULL);
  ebb_module_register_child (module, "b", b, NULL);
  ebb_module_to_dtype (module, mode->dtype, NULL);
  return module;
}

/* As test_train1(), with the gradients of what lies outside. */
static TestOutcome *
train_with (EbbModule *module, EbbTensor *far[2], EbbTensor *x)
{
  TestOutcome *outcome;

  for (guint i = 0; i < 2; i++)
    ebb_tensor_set_grad (far[i], NULL, NULL);
  outcome = test_train1 (module, x);
  for (guint i = 0; i < 2; i++)
    {
      g_ptr_array_add (outcome->names, g_strdup ("gradient of what lies outside"));
      g_ptr_array_add (outcome->tensors, ebb_tensor_get_grad (far[i]));
    }
  return outcome;
}

/* Around the module, around its parts, and both; with and without early stop, all values compared. */
static void
forward_gives_the_same (const TestMode *mode, gconstpointer data)
{
  const TestForward1 forward = ((const Case *) data)->forward;
  g_autoptr (EbbModule) other = test_with_gain (test_lambda1_new (forward, NULL), 8);
  EbbTensor *far[2] = { test_randn (7, 8, -1), ebb_module_get_parameter (other, "gain") };
  g_autoptr (EbbModule) bare = new_module (forward, far, mode);
  g_autoptr (EbbTensor) x = test_input_in (mode, 4);
  g_autoptr (TestOutcome) plain = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  ebb_tensor_set_requires_grad (far[0], TRUE, NULL);
  plain = train_with (bare, far, x);
  for (guint way = 1; way < 8; way++)
    for (guint early_stop = 0; early_stop < 2; early_stop++)
      {
        g_autoptr (EbbModule) module = new_module (forward, far, mode);
        g_autoptr (EbbModule) a = ebb_module_get_child (module, "a");
        g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
        g_autoptr (TestOutcome) wrapped = NULL;

        g_object_set (options, "early-stop", early_stop, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
        if (way & 1)
          test_wrap_leaves (module, options);
        if (way & 2)
          test_wrap (a, options);
        if (way & 4)
          test_wrap (module, options);
        wrapped = train_with (module, far, x);
        test_assert_same_outcome (plain, wrapped);
        test_assert_counters (module, 0);
      }
  ebb_tensor_unref (far[0]);
  ebb_tensor_unref (far[1]);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strconcat ("/checkpoint/forward-that/", cases[i].name, NULL);

      test_add_modes_data (path, forward_gives_the_same, &cases[i]);
    }
  return g_test_run ();
}
