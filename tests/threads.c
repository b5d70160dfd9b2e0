/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <pthread.h>

/* One thread makes tensors, another drops them. */

#define N_ROUNDS 100
#define N_TENSORS 2000

/* POSIX's own primitives: ThreadSanitizer can't see into GLib's. */
typedef struct
{
  pthread_barrier_t turn; /* both threads wait for each other before and after each round */
  EbbTensor *tensors[N_TENSORS];
} Exchange;

/* Lives through all rounds, so that its lists are never given up. */
static void *
serve (void *data)
{
  const gint64 shape[] = { 8 };
  Exchange *exchange = data;

  for (guint round = 0; round < N_ROUNDS; round++)
    {
      for (guint i = 0; i < N_TENSORS; i++)
        exchange->tensors[i] = ebb_zeros (shape, 1, EBB_DTYPE_F32, NULL, NULL);
      pthread_barrier_wait (&exchange->turn);
      pthread_barrier_wait (&exchange->turn);
    }
  return NULL;
}

static guint64
get_reserved (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  return ebb_memory_stats_get_reserved (stats);
}

static void
small_tensors_dropped_elsewhere_are_used_again (void)
{
  g_autofree Exchange *exchange = g_new0 (Exchange, 1);
  pthread_t maker;
  guint64 early = 0;

  pthread_barrier_init (&exchange->turn, NULL, 2);
  g_assert_cmpint (pthread_create (&maker, NULL, serve, exchange), ==, 0);
  for (guint round = 0; round < N_ROUNDS; round++)
    {
      pthread_barrier_wait (&exchange->turn);
      for (guint i = 0; i < N_TENSORS; i++)
        ebb_tensor_unref (exchange->tensors[i]);
      if (round == 9)
        early = get_reserved ();
      pthread_barrier_wait (&exchange->turn);
    }
  pthread_join (maker, NULL);
  pthread_barrier_destroy (&exchange->turn);
  g_assert_cmpuint (get_reserved (), ==, early);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/threads/small-tensors-dropped-elsewhere-are-used-again",
                   small_tensors_dropped_elsewhere_are_used_again);
  return g_test_run ();
}
