/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "wrap/checkpoint-options.h"

G_BEGIN_DECLS

gboolean ebb_checkpoint_options_has_policy (EbbCheckpointOptions *self);
/* TRUE if the policy keeps the results of this op. */
gboolean ebb_checkpoint_options_keeps (EbbCheckpointOptions *self,
                                       const char *op,
                                       guint ordinal,
                                       guint64 n_bytes);

G_END_DECLS
