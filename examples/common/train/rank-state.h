/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/train/trainer.h"

/* --resume and --save of a model that is divided among ranks. All except the first are collective. */

G_BEGIN_DECLS

/* Random numbers of dropout: each model has its own, and each tensor rank its own for divided layers. */
gboolean rank_state_seed (Trainer *self,
                          GError **error);
gboolean rank_state_save (Trainer *self,
                          GError **error);
gboolean rank_state_save_weights (Trainer *self,
                                  const char *path,
                                  GError **error);

G_END_DECLS
