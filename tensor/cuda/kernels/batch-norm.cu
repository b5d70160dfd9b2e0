/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Batch norm (Ioffe, Szegedy 2015) of [N, C, L] and its gradient: a block of threads for a channel. */
#include "tensor/cuda/kernels/row.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)

typedef struct
{
  const void *dy, *x; /* dy: of the gradient */
  void *y;            /* the gradient's dx, which may be NULL */
  EbbDType dtype;
  gint64 n, n_channels, length;
  Vector weight, bias;
  EbbView running_mean, running_var; /* data NULL: left out */
  float *mean, *rstd, *dweight, *dbias;
  double eps, momentum;
  bool is_training, adds_weight, adds_bias;
  const EbbCudaFault *fault;
} BatchNorm;

/* Where element i of a channel lies. */
static __device__ __forceinline__ gint64
find_element (const BatchNorm &self,
              gint64 channel,
              gint64 i)
{
  const gint64 sample = i / self.length;

  return (sample * self.n_channels + channel) * self.length + (i - sample * self.length);
}

static __device__ __forceinline__ float
get_number (const EbbView &view,
            gint64 i)
{
  return load_float (view.dtype, view.data, i);
}

/* Running statistics stay as they are after an index fault. */
static __device__ __forceinline__ void
move_number (const BatchNorm &self,
             const EbbView &view,
             gint64 i,
             double towards)
{
  if (view.data != NULL && !fault_is_set (self.fault))
    store_float (view.dtype, view.data, i,
                 (float) ((1 - self.momentum) * get_number (view, i) + self.momentum * towards));
}

/* The statistics of the batch, or the running ones; all threads must call it. */
static __device__ __forceinline__ Statistics
find_statistics (const BatchNorm &self,
                 gint64 channel,
                 double *scratch)
{
  const gint64 count = self.n * self.length;
  Statistics statistics = {};
  bool is_done;
  int pass = 0;

  if (!self.is_training && self.running_mean.data != NULL && self.running_var.data != NULL)
    {
      statistics.mean = get_number (self.running_mean, channel);
      statistics.variance = get_number (self.running_var, channel);
      return statistics;
    }
  statistics.centre = load_float (self.dtype, self.x, channel * self.length);
  do
    {
      float sum = 0.0f, squares = 0.0f;
      double all, all_squares;

      for (gint64 i = threadIdx.x; i < count; i += THREADS)
        {
          const float x = load_float (self.dtype, self.x, find_element (self, channel, i));
          const float distance = x - statistics.centre;

          sum += distance;
          squares = fmaf (distance, distance, squares);
        }
      all = block_reduce<Sum> ((double) sum, scratch);
      all_squares = block_reduce<Sum> ((double) squares, scratch);
      is_done = statistics_take (&statistics, all, all_squares, (double) count);
    }
  while (!is_done && ++pass < 2);
  if (self.is_training && threadIdx.x == 0)
    {
      const double n = (double) count;

      move_number (self, self.running_mean, channel, (double) statistics.mean + statistics.rest);
      move_number (self, self.running_var, channel, statistics.variance * n / (n > 2 ? n - 1 : 1));
    }
  return statistics;
}

__global__ void __launch_bounds__ (THREADS)
norm_channels (BatchNorm self)
{
  EBB_SHARED_ARRAY (double, scratch, [WARPS]);
  const gint64 channel = blockIdx.x;
  const Statistics statistics = find_statistics (self, channel, scratch);
  const float rstd = (float) (1 / sqrt (statistics.variance + self.eps));
  const float scale = self.weight.data != NULL ? load_vector_element (self.weight, channel) * rstd : rstd;
  const float bias = self.bias.data != NULL ? load_vector_element (self.bias, channel) : 0.0f;
  const float shift = bias - statistics.rest * scale;

  for (gint64 i = threadIdx.x; i < self.n * self.length; i += THREADS)
    {
      const gint64 at = find_element (self, channel, i);

      store_float (self.dtype, self.y, at, fmaf (load_float (self.dtype, self.x, at) - statistics.mean, scale, shift));
    }
  if (threadIdx.x != 0)
    return;
  if (self.mean != NULL)
    self.mean[channel] = statistics.mean;
  if (self.rstd != NULL)
    self.rstd[channel] = rstd;
}

/* Running statistics do not depend on x, so nothing is subtracted for them. Those of the batch have a mean h of 0,
 * except for the part that their mean in f32 lacks. */
__global__ void __launch_bounds__ (THREADS)
differentiate_channels (BatchNorm self)
{
  EBB_SHARED_ARRAY (double, scratch, [WARPS]);
  const gint64 channel = blockIdx.x, elements = self.n * self.length;
  const double count = (double) (elements > 1 ? elements : 1);
  const float mean = self.mean[channel], rstd = self.rstd[channel];
  const float scale = self.weight.data != NULL ? load_vector_element (self.weight, channel) * rstd : rstd;
  float own_dy = 0.0f, own_dyh = 0.0f, own_h = 0.0f, mean_dy = 0.0f, mean_dyh = 0.0f, mean_h = 0.0f;
  double sum_dy, sum_dyh, sum_h;

  for (gint64 i = threadIdx.x; i < elements; i += THREADS)
    {
      const gint64 at = find_element (self, channel, i);
      const float dy = load_float (self.dtype, self.dy, at), h = (load_float (self.dtype, self.x, at) - mean) * rstd;

      own_dy += dy;
      own_dyh = fmaf (dy, h, own_dyh);
      own_h += h;
    }
  sum_dy = block_reduce<Sum> ((double) own_dy, scratch);
  sum_dyh = block_reduce<Sum> ((double) own_dyh, scratch);
  sum_h = block_reduce<Sum> ((double) own_h, scratch);
  sum_h = self.is_training ? sum_h : 0;
  sum_dyh -= sum_dy * sum_h / count;
  if (threadIdx.x == 0 && self.dweight != NULL)
    self.dweight[channel] = (float) sum_dyh + (self.adds_weight ? self.dweight[channel] : 0.0f);
  if (threadIdx.x == 0 && self.dbias != NULL)
    self.dbias[channel] = (float) sum_dy + (self.adds_bias ? self.dbias[channel] : 0.0f);
  if (self.y == NULL)
    return;
  if (self.is_training)
    {
      mean_dy = (float) (sum_dy / count);
      mean_dyh = (float) (sum_dyh / count);
      mean_h = (float) (sum_h / count);
    }
  for (gint64 i = threadIdx.x; i < elements; i += THREADS)
    {
      const gint64 at = find_element (self, channel, i);
      const float h = (load_float (self.dtype, self.x, at) - mean) * rstd - mean_h;

      store_float (self.dtype, self.y, at,
                   (load_float (self.dtype, self.dy, at) - mean_dy - h * mean_dyh) * scale);
    }
}

static void
batch_norm_init (BatchNorm *self,
                 const EbbLaunch *launch,
                 const EbbView *x,
                 const EbbCudaQueue *queue)
{
  *self = BatchNorm{};
  self->x = x->data;
  self->dtype = x->dtype;
  self->n = x->shape[0];
  self->n_channels = x->shape[1];
  self->length = x->n_dims > 2 ? x->shape[2] : 1;
  self->eps = launch->params.norm.eps;
  self->momentum = launch->params.norm.momentum;
  self->is_training = launch->params.norm.training != FALSE;
  self->adds_weight = launch->params.norm.accumulate_weight != FALSE;
  self->adds_bias = launch->params.norm.accumulate_bias != FALSE;
  self->fault = queue->fault;
}

EBB_CUDA_KERNEL (batch_norm)
{
  const EbbView *mean = get_input (launch, 3), *var = get_input (launch, 4);
  BatchNorm self;

  batch_norm_init (&self, launch, launch->inputs[0], queue);
  self.y = launch->outputs[0]->data;
  self.weight = get_vector (get_input (launch, 1));
  self.bias = get_vector (get_input (launch, 2));
  if (mean != NULL)
    self.running_mean = *mean;
  if (var != NULL)
    self.running_var = *var;
  self.mean = get_floats (get_output (launch, 1));
  self.rstd = get_floats (get_output (launch, 2));
  if (self.n * self.n_channels * self.length == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (norm_channels, (unsigned) self.n_channels, THREADS, 0, queue->stream, self);
}

EBB_CUDA_KERNEL (batch_norm_grad)
{
  BatchNorm self;

  batch_norm_init (&self, launch, launch->inputs[1], queue);
  self.dy = launch->inputs[0]->data;
  self.y = launch->outputs[0] != NULL ? launch->outputs[0]->data : NULL;
  self.weight = get_vector (launch->inputs[2]);
  self.mean = get_floats (launch->inputs[3]);
  self.rstd = get_floats (launch->inputs[4]);
  self.dweight = get_floats (get_output (launch, 1));
  self.dbias = get_floats (get_output (launch, 2));
  if (self.n_channels == 0)
    return cudaSuccess;
  return EBB_CUDA_LAUNCH (differentiate_channels, (unsigned) self.n_channels, THREADS, 0, queue->stream, self);
}
