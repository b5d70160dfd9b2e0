/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"
#include "wrap/checkpoint/wrapper.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpointing_configure (GObject *mpu,
                                      const char *json,
                                      EbbArgs *overrides,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpointing_is_configured (void);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_checkpointing_get_config (void);

EBB_AVAILABLE_IN_ALL
EbbCheckpointOptions *ebb_checkpointing_get_options (void);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_checkpointing_checkpoint (EbbCheckpointFunc func,
                                       gpointer user_data,
                                       GDestroyNotify destroy,
                                       EbbArgs *args,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_checkpointing_reset (void);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_checkpointing_get_profile (void);

G_END_DECLS
