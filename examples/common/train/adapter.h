/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* --lora, --adapter and --merge: adapters of the model. */

G_BEGIN_DECLS

/* Gives the model the adapter that the options ask for, if they do. */
gboolean adapter_add (EbbModule *model,
                      const Options *options,
                      GError **error);
/* What --resume saves: of an adapter's training not the model below. */
EbbTrainingState *adapter_make_state (const Trainer *trainer,
                                      EbbOptimizer *optimizer);
/* Writes the adapter to a folder. Collective. */
gboolean adapter_save (Trainer *trainer,
                       const char *path,
                       GError **error);
/* "an adapter of rank 16: 1234 of 5678 parameters are trained"; NULL: there is no adapter. */
char *adapter_describe (const Trainer *trainer);
/* --merge: writes the model with the product of an adapter in its weights. */
gboolean adapter_merge (const Options *options,
                        GError **error);

G_END_DECLS
