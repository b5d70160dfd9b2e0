/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"

/* Containers in words, for messages and people. */

static void append_args (GString *text,
                         EbbArgs *self,
                         guint room);

static void
append_string (GString *text, const char *string)
{
  g_autofree char *escaped = g_strescape (string, NULL);

  g_string_append_printf (text, "\"%s\"", escaped);
}

static void
append_tensor (GString *text, EbbTensor *tensor)
{
  g_autofree char *shape = ebb_tensor_shape_to_string (tensor);

  g_string_append_printf (text, "%s%s", ebb_dtype_get_name (ebb_tensor_get_dtype (tensor)), shape);
}

static void
append_value (GString *text, EbbArgs *self, guint index, guint room)
{
  char number[G_ASCII_DTOSTR_BUF_SIZE];
  g_autoptr (GObject) object = NULL;

  switch (ebb_args_get_value_kind (self, index))
    {
    case EBB_VALUE_NONE: g_string_append (text, "none"); break;
    case EBB_VALUE_BOOL: g_string_append (text, ebb_args_get_boolean (self, index) ? "true" : "false"); break;
    case EBB_VALUE_INT: g_string_append_printf (text, "%" G_GINT64_FORMAT, ebb_args_get_int (self, index)); break;
    case EBB_VALUE_DOUBLE:
      g_string_append (text, g_ascii_formatd (number, sizeof number, "%g", ebb_args_get_double (self, index)));
      break;
    case EBB_VALUE_STRING: append_string (text, ebb_args_get_string (self, index)); break;
    case EBB_VALUE_TENSOR: append_tensor (text, ebb_args_peek_tensor (self, index)); break;
    case EBB_VALUE_ARGS:
      if (room == 0)
        g_string_append (text, "…");
      else
        append_args (text, ebb_args_peek_args (self, index), room - 1);
      break;
    case EBB_VALUE_OBJECT:
      object = ebb_args_get_object (self, index);
      g_string_append_printf (text, "<%s>", G_OBJECT_TYPE_NAME (object));
      break;
    }
}

static void
append_args (GString *text, EbbArgs *self, guint room)
{
  static const char *const opening[] = { "", "[", "(", "{" };
  static const char *const closing[] = { "", "]", ")", "}" };
  EbbArgsKind kind = ebb_args_get_kind (self);

  g_string_append (text, opening[kind]);
  for (guint i = 0; i < ebb_args_get_length (self); i++)
    {
      const char *key = ebb_args_get_key (self, i);

      if (i > 0)
        g_string_append (text, ", ");
      if (kind == EBB_ARGS_DICT)
        {
          append_string (text, key);
          g_string_append (text, ": ");
        }
      else if (key != NULL)
        g_string_append_printf (text, "%s=", key);
      append_value (text, self, i, room);
    }
  g_string_append (text, closing[kind]);
}

/**
 * ebb_args_to_string:
 * @self: a container
 *
 * Describes the container for people: tensors by dtype and shape, as in `(f32[2, 3], mask=none)`.
 *
 * Returns: (transfer full): the text
 */
char *
ebb_args_to_string (EbbArgs *self)
{
  GString *text;

  g_return_val_if_fail (self != NULL, NULL);

  text = g_string_new (NULL);
  append_args (text, self, EBB_ARGS_MAX_DEPTH - 1);
  return g_string_free (text, FALSE);
}
