/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/cpu/host-heap-private.h"

#include "tensor/object-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

/* Allocates tensor memory and the library's objects on the host: large blocks from the heap, small ones from lists of
 * the thread, without a lock. */

#define ALIGNMENT EBB_HOST_ALIGNMENT
#define N_SMALL EBB_HOST_N_SMALL
#define SMALL_LIMIT EBB_HOST_SMALL_LIMIT
#define SMALL_CHUNK EBB_HOST_SMALL_CHUNK

typedef EbbHostSmall Small;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Small *orphans[N_SMALL]; /* from threads that ended, or that free more than they allocate */

typedef struct
{
  Small *lists[N_SMALL];
  guint counts[N_SMALL];
} Cache;

/* Of this thread; made at its first use. A pointer, so that it costs no call to find in a shared library. */
static __thread Cache *thread_cache __attribute__ ((tls_model ("initial-exec")));
static pthread_key_t thread_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* -- small blocks -------------------------------------------------------------------------------------------------- */

static guint
chunk_count (guint index)
{
  return SMALL_CHUNK / ((index + 1) * ALIGNMENT);
}

/* Moves at most @n blocks from one list to another; returns how many. */
static guint
small_move (EbbHostSmall **from,
            EbbHostSmall **to,
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
  Cache *cache = data;

  thread_cache = NULL; /* what is freed after this makes another */
  pthread_mutex_lock (&lock);
  for (guint i = 0; i < N_SMALL; i++)
    small_move (&cache->lists[i], &orphans[i], i, G_MAXUINT);
  pthread_mutex_unlock (&lock);
  g_free (cache);
}

static void
make_key (void)
{
  pthread_key_create (&thread_key, thread_ended);
}

static __attribute__ ((noinline)) Cache *
make_cache (void)
{
  pthread_once (&once, make_key);
  thread_cache = g_new0 (Cache, 1);
  pthread_setspecific (thread_key, thread_cache);
  return thread_cache;
}

static inline Cache *
get_cache (void)
{
  Cache *cache = thread_cache;

  return G_LIKELY (cache != NULL) ? cache : make_cache ();
}

/* Where one thread allocates what another frees, blocks must find their way back. */
static void
small_give_back (Cache *cache,
                 guint index)
{
  EBB_AUTO_LOCK (&lock);
  cache->counts[index] -= small_move (&cache->lists[index], &orphans[index], index, chunk_count (index));
}

/* Fills the list @index, with what other threads gave back or from a new chunk. */
static gboolean
small_refill (Cache *cache,
              guint index)
{
  gsize size = (index + 1) * ALIGNMENT;
  char *chunk = NULL;

  pthread_mutex_lock (&lock);
  cache->counts[index] = small_move (&orphans[index], &cache->lists[index], index, chunk_count (index));
  pthread_mutex_unlock (&lock);
  if (cache->lists[index] == NULL)
    chunk = ebb_host_take_chunk ();

  for (gsize at = 0; chunk != NULL && at + size <= SMALL_CHUNK; at += size)
    {
      Small *small = (Small *) (chunk + at);

      small->next = cache->lists[index];
      cache->lists[index] = small;
      cache->counts[index]++;
      ASAN_POISON_MEMORY_REGION (small, size);
    }
  return cache->lists[index] != NULL;
}

static inline void *
small_alloc (gsize size)
{
  guint index = (guint) ((size - 1) / ALIGNMENT);
  Cache *cache = get_cache ();
  Small *small = cache->lists[index];

  if (G_UNLIKELY (small == NULL))
    {
      if (!small_refill (cache, index))
        return NULL;
      small = cache->lists[index];
    }
  ASAN_UNPOISON_MEMORY_REGION (small, (index + 1) * ALIGNMENT);
  cache->lists[index] = small->next;
  cache->counts[index]--;
  return small;
}

static inline void
small_free (void *data,
            gsize size)
{
  guint index = (guint) ((size - 1) / ALIGNMENT);
  Cache *cache = get_cache ();
  Small *small = data;

  small->next = cache->lists[index];
  cache->lists[index] = small;
  ASAN_POISON_MEMORY_REGION (small, (index + 1) * ALIGNMENT);
  if (G_UNLIKELY (++cache->counts[index] > 2 * chunk_count (index)))
    small_give_back (cache, index);
}

void *
ebb_host_alloc (gsize size,
                GError **error)
{
  void *data;

  size = MAX (size, 1);
  data = size <= SMALL_LIMIT ? small_alloc (size) : ebb_host_alloc_large (size);
  if (G_UNLIKELY (data == NULL))
    ebb_host_set_no_space (size, error);
  return data;
}

void
ebb_host_free (void *data,
               gsize size)
{
  size = MAX (size, 1);
  if (size <= SMALL_LIMIT)
    small_free (data, size);
  else
    ebb_host_free_large (data, size);
}

/* The library's own objects: malloc's where a sanitizer is to see who leaks one or uses it too late. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

void *
ebb_object_alloc (gsize size)
{
  return g_malloc (size);
}

void
ebb_object_free (void *object,
                 gsize size)
{
  g_free (object);
}

#else

void *
ebb_object_alloc (gsize size)
{
  void *object = size <= SMALL_LIMIT ? small_alloc (size) : g_malloc (size);

  if (G_UNLIKELY (object == NULL))
    g_error ("no address space for %" G_GSIZE_FORMAT " more bytes", size);
  return object;
}

void
ebb_object_free (void *object,
                 gsize size)
{
  if (size <= SMALL_LIMIT)
    small_free (object, size);
  else
    g_free (object);
}

#endif
