/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/adam.h"
#include "nn/optim/optimizer-private.h"

G_BEGIN_DECLS

/* Differs from Adam's in the decay alone. */
extern const EbbOptimizerKind ebb_adamw_kind;

G_END_DECLS
