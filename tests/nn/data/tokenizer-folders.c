/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"

#include <glib/gstdio.h>
#include <json-glib/json-glib.h>
#include <string.h>

/* Tokenizers of models' folders: tests/fixtures/make_tokenizers.py trained them and wrote what PyPI's tokenizers makes
 * of some texts. */

static const char *const families[] = { "gpt2", "llama3", "qwen", "llama2", "mistral", "gemma", "bert-uncased",
                                        "bert-cased" };

static EbbTokenizer *
open_family (const char *name)
{
  g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", name, NULL);
  g_autoptr (GError) error = NULL;
  EbbTokenizer *tokenizer = ebb_tokenizer_open (folder, &error);

  g_assert_no_error (error);
  return tokenizer;
}

static JsonObject *
read_expected (JsonParser *parser, const char *name)
{
  g_autofree char *path = g_test_build_filename (G_TEST_DIST, "fixtures", "tokenizers", name, "expected.json", NULL);
  g_autoptr (GError) error = NULL;

  json_parser_load_from_file (parser, path, &error);
  g_assert_no_error (error);
  return json_node_get_object (json_parser_get_root (parser));
}

static gint64 *
get_tokens (JsonArray *array, gsize *n)
{
  gint64 *tokens = g_new (gint64, json_array_get_length (array) + 1);

  *n = json_array_get_length (array);
  for (guint i = 0; i < *n; i++)
    tokens[i] = json_array_get_int_element (array, i);
  return tokens;
}

static void
assert_tokens (const char *text, const gint64 *got, gsize n_got, const gint64 *wanted, gsize n_wanted)
{
  g_test_message ("%s", text);
  g_assert_cmpmem (got, n_got * sizeof *got, wanted, n_wanted * sizeof *wanted);
}

/* The parts of a text that a decoder gives; every two tokens it is checked that they are UTF-8. */
static char *
decode_in_parts (EbbTokenizer *tokenizer, const gint64 *tokens, gsize n, gboolean skip)
{
  g_autoptr (EbbTokenDecoder) decoder = ebb_token_decoder_new (tokenizer, skip);
  g_autoptr (GError) error = NULL;
  GString *text = g_string_new (NULL);

  for (gsize i = 0; i <= n; i++)
    {
      g_autofree char *part = i < n ? ebb_token_decoder_push (decoder, tokens[i], &error)
                                    : ebb_token_decoder_finish (decoder, &error);

      g_assert_no_error (error);
      g_assert_true (g_utf8_validate (part, -1, NULL));
      g_string_append (text, part);
    }
  return g_string_free (text, FALSE);
}

static void
check_case (EbbTokenizer *tokenizer, JsonArray *item, const gint64 *frame, gsize n_frame, gsize frame_at)
{
  const char *text = json_array_get_string_element (item, 0);
  const char *back = json_array_get_length (item) > 2 ? json_array_get_string_element (item, 2) : text;
  g_autoptr (GError) error = NULL;
  gsize n, n_wanted, n_framed;
  g_autofree gint64 *wanted = get_tokens (json_array_get_array_element (item, 1), &n_wanted);
  g_autofree gint64 *tokens = ebb_tokenizer_encode_text (tokenizer, text, &n, &error);
  g_autofree gint64 *framed = NULL;
  g_autofree gint64 *wanted_framed = g_new (gint64, n_wanted + n_frame);
  g_autofree char *decoded = NULL;
  g_autofree char *parts = NULL;

  g_assert_no_error (error);
  assert_tokens (text, tokens, n, wanted, n_wanted);
  memcpy (wanted_framed, frame, frame_at * sizeof *frame);
  memcpy (wanted_framed + frame_at, wanted, n_wanted * sizeof *wanted);
  memcpy (wanted_framed + frame_at + n_wanted, frame + frame_at, (n_frame - frame_at) * sizeof *frame);
  framed = ebb_tokenizer_encode_text_full (tokenizer, text, TRUE, &n_framed, &error);
  g_assert_no_error (error);
  assert_tokens (text, framed, n_framed, wanted_framed, n_wanted + n_frame);
  decoded = ebb_tokenizer_decode_text_full (tokenizer, framed, n_framed, TRUE, &error);
  g_assert_no_error (error);
  g_assert_cmpstr (decoded, ==, back);
  parts = decode_in_parts (tokenizer, framed, n_framed, TRUE);
  g_assert_cmpstr (parts, ==, back);
}

static void
tokens_equal_the_reference (gconstpointer data)
{
  const char *name = data;
  g_autoptr (EbbTokenizer) tokenizer = open_family (name);
  g_autoptr (JsonParser) parser = json_parser_new ();
  JsonObject *expected = read_expected (parser, name);
  JsonArray *cases = json_object_get_array_member (expected, "cases");
  g_autoptr (GError) error = NULL;
  gsize n_frame, n_x, frame_at = 0;
  g_autofree gint64 *frame = get_tokens (json_object_get_array_member (expected, "framed"), &n_frame);
  g_autofree gint64 *x = ebb_tokenizer_encode_text (tokenizer, "x", &n_x, &error);

  /* What is expected is the frame around the tokens of "x": they are taken out. */
  g_assert_no_error (error);
  while (memcmp (frame + frame_at, x, n_x * sizeof *x) != 0)
    frame_at++;
  n_frame -= n_x;
  memmove (frame + frame_at, frame + frame_at + n_x, (n_frame - frame_at) * sizeof *frame);
  g_assert_cmpuint (json_array_get_length (cases), ==, 200);
  for (guint i = 0; i < json_array_get_length (cases); i++)
    check_case (tokenizer, json_array_get_array_element (cases, i), frame, n_frame, frame_at);
}

/* -- special tokens ------------------------------------------------------------------------------------------------ */

static void
assert_special (EbbTokenizer *tokenizer, EbbSpecialToken which, const char *spelling)
{
  gint64 token = ebb_tokenizer_get_special_token (tokenizer, which);
  g_autofree char *text = ebb_tokenizer_get_token (tokenizer, token);

  g_assert_cmpstr (text, ==, spelling);
  if (spelling != NULL)
    g_assert_true (ebb_tokenizer_is_special (tokenizer, token));
  if (spelling != NULL)
    g_assert_cmpint (ebb_tokenizer_find_token (tokenizer, spelling), ==, token);
}

static void
special_tokens_have_their_tasks (void)
{
  g_autoptr (EbbTokenizer) llama3 = open_family ("llama3");
  g_autoptr (EbbTokenizer) qwen = open_family ("qwen");
  g_autoptr (EbbTokenizer) bert = open_family ("bert-cased");
  g_autoptr (EbbTokenizer) bytes = ebb_byte_tokenizer_new ();

  assert_special (llama3, EBB_SPECIAL_TOKEN_BOS, "<|begin_of_text|>");
  assert_special (llama3, EBB_SPECIAL_TOKEN_EOS, "<|end_of_text|>");
  assert_special (llama3, EBB_SPECIAL_TOKEN_PAD, NULL);
  assert_special (qwen, EBB_SPECIAL_TOKEN_BOS, NULL);
  assert_special (qwen, EBB_SPECIAL_TOKEN_EOS, "<|im_end|>");
  assert_special (qwen, EBB_SPECIAL_TOKEN_PAD, "<|endoftext|>");
  assert_special (bert, EBB_SPECIAL_TOKEN_UNK, "[UNK]");
  assert_special (bert, EBB_SPECIAL_TOKEN_SEP, "[SEP]");
  assert_special (bert, EBB_SPECIAL_TOKEN_CLS, "[CLS]");
  assert_special (bert, EBB_SPECIAL_TOKEN_MASK, "[MASK]");
  assert_special (bytes, EBB_SPECIAL_TOKEN_EOS, NULL);
  g_assert_false (ebb_tokenizer_is_special (qwen, ebb_tokenizer_find_token (qwen, "<tool_call>")));
  g_assert_cmpint (ebb_tokenizer_find_token (qwen, "no such token"), ==, -1);
  g_assert_null (ebb_tokenizer_get_token (qwen, 1000000));
}

static void
chat_templates_are_found (void)
{
  g_autoptr (EbbTokenizer) llama3 = open_family ("llama3");
  g_autoptr (EbbTokenizer) qwen = open_family ("qwen");
  g_autoptr (EbbTokenizer) gpt2 = open_family ("gpt2");

  g_assert_nonnull (strstr (ebb_tokenizer_get_chat_template (llama3), "{% for message in messages %}"));
  g_assert_cmpstr (ebb_tokenizer_get_chat_template (qwen), ==, "yes");
  g_assert_null (ebb_tokenizer_get_chat_template (gpt2));
}

/* -- streams ------------------------------------------------------------------------------------------------------- */

/* A character that is spread over tokens comes with the last of them. */
static void
a_stream_gives_whole_characters (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (EbbTokenDecoder) decoder = ebb_token_decoder_new (tokenizer, FALSE);
  static const guint8 text[] = "a\xf0\x9f\x98\x80z\xe2\x82";
  static const char *const parts[] = { "a", "", "", "", "\xf0\x9f\x98\x80", "z", "", "" };
  g_autoptr (GError) error = NULL;
  g_autofree char *rest = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (parts); i++)
    {
      g_autofree char *part = ebb_token_decoder_push (decoder, text[i], &error);

      g_assert_no_error (error);
      g_assert_cmpstr (part, ==, parts[i]);
    }
  rest = ebb_token_decoder_finish (decoder, &error);
  g_assert_cmpstr (rest, ==, "\xef\xbf\xbd");
  g_assert_null (ebb_token_decoder_push (decoder, 256, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
}

/* Characters of tokens for bytes, too, before the run of such tokens ends; a new text begins without its blank. */
static void
a_stream_of_bytes_is_eager (void)
{
  g_autoptr (EbbTokenizer) tokenizer = open_family ("llama2");
  g_autoptr (EbbTokenDecoder) decoder = ebb_token_decoder_new (tokenizer, TRUE);
  static const char *const tokens[] = {
    "<s>", "\xe2\x96\x81t", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "<0xC3>", "</s>"
  };
  static const char *const parts[] = { "", "t", "", "", "", "\xf0\x9f\x98\x80", "", "" };
  g_autoptr (GError) error = NULL;

  for (guint round = 0; round < 2; round++)
    {
      g_autofree char *rest = NULL;

      for (guint i = 0; i < G_N_ELEMENTS (parts); i++)
        {
          gint64 token = ebb_tokenizer_find_token (tokenizer, tokens[i]);
          g_autofree char *part = ebb_token_decoder_push (decoder, token, &error);

          g_assert_no_error (error);
          g_assert_cmpstr (part, ==, parts[i]);
        }
      rest = ebb_token_decoder_finish (decoder, &error);
      g_assert_cmpstr (rest, ==, "\xef\xbf\xbd");
    }
}

/* -- bytes and cuts ------------------------------------------------------------------------------------------------ */

static void
byte_level_takes_any_bytes (void)
{
  static const char *const names[] = { "gpt2", "llama3", "qwen" };
  guint8 text[4096];
  guint32 state = 1;

  for (gsize i = 0; i < sizeof text; i++)
    {
      state = state * 1664525 + 1013904223;
      text[i] = (guint8) (state >> 24);
    }
  /* Characters that stand for bytes inside are text like any other. */
  memcpy (text + 1000, "\xf4\x8f\xbc\x81\xf4\x8f\xbf\xbf", 8);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbTokenizer) tokenizer = open_family (names[i]);
      g_autoptr (GBytes) bytes = g_bytes_new_static (text, sizeof text);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) tokens = ebb_tokenizer_encode (tokenizer, bytes, &error);
      g_autoptr (GBytes) back = tokens ? ebb_tokenizer_decode (tokenizer, tokens, &error) : NULL;

      g_assert_no_error (error);
      g_assert_cmpmem (g_bytes_get_data (back, NULL), g_bytes_get_size (back), text, sizeof text);
    }
}

static void
other_tokenizers_want_utf8 (void)
{
  static const char *const names[] = { "llama2", "mistral", "gemma", "bert-cased" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbTokenizer) tokenizer = open_family (names[i]);
      g_autoptr (GBytes) bytes = g_bytes_new_static ("ab\xc3(", 4);
      g_autoptr (GError) error = NULL;

      g_assert_null (ebb_tokenizer_encode (tokenizer, bytes, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
      g_assert_cmpstr (error->message, ==, "the text is not UTF-8 at byte 2: 0xc3");
    }
}

static gint64 *
encode_part (EbbTokenizer *tokenizer, const char *text, gsize begin, gsize end, gsize *n)
{
  g_autofree char *part = g_strndup (text + begin, end - begin);
  g_autoptr (GError) error = NULL;
  gint64 *tokens = ebb_tokenizer_encode_text (tokenizer, part, n, &error);

  g_assert_no_error (error);
  return tokens;
}

/* Wherever a text is cut, the tokens of both parts are those of the whole; some tokenizers know of no such place. */
static void
parts_encode_as_the_whole (void)
{
  static const struct
  {
    const char *name;
    gboolean can_be_cut;
  } cases[] = {
    { "gpt2", TRUE },
    { "llama3", TRUE },
    { "qwen", TRUE },
    { "llama2", FALSE },
    { "mistral", FALSE },
    { "gemma", FALSE },
    { "bert-uncased", TRUE },
  };
  const char *text =
      "the text\nthe tokens!\n\n  merges\n'sodd\nline?\n/path\n\tthe model\n 1\n2\nend 12\n345 [MASK]\nx \n";
  g_autoptr (GBytes) whole = g_bytes_new_static (text, strlen (text));

  for (guint c = 0; c < G_N_ELEMENTS (cases); c++)
    {
      g_autoptr (EbbTokenizer) tokenizer = open_family (cases[c].name);
      guint n_cuts = 0;
      gsize n_all;
      g_autofree gint64 *all = encode_part (tokenizer, text, 0, strlen (text), &n_all);

      for (gsize from = 0; from < strlen (text); from++)
        {
          gssize cut = ebb_tokenizer_find_cut (tokenizer, whole, from);
          gsize n_first, n_second;
          g_autofree gint64 *first = NULL;
          g_autofree gint64 *second = NULL;

          if (cut < 0)
            continue;
          n_cuts++;
          g_assert_cmpint (cut, >=, (gssize) from);
          first = encode_part (tokenizer, text, 0, (gsize) cut, &n_first);
          second = encode_part (tokenizer, text, (gsize) cut, strlen (text), &n_second);
          assert_tokens (cases[c].name, first, n_first, all, MIN (n_first, n_all));
          assert_tokens (cases[c].name, second, n_second, all + n_first, n_all - n_first);
        }
      g_assert_cmpint (n_cuts > 20, ==, cases[c].can_be_cut);
    }
}

/* A text without blanks or newlines, which no cache knows: merging must not be quadratic. */
static void
a_long_word_ends (void)
{
  const gsize size = 1 << 20;
  g_autofree char *text = g_malloc (size + 1);

  for (gsize i = 0; i < size; i++)
    text[i] = i % 3 ? 'a' : 'b';
  text[size] = '\0';
  for (guint i = 0; i < G_N_ELEMENTS (families); i++)
    {
      g_autoptr (EbbTokenizer) tokenizer = open_family (families[i]);
      gsize n;
      g_autofree gint64 *tokens = encode_part (tokenizer, text, 0, size, &n);

      g_assert_cmpuint (n, >, 0);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (families); i++)
    {
      g_autofree char *path = g_strdup_printf ("/tokenizer-folders/tokens-equal-the-reference/%s", families[i]);

      g_test_add_data_func (path, families[i], tokens_equal_the_reference);
    }
  g_test_add_func ("/tokenizer-folders/special-tokens-have-their-tasks", special_tokens_have_their_tasks);
  g_test_add_func ("/tokenizer-folders/chat-templates-are-found", chat_templates_are_found);
  g_test_add_func ("/tokenizer-folders/a-stream-gives-whole-characters", a_stream_gives_whole_characters);
  g_test_add_func ("/tokenizer-folders/a-stream-of-bytes-is-eager", a_stream_of_bytes_is_eager);
  g_test_add_func ("/tokenizer-folders/byte-level-takes-any-bytes", byte_level_takes_any_bytes);
  g_test_add_func ("/tokenizer-folders/other-tokenizers-want-utf8", other_tokenizers_want_utf8);
  g_test_add_func ("/tokenizer-folders/parts-encode-as-the-whole", parts_encode_as_the_whole);
  g_test_add_func ("/tokenizer-folders/a-long-word-ends", a_long_word_ends);
  return g_test_run ();
}
