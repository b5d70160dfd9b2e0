/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

G_BEGIN_DECLS

/* The transformer blocks of a model, for those that checkpoint all of them by a configuration. */

/* How many there are. 0 with an error if there is none, and if one of them, or what they stand in, is checkpointed
 * already. */
guint ebb_model_blocks_count (EbbModule *model,
                              GError **error);
/* The stack that all blocks stand in, as the child "h" of a Gpt; not owned. NULL with an error if there is no such. */
EbbModule *ebb_model_blocks_get_stack (EbbModule *model,
                                       GError **error);

G_END_DECLS
