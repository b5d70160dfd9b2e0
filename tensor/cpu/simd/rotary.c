/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* Rotary positions (Su et al., RoFormer, 2021): pairs of elements are rotated by angles in proportion to the position.
 */

#define CHUNK 256      /* pairs whose cosines and sines are computed at a time, for all heads */
#define REDUCED 1.6e6f /* the largest angle that reduce () takes */

typedef struct
{
  const EbbView *x, *starts;
  const EbbView *y;
  const float *frequencies;
  gint64 n_pairs;
  gint64 first;
  float greatest; /* of the frequencies; NaN if one is that */
  float factor;
  float direction;
} Rotary;

typedef double Doubles __attribute__ ((vector_size (4 * EBB_VEC_WIDTH)));
typedef float HalfVec __attribute__ ((vector_size (2 * EBB_VEC_WIDTH)));
typedef gint32 HalfVecI __attribute__ ((vector_size (2 * EBB_VEC_WIDTH)));

/* angle = (quarter + f) quarter turns, |f| <= 1/2, so exactly that sines near 0 have all their bits. */
EBB_VEC_INLINE void
reduce (EbbVec angle,
        EbbVecI *quarter,
        EbbVec *f)
{
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
  HalfVec from[2], rest[2];
  HalfVecI whole[2];

  memcpy (from, &angle, sizeof from);
  for (int k = 0; k < 2; k++)
    {
      Doubles a = __builtin_convertvector(from[k], Doubles);
      Doubles n = a * 0.63661977236758134308 + shift;

      n -= shift;
      /* pi / 2 in two parts, the first so short that its product with n is exact */
      a = (a - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
      rest[k] = __builtin_convertvector(a * 0.63661977236758134308, HalfVec);
      whole[k] = __builtin_convertvector(n, HalfVecI);
    }
  memcpy (f, rest, sizeof rest);
  memcpy (quarter, whole, sizeof whole);
}

static gint64
get_position (const Rotary *self,
              gint64 batch,
              gint64 t)
{
  const EbbView *starts = self->starts;
  gint64 index = self->first + t, offset, start;

  if (starts == NULL)
    return index;
  offset = batch * starts->strides[0] + t * starts->strides[1];
  start = starts->dtype == EBB_DTYPE_I64 ? ((const gint64 *) starts->data)[offset]
                                         : ((const gint32 *) starts->data)[offset];
  return index - CLAMP (start, 0, index);
}

/* Of pairs [first, first + n), times the factor. */
static void
compute_angles (const Rotary *self,
                gint64 position,
                gint64 first,
                gint64 n,
                float *cosines,
                float *sines)
{
  const float of_position = (float) position, sine_factor = self->factor * self->direction;

  if (!(of_position * self->greatest <= REDUCED))
    {
      for (gint64 i = 0; i < n; i++)
        {
          float angle = of_position * self->frequencies[first + i];

          cosines[i] = cosf (angle) * self->factor;
          sines[i] = sinf (angle) * sine_factor;
        }
      return;
    }
  EBB_VEC_FOR (i, m, n)
    {
      EbbVec angle = of_position * vec_load_as (EBB_DTYPE_F32, self->frequencies, first + i, m);
      EbbVec f, sine, cosine;
      EbbVecI quarter;

      reduce (angle, &quarter, &f);
      vec_sincos_quarters (quarter, f, &sine, &cosine);
      vec_store (cosines + i, cosine * self->factor);
      vec_store (sines + i, sine * sine_factor);
    }
}

/* Pairs [first, first + n) of one head: the first elements of the pairs begin at @x, the second @n_pairs behind. */
EBB_VEC_INLINE void
rotate_head (EbbDType dtype,
             const void *x,
             void *y,
             gint64 x_at,
             gint64 y_at,
             gint64 n_pairs,
             gint64 first,
             gint64 n,
             const float *cosines,
             const float *sines)
{
  EBB_VEC_FOR (i, m, n)
    {
      EbbVec c = vec_load (cosines + i), s = vec_load (sines + i);
      EbbVec a = vec_load_as (dtype, x, x_at + first + i, m);
      EbbVec b = vec_load_as (dtype, x, x_at + n_pairs + first + i, m);

      vec_store_as (dtype, y, y_at + first + i, m, vec_fma (a, c, -(b * s)));
      vec_store_as (dtype, y, y_at + n_pairs + first + i, m, vec_fma (b, c, a * s));
    }
}

EBB_VEC_INLINE void
rotate_positions (const Rotary *self,
                  EbbDType dtype,
                  gint64 begin,
                  gint64 end)
{
  const EbbView *x = self->x, *y = self->y;
  const gint64 n_positions = x->shape[1], n_heads = x->shape[2], rest = x->shape[3] - 2 * self->n_pairs;
  const gsize size = ebb_dtype_get_size (dtype);
  float cosines[CHUNK], sines[CHUNK];

  for (gint64 row = begin; row < end; row++)
    {
      gint64 batch = row / n_positions, t = row % n_positions, position = get_position (self, batch, t);
      gint64 x_at = batch * x->strides[0] + t * x->strides[1], y_at = batch * y->strides[0] + t * y->strides[1];

      for (gint64 first = 0; first < self->n_pairs; first += CHUNK)
        {
          gint64 n = MIN (self->n_pairs - first, CHUNK);

          compute_angles (self, position, first, n, cosines, sines);
          for (gint64 head = 0; head < n_heads; head++)
            rotate_head (dtype, x->data, y->data, x_at + head * x->strides[2], y_at + head * y->strides[2],
                         self->n_pairs, first, n, cosines, sines);
        }
      for (gint64 head = 0; rest > 0 && head < n_heads; head++)
        memmove ((char *) y->data + (y_at + head * y->strides[2] + 2 * self->n_pairs) * size,
                 (const char *) x->data + (x_at + head * x->strides[2] + 2 * self->n_pairs) * size, rest * size);
    }
}

static void
rotary_f32 (gint64 begin,
            gint64 end,
            void *data)
{
  rotate_positions (data, EBB_DTYPE_F32, begin, end);
}

static void
rotary_bf16 (gint64 begin,
             gint64 end,
             void *data)
{
  rotate_positions (data, EBB_DTYPE_BF16, begin, end);
}

/* @divided: the frequencies divided by powers of ntk */
static void
divide_frequencies (const EbbView *frequencies,
                    double ntk,
                    float *divided)
{
  gint64 n = frequencies->shape[0];
  const float *from = frequencies->data;

  for (gint64 i = 0; i < n; i++)
    divided[i] = (float) (from[i] / pow (ntk, (double) i / (double) n));
}

EBB_SIMD_WORKSPACE (rotary)
{
  return launch->params.rotary.ntk != 1.0 ? (gsize) launch->inputs[1]->shape[0] * sizeof (float) : 0;
}

EBB_SIMD_KERNEL (rotary)
{
  const EbbView *x = launch->inputs[0], *frequencies = launch->inputs[1];
  gint64 row_size = x->shape[2] * x->shape[3];
  Rotary self = {
    .x = x,
    .y = launch->outputs[0],
    .starts = ebb_launch_get_input (launch, 2),
    .frequencies = frequencies->data,
    .n_pairs = frequencies->shape[0],
    .first = launch->params.rotary.first,
    .factor = (float) launch->params.rotary.factor,
    .direction = launch->params.rotary.reversed ? -1.0f : 1.0f,
  };

  if (row_size == 0)
    return TRUE;
  if (launch->params.rotary.ntk != 1.0)
    {
      divide_frequencies (frequencies, launch->params.rotary.ntk, launch->workspace);
      self.frequencies = launch->workspace;
    }
  for (gint64 i = 0; i < self.n_pairs; i++)
    {
      float size = fabsf (self.frequencies[i]);

      if (!(size <= self.greatest))
        self.greatest = size;
    }
  ebb_cpu_parallel_for (x->shape[0] * x->shape[1], MAX (1, EBB_CPU_GRAIN / 2 / row_size),
                        x->dtype == EBB_DTYPE_BF16 ? rotary_bf16 : rotary_f32, &self);
  return TRUE;
}
