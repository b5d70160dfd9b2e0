/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/model-folders.h"

#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

/* Models' folders for tests: fixtures, copies of them in a scratch folder, and their files. */

static char *scratch;

void
test_scratch_begin (void)
{
  scratch = g_dir_make_tmp ("ebb-folders-XXXXXX", NULL);
  g_assert_nonnull (scratch);
}

const char *
test_scratch_folder (void)
{
  return scratch;
}

void
test_scratch_end (void)
{
  test_remove_tree (scratch);
  g_clear_pointer (&scratch, g_free);
}

char *
test_model_fixture (const char *row)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "models", row, NULL);
}

char *
test_scratch_path (const char *name)
{
  return g_build_filename (scratch, name, NULL);
}

void
test_remove_tree (const char *path)
{
  g_autoptr (GDir) dir = g_dir_open (path, 0, NULL);
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *child = g_build_filename (path, name, NULL);

      test_remove_tree (child);
    }
  g_remove (path);
}

char *
test_folder_read (const char *folder,
                  const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autoptr (GError) error = NULL;
  char *text = NULL;

  g_file_get_contents (path, &text, NULL, &error);
  g_assert_no_error (error);
  return text;
}

void
test_folder_write (const char *folder,
                   const char *name,
                   const char *text)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  g_assert_true (g_file_set_contents (path, text, -1, NULL));
}

gboolean
test_folder_has (const char *folder,
                 const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);

  return g_file_test (path, G_FILE_TEST_EXISTS);
}

guint
test_folder_count (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  guint n = 0;

  while (dir != NULL && g_dir_read_name (dir) != NULL)
    n++;
  return n;
}

/* A copy of a fixture that a test may change. */
char *
test_model_copy (const char *row)
{
  g_autofree char *from = test_model_fixture (row);
  g_autofree char *to = test_scratch_path ("copy");
  g_autoptr (GDir) dir = g_dir_open (from, 0, NULL);
  const char *name;

  test_remove_tree (to);
  g_assert_cmpint (g_mkdir (to, 0777), ==, 0);
  while ((name = g_dir_read_name (dir)) != NULL)
    if (strcmp (name, "expected.safetensors") != 0 && strcmp (name, "config-old.json") != 0)
      {
        g_autofree char *path = g_build_filename (from, name, NULL);
        g_autofree char *target = g_build_filename (to, name, NULL);
        g_autofree char *data = NULL;
        gsize size;

        g_assert_true (g_file_get_contents (path, &data, &size, NULL));
        g_assert_true (g_file_set_contents (target, data, (gssize) size, NULL));
      }
  return g_steal_pointer (&to);
}

EbbModule *
test_model_open (const char *folder)
{
  g_autoptr (GError) error = NULL;
  EbbModule *model = ebb_model_open (folder, &error);

  g_assert_no_error (error);
  return model;
}

EbbModule *
test_model_open_fixture (const char *row)
{
  g_autofree char *folder = test_model_fixture (row);

  return test_model_open (folder);
}

void
test_model_save (EbbModule *model,
                 const char *folder)
{
  g_autoptr (GError) error = NULL;

  ebb_model_save (model, folder, &error);
  g_assert_no_error (error);
}

void
test_assert_same_weights (EbbModule *a,
                          EbbModule *b)
{
  g_autoptr (EbbArgs) x = ebb_module_get_state_dict (a);
  g_autoptr (EbbArgs) y = ebb_module_get_state_dict (b);

  g_assert_cmpuint (ebb_args_get_length (x), ==, ebb_args_get_length (y));
  for (guint i = 0; i < ebb_args_get_length (x); i++)
    {
      g_autoptr (EbbTensor) one = ebb_args_get_tensor (x, i);
      g_autoptr (EbbTensor) other = ebb_args_get_tensor (y, i);

      g_assert_cmpint (ebb_tensor_get_dtype (one), ==, ebb_tensor_get_dtype (other));
      g_assert_cmpmem (test_read (one), ebb_tensor_get_n_bytes (one), test_read (other),
                       ebb_tensor_get_n_bytes (other));
    }
}
