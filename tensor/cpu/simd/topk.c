/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/simd-private.h"

#include "tensor/cpu/parallel-private.h"

/* The k largest or smallest elements of rows. */

typedef struct
{
  double value;
  gint64 index;
} Item;

typedef struct
{
  const EbbView *x;
  EbbView *values;
  gint64 *indices;
  gint64 columns, k;
  gboolean largest;
  Item *heaps; /* [rows, k] */
} Topk;

/* Whether a comes before b: by value (a NaN is the largest), then by index. */
static inline gboolean
comes_before (const Topk *work,
              Item a,
              Item b)
{
  gboolean a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;

  if (a_is_nan != b_is_nan)
    return a_is_nan == (work->largest != FALSE);
  if (a.value == b.value || a_is_nan)
    return a.index < b.index;
  return (a.value > b.value) == (work->largest != FALSE);
}

/* In a heap the last of all stands at the root. */
static void
sift_down (const Topk *work,
           Item *heap,
           gint64 n,
           gint64 at)
{
  Item item = heap[at];

  for (;;)
    {
      gint64 child = 2 * at + 1;

      if (child >= n)
        break;
      if (child + 1 < n && comes_before (work, heap[child], heap[child + 1]))
        child++;
      if (!comes_before (work, item, heap[child]))
        break;
      heap[at] = heap[child];
      at = child;
    }
  heap[at] = item;
}

static void
offer (const Topk *work,
       Item *heap,
       gint64 *n,
       Item item)
{
  if (*n < work->k)
    {
      heap[(*n)++] = item;
      if (*n == work->k)
        for (gint64 at = work->k / 2 - 1; at >= 0; at--)
          sift_down (work, heap, *n, at);
    }
  else if (comes_before (work, item, heap[0]))
    {
      heap[0] = item;
      sift_down (work, heap, *n, 0);
    }
}

static void
sort_heap (const Topk *work,
           Item *heap)
{
  for (gint64 n = work->k - 1; n > 0; n--)
    {
      Item last = heap[0];

      heap[0] = heap[n];
      heap[n] = last;
      sift_down (work, heap, n, 0);
    }
}

static void
select_row (const Topk *work,
            gint64 row,
            Item *heap)
{
  int size = ebb_dtype_size_ (work->x->dtype);
  const char *data = (const char *) work->x->data + row * work->columns * size;
  gboolean is_float = ebb_dtype_is_float_ (work->x->dtype);
  gint64 n_heap = 0, n;

  for (gint64 i = 0; i < work->columns; i += n)
    {
      float floats[EBB_CURSOR_BLOCK];
      gint64 integers[EBB_CURSOR_BLOCK];

      n = MIN (work->columns - i, EBB_CURSOR_BLOCK);
      if (is_float)
        ebb_run_to_f32 (work->x->dtype, data + i * size, 1, n, floats);
      else
        ebb_run_to_i64 (work->x->dtype, data + i * size, 1, n, integers);
      for (gint64 j = 0; j < n; j++)
        offer (work, heap, &n_heap, (Item){ is_float ? floats[j] : (double) integers[j], i + j });
    }
  sort_heap (work, heap);
  for (gint64 j = 0; j < work->k; j++)
    {
      if (work->indices != NULL)
        work->indices[row * work->k + j] = heap[j].index;
      if (work->values != NULL)
        memcpy ((char *) work->values->data + (row * work->k + j) * size, data + heap[j].index * size, (gsize) size);
    }
}

static void
select_rows (gint64 begin,
             gint64 end,
             void *data)
{
  const Topk *work = data;

  for (gint64 row = begin; row < end; row++)
    select_row (work, row, work->heaps + row * work->k);
}

EBB_SIMD_WORKSPACE (topk)
{
  gint64 rows, columns;

  ebb_view_get_rows (launch->inputs[0], &rows, &columns);
  return (gsize) rows * (gsize) launch->params.topk.k * sizeof (Item);
}

EBB_SIMD_KERNEL (topk)
{
  EbbView *indices = ebb_launch_get_output (launch, 1);
  Topk work = {
    .x = launch->inputs[0],
    .values = ebb_launch_get_output (launch, 0),
    .indices = indices != NULL ? indices->data : NULL,
    .k = launch->params.topk.k,
    .largest = launch->params.topk.largest,
  };
  gint64 rows;

  ebb_view_get_rows (work.x, &rows, &work.columns);
  if (rows == 0 || work.k == 0)
    return TRUE;
  work.heaps = launch->workspace;
  ebb_cpu_parallel_for (rows, MAX (1, EBB_CPU_GRAIN / 4 / work.columns), select_rows, &work);
  return TRUE;
}
