/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <pthread.h>
#include <string.h>

/* Who gets a gradient, and when a wrapped module is checkpointed at all. */

static void
works_when_no_input_requires_a_gradient (const TestMode *mode)
{
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  ebb_module_to_dtype (mlp, mode->dtype, NULL);
  plain = test_train1 (mlp, x);
  wrapped = test_train1 (test_wrap (mlp, NULL), x);
  test_assert_same_outcome (plain, wrapped);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (mlp), ==, 1);
  g_assert_nonnull (wrapped->tensors->pdata[0]); /* the first weight's gradient */
}

static void
works_when_only_an_input_requires_a_gradient (const TestMode *mode)
{
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbTensor) grad = NULL;

  ebb_module_to_dtype (mlp, mode->dtype, NULL);
  ebb_module_set_requires_grad (mlp, FALSE, NULL);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  plain = test_train1 (mlp, x);
  wrapped = test_train1 (test_wrap (mlp, NULL), x);
  test_assert_same_outcome (plain, wrapped);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (mlp), ==, 1);
  grad = ebb_tensor_get_grad (x);
  g_assert_nonnull (grad);
}

/* (x, *, inside=[z]) to x * gain * z */
static EbbArgs *
scale (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbArgs) list = ebb_args_get_args (args, 1);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) z = ebb_args_get_tensor (list, 0);
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) scaled = ebb_mul (product, z, error);
  g_autoptr (EbbTensor) y = ebb_sin (scaled, error);

  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
outputs_require_gradients_exactly_when_something_does (void)
{
  for (guint bits = 0; bits < 8; bits++)
    for (guint wrapped = 0; wrapped < 2; wrapped++)
      {
        GError *error = NULL;
        g_autoptr (EbbModule) module = test_with_gain (test_lambda_new (scale, NULL), 1);
        g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
        g_autoptr (EbbTensor) z = test_randn (3, 3, 8, -1);
        g_autoptr (EbbTensor) y = NULL;
        g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
        g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
        g_autoptr (EbbArgs) result = NULL;

        ebb_module_set_requires_grad (module, bits & 1, &error);
        ebb_tensor_set_requires_grad (x, (bits & 2) != 0, &error);
        ebb_tensor_set_requires_grad (z, (bits & 4) != 0, &error);
        ebb_args_add_tensor (list, NULL, z);
        ebb_args_add_tensor (args, NULL, x);
        ebb_args_add_args (args, "inside", list);
        if (wrapped)
          test_wrap (module, NULL);
        result = ebb_module_call (module, args, &error);
        g_assert_no_error (error);
        y = ebb_args_get_tensor (result, 0);
        g_assert_cmpint (ebb_tensor_get_requires_grad (y), ==, bits != 0);
        g_assert_cmpint (ebb_tensor_is_leaf (y), ==, bits == 0);
        /* With nothing to differentiate there is nothing to come back for. */
        g_assert_cmpuint (ebb_module_get_forward_counter (module), ==, wrapped && bits != 0);
      }
}

/* x to (its largest index, x > 0, sin (x * gain), a copy of the tokens) */
static EbbArgs *
classify (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) tokens = ebb_args_get_tensor (args, 1);
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) y = ebb_sin (product, error);
  g_autoptr (EbbTensor) best = ebb_argmax (y, 1, FALSE, error);
  g_autoptr (EbbTensor) positive = ebb_gt_scalar (y, 0, error);
  g_autoptr (EbbTensor) copy = ebb_copy (tokens, error);
  EbbArgs *result;

  if (copy == NULL)
    return NULL;
  result = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (result, NULL, best);
  ebb_args_add_tensor (result, NULL, positive);
  ebb_args_add_tensor (result, NULL, y);
  ebb_args_add_tensor (result, NULL, copy);
  return result;
}

static void
integer_and_bool_outputs_require_none (void)
{
  const EbbDType dtypes[] = { EBB_DTYPE_I64, EBB_DTYPE_BOOL, EBB_DTYPE_F32, EBB_DTYPE_I64 };
  g_autoptr (EbbModule) module = test_with_gain (test_lambda_new (classify, NULL), 1);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 10, 4, -1);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, NULL, tokens);
  plain = test_train (module, args);
  wrapped = test_train (test_wrap (module, NULL), args);
  test_assert_same_outcome (plain, wrapped);
  result = ebb_module_call (module, args, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      g_autoptr (EbbTensor) output = ebb_args_get_tensor (result, i);

      g_assert_cmpint (ebb_tensor_get_dtype (output), ==, dtypes[i]);
      g_assert_cmpint (ebb_tensor_get_requires_grad (output), ==, dtypes[i] == EBB_DTYPE_F32);
    }
}

/* -- frozen parts -------------------------------------------------------------------------------------------------- */

enum
{
  N_LAYERS = 6
};

static void
run_stack (guint n_frozen, guint n_calls[N_LAYERS], gboolean as_a_whole)
{
  g_autoptr (EbbModule) stack = ebb_sequential_new ();
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  for (guint i = 0; i < N_LAYERS; i++)
    {
      g_autofree char *name = g_strdup_printf ("%u", i);
      g_autoptr (EbbModule) layer = test_counting_new (i, &n_calls[i]);

      ebb_module_set_requires_grad (layer, i >= n_frozen, NULL);
      ebb_module_register_child (stack, name, layer, NULL);
    }
  if (n_frozen < N_LAYERS)
    plain = test_train1 (stack, x);
  memset (n_calls, 0, N_LAYERS * sizeof n_calls[0]);
  if (as_a_whole)
    test_wrap (stack, NULL);
  else
    test_wrap_leaves (stack, NULL);
  if (plain == NULL)
    {
      ebb_tensor_unref (test_forward1 (stack, x));
      return;
    }
  wrapped = test_train1 (stack, x);
  test_assert_same_outcome (plain, wrapped);
}

static void
frozen_prefix_runs_once_and_each_later_module_twice (void)
{
  for (guint n_frozen = 0; n_frozen <= N_LAYERS; n_frozen++)
    {
      guint n_calls[N_LAYERS];

      run_stack (n_frozen, n_calls, FALSE);
      for (guint i = 0; i < N_LAYERS; i++)
        g_assert_cmpuint (n_calls[i], ==, i < n_frozen ? 1 : 2);
    }
}

/* The same inside one wrapped module: it is run again from its arguments. */
static void
frozen_parts_inside_run_with_the_whole (void)
{
  guint n_calls[N_LAYERS];

  run_stack (3, n_calls, TRUE);
  for (guint i = 0; i < N_LAYERS; i++)
    g_assert_cmpuint (n_calls[i], ==, 2);
}

static void
frozen_module_in_the_middle_passes_gradients_on (const TestMode *mode)
{
  g_autoptr (EbbModule) frozen = test_mlp_new (2);
  g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), g_object_ref (frozen), test_mlp_new (3), NULL);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  ebb_module_to_dtype (model, mode->dtype, NULL);
  ebb_module_set_requires_grad (frozen, FALSE, NULL);
  plain = test_train1 (model, x);
  test_wrap (frozen, NULL);
  test_wrap_leaves (model, NULL);
  wrapped = test_train1 (model, x);
  test_assert_same_outcome (plain, wrapped);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (frozen), ==, 1);
}

/* -- where it is a plain forward ----------------------------------------------------------------------------------- */

typedef struct
{
  guint calls, checkpointing, counted;
} Seen;

static EbbTensor *
look_around (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  Seen *seen = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);

  seen->calls++;
  seen->checkpointing += ebb_is_checkpointing () || ebb_is_recomputing ();
  seen->counted += ebb_module_get_forward_counter (self);
  return ebb_sin (product, error);
}

static void
plain_forward_without_gradients (void)
{
  Seen seen = { 0 };
  g_autoptr (EbbModule) module = test_wrap (test_with_gain (test_lambda1_new (look_around, &seen), 1), NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) recorded = test_forward1 (module, x);
  g_autoptr (EbbTensor) expected = ebb_tensor_detach (recorded);

  g_clear_pointer (&recorded, ebb_tensor_unref);
  seen = (Seen){ 0 };
  ebb_push_grad_enabled (FALSE);
  y = test_forward1 (module, x);
  g_assert_false (ebb_tensor_get_requires_grad (y));
  g_assert_true (ebb_tensor_equal (y, expected));
  g_assert_cmpuint (seen.calls, ==, 1);
  g_assert_cmpuint (seen.checkpointing + seen.counted, ==, 0);
  g_clear_pointer (&y, ebb_tensor_unref);

  ebb_push_grad_enabled (TRUE);
  y = test_forward1 (module, x);
  g_assert_cmpuint (seen.checkpointing, ==, 1);
  ebb_pop_grad_enabled ();
  ebb_pop_grad_enabled ();
}

typedef struct
{
  guint before, after;
  gboolean refuse;
} Hooked;

static gboolean
count_hook (EbbModule *module, EbbArgs *args, EbbArgs *result, gpointer data, GError **error)
{
  Hooked *hooked = data;

  ++*(result == NULL ? &hooked->before : &hooked->after);
  if (hooked->refuse)
    g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "told so");
  return !hooked->refuse;
}

static guint64
forwards_told (EbbModule *module)
{
  g_autoptr (EbbCheckpointStats) stats = ebb_checkpoint_get_stats (module);

  return stats->n_forwards;
}

/* An idle wrapper is no shortcut around the module's hooks, and reports nothing. */
static void
idle_wrapper_calls_hooks_and_tells_of_nothing (void)
{
  Hooked hooked = { 0 };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = test_wrap (test_mlp_new (1), NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);

  ebb_push_grad_enabled (FALSE);
  ebb_tensor_unref (test_forward1 (module, x));
  ebb_module_add_forward_pre_hook (module, count_hook, &hooked, NULL);
  ebb_module_add_forward_hook (module, count_hook, &hooked, NULL);
  ebb_tensor_unref (test_forward1 (module, x));
  hooked.refuse = TRUE;
  g_assert_null (ebb_module_call1 (module, x, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
  hooked.refuse = FALSE;
  ebb_pop_grad_enabled ();
  ebb_push_checkpointing_disabled ();
  ebb_tensor_unref (test_forward1 (module, x));
  ebb_pop_checkpointing_disabled ();
  g_assert_cmpuint (hooked.before * 10 + hooked.after, ==, 32);
  g_assert_cmpuint (forwards_told (module), ==, 0);
  test_outcome_free (test_train1 (module, x));
  g_assert_cmpuint (forwards_told (module), ==, 1);
  g_assert_cmpuint (hooked.before, ==, 5); /* they are part of what is run again */
}

/* A disabled wrapper saves the tensors for backward, as the bare module does. */
static void
check_disabled (EbbModule *module, EbbTensor *x, gboolean disabled)
{
  g_autoptr (EbbTensor) y = NULL;
  guint64 before = ebb_checkpoint_get_n_recomputes (module);

  y = test_forward1 (module, x);
  g_assert_true (ebb_tensor_get_requires_grad (y));
  g_assert_cmpuint (ebb_module_get_forward_counter (module), ==, !disabled);
  {
    g_autoptr (EbbTensor) loss = test_loss (y);

    test_backward (loss);
  }
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (module) - before, ==, !disabled);
}

static void
disabling_nests (void)
{
  Seen seen = { 0 };
  g_autoptr (EbbModule) module = test_wrap (test_with_gain (test_lambda1_new (look_around, &seen), 1), NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);

  check_disabled (module, x, FALSE);
  ebb_push_checkpointing_disabled ();
  ebb_push_checkpointing_disabled ();
  seen = (Seen){ 0 };
  check_disabled (module, x, TRUE);
  ebb_pop_checkpointing_disabled ();
  check_disabled (module, x, TRUE);
  g_assert_cmpuint (seen.calls, ==, 2);
  g_assert_cmpuint (seen.checkpointing + seen.counted, ==, 0);
  ebb_pop_checkpointing_disabled ();
  check_disabled (module, x, FALSE);
}

static void *
check_enabled_here (void *module)
{
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);

  check_disabled (module, x, FALSE);
  return NULL;
}

static void
disabling_is_of_the_thread (void)
{
  Seen seen = { 0 };
  g_autoptr (EbbModule) module = test_wrap (test_with_gain (test_lambda1_new (look_around, &seen), 1), NULL);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  pthread_t thread;

  ebb_push_checkpointing_disabled ();
  test_thread_create (&thread, check_enabled_here, module);
  pthread_join (thread, NULL);
  check_disabled (module, x, TRUE);
  ebb_pop_checkpointing_disabled ();
}

/* Frames of the forward know nothing of what is disabled when their backward comes. */
static void
backward_may_run_with_checkpointing_disabled (const TestMode *mode)
{
  g_autoptr (EbbModule) inner = test_mlp_new (2);
  g_autoptr (EbbModule) outer = test_chain_new (test_mlp_new (1), g_object_ref (inner), test_mlp_new (3), NULL);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (TestOutcome) in_between = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_module_to_dtype (outer, mode->dtype, NULL);
  y = test_forward1 (outer, x);
  loss = test_loss (y);
  test_backward (loss);
  plain = test_outcome_new (outer, NULL);
  g_clear_pointer (&y, ebb_tensor_unref);
  g_clear_pointer (&loss, ebb_tensor_unref);

  test_wrap (inner, NULL);
  test_wrap (outer, NULL);
  y = test_forward1 (outer, x);
  loss = test_loss (y);
  ebb_push_checkpointing_disabled ();
  test_backward (loss);
  ebb_pop_checkpointing_disabled ();
  wrapped = test_outcome_new (outer, NULL);
  test_assert_same_outcome (plain, wrapped);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/gradients/" name, func)
#define MODES(name, func) test_add_modes ("/checkpoint/gradients/" name, func)
  MODES ("works-when-no-input-requires-a-gradient", works_when_no_input_requires_a_gradient);
  MODES ("works-when-only-an-input-requires-a-gradient", works_when_only_an_input_requires_a_gradient);
  TEST ("outputs-require-gradients-exactly-when-something-does", outputs_require_gradients_exactly_when_something_does);
  TEST ("integer-and-bool-outputs-require-none", integer_and_bool_outputs_require_none);
  TEST ("frozen-prefix-runs-once-and-each-later-module-twice", frozen_prefix_runs_once_and_each_later_module_twice);
  TEST ("frozen-parts-inside-run-with-the-whole", frozen_parts_inside_run_with_the_whole);
  MODES ("frozen-module-in-the-middle-passes-gradients-on", frozen_module_in_the_middle_passes_gradients_on);
  TEST ("plain-forward-without-gradients", plain_forward_without_gradients);
  TEST ("idle-wrapper-calls-hooks-and-tells-of-nothing", idle_wrapper_calls_hooks_and_tells_of_nothing);
  TEST ("disabling-nests", disabling_nests);
  TEST ("disabling-is-of-the-thread", disabling_is_of_the_thread);
  MODES ("backward-may-run-with-checkpointing-disabled", backward_may_run_with_checkpointing_disabled);
  return g_test_run ();
}
