/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finds room for blocks in reserved address space, and counts and gives back its huge pages.
 *
 * Two-level segregated fit (Masmano et al., 2004): free blocks hang in lists by size, 32 lists for each power of two,
 * so finding, splitting and merging take constant time and waste at most 3 %, or a unit of 4 KiB. Blocks lie in
 * segments of address space that is reserved at once and becomes real page by page as the top of a segment rises;
 * neighbours that are free merge, so what one step used serves the next whatever the order of its sizes.
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
 * blocks lie doesn't depend on it, so a dry run knows how many bytes a bounded heap needs: its extent.
 *
 * A sparse segment is addresses that nothing else uses, of which the system learns page by page. A dry run has no
 * others, and where address space is limited (ulimit -v) the process' heap neither. */

#include "tensor/cpu/host-blocks-private.h"

#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT EBB_HOST_ALIGNMENT
#define FINE_BITS EBB_HOST_FINE_BITS
#define N_FINE EBB_HOST_N_FINE
#define MIN_SHIFT EBB_HOST_MIN_SHIFT
#define N_COARSE EBB_HOST_N_COARSE
#define HUGE_PAGE EBB_HOST_HUGE_PAGE
/* Huge pages of gaps that may be resident where there is no bound: so many, and a fraction of what was needed. */
#define MOST_GAPS 4
#define GAPS_FRACTION 32
#define MEDIUM_LIMIT EBB_HOST_MEDIUM_LIMIT
#define LARGE EBB_HOST_LARGE
#define MEDIUM EBB_HOST_MEDIUM
#define MAX_WALK 32
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEGMENT_SIZE (4ul << 30)
#else
#define SEGMENT_SIZE (256ul << 30)
#endif
#define SMALL_SEGMENT_SIZE (16ul << 20) /* of small blocks where address space is to be saved */
#define GRANULE (HUGE_PAGE / EBB_HOST_GRANULES)

typedef EbbHostBlock Block;
typedef EbbHostPool Pool;
typedef EbbHostSegment Segment;

/* The shadow of a dry run's blocks would cost memory. */
static void
poison (EbbHostHeap *heap,
        void *data,
        gsize size)
{
  if (!heap->is_dry)
    ASAN_POISON_MEMORY_REGION (data, size);
}

static void
unpoison (EbbHostHeap *heap,
          void *data,
          gsize size)
{
  if (!heap->is_dry)
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

static char *
map (char *address,
     gsize size)
{
  const int fixed = address != NULL ? MAP_FIXED_NOREPLACE : 0;
  char *data = mmap (address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);

  if (data != MAP_FAILED && address != NULL && data != address) /* Linux before 4.17 takes it for a hint */
    {
      munmap (data, size);
      return NULL;
    }
  return data != MAP_FAILED ? data : NULL;
}

/* Reserves address space for a segment: @size bytes or, where that is too much, as many as there are but at least
 * @least, and sets @size to what it reserved. Where address space is limited, a segment takes at most half of what is
 * left, divided by @part, unless one block needs more. */
static char *
reserve (EbbHostHeap *heap,
         gsize *size,
         gsize part,
         gsize least)
{
  const gsize space = ebb_host_get_address_space ();
  char *start = NULL;

  *size = MAX (MIN (*size, space / 2 / part), least);
  if (space < EBB_HOST_SPACE_FOR_OTHERS || space - EBB_HOST_SPACE_FOR_OTHERS < *size)
    *size = least;
  if (space < EBB_HOST_SPACE_FOR_OTHERS || space - EBB_HOST_SPACE_FOR_OTHERS < *size)
    return NULL;
  /* Not all that is there may be in one piece: ask for less down to what is needed. */
  while (start == NULL)
    {
      __atomic_add_fetch (&heap->system_calls, 1, __ATOMIC_RELAXED);
      start = map (NULL, *size);
      if (start != NULL || *size <= least)
        break;
      *size = MAX (*size / 4, least);
    }
  return start;
}

/* Blocks of a dry run need addresses alone. Where address space is limited, the heap's are mapped as they are used: so
 * they lie where they would without a limit, and no more is mapped than is resident. */
Segment *
ebb_host_segment_new (EbbHostHeap *heap,
                      Pool *pool,
                      gsize part,
                      gsize least)
{
  const gboolean saves = heap->is_dry || ebb_host_get_address_space () != G_MAXSIZE;
  Segment *segment = g_new0 (Segment, 1);
  Segment **list = pool != NULL ? &pool->segments : &heap->small_segments;
  gsize size = MAX (SEGMENT_SIZE / part, least + 2 * HUGE_PAGE);
  char *start = NULL;

  if (saves && pool != NULL)
    start = ebb_host_invent_addresses (size);
  segment->is_sparse = start != NULL;
  if (saves && pool == NULL)
    size = MAX (SMALL_SEGMENT_SIZE, least + 2 * HUGE_PAGE);
  if (start == NULL)
    start = reserve (heap, &size, part, least + 2 * HUGE_PAGE);
  if (start == NULL)
    {
      g_free (segment);
      return NULL;
    }
  segment->pool = pool;
  segment->mapped = start;
  segment->mapped_size = size;
  segment->start = round_up (start);
  segment->top = segment->start;
  segment->end = round_down (start + size);
  segment->resident = g_new0 (guint64, page_of (segment, segment->end) / 64 + 1);
  if (pool != NULL)
    segment->pages = g_new0 (EbbHostPage *, page_of (segment, segment->end));
  segment->next = *list;
  *list = segment;
  if (!segment->is_sparse)
    ebb_host_allow_huge_pages (segment->start, (gsize) (segment->end - segment->start), !heap->has_small_pages_ahead);
  return segment;
}

static EbbHostPage *
find_page (Segment *segment,
           const char *data)
{
  EbbHostPage **page = &segment->pages[page_of (segment, data)];

  if (*page == NULL)
    *page = g_malloc0 (sizeof **page + (HUGE_PAGE >> segment->pool->unit_shift) * sizeof (Block *));
  return *page;
}

/* -- resident pages ------------------------------------------------------------------------------------------------ */

static gboolean
is_resident (const Segment *segment,
             gsize page)
{
  return (segment->resident[page / 64] >> page % 64 & 1) != 0;
}

/* What a dry run has mapped of huge page number @page. */
static void
unmap_granules (Segment *segment,
                gsize page)
{
  EbbHostPage *entry = segment->pages[page];

  for (guint i = 0; entry != NULL && entry->mapped != 0; i++)
    if ((entry->mapped >> i & 1) != 0)
      {
        munmap (segment->start + page * HUGE_PAGE + i * GRANULE, GRANULE);
        entry->mapped &= ~(1u << i);
      }
}

/* Huge pages [@first, @last) of @segment, which were resident, aren't any more. */
static void
drop_pages (Segment *segment,
            gsize first,
            gsize last)
{
  char *data = segment->start + first * HUGE_PAGE;

  if (!segment->is_sparse)
    madvise (data, (last - first) * HUGE_PAGE, MADV_DONTNEED);
  else if (!segment->pool->heap->is_dry)
    munmap (data, (last - first) * HUGE_PAGE);
  else
    for (gsize page = first; page < last; page++)
      unmap_granules (segment, page);
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
      drop_pages (segment, page, above);
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

void
ebb_host_blocks_give_back (EbbHostHeap *heap,
                           gsize n)
{
  const gsize given = pool_give_back (&heap->pools[LARGE], n);

  if (given < n)
    pool_give_back (&heap->pools[MEDIUM], n - given);
}

gsize
ebb_host_blocks_get_most_resident (const EbbHostHeap *self)
{
  if (self->max_resident == G_MAXSIZE)
    return self->n_needed + self->n_needed / GAPS_FRACTION + MOST_GAPS;
  return MIN (self->max_resident, self->n_needed);
}

/* Huge pages of a sparse segment that become resident. */
static gboolean
map_pages (Segment *segment,
           gsize first,
           gsize last)
{
  EbbHostHeap *heap = segment->pool->heap;
  const gsize size = (last - first) * HUGE_PAGE, space = ebb_host_get_address_space ();
  char *data = segment->start + first * HUGE_PAGE;

  if (space < EBB_HOST_SPACE_FOR_OTHERS || space - EBB_HOST_SPACE_FOR_OTHERS < size || map (data, size) == NULL)
    return FALSE;
  __atomic_add_fetch (&heap->system_calls, 1, __ATOMIC_RELAXED);
  ebb_host_allow_huge_pages (data, size, !heap->has_small_pages_ahead);
  return TRUE;
}

/* Maps those of huge pages [@first, @last) that aren't resident, or none. */
static gboolean
map_missing (Segment *segment,
             gsize first,
             gsize last)
{
  for (gsize page = first, begin; page < last; page++)
    {
      for (begin = page; page < last && !is_resident (segment, page); page++)
        ;
      if (page == begin || map_pages (segment, begin, page))
        continue;
      for (page = first; page < begin; page++)
        if (!is_resident (segment, page))
          munmap (segment->start + page * HUGE_PAGE, HUGE_PAGE);
      return FALSE;
    }
  return TRUE;
}

/* [@from, @to) is about to be written. FALSE: no address space is left. */
static gboolean
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
    return TRUE;
  if (heap->n_resident + n > ebb_host_blocks_get_most_resident (heap))
    ebb_host_blocks_give_back (heap, heap->n_resident + n - ebb_host_blocks_get_most_resident (heap));
  if (segment->is_sparse && !heap->is_dry && !map_missing (segment, first, last + 1))
    {
      ebb_host_blocks_give_back (heap, n);
      if (!map_missing (segment, first, last + 1))
        return FALSE;
    }
  for (gsize page = first; page <= last; page++)
    segment->resident[page / 64] |= 1ul << page % 64;
  heap->n_resident += n;
  return TRUE;
}

/* The resident bytes of huge page number @page, all of it where the system doesn't say. */
static gsize
count_resident_bytes (const Segment *segment,
                      gsize page)
{
  const gsize size = (gsize) sysconf (_SC_PAGESIZE), n = HUGE_PAGE / size;
  unsigned char is_there[HUGE_PAGE / 4096];
  gsize n_there = 0;

  if (n > G_N_ELEMENTS (is_there) || mincore (segment->start + page * HUGE_PAGE, HUGE_PAGE, is_there) != 0)
    return HUGE_PAGE;
  for (gsize i = 0; i < n; i++)
    n_there += is_there[i] & 1;
  return n_there * size;
}

guint64
ebb_host_blocks_count_resident (EbbHostHeap *heap)
{
  guint64 n_bytes = 0;

  for (guint i = 0; i < EBB_HOST_N_POOLS; i++)
    for (const Segment *segment = heap->pools[i].segments; segment != NULL; segment = segment->next)
      for (gsize page = 0; segment->start + page * HUGE_PAGE < segment->top; page++)
        if (is_resident (segment, page))
          n_bytes += count_resident_bytes (segment, page);
  return n_bytes;
}

/* -- large blocks -------------------------------------------------------------------------------------------------- */

static Block **
find_place (Segment *segment,
            const char *data)
{
  const gsize offset = (gsize) (data - segment->start) % HUGE_PAGE;

  return &find_page (segment, data)->blocks[offset >> segment->pool->unit_shift];
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
  segment = ebb_host_segment_new (pool->heap, pool, pool == &pool->heap->pools[LARGE] ? 1 : 16, size);
  return segment != NULL ? segment_take (segment, size) : NULL;
}

static gboolean
is_worth_a_split (const Block *block,
                  gsize size)
{
  return block->size >= size + (1ul << block->segment->pool->unit_shift);
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

/* Of one of @pool's segments. */
static Segment *
find_segment (Pool *pool,
              const char *data)
{
  Segment *segment = pool->segments;

  while (data < segment->start || data >= segment->top)
    segment = segment->next;
  return segment;
}

/* Which is claimed. */
static void
block_free (Block *block)
{
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

static Pool *
find_pool (EbbHostHeap *heap,
           gsize size)
{
  return &heap->pools[size <= MEDIUM_LIMIT ? MEDIUM : LARGE];
}

void *
ebb_host_blocks_alloc (EbbHostHeap *heap,
                       gsize n_bytes)
{
  const gsize size = (n_bytes + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1);
  Pool *pool = find_pool (heap, size);
  Block *block = list_take (pool, size);

  if (block == NULL)
    block = segments_take (pool, size);
  if (block == NULL)
    return NULL;
  heap->n_needed = MAX (heap->n_needed, heap->n_pages - heap->n_free - count_rest (block, size));
  if (!make_resident (block->segment, block->data, block->data + size))
    {
      block_free (block);
      return NULL;
    }
  block_split (block, size);
  unpoison (heap, block->data, block->size);
  return block->data;
}

void
ebb_host_blocks_free (EbbHostHeap *heap,
                      void *data,
                      gsize n_bytes)
{
  const gsize size = (n_bytes + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1);
  Block *block = *find_place (find_segment (find_pool (heap, size), data), data);

  poison (heap, data, block->size);
  block_free (block);
}

gboolean
ebb_host_blocks_map (EbbHostHeap *heap,
                     char *data,
                     gsize size)
{
  Segment *segment = find_segment (find_pool (heap, (size + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1)), data);
  char *granule = (char *) ((gsize) data & ~(GRANULE - 1));

  for (; segment->is_sparse && granule < data + size; granule += GRANULE)
    {
      EbbHostPage *page = find_page (segment, granule);
      const guint32 bit = 1u << ((gsize) granule % HUGE_PAGE / GRANULE);

      if ((page->mapped & bit) != 0)
        continue;
      if (map (granule, GRANULE) == NULL)
        return FALSE;
      page->mapped |= bit;
    }
  return TRUE;
}

/* What of a segment is mapped. */
static void
segment_unmap (Segment *self)
{
  if (!self->is_sparse)
    {
      munmap (self->mapped, self->mapped_size);
      return;
    }
  for (gsize page = 0; self->start + page * HUGE_PAGE < self->top; page++)
    if (is_resident (self, page))
      drop_pages (self, page, page + 1);
  ebb_host_forget_addresses (self->mapped, self->mapped_size);
}

void
ebb_host_segments_free (Segment *segment)
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
      segment_unmap (segment);
      for (gsize page = 0; segment->pages != NULL && segment->start + page * HUGE_PAGE < segment->top; page++)
        g_free (segment->pages[page]);
      g_free (segment->pages);
      g_free (segment->resident);
      g_free (segment);
      segment = next;
    }
}
