/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/layers/stack-private.h"
#include "wrap/checkpoint/target-private.h"

/* Several modules that are called one after another and checkpointed together: only what the first is given is kept. */

G_BEGIN_DECLS

/* @first is the number of the first of @modules in @stack, for messages. */
EbbCheckpointTarget *ebb_segment_new (EbbModule *stack,
                                      guint first,
                                      EbbModule *const *modules,
                                      guint n_modules,
                                      EbbStackFlow flow,
                                      EbbCheckpointOptions *options);
/* Whether it was made for these modules, called in this way. */
gboolean ebb_segment_is_for (EbbCheckpointTarget *segment,
                             EbbModule *const *modules,
                             guint n_modules,
                             EbbStackFlow flow);
EbbArgs *ebb_segment_call (EbbCheckpointTarget *segment,
                           EbbArgs *args,
                           GError **error);

G_END_DECLS
