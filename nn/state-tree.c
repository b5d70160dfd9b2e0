/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/state-tree-private.h"

#include "nn/json-scanner-private.h"
#include "tensor/autograd.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/shape.h"

#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#define MAX_DEPTH 64

/* -- checksum ------------------------------------------------------------------------------------------------------ */

/* Four independent lanes of multiply and rotate over 64-bit words: about the speed of memory, and any changed, missing
 * or moved byte shows. It guards against a broken disk, not against an opponent. */
guint64
ebb_state_checksum (const void *bytes,
                    gsize size)
{
  const guint8 *data = bytes;

  static const guint64 odd = G_GUINT64_CONSTANT (0x9e3779b97f4a7c15);
  guint64 lanes[4] = { 1, 2, 3, 4 }, sum = size * odd;
  gsize n_blocks = size / 32;

  for (gsize b = 0; b < n_blocks; b++)
    for (int i = 0; i < 4; i++)
      {
        guint64 word;

        memcpy (&word, data + b * 32 + (gsize) i * 8, 8);
        lanes[i] = (lanes[i] ^ GUINT64_FROM_LE (word)) * odd;
        lanes[i] ^= lanes[i] >> 29;
      }
  for (int i = 0; i < 4; i++)
    {
      sum = (sum ^ lanes[i]) * odd;
      sum ^= sum >> 32;
    }
  for (gsize i = n_blocks * 32; i < size; i++)
    {
      sum = (sum ^ data[i]) * odd;
      sum ^= sum >> 29;
    }
  return sum;
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
  *sum = ebb_state_checksum (data, size);
  return TRUE;
}

/* -- flatten ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbArgs *tensors;
  GHashTable *names;
  JsonBuilder *builder;
  GString *path;
} Flattening;

static gboolean flatten_args (Flattening *self,
                              EbbArgs *args,
                              GError **error);

static gboolean
flatten_tensor (Flattening *self,
                EbbTensor *tensor,
                GError **error)
{
  g_autofree char *name = g_strdup (self->path->str);
  guint64 sum;
  char text[17];

  for (guint i = 2; g_hash_table_contains (self->names, name); i++)
    {
      g_free (name);
      name = g_strdup_printf ("%s#%u", self->path->str, i);
    }
  if (!checksum_tensor (tensor, &sum, error))
    return FALSE;
  ebb_args_add_tensor (self->tensors, name, tensor);
  g_snprintf (text, sizeof text, "%016" G_GINT64_MODIFIER "x", sum);
  json_builder_begin_object (self->builder);
  json_builder_set_member_name (self->builder, "tensor");
  json_builder_add_string_value (self->builder, name);
  json_builder_set_member_name (self->builder, "sum");
  json_builder_add_string_value (self->builder, text);
  json_builder_end_object (self->builder);
  g_hash_table_add (self->names, g_steal_pointer (&name));
  return TRUE;
}

static void
add_tagged (JsonBuilder *builder,
            const char *tag,
            const char *text)
{
  json_builder_begin_object (builder);
  json_builder_set_member_name (builder, tag);
  json_builder_add_string_value (builder, text);
  json_builder_end_object (builder);
}

static gboolean
flatten_value (Flattening *self,
               EbbArgs *args,
               guint index,
               GError **error)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];
  double real;

  switch (ebb_args_get_value_kind (args, index))
    {
    case EBB_VALUE_NONE:
      json_builder_add_null_value (self->builder);
      return TRUE;
    case EBB_VALUE_BOOL:
      json_builder_add_boolean_value (self->builder, ebb_args_get_boolean (args, index));
      return TRUE;
    case EBB_VALUE_INT:
      g_snprintf (text, sizeof text, "%" G_GINT64_FORMAT, ebb_args_get_int (args, index));
      add_tagged (self->builder, "int", text);
      return TRUE;
    case EBB_VALUE_DOUBLE:
      real = ebb_args_get_double (args, index);
      add_tagged (self->builder, "double", g_ascii_dtostr (text, sizeof text, real));
      return TRUE;
    case EBB_VALUE_STRING:
      json_builder_add_string_value (self->builder, ebb_args_get_string (args, index));
      return TRUE;
    case EBB_VALUE_TENSOR:
      {
        g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (args, index);

        return flatten_tensor (self, tensor, error);
      }
    case EBB_VALUE_ARGS:
      {
        g_autoptr (EbbArgs) nested = ebb_args_get_args (args, index);

        return flatten_args (self, nested, error);
      }
    case EBB_VALUE_OBJECT:
      break;
    }
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "the state holds an object at %s: only numbers, strings, tensors and containers can be saved",
               self->path->str);
  return FALSE;
}

static const char *const container_tags[] = { "bare", "list", "tuple", "dict" };

static gboolean
flatten_args (Flattening *self,
              EbbArgs *args,
              GError **error)
{
  EbbArgsKind kind = ebb_args_get_kind (args);
  gsize length = self->path->len;

  json_builder_begin_object (self->builder);
  json_builder_set_member_name (self->builder, container_tags[kind]);
  if (kind == EBB_ARGS_DICT)
    json_builder_begin_object (self->builder);
  else
    json_builder_begin_array (self->builder);
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      const char *key = ebb_args_get_key (args, i);

      if ((key == NULL) == (kind == EBB_ARGS_DICT))
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "the state has values %s a key at %s",
                       key == NULL ? "without" : "with", self->path->str);
          return FALSE;
        }
      if (self->path->len > 0)
        g_string_append_c (self->path, '/');
      if (key != NULL)
        {
          g_string_append (self->path, key);
          json_builder_set_member_name (self->builder, key);
        }
      else
        g_string_append_printf (self->path, "%u", i);
      if (!flatten_value (self, args, i, error))
        return FALSE;
      g_string_truncate (self->path, length);
    }
  if (kind == EBB_ARGS_DICT)
    json_builder_end_object (self->builder);
  else
    json_builder_end_array (self->builder);
  json_builder_end_object (self->builder);
  return TRUE;
}

char *
ebb_state_tree_flatten (EbbArgs *tree,
                        EbbArgs *tensors,
                        GError **error)
{
  Flattening self = { .tensors = tensors };
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (GHashTable) names = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  g_autoptr (GString) path = g_string_new (NULL);
  g_autoptr (JsonNode) root = NULL;

  self.builder = builder;
  self.names = names;
  self.path = path;
  if (!flatten_args (&self, tree, error))
    return NULL;
  root = json_builder_get_root (builder);
  return json_to_string (root, FALSE);
}

/* -- restore ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbArgs *tensors;
  GHashTable *by_name; /* name to index + 1 */
  const char *what;
} Restoring;

static gboolean
fail (Restoring *self,
      GError **error,
      const char *problem,
      const char *name)
{
  g_autofree char *quoted = ebb_json_quote (name);

  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the state has %s %s", self->what, problem, quoted);
  return FALSE;
}

static EbbArgs *restore_args (Restoring *self,
                              JsonNode *node,
                              guint depth,
                              GError **error);

static gboolean
restore_tensor (Restoring *self,
                JsonObject *object,
                EbbArgs *args,
                const char *key,
                GError **error)
{
  const char *name = json_object_get_string_member_with_default (object, "tensor", "");
  const char *text = json_object_get_string_member_with_default (object, "sum", "");
  guint index = GPOINTER_TO_UINT (g_hash_table_lookup (self->by_name, name));
  g_autoptr (EbbTensor) tensor = index > 0 ? ebb_args_get_tensor (self->tensors, index - 1) : NULL;
  guint64 sum, expected;

  if (tensor == NULL)
    return fail (self, error, "no tensor", name);
  if (!g_ascii_string_to_unsigned (text, 16, 0, G_MAXUINT64, &expected, NULL))
    return fail (self, error, "no checksum for tensor", name);
  if (!checksum_tensor (tensor, &sum, error))
    return FALSE;
  if (sum != expected)
    return fail (self, error, "another checksum than was written for tensor", name);
  ebb_args_add_tensor (args, key, tensor);
  return TRUE;
}

static gboolean
restore_number (Restoring *self,
                JsonObject *object,
                const char *tag,
                EbbArgs *args,
                const char *key,
                GError **error)
{
  const char *text = json_object_get_string_member_with_default (object, tag, "");
  gint64 integer;
  double real;
  char *end;

  if (strcmp (tag, "int") == 0)
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
restore_object (Restoring *self,
                JsonNode *node,
                EbbArgs *args,
                const char *key,
                guint depth,
                GError **error)
{
  JsonObject *object = json_node_get_object (node);
  g_autoptr (EbbArgs) nested = NULL;

  if (json_object_has_member (object, "tensor"))
    return restore_tensor (self, object, args, key, error);
  if (json_object_has_member (object, "int"))
    return restore_number (self, object, "int", args, key, error);
  if (json_object_has_member (object, "double"))
    return restore_number (self, object, "double", args, key, error);
  nested = restore_args (self, node, depth, error);
  if (nested == NULL)
    return FALSE;
  ebb_args_add_args (args, key, nested);
  return TRUE;
}

static gboolean
restore_value (Restoring *self,
               JsonNode *node,
               EbbArgs *args,
               const char *key,
               guint depth,
               GError **error)
{
  if (JSON_NODE_HOLDS_NULL (node))
    ebb_args_add_none (args, key);
  else if (JSON_NODE_HOLDS_OBJECT (node))
    return restore_object (self, node, args, key, depth, error);
  else if (JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == G_TYPE_BOOLEAN)
    ebb_args_add_boolean (args, key, json_node_get_boolean (node));
  else if (JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == G_TYPE_STRING)
    ebb_args_add_string (args, key, json_node_get_string (node));
  else
    return fail (self, error, "a value of an unknown type at", key ? key : "");
  return TRUE;
}

static EbbArgs *
restore_dict (Restoring *self,
              JsonNode *node,
              guint depth,
              GError **error)
{
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_DICT);
  JsonObjectIter iter;
  const char *key;
  JsonNode *value;

  json_object_iter_init_ordered (&iter, json_node_get_object (node));
  while (json_object_iter_next_ordered (&iter, &key, &value))
    if (!restore_value (self, value, args, key, depth + 1, error))
      return NULL;
  return g_steal_pointer (&args);
}

static EbbArgs *
restore_args (Restoring *self,
              JsonNode *node,
              guint depth,
              GError **error)
{
  JsonObject *object = JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  g_autoptr (EbbArgs) args = NULL;
  JsonNode *content = NULL;
  guint kind = 0;

  for (; object != NULL && content == NULL && kind < G_N_ELEMENTS (container_tags); kind++)
    content = json_object_get_member (object, container_tags[kind]);
  if (content == NULL || depth > MAX_DEPTH || json_object_get_size (object) != 1
      || json_node_get_node_type (content) != (--kind == EBB_ARGS_DICT ? JSON_NODE_OBJECT : JSON_NODE_ARRAY))
    {
      fail (self, error, "no container where one should be, or too deep a nesting", "");
      return NULL;
    }
  if (kind == EBB_ARGS_DICT)
    return restore_dict (self, content, depth, error);
  args = ebb_args_new ((EbbArgsKind) kind);
  for (guint i = 0; i < json_array_get_length (json_node_get_array (content)); i++)
    if (!restore_value (self, json_array_get_element (json_node_get_array (content), i), args, NULL, depth + 1, error))
      return NULL;
  return g_steal_pointer (&args);
}

EbbArgs *
ebb_state_tree_restore (const char *text,
                        EbbArgs *tensors,
                        const char *what,
                        GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new_immutable ();
  g_autoptr (GHashTable) by_name = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (GError) failure = NULL;
  Restoring self = { .tensors = tensors, .by_name = by_name, .what = what };

  if (!json_parser_load_from_data (parser, text, -1, &failure) || json_parser_get_root (parser) == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: the state's text is broken: %s", what,
                   failure ? failure->message : "it is empty");
      return NULL;
    }
  for (guint i = 0; i < ebb_args_get_length (tensors); i++)
    g_hash_table_insert (by_name, (gpointer) ebb_args_get_key (tensors, i), GUINT_TO_POINTER (i + 1));
  return restore_args (&self, json_parser_get_root (parser), 0, error);
}
