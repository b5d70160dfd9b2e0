/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Heaps in address space that is reserved or mapped as needed: the process' own, and those of dry runs. */
#include "tensor/cpu/host-blocks-private.h"

#include "tensor/util/lock-private.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT EBB_HOST_ALIGNMENT
#define HUGE_PAGE EBB_HOST_HUGE_PAGE

static EbbHostHeap host = { .lock = PTHREAD_MUTEX_INITIALIZER,
                            .pools = { [EBB_HOST_MEDIUM] = { .heap = &host, .unit_shift = EBB_HOST_MEDIUM_UNIT_SHIFT },
                                       [EBB_HOST_LARGE] = { .heap = &host, .unit_shift = EBB_HOST_LARGE_UNIT_SHIFT } },
                            .max_resident = G_MAXSIZE };

/* -- small blocks -------------------------------------------------------------------------------------------------- */

static char *
take_chunk_locked (EbbHostHeap *heap)
{
  EbbHostSegment *segment = heap->small_segments;

  if (segment == NULL || (gsize) (segment->end - segment->top) < EBB_HOST_SMALL_CHUNK)
    segment = ebb_host_segment_new (heap, NULL, 16, EBB_HOST_SMALL_CHUNK);
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
  EBB_AUTO_LOCK (&host.lock);
  return take_chunk_locked (&host);
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
  for (guint i = 0; i < EBB_HOST_N_POOLS; i++)
    {
      self->pools[i].heap = self;
      self->pools[i].unit_shift = host.pools[i].unit_shift;
    }
  self->max_resident = G_MAXSIZE;
  self->is_dry = self->has_small_pages_ahead = TRUE;
  return self;
}

void
ebb_host_heap_free (EbbHostHeap *self)
{
  for (guint i = 0; i < EBB_HOST_N_POOLS; i++)
    ebb_host_segments_free (self->pools[i].segments);
  ebb_host_segments_free (self->small_segments);
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}

void *
ebb_host_alloc_large (gsize size)
{
  if (size > EBB_HOST_LARGE_LIMIT)
    return NULL;
  EBB_AUTO_LOCK (&host.lock);
  return ebb_host_blocks_alloc (&host, size);
}

void
ebb_host_free_large (void *data,
                     gsize size)
{
  EBB_AUTO_LOCK (&host.lock);
  ebb_host_blocks_free (&host, data, size);
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
  else if (size <= EBB_HOST_LARGE_LIMIT)
    data = ebb_host_blocks_alloc (self, size);
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
  EBB_AUTO_LOCK (&self->lock);
  if (size <= EBB_HOST_SMALL_LIMIT)
    {
      EbbHostSmall *small = data;
      const guint index = (guint) ((MAX (size, 1) - 1) / ALIGNMENT);

      small->next = self->small[index];
      self->small[index] = small;
    }
  else
    ebb_host_blocks_free (self, data, size);
}

gboolean
ebb_host_heap_map (EbbHostHeap *self,
                   void *data,
                   gsize size,
                   GError **error)
{
  gboolean ok = TRUE;

  if (size <= EBB_HOST_SMALL_LIMIT)
    return TRUE;
  pthread_mutex_lock (&self->lock);
  ok = ebb_host_blocks_map (self, data, size);
  pthread_mutex_unlock (&self->lock);
  if (!ok)
    ebb_host_set_no_space (size, error);
  return ok;
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
  EBB_AUTO_LOCK (&self->lock);
  self->max_resident = n_bytes < G_MAXUINT64 ? n_bytes / HUGE_PAGE : G_MAXSIZE;
  if (self->n_resident > ebb_host_blocks_get_most_resident (self))
    ebb_host_blocks_give_back (self, self->n_resident - ebb_host_blocks_get_most_resident (self));
}

guint64
ebb_host_heap_get_extent (EbbHostHeap *self)
{
  EBB_AUTO_LOCK (&self->lock);
  return self->n_needed * HUGE_PAGE + self->n_chunks * EBB_HOST_SMALL_CHUNK;
}

guint64
ebb_host_heap_get_resident (EbbHostHeap *self)
{
  guint64 n_bytes;

  pthread_mutex_lock (&self->lock);
  n_bytes = ebb_host_blocks_count_resident (self);
  pthread_mutex_unlock (&self->lock);
  return n_bytes;
}

/* -- the process' heap --------------------------------------------------------------------------------------------- */

static void
allow_huge_pages_above (EbbHostSegment *segment,
                        gboolean allow)
{
  char *from = allow ? segment->start : segment->top;

  ebb_host_allow_huge_pages (from, (gsize) (segment->end - from), allow);
}

void
ebb_host_heap_trim (EbbHostHeap *self)
{
  EBB_AUTO_LOCK (&self->lock);
  ebb_host_blocks_give_back (self, self->n_resident);
}

void
ebb_host_trim (void)
{
  ebb_host_heap_trim (&host);
#ifdef __GLIBC__
  malloc_trim (0);
#endif
}

void
ebb_host_allow_huge_pages_ahead (gboolean allow)
{
  EBB_AUTO_LOCK (&host.lock);
  host.has_small_pages_ahead = !allow;
  for (guint i = 0; i < EBB_HOST_N_POOLS; i++)
    for (EbbHostSegment *segment = host.pools[i].segments; segment != NULL; segment = segment->next)
      allow_huge_pages_above (segment, allow);
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
