/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory, which copies run from and to beside computing. All devices share it.
 *
 * Pinning takes milliseconds and unpinning waits for the devices. So small blocks share slabs, and slabs of which
 * nothing is in use stay pinned for the next blocks: up to SPARE bytes, those that were used last. */
#include "tensor/cuda/cuda-private.h"

#define PAGE ((gsize) 4096)
#define SLAB ((gsize) 32 << 20)
/* A block that would leave much of a slab unused gets one of its own, whose next block must be about as large. */
#define LARGE (SLAB / 32)
/* A shared slab, a disk store's staging memory, and what three of its blocks are read into at a time. */
#define SPARE ((gsize) 96 << 20)

typedef struct
{
  char *data;
  gsize size;
  gboolean is_shared;
  EbbBlockHeap blocks;
} Slab;

static struct
{
  pthread_mutex_t lock;
  GPtrArray *slabs; /* of Slab; those that are empty in the order in which they became so */
  gsize pinned;     /* bytes */
} memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void
slab_free (gpointer data)
{
  Slab *slab = data;

  ebb_block_heap_clear (&slab->blocks);
  g_free (slab);
}

static gboolean
is_empty (const Slab *slab)
{
  return slab->blocks.n_free == slab->size;
}

static void
unpin (EbbCudaDevice *device,
       guint i)
{
  Slab *slab = memory.slabs->pdata[i];

  memory.pinned -= slab->size;
  if (ebb_cuda_check_alive (device, NULL))
    {
      int previous = ebb_cuda_enter (device->index);

      if (cudaFreeHost (slab->data) != cudaSuccess)
        cudaGetLastError ();
      ebb_cuda_leave (previous);
    }
  g_ptr_array_remove_index (memory.slabs, i);
}

/* Leaves @most bytes of empty slabs pinned. */
static void
unpin_spare (EbbCudaDevice *device,
             gsize most)
{
  gsize spare = 0;

  for (guint i = memory.slabs != NULL ? memory.slabs->len : 0; i-- > 0;)
    {
      const Slab *slab = memory.slabs->pdata[i];

      if (!is_empty (slab))
        continue;
      if (spare + slab->size > most)
        unpin (device, i);
      else
        spare += slab->size;
    }
}

static cudaError_t
pin (EbbCudaDevice *device,
     gsize size,
     void **data)
{
  int previous = ebb_cuda_enter (device->index);
  cudaError_t status = cudaHostAlloc (data, size, cudaHostAllocPortable);

  if (status != cudaSuccess)
    cudaGetLastError ();
  ebb_cuda_leave (previous);
  return status;
}

static Slab *
slab_new (EbbCudaDevice *device,
          gsize size,
          GError **error)
{
  const gboolean is_shared = size <= LARGE;
  void *data = NULL;
  cudaError_t status;
  Slab *slab;

  size = is_shared ? SLAB : (size + PAGE - 1) / PAGE * PAGE;
  status = pin (device, size, &data);
  if (status == cudaErrorMemoryAllocation)
    {
      unpin_spare (device, 0);
      status = pin (device, size, &data);
    }
  if (status != cudaSuccess)
    {
      g_autofree char *reason = ebb_cuda_error_to_string (status);

      return ebb_fail_null (error, EBB_ERROR_NO_MEMORY,
                            "out of host memory for copies of %s: %" G_GSIZE_FORMAT
                            " bytes can't be pinned beside %" G_GSIZE_FORMAT " that are: %s",
                            device->name, size, memory.pinned, reason);
    }
  slab = g_new0 (Slab, 1);
  slab->data = data;
  slab->size = size;
  slab->is_shared = is_shared;
  ebb_block_heap_init (&slab->blocks, size, PAGE);
  if (memory.slabs == NULL)
    memory.slabs = g_ptr_array_new_with_free_func (slab_free);
  g_ptr_array_add (memory.slabs, slab);
  memory.pinned += size;
  return slab;
}

static EbbHeapBlock *
find_space (gsize size,
            Slab **slab)
{
  for (guint i = 0; memory.slabs != NULL && i < memory.slabs->len; i++)
    {
      EbbHeapBlock *block;

      *slab = memory.slabs->pdata[i];
      if (!(*slab)->is_shared && (!is_empty (*slab) || size < (*slab)->size - (*slab)->size / 32))
        continue;
      block = ebb_block_heap_alloc (&(*slab)->blocks, size);
      if (block != NULL)
        return block;
    }
  return NULL;
}

static gboolean
take_failure (EbbCudaDevice *device,
              gsize size,
              GError **error)
{
  gboolean fails;

  pthread_mutex_lock (&device->lock);
  fails = ebb_cuda_take_failure (device, EBB_FAILURE_ALLOC_HOST);
  pthread_mutex_unlock (&device->lock);
  if (fails)
    g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                 "out of host memory for copies of %s: %" G_GSIZE_FORMAT " bytes asked for (asked to fail)",
                 device->name, size);
  return fails;
}

void *
ebb_cuda_alloc_host (int index,
                     gsize size,
                     GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  EbbHeapBlock *block;
  Slab *slab = NULL;

  if (!ebb_cuda_check_alive (device, error) || take_failure (device, size, error))
    return NULL;
  EBB_AUTO_LOCK (&memory.lock);
  block = find_space (size, &slab);
  if (block == NULL)
    {
      slab = slab_new (device, size, error);
      block = slab != NULL ? ebb_block_heap_alloc (&slab->blocks, size) : NULL;
    }
  return block != NULL ? slab->data + block->offset : NULL;
}

/* Moves slab @i, which is empty now, behind those that were empty before it. */
static void
keep_spare (EbbCudaDevice *device,
            guint i)
{
  g_ptr_array_add (memory.slabs, memory.slabs->pdata[i]);
  g_ptr_array_steal_index (memory.slabs, i);
  unpin_spare (device, SPARE);
}

void
ebb_cuda_free_host (int index,
                    void *data,
                    gsize size)
{
  EbbHeapBlock *block = NULL;

  if (data == NULL)
    return;
  pthread_mutex_lock (&memory.lock);
  for (guint i = 0; memory.slabs != NULL && i < memory.slabs->len && block == NULL; i++)
    {
      Slab *slab = memory.slabs->pdata[i];

      block = ebb_block_heap_find_exactly (&slab->blocks, (gsize) data - (gsize) slab->data, size);
      if (block == NULL)
        continue;
      ebb_block_heap_free (&slab->blocks, block);
      if (is_empty (slab))
        keep_spare (ebb_cuda_device_get (index), i);
    }
  pthread_mutex_unlock (&memory.lock);
  g_return_if_fail (block != NULL);
}

void
ebb_cuda_trim_host (int index)
{
  EBB_AUTO_LOCK (&memory.lock);
  unpin_spare (ebb_cuda_device_get (index), 0);
}

void
ebb_cuda_lock_host_memory (void)
{
  pthread_mutex_lock (&memory.lock);
}

void
ebb_cuda_unlock_host_memory (void)
{
  pthread_mutex_unlock (&memory.lock);
}

guint64
ebb_cuda_get_pinned (void)
{
  guint64 pinned;

  EBB_AUTO_LOCK (&memory.lock);
  pinned = memory.pinned;
  return pinned;
}
