/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

static EbbTextDataset *
make_text (const char *text, guint64 seed)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) bytes = g_bytes_new (text, strlen (text));
  g_autoptr (GError) error = NULL;
  EbbTextDataset *self = ebb_text_dataset_new_from_bytes (bytes, tokenizer, seed, &error);

  g_assert_no_error (error);
  return self;
}

/* Takes a batch and returns its tokens, after checking that the targets are what follows in @text. */
static gint64 *
take (EbbTextDataset *self, const char *text, gint64 batch, gint64 context)
{
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (GError) error = NULL;
  const gint64 *x, *y;

  g_assert_true (ebb_text_dataset_get_batch (self, batch, context, &tokens, &targets, &error));
  g_assert_no_error (error);
  g_assert_cmpint (ebb_tensor_get_dim (tokens, 0), ==, batch);
  g_assert_cmpint (ebb_tensor_get_dim (tokens, 1), ==, context);
  g_assert_cmpint (ebb_tensor_get_dim (targets, 1), ==, context);
  g_assert_cmpint (ebb_tensor_get_dtype (targets), ==, EBB_DTYPE_I64);
  x = ebb_tensor_get_data (tokens, &error);
  y = ebb_tensor_get_data (targets, &error);
  for (gint64 b = 0; b < batch; b++)
    {
      g_autoptr (GString) window = g_string_new (NULL);

      for (gint64 t = 0; t < context; t++)
        {
          g_string_append_c (window, (char) x[b * context + t]);
          if (t + 1 < context)
            g_assert_cmpint (y[b * context + t], ==, x[b * context + t + 1]);
        }
      g_string_append_c (window, (char) y[b * context + context - 1]);
      g_assert_nonnull (strstr (text, window->str));
    }
  return g_memdup2 (x, (gsize) (batch * context) * sizeof *x);
}

static const char alphabet[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-";

static void
an_epoch_takes_each_window_once (void)
{
  g_autoptr (EbbTextDataset) self = make_text (alphabet, 7);
  gint64 n = ebb_dataset_get_n_rows (EBB_DATASET (self), 5);
  gint64 order[2][12];

  g_assert_cmpint (n, ==, 12);
  for (int epoch = 0; epoch < 2; epoch++)
    {
      gboolean seen[128] = { FALSE };

      for (gint64 i = 0; i < n; i++)
        {
          g_autofree gint64 *tokens = take (self, alphabet, 1, 5);

          for (int t = 0; t < 5; t++)
            {
              g_assert_false (seen[tokens[t]]);
              seen[tokens[t]] = TRUE;
            }
          order[epoch][i] = tokens[0];
        }
    }
  g_assert_cmpint (memcmp (order[0], order[1], sizeof order[0]), !=, 0);
}

static void
batches_depend_on_the_position_alone (void)
{
  g_autoptr (EbbTextDataset) a = make_text (alphabet, 7);
  g_autoptr (EbbTextDataset) b = make_text (alphabet, 7);
  g_autoptr (EbbTextDataset) other = make_text (alphabet, 8);
  g_autofree gint64 *first = take (a, alphabet, 30, 5);
  g_autofree gint64 *x = take (a, alphabet, 4, 5);
  g_autofree gint64 *y = NULL;
  g_autofree gint64 *z = NULL;

  g_assert_cmpfloat (test_get_double (a, "position"), ==, 34);
  g_object_set (b, "position", (gint64) 30, NULL);
  y = take (b, alphabet, 4, 5);
  g_assert_cmpmem (x, 20 * sizeof *x, y, 20 * sizeof *y);
  z = take (other, alphabet, 30, 5);
  g_assert_cmpint (memcmp (first, z, 150 * sizeof *z), !=, 0);
}

static void
without_shuffling_the_text_is_read_in_order (void)
{
  g_autoptr (EbbTextDataset) self = make_text (alphabet, 7);
  g_autofree gint64 *tokens = NULL;

  g_object_set (self, "shuffle", FALSE, NULL);
  tokens = take (self, alphabet, 6, 10);
  for (int i = 0; i < 60; i++)
    g_assert_cmpint (tokens[i], ==, alphabet[i]);
}

static void
a_text_of_one_window_is_enough (void)
{
  g_autoptr (EbbTextDataset) self = make_text ("abcde", 0);
  g_autofree gint64 *tokens = take (self, "abcde", 3, 4);

  g_assert_cmpint (tokens[0], ==, 'a');
}

/* The last token is nobody's to be learned from. */
static void
a_text_of_two_contexts_has_one_window (void)
{
  g_autoptr (EbbTextDataset) self = make_text ("abcdefgh", 0);
  g_autofree gint64 *tokens = take (self, "abcdefgh", 9, 4);

  g_assert_cmpint (ebb_dataset_get_n_rows (EBB_DATASET (self), 4), ==, 1);
}

static void
state_continues (void)
{
  g_autoptr (EbbTextDataset) a = make_text (alphabet, G_MAXUINT64 - 3);
  g_autoptr (EbbTextDataset) b = make_text (alphabet, 1);
  g_autoptr (EbbTextDataset) shorter = make_text ("abcdefgh", 1);
  g_autofree gint64 *skipped = take (a, alphabet, 17, 3);
  g_autoptr (EbbArgs) state = ebb_dataset_get_state (EBB_DATASET (a));
  g_autofree gint64 *x = take (a, alphabet, 9, 3);
  g_autofree gint64 *y = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_dataset_load_state (EBB_DATASET (b), state, &error));
  g_assert_no_error (error);
  y = take (b, alphabet, 9, 3);
  g_assert_cmpmem (x, 27 * sizeof *x, y, 27 * sizeof *y);
  g_assert_false (ebb_dataset_load_state (EBB_DATASET (shorter), state, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
}

static void
another_text_of_the_same_length_is_refused (void)
{
  enum
  {
    N = 3 << 20
  };
  g_autofree char *text = g_malloc (N + 1);
  g_autoptr (EbbTextDataset) self = NULL;
  g_autoptr (EbbArgs) state = NULL;
  const int places[] = { 0, 12345, N - 12345, N - 1 };

  for (int i = 0; i < N; i++)
    text[i] = alphabet[(i + i / 64) % 64];
  text[N] = '\0';
  self = make_text (text, 1);
  state = ebb_dataset_get_state (EBB_DATASET (self));
  for (guint i = 0; i < G_N_ELEMENTS (places); i++)
    {
      char kept = text[places[i]];
      g_autoptr (EbbTextDataset) other = NULL;
      g_autoptr (GError) error = NULL;

      text[places[i]] = '!';
      other = make_text (text, 1);
      text[places[i]] = kept;
      g_assert_false (ebb_dataset_load_state (EBB_DATASET (other), state, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
      g_assert_cmpstr (
          error->message, ==,
          "the text: the state is of another text of 3145728 tokens: go on with the text it was saved with");
    }
  {
    g_autoptr (EbbTextDataset) same = make_text (text, 2);
    g_autoptr (GError) error = NULL;

    g_assert_true (ebb_dataset_load_state (EBB_DATASET (same), state, &error));
    g_assert_no_error (error);
  }
}

static char *
write_file (const char *folder, const char *name, const char *text)
{
  char *path = g_build_filename (folder, name, NULL);

  g_assert_true (g_file_set_contents (path, text, -1, NULL));
  return path;
}

static void
files_are_one_text (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-data-XXXXXX", NULL);
  g_autofree char *a = write_file (folder, "a.txt", "abcdefgh");
  g_autofree char *b = write_file (folder, "b.txt", "ijk");
  g_autofree char *c = write_file (folder, "c.txt", "lmnopqrstuvwxyz");
  const char *paths[] = { a, b, c, NULL };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTextDataset) self = ebb_text_dataset_new (paths, tokenizer, 3, &error);
  g_autofree gint64 *tokens = NULL;

  g_assert_no_error (error);
  g_assert_cmpint (ebb_dataset_get_n_tokens (EBB_DATASET (self)), ==, 26);
  g_object_set (self, "shuffle", FALSE, NULL);
  tokens = take (self, "abcdefghijklmnopqrstuvwxyz", 1, 25);
  for (int i = 0; i < 25; i++)
    g_assert_cmpint (tokens[i], ==, 'a' + i);
  for (int i = 0; i < 3; i++)
    g_remove (paths[i]);
  g_rmdir (folder);
}

/* Longer than the parts in which it is encoded. */
static void
a_long_text_has_the_tokens_of_the_whole (void)
{
  g_autofree char *vocab = g_test_build_filename (G_TEST_DIST, "fixtures", "bpe", "vocab.json", NULL);
  g_autofree char *merges = g_test_build_filename (G_TEST_DIST, "fixtures", "bpe", "merges.txt", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer = ebb_bpe_tokenizer_new (vocab, merges, &error);
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (EbbTensor) whole = NULL;
  g_autoptr (EbbTextDataset) self = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  gint64 n;

  g_assert_no_error (error);
  for (int i = 0; text->len < 2500000; i++)
    g_string_append_printf (text, "the tokens of line %d,\n%s  and the merges\n", i, i % 3 ? "" : "\n");
  bytes = g_bytes_new (text->str, text->len);
  whole = ebb_tokenizer_encode (tokenizer, bytes, &error);
  self = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 0, &error);
  g_assert_no_error (error);
  n = ebb_tensor_get_n_elements (whole);
  g_assert_cmpint (ebb_dataset_get_n_tokens (EBB_DATASET (self)), ==, n);
  g_object_set (self, "shuffle", FALSE, NULL);
  g_assert_true (ebb_text_dataset_get_batch (self, 1, n - 1, &tokens, &targets, &error));
  g_assert_cmpmem (ebb_tensor_get_data (tokens, NULL), ebb_tensor_get_n_bytes (tokens),
                   ebb_tensor_get_data (whole, NULL), ebb_tensor_get_n_bytes (tokens));
}

static void
bad_texts_are_named (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-data-XXXXXX", NULL);
  g_autofree char *empty = write_file (folder, "empty.txt", "");
  g_autofree char *small = write_file (folder, "small.txt", "abc");
  g_autofree char *missing = g_build_filename (folder, "missing.txt", NULL);
  const char *paths[][2] = { { empty, NULL }, { small, NULL }, { missing, NULL }, { folder, NULL } };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTextDataset) self = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_text_dataset_new (paths[0], tokenizer, 0, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_true (g_str_has_suffix (error->message, "empty.txt is empty: there is nothing to train on"));
  g_clear_error (&error);
  g_assert_null (ebb_text_dataset_new (paths[2], tokenizer, 0, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, "missing.txt: No such file or directory"));
  g_clear_error (&error);
  g_assert_null (ebb_text_dataset_new (paths[3], tokenizer, 0, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_clear_error (&error);

  self = ebb_text_dataset_new (paths[1], tokenizer, 0, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_dataset_check_context (EBB_DATASET (self), 2, &error));
  g_assert_false (ebb_text_dataset_get_batch (self, 1, 3, &tokens, &targets, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_true (
      g_str_has_suffix (error->message, "small.txt: 3 tokens are too few: a context of 3 needs one more than that"));
  g_assert_null (tokens);
  g_clear_error (&error);
  g_assert_false (ebb_text_dataset_get_batch (self, 0, 1, &tokens, &targets, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_clear_error (&error);
  g_assert_false (ebb_text_dataset_get_batch (self, 1, -1, &tokens, &targets, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
  g_assert_cmpfloat (test_get_double (self, "position"), ==, 0);
  g_remove (empty);
  g_remove (small);
  g_rmdir (folder);
}

/* Whether it is read at once or, as long ones by a byte tokenizer, from its file. */
static void
compressed_texts_are_refused (void)
{
  static const guint8 cut[] = "BZh text \xc3"; /* the first byte of a character */
  const gsize sizes[] = { 100, 3 << 20 };
  g_autofree char *folder = g_dir_make_tmp ("ebb-text-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "text.txt", NULL);
  const char *const paths[] = { path, NULL };
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      g_autofree char *bytes = g_malloc0 (sizes[i]);
      g_autoptr (EbbTextDataset) self = NULL;

      g_assert_true (g_file_set_contents (path, bytes, (gssize) sizes[i], NULL));
      self = ebb_text_dataset_new (paths, tokenizer, 1, &error); /* binary data of no format */
      g_assert_no_error (error);
      memcpy (bytes, "\037\213\010", 3);
      g_assert_true (g_file_set_contents (path, bytes, (gssize) sizes[i], NULL));
      g_assert_null (ebb_text_dataset_new (paths, tokenizer, 1, &error));
      test_assert_error (error, EBB_ERROR_FORMAT, "text.txt", "it is compressed by gzip: unpack it first");
      g_clear_error (&error);
      g_assert_false (ebb_check_text_format ("zeros", (const guint8 *) bytes + 3, 50, FALSE, &error));
      test_assert_error (error, EBB_ERROR_FORMAT, "zeros", "it is binary data, or text in another encoding");
      g_clear_error (&error);
    }
  g_assert_true (ebb_check_text_format ("cut", cut, sizeof cut - 1, FALSE, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_check_text_format ("empty", NULL, 0, FALSE, &error));
  g_remove (path);
  g_rmdir (folder);
}

/* A file that is cut while it is used: an error, where a mapping would end the process. */
static void
a_text_that_was_cut_is_named (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-text-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "cut.txt", NULL);
  const char *const paths[] = { path, NULL };
  const gsize size = 3 << 20;
  g_autofree char *bytes = g_strnfill (size, 'x');
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTextDataset) self = NULL;
  g_autoptr (GError) error = NULL;
  const gint64 *x;

  bytes[size - 3] = 'y'; /* the last one of the last window's targets */
  g_assert_true (g_file_set_contents (path, bytes, (gssize) size, NULL));
  self = ebb_text_dataset_new (paths, tokenizer, 1, &error);
  g_assert_no_error (error);
  g_object_set (self, "shuffle", FALSE, NULL);
  g_object_set (self, "position", (gint64) (size - 1) / 3 - 1, NULL);
  g_assert_true (ebb_text_dataset_get_batch (self, 1, 3, &tokens, &targets, &error));
  x = ebb_tensor_get_data (targets, &error);
  g_assert_cmpint (x[0] + x[1] + x[2], ==, 2 * 'x' + 'y');
  g_clear_pointer (&tokens, ebb_tensor_unref);
  g_clear_pointer (&targets, ebb_tensor_unref);

  g_assert_cmpint (truncate (path, 5000), ==, 0);
  g_object_set (self, "position", (gint64) 4000, NULL);
  g_assert_false (ebb_text_dataset_get_batch (self, 1, 3, &tokens, &targets, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "cut.txt", "it ends before byte");
  g_assert_cmpfloat (test_get_double (self, "position"), ==, 4000);
  g_clear_error (&error);
  g_object_set (self, "position", (gint64) 10, NULL);
  g_assert_true (ebb_text_dataset_get_batch (self, 1, 3, &tokens, &targets, &error));
  g_assert_no_error (error);
  g_remove (path);
  g_rmdir (folder);
}

static void
the_last_tokens_are_held_out (void)
{
  g_autoptr (EbbTextDataset) self = make_text (alphabet, 7);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) held = ebb_dataset_hold_out (EBB_DATASET (self), 0.25, &error);
  g_autofree gint64 *last = NULL;

  g_assert_no_error (error);
  g_assert_cmpint (ebb_dataset_get_n_tokens (EBB_DATASET (self)), ==, 48);
  g_assert_cmpint (ebb_dataset_get_n_tokens (held), ==, 16);
  last = take (EBB_TEXT_DATASET (held), alphabet + 48, 3, 5);
  g_assert_cmpint (last[0], ==, alphabet[48]);
  for (int i = 0; i < 20; i++)
    {
      g_autofree gint64 *tokens = take (self, alphabet, 1, 47);

      g_assert_cmpint (tokens[46], ==, alphabet[46]);
    }
  g_assert_null (ebb_dataset_hold_out (held, 0.01, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/text-dataset/an-epoch-takes-each-window-once", an_epoch_takes_each_window_once);
  g_test_add_func ("/text-dataset/batches-depend-on-the-position-alone", batches_depend_on_the_position_alone);
  g_test_add_func ("/text-dataset/without-shuffling-the-text-is-read-in-order",
                   without_shuffling_the_text_is_read_in_order);
  g_test_add_func ("/text-dataset/a-text-of-one-window-is-enough", a_text_of_one_window_is_enough);
  g_test_add_func ("/text-dataset/a-text-of-two-contexts-has-one-window", a_text_of_two_contexts_has_one_window);
  g_test_add_func ("/text-dataset/state-continues", state_continues);
  g_test_add_func ("/text-dataset/another-text-of-the-same-length-is-refused",
                   another_text_of_the_same_length_is_refused);
  g_test_add_func ("/text-dataset/files-are-one-text", files_are_one_text);
  g_test_add_func ("/text-dataset/a-long-text-has-the-tokens-of-the-whole", a_long_text_has_the_tokens_of_the_whole);
  g_test_add_func ("/text-dataset/compressed-texts-are-refused", compressed_texts_are_refused);
  g_test_add_func ("/text-dataset/a-text-that-was-cut-is-named", a_text_that_was_cut_is_named);
  g_test_add_func ("/text-dataset/the-last-tokens-are-held-out", the_last_tokens_are_held_out);
  g_test_add_func ("/text-dataset/bad-texts-are-named", bad_texts_are_named);
  return g_test_run ();
}
