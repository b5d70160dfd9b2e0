/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/finetune-options.h"
#include "train/trainer-options-private.h"

/* The settings of a finetuning as ebb_finetune () reads them. */

G_BEGIN_DECLS

struct _EbbFinetuneOptions
{
  EbbTrainerOptions parent_instance;

  int lora_rank; /* 0: no new adapter by its rank */
  EbbLoraOptions *lora;
  char *adapter, *base, *held_out;
  double learning_rate; /* 0: ebb_finetune () chooses */
  guint64 seed;
  EbbDevice *device; /* NULL: the default device */
};

/* Whether an adapter is trained, and not the weights of the folder. */
gboolean ebb_finetune_options_have_adapter (EbbFinetuneOptions *self);
/* Fails if two settings contradict each other. @out: where ebb_finetune () saves; may be NULL. */
gboolean ebb_finetune_options_check (EbbFinetuneOptions *self,
                                     const char *out,
                                     GError **error);

G_END_DECLS
