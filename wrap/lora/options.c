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
  ebb_property_add (object_class, EbbLoraOptions, rank, int, "rank", G_MININT, G_MAXINT, 16, flags);
  /**
   * EbbLoraOptions:alpha:
   *
   * The branches are multiplied by alpha / rank (PEFT's `lora_alpha`); 0 for the rank, so that they are multiplied
   * by 1.
   */
  ebb_property_add (object_class, EbbLoraOptions, alpha, double, "alpha", -G_MAXDOUBLE, G_MAXDOUBLE, 0,
                    flags | G_PARAM_LAX_VALIDATION);
  /**
   * EbbLoraOptions:dropout:
   *
   * The probability with which an element of a branch's input is dropped in training (PEFT's `lora_dropout`).
   */
  ebb_property_add (object_class, EbbLoraOptions, dropout, double, "dropout", -G_MAXDOUBLE, G_MAXDOUBLE, 0,
                    flags | G_PARAM_LAX_VALIDATION);
  /**
   * EbbLoraOptions:rslora:
   *
   * Whether branches are multiplied by alpha / sqrt (rank) (PEFT's `use_rslora`, arXiv 2312.03732).
   */
  ebb_property_add (object_class, EbbLoraOptions, rslora, boolean, "rslora", FALSE, flags);
  /**
   * EbbLoraOptions:targets:
   *
   * The linear layers that get a branch (PEFT's `target_modules`): each entry is a module's path or the end of paths
   * after a dot, as `q_proj` or `attn.c_proj`, and may hold the wildcards `*` and `?`. %NULL for all linear layers but
   * `lm_head`.
   */
  ebb_property_add (object_class, EbbLoraOptions, targets, boxed, "targets", G_TYPE_STRV, flags);
  /**
   * EbbLoraOptions:exclude:
   *
   * Layers among the targets that get no branch (PEFT's `exclude_modules`), named as in #EbbLoraOptions:targets. Names
   * that match nothing are ignored. %NULL for none.
   */
  ebb_property_add (object_class, EbbLoraOptions, exclude, boxed, "exclude", G_TYPE_STRV, flags);
  /**
   * EbbLoraOptions:adapter:
   *
   * The name of the adapter, by which it is switched on, saved and removed.
   */
  ebb_property_add (object_class, EbbLoraOptions, adapter, string, "adapter", "default", flags);
}

static void
ebb_lora_options_init (EbbLoraOptions *self)
{
}
