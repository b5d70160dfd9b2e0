/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/attention-private.h"

/* Attention, forward: each task takes a block of queries of one head over all its keys, block by block, with a running
 * maximum and sum of each row (FlashAttention, algorithm 1). A row's result does not depend on how queries are dealt to
 * tasks, so neither on the number of threads. */

#define QUERY_BLOCK 256 /* queries of a task: what packing keys is spread over */

typedef struct
{
  float *q, *o;                 /* [QUERY_BLOCK, padded_width] */
  float *k, *v;                 /* [KEY_BLOCK, padded_width] */
  float *k_transposed;          /* [padded_width, KEY_BLOCK] */
  float *scores;                /* [QUERY_TILE, KEY_BLOCK] */
  float *maximum, *sum, *scale; /* [QUERY_BLOCK] */
} Scratch;

static gsize
scratch_init (Scratch *scratch,
              float *memory,
              const Attention *self)
{
  gint64 w = round_up (self->padded_width, 4);
  float *start = memory;

  scratch->q = memory;
  scratch->o = scratch->q + QUERY_BLOCK * w;
  scratch->k = scratch->o + QUERY_BLOCK * w;
  scratch->v = scratch->k + KEY_BLOCK * w;
  scratch->k_transposed = scratch->v + KEY_BLOCK * w;
  scratch->scores = scratch->k_transposed + KEY_BLOCK * w;
  scratch->maximum = scratch->scores + QUERY_TILE * KEY_BLOCK;
  scratch->sum = scratch->maximum + QUERY_BLOCK;
  scratch->scale = scratch->sum + QUERY_BLOCK;
  return (gsize) (scratch->scale + QUERY_BLOCK - start);
}

/* Turns a row of scores into exp (score - maximum), the maximum being that of all keys so far. */
EBB_VEC_INLINE void
update_row (float *row,
            gint64 n_keys,
            float *maximum,
            float *shift,
            float *row_sum)
{
  EbbVec best = vec_set1 (-INFINITY), total = { 0 }, by;

  for (gint64 i = 0; i < n_keys; i += EBB_VEC_WIDTH)
    best = vec_max (best, vec_load (row + i));
  *maximum = MAX (*maximum, vec_reduce_max (best));
  /* Without any key so far the maximum is -inf: any finite shift gives exp (-inf) = 0. */
  *shift = *maximum == -INFINITY ? 0.0f : *maximum;
  by = vec_set1 (*shift);
  for (gint64 i = 0; i < n_keys; i += EBB_VEC_WIDTH)
    {
      EbbVec e = vec_exp (vec_load (row + i) - by);

      total += e;
      vec_store (row + i, e);
    }
  *row_sum = vec_sum (total);
}

static void
drop_tile (const Attention *self,
           gint64 batch,
           gint64 head,
           gint64 query,
           gint64 n_rows,
           gint64 first_key,
           gint64 n_keys,
           float *scores)
{
  guint32 draws[KEY_BLOCK + 4 + EBB_VEC_WIDTH] = { 0 };

  for (gint64 r = 0; r < n_rows; r++)
    {
      gint64 n = count_keys (self, query + r, first_key, n_keys);
      const guint32 *drawn = draw_row (self, batch, head, query + r, first_key, n, draws);
      float *row = scores + r * KEY_BLOCK;

      for (gint64 i = 0; i < n; i += EBB_VEC_WIDTH)
        vec_store (row + i, vec_load (row + i) * vec_keep_scale (self, drawn + i));
    }
}

/* Tile: queries [first, first + n_rows) of the block that starts at query, against the packed keys. */
static void
attend_tile (const Attention *self,
             Scratch *scratch,
             gint64 batch,
             gint64 head,
             gint64 query,
             gint64 first,
             gint64 n_rows,
             gint64 first_key,
             gint64 n_keys)
{
  gint64 w = self->padded_width;
  float before[QUERY_TILE], shift[QUERY_TILE], row_sum[QUERY_TILE];
  Product scores = { scratch->q + first * w, w, 1, scratch->k_transposed, KEY_BLOCK,
                     scratch->scores, KEY_BLOCK, NULL, self->width, PRODUCT_SET };
  Product output = { scratch->scores, KEY_BLOCK, 1, scratch->v, w,
                     scratch->o + first * w, w, scratch->scale, n_keys, PRODUCT_SCALE };

  product_run (&scores, n_rows, n_keys);
  mask_scores (self, batch, head, query + first, n_rows, first_key, n_keys, scratch->scores);
  for (gint64 r = 0; r < n_rows; r++)
    {
      before[r] = scratch->maximum[first + r];
      update_row (scratch->scores + r * KEY_BLOCK, n_keys, &scratch->maximum[first + r], &shift[r], &row_sum[r]);
    }
  EBB_VEC_FOR (r, m, n_rows)
    {
      EbbVec scale = vec_exp (vec_load_as (EBB_DTYPE_F32, before, r, m) - vec_load_as (EBB_DTYPE_F32, shift, r, m));

      vec_store_as (EBB_DTYPE_F32, scratch->scale, r, m, scale);
    }
  for (gint64 r = 0; r < n_rows; r++)
    scratch->sum[first + r] = scratch->sum[first + r] * scratch->scale[r] + row_sum[r];
  if (self->p > 0.0)
    drop_tile (self, batch, head, query + first, n_rows, first_key, n_keys, scratch->scores);
  product_run (&output, n_rows, self->width);
}

static void
finish_block (const Attention *self,
              Scratch *scratch,
              gint64 batch,
              gint64 head,
              gint64 query,
              gint64 n_queries)
{
  EbbView *o = self->launch->outputs[0], *logsumexp = self->launch->outputs[1];

  for (gint64 r = 0; r < n_queries; r += EBB_VEC_WIDTH)
    {
      EbbVec sum = vec_load (scratch->sum + r);
      EbbVec result = vec_load (scratch->maximum + r) + vec_log (sum);

      vec_store (scratch->scale + r, vec_select (sum > 0.0f, 1.0f / sum, vec_select (sum == 0.0f, (EbbVec){ 0 }, sum)));
      vec_store (scratch->maximum + r, result);
    }
  unpack_rows (scratch->o, self->padded_width, scratch->scale, 0.0f, o, batch, head, query, n_queries);
  if (logsumexp)
    memcpy ((float *) logsumexp->data + (batch * self->n_heads + head) * self->n_queries + query, scratch->maximum,
            n_queries * sizeof (float));
}

static void
attend_block (const Attention *self,
              Scratch *scratch,
              gint64 batch,
              gint64 head,
              gint64 query,
              gint64 n_queries)
{
  gint64 key_head = head / (self->n_heads / self->n_key_heads);
  gint64 w = self->padded_width;
  gint64 end = self->causal ? MIN (self->n_keys, query + n_queries) : self->n_keys;

  memset (scratch->o, 0, n_queries * w * sizeof (float));
  for (gint64 r = 0; r < round_up (n_queries, EBB_VEC_WIDTH); r++)
    {
      scratch->maximum[r] = -INFINITY;
      scratch->sum[r] = 0.0f;
    }
  pack_rows (self->q, batch, head, query, n_queries, w, self->scale, scratch->q);
  for (gint64 key = 0; key < end; key += KEY_BLOCK)
    {
      gint64 n_keys = MIN (KEY_BLOCK, self->n_keys - key);

      pack_rows (self->k, batch, key_head, key, n_keys, w, 1.0f, scratch->k);
      pack_rows (self->v, batch, key_head, key, n_keys, w, 1.0f, scratch->v);
      transpose (scratch->k, w, n_keys, self->width, scratch->k_transposed);
      for (gint64 first = 0; first < n_queries; first += QUERY_TILE)
        {
          gint64 n_rows = MIN (QUERY_TILE, n_queries - first);
          gint64 n = count_keys (self, query + first + n_rows - 1, key, n_keys);

          if (n > 0)
            attend_tile (self, scratch, batch, head, query, first, n_rows, key, n);
        }
    }
  finish_block (self, scratch, batch, head, query, n_queries);
}

/* Queries of a task: fewer where there would be too few tasks; no result depends on it. */
static gint64
choose_query_block (const Attention *self)
{
  gint64 n_heads = self->n_batches * self->n_heads;
  gint64 block = QUERY_BLOCK;

  while (block > QUERY_TILE && n_heads * ((self->n_queries + block - 1) / block) < 2 * ebb_cpu_get_n_threads ())
    block /= 2;
  return block;
}

gboolean
EBB_SIMD_NAME (ebb_cpu_attention) (const EbbLaunch *launch,
                                   GError **error)
{
  Attention self;
  Scratch sizes;
  gint64 block, n_blocks, n_tasks;
  gsize size;
  float *memory;
  int n_threads;

  attention_init (&self, launch, launch->inputs[0], launch->inputs[1], launch->inputs[2],
                  launch->n_inputs > 3 ? launch->inputs[3] : NULL);
  block = choose_query_block (&self);
  n_blocks = (self.n_queries + block - 1) / block;
  n_tasks = self.n_batches * self.n_heads * n_blocks;
  if (n_tasks == 0)
    return TRUE;
  n_threads = ebb_cpu_get_n_parts (n_tasks, 1);
  size = round_up (scratch_init (&sizes, NULL, &self), 16);
  memory = ebb_cpu_workspace_alloc (size * n_threads * sizeof (float), error);
  if (!memory)
    return FALSE;
#pragma omp parallel num_threads(n_threads)
  {
    Scratch scratch;

    scratch_init (&scratch, memory + omp_get_thread_num () * size, &self);
#pragma omp for schedule(dynamic, 1)
    for (gint64 task = 0; task < n_tasks; task++)
      {
        /* The last queries of a causal head have the most keys: they come first. */
        gint64 query = (n_blocks - 1 - task / (self.n_batches * self.n_heads)) * block;
        gint64 head = task % (self.n_batches * self.n_heads);

        attend_block (&self, &scratch, head / self.n_heads, head % self.n_heads, query,
                      MIN (block, self.n_queries - query));
      }
  }
  ebb_cpu_workspace_free (memory);
  return TRUE;
}
