/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/error-private.h"

/* The error domain, how its errors are set, texts fit for messages, and the check with which functions begin. */

/* Ranks that are threads may meet their first error at the same time. */
GQuark
ebb_error_quark (void)
{
  static GQuark quark;
  GQuark value = __atomic_load_n (&quark, __ATOMIC_RELAXED);

  if (G_UNLIKELY (value == 0))
    {
      value = g_quark_from_static_string ("ebb-error-quark");
      __atomic_store_n (&quark, value, __ATOMIC_RELAXED);
    }
  return value;
}

#define MAX_TEXTS 8

/* The texts that the next message is made of; the oldest one goes first. */
static _Thread_local char *texts[MAX_TEXTS];
static _Thread_local guint n_texts;

const char *
ebb_in_message (char *text)
{
  char **place = &texts[n_texts++ % MAX_TEXTS];

  g_free (*place);
  return *place = text;
}

void
ebb_error_set (GError **error,
               EbbError code,
               const char *format,
               ...)
{
  va_list arguments;

  va_start (arguments, format);
  if (error != NULL)
    g_propagate_error (error, g_error_new_valist (EBB_ERROR, code, format, arguments));
  va_end (arguments);
  for (guint i = 0; i < MAX_TEXTS; i++)
    g_clear_pointer (&texts[i], g_free);
}

#define MAX_SHOWN 2000

char *
ebb_escape_text (const char *text)
{
  g_autofree char *valid = g_utf8_make_valid (text, -1);
  GString *escaped = g_string_new (NULL);

  for (const char *p = valid; *p != '\0' && escaped->len < MAX_SHOWN; p = g_utf8_next_char (p))
    if (*p == '\n')
      g_string_append (escaped, "\\n");
    else if (g_unichar_iscntrl (g_utf8_get_char (p)))
      g_string_append_printf (escaped, "\\u%04x", (guint) g_utf8_get_char (p));
    else
      g_string_append_unichar (escaped, g_utf8_get_char (p));
  if (escaped->len >= MAX_SHOWN)
    g_string_append (escaped, "...");
  return g_string_free (escaped, FALSE);
}

char *
ebb_escape_beginning (const char *text, guint n_characters)
{
  g_autofree char *escaped = ebb_escape_text (text);
  g_autofree char *beginning = NULL;

  if (g_utf8_strlen (escaped, -1) <= (glong) n_characters)
    return g_steal_pointer (&escaped);
  beginning = g_utf8_substring (escaped, 0, n_characters);
  return g_strconcat (beginning, "...", NULL);
}

void
ebb_error_set_null (GError **error,
                    const char *function,
                    const char *argument)
{
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "%s: %s is NULL: the call that should have made it failed; pass that call an error to see why", function,
               argument);
}

gboolean
ebb_may_begin (GError **error,
               const char *function,
               const char *names,
               const gconstpointer *arguments,
               guint n_arguments)
{
  guint i = 0;

  if (error != NULL && *error != NULL)
    return FALSE;
  while (i < n_arguments && arguments[i] != NULL)
    i++;
  if (G_LIKELY (i == n_arguments))
    return TRUE;
  if (error != NULL)
    {
      g_auto (GStrv) parts = g_strsplit (names, ", ", -1);

      ebb_error_set_null (error, function, parts[i]);
    }
  return FALSE;
}
