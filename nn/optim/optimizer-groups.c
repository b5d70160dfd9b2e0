/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/optimizer-private.h"

#include "tensor/error-private.h"

#include <math.h>

/* Parameter groups: which parameter has which learning rate and weight decay. */

guint
ebb_optimizer_append_group (EbbOptimizerPrivate *priv,
                            double lr,
                            double weight_decay)
{
  priv->groups = g_renew (EbbOptimizerGroup, priv->groups, priv->n_groups + 1);
  priv->groups[priv->n_groups] = (EbbOptimizerGroup){ lr, weight_decay };
  return priv->n_groups++;
}

gboolean
ebb_optimizer_check_group (double lr,
                           double weight_decay,
                           GError **error)
{
  if (isfinite (lr) && isfinite (weight_decay))
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "a group with learning rate %g and weight decay %g: both must be finite", lr, weight_decay);
  return FALSE;
}

static gboolean
matches (const EbbOptimizerSlot *slot,
         const char *pattern)
{
  return g_pattern_match_simple (pattern, slot->name);
}

const char *
ebb_optimizer_get_type_name (EbbOptimizer *self)
{
  return ebb_type_get_short_name (G_OBJECT_TYPE (self));
}

static gboolean
is_number (const char *name)
{
  return *name != '\0' && name[strspn (name, "0123456789")] == '\0';
}

/* Parameters of a list have numbers for names, which are not those of a module. */
const char *
ebb_optimizer_explain_numbers (EbbOptimizerPrivate *priv,
                               const char *name)
{
  if (is_number (name) == is_number (priv->slots[0].name))
    return "";
  return is_number (name) ? "; numbers are the names where an optimizer is made with a list of parameters"
                          : "; parameters of a list have numbers for names: make the optimizer with the module";
}

static gboolean
check_patterns (EbbOptimizerPrivate *priv,
                const char *const *patterns,
                GError **error)
{
  if (patterns[0] == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a parameter group needs at least one pattern of names");
      return FALSE;
    }
  for (guint p = 0; patterns[p] != NULL; p++)
    {
      gboolean found = FALSE;

      for (guint i = 0; !found && i < priv->n_slots; i++)
        found = matches (&priv->slots[i], patterns[p]);
      if (!found)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                       "no parameter's name matches \"%s\"; the first of %u is %s%s", patterns[p], priv->n_slots,
                       priv->slots[0].name, ebb_optimizer_explain_numbers (priv, patterns[p]));
          return FALSE;
        }
    }
  return TRUE;
}

/**
 * ebb_optimizer_add_group:
 * @self: an optimizer
 * @patterns: (array zero-terminated=1): names of parameters, where `*` stands for any text and `?` for any character
 * @lr: the group's learning rate; negative: the optimizer's
 * @weight_decay: the group's weight decay; negative: the optimizer's
 * @group: (out) (optional): return location for the number of the new group
 * @error: return location for an error
 *
 * Makes a group of all parameters whose names match one of @patterns; they leave the groups where they were.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if a pattern matches nothing or a number is not finite
 */
gboolean
ebb_optimizer_add_group (EbbOptimizer *self,
                         const char *const *patterns,
                         double lr,
                         double weight_decay,
                         guint *group,
                         GError **error)
{
  EbbOptimizerPrivate *priv;
  guint number;

  if (group != NULL)
    *group = 0;
  if (!EBB_MAY_BEGIN (error, self, patterns))
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  if (!ebb_optimizer_check_group (lr, weight_decay, error) || !check_patterns (priv, patterns, error))
    return FALSE;
  ebb_optimizer_join_dry_run (self);
  number = ebb_optimizer_append_group (priv, lr, weight_decay);
  for (guint i = 0; i < priv->n_slots; i++)
    for (guint p = 0; patterns[p] != NULL; p++)
      if (matches (&priv->slots[i], patterns[p]))
        priv->slots[i].group = number;
  if (group != NULL)
    *group = number;
  return TRUE;
}

/**
 * ebb_optimizer_exclude_from_decay:
 * @self: an optimizer
 * @error: return location for an error
 *
 * Frees biases and the weights of normalisations from weight decay: for each group that has such parameters (those with
 * fewer than two dimensions), they go to a new group with the same learning rate and no decay.
 *
 * Returns: %FALSE if @error was set already
 */
gboolean
ebb_optimizer_exclude_from_decay (EbbOptimizer *self,
                                  GError **error)
{
  EbbOptimizerPrivate *priv;
  guint n_groups;

  if (!EBB_MAY_BEGIN (error, self))
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  n_groups = priv->n_groups;
  for (guint group = 0; group < n_groups; group++)
    {
      guint number = G_MAXUINT;

      if (priv->groups[group].weight_decay == 0)
        continue;
      for (guint i = 0; i < priv->n_slots; i++)
        if (priv->slots[i].group == group && ebb_tensor_get_n_dims (priv->slots[i].parameter) < 2)
          {
            if (number == G_MAXUINT)
              number = ebb_optimizer_append_group (priv, priv->groups[group].lr, 0);
            priv->slots[i].group = number;
          }
    }
  return TRUE;
}

/**
 * ebb_optimizer_get_n_groups:
 * @self: an optimizer
 *
 * Returns: how many groups there are, at least 1
 */
guint
ebb_optimizer_get_n_groups (EbbOptimizer *self)
{
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);

  return ebb_optimizer_get_private (self)->n_groups;
}

/**
 * ebb_optimizer_get_group_lr:
 * @self: an optimizer
 * @group: the number of a group
 *
 * Returns: the learning rate of the group, its own or the optimizer's, without #EbbOptimizer:lr-scale
 */
double
ebb_optimizer_get_group_lr (EbbOptimizer *self,
                            guint group)
{
  EbbOptimizerPrivate *priv;

  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);
  priv = ebb_optimizer_get_private (self);
  g_return_val_if_fail (group < priv->n_groups, 0);

  return priv->groups[group].lr < 0 ? priv->lr : priv->groups[group].lr;
}

/**
 * ebb_optimizer_set_group_lr:
 * @self: an optimizer
 * @group: the number of a group
 * @lr: the learning rate; negative: the optimizer's
 *
 * Sets the learning rate of one group.
 */
void
ebb_optimizer_set_group_lr (EbbOptimizer *self,
                            guint group,
                            double lr)
{
  EbbOptimizerPrivate *priv;

  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  priv = ebb_optimizer_get_private (self);
  g_return_if_fail (group < priv->n_groups && isfinite (lr));

  ebb_optimizer_join_dry_run (self);
  priv->groups[group].lr = lr;
}

/**
 * ebb_optimizer_get_group_weight_decay:
 * @self: an optimizer
 * @group: the number of a group
 *
 * Returns: the weight decay of the group, its own or the optimizer's
 */
double
ebb_optimizer_get_group_weight_decay (EbbOptimizer *self,
                                      guint group)
{
  EbbOptimizerPrivate *priv;

  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);
  priv = ebb_optimizer_get_private (self);
  g_return_val_if_fail (group < priv->n_groups, 0);

  return priv->groups[group].weight_decay < 0 ? priv->weight_decay : priv->groups[group].weight_decay;
}

/**
 * ebb_optimizer_set_group_weight_decay:
 * @self: an optimizer
 * @group: the number of a group
 * @weight_decay: the weight decay; negative: the optimizer's
 *
 * Sets the weight decay of one group.
 */
void
ebb_optimizer_set_group_weight_decay (EbbOptimizer *self,
                                      guint group,
                                      double weight_decay)
{
  EbbOptimizerPrivate *priv;

  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  priv = ebb_optimizer_get_private (self);
  g_return_if_fail (group < priv->n_groups && isfinite (weight_decay));

  ebb_optimizer_join_dry_run (self);
  priv->groups[group].weight_decay = weight_decay;
}

/**
 * ebb_optimizer_get_group_names:
 * @self: an optimizer
 * @group: the number of a group
 *
 * Returns: (transfer full): the names of the group's parameters
 */
char **
ebb_optimizer_get_group_names (EbbOptimizer *self,
                               guint group)
{
  EbbOptimizerPrivate *priv;
  char **names;
  guint n = 0;

  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), NULL);
  priv = ebb_optimizer_get_private (self);
  g_return_val_if_fail (group < priv->n_groups, NULL);

  names = g_new0 (char *, priv->n_slots + 1);
  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].group == group)
      names[n++] = g_strdup (priv->slots[i].name);
  return names;
}

/**
 * ebb_optimizer_get_group_parameters:
 * @self: an optimizer
 * @group: the number of a group
 * @n_parameters: (out): return location for how many there are
 *
 * Returns: (array length=n_parameters) (transfer full): the group's parameters
 */
EbbTensor **
ebb_optimizer_get_group_parameters (EbbOptimizer *self,
                                    guint group,
                                    guint *n_parameters)
{
  EbbOptimizerPrivate *priv;
  EbbTensor **parameters;

  *n_parameters = 0;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), NULL);
  priv = ebb_optimizer_get_private (self);
  g_return_val_if_fail (group < priv->n_groups, NULL);

  parameters = g_new0 (EbbTensor *, priv->n_slots + 1);
  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].group == group)
      parameters[(*n_parameters)++] = ebb_tensor_ref (priv->slots[i].parameter);
  return parameters;
}
