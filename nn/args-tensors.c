/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"

#include "tensor/error-private.h"
#include "tensor/error.h"

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
  if (!is_deeper (self, EBB_ARGS_MAX_DEPTH))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "containers of values are nested deeper than %d in each other", EBB_ARGS_MAX_DEPTH);
  return FALSE;
}

static EbbTensor *
map_tensor (EbbTensor *tensor, EbbArgsMapFunc func, gpointer user_data, GError **error)
{
  EbbTensor *result = func (tensor, user_data, error);

  if (result == NULL && error != NULL && *error == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "a function over tensors failed without saying why");
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
  if (!EBB_MAY_BEGIN (error, self))
    return NULL;
  g_return_val_if_fail (func != NULL, NULL);

  return ebb_args_check_depth (self, error) ? map_tensors (self, func, user_data, error) : NULL;
}
