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
 * @vocab: the number of different tokens
 * @context: the most tokens in a row
 * @segments: the number of different segments that a token can belong to
 * @width: the size of a token's vector
 * @heads: the number of attention heads, which divides the width
 * @layers: the number of blocks
 * @hidden: the size inside the feed-forward parts, 0 for four times the width
 * @dropout: the probability of dropout on embeddings and on each part's result
 * @norm_eps: what the normalisations add to the variance
 * @attention_dropout: the probability with which a weight of attention is dropped; below 0 for @dropout
 *
 * The sizes and choices that make a BERT. Set the fields as you like; ebb_bert_config_check() and ebb_bert_new() report
 * values that make no model.
 */
typedef struct
{
  int vocab;
  int context;
  int segments;
  int width;
  int heads;
  int layers;
  int hidden;
  double dropout;
  double norm_eps;
  double attention_dropout;

  /*< private >*/
  char *unknown_preset;
} EbbBertConfig;

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

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbBertConfig, ebb_bert_config_free)

G_END_DECLS
