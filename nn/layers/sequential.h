/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_SEQUENTIAL (ebb_sequential_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbSequential, ebb_sequential, EBB, SEQUENTIAL, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_sequential_new (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_sequential_append (EbbSequential *self,
                                EbbModule *module,
                                GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_sequential_get_length (EbbSequential *self);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_sequential_get (EbbSequential *self,
                               guint index);

G_END_DECLS
