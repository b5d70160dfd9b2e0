/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/models/folder/config-private.h"

#include "tensor/util/json-scanner-private.h"
#include "tensor/error-private.h"

#include <math.h>
#include <string.h>

/* Keys of config.json that stand for one field of a configuration: read, checked and written by their rows. */

static const EbbConfigSource no_source;

/* -- errors -------------------------------------------------------------------------------------------------------- */

gboolean
ebb_config_refuse (const EbbConfigSource *source,
                   const char *scope,
                   const char *key,
                   const EbbJson *value,
                   const char *right,
                   GError **error)
{
  return ebb_fail (error, EBB_ERROR_STATE, "%s: %s%s%s is %s: it must be %s", ebb_show_text (source->path),
                   scope ? scope : "", scope ? "." : "", key,
                   ebb_in_message (value != NULL ? ebb_json_describe (value) : g_strdup ("missing")), right);
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static gboolean
is_one_of (const EbbJson *value,
           const char *texts)
{
  g_autofree char *text = ebb_json_to_line (value);
  g_auto (GStrv) parts = g_strsplit (texts, "|", -1);

  return g_strv_contains ((const char *const *) parts, text);
}

/* The names of activations. The first name of an activation is the one that is written. */
typedef struct
{
  const char *name;
  EbbActivation activation;
} ActivationName;

static const ActivationName activation_names[] = {
  { "silu", EBB_ACTIVATION_SILU },
  { "swish", EBB_ACTIVATION_SILU },
  { "gelu_pytorch_tanh", EBB_ACTIVATION_GELU_TANH },
  { "gelu_new", EBB_ACTIVATION_GELU_TANH },
  { "gelu_fast", EBB_ACTIVATION_GELU_TANH },
  { "gelu", EBB_ACTIVATION_GELU },
  { NULL, 0 },
};

static gboolean
read_activation (const EbbConfigSource *source,
                 const EbbConfigKeyRow *row,
                 const EbbJson *value,
                 EbbActivation *field,
                 GError **error)
{
  g_autoptr (GString) known = g_string_new (NULL);
  const char *name = NULL;

  ebb_json_as_string (value, &name);
  for (const ActivationName *known_name = activation_names; known_name->name != NULL; known_name++)
    {
      if (g_strcmp0 (name, known_name->name) == 0)
        {
          *field = known_name->activation;
          return TRUE;
        }
      g_string_append_printf (known, "%s%s", known->len == 0 ? "" : known_name[1].name != NULL ? ", "
                                                                                               : " or ",
                              known_name->name);
    }
  return ebb_config_refuse (source, NULL, row->name, value, known->str, error);
}

static gboolean
read_value (const EbbConfigSource *source,
            const EbbConfigKeyRow *row,
            const EbbJson *value,
            gpointer field,
            GError **error)
{
  const gboolean is_null = row->nullable && value->kind == EBB_JSON_NULL;
  gint64 integer = 0;
  double number = 0;

  switch (row->kind)
    {
    case EBB_CONFIG_KEY_SIZE:
      if (!is_null && (!ebb_json_as_int (value, &integer) || integer < 1 || integer > G_MAXINT / 4))
        return ebb_config_refuse (source, NULL, row->name, value, "a whole number of at least 1 and at most 536870911",
                                  error);
      *(int *) field = (int) integer;
      return TRUE;
    case EBB_CONFIG_KEY_NUMBER:
      if (!is_null && (!ebb_json_as_double (value, &number) || !(number >= 0 && number < G_MAXFLOAT)))
        return ebb_config_refuse (source, NULL, row->name, value, "a number of at least 0", error);
      *(double *) field = number;
      return TRUE;
    case EBB_CONFIG_KEY_SCALE:
      if (!ebb_json_as_double (value, &number) || !(number > 0 && number < G_MAXFLOAT))
        return ebb_config_refuse (source, NULL, row->name, value, "a number above 0", error);
      *(double *) field = 1 / sqrt (number);
      return TRUE;
    case EBB_CONFIG_KEY_DROPOUT:
      if (!is_null && (!ebb_json_as_double (value, &number) || !(number >= 0 && number < 1)))
        return ebb_config_refuse (source, NULL, row->name, value, "a number of at least 0 and below 1", error);
      *(double *) field = number;
      return TRUE;
    case EBB_CONFIG_KEY_FLAG:
      return ebb_json_as_boolean (value, field)
             || ebb_config_refuse (source, NULL, row->name, value, "true or false", error);
    case EBB_CONFIG_KEY_ACTIVATION:
      return read_activation (source, row, value, field, error);
    case EBB_CONFIG_KEY_ONLY:
      if (is_one_of (value, row->initial))
        return TRUE;
      {
        g_autofree char *right = g_strndup (row->initial, strcspn (row->initial, "|"));

        return ebb_config_refuse (source, NULL, row->name, value, right, error);
      }
    }
  g_assert_not_reached ();
}

static gboolean
read_initial (const EbbConfigKeyRow *row,
              gpointer field)
{
  g_autoptr (EbbJson) initial = ebb_json_parse (row->initial, strlen (row->initial), row->name, NULL);

  return read_value (&no_source, row, initial, field, NULL);
}

/* Ebb has one probability of dropout for embeddings and for the parts' results: the first key says it. */
static gboolean
read_dropout (const EbbConfigSource *source,
              const EbbConfigKeyRow *rows,
              const EbbConfigKeyRow *row,
              const EbbJson *value,
              double *field,
              GError **error)
{
  const EbbConfigKeyRow *first = rows;
  double one = 0;

  if (value != NULL ? !read_value (source, row, value, &one, error) : !read_initial (row, &one))
    return FALSE;
  while (first->kind != EBB_CONFIG_KEY_DROPOUT || first->offset != row->offset)
    first++;
  if (first == row)
    *field = one;
  else if (one != *field && !source->is_own)
    g_message ("%s: %s is %g, and dropout is %g on embeddings too, as %s is", source->path, row->name, one, *field,
               first->name);
  return TRUE;
}

gboolean
ebb_config_read_rows (const EbbConfigSource *source,
                      const EbbConfigKeyRow *rows,
                      gpointer config,
                      GError **error)
{
  for (const EbbConfigKeyRow *row = rows; row->name != NULL; row++)
    {
      const EbbJson *value = ebb_json_get (source->document, row->name);
      gpointer field = (char *) config + row->offset;

      if (row->kind == EBB_CONFIG_KEY_DROPOUT)
        {
          if (!read_dropout (source, rows, row, value, field, error))
            return FALSE;
        }
      else if (value != NULL)
        {
          if (!read_value (source, row, value, field, error))
            return FALSE;
        }
      else if (row->kind != EBB_CONFIG_KEY_ONLY)
        read_initial (row, field);
    }
  return TRUE;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

void
ebb_config_append_number (GString *json,
                          double value)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];
  int digits = 1;

  do
    {
      char format[8];

      g_snprintf (format, sizeof format, "%%.%dg", digits);
      g_ascii_formatd (text, sizeof text, format, value);
    }
  while (g_ascii_strtod (text, NULL) != value && digits++ < 17);
  g_string_append (json, text);
  if (strpbrk (text, ".en") == NULL)
    g_string_append (json, ".0");
}

static void
append_value (GString *json,
              const EbbConfigKeyRow *row,
              gconstpointer field)
{
  switch (row->kind)
    {
    case EBB_CONFIG_KEY_SIZE:
      if (row->nullable && *(const int *) field == 0)
        g_string_append (json, "null");
      else
        g_string_append_printf (json, "%d", *(const int *) field);
      return;
    case EBB_CONFIG_KEY_NUMBER:
      if (row->nullable && *(const double *) field == 0)
        g_string_append (json, "null");
      else
        ebb_config_append_number (json, *(const double *) field);
      return;
    case EBB_CONFIG_KEY_SCALE:
      {
        const double scale = *(const double *) field, value = 1 / (scale * scale);

        /* `transformers` has a whole number there. */
        if (fabs (value - round (value)) < 1e-9 * value)
          g_string_append_printf (json, "%.0f", round (value));
        else
          ebb_config_append_number (json, value);
        return;
      }
    case EBB_CONFIG_KEY_DROPOUT:
      ebb_config_append_number (json, *(const double *) field);
      return;
    case EBB_CONFIG_KEY_FLAG:
      g_string_append (json, *(const gboolean *) field ? "true" : "false");
      return;
    case EBB_CONFIG_KEY_ACTIVATION:
      for (const ActivationName *name = activation_names; name->name != NULL; name++)
        if (name->activation == *(const EbbActivation *) field)
          {
            ebb_json_append_string (json, name->name);
            return;
          }
      break;
    case EBB_CONFIG_KEY_ONLY:
      g_string_append_len (json, row->initial, (gssize) strcspn (row->initial, "|"));
      return;
    }
  g_assert_not_reached ();
}

gboolean
ebb_config_row_is_equal (const EbbConfigKeyRow *row,
                         gconstpointer a,
                         gconstpointer b)
{
  const char *x = (const char *) a + row->offset, *y = (const char *) b + row->offset;

  switch (row->kind)
    {
    case EBB_CONFIG_KEY_SIZE:
    case EBB_CONFIG_KEY_ACTIVATION:
      return *(const int *) x == *(const int *) y;
    case EBB_CONFIG_KEY_FLAG:
      return !*(const gboolean *) x == !*(const gboolean *) y;
    case EBB_CONFIG_KEY_SCALE: /* written as its inverse square, which may round */
      return fabs (*(const double *) x - *(const double *) y) <= 1e-12 * fabs (*(const double *) y);
    case EBB_CONFIG_KEY_NUMBER:
    case EBB_CONFIG_KEY_DROPOUT:
      return *(const double *) x == *(const double *) y;
    case EBB_CONFIG_KEY_ONLY:
      return TRUE;
    }
  g_assert_not_reached ();
}

void
ebb_config_write_rows (const EbbConfigKeyRow *rows,
                       gconstpointer config,
                       gconstpointer read,
                       EbbJson *document)
{
  for (const EbbConfigKeyRow *row = rows; row->name != NULL; row++)
    {
      g_autoptr (GString) json = NULL;

      if (row->kind == EBB_CONFIG_KEY_ONLY || (read != NULL && ebb_config_row_is_equal (row, config, read)))
        continue;
      json = g_string_new (NULL);
      append_value (json, row, (const char *) config + row->offset);
      ebb_json_set (document, row->name, json->str);
    }
}
