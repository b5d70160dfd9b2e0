/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device: blocks of one reserved range of addresses, whose pieces get memory as blocks first reach them.
 *
 * A block that was freed may be used again at once, since all work that uses it is ordered before that on the compute
 * queue. Addresses depend on what was allocated and freed before, so a run that fits fits every time, and its kernels
 * see the same alignment every time. Pieces keep their memory to the end: a step in steady state asks the driver for
 * nothing. */
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

  g_set_error (error, EBB_ERROR, EBB_ERROR_DEVICE, "%s: %s: %s", device->name, what, reason);
  return FALSE;
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
  self->n_pieces = (capacity + self->piece - 1) / self->piece;
  result = ebb_cuda_driver.mem_address_reserve (&base, self->n_pieces * self->piece, 0, 0, 0);
  if (result != CUDA_SUCCESS)
    return fail (device, "addresses for its memory can't be reserved", result, error);
  self->base = (gsize) base;
  self->capacity = capacity;
  self->reserved = self->n_pieces * self->piece;
  self->is_mapped = g_new0 (guint8, self->n_pieces);
  ebb_block_heap_init (&self->blocks, capacity, EBB_CUDA_ALIGNMENT);
  return TRUE;
}

/* Gives piece @i memory. */
static CUresult
map_piece (EbbCudaDevice *device,
           gsize i)
{
  EbbCudaHeap *self = &device->heap;
  const CUmemAllocationProp properties = get_properties (device);
  const CUmemAccessDesc access = { .location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
  const CUdeviceptr address = (CUdeviceptr) (self->base + i * self->piece);
  CUmemGenericAllocationHandle handle;
  CUresult result = ebb_cuda_driver.mem_create (&handle, self->piece, &properties, 0);

  if (result != CUDA_SUCCESS)
    return result;
  result = ebb_cuda_driver.mem_map (address, self->piece, 0, handle, 0);
  if (result == CUDA_SUCCESS)
    {
      result = ebb_cuda_driver.mem_set_access (address, self->piece, &access, 1);
      if (result != CUDA_SUCCESS)
        ebb_cuda_driver.mem_unmap (address, self->piece);
    }
  /* The mapping holds the memory from now on. */
  ebb_cuda_driver.mem_release (handle);
  if (result != CUDA_SUCCESS)
    return result;
  self->is_mapped[i] = TRUE;
  self->n_mapped++;
  return CUDA_SUCCESS;
}

static CUresult
map_block (EbbCudaDevice *device,
           const EbbHeapBlock *block)
{
  EbbCudaHeap *self = &device->heap;
  const gsize last = (block->offset + block->size - 1) / self->piece;

  for (gsize i = block->offset / self->piece; i <= last; i++)
    if (!self->is_mapped[i])
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
ebb_cuda_heap_clear (EbbCudaDevice *device)
{
  EbbCudaHeap *self = &device->heap;

  if (self->is_mapped == NULL) /* nothing was reserved */
    return;
  for (gsize i = 0; i < self->n_pieces; i++)
    if (self->is_mapped[i])
      ebb_cuda_driver.mem_unmap ((CUdeviceptr) (self->base + i * self->piece), self->piece);
  ebb_cuda_driver.mem_address_free ((CUdeviceptr) self->base, self->reserved);
  ebb_block_heap_clear (&self->blocks);
  g_clear_pointer (&self->is_mapped, g_free);
}
