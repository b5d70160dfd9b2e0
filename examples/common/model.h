/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "options.h"

/* The model that the options describe, and its files. */

G_BEGIN_DECLS

/* The byte tokenizer, or GPT-2's BPE from a folder. */
EbbTokenizer *model_make_tokenizer (const Options *options,
                                    GError **error);
/* The sizes that the options, the file of --load, the state of --resume and the preset give, in this order. @weights
 * and @saved may be NULL. */
EbbGptConfig *model_make_config (const Options *options,
                                 EbbTokenizer *tokenizer,
                                 EbbArgs *weights,
                                 EbbArgs *metadata,
                                 const char *saved,
                                 GError **error);
/* Whether parameters, gradients and optimizer state of each of @n_ranks and the activations that a step needs at least
 * fit in the device's memory. */
gboolean model_check_memory (const Options *options,
                             const EbbGptConfig *config,
                             EbbDevice *device,
                             guint n_ranks,
                             GError **error);
/* Whether the ranks of --tensor-parallel can share a model of these sizes. */
gboolean model_check_tensor_ranks (const Options *options,
                                   GError **error);
/* The mean loss of the targets that there are. @starts may be NULL. */
EbbTensor *model_loss (EbbGpt *model,
                       EbbTensor *tokens,
                       EbbTensor *targets,
                       EbbTensor *starts,
                       GError **error);
gboolean model_save (EbbGpt *model,
                     const char *path,
                     GError **error);

G_END_DECLS
