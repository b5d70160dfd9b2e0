/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/host-allocator-private.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void) (address), (void) (size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void) (address), (void) (size))
#endif

/* Two-level segregated fit (Masmano et al., 2004): free blocks hang in lists by size, 32 lists for each power of two,
 * so finding, splitting and merging take constant time and waste at most 3 %. Blocks lie in segments of address space
 * that is reserved at once and becomes real page by page as the top of a segment rises; neighbours that are free merge,
 * so what one step used serves the next whatever the order of its sizes.
 *
 * Small blocks come from per-thread lists without a lock, refilled from large blocks. */

#define ALIGNMENT 64
#define SMALL_LIMIT 2048
#define N_SMALL (SMALL_LIMIT / ALIGNMENT)
#define SMALL_CHUNK (64 * 1024)
#define FINE_BITS 5
#define N_FINE (1 << FINE_BITS)
#define MIN_SHIFT 6
#define N_COARSE 48
#define LARGE_LIMIT (1ul << (MIN_SHIFT + N_COARSE - 2)) /* beyond any address space, within the lists */
#define HUGE_PAGE (2ul << 20)
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEGMENT_SIZE (4ul << 30)
#else
#define SEGMENT_SIZE (256ul << 30)
#endif

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
  char *start, *top, *end; /* [start, top) is divided into blocks */
  Block *last;
  Segment *next;
};

typedef struct _Small Small;

struct _Small
{
  Small *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block *free_lists[N_COARSE][N_FINE];
static guint64 coarse_map;
static guint32 fine_maps[N_COARSE];
static Segment *segments;
static Small *orphans[N_SMALL]; /* from threads that ended, or that free more than they allocate */
static guint64 reserved, system_calls;

static __thread Small *small_lists[N_SMALL];
static __thread guint small_counts[N_SMALL];
static __thread gboolean thread_known;
static pthread_key_t thread_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

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

static void
list_insert (Block *block)
{
  guint c, f;

  size_to_list (block->size, &c, &f);
  block->is_free = TRUE;
  block->previous_free = NULL;
  block->next_free = free_lists[c][f];
  if (block->next_free)
    block->next_free->previous_free = block;
  free_lists[c][f] = block;
  coarse_map |= 1ul << c;
  fine_maps[c] |= 1u << f;
}

static void
list_remove (Block *block)
{
  guint c, f;

  size_to_list (block->size, &c, &f);
  if (block->next_free)
    block->next_free->previous_free = block->previous_free;
  if (block->previous_free)
    block->previous_free->next_free = block->next_free;
  else
    {
      free_lists[c][f] = block->next_free;
      if (block->next_free == NULL)
        {
          fine_maps[c] &= ~(1u << f);
          if (fine_maps[c] == 0)
            coarse_map &= ~(1ul << c);
        }
    }
  block->is_free = FALSE;
}

/* A free block of at least @size, taken off its list; NULL if there is none. */
static Block *
list_take (gsize size)
{
  guint c, f, shift = 63 - (guint) __builtin_clzl (size);
  guint32 fine;
  guint64 coarse;
  Block *block;

  /* With the size rounded up to a list's least, every block of the list fits. */
  size_to_list (size + (1ul << (shift - FINE_BITS)) - 1, &c, &f);
  fine = fine_maps[c] & (~0u << f);
  if (fine == 0)
    {
      coarse = coarse_map & (~0ul << (c + 1));
      if (coarse == 0)
        return NULL;
      c = (guint) __builtin_ctzl (coarse);
      fine = fine_maps[c];
    }
  block = free_lists[c][__builtin_ctz (fine)];
  list_remove (block);
  return block;
}

/* -- segments ------------------------------------------------------------------------------------------------------ */

static Segment *
segment_new (gsize least)
{
  Segment *segment;
  gsize size = MAX (SEGMENT_SIZE, least + 2 * HUGE_PAGE);
  char *start = MAP_FAILED;

  /* Address space may be limited: ask for less down to what is needed. */
  while (start == MAP_FAILED)
    {
      system_calls++;
      start = mmap (NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start != MAP_FAILED)
        break;
      if (size <= least + 2 * HUGE_PAGE)
        return NULL;
      size = MAX (size / 4, least + 2 * HUGE_PAGE);
    }
  segment = g_new0 (Segment, 1);
  segment->start = (char *) (((gsize) start + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
  segment->top = segment->start;
  segment->end = start + size;
  segment->next = segments;
  segments = segment;
  madvise (segment->start, (gsize) (segment->end - segment->start), MADV_HUGEPAGE);
  return segment;
}

/* A new block at the top of a segment, or the free one that ends there, enlarged. */
static Block *
segment_extend (gsize size)
{
  Segment *segment = segments;
  Block *block;
  gsize grown = size + sizeof (Block);

  /* Large enough as it is, though the lists, which round sizes up, did not find it. */
  if (segment != NULL && segment->last != NULL && segment->last->is_free && segment->last->size >= size)
    {
      list_remove (segment->last);
      return segment->last;
    }
  if (segment == NULL || (gsize) (segment->end - segment->top) < grown)
    segment = segment_new (grown);
  if (segment == NULL)
    return NULL;

  block = segment->last;
  if (block != NULL && block->is_free)
    {
      list_remove (block);
      grown = size - block->size;
      block->size = size;
    }
  else
    {
      block = (Block *) segment->top;
      block->below = segment->last;
      block->segment = segment;
      block->is_free = FALSE;
      block->size = size;
      segment->last = block;
    }
  segment->top += grown;
  reserved += grown;
  system_calls++; /* the pages are made by the system as they are first touched */
  return block;
}

/* Cuts what @block has beyond @size off as a free block. */
static void
block_split (Block *block,
             gsize size)
{
  Segment *segment = block->segment;
  Block *rest;
  char *end = (char *) (block + 1) + block->size;

  if (block->size < size + sizeof (Block) + SMALL_LIMIT)
    return;
  rest = (Block *) ((char *) (block + 1) + size);
  ASAN_UNPOISON_MEMORY_REGION (rest, sizeof (Block));
  rest->size = block->size - size - sizeof (Block);
  rest->below = block;
  rest->segment = segment;
  if (segment->last == block)
    segment->last = rest;
  else
    ((Block *) end)->below = rest;
  block->size = size;
  list_insert (rest);
}

static void *
large_alloc_locked (gsize size)
{
  Block *block = list_take (size);

  if (block == NULL)
    block = segment_extend (size);
  if (block == NULL)
    return NULL;
  block_split (block, size);
  ASAN_UNPOISON_MEMORY_REGION (block + 1, block->size);
  return block + 1;
}

static void
large_free_locked (void *data)
{
  Block *block = (Block *) data - 1, *above, *below = block->below;
  Segment *segment = block->segment;

  ASAN_POISON_MEMORY_REGION (data, block->size);
  above = segment->last == block ? NULL : (Block *) ((char *) data + block->size);
  if (above != NULL && above->is_free)
    {
      list_remove (above);
      block->size += above->size + sizeof (Block);
      if (segment->last == above)
        segment->last = block;
      else
        ((Block *) ((char *) (block + 1) + block->size))->below = block;
    }
  if (below != NULL && below->is_free)
    {
      list_remove (below);
      below->size += block->size + sizeof (Block);
      if (segment->last == block)
        segment->last = below;
      else
        ((Block *) ((char *) (below + 1) + below->size))->below = below;
      block = below;
    }
  list_insert (block);
}

/* -- small blocks -------------------------------------------------------------------------------------------------- */

static guint
chunk_count (guint index)
{
  return SMALL_CHUNK / ((index + 1) * ALIGNMENT);
}

/* Moves at most @n blocks from one list to another; returns how many. */
static guint
small_move (Small **from,
            Small **to,
            guint index,
            guint n)
{
  guint moved = 0;

  for (; *from != NULL && moved < n; moved++)
    {
      Small *small = *from;

      ASAN_UNPOISON_MEMORY_REGION (small, sizeof (Small));
      *from = small->next;
      small->next = *to;
      *to = small;
      ASAN_POISON_MEMORY_REGION (small, (index + 1) * ALIGNMENT);
    }
  return moved;
}

static void
thread_ended (void *data)
{
  thread_known = FALSE; /* what is freed after this calls again */
  pthread_mutex_lock (&lock);
  for (guint i = 0; i < N_SMALL; i++)
    {
      small_move (&small_lists[i], &orphans[i], i, G_MAXUINT);
      small_counts[i] = 0;
    }
  pthread_mutex_unlock (&lock);
}

/* Where one thread allocates what another frees, blocks must find their way back. */
static void
small_give_back (guint index)
{
  pthread_mutex_lock (&lock);
  small_counts[index] -= small_move (&small_lists[index], &orphans[index], index, chunk_count (index));
  pthread_mutex_unlock (&lock);
}

static void
make_key (void)
{
  pthread_key_create (&thread_key, thread_ended);
}

/* Fills this thread's list @index, with what ended threads left or from a new chunk. */
static gboolean
small_refill (guint index)
{
  gsize size = (index + 1) * ALIGNMENT;
  char *chunk = NULL;

  pthread_once (&once, make_key);
  if (!thread_known)
    {
      pthread_setspecific (thread_key, &thread_known);
      thread_known = TRUE;
    }
  pthread_mutex_lock (&lock);
  small_counts[index] = small_move (&orphans[index], &small_lists[index], index, chunk_count (index));
  if (small_lists[index] == NULL)
    chunk = large_alloc_locked (SMALL_CHUNK);
  pthread_mutex_unlock (&lock);

  for (gsize at = 0; chunk != NULL && at + size <= SMALL_CHUNK; at += size)
    {
      Small *small = (Small *) (chunk + at);

      small->next = small_lists[index];
      small_lists[index] = small;
      small_counts[index]++;
      ASAN_POISON_MEMORY_REGION (small, size);
    }
  return small_lists[index] != NULL;
}

void *
ebb_host_alloc (gsize size,
                GError **error)
{
  void *data;

  size = MAX (size, 1);
  if (size <= SMALL_LIMIT)
    {
      guint index = (guint) ((size - 1) / ALIGNMENT);
      Small *small = small_lists[index];

      if (G_UNLIKELY (small == NULL))
        {
          if (!small_refill (index))
            goto failed;
          small = small_lists[index];
        }
      ASAN_UNPOISON_MEMORY_REGION (small, (index + 1) * ALIGNMENT);
      small_lists[index] = small->next;
      small_counts[index]--;
      return small;
    }

  if (size > LARGE_LIMIT)
    goto failed;
  pthread_mutex_lock (&lock);
  data = large_alloc_locked ((size + ALIGNMENT - 1) & ~(gsize) (ALIGNMENT - 1));
  pthread_mutex_unlock (&lock);
  if (data != NULL)
    return data;

failed:
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "no address space for %" G_GSIZE_FORMAT " more bytes", size);
  return NULL;
}

void
ebb_host_free (void *data,
               gsize size)
{
  size = MAX (size, 1);
  if (size <= SMALL_LIMIT)
    {
      guint index = (guint) ((size - 1) / ALIGNMENT);
      Small *small = data;

      if (G_UNLIKELY (!thread_known))
        {
          pthread_once (&once, make_key);
          pthread_setspecific (thread_key, &thread_known);
          thread_known = TRUE;
        }
      small->next = small_lists[index];
      small_lists[index] = small;
      ASAN_POISON_MEMORY_REGION (small, (index + 1) * ALIGNMENT);
      if (G_UNLIKELY (++small_counts[index] > 2 * chunk_count (index)))
        small_give_back (index);
      return;
    }
  pthread_mutex_lock (&lock);
  large_free_locked (data);
  pthread_mutex_unlock (&lock);
}

void
ebb_host_trim (void)
{
  gsize page = (gsize) sysconf (_SC_PAGESIZE);

  pthread_mutex_lock (&lock);
  for (guint c = 0; c < N_COARSE; c++)
    for (guint f = 0; f < N_FINE; f++)
      for (Block *block = free_lists[c][f]; block != NULL; block = block->next_free)
        {
          gsize start = ((gsize) (block + 1) + page - 1) & ~(page - 1);
          gsize end = ((gsize) (block + 1) + block->size) & ~(page - 1);

          if (end > start)
            {
              system_calls++;
              madvise ((void *) start, end - start, MADV_DONTNEED);
            }
        }
  pthread_mutex_unlock (&lock);
}

guint64
ebb_host_get_reserved (void)
{
  return __atomic_load_n (&reserved, __ATOMIC_RELAXED);
}

guint64
ebb_host_get_system_calls (void)
{
  return __atomic_load_n (&system_calls, __ATOMIC_RELAXED);
}

static guint64
read_number (const char *path)
{
  g_autofree char *text = NULL;
  guint64 value;

  if (!g_file_get_contents (path, &text, NULL, NULL))
    return G_MAXUINT64;
  g_strchomp (text);
  return g_ascii_string_to_unsigned (text, 10, 1, G_MAXUINT64, &value, NULL) ? value : G_MAXUINT64;
}

guint64
ebb_host_get_physical_memory (void)
{
  guint64 physical = (guint64) sysconf (_SC_PHYS_PAGES) * (guint64) sysconf (_SC_PAGESIZE);

  physical = MIN (physical, read_number ("/sys/fs/cgroup/memory.max"));
  return MIN (physical, read_number ("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
}
