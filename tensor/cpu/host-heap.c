/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/host-heap-private.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

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
 * blocks. */

#define ALIGNMENT EBB_HOST_ALIGNMENT
#define FINE_BITS 5
#define N_FINE (1 << FINE_BITS)
#define MIN_SHIFT 6
#define N_COARSE 48
#define LARGE_LIMIT (1ul << (MIN_SHIFT + N_COARSE - 2)) /* beyond any address space, within the lists */
#define HUGE_PAGE (2ul << 20)
#define MAX_WALK 32
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEGMENT_SIZE (4ul << 30)
#else
#define SEGMENT_SIZE (256ul << 30)
#endif
/* Where address space is limited, this much of it is left for threads, the code that oneDNN makes, and malloc: these
 * end the process if they get none. */
#define SPACE_FOR_OTHERS (64ul << 20)

typedef struct _Block Block;
typedef struct _Segment Segment;

/* In front of each large block's payload. */
struct _Block
{
  gsize size; /* of the payload: a multiple of the alignment */
  Block *below;
  Segment *segment;
  Block *next_free, *previous_free;
  gsize is_free;
  char padding[ALIGNMENT - 6 * 8];
};

G_STATIC_ASSERT (sizeof (Block) == ALIGNMENT);

struct _Segment
{
  EbbHostHeap *heap;
  char *mapped;            /* what the system gave, up to @end */
  char *start, *top, *end; /* [start, top) is divided into blocks */
  Block *last;
  Segment *next;
};

struct _EbbHostHeap
{
  pthread_mutex_t lock;
  Block *free_lists[N_COARSE][N_FINE];
  guint64 coarse_map;
  guint32 fine_maps[N_COARSE];
  Segment *segments, *small_segments;    /* the newest first */
  EbbHostSmall *small[EBB_HOST_N_SMALL]; /* free ones of a dry run; the process' are elsewhere */
  guint64 reserved, system_calls;
  gboolean has_small_pages_ahead;
};

static EbbHostHeap host = { .lock = PTHREAD_MUTEX_INITIALIZER };

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
  EbbHostHeap *heap = block->segment->heap;
  guint c, f;
  Block *below = NULL, *above;

  size_to_list (block->size, &c, &f);
  above = heap->free_lists[c][f];
  for (guint i = 0; above != NULL && above < block && i < MAX_WALK; i++)
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
    heap->free_lists[c][f] = block;
  heap->coarse_map |= 1ul << c;
  heap->fine_maps[c] |= 1u << f;
}

static void
list_remove (Block *block)
{
  EbbHostHeap *heap = block->segment->heap;
  guint c, f;

  size_to_list (block->size, &c, &f);
  if (block->next_free)
    block->next_free->previous_free = block->previous_free;
  if (block->previous_free)
    block->previous_free->next_free = block->next_free;
  else
    {
      heap->free_lists[c][f] = block->next_free;
      if (block->next_free == NULL)
        {
          heap->fine_maps[c] &= ~(1u << f);
          if (heap->fine_maps[c] == 0)
            heap->coarse_map &= ~(1ul << c);
        }
    }
}

/* The uppermost block of a segment hangs in no list. */
static void
block_release (Block *block)
{
  block->is_free = TRUE;
  if (block->segment->last != block)
    list_insert (block);
}

static void
block_claim (Block *block)
{
  if (block->segment->last != block)
    list_remove (block);
  block->is_free = FALSE;
}

/* A free block of at least @size, taken off its list; NULL if there is none. */
static Block *
list_take (EbbHostHeap *heap,
           gsize size)
{
  guint c, f, shift = 63 - (guint) __builtin_clzl (size);
  guint32 fine;
  guint64 coarse;
  Block *block;

  /* With the size rounded up to a list's least, every block of the list fits. */
  size_to_list (size + (1ul << (shift - FINE_BITS)) - 1, &c, &f);
  fine = heap->fine_maps[c] & (~0u << f);
  if (fine == 0)
    {
      coarse = heap->coarse_map & (~0ul << (c + 1));
      if (coarse == 0)
        return NULL;
      c = (guint) __builtin_ctzl (coarse);
      fine = heap->fine_maps[c];
    }
  block = heap->free_lists[c][__builtin_ctz (fine)];
  block_claim (block);
  return block;
}

/* -- segments ------------------------------------------------------------------------------------------------------ */

gsize
ebb_host_get_address_space (void)
{
  char text[32] = "";
  struct rlimit limit;
  gsize used;
  int fd;

  if (getrlimit (RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return G_MAXSIZE;
  fd = open ("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return limit.rlim_cur;
  used = read (fd, text, sizeof text - 1) > 0 ? g_ascii_strtoull (text, NULL, 10) * (gsize) sysconf (_SC_PAGESIZE) : 0;
  close (fd);
  return limit.rlim_cur - MIN (used, limit.rlim_cur);
}

/* @part: 1, or more for what needs as many times less. Of limited address space at most half of what is left is taken
 * at once, unless one block needs more. */
static Segment *
segment_new (EbbHostHeap *heap,
             Segment **list,
             gsize part,
             gsize least)
{
  const gsize space = ebb_host_get_address_space ();
  Segment *segment;
  gsize size = MAX (MIN (SEGMENT_SIZE, space / 2) / part, least + 2 * HUGE_PAGE);
  char *start = MAP_FAILED;

  if (space < SPACE_FOR_OTHERS || space - SPACE_FOR_OTHERS < size)
    size = least + 2 * HUGE_PAGE;
  if (space < SPACE_FOR_OTHERS || space - SPACE_FOR_OTHERS < size)
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
  segment->heap = heap;
  segment->mapped = start;
  segment->start = (char *) (((gsize) start + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
  segment->top = segment->start;
  segment->end = start + size;
  segment->next = *list;
  *list = segment;
  if (!heap->has_small_pages_ahead)
    madvise (segment->start, (gsize) (segment->end - segment->start), MADV_HUGEPAGE);
  return segment;
}

/* The block at the top of @segment, if it is free and large enough or can be made so, or a new one there. */
static Block *
segment_take (Segment *segment,
              gsize size)
{
  Block *block = segment->last;
  gboolean is_free = block != NULL && block->is_free;
  gsize missing = size + sizeof (Block);

  if (is_free)
    missing = size > block->size ? size - block->size : 0;
  if ((gsize) (segment->end - segment->top) < missing)
    return NULL;
  if (is_free)
    block->size += missing;
  else
    {
      block = (Block *) segment->top;
      block->below = segment->last;
      block->segment = segment;
      block->size = size;
      segment->last = block;
    }
  block->is_free = FALSE;
  if (missing > 0)
    {
      segment->top += missing;
      __atomic_add_fetch (&segment->heap->reserved, missing, __ATOMIC_RELAXED);
      /* The pages are made by the system as they are first touched. */
      __atomic_add_fetch (&segment->heap->system_calls, 1, __ATOMIC_RELAXED);
    }
  return block;
}

static Block *
segments_take (EbbHostHeap *heap,
               gsize size)
{
  Segment *segment;
  Block *block = NULL;

  for (segment = heap->segments; block == NULL && segment != NULL; segment = segment->next)
    block = segment_take (segment, size);
  if (block != NULL)
    return block;
  segment = segment_new (heap, &heap->segments, 1, size + sizeof (Block));
  return segment != NULL ? segment_take (segment, size) : NULL;
}

/* Cuts what @block has beyond @size off as a free block. */
static void
block_split (Block *block,
             gsize size)
{
  Segment *segment = block->segment;
  Block *rest;
  char *end = (char *) (block + 1) + block->size;

  if (block->size < size + sizeof (Block) + EBB_HOST_SMALL_LIMIT)
    return;
  rest = (Block *) ((char *) (block + 1) + size);
  unpoison (segment->heap, rest, sizeof (Block));
  rest->size = block->size - size - sizeof (Block);
  rest->below = block;
  rest->segment = segment;
  if (segment->last == block)
    segment->last = rest;
  else
    ((Block *) end)->below = rest;
  block->size = size;
  block_release (rest);
}

static void *
large_alloc_locked (EbbHostHeap *heap,
                    gsize size)
{
  Block *block = list_take (heap, size);

  if (block == NULL)
    block = segments_take (heap, size);
  if (block == NULL)
    return NULL;
  block_split (block, size);
  unpoison (heap, block + 1, block->size);
  return block + 1;
}

static void
large_free_locked (void *data)
{
  Block *block = (Block *) data - 1, *above, *below = block->below;
  Segment *segment = block->segment;

  poison (segment->heap, data, block->size);
  above = segment->last == block ? NULL : (Block *) ((char *) data + block->size);
  if (above != NULL && above->is_free)
    {
      block_claim (above);
      block->size += above->size + sizeof (Block);
      if (segment->last == above)
        segment->last = block;
      else
        ((Block *) ((char *) (block + 1) + block->size))->below = block;
    }
  if (below != NULL && below->is_free)
    {
      block_claim (below);
      below->size += block->size + sizeof (Block);
      if (segment->last == block)
        segment->last = below;
      else
        ((Block *) ((char *) (below + 1) + below->size))->below = below;
      block = below;
    }
  block_release (block);
}

/* -- small blocks -------------------------------------------------------------------------------------------------- */

static char *
take_chunk_locked (EbbHostHeap *heap)
{
  Segment *segment = heap->small_segments;

  if (segment == NULL || (gsize) (segment->end - segment->top) < EBB_HOST_SMALL_CHUNK)
    segment = segment_new (heap, &heap->small_segments, 16, EBB_HOST_SMALL_CHUNK);
  if (segment == NULL) /* the library's own objects must be had */
    return aligned_alloc (ALIGNMENT, EBB_HOST_SMALL_CHUNK);
  segment->top += EBB_HOST_SMALL_CHUNK;
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
  self->has_small_pages_ahead = TRUE; /* only the front of each block is ever touched */
  return self;
}

static void
segments_free (Segment *segment)
{
  while (segment != NULL)
    {
      Segment *next = segment->next;

      munmap (segment->mapped, (gsize) (segment->end - segment->mapped));
      g_free (segment);
      segment = next;
    }
}

void
ebb_host_heap_free (EbbHostHeap *self)
{
  segments_free (self->segments);
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
  data = large_alloc_locked (&host, (size + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1));
  pthread_mutex_unlock (&host.lock);
  return data;
}

void
ebb_host_free_large (void *data)
{
  pthread_mutex_lock (&host.lock);
  large_free_locked (data);
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
    data = large_alloc_locked (self, (size + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1));
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
    large_free_locked (data);
  pthread_mutex_unlock (&self->lock);
}

guint64
ebb_host_heap_get_extent (EbbHostHeap *self)
{
  return __atomic_load_n (&self->reserved, __ATOMIC_RELAXED);
}

/* -- the process' heap --------------------------------------------------------------------------------------------- */

void
ebb_host_set_no_space (gsize size,
                       GError **error)
{
  const gsize space = ebb_host_get_address_space ();

  if (space == G_MAXSIZE)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "no address space for %" G_GSIZE_FORMAT " more bytes", size);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                 "no address space for %" G_GSIZE_FORMAT " more bytes: ulimit -v leaves %" G_GSIZE_FORMAT
                 ", and %lu are for threads and libraries",
                 size, space, SPACE_FOR_OTHERS);
}

static void
trim_block (Block *block,
            gsize page)
{
  gsize start = ((gsize) (block + 1) + page - 1) & ~(page - 1);
  gsize end = ((gsize) (block + 1) + block->size) & ~(page - 1);

  if (end <= start)
    return;
  __atomic_add_fetch (&host.system_calls, 1, __ATOMIC_RELAXED);
  madvise ((void *) start, end - start, MADV_DONTNEED);
}

void
ebb_host_trim (void)
{
  gsize page = (gsize) sysconf (_SC_PAGESIZE);

  pthread_mutex_lock (&host.lock);
  for (guint c = 0; c < N_COARSE; c++)
    for (guint f = 0; f < N_FINE; f++)
      for (Block *block = host.free_lists[c][f]; block != NULL; block = block->next_free)
        trim_block (block, page);
  for (Segment *segment = host.segments; segment != NULL; segment = segment->next)
    if (segment->last != NULL && segment->last->is_free)
      trim_block (segment->last, page);
  pthread_mutex_unlock (&host.lock);
}

void
ebb_host_allow_huge_pages (void *data,
                           gsize size,
                           gboolean allow)
{
  const gsize begin = ((gsize) data + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), end = ((gsize) data + size) & ~(HUGE_PAGE - 1);

  if (begin < end)
    madvise ((void *) begin, end - begin, allow ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

void
ebb_host_allow_huge_pages_ahead (gboolean allow)
{
  pthread_mutex_lock (&host.lock);
  host.has_small_pages_ahead = !allow;
  for (Segment *segment = host.segments; segment != NULL; segment = segment->next)
    if (allow)
      madvise (segment->start, (gsize) (segment->end - segment->start), MADV_HUGEPAGE);
    else
      ebb_host_allow_huge_pages (segment->top, (gsize) (segment->end - segment->top), FALSE);
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
