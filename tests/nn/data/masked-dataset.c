/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

#define CONTEXT 100
#define N_ROWS 200

static EbbDataset *
make_text (guint64 seed)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GError) error = NULL;
  EbbTextDataset *self;

  for (int i = 0; i < 5000; i++)
    g_string_append_c (text, (char) ('a' + i % 26));
  bytes = g_bytes_new (text->str, text->len);
  self = ebb_text_dataset_new_from_bytes (bytes, tokenizer, seed, &error);
  g_assert_no_error (error);
  return EBB_DATASET (self);
}

static EbbDataset *
make_masked (guint64 seed)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbDataset) source = make_text (seed);
  g_autoptr (GError) error = NULL;
  EbbMaskedDataset *self = ebb_masked_dataset_new (source, tokenizer, &error);

  g_assert_no_error (error);
  return EBB_DATASET (self);
}

static void
take (EbbDataset *self, gint64 n, gint64 context, gint64 **tokens, gint64 **targets)
{
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) starts = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_dataset_get_rows (self, n, context, &x, &y, &starts, &error));
  g_assert_no_error (error);
  g_assert_null (starts);
  *tokens = g_memdup2 (ebb_tensor_get_data (x, NULL), ebb_tensor_get_n_bytes (x));
  *targets = g_memdup2 (ebb_tensor_get_data (y, NULL), ebb_tensor_get_n_bytes (y));
}

/* 15 of 100 tokens are targets; of these about 80 % are the mask, 10 % another token and 10 % themselves. */
static void
shares_are_those_of_bert (void)
{
  g_autoptr (EbbDataset) self = make_masked (1);
  g_autoptr (EbbDataset) source = make_text (1);
  g_autofree gint64 *tokens = NULL;
  g_autofree gint64 *targets = NULL;
  g_autofree gint64 *whole = NULL;
  g_autofree gint64 *nexts = NULL;
  int n_masked = 0, n_same = 0, n_other = 0;

  g_assert_cmpint (ebb_masked_dataset_get_mask_token (EBB_MASKED_DATASET (self)), ==, 256);
  g_assert_cmpuint (ebb_masked_dataset_get_vocab_size (EBB_MASKED_DATASET (self)), ==, 257);
  take (self, N_ROWS, CONTEXT, &tokens, &targets);
  take (source, N_ROWS, CONTEXT, &whole, &nexts);
  for (int r = 0; r < N_ROWS; r++)
    {
      int n_hidden = 0;

      for (int i = r * CONTEXT; i < (r + 1) * CONTEXT; i++)
        {
          if (targets[i] == -100)
            {
              g_assert_cmpint (tokens[i], ==, whole[i]);
              continue;
            }
          g_assert_cmpint (targets[i], ==, whole[i]);
          n_hidden++;
          n_masked += tokens[i] == 256;
          n_same += tokens[i] == whole[i];
          n_other += tokens[i] != 256 && tokens[i] != whole[i];
        }
      g_assert_cmpint (n_hidden, ==, 15);
    }
  /* Of 3000 draws these are within four standard deviations. */
  g_assert_cmpint (ABS (n_masked - 2400), <, 90);
  g_assert_cmpint (ABS (n_same - 301), <, 66);
  g_assert_cmpint (ABS (n_other - 299), <, 66);
}

static void
the_seed_and_the_position_name_a_row (void)
{
  g_autoptr (EbbDataset) a = make_masked (4);
  g_autoptr (EbbDataset) b = make_masked (5);
  g_autoptr (EbbArgs) state = NULL;
  g_autofree gint64 *skipped = NULL;
  g_autofree gint64 *skipped_targets = NULL;
  g_autofree gint64 *x = NULL;
  g_autofree gint64 *x_targets = NULL;
  g_autofree gint64 *y = NULL;
  g_autofree gint64 *y_targets = NULL;
  g_autoptr (GError) error = NULL;

  take (a, 70, 50, &skipped, &skipped_targets);
  state = ebb_dataset_get_state (a);
  take (a, 60, 50, &x, &x_targets);
  g_assert_true (ebb_dataset_load_state (b, state, &error));
  g_assert_no_error (error);
  take (b, 60, 50, &y, &y_targets);
  g_assert_cmpmem (x, 3000 * sizeof *x, y, 3000 * sizeof *y);
  g_assert_cmpmem (x_targets, 3000 * sizeof *x, y_targets, 3000 * sizeof *y);
}

/* The same row of the text at another position has other targets; one token of a short row is masked. */
static void
each_epoch_hides_others (void)
{
  g_autoptr (EbbDataset) self = make_masked (1);
  gint64 n = ebb_dataset_get_n_rows (self, CONTEXT);
  g_autofree gint64 *tokens = NULL;
  g_autofree gint64 *targets = NULL;
  g_autofree gint64 *two = NULL;
  g_autofree gint64 *two_targets = NULL;

  g_object_set (self, "shuffle", FALSE, NULL);
  take (self, 2 * n, CONTEXT, &tokens, &targets);
  g_assert_cmpint (memcmp (targets, targets + n * CONTEXT, sizeof *targets * (gsize) (n * CONTEXT)), !=, 0);
  for (gint64 i = 0; i < n * CONTEXT; i++) /* rows that aren't shuffled are in the order of the text */
    g_assert_cmpint (targets[i] != -100 ? targets[i] : tokens[i], ==, 'a' + i % 26);
  take (self, 1, 2, &two, &two_targets);
  g_assert_cmpint ((two_targets[0] != -100) + (two_targets[1] != -100), ==, 1);
}

static void
held_out_rows_are_masked (void)
{
  g_autoptr (EbbDataset) self = make_masked (1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDataset) held = ebb_dataset_hold_out (self, 0.1, &error);
  g_autofree gint64 *tokens = NULL;
  g_autofree gint64 *targets = NULL;

  g_assert_no_error (error);
  g_assert_true (EBB_IS_MASKED_DATASET (held));
  g_assert_cmpint (ebb_dataset_get_n_tokens (held), ==, 500);
  g_assert_cmpint (ebb_dataset_get_n_tokens (self), ==, 4500);
  take (held, 1, 20, &tokens, &targets);
  for (int i = 0; i < 20; i++)
    g_assert_cmpint (targets[i] != -100 ? targets[i] : tokens[i], ==, 'a' + (4500 + i) % 26);
}

/* [CLS] and [SEP] begin and end each row; they, and [UNK] within it, are never masked, and no token becomes one. */
static void
special_tokens_are_never_hidden (void)
{
  static const char json[] =
      "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": ["
      "{\"id\": 0, \"content\": \"[PAD]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
      "\"normalized\": false, \"special\": true},"
      "{\"id\": 1, \"content\": \"[UNK]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
      "\"normalized\": false, \"special\": true},"
      "{\"id\": 2, \"content\": \"[CLS]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
      "\"normalized\": false, \"special\": true},"
      "{\"id\": 3, \"content\": \"[SEP]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
      "\"normalized\": false, \"special\": true},"
      "{\"id\": 4, \"content\": \"[MASK]\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
      "\"normalized\": false, \"special\": true}],"
      "\"normalizer\": null, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"post_processor\": null, "
      "\"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, "
      "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", "
      "\"max_input_chars_per_word\": 100, \"vocab\": {\"[PAD]\": 0, \"[UNK]\": 1, \"[CLS]\": 2, \"[SEP]\": 3, "
      "\"[MASK]\": 4, \"a\": 5, \"b\": 6, \"c\": 7, \"##a\": 8, \"##b\": 9}}}";
  g_autofree char *folder = g_dir_make_tmp ("ebb-masked-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "tokenizer.json", NULL);
  g_autofree char *config_path = g_build_filename (folder, "tokenizer_config.json", NULL);
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  g_autoptr (EbbTextDataset) source = NULL;
  g_autoptr (EbbMaskedDataset) self = NULL;
  g_autoptr (GBytes) bytes = NULL;
  g_autofree gint64 *tokens = NULL;
  g_autofree gint64 *targets = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (g_file_set_contents (path, json, -1, &error));
  g_assert_true (g_file_set_contents (
      config_path, "{\"cls_token\": \"[CLS]\", \"sep_token\": \"[SEP]\", \"mask_token\": \"[MASK]\"}", -1, &error));
  tokenizer = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  for (int i = 0; i < 100; i++)
    g_string_append (text, "ab zz c ba ");
  bytes = g_bytes_new (text->str, text->len);
  source = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 1, &error);
  self = ebb_masked_dataset_new (EBB_DATASET (source), tokenizer, &error);
  g_assert_no_error (error);
  g_assert_cmpint (ebb_masked_dataset_get_mask_token (self), ==, 4);
  g_assert_cmpuint (ebb_masked_dataset_get_vocab_size (self), ==, 10);
  take (EBB_DATASET (self), 50, 20, &tokens, &targets);
  for (int i = 0; i < 1000; i++)
    {
      gboolean masked = targets[i] != -100;

      g_assert_cmpint (i % 20 == 0, ==, tokens[i] == 2);
      g_assert_cmpint (i % 20 == 19, ==, tokens[i] == 3);
      g_assert_cmpint (tokens[i], !=, 0);
      if (masked)
        g_assert_cmpint (targets[i], >=, 5);
      else
        g_assert_cmpint (tokens[i], !=, 4);
    }
  g_remove (path);
  g_remove (config_path);
  g_rmdir (folder);
}

static void
packed_documents_are_refused (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GBytes) lines = g_bytes_new_static ("{\"text\": \"abc\"}", 15);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbDocumentDataset) source = ebb_document_dataset_new_from_bytes (lines, tokenizer, 1, &error);

  g_assert_null (ebb_masked_dataset_new (EBB_DATASET (source), tokenizer, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/masked-dataset/shares", shares_are_those_of_bert);
  g_test_add_func ("/masked-dataset/named", the_seed_and_the_position_name_a_row);
  g_test_add_func ("/masked-dataset/epochs", each_epoch_hides_others);
  g_test_add_func ("/masked-dataset/held-out", held_out_rows_are_masked);
  g_test_add_func ("/masked-dataset/special", special_tokens_are_never_hidden);
  g_test_add_func ("/masked-dataset/documents", packed_documents_are_refused);
  return g_test_run ();
}
