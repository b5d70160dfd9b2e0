/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "train/trainer.h"

/* What other parts of the library set of a trainer. */

G_BEGIN_DECLS

/* The dtype of saved folders, as of ebb_model_save_full (): a model that is trained in f32 keeps that of its folder. */
void ebb_trainer_set_save_dtype (EbbTrainer *self,
                                 int dtype);

G_END_DECLS
