/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/atomic-folder-private.h"
#include "nn/models/folder/model.h"
#include "nn/models/folder/weights-private.h"

/* The origin of a model that was opened from a folder, and the saving of models from parameters that a caller provides,
 * such as those of sharded ones; the tokenizer of a model and the other files of its folder. */

G_BEGIN_DECLS

/* -- open.c */

/* The folder or file that a model came from. */
typedef struct
{
  const EbbArchitecture *architecture;
  EbbJson *document; /* config.json */
  char *folder;      /* or GGUF file */
} EbbModelOrigin;

/* NULL: the model wasn't opened from a folder. */
const EbbModelOrigin *ebb_model_get_origin (EbbModule *model);

/* The architecture that @model is saved as. */
const EbbArchitecture *ebb_model_find_architecture (EbbModule *model,
                                                    GError **error);

/* -- tokenizer.c */

/* The tokenizer that a model is saved with. */
typedef struct
{
  char *folder;         /* or GGUF file; NULL: the tokens are bytes */
  gboolean is_gpt2;     /* it may have vocab.json and merges.txt alone */
  gint64 bos, eos, pad; /* its special tokens; -1: it has none */
} EbbModelTokenizer;

/* NULL: that of the folder that the model came from. */
const EbbModelTokenizer *ebb_model_get_tokenizer (EbbModule *model);
/* The tokens that config.json names are those of the tokenizer. */
void ebb_model_tokenizer_write_tokens (const EbbModelTokenizer *tokenizer,
                                       EbbJson *document);

/* -- other-files.c */

/* Says which files of a folder a save of @model replaces. */
EbbIsReplacedFunc ebb_model_get_replaced_files (EbbModule *model);
/* Copies or writes to @target the files that a model's folder has beside config.json and the weights. */
gboolean ebb_model_copy_other_files (EbbModule *model,
                                     EbbAtomicFolder *target,
                                     GError **error);

/* -- save.c */

/* Full parameters for a save, on one rank or on several that call together. */
typedef struct
{
  /* Sets *@full to the model's tensor number @tensor, in host memory; only the rank that writes needs it. Fails, on all
   * ranks, with @failure (taken; NULL: none) of any rank. */
  gboolean (*get) (gpointer data,
                   guint tensor,
                   GError *failure,
                   EbbTensor **full,
                   GError **error);
  /* FALSE, on all ranks, with @failure (taken) of any rank. */
  gboolean (*agree) (gpointer data,
                     GError *failure,
                     GError **error);
  gpointer data;
  gboolean is_writer;
} EbbModelSource;

/* Saves @model with the tensors of @source. @map: their names and full shapes, in the order of the state dict; the rest
 * of it is filled in. The other parameters are those of ebb_model_save_full (). */
gboolean ebb_model_save_from (EbbModule *model,
                              EbbWeightMap *map,
                              const EbbModelSource *source,
                              const char *folder,
                              int dtype,
                              guint64 max_file_size,
                              GError **error);
/* The same as a GGUF file. */
gboolean ebb_model_save_gguf_from (EbbModule *model,
                                   EbbWeightMap *map,
                                   const EbbModelSource *source,
                                   const char *path,
                                   int dtype,
                                   GError **error);

/* Saves a model whose parameters are split over ranks; wrap/ sets it when the library is loaded. For any other model it
 * sets *@is_split to FALSE and does nothing. */
typedef gboolean (*EbbModelSaveSplitFunc) (EbbModule *model,
                                           const char *folder,
                                           int dtype,
                                           guint64 max_file_size,
                                           gboolean *is_split,
                                           GError **error);
void ebb_model_set_save_split_func (EbbModelSaveSplitFunc func);
/* FALSE with an error for a model with parameters that no folder has; wrap/ sets it when the library is loaded. */
typedef gboolean (*EbbModelSaveCheckFunc) (EbbModule *model,
                                           GError **error);
void ebb_model_set_save_check_func (EbbModelSaveCheckFunc func);

G_END_DECLS
