/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* JSON as a tree. */
#include "tensor/util/json-private.h"

#include "tensor/util/json-scanner-private.h"
#include "tensor/util/atomic-file-private.h"

#include <math.h>
#include <string.h>

#define MAX_SHOWN 60 /* bytes of a value in a message */

static gboolean read_value (EbbJsonScanner *scanner, EbbJson *self, guint max_depth, GError **error);

static void
clear (EbbJson *self)
{
  for (gsize i = 0; i < self->n_items; i++)
    clear (&self->items[i]);
  g_free (self->items);
  g_free (self->text);
  g_free (self->key);
}

/* Whether the key of the item after @n_items others is new among them. A set is made for long objects alone. */
static gboolean
check_key (EbbJsonScanner *scanner, const EbbJson *items, gsize n_items, GHashTable **keys, GError **error)
{
  char *key = items[n_items].key;
  gboolean is_new = TRUE;

  if (*keys == NULL && n_items == 16)
    {
      *keys = g_hash_table_new (g_str_hash, g_str_equal);
      for (gsize i = 0; i < n_items; i++)
        g_hash_table_add (*keys, items[i].key);
    }
  if (*keys != NULL)
    is_new = g_hash_table_add (*keys, key);
  else
    for (gsize i = 0; is_new && i < n_items; i++)
      is_new = strcmp (items[i].key, key) != 0;
  return is_new
         || ebb_json_scanner_fail (scanner, error, "the key %s stands twice in one object",
                                   ebb_in_message (ebb_json_quote (key)));
}

static gboolean
read_members (EbbJsonScanner *scanner, EbbJson *self, guint max_depth, GError **error)
{
  const gboolean is_object = self->kind == EBB_JSON_OBJECT;
  g_autoptr (GHashTable) keys = NULL;
  gsize room = 0;
  gboolean more;

  if (max_depth == 0)
    return ebb_json_scanner_fail (scanner, error, "objects and lists are nested too deep");
  ebb_json_scanner_try (scanner, is_object ? '{' : '[');
  while (ebb_json_scanner_next (scanner, self->n_items == 0, is_object ? '}' : ']', &more, error))
    {
      EbbJson *item;

      if (!more)
        {
          self->items = g_renew (EbbJson, self->items, self->n_items);
          return TRUE;
        }
      if (self->n_items == room)
        {
          room = MAX (4, 2 * room);
          self->items = g_renew (EbbJson, self->items, room);
        }
      item = &self->items[self->n_items];
      *item = (EbbJson){ 0 };
      if (is_object)
        {
          item->key = ebb_json_scanner_read_key (scanner, error);
          if (item->key == NULL)
            return FALSE;
          if (!check_key (scanner, self->items, self->n_items, &keys, error))
            {
              g_free (item->key);
              return FALSE;
            }
        }
      self->n_items++;
      if (!read_value (scanner, item, max_depth - 1, error))
        return FALSE;
    }
  return FALSE;
}

static gboolean
read_value (EbbJsonScanner *scanner, EbbJson *self, guint max_depth, GError **error)
{
  const char c = ebb_json_scanner_peek (scanner);
  const gsize start = scanner->position;

  switch (c)
    {
    case '{':
    case '[':
      self->kind = c == '{' ? EBB_JSON_OBJECT : EBB_JSON_LIST;
      return read_members (scanner, self, max_depth, error);
    case '"':
      self->kind = EBB_JSON_STRING;
      self->text = ebb_json_scanner_read_string (scanner, error);
      return self->text != NULL;
    case 'n':
      self->kind = EBB_JSON_NULL;
      break;
    case 't':
    case 'f':
      self->kind = EBB_JSON_BOOLEAN;
      break;
    default:
      self->kind = EBB_JSON_NUMBER;
    }
  if (!ebb_json_scanner_skip_value (scanner, 0, error))
    return FALSE;
  self->text = g_strndup (scanner->text + start, scanner->position - start);
  return TRUE;
}

static EbbJson *
parse (const char *text, gsize length, const char *what, gboolean takes_nul, GError **error)
{
  g_autoptr (EbbJson) self = g_new0 (EbbJson, 1);
  EbbJsonScanner scanner;

  if (!ebb_json_scanner_init (&scanner, text, length, what, error))
    return NULL;
  scanner.takes_nul = takes_nul;
  if (!read_value (&scanner, self, EBB_JSON_MAX_DEPTH, error) || !ebb_json_scanner_expect_end (&scanner, error))
    return NULL;
  return g_steal_pointer (&self);
}

static EbbJson *
read_file (const char *path, gsize max_size, gboolean takes_nul, GError **error)
{
  gsize length;
  g_autofree char *text = ebb_read_file (path, max_size, &length, error);

  return text != NULL && ebb_check_is_content (path, text, length, error)
             ? parse (text, length, path, takes_nul, error)
             : NULL;
}

EbbJson *
ebb_json_parse (const char *text, gsize length, const char *what, GError **error)
{
  return parse (text, length, what, FALSE, error);
}

EbbJson *
ebb_json_read_file (const char *path, gsize max_size, GError **error)
{
  return read_file (path, max_size, FALSE, error);
}

EbbJson *
ebb_json_parse_with_nul (const char *text, gsize length, const char *what, GError **error)
{
  return parse (text, length, what, TRUE, error);
}

EbbJson *
ebb_json_read_file_with_nul (const char *path, gsize max_size, GError **error)
{
  return read_file (path, max_size, TRUE, error);
}

static void
copy_to (const EbbJson *from, EbbJson *to)
{
  *to = (EbbJson){ from->kind, g_strdup (from->key), g_strdup (from->text), NULL, from->n_items };
  if (from->n_items > 0)
    to->items = g_new (EbbJson, from->n_items);
  for (gsize i = 0; i < from->n_items; i++)
    copy_to (&from->items[i], &to->items[i]);
}

EbbJson *
ebb_json_copy (const EbbJson *self)
{
  EbbJson *copy = g_new (EbbJson, 1);

  copy_to (self, copy);
  return copy;
}

const EbbJson *
ebb_json_get (const EbbJson *self, const char *key)
{
  if (self != NULL && self->kind == EBB_JSON_OBJECT)
    for (gsize i = 0; i < self->n_items; i++)
      if (strcmp (self->items[i].key, key) == 0)
        return &self->items[i];
  return NULL;
}

gboolean
ebb_json_as_string (const EbbJson *self, const char **value)
{
  if (self == NULL || self->kind != EBB_JSON_STRING)
    return FALSE;
  *value = self->text;
  return TRUE;
}

gboolean
ebb_json_as_boolean (const EbbJson *self, gboolean *value)
{
  if (self == NULL || self->kind != EBB_JSON_BOOLEAN)
    return FALSE;
  *value = self->text[0] == 't';
  return TRUE;
}

gboolean
ebb_json_as_double (const EbbJson *self, double *value)
{
  if (self == NULL || self->kind != EBB_JSON_NUMBER)
    return FALSE;
  *value = g_ascii_strtod (self->text, NULL);
  return TRUE;
}

gboolean
ebb_json_as_int (const EbbJson *self, gint64 *value)
{
  double number;

  if (!ebb_json_as_double (self, &number))
    return FALSE;
  if (g_ascii_string_to_signed (self->text, 10, G_MININT64, G_MAXINT64, value, NULL))
    return TRUE;
  if (number != floor (number) || fabs (number) > 9007199254740992.0)
    return FALSE;
  *value = (gint64) number;
  return TRUE;
}

void
ebb_json_set (EbbJson *self, const char *key, const char *text)
{
  EbbJson *value = ebb_json_parse (text, strlen (text), key, NULL);
  EbbJson *member = (EbbJson *) ebb_json_get (self, key);

  g_return_if_fail (self->kind == EBB_JSON_OBJECT && value != NULL);

  if (member != NULL)
    clear (member);
  else
    {
      self->items = g_renew (EbbJson, self->items, self->n_items + 1);
      member = &self->items[self->n_items++];
    }
  *member = *value;
  member->key = g_strdup (key);
  g_free (value);
}

char *
ebb_json_describe (const EbbJson *self)
{
  g_autofree char *line = NULL;
  const char *cut;

  if (self->kind == EBB_JSON_STRING)
    return ebb_json_quote (self->text);
  line = ebb_json_to_line (self);
  cut = strlen (line) > MAX_SHOWN ? g_utf8_find_prev_char (line, line + MAX_SHOWN + 1) : NULL;
  if (cut != NULL)
    {
      g_autofree char *shown = g_strdup_printf ("%.*s...", (int) (cut - line), line);

      return ebb_escape_text (shown);
    }
  return ebb_escape_text (line);
}

static void
begin_line (GString *json, guint depth)
{
  g_string_append_printf (json, "\n%*s", (int) (2 * depth), "");
}

static void
print_at (const EbbJson *self, GString *json, gboolean in_lines, guint depth)
{
  const gboolean is_object = self->kind == EBB_JSON_OBJECT;

  if (self->kind == EBB_JSON_STRING)
    ebb_json_append_string (json, self->text);
  else if (!is_object && self->kind != EBB_JSON_LIST)
    g_string_append (json, self->text);
  else
    {
      g_string_append_c (json, is_object ? '{' : '[');
      for (gsize i = 0; i < self->n_items; i++)
        {
          g_string_append (json, i == 0 ? "" : in_lines ? ","
                                                        : ", ");
          if (in_lines)
            begin_line (json, depth + 1);
          if (is_object)
            {
              ebb_json_append_string (json, self->items[i].key);
              g_string_append (json, ": ");
            }
          print_at (&self->items[i], json, in_lines, depth + 1);
        }
      if (in_lines && self->n_items > 0)
        begin_line (json, depth);
      g_string_append_c (json, is_object ? '}' : ']');
    }
}

void
ebb_json_print (const EbbJson *self, GString *json)
{
  print_at (self, json, TRUE, 0);
}

char *
ebb_json_to_line (const EbbJson *self)
{
  GString *json = g_string_new (NULL);

  print_at (self, json, FALSE, 0);
  return g_string_free (json, FALSE);
}

void
ebb_json_free (EbbJson *self)
{
  if (self == NULL)
    return;
  clear (self);
  g_free (self);
}
