/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/side-by-side.h"
#include "support/stores.h"

#include <glib/gstdio.h>

/* Two threads train two models at once, with the same options and the same store, and each does to the bit what it does
 * alone. */

typedef struct
{
  EbbCheckpointOptions *selective, *full;
  gboolean is_wrapped; /* as a whole, too */
} Wrapping;

static EbbModule *
make_model (gpointer data,
            GError **error)
{
  const Wrapping *self = data;
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (TEST_SIDE_WIDTH, 2, 0.1, TRUE, TRUE, error);

      ebb_sequential_append (EBB_SEQUENTIAL (model), block, error);
      g_object_unref (ebb_checkpoint_wrapper (block, i == 1 ? self->full : self->selective, error));
    }
  ebb_checkpoint_wrap_each (model, EBB_TYPE_MLP, self->full, error);
  if (self->is_wrapped)
    g_object_unref (ebb_checkpoint_wrapper (model, self->full, error));
  return model;
}

static void
two_threads_do_what_each_does_alone (gconstpointer data)
{
  g_autoptr (EbbCheckpointOptions) selective = ebb_checkpoint_options_new_selective ();
  g_autoptr (EbbCheckpointOptions) full = ebb_checkpoint_options_new ();
  g_autofree char *folder = g_dir_make_tmp ("ebb-XXXXXX", NULL);
  Wrapping wrappings[] = { { selective, full, TRUE }, { selective, full, FALSE } };
  const TestSide sides[] = { { 5, test_device (), 25, make_model, &wrappings[0] },
                             { 6, test_device (), 25, make_model, &wrappings[1] } };

  ebb_checkpoint_options_set_determinism_check (full, EBB_DETERMINISM_CHECK_VALUES);
  if (data != NULL)
    {
      g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (folder);

      ebb_checkpoint_options_set_store (full, store);
    }
  test_side_by_side (sides, G_N_ELEMENTS (sides));
  g_clear_object (&full);
  g_rmdir (folder);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_data_func ("/checkpoint/two-threads-do-what-each-does-alone/in-place", NULL,
                        two_threads_do_what_each_does_alone);
  g_test_add_data_func ("/checkpoint/two-threads-do-what-each-does-alone/on-disk", GINT_TO_POINTER (1),
                        two_threads_do_what_each_does_alone);
  return g_test_run ();
}
