/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions (Su et al., RoFormer, 2021): pairs of elements are rotated by angles in proportion to the position.
 * A thread computes the sine and cosine of its pairs once for several heads of a token. */
#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

#define HEADS 8 /* of a thread: enough to pay for a sine, few enough for all threads of a GPU */

typedef struct
{
  const void *x;
  void *y;
  EbbDType dtype;
  const float *frequencies;
  const void *starts; /* NULL: none */
  bool is_wide;       /* starts are i64, else i32 */
  gint64 start_strides[2], x_strides[3], y_strides[3];
  gint64 n_batches, n_positions, n_heads, width, n_pairs, first;
  float factor, direction;
  double ntk;
} Rotary;

static __device__ __forceinline__ gint64
find_position (const Rotary &self,
               gint64 batch,
               gint64 t)
{
  const gint64 index = self.first + t, at = batch * self.start_strides[0] + t * self.start_strides[1];
  gint64 start;

  if (self.starts == NULL)
    return index;
  start = self.is_wide ? ((const gint64 *) self.starts)[at] : ((const gint32 *) self.starts)[at];
  return index - (start < 0 ? 0 : (start > index ? index : start));
}

/* RUN is 1 or a vector. */
template <int RUN, typename T>
static __device__ __forceinline__ void
load_pairs (const T *x,
            float (&values)[RUN])
{
  if constexpr (RUN == 1)
    values[0] = load (x);
  else
    load_run (x, values);
}

template <int RUN, typename T>
static __device__ __forceinline__ void
store_pairs (T *y,
             const float (&values)[RUN])
{
  if constexpr (RUN == 1)
    store (y, values[0]);
  else
    store_run (y, values);
}

static __device__ __forceinline__ void
find_rotation (const Rotary &self,
               gint64 pair,
               gint64 position,
               float *cosine,
               float *sine)
{
  float frequency = self.frequencies[pair];

  if (self.ntk != 1.0)
    frequency = (float) (frequency / pow (self.ntk, (double) pair / (double) self.n_pairs));
  sincosf ((float) position * frequency, sine, cosine);
  *cosine *= self.factor;
  *sine *= self.factor * self.direction;
}

/* Threads are numbered by batch, token, heads and RUN pairs; those behind the pairs copy an element that isn't
 * rotated. */
template <typename T, int RUN>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
rotate (Rotary self,
        gint64 n_items,
        gint64 n_groups)
{
  const gint64 n_runs = self.n_pairs / RUN, of_group = n_runs + self.width - 2 * self.n_pairs;

  for (gint64 item = get_thread (); item < n_items; item += count_threads ())
    {
      const gint64 group = item / of_group, run = item - group * of_group;
      const gint64 token = group / n_groups, first = (group - token * n_groups) * HEADS;
      const gint64 batch = token / self.n_positions, t = token - batch * self.n_positions;
      const gint64 end = first + HEADS < self.n_heads ? first + HEADS : self.n_heads;
      const T *x = (const T *) self.x + batch * self.x_strides[0] + t * self.x_strides[1];
      T *y = (T *) self.y + batch * self.y_strides[0] + t * self.y_strides[1];
      float cosine[RUN], sine[RUN];

      if (run >= n_runs)
        {
          const gint64 i = 2 * self.n_pairs + run - n_runs;

          for (gint64 head = first; head < end; head++)
            y[head * self.y_strides[2] + i] = x[head * self.x_strides[2] + i];
          continue;
        }
#pragma unroll
      for (int k = 0; k < RUN; k++)
        find_rotation (self, run * RUN + k, find_position (self, batch, t), cosine + k, sine + k);
      for (gint64 head = first; head < end; head++)
        {
          const T *from = x + head * self.x_strides[2] + run * RUN;
          T *to = y + head * self.y_strides[2] + run * RUN;
          float a[RUN], b[RUN], rotated[2][RUN];

          load_pairs (from, a);
          load_pairs (from + self.n_pairs, b);
#pragma unroll
          for (int k = 0; k < RUN; k++)
            {
              rotated[0][k] = fmaf (a[k], cosine[k], -(b[k] * sine[k]));
              rotated[1][k] = fmaf (b[k], cosine[k], a[k] * sine[k]);
            }
          store_pairs (to, rotated[0]);
          store_pairs (to + self.n_pairs, rotated[1]);
        }
    }
}

template <typename T>
static cudaError_t
launch_rotary (const Rotary &self,
               const EbbCudaQueue *queue)
{
  const int run = VectorSize<T>::value;
  const gint64 n_groups = (self.n_heads + HEADS - 1) / HEADS, rest = self.width - 2 * self.n_pairs;
  const gint64 n = self.n_batches * self.n_positions * n_groups;
  bool is_run = self.n_pairs % run == 0 && is_vector_aligned (self.x) && is_vector_aligned (self.y);
  gint64 n_items;

  for (int i = 0; i < 3; i++)
    is_run = is_run && self.x_strides[i] % run == 0 && self.y_strides[i] % run == 0;
  n_items = n * ((is_run ? self.n_pairs / run : self.n_pairs) + rest);
  if (n_items == 0)
    return cudaSuccess;
  if (is_run)
    return EBB_CUDA_LAUNCH (rotate<T, run>, count_blocks (n_items, queue), ELEMENTWISE_THREADS, 0, queue->stream, self,
                            n_items, n_groups);
  return EBB_CUDA_LAUNCH (rotate<T, 1>, count_blocks (n_items, queue), ELEMENTWISE_THREADS, 0, queue->stream, self,
                          n_items, n_groups);
}

EBB_CUDA_KERNEL (rotary)
{
  const EbbView *x = launch->inputs[0], *frequencies = launch->inputs[1], *y = launch->outputs[0];
  const EbbView *starts = launch->n_inputs > 2 ? launch->inputs[2] : NULL;
  Rotary self = {};

  self.x = x->data;
  self.y = y->data;
  self.frequencies = (const float *) frequencies->data;
  if (starts != NULL)
    {
      self.starts = starts->data;
      self.is_wide = starts->dtype == EBB_DTYPE_I64;
      self.start_strides[0] = starts->strides[0];
      self.start_strides[1] = starts->strides[1];
    }
  for (int i = 0; i < 3; i++)
    {
      self.x_strides[i] = x->strides[i];
      self.y_strides[i] = y->strides[i];
    }
  self.n_batches = x->shape[0];
  self.n_positions = x->shape[1];
  self.n_heads = x->shape[2];
  self.width = x->shape[3];
  self.n_pairs = frequencies->shape[0];
  self.first = launch->params.rotary.first;
  self.factor = (float) launch->params.rotary.factor;
  self.direction = launch->params.rotary.reversed ? -1.0f : 1.0f;
  self.ntk = launch->params.rotary.ntk;
  return x->dtype == EBB_DTYPE_F32 ? launch_rotary<float> (self, queue) : launch_rotary<Bf16> (self, queue);
}
