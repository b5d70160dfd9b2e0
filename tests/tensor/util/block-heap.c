/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
/* The heap of offsets, beside one that looks at each unit of its range. */
#include "tensor/util/block-heap-private.h"

#include <string.h>

#define ALIGNMENT 64
#define N_UNITS 512
#define SIZE (N_UNITS * ALIGNMENT + ALIGNMENT - 1)
#define N_MOVES 20000
#define N_HELD 100

static gboolean units_used[N_UNITS];

static guint
count_units (gsize size)
{
  return size == 0 ? 1 : (guint) ((size + ALIGNMENT - 1) / ALIGNMENT);
}

/* Units in the free run that begins at unit @first. */
static guint
get_run (guint first)
{
  guint n = 0;

  while (first + n < N_UNITS && !units_used[first + n])
    n++;
  return n;
}

/* The unit that best fit chooses for @n units, or N_UNITS; @largest: the length of the longest free run. */
static guint
find_best (guint n,
           guint *largest)
{
  guint best = N_UNITS, best_run = N_UNITS + 1, run;

  *largest = 0;
  for (guint i = 0; i < N_UNITS; i += MAX (run, 1))
    {
      run = get_run (i);
      *largest = MAX (*largest, run);
      if (run >= n && run < best_run)
        {
          best = i;
          best_run = run;
        }
    }
  return best;
}

static void
mark (const EbbHeapBlock *block,
      gboolean used)
{
  for (gsize unit = block->offset / ALIGNMENT; unit < (block->offset + block->size) / ALIGNMENT; unit++)
    {
      g_assert_cmpint (units_used[unit], ==, !used);
      units_used[unit] = used;
    }
}

static gsize
draw_size (GRand *rand)
{
  const guint shift = (guint) g_rand_int_range (rand, 0, 14);

  return g_rand_int (rand) % (1u << shift);
}

static void
alloc_one (EbbBlockHeap *heap,
           GRand *rand,
           GPtrArray *held)
{
  const gsize size = draw_size (rand);
  guint largest, unit = find_best (count_units (size), &largest);
  EbbHeapBlock *block;

  /* A rest that is smaller than a unit counts to the piece before it, as long as that is free. */
  g_assert_cmpuint (ebb_block_heap_get_largest_free (heap) / ALIGNMENT, ==, largest);
  block = ebb_block_heap_alloc (heap, size);
  if (unit == N_UNITS)
    {
      g_assert_null (block);
      return;
    }
  g_assert_nonnull (block);
  g_assert_cmpuint (block->offset, ==, unit * ALIGNMENT);
  g_assert_cmpuint (block->size, ==, count_units (size) * ALIGNMENT);
  g_assert_cmpuint (block->asked, ==, size);
  g_assert_null (block->data);
  mark (block, TRUE);
  g_ptr_array_add (held, block);
}

static void
free_one (EbbBlockHeap *heap,
          GRand *rand,
          GPtrArray *held)
{
  EbbHeapBlock *block = g_ptr_array_remove_index_fast (held, (guint) g_rand_int_range (rand, 0, (gint32) held->len));

  mark (block, FALSE);
  ebb_block_heap_free (heap, block);
}

static void
check_find (EbbBlockHeap *heap,
            GRand *rand,
            GPtrArray *held)
{
  const gsize offset = (gsize) g_rand_int_range (rand, 0, 2 * SIZE);
  const gboolean is_used = offset < N_UNITS * ALIGNMENT && units_used[offset / ALIGNMENT];
  EbbHeapBlock *block = ebb_block_heap_find (heap, offset);

  g_assert_cmpint (block != NULL, ==, is_used);
  if (block != NULL)
    {
      g_assert_true (g_ptr_array_find (held, block, NULL));
      g_assert_cmpuint (offset - block->offset, <, block->size);
      g_assert_true (ebb_block_heap_find_exactly (heap, block->offset, block->asked) == block);
      g_assert_null (ebb_block_heap_find_exactly (heap, block->offset, block->asked + 1));
      g_assert_null (ebb_block_heap_find_exactly (heap, block->offset + 1, block->asked));
    }
}

static void
test_places (void)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);
  g_autoptr (GPtrArray) held = g_ptr_array_new ();
  EbbBlockHeap heap;
  gsize n_used = 0;

  ebb_block_heap_init (&heap, SIZE, ALIGNMENT);
  for (guint i = 0; i < N_MOVES; i++)
    {
      if (held->len < N_HELD && g_rand_int_range (rand, 0, 100) < 55)
        alloc_one (&heap, rand, held);
      else if (held->len > 0)
        free_one (&heap, rand, held);
      check_find (&heap, rand, held);
    }
  for (guint i = 0; i < held->len; i++)
    n_used += ((EbbHeapBlock *) held->pdata[i])->size;
  g_assert_cmpuint (n_used, >, 0);
  g_assert_cmpuint (heap.n_free, ==, SIZE - n_used);
  while (held->len > 0)
    free_one (&heap, rand, held);
  g_assert_cmpuint (ebb_block_heap_get_largest_free (&heap), ==, SIZE);
  g_assert_true (heap.first->next == NULL);
  ebb_block_heap_clear (&heap);
}

/* All that is free in one block, nothing more, and sizes that no sum can hold. */
static void
test_limits (void)
{
  EbbBlockHeap heap;
  EbbHeapBlock *block;

  ebb_block_heap_init (&heap, 1 << 20, 256);
  g_assert_null (ebb_block_heap_alloc (&heap, (1 << 20) + 1));
  g_assert_null (ebb_block_heap_alloc (&heap, G_MAXSIZE));
  block = ebb_block_heap_alloc (&heap, 1 << 20);
  g_assert_nonnull (block);
  g_assert_cmpuint (heap.n_free, ==, 0);
  g_assert_cmpuint (ebb_block_heap_get_largest_free (&heap), ==, 0);
  g_assert_null (ebb_block_heap_alloc (&heap, 0));
  g_assert_true (ebb_block_heap_find (&heap, (1 << 20) - 1) == block);
  g_assert_null (ebb_block_heap_find (&heap, 1 << 20));
  g_assert_null (ebb_block_heap_find (&heap, G_MAXSIZE));
  ebb_block_heap_free (&heap, block);
  g_assert_null (ebb_block_heap_find (&heap, 0));
  ebb_block_heap_clear (&heap);
}

/* More addresses than blocks may take together: a gap between them costs addresses alone. */
static void
test_capacity (void)
{
  g_autofree char *shortage = NULL;
  EbbBlockHeap heap;
  EbbHeapBlock *blocks[4];

  ebb_block_heap_init (&heap, 2048, 256);
  heap.capacity = 1024;
  for (guint i = 0; i < 4; i++)
    g_assert_nonnull (blocks[i] = ebb_block_heap_alloc (&heap, 200));
  g_assert_null (ebb_block_heap_alloc (&heap, 0));
  ebb_block_heap_free (&heap, blocks[0]);
  ebb_block_heap_free (&heap, blocks[2]);
  g_assert_null (ebb_block_heap_alloc (&heap, 513));
  shortage = ebb_block_heap_describe_shortage (&heap, 513);
  g_assert_cmpstr (shortage, ==, "513 bytes asked for, 512 of 1024 free, in pieces of at most 512");
  g_assert_cmpuint (ebb_block_heap_alloc (&heap, 512)->offset, ==, 1024);
  g_assert_null (ebb_block_heap_alloc (&heap, 1));
  ebb_block_heap_clear (&heap);
}

/* A range of addresses that no machine has memory for costs none. */
static void
test_addresses_alone (void)
{
  const gsize size = (gsize) 1 << 45;
  EbbBlockHeap heap;
  EbbHeapBlock *blocks[3];

  ebb_block_heap_init (&heap, size, 256);
  for (guint i = 0; i < 3; i++)
    blocks[i] = ebb_block_heap_alloc (&heap, size / 4);
  ebb_block_heap_free (&heap, blocks[1]);
  g_assert_cmpuint (heap.n_free, ==, size / 2);
  g_assert_cmpuint (ebb_block_heap_get_largest_free (&heap), ==, size / 4);
  g_assert_null (ebb_block_heap_alloc (&heap, size / 4 + 1));
  g_assert_cmpuint (ebb_block_heap_alloc (&heap, size / 8)->offset, ==, size / 4);
  ebb_block_heap_clear (&heap);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/block-heap/places-as-best-fit", test_places);
  g_test_add_func ("/block-heap/limits", test_limits);
  g_test_add_func ("/block-heap/capacity", test_capacity);
  g_test_add_func ("/block-heap/addresses-alone", test_addresses_alone);
  return g_test_run ();
}
