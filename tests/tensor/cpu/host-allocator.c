/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"
#include "tensor/cpu/host-heap-private.h"

#include <pthread.h>

#define N_SLOTS 300
#define N_MOVES 6000
#define SMALL 2048 /* larger ones come from no thread's own list */
#define N_HOLES 20
#define HOLE 3008

typedef struct
{
  guint8 *data;
  gsize size;
  guint8 mark;
} Slot;

static gsize
draw_size (GRand *rand)
{
  guint shift = (guint) g_rand_int_range (rand, 0, 22);

  return 1 + g_rand_int (rand) % (1u << shift);
}

static void
slot_fill (Slot *slot,
           gsize size,
           guint8 mark)
{
  slot->data = ebb_host_alloc (size, NULL);
  g_assert_nonnull (slot->data);
  g_assert_cmpuint ((gsize) slot->data % 64, ==, 0);
  slot->size = size;
  slot->mark = mark;
  slot->data[0] = slot->data[size / 2] = slot->data[size - 1] = mark;
}

/* Another owner of a part of it would have written another mark there. */
static void
slot_empty (Slot *slot)
{
  g_assert_cmpuint (slot->data[0], ==, slot->mark);
  g_assert_cmpuint (slot->data[slot->size / 2], ==, slot->mark);
  g_assert_cmpuint (slot->data[slot->size - 1], ==, slot->mark);
  slot->data[0] = slot->data[slot->size / 2] = slot->data[slot->size - 1] = 0;
  ebb_host_free (slot->data, slot->size);
  slot->data = NULL;
}

/* One round: the same requests each time, and everything given back at its end. Returns a hash of where the large
 * blocks were. */
static guint64
run_round (guint32 seed)
{
  guint64 places = 0;
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  g_autofree Slot *slots = g_new0 (Slot, N_SLOTS);

  for (guint i = 0; i < N_MOVES; i++)
    {
      Slot *slot = &slots[g_rand_int_range (rand, 0, N_SLOTS)];

      if (slot->data != NULL)
        slot_empty (slot);
      else
        {
          slot_fill (slot, draw_size (rand), (guint8) (1 + i % 255));
          if (slot->size > SMALL)
            places = places * 31 + (gsize) slot->data;
        }
    }
  for (guint i = 0; i < N_SLOTS; i++)
    if (slots[i].data != NULL)
      slot_empty (&slots[i]);
  return places;
}

static void
blocks_do_not_overlap (void)
{
  for (guint32 seed = 0; seed < 10; seed++)
    run_round (seed);
}

/* Blocks that stay were allocated between blocks that are freed, as an optimizer's state is in the first step. */
static void
the_same_requests_find_the_same_places_again (void)
{
  Slot stays[N_HOLES], holes[N_HOLES];
  guint64 reserved, calls, places;

  for (guint32 seed = 100; seed < 110; seed++)
    {
      run_round (seed);
      for (guint i = 0; i < N_HOLES; i++)
        {
          slot_fill (&stays[i], HOLE, 7);
          slot_fill (&holes[i], HOLE, 8);
        }
      for (guint i = 0; i < N_HOLES; i++)
        slot_empty (&holes[i * 7 % N_HOLES]);
      places = run_round (seed);
      reserved = ebb_host_get_reserved ();
      calls = ebb_host_get_system_calls ();
      for (int i = 0; i < 5; i++)
        g_assert_cmpuint (run_round (seed), ==, places);
      g_assert_cmpuint (ebb_host_get_reserved (), ==, reserved);
      g_assert_cmpuint (ebb_host_get_system_calls (), ==, calls);
      for (guint i = 0; i < N_HOLES; i++)
        slot_empty (&stays[i]);
    }
}

/* All that was given back is one block again, the top of the heap included. */
static void
free_neighbours_merge (void)
{
  const gsize piece = 1 << 20, n = 64;
  g_autofree Slot *slots = g_new0 (Slot, n);
  guint64 reserved;
  Slot whole;

  for (gsize i = 0; i < n; i++)
    slot_fill (&slots[i], piece, (guint8) (1 + i));
  reserved = ebb_host_get_reserved ();
  for (gsize i = 0; i < n; i += 2)
    slot_empty (&slots[i]);
  for (gsize i = 1; i < n; i += 2)
    slot_empty (&slots[i]);
  slot_fill (&whole, n * piece, 9);
  g_assert_cmpuint (ebb_host_get_reserved (), ==, reserved);
  slot_empty (&whole);
}

static void
trimmed_memory_is_used_again (void)
{
  guint64 reserved;

  run_round (1);
  reserved = ebb_host_get_reserved ();
  ebb_host_heap_trim (ebb_host_heap_get_own ());
  run_round (1);
  g_assert_cmpuint (ebb_host_get_reserved (), ==, reserved);
}

static void *
run_in_thread (void *data)
{
  run_round (GPOINTER_TO_UINT (data));
  return NULL;
}

static void
threads_get_blocks_of_their_own (void)
{
  pthread_t threads[4];

  for (guint round = 0; round < 3; round++)
    {
      for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
        g_assert_cmpint (pthread_create (&threads[i], NULL, run_in_thread, GUINT_TO_POINTER (i + 1)), ==, 0);
      for (guint i = 0; i < G_N_ELEMENTS (threads); i++)
        pthread_join (threads[i], NULL);
    }
}

/* New threads reuse the memory of threads that ended. */
static void
a_thread_that_ends_leaves_its_small_blocks (void)
{
  guint64 reserved = 0;

  for (guint i = 0; i < 20; i++)
    {
      pthread_t thread;

      g_assert_cmpint (pthread_create (&thread, NULL, run_in_thread, GUINT_TO_POINTER (1)), ==, 0);
      pthread_join (thread, NULL);
      if (i == 2)
        reserved = ebb_host_get_reserved ();
    }
  g_assert_cmpuint (ebb_host_get_reserved (), ==, reserved);
}

static void
larger_huge_pages_are_not_used (void)
{
  g_assert_true (ebb_host_has_huge_pages (4 << 10));
  g_assert_false (ebb_host_has_huge_pages (16 << 10));
  g_assert_false (ebb_host_has_huge_pages (64 << 10));
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/host-allocator/the-same-requests-find-the-same-places-again",
                   the_same_requests_find_the_same_places_again);
  g_test_add_func ("/host-allocator/blocks-do-not-overlap", blocks_do_not_overlap);
  g_test_add_func ("/host-allocator/free-neighbours-merge", free_neighbours_merge);
  g_test_add_func ("/host-allocator/trimmed-memory-is-used-again", trimmed_memory_is_used_again);
  g_test_add_func ("/host-allocator/threads-get-blocks-of-their-own", threads_get_blocks_of_their_own);
  g_test_add_func ("/host-allocator/a-thread-that-ends-leaves-its-small-blocks",
                   a_thread_that_ends_leaves_its_small_blocks);
  g_test_add_func ("/host-allocator/larger-huge-pages-are-not-used", larger_huge_pages_are_not_used);
  return g_test_run ();
}
