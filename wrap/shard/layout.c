/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/layout-private.h"

#include "tensor/backend/kernel-private.h"

typedef struct
{
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;
  gint64 n_rows;
  gint64 n_elements;
  guint buffer;
  gint64 start; /* in the flat buffer */
} Parameter;

struct _EbbShardLayout
{
  int ref_count;
  guint n_ranks;
  gboolean flatten;
  guint n_parameters;
  Parameter *parameters;
  guint n_buffers;
  gint64 *n_elements; /* [n_buffers] */
  gint64 *counts;     /* [n_buffers][n_ranks] */
};

/* floor (rank n / n_ranks), without the product */
static gint64
get_cut (gint64 n,
         guint rank,
         guint n_ranks)
{
  return n / n_ranks * rank + n % n_ranks * rank / n_ranks;
}

static void
count_pieces (EbbShardLayout *self)
{
  self->counts = g_new (gint64, (gsize) self->n_buffers * self->n_ranks + 1);
  for (guint b = 0; b < self->n_buffers; b++)
    for (guint r = 0; r < self->n_ranks; r++)
      {
        gint64 begin = get_cut (self->n_elements[b], r, self->n_ranks);
        gint64 end = get_cut (self->n_elements[b], r + 1, self->n_ranks);

        if (!self->flatten)
          ebb_shard_layout_get_range (self, b, r, &begin, &end);
        self->counts[(gsize) b * self->n_ranks + r] = end - begin;
      }
}

/* Flattened: the buffers of whole parameters and of parts, if there are such, else one, though it may be empty. */
static guint
choose_buffers (EbbShardLayout *self,
                const gboolean *are_parts)
{
  guint n_parts = 0;

  for (guint p = 0; p < self->n_parameters; p++)
    n_parts += are_parts != NULL && are_parts[p];
  for (guint p = 0; p < self->n_parameters; p++)
    self->parameters[p].buffer = !self->flatten ? p : n_parts > 0 && n_parts < self->n_parameters && are_parts[p];
  if (!self->flatten)
    return self->n_parameters;
  return n_parts > 0 && n_parts < self->n_parameters ? 2 : 1;
}

EbbShardLayout *
ebb_shard_layout_new (guint n_ranks,
                      gboolean flatten,
                      guint n_parameters,
                      const gint64 *const *shapes,
                      const guint *n_dims,
                      const gboolean *are_parts)
{
  EbbShardLayout *self = g_new0 (EbbShardLayout, 1);

  g_assert (n_ranks > 0);
  self->ref_count = 1;
  self->n_ranks = n_ranks;
  self->flatten = flatten;
  self->n_parameters = n_parameters;
  self->parameters = g_new0 (Parameter, n_parameters + 1);
  self->n_buffers = choose_buffers (self, are_parts);
  self->n_elements = g_new0 (gint64, self->n_buffers + 1);
  for (guint p = 0; p < n_parameters; p++)
    {
      Parameter *parameter = &self->parameters[p];

      g_assert (n_dims[p] <= EBB_MAX_DIMS);
      parameter->n_dims = n_dims[p];
      parameter->n_rows = n_dims[p] > 0 ? shapes[p][0] : 1;
      parameter->n_elements = 1;
      parameter->start = flatten ? self->n_elements[parameter->buffer] : 0;
      for (guint d = 0; d < n_dims[p]; d++)
        {
          parameter->shape[d] = shapes[p][d];
          parameter->n_elements *= shapes[p][d];
        }
      self->n_elements[parameter->buffer] += parameter->n_elements;
    }
  count_pieces (self);
  return self;
}

EbbShardLayout *
ebb_shard_layout_ref (EbbShardLayout *self)
{
  g_atomic_int_inc (&self->ref_count);
  return self;
}

void
ebb_shard_layout_unref (EbbShardLayout *self)
{
  if (!g_atomic_int_dec_and_test (&self->ref_count))
    return;
  g_free (self->parameters);
  g_free (self->n_elements);
  g_free (self->counts);
  g_free (self);
}

guint
ebb_shard_layout_get_n_ranks (const EbbShardLayout *self)
{
  return self->n_ranks;
}

guint
ebb_shard_layout_get_n_parameters (const EbbShardLayout *self)
{
  return self->n_parameters;
}

gboolean
ebb_shard_layout_get_flatten (const EbbShardLayout *self)
{
  return self->flatten;
}

const gint64 *
ebb_shard_layout_get_whole_shape (const EbbShardLayout *self,
                                  guint parameter,
                                  guint *n_dims)
{
  *n_dims = self->parameters[parameter].n_dims;
  return self->parameters[parameter].shape;
}

gint64
ebb_shard_layout_get_n_elements (const EbbShardLayout *self,
                                 guint parameter)
{
  return self->parameters[parameter].n_elements;
}

void
ebb_shard_layout_get_range (const EbbShardLayout *self,
                            guint parameter,
                            guint rank,
                            gint64 *begin,
                            gint64 *end)
{
  const Parameter *p = &self->parameters[parameter];

  if (self->flatten)
    {
      gint64 from = get_cut (self->n_elements[p->buffer], rank, self->n_ranks) - p->start;
      gint64 to = get_cut (self->n_elements[p->buffer], rank + 1, self->n_ranks) - p->start;

      *begin = CLAMP (from, 0, p->n_elements);
      *end = CLAMP (to, 0, p->n_elements);
    }
  else
    {
      gint64 row = p->n_rows > 0 ? p->n_elements / p->n_rows : 0;

      *begin = get_cut (p->n_rows, rank, self->n_ranks) * row;
      *end = get_cut (p->n_rows, rank + 1, self->n_ranks) * row;
    }
}

guint
ebb_shard_layout_get_shard_n_dims (const EbbShardLayout *self,
                                   guint parameter)
{
  return MAX (1, self->parameters[parameter].n_dims);
}

void
ebb_shard_layout_get_shape (const EbbShardLayout *self,
                            guint parameter,
                            guint rank,
                            gint64 *shape)
{
  const Parameter *p = &self->parameters[parameter];
  guint n_dims = ebb_shard_layout_get_shard_n_dims (self, parameter);
  gint64 begin, end;

  ebb_shard_layout_get_range (self, parameter, rank, &begin, &end);
  for (guint d = 0; d < n_dims; d++)
    shape[d] = self->flatten || p->n_dims == 0 ? 1 : p->shape[d];
  if (self->flatten || p->n_dims == 0)
    shape[n_dims - 1] = end - begin;
  else
    shape[0] = get_cut (p->n_rows, rank + 1, self->n_ranks) - get_cut (p->n_rows, rank, self->n_ranks);
}

guint
ebb_shard_layout_get_n_buffers (const EbbShardLayout *self)
{
  return self->n_buffers;
}

const gint64 *
ebb_shard_layout_get_counts (const EbbShardLayout *self,
                             guint buffer)
{
  return self->counts + (gsize) buffer * self->n_ranks;
}

gint64
ebb_shard_layout_get_buffer_size (const EbbShardLayout *self,
                                  guint buffer)
{
  return self->n_elements[buffer];
}

void
ebb_shard_layout_locate (const EbbShardLayout *self,
                         guint parameter,
                         guint *buffer,
                         gint64 *offset)
{
  *buffer = self->parameters[parameter].buffer;
  *offset = self->parameters[parameter].start;
}

gint64
ebb_shard_layout_get_shard_offset (const EbbShardLayout *self,
                                   guint parameter,
                                   guint rank)
{
  const Parameter *p = &self->parameters[parameter];
  gint64 begin, end;

  if (!self->flatten)
    return 0;
  ebb_shard_layout_get_range (self, parameter, rank, &begin, &end);
  /* A shard of nothing lies where the piece begins, or where it ends: inside it anyway. */
  return CLAMP (p->start + begin - get_cut (self->n_elements[p->buffer], rank, self->n_ranks), 0,
                ebb_shard_layout_get_counts (self, p->buffer)[rank]);
}
