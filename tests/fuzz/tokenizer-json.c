/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

/* A tokenizer.json, damaged: what is taken encodes and decodes without harm, or fails in one line. */

static const char *const files[] = {
  "{\"version\": \"1.0\", \"truncation\": null, \"added_tokens\": [{\"id\": 9, \"content\": \"<s>\", \"special"
  "\": true, \"normalized\": false, \"lstrip\": true, \"rstrip\": true, \"single_word\": false}, {\"id\": 10, "
  "\"content\": \"A b\", \"normalized\": true, \"single_word\": true}], \"normalizer\": {\"type\": \"Sequence\""
  ", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"\xe2\x96\x81\"}, {\"type\": \"Replace\", \"patter"
  "n\": {\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}, {\"type\": \"NFKC\"}, {\"type\": \"Lowercase\"}]},"
  " \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[^\\\\s\\\\p{L}]+|\\\\w{1,3}\"}, \"beha"
  "vior\": \"MergedWithNext\", \"invert\": false}, \"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"byte_"
  "fallback\": true, \"fuse_unk\": true, \"ignore_merges\": false, \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, "
  "\"\xe2\x96\x81\": 3, \"\xe2\x96\x81"
  "a\": 4, \"?\": 5, \"<0x0A>\": 6, \"<0xC3>\": 7, \"bab\": 8}, \"merges\": [[\"a\", \"b\"], [\"\xe2\x96\x81\","
  " \"a\"], [\"b\", \"ab\"]]}, \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialTo"
  "ken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [9]}}},"
  " \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \""
  "\xe2\x96\x81\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip"
  "\", \"content\": \" \", \"start\": 1, \"stop\": 1}]}}",
  "{\"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true, \"handle_chinese_chars\": true, \"stri"
  "p_accents\": null, \"lowercase\": true}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}, \"model\": {\""
  "type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", \"max_input_chars_pe"
  "r_word\": 100, \"vocab\": {\"[UNK]\": 0, \"a\": 1, \"##b\": 2, \"##ab\": 3, \"b\": 4, \"[CLS]\": 5}}, \"deco"
  "der\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, \"post_processor\": {\"type\": \"Be"
  "rtProcessing\", \"cls\": [\"[CLS]\", 5], \"sep\": [\"[UNK]\", 0]}}",
  "{\"normalizer\": {\"type\": \"NFC\"}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"typ"
  "e\": \"Digits\", \"individual_digits\": true}, {\"type\": \"Punctuation\", \"behavior\": \"Contiguous\"}, {"
  "\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}]}, \"model\": {\"type\": \"BPE\", "
  "\"vocab\": {\"a\": 0, \"b\": 1, \"\xc4\xa0\": 2, \"\xc4\xa0"
  "a\": 3, \"\xc4\x8a\": 4, \"\xc3\x83\": 5}, \"merges\": [\"\xc4\xa0 a\"], \"ignore_merges\": true}, \"decoder"
  "\": {\"type\": \"ByteLevel\"}, \"added_tokens\": [{\"id\": 6, \"content\": \"<e>\"}]}",
};

/* The folder's tokenizer.json is a link to a file in memory. */
static FuzzFile file;
static char *folder;

static gboolean
is_good (GError **error)
{
  gboolean is_one_line = *error == NULL || ((*error)->domain == EBB_ERROR && strchr ((*error)->message, '\n') == NULL);

  g_clear_error (error);
  return is_one_line;
}

/* Any text, mostly of what the vocabularies know. */
static gboolean
use (EbbTokenizer *tokenizer)
{
  static const char *const parts[] = { "a", "b", "ab", " ", "  ", "\n", "<s>", "A b", "\xc3\xa9", "a\xcc\x81", "1", ".",
                                       "\xff", "\xe6\xbc\xa2", "\xf0\x9f\x98\x80", "\xe2\x96\x81", "<e>", "B" };
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GError) error = NULL;
  g_autofree gint64 *tokens = NULL;
  g_autofree char *back = NULL;
  g_autoptr (EbbTokenDecoder) decoder = ebb_token_decoder_new (tokenizer, fuzz_draw (2) == 0);
  gsize n;

  for (guint i = fuzz_draw (20); i > 0; i--)
    g_string_append (text, parts[fuzz_draw (fuzz_draw (8) == 0 ? G_N_ELEMENTS (parts) : 8)]);
  tokens = ebb_tokenizer_encode_text_full (tokenizer, text->str, fuzz_draw (2) == 0, &n, &error);
  if (!is_good (&error))
    return FALSE;
  for (gsize i = 0; i < n; i++)
    {
      g_autofree char *part = ebb_token_decoder_push (decoder, tokens[i], &error);

      if (!is_good (&error) || (part != NULL && !g_utf8_validate (part, -1, NULL)))
        return FALSE;
    }
  back = ebb_tokenizer_decode_text_full (tokenizer, tokens, n, fuzz_draw (2) == 0, &error);
  return is_good (&error) && (back == NULL || g_utf8_validate (back, -1, NULL));
}

static gboolean
try_case (GString *input, GError **error)
{
  g_autoptr (EbbTokenizer) tokenizer = NULL;

  g_string_append (input, files[fuzz_draw (G_N_ELEMENTS (files))]);
  if (fuzz_draw (8) > 0)
    fuzz_damage (input);
  fuzz_file_write (&file, input->str, input->len);
  tokenizer = ebb_tokenizer_open (folder, error);
  if (tokenizer == NULL)
    return FALSE;
  for (guint i = 0; i < 3; i++)
    if (!use (tokenizer))
      g_error ("a text is not encoded or decoded as it should be");
  return TRUE;
}

int
main (int argc, char **argv)
{
  g_autofree char *path = NULL;
  int status;

  fuzz_file_open (&file);
  folder = g_dir_make_tmp ("ebb-fuzz-XXXXXX", NULL);
  path = g_build_filename (folder, "tokenizer.json", NULL);
  if (symlink (file.path, path) != 0)
    g_error ("%s: no link can be made", path);
  status = fuzz_run (argc, argv, "tokenizer-json", 6000, try_case);
  g_remove (path);
  g_rmdir (folder);
  g_free (folder);
  fuzz_file_close (&file);
  return status;
}
