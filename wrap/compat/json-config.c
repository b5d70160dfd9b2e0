/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
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

char *
ebb_config_list_keys (const EbbConfigKey *keys,
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

gboolean
ebb_config_refuse_value (const char *where,
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

/* json-glib recurses without a limit, and takes a key twice, comments and what comes after an object, of which nobody
 * knows what was meant: so it gets no text but one that was looked at here. */
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

gboolean
ebb_json_config_read (JsonObject *object,
                      const char *where,
                      const EbbConfigKey *keys,
                      guint n_keys,
                      guint *values,
                      GError **error)
{
  g_autoptr (GList) names = json_object_get_members (object);

  for (GList *item = names; item != NULL; item = item->next)
    {
      const char *name = item->data;
      JsonNode *node = json_object_get_member (object, name);
      guint i = 0;

      while (i < n_keys && strcmp (keys[i].name, name) != 0)
        i++;
      if (i == n_keys)
        {
          g_autofree char *list = ebb_config_list_keys (keys, n_keys);

          return ebb_json_config_refuse_key (object, name, where, list, error);
        }
      if (!read_node (&keys[i], node, &values[i]))
        {
          g_autofree char *value = describe_node (node);

          return ebb_config_refuse_value (where, &keys[i], value, error);
        }
    }
  return TRUE;
}

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
