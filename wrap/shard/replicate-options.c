/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "wrap/shard/replicate-options.h"

#include "tensor/util/property-private.h"

/* The options of ebb_replicate (). */

#define DEFAULT_BUCKET_BYTES (G_GUINT64_CONSTANT (25) << 20)

struct _EbbReplicateOptions
{
  GObject parent_instance;

  guint64 bucket_bytes;
  EbbUnusedParameters unused_parameters;
  gboolean broadcast;
};

G_DEFINE_FINAL_TYPE (EbbReplicateOptions, ebb_replicate_options, G_TYPE_OBJECT)

G_DEFINE_ENUM_TYPE (EbbUnusedParameters,
                    ebb_unused_parameters,
                    G_DEFINE_ENUM_VALUE (EBB_UNUSED_PARAMETERS_ERROR, "error"),
                    G_DEFINE_ENUM_VALUE (EBB_UNUSED_PARAMETERS_ZERO, "zero"))

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

static void
ebb_replicate_options_class_init (EbbReplicateOptionsClass *klass)
{
  GObjectClass *object_class = G_OBJECT_CLASS (klass);
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;

  /**
   * EbbReplicateOptions:bucket-bytes:
   *
   * How many bytes of gradients are reduced at once, at most, unless a single one has more. Small buckets begin early,
   * large ones cost less; 1 makes a bucket of each parameter.
   */
  ebb_property_add (object_class, EbbReplicateOptions, bucket_bytes, uint64, "bucket-bytes", 1, G_MAXUINT64,
                    DEFAULT_BUCKET_BYTES, flags);
  /**
   * EbbReplicateOptions:unused-parameters:
   *
   * The treatment of trainable parameters that a backward pass gives no gradient. %EBB_UNUSED_PARAMETERS_ZERO costs
   * some bytes more in each reduction, which the host reads.
   */
  ebb_property_add (object_class, EbbReplicateOptions, unused_parameters, enum, "unused-parameters",
                    EBB_TYPE_UNUSED_PARAMETERS, EBB_UNUSED_PARAMETERS_ERROR, flags);
  /**
   * EbbReplicateOptions:broadcast:
   *
   * Whether all ranks begin with the parameters and buffers of rank 0. Without it models that differ stay
   * different: nothing compares values.
   */
  ebb_property_add (object_class, EbbReplicateOptions, broadcast, boolean, "broadcast", TRUE, flags);
}

static void
ebb_replicate_options_init (EbbReplicateOptions *self)
{
}
