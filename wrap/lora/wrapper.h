/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "wrap/lora/options.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_lora_wrap (EbbModule *model,
                          EbbLoraOptions *options,
                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_unwrap (EbbModule *model,
                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_is_wrapped (EbbModule *model);

EBB_AVAILABLE_IN_ALL
char **ebb_lora_get_adapters (EbbModule *model);

EBB_AVAILABLE_IN_ALL
char *ebb_lora_get_adapter (EbbModule *model);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_set_adapter (EbbModule *model,
                               const char *adapter,
                               GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_merge (EbbModule *model,
                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_unmerge (EbbModule *model,
                           GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_is_merged (EbbModule *model);

EBB_AVAILABLE_IN_ALL
char *ebb_lora_make_config (EbbModule *model,
                            const char *adapter,
                            GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_save (EbbModule *model,
                        const char *folder,
                        const char *adapter,
                        GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_lora_check_save (EbbModule *model,
                              const char *folder,
                              const char *adapter,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_lora_load (EbbModule *model,
                          const char *folder,
                          const char *adapter,
                          GError **error);

G_END_DECLS
