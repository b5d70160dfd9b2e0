/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/autograd/autograd-private.h"
#include "tensor/thread-private.h"

/* Which ops a recompute runs again: those whose results have data. */

typedef struct
{
  EbbOpObserver observer;
  GString *ops; /* names, each followed by a blank */
  gboolean runs;
} Watch;

/* The result of the op may be there: one that was kept. */
static gboolean
expect_op (EbbOpObserver *observer, EbbOpCall *call, gboolean *provided, GError **error)
{
  ((Watch *) observer)->runs = !*provided;
  return TRUE;
}

static gboolean
note_op (EbbOpObserver *observer, EbbOpCall *call, GError **error)
{
  Watch *self = (Watch *) observer;

  if (self->runs && !call->outputs[0]->storage->placeholder)
    g_string_append_printf (self->ops, "%s ", call->op->name);
  self->runs = FALSE;
  return TRUE;
}

/* A forward that is watched from inside, so that its recompute is too. */
typedef struct
{
  EbbArgs *(*forward) (EbbTensor *x,
                       GError **error);
  GString *ops;
  guint calls;
} Watched;

static EbbArgs *
run_watched (EbbArgs *args, gpointer user_data, GError **error)
{
  Watched *watched = user_data;
  Watch watch = { { .before = expect_op, .after = note_op }, watched->ops, FALSE };
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  EbbArgs *result;

  watched->calls++;
  g_string_truncate (watched->ops, 0);
  ebb_thread_push_observer (&watch.observer);
  result = watched->forward (x, error);
  ebb_thread_pop_observer (&watch.observer);
  return result;
}

static EbbArgs *
give_all (EbbTensor **outputs, guint n_outputs)
{
  EbbArgs *result = ebb_args_new (EBB_ARGS_TUPLE);

  for (guint i = 0; i < n_outputs; i++)
    ebb_args_add_tensor (result, NULL, outputs[i]);
  return result;
}

/* The ops of the recompute, when backward wants the outputs in the bit mask @used of them. */
static char *
ops_again (EbbArgs *(*forward) (EbbTensor *x, GError **error), EbbCheckpointOptions *options, guint used)
{
  GError *error = NULL;
  Watched watched = { forward, g_string_new (NULL), 0 };
  g_autoptr (EbbTensor) x = test_randn (1, 4, 4, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  EbbTensor *losses[4];
  guint n = 0;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  result = ebb_checkpoint (run_watched, &watched, NULL, args, options, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < ebb_args_get_length (result); i++)
    {
      g_autoptr (EbbTensor) output = ebb_args_get_tensor (result, i);

      if (used & (1u << i))
        losses[n++] = test_loss (output);
    }
  g_clear_pointer (&result, ebb_args_unref); /* the others are not wanted any more */
  g_string_truncate (watched.ops, 0);
  g_assert_true (ebb_backward (losses, n, NULL, 0, NULL, 0, FALSE, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (watched.calls, <=, 2);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (losses[i]);
  return g_string_free (watched.ops, FALSE);
}

#define assert_ops(forward, options, used, expected)              \
  do                                                              \
    {                                                             \
      g_autofree char *ops_ = ops_again (forward, options, used); \
                                                                  \
      g_assert_cmpstr (ops_, ==, expected);                       \
    }                                                             \
  while (0)

/* -- where it stops ------------------------------------------------------------------------------------------------ */

/* Needs exp's result for exp itself; the sum and the scaling after it need nothing. */
static EbbArgs *
end_idly (EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbTensor) b = ebb_exp (a, error);
  g_autoptr (EbbTensor) c = ebb_add (b, x, error);
  g_autoptr (EbbTensor) d = ebb_mul_scalar (c, 2, error);
  g_autoptr (EbbTensor) e = ebb_neg (d, error);

  return give_all (&e, 1);
}

/* The last thing that is needed is an operand of the last product, not its result: the product is spared. */
static EbbArgs *
end_with_product (EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbTensor) b = ebb_matmul (x, a, error);

  return give_all (&b, 1);
}

static EbbArgs *
need_the_last (EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbTensor) b = ebb_tanh (a, error);

  return give_all (&b, 1);
}

static EbbArgs *
need_nothing (EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbTensor) b = ebb_add (a, x, error);

  return give_all (&b, 1);
}

static void
no_op_after_the_last_needed_one_runs_again (void)
{
  assert_ops (end_idly, NULL, 1, "sin exp ");
  assert_ops (end_with_product, NULL, 1, "sin ");
  assert_ops (need_the_last, NULL, 1, "sin tanh ");
  assert_ops (need_nothing, NULL, 1, "");
}

static void
without_early_stop_all_run_again (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  g_assert_true (test_get_flag (options, "early-stop"));
  g_object_set (options, "early-stop", FALSE, NULL);
  g_assert_false (test_get_flag (options, "early-stop"));
  assert_ops (end_idly, options, 1, "sin exp add mul_scalar neg ");
  assert_ops (end_with_product, options, 1, "sin matmul ");
  assert_ops (need_the_last, options, 1, "sin tanh ");
  assert_ops (need_nothing, options, 1, "");
}

/* -- outputs that are not used ------------------------------------------------------------------------------------- */

/* A chain with an output at each step. */
static EbbArgs *
give_each_step (EbbTensor *x, GError **error)
{
  EbbTensor *steps[4];
  EbbArgs *result;

  steps[0] = ebb_tanh (x, error);
  steps[1] = ebb_exp (steps[0], error);
  steps[2] = ebb_sigmoid (steps[1], error);
  steps[3] = ebb_sqrt (steps[2], error);
  result = give_all (steps, 4);
  for (guint i = 0; i < 4; i++)
    ebb_tensor_unref (steps[i]);
  return result;
}

static void
what_only_unused_outputs_need_does_not_run_again (void)
{
  assert_ops (give_each_step, NULL, 1, "tanh ");
  assert_ops (give_each_step, NULL, 2, "tanh exp ");
  assert_ops (give_each_step, NULL, 1 | 4, "tanh exp sigmoid ");
  assert_ops (give_each_step, NULL, 8, "tanh exp sigmoid sqrt ");
  assert_ops (give_each_step, NULL, 15, "tanh exp sigmoid sqrt ");
}

/* -- kept results -------------------------------------------------------------------------------------------------- */

static EbbCheckpointPolicy
keep_tanh (const char *op, guint ordinal, guint64 n_bytes, gpointer user_data, GError **error)
{
  return g_str_equal (op, "tanh") ? EBB_CHECKPOINT_POLICY_MUST_SAVE : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

/* A result that a policy saves stands in for its op. */
static void
kept_results_do_not_run_again (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_policy (options, keep_tanh, NULL, NULL);
  assert_ops (give_each_step, options, 1, "");
  assert_ops (give_each_step, options, 2, "exp ");
  assert_ops (give_each_step, options, 8, "exp sigmoid sqrt ");
  g_object_set (options, "early-stop", FALSE, NULL);
  assert_ops (give_each_step, options, 1, "exp sigmoid sqrt ");
}

/* -- nested -------------------------------------------------------------------------------------------------------- */

static EbbArgs *
inner_step (EbbArgs *args, gpointer user_data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) a = ebb_exp (x, error);
  g_autoptr (EbbTensor) b = ebb_sigmoid (a, error);

  return b != NULL ? ebb_args_new_for_tensor (b) : NULL;
}

/* sin, then a checkpointed part (exp, sigmoid), then sqrt. */
static EbbArgs *
call_inner (EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbArgs) args = a != NULL ? ebb_args_new_for_tensor (a) : NULL;
  g_autoptr (EbbArgs) inner = ebb_checkpoint (inner_step, NULL, NULL, args, NULL, error);
  g_autoptr (EbbTensor) b = inner != NULL ? ebb_args_get_tensor (inner, 0) : NULL;
  g_autoptr (EbbTensor) c = ebb_sqrt (b, error);

  return c != NULL ? give_all (&c, 1) : NULL;
}

static EbbArgs *
end_with_inner (EbbTensor *x, GError **error)
{
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbArgs) args = a != NULL ? ebb_args_new_for_tensor (a) : NULL;

  return ebb_checkpoint (inner_step, NULL, NULL, args, NULL, error);
}

/* The outer recompute runs the inner part if something needs what comes out of it, and stops at its input if not. */
static void
outer_recompute_stops_at_an_inner_one (void)
{
  assert_ops (call_inner, NULL, 1, "sin exp sigmoid sqrt ");
  assert_ops (end_with_inner, NULL, 1, "sin ");
}

/* -- saved tensors, from below ------------------------------------------------------------------------------------- */

static EbbArgs *
twice (EbbArgs *args, gpointer user_data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) a = ebb_sin (x, error);
  g_autoptr (EbbTensor) b = ebb_exp (a, error);

  ++*(guint *) user_data;
  return b != NULL ? ebb_args_new_for_tensor (b) : NULL;
}

/* A node's saved tensors may be read repeatedly, before backward and between two backward passes. */
static void
saved_tensor_may_be_unpacked_twice (void)
{
  GError *error = NULL;
  guint calls = 0;
  g_autoptr (EbbTensor) x = test_randn (1, 4, 4, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  EbbTensor *seen[3];
  EbbSavedTensor *saved;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  result = ebb_checkpoint (twice, &calls, NULL, args, NULL, &error);
  y = ebb_args_get_tensor (result, 0);
  g_assert_cmpuint (y->node->n_saved, ==, 1);
  saved = &y->node->saved[0];
  for (guint i = 0; i < 3; i++)
    {
      seen[i] = ebb_saved_tensor_unpack (saved, y->node->op, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_tensor_equal (seen[i], y));
    }
  loss = test_loss (y);
  test_backward (loss);
  for (guint i = 0; i < 3; i++)
    {
      g_assert_true (ebb_tensor_equal (seen[i], y));
      ebb_tensor_unref (seen[i]);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/early-stop/" name, func)
  TEST ("no-op-after-the-last-needed-one-runs-again", no_op_after_the_last_needed_one_runs_again);
  TEST ("without-it-all-run-again", without_early_stop_all_run_again);
  TEST ("what-only-unused-outputs-need-does-not-run-again", what_only_unused_outputs_need_does_not_run_again);
  TEST ("kept-results-do-not-run-again", kept_results_do_not_run_again);
  TEST ("outer-recompute-stops-at-an-inner-one", outer_recompute_stops_at_an_inner_one);
  TEST ("saved-tensor-may-be-unpacked-twice", saved_tensor_may_be_unpacked_twice);
  return g_test_run ();
}
