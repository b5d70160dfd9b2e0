/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "wrap/shard/options.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_fully_shard (EbbModule *module,
                            EbbProcessGroup *group,
                            EbbFullyShardOptions *options,
                            GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_unwrap (EbbModule *module,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_is_wrapped (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_wrap_each (EbbModule *root,
                                    GType type,
                                    EbbProcessGroup *group,
                                    EbbFullyShardOptions *options,
                                    GError **error);

/**
 * EbbFullyShardPickFunc:
 * @module: a module below the root
 * @name: its path from the root, as "h.3"
 * @user_data: user data
 *
 * Returns: %TRUE to shard @module by itself
 */
typedef gboolean (*EbbFullyShardPickFunc) (EbbModule *module,
                                           const char *name,
                                           gpointer user_data);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_wrap_if (EbbModule *root,
                                  EbbFullyShardPickFunc pick,
                                  gpointer user_data,
                                  EbbProcessGroup *group,
                                  EbbFullyShardOptions *options,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_auto_wrap_types (EbbModule *root,
                                          guint64 min_parameters,
                                          const GType *force_leaf,
                                          guint n_force_leaf,
                                          const GType *exclude,
                                          guint n_exclude,
                                          EbbProcessGroup *group,
                                          EbbFullyShardOptions *options,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_fully_shard_auto_wrap (EbbModule *root,
                                    guint64 min_parameters,
                                    EbbProcessGroup *group,
                                    EbbFullyShardOptions *options,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_summon_full_params (EbbModule *module,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_release_full_params (EbbModule *module,
                                  gboolean writeback,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_shard_report (EbbModule *module);

EBB_AVAILABLE_IN_ALL
char *ebb_shard_report_json (EbbModule *module);

G_END_DECLS
