/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#define _GNU_SOURCE /* renameat2 (), RTLD_NEXT */
#include "support/model-folders.h"
#include "support/tensors.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A save in which a call on a file fails, each in turn: the folder has all of the old files or all of the new ones, and
 * nothing is left beside it. The functions here stand before the C library's, in the library's calls too. */

static int n_calls, fail_at; /* fail_at 0: nothing fails */
static gboolean can_exchange = TRUE;

#define REAL(name) ((typeof (&(name))) dlsym (RTLD_NEXT, #name))

static gboolean
fails (void)
{
  n_calls++;
  if (fail_at == 0 || n_calls != fail_at)
    return FALSE;
  errno = ENOSPC;
  return TRUE;
}

#pragma GCC visibility push(default)

ssize_t
write (int fd, const void *data, size_t size)
{
  if (!fails ())
    return REAL (write) (fd, data, size);
  (void) !REAL (write) (fd, data, size / 2);
  errno = ENOSPC;
  return -1;
}

/* The disk is not waited for. */
int
fsync (int fd)
{
  return fails () ? -1 : 0;
}

int
rename (const char *from, const char *to)
{
  return fails () ? -1 : REAL (rename) (from, to);
}

int
linkat (int from_fd, const char *from, int to_fd, const char *to, int flags)
{
  return fails () ? -1 : REAL (linkat) (from_fd, from, to_fd, to, flags);
}

int
renameat2 (int from_fd, const char *from, int to_fd, const char *to, unsigned int flags)
{
  if (can_exchange)
    return fails () ? -1 : REAL (renameat2) (from_fd, from, to_fd, to, flags);
  errno = EINVAL;
  return -1;
}

#pragma GCC visibility pop

static int
compare_texts (gconstpointer a, gconstpointer b)
{
  return strcmp (*(const char *const *) a, *(const char *const *) b);
}

/* The names of the folder's files and what is in them. */
static char *
take_snapshot (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  g_autoptr (GPtrArray) files = g_ptr_array_new_with_free_func (g_free);
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);
      g_autofree char *data = NULL;
      g_autofree char *hash = NULL;
      gsize size;

      g_assert_true (g_file_get_contents (path, &data, &size, NULL));
      hash = g_compute_checksum_for_data (G_CHECKSUM_SHA256, (guchar *) data, size);
      g_ptr_array_add (files, g_strdup_printf ("%s %s", name, hash));
    }
  g_ptr_array_sort (files, compare_texts);
  g_ptr_array_add (files, NULL);
  return g_strjoinv ("\n", (char **) files->pdata);
}

typedef enum
{
  A_MODEL,   /* the folder is exchanged */
  NO_MODEL,  /* it has weights without a configuration, and other files: these are replaced one by one */
  CURRENT,   /* it is the current folder: the same */
  NO_FOLDER, /* there is none */
} Target;

static char *
make_target (Target target)
{
  g_autofree char *folder = test_model_copy ("gpt2");
  g_autofree char *config = g_build_filename (folder, "config.json", NULL);
  g_autofree char *weights = g_build_filename (folder, "model.safetensors", NULL);
  g_autofree char *shard = g_build_filename (folder, "model-00001-of-00009.safetensors", NULL);

  test_folder_write (folder, "log.txt", "mine");
  if (target == NO_MODEL)
    {
      g_assert_cmpint (g_remove (config), ==, 0);
      g_assert_cmpint (g_rename (weights, shard), ==, 0);
    }
  else if (target == NO_FOLDER)
    test_remove_tree (folder);
  return g_canonicalize_filename (folder, NULL);
}

static void
check_target (Target target, EbbModule *model)
{
  g_autofree char *here = g_get_current_dir ();
  g_autofree char *after = NULL;
  gboolean is_done = FALSE;

  for (int n = 0; !is_done; n = n == 0 ? 1 : n + 1)
    {
      g_autofree char *folder = make_target (target);
      g_autofree char *before = take_snapshot (folder);
      g_autofree char *left = NULL;
      g_autoptr (GError) error = NULL;
      gboolean saved;

      if (target == CURRENT)
        g_assert_cmpint (g_chdir (folder), ==, 0);
      n_calls = 0;
      fail_at = n;
      saved = ebb_model_save_full (model, target == CURRENT ? "." : folder, EBB_MODEL_KEEP_DTYPE, 6000, &error);
      fail_at = 0;
      g_assert_cmpint (g_chdir (here), ==, 0);
      left = take_snapshot (folder);
      g_assert_true (saved == (error == NULL));
      if (n == 0)
        {
          after = g_strdup (left);
          g_test_message ("%d calls", n_calls);
          g_assert_cmpint (n_calls, >, 10);
          g_assert_cmpstr (after, !=, before);
        }
      else if (saved || strcmp (left, before) != 0)
        g_assert_cmpstr (left, ==, after);
      if (error != NULL)
        {
          g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
          g_assert_null (strchr (error->message, '\n'));
        }
      g_assert_cmpuint (test_folder_count (test_scratch_folder ()), ==, *left == '\0' ? 0 : 1);
      is_done = n > n_calls;
    }
}

static void
a_save_that_fails_leaves_the_old_or_the_new_files (gconstpointer data)
{
  g_autoptr (EbbModule) model = test_model_open_fixture ("gpt2");
  g_autoptr (EbbArgs) state = ebb_module_get_state_dict (model);
  g_autoptr (EbbTensor) first = ebb_args_get_tensor (state, 0);

  g_assert_true (ebb_tensor_fill (first, 0.5, NULL));
  check_target (GPOINTER_TO_INT (data), model);
}

static void
the_same_where_two_names_can_not_be_exchanged (void)
{
  can_exchange = FALSE;
  a_save_that_fails_leaves_the_old_or_the_new_files (GINT_TO_POINTER (A_MODEL));
  can_exchange = TRUE;
}

int
main (int argc, char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  /* A file system in memory, where there is one: hundreds of saves need no disk. */
  if (g_access ("/dev/shm", W_OK) == 0)
    g_setenv ("TMPDIR", "/dev/shm", TRUE);
  test_scratch_begin ();
  g_test_add_data_func ("/model-folder/save-failures/model", GINT_TO_POINTER (A_MODEL),
                        a_save_that_fails_leaves_the_old_or_the_new_files);
  g_test_add_func ("/model-folder/save-failures/model-without-exchange", the_same_where_two_names_can_not_be_exchanged);
  g_test_add_data_func ("/model-folder/save-failures/no-model", GINT_TO_POINTER (NO_MODEL),
                        a_save_that_fails_leaves_the_old_or_the_new_files);
  g_test_add_data_func ("/model-folder/save-failures/current-folder", GINT_TO_POINTER (CURRENT),
                        a_save_that_fails_leaves_the_old_or_the_new_files);
  g_test_add_data_func ("/model-folder/save-failures/no-folder", GINT_TO_POINTER (NO_FOLDER),
                        a_save_that_fails_leaves_the_old_or_the_new_files);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
