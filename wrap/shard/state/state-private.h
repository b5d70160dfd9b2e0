/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer-private.h"
#include "nn/state/state-dict-private.h"
#include "nn/state/training-state.h"
#include "wrap/shard/state/index-private.h"

/* Shared by saving and loading a state: the tensors of a module and of an optimizer, the mesh of the ranks, and the
 * files of a sharded state. */

G_BEGIN_DECLS

/* -- state-dict.c: the tensors of a module */

/* One name of a state dict. */
typedef struct
{
  char *name;
  EbbTensor *tensor; /* of the module, not owned */
  guint first;       /* the number of the first entry of the same tensor */
  guint item;        /* of a gather; in the first entry of a tensor */
  EbbLocalShard shard;
} EbbStateEntry;

/* An array of EbbStateEntry, in the order of the state dict; valid as long as the module stays as it is. */
GArray *ebb_state_entries_new (EbbModule *module);
GArray *ebb_state_entries_new_part (EbbModule *module,
                                    EbbStatePart part,
                                    GHashTable *trained);
/* Lists them in @index with the ranges that @rank holds. */
void ebb_state_entries_describe (GArray *entries,
                                 guint rank,
                                 EbbShardIndex *index);
/* Fails if full parameters are summoned: they may have changed, so that they belong to no state. */
gboolean ebb_state_check_released (GArray *entries,
                                   GError **error);
/* Reshards the units of the entries and of the optimizer's parameters before their shards change; either may be NULL.
 */
gboolean ebb_state_reshard (GArray *entries,
                            EbbOptimizer *optimizer,
                            GError **error);
/* Rank 0's @source as @dtype, in host memory, on all ranks; NULL on the others. All fail together, and with @failure
 * (taken) of any of them, before anything is sent. */
EbbTensor *ebb_broadcast_full (EbbProcessGroup *group,
                               EbbTensor *source,
                               const gint64 *shape,
                               guint n_dims,
                               EbbDType dtype,
                               GError *failure,
                               GError **error);

/* -- base.c */

/* Computes the checksum of the tensors that count as frozen beside @trained, if the state is one that has it. The ranks
 * of @group, which have the module together, call it together. Fails on all of them if they differ in whether a base is
 * left out. */
gboolean ebb_state_find_base (EbbTrainingState *training,
                              GHashTable *trained,
                              EbbProcessGroup *group,
                              GError **error);

/* -- model-folder.c: an EbbModelSaveSplitFunc */

gboolean ebb_model_save_split (EbbModule *model,
                               const char *folder,
                               int dtype,
                               guint64 max_file_size,
                               gboolean *is_split,
                               GError **error);

/* -- mesh.c */

typedef struct
{
  guint n_ranks;
  EbbShardCoordinates *ranks; /* [n_ranks] */
  EbbShardCoordinates own;
  guint n_tensor; /* tensor-parallel ranks */
} EbbShardMesh;

/* Finds the mesh of @group by the tensors of @entries and of @optimizer; either may be NULL. Collective. On the way
 * @text is sent to all ranks, and *@texts are those of all of them. */
gboolean ebb_shard_mesh_init (EbbShardMesh *self,
                              EbbProcessGroup *group,
                              GArray *entries,
                              EbbOptimizer *optimizer,
                              const char *text,
                              char ***texts,
                              GError **error);

/* -- optimizer-state.c: the tensors of an optimizer's state */

typedef struct
{
  char *parameter;   /* its name */
  char *key;         /* "exp_avg" */
  gint64 n_steps;    /* of the parameter */
  EbbTensor *tensor; /* NULL: none here */
} EbbOptimizerItem;

/* An array of EbbOptimizerItem, which it owns. */
GArray *ebb_optimizer_items_new (void);
/* Takes over @tensor, which may be NULL. */
void ebb_optimizer_items_add (GArray *items,
                              const char *parameter,
                              const char *key,
                              gint64 n_steps,
                              EbbTensor *tensor);
/* "h.0.weight/exp_avg", the name of an item's record, and back: @key points into @name. */
char *ebb_optimizer_item_make_name (const EbbOptimizerItem *item);
char *ebb_optimizer_item_parse_name (const char *name,
                                     const char **key);
/* The optimizer's parameter of that name, or NULL. */
EbbTensor *ebb_optimizer_find_parameter (EbbOptimizer *optimizer,
                                         const char *name);
/* Returns @state without its tensors, which are appended to @items; NULL: it is no optimizer's state. */
EbbArgs *ebb_optimizer_state_split (EbbArgs *state,
                                    GArray *items,
                                    GError **error);
/* The other way round. Parameters that only @items have come last. */
EbbArgs *ebb_optimizer_state_join (EbbArgs *rest,
                                   GArray *items);
/* Fails if @index lacks a tensor that @rest lists. @folder names the state in errors. */
gboolean ebb_optimizer_rest_check (EbbArgs *rest,
                                   EbbShardIndex *index,
                                   const char *folder,
                                   GError **error);
/* Lists @items in @index with the ranges that @rank holds, "per_rank" if they don't follow the elements of a parameter
 * that is split. */
gboolean ebb_optimizer_items_describe (EbbOptimizer *optimizer,
                                       GArray *items,
                                       guint rank,
                                       EbbShardIndex *index,
                                       GError **error);

/* -- files.c: the files of a state. A rank's tensors are a safetensors file with a checksum of every MiB, so a
 * range is checked without reading the rest. */

/* @tensors may be on any device and need not be contiguous. */
gboolean ebb_shard_file_write (const char *path,
                               EbbArgs *tensors,
                               GError **error);

typedef struct
{
  char *folder;
  char *shown; /* the folder in errors */
  EbbShardIndex *index;
  GHashTable *files;                    /* those that are open, by path */
  EbbArgs *tree;                        /* of a state of version 1.0 that one process saved; NULL: it is another one */
  EbbArgs *tensors[EBB_N_SHARD_TABLES]; /* with @tree: by name */
} EbbShardSource;

/* The text of the folder's index @name. */
char *ebb_shard_source_read_index (const char *folder,
                                   const char *name,
                                   GError **error);
/* @text is the index's. */
EbbShardSource *ebb_shard_source_new (const char *folder,
                                      const char *name,
                                      const char *text,
                                      GError **error);
/* The source of the tree that one process saved with version 1.0:
 * { version, step, config, module: {...}, optimizer: {...}, ... }. */
EbbShardSource *ebb_shard_source_new_old (const char *folder,
                                          EbbArgs *tree,
                                          GError **error);
void ebb_shard_source_free (EbbShardSource *self);
/* Reads the elements [begin, end) of @slice of a tensor that is not "per_rank", however it was split when it was saved,
 * and compares them with their checksums; @data NULL: only compares. */
gboolean ebb_shard_source_read (EbbShardSource *self,
                                EbbShardFile table,
                                const EbbShardRecord *record,
                                const EbbShardSlice *slice,
                                gint64 begin,
                                gint64 end,
                                void *data,
                                GError **error);
/* Reads the data that the rank of @range has for a tensor that is "per_rank", in its own dtype and shape. */
EbbTensor *ebb_shard_source_read_blocks (EbbShardSource *self,
                                         EbbShardFile table,
                                         const EbbShardRecord *record,
                                         const EbbSavedRange *range,
                                         GError **error);
/* A part of the tree that @rank has saved, { optimizer, training }; it is an error if it isn't there. */
EbbArgs *ebb_shard_source_read_tree (EbbShardSource *self,
                                     guint rank,
                                     const char *part,
                                     GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbShardSource, ebb_shard_source_free)

/* -- folder.c: the states of a folder */

/* Uses one state; a collective function. Sets @is_final if no other one may be tried after a failure. */
typedef gboolean (*EbbShardUseFunc) (gpointer user_data,
                                     EbbShardSource *source,
                                     gboolean *is_final,
                                     GError **error);
/* Uses the newest state of the folder that is whole. Rank 0 lists them; all ranks of @group call it together. */
gboolean ebb_shard_folder_use_newest (EbbProcessGroup *group,
                                      const char *folder,
                                      EbbShardUseFunc use,
                                      gpointer user_data,
                                      GError **error);

G_END_DECLS
