/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/bpe-private.h"

#include "nn/files/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

/* Byte-pair encoding as in GPT-2: its tables, read from vocab.json and merges.txt, and encoding by them.
 *
 * Tokens are spelt in characters that stand for bytes: printable Latin-1 characters for themselves, the other bytes for
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

static const EbbBpeMerge *
find_merge (const EbbBpeTables *self,
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

/* -- pieces -------------------------------------------------------------------------------------------------------- */

/* GPT-2's expression, by hand, so that bytes which are not UTF-8 pass too, each as a character of its own that is no
 * letter, number or space:
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */

typedef enum
{
  LETTER,
  NUMBER,
  SPACE,
  OTHER
} CharacterClass;

static CharacterClass
classify (gunichar c)
{
  if (c < 0x80)
    return g_ascii_isalpha ((char) c)             ? LETTER
           : g_ascii_isdigit ((char) c)           ? NUMBER
           : c == ' ' || (c >= '\t' && c <= '\r') ? SPACE
                                                  : OTHER;
  if (c == 0x85)
    return SPACE;
  switch (g_unichar_type (c))
    {
    case G_UNICODE_UPPERCASE_LETTER:
    case G_UNICODE_LOWERCASE_LETTER:
    case G_UNICODE_TITLECASE_LETTER:
    case G_UNICODE_MODIFIER_LETTER:
    case G_UNICODE_OTHER_LETTER:
      return LETTER;
    case G_UNICODE_DECIMAL_NUMBER:
    case G_UNICODE_LETTER_NUMBER:
    case G_UNICODE_OTHER_NUMBER:
      return NUMBER;
    case G_UNICODE_SPACE_SEPARATOR:
    case G_UNICODE_LINE_SEPARATOR:
    case G_UNICODE_PARAGRAPH_SEPARATOR:
      return SPACE;
    default:
      return OTHER;
    }
}

/* The class of the character at @position, and where the next one begins. */
static CharacterClass
read_character (const guint8 *text,
                gsize length,
                gsize position,
                gsize *next)
{
  gunichar c = text[position];

  *next = position + 1;
  if (c < 0x80)
    return classify (c);
  c = g_utf8_get_char_validated ((const char *) text + position, (gssize) MIN (length - position, 6));
  if (c >= 0x80000000)
    return OTHER;
  *next = position + (gsize) g_unichar_to_utf8 (c, NULL);
  return classify (c);
}

/* The end of the run of @wanted from @position on; @last is where its last character begins. */
static gsize
find_run_end (const guint8 *text,
              gsize length,
              gsize position,
              CharacterClass wanted,
              gsize *last)
{
  gsize next;

  while (position < length && read_character (text, length, position, &next) == wanted)
    {
      *last = position;
      position = next;
    }
  return position;
}

static gsize
match_contraction (const guint8 *text,
                   gsize length,
                   gsize position)
{
  static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };

  if (text[position] != '\'')
    return 0;
  for (guint i = 0; i < G_N_ELEMENTS (endings); i++)
    {
      gsize n = strlen (endings[i]);

      if (length - position > n && memcmp (text + position + 1, endings[i], n) == 0)
        return position + 1 + n;
    }
  return 0;
}

gsize
ebb_bpe_find_piece_end (const guint8 *text,
                        gsize length,
                        gsize position)
{
  gsize start = position, next, last = position, end;
  CharacterClass class;

  end = match_contraction (text, length, position);
  if (end > 0)
    return end;
  class = read_character (text, length, position, &next);
  if (text[position] == ' ' && next < length)
    {
      gsize after;
      CharacterClass following = read_character (text, length, next, &after);

      if (following != SPACE)
        {
          start = next;
          class = following;
        }
    }
  end = find_run_end (text, length, start, class, &last);
  /* Of a run of spaces before something else, the last one is left: it may belong to the next piece. */
  if (class == SPACE && end < length && last > position)
    end = last;
  return end;
}

/* -- merging ------------------------------------------------------------------------------------------------------- */

/* The tokens of a piece are a doubly linked list in arrays; the merges that are possible wait in a heap, ordered by
 * rank and place. As in GPT-2, all places of one rank are merged, from the left, before merges that this made possible
 * count. */

typedef struct
{
  gint32 rank;
  guint32 place;
  gint32 left, right, merged;
} Candidate;

typedef struct
{
  gint32 *ids;       /* -1: merged away */
  guint32 *previous; /* G_MAXUINT32: none */
  guint32 *next;
  Candidate *heap;
  gsize n_heap;
} Merging;

static gboolean
is_before (const Candidate *a,
           const Candidate *b)
{
  return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void
heap_push (Merging *self,
           Candidate candidate)
{
  gsize i = self->n_heap++;

  for (; i > 0 && is_before (&candidate, &self->heap[(i - 1) / 2]); i = (i - 1) / 2)
    self->heap[i] = self->heap[(i - 1) / 2];
  self->heap[i] = candidate;
}

static Candidate
heap_pop (Merging *self)
{
  Candidate top = self->heap[0], moved = self->heap[--self->n_heap];
  gsize i = 0;

  for (;;)
    {
      gsize child = 2 * i + 1;

      if (child >= self->n_heap)
        break;
      if (child + 1 < self->n_heap && is_before (&self->heap[child + 1], &self->heap[child]))
        child++;
      if (!is_before (&self->heap[child], &moved))
        break;
      self->heap[i] = self->heap[child];
      i = child;
    }
  self->heap[i] = moved;
  return top;
}

static void
push_pair (Merging *self,
           const EbbBpeTables *tables,
           guint32 place)
{
  guint32 next = self->next[place];
  const EbbBpeMerge *merge =
      next == G_MAXUINT32 ? NULL : find_merge (tables, self->ids[place], self->ids[next]);

  if (merge != NULL)
    heap_push (self, (Candidate){ merge->rank, place, self->ids[place], self->ids[next], merge->merged });
}

static gboolean
is_current (const Merging *self,
            const Candidate *candidate)
{
  guint32 next = self->next[candidate->place];

  return self->ids[candidate->place] == candidate->left && next != G_MAXUINT32 && self->ids[next] == candidate->right;
}

static void
apply (Merging *self,
       const Candidate *candidate)
{
  guint32 gone = self->next[candidate->place];

  self->ids[candidate->place] = candidate->merged;
  self->ids[gone] = -1;
  self->next[candidate->place] = self->next[gone];
  if (self->next[gone] != G_MAXUINT32)
    self->previous[self->next[gone]] = candidate->place;
}

/* Merges all places of the lowest rank; @places is scratch. */
static void
merge_lowest (Merging *self,
              const EbbBpeTables *tables,
              guint32 *places)
{
  gint32 rank = self->heap[0].rank;
  gsize n_places = 0;

  while (self->n_heap > 0 && self->heap[0].rank == rank)
    {
      Candidate candidate = heap_pop (self);

      if (!is_current (self, &candidate))
        continue;
      apply (self, &candidate);
      places[n_places++] = candidate.place;
    }
  for (gsize i = 0; i < n_places; i++)
    {
      guint32 previous = self->previous[places[i]];

      /* A neighbour that was merged just now pushes its own pair with this one. */
      if (previous != G_MAXUINT32 && (i == 0 || places[i - 1] != previous))
        push_pair (self, tables, previous);
      push_pair (self, tables, places[i]);
    }
}

gssize
ebb_bpe_encode_piece (const EbbBpeTables *tables,
                      const guint8 *piece,
                      gsize length,
                      gint64 *tokens)
{
  enum
  {
    SMALL = 64
  };
  gint32 small_ids[SMALL];
  guint32 small_links[3 * SMALL];
  Candidate small_heap[3 * SMALL];
  gboolean is_small = length <= SMALL;
  /* Each merge takes one token away and brings two candidates at most. */
  Merging self = {
    .ids = is_small ? small_ids : g_new (gint32, length),
    .previous = is_small ? small_links : g_new (guint32, 3 * length),
    .heap = is_small ? small_heap : g_new (Candidate, 3 * length),
  };
  gssize n_tokens = 0;

  self.next = self.previous + length;
  for (gsize i = 0; i < length && n_tokens >= 0; i++)
    {
      self.ids[i] = tables->byte_tokens[piece[i]];
      self.previous[i] = i > 0 ? (guint32) i - 1 : G_MAXUINT32;
      self.next[i] = i + 1 < length ? (guint32) i + 1 : G_MAXUINT32;
      if (self.ids[i] < 0)
        n_tokens = -1;
    }
  for (guint32 i = 0; i < length && n_tokens >= 0; i++)
    push_pair (&self, tables, i);
  while (n_tokens >= 0 && self.n_heap > 0)
    merge_lowest (&self, tables, self.next + length);
  for (gsize i = 0; i < length && n_tokens >= 0; i++)
    if (self.ids[i] >= 0)
      tokens[n_tokens++] = self.ids[i];
  if (!is_small)
    {
      g_free (self.ids);
      g_free (self.previous);
      g_free (self.heap);
    }
  return n_tokens;
}
