/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/options.h"

#include "tensor/error.h"

#define NO_DTYPE (-1)

struct _EbbFullyShardOptions
{
  GObject parent_instance;

  EbbReshard reshard;
  gboolean flatten;
  gboolean prefetch;
  gboolean offload;
  gboolean synchronize_weights;
  int compute_dtype, reduce_dtype;
  double predivide_factor;
  EbbProcessGroup *replicate_group;
};

enum
{
  PROP_RESHARD_AFTER_FORWARD = 1,
  PROP_FLATTEN,
  PROP_PREFETCH,
  PROP_OFFLOAD,
  PROP_SYNCHRONIZE_WEIGHTS,
  PROP_PREDIVIDE_FACTOR,
  PROP_REPLICATE_GROUP,
  N_PROPS
};

G_DEFINE_FINAL_TYPE (EbbFullyShardOptions, ebb_fully_shard_options, G_TYPE_OBJECT)

static GType
reshard_get_type (void)
{
  static gsize type;
  static const GEnumValue values[] = {
    { EBB_RESHARD_AUTO, "EBB_RESHARD_AUTO", "auto" },
    { EBB_RESHARD_ALWAYS, "EBB_RESHARD_ALWAYS", "always" },
    { EBB_RESHARD_NEVER, "EBB_RESHARD_NEVER", "never" },
    { 0, NULL, NULL },
  };

  if (g_once_init_enter (&type))
    g_once_init_leave (&type, g_enum_register_static ("EbbReshard", values));
  return (GType) type;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_fully_shard_options_get_property (GObject *object,
                                      guint id,
                                      GValue *value,
                                      GParamSpec *pspec)
{
  EbbFullyShardOptions *self = EBB_FULLY_SHARD_OPTIONS (object);

  switch (id)
    {
    case PROP_RESHARD_AFTER_FORWARD:
      g_value_set_enum (value, (int) self->reshard);
      break;
    case PROP_FLATTEN:
      g_value_set_boolean (value, self->flatten);
      break;
    case PROP_PREFETCH:
      g_value_set_boolean (value, self->prefetch);
      break;
    case PROP_OFFLOAD:
      g_value_set_boolean (value, self->offload);
      break;
    case PROP_SYNCHRONIZE_WEIGHTS:
      g_value_set_boolean (value, self->synchronize_weights);
      break;
    case PROP_PREDIVIDE_FACTOR:
      g_value_set_double (value, self->predivide_factor);
      break;
    case PROP_REPLICATE_GROUP:
      g_value_set_object (value, self->replicate_group);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_fully_shard_options_set_property (GObject *object,
                                      guint id,
                                      const GValue *value,
                                      GParamSpec *pspec)
{
  EbbFullyShardOptions *self = EBB_FULLY_SHARD_OPTIONS (object);

  switch (id)
    {
    case PROP_RESHARD_AFTER_FORWARD:
      self->reshard = (EbbReshard) g_value_get_enum (value);
      break;
    case PROP_FLATTEN:
      self->flatten = g_value_get_boolean (value);
      break;
    case PROP_PREFETCH:
      self->prefetch = g_value_get_boolean (value);
      break;
    case PROP_OFFLOAD:
      self->offload = g_value_get_boolean (value);
      break;
    case PROP_SYNCHRONIZE_WEIGHTS:
      self->synchronize_weights = g_value_get_boolean (value);
      break;
    case PROP_PREDIVIDE_FACTOR:
      self->predivide_factor = g_value_get_double (value);
      break;
    case PROP_REPLICATE_GROUP:
      g_set_object (&self->replicate_group, g_value_get_object (value));
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_fully_shard_options_finalize (GObject *object)
{
  g_clear_object (&EBB_FULLY_SHARD_OPTIONS (object)->replicate_group);
  G_OBJECT_CLASS (ebb_fully_shard_options_parent_class)->finalize (object);
}

static void
ebb_fully_shard_options_class_init (EbbFullyShardOptionsClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_fully_shard_options_get_property;
  object_class->set_property = ebb_fully_shard_options_set_property;
  object_class->finalize = ebb_fully_shard_options_finalize;

  /**
   * EbbFullyShardOptions:reshard-after-forward:
   *
   * When whole parameters are let go after a forward, to be gathered again for the backward.
   */
  g_object_class_install_property (object_class, PROP_RESHARD_AFTER_FORWARD,
                                   g_param_spec_enum ("reshard-after-forward", NULL, NULL, reshard_get_type (),
                                                      EBB_RESHARD_AUTO, flags));
  /**
   * EbbFullyShardOptions:flatten:
   *
   * Whether the parameters of a module are laid end to end and split evenly; otherwise each is split by the rows of its
   * first dimension.
   */
  g_object_class_install_property (object_class, PROP_FLATTEN,
                                   g_param_spec_boolean ("flatten", NULL, NULL, FALSE, flags));
  /**
   * EbbFullyShardOptions:prefetch:
   *
   * Whether the parameters of the module that comes next are gathered while this one computes.
   */
  g_object_class_install_property (object_class, PROP_PREFETCH,
                                   g_param_spec_boolean ("prefetch", NULL, NULL, TRUE, flags));
  /**
   * EbbFullyShardOptions:offload:
   *
   * Whether shards, their gradients, and with them the state of an optimizer, are held in host memory.
   */
  g_object_class_install_property (object_class, PROP_OFFLOAD,
                                   g_param_spec_boolean ("offload", NULL, NULL, FALSE, flags));
  /**
   * EbbFullyShardOptions:synchronize-weights:
   *
   * Whether the first rank's parameters and buffers are copied to all others before they are split.
   */
  g_object_class_install_property (object_class, PROP_SYNCHRONIZE_WEIGHTS,
                                   g_param_spec_boolean ("synchronize-weights", NULL, NULL, TRUE, flags));
  /**
   * EbbFullyShardOptions:predivide-factor:
   *
   * What gradients are divided by before they are summed over ranks; the rest of the mean is divided by after. For low
   * precisions, whose sums would overflow. 0: nothing before.
   */
  g_object_class_install_property (object_class, PROP_PREDIVIDE_FACTOR,
                                   g_param_spec_double ("predivide-factor", NULL, NULL, 0, G_MAXDOUBLE, 0, flags));
  /**
   * EbbFullyShardOptions:replicate-group:
   *
   * Hybrid sharding: the ranks that hold the same shards as this one, over which gradients are averaged after they were
   * reduced among the shards. %NULL: there are none.
   */
  g_object_class_install_property (
      object_class, PROP_REPLICATE_GROUP,
      g_param_spec_object ("replicate-group", NULL, NULL, EBB_TYPE_PROCESS_GROUP, flags));
}

static void
ebb_fully_shard_options_init (EbbFullyShardOptions *self)
{
  self->prefetch = self->synchronize_weights = TRUE;
  self->compute_dtype = self->reduce_dtype = NO_DTYPE;
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

/**
 * ebb_fully_shard_options_new:
 *
 * Makes options with the defaults.
 *
 * Returns: (transfer full): the options
 */
EbbFullyShardOptions *
ebb_fully_shard_options_new (void)
{
  return g_object_new (EBB_TYPE_FULLY_SHARD_OPTIONS, NULL);
}

/**
 * ebb_fully_shard_options_get_reshard_after_forward:
 * @self: options
 *
 * Returns: #EbbFullyShardOptions:reshard-after-forward
 */
EbbReshard
ebb_fully_shard_options_get_reshard_after_forward (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), EBB_RESHARD_AUTO);

  return self->reshard;
}

/**
 * ebb_fully_shard_options_set_reshard_after_forward:
 * @self: options
 * @reshard: when to let whole parameters go
 *
 * Sets #EbbFullyShardOptions:reshard-after-forward.
 */
void
ebb_fully_shard_options_set_reshard_after_forward (EbbFullyShardOptions *self,
                                                   EbbReshard reshard)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "reshard-after-forward", reshard, NULL);
}

/**
 * ebb_fully_shard_options_get_flatten:
 * @self: options
 *
 * Returns: #EbbFullyShardOptions:flatten
 */
gboolean
ebb_fully_shard_options_get_flatten (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return self->flatten;
}

/**
 * ebb_fully_shard_options_set_flatten:
 * @self: options
 * @flatten: whether to
 *
 * Sets #EbbFullyShardOptions:flatten.
 */
void
ebb_fully_shard_options_set_flatten (EbbFullyShardOptions *self,
                                     gboolean flatten)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "flatten", flatten, NULL);
}

/**
 * ebb_fully_shard_options_get_prefetch:
 * @self: options
 *
 * Returns: #EbbFullyShardOptions:prefetch
 */
gboolean
ebb_fully_shard_options_get_prefetch (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return self->prefetch;
}

/**
 * ebb_fully_shard_options_set_prefetch:
 * @self: options
 * @prefetch: whether to
 *
 * Sets #EbbFullyShardOptions:prefetch.
 */
void
ebb_fully_shard_options_set_prefetch (EbbFullyShardOptions *self,
                                      gboolean prefetch)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "prefetch", prefetch, NULL);
}

/**
 * ebb_fully_shard_options_get_offload:
 * @self: options
 *
 * Returns: #EbbFullyShardOptions:offload
 */
gboolean
ebb_fully_shard_options_get_offload (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return self->offload;
}

/**
 * ebb_fully_shard_options_set_offload:
 * @self: options
 * @offload: whether to
 *
 * Sets #EbbFullyShardOptions:offload.
 */
void
ebb_fully_shard_options_set_offload (EbbFullyShardOptions *self,
                                     gboolean offload)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "offload", offload, NULL);
}

/**
 * ebb_fully_shard_options_get_synchronize_weights:
 * @self: options
 *
 * Returns: #EbbFullyShardOptions:synchronize-weights
 */
gboolean
ebb_fully_shard_options_get_synchronize_weights (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return self->synchronize_weights;
}

/**
 * ebb_fully_shard_options_set_synchronize_weights:
 * @self: options
 * @synchronize: whether to
 *
 * Sets #EbbFullyShardOptions:synchronize-weights.
 */
void
ebb_fully_shard_options_set_synchronize_weights (EbbFullyShardOptions *self,
                                                 gboolean synchronize)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "synchronize-weights", synchronize, NULL);
}

/**
 * ebb_fully_shard_options_get_predivide_factor:
 * @self: options
 *
 * Returns: #EbbFullyShardOptions:predivide-factor
 */
double
ebb_fully_shard_options_get_predivide_factor (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), 0);

  return self->predivide_factor;
}

/**
 * ebb_fully_shard_options_set_predivide_factor:
 * @self: options
 * @factor: 0 or more
 *
 * Sets #EbbFullyShardOptions:predivide-factor.
 */
void
ebb_fully_shard_options_set_predivide_factor (EbbFullyShardOptions *self,
                                              double factor)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "predivide-factor", factor, NULL);
}

/**
 * ebb_fully_shard_options_get_replicate_group:
 * @self: options
 *
 * Returns: (transfer none) (nullable): #EbbFullyShardOptions:replicate-group
 */
EbbProcessGroup *
ebb_fully_shard_options_get_replicate_group (EbbFullyShardOptions *self)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), NULL);

  return self->replicate_group;
}

/**
 * ebb_fully_shard_options_set_replicate_group:
 * @self: options
 * @group: (nullable): the ranks with the same shards
 *
 * Sets #EbbFullyShardOptions:replicate-group.
 */
void
ebb_fully_shard_options_set_replicate_group (EbbFullyShardOptions *self,
                                             EbbProcessGroup *group)
{
  g_return_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self));

  g_object_set (self, "replicate-group", group, NULL);
}

/* -- types --------------------------------------------------------------------------------------------------------- */

static gboolean
get_dtype (int value,
           EbbDType *dtype)
{
  if (value != NO_DTYPE)
    *dtype = (EbbDType) value;
  return value != NO_DTYPE;
}

static gboolean
set_dtype (int *value,
           EbbDType dtype,
           const char *what,
           GError **error)
{
  if (error != NULL && *error != NULL)
    return FALSE;
  if (dtype != EBB_DTYPE_F32 && dtype != EBB_DTYPE_BF16)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_DTYPE, "%s can't be %s: f32 or bf16", what, ebb_dtype_get_name (dtype));
      return FALSE;
    }
  *value = (int) dtype;
  return TRUE;
}

/**
 * ebb_fully_shard_options_get_compute_dtype:
 * @self: options
 * @dtype: (out): return location for the type
 *
 * Tells the type in which parameters are gathered, and in which the module then computes: floating arguments of its
 * forward are cast to it. Shards stay in the type that the parameters have.
 *
 * Returns: %FALSE if none was set: then it is the parameters' own
 */
gboolean
ebb_fully_shard_options_get_compute_dtype (EbbFullyShardOptions *self,
                                           EbbDType *dtype)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return get_dtype (self->compute_dtype, dtype);
}

/**
 * ebb_fully_shard_options_set_compute_dtype:
 * @self: options
 * @dtype: %EBB_DTYPE_F32 or %EBB_DTYPE_BF16
 * @error: return location for an error
 *
 * Sets the type in which parameters are gathered, and in which the module then computes: floating arguments of its
 * forward are cast to it. Shards stay in the type that the parameters have.
 *
 * Returns: %FALSE with %EBB_ERROR_DTYPE for another type
 */
gboolean
ebb_fully_shard_options_set_compute_dtype (EbbFullyShardOptions *self,
                                           EbbDType dtype,
                                           GError **error)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return set_dtype (&self->compute_dtype, dtype, "the type to compute in", error);
}

/**
 * ebb_fully_shard_options_get_reduce_dtype:
 * @self: options
 * @dtype: (out): return location for the type
 *
 * Tells the type in which gradients are summed over ranks.
 *
 * Returns: %FALSE if none was set: then it is the parameters' own
 */
gboolean
ebb_fully_shard_options_get_reduce_dtype (EbbFullyShardOptions *self,
                                          EbbDType *dtype)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return get_dtype (self->reduce_dtype, dtype);
}

/**
 * ebb_fully_shard_options_set_reduce_dtype:
 * @self: options
 * @dtype: %EBB_DTYPE_F32 or %EBB_DTYPE_BF16
 * @error: return location for an error
 *
 * Sets the type in which gradients are summed over ranks.
 *
 * Returns: %FALSE with %EBB_ERROR_DTYPE for another type
 */
gboolean
ebb_fully_shard_options_set_reduce_dtype (EbbFullyShardOptions *self,
                                          EbbDType dtype,
                                          GError **error)
{
  g_return_val_if_fail (EBB_IS_FULLY_SHARD_OPTIONS (self), FALSE);

  return set_dtype (&self->reduce_dtype, dtype, "the type to reduce gradients in", error);
}
