/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"

#include "tensor/error-private.h"

/* The tensors of a container and of those within it. */

static guint
count_tensors (EbbArgs *self, guint room)
{
  guint n = 0;

  for (guint i = 0; i < ebb_args_get_length (self); i++)
    {
      EbbArgs *inner = ebb_args_peek_args (self, i);

      if (inner == NULL)
        n += ebb_args_peek_tensor (self, i) != NULL;
      else if (room > 1)
        n += count_tensors (inner, room - 1);
    }
  return n;
}

/**
 * ebb_args_get_n_tensors:
 * @self: a container
 *
 * Returns: how many tensors it holds, in containers that are nested 500 deep at most
 */
guint
ebb_args_get_n_tensors (EbbArgs *self)
{
  g_return_val_if_fail (self != NULL, 0);

  return count_tensors (self, EBB_ARGS_MAX_DEPTH);
}

/* @room: how many containers may be in each other, this one counted. */
static gboolean
is_deeper (EbbArgs *self, guint room)
{
  if (room == 0)
    return TRUE;
  for (guint i = 0; i < ebb_args_get_length (self); i++)
    {
      EbbArgs *inner = ebb_args_peek_args (self, i);

      if (inner != NULL && is_deeper (inner, room - 1))
        return TRUE;
    }
  return FALSE;
}

gboolean
ebb_args_check_depth (EbbArgs *self, GError **error)
{
  return !is_deeper (self, EBB_ARGS_MAX_DEPTH)
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "containers of values are nested deeper than %d in each other",
                      EBB_ARGS_MAX_DEPTH);
}

static EbbTensor *
map_tensor (EbbTensor *tensor, EbbArgsMapFunc func, gpointer user_data, GError **error)
{
  EbbTensor *result = func (tensor, user_data, error);

  if (result == NULL && error != NULL && *error == NULL)
    ebb_error_set (error, EBB_ERROR_CALLBACK, "a function over tensors failed without saying why");
  return result;
}

static EbbArgs *
map_tensors (EbbArgs *self, EbbArgsMapFunc func, gpointer user_data, GError **error)
{
  g_autoptr (EbbArgs) result = ebb_args_new (ebb_args_get_kind (self));

  for (guint i = 0; i < ebb_args_get_length (self); i++)
    {
      const char *key = ebb_args_get_key (self, i);
      EbbTensor *tensor = ebb_args_peek_tensor (self, i);
      EbbArgs *inner = ebb_args_peek_args (self, i);

      if (tensor != NULL)
        {
          g_autoptr (EbbTensor) mapped = map_tensor (tensor, func, user_data, error);

          if (mapped == NULL)
            return NULL;
          ebb_args_add_tensor (result, key, mapped);
        }
      else if (inner != NULL)
        {
          g_autoptr (EbbArgs) mapped = map_tensors (inner, func, user_data, error);

          if (mapped == NULL)
            return NULL;
          ebb_args_add_args (result, key, mapped);
        }
      else
        ebb_args_add_value (result, key, self, i);
    }
  return g_steal_pointer (&result);
}

/**
 * ebb_args_map_tensors:
 * @self: a container
 * @func: (scope call): what to call for each tensor, in order, also in containers within it
 * @user_data: data for @func
 * @error: return location for an error
 *
 * Makes the same container with other tensors: of the same kinds, keys and nesting, all other values as they are.
 *
 * Returns: (transfer full) (nullable): the new container, or %NULL with @error set as soon as @func fails, or if
 *   containers are nested deeper than 500
 */
EbbArgs *
ebb_args_map_tensors (EbbArgs *self, EbbArgsMapFunc func, gpointer user_data, GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (func != NULL, NULL);

  return ebb_args_check_depth (self, error) ? map_tensors (self, func, user_data, error) : NULL;
}

/* Containers in words, for messages and people. */

static void append_args (GString *text,
                         EbbArgs *self,
                         guint room);

static void
append_string (GString *text, const char *string)
{
  g_autofree char *escaped = ebb_escape_text (string);

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
