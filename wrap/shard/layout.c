/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/layout-private.h"

/* Computes which elements of each parameter every rank holds, and where they lie in the buffers of collectives. */

/* floor (rank n / n_ranks), without the product */
static gint64
get_split (gint64 n,
           guint rank,
           guint n_ranks)
{
  return n / n_ranks * rank + n % n_ranks * rank / n_ranks;
}

static gint64
get_n_rows (const EbbShardParameter *parameter)
{
  return parameter->n_dims > 0 ? parameter->shape[0] : 1;
}

/* Flattened there is at least one buffer, though it may be empty. */
static guint
choose_buffers (EbbShardLayout *self,
                const guint *classes)
{
  guint n = self->flatten ? 1 : self->n_parameters;

  for (guint p = 0; p < self->n_parameters; p++)
    {
      guint like = 0;

      while (self->flatten && classes != NULL && classes[like] != classes[p])
        like++;
      if (!self->flatten)
        self->parameters[p].buffer = p;
      else if (p > 0)
        self->parameters[p].buffer = like < p ? self->parameters[like].buffer : n++;
    }
  return n;
}

static void
count_elements (EbbShardLayout *self)
{
  self->counts = g_new (gint64, (gsize) self->n_buffers * self->n_ranks + 1);
  for (guint b = 0; b < self->n_buffers; b++)
    for (guint r = 0; r < self->n_ranks; r++)
      {
        gint64 begin = get_split (self->n_elements[b], r, self->n_ranks);
        gint64 end = get_split (self->n_elements[b], r + 1, self->n_ranks);

        if (!self->flatten)
          ebb_shard_layout_get_range (self, b, r, &begin, &end);
        self->counts[(gsize) b * self->n_ranks + r] = end - begin;
      }
}

EbbShardLayout *
ebb_shard_layout_new (guint n_ranks,
                      gboolean flatten,
                      guint n_parameters,
                      const gint64 *const *shapes,
                      const guint *n_dims,
                      const guint *classes)
{
  EbbShardLayout *self = g_new0 (EbbShardLayout, 1);

  g_assert (n_ranks > 0);
  self->n_ranks = n_ranks;
  self->flatten = flatten;
  self->n_parameters = n_parameters;
  self->parameters = g_new0 (EbbShardParameter, n_parameters + 1);
  self->n_buffers = choose_buffers (self, classes);
  self->n_elements = g_new0 (gint64, self->n_buffers + 1);
  for (guint p = 0; p < n_parameters; p++)
    {
      EbbShardParameter *parameter = &self->parameters[p];

      g_assert (n_dims[p] <= EBB_MAX_DIMS);
      parameter->n_dims = n_dims[p];
      parameter->n_elements = 1;
      parameter->start = self->n_elements[parameter->buffer];
      for (guint d = 0; d < n_dims[p]; d++)
        {
          parameter->shape[d] = shapes[p][d];
          parameter->n_elements *= shapes[p][d];
        }
      self->n_elements[parameter->buffer] += parameter->n_elements;
    }
  count_elements (self);
  return self;
}

const gint64 *
ebb_shard_layout_get_counts (const EbbShardLayout *self,
                             guint buffer)
{
  return self->counts + (gsize) buffer * self->n_ranks;
}

void
ebb_shard_layout_get_range (const EbbShardLayout *self,
                            guint parameter,
                            guint rank,
                            gint64 *begin,
                            gint64 *end)
{
  const EbbShardParameter *p = &self->parameters[parameter];
  /* Rows stay together, as units of so many elements. */
  const gint64 n_rows = get_n_rows (p), unit = self->flatten ? 1 : n_rows > 0 ? p->n_elements / n_rows
                                                                              : 0;
  const gint64 n = self->flatten ? self->n_elements[p->buffer] : n_rows;

  *begin = CLAMP (get_split (n, rank, self->n_ranks) * unit - p->start, 0, p->n_elements);
  *end = CLAMP (get_split (n, rank + 1, self->n_ranks) * unit - p->start, 0, p->n_elements);
}

guint
ebb_shard_layout_get_shape (const EbbShardLayout *self,
                            guint parameter,
                            guint rank,
                            gint64 *shape)
{
  const EbbShardParameter *p = &self->parameters[parameter];
  const guint n_dims = MAX (1, p->n_dims);
  const gboolean is_flat = self->flatten || p->n_dims == 0;
  gint64 begin, end;

  ebb_shard_layout_get_range (self, parameter, rank, &begin, &end);
  for (guint d = 0; d < n_dims; d++)
    shape[d] = is_flat ? 1 : p->shape[d];
  if (is_flat)
    shape[n_dims - 1] = end - begin;
  else
    shape[0] = get_split (p->shape[0], rank + 1, self->n_ranks) - get_split (p->shape[0], rank, self->n_ranks);
  return n_dims;
}

gint64
ebb_shard_layout_get_shard_offset (const EbbShardLayout *self,
                                   guint parameter,
                                   guint rank)
{
  const EbbShardParameter *p = &self->parameters[parameter];
  gint64 begin, end;

  if (!self->flatten)
    return 0;
  ebb_shard_layout_get_range (self, parameter, rank, &begin, &end);
  /* An empty shard lies where the rank's elements begin or end: inside them anyway. */
  return CLAMP (p->start + begin - get_split (self->n_elements[p->buffer], rank, self->n_ranks), 0,
                ebb_shard_layout_get_counts (self, p->buffer)[rank]);
}

void
ebb_shard_layout_free (EbbShardLayout *self)
{
  g_free (self->parameters);
  g_free (self->n_elements);
  g_free (self->counts);
  g_free (self);
}
