/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/stack-private.h"
#include "wrap/checkpoint/stack.h"
#include "wrap/checkpoint/target-private.h"

G_BEGIN_DECLS

static inline gboolean
ebb_checkpoint_stack_is_wrapped (EbbModule *stack)
{
  return ebb_stack_get_interceptor_data (stack) != NULL;
}

/* Takes the chunks off; FALSE: there are none. */
static inline gboolean
ebb_checkpoint_stack_unwrap (EbbModule *stack)
{
  if (!ebb_checkpoint_stack_is_wrapped (stack))
    return FALSE;
  ebb_stack_set_interceptor (stack, NULL, NULL, NULL);
  return TRUE;
}

/* The chunks in order: of EbbCheckpointTarget, NULL for one that was not called yet. NULL: @module has none. */
GPtrArray *ebb_checkpoint_stack_get_segments (EbbModule *module);

G_END_DECLS
