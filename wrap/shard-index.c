/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard-index-private.h"

#include "nn/json-scanner-private.h"
#include "tensor/atomic-file-private.h"

#include <stdio.h>
#include <string.h>

#define FORMAT "ebb-sharded-state"
#define VERSION 1
#define MAX_RANKS (1 << 20)

static const char *const file_kinds[EBB_N_SHARD_FILES] = { "model", "optimizer", "state" };

/* -- file names ---------------------------------------------------------------------------------------------------- */

char *
ebb_shard_file_make_name (EbbShardFile kind,
                          gint64 save,
                          guint rank,
                          guint n_ranks)
{
  return g_strdup_printf ("%s-%08" G_GINT64_FORMAT "-%05u-of-%05u.safetensors", file_kinds[kind], save, rank + 1,
                          n_ranks);
}

gint64
ebb_shard_file_parse_name (const char *name)
{
  for (guint kind = 0; kind < EBB_N_SHARD_FILES; kind++)
    {
      gsize length = strlen (file_kinds[kind]);
      gint64 save = 0;
      guint rank = 0, n_ranks = 0;
      g_autofree char *again = NULL;

      if (!g_str_has_prefix (name, file_kinds[kind])
          || sscanf (name + length, "-%18" G_GINT64_FORMAT "-%9u-of-%9u", &save, &rank, &n_ranks) != 3 || save <= 0
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

  g_free (record->name);
  g_free (record->stored_as);
  g_array_unref (record->parts);
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

void
ebb_shard_index_free (EbbShardIndex *self)
{
  for (guint i = 0; i < EBB_N_SHARD_TABLES; i++)
    {
      g_hash_table_unref (self->by_name[i]);
      g_ptr_array_unref (self->records[i]);
    }
  g_free (self);
}

EbbShardRecord *
ebb_shard_index_find (EbbShardIndex *self,
                      EbbShardFile table,
                      const char *name)
{
  return g_hash_table_lookup (self->by_name[table], name);
}

static EbbShardRecord *
add_record (EbbShardIndex *self,
            EbbShardFile table,
            const char *name)
{
  EbbShardRecord *record = g_new0 (EbbShardRecord, 1);

  record->name = g_strdup (name);
  record->stored_as = g_strdup (name);
  record->parts = g_array_new (FALSE, FALSE, sizeof (EbbShardPart));
  g_ptr_array_add (self->records[table], record);
  g_hash_table_insert (self->by_name[table], record->name, record);
  return record;
}

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
  EbbShardRecord *record = add_record (self, table, name);

  record->dtype = dtype;
  record->n_dims = n_dims;
  for (guint d = 0; d < n_dims; d++)
    record->shape[d] = shape[d];
  count_elements (record);
  return record;
}

void
ebb_shard_record_add_part (EbbShardRecord *self,
                           guint rank,
                           gint64 begin,
                           gint64 end)
{
  EbbShardPart part = { rank, begin, end };

  if (begin < end)
    g_array_append_val (self->parts, part);
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

/* Ranks may keep a tensor in another way, those with few elements in a plain one. */
static void
make_per_rank (EbbShardRecord *record)
{
  for (guint i = 0; !record->per_rank && i < record->parts->len; i++)
    {
      EbbShardPart *part = &g_array_index (record->parts, EbbShardPart, i);

      part->end -= part->begin;
      part->begin = 0;
    }
  record->per_rank = TRUE;
  record->dtype = EBB_DTYPE_U8;
  record->n_dims = 1;
  record->shape[0] = record->n_elements = 0;
}

static gboolean
same_tensor (const EbbShardRecord *a,
             const EbbShardRecord *b)
{
  if (a->per_rank)
    return TRUE;
  return a->dtype == b->dtype && a->n_dims == b->n_dims
         && memcmp (a->shape, b->shape, a->n_dims * sizeof a->shape[0]) == 0
         && strcmp (a->stored_as, b->stored_as) == 0;
}

static gboolean
merge_record (EbbShardIndex *self,
              EbbShardFile table,
              EbbShardRecord *other,
              GError **error)
{
  EbbShardRecord *record = ebb_shard_index_find (self, table, other->name);

  if (other->per_rank || (record != NULL && record->per_rank))
    {
      make_per_rank (other);
      if (record != NULL)
        make_per_rank (record);
    }
  if (record == NULL)
    {
      record = ebb_shard_index_add (self, table, other->name, other->dtype, other->shape, other->n_dims);
      record->per_rank = other->per_rank;
      record->n_steps = other->n_steps;
      g_free (record->stored_as);
      record->stored_as = g_strdup (other->stored_as);
    }
  else if (!same_tensor (record, other))
    {
      g_autofree char *a = ebb_shard_record_name_shape (record);
      g_autofree char *b = ebb_shard_record_name_shape (other);

      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%s %s is %s %s on one rank and %s %s on another",
                   file_kinds[table], record->name, ebb_dtype_get_name (record->dtype), a,
                   ebb_dtype_get_name (other->dtype), b);
      return FALSE;
    }
  record->n_steps = MAX (record->n_steps, other->n_steps);
  g_array_append_vals (record->parts, other->parts->data, other->parts->len);
  return TRUE;
}

gboolean
ebb_shard_index_merge (EbbShardIndex *self,
                       EbbShardIndex *other,
                       GError **error)
{
  for (guint i = 0; i < EBB_N_SHARD_FILES; i++)
    self->has_files[i] = self->has_files[i] || other->has_files[i];
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    for (guint i = 0; i < other->records[t]->len; i++)
      if (!merge_record (self, (EbbShardFile) t, g_ptr_array_index (other->records[t], i), error))
        return FALSE;
  return TRUE;
}

static int
compare_parts (gconstpointer a,
               gconstpointer b)
{
  const EbbShardPart *x = a, *y = b;

  if (x->begin != y->begin)
    return x->begin < y->begin ? -1 : 1;
  if (x->end != y->end)
    return x->end < y->end ? -1 : 1;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static gboolean
check_record (EbbShardIndex *self,
              EbbShardRecord *record,
              const char *what,
              GError **error)
{
  g_autofree char *name = NULL;
  gint64 reached = 0;
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < record->parts->len; i++)
    ok = g_array_index (record->parts, EbbShardPart, i).rank < self->n_ranks;
  if (!record->per_rank)
    g_array_sort (record->parts, compare_parts);
  for (guint i = 0; ok && !record->per_rank && i < record->parts->len; i++)
    {
      const EbbShardPart *part = &g_array_index (record->parts, EbbShardPart, i);

      ok = part->begin == reached && part->end > part->begin;
      reached = part->end;
    }
  if (ok && (record->per_rank || reached == record->n_elements))
    return TRUE;
  name = ebb_json_quote (record->name);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
               "%s: the parts of %s don't make up its %" G_GINT64_FORMAT " elements, each once", what, name,
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
  if (record->n_steps > 0)
    g_string_append_printf (json, ", \"steps\": %" G_GINT64_FORMAT, record->n_steps);
  if (strcmp (record->stored_as, record->name) != 0)
    {
      g_string_append (json, ", \"stored_as\": ");
      ebb_json_append_string (json, record->stored_as);
    }
  g_string_append (json, ", \"parts\": [");
  for (guint i = 0; i < record->parts->len; i++)
    {
      const EbbShardPart *part = &g_array_index (record->parts, EbbShardPart, i);

      g_string_append_printf (json, "%s[%u, %" G_GINT64_FORMAT ", %" G_GINT64_FORMAT "]", i > 0 ? ", " : "",
                              part->rank, part->begin, part->end);
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
      g_string_append_printf (json, "%s\n    \"%s\": [", first ? "" : ",", file_kinds[kind]);
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

char *
ebb_shard_index_to_text (EbbShardIndex *self)
{
  g_autoptr (GString) json = g_string_new (NULL);

  g_string_append_printf (json,
                          "{\n  \"format\": \"" FORMAT "\",\n  \"version\": %d,\n  \"save\": %" G_GINT64_FORMAT
                          ",\n  \"ranks\": %u,\n",
                          VERSION, self->save, self->n_ranks);
  append_files (json, self);
  for (guint t = 0; t < EBB_N_SHARD_TABLES; t++)
    {
      g_string_append_printf (json, ",\n  \"%s\": {", file_kinds[t]);
      for (guint i = 0; i < self->records[t]->len; i++)
        {
          g_string_append (json, i > 0 ? ",\n    " : "\n    ");
          append_record (json, g_ptr_array_index (self->records[t], i));
        }
      g_string_append (json, "\n  }");
    }
  g_string_append (json, "\n}\n");
  return g_string_free (g_steal_pointer (&json), FALSE);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbJsonScanner scanner;
  EbbShardIndex *index;
  EbbShardFile table;     /* that is read now */
  EbbShardRecord *record; /* that is read now */
  gint64 version, ranks;
  guint seen; /* of the members that must be there */
  char *format;
  GPtrArray *files[EBB_N_SHARD_FILES]; /* NULL: none are named */
} Parser;

typedef gboolean (*ReadMember) (Parser *self,
                                const char *key,
                                GError **error);

static gboolean
read_object (Parser *self,
             ReadMember read_member,
             GError **error)
{
  gboolean more, first = TRUE;

  if (!ebb_json_scanner_expect (&self->scanner, '{', error))
    return FALSE;
  for (; ebb_json_scanner_next (&self->scanner, first, '}', &more, error); first = FALSE)
    {
      g_autofree char *key = NULL;

      if (!more)
        return TRUE;
      key = ebb_json_scanner_read_key (&self->scanner, error);
      if (key == NULL || !read_member (self, key, error))
        return FALSE;
    }
  return FALSE;
}

static gboolean
fail_on_key (Parser *self,
             const char *key,
             const char *problem,
             GError **error)
{
  g_autofree char *quoted = ebb_json_quote (key);

  return ebb_json_scanner_fail (&self->scanner, error, "%s %s", problem, quoted);
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
  return name != NULL && fail_on_key (self, name, "no such dtype:", error);
}

static gboolean
read_shape (Parser *self,
            GError **error)
{
  EbbShardRecord *record = self->record;
  gboolean more;

  record->n_dims = 0;
  if (!ebb_json_scanner_expect (&self->scanner, '[', error))
    return FALSE;
  while (ebb_json_scanner_next (&self->scanner, record->n_dims == 0, ']', &more, error))
    {
      if (!more)
        return count_elements (record) || fail_on_key (self, record->name, "a shape that is too large:", error);
      if (record->n_dims == EBB_MAX_DIMS)
        return fail_on_key (self, record->name, "too many dimensions:", error);
      if (!ebb_json_scanner_read_uint (&self->scanner, &record->shape[record->n_dims++], error))
        return FALSE;
    }
  return FALSE;
}

static gboolean
read_parts (Parser *self,
            GError **error)
{
  EbbJsonScanner *scanner = &self->scanner;
  gboolean more, first = TRUE;

  if (!ebb_json_scanner_expect (scanner, '[', error))
    return FALSE;
  for (; ebb_json_scanner_next (scanner, first, ']', &more, error); first = FALSE)
    {
      gint64 rank, begin, end;

      if (!more)
        return TRUE;
      if (!ebb_json_scanner_expect (scanner, '[', error) || !ebb_json_scanner_read_uint (scanner, &rank, error)
          || !ebb_json_scanner_expect (scanner, ',', error) || !ebb_json_scanner_read_uint (scanner, &begin, error)
          || !ebb_json_scanner_expect (scanner, ',', error) || !ebb_json_scanner_read_uint (scanner, &end, error)
          || !ebb_json_scanner_expect (scanner, ']', error))
        return FALSE;
      if (rank >= MAX_RANKS || begin >= end || end > G_MAXINT64 / 8)
        return fail_on_key (self, self->record->name, "an impossible part of", error);
      ebb_shard_record_add_part (self->record, (guint) rank, begin, end);
    }
  return FALSE;
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
  if (strcmp (key, "parts") == 0)
    return read_parts (self, error);
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
  return fail_on_key (self, key, "a tensor with the unknown key", error);
}

static gboolean
read_record (Parser *self,
             const char *key,
             GError **error)
{
  if (ebb_shard_index_find (self->index, self->table, key) != NULL)
    return fail_on_key (self, key, "twice the tensor", error);
  self->record = add_record (self->index, self->table, key);
  count_elements (self->record);
  return read_object (self, read_record_member, error);
}

static gboolean
read_file_names (Parser *self,
                 const char *key,
                 GError **error)
{
  guint kind = 0;
  gboolean more, first = TRUE;

  while (kind < EBB_N_SHARD_FILES && strcmp (key, file_kinds[kind]) != 0)
    kind++;
  if (kind == EBB_N_SHARD_FILES || self->files[kind] != NULL)
    return fail_on_key (self, key, "unexpected files", error);
  self->files[kind] = g_ptr_array_new_with_free_func (g_free);
  if (!ebb_json_scanner_expect (&self->scanner, '[', error))
    return FALSE;
  for (; ebb_json_scanner_next (&self->scanner, first, ']', &more, error); first = FALSE)
    {
      char *name;

      if (!more)
        return TRUE;
      name = ebb_json_scanner_read_string (&self->scanner, error);
      if (name == NULL)
        return FALSE;
      g_ptr_array_add (self->files[kind], name);
    }
  return FALSE;
}

static gboolean
read_member (Parser *self,
             const char *key,
             GError **error)
{
  static const char *const keys[] = { "format", "version", "save", "ranks", "files", "model", "optimizer" };
  guint which = 0;

  while (which < G_N_ELEMENTS (keys) && strcmp (key, keys[which]) != 0)
    which++;
  if (which == G_N_ELEMENTS (keys) || (self->seen & 1u << which))
    return fail_on_key (self, key, which < G_N_ELEMENTS (keys) ? "twice" : "the unknown key", error);
  self->seen |= 1u << which;
  switch (which)
    {
    case 0:
      self->format = ebb_json_scanner_read_string (&self->scanner, error);
      return self->format != NULL;
    case 1:
      return ebb_json_scanner_read_uint (&self->scanner, &self->version, error);
    case 2:
      return ebb_json_scanner_read_uint (&self->scanner, &self->index->save, error);
    case 3:
      return ebb_json_scanner_read_uint (&self->scanner, &self->ranks, error);
    case 4:
      return read_object (self, read_file_names, error);
    default:
      self->table = which == 5 ? EBB_SHARD_FILE_MODEL : EBB_SHARD_FILE_OPTIMIZER;
      return read_object (self, read_record, error);
    }
}

/* The names are those that follow from the numbers, so no index leads out of its folder. */
static gboolean
check_files (Parser *self,
             const char *what,
             GError **error)
{
  EbbShardIndex *index = self->index;

  for (guint kind = 0; kind < EBB_N_SHARD_FILES; kind++)
    {
      gboolean ok = self->files[kind] == NULL || self->files[kind]->len == index->n_ranks;

      for (guint r = 0; ok && self->files[kind] != NULL && r < index->n_ranks; r++)
        {
          g_autofree char *name = ebb_shard_file_make_name ((EbbShardFile) kind, index->save, r, index->n_ranks);

          ok = strcmp (name, g_ptr_array_index (self->files[kind], r)) == 0;
        }
      if (!ok)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                       "%s: the names of the %s files are not those of save %" G_GINT64_FORMAT " of %u ranks", what,
                       file_kinds[kind], index->save, index->n_ranks);
          return FALSE;
        }
      index->has_files[kind] = self->files[kind] != NULL;
    }
  return TRUE;
}

static gboolean
check_head (Parser *self,
            const char *what,
            GError **error)
{
  if (self->seen != 0x7f)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: something is missing: it is no whole index of a state", what);
  else if (strcmp (self->format, FORMAT) != 0)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: it is no index of a sharded state", what);
  else if (self->version != VERSION)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                 "%s: the index has the version %" G_GINT64_FORMAT ": this library reads version %d", what,
                 self->version, VERSION);
  else if (self->ranks < 1 || self->ranks > MAX_RANKS)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                 "%s: %" G_GINT64_FORMAT " ranks: there must be 1 to %d", what, self->ranks, MAX_RANKS);
  else
    {
      self->index->n_ranks = (guint) self->ranks;
      return check_files (self, what, error);
    }
  return FALSE;
}

EbbShardIndex *
ebb_shard_index_parse (const char *text,
                       const char *what,
                       GError **error)
{
  g_autoptr (EbbShardIndex) index = ebb_shard_index_new (0, 0);
  Parser self = { .index = index };
  gboolean ok = ebb_json_scanner_init (&self.scanner, text, strlen (text), what, error)
                && read_object (&self, read_member, error) && ebb_json_scanner_expect_end (&self.scanner, error)
                && check_head (&self, what, error);

  for (guint i = 0; i < EBB_N_SHARD_FILES; i++)
    g_clear_pointer (&self.files[i], g_ptr_array_unref);
  g_free (self.format);
  return ok ? g_steal_pointer (&index) : NULL;
}
