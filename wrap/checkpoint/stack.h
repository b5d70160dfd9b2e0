/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "wrap/checkpoint/options.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_wrap_uniform (EbbModule *stack,
                                      guint n_layers_per_chunk,
                                      EbbCheckpointOptions *options,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_checkpoint_wrap_block (EbbModule *stack,
                                    guint n_layers,
                                    EbbCheckpointOptions *options,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_checkpoint_sequential (EbbModule *sequential,
                                      guint n_segments,
                                      EbbTensor *input,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_checkpoint_sequential_full (EbbModule *sequential,
                                         guint n_segments,
                                         EbbArgs *args,
                                         EbbCheckpointOptions *options,
                                         GError **error);

G_END_DECLS
