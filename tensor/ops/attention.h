/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"
#include "tensor/random.h"

G_BEGIN_DECLS

#define EBB_TYPE_ATTENTION_FORM (ebb_attention_form_get_type ())

/**
 * EbbAttentionForm:
 * @causal: whether a query attends to no key after its own position
 * @first_query: the position of the first query among the keys: 0, or how many keys were there before, as in a cache
 * @window: how many keys a query attends to at most, its own and those just before it; 0 for no limit
 * @softcap: scores become softcap * tanh (score / softcap); 0 to leave them as they are
 * @scale: what scores are multiplied by; 0 or less for one over the square root of the width of a head
 * @dropout_p: the probability in [0, 1] with which a weight of attention is dropped; the others are divided by 1 - p
 *
 * The form of attention that ebb_attention() and ebb_self_attention_full() compute. A form of zeros is plain attention
 * of all queries to all keys.
 */
typedef struct
{
  gboolean causal;
  gint64 first_query;
  gint64 window;
  double softcap;
  double scale;
  double dropout_p;
} EbbAttentionForm;

EBB_AVAILABLE_IN_ALL
GType ebb_attention_form_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbAttentionForm *ebb_attention_form_new (void);

EBB_AVAILABLE_IN_ALL
EbbAttentionForm *ebb_attention_form_copy (const EbbAttentionForm *self);

EBB_AVAILABLE_IN_ALL
void ebb_attention_form_free (EbbAttentionForm *self);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_attention (EbbTensor *query,
                          EbbTensor *key,
                          EbbTensor *value,
                          EbbTensor *mask,
                          EbbTensor *starts,
                          const EbbAttentionForm *form,
                          EbbGenerator *generator,
                          GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_self_attention_full (EbbTensor *qkv,
                                    guint n_heads,
                                    EbbTensor *mask,
                                    EbbTensor *starts,
                                    const EbbAttentionForm *form,
                                    EbbGenerator *generator,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_scaled_dot_product_attention (EbbTensor *query,
                                             EbbTensor *key,
                                             EbbTensor *value,
                                             EbbTensor *mask,
                                             gboolean causal,
                                             double scale,
                                             double dropout_p,
                                             EbbGenerator *generator,
                                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_self_attention (EbbTensor *qkv,
                               guint n_heads,
                               EbbTensor *mask,
                               gboolean causal,
                               double scale,
                               double dropout_p,
                               EbbGenerator *generator,
                               GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbAttentionForm, ebb_attention_form_free)

G_END_DECLS
