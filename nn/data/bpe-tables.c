/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/bpe-tables-private.h"

#include "tensor/util/atomic-file-private.h"
#include "nn/files/json-scanner-private.h"

#include <string.h>

/* Tokens are spelt in characters that stand for bytes: printable Latin-1 characters for themselves, the other bytes for
 * U+0100 and on, in order. */

static gboolean
byte_is_printable (guint byte)
{
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static void
make_byte_map (gint16 *byte_of_character)
{
  guint n_others = 0;

  for (guint c = 0; c < 512; c++)
    byte_of_character[c] = -1;
  for (guint byte = 0; byte < 256; byte++)
    byte_of_character[byte_is_printable (byte) ? byte : 256 + n_others++] = (gint16) byte;
}

/* The bytes that a spelling stands for. A token with other characters, as special tokens of some models have, stands
 * for its own UTF-8. */
static EbbBpeToken
spell (const char *spelling,
       const gint16 *byte_of_character)
{
  EbbBpeToken token = { .bytes = g_malloc (strlen (spelling) + 1) };

  for (const char *p = spelling; *p != '\0'; p = g_utf8_next_char (p))
    {
      gunichar c = g_utf8_get_char (p);
      int byte = c < 512 ? byte_of_character[c] : -1;

      if (byte < 0)
        {
          token.length = (guint32) strlen (spelling);
          memcpy (token.bytes, spelling, token.length);
          return token;
        }
      token.bytes[token.length++] = (guint8) byte;
    }
  return token;
}

#define MAX_FILE_SIZE ((gsize) 256 << 20)

/* -- vocab.json ---------------------------------------------------------------------------------------------------- */

/* Fills @spellings (id to spelling) and by_spelling. */
static gboolean
scan_vocab (EbbBpeTables *self,
            EbbJsonScanner *scanner,
            GPtrArray *spellings,
            GError **error)
{
  gboolean more, first = TRUE;

  if (!ebb_json_scanner_expect (scanner, '{', error))
    return FALSE;
  for (; ebb_json_scanner_next (scanner, first, '}', &more, error); first = FALSE)
    {
      g_autofree char *spelling = NULL;
      g_autofree char *quoted = NULL;
      gint64 id;

      if (!more)
        return ebb_json_scanner_expect_end (scanner, error);
      spelling = ebb_json_scanner_read_key (scanner, error);
      if (spelling == NULL || !ebb_json_scanner_read_uint (scanner, &id, error))
        return FALSE;
      if (g_hash_table_contains (self->by_spelling, spelling))
        {
          quoted = ebb_json_quote (spelling);
          return ebb_json_scanner_fail (scanner, error, "the token %s is there twice", quoted);
        }
      /* Ids are dense, so none can be larger than the number of tokens, each of which takes a few bytes. */
      if (id >= (gint64) scanner->length || id >= G_MAXINT32)
        return ebb_json_scanner_fail (scanner, error, "the id %" G_GINT64_FORMAT " is too large", id);
      if ((guint) id >= spellings->len)
        g_ptr_array_set_size (spellings, (int) id + 1);
      if (spellings->pdata[id] != NULL)
        return ebb_json_scanner_fail (scanner, error, "the id %" G_GINT64_FORMAT " is there twice", id);
      spellings->pdata[id] = spelling;
      g_hash_table_insert (self->by_spelling, g_steal_pointer (&spelling), GUINT_TO_POINTER ((guint) id + 1));
    }
  return FALSE;
}

static gboolean
make_tokens (EbbBpeTables *self,
             const char *path,
             GPtrArray *spellings,
             GError **error)
{
  g_autofree char *shown = ebb_escape_text (path);
  gint16 byte_of_character[512];

  make_byte_map (byte_of_character);
  for (guint i = 0; i < 256; i++)
    self->byte_tokens[i] = -1;
  if (spellings->len == 0)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the vocabulary is empty", shown);
      return FALSE;
    }
  self->tokens = g_new0 (EbbBpeToken, spellings->len);
  self->n_tokens = spellings->len;
  for (guint i = 0; i < spellings->len; i++)
    {
      if (spellings->pdata[i] == NULL)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: no token has the id %u: ids must be 0 to %u, each once",
                       shown, i, spellings->len - 1);
          return FALSE;
        }
      self->tokens[i] = spell (spellings->pdata[i], byte_of_character);
      if (self->tokens[i].length == 1)
        self->byte_tokens[self->tokens[i].bytes[0]] = (gint32) i;
    }
  return TRUE;
}

static gboolean
load_vocab (EbbBpeTables *self,
            const char *path,
            GError **error)
{
  g_autoptr (GPtrArray) spellings = g_ptr_array_new ();
  gsize size;
  g_autofree char *text = ebb_read_file (path, MAX_FILE_SIZE, &size, error);
  EbbJsonScanner scanner;

  return text != NULL && ebb_json_scanner_init (&scanner, text, size, path, error)
         && scan_vocab (self, &scanner, spellings, error) && make_tokens (self, path, spellings, error);
}

/* -- merges.txt ---------------------------------------------------------------------------------------------------- */

static guint64
hash_pair (guint64 key)
{
  key *= G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);
  return key ^ (key >> 32);
}

static guint64
make_key (gint32 left,
          gint32 right)
{
  return (guint64) (guint32) left << 32 | (guint32) right;
}

static EbbBpeMerge *
find_place (const EbbBpeTables *self,
            guint64 key)
{
  guint64 place = hash_pair (key) & self->merges_mask;

  while (self->merges[place].key != G_MAXUINT64 && self->merges[place].key != key)
    place = (place + 1) & self->merges_mask;
  return &self->merges[place];
}

const EbbBpeMerge *
ebb_bpe_tables_find_merge (const EbbBpeTables *self,
                           gint32 left,
                           gint32 right)
{
  EbbBpeMerge *merge = find_place (self, make_key (left, right));

  return merge->key == G_MAXUINT64 ? NULL : merge;
}

static gboolean
fail_at_line (const char *path,
              guint line,
              GError **error,
              const char *problem,
              const char *what)
{
  g_autofree char *quoted = ebb_json_quote (what);

  g_autofree char *shown = ebb_escape_text (path);

  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: line %u: %s: %s", shown, line, problem, quoted);
  return FALSE;
}

static gint32
find_id (EbbBpeTables *self,
         const char *spelling)
{
  return (gint32) GPOINTER_TO_UINT (g_hash_table_lookup (self->by_spelling, spelling)) - 1;
}

static gboolean
add_merge (EbbBpeTables *self,
           const char *path,
           guint line_number,
           char *line,
           gint32 rank,
           GError **error)
{
  g_autofree char *whole = g_strdup (line);
  g_autofree char *joined = NULL;
  char *right = strchr (line, ' ');
  gint32 left_id, right_id, merged_id;
  EbbBpeMerge *merge;

  if (right == NULL || right == line || right[1] == '\0' || strchr (right + 1, ' ') != NULL)
    return fail_at_line (path, line_number, error, "a merge is two tokens with a blank between them", whole);
  *right++ = '\0';
  joined = g_strconcat (line, right, NULL);
  left_id = find_id (self, line);
  right_id = find_id (self, right);
  merged_id = find_id (self, joined);
  if (left_id < 0 || right_id < 0 || merged_id < 0)
    return fail_at_line (path, line_number, error, "the vocabulary has no token",
                         left_id < 0 ? line : right_id < 0 ? right
                                                           : joined);
  merge = find_place (self, make_key (left_id, right_id));
  if (merge->key != G_MAXUINT64)
    return fail_at_line (path, line_number, error, "this merge is there twice", whole);
  *merge = (EbbBpeMerge){ make_key (left_id, right_id), rank, merged_id };
  return TRUE;
}

static void
allocate_merges (EbbBpeTables *self,
                 const char *text,
                 gsize size)
{
  guint64 n_lines = 1, n_places = 64;

  for (gsize i = 0; i < size; i++)
    n_lines += text[i] == '\n';
  while (n_places < 2 * n_lines)
    n_places *= 2;
  self->merges = g_new (EbbBpeMerge, n_places);
  self->merges_mask = n_places - 1;
  for (guint64 i = 0; i < n_places; i++)
    self->merges[i].key = G_MAXUINT64;
}

static gboolean
load_merges (EbbBpeTables *self,
             const char *path,
             GError **error)
{
  gsize size;
  g_autofree char *text = ebb_read_file (path, MAX_FILE_SIZE, &size, error);
  const char *end;
  guint line_number = 1;
  gint32 rank = 0;

  if (text == NULL)
    return FALSE;
  end = text + size;
  allocate_merges (self, text, size);
  for (const char *p = text; p < end; line_number++)
    {
      const char *newline = memchr (p, '\n', (gsize) (end - p));
      const char *stop = newline ? newline : end;
      g_autofree char *line = g_strndup (p, (gsize) (stop - p));

      p = newline ? newline + 1 : end;
      if (g_str_has_suffix (line, "\r"))
        line[strlen (line) - 1] = '\0';
      if (*line == '\0' || (line_number == 1 && g_str_has_prefix (line, "#version")))
        continue;
      if (!add_merge (self, path, line_number, line, rank++, error))
        return FALSE;
    }
  return TRUE;
}

gboolean
ebb_bpe_tables_load (EbbBpeTables *self,
                     const char *vocab_path,
                     const char *merges_path,
                     GError **error)
{
  *self = (EbbBpeTables){ .by_spelling = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL) };
  return load_vocab (self, vocab_path, error) && load_merges (self, merges_path, error);
}

void
ebb_bpe_tables_clear (EbbBpeTables *self)
{
  for (guint i = 0; i < self->n_tokens; i++)
    g_free (self->tokens[i].bytes);
  g_clear_pointer (&self->tokens, g_free);
  g_clear_pointer (&self->merges, g_free);
  g_clear_pointer (&self->by_spelling, g_hash_table_unref);
  self->n_tokens = 0;
}
