/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/side-by-side.h"
#include "support/stores.h"

#include <glib/gstdio.h>

/* Two threads train a model each, on a device each, and put activations into stores of their own and into one that they
 * share. Each does to the bit what it does alone. */

#define N_STEPS 12
#define N_BLOCKS 4

typedef enum
{
  HOST,
  DISK,
  CONTIGUOUS,
  N_KINDS
} Kind;

static const char *const kind_names[N_KINDS] = { "host", "disk", "contiguous" };

typedef struct
{
  EbbSavedTensorHooks *own, *shared;
} Stores;

static char *scratch;

static EbbSavedTensorHooks *
make_store (Kind kind)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) next = NULL;
  EbbSavedTensorHooks *store = NULL;

  switch (kind)
    {
    case HOST: store = ebb_host_store_new (); break;
    case DISK: store = ebb_disk_store_new (scratch, &error); break;
    case CONTIGUOUS:
      next = ebb_host_store_new ();
      store = ebb_contiguous_store_new (N_BLOCKS, EBB_ACTIVATION_STORE (next), &error);
      g_assert_no_error (error);
      g_object_set (store, "grow", TRUE, NULL);
      break;
    case N_KINDS: g_assert_not_reached ();
    }
  g_assert_no_error (error);
  g_object_set (store, "least-size", (guint64) 1, NULL);
  return store;
}

/* Every second block's input goes to the shared store; one block recomputes nothing. */
static EbbModule *
make_model (gpointer data,
            GError **error)
{
  const Stores *self = data;
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (TEST_SIDE_WIDTH, 2, 0.1, TRUE, TRUE, error);
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

      ebb_checkpoint_options_set_store (options, i % 2 ? self->shared : self->own);
      ebb_sequential_append (EBB_SEQUENTIAL (model), block, error);
      if (i == 2)
        g_object_unref (ebb_offload_wrapper (block, self->shared, error));
      else
        g_object_unref (ebb_checkpoint_wrapper (block, options, error));
    }
  return model;
}

static EbbDevice *
open_device (guint index)
{
  g_autofree char *name = g_strdup_printf ("sim:%u", index + 1);
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get (name, &error);

  g_assert_no_error (error);
  return device;
}

static void
assert_empty (EbbSavedTensorHooks *store)
{
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (store)), >, 0);
}

static void
each_does_what_it_does_alone (gconstpointer data)
{
  g_autoptr (EbbSavedTensorHooks) shared = make_store ((Kind) GPOINTER_TO_UINT (data));
  Stores stores[2];
  TestSide sides[2];

  for (guint i = 0; i < 2; i++)
    {
      stores[i] = (Stores){ make_store (i == 0 ? HOST : DISK), shared };
      sides[i] = (TestSide){ 5 + i, open_device (i), N_STEPS, make_model, &stores[i] };
    }
  test_side_by_side (sides, 2);
  assert_empty (shared);
  if (EBB_IS_CONTIGUOUS_STORE (shared))
    ebb_contiguous_store_reset (EBB_CONTIGUOUS_STORE (shared));
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbMemoryStats) stats = NULL;

      assert_empty (stores[i].own);
      g_object_unref (stores[i].own);
      stats = ebb_memory_get_stats (sides[i].device);
      g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 0);
    }
}

int
main (int argc,
      char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  scratch = g_dir_make_tmp ("ebb-threads-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  for (guint kind = 0; kind < N_KINDS; kind++)
    {
      g_autofree char *path = g_strdup_printf ("/store-threads/each-does-what-it-does-alone/%s", kind_names[kind]);

      g_test_add_data_func (path, GUINT_TO_POINTER (kind), each_does_what_it_does_alone);
    }
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
