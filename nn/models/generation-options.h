/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/tokenizer.h"
#include "nn/module.h"
#include "tensor/random.h"

G_BEGIN_DECLS

#define EBB_TYPE_GENERATION_OPTIONS (ebb_generation_options_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbGenerationOptions, ebb_generation_options, EBB, GENERATION_OPTIONS, GObject)

EBB_AVAILABLE_IN_ALL
EbbGenerationOptions *ebb_generation_options_new (void);

EBB_AVAILABLE_IN_ALL
EbbGenerationOptions *ebb_generation_options_open (const char *folder,
                                                   GError **error);

EBB_AVAILABLE_IN_ALL
EbbGenerationOptions *ebb_generation_options_new_for_model (EbbModule *model,
                                                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbGenerationOptions *ebb_generation_options_copy (EbbGenerationOptions *self);

EBB_AVAILABLE_IN_ALL
void ebb_generation_options_set_stop_tokens (EbbGenerationOptions *self,
                                             const gint64 *tokens,
                                             gsize n_tokens);

EBB_AVAILABLE_IN_ALL
void ebb_generation_options_add_stop_token (EbbGenerationOptions *self,
                                            gint64 token);

EBB_AVAILABLE_IN_ALL
void ebb_generation_options_set_forced_eos_tokens (EbbGenerationOptions *self,
                                                   const gint64 *tokens,
                                                   gsize n_tokens);
EBB_AVAILABLE_IN_ALL
const gint64 *ebb_generation_options_get_forced_eos_tokens (EbbGenerationOptions *self,
                                                            gsize *n_tokens);
EBB_AVAILABLE_IN_ALL
void ebb_generation_options_set_suppress_tokens (EbbGenerationOptions *self,
                                                 const gint64 *tokens,
                                                 gsize n_tokens);
EBB_AVAILABLE_IN_ALL
const gint64 *ebb_generation_options_get_suppress_tokens (EbbGenerationOptions *self,
                                                          gsize *n_tokens);
EBB_AVAILABLE_IN_ALL
void ebb_generation_options_set_begin_suppress_tokens (EbbGenerationOptions *self,
                                                       const gint64 *tokens,
                                                       gsize n_tokens);
EBB_AVAILABLE_IN_ALL
const gint64 *ebb_generation_options_get_begin_suppress_tokens (EbbGenerationOptions *self,
                                                                gsize *n_tokens);
EBB_AVAILABLE_IN_ALL
const gint64 *ebb_generation_options_get_stop_tokens (EbbGenerationOptions *self,
                                                      gsize *n_tokens);

EBB_AVAILABLE_IN_ALL
gboolean ebb_generation_options_check (EbbGenerationOptions *self,
                                       GError **error);

G_END_DECLS
