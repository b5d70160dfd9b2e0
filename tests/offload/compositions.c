/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

#include <glib/gstdio.h>

/* Stores in front of stores, on the CPU and on devices that work behind the caller's back: whatever a step does and
 * whatever fails in it, gradients are those without a store, to the bit, and nothing stays behind. */

#define VOCAB 61
#define WIDTH 48
#define CONTEXT 24
#define BATCH 2
#define N_BLOCKS 3

typedef enum
{
  CONTIGUOUS,
  CONTIGUOUS_HOST,
  CONTIGUOUS_DISK,
  N_KINDS
} Kind;

static const char *const kind_names[] = { "contiguous", "contiguous-host", "contiguous-disk" };

typedef struct
{
  Kind kind;
  EbbDevice *device;
} Case;

typedef enum
{
  PLAIN,
  HOOKS,
  OFFLOAD,
  BLOCKS,
  NESTED,
  SELECTIVE,
  N_WAYS
} Way;

static char *scratch;

/* -- stores -------------------------------------------------------------------------------------------------------- */

static EbbSavedTensorHooks *
new_next (Kind kind)
{
  switch (kind)
    {
    case CONTIGUOUS:
      return NULL;
    case CONTIGUOUS_HOST:
      return ebb_host_store_new ();
    default:
      return test_disk_store_new (scratch);
    }
}

static EbbSavedTensorHooks *
new_store (Kind kind)
{
  g_autoptr (EbbSavedTensorHooks) next = new_next (kind);
  GError *error = NULL;
  EbbSavedTensorHooks *store = ebb_contiguous_store_new (4, (EbbActivationStore *) next, &error);

  g_assert_no_error (error);
  g_object_set (store, "least-size", (guint64) 1, NULL);
  g_object_set (store, "grow", TRUE, NULL);
  return store;
}

static EbbActivationStore *
get_next (EbbSavedTensorHooks *store)
{
  return ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store));
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  guint64 device, cpu;
} Memory;

static guint64
get_total (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static Memory
get_memory (EbbDevice *device)
{
  return (Memory){ get_total (device), get_total (NULL) };
}

static void
assert_memory (EbbDevice *device,
               Memory memory)
{
  g_assert_cmpuint (get_total (device), ==, memory.device);
  g_assert_cmpuint (get_total (NULL), ==, memory.cpu);
}

static void
assert_empty (EbbSavedTensorHooks *store,
              EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  g_assert_cmpuint (test_held (store), ==, 0);
  if (EBB_IS_CONTIGUOUS_STORE (store))
    {
      g_assert_cmpuint (test_get_double (store, "n-parts"), ==, 0);
      ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (store));
      g_assert_cmpuint (test_get_double (store, "n-buffers"), ==, 0);
    }
  if (get_next (store) != NULL)
    g_assert_cmpuint (test_held (get_next (store)), ==, 0);
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
}

/* -- a model ------------------------------------------------------------------------------------------------------- */

static EbbModule *
new_gpt (EbbDevice *device,
         Way way,
         EbbSavedTensorHooks *store)
{
  g_autoptr (EbbCheckpointOptions) options =
      way == SELECTIVE ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt = test_gpt_new ();

  g_assert_true (ebb_module_to_device (gpt, device, &error));
  if (store != NULL)
    ebb_checkpoint_options_set_store (options, store);
  if (way >= BLOCKS)
    ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  if (way == NESTED)
    ebb_checkpoint_wrap_each (gpt, EBB_TYPE_MLP, options, &error);
  if (way == OFFLOAD)
    ebb_offload_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, store, &error);
  g_assert_no_error (error);
  return gpt;
}

/* Always the same; @hooks for every tensor that is saved, or NULL. */
static EbbTensor *
forward (EbbModule *gpt,
         EbbDevice *device,
         EbbSavedTensorHooks *hooks,
         guint seed,
         GError **error)
{
  g_autoptr (EbbTensor) tokens_here = test_tokens (seed, VOCAB, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) targets_here = test_tokens (seed + 100, VOCAB, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) tokens = ebb_to_device (tokens_here, device, error);
  g_autoptr (EbbTensor) targets = ebb_to_device (targets_here, device, error);
  EbbTensor *loss;

  ebb_manual_seed (seed);
  if (hooks != NULL)
    ebb_push_saved_tensor_hooks (hooks);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, error);
  if (hooks != NULL)
    ebb_pop_saved_tensor_hooks ();
  return loss;
}

static gboolean
backward (EbbTensor *loss,
          gboolean retain_graph,
          GError **error)
{
  return loss != NULL && ebb_backward (&loss, 1, NULL, 0, NULL, 0, retain_graph, error);
}

static gboolean
run_once (EbbModule *gpt,
          EbbDevice *device,
          EbbSavedTensorHooks *hooks,
          GError **error)
{
  g_autoptr (EbbTensor) loss = NULL;

  ebb_module_zero_grad (gpt);
  loss = forward (gpt, device, hooks, 1, error);
  return backward (loss, FALSE, error);
}

static GPtrArray *
collect (EbbModule *gpt)
{
  GPtrArray *grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (gpt, TRUE, &n);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_assert_nonnull (grad);
      g_ptr_array_add (grads, ebb_to_device (grad, ebb_device_get_cpu (), &error));
      g_assert_no_error (error);
      ebb_tensor_unref (parameters[i]);
    }
  return grads;
}

static void
assert_grads (EbbModule *gpt,
              GPtrArray *expected)
{
  g_autoptr (GPtrArray) grads = collect (gpt);

  g_assert_cmpuint (grads->len, ==, expected->len);
  for (guint i = 0; i < grads->len; i++)
    g_assert_true (ebb_tensor_equal (g_ptr_array_index (grads, i), g_ptr_array_index (expected, i)));
}

/* -- what a step may do -------------------------------------------------------------------------------------------- */

typedef void (*Situation) (EbbModule *gpt,
                           EbbDevice *device,
                           EbbSavedTensorHooks *hooks);

static void
one_step (EbbModule *gpt,
          EbbDevice *device,
          EbbSavedTensorHooks *hooks)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (run_once (gpt, device, hooks, &error));
  g_assert_no_error (error);
}

static void
several_backwards (EbbModule *gpt,
                   EbbDevice *device,
                   EbbSavedTensorHooks *hooks)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = forward (gpt, device, hooks, 1, &error);

  for (guint i = 0; i < 3; i++)
    g_assert_true (backward (loss, i < 2, &error));
}

static void
forwards_before_backwards (EbbModule *gpt,
                           EbbDevice *device,
                           EbbSavedTensorHooks *hooks)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *losses[3];

  for (guint i = 0; i < 3; i++)
    losses[i] = forward (gpt, device, hooks, i + 1, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < 3; i++) /* in another order than either */
    g_assert_true (backward (losses[(2 * i + 1) % 3], FALSE, &error));
  for (guint i = 0; i < 3; i++)
    ebb_tensor_unref (losses[i]);
}

static void
a_dropped_graph (EbbModule *gpt,
                 EbbDevice *device,
                 EbbSavedTensorHooks *hooks)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) first = forward (gpt, device, hooks, 1, &error);
  g_autoptr (EbbTensor) second = forward (gpt, device, hooks, 2, &error);

  g_assert_no_error (error);
  g_clear_pointer (&first, ebb_tensor_unref);
  if (EBB_IS_CONTIGUOUS_STORE (hooks))
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (hooks));
  first = forward (gpt, device, hooks, 3, &error);
  g_assert_true (backward (second, FALSE, &error));
  g_clear_pointer (&first, ebb_tensor_unref);
}

static const struct
{
  const char *name;
  Situation run;
} situations[] = { { "one-step", one_step },
                   { "several-backwards", several_backwards },
                   { "forwards-before-backwards", forwards_before_backwards },
                   { "a-dropped-graph", a_dropped_graph } };

static void
gradients_are_bitwise_equal (gconstpointer data)
{
  const Case *which = data;
  const Memory before = get_memory (which->device);

  for (guint i = 0; i < G_N_ELEMENTS (situations); i++)
    {
      g_autoptr (EbbModule) plain = new_gpt (which->device, PLAIN, NULL);
      g_autoptr (GPtrArray) expected = NULL;

      situations[i].run (plain, which->device, NULL);
      expected = collect (plain);
      for (Way way = HOOKS; way < N_WAYS; way++)
        {
          g_autoptr (EbbSavedTensorHooks) store = new_store (which->kind);
          g_autoptr (EbbModule) gpt = new_gpt (which->device, way, store);
          EbbActivationStore *counters = EBB_ACTIVATION_STORE (store);

          situations[i].run (gpt, which->device, way == HOOKS ? store : NULL);
          assert_grads (gpt, expected);
          assert_empty (store, which->device);
          g_assert_cmpuint (ebb_activation_store_get_bytes_put (counters), >=, N_BLOCKS * BATCH * CONTEXT * WIDTH * 4);
        }
    }
  assert_memory (which->device, before);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

/* Other work that was under way may report the failure once more. */
static void
forget_failures (EbbDevice *device,
                 EbbSavedTensorHooks *store)
{
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (GError) of_device = NULL;
      g_autoptr (GError) of_store = NULL;

      ebb_device_synchronize (device, &of_device);
      ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &of_store);
    }
}

/* Until a step is done before its @n-th such call. Nothing is lost: each failure is an error, the next step is right.
 */
static guint
fail_each (EbbModule *gpt,
           EbbDevice *device,
           EbbSavedTensorHooks *store,
           EbbFailure failure,
           guint stride,
           GPtrArray *expected)
{
  const EbbBackend *backend = device->backend;
  guint n_told = 0;

  for (guint n = 1;; n += stride)
    {
      g_autoptr (GError) error = NULL;
      gboolean done, is_over;

      backend->fail (device->index, failure, n);
      done = run_once (gpt, device, NULL, &error);
      if (done) /* a copy that nobody waits for may fail after that */
        done = ebb_device_synchronize (device, &error)
               && ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (store), &error);
      is_over = backend->fail (device->index, failure, 0) > 0;
      g_assert_true (done == (error == NULL));
      if (done)
        assert_grads (gpt, expected);
      n_told += !done;
      g_clear_error (&error);
      forget_failures (device, store);
      assert_empty (store, device);
      run_once (gpt, device, NULL, &error);
      g_assert_no_error (error);
      assert_grads (gpt, expected);
      if (is_over)
        return n_told;
    }
}

static void
each_failure_is_an_error (gconstpointer data)
{
  const Case *which = data;
  const struct
  {
    EbbFailure failure;
    guint stride;
  } failures[] = { { EBB_FAILURE_ALLOC, 3 },
                   { EBB_FAILURE_ALLOC_HOST, 1 },
                   { EBB_FAILURE_LAUNCH, 17 },
                   { EBB_FAILURE_TO_HOST, 1 },
                   { EBB_FAILURE_FROM_HOST, 1 } };
  const Memory before = get_memory (which->device);
  g_autoptr (EbbModule) plain = new_gpt (which->device, PLAIN, NULL);
  g_autoptr (GPtrArray) expected = NULL;

  one_step (plain, which->device, NULL);
  expected = collect (plain);
  g_clear_object (&plain);
  for (guint i = 0; i < G_N_ELEMENTS (failures); i++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (which->kind);
      g_autoptr (EbbModule) gpt = new_gpt (which->device, NESTED, store);
      guint n = fail_each (gpt, which->device, store, failures[i].failure, failures[i].stride, expected);

      g_test_message ("%s: failure %u was returned %u times", kind_names[which->kind], i, n);
      if (failures[i].failure == EBB_FAILURE_ALLOC || failures[i].failure == EBB_FAILURE_LAUNCH)
        g_assert_cmpuint (n, >, 0);
    }
  g_clear_pointer (&expected, g_ptr_array_unref);
  assert_memory (which->device, before);
}

/* A full disk, or too few parts, in the middle of a forward. */
static void
no_room_is_an_error_in_the_middle (gconstpointer data)
{
  const Case *which = data;
  const Memory before = get_memory (which->device);
  g_autoptr (EbbSavedTensorHooks) store = new_store (which->kind);
  g_autoptr (EbbModule) gpt = new_gpt (which->device, BLOCKS, store);
  g_autoptr (EbbModule) plain = new_gpt (which->device, PLAIN, NULL);
  g_autoptr (GPtrArray) expected = NULL;
  g_autoptr (GError) error = NULL;

  one_step (plain, which->device, NULL);
  expected = collect (plain);
  g_object_set (store, "grow", FALSE, NULL);
  g_object_set (store, "n-checkpoints", 2, NULL);
  g_assert_false (run_once (gpt, which->device, NULL, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "all 2 parts", ebb_device_get_name (which->device));
  g_clear_error (&error);
  assert_empty (store, which->device);
  g_object_set (store, "n-checkpoints", 3, NULL);
  one_step (gpt, which->device, NULL);
  assert_grads (gpt, expected);
  assert_empty (store, which->device);
  g_clear_object (&gpt);
  g_clear_object (&plain);
  g_clear_object (&store);
  g_clear_pointer (&expected, g_ptr_array_unref);
  assert_memory (which->device, before);
}

/* -- peaks --------------------------------------------------------------------------------------------------------- */

/* However fast the threads are. */
static void
peaks_are_the_same_in_every_run (gconstpointer data)
{
  const Case *which = data;
  guint64 peaks[4];

  for (guint i = 0; i < G_N_ELEMENTS (peaks); i++)
    {
      g_autoptr (EbbSavedTensorHooks) store = new_store (which->kind);
      g_autoptr (EbbModule) gpt = new_gpt (which->device, NESTED, store);
      g_autoptr (EbbMemoryStats) stats = NULL;

      one_step (gpt, which->device, NULL);
      ebb_memory_reset_peaks (which->device);
      one_step (gpt, which->device, NULL);
      stats = ebb_memory_get_stats (which->device);
      peaks[i] = ebb_memory_stats_get_peak_total (stats);
      g_assert_cmpuint (peaks[i], ==, peaks[0]);
    }
}

static EbbDevice *
open_device (const char *name,
             const char *bandwidth)
{
  g_autoptr (GError) error = NULL;
  EbbDevice *device;

  if (bandwidth != NULL)
    {
      g_setenv ("EBB_SIM_BANDWIDTH", bandwidth, TRUE);
      g_setenv ("EBB_SIM_LATENCY", "200", TRUE);
    }
  device = ebb_device_get (name, &error);
  g_assert_no_error (error);
  g_unsetenv ("EBB_SIM_BANDWIDTH");
  g_unsetenv ("EBB_SIM_LATENCY");
  return device;
}

static void
add (const char *device,
     const char *name,
     Case *which,
     GTestDataFunc func)
{
  g_autofree char *path =
      g_strdup_printf ("/store-compositions/%s/%s/%s", device, kind_names[which->kind], name);

  g_test_add_data_func (path, which, func);
}

int
main (int argc, char **argv)
{
  static Case cases[3][N_KINDS];
  const char *const names[] = { "cpu", "sim", "sim-slow" };
  EbbDevice *devices[3];
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-compositions-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  devices[0] = ebb_device_get_cpu ();
  devices[1] = open_device ("sim:20", NULL);
  devices[2] = open_device ("sim:21", "100M");
  for (guint i = 0; i < 3; i++)
    for (Kind kind = 0; kind < N_KINDS; kind++)
      {
        Case *which = &cases[i][kind];

        *which = (Case){ kind, devices[i] };
        if (i < 2)
          add (names[i], "gradients-are-bitwise-equal", which, gradients_are_bitwise_equal);
        if (i == 1)
          add (names[i], "each-failure-is-an-error", which, each_failure_is_an_error);
        if (i < 2)
          add (names[i], "no-room-is-an-error", which, no_room_is_an_error_in_the_middle);
        if (i == 2)
          add (names[i], "peaks-are-the-same", which, peaks_are_the_same_in_every_run);
      }
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
