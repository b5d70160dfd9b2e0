/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options of ebb_lora_wrap (): properties, which are PEFT's by other names. */
#include "wrap/lora/lora-private.h"

#include "tensor/error-private.h"
#include "tensor/util/property-private.h"

#include <math.h>
#include <string.h>

G_DEFINE_FINAL_TYPE (EbbLoraOptions, ebb_lora_options, G_TYPE_OBJECT)

/**
 * ebb_lora_options_new:
 *
 * Makes options with the defaults.
 *
 * Returns: (transfer full): the options
 */
EbbLoraOptions *
ebb_lora_options_new (void)
{
  return g_object_new (EBB_TYPE_LORA_OPTIONS, NULL);
}

EbbLoraOptions *
ebb_lora_options_copy (EbbLoraOptions *self)
{
  return g_object_new (EBB_TYPE_LORA_OPTIONS, "rank", self->rank, "alpha", self->alpha, "dropout", self->dropout,
                       "rslora", self->rslora, "targets", self->targets, "exclude", self->exclude, "adapter",
                       self->adapter, NULL);
}

gboolean
ebb_lora_options_check (EbbLoraOptions *self,
                        GError **error)
{
  if (self->rank < 1)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "lora: rank is %d, it must be at least 1", self->rank);
  if (!(self->alpha >= 0) || !isfinite (self->alpha))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "lora: alpha is %g, it must be positive, or 0 for the rank's",
                     self->alpha);
  if (!(self->dropout >= 0 && self->dropout < 1))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "lora: dropout is %g, it must be at least 0 and below 1",
                     self->dropout);
  if (self->adapter == NULL || *self->adapter == '\0' || strpbrk (self->adapter, "./") != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "lora: \"%s\" can't name an adapter; a name has at least one character, no dot and no slash",
                     self->adapter != NULL ? self->adapter : "");
  return TRUE;
}

double
ebb_lora_options_get_alpha (EbbLoraOptions *self)
{
  return self->alpha != 0 ? self->alpha : self->rank;
}

static void
ebb_lora_options_finalize (GObject *object)
{
  EbbLoraOptions *self = EBB_LORA_OPTIONS (object);

  g_strfreev (self->targets);
  g_strfreev (self->exclude);
  g_free (self->adapter);
  G_OBJECT_CLASS (ebb_lora_options_parent_class)->finalize (object);
}

static void
ebb_lora_options_class_init (EbbLoraOptionsClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_lora_options_finalize;

  /**
   * EbbLoraOptions:rank:
   *
   * The rank of the branches (PEFT's `r`), at least 1.
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, rank),
                                   g_param_spec_int ("rank", NULL, "Rank of the branches", G_MININT, G_MAXINT, 16,
                                                     flags));
  /**
   * EbbLoraOptions:alpha:
   *
   * The branches are multiplied by alpha / rank (PEFT's `lora_alpha`); 0 for the rank, so that they are multiplied
   * by 1.
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, alpha),
                                   g_param_spec_double ("alpha", NULL, "Branches are multiplied by alpha / rank",
                                                        -G_MAXDOUBLE, G_MAXDOUBLE, 0,
                                                        flags | G_PARAM_LAX_VALIDATION));
  /**
   * EbbLoraOptions:dropout:
   *
   * The probability with which an element of a branch's input is dropped in training (PEFT's `lora_dropout`).
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, dropout),
                                   g_param_spec_double ("dropout", NULL, "Probability of dropping an input",
                                                        -G_MAXDOUBLE, G_MAXDOUBLE, 0,
                                                        flags | G_PARAM_LAX_VALIDATION));
  /**
   * EbbLoraOptions:rslora:
   *
   * Whether branches are multiplied by alpha / sqrt (rank) (PEFT's `use_rslora`, arXiv 2312.03732).
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, rslora),
                                   g_param_spec_boolean ("rslora", NULL, "Whether alpha is divided by sqrt (rank)",
                                                         FALSE, flags));
  /**
   * EbbLoraOptions:targets:
   *
   * The linear layers that get a branch (PEFT's `target_modules`): each entry is a module's path or the end of paths
   * after a dot, as `q_proj` or `attn.c_proj`, and may hold the wildcards `*` and `?`. %NULL for all linear layers but
   * `lm_head`.
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, targets),
                                   g_param_spec_boxed ("targets", NULL, "Linear layers that get a branch", G_TYPE_STRV,
                                                       flags));
  /**
   * EbbLoraOptions:exclude:
   *
   * Layers among the targets that get no branch (PEFT's `exclude_modules`), named as in #EbbLoraOptions:targets. Names
   * that match nothing are ignored. %NULL for none.
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, exclude),
                                   g_param_spec_boxed ("exclude", NULL, "Targets that get no branch", G_TYPE_STRV,
                                                       flags));
  /**
   * EbbLoraOptions:adapter:
   *
   * The name of the adapter, by which it is switched on, saved and removed.
   */
  g_object_class_install_property (object_class, offsetof (EbbLoraOptions, adapter),
                                   g_param_spec_string ("adapter", NULL, "Name of the adapter", "default", flags));
}

static void
ebb_lora_options_init (EbbLoraOptions *self)
{
}
