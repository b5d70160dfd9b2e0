/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/random-trace.h"

#include <string.h>

typedef struct
{
  char *label;
  char *text;
  guint8 *bytes;
  gsize n_bytes;
} Entry;

static void
entry_free (gpointer data)
{
  Entry *entry = data;

  g_free (entry->label);
  g_free (entry->text);
  g_free (entry->bytes);
  g_free (entry);
}

void
test_trace_init (TestTrace *trace)
{
  trace->entries = g_ptr_array_new_with_free_func (entry_free);
}

void
test_trace_clear (TestTrace *trace)
{
  g_clear_pointer (&trace->entries, g_ptr_array_unref);
}

static Entry *
see (TestTrace *self,
     char *label,
     char *text)
{
  Entry *entry = g_new0 (Entry, 1);

  entry->label = label;
  entry->text = text;
  g_ptr_array_add (self->entries, entry);
  return entry;
}

void
test_trace_see (TestTrace *self,
                char *label,
                char *text)
{
  see (self, label, text);
}

void
test_trace_see_tensor (TestTrace *self,
                       char *label,
                       EbbTensor *tensor)
{
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GString) text = g_string_new (NULL);
  const gint64 *strides;
  guint n;
  Entry *entry;

  if (tensor == NULL)
    {
      see (self, label, g_strdup ("none"));
      return;
    }
  strides = ebb_tensor_get_strides (tensor, &n);
  g_string_append (text, ebb_dtype_get_name (ebb_tensor_get_dtype (tensor)));
  for (guint i = 0; i < n; i++)
    g_string_append_printf (text, " %" G_GINT64_FORMAT ":%" G_GINT64_FORMAT, ebb_tensor_get_dim (tensor, (int) i),
                            strides[i]);
  g_string_append_printf (text, "%s%s", ebb_tensor_get_requires_grad (tensor) ? " requires-grad" : "",
                          ebb_tensor_is_leaf (tensor) ? " leaf" : "");
  entry = see (self, label, g_strdup (text->str));
  bytes = ebb_tensor_get_bytes (tensor, NULL);
  g_assert_nonnull (bytes);
  entry->n_bytes = g_bytes_get_size (bytes);
  entry->bytes = g_memdup2 (g_bytes_get_data (bytes, NULL), entry->n_bytes);
}

void
test_trace_see_args (TestTrace *self,
                     const char *path,
                     EbbArgs *args,
                     GPtrArray *objects)
{
  see (self, g_strdup_printf ("%s", path),
       g_strdup_printf ("kind %d, length %u", (int) ebb_args_get_kind (args), ebb_args_get_length (args)));
  for (guint i = 0; i < ebb_args_get_length (args); i++)
    {
      const char *key = ebb_args_get_key (args, i);
      g_autofree char *name = g_strdup_printf ("%s/%s%u", path, key ? key : "", i);
      g_autoptr (EbbTensor) tensor = NULL;
      g_autoptr (EbbArgs) below = NULL;
      g_autoptr (GObject) object = NULL;
      guint index = 0;

      switch (ebb_args_get_value_kind (args, i))
        {
        case EBB_VALUE_NONE: see (self, g_steal_pointer (&name), g_strdup ("none")); break;
        case EBB_VALUE_BOOL:
          see (self, g_steal_pointer (&name), g_strdup (ebb_args_get_boolean (args, i) ? "true" : "false"));
          break;
        case EBB_VALUE_INT:
          see (self, g_steal_pointer (&name), g_strdup_printf ("%" G_GINT64_FORMAT, ebb_args_get_int (args, i)));
          break;
        case EBB_VALUE_DOUBLE:
          see (self, g_steal_pointer (&name), g_strdup_printf ("%.17g", ebb_args_get_double (args, i)));
          break;
        case EBB_VALUE_STRING:
          see (self, g_steal_pointer (&name), g_strdup_printf ("\"%s\"", ebb_args_get_string (args, i)));
          break;
        case EBB_VALUE_TENSOR:
          tensor = ebb_args_get_tensor (args, i);
          test_trace_see_tensor (self, g_steal_pointer (&name), tensor);
          break;
        case EBB_VALUE_ARGS:
          below = ebb_args_get_args (args, i);
          test_trace_see_args (self, name, below, objects);
          break;
        case EBB_VALUE_OBJECT:
          object = ebb_args_get_object (args, i);
          g_assert_true (g_ptr_array_find (objects, object, &index));
          see (self, g_steal_pointer (&name), g_strdup_printf ("object %u", index));
          break;
        }
    }
}

char *
test_trace_compare_begin (const TestTrace *expected,
                          const TestTrace *actual)
{
  for (guint i = 0; i < actual->entries->len; i++)
    {
      const Entry *a, *b = g_ptr_array_index (actual->entries, i);

      if (i >= expected->entries->len)
        return g_strdup_printf ("%s (%s) comes where nothing was expected", b->label, b->text);
      a = g_ptr_array_index (expected->entries, i);
      if (!g_str_equal (a->label, b->label))
        return g_strdup_printf ("%s was expected, and %s (%s) comes", a->label, b->label, b->text);
      if (!g_str_equal (a->text, b->text))
        return g_strdup_printf ("%s is %s, and was expected to be %s", a->label, b->text, a->text);
      if (a->n_bytes != b->n_bytes || (a->n_bytes > 0 && memcmp (a->bytes, b->bytes, a->n_bytes) != 0))
        return g_strdup_printf ("%s (%s) has other values", a->label, a->text);
    }
  return NULL;
}

char *
test_trace_compare (const TestTrace *expected,
                    const TestTrace *actual)
{
  char *difference = test_trace_compare_begin (expected, actual);
  const Entry *missing;

  if (difference != NULL || actual->entries->len >= expected->entries->len)
    return difference;
  missing = g_ptr_array_index (expected->entries, actual->entries->len);
  return g_strdup_printf ("%s is missing", missing->label);
}

char *
test_trace_find_failure (const TestTrace *trace)
{
  for (guint i = 0; i < trace->entries->len; i++)
    {
      const Entry *entry = g_ptr_array_index (trace->entries, i);
      const char *wanted = g_str_has_suffix (entry->label, "forward counters")  ? ""
                           : g_str_equal (entry->label, "after all: memory")    ? "0 bytes more"
                           : g_str_equal (entry->label, "after all: the model") ? "is gone"
                                                                                : NULL;

      if (g_str_has_prefix (entry->label, "failure") || (wanted != NULL && !g_str_equal (entry->text, wanted)))
        return g_strdup_printf ("unwrapped: %s: %s", entry->label, entry->text);
    }
  return NULL;
}
