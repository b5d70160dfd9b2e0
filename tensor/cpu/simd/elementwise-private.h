/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#define ebb_elementwise EBB_SIMD_NAME (ebb_elementwise)

#define EBB_ELEMENTWISE_MAX_INPUTS 3

/* Contiguous blocks of n numbers. A step is 1, or 0 where a whole vector (EBB_VEC_WIDTH times one value) stands for all
 * of them. y may be an input. */
typedef struct
{
  gint64 n;
  float *y;
  const float *in[EBB_ELEMENTWISE_MAX_INPUTS];
  gint64 step[EBB_ELEMENTWISE_MAX_INPUTS];
  const EbbKernelParams *params;
} EbbBlockF32;

typedef struct
{
  gint64 n;
  gint64 *y;
  const gint64 *in[EBB_ELEMENTWISE_MAX_INPUTS];
  gint64 step[EBB_ELEMENTWISE_MAX_INPUTS];
  const EbbKernelParams *params;
} EbbBlockI64;

typedef void (*EbbBlockFuncF32) (const EbbBlockF32 *block);
typedef void (*EbbBlockFuncI64) (const EbbBlockI64 *block);

/* An operand: a view, or a number if view is NULL. */
typedef struct
{
  const EbbView *view;
  double value;
} EbbElementwiseInput;

typedef struct
{
  EbbView *output;
  guint n_inputs;
  EbbElementwiseInput inputs[EBB_ELEMENTWISE_MAX_INPUTS];
  EbbBlockFuncF32 func_f32; /* NULL: not for these dtypes */
  EbbBlockFuncI64 func_i64;
  gboolean is_float;
  gint64 grain; /* elements worth a thread */
  const EbbKernelParams *params;
} EbbElementwise;

gboolean ebb_elementwise (const EbbElementwise *work,
                          GError **error);

/* Operand k of a block at i. */
#define EBB_BLOCK_LOAD(block, k, i, m) vec_load_as (EBB_DTYPE_F32, (block)->in[k], (i) * (block)->step[k], m)

#define EBB_BLOCK_UNARY(name, expression)                                    \
  static void                                                                \
  name (const EbbBlockF32 *block)                                            \
  {                                                                          \
    EBB_VEC_FOR (i, m, block->n)                                             \
      {                                                                      \
        const EbbVec a = EBB_BLOCK_LOAD (block, 0, i, m);                    \
                                                                             \
        vec_store_as (EBB_DTYPE_F32, block->y, i, m, (EbbVec) (expression)); \
      }                                                                      \
  }

#define EBB_BLOCK_BINARY(name, expression)                                   \
  static void                                                                \
  name (const EbbBlockF32 *block)                                            \
  {                                                                          \
    EBB_VEC_FOR (i, m, block->n)                                             \
      {                                                                      \
        const EbbVec a = EBB_BLOCK_LOAD (block, 0, i, m);                    \
        const EbbVec b = EBB_BLOCK_LOAD (block, 1, i, m);                    \
                                                                             \
        vec_store_as (EBB_DTYPE_F32, block->y, i, m, (EbbVec) (expression)); \
      }                                                                      \
  }

#define EBB_BLOCK_I64(name, expression)                                  \
  static void                                                            \
  name (const EbbBlockI64 *block)                                        \
  {                                                                      \
    for (gint64 i = 0; i < block->n; i++)                                \
      {                                                                  \
        const gint64 a = block->in[0][i * block->step[0]];               \
        const gint64 b G_GNUC_UNUSED = block->in[1][i * block->step[1]]; \
                                                                         \
        block->y[i] = (expression);                                      \
      }                                                                  \
  }
