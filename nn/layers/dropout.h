/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_DROPOUT (ebb_dropout_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbDropout, ebb_dropout, EBB, DROPOUT, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_dropout_new (double p,
                            GError **error);

G_END_DECLS
