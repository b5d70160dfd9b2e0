/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/index-private.h"

#include "nn/files/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

/* The index of a state in memory and as text. */

/* -- records ------------------------------------------------------------------------------------------------------- */

static void
record_free (gpointer data)
{
  EbbShardRecord *record = data;

  if (record == NULL) /* it was merged into another index */
    return;
  g_free (record->name);
  g_free (record->stored_as);
  g_array_unref (record->ranges);
  g_free (record);
}

EbbShardIndex *
ebb_shard_index_new (gint64 save,
                     guint n_ranks)
{
  EbbShardIndex *self = g_new0 (EbbShardIndex, 1);

  self->save = save;
  self->n_ranks = n_ranks;
  for (guint i = 0; i < EBB_N_SHARD_TABLES; i++)
    {
      self->records[i] = g_ptr_array_new_with_free_func (record_free);
      self->by_name[i] = g_hash_table_new (g_str_hash, g_str_equal);
    }
  return self;
}

EbbShardCoordinates
ebb_shard_index_get_coordinates (const EbbShardIndex *self,
                                 guint rank)
{
  return self->mesh != NULL ? self->mesh[rank] : (EbbShardCoordinates){ rank, 0 };
}

guint
ebb_shard_index_count_tensor_ranks (const EbbShardIndex *self)
{
  guint n = 1;

  for (guint r = 0; self->mesh != NULL && r < self->n_ranks; r++)
    n = MAX (n, self->mesh[r].tensor + 1);
  return n;
}

EbbShardRecord *
ebb_shard_index_find (EbbShardIndex *self,
                      EbbShardFile table,
                      const char *name)
{
  return g_hash_table_lookup (self->by_name[table], name);
}

gboolean
ebb_shard_record_count_elements (EbbShardRecord *record)
{
  gboolean empty = FALSE;

  record->n_elements = 1;
  for (guint d = 0; d < record->n_dims; d++)
    empty = empty || record->shape[d] == 0;
  for (guint d = 0; d < record->n_dims && !empty; d++)
    if (__builtin_mul_overflow (record->n_elements, record->shape[d], &record->n_elements))
      return FALSE;
  if (empty)
    record->n_elements = 0;
  return record->n_elements <= G_MAXINT64 / 8;
}

EbbShardRecord *
ebb_shard_index_add (EbbShardIndex *self,
                     EbbShardFile table,
                     const char *name,
                     EbbDType dtype,
                     const gint64 *shape,
                     guint n_dims)
{
  EbbShardRecord *record = g_new0 (EbbShardRecord, 1);

  record->name = g_strdup (name);
  record->stored_as = g_strdup (name);
  record->split = (EbbTensorSplit){ 0, 1, 1 };
  record->ranges = g_array_new (FALSE, FALSE, sizeof (EbbSavedRange));
  g_ptr_array_add (self->records[table], record);
  g_hash_table_insert (self->by_name[table], record->name, record);
  record->dtype = dtype;
  record->n_dims = n_dims;
  for (guint d = 0; d < n_dims; d++)
    record->shape[d] = shape[d];
  ebb_shard_record_count_elements (record);
  return record;
}

void
ebb_shard_record_add_range (EbbShardRecord *self,
                            guint rank,
                            gint64 begin,
                            gint64 end,
                            guint index)
{
  EbbSavedRange range = { rank, begin, end, index };

  if (begin < end)
    g_array_append_val (self->ranges, range);
}

EbbShardSlice
ebb_shard_record_get_slice (const EbbShardRecord *self,
                            guint index)
{
  return ebb_shard_slice_of (self->shape, self->n_dims, self->n_elements, &self->split, index);
}

char *
ebb_shard_record_name_shape (const EbbShardRecord *self)
{
  g_autoptr (GString) text = g_string_new ("[");

  for (guint d = 0; d < self->n_dims; d++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, d > 0 ? ", " : "", self->shape[d]);
  g_string_append_c (text, ']');
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static gboolean
same_tensor (const EbbShardRecord *a,
             const EbbShardRecord *b)
{
  return a->dtype == b->dtype && a->n_dims == b->n_dims
         && memcmp (a->shape, b->shape, a->n_dims * sizeof a->shape[0]) == 0
         && memcmp (&a->split, &b->split, sizeof a->split) == 0 && strcmp (a->stored_as, b->stored_as) == 0;
}

static gboolean
merge_record (EbbShardIndex *self,
              EbbShardFile table,
              EbbShardRecord **merged,
              GError **error)
{
  EbbShardRecord *other = *merged, *record = ebb_shard_index_find (self, table, other->name);

  if (record == NULL)
    {
      g_ptr_array_add (self->records[table], other);
      g_hash_table_insert (self->by_name[table], other->name, other);
      *merged = NULL;
      return TRUE;
    }
  /* Ranks may store a tensor in different ways, those with few elements in a plain one. */
  if (other->per_rank != record->per_rank)
    {
      other->per_rank = record->per_rank = TRUE;
      other->dtype = record->dtype = EBB_DTYPE_U8;
    }
  if (!same_tensor (record, other))
    {
      g_autofree char *a = ebb_shard_record_name_shape (record);
      g_autofree char *b = ebb_shard_record_name_shape (other);

      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "%s %s is %s %s split in %u on one rank and %s %s split in %u on another",
                   ebb_shard_file_kinds[table], record->name, ebb_dtype_get_name (record->dtype), a,
                   record->split.n_parts, ebb_dtype_get_name (other->dtype), b, other->split.n_parts);
      return FALSE;
    }
  record->n_steps = MAX (record->n_steps, other->n_steps);
  g_array_append_vals (record->ranges, other->ranges->data, other->ranges->len);
  return TRUE;
}

/* Takes over the records of @other, which is then good for nothing but ebb_shard_index_free(). */
static gboolean
merge (EbbShardIndex *self,
       EbbShardIndex *other,
       GError **error)
{
  for (guint i = 0; i < EBB_N_SHARD_FILES; i++)
    self->has_files[i] = self->has_files[i] || other->has_files[i];
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    for (guint i = 0; i < other->records[t]->len; i++)
      if (!merge_record (self, (EbbShardFile) t, (EbbShardRecord **) &other->records[t]->pdata[i], error))
        return FALSE;
  return TRUE;
}

gboolean
ebb_shard_index_merge_text (EbbShardIndex *self,
                            const char *text,
                            guint rank,
                            GError **error)
{
  g_autofree char *what = g_strdup_printf ("the state of rank %u", rank);
  g_autoptr (EbbShardIndex) other = ebb_shard_index_parse (text, what, error);

  return other != NULL && merge (self, other, error);
}

static int
compare_ranges (gconstpointer a,
                gconstpointer b)
{
  const EbbSavedRange *x = a, *y = b;

  if (x->index != y->index)
    return x->index < y->index ? -1 : 1;
  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end)
    return x->end < y->end ? -1 : 1;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

void
ebb_shard_index_drop_duplicates (EbbShardIndex *self)
{
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    for (guint i = 0; i < self->records[t]->len; i++)
      {
        GArray *ranges = ((EbbShardRecord *) g_ptr_array_index (self->records[t], i))->ranges;
        guint n = 0;

        g_array_sort (ranges, compare_ranges);
        for (guint r = 0; r < ranges->len; r++)
          {
            const EbbSavedRange it = g_array_index (ranges, EbbSavedRange, r);
            const EbbSavedRange *last = n > 0 ? &g_array_index (ranges, EbbSavedRange, n - 1) : NULL;

            if (last == NULL || last->index != it.index || last->begin != it.begin || last->end != it.end)
              g_array_index (ranges, EbbSavedRange, n++) = it;
          }
        g_array_set_size (ranges, n);
      }
}

/* TRUE if the ranges, which are sorted, tile each slice. */
static gboolean
ranges_tile (const EbbShardRecord *record)
{
  guint at = 0;

  for (guint index = 0; index < record->split.n_parts; index++)
    {
      const EbbShardSlice slice = ebb_shard_record_get_slice (record, index);
      gint64 reached = 0;

      for (; at < record->ranges->len; at++)
        {
          const EbbSavedRange *range = &g_array_index (record->ranges, EbbSavedRange, at);

          if (range->index != index)
            break;
          if (range->begin != reached || range->end <= range->begin)
            return FALSE;
          reached = range->end;
        }
      if (reached != ebb_shard_slice_count (&slice))
        return FALSE;
    }
  return at == record->ranges->len;
}

static gboolean
check_record (EbbShardIndex *self,
              EbbShardRecord *record,
              const char *what,
              GError **error)
{
  g_autofree char *name = NULL;
  g_autofree char *shown = NULL;
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < record->ranges->len; i++)
    ok = g_array_index (record->ranges, EbbSavedRange, i).rank < self->n_ranks;
  g_array_sort (record->ranges, compare_ranges);
  if (ok && ranges_tile (record))
    return TRUE;
  name = ebb_json_quote (record->name);
  shown = ebb_escape_text (what);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
               "%s: the ranges of %s don't make up its %" G_GINT64_FORMAT " elements, each once", shown, name,
               record->n_elements);
  return FALSE;
}

gboolean
ebb_shard_index_check (EbbShardIndex *self,
                       const char *what,
                       GError **error)
{
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    for (guint i = 0; i < self->records[t]->len; i++)
      if (!check_record (self, g_ptr_array_index (self->records[t], i), what, error))
        return FALSE;
  return TRUE;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static void
append_record (GString *json,
               const EbbShardRecord *record)
{
  ebb_json_append_string (json, record->name);
  g_string_append_printf (json, ": {\"dtype\": \"%s\", \"shape\": [", ebb_safetensors_get_dtype_name (record->dtype));
  for (guint d = 0; d < record->n_dims; d++)
    g_string_append_printf (json, "%s%" G_GINT64_FORMAT, d > 0 ? ", " : "", record->shape[d]);
  g_string_append (json, "]");
  if (record->per_rank)
    g_string_append (json, ", \"per_rank\": 1");
  if (record->split.n_parts > 1)
    g_string_append_printf (json, ", \"split\": [%u, %u, %u]", record->split.dim, record->split.n_sections,
                            record->split.n_parts);
  if (record->n_steps > 0)
    g_string_append_printf (json, ", \"steps\": %" G_GINT64_FORMAT, record->n_steps);
  if (strcmp (record->stored_as, record->name) != 0)
    {
      g_string_append (json, ", \"stored_as\": ");
      ebb_json_append_string (json, record->stored_as);
    }
  g_string_append (json, ", \"ranges\": [");
  for (guint i = 0; i < record->ranges->len; i++)
    {
      const EbbSavedRange *range = &g_array_index (record->ranges, EbbSavedRange, i);

      g_string_append_printf (json, "%s[%u, %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT, i > 0 ? ", " : "", range->rank,
                              range->begin, range->end);
      if (record->split.n_parts > 1)
        g_string_append_printf (json, ", %u", range->index);
      g_string_append_c (json, ']');
    }
  g_string_append (json, "]}");
}

static void
append_files (GString *json,
              EbbShardIndex *self)
{
  gboolean first = TRUE;

  g_string_append (json, "  \"files\": {");
  for (guint kind = 0; kind < EBB_N_SHARD_FILES; kind++)
    {
      if (!self->has_files[kind])
        continue;
      g_string_append_printf (json, "%s\n    \"%s\": [", first ? "" : ",", ebb_shard_file_kinds[kind]);
      for (guint r = 0; r < self->n_ranks; r++)
        {
          g_autofree char *name = ebb_shard_file_make_name ((EbbShardFile) kind, self->save, r, self->n_ranks);

          g_string_append_printf (json, "%s\"%s\"", r > 0 ? ", " : "", name);
        }
      g_string_append (json, "]");
      first = FALSE;
    }
  g_string_append (json, "\n  }");
}

static void
append_mesh (GString *json,
             EbbShardIndex *self)
{
  g_string_append (json, "  \"mesh\": [");
  for (guint r = 0; r < self->n_ranks; r++)
    g_string_append_printf (json, "%s[%u, %u]", r > 0 ? ", " : "", self->mesh[r].data, self->mesh[r].tensor);
  g_string_append (json, "],\n");
}

char *
ebb_shard_index_seal (const char *rest)
{
  return g_strdup_printf (EBB_SHARD_INDEX_HEAD "%016" G_GINT64_MODIFIER "x\"%s",
                          ebb_checksum_of (rest, strlen (rest)), rest);
}

char *
ebb_shard_index_to_text (EbbShardIndex *self)
{
  g_autoptr (GString) json = g_string_new (NULL);

  g_string_append_printf (json, ",\n  \"save\": %" G_GINT64_FORMAT ",\n  \"ranks\": %u,\n", self->save, self->n_ranks);
  if (self->mesh != NULL)
    append_mesh (json, self);
  append_files (json, self);
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    {
      g_string_append_printf (json, ",\n  \"%s\": {", ebb_shard_file_kinds[t]);
      for (guint i = 0; i < self->records[t]->len; i++)
        {
          g_string_append (json, i > 0 ? ",\n    " : "\n    ");
          append_record (json, g_ptr_array_index (self->records[t], i));
        }
      g_string_append (json, "\n  }");
    }
  g_string_append (json, "\n}\n");
  return ebb_shard_index_seal (json->str);
}

void
ebb_shard_index_free (EbbShardIndex *self)
{
  for (guint i = 0; i < EBB_N_SHARD_TABLES; i++)
    {
      g_hash_table_unref (self->by_name[i]);
      g_ptr_array_unref (self->records[i]);
    }
  g_free (self->mesh);
  g_free (self);
}
