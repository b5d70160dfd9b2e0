/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Where the elements of several operands of one shape lie: the host merges the dimensions, a thread finds the offsets
 * of an element from its number. */

#include "tensor/cuda/kernels/device.cuh"
#include "tensor/cuda/kernels-private.h"

#define ELEMENTWISE_THREADS 256
#define MOST_BLOCKS 512   /* of a multiprocessor: a thread that has one item is as fast as one that loops, or faster */
#define LOOPING_BLOCKS 32 /* of a multiprocessor where a thread has something to prepare */

template <int N>
struct Layout
{
  int n_dims;
  gint64 n_elements;
  gint64 shape[EBB_MAX_DIMS];
  gint64 strides[N][EBB_MAX_DIMS]; /* elements */
};

/* The operands have @like's shape. Neighbouring dimensions that every operand walks through as one become one. */
template <int N>
static inline void
layout_init (Layout<N> *self,
             const EbbView *like,
             const EbbView *const (&views)[N])
{
  self->n_dims = 0;
  self->n_elements = ebb_view_count_elements (like);
  for (int i = 0; i < like->n_dims; i++)
    {
      int last = self->n_dims - 1;
      bool merges = last >= 0;

      if (like->shape[i] == 1)
        continue;
      for (int k = 0; merges && k < N; k++)
        merges = self->strides[k][last] == views[k]->strides[i] * like->shape[i];
      if (!merges)
        {
          last = self->n_dims++;
          self->shape[last] = 1;
        }
      self->shape[last] *= like->shape[i];
      for (int k = 0; k < N; k++)
        self->strides[k][last] = views[k]->strides[i];
    }
  if (self->n_dims == 0)
    {
      self->n_dims = 1;
      self->shape[0] = 1;
      for (int k = 0; k < N; k++)
        self->strides[k][0] = 0;
    }
}

/* Index is guint32 where there are fewer than 2^31 elements: divisions of 64 bits are slow. */
template <typename Index, int N>
static __device__ __forceinline__ void
layout_find (const Layout<N> &self,
             Index index,
             gint64 (&offsets)[N])
{
#pragma unroll
  for (int k = 0; k < N; k++)
    offsets[k] = 0;
  for (int d = self.n_dims - 1; d > 0; d--)
    {
      Index size = (Index) self.shape[d], next = index / size;
      gint64 position = (gint64) (index - next * size);

#pragma unroll
      for (int k = 0; k < N; k++)
        offsets[k] += position * self.strides[k][d];
      index = next;
    }
#pragma unroll
  for (int k = 0; k < N; k++)
    offsets[k] += (gint64) index * self.strides[k][0];
}

static inline unsigned
count_blocks_to (gint64 most_of_multiprocessor,
                 gint64 n_items,
                 const EbbCudaQueue *queue)
{
  gint64 n = (n_items + ELEMENTWISE_THREADS - 1) / ELEMENTWISE_THREADS;
  gint64 most = queue->n_multiprocessors * most_of_multiprocessor;

  return (unsigned) (n < most ? n : most);
}

/* Blocks for so many items of a thread each; threads of a smaller grid loop. */
static inline unsigned
count_blocks (gint64 n_items,
              const EbbCudaQueue *queue)
{
  return count_blocks_to (MOST_BLOCKS, n_items, queue);
}

/* The same for threads that prepare something for all of their items. */
static inline unsigned
count_looping_blocks (gint64 n_items,
                      const EbbCudaQueue *queue)
{
  return count_blocks_to (LOOPING_BLOCKS, n_items, queue);
}

/* The number of this thread in the grid, and how many there are. */
static __device__ __forceinline__ gint64
get_thread (void)
{
  return (gint64) blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ gint64
count_threads (void)
{
  return (gint64) gridDim.x * blockDim.x;
}
