/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Shared by the gradients of bf16 and f32: a query's numbers from forward, the order in which a block of keys meets
 * queries, and the derivative of one score. */

#include "tensor/cuda/kernels/attention.cuh"

/* A query as backward sees it. One that isn't there, or that saw no key, has only probabilities of 0. */
typedef struct
{
  float maximum, log_sum, delta;
  AttentionBounds bounds;
} AttentionGradQuery;

static __device__ __forceinline__ AttentionGradQuery
attention_load_grad_query (const Attention &a,
                           int batch,
                           int head,
                           int query)
{
  AttentionGradQuery state = { INFINITY, 0.0f, 0.0f, { 0, 0 } };
  gint64 index = attention_row_index (a, batch, head, query);

  if (query >= a.n_queries)
    return state;
  state.maximum = a.logsumexp[2 * index] == -INFINITY ? INFINITY : a.logsumexp[2 * index];
  state.log_sum = a.logsumexp[2 * index + 1];
  state.delta = a.delta[index];
  state.bounds = attention_find_bounds (a, batch, query);
  return state;
}

/* A finished score and the derivative by its probability become that probability after dropout, and the derivative by
 * the scaled product of query and key. keep: dropout's factor for the probability. */
static __device__ __forceinline__ void
attention_differentiate (const Attention &a,
                         float maximum,
                         float log_sum,
                         float delta,
                         float keep,
                         float slope,
                         float *score,
                         float *d_p)
{
  /* One after the other: beside a large maximum f32 has no room for the logarithm. */
  float p = exp2_fast (fmaf (*score, a.factor, -maximum) - log_sum);

  *score = p * keep;
  *d_p = p * (*d_p * keep - delta) * slope;
}

/* The queries that keys [first_key, first_key + n_keys) may be seen by: those of each head from begin to end. */
typedef struct
{
  int begin, end;
} AttentionQueries;

static __device__ __forceinline__ AttentionQueries
attention_find_queries (const Attention &a,
                        int first_key,
                        int n_keys)
{
  gint64 begin = a.is_causal ? first_key - a.first_query : 0;
  gint64 end = a.window > 0 && a.window < a.n_queries + a.first_query
                   ? first_key + n_keys - 1 + a.window - a.first_query
                   : a.n_queries;

  return { (int) (begin < 0 ? 0 : (begin > a.n_queries ? a.n_queries : begin)),
           (int) (end < 0 ? 0 : (end > a.n_queries ? a.n_queries : end)) };
}

/* A tile of queries of a head of those that share keys; head is a.n_shared after the last. */
typedef struct
{
  int head, query;
} AttentionStep;

/* The step at or after one that has queries which see some of the keys [first_key, first_key + n_keys). */
template <int QUERIES>
static __device__ __forceinline__ AttentionStep
attention_find_step (const Attention &a,
                     int batch,
                     const AttentionQueries &queries,
                     int first_key,
                     int n_keys,
                     AttentionStep step)
{
  int begin = queries.begin / QUERIES * QUERIES;
  int n_ranges = (a.n_queries + ATTENTION_RANGE_QUERIES - 1) / ATTENTION_RANGE_QUERIES;

  if (begin >= queries.end)
    return { a.n_shared, 0 };
  for (; step.head < a.n_shared; step.query += QUERIES)
    {
      if (step.query < begin)
        step.query = begin;
      if (step.query >= queries.end)
        {
          step = { step.head + 1, begin - QUERIES };
          continue;
        }
      if (!a.ranges)
        break;
      int2 range = a.ranges[(gint64) batch * n_ranges + step.query / ATTENTION_RANGE_QUERIES];

      if (range.x < first_key + n_keys && range.y > first_key)
        break;
    }
  return step;
}

/* A block for each of n_tiles tiles of each head, with size bytes of shared memory. */
static inline cudaError_t
attention_launch_tiles (void (*kernel) (const Attention, int),
                        const Attention *a,
                        gint64 n_tiles,
                        gint64 n_heads,
                        int size,
                        const EbbCudaQueue *queue)
{
  gint64 n_blocks = a->n_batches * n_heads * n_tiles;
  cudaError_t error;

  if (n_blocks == 0)
    return cudaSuccess;
  if (n_blocks > G_MAXINT32 || !attention_fits (size, queue))
    return cudaErrorNotSupported;
  error = ebb_cuda_allow_shared (kernel, (size_t) size);
  if (error != cudaSuccess)
    return error;
  return EBB_CUDA_LAUNCH (kernel, dim3 ((unsigned) n_blocks), dim3 (ATTENTION_THREADS), size, queue->stream, *a,
                          (int) n_tiles);
}

/* attention-grad-bf16.cu, attention-grad-f32.cu: launches for a width up to 256. */
cudaError_t ebb_cuda_attention_grad_bf16 (const Attention *a, const EbbCudaQueue *queue);
cudaError_t ebb_cuda_attention_grad_f32 (const Attention *a, const EbbCudaQueue *queue);
