/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

/* The forward counter: checkpointed forwards whose backward is still to come. */

#define assert_counter(module, n) g_assert_cmpuint (ebb_module_get_forward_counter (module), ==, n)

static EbbModule *
new_model (EbbModule **middle)
{
  EbbModule *model;

  *middle = test_mlp_new (2);
  model = test_chain_new (test_mlp_new (1), *middle, test_mlp_new (3), NULL);
  return model;
}

static void
every_module_inside_counts (void)
{
  EbbModule *middle;
  g_autoptr (EbbModule) model = new_model (&middle);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = test_forward1 (test_wrap (model, NULL), x);
  g_autoptr (EbbTensor) loss = test_loss (y);

  test_assert_counters (model, 1);
  test_backward (loss);
  test_assert_counters (model, 0); /* with the graph still there */
}

static void
only_what_is_inside_counts (void)
{
  EbbModule *middle;
  g_autoptr (EbbModule) model = new_model (&middle);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbModule) first = ebb_module_get_child (model, "0");

  test_wrap (middle, NULL);
  y = test_forward1 (model, x);
  loss = test_loss (y);
  assert_counter (model, 0);
  test_assert_counters (first, 0);
  test_assert_counters (middle, 1);
  test_backward (loss);
  test_assert_counters (model, 0);
}

/* In either order of the backwards, and with one that never comes. */
static void
several_calls_count_one_by_one (void)
{
  const guint orders[][3] = { { 0, 1, 2 }, { 2, 1, 0 }, { 1, 2, 0 } };

  for (guint i = 0; i < G_N_ELEMENTS (orders); i++)
    for (guint dropped = 0; dropped < 4; dropped++)
      {
        g_autoptr (EbbModule) mlp = test_wrap (test_mlp_new (1), NULL);
        g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
        EbbTensor *losses[3];

        for (guint j = 0; j < 3; j++)
          {
            g_autoptr (EbbTensor) y = test_forward1 (mlp, x);

            losses[j] = test_loss (y);
            test_assert_counters (mlp, j + 1);
          }
        for (guint j = 0; j < 3; j++)
          {
            if (orders[i][j] != dropped)
              test_backward (losses[orders[i][j]]);
            ebb_tensor_unref (losses[orders[i][j]]);
            test_assert_counters (mlp, 2 - j);
          }
      }
}

static EbbTensor *
call_thrice (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (self, "child");
  g_autoptr (EbbTensor) a = ebb_module_call1 (child, x, error);
  g_autoptr (EbbTensor) b = ebb_module_call1 (child, a, error);

  return ebb_module_call1 (child, b, error);
}

static EbbModule *
new_recurrent (EbbModule **child)
{
  EbbModule *self = test_lambda1_new (call_thrice, NULL);

  *child = test_mlp_new (1);
  ebb_module_register_child (self, "child", *child, NULL);
  g_object_unref (*child);
  return self;
}

static void
one_module_called_several_times_before_one_backward (const TestMode *mode)
{
  EbbModule *child;
  g_autoptr (EbbModule) model = new_recurrent (&child);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  ebb_module_to_dtype (model, mode->dtype, NULL);
  plain = test_train1 (model, x);
  test_wrap (child, NULL);
  wrapped = test_train1 (model, x);
  test_assert_same_outcome (plain, wrapped);
  test_assert_counters (model, 0);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (child), ==, 3);
  y = test_forward1 (model, x);
  assert_counter (model, 0);
  test_assert_counters (child, 3);
}

static void
nested_wrappers_count_each (void)
{
  EbbModule *child;
  g_autoptr (EbbModule) model = new_recurrent (&child);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  test_wrap (child, NULL);
  test_wrap (model, NULL);
  test_wrap (model, NULL);
  y = test_forward1 (model, x);
  assert_counter (model, 2);
  test_assert_counters (child, 2 + 3);
  loss = test_loss (y);
  test_backward (loss);
  test_assert_counters (model, 0);
}

static EbbTensor *
log_counter (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  guint counter = ebb_module_get_forward_counter (self);
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) product = ebb_mul (x, gain, error);

  g_array_append_val ((GArray *) data, counter);
  return ebb_sin (product, error);
}

/* FairScale's rule: up by one when a forward has ended, down by one when its recompute has. */
static void
a_forward_finds_those_before_it_and_a_recompute_itself (void)
{
  const guint expected[] = { 0, 1, 2, 1 };
  g_autoptr (GArray) seen = g_array_new (FALSE, FALSE, sizeof (guint));
  g_autoptr (EbbModule) module = test_wrap (test_with_gain (test_lambda1_new (log_counter, seen), 1), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) a = test_forward1 (module, x);
  g_autoptr (EbbTensor) b = test_forward1 (module, a);
  g_autoptr (EbbTensor) loss = test_loss (b);

  test_backward (loss);
  g_assert_cmpmem (seen->data, seen->len * sizeof (guint), expected, sizeof expected);
}

/* A forward inside the recompute of an outer wrapper is no new one: the first is still to come back. */
static void
recompute_of_an_outer_wrapper_counts_nothing (void)
{
  const guint expected[] = { 0, 2, 1 };
  g_autoptr (GArray) seen = g_array_new (FALSE, FALSE, sizeof (guint));
  EbbModule *inner = test_wrap (test_with_gain (test_lambda1_new (log_counter, seen), 1), NULL);
  g_autoptr (EbbModule) model = test_wrap (test_chain_new (test_mlp_new (1), inner, test_mlp_new (2), NULL), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

  test_outcome_free (test_train1 (model, x));
  g_assert_cmpmem (seen->data, seen->len * sizeof (guint), expected, sizeof expected);
}

static void
dropped_graph_counts_down_once (void)
{
  EbbModule *middle;
  g_autoptr (EbbModule) model = new_model (&middle);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

  test_wrap (middle, NULL);
  test_wrap (model, NULL);
  for (guint retain = 0; retain < 2; retain++)
    {
      EbbTensor *y = test_forward1 (model, x), *loss = test_loss (y);

      for (guint i = 0; i < retain * 2; i++)
        {
          g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, NULL));
          test_assert_counters (model, 0);
        }
      ebb_tensor_unref (y);
      ebb_tensor_unref (loss);
      test_assert_counters (model, 0);
    }
}

/* A graph that backward goes through in part: the frame that it doesn't reach is still open. */
static void
frame_that_backward_does_not_reach_stays_counted (void)
{
  g_autoptr (EbbModule) lower = test_wrap (test_mlp_new (1), NULL);
  g_autoptr (EbbModule) upper = test_wrap (test_mlp_new (2), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  EbbTensor *hidden = test_forward1 (lower, x);
  EbbTensor *y = test_forward1 (upper, hidden), *loss = test_loss (y), **grads;
  guint n;

  grads = ebb_grad (&loss, 1, &hidden, 1, NULL, 0, FALSE, &n, NULL);
  g_assert_cmpuint (n, ==, 1);
  ebb_tensor_unref (grads[0]);
  g_free (grads);
  test_assert_counters (upper, 0);
  test_assert_counters (lower, 1);
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (lower), ==, 0);
  ebb_tensor_unref (hidden);
  ebb_tensor_unref (y);
  ebb_tensor_unref (loss);
  test_assert_counters (lower, 0);
}

static EbbTensor *
fail_at (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  int *calls_left = data;
  g_autoptr (EbbTensor) y = ebb_exp (x, error);

  if ((*calls_left)-- == 0)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "told so");
      return NULL;
    }
  return ebb_tanh (y, error);
}

static void
failures_leave_it_at_zero (void)
{
  /* The first call is the forward; nested, the outer wrapper's recompute is the second, the inner one's the third. */
  for (guint wrappers = 1; wrappers <= 2; wrappers++)
    for (int fail = 0; fail <= (int) wrappers; fail++)
      {
        int calls_left = fail;
        g_autoptr (GError) error = NULL;
        EbbModule *inner = test_lambda1_new (fail_at, &calls_left);
        g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), inner, test_mlp_new (2), NULL);
        g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

        if (wrappers == 2)
          test_wrap (inner, NULL);
        test_wrap (model, NULL);
        {
          g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, &error);
          g_autoptr (EbbTensor) loss = y != NULL ? test_loss (y) : NULL;

          g_assert_true ((y == NULL) == (fail == 0));
          g_assert_false (loss != NULL && ebb_tensor_backward (loss, &error));
          g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
          if (loss != NULL)
            { /* once more, with the same graph: it may work or not, but never count below zero */
              ebb_tensor_backward (loss, NULL);
              g_assert_cmpuint (ebb_module_get_forward_counter (model), <=, 1);
            }
        }
        test_assert_counters (model, 0);
        calls_left = -1;
        test_outcome_free (test_train1 (model, x));
        test_assert_counters (model, 0);
      }
}

static EbbTensor *
leak_and_fail (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (self, "child");
  g_autoptr (EbbTensor) y = ebb_module_call1 (child, x, error);

  *(EbbTensor **) data = ebb_tanh (y, error);
  g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "told so");
  return NULL;
}

/* Though something that it made is still held, with the graph behind it. */
static void
failed_forward_counts_down_at_once (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) leaked = NULL;
  g_autoptr (EbbModule) child = test_mlp_new (1);
  g_autoptr (EbbModule) model = test_lambda1_new (leak_and_fail, &leaked);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);

  ebb_module_register_child (model, "child", child, NULL);
  g_assert_null (ebb_module_call1 (test_wrap (model, NULL), x, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
  g_assert_nonnull (leaked);
  test_assert_counters (model, 0);
  g_clear_pointer (&leaked, ebb_tensor_unref);
  test_assert_counters (model, 0);
}

/* A child that comes or goes between forward and backward counts what it has seen itself. */
static void
children_that_come_and_go_count_right (void)
{
  EbbModule *middle;
  g_autoptr (EbbModule) model = new_model (&middle);
  g_autoptr (EbbModule) added = test_mlp_new (4);
  g_autoptr (EbbModule) removed = g_object_ref (middle);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  EbbTensor *y = test_forward1 (test_wrap (model, NULL), x);

  g_assert_true (ebb_module_register_child (model, "1", added, NULL)); /* in its place */
  test_assert_counters (removed, 1);
  test_assert_counters (added, 0);
  ebb_tensor_unref (y);
  test_assert_counters (removed, 0);
  test_assert_counters (added, 0);
  test_assert_counters (model, 0);
}

static void
shared_child_counts_for_each_wrapper (void)
{
  g_autoptr (EbbModule) shared = test_mlp_new (1);
  g_autoptr (EbbModule) model = NULL;
  EbbModule *a = test_chain_new (ebb_tanh_new (), g_object_ref (shared), NULL);
  EbbModule *b = test_chain_new (g_object_ref (shared), ebb_tanh_new (), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  model = test_chain_new (test_wrap (a, NULL), test_wrap (b, NULL), NULL);
  y = test_forward1 (model, x);
  assert_counter (a, 1);
  assert_counter (b, 1);
  test_assert_counters (shared, 2);
  loss = test_loss (y);
  test_backward (loss);
  test_assert_counters (model, 0);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/counters/" name, func)
  TEST ("every-module-inside-counts", every_module_inside_counts);
  TEST ("only-what-is-inside-counts", only_what_is_inside_counts);
  TEST ("several-calls-count-one-by-one", several_calls_count_one_by_one);
  test_add_modes ("/checkpoint/counters/one-module-called-several-times",
                  one_module_called_several_times_before_one_backward);
  TEST ("nested-wrappers-count-each", nested_wrappers_count_each);
  TEST ("a-forward-finds-those-before-it-and-a-recompute-itself",
        a_forward_finds_those_before_it_and_a_recompute_itself);
  TEST ("recompute-of-an-outer-wrapper-counts-nothing", recompute_of_an_outer_wrapper_counts_nothing);
  TEST ("failed-forward-counts-down-at-once", failed_forward_counts_down_at_once);
  TEST ("dropped-graph-counts-down-once", dropped_graph_counts_down_once);
  TEST ("frame-that-backward-does-not-reach-stays-counted", frame_that_backward_does_not_reach_stays_counted);
  TEST ("failures-leave-it-at-zero", failures_leave_it_at_zero);
  TEST ("children-that-come-and-go-count-right", children_that_come_and_go_count_right);
  TEST ("shared-child-counts-for-each-wrapper", shared_child_counts_for_each_wrapper);
  return g_test_run ();
}
