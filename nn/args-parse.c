/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/args-private.h"

#include "tensor/error-private.h"

#include <string.h>

/* Takes the arguments of a call apart by a signature, and says what is wrong with them. */

static char *
describe_specs (const EbbParameterSpec *specs, guint n_specs)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < n_specs; i++)
    g_string_append_printf (text, "%s%s", i > 0 ? ", " : "", specs[i].name);
  return g_string_free (text, FALSE);
}

static const EbbParameterSpec *
find_spec (EbbArgs *self,
           guint index,
           const char *owner,
           const EbbParameterSpec *specs,
           guint n_specs,
           GError **error)
{
  const char *key = ebb_args_get_key (self, index);
  g_autofree char *known = NULL;

  if (key == NULL && index < n_specs)
    return &specs[index];
  for (guint i = 0; key != NULL && i < n_specs; i++)
    if (strcmp (specs[i].name, key) == 0)
      return &specs[i];

  known = describe_specs (specs, n_specs);
  if (key != NULL)
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: there is no argument \"%s\"; it takes %s", owner, key,
                   known);
  else
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %u positional arguments, but it takes %s", owner,
                   ebb_args_get_n_positional (self), known);
  return NULL;
}

static gboolean
is_tensor (const EbbParameterSpec *spec)
{
  return spec->kind == EBB_PARAMETER_TENSOR || spec->kind == EBB_PARAMETER_OPTIONAL_TENSOR;
}

static gboolean
take_value (EbbArgs *self, guint index, const char *owner, const EbbParameterSpec *spec, GError **error)
{
  static const char *const wanted[] = {
    [EBB_PARAMETER_TENSOR] = "a tensor",
    [EBB_PARAMETER_OPTIONAL_TENSOR] = "a tensor or none",
    [EBB_PARAMETER_FLAG] = "a truth value",
    [EBB_PARAMETER_DOUBLE] = "a number",
  };
  EbbValueKind kind = ebb_args_get_value_kind (self, index);
  GObject *object = ebb_args_peek_object (self, index);

  if (kind == EBB_VALUE_NONE && spec->kind != EBB_PARAMETER_TENSOR)
    return TRUE;
  if (is_tensor (spec) && kind == EBB_VALUE_TENSOR)
    *(EbbTensor **) spec->location = ebb_args_peek_tensor (self, index);
  else if (spec->kind == EBB_PARAMETER_OPTIONAL_OBJECT && object != NULL
           && g_type_is_a (G_OBJECT_TYPE (object), spec->type))
    *(GObject **) spec->location = object;
  else if (spec->kind == EBB_PARAMETER_FLAG && (kind == EBB_VALUE_BOOL || kind == EBB_VALUE_INT))
    *(gboolean *) spec->location = ebb_args_get_boolean (self, index);
  else if (spec->kind == EBB_PARAMETER_DOUBLE && (kind == EBB_VALUE_DOUBLE || kind == EBB_VALUE_INT))
    *(double *) spec->location = ebb_args_get_double (self, index);
  else
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s must be %s", owner, spec->name,
                     spec->kind == EBB_PARAMETER_OPTIONAL_OBJECT ? g_type_name (spec->type) : wanted[spec->kind]);
  return TRUE;
}

gboolean
ebb_args_parse (EbbArgs *self, const char *owner, const EbbParameterSpec *specs, guint n_specs, GError **error)
{
  guint64 given = 0;

  g_return_val_if_fail (n_specs <= 64, FALSE);

  for (guint i = 0; i < n_specs; i++)
    if (is_tensor (&specs[i]))
      *(EbbTensor **) specs[i].location = NULL;

  for (guint i = 0; i < ebb_args_get_length (self); i++)
    {
      const EbbParameterSpec *spec = find_spec (self, i, owner, specs, n_specs, error);
      guint64 bit;

      if (spec == NULL)
        return FALSE;
      bit = G_GUINT64_CONSTANT (1) << (spec - specs);
      if (given & bit)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is given twice", owner, spec->name);
      given |= bit;
      if (!take_value (self, i, owner, spec, error))
        return FALSE;
    }

  for (guint i = 0; i < n_specs; i++)
    if (specs[i].kind == EBB_PARAMETER_TENSOR && *(EbbTensor **) specs[i].location == NULL)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is missing", owner, specs[i].name);
  return TRUE;
}
