/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* Copies between views of any layout and dtype. */

/* A view's copy is transposing where source and target have different dimensions that are contiguous: those two are
 * walked in tiles, so that neither side is read or written an element a cache line. */
#define TILE 32

typedef float Quad __attribute__ ((vector_size (16), aligned (4), may_alias));

typedef struct
{
  const EbbView *x;
  const EbbView *y;
} Copy;

typedef struct
{
  const EbbView *x;
  const EbbView *y;
  int p; /* the dimension that is contiguous in x */
  int q; /* the one that is contiguous in y */
  gint64 n_tiles_p, n_tiles_q;
  EbbCursor x_others, y_others; /* the other dimensions */
} Transpose;

static void
copy_bytes (gint64 begin,
            gint64 end,
            void *data)
{
  const Copy *copy = data;
  gsize size = (gsize) ebb_dtype_size_ (copy->x->dtype);

  memcpy ((char *) copy->y->data + (gsize) begin * size, (const char *) copy->x->data + (gsize) begin * size,
          (gsize) (end - begin) * size);
}

static void
copy_contiguous_floats (gint64 begin,
                        gint64 end,
                        void *data)
{
  const Copy *copy = data;

  if (copy->x->dtype == EBB_DTYPE_F32)
    ebb_run_from_f32 (copy->y->dtype, (char *) copy->y->data + begin * ebb_dtype_size_ (copy->y->dtype), 1, end - begin,
                      (const float *) copy->x->data + begin);
  else
    ebb_run_to_f32 (copy->x->dtype, (const char *) copy->x->data + begin * ebb_dtype_size_ (copy->x->dtype), 1,
                    end - begin, (float *) copy->y->data + begin);
}

/* -- any strides --------------------------------------------------------------------------------------------------- */

static void
copy_f32 (gint64 begin,
          gint64 end,
          void *data)
{
  const Copy *copy = data;
  float buffer[EBB_CURSOR_BLOCK];
  EbbCursor x, y;
  gint64 n;

  ebb_cursor_init (&x, copy->x);
  ebb_cursor_init (&y, copy->y);
  ebb_cursor_seek (&x, begin);
  ebb_cursor_seek (&y, begin);
  if (y.dtype == EBB_DTYPE_F32 && ebb_cursor_is_contiguous (&y))
    {
      ebb_cursor_load_f32 (&x, end - begin, (float *) y.data + begin);
      return;
    }
  for (gint64 i = begin; i < end; i += n)
    {
      n = MIN (end - i, EBB_CURSOR_BLOCK);
      ebb_cursor_store_f32 (&y, n, ebb_cursor_read_f32 (&x, n, buffer));
    }
}

static void
copy_i64 (gint64 begin,
          gint64 end,
          void *data)
{
  const Copy *copy = data;
  EbbCursor x, y;
  gint64 n;

  ebb_cursor_init (&x, copy->x);
  ebb_cursor_init (&y, copy->y);
  ebb_cursor_seek (&x, begin);
  ebb_cursor_seek (&y, begin);
  for (gint64 i = begin; i < end; i += n)
    {
      gint64 buffer[EBB_CURSOR_BLOCK];

      n = MIN (end - i, EBB_CURSOR_BLOCK);
      ebb_cursor_load_i64 (&x, n, buffer);
      ebb_cursor_store_i64 (&y, n, buffer);
    }
}

/* Floats become integers, and the other way, by the same rules whatever the strides: f32 holds no large integers, so
 * integers stay integers as far as they can. */
static EbbParallelFunc
get_copy_func (EbbDType x,
               EbbDType y)
{
  return ebb_dtype_is_float_ (x) && (ebb_dtype_is_float_ (y) || y == EBB_DTYPE_BOOL) ? copy_f32 : copy_i64;
}

/* -- transposing --------------------------------------------------------------------------------------------------- */

static inline void
transpose_quad (const float *in,
                float *out)
{
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
  const Quad r0 = *(const Quad *) in, r1 = *(const Quad *) (in + TILE);
  const Quad r2 = *(const Quad *) (in + 2 * TILE), r3 = *(const Quad *) (in + 3 * TILE);
  const Quad a = __builtin_shufflevector (r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector (r0, r1, 2, 6, 3, 7);
  const Quad c = __builtin_shufflevector (r2, r3, 0, 4, 1, 5), d = __builtin_shufflevector (r2, r3, 2, 6, 3, 7);

  *(Quad *) out = __builtin_shufflevector (a, c, 0, 1, 4, 5);
  *(Quad *) (out + TILE) = __builtin_shufflevector (a, c, 2, 3, 6, 7);
  *(Quad *) (out + 2 * TILE) = __builtin_shufflevector (b, d, 0, 1, 4, 5);
  *(Quad *) (out + 3 * TILE) = __builtin_shufflevector (b, d, 2, 3, 6, 7);
#else
  for (int r = 0; r < 4; r++)
    for (int c = 0; c < 4; c++)
      out[c * TILE + r] = in[r * TILE + c];
#endif
}

static void
copy_tile (const Transpose *work,
           gint64 x_offset,
           gint64 y_offset,
           gint64 n_p,
           gint64 n_q)
{
  const EbbView *x = work->x, *y = work->y;
  float in[TILE * TILE], out[TILE * TILE];
  int x_size = ebb_dtype_size_ (x->dtype), y_size = ebb_dtype_size_ (y->dtype);

  for (gint64 q = 0; q < n_q; q++)
    {
      const char *row = (const char *) x->data + (x_offset + q * x->strides[work->q]) * x_size;

      /* The next tile goes on where this one's rows end, too far apart for the processor to see that. */
      for (int k = 0; k < TILE; k += 64 / x_size)
        __builtin_prefetch (row + (TILE + k) * x_size);
      ebb_run_to_f32 (x->dtype, row, 1, n_p, in + q * TILE);
    }
  for (gint64 q = 0; q < n_q; q += 4)
    for (gint64 p = 0; p < n_p; p += 4)
      transpose_quad (in + q * TILE + p, out + p * TILE + q);
  for (gint64 p = 0; p < n_p; p++)
    ebb_run_from_f32 (y->dtype, (char *) y->data + (y_offset + p * y->strides[work->p]) * y_size, 1, n_q,
                      out + p * TILE);
}

static void
copy_tiles (gint64 begin,
            gint64 end,
            void *data)
{
  const Transpose *work = data;
  const EbbView *x = work->x, *y = work->y;

  for (gint64 item = begin; item < end; item++)
    {
      EbbCursor x_others = work->x_others, y_others = work->y_others;
      gint64 tile_p = item % work->n_tiles_p;
      gint64 tile_q = item / work->n_tiles_p % work->n_tiles_q;
      gint64 p = tile_p * TILE, q = tile_q * TILE;

      ebb_cursor_seek (&x_others, item / (work->n_tiles_p * work->n_tiles_q));
      ebb_cursor_seek (&y_others, item / (work->n_tiles_p * work->n_tiles_q));
      copy_tile (work, x_others.offset + p + q * x->strides[work->q], y_others.offset + q + p * y->strides[work->p],
                 MIN (TILE, x->shape[work->p] - p), MIN (TILE, x->shape[work->q] - q));
    }
}

/* The dimension with stride 1 and more than a few elements, or -1 */
static int
find_contiguous (const EbbView *view)
{
  for (int d = view->n_dims - 1; d >= 0; d--)
    if (view->strides[d] == 1 && view->shape[d] > 1)
      return view->shape[d] >= 8 ? d : -1;
  return -1;
}

static gboolean
try_transpose (const EbbView *x,
               const EbbView *y)
{
  Transpose work = { .x = x, .y = y, .p = find_contiguous (x), .q = find_contiguous (y) };
  guint32 others;
  gint64 n_tiles;

  if (work.p < 0 || work.q < 0 || work.p == work.q || !ebb_dtype_is_float_ (x->dtype)
      || !ebb_dtype_is_float_ (y->dtype))
    return FALSE;
  others = G_MAXUINT32 & ~(1u << work.p) & ~(1u << work.q);
  ebb_cursor_init_dims (&work.x_others, x, others);
  ebb_cursor_init_dims (&work.y_others, y, others);
  work.n_tiles_p = (x->shape[work.p] + TILE - 1) / TILE;
  work.n_tiles_q = (x->shape[work.q] + TILE - 1) / TILE;
  n_tiles = work.x_others.n_elements * work.n_tiles_p * work.n_tiles_q;
  ebb_cpu_parallel_for (n_tiles, MAX (1, EBB_CPU_GRAIN / 2 * n_tiles / MAX (1, ebb_view_count_elements (x))),
                        copy_tiles, &work);
  return TRUE;
}

EBB_SIMD_KERNEL (copy)
{
  Copy copy = { launch->inputs[0], launch->outputs[0] };
  gint64 n = ebb_view_count_elements (copy.y);
  gboolean is_contiguous = ebb_view_is_contiguous (copy.x) && ebb_view_is_contiguous (copy.y);

  if (n == 0)
    return TRUE;
  if (is_contiguous && copy.x->dtype == copy.y->dtype)
    {
      if (copy.x->data != copy.y->data)
        ebb_cpu_parallel_for_units (n, 64, EBB_CPU_GRAIN, copy_bytes, &copy);
    }
  else if (is_contiguous && ebb_dtype_is_float_ (copy.x->dtype) && ebb_dtype_is_float_ (copy.y->dtype)
           && (copy.x->dtype == EBB_DTYPE_F32 || copy.y->dtype == EBB_DTYPE_F32))
    ebb_cpu_parallel_for_units (n, 64, EBB_CPU_GRAIN, copy_contiguous_floats, &copy);
  else if (is_contiguous || !try_transpose (copy.x, copy.y))
    ebb_cpu_parallel_for_units (n, EBB_CURSOR_BLOCK, EBB_CPU_GRAIN / 2,
                                get_copy_func (copy.x->dtype, copy.y->dtype), &copy);
  return TRUE;
}
