/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* The reduced elements of one output are cut into chunks of a fixed size, each reduced by one thread in f32 blocks
 * whose results are combined in f64, and the chunks are combined in order: the result depends on the shape alone. If
 * the kept dimension is the contiguous one, whole strips of outputs are reduced at once. */

#define ROW_CHUNK 65536
#define STRIP_CHUNK 512
#define STRIP 256
/* Rows that a strip adds up in f32 */
#define STRIP_BLOCK 64

typedef struct
{
  const EbbLaunch *launch;
  EbbReduceKind op;
  EbbCursor kept;    /* the outputs in x */
  EbbCursor reduced; /* the reduced elements of one output */
  EbbView *y;
  gint64 n_chunks, chunk;
  gint64 strip_length; /* the size of kept's innermost dimension, or 0: by rows */
  double *partials;    /* [n_chunks, outputs] if there is more than one chunk */
} Reduce;

static double
get_identity (EbbReduceKind op)
{
  switch (op)
    {
    case EBB_REDUCE_MAX: return -INFINITY;
    case EBB_REDUCE_MIN: return INFINITY;
    case EBB_REDUCE_PROD: return 1;
    case EBB_REDUCE_ALL: return 1;
    default: return 0;
    }
}

static inline double
combine (EbbReduceKind op,
         double a,
         double b)
{
  switch (op)
    {
    case EBB_REDUCE_MAX:
    case EBB_REDUCE_MAX_ABS:
    case EBB_REDUCE_ANY: return a > b || a != a ? a : b;
    case EBB_REDUCE_MIN:
    case EBB_REDUCE_ALL: return a < b || a != a ? a : b;
    case EBB_REDUCE_PROD: return a * b;
    default: return a + b;
    }
}

EBB_VEC_INLINE EbbVec
combine_vec (EbbReduceKind op,
             EbbVec sum,
             EbbVec x)
{
  switch (op)
    {
    case EBB_REDUCE_MAX: return vec_max_nan (sum, x);
    case EBB_REDUCE_MIN: return vec_min_nan (sum, x);
    case EBB_REDUCE_PROD: return sum * x;
    case EBB_REDUCE_SUM_SQUARES: return vec_fma (x, x, sum);
    case EBB_REDUCE_SUM_ABS: return sum + vec_abs (x);
    case EBB_REDUCE_MAX_ABS: return vec_max_nan (sum, vec_abs (x));
    case EBB_REDUCE_ANY: return vec_max (sum, EBB_VEC_TRUTH (x != 0.0f));
    case EBB_REDUCE_ALL: return vec_min (sum, EBB_VEC_TRUTH (x != 0.0f));
    default: return sum + x;
    }
}

/* Of the lanes of a sum */
EBB_VEC_INLINE double
combine_lanes (EbbReduceKind op,
               EbbVec sum)
{
  double result = sum[0];

  if (op == EBB_REDUCE_SUM || op == EBB_REDUCE_MEAN || op == EBB_REDUCE_SUM_SQUARES || op == EBB_REDUCE_SUM_ABS)
    return vec_sum (sum);
  for (int k = 1; k < EBB_VEC_WIDTH; k++)
    result = combine (op, result, sum[k]);
  return result;
}

EBB_VEC_INLINE double
reduce_block (EbbReduceKind op,
              const float *x,
              gint64 n)
{
  EbbVec identity = vec_set1 ((float) get_identity (op));
  EbbVec a = identity, b = identity;
  gint64 i = 0;

  for (; i + 2 * EBB_VEC_WIDTH <= n; i += 2 * EBB_VEC_WIDTH)
    {
      a = combine_vec (op, a, vec_load (x + i));
      b = combine_vec (op, b, vec_load (x + i + EBB_VEC_WIDTH));
    }
  for (; i < n; i += EBB_VEC_WIDTH)
    {
      gint64 m = MIN (n - i, EBB_VEC_WIDTH);

      a = combine_vec (op, a, vec_first (vec_load_as (EBB_DTYPE_F32, x + i, 0, m), m, identity));
    }
  return combine (op, combine_lanes (op, a), combine_lanes (op, b));
}

static void
put_result (const Reduce *work,
            gint64 chunk,
            gint64 output,
            double value)
{
  float result;

  if (work->n_chunks > 1)
    {
      work->partials[chunk * work->kept.n_elements + output] = value;
      return;
    }
  if (work->op == EBB_REDUCE_MEAN)
    value /= (double) work->reduced.n_elements;
  result = (float) value;
  ebb_run_from_f32 (work->y->dtype, (char *) work->y->data + output * ebb_dtype_size_ (work->y->dtype), 1, 1, &result);
}

EBB_VEC_INLINE void
reduce_rows_by (EbbReduceKind op,
                const Reduce *work,
                gint64 begin,
                gint64 end)
{
  EbbCursor kept = work->kept, reduced = work->reduced;
  float buffer[EBB_CURSOR_BLOCK];

  for (gint64 item = begin; item < end; item++)
    {
      gint64 output = item / work->n_chunks, chunk = item % work->n_chunks;
      gint64 first = chunk * work->chunk, last = MIN (first + work->chunk, reduced.n_elements), n;
      double value = get_identity (op);

      ebb_cursor_seek (&kept, output);
      reduced.data = kept.data + kept.offset * kept.size;
      ebb_cursor_seek (&reduced, first);
      for (gint64 i = first; i < last; i += n)
        {
          n = MIN (last - i, EBB_CURSOR_BLOCK);
          value = combine (op, value, reduce_block (op, ebb_cursor_read_f32 (&reduced, n, buffer), n));
        }
      put_result (work, chunk, output, value);
    }
}

/* Adds rows [first, last) of the reduced elements to n outputs side by side, which stand at data. */
EBB_VEC_INLINE void
reduce_strip (EbbReduceKind op,
              const Reduce *work,
              const char *data,
              gint64 n,
              gint64 first,
              gint64 last,
              double *values)
{
  EbbCursor reduced = work->reduced;
  EbbVec identity = vec_set1 ((float) get_identity (op));
  float sums[STRIP], buffer[STRIP];

  for (gint64 k = 0; k < n; k++)
    values[k] = get_identity (op);
  for (gint64 row = first; row < last; row += STRIP_BLOCK)
    {
      EBB_VEC_FOR (i, m, n)
        vec_store_as (EBB_DTYPE_F32, sums, i, m, identity);
      for (gint64 r = row; r < MIN (row + STRIP_BLOCK, last); r++)
        {
          const float *x;

          ebb_cursor_seek (&reduced, r);
          x = (const float *) (data + reduced.offset * reduced.size);
          if (reduced.dtype != EBB_DTYPE_F32)
            {
              ebb_run_to_f32 (reduced.dtype, x, 1, n, buffer);
              x = buffer;
            }
          EBB_VEC_FOR (i, m, n)
            vec_store_as (
                EBB_DTYPE_F32, sums, i, m,
                combine_vec (op, vec_load_as (EBB_DTYPE_F32, sums, i, m), vec_load_as (EBB_DTYPE_F32, x, i, m)));
        }
      for (gint64 k = 0; k < n; k++)
        values[k] = combine (op, values[k], sums[k]);
    }
}

EBB_VEC_INLINE void
reduce_strips_by (EbbReduceKind op,
                  const Reduce *work,
                  gint64 begin,
                  gint64 end)
{
  EbbCursor kept = work->kept;
  gint64 strips = (work->strip_length + STRIP - 1) / STRIP;
  double values[STRIP];

  for (gint64 item = begin; item < end; item++)
    {
      gint64 chunk = item % work->n_chunks, strip = item / work->n_chunks % strips;
      gint64 output = item / work->n_chunks / strips * work->strip_length + strip * STRIP;
      gint64 n = MIN (STRIP, work->strip_length - strip * STRIP);
      gint64 first = chunk * work->chunk, last = MIN (first + work->chunk, work->reduced.n_elements);

      ebb_cursor_seek (&kept, output);
      reduce_strip (op, work, kept.data + kept.offset * kept.size, n, first, last, values);
      for (gint64 k = 0; k < n; k++)
        put_result (work, chunk, output + k, values[k]);
    }
}

/* One copy of the loops for each operation */
#define FOR_OP(call)                                                                     \
  switch (((const Reduce *) data)->op)                                                   \
    {                                                                                    \
    case EBB_REDUCE_SUM:                                                                 \
    case EBB_REDUCE_MEAN: call (EBB_REDUCE_SUM, data, begin, end); break;                \
    case EBB_REDUCE_MAX: call (EBB_REDUCE_MAX, data, begin, end); break;                 \
    case EBB_REDUCE_MIN: call (EBB_REDUCE_MIN, data, begin, end); break;                 \
    case EBB_REDUCE_PROD: call (EBB_REDUCE_PROD, data, begin, end); break;               \
    case EBB_REDUCE_SUM_SQUARES: call (EBB_REDUCE_SUM_SQUARES, data, begin, end); break; \
    case EBB_REDUCE_SUM_ABS: call (EBB_REDUCE_SUM_ABS, data, begin, end); break;         \
    case EBB_REDUCE_MAX_ABS: call (EBB_REDUCE_MAX_ABS, data, begin, end); break;         \
    case EBB_REDUCE_ANY: call (EBB_REDUCE_ANY, data, begin, end); break;                 \
    case EBB_REDUCE_ALL: call (EBB_REDUCE_ALL, data, begin, end); break;                 \
    }

static void
reduce_rows (gint64 begin,
             gint64 end,
             void *data)
{
  FOR_OP (reduce_rows_by)
}

static void
reduce_strips (gint64 begin,
               gint64 end,
               void *data)
{
  FOR_OP (reduce_strips_by)
}

static void
combine_chunks (Reduce *work)
{
  gint64 outputs = work->kept.n_elements, n_chunks = work->n_chunks;

  work->n_chunks = 1;
  for (gint64 output = 0; output < outputs; output++)
    {
      double value = work->partials[output];

      for (gint64 chunk = 1; chunk < n_chunks; chunk++)
        value = combine (work->op, value, work->partials[chunk * outputs + output]);
      put_result (work, 0, output, value);
    }
}

/* FALSE: there is nothing to reduce to. */
static gboolean
reduce_init (Reduce *work,
             const EbbLaunch *launch)
{
  const EbbView *x = launch->inputs[0];
  guint32 dims = launch->params.reduce.dims;

  *work = (Reduce){ .launch = launch, .op = launch->params.reduce.op, .y = launch->outputs[0], .n_chunks = 1 };
  ebb_cursor_init_dims (&work->kept, x, ~dims);
  ebb_cursor_init_dims (&work->reduced, x, dims);
  return work->kept.n_elements != 0;
}

static gboolean
is_floating (const Reduce *work)
{
  return ebb_dtype_is_float_ (work->kept.dtype) || ebb_dtype_is_float_ (work->y->dtype);
}

static void
cut_into_chunks (Reduce *work)
{
  gint64 elements = work->reduced.n_elements;
  const EbbCursor *kept = &work->kept, *reduced = &work->reduced;
  int last = kept->n_dims - 1;

  if (last >= 0 && kept->strides[last] == 1 && kept->shape[last] >= 8
      && !(reduced->n_dims > 0 && reduced->strides[reduced->n_dims - 1] == 1))
    work->strip_length = kept->shape[last];
  work->chunk = work->strip_length > 0 ? STRIP_CHUNK : ROW_CHUNK;
  work->n_chunks = MAX (1, (elements + work->chunk - 1) / work->chunk);
}

EBB_SIMD_WORKSPACE (reduce)
{
  Reduce work;

  if (!reduce_init (&work, launch) || !is_floating (&work))
    return 0;
  cut_into_chunks (&work);
  return work.n_chunks > 1 ? (gsize) (work.n_chunks * work.kept.n_elements) * sizeof (double) : 0;
}

static void
reduce_floats (Reduce *work)
{
  gint64 outputs = work->kept.n_elements, elements = work->reduced.n_elements, n_items;

  cut_into_chunks (work);
  n_items = outputs * work->n_chunks;
  if (work->strip_length > 0)
    n_items = n_items / work->strip_length * ((work->strip_length + STRIP - 1) / STRIP);
  work->partials = work->launch->workspace;
  ebb_cpu_parallel_for (n_items, MAX (1, EBB_CPU_GRAIN / MAX (1, outputs * elements / n_items)),
                        work->strip_length > 0 ? reduce_strips : reduce_rows, work);
  if (work->n_chunks > 1)
    combine_chunks (work);
}

/* -- integers ------------------------------------------------------------------------------------------------------ */

static inline gint64
combine_i64 (EbbReduceKind op,
             gint64 a,
             gint64 b)
{
  switch (op)
    {
    case EBB_REDUCE_MAX: return MAX (a, b);
    case EBB_REDUCE_MIN: return MIN (a, b);
    case EBB_REDUCE_PROD: return (gint64) ((guint64) a * (guint64) b);
    case EBB_REDUCE_SUM_SQUARES: return (gint64) ((guint64) a + (guint64) b * (guint64) b);
    case EBB_REDUCE_SUM_ABS: return (gint64) ((guint64) a + (b < 0 ? -(guint64) b : (guint64) b));
    case EBB_REDUCE_MAX_ABS: return MAX (a, (gint64) (b < 0 ? -(guint64) b : (guint64) b));
    case EBB_REDUCE_ANY: return a | (b != 0);
    case EBB_REDUCE_ALL: return a & (b != 0);
    default: return (gint64) ((guint64) a + (guint64) b);
    }
}

static void
reduce_integers (gint64 begin,
                 gint64 end,
                 void *data)
{
  const Reduce *work = data;
  EbbCursor kept = work->kept, reduced = work->reduced;
  EbbReduceKind op = work->op;
  gint64 buffer[EBB_CURSOR_BLOCK];

  for (gint64 output = begin; output < end; output++)
    {
      gint64 value = op == EBB_REDUCE_MAX ? G_MININT64 : op == EBB_REDUCE_MIN ? G_MAXINT64
                                                                              : (gint64) get_identity (op);
      gint64 n;

      ebb_cursor_seek (&kept, output);
      reduced.data = kept.data + kept.offset * kept.size;
      ebb_cursor_seek (&reduced, 0);
      for (gint64 i = 0; i < reduced.n_elements; i += n)
        {
          n = MIN (reduced.n_elements - i, EBB_CURSOR_BLOCK);
          ebb_cursor_load_i64 (&reduced, n, buffer);
          for (gint64 k = 0; k < n; k++)
            value = combine_i64 (op, value, buffer[k]);
        }
      ebb_run_from_i64 (work->y->dtype, (char *) work->y->data + output * ebb_dtype_size_ (work->y->dtype), 1, 1,
                        &value);
    }
}

EBB_SIMD_KERNEL (reduce)
{
  Reduce work;

  if (!reduce_init (&work, launch))
    return TRUE;
  if (is_floating (&work))
    reduce_floats (&work);
  else
    ebb_cpu_parallel_for (work.kept.n_elements, MAX (1, EBB_CPU_GRAIN / MAX (1, work.reduced.n_elements)),
                          reduce_integers, &work);
  return TRUE;
}

/* -- squared norms of many tensors --------------------------------------------------------------------------------- */

typedef struct
{
  const EbbLaunch *launch;
  double *partials; /* of all items' chunks, one item after another */
} SquaredNorm;

static gint64
count_chunks (const EbbLaunchItem *item)
{
  return (item->n_elements + ROW_CHUNK - 1) / ROW_CHUNK;
}

static double
square_chunk (EbbDType dtype,
              const EbbLaunchItem *item,
              gint64 chunk)
{
  gint64 first = chunk * ROW_CHUNK, last = MIN (first + ROW_CHUNK, item->n_elements), n;
  float buffer[EBB_CURSOR_BLOCK];
  double sum = 0;

  for (gint64 i = first; i < last; i += n)
    {
      const float *x = (const float *) item->data[0] + i;

      n = MIN (last - i, EBB_CURSOR_BLOCK);
      if (dtype != EBB_DTYPE_F32)
        {
          ebb_run_to_f32 (dtype, (const char *) item->data[0] + i * ebb_dtype_size_ (dtype), 1, n, buffer);
          x = buffer;
        }
      sum += reduce_block (EBB_REDUCE_SUM_SQUARES, x, n);
    }
  return sum;
}

static void
square_chunks (gint64 begin,
               gint64 end,
               void *data)
{
  const SquaredNorm *self = data;
  double *partials = self->partials;

  for (guint i = 0; i < self->launch->n_items && end > 0; i++)
    {
      const EbbLaunchItem *item = &self->launch->items[i];
      gint64 n_chunks = count_chunks (item);

      for (gint64 chunk = MAX (begin, 0); chunk < MIN (end, n_chunks); chunk++)
        partials[chunk] = square_chunk (self->launch->params.squared_norm.dtype, item, chunk);
      partials += n_chunks;
      begin -= n_chunks;
      end -= n_chunks;
    }
}

EBB_SIMD_WORKSPACE (squared_norm)
{
  gint64 n_chunks = 0;

  for (guint i = 0; i < launch->n_items; i++)
    n_chunks += count_chunks (&launch->items[i]);
  return (gsize) n_chunks * sizeof (double);
}

/* The order of additions is that of EBB_REDUCE_SUM_SQUARES over a dense tensor. */
EBB_SIMD_KERNEL (squared_norm)
{
  SquaredNorm self = { launch, launch->workspace };
  float *norms = launch->outputs[0]->data;
  const double *partials = launch->workspace;
  gint64 n_chunks = 0, n_elements = 0;

  for (guint i = 0; i < launch->n_items; i++)
    {
      n_chunks += count_chunks (&launch->items[i]);
      n_elements += launch->items[i].n_elements;
    }
  ebb_cpu_parallel_for (n_chunks, MAX (1, EBB_CPU_GRAIN / MAX (1, n_elements / MAX (1, n_chunks))), square_chunks,
                        &self);
  for (guint i = 0; i < launch->n_items; i++)
    {
      double sum = 0;

      n_chunks = count_chunks (&launch->items[i]);
      for (gint64 chunk = 0; chunk < n_chunks; chunk++)
        sum += partials[chunk];
      norms[i] = (float) sum;
      partials += n_chunks;
    }
  return TRUE;
}
