/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "nn/optim/optimizer.h"
#include "nn/data/dataset.h"
#include "tensor/random.h"

G_BEGIN_DECLS

#define EBB_TYPE_TRAINING_STATE (ebb_training_state_get_type ())

/**
 * EbbTrainingState:
 *
 * All that a training needs to stop and go on later, bit for bit: model, optimizer, random numbers, place in the data.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbTrainingState, ebb_training_state, EBB, TRAINING_STATE, GObject)

EBB_AVAILABLE_IN_ALL
EbbTrainingState *ebb_training_state_new (EbbModule *module,
                                          EbbOptimizer *optimizer,
                                          EbbDataset *dataset);

EBB_AVAILABLE_IN_ALL
void ebb_training_state_add_generator (EbbTrainingState *self,
                                       const char *name,
                                       EbbGenerator *generator);

EBB_AVAILABLE_IN_ALL
gboolean ebb_training_state_mark (EbbTrainingState *self,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_training_state_rewind (EbbTrainingState *self,
                                    GError **error);

G_END_DECLS
