/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The settings with which ebb_finetune () opens and trains the model of a folder. */
#include "train/finetune-private.h"

#include "tensor/error-private.h"
#include "tensor/quantization.h"
#include "tensor/util/property-private.h"

#include <math.h>

G_DEFINE_TYPE (EbbFinetuneOptions, ebb_finetune_options, EBB_TYPE_TRAINER_OPTIONS)

/**
 * ebb_finetune_options_new:
 *
 * Makes settings with the defaults.
 *
 * Returns: (transfer full): the settings
 */
EbbFinetuneOptions *
ebb_finetune_options_new (void)
{
  return g_object_new (EBB_TYPE_FINETUNE_OPTIONS, NULL);
}

gboolean
ebb_finetune_options_have_adapter (EbbFinetuneOptions *self)
{
  return self->lora_rank > 0 || self->lora != NULL || self->adapter != NULL;
}

/* -- checks -------------------------------------------------------------------------------------------------------- */

static gboolean
check_adapter (EbbFinetuneOptions *self,
               GError **error)
{
  EbbQuantization base;

  if (self->lora_rank > 0 && self->lora != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "finetune: lora-rank %d and lora: the options of lora have the rank: set one of both",
                     self->lora_rank);
  if (self->adapter != NULL && (self->lora_rank > 0 || self->lora != NULL))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "finetune: adapter %s and %s: the folder says the adapter's rank: leave %s out", self->adapter,
                     self->lora != NULL ? "lora" : "lora-rank", self->lora != NULL ? "lora" : "lora-rank");
  if (self->base == NULL)
    return TRUE;
  if (!ebb_quantization_from_name (self->base, &base, error))
    {
      g_prefix_error (error, "finetune: base: ");
      return FALSE;
    }
  if (!ebb_finetune_options_have_adapter (self))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "finetune: base %s: quantized weights have no gradient: it needs lora-rank, lora, or adapter",
                     self->base);
  return TRUE;
}

static gboolean
check_held_out (EbbFinetuneOptions *self,
                const char *out,
                GError **error)
{
  const EbbTrainerSettings *settings = ebb_trainer_options_get_settings (EBB_TRAINER_OPTIONS (self));

  if (self->held_out == NULL)
    return TRUE;
  if (settings->evaluate != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "finetune: held-out %s and evaluate: set one of both",
                     self->held_out);
  if (out != NULL && settings->save_best != NULL)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "finetune: save-best %s and held-out %s: out, %s, gets the best weights: leave save-best out",
                     settings->save_best, self->held_out, out);
  return TRUE;
}

gboolean
ebb_finetune_options_check (EbbFinetuneOptions *self,
                            const char *out,
                            GError **error)
{
  const EbbTrainerSettings *settings = ebb_trainer_options_get_settings (EBB_TRAINER_OPTIONS (self));

  if (!isfinite (self->learning_rate))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "finetune: learning-rate %g: it must be finite",
                     self->learning_rate);
  return ebb_trainer_settings_check (settings, NULL, error) && check_adapter (self, error)
         && check_held_out (self, out, error);
}

/* -- object -------------------------------------------------------------------------------------------------------- */

static void
ebb_finetune_options_finalize (GObject *object)
{
  EbbFinetuneOptions *self = EBB_FINETUNE_OPTIONS (object);

  g_clear_object (&self->lora);
  g_free (self->adapter);
  g_free (self->base);
  g_free (self->held_out);
  G_OBJECT_CLASS (ebb_finetune_options_parent_class)->finalize (object);
}

static void
install_adapter (GObjectClass *klass,
                 GParamFlags flags)
{
  /**
   * EbbFinetuneOptions:lora-rank:
   *
   * The rank of a new adapter (LoRA), which is trained over all linear layers but `lm_head` in place of the weights.
   * 0: there is none.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, lora_rank),
                                   g_param_spec_int ("lora-rank", NULL, NULL, 0, G_MAXINT, 0, flags));
  /**
   * EbbFinetuneOptions:lora:
   *
   * A new adapter with settings of its own. %NULL: there is none.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, lora),
                                   g_param_spec_object ("lora", NULL, NULL, EBB_TYPE_LORA_OPTIONS, flags));
  /**
   * EbbFinetuneOptions:adapter: (type filename)
   *
   * The folder of an adapter that is trained further, as ebb_lora_save() or PEFT wrote it. %NULL: there is none.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, adapter),
                                   g_param_spec_string ("adapter", NULL, NULL, NULL, flags));
  /**
   * EbbFinetuneOptions:base:
   *
   * How linear layers below an adapter hold their weights: `int8` or `nf4`, quantized as they are read. %NULL: as the
   * folder has them.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, base),
                                   g_param_spec_string ("base", NULL, NULL, NULL, flags));
}

static void
install_training (GObjectClass *klass,
                  GParamFlags flags)
{
  /**
   * EbbFinetuneOptions:learning-rate:
   *
   * The learning rate of AdamW. 0: 2e-4 for an adapter, else 1e-5.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, learning_rate),
                                   g_param_spec_double ("learning-rate", NULL, NULL, 0, G_MAXDOUBLE, 0, flags));
  /**
   * EbbFinetuneOptions:held-out: (type filename)
   *
   * Data that the model is not trained on: a file, or a share of the data, such as "0.05". What is saved then has the
   * weights with the least loss on it. %NULL: there is none.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, held_out),
                                   g_param_spec_string ("held-out", NULL, NULL, NULL, flags));
  /**
   * EbbFinetuneOptions:seed:
   *
   * The seed of all random numbers: the adapter's first values, the order of the rows, dropout.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, seed),
                                   g_param_spec_uint64 ("seed", NULL, NULL, 0, G_MAXUINT64, 1, flags));
  /**
   * EbbFinetuneOptions:device:
   *
   * The device to train on. %NULL: the default device.
   */
  g_object_class_install_property (klass, offsetof (EbbFinetuneOptions, device),
                                   g_param_spec_boxed ("device", NULL, NULL, EBB_TYPE_DEVICE, flags));
}

static void
ebb_finetune_options_class_init (EbbFinetuneOptionsClass *klass)
{
  const GParamFlags flags = G_PARAM_READWRITE | G_PARAM_CONSTRUCT | G_PARAM_STATIC_STRINGS;
  GObjectClass *object_class = G_OBJECT_CLASS (klass);

  object_class->get_property = ebb_property_get_field;
  object_class->set_property = ebb_property_set_field;
  object_class->finalize = ebb_finetune_options_finalize;
  install_adapter (object_class, flags);
  install_training (object_class, flags);
}

static void
ebb_finetune_options_init (EbbFinetuneOptions *self)
{
}
