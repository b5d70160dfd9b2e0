/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "dist/rank-state-private.h"

#include "dist/value-checksum-private.h"
#include "nn/module-private.h"
#include "tensor/partition-private.h"

typedef struct
{
  char *name;
  EbbTensor *tensor;
  gboolean is_buffer;
} Item;

struct _EbbRankState
{
  GArray *items; /* of Item */
  GHashTable *seen;
};

static void
item_clear (gpointer data)
{
  Item *item = data;

  g_free (item->name);
  ebb_tensor_unref (item->tensor);
}

EbbRankState *
ebb_rank_state_new (void)
{
  EbbRankState *self = g_new0 (EbbRankState, 1);

  self->items = g_array_new (FALSE, FALSE, sizeof (Item));
  g_array_set_clear_func (self->items, item_clear);
  self->seen = g_hash_table_new (NULL, NULL);
  return self;
}

void
ebb_rank_state_free (EbbRankState *self)
{
  g_array_unref (self->items);
  g_hash_table_unref (self->seen);
  g_free (self);
}

static void
add (EbbRankState *self,
     const char *name,
     EbbTensor *tensor,
     gboolean is_buffer)
{
  Item item = { NULL, tensor, is_buffer };

  if (!g_hash_table_add (self->seen, tensor))
    return;
  item.name = g_strdup (name);
  ebb_tensor_ref (tensor);
  g_array_append_val (self->items, item);
}

void
ebb_rank_state_add_parameter (EbbRankState *self,
                              const char *name,
                              EbbTensor *parameter)
{
  add (self, name, parameter, FALSE);
}

void
ebb_rank_state_add_buffers (EbbRankState *self,
                            EbbModule *module)
{
  g_auto (GStrv) names = ebb_module_get_buffer_names (module, TRUE);
  g_autofree EbbTensor **buffers = NULL;
  guint n;

  buffers = ebb_module_get_buffers (module, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      add (self, names[i], buffers[i], TRUE);
      ebb_tensor_unref (buffers[i]);
    }
}

static Item *
get_item (EbbRankState *self,
          guint index)
{
  return &g_array_index (self->items, Item, index);
}

/* Data ranks of a mesh have the same part; tensor-parallel ones have not, and don't belong together here. */
static char *
describe_part (const EbbPartition *partition)
{
  if (partition == NULL || partition->n_parts == 1)
    return g_strdup ("");
  return g_strdup_printf (" (tensor-parallel part %u of %u)", partition->index + 1, partition->n_parts);
}

void
ebb_rank_state_describe (EbbRankState *self,
                         GString *text)
{
  for (guint i = 0; i < self->items->len; i++)
    {
      const Item *item = get_item (self, i);
      const char *kind = item->is_buffer ? " buffer" : item->tensor->requires_grad ? ""
                                                                                   : " frozen";
      g_autofree char *shape = ebb_tensor_shape_to_string (item->tensor);
      g_autofree char *part = describe_part (item->tensor->partition);

      g_string_append_printf (text, "%s %s %s%s%s%s\n", item->name, ebb_dtype_get_name (item->tensor->view.dtype),
                              shape, part, kind,
                              ebb_view_is_contiguous (&item->tensor->view) ? "" : ", not contiguous");
    }
}

gboolean
ebb_rank_state_describe_values (EbbRankState *self,
                                GString *text,
                                GError **error)
{
  for (guint i = 0; i < self->items->len; i++)
    {
      const Item *item = get_item (self, i);
      guint64 checksum;

      if (!ebb_value_checksum (item->tensor, &checksum, error))
        return FALSE;
      g_string_append_printf (text, "%s %s with checksum %016" G_GINT64_MODIFIER "x\n",
                              item->is_buffer ? "buffer" : "parameter", item->name, checksum);
    }
  return TRUE;
}

static gboolean
check_contiguous (EbbRankState *self,
                  GError **error)
{
  for (guint i = 0; i < self->items->len; i++)
    {
      const Item *item = get_item (self, i);

      if (ebb_view_is_contiguous (&item->tensor->view))
        continue;
      g_set_error (
          error, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED,
          "the %s %s is not contiguous, so that the first rank's values can't be given to all: make it so first",
          item->is_buffer ? "buffer" : "parameter", item->name);
      return FALSE;
    }
  return TRUE;
}

/* Whether @next may go with @tensor. */
static gboolean
is_alike (EbbTensor *tensor,
          EbbTensor *next)
{
  return next->view.dtype == tensor->view.dtype && next->storage->device == tensor->storage->device;
}

/* As many at once as fit, since some ranks' engines need room for copies. What was worked out from the values of
 * before, as shadows of autocast, is so no more. */
gboolean
ebb_rank_state_broadcast (EbbRankState *self,
                          EbbProcessGroup *group,
                          guint64 max_bytes,
                          const char *purpose,
                          GError **error)
{
  g_autofree EbbCollectivePart *parts = g_new0 (EbbCollectivePart, self->items->len + 1);
  EbbTensor *last = NULL;
  guint64 n_bytes = 0;
  guint n_parts = 0;

  if (group == NULL || ebb_process_group_get_size (group) == 1)
    return TRUE;
  if (!check_contiguous (self, error))
    return FALSE;
  for (guint i = 0; i <= self->items->len; i++)
    {
      EbbTensor *tensor = i < self->items->len ? get_item (self, i)->tensor : NULL;
      const guint64 size = tensor != NULL ? ebb_tensor_get_n_bytes (tensor) : 0;

      if (tensor != NULL && size == 0)
        continue;
      if (n_parts > 0 && (tensor == NULL || !is_alike (last, tensor) || size > max_bytes - MIN (n_bytes, max_bytes)))
        {
          if (!ebb_process_group_run (group, EBB_COLLECTIVE_BROADCAST, EBB_REDUCE_OP_SUM, parts, n_parts, 0, purpose,
                                      error))
            return FALSE;
          n_bytes = n_parts = 0;
        }
      if (tensor == NULL)
        break;
      ebb_storage_change (tensor->storage);
      parts[n_parts++] = (EbbCollectivePart){ .whole = last = tensor };
      n_bytes += size;
    }
  return TRUE;
}
