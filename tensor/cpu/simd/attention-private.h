/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/philox-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/vec-private.h"

/* What the two directions of attention share: block sizes, packing into dense f32, the products of blocks, masks and
 * dropout. Scores exist for one tile of queries x keys at a time (Dao, Fu, Ermon, Rudra, Re: FlashAttention, 2022). */

#define KEY_BLOCK 64  /* keys that are packed at once; a multiple of any vector width */
#define QUERY_TILE 32 /* rows of a tile of scores */

/* The accumulators of a product stay in registers: ROWS x VECS of them. */
#if EBB_VEC_AVX512
#define PRODUCT_ROWS 6
#define PRODUCT_VECS 4
#elif EBB_VEC_AVX2
#define PRODUCT_ROWS 6
#define PRODUCT_VECS 2
#else
#define PRODUCT_ROWS 4
#define PRODUCT_VECS 2
#endif

typedef enum
{
  PRODUCT_SET,  /* c = a b */
  PRODUCT_ADD,  /* c = c + a b */
  PRODUCT_SCALE /* c = scale[row] c + a b */
} ProductMode;

typedef struct
{
  const EbbLaunch *launch;
  const EbbView *q, *k, *v, *mask;
  gint64 n_batches, n_heads, n_key_heads, n_queries, n_keys, width;
  gint64 padded_width; /* a multiple of the vector width */
  float scale;
  gboolean causal;
  double p;
  float keep_scale; /* 1 / (1 - p) */
  guint64 threshold;
  EbbPhilox philox;
} Attention;

static inline gint64
round_up (gint64 n,
          gint64 unit)
{
  return (n + unit - 1) / unit * unit;
}

static void
attention_init (Attention *self,
                const EbbLaunch *launch,
                const EbbView *q,
                const EbbView *k,
                const EbbView *v,
                const EbbView *mask)
{
  *self = (Attention){ .launch = launch, .q = q, .k = k, .v = v, .mask = mask };
  self->n_batches = q->shape[0];
  self->n_heads = q->shape[1];
  self->n_queries = q->shape[2];
  self->width = q->shape[3];
  self->n_key_heads = k->shape[1];
  self->n_keys = k->shape[2];
  self->padded_width = round_up (self->width, EBB_VEC_WIDTH);
  self->scale = (float) launch->params.attention.scale;
  self->causal = launch->params.attention.causal;
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

EBB_VEC_INLINE void
pack_rows_as (EbbDType dtype,
              const void *rows,
              gint64 stride,
              gint64 n_rows,
              gint64 width,
              gint64 padded_width,
              float scale,
              float *packed)
{
  gsize size = dtype == EBB_DTYPE_BF16 ? 2 : 4;

  for (gint64 r = 0; r < n_rows; r++)
    EBB_VEC_FOR (i, m, width)
      vec_store (packed + r * padded_width + i,
                 scale * vec_load_as (dtype, (const char *) rows + r * stride * size, i, m));
}

/* Rows [row, row + n_rows) of a head, times scale, as dense f32; the columns up to the padded width are 0. */
static void
pack_rows (const EbbView *view,
           gint64 batch,
           gint64 head,
           gint64 row,
           gint64 n_rows,
           gint64 padded_width,
           float scale,
           float *packed)
{
  const void *rows = view_at (view, batch, head, row);

  if (view->dtype == EBB_DTYPE_BF16)
    pack_rows_as (EBB_DTYPE_BF16, rows, view->strides[2], n_rows, view->shape[3], padded_width, scale, packed);
  else
    pack_rows_as (EBB_DTYPE_F32, rows, view->strides[2], n_rows, view->shape[3], padded_width, scale, packed);
}

/* The reverse: row r of packed, times scales[r] or times scale, to the view. */
static void
unpack_rows (const float *packed,
             gint64 padded_width,
             const float *scales,
             float scale,
             EbbView *view,
             gint64 batch,
             gint64 head,
             gint64 row,
             gint64 n_rows)
{
  for (gint64 r = 0; r < n_rows; r++)
    {
      void *to = (void *) view_at (view, batch, head, row + r);
      float factor = scales ? scales[r] : scale;

      EBB_VEC_FOR (i, m, view->shape[3])
        vec_store_as (view->dtype, to, i, m, factor * vec_load (packed + r * padded_width + i));
    }
}

typedef float Quad __attribute__ ((vector_size (16), aligned (4), may_alias));

/* packed [n_rows, width] to transposed [width, KEY_BLOCK]; the columns from n_rows on are 0. */
static void
transpose (const float *packed,
           gint64 padded_width,
           gint64 n_rows,
           gint64 width,
           float *transposed)
{
  for (gint64 r = 0; r < KEY_BLOCK; r += 4)
    for (gint64 c = 0; c < width; c += 4)
      {
        Quad x[4];
        float *to = transposed + c * KEY_BLOCK + r;

        for (int i = 0; i < 4; i++)
          x[i] = r + i < n_rows ? *(const Quad *) (packed + (r + i) * padded_width + c) : (Quad){ 0 };
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

/* -- products of blocks -------------------------------------------------------------------------------------------- */

typedef struct
{
  const float *a; /* element (r, i) at a[r * a_row + i * a_inner] */
  gint64 a_row, a_inner;
  const float *b; /* row-major, rows b_row apart */
  gint64 b_row;
  float *c;
  gint64 c_row;
  const float *scale; /* of each row of c */
  gint64 inner;
  ProductMode mode;
} Product;

EBB_VEC_INLINE void
product_tile (const Product *p,
              gint64 row,
              gint64 column,
              int rows,
              int vecs)
{
  EbbVec sums[PRODUCT_ROWS][PRODUCT_VECS];
  const float *a = p->a + row * p->a_row, *b = p->b + column;
  gint64 a_row = p->a_row, a_inner = p->a_inner, b_row = p->b_row;
  float *c = p->c + row * p->c_row + column;

  /* Loops over rows and vectors must unroll for the sums to be registers. */
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
    {
      EbbVec factor = vec_set1 (p->mode == PRODUCT_SCALE ? p->scale[row + r] : 1.0f);

#pragma GCC unroll 8
      for (int v = 0; v < vecs; v++)
        if (p->mode == PRODUCT_SET)
          sums[r][v] = (EbbVec){ 0 };
        else
          sums[r][v] = factor * vec_load (c + r * p->c_row + v * EBB_VEC_WIDTH);
    }
  for (gint64 i = 0; i < p->inner; i++)
    {
      EbbVec y[PRODUCT_VECS];

#pragma GCC unroll 8
      for (int v = 0; v < vecs; v++)
        y[v] = vec_load (b + v * EBB_VEC_WIDTH);
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++)
        {
          EbbVec x = vec_set1 (a[r * a_row]);

#pragma GCC unroll 8
          for (int v = 0; v < vecs; v++)
            sums[r][v] = vec_fma (x, y[v], sums[r][v]);
        }
      a += a_inner;
      b += b_row;
    }
#pragma GCC unroll 8
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
    for (int v = 0; v < vecs; v++)
      vec_store (c + r * p->c_row + v * EBB_VEC_WIDTH, sums[r][v]);
}

EBB_VEC_INLINE void
product_columns (const Product *p,
                 gint64 n_rows,
                 gint64 column,
                 int vecs)
{
  gint64 row = 0;

  for (; row + PRODUCT_ROWS <= n_rows; row += PRODUCT_ROWS)
    product_tile (p, row, column, PRODUCT_ROWS, vecs);
  switch (n_rows - row)
    {
#if PRODUCT_ROWS > 4
    case 5: product_tile (p, row, column, 5, vecs); break;
    case 4: product_tile (p, row, column, 4, vecs); break;
#endif
    case 3: product_tile (p, row, column, 3, vecs); break;
    case 2: product_tile (p, row, column, 2, vecs); break;
    case 1: product_tile (p, row, column, 1, vecs); break;
    default: break;
    }
}

/* Each row's sum runs over inner in order, however rows and columns are tiled. c has room for whole vectors. */
static void
product_run (const Product *p,
             gint64 n_rows,
             gint64 n_columns)
{
  gint64 column = 0;

  for (; column + PRODUCT_VECS * EBB_VEC_WIDTH <= round_up (n_columns, EBB_VEC_WIDTH);
       column += PRODUCT_VECS * EBB_VEC_WIDTH)
    product_columns (p, n_rows, column, PRODUCT_VECS);
  if (column >= n_columns)
    return;
  switch ((n_columns - column + EBB_VEC_WIDTH - 1) / EBB_VEC_WIDTH)
    {
#if PRODUCT_VECS > 2
    case 3: product_columns (p, n_rows, column, 3); break;
    case 2: product_columns (p, n_rows, column, 2); break;
#endif
    default: product_columns (p, n_rows, column, 1); break;
    }
}

/* -- masks and dropout --------------------------------------------------------------------------------------------- */

static inline gint64
mask_stride (const EbbView *mask,
             int dim)
{
  return mask->shape[dim] == 1 ? 0 : mask->strides[dim];
}

/* What is added to the scores of query t and keys [first, first + n). */
static void
load_bias (const EbbView *mask,
           gint64 batch,
           gint64 head,
           gint64 query,
           gint64 first,
           gint64 n,
           float *bias)
{
  gint64 stride = mask_stride (mask, 3);
  gint64 start = batch * mask_stride (mask, 0) + head * mask_stride (mask, 1) + query * mask_stride (mask, 2)
                 + first * stride;

  switch (mask->dtype)
    {
    case EBB_DTYPE_F32:
      for (gint64 i = 0; i < n; i++)
        bias[i] = ((const float *) mask->data)[start + i * stride];
      break;
    case EBB_DTYPE_BF16:
      for (gint64 i = 0; i < n; i++)
        bias[i] = ebb_bf16_to_float (((const guint16 *) mask->data)[start + i * stride]);
      break;
    default:
      for (gint64 i = 0; i < n; i++)
        bias[i] = ((const guint8 *) mask->data)[start + i * stride] ? 0.0f : -INFINITY;
    }
}

/* Keys of [first, first + n) that query t may attend to, from the first on. */
static inline gint64
count_keys (const Attention *self,
            gint64 query,
            gint64 first,
            gint64 n)
{
  return self->causal ? CLAMP (query - first + 1, 0, n) : n;
}

/* The scores [n_rows, KEY_BLOCK] of a tile: keys that the mask or causality hides get -inf, as do those from n_keys up
 * to the next vector. */
static void
mask_scores (const Attention *self,
             gint64 batch,
             gint64 head,
             gint64 query,
             gint64 n_rows,
             gint64 first_key,
             gint64 n_keys,
             float *scores)
{
  float bias[KEY_BLOCK];
  gboolean varies = self->mask && mask_stride (self->mask, 2) != 0;

  if (self->mask && !varies)
    load_bias (self->mask, batch, head, 0, first_key, n_keys, bias);
  for (gint64 r = 0; r < n_rows; r++)
    {
      gint64 n = count_keys (self, query + r, first_key, n_keys);
      float *row = scores + r * KEY_BLOCK;

      if (!self->mask && n == round_up (n_keys, EBB_VEC_WIDTH))
        continue;
      if (varies)
        load_bias (self->mask, batch, head, query + r, first_key, n_keys, bias);
      if (self->mask)
        for (gint64 i = 0; i < n; i++)
          row[i] += bias[i];
      for (gint64 i = n / EBB_VEC_WIDTH * EBB_VEC_WIDTH; i < n_keys; i += EBB_VEC_WIDTH)
        vec_store (row + i, vec_first (vec_load (row + i), MAX (n - i, 0), vec_set1 (-INFINITY)));
    }
}

/* Draws of the elements [first, first + n) of a row of probabilities, n <= KEY_BLOCK. Returns where they begin in
 * draws, which has room for KEY_BLOCK + 4 + EBB_VEC_WIDTH. */
static const guint32 *
draw_row (const Attention *self,
          gint64 batch,
          gint64 head,
          gint64 query,
          gint64 first,
          gint64 n,
          guint32 *draws)
{
  guint64 index = (guint64) ((batch * self->n_heads + head) * self->n_queries + query) * self->n_keys + first;
  guint64 skip = index % 4;

  /* From the start of a block on, so that whole vectors of draws can be made. */
  ebb_philox_fill (self->philox.seed, self->philox.offset, index - skip, n + skip, draws);
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
