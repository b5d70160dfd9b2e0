/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/models/bert-config.h"
#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_BERT (ebb_bert_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbBert, ebb_bert, EBB, BERT, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_bert_new (EbbBertConfig *config,
                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbBertConfig *ebb_bert_get_config (EbbBert *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_bert_set_dropout (EbbBert *self,
                               double dropout,
                               double attention_dropout,
                               GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_bert_loss (EbbBert *self,
                          EbbTensor *tokens,
                          EbbTensor *segments,
                          EbbTensor *mask,
                          EbbTensor *targets,
                          GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_bert_load_published (EbbBert *self,
                                  EbbArgs *state,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_bert_to_published_state (EbbBert *self,
                                      GError **error);

G_END_DECLS
