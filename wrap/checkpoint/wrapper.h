/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "wrap/checkpoint/options.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_checkpoint_wrapper (EbbModule *module,
                                   EbbCheckpointOptions *options,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_unwrap (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_is_wrapped (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_wrap_each (EbbModule *root,
                                   GType type,
                                   EbbCheckpointOptions *options,
                                   GError **error);

/**
 * EbbCheckpointPickFunc:
 * @module: a module below the root
 * @name: its path from the root, as "h.3.mlp"
 * @user_data: user data
 *
 * Returns: %TRUE to wrap @module
 */
typedef gboolean (*EbbCheckpointPickFunc) (EbbModule *module,
                                           const char *name,
                                           gpointer user_data);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_wrap_if (EbbModule *root,
                                 EbbCheckpointPickFunc pick,
                                 gpointer user_data,
                                 EbbCheckpointOptions *options,
                                 GError **error);

/**
 * EbbCheckpointFunc:
 * @args: (transfer none): the arguments
 * @user_data: user data
 * @error: return location for an error
 *
 * A computation that can be done twice.
 *
 * Returns: (transfer full) (nullable): its result, %NULL with @error set
 */
typedef EbbArgs *(*EbbCheckpointFunc) (EbbArgs *args,
                                       gpointer user_data,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_checkpoint (EbbCheckpointFunc func,
                         gpointer user_data,
                         GDestroyNotify destroy,
                         EbbArgs *args,
                         EbbCheckpointOptions *options,
                         GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_push_checkpointing_disabled (void);

EBB_AVAILABLE_IN_ALL
void ebb_pop_checkpointing_disabled (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_checkpointing (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_is_recomputing (void);

EBB_AVAILABLE_IN_ALL
guint64 ebb_checkpoint_get_n_recomputes (EbbModule *module);

G_END_DECLS
