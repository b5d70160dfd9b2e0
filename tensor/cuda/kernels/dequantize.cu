/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Panels of quantised weights in f32 or bf16, with the bits of tensor/cpu/simd/convert.c. */
#include "tensor/backend/quantized-private.h"
#include "tensor/cuda/kernels/element.cuh"
#include "tensor/cuda/kernels/layout.cuh"

#define RUN 8 /* neighbours in a row that a thread decodes */

struct Quantized
{
  const guint8 *codes;
  const guint8 *scales; /* of nf4, by block */
  const float *nested_absmax, *map, *offset;
  const float *absmax; /* of int8, by row */
  gint64 row, column, width, group;
};

struct Nf4
{
  static __device__ __forceinline__ float
  decode (const Quantized &self,
          gint64 row,
          gint64 column)
  {
    static const float codes[16] = EBB_NF4_CODES;
    const gint64 i = row * self.width + column, block = i / EBB_NF4_BLOCK;
    const guint8 both = self.codes[i / 2];
    const float scale = __fmul_rn (self.map[self.scales[block]], self.nested_absmax[block / self.group]);

    return __fmul_rn (codes[i % 2 != 0 ? both & 15 : both >> 4], __fadd_rn (scale, *self.offset));
  }
};

struct Int8
{
  static __device__ __forceinline__ float
  decode (const Quantized &self,
          gint64 row,
          gint64 column)
  {
    return __fmul_rn ((float) (gint8) self.codes[row * self.width + column], __fdiv_rn (self.absmax[row], 127.0f));
  }
};

template <typename Format, typename T>
__global__ void __launch_bounds__ (ELEMENTWISE_THREADS)
decode_runs (Quantized self,
             T *y,
             gint64 n_rows,
             gint64 n_columns,
             gint64 y_row)
{
  const gint64 n_runs = (n_columns + RUN - 1) / RUN;

  for (gint64 i = get_thread (); i < n_rows * n_runs; i += count_threads ())
    {
      const gint64 row = i / n_runs, first = i % n_runs * RUN;

#pragma unroll
      for (int k = 0; k < RUN; k++)
        if (first + k < n_columns)
          y[row * y_row + first + k] =
              from_float<T> (Format::decode (self, self.row + row, self.column + first + k));
    }
}

template <typename Format>
static cudaError_t
decode (const Quantized &self,
        const EbbView *y,
        const EbbCudaQueue *queue)
{
  const gint64 n_rows = y->shape[0], n_columns = y->shape[1];
  const unsigned n_blocks = count_blocks (n_rows * ((n_columns + RUN - 1) / RUN), queue);

  if (n_rows == 0 || n_columns == 0)
    return cudaSuccess;
  if (y->dtype == EBB_DTYPE_F32)
    return EBB_CUDA_LAUNCH ((decode_runs<Format, float>), n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self,
                            (float *) y->data, n_rows, n_columns, y->strides[0]);
  return EBB_CUDA_LAUNCH ((decode_runs<Format, Bf16>), n_blocks, ELEMENTWISE_THREADS, 0, queue->stream, self,
                          (Bf16 *) y->data, n_rows, n_columns, y->strides[0]);
}

EBB_CUDA_KERNEL (dequantize)
{
  const EbbView *scales = launch->inputs[1];
  Quantized self = {};

  self.codes = (const guint8 *) launch->inputs[0]->data;
  self.row = launch->params.dequantize.row;
  self.column = launch->params.dequantize.column;
  self.width = launch->params.dequantize.width;
  if (scales->dtype == EBB_DTYPE_F32)
    {
      self.absmax = (const float *) scales->data;
      return decode<Int8> (self, launch->outputs[0], queue);
    }
  self.scales = (const guint8 *) scales->data;
  self.nested_absmax = (const float *) launch->inputs[2]->data;
  self.group = EBB_NF4_GROUP (launch->inputs[2]);
  self.map = (const float *) launch->inputs[3]->data;
  self.offset = (const float *) launch->inputs[4]->data;
  return decode<Nf4> (self, launch->outputs[0], queue);
}
