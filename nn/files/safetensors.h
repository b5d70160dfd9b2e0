/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_load_safetensors (const char *path,
                               GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_load_safetensors_full (const char *path,
                                    EbbArgs **metadata,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_save_safetensors (const char *path,
                               EbbArgs *tensors,
                               EbbArgs *metadata,
                               GError **error);

G_END_DECLS
