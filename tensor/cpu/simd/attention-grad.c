/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/attention-private.h"

/* Attention, backward: probabilities are computed again from queries, keys and logsumexp (FlashAttention, algorithm 4).
 * A task takes all heads that share one head of keys, so that each gradient has one writer and one order of sums. */

/* The blocks of keys [begin, end) that a tile of queries sees. */
typedef struct
{
  gint64 begin, end;
} KeyBlocks;

typedef struct
{
  Unit *q, *d_out;             /* [n_queries, row_units]: the head at hand */
  Unit *q_inner, *d_out_inner; /* the same as the right operands of products over queries */
  float *d_q;                  /* [n_queries, padded_width] */
  float *maximum, *log_sum;    /* [n_queries]: logsumexp in two parts, exponents of 2 */
  float *delta;                /* [n_queries]: rowsum (d_out * out) */
  float *d_k, *d_v;            /* [n_keys, padded_width], summed over the heads that share them */
  Unit *rows;                  /* [KEY_BLOCK, row_units]: keys or values on their way to be transposed */
  Unit *k, *v;                 /* [padded_width, KEY_BLOCK]: transposed */
  Unit *k_inner;               /* [KEY_BLOCK, padded_width] */
  float *scores, *d_scores;    /* [QUERY_TILE, KEY_BLOCK]; units take their places */
  float *slopes;               /* [QUERY_TILE, KEY_BLOCK], of capped scores; NULL if they are not capped */
  Row *queries;                /* [n_queries] */
  KeyBlocks *blocks;           /* of each tile of queries */
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

  scratch->queries = (Row *) memory;
  scratch->blocks = (KeyBlocks *) (scratch->queries + n_queries);
  scratch->q = (Unit *) (scratch->blocks + (n_queries + QUERY_TILE - 1) / QUERY_TILE);
  scratch->d_out = scratch->q + n_queries * self->row_units;
  scratch->q_inner = scratch->q;
  scratch->d_out_inner = scratch->d_out;
  scratch->d_q = (float *) (scratch->d_out + n_queries * self->row_units);
  if (self->is_pairs)
    {
      scratch->q_inner = (Unit *) scratch->d_q;
      scratch->d_out_inner = scratch->q_inner + n_queries / 2 * w;
      scratch->d_q = (float *) (scratch->d_out_inner + n_queries / 2 * w);
    }
  scratch->maximum = scratch->d_q + n_queries * w;
  scratch->log_sum = scratch->maximum + n_queries;
  scratch->delta = scratch->log_sum + n_queries;
  scratch->d_k = scratch->delta + n_queries;
  scratch->d_v = scratch->d_k + self->n_keys * w;
  scratch->rows = (Unit *) (scratch->d_v + self->n_keys * w);
  scratch->k = scratch->rows + KEY_BLOCK * w;
  scratch->v = scratch->k + KEY_BLOCK * w;
  scratch->k_inner = scratch->v + KEY_BLOCK * w;
  scratch->scores = (float *) (scratch->k_inner + KEY_BLOCK * w);
  scratch->d_scores = scratch->scores + QUERY_TILE * KEY_BLOCK;
  scratch->slopes = self->softcap > 0.0f ? scratch->d_scores + QUERY_TILE * KEY_BLOCK : NULL;
  return (gsize) (scratch->d_scores + (scratch->slopes ? 2 : 1) * QUERY_TILE * KEY_BLOCK - start);
}

EBB_VEC_INLINE float
dot_rows (EbbDType dtype,
          const void *a,
          const void *b,
          gint64 width)
{
  EbbVec sum = { 0 };

  EBB_VEC_FOR (i, m, width)
    sum = vec_fma (vec_load_as (dtype, a, i, m), vec_load_as (dtype, b, i, m), sum);
  return vec_sum (sum);
}

/* A tile's queries before their first keys. */
static void
load_queries (const AttentionGrad *self,
              Scratch *scratch,
              const Tile *tile)
{
  const Attention *base = &self->base;
  gint64 w = base->padded_width, units = base->row_units, inner = count_units (base, tile->first);
  gint64 b = tile->batch, h = tile->rows[0].head, query = tile->first, n = tile->n_rows;
  const float *logsumexp = (const float *) self->logsumexp->data + 2 * (b * base->n_heads + h) * base->n_queries;

  pack_rows (base, base->q, b, h, query, n, scratch->q + query * units);
  pack_rows (base, self->d_out, b, h, query, n, scratch->d_out + query * units);
  if (base->is_pairs)
    {
      pack_inner (base, base->q, b, h, query, n, scratch->q_inner + inner * w);
      pack_inner (base, self->d_out, b, h, query, n, scratch->d_out_inner + inner * w);
    }
  memset (scratch->d_q + query * w, 0, n * w * sizeof (float));
  for (gint64 r = query; r < query + n; r++)
    {
      const void *d_out = view_at (self->d_out, b, h, r), *out = view_at (self->out, b, h, r);

      /* A row without any key has no probabilities: 2^(score - inf) gives 0. */
      scratch->maximum[r] = logsumexp[2 * r] == -INFINITY ? INFINITY : logsumexp[2 * r];
      scratch->log_sum[r] = logsumexp[2 * r + 1];
      scratch->delta[r] = self->out->dtype == EBB_DTYPE_BF16 ? dot_rows (EBB_DTYPE_BF16, d_out, out, base->width)
                                                             : dot_rows (EBB_DTYPE_F32, d_out, out, base->width);
    }
  prefetch_rows (base->q, b, h, query + QUERY_TILE, QUERY_TILE, FALSE);
  prefetch_rows (self->d_out, b, h, query + QUERY_TILE, QUERY_TILE, FALSE);
  prefetch_rows (self->out, b, h, query + QUERY_TILE, QUERY_TILE, FALSE);
}

/* From scores s and d_p = d_out v^T of a vector of keys and query r: the probabilities that v was weighted with, and
 * d_s. */
EBB_VEC_INLINE void
differentiate (const Attention *base,
               const Scratch *scratch,
               gint64 r,
               EbbVec s,
               EbbVec d_p,
               float factor,
               const float *slopes,
               const guint32 *draws,
               EbbVec *dropped_p,
               EbbVec *d_s)
{
  /* One after the other: beside a large maximum f32 has no room for the logarithm. */
  EbbVec p = vec_exp2 (vec_fma (s, vec_set1 (factor), vec_set1 (-scratch->maximum[r])) - scratch->log_sum[r]);

  *dropped_p = p;
  if (draws)
    {
      EbbVec keep = vec_keep_scale (base, draws);

      *dropped_p = p * keep;
      d_p *= keep;
    }
  *d_s = p * (d_p - vec_set1 (scratch->delta[r]));
  if (slopes)
    *d_s *= vec_load (slopes);
}

/* Turns scores and d_p of the tile's n queries from r on into probabilities and d_s. As f32 (n = 1) both stay in place.
 * Pairs over queries (r and r + 1, or r alone), for d_v and d_k: the probabilities' are row r of scores, those of d_s
 * row r + 1; pairs over keys, for d_q: rows r and r + 1 of d_scores. */
EBB_VEC_INLINE void
differentiate_rows (gboolean is_pairs,
                    int n,
                    const Attention *base,
                    const Scratch *scratch,
                    const Tile *tile,
                    gint64 r,
                    float factor,
                    const guint32 *const draws[2])
{
  float *scores = scratch->scores + r * KEY_BLOCK, *d_scores = scratch->d_scores + r * KEY_BLOCK;
  gint64 seen[2];

  for (int j = 0; j < n; j++)
    seen[j] = count_keys (tile, r + j);
  for (gint64 i = 0; i < tile->n_keys; i += EBB_VEC_WIDTH)
    {
      EbbVec p[2] = { { 0 } }, d_s[2] = { { 0 } };

#pragma GCC unroll 2
      for (int j = 0; j < n; j++)
        {
          gint64 at = j * KEY_BLOCK + i;

          if (i < seen[j])
            differentiate (base, scratch, tile->first + r + j, vec_load (scores + at), vec_load (d_scores + at), factor,
                           scratch->slopes ? scratch->slopes + r * KEY_BLOCK + at : NULL,
                           draws[j] ? draws[j] + i : NULL, &p[j], &d_s[j]);
          if (is_pairs)
            *(EbbVecHUnaligned *) ((guint16 *) (d_scores + j * KEY_BLOCK) + i) = vec_to_bf16_row (d_s[j]);
          else
            vec_store (d_scores + at, d_s[j]);
        }
      if (is_pairs)
        {
          *(EbbVecUUnaligned *) (scores + i) = vec_to_bf16_pairs (p[0], p[1]);
          *(EbbVecUUnaligned *) (scores + KEY_BLOCK + i) = vec_to_bf16_pairs (d_s[0], d_s[1]);
        }
      else
        vec_store (scores + i, p[0]);
    }
}

static void
differentiate_tile (const AttentionGrad *self,
                    const Scratch *scratch,
                    const Tile *tile)
{
  const Attention *base = &self->base;
  int step = base->is_pairs ? 2 : 1;
  guint32 memory[2][DRAWS_SIZE] = { 0 };
  float factor = mask_scores (base, tile, scratch->scores, scratch->slopes);

  for (gint64 r = 0; r < tile->n_rows; r += step)
    {
      const guint32 *draws[2] = { NULL, NULL };

      for (int j = 0; base->p > 0.0 && j < step; j++)
        draws[j] = draw_row (base, tile, r + j, memory[j]);
      if (!base->is_pairs)
        differentiate_rows (FALSE, 1, base, scratch, tile, r, factor, draws);
      else if (r + 1 < tile->n_rows)
        differentiate_rows (TRUE, 2, base, scratch, tile, r, factor, draws);
      else
        differentiate_rows (TRUE, 1, base, scratch, tile, r, factor, draws);
    }
}

/* Adds what a tile gives to d_q, d_k and d_v. */
static void
differentiate_scores (const AttentionGrad *self,
                      const Scratch *scratch,
                      const Tile *tile)
{
  const Attention *base = &self->base;
  gboolean is_pairs = base->is_pairs;
  gint64 w = base->padded_width, units = base->row_units, inner = count_units (base, base->width);
  gint64 query = tile->first, queries = count_units (base, query), n_units = count_units (base, tile->n_rows);
  const Unit *p = (const Unit *) scratch->scores, *d_s = (const Unit *) scratch->d_scores;
  const Unit *d_s_inner = is_pairs ? p + KEY_BLOCK : d_s;
  gint64 step = is_pairs ? 2 * KEY_BLOCK : KEY_BLOCK, offset = find_offset (base, tile);
  ProductPart of_keys = choose_part (tile, PRODUCT_OF_KEYS_SEEN);
  ProductPart over_keys = choose_part (tile, PRODUCT_OVER_KEYS_SEEN);
  ProductPart over_queries = choose_part (tile, PRODUCT_OVER_QUERIES);
  Product scores = { scratch->q + query * units, units, 1, scratch->k, KEY_BLOCK,
                     scratch->scores, KEY_BLOCK, NULL, inner, PRODUCT_SET, of_keys, offset };
  Product d_scores = { scratch->d_out + query * units, units, 1, scratch->v, KEY_BLOCK,
                       scratch->d_scores, KEY_BLOCK, NULL, inner, PRODUCT_SET, of_keys, offset };
  Product d_v = { p, 1, step, scratch->d_out_inner + queries * w, w,
                  scratch->d_v + tile->key * w, w, NULL, n_units, PRODUCT_ADD, over_queries, offset };
  Product d_k = { d_s_inner, 1, step, scratch->q_inner + queries * w, w,
                  scratch->d_k + tile->key * w, w, NULL, n_units, PRODUCT_ADD, over_queries, offset };
  Product d_q = { d_s, KEY_BLOCK, 1, scratch->k_inner, w,
                  scratch->d_q + query * w, w, NULL, count_units (base, tile->n_keys), PRODUCT_ADD, over_keys, offset };

  product_run (is_pairs, &scores, tile->n_rows, tile->n_keys);
  product_run (is_pairs, &d_scores, tile->n_rows, tile->n_keys);
  differentiate_tile (self, scratch, tile);
  product_run (is_pairs, &d_v, tile->n_keys, base->width);
  product_run (is_pairs, &d_k, tile->n_keys, base->width);
  product_run (is_pairs, &d_q, tile->n_rows, base->width);
}

static void
load_keys (const Attention *base,
           Scratch *scratch,
           gint64 batch,
           gint64 key_head,
           gint64 key,
           gint64 n_keys)
{
  pack_rows (base, base->v, batch, key_head, key, n_keys, scratch->rows);
  transpose (base, scratch->rows, n_keys, scratch->v);
  pack_rows (base, base->k, batch, key_head, key, n_keys, scratch->rows);
  transpose (base, scratch->rows, n_keys, scratch->k);
  pack_inner (base, base->k, batch, key_head, key, n_keys, scratch->k_inner);
}

static void
unpack_rows (const float *packed,
             gint64 padded_width,
             float factor,
             EbbView *view,
             gint64 batch,
             gint64 head,
             gint64 row,
             gint64 n_rows)
{
  for (gint64 r = 0; r < n_rows; r++)
    unpack_row (packed + r * padded_width, factor, view, batch, head, row + r);
}

/* The queries of a head, and the blocks of keys that their tiles see. */
static void
find_queries (const Attention *base,
              Scratch *scratch,
              gint64 batch,
              gint64 head)
{
  find_rows (base, batch, head, 0, base->n_queries, scratch->queries);
  for (gint64 query = 0; query < base->n_queries; query += QUERY_TILE)
    {
      KeyBlocks *blocks = &scratch->blocks[query / QUERY_TILE];

      find_blocks (scratch->queries + query, MIN (QUERY_TILE, base->n_queries - query), &blocks->begin, &blocks->end);
    }
}

/* A tile of queries without any key sees the first block, to become 0 there. */
static gboolean
sees_block (const KeyBlocks *blocks,
            gint64 key)
{
  return key >= blocks->begin && key < MAX (blocks->end, 1);
}

/* Queries of a head against a block of keys. */
static void
differentiate_block (const AttentionGrad *self,
                     Scratch *scratch,
                     gint64 batch,
                     gint64 head,
                     gint64 key_head,
                     gint64 key)
{
  const Attention *base = &self->base;
  gint64 n_keys = MIN (KEY_BLOCK, base->n_keys - key), w = base->padded_width, n_seeing = 0;
  gint64 n_tiles = (base->n_queries + QUERY_TILE - 1) / QUERY_TILE, share, next = key + KEY_BLOCK;

  for (gint64 i = 0; i < n_tiles; i++)
    if (sees_block (&scratch->blocks[i], key))
      n_seeing++;
  if (n_seeing == 0)
    return;
  share = share_rows (n_seeing * QUERY_TILE);
  load_keys (base, scratch, batch, key_head, key, n_keys);
  for (gint64 i = 0; i < n_tiles; i++)
    {
      const KeyBlocks *blocks = &scratch->blocks[i];
      gint64 query = i * QUERY_TILE;
      Tile tile = { batch, scratch->queries + query, MIN (QUERY_TILE, base->n_queries - query), key, n_keys, query,
                    FALSE };
      gboolean is_last = key == (MAX (blocks->end, 1) - 1) / KEY_BLOCK * KEY_BLOCK;

      if (!sees_block (blocks, key))
        continue;
      tile.n_keys = count_keys (&tile, tile.n_rows - 1);
      if (key == blocks->begin)
        load_queries (self, scratch, &tile);
      prefetch_rows (base->k, batch, key_head, next, share, FALSE);
      prefetch_rows (base->v, batch, key_head, next, share, FALSE);
      if (is_last)
        prefetch_rows (self->d_q, batch, head, query, tile.n_rows, TRUE);
      if (blocks->end > 0)
        differentiate_scores (self, scratch, &tile);
      if (is_last)
        unpack_rows (scratch->d_q + query * w, w, base->scale, self->d_q, batch, head, query, tile.n_rows);
      next += share;
    }
}

/* The heads that share a head of keys. */
static void
differentiate_group (const AttentionGrad *self,
                     Scratch *scratch,
                     gint64 batch,
                     gint64 key_head)
{
  const Attention *base = &self->base;
  gint64 n_shared = base->n_heads / base->n_key_heads, w = base->padded_width;

  for (gint64 i = 0; i < n_shared; i++)
    /* Once where there are no keys: then d_q becomes 0 alone. */
    for (gint64 key = 0; key == 0 || key < base->n_keys; key += KEY_BLOCK)
      {
        gint64 n = MIN (KEY_BLOCK, base->n_keys - key);
        float *d_k = scratch->d_k + key * w, *d_v = scratch->d_v + key * w;

        if (key == 0)
          find_queries (base, scratch, batch, key_head * n_shared + i);
        if (i == 0)
          {
            memset (d_k, 0, n * w * sizeof (float));
            memset (d_v, 0, n * w * sizeof (float));
          }
        if (i == n_shared - 1)
          {
            prefetch_rows (self->d_k, batch, key_head, key, n, TRUE);
            prefetch_rows (self->d_v, batch, key_head, key, n, TRUE);
          }
        differentiate_block (self, scratch, batch, key_head * n_shared + i, key_head, key);
        if (i == n_shared - 1)
          {
            unpack_rows (d_k, w, base->scale, self->d_k, batch, key_head, key, n);
            unpack_rows (d_v, w, 1.0f, self->d_v, batch, key_head, key, n);
          }
      }
}

static void
init (AttentionGrad *self,
      const EbbLaunch *launch)
{
  const EbbView *inputs[] = { launch->inputs[1], launch->inputs[2], launch->inputs[3],
                              ebb_launch_get_input (launch, 6), ebb_launch_get_input (launch, 7) };

  *self = (AttentionGrad){ .d_out = launch->inputs[0], .out = launch->inputs[4], .logsumexp = launch->inputs[5] };
  attention_init (&self->base, launch, inputs);
  self->d_q = launch->outputs[0];
  self->d_k = launch->outputs[1];
  self->d_v = launch->outputs[2];
}

EBB_SIMD_WORKSPACE (attention_grad)
{
  AttentionGrad self;
  Scratch sizes;
  gint64 n_tasks;

  init (&self, launch);
  n_tasks = self.base.n_batches * self.base.n_key_heads;
  if (n_tasks == 0)
    return 0;
  return round_up (scratch_init (&sizes, NULL, &self.base), 16) * sizeof (float)
         * (gsize) attention_count_threads (&self.base, n_tasks, TRUE);
}

EBB_SIMD_KERNEL (attention_grad)
{
  AttentionGrad self;
  Scratch sizes;
  gint64 n_tasks;
  gsize size;
  float *memory = launch->workspace;
  int n_threads;

  init (&self, launch);
  n_tasks = self.base.n_batches * self.base.n_key_heads;
  if (n_tasks == 0)
    return TRUE;
  n_threads = attention_count_threads (&self.base, n_tasks, FALSE);
  size = round_up (scratch_init (&sizes, NULL, &self.base), 16);
  g_assert (size * (gsize) n_threads * sizeof (float) <= launch->workspace_size);
#pragma omp parallel num_threads(n_threads)
  {
    Scratch scratch;

    scratch_init (&scratch, memory + omp_get_thread_num () * size, &self.base);
#pragma omp for schedule(dynamic, 1)
    for (gint64 task = 0; task < n_tasks; task++)
      differentiate_group (&self, &scratch, task / self.base.n_key_heads, task % self.base.n_key_heads);
  }
  return TRUE;
}
