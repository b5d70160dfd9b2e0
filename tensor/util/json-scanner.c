/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/util/json-scanner-private.h"

#include "tensor/error-private.h"

#include <string.h>

/* Reads JSON of any size in one pass, without a tree, and names the line and column of an error. */

gboolean
ebb_json_scanner_init (EbbJsonScanner *self,
                       const char *text,
                       gsize length,
                       const char *what,
                       GError **error)
{
  const char *end;

  *self = (EbbJsonScanner){ .text = text, .length = length, .what = what };
  if (g_utf8_validate_len (text, length, &end))
    return TRUE;
  self->position = (gsize) (end - text);
  return ebb_json_scanner_fail (self, error, "not UTF-8");
}

static void
skip_space (EbbJsonScanner *self)
{
  while (self->position < self->length && strchr (" \t\r\n", self->text[self->position]) != NULL
         && self->text[self->position] != '\0')
    self->position++;
}

gboolean
ebb_json_scanner_try (EbbJsonScanner *self,
                      char c)
{
  skip_space (self);
  if (self->position >= self->length || self->text[self->position] != c)
    return FALSE;
  self->position++;
  return TRUE;
}

char
ebb_json_scanner_peek (EbbJsonScanner *self)
{
  skip_space (self);
  return self->position < self->length ? self->text[self->position] : '\0';
}

gboolean
ebb_json_scanner_try_word (EbbJsonScanner *self,
                           const char *word)
{
  gsize length = strlen (word);

  skip_space (self);
  if (self->length - self->position < length || memcmp (self->text + self->position, word, length) != 0)
    return FALSE;
  self->position += length;
  return TRUE;
}

/* Describes the character at the position, for messages. */
static char *
describe_here (EbbJsonScanner *self)
{
  gunichar c;

  if (self->position >= self->length)
    return g_strdup ("the end");
  c = g_utf8_get_char (self->text + self->position);
  if (g_unichar_isprint (c))
    {
      char utf8[7] = { 0 };

      g_unichar_to_utf8 (c, utf8);
      return g_strdup_printf ("'%s'", utf8);
    }
  return g_strdup_printf ("the character U+%04X", c);
}

gboolean
ebb_json_scanner_expect (EbbJsonScanner *self,
                         char c,
                         GError **error)
{
  return ebb_json_scanner_try (self, c)
         || ebb_json_scanner_fail (self, error, "expected '%c', found %s", c, ebb_in_message (describe_here (self)));
}

gboolean
ebb_json_scanner_next (EbbJsonScanner *self,
                       gboolean first,
                       char end,
                       gboolean *more,
                       GError **error)
{
  *more = FALSE;
  if (ebb_json_scanner_try (self, end))
    return TRUE;
  *more = first || ebb_json_scanner_try (self, ',');
  return *more
         || ebb_json_scanner_fail (self, error, "expected ',' or '%c', found %s", end,
                                   ebb_in_message (describe_here (self)));
}

static gboolean
read_hex4 (EbbJsonScanner *self,
           gunichar *value,
           GError **error)
{
  *value = 0;
  for (int i = 0; i < 4; i++)
    {
      int digit = self->position < self->length ? g_ascii_xdigit_value (self->text[self->position]) : -1;

      if (digit < 0)
        return ebb_json_scanner_fail (self, error, "\\u must be followed by four hexadecimal digits");
      *value = *value * 16 + (gunichar) digit;
      self->position++;
    }
  return TRUE;
}

static gboolean
read_unicode_escape (EbbJsonScanner *self,
                     GString *result,
                     GError **error)
{
  gunichar c, low;

  if (!read_hex4 (self, &c, error))
    return FALSE;
  if (c >= 0xd800 && c < 0xdc00)
    {
      if (self->position + 2 > self->length || strncmp (self->text + self->position, "\\u", 2) != 0)
        return ebb_json_scanner_fail (self, error, "half a surrogate pair");
      self->position += 2;
      if (!read_hex4 (self, &low, error))
        return FALSE;
      if (low < 0xdc00 || low > 0xdfff)
        return ebb_json_scanner_fail (self, error, "half a surrogate pair");
      c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
  else if (c >= 0xdc00 && c < 0xe000)
    return ebb_json_scanner_fail (self, error, "half a surrogate pair");
  if (c == 0 && !self->takes_nul)
    return ebb_json_scanner_fail (self, error, "a string with U+0000");
  if (c == 0)
    g_string_append (result, EBB_JSON_NUL);
  else
    g_string_append_unichar (result, c);
  return TRUE;
}

static gboolean
read_escape (EbbJsonScanner *self,
             GString *result,
             GError **error)
{
  static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
  char c = self->position < self->length ? self->text[self->position] : '\0';
  const char *found = c ? strchr (letters, c) : NULL;

  if (c == 'u')
    {
      self->position++;
      return read_unicode_escape (self, result, error);
    }
  if (found == NULL)
    return ebb_json_scanner_fail (self, error, "no such escape in a string");
  self->position++;
  g_string_append_c (result, meanings[found - letters]);
  return TRUE;
}

char *
ebb_json_scanner_read_string (EbbJsonScanner *self,
                              GError **error)
{
  g_autoptr (GString) result = NULL;

  if (!ebb_json_scanner_expect (self, '"', error))
    return NULL;
  result = g_string_new (NULL);
  for (;;)
    {
      gsize start = self->position;

      while (self->position < self->length && self->text[self->position] != '"' && self->text[self->position] != '\\'
             && (guchar) self->text[self->position] >= 0x20)
        self->position++;
      g_string_append_len (result, self->text + start, (gssize) (self->position - start));
      if (self->position >= self->length)
        {
          ebb_json_scanner_fail (self, error, "a string without end");
          return NULL;
        }
      switch (self->text[self->position])
        {
        case '"':
          self->position++;
          return g_string_free (g_steal_pointer (&result), FALSE);
        case '\\':
          self->position++;
          if (!read_escape (self, result, error))
            return NULL;
          break;
        default:
          ebb_json_scanner_fail (self, error, "a control character in a string");
          return NULL;
        }
    }
}

char *
ebb_json_scanner_read_key (EbbJsonScanner *self,
                           GError **error)
{
  g_autofree char *key = ebb_json_scanner_read_string (self, error);

  if (key == NULL || !ebb_json_scanner_expect (self, ':', error))
    return NULL;
  return g_steal_pointer (&key);
}

gboolean
ebb_json_scanner_read_uint (EbbJsonScanner *self,
                            gint64 *value,
                            GError **error)
{
  gint64 result = 0;
  gsize start;

  skip_space (self);
  start = self->position;
  for (; self->position < self->length && g_ascii_isdigit (self->text[self->position]); self->position++)
    if (__builtin_mul_overflow (result, (gint64) 10, &result)
        || __builtin_add_overflow (result, (gint64) (self->text[self->position] - '0'), &result))
      return ebb_json_scanner_fail (self, error, "an integer of more than 63 bits");
  if (self->position == start || (self->text[start] == '0' && self->position > start + 1)
      || (self->position < self->length && strchr (".eE", self->text[self->position]) != NULL
          && self->text[self->position] != '\0'))
    {
      self->position = start;
      return ebb_json_scanner_fail (self, error, "expected an integer of 0 or more");
    }
  *value = result;
  return TRUE;
}

/* Without white space before it. */
static gboolean
take_one_of (EbbJsonScanner *self,
             const char *characters)
{
  gboolean found = self->position < self->length && self->text[self->position] != '\0'
                   && strchr (characters, self->text[self->position]) != NULL;

  self->position += found;
  return found;
}

static gboolean
skip_digits (EbbJsonScanner *self,
             GError **error)
{
  gsize start = self->position;

  while (take_one_of (self, "0123456789"))
    ;
  return self->position > start || ebb_json_scanner_fail (self, error, "expected a value");
}

static gboolean
skip_number (EbbJsonScanner *self,
             GError **error)
{
  gsize start;

  take_one_of (self, "-");
  start = self->position;
  if (!skip_digits (self, error))
    return FALSE;
  if (self->text[start] == '0' && self->position > start + 1)
    return ebb_json_scanner_fail (self, error, "a number that begins with 0");
  if (take_one_of (self, ".") && !skip_digits (self, error))
    return FALSE;
  if (!take_one_of (self, "eE"))
    return TRUE;
  take_one_of (self, "+-");
  return skip_digits (self, error);
}

static gboolean
skip_members (EbbJsonScanner *self,
              char begin,
              guint max_depth,
              GError **error)
{
  g_autoptr (GHashTable) keys = begin == '{' ? g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL) : NULL;
  gboolean more, first = TRUE;

  if (max_depth == 0)
    return ebb_json_scanner_fail (self, error, "objects and lists are nested too deep");
  ebb_json_scanner_try (self, begin);
  for (; ebb_json_scanner_next (self, first, begin == '{' ? '}' : ']', &more, error); first = FALSE)
    {
      g_autofree char *key = NULL;

      if (!more)
        return TRUE;
      if (keys != NULL && (key = ebb_json_scanner_read_key (self, error)) == NULL)
        return FALSE;
      if (keys != NULL && g_hash_table_contains (keys, key))
        return ebb_json_scanner_fail (self, error, "the key %s stands twice in one object",
                                      ebb_in_message (ebb_json_quote (key)));
      if (!ebb_json_scanner_skip_value (self, max_depth - 1, error))
        return FALSE;
      if (keys != NULL)
        g_hash_table_add (keys, g_steal_pointer (&key));
    }
  return FALSE;
}

gboolean
ebb_json_scanner_skip_value (EbbJsonScanner *self,
                             guint max_depth,
                             GError **error)
{
  g_autofree char *text = NULL;
  char c = ebb_json_scanner_peek (self);

  switch (c)
    {
    case '{':
    case '[':
      return skip_members (self, c, max_depth, error);
    case '"':
      text = ebb_json_scanner_read_string (self, error);
      return text != NULL;
    default:
      return ebb_json_scanner_try_word (self, "null") || ebb_json_scanner_try_word (self, "true")
             || ebb_json_scanner_try_word (self, "false") || skip_number (self, error);
    }
}

gboolean
ebb_json_scanner_expect_end (EbbJsonScanner *self,
                             GError **error)
{
  skip_space (self);
  return self->position == self->length
         || ebb_json_scanner_fail (self, error, "expected the end, found %s", ebb_in_message (describe_here (self)));
}

void
ebb_json_append_string (GString *json,
                        const char *text)
{
  g_string_append_c (json, '"');
  for (const char *p = text; *p != '\0'; p++)
    switch (*p)
      {
      case '"': g_string_append (json, "\\\""); break;
      case '\\': g_string_append (json, "\\\\"); break;
      case '\n': g_string_append (json, "\\n"); break;
      case '\t': g_string_append (json, "\\t"); break;
      default:
        if (g_str_has_prefix (p, EBB_JSON_NUL))
          {
            g_string_append (json, "\\u0000");
            p++;
          }
        else if ((guchar) *p < 0x20 || *p == 0x7f)
          g_string_append_printf (json, "\\u%04x", (guint) (guchar) *p);
        else
          g_string_append_c (json, *p);
      }
  g_string_append_c (json, '"');
}

char *
ebb_json_quote (const char *text)
{
  g_autoptr (GString) quoted = g_string_new (NULL);
  g_autofree char *valid = g_utf8_make_valid (text, -1);

  ebb_json_append_string (quoted, valid);
  if (quoted->len > 200)
    {
      const char *cut = g_utf8_find_prev_char (quoted->str, quoted->str + 197);

      g_string_truncate (quoted, cut ? (gsize) (cut - quoted->str) : 0);
      g_string_append (quoted, "...\"");
    }
  return g_string_free (g_steal_pointer (&quoted), FALSE);
}
