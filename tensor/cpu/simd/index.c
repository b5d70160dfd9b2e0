/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/parallel-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/cpu/simd/vec-private.h"

/* Selecting by index, and its gradient. Where elements are summed, each has one thread that adds to it, in the order of
 * the index: the result does not depend on the number of threads. */

static inline gint64
get_index (const EbbView *index,
           gint64 i)
{
  return index->dtype == EBB_DTYPE_I64 ? ((const gint64 *) index->data)[i] : ((const gint32 *) index->data)[i];
}

static inline void
copy_element (void *to,
              const void *from,
              gsize size)
{
  switch (size)
    {
    case 1: memcpy (to, from, 1); break;
    case 2: memcpy (to, from, 2); break;
    case 4: memcpy (to, from, 4); break;
    default: memcpy (to, from, 8); break;
    }
}

/* -- select -------------------------------------------------------------------------------------------------------- */

static void
select_rows (gint64 begin,
             gint64 end,
             void *data)
{
  const EbbLaunch *launch = data;
  const EbbView *x = launch->inputs[0], *index = launch->inputs[1], *y = launch->outputs[0];
  gint64 k = y->shape[1], inner = y->shape[2];
  gint64 index_stride = index->n_dims > 0 ? index->strides[index->n_dims - 1] : 0;
  gsize size = ebb_dtype_get_size (x->dtype);
  gboolean is_dense = x->strides[2] == 1 || inner == 1;

  for (gint64 row = begin; row < end; row++)
    {
      gint64 start = row / k * x->strides[0] + get_index (index, row % k * index_stride) * x->strides[1];
      const char *from = (const char *) x->data + start * size;
      char *to = (char *) y->data + row * inner * size;

      if (is_dense)
        memcpy (to, from, inner * size);
      else
        for (gint64 i = 0; i < inner; i++)
          copy_element (to + i * size, from + i * x->strides[2] * size, size);
    }
}

EBB_SIMD_KERNEL (index_select)
{
  const EbbView *y = launch->outputs[0];
  gint64 inner = MAX (y->shape[2], 1);

  if (!ebb_cpu_check_indices (launch, launch->inputs[1], launch->inputs[0]->shape[1], error))
    return FALSE;
  if (y->shape[2] > 0)
    ebb_cpu_parallel_for (y->shape[0] * y->shape[1], MAX (1, EBB_CPU_GRAIN / inner), select_rows, (void *) launch);
  return TRUE;
}

/* -- add ----------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const EbbView *source, *index;
  EbbView *y;
  gint64 n_rows; /* rows of source: outer * k */
  gboolean by_columns;
} IndexAdd;

EBB_VEC_INLINE void
add_floats (EbbDType dtype,
            float *to,
            const void *from,
            gint64 begin,
            gint64 end)
{
  for (gint64 i = begin; i < end; i += EBB_VEC_WIDTH)
    {
      gint64 m = MIN (end - i, EBB_VEC_WIDTH);

      vec_store_as (EBB_DTYPE_F32, to, i, m,
                    vec_load_as (EBB_DTYPE_F32, to, i, m) + vec_load_as (dtype, from, i, m));
    }
}

#define ADD_STRIDED(type, from_type, convert) \
  for (gint64 i = begin; i < end; i++)        \
  ((type *) to)[i * to_stride] =              \
      (type) (((type *) to)[i * to_stride] + convert (((const from_type *) from)[i * stride]))

/* to[i] += from[i] on [begin, end); the strides are in elements */
static void
add_elements (EbbDType dtype,
              void *to,
              gint64 to_stride,
              EbbDType from_dtype,
              const void *from,
              gint64 stride,
              gint64 begin,
              gint64 end)
{
  if (dtype == EBB_DTYPE_F32 && stride == 1 && to_stride == 1)
    {
      if (from_dtype == EBB_DTYPE_F32)
        add_floats (EBB_DTYPE_F32, to, from, begin, end);
      else
        add_floats (EBB_DTYPE_BF16, to, from, begin, end);
      return;
    }
  switch (dtype)
    {
    case EBB_DTYPE_F32:
      if (from_dtype == EBB_DTYPE_F32)
        ADD_STRIDED (float, float, );
      else
        ADD_STRIDED (float, guint16, ebb_bf16_to_float);
      break;
    case EBB_DTYPE_I32: ADD_STRIDED (guint32, guint32, ); break;
    case EBB_DTYPE_I64: ADD_STRIDED (guint64, guint64, ); break;
    default: ADD_STRIDED (guint8, guint8, ); break;
    }
}

static void
add_part (gint64 begin,
          gint64 end,
          void *data)
{
  const IndexAdd *self = data;
  EbbView *y = self->y;
  const EbbView *source = self->source;
  gint64 k = source->shape[1], n = y->shape[1], inner = y->shape[2];
  gint64 index_stride = self->index->n_dims > 0 ? self->index->strides[self->index->n_dims - 1] : 0;
  gint64 first = self->by_columns ? begin : 0, last = self->by_columns ? end : inner;
  gsize size = ebb_dtype_get_size (y->dtype), source_size = ebb_dtype_get_size (source->dtype);

  for (gint64 row = 0; row < self->n_rows; row++)
    {
      gint64 outer = row / k, to = outer * n + get_index (self->index, row % k * index_stride);
      gint64 from = outer * source->strides[0] + row % k * source->strides[1];

      if (!self->by_columns && (to < begin || to >= end))
        continue;
      add_elements (y->dtype, (char *) y->data + to * inner * size, 1, source->dtype,
                    (const char *) source->data + from * source_size, source->strides[2], first, last);
    }
}

EBB_SIMD_KERNEL (index_add)
{
  IndexAdd self = { launch->inputs[0], launch->inputs[1], launch->outputs[0], 0, FALSE };
  gint64 inner = self.y->shape[2], work, n_threads = ebb_cpu_get_n_threads ();

  if (!ebb_cpu_check_indices (launch, self.index, self.y->shape[1], error))
    return FALSE;
  self.n_rows = self.source->shape[0] * self.source->shape[1];
  work = self.n_rows * inner;
  if (work == 0)
    return TRUE;
  /* Threads share out columns where there are enough of them, a cache line at least, else the rows of y. */
  self.by_columns = inner >= 64 * n_threads;
  if (self.by_columns)
    ebb_cpu_parallel_for_units (inner, 16, MAX (64, EBB_CPU_GRAIN / self.n_rows), add_part, &self);
  else
    {
      gint64 y_rows = self.y->shape[0] * self.y->shape[1];

      ebb_cpu_parallel_for (y_rows, work < 4 * EBB_CPU_GRAIN ? y_rows : 1, add_part, &self);
    }
  return TRUE;
}

/* -- gather and scatter -------------------------------------------------------------------------------------------- */

/* Lines: the elements of the index that differ in one dimension only, index.dim. They are visited by number. */
typedef struct
{
  const EbbView *x, *index;
  const EbbView *y;
  int dim;
  gint64 length; /* of a line */
} Lines;

static void
get_line (const Lines *self,
          gint64 line,
          gint64 *x,
          gint64 *index,
          gint64 *y)
{
  *x = *index = *y = 0;
  for (int i = self->index->n_dims - 1; i >= 0; i--)
    {
      gint64 position;

      if (i == self->dim)
        continue;
      position = line % self->index->shape[i];
      line /= self->index->shape[i];
      *x += position * self->x->strides[i];
      *index += position * self->index->strides[i];
      *y += position * self->y->strides[i];
    }
}

static void
gather_lines (gint64 begin,
              gint64 end,
              void *data)
{
  const Lines *self = data;
  gsize size = ebb_dtype_get_size (self->x->dtype);
  gint64 x_stride = self->x->strides[self->dim], index_stride = self->index->strides[self->dim];
  gint64 y_stride = self->y->strides[self->dim];

  for (gint64 line = begin; line < end; line++)
    {
      gint64 x, index, y;

      get_line (self, line, &x, &index, &y);
      for (gint64 i = 0; i < self->length; i++)
        copy_element ((char *) self->y->data + (y + i * y_stride) * size,
                      (const char *) self->x->data
                          + (x + get_index (self->index, index + i * index_stride) * x_stride) * size,
                      size);
    }
}

static void
scatter_lines (gint64 begin,
               gint64 end,
               void *data)
{
  const Lines *self = data;
  gsize size = ebb_dtype_get_size (self->y->dtype), source_size = ebb_dtype_get_size (self->x->dtype);
  gint64 x_stride = self->x->strides[self->dim], index_stride = self->index->strides[self->dim];
  gint64 y_stride = self->y->strides[self->dim];

  for (gint64 line = begin; line < end; line++)
    {
      gint64 x, index, y;

      get_line (self, line, &x, &index, &y);
      for (gint64 i = 0; i < self->length; i++)
        add_elements (self->y->dtype,
                      (char *) self->y->data
                          + (y + get_index (self->index, index + i * index_stride) * y_stride) * size,
                      0, self->x->dtype, (const char *) self->x->data + (x + i * x_stride) * source_size, 0, 0, 1);
    }
}

static void
run_lines (const EbbLaunch *launch,
           EbbParallelFunc func)
{
  Lines lines = { launch->inputs[0], launch->inputs[1], launch->outputs[0], launch->params.index.dim, 1 };
  gint64 n_lines = 1;

  if (lines.index->n_dims == 0)
    {
      /* A scalar is a line of one element. */
      static const EbbView one = { .n_dims = 1, .shape = { 1 }, .strides = { 1 } };
      EbbView x = one, index = one, y = one;

      x.data = lines.x->data;
      x.dtype = lines.x->dtype;
      index.data = lines.index->data;
      index.dtype = lines.index->dtype;
      y.data = lines.y->data;
      y.dtype = lines.y->dtype;
      lines = (Lines){ &x, &index, &y, 0, 1 };
      func (0, 1, &lines);
      return;
    }
  lines.length = lines.index->shape[lines.dim];
  for (int i = 0; i < lines.index->n_dims; i++)
    n_lines *= i == lines.dim ? 1 : lines.index->shape[i];
  if (n_lines > 0 && lines.length > 0)
    ebb_cpu_parallel_for (n_lines, MAX (1, EBB_CPU_GRAIN / 4 / lines.length), func, &lines);
}

/* @view: of which the indices select */
static gboolean
check_lines (const EbbLaunch *launch,
             const EbbView *view,
             GError **error)
{
  return ebb_cpu_check_indices (launch, launch->inputs[1], view->n_dims > 0 ? view->shape[launch->params.index.dim] : 1,
                                error);
}

EBB_SIMD_KERNEL (gather)
{
  if (!check_lines (launch, launch->inputs[0], error))
    return FALSE;
  run_lines (launch, gather_lines);
  return TRUE;
}

EBB_SIMD_KERNEL (scatter_add)
{
  if (!check_lines (launch, launch->outputs[0], error))
    return FALSE;
  run_lines (launch, scatter_lines);
  return TRUE;
}
