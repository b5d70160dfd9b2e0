/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "nn/optim/optimizer.h"
#include "nn/state/training-state.h"

G_BEGIN_DECLS

/* -- full, in memory */

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_get_full_state_dict (EbbModule *module,
                                  gboolean rank0_only,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_load_full_state_dict (EbbModule *module,
                                   EbbArgs *state,
                                   gboolean broadcast,
                                   gboolean strict,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_get_full_optimizer_state (EbbOptimizer *optimizer,
                                       gboolean rank0_only,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_load_full_optimizer_state (EbbOptimizer *optimizer,
                                        EbbArgs *state,
                                        gboolean broadcast,
                                        GError **error);

/* -- sharded, on disk */

EBB_AVAILABLE_IN_ALL
gboolean ebb_save_sharded_state (EbbModule *module,
                                 EbbOptimizer *optimizer,
                                 const char *folder,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_load_sharded_state (EbbModule *module,
                                 EbbOptimizer *optimizer,
                                 const char *folder,
                                 GError **error);

/* -- a training, on one rank or on all together */

EBB_AVAILABLE_IN_ALL
gboolean ebb_training_state_save (EbbTrainingState *self,
                                  const char *folder,
                                  gint64 step,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_training_state_save_sharded (EbbTrainingState *self,
                                          const char *folder,
                                          gint64 step,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_training_state_load (EbbTrainingState *self,
                                  const char *folder,
                                  gint64 *step,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_training_state_load_sharded (EbbTrainingState *self,
                                          const char *folder,
                                          gint64 *step,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_training_state_read_config (const char *folder,
                                      GError **error);

G_END_DECLS
