/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/fuzz.h"

#include <string.h>

/* A vocabulary and its merges: with what is taken, texts become tokens that stand for the same bytes. */

static const char vocab[] = "{\"a\": 0, \"b\": 1, \"c\": 2, \"\xc4\xa0\": 3, \"ab\": 4, \"abc\": 5, \"\xc4\xa0"
                            "a\": 6, \"<|end|>\": 7, \"bb\": 8, \"\\u00e9\": 9, \"\xc4\x8a\": 10}";
static const char merges[] = "#version: 0.2\na b\nab c\n\xc4\xa0 a\nb b\n";

static FuzzFile vocab_file, merges_file;

/* Lines go, come twice, are joined or take another's place. */
static void
damage_lines (GString *text)
{
  g_auto (GStrv) lines = g_strsplit (text->str, "\n", -1);
  guint n = g_strv_length (lines), at = n > 0 ? fuzz_draw (n) : 0, kind = fuzz_draw (5),
        other = n > 0 ? fuzz_draw (n) : 0;

  g_string_truncate (text, 0);
  for (guint i = 0; i < n; i++)
    {
      if (i == at && kind == 0)
        continue;
      g_string_append (text, i == at && kind == 1 ? lines[other] : lines[i]);
      if (i != at || kind != 2)
        g_string_append (text, i == at && kind == 3 ? "\r\n" : i == at && kind == 4 ? "  \n\n"
                                                                                    : "\n");
    }
}

/* Bytes that most vocabularies here know. */
static gboolean
use (EbbTokenizer *tokenizer)
{
  static const char alphabet[] = "aabbcc \n";
  char text[24];
  gsize n = 1 + fuzz_draw (sizeof text - 1), size;
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GBytes) again = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (GError) error = NULL;
  const char *data;

  for (gsize i = 0; i < n; i++)
    text[i] = alphabet[fuzz_draw (sizeof alphabet - 1)];
  bytes = g_bytes_new (text, n);
  tokens = ebb_tokenizer_encode (tokenizer, bytes, &error);
  if (tokens == NULL)
    return error != NULL && strchr (error->message, '\n') == NULL;
  again = ebb_tokenizer_decode (tokenizer, tokens, &error);
  data = again != NULL ? g_bytes_get_data (again, &size) : NULL;
  return data != NULL && size == n && memcmp (data, text, n) == 0;
}

static gboolean
try_case (GString *input, GError **error)
{
  g_autoptr (GString) lines = g_string_new (merges);
  g_autoptr (EbbTokenizer) tokenizer = NULL;

  g_string_append (input, vocab);
  if (fuzz_draw (4) > 0)
    fuzz_damage (input);
  for (guint i = fuzz_draw (3); i > 0; i--)
    damage_lines (lines);
  if (fuzz_draw (8) == 0)
    fuzz_damage_bytes (lines);
  fuzz_file_write (&vocab_file, input->str, input->len);
  fuzz_file_write (&merges_file, lines->str, lines->len);
  g_string_append_printf (input, "\n---\n%s", lines->str);
  tokenizer = ebb_bpe_tokenizer_new (vocab_file.path, merges_file.path, error);
  if (tokenizer == NULL)
    return FALSE;
  if (!use (tokenizer))
    g_error ("a text does not come back");
  return TRUE;
}

int
main (int argc, char **argv)
{
  int status;

  fuzz_file_open (&vocab_file);
  fuzz_file_open (&merges_file);
  status = fuzz_run (argc, argv, "tokenizer", 30000, try_case);
  fuzz_file_close (&vocab_file);
  fuzz_file_close (&merges_file);
  return status;
}
