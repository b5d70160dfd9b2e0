/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/quantized-private.h"
#include "tensor/quantization.h"
#include "tensor/tensor-private.h"

/* A quantised weight: tensors that whoever has it owns. */

G_BEGIN_DECLS

typedef struct
{
  EbbQuantization quantization;
  gint64 n_rows, n_columns;
  EbbTensor *codes;         /* u8: of nf4 [(n + 1) / 2, 1], of int8 the bits of signed bytes [rows, columns] */
  EbbTensor *absmax;        /* the scales: of nf4 u8 [blocks], of int8 f32 [rows] */
  EbbTensor *nested_absmax; /* of nf4, as the rest: f32 [nested blocks] */
  EbbTensor *nested_map;    /* f32 [EBB_NF4_MAP] */
  EbbTensor *nested_offset; /* f32 [1] */
  /* Of a shard of nf4, whose nested tensors are the full weight's: groups of so many of its blocks have one nested
   * absmax, of the number that nested_index says. */
  EbbTensor *nested_index; /* i32 [groups]; NULL: this is no shard */
  gint64 blocks_per_scale; /* blocks of a group */
  gint64 n_full;           /* elements of the full weight */
} EbbQuantizedWeight;

#define EBB_QUANTIZED_TENSORS 5

/* Tensor @index of the five in their order, and the shape and dtype that it has; NULL: there is none of that number. */
typedef struct
{
  const char *name; /* of the registered tensor of a layer */
  gsize offset;     /* in EbbQuantizedWeight */
  EbbDType dtype;
  gint64 shape[2];
  guint n_dims;
} EbbQuantizedTensor;

gboolean ebb_quantized_describe (EbbQuantization quantization,
                                 guint index,
                                 gint64 n_rows,
                                 gint64 n_columns,
                                 EbbQuantizedTensor *tensor);
#define EBB_QUANTIZED_FIELD(weight, tensor) G_STRUCT_MEMBER (EbbTensor *, weight, (tensor)->offset)

/* New tensors on @device, without values. FALSE: all are NULL. */
gboolean ebb_quantized_weight_init (EbbQuantizedWeight *self,
                                    EbbQuantization quantization,
                                    gint64 n_rows,
                                    gint64 n_columns,
                                    EbbDevice *device,
                                    GError **error);
/* Fails, naming it after @op, if one of the tensors isn't there or not as described: buffers can be replaced. */
gboolean ebb_quantized_weight_check (const EbbQuantizedWeight *self,
                                     const char *op,
                                     GError **error);
void ebb_quantized_weight_clear (EbbQuantizedWeight *self);
#define ebb_quantized_weight_is_set(self) ((self)->quantization != EBB_QUANTIZATION_NONE)
/* References to the same tensors. */
void ebb_quantized_weight_copy (EbbQuantizedWeight *self,
                                const EbbQuantizedWeight *other);
/* Quantises @values, f32 or bf16 [rows, columns], contiguous in host memory, into the tensors. FALSE: one isn't finite.
 */
gboolean ebb_quantized_weight_encode (EbbQuantizedWeight *self,
                                      EbbTensor *values,
                                      GError **error);

/* The published code book of nf4. */
extern const float ebb_nf4_codes[16];

G_END_DECLS
