/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/checkpoint/stack.h"
#include "wrap/checkpoint/target-private.h"

G_BEGIN_DECLS

gboolean ebb_checkpoint_stack_is_wrapped (EbbModule *stack);
/* Takes the chunks off; FALSE: there are none. */
gboolean ebb_checkpoint_stack_unwrap (EbbModule *stack);
/* The chunks in order: of EbbCheckpointTarget, NULL for one that was not called yet. NULL: @module has none. */
GPtrArray *ebb_checkpoint_stack_get_segments (EbbModule *module);

G_END_DECLS
