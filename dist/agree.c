/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* All checks that ranks have the same: texts, outcomes, values, and the tensors that a module begins with. */
#include "dist/agree-private.h"

#include "dist/group/group-private.h"
#include "nn/module-private.h"
#include "tensor/autograd/autograd.h"
#include "tensor/backend/backend-private.h"
#include "tensor/ops/shape.h"
#include "tensor/partition-private.h"
#include "tensor/tensor-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/checksum-private.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LINE 160

/* -- texts --------------------------------------------------------------------------------------------------------- */

char **
ebb_agree_gather_texts (EbbProcessGroup *group,
                        const char *text,
                        GError **error)
{
  const guint size = ebb_process_group_get_size (group);
  const gint64 length = (gint64) strlen (text) + 1; /* with its zero byte */
  g_autoptr (EbbTensor) lengths = ebb_process_group_exchange (group, &length, 1, NULL, EBB_DTYPE_I64, error);
  g_autoptr (EbbTensor) all = NULL;
  const gint64 *counts;
  const char *next;
  char **texts;

  if (lengths == NULL)
    return NULL;
  counts = lengths->view.data;
  all = ebb_process_group_exchange (group, text, length, counts, EBB_DTYPE_U8, error);
  if (all == NULL)
    return NULL;
  texts = g_new0 (char *, size + 1);
  next = all->view.data;
  for (guint r = 0; r < size; next += counts[r++])
    texts[r] = g_strdup (next);
  return texts;
}

/* The first line of @a and of @b that differs, shortened; from there on, if a line is long. */
static void
find_difference (const char *a,
                 const char *b,
                 char **line_a,
                 char **line_b)
{
  const char *texts[] = { a, b };
  char **lines[] = { line_a, line_b };
  gsize n, m, same = 0;

  for (;; texts[0] += n + (texts[0][n] != '\0'), texts[1] += m + (texts[1][m] != '\0'))
    {
      n = strcspn (texts[0], "\n");
      m = strcspn (texts[1], "\n");
      if (n != m || memcmp (texts[0], texts[1], n) != 0 || (texts[0][n] == '\0' && texts[1][m] == '\0'))
        break;
    }
  while (same < MIN (n, m) && texts[0][same] == texts[1][same])
    same++;
  same = same > MAX_LINE / 2 ? same - MAX_LINE / 2 : 0;
  for (guint t = 0; t < 2; t++)
    {
      g_autofree char *rest = g_strndup (texts[t] + same, MIN (strcspn (texts[t] + same, "\n"), MAX_LINE));

      *lines[t] = *rest != '\0' ? g_utf8_make_valid (rest, -1) : g_strdup ("nothing");
    }
}

gboolean
ebb_agree_same_text (EbbProcessGroup *group,
                     const char *what,
                     const char *text,
                     GError **error)
{
  const guint n = ebb_process_group_get_size (group);
  const gint64 own[] = { (gint64) strlen (text), (gint64) g_str_hash (text) };
  g_autoptr (EbbTensor) marks = NULL;
  g_auto (GStrv) texts = NULL;
  gboolean is_same = TRUE;

  if ((error != NULL && *error != NULL) || ebb_is_stopped ())
    return error == NULL || *error == NULL;
  marks = ebb_process_group_exchange (group, own, 2, NULL, EBB_DTYPE_I64, error);
  if (marks == NULL)
    return FALSE;
  for (guint r = 0; r < n; r++)
    is_same = is_same && memcmp ((const gint64 *) marks->view.data + 2 * r, marks->view.data, sizeof own) == 0;
  if (is_same)
    return TRUE;
  texts = ebb_agree_gather_texts (group, text, error);
  for (guint r = 0; texts != NULL && r < n; r++)
    if (strcmp (texts[r], texts[0]) != 0)
      {
        g_autofree char *first = NULL;
        g_autofree char *other = NULL;

        find_difference (texts[0], texts[r], &first, &other);
        return ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                         "%s must be the same on all ranks: rank %u has \"%s\", rank 0 has \"%s\"", what, r, other,
                         first);
      }
  return texts != NULL;
}

gboolean
ebb_agree_no_failure (EbbProcessGroup *group,
                      GError *failure,
                      GError **error)
{
  g_autoptr (GError) own = failure;
  g_autofree char *text = own != NULL ? g_strdup_printf ("%d %s", own->code, own->message) : g_strdup ("");
  g_auto (GStrv) texts = ebb_agree_gather_texts (group, text, error);

  if (texts == NULL)
    return FALSE;
  if (own != NULL)
    {
      g_propagate_error (error, g_steal_pointer (&own));
      return FALSE;
    }
  for (guint r = 0; texts[r] != NULL; r++)
    if (*texts[r] != '\0')
      {
        char *message;
        int code = (int) strtol (texts[r], &message, 10);

        return ebb_fail (error, code, "rank %u: %s", r, g_strchug (message));
      }
  return TRUE;
}

/* -- values -------------------------------------------------------------------------------------------------------- */

const char *
ebb_agree_read (EbbTensor *tensor,
                char **copy,
                GError **error)
{
  const EbbDevice *device = tensor->storage->device;
  const gsize size = ebb_tensor_get_n_bytes (tensor);

  *copy = NULL;
  if (device->backend->host_memory)
    return tensor->view.data;
  *copy = g_try_malloc (size);
  if (*copy == NULL)
    ebb_error_set (error, EBB_ERROR_NO_MEMORY, "no host memory for %" G_GSIZE_FORMAT " bytes to compare", size);
  if (*copy != NULL && !device->backend->copy (device->index, *copy, tensor->view.data, size, TRUE, error))
    g_clear_pointer (copy, g_free);
  return *copy;
}

gboolean
ebb_agree_checksum (EbbTensor *tensor,
                    guint64 *checksum,
                    GError **error)
{
  const gsize size = ebb_tensor_get_n_bytes (tensor);
  g_autoptr (EbbTensor) alias = ebb_tensor_alias (tensor);
  g_autoptr (EbbTensor) dense = NULL;
  g_autofree char *copy = NULL;
  const char *bytes;

  ebb_push_grad_enabled (FALSE);
  dense = ebb_contiguous (alias, error);
  ebb_pop_grad_enabled ();
  if (dense == NULL)
    return FALSE;
  *checksum = 0;
  if (ebb_is_dry () || size == 0)
    return TRUE;
  bytes = ebb_agree_read (dense, &copy, error);
  if (bytes == NULL)
    return FALSE;
  *checksum = ebb_checksum_of (bytes, size);
  return TRUE;
}

/* -- the tensors of a module --------------------------------------------------------------------------------------- */

typedef struct
{
  char *name;
  EbbTensor *tensor;
  gboolean is_buffer;
} Item;

struct _EbbAgreeTensors
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

EbbAgreeTensors *
ebb_agree_tensors_new (void)
{
  EbbAgreeTensors *self = g_new0 (EbbAgreeTensors, 1);

  self->items = g_array_new (FALSE, FALSE, sizeof (Item));
  g_array_set_clear_func (self->items, item_clear);
  self->seen = g_hash_table_new (NULL, NULL);
  return self;
}

static void
add (EbbAgreeTensors *self,
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
ebb_agree_tensors_add_parameter (EbbAgreeTensors *self,
                                 const char *name,
                                 EbbTensor *parameter)
{
  add (self, name, parameter, FALSE);
}

void
ebb_agree_tensors_add_buffers (EbbAgreeTensors *self,
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
get_item (EbbAgreeTensors *self,
          guint index)
{
  return &g_array_index (self->items, Item, index);
}

/* Data ranks of a mesh have the same shard; tensor-parallel ranks don't, and are not compared here. */
static char *
describe_part (const EbbPartition *partition)
{
  if (partition == NULL || partition->n_parts == 1)
    return g_strdup ("");
  return g_strdup_printf (" (tensor-parallel part %u of %u)", partition->index + 1, partition->n_parts);
}

void
ebb_agree_tensors_describe (EbbAgreeTensors *self,
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
ebb_agree_tensors_describe_values (EbbAgreeTensors *self,
                                   GString *text,
                                   GError **error)
{
  for (guint i = 0; i < self->items->len; i++)
    {
      const Item *item = get_item (self, i);
      guint64 checksum;

      if (!ebb_agree_checksum (item->tensor, &checksum, error))
        return FALSE;
      g_string_append_printf (text, "%s %s with checksum %016" G_GINT64_MODIFIER "x\n",
                              item->is_buffer ? "buffer" : "parameter", item->name, checksum);
    }
  return TRUE;
}

static gboolean
check_contiguous (EbbAgreeTensors *self,
                  GError **error)
{
  for (guint i = 0; i < self->items->len; i++)
    {
      const Item *item = get_item (self, i);

      if (ebb_view_is_contiguous (&item->tensor->view))
        continue;
      return ebb_fail (
          error, EBB_ERROR_NOT_SUPPORTED,
          "the %s %s is not contiguous, so that the first rank's values can't be given to all: make it so first",
          item->is_buffer ? "buffer" : "parameter", item->name);
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

/* As many at once as fit, since some engines need room for copies. Results of the old values, as shadows of autocast,
 * become invalid. */
gboolean
ebb_agree_tensors_broadcast (EbbAgreeTensors *self,
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
      parts[n_parts++] = (EbbCollectivePart){ .full = last = tensor };
      n_bytes += size;
    }
  return TRUE;
}

void
ebb_agree_tensors_free (EbbAgreeTensors *self)
{
  g_array_unref (self->items);
  g_hash_table_unref (self->seen);
  g_free (self);
}
