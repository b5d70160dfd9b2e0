/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/tensor-parallel/partition-private.h"
#include "nn/models/folder/architecture-private.h"
#include "nn/module-private.h"
#include "wrap/lora/options.h"
#include "wrap/lora/wrapper.h"

/* The adapters of a model: what its wrapper, its merging and its files share. */

G_BEGIN_DECLS

struct _EbbLoraOptions
{
  GObject parent_instance;

  int rank;
  double alpha;
  double dropout;
  gboolean rslora;
  char **targets;
  char **exclude;
  char *adapter;
};

EbbLoraOptions *ebb_lora_options_copy (EbbLoraOptions *self);
gboolean ebb_lora_options_check (EbbLoraOptions *self,
                                 GError **error);
double ebb_lora_options_get_alpha (EbbLoraOptions *self);

/* A linear layer's part in one adapter: y += scale · dropout (x) A^T B^T. */
typedef struct
{
  char *adapter;
  EbbModule *a, *b; /* the modules below the layer that hold A [rank, in] and B [out, rank] */
  EbbCut *cut;      /* of the factor that tensor ranks divide; NULL: none */
  double scale, dropout;
} EbbLoraBranch;

/* A linear layer with branches: the data of its interceptor. */
typedef struct
{
  EbbModule *module;     /* the layer, which owns this */
  GPtrArray *branches;   /* of EbbLoraBranch */
  EbbLoraBranch *active; /* NULL: none, or its product is merged */
  gboolean enters;       /* while one is, the input enters the ranks' computation before the layer's own call */
} EbbLoraLayer;

/* What the root of a model with adapters holds. */
typedef struct
{
  GPtrArray *adapters; /* of EbbLoraOptions */
  GPtrArray *frozen;   /* the parameters of the base that required a gradient: references */
  EbbLoraOptions *active;
  gboolean is_merged;
} EbbLoraModel;

/* NULL with an error if @model has no adapters. */
EbbLoraModel *ebb_lora_model_get (EbbModule *model,
                                  GError **error);
/* NULL with an error that lists those that there are. */
EbbLoraOptions *ebb_lora_model_find (EbbLoraModel *self,
                                     const char *adapter,
                                     GError **error);
/* The elements of all adapters below @model, which ebb_module_count_parameters () counts, too. */
guint64 ebb_lora_count_parameters (EbbModule *model);
/* NULL: @module is no linear layer with branches. */
EbbLoraLayer *ebb_lora_layer_get (EbbModule *module);
/* NULL: the layer has none in this adapter. */
EbbLoraBranch *ebb_lora_layer_find (EbbLoraLayer *self,
                                    const char *adapter);
/* A branch with the first values of A and B, for a linear layer; NULL with an error. */
EbbLoraBranch *ebb_lora_branch_new (EbbModule *layer,
                                    EbbLoraOptions *options,
                                    GError **error);
void ebb_lora_branch_free (gpointer data);
/* Gives the layer the branch, which it takes over, with the modules of A and B below it. */
void ebb_lora_layer_add (EbbModule *module,
                         EbbLoraBranch *branch);
/* Takes all branches off. */
void ebb_lora_layer_remove (EbbModule *module);
/* Takes one off, which is not chosen. */
void ebb_lora_layer_drop (EbbModule *module,
                          const char *adapter);
/* Chooses a branch: it alone is trained. NULL: none. */
void ebb_lora_layer_choose (EbbLoraLayer *self,
                            const char *adapter);
/* Has the chosen branch computed or not. */
void ebb_lora_layer_activate (EbbLoraLayer *self,
                              EbbLoraBranch *branch);

/* -- ranks.c: layers that tensor ranks share; of any other layer nothing is divided, entered or left */

/* What the products of a call take: references. */
typedef struct
{
  EbbTensor *x, *factors[2]; /* A and B */
} EbbLoraOperands;

/* Cuts the factor that the layer's ranks divide. */
gboolean ebb_lora_ranks_cut (EbbModule *module,
                             EbbTensor *a,
                             EbbTensor *b,
                             EbbCut **cut,
                             GError **error);
/* Whether the layer has its input enter, which who calls it may do in its place. */
gboolean ebb_lora_ranks_lets_enter (EbbModule *module);
void ebb_lora_ranks_set_entered (EbbModule *module,
                                 gboolean is_entered);
gboolean ebb_lora_ranks_enter (EbbModule *module,
                               gboolean enters,
                               EbbTensor *x,
                               EbbTensor *factors[2],
                               EbbLoraOperands *operands,
                               GError **error);
void ebb_lora_operands_clear (EbbLoraOperands *self);
EbbTensor *ebb_lora_ranks_drop (EbbModule *module,
                                EbbTensor *x,
                                double dropout,
                                GError **error);
/* The sum of the ranks' x A^T, which only the caller holds and reads no more. */
EbbTensor *ebb_lora_ranks_leave (EbbModule *module,
                                 EbbTensor *low,
                                 GError **error);
/* y + low B^T, for the layer's result y, which only the caller holds and reads no more. */
EbbTensor *ebb_lora_ranks_add (EbbModule *module,
                               EbbTensor *y,
                               EbbTensor *low,
                               EbbTensor *b,
                               GError **error);
/* The mean cross entropy of the layer's result as logits. */
EbbTensor *ebb_lora_ranks_loss (EbbModule *module,
                                EbbTensor *logits,
                                EbbTensor *targets,
                                GError **error);

/* A or B, not owned. */
EbbTensor *ebb_lora_factor_get_weight (EbbModule *factor);
/* The layers of @model that have branches in @adapter, in the order of the tree, with their paths. */
typedef struct
{
  char *path;
  EbbModule *module; /* not owned */
} EbbLoraPlace;
GArray *ebb_lora_model_list_places (EbbModule *model,
                                    const char *adapter);

/* Adds the adapter that @options name to the layers for which @picks says TRUE, and chooses it. */
typedef gboolean (*EbbLoraPickFunc) (EbbModule *layer,
                                     const char *path,
                                     gpointer user_data);
gboolean ebb_lora_model_add (EbbModule *model,
                             EbbLoraOptions *options,
                             EbbLoraPickFunc picks,
                             gpointer user_data,
                             GError **error);
/* Undoes that, at once. @before: the adapter that was chosen before; NULL: none. */
void ebb_lora_model_drop_last (EbbModule *model,
                               const char *before);

/* -- peft-names.c */

/* The architecture whose files name the modules of @model; NULL: its own names are all there are. */
const EbbArchitecture *ebb_lora_find_architecture (EbbModule *model);
/* PEFT's name of the layer. Owned; NULL with an error if PEFT knows no such layer. */
char *ebb_lora_get_file_path (const EbbArchitecture *architecture,
                              EbbModule *layer,
                              const char *path,
                              GError **error);
/* The last part of a path; within @path. */
const char *ebb_lora_get_ending (const char *path);
/* The key of a layer's factor, "lora_A" or "lora_B". Owned. */
char *ebb_lora_get_key (const char *file_path,
                        const char *factor);
/* PEFT's keys of a linear layer's factors, owned; FALSE: folders have no form for it. */
gboolean ebb_lora_get_keys (const EbbArchitecture *architecture,
                            EbbModule *layer,
                            const char *path,
                            char **key_a,
                            char **key_b);

/* -- files.c */

#define EBB_LORA_CONFIG_FILE "adapter_config.json"
#define EBB_LORA_WEIGHTS_FILE "adapter_model.safetensors"

/* -- gguf.c: an adapter's tensors by PEFT's keys, to a GGUF file and from one; loading sets rank and alpha */

/* Whether llama.cpp has the model. */
gboolean ebb_lora_check_gguf (EbbModule *model,
                              GError **error);
gboolean ebb_lora_write_gguf (EbbModule *model,
                              const char *path,
                              EbbLoraOptions *options,
                              EbbArgs *tensors,
                              GError **error);
EbbArgs *ebb_lora_read_gguf (EbbModule *model,
                             const char *path,
                             EbbLoraOptions *options,
                             GError **error);

G_END_DECLS
