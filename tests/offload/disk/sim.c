/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/disk/file-private.h"
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

#include <glib/gstdio.h>

/* The disk store of an accelerator, whose copies run beside computing. What it does in the wrong order the device
 * refuses. */

#define PAGE 4096

static char *scratch;

typedef enum
{
  PLAIN,
  HOOKS,
  WRAPPED,
  NESTED,
  SELECTIVE,
  N_WAYS
} Way;

typedef struct
{
  EbbDevice *device;
  EbbModule *gpt;
  EbbSavedTensorHooks *store;
  Way way;
} Setup;

static void
setup_init (Setup *self,
            EbbDevice *device,
            Way way,
            guint64 staging)
{
  g_autoptr (EbbCheckpointOptions) options =
      way == SELECTIVE ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  GError *error = NULL;

  self->device = device;
  self->way = way;
  self->gpt = test_gpt_new ();
  self->store = test_disk_store_new (scratch);
  g_object_set (self->store, "staging-limit", (guint64) staging, NULL);
  g_assert_true (ebb_module_to_device (self->gpt, device, &error));
  ebb_checkpoint_options_set_store (options, self->store);
  if (way >= WRAPPED)
    ebb_checkpoint_wrap_each (self->gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  if (way == NESTED)
    ebb_checkpoint_wrap_each (self->gpt, EBB_TYPE_MLP, options, &error);
  g_assert_no_error (error);
}

static void
setup_clear (Setup *self)
{
  g_object_unref (self->gpt);
  g_object_unref (self->store);
}

static EbbTensor *
forward (Setup *self,
         GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (11, 61, 2, 24, -1);
  g_autoptr (EbbTensor) targets = test_tokens (12, 61, 2, 24, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (tokens, self->device, error);
  g_autoptr (EbbTensor) y = ebb_to_device (targets, self->device, error);
  EbbTensor *loss;

  ebb_manual_seed (13);
  if (self->way == HOOKS)
    ebb_push_saved_tensor_hooks (self->store);
  loss = ebb_gpt_loss (EBB_GPT (self->gpt), x, y, error);
  if (self->way == HOOKS)
    ebb_pop_saved_tensor_hooks ();
  return loss;
}

/* The loss and the gradients, on the CPU; NULL with @error set. */
static GPtrArray *
run (Setup *self,
     GError **error)
{
  g_autoptr (GPtrArray) results = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_autoptr (EbbTensor) loss = NULL;
  g_autofree EbbTensor **parameters = NULL;
  GError *local = NULL;
  guint n;

  ebb_module_zero_grad (self->gpt);
  loss = forward (self, &local);
  if (ebb_tensor_backward (loss, &local))
    g_ptr_array_add (results, ebb_to_device (loss, NULL, &local));
  parameters = ebb_module_get_parameters (self->gpt, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      if (local == NULL)
        g_ptr_array_add (results, ebb_to_device (grad, NULL, &local));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_module_zero_grad (self->gpt);
  if (local == NULL)
    return g_steal_pointer (&results);
  g_propagate_error (error, local);
  return NULL;
}

static GPtrArray *
run_well (Setup *self)
{
  GError *error = NULL;
  GPtrArray *results = run (self, &error);

  g_assert_no_error (error);
  return results;
}

static void
assert_same (GPtrArray *a,
             GPtrArray *b)
{
  g_assert_cmpuint (a->len, ==, b->len);
  for (guint i = 0; i < a->len; i++)
    g_assert_true (ebb_tensor_equal (a->pdata[i], b->pdata[i]));
}

static GPtrArray *
run_on_cpu (void)
{
  Setup plain;
  GPtrArray *results;

  setup_init (&plain, ebb_device_get_cpu (), PLAIN, 0);
  results = run_well (&plain);
  setup_clear (&plain);
  return results;
}

/* With the host's memory: when no kernel works in it. */
static guint64
in_use_on_host (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_device_synchronize (device, NULL);
  stats = ebb_memory_get_stats (NULL);
  return ebb_memory_stats_get_total (stats);
}

static guint64
in_use (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static guint64
peak (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_peak_total (stats);
}

static EbbDevice *
open_device (const char *name)
{
  GError *error = NULL;
  EbbDevice *device = ebb_device_get (name, &error);

  g_assert_no_error (error);
  return device;
}

static const guint64 limits[] = { 0, 5 * PAGE, 32ul << 20 };

/* -- steps --------------------------------------------------------------------------------------------------------- */

static void
gradients_and_peaks_are_the_same (gconstpointer data)
{
  EbbDevice *device = open_device (data);
  g_autoptr (GPtrArray) expected = run_on_cpu ();

  for (Way way = HOOKS; way < N_WAYS; way++)
    for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
      {
        guint64 before = in_use (device), highest = 0;
        Setup setup;

        setup_init (&setup, device, way, limits[i]);
        for (guint n = 0; n < 4; n++)
          {
            g_autoptr (GPtrArray) results = NULL;

            ebb_memory_reset_peaks (device);
            results = run_well (&setup);
            assert_same (results, expected);
            if (n == 1) /* the first makes what is made once */
              highest = peak (device);
            else if (n > 1)
              g_assert_cmpuint (peak (device), ==, highest);
            g_assert_cmpuint (test_held (setup.store), ==, 0);
          }
        g_assert_true (ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (setup.store), NULL));
        g_assert_cmpfloat (ebb_activation_store_get_seconds_moving (EBB_ACTIVATION_STORE (setup.store)), >, 0);
        setup_clear (&setup);
        g_assert_cmpuint (in_use (device), ==, before);
      }
}

/* A graph that is dropped while its bytes are on their way. */
static void
a_dropped_graph_leaves_nothing (gconstpointer data)
{
  EbbDevice *device = open_device (data);
  g_autoptr (GPtrArray) expected = run_on_cpu ();

  for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
    for (Way way = HOOKS; way <= WRAPPED; way++)
      {
        g_autoptr (GPtrArray) results = NULL;
        GError *error = NULL;
        guint64 before;
        Setup setup;

        setup_init (&setup, device, way, limits[i]);
        g_ptr_array_unref (run_well (&setup));
        before = in_use (device);
        for (guint n = 0; n < 3; n++)
          {
            EbbTensor *loss = forward (&setup, &error);

            g_assert_no_error (error);
            ebb_tensor_unref (loss);
            g_assert_cmpuint (test_held (setup.store), ==, 0);
            g_assert_cmpuint (in_use (device), ==, before);
          }
        results = run_well (&setup);
        assert_same (results, expected);
        setup_clear (&setup);
      }
}

/* Backward keeps what it was given, and comes again. */
static void
several_backwards_are_one_and_the_same (void)
{
  EbbDevice *device = open_device ("sim:50");

  for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
    {
      GError *error = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbTensor) first = NULL;
      g_autofree EbbTensor **parameters = NULL;
      Setup setup;
      guint n;

      setup_init (&setup, device, WRAPPED, limits[i]);
      loss = forward (&setup, &error);
      parameters = ebb_module_get_parameters (setup.gpt, TRUE, &n);
      for (guint k = 0; k < 3; k++)
        {
          g_autoptr (EbbTensor) grad = NULL;
          g_autoptr (EbbTensor) here = NULL;

          ebb_module_zero_grad (setup.gpt);
          g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, k < 2, &error));
          g_assert_no_error (error);
          grad = ebb_tensor_get_grad (parameters[0]);
          here = ebb_to_device (grad, NULL, &error);
          g_assert_no_error (error);
          if (first == NULL)
            first = g_steal_pointer (&here);
          else
            g_assert_true (ebb_tensor_equal (here, first));
        }
      for (guint k = 0; k < n; k++)
        ebb_tensor_unref (parameters[k]);
      setup_clear (&setup);
    }
}

/* -- seconds ------------------------------------------------------------------------------------------------------- */

static EbbDevice *awaited;
static gint may_write; /* atomic */

/* A disk that is done when the device is. */
static int
write_when_computed (EbbDiskOperation operation)
{
  if (operation != EBB_DISK_WRITE) /* the program's own business */
    return 0;
  while (!g_atomic_int_get (&may_write))
    g_thread_yield ();
  ebb_device_synchronize (awaited, NULL);
  return 0;
}

static void
compute_for_a_while (EbbTensor *x)
{
  for (guint i = 0; i < 200; i++)
    {
      g_autoptr (EbbTensor) y = ebb_matmul (x, x, NULL);

      g_assert_nonnull (y);
    }
}

/* A pack that waits for room in staging memory delays no computing, so it counts as no stall. */
static void
a_wait_beside_computing_is_no_stall (void)
{
  EbbDevice *device = open_device ("sim:50");
  EbbSavedTensorHooks *store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) host = test_randn (1, 256, 256, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (host, device, NULL);
  g_autoptr (EbbTensor) y = ebb_to_device (host, device, NULL);
  EbbHandle *a, *b;
  double before, waited;
  gint64 start;

  g_object_set (store, "staging-limit", (guint64) (256 * 256 * 4 + PAGE), NULL);
  awaited = device;
  g_atomic_int_set (&may_write, FALSE);
  g_atomic_pointer_set (&ebb_disk_fault, write_when_computed);
  a = test_pack (store, x);
  before = ebb_activation_store_get_seconds_waited (EBB_ACTIVATION_STORE (store));
  compute_for_a_while (y);
  g_atomic_int_set (&may_write, TRUE);
  start = g_get_monotonic_time ();
  b = test_pack (store, y);
  waited = ebb_activation_store_get_seconds_waited (EBB_ACTIVATION_STORE (store)) - before;
  g_assert_cmpfloat (waited, <, 0.75 * (double) (g_get_monotonic_time () - start) / G_USEC_PER_SEC);
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  ebb_handle_unref (a);
  ebb_handle_unref (b);
  g_object_unref (store);
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

static void
each_piece_of_work_may_fail (gconstpointer data)
{
  const EbbFailure what = (EbbFailure) GPOINTER_TO_UINT (data);
  EbbDevice *device = open_device ("sim:50");
  g_autoptr (GPtrArray) expected = run_on_cpu ();

  for (Way way = HOOKS; way <= WRAPPED; way++)
    for (guint i = 0; i < G_N_ELEMENTS (limits); i++)
      {
        const guint64 stride = what == EBB_FAILURE_ALLOC || what == EBB_FAILURE_LAUNCH ? 7 : way == HOOKS ? 3
                                                                                                          : 1;
        const guint64 step = stride * test_stride ();
        guint64 left = 0;
        guint64 device_before, host_before;
        Setup setup;

        setup_init (&setup, device, way, limits[i]);
        for (guint n = 0; n < 2; n++)
          g_ptr_array_unref (run_well (&setup));
        device_before = in_use (device);
        host_before = in_use_on_host (device);
        for (guint64 n = 1 + i % step; left == 0; n += step)
          {
            g_autoptr (GError) error = NULL;
            g_autoptr (GPtrArray) results = NULL;

            device->backend->fail (device->index, what, n);
            results = run (&setup, &error);
            left = device->backend->fail (device->index, what, 0);
            if (results != NULL)
              {
                assert_same (results, expected);
                g_clear_pointer (&results, g_ptr_array_unref);
              }
            else
              g_assert_true (g_error_matches (error, EBB_ERROR, EBB_ERROR_NO_MEMORY)
                             || g_error_matches (error, EBB_ERROR, EBB_ERROR_DEVICE));
            g_assert_cmpuint (test_held (setup.store), ==, 0);
            g_assert_cmpuint (in_use (device), ==, device_before);
            g_assert_cmpuint (in_use_on_host (device), ==, host_before);
            results = run_well (&setup);
            assert_same (results, expected);
          }
        setup_clear (&setup);
      }
}

int
main (int argc, char **argv)
{
  static const char *const failures[] = { "alloc", "alloc-host", "launch", "to-host", "from-host" };
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-disk-sim-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  open_device ("sim:50");
  g_setenv ("EBB_SIM_BANDWIDTH", "50M,80M", TRUE);
  g_setenv ("EBB_SIM_LATENCY", "30", TRUE);
  open_device ("sim:51");
  g_unsetenv ("EBB_SIM_BANDWIDTH");
  g_unsetenv ("EBB_SIM_LATENCY");
  g_test_add_data_func ("/disk-sim/fast/gradients-and-peaks-are-the-same", "sim:50", gradients_and_peaks_are_the_same);
  g_test_add_data_func ("/disk-sim/slow/gradients-and-peaks-are-the-same", "sim:51", gradients_and_peaks_are_the_same);
  g_test_add_data_func ("/disk-sim/fast/a-dropped-graph-leaves-nothing", "sim:50", a_dropped_graph_leaves_nothing);
  g_test_add_data_func ("/disk-sim/slow/a-dropped-graph-leaves-nothing", "sim:51", a_dropped_graph_leaves_nothing);
  g_test_add_func ("/disk-sim/several-backwards-are-the-same", several_backwards_are_one_and_the_same);
  g_test_add_func ("/disk-sim/a-wait-beside-computing-is-no-stall", a_wait_beside_computing_is_no_stall);
  for (guint i = 0; i < G_N_ELEMENTS (failures); i++)
    {
      g_autofree char *path = g_strdup_printf ("/disk-sim/each-piece-of-work-may-fail/%s", failures[i]);

      g_test_add_data_func (path, GUINT_TO_POINTER (i), each_piece_of_work_may_fail);
    }
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
