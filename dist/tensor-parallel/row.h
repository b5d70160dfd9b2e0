/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/group/process-group.h"
#include "nn/layers/linear.h"

G_BEGIN_DECLS

#define EBB_TYPE_ROW_PARALLEL_LINEAR (ebb_row_parallel_linear_get_type ())

/**
 * EbbRowParallelLinear:
 *
 * A linear layer of which each rank of a group computes a summand (Shoeybi et al., "Megatron-LM: Training Multi-Billion
 * Parameter Language Models Using Model Parallelism", 2019, section 3): with W cut along in-features, the sum over the
 * ranks of x_r W_r^T, and b. x_r `[..., in-features / ranks]` is this rank's shard of the input, as an
 * #EbbColumnParallelLinear returns it; without #EbbRowParallelLinear:input-is-parallel x is the full input, which all
 * ranks have, and is sharded here. The result `[..., out-features]` is the same on all ranks. Where in-features can't
 * be divided evenly, the first ranks have one more.
 *
 * In a sequence-sharded model (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
 * Models", 2022, section 4.2.2) the sum is sharded over the ranks: `[B, T / ranks, out-features]`.
 *
 * The parameters are those of #EbbLinear: this rank has its shard of the weight, and the full bias; in-features and
 * out-features are those of the full layer.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbRowParallelLinear, ebb_row_parallel_linear, EBB, ROW_PARALLEL_LINEAR, EbbLinear)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_row_parallel_linear_new (int in_features,
                                        int out_features,
                                        gboolean bias,
                                        gboolean input_is_parallel,
                                        EbbProcessGroup *group,
                                        GError **error);

G_END_DECLS
