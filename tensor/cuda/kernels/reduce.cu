/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reductions along dimensions: sums and the like, variances, the index of the largest, sums of columns, sums over
 * ranks. The reduced elements of a result are cut into chunks of a fixed size; each has one block, or one warp where
 * there are few, and the chunks are combined in order. */
#include "tensor/cuda/kernels/row.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

#define CHUNK 65536     /* elements of a result that a block reduces */
#define WARP_CHUNK 1024 /* elements up to which a warp does */
#define STRIP_COLUMNS 32
#define STRIP_LANES (THREADS / STRIP_COLUMNS)
#define STRIP_CHUNK 1024 /* rows, where results lie side by side */

typedef enum
{
  BY_WARPS,
  BY_BLOCKS,
  BY_STRIPS
} ReduceWay;

typedef struct
{
  const void *x;
  void *y;
  EbbDType x_dtype, y_dtype;
  EbbReduceKind op;
  Layout<1> kept, reduced; /* the results in x, and the reduced elements of one */
  ReduceWay way;
  gint64 chunk, n_chunks;
  void *partials; /* [n_chunks, results], if there is more than one chunk */
} Reduce;

/* -- the numbers that are combined --------------------------------------------------------------------------------- */

/* Summed in f64: a sum of millions of elements has no other order that is as exact and as simple. */
struct Floats
{
  typedef double Element;
  typedef double Partial;

  static __device__ __forceinline__ float
  load (const Reduce &self,
        gint64 at)
  {
    return load_float (self.x_dtype, self.x, at);
  }

  static __device__ __forceinline__ void
  store (const Reduce &self,
         gint64 i,
         double value)
  {
    if (self.op == EBB_REDUCE_MEAN)
      value /= (double) self.reduced.n_elements;
    store_float (self.y_dtype, self.y, i, (float) value);
  }

  template <typename T>
  static __device__ __forceinline__ T
  get_identity (EbbReduceKind op)
  {
    switch (op)
      {
      case EBB_REDUCE_MAX: return (T) -INFINITY;
      case EBB_REDUCE_MIN: return (T) INFINITY;
      case EBB_REDUCE_PROD:
      case EBB_REDUCE_ALL: return 1;
      default: return 0;
      }
  }

  static __device__ __forceinline__ double
  add (EbbReduceKind op,
       double sum,
       double x)
  {
    switch (op)
      {
      case EBB_REDUCE_SUM_SQUARES: return fma (x, x, sum);
      case EBB_REDUCE_SUM_ABS: return sum + fabs (x);
      case EBB_REDUCE_MAX_ABS: return Max::join (fabs (x), sum);
      case EBB_REDUCE_ANY: return x != 0.0 ? 1.0 : sum;
      case EBB_REDUCE_ALL: return x != 0.0 ? sum : 0.0;
      default: return combine (op, sum, x);
      }
  }

  template <typename T>
  static __device__ __forceinline__ T
  combine (EbbReduceKind op,
           T a,
           T b)
  {
    switch (op)
      {
      case EBB_REDUCE_MAX:
      case EBB_REDUCE_MAX_ABS:
      case EBB_REDUCE_ANY: return Max::join (b, a);
      case EBB_REDUCE_MIN:
      case EBB_REDUCE_ALL: return Min::join (b, a);
      case EBB_REDUCE_PROD: return a * b;
      default: return a + b;
      }
  }
};

struct Integers
{
  typedef gint64 Element;
  typedef gint64 Partial;

  static __device__ __forceinline__ gint64
  load (const Reduce &self,
        gint64 at)
  {
    return load_integer (self.x_dtype, self.x, at);
  }

  static __device__ __forceinline__ void
  store (const Reduce &self,
         gint64 i,
         gint64 value)
  {
    store_integer (self.y_dtype, self.y, i, value);
  }

  template <typename T>
  static __device__ __forceinline__ T
  get_identity (EbbReduceKind op)
  {
    switch (op)
      {
      case EBB_REDUCE_MAX: return G_MININT64;
      case EBB_REDUCE_MIN: return G_MAXINT64;
      case EBB_REDUCE_PROD:
      case EBB_REDUCE_ALL: return 1;
      default: return 0;
      }
  }

  static __device__ __forceinline__ gint64
  add (EbbReduceKind op,
       gint64 sum,
       gint64 x)
  {
    const gint64 size = x < 0 ? (gint64) (0 - (guint64) x) : x;

    switch (op)
      {
      case EBB_REDUCE_SUM_SQUARES: return (gint64) ((guint64) sum + (guint64) x * (guint64) x);
      case EBB_REDUCE_SUM_ABS: return (gint64) ((guint64) sum + (guint64) size);
      case EBB_REDUCE_MAX_ABS: return sum > size ? sum : size;
      case EBB_REDUCE_ANY: return sum | (x != 0);
      case EBB_REDUCE_ALL: return sum & (x != 0);
      default: return combine (op, sum, x);
      }
  }

  template <typename T>
  static __device__ __forceinline__ T
  combine (EbbReduceKind op,
           T a,
           T b)
  {
    switch (op)
      {
      case EBB_REDUCE_MAX:
      case EBB_REDUCE_MAX_ABS: return a > b ? a : b;
      case EBB_REDUCE_MIN: return a < b ? a : b;
      case EBB_REDUCE_PROD: return (gint64) ((guint64) a * (guint64) b);
      case EBB_REDUCE_ANY: return a | b;
      case EBB_REDUCE_ALL: return a & b;
      default: return (gint64) ((guint64) a + (guint64) b);
      }
  }
};

/* -- kernels ------------------------------------------------------------------------------------------------------- */

template <typename Numbers>
static __device__ __forceinline__ void
put_partial (const Reduce &self,
             gint64 chunk,
             gint64 result,
             typename Numbers::Partial value)
{
  if (self.n_chunks > 1)
    ((typename Numbers::Partial *) self.partials)[chunk * self.kept.n_elements + result] = value;
  else
    Numbers::store (self, result, value);
}

template <typename Numbers>
static __device__ __forceinline__ typename Numbers::Partial
combine_warp (EbbReduceKind op,
              typename Numbers::Partial value)
{
#pragma unroll
  for (int distance = 16; distance > 0; distance >>= 1)
    value = Numbers::combine (op, value, __shfl_xor_sync (EBB_CUDA_ALL_LANES, value, distance));
  return value;
}

/* n_threads: that share a chunk, 32 or THREADS */
template <typename Numbers>
static __device__ __forceinline__ typename Numbers::Partial
reduce_chunk (const Reduce &self,
              gint64 result,
              gint64 chunk,
              unsigned thread,
              unsigned n_threads)
{
  const gint64 first = chunk * self.chunk;
  gint64 last = first + self.chunk, start[1];
  typename Numbers::Element sum = Numbers::template get_identity<typename Numbers::Element> (self.op);

  last = last < self.reduced.n_elements ? last : self.reduced.n_elements;
  layout_find<guint64> (self.kept, (guint64) result, start);
  for (gint64 i = first + thread; i < last; i += n_threads)
    {
      gint64 at[1];

      layout_find<guint64> (self.reduced, (guint64) i, at);
      sum = Numbers::add (self.op, sum, Numbers::load (self, start[0] + at[0]));
    }
  return combine_warp<Numbers> (self.op, (typename Numbers::Partial) sum);
}

template <typename Numbers>
__global__ void __launch_bounds__ (THREADS)
reduce_by_warps (Reduce self)
{
  const gint64 result = (gint64) blockIdx.x * WARPS + threadIdx.x / 32;
  typename Numbers::Partial value;

  if (result >= self.kept.n_elements)
    return;
  value = reduce_chunk<Numbers> (self, result, 0, threadIdx.x % 32, 32);
  if (threadIdx.x % 32 == 0)
    Numbers::store (self, result, value);
}

template <typename Numbers>
__global__ void __launch_bounds__ (THREADS)
reduce_by_blocks (Reduce self)
{
  EBB_SHARED_ARRAY (typename Numbers::Partial, warps, [WARPS]);
  const gint64 n_items = self.kept.n_elements * self.n_chunks;

  for (gint64 item = blockIdx.x; item < n_items; item += gridDim.x)
    {
      const gint64 result = item / self.n_chunks, chunk = item % self.n_chunks;
      typename Numbers::Partial value = reduce_chunk<Numbers> (self, result, chunk, threadIdx.x, THREADS);

      if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = value;
      __syncthreads ();
      if (threadIdx.x == 0)
        {
          for (int i = 1; i < WARPS; i++)
            value = Numbers::combine (self.op, value, warps[i]);
          put_partial<Numbers> (self, chunk, result, value);
        }
      __syncthreads ();
    }
}

/* Results lie side by side in x: a block takes 32 of them, whose rows its eight warps share. */
template <typename Numbers>
__global__ void __launch_bounds__ (THREADS)
reduce_by_strips (Reduce self)
{
  EBB_SHARED_ARRAY (typename Numbers::Partial, lanes, [STRIP_LANES][STRIP_COLUMNS]);
  const unsigned column = threadIdx.x % STRIP_COLUMNS, lane = threadIdx.x / STRIP_COLUMNS;
  const gint64 n_strips = (self.kept.n_elements + STRIP_COLUMNS - 1) / STRIP_COLUMNS;

  for (gint64 item = blockIdx.x; item < n_strips * self.n_chunks; item += gridDim.x)
    {
      const gint64 chunk = item % self.n_chunks, result = item / self.n_chunks * STRIP_COLUMNS + column;
      gint64 last = (chunk + 1) * self.chunk, start[1];
      typename Numbers::Element sum = Numbers::template get_identity<typename Numbers::Element> (self.op);
      typename Numbers::Partial value;

      last = last < self.reduced.n_elements ? last : self.reduced.n_elements;
      layout_find<guint64> (self.kept, (guint64) (result < self.kept.n_elements ? result : 0), start);
      for (gint64 i = chunk * self.chunk + lane; i < last && result < self.kept.n_elements; i += STRIP_LANES)
        {
          gint64 at[1];

          layout_find<guint64> (self.reduced, (guint64) i, at);
          sum = Numbers::add (self.op, sum, Numbers::load (self, start[0] + at[0]));
        }
      value = (typename Numbers::Partial) sum;
      lanes[lane][column] = value;
      __syncthreads ();
      if (lane == 0 && result < self.kept.n_elements)
        {
          for (int i = 1; i < STRIP_LANES; i++)
            value = Numbers::combine (self.op, value, lanes[i][column]);
          put_partial<Numbers> (self, chunk, result, value);
        }
      __syncthreads ();
    }
}

/* A warp for each result. */
template <typename Numbers>
__global__ void __launch_bounds__ (THREADS)
combine_chunks (Reduce self)
{
  const gint64 result = (gint64) blockIdx.x * WARPS + threadIdx.x / 32;
  const typename Numbers::Partial *partials = (const typename Numbers::Partial *) self.partials;
  typename Numbers::Partial value = Numbers::template get_identity<typename Numbers::Partial> (self.op);

  if (result >= self.kept.n_elements)
    return;
  for (gint64 chunk = threadIdx.x % 32; chunk < self.n_chunks; chunk += 32)
    value = Numbers::combine (self.op, value, partials[chunk * self.kept.n_elements + result]);
  value = combine_warp<Numbers> (self.op, value);
  if (threadIdx.x % 32 == 0)
    Numbers::store (self, result, value);
}

/* -- launches ------------------------------------------------------------------------------------------------------ */

/* The dimensions of a view that are in dims, or those that are not. */
static void
init_dims (Layout<1> *layout,
           const EbbView *x,
           guint32 dims)
{
  EbbView part = *x;
  const EbbView *const views[] = { &part };

  for (int i = 0; i < x->n_dims; i++)
    if (!(dims >> i & 1))
      part.shape[i] = 1;
  layout_init (layout, &part, views);
}

static void
reduce_init (Reduce *self,
             const EbbLaunch *launch)
{
  const EbbView *x = launch->inputs[0];
  const guint32 dims = launch->params.reduce.dims;
  int last;

  self->x = x->data;
  self->y = get_output (launch, 0) != NULL ? launch->outputs[0]->data : NULL;
  self->x_dtype = x->dtype;
  self->y_dtype = get_output (launch, 0) != NULL ? launch->outputs[0]->dtype : x->dtype;
  self->op = launch->params.reduce.op;
  init_dims (&self->kept, x, ~dims);
  init_dims (&self->reduced, x, dims);
  last = self->kept.n_dims - 1;
  self->way = BY_BLOCKS;
  self->chunk = CHUNK;
  if (self->kept.strides[0][last] == 1 && self->kept.shape[last] >= 8
      && self->reduced.strides[0][self->reduced.n_dims - 1] != 1)
    {
      self->way = BY_STRIPS;
      self->chunk = STRIP_CHUNK;
    }
  else if (self->reduced.n_elements <= WARP_CHUNK)
    {
      self->way = BY_WARPS;
      self->chunk = WARP_CHUNK;
    }
  self->n_chunks = (self->reduced.n_elements + self->chunk - 1) / self->chunk;
  self->n_chunks = self->n_chunks > 0 ? self->n_chunks : 1;
  self->partials = launch->workspace;
}

static unsigned
limit_blocks (gint64 n)
{
  return (unsigned) (n < G_MAXINT32 ? n : G_MAXINT32);
}

template <typename Numbers>
static cudaError_t
launch_reduce (const Reduce &self,
               const EbbCudaQueue *queue)
{
  const gint64 n = self.kept.n_elements, n_warps = (n + WARPS - 1) / WARPS;
  const gint64 n_strips = (n + STRIP_COLUMNS - 1) / STRIP_COLUMNS;
  cudaError_t status;

  switch (self.way)
    {
    case BY_WARPS:
      return EBB_CUDA_LAUNCH (reduce_by_warps<Numbers>, (unsigned) n_warps, THREADS, 0, queue->stream, self);
    case BY_STRIPS:
      status = EBB_CUDA_LAUNCH (reduce_by_strips<Numbers>, limit_blocks (n_strips * self.n_chunks), THREADS, 0,
                                queue->stream, self);
      break;
    default:
      status = EBB_CUDA_LAUNCH (reduce_by_blocks<Numbers>, limit_blocks (n * self.n_chunks), THREADS, 0,
                                queue->stream, self);
    }
  if (status != cudaSuccess || self.n_chunks == 1)
    return status;
  return EBB_CUDA_LAUNCH (combine_chunks<Numbers>, (unsigned) n_warps, THREADS, 0, queue->stream, self);
}

EBB_CUDA_WORKSPACE (reduce)
{
  Reduce self;

  reduce_init (&self, launch);
  return self.n_chunks > 1 ? (gsize) (self.n_chunks * self.kept.n_elements) * sizeof (double) : 0;
}

EBB_CUDA_KERNEL (reduce)
{
  Reduce self;

  reduce_init (&self, launch);
  if (self.kept.n_elements == 0)
    return cudaSuccess;
  if (is_float_dtype (self.x_dtype) || is_float_dtype (self.y_dtype))
    return launch_reduce<Floats> (self, queue);
  return launch_reduce<Integers> (self, queue);
}

/* -- variance ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  Reduce reduce;
  EbbView var, mean, rest; /* data NULL: not wanted */
  double correction;
} Variance;

static __device__ __forceinline__ void
put_number (const EbbView &view,
            gint64 i,
            double value)
{
  if (view.data != NULL)
    store_float (view.dtype, view.data, i, (float) value);
}

/* A block for a result. */
__global__ void __launch_bounds__ (THREADS)
find_variances (Variance self)
{
  EBB_SHARED_ARRAY (double, scratch, [WARPS]);
  const Reduce &reduce = self.reduce;
  const double n = (double) reduce.reduced.n_elements;

  for (gint64 result = blockIdx.x; result < reduce.kept.n_elements; result += gridDim.x)
    {
      Statistics statistics = {};
      gint64 start[1];
      int pass = 0;
      bool is_done;

      layout_find<guint64> (reduce.kept, (guint64) result, start);
      statistics.centre = n > 0 ? Floats::load (reduce, start[0]) : NAN;
      do
        {
          float sum = 0.0f, squares = 0.0f;
          double all, all_squares;

          for (gint64 i = threadIdx.x; i < reduce.reduced.n_elements; i += THREADS)
            {
              gint64 at[1];
              float distance;

              layout_find<guint64> (reduce.reduced, (guint64) i, at);
              distance = Floats::load (reduce, start[0] + at[0]) - statistics.centre;
              sum += distance;
              squares = fmaf (distance, distance, squares);
            }
          all = block_reduce<Sum> ((double) sum, scratch);
          all_squares = block_reduce<Sum> ((double) squares, scratch);
          is_done = statistics_take (&statistics, all, all_squares, n);
        }
      while (!is_done && ++pass < 2);
      if (threadIdx.x != 0)
        continue;
      put_number (self.var, result, statistics.variance * n / (n > self.correction ? n - self.correction : 0));
      put_number (self.mean, result, statistics.mean);
      put_number (self.rest, result, statistics.rest);
    }
}

EBB_CUDA_KERNEL (var)
{
  const EbbView none = {};
  Variance self;

  reduce_init (&self.reduce, launch);
  self.var = get_output (launch, 0) != NULL ? *launch->outputs[0] : none;
  self.mean = get_output (launch, 1) != NULL ? *launch->outputs[1] : none;
  self.rest = get_output (launch, 2) != NULL ? *launch->outputs[2] : none;
  self.correction = launch->params.reduce.correction;
  if (self.reduce.kept.n_elements == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (find_variances, limit_blocks (self.reduce.kept.n_elements), THREADS, 0, queue->stream, self);
}

/* -- the index of the largest or smallest -------------------------------------------------------------------------- */

/* index -1: nothing yet */
typedef struct
{
  double value; /* of floats */
  gint64 integer, index;
} Best;

/* The first of the largest or smallest; a NaN beats every number. */
static __device__ __forceinline__ bool
is_better (bool is_float,
           bool is_max,
           const Best &a,
           const Best &b)
{
  if (a.index < 0 || b.index < 0)
    return b.index < 0 && a.index >= 0;
  if (is_float)
    {
      const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;

      if (a_is_nan != b_is_nan)
        return a_is_nan;
      if (!a_is_nan && a.value != b.value)
        return (a.value > b.value) == is_max;
    }
  else if (a.integer != b.integer)
    return (a.integer > b.integer) == is_max;
  return a.index < b.index;
}

/* A warp for a result. */
__global__ void __launch_bounds__ (THREADS)
find_best (Reduce self,
           gint64 *indices,
           bool is_float,
           bool is_max)
{
  const gint64 result = (gint64) blockIdx.x * WARPS + threadIdx.x / 32;
  Best best = { 0, 0, -1 };
  gint64 start[1];

  if (result >= self.kept.n_elements)
    return;
  layout_find<guint64> (self.kept, (guint64) result, start);
  for (gint64 i = threadIdx.x % 32; i < self.reduced.n_elements; i += 32)
    {
      gint64 at[1];
      Best found = { 0, 0, i };

      layout_find<guint64> (self.reduced, (guint64) i, at);
      if (is_float)
        found.value = Floats::load (self, start[0] + at[0]);
      else
        found.integer = Integers::load (self, start[0] + at[0]);
      if (is_better (is_float, is_max, found, best))
        best = found;
    }
  for (int distance = 16; distance > 0; distance >>= 1)
    {
      Best other;

      other.value = __shfl_xor_sync (EBB_CUDA_ALL_LANES, best.value, distance);
      other.integer = __shfl_xor_sync (EBB_CUDA_ALL_LANES, best.integer, distance);
      other.index = __shfl_xor_sync (EBB_CUDA_ALL_LANES, best.index, distance);
      if (is_better (is_float, is_max, other, best))
        best = other;
    }
  if (threadIdx.x % 32 != 0)
    return;
  if (indices != NULL)
    indices[result] = best.index;
  if (self.y != NULL && is_float)
    store_float (self.y_dtype, self.y, result, (float) best.value);
  else if (self.y != NULL)
    store_integer (self.y_dtype, self.y, result, best.integer);
}

EBB_CUDA_KERNEL (arg_reduce)
{
  const EbbView *indices = get_output (launch, 1);
  Reduce self;

  reduce_init (&self, launch);
  if (self.kept.n_elements == 0 || self.reduced.n_elements == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (find_best, (unsigned) ((self.kept.n_elements + WARPS - 1) / WARPS), THREADS, 0,
                          queue->stream, self, indices != NULL ? (gint64 *) indices->data : NULL,
                          is_float_dtype (self.x_dtype), launch->params.reduce.op == EBB_REDUCE_MAX);
}

/* -- sums of columns ----------------------------------------------------------------------------------------------- */

/* A block for 32 runs of 16 bytes of a block of rows, which its eight warps share. */
template <typename T>
__global__ void __launch_bounds__ (THREADS)
sum_columns (const T *x,
             gint64 n_rows,
             gint64 n_columns,
             gint64 row_stride,
             gint64 rows_of_block,
             float *partials)
{
  const int run = VectorSize<T>::value, n_strip = STRIP_COLUMNS * run;
  EBB_SHARED_ARRAY (float, lanes, [STRIP_LANES][STRIP_COLUMNS * VectorSize<T>::value]);
  const unsigned lane = threadIdx.x / STRIP_COLUMNS, of_strip = threadIdx.x % STRIP_COLUMNS * run;
  const gint64 strip = (gint64) blockIdx.x * n_strip, column = strip + of_strip;
  const gint64 first = blockIdx.y * rows_of_block, end = first + rows_of_block;
  const gint64 last = end < n_rows ? end : n_rows;
  float sums[run] = {};

  if (column < n_columns)
    {
#pragma unroll 4
      for (gint64 row = first + lane; row < last; row += STRIP_LANES)
        {
          float values[run];

          load_row_run (x + row * row_stride, column, n_columns, values);
#pragma unroll
          for (int k = 0; k < run; k++)
            sums[k] += values[k];
        }
    }
#pragma unroll
  for (int k = 0; k < run; k++)
    lanes[lane][of_strip + k] = sums[k];
  __syncthreads ();
  if (threadIdx.x >= n_strip || strip + threadIdx.x >= n_columns)
    return;
  for (int i = 1; i < STRIP_LANES; i++)
    lanes[0][threadIdx.x] += lanes[i][threadIdx.x];
  partials[blockIdx.y * n_columns + strip + threadIdx.x] = lanes[0][threadIdx.x];
}

static gint64
count_row_blocks (gint64 n_rows)
{
  const gint64 of_block = count_rows_of_block (n_rows);

  return (n_rows + of_block - 1) / of_block;
}

EBB_CUDA_WORKSPACE (column_sum)
{
  const EbbView *x = launch->inputs[0];

  return (gsize) (count_row_blocks (count_rows (x)) * count_columns (x)) * sizeof (float);
}

EBB_CUDA_KERNEL (column_sum)
{
  const EbbView *x = launch->inputs[0];
  const gint64 n_rows = count_rows (x), n_columns = count_columns (x), n_blocks = count_row_blocks (n_rows);
  const gint64 n_strip = STRIP_COLUMNS * 16 / get_dtype_size (x->dtype);
  const dim3 grid ((unsigned) ((n_columns + n_strip - 1) / n_strip), (unsigned) n_blocks);
  float *partials = (float *) launch->workspace;
  cudaError_t status = cudaSuccess;

  if (n_columns == 0)
    return cudaSuccess;
  if (n_rows > 0 && x->dtype == EBB_DTYPE_F32)
    status = EBB_CUDA_LAUNCH (sum_columns<float>, grid, THREADS, 0, queue->stream, (const float *) x->data, n_rows,
                              n_columns, get_row_stride (x), count_rows_of_block (n_rows), partials);
  else if (n_rows > 0)
    status = EBB_CUDA_LAUNCH (sum_columns<Bf16>, grid, THREADS, 0, queue->stream, (const Bf16 *) x->data, n_rows,
                              n_columns, get_row_stride (x), count_rows_of_block (n_rows), partials);
  if (status != cudaSuccess)
    return status;
  return launch_sum_partials (partials, n_blocks, n_columns, n_columns, launch->params.column_sum.accumulate != FALSE,
                              (float *) launch->outputs[0]->data, queue);
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *x;
  void *y;
  EbbDType dtype;
  gint64 n_ranks, rank_stride, n;
  int op; /* 0 sum, 1 mean, 2 least, 3 greatest */
} Ranks;

template <typename T>
static __device__ __forceinline__ T
combine_ranks (int op,
               T a,
               T b)
{
  switch (op)
    {
    case 2: return Min::join (a, b);
    case 3: return Max::join (a, b);
    default: return a + b;
    }
}

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
reduce_ranks (Ranks self,
              bool is_float)
{
  for (gint64 i = get_thread (); i < self.n; i += count_threads ())
    if (is_float)
      {
        float value = load_float (self.dtype, self.x, i);

        for (gint64 rank = 1; rank < self.n_ranks; rank++)
          value = combine_ranks (self.op, value, load_float (self.dtype, self.x, rank * self.rank_stride + i));
        store_float (self.dtype, self.y, i, self.op == 1 ? value / (float) self.n_ranks : value);
      }
    else
      {
        gint64 value = load_integer (self.dtype, self.x, i);

        for (gint64 rank = 1; rank < self.n_ranks; rank++)
          {
            const gint64 other = load_integer (self.dtype, self.x, rank * self.rank_stride + i);

            value = self.op < 2 ? (gint64) ((guint64) value + (guint64) other) : combine_ranks (self.op, value, other);
          }
        store_integer (self.dtype, self.y, i, self.op == 1 ? value / self.n_ranks : value);
      }
}

EBB_CUDA_KERNEL (reduce_ranks)
{
  const EbbView *x = launch->inputs[0];
  const Ranks self = { x->data, launch->outputs[0]->data, x->dtype, x->shape[0], x->strides[0], x->shape[1],
                       launch->params.reduce_ranks.op };

  if (self.n == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (reduce_ranks, count_blocks (self.n, queue), ELEMENTWISE_THREADS, 0, queue->stream, self,
                          is_float_dtype (x->dtype));
}
