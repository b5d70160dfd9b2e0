/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/files/state-tree-private.h"

#include "nn/args-private.h"
#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"
#include "tensor/tensor-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

/* Writes a tree of values as one safetensors file with checksums, and reads it back. */

#define SUM_DIGITS 16

/* -- checksum ------------------------------------------------------------------------------------------------------ */

guint64
ebb_state_checksum_tensor (const void *bytes,
                           gsize size,
                           EbbDType dtype,
                           const gint64 *shape,
                           guint n_dims)
{
  guint64 layout[EBB_MAX_DIMS + 1] = { GUINT64_TO_LE ((guint64) dtype) };

  for (guint i = 0; i < n_dims; i++)
    layout[i + 1] = GUINT64_TO_LE ((guint64) shape[i]);
  return ebb_checksum_of (bytes, size) + ebb_checksum_of (layout, (n_dims + 1) * sizeof layout[0]);
}

static gboolean
checksum_tensor (EbbTensor *tensor,
                 guint64 *sum,
                 GError **error)
{
  g_autoptr (EbbTensor) contiguous = ebb_contiguous (tensor, error);
  g_autoptr (EbbTensor) host = ebb_to_device (contiguous, ebb_device_get_cpu (), error);
  gsize size = host ? ebb_tensor_get_n_bytes (host) : 0;
  const guint8 *data = size > 0 ? ebb_tensor_get_data (host, error) : NULL;

  if (host == NULL || (size > 0 && data == NULL))
    return FALSE;
  *sum = ebb_state_checksum_tensor (data, size, host->view.dtype, host->view.shape, (guint) host->view.n_dims);
  return TRUE;
}

/* -- flatten ------------------------------------------------------------------------------------------------------- */

static const char *const container_tags[] = { "bare", "list", "tuple", "dict" };

typedef struct
{
  EbbArgs *tensors;
  GHashTable *names;
  GString *json;
  GString *path; /* of the value, as "module/0.weight" */
  guint depth;
} Flattening;

static gboolean flatten_args (Flattening *self,
                              EbbArgs *args,
                              GError **error);

static gboolean
refuse (Flattening *self,
        const char *problem,
        GError **error)
{
  return ebb_fail (error, EBB_ERROR_STATE, "the state can't be saved: at %s it has %s",
                   ebb_in_message (ebb_json_quote (self->path->str)), problem);
}

static gboolean
flatten_tensor (Flattening *self,
                EbbTensor *tensor,
                GError **error)
{
  g_autofree char *name = g_strdup (self->path->str);
  guint64 sum;

  for (guint i = 2; g_hash_table_contains (self->names, name); i++)
    {
      g_free (name);
      name = g_strdup_printf ("%s#%u", self->path->str, i);
    }
  if (!checksum_tensor (tensor, &sum, error))
    return FALSE;
  ebb_args_add_tensor (self->tensors, name, tensor);
  g_string_append (self->json, "{\"tensor\":");
  ebb_json_append_string (self->json, name);
  g_string_append_printf (self->json, ",\"sum\":\"%016" G_GINT64_MODIFIER "x\"}", sum);
  g_hash_table_add (self->names, g_steal_pointer (&name));
  return TRUE;
}

static gboolean
flatten_value (Flattening *self,
               EbbArgs *args,
               guint index,
               GError **error)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];

  switch (ebb_args_get_value_kind (args, index))
    {
    case EBB_VALUE_NONE:
      g_string_append (self->json, "null");
      return TRUE;
    case EBB_VALUE_BOOL:
      g_string_append (self->json, ebb_args_get_boolean (args, index) ? "true" : "false");
      return TRUE;
    case EBB_VALUE_INT:
      g_string_append_printf (self->json, "{\"int\":\"%" G_GINT64_FORMAT "\"}", ebb_args_get_int (args, index));
      return TRUE;
    case EBB_VALUE_DOUBLE:
      g_string_append_printf (self->json, "{\"double\":\"%s\"}",
                              g_ascii_dtostr (text, sizeof text, ebb_args_get_double (args, index)));
      return TRUE;
    case EBB_VALUE_STRING:
      if (!g_utf8_validate (ebb_args_get_string (args, index), -1, NULL))
        return refuse (self, "a string that is not UTF-8", error);
      ebb_json_append_string (self->json, ebb_args_get_string (args, index));
      return TRUE;
    case EBB_VALUE_TENSOR:
      return flatten_tensor (self, ebb_args_peek_tensor (args, index), error);
    case EBB_VALUE_ARGS:
      return flatten_args (self, ebb_args_peek_args (args, index), error);
    case EBB_VALUE_OBJECT:
      break;
    }
  return refuse (self, "an object: only numbers, strings, tensors and containers can be saved", error);
}

/* Adds the key, or the place, to the path, and the key to the text. */
static gboolean
flatten_key (Flattening *self,
             EbbArgs *args,
             guint index,
             GError **error)
{
  const char *key = ebb_args_get_key (args, index);
  gboolean is_dict = ebb_args_get_kind (args) == EBB_ARGS_DICT;

  if (self->path->len > 0)
    g_string_append_c (self->path, '/');
  if (key != NULL)
    g_string_append (self->path, key);
  else
    g_string_append_printf (self->path, "%u", index);
  if ((key != NULL) != is_dict)
    return refuse (self, is_dict ? "a value without a key" : "a value with a key in a container that has none", error);
  if (key == NULL)
    return TRUE;
  if (!g_utf8_validate (key, -1, NULL))
    return refuse (self, "a key that is not UTF-8", error);
  ebb_json_append_string (self->json, key);
  g_string_append_c (self->json, ':');
  return TRUE;
}

static gboolean
flatten_args (Flattening *self,
              EbbArgs *args,
              GError **error)
{
  EbbArgsKind kind = ebb_args_get_kind (args);
  gsize length = self->path->len;

  if (self->depth == EBB_STATE_MAX_DEPTH)
    return refuse (self, "containers nested deeper than " G_STRINGIFY (EBB_STATE_MAX_DEPTH), error);
  self->depth++;
  g_string_append_printf (self->json, "{\"%s\":%c", container_tags[kind], kind == EBB_ARGS_DICT ? '{' : '[');
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      if (i > 0)
        g_string_append_c (self->json, ',');
      if (!flatten_key (self, args, i, error) || !flatten_value (self, args, i, error))
        return FALSE;
      g_string_truncate (self->path, length);
    }
  g_string_append (self->json, kind == EBB_ARGS_DICT ? "}}" : "]}");
  self->depth--;
  return TRUE;
}

char *
ebb_state_tree_seal (const char *tree)
{
  return g_strdup_printf ("{\"sum\":\"%016" G_GINT64_MODIFIER "x\",\"tree\":%s}",
                          ebb_checksum_of (tree, strlen (tree)), tree);
}

char *
ebb_state_tree_flatten (EbbArgs *tree,
                        EbbArgs *tensors,
                        GError **error)
{
  g_autoptr (GHashTable) names = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  g_autoptr (GString) json = g_string_new (NULL);
  g_autoptr (GString) path = g_string_new (NULL);
  Flattening self = { .tensors = tensors, .names = names, .json = json, .path = path };

  return flatten_args (&self, tree, error) ? ebb_state_tree_seal (json->str) : NULL;
}

/* -- restore ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbJsonScanner scanner;
  EbbArgs *tensors;
  GHashTable *by_name; /* name to index + 1 */
  guint depth;
} Restoring;

static gboolean
fail (Restoring *self,
      GError **error,
      const char *problem,
      const char *name)
{
  return ebb_json_scanner_fail (&self->scanner, error, "the state has %s %s", problem,
                                ebb_in_message (ebb_json_quote (name)));
}

/* Adds the value at the scanner to @args. */
static gboolean restore_value (Restoring *self,
                               EbbArgs *args,
                               const char *key,
                               GError **error);

/* Digits in upper case are other bytes than were written. */
static gboolean
is_sum (const char *text,
        guint64 sum)
{
  char expected[SUM_DIGITS + 1];

  g_snprintf (expected, sizeof expected, "%016" G_GINT64_MODIFIER "x", sum);
  return strcmp (text, expected) == 0;
}

static gboolean
expect_key (EbbJsonScanner *scanner,
            const char *wanted,
            GError **error)
{
  g_autofree char *key = ebb_json_scanner_read_key (scanner, error);

  return key != NULL
         && (strcmp (key, wanted) == 0
             || ebb_json_scanner_fail (scanner, error, "another key than \"%s\", which must stand here", wanted));
}

static gboolean
restore_tensor (Restoring *self,
                EbbArgs *args,
                const char *key,
                GError **error)
{
  g_autofree char *name = ebb_json_scanner_read_string (&self->scanner, error);
  guint index = name != NULL ? GPOINTER_TO_UINT (g_hash_table_lookup (self->by_name, name)) : 0;
  g_autofree char *expected = NULL;
  guint64 sum;

  if (name == NULL || !ebb_json_scanner_expect (&self->scanner, ',', error)
      || !expect_key (&self->scanner, "sum", error)
      || (expected = ebb_json_scanner_read_string (&self->scanner, error)) == NULL)
    return FALSE;
  if (index == 0)
    return fail (self, error, "no tensor", name);
  if (!checksum_tensor (ebb_args_peek_tensor (self->tensors, index - 1), &sum, error))
    return FALSE;
  if (!is_sum (expected, sum))
    return fail (self, error, "another checksum than was written for tensor", name);
  ebb_args_add_tensor (args, key, ebb_args_peek_tensor (self->tensors, index - 1));
  return TRUE;
}

static gboolean
restore_number (Restoring *self,
                gboolean is_int,
                EbbArgs *args,
                const char *key,
                GError **error)
{
  g_autofree char *text = ebb_json_scanner_read_string (&self->scanner, error);
  gint64 integer;
  double real;
  char *end;

  if (text == NULL)
    return FALSE;
  if (is_int)
    {
      if (!g_ascii_string_to_signed (text, 10, G_MININT64, G_MAXINT64, &integer, NULL))
        return fail (self, error, "a broken number", text);
      ebb_args_add_int (args, key, integer);
      return TRUE;
    }
  real = g_ascii_strtod (text, &end);
  if (end == text || *end != '\0')
    return fail (self, error, "a broken number", text);
  ebb_args_add_double (args, key, real);
  return TRUE;
}

static gboolean
restore_members (Restoring *self,
                 EbbArgs *args,
                 GError **error)
{
  gboolean is_dict = ebb_args_get_kind (args) == EBB_ARGS_DICT, more, first = TRUE;

  if (!ebb_json_scanner_expect (&self->scanner, is_dict ? '{' : '[', error))
    return FALSE;
  for (; ebb_json_scanner_next (&self->scanner, first, is_dict ? '}' : ']', &more, error); first = FALSE)
    {
      g_autofree char *key = NULL;

      if (!more)
        return TRUE;
      if (is_dict && (key = ebb_json_scanner_read_key (&self->scanner, error)) == NULL)
        return FALSE;
      if (is_dict && ebb_args_find (args, key) >= 0)
        return fail (self, error, "twice the key", key);
      if (ebb_args_get_kind (args) == EBB_ARGS_BARE && !first)
        return fail (self, error, "more than one value in a container", container_tags[EBB_ARGS_BARE]);
      if (!restore_value (self, args, key, error))
        return FALSE;
    }
  return FALSE;
}

/* Restores the value of an object whose only member is @tag; the scanner is after the tag. @args: NULL for the root,
 * which is a container and is returned in *@root. */
static gboolean
restore_tagged (Restoring *self,
                const char *tag,
                EbbArgs *args,
                const char *key,
                EbbArgs **root,
                GError **error)
{
  g_autoptr (EbbArgs) nested = NULL;
  guint kind = 0;

  if (args != NULL && strcmp (tag, "tensor") == 0)
    return restore_tensor (self, args, key, error);
  if (args != NULL && (strcmp (tag, "int") == 0 || strcmp (tag, "double") == 0))
    return restore_number (self, *tag == 'i', args, key, error);
  while (kind < G_N_ELEMENTS (container_tags) && strcmp (tag, container_tags[kind]) != 0)
    kind++;
  if (kind == G_N_ELEMENTS (container_tags))
    return fail (self, error, "a value of the unknown type", tag);
  if (self->depth == EBB_STATE_MAX_DEPTH)
    return ebb_json_scanner_fail (&self->scanner, error, "containers nested deeper than %d", EBB_STATE_MAX_DEPTH);
  nested = ebb_args_new ((EbbArgsKind) kind);
  self->depth++;
  if (!restore_members (self, nested, error))
    return FALSE;
  self->depth--;
  if (args != NULL)
    ebb_args_add_args (args, key, nested);
  else
    *root = g_steal_pointer (&nested);
  return TRUE;
}

static gboolean
restore_object (Restoring *self,
                EbbArgs *args,
                const char *key,
                EbbArgs **root,
                GError **error)
{
  g_autofree char *tag = NULL;

  return ebb_json_scanner_expect (&self->scanner, '{', error)
         && (tag = ebb_json_scanner_read_key (&self->scanner, error)) != NULL
         && restore_tagged (self, tag, args, key, root, error) && ebb_json_scanner_expect (&self->scanner, '}', error);
}

static gboolean
restore_value (Restoring *self,
               EbbArgs *args,
               const char *key,
               GError **error)
{
  g_autofree char *text = NULL;

  switch (ebb_json_scanner_peek (&self->scanner))
    {
    case '{':
      return restore_object (self, args, key, NULL, error);
    case '"':
      text = ebb_json_scanner_read_string (&self->scanner, error);
      if (text != NULL)
        ebb_args_add_string (args, key, text);
      return text != NULL;
    default:
      if (ebb_json_scanner_try_word (&self->scanner, "null"))
        ebb_args_add_none (args, key);
      else if (ebb_json_scanner_try_word (&self->scanner, "true"))
        ebb_args_add_boolean (args, key, TRUE);
      else if (ebb_json_scanner_try_word (&self->scanner, "false"))
        ebb_args_add_boolean (args, key, FALSE);
      else
        return fail (self, error, "a value of an unknown type at", key != NULL ? key : "");
      return TRUE;
    }
}

/* Takes the head with the checksum, which must be that of all that follows except for the last brace. */
static gboolean
check_seal (EbbJsonScanner *scanner,
            GError **error)
{
  g_autofree char *sum = NULL;

  if (!ebb_json_scanner_expect (scanner, '{', error) || !expect_key (scanner, "sum", error)
      || (sum = ebb_json_scanner_read_string (scanner, error)) == NULL || !ebb_json_scanner_expect (scanner, ',', error)
      || !expect_key (scanner, "tree", error))
    return FALSE;
  return (scanner->position < scanner->length
          && is_sum (sum, ebb_checksum_of (scanner->text + scanner->position,
                                           scanner->length - scanner->position - 1)))
         || ebb_json_scanner_fail (scanner, error, "the state's text has another checksum than was written");
}

EbbArgs *
ebb_state_tree_restore (const char *text,
                        EbbArgs *tensors,
                        const char *what,
                        GError **error)
{
  g_autoptr (GHashTable) by_name = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (EbbArgs) root = NULL;
  Restoring self = { .tensors = tensors, .by_name = by_name };

  for (guint i = 0; i < ebb_args_get_length (tensors); i++)
    g_hash_table_insert (by_name, (gpointer) ebb_args_get_key (tensors, i), GUINT_TO_POINTER (i + 1));
  if (!ebb_json_scanner_init (&self.scanner, text, strlen (text), what, error) || !check_seal (&self.scanner, error)
      || !restore_object (&self, NULL, NULL, &root, error) || !ebb_json_scanner_expect (&self.scanner, '}', error)
      || !ebb_json_scanner_expect_end (&self.scanner, error))
    return NULL;
  return g_steal_pointer (&root);
}
