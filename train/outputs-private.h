/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/folder-lock.h"
#include "nn/models/folder/model.h"
#include "train/ranks-private.h"
#include "train/trainer-options-private.h"

/* The folders and files of a training: the state to resume, and weights. Errors begin with the name of the setting. */

G_BEGIN_DECLS

/* Checks, before the training, that @path, which the setting @name names, can be written, and that it replaces no other
 * model. @dtype: as below. */
gboolean ebb_train_check_output (const char *name,
                                 const char *path,
                                 EbbModule *model,
                                 int dtype,
                                 GError **error);
/* Checks, before the training, what it will write, and finds the state in the folder of resume. The first rank locks
 * that folder as long as *@lock lives. A first save that never finished doesn't count as a state. Parts without an
 * index, and the folder of a model, are errors: otherwise a new training would silently begin beside them. A dry run
 * does nothing. */
gboolean ebb_train_take_outputs (const EbbTrainerSettings *settings,
                                 EbbModule *model,
                                 int dtype,
                                 guint rank,
                                 EbbFolderLock **lock,
                                 gboolean *is_there,
                                 GError **error);
/* Saves an adapter's folder if the model has an adapter, else a file that ends with .safetensors or .gguf, or a folder;
 * @dtype as of ebb_model_save_full (). Collective. */
gboolean ebb_train_save_model (EbbModule *model,
                               EbbTrainRanks *ranks,
                               const char *path,
                               int dtype,
                               GError **error);

G_END_DECLS
