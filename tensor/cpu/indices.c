/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* What kernels do before they trust indices, which are data. */
#include "tensor/cpu/cpu-private.h"

#include "tensor/error-private.h"
#include "tensor/error.h"

/* Elements of a block: within one, indices are compared without a branch for each. */
#define BLOCK 1024

static inline gint64
get_index (const EbbView *index,
           gint64 i)
{
  return index->dtype == EBB_DTYPE_I64 ? ((const gint64 *) index->data)[i] : ((const gint32 *) index->data)[i];
}

/* The offset of element @position, counted in contiguous order. */
static gint64
find_offset (const EbbView *view,
             gint64 position)
{
  gint64 offset = 0;

  for (int i = view->n_dims - 1; i >= 0; i--)
    {
      offset += position % view->shape[i] * view->strides[i];
      position /= view->shape[i];
    }
  return offset;
}

/* @ignored: an index that is right besides, or NULL. */
static inline gboolean
is_bad (gint64 value,
        gint64 limit,
        const gint64 *ignored)
{
  return (value < 0 || value >= limit) && !(ignored != NULL && value == *ignored);
}

/* TRUE if one of elements [begin, end) is. */
static gboolean
has_bad (const EbbView *index,
         gint64 begin,
         gint64 end,
         gint64 limit,
         const gint64 *ignored)
{
  int bad = 0;

  if (index->dtype == EBB_DTYPE_I64)
    for (gint64 i = begin; i < end; i++)
      bad |= is_bad (((const gint64 *) index->data)[i], limit, ignored);
  else
    for (gint64 i = begin; i < end; i++)
      bad |= is_bad (((const gint32 *) index->data)[i], limit, ignored);
  return bad != 0;
}

static gboolean
check (const EbbLaunch *launch,
       const EbbView *index,
       gint64 limit,
       const gint64 *ignored,
       gint64 first,
       GError **error)
{
  const gboolean dense = ebb_view_is_contiguous (index);
  const gint64 n = ebb_view_count_elements (index);

  for (gint64 begin = 0; begin < n; begin += BLOCK)
    {
      const gint64 end = MIN (begin + BLOCK, n);

      if (dense && !has_bad (index, begin, end, limit, ignored))
        continue;
      for (gint64 i = begin; i < end; i++)
        {
          const gint64 value = get_index (index, dense ? i : find_offset (index, i));
          g_autofree char *text = NULL;

          if (!is_bad (value, limit, ignored))
            continue;
          text = ebb_index_fault_to_string (launch->op != NULL ? launch->op : ebb_kernel_get_name (launch->kernel),
                                            value, first + i, limit);
          return ebb_fail (error, EBB_ERROR_INDEX, "%s", text);
        }
    }
  return TRUE;
}

gboolean
ebb_cpu_check_indices (const EbbLaunch *launch,
                       const EbbView *index,
                       gint64 limit,
                       GError **error)
{
  return check (launch, index, limit, NULL, 0, error);
}

gboolean
ebb_cpu_check_targets (const EbbLaunch *launch,
                       const EbbView *targets,
                       GError **error)
{
  return check (launch, targets, launch->params.xent.n_classes, &launch->params.xent.ignore_index,
                launch->params.xent.first_row, error);
}
