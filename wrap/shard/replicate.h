/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/module.h"
#include "wrap/shard/replicate-options.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_replicate (EbbModule *module,
                          EbbProcessGroup *group,
                          EbbReplicateOptions *options,
                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_replicate_unwrap (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_replicate_is_wrapped (EbbModule *module);

EBB_AVAILABLE_IN_ALL
guint ebb_replicate_get_n_buckets (EbbModule *module);

EBB_AVAILABLE_IN_ALL
char *ebb_replicate_report (EbbModule *module);

G_END_DECLS
