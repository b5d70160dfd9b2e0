/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/macros.h"

#include <glib-object.h>

G_BEGIN_DECLS

#define EBB_TYPE_LORA_OPTIONS (ebb_lora_options_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbLoraOptions, ebb_lora_options, EBB, LORA_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbLoraOptions *ebb_lora_options_new (void);

G_END_DECLS
