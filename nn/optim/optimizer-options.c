/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/optimizer-private.h"

#include "tensor/error-private.h"

#include <math.h>
#include <string.h>

/* The properties of optimizers that are numbers: what each may be, and errors where GObject could only warn. */

static const EbbOptimizerOption base_options[] = {
  { "lr", INFINITY },
  { "lr-scale", INFINITY },
  { "weight-decay", INFINITY },
  { NULL, 0 }
};

static const EbbOptimizerOption *
find_option (const EbbOptimizerOption *options,
             const char *name)
{
  for (; options->name != NULL; options++)
    if (options->below > 0 && strcmp (options->name, name) == 0)
      return options;
  return NULL;
}

gboolean
ebb_optimizer_check_option (EbbOptimizer *self,
                            const char *name,
                            double value,
                            GError **error)
{
  const EbbOptimizerKind *kind = ebb_optimizer_get_kind (self);
  const EbbOptimizerOption *option = find_option (base_options, name);

  if (option == NULL && kind != NULL)
    option = find_option (kind->options, name);
  if (option == NULL)
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s has no number \"%s\" that can be set",
                 ebb_optimizer_get_type_name (self), name);
  else if (value >= 0 && value < option->below)
    return TRUE;
  else if (isfinite (option->below))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                 "%s: %s is %g: it must be a number of 0 or more and less than %g",
                 ebb_optimizer_get_type_name (self), name, value, option->below);
  else
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %g: it must be a number of 0 or more",
                 ebb_optimizer_get_type_name (self), name, value);
  return FALSE;
}

gboolean
ebb_optimizer_check_options (EbbOptimizer *self,
                             GError **error)
{
  const EbbOptimizerKind *kind = ebb_optimizer_get_kind (self);
  const EbbOptimizerOption *tables[2] = { base_options, kind != NULL ? kind->options : NULL };

  for (guint t = 0; t < G_N_ELEMENTS (tables); t++)
    for (const EbbOptimizerOption *option = tables[t]; option != NULL && option->name != NULL; option++)
      {
        double value;

        if (option->below == 0)
          continue;
        g_object_get (self, option->name, &value, NULL);
        if (!ebb_optimizer_check_option (self, option->name, value, error))
          return FALSE;
      }
  return TRUE;
}

GParamSpec *
ebb_optimizer_option_spec (const char *name,
                           double initial,
                           GParamFlags flags)
{
  return g_param_spec_double (name, NULL, NULL, -INFINITY, INFINITY, initial,
                              flags | G_PARAM_READWRITE | G_PARAM_LAX_VALIDATION | G_PARAM_STATIC_STRINGS);
}

void
ebb_optimizer_set_property (GObject *object,
                            guint id,
                            const GValue *value,
                            GParamSpec *spec)
{
  EbbOptimizer *self = EBB_OPTIMIZER (object);
  g_autoptr (GError) error = NULL;

  if (ebb_optimizer_get_private (self)->slots != NULL)
    ebb_optimizer_join_dry_run (self);
  if (!G_IS_PARAM_SPEC_DOUBLE (spec) || ebb_optimizer_get_private (self)->slots == NULL /* init will check it */
      || ebb_optimizer_check_option (self, spec->name, g_value_get_double (value), &error))
    ebb_property_set_field (object, id, value, spec);
  else
    g_critical ("%s", error->message);
}

/**
 * ebb_optimizer_set_option:
 * @self: an optimizer
 * @name: a property that is a number, as "lr", "weight-decay", "beta1" or "momentum"
 * @value: what it is to be
 * @error: return location for an error
 *
 * Sets a property as g_object_set() does, and fails where that could only warn.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there is no such number, or @value makes no sense for it; then
 *   nothing has changed
 */
gboolean
ebb_optimizer_set_option (EbbOptimizer *self,
                          const char *name,
                          double value,
                          GError **error)
{
  if (!EBB_MAY_BEGIN (error, self, name))
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  if (!ebb_optimizer_check_option (self, name, value, error))
    return FALSE;
  g_object_set (self, name, value, NULL);
  return TRUE;
}
