/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_LAYER_NORM (ebb_layer_norm_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbLayerNorm, ebb_layer_norm, EBB, LAYER_NORM, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_layer_norm_new (int width,
                               double eps,
                               gboolean bias,
                               GError **error);

#define EBB_TYPE_RMS_NORM (ebb_rms_norm_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbRmsNorm, ebb_rms_norm, EBB, RMS_NORM, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_rms_norm_new (int width,
                             double eps,
                             GError **error);

G_END_DECLS
