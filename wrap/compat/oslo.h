/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/mesh.h"
#include "nn/module.h"
#include "wrap/checkpoint/options.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_initialize (EbbModule *model,
                           const char *json,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbMesh *ebb_initialize_get_mesh (EbbModule *model);

EBB_AVAILABLE_IN_ALL
EbbCheckpointOptions *ebb_initialize_get_options (EbbModule *model);

G_END_DECLS
