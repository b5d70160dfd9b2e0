/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "nn/optim/optimizer-private.h"

#include "nn/files/state-tree-private.h"
#include "tensor/error-private.h"
#include "tensor/ops/pointwise.h"

#include <math.h>
#include <string.h>

/* An optimizer's state as a dictionary:
 *   { kind, n_steps, lr, lr_scale, weight_decay, options: { property: value },
 *     groups: [ { lr, weight_decay, parameters: [ name ] } ],
 *     state: { name: { n_steps, master, exp_avg, ... } } }
 * In which format a kind keeps its tensors is not among the options: the tensors say it, and each optimizer has its own
 * to which they are converted. */

/* -- writing ------------------------------------------------------------------------------------------------------- */

static EbbArgs *
get_options (EbbOptimizer *self,
             const EbbOptimizerKind *kind)
{
  EbbArgs *options = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; kind != NULL && kind->options[i].name != NULL; i++)
    {
      g_auto (GValue) value = G_VALUE_INIT;

      g_object_get_property (G_OBJECT (self), kind->options[i].name, &value);
      if (G_VALUE_HOLDS_BOOLEAN (&value))
        ebb_args_add_boolean (options, kind->options[i].name, g_value_get_boolean (&value));
      else
        ebb_args_add_double (options, kind->options[i].name, g_value_get_double (&value));
    }
  return options;
}

static EbbArgs *
get_groups (EbbOptimizerPrivate *priv)
{
  EbbArgs *groups = ebb_args_new (EBB_ARGS_LIST);

  for (guint g = 0; g < priv->n_groups; g++)
    {
      g_autoptr (EbbArgs) group = ebb_args_new (EBB_ARGS_DICT);
      g_autoptr (EbbArgs) names = ebb_args_new (EBB_ARGS_LIST);

      for (guint i = 0; i < priv->n_slots; i++)
        if (priv->slots[i].group == g)
          ebb_args_add_string (names, NULL, priv->slots[i].name);
      ebb_args_add_double (group, "lr", priv->groups[g].lr);
      ebb_args_add_double (group, "weight_decay", priv->groups[g].weight_decay);
      ebb_args_add_args (group, "parameters", names);
      ebb_args_add_args (groups, NULL, group);
    }
  return groups;
}

static EbbArgs *
get_slots (EbbOptimizerPrivate *priv,
           const EbbOptimizerKind *kind)
{
  EbbArgs *slots = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < priv->n_slots; i++)
    {
      const EbbOptimizerSlot *slot = &priv->slots[i];
      g_autoptr (EbbArgs) values = NULL;

      if (slot->n_steps == 0)
        continue;
      values = ebb_args_new (EBB_ARGS_DICT);
      ebb_args_add_int (values, "n_steps", slot->n_steps);
      if (slot->master != NULL)
        ebb_args_add_tensor (values, "master", slot->master);
      for (guint k = 0; kind != NULL && kind->state_names[k] != NULL; k++)
        if (slot->states[k] != NULL)
          ebb_args_add_tensor (values, kind->state_names[k], slot->states[k]);
      ebb_args_add_args (slots, slot->name, values);
    }
  return slots;
}

/**
 * ebb_optimizer_get_state:
 * @self: an optimizer
 *
 * All that a later optimizer of the same kind over the same parameters needs to go on as this one would: steps,
 * learning rates, options, groups by the names of their parameters, and the tensors of the state. The tensors are the
 * optimizer's own: the next step changes them.
 *
 * Returns: (transfer full): a dictionary
 */
EbbArgs *
ebb_optimizer_get_state (EbbOptimizer *self)
{
  EbbOptimizerPrivate *priv;
  const EbbOptimizerKind *kind;
  EbbArgs *state;
  g_autoptr (EbbArgs) options = NULL;
  g_autoptr (EbbArgs) groups = NULL;
  g_autoptr (EbbArgs) slots = NULL;

  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), NULL);

  priv = ebb_optimizer_get_private (self);
  kind = ebb_optimizer_get_kind (self);
  options = get_options (self, kind);
  groups = get_groups (priv);
  slots = get_slots (priv, kind);

  state = ebb_args_new (EBB_ARGS_DICT);
  ebb_args_add_string (state, "kind", kind ? kind->name : G_OBJECT_TYPE_NAME (self));
  ebb_args_add_int (state, "n_steps", priv->n_steps);
  ebb_args_add_double (state, "lr", priv->lr);
  ebb_args_add_double (state, "lr_scale", priv->lr_scale);
  ebb_args_add_double (state, "weight_decay", priv->weight_decay);
  ebb_args_add_args (state, "options", options);
  ebb_args_add_args (state, "groups", groups);
  ebb_args_add_args (state, "state", slots);
  return state;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static int
find (EbbArgs *args,
      const char *key,
      EbbValueKind kind,
      GError **error)
{
  int index = ebb_args_find (args, key);

  if (index < 0)
    ebb_error_set (error, EBB_ERROR_STATE, "the optimizer's state has no \"%s\"", key);
  else if (ebb_args_get_value_kind (args, (guint) index) != kind)
    {
      ebb_error_set (error, EBB_ERROR_STATE, "the optimizer's state has a \"%s\" of another type than it should", key);
      index = -1;
    }
  return index;
}

static EbbArgs *
read_args (EbbArgs *args,
           const char *key,
           GError **error)
{
  int index = find (args, key, EBB_VALUE_ARGS, error);

  return index < 0 ? NULL : ebb_args_get_args (args, (guint) index);
}

static gboolean
read_double (EbbArgs *args,
             const char *key,
             double lowest,
             double *value,
             GError **error)
{
  int index = find (args, key, EBB_VALUE_DOUBLE, error);

  if (index < 0)
    return FALSE;
  *value = ebb_args_get_double (args, (guint) index);
  if (!isfinite (*value) || *value < lowest)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "the optimizer's state has %s %g: it must be a number of %g or more", key, *value, lowest);
  return TRUE;
}

static gboolean
read_int (EbbArgs *args,
          const char *key,
          gint64 *value,
          GError **error)
{
  int index = find (args, key, EBB_VALUE_INT, error);

  if (index < 0)
    return FALSE;
  *value = ebb_args_get_int (args, (guint) index);
  if (*value < 0 || *value > EBB_STATE_MAX_COUNT)
    return ebb_fail (error, EBB_ERROR_STATE,
                     "the optimizer's state has %s %" G_GINT64_FORMAT ": it must be from 0 to %" G_GINT64_FORMAT, key,
                     *value, EBB_STATE_MAX_COUNT);
  return TRUE;
}

static EbbOptimizerSlot *
find_slot (EbbOptimizerPrivate *priv,
           EbbOptimizerSlot *slots,
           GHashTable *by_name,
           const char *name,
           GError **error)
{
  g_autofree char *shown = NULL;
  gpointer index;

  if (name != NULL && g_hash_table_lookup_extended (by_name, name, NULL, &index))
    return &slots[GPOINTER_TO_UINT (index)];
  shown = ebb_escape_text (name != NULL ? name : "");
  return ebb_fail_null (
      error, EBB_ERROR_STATE,
      "the optimizer's state is for a parameter \"%s\", which it does not have (it has %u, the first is %s)%s", shown,
      priv->n_slots, priv->slots[0].name, ebb_optimizer_explain_numbers (priv, name != NULL ? name : ""));
}

/* The checked contents of a state, which a load installs all at once. */
typedef struct
{
  EbbOptimizer *optimizer;
  EbbOptimizerPrivate *priv;
  const EbbOptimizerKind *kind;
  EbbOptimizerSlot *slots; /* only group, n_steps, master and states */
  EbbOptimizerGroup *groups;
  guint n_groups;
  GHashTable *by_name;
  gboolean check_only;
} Loading;

static void
loading_clear (Loading *loading)
{
  for (guint i = 0; loading->slots != NULL && i < loading->priv->n_slots; i++)
    ebb_optimizer_slot_clear_state (&loading->slots[i]);
  g_free (loading->slots);
  g_free (loading->groups);
  g_hash_table_unref (loading->by_name);
}

static gboolean
read_groups (Loading *loading,
             EbbArgs *state,
             GError **error)
{
  g_autoptr (EbbArgs) groups = read_args (state, "groups", error);
  guint n = groups ? ebb_args_get_length (groups) : 0;

  if (groups == NULL)
    return FALSE;
  if (n == 0)
    return ebb_fail (error, EBB_ERROR_STATE, "the optimizer's state has no parameter group");
  loading->groups = g_new (EbbOptimizerGroup, n);
  loading->n_groups = n;
  for (guint g = 0; g < n; g++)
    {
      g_autoptr (EbbArgs) group = ebb_args_get_args (groups, g);
      g_autoptr (EbbArgs) names = group ? read_args (group, "parameters", error) : NULL;

      if (names == NULL || !read_double (group, "lr", -G_MAXDOUBLE, &loading->groups[g].lr, error)
          || !read_double (group, "weight_decay", -G_MAXDOUBLE, &loading->groups[g].weight_decay, error))
        {
          if (error != NULL && *error == NULL)
            ebb_error_set (error, EBB_ERROR_STATE, "group %u of the optimizer's state is no dictionary", g);
          return FALSE;
        }
      for (guint i = 0; i < ebb_args_get_length (names); i++)
        {
          const char *name =
              ebb_args_get_value_kind (names, i) == EBB_VALUE_STRING ? ebb_args_get_string (names, i) : NULL;
          EbbOptimizerSlot *slot = find_slot (loading->priv, loading->slots, loading->by_name, name, error);

          if (slot == NULL)
            return FALSE;
          slot->group = g;
        }
    }
  return TRUE;
}

/* "f32, bf16 or u8" */
static char *
name_dtypes (guint dtypes)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (guint dtype = 0; dtypes >> dtype != 0; dtype++)
    if (dtypes & 1u << dtype)
      {
        if (text->len > 0)
          g_string_append (text, dtypes >> (dtype + 1) == 0 ? " or " : ", ");
        g_string_append (text, ebb_dtype_get_name ((EbbDType) dtype));
      }
  return g_string_free (g_steal_pointer (&text), FALSE);
}

static char *
name_shape (const EbbOptimizerLayout *layout)
{
  g_autoptr (GString) text = g_string_new ("[");

  for (guint i = 0; i < layout->n_dims; i++)
    g_string_append_printf (text, "%s%" G_GINT64_FORMAT, i > 0 ? ", " : "", layout->shape[i]);
  g_string_append_c (text, ']');
  return g_string_free (g_steal_pointer (&text), FALSE);
}

/* The state's tensor @key; left NULL without an error if there is none. */
static gboolean
find_tensor (EbbArgs *values,
             const char *name,
             const char *key,
             const EbbOptimizerLayout *layout,
             EbbTensor **result,
             GError **error)
{
  int index = ebb_args_find (values, key);
  g_autoptr (EbbTensor) tensor = index >= 0 ? ebb_args_get_tensor (values, (guint) index) : NULL;
  guint dtype = tensor != NULL ? 1u << tensor->view.dtype : 0;

  if (index < 0)
    return TRUE;
  if ((layout->dtypes & dtype) == 0 || !ebb_view_has_shape (&tensor->view, layout->shape, layout->n_dims))
    return ebb_fail (error, EBB_ERROR_STATE, "the optimizer's state %s of %s is %s %s: it must be %s %s", key, name,
                     tensor ? ebb_dtype_get_name (tensor->view.dtype) : "no tensor,",
                     ebb_in_message (tensor ? ebb_tensor_shape_to_string (tensor) : g_strdup ("none")),
                     ebb_in_message (name_dtypes (layout->dtypes & dtype ? dtype : layout->dtypes)),
                     ebb_in_message (name_shape (layout)));
  *result = g_steal_pointer (&tensor);
  return TRUE;
}

/* Replaces *@tensor by a copy where the parameter is. */
static gboolean
copy_to_parameter (EbbTensor **tensor,
                   EbbTensor *parameter,
                   GError **error)
{
  g_autoptr (EbbTensor) given = g_steal_pointer (tensor);
  g_autoptr (EbbTensor) moved = NULL;

  if (given == NULL)
    return TRUE;
  moved = ebb_to_device (given, parameter->storage->device, error);
  *tensor = ebb_copy (moved, error);
  if (*tensor == NULL)
    return FALSE;
  ebb_storage_set_purpose ((*tensor)->storage, EBB_PURPOSE_OPTIMIZER);
  return TRUE;
}

static void
describe_like (EbbTensor *parameter,
               EbbOptimizerLayout *layout)
{
  layout->dtypes = 1u << EBB_DTYPE_F32;
  layout->per_block = FALSE;
  layout->n_dims = (guint) parameter->view.n_dims;
  memcpy (layout->shape, parameter->view.shape, sizeof (gint64) * layout->n_dims);
}

gboolean
ebb_optimizer_state_follows_elements (EbbOptimizer *self,
                                      EbbTensor *parameter,
                                      const char *key,
                                      EbbDType dtype)
{
  const EbbOptimizerKind *kind = ebb_optimizer_get_kind (self);
  EbbOptimizerLayout layout;

  describe_like (parameter, &layout);
  for (guint k = 0; kind != NULL && kind->describe != NULL && kind->state_names[k] != NULL; k++)
    if (strcmp (kind->state_names[k], key) == 0)
      kind->describe (k, parameter, &layout);
  /* Eight bits are codes, whose scale is the block's. */
  return !layout.per_block && dtype != EBB_DTYPE_U8;
}

/* The tensors of one parameter: all are looked at before one is copied. */
static gboolean
read_tensors (Loading *loading,
              EbbArgs *values,
              const char *name,
              EbbTensor *parameter,
              EbbOptimizerSlot *slot,
              GError **error)
{
  const EbbOptimizerKind *kind = loading->kind;
  EbbOptimizerLayout layout;

  describe_like (parameter, &layout);
  if (!find_tensor (values, name, "master", &layout, &slot->master, error))
    return FALSE;
  for (guint k = 0; kind != NULL && kind->state_names[k] != NULL; k++)
    {
      describe_like (parameter, &layout);
      if (kind->describe != NULL)
        kind->describe (k, parameter, &layout);
      if (!find_tensor (values, name, kind->state_names[k], &layout, &slot->states[k], error))
        return FALSE;
    }
  if (kind != NULL && kind->check != NULL && !kind->check (name, slot->states, error))
    return FALSE;
  if (loading->check_only)
    return TRUE;
  if (!ebb_optimizer_keeps_master (loading->priv, parameter))
    g_clear_pointer (&slot->master, ebb_tensor_unref);
  if (!copy_to_parameter (&slot->master, parameter, error))
    return FALSE;
  for (guint k = 0; k < EBB_OPTIMIZER_MAX_STATES; k++)
    if (!copy_to_parameter (&slot->states[k], parameter, error))
      return FALSE;
  /* Here and not with the next step, so that two formats of all parameters never are there at once. */
  return kind == NULL || slot->n_steps == 0 || kind->prepare (loading->optimizer, parameter, slot->states, error);
}

static gboolean
read_slots (Loading *loading,
            EbbArgs *state,
            GError **error)
{
  g_autoptr (EbbArgs) slots = read_args (state, "state", error);

  if (slots == NULL)
    return FALSE;
  for (guint i = 0; i < ebb_args_get_length (slots); i++)
    {
      const char *name = ebb_args_get_key (slots, i);
      EbbOptimizerSlot *slot = find_slot (loading->priv, loading->slots, loading->by_name, name, error);
      g_autoptr (EbbArgs) values = ebb_args_get_args (slots, i);
      EbbTensor *parameter;

      if (slot == NULL)
        return FALSE;
      if (values == NULL)
        return ebb_fail (error, EBB_ERROR_STATE, "the optimizer's state of %s is no dictionary", name);
      parameter = loading->priv->slots[slot - loading->slots].parameter;
      if (!read_int (values, "n_steps", &slot->n_steps, error)
          || !read_tensors (loading, values, name, parameter, slot, error))
        return FALSE;
    }
  return TRUE;
}

/* Sets the options, or only looks at them. */
static gboolean
read_options (EbbOptimizer *self,
              const EbbOptimizerKind *kind,
              EbbArgs *state,
              gboolean check_only,
              GError **error)
{
  g_autoptr (EbbArgs) options = read_args (state, "options", error);

  if (options == NULL)
    return FALSE;
  for (guint i = 0; kind != NULL && kind->options[i].name != NULL; i++)
    {
      const char *name = kind->options[i].name;
      GParamSpec *pspec = g_object_class_find_property (G_OBJECT_GET_CLASS (self), name);
      gboolean is_boolean = G_IS_PARAM_SPEC_BOOLEAN (pspec);
      int index = find (options, name, is_boolean ? EBB_VALUE_BOOL : EBB_VALUE_DOUBLE, error);
      g_auto (GValue) value = G_VALUE_INIT;

      if (index < 0)
        return FALSE;
      g_value_init (&value, pspec->value_type);
      if (is_boolean)
        g_value_set_boolean (&value, ebb_args_get_boolean (options, (guint) index));
      else
        g_value_set_double (&value, ebb_args_get_double (options, (guint) index));
      if (!is_boolean && !ebb_optimizer_check_option (self, name, g_value_get_double (&value), NULL))
        return ebb_fail (error, EBB_ERROR_STATE, "the optimizer's state has a %s out of range", name);
      if (!check_only)
        g_object_set_property (G_OBJECT (self), name, &value);
    }
  return TRUE;
}

static gboolean
check_kind (EbbOptimizer *self,
            const EbbOptimizerKind *kind,
            EbbArgs *state,
            GError **error)
{
  const char *own = kind ? kind->name : G_OBJECT_TYPE_NAME (self);
  int index = find (state, "kind", EBB_VALUE_STRING, error);

  if (index < 0)
    return FALSE;
  if (g_strcmp0 (ebb_args_get_string (state, (guint) index), own) != 0)
    return ebb_fail (error, EBB_ERROR_STATE, "the state is one of the optimizer %s: this one is %s",
                     ebb_show_text (ebb_args_get_string (state, (guint) index)), own);
  return TRUE;
}

/* Puts what was read in place; nothing here can fail. */
static void
take_over (Loading *loading)
{
  EbbOptimizerPrivate *priv = loading->priv;

  for (guint i = 0; i < priv->n_slots; i++)
    {
      EbbOptimizerSlot *old = &priv->slots[i], *new = &loading->slots[i];

      ebb_optimizer_slot_clear_state (old);
      old->group = new->group;
      old->n_steps = new->n_steps;
      old->n_elements = old->parameter->n_elements;
      old->master = g_steal_pointer (&new->master);
      old->seen_birth = 0; /* the master is compared with the parameter before its next use */
      for (guint k = 0; k < EBB_OPTIMIZER_MAX_STATES; k++)
        old->states[k] = g_steal_pointer (&new->states[k]);
    }
  g_free (priv->groups);
  priv->groups = g_steal_pointer (&loading->groups);
  priv->n_groups = loading->n_groups;
}

static gboolean
load (EbbOptimizer *self,
      EbbArgs *state,
      gboolean check_only,
      GError **error)
{
  EbbOptimizerPrivate *priv = ebb_optimizer_get_private (self);
  Loading loading = {
    .optimizer = self,
    .priv = priv,
    .kind = ebb_optimizer_get_kind (self),
    .check_only = check_only
  };
  double lr, lr_scale, weight_decay;
  gint64 n_steps;
  gboolean ok;

  loading.slots = g_new0 (EbbOptimizerSlot, priv->n_slots + 1);
  loading.by_name = g_hash_table_new (g_str_hash, g_str_equal);
  for (guint i = 0; i < priv->n_slots; i++)
    g_hash_table_insert (loading.by_name, priv->slots[i].name, GUINT_TO_POINTER (i));

  ok = check_kind (self, loading.kind, state, error) && read_int (state, "n_steps", &n_steps, error)
       && read_double (state, "lr", 0, &lr, error) && read_double (state, "lr_scale", 0, &lr_scale, error)
       && read_double (state, "weight_decay", 0, &weight_decay, error)
       && read_options (self, loading.kind, state, TRUE, error) && read_groups (&loading, state, error)
       && read_slots (&loading, state, error);
  if (ok && !check_only)
    {
      ebb_optimizer_join_dry_run (self);
      read_options (self, loading.kind, state, FALSE, NULL);
      take_over (&loading);
      priv->n_steps = n_steps;
      ebb_optimizer_reset_scale (priv);
      g_object_set (self, "lr", lr, "lr-scale", lr_scale, "weight-decay", weight_decay, NULL);
    }
  loading_clear (&loading);
  return ok;
}

/* The caller may have given no place for an error, and what went wrong must be known here. */
static gboolean
load_checked (EbbOptimizer *self,
              EbbArgs *state,
              gboolean check_only,
              GError **error)
{
  g_autoptr (GError) failure = NULL;
  gboolean ok;

  ebb_push_grad_enabled (FALSE);
  ok = load (self, state, check_only, &failure);
  ebb_pop_grad_enabled ();
  if (!ok)
    g_propagate_error (error, g_steal_pointer (&failure));
  return ok;
}

gboolean
ebb_optimizer_check_state (EbbOptimizer *self,
                           EbbArgs *state,
                           GError **error)
{
  return load_checked (self, state, TRUE, error);
}

/**
 * ebb_optimizer_load_state:
 * @self: an optimizer
 * @state: what ebb_optimizer_get_state() gave
 * @error: return location for an error
 *
 * Takes over a state; its tensors are copied to where the parameters are. Parameters that @state does not speak of
 * begin anew. An optimizer that keeps its state in another format (see #EbbAdam:moment-format) converts it, one
 * parameter after the other. On an error nothing has changed.
 *
 * Returns: %FALSE with %EBB_ERROR_STATE if @state is of another kind of optimizer or of other parameters
 */
gboolean
ebb_optimizer_load_state (EbbOptimizer *self,
                          EbbArgs *state,
                          GError **error)
{
  EBB_RETURN_UNLESS_BEGUN (FALSE, error, self, state);
  g_return_val_if_fail (EBB_IS_OPTIMIZER (self), FALSE);

  return load_checked (self, state, FALSE, error);
}
