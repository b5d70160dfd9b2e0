/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <string.h>

static void
copy_element (const EbbView *to,
              gint64 to_offset,
              const EbbView *from,
              gint64 from_offset)
{
  gsize size = ebb_dtype_get_size (to->dtype);

  memcpy ((char *) to->data + to_offset * size, (const char *) from->data + from_offset * size, size);
}

static void
add_element (const EbbView *to,
             gint64 to_offset,
             const EbbView *from,
             gint64 from_offset)
{
  if (ebb_dtype_is_floating_point (to->dtype))
    ebb_reference_store (to, to_offset,
                         ebb_reference_load (to, to_offset) + ebb_reference_load (from, from_offset));
  else
    ebb_reference_store_integer (to, to_offset,
                                 ebb_reference_load_integer (to, to_offset)
                                     + ebb_reference_load_integer (from, from_offset));
}

/* The offset in @view of the element at the place of @position in @index, but at @value along @dim. */
static gint64
get_offset (const EbbView *view,
            const EbbView *index,
            gint64 position,
            int dim,
            gint64 value)
{
  gint64 offset = 0;

  for (int i = index->n_dims - 1; i >= 0; i--)
    {
      offset += (i == dim ? value : position % index->shape[i]) * view->strides[i];
      position /= index->shape[i];
    }
  return offset;
}

static gint64
get_place (const EbbView *view,
           const EbbView *index,
           gint64 position)
{
  return get_offset (view, index, position, -1, 0);
}

/* FALSE with @error set if an index is outside [0, limit). */
static gboolean
check_indices (const EbbView *index,
               gint64 limit,
               GError **error)
{
  for (gint64 i = 0; i < ebb_reference_count (index); i++)
    {
      gint64 value = ebb_reference_load_integer (index, get_place (index, index, i));

      if (value >= 0 && value < limit)
        continue;
      g_set_error (error, EBB_ERROR, EBB_ERROR_INDEX, "index %" G_GINT64_FORMAT " is out of range", value);
      return FALSE;
    }
  return TRUE;
}

gboolean
ebb_reference_index_select (const EbbLaunch *launch,
                            GError **error)
{
  const EbbView *x = launch->inputs[0], *index = launch->inputs[1], *y = launch->outputs[0];

  if (!check_indices (index, x->shape[1], error))
    return FALSE;
  for (gint64 outer = 0; outer < y->shape[0]; outer++)
    for (gint64 row = 0; row < y->shape[1]; row++)
      for (gint64 i = 0; i < y->shape[2]; i++)
        copy_element (y, outer * y->strides[0] + row * y->strides[1] + i * y->strides[2], x,
                      outer * x->strides[0]
                          + ebb_reference_load_integer (index, row * index->strides[0]) * x->strides[1]
                          + i * x->strides[2]);
  return TRUE;
}

gboolean
ebb_reference_index_add (const EbbLaunch *launch,
                         GError **error)
{
  const EbbView *source = launch->inputs[0], *index = launch->inputs[1], *y = launch->outputs[0];

  if (!check_indices (index, y->shape[1], error))
    return FALSE;
  for (gint64 outer = 0; outer < source->shape[0]; outer++)
    for (gint64 row = 0; row < source->shape[1]; row++)
      for (gint64 i = 0; i < source->shape[2]; i++)
        add_element (y,
                     outer * y->strides[0] + ebb_reference_load_integer (index, row * index->strides[0]) * y->strides[1]
                         + i * y->strides[2],
                     source, outer * source->strides[0] + row * source->strides[1] + i * source->strides[2]);
  return TRUE;
}

gboolean
ebb_reference_gather (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *x = launch->inputs[0], *index = launch->inputs[1], *y = launch->outputs[0];

  if (!check_indices (index, index->n_dims == 0 ? 1 : x->shape[launch->params.index.dim], error))
    return FALSE;
  for (gint64 i = 0; i < ebb_reference_count (index); i++)
    {
      gint64 value = ebb_reference_load_integer (index, get_place (index, index, i));

      copy_element (y, get_place (y, index, i), x, get_offset (x, index, i, launch->params.index.dim, value));
    }
  return TRUE;
}

gboolean
ebb_reference_scatter_add (const EbbLaunch *launch,
                           GError **error)
{
  const EbbView *source = launch->inputs[0], *index = launch->inputs[1], *y = launch->outputs[0];

  if (!check_indices (index, index->n_dims == 0 ? 1 : y->shape[launch->params.index.dim], error))
    return FALSE;
  for (gint64 i = 0; i < ebb_reference_count (index); i++)
    {
      gint64 value = ebb_reference_load_integer (index, get_place (index, index, i));

      add_element (y, get_offset (y, index, i, launch->params.index.dim, value), source, get_place (source, index, i));
    }
  return TRUE;
}
