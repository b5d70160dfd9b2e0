/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* GELU after a bias, gated activations, and their gradients. */
#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"
#include "tensor/cuda/kernels/math.cuh"

/* -- GELU after a bias --------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *dy, *x, *bias; /* dy: of the gradient; bias may be NULL */
  void *y;
  EbbDType bias_dtype;
  gint64 bias_stride, n, n_columns;
  bool is_tanh;
} BiasGelu;

static __device__ __forceinline__ float
load_bias (const BiasGelu &self,
           gint64 column)
{
  return self.bias != NULL ? load_float (self.bias_dtype, self.bias, column * self.bias_stride) : -0.0f;
}

template <bool IS_GRAD>
static __device__ __forceinline__ float
compute_gelu (bool is_tanh,
              float dy,
              float x)
{
  return IS_GRAD ? dy * gelu_slope (is_tanh, x) : gelu (is_tanh, x);
}

/* Rows of whole runs of 16 bytes. The threads' step is a number of whole rows, so that each of them stays in its
 * columns and reads their bias once. */
template <typename T, bool IS_GRAD>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
bias_gelu_runs (BiasGelu self,
                gint64 n_runs,
                gint64 runs_of_row,
                gint64 step)
{
  const int run = VectorSize<T>::value;
  const T *dy = (const T *) self.dy, *x = (const T *) self.x;
  T *y = (T *) self.y;
  float bias[run];

  if (get_thread () >= step)
    return;
#pragma unroll
  for (int k = 0; k < run; k++)
    bias[k] = load_bias (self, get_thread () % runs_of_row * run + k);
  for (gint64 i = get_thread (); i < n_runs; i += step)
    {
      float from[run], grad[run] = {};

      load_run (x + i * run, from);
      if (IS_GRAD)
        load_run (dy + i * run, grad);
#pragma unroll
      for (int k = 0; k < run; k++)
        from[k] = compute_gelu<IS_GRAD> (self.is_tanh, grad[k], from[k] + bias[k]);
      store_run (y + i * run, from);
    }
}

template <typename T, bool IS_GRAD>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
bias_gelu (BiasGelu self)
{
  const T *dy = (const T *) self.dy, *x = (const T *) self.x;

  for (gint64 i = get_thread (); i < self.n; i += count_threads ())
    store ((T *) self.y + i, compute_gelu<IS_GRAD> (self.is_tanh, IS_GRAD ? load (dy + i) : 0.0f,
                                                    load (x + i) + load_bias (self, i % self.n_columns)));
}

template <typename T, bool IS_GRAD>
static cudaError_t
launch_bias_gelu_of (const BiasGelu &self,
                     const EbbCudaQueue *queue)
{
  const int run = VectorSize<T>::value;
  const gint64 n_runs = self.n / run, runs_of_row = self.n_columns / run;
  const unsigned n_blocks = count_looping_blocks (n_runs, queue);
  const gint64 n_threads = (gint64) n_blocks * ELEMENTWISE_THREADS;

  if (self.n_columns % run == 0 && runs_of_row <= n_threads && is_vector_aligned (self.x) && is_vector_aligned (self.y)
      && is_vector_aligned (self.dy))
    return EBB_CUDA_LAUNCH (bias_gelu_runs<T, IS_GRAD>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self, n_runs,
                            runs_of_row, n_threads / runs_of_row * runs_of_row);
  return EBB_CUDA_LAUNCH (bias_gelu<T, IS_GRAD>, count_blocks (self.n, queue), ELEMENTWISE_THREADS, 0, queue->stream,
                          self);
}

template <bool IS_GRAD>
static cudaError_t
launch_bias_gelu (const EbbLaunch *launch,
                  const EbbView *dy,
                  const EbbView *x,
                  const EbbView *bias,
                  const EbbCudaQueue *queue)
{
  BiasGelu self = { dy != NULL ? dy->data : NULL, x->data,
                    NULL, launch->outputs[0]->data,
                    EBB_DTYPE_F32, 0,
                    ebb_view_count_elements (x), x->shape[x->n_dims - 1],
                    launch->params.gelu.tanh != FALSE };

  if (self.n == 0)
    return cudaSuccess;
  if (bias != NULL)
    {
      self.bias = bias->data;
      self.bias_dtype = bias->dtype;
      self.bias_stride = bias->strides[bias->n_dims - 1];
    }
  return x->dtype == EBB_DTYPE_F32 ? launch_bias_gelu_of<float, IS_GRAD> (self, queue)
                                   : launch_bias_gelu_of<Bf16, IS_GRAD> (self, queue);
}

static const EbbView *
get_optional (const EbbLaunch *launch,
              guint i)
{
  return i < launch->n_inputs ? launch->inputs[i] : NULL;
}

EBB_CUDA_KERNEL (bias_gelu)
{
  return launch_bias_gelu<false> (launch, NULL, launch->inputs[0], get_optional (launch, 1), queue);
}

EBB_CUDA_KERNEL (bias_gelu_grad)
{
  return launch_bias_gelu<true> (launch, launch->inputs[0], launch->inputs[1], get_optional (launch, 2), queue);
}

/* -- gated activation ---------------------------------------------------------------------------------------------- */

typedef struct
{
  const void *dy, *gate, *up;
  void *y, *dgate, *dup; /* of the gradient each may be NULL */
  EbbUnaryOp op;
  gint64 n_columns;
  Layout<2> rows; /* of gate and up: all dimensions but the last, whose stride is 1 */
} Gated;

typedef struct
{
  float y, dgate, dup;
} GatedResult;

template <bool IS_GRAD>
static __device__ __forceinline__ GatedResult
compute_gated (EbbUnaryOp op,
               float dy,
               float gate,
               float up)
{
  if (!IS_GRAD)
    return GatedResult{ activate (op, gate) * up, 0.0f, 0.0f };
  return GatedResult{ 0.0f, dy * up * activate_slope (op, gate), dy * activate (op, gate) };
}

template <typename T, bool IS_GRAD>
static __device__ __forceinline__ void
gated_run (const Gated &self,
           gint64 gate_at,
           gint64 up_at,
           gint64 at)
{
  const int run = VectorSize<T>::value;
  float dy[run] = {}, gate[run], up[run], results[3][run];

  load_run ((const T *) self.gate + gate_at, gate);
  load_run ((const T *) self.up + up_at, up);
  if (IS_GRAD)
    load_run ((const T *) self.dy + at, dy);
#pragma unroll
  for (int k = 0; k < run; k++)
    {
      GatedResult result = compute_gated<IS_GRAD> (self.op, dy[k], gate[k], up[k]);

      results[0][k] = result.y;
      results[1][k] = result.dgate;
      results[2][k] = result.dup;
    }
  if (!IS_GRAD)
    store_run ((T *) self.y + at, results[0]);
  if (IS_GRAD && self.dgate != NULL)
    store_run ((T *) self.dgate + at, results[1]);
  if (IS_GRAD && self.dup != NULL)
    store_run ((T *) self.dup + at, results[2]);
}

template <typename T, bool IS_GRAD>
static __device__ __forceinline__ void
gated_element (const Gated &self,
               gint64 gate_at,
               gint64 up_at,
               gint64 at)
{
  const GatedResult result =
      compute_gated<IS_GRAD> (self.op, IS_GRAD ? load ((const T *) self.dy + at) : 0.0f,
                              load ((const T *) self.gate + gate_at), load ((const T *) self.up + up_at));

  if (!IS_GRAD)
    store ((T *) self.y + at, result.y);
  if (IS_GRAD && self.dgate != NULL)
    store ((T *) self.dgate + at, result.dgate);
  if (IS_GRAD && self.dup != NULL)
    store ((T *) self.dup + at, result.dup);
}

/* n_runs: of each row, 0 where rows aren't whole aligned runs. */
template <typename T, bool IS_GRAD>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
gated_activation (Gated self,
                  gint64 n_runs)
{
  const gint64 n = self.rows.n_elements * (n_runs > 0 ? n_runs : self.n_columns);

  for (gint64 i = get_thread (); i < n; i += count_threads ())
    {
      const gint64 per_row = n_runs > 0 ? n_runs : self.n_columns;
      const gint64 row = i / per_row, column = (i - row * per_row) * (n_runs > 0 ? VectorSize<T>::value : 1);
      gint64 at[2];

      layout_find<guint64> (self.rows, (guint64) row, at);
      if (n_runs > 0)
        gated_run<T, IS_GRAD> (self, at[0] + column, at[1] + column, row * self.n_columns + column);
      else
        gated_element<T, IS_GRAD> (self, at[0] + column, at[1] + column, row * self.n_columns + column);
    }
}

static bool
has_run_rows (const EbbView *view,
              int run)
{
  for (int i = 0; i < view->n_dims; i++)
    if (view->shape[i] > 1 && i + 1 < view->n_dims && view->strides[i] % run != 0)
      return false;
  return view->shape[view->n_dims - 1] % run == 0 && is_vector_aligned (view->data);
}

template <bool IS_GRAD>
static cudaError_t
launch_gated (const EbbLaunch *launch,
              Gated *self,
              const EbbView *gate,
              const EbbView *up,
              const EbbCudaQueue *queue)
{
  const int run = gate->dtype == EBB_DTYPE_F32 ? 4 : 8;
  EbbView gate_rows = *gate, up_rows = *up;
  const EbbView *const views[] = { &gate_rows, &up_rows };
  bool is_run = has_run_rows (gate, run) && has_run_rows (up, run) && is_vector_aligned (self->dy)
                && is_vector_aligned (self->y) && is_vector_aligned (self->dgate) && is_vector_aligned (self->dup);
  gint64 n_runs;
  unsigned n_blocks;

  self->gate = gate->data;
  self->up = up->data;
  self->op = launch->params.gated.op;
  self->n_columns = gate->shape[gate->n_dims - 1];
  gate_rows.shape[gate->n_dims - 1] = up_rows.shape[gate->n_dims - 1] = 1;
  layout_init (&self->rows, &gate_rows, views);
  if (self->rows.n_elements == 0 || self->n_columns == 0)
    return cudaSuccess;
  n_runs = is_run ? self->n_columns / run : 0;
  n_blocks = count_blocks (self->rows.n_elements * (is_run ? n_runs : self->n_columns), queue);
  if (gate->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (gated_activation<float, IS_GRAD>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, *self,
                            n_runs);
  return EBB_CUDA_LAUNCH (gated_activation<Bf16, IS_GRAD>, n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, *self,
                          n_runs);
}

EBB_CUDA_KERNEL (gated_activation)
{
  Gated self = {};

  self.y = launch->outputs[0]->data;
  return launch_gated<false> (launch, &self, launch->inputs[0], launch->inputs[1], queue);
}

EBB_CUDA_KERNEL (gated_activation_grad)
{
  Gated self = {};

  self.dy = launch->inputs[0]->data;
  self.dgate = launch->outputs[0] != NULL ? launch->outputs[0]->data : NULL;
  self.dup = launch->n_outputs > 1 && launch->outputs[1] != NULL ? launch->outputs[1]->data : NULL;
  return launch_gated<true> (launch, &self, launch->inputs[1], launch->inputs[2], queue);
}
