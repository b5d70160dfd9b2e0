/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "tensor/ops/activation.h"

G_BEGIN_DECLS

#define EBB_TYPE_MLP (ebb_mlp_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMlp, ebb_mlp, EBB, MLP, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_mlp_new (int width,
                        int hidden,
                        EbbActivation activation,
                        GError **error);

G_END_DECLS
