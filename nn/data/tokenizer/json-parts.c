/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads the parts of a tokenizer.json: members that may be missing, and errors that name what doesn't fit. */
#include "nn/data/tokenizer/json-parts-private.h"

#include "tensor/error-private.h"
#include "tensor/util/json-scanner-private.h"

#include <string.h>

gboolean
ebb_json_part_fail (const EbbJson *json,
                    GError **error,
                    const char *problem)
{
  g_autoptr (GString) text = g_string_new (NULL);

  if (json != NULL && json->text != NULL)
    g_string_append (text, json->text);
  else if (json != NULL && json->n_items < 8)
    ebb_json_print (json, text);
  else
    g_string_append (text, json == NULL ? "nothing" : json->kind == EBB_JSON_LIST ? "a list"
                                                                                  : "an object");
  return ebb_fail (error, EBB_ERROR_FORMAT, "%s: %s", problem, ebb_in_message (ebb_json_quote (text->str)));
}

gboolean
ebb_json_part_refuse (const char *type,
                      const char *known,
                      GError **error)
{
  return ebb_fail (error, EBB_ERROR_NOT_SUPPORTED, "%s is not supported: %s are",
                   ebb_in_message (ebb_json_quote (type)), known);
}

gboolean
ebb_json_part_find_kind (const char *type,
                         const char *const *names,
                         int *kind,
                         GError **error)
{
  g_autofree char *known = NULL;

  for (*kind = 0; names[*kind] != NULL; (*kind)++)
    if (strcmp (names[*kind], type) == 0)
      return TRUE;
  known = g_strjoinv (", ", (char **) names);
  return ebb_json_part_refuse (type, known, error);
}

static gboolean
fail_member (const EbbJson *member,
             const char *key,
             const char *wanted,
             GError **error)
{
  return ebb_json_part_fail (member, error, ebb_in_message (g_strdup_printf ("%s must be %s", key, wanted)));
}

/* The member; NULL if it is missing or null. */
static const EbbJson *
get (const EbbJson *json,
     const char *key)
{
  const EbbJson *member = ebb_json_get (json, key);

  return member == NULL || member->kind == EBB_JSON_NULL ? NULL : member;
}

gboolean
ebb_json_part_get_string (const EbbJson *json,
                          const char *key,
                          const char **value,
                          GError **error)
{
  const char *text = NULL;

  if (!ebb_json_part_get_token (json, key, &text, error))
    return FALSE;
  if (text != NULL && strstr (text, EBB_JSON_NUL) != NULL)
    return fail_member (get (json, key), key, "a string without U+0000", error);
  *value = text != NULL ? text : *value;
  return TRUE;
}

gboolean
ebb_json_part_get_token (const EbbJson *json,
                         const char *key,
                         const char **value,
                         GError **error)
{
  const EbbJson *member = get (json, key);

  return member == NULL || ebb_json_as_string (member, value) || fail_member (member, key, "a string", error);
}

gboolean
ebb_json_part_get_boolean (const EbbJson *json,
                           const char *key,
                           gboolean *value,
                           GError **error)
{
  const EbbJson *member = get (json, key);

  return member == NULL || ebb_json_as_boolean (member, value) || fail_member (member, key, "true or false", error);
}

gboolean
ebb_json_part_get_count (const EbbJson *json,
                         const char *key,
                         gint64 *value,
                         GError **error)
{
  const EbbJson *member = get (json, key);

  return member == NULL || (ebb_json_as_int (member, value) && *value >= 0)
         || fail_member (member, key, "an integer of 0 or more", error);
}

gboolean
ebb_json_part_get_character (const EbbJson *json,
                             const char *key,
                             gunichar *value,
                             GError **error)
{
  const EbbJson *member = get (json, key);
  const char *text;

  if (member == NULL)
    return TRUE;
  if (!ebb_json_as_string (member, &text) || *text == '\0' || *g_utf8_next_char (text) != '\0')
    return fail_member (member, key, "one character", error);
  *value = g_utf8_get_char (text);
  return TRUE;
}

gboolean
ebb_json_part_get_choice (const EbbJson *json,
                          const char *key,
                          const char *const *names,
                          int *value,
                          GError **error)
{
  const EbbJson *member = get (json, key);
  g_autofree char *list = NULL;
  g_autofree char *wanted = NULL;
  const char *text;

  if (member == NULL)
    return TRUE;
  if (ebb_json_as_string (member, &text))
    for (int i = 0; names[i] != NULL; i++)
      if (strcmp (names[i], text) == 0)
        {
          *value = i;
          return TRUE;
        }
  list = g_strjoinv (", ", (char **) names);
  wanted = g_strdup_printf ("one of %s", list);
  return fail_member (member, key, wanted, error);
}

gboolean
ebb_json_part_foreach (const EbbJson *json,
                       const char *list_key,
                       EbbJsonPartFunc function,
                       gpointer data,
                       GError **error)
{
  const EbbJson *list = ebb_json_get (json, list_key);
  const char *type = NULL;

  if (json == NULL || json->kind == EBB_JSON_NULL)
    return TRUE;
  if (!ebb_json_part_get_string (json, "type", &type, error))
    return FALSE;
  if (type == NULL)
    return ebb_json_part_fail (json, error, "it must be an object with a type");
  if (strcmp (type, "Sequence") != 0)
    return function (json, type, data, error);
  if (list == NULL || list->kind != EBB_JSON_LIST)
    return fail_member (list, list_key, "a list", error);
  for (gsize i = 0; i < list->n_items; i++)
    if (!ebb_json_part_foreach (&list->items[i], list_key, function, data, error))
      return FALSE;
  return TRUE;
}
