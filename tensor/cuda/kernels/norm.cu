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

/* The sums over a row of distances to a centre and of their squares; all threads get both. */
template <typename T, bool IS_CENTRED, bool IS_WHOLE>
static __device__ __forceinline__ void
sum_distances (const RowTeam<IS_WHOLE> &team,
               const RowRuns<T> &runs,
               const T *row,
               gint64 n,
               float centre,
               double *sum,
               double *squares,
               double *scratch)
{
  float own = 0.0f, own_squares = 0.0f;

  visit_elements (team, runs, row, n, [&] (float value) {
    const float distance = IS_CENTRED ? value - centre : value;

    own += distance;
    own_squares = fmaf (distance, distance, own_squares);
  });
  *sum = IS_CENTRED ? team_reduce<Sum> (team, (double) own, scratch) : 0;
  *squares = team_reduce<Sum> (team, (double) own_squares, scratch);
}

/* The first element of a row, which its first thread has. */
template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ float
get_first_element (const RowTeam<IS_WHOLE> &team,
                   const RowRuns<T> &runs,
                   double *scratch)
{
  float values[VectorSize<T>::value];

  unpack_run<T> (runs.of[0], values);
  return (float) team_reduce<Sum> (team, team.thread == 0 ? (double) values[0] : 0.0, scratch);
}

template <typename T, bool IS_CENTRED, bool IS_WHOLE>
static __device__ __forceinline__ Statistics
find_statistics (const RowTeam<IS_WHOLE> &team,
                 const RowRuns<T> &runs,
                 const T *row,
                 gint64 n,
                 double *scratch)
{
  Statistics statistics = {};
  double sum, squares;
  int pass = 0;

  if (!IS_CENTRED)
    {
      sum_distances<T, false, IS_WHOLE> (team, runs, row, n, 0.0f, &sum, &squares, scratch);
      statistics.variance = (float) (squares / (double) n);
      return statistics;
    }
  statistics.centre = get_first_element (team, runs, scratch);
  do
    sum_distances<T, true, IS_WHOLE> (team, runs, row, n, statistics.centre, &sum, &squares, scratch);
  while (!statistics_take (&statistics, sum, squares, (double) n) && ++pass < 2);
  return statistics;
}

/* Writes the normalized row, which is kept from now on; returns 1 / its deviation. */
template <typename T, bool IS_CENTRED, bool IS_WHOLE>
static __device__ __forceinline__ float
normalize_row (const Norm &self,
               const RowTeam<IS_WHOLE> &team,
               RowRuns<T> *runs,
               const T *row,
               T *y,
               const Vector &weight,
               float *mean,
               double *scratch)
{
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns;
  const Statistics statistics = find_statistics<T, IS_CENTRED, IS_WHOLE> (team, *runs, row, n, scratch);
  const float rstd = 1.0f / sqrtf (statistics.variance + self.eps), shift = -statistics.rest * rstd;

  change_runs (team, runs, row, n, y, [&] (gint64 i, float (&values)[run]) {
    float weights[run], biases[run];

    if (weight.data != NULL)
      load_vector_run (team, weight, i, n, weights);
    if (IS_CENTRED && self.bias.data != NULL)
      load_vector_run (team, self.bias, i, n, biases);
#pragma unroll
    for (int k = 0; k < run; k++)
      {
        float value = IS_CENTRED ? fmaf (values[k] - statistics.mean, rstd, shift) : values[k] * rstd;

        if (weight.data != NULL)
          value *= weights[k] + self.unit;
        if (IS_CENTRED && self.bias.data != NULL)
          value += biases[k];
        values[k] = value;
      }
  });
  if (mean != NULL && team.thread == 0)
    *mean = statistics.mean;
  return rstd;
}

/* sum = residual + dropout (branch), rounded to T, which the norm then reads. branch may be sum. */
template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ void
add_row (const Norm &self,
         const RowTeam<IS_WHOLE> &team,
         RowRuns<T> *runs,
         const T *branch,
         const T *residual,
         T *sum,
         gint64 first)
{
  const int run = VectorSize<T>::value;

  change_runs (team, runs, branch, self.n_columns, sum, [&] (gint64 i, float (&values)[run]) {
    float others[run];

    unpack_run<T> (load_team_run (team, residual, i, self.n_columns), others);
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
  });
}

template <typename T, bool IS_CENTRED, bool IS_WHOLE>
__global__ void __launch_bounds__ (TEAM_MOST_THREADS)
norm_rows (Norm self)
{
  EBB_SHARED_ARRAY (double, scratch, [TEAM_MOST_WARPS]);
  const RowTeam<IS_WHOLE> team = get_row_team<IS_WHOLE> (self.n_columns);

  for (gint64 row = team.row; row < self.rows.n_elements; row += team.row_step)
    {
      const gint64 at = row * self.n_columns;
      T *y = (T *) self.y + at, *sum = (T *) self.sum + at;
      const T *x;
      RowRuns<T> runs;
      gint64 x_at[1];
      float rstd;

      layout_find<guint32> (self.rows, (guint32) row, x_at);
      x = (const T *) self.x + x_at[0];
      load_runs (team, x, self.n_columns, &runs);
      if (self.residual != NULL)
        {
          if (self.normalizes_branch)
            {
              rstd = normalize_row<T, false, IS_WHOLE> (self, team, &runs, x, sum, self.branch_weight, NULL, scratch);
              if (self.branch_rstd != NULL && team.thread == 0)
                self.branch_rstd[row] = rstd;
              x = sum;
            }
          add_row (self, team, &runs, x, (const T *) self.residual + at, sum, at);
          x = sum;
        }
      rstd = normalize_row<T, IS_CENTRED, IS_WHOLE> (self, team, &runs, x, y, self.weight,
                                                     self.mean != NULL ? self.mean + row : NULL, scratch);
      if (self.rstd != NULL && team.thread == 0)
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

template <typename T, bool IS_CENTRED>
static cudaError_t
launch_norm_rows (const Norm &self,
                  bool whole,
                  const EbbCudaQueue *queue)
{
  const unsigned n_threads = count_team_threads (self.n_columns);
  const unsigned n_blocks = count_team_blocks (self.rows.n_elements, self.n_columns);

  if (whole)
    return EBB_CUDA_LAUNCH (norm_rows<T, IS_CENTRED, true>, n_blocks, n_threads, 0, queue->stream, self);
  return EBB_CUDA_LAUNCH (norm_rows<T, IS_CENTRED, false>, n_blocks, n_threads, 0, queue->stream, self);
}

/* The first n inputs and the first n outputs have rows, the other inputs are vectors. */
template <bool IS_CENTRED>
static cudaError_t
launch_norm (const Norm &self,
             const EbbLaunch *launch,
             guint n,
             const EbbCudaQueue *queue)
{
  bool whole = true;

  for (guint i = 0; i < launch->n_inputs; i++)
    whole = whole && (i < n ? is_whole (launch->inputs[i]) : is_whole_vector (launch->inputs[i]));
  for (guint i = 0; i < n; i++)
    whole = whole && is_whole (launch->outputs[i]);
  if (self.rows.n_elements == 0 || self.n_columns == 0)
    return cudaSuccess;
  if (launch->inputs[0]->dtype == EBB_DTYPE_F32)
    return launch_norm_rows<float, IS_CENTRED> (self, whole, queue);
  return launch_norm_rows<Bf16, IS_CENTRED> (self, whole, queue);
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
  return launch_norm<true> (self, launch, 1, queue);
}

EBB_CUDA_KERNEL (rms_norm)
{
  const EbbView *x = launch->inputs[0];
  Norm self;

  norm_init (&self, launch, x);
  self.weight = get_vector (get_input (launch, 1));
  self.y = launch->outputs[0]->data;
  self.rstd = get_floats (get_output (launch, 1));
  return launch_norm<false> (self, launch, 1, queue);
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
  return launch_norm<true> (self, launch, 2, queue);
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
  return launch_norm<false> (self, launch, 2, queue);
}

/* -- gradient ------------------------------------------------------------------------------------------------------ */

/* With h = (x - mean) rstd, less its own mean, and g = dy weight, a row's gradient is
 *   layer norm: dx = rstd (g - mean (g) - h mean (g h))
 *   RMS norm:   dx = rstd (g - h mean (g h)), where mean is 0 in h
 * and dweight = sum over rows (dy h), dbias = sum over rows (dy). A block takes some rows, one for each of its teams at
 * a time, and each thread adds to its own columns. */
typedef struct
{
  const void *dy, *x, *dsum; /* dsum may be NULL */
  void *dx;                  /* NULL: not wanted */
  Vector weight;
  const float *mean, *rstd;
  float *partials; /* [blocks, 2, columns]: dweight and dbias; NULL: not wanted */
  float unit;
  float of_columns; /* 1 / n_columns */
  gint64 n_columns, rows_of_block;
  Layout<1> rows; /* of x */
} NormGrad;

/* A thread's runs of a row of dy, of x and, if there is one, of dsum. */
template <typename T>
struct GradRuns
{
  RowRuns<T> dy, x, dsum;
};

template <typename T>
static __device__ __forceinline__ const T *
get_dsum (const NormGrad &self,
          gint64 at)
{
  return self.dsum != NULL && self.dx != NULL ? (const T *) self.dsum + at : NULL;
}

/* The means of g, of g h and of h. */
template <typename T, bool IS_CENTRED, bool IS_WHOLE>
static __device__ __forceinline__ void
find_means (const NormGrad &self,
            const RowTeam<IS_WHOLE> &team,
            const GradRuns<T> &runs,
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

  visit_runs (team, runs.x, x, n, [&] (gint64 i, int r, const float (&xs)[run]) {
    float gs[run], weights[run];

    unpack_run<T> (r >= 0 ? runs.dy.of[r] : load_team_run (team, dy, i, n), gs);
    if (self.weight.data != NULL)
      load_vector_run (team, self.weight, i, n, weights);
#pragma unroll
    for (int k = 0; k < run; k++)
      if (IS_WHOLE || i + k < n)
        {
          const float distance = IS_CENTRED ? xs[k] - mean : xs[k];
          const float g = self.weight.data != NULL ? gs[k] * (weights[k] + self.unit) : gs[k];

          if (IS_CENTRED)
            {
              sum_g += g;
              sum_x += distance;
            }
          sum_gx = fmaf (g, distance, sum_gx);
        }
  });
  *mean_g = IS_CENTRED ? team_sum (team, sum_g, scratch) * self.of_columns : 0.0f;
  *mean_h = IS_CENTRED ? team_sum (team, sum_x, scratch) * rstd * self.of_columns : 0.0f;
  *mean_gh = team_sum (team, sum_gx, scratch) * rstd * self.of_columns - *mean_g * *mean_h;
}

/* A thread's sums over the rows of its block, for the columns of its runs in registers. Others are in memory. */
template <typename T>
struct ColumnSums
{
  float dweight[RowRuns<T>::n][VectorSize<T>::value], dbias[RowRuns<T>::n][VectorSize<T>::value];
};

template <typename T, bool IS_CENTRED, bool IS_WHOLE>
static __device__ __forceinline__ void
differentiate_row (const NormGrad &self,
                   const RowTeam<IS_WHOLE> &team,
                   gint64 row,
                   ColumnSums<T> *sums,
                   float *partials,
                   float *scratch)
{
  const int run = VectorSize<T>::value;
  const gint64 n = self.n_columns, at = row * n;
  const T *dy = (const T *) self.dy + at, *dsum = get_dsum<T> (self, at), *x;
  const float mean = IS_CENTRED ? self.mean[row] : 0.0f, rstd = self.rstd[row];
  float mean_g, mean_gh, mean_h;
  GradRuns<T> runs;
  gint64 x_at[1];

  layout_find<guint32> (self.rows, (guint32) row, x_at);
  x = (const T *) self.x + x_at[0];
  load_runs (team, dy, n, &runs.dy);
  load_runs (team, x, n, &runs.x);
  if (dsum != NULL)
    load_runs (team, dsum, n, &runs.dsum);
  find_means<T, IS_CENTRED, IS_WHOLE> (self, team, runs, dy, x, mean, rstd, &mean_g, &mean_gh, &mean_h, scratch);
  visit_runs (team, runs.x, x, n, [&] (gint64 i, int r, float (&xs)[run]) {
    float gs[run], more[run] = {}, weights[run];

    unpack_run<T> (r >= 0 ? runs.dy.of[r] : load_team_run (team, dy, i, n), gs);
    if (dsum != NULL)
      unpack_run<T> (r >= 0 ? runs.dsum.of[r] : load_team_run (team, dsum, i, n), more);
    if (self.weight.data != NULL)
      load_vector_run (team, self.weight, i, n, weights);
#pragma unroll
    for (int k = 0; k < run; k++)
      {
        const float h = IS_CENTRED ? fmaf (xs[k] - mean, rstd, -mean_h) : xs[k] * rstd;
        float g = gs[k];

        if (r >= 0)
          {
            sums->dweight[r][k] = fmaf (g, h, sums->dweight[r][k]);
            sums->dbias[r][k] += g;
          }
        else if (partials != NULL && i + k < n)
          {
            partials[i + k] = fmaf (g, h, partials[i + k]);
            partials[n + i + k] += g;
          }
        if (self.weight.data != NULL)
          g *= weights[k] + self.unit;
        xs[k] = (g - mean_g - h * mean_gh) * rstd + more[k];
      }
    if (self.dx != NULL)
      store_team_run (team, (T *) self.dx + at, i, n, xs);
  });
}

/* Adds the sums of a block's warps, in the order of the warps, and stores the result in partials. */
template <typename T, bool IS_WHOLE>
static __device__ __forceinline__ void
put_sums (const NormGrad &self,
          const RowTeam<IS_WHOLE> &team,
          const ColumnSums<T> &sums,
          float *partials)
{
  EBB_SHARED_ARRAY (float, joined, [2][WARP_COLUMNS]);
  const int run = VectorSize<T>::value;
  const unsigned rank = team.is_warp ? threadIdx.x / 32 : 0, n_teams = team.is_warp ? ROW_TEAMS : 1;

  for (unsigned turn = 0; turn < n_teams; turn++)
    {
#pragma unroll
      for (int r = 0; r < RowRuns<T>::n; r++)
        {
          const gint64 first = get_run_start<T> (team, r);

#pragma unroll
          for (int k = 0; k < run; k++)
            {
              const gint64 i = first + k;
              float dweight = sums.dweight[r][k], dbias = sums.dbias[r][k];

              if (turn != rank || i >= self.n_columns)
                continue;
              if (turn > 0)
                {
                  dweight += joined[0][i];
                  dbias += joined[1][i];
                }
              if (turn == n_teams - 1)
                {
                  partials[i] = dweight;
                  partials[self.n_columns + i] = dbias;
                }
              else
                {
                  joined[0][i] = dweight;
                  joined[1][i] = dbias;
                }
            }
        }
      if (turn < n_teams - 1)
        __syncthreads ();
    }
}

template <typename T, bool IS_CENTRED, bool IS_WHOLE>
__global__ void __launch_bounds__ (TEAM_MOST_THREADS)
norm_grad_rows (NormGrad self)
{
  EBB_SHARED_ARRAY (float, scratch, [TEAM_MOST_WARPS]);
  const gint64 n = self.n_columns, first = blockIdx.x * self.rows_of_block, end = first + self.rows_of_block;
  const gint64 last = end < self.rows.n_elements ? end : self.rows.n_elements;
  const RowTeam<IS_WHOLE> team = get_row_team<IS_WHOLE> (n);
  float *partials = self.partials != NULL ? self.partials + blockIdx.x * 2 * n : NULL;
  ColumnSums<T> sums = {};

  for (gint64 i = get_run_start<T> (team, RowRuns<T>::n); partials != NULL && i < n;
       i += (gint64) team.n_threads * VectorSize<T>::value)
    for (int k = 0; k < VectorSize<T>::value && i + k < n; k++)
      partials[i + k] = partials[n + i + k] = 0.0f;
  for (gint64 row = first + (team.is_warp ? threadIdx.x / 32 : 0); row < last; row += team.is_warp ? ROW_TEAMS : 1)
    differentiate_row<T, IS_CENTRED, IS_WHOLE> (self, team, row, &sums, partials, scratch);
  if (partials != NULL)
    put_sums (self, team, sums, partials);
}

/* Rows are divided among so many blocks at most. */
#define GRAD_BLOCKS 1024

static gint64
count_rows_of_grad_block (gint64 n_rows,
                          gint64 n_columns)
{
  const gint64 n = (n_rows + GRAD_BLOCKS - 1) / GRAD_BLOCKS, n_teams = count_row_teams (n_columns);

  return n > n_teams ? n : n_teams;
}

static gint64
count_grad_blocks (gint64 n_rows,
                   gint64 n_columns)
{
  const gint64 of_block = count_rows_of_grad_block (n_rows, n_columns);

  return (n_rows + of_block - 1) / of_block;
}

static gsize
get_grad_workspace (const EbbLaunch *launch)
{
  const EbbView *x = launch->inputs[1];

  if (get_output (launch, 1) == NULL && get_output (launch, 2) == NULL)
    return 0;
  return (gsize) (count_grad_blocks (count_rows (x), count_columns (x)) * 2 * count_columns (x)) * sizeof (float);
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
                       bool whole,
                       gint64 n_blocks,
                       const EbbCudaQueue *queue)
{
  const unsigned n_threads = count_team_threads (self.n_columns);

  if (whole)
    return EBB_CUDA_LAUNCH (norm_grad_rows<T, IS_CENTRED, true>, (unsigned) n_blocks, n_threads, 0, queue->stream,
                            self);
  return EBB_CUDA_LAUNCH (norm_grad_rows<T, IS_CENTRED, false>, (unsigned) n_blocks, n_threads, 0, queue->stream, self);
}

template <bool IS_CENTRED>
static cudaError_t
launch_norm_grad (const EbbLaunch *launch,
                  NormGrad *self,
                  const EbbView *dsum,
                  const EbbCudaQueue *queue)
{
  const EbbView *x = launch->inputs[1];
  const gint64 n = count_columns (x), n_rows = count_rows (x), n_blocks = count_grad_blocks (n_rows, n);
  EbbView *dweight = get_output (launch, 1), *dbias = IS_CENTRED ? get_output (launch, 2) : NULL;
  const bool whole = is_whole (launch->inputs[0]) && is_whole (x) && is_whole (dsum)
                     && is_whole_vector (launch->inputs[2]) && is_whole (launch->outputs[0]);
  EbbView rows = *x;
  const EbbView *const views[] = { &rows };
  cudaError_t status = cudaSuccess;

  self->dy = launch->inputs[0]->data;
  self->x = x->data;
  self->dsum = get_data (dsum);
  self->weight = get_vector (launch->inputs[2]);
  self->dx = launch->outputs[0] != NULL ? launch->outputs[0]->data : NULL;
  self->unit = !IS_CENTRED && launch->params.norm.unit_offset ? 1.0f : 0.0f;
  self->n_columns = n;
  self->of_columns = 1.0f / (float) n;
  self->rows_of_block = count_rows_of_grad_block (n_rows, n);
  self->partials = dweight != NULL || dbias != NULL ? (float *) launch->workspace : NULL;
  rows.shape[x->n_dims - 1] = 1;
  layout_init (&self->rows, &rows, views);
  if (n == 0)
    return cudaSuccess;
  if (n_rows > 0 && x->dtype == EBB_DTYPE_F32)
    status = launch_norm_grad_rows<float, IS_CENTRED> (*self, whole, n_blocks, queue);
  else if (n_rows > 0)
    status = launch_norm_grad_rows<Bf16, IS_CENTRED> (*self, whole, n_blocks, queue);
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
  NormGrad self = {};

  self.mean = (const float *) launch->inputs[3]->data;
  self.rstd = (const float *) launch->inputs[4]->data;
  return launch_norm_grad<true> (launch, &self, get_input (launch, 5), queue);
}

EBB_CUDA_KERNEL (rms_norm_grad)
{
  NormGrad self = {};

  self.rstd = (const float *) launch->inputs[3]->data;
  return launch_norm_grad<false> (launch, &self, get_input (launch, 4), queue);
}
