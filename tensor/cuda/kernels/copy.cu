/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Kernels that write by position: copies between any strides and dtypes, fill, arange, triangles. */
#include "tensor/cuda/kernels/elementwise.cuh"

/* -- copy ---------------------------------------------------------------------------------------------------------- */

#define TILE 32 /* of a transposing copy: rows and columns */
#define TILE_ROWS 8
#define TILE_THREADS (TILE * TILE_ROWS)

typedef struct
{
  const void *x;
  void *y;
  EbbDType x_dtype, y_dtype;
  bool is_float; /* by way of f32, else of i64 */
  const EbbCudaFault *guard;
} Copy;

static __device__ __forceinline__ void
copy_element (const Copy &copy,
              gint64 x,
              gint64 y)
{
  if (copy.x_dtype == copy.y_dtype)
    switch (copy.x_dtype)
      {
      case EBB_DTYPE_I64: ((gint64 *) copy.y)[y] = ((const gint64 *) copy.x)[x]; break;
      case EBB_DTYPE_F32:
      case EBB_DTYPE_I32: ((gint32 *) copy.y)[y] = ((const gint32 *) copy.x)[x]; break;
      case EBB_DTYPE_BF16:
      case EBB_DTYPE_F16: ((guint16 *) copy.y)[y] = ((const guint16 *) copy.x)[x]; break;
      default: ((guint8 *) copy.y)[y] = ((const guint8 *) copy.x)[x]; break;
      }
  else if (copy.is_float)
    store_float (copy.y_dtype, copy.y, y, load_float (copy.x_dtype, copy.x, x));
  else
    store_integer (copy.y_dtype, copy.y, y, load_integer (copy.x_dtype, copy.x, x));
}

/* Of one dtype; the layout is that of vectors of 16 bytes. The bytes behind the last vector of a single row go one by
 * one. */
template <typename Index>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
copy_vectors (Copy copy,
              Layout<2> layout,
              gint64 n_bytes)
{
  if (fault_is_set (copy.guard))
    return;
  for (gint64 i = get_thread (); i < layout.n_elements; i += count_threads ())
    {
      gint64 at[2];

      layout_find<Index> (layout, (Index) i, at);
      ((uint4 *) copy.y)[at[1]] = ((const uint4 *) copy.x)[at[0]];
    }
  for (gint64 i = layout.n_elements * 16 + get_thread (); i < n_bytes; i += count_threads ())
    ((guint8 *) copy.y)[i] = ((const guint8 *) copy.x)[i];
}

template <typename Index>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
copy_strided (Copy copy,
              Layout<2> layout)
{
  if (fault_is_set (copy.guard))
    return;
  for (gint64 i = get_thread (); i < layout.n_elements; i += count_threads ())
    {
      gint64 at[2];

      layout_find<Index> (layout, (Index) i, at);
      copy_element (copy, at[0], at[1]);
    }
}

/* Dimension p has stride 1 in x, dimension q in y: tiles of the two pass through shared memory, so that both sides are
 * read and written in runs. */
typedef struct
{
  gint64 n_p, n_q, x_q, y_p; /* sizes; the stride of q in x, that of p in y */
  gint64 tiles_p, tiles_q, n_tiles;
  Layout<2> others;
} Transposition;

template <typename T>
__global__ void __launch_bounds__ (TILE_THREADS)
copy_transposed (const T *x,
                 T *y,
                 Transposition t,
                 const EbbCudaFault *guard)
{
  EBB_SHARED_ARRAY (T, tile, [TILE][TILE + 1]);
  int column = (int) threadIdx.x % TILE, first = (int) threadIdx.x / TILE;

  if (fault_is_set (guard))
    return;
  for (gint64 i = blockIdx.x; i < t.n_tiles; i += gridDim.x)
    {
      gint64 p = i % t.tiles_p * TILE, q = i / t.tiles_p % t.tiles_q * TILE, at[2];

      layout_find<guint64> (t.others, (guint64) (i / (t.tiles_p * t.tiles_q)), at);
      for (int row = first; row < TILE; row += TILE_ROWS)
        if (q + row < t.n_q && p + column < t.n_p)
          tile[row][column] = x[at[0] + p + column + (q + row) * t.x_q];
      __syncthreads ();
      for (int row = first; row < TILE; row += TILE_ROWS)
        if (p + row < t.n_p && q + column < t.n_q)
          y[at[1] + q + column + (p + row) * t.y_p] = tile[column][row];
      __syncthreads ();
    }
}

/* The dimension with stride 1 and more than a few elements, or -1 */
static int
find_contiguous (const EbbView *view)
{
  for (int d = view->n_dims - 1; d >= 0; d--)
    if (view->strides[d] == 1 && view->shape[d] > 1)
      return view->shape[d] >= 8 ? d : -1;
  return -1;
}

static bool
find_transposition (Transposition *self,
                    const EbbView *x,
                    const EbbView *y)
{
  int p = find_contiguous (x), q = find_contiguous (y);
  EbbView others_x = *x, others_y = *y;
  const EbbView *const views[] = { &others_x, &others_y };

  if (p < 0 || q < 0 || p == q || x->dtype != y->dtype)
    return false;
  self->n_p = x->shape[p];
  self->n_q = x->shape[q];
  self->x_q = x->strides[q];
  self->y_p = y->strides[p];
  self->tiles_p = (self->n_p + TILE - 1) / TILE;
  self->tiles_q = (self->n_q + TILE - 1) / TILE;
  others_x.shape[p] = others_x.shape[q] = others_y.shape[p] = others_y.shape[q] = 1;
  layout_init (&self->others, &others_x, views);
  self->n_tiles = self->others.n_elements * self->tiles_p * self->tiles_q;
  return true;
}

static cudaError_t
launch_transposition (const Copy &copy,
                      const Transposition &t,
                      const EbbCudaQueue *queue)
{
  gint64 most = G_MAXINT32;
  unsigned n = (unsigned) (t.n_tiles < most ? t.n_tiles : most);

  switch (get_dtype_size (copy.x_dtype))
    {
    case 8:
      return EBB_CUDA_LAUNCH (copy_transposed<guint64>, n, TILE_THREADS, 0, queue->stream, (const guint64 *) copy.x,
                              (guint64 *) copy.y, t, copy.guard);
    case 4:
      return EBB_CUDA_LAUNCH (copy_transposed<guint32>, n, TILE_THREADS, 0, queue->stream, (const guint32 *) copy.x,
                              (guint32 *) copy.y, t, copy.guard);
    case 2:
      return EBB_CUDA_LAUNCH (copy_transposed<guint16>, n, TILE_THREADS, 0, queue->stream, (const guint16 *) copy.x,
                              (guint16 *) copy.y, t, copy.guard);
    default:
      return EBB_CUDA_LAUNCH (copy_transposed<guint8>, n, TILE_THREADS, 0, queue->stream, (const guint8 *) copy.x,
                              (guint8 *) copy.y, t, copy.guard);
    }
}

/* Makes a layout of elements of so many bytes one of vectors, if it can be. */
static bool
layout_take_vectors (Layout<2> *self,
                     gint64 size)
{
  const int last = self->n_dims - 1;

  if (last > 0 && self->shape[last] * size % 16 != 0)
    return false;
  for (int k = 0; k < 2; k++)
    {
      if (self->strides[k][last] != 1)
        return false;
      for (int d = 0; d < last; d++)
        if (self->strides[k][d] * size % 16 != 0)
          return false;
    }
  for (int k = 0; k < 2; k++)
    for (int d = 0; d < last; d++)
      self->strides[k][d] = self->strides[k][d] * size / 16;
  self->n_elements = self->n_elements * size / 16;
  self->shape[last] = self->shape[last] * size / 16;
  return true;
}

struct Identity : NoIntegers
{
  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[1][COUNT],
          float (&y)[COUNT]) const
  {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      y[i] = x[0][i];
  }
};

EBB_CUDA_KERNEL (copy)
{
  const EbbView *x = launch->inputs[0];
  EbbView *y = launch->outputs[0];
  const EbbView *const views[] = { x, y };
  bool is_float = is_float_dtype (x->dtype) && (is_float_dtype (y->dtype) || y->dtype == EBB_DTYPE_BOOL);
  const Copy copy = { x->data, y->data, x->dtype, y->dtype, is_float, queue->guard };
  const gint64 n = ebb_view_count_elements (y), size = get_dtype_size (x->dtype);
  Transposition transposition;
  Layout<2> layout;

  if (n == 0
      || (x->data == y->data && x->dtype == y->dtype && ebb_view_is_contiguous (x) && ebb_view_is_contiguous (y)))
    return cudaSuccess;
  if (x->dtype != y->dtype && is_run_dtype (x->dtype) && is_run_dtype (y->dtype))
    return elementwise_launch<1> (views, true, Identity (), queue);
  layout_init (&layout, y, views);
  if (x->dtype == y->dtype && is_vector_aligned (x->data) && is_vector_aligned (y->data)
      && layout_take_vectors (&layout, size))
    return n * size <= G_MAXINT32
               ? EBB_CUDA_LAUNCH (copy_vectors<guint32>, count_blocks (layout.n_elements + 1, queue),
                                  ELEMENTWISE_THREADS, 0, queue->stream, copy, layout, n * size)
               : EBB_CUDA_LAUNCH (copy_vectors<guint64>, count_blocks (layout.n_elements + 1, queue),
                                  ELEMENTWISE_THREADS, 0, queue->stream, copy, layout, n * size);
  if (find_transposition (&transposition, x, y))
    return launch_transposition (copy, transposition, queue);
  if (n <= G_MAXINT32)
    return EBB_CUDA_LAUNCH (copy_strided<guint32>, count_blocks (n, queue), ELEMENTWISE_THREADS, 0, queue->stream, copy,
                            layout);
  return EBB_CUDA_LAUNCH (copy_strided<guint64>, count_blocks (n, queue), ELEMENTWISE_THREADS, 0, queue->stream, copy,
                          layout);
}

/* -- fill, arange -------------------------------------------------------------------------------------------------- */

/* Element i becomes start + i * step. */
typedef struct
{
  Layout<1> layout;
  void *y;
  EbbDType dtype;
  bool is_float;
  double start, step;
  gint64 fill; /* of integers, where step is 0 */
  const EbbCudaFault *guard;
} Progression;

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
write_progression (Progression self)
{
  if (fault_is_set (self.guard))
    return;
  for (gint64 i = get_thread (); i < self.layout.n_elements; i += count_threads ())
    {
      gint64 at[1];

      layout_find<guint64> (self.layout, (guint64) i, at);
      if (self.is_float)
        store_float (self.dtype, self.y, at[0], (float) (self.start + (double) i * self.step));
      else
        store_integer (self.dtype, self.y, at[0],
                       self.step == 0 ? self.fill : double_to_i64 (self.start + (double) i * self.step));
    }
}

/* A contiguous view of one value, as a pattern of 4 bytes. */
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
fill_words (guint32 *y,
            gint64 n,
            guint32 value,
            const EbbCudaFault *guard)
{
  const uint4 four = { value, value, value, value };

  if (fault_is_set (guard))
    return;
  for (gint64 i = get_thread (); i < n / 4; i += count_threads ())
    ((uint4 *) y)[i] = four;
  for (gint64 i = n / 4 * 4 + get_thread (); i < n; i += count_threads ())
    y[i] = value;
}

/* All kernels are compiled for the same devices. */
cudaError_t
ebb_cuda_find_code (void)
{
  struct cudaFuncAttributes attributes;

  return cudaFuncGetAttributes (&attributes, reinterpret_cast<const void *> (fill_words));
}

static cudaError_t
launch_progression (const EbbLaunch *launch,
                    const EbbCudaQueue *queue,
                    double start,
                    double step)
{
  EbbView *y = launch->outputs[0];
  const EbbView *const views[] = { y };
  Progression self;

  layout_init (&self.layout, y, views);
  self.y = y->data;
  self.dtype = y->dtype;
  self.is_float = is_float_dtype (y->dtype);
  self.start = start;
  self.step = step;
  self.fill = double_to_i64 (start);
  self.guard = queue->guard;
  if (self.layout.n_elements == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (write_progression, count_blocks (self.layout.n_elements, queue), ELEMENTWISE_THREADS, 0,
                          queue->stream, self);
}

EBB_CUDA_KERNEL (fill)
{
  EbbView *y = launch->outputs[0];
  const float value = (float) launch->params.fill.value;
  const gint64 n = ebb_view_count_elements (y);
  union
  {
    float value;
    guint32 word;
  } bits = { value };

  if (n == 0)
    return cudaSuccess;
  if (y->dtype == EBB_DTYPE_F32 && ebb_view_is_contiguous (y) && is_vector_aligned (y->data))
    return EBB_CUDA_LAUNCH (fill_words, count_blocks (n / 4 + 1, queue), ELEMENTWISE_THREADS, 0, queue->stream,
                            (guint32 *) y->data, n, bits.word, queue->guard);
  return launch_progression (launch, queue, launch->params.fill.value, 0);
}

EBB_CUDA_KERNEL (arange)
{
  return launch_progression (launch, queue, launch->params.arange.start, launch->params.arange.step);
}

/* -- triangle ------------------------------------------------------------------------------------------------------ */

__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
keep_triangle (Copy copy,
               Layout<2> layout,
               gint64 n_rows,
               gint64 n_columns,
               gint64 diagonal,
               bool is_upper)
{
  for (gint64 i = get_thread (); i < layout.n_elements; i += count_threads ())
    {
      gint64 column = i % n_columns, row = i / n_columns % n_rows, at[2];

      layout_find<guint64> (layout, (guint64) i, at);
      if (is_upper ? column - row >= diagonal : column - row <= diagonal)
        copy_element (copy, at[0], at[1]);
      else
        store_integer (copy.y_dtype, copy.y, at[1], 0);
    }
}

EBB_CUDA_KERNEL (triangle)
{
  const EbbView *x = launch->inputs[0];
  EbbView *y = launch->outputs[0];
  const EbbView *const views[] = { x, y };
  const Copy copy = { x->data, y->data, x->dtype, y->dtype, is_float_dtype (x->dtype), queue->guard };
  Layout<2> layout;

  layout_init (&layout, y, views);
  if (layout.n_elements == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (keep_triangle, count_blocks (layout.n_elements, queue), ELEMENTWISE_THREADS, 0, queue->stream,
                          copy, layout, x->shape[x->n_dims - 2], x->shape[x->n_dims - 1],
                          launch->params.triangle.diagonal, launch->params.triangle.upper != FALSE);
}
