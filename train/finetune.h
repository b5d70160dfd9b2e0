/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "train/finetune-options.h"
#include "train/trainer.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
EbbTrainer *ebb_finetune_new (const char *model,
                              const char *const *data,
                              const char *out,
                              EbbFinetuneOptions *options,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbTrainer *ebb_finetune (const char *model,
                          const char *const *data,
                          const char *out,
                          EbbFinetuneOptions *options,
                          GCancellable *cancellable,
                          GError **error);

G_END_DECLS
