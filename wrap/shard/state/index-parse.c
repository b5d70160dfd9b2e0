/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/state/index-private.h"

#include "nn/files/json-scanner-private.h"
#include "nn/files/state-tree-private.h"
#include "tensor/error-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

/* Reads an index, which a stranger may have written. */

#define MAX_RANKS (1 << 20)

typedef struct
{
  EbbJsonScanner scanner;
  EbbShardIndex *index;
  EbbShardFile table;     /* that is read now */
  EbbShardRecord *record; /* that is read now */
  gint64 ranks;
  guint seen;                          /* of the members */
  GPtrArray *files[EBB_N_SHARD_FILES]; /* NULL: none are named */
  GArray *mesh;                        /* of EbbShardCoordinates; NULL: there is none */
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
        return ebb_shard_record_count_elements (record)
               || fail_on_key (self, record->name, "a shape that is too large:", error);
      if (record->n_dims == EBB_MAX_DIMS)
        return fail_on_key (self, record->name, "too many dimensions:", error);
      if (!ebb_json_scanner_read_uint (&self->scanner, &record->shape[record->n_dims++], error))
        return FALSE;
    }
  return FALSE;
}

/* Numbers in brackets, at least @least and at most @most. */
static gboolean
read_numbers (Parser *self,
              gint64 *numbers,
              guint least,
              guint most,
              guint *n,
              GError **error)
{
  gboolean more;

  *n = 0;
  if (!ebb_json_scanner_expect (&self->scanner, '[', error))
    return FALSE;
  while (ebb_json_scanner_next (&self->scanner, *n == 0, ']', &more, error))
    {
      if (!more && *n >= least)
        return TRUE;
      if (!more || *n == most)
        return ebb_json_scanner_fail (&self->scanner, error, "not %u to %u numbers", least, most);
      if (!ebb_json_scanner_read_uint (&self->scanner, &numbers[(*n)++], error))
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
      gint64 part[4] = { 0, 0, 0, 0 }; /* rank, begin, end, index */
      guint n;

      if (!more)
        return TRUE;
      if (!read_numbers (self, part, 3, 4, &n, error))
        return FALSE;
      if (part[0] >= MAX_RANKS || part[1] >= part[2] || part[2] > G_MAXINT64 / 8 || part[3] >= MAX_RANKS)
        return fail_on_key (self, self->record->name, "an impossible part of", error);
      ebb_shard_record_add_part (self->record, (guint) part[0], part[1], part[2], (guint) part[3]);
    }
  return FALSE;
}

static gboolean
read_cut (Parser *self,
          GError **error)
{
  gint64 cut[3]; /* dimension, sections, n */
  guint n;

  if (!read_numbers (self, cut, 3, 3, &n, error))
    return FALSE;
  if (cut[0] >= EBB_MAX_DIMS || cut[1] < 1 || cut[1] > G_MAXINT || cut[2] < 2 || cut[2] > MAX_RANKS)
    return fail_on_key (self, self->record->name, "an impossible cut of", error);
  self->record->cut_dim = (guint) cut[0];
  self->record->cut_sections = (guint) cut[1];
  self->record->n_cut = (guint) cut[2];
  return TRUE;
}

static gboolean
read_mesh (Parser *self,
           GError **error)
{
  gboolean more, first = TRUE;

  self->mesh = g_array_new (FALSE, FALSE, sizeof (EbbShardCoordinates));
  if (!ebb_json_scanner_expect (&self->scanner, '[', error))
    return FALSE;
  for (; ebb_json_scanner_next (&self->scanner, first, ']', &more, error); first = FALSE)
    {
      gint64 numbers[2];
      EbbShardCoordinates coordinates;
      guint n;

      if (!more)
        return TRUE;
      if (!read_numbers (self, numbers, 2, 2, &n, error))
        return FALSE;
      if (numbers[0] >= MAX_RANKS || numbers[1] >= MAX_RANKS || self->mesh->len == MAX_RANKS)
        return ebb_json_scanner_fail (&self->scanner, error, "an impossible place of a rank");
      coordinates = (EbbShardCoordinates){ (guint) numbers[0], (guint) numbers[1] };
      g_array_append_val (self->mesh, coordinates);
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
  if (strcmp (key, "cut") == 0)
    return read_cut (self, error);
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
  self->record = ebb_shard_index_add (self->index, self->table, key, EBB_DTYPE_F32, NULL, 0);
  if (!read_object (self, read_record_member, error))
    return FALSE;
  /* Members come in any order. */
  if (self->record->n_cut == 1
      || (self->record->cut_dim < self->record->n_dims
          && self->record->shape[self->record->cut_dim] % self->record->cut_sections == 0))
    return TRUE;
  return fail_on_key (self, key, "a cut that does not fit the shape of", error);
}

static gboolean
read_file_names (Parser *self,
                 const char *key,
                 GError **error)
{
  guint kind = 0;
  gboolean more, first = TRUE;

  while (kind < EBB_N_SHARD_FILES && strcmp (key, ebb_shard_file_kinds[kind]) != 0)
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
read_format (Parser *self,
             GError **error)
{
  g_autofree char *format = ebb_json_scanner_read_string (&self->scanner, error);

  return format != NULL
         && (strcmp (format, EBB_SHARD_INDEX_FORMAT) == 0
             || fail_on_key (self, format, "it is no index of a sharded state: its format is", error));
}

static gboolean
read_version (Parser *self,
              GError **error)
{
  gint64 version;

  if (!ebb_json_scanner_read_uint (&self->scanner, &version, error))
    return FALSE;
  return version == EBB_SHARD_INDEX_VERSION
         || ebb_json_scanner_fail (&self->scanner, error,
                                   "the index has the version %" G_GINT64_FORMAT ": this library reads version %d",
                                   version, EBB_SHARD_INDEX_VERSION);
}

/* The checksum is that of all that comes after it. */
static gboolean
read_sum (Parser *self,
          GError **error)
{
  EbbJsonScanner *scanner = &self->scanner;
  g_autofree char *sum = ebb_json_scanner_read_string (scanner, error);
  char expected[17];

  if (sum == NULL)
    return FALSE;
  g_snprintf (expected, sizeof expected, "%016" G_GINT64_MODIFIER "x",
              ebb_checksum_of (scanner->text + scanner->position, scanner->length - scanner->position));
  return strcmp (sum, expected) == 0
         || ebb_json_scanner_fail (scanner, error, "the index has another checksum than was written: it is damaged");
}

enum
{
  FORMAT,
  VERSION,
  SUM, /* the first three stand first and in this order */
  SAVE,
  RANKS,
  FILES,
  MODEL,
  OPTIMIZER,
  N_NEEDED_MEMBERS,
  MESH = N_NEEDED_MEMBERS,
  N_MEMBERS
};

static const char *const members[N_MEMBERS] = { "format", "version", "sum", "save", "ranks",
                                                "files", "model", "optimizer", "mesh" };

static gboolean
read_member (Parser *self,
             const char *key,
             GError **error)
{
  guint which = 0, first = self->seen == 0 ? FORMAT : self->seen == 1u << FORMAT ? VERSION
                                                                                 : SUM;

  while (which < N_MEMBERS && strcmp (key, members[which]) != 0)
    which++;
  if (which == N_MEMBERS || (self->seen & 1u << which))
    return fail_on_key (self, key, which < N_MEMBERS ? "twice" : "the unknown key", error);
  if ((self->seen & 1u << SUM) == 0 && which != first)
    return ebb_json_scanner_fail (&self->scanner, error, "\"%s\" stands where \"%s\" must be", key, members[first]);
  self->seen |= 1u << which;
  switch (which)
    {
    case FORMAT:
      return read_format (self, error);
    case VERSION:
      return read_version (self, error);
    case SUM:
      return read_sum (self, error);
    case SAVE:
      return ebb_json_scanner_read_uint (&self->scanner, &self->index->save, error);
    case RANKS:
      return ebb_json_scanner_read_uint (&self->scanner, &self->ranks, error);
    case FILES:
      return read_object (self, read_file_names, error);
    case MESH:
      return read_mesh (self, error);
    default:
      self->table = which == MODEL ? EBB_SHARD_FILE_MODEL : EBB_SHARD_FILE_OPTIMIZER;
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
                       ebb_shard_file_kinds[kind], index->save, index->n_ranks);
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
  guint missing = 0;

  while (missing < N_NEEDED_MEMBERS && (self->seen & 1u << missing))
    missing++;
  if (missing < N_NEEDED_MEMBERS)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the index has no \"%s\"", what, members[missing]);
  else if (self->ranks < 1 || self->ranks > MAX_RANKS)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT,
                 "%s: %" G_GINT64_FORMAT " ranks: there must be 1 to %d", what, self->ranks, MAX_RANKS);
  else if (self->mesh != NULL && self->mesh->len != self->ranks)
    g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the mesh has %u ranks, and not %" G_GINT64_FORMAT, what,
                 self->mesh->len, self->ranks);
  else
    {
      self->index->n_ranks = (guint) self->ranks;
      if (self->mesh != NULL)
        self->index->mesh = (EbbShardCoordinates *) (gpointer) g_array_free (g_steal_pointer (&self->mesh), FALSE);
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
  g_autofree char *shown = ebb_escape_text (what);
  Parser self = { .index = index };
  gboolean ok = ebb_json_scanner_init (&self.scanner, text, strlen (text), what, error)
                && read_object (&self, read_member, error) && ebb_json_scanner_expect_end (&self.scanner, error)
                && check_head (&self, shown, error);

  for (guint i = 0; i < EBB_N_SHARD_FILES; i++)
    g_clear_pointer (&self.files[i], g_ptr_array_unref);
  g_clear_pointer (&self.mesh, g_array_unref);
  return ok ? g_steal_pointer (&index) : NULL;
}
