/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/attention-product-private.h"
#include "tensor/cpu/simd/philox-private.h"
#include "tensor/cpu/simd/simd-private.h"

/* Shared by the two directions of attention: block sizes, packing operands, masks and dropout. Scores exist for one
 * tile of queries x keys at a time (Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022). With bf16 and a processor that
 * multiplies it, operands are pairs of bf16, probabilities and gradients of scores among them, as in FlashAttention;
 * else they are f32. Scores, sums and results under way are f32 in any case. */

#define KEY_BLOCK 64  /* keys that are packed at once; a multiple of any vector width */
#define QUERY_TILE 64 /* rows of a tile of scores; even */

typedef struct
{
  const EbbLaunch *launch;
  const EbbView *q, *k, *v, *mask, *starts;
  gint64 n_batches, n_heads, n_key_heads, n_queries, n_keys, width;
  gint64 padded_width; /* a multiple of the vector width */
  gboolean is_pairs;   /* what units of operands are: pairs of bf16 or f32 */
  gint64 row_units;    /* of a packed row, padded */
  float scale;
  float unit_scale; /* scale in units of log (2): probabilities are powers of 2 */
  gboolean causal;
  gint64 first_query, window; /* window: G_MAXINT64 without */
  float softcap;              /* 0 without */
  double p;
  float keep_scale; /* 1 / (1 - p) */
  guint64 threshold;
  EbbPhilox philox;
} Attention;

/* A row of scores: one query of one head, and the keys [begin, end) that it sees, mask aside. */
typedef struct
{
  gint64 head, query, begin, end;
} Row;

/* Queries against keys [key, key + n_keys). The rows are those of one head, or, if is_group, of several that share
 * keys; first: where they stand among those that are packed. */
typedef struct
{
  gint64 batch;
  const Row *rows;
  gint64 n_rows, key, n_keys, first;
  gboolean is_group;
} Tile;

static inline gint64
round_up (gint64 n,
          gint64 unit)
{
  return (n + unit - 1) / unit * unit;
}

/* -- which keys a query sees --------------------------------------------------------------------------------------- */

static inline gint64
load_start (const Attention *self,
            gint64 batch,
            gint64 query)
{
  const EbbView *starts = self->starts;
  gint64 at = batch * starts->strides[0] + query * starts->strides[1];

  return starts->dtype == EBB_DTYPE_I64 ? ((const gint64 *) starts->data)[at] : ((const gint32 *) starts->data)[at];
}

/* Queries [query, query + n) of a head become rows. A row that sees nothing begins where it ends. */
static inline void
find_rows (const Attention *self,
           gint64 batch,
           gint64 head,
           gint64 query,
           gint64 n,
           Row *rows)
{
  for (gint64 i = 0; i < n; i++)
    {
      gint64 position = self->first_query + query + i;
      gint64 begin = MAX (position - self->window, -1) + 1;
      gint64 end = self->causal ? MIN (position + 1, self->n_keys) : self->n_keys;

      if (self->starts)
        {
          gint64 start = load_start (self, batch, query + i);

          begin = start > position ? end : MAX (begin, start);
        }
      rows[i] = (Row){ head, query + i, MIN (begin, end), end };
    }
}

/* The keys [begin, end) that some of the rows see, by whole blocks but the last. None: both are 0. */
static inline void
find_blocks (const Row *rows,
             gint64 n_rows,
             gint64 *begin,
             gint64 *end)
{
  gint64 first = G_MAXINT64, last = 0;

  for (gint64 i = 0; i < n_rows; i++)
    if (rows[i].begin < rows[i].end)
      {
        first = MIN (first, rows[i].begin);
        last = MAX (last, rows[i].end);
      }
  *begin = last > 0 ? first / KEY_BLOCK * KEY_BLOCK : 0;
  *end = last;
}

/* How many scores of a head there are; without windows and starts those that causality hides count too. */
static double
count_scores (const Attention *self)
{
  double n = 0;

  if (self->window == G_MAXINT64 && !self->starts)
    return (double) self->n_batches * (double) self->n_queries * (double) self->n_keys;
  for (gint64 batch = 0; batch < self->n_batches; batch++)
    for (gint64 query = 0; query < self->n_queries; query++)
      {
        Row row;

        find_rows (self, batch, 0, query, 1, &row);
        n += (double) (row.end - row.begin);
      }
  return n;
}

/* The same, or more where starts, which are data, would say. */
static double
count_most_scores (const Attention *self)
{
  Attention without = *self;

  without.starts = NULL;
  return count_scores (&without);
}

/* Threads for n_tasks tasks that share the work of all heads. A probability costs as much as 16 multiply-adds.
 * @most: as many as there can be, whatever starts say. */
static inline int
attention_count_threads (const Attention *self,
                         gint64 n_tasks,
                         gboolean most)
{
  double n_scores = (most ? count_most_scores (self) : count_scores (self)) * (double) self->n_heads;
  double work = MIN (n_scores * (double) (2 * self->width + 16), 1e15);

  return (int) MIN (n_tasks, ebb_cpu_get_n_parts ((gint64) work, EBB_CPU_PRODUCT_GRAIN));
}

static void
attention_init (Attention *self,
                const EbbLaunch *launch,
                const EbbView *const inputs[5])
{
  const EbbView *q = inputs[0], *k = inputs[1], *v = inputs[2];
  gint64 window = launch->params.attention.window;

  *self = (Attention){ .launch = launch, .q = q, .k = k, .v = v, .mask = inputs[3], .starts = inputs[4] };
  self->n_batches = q->shape[0];
  self->n_heads = q->shape[1];
  self->n_queries = q->shape[2];
  self->width = q->shape[3];
  self->n_key_heads = k->shape[1];
  self->n_keys = k->shape[2];
  self->padded_width = round_up (self->width, EBB_VEC_WIDTH);
  self->is_pairs = EBB_VEC_BF16_PAIRS && q->dtype == EBB_DTYPE_BF16;
  self->row_units = self->is_pairs ? self->padded_width / 2 : self->padded_width;
  self->scale = (float) launch->params.attention.scale;
  self->unit_scale = (float) (launch->params.attention.scale / G_LN2);
  self->causal = launch->params.attention.causal;
  self->first_query = launch->params.attention.first_query;
  self->window = window > 0 ? window : G_MAXINT64;
  self->softcap = (float) launch->params.attention.softcap;
  self->p = launch->params.attention.p;
  self->keep_scale = self->p < 1.0 ? (float) (1.0 / (1.0 - self->p)) : 0.0f;
  self->threshold = ebb_dropout_threshold (self->p);
  self->philox = launch->params.attention.philox;
}

/* -- packing ------------------------------------------------------------------------------------------------------- */

static inline const void *
view_at (const EbbView *view,
         gint64 batch,
         gint64 head,
         gint64 row)
{
  gint64 index = batch * view->strides[0] + head * view->strides[1] + row * view->strides[2];

  return (const char *) view->data + index * (view->dtype == EBB_DTYPE_BF16 ? 2 : 4);
}

/* Units of n elements along the inner dimension of a product. */
static inline gint64
count_units (const Attention *self,
             gint64 n)
{
  return self->is_pairs ? (n + 1) / 2 : n;
}

EBB_VEC_INLINE void
pack_row_f32 (EbbDType dtype,
              const void *row,
              gint64 width,
              float *packed)
{
  gint64 i = 0;

  for (; i + EBB_VEC_WIDTH <= width; i += EBB_VEC_WIDTH)
    vec_store (packed + i, vec_load_as (dtype, row, i, EBB_VEC_WIDTH));
  if (i < width)
    vec_store (packed + i, vec_load_as (dtype, row, i, width - i));
}

static void
pack_row_bf16 (const guint16 *row,
               gint64 width,
               gint64 padded_width,
               guint16 *packed)
{
  gint64 i = 0;

  for (; i + EBB_VEC_WIDTH <= width; i += EBB_VEC_WIDTH)
    *(EbbVecHUnaligned *) (packed + i) = *(const EbbVecHUnaligned *) (row + i);
  for (; i < padded_width; i++)
    packed[i] = i < width ? row[i] : 0;
}

/* Rows [row, row + n_rows) of a head, as far as there are any, will be packed or, if is_output, stored soon. They lie
 * far apart where heads are slices of a token, so that the processor does not foresee them. */
static void
prefetch_rows (const EbbView *view,
               gint64 batch,
               gint64 head,
               gint64 row,
               gint64 n_rows,
               gboolean is_output)
{
  gint64 size = view->shape[3] * (view->dtype == EBB_DTYPE_BF16 ? 2 : 4);

  for (gint64 end = MIN (row + n_rows, view->shape[2]); row < end; row++)
    {
      const char *at = view_at (view, batch, head, row);

      for (gint64 i = 0; i < size; i += 64)
        if (is_output)
          __builtin_prefetch (at + i, 1);
        else
          __builtin_prefetch (at + i, 0);
    }
}

/* How many rows of the next keys to prefetch with each tile of queries. */
static inline gint64
share_rows (gint64 n_queries)
{
  gint64 n_tiles = (n_queries + QUERY_TILE - 1) / QUERY_TILE;

  return (KEY_BLOCK + n_tiles - 1) / MAX (n_tiles, 1);
}

static inline void
pack_row (const Attention *self,
          const EbbView *view,
          const void *from,
          Unit *packed)
{
  if (self->is_pairs)
    pack_row_bf16 (from, self->width, self->padded_width, (guint16 *) packed);
  else if (view->dtype == EBB_DTYPE_BF16)
    pack_row_f32 (EBB_DTYPE_BF16, from, self->width, (float *) packed);
  else
    pack_row_f32 (EBB_DTYPE_F32, from, self->width, (float *) packed);
}

/* Rows [row, row + n_rows) of a head as an operand whose inner dimension runs along them. The columns up to the padded
 * width are 0. */
static void
pack_rows (const Attention *self,
           const EbbView *view,
           gint64 batch,
           gint64 head,
           gint64 row,
           gint64 n_rows,
           Unit *packed)
{
  for (gint64 r = 0; r < n_rows; r++, packed += self->row_units)
    pack_row (self, view, view_at (view, batch, head, row + r), packed);
}

/* The same rows as an operand whose inner dimension runs down them: [count_units (n_rows), padded_width]. */
static void
pack_inner (const Attention *self,
            const EbbView *view,
            gint64 batch,
            gint64 head,
            gint64 row,
            gint64 n_rows,
            Unit *packed)
{
  if (!self->is_pairs)
    {
      pack_rows (self, view, batch, head, row, n_rows, packed);
      return;
    }
  for (gint64 r = 0; r < n_rows; r += 2, packed += self->padded_width)
    {
      const void *first = view_at (view, batch, head, row + r), *second = view_at (view, batch, head, row + r + 1);

      EBB_VEC_FOR (i, m, self->width)
        {
          EbbVecU low = (EbbVecU) vec_load_as (EBB_DTYPE_BF16, first, i, m) >> 16;

          if (r + 1 < n_rows)
            low |= (EbbVecU) vec_load_as (EBB_DTYPE_BF16, second, i, m);
          *(EbbVecUUnaligned *) (packed + i) = low;
        }
    }
}

/* A packed row of results, times factor, to the view. */
static inline void
unpack_row (const float *packed,
            float factor,
            EbbView *view,
            gint64 batch,
            gint64 head,
            gint64 row)
{
  void *to = (void *) view_at (view, batch, head, row);

  EBB_VEC_FOR (i, m, view->shape[3])
    vec_store_as (view->dtype, to, i, m, factor * vec_load (packed + i));
}

typedef guint32 Quad __attribute__ ((vector_size (16), aligned (4), may_alias));

/* Packed rows [n_rows, row_units] to [count_units (width), KEY_BLOCK]; the columns from n_rows on are 0. */
static void
transpose (const Attention *self,
           const Unit *packed,
           gint64 n_rows,
           Unit *transposed)
{
  gint64 row_units = self->row_units, n_units = count_units (self, self->width);

  for (gint64 r = 0; r < KEY_BLOCK; r += 4)
    for (gint64 c = 0; c < n_units; c += 4)
      {
        Quad x[4];
        Unit *to = transposed + c * KEY_BLOCK + r;

        for (int i = 0; i < 4; i++)
          x[i] = r + i < n_rows ? *(const Quad *) (packed + (r + i) * row_units + c) : (Quad){ 0 };
        Quad a = __builtin_shufflevector (x[0], x[1], 0, 4, 1, 5);
        Quad b = __builtin_shufflevector (x[0], x[1], 2, 6, 3, 7);
        Quad d = __builtin_shufflevector (x[2], x[3], 0, 4, 1, 5);
        Quad e = __builtin_shufflevector (x[2], x[3], 2, 6, 3, 7);
        *(Quad *) to = __builtin_shufflevector (a, d, 0, 1, 4, 5);
        *(Quad *) (to + KEY_BLOCK) = __builtin_shufflevector (a, d, 2, 3, 6, 7);
        *(Quad *) (to + 2 * KEY_BLOCK) = __builtin_shufflevector (b, e, 0, 1, 4, 5);
        *(Quad *) (to + 3 * KEY_BLOCK) = __builtin_shufflevector (b, e, 2, 3, 6, 7);
      }
}

/* -- masks and dropout --------------------------------------------------------------------------------------------- */

static inline gint64
mask_stride (const EbbView *mask,
             int dim)
{
  return mask->shape[dim] == 1 ? 0 : mask->strides[dim];
}

/* Loads the numbers that are added to the scores of a row and the tile's keys. */
static void
load_bias (const EbbView *mask,
           const Tile *tile,
           const Row *row,
           float *bias)
{
  gint64 stride = mask_stride (mask, 3);
  gint64 start = tile->batch * mask_stride (mask, 0) + row->head * mask_stride (mask, 1)
                 + row->query * mask_stride (mask, 2) + tile->key * stride;

  switch (mask->dtype)
    {
    case EBB_DTYPE_F32:
      for (gint64 i = 0; i < tile->n_keys; i++)
        bias[i] = ((const float *) mask->data)[start + i * stride];
      break;
    case EBB_DTYPE_BF16:
      for (gint64 i = 0; i < tile->n_keys; i++)
        bias[i] = ebb_bf16_to_float (((const guint16 *) mask->data)[start + i * stride]);
      break;
    default:
      for (gint64 i = 0; i < tile->n_keys; i++)
        bias[i] = ((const guint8 *) mask->data)[start + i * stride] ? 0.0f : -INFINITY;
    }
}

/* Keys of the tile up to the last that its row r sees. */
static inline gint64
count_keys (const Tile *tile,
            gint64 r)
{
  return CLAMP (tile->rows[r].end - tile->key, 0, tile->n_keys);
}

/* Keys of the tile before the first that its row r sees. */
static inline gint64
count_hidden (const Tile *tile,
              gint64 r)
{
  return CLAMP (tile->rows[r].begin - tile->key, 0, tile->n_keys);
}

/* The part of a tile's products that causality leaves. */
static inline ProductPart
choose_part (const Tile *tile,
             ProductPart part)
{
  return !tile->is_group && count_keys (tile, 0) < tile->n_keys ? part : PRODUCT_WHOLE;
}

/* Row r of the tile sees the keys up to r + offset of it, if causal. */
static inline gint64
find_offset (const Attention *self,
             const Tile *tile)
{
  return self->first_query + tile->rows[0].query - tile->key;
}

/* The first n scores of a row become softcap * tanh (scale * score / softcap), as exponents of 2. slopes, unless NULL:
 * the derivatives of that by the scaled scores. */
static void
cap_row (const Attention *self,
         gint64 n,
         float *row,
         float *slopes)
{
  EbbVec inner = vec_set1 (self->scale / self->softcap), outer = vec_set1 (self->softcap * (float) (1.0 / G_LN2));

  for (gint64 i = 0; i < n; i += EBB_VEC_WIDTH)
    {
      EbbVec t = vec_tanh (vec_load (row + i) * inner);

      if (slopes)
        vec_store (slopes + i, 1.0f - t * t);
      vec_store (row + i, t * outer);
    }
}

/* Of the scores [n_rows, KEY_BLOCK] of a tile, those that the mask hides get -inf, as do those of keys before a row's
 * first and, up to the next vector, those after its last. Returns what scores are then to be multiplied by to be
 * exponents of 2. slopes [n_rows, KEY_BLOCK], unless NULL: the derivatives of capped scores. */
static float
mask_scores (const Attention *self,
             const Tile *tile,
             float *scores,
             float *slopes)
{
  float bias[KEY_BLOCK], scale = self->softcap > 0.0f ? 1.0f : self->unit_scale;
  gboolean varies = self->mask && (mask_stride (self->mask, 2) != 0 || tile->is_group);

  if (self->mask && !varies)
    load_bias (self->mask, tile, &tile->rows[0], bias);
  for (gint64 r = 0; r < tile->n_rows; r++)
    {
      gint64 n = count_keys (tile, r), hidden = MIN (count_hidden (tile, r), n), rest = n % EBB_VEC_WIDTH;
      float *row = scores + r * KEY_BLOCK;

      if (self->softcap > 0.0f)
        cap_row (self, n, row, slopes ? slopes + r * KEY_BLOCK : NULL);
      if (varies)
        load_bias (self->mask, tile, &tile->rows[r], bias);
      if (self->mask)
        for (gint64 i = 0; i < n; i++)
          row[i] = row[i] * scale + bias[i] * (float) (1.0 / G_LN2);
      for (gint64 i = 0; i < hidden; i++)
        row[i] = -INFINITY;
      if (rest != 0)
        vec_store (row + n - rest, vec_first (vec_load (row + n - rest), rest, vec_set1 (-INFINITY)));
    }
  return self->mask ? 1.0f : scale;
}

/* Room for the draws of a row of a tile: they are made by whole vectors, from the start of a block on. */
#define DRAWS_SIZE (KEY_BLOCK + 4 + EBB_PHILOX_VECTOR_DRAWS)

/* Draws for the keys up to the last that row r of a tile sees. Returns where they begin in draws; after them comes
 * something that is no draw of that row, but can be read. */
static const guint32 *
draw_row (const Attention *self,
          const Tile *tile,
          gint64 r,
          guint32 draws[DRAWS_SIZE])
{
  const Row *at = &tile->rows[r];
  gint64 row = (tile->batch * self->n_heads + at->head) * self->n_queries + at->query;
  guint64 index = (guint64) row * self->n_keys + tile->key;
  gint64 skip = index % 4, n = skip + count_keys (tile, r);

  for (gint64 i = 0; i < n; i += EBB_PHILOX_VECTOR_DRAWS)
    {
      EbbVecU drawn[4];

      ebb_philox_draw_vector (self->philox.seed, self->philox.offset + index / 4 + i / 4, drawn);
      for (int v = 0; v < 4; v++)
        *(EbbVecUUnaligned *) (draws + i + v * EBB_VEC_WIDTH) = drawn[v];
    }
  return draws + skip;
}

/* keep_scale where a draw is kept, 0 elsewhere */
EBB_VEC_INLINE EbbVec
vec_keep_scale (const Attention *self,
                const guint32 *draws)
{
  EbbVecU draw = *(const EbbVecUUnaligned *) draws;
  EbbVecU threshold = (guint32) MIN (self->threshold, G_MAXUINT32) - (EbbVecU){ 0 };

  return vec_select ((EbbVecI) (draw >= threshold), vec_set1 (self->keep_scale), (EbbVec){ 0 });
}

EBB_VEC_INLINE float
vec_reduce_max (EbbVec v)
{
#if EBB_VEC_AVX512
  return _mm512_reduce_max_ps ((__m512) v);
#else
  float best = v[0];

  for (int k = 1; k < EBB_VEC_WIDTH; k++)
    best = best > v[k] ? best : v[k];
  return best;
#endif
}
