/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"

#include <glib/gstdio.h>
#include <string.h>

/* Files are opened as what they are, and files that people name by mistake are refused by one line. */

#define LINES "{\"text\": \"one two three\"}\n{\"text\": \"four five six\"}\n{\"text\": \"seven\"}\n"

static char *folder;

static const char *
write_file (const char *name, const char *text)
{
  g_assert_cmpint (g_chdir (folder), ==, 0);
  g_assert_true (g_file_set_contents (name, text, -1, NULL));
  return name;
}

static EbbDataset *
open_one (const char *path, gboolean pack)
{
  const char *paths[] = { path, NULL };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;
  EbbDataset *self = ebb_dataset_open (paths, tokenizer, pack, 7, &error);

  g_assert_no_error (error);
  return self;
}

static void
the_name_says_the_kind (void)
{
  g_autoptr (EbbDataset) text = open_one (write_file ("text.txt", "a text of some length"), FALSE);
  g_autoptr (EbbDataset) packed = open_one ("text.txt", TRUE);
  g_autoptr (EbbDataset) lines = open_one (write_file ("LINES.JSONL", LINES), FALSE);

  g_assert_true (EBB_IS_TEXT_DATASET (text));
  g_assert_true (EBB_IS_DOCUMENT_DATASET (packed));
  g_assert_cmpint (ebb_document_dataset_get_n_documents (EBB_DOCUMENT_DATASET (packed)), ==, 1);
  g_assert_cmpint (ebb_document_dataset_get_n_documents (EBB_DOCUMENT_DATASET (lines)), ==, 3);
}

static void
assert_refused (const char *first, const char *second, const char *held_out, gboolean pack, const char *message)
{
  const char *paths[] = { first, second, NULL };
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_dataset_check_files (first != NULL ? paths : NULL, held_out, pack, &error));
  g_assert_nonnull (error);
  if (!g_str_has_prefix (error->message, message) || strchr (error->message, '\n') != NULL)
    g_error ("\"%s\" does not begin with \"%s\"", error->message, message);
}

static void
mistaken_files_are_refused (void)
{
  const char *text = write_file ("text.txt", "a text\n"), *lines = write_file ("lines.jsonl", LINES);

  assert_refused (text, lines, NULL, FALSE,
                  "data text.txt and lines.jsonl: one is text and one JSON lines: with pack each text is a document");
  assert_refused (text, NULL, lines, FALSE, "held-out lines.jsonl: it must be text, as data text.txt is");
  assert_refused (lines, NULL, text, FALSE, "held-out text.txt: it must be JSON lines, as data lines.jsonl is");
  assert_refused (text, NULL, "1", FALSE, "held-out 1: a share of the text must be more than 0 and less than 1");
  assert_refused (text, NULL, "nan", FALSE, "held-out nan: a share of the text must be more than 0");
  assert_refused (NULL, NULL, "0.5", FALSE, "held-out 0.5: without data there is nothing to take a share of");
  assert_refused (write_file ("lines.txt", "\357\273\277 \n" LINES), NULL, NULL, FALSE,
                  "data lines.txt: it has JSON lines: give it a name that ends in .jsonl");
  assert_refused (text, NULL, "lines.txt", FALSE, "held-out lines.txt: it has JSON lines");
  assert_refused (text, write_file ("list.JSON", "[\n{\"a\": 1}]"), NULL, FALSE,
                  "data list.JSON: it is one JSON array, which is not trained on: write an object");
  assert_refused (write_file ("object.json", "{\n\"text\": 1}"), NULL, NULL, TRUE,
                  "data object.json: it is one JSON object");
  assert_refused (write_file ("text.gz", "\037\213\010"), NULL, NULL, FALSE, "data text.gz: it is compressed by gzip");
}

static void
other_files_pass (void)
{
  const char *paths[] = { write_file ("text.txt", "a text\n"), write_file ("lines.jsonl", LINES), NULL };
  const char *braces[] = { write_file ("braces.txt", "{\"name\": 1}\n{ a text }\n"), "absent.txt", NULL };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_dataset_check_files (paths, "lines.jsonl", TRUE, &error));
  g_assert_true (ebb_dataset_check_files (paths, "0.25", TRUE, &error));
  g_assert_true (ebb_dataset_check_files (NULL, "lines.jsonl", FALSE, &error));
  g_assert_true (ebb_dataset_check_files (braces, NULL, FALSE, &error));
  g_assert_no_error (error);
  g_assert_null (ebb_dataset_open (braces, tokenizer, FALSE, 0, &error)); /* only now */
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, "absent.txt"));
}

static gboolean
is_shuffled (EbbDataset *self)
{
  gboolean shuffle;

  g_object_get (self, "shuffle", &shuffle, NULL);
  return shuffle;
}

static void
held_out_data_comes_in_order (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbDataset) data = open_one (write_file ("text.txt", "0123456789012345678901234567890123456789"), FALSE);
  g_autoptr (EbbDataset) share = NULL;
  g_autoptr (EbbDataset) file = NULL;
  g_autoptr (GError) error = NULL;
  const gint64 n_all = ebb_dataset_get_n_tokens (data);

  share = ebb_dataset_open_held_out ("0.25", data, tokenizer, FALSE, 7, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_dataset_get_n_tokens (share), ==, n_all / 4);
  g_assert_cmpint (ebb_dataset_get_n_tokens (data), ==, n_all - n_all / 4);
  file = ebb_dataset_open_held_out (write_file ("held.txt", "another text"), NULL, tokenizer, FALSE, 7, &error);
  g_assert_no_error (error);
  g_assert_true (is_shuffled (data));
  g_assert_false (is_shuffled (share));
  g_assert_false (is_shuffled (file));
  g_assert_null (ebb_dataset_open_held_out ("0.001", data, tokenizer, FALSE, 7, &error));
  g_assert_true (g_str_has_prefix (error->message, "held-out 0.001: "));
  g_clear_error (&error);
  g_assert_null (ebb_dataset_open_held_out ("0.5", NULL, tokenizer, FALSE, 7, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
}

int
main (int argc, char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  folder = g_dir_make_tmp ("ebb-open-XXXXXX", NULL);
  g_test_add_func ("/open/the-name-says-the-kind", the_name_says_the_kind);
  g_test_add_func ("/open/mistaken-files-are-refused", mistaken_files_are_refused);
  g_test_add_func ("/open/other-files-pass", other_files_pass);
  g_test_add_func ("/open/held-out-data-comes-in-order", held_out_data_comes_in_order);
  status = g_test_run ();
  g_assert_cmpint (g_chdir ("/"), ==, 0);
  for (guint i = 0; i < 10; i++)
    {
      static const char *const names[] = { "text.txt", "LINES.JSONL", "lines.jsonl", "lines.txt", "list.JSON",
                                           "object.json", "text.gz", "braces.txt", "held.txt", "" };
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      g_remove (path);
    }
  g_free (folder);
  return status;
}
