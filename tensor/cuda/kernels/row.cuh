/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Kernels of rows. A team of threads shares a row, and each thread has some of its runs of 16 bytes. They are the same
 * runs whether or not an address allows a load of 16 bytes, so that sums have one order. A thread keeps its first runs
 * in registers and reads those of a longer row again, from the cache. */

#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

/* The rows of a contiguous view: all of its dimensions but the last. */
static inline gint64
count_rows (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims - 1; i++)
    n *= view->shape[i];
  return n;
}

static inline gint64
count_columns (const EbbView *view)
{
  return view->n_dims > 0 ? view->shape[view->n_dims - 1] : 1;
}

/* From one row to the next of a contiguous view, or of a matrix whose rows are apart. */
static inline gint64
get_row_stride (const EbbView *view)
{
  return view->n_dims == 2 ? view->strides[0] : count_columns (view);
}

static inline const EbbView *
get_input (const EbbLaunch *launch,
           guint i)
{
  return i < launch->n_inputs ? launch->inputs[i] : NULL;
}

static inline EbbView *
get_output (const EbbLaunch *launch,
            guint i)
{
  return i < launch->n_outputs ? launch->outputs[i] : NULL;
}

static inline const void *
get_data (const EbbView *view)
{
  return view != NULL ? view->data : NULL;
}

static inline float *
get_floats (const EbbView *view)
{
  return view != NULL ? (float *) view->data : NULL;
}

/* Loads elements [i, i + run) of a row of n as they are; those behind its end are 0. */
template <typename T>
static __device__ __forceinline__ uint4
load_packed_run (const T *row,
                 gint64 i,
                 gint64 n)
{
  union
  {
    uint4 all;
    T each[VectorSize<T>::value];
  } run;

  if (i + VectorSize<T>::value <= n && is_vector_aligned (row + i))
    return *reinterpret_cast<const uint4 *> (row + i);
  run.all = uint4{ 0, 0, 0, 0 };
#pragma unroll
  for (int k = 0; k < VectorSize<T>::value; k++)
    if (i + k < n)
      run.each[k] = row[i + k];
  return run.all;
}

/* The same as floats. */
template <typename T>
static __device__ __forceinline__ void
load_row_run (const T *row,
              gint64 i,
              gint64 n,
              float (&values)[VectorSize<T>::value])
{
  unpack_run<T> (load_packed_run (row, i, n), values);
}

template <typename T>
static __device__ __forceinline__ void
store_row_run (T *row,
               gint64 i,
               gint64 n,
               const float (&values)[VectorSize<T>::value])
{
  if (i + VectorSize<T>::value <= n && is_vector_aligned (row + i))
    {
      store_run (row + i, values);
      return;
    }
#pragma unroll
  for (int k = 0; k < VectorSize<T>::value; k++)
    if (i + k < n)
      store (row + i + k, values[k]);
}

/* -- a row in registers -------------------------------------------------------------------------------------------- */

#define ROW_ELEMENTS 32 /* that a thread keeps of a row */
#define WARP_COLUMNS (32 * ROW_ELEMENTS)
#define ROW_TEAMS 4 /* in a block where each warp has a row of its own */
#define TEAM_MOST_THREADS 256
#define TEAM_MOST_WARPS (TEAM_MOST_THREADS / 32)

/* The threads that share a row: a warp if it can keep the whole row, else the block. IS_WHOLE: is_whole () holds for
 * all rows and is_whole_vector () for all vectors. Then no run needs a branch, and all loads of a thread are in flight
 * at once. */
template <bool IS_WHOLE>
struct RowTeam
{
  bool is_warp;
  unsigned thread, n_threads;
  gint64 row, row_step; /* the first row of the team, and how far apart its rows are */
};

template <bool IS_WHOLE>
static __device__ __forceinline__ RowTeam<IS_WHOLE>
get_row_team (gint64 n_columns)
{
  if (n_columns > WARP_COLUMNS)
    return RowTeam<IS_WHOLE>{ false, threadIdx.x, blockDim.x, blockIdx.x, gridDim.x };
  return RowTeam<IS_WHOLE>{ true, threadIdx.x % 32, 32, (gint64) blockIdx.x * ROW_TEAMS + threadIdx.x / 32,
                            (gint64) gridDim.x * ROW_TEAMS };
}

/* Whether the rows of a view consist of whole runs at multiples of 16 bytes. TRUE for NULL. */
static inline bool
is_whole (const EbbView *view)
{
  const gint64 run = view != NULL ? 16 / get_dtype_size (view->dtype) : 1;

  if (view == NULL)
    return true;
  for (int i = 0; i < view->n_dims - 1; i++)
    if (view->shape[i] > 1 && view->strides[i] % run != 0)
      return false;
  return count_columns (view) % run == 0 && is_vector_aligned (view->data);
}

/* How many rows a block takes at a time. */
static inline gint64
count_row_teams (gint64 n_columns)
{
  return n_columns > WARP_COLUMNS ? 1 : ROW_TEAMS;
}

static inline unsigned
count_team_threads (gint64 n_columns)
{
  const gint64 n = (n_columns + WARP_COLUMNS - 1) / WARP_COLUMNS * 32;

  if (n_columns <= WARP_COLUMNS)
    return 32 * ROW_TEAMS;
  return (unsigned) (n < TEAM_MOST_THREADS ? n : TEAM_MOST_THREADS);
}

static inline unsigned
count_team_blocks (gint64 n_rows,
                   gint64 n_columns)
{
  const gint64 n_teams = count_row_teams (n_columns), n = (n_rows + n_teams - 1) / n_teams;

  return (unsigned) (n < G_MAXINT32 ? n : G_MAXINT32);
}

/* scratch: a T for each warp, used where the block has one row. */
template <typename Join, typename T, bool IS_WHOLE>
static __device__ __forceinline__ T
team_reduce (const RowTeam<IS_WHOLE> &team,
             T value,
             T *scratch)
{
  return team.is_warp ? warp_reduce<Join> (value) : block_reduce<Join> (value, scratch);
}

template <bool IS_WHOLE>
static __device__ __forceinline__ float
team_sum (const RowTeam<IS_WHOLE> &team,
          float value,
          float *scratch)
{
  return team_reduce<Sum> (team, value, scratch);
}

/* A thread's runs of a row, 16 bytes each. */
template <typename T>
struct RowRuns
{
  static constexpr int n = ROW_ELEMENTS / VectorSize<T>::value;
  uint4 of[n];
};

template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ gint64
get_run_start (const RowTeam<IS_WHOLE> &team,
               int r)
{
  return (gint64) (r * team.n_threads + team.thread) * VectorSize<T>::value;
}

/* Loads elements [i, i + run) of a row of this team. */
template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ uint4
load_team_run (const RowTeam<IS_WHOLE> &,
               const T *row,
               gint64 i,
               gint64 n)
{
  return IS_WHOLE ? *reinterpret_cast<const uint4 *> (row + i) : load_packed_run (row, i, n);
}

template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ void
store_team_run (const RowTeam<IS_WHOLE> &,
                T *row,
                gint64 i,
                gint64 n,
                const float (&values)[VectorSize<T>::value])
{
  if (IS_WHOLE)
    store_run (row + i, values);
  else
    store_row_run (row, i, n, values);
}

template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ void
load_runs (const RowTeam<IS_WHOLE> &team,
           const T *row,
           gint64 n,
           RowRuns<T> *runs)
{
#pragma unroll
  for (int r = 0; r < RowRuns<T>::n; r++)
    {
      const gint64 i = get_run_start<T> (team, r);

      runs->of[r] = i < n ? load_team_run (team, row, i, n) : uint4{ 0, 0, 0, 0 };
    }
}

/* Calls visit (i, r, values) for each run of this thread. Its values begin at element i; r is its number among the runs
 * in registers, -1 if it is not one of them. */
template <typename T, bool IS_WHOLE, typename Visit>
static __device__ __forceinline__ void
visit_runs (const RowTeam<IS_WHOLE> &team,
            const RowRuns<T> &runs,
            const T *row,
            gint64 n,
            Visit visit)
{
  float values[VectorSize<T>::value];

#pragma unroll
  for (int r = 0; r < RowRuns<T>::n; r++)
    {
      const gint64 i = get_run_start<T> (team, r);

      if (i >= n)
        continue;
      unpack_run<T> (runs.of[r], values);
      visit (i, r, values);
    }
  for (gint64 i = get_run_start<T> (team, RowRuns<T>::n); i < n; i += (gint64) team.n_threads * VectorSize<T>::value)
    {
      unpack_run<T> (load_team_run (team, row, i, n), values);
      visit (i, -1, values);
    }
}

/* Calls visit (x) for each element of this thread. */
template <typename T, bool IS_WHOLE, typename Visit>
static __device__ __forceinline__ void
visit_elements (const RowTeam<IS_WHOLE> &team,
                const RowRuns<T> &runs,
                const T *row,
                gint64 n,
                Visit visit)
{
  visit_runs (team, runs, row, n, [&] (gint64 i, int, const float (&values)[VectorSize<T>::value]) {
#pragma unroll
    for (int k = 0; k < VectorSize<T>::value; k++)
      if (IS_WHOLE || i + k < n)
        visit (values[k]);
  });
}

/* Calls change (i, values) for each run of this thread, stores the result in another row, and keeps it in place of the
 * run. */
template <typename T, bool IS_WHOLE, typename Change>
static __device__ __forceinline__ void
change_runs (const RowTeam<IS_WHOLE> &team,
             RowRuns<T> *runs,
             const T *row,
             gint64 n,
             T *to,
             Change change)
{
  visit_runs (team, *runs, row, n, [&] (gint64 i, int r, float (&values)[VectorSize<T>::value]) {
    change (i, values);
    store_team_run (team, to, i, n, values);
    if (r >= 0)
      runs->of[r] = pack_run (values);
  });
}

/* -- parameters ---------------------------------------------------------------------------------------------------- */

/* A vector of parameters of either dtype, with any stride. */
typedef struct
{
  const void *data; /* NULL: left out */
  EbbDType dtype;
  gint64 stride;
} Vector;

static inline Vector
get_vector (const EbbView *view)
{
  Vector vector = { NULL, EBB_DTYPE_F32, 0 };

  if (view != NULL)
    {
      vector.data = view->data;
      vector.dtype = view->dtype;
      vector.stride = view->n_dims > 0 ? view->strides[view->n_dims - 1] : 0;
    }
  return vector;
}

static __device__ __forceinline__ float
load_vector_element (const Vector &vector,
                     gint64 i)
{
  return load_float (vector.dtype, vector.data, i * vector.stride);
}

/* Whether a vector has f32 side by side from a multiple of 16 bytes on. TRUE for NULL. */
static inline bool
is_whole_vector (const EbbView *view)
{
  const Vector vector = get_vector (view);

  return vector.data == NULL
         || (vector.dtype == EBB_DTYPE_F32 && vector.stride == 1 && is_vector_aligned (vector.data));
}

/* Loads elements [i, i + N) of a vector of n; those behind its end are 0. */
template <int N, bool IS_WHOLE>
static __device__ __forceinline__ void
load_vector_run (const RowTeam<IS_WHOLE> &,
                 const Vector &vector,
                 gint64 i,
                 gint64 n,
                 float (&values)[N])
{
#pragma unroll
  for (int k = 0; k < N; k += 4)
    if (IS_WHOLE)
      {
        const float4 four = *reinterpret_cast<const float4 *> ((const float *) vector.data + i + k);

        values[k] = four.x;
        values[k + 1] = four.y;
        values[k + 2] = four.z;
        values[k + 3] = four.w;
      }
    else
      {
#pragma unroll
        for (int each = k; each < k + 4; each++)
          values[each] = i + each < n ? load_vector_element (vector, i + each) : 0.0f;
      }
}

/* -- mean and variance --------------------------------------------------------------------------------------------- */

/* From the sums of distances to a centre and of their squares, see tensor/cpu/simd/statistics-private.h. */
typedef struct
{
  float centre, mean, rest, variance;
} Statistics;

/* False: the distances are to be summed once more, to the new centre. */
static __device__ __forceinline__ bool
statistics_take (Statistics *self,
                 double sum,
                 double squares,
                 double n)
{
  double distance = sum / n, mean = self->centre + distance, variance = squares / n - distance * distance;

  self->mean = self->centre = (float) mean;
  self->rest = (float) (mean - self->mean);
  self->variance = (float) (variance < 0 ? 0 : variance); /* a NaN is not less */
  return !(distance * distance > 4 * variance) && !isinf (squares);
}

/* -- sums over rows ------------------------------------------------------------------------------------------------ */

#define PARTIAL_COLUMNS 32
#define PARTIAL_LANES 32
#define PARTIAL_THREADS (PARTIAL_COLUMNS * PARTIAL_LANES)

/* Adds partials [n_partials, stride] for each of n columns: 32 threads take every 32nd, and their sums are added in
 * order. */
static __global__ void __launch_bounds__ (PARTIAL_THREADS)
sum_partials_of_columns (const float *partials,
                         gint64 n_partials,
                         gint64 stride,
                         gint64 n,
                         bool accumulates,
                         float *sums)
{
  EBB_SHARED_ARRAY (float, lanes, [PARTIAL_LANES][PARTIAL_COLUMNS]);
  const unsigned column_of_block = threadIdx.x % PARTIAL_COLUMNS, lane = threadIdx.x / PARTIAL_COLUMNS;
  const gint64 column = (gint64) blockIdx.x * PARTIAL_COLUMNS + column_of_block;
  float sum = 0.0f;

  if (column < n)
    {
#pragma unroll 8
      for (gint64 i = lane; i < n_partials; i += PARTIAL_LANES)
        sum += partials[i * stride + column];
    }
  lanes[lane][column_of_block] = sum;
  __syncthreads ();
  if (lane != 0 || column >= n)
    return;
  for (int i = 1; i < PARTIAL_LANES; i++)
    sum += lanes[i][column_of_block];
  sums[column] = accumulates ? sums[column] + sum : sum;
}

static inline cudaError_t
launch_sum_partials (const float *partials,
                     gint64 n_partials,
                     gint64 stride,
                     gint64 n,
                     bool accumulates,
                     float *sums,
                     const EbbCudaQueue *queue)
{
  return EBB_CUDA_LAUNCH (sum_partials_of_columns, (unsigned) ((n + PARTIAL_COLUMNS - 1) / PARTIAL_COLUMNS),
                          PARTIAL_THREADS, 0, queue->stream, partials, n_partials, stride, n,
                          accumulates, sums);
}

/* Rows are summed in so many blocks at most. */
#define ROW_BLOCKS 512

static inline gint64
count_rows_of_block (gint64 n_rows)
{
  return n_rows > ROW_BLOCKS ? (n_rows + ROW_BLOCKS - 1) / ROW_BLOCKS : 1;
}
