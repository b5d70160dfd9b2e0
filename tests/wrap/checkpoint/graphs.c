/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <pthread.h>

/* Whatever way backward goes through a graph, with and without wrappers it gives the same. */

/* -- nesting ------------------------------------------------------------------------------------------------------- */

enum
{
  DEPTH = 6
};

/* x to dropout (tanh (child (x) * gain)), or without a child tanh (x * gain) */
static EbbTensor *
go_deeper (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbModule) child = ebb_module_get_child (self, "child");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) y = child != NULL ? ebb_module_call1 (child, scaled, error) : ebb_tensor_ref (scaled);
  g_autoptr (EbbTensor) z = ebb_tanh (y, error);

  ++*(guint *) data;
  return ebb_dropout (z, 0.1, TRUE, NULL, error);
}

static EbbModule *
new_deep (guint n_calls[DEPTH], EbbModule *levels[DEPTH])
{
  for (guint i = DEPTH; i > 0; i--)
    {
      levels[i - 1] = test_with_gain (test_lambda1_new (go_deeper, &n_calls[i - 1]), i);
      if (i < DEPTH)
        {
          ebb_module_register_child (levels[i - 1], "child", levels[i], NULL);
          g_object_unref (levels[i]);
        }
    }
  return levels[0];
}

/* Every choice of levels to wrap. */
static void
wrappers_nest_to_any_depth (const TestMode *mode)
{
  guint n_calls[DEPTH] = { 0 };
  EbbModule *levels[DEPTH];
  g_autoptr (EbbModule) model = new_deep (n_calls, levels);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;

  ebb_module_to_dtype (model, mode->dtype, NULL);
  plain = test_train1 (model, x);
  for (guint wrapped = 1; wrapped < 1u << DEPTH; wrapped++)
    {
      g_autoptr (TestOutcome) outcome = NULL;

      for (guint i = 0; i < DEPTH; i++)
        {
          n_calls[i] = 0;
          if (wrapped & (1u << i))
            test_wrap (levels[i], NULL);
        }
      outcome = test_train1 (model, x);
      test_assert_same_outcome (plain, outcome);
      test_assert_counters (model, 0);
      for (guint i = 0, n_around = 0; i < DEPTH; i++)
        {
          n_around += (wrapped >> i) & 1;
          g_assert_cmpuint (n_calls[i], ==, 1 + n_around); /* once for each wrapper around it */
          ebb_checkpoint_unwrap (levels[i]);
        }
    }
}

static void
wrappers_of_other_kinds_nest (const TestMode *mode)
{
  g_autoptr (EbbTensor) x = test_input_in (mode, 16);
  g_autoptr (TestOutcome) plain = NULL;

  for (guint kinds = 0; kinds < 9; kinds++)
    {
      g_autoptr (EbbModule) block = NULL;
      g_autoptr (EbbModule) model = NULL;
      g_autoptr (EbbTensor) batch = ebb_reshape (x, (const gint64[]){ 2, 8, 8 }, 3, NULL);
      g_autoptr (TestOutcome) outcome = NULL;
      const guint of[] = { kinds % 3, kinds / 3 }; /* none, all, some */

      ebb_manual_seed (5);
      block = ebb_transformer_block_new (8, 2, 0.1, TRUE, TRUE, NULL);
      model = test_chain_new (test_mlp_new (1), g_object_ref (block), test_mlp_new (2), NULL);
      ebb_module_to_dtype (model, mode->dtype, NULL);
      for (guint i = 0; i < 2; i++)
        {
          g_autoptr (EbbCheckpointOptions) options = of[i] == 2 ? ebb_checkpoint_options_new_selective ()
                                                                : ebb_checkpoint_options_new ();

          g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, "early-stop", i == 0, NULL);
          if (of[i] != 0)
            test_wrap (i == 0 ? block : model, options);
        }
      outcome = test_train1 (model, batch);
      if (plain == NULL)
        plain = g_steal_pointer (&outcome);
      else
        test_assert_same_outcome (plain, outcome);
    }
}

/* -- ways of backward ---------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbModule *model, *lower, *upper;
} Pair;

static Pair
new_pair (const TestMode *mode)
{
  Pair pair = { .lower = test_mlp_new (1), .upper = test_mlp_new (2) };

  pair.model = test_chain_new (pair.lower, pair.upper, NULL);
  ebb_module_to_dtype (pair.model, mode->dtype, NULL);
  return pair;
}

static EbbTensor *
weight_of (EbbModule *mlp, const char *name)
{
  g_autoptr (EbbModule) linear = ebb_module_get_child (mlp, name);

  return ebb_module_get_parameter (linear, "weight");
}

/* The gradients of the input, of what lies between, and of two weights, by ebb_grad(). */
static void
grads_of_pair (const Pair *pair, EbbTensor *x, guint which, EbbTensor **grads)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) hidden = test_forward1 (pair->lower, x);
  g_autoptr (EbbTensor) y = ebb_module_call1 (pair->upper, hidden, &error);
  g_autoptr (EbbTensor) low = weight_of (pair->lower, "0");
  g_autoptr (EbbTensor) high = weight_of (pair->upper, "3");
  EbbTensor *all[] = { x, hidden, low, high }, *loss = test_loss (y), *inputs[4];
  g_autofree EbbTensor **found = NULL;
  guint n = 0, n_found;

  for (guint i = 0; i < 4; i++)
    if (which & (1u << i))
      inputs[n++] = all[i];
  found = ebb_grad (&loss, 1, inputs, n, NULL, 0, FALSE, &n_found, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n_found, ==, n);
  for (guint i = 0; i < n; i++)
    grads[i] = found[i];
  ebb_tensor_unref (loss);
}

static void
chosen_inputs_get_their_gradients (const TestMode *mode)
{
  Pair pair = new_pair (mode);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  for (guint which = 1; which < 16; which++)
    {
      EbbTensor *plain[4] = { NULL }, *wrapped[4] = { NULL };
      guint64 lower, upper;
      g_autoptr (TestOutcome) leaves = NULL;

      grads_of_pair (&pair, x, which, plain);
      test_wrap (pair.lower, NULL);
      test_wrap (pair.upper, NULL);
      grads_of_pair (&pair, x, which, wrapped);
      lower = ebb_checkpoint_get_n_recomputes (pair.lower);
      upper = ebb_checkpoint_get_n_recomputes (pair.upper);
      for (guint i = 0; i < 4 && plain[i] != NULL; i++)
        {
          g_assert_true (ebb_tensor_equal (plain[i], wrapped[i]));
          ebb_tensor_unref (plain[i]);
          ebb_tensor_unref (wrapped[i]);
        }
      /* No leaf has a gradient of its own from that, and what leads to none of these was not run again. */
      leaves = test_outcome_new (pair.model, NULL);
      for (guint i = 0; i < leaves->tensors->len; i++)
        g_assert_null (leaves->tensors->pdata[i]);
      g_assert_cmpuint (lower, ==, (which & (1 | 4)) != 0);
      g_assert_cmpuint (upper, ==, 1);
      ebb_checkpoint_unwrap (pair.lower);
      ebb_checkpoint_unwrap (pair.upper);
    }
  g_object_unref (pair.model);
}

/* ebb_backward() with inputs stops at the same places, and adds to what they have. */
static void
backward_stops_where_nothing_further_is_wanted (const TestMode *mode)
{
  Pair pair = new_pair (mode);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  TestOutcome *outcomes[2];

  for (guint wrapped = 0; wrapped < 2; wrapped++)
    {
      g_autoptr (EbbTensor) y = NULL;
      EbbTensor *loss, *weight = weight_of (pair.upper, "0");

      if (wrapped)
        {
          test_wrap (pair.lower, NULL);
          test_wrap (pair.upper, NULL);
        }
      y = test_forward1 (pair.model, x);
      loss = test_loss (y);
      g_assert_true (ebb_backward (&loss, 1, NULL, 0, &weight, 1, FALSE, NULL));
      outcomes[wrapped] = test_outcome_new (pair.model, NULL);
      ebb_tensor_unref (loss);
      ebb_tensor_unref (weight);
    }
  test_assert_same_outcome (outcomes[0], outcomes[1]);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (pair.lower), ==, 0);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (pair.upper), ==, 1);
  test_outcome_free (outcomes[0]);
  test_outcome_free (outcomes[1]);
  g_object_unref (pair.model);
}

/* Frozen weights below: nothing of the lower module is wanted though its output has passed through. */
static void
backward_stops_at_frozen_modules (void)
{
  guint calls[3] = { 0 };
  EbbModule *layers[] = { test_counting_new (1, &calls[0]), test_counting_new (2, &calls[1]),
                          test_counting_new (3, &calls[2]) };
  g_autoptr (EbbModule) model = test_chain_new (layers[0], layers[1], layers[2], NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

  test_wrap_leaves (model, NULL);
  ebb_module_set_requires_grad (layers[0], FALSE, NULL);
  ebb_module_set_requires_grad (layers[1], FALSE, NULL);
  test_outcome_free (test_train1 (model, x));
  g_assert_cmpuint (calls[0] * 100 + calls[1] * 10 + calls[2], ==, 112);
}

/* -- retained graphs ----------------------------------------------------------------------------------------------- */

static void
retained_graphs_are_gone_through_again (const TestMode *mode)
{
  for (guint retain = 0; retain < 2; retain++)
    {
      Pair pair = new_pair (mode);
      g_autoptr (EbbTensor) x = test_input_in (mode, 3);
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      TestOutcome *outcomes[2];

      g_object_set (options, "retain-recomputed", retain, NULL);
      for (guint wrapped = 0; wrapped < 2; wrapped++)
        {
          g_autoptr (EbbTensor) y = NULL;
          g_autoptr (GError) error = NULL;
          EbbTensor *loss;

          if (wrapped)
            {
              test_wrap (pair.lower, options);
              test_wrap (pair.upper, options);
            }
          y = test_forward1 (pair.model, x);
          loss = test_loss (y);
          for (guint i = 0; i < 3; i++)
            g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, i < 2, NULL));
          outcomes[wrapped] = test_outcome_new (pair.model, NULL);
          g_assert_false (ebb_tensor_backward (loss, &error)); /* used up */
          test_assert_error (error, EBB_ERROR_GRAPH, "retain_graph");
          ebb_tensor_unref (loss);
        }
      test_assert_same_outcome (outcomes[0], outcomes[1]);
      g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (pair.lower), ==, retain ? 1 : 3);
      test_assert_counters (pair.model, 0);
      test_outcome_free (outcomes[0]);
      test_outcome_free (outcomes[1]);
      g_object_unref (pair.model);
    }
}

static guint64
kept_after_backward (gboolean retain_recomputed, gboolean retain_graph)
{
  const TestMode mode = { "", EBB_DTYPE_F32, FALSE, 1 };
  Pair pair = new_pair (&mode);
  g_autoptr (EbbTensor) x = test_input_in (&mode, 3);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  EbbTensor *loss;

  g_object_set (options, "retain-recomputed", retain_recomputed, NULL);
  y = test_forward1 (test_wrap (pair.model, options), x);
  loss = test_loss (y);
  g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, retain_graph, NULL));
  stats = ebb_memory_get_stats (test_device ());
  ebb_tensor_unref (loss);
  g_object_unref (pair.model);
  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

/* Of all that is recomputed a backward may have asked for the last thing alone. */
static void
recomputed_values_that_nobody_took_go_too (void)
{
  const TestMode mode = { "", EBB_DTYPE_F32, FALSE, 1 };
  Pair pair = new_pair (&mode);
  g_autoptr (EbbTensor) x = test_input_in (&mode, 3);
  g_autoptr (EbbTensor) y = test_forward1 (test_wrap (pair.model, NULL), x);
  g_autoptr (EbbTensor) weight = weight_of (pair.upper, "3");
  EbbTensor *loss = test_loss (y), *inputs[] = { weight };
  g_autoptr (EbbMemoryStats) before = ebb_memory_get_stats (test_device ());
  g_autoptr (EbbMemoryStats) after = NULL;

  g_assert_true (ebb_backward (&loss, 1, NULL, 0, inputs, 1, TRUE, NULL));
  after = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (pair.model), ==, 1);
  g_assert_cmpuint (ebb_memory_stats_get_current (after, EBB_PURPOSE_ACTIVATION), ==,
                    ebb_memory_stats_get_current (before, EBB_PURPOSE_ACTIVATION));
  ebb_tensor_unref (loss);
  g_object_unref (pair.model);
}

static void
recomputed_values_go_with_the_backward_unless_asked (void)
{
  const guint64 least = kept_after_backward (FALSE, TRUE);

  g_assert_cmpuint (kept_after_backward (FALSE, FALSE), ==, 0);
  g_assert_cmpuint (kept_after_backward (TRUE, FALSE), ==, 0);
  g_assert_cmpuint (kept_after_backward (TRUE, TRUE), >, least);
}

/* -- shared, recursive, in two threads ----------------------------------------------------------------------------- */

/* One tensor saved by several ops, twice by one of them, and again after a view. */
static EbbTensor *
use_often (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) y = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) square = ebb_mul (y, y, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (y, 0, 1, error);
  g_autoptr (EbbTensor) product = ebb_matmul (square, turned, error);
  g_autoptr (EbbTensor) wide = ebb_matmul (product, y, error);
  g_autoptr (EbbTensor) sine = ebb_sin (y, error);
  g_autoptr (EbbTensor) both = ebb_mul (wide, sine, error);

  return ebb_mul (both, gain, error);
}

static void
tensor_saved_at_several_places_is_recomputed_once (const TestMode *mode)
{
  g_autoptr (EbbModule) module = test_with_gain (test_lambda1_new (use_often, NULL), 1);
  g_autoptr (EbbTensor) x = test_input_in (mode, 4);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  ebb_module_to_dtype (module, mode->dtype, NULL);
  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  plain = test_train1 (module, x);
  wrapped = test_train1 (test_wrap (module, NULL), x);
  test_assert_same_outcome (plain, wrapped);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (module), ==, 1);
}

static void
shared_modules_sum_their_gradients (const TestMode *mode)
{
  g_autoptr (EbbModule) shared = test_mlp_new (1);
  g_autoptr (EbbModule) model = test_chain_new (g_object_ref (shared), test_mlp_new (2), g_object_ref (shared), NULL);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;

  ebb_module_to_dtype (model, mode->dtype, NULL);
  plain = test_train1 (model, x);
  for (guint depth = 1; depth <= 3; depth++)
    {
      g_autoptr (TestOutcome) wrapped = NULL;

      test_wrap (depth == 2 ? model : shared, NULL);
      wrapped = test_train1 (model, x);
      test_assert_same_outcome (plain, wrapped);
    }
}

static void *
train_alone (void *data)
{
  TestOutcome **outcomes = data;
  g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), test_mlp_new (2), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

  ebb_set_num_threads (1);
  outcomes[0] = test_train1 (model, x);
  test_wrap_leaves (model, NULL);
  test_wrap (model, NULL);
  for (guint i = 0; i < 50; i++)
    {
      if (i > 0)
        test_outcome_free (outcomes[1]);
      outcomes[1] = test_train1 (model, x);
    }
  return NULL;
}

static void
two_threads_train_two_models (void)
{
  TestOutcome *outcomes[2][2];
  pthread_t threads[2];

  for (guint i = 0; i < 2; i++)
    test_thread_create (&threads[i], train_alone, outcomes[i]);
  for (guint i = 0; i < 2; i++)
    {
      pthread_join (threads[i], NULL);
      test_assert_same_outcome (outcomes[i][0], outcomes[i][1]);
    }
  test_assert_same_outcome (outcomes[0][0], outcomes[1][0]);
  for (guint i = 0; i < 4; i++)
    test_outcome_free (outcomes[i / 2][i % 2]);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/graphs/" name, func)
#define MODES(name, func) test_add_modes ("/checkpoint/graphs/" name, func)
  MODES ("wrappers-nest-to-any-depth", wrappers_nest_to_any_depth);
  MODES ("wrappers-of-other-kinds-nest", wrappers_of_other_kinds_nest);
  MODES ("chosen-inputs-get-their-gradients", chosen_inputs_get_their_gradients);
  MODES ("backward-stops-where-nothing-further-is-wanted", backward_stops_where_nothing_further_is_wanted);
  TEST ("backward-stops-at-frozen-modules", backward_stops_at_frozen_modules);
  MODES ("retained-graphs-are-gone-through-again", retained_graphs_are_gone_through_again);
  TEST ("recomputed-values-go-with-the-backward-unless-asked", recomputed_values_go_with_the_backward_unless_asked);
  TEST ("recomputed-values-that-nobody-took-go-too", recomputed_values_that_nobody_took_go_too);
  MODES ("tensor-saved-at-several-places-is-recomputed-once", tensor_saved_at_several_places_is_recomputed_once);
  MODES ("shared-modules-sum-their-gradients", shared_modules_sum_their_gradients);
  TEST ("two-threads-train-two-models", two_threads_train_two_models);
  return g_test_run ();
}
