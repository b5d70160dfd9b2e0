/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/sim.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/backend/backend-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* The host store, one tensor at a time. */

/* -- one tensor ---------------------------------------------------------------------------------------------------- */

/* So that the pack that follows begins another group. */
static void
launch_something (void)
{
  g_autoptr (EbbTensor) zeros = ebb_zeros ((const gint64[]){ 4 }, 1, EBB_DTYPE_F32, test_sim, NULL);

  g_assert_nonnull (zeros);
}

static void
originals_go_at_a_fixed_point (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  EbbHandle *handles[4];
  const guint64 before = test_sim_in_use (test_sim);

  g_object_set (store, "in-flight", 2, NULL);
  for (guint i = 0; i < 4; i++)
    {
      EbbTensor *there = test_sim_send (here);

      handles[i] = test_pack (hooks, there);
      ebb_tensor_unref (there);
      g_assert_cmpuint (test_sim_in_use (test_sim), ==, before + 4000 * MIN (i + 1, 2));
      launch_something ();
    }
  for (guint i = 0; i < 4; i++)
    ebb_handle_unref (handles[i]);
  g_assert_cmpuint (test_sim_in_use (test_sim), ==, before);
  g_assert_cmpuint (test_sim_in_use (NULL), ==, 4000);
}

static void
a_source_in_flight_is_returned (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = test_sim_send (here);
  g_autoptr (EbbHandle) handle = test_pack (hooks, there);
  g_autoptr (EbbTensor) back = test_unpack (hooks, handle);

  g_assert_true (back->storage == there->storage);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), ==, 0);
}

static void
what_changes_in_place_comes_back_as_it_was (void)
{
  GError *error = NULL;
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) twice = ebb_mul_scalar (here, 2, NULL);
  g_autoptr (EbbTensor) there = test_sim_send (here);
  g_autoptr (EbbHandle) before = test_pack (hooks, there);
  g_autoptr (EbbHandle) after = NULL;
  g_autoptr (EbbTensor) was = NULL;
  g_autoptr (EbbTensor) is = NULL;

  ebb_push_grad_enabled (FALSE);
  ebb_tensor_scale (there, 2, &error); /* which waits for the copy */
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  was = test_unpack (hooks, before); /* while the store still holds the tensor, which no longer has these values */
  test_sim_assert_equal (was, here);
  after = test_pack (hooks, there);
  is = test_unpack (hooks, after);
  test_sim_assert_equal (is, twice);
}

static void
views_are_stored_once (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (2, 30, 50, -1);
  EbbTensor *there = test_sim_send (here), *turned = ebb_transpose (there, 0, 1, NULL);
  g_autoptr (EbbHandle) a = test_pack (hooks, there);
  g_autoptr (EbbHandle) b = test_pack (hooks, turned);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;

  ebb_tensor_unref (there);
  ebb_tensor_unref (turned);
  g_object_set (store, "in-flight", 0, NULL);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 30 * 50 * 4);
  launch_something ();
  {
    g_autoptr (EbbTensor) other = test_sim_send (here);
    g_autoptr (EbbHandle) c = test_pack (hooks, other); /* frees the first source */
  }
  x = test_unpack (hooks, a);
  y = test_unpack (hooks, b);
  g_assert_true (x->storage == y->storage);
  g_assert_cmpint (y->view.strides[0], ==, 1);
  g_assert_cmpint (y->view.strides[1], ==, 50);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), ==, 30 * 50 * 4);
  test_sim_assert_equal (x, here);
}

static void
what_is_small_or_a_parameter_stays (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 100, -1);
  g_autoptr (EbbTensor) small = test_sim_send (here);
  g_autoptr (EbbModule) linear = ebb_linear_new (64, 64, TRUE, NULL);
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;

  g_assert_true (ebb_module_to_device (linear, test_sim, NULL));
  weight = ebb_module_get_parameter (linear, "weight");
  g_object_set (store, "least-size", (guint64) 401, NULL);
  a = test_pack (hooks, small);
  b = test_pack (hooks, weight);
  g_assert_cmpuint (ebb_activation_store_get_n_kept (store), ==, 2);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 0);
}

static gboolean
is_wide (EbbTensor *tensor,
         const char *op,
         gpointer data,
         GError **error)
{
  guint *n = data;

  ++*n;
  if (*n == 3)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the filter is tired");
      return TRUE;
    }
  return tensor->n_elements > 500;
}

static void
count_freed (gpointer data)
{
  *(guint *) data += 100;
}

static void
a_filter_decides (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) few = ebb_narrow (here, 0, 0, 400, NULL);
  g_autoptr (EbbTensor) wide = test_sim_send (here);
  g_autoptr (EbbTensor) narrow = test_sim_send (few);
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;
  g_autoptr (GError) error = NULL;
  guint n = 0;

  ebb_activation_store_set_filter (store, is_wide, &n, count_freed);
  a = test_pack (hooks, wide);
  b = test_pack (hooks, narrow);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 4000);
  g_assert_cmpuint (ebb_activation_store_get_n_kept (store), ==, 1);
  g_assert_null (ebb_saved_tensor_hooks_pack (hooks, wide, &error));
  test_assert_error (error, EBB_ERROR_CALLBACK, "the filter is tired");
  ebb_activation_store_set_filter (store, NULL, NULL, NULL);
  g_assert_cmpuint (n, ==, 103);
}

/* -- limits -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbActivationStore *store;
  EbbTensor *tensor;
  EbbHandle *handle;
  guint stage; /* atomic */
} Other;

static void
await (Other *other,
       guint stage)
{
  while (__atomic_load_n (&other->stage, __ATOMIC_ACQUIRE) < stage)
    g_thread_yield ();
}

/* Holds the memory until the main thread has come to want it. */
static gpointer
hold_for_a_while (gpointer data)
{
  Other *other = data;

  other->handle = test_pack (EBB_SAVED_TENSOR_HOOKS (other->store), other->tensor);
  __atomic_store_n (&other->stage, 1, __ATOMIC_RELEASE);
  await (other, 2);
  for (guint i = 0; i < 100; i++)
    g_thread_yield ();
  g_clear_pointer (&other->handle, ebb_handle_unref);
  return NULL;
}

static void
a_full_store_waits_for_other_threads (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = test_sim_send (here);
  g_autoptr (EbbTensor) again = test_sim_send (here);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbHandle) handle = NULL;
  Other other = { store, there, NULL, 0 };
  GThread *thread;

  g_object_set (store, "byte-limit", (guint64) 4000, NULL);
  thread = g_thread_new (NULL, hold_for_a_while, &other);
  await (&other, 1);
  __atomic_store_n (&other.stage, 2, __ATOMIC_RELEASE);
  handle = test_pack (EBB_SAVED_TENSOR_HOOKS (store), again);
  g_thread_join (thread);
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (store), ==, 4000);
}

static gpointer
hold_and_end (gpointer data)
{
  Other *other = data;

  other->handle = test_pack (EBB_SAVED_TENSOR_HOOKS (other->store), other->tensor);
  return NULL;
}

static void
waiting_for_a_thread_that_ended_is_an_error (void)
{
  g_autoptr (EbbActivationStore) store = test_sim_new_store ();
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = test_sim_send (here);
  g_autoptr (EbbTensor) again = test_sim_send (here);
  g_autoptr (GError) error = NULL;
  Other other = { store, there, NULL, 0 };

  g_object_set (store, "byte-limit", (guint64) 4000, NULL);
  g_thread_join (g_thread_new (NULL, hold_and_end, &other));
  g_assert_null (ebb_saved_tensor_hooks_pack (EBB_SAVED_TENSOR_HOOKS (store), again, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "never end");
  ebb_handle_unref (other.handle);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  test_sim_open ();
#define TEST(name, func) g_test_add_func ("/host-store/" name, func)
#define TEST_DATA(name, data, func) g_test_add_data_func ("/host-store/" name, GUINT_TO_POINTER (data), func)
  TEST ("originals-go-at-a-fixed-point", originals_go_at_a_fixed_point);
  TEST ("a-source-in-flight-is-returned", a_source_in_flight_is_returned);
  TEST ("what-changes-in-place-comes-back-as-it-was", what_changes_in_place_comes_back_as_it_was);
  TEST ("views-are-stored-once", views_are_stored_once);
  TEST ("what-is-small-or-a-parameter-stays", what_is_small_or_a_parameter_stays);
  TEST ("a-filter-decides", a_filter_decides);
  TEST ("a-full-store-waits-for-other-threads", a_full_store_waits_for_other_threads);
  TEST ("waiting-for-a-thread-that-ended-is-an-error", waiting_for_a_thread_that_ended_is_an_error);
  return g_test_run ();
}
