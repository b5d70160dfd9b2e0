/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads configurations of other systems by tables of keys. */
#include "wrap/compat/json-config-private.h"

#include "nn/files/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <string.h>

/* -- messages ------------------------------------------------------------------------------------------------------ */

char *
ebb_config_list (const char *const *names,
                 guint n)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < n; i++)
    g_string_append_printf (text, "%s%s", i == 0 ? "" : (i + 1 < n ? ", " : " and "), names[i]);
  return g_string_free (text, FALSE);
}

static char *
list_keys (const EbbConfigKey *keys,
           guint n_keys)
{
  g_autofree const char **names = g_new (const char *, n_keys);

  for (guint i = 0; i < n_keys; i++)
    names[i] = keys[i].name;
  return ebb_config_list (names, n_keys);
}

static char *
describe_kind (const EbbConfigKey *key)
{
  GString *text;

  switch (key->kind)
    {
    case EBB_CONFIG_BOOLEAN:
      return g_strdup ("true or false");
    case EBB_CONFIG_COUNT:
      return g_strdup_printf ("a whole number from 1 to %d", EBB_CONFIG_MAX_COUNT);
    case EBB_CONFIG_COUNT_OR_NULL:
      return g_strdup_printf ("a whole number from 1 to %d, or null", EBB_CONFIG_MAX_COUNT);
    case EBB_CONFIG_ARRAY:
      return g_strdup ("an array");
    case EBB_CONFIG_CHOICE_OR_NULL:
    default:
      text = g_string_new (NULL);
      for (guint i = 0; key->choices[i] != NULL; i++)
        g_string_append_printf (text, "\"%s\", ", key->choices[i]);
      g_string_append (text, "or null");
      return g_string_free (text, FALSE);
    }
}

static gboolean
refuse_value (const char *where,
              const EbbConfigKey *key,
              const char *value,
              GError **error)
{
  g_autofree char *kind = describe_kind (key);

  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %s: it must be %s", where, key->name, value,
               kind);
  return FALSE;
}

static char *
describe_node (JsonNode *node)
{
  g_autofree char *text = json_to_string (node, FALSE);
  const char *cut = strlen (text) > 60 ? g_utf8_find_prev_char (text, text + 58) : NULL;

  return cut != NULL ? g_strdup_printf ("%.*s...", (int) (cut - text), text) : g_steal_pointer (&text);
}

gboolean
ebb_json_config_refuse_key (JsonObject *object,
                            const char *name,
                            const char *where,
                            const char *list,
                            GError **error)
{
  g_autofree char *quoted = ebb_json_quote (name);
  g_autofree char *value = describe_node (json_object_get_member (object, name));

  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s has no key %s (which is %s): its keys are %s", where,
               quoted, value, list);
  return FALSE;
}

/* -- loading ------------------------------------------------------------------------------------------------------- */

/* json-glib recurses without a limit, and it accepts a key twice, comments, and text after an object, whose meaning
 * nobody knows. So the text is checked before json-glib sees it. */
static gboolean
parse (JsonParser *parser,
       const char *text,
       const char *where,
       GError **error)
{
  g_autofree char *what = g_strdup_printf ("%s is not JSON", where);
  g_autofree char *problem = NULL;
  g_autoptr (GError) local = NULL;
  EbbJsonScanner scanner;

  if (!ebb_json_scanner_init (&scanner, text, strlen (text), what, error)
      || !ebb_json_scanner_skip_value (&scanner, EBB_CONFIG_MAX_DEPTH, error)
      || !ebb_json_scanner_expect_end (&scanner, error))
    return FALSE;
  if (json_parser_load_from_data (parser, text, -1, &local))
    return TRUE;
  problem = ebb_escape_text (local->message);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s: %s", what, problem);
  return FALSE;
}

static gboolean
read_file (const char *path,
           char **text,
           GError **error)
{
  g_autoptr (GError) local = NULL;
  g_autofree char *quoted = ebb_json_quote (path);
  gsize length;

  *text = ebb_read_file (path, EBB_CONFIG_MAX_SIZE, &length, &local);
  if (*text == NULL)
    {
      g_set_error (error, EBB_ERROR, local->code,
                   "the configuration %s is no JSON object, which begins with \"{\", nor a file that can be read: %s",
                   quoted, local->message);
      return FALSE;
    }
  if (strlen (*text) == length)
    return TRUE;
  g_clear_pointer (text, g_free);
  g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s is not JSON: it has a zero byte", quoted);
  return FALSE;
}

static const char *
skip_blanks (const char *text)
{
  while (g_ascii_isspace (*text))
    text++;
  return text;
}

gboolean
ebb_json_config_load (EbbJsonConfig *self,
                      const char *json,
                      const char *form,
                      GError **error)
{
  g_autofree char *contents = NULL;
  const char *text = skip_blanks (json);

  *self = (EbbJsonConfig){ NULL };
  if (*text != '{')
    {
      if (!read_file (json, &contents, error))
        return FALSE;
      self->where = ebb_json_quote (json);
      text = skip_blanks (contents);
    }
  else
    self->where = g_strdup ("the configuration");
  if (*text != '{')
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_FORMAT, "%s holds no JSON object: it must be %s", self->where, form);
      return FALSE;
    }
  self->parser = json_parser_new_immutable ();
  if (!parse (self->parser, text, self->where, error))
    return FALSE;
  self->root = json_node_get_object (json_parser_get_root (self->parser));
  return TRUE;
}

void
ebb_json_config_clear (EbbJsonConfig *self)
{
  g_clear_object (&self->parser);
  g_clear_pointer (&self->where, g_free);
  self->root = NULL;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
is_value (JsonNode *node,
          GType type)
{
  return JSON_NODE_HOLDS_VALUE (node) && json_node_get_value_type (node) == type;
}

static guint
find_choice (const EbbConfigKey *key,
             const char *text)
{
  for (guint i = 0; key->choices[i] != NULL; i++)
    if (strcmp (key->choices[i], text) == 0)
      return i + 1;
  return 0;
}

static gboolean
read_node (const EbbConfigKey *key,
           JsonNode *node,
           guint *value)
{
  gboolean is_null = JSON_NODE_HOLDS_NULL (node);

  switch (key->kind)
    {
    case EBB_CONFIG_BOOLEAN:
      if (!is_value (node, G_TYPE_BOOLEAN))
        return FALSE;
      *value = json_node_get_boolean (node) != FALSE;
      return TRUE;
    case EBB_CONFIG_COUNT:
    case EBB_CONFIG_COUNT_OR_NULL:
      if (is_null && key->kind == EBB_CONFIG_COUNT_OR_NULL)
        *value = 0;
      else if (is_value (node, G_TYPE_INT64) && json_node_get_int (node) >= 1
               && json_node_get_int (node) <= EBB_CONFIG_MAX_COUNT)
        *value = (guint) json_node_get_int (node);
      else
        return FALSE;
      return TRUE;
    case EBB_CONFIG_ARRAY:
      *value = 1;
      return JSON_NODE_HOLDS_ARRAY (node);
    case EBB_CONFIG_CHOICE_OR_NULL:
    default:
      *value = is_value (node, G_TYPE_STRING) ? find_choice (key, json_node_get_string (node)) : 0;
      return is_null || *value != 0;
    }
}

/* NULL if no key has the name. */
static const EbbConfigKey *
find_key (const EbbConfigKey *keys,
          guint n_keys,
          const char *name)
{
  for (guint i = 0; i < n_keys; i++)
    if (g_strcmp0 (keys[i].name, name) == 0)
      return &keys[i];
  return NULL;
}

gboolean
ebb_json_config_read (JsonObject *object,
                      const char *where,
                      const EbbConfigKey *keys,
                      guint n_keys,
                      gpointer config,
                      GError **error)
{
  g_autoptr (GList) names = json_object_get_members (object);

  for (GList *item = names; item != NULL; item = item->next)
    {
      const EbbConfigKey *key = find_key (keys, n_keys, item->data);
      JsonNode *node = json_object_get_member (object, item->data);

      if (key == NULL)
        {
          g_autofree char *list = list_keys (keys, n_keys);

          return ebb_json_config_refuse_key (object, item->data, where, list, error);
        }
      if (!read_node (key, node, &ebb_config_get_value (config, key)))
        {
          g_autofree char *value = describe_node (node);

          return refuse_value (where, key, value, error);
        }
    }
  return TRUE;
}

/* -- arguments ----------------------------------------------------------------------------------------------------- */

/* An argument as JSON would have it. Tensors, containers and objects, which no key takes, become null, and *@value is
 * their description. */
static JsonNode *
convert_argument (EbbArgs *args,
                  guint index,
                  char **value)
{
  JsonNode *node = json_node_alloc ();

  switch (ebb_args_get_value_kind (args, index))
    {
    case EBB_VALUE_BOOL: json_node_init_boolean (node, ebb_args_get_boolean (args, index)); break;
    case EBB_VALUE_INT: json_node_init_int (node, ebb_args_get_int (args, index)); break;
    case EBB_VALUE_DOUBLE: json_node_init_double (node, ebb_args_get_double (args, index)); break;
    case EBB_VALUE_STRING: json_node_init_string (node, ebb_args_get_string (args, index)); break;
    case EBB_VALUE_TENSOR: *value = g_strdup ("a tensor"); break;
    case EBB_VALUE_ARGS: *value = g_strdup ("a container"); break;
    case EBB_VALUE_OBJECT: *value = g_strdup ("an object"); break;
    case EBB_VALUE_NONE:
    default: break;
    }
  if (json_node_get_node_type (node) != JSON_NODE_VALUE)
    json_node_init_null (node);
  if (*value == NULL)
    *value = describe_node (node);
  return node;
}

gboolean
ebb_json_config_read_args (EbbArgs *args,
                           const EbbConfigKey *keys,
                           guint n_keys,
                           gpointer config,
                           GError **error)
{
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      const char *name = ebb_args_get_key (args, i);
      const EbbConfigKey *key = find_key (keys, n_keys, name);
      g_autofree char *value = NULL;
      g_autoptr (JsonNode) node = convert_argument (args, i, &value);

      if (key == NULL)
        {
          g_autofree char *quoted = name != NULL ? ebb_json_quote (name) : g_strdup ("without a name");
          g_autofree char *list = list_keys (keys, n_keys);

          g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                       "there is no argument %s (which is %s): the arguments are %s", quoted, value, list);
          return FALSE;
        }
      if (ebb_args_get_value_kind (args, i) != EBB_VALUE_NONE
          && (JSON_NODE_HOLDS_NULL (node) || !read_node (key, node, &ebb_config_get_value (config, key))))
        return refuse_value ("the arguments", key, value, error);
    }
  return TRUE;
}

/* -- sections ------------------------------------------------------------------------------------------------------ */

gboolean
ebb_json_config_get_section (JsonObject *object,
                             const char *name,
                             const char *where,
                             JsonObject **section,
                             GError **error)
{
  JsonNode *node = json_object_get_member (object, name);
  g_autofree char *value = NULL;

  *section = node != NULL && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
  if (node == NULL || *section != NULL)
    return TRUE;
  value = describe_node (node);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %s: it must be an object", where, name, value);
  return FALSE;
}
