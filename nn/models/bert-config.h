/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

#define EBB_TYPE_BERT_CONFIG (ebb_bert_config_get_type ())

/**
 * EbbBertConfig:
 *
 * The sizes and choices that make a BERT.
 */
typedef struct _EbbBertConfig EbbBertConfig;

EBB_AVAILABLE_IN_ALL
GType ebb_bert_config_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbBertConfig *ebb_bert_config_new (void);

EBB_AVAILABLE_IN_ALL
EbbBertConfig *ebb_bert_config_new_preset (const char *name);

EBB_AVAILABLE_IN_ALL
const char *const *ebb_bert_config_get_preset_names (void);

EBB_AVAILABLE_IN_ALL
EbbBertConfig *ebb_bert_config_copy (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_free (EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_bert_config_check (const EbbBertConfig *self,
                                GError **error);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_vocab (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_vocab (EbbBertConfig *self,
                                int vocab);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_context (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_context (EbbBertConfig *self,
                                  int context);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_segments (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_segments (EbbBertConfig *self,
                                   int segments);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_width (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_width (EbbBertConfig *self,
                                int width);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_heads (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_heads (EbbBertConfig *self,
                                int heads);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_layers (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_layers (EbbBertConfig *self,
                                 int layers);

EBB_AVAILABLE_IN_ALL
int ebb_bert_config_get_hidden (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_hidden (EbbBertConfig *self,
                                 int hidden);

EBB_AVAILABLE_IN_ALL
double ebb_bert_config_get_dropout (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_dropout (EbbBertConfig *self,
                                  double dropout);

EBB_AVAILABLE_IN_ALL
double ebb_bert_config_get_norm_eps (const EbbBertConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_bert_config_set_norm_eps (EbbBertConfig *self,
                                   double norm_eps);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbBertConfig, ebb_bert_config_free)

G_END_DECLS
