/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/device.h"
#include "train/trainer-options.h"
#include "wrap/lora/options.h"

G_BEGIN_DECLS

#define EBB_TYPE_FINETUNE_OPTIONS (ebb_finetune_options_get_type ())

/**
 * EbbFinetuneOptions:
 *
 * The settings with which ebb_finetune() opens and trains the model of a folder. Where the settings of
 * #EbbTrainerOptions have their defaults, ebb_finetune() chooses: it says what.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbFinetuneOptions, ebb_finetune_options, EBB, FINETUNE_OPTIONS, EbbTrainerOptions)

EBB_AVAILABLE_IN_ALL
EbbFinetuneOptions *ebb_finetune_options_new (void);

G_END_DECLS
