/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/state/training-state.h"
#include "wrap/shard/state/index-private.h"

/* A sharded state on disk: a folder with the files of each rank and an index that names them. */

G_BEGIN_DECLS

/* Saves the module, the optimizer and @training, a tree of this rank's; any may be NULL. Collective over the default
 * group. */
gboolean ebb_shard_save (EbbModule *module,
                         EbbOptimizer *optimizer,
                         EbbArgs *training,
                         const char *folder,
                         GError **error);

/* Loads them; the same holds. @step is set if @training is given. */
gboolean ebb_shard_load (EbbModule *module,
                         EbbOptimizer *optimizer,
                         EbbTrainingState *training,
                         const char *folder,
                         gint64 *step,
                         GError **error);

/* What is read from such a folder. */
typedef struct
{
  char *folder;
  char *shown; /* the folder in errors */
  EbbShardIndex *index;
  GHashTable *files; /* those that are open, by path */
} EbbShardSource;

/* @text is the index's. */
EbbShardSource *ebb_shard_source_new (const char *folder,
                                      const char *text,
                                      GError **error);
void ebb_shard_source_free (EbbShardSource *self);
/* The text of the folder's index. */
char *ebb_shard_source_read_index (const char *folder,
                                   GError **error);
/* Of the elements of @cut of a tensor that is not "per_rank" those in [begin, end), however they were cut when they
 * were saved, compared with their checksums; @data NULL: no more than that. */
gboolean ebb_shard_source_read (EbbShardSource *self,
                                EbbShardFile table,
                                const EbbShardRecord *record,
                                const EbbShardCut *cut,
                                gint64 begin,
                                gint64 end,
                                void *data,
                                GError **error);
/* What @rank has of a tensor that is "per_rank", in the dtype and the shape that it had there; NULL without an error if
 * it has nothing of it. */
EbbTensor *ebb_shard_source_read_of_rank (EbbShardSource *self,
                                          EbbShardFile table,
                                          const EbbShardRecord *record,
                                          guint rank,
                                          GError **error);
/* The tree that @rank has saved: { optimizer, training }. */
EbbArgs *ebb_shard_source_read_tree (EbbShardSource *self,
                                     guint rank,
                                     GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardSource, ebb_shard_source_free)

G_END_DECLS
