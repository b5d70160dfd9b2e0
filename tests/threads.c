/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

/* One thread makes tensors, another drops them. */

#define N_ROUNDS 100
#define N_TENSORS 2000

static gpointer
make_tensors (gpointer data)
{
  const gint64 shape[] = { 8 };
  EbbTensor **tensors = data;

  for (guint i = 0; i < N_TENSORS; i++)
    tensors[i] = ebb_zeros (shape, 1, EBB_DTYPE_F32, NULL, NULL);
  return NULL;
}

typedef struct
{
  GAsyncQueue *wanted, *made;
} Maker;

/* Lives through all rounds, so that its lists are never given up. */
static gpointer
serve (gpointer data)
{
  Maker *maker = data;

  for (guint i = 0; i < N_ROUNDS; i++)
    {
      gpointer tensors = g_async_queue_pop (maker->wanted);

      make_tensors (tensors);
      g_async_queue_push (maker->made, tensors);
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
  g_autofree EbbTensor **tensors = g_new0 (EbbTensor *, N_TENSORS);
  g_autoptr (GAsyncQueue) wanted = g_async_queue_new ();
  g_autoptr (GAsyncQueue) made = g_async_queue_new ();
  Maker maker = { wanted, made };
  GThread *thread = g_thread_new ("maker", serve, &maker);
  guint64 early = 0;

  for (guint i = 0; i < N_ROUNDS; i++)
    {
      g_async_queue_push (wanted, tensors);
      g_async_queue_pop (made);
      for (guint j = 0; j < N_TENSORS; j++)
        ebb_tensor_unref (tensors[j]);
      if (i == 9)
        early = get_reserved ();
    }
  g_thread_join (thread);
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
