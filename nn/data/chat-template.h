/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/tokenizer.h"

G_BEGIN_DECLS

#define EBB_TYPE_CHAT_TEMPLATE (ebb_chat_template_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbChatTemplate, ebb_chat_template, EBB, CHAT_TEMPLATE, GObject)

EBB_AVAILABLE_IN_ALL
EbbChatTemplate *ebb_chat_template_open (const char *folder,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbChatTemplate *ebb_chat_template_new_from_text (const char *text,
                                                  const char *bos_token,
                                                  const char *eos_token,
                                                  GError **error);

EBB_AVAILABLE_IN_ALL
EbbChatTemplate *ebb_chat_template_new_for_tokenizer (EbbTokenizer *tokenizer,
                                                      GError **error);

EBB_AVAILABLE_IN_ALL
const char *ebb_chat_template_get_name (EbbChatTemplate *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_chat_template_has_thinking (EbbChatTemplate *self);

EBB_AVAILABLE_IN_ALL
const char *ebb_chat_template_get_end_of_turn (EbbChatTemplate *self);

EBB_AVAILABLE_IN_ALL
char *ebb_chat_template_render (EbbChatTemplate *self,
                                const char *const *roles,
                                const char *const *contents,
                                gboolean add_generation_prompt,
                                gsize **spans,
                                gsize *n_spans,
                                GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_chat_template_encode (EbbChatTemplate *self,
                                     EbbTokenizer *tokenizer,
                                     const char *const *roles,
                                     const char *const *contents,
                                     gboolean add_generation_prompt,
                                     EbbTensor **answers,
                                     GError **error);

G_END_DECLS
