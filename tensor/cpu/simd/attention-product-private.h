/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

/* Products of the blocks of attention. Both operands are made of units of 32 bits: an f32, or, where the processor
 * multiplies bf16, a pair of them that are neighbours in the inner dimension. The unit is the only difference between
 * the two apart; sums are f32. */

typedef guint32 Unit __attribute__ ((may_alias));

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

/* Of a causal tile, what a row of c has no use for is left out, by whole register tiles. Query r of the tile sees the
 * keys up to r + offset. */
typedef enum
{
  PRODUCT_WHOLE,
  PRODUCT_OF_KEYS_SEEN,   /* rows of c are queries, columns are keys */
  PRODUCT_OVER_KEYS_SEEN, /* rows of c are queries, the inner dimension runs over keys */
  PRODUCT_OVER_QUERIES    /* rows of c are keys, the inner dimension runs over the queries that see them */
} ProductPart;

typedef struct
{
  const Unit *a; /* element (r, i) at a[r * a_row + i * a_inner] */
  gint64 a_row, a_inner;
  const Unit *b; /* row-major, rows b_row apart */
  gint64 b_row;
  float *c;
  gint64 c_row;
  const float *scale; /* of each row of c */
  gint64 inner;       /* units */
  ProductMode mode;
  ProductPart part;
  gint64 offset;
} Product;

/* sum + x y: of f32, or of the two products of each pair */
EBB_VEC_INLINE EbbVec
multiply_add (gboolean is_pairs,
              EbbVecU x,
              EbbVecU y,
              EbbVec sum)
{
  if (is_pairs)
    return vec_dot_bf16_pairs (x, y, sum);
  return vec_fma ((EbbVec) x, (EbbVec) y, sum);
}

/* The units [begin, end) of the inner dimension that rows [row, row + n_rows) of c have a use for. */
static inline void
find_inner (gboolean is_pairs,
            const Product *p,
            gint64 row,
            gint64 n_rows,
            gint64 *begin,
            gint64 *end)
{
  *begin = 0;
  *end = p->inner;
  if (p->part == PRODUCT_OVER_KEYS_SEEN)
    *end = is_pairs ? (row + n_rows + p->offset + 1) / 2 : row + n_rows + p->offset;
  else if (p->part == PRODUCT_OVER_QUERIES)
    *begin = is_pairs ? (row - p->offset) / 2 : row - p->offset;
  *begin = MAX (*begin, 0);
  *end = MIN (*end, p->inner);
}

EBB_VEC_INLINE void
product_tile (gboolean is_pairs,
              const Product *p,
              gint64 row,
              gint64 column,
              int rows,
              int vecs)
{
  EbbVec sums[PRODUCT_ROWS][PRODUCT_VECS];
  const Unit *a = p->a + row * p->a_row, *b = p->b + column;
  gint64 a_row = p->a_row, a_inner = p->a_inner, b_row = p->b_row, begin, end;
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
  find_inner (is_pairs, p, row, rows, &begin, &end);
  a += begin * a_inner;
  b += begin * b_row;
  for (gint64 i = begin; i < end; i++)
    {
      EbbVecU y[PRODUCT_VECS];

#pragma GCC unroll 8
      for (int v = 0; v < vecs; v++)
        y[v] = *(const EbbVecUUnaligned *) (b + v * EBB_VEC_WIDTH);
#pragma GCC unroll 8
      for (int r = 0; r < rows; r++)
        {
          EbbVecU x = a[r * a_row] - (EbbVecU){ 0 };

#pragma GCC unroll 8
          for (int v = 0; v < vecs; v++)
            sums[r][v] = multiply_add (is_pairs, x, y[v], sums[r][v]);
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
product_rows (gboolean is_pairs,
              const Product *p,
              gint64 row,
              int rows,
              gint64 n_columns)
{
  gint64 column = 0;

  if (p->part == PRODUCT_OF_KEYS_SEEN)
    n_columns = MIN (n_columns, row + rows + p->offset);
  for (; column + (PRODUCT_VECS - 1) * EBB_VEC_WIDTH < n_columns; column += PRODUCT_VECS * EBB_VEC_WIDTH)
    product_tile (is_pairs, p, row, column, rows, PRODUCT_VECS);
  switch ((n_columns - column + EBB_VEC_WIDTH - 1) / EBB_VEC_WIDTH)
    {
#if PRODUCT_VECS > 2
    case 3: product_tile (is_pairs, p, row, column, rows, 3); break;
    case 2: product_tile (is_pairs, p, row, column, rows, 2); break;
#endif
    case 1: product_tile (is_pairs, p, row, column, rows, 1); break;
    default: break;
    }
}

EBB_VEC_INLINE void
product_run_as (gboolean is_pairs,
                const Product *p,
                gint64 n_rows,
                gint64 n_columns)
{
  gint64 row = 0;

  for (; row + PRODUCT_ROWS <= n_rows; row += PRODUCT_ROWS)
    product_rows (is_pairs, p, row, PRODUCT_ROWS, n_columns);
  switch (n_rows - row)
    {
#if PRODUCT_ROWS > 4
    case 5: product_rows (is_pairs, p, row, 5, n_columns); break;
    case 4: product_rows (is_pairs, p, row, 4, n_columns); break;
#endif
    case 3: product_rows (is_pairs, p, row, 3, n_columns); break;
    case 2: product_rows (is_pairs, p, row, 2, n_columns); break;
    case 1: product_rows (is_pairs, p, row, 1, n_columns); break;
    default: break;
    }
}

static void
product_run_f32 (const Product *p,
                 gint64 n_rows,
                 gint64 n_columns)
{
  product_run_as (FALSE, p, n_rows, n_columns);
}

static void
product_run_pairs (const Product *p,
                   gint64 n_rows,
                   gint64 n_columns)
{
  product_run_as (TRUE, p, n_rows, n_columns);
}

/* Each row's sum runs over inner in order, however rows and columns are tiled. c has room for whole vectors. */
static inline void
product_run (gboolean is_pairs,
             const Product *p,
             gint64 n_rows,
             gint64 n_columns)
{
  if (EBB_VEC_BF16_PAIRS && is_pairs)
    product_run_pairs (p, n_rows, n_columns);
  else
    product_run_f32 (p, n_rows, n_columns);
}
