/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Times the tokenizer of a folder on one core: opening, encoding and decoding a text file, in MB/s of the text. With
 * --records it writes the tokens and texts of many short texts instead, for tests/scripts/long_peer_tokenizers.py. */
#include <ebb/ebb.h>

#include <stdio.h>
#include <string.h>
#include <time.h>

static int repeats = 5;
static char *records = NULL;
static gboolean by_lines = FALSE;

static const GOptionEntry entries[] = {
  { "repeats", 0, 0, G_OPTION_ARG_INT, &repeats, "How often; the best counts", "N" },
  { "lines", 0, 0, G_OPTION_ARG_NONE, &by_lines, "Encode the file line by line", NULL },
  { "records", 0, 0, G_OPTION_ARG_FILENAME, &records, "Write the results of FILE's records here", "FILE" },
  G_OPTION_ENTRY_NULL,
};

/* Processor time, so that other programs on the machine count little. */
static double
now (void)
{
  return (double) clock () / CLOCKS_PER_SEC;
}

static void
check (GError *error)
{
  if (error == NULL)
    return;
  fprintf (stderr, "%s\n", error->message);
  exit (1);
}

/* -- records ------------------------------------------------------------------------------------------------------- */

static void
write_tokens (FILE *file,
              const gint64 *tokens,
              gsize n)
{
  guint32 count = (guint32) n;

  fwrite (&count, sizeof count, 1, file);
  for (gsize i = 0; i < n; i++)
    {
      guint32 token = (guint32) tokens[i];

      fwrite (&token, sizeof token, 1, file);
    }
}

static void
write_text (FILE *file,
            const char *text)
{
  guint32 length = (guint32) strlen (text);

  fwrite (&length, sizeof length, 1, file);
  fwrite (text, 1, length, file);
}

/* The same text in the parts that a decoder gives. */
static char *
decode_in_parts (EbbTokenizer *tokenizer,
                 const gint64 *tokens,
                 gsize n,
                 gboolean skip)
{
  g_autoptr (EbbTokenDecoder) decoder = ebb_token_decoder_new (tokenizer, skip);
  GString *text = g_string_new (NULL);
  GError *error = NULL;

  for (gsize i = 0; i <= n; i++)
    {
      g_autofree char *part = i < n ? ebb_token_decoder_push (decoder, tokens[i], &error)
                                    : ebb_token_decoder_finish (decoder, &error);

      check (error);
      g_string_append (text, part);
    }
  return g_string_free (text, FALSE);
}

/* A record is its length, 4 bytes, and a text. A result is its tokens, those with special tokens, and the text of the
 * latter without and with special tokens, whole and in parts. */
static void
write_records (EbbTokenizer *tokenizer,
               const char *data,
               gsize length)
{
  FILE *file = fopen (records, "wb");

  if (file == NULL)
    {
      perror (records);
      exit (1);
    }
  for (gsize i = 0; i + 4 <= length;)
    {
      guint32 size;
      g_autofree char *text = NULL;
      gsize n;

      memcpy (&size, data + i, 4);
      text = g_strndup (data + i + 4, size);
      i += 4 + size;
      for (int framed = 0; framed < 2; framed++)
        {
          GError *error = NULL;
          g_autofree gint64 *tokens = ebb_tokenizer_encode_text_full (tokenizer, text, framed, &n, &error);

          check (error);
          write_tokens (file, tokens, n);
          for (int skip = 0; framed && skip < 2; skip++)
            {
              g_autofree char *whole = ebb_tokenizer_decode_text_full (tokenizer, tokens, n, skip, &error);
              g_autofree char *parts = decode_in_parts (tokenizer, tokens, n, skip);

              check (error);
              write_text (file, whole);
              write_text (file, parts);
            }
        }
    }
  fclose (file);
}

/* -- times --------------------------------------------------------------------------------------------------------- */

/* All tokens of the text; the time that it took is added to @seconds. */
static EbbTensor *
encode (EbbTokenizer *tokenizer,
        GBytes *text,
        double *seconds)
{
  double begin = now ();
  GError *error = NULL;
  EbbTensor *tokens = ebb_tokenizer_encode (tokenizer, text, &error);

  check (error);
  *seconds += now () - begin;
  return tokens;
}

static double
encode_lines (EbbTokenizer *tokenizer,
              const char *text,
              gsize length,
              gsize *n_tokens)
{
  double seconds = 0;

  *n_tokens = 0;
  for (gsize i = 0; i < length;)
    {
      const char *end = memchr (text + i, '\n', length - i);
      gsize n = end != NULL ? (gsize) (end - text) - i : length - i;
      g_autoptr (GBytes) line = g_bytes_new_static (text + i, n);
      g_autoptr (EbbTensor) tokens = encode (tokenizer, line, &seconds);

      *n_tokens += (gsize) ebb_tensor_get_n_elements (tokens);
      i += n + 1;
    }
  return seconds;
}

static void
measure (const char *folder,
         const char *text,
         gsize length)
{
  double opening = G_MAXDOUBLE, encoding = G_MAXDOUBLE, decoding = G_MAXDOUBLE;
  gsize n_tokens = 0;

  for (int i = 0; i < repeats; i++)
    {
      GError *error = NULL;
      double begin = now (), seconds = 0;
      g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (folder, &error);
      g_autoptr (GBytes) bytes = g_bytes_new_static (text, length);
      g_autoptr (GBytes) back = NULL;
      g_autoptr (EbbTensor) tokens = NULL;

      check (error);
      opening = MIN (opening, now () - begin);
      tokens = encode (tokenizer, bytes, &seconds);
      n_tokens = (gsize) ebb_tensor_get_n_elements (tokens);
      if (by_lines)
        seconds = encode_lines (tokenizer, text, length, &n_tokens);
      encoding = MIN (encoding, seconds);
      begin = now ();
      back = ebb_tokenizer_decode (tokenizer, tokens, &error);
      check (error);
      decoding = MIN (decoding, now () - begin);
    }
  printf ("{\"open_ms\": %.2f, \"encode_mb_s\": %.2f, \"decode_mb_s\": %.2f, \"tokens\": %" G_GSIZE_FORMAT "}\n",
          opening * 1e3, (double) length * 1e-6 / encoding, (double) length * 1e-6 / decoding, n_tokens);
}

int
main (int argc, char **argv)
{
  g_autoptr (GOptionContext) context = g_option_context_new ("FOLDER FILE");
  g_autofree char *text = NULL;
  gsize length;
  GError *error = NULL;

  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_parse (context, &argc, &argv, &error);
  check (error);
  if (argc != 3)
    {
      fprintf (stderr, "usage: tokenizer [--repeats N] [--lines] [--records FILE] FOLDER FILE\n");
      return 2;
    }
  g_file_get_contents (argv[2], &text, &length, &error);
  check (error);
  if (records != NULL)
    {
      g_autoptr (EbbTokenizer) tokenizer = ebb_tokenizer_open (argv[1], &error);

      check (error);
      write_records (tokenizer, text, length);
    }
  else
    measure (argv[1], text, length);
  return 0;
}
