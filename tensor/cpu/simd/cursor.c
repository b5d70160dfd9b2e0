/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

/* Walks views of any strides in rows that a kernel's inner loop can take. */

/* Merges the dimensions of the mask that a single stride can walk; the order of elements stays. */
void
ebb_cursor_init_dims (EbbCursor *cursor,
                      const EbbView *view,
                      guint32 dims)
{
  int n = 0;

  cursor->data = view->data;
  cursor->dtype = view->dtype;
  cursor->size = ebb_dtype_size_ (view->dtype);
  cursor->n_elements = 1;
  cursor->offset = 0;
  for (int d = 0; d < view->n_dims; d++)
    {
      gint64 size = view->shape[d];

      if ((dims >> d & 1) == 0 || size == 1)
        continue;
      cursor->n_elements *= size;
      if (n > 0 && cursor->strides[n - 1] == view->strides[d] * size)
        cursor->shape[n - 1] *= size;
      else
        cursor->shape[n++] = size;
      cursor->strides[n - 1] = view->strides[d];
      cursor->index[n - 1] = 0;
    }
  /* Nothing is walked where nothing is, so that no place in it is sought by a division by zero. */
  cursor->n_dims = cursor->n_elements > 0 ? n : 0;
}

void
ebb_cursor_init (EbbCursor *cursor,
                 const EbbView *view)
{
  ebb_cursor_init_dims (cursor, view, G_MAXUINT32);
}

void
ebb_cursor_seek (EbbCursor *cursor,
                 gint64 i)
{
  cursor->offset = 0;
  if (cursor->n_dims == 1)
    {
      cursor->index[0] = i;
      cursor->offset = i * cursor->strides[0];
      return;
    }
  for (int d = cursor->n_dims - 1; d >= 0; d--)
    {
      cursor->index[d] = d == 0 ? i : i % cursor->shape[d];
      i /= cursor->shape[d];
      cursor->offset += cursor->index[d] * cursor->strides[d];
    }
}

/* Moves by n elements, which stay within the innermost dimension or end it. */
static inline void
advance (EbbCursor *cursor,
         gint64 n)
{
  int d = cursor->n_dims - 1;

  cursor->index[d] += n;
  cursor->offset += n * cursor->strides[d];
  while (d > 0 && cursor->index[d] == cursor->shape[d])
    {
      cursor->offset += cursor->strides[d - 1] - cursor->shape[d] * cursor->strides[d];
      cursor->index[d--] = 0;
      cursor->index[d]++;
    }
}

#define WALK(run, cursor, n, values)                                                                         \
  G_STMT_START                                                                                               \
  {                                                                                                          \
    int last = (cursor)->n_dims - 1;                                                                         \
                                                                                                             \
    if (last < 0)                                                                                            \
      run ((cursor)->dtype, (cursor)->data, 0, n, values);                                                   \
    else                                                                                                     \
      for (gint64 done = 0; done < (n);)                                                                     \
        {                                                                                                    \
          gint64 step = MIN ((n) -done, (cursor)->shape[last] - (cursor)->index[last]);                      \
                                                                                                             \
          run ((cursor)->dtype, (cursor)->data + (cursor)->offset * (cursor)->size, (cursor)->strides[last], \
               step, (values) + done);                                                                       \
          advance (cursor, step);                                                                            \
          done += step;                                                                                      \
        }                                                                                                    \
  }                                                                                                          \
  G_STMT_END

void
ebb_cursor_load_f32 (EbbCursor *cursor,
                     gint64 n,
                     float *out)
{
  WALK (ebb_run_to_f32, cursor, n, out);
}

void
ebb_cursor_store_f32 (EbbCursor *cursor,
                      gint64 n,
                      const float *in)
{
  WALK (ebb_run_from_f32, cursor, n, in);
}

void
ebb_cursor_load_i64 (EbbCursor *cursor,
                     gint64 n,
                     gint64 *out)
{
  WALK (ebb_run_to_i64, cursor, n, out);
}

void
ebb_cursor_store_i64 (EbbCursor *cursor,
                      gint64 n,
                      const gint64 *in)
{
  WALK (ebb_run_from_i64, cursor, n, in);
}

const float *
ebb_vector_as_f32 (const EbbLaunch *launch,
                   gsize *used,
                   const EbbView *view,
                   gboolean plus_one)
{
  gint64 n;
  float *copy;

  if (view == NULL || (view->dtype == EBB_DTYPE_F32 && !plus_one))
    return view != NULL ? view->data : NULL;
  n = ebb_view_count_elements (view);
  copy = ebb_workspace_take (launch, used, (gsize) n * sizeof (float));
  ebb_run_to_f32 (view->dtype, view->data, 1, n, copy);
  for (gint64 i = 0; plus_one && i < n; i++)
    copy[i] += 1.0f;
  return copy;
}
