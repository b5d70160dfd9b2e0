/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Puts documents into rows. */
#include "nn/data/packing-private.h"

#include "tensor/error-private.h"

#define NONE G_MAXUINT32

/* -- segments ------------------------------------------------------------------------------------------------------ */

static gboolean
has_target (const EbbDocumentStore *store,
            gint64 begin,
            gint64 n)
{
  for (gint64 i = 1; i <= n; i++)
    if (ebb_document_store_is_learned (store, begin + i))
      return TRUE;
  return FALSE;
}

/* Segments of one document share the token at which they meet: it is the last target of one and the first input of the
 * next. */
static void
append_segments (GArray *segments,
                 const EbbDocumentStore *store,
                 gint64 begin,
                 gint64 end,
                 gint64 context)
{
  for (; begin + 1 < end; begin += context)
    {
      const gint64 n = MIN (context, end - 1 - begin);
      const EbbSegment segment = { .begin = begin, .n = (guint32) n };

      if (has_target (store, begin, n))
        g_array_append_val (segments, segment);
    }
}

/* -- the best fit -------------------------------------------------------------------------------------------------- */

/* Rows by the room that they have left: a list for each room, and a bit that says whether it has any. */
typedef struct
{
  gint64 most;
  guint32 *first; /* by room */
  guint32 *next;  /* by row */
  guint64 *filled;
} Rooms;

static void
put_row (Rooms *self,
         guint32 row,
         gint64 room)
{
  self->next[row] = self->first[room];
  self->first[room] = row;
  self->filled[room / 64] |= G_GUINT64_CONSTANT (1) << (room % 64);
}

/* The least room of a row that has at least @n; -1: no row has. */
static gint64
find_room (const Rooms *self,
           gint64 n)
{
  gint64 word = n / 64;
  guint64 bits = self->filled[word] & (~G_GUINT64_CONSTANT (0) << (n % 64));

  while (bits == 0 && ++word <= self->most / 64)
    bits = self->filled[word];
  return bits != 0 ? word * 64 + __builtin_ctzll (bits) : -1;
}

static guint32
take_row (Rooms *self,
          gint64 room)
{
  guint32 row = self->first[room];

  self->first[room] = self->next[row];
  if (self->first[room] == NONE)
    self->filled[room / 64] &= ~(G_GUINT64_CONSTANT (1) << (room % 64));
  return row;
}

static int
compare_lengths (gconstpointer a,
                 gconstpointer b,
                 gpointer segments)
{
  const EbbSegment *x = (const EbbSegment *) segments + *(const guint32 *) a;
  const EbbSegment *y = (const EbbSegment *) segments + *(const guint32 *) b;

  return x->n != y->n ? (x->n < y->n ? 1 : -1) : (x->begin > y->begin) - (x->begin < y->begin);
}

/* Gives each segment a row; returns how many rows there are. */
static guint32
fill_rows (EbbSegment *segments,
           guint32 n,
           gint64 most)
{
  g_autofree guint32 *order = g_new (guint32, n);
  g_autofree guint32 *first = g_new (guint32, (gsize) most + 1);
  g_autofree guint32 *next = g_new (guint32, n);
  g_autofree guint64 *filled = g_new0 (guint64, (gsize) most / 64 + 1);
  Rooms rooms = { .most = most, .first = first, .next = next, .filled = filled };
  guint32 n_rows = 0;

  for (guint32 i = 0; i < n; i++)
    order[i] = i;
  for (gint64 room = 0; room <= most; room++)
    first[room] = NONE;
  g_qsort_with_data (order, (int) n, sizeof *order, compare_lengths, segments);
  for (guint32 i = 0; i < n; i++)
    {
      EbbSegment *segment = &segments[order[i]];
      gint64 room = find_room (&rooms, segment->n);

      segment->row = room >= 0 ? take_row (&rooms, room) : n_rows++;
      put_row (&rooms, segment->row, (room >= 0 ? room : most) - segment->n);
    }
  return n_rows;
}

/* -- rows ---------------------------------------------------------------------------------------------------------- */

/* Numbers rows by the first segment that they have, and puts segments in the order of their rows. */
static void
sort_segments (EbbPacking *self)
{
  g_autofree EbbSegment *unsorted = self->segments;
  g_autofree guint32 *numbers = g_new (guint32, self->n_rows);
  guint32 n_numbered = 0, end = 0;

  self->segments = g_new (EbbSegment, self->n_segments);
  self->ends = g_new0 (guint32, self->n_rows);
  for (guint32 row = 0; row < self->n_rows; row++)
    numbers[row] = NONE;
  for (guint32 i = 0; i < self->n_segments; i++)
    {
      guint32 *number = &numbers[unsorted[i].row];

      if (*number == NONE)
        *number = n_numbered++;
      unsorted[i].row = *number;
      self->ends[*number]++;
    }
  for (guint32 row = 0; row < self->n_rows; row++)
    {
      guint32 n = self->ends[row];

      self->ends[row] = end; /* where the next of its segments goes; it arrives at the end */
      end += n;
    }
  for (guint32 i = 0; i < self->n_segments; i++)
    self->segments[self->ends[unsorted[i].row]++] = unsorted[i];
}

EbbPacking *
ebb_packing_new (const EbbDocumentStore *store,
                 const gint64 *documents,
                 gint64 n,
                 gint64 context,
                 GError **error)
{
  g_autoptr (GArray) segments = g_array_new (FALSE, FALSE, sizeof (EbbSegment));
  /* A row never gets more than all tokens. */
  const gint64 most = MIN (context, MAX (store->n_tokens, 1));
  EbbPacking *self = g_new0 (EbbPacking, 1);
  gsize n_segments;

  self->context = context;
  for (gint64 i = 0; i < n && segments->len < G_MAXINT32; i++)
    {
      gint64 begin, end;

      ebb_document_store_find (store, documents != NULL ? documents[i] : i, &begin, &end);
      append_segments (segments, store, begin, end, most);
      self->n_split += end - begin - 1 > most;
    }
  if (segments->len >= G_MAXINT32)
    {
      ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT,
                     "the documents make more than %d segments of up to %" G_GINT64_FORMAT
                     " tokens, too many for one dataset",
                     G_MAXINT32 - 1, context);
      ebb_packing_free (self);
      return NULL;
    }
  self->segments = g_array_steal (segments, &n_segments);
  self->n_segments = (guint32) n_segments;
  if (n_segments > 0)
    {
      self->n_rows = fill_rows (self->segments, self->n_segments, most);
      sort_segments (self);
    }
  return self;
}

void
ebb_packing_free (EbbPacking *self)
{
  g_free (self->segments);
  g_free (self->ends);
  g_free (self);
}
