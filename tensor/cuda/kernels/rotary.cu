/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions (Su et al., RoFormer, 2021): pairs of elements are rotated by angles in proportion to the position.
 * A thread computes the sine and cosine of a pair once for all heads of its token. */
#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

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

/* Threads are numbered by batch, token and pair; those behind the pairs copy what isn't rotated. */
template <typename T>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
rotate (Rotary self)
{
  const gint64 rest = self.width - 2 * self.n_pairs, of_token = self.n_pairs + rest;
  const T *x = (const T *) self.x;
  T *y = (T *) self.y;

  for (gint64 item = get_thread (); item < self.n_batches * self.n_positions * of_token; item += count_threads ())
    {
      const gint64 token = item / of_token, pair = item - token * of_token;
      const gint64 batch = token / self.n_positions, t = token - batch * self.n_positions;
      const gint64 x_at = batch * self.x_strides[0] + t * self.x_strides[1];
      const gint64 y_at = batch * self.y_strides[0] + t * self.y_strides[1];
      float frequency, sine, cosine;

      if (pair >= self.n_pairs)
        {
          const gint64 i = self.n_pairs + pair;

          for (gint64 head = 0; head < self.n_heads; head++)
            y[y_at + head * self.y_strides[2] + i] = x[x_at + head * self.x_strides[2] + i];
          continue;
        }
      frequency = self.frequencies[pair];
      if (self.ntk != 1.0)
        frequency = (float) (frequency / pow (self.ntk, (double) pair / (double) self.n_pairs));
      sincosf ((float) find_position (self, batch, t) * frequency, &sine, &cosine);
      cosine *= self.factor;
      sine *= self.factor * self.direction;
      for (gint64 head = 0; head < self.n_heads; head++)
        {
          const gint64 from = x_at + head * self.x_strides[2] + pair, to = y_at + head * self.y_strides[2] + pair;
          const float a = load (x + from), b = load (x + from + self.n_pairs);

          store (y + to, fmaf (a, cosine, -(b * sine)));
          store (y + to + self.n_pairs, fmaf (b, cosine, a * sine));
        }
    }
}

EBB_CUDA_KERNEL (rotary)
{
  const EbbView *x = launch->inputs[0], *frequencies = launch->inputs[1], *y = launch->outputs[0];
  const EbbView *starts = launch->n_inputs > 2 ? launch->inputs[2] : NULL;
  Rotary self = {};
  gint64 n;

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
  n = self.n_batches * self.n_positions * (self.width - self.n_pairs);
  if (n == 0 || self.n_heads == 0)
    return cudaSuccess;
  if (x->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH (rotate<float>, count_blocks (n, queue), ELEMENTWISE_THREADS, 0, queue->stream, self);
  return EBB_CUDA_LAUNCH (rotate<Bf16>, count_blocks (n, queue), ELEMENTWISE_THREADS, 0, queue->stream, self);
}
