/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads configurations of other systems by tables of keys. */
#include "wrap/compat/json-config-private.h"

#include "tensor/util/json-scanner-private.h"
#include "tensor/util/json-writer-private.h"
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
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %s: it must be %s", where, key->name, value,
                   ebb_in_message (describe_kind (key)));
}

gboolean
ebb_json_config_refuse_key (const EbbJson *object,
                            const char *name,
                            const char *where,
                            const char *list,
                            GError **error)
{
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s has no key %s (which is %s): its keys are %s", where,
                   ebb_in_message (ebb_json_quote (name)),
                   ebb_in_message (ebb_json_describe (ebb_json_get (object, name))), list);
}

/* -- loading ------------------------------------------------------------------------------------------------------- */

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
    return ebb_fail (error, local->code,
                     "the configuration %s is no JSON object, which begins with \"{\", nor a file that can be read: %s",
                     quoted, local->message);
  if (strlen (*text) == length)
    return TRUE;
  g_clear_pointer (text, g_free);
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s is not JSON: it has a zero byte", quoted);
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
  g_autofree char *contents = NULL, *what = NULL;
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
    return ebb_fail (error, EBB_ERROR_FORMAT, "%s holds no JSON object: it must be %s", self->where, form);
  what = g_strdup_printf ("%s is not JSON", self->where);
  self->root = ebb_json_parse (text, strlen (text), what, error);
  return self->root != NULL;
}

void
ebb_json_config_clear (EbbJsonConfig *self)
{
  g_clear_pointer (&self->root, ebb_json_free);
  g_clear_pointer (&self->where, g_free);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

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
read_value (const EbbConfigKey *key,
            const EbbJson *json,
            guint *value)
{
  const gboolean is_null = json->kind == EBB_JSON_NULL;
  const char *text;
  gboolean truth;
  gint64 number;

  switch (key->kind)
    {
    case EBB_CONFIG_BOOLEAN:
      if (!ebb_json_as_boolean (json, &truth))
        return FALSE;
      *value = truth;
      return TRUE;
    case EBB_CONFIG_COUNT:
    case EBB_CONFIG_COUNT_OR_NULL:
      if (is_null && key->kind == EBB_CONFIG_COUNT_OR_NULL)
        *value = 0;
      else if (ebb_json_as_int (json, &number) && number >= 1 && number <= EBB_CONFIG_MAX_COUNT)
        *value = (guint) number;
      else
        return FALSE;
      return TRUE;
    case EBB_CONFIG_ARRAY:
      *value = 1;
      return json->kind == EBB_JSON_LIST;
    case EBB_CONFIG_CHOICE_OR_NULL:
    default:
      *value = ebb_json_as_string (json, &text) ? find_choice (key, text) : 0;
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
ebb_json_config_read (const EbbJson *object,
                      const char *where,
                      const EbbConfigKey *keys,
                      guint n_keys,
                      gpointer config,
                      GError **error)
{
  for (gsize i = 0; i < object->n_items; i++)
    {
      const EbbJson *item = &object->items[i];
      const EbbConfigKey *key = find_key (keys, n_keys, item->key);

      if (key == NULL)
        {
          g_autofree char *list = list_keys (keys, n_keys);

          return ebb_json_config_refuse_key (object, item->key, where, list, error);
        }
      if (!read_value (key, item, &ebb_config_get_value (config, key)))
        {
          g_autofree char *value = ebb_json_describe (item);

          return refuse_value (where, key, value, error);
        }
    }
  return TRUE;
}

/* -- arguments ----------------------------------------------------------------------------------------------------- */

/* An argument as JSON would have it. Tensors, containers and objects, which no key takes, become null, and *@value is
 * their description. */
static EbbJson *
convert_argument (EbbArgs *args,
                  guint index,
                  char **value)
{
  g_auto (EbbJsonWriter) writer = { NULL };
  g_autofree char *text = NULL;
  EbbJson *json;

  switch (ebb_args_get_value_kind (args, index))
    {
    case EBB_VALUE_BOOL: ebb_json_writer_add_boolean (&writer, NULL, ebb_args_get_boolean (args, index)); break;
    case EBB_VALUE_INT: ebb_json_writer_add_int (&writer, NULL, ebb_args_get_int (args, index)); break;
    case EBB_VALUE_DOUBLE: ebb_json_writer_add_double (&writer, NULL, ebb_args_get_double (args, index)); break;
    case EBB_VALUE_STRING: ebb_json_writer_add_string (&writer, NULL, ebb_args_get_string (args, index)); break;
    case EBB_VALUE_TENSOR: *value = g_strdup ("a tensor"); break;
    case EBB_VALUE_ARGS: *value = g_strdup ("a container"); break;
    case EBB_VALUE_OBJECT: *value = g_strdup ("an object"); break;
    case EBB_VALUE_NONE:
    default: break;
    }
  if (writer.text == NULL)
    ebb_json_writer_add_string (&writer, NULL, NULL);
  text = ebb_json_writer_finish (&writer);
  json = ebb_json_parse (text, strlen (text), "an argument", NULL);
  if (*value == NULL)
    *value = ebb_json_describe (json);
  return json;
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
      g_autoptr (EbbJson) json = convert_argument (args, i, &value);

      if (key == NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "there is no argument %s (which is %s): the arguments are %s",
                         name != NULL ? ebb_in_message (ebb_json_quote (name)) : "without a name", value,
                         ebb_in_message (list_keys (keys, n_keys)));
      if (ebb_args_get_value_kind (args, i) != EBB_VALUE_NONE
          && (json->kind == EBB_JSON_NULL || !read_value (key, json, &ebb_config_get_value (config, key))))
        return refuse_value ("the arguments", key, value, error);
    }
  return TRUE;
}

/* -- sections ------------------------------------------------------------------------------------------------------ */

gboolean
ebb_json_config_get_section (const EbbJson *object,
                             const char *name,
                             const char *where,
                             const EbbJson **section,
                             GError **error)
{
  const EbbJson *member = ebb_json_get (object, name);

  *section = member != NULL && member->kind == EBB_JSON_OBJECT ? member : NULL;
  return member == NULL || *section != NULL
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %s: it must be an object", where, name,
                      ebb_in_message (ebb_json_describe (member)));
}
