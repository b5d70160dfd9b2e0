/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/models/gpt-config.h"
#include "nn/module.h"
#include "tensor/random.h"

G_BEGIN_DECLS

#define EBB_TYPE_GPT (ebb_gpt_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbGpt, ebb_gpt, EBB, GPT, EbbModule)

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_gpt_new (EbbGptConfig *config,
                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_get_config (EbbGpt *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_set_dropout (EbbGpt *self,
                              double dropout,
                              double attention_dropout,
                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_set_residual_dtype (EbbGpt *self,
                                     EbbDType dtype,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
gint64 ebb_gpt_get_max_positions (EbbGpt *self);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_gpt_loss (EbbGpt *self,
                         EbbTensor *tokens,
                         EbbTensor *targets,
                         GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_load_gpt2 (EbbGpt *self,
                            EbbArgs *state,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_gpt_to_gpt2_state (EbbGpt *self,
                                GError **error);

G_END_DECLS
