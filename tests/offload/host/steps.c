/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/sim.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/test-modules.h"
#include "support/training.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Steps with the host store: the device's memory to the byte, and nothing else changed, whatever happens. */

/* -- memory to the byte -------------------------------------------------------------------------------------------- */

static void
peak_is_lower_by_what_is_away (gconstpointer data)
{
  const guint prefetch = GPOINTER_TO_UINT (data);
  g_autoptr (EbbActivationStore) keep = EBB_ACTIVATION_STORE (ebb_keep_store_new ());
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) kept = test_sim_new_wrapped (keep);
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_auto (TestSimStep) first = test_sim_run (kept, 1);
  guint64 there = 0, here = 0;

  g_object_set (store, "prefetch", prefetch, NULL);
  for (guint i = 0; i < 4; i++)
    {
      g_auto (TestSimStep) second = { 0 };

      if (i == 1)
        {
          there = test_sim_in_use (test_sim);
          here = test_sim_in_use (NULL);
        }
      second = test_sim_run (away, 1);
      test_sim_assert_same_grads (&first, &second);
      g_assert_cmpuint (first.peak - second.peak, ==, (TEST_SIM_BLOCKS - (prefetch + 1)) * TEST_SIM_INPUT_BYTES);
      g_clear_pointer (&second.grads, g_ptr_array_unref);
      second.grads = g_ptr_array_new ();
      if (i > 0)
        test_sim_assert_gone (store, there, here);
    }
  /* The last input is still there when backward begins: it does not come back. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 8 * TEST_SIM_BLOCKS * TEST_SIM_INPUT_BYTES);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), ==, 8 * (TEST_SIM_BLOCKS - 1) * TEST_SIM_INPUT_BYTES);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==,
                    TEST_SIM_BLOCKS * TEST_SIM_INPUT_BYTES);
}

static void
gradients_are_the_same_through_one_graph_twice (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) kept = test_sim_new_wrapped (NULL);
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_auto (TestSimStep) first = test_sim_run (kept, 3);
  g_auto (TestSimStep) second = test_sim_run (away, 3);

  test_sim_assert_same_grads (&first, &second);
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

/* Without a recompute: all that ops keep goes there. */
static void
single_ops_store_what_they_need (gconstpointer data)
{
  const guint n = GPOINTER_TO_UINT (data);
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) model = test_sim_new_model (test_sim);
  g_auto (TestSimStep) plain = test_sim_run (model, 2);
  g_auto (TestSimStep) stored = { 0 };

  g_object_set (store, "in-flight", n, NULL);
  g_object_set (store, "prefetch", n, NULL);
  ebb_push_saved_tensor_hooks (EBB_SAVED_TENSOR_HOOKS (store));
  stored = test_sim_run (model, 2);
  ebb_pop_saved_tensor_hooks ();
  test_sim_assert_same_grads (&plain, &stored);
  g_assert_cmpuint (stored.peak, <, plain.peak);
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

static void
nested_wrappers_are_bitwise_equal (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) plain = test_sim_new_model (test_sim);
  g_autoptr (EbbModule) nested = test_sim_new_wrapped (store);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_auto (TestSimStep) first = test_sim_run (plain, 2);
  g_auto (TestSimStep) second = { 0 };

  ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  test_wrap (nested, options);
  second = test_sim_run (nested, 2);
  test_sim_assert_same_grads (&first, &second);
  /* The whole's input alone. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (store), ==, TEST_SIM_INPUT_BYTES);
}

/* Two wrapped modules have the same input. */
static EbbTensor *
branch (EbbModule *self,
        EbbTensor *x,
        gpointer data,
        GError **error)
{
  g_autoptr (EbbModule) left = ebb_module_get_child (self, "0");
  g_autoptr (EbbModule) right = ebb_module_get_child (self, "1");
  g_autoptr (EbbTensor) y = ebb_module_call1 (left, x, error);
  g_autoptr (EbbTensor) z = ebb_module_call1 (right, x, error);

  return ebb_add (y, z, error);
}

static EbbModule *
new_branches (EbbActivationStore *store)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  EbbModule *branches = test_lambda1_new (branch, NULL);

  if (store != NULL)
    ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) block = test_sim_new_block (i);
      g_autofree char *name = g_strdup_printf ("%u", i);

      ebb_module_register_child (branches, name, block, NULL);
      test_wrap (block, options);
    }
  g_assert_true (ebb_module_to_device (branches, test_sim, NULL));
  return branches;
}

static void
a_shared_input_is_stored_once (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) kept = new_branches (NULL);
  g_autoptr (EbbModule) away = new_branches (store);
  g_auto (TestSimStep) first = test_sim_run (kept, 2);
  g_auto (TestSimStep) second = test_sim_run (away, 2);

  test_sim_assert_same_grads (&first, &second);
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (store), ==, TEST_SIM_INPUT_BYTES);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 2 * TEST_SIM_INPUT_BYTES);
}

static void
an_error_in_the_middle_leaves_nothing (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_autoptr (EbbModule) last = test_stumbling_new ();
  g_autoptr (EbbTensor) here = test_randn (9, TEST_SIM_ROWS, TEST_SIM_WIDTH, -1);
  g_autoptr (EbbTensor) start = test_sim_send (here);
  const guint64 there = test_sim_in_use (test_sim), in_host = test_sim_in_use (NULL);

  ebb_module_register_child (away, "last", last, NULL);
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_null (test_sim_forward (away, start, &error));
      test_assert_error (error, EBB_ERROR_CALLBACK, "stumbled");
      test_sim_assert_gone (store, there, in_host);
    }
}

/* -- limits -------------------------------------------------------------------------------------------------------- */

static void
a_full_store_spills_or_fails (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbActivationStore) disk = EBB_ACTIVATION_STORE (test_disk_store_new (g_get_tmp_dir ()));
  g_autoptr (EbbModule) kept = test_sim_new_wrapped (NULL);
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_auto (TestSimStep) first = test_sim_run (kept, 1);
  g_autoptr (EbbTensor) here = test_randn (9, TEST_SIM_ROWS, TEST_SIM_WIDTH, -1);
  g_autoptr (EbbTensor) start = test_sim_send (here);
  const EbbWhenFull policies[] = { EBB_WHEN_FULL_WAIT, EBB_WHEN_FULL_SPILL, EBB_WHEN_FULL_ERROR };
  guint64 there, in_host;

  g_object_set (store, "byte-limit", (guint64) (2 * TEST_SIM_INPUT_BYTES + TEST_SIM_INPUT_BYTES / 2), NULL);
  there = test_sim_in_use (test_sim);
  in_host = test_sim_in_use (NULL);
  for (guint i = 0; i < G_N_ELEMENTS (policies); i++)
    {
      g_autoptr (GError) error = NULL;

      g_object_set (store, "when-full", policies[i], NULL);
      g_assert_null (test_sim_forward (away, start, &error));
      test_assert_error (error, EBB_ERROR_NO_MEMORY, "full", "8192 bytes", "16384 of 20480",
                         policies[i] == EBB_WHEN_FULL_WAIT ? "never end" : "byte-limit");
      test_sim_assert_gone (store, there, in_host);
    }
  g_assert_true (ebb_activation_store_set_fallback (store, disk, NULL));
  for (guint i = 0; i < G_N_ELEMENTS (policies); i++)
    {
      g_autoptr (GError) error = NULL;
      g_auto (TestSimStep) second = { 0 };

      g_object_set (store, "when-full", policies[i], NULL);
      ebb_activation_store_reset_stats (store);
      if (policies[i] == EBB_WHEN_FULL_ERROR)
        {
          second.grads = g_ptr_array_new ();
          g_assert_null (test_sim_forward (away, start, &error));
          test_assert_error (error, EBB_ERROR_NO_MEMORY, "full");
          continue;
        }
      second = test_sim_run (away, 1);
      test_sim_assert_same_grads (&first, &second);
      g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (store), ==,
                        2 * (TEST_SIM_BLOCKS - 2) * TEST_SIM_INPUT_BYTES);
      g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 4 * TEST_SIM_INPUT_BYTES);
      g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 2 * TEST_SIM_INPUT_BYTES);
    }
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

/* Whatever fails, and whenever: an error, nothing is left, and the next step is as it should be. */
static void
failures_fail_the_step_alone (gconstpointer data)
{
  const EbbFailure what = (EbbFailure) GPOINTER_TO_INT (data);
  g_autoptr (EbbModule) kept = test_sim_new_wrapped (NULL);
  g_auto (TestSimStep) first = test_sim_run (kept, 1);
  g_autoptr (EbbTensor) here = test_randn (9, TEST_SIM_ROWS, TEST_SIM_WIDTH, -1);
  g_autoptr (EbbTensor) start = test_sim_send (here);
  guint n_failed = 0;

  for (guint64 n = 1; n < 200; n++)
    {
      g_autoptr (EbbActivationStore) store = test_sim_new_store ();
      g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
      guint64 there, in_host, left;
      g_autoptr (GPtrArray) grads = NULL;
      g_autoptr (GError) error = NULL;
      EbbTensor *loss;

      test_sim_train (away, start, 1);
      grads = test_sim_take_grads (away);
      g_assert_true (ebb_host_store_trim (EBB_HOST_STORE (store), NULL));
      g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 0);
      there = test_sim_in_use (test_sim);
      in_host = test_sim_in_use (NULL);
      test_sim->backend->fail (test_sim->index, what, n);
      loss = test_sim_forward (away, start, &error);
      if (loss != NULL)
        ebb_tensor_backward (loss, &error);
      g_clear_pointer (&loss, ebb_tensor_unref);
      if (error == NULL)
        ebb_activation_store_synchronize (store, &error);
      if (error == NULL)
        test_sim->backend->synchronize (test_sim->index, &error);
      left = test_sim->backend->fail (test_sim->index, what, 0);
      test_sim_assert_gone (store, there, in_host);
      g_clear_pointer (&grads, g_ptr_array_unref);
      grads = test_sim_take_grads (away);
      if (left > 0)
        {
          g_assert_no_error (error);
          break;
        }
      if (error == NULL) /* an allocation for a prefetch, which was tried again */
        {
          TestSimStep absorbed = { 0, grads };

          g_assert_cmpint (what, ==, EBB_FAILURE_ALLOC);
          test_sim_assert_same_grads (&first, &absorbed);
          continue;
        }
      n_failed++;
      {
        g_auto (TestSimStep) second = test_sim_run (away, 1);

        test_sim_assert_same_grads (&first, &second);
      }
    }
  g_assert_cmpuint (n_failed, >=, what == EBB_FAILURE_FROM_HOST ? TEST_SIM_BLOCKS - 1 : TEST_SIM_BLOCKS);
  g_assert_cmpuint (n_failed, <, 199);
}

static void
a_dropped_graph_leaves_nothing (void)
{
  GError *error = NULL;
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_autoptr (EbbTensor) here = test_randn (9, TEST_SIM_ROWS, TEST_SIM_WIDTH, -1);
  g_autoptr (EbbTensor) start = test_sim_send (here);
  const guint64 there = test_sim_in_use (test_sim), in_host = test_sim_in_use (NULL);

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) loss = test_sim_forward (away, start, &error);

      g_assert_no_error (error);
    }
  test_sim_assert_gone (store, there, in_host);
}

/* Another thread may free a graph while its copies run. */
static gpointer
unref_tensor (gpointer data)
{
  ebb_tensor_unref (data);
  return NULL;
}

static gpointer
train_alone (gpointer data)
{
  EbbActivationStore *store = data;
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_autoptr (EbbTensor) here = test_randn (9, TEST_SIM_ROWS, TEST_SIM_WIDTH, -1);
  GPtrArray *last = NULL;

  for (guint i = 0; i < 10; i++)
    {
      g_autoptr (EbbTensor) start = test_sim_send (here);
      g_autoptr (EbbTensor) loss = test_sim_forward (away, start, NULL);

      g_assert_nonnull (loss);
      if (i % 3 == 2)
        {
          g_thread_join (g_thread_new (NULL, unref_tensor, g_steal_pointer (&loss)));
          continue;
        }
      g_assert_true (ebb_tensor_backward (loss, NULL));
      g_clear_pointer (&last, g_ptr_array_unref);
      last = test_sim_take_grads (away);
    }
  return last;
}

static void
threads_share_a_store (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) kept = test_sim_new_wrapped (NULL);
  g_auto (TestSimStep) first = test_sim_run (kept, 1);
  GThread *threads[3];

  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    threads[i] = g_thread_new (NULL, train_alone, store);
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    {
      g_auto (TestSimStep) step = { .grads = g_thread_join (threads[i]) };

      test_sim_assert_same_grads (&first, &step);
    }
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

/* -- counters ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  double copied, waited; /* seconds */
  guint64 n_bytes;
} Spans;

/* The spans of the queues by the device's own trace. */
static Spans
take_spans (void)
{
  g_autofree EbbStreamSpan *spans = NULL;
  const gsize n = test_sim->backend->streams->take_spans (test_sim->index, &spans);
  Spans sum = { 0 };

  for (gsize i = 0; i < n; i++)
    if (spans[i].is_wait && spans[i].stream == EBB_STREAM_COMPUTE)
      sum.waited += spans[i].end - spans[i].start;
    else if (!spans[i].is_wait && spans[i].stream != EBB_STREAM_COMPUTE)
      {
        sum.copied += spans[i].end - spans[i].start;
        sum.n_bytes += spans[i].n_bytes;
      }
  return sum;
}

static void
seconds_are_those_of_the_copies (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbModule) away = test_sim_new_wrapped (store);
  g_auto (TestSimStep) step = { 0 };
  g_autofree char *text = NULL;
  g_autofree char *json = NULL;
  double moving, waited;
  Spans spans;

  test_sim->backend->streams->set_tracing (test_sim->index, TRUE);
  step = test_sim_run (away, 1);
  g_assert_true (ebb_activation_store_synchronize (store, NULL));
  test_sim->backend->streams->set_tracing (test_sim->index, FALSE);
  spans = take_spans ();
  moving = ebb_activation_store_get_seconds_moving (store);
  waited = ebb_activation_store_get_seconds_waited (store);
  /* 11 copies of each step at 100 MB a second. */
  g_assert_cmpuint (spans.n_bytes, ==, 2 * (2 * TEST_SIM_BLOCKS - 1) * TEST_SIM_INPUT_BYTES);
  g_assert_cmpfloat (moving, >=, (double) spans.n_bytes / 100e6);
  g_assert_cmpfloat_with_epsilon (moving, spans.copied, 1e-6); /* no less, and just what the queues took */
  g_assert_cmpfloat (waited, <=, spans.waited + 1e-6);
  g_assert_cmpfloat_with_epsilon (ebb_activation_store_get_hidden_share (store),
                                  CLAMP (1 - waited / spans.copied, 0, 1), 1e-3);
  text = ebb_activation_store_report (store);
  json = ebb_activation_store_report_json (store);
  g_assert_nonnull (strstr (text, "EbbHostStore: "));
  g_assert_nonnull (strstr (json, "\"bytes_put\":98304"));
  g_assert_nonnull (strstr (json, "\"hidden_share\":"));
  ebb_activation_store_reset_stats (store);
  g_assert_cmpfloat (ebb_activation_store_get_seconds_moving (store), ==, 0);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  test_sim_open ();
#define TEST(name, func) g_test_add_func ("/host-store/" name, func)
#define TEST_DATA(name, data, func) g_test_add_data_func ("/host-store/" name, GUINT_TO_POINTER (data), func)
  TEST_DATA ("peak-is-lower-by-what-is-away/0", 0, peak_is_lower_by_what_is_away);
  TEST_DATA ("peak-is-lower-by-what-is-away/1", 1, peak_is_lower_by_what_is_away);
  TEST_DATA ("peak-is-lower-by-what-is-away/2", 2, peak_is_lower_by_what_is_away);
  TEST ("gradients-are-the-same-through-one-graph-twice", gradients_are_the_same_through_one_graph_twice);
  TEST_DATA ("single-ops-store-what-they-need/0", 0, single_ops_store_what_they_need);
  TEST_DATA ("single-ops-store-what-they-need/1", 1, single_ops_store_what_they_need);
  TEST_DATA ("single-ops-store-what-they-need/4", 4, single_ops_store_what_they_need);
  TEST ("nested-wrappers-are-bitwise-equal", nested_wrappers_are_bitwise_equal);
  TEST ("a-shared-input-is-stored-once", a_shared_input_is_stored_once);
  TEST ("an-error-in-the-middle-leaves-nothing", an_error_in_the_middle_leaves_nothing);
  TEST ("a-full-store-spills-or-fails", a_full_store_spills_or_fails);
  TEST_DATA ("failures-fail-the-step-alone/alloc", EBB_FAILURE_ALLOC, failures_fail_the_step_alone);
  TEST_DATA ("failures-fail-the-step-alone/alloc-host", EBB_FAILURE_ALLOC_HOST, failures_fail_the_step_alone);
  TEST_DATA ("failures-fail-the-step-alone/launch", EBB_FAILURE_LAUNCH, failures_fail_the_step_alone);
  TEST_DATA ("failures-fail-the-step-alone/to-host", EBB_FAILURE_TO_HOST, failures_fail_the_step_alone);
  TEST_DATA ("failures-fail-the-step-alone/from-host", EBB_FAILURE_FROM_HOST, failures_fail_the_step_alone);
  TEST ("a-dropped-graph-leaves-nothing", a_dropped_graph_leaves_nothing);
  TEST ("threads-share-a-store", threads_share_a_store);
  TEST ("seconds-are-those-of-the-copies", seconds_are_those_of_the_copies);
  return g_test_run ();
}
