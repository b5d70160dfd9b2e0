/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory, which copies run from and to beside computing. All devices share it.
 *
 * Pinning takes milliseconds and unpinning waits for the devices, so blocks come from slabs that stay pinned until none
 * of their blocks is in use. */
#include "tensor/cuda/cuda-private.h"

#define PAGE ((gsize) 4096)
#define SLAB ((gsize) 32 << 20)
/* A block that would leave much of a slab unused gets one of its own. */
#define LARGE (SLAB / 32)

typedef struct
{
  char *data;
  gsize size;
  EbbBlockHeap blocks;
} Slab;

static struct
{
  pthread_mutex_t lock;
  GPtrArray *slabs; /* of Slab, in the order of their making */
  gsize pinned;     /* bytes */
} memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void
slab_free (gpointer data)
{
  Slab *slab = data;

  ebb_block_heap_clear (&slab->blocks);
  g_free (slab);
}

static Slab *
slab_new (EbbCudaDevice *device,
          gsize size,
          GError **error)
{
  void *data = NULL;
  cudaError_t status;
  Slab *slab;
  int previous = ebb_cuda_enter (device->index);

  status = cudaHostAlloc (&data, size, cudaHostAllocPortable);
  if (status != cudaSuccess)
    {
      g_autofree char *reason = ebb_cuda_error_to_string (status);

      cudaGetLastError ();
      g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
                   "out of host memory for copies of %s: %" G_GSIZE_FORMAT
                   " bytes can't be pinned beside %" G_GSIZE_FORMAT " that are: %s",
                   device->name, size, memory.pinned, reason);
    }
  ebb_cuda_leave (previous);
  if (status != cudaSuccess)
    return NULL;
  slab = g_new0 (Slab, 1);
  slab->data = data;
  slab->size = size;
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
      EbbHeapBlock *block = ebb_block_heap_alloc (&((Slab *) memory.slabs->pdata[i])->blocks, size);

      if (block != NULL)
        {
          *slab = memory.slabs->pdata[i];
          return block;
        }
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
  pthread_mutex_lock (&memory.lock);
  block = find_space (size, &slab);
  if (block == NULL)
    {
      slab = slab_new (device, size > LARGE ? (size + PAGE - 1) / PAGE * PAGE : SLAB, error);
      block = slab != NULL ? ebb_block_heap_alloc (&slab->blocks, size) : NULL;
    }
  pthread_mutex_unlock (&memory.lock);
  return block != NULL ? slab->data + block->offset : NULL;
}

/* One empty slab stays, so that a block that comes and goes costs nothing. */
static gboolean
is_only_spare (const Slab *slab)
{
  for (guint i = 0; i < memory.slabs->len; i++)
    {
      const Slab *other = memory.slabs->pdata[i];

      if (other != slab && other->size == SLAB && other->blocks.n_free == SLAB)
        return FALSE;
    }
  return slab->size == SLAB;
}

void
ebb_cuda_free_host (int index,
                    void *data,
                    gsize size)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  gboolean found = FALSE;

  if (data == NULL)
    return;
  pthread_mutex_lock (&memory.lock);
  for (guint i = 0; memory.slabs != NULL && i < memory.slabs->len && !found; i++)
    {
      Slab *slab = memory.slabs->pdata[i];
      const gsize offset = (gsize) data - (gsize) slab->data;
      EbbHeapBlock *block = ebb_block_heap_find_exactly (&slab->blocks, offset, size);

      if (block == NULL)
        continue;
      found = TRUE;
      ebb_block_heap_free (&slab->blocks, block);
      if (slab->blocks.n_free < slab->size || is_only_spare (slab))
        continue;
      memory.pinned -= slab->size;
      if (ebb_cuda_check_alive (device, NULL))
        {
          int previous = ebb_cuda_enter (index);

          if (cudaFreeHost (slab->data) != cudaSuccess)
            cudaGetLastError ();
          ebb_cuda_leave (previous);
        }
      g_ptr_array_remove_index (memory.slabs, i);
    }
  pthread_mutex_unlock (&memory.lock);
  g_return_if_fail (found);
}

guint64
ebb_cuda_get_pinned (void)
{
  guint64 pinned;

  pthread_mutex_lock (&memory.lock);
  pinned = memory.pinned;
  pthread_mutex_unlock (&memory.lock);
  return pinned;
}
