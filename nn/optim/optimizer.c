/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/optimizer-private.h"

#include "nn/args-private.h"
#include "nn/optim/clip-grad-private.h"
#include "tensor/autograd/leaf-hook-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/dry-run-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/in-place.h"

#include <gio/gio.h>
#include <math.h>
#include <string.h>

/* The base class of optimizers: which parameters it moves, with which learning rates. */

static void ebb_optimizer_initable_init (GInitableIface *iface);

G_DEFINE_ABSTRACT_TYPE_WITH_CODE (EbbOptimizer,
                                  ebb_optimizer,
                                  G_TYPE_OBJECT,
                                  G_ADD_PRIVATE (EbbOptimizer)
                                      G_IMPLEMENT_INTERFACE (G_TYPE_INITABLE, ebb_optimizer_initable_init))

G_DEFINE_ENUM_TYPE (EbbWeightRounding,
                    ebb_weight_rounding,
                    G_DEFINE_ENUM_VALUE (EBB_WEIGHT_ROUNDING_MASTER, "master"),
                    G_DEFINE_ENUM_VALUE (EBB_WEIGHT_ROUNDING_RANDOM, "random"),
                    G_DEFINE_ENUM_VALUE (EBB_WEIGHT_ROUNDING_NEAREST, "nearest"))

EbbOptimizerPrivate *
ebb_optimizer_get_private (EbbOptimizer *self)
{
  return ebb_optimizer_get_instance_private (self);
}

const EbbOptimizerKind *
ebb_optimizer_get_kind (EbbOptimizer *self)
{
  return EBB_OPTIMIZER_GET_CLASS (self)->kind;
}

void
ebb_optimizer_slot_clear_state (EbbOptimizerSlot *slot)
{
  g_clear_pointer (&slot->master, ebb_tensor_unref);
  for (guint i = 0; i < EBB_OPTIMIZER_MAX_STATES; i++)
    g_clear_pointer (&slot->states[i], ebb_tensor_unref);
  slot->n_steps = 0;
}

GHashTable *
ebb_optimizer_list_moved (EbbOptimizer *self)
{
  const EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  GHashTable *moved = g_hash_table_new (NULL, NULL);

  for (guint i = 0; i < priv->n_slots; i++)
    if (priv->slots[i].n_steps > 0)
      g_hash_table_add (moved, priv->slots[i].parameter);
  return moved;
}

/* -- dry runs ------------------------------------------------------------------------------------------------------ */

/* The state of an optimizer from before a dry run. */
typedef struct
{
  EbbOptimizer *optimizer;
  EbbOptimizerPrivate priv;
  EbbOptimizerSlot *slots;
  EbbOptimizerGroup *groups;
} Before;

/* Parameters and groups that the run has added stay, without a state. */
static void
restore (gpointer data)
{
  Before *self = data;
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self->optimizer);

  for (guint i = 0; i < priv->n_slots; i++)
    ebb_optimizer_slot_clear_state (&priv->slots[i]);
  memcpy (priv->slots, self->slots, self->priv.n_slots * sizeof *self->slots);
  memcpy (priv->groups, self->groups, self->priv.n_groups * sizeof *self->groups);
  ebb_optimizer_reset_scale (priv);
  priv->lr = self->priv.lr;
  priv->lr_scale = self->priv.lr_scale;
  priv->weight_decay = self->priv.weight_decay;
  priv->grad_scale = self->priv.grad_scale;
  priv->grad_factor = self->priv.grad_factor;
  priv->n_steps = self->priv.n_steps;
  priv->run = self->priv.run;
  g_free (self->slots);
  g_free (self->groups);
  g_object_unref (self->optimizer);
  g_free (self);
}

/* A dry run has a state of its own, from the first change on. */
void
ebb_optimizer_join_dry_run (EbbOptimizer *self)
{
  EbbDryRun *run = ebb_dry_run_get_current ();
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  Before *before;

  if (G_LIKELY (run == NULL) || run == priv->run || !ebb_dry_run_has_adopted (run))
    return;
  before = g_new0 (Before, 1);
  *before = (Before){ g_object_ref (self), *priv, g_memdup2 (priv->slots, priv->n_slots * sizeof (EbbOptimizerSlot)),
                      g_memdup2 (priv->groups, priv->n_groups * sizeof (EbbOptimizerGroup)) };
  if (priv->grad_factor != NULL)
    ebb_dry_run_replace_tensor (run, priv->grad_factor);
  priv->grad_scale = 1;
  priv->grad_factor = NULL;
  for (guint i = 0; i < priv->n_slots; i++)
    {
      EbbOptimizerSlot *slot = &priv->slots[i];

      if (slot->master != NULL)
        ebb_dry_run_replace_tensor (run, slot->master);
      for (guint k = 0; k < G_N_ELEMENTS (slot->states); k++)
        if (slot->states[k] != NULL)
          ebb_dry_run_replace_tensor (run, slot->states[k]);
      slot->master = NULL;
      memset (slot->states, 0, sizeof slot->states);
      slot->n_steps = 0;
      slot->moved = FALSE;
    }
  priv->run = run;
  ebb_dry_run_at_end (run, restore, before);
}

/* -- gradients ----------------------------------------------------------------------------------------------------- */

/**
 * ebb_optimizer_zero_grad:
 * @self: (nullable): an optimizer
 *
 * Drops the gradients of its parameters; the memory is free for the next forward pass. What ebb_optimizer_scale_grad()
 * noted is forgotten.
 */
void
ebb_optimizer_zero_grad (EbbOptimizer *self)
{
  EbbOptimizerPrivate *priv;

  if (self == NULL)
    return;
  g_return_if_fail (EBB_IS_OPTIMIZER (self));

  priv = ebb_optimizer_get_private (self);
  ebb_optimizer_join_dry_run (self);
  for (guint i = 0; i < priv->n_slots; i++)
    ebb_tensor_zero_grad (priv->slots[i].parameter);
  ebb_optimizer_reset_scale (priv);
}

/**
 * ebb_optimizer_zero_grad_in_place:
 * @self: an optimizer
 * @error: return location for an error
 *
 * Fills the gradients of its parameters with zeros and keeps their memory. Parameters without a gradient stay without.
 *
 * Returns: %FALSE with an error of the device
 */
gboolean
ebb_optimizer_zero_grad_in_place (EbbOptimizer *self,
                                  GError **error)
{
  EbbOptimizerPrivate *priv;
  gboolean ok = TRUE;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  ebb_optimizer_join_dry_run (self);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < priv->n_slots; i++)
    ebb_parameter_drop_grads (priv->slots[i].parameter);
  for (guint i = 0; ok && i < priv->n_slots; i++)
    if (priv->slots[i].parameter->grad != NULL)
      ok = ebb_tensor_fill (priv->slots[i].parameter->grad, 0, error);
  ebb_pop_grad_enabled ();
  ebb_optimizer_reset_scale (priv);
  return ok;
}

/**
 * ebb_optimizer_scale_grad:
 * @self: an optimizer
 * @factor: a finite factor
 *
 * Makes the next step take the gradients times @factor, without a pass over them. Factors of several calls multiply;
 * after the step, or when gradients are dropped, the factor is 1 again.
 */
void
ebb_optimizer_scale_grad (EbbOptimizer *self,
                          double factor)
{
  g_return_if_fail (EBB_IS_OPTIMIZER (self));
  g_return_if_fail (isfinite (factor));

  ebb_optimizer_join_dry_run (self);
  ebb_optimizer_get_private (self)->grad_scale *= factor;
}

/**
 * ebb_optimizer_clip_grad_norm:
 * @self: an optimizer
 * @max_norm: the largest norm, more than 0
 * @error: return location for an error
 *
 * Makes the next step take the gradients as if their global norm were at most @max_norm (Pascanu et al., "On the
 * difficulty of training recurrent neural networks", 2013): the optimizer's factor is noted, the gradients themselves
 * are left alone. Of parameters that are split over ranks it is the norm of the whole gradients, so all ranks call this
 * together, and all have the same norm. A norm that is not finite notes nothing. See ebb_clip_grad_norm() to change
 * gradients in place.
 *
 * The norm is a tensor of one element, and the factor stays on the device with it, so that nobody waits for them.
 *
 * Returns: (transfer full) (nullable): the norm before clipping, f32 []; not finite if a gradient is not. %NULL with
 *   %EBB_ERROR_INVALID_ARGUMENT if @max_norm makes no sense, %EBB_ERROR_NOT_SUPPORTED with
 *   #EbbOptimizer:step-in-backward
 */
EbbTensor *
ebb_optimizer_clip_grad_norm (EbbOptimizer *self,
                              double max_norm,
                              GError **error)
{
  return ebb_optimizer_clip_grad_p_norm (self, max_norm, 2, error);
}

/**
 * ebb_optimizer_clip_grad_p_norm:
 * @self: an optimizer
 * @max_norm: the largest norm, more than 0
 * @p: which norm, more than 0; infinity: the largest absolute value
 * @error: return location for an error
 *
 * As ebb_optimizer_clip_grad_norm(), by another norm than that with p = 2; see ebb_clip_grad_p_norm().
 *
 * Returns: (transfer full) (nullable): the norm before clipping; %NULL with %EBB_ERROR_INVALID_ARGUMENT if @max_norm or
 *   @p makes no sense, %EBB_ERROR_NOT_SUPPORTED with #EbbOptimizer:step-in-backward
 */
EbbTensor *
ebb_optimizer_clip_grad_p_norm (EbbOptimizer *self,
                                double max_norm,
                                double p,
                                GError **error)
{
  EbbOptimizerPrivate *priv;
  g_autofree EbbTensor **parameters = NULL;
  EbbGradScale scale;
  EbbTensor *factor = NULL, *norm;

  EBB_RETURN_UNLESS_BEGUN (NULL, error, self);
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), NULL);

  priv = ebb_optimizer_get_private (self);
  if (priv->step_in_backward)
    return ebb_fail_null (
        error, EBB_ERROR_NOT_SUPPORTED,
        "gradients can't be clipped by their norm while step-in-backward is on: they are never all there");
  parameters = g_new (EbbTensor *, priv->n_slots + 1);
  for (guint i = 0; i < priv->n_slots; i++)
    parameters[i] = priv->slots[i].parameter;
  if (!ebb_check_clip (max_norm, p, error))
    return NULL;
  ebb_optimizer_join_dry_run (self);
  scale = (EbbGradScale){ priv->grad_scale, priv->grad_factor };
  norm = ebb_compute_grad_norm (parameters, priv->n_slots, p, max_norm, &scale, &factor, error);
  if (norm == NULL)
    return NULL;
  ebb_optimizer_reset_scale (priv);
  priv->grad_factor = factor;
  return norm;
}

/* -- looking ------------------------------------------------------------------------------------------------------- */

/**
 * ebb_optimizer_get_n_steps:
 * @self: an optimizer
 *
 * Returns: how many steps it has taken
 */
gint64
ebb_optimizer_get_n_steps (EbbOptimizer *self)
{
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), 0);

  return ebb_optimizer_get_private (self)->n_steps;
}

/**
 * ebb_optimizer_get_parameters:
 * @self: an optimizer
 * @n_parameters: (out): return location for how many there are
 *
 * The parameters of the module or the lists that the optimizer was given, each once.
 *
 * Returns: (array length=n_parameters) (transfer full): the parameters
 */
EbbTensor **
ebb_optimizer_get_parameters (EbbOptimizer *self,
                              guint *n_parameters)
{
  EbbOptimizerPrivate *priv;
  EbbTensor **parameters;

  *n_parameters = 0;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), NULL);

  priv = ebb_optimizer_get_private (self);
  parameters = g_new (EbbTensor *, priv->n_slots + 1);
  for (guint i = 0; i < priv->n_slots; i++)
    parameters[i] = ebb_tensor_ref (priv->slots[i].parameter);
  parameters[priv->n_slots] = NULL;
  *n_parameters = priv->n_slots;
  return parameters;
}

/* -- groups: which parameter has which learning rate and weight decay ---------------------------------------------- */

static guint
append_group (EbbOptimizerPrivate *priv,
              double lr,
              double weight_decay)
{
  priv->groups = g_renew (EbbOptimizerGroup, priv->groups, priv->n_groups + 1);
  priv->groups[priv->n_groups] = (EbbOptimizerGroup){ lr, weight_decay };
  return priv->n_groups++;
}

static gboolean
check_group (double lr,
             double weight_decay,
             GError **error)
{
  return (isfinite (lr) && isfinite (weight_decay))
         || ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                      "a group with learning rate %g and weight decay %g: both must be finite", lr, weight_decay);
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
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "a parameter group needs at least one pattern of names");
  for (guint p = 0; patterns[p] != NULL; p++)
    {
      gboolean found = FALSE;

      for (guint i = 0; !found && i < priv->n_slots; i++)
        found = matches (&priv->slots[i], patterns[p]);
      if (!found)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                         "no parameter's name matches \"%s\"; the first of %u is %s%s", patterns[p], priv->n_slots,
                         priv->slots[0].name, ebb_optimizer_explain_numbers (priv, patterns[p]));
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
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, patterns);
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  if (!check_group (lr, weight_decay, error) || !check_patterns (priv, patterns, error))
    return FALSE;
  ebb_optimizer_join_dry_run (self);
  number = append_group (priv, lr, weight_decay);
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

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self);
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
              number = append_group (priv, priv->groups[group].lr, 0);
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

/* -- steps in backward --------------------------------------------------------------------------------------------- */

static gboolean
check_step_in_backward (EbbOptimizer *self,
                        GError **error)
{
  return ebb_optimizer_get_kind (self) != NULL
         || ebb_fail (
             error, EBB_ERROR_NOT_SUPPORTED,
             "%s: step-in-backward is for optimizers that move each parameter by itself, as AdamW and SGD do: leave "
             "it off",
             ebb_optimizer_get_type_name (self));
}

/* Makes backward passes move the parameters, or no longer. */
static void
set_hooks (EbbOptimizer *self,
           gboolean wanted)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);

  g_clear_pointer (&priv->by_parameter, g_hash_table_unref);
  if (wanted)
    priv->by_parameter = g_hash_table_new (NULL, NULL);
  for (guint i = 0; i < priv->n_slots; i++)
    if (wanted)
      {
        g_hash_table_insert (priv->by_parameter, priv->slots[i].parameter, GUINT_TO_POINTER (i));
        ebb_leaf_set_hook (priv->slots[i].parameter, ebb_optimizer_get_kind (self)->move, self);
      }
    else
      ebb_leaf_clear_hook (priv->slots[i].parameter, self);
}

/* -- parameters ---------------------------------------------------------------------------------------------------- */

/* 64-bit FNV-1a: the same on every machine, as the draws are. */
static guint64
hash_name (const char *name)
{
  guint64 hash = G_GUINT64_CONSTANT (0xcbf29ce484222325);

  for (; *name != '\0'; name++)
    hash = (hash ^ (guint8) *name) * G_GUINT64_CONSTANT (0x100000001b3);
  return hash;
}

/* Takes @name and a reference to @parameter. */
static void
append_slot (EbbOptimizerPrivate *priv,
             char *name,
             EbbTensor *parameter,
             guint group)
{
  priv->slots = g_renew (EbbOptimizerSlot, priv->slots, priv->n_slots + 1);
  priv->slots[priv->n_slots++] = (EbbOptimizerSlot){
    .name = name,
    .parameter = ebb_tensor_ref (parameter),
    .group = group,
    .philox_seed = hash_name (name)
  };
}

static void
collect_from_module (EbbOptimizerPrivate *priv)
{
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);
  g_auto (GStrv) names = ebb_module_get_parameter_names (priv->module, TRUE);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (priv->module, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      if (g_hash_table_add (seen, parameters[i]))
        append_slot (priv, g_strdup (names[i]), parameters[i], 0);
      ebb_tensor_unref (parameters[i]);
    }
}

/* Tensors of a list have no names: their numbers stand for them, as in PyTorch's states. All are looked at before one
 * is taken. */
static gboolean
collect_from_list (EbbOptimizer *self,
                   EbbTensor **parameters,
                   guint n_parameters,
                   guint group,
                   GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);

  for (guint i = 0; i < priv->n_slots; i++)
    g_hash_table_add (seen, priv->slots[i].parameter);
  for (guint i = 0; i < n_parameters; i++)
    {
      const char *reason = NULL;

      if (parameters[i] == NULL)
        reason = "is NULL";
      else if (parameters[i]->node != NULL)
        reason = "was computed: only leaves can be moved";
      else if (!ebb_dtype_is_floating_point (parameters[i]->view.dtype))
        reason = "holds no floating-point numbers";
      else if (g_hash_table_contains (seen, parameters[i]))
        reason = "is in a group of this optimizer already";
      if (reason != NULL)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: parameter %u of %u %s",
                         ebb_optimizer_get_type_name (self), i, n_parameters, reason);
    }
  if (n_parameters == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: the list of parameters is empty",
                     ebb_optimizer_get_type_name (self));
  for (guint i = 0; i < n_parameters; i++) /* one that stands there twice, as tied weights do, is moved once */
    if (g_hash_table_add (seen, parameters[i]))
      append_slot (priv, g_strdup_printf ("%u", priv->n_slots), parameters[i], group);
  return TRUE;
}

static gboolean
collect_from_args (EbbOptimizer *self,
                   EbbArgs *args,
                   GError **error)
{
  const guint n = ebb_args_get_length (args);
  g_autofree EbbTensor **parameters = g_new0 (EbbTensor *, n + 1);

  for (guint i = 0; i < n; i++)
    if ((parameters[i] = ebb_args_peek_tensor (args, i)) == NULL)
      return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: item %u of the list of parameters is no tensor",
                       ebb_optimizer_get_type_name (self), i);
  return collect_from_list (self, parameters, n, 0, error);
}

/**
 * ebb_optimizer_add_parameters:
 * @self: an optimizer
 * @parameters: (array length=n_parameters): leaf tensors of floating-point numbers that it does not move yet
 * @n_parameters: how many there are, at least 1
 * @lr: their learning rate; negative: the optimizer's
 * @weight_decay: their weight decay; negative: the optimizer's
 * @group: (out) (optional): return location for the number of the new group
 * @error: return location for an error
 *
 * Has the optimizer move more tensors, which become a group. In a state their numbers, counted from the first parameter
 * of all groups, stand for their names. One that is listed twice is moved once.
 *
 * Returns: %FALSE with %EBB_ERROR_INVALID_ARGUMENT if there are none, if one of them was computed, holds integers or is
 *   in a group already, or if a number is not finite
 */
gboolean
ebb_optimizer_add_parameters (EbbOptimizer *self,
                              EbbTensor **parameters,
                              guint n_parameters,
                              double lr,
                              double weight_decay,
                              guint *group,
                              GError **error)
{
  EbbOptimizerPrivate *priv;

  if (group != NULL)
    *group = 0;
  if (!EBB_MAY_BEGIN (error, self) || (n_parameters > 0 && !EBB_MAY_BEGIN (error, parameters)))
    return FALSE;
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  priv = ebb_optimizer_get_private (self);
  if (!check_group (lr, weight_decay, error)
      || !collect_from_list (self, parameters, n_parameters, priv->n_groups, error))
    return FALSE;
  if (priv->step_in_backward)
    set_hooks (self, TRUE);
  if (group != NULL)
    *group = priv->n_groups;
  append_group (priv, lr, weight_decay);
  return TRUE;
}

/* -- options: what each number may be, and errors where GObject could only warn ------------------------------------ */

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
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s has no number \"%s\" that can be set",
                   ebb_optimizer_get_type_name (self), name);
  else if (value >= 0 && value < option->below)
    return TRUE;
  else if (isfinite (option->below))
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %g: it must be a number of 0 or more and less than %g",
                   ebb_optimizer_get_type_name (self), name, value, option->below);
  else
    ebb_error_set (error, EBB_ERROR_INVALID_ARGUMENT, "%s: %s is %g: it must be a number of 0 or more",
                   ebb_optimizer_get_type_name (self), name, value);
  return FALSE;
}

static gboolean
check_options (EbbOptimizer *self,
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
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, name);
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  if (!ebb_optimizer_check_option (self, name, value, error))
    return FALSE;
  g_object_set (self, name, value, NULL);
  return TRUE;
}

/* -- the object ---------------------------------------------------------------------------------------------------- */

static gboolean
ebb_optimizer_initable_init_instance (GInitable *initable,
                                      GCancellable *cancellable,
                                      GError **error)
{
  EbbOptimizer *self = EBB_OPTIMIZER (initable);
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);

  if (priv->slots != NULL)
    return TRUE;
  if (!check_options (self, error))
    return FALSE;
  if ((priv->module == NULL) == (priv->parameters == NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "%s: it needs a module, or a list of parameters, that it can move",
                     ebb_optimizer_get_type_name (self));
  if (priv->parameters != NULL && !collect_from_args (self, priv->parameters, error))
    return FALSE;
  if (priv->module != NULL)
    collect_from_module (priv);
  g_clear_object (&priv->module);
  g_clear_pointer (&priv->parameters, ebb_args_unref);
  if (priv->n_slots == 0)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "%s: the module has no parameters",
                     ebb_optimizer_get_type_name (self));
  if (!priv->step_in_backward)
    return TRUE;
  if (!check_step_in_backward (self, error))
    return FALSE;
  set_hooks (self, TRUE);
  return TRUE;
}

static void
ebb_optimizer_initable_init (GInitableIface *iface)
{
  iface->init = ebb_optimizer_initable_init_instance;
}

EbbOptimizer *
ebb_optimizer_make (GType type,
                    EbbModule *module,
                    double lr,
                    GError **error)
{
  if (!ebb_may_begin (error, ebb_type_get_short_name (type), "module", (const gconstpointer[]){ module }, 1))
    return NULL;
  g_return_val_if_fail (EBB_IS_MODULE (module), NULL);

  return g_initable_new (type, NULL, error, "module", module, "lr", lr, NULL);
}

EbbOptimizer *
ebb_optimizer_make_for_parameters (GType type,
                                   EbbTensor **parameters,
                                   guint n_parameters,
                                   double lr,
                                   GError **error)
{
  g_autoptr (EbbArgs) args = NULL;

  if ((error != NULL && *error != NULL)
      || (n_parameters > 0
          && !ebb_may_begin (error, ebb_type_get_short_name (type), "parameters", (const gconstpointer[]){ parameters },
                             1)))
    return NULL;
  args = ebb_args_new (EBB_ARGS_LIST);
  for (guint i = 0; i < n_parameters; i++)
    if (parameters[i] != NULL)
      ebb_args_add_tensor (args, NULL, parameters[i]);
    else
      ebb_args_add_none (args, NULL);
  return g_initable_new (type, NULL, error, "parameters", args, "lr", lr, NULL);
}

static void
set_property (GObject *object,
              guint id,
              const GValue *value,
              GParamSpec *pspec)
{
  EbbOptimizer *self = EBB_OPTIMIZER (object);
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  const gboolean stepped = priv->step_in_backward;
  const gboolean is_made = priv->slots != NULL; /* at construction: see init */
  g_autoptr (GError) error = NULL;

  if (is_made && id == (guint) G_PRIVATE_OFFSET (EbbOptimizer, step_in_backward) && g_value_get_boolean (value)
      && !check_step_in_backward (self, &error))
    {
      g_critical ("%s", error->message);
      return;
    }
  ebb_optimizer_set_property (object, id, value, pspec);
  if (is_made && priv->step_in_backward != stepped)
    set_hooks (self, priv->step_in_backward);
}

static void
ebb_optimizer_finalize (GObject *object)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (EBB_OPTIMIZER (object));

  if (priv->by_parameter != NULL)
    set_hooks (EBB_OPTIMIZER (object), FALSE);
  for (guint i = 0; i < priv->n_slots; i++)
    {
      ebb_optimizer_slot_clear_state (&priv->slots[i]);
      ebb_tensor_unref (priv->slots[i].parameter);
      g_free (priv->slots[i].name);
    }
  ebb_optimizer_reset_scale (priv);
  g_free (priv->slots);
  g_free (priv->groups);
  g_clear_object (&priv->module);
  g_clear_pointer (&priv->parameters, ebb_args_unref);
  G_OBJECT_CLASS (ebb_optimizer_parent_class)->finalize (object);
}

static void
ebb_optimizer_class_init (EbbOptimizerClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = set_property;
  object_class->finalize = ebb_optimizer_finalize;

  /**
   * EbbOptimizer:module:
   *
   * The module whose parameters are moved. The optimizer keeps the parameters, not the module.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, module),
                                   g_param_spec_object ("module", NULL, NULL, EBB_TYPE_MODULE,
                                                        G_PARAM_WRITABLE | G_PARAM_CONSTRUCT_ONLY
                                                            | G_PARAM_STATIC_STRINGS));
  /**
   * EbbOptimizer:parameters:
   *
   * A list of the tensors that are moved, in place of a module.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, parameters),
                                   g_param_spec_boxed ("parameters", NULL, NULL, EBB_TYPE_ARGS,
                                                       G_PARAM_WRITABLE | G_PARAM_CONSTRUCT_ONLY
                                                           | G_PARAM_STATIC_STRINGS));
  /**
   * EbbOptimizer:lr:
   *
   * The learning rate of all groups that have none of their own.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, lr),
                                   ebb_optimizer_option_spec ("lr", 1e-3, 0));
  /**
   * EbbOptimizer:lr-scale:
   *
   * A factor of the learning rates of all groups, which schedules set before each step.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, lr_scale),
                                   ebb_optimizer_option_spec ("lr-scale", 1, 0));
  /**
   * EbbOptimizer:weight-decay:
   *
   * The weight decay of all groups that have none of their own.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, weight_decay),
                                   ebb_optimizer_option_spec ("weight-decay", 0, 0));
  /**
   * EbbOptimizer:step-in-backward:
   *
   * Whether a backward pass moves each parameter as soon as its gradient is complete, and drops the gradient, so that
   * the gradients of all parameters are never there at once (Lv et al., "Full parameter fine-tuning for large language
   * models with limited resources", 2023). The weights are the same bit for bit as with a step of all parameters
   * afterwards.
   *
   * ebb_optimizer_step() is called after each backward pass as ever: it ends the step, and moves the parameters that
   * still have a gradient. Learning rates and ebb_optimizer_scale_grad() take effect if they are set before the
   * backward pass.
   *
   * Functions that need all gradients at once don't work with it: ebb_optimizer_clip_grad_norm() fails with
   * %EBB_ERROR_NOT_SUPPORTED, and a second backward pass before ebb_optimizer_step() with %EBB_ERROR_STATE. A pass that
   * fails half-way has moved some of the parameters. Passes with retain_graph or with chosen inputs, and those inside
   * another one, leave gradients as they do without it. A parameter listens to one such optimizer, the last one set.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, step_in_backward),
                                   g_param_spec_boolean ("step-in-backward", NULL, NULL, FALSE,
                                                         G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
  /**
   * EbbOptimizer:weight-rounding:
   *
   * How parameters in bf16 move; those in f32 are not concerned. With %EBB_WEIGHT_ROUNDING_RANDOM and
   * %EBB_WEIGHT_ROUNDING_NEAREST there is no master copy: a parameter takes 2 bytes and nothing besides. Each step is
   * computed in f32 and rounded once. What is drawn depends on the parameter's name, the number of its step and the
   * place of the element in the full parameter alone: not on threads, on the other parameters or on when in the step it
   * moves, nor on the ranks that ebb_fully_shard() shards it over, if moments are f32 or bf16: blocks of 8-bit moments
   * begin where a shard does. The parts that tensor ranks have of a parameter count their elements one part after the
   * other. f16 parameters need a master copy.
   *
   * It may be set at any time: the next step makes master copies of the parameters as they are, or drops them.
   */
  g_object_class_install_property (object_class, G_PRIVATE_OFFSET (EbbOptimizer, weight_rounding),
                                   g_param_spec_enum ("weight-rounding", NULL, NULL, EBB_TYPE_WEIGHT_ROUNDING,
                                                      EBB_WEIGHT_ROUNDING_MASTER,
                                                      G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS));
}

static void
ebb_optimizer_init (EbbOptimizer *self)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);

  priv->lr = 1e-3;
  priv->lr_scale = 1;
  priv->grad_scale = 1;
  priv->groups = g_new (EbbOptimizerGroup, 1);
  priv->groups[0] = (EbbOptimizerGroup){ -1, -1 };
  priv->n_groups = 1;
}
