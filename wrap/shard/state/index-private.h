/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/safetensors-reader-private.h"
#include "wrap/shard/state/local-shard-private.h"

/* The index.json of a state: which rank's files hold which elements of which tensor. As JSON:
 *   { "format": "ebb-sharded-state", "version": 1, "sum": checksum, "save": 3, "ranks": 4,
 *     "mesh": [ [data, tensor] of each rank ],
 *     "files": { "model": [ name of each rank's file ], "optimizer": [ ... ], "state": [ ... ] },
 *     "model": { name: { "dtype": "F32", "shape": [ ... ], "ranges": [ [ rank, begin, end ], ... ] }, ... },
 *     "optimizer": { "parameter/exp_avg": { ..., "steps": 5 }, ... } }
 * Its members stand in this order; the checksum is that of all bytes after it. The ranges of a tensor tile its
 * flattened elements. A tensor that tensor-parallel ranks split has also "split": [ dimension, sections, n ], as
 * EbbPartition has them: its ranges are then [ rank, begin, end, index ], ranges of flattened slice @index of n, and
 * tile each of these. "mesh" is left out if no tensor is split so. A tensor has "stored_as" if its data has the name of
 * another one in the files (two names of one parameter), and "per_rank" if it goes with a parameter, but doesn't follow
 * its elements, as the scales of blocks do not: then shape and ranges are the parameter's, and each rank's file has the
 * rank's data in a dtype and a shape of its own. */

G_BEGIN_DECLS

#define EBB_SHARD_INDEX_FILE "index.json"
#define EBB_SHARD_INDEX_HEAD "{\n  \"format\": \"ebb-sharded-state\",\n  \"version\": 1,\n  \"sum\": \""
#define EBB_SHARD_INDEX_MAX_SIZE 1000000000

typedef enum
{
  EBB_SHARD_FILE_MODEL,
  EBB_SHARD_FILE_OPTIMIZER,
  EBB_SHARD_FILE_STATE /* all that is no tensor of a module */
} EbbShardFile;

#define EBB_N_SHARD_FILES 3
extern const char *const ebb_shard_file_kinds[EBB_N_SHARD_FILES]; /* "model", ... */
#define EBB_N_SHARD_TABLES 2                                      /* those with records */

typedef struct
{
  guint rank;
  gint64 begin, end;
  guint index; /* of the slice that these elements are in; 0 if the tensor is not split */
} EbbSavedRange;

/* A rank's place among the data-parallel ranks and among the tensor-parallel ranks. */
typedef struct
{
  guint data, tensor;
} EbbShardCoordinates;

typedef struct
{
  char *name;
  char *stored_as; /* never NULL */
  EbbDType dtype;
  gint64 shape[EBB_MAX_DIMS]; /* of the full tensor */
  guint n_dims;
  gint64 n_elements;
  gboolean per_rank;
  EbbTensorSplit split;
  gint64 n_steps; /* in an optimizer's record: those of the parameter */
  GArray *ranges; /* of EbbSavedRange */
} EbbShardRecord;

typedef struct
{
  gint64 save;
  guint n_ranks;
  EbbShardCoordinates *mesh; /* [n_ranks]; NULL: each rank is a data-parallel one */
  gboolean has_files[EBB_N_SHARD_FILES];
  GPtrArray *records[EBB_N_SHARD_TABLES];
  GHashTable *by_name[EBB_N_SHARD_TABLES];
} EbbShardIndex;

EbbShardIndex *ebb_shard_index_new (gint64 save,
                                    guint n_ranks);
void ebb_shard_index_free (EbbShardIndex *self);
EbbShardRecord *ebb_shard_index_find (EbbShardIndex *self,
                                      EbbShardFile table,
                                      const char *name);
/* A new record without ranges; @name is not there yet. */
EbbShardRecord *ebb_shard_index_add (EbbShardIndex *self,
                                     EbbShardFile table,
                                     const char *name,
                                     EbbDType dtype,
                                     const gint64 *shape,
                                     guint n_dims);
/* Adds nothing if the range is empty. */
void ebb_shard_record_add_range (EbbShardRecord *self,
                                 guint rank,
                                 gint64 begin,
                                 gint64 end,
                                 guint index);
EbbShardSlice ebb_shard_record_get_slice (const EbbShardRecord *self,
                                          guint index);
/* How many tensor-parallel ranks there were, and where rank @rank was. */
guint ebb_shard_index_count_tensor_ranks (const EbbShardIndex *self);
EbbShardCoordinates ebb_shard_index_get_coordinates (const EbbShardIndex *self,
                                                     guint rank);
/* Adds the records of another rank's index, given as text. */
gboolean ebb_shard_index_merge_text (EbbShardIndex *self,
                                     const char *text,
                                     guint rank,
                                     GError **error);
/* The records of all ranks of @group, which call it together with their own, in one index. */
EbbShardIndex *ebb_shard_index_gather (EbbShardIndex *own,
                                       EbbProcessGroup *group,
                                       GError **error);
/* Keeps each range that several ranks hold for the first of these ranks alone. */
void ebb_shard_index_drop_duplicates (EbbShardIndex *self);
/* Sorts the ranges of each tensor; fails unless they tile it. @what names the index in errors. */
gboolean ebb_shard_index_check (EbbShardIndex *self,
                                const char *what,
                                GError **error);
char *ebb_shard_index_to_text (EbbShardIndex *self);
/* The text that has @rest after its checksum. */
char *ebb_shard_index_seal (const char *rest);
/* Checks everything but the ranges. */
EbbShardIndex *ebb_shard_index_parse (const char *text,
                                      const char *what,
                                      GError **error);

char *ebb_shard_file_make_name (EbbShardFile kind,
                                gint64 save,
                                guint rank,
                                guint n_ranks);
/* The save that a file of that name belongs to, finished or not; 0: the file belongs to no save. */
gint64 ebb_shard_file_parse_name (const char *name);

/* -- folder.c */

/* The name of the copy of an index that a newer state has replaced. */
char *ebb_shard_index_make_copy_name (gint64 save);
/* The newest save that any of the files is of, finished or not; 0: none. */
gint64 ebb_shard_folder_find_last (char **names);
/* Removes the unfinished files that no living process writes, and the files of all states but the newest @keep of those
 * that have an index. @newest: the save of index.json; 0: there is none. */
void ebb_shard_folder_clean (const char *folder,
                             char **names,
                             gint64 newest,
                             guint keep);
/* Removes the files of version 1.0 in which one process saved a state. */
void ebb_shard_folder_remove_old (const char *folder,
                                  char **names);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardIndex, ebb_shard_index_free)

G_END_DECLS
