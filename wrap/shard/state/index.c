/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/index-private.h"

#include "dist/agree-private.h"
#include "nn/files/file-error-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/atomic-file-private.h"
#include "tensor/util/checksum-private.h"

#include <stdio.h>
#include <string.h>

/* The index of a state in memory and as text, and the names of the files that it lists. */

#define MAX_RANKS (1 << 20)
#define SUM_DIGITS 16

const char *const ebb_shard_file_kinds[EBB_N_SHARD_FILES] = { "model", "optimizer", "state" };

/* -- file names ---------------------------------------------------------------------------------------------------- */

char *
ebb_shard_file_make_name (EbbShardFile kind,
                          gint64 save,
                          guint rank,
                          guint n_ranks)
{
  return g_strdup_printf ("%s-%08" G_GINT64_FORMAT "-%05u-of-%05u.safetensors", ebb_shard_file_kinds[kind], save,
                          rank + 1, n_ranks);
}

gint64
ebb_shard_file_parse_name (const char *name)
{
  for (guint kind = 0; kind < EBB_N_SHARD_FILES; kind++)
    {
      gsize length = strlen (ebb_shard_file_kinds[kind]);
      gint64 save = 0;
      guint rank = 0, n_ranks = 0;
      g_autofree char *again = NULL;

      if (!g_str_has_prefix (name, ebb_shard_file_kinds[kind])
          || sscanf (name + length, "-%18" G_GINT64_MODIFIER "d-%9u-of-%9u", &save, &rank, &n_ranks) != 3 || save <= 0
          || rank == 0)
        continue;
      again = ebb_shard_file_make_name ((EbbShardFile) kind, save, rank - 1, n_ranks);
      if (strcmp (name, again) == 0
          || (g_str_has_prefix (name, again) && g_str_has_suffix (name, EBB_ATOMIC_FILE_SUFFIX)))
        return save;
    }
  return 0;
}

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

/* Computes the number of elements from the shape; FALSE: there are too many. */
static gboolean
count_elements (EbbShardRecord *record)
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
  count_elements (record);
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
    return ebb_fail (error, EBB_ERROR_STATE, "%s %s is %s %s split in %u on one rank and %s %s split in %u on another",
                     ebb_shard_file_kinds[table], record->name, ebb_dtype_get_name (record->dtype),
                     ebb_in_message (ebb_shape_to_string (record->shape, record->n_dims)), record->split.n_parts,
                     ebb_dtype_get_name (other->dtype),
                     ebb_in_message (ebb_shape_to_string (other->shape, other->n_dims)), other->split.n_parts);
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

EbbShardIndex *
ebb_shard_index_gather (EbbShardIndex *own,
                        EbbProcessGroup *group,
                        GError **error)
{
  g_autoptr (EbbShardIndex) all = ebb_shard_index_new (own->save, own->n_ranks);
  g_autofree char *text = ebb_shard_index_to_text (own);
  g_auto (GStrv) texts = ebb_agree_gather_texts (group, text, error);

  for (guint r = 0; texts != NULL && texts[r] != NULL; r++)
    if (!ebb_shard_index_merge_text (all, texts[r], r, error))
      return NULL;
  return texts != NULL ? g_steal_pointer (&all) : NULL;
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
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < record->ranges->len; i++)
    ok = g_array_index (record->ranges, EbbSavedRange, i).rank < self->n_ranks;
  g_array_sort (record->ranges, compare_ranges);
  if (ok && ranges_tile (record))
    return TRUE;
  name = ebb_json_quote (record->name);
  return ebb_file_fail (what, error, "the ranges of %s don't make up its %" G_GINT64_FORMAT " elements, each once",
                        name, record->n_elements);
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
  g_autofree char *shape = ebb_shape_to_string (record->shape, record->n_dims);

  ebb_json_append_string (json, record->name);
  g_string_append_printf (json, ": {\"dtype\": \"%s\", \"shape\": %s", ebb_safetensors_get_dtype_name (record->dtype),
                          shape);
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

/* -- reading, of what a stranger may have written ------------------------------------------------------------------ */

typedef struct
{
  EbbJsonScanner scanner;
  EbbShardIndex *index;
  GArray *mesh;           /* of EbbShardCoordinates */
  EbbShardFile kind;      /* of the files or the records that are read now */
  guint n_names;          /* of files that were read */
  EbbShardRecord *record; /* that is read now */
  gint64 numbers[4];
  guint n_numbers;
} Parser;

/* Reads one member of an object, or of a list, where @key is NULL. */
typedef gboolean (*ReadMember) (Parser *self,
                                const char *key,
                                GError **error);

static gboolean
fail_on (Parser *self,
         const char *problem,
         const char *name,
         GError **error)
{
  g_autofree char *quoted = ebb_json_quote (name);

  return ebb_json_scanner_fail (&self->scanner, error, "%s %s", problem, quoted);
}

/* @open is '{' or '['. */
static gboolean
read_container (Parser *self,
                char open,
                ReadMember read_member,
                GError **error)
{
  const gboolean is_object = open == '{';
  gboolean more, first = TRUE;

  if (!ebb_json_scanner_expect (&self->scanner, open, error))
    return FALSE;
  for (; ebb_json_scanner_next (&self->scanner, first, is_object ? '}' : ']', &more, error); first = FALSE)
    {
      g_autofree char *key = more && is_object ? ebb_json_scanner_read_key (&self->scanner, error) : NULL;

      if (!more)
        return TRUE;
      if ((is_object && key == NULL) || !read_member (self, key, error))
        return FALSE;
    }
  return FALSE;
}

static gboolean
read_number (Parser *self,
             const char *key,
             GError **error)
{
  if (self->n_numbers == G_N_ELEMENTS (self->numbers))
    return ebb_json_scanner_fail (&self->scanner, error, "more than %u numbers", self->n_numbers);
  return ebb_json_scanner_read_uint (&self->scanner, &self->numbers[self->n_numbers++], error);
}

/* Reads a list of @least to @most numbers; those that are missing are 0. */
static gboolean
read_numbers (Parser *self,
              guint least,
              guint most,
              GError **error)
{
  memset (self->numbers, 0, sizeof self->numbers);
  self->n_numbers = 0;
  if (!read_container (self, '[', read_number, error))
    return FALSE;
  return (self->n_numbers >= least && self->n_numbers <= most)
         || ebb_json_scanner_fail (&self->scanner, error, "not %u to %u numbers", least, most);
}

static gboolean
read_dtype (Parser *self,
            GError **error)
{
  g_autofree char *name = ebb_json_scanner_read_string (&self->scanner, error);

  for (guint i = 0; name != NULL && i < EBB_N_DTYPES; i++)
    if (strcmp (name, ebb_safetensors_get_dtype_name ((EbbDType) i)) == 0)
      {
        self->record->dtype = (EbbDType) i;
        return TRUE;
      }
  return name != NULL && fail_on (self, "no such dtype:", name, error);
}

static gboolean
read_dim (Parser *self,
          const char *key,
          GError **error)
{
  EbbShardRecord *record = self->record;

  if (record->n_dims == EBB_MAX_DIMS)
    return fail_on (self, "too many dimensions:", record->name, error);
  return ebb_json_scanner_read_uint (&self->scanner, &record->shape[record->n_dims++], error);
}

static gboolean
read_shape (Parser *self,
            GError **error)
{
  self->record->n_dims = 0;
  if (!read_container (self, '[', read_dim, error))
    return FALSE;
  return count_elements (self->record)
         || fail_on (self, "a shape that is too large:", self->record->name, error);
}

static gboolean
read_range (Parser *self,
            const char *key,
            GError **error)
{
  const gint64 *range = self->numbers; /* rank, begin, end, index */

  if (!read_numbers (self, 3, 4, error))
    return FALSE;
  if (range[0] >= MAX_RANKS || range[1] >= range[2] || range[2] > G_MAXINT64 / 8 || range[3] >= MAX_RANKS)
    return fail_on (self, "an impossible range of", self->record->name, error);
  ebb_shard_record_add_range (self->record, (guint) range[0], range[1], range[2], (guint) range[3]);
  return TRUE;
}

static gboolean
read_split (Parser *self,
            GError **error)
{
  const gint64 *split = self->numbers; /* dimension, sections, n */

  if (!read_numbers (self, 3, 3, error))
    return FALSE;
  if (split[0] >= EBB_MAX_DIMS || split[1] < 1 || split[1] > G_MAXINT || split[2] < 2 || split[2] > MAX_RANKS)
    return fail_on (self, "an impossible split of", self->record->name, error);
  self->record->split = (EbbTensorSplit){ (guint) split[0], (guint) split[1], (guint) split[2] };
  return TRUE;
}

static gboolean
read_record_member (Parser *self,
                    const char *key,
                    GError **error)
{
  gint64 flag;

  if (strcmp (key, "dtype") == 0)
    return read_dtype (self, error);
  if (strcmp (key, "shape") == 0)
    return read_shape (self, error);
  if (strcmp (key, "ranges") == 0)
    return read_container (self, '[', read_range, error);
  if (strcmp (key, "split") == 0)
    return read_split (self, error);
  if (strcmp (key, "per_rank") == 0)
    {
      if (!ebb_json_scanner_read_uint (&self->scanner, &flag, error))
        return FALSE;
      self->record->per_rank = flag != 0;
      return TRUE;
    }
  if (strcmp (key, "steps") == 0)
    return ebb_json_scanner_read_uint (&self->scanner, &self->record->n_steps, error);
  if (strcmp (key, "stored_as") == 0)
    {
      g_free (self->record->stored_as);
      self->record->stored_as = ebb_json_scanner_read_string (&self->scanner, error);
      return self->record->stored_as != NULL;
    }
  return fail_on (self, "a tensor with the unknown key", key, error);
}

static gboolean
read_record (Parser *self,
             const char *key,
             GError **error)
{
  const EbbShardRecord *record;

  if (ebb_shard_index_find (self->index, self->kind, key) != NULL)
    return fail_on (self, "twice the tensor", key, error);
  record = self->record = ebb_shard_index_add (self->index, self->kind, key, EBB_DTYPE_F32, NULL, 0);
  if (!read_container (self, '{', read_record_member, error))
    return FALSE;
  /* Members come in any order. */
  return record->split.n_parts == 1
         || (record->split.dim < record->n_dims && record->shape[record->split.dim] % record->split.n_sections == 0)
         || fail_on (self, "a split that does not fit the shape of", key, error);
}

static gboolean
read_mesh_rank (Parser *self,
                const char *key,
                GError **error)
{
  EbbShardCoordinates coordinates;

  if (!read_numbers (self, 2, 2, error))
    return FALSE;
  if (self->numbers[0] >= MAX_RANKS || self->numbers[1] >= MAX_RANKS || self->mesh->len == self->index->n_ranks)
    return ebb_json_scanner_fail (&self->scanner, error, "an impossible mesh of %u ranks", self->index->n_ranks);
  coordinates = (EbbShardCoordinates){ (guint) self->numbers[0], (guint) self->numbers[1] };
  g_array_append_val (self->mesh, coordinates);
  return TRUE;
}

static gboolean
read_mesh (Parser *self,
           GError **error)
{
  if (!read_container (self, '[', read_mesh_rank, error))
    return FALSE;
  if (self->mesh->len != self->index->n_ranks)
    return ebb_json_scanner_fail (&self->scanner, error, "the mesh has %u ranks, and not %u", self->mesh->len,
                                  self->index->n_ranks);
  self->index->mesh = g_memdup2 (self->mesh->data, self->mesh->len * sizeof (EbbShardCoordinates));
  return TRUE;
}

/* The names must be those that follow from the numbers, so no index leads out of its folder. */
static gboolean
read_file_name (Parser *self,
                const char *key,
                GError **error)
{
  const EbbShardIndex *index = self->index;
  g_autofree char *name = ebb_json_scanner_read_string (&self->scanner, error);
  g_autofree char *expected = ebb_shard_file_make_name (self->kind, index->save, self->n_names++, index->n_ranks);

  return name != NULL
         && ((self->n_names <= index->n_ranks && strcmp (name, expected) == 0)
             || fail_on (self, "the files are not those of the save: there is", name, error));
}

static gboolean
read_file_names (Parser *self,
                 const char *key,
                 GError **error)
{
  guint kind = 0;

  while (kind < EBB_N_SHARD_FILES && strcmp (key, ebb_shard_file_kinds[kind]) != 0)
    kind++;
  if (kind == EBB_N_SHARD_FILES || self->index->has_files[kind])
    return fail_on (self, "unexpected files:", key, error);
  self->kind = (EbbShardFile) kind;
  self->n_names = 0;
  self->index->has_files[kind] = TRUE;
  return read_container (self, '[', read_file_name, error)
         && (self->n_names == self->index->n_ranks
             || ebb_json_scanner_fail (&self->scanner, error, "%u %s files of %u ranks", self->n_names, key,
                                       self->index->n_ranks));
}

/* Takes @key if it is the next member. */
static gboolean
try_member (Parser *self,
            const char *key)
{
  EbbJsonScanner ahead = self->scanner;
  g_autofree char *found = ebb_json_scanner_try (&ahead, ',') ? ebb_json_scanner_read_key (&ahead, NULL) : NULL;

  if (g_strcmp0 (found, key) != 0)
    return FALSE;
  self->scanner = ahead;
  return TRUE;
}

static gboolean
expect_member (Parser *self,
               const char *key,
               GError **error)
{
  return try_member (self, key) || ebb_json_scanner_fail (&self->scanner, error, "the index has no \"%s\"", key);
}

/* All but the members that come first is under the checksum, which begins the rest. */
static gboolean
read_head (Parser *self,
           GError **error)
{
  EbbJsonScanner *scanner = &self->scanner;
  char sum[SUM_DIGITS + 2];

  if (!g_str_has_prefix (scanner->text, EBB_SHARD_INDEX_HEAD))
    return ebb_json_scanner_fail (scanner, error, "it is not the index of a sharded state of version 1");
  scanner->position = MIN (strlen (EBB_SHARD_INDEX_HEAD) + SUM_DIGITS + 1, scanner->length);
  g_snprintf (sum, sizeof sum, "%016" G_GINT64_MODIFIER "x\"",
              ebb_checksum_of (scanner->text + scanner->position, scanner->length - scanner->position));
  return g_str_has_prefix (scanner->text + strlen (EBB_SHARD_INDEX_HEAD), sum)
         || ebb_json_scanner_fail (scanner, error, "the index has another checksum than was written: it is damaged");
}

static gboolean
read_index (Parser *self,
            GError **error)
{
  EbbJsonScanner *scanner = &self->scanner;
  gint64 n_ranks;

  if (!read_head (self, error) || !expect_member (self, "save", error)
      || !ebb_json_scanner_read_uint (scanner, &self->index->save, error) || !expect_member (self, "ranks", error)
      || !ebb_json_scanner_read_uint (scanner, &n_ranks, error))
    return FALSE;
  if (n_ranks < 1 || n_ranks > MAX_RANKS)
    return ebb_json_scanner_fail (scanner, error, "%" G_GINT64_FORMAT " ranks: there must be 1 to %d", n_ranks,
                                  MAX_RANKS);
  self->index->n_ranks = (guint) n_ranks;
  if (try_member (self, "mesh") && !read_mesh (self, error))
    return FALSE;
  if (!expect_member (self, "files", error) || !read_container (self, '{', read_file_names, error))
    return FALSE;
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    {
      self->kind = (EbbShardFile) t;
      if (!expect_member (self, ebb_shard_file_kinds[t], error) || !read_container (self, '{', read_record, error))
        return FALSE;
    }
  return ebb_json_scanner_expect (scanner, '}', error) && ebb_json_scanner_expect_end (scanner, error);
}

EbbShardIndex *
ebb_shard_index_parse (const char *text,
                       const char *what,
                       GError **error)
{
  g_autoptr (EbbShardIndex) index = ebb_shard_index_new (0, 0);
  g_autoptr (GArray) mesh = g_array_new (FALSE, FALSE, sizeof (EbbShardCoordinates));
  Parser self = { .index = index, .mesh = mesh };

  if (!ebb_json_scanner_init (&self.scanner, text, strlen (text), what, error) || !read_index (&self, error))
    return NULL;
  return g_steal_pointer (&index);
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
