/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The k largest or smallest elements of rows, in order. A block takes a row: it looks k times for the next one where k
 * is small, else it sorts the row (Batcher's bitonic network) in workspace. */
#include "tensor/cuda/kernels/row.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define FEW 64 /* up to so many are looked for one by one */

/* index -1: nothing, which comes after everything else */
typedef struct
{
  double value;
  gint64 index;
} Item;

typedef struct
{
  const void *x;
  void *values;    /* NULL: not wanted */
  gint64 *indices; /* NULL: not wanted */
  EbbDType dtype;
  gint64 n_rows, n, k;
  bool is_float, is_largest;
  Item *sorted; /* [rows, size] */
  gint64 size;  /* the next power of two */
} Topk;

/* By value, where a NaN is the largest, then by index. */
static __device__ __forceinline__ bool
comes_before (bool is_largest,
              const Item &a,
              const Item &b)
{
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;

  if (a.index < 0 || b.index < 0)
    return a.index >= 0;
  if (a_is_nan != b_is_nan)
    return a_is_nan == is_largest;
  if (a.value == b.value || a_is_nan)
    return a.index < b.index;
  return (a.value > b.value) == is_largest;
}

static __device__ __forceinline__ Item
load_item (const Topk &self,
           gint64 row,
           gint64 i)
{
  const gint64 at = row * self.n + i;

  return Item{ self.is_float ? load_float (self.dtype, self.x, at) : (double) load_integer (self.dtype, self.x, at),
               i };
}

static __device__ __forceinline__ void
put_item (const Topk &self,
          gint64 row,
          gint64 place,
          gint64 index)
{
  const gint64 from = row * self.n + index, to = row * self.k + place;

  if (self.indices != NULL)
    self.indices[to] = index;
  if (self.values != NULL && self.is_float)
    store_float (self.dtype, self.values, to, load_float (self.dtype, self.x, from));
  else if (self.values != NULL)
    store_integer (self.dtype, self.values, to, load_integer (self.dtype, self.x, from));
}

__global__ void __launch_bounds__ (THREADS)
find_few (Topk self)
{
  EBB_SHARED_ARRAY (Item, warps, [WARPS]);

  for (gint64 row = blockIdx.x; row < self.n_rows; row += gridDim.x)
    {
      Item last = { 0, -1 };

      for (gint64 place = 0; place < self.k; place++)
        {
          Item best = { 0, -1 };

          for (gint64 i = threadIdx.x; i < self.n; i += THREADS)
            {
              const Item item = load_item (self, row, i);

              if ((place == 0 || comes_before (self.is_largest, last, item))
                  && comes_before (self.is_largest, item, best))
                best = item;
            }
          for (int distance = 16; distance > 0; distance >>= 1)
            {
              Item other;

              other.value = __shfl_xor_sync (EBB_CUDA_ALL_LANES, best.value, distance);
              other.index = __shfl_xor_sync (EBB_CUDA_ALL_LANES, best.index, distance);
              if (comes_before (self.is_largest, other, best))
                best = other;
            }
          if (threadIdx.x % 32 == 0)
            warps[threadIdx.x / 32] = best;
          __syncthreads ();
          for (int i = 0; i < WARPS; i++)
            if (comes_before (self.is_largest, warps[i], best))
              best = warps[i];
          __syncthreads ();
          last = best;
          if (threadIdx.x == 0)
            put_item (self, row, place, best.index);
        }
    }
}

__global__ void __launch_bounds__ (THREADS)
sort_rows (Topk self)
{
  for (gint64 row = blockIdx.x; row < self.n_rows; row += gridDim.x)
    {
      Item *items = self.sorted + row * self.size;

      for (gint64 i = threadIdx.x; i < self.size; i += THREADS)
        items[i] = i < self.n ? load_item (self, row, i) : Item{ 0, -1 };
      __syncthreads ();
      for (gint64 length = 2; length <= self.size; length *= 2)
        for (gint64 distance = length / 2; distance > 0; distance /= 2)
          {
            for (gint64 i = threadIdx.x; i < self.size; i += THREADS)
              {
                const gint64 other = i ^ distance;
                const bool is_up = (i & length) == 0;

                if (other > i && comes_before (self.is_largest, items[other], items[i]) == is_up)
                  {
                    const Item swap = items[i];

                    items[i] = items[other];
                    items[other] = swap;
                  }
              }
            __syncthreads ();
          }
      for (gint64 place = threadIdx.x; place < self.k; place += THREADS)
        put_item (self, row, place, items[place].index);
    }
}

static gint64
find_size (gint64 n)
{
  gint64 size = 1;

  while (size < n)
    size *= 2;
  return size;
}

EBB_CUDA_WORKSPACE (topk)
{
  const EbbView *x = launch->inputs[0];

  if (launch->params.topk.k <= FEW)
    return 0;
  return (gsize) (count_rows (x) * find_size (count_columns (x))) * sizeof (Item);
}

EBB_CUDA_KERNEL (topk)
{
  const EbbView *x = launch->inputs[0], *values = get_output (launch, 0), *indices = get_output (launch, 1);
  Topk self;
  unsigned n_blocks;

  self.x = x->data;
  self.values = values != NULL ? values->data : NULL;
  self.indices = indices != NULL ? (gint64 *) indices->data : NULL;
  self.dtype = x->dtype;
  self.n_rows = count_rows (x);
  self.n = count_columns (x);
  self.k = launch->params.topk.k;
  self.is_float = is_float_dtype (x->dtype);
  self.is_largest = launch->params.topk.largest != FALSE;
  self.sorted = (Item *) launch->workspace;
  self.size = find_size (self.n);
  if (self.n_rows == 0 || self.k == 0)
    return cudaSuccess;
  n_blocks = (unsigned) (self.n_rows < G_MAXINT32 ? self.n_rows : G_MAXINT32);
  if (self.k <= FEW)
    return EBB_CUDA_LAUNCH (find_few, n_blocks, THREADS, 0, queue->stream, self);
  return EBB_CUDA_LAUNCH (sort_rows, n_blocks, THREADS, 0, queue->stream, self);
}
