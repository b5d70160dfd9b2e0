/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <ebb/ebb.h>

#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The file of a disk store is nobody else's business, and what fails says so and harms nothing. */

static char *scratch;

/* -- the file ------------------------------------------------------------------------------------------------------ */

/* The descriptor of the only file that is open in @folder. */
static int
find_file (const char *folder)
{
  g_autofree char *real = realpath (folder, NULL);

  for (int fd = 3; fd < 256; fd++)
    {
      g_autofree char *link = g_strdup_printf ("/proc/self/fd/%d", fd);
      char target[4096] = "";

      if (readlink (link, target, sizeof target - 1) > 0 && g_str_has_prefix (target, real)
          && target[strlen (real)] == '/')
        return fd;
    }
  return -1;
}

static guint
count_names (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  guint n = 0;

  while (g_dir_read_name (dir) != NULL)
    n++;
  return n;
}

static gint64
file_size (int fd)
{
  struct stat info;

  g_assert_cmpint (fstat (fd, &info), ==, 0);
  return info.st_size;
}

static void
the_file_has_no_name_and_its_space_is_used_again (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (10, 5000, -1);
  int fd = find_file (scratch);
  gint64 size = 0;

  g_assert_cmpint (fd, >=, 0);
  g_assert_true (fcntl (fd, F_GETFD) & FD_CLOEXEC);
  for (guint i = 0; i < 20; i++)
    {
      EbbHandle *handles[4];

      for (guint j = 0; j < 4; j++)
        {
          g_autoptr (EbbTensor) y = test_randn (j + 20, 5000 >> (j % 2), -1);

          handles[j] = test_pack (store, y);
        }
      for (guint j = 0; j < 4; j++) /* in another order each time */
        ebb_handle_unref (handles[(j * 3 + i) % 4]);
      g_assert_cmpuint (count_names (scratch), ==, 0);
      if (i == 0)
        size = file_size (fd);
      g_assert_cmpint (file_size (fd), ==, size);
    }
  g_clear_object (&store);
  g_assert_cmpint (find_file (scratch), ==, -1);
}

static void
large_tensors_go_in_pieces (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (30, 2 * 1024 * 1024 + 77, -1); /* two pieces of 4 MiB and a bit */
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  g_autoptr (EbbTensor) back = test_unpack (store, handle);

  g_assert_true (ebb_tensor_equal (x, back));
}

static void
damage_is_found (gconstpointer data)
{
  const gboolean truncate = GPOINTER_TO_INT (data);
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (31, 5000, -1);
  g_autoptr (EbbTensor) y = test_randn (32, 5000, -1);
  g_autoptr (EbbHandle) a = test_pack (store, x);
  g_autoptr (EbbHandle) b = test_pack (store, y);
  g_autoptr (EbbTensor) back = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_strdup_printf ("/proc/self/fd/%d", find_file (scratch));
  int fd = open (path, O_RDWR);

  g_object_set (store, "prefetch", 0, NULL); /* nothing is read before it is damaged */
  back = test_unpack (store, a);
  g_assert_cmpint (fd, >=, 0);
  if (truncate)
    g_assert_cmpint (ftruncate (fd, 24000), ==, 0);
  else
    {
      char byte;

      g_assert_cmpint (pread (fd, &byte, 1, 30000), ==, 1);
      byte ^= 16;
      g_assert_cmpint (pwrite (fd, &byte, 1, 30000), ==, 1);
    }
  close (fd);
  g_assert_null (ebb_saved_tensor_hooks_unpack (store, b, &error));
  test_assert_error (error, EBB_ERROR_IO, scratch, "20000", truncate ? "shorter" : "checksum");
  g_clear_pointer (&back, ebb_tensor_unref);
  back = test_unpack (store, a);
  g_assert_true (ebb_tensor_equal (x, back));
}

static void
a_child_process_writes_to_its_own_file (void)
{
#if defined(__SANITIZE_THREAD__)
  g_test_skip ("a child can't start a thread under this sanitizer");
#else
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbTensor) x = test_randn (33, 5000, -1);
  g_autoptr (EbbTensor) y = test_randn (34, 5000, -1);
  g_autoptr (EbbTensor) z = test_randn (35, 5000, -1);
  g_autoptr (EbbHandle) handle = test_pack (store, x);
  g_autoptr (EbbTensor) back = NULL;
  int status;
  pid_t child = fork ();

  if (child == 0)
    {
      EbbHandle *own = ebb_saved_tensor_hooks_pack (store, y, NULL);
      EbbTensor *mine = own ? ebb_saved_tensor_hooks_unpack (store, own, NULL) : NULL;
      EbbTensor *parents = ebb_saved_tensor_hooks_unpack (store, handle, NULL);
      gboolean ok = mine && parents
                    && memcmp (ebb_tensor_get_data (mine, NULL), ebb_tensor_get_data (y, NULL), 20000) == 0
                    && memcmp (ebb_tensor_get_data (parents, NULL), ebb_tensor_get_data (x, NULL), 20000) == 0;

      ebb_handle_unref (handle);
      if (ok)
        ebb_handle_unref (ebb_saved_tensor_hooks_pack (store, z, NULL)); /* over what was given back */
      _exit (ok ? 0 : 1);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_true (WIFEXITED (status) && WEXITSTATUS (status) == 0);
  back = test_unpack (store, handle);
  g_assert_true (ebb_tensor_equal (x, back));
  g_assert_cmpuint (count_names (scratch), ==, 0);
#endif
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

static void
a_folder_that_cannot_be_used_is_an_error (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *missing = g_build_filename (scratch, "missing", NULL);
  g_autofree char *file = g_build_filename (scratch, "file", NULL);
  g_autofree char *lines = g_build_filename (scratch, "two\nlines", NULL);

  g_assert_null (ebb_disk_store_new (missing, &error));
  test_assert_error (error, EBB_ERROR_IO, missing, "No such file");
  g_assert_null (ebb_disk_store_new (scratch, &error)); /* an error is set: nothing is done */
  g_clear_error (&error);
  g_assert_null (ebb_disk_store_new (lines, &error));
  test_assert_error (error, EBB_ERROR_IO, "two?lines");
  g_clear_error (&error);
  g_assert_true (g_file_set_contents (file, "x", 1, NULL));
  g_assert_null (ebb_disk_store_new (file, &error));
  test_assert_error (error, EBB_ERROR_IO, file, "Not a directory");
  g_clear_error (&error);
  g_unlink (file);
  g_assert_null (ebb_disk_store_new ("/proc", &error));
  test_assert_error (error, EBB_ERROR_IO, "/proc", "can't make a file");
}

/* A read-only folder stops no superuser, so the child steps down first. */
static void
a_read_only_folder_is_an_error (void)
{
  g_autofree char *folder = g_build_filename (scratch, "read-only", NULL);
  int status;
  pid_t child;

  g_assert_cmpint (g_mkdir (folder, 0555), ==, 0);
  g_chmod (scratch, 0755);
  child = fork ();
  if (child == 0)
    {
      g_autoptr (GError) error = NULL;
      EbbSavedTensorHooks *store;

      if (geteuid () == 0 && setresuid (65534, 65534, 65534) != 0)
        _exit (77);
      store = ebb_disk_store_new (folder, &error);
      _exit (store == NULL && g_error_matches (error, EBB_ERROR, EBB_ERROR_IO) && strstr (error->message, folder)
                     && strstr (error->message, "denied")
                 ? 0
                 : 1);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_rmdir (folder);
  if (WIFEXITED (status) && WEXITSTATUS (status) == 77)
    g_test_skip ("no other user can be taken on here");
  else
    g_assert_true (WIFEXITED (status) && WEXITSTATUS (status) == 0);
}

static void
assert_refuses (EbbSavedTensorHooks *store,
                const char *folder,
                const char *why)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) small = test_randn (40, 1000, -1);
  g_autoptr (EbbTensor) large = test_randn (41, 30000, -1);
  g_autoptr (EbbTensor) same = test_randn (41, 30000, -1);
  g_autoptr (EbbHandle) before = test_pack (store, small);
  g_autoptr (EbbHandle) after = NULL;
  g_autoptr (EbbTensor) back = NULL;
  guint64 bytes = test_held (store);

  g_assert_null (ebb_saved_tensor_hooks_pack (store, large, &error));
  test_assert_error (error, EBB_ERROR_IO, folder, "120000 bytes", why);
  g_assert_true (ebb_tensor_equal (large, same));
  g_assert_cmpuint (test_held (store), ==, bytes);
  /* The stored tensor is there, and there is room for another one that fits. */
  back = test_unpack (store, before);
  g_assert_true (ebb_tensor_equal (small, back));
  after = test_pack (store, same = (ebb_tensor_unref (same), test_randn (42, 1000, -1)));
  g_clear_pointer (&back, ebb_tensor_unref);
  back = test_unpack (store, after);
  g_assert_true (ebb_tensor_equal (same, back));
}

static void
a_byte_limit_is_an_error (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);

  g_object_set (store, "byte-limit", (guint64) 65536, NULL);
  assert_refuses (store, scratch, "65536");
}

static void
the_limit_of_the_process_is_an_error (void)
{
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  struct rlimit old, less;

  getrlimit (RLIMIT_FSIZE, &old);
  less = old;
  less.rlim_cur = 65536;
  g_assert_cmpint (setrlimit (RLIMIT_FSIZE, &less), ==, 0);
  assert_refuses (store, scratch, "65536");
  setrlimit (RLIMIT_FSIZE, &old);
}

/* A small file system of this process's own. */
static void
a_full_disk_is_an_error (void)
{
  g_autofree char *folder = g_build_filename (scratch, "small", NULL);
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (g_mkdir (folder, 0755), ==, 0);
  if (unshare (CLONE_NEWNS) != 0 || mount ("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0
      || mount ("tmpfs", folder, "tmpfs", 0, "size=64k") != 0)
    g_test_skip ("no small file system can be mounted here");
  else
    {
      EbbSavedTensorHooks *store = ebb_disk_store_new (folder, &error);

      g_assert_no_error (error);
      g_object_set (store, "least-size", (guint64) 1, NULL);
      assert_refuses (store, folder, "No space left");
      g_object_unref (store);
      g_assert_cmpint (umount (folder), ==, 0);
    }
  g_rmdir (folder);
}

static void
training_goes_on_after_an_error (gconstpointer data)
{
  const gboolean wrap = GPOINTER_TO_INT (data);
  GError *error = NULL;
  TestStep plain, after;
  guint64 before;
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  test_step_run (gpt, NULL, &plain);
  if (wrap)
    {
      ebb_checkpoint_options_set_store (options, store);
      ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
      g_assert_no_error (error);
    }
  ebb_module_zero_grad (gpt);
  before = test_bytes_in_use ();
  for (guint64 limit = 0; limit <= 36000; limit += 18000) /* room for none, one and two of three */
    {
      EbbTensor *loss;

      g_object_set (store, "byte-limit", (guint64) limit, NULL);
      if (!wrap)
        ebb_push_saved_tensor_hooks (store);
      loss = test_gpt_forward (gpt, &error);
      if (!wrap)
        ebb_pop_saved_tensor_hooks ();
      g_assert_null (loss);
      test_assert_error (error, EBB_ERROR_IO, scratch, "no room");
      g_clear_error (&error);
      g_assert_cmpuint (test_held (store), ==, 0);
      g_assert_cmpuint (test_bytes_in_use (), ==, before);
    }
  g_object_set (store, "byte-limit", G_MAXUINT64, NULL);
  test_step_run (gpt, wrap ? NULL : store, &after);
  test_step_assert_same (&plain, &after);
  test_step_clear (&plain);
  test_step_clear (&after);
}

/* The same where it can't be read back: the step fails, the next one works. */
static void
training_goes_on_after_damage (void)
{
  GError *error = NULL;
  TestStep plain, after;
  guint64 before;
  g_autoptr (EbbModule) gpt = test_gpt_new ();
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (scratch);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autofree char *path = g_strdup_printf ("/proc/self/fd/%d", find_file (scratch));
  EbbTensor *loss;

  test_step_run (gpt, NULL, &plain);
  ebb_checkpoint_options_set_store (options, store);
  ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, &error);
  g_assert_no_error (error);
  ebb_module_zero_grad (gpt);
  before = test_bytes_in_use ();
  loss = test_gpt_forward (gpt, &error);
  g_assert_no_error (error);
  g_assert_cmpint (truncate (path, 0), ==, 0);
  g_assert_false (ebb_tensor_backward (loss, &error));
  test_assert_error (error, EBB_ERROR_IO, scratch);
  g_clear_error (&error);
  ebb_tensor_unref (loss);
  ebb_module_zero_grad (gpt);
  g_assert_cmpuint (test_held (store), ==, 0);
  g_assert_cmpuint (test_bytes_in_use (), ==, before);
  test_step_run (gpt, NULL, &after);
  test_step_assert_same (&plain, &after);
  test_step_clear (&plain);
  test_step_clear (&after);
}

int
main (int argc, char **argv)
{
  int status;

  test_init (&argc, &argv);
  scratch = g_dir_make_tmp ("ebb-disk-store-XXXXXX", NULL);
  g_assert_nonnull (scratch);
  g_test_add_func ("/disk-store/no-name-and-space-used-again", the_file_has_no_name_and_its_space_is_used_again);
  g_test_add_func ("/disk-store/large-tensors-go-in-pieces", large_tensors_go_in_pieces);
  g_test_add_data_func ("/disk-store/a-changed-bit-is-found", GINT_TO_POINTER (FALSE), damage_is_found);
  g_test_add_data_func ("/disk-store/a-shorter-file-is-found", GINT_TO_POINTER (TRUE), damage_is_found);
  g_test_add_func ("/disk-store/a-child-writes-to-its-own-file", a_child_process_writes_to_its_own_file);
  g_test_add_func ("/disk-store/a-useless-folder-is-an-error", a_folder_that_cannot_be_used_is_an_error);
  g_test_add_func ("/disk-store/a-read-only-folder-is-an-error", a_read_only_folder_is_an_error);
  g_test_add_func ("/disk-store/a-byte-limit-is-an-error", a_byte_limit_is_an_error);
  g_test_add_func ("/disk-store/the-process-s-limit-is-an-error", the_limit_of_the_process_is_an_error);
  g_test_add_func ("/disk-store/a-full-disk-is-an-error", a_full_disk_is_an_error);
  g_test_add_data_func ("/disk-store/training-goes-on/hooks", GINT_TO_POINTER (FALSE), training_goes_on_after_an_error);
  g_test_add_data_func ("/disk-store/training-goes-on/wrapped", GINT_TO_POINTER (TRUE),
                        training_goes_on_after_an_error);
  g_test_add_func ("/disk-store/training-goes-on-after-damage", training_goes_on_after_damage);
  status = g_test_run ();
  g_assert_cmpint (g_rmdir (scratch), ==, 0); /* nothing is left in it */
  g_free (scratch);
  return status;
}
