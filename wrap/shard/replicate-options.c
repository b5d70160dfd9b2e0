/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/replicate-options.h"

#define DEFAULT_BUCKET_BYTES (G_GUINT64_CONSTANT (25) << 20)

struct _EbbReplicateOptions
{
  GObject parent_instance;

  guint64 bucket_bytes;
  EbbUnusedParameters unused_parameters;
  gboolean broadcast;
};

enum
{
  PROP_BUCKET_BYTES = 1,
  PROP_UNUSED_PARAMETERS,
  PROP_BROADCAST,
};

G_DEFINE_FINAL_TYPE (EbbReplicateOptions, ebb_replicate_options, G_TYPE_OBJECT)

GType
ebb_unused_parameters_get_type (void)
{
  static gsize type = 0;
  static const GEnumValue values[] = {
    { EBB_UNUSED_PARAMETERS_ERROR, "EBB_UNUSED_PARAMETERS_ERROR", "error" },
    { EBB_UNUSED_PARAMETERS_ZERO, "EBB_UNUSED_PARAMETERS_ZERO", "zero" },
    { 0, NULL, NULL },
  };

  if (g_once_init_enter (&type))
    g_once_init_leave (&type, g_enum_register_static ("EbbUnusedParameters", values));
  return type;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_replicate_options_get_property (GObject *object,
                                    guint id,
                                    GValue *value,
                                    GParamSpec *pspec)
{
  EbbReplicateOptions *self = EBB_REPLICATE_OPTIONS (object);

  switch (id)
    {
    case PROP_BUCKET_BYTES:
      g_value_set_uint64 (value, self->bucket_bytes);
      break;
    case PROP_UNUSED_PARAMETERS:
      g_value_set_enum (value, (int) self->unused_parameters);
      break;
    case PROP_BROADCAST:
      g_value_set_boolean (value, self->broadcast);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_replicate_options_set_property (GObject *object,
                                    guint id,
                                    const GValue *value,
                                    GParamSpec *pspec)
{
  EbbReplicateOptions *self = EBB_REPLICATE_OPTIONS (object);

  switch (id)
    {
    case PROP_BUCKET_BYTES:
      self->bucket_bytes = g_value_get_uint64 (value);
      break;
    case PROP_UNUSED_PARAMETERS:
      self->unused_parameters = (EbbUnusedParameters) g_value_get_enum (value);
      break;
    case PROP_BROADCAST:
      self->broadcast = g_value_get_boolean (value);
      break;
    default:
      G_OBJECT_WARN_INVALID_PROPERTY_ID (object, id, pspec);
    }
}

static void
ebb_replicate_options_class_init (EbbReplicateOptionsClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_replicate_options_get_property;
  object_class->set_property = ebb_replicate_options_set_property;

  /**
   * EbbReplicateOptions:bucket-bytes:
   *
   * How many bytes of gradients are reduced at once, at most, unless a single one has more. Small buckets begin early,
   * large ones cost less.
   */
  g_object_class_install_property (object_class, PROP_BUCKET_BYTES,
                                   g_param_spec_uint64 ("bucket-bytes", "Bucket size",
                                                        "Bytes of gradients that are reduced at once", 1, G_MAXUINT64,
                                                        DEFAULT_BUCKET_BYTES, flags));
  /**
   * EbbReplicateOptions:unused-parameters:
   *
   * What becomes of trainable parameters that a backward pass gives no gradient.
   */
  g_object_class_install_property (object_class, PROP_UNUSED_PARAMETERS,
                                   g_param_spec_enum ("unused-parameters", "Unused parameters",
                                                      "error: a backward pass that leaves one without a gradient "
                                                      "fails and names it; zero: it counts as one of zeros",
                                                      EBB_TYPE_UNUSED_PARAMETERS, EBB_UNUSED_PARAMETERS_ERROR, flags));
  /**
   * EbbReplicateOptions:broadcast:
   *
   * Whether all ranks begin with the parameters and buffers of rank 0. Without it they have to be equal already.
   */
  g_object_class_install_property (object_class, PROP_BROADCAST,
                                   g_param_spec_boolean ("broadcast", "Broadcast",
                                                         "All ranks begin with the weights of rank 0", TRUE, flags));
}

static void
ebb_replicate_options_init (EbbReplicateOptions *self)
{
  self->bucket_bytes = DEFAULT_BUCKET_BYTES;
  self->broadcast = TRUE;
}

/**
 * ebb_replicate_options_new:
 *
 * Returns: (transfer full): the defaults: buckets of 25 MiB, unused parameters are an error, all begin with rank 0's
 *   weights
 */
EbbReplicateOptions *
ebb_replicate_options_new (void)
{
  return g_object_new (EBB_TYPE_REPLICATE_OPTIONS, NULL);
}

/**
 * ebb_replicate_options_get_bucket_bytes: (get-property bucket-bytes)
 * @self: options
 *
 * Returns: how many bytes of gradients are reduced at once
 */
guint64
ebb_replicate_options_get_bucket_bytes (EbbReplicateOptions *self)
{
  g_return_val_if_fail (EBB_IS_REPLICATE_OPTIONS (self), 0);

  return self->bucket_bytes;
}

/**
 * ebb_replicate_options_set_bucket_bytes: (set-property bucket-bytes)
 * @self: options
 * @bucket_bytes: how many bytes of gradients are reduced at once, at least 1
 *
 * Sets the size of buckets; 1 makes one of each parameter.
 */
void
ebb_replicate_options_set_bucket_bytes (EbbReplicateOptions *self,
                                        guint64 bucket_bytes)
{
  g_return_if_fail (EBB_IS_REPLICATE_OPTIONS (self));
  g_return_if_fail (bucket_bytes > 0);

  self->bucket_bytes = bucket_bytes;
}

/**
 * ebb_replicate_options_get_unused_parameters: (get-property unused-parameters)
 * @self: options
 *
 * Returns: what becomes of trainable parameters that a backward pass gives no gradient
 */
EbbUnusedParameters
ebb_replicate_options_get_unused_parameters (EbbReplicateOptions *self)
{
  g_return_val_if_fail (EBB_IS_REPLICATE_OPTIONS (self), EBB_UNUSED_PARAMETERS_ERROR);

  return self->unused_parameters;
}

/**
 * ebb_replicate_options_set_unused_parameters: (set-property unused-parameters)
 * @self: options
 * @unused_parameters: what becomes of trainable parameters that a backward pass gives no gradient
 *
 * %EBB_UNUSED_PARAMETERS_ZERO costs some bytes more in each reduction, and a look at them by the host.
 */
void
ebb_replicate_options_set_unused_parameters (EbbReplicateOptions *self,
                                             EbbUnusedParameters unused_parameters)
{
  g_return_if_fail (EBB_IS_REPLICATE_OPTIONS (self));
  g_return_if_fail ((guint) unused_parameters <= EBB_UNUSED_PARAMETERS_ZERO);

  self->unused_parameters = unused_parameters;
}

/**
 * ebb_replicate_options_get_broadcast: (get-property broadcast)
 * @self: options
 *
 * Returns: whether all ranks begin with the parameters and buffers of rank 0
 */
gboolean
ebb_replicate_options_get_broadcast (EbbReplicateOptions *self)
{
  g_return_val_if_fail (EBB_IS_REPLICATE_OPTIONS (self), FALSE);

  return self->broadcast;
}

/**
 * ebb_replicate_options_set_broadcast: (set-property broadcast)
 * @self: options
 * @broadcast: whether all ranks begin with the parameters and buffers of rank 0
 *
 * Without it, models that differ stay different: nothing compares values.
 */
void
ebb_replicate_options_set_broadcast (EbbReplicateOptions *self,
                                     gboolean broadcast)
{
  g_return_if_fail (EBB_IS_REPLICATE_OPTIONS (self));

  self->broadcast = broadcast;
}
