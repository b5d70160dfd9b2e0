/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_LINEAR (ebb_linear_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbLinear, ebb_linear, EBB, LINEAR, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_linear_new (int in_features,
                           int out_features,
                           gboolean bias,
                           GError **error);

G_END_DECLS
