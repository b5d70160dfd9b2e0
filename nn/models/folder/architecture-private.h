/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/util/json-private.h"
#include "nn/models/bert-config.h"
#include "nn/models/gpt-config.h"

/* The architectures whose folders are opened and saved: the keys of their config.json, and what their tensors are
 * called in files. */

G_BEGIN_DECLS

/* The type of a key's value in config.json, and of its field. */
typedef enum
{
  EBB_CONFIG_KEY_SIZE,       /* int, at least 1 */
  EBB_CONFIG_KEY_NUMBER,     /* double, at least 0 */
  EBB_CONFIG_KEY_SCALE,      /* double: the attention scale is 1 / sqrt (value) */
  EBB_CONFIG_KEY_DROPOUT,    /* double, at least 0 and below 1; of several keys the first one counts */
  EBB_CONFIG_KEY_FLAG,       /* gboolean */
  EBB_CONFIG_KEY_ACTIVATION, /* EbbActivation */
  EBB_CONFIG_KEY_ONLY        /* no field: any other value makes another model */
} EbbConfigKeyKind;

typedef struct
{
  const char *name;
  EbbConfigKeyKind kind;
  gsize offset; /* of the field in EbbGptConfig or EbbBertConfig */
  /* The value, as JSON, that stands for a key that is missing; of ONLY all values that there may be, the usual one
   * first, separated by '|'. "null" is 0. */
  const char *initial;
  gboolean nullable;
} EbbConfigKeyRow;

/* How config.json says which layers have a window. */
typedef enum
{
  EBB_WINDOW_NONE,
  EBB_WINDOW_ALL,   /* "sliding_window": of all layers */
  EBB_WINDOW_FLAG,  /* the same under "use_sliding_window", from layer "max_window_layers" on, or "layer_types" */
  EBB_WINDOW_TYPES, /* "layer_types", or every so many layers a full one */
} EbbWindowKeys;

/* A part of a name of a module, up to a dot or the end, and its name in files. */
typedef struct
{
  const char *own, *file;
  /* Tensors of files that are one of the module: how many, and the place of this one's rows. 0: it is all of it.
   * Tensors of the module whose rules name one of the file follow each other in that. */
  guint8 index, n_files;
} EbbNameRule;

/* A tied weight that files may hold a second time: @file must have the values of the model's tensor @own. */
typedef struct
{
  const char *file, *own;
} EbbTiedName;

/* How GGUF files have the architecture: the names of llama.cpp, and what its converter does with weights. */
typedef struct
{
  const char *name; /* "general.architecture" */
  const EbbNameRule *names, *block_names;
  gboolean permutes; /* the rows of queries and keys: those of a rotated pair lie beside each other */
  gboolean adds_one; /* to the weights of norms */
  /* What llama.cpp computes without a value that says so. */
  gboolean has_window;   /* "attention.sliding_window" counts */
  gboolean takes_biases; /* those of attention's and the MLP's products, where files have them */
  int layers_of_27b;     /* with so many layers, scores are scaled by the width / heads; 0: there is no such model */
  EbbActivation activation;
} EbbGgufForm;

typedef struct
{
  const char *model_type;
  const char *class_name;           /* in "architectures" */
  const EbbConfigKeyRow *keys;      /* up to a row without a name */
  const char *prefix;               /* of all names but that of the head; files may lack it */
  const char *own_list, *file_list; /* before a block's number; the second one after the prefix */
  const EbbNameRule *names;         /* of the model, up to a row without names; what has no row keeps its name */
  const EbbNameRule *block_names;   /* the same of a block */
  const char *const *transposed;    /* matrices of blocks that files have as [in, out]; NULL: none */
  const EbbTiedName *tied;          /* up to an entry without names */
  const char *const *ignored; /* tensors that files may have besides: patterns as of g_pattern_match (); or NULL */
  const EbbGgufForm *gguf;          /* NULL: it has no form in GGUF */
  gboolean is_bert;
  gboolean has_old_norm_names; /* gamma and beta */

  /* Of a decoder: what its class says and no key. */
  EbbGptLayout layout;
  EbbNormKind norm;
  EbbNormOrder norm_order;
  gboolean gated, qkv_bias, qk_norm, scales_embeddings, all_biases;
  EbbPositions positions;
  EbbWindowKeys window;
  double theta, local_theta; /* if config.json has none; local_theta 0: sliding layers have the same */
  int full_every;            /* of EBB_WINDOW_TYPES without "layer_types": every so many layers a full one */
  int original_context;      /* if config.json has no "original_max_position_embeddings"; 0: there is no such key */
} EbbArchitecture;

/* In the order in which a decoder that came from no folder tries them. */
extern const EbbArchitecture ebb_architectures[];
extern const guint ebb_n_architectures;
/* Of every architecture: keys that Ebb does not understand, and that would change the model. */
extern const EbbConfigKeyRow ebb_config_keys_of_all[];

/* By "model_type". NULL with an error that lists those that there are. */
const EbbArchitecture *ebb_architecture_find (const EbbJson *document,
                                              const char *path,
                                              GError **error);

/* Of GGUF files. NULL with an error that names @name and lists those that there are. */
const EbbArchitecture *ebb_architecture_find_gguf (const char *name,
                                                   const char *path,
                                                   GError **error);

G_END_DECLS
