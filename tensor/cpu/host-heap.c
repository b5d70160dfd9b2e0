/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/host-heap-private.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Places blocks in reserved address space: the process' heap, and those of dry runs.
 *
 * Two-level segregated fit (Masmano et al., 2004): free blocks hang in lists by size, 32 lists for each power of two,
 * so finding, splitting and merging take constant time and waste at most 3 %. Blocks lie in segments of address space
 * that is reserved at once and becomes real page by page as the top of a segment rises; neighbours that are free merge,
 * so what one step used serves the next whatever the order of its sizes.
 *
 * A training step asks for the same blocks again and again, and must find them from its second time on. So where a
 * block comes from depends on which blocks are free, not on which was freed last: the lowest free block of a size is
 * taken, and the free block at the top of a segment, which grows on demand, only if no other fits.
 *
 * Small blocks come in chunks from separate segments. Chunks are never freed, so they must not lie between large
 * blocks. Medium blocks have segments and lists of their own: between large ones they would hold huge pages.
 *
 * Memory counts as resident in huge pages: one is from when a block first lies in it until it is given
 * back. A heap with a bound gives back pages that lie in free blocks before an allocation would pass the bound. Where
 * blocks lie doesn't depend on it, so a dry run knows how many bytes a bounded heap needs: its extent. */

#define ALIGNMENT EBB_HOST_ALIGNMENT
#define FINE_BITS 5
#define N_FINE (1 << FINE_BITS)
#define MIN_SHIFT 6
#define N_COARSE 48
#define LARGE_LIMIT (1ul << (MIN_SHIFT + N_COARSE - 2)) /* beyond any address space, within the lists */
#define HUGE_PAGE EBB_HOST_HUGE_PAGE
#define MEDIUM_SHIFT 11
#define LARGE_SHIFT 16
#define MEDIUM_LIMIT (1ul << LARGE_SHIFT)
#define MAX_WALK 32
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEGMENT_SIZE (4ul << 30)
#else
#define SEGMENT_SIZE (256ul << 30)
#endif
typedef struct _Block Block;
typedef struct _Segment Segment;

/* It lies apart from its payload: tensors whose sizes are whole pages lie in whole pages, which can be given back. */
struct _Block
{
  char *data;
  gsize size; /* a multiple of the alignment */
  Block *below, *above;
  Segment *segment;
  Block *next_free, *previous_free;
  gboolean is_free;
};

/* The free lists of blocks of similar size: small blocks among large ones would keep huge pages resident. */
typedef struct
{
  EbbHostHeap *heap;
  Block *free_lists[N_COARSE][N_FINE];
  guint64 coarse_map;
  guint32 fine_maps[N_COARSE];
  Segment *segments; /* the newest first */
  guint least_shift; /* each block has at least as many bits of size: so many bytes hold the start of one at most */
} Pool;

enum
{
  MEDIUM, /* up to MEDIUM_LIMIT bytes */
  LARGE,
  N_POOLS
};

struct _Segment
{
  Pool *pool;   /* NULL: of small blocks */
  char *mapped; /* what the system gave */
  gsize mapped_size;
  char *start, *top, *end; /* whole huge pages of it; [start, top) is divided into blocks */
  Block *last;
  Block **blocks; /* by where they start, in units of the least size */
  gsize blocks_size;
  guint64 *resident; /* a bit for each huge page from @start on */
  Segment *next;
};

struct _EbbHostHeap
{
  pthread_mutex_t lock;
  Pool pools[N_POOLS];
  Segment *small_segments;               /* the newest first */
  EbbHostSmall *small[EBB_HOST_N_SMALL]; /* free ones of a dry run; the process' are elsewhere */
  guint64 reserved, system_calls;
  guint64 n_chunks;                /* of small blocks */
  gsize n_pages, n_free, n_needed; /* huge pages below tops; of them in free blocks; the others at most */
  gsize n_resident, max_resident;  /* huge pages, and how many there may be */
  gboolean has_small_pages_ahead;
};

static EbbHostHeap host = { .lock = PTHREAD_MUTEX_INITIALIZER,
                            .pools = { [MEDIUM] = { .heap = &host, .least_shift = MEDIUM_SHIFT },
                                       [LARGE] = { .heap = &host, .least_shift = LARGE_SHIFT } },
                            .max_resident = G_MAXSIZE };

/* Nobody uses the blocks of a dry run, whose shadow would cost memory. */
static void
poison (EbbHostHeap *heap,
        void *data,
        gsize size)
{
  if (heap == &host)
    ASAN_POISON_MEMORY_REGION (data, size);
}

static void
unpoison (EbbHostHeap *heap,
          void *data,
          gsize size)
{
  if (heap == &host)
    ASAN_UNPOISON_MEMORY_REGION (data, size);
}

/* -- lists of free blocks ------------------------------------------------------------------------------------------ */

static void
size_to_list (gsize size,
              guint *coarse,
              guint *fine)
{
  guint shift = 63 - (guint) __builtin_clzl (size);

  *coarse = shift - MIN_SHIFT;
  *fine = (guint) (size >> (shift - FINE_BITS)) & (N_FINE - 1);
}

/* By address, as far as that is cheap. */
static void
list_insert (Block *block)
{
  Pool *pool = block->segment->pool;
  guint c, f;
  Block *below = NULL, *above;

  size_to_list (block->size, &c, &f);
  above = pool->free_lists[c][f];
  for (guint i = 0; above != NULL && above->data < block->data && i < MAX_WALK; i++)
    {
      below = above;
      above = above->next_free;
    }
  block->previous_free = below;
  block->next_free = above;
  if (above)
    above->previous_free = block;
  if (below)
    below->next_free = block;
  else
    pool->free_lists[c][f] = block;
  pool->coarse_map |= 1ul << c;
  pool->fine_maps[c] |= 1u << f;
}

static void
list_remove (Block *block)
{
  Pool *pool = block->segment->pool;
  guint c, f;

  size_to_list (block->size, &c, &f);
  if (block->next_free)
    block->next_free->previous_free = block->previous_free;
  if (block->previous_free)
    block->previous_free->next_free = block->next_free;
  else
    {
      pool->free_lists[c][f] = block->next_free;
      if (block->next_free == NULL)
        {
          pool->fine_maps[c] &= ~(1u << f);
          if (pool->fine_maps[c] == 0)
            pool->coarse_map &= ~(1ul << c);
        }
    }
}

static char *
round_up (char *data)
{
  return (char *) (((gsize) data + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
}

static char *
round_down (char *data)
{
  return (char *) ((gsize) data & ~(HUGE_PAGE - 1));
}

static gsize
page_of (const Segment *segment,
         const char *data)
{
  return (gsize) (data - segment->start) / HUGE_PAGE;
}

static char *
block_end (Block *block)
{
  return block->data + block->size;
}

/* Where the huge pages end that a free block could give back: nothing lies above the uppermost block. */
static char *
find_last_page (Block *block)
{
  return block->segment->last == block ? round_up (block_end (block)) : round_down (block_end (block));
}

/* The huge pages of @block from @from on. */
static gsize
count_pages_from (Block *block,
                  char *from)
{
  char *start = round_up (from), *end = find_last_page (block);

  return end > start ? (gsize) (end - start) / HUGE_PAGE : 0;
}

static gsize
count_free_pages (Block *block)
{
  return count_pages_from (block, block->data);
}

/* The uppermost block of a segment hangs in no list. */
static void
block_release (Block *block)
{
  block->is_free = TRUE;
  block->segment->pool->heap->n_free += count_free_pages (block);
  if (block->segment->last != block)
    list_insert (block);
}

static void
block_claim (Block *block)
{
  if (block->segment->last != block)
    list_remove (block);
  block->segment->pool->heap->n_free -= count_free_pages (block);
  block->is_free = FALSE;
}

/* A free block of at least @size, taken off its list; NULL if there is none. */
static Block *
list_take (Pool *pool,
           gsize size)
{
  guint c, f, shift = 63 - (guint) __builtin_clzl (size);
  guint32 fine;
  guint64 coarse;
  Block *block;

  /* With the size rounded up to a list's least, every block of the list fits. */
  size_to_list (size + (1ul << (shift - FINE_BITS)) - 1, &c, &f);
  fine = pool->fine_maps[c] & (~0u << f);
  if (fine == 0)
    {
      coarse = pool->coarse_map & (~0ul << (c + 1));
      if (coarse == 0)
        return NULL;
      c = (guint) __builtin_ctzl (coarse);
      fine = pool->fine_maps[c];
    }
  block = pool->free_lists[c][__builtin_ctz (fine)];
  block_claim (block);
  return block;
}

/* -- segments ------------------------------------------------------------------------------------------------------ */

/* Where the blocks of a segment of @size bytes will be found; its pages are made as they are touched. */
static gboolean
segment_make_table (Segment *self,
                    gsize size)
{
  void *table;

  if (self->pool == NULL)
    return TRUE;
  self->blocks_size = ((size >> self->pool->least_shift) + 1) * sizeof (Block *);
  table = mmap (NULL, self->blocks_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (table == MAP_FAILED)
    return FALSE;
  madvise (table, self->blocks_size, MADV_NOHUGEPAGE);
  self->blocks = table;
  return TRUE;
}

/* @part: 1, or more for what needs as many times less. Of limited address space at most half of what is left is taken
 * at once, unless one block needs more. */
static Segment *
segment_new (EbbHostHeap *heap,
             Pool *pool,
             gsize part,
             gsize least)
{
  const gsize space = ebb_host_get_address_space ();
  Segment *segment;
  gsize size = MAX (MIN (SEGMENT_SIZE, space / 2) / part, least + 2 * HUGE_PAGE);
  char *start = MAP_FAILED;
  Segment **list = pool != NULL ? &pool->segments : &heap->small_segments;

  if (space < EBB_HOST_SPACE_FOR_OTHERS || space - EBB_HOST_SPACE_FOR_OTHERS < size)
    size = least + 2 * HUGE_PAGE;
  if (space < EBB_HOST_SPACE_FOR_OTHERS || space - EBB_HOST_SPACE_FOR_OTHERS < size)
    return NULL;
  /* Not all that is there may be in one piece: ask for less down to what is needed. */
  while (start == MAP_FAILED)
    {
      __atomic_add_fetch (&heap->system_calls, 1, __ATOMIC_RELAXED);
      start = mmap (NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start != MAP_FAILED)
        break;
      if (size <= least + 2 * HUGE_PAGE)
        return NULL;
      size = MAX (size / 4, least + 2 * HUGE_PAGE);
    }
  segment = g_new0 (Segment, 1);
  segment->pool = pool;
  if (!segment_make_table (segment, size))
    {
      munmap (start, size);
      g_free (segment);
      return NULL;
    }
  segment->mapped = start;
  segment->mapped_size = size;
  segment->start = round_up (start);
  segment->top = segment->start;
  segment->end = round_down (start + size);
  segment->resident = g_new0 (guint64, page_of (segment, segment->end) / 64 + 1);
  segment->next = *list;
  *list = segment;
  madvise (segment->start, (gsize) (segment->end - segment->start),
           heap->has_small_pages_ahead ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
  return segment;
}

/* -- resident pages ------------------------------------------------------------------------------------------------ */

static gboolean
is_resident (const Segment *segment,
             gsize page)
{
  return (segment->resident[page / 64] >> page % 64 & 1) != 0;
}

/* Gives at most @n resident pages of a free block back, the uppermost first: its front is used again before its end.
 * Returns how many. */
static gsize
block_give_back (Block *block,
                 gsize n)
{
  Segment *segment = block->segment;
  gsize given = 0, first, page;

  if (count_free_pages (block) == 0)
    return 0;
  first = page_of (segment, round_up (block->data));
  page = page_of (segment, find_last_page (block));
  while (page > first && given < n)
    {
      const gsize above = page;

      while (page > first && given < n && is_resident (segment, page - 1))
        {
          page--;
          segment->resident[page / 64] &= ~(1ul << page % 64);
          given++;
        }
      if (page == above)
        {
          page--;
          continue;
        }
      __atomic_add_fetch (&segment->pool->heap->system_calls, 1, __ATOMIC_RELAXED);
      madvise (segment->start + page * HUGE_PAGE, (above - page) * HUGE_PAGE, MADV_DONTNEED);
    }
  segment->pool->heap->n_resident -= given;
  return given;
}

static gsize
pool_give_back (Pool *pool,
                gsize n)
{
  gsize given = 0;

  for (Segment *segment = pool->segments; segment != NULL; segment = segment->next)
    if (segment->last != NULL && segment->last->is_free)
      given += block_give_back (segment->last, n - given);
  for (guint c = N_COARSE; c-- > 0 && given < n;)
    for (guint f = N_FINE; f-- > 0 && given < n;)
      for (Block *block = pool->free_lists[c][f]; block != NULL; block = block->next_free)
        given += block_give_back (block, n - given);
  return given;
}

/* Gives @n pages back if there are as many: those that are used last, and in large pieces. */
static void
give_back (EbbHostHeap *heap,
           gsize n)
{
  const gsize given = pool_give_back (&heap->pools[LARGE], n);

  if (given < n)
    pool_give_back (&heap->pools[MEDIUM], n - given);
}

/* With a bound no more than was needed at one time: the rest would be gaps. */
static gsize
get_most_resident (const EbbHostHeap *self)
{
  return self->max_resident == G_MAXSIZE ? G_MAXSIZE : MIN (self->max_resident, self->n_needed);
}

/* [@from, @to) is about to be written. */
static void
make_resident (Segment *segment,
               char *from,
               char *to)
{
  EbbHostHeap *heap = segment->pool->heap;
  const gsize first = page_of (segment, from), last = page_of (segment, to - 1);
  gsize n = 0;

  for (gsize page = first; page <= last; page++)
    n += !is_resident (segment, page);
  if (n == 0)
    return;
  if (heap->n_resident + n > get_most_resident (heap))
    give_back (heap, heap->n_resident + n - get_most_resident (heap));
  for (gsize page = first; page <= last; page++)
    segment->resident[page / 64] |= 1ul << page % 64;
  heap->n_resident += n;
}

/* -- large blocks -------------------------------------------------------------------------------------------------- */

static Block **
find_place (Segment *segment,
            const char *data)
{
  return &segment->blocks[(gsize) (data - segment->start) >> segment->pool->least_shift];
}

/* Between @below and the block that is above it now. */
static Block *
block_new (Segment *segment,
           Block *below,
           char *data,
           gsize size)
{
  Block *block = g_new (Block, 1);

  *block = (Block){ .data = data, .size = size, .below = below, .segment = segment };
  if (below != NULL)
    {
      block->above = below->above;
      below->above = block;
    }
  if (block->above != NULL)
    block->above->below = block;
  else
    segment->last = block;
  *find_place (segment, data) = block;
  return block;
}

/* Adds @above, which is free and hangs in no list, to the block below it. */
static void
block_merge (Block *above)
{
  Block *block = above->below;

  block->size += above->size;
  block->above = above->above;
  if (block->above != NULL)
    block->above->below = block;
  else
    block->segment->last = block;
  *find_place (above->segment, above->data) = NULL;
  g_free (above);
}

/* The block at the top of @segment, if it is free and large enough or can be made so, or a new one there. */
static Block *
segment_take (Segment *segment,
              gsize size)
{
  Block *block = segment->last;
  gboolean is_free = block != NULL && block->is_free;
  gsize missing = size;

  if (is_free)
    missing = size > block->size ? size - block->size : 0;
  if ((gsize) (segment->end - segment->top) < missing)
    return NULL;
  if (is_free)
    {
      block_claim (block);
      block->size += missing;
    }
  else
    block = block_new (segment, segment->last, segment->top, size);
  if (missing > 0)
    {
      segment->pool->heap->n_pages += (gsize) (round_up (segment->top + missing) - round_up (segment->top)) / HUGE_PAGE;
      segment->top += missing;
      __atomic_add_fetch (&segment->pool->heap->reserved, missing, __ATOMIC_RELAXED);
      /* The pages are made by the system as they are first touched. */
      __atomic_add_fetch (&segment->pool->heap->system_calls, 1, __ATOMIC_RELAXED);
    }
  return block;
}

static Block *
segments_take (Pool *pool,
               gsize size)
{
  Segment *segment;
  Block *block = NULL;

  for (segment = pool->segments; block == NULL && segment != NULL; segment = segment->next)
    block = segment_take (segment, size);
  if (block != NULL)
    return block;
  segment = segment_new (pool->heap, pool, pool == &pool->heap->pools[LARGE] ? 1 : 16, size);
  return segment != NULL ? segment_take (segment, size) : NULL;
}

static gboolean
is_worth_a_split (const Block *block,
                  gsize size)
{
  return block->size >= size + (1ul << block->segment->pool->least_shift);
}

/* The huge pages that will be free in the rest of @block. */
static gsize
count_rest (Block *block,
            gsize size)
{
  return is_worth_a_split (block, size) ? count_pages_from (block, block->data + size) : 0;
}

/* Cuts what @block has beyond @size off as a free block. */
static void
block_split (Block *block,
             gsize size)
{
  Block *rest;

  if (!is_worth_a_split (block, size))
    return;
  rest = block_new (block->segment, block, block->data + size, block->size - size);
  block->size = size;
  block_release (rest);
}

static void *
large_alloc_locked (EbbHostHeap *heap,
                    gsize n_bytes)
{
  const gsize size = (n_bytes + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1);
  Pool *pool = &heap->pools[size <= MEDIUM_LIMIT ? MEDIUM : LARGE];
  Block *block = list_take (pool, size);

  if (block == NULL)
    block = segments_take (pool, size);
  if (block == NULL)
    return NULL;
  heap->n_needed = MAX (heap->n_needed, heap->n_pages - heap->n_free - count_rest (block, size));
  make_resident (block->segment, block->data, block->data + size);
  block_split (block, size);
  unpoison (heap, block->data, block->size);
  return block->data;
}

static Block *
find_block (Pool *pool,
            const char *data)
{
  Segment *segment = pool->segments;

  while (data < segment->start || data >= segment->top)
    segment = segment->next;
  return *find_place (segment, data);
}

static void
large_free_locked (EbbHostHeap *heap,
                   void *data,
                   gsize n_bytes)
{
  const gsize size = (n_bytes + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1);
  Block *block = find_block (&heap->pools[size <= MEDIUM_LIMIT ? MEDIUM : LARGE], data);

  poison (heap, data, block->size);
  if (block->above != NULL && block->above->is_free)
    {
      block_claim (block->above);
      block_merge (block->above);
    }
  if (block->below != NULL && block->below->is_free)
    {
      block = block->below;
      block_claim (block);
      block_merge (block->above);
    }
  block_release (block);
}

/* -- small blocks -------------------------------------------------------------------------------------------------- */

static char *
take_chunk_locked (EbbHostHeap *heap)
{
  Segment *segment = heap->small_segments;

  if (segment == NULL || (gsize) (segment->end - segment->top) < EBB_HOST_SMALL_CHUNK)
    segment = segment_new (heap, NULL, 16, EBB_HOST_SMALL_CHUNK);
  if (segment == NULL) /* the library's own objects must be had */
    return aligned_alloc (ALIGNMENT, EBB_HOST_SMALL_CHUNK);
  segment->top += EBB_HOST_SMALL_CHUNK;
  __atomic_add_fetch (&heap->n_chunks, 1, __ATOMIC_RELAXED);
  __atomic_add_fetch (&heap->reserved, EBB_HOST_SMALL_CHUNK, __ATOMIC_RELAXED);
  __atomic_add_fetch (&heap->system_calls, 1, __ATOMIC_RELAXED);
  return segment->top - EBB_HOST_SMALL_CHUNK;
}

char *
ebb_host_take_chunk (void)
{
  char *chunk;

  pthread_mutex_lock (&host.lock);
  chunk = take_chunk_locked (&host);
  pthread_mutex_unlock (&host.lock);
  return chunk;
}

static void *
small_alloc_locked (EbbHostHeap *self,
                    gsize size)
{
  const guint index = (guint) ((size - 1) / ALIGNMENT);
  const gsize step = (index + 1) * ALIGNMENT;
  char *chunk = self->small[index] == NULL ? take_chunk_locked (self) : NULL;
  EbbHostSmall *small;

  for (gsize at = 0; chunk != NULL && at + step <= EBB_HOST_SMALL_CHUNK; at += step)
    {
      small = (EbbHostSmall *) (chunk + at);
      small->next = self->small[index];
      self->small[index] = small;
    }
  small = self->small[index];
  if (small != NULL)
    self->small[index] = small->next;
  return small;
}

/* -- heaps --------------------------------------------------------------------------------------------------------- */

EbbHostHeap *
ebb_host_heap_new (void)
{
  EbbHostHeap *self = g_new0 (EbbHostHeap, 1);

  pthread_mutex_init (&self->lock, NULL);
  for (guint i = 0; i < N_POOLS; i++)
    {
      self->pools[i].heap = self;
      self->pools[i].least_shift = host.pools[i].least_shift;
    }
  self->max_resident = G_MAXSIZE;
  self->has_small_pages_ahead = TRUE; /* only the front of each block is ever touched */
  return self;
}

static void
segments_free (Segment *segment)
{
  while (segment != NULL)
    {
      Segment *next = segment->next;

      while (segment->last != NULL)
        {
          Block *below = segment->last->below;

          g_free (segment->last);
          segment->last = below;
        }
      if (segment->blocks != NULL)
        munmap (segment->blocks, segment->blocks_size);
      munmap (segment->mapped, segment->mapped_size);
      g_free (segment->resident);
      g_free (segment);
      segment = next;
    }
}

void
ebb_host_heap_free (EbbHostHeap *self)
{
  for (guint i = 0; i < N_POOLS; i++)
    segments_free (self->pools[i].segments);
  segments_free (self->small_segments);
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}

void *
ebb_host_alloc_large (gsize size)
{
  void *data;

  if (size > LARGE_LIMIT)
    return NULL;
  pthread_mutex_lock (&host.lock);
  data = large_alloc_locked (&host, size);
  pthread_mutex_unlock (&host.lock);
  return data;
}

void
ebb_host_free_large (void *data,
                     gsize size)
{
  pthread_mutex_lock (&host.lock);
  large_free_locked (&host, data, size);
  pthread_mutex_unlock (&host.lock);
}

void *
ebb_host_heap_alloc (EbbHostHeap *self,
                     gsize size,
                     GError **error)
{
  void *data = NULL;

  pthread_mutex_lock (&self->lock);
  if (size <= EBB_HOST_SMALL_LIMIT)
    data = small_alloc_locked (self, MAX (size, 1));
  else if (size <= LARGE_LIMIT)
    data = large_alloc_locked (self, size);
  pthread_mutex_unlock (&self->lock);
  if (G_UNLIKELY (data == NULL))
    ebb_host_set_no_space (size, error);
  return data;
}

void
ebb_host_heap_release (EbbHostHeap *self,
                       void *data,
                       gsize size)
{
  pthread_mutex_lock (&self->lock);
  if (size <= EBB_HOST_SMALL_LIMIT)
    {
      EbbHostSmall *small = data;
      const guint index = (guint) ((MAX (size, 1) - 1) / ALIGNMENT);

      small->next = self->small[index];
      self->small[index] = small;
    }
  else
    large_free_locked (self, data, size);
  pthread_mutex_unlock (&self->lock);
}

EbbHostHeap *
ebb_host_heap_get_own (void)
{
  return &host;
}

void
ebb_host_heap_set_bound (EbbHostHeap *self,
                         guint64 n_bytes)
{
  pthread_mutex_lock (&self->lock);
  self->max_resident = n_bytes < G_MAXUINT64 ? n_bytes / HUGE_PAGE : G_MAXSIZE;
  if (self->n_resident > get_most_resident (self))
    give_back (self, self->n_resident - get_most_resident (self));
  pthread_mutex_unlock (&self->lock);
}

guint64
ebb_host_heap_get_resident (EbbHostHeap *self)
{
  guint64 n_bytes;

  pthread_mutex_lock (&self->lock);
  n_bytes = self->n_resident * HUGE_PAGE + self->n_chunks * EBB_HOST_SMALL_CHUNK;
  pthread_mutex_unlock (&self->lock);
  return n_bytes;
}

guint64
ebb_host_heap_get_extent (EbbHostHeap *self)
{
  guint64 n_bytes;

  pthread_mutex_lock (&self->lock);
  n_bytes = self->n_needed * HUGE_PAGE + self->n_chunks * EBB_HOST_SMALL_CHUNK;
  pthread_mutex_unlock (&self->lock);
  return n_bytes;
}

void
ebb_host_heap_trim (EbbHostHeap *self)
{
  pthread_mutex_lock (&self->lock);
  give_back (self, self->n_resident);
  pthread_mutex_unlock (&self->lock);
}

/* -- the process' heap --------------------------------------------------------------------------------------------- */

static void
allow_huge_pages_above (Segment *segment,
                        gboolean allow)
{
  if (allow)
    madvise (segment->start, (gsize) (segment->end - segment->start), MADV_HUGEPAGE);
  else
    ebb_host_allow_huge_pages (segment->top, (gsize) (segment->end - segment->top), FALSE);
}

void
ebb_host_allow_huge_pages_ahead (gboolean allow)
{
  pthread_mutex_lock (&host.lock);
  host.has_small_pages_ahead = !allow;
  for (guint i = 0; i < N_POOLS; i++)
    for (Segment *segment = host.pools[i].segments; segment != NULL; segment = segment->next)
      allow_huge_pages_above (segment, allow);
  pthread_mutex_unlock (&host.lock);
}

guint64
ebb_host_get_reserved (void)
{
  return __atomic_load_n (&host.reserved, __ATOMIC_RELAXED);
}

guint64
ebb_host_get_system_calls (void)
{
  return __atomic_load_n (&host.system_calls, __ATOMIC_RELAXED);
}
