/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_init_process_group (const char *backend,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbProcessGroup *ebb_process_group_get_default (void);

EBB_AVAILABLE_IN_ALL
void ebb_destroy_process_group (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_seed_rank (guint64 seed,
                        EbbProcessGroup *group,
                        GError **error);

G_END_DECLS
