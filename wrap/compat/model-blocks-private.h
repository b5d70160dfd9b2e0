/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

G_BEGIN_DECLS

/* The transformer blocks of a model, for configurations that checkpoint all of them. */

/* How many there are. 0 with an error if there is none, or if one of them, or a stack of them, is checkpointed
 * already. */
guint ebb_model_blocks_count (EbbModule *model,
                              GError **error);
/* The stack that holds all blocks, as the child "h" of a Gpt; not owned. NULL with an error if there is none. */
EbbModule *ebb_model_blocks_get_stack (EbbModule *model,
                                       GError **error);

G_END_DECLS
