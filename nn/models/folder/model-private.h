/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/models/folder/model.h"
#include "nn/models/folder/weights-private.h"

/* What opening a model's folder leaves for saving it, and saving by whoever has the parameters. */

G_BEGIN_DECLS

/* -- open.c */

/* The folder that a model came from. */
typedef struct
{
  const EbbArchitecture *architecture;
  EbbJson *document; /* config.json */
  char *folder;
} EbbModelOrigin;

/* NULL: the model came from no folder. */
const EbbModelOrigin *ebb_model_get_origin (EbbModule *model);

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

/* Saves @model, whose tensors are those that @source has, in the order of its state dict; @names: their names and full
 * shapes, all else of @map is made. Parameters as of ebb_model_save_full (). */
gboolean ebb_model_save_from (EbbModule *model,
                              EbbWeightMap *map,
                              const EbbModelSource *source,
                              const char *folder,
                              int dtype,
                              guint64 max_file_size,
                              GError **error);
/* The architecture that @model is saved as. */
const EbbArchitecture *ebb_model_find_architecture (EbbModule *model,
                                                    GError **error);

/* How a model is saved whose parameters are split over ranks: wrap/ sets it when the library is loaded. FALSE in *@is
 * for any other model, of which nothing happens. */
typedef gboolean (*EbbModelSaveSplitFunc) (EbbModule *model,
                                           const char *folder,
                                           int dtype,
                                           guint64 max_file_size,
                                           gboolean *is_split,
                                           GError **error);
void ebb_model_set_save_split_func (EbbModelSaveSplitFunc func);

G_END_DECLS
