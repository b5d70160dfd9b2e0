/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* The index of the largest or smallest element along dimensions. */

typedef struct
{
  EbbCursor kept, reduced;
  EbbView *values;
  gint64 *indices;
  gboolean is_max;
} ArgReduce;

/* The first of the largest or smallest; a NaN beats every number. */
static gint64
find_float (const EbbCursor *start,
            gboolean is_max)
{
  EbbCursor reduced = *start;
  float buffer[EBB_CURSOR_BLOCK], best = 0;
  gint64 index = 0, n;

  ebb_cursor_seek (&reduced, 0);
  for (gint64 i = 0; i < reduced.n_elements; i += n)
    {
      const float *x;

      n = MIN (reduced.n_elements - i, EBB_CURSOR_BLOCK);
      x = ebb_cursor_read_f32 (&reduced, n, buffer);
      if (i == 0)
        best = x[0];
      for (gint64 k = 0; k < n; k++)
        if ((is_max ? x[k] > best : x[k] < best) || (x[k] != x[k] && best == best))
          {
            best = x[k];
            index = i + k;
          }
    }
  return index;
}

static gint64
find_integer (const EbbCursor *start,
              gboolean is_max)
{
  EbbCursor reduced = *start;
  gint64 buffer[EBB_CURSOR_BLOCK], best = 0, index = 0, n;

  ebb_cursor_seek (&reduced, 0);
  for (gint64 i = 0; i < reduced.n_elements; i += n)
    {
      n = MIN (reduced.n_elements - i, EBB_CURSOR_BLOCK);
      ebb_cursor_load_i64 (&reduced, n, buffer);
      if (i == 0)
        best = buffer[0];
      for (gint64 k = 0; k < n; k++)
        if (is_max ? buffer[k] > best : buffer[k] < best)
          {
            best = buffer[k];
            index = i + k;
          }
    }
  return index;
}

static void
arg_reduce (gint64 begin,
            gint64 end,
            void *data)
{
  const ArgReduce *work = data;
  EbbCursor kept = work->kept, reduced = work->reduced;

  for (gint64 output = begin; output < end; output++)
    {
      gint64 index;

      ebb_cursor_seek (&kept, output);
      reduced.data = kept.data + kept.offset * kept.size;
      index = ebb_dtype_is_float_ (kept.dtype) ? find_float (&reduced, work->is_max)
                                               : find_integer (&reduced, work->is_max);
      if (work->indices != NULL)
        work->indices[output] = index;
      if (work->values != NULL)
        {
          ebb_cursor_seek (&reduced, index);
          memcpy ((char *) work->values->data + output * reduced.size, reduced.data + reduced.offset * reduced.size,
                  (gsize) reduced.size);
        }
    }
}

EBB_SIMD_KERNEL (arg_reduce)
{
  const EbbView *x = launch->inputs[0];
  EbbView *indices = ebb_launch_get_output (launch, 1);
  ArgReduce work = {
    .values = ebb_launch_get_output (launch, 0),
    .indices = indices != NULL ? indices->data : NULL,
    .is_max = launch->params.reduce.op == EBB_REDUCE_MAX,
  };

  ebb_cursor_init_dims (&work.kept, x, ~launch->params.reduce.dims);
  ebb_cursor_init_dims (&work.reduced, x, launch->params.reduce.dims);
  if (work.reduced.n_elements > 0)
    ebb_cpu_parallel_for (work.kept.n_elements, MAX (1, EBB_CPU_GRAIN / 2 / work.reduced.n_elements), arg_reduce,
                          &work);
  return TRUE;
}
