/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_KEY_VALUE_CACHE (ebb_key_value_cache_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbKeyValueCache, ebb_key_value_cache, EBB, KEY_VALUE_CACHE, GObject)

EBB_AVAILABLE_IN_ALL
EbbKeyValueCache *ebb_key_value_cache_new (gint64 capacity);

EBB_AVAILABLE_IN_ALL
gint64 ebb_key_value_cache_get_capacity (EbbKeyValueCache *self);

EBB_AVAILABLE_IN_ALL
gint64 ebb_key_value_cache_get_length (EbbKeyValueCache *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_key_value_cache_get_n_bytes (EbbKeyValueCache *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_key_value_cache_append (EbbKeyValueCache *self,
                                     EbbModule *layer,
                                     EbbTensor *keys,
                                     EbbTensor *values,
                                     EbbTensor **all_keys,
                                     EbbTensor **all_values,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_key_value_cache_advance (EbbKeyValueCache *self,
                                  gint64 n_tokens);

EBB_AVAILABLE_IN_ALL
gboolean ebb_key_value_cache_keep_rows (EbbKeyValueCache *self,
                                        const gint64 *rows,
                                        gsize n_rows,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_key_value_cache_truncate (EbbKeyValueCache *self,
                                   gint64 length);

EBB_AVAILABLE_IN_ALL
void ebb_key_value_cache_reset (EbbKeyValueCache *self);

G_END_DECLS
