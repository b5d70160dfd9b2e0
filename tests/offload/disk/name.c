/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "offload/disk/file-private.h"
#include "offload/disk/name-private.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* However a process ends, its disk store leaves nothing in the folder, or nothing that the next one doesn't remove. */

static char *scratch;

static guint
count_names (void)
{
  g_autoptr (GDir) dir = g_dir_open (scratch, 0, NULL);
  guint n = 0;

  while (g_dir_read_name (dir) != NULL)
    n++;
  return n;
}

/* As on a file system that can't make a file without a name. */
static int
make_none (EbbDiskOperation operation)
{
  return operation == EBB_DISK_MAKE ? EOPNOTSUPP : 0;
}

/* -- names --------------------------------------------------------------------------------------------------------- */

static char *
touch (const char *name)
{
  char *path = g_build_filename (scratch, name, NULL);

  g_assert_true (g_file_set_contents (path, "x", 1, NULL));
  return path;
}

static gboolean
stays (const char *name)
{
  g_autofree char *path = touch (name);
  gboolean there;

  ebb_disk_name_remove_leftovers (scratch);
  there = g_file_test (path, G_FILE_TEST_EXISTS);
  g_unlink (path);
  return there;
}

/* The parts of a name of this process. */
static void
parse_own (char world[17],
           guint64 *start)
{
  g_autofree char *path = ebb_disk_name_new (scratch);
  g_autofree char *name = g_path_get_basename (path);
  long pid;

  g_assert_cmpint (sscanf (name, "ebb-activations-%16[0-9a-f]-%ld-%" G_GUINT64_FORMAT "-XXXXXX", world, &pid, start),
                   ==, 3);
  g_assert_cmpint (pid, ==, getpid ());
}

static void
only_what_nobody_can_need_is_removed (void)
{
  char world[17];
  guint64 start;
  g_autofree char *own = NULL, *older = NULL, *elsewhere = NULL, *dead = NULL, *longer = NULL;
  pid_t child = fork ();
  int status;

  if (child == 0)
    _exit (0);
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  parse_own (world, &start);
  own = g_strdup_printf ("ebb-activations-%s-%d-%" G_GUINT64_FORMAT "-abcdef", world, getpid (), start);
  older = g_strdup_printf ("ebb-activations-%s-%d-%" G_GUINT64_FORMAT "-abcdef", world, getpid (), start - 1);
  elsewhere = g_strdup_printf ("ebb-activations-%016x-%d-%" G_GUINT64_FORMAT "-abcdef", 1, child, start);
  dead = g_strdup_printf ("ebb-activations-%s-%d-%" G_GUINT64_FORMAT "-abcdef", world, child, start);
  longer = g_strconcat (dead, ".txt", NULL);
  g_assert_true (stays (own));
  g_assert_false (stays (older)); /* its number was given again */
  g_assert_true (stays (elsewhere));
  g_assert_false (stays (dead));
  g_assert_true (stays (longer));
  g_assert_true (stays ("ebb-activations-notes"));
  g_assert_true (stays ("ebb-activations-0-1-2-abcdef"));
  g_assert_true (stays ("data"));
}

/* A file that has a name works as well, and somebody may take the name away. */
static void
a_named_file_works (void)
{
  g_autoptr (EbbSavedTensorHooks) store = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 5000, -1);
  g_autoptr (EbbHandle) handle = NULL;
  g_autoptr (EbbTensor) back = NULL;

  g_atomic_pointer_set (&ebb_disk_fault, make_none);
  store = test_disk_store_new (scratch);
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
  g_assert_cmpuint (count_names (), ==, 0);
  handle = test_pack (store, x);
  back = test_unpack (store, handle);
  g_assert_true (ebb_tensor_equal (x, back));
}

/* -- sudden ends --------------------------------------------------------------------------------------------------- */

/* Makes stores and uses them, and reports each step, until it is killed. */
static void
live (int tell)
{
  for (;;)
    {
      EbbSavedTensorHooks *store = ebb_disk_store_new (scratch, NULL);

      g_object_set (store, "least-size", (guint64) 1, NULL);
      for (guint i = 0; i < 3; i++)
        {
          g_autoptr (EbbTensor) x = test_randn (1, 5000, -1);
          EbbHandle *handle = ebb_saved_tensor_hooks_pack (store, x, NULL);

          if (write (tell, "", 1) != 1)
            _exit (1);
          ebb_tensor_unref (ebb_saved_tensor_hooks_unpack (store, handle, NULL));
          ebb_handle_unref (handle);
        }
      g_object_unref (store);
    }
}

static void
nothing_is_left_after_a_kill (gconstpointer data)
{
  const gboolean named = GPOINTER_TO_INT (data);

  for (guint round = 0; round < 60; round++)
    {
      int ends[2], status;
      pid_t child;
      char byte;

      g_assert_cmpint (pipe (ends), ==, 0);
      g_atomic_pointer_set (&ebb_disk_fault, named ? make_none : NULL);
      child = fork ();
      if (child == 0)
        live (ends[1]);
      close (ends[1]);
      for (gint32 n = g_test_rand_int_range (0, 20); n > 0; n--)
        g_assert_cmpint (read (ends[0], &byte, 1), ==, 1);
      kill (child, SIGKILL);
      g_assert_cmpint (waitpid (child, &status, 0), ==, child);
      g_assert_true (WIFSIGNALED (status));
      close (ends[0]);
      if (named)
        g_object_unref (test_disk_store_new (scratch)); /* the next start */
      g_assert_cmpuint (count_names (), ==, 0);
    }
  g_atomic_pointer_set (&ebb_disk_fault, NULL);
}

int
main (int argc, char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  ebb_set_num_threads (1);
  scratch = g_dir_make_tmp ("ebb-disk-name-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  g_test_add_func ("/disk-name/only-what-nobody-can-need-is-removed", only_what_nobody_can_need_is_removed);
  g_test_add_func ("/disk-name/a-named-file-works", a_named_file_works);
  g_test_add_data_func ("/disk-name/nothing-is-left-after-a-kill/unnamed", GINT_TO_POINTER (FALSE),
                        nothing_is_left_after_a_kill);
  g_test_add_data_func ("/disk-name/nothing-is-left-after-a-kill/named", GINT_TO_POINTER (TRUE),
                        nothing_is_left_after_a_kill);
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
