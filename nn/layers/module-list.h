/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_MODULE_LIST (ebb_module_list_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbModuleList, ebb_module_list, EBB, MODULE_LIST, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_module_list_new (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_module_list_append (EbbModuleList *self,
                                 EbbModule *module,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_module_list_get_length (EbbModuleList *self);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_module_list_get (EbbModuleList *self,
                                guint index);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_module_list_call_in_turn (EbbModuleList *self,
                                       EbbArgs *args,
                                       GError **error);

G_END_DECLS
