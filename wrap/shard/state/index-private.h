/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/safetensors-reader-private.h"
#include "wrap/shard/place-private.h"

/* What index.json says of a sharded state: which rank's files hold which elements of which tensor. As JSON:
 *   { "format": "ebb-sharded-state", "version": 3, "sum": checksum, "save": 3, "ranks": 4,
 *     "mesh": [ [data, tensor] of each rank ],
 *     "files": { "model": [ name of each rank's file ], "optimizer": [ ... ], "state": [ ... ] },
 *     "model": { name: { "dtype": "F32", "shape": [ ... ], "parts": [ [ rank, begin, end ], ... ] }, ... },
 *     "optimizer": { "parameter/exp_avg": { ..., "steps": 5 }, ... } }
 * The checksum comes third and is that of all bytes after it. Parts are ranges of the flattened tensor; those of one
 * tensor tile it. What tensor-parallel ranks split has besides "cut": [ dimension, sections, n ], as EbbPartition says
 * it: the parts are then [ rank, begin, end, index ], ranges of flattened part @index of n, and tile each of these.
 * Where nothing is so cut, there is no "mesh".
 * A tensor has "stored_as" where its data has another one's name in the files (two names of one parameter), and
 * "per_rank" where ranks keep what follows no elements, as the scales of blocks: then the parts say how many elements
 * each rank has of it, and what dtype and shape they have there is said by the rank's file. */

G_BEGIN_DECLS

#define EBB_SHARD_INDEX_FILE "index.json"
#define EBB_SHARD_INDEX_FORMAT "ebb-sharded-state"
#define EBB_SHARD_INDEX_VERSION 3
#define EBB_SHARD_INDEX_MAX_SIZE 1000000000

typedef enum
{
  EBB_SHARD_FILE_MODEL,
  EBB_SHARD_FILE_OPTIMIZER,
  EBB_SHARD_FILE_STATE /* what is no tensor of a module */
} EbbShardFile;

#define EBB_N_SHARD_FILES 3
extern const char *const ebb_shard_file_kinds[EBB_N_SHARD_FILES]; /* "model", ... */
#define EBB_N_SHARD_TABLES 2                                      /* those with records */

typedef struct
{
  guint rank;
  gint64 begin, end;
  guint index; /* of the part by tensor parallelism, in which these elements are; 0 without */
} EbbSavedRange;

/* Where a rank is among those with other data, and among those that split each product. */
typedef struct
{
  guint data, tensor;
} EbbShardCoordinates;

typedef struct
{
  char *name;
  char *stored_as; /* never NULL */
  EbbDType dtype;
  gint64 shape[EBB_MAX_DIMS]; /* of the whole */
  guint n_dims;
  gint64 n_elements;
  gboolean per_rank;
  guint n_cut; /* in how many parts tensor-parallel ranks have it; 1: all of it each */
  guint cut_dim, cut_sections;
  gint64 n_steps; /* of an optimizer's: those of the parameter */
  GArray *parts;  /* of EbbSavedRange */
} EbbShardRecord;

typedef struct
{
  gint64 save;
  guint n_ranks;
  EbbShardCoordinates *mesh; /* [n_ranks]; NULL: each rank has data of its own, and no tensor-parallel ones */
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
/* A new record without parts; @name is not there yet. */
EbbShardRecord *ebb_shard_index_add (EbbShardIndex *self,
                                     EbbShardFile table,
                                     const char *name,
                                     EbbDType dtype,
                                     const gint64 *shape,
                                     guint n_dims);
void ebb_shard_record_add_part (EbbShardRecord *self,
                                guint rank,
                                gint64 begin,
                                gint64 end,
                                guint index);
/* Says how the parameter at @place is cut. */
void ebb_shard_record_set_cut (EbbShardRecord *self,
                               const EbbLocalShard *place);
/* TRUE if the parameter at @place is cut in the same way. */
gboolean ebb_shard_record_has_cut (const EbbShardRecord *self,
                                   const EbbLocalShard *place);
/* Which elements of the whole part @index has. */
void ebb_shard_record_get_cut (const EbbShardRecord *self,
                               guint index,
                               EbbShardCut *cut);
/* How many tensor-parallel ranks there were, and where rank @rank was. */
guint ebb_shard_index_count_tensor_ranks (const EbbShardIndex *self);
EbbShardCoordinates ebb_shard_index_get_coordinates (const EbbShardIndex *self,
                                                     guint rank);
/* By its shape; FALSE: they can't be counted. */
gboolean ebb_shard_record_count_elements (EbbShardRecord *self);
/* "[2, 3]" */
char *ebb_shard_record_name_shape (const EbbShardRecord *self);
/* Takes over what another rank says it has. */
gboolean ebb_shard_index_merge (EbbShardIndex *self,
                                EbbShardIndex *other,
                                GError **error);
/* Sorts the parts of each tensor; fails unless they tile it. @what names the index in errors. */
gboolean ebb_shard_index_check (EbbShardIndex *self,
                                const char *what,
                                GError **error);
char *ebb_shard_index_to_text (EbbShardIndex *self);
/* The text whose part after the checksum is @rest. */
char *ebb_shard_index_seal (const char *rest);
/* shard-index-parse.c: checks all that can be wrong but the parts */
EbbShardIndex *ebb_shard_index_parse (const char *text,
                                      const char *what,
                                      GError **error);

char *ebb_shard_file_make_name (EbbShardFile kind,
                                gint64 save,
                                guint rank,
                                guint n_ranks);
/* The save that a file of that name belongs to, finished or not; 0: it is none of these files. */
gint64 ebb_shard_file_parse_name (const char *name);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardIndex, ebb_shard_index_free)

G_END_DECLS
