/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/data/bpe-tables-private.h"

#include <string.h>

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
      next == G_MAXUINT32 ? NULL : ebb_bpe_tables_find_merge (tables, self->ids[place], self->ids[next]);

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
