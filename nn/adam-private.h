/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/adam.h"
#include "nn/optimizer-private.h"

G_BEGIN_DECLS

/* Adam's, but for the decay. */
extern const EbbOptimizerKind ebb_adamw_kind;

G_END_DECLS
