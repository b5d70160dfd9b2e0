/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"
#include "tensor/cpu/host-blocks-private.h"

#include <string.h>
#include <sys/mman.h>

/* A heap keeps its resident memory below a bound, as the system counts it, and a heap of a dry run knows what it will
 * need, to the byte. */

#define N_SLOTS 40
#define N_MOVES 800
#define SMALL 2048
#define PAGE ((gsize) 4096)
#define GRANULE ((gsize) 64 << 10) /* of what is mapped */
#define HUGE_PAGE ((gsize) 2 << 20)
#define WIDEST ((gsize) 512 << 20)

enum
{
  MEDIUM,
  LARGE,
  N_POOLS
};

typedef struct
{
  EbbHostHeap *heap;
  gboolean is_used;   /* its blocks are filled and looked at; else it is a dry run's */
  char *low[N_POOLS]; /* the lowest huge page with blocks */
  char *slots[N_SLOTS];
} Traffic;

/* All blocks of a pool lie within so much of their lowest one. */
static const gsize windows[N_POOLS] = { [MEDIUM] = 64 << 20, [LARGE] = WIDEST };
static gsize sizes[N_SLOTS];

/* Now mostly smaller ones, now larger ones, for which the gaps that those leave are too small. */
static gsize
draw_size (GRand *rand,
           guint move)
{
  static const gint32 least[] = { 4 << 20, SMALL, 6 << 20, 20 << 10, 9 << 20 };
  const gint32 size = least[move / 100 % G_N_ELEMENTS (least)];

  return (gsize) g_rand_int_range (rand, size + 1, size + (1 << 20));
}

static guint64
count_resident (const Traffic *self,
                guint pool)
{
  unsigned char pages[GRANULE / PAGE];
  guint64 n = 0;

  for (gsize at = 0; self->low[pool] != NULL && at < windows[pool]; at += GRANULE)
    if (mincore (self->low[pool] + at, GRANULE, pages) == 0) /* else it isn't mapped */
      for (guint i = 0; i < G_N_ELEMENTS (pages); i++)
        n += pages[i] & 1;
  return n * PAGE;
}

static void
take (Traffic *self,
      guint slot)
{
  const guint pool = sizes[slot] > (64 << 10) ? LARGE : MEDIUM;
  char *data = ebb_host_heap_alloc (self->heap, sizes[slot], NULL), *page;

  g_assert_nonnull (data);
  self->slots[slot] = data;
  if (!self->is_used)
    return;
  page = (char *) ((gsize) data & ~(HUGE_PAGE - 1));
  g_assert_true (self->low[pool] == NULL || page >= self->low[pool]);
  if (self->low[pool] == NULL)
    self->low[pool] = page;
  g_assert_true (data + sizes[slot] < self->low[pool] + windows[pool]);
  g_assert_true (ebb_host_heap_map (self->heap, data, sizes[slot], NULL));
  memset (data, (int) slot + 1, sizes[slot]);
}

static void
release (Traffic *self,
         guint slot)
{
  char *data = g_steal_pointer (&self->slots[slot]);

  for (gsize i = 0; self->is_used && i < sizes[slot]; i += PAGE / 2)
    g_assert_cmpint (data[i], ==, (int) slot + 1);
  ebb_host_heap_release (self->heap, data, sizes[slot]);
}

/* Bytes that may be resident: the huge pages in which blocks lie, or lay and which weren't given back since. */
static guint64
get_resident (const EbbHostHeap *heap)
{
  return heap->n_resident * HUGE_PAGE + heap->n_chunks * EBB_HOST_SMALL_CHUNK;
}

static void
check_resident (const Traffic *self,
                guint64 bound)
{
  const guint64 resident = get_resident (self->heap);

  g_assert_cmpuint (resident, <=, bound);
  g_assert_cmpuint (count_resident (self, MEDIUM) + count_resident (self, LARGE), <=, resident);
}

/* The same on each of @heaps, of which the first one has the bound. */
static void
run_traffic (guint32 seed,
             Traffic *heaps,
             guint n_heaps,
             guint64 bound)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);

  for (guint i = 0; i < N_MOVES; i++)
    {
      const guint slot = (guint) g_rand_int_range (rand, 0, N_SLOTS);
      const gboolean is_free = heaps[0].slots[slot] == NULL;

      if (is_free)
        sizes[slot] = draw_size (rand, i);
      for (guint k = 0; k < n_heaps; k++)
        (is_free ? take : release) (&heaps[k], slot);
      if (i % 32 == 0)
        check_resident (&heaps[0], bound);
    }
}

static void
traffic_clear (Traffic *self)
{
  ebb_host_heap_free (self->heap);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Traffic, traffic_clear)

static void
a_bound_is_kept_that_a_dry_run_has_found (void)
{
  for (guint32 seed = 0; seed < 3; seed++)
    {
      g_auto (Traffic) dry = { .heap = ebb_host_heap_new () };
      g_auto (Traffic) real = { .heap = ebb_host_heap_new (), .is_used = TRUE };
      g_auto (Traffic) again = { .heap = ebb_host_heap_new () };
      Traffic both[2];
      guint64 bound;

      run_traffic (seed, &dry, 1, G_MAXUINT64);
      bound = ebb_host_heap_get_extent (dry.heap);
      g_assert_cmpuint (bound, <, get_resident (dry.heap));
      ebb_host_heap_set_bound (real.heap, bound);
      both[0] = real;
      both[1] = again;
      run_traffic (seed, both, 2, bound);
      g_assert_cmpuint (ebb_host_heap_get_extent (real.heap), ==, bound);
      g_assert_cmpuint (ebb_host_heap_get_extent (again.heap), ==, bound);
    }
}

/* Blocks get the pages that they need, and blocks of whole pages need no more. */
static void
a_bound_that_is_too_low_gives_everything_else_back (void)
{
  g_auto (Traffic) real = { .heap = ebb_host_heap_new (), .is_used = TRUE };

  ebb_host_heap_set_bound (real.heap, 1);
  for (guint i = 0; i < 3; i++)
    {
      sizes[i] = 10 << 20;
      take (&real, i);
    }
  g_assert_cmpuint (ebb_host_heap_get_extent (real.heap), ==, 15 * HUGE_PAGE);
  g_assert_cmpuint (get_resident (real.heap), ==, 15 * HUGE_PAGE);
  release (&real, 1);
  sizes[3] = 12 << 20; /* it doesn't fit between the others */
  take (&real, 3);
  check_resident (&real, 16 * HUGE_PAGE);
  g_assert_cmpuint (ebb_host_heap_get_extent (real.heap), ==, 16 * HUGE_PAGE);
  for (guint i = 0; i < 4; i += i == 0 ? 2 : 1)
    release (&real, i);
}

/* Half of 256 MiB is freed in gaps of 8, and larger blocks go above them: of the gaps a 32nd of what was needed stays,
 * and 8 MiB. */
static void
without_a_bound_few_gaps_stay (void)
{
  g_auto (Traffic) real = { .heap = ebb_host_heap_new (), .is_used = TRUE };
  guint64 needed;

  for (guint i = 0; i < 32; i++)
    {
      sizes[i] = 8 << 20;
      take (&real, i);
    }
  for (guint i = 0; i < 32; i += 2)
    release (&real, i);
  for (guint i = 0; i < 26; i += 2)
    {
      sizes[i] = 9 << 20;
      take (&real, i);
    }
  needed = ebb_host_heap_get_extent (real.heap);
  g_assert_cmpuint (needed, <=, 258 << 20);
  check_resident (&real, needed + needed / 32 + (8 << 20));
  for (guint i = 0; i < 26; i++)
    release (&real, i);
  for (guint i = 27; i < 32; i += 2)
    release (&real, i);
}

static void
the_limit_of_the_cpu_is_the_bound_of_the_process (void)
{
  EbbHostHeap *heap = ebb_host_heap_get_own ();
  const guint64 before = get_resident (heap);
  void *blocks[32];

  for (guint i = 0; i < G_N_ELEMENTS (blocks); i++)
    blocks[i] = ebb_host_alloc (5 << 20, NULL);
  for (guint i = 0; i < G_N_ELEMENTS (blocks); i++)
    {
      memset (blocks[i], 1, 5 << 20);
      if (i % 4 != 0)
        ebb_host_free (blocks[i], 5 << 20);
    }
  g_assert_cmpuint (get_resident (heap), >=, before + (160 << 20));
  ebb_memory_set_limit (NULL, 80 << 20);
  g_assert_cmpuint (get_resident (heap), <=, 80 << 20);
  ebb_memory_set_limit (NULL, 0);
  for (guint i = 0; i < G_N_ELEMENTS (blocks); i += 4)
    ebb_host_free (blocks[i], 5 << 20);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/heap-bound/a-bound-is-kept-that-a-dry-run-has-found", a_bound_is_kept_that_a_dry_run_has_found);
  g_test_add_func ("/heap-bound/a-bound-that-is-too-low-gives-everything-else-back",
                   a_bound_that_is_too_low_gives_everything_else_back);
  g_test_add_func ("/heap-bound/without-a-bound-few-gaps-stay", without_a_bound_few_gaps_stay);
  g_test_add_func ("/heap-bound/the-limit-of-the-cpu-is-the-bound-of-the-process",
                   the_limit_of_the_cpu_is_the_bound_of_the_process);
  return g_test_run ();
}
