/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/attention-private.h"

/* Attention, backward: probabilities are computed again from queries, keys and logsumexp (FlashAttention, algorithm 4).
 * A task takes all heads that share one head of keys, so that each gradient has one writer and one order of sums. */

typedef struct
{
  float *q, *d_out, *d_q;             /* [n_queries, padded_width]: the head at hand; queries are scaled */
  float *logsumexp, *delta;           /* [n_queries]; delta: rowsum (d_out * out) */
  float *d_k, *d_v;                   /* [n_keys, padded_width], summed over the heads that share them */
  float *k, *v;                       /* [KEY_BLOCK, padded_width] */
  float *k_transposed, *v_transposed; /* [padded_width, KEY_BLOCK] */
  float *scores, *d_scores;           /* [QUERY_TILE, KEY_BLOCK] */
} Scratch;

typedef struct
{
  Attention base;
  const EbbView *d_out, *out, *logsumexp;
  EbbView *d_q, *d_k, *d_v;
} AttentionGrad;

static gsize
scratch_init (Scratch *scratch,
              float *memory,
              const Attention *self)
{
  gint64 w = self->padded_width;
  gint64 n_queries = round_up (self->n_queries, EBB_VEC_WIDTH);
  float *start = memory;

  scratch->q = memory;
  scratch->d_out = scratch->q + n_queries * w;
  scratch->d_q = scratch->d_out + n_queries * w;
  scratch->logsumexp = scratch->d_q + n_queries * w;
  scratch->delta = scratch->logsumexp + n_queries;
  scratch->d_k = scratch->delta + n_queries;
  scratch->d_v = scratch->d_k + self->n_keys * w;
  scratch->k = scratch->d_v + self->n_keys * w;
  scratch->v = scratch->k + KEY_BLOCK * w;
  scratch->k_transposed = scratch->v + KEY_BLOCK * w;
  scratch->v_transposed = scratch->k_transposed + KEY_BLOCK * w;
  scratch->scores = scratch->v_transposed + KEY_BLOCK * w;
  scratch->d_scores = scratch->scores + QUERY_TILE * KEY_BLOCK;
  return (gsize) (scratch->d_scores + QUERY_TILE * KEY_BLOCK - start);
}

static float
dot_out (const EbbView *out,
         gint64 batch,
         gint64 head,
         gint64 row,
         const float *d_out)
{
  const void *values = view_at (out, batch, head, row);
  EbbVec sum = { 0 };

  EBB_VEC_FOR (i, m, out->shape[3])
    sum = vec_fma (vec_load (d_out + i), vec_load_as (out->dtype, values, i, m), sum);
  return vec_sum (sum);
}

static void
load_queries (const AttentionGrad *self,
              Scratch *scratch,
              gint64 batch,
              gint64 head)
{
  const Attention *base = &self->base;
  gint64 w = base->padded_width, n = base->n_queries;
  const float *logsumexp = (const float *) self->logsumexp->data + (batch * base->n_heads + head) * n;

  pack_rows (base->q, batch, head, 0, n, w, base->scale, scratch->q);
  pack_rows (self->d_out, batch, head, 0, n, w, 1.0f, scratch->d_out);
  memset (scratch->d_q, 0, n * w * sizeof (float));
  for (gint64 r = 0; r < n; r++)
    {
      /* A row without any key has no probabilities: exp (score - inf) gives 0. */
      scratch->logsumexp[r] = logsumexp[r] == -INFINITY ? INFINITY : logsumexp[r];
      scratch->delta[r] = dot_out (self->out, batch, head, r, scratch->d_out + r * w);
    }
}

/* In: scores s and d_p = d_out v^T. Out: the probabilities that v was weighted with, and d_s. */
static void
differentiate_tile (const AttentionGrad *self,
                    Scratch *scratch,
                    gint64 batch,
                    gint64 head,
                    gint64 query,
                    gint64 n_rows,
                    gint64 first_key,
                    gint64 n_keys)
{
  const Attention *base = &self->base;
  guint32 draws[KEY_BLOCK + 4 + EBB_VEC_WIDTH] = { 0 };
  gboolean drops = base->p > 0.0;

  for (gint64 r = 0; r < n_rows; r++)
    {
      float *scores = scratch->scores + r * KEY_BLOCK, *d_scores = scratch->d_scores + r * KEY_BLOCK;
      EbbVec logsumexp = vec_set1 (scratch->logsumexp[query + r]), delta = vec_set1 (scratch->delta[query + r]);
      const guint32 *drawn = draws;

      if (drops)
        drawn =
            draw_row (base, batch, head, query + r, first_key, count_keys (base, query + r, first_key, n_keys), draws);
      for (gint64 i = 0; i < n_keys; i += EBB_VEC_WIDTH)
        {
          EbbVec p = vec_exp (vec_load (scores + i) - logsumexp);
          EbbVec d_p = vec_load (d_scores + i);

          if (drops)
            {
              EbbVec keep = vec_keep_scale (base, drawn + i);

              vec_store (scores + i, p * keep);
              d_p *= keep;
            }
          else
            vec_store (scores + i, p);
          vec_store (d_scores + i, p * (d_p - delta));
        }
    }
}

static void
differentiate_scores (const AttentionGrad *self,
                      Scratch *scratch,
                      gint64 batch,
                      gint64 head,
                      gint64 query,
                      gint64 n_rows,
                      gint64 first_key,
                      gint64 n_keys)
{
  const Attention *base = &self->base;
  gint64 w = base->padded_width;
  float *q = scratch->q + query * w, *d_out = scratch->d_out + query * w;
  Product scores = { q, w, 1, scratch->k_transposed, KEY_BLOCK,
                     scratch->scores, KEY_BLOCK, NULL, base->width, PRODUCT_SET };
  Product d_scores = { d_out, w, 1, scratch->v_transposed, KEY_BLOCK,
                       scratch->d_scores, KEY_BLOCK, NULL, base->width, PRODUCT_SET };
  Product d_v = { scratch->scores, 1, KEY_BLOCK, d_out, w,
                  scratch->d_v + first_key * w, w, NULL, n_rows, PRODUCT_ADD };
  Product d_k = { scratch->d_scores, 1, KEY_BLOCK, q, w,
                  scratch->d_k + first_key * w, w, NULL, n_rows, PRODUCT_ADD };
  Product d_q = { scratch->d_scores, KEY_BLOCK, 1, scratch->k, w,
                  scratch->d_q + query * w, w, NULL, n_keys, PRODUCT_ADD };

  product_run (&scores, n_rows, n_keys);
  product_run (&d_scores, n_rows, n_keys);
  mask_scores (base, batch, head, query, n_rows, first_key, n_keys, scratch->scores);
  differentiate_tile (self, scratch, batch, head, query, n_rows, first_key, n_keys);
  product_run (&d_v, n_keys, base->width);
  product_run (&d_k, n_keys, base->width);
  product_run (&d_q, n_rows, base->width);
}

static void
differentiate_head (const AttentionGrad *self,
                    Scratch *scratch,
                    gint64 batch,
                    gint64 head,
                    gint64 key_head)
{
  const Attention *base = &self->base;
  gint64 w = base->padded_width;

  load_queries (self, scratch, batch, head);
  for (gint64 key = 0; key < base->n_keys; key += KEY_BLOCK)
    {
      gint64 n_keys = MIN (KEY_BLOCK, base->n_keys - key);
      gint64 query = base->causal ? key / QUERY_TILE * QUERY_TILE : 0;

      if (query >= base->n_queries)
        break;
      pack_rows (base->k, batch, key_head, key, n_keys, w, 1.0f, scratch->k);
      pack_rows (base->v, batch, key_head, key, n_keys, w, 1.0f, scratch->v);
      transpose (scratch->k, w, n_keys, base->width, scratch->k_transposed);
      transpose (scratch->v, w, n_keys, base->width, scratch->v_transposed);
      for (; query < base->n_queries; query += QUERY_TILE)
        {
          gint64 n_rows = MIN (QUERY_TILE, base->n_queries - query);
          gint64 n = count_keys (base, query + n_rows - 1, key, n_keys);

          if (n > 0)
            differentiate_scores (self, scratch, batch, head, query, n_rows, key, n);
        }
    }
  if (self->d_q)
    unpack_rows (scratch->d_q, w, NULL, base->scale, self->d_q, batch, head, 0, base->n_queries);
}

static void
differentiate_group (const AttentionGrad *self,
                     Scratch *scratch,
                     gint64 batch,
                     gint64 key_head)
{
  const Attention *base = &self->base;
  gint64 n_shared = base->n_heads / base->n_key_heads, w = base->padded_width;

  memset (scratch->d_k, 0, base->n_keys * w * sizeof (float));
  memset (scratch->d_v, 0, base->n_keys * w * sizeof (float));
  for (gint64 i = 0; i < n_shared; i++)
    differentiate_head (self, scratch, batch, key_head * n_shared + i, key_head);
  if (self->d_k)
    unpack_rows (scratch->d_k, w, NULL, 1.0f, self->d_k, batch, key_head, 0, base->n_keys);
  if (self->d_v)
    unpack_rows (scratch->d_v, w, NULL, 1.0f, self->d_v, batch, key_head, 0, base->n_keys);
}

gboolean
EBB_SIMD_NAME (ebb_cpu_attention_grad) (const EbbLaunch *launch,
                                        GError **error)
{
  AttentionGrad self = { .d_out = launch->inputs[0], .out = launch->inputs[4], .logsumexp = launch->inputs[5] };
  Scratch sizes;
  gint64 n_tasks;
  gsize size;
  float *memory;
  int n_threads;

  attention_init (&self.base, launch, launch->inputs[1], launch->inputs[2], launch->inputs[3],
                  launch->n_inputs > 6 ? launch->inputs[6] : NULL);
  self.d_q = launch->outputs[0];
  self.d_k = launch->outputs[1];
  self.d_v = launch->outputs[2];
  n_tasks = self.base.n_batches * self.base.n_key_heads;
  if (n_tasks == 0)
    return TRUE;
  n_threads = ebb_cpu_get_n_parts (n_tasks, 1);
  size = round_up (scratch_init (&sizes, NULL, &self.base), 16);
  memory = ebb_cpu_workspace_alloc (size * n_threads * sizeof (float), error);
  if (!memory)
    return FALSE;
#pragma omp parallel num_threads(n_threads)
  {
    Scratch scratch;

    scratch_init (&scratch, memory + omp_get_thread_num () * size, &self.base);
#pragma omp for schedule(dynamic, 1)
    for (gint64 task = 0; task < n_tasks; task++)
      differentiate_group (&self, &scratch, task / self.base.n_key_heads, task % self.base.n_key_heads);
  }
  ebb_cpu_workspace_free (memory);
  return TRUE;
}
