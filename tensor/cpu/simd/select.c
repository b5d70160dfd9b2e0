/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/elementwise-private.h"

#include "tensor/cpu/parallel-private.h"

/* Kernels of several operands, element by element: where, clamp and its gradient, scaled sums. */

/* -- where --------------------------------------------------------------------------------------------------------- */

static void
where_f32 (const EbbBlockF32 *block)
{
  EBB_VEC_FOR (i, m, block->n)
    {
      EbbVecI condition = EBB_BLOCK_LOAD (block, 0, i, m) != 0.0f;
      EbbVec a = EBB_BLOCK_LOAD (block, 1, i, m);
      EbbVec b = EBB_BLOCK_LOAD (block, 2, i, m);

      vec_store_as (EBB_DTYPE_F32, block->y, i, m, vec_select (condition, a, b));
    }
}

static void
where_i64 (const EbbBlockI64 *block)
{
  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = block->in[0][i * block->step[0]] != 0 ? block->in[1][i * block->step[1]]
                                                        : block->in[2][i * block->step[2]];
}

EBB_SIMD_KERNEL (where)
{
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 3,
    .inputs = { { launch->inputs[0], 0 }, { launch->inputs[1], 0 }, { launch->inputs[2], 0 } },
    .func_f32 = where_f32,
    .func_i64 = where_i64,
    .is_float = ebb_dtype_is_float_ (launch->inputs[1]->dtype),
    .grain = EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}

/* -- clamp --------------------------------------------------------------------------------------------------------- */

static void
clamp_f32 (const EbbBlockF32 *block)
{
  EbbVec low = vec_set1 ((float) block->params->clamp.min);
  EbbVec high = vec_set1 ((float) block->params->clamp.max);

  EBB_VEC_FOR (i, m, block->n)
    {
      EbbVec x = EBB_BLOCK_LOAD (block, 0, i, m);

      vec_store_as (EBB_DTYPE_F32, block->y, i, m, vec_min (high, vec_max (low, x)));
    }
}

static void
clamp_i64 (const EbbBlockI64 *block)
{
  gint64 low = ebb_double_to_i64 (block->params->clamp.min);
  gint64 high = ebb_double_to_i64 (block->params->clamp.max);

  for (gint64 i = 0; i < block->n; i++)
    block->y[i] = MIN (high, MAX (low, block->in[0][i * block->step[0]]));
}

/* 0 at a bound. Infinity is no bound: only infinity itself equals it. */
static void
clamp_grad (const EbbBlockF32 *block)
{
  EbbVec low = vec_set1 ((float) block->params->clamp.min);
  EbbVec high = vec_set1 ((float) block->params->clamp.max);
  EbbVec least = vec_set1 (block->params->clamp.min == -INFINITY ? -INFINITY : NAN);
  EbbVec greatest = vec_set1 (block->params->clamp.max == INFINITY ? INFINITY : NAN);

  EBB_VEC_FOR (i, m, block->n)
    {
      EbbVec dy = EBB_BLOCK_LOAD (block, 0, i, m);
      EbbVec x = EBB_BLOCK_LOAD (block, 1, i, m);

      EbbVecI inside = ((x > low) | (x == least)) & ((x < high) | (x == greatest));

      vec_store_as (EBB_DTYPE_F32, block->y, i, m, vec_select (inside, dy, (EbbVec){ 0 }));
    }
}

EBB_SIMD_KERNEL (clamp)
{
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 1,
    .inputs = { { launch->inputs[0], 0 } },
    .func_f32 = clamp_f32,
    .func_i64 = clamp_i64,
    .is_float = ebb_dtype_is_float_ (launch->inputs[0]->dtype),
    .grain = EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}

EBB_SIMD_KERNEL (clamp_grad)
{
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 2,
    .inputs = { { launch->inputs[0], 0 }, { launch->inputs[1], 0 } },
    .func_f32 = clamp_grad,
    .is_float = TRUE,
    .grain = EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}

/* -- alpha * a + beta * b ------------------------------------------------------------------------------------------ */

static void
add_scaled (const EbbBlockF32 *block)
{
  EbbVec alpha = vec_set1 ((float) block->params->add_scaled.alpha);
  EbbVec beta = vec_set1 ((float) block->params->add_scaled.beta);

  EBB_VEC_FOR (i, m, block->n)
    {
      EbbVec a = EBB_BLOCK_LOAD (block, 0, i, m);
      EbbVec b = EBB_BLOCK_LOAD (block, 1, i, m);

      vec_store_as (EBB_DTYPE_F32, block->y, i, m, vec_fma (alpha, a, beta * b));
    }
}

EBB_SIMD_KERNEL (add_scaled)
{
  EbbElementwise work = {
    .output = launch->outputs[0],
    .n_inputs = 2,
    .inputs = { { launch->inputs[0], 0 }, { launch->inputs[1], 0 } },
    .func_f32 = add_scaled,
    .is_float = TRUE,
    .grain = EBB_CPU_GRAIN,
    .params = &launch->params,
  };

  return ebb_elementwise (&work, error);
}
