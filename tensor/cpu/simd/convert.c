/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/backend/quantized-private.h"
#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

/* Conversions of runs of elements between dtypes, and of quantised weights. */

static inline gint64
float_to_i64 (float f)
{
  if (f >= 9223372036854775808.0f)
    return G_MAXINT64;
  if (f < -9223372036854775808.0f)
    return G_MININT64;
  return f != f ? 0 : (gint64) f;
}

#define READ(type, expression)             \
  G_STMT_START                             \
  {                                        \
    const type *from = source;             \
                                           \
    if (stride == 0 && n > 0)              \
      {                                    \
        const type x = from[0];            \
                                           \
        out[0] = (expression);             \
        for (gint64 i = 1; i < n; i++)     \
          out[i] = out[0];                 \
      }                                    \
    else if (stride == 1)                  \
      for (gint64 i = 0; i < n; i++)       \
        {                                  \
          const type x = from[i];          \
                                           \
          out[i] = (expression);           \
        }                                  \
    else                                   \
      for (gint64 i = 0; i < n; i++)       \
        {                                  \
          const type x = from[i * stride]; \
                                           \
          out[i] = (expression);           \
        }                                  \
  }                                        \
  G_STMT_END

#define WRITE(type, expression)               \
  G_STMT_START                                \
  {                                           \
    type *to = target;                        \
                                              \
    if (stride == 1)                          \
      for (gint64 i = 0; i < n; i++)          \
        to[i] = (type) (expression);          \
    else                                      \
      for (gint64 i = 0; i < n; i++)          \
        to[i * stride] = (type) (expression); \
  }                                           \
  G_STMT_END

void
ebb_run_to_f32 (EbbDType dtype,
                const void *source,
                gint64 stride,
                gint64 n,
                float *out)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, out, i, m, vec_load_as (EBB_DTYPE_F32, source, i, m));
      else
        READ (float, x);
      break;
    case EBB_DTYPE_BF16:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, out, i, m, vec_load_as (EBB_DTYPE_BF16, source, i, m));
      else
        READ (guint16, ebb_bf16_to_float (x));
      break;
    case EBB_DTYPE_F16: READ (guint16, ebb_f16_to_float (x)); break;
    case EBB_DTYPE_I32: READ (gint32, (float) x); break;
    case EBB_DTYPE_I64: READ (gint64, (float) x); break;
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL: READ (guint8, (float) x); break;
    }
}

void
ebb_run_from_f32 (EbbDType dtype,
                  void *target,
                  gint64 stride,
                  gint64 n,
                  const float *in)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_F32, target, i, m, vec_load_as (EBB_DTYPE_F32, in, i, m));
      else
        WRITE (float, in[i]);
      break;
    case EBB_DTYPE_BF16:
      if (stride == 1)
        EBB_VEC_FOR (i, m, n)
          vec_store_as (EBB_DTYPE_BF16, target, i, m, vec_load_as (EBB_DTYPE_F32, in, i, m));
      else
        WRITE (guint16, ebb_bf16_from_float (in[i]));
      break;
    case EBB_DTYPE_F16: WRITE (guint16, ebb_f16_from_float (in[i])); break;
    case EBB_DTYPE_I32: WRITE (gint32, float_to_i64 (in[i])); break;
    case EBB_DTYPE_I64: WRITE (gint64, float_to_i64 (in[i])); break;
    case EBB_DTYPE_U8: WRITE (guint8, float_to_i64 (in[i])); break;
    case EBB_DTYPE_BOOL: WRITE (guint8, in[i] != 0); break;
    }
}

void
ebb_run_to_i64 (EbbDType dtype,
                const void *source,
                gint64 stride,
                gint64 n,
                gint64 *out)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: READ (float, float_to_i64 (x)); break;
    case EBB_DTYPE_BF16: READ (guint16, float_to_i64 (ebb_bf16_to_float (x))); break;
    case EBB_DTYPE_F16: READ (guint16, float_to_i64 (ebb_f16_to_float (x))); break;
    case EBB_DTYPE_I32: READ (gint32, x); break;
    case EBB_DTYPE_I64: READ (gint64, x); break;
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL: READ (guint8, x); break;
    }
}

void
ebb_run_from_i64 (EbbDType dtype,
                  void *target,
                  gint64 stride,
                  gint64 n,
                  const gint64 *in)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: WRITE (float, in[i]); break;
    case EBB_DTYPE_BF16: WRITE (guint16, ebb_bf16_from_float ((float) in[i])); break;
    case EBB_DTYPE_F16: WRITE (guint16, ebb_f16_from_float ((float) in[i])); break;
    case EBB_DTYPE_I32: WRITE (gint32, in[i]); break;
    case EBB_DTYPE_I64: WRITE (gint64, in[i]); break;
    case EBB_DTYPE_U8: WRITE (guint8, in[i]); break;
    case EBB_DTYPE_BOOL: WRITE (guint8, in[i] != 0); break;
    }
}

/* -- quantised weights --------------------------------------------------------------------------------------------- */

typedef struct
{
  const guint8 *codes;
  const guint8 *scales;       /* of nf4, by block; NULL: int8 */
  const float *nested_absmax; /* of nf4, by group of scales */
  int group_bits;             /* of a block's number, which say its place in the group */
  const float *map;
  float offset;
  const float *absmax; /* of int8, by row */
  gint64 row, column, width;
  const EbbView *y;
} Dequantization;

static const float nf4_codes[16] = EBB_NF4_CODES;

/* Elements [first, first + n) of a weight in nf4, which one block has, to element @at of @y. */
EBB_VEC_INLINE void
decode_nf4 (const guint8 *codes,
            gint64 first,
            gint64 n,
            float scale,
            EbbDType dtype,
            void *y,
            gint64 at)
{
  const EbbVec scales = vec_set1 (scale);

  if (first % 2 != 0 && n > 0)
    {
      vec_store_as (dtype, y, at, 1, vec_set1 (nf4_codes[codes[first / 2] & 15] * scale));
      first++;
      at++;
      n--;
    }
  codes += first / 2;
  EBB_VEC_FOR (i, m, n)
    {
      guint8 last[EBB_VEC_WIDTH / 2] = { 0 };
      const guint8 *from = codes + i / 2;

      if (G_UNLIKELY (m < EBB_VEC_WIDTH))
        from = memcpy (last, from, (gsize) (m + 1) / 2);
      vec_store_as (dtype, y, at + i, m, vec_lookup16 (nf4_codes, vec_load_u4 (from)) * scales);
    }
}

EBB_VEC_INLINE void
decode_nf4_row (const Dequantization *self,
                gint64 row,
                EbbDType dtype)
{
  const gint64 begin = (self->row + row) * self->width + self->column, end = begin + self->y->shape[1];
  const gint64 at = row * self->y->strides[0];

  for (gint64 first = begin; first < end;)
    {
      const gint64 block = first / EBB_NF4_BLOCK, next = MIN ((block + 1) * EBB_NF4_BLOCK, end);
      const float scale = self->map[self->scales[block]] * self->nested_absmax[block >> self->group_bits];

      decode_nf4 (self->codes, first, next - first, scale + self->offset, dtype, self->y->data, at + first - begin);
      first = next;
    }
}

EBB_VEC_INLINE void
decode_int8_row (const Dequantization *self,
                 gint64 row,
                 EbbDType dtype)
{
  const guint8 *codes = self->codes + (self->row + row) * self->width + self->column;
  const EbbVec scale = vec_set1 (self->absmax[self->row + row] / 127.0f);

  EBB_VEC_FOR (i, m, self->y->shape[1])
    {
      EbbVecI code = (EbbVecI) (vec_load_u8 (codes + i, m) << 24) >> 24;

      vec_store_as (dtype, self->y->data, row * self->y->strides[0] + i, m,
                    __builtin_convertvector(code, EbbVec) * scale);
    }
}

EBB_VEC_INLINE void
decode_rows (const Dequantization *self,
             gint64 begin,
             gint64 end,
             EbbDType dtype)
{
  for (gint64 row = begin; row < end; row++)
    if (self->scales != NULL)
      decode_nf4_row (self, row, dtype);
    else
      decode_int8_row (self, row, dtype);
}

static void
dequantize_rows (gint64 begin,
                 gint64 end,
                 void *data)
{
  const Dequantization *self = data;

  if (self->y->dtype == EBB_DTYPE_F32)
    decode_rows (self, begin, end, EBB_DTYPE_F32);
  else
    decode_rows (self, begin, end, EBB_DTYPE_BF16);
}

void
EBB_SIMD_NAME (ebb_cpu_decode_rows) (const EbbLaunch *launch)
{
  const EbbView *scales = launch->inputs[1], *y = launch->outputs[0];
  const gboolean is_nf4 = scales->dtype == EBB_DTYPE_U8;
  Dequantization self = { .codes = launch->inputs[0]->data,
                          .scales = is_nf4 ? scales->data : NULL,
                          .nested_absmax = is_nf4 ? launch->inputs[2]->data : NULL,
                          .group_bits = is_nf4 ? __builtin_ctzll ((guint64) EBB_NF4_GROUP (launch->inputs[2])) : 0,
                          .map = is_nf4 ? launch->inputs[3]->data : NULL,
                          .offset = is_nf4 ? *(const float *) launch->inputs[4]->data : 0,
                          .absmax = is_nf4 ? NULL : scales->data,
                          .row = launch->params.dequantize.row,
                          .column = launch->params.dequantize.column,
                          .width = launch->params.dequantize.width,
                          .y = y };

  ebb_cpu_parallel_for (y->shape[0], MAX (1, EBB_CPU_GRAIN / MAX (y->shape[1], 1)), dequantize_rows, &self);
}
