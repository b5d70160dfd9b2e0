/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#define EBB_INSIDE

#include "tensor/autograd.h"
#include "tensor/device.h"
#include "tensor/dlpack.h"
#include "tensor/dtype.h"
#include "tensor/error.h"
#include "tensor/macros.h"
#include "tensor/memory.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/creation.h"
#include "tensor/ops/in-place.h"
#include "tensor/ops/indexing.h"
#include "tensor/ops/loss.h"
#include "tensor/ops/normalization.h"
#include "tensor/ops/pointwise.h"
#include "tensor/ops/product.h"
#include "tensor/ops/reduction.h"
#include "tensor/ops/shape.h"
#include "tensor/random.h"
#include "tensor/saved-tensor.h"
#include "tensor/tensor.h"
#include "tensor/version.h"

#include "nn/activations.h"
#include "nn/args.h"
#include "nn/batch-norm1d.h"
#include "nn/dropout.h"
#include "nn/embedding.h"
#include "nn/gpt-config.h"
#include "nn/gpt.h"
#include "nn/layer-norm.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/module-list.h"
#include "nn/module.h"
#include "nn/multi-head-attention.h"
#include "nn/rms-norm.h"
#include "nn/sequential.h"
#include "nn/transformer-block.h"

#include "wrap/checkpoint-options.h"
#include "wrap/checkpoint.h"

#undef EBB_INSIDE
