/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON value by value. */
#include "tensor/util/json-writer-private.h"

#include "tensor/util/json-scanner-private.h"

#include <math.h>

/* Appends what stands before a value: the comma after another one, and the name. */
static void
begin_value (EbbJsonWriter *self,
             const char *name)
{
  if (self->text == NULL)
    {
      self->text = g_string_new (NULL);
      self->ends = g_string_new (NULL);
    }
  if (self->is_full)
    g_string_append_c (self->text, ',');
  self->is_full = TRUE;
  if (name == NULL)
    return;
  ebb_json_append_string (self->text, name);
  g_string_append_c (self->text, ':');
}

void
ebb_json_writer_begin (EbbJsonWriter *self,
                       const char *name,
                       char bracket)
{
  begin_value (self, name);
  g_string_append_c (self->text, bracket);
  g_string_append_c (self->ends, bracket == '{' ? '}' : ']');
  self->is_full = FALSE;
}

void
ebb_json_writer_end (EbbJsonWriter *self)
{
  g_return_if_fail (self->ends != NULL && self->ends->len > 0);

  g_string_append_c (self->text, self->ends->str[self->ends->len - 1]);
  g_string_truncate (self->ends, self->ends->len - 1);
  self->is_full = TRUE;
}

void
ebb_json_writer_add_string (EbbJsonWriter *self,
                            const char *name,
                            const char *value)
{
  begin_value (self, name);
  if (value != NULL)
    ebb_json_append_string (self->text, value);
  else
    g_string_append (self->text, "null");
}

void
ebb_json_writer_add_int (EbbJsonWriter *self,
                         const char *name,
                         gint64 value)
{
  begin_value (self, name);
  g_string_append_printf (self->text, "%" G_GINT64_FORMAT, value);
}

void
ebb_json_writer_add_double (EbbJsonWriter *self,
                            const char *name,
                            double value)
{
  static const char *const formats[] = { "%.15g", "%.16g", "%.17g" };
  char digits[G_ASCII_DTOSTR_BUF_SIZE] = "null";
  gboolean is_same = !isfinite (value);

  for (guint i = 0; !is_same && i < G_N_ELEMENTS (formats); i++)
    is_same = g_ascii_strtod (g_ascii_formatd (digits, sizeof digits, formats[i], value), NULL) == value;
  begin_value (self, name);
  g_string_append (self->text, digits);
}

void
ebb_json_writer_add_boolean (EbbJsonWriter *self,
                             const char *name,
                             gboolean value)
{
  begin_value (self, name);
  g_string_append (self->text, value ? "true" : "false");
}

void
ebb_json_writer_add_json (EbbJsonWriter *self,
                          const char *name,
                          const char *json)
{
  begin_value (self, name);
  g_string_append (self->text, json);
}

char *
ebb_json_writer_finish (EbbJsonWriter *self)
{
  char *text;

  g_return_val_if_fail (self->text != NULL && self->ends->len == 0, NULL);

  text = g_string_free (g_steal_pointer (&self->text), FALSE);
  ebb_json_writer_clear (self);
  return text;
}

void
ebb_json_writer_clear (EbbJsonWriter *self)
{
  if (self->text != NULL)
    g_string_free (self->text, TRUE);
  if (self->ends != NULL)
    g_string_free (self->ends, TRUE);
  *self = (EbbJsonWriter){ NULL };
}
