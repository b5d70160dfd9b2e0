/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/util/property-private.h"

/* Reads and writes the fields that are properties of an object. */

void
ebb_property_get_field (GObject *object, guint id, GValue *value, GParamSpec *spec)
{
  gpointer field = ebb_property_get_pointer (object, id);

  switch (G_TYPE_FUNDAMENTAL (spec->value_type))
    {
    case G_TYPE_BOOLEAN: g_value_set_boolean (value, *(gboolean *) field); break;
    case G_TYPE_INT: g_value_set_int (value, *(int *) field); break;
    case G_TYPE_UINT: g_value_set_uint (value, *(guint *) field); break;
    case G_TYPE_INT64: g_value_set_int64 (value, *(gint64 *) field); break;
    case G_TYPE_UINT64: g_value_set_uint64 (value, *(guint64 *) field); break;
    case G_TYPE_DOUBLE: g_value_set_double (value, *(double *) field); break;
    case G_TYPE_ENUM: g_value_set_enum (value, *(int *) field); break;
    case G_TYPE_FLAGS: g_value_set_flags (value, *(guint *) field); break;
    case G_TYPE_STRING: g_value_set_string (value, *(char **) field); break;
    case G_TYPE_BOXED: g_value_set_boxed (value, *(gpointer *) field); break;
    case G_TYPE_OBJECT: g_value_set_object (value, *(GObject **) field); break;
    default: g_assert_not_reached ();
    }
}

void
ebb_property_set_field (GObject *object, guint id, const GValue *value, GParamSpec *spec)
{
  gpointer field = ebb_property_get_pointer (object, id);

  switch (G_TYPE_FUNDAMENTAL (spec->value_type))
    {
    case G_TYPE_BOOLEAN: *(gboolean *) field = g_value_get_boolean (value); break;
    case G_TYPE_INT: *(int *) field = g_value_get_int (value); break;
    case G_TYPE_UINT: *(guint *) field = g_value_get_uint (value); break;
    case G_TYPE_INT64: *(gint64 *) field = g_value_get_int64 (value); break;
    case G_TYPE_UINT64: *(guint64 *) field = g_value_get_uint64 (value); break;
    case G_TYPE_DOUBLE: *(double *) field = g_value_get_double (value); break;
    case G_TYPE_ENUM: *(int *) field = g_value_get_enum (value); break;
    case G_TYPE_FLAGS: *(guint *) field = g_value_get_flags (value); break;
    case G_TYPE_STRING:
      g_free (*(char **) field);
      *(char **) field = g_value_dup_string (value);
      break;
    case G_TYPE_BOXED:
      if (*(gpointer *) field != NULL)
        g_boxed_free (spec->value_type, *(gpointer *) field);
      *(gpointer *) field = g_value_dup_boxed (value);
      break;
    case G_TYPE_OBJECT: g_set_object ((GObject **) field, g_value_get_object (value)); break;
    default: g_assert_not_reached ();
    }
}
