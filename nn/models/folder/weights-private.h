/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/files/safetensors-reader-private.h"
#include "nn/models/folder/architecture-private.h"
#include "nn/module.h"
#include "tensor/quantization.h"

/* The tensors of a model and those of its files: names, shapes, and which rows of one are which of the other. */

G_BEGIN_DECLS

/* -- weight-map.c */

/* A tensor of the model, as its state dict has it. */
typedef struct
{
  char *name;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;
  EbbDType dtype;
  gboolean is_exact; /* a part of a quantised weight: files have it in this dtype, whatever that of the model is */
} EbbModelTensor;

/* Rows [row, row + n_rows) of a model's tensor, which are rows from @file_row on of the file's. */
typedef struct
{
  guint tensor; /* its number */
  gint64 row, n_rows, file_row;
} EbbWeightPart;

#define EBB_MAX_WEIGHT_PARTS 3

/* What a tensor of the files holds. Those of a quantised weight are bitsandbytes', see quantized.c. */
typedef enum
{
  EBB_WEIGHT_VALUES,      /* those of its parts */
  EBB_WEIGHT_QUANT_MAP,   /* the code book of nf4 */
  EBB_WEIGHT_QUANT_STATE, /* JSON with the offset of the scales of nf4, its one part */
  EBB_WEIGHT_FORMAT       /* 0: int8 by rows; files may lack it */
} EbbWeightContent;

/* A tensor of the files. */
typedef struct
{
  char *name;
  gint64 shape[EBB_MAX_DIMS];
  guint n_dims;
  gboolean transposed; /* the file has the matrix as [in, out]; then there is one part, all of it */
  /* GGUF: rows of each of so many heads are permuted, see ebb_weight_get_own_row (); 0: they aren't. There is one part
   * then. */
  guint n_heads;
  gboolean is_one_more; /* GGUF: the file's values are larger by 1 */
  EbbWeightContent content;
  gboolean is_i8; /* in the files; of the model's tensors, u8 with the same bits */
  char *text;     /* of a quant state that is to be written */
  guint n_parts;
  EbbWeightPart parts[EBB_MAX_WEIGHT_PARTS];
} EbbWeight;

typedef struct
{
  const EbbArchitecture *architecture;
  const EbbGgufForm *gguf;      /* the files' form; NULL: folders' */
  EbbQuantization quantization; /* of linear layers; set it before tensors are added */
  GArray *tensors;              /* of EbbModelTensor */
  GArray *weights;              /* of EbbWeight, in the order of the model's tensors */
} EbbWeightMap;

EbbWeightMap *ebb_weight_map_new (const EbbArchitecture *architecture);
/* Adds the next tensor of the model. */
void ebb_weight_map_add (EbbWeightMap *self,
                         const char *name,
                         const gint64 *shape,
                         guint n_dims,
                         EbbDType dtype);
/* All tensors of a module that has full parameters. */
EbbWeightMap *ebb_weight_map_new_from_module (const EbbArchitecture *architecture,
                                              EbbModule *model);
/* The same tensors, and those of a GGUF file of such a model. */
EbbWeightMap *ebb_weight_map_new_gguf (const EbbWeightMap *map,
                                       const EbbGptConfig *config);
/* The model's row that is row @row of the file's @n_rows. */
static inline gint64
ebb_weight_get_own_row (guint n_heads,
                        gint64 n_rows,
                        gint64 row)
{
  const gint64 width = n_rows / (gint64) n_heads, in_head = row % width;

  return row - in_head + in_head % 2 * (width / 2) + in_head / 2;
}
void ebb_weight_map_free (EbbWeightMap *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbWeightMap, ebb_weight_map_free)

/* -- quantized.c: weights in bitsandbytes' form */

/* The name in files of a tensor of the model that ends in @name, which is changed; FALSE: it is not of a quantised
 * weight. */
gboolean ebb_quantized_name_to_file (EbbQuantization quantization,
                                     EbbDType dtype,
                                     GString *name,
                                     EbbWeightContent *content);
/* FALSE with an error if files join or divide what the model has as one quantised weight. */
gboolean ebb_weight_map_check_quantized (const EbbWeightMap *map,
                                         GError **error);
/* Writes the texts of the quant states: @model has the weights. */
gboolean ebb_weight_map_describe_quantized (EbbWeightMap *map,
                                            EbbModule *model,
                                            EbbDType dtype,
                                            GError **error);
/* The dtype that files must have for a part of a quantised weight; -1: any floating one. */
int ebb_weight_get_exact_dtype (const EbbWeightMap *map,
                                const EbbWeight *weight);
/* The tensor that files have for a weight of another content than values, on the CPU. */
EbbTensor *ebb_weight_make_content (const EbbWeight *weight,
                                    GError **error);

/* -- weight-files.c */

#define EBB_WEIGHTS_FILE "model.safetensors"
#define EBB_WEIGHTS_INDEX EBB_WEIGHTS_FILE ".index.json"

/* The files of a folder's weights, open. */
typedef struct
{
  char *folder;
  GPtrArray *readers; /* of EbbTensorFile */
  GHashTable *found;  /* name -> EbbTensorEntry */
  GHashTable *homes;  /* EbbTensorEntry -> EbbTensorFile */
  const char *config; /* what says which tensors there must be, for errors */
} EbbWeightFiles;

/* Whether the folder has weights at all. */
gboolean ebb_weight_files_are_there (const char *folder);
EbbWeightFiles *ebb_weight_files_open (const char *folder,
                                       GError **error);
/* One file, which must outlive the result. */
EbbWeightFiles *ebb_weight_files_new_for_gguf (EbbTensorFile *file);
/* NULL: there is no such tensor. */
const EbbTensorEntry *ebb_weight_files_find (EbbWeightFiles *self,
                                             const char *name);
EbbTensorFile *ebb_weight_files_get_reader (EbbWeightFiles *self,
                                            const EbbTensorEntry *entry);
void ebb_weight_files_close (EbbWeightFiles *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbWeightFiles, ebb_weight_files_close)

/* -- weight-match.c */

/* The entry of each weight of @map, in its order: of EbbTensorEntry. NULL with an error that lists what is
 * missing, unexpected, and of another shape. */
GPtrArray *ebb_weights_match (EbbWeightFiles *files,
                              const EbbWeightMap *map,
                              GError **error);
/* FALSE with an error if there are fewer tensors than layers: the model is not even described then. */
gboolean ebb_weights_check_layers (EbbWeightFiles *files,
                                   const EbbArchitecture *architecture,
                                   gint64 layers,
                                   GError **error);

/* -- weight-read.c */

/* Reads all @entries into @targets, the module's tensors in the order of the map, in parallel; NULL: that one isn't
 * read. */
gboolean ebb_weights_read (EbbWeightFiles *files,
                           const EbbWeightMap *map,
                           GPtrArray *entries,
                           EbbTensor **targets,
                           GError **error);
/* Reads one matrix into @target, of its shape, in f32 or bf16 on the CPU. @n_heads: as of EbbWeight. */
gboolean ebb_weights_read_entry (EbbTensorFile *file,
                                 const EbbTensorEntry *entry,
                                 guint n_heads,
                                 EbbTensor *target,
                                 GError **error);
/* Reads one tensor of the model, number @tensor, into @target, which is in host memory. */
gboolean ebb_weights_read_one (EbbWeightFiles *files,
                               const EbbWeightMap *map,
                               GPtrArray *entries,
                               guint tensor,
                               EbbTensor *target,
                               GError **error);
/* Reads the quant states, and checks what else files say of quantised weights. */
gboolean ebb_weights_read_quantized (EbbWeightFiles *files,
                                     const EbbWeightMap *map,
                                     GPtrArray *entries,
                                     EbbModule *model,
                                     GError **error);
/* FALSE with an error if the files hold a tied weight of the architecture twice and the values differ. @targets as
 * above, with their values. */
gboolean ebb_weights_check_tied (EbbWeightFiles *files,
                                 const EbbWeightMap *map,
                                 EbbTensor **targets,
                                 GError **error);

G_END_DECLS
