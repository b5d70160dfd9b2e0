/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_apply_libai_config (EbbModule *model,
                                 const char *json,
                                 GError **error);

G_END_DECLS
