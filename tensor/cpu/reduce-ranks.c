/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Elements of several ranks become one, in blocks that stay in the nearest cache. */
#include "tensor/cpu/cpu-private.h"
#include "tensor/util/half-private.h"

#include <string.h>

/* The values of EbbReduceOp, which this folder does not know. */
typedef enum
{
  OP_SUM,
  OP_MEAN,
  OP_MIN,
  OP_MAX
} Op;

/* -- floats -------------------------------------------------------------------------------------------------------- */

static void
load_floats (float *restrict to,
             const void *from,
             gsize begin,
             gsize n,
             EbbDType dtype)
{
  const guint16 *half = (const guint16 *) from + begin;

  if (dtype == EBB_DTYPE_F32)
    memcpy (to, (const float *) from + begin, n * sizeof (float));
  else if (dtype == EBB_DTYPE_BF16)
    for (gsize i = 0; i < n; i++)
      to[i] = ebb_bf16_to_float (half[i]);
  else
    for (gsize i = 0; i < n; i++)
      to[i] = ebb_f16_to_float (half[i]);
}

static void
store_floats (void *to,
              const float *restrict from,
              gsize begin,
              gsize n,
              EbbDType dtype)
{
  guint16 *half = (guint16 *) to + begin;

  if (dtype == EBB_DTYPE_F32)
    memcpy ((float *) to + begin, from, n * sizeof (float));
  else if (dtype == EBB_DTYPE_BF16)
    for (gsize i = 0; i < n; i++)
      half[i] = ebb_bf16_from_float (from[i]);
  else
    for (gsize i = 0; i < n; i++)
      half[i] = ebb_f16_from_float (from[i]);
}

/* -- integers ------------------------------------------------------------------------------------------------------ */

static void
load_integers (gint64 *restrict to,
               const void *from,
               gsize begin,
               gsize n,
               EbbDType dtype)
{
  if (dtype == EBB_DTYPE_I64)
    memcpy (to, (const gint64 *) from + begin, n * sizeof (gint64));
  else if (dtype == EBB_DTYPE_I32)
    for (gsize i = 0; i < n; i++)
      to[i] = ((const gint32 *) from)[begin + i];
  else
    for (gsize i = 0; i < n; i++)
      to[i] = ((const guint8 *) from)[begin + i];
}

/* Wraps a value that doesn't fit. */
static void
store_integers (void *to,
                const gint64 *restrict from,
                gsize begin,
                gsize n,
                EbbDType dtype)
{
  if (dtype == EBB_DTYPE_I64)
    memcpy ((gint64 *) to + begin, from, n * sizeof (gint64));
  else if (dtype == EBB_DTYPE_I32)
    for (gsize i = 0; i < n; i++)
      ((gint32 *) to)[begin + i] = (gint32) from[i];
  else if (dtype == EBB_DTYPE_U8)
    for (gsize i = 0; i < n; i++)
      ((guint8 *) to)[begin + i] = (guint8) from[i];
  else
    for (gsize i = 0; i < n; i++)
      ((guint8 *) to)[begin + i] = from[i] != 0;
}

/* -- both ---------------------------------------------------------------------------------------------------------- */

/* Integer sums wrap; a NaN stays. */
#define add_floats(a, b) ((a) + (b))
#define add_integers(a, b) ((gint64) ((guint64) (a) + (guint64) (b)))

#define DEFINE_REDUCE(Type, kind)                                                                               \
  static void                                                                                                   \
      combine_##kind (Type *restrict sum, const Type *restrict x, gsize n, Op op)                               \
  {                                                                                                             \
    if (op == OP_MIN)                                                                                           \
      for (gsize i = 0; i < n; i++)                                                                             \
        sum[i] = sum[i] < x[i] || sum[i] != sum[i] ? sum[i] : x[i];                                             \
    else if (op == OP_MAX)                                                                                      \
      for (gsize i = 0; i < n; i++)                                                                             \
        sum[i] = sum[i] > x[i] || sum[i] != sum[i] ? sum[i] : x[i];                                             \
    else                                                                                                        \
      for (gsize i = 0; i < n; i++)                                                                             \
        sum[i] = add_##kind (sum[i], x[i]);                                                                     \
  }                                                                                                             \
                                                                                                                \
  static void                                                                                                   \
      reduce_##kind (void *dest, const void *const *sources, guint n_sources, gsize n_elements, EbbDType dtype, \
                     Op op)                                                                                     \
  {                                                                                                             \
    Type sum[EBB_REDUCE_BLOCK], x[EBB_REDUCE_BLOCK];                                                            \
                                                                                                                \
    for (gsize begin = 0; begin < n_elements; begin += EBB_REDUCE_BLOCK)                                        \
      {                                                                                                         \
        const gsize n = MIN (EBB_REDUCE_BLOCK, n_elements - begin);                                             \
                                                                                                                \
        load_##kind (sum, sources[0], begin, n, dtype);                                                         \
        for (guint s = 1; s < n_sources; s++)                                                                   \
          {                                                                                                     \
            load_##kind (x, sources[s], begin, n, dtype);                                                       \
            combine_##kind (sum, x, n, op);                                                                     \
          }                                                                                                     \
        if (op == OP_MEAN)                                                                                      \
          for (gsize i = 0; i < n; i++)                                                                         \
            sum[i] /= (Type) n_sources;                                                                         \
        store_##kind (dest, sum, begin, n, dtype);                                                              \
      }                                                                                                         \
  }

DEFINE_REDUCE (float, floats)
DEFINE_REDUCE (gint64, integers)

void
ebb_cpu_reduce (void *dest,
                const void *const *sources,
                guint n,
                gsize n_elements,
                EbbDType dtype,
                int op)
{
  if (ebb_dtype_is_floating_point (dtype))
    reduce_floats (dest, sources, n, n_elements, dtype, (Op) op);
  else
    reduce_integers (dest, sources, n, n_elements, dtype, (Op) op);
}
