/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/options.h"

#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

/* The options of ebb_fully_shard (): properties, and two dtypes that may be left out. */

#define NO_DTYPE (-1)

struct _EbbFullyShardOptions
{
  GObject parent_instance;

  EbbReshard reshard_after_forward;
  gboolean flatten;
  gboolean prefetch;
  gboolean offload;
  gboolean synchronize_weights;
  int compute_dtype, reduce_dtype;
  double predivide_factor;
  EbbProcessGroup *replicate_group;
};

G_DEFINE_FINAL_TYPE (EbbFullyShardOptions, ebb_fully_shard_options, G_TYPE_OBJECT)

G_DEFINE_ENUM_TYPE (EbbReshard,
                    ebb_reshard,
                    G_DEFINE_ENUM_VALUE (EBB_RESHARD_AUTO, "auto"),
                    G_DEFINE_ENUM_VALUE (EBB_RESHARD_ALWAYS, "always"),
                    G_DEFINE_ENUM_VALUE (EBB_RESHARD_NEVER, "never"))

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
    return ebb_fail (error, EBB_ERROR_DTYPE, "%s can't be %s: f32 or bf16", what, ebb_dtype_get_name (dtype));
  *value = (int) dtype;
  return TRUE;
}

/**
 * ebb_fully_shard_options_get_compute_dtype:
 * @self: options
 * @dtype: (out): return location for the type
 *
 * Returns the type in which parameters are gathered, and in which the module then computes: floating arguments of its
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
 * Returns the type in which gradients are summed over ranks.
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

/* -- object -------------------------------------------------------------------------------------------------------- */

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
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_fully_shard_options_finalize;

  /**
   * EbbFullyShardOptions:reshard-after-forward:
   *
   * When full parameters are freed after a forward, to be gathered again for the backward.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, reshard_after_forward, enum, "reshard-after-forward",
                    EBB_TYPE_RESHARD, EBB_RESHARD_AUTO, flags);
  /**
   * EbbFullyShardOptions:flatten:
   *
   * Whether the parameters of a module are laid end to end and split evenly; otherwise each is split by the rows of its
   * first dimension.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, flatten, boolean, "flatten", FALSE, flags);
  /**
   * EbbFullyShardOptions:prefetch:
   *
   * Whether the parameters of the module that comes next are gathered while this one computes.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, prefetch, boolean, "prefetch", TRUE, flags);
  /**
   * EbbFullyShardOptions:offload:
   *
   * Whether shards, their gradients, and with them the state of an optimizer, are held in host memory.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, offload, boolean, "offload", FALSE, flags);
  /**
   * EbbFullyShardOptions:synchronize-weights:
   *
   * Whether the first rank's parameters and buffers are copied to all others before they are split.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, synchronize_weights, boolean, "synchronize-weights", TRUE,
                    flags);
  /**
   * EbbFullyShardOptions:predivide-factor:
   *
   * The number by which gradients are divided before they are summed over ranks; after the sum they are divided by the
   * rest of the mean. It is for low precisions, whose sums would overflow. 0: they are not divided before.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, predivide_factor, double, "predivide-factor", 0, G_MAXDOUBLE, 0,
                    flags);
  /**
   * EbbFullyShardOptions:replicate-group:
   *
   * Hybrid sharding: the ranks that hold the same shards as this one, over which gradients are averaged after they were
   * reduced among the shards. %NULL: there are none.
   */
  ebb_property_add (object_class, EbbFullyShardOptions, replicate_group, object, "replicate-group",
                    EBB_TYPE_PROCESS_GROUP, flags);
}

static void
ebb_fully_shard_options_init (EbbFullyShardOptions *self)
{
  self->compute_dtype = self->reduce_dtype = NO_DTYPE;
}
