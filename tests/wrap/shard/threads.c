/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
/* Units that several threads use one after the other: each is in the lists of the last of them alone. */
#include "support/device.h"
#include "support/sharding.h"
#include "support/tensors.h"
#include "wrap/shard/unit-private.h"

static EbbModule *
make_units (void)
{
  EbbModule *units = test_shard_chain (NULL);

  test_shard_children (units, ebb_process_group_get_default (), FALSE);
  return units;
}

static EbbTensor *
forward (EbbModule *units)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (3, 12, 8, -1);
  EbbTensor *y = ebb_module_call1 (units, x, &error);

  g_assert_no_error (error);
  return y;
}

static void
backward (EbbTensor *y)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) sum = ebb_sum (y, NULL, 0, FALSE, &error);

  ebb_tensor_backward (sum, &error);
  g_assert_no_error (error);
}

static gpointer
evaluate_and_drop (gpointer units)
{
  g_autoptr (EbbTensor) y = NULL;

  ebb_push_grad_enabled (FALSE);
  y = forward (units);
  ebb_pop_grad_enabled ();
  g_object_unref (units);
  return NULL;
}

/* The lists of the first thread would point to units that are gone. */
static void
test_dropped_by_the_second (void)
{
  EbbModule *units = make_units ();
  g_autoptr (EbbTensor) y = forward (units);

  g_assert_cmpuint (ebb_shard_get_thread ()->forwarded->len, >, 0);
  g_clear_pointer (&y, ebb_tensor_unref);
  g_thread_join (g_thread_new ("second", evaluate_and_drop, units));
  g_assert_cmpuint (ebb_shard_get_thread ()->forwarded->len, ==, 0);
  g_assert_cmpuint (ebb_shard_get_thread ()->unsharded->len, ==, 0);
}

static gpointer
evaluate (gpointer units)
{
  return evaluate_and_drop (g_object_ref (units));
}

/* The pass reduces the units, as it does without the second thread. */
static void
test_evaluated_between_forward_and_backward (void)
{
  g_autoptr (EbbModule) units = make_units ();
  g_autoptr (EbbTensor) y = forward (units);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (units, TRUE, &n);

  g_thread_join (g_thread_new ("second", evaluate, units));
  backward (y);
  for (guint i = 0; i < n; i++)
    {
      const EbbShardUnit *unit = ebb_shard_unit_of (parameters[i], NULL);

      g_assert_cmpuint (unit->n_reductions, ==, 1);
      g_assert_true (unit->owner == ebb_shard_get_thread ());
      g_assert_nonnull (parameters[i]->grad);
      ebb_tensor_unref (parameters[i]);
    }
  g_assert_cmpuint (ebb_shard_get_thread ()->forwarded->len, ==, 0);
  g_assert_cmpuint (ebb_shard_get_thread ()->unsharded->len, ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/fully-shard/threads/dropped-by-the-second", test_dropped_by_the_second);
  g_test_add_func ("/fully-shard/threads/evaluated-between-forward-and-backward",
                   test_evaluated_between_forward_and_backward);
  return g_test_run ();
}
