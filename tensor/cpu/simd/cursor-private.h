/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

/* Reading and writing views of any dtype and strides in logical order, as blocks of f32 or i64: a kernel is then one
 * loop over contiguous numbers. */

#define ebb_run_to_f32 EBB_SIMD_NAME (ebb_run_to_f32)
#define ebb_run_from_f32 EBB_SIMD_NAME (ebb_run_from_f32)
#define ebb_run_to_i64 EBB_SIMD_NAME (ebb_run_to_i64)
#define ebb_run_from_i64 EBB_SIMD_NAME (ebb_run_from_i64)
#define ebb_vector_as_f32 EBB_SIMD_NAME (ebb_vector_as_f32)
#define ebb_cursor_init EBB_SIMD_NAME (ebb_cursor_init)
#define ebb_cursor_init_dims EBB_SIMD_NAME (ebb_cursor_init_dims)
#define ebb_cursor_seek EBB_SIMD_NAME (ebb_cursor_seek)
#define ebb_cursor_load_f32 EBB_SIMD_NAME (ebb_cursor_load_f32)
#define ebb_cursor_store_f32 EBB_SIMD_NAME (ebb_cursor_store_f32)
#define ebb_cursor_load_i64 EBB_SIMD_NAME (ebb_cursor_load_i64)
#define ebb_cursor_store_i64 EBB_SIMD_NAME (ebb_cursor_store_i64)

/* Elements of a block, which stands in a buffer on the stack. */
#define EBB_CURSOR_BLOCK 512

/* n elements that lie stride elements apart, to and from contiguous numbers. Floats become integers by truncation, a
 * NaN becomes 0, and anything but 0 is TRUE. */
void ebb_run_to_f32 (EbbDType dtype,
                     const void *source,
                     gint64 stride,
                     gint64 n,
                     float *out);
void ebb_run_from_f32 (EbbDType dtype,
                       void *target,
                       gint64 stride,
                       gint64 n,
                       const float *in);
void ebb_run_to_i64 (EbbDType dtype,
                     const void *source,
                     gint64 stride,
                     gint64 n,
                     gint64 *out);
void ebb_run_from_i64 (EbbDType dtype,
                       void *target,
                       gint64 stride,
                       gint64 n,
                       const gint64 *in);

/* A contiguous vector as f32, plus one if asked: where it stands if it is that, else a copy in workspace. NULL for
 * NULL.
 */
const float *ebb_vector_as_f32 (const EbbLaunch *launch,
                                gsize *used,
                                const EbbView *view,
                                gboolean plus_one);

/* A view with its dimensions merged where that is possible, and a place in it. */
typedef struct
{
  char *data;
  EbbDType dtype;
  int size; /* of an element, in bytes */
  int n_dims;
  gint64 n_elements;
  gint64 shape[EBB_MAX_DIMS];
  gint64 strides[EBB_MAX_DIMS];
  gint64 index[EBB_MAX_DIMS];
  gint64 offset; /* of the place, in elements */
} EbbCursor;

void ebb_cursor_init (EbbCursor *cursor,
                      const EbbView *view);

/* Of the dimensions in the bit mask alone, the others standing at 0. */
void ebb_cursor_init_dims (EbbCursor *cursor,
                           const EbbView *view,
                           guint32 dims);

void ebb_cursor_seek (EbbCursor *cursor,
                      gint64 i);

/* The next n elements; the place moves behind them. */
void ebb_cursor_load_f32 (EbbCursor *cursor,
                          gint64 n,
                          float *out);
void ebb_cursor_store_f32 (EbbCursor *cursor,
                           gint64 n,
                           const float *in);
void ebb_cursor_load_i64 (EbbCursor *cursor,
                          gint64 n,
                          gint64 *out);
void ebb_cursor_store_i64 (EbbCursor *cursor,
                           gint64 n,
                           const gint64 *in);

static inline int
ebb_dtype_size_ (EbbDType dtype)
{
  static const guint8 sizes[EBB_N_DTYPES] = { 4, 2, 2, 4, 8, 1, 1 };

  return sizes[dtype];
}

static inline gboolean
ebb_dtype_is_float_ (EbbDType dtype)
{
  return dtype <= EBB_DTYPE_F16;
}

/* Truncates; what does not fit becomes the nearest that does, a NaN 0. */
static inline gint64
ebb_double_to_i64 (double value)
{
  if (value >= 9223372036854775808.0)
    return G_MAXINT64;
  if (value < -9223372036854775808.0)
    return G_MININT64;
  return value != value ? 0 : (gint64) value;
}

/* The workspace of ebb_vector_as_f32 (). */
static inline gsize
ebb_vector_count_workspace (const EbbView *view,
                            gboolean plus_one)
{
  if (view == NULL || (view->dtype == EBB_DTYPE_F32 && !plus_one))
    return 0;
  return ((gsize) ebb_view_count_elements (view) * sizeof (float) + 63) / 64 * 64;
}

/* The last dimension, and the product of those before it. */
static inline void
ebb_view_get_rows (const EbbView *view,
                   gint64 *rows,
                   gint64 *columns)
{
  *rows = 1;
  *columns = view->n_dims > 0 ? view->shape[view->n_dims - 1] : 1;
  for (int d = 0; d < view->n_dims - 1; d++)
    *rows *= view->shape[d];
}

/* Rows along the last dimension, whose stride is 1; the dimensions before it are merged where that is possible. */
typedef struct
{
  int n_dims;
  gint64 shape[EBB_MAX_DIMS];
  gint64 strides[EBB_MAX_DIMS];
} EbbRows;

static inline void
ebb_rows_init (EbbRows *rows,
               const EbbView *view)
{
  rows->n_dims = 0;
  for (int d = 0; d < view->n_dims - 1; d++)
    {
      int last = rows->n_dims - 1;

      if (view->shape[d] == 1)
        continue;
      if (last >= 0 && rows->strides[last] == view->shape[d] * view->strides[d])
        {
          rows->shape[last] *= view->shape[d];
          rows->strides[last] = view->strides[d];
          continue;
        }
      rows->shape[rows->n_dims] = view->shape[d];
      rows->strides[rows->n_dims++] = view->strides[d];
    }
}

/* The offset of the first element of row @row. */
static inline gint64
ebb_rows_get_offset (const EbbRows *rows,
                     gint64 row)
{
  gint64 offset = 0;

  for (int d = rows->n_dims - 1; d > 0; d--)
    {
      offset += row % rows->shape[d] * rows->strides[d];
      row /= rows->shape[d];
    }
  return rows->n_dims > 0 ? offset + row * rows->strides[0] : 0;
}

static inline gboolean
ebb_cursor_is_contiguous (const EbbCursor *cursor)
{
  return cursor->n_dims == 0 || (cursor->n_dims == 1 && cursor->strides[0] == 1);
}

/* All elements are one. */
static inline gboolean
ebb_cursor_is_uniform (const EbbCursor *cursor)
{
  return cursor->n_dims == 0 || (cursor->n_dims == 1 && cursor->strides[0] == 0);
}

/* The next n elements as f32, where they stand if they are that already, else in the buffer. */
static inline const float *
ebb_cursor_read_f32 (EbbCursor *cursor,
                     gint64 n,
                     float *buffer)
{
  if (cursor->dtype == EBB_DTYPE_F32 && ebb_cursor_is_contiguous (cursor))
    {
      const float *data = (const float *) cursor->data + cursor->offset;

      cursor->offset += n;
      return data;
    }
  ebb_cursor_load_f32 (cursor, n, buffer);
  return buffer;
}
