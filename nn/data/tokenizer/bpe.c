/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Byte-pair encoding: symbols of a word are merged in the order of the merges' ranks.
 *
 * Sennrich et al., "Neural machine translation of rare words with subword units" (2016); Radford et al., "Language
 * models are unsupervised multitask learners" (2019), section 2.2. */
#include "nn/data/tokenizer/token-model-private.h"

#include "nn/data/tokenizer/characters-private.h"

#include <stdio.h>

#define N_JOINED_BITS 20
#define N_CHARACTERS 0x10000
/* Words up to this length are merged by looking at all their pairs each time. */
#define SHORT_WORD 48

static guint64
find_slot (const EbbTokenModel *self,
           gint32 left,
           gint32 right)
{
  guint64 key = (guint64) (guint32) left << 32 | (guint32) right;
  guint64 slot = key * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);

  slot = (slot ^ slot >> 32) & self->merges_mask;
  while (self->merges[slot].key != G_MAXUINT64 && self->merges[slot].key != key)
    slot = (slot + 1) & self->merges_mask;
  return slot;
}

static const EbbTokenMerge *
find_merge (const EbbTokenModel *self,
            gint32 left,
            gint32 right)
{
  const EbbTokenMerge *merge = &self->merges[find_slot (self, left, right)];

  return merge->key == G_MAXUINT64 ? NULL : merge;
}

/* -- tables -------------------------------------------------------------------------------------------------------- */

/* The tokens "<0x00>" to "<0xFF>". */
static void
find_fallback_tokens (EbbTokenModel *self)
{
  for (guint byte = 0; byte < 256; byte++)
    {
      char spelling[8];

      g_snprintf (spelling, sizeof spelling, "<0x%02X>", byte);
      self->byte_tokens[byte] = ebb_vocabulary_find (&self->vocabulary, spelling, 6);
    }
}

static void
find_character_tokens (EbbTokenModel *self)
{
  self->character_tokens = g_new (gint32, N_CHARACTERS);
  for (guint c = 0; c < N_CHARACTERS; c++)
    self->character_tokens[c] = -1;
  for (guint32 id = 0; id < self->vocabulary.size; id++)
    {
      const char *spelling = ebb_vocabulary_get (&self->vocabulary, id);
      guint32 length = self->vocabulary.lengths[id];
      gunichar c;

      if (spelling == NULL || length == 0 || length > 3 || *g_utf8_next_char (spelling) != '\0')
        continue;
      c = g_utf8_get_char (spelling);
      self->character_tokens[c] = (gint32) id;
    }
}

gboolean
ebb_bpe_prepare (EbbTokenModel *self,
                 gsize n_merges)
{
  guint64 n_slots = 64;

  while (n_slots < 2 * n_merges)
    n_slots *= 2;
  self->merges = g_try_new (EbbTokenMerge, n_slots);
  if (self->merges == NULL)
    return FALSE;
  self->merges_mask = n_slots - 1;
  for (guint64 i = 0; i < n_slots; i++)
    self->merges[i].key = G_MAXUINT64;
  if (self->is_byte_level)
    {
      const EbbByteAlphabet *alphabet = ebb_byte_alphabet_get ();

      for (guint byte = 0; byte < 256; byte++)
        self->byte_tokens[byte] =
            ebb_vocabulary_find (&self->vocabulary, alphabet->spelling[byte], alphabet->length[byte]);
      return TRUE;
    }
  find_fallback_tokens (self);
  find_character_tokens (self);
  if (!self->ignore_merges)
    self->joined = g_new0 (guint64, (1 << N_JOINED_BITS) / 64);
  return TRUE;
}

static guint32
hash_pair (gunichar left,
           gunichar right)
{
  guint64 hash = ((guint64) left << 32 | right) * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);

  return (guint32) (hash >> (64 - N_JOINED_BITS));
}

/* Whether a token also stands for something else than its spelling: for a byte of a character without a token, or for
 * the unknown. */
static gboolean
stands_for_other_text (const EbbTokenModel *self,
                       const char *spelling,
                       gsize length,
                       gint32 id)
{
  guint byte;

  if (id == self->unknown)
    return TRUE;
  return self->byte_fallback && length == 6 && sscanf (spelling, "<0x%02X>", &byte) == 1
         && self->byte_tokens[byte] == id;
}

/* Notes which characters the merge joins. */
static void
note_joined (EbbTokenModel *self,
             const char *left,
             gsize left_length,
             gint32 left_id,
             const char *right,
             gsize right_length,
             gint32 right_id)
{
  guint32 bit;

  if (left_length == 0 || right_length == 0 || stands_for_other_text (self, left, left_length, left_id)
      || stands_for_other_text (self, right, right_length, right_id))
    {
      g_clear_pointer (&self->joined, g_free);
      return;
    }
  bit = hash_pair (g_utf8_get_char (g_utf8_prev_char (left + left_length)), g_utf8_get_char (right));
  self->joined[bit / 64] |= G_GUINT64_CONSTANT (1) << (bit % 64);
}

char *
ebb_bpe_add_merge (EbbTokenModel *self,
                   const char *left,
                   gsize left_length,
                   const char *right,
                   gsize right_length,
                   gint32 rank,
                   gboolean *is_known)
{
  gint32 left_id = ebb_vocabulary_find (&self->vocabulary, left, left_length);
  gint32 right_id = ebb_vocabulary_find (&self->vocabulary, right, right_length);
  char buffer[256], *joined = buffer;
  gsize length = left_length + right_length;
  gint32 merged_id;
  guint64 slot;
  char *missing = NULL;

  if (left_id < 0 || right_id < 0)
    return left_id < 0 ? g_strndup (left, left_length) : g_strndup (right, right_length);
  if (length >= sizeof buffer)
    joined = g_malloc (length + 1);
  memcpy (joined, left, left_length);
  memcpy (joined + left_length, right, right_length);
  joined[length] = '\0';
  merged_id = ebb_vocabulary_find (&self->vocabulary, joined, length);
  if (merged_id < 0)
    missing = g_strdup (joined);
  if (joined != buffer)
    g_free (joined);
  if (missing != NULL)
    return missing;
  slot = find_slot (self, left_id, right_id);
  *is_known = self->merges[slot].key != G_MAXUINT64;
  self->merges[slot] = (EbbTokenMerge){ (guint64) (guint32) left_id << 32 | (guint32) right_id, rank, merged_id };
  if (self->joined != NULL)
    note_joined (self, left, left_length, left_id, right, right_length, right_id);
  return NULL;
}

/* -- symbols ------------------------------------------------------------------------------------------------------- */

gint32
ebb_bpe_find_character (const EbbTokenModel *self,
                        gunichar c,
                        const char *text,
                        gsize length)
{
  return c < N_CHARACTERS ? self->character_tokens[c] : ebb_vocabulary_find (&self->vocabulary, text, length);
}

gsize
ebb_bpe_find_word_end (const EbbTokenModel *self,
                       const char *word,
                       gsize length)
{
  /* Long enough to be worth a look at the cache, short enough to be found there. */
  const gsize wanted = 20;
  const char *p = word, *end = word + length;
  gunichar left;

  if (self->joined == NULL)
    return length;
  left = g_utf8_get_char (p);
  for (p = g_utf8_next_char (p); p < end; p = g_utf8_next_char (p))
    {
      gunichar right = g_utf8_get_char (p);
      guint32 bit;

      /* Before the sign for a blank words end most often. */
      if (right == 0x2581 || (gsize) (p - word) >= wanted)
        {
          bit = hash_pair (left, right);
          if ((self->joined[bit / 64] >> (bit % 64) & 1) == 0
              && ebb_bpe_find_character (self, right, p, (gsize) (g_utf8_next_char (p) - p)) >= 0)
            return (gsize) (p - word);
        }
      left = right;
    }
  return length;
}

static void
reserve (EbbMergeSpace *self,
         gsize n)
{
  if (n <= self->room)
    return;
  self->room = MAX (2 * self->room, MAX (n, 256));
  self->ids = g_renew (gint32, self->ids, self->room);
  self->ranks = g_renew (gint32, self->ranks, self->room);
  self->previous = g_renew (guint32, self->previous, self->room);
  self->next = g_renew (guint32, self->next, self->room);
  /* Each merge takes a symbol away and brings two candidates at most. */
  self->heap = g_renew (EbbMergeCandidate, self->heap, 3 * self->room);
}

/* The symbols of a word before any merge: @n of them. Returns what has no token, or NULL. */
static const char *
spell (const EbbTokenModel *self,
       gint32 *ids,
       gsize *n,
       const char *word,
       gsize length)
{
  gboolean is_pending = FALSE; /* an unknown symbol: it is written when its end is known */
  gsize next;

  *n = 0;
  if (self->is_byte_level)
    {
      for (gsize i = 0; i < length; i++)
        if ((ids[(*n)++] = self->byte_tokens[(guint8) word[i]]) < 0)
          return word + i;
      return NULL;
    }
  for (gsize i = 0; i < length; i = next)
    {
      gint32 id;
      gboolean is_spelt = self->byte_fallback;

      next = (gsize) (g_utf8_next_char (word + i) - word);
      id = ebb_bpe_find_character (self, g_utf8_get_char (word + i), word + i, next - i);
      if (id >= 0)
        {
          if (is_pending)
            ids[(*n)++] = self->unknown;
          is_pending = FALSE;
          ids[(*n)++] = id;
          continue;
        }
      for (gsize b = i; is_spelt && b < next; b++)
        is_spelt = self->byte_tokens[(guint8) word[b]] >= 0;
      if (is_spelt)
        {
          for (gsize b = i; b < next; b++)
            ids[(*n)++] = self->byte_tokens[(guint8) word[b]];
          continue;
        }
      if (self->unknown < 0)
        return word + i;
      if (is_pending && !self->fuse_unknown)
        ids[(*n)++] = self->unknown;
      is_pending = TRUE;
    }
  if (is_pending)
    ids[(*n)++] = self->unknown;
  return NULL;
}

/* -- merging ------------------------------------------------------------------------------------------------------- */

static gint32
find_rank (const EbbTokenModel *self,
           gint32 left,
           gint32 right)
{
  const EbbTokenMerge *merge = find_merge (self, left, right);

  return merge != NULL ? merge->rank : G_MAXINT32;
}

static gsize
merge_short (const EbbTokenModel *self,
             EbbMergeSpace *space,
             gsize n)
{
  gint32 *ids = space->ids, *ranks = space->ranks;

  for (gsize i = 0; i + 1 < n; i++)
    ranks[i] = find_rank (self, ids[i], ids[i + 1]);
  while (n > 1)
    {
      gsize best = 0;

      for (gsize i = 1; i + 1 < n; i++)
        if (ranks[i] < ranks[best])
          best = i;
      if (ranks[best] == G_MAXINT32)
        break;
      ids[best] = find_merge (self, ids[best], ids[best + 1])->merged;
      n--;
      for (gsize i = best + 1; i < n; i++)
        {
          ids[i] = ids[i + 1];
          ranks[i - 1] = ranks[i];
        }
      /* The ranks behind moved by one; those of the merged symbol's pairs are new. */
      if (best > 0)
        ranks[best - 1] = find_rank (self, ids[best - 1], ids[best]);
      if (best + 1 < n)
        ranks[best] = find_rank (self, ids[best], ids[best + 1]);
    }
  return n;
}

static gboolean
is_before (const EbbMergeCandidate *a,
           const EbbMergeCandidate *b)
{
  return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void
heap_push (EbbMergeSpace *self,
           EbbMergeCandidate candidate)
{
  gsize i = self->n_heap++;

  for (; i > 0 && is_before (&candidate, &self->heap[(i - 1) / 2]); i = (i - 1) / 2)
    self->heap[i] = self->heap[(i - 1) / 2];
  self->heap[i] = candidate;
}

static EbbMergeCandidate
heap_pop (EbbMergeSpace *self)
{
  EbbMergeCandidate top = self->heap[0], moved = self->heap[--self->n_heap];
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
push_pair (const EbbTokenModel *self,
           EbbMergeSpace *space,
           guint32 place)
{
  guint32 next = space->next[place];
  const EbbTokenMerge *merge =
      next == G_MAXUINT32 ? NULL : find_merge (self, space->ids[place], space->ids[next]);

  if (merge != NULL)
    heap_push (space, (EbbMergeCandidate){ merge->rank, place, merge->merged });
}

/* The symbols are a doubly linked list in arrays, and the merges that are possible wait in a heap, ordered by rank and
 * place: a word of any length takes n log n. */
static gsize
merge_long (const EbbTokenModel *self,
            EbbMergeSpace *space,
            gsize n)
{
  gsize n_left = 0;

  space->n_heap = 0;
  for (guint32 i = 0; i < n; i++)
    {
      space->previous[i] = i > 0 ? i - 1 : G_MAXUINT32;
      space->next[i] = i + 1 < n ? i + 1 : G_MAXUINT32;
    }
  for (guint32 i = 0; i + 1 < n; i++)
    push_pair (self, space, i);
  while (space->n_heap > 0)
    {
      EbbMergeCandidate top = heap_pop (space);
      guint32 gone = space->ids[top.place] < 0 ? G_MAXUINT32 : space->next[top.place];
      const EbbTokenMerge *merge =
          gone == G_MAXUINT32 ? NULL : find_merge (self, space->ids[top.place], space->ids[gone]);

      /* One of the two symbols may have been merged since. */
      if (merge == NULL || merge->merged != top.merged)
        continue;
      space->ids[top.place] = top.merged;
      space->ids[gone] = -1;
      space->next[top.place] = space->next[gone];
      if (space->next[gone] != G_MAXUINT32)
        space->previous[space->next[gone]] = top.place;
      if (space->previous[top.place] != G_MAXUINT32)
        push_pair (self, space, space->previous[top.place]);
      push_pair (self, space, top.place);
    }
  for (gsize i = 0; i < n; i++)
    if (space->ids[i] >= 0)
      space->ids[n_left++] = space->ids[i];
  return n_left;
}

const char *
ebb_bpe_encode (const EbbTokenModel *self,
                EbbMergeSpace *space,
                const char *word,
                gsize length,
                EbbTokenBuffer *tokens)
{
  const char *problem;
  gsize n;

  reserve (space, length);
  problem = spell (self, space->ids, &n, word, length);
  if (problem != NULL)
    return problem;
  n = n <= SHORT_WORD ? merge_short (self, space, n) : merge_long (self, space, n);
  for (gsize i = 0; i < n; i++)
    ebb_token_buffer_append (tokens, space->ids[i]);
  return NULL;
}
