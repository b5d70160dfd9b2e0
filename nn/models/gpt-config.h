/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/args.h"
#include "tensor/error.h"
#include "tensor/ops/activation.h"

G_BEGIN_DECLS

#define EBB_TYPE_GPT_CONFIG (ebb_gpt_config_get_type ())

/**
 * EbbGptConfig:
 *
 * The sizes and choices that make a GPT.
 */
typedef struct _EbbGptConfig EbbGptConfig;

EBB_AVAILABLE_IN_ALL
GType ebb_gpt_config_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_new (void);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_new_preset (const char *name);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_new_from_gpt2 (EbbArgs *state,
                                            EbbArgs *metadata,
                                            const char *config_path,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_gpt_config_to_gpt2_metadata (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
const char *const *ebb_gpt_config_get_preset_names (void);

EBB_AVAILABLE_IN_ALL
EbbGptConfig *ebb_gpt_config_copy (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_free (EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_check (const EbbGptConfig *self,
                               GError **error);

EBB_AVAILABLE_IN_ALL
int ebb_gpt_config_get_vocab (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_vocab (EbbGptConfig *self,
                               int vocab);

EBB_AVAILABLE_IN_ALL
int ebb_gpt_config_get_context (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_context (EbbGptConfig *self,
                                 int context);

EBB_AVAILABLE_IN_ALL
int ebb_gpt_config_get_width (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_width (EbbGptConfig *self,
                               int width);

EBB_AVAILABLE_IN_ALL
int ebb_gpt_config_get_heads (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_heads (EbbGptConfig *self,
                               int heads);

EBB_AVAILABLE_IN_ALL
int ebb_gpt_config_get_layers (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_layers (EbbGptConfig *self,
                                int layers);

EBB_AVAILABLE_IN_ALL
double ebb_gpt_config_get_dropout (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_dropout (EbbGptConfig *self,
                                 double dropout);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_get_tied (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_tied (EbbGptConfig *self,
                              gboolean tied);

EBB_AVAILABLE_IN_ALL
EbbGeluKind ebb_gpt_config_get_gelu (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_gelu (EbbGptConfig *self,
                              EbbGeluKind gelu);

EBB_AVAILABLE_IN_ALL
double ebb_gpt_config_get_norm_eps (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_norm_eps (EbbGptConfig *self,
                                  double norm_eps);

EBB_AVAILABLE_IN_ALL
gboolean ebb_gpt_config_get_bias (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_bias (EbbGptConfig *self,
                              gboolean bias);

EBB_AVAILABLE_IN_ALL
EbbDType ebb_gpt_config_get_residual_dtype (const EbbGptConfig *self);

EBB_AVAILABLE_IN_ALL
void ebb_gpt_config_set_residual_dtype (EbbGptConfig *self,
                                        EbbDType residual_dtype);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbGptConfig, ebb_gpt_config_free)

G_END_DECLS
