/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Selecting by index and the gradients of that. An index that is out of range is reported; a read then takes element 0
 * in its place, a write is left out. Sums have the order of the index: no result depends on which block runs first. */
#include "tensor/cuda/kernels/row.cuh"

typedef struct
{
  const void *data;
  bool is_wide; /* i64, else i32 */
  gint64 stride, limit;
  EbbCudaFault *fault;
  guint32 serial;
} Index;

static inline Index
get_index (const EbbView *view,
           gint64 limit,
           const EbbCudaQueue *queue)
{
  const Index index = { view->data, view->dtype == EBB_DTYPE_I64,
                        view->n_dims > 0 ? view->strides[view->n_dims - 1] : 0, limit, queue->fault, queue->serial };

  return index;
}

/* The value at an offset, which is at a position of the index; -1 if it is out of range. */
static __device__ __forceinline__ gint64
load_index (const Index &index,
            gint64 offset,
            gint64 position,
            bool reports)
{
  const gint64 value = index.is_wide ? ((const gint64 *) index.data)[offset] : ((const gint32 *) index.data)[offset];

  if (value >= 0 && value < index.limit)
    return value;
  if (reports)
    fault_report (index.fault, index.serial, position, value, index.limit);
  return -1;
}

/* Nothing can be selected from a dimension of size 0: the first index is the fault, and no result is written. */
static __global__ void
report_first (Index index)
{
  load_index (index, 0, 0, true);
}

/* -- select -------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *x;
  void *y;
  gint64 strides[3]; /* of x */
  gint64 n_rows, k, inner;
  Index index;
} Select;

/* T: whole elements, or 16 bytes of them, in which inner and the strides are then counted. */
template <typename T>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
select_rows (Select self)
{
  for (gint64 i = get_thread (); i < self.n_rows * self.inner; i += count_threads ())
    {
      const gint64 row = i / self.inner, column = i - row * self.inner, outer = row / self.k, position = row % self.k;
      const gint64 found = load_index (self.index, position * self.index.stride, position, column == 0);
      const gint64 at = outer * self.strides[0] + (found < 0 ? 0 : found) * self.strides[1] + column * self.strides[2];

      ((T *) self.y)[i] = ((const T *) self.x)[at];
    }
}

EBB_CUDA_KERNEL (index_select)
{
  const EbbView *x = launch->inputs[0];
  EbbView *y = launch->outputs[0];
  const gint64 size = get_dtype_size (x->dtype), of_vector = 16 / size;
  Select self = { x->data,
                  y->data,
                  { x->strides[0], x->strides[1], x->strides[2] },
                  y->shape[0] * y->shape[1],
                  y->shape[1],
                  y->shape[2],
                  get_index (launch->inputs[1], x->shape[1], queue) };
  unsigned n_blocks;

  if (self.n_rows == 0 || self.inner == 0)
    return cudaSuccess;
  if (self.index.limit == 0)
    return EBB_CUDA_LAUNCH (report_first, 1, 1, 0, queue->stream, self.index);
  if (self.strides[2] == 1 && self.inner % of_vector == 0 && self.strides[0] % of_vector == 0
      && self.strides[1] % of_vector == 0 && is_vector_aligned (x->data) && is_vector_aligned (y->data))
    {
      self.inner /= of_vector;
      self.strides[0] /= of_vector;
      self.strides[1] /= of_vector;
      return EBB_CUDA_LAUNCH (select_rows<uint4>, count_blocks (self.n_rows * self.inner, queue), ELEMENTWISE_THREADS,
                              0, queue->stream, self);
    }
  n_blocks = count_blocks (self.n_rows * self.inner, queue);
  switch (size)
    {
    case 8: return EBB_CUDA_LAUNCH (select_rows<guint64>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self);
    case 4: return EBB_CUDA_LAUNCH (select_rows<guint32>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self);
    case 2: return EBB_CUDA_LAUNCH (select_rows<guint16>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self);
    default: return EBB_CUDA_LAUNCH (select_rows<guint8>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self);
    }
}

/* -- sorting an index ---------------------------------------------------------------------------------------------- */

/* Positions are sorted by their values, equal ones in their order: a radix sort by digits of 8 bits from the lowest on.
 * Each pass counts the digits of each chunk, sums the counts, digit by digit and chunk by chunk, and moves the items of
 * each chunk in order. */

#define SORT_THREADS 256
#define SORT_CHUNK 2048
#define DIGITS 256

typedef struct
{
  guint32 value, position;
} SortItem;

typedef struct
{
  SortItem *items, *moved; /* [k] each */
  guint32 *counts;         /* [DIGITS, chunks] */
  gint64 k;
  unsigned n_chunks, shift;
} Sort;

/* Values that are out of range become the limit, which sorts last. */
__global__ void __launch_bounds__ (SORT_THREADS)
make_sort_items (Sort self,
                 Index index)
{
  for (gint64 i = get_thread (); i < self.k; i += count_threads ())
    {
      const gint64 value = load_index (index, i * index.stride, i, true);

      self.items[i] = SortItem{ (guint32) (value < 0 ? index.limit : value), (guint32) i };
    }
}

static __device__ __forceinline__ gint64
get_chunk_end (const Sort &self)
{
  const gint64 end = (gint64) (blockIdx.x + 1) * SORT_CHUNK;

  return end < self.k ? end : self.k;
}

__global__ void __launch_bounds__ (SORT_THREADS)
count_digits (Sort self)
{
  EBB_SHARED_ARRAY (guint32, counts, [DIGITS]);

  counts[threadIdx.x] = 0;
  __syncthreads ();
  for (gint64 i = (gint64) blockIdx.x * SORT_CHUNK + threadIdx.x; i < get_chunk_end (self); i += SORT_THREADS)
    atomicAdd (&counts[self.items[i].value >> self.shift & 0xff], 1u);
  __syncthreads ();
  self.counts[threadIdx.x * self.n_chunks + blockIdx.x] = counts[threadIdx.x];
}

/* One block: counts become the number of items before theirs. */
__global__ void __launch_bounds__ (SORT_THREADS)
sum_counts (Sort self)
{
  EBB_SHARED_ARRAY (guint32, totals, [DIGITS]);
  guint32 *own = self.counts + (gint64) threadIdx.x * self.n_chunks, before = 0;

  for (unsigned i = 0; i < self.n_chunks; i++)
    {
      const guint32 n = own[i];

      own[i] = before;
      before += n;
    }
  totals[threadIdx.x] = before;
  __syncthreads ();
  before = 0;
  for (unsigned i = 0; i < threadIdx.x; i++)
    before += totals[i];
  for (unsigned i = 0; i < self.n_chunks; i++)
    own[i] += before;
}

/* The first warp moves a chunk's items, 32 at a time and in order; the lanes with one digit find each other by the
 * digit's bits. */
__global__ void __launch_bounds__ (SORT_THREADS)
move_items (Sort self)
{
  EBB_SHARED_ARRAY (guint32, next, [DIGITS]);
  const gint64 end = get_chunk_end (self);
  const unsigned lane = threadIdx.x;

  next[threadIdx.x] = self.counts[threadIdx.x * self.n_chunks + blockIdx.x];
  __syncthreads ();
  if (threadIdx.x >= 32)
    return;
  for (gint64 first = (gint64) blockIdx.x * SORT_CHUNK; first < end; first += 32)
    {
      const bool is_item = first + lane < end;
      const SortItem item = is_item ? self.items[first + lane] : SortItem{ 0, 0 };
      const unsigned digit = item.value >> self.shift & 0xff;
      unsigned same = __ballot_sync (EBB_CUDA_ALL_LANES, is_item), place = 0;

      for (int bit = 0; bit < 8; bit++)
        {
          const unsigned with = __ballot_sync (EBB_CUDA_ALL_LANES, digit >> bit & 1);

          same &= digit >> bit & 1 ? with : ~with;
        }
      if (is_item)
        place = next[digit] + (unsigned) __popc (same & ((1u << lane) - 1));
      __syncwarp ();
      /* The last lane of a digit leaves the place after its own. */
      if (is_item && same >> lane == 1)
        next[digit] = place + 1;
      __syncwarp ();
      if (is_item)
        self.moved[place] = item;
    }
}

static unsigned
count_sort_chunks (gint64 k)
{
  return (unsigned) ((k + SORT_CHUNK - 1) / SORT_CHUNK);
}

static gsize
get_sort_size (gint64 k)
{
  return (gsize) k * 2 * sizeof (SortItem) + (gsize) DIGITS * count_sort_chunks (k) * sizeof (guint32);
}

/* Gives the sorted items, which lie in the workspace. */
static cudaError_t
sort_index (const Index &index,
            gint64 k,
            void *workspace,
            const EbbCudaQueue *queue,
            const SortItem **sorted)
{
  cudaError_t status;
  Sort self = {};

  self.items = (SortItem *) workspace;
  self.moved = self.items + k;
  self.counts = (guint32 *) (self.moved + k);
  self.k = k;
  self.n_chunks = count_sort_chunks (k);
  status = EBB_CUDA_LAUNCH (make_sort_items, count_blocks (k, queue), SORT_THREADS, 0, queue->stream, self, index);
  for (self.shift = 0; status == cudaSuccess && self.shift < 32 && index.limit >> self.shift > 0; self.shift += 8)
    {
      SortItem *swap = self.items;

      status = EBB_CUDA_LAUNCH (count_digits, self.n_chunks, SORT_THREADS, 0, queue->stream, self);
      if (status == cudaSuccess)
        status = EBB_CUDA_LAUNCH (sum_counts, 1, SORT_THREADS, 0, queue->stream, self);
      if (status == cudaSuccess)
        status = EBB_CUDA_LAUNCH (move_items, self.n_chunks, SORT_THREADS, 0, queue->stream, self);
      self.items = self.moved;
      self.moved = swap;
    }
  *sorted = self.items;
  return status;
}

/* -- add ----------------------------------------------------------------------------------------------------------- */

/* The sorted items are cut into pieces of a fixed size. A block adds up the sources of each value in its piece. A value
 * whose items lie in one piece is added to the result at once; the sums of one that goes over several are kept, and are
 * added in the order of the pieces once all are there. */

#define ADD_THREADS 128
#define PIECE 32

typedef struct
{
  const void *source;
  void *y;
  EbbDType source_dtype, dtype;
  gint64 strides[3]; /* of the source */
  gint64 n_outer, k, n, inner, n_pieces;
  const SortItem *sorted;
  void *partials; /* [outer, pieces, 2, inner]: sums of a value that began before the piece, of one that goes on */
} IndexAdd;

struct AddFloats
{
  typedef float Number;
  static constexpr unsigned n_steps = 8; /* loads in flight at once */

  static __device__ __forceinline__ float
  load (EbbDType dtype,
        const void *data,
        gint64 i)
  {
    return load_float (dtype, data, i);
  }

  static __device__ __forceinline__ void
  add (const IndexAdd &self,
       gint64 i,
       float sum)
  {
    ((float *) self.y)[i] += sum;
  }
};

struct AddIntegers
{
  typedef guint64 Number;
  static constexpr unsigned n_steps = 2;

  static __device__ __forceinline__ guint64
  load (EbbDType dtype,
        const void *data,
        gint64 i)
  {
    return (guint64) load_integer (dtype, data, i);
  }

  static __device__ __forceinline__ void
  add (const IndexAdd &self,
       gint64 i,
       guint64 sum)
  {
    store_integer (self.dtype, self.y, i, (gint64) ((guint64) load_integer (self.dtype, self.y, i) + sum));
  }
};

/* Whether a value has items before the piece that begins at first, or behind the one that ends at end. */
static __device__ __forceinline__ bool
comes_from_before (const IndexAdd &self,
                   gint64 first,
                   guint32 value)
{
  return first > 0 && self.sorted[first - 1].value == value;
}

static __device__ __forceinline__ bool
goes_on (const IndexAdd &self,
         gint64 end,
         guint32 value)
{
  return end < self.k && self.sorted[end].value == value;
}

static __device__ __forceinline__ gint64
get_piece_end (const IndexAdd &self,
               gint64 first)
{
  return first + PIECE < self.k ? first + PIECE : self.k;
}

template <typename Numbers>
static __device__ __forceinline__ typename Numbers::Number *
get_partial (const IndexAdd &self,
             gint64 outer,
             gint64 piece,
             int which)
{
  return (typename Numbers::Number *) self.partials + ((outer * self.n_pieces + piece) * 2 + which) * self.inner;
}

/* A block for a piece; each thread adds up columns of its own. */
template <typename Numbers>
__global__ void __launch_bounds__ (ADD_THREADS)
add_pieces (IndexAdd self)
{
  EBB_SHARED_ARRAY (SortItem, items, [PIECE]);
  const unsigned n_steps = Numbers::n_steps;
  const gint64 first = (gint64) blockIdx.x * PIECE, column_step = (gint64) gridDim.y * ADD_THREADS;
  const gint64 end = get_piece_end (self, first);
  const unsigned n_items = (unsigned) (end - first);

  if (threadIdx.x < n_items)
    items[threadIdx.x] = self.sorted[first + threadIdx.x];
  __syncthreads ();
  for (gint64 outer = 0; outer < self.n_outer; outer++)
    for (gint64 column = (gint64) blockIdx.y * ADD_THREADS + threadIdx.x; column < self.inner; column += column_step)
      {
        const gint64 from = outer * self.strides[0] + column * self.strides[2];
        typename Numbers::Number sum = 0;
        bool is_first = true; /* of the piece's values */

        for (unsigned start = 0; start < n_items; start += n_steps)
          {
            typename Numbers::Number sources[n_steps];

#pragma unroll
            for (unsigned i = 0; i < n_steps; i++)
              sources[i] = start + i < n_items ? Numbers::load (self.source_dtype, self.source,
                                                                from + items[start + i].position * self.strides[1])
                                               : 0;
#pragma unroll
            for (unsigned i = 0; i < n_steps; i++)
              {
                const unsigned item = start + i;
                guint32 value;

                if (item >= n_items)
                  continue;
                value = items[item].value;
                sum += sources[i];
                if (value >= self.n || (item + 1 < n_items && items[item + 1].value == value))
                  continue;
                if (is_first && comes_from_before (self, first, value))
                  get_partial<Numbers> (self, outer, blockIdx.x, 0)[column] = sum;
                else if (item + 1 == n_items && goes_on (self, end, value))
                  get_partial<Numbers> (self, outer, blockIdx.x, 1)[column] = sum;
                else
                  Numbers::add (self, (outer * self.n + value) * self.inner + column, sum);
                sum = 0;
                is_first = false;
              }
          }
      }
}

/* A block for a piece in which a value begins that goes on behind it. */
template <typename Numbers>
__global__ void __launch_bounds__ (ADD_THREADS)
join_pieces (IndexAdd self)
{
  const gint64 first = (gint64) blockIdx.x * PIECE, end = get_piece_end (self, first);
  const gint64 column_step = (gint64) gridDim.y * ADD_THREADS;
  const guint32 value = self.sorted[end - 1].value;

  if (value >= self.n || !goes_on (self, end, value)
      || (self.sorted[first].value == value && comes_from_before (self, first, value)))
    return;
  for (gint64 outer = 0; outer < self.n_outer; outer++)
    for (gint64 column = (gint64) blockIdx.y * ADD_THREADS + threadIdx.x; column < self.inner; column += column_step)
      {
        typename Numbers::Number sum = get_partial<Numbers> (self, outer, blockIdx.x, 1)[column];

        for (gint64 piece = blockIdx.x + 1; piece < self.n_pieces && self.sorted[piece * PIECE].value == value; piece++)
          sum += get_partial<Numbers> (self, outer, piece, 0)[column];
        Numbers::add (self, (outer * self.n + value) * self.inner + column, sum);
      }
}

template <typename Numbers>
static cudaError_t
launch_index_add (const IndexAdd &self,
                  const EbbCudaQueue *queue)
{
  const gint64 n_columns = (self.inner + ADD_THREADS - 1) / ADD_THREADS;
  const dim3 grid ((unsigned) self.n_pieces, (unsigned) (n_columns < 65535 ? n_columns : 65535));
  cudaError_t status = EBB_CUDA_LAUNCH (add_pieces<Numbers>, grid, ADD_THREADS, 0, queue->stream, self);

  if (status != cudaSuccess || self.n_pieces == 1)
    return status;
  return EBB_CUDA_LAUNCH (join_pieces<Numbers>, grid, ADD_THREADS, 0, queue->stream, self);
}

static gint64
count_pieces (gint64 k)
{
  return (k + PIECE - 1) / PIECE;
}

static gsize
get_partials_size (const EbbView *source,
                   const EbbView *y)
{
  return (gsize) (source->shape[0] * count_pieces (source->shape[1]) * 2 * y->shape[2])
         * (y->dtype == EBB_DTYPE_F32 ? sizeof (float) : sizeof (guint64));
}

EBB_CUDA_WORKSPACE (index_add)
{
  return get_partials_size (launch->inputs[0], launch->outputs[0]) + get_sort_size (launch->inputs[0]->shape[1]);
}

EBB_CUDA_KERNEL (index_add)
{
  const EbbView *source = launch->inputs[0];
  EbbView *y = launch->outputs[0];
  const Index index = get_index (launch->inputs[1], y->shape[1], queue);
  IndexAdd self = { source->data,
                    y->data,
                    source->dtype,
                    y->dtype,
                    { source->strides[0], source->strides[1], source->strides[2] },
                    source->shape[0],
                    source->shape[1],
                    y->shape[1],
                    y->shape[2],
                    count_pieces (source->shape[1]),
                    NULL,
                    launch->workspace };
  cudaError_t status;

  if (self.n_outer == 0 || self.k == 0 || self.inner == 0)
    return cudaSuccess;
  if (self.k > G_MAXINT32 || self.n >= G_MAXUINT32)
    return cudaErrorNotSupported;
  status = sort_index (index, self.k, (char *) launch->workspace + get_partials_size (source, y), queue, &self.sorted);
  if (status != cudaSuccess)
    return status;
  return self.dtype == EBB_DTYPE_F32 ? launch_index_add<AddFloats> (self, queue)
                                     : launch_index_add<AddIntegers> (self, queue);
}

/* -- gather and scatter -------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *x;
  void *y;
  EbbDType x_dtype, y_dtype;
  gint64 dim_strides[3]; /* of the dimension: of x, of the index, of y */
  gint64 length;         /* of the dimension in the index */
  Layout<3> lines;       /* of x, the index and y: the other dimensions */
  int n_dims, dim;       /* of the index, for positions */
  gint64 shape[EBB_MAX_DIMS];
  Index index;
} Lines;

/* The position of element i of a line in the contiguous order of the index. */
static __device__ __forceinline__ gint64
find_position (const Lines &self,
               gint64 line,
               gint64 i)
{
  gint64 position = 0, size = 1;

  for (int d = self.n_dims - 1; d >= 0; d--)
    {
      if (d == self.dim)
        position += i * size;
      else
        {
          position += line % self.shape[d] * size;
          line /= self.shape[d];
        }
      size *= self.shape[d];
    }
  return position;
}

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
gather_elements (Lines self)
{
  const gint64 n = self.lines.n_elements * self.length;

  for (gint64 item = get_thread (); item < n; item += count_threads ())
    {
      const gint64 i = item % self.length, line = item / self.length;
      gint64 at[3], value, from, to;

      layout_find<guint64> (self.lines, (guint64) line, at);
      value = load_index (self.index, at[1] + i * self.dim_strides[1], find_position (self, line, i), true);
      from = at[0] + (value < 0 ? 0 : value) * self.dim_strides[0];
      to = at[2] + i * self.dim_strides[2];
      if (is_float_dtype (self.x_dtype))
        store_float (self.y_dtype, self.y, to, load_float (self.x_dtype, self.x, from));
      else
        store_integer (self.y_dtype, self.y, to, load_integer (self.x_dtype, self.x, from));
    }
}

/* A thread for a line: its elements are added in their order. */
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
scatter_lines (Lines self)
{
  for (gint64 line = get_thread (); line < self.lines.n_elements; line += count_threads ())
    {
      gint64 at[3];

      layout_find<guint64> (self.lines, (guint64) line, at);
      for (gint64 i = 0; i < self.length; i++)
        {
          const gint64 value =
              load_index (self.index, at[1] + i * self.dim_strides[1], find_position (self, line, i), true);
          const gint64 from = at[0] + i * self.dim_strides[0], to = at[2] + value * self.dim_strides[2];

          if (value < 0)
            continue;
          if (self.y_dtype == EBB_DTYPE_F32)
            ((float *) self.y)[to] += load_float (self.x_dtype, self.x, from);
          else
            store_integer (self.y_dtype, self.y, to,
                           (gint64) ((guint64) load_integer (self.y_dtype, self.y, to)
                                     + (guint64) load_integer (self.x_dtype, self.x, from)));
        }
    }
}

/* limit: of the index, the size of the dimension in x or y */
static void
lines_init (Lines *self,
            const EbbLaunch *launch,
            const EbbView *of_limit,
            const EbbCudaQueue *queue)
{
  EbbView x = *launch->inputs[0], index = *launch->inputs[1], y = *launch->outputs[0];
  const EbbView *const views[] = { &x, &index, &y };
  const int dim = launch->params.index.dim;
  const bool is_scalar = index.n_dims == 0;

  self->x = x.data;
  self->y = y.data;
  self->x_dtype = x.dtype;
  self->y_dtype = y.dtype;
  self->index = get_index (&index, is_scalar ? 1 : of_limit->shape[dim], queue);
  self->n_dims = index.n_dims;
  self->dim = dim;
  self->length = is_scalar ? 1 : index.shape[dim];
  for (int k = 0; k < 3; k++)
    self->dim_strides[k] = is_scalar ? 0 : views[k]->strides[dim];
  for (int i = 0; i < index.n_dims; i++)
    {
      self->shape[i] = index.shape[i];
      if (i == dim)
        index.shape[i] = 1;
    }
  layout_init (&self->lines, &index, views);
}

EBB_CUDA_KERNEL (gather)
{
  Lines self;

  lines_init (&self, launch, launch->inputs[0], queue);
  if (self.lines.n_elements * self.length == 0)
    return cudaSuccess;
  if (self.index.limit == 0)
    return EBB_CUDA_LAUNCH (report_first, 1, 1, 0, queue->stream, self.index);
  return EBB_CUDA_LAUNCH (gather_elements, count_blocks (self.lines.n_elements * self.length, queue),
                          ELEMENTWISE_THREADS, 0, queue->stream, self);
}

EBB_CUDA_KERNEL (scatter_add)
{
  Lines self;

  lines_init (&self, launch, launch->outputs[0], queue);
  if (self.lines.n_elements * self.length == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (scatter_lines, count_blocks (self.lines.n_elements, queue), ELEMENTWISE_THREADS, 0,
                          queue->stream, self);
}
