/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/vec-private.h"

/* A row of logits is read from memory once: chunk by chunk, each first for its maximum, then, from the cache, for its
 * sum of exponentials. Logits may have a soft cap, which is applied wherever one is read; a maximum's cap is the
 * maximum of the caps. */

#define CHUNK 1024
#define LANES 4 /* sums kept side by side: additions do not wait for one another */

typedef struct
{
  const EbbLaunch *launch;
  const EbbView *logits, *target;
  gint64 n;
  gint64 first; /* class of the first column */
  gint64 ignore_index;
  double smoothing;
  float cap; /* 0: none */
} CrossEntropy;

static void
cross_entropy_init (CrossEntropy *self,
                    const EbbLaunch *launch,
                    const EbbView *logits,
                    const EbbView *target)
{
  *self = (CrossEntropy){ .launch = launch, .logits = logits, .target = target };
  self->n = logits->shape[logits->n_dims - 1];
  self->first = launch->params.xent.first;
  self->ignore_index = launch->params.xent.ignore_index;
  self->smoothing = launch->params.xent.smoothing;
  self->cap = (float) launch->params.xent.cap;
}

static gint64
count_rows (const CrossEntropy *self)
{
  gint64 rows = 1;

  for (int i = 0; i < self->logits->n_dims - 1; i++)
    rows *= self->logits->shape[i];
  return rows;
}

static inline gint64
get_target (const CrossEntropy *self,
            gint64 row)
{
  return self->target->dtype == EBB_DTYPE_I64 ? ((const gint64 *) self->target->data)[row]
                                              : ((const gint32 *) self->target->data)[row];
}

/* By the same function as whole vectors of them. */
static inline float
cap_one (float logit,
         float cap)
{
  return cap != 0.0f ? vec_soft_cap (vec_set1 (logit), cap)[0] : logit;
}

static inline float
get_logit (const CrossEntropy *self,
           gint64 i)
{
  return cap_one (self->logits->dtype == EBB_DTYPE_F32 ? ((const float *) self->logits->data)[i]
                                                       : ebb_bf16_to_float (((const guint16 *) self->logits->data)[i]),
                  self->cap);
}

/* Whether there is a cap is known where this is inlined. */
EBB_VEC_INLINE EbbVec
load_logits (EbbDType dtype,
             gboolean is_capped,
             float cap,
             const void *row,
             gint64 i,
             gint64 m)
{
  EbbVec x = vec_load_as (dtype, row, i, m);

  if (is_capped)
    return vec_soft_cap (x, cap);
  return x;
}

EBB_VEC_INLINE float
sum_lanes (const EbbVec *lanes)
{
  return vec_sum ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
}

EBB_VEC_INLINE float
find_maximum (EbbDType dtype,
              const void *row,
              gint64 begin,
              gint64 end)
{
  EbbVec best[LANES];
  gint64 i = begin;
  float result;

  for (int k = 0; k < LANES; k++)
    best[k] = vec_set1 (-INFINITY);
  for (; i + LANES * EBB_VEC_WIDTH <= end; i += LANES * EBB_VEC_WIDTH)
    for (int k = 0; k < LANES; k++)
      best[k] = vec_max (best[k], vec_load_as (dtype, row, i + k * EBB_VEC_WIDTH, EBB_VEC_WIDTH));
  for (; i < end; i += EBB_VEC_WIDTH)
    {
      gint64 m = MIN (end - i, EBB_VEC_WIDTH);

      best[0] = vec_max (best[0], vec_first (vec_load_as (dtype, row, i, m), m, vec_set1 (-INFINITY)));
    }
  best[0] = vec_max (vec_max (best[0], best[1]), vec_max (best[2], best[3]));
  result = best[0][0];
  for (int k = 1; k < EBB_VEC_WIDTH; k++)
    result = MAX (result, best[0][k]);
  return result;
}

/* sum of exp (x - shift), and of x if @plain_sum is given: of x - shift, so that f32 keeps what large logits differ by
 */
EBB_VEC_INLINE float
sum_exponentials (EbbDType dtype,
                  gboolean is_capped,
                  float cap,
                  const void *row,
                  gint64 begin,
                  gint64 end,
                  float shift,
                  double *plain_sum)
{
  EbbVec total[LANES] = { 0 }, plain[LANES] = { 0 };
  gint64 i = begin;

  for (; i + LANES * EBB_VEC_WIDTH <= end; i += LANES * EBB_VEC_WIDTH)
    for (int k = 0; k < LANES; k++)
      {
        EbbVec x = load_logits (dtype, is_capped, cap, row, i + k * EBB_VEC_WIDTH, EBB_VEC_WIDTH);

        total[k] += vec_exp (x - shift);
        plain[k] += x - shift;
      }
  for (; i < end; i += EBB_VEC_WIDTH)
    {
      gint64 m = MIN (end - i, EBB_VEC_WIDTH);
      EbbVec x = load_logits (dtype, is_capped, cap, row, i, m) - shift;

      total[0] += vec_first (vec_exp (x), m, (EbbVec){ 0 });
      plain[0] += vec_first (x, m, (EbbVec){ 0 });
    }
  if (plain_sum)
    *plain_sum += sum_lanes (plain) + (double) shift * (double) (end - begin);
  return sum_lanes (total);
}

/* log (sum (exp (x))), and the sum of x if @plain_sum is given */
EBB_VEC_INLINE double
reduce_row_as (EbbDType dtype,
               gboolean is_capped,
               float cap,
               const void *row,
               gint64 n,
               double *plain_sum)
{
  float maximum = -INFINITY;
  double sum = 0.0;

  for (gint64 begin = 0; begin < n; begin += CHUNK)
    {
      gint64 end = MIN (begin + CHUNK, n);
      float best = find_maximum (dtype, row, begin, end);

      if (is_capped)
        best = cap_one (best, cap);
      if (best > maximum)
        {
          sum *= exp ((double) maximum - (double) best);
          maximum = best;
        }
      sum +=
          sum_exponentials (dtype, is_capped, cap, row, begin, end, maximum == -INFINITY ? 0.0f : maximum, plain_sum);
    }
  return maximum + log (sum);
}

static double
reduce_row (const CrossEntropy *self,
            gint64 row,
            double *plain_sum)
{
  const gboolean is_f32 = self->logits->dtype == EBB_DTYPE_F32;
  const void *data = (const char *) self->logits->data + row * self->n * (is_f32 ? 4 : 2);

  if (self->cap != 0.0f)
    return is_f32 ? reduce_row_as (EBB_DTYPE_F32, TRUE, self->cap, data, self->n, plain_sum)
                  : reduce_row_as (EBB_DTYPE_BF16, TRUE, self->cap, data, self->n, plain_sum);
  return is_f32 ? reduce_row_as (EBB_DTYPE_F32, FALSE, 0, data, self->n, plain_sum)
                : reduce_row_as (EBB_DTYPE_BF16, FALSE, 0, data, self->n, plain_sum);
}

/* As the sum of two numbers. One f32 has no room for the logarithm beside a large maximum, and both a loss and the
 * exponents of its gradient are small differences of large numbers. */
static void
put_logsumexp (float to[2],
               double logsumexp)
{
  to[0] = (float) logsumexp;
  to[1] = isfinite (to[0]) ? (float) (logsumexp - to[0]) : 0.0f;
}

static double
get_logsumexp (const float from[2])
{
  return (double) from[0] + (double) from[1];
}

static void
forward_rows (gint64 begin,
              gint64 end,
              void *data)
{
  const CrossEntropy *self = data;
  float *loss = self->launch->outputs[0] ? self->launch->outputs[0]->data : NULL;
  float *logsumexp = self->launch->outputs[1] ? self->launch->outputs[1]->data : NULL;

  for (gint64 row = begin; row < end; row++)
    {
      gint64 target = get_target (self, row);
      double sum = 0.0, result = 0.0, value = 0.0;

      if (target != self->ignore_index)
        {
          double *plain_sum = self->smoothing > 0.0 ? &sum : NULL;

          result = reduce_row (self, row, plain_sum);
          value = result - get_logit (self, row * self->n + target);
          if (plain_sum)
            value = (1.0 - self->smoothing) * value + self->smoothing * (result - sum / (double) self->n);
        }
      if (loss)
        loss[row] = (float) value;
      if (logsumexp)
        put_logsumexp (logsumexp + 2 * row, result);
    }
}

static gint64
get_grain (const CrossEntropy *self)
{
  return MAX (1, EBB_CPU_GRAIN / 4 / MAX (self->n, 1));
}

EBB_SIMD_KERNEL (cross_entropy)
{
  CrossEntropy self;

  if (!ebb_cpu_check_targets (launch, launch->inputs[1], error))
    return FALSE;
  cross_entropy_init (&self, launch, launch->inputs[0], launch->inputs[1]);
  ebb_cpu_parallel_for (count_rows (&self), get_grain (&self), forward_rows, &self);
  return TRUE;
}

/* -- classes in parts ---------------------------------------------------------------------------------------------- */

enum
{
  PART_LOGSUMEXP, /* two numbers */
  PART_LOGIT = 2,
  PART_SIZE
};

static void
part_rows (gint64 begin,
           gint64 end,
           void *data)
{
  const CrossEntropy *self = data;
  float *part = self->launch->outputs[0]->data;

  for (gint64 row = begin; row < end; row++)
    {
      gint64 target = get_target (self, row), column = target - self->first;
      float *of_row = part + row * PART_SIZE;

      memset (of_row, 0, PART_SIZE * sizeof (float));
      if (target == self->ignore_index)
        continue;
      put_logsumexp (of_row + PART_LOGSUMEXP, reduce_row (self, row, NULL));
      if (column >= 0 && column < self->n)
        of_row[PART_LOGIT] = get_logit (self, row * self->n + column);
    }
}

EBB_SIMD_KERNEL (cross_entropy_part)
{
  CrossEntropy self;

  if (!ebb_cpu_check_targets (launch, launch->inputs[1], error))
    return FALSE;
  cross_entropy_init (&self, launch, launch->inputs[0], launch->inputs[1]);
  ebb_cpu_parallel_for (count_rows (&self), get_grain (&self), part_rows, &self);
  return TRUE;
}

/* The logsumexp of all classes from those of the parts, and the target's logit. */
static double
join_row (const float *parts,
          gint64 n_parts,
          gint64 stride,
          double *logit)
{
  double maximum = get_logsumexp (parts), sum = 0.0;

  for (gint64 i = 1; i < n_parts; i++)
    maximum = MAX (maximum, get_logsumexp (parts + i * stride));
  *logit = 0.0;
  for (gint64 i = 0; i < n_parts; i++)
    {
      sum += exp (get_logsumexp (parts + i * stride) - (maximum == -INFINITY ? 0.0 : maximum));
      *logit += (double) parts[i * stride + PART_LOGIT];
    }
  return maximum + log (sum);
}

static void
join_rows (gint64 begin,
           gint64 end,
           void *data)
{
  const CrossEntropy *self = data;
  const EbbView *parts = self->logits;
  float *loss = self->launch->outputs[0]->data, *logsumexp = self->launch->outputs[1]->data;

  for (gint64 row = begin; row < end; row++)
    {
      double result = 0.0, logit = 0.0;

      if (get_target (self, row) != self->ignore_index)
        result = join_row ((const float *) parts->data + row * PART_SIZE, parts->shape[0],
                           parts->shape[1] * PART_SIZE, &logit);
      loss[row] = (float) (result - logit);
      put_logsumexp (logsumexp + 2 * row, result);
    }
}

EBB_SIMD_KERNEL (cross_entropy_join)
{
  CrossEntropy self;

  cross_entropy_init (&self, launch, launch->inputs[0], launch->inputs[1]);
  ebb_cpu_parallel_for (self.logits->shape[1], EBB_CPU_GRAIN / 64, join_rows, &self);
  return TRUE;
}

/* -- gradient ------------------------------------------------------------------------------------------------------ */

/* d_logits = (softmax - (1 - smoothing) [target] - smoothing / n) d_loss, times the slope of the cap */
EBB_VEC_INLINE void
differentiate_row (EbbDType from,
                   EbbDType to,
                   gboolean is_capped,
                   float cap,
                   const void *logits,
                   void *d_logits,
                   gint64 n,
                   const float logsumexp[2],
                   float d_loss,
                   float uniform)
{
  const float most = logsumexp[0], rest = logsumexp[1];

  EBB_VEC_FOR (i, m, n)
    {
      EbbVec x = load_logits (from, is_capped, cap, logits, i, m);
      EbbVec d = d_loss * (vec_exp (x - most - rest) - uniform);

      if (is_capped)
        d *= vec_soft_cap_slope (x, cap);
      vec_store_as (to, d_logits, i, m, d);
    }
}

/* By the dtypes of the logits and of their gradient. */
EBB_VEC_INLINE void
differentiate_row_of (EbbDType from,
                      EbbDType to,
                      gboolean is_capped,
                      float cap,
                      const void *logits,
                      void *d_logits,
                      gint64 n,
                      const float logsumexp[2],
                      float d_loss,
                      float uniform)
{
  const EbbDType f32 = EBB_DTYPE_F32, bf16 = EBB_DTYPE_BF16;

  if (from == f32 && to == f32)
    differentiate_row (f32, f32, is_capped, cap, logits, d_logits, n, logsumexp, d_loss, uniform);
  else if (from == f32)
    differentiate_row (f32, bf16, is_capped, cap, logits, d_logits, n, logsumexp, d_loss, uniform);
  else if (to == f32)
    differentiate_row (bf16, f32, is_capped, cap, logits, d_logits, n, logsumexp, d_loss, uniform);
  else
    differentiate_row (bf16, bf16, is_capped, cap, logits, d_logits, n, logsumexp, d_loss, uniform);
}

static void
store_as (EbbDType dtype,
          void *data,
          gint64 i,
          float value)
{
  if (dtype == EBB_DTYPE_F32)
    ((float *) data)[i] = value;
  else
    ((guint16 *) data)[i] = ebb_bf16_from_float (value);
}

static void
backward_rows (gint64 begin,
               gint64 end,
               void *data)
{
  const CrossEntropy *self = data;
  const EbbView *d_loss = self->launch->inputs[0];
  const float *logsumexp = self->launch->inputs[3]->data;
  EbbView *output = self->launch->outputs[0];
  gint64 d_loss_stride = d_loss->n_dims > 0 && d_loss->shape[d_loss->n_dims - 1] > 1
                             ? d_loss->strides[d_loss->n_dims - 1]
                             : 0;
  gsize from_size = ebb_dtype_get_size (self->logits->dtype), to_size = ebb_dtype_get_size (output->dtype);
  float uniform = (float) (self->smoothing / (double) self->n);

  for (gint64 row = begin; row < end; row++)
    {
      gint64 target = get_target (self, row), column = target - self->first, n = self->n;
      gboolean is_here = column >= 0 && column < n;
      const void *from = (const char *) self->logits->data + row * n * from_size;
      void *to = (char *) output->data + row * n * to_size;
      const float *of_row = logsumexp + 2 * row;
      float d = ((const float *) d_loss->data)[row * d_loss_stride];
      float at_target = 0.0f;

      if (target == self->ignore_index)
        {
          memset (to, 0, n * to_size);
          continue;
        }
      /* Before the row is written: it may be the same memory. */
      if (is_here)
        {
          const float logit = get_logit (self, row * n + column);

          at_target = (float) (exp ((double) logit - get_logsumexp (of_row)) - (1.0 - self->smoothing)
                               - self->smoothing / (double) n);
          if (self->cap != 0.0f)
            at_target *= vec_soft_cap_slope (vec_set1 (logit), self->cap)[0];
        }
      if (self->cap != 0.0f)
        differentiate_row_of (self->logits->dtype, output->dtype, TRUE, self->cap, from, to, n, of_row, d, uniform);
      else
        differentiate_row_of (self->logits->dtype, output->dtype, FALSE, 0, from, to, n, of_row, d, uniform);
      if (is_here)
        store_as (output->dtype, to, column, d * at_target);
    }
}

EBB_SIMD_KERNEL (cross_entropy_grad)
{
  CrossEntropy self;

  if (!ebb_cpu_check_targets (launch, launch->inputs[2], error))
    return FALSE;
  cross_entropy_init (&self, launch, launch->inputs[1], launch->inputs[2]);
  ebb_cpu_parallel_for (count_rows (&self), get_grain (&self), backward_rows, &self);
  return TRUE;
}
