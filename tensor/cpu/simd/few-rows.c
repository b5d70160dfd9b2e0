/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/backend/quantized-private.h"
#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/vec-private.h"

/* Products of a few rows with a weight whose inner dimension is contiguous, as when text is generated. What they cost
 * is reading the weight: that happens once, from one end to the other, in the dtype that it has. An element of the
 * result is one dot product, summed by lanes in order, so it depends neither on the other rows nor on the number of
 * threads. */

/* Weights of a part of the work that are worth a thread. */
#define GRAIN 65536

/* The sums of a tile stay in registers, beside what they are summed from: rows of x by columns of y. */
#if EBB_VEC_AVX512
#define TILE_ROWS 4
#else
#define TILE_ROWS 3
#endif
#define TILE_COLUMNS 4

/* Vectors that are one line of a cache. */
#define LINE_VECS (64 / (4 * EBB_VEC_WIDTH))

/* How many bytes ahead the weight is fetched, into the second cache: its rows are too short for the processor to
 * foresee them. Measured, 16 to 64 KiB are alike, and up to twice as fast as a plain loop that reads. */
#define AHEAD 32768

/* A weight is read in units of 32 bits: an f32 or two neighbours of bf16. The rows of x have the form that each unit is
 * multiplied with: f32, or for each vector of units its lower halves in f32 and then its upper ones, or, where the
 * processor multiplies pairs, units of bf16. */
typedef guint32 Unit __attribute__ ((may_alias));

typedef struct
{
  const EbbView *weight, *bias;
  EbbView *y;
  const char *x;     /* [n_rows, x_row] bytes */
  gint64 x_row;      /* bytes */
  gint64 n_rows;     /* of x */
  gint64 n_columns;  /* of y */
  gint64 width;      /* elements of a dot product */
  gint64 weight_row; /* bytes */
  gboolean is_bf16;  /* weight and x */
  gboolean accumulate;
  gint64 first_column;     /* that the weight begins with */
  const EbbLaunch *launch; /* of a quantised weight, whose rows are decoded in turn; NULL: they are there */
  char *decoded;           /* of each thread, @decoded_size bytes */
  gsize decoded_size;
} FewRows;

/* A row of bf16 may begin between two units. */
typedef guint32 WeightUnits __attribute__ ((vector_size (4 * EBB_VEC_WIDTH), aligned (2), may_alias));

/* sum += units of the weight times what stands for them at x; sums of lower and upper halves alternate. */
EBB_VEC_INLINE EbbVec
multiply_add (gboolean is_bf16,
              EbbVecU units,
              const float *x,
              EbbVec sum)
{
  if (!is_bf16)
    return vec_fma ((EbbVec) units, vec_load (x), sum);
  if (EBB_VEC_BF16_PAIRS)
    return vec_dot_bf16_pairs (units, (EbbVecU) vec_load (x), sum);
  sum = vec_fma ((EbbVec) (units << 16), vec_load (x), sum);
  return vec_fma ((EbbVec) (units & 0xffff0000u), vec_load (x + EBB_VEC_WIDTH), sum);
}

/* Floats at x that a vector of units is multiplied with. */
EBB_VEC_INLINE gint64
get_x_step (gboolean is_bf16)
{
  return is_bf16 && !EBB_VEC_BF16_PAIRS ? 2 * EBB_VEC_WIDTH : EBB_VEC_WIDTH;
}

/* At most, for tiles of whole columns. Two forms of each row take twice the registers. */
EBB_VEC_INLINE gint64
get_tile_rows (gboolean is_bf16)
{
  return is_bf16 && !EBB_VEC_AVX512 ? 2 : TILE_ROWS;
}

/* The last units of a row of the weight, less than a vector of them, and 0 behind. */
static EbbVecU
load_tail (const char *row,
           gint64 n_bytes)
{
  Unit units[EBB_VEC_WIDTH] = { 0 };

  memcpy (units, row, (gsize) n_bytes);
  return *(const EbbVecUUnaligned *) units;
}

static inline void
store_element (const FewRows *self,
               gint64 row,
               gint64 column,
               float value)
{
  const EbbView *bias = self->bias, *y = self->y;
  gint64 at = row * y->strides[0] + column;

  if (bias && bias->dtype == EBB_DTYPE_BF16)
    value += ebb_bf16_to_float (((const guint16 *) bias->data)[column * bias->strides[0]]);
  else if (bias)
    value += ((const float *) bias->data)[column * bias->strides[0]];
  if (y->dtype == EBB_DTYPE_BF16)
    {
      guint16 *to = (guint16 *) y->data + at;

      *to = ebb_bf16_from_float (self->accumulate ? value + ebb_bf16_to_float (*to) : value);
    }
  else
    {
      float *to = (float *) y->data + at;

      *to = self->accumulate ? value + *to : value;
    }
}

/* Rows [row, row + rows) of y at columns [column, column + columns). The weight of later columns is fetched meanwhile.
 */
EBB_VEC_INLINE void
multiply_tile (gboolean is_bf16,
               const FewRows *self,
               gint64 row,
               int rows,
               gint64 column,
               int columns)
{
  gint64 step = get_x_step (is_bf16), n_bytes = self->width * (is_bf16 ? 2 : 4), x_row = self->x_row / 4;
  gint64 n_vecs = n_bytes / (4 * EBB_VEC_WIDTH), stride = self->weight_row;
  const char *weight = (const char *) self->weight->data + (column - self->first_column) * stride;
  const float *x = (const float *) (self->x + row * self->x_row);
  EbbVec sums[TILE_ROWS][TILE_COLUMNS];

#pragma GCC unroll 4
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++)
      sums[r][c] = (EbbVec){ 0 };
  for (gint64 i = 0; i < n_vecs; i++, x += step)
    {
#pragma GCC unroll 4
      for (int c = 0; c < columns; c++)
        {
          const char *at = weight + c * stride + i * 4 * EBB_VEC_WIDTH;
          EbbVecU units = *(const WeightUnits *) at;

          if (row == 0 && self->launch == NULL && i % LINE_VECS == 0)
            __builtin_prefetch (at + AHEAD, 0, 2);
#pragma GCC unroll 4
          for (int r = 0; r < rows; r++)
            sums[r][c] = multiply_add (is_bf16, units, x + r * x_row, sums[r][c]);
        }
    }
  if (n_bytes % (4 * EBB_VEC_WIDTH) != 0)
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++)
      {
        gint64 done = n_vecs * 4 * EBB_VEC_WIDTH;
        EbbVecU units = load_tail (weight + c * stride + done, n_bytes - done);

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
          sums[r][c] = multiply_add (is_bf16, units, x + r * x_row, sums[r][c]);
      }
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++)
      store_element (self, row + r, column + c, vec_sum (sums[r][c]));
}

EBB_VEC_INLINE void
multiply_rows (gboolean is_bf16,
               const FewRows *self,
               gint64 row,
               int rows,
               gint64 column,
               gint64 columns)
{
  switch (columns)
    {
    case 1: multiply_tile (is_bf16, self, row, rows, column, 1); break;
    case 2: multiply_tile (is_bf16, self, row, rows, column, 2); break;
    case 3: multiply_tile (is_bf16, self, row, rows, column, 3); break;
    default: multiply_tile (is_bf16, self, row, rows, column, 4);
    }
}

/* All rows against one tile of columns after the other, in groups of about equal size. */
EBB_VEC_INLINE void
multiply_columns (gboolean is_bf16,
                  const FewRows *self,
                  gint64 begin,
                  gint64 end)
{
  gint64 most = get_tile_rows (is_bf16), n_groups = (self->n_rows + most - 1) / most;
  gint64 step = (self->n_rows + n_groups - 1) / n_groups;

  for (gint64 column = begin; column < end; column += TILE_COLUMNS)
    for (gint64 row = 0; row < self->n_rows; row += step)
      {
        gint64 n = MIN (TILE_COLUMNS, end - column);

        switch (MIN (step, self->n_rows - row))
          {
          case 1: multiply_rows (is_bf16, self, row, 1, column, n); break;
          case 2: multiply_rows (is_bf16, self, row, 2, column, n); break;
#if TILE_ROWS > 3
          case 4: multiply_rows (is_bf16, self, row, 4, column, n); break;
#endif
          default: multiply_rows (is_bf16, self, row, 3, column, n);
          }
      }
}

static void
multiply_range (gint64 begin,
                gint64 end,
                void *data)
{
  const FewRows *self = data;

  if (self->is_bf16)
    multiply_columns (TRUE, self, begin, end);
  else
    multiply_columns (FALSE, self, begin, end);
}

/* A row of x in the form that units are multiplied with, 0 behind its end. */
static void
pack_x (const EbbView *x,
        gint64 row,
        gint64 width,
        gint64 n_vecs,
        float *packed)
{
  if (x->dtype == EBB_DTYPE_F32 || EBB_VEC_BF16_PAIRS)
    {
      gsize size = ebb_dtype_get_size (x->dtype);

      memset (packed, 0, (gsize) n_vecs * 4 * EBB_VEC_WIDTH);
      memcpy (packed, (const char *) x->data + (gsize) (row * x->strides[0]) * size, (gsize) width * size);
      return;
    }
  for (gint64 i = 0; i < n_vecs * EBB_VEC_WIDTH; i++)
    for (gint64 half = 0; half < 2; half++)
      {
        const guint16 *from = (const guint16 *) x->data + row * x->strides[0];
        gint64 to = i / EBB_VEC_WIDTH * 2 * EBB_VEC_WIDTH + half * EBB_VEC_WIDTH + i % EBB_VEC_WIDTH;

        packed[to] = 2 * i + half < width ? ebb_bf16_to_float (from[2 * i + half]) : 0.0f;
      }
}

static gint64
count_vecs (const EbbView *x)
{
  return (x->shape[1] * (x->dtype == EBB_DTYPE_BF16 ? 2 : 4) + 4 * EBB_VEC_WIDTH - 1) / (4 * EBB_VEC_WIDTH);
}

static gsize
get_packed_size (const EbbView *x)
{
  return (gsize) (x->shape[0] * count_vecs (x) * get_x_step (x->dtype == EBB_DTYPE_BF16) * 4);
}

EBB_SIMD_WORKSPACE (matmul)
{
  return get_packed_size (launch->inputs[0]);
}

/* Packs x at the beginning of the workspace. */
static void
few_rows_init (FewRows *self,
               const EbbLaunch *launch,
               const EbbView *x)
{
  const gint64 n_vecs = count_vecs (x);
  float *packed = launch->workspace;

  self->y = launch->outputs[0];
  self->n_rows = x->shape[0];
  self->width = x->shape[1];
  self->n_columns = self->y->shape[1];
  self->is_bf16 = x->dtype == EBB_DTYPE_BF16;
  self->x_row = n_vecs * get_x_step (self->is_bf16) * 4;
  for (gint64 row = 0; row < self->n_rows; row++)
    pack_x (x, row, self->width, n_vecs, packed + row * self->x_row / 4);
  self->x = (const char *) packed;
}

/* The kernel of products, for a [M, K] and b [K, N] with strides (.., 1) and (1, ..) and c [M, N] alone. */
EBB_SIMD_KERNEL (matmul)
{
  FewRows self = { .weight = launch->inputs[1], .bias = ebb_launch_get_input (launch, 2) };

  few_rows_init (&self, launch, launch->inputs[0]);
  self.weight_row = self.weight->strides[1] * (self.is_bf16 ? 2 : 4);
  self.accumulate = launch->params.matmul.accumulate;
  ebb_cpu_parallel_for_units (self.n_columns, TILE_COLUMNS, MAX (GRAIN / self.width, 1),
                              multiply_range, &self);
  return TRUE;
}

/* -- quantised weights --------------------------------------------------------------------------------------------- */

/* Operands of EBB_KERNEL_DEQUANTIZE, after the weight's. */
#define INPUT_X 5
#define INPUT_BIAS 6

#define DECODE_ROWS EBB_SIMD_NAME (ebb_cpu_decode_rows)

static gsize
get_decoded_size (const EbbView *x)
{
  return ebb_workspace_round ((gsize) (TILE_COLUMNS * x->shape[1]) * ebb_dtype_get_size (x->dtype));
}

/* What vec_to_bf16 () and back gives. */
EBB_VEC_INLINE EbbVec
round_to_bf16 (EbbVec v)
{
  const EbbVecU bits = (EbbVecU) v, rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const EbbVecI is_nan = v != v;

  return (EbbVec) ((EbbVecU) vec_select (is_nan, (EbbVec) (bits | 0x400000), (EbbVec) rounded) & 0xffff0000u);
}

/* Rows of x in bf16 by rows of the weight in nf4 that are whole blocks: numbers go from codes to the products in
 * registers, a byte's two where the halves of a unit would be, so that sums have the same order. */
EBB_VEC_INLINE void
multiply_codes (const FewRows *self,
                int rows,
                gint64 column,
                int columns)
{
  static const float table[16] = EBB_NF4_CODES;
  const EbbView *const *weight = self->launch->inputs;
  const guint8 *codes = weight[0]->data, *scales = weight[1]->data;
  const float *nested = weight[2]->data, *map = weight[3]->data, offset = *(const float *) weight[4]->data;
  const int group_bits = __builtin_ctzll ((guint64) EBB_NF4_GROUP (weight[2]));
  const gint64 n_blocks = self->width / EBB_NF4_BLOCK, first = column * n_blocks, x_row = self->x_row / 4;
  const float *x = (const float *) self->x;
  EbbVec sums[2][2];

#pragma GCC unroll 2
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int c = 0; c < columns; c++)
      sums[r][c] = (EbbVec){ 0 };
  for (gint64 b = 0; b < n_blocks; b++)
    {
      EbbVec scale[2];

#pragma GCC unroll 2
      for (int c = 0; c < columns; c++)
        {
          const gint64 block = first + c * n_blocks + b;
          const float product = map[scales[block]] * nested[block >> group_bits];

          scale[c] = vec_set1 (product + offset);
        }
      for (gint64 k = 0; k < EBB_NF4_BLOCK / 2; k += EBB_VEC_WIDTH, x += 2 * EBB_VEC_WIDTH)
#pragma GCC unroll 2
        for (int c = 0; c < columns; c++)
          {
            const gint64 block = first + c * n_blocks + b;
            const EbbVecU both = vec_load_u8 (codes + block * EBB_NF4_BLOCK / 2 + k, EBB_VEC_WIDTH);
            const EbbVec even = round_to_bf16 (vec_lookup16 (table, (EbbVecI) (both >> 4)) * scale[c]);
            const EbbVec odd = round_to_bf16 (vec_lookup16 (table, (EbbVecI) (both & 15)) * scale[c]);

#pragma GCC unroll 2
            for (int r = 0; r < rows; r++)
              {
                sums[r][c] = vec_fma (even, vec_load (x + r * x_row), sums[r][c]);
                sums[r][c] = vec_fma (odd, vec_load (x + r * x_row + EBB_VEC_WIDTH), sums[r][c]);
              }
          }
    }
#pragma GCC unroll 2
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
    for (int c = 0; c < columns; c++)
      store_element (self, r, column + c, vec_sum (sums[r][c]));
}

static gboolean
can_multiply_codes (const FewRows *self)
{
  return self->is_bf16 && !EBB_VEC_BF16_PAIRS && self->n_rows <= 2 && self->width % EBB_NF4_BLOCK == 0
         && self->launch->inputs[1]->dtype == EBB_DTYPE_U8;
}

static void
multiply_codes_range (const FewRows *self,
                      gint64 begin,
                      gint64 end)
{
  gint64 column = begin;

  for (; column + 1 < end; column += 2)
    if (self->n_rows == 1)
      multiply_codes (self, 1, column, 2);
    else
      multiply_codes (self, 2, column, 2);
  if (column < end && self->n_rows == 1)
    multiply_codes (self, 1, column, 1);
  else if (column < end)
    multiply_codes (self, 2, column, 1);
}

/* Rows of the weight are decoded into the nearest cache and multiplied there: memory gives the codes alone, once. */
static void
decode_and_multiply (gint64 begin,
                     gint64 end,
                     void *data)
{
  FewRows self = *(const FewRows *) data;
  EbbView decoded = { .data = self.decoded + (gsize) omp_get_thread_num () * self.decoded_size,
                      .dtype = self.is_bf16 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32,
                      .n_dims = 2,
                      .shape = { 0, self.width },
                      .strides = { self.width, 1 } };
  EbbLaunch decoding = *self.launch;

  if (can_multiply_codes (&self))
    {
      multiply_codes_range (&self, begin, end);
      return;
    }
  decoding.n_inputs = INPUT_X;
  decoding.outputs[0] = &decoded;
  self.weight = &decoded;
  for (gint64 column = begin; column < end; column += TILE_COLUMNS)
    {
      decoding.params.dequantize.row = self.first_column = column;
      decoded.shape[0] = MIN (TILE_COLUMNS, end - column);
      DECODE_ROWS (&decoding);
      multiply_range (column, column + decoded.shape[0], &self);
    }
}

EBB_SIMD_WORKSPACE (dequantize)
{
  const EbbView *x = ebb_launch_get_input (launch, INPUT_X);

  return x == NULL ? 0
                   : ebb_workspace_round (get_packed_size (x))
                         + (gsize) ebb_cpu_get_n_threads () * get_decoded_size (x);
}

static void
multiply_with_codes (const EbbLaunch *launch)
{
  const EbbView *x = launch->inputs[INPUT_X];
  FewRows self = { .bias = launch->inputs[INPUT_BIAS], .launch = launch };

  few_rows_init (&self, launch, x);
  self.decoded = (char *) launch->workspace + ebb_workspace_round (get_packed_size (x));
  self.decoded_size = get_decoded_size (x);
  self.weight_row = self.width * (self.is_bf16 ? 2 : 4);
  ebb_cpu_parallel_for_units (self.n_columns, TILE_COLUMNS, MAX (GRAIN / self.width, 1), decode_and_multiply, &self);
}

/* The weight, or its product with a few rows, where there are any. */
EBB_SIMD_KERNEL (dequantize)
{
  if (launch->n_inputs > INPUT_X)
    multiply_with_codes (launch);
  else
    DECODE_ROWS (launch);
  return TRUE;
}
