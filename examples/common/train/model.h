/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options/options.h"

/* The model that the options describe, and its files. */

G_BEGIN_DECLS

/* Whether the model's and the tokenizer's folders still exist that @saved names, the options of a resumed training.
 * @saved may be NULL. */
gboolean model_check_remembered (const Options *options,
                                 const char *saved,
                                 GError **error);

/* The source of the model: a configuration, or a folder that was opened. */
typedef struct
{
  EbbGptConfig *gpt;
  EbbBertConfig *bert; /* one of both */
  EbbModule *opened;   /* of --model, with the parameters' own dtype below an adapter, else in f32; it is given to the
                          first model_make () */
} ModelSource;

/* Finds the sizes that the options, the folder of --model, the file of --load, the state of --resume and the preset
 * give, in this order, and gives them to @options. @weights, @metadata and @saved may be NULL. */
gboolean model_find (Options *options,
                     EbbTokenizer *tokenizer,
                     EbbArgs *weights,
                     EbbArgs *metadata,
                     const char *saved,
                     ModelSource *source,
                     GError **error);
/* The model, on the CPU, with @weights if it is not NULL. */
EbbModule *model_make (const Options *options,
                       ModelSource *source,
                       EbbArgs *weights,
                       GError **error);
void model_source_clear (ModelSource *source);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (ModelSource, model_source_clear)
/* A model like @model that no rank shares, with the full weights of @state. */
EbbModule *model_make_full (EbbModule *model,
                            EbbArgs *state,
                            GError **error);

/* Whether parameters, gradients and optimizer state of each of @n_ranks and the activations that a step needs at least
 * fit in the device's memory. @opened: the model of a folder; may be NULL. */
gboolean model_check_memory (const Options *options,
                             EbbModule *opened,
                             EbbDevice *device,
                             guint n_ranks,
                             GError **error);
/* Whether the ranks of --tensor-parallel can share a model of these sizes. */
gboolean model_check_tensor_ranks (const Options *options,
                                   GError **error);
/* The mean loss of the targets that there are. @starts may be NULL. */
EbbTensor *model_loss (EbbModule *model,
                       EbbTensor *tokens,
                       EbbTensor *targets,
                       EbbTensor *starts,
                       GError **error);
/* Whether weights at @path are a model's folder, or a GGUF file, and not a file of weights alone. */
gboolean model_is_saved_whole (const Options *options,
                               const char *path);
/* The dtype of the weights in the saved folder: an EbbDType, or EBB_MODEL_KEEP_DTYPE. */
int model_get_saved_dtype (const Options *options);
/* As a file or as a folder, with --model of the dtype of its folder's weights. All ranks call it for a folder of a
 * model of --model that they share. */
gboolean model_save (EbbModule *model,
                     const Options *options,
                     const char *path,
                     GError **error);

G_END_DECLS
