/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "tensor/autograd/saved-tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_offload_wrapper (EbbModule *module,
                                EbbSavedTensorHooks *store,
                                GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_offload_wrap_each (EbbModule *root,
                                GType type,
                                EbbSavedTensorHooks *store,
                                GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_offload_unwrap (EbbModule *module);

EBB_AVAILABLE_IN_ALL
gboolean ebb_offload_is_wrapped (EbbModule *module);

EBB_AVAILABLE_IN_ALL
EbbSavedTensorHooks *ebb_offload_get_store (EbbModule *module);

G_END_DECLS
