/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/philox-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* Kernels that draw numbers by name: uniform, normal, integers, dropout. */

/* Element i is made of draw i (randint: draws 2 i and 2 i + 1) whatever the threads and the vectors are. Parts begin at
 * multiples of UNIT, so blocks of draws are never shared. */
#define UNIT EBB_CURSOR_BLOCK
#define RANDOM_GRAIN (EBB_CPU_GRAIN / 4)

/* -- uniform ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const EbbLaunch *launch;
  float least, greatest; /* of the output's dtype within the range; what is drawn may round to one beyond */
} Uniform;

/* The number of @dtype next to @x, which is one. */
static float
get_neighbour (EbbDType dtype,
               float x,
               gboolean above)
{
  const guint32 step = dtype == EBB_DTYPE_BF16 ? 0x10000 : 1;
  union
  {
    float f;
    guint32 u;
  } bits = { .f = x };

  if (x == 0.0f)
    bits.u = step | (above ? 0 : 0x80000000u);
  else
    bits.u += above == (x > 0.0f) ? step : 0 - step;
  return bits.f;
}

static void
set_range (Uniform *self,
           EbbDType dtype,
           double low,
           double high)
{
  const gboolean is_half = dtype == EBB_DTYPE_BF16;
  const float nearest = is_half ? ebb_bf16_to_float (ebb_bf16_from_float ((float) low)) : (float) low;

  self->least = nearest;
  self->greatest = is_half ? ebb_bf16_to_float (ebb_bf16_from_float ((float) high)) : (float) high;
  if (self->least < low)
    self->least = get_neighbour (dtype, self->least, TRUE);
  if (self->greatest >= high)
    self->greatest = get_neighbour (dtype, self->greatest, FALSE);
  if (self->least > self->greatest) /* none is within */
    self->least = self->greatest = nearest;
}

static void
uniform_part (gint64 begin,
              gint64 end,
              void *data)
{
  const Uniform *self = data;
  const EbbLaunch *launch = self->launch;
  EbbPhilox philox = launch->params.random.philox;
  const float low = (float) launch->params.random.low;
  const float width = (float) (launch->params.random.high - launch->params.random.low);
  const EbbVec least = vec_set1 (self->least), greatest = vec_set1 (self->greatest);
  EbbCursor output;
  gint64 n;

  ebb_cursor_init (&output, launch->outputs[0]);
  ebb_cursor_seek (&output, begin);
  for (gint64 i = begin; i < end; i += n)
    {
      guint32 draws[UNIT];
      float values[UNIT];

      n = MIN (end - i, UNIT);
      ebb_philox_fill (philox.seed, philox.offset, (guint64) i, n, draws);
      for (gint64 k = 0; k < n; k += EBB_VEC_WIDTH)
        {
          EbbVecI draw = (EbbVecI) vec_load ((const float *) (draws + k)) >> 8 & 0xffffff;
          EbbVec u = __builtin_convertvector(draw, EbbVec) * 5.9604644775390625e-8f;

          vec_store (values + k, vec_min (greatest, vec_max (least, low + vec_rounded (u * width))));
        }
      ebb_cursor_store_f32 (&output, n, values);
    }
}

EBB_SIMD_KERNEL (uniform)
{
  Uniform self = { .launch = launch };

  set_range (&self, launch->outputs[0]->dtype, launch->params.random.low, launch->params.random.high);
  ebb_cpu_parallel_for_units (ebb_view_count_elements (launch->outputs[0]), UNIT, RANDOM_GRAIN, uniform_part, &self);
  return TRUE;
}

/* -- normal -------------------------------------------------------------------------------------------------------- */

/* Box, Muller 1958: lanes 0 and 1 of a block give z_0 and z_1, lanes 2 and 3 the others. */
static inline void
draw_normals (EbbPhilox philox,
              guint64 first,
              float *values)
{
  guint32 draws[EBB_PHILOX_VECTOR_DRAWS];
  float radius[EBB_PHILOX_VECTOR_DRAWS / 2], turn[EBB_PHILOX_VECTOR_DRAWS / 2];

  ebb_philox_fill (philox.seed, philox.offset, first, EBB_PHILOX_VECTOR_DRAWS, draws);
  for (int k = 0; k < EBB_PHILOX_VECTOR_DRAWS / 2; k++)
    {
      radius[k] = (float) draws[2 * k] * 2.3283064365386963e-10f + 1.1641532182693481e-10f; /* in (0, 1] */
      turn[k] = (float) (draws[2 * k + 1] >> 8) * 5.9604644775390625e-8f;
    }
  for (int k = 0; k < EBB_PHILOX_VECTOR_DRAWS / 2; k += EBB_VEC_WIDTH)
    {
      EbbVec r = vec_sqrt (-2.0f * vec_log (vec_load (radius + k)));
      EbbVec sine, cosine;

      vec_sincos_turns (vec_load (turn + k), &sine, &cosine);
      vec_store (radius + k, r * cosine);
      vec_store (turn + k, r * sine);
    }
  for (int k = 0; k < EBB_PHILOX_VECTOR_DRAWS / 2; k++)
    {
      values[2 * k] = radius[k];
      values[2 * k + 1] = turn[k];
    }
}

static void
normal_part (gint64 begin,
             gint64 end,
             void *data)
{
  const EbbLaunch *launch = data;
  const float mean = (float) launch->params.random.mean, std = (float) launch->params.random.std;
  EbbCursor output;
  gint64 n;

  ebb_cursor_init (&output, launch->outputs[0]);
  ebb_cursor_seek (&output, begin);
  for (gint64 i = begin; i < end; i += n)
    {
      float values[UNIT];

      n = MIN (end - i, UNIT);
      for (gint64 k = 0; k < n; k += EBB_PHILOX_VECTOR_DRAWS)
        draw_normals (launch->params.random.philox, (guint64) (i + k), values + k);
      for (gint64 k = 0; k < n; k += EBB_VEC_WIDTH)
        vec_store (values + k, vec_fma (vec_load (values + k), vec_set1 (std), vec_set1 (mean)));
      ebb_cursor_store_f32 (&output, n, values);
    }
}

EBB_SIMD_KERNEL (normal)
{
  ebb_cpu_parallel_for_units (ebb_view_count_elements (launch->outputs[0]), UNIT, RANDOM_GRAIN, normal_part,
                              (void *) launch);
  return TRUE;
}

/* -- randint ------------------------------------------------------------------------------------------------------- */

static void
randint_part (gint64 begin,
              gint64 end,
              void *data)
{
  const EbbLaunch *launch = data;
  EbbPhilox philox = launch->params.random.philox;
  gint64 low = ebb_double_to_i64 (launch->params.random.low);
  guint64 range = (guint64) ebb_double_to_i64 (launch->params.random.high) - (guint64) low;
  EbbCursor output;
  gint64 n;

  ebb_cursor_init (&output, launch->outputs[0]);
  ebb_cursor_seek (&output, begin);
  for (gint64 i = begin; i < end; i += n)
    {
      guint32 draws[2 * UNIT];
      gint64 values[UNIT];

      n = MIN (end - i, UNIT);
      ebb_philox_fill (philox.seed, philox.offset, 2 * (guint64) i, 2 * n, draws);
      for (gint64 k = 0; k < n; k++)
        {
          guint64 draw = draws[2 * k] | (guint64) draws[2 * k + 1] << 32;

          values[k] = (gint64) ((guint64) low + (range == 0 ? 0 : draw % range));
        }
      ebb_cursor_store_i64 (&output, n, values);
    }
}

EBB_SIMD_KERNEL (randint)
{
  ebb_cpu_parallel_for_units (ebb_view_count_elements (launch->outputs[0]), UNIT, RANDOM_GRAIN, randint_part,
                              (void *) launch);
  return TRUE;
}

/* -- dropout ------------------------------------------------------------------------------------------------------- */

EBB_VEC_INLINE void
dropout_as (EbbDType dtype,
            const EbbLaunch *launch,
            gint64 begin,
            gint64 end)
{
  EbbPhilox philox = launch->params.random.philox;
  const void *x = launch->inputs[0]->data;
  void *y = launch->outputs[0]->data;
  double p = launch->params.random.p;
  guint64 threshold = ebb_dropout_threshold (p);
  EbbVec scale = vec_set1 (threshold >> 32 != 0 ? 0.0f : (float) (1.0 / (1.0 - p)));
  gint64 i = begin;

  for (; i + EBB_PHILOX_VECTOR_DRAWS <= end; i += EBB_PHILOX_VECTOR_DRAWS)
    {
      EbbVecU draws[4];

      ebb_philox_draw_vector (philox.seed, philox.offset + (guint64) i / 4, draws);
      for (int k = 0; k < 4; k++)
        {
          EbbVec v = vec_load_as (dtype, x, i + k * EBB_VEC_WIDTH, EBB_VEC_WIDTH) * scale;

          vec_store_as (dtype, y, i + k * EBB_VEC_WIDTH, EBB_VEC_WIDTH, vec_drop (draws[k], threshold, v));
        }
    }
  if (i < end)
    {
      EbbVecU draws[4];

      ebb_philox_draw_vector (philox.seed, philox.offset + (guint64) i / 4, draws);
      for (int k = 0; k < 4 && i < end; k++, i += EBB_VEC_WIDTH)
        {
          gint64 m = MIN (end - i, EBB_VEC_WIDTH);

          vec_store_as (dtype, y, i, m, vec_drop (draws[k], threshold, vec_load_as (dtype, x, i, m) * scale));
        }
    }
}

static void
dropout_f32 (gint64 begin,
             gint64 end,
             void *data)
{
  dropout_as (EBB_DTYPE_F32, data, begin, end);
}

static void
dropout_bf16 (gint64 begin,
              gint64 end,
              void *data)
{
  dropout_as (EBB_DTYPE_BF16, data, begin, end);
}

EBB_SIMD_KERNEL (dropout)
{
  ebb_cpu_parallel_for_units (ebb_view_count_elements (launch->inputs[0]), EBB_PHILOX_VECTOR_DRAWS, RANDOM_GRAIN,
                              launch->inputs[0]->dtype == EBB_DTYPE_BF16 ? dropout_bf16 : dropout_f32, (void *) launch);
  return TRUE;
}
