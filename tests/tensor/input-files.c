/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Every file that Ebb reads may be something else: a pipe that nobody writes to, a device that never ends, a folder, or
 * one whose name can't stand in a message as it is. Each is refused in one line, and nothing waits. */

typedef gboolean (*Read) (const char *path,
                          GError **error);

static gboolean
read_weights (const char *path, GError **error)
{
  g_autoptr (EbbArgs) tensors = ebb_load_safetensors (path, error);

  return tensors != NULL;
}

static gboolean
read_bytes (const char *path, GError **error)
{
  gsize size;
  g_autofree char *bytes = ebb_read_file (path, 4, &size, error);

  return bytes != NULL;
}

static gboolean
read_text (const char *path, GError **error)
{
  const char *const paths[] = { path, NULL };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTextDataset) dataset = ebb_text_dataset_new (paths, tokenizer, 1, error);

  return dataset != NULL;
}

static gboolean
read_vocab (const char *path, GError **error)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_bpe_tokenizer_new (path, "/dev/null", error);

  return tokenizer != NULL;
}

static gboolean
read_merges (const char *path, GError **error)
{
  g_autofree char *vocab = g_test_build_filename (G_TEST_DIST, "fixtures", "bpe", "vocab.json", NULL);
  g_autoptr (EbbTokenizer) tokenizer = ebb_bpe_tokenizer_new (vocab, path, error);

  return tokenizer != NULL;
}

static gboolean
read_checkpointing (const char *path, GError **error)
{
  return ebb_checkpointing_configure (NULL, path, NULL, error);
}

static gboolean
read_recompute (const char *path, GError **error)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();

  return ebb_recompute_configure (model, path, NULL, error);
}

static gboolean
read_initialize (const char *path, GError **error)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();

  return ebb_initialize (model, path, error) != NULL;
}

static const struct
{
  const char *name;
  Read read;
} inputs[] = {
  { "weights", read_weights },
  { "bytes", read_bytes },
  { "text", read_text },
  { "vocab.json", read_vocab },
  { "merges.txt", read_merges },
  { "DeepSpeed's configuration", read_checkpointing },
  { "Megatron's configuration", read_recompute },
  { "OSLO's configuration", read_initialize },
};

static void
assert_refused (const char *path, const char *word)
{
  for (guint i = 0; i < G_N_ELEMENTS (inputs); i++)
    {
      g_autoptr (GError) error = NULL;

      g_test_message ("%s", inputs[i].name);
      alarm (60);
      g_assert_false (inputs[i].read (path, &error));
      alarm (0);
      g_assert_nonnull (error);
      g_assert_true (error->domain == EBB_ERROR);
      g_assert_true (g_utf8_validate (error->message, -1, NULL));
      g_assert_null (strchr (error->message, '\n'));
      if (strstr (error->message, word) == NULL)
        g_error ("\"%s\" does not say \"%s\"", error->message, word);
    }
}

static char *
make_folder (void)
{
  return g_dir_make_tmp ("ebb-input-XXXXXX", NULL);
}

static void
a_pipe_is_refused_at_once (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "pipe", NULL);

  g_assert_cmpint (mkfifo (path, 0600), ==, 0);
  assert_refused (path, "not a regular file");
  g_remove (path);
  g_rmdir (folder);
}

static void
a_device_and_a_folder_are_refused (void)
{
  g_autofree char *folder = make_folder ();

  assert_refused ("/dev/zero", "not a regular file");
  assert_refused (folder, "it is a folder");
  g_rmdir (folder);
}

static void
a_file_has_at_most_the_bytes_that_are_wanted (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "file", NULL);
  g_autoptr (GError) error = NULL;

  for (gsize n = 0; n <= 5; n++)
    {
      gsize size;
      g_autofree char *bytes = NULL;

      g_assert_true (g_file_set_contents (path, "a\0bcd", (gssize) n, NULL));
      bytes = ebb_read_file (path, 4, &size, &error);
      if (n <= 4)
        {
          g_assert_no_error (error);
          g_assert_cmpmem (bytes, size + 1, n == 0 ? "" : n == 1 ? "a"
                                                      : n == 2   ? "a\0"
                                                      : n == 3   ? "a\0b"
                                                                 : "a\0bc",
                           n + 1);
        }
      else
        g_assert_null (bytes);
    }
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_nonnull (strstr (error->message, "5 bytes: it must have 4 at most"));
  g_remove (path);
  g_rmdir (folder);
}

/* A line break, and a byte that is not UTF-8. */
static void
any_name_gives_a_message_of_one_line (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *missing = g_build_filename (folder, "a\nb\xff", NULL);
  g_autofree char *broken = g_build_filename (folder, "c\nd\xfe", NULL);

  assert_refused (missing, "No such file");
  g_assert_true (g_file_set_contents (broken, "{\"a\n\xff\": [", -1, NULL));
  for (guint i = 0; i < G_N_ELEMENTS (inputs); i++)
    {
      g_autoptr (GError) error = NULL;

      if (inputs[i].read == read_text) /* any bytes are a text */
        continue;
      g_assert_false (inputs[i].read (broken, &error));
      g_test_message ("%s", error->message);
      g_assert_true (g_utf8_validate (error->message, -1, NULL));
      g_assert_null (strchr (error->message, '\n'));
    }
  g_remove (broken);
  g_rmdir (folder);
}

/* Deeper than a stack, in lists or in objects; nor does a comment hide it, since JSON has none. */
static void
a_configuration_nested_deep_is_refused (void)
{
  static const char *const begins[] = { "{\"a\": ", "{ /* \" */ \"a\": " };
  static const char *const nests[] = { "[", "{\"a\":" };

  for (guint i = 0; i < 4; i++)
    {
      g_autoptr (GString) json = g_string_new (begins[i / 2]);

      for (guint n = 0; n < 100000; n++)
        g_string_append (json, nests[i % 2]);
      for (guint k = 0; k < G_N_ELEMENTS (inputs); k++)
        {
          g_autoptr (GError) error = NULL;

          if (strstr (inputs[k].name, "configuration") == NULL)
            continue;
          g_assert_false (inputs[k].read (json->str, &error));
          g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
          g_assert_nonnull (strstr (error->message, i < 2 ? "nested too deep" : "is not JSON"));
        }
    }
}

/* A pipe that has a saved training's name, and a saved training in such a folder. */
static void
a_pipe_is_no_saved_training (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *inner = g_build_filename (folder, "x\ny\xff", NULL);
  g_autofree char *state = g_build_filename (inner, "state-00000001.safetensors", NULL);
  g_autofree char *index = g_build_filename (inner, "index.json", NULL);
  g_autofree char *old = g_test_build_filename (G_TEST_DIST, "fixtures", "states-1.0", "whole",
                                                "state-00000002.safetensors", NULL);
  g_autofree char *contents = NULL;
  gsize size;
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (module, NULL, NULL);
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (g_mkdir (inner, 0700), ==, 0);
  g_assert_cmpint (mkfifo (state, 0600), ==, 0);
  g_assert_cmpint (mkfifo (index, 0600), ==, 0);
  alarm (60);
  g_assert_false (ebb_training_state_load (training, inner, NULL, &error));
  test_assert_error (error, EBB_ERROR_IO, "not a regular file");
  g_assert_true (g_utf8_validate (error->message, -1, NULL) && strchr (error->message, '\n') == NULL);
  g_clear_error (&error);
  g_assert_false (ebb_load_sharded_state (module, NULL, inner, &error));
  alarm (0);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_true (g_utf8_validate (error->message, -1, NULL) && strchr (error->message, '\n') == NULL);
  g_clear_error (&error);

  /* Nobody can tell whether a state whose index is a pipe is newer than that of version 1.0 beside it. */
  g_remove (state);
  g_assert_false (ebb_training_state_save (training, inner, 1, &error));
  test_assert_error (error, EBB_ERROR_IO, "not a regular file");
  g_clear_error (&error);
  g_assert_true (g_file_get_contents (old, &contents, &size, &error));
  g_assert_true (g_file_set_contents (state, contents, (gssize) size, &error));
  g_clear_object (&training);
  training = ebb_training_state_new (NULL, NULL, NULL);
  g_assert_false (ebb_training_state_load (training, inner, NULL, &error));
  test_assert_error (error, EBB_ERROR_IO, "not a regular file");
  g_clear_error (&error);
  g_remove (index);
  g_assert_true (ebb_training_state_load (training, inner, NULL, &error));
  g_assert_no_error (error);
  g_remove (state);
  g_rmdir (inner);
  g_rmdir (folder);
}

static void
assert_in_one_line (GError **error, const char *word)
{
  test_assert_error (*error, EBB_ERROR_IO, word);
  g_assert_true (g_utf8_validate ((*error)->message, -1, NULL));
  g_assert_null (strchr ((*error)->message, '\n'));
  g_clear_error (error);
}

/* One that holds no training, and one that can't be made, since a file has the name. */
static void
any_folder_gives_a_message_of_one_line (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *file = g_build_filename (folder, "a\nb\xff", NULL);
  g_autofree char *inner = g_build_filename (file, "c", NULL);
  g_autoptr (EbbModule) module = ebb_sequential_new ();
  g_autoptr (EbbTrainingState) training = ebb_training_state_new (module, NULL, NULL);
  g_autoptr (GError) error = NULL;

  g_assert_cmpint (g_mkdir (file, 0700), ==, 0);
  g_assert_false (ebb_training_state_load (training, file, NULL, &error));
  assert_in_one_line (&error, "no training was saved there");
  g_rmdir (file);
  g_assert_true (g_file_set_contents (file, "", -1, NULL));
  g_assert_false (ebb_training_state_save (training, inner, 1, &error));
  assert_in_one_line (&error, "can't make the folder");
  g_assert_false (ebb_save_sharded_state (module, NULL, inner, &error));
  assert_in_one_line (&error, "can't make the folder");
  g_assert_null (ebb_folder_lock_new (inner, &error));
  assert_in_one_line (&error, "can't make the folder");
  g_remove (file);
  g_rmdir (folder);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/input-files/a-file-has-at-most-the-bytes-that-are-wanted",
                   a_file_has_at_most_the_bytes_that_are_wanted);
  g_test_add_func ("/input-files/a-pipe-is-refused-at-once", a_pipe_is_refused_at_once);
  g_test_add_func ("/input-files/a-device-and-a-folder-are-refused", a_device_and_a_folder_are_refused);
  g_test_add_func ("/input-files/any-name-gives-a-message-of-one-line", any_name_gives_a_message_of_one_line);
  g_test_add_func ("/input-files/a-configuration-nested-deep-is-refused", a_configuration_nested_deep_is_refused);
  g_test_add_func ("/input-files/a-pipe-is-no-saved-training", a_pipe_is_no_saved_training);
  g_test_add_func ("/input-files/any-folder-gives-a-message-of-one-line", any_folder_gives_a_message_of_one_line);
  return g_test_run ();
}
