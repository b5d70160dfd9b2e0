/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

/* Files of tokenizers that are wrong, hostile, or ask for what isn't there: each is refused in one line. */

static char *
write_folder (const char *name, const char *text)
{
  char *folder = g_dir_make_tmp ("ebb-tokenizer-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, name, NULL);

  g_assert_true (g_file_set_contents (path, text, -1, NULL));
  return folder;
}

static void
remove_folder (const char *folder)
{
  static const char *const names[] = { "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                       "chat_template.jinja" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autofree char *path = g_build_filename (folder, names[i], NULL);

      g_remove (path);
    }
  g_rmdir (folder);
}

static EbbTokenizer *
open_text (const char *text, GError **error)
{
  g_autofree char *folder = write_folder ("tokenizer.json", text);
  EbbTokenizer *tokenizer = ebb_tokenizer_open (folder, error);

  remove_folder (folder);
  return tokenizer;
}

#define BPE "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}"
#define SPLIT(pattern) \
  "{" BPE ", \"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": " pattern "}}"

typedef struct
{
  const char *text;
  int code;
  const char *message; /* part of it */
} BadFile;

static const BadFile bad_files[] = {
  { "", EBB_ERROR_FORMAT, "tokenizer.json: byte 0" },
  { "[]", EBB_ERROR_FORMAT, "tokenizer.json: it must be an object" },
  { "{}", EBB_ERROR_FORMAT, "tokenizer.json: model: it must be an object" },
  { "{\"version\": \"2.0\", " BPE "}", EBB_ERROR_NOT_SUPPORTED, "\"2.0\" is not supported: files of version 1.0 are" },
  { "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", EBB_ERROR_NOT_SUPPORTED,
    "tokenizer.json: model: \"Unigram\" is not supported: BPE and WordPiece are" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", EBB_ERROR_FORMAT, "the vocabulary is empty" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", EBB_ERROR_FORMAT,
    "the id 0 is there twice: of \"a\" and \"b\"" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"a\": 1}, \"merges\": []}}", EBB_ERROR_FORMAT, "twice" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 3000000000}, \"merges\": []}}", EBB_ERROR_FORMAT,
    "the id 3000000000 is too large for a vocabulary of 1 tokens" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}", EBB_ERROR_FORMAT, "0 or more" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", EBB_ERROR_FORMAT,
    "model: merge 0: the vocabulary has no token: \"aa\"" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [[\"a\", \"c\"]]}}", EBB_ERROR_FORMAT,
    "the vocabulary has no token: \"c\"" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]}}", EBB_ERROR_FORMAT,
    "a merge is two tokens with a blank between them: \"aa\"" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}}", EBB_ERROR_FORMAT,
    "a merge is two tokens" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}}}", EBB_ERROR_FORMAT, "the merges must be a list" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"dropout\": 0.5}}",
    EBB_ERROR_NOT_SUPPORTED, "a dropout of 0.5 is not supported" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}}",
    EBB_ERROR_NOT_SUPPORTED, "end_of_word_suffix is not supported" },
  { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], \"byte_fallback\": 1}}", EBB_ERROR_FORMAT,
    "byte_fallback must be true or false: \"1\"" },
  { "{" BPE ", \"normalizer\": {\"type\": \"Precompiled\"}}", EBB_ERROR_NOT_SUPPORTED,
    "normalizer: \"Precompiled\" is not supported: NFC, NFD," },
  { "{" BPE ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": \"a\", \"content\": \"\"}}", EBB_ERROR_FORMAT,
    "a pattern must be a Regex or a String" },
  { "{" BPE ", \"normalizer\": {\"type\": \"Sequence\"}}", EBB_ERROR_FORMAT, "normalizers must be a list" },
  { "{" BPE ", \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", EBB_ERROR_NOT_SUPPORTED,
    "pre_tokenizer: \"UnicodeScripts\" is not supported: ByteLevel, Split," },
  { "{" BPE ", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"xy\"}}", EBB_ERROR_FORMAT,
    "replacement must be one character: \"xy\"" },
  { "{" BPE ", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}}", EBB_ERROR_FORMAT,
    "prepend_scheme must be one of first, never, always: \"last\"" },
  { "{" BPE ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, "
    "{\"type\": \"Digits\"}]}}",
    EBB_ERROR_NOT_SUPPORTED, "Digits behind ByteLevel is not supported" },
  { SPLIT ("{\"Regex\": \"(a\"}"), EBB_ERROR_FORMAT, "the expression \"(a\": missing closing parenthesis" },
  { SPLIT ("{\"Regex\": \"\"}"), EBB_ERROR_FORMAT, "an expression of 0 bytes" },
  { SPLIT ("{\"Regex\": \"(?<name>a)\"}"), EBB_ERROR_NOT_SUPPORTED, "\"(?<\" in it is not supported" },
  { SPLIT ("{\"Regex\": \"[a&&b]\"}"), EBB_ERROR_NOT_SUPPORTED, "\"&&\" inside a class is not supported" },
  { SPLIT ("{\"Regex\": \"[a[b]]\"}"), EBB_ERROR_NOT_SUPPORTED, "\"[\" inside a class is not supported" },
  { SPLIT ("{\"Regex\": \"a\\\\bc\"}"), EBB_ERROR_NOT_SUPPORTED, "in it is not supported" },
  { SPLIT ("{\"Regex\": \"(*LIMIT_MATCH=9)a\"}"), EBB_ERROR_NOT_SUPPORTED, "in it is not supported" },
  { SPLIT ("{\"Regex\": \"a{2}+\"}"), EBB_ERROR_NOT_SUPPORTED, "in it is not supported" },
  { SPLIT ("{\"Regex\": \"[a\"}"), EBB_ERROR_NOT_SUPPORTED, "is a class without an end" },
  { SPLIT ("{\"Regex\": \"a\\\\\"}"), EBB_ERROR_NOT_SUPPORTED, "in it is not supported" },
  { SPLIT ("{\"Regex\": \"((((a{250}){250}){250}){250})\"}"), EBB_ERROR_FORMAT, "regular expression is too" },
  { SPLIT ("{\"Regex\": \"(?i:[a\\\\u00df])\"}"), EBB_ERROR_NOT_SUPPORTED,
    "\"\\\\u00df\" in a class that ignores case is not supported" },
  { SPLIT ("{\"Regex\": \"(?<=a{200}a{100})b\"}"), EBB_ERROR_NOT_SUPPORTED,
    "looks 300 characters back: at most 255 are supported" },
  { SPLIT ("{}"), EBB_ERROR_FORMAT, "a pattern must be a Regex or a String" },
  { "{" BPE ", \"decoder\": {\"type\": \"CTC\"}}", EBB_ERROR_NOT_SUPPORTED, "decoder: \"CTC\" is not supported" },
  { "{" BPE ", \"decoder\": {\"type\": \"Strip\", \"start\": -1}}", EBB_ERROR_FORMAT, "start must be an integer of 0" },
  { "{" BPE ", \"added_tokens\": [{\"id\": 0, \"content\": \"b\"}]}", EBB_ERROR_FORMAT,
    "added_tokens: \"b\" has the id 0, which \"a\" has too" },
  { "{" BPE ", \"added_tokens\": [{\"id\": 3, \"content\": \"b\"}]}", EBB_ERROR_FORMAT,
    "added_tokens: \"b\" is there twice, or has another id in the vocabulary" },
  { "{" BPE ", \"added_tokens\": [{\"id\": 3, \"content\": \"x\"}, {\"id\": 3, \"content\": \"y\"}]}", EBB_ERROR_FORMAT,
    "added_tokens: \"y\" has the id 3, which \"x\" has too" },
  { "{" BPE ", \"added_tokens\": [{\"id\": 2000000000, \"content\": \"x\"}]}", EBB_ERROR_FORMAT, "is too large" },
  { "{" BPE ", \"added_tokens\": [{\"content\": \"x\"}]}", EBB_ERROR_FORMAT, "needs a content and an id" },
  { "{" BPE ", \"added_tokens\": {}}", EBB_ERROR_FORMAT, "added_tokens must be a list" },
  { "{" BPE ", \"post_processor\": {\"type\": \"Other\"}}", EBB_ERROR_NOT_SUPPORTED,
    "post_processor: \"Other\" is not" },
  { "{" BPE ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0], \"sep\": [\"x\", 9]}}",
    EBB_ERROR_FORMAT, "must have an id of the vocabulary: \"9\"" },
  { "{" BPE
    ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}], "
    "\"special_tokens\": {}}}",
    EBB_ERROR_FORMAT, "special_tokens lack ids" },
};

static void
bad_files_are_refused_in_one_line (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (bad_files); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_null (open_text (bad_files[i].text, &error));
      g_test_message ("%s: %s", bad_files[i].text, error->message);
      g_assert_error (error, EBB_ERROR, bad_files[i].code);
      g_assert_nonnull (strstr (error->message, bad_files[i].message));
      g_assert_null (strchr (error->message, '\n'));
    }
}

static void
missing_files_are_named (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_tokenizer_open ("/nowhere", &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_IO);
  g_assert_nonnull (strstr (error->message, "there is no folder /nowhere"));
}

static void
assert_bad_setting (const char *name, const char *text, const char *message)
{
  g_autofree char *folder = write_folder ("tokenizer.json", "{" BPE "}");
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autoptr (GError) error = NULL;

  g_assert_true (g_file_set_contents (path, text, -1, NULL));
  g_assert_null (ebb_tokenizer_open (folder, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_test_message ("%s", error->message);
  g_assert_nonnull (strstr (error->message, message));
  remove_folder (folder);
}

static void
bad_settings_are_named (void)
{
  assert_bad_setting ("tokenizer_config.json", "{", "tokenizer_config.json: byte 1");
  assert_bad_setting ("tokenizer_config.json", "{\"add_bos_token\": 3}",
                      "tokenizer_config.json: add_bos_token must be true or false: \"3\"");
  assert_bad_setting ("special_tokens_map.json", "", "special_tokens_map.json: byte 0");
  assert_bad_setting ("chat_template.jinja", "a\xff", "chat_template.jinja: not UTF-8");
}

/* Settings that this library has no use for are named, and BERT's frame stays. */
static void
settings_without_effect_are_named (void)
{
  static const char *const settings[][2] = {
    { "{\"bos_token\": \"<s>\", \"padding_side\": \"right\", \"eos_token\": \"b\"}",
      "*bos_token: \"<s>\" is no token of tokenizer.json" },
    { "{\"added_tokens_decoder\": {\"7\": {\"content\": \"<x>\"}, \"0\": {\"content\": \"a\"}, \"8\": {\"content\": "
      "\"<y>\"}}}",
      "*added_tokens_decoder: \"<x>\" and 1 more are no tokens of tokenizer.json" },
    { "{\"additional_special_tokens\": [\"a\", \"<z>\"]}",
      "*additional_special_tokens: \"<z>\" is no token of tokenizer.json" },
    { "{\"extra_special_tokens\": {\"image\": \"<i>\"}}", "*extra_special_tokens: \"<i>\" is no token of *" },
    { "{\"padding_side\": \"left\", \"truncation_side\": \"left\", \"split_special_tokens\": true, "
      "\"clean_up_tokenization_spaces\": true}",
      "*padding_side is left: *; truncation_side is left: *; split_special_tokens is true: *; "
      "clean_up_tokenization_spaces is true: *" },
  };

  for (guint i = 0; i <= G_N_ELEMENTS (settings); i++)
    {
      gboolean is_last = i == G_N_ELEMENTS (settings);
      g_autofree char *folder = write_folder ("tokenizer.json", "{" BPE "}");
      g_autofree char *path =
          g_build_filename (folder, is_last ? "added_tokens.json" : "tokenizer_config.json", NULL);
      g_autoptr (EbbTokenizer) tokenizer = NULL;
      g_autoptr (GError) error = NULL;

      g_assert_true (g_file_set_contents (path, is_last ? "{\"a\": 0, \"<t>\": 9}" : settings[i][0], -1, NULL));
      g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE,
                             is_last ? "*added_tokens.json: \"<t>\" is no token of *" : settings[i][1]);
      tokenizer = ebb_tokenizer_open (folder, &error);
      g_assert_no_error (error);
      g_test_assert_expected_messages ();
      g_remove (path);
      remove_folder (folder);
    }
}

/* What tokenizer.json and special_tokens_map.json say without effect is named, too. */
static void
settings_of_other_files_are_named (void)
{
  static const struct
  {
    const char *tokenizer, *config, *map, *note;
  } cases[] = {
    { "{" BPE "}", "{\"eos_token\": \"b\"}",
      "{\"bos_token\": \"<m>\", \"eos_token\": \"<n>\", \"additional_special_tokens\": [\"<o>\"]}",
      "*effect: bos_token: \"<m>\" is no token of tokenizer.json; additional_special_tokens: \"<o>\" is no *" },
    { "{" BPE ", \"padding\": {\"direction\": \"Left\"}, \"truncation\": {\"direction\": \"Left\"}}",
      "{\"truncation_side\": \"right\"}", "{}",
      "*effect: the direction of padding in tokenizer.json is Left: rows are padded on the right unless a call says "
      "otherwise" },
    { "{" BPE ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0], \"sep\": [\"b\", 1]}}",
      "{\"add_bos_token\": true, \"add_eos_token\": false, \"bos_token\": \"ab\", \"eos_token\": \"b\"}", "{}",
      "*effect: add_bos_token is true: the special tokens that tokenizer.json puts around a text stay; "
      "add_eos_token is false: the special tokens that *" },
    { "{" BPE "}", "{\"add_bos_token\": true}", "{}", "*effect: add_bos_token is true: there is no such token" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *folder = write_folder ("tokenizer.json", cases[i].tokenizer);
      g_autofree char *config = g_build_filename (folder, "tokenizer_config.json", NULL);
      g_autofree char *map = g_build_filename (folder, "special_tokens_map.json", NULL);
      g_autoptr (EbbTokenizer) tokenizer = NULL;
      g_autoptr (GError) error = NULL;

      g_assert_true (g_file_set_contents (config, cases[i].config, -1, NULL));
      g_assert_true (g_file_set_contents (map, cases[i].map, -1, NULL));
      g_test_expect_message ("Ebb", G_LOG_LEVEL_MESSAGE, cases[i].note);
      tokenizer = ebb_tokenizer_open (folder, &error);
      g_assert_no_error (error);
      g_test_assert_expected_messages ();
      remove_folder (folder);
    }
}

static void
frames_of_bert_stay (void)
{
  g_autofree char *folder = write_folder (
      "tokenizer.json", "{" BPE ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0], "
                        "\"sep\": [\"b\", 1]}}");
  g_autofree char *path = g_build_filename (folder, "tokenizer_config.json", NULL);
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree gint64 *tokens = NULL;
  gsize n;

  g_assert_true (g_file_set_contents (path, "{\"add_bos_token\": false, \"cls_token\": \"a\"}", -1, NULL));
  tokenizer = ebb_tokenizer_open (folder, &error);
  g_assert_no_error (error);
  remove_folder (folder);
  tokens = ebb_tokenizer_encode_text_full (tokenizer, "ab", TRUE, &n, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (n, ==, 3);
  g_assert_cmpint (tokens[0], ==, 0);
  g_assert_cmpint (tokens[2], ==, 1);
}

/* Text that can't be encoded is refused, too: nothing is left out in silence. */
static void
characters_without_a_token_are_named (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer = open_text ("{" BPE "}", &error);
  gsize n;

  g_assert_no_error (error);
  g_assert_null (ebb_tokenizer_encode_text (tokenizer, "abx", &n, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_nonnull (strstr (error->message,
                            "has no token for U+0078 and none for the unknown, which the text has at 2"));
}

/* An expression that tries all ways to split a word: it is given up, not waited for. */
static void
expressions_without_end_are_given_up (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer = open_text (SPLIT ("{\"Regex\": \"(?:a|a|aa)+[bc]\"}"), &error);
  g_autofree char *text = g_strnfill (4000, 'a');
  gsize n;

  g_assert_no_error (error);
  g_assert_null (ebb_tokenizer_encode_text (tokenizer, text, &n, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED);
  g_assert_nonnull (strstr (error->message, "gives up at byte 0 of the text"));
  g_assert_null (strchr (error->message, '\n'));
}

/* The same for many short matches, each of which is found in time. A text of long runs is none of these. */
static void
expressions_that_are_slow_everywhere_are_given_up (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) slow = open_text (SPLIT ("{\"Regex\": \"(?:a|a)+[cd]\"}"), &error);
  g_autoptr (EbbTokenizer) usual = open_text (SPLIT ("{\"Regex\": \"b+(?!a)|b+|a+\"}"), &error);
  g_autoptr (GString) text = g_string_new (NULL);
  g_autofree gint64 *tokens = NULL;
  g_autofree gint64 *runs = NULL;
  gsize n;

  g_assert_no_error (error);
  for (int i = 0; i < 5000; i++)
    g_string_append (text, "aaaaaaaaaaaaaaaaaaaab");
  g_assert_null (ebb_tokenizer_encode_text (slow, text->str, &n, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "gives up at byte", "more than 50000000 steps");
  g_assert_null (strchr (error->message, '\n'));
  g_clear_error (&error);
  /* Another text may take as many. */
  tokens = ebb_tokenizer_encode_text (slow, "aaaaaaaaaaaaaaaab", &n, &error);
  g_assert_no_error (error);
  for (gsize i = 0; i < text->len; i++)
    text->str[i] = i % 20000 == 0 ? 'a' : 'b';
  runs = ebb_tokenizer_encode_text (usual, text->str, &n, &error);
  g_assert_no_error (error);
}

/* The same for scans, which machine code doesn't count: of a line by each of its characters, and by each step inside of
 * one match. */
static void
expressions_that_scan_again_are_given_up (void)
{
  static const char *const expressions[] = { "a(?=.*$)", "a(?=.*+[bc])", "(?:a(?=.*$))*c",
                                             "a(?=(?:a|b)*+$)", "a(?=(?:a{2,60000})c)", "a(?<!c.{200})(?=.*$)" };
  g_autofree char *text = g_strnfill (100000, 'a');
  gsize n;

  for (guint i = 0; i < G_N_ELEMENTS (expressions); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *json = g_strdup_printf (SPLIT ("{\"Regex\": \"%s\"}"), expressions[i]);
      g_autoptr (EbbTokenizer) tokenizer = open_text (json, &error);

      g_assert_no_error (error);
      g_test_message ("%s", expressions[i]);
      g_assert_null (ebb_tokenizer_encode_text (tokenizer, text, &n, &error));
      test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "gives up at byte", "more than 50000000 steps");
    }
}

static void
expressions_that_repeat_too_often_are_refused (void)
{
  static const char *const expressions[] = { "a{60000}", "(?:ab){251}", "[ab]{300,400}" };

  for (guint i = 0; i < G_N_ELEMENTS (expressions); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *json = g_strdup_printf (SPLIT ("{\"Regex\": \"%s\"}"), expressions[i]);

      g_assert_null (open_text (json, &error));
      g_assert_nonnull (error);
      g_assert_nonnull (strstr (error->message, "repeats more than 250 times"));
    }
}

/* A text whose last character reaches over the end of a window: nothing behind the text is read. */
static void
windows_end_with_the_text (void)
{
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbTokenizer) tokenizer = open_text (SPLIT ("{\"Regex\": \"a+b\"}"), &failure);

  g_assert_no_error (failure);
  for (gsize n = 250; n < 340; n++)
    {
      char *text = g_malloc (n);
      g_autoptr (GBytes) bytes = NULL;
      g_autoptr (GError) error = NULL;

      memset (text, 'a', n);
      memcpy (text + n - 3, "\346\265\267", 3);
      bytes = g_bytes_new_take (text, n);
      g_assert_null (ebb_tokenizer_encode (tokenizer, bytes, &error)); /* the vocabulary lacks the last character */
      test_assert_error (error, EBB_ERROR_FORMAT, "no token for U+6D77");
    }
}

/* A text of long lines, words, and runs of blanks takes few steps for each byte. */
static void
long_matches_end (void)
{
  static const char *const expressions[] = { "[ab]+", ".+", "b+(?!a)|b+|a", "(?:b|a)*+", "b*?a|b+", "[^a]*a|b+$" };
  g_autofree char *text = g_strnfill (1000000, 'b');

  for (gsize i = 0; i < 1000000; i += 250000)
    text[i] = 'a';
  for (guint i = 0; i < G_N_ELEMENTS (expressions); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *json = g_strdup_printf (SPLIT ("{\"Regex\": \"%s\"}"), expressions[i]);
      g_autoptr (EbbTokenizer) tokenizer = open_text (json, &error);
      g_autofree gint64 *tokens = NULL;
      gsize n;

      g_assert_no_error (error);
      tokens = ebb_tokenizer_encode_text (tokenizer, text, &n, &error);
      g_assert_no_error (error);
      g_assert_cmpuint (n, >, 990000);
    }
}

/* -- expressions mean what they mean to Oniguruma ------------------------------------------------------------------ */

/* Words are matches, and each word is one token. */
#define MATCHES(expression)                                                                       \
  "{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"?\", \"max_input_chars_per_word\": 1, " \
  "\"continuing_subword_prefix\": \"##\", \"vocab\": {\"?\": 0}}, \"pre_tokenizer\": {\"type\": " \
  "\"Split\", \"behavior\": \"Removed\", \"invert\": true, \"pattern\": {\"Regex\": \"" expression "\"}}}"

/* The results are those of tokenizers 0.23. */
static void
expressions_find_what_they_find_in_tokenizers (void)
{
  static const struct
  {
    const char *expression, *text;
    gsize n_matches;
  } cases[] = {
    { "\\\\p{Han}", "你。々〇「ー", 3 }, /* not the marks that Han is written with */
    { "\\\\p{Han}+", "你好。世界", 2 },
    { "[\\\\p{Han}]", "你。々〇「ー", 3 },
    { "\\\\P{Han}", "你。々〇「ー", 3 },
    { "\\\\p{^Han}", "你。々〇「ー", 3 },
    { "\\\\p{Hiragana}", "あー゠。、ゝ", 2 },
    { "\\\\p{Katakana}", "アー゠。・ヽ", 2 },
    { "\\\\p{Devanagari}", "क।॥०\xe0\xa5\x91", 2 },
    { "\\\\p{Common}", "।ーa1", 3 },
    { "\\\\w", "²³¹¼½¾_a·", 8 },
    { "[\\\\w]", "²³¹¼½¾_a·", 2 },
    { "\\\\W", "²³¹¼½¾_a·", 1 },
    { "(?i:ß)", "ssSSßẞs", 4 },
    { "(?i)ß+", "ssSSßẞs", 1 },
    { "(?i:\\\\u00df|\\\\x{149})x", "SSx ʼNx ss", 2 },
    { "(?i:'ss)", "'ß 'SS 's", 2 },
    { "(?i:ss+)", "ß ssS", 1 },
    { "(?i:ffi)", "ﬃ FFI ﬀi", 2 },
    { "(?i:(?-i:ß)ß)", "ssß ßss", 1 },
    { "(?i:\\\\p{Lu})", "aBc", 1 },
    { "(?i:[^ß])", "ss", 2 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autofree char *json = g_strdup_printf (MATCHES ("%s"), cases[i].expression);
      g_autoptr (EbbTokenizer) tokenizer = open_text (json, &error);
      g_autofree gint64 *tokens = NULL;
      gsize n;

      g_assert_no_error (error);
      tokens = ebb_tokenizer_encode_text (tokenizer, cases[i].text, &n, &error);
      g_assert_no_error (error);
      g_test_message ("%s in %s", cases[i].expression, cases[i].text);
      g_assert_cmpuint (n, ==, cases[i].n_matches);
    }
}

/* Files that would take hours or all memory are refused when the file is opened or when a text is encoded. */
static void
hostile_files_end_in_one_line (void)
{
  g_autofree char *many = g_strnfill (10000, 'a');
  g_autoptr (GString) replaces = g_string_new (NULL);
  g_autoptr (GString) parts = g_string_new (NULL);
  g_autofree char *grown = NULL;
  g_autofree char *normalized = NULL;
  g_autofree char *prepended = NULL;
  g_autofree char *added = g_strdup_printf ("{" BPE ", \"added_tokens\": [{\"id\": 3, \"content\": \"%s!\"}]}", many);
  g_autofree char *framed = NULL;
  g_autoptr (EbbTokenizer) tokenizer = NULL;
  GError *error = NULL;
  gsize n;

  g_assert_null (open_text (added, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "added_tokens: a token of 10001 bytes: at most 1024 are allowed");
  g_clear_error (&error);

  for (int i = 0; i < 4; i++)
    g_string_append_printf (replaces,
                            "%s{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"%s\"}",
                            i > 0 ? ", " : "", many);
  grown = g_strdup_printf ("{" BPE ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s]}}", replaces->str);
  tokenizer = open_text (grown, &error);
  g_assert_no_error (error);
  g_assert_null (ebb_tokenizer_encode_text (tokenizer, "ab", &n, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "tokenizer.json: replacing \"a\" makes more than 65600 bytes of");
  g_clear_error (&error);
  g_clear_object (&tokenizer);

  normalized = g_strdup_printf ("{" BPE ", \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [%s]}, "
                                "\"added_tokens\": [{\"id\": 3, \"content\": \"xa\", \"normalized\": true}]}",
                                replaces->str);
  g_assert_null (open_text (normalized, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "tokenizer.json: replacing \"a\" makes more than");
  g_clear_error (&error);

  /* Each part between added tokens gets it. */
  prepended = g_strdup_printf ("{" BPE ", \"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"%s\"}, "
                               "\"added_tokens\": [{\"id\": 3, \"content\": \"x\"}]}",
                               many);
  tokenizer = open_text (prepended, &error);
  g_assert_no_error (error);
  g_free (ebb_tokenizer_encode_text (tokenizer, "axaxa", &n, &error));
  g_assert_no_error (error);
  g_assert_null (ebb_tokenizer_encode_text (tokenizer, "axaxaxaxaxaxaxaxa", &n, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "tokenizer.json: the normalizers make more than");
  g_clear_error (&error);

  for (int i = 0; i < 4000; i++)
    g_string_append (parts, "{\"Sequence\": {\"id\": \"A\"}}, ");
  g_string_append (parts, "{\"Sequence\": {\"id\": \"A\"}}");
  framed = g_strdup_printf ("{" BPE ", \"post_processor\": {\"type\": \"Sequence\", \"processors\": ["
                            "{\"type\": \"TemplateProcessing\", \"single\": [%s]}, "
                            "{\"type\": \"TemplateProcessing\", \"single\": [%s]}]}}",
                            parts->str, parts->str);
  g_assert_null (open_text (framed, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, "post_processor: a template of more than 4096 tokens");
  g_clear_error (&error);
}

/* A token without a content leaves nothing behind: the next one's blanks are not its own. */
static void
empty_tokens_are_passed_over (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer =
      open_text ("{" BPE ", \"added_tokens\": [{\"id\": 3, \"content\": \"\", \"special\": true}, "
                 "{\"id\": 4, \"content\": \"x\"}]}",
                 &error);

  g_assert_no_error (error);
  g_assert_false (ebb_tokenizer_is_special (tokenizer, 4));
}

#define ADDED                                                                                                  \
  "\"added_tokens\": [{\"id\": 4, \"content\": \"<l>\", \"lstrip\": true}, {\"id\": 5, \"content\": \"<r>\", " \
  "\"rstrip\": true}, {\"id\": 6, \"content\": \"ab\", \"single_word\": true}]"
#define UNKNOWN(fused)                                                         \
  "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": " fused \
  ", \"vocab\": {\"a\": 0, \"b\": 1, \"?\": 2, \" \": 3}, \"merges\": []}, " ADDED "}"

/* The tokens, a digit each. */
static void
assert_digits (EbbTokenizer *tokenizer, const char *text, const char *digits)
{
  g_autoptr (GError) error = NULL;
  gsize n;
  g_autofree gint64 *tokens = ebb_tokenizer_encode_text (tokenizer, text, &n, &error);
  g_autoptr (GString) got = g_string_new (NULL);

  g_assert_no_error (error);
  for (gsize i = 0; i < n; i++)
    g_string_append_printf (got, "%" G_GINT64_FORMAT, tokens[i]);
  g_assert_cmpstr (got->str, ==, digits);
}

/* The results are those of tokenizers 0.23. */
static void
added_and_unknown_tokens_follow_their_settings (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) fused = open_text (UNKNOWN ("true"), &error);
  g_autoptr (EbbTokenizer) single = open_text (UNKNOWN ("false"), &error);

  g_assert_no_error (error);
  assert_digits (fused, "axyb z", "02132");
  assert_digits (single, "axyb z", "022132");
  assert_digits (fused, "a  <l> b <r>  a<l>", "0431"
                                              "3504");
  assert_digits (fused, "ab aab ab-ab", "63"
                                        "001"
                                        "3"
                                        "626");
}

#define FIRST(normalizer)                                                                                   \
  "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"\xe2\x96\x81\": 2}, \"merges\": []}, " \
  "\"normalizer\": " normalizer ", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"prepend_scheme\": \"first\"}}"

/* A text whose first character a normalizer takes away does not begin with a blank: as tokenizers 0.23 has it. */
static void
a_normalizer_may_take_the_first_character (void)
{
  static const char *const cases[][2] = {
    { FIRST ("{\"type\": \"StripAccents\"}"), "\xcc\x81" },
    { FIRST ("{\"type\": \"BertNormalizer\"}"), "\xcc\x81" },
    { FIRST ("{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"^ +\"}, \"content\": \"\"}"), "  " },
    { FIRST ("{\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}, \"content\": \"\"}"), "x" },
    { FIRST ("{\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": false}"), " \t" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTokenizer) tokenizer = open_text (cases[i][0], &error);
      g_autofree char *text = g_strconcat (cases[i][1], "ab", NULL);

      g_assert_no_error (error);
      assert_digits (tokenizer, text, "01");
      assert_digits (tokenizer, "ab", "201");
    }
}

/* A token of a blank that takes the blanks beside it stands once for all of them. */
static void
blanks_are_taken_once (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer =
      open_text ("{" BPE ", \"added_tokens\": [{\"id\": 3, \"content\": \" \", \"lstrip\": true, \"rstrip\": true}]}",
                 &error);
  g_autoptr (EbbTokenizer) right =
      open_text ("{" BPE ", \"added_tokens\": [{\"id\": 3, \"content\": \" \", \"rstrip\": true}]}", &error);

  g_assert_no_error (error);
  assert_digits (tokenizer, "a   b \t a", "03130");
  assert_digits (right, "a  b", "0331");
}

/* Numbers that a vocabulary leaves out stand for no text, and are no tokens to encode to. */
static void
holes_stand_for_nothing (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTokenizer) tokenizer =
      open_text ("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 3}, \"merges\": []}}", &error);
  const gint64 tokens[] = { 0, 1, 2, 3 };
  g_autofree char *text = NULL;

  g_assert_no_error (error);
  g_assert_cmpuint (ebb_tokenizer_get_vocab_size (tokenizer), ==, 4);
  g_assert_null (ebb_tokenizer_get_token (tokenizer, 1));
  text = ebb_tokenizer_decode_text (tokenizer, tokens, 4, &error);
  g_assert_no_error (error);
  g_assert_cmpstr (text, ==, "a b");
  g_assert_null (ebb_tokenizer_decode_text (tokenizer, &(gint64){ 4 }, 1, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_INDEX);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/tokenizer-files/bad-files-are-refused-in-one-line", bad_files_are_refused_in_one_line);
  g_test_add_func ("/tokenizer-files/missing-files-are-named", missing_files_are_named);
  g_test_add_func ("/tokenizer-files/bad-settings-are-named", bad_settings_are_named);
  g_test_add_func ("/tokenizer-files/settings-without-effect-are-named", settings_without_effect_are_named);
  g_test_add_func ("/tokenizer-files/settings-of-other-files-are-named", settings_of_other_files_are_named);
  g_test_add_func ("/tokenizer-files/frames-of-bert-stay", frames_of_bert_stay);
  g_test_add_func ("/tokenizer-files/characters-without-a-token-are-named", characters_without_a_token_are_named);
  g_test_add_func ("/tokenizer-files/expressions-without-end-are-given-up", expressions_without_end_are_given_up);
  g_test_add_func ("/tokenizer-files/expressions-without-end-are-given-up/everywhere",
                   expressions_that_are_slow_everywhere_are_given_up);
  g_test_add_func ("/tokenizer-files/expressions-without-end-are-given-up/scans",
                   expressions_that_scan_again_are_given_up);
  g_test_add_func ("/tokenizer-files/expressions-that-repeat-too-often-are-refused",
                   expressions_that_repeat_too_often_are_refused);
  g_test_add_func ("/tokenizer-files/windows-end-with-the-text", windows_end_with_the_text);
  g_test_add_func ("/tokenizer-files/long-matches-end", long_matches_end);
  g_test_add_func ("/tokenizer-files/expressions-find-what-they-find-in-tokenizers",
                   expressions_find_what_they_find_in_tokenizers);
  g_test_add_func ("/tokenizer-files/hostile-files-end-in-one-line", hostile_files_end_in_one_line);
  g_test_add_func ("/tokenizer-files/empty-tokens-are-passed-over", empty_tokens_are_passed_over);
  g_test_add_func ("/tokenizer-files/added-and-unknown-tokens-follow-their-settings",
                   added_and_unknown_tokens_follow_their_settings);
  g_test_add_func ("/tokenizer-files/a-normalizer-may-take-the-first-character",
                   a_normalizer_may_take_the_first_character);
  g_test_add_func ("/tokenizer-files/blanks-are-taken-once", blanks_are_taken_once);
  g_test_add_func ("/tokenizer-files/holes-stand-for-nothing", holes_stand_for_nothing);
  return g_test_run ();
}
