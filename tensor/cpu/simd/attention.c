/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/attention-private.h"

/* Attention, forward: each task takes a block of queries of one head over the keys that they see, block by block, with
 * a running maximum and sum of each row (FlashAttention, algorithm 1). Where there are few queries, as when text is
 * generated, a task takes all queries of several heads that share keys; if one vector holds all its rows, keys are
 * multiplied as they lie, by queries side by side in vectors. A row's result does not depend on how queries are dealt
 * to tasks, so neither on the number of threads. */

#define QUERY_BLOCK 256 /* rows of a task: what packing keys is spread over */

typedef struct
{
  Unit *q;                /* [QUERY_BLOCK, row_units] */
  Unit *rows;             /* [KEY_BLOCK, row_units]: keys on their way to be transposed */
  Unit *k;                /* [padded_width, KEY_BLOCK]: transposed */
  Unit *v;                /* [KEY_BLOCK, padded_width] */
  float *o;               /* [QUERY_BLOCK, padded_width] */
  float *scores;          /* [QUERY_TILE, KEY_BLOCK]; the probabilities take their place, as units */
  Unit *q_turned;         /* [padded_width, EBB_VEC_WIDTH]: of few rows */
  float *scores_turned;   /* [KEY_BLOCK, EBB_VEC_WIDTH]: of few rows */
  float *maximum, *scale; /* [QUERY_BLOCK]; the maximum is an exponent of 2 */
  EbbVec *sum;            /* [QUERY_BLOCK], by lanes */
  Row *queries;           /* [QUERY_BLOCK] */
} Scratch;

/* The rows of a task: n_heads heads from head on, each with its queries [query, query + n_queries). */
typedef struct
{
  gint64 batch, head, n_heads, query, n_queries;
} Task;

static gsize
scratch_init (Scratch *scratch,
              float *memory,
              const Attention *self)
{
  gint64 w = round_up (self->padded_width, 4);
  float *start = memory;

  scratch->sum = (EbbVec *) memory;
  scratch->queries = (Row *) (scratch->sum + QUERY_BLOCK);
  scratch->q = (Unit *) (scratch->queries + QUERY_BLOCK);
  scratch->rows = scratch->q + QUERY_BLOCK * w;
  scratch->k = scratch->rows + KEY_BLOCK * w;
  scratch->v = scratch->k + KEY_BLOCK * w;
  scratch->o = (float *) (scratch->v + KEY_BLOCK * w);
  scratch->scores = scratch->o + QUERY_BLOCK * w;
  scratch->q_turned = (Unit *) (scratch->scores + QUERY_TILE * KEY_BLOCK);
  scratch->scores_turned = (float *) (scratch->q_turned + w * EBB_VEC_WIDTH);
  scratch->maximum = scratch->scores_turned + KEY_BLOCK * EBB_VEC_WIDTH;
  scratch->scale = scratch->maximum + QUERY_BLOCK;
  return (gsize) (scratch->scale + QUERY_TILE - start);
}

EBB_VEC_INLINE float
find_maximum (const float *row,
              gint64 n_keys)
{
  EbbVec best = vec_set1 (-INFINITY);

  for (gint64 i = 0; i < n_keys; i += EBB_VEC_WIDTH)
    best = vec_max (best, vec_load (row + i));
  return vec_reduce_max (best);
}

/* The maxima of the tile's rows to those of all keys so far, and what the sums before are to be multiplied by. */
EBB_VEC_INLINE void
update_maxima (const float *found,
               gint64 n_rows,
               float factor,
               float *maximum,
               float *scale)
{
  EBB_VEC_FOR (r, m, n_rows)
    {
      EbbVec before = vec_load_as (EBB_DTYPE_F32, maximum, r, m);
      EbbVec after = vec_max (before, vec_load_as (EBB_DTYPE_F32, found, r, m) * factor);
      /* Without any key so far the maximum is -inf: any finite shift gives 2^-inf = 0. */
      EbbVec shift = vec_select (after == -INFINITY, (EbbVec){ 0 }, after);

      vec_store_as (EBB_DTYPE_F32, maximum, r, m, after);
      vec_store_as (EBB_DTYPE_F32, scale, r, m, vec_exp2 (before - shift));
    }
}

/* Turns the first n_keys of a row of scores into units of 2^(factor score - maximum), after dropout if there are draws,
 * and the others of n_all into 0. sum, by lanes, is that before dropout. */
EBB_VEC_INLINE void
exponentiate_row (gboolean is_pairs,
                  const Attention *self,
                  float *row,
                  gint64 n_keys,
                  gint64 n_all,
                  float factor,
                  float maximum,
                  const guint32 *draws,
                  EbbVec *sum)
{
  EbbVec by = vec_set1 (factor), less = vec_set1 (maximum == -INFINITY ? 0.0f : -maximum), total = *sum;

  for (gint64 i = 0; i < n_all; i += EBB_VEC_WIDTH)
    {
      EbbVec p = { 0 };

      if (i < n_keys)
        {
          p = vec_exp2 (vec_fma (vec_load (row + i), by, less));
          total += p;
          if (draws)
            p *= vec_keep_scale (self, draws + i);
        }
      if (is_pairs)
        *(EbbVecHUnaligned *) ((guint16 *) row + i) = vec_to_bf16_row (p);
      else
        vec_store (row + i, p);
    }
  *sum = total;
}

/* Scores of a tile to probabilities, up to the sums of rows; scale: what the tiles before are to be multiplied by. */
static void
exponentiate_tile (const Attention *self,
                   Scratch *scratch,
                   const Tile *tile)
{
  float factor = mask_scores (self, tile, scratch->scores, NULL);
  float *maximum = scratch->maximum + tile->first, found[QUERY_TILE];
  EbbVec *sum = scratch->sum + tile->first;
  guint32 memory[DRAWS_SIZE] = { 0 };

  for (gint64 r = 0; r < tile->n_rows; r++)
    found[r] = find_maximum (scratch->scores + r * KEY_BLOCK, count_keys (tile, r));
  update_maxima (found, tile->n_rows, factor, maximum, scratch->scale);
  for (gint64 r = 0; r < tile->n_rows; r++)
    {
      gint64 n = count_keys (tile, r);
      float *row = scratch->scores + r * KEY_BLOCK;
      const guint32 *draws = self->p > 0.0 ? draw_row (self, tile, r, memory) : NULL;

      sum[r] *= scratch->scale[r];
      if (self->is_pairs)
        exponentiate_row (TRUE, self, row, n, tile->n_keys, factor, maximum[r], draws, &sum[r]);
      else
        exponentiate_row (FALSE, self, row, n, tile->n_keys, factor, maximum[r], draws, &sum[r]);
    }
}

/* Rows of a block that are an operand of a product: packed, or where they lie. */
typedef struct
{
  const Unit *rows;
  gint64 stride; /* units */
} Block;

/* -- few rows ------------------------------------------------------------------------------------------------------ */

static void
turn_queries (const Attention *self,
              Scratch *scratch,
              gint64 n_rows)
{
  gint64 n_units = count_units (self, self->width);

  memset (scratch->q_turned, 0, (gsize) (n_units * EBB_VEC_WIDTH) * sizeof (Unit));
  for (gint64 r = 0; r < n_rows; r++)
    for (gint64 i = 0; i < n_units; i++)
      scratch->q_turned[i * EBB_VEC_WIDTH + r] = scratch->q[r * self->row_units + i];
}

/* Keys that needn't be transposed: where they lie if they are whole units there. */
static Block
find_keys (const Attention *self,
           Scratch *scratch,
           gint64 batch,
           gint64 head,
           gint64 key,
           gint64 n_keys)
{
  const void *at = view_at (self->k, batch, head, key);
  gint64 stride = self->k->strides[2];

  if (!self->is_pairs && self->k->dtype == EBB_DTYPE_F32)
    return (Block){ at, stride };
  if (self->is_pairs && self->width % 2 == 0 && stride % 2 == 0 && (gsize) at % sizeof (Unit) == 0)
    return (Block){ at, stride / 2 };
  pack_rows (self, self->k, batch, head, key, n_keys, scratch->rows);
  return (Block){ scratch->rows, self->row_units };
}

/* The products of keys and queries, each summed in the same order as queries by keys. */
static void
multiply_by_keys (const Attention *self,
                  Scratch *scratch,
                  const Tile *tile,
                  const Block *keys)
{
  Product scores = { keys->rows, keys->stride, 1, scratch->q_turned, EBB_VEC_WIDTH,
                     scratch->scores_turned, EBB_VEC_WIDTH, NULL, count_units (self, self->width), PRODUCT_SET,
                     PRODUCT_WHOLE, 0 };

  product_run (self->is_pairs, &scores, tile->n_keys, EBB_VEC_WIDTH);
  for (gint64 r = 0; r < tile->n_rows; r++)
    for (gint64 i = 0; i < tile->n_keys; i++)
      scratch->scores[r * KEY_BLOCK + i] = scratch->scores_turned[i * EBB_VEC_WIDTH + r];
}

/* -- tiles --------------------------------------------------------------------------------------------------------- */

/* Values as rows along the inner dimension: where they lie if no vector reaches beyond a row. */
static Block
find_values (const Attention *self,
             Scratch *scratch,
             gint64 batch,
             gint64 head,
             gint64 key,
             gint64 n_keys,
             gboolean is_few)
{
  if (is_few && !self->is_pairs && self->v->dtype == EBB_DTYPE_F32 && self->width == self->padded_width)
    return (Block){ view_at (self->v, batch, head, key), self->v->strides[2] };
  pack_inner (self, self->v, batch, head, key, n_keys, scratch->v);
  return (Block){ scratch->v, self->padded_width };
}

/* Adds a tile's keys to the results of its queries. keys: of few rows; else NULL, and they are transposed in k. */
static void
attend_tile (const Attention *self,
             Scratch *scratch,
             const Tile *tile,
             const Block *keys,
             const Block *values)
{
  gint64 w = self->padded_width, units = self->row_units, offset = find_offset (self, tile);
  Product scores = { scratch->q + tile->first * units, units, 1, scratch->k, KEY_BLOCK,
                     scratch->scores, KEY_BLOCK, NULL, count_units (self, self->width), PRODUCT_SET,
                     choose_part (tile, PRODUCT_OF_KEYS_SEEN), offset };
  Product output = { (const Unit *) scratch->scores, KEY_BLOCK, 1, values->rows, values->stride,
                     scratch->o + tile->first * w, w, scratch->scale, count_units (self, tile->n_keys), PRODUCT_SCALE,
                     choose_part (tile, PRODUCT_OVER_KEYS_SEEN), offset };

  if (keys)
    multiply_by_keys (self, scratch, tile, keys);
  else
    product_run (self->is_pairs, &scores, tile->n_rows, tile->n_keys);
  exponentiate_tile (self, scratch, tile);
  product_run (self->is_pairs, &output, tile->n_rows, self->width);
}

/* A tile's queries before their first keys. */
static void
begin_rows (const Attention *self,
            Scratch *scratch,
            const Tile *tile)
{
  gint64 w = self->padded_width;

  for (gint64 r = 0; r < tile->n_rows; r++)
    pack_row (self, self->q, view_at (self->q, tile->batch, tile->rows[r].head, tile->rows[r].query),
              scratch->q + (tile->first + r) * self->row_units);
  memset (scratch->o + tile->first * w, 0, tile->n_rows * w * sizeof (float));
  for (gint64 r = 0; r < QUERY_TILE; r++)
    {
      scratch->maximum[tile->first + r] = -INFINITY;
      scratch->sum[tile->first + r] = (EbbVec){ 0 };
    }
}

/* A tile's queries after their last keys: divides by the sums, and stores. */
static void
finish_rows (const Attention *self,
             Scratch *scratch,
             const Tile *tile)
{
  EbbView *o = self->launch->outputs[0], *logsumexp = self->launch->outputs[1];
  float *maximum = scratch->maximum + tile->first, log_sum[QUERY_TILE];

  for (gint64 r = 0; r < tile->n_rows; r += EBB_VEC_WIDTH)
    {
      float sums[EBB_VEC_WIDTH];
      EbbVec sum;

      for (gint64 i = 0; i < EBB_VEC_WIDTH; i++)
        sums[i] = vec_sum (scratch->sum[tile->first + r + i]);
      sum = vec_load (sums);
      vec_store (scratch->scale + r, vec_select (sum > 0.0f, 1.0f / sum, vec_select (sum == 0.0f, (EbbVec){ 0 }, sum)));
      vec_store (log_sum + r, vec_select (sum == 0.0f, (EbbVec){ 0 }, vec_log (sum) * (float) (1.0 / G_LN2)));
    }
  for (gint64 r = 0; r < tile->n_rows; r++)
    {
      const Row *row = &tile->rows[r];

      unpack_row (scratch->o + (tile->first + r) * self->padded_width, scratch->scale[r], o, tile->batch, row->head,
                  row->query);
      if (logsumexp)
        {
          gint64 index = (tile->batch * self->n_heads + row->head) * self->n_queries + row->query;
          float *to = (float *) logsumexp->data + 2 * index;

          to[0] = maximum[r];
          to[1] = log_sum[r];
        }
    }
}

/* The tiles of a task, and the blocks of keys [begin, end) that each sees. Returns how many. */
static gint64
make_tiles (const Attention *self,
            Scratch *scratch,
            const Task *task,
            Tile tiles[QUERY_BLOCK / QUERY_TILE],
            gint64 begin[QUERY_BLOCK / QUERY_TILE],
            gint64 end[QUERY_BLOCK / QUERY_TILE])
{
  gint64 n_rows = task->n_heads * task->n_queries, n_tiles = 0;

  for (gint64 i = 0; i < task->n_heads; i++)
    find_rows (self, task->batch, task->head + i, task->query, task->n_queries,
               scratch->queries + i * task->n_queries);
  for (gint64 first = 0; first < n_rows; first += QUERY_TILE, n_tiles++)
    {
      tiles[n_tiles] = (Tile){ .batch = task->batch, .rows = scratch->queries + first, .first = first };
      tiles[n_tiles].n_rows = MIN (QUERY_TILE, n_rows - first);
      tiles[n_tiles].is_group = task->n_heads > 1;
      find_blocks (tiles[n_tiles].rows, tiles[n_tiles].n_rows, &begin[n_tiles], &end[n_tiles]);
    }
  return n_tiles;
}

static void
attend_task (const Attention *self,
             Scratch *scratch,
             const Task *task)
{
  gint64 key_head = task->head / (self->n_heads / self->n_key_heads);
  gint64 begin[QUERY_BLOCK / QUERY_TILE], end[QUERY_BLOCK / QUERY_TILE];
  Tile tiles[QUERY_BLOCK / QUERY_TILE];
  gint64 n_tiles = make_tiles (self, scratch, task, tiles, begin, end), all_begin = G_MAXINT64, all_end = 0;
  gint64 share = share_rows (task->n_heads * task->n_queries);
  gboolean is_few = task->n_heads * task->n_queries <= EBB_VEC_WIDTH;

  for (gint64 i = 0; i < n_tiles; i++)
    if (end[i] > 0)
      {
        all_begin = MIN (all_begin, begin[i]);
        all_end = MAX (all_end, end[i]);
      }
  all_begin = all_end > 0 ? all_begin : 0;
  /* Once where there are no keys: then rows begin and finish alone. */
  for (gint64 key = all_begin; key == all_begin || key < all_end; key += KEY_BLOCK)
    {
      gint64 n_keys = MIN (KEY_BLOCK, self->n_keys - key), next = key + KEY_BLOCK;

      Block keys = { NULL, 0 }, values = { NULL, 0 };

      if (all_end > 0)
        {
          if (is_few)
            keys = find_keys (self, scratch, task->batch, key_head, key, n_keys);
          else
            {
              pack_rows (self, self->k, task->batch, key_head, key, n_keys, scratch->rows);
              transpose (self, scratch->rows, n_keys, scratch->k);
            }
          values = find_values (self, scratch, task->batch, key_head, key, n_keys, is_few);
        }
      for (gint64 i = 0; i < n_tiles; i++, next += share)
        {
          Tile *tile = &tiles[i];
          const Row *row = &tile->rows[0];
          gboolean is_last = key == MAX ((end[i] - 1) / KEY_BLOCK * KEY_BLOCK, all_begin);

          tile->key = key;
          tile->n_keys = n_keys;
          tile->n_keys = count_keys (tile, tile->n_rows - 1);
          if (key == all_begin)
            {
              begin_rows (self, scratch, tile);
              if (is_few)
                turn_queries (self, scratch, tile->n_rows);
              prefetch_rows (self->q, tile->batch, row->head, row->query + QUERY_TILE, QUERY_TILE, FALSE);
            }
          if (next < all_end)
            {
              prefetch_rows (self->k, task->batch, key_head, next, share, FALSE);
              prefetch_rows (self->v, task->batch, key_head, next, share, FALSE);
            }
          if (is_last)
            prefetch_rows (self->launch->outputs[0], tile->batch, row->head, row->query, tile->n_rows, TRUE);
          if (key >= begin[i] && key < end[i])
            attend_tile (self, scratch, tile, is_few ? &keys : NULL, &values);
          if (is_last)
            finish_rows (self, scratch, tile);
        }
    }
}

/* How a call is cut into tasks. No result depends on it. */
typedef struct
{
  gint64 n_heads;   /* of a task */
  gint64 n_queries; /* of a task and head */
  gint64 n_blocks;  /* of queries */
  gint64 n_tasks;
} Division;

/* Few queries: a task takes several heads that share keys, if enough tasks are left for all threads. Many: fewer
 * queries than a whole block where there would be too few tasks. */
static Division
divide (const Attention *self)
{
  gint64 n_heads = self->n_batches * self->n_heads, n_shared = self->n_heads / MAX (self->n_key_heads, 1);
  Division d = { .n_heads = 1, .n_queries = QUERY_BLOCK };

  for (gint64 n = 2; n <= n_shared && n * self->n_queries <= QUERY_TILE; n++)
    if (n_shared % n == 0 && n_heads / n >= ebb_cpu_get_n_threads ())
      d.n_heads = n;
  while (d.n_queries > QUERY_TILE
         && n_heads * ((self->n_queries + d.n_queries - 1) / d.n_queries) < 2 * ebb_cpu_get_n_threads ())
    d.n_queries /= 2;
  d.n_blocks = (self->n_queries + d.n_queries - 1) / d.n_queries;
  d.n_tasks = n_heads / d.n_heads * d.n_blocks;
  return d;
}

static void
init (Attention *self,
      const EbbLaunch *launch)
{
  const EbbView *inputs[5];

  for (guint i = 0; i < 5; i++)
    inputs[i] = ebb_launch_get_input (launch, i);
  attention_init (self, launch, inputs);
}

EBB_SIMD_WORKSPACE (attention)
{
  Attention self;
  Scratch sizes;
  Division division;

  init (&self, launch);
  division = divide (&self);
  if (division.n_tasks == 0)
    return 0;
  return round_up (scratch_init (&sizes, NULL, &self), 16) * sizeof (float)
         * (gsize) attention_count_threads (&self, division.n_tasks, TRUE);
}

EBB_SIMD_KERNEL (attention)
{
  Attention self;
  Scratch sizes;
  Division division;
  gsize size;
  float *memory = launch->workspace;
  int n_threads;

  init (&self, launch);
  division = divide (&self);
  if (division.n_tasks == 0)
    return TRUE;
  n_threads = attention_count_threads (&self, division.n_tasks, FALSE);
  size = round_up (scratch_init (&sizes, NULL, &self), 16);
  g_assert (size * (gsize) n_threads * sizeof (float) <= launch->workspace_size);
#pragma omp parallel num_threads(n_threads)
  {
    gint64 n_heads = self.n_heads / division.n_heads, n_all = self.n_batches * n_heads;
    Scratch scratch;

    scratch_init (&scratch, memory + omp_get_thread_num () * size, &self);
#pragma omp for schedule(dynamic, 1)
    for (gint64 i = 0; i < division.n_tasks; i++)
      {
        /* The last queries of a causal head have the most keys: they come first. */
        gint64 query = (division.n_blocks - 1 - i / n_all) * division.n_queries, head = i % n_all;
        Task task = { .batch = head / n_heads, .head = head % n_heads * division.n_heads, .query = query };

        task.n_heads = division.n_heads;
        task.n_queries = MIN (division.n_queries, self.n_queries - query);
        attend_task (&self, &scratch, &task);
      }
  }
  return TRUE;
}
