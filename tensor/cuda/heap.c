/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device: blocks of one reserved range of addresses, whose pieces get memory as blocks reach them.
 *
 * A block that was freed may be used again at once, since all work that uses it is ordered before that on the compute
 * queue. Addresses depend on what was allocated and freed before, so a run that fits fits every time, and its kernels
 * see the same alignment every time. There are twice as many addresses as memory. When memory runs out, a piece that no
 * block reaches gives its own to one that needs it, so that gaps between blocks keep nothing out. Until then a step in
 * steady state asks the driver for nothing. */
#include "tensor/cuda/cuda-private.h"

static CUmemAllocationProp
get_properties (const EbbCudaDevice *device)
{
  return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->index } };
}

static gboolean
fail (const EbbCudaDevice *device,
      const char *what,
      CUresult result,
      GError **error)
{
  g_autofree char *reason = ebb_cuda_driver_error_to_string (result);

  return ebb_fail (error, EBB_ERROR_DEVICE, "%s: %s: %s", device->name, what, reason);
}

gboolean
ebb_cuda_heap_init (EbbCudaDevice *device,
                    gsize capacity,
                    GError **error)
{
  EbbCudaHeap *self = &device->heap;
  const CUmemAllocationProp properties = get_properties (device);
  size_t granularity = 0;
  CUdeviceptr base = 0;
  CUresult result;

  result = ebb_cuda_driver.mem_get_granularity (&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS)
    return fail (device, "the granularity of memory is unknown", result, error);
  self->piece = (MIN (EBB_CUDA_PIECE, capacity) + granularity - 1) / granularity * granularity;
  self->most_mapped = (capacity + self->piece - 1) / self->piece;
  self->n_pieces = 2 * self->most_mapped;
  result = ebb_cuda_driver.mem_address_reserve (&base, self->n_pieces * self->piece, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    return fail (device, "addresses for its memory can't be reserved", result, error);
  self->base = (gsize) base;
  self->reserved = self->n_pieces * self->piece;
  self->memory = g_new0 (CUmemGenericAllocationHandle, self->n_pieces);
  ebb_block_heap_init (&self->blocks, self->reserved, EBB_CUDA_ALIGNMENT);
  self->blocks.capacity = capacity;
  return TRUE;
}

/* Piece @i gets @memory, and keeps it. */
static CUresult
attach (EbbCudaDevice *device,
        gsize i,
        CUmemGenericAllocationHandle memory)
{
  EbbCudaHeap *self = &device->heap;
  const CUmemAllocationProp properties = get_properties (device);
  const CUmemAccessDesc access = { .location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
  const CUdeviceptr address = (CUdeviceptr) (self->base + i * self->piece);
  CUresult result = ebb_cuda_driver.mem_map (address, self->piece, 0, memory, 0);

  if (result == CUDA_SUCCESS)
    {
      result = ebb_cuda_driver.mem_set_access (address, self->piece, &access, 1);
      if (result != CUDA_SUCCESS)
        ebb_cuda_driver.mem_unmap (address, self->piece);
    }
  if (result != CUDA_SUCCESS)
    {
      ebb_cuda_driver.mem_release (memory);
      return result;
    }
  self->memory[i] = memory;
  self->n_mapped++;
  return CUDA_SUCCESS;
}

static CUresult
detach (EbbCudaHeap *self,
        gsize i,
        CUmemGenericAllocationHandle *memory)
{
  CUresult result = ebb_cuda_driver.mem_unmap ((CUdeviceptr) (self->base + i * self->piece), self->piece);

  if (result != CUDA_SUCCESS)
    return result;
  *memory = self->memory[i];
  self->memory[i] = 0;
  self->n_mapped--;
  return CUDA_SUCCESS;
}

/* The last piece that has memory and lies in a free block; n_pieces if there is none. */
static gsize
find_unused (const EbbCudaHeap *self)
{
  gsize found = self->n_pieces;

  for (const EbbHeapBlock *block = self->blocks.first; block != NULL; block = block->next)
    {
      const gsize first = (block->offset + self->piece - 1) / self->piece;

      if (block->in_use)
        continue;
      for (gsize i = (block->offset + block->size) / self->piece; i > first; i--)
        if (self->memory[i - 1] != 0)
          {
            found = i - 1;
            break;
          }
    }
  return found;
}

/* Takes the memory of a piece that no block reaches: what is enqueued may still use it, so the host waits. */
static CUresult
move_memory (EbbCudaDevice *device,
             CUmemGenericAllocationHandle *memory)
{
  EbbCudaHeap *self = &device->heap;
  const gsize unused = find_unused (self);

  if (unused == self->n_pieces)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (int i = 0; i < EBB_N_STREAMS; i++)
    if (cudaStreamSynchronize (device->streams[i].stream) != cudaSuccess)
      return CUDA_ERROR_INVALID_VALUE;
  return detach (self, unused, memory);
}

/* Gives piece @i memory: new memory while there is any, since another piece gives its own up only after a wait. */
static CUresult
map_piece (EbbCudaDevice *device,
           gsize i)
{
  EbbCudaHeap *self = &device->heap;
  const CUmemAllocationProp properties = get_properties (device);
  CUmemGenericAllocationHandle memory;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

  if (self->n_mapped < self->most_mapped)
    result = ebb_cuda_driver.mem_create (&memory, self->piece, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) /* there is no new memory */
    result = move_memory (device, &memory);
  return result == CUDA_SUCCESS ? attach (device, i, memory) : result;
}

static CUresult
map_block (EbbCudaDevice *device,
           const EbbHeapBlock *block)
{
  EbbCudaHeap *self = &device->heap;
  const gsize last = (block->offset + block->size - 1) / self->piece;

  for (gsize i = block->offset / self->piece; i <= last; i++)
    if (self->memory[i] == 0)
      {
        CUresult result = map_piece (device, i);

        if (result != CUDA_SUCCESS)
          return result;
      }
  return CUDA_SUCCESS;
}

/* The line that the library completes with who uses the memory. */
static void
set_no_memory (EbbCudaDevice *device,
               gsize size,
               gboolean was_asked_to_fail,
               GError **error)
{
  g_autofree char *shortage = ebb_block_heap_describe_shortage (&device->heap.blocks, size);

  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY, "%s%s", shortage, was_asked_to_fail ? " (asked to fail)" : "");
}

/* The driver has none left, although the heap is not full. */
static void
set_taken (EbbCudaDevice *device,
           gsize size,
           CUresult result,
           GError **error)
{
  EbbCudaHeap *self = &device->heap;
  g_autofree char *reason = ebb_cuda_driver_error_to_string (result);
  size_t n_free = 0, total = 0;

  if (result != CUDA_ERROR_OUT_OF_MEMORY)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "%s: memory for %" G_GSIZE_FORMAT " bytes can't be mapped: %s",
                   device->name, size, reason);
      return;
    }
  if (cudaMemGetInfo (&n_free, &total) != cudaSuccess)
    cudaGetLastError ();
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
               "%" G_GSIZE_FORMAT " bytes asked for, but the GPU has %" G_GSIZE_FORMAT " of its %" G_GSIZE_FORMAT
               " bytes left: this process has %" G_GSIZE_FORMAT ", other processes and libraries have the rest",
               size, (gsize) n_free, (gsize) total, self->n_mapped * self->piece);
}

void *
ebb_cuda_alloc (int index,
                gsize size,
                GError **error)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  EbbCudaHeap *self = &device->heap;
  EbbHeapBlock *block = NULL;
  gboolean fails;
  int previous;

  if (!ebb_cuda_begin (device, &previous, error))
    return NULL;
  fails = ebb_cuda_take_failure (device, EBB_FAILURE_ALLOC);
  if (!fails)
    block = ebb_block_heap_alloc (&self->blocks, size);
  if (block == NULL)
    set_no_memory (device, size, fails, error);
  else
    {
      CUresult result = map_block (device, block);

      if (result != CUDA_SUCCESS)
        {
          ebb_block_heap_free (&self->blocks, block);
          block = NULL;
          if (result == CUDA_ERROR_OUT_OF_MEMORY && self->n_mapped == self->most_mapped)
            set_no_memory (device, size, FALSE, error);
          else
            set_taken (device, size, result, error);
        }
    }
  ebb_cuda_end (device, previous);
  return block != NULL ? (void *) (self->base + block->offset) : NULL;
}

/* Works on a device that has ended, too: its tensors are still freed one by one. */
void
ebb_cuda_free (int index,
               void *data,
               gsize size)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);
  EbbHeapBlock *block;

  if (data == NULL)
    return;
  pthread_mutex_lock (&device->lock);
  block = ebb_block_heap_find_exactly (&device->heap.blocks, (gsize) data - device->heap.base, size);
  if (block != NULL)
    ebb_block_heap_free (&device->heap.blocks, block);
  pthread_mutex_unlock (&device->lock);
  g_return_if_fail (block != NULL);
}

void
ebb_cuda_get_taken (int index,
                    guint64 *device_bytes,
                    guint64 *host_bytes)
{
  EbbCudaDevice *device = ebb_cuda_device_get (index);

  if (device_bytes != NULL)
    {
      pthread_mutex_lock (&device->lock);
      *device_bytes = device->heap.n_mapped * device->heap.piece;
      pthread_mutex_unlock (&device->lock);
    }
  if (host_bytes != NULL)
    *host_bytes = ebb_cuda_get_pinned ();
}

void
ebb_cuda_heap_clear (EbbCudaDevice *device)
{
  EbbCudaHeap *self = &device->heap;

  if (self->memory == NULL) /* nothing was reserved */
    return;
  for (gsize i = 0; i < self->n_pieces; i++)
    {
      CUmemGenericAllocationHandle memory;

      if (self->memory[i] != 0 && detach (self, i, &memory) == CUDA_SUCCESS)
        ebb_cuda_driver.mem_release (memory);
    }
  ebb_cuda_driver.mem_address_free ((CUdeviceptr) self->base, self->reserved);
  ebb_block_heap_clear (&self->blocks);
  g_clear_pointer (&self->memory, g_free);
}
