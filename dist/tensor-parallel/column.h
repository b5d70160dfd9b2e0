/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/layers/linear.h"

G_BEGIN_DECLS

#define EBB_TYPE_COLUMN_PARALLEL_LINEAR (ebb_column_parallel_linear_get_type ())

/**
 * EbbColumnParallelLinear:
 *
 * A linear layer of which each rank of a group computes a shard of the outputs (Shoeybi et al., "Megatron-LM: Training
 * Multi-Billion Parameter Language Models Using Model Parallelism", 2019, section 3): with W and b cut along
 * out-features, x W_r^T + b_r, for x `[..., in-features]` that all ranks have. The gradient of x is summed over the
 * ranks. The result `[..., out-features / ranks]` is what an #EbbRowParallelLinear takes, or is gathered with
 * #EbbColumnParallelLinear:gather-output. Where out-features can't be divided evenly, the first ranks have one more.
 *
 * In a sequence-sharded model (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
 * Models", 2022, section 4.2.2), x is this rank's `[B, T / ranks, in-features]`, which is gathered first; the gradient
 * is then summed and sharded.
 *
 * The parameters are those of #EbbLinear, of which this rank has its shard; in-features and out-features are those of
 * the full layer.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbColumnParallelLinear, ebb_column_parallel_linear, EBB, COLUMN_PARALLEL_LINEAR, EbbLinear)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_column_parallel_linear_new (int in_features,
                                           int out_features,
                                           gboolean bias,
                                           gboolean gather_output,
                                           EbbProcessGroup *group,
                                           GError **error);

G_END_DECLS
