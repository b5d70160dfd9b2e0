/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"

G_BEGIN_DECLS

/**
 * EbbRankFunc:
 * @group: the group of all ranks
 * @user_data: user data
 * @error: return location for an error
 *
 * The function of one rank, on a thread of its own.
 *
 * Returns: %FALSE with @error set if it failed
 */
typedef gboolean (*EbbRankFunc) (EbbProcessGroup *group,
                                 gpointer user_data,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_run_ranks (guint n_ranks,
                        EbbRankFunc func,
                        gpointer user_data,
                        GError **error);

G_END_DECLS
