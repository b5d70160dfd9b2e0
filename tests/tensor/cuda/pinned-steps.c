/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"

#include <dlfcn.h>

/* Pinning host memory takes milliseconds, and unpinning it waits for the GPU. So a training step pins and unpins
 * nothing, whichever store keeps its activations: after the first steps their memory is there. The emulated GPU does no
 * work here, so that tensors can have some MiB. */

#define N_FIRST_STEPS 3
#define N_STEPS 2

/* Tensors of 20 MiB: two of them are more than a disk store's staging memory. */
#define N_ROWS 10240
#define WIDTH 512

typedef enum
{
  STORE_NONE,
  STORE_HOST,
  STORE_DISK,
  STORE_CONTIGUOUS,
  STORE_CONTIGUOUS_DISK,
  STORE_PARTITIONED,
  STORE_PARTITIONED_DISK,
} Store;

static const char *const store_names[] = { "none", "host", "disk", "contiguous", "contiguous-disk", "partitioned",
                                           "partitioned-disk" };

/* The calls that pin host memory or unpin it, so far. */
static guint64
count_calls (void)
{
  static guint64 (*count) (void);

  if (count == NULL)
    {
      void *runtime = dlopen ("libcudaemu.so", RTLD_LAZY | RTLD_NOLOAD);

      g_assert_nonnull (runtime);
      *(void **) (void *) &count = dlsym (runtime, "cudaemu_count_pinning_calls");
      g_assert_nonnull (count);
    }
  return count ();
}

static EbbSavedTensorHooks *
new_store (Store kind,
           EbbProcessGroup *group,
           GError **error)
{
  g_autoptr (EbbSavedTensorHooks) next = NULL;
  EbbSavedTensorHooks *store = NULL;

  if (kind == STORE_DISK || kind == STORE_CONTIGUOUS_DISK || kind == STORE_PARTITIONED_DISK)
    next = ebb_disk_store_new (g_get_tmp_dir (), error);
  else if (kind != STORE_NONE)
    next = ebb_host_store_new ();
  if (kind == STORE_CONTIGUOUS || kind == STORE_CONTIGUOUS_DISK)
    store = ebb_contiguous_store_new (4, EBB_ACTIVATION_STORE (next), error);
  else if (kind == STORE_PARTITIONED || kind == STORE_PARTITIONED_DISK)
    store = ebb_partitioned_store_new (group, EBB_ACTIVATION_STORE (next), error);
  else
    return g_steal_pointer (&next);
  if (kind >= STORE_PARTITIONED) /* without work ranks have other values */
    g_object_set (store, "check", EBB_PARTITION_CHECK_NONE, NULL);
  return store;
}

static EbbModule *
new_model (GError **error)
{
  g_autoptr (EbbModule) first = ebb_linear_new (WIDTH, WIDTH, TRUE, error);
  g_autoptr (EbbModule) between = ebb_gelu_new (EBB_GELU_TANH);
  g_autoptr (EbbModule) last = ebb_linear_new (WIDTH, WIDTH, TRUE, error);
  EbbModule *model = ebb_sequential_new ();

  ebb_sequential_append (EBB_SEQUENTIAL (model), first, error);
  ebb_sequential_append (EBB_SEQUENTIAL (model), between, error);
  ebb_sequential_append (EBB_SEQUENTIAL (model), last, error);
  return model;
}

static gboolean
take_step (EbbModule *model,
           EbbOptimizer *optimizer,
           EbbSavedTensorHooks *store,
           GError **error)
{
  g_autoptr (EbbTensor) x = ebb_ones ((const gint64[]){ N_ROWS, WIDTH }, 2, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  if (store != NULL)
    ebb_push_saved_tensor_hooks (store);
  y = ebb_module_call1 (model, x, error);
  if (store != NULL)
    ebb_pop_saved_tensor_hooks ();
  sum = ebb_sum (y, NULL, 0, FALSE, error);
  if (sum == NULL || !ebb_tensor_backward (sum, error) || !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  return TRUE;
}

static gboolean
train (EbbProcessGroup *group,
       gpointer data,
       GError **error)
{
  const Store kind = GPOINTER_TO_INT (data);
  g_autoptr (EbbSavedTensorHooks) store = new_store (kind, group, error);
  g_autoptr (EbbModule) model = new_model (error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 1e-3, error);
  guint64 before = 0;

  for (int i = 0; i < N_FIRST_STEPS + N_STEPS; i++)
    {
      /* No rank begins before the others have taken the first steps, nor ends before they have taken the last. */
      if (i == N_FIRST_STEPS && (group == NULL || ebb_process_group_barrier (group, error)))
        before = count_calls ();
      if (!take_step (model, optimizer, store, error))
        return FALSE;
    }
  if (group != NULL && !ebb_process_group_barrier (group, error))
    return FALSE;
  g_assert_cmpuint (count_calls () - before, ==, 0);
  if (store != NULL)
    g_assert_cmpuint (ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store)), >, 16 << 20);
  if (kind == STORE_HOST) /* memory that is given back to the system is not pinned either */
    {
      g_assert_true (ebb_host_store_trim (EBB_HOST_STORE (store), error));
      g_assert_cmpuint (count_calls () - before, >, 0);
    }
  return group == NULL || ebb_process_group_barrier (group, error);
}

static void
steps_pin_nothing (gconstpointer data)
{
  const Store kind = GPOINTER_TO_INT (data);
  g_autoptr (GError) error = NULL;

  if (kind >= STORE_PARTITIONED)
    test_run_ranks (2, train, (gpointer) data);
  else
    train (NULL, (gpointer) data, &error);
  g_assert_no_error (error);
}

int
main (int argc,
      char **argv)
{
  g_setenv ("EBB_CUDAEMU_IDLE", "1", TRUE);
  g_setenv ("EBB_TEST_DEVICE", "cudaemu", TRUE);
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (store_names); i++)
    {
      g_autofree char *path = g_strdup_printf ("/cuda/pinned-steps/%s", store_names[i]);

      g_test_add_data_func (path, GINT_TO_POINTER (i), steps_pin_nothing);
    }
  return g_test_run ();
}
