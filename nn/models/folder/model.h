/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/data/tokenizer.h"
#include "nn/module.h"
#include "tensor/quantization.h"

G_BEGIN_DECLS

/**
 * EBB_MODEL_KEEP_DTYPE:
 *
 * In place of an #EbbDType: that of the files when a model is opened, that of the parameters when it is saved.
 */
#define EBB_MODEL_KEEP_DTYPE (-1)

/**
 * EBB_MODEL_Q8_0:
 *
 * In place of an #EbbDType, when a model is saved as a GGUF file: blocks of 32 values with one scale, 34 bytes each.
 */
#define EBB_MODEL_Q8_0 1000

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_model_open (const char *folder,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_model_open_full (const char *folder,
                                int dtype,
                                GError **error);

EBB_AVAILABLE_IN_ALL
EbbModule *ebb_model_open_quantized (const char *folder,
                                     int dtype,
                                     EbbQuantization quantization,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
const char *ebb_model_get_architecture (EbbModule *model);

EBB_AVAILABLE_IN_ALL
void ebb_model_set_tokenizer (EbbModule *model,
                              EbbTokenizer *tokenizer,
                              const char *folder);

EBB_AVAILABLE_IN_ALL
gboolean ebb_model_save (EbbModule *model,
                         const char *folder,
                         GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_model_make_config (EbbModule *model,
                             int dtype,
                             GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_model_check_config (EbbModule *model,
                                 int dtype,
                                 const char *config,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_model_save_full (EbbModule *model,
                              const char *folder,
                              int dtype,
                              guint64 max_file_size,
                              GError **error);

G_END_DECLS
