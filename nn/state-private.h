/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

G_BEGIN_DECLS

/* Loads @state as ebb_module_load_state_dict () does, but into @targets, tensors by name that share the memory of the
 * module's: for a layout of names and shapes other than the module's own. NULL: the module's own. */
gboolean ebb_module_load_state_into (EbbModule *self,
                                     EbbArgs *targets,
                                     EbbArgs *state,
                                     gboolean strict,
                                     GError **error);

G_END_DECLS
