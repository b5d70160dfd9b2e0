/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/backend-private.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* The host store on an accelerator: what is in the device's memory, to the byte, and nothing else changed. The device
 * is sim; copies take their time, so that a store that does not wait where it must is found. */

enum
{
  ROWS = 32,
  WIDTH = 64,
  N_BLOCKS = 6
};

#define INPUT_BYTES ((guint64) ROWS * WIDTH * 4)

static EbbDevice *sim;

static guint64
in_use (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static guint64
get_peak (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

static EbbTensor *
send (EbbTensor *tensor)
{
  GError *error = NULL;
  EbbTensor *there = ebb_to_device (tensor, sim, &error);

  g_assert_no_error (error);
  return there;
}

static EbbTensor *
fetch (EbbTensor *tensor)
{
  GError *error = NULL;
  EbbTensor *here = ebb_to_device (tensor, ebb_device_get_cpu (), &error);

  g_assert_no_error (error);
  return here;
}

static void
assert_equal (EbbTensor *there,
              EbbTensor *expected)
{
  g_autoptr (EbbTensor) here = fetch (there);

  g_assert_true (ebb_tensor_equal (here, expected));
}

static EbbActivationStore *
new_store (void)
{
  EbbActivationStore *store = EBB_ACTIVATION_STORE (ebb_host_store_new ());

  ebb_activation_store_set_least_size (store, 1);
  return store;
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

/* Four activations of the size of the input are inside. */
static EbbTensor *
bend (EbbModule *self,
      EbbTensor *x,
      gpointer data,
      GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (scaled, 0.1, TRUE, NULL, error);
  g_autoptr (EbbTensor) bent = ebb_sin (dropped, error);

  return ebb_tanh (bent, error);
}

static EbbModule *
new_model (EbbDevice *device)
{
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = test_lambda1_new (bend, NULL);
      g_autoptr (EbbTensor) gain = test_randn (i, WIDTH, -1);
      g_autofree char *name = g_strdup_printf ("%u", i);

      ebb_module_register_parameter (block, "gain", gain, NULL);
      ebb_module_register_child (model, name, block, NULL);
    }
  g_assert_true (ebb_module_to_device (model, device, NULL));
  return model;
}

static EbbTensor *
forward (EbbModule *model,
         EbbTensor *start,
         GError **error)
{
  /* A result, as inputs within a model are; nobody else keeps it. */
  EbbTensor *x;
  EbbTensor *loss = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) square = NULL;

  ebb_manual_seed (3);
  x = ebb_copy (start, error);
  y = ebb_module_call1 (model, x, error);
  g_clear_pointer (&x, ebb_tensor_unref);
  square = y != NULL ? ebb_mul (y, y, error) : NULL;
  if (square != NULL)
    loss = ebb_sum (square, NULL, 0, FALSE, error);
  return loss;
}

/* What was added to the gradients, which stay where they are, and are 0 again. */
static GPtrArray *
take_grads (EbbModule *model)
{
  GPtrArray *grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_ptr_array_add (grads, fetch (grad));
      g_assert_true (ebb_tensor_fill (grad, 0, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  return grads;
}

typedef struct
{
  guint64 peak; /* beyond what was there before */
  GPtrArray *grads;
} Step;

static void
train (EbbModule *model,
       EbbTensor *start,
       guint n_backwards)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) loss = forward (model, start, &error);

  g_assert_no_error (error);
  for (guint i = 0; i < n_backwards; i++)
    {
      ebb_backward (&loss, 1, NULL, 0, NULL, 0, i + 1 < n_backwards, &error);
      g_assert_no_error (error);
    }
}

/* @n_backwards: through the same graph. */
static Step
run (EbbModule *model,
     guint n_backwards)
{
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) start = send (here);
  guint64 before;
  Step step;

  train (model, start, 1); /* so that gradients are there already */
  g_ptr_array_unref (take_grads (model));
  before = in_use (sim);
  ebb_memory_reset_peaks (sim);
  train (model, start, n_backwards);
  step.peak = get_peak (sim) - before;
  step.grads = take_grads (model);
  return step;
}

static void
step_clear (Step *step)
{
  g_ptr_array_unref (step->grads);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Step, step_clear)

static void
assert_same_grads (const Step *a,
                   const Step *b)
{
  g_assert_cmpuint (a->grads->len, ==, b->grads->len);
  for (guint i = 0; i < a->grads->len; i++)
    g_assert_true (ebb_tensor_equal (a->grads->pdata[i], b->grads->pdata[i]));
}

static EbbModule *
new_wrapped (EbbActivationStore *store)
{
  EbbModule *model = new_model (sim);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  if (store != NULL)
    ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  test_wrap_leaves (model, options);
  return model;
}

/* Nothing is left in the store, nor in either memory beyond @there and @here. */
static void
assert_gone (EbbActivationStore *store,
             guint64 there,
             guint64 here)
{
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
  g_assert_cmpuint (in_use (sim), ==, there);
  g_assert_cmpuint (in_use (NULL), ==, here);
}

/* -- memory to the byte -------------------------------------------------------------------------------------------- */

static void
peak_is_lower_by_what_is_away (gconstpointer data)
{
  const guint prefetch = GPOINTER_TO_UINT (data);
  g_autoptr (EbbActivationStore) keep = EBB_ACTIVATION_STORE (ebb_keep_store_new ());
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) kept = new_wrapped (keep);
  g_autoptr (EbbModule) away = new_wrapped (store);
  g_auto (Step) first = run (kept, 1);
  guint64 there = 0, here = 0;

  ebb_activation_store_set_prefetch (store, prefetch);
  for (guint i = 0; i < 4; i++)
    {
      g_auto (Step) second = { 0 };

      if (i == 1)
        {
          there = in_use (sim);
          here = in_use (NULL);
        }
      second = run (away, 1);
      assert_same_grads (&first, &second);
      g_assert_cmpuint (first.peak - second.peak, ==, (N_BLOCKS - (prefetch + 1)) * INPUT_BYTES);
      g_clear_pointer (&second.grads, g_ptr_array_unref);
      second.grads = g_ptr_array_new ();
      if (i > 0)
        assert_gone (store, there, here);
    }
  /* The last input is still there when backward begins: it does not come back. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 8 * N_BLOCKS * INPUT_BYTES);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), ==, 8 * (N_BLOCKS - 1) * INPUT_BYTES);
  g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, N_BLOCKS * INPUT_BYTES);
}

static void
gradients_are_the_same_through_one_graph_twice (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) kept = new_wrapped (NULL);
  g_autoptr (EbbModule) away = new_wrapped (store);
  g_auto (Step) first = run (kept, 3);
  g_auto (Step) second = run (away, 3);

  assert_same_grads (&first, &second);
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

/* Without a recompute: all that ops keep goes there. */
static void
single_ops_store_what_they_need (gconstpointer data)
{
  const guint n = GPOINTER_TO_UINT (data);
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) model = new_model (sim);
  g_auto (Step) plain = run (model, 2);
  g_auto (Step) stored = { 0 };

  ebb_activation_store_set_in_flight (store, n);
  ebb_activation_store_set_prefetch (store, n);
  ebb_push_saved_tensor_hooks (EBB_SAVED_TENSOR_HOOKS (store));
  stored = run (model, 2);
  ebb_pop_saved_tensor_hooks ();
  assert_same_grads (&plain, &stored);
  g_assert_cmpuint (stored.peak, <, plain.peak);
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

static void
nested_wrappers_are_bitwise_equal (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) plain = new_model (sim);
  g_autoptr (EbbModule) nested = new_wrapped (store);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_auto (Step) first = run (plain, 2);
  g_auto (Step) second = { 0 };

  ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  test_wrap (nested, options);
  second = run (nested, 2);
  assert_same_grads (&first, &second);
  /* The whole's input alone. */
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (store), ==, INPUT_BYTES);
}

/* -- one tensor ---------------------------------------------------------------------------------------------------- */

/* So that the pack that follows begins another group. */
static void
launch_something (void)
{
  g_autoptr (EbbTensor) zeros = ebb_zeros ((const gint64[]){ 4 }, 1, EBB_DTYPE_F32, sim, NULL);

  g_assert_nonnull (zeros);
}

static void
originals_go_at_a_fixed_point (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  EbbHandle *handles[4];
  const guint64 before = in_use (sim);

  ebb_activation_store_set_in_flight (store, 2);
  for (guint i = 0; i < 4; i++)
    {
      EbbTensor *there = send (here);

      handles[i] = test_pack (hooks, there);
      ebb_tensor_unref (there);
      g_assert_cmpuint (in_use (sim), ==, before + 4000 * MIN (i + 1, 2));
      launch_something ();
    }
  for (guint i = 0; i < 4; i++)
    ebb_handle_unref (handles[i]);
  g_assert_cmpuint (in_use (sim), ==, before);
  g_assert_cmpuint (in_use (NULL), ==, 4000);
}

static void
an_original_that_is_held_is_given (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = send (here);
  g_autoptr (EbbHandle) handle = test_pack (hooks, there);
  g_autoptr (EbbTensor) back = test_unpack (hooks, handle);

  g_assert_true (back->storage == there->storage);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), ==, 0);
}

static void
what_changes_in_place_comes_back_as_it_was (void)
{
  GError *error = NULL;
  g_autoptr (EbbActivationStore) store = new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) twice = ebb_mul_scalar (here, 2, NULL);
  g_autoptr (EbbTensor) there = send (here);
  g_autoptr (EbbHandle) before = test_pack (hooks, there);
  g_autoptr (EbbHandle) after = NULL;
  g_autoptr (EbbTensor) was = NULL;
  g_autoptr (EbbTensor) is = NULL;

  ebb_push_grad_enabled (FALSE);
  ebb_tensor_scale (there, 2, &error); /* which waits for the copy */
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  after = test_pack (hooks, there);
  was = test_unpack (hooks, before);
  is = test_unpack (hooks, after);
  assert_equal (was, here);
  assert_equal (is, twice);
}

static void
views_are_stored_once (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (2, 30, 50, -1);
  EbbTensor *there = send (here), *turned = ebb_transpose (there, 0, 1, NULL);
  g_autoptr (EbbHandle) a = test_pack (hooks, there);
  g_autoptr (EbbHandle) b = test_pack (hooks, turned);
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;

  ebb_tensor_unref (there);
  ebb_tensor_unref (turned);
  ebb_activation_store_set_in_flight (store, 0);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 30 * 50 * 4);
  launch_something ();
  {
    g_autoptr (EbbTensor) other = send (here);
    g_autoptr (EbbHandle) c = test_pack (hooks, other); /* has the first original go */
  }
  x = test_unpack (hooks, a);
  y = test_unpack (hooks, b);
  g_assert_true (x->storage == y->storage);
  g_assert_cmpint (y->view.strides[0], ==, 1);
  g_assert_cmpint (y->view.strides[1], ==, 50);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (store), ==, 30 * 50 * 4);
  assert_equal (x, here);
}

static void
what_is_small_or_a_parameter_stays (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 100, -1);
  g_autoptr (EbbTensor) small = send (here);
  g_autoptr (EbbModule) linear = ebb_linear_new (64, 64, TRUE, NULL);
  g_autoptr (EbbTensor) weight = NULL;
  g_autoptr (EbbHandle) a = NULL;
  g_autoptr (EbbHandle) b = NULL;

  g_assert_true (ebb_module_to_device (linear, sim, NULL));
  weight = ebb_module_get_parameter (linear, "weight");
  ebb_activation_store_set_least_size (store, 401);
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
  g_autoptr (EbbActivationStore) store = new_store ();
  EbbSavedTensorHooks *hooks = EBB_SAVED_TENSOR_HOOKS (store);
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) few = ebb_narrow (here, 0, 0, 400, NULL);
  g_autoptr (EbbTensor) wide = send (here);
  g_autoptr (EbbTensor) narrow = send (few);
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

static void
a_full_store_spills_or_fails (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbActivationStore) disk = EBB_ACTIVATION_STORE (test_disk_store_new (g_get_tmp_dir ()));
  g_autoptr (EbbModule) kept = new_wrapped (NULL);
  g_autoptr (EbbModule) away = new_wrapped (store);
  g_auto (Step) first = run (kept, 1);
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) start = send (here);
  const EbbWhenFull policies[] = { EBB_WHEN_FULL_WAIT, EBB_WHEN_FULL_SPILL, EBB_WHEN_FULL_ERROR };
  guint64 there, in_host;

  ebb_host_store_set_byte_limit (EBB_HOST_STORE (store), 2 * INPUT_BYTES + INPUT_BYTES / 2);
  there = in_use (sim);
  in_host = in_use (NULL);
  for (guint i = 0; i < G_N_ELEMENTS (policies); i++)
    {
      g_autoptr (GError) error = NULL;

      ebb_host_store_set_when_full (EBB_HOST_STORE (store), policies[i]);
      g_assert_null (forward (away, start, &error));
      test_assert_error (error, EBB_ERROR_NO_MEMORY, "full", "8192 bytes", "16384 of 20480",
                         policies[i] == EBB_WHEN_FULL_WAIT ? "never end" : "byte-limit");
      assert_gone (store, there, in_host);
    }
  ebb_activation_store_set_fallback (store, disk);
  for (guint i = 0; i < G_N_ELEMENTS (policies); i++)
    {
      g_autoptr (GError) error = NULL;
      g_auto (Step) second = { 0 };

      ebb_host_store_set_when_full (EBB_HOST_STORE (store), policies[i]);
      ebb_activation_store_reset_stats (store);
      if (policies[i] == EBB_WHEN_FULL_ERROR)
        {
          second.grads = g_ptr_array_new ();
          g_assert_null (forward (away, start, &error));
          test_assert_error (error, EBB_ERROR_NO_MEMORY, "full");
          continue;
        }
      second = run (away, 1);
      assert_same_grads (&first, &second);
      g_assert_cmpuint (ebb_activation_store_get_bytes_spilled (store), ==, 2 * (N_BLOCKS - 2) * INPUT_BYTES);
      g_assert_cmpuint (ebb_activation_store_get_bytes_put (store), ==, 4 * INPUT_BYTES);
      g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 2 * INPUT_BYTES);
    }
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

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
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = send (here);
  g_autoptr (EbbTensor) again = send (here);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbHandle) handle = NULL;
  Other other = { store, there, NULL, 0 };
  GThread *thread;

  ebb_host_store_set_byte_limit (EBB_HOST_STORE (store), 4000);
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
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbTensor) here = test_randn (1, 1000, -1);
  g_autoptr (EbbTensor) there = send (here);
  g_autoptr (EbbTensor) again = send (here);
  g_autoptr (GError) error = NULL;
  Other other = { store, there, NULL, 0 };

  ebb_host_store_set_byte_limit (EBB_HOST_STORE (store), 4000);
  g_thread_join (g_thread_new (NULL, hold_and_end, &other));
  g_assert_null (ebb_saved_tensor_hooks_pack (EBB_SAVED_TENSOR_HOOKS (store), again, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "never end");
  ebb_handle_unref (other.handle);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

/* Whatever fails, and whenever: an error, nothing is left, and the next step is as it should be. */
static void
failures_fail_the_step_alone (gconstpointer data)
{
  const EbbFailure what = (EbbFailure) GPOINTER_TO_INT (data);
  g_autoptr (EbbModule) kept = new_wrapped (NULL);
  g_auto (Step) first = run (kept, 1);
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) start = send (here);
  guint n_failed = 0;

  for (guint64 n = 1; n < 200; n++)
    {
      g_autoptr (EbbActivationStore) store = new_store ();
      g_autoptr (EbbModule) away = new_wrapped (store);
      guint64 there, in_host, left;
      g_autoptr (GPtrArray) grads = NULL;
      g_autoptr (GError) error = NULL;
      EbbTensor *loss;

      train (away, start, 1);
      grads = take_grads (away);
      g_assert_true (ebb_host_store_trim (EBB_HOST_STORE (store), NULL));
      g_assert_cmpuint (ebb_host_store_get_bytes_reserved (EBB_HOST_STORE (store)), ==, 0);
      there = in_use (sim);
      in_host = in_use (NULL);
      sim->backend->fail (sim->index, what, n);
      loss = forward (away, start, &error);
      if (loss != NULL)
        ebb_tensor_backward (loss, &error);
      g_clear_pointer (&loss, ebb_tensor_unref);
      if (error == NULL)
        ebb_activation_store_synchronize (store, &error);
      if (error == NULL)
        sim->backend->synchronize (sim->index, &error);
      left = sim->backend->fail (sim->index, what, 0);
      assert_gone (store, there, in_host);
      g_clear_pointer (&grads, g_ptr_array_unref);
      grads = take_grads (away);
      if (left > 0)
        {
          g_assert_no_error (error);
          break;
        }
      if (error == NULL) /* an allocation for a prefetch, which was tried again */
        {
          Step absorbed = { 0, grads };

          g_assert_cmpint (what, ==, EBB_FAILURE_ALLOC);
          assert_same_grads (&first, &absorbed);
          continue;
        }
      n_failed++;
      {
        g_auto (Step) second = run (away, 1);

        assert_same_grads (&first, &second);
      }
    }
  g_assert_cmpuint (n_failed, >=, what == EBB_FAILURE_FROM_HOST ? N_BLOCKS - 1 : N_BLOCKS);
  g_assert_cmpuint (n_failed, <, 199);
}

static void
a_dropped_graph_leaves_nothing (void)
{
  GError *error = NULL;
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) away = new_wrapped (store);
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) start = send (here);
  const guint64 there = in_use (sim), in_host = in_use (NULL);

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) loss = forward (away, start, &error);

      g_assert_no_error (error);
    }
  assert_gone (store, there, in_host);
}

/* A graph may be let go by another thread, while its copies run. */
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
  g_autoptr (EbbModule) away = new_wrapped (store);
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  GPtrArray *last = NULL;

  for (guint i = 0; i < 10; i++)
    {
      g_autoptr (EbbTensor) start = send (here);
      g_autoptr (EbbTensor) loss = forward (away, start, NULL);

      g_assert_nonnull (loss);
      if (i % 3 == 2)
        {
          g_thread_join (g_thread_new (NULL, unref_tensor, g_steal_pointer (&loss)));
          continue;
        }
      g_assert_true (ebb_tensor_backward (loss, NULL));
      g_clear_pointer (&last, g_ptr_array_unref);
      last = take_grads (away);
    }
  return last;
}

static void
threads_share_a_store (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) kept = new_wrapped (NULL);
  g_auto (Step) first = run (kept, 1);
  GThread *threads[3];

  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    threads[i] = g_thread_new (NULL, train_alone, store);
  for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
    {
      g_auto (Step) step = { .grads = g_thread_join (threads[i]) };

      assert_same_grads (&first, &step);
    }
  g_assert_cmpuint (ebb_activation_store_get_bytes_held (store), ==, 0);
}

/* -- counters ------------------------------------------------------------------------------------------------------ */

static void
seconds_are_those_of_the_copies (void)
{
  g_autoptr (EbbActivationStore) store = new_store ();
  g_autoptr (EbbModule) away = new_wrapped (store);
  g_auto (Step) step = run (away, 1);
  g_autofree char *text = NULL;
  g_autofree char *json = NULL;
  double moving, waited;

  g_assert_true (ebb_activation_store_synchronize (store, NULL));
  moving = ebb_activation_store_get_seconds_moving (store);
  waited = ebb_activation_store_get_seconds_waited (store);
  /* 11 copies of each step at 100 MB a second. */
  g_assert_cmpfloat (moving, >=, 2 * (2 * N_BLOCKS - 1) * INPUT_BYTES / 100e6);
  g_assert_cmpfloat (waited, >=, 0);
  g_assert_cmpfloat (ebb_activation_store_get_hidden_share (store), ==, CLAMP (1 - waited / moving, 0, 1));
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
  GError *error = NULL;

  g_test_init (&argc, &argv, NULL);
  g_setenv ("EBB_SIM_MEMORY", "64M", TRUE);
  g_setenv ("EBB_SIM_BANDWIDTH", "100M", TRUE);
  sim = ebb_device_get ("sim", &error);
  g_assert_no_error (error);
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
  TEST ("originals-go-at-a-fixed-point", originals_go_at_a_fixed_point);
  TEST ("an-original-that-is-held-is-given", an_original_that_is_held_is_given);
  TEST ("what-changes-in-place-comes-back-as-it-was", what_changes_in_place_comes_back_as_it_was);
  TEST ("views-are-stored-once", views_are_stored_once);
  TEST ("what-is-small-or-a-parameter-stays", what_is_small_or_a_parameter_stays);
  TEST ("a-filter-decides", a_filter_decides);
  TEST ("a-full-store-spills-or-fails", a_full_store_spills_or_fails);
  TEST ("a-full-store-waits-for-other-threads", a_full_store_waits_for_other_threads);
  TEST ("waiting-for-a-thread-that-ended-is-an-error", waiting_for_a_thread_that_ended_is_an_error);
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
