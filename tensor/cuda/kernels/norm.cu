/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Layer norm (Ba, Kiros, Hinton 2016) and RMS norm (Zhang, Sennrich 2019), alone and after a residual and dropout, and
 * their gradients. */
#include "tensor/cuda/kernels/row.cuh"

/* -- forward ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *x, *residual; /* residual: NULL for a norm alone */
  void *sum, *y;
  Vector weight, bias, branch_weight;
  float *mean, *rstd, *branch_rstd; /* each may be NULL */
  float unit;                       /* added to weights */
  float eps, scale;                 /* scale: of the elements that dropout keeps */
  guint64 threshold, seed, offset;
  bool normalizes_branch;
  gint64 n_columns;
  Layout<1> rows; /* of x */
} Norm;

static __device__ __forceinline__ float
load_weight (const Norm &self,
             const Vector &weight,
             gint64 i)
{
  return load_vector_element (weight, i) + self.unit;
}

/* The sums over a row of distances to a centre and of their squares; all threads get both. */
template <typename T, bool IS_CENTRED>
static __device__ __forceinline__ void
sum_distances (const T *row,
               gint64 n,
               float centre,
               double *sum,
               double *squares,
               double *scratch)
{
  float own = 0.0f, own_squares = 0.0f;

  visit_row (row, n, [&] (float value) {
    const float distance = IS_CENTRED ? value - centre : value;

    own += distance;
    own_squares = fmaf (distance, distance, own_squares);
  });
  *sum = IS_CENTRED ? block_reduce<Sum> ((double) own, scratch) : 0;
  *squares = block_reduce<Sum> ((double) own_squares, scratch);
}

template <typename T, bool IS_CENTRED>
static __device__ __forceinline__ Statistics
find_statistics (const T *row,
                 gint64 n,
                 double *scratch)
{
  Statistics statistics = {};
  double sum, squares;
  int pass = 0;

  if (!IS_CENTRED)
    {
      sum_distances<T, false> (row, n, 0.0f, &sum, &squares, scratch);
      statistics.variance = (float) (squares / (double) n);
      return statistics;
    }
  statistics.centre = load (row);
  do
    sum_distances<T, true> (row, n, statistics.centre, &sum, &squares, scratch);
  while (!statistics_take (&statistics, sum, squares, (double) n) && ++pass < 2);
  return statistics;
}

/* Writes the normalized row; returns 1 / its deviation. */
template <typename T, bool IS_CENTRED>
static __device__ __forceinline__ float
normalize_row (const Norm &self,
               const T *row,
               T *y,
               const Vector &weight,
               float *mean,
               double *scratch)
{
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns;
  const Statistics statistics = find_statistics<T, IS_CENTRED> (row, n, scratch);
  const float rstd = 1.0f / sqrtf (statistics.variance + self.eps), shift = -statistics.rest * rstd;

  for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
    {
      float values[run];

      load_row_run (row, i, n, values);
#pragma unroll
      for (int k = 0; k < run; k++)
        if (i + k < n)
          {
            float value = IS_CENTRED ? fmaf (values[k] - statistics.mean, rstd, shift) : values[k] * rstd;

            if (weight.data != NULL)
              value *= load_weight (self, weight, i + k);
            if (IS_CENTRED && self.bias.data != NULL)
              value += load_vector_element (self.bias, i + k);
            values[k] = value;
          }
      store_row_run (y, i, n, values);
    }
  if (mean != NULL && threadIdx.x == 0)
    *mean = statistics.mean;
  return rstd;
}

/* sum = residual + dropout (branch), rounded to T, which the norm then reads. branch may be sum. */
template <typename T>
static __device__ __forceinline__ void
add_row (const Norm &self,
         const T *branch,
         const T *residual,
         T *sum,
         gint64 first)
{
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns;

  for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
    {
      float values[run], others[run];

      load_row_run (branch, i, n, values);
      load_row_run (residual, i, n, others);
      if (self.threshold != 0)
        {
#pragma unroll
          for (int k = 0; k < run; k++)
            {
              const guint32 draw = philox_draw (self.seed, self.offset, (guint64) (first + i + k));

              values[k] = draw >= self.threshold ? __fmul_rn (values[k], self.scale) : 0.0f;
            }
        }
#pragma unroll
      for (int k = 0; k < run; k++)
        values[k] += others[k];
      store_row_run (sum, i, n, values);
    }
}

template <typename T, bool IS_CENTRED>
__global__ void __launch_bounds__ (ROW_MOST_THREADS)
norm_rows (Norm self)
{
  EBB_SHARED_ARRAY (double, scratch, [ROW_MOST_WARPS]);

  for (gint64 row = blockIdx.x; row < self.rows.n_elements; row += gridDim.x)
    {
      const gint64 at = row * self.n_columns;
      T *y = (T *) self.y + at, *sum = (T *) self.sum + at;
      const T *x;
      gint64 x_at[1];
      float rstd;

      layout_find<guint32> (self.rows, (guint32) row, x_at);
      x = (const T *) self.x + x_at[0];
      if (self.residual != NULL)
        {
          const T *branch = x;

          if (self.normalizes_branch)
            {
              rstd = normalize_row<T, false> (self, x, sum, self.branch_weight, NULL, scratch);
              if (self.branch_rstd != NULL && threadIdx.x == 0)
                self.branch_rstd[row] = rstd;
              branch = sum;
            }
          add_row (self, branch, (const T *) self.residual + at, sum, at);
          x = sum;
          __syncthreads (); /* the centre of a layer norm is another thread's element */
        }
      rstd = normalize_row<T, IS_CENTRED> (self, x, y, self.weight, self.mean != NULL ? self.mean + row : NULL,
                                           scratch);
      if (self.rstd != NULL && threadIdx.x == 0)
        self.rstd[row] = rstd;
    }
}

static void
norm_init (Norm *self,
           const EbbLaunch *launch,
           const EbbView *x)
{
  EbbView rows = *x;
  const EbbView *const views[] = { &rows };

  *self = Norm{};
  self->x = x->data;
  self->eps = (float) launch->params.norm.eps;
  self->unit = launch->params.norm.unit_offset ? 1.0f : 0.0f;
  self->n_columns = count_columns (x);
  rows.shape[x->n_dims - 1] = 1;
  layout_init (&self->rows, &rows, views);
}

template <bool IS_CENTRED>
static cudaError_t
launch_norm (const Norm &self,
             const EbbView *x,
             const EbbCudaQueue *queue)
{
  const unsigned n_threads = count_row_threads (self.n_columns, x->dtype);
  const gint64 n_rows = self.rows.n_elements;
  const unsigned n_blocks = (unsigned) (n_rows < G_MAXINT32 ? n_rows : G_MAXINT32);

  if (n_rows == 0 || self.n_columns == 0)
    return cudaSuccess;
  if (x->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (norm_rows<float, IS_CENTRED>, n_blocks, n_threads, 0, queue->stream, self);
  return EBB_CUDA_LAUNCH (norm_rows<Bf16, IS_CENTRED>, n_blocks, n_threads, 0, queue->stream, self);
}

EBB_CUDA_KERNEL (layer_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm self;

  norm_init (&self, launch, x);
  self.unit = 0.0f;
  self.weight = get_vector (get_input (launch, 1));
  self.bias = get_vector (get_input (launch, 2));
  self.y = launch->outputs[0]->data;
  self.mean = get_floats (get_output (launch, 1));
  self.rstd = get_floats (get_output (launch, 2));
  return launch_norm<true> (self, x, queue);
}

EBB_CUDA_KERNEL (rms_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm self;

  norm_init (&self, launch, x);
  self.weight = get_vector (get_input (launch, 1));
  self.y = launch->outputs[0]->data;
  self.rstd = get_floats (get_output (launch, 1));
  return launch_norm<false> (self, x, queue);
}

static void
norm_init_residual (Norm *self,
                    const EbbLaunch *launch)
{
  const double p = launch->params.norm.p;

  self->residual = launch->inputs[1]->data;
  self->sum = launch->outputs[0]->data;
  self->y = launch->outputs[1]->data;
  self->scale = p < 1 ? (float) (1 / (1 - p)) : 0.0f;
  self->threshold = dropout_threshold (p);
  self->seed = launch->params.norm.philox.seed;
  self->offset = launch->params.norm.philox.offset;
}

EBB_CUDA_KERNEL (add_layer_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm self;

  norm_init (&self, launch, x);
  norm_init_residual (&self, launch);
  self.unit = 0.0f;
  self.weight = get_vector (get_input (launch, 2));
  self.bias = get_vector (get_input (launch, 3));
  self.mean = get_floats (get_output (launch, 2));
  self.rstd = get_floats (get_output (launch, 3));
  return launch_norm<true> (self, x, queue);
}

EBB_CUDA_KERNEL (add_rms_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm self;

  norm_init (&self, launch, x);
  norm_init_residual (&self, launch);
  self.weight = get_vector (get_input (launch, 2));
  self.branch_weight = get_vector (get_input (launch, 3));
  self.normalizes_branch = launch->params.norm.normalizes_branch != FALSE;
  self.rstd = get_floats (get_output (launch, 2));
  self.branch_rstd = get_floats (get_output (launch, 3));
  return launch_norm<false> (self, x, queue);
}

/* -- gradient ------------------------------------------------------------------------------------------------------ */

/* With h = (x - mean) rstd, less its own mean, and g = dy weight, a row's gradient is
 *   layer norm: dx = rstd (g - mean (g) - h mean (g h))
 *   RMS norm:   dx = rstd (g - h mean (g h)), where mean is 0 in h
 * and dweight = sum over rows (dy h), dbias = sum over rows (dy). A block of threads takes a block of rows, and each
 * thread adds to its own columns. */
typedef struct
{
  const void *dy, *x, *dsum; /* dsum may be NULL */
  void *dx;                  /* NULL: not wanted */
  Vector weight;
  const float *mean, *rstd;
  float *partials; /* [blocks, 2, columns]: dweight and dbias; NULL: not wanted */
  float unit;
  bool sums_in_shared; /* a block's sums fit into shared memory until they are done */
  float of_columns;    /* 1 / n_columns */
  gint64 n_columns, rows_of_block;
  Layout<1> rows; /* of x */
} NormGrad;

#define SHARED_COLUMNS 6144 /* whose sums take 48 KiB */

/* The means of g, of g h and of h. */
template <typename T, bool IS_CENTRED>
static __device__ __forceinline__ void
find_means (const NormGrad &self,
            const T *dy,
            const T *x,
            float mean,
            float rstd,
            float *mean_g,
            float *mean_gh,
            float *mean_h,
            float *scratch)
{
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns;
  float sum_g = 0.0f, sum_gx = 0.0f, sum_x = 0.0f;

  for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
    {
      float gs[run], xs[run];

      load_row_run (dy, i, n, gs);
      load_row_run (x, i, n, xs);
#pragma unroll
      for (int k = 0; k < run; k++)
        if (i + k < n)
          {
            float g = gs[k], distance = xs[k];

            if (self.weight.data != NULL)
              g *= load_vector_element (self.weight, i + k) + self.unit;
            if (IS_CENTRED)
              {
                distance -= mean;
                sum_g += g;
                sum_x += distance;
              }
            sum_gx = fmaf (g, distance, sum_gx);
          }
    }
  *mean_g = IS_CENTRED ? block_sum (sum_g, scratch) * self.of_columns : 0.0f;
  *mean_h = IS_CENTRED ? block_sum (sum_x, scratch) * rstd * self.of_columns : 0.0f;
  *mean_gh = block_sum (sum_gx, scratch) * rstd * self.of_columns - *mean_g * *mean_h;
}

template <typename T, bool IS_CENTRED>
static __device__ __forceinline__ void
differentiate_row (const NormGrad &self,
                   gint64 row,
                   float *sums,
                   float *scratch)
{
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns, at = row * n;
  const T *dy = (const T *) self.dy + at, *x, *dsum = (const T *) self.dsum;
  const float mean = IS_CENTRED ? self.mean[row] : 0.0f, rstd = self.rstd[row];
  float mean_g, mean_gh, mean_h;
  gint64 x_at[1];

  layout_find<guint32> (self.rows, (guint32) row, x_at);
  x = (const T *) self.x + x_at[0];
  find_means<T, IS_CENTRED> (self, dy, x, mean, rstd, &mean_g, &mean_gh, &mean_h, scratch);
  for (gint64 i = get_first_run<T> (); i < n; i += get_run_step<T> ())
    {
      float gs[run], xs[run], more[run] = {};

      load_row_run (dy, i, n, gs);
      load_row_run (x, i, n, xs);
      if (dsum != NULL && self.dx != NULL)
        load_row_run (dsum + at, i, n, more);
#pragma unroll
      for (int k = 0; k < run; k++)
        if (i + k < n)
          {
            const float h = IS_CENTRED ? fmaf (xs[k] - mean, rstd, -mean_h) : xs[k] * rstd;
            float g = gs[k];

            if (sums != NULL)
              {
                sums[i + k] = fmaf (g, h, sums[i + k]);
                if (IS_CENTRED)
                  sums[n + i + k] += g;
              }
            if (self.weight.data != NULL)
              g *= load_vector_element (self.weight, i + k) + self.unit;
            gs[k] = (g - mean_g - h * mean_gh) * rstd + more[k];
          }
      if (self.dx != NULL)
        store_row_run ((T *) self.dx + at, i, n, gs);
    }
}

template <typename T, bool IS_CENTRED>
__global__ void __launch_bounds__ (ROW_MOST_THREADS)
norm_grad_rows (NormGrad self)
{
  EBB_SHARED (float, shared_sums);
  EBB_SHARED_ARRAY (float, scratch, [ROW_MOST_WARPS]);
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns, first = blockIdx.x * self.rows_of_block, end = first + self.rows_of_block;
  const gint64 last = end < self.rows.n_elements ? end : self.rows.n_elements;
  float *partials = self.partials != NULL ? self.partials + blockIdx.x * 2 * n : NULL;
  float *sums = partials != NULL && self.sums_in_shared ? shared_sums : partials;

  /* Each thread sees its own columns alone, so no barrier is needed. */
  for (gint64 i = get_first_run<T> (); sums != NULL && i < n; i += get_run_step<T> ())
    for (int k = 0; k < run && i + k < n; k++)
      sums[i + k] = sums[n + i + k] = 0.0f;
  for (gint64 row = first; row < last; row++)
    differentiate_row<T, IS_CENTRED> (self, row, sums, scratch);
  for (gint64 i = get_first_run<T> (); sums != partials && i < n; i += get_run_step<T> ())
    for (int k = 0; k < run && i + k < n; k++)
      {
        partials[i + k] = sums[i + k];
        partials[n + i + k] = sums[n + i + k];
      }
}

static gint64
count_grad_blocks (gint64 n_rows)
{
  const gint64 of_block = count_rows_of_block (n_rows);

  return (n_rows + of_block - 1) / of_block;
}

static gsize
get_grad_workspace (const EbbLaunch *launch)
{
  const EbbView *x = launch->inputs[1];

  if (get_output (launch, 1) == NULL && get_output (launch, 2) == NULL)
    return 0;
  return (gsize) (count_grad_blocks (count_rows (x)) * 2 * count_columns (x)) * sizeof (float);
}

EBB_CUDA_WORKSPACE (layer_norm_grad)
{
  return get_grad_workspace (launch);
}

EBB_CUDA_WORKSPACE (rms_norm_grad)
{
  return get_grad_workspace (launch);
}

template <typename T, bool IS_CENTRED>
static cudaError_t
launch_norm_grad_rows (const NormGrad &self,
                       const EbbView *x,
                       gint64 n_blocks,
                       const EbbCudaQueue *queue)
{
  const gsize shared = self.partials != NULL && self.sums_in_shared ? (gsize) self.n_columns * 2 * sizeof (float) : 0;

  return EBB_CUDA_LAUNCH (norm_grad_rows<T, IS_CENTRED>, (unsigned) n_blocks,
                          count_row_threads (self.n_columns, x->dtype), shared, queue->stream, self);
}

template <bool IS_CENTRED>
static cudaError_t
launch_norm_grad (const EbbLaunch *launch,
                  NormGrad *self,
                  const EbbCudaQueue *queue)
{
  const EbbView *x = launch->inputs[1];
  const gint64 n = count_columns (x), n_rows = count_rows (x), n_blocks = count_grad_blocks (n_rows);
  EbbView *dweight = get_output (launch, 1), *dbias = IS_CENTRED ? get_output (launch, 2) : NULL;
  EbbView rows = *x;
  const EbbView *const views[] = { &rows };
  cudaError_t status = cudaSuccess;

  self->dy = launch->inputs[0]->data;
  self->x = x->data;
  self->weight = get_vector (launch->inputs[2]);
  self->dx = launch->outputs[0] != NULL ? launch->outputs[0]->data : NULL;
  self->unit = !IS_CENTRED && launch->params.norm.unit_offset ? 1.0f : 0.0f;
  self->n_columns = n;
  self->of_columns = 1.0f / (float) n;
  self->rows_of_block = count_rows_of_block (n_rows);
  self->partials = dweight != NULL || dbias != NULL ? (float *) launch->workspace : NULL;
  /* Beside them the sums of the warps need a little. */
  self->sums_in_shared = n <= SHARED_COLUMNS - ROW_MOST_WARPS;
  rows.shape[x->n_dims - 1] = 1;
  layout_init (&self->rows, &rows, views);
  if (n == 0)
    return cudaSuccess;
  if (n_rows > 0 && x->dtype == EBB_DTYPE_F32)
    status = launch_norm_grad_rows<float, IS_CENTRED> (*self, x, n_blocks, queue);
  else if (n_rows > 0)
    status = launch_norm_grad_rows<Bf16, IS_CENTRED> (*self, x, n_blocks, queue);
  if (status == cudaSuccess && dweight != NULL)
    status = launch_sum_partials (self->partials, n_blocks, 2 * n, n, launch->params.norm.accumulate_weight != FALSE,
                                  (float *) dweight->data, queue);
  if (status == cudaSuccess && dbias != NULL)
    status = launch_sum_partials (self->partials + n, n_blocks, 2 * n, n, launch->params.norm.accumulate_bias != FALSE,
                                  (float *) dbias->data, queue);
  return status;
}

EBB_CUDA_KERNEL (layer_norm_grad)
{
  const EbbView *dsum = get_input (launch, 5);
  NormGrad self = {};

  self.mean = (const float *) launch->inputs[3]->data;
  self.rstd = (const float *) launch->inputs[4]->data;
  self.dsum = get_data (dsum);
  return launch_norm_grad<true> (launch, &self, queue);
}

EBB_CUDA_KERNEL (rms_norm_grad)
{
  const EbbView *dsum = get_input (launch, 4);
  NormGrad self = {};

  self.rstd = (const float *) launch->inputs[3]->data;
  self.dsum = get_data (dsum);
  return launch_norm_grad<false> (launch, &self, queue);
}
