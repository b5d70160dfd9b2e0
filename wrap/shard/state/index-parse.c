/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/index-private.h"

#include "nn/files/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

/* Reads an index, which a stranger may have written. */

#define MAX_RANKS (1 << 20)
#define SUM_DIGITS 16

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

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

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

/* -- records ------------------------------------------------------------------------------------------------------- */

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
  return ebb_shard_record_count_elements (self->record)
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

/* -- the other members --------------------------------------------------------------------------------------------- */

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
