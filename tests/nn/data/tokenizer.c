/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"

#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <string.h>

static char *
fixture (const char *name)
{
  return g_test_build_filename (G_TEST_DIST, "fixtures", "bpe", name, NULL);
}

static EbbTokenizer *
make_bpe (void)
{
  g_autofree char *vocab = fixture ("vocab.json");
  g_autofree char *merges = fixture ("merges.txt");
  g_autoptr (GError) error = NULL;
  EbbTokenizer *tokenizer = ebb_bpe_tokenizer_new (vocab, merges, &error);

  g_assert_no_error (error);
  return tokenizer;
}

static void
assert_round_trip (EbbTokenizer *tokenizer, gconstpointer data, gsize size)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GBytes) text = g_bytes_new (data, size);
  g_autoptr (EbbTensor) tokens = ebb_tokenizer_encode (tokenizer, text, &error);
  g_autoptr (GBytes) back = NULL;

  g_assert_no_error (error);
  back = ebb_tokenizer_decode (tokenizer, tokens, &error);
  g_assert_no_error (error);
  g_assert_cmpmem (g_bytes_get_data (back, NULL), g_bytes_get_size (back), data, size);
}

static void
bytes_are_tokens (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GError) error = NULL;
  g_autofree gint64 *tokens = NULL;
  gsize n;
  guint8 all[256];

  g_assert_cmpuint (ebb_tokenizer_get_vocab_size (tokenizer), ==, 256);
  tokens = ebb_tokenizer_encode_text (tokenizer, "aé", &n, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n, ==, 3);
  g_assert_cmpint (tokens[0], ==, 'a');
  g_assert_cmpint (tokens[1], ==, 0xc3);
  g_assert_cmpint (tokens[2], ==, 0xa9);
  for (guint i = 0; i < 256; i++)
    all[i] = (guint8) i;
  assert_round_trip (tokenizer, all, sizeof all);
  assert_round_trip (tokenizer, "", 0);
}

static void
invalid_text_is_replaced_and_bytes_can_be_had (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  const gint64 tokens[] = { 'a', 0xff, 'b' };
  g_autoptr (GError) error = NULL;
  g_autofree char *text = ebb_tokenizer_decode_text (tokenizer, tokens, 3, &error);
  g_autofree char *nothing = ebb_tokenizer_decode_text (tokenizer, NULL, 0, &error);

  g_assert_no_error (error);
  g_assert_cmpstr (text, ==, "a\xef\xbf\xbd"
                             "b");
  g_assert_cmpstr (nothing, ==, "");
}

static void
unknown_tokens_are_refused (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  const gint64 large[] = { 1, 256 }, negative[] = { -1 };
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_tokenizer_decode_text (tokenizer, large, 2, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
  g_assert_cmpstr (error->message, ==, "token 256 at 1: it must be in [0, 256)");
  g_clear_error (&error);
  g_assert_null (ebb_tokenizer_decode_text (tokenizer, negative, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
}

/* The fixture's script runs GPT-2's expression and merge loop as published. */
static void
bpe_equals_the_reference (void)
{
  g_autoptr (EbbTokenizer) tokenizer = make_bpe ();
  g_autofree char *path = fixture ("expected.json");
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GError) error = NULL;
  JsonArray *cases;

  json_parser_load_from_file (parser, path, &error);
  g_assert_no_error (error);
  cases = json_node_get_array (json_parser_get_root (parser));
  g_assert_cmpuint (json_array_get_length (cases), >, 20);
  for (guint i = 0; i < json_array_get_length (cases); i++)
    {
      JsonObject *item = json_array_get_object_element (cases, i);
      const char *text = json_object_get_string_member (item, "text");
      JsonArray *expected = json_object_get_array_member (item, "tokens");
      gsize n;
      g_autofree gint64 *tokens = ebb_tokenizer_encode_text (tokenizer, text, &n, &error);

      g_assert_no_error (error);
      g_test_message ("case %u", i);
      g_assert_cmpuint (n, ==, json_array_get_length (expected));
      for (guint t = 0; t < n; t++)
        g_assert_cmpint (tokens[t], ==, json_array_get_int_element (expected, t));
      assert_round_trip (tokenizer, text, strlen (text));
    }
}

static void
bpe_takes_any_bytes (void)
{
  g_autoptr (EbbTokenizer) tokenizer = make_bpe ();
  guint8 text[4096];
  guint32 state = 1;

  for (gsize i = 0; i < sizeof text; i++)
    {
      state = state * 1664525 + 1013904223;
      text[i] = (guint8) (state >> 24);
    }
  assert_round_trip (tokenizer, text, sizeof text);
  /* Sequences that break off, overlong ones, surrogates, NUL. */
  assert_round_trip (tokenizer, "a\xc3", 2);
  assert_round_trip (tokenizer, "\xe2\x82", 2);
  assert_round_trip (tokenizer, " \xc0\x80 \xed\xa0\x80 \xf8\x88\x80\x80\x80", 14);
  assert_round_trip (tokenizer, "a\0b \0", 5);
}

static void
bpe_knows_special_tokens (void)
{
  g_autoptr (EbbTokenizer) tokenizer = make_bpe ();
  gint64 end = ebb_bpe_tokenizer_find_token (EBB_BPE_TOKENIZER (tokenizer), "<|endoftext|>");
  g_autoptr (GError) error = NULL;
  g_autofree char *text = ebb_tokenizer_decode_text (tokenizer, &end, 1, &error);

  g_assert_no_error (error);
  g_assert_cmpint (end, ==, ebb_tokenizer_get_vocab_size (tokenizer) - 1);
  g_assert_cmpstr (text, ==, "<|endoftext|>");
  g_assert_cmpint (ebb_bpe_tokenizer_find_token (EBB_BPE_TOKENIZER (tokenizer), "no such token"), ==, -1);
}

/* A word without end would take hours if merging were quadratic. */
static void
bpe_of_a_long_word_ends (void)
{
  g_autoptr (EbbTokenizer) tokenizer = make_bpe ();
  const gsize size = 1 << 20;
  g_autofree char *text = g_malloc (size);

  for (gsize i = 0; i < size; i++)
    text[i] = i % 3 ? 'a' : 'b';
  assert_round_trip (tokenizer, text, size);
}

static void
parts_encode_as_the_whole (void)
{
  g_autoptr (EbbTokenizer) tokenizer = make_bpe ();
  const char *text = "the text\nthe tokens\n\n  merges\n'sodd\nline\n\tthe model\n 1\n2\nend\n";
  g_autoptr (GBytes) whole = g_bytes_new_static (text, strlen (text));
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) expected = ebb_tokenizer_encode (tokenizer, whole, &error);
  const gint64 *tokens = ebb_tensor_get_data (expected, &error);
  guint n_cuts = 0;

  g_assert_no_error (error);
  for (gsize from = 0; from < strlen (text); from++)
    {
      gssize cut = ebb_tokenizer_find_cut (tokenizer, whole, from);
      g_autoptr (GBytes) first = NULL;
      g_autoptr (GBytes) second = NULL;
      g_autoptr (EbbTensor) a = NULL;
      g_autoptr (EbbTensor) b = NULL;

      if (cut < 0)
        continue;
      n_cuts++;
      g_assert_cmpint (cut, >=, (gssize) from);
      first = g_bytes_new_from_bytes (whole, 0, (gsize) cut);
      second = g_bytes_new_from_bytes (whole, (gsize) cut, strlen (text) - (gsize) cut);
      a = ebb_tokenizer_encode (tokenizer, first, &error);
      b = ebb_tokenizer_encode (tokenizer, second, &error);
      g_assert_no_error (error);
      g_assert_cmpint (ebb_tensor_get_n_elements (a) + ebb_tensor_get_n_elements (b), ==,
                       ebb_tensor_get_n_elements (expected));
      g_assert_cmpmem (ebb_tensor_get_data (a, NULL), ebb_tensor_get_n_bytes (a), tokens, ebb_tensor_get_n_bytes (a));
      g_assert_cmpmem (ebb_tensor_get_data (b, NULL), ebb_tensor_get_n_bytes (b),
                       tokens + ebb_tensor_get_n_elements (a), ebb_tensor_get_n_bytes (b));
    }
  g_assert_cmpuint (n_cuts, >, 20);
}

typedef struct
{
  const char *vocab;
  const char *merges;
  const char *message; /* part of it */
} BadFiles;

static void
bad_vocabularies_are_named (void)
{
  static const BadFiles cases[] = {
    { "", "", "vocab.json: byte 0: " },
    { "[]", "", "vocab.json: the vocabulary must be an object" },
    { "{}", "", "vocab.json: the vocabulary is empty" },
    { "{\"a\":0,\"a\":1}", "", "the key \"a\" stands twice in one object" },
    { "{\"a\":0,\"b\":0}", "", "the id 0 is there twice" },
    { "{\"a\":0,\"b\":2}", "", "no token has the id 1: ids must be 0 to 2, each once" },
    { "{\"a\":-1}", "", "the token \"a\": the id \"-1\" must be an integer of 0 or more" },
    { "{\"a\":1.5}", "", "the id \"1.5\" must be an integer of 0 or more" },
    { "{\"a\":99999999999999999999}", "", "must be an integer of 0 or more" },
    { "{\"a\":4000000000}", "", "the id 4000000000 is too large" },
    { "{\"a\":0", "", "expected ',' or '}', found the end" },
    { "{\"a\":0}x", "", "expected the end, found 'x'" },
    { "{\"a\xff\":0}", "", "not UTF-8" },
    { "{\"a\":0}", "a a\n", "merges.txt: line 1: the vocabulary has no token: \"aa\"" },
    { "{\"a\":0,\"aa\":1}", "#version: 0.2\na a\na b\n", "merges.txt: line 3: the vocabulary has no token: \"b\"" },
    { "{\"a\":0,\"aa\":1}", "a a\na a\n", "merges.txt: line 2: this merge is there twice: \"a a\"" },
    { "{\"a\":0,\"aa\":1}", "aa\n", "line 1: a merge is two tokens with a blank between them: \"aa\"" },
    { "{\"a\":0,\"aa\":1}", "a a a\n", "a merge is two tokens with a blank between them" },
  };
  g_autofree char *folder = g_dir_make_tmp ("ebb-tokenizer-XXXXXX", NULL);
  g_autofree char *vocab = g_build_filename (folder, "vocab.json", NULL);
  g_autofree char *merges = g_build_filename (folder, "merges.txt", NULL);

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_true (g_file_set_contents (vocab, cases[i].vocab, -1, NULL));
      g_assert_true (g_file_set_contents (merges, cases[i].merges, -1, NULL));
      g_assert_null (ebb_bpe_tokenizer_new (vocab, merges, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
      g_test_message ("%s", error->message);
      g_assert_nonnull (strstr (error->message, cases[i].message));
      g_assert_null (strchr (error->message, '\n'));
    }
  g_remove (vocab);
  g_remove (merges);
  g_rmdir (folder);
}

static void
missing_files_and_bytes_are_named (void)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-tokenizer-XXXXXX", NULL);
  g_autofree char *vocab = g_build_filename (folder, "vocab.json", NULL);
  g_autofree char *merges = g_build_filename (folder, "merges.txt", NULL);
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  g_autoptr (GError) error = NULL;
  gsize n;

  g_assert_null (ebb_bpe_tokenizer_new (vocab, merges, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, vocab));
  g_clear_error (&error);

  g_assert_true (g_file_set_contents (vocab, "{\"a\":0,\"aa\":1,\"b\":2}", -1, NULL));
  g_assert_true (g_file_set_contents (merges, "a a", -1, NULL));
  tokenizer = ebb_bpe_tokenizer_new (vocab, merges, &error);
  g_assert_no_error (error);
  g_assert_null (ebb_tokenizer_encode_text (tokenizer, "ab axb", &n, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_nonnull (strstr (error->message, "no token for byte 0x20, which the text has at 2"));
  g_remove (vocab);
  g_remove (merges);
  g_rmdir (folder);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/tokenizer/bytes-are-tokens", bytes_are_tokens);
  g_test_add_func ("/tokenizer/invalid-text-is-replaced-and-bytes-can-be-had",
                   invalid_text_is_replaced_and_bytes_can_be_had);
  g_test_add_func ("/tokenizer/unknown-tokens-are-refused", unknown_tokens_are_refused);
  g_test_add_func ("/tokenizer/bpe-equals-the-reference", bpe_equals_the_reference);
  g_test_add_func ("/tokenizer/bpe-takes-any-bytes", bpe_takes_any_bytes);
  g_test_add_func ("/tokenizer/bpe-knows-special-tokens", bpe_knows_special_tokens);
  g_test_add_func ("/tokenizer/bpe-of-a-long-word-ends", bpe_of_a_long_word_ends);
  g_test_add_func ("/tokenizer/parts-encode-as-the-whole", parts_encode_as_the_whole);
  g_test_add_func ("/tokenizer/bad-vocabularies-are-named", bad_vocabularies_are_named);
  g_test_add_func ("/tokenizer/missing-files-and-bytes-are-named", missing_files_and_bytes_are_named);
  return g_test_run ();
}
