/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/cpu-private.h"

/* A matrix product in its plainest form: batch dimensions merged or folded into rows where the strides allow it,
 * strides of single rows and columns made canonical. Launches that are the same product have the same bytes here. */

G_BEGIN_DECLS

#define EBB_PRODUCT_MAX_BATCH (EBB_MAX_DIMS - 2)

typedef struct
{
  gint64 m, n, k;
  gint64 a_row, a_column, b_row, b_column, c_row, bias_stride; /* strides; c's columns are dense */
  gint64 n_batch;
  gint64 batch[EBB_PRODUCT_MAX_BATCH];
  gint64 a_batch[EBB_PRODUCT_MAX_BATCH], b_batch[EBB_PRODUCT_MAX_BATCH], c_batch[EBB_PRODUCT_MAX_BATCH];
  gint32 ab_dtype, c_dtype, bias_dtype; /* bias_dtype: -1 without a bias */
  gint32 accumulate;
  gint64 n_threads;
  gint64 k_block; /* k is at least as great, and added up in blocks of so many, the last one first; 0: as one sum */
} EbbProduct;

typedef struct
{
  const void *a, *b, *bias;
  void *c;
} EbbProductData;

/* c = a b + bias, or c += a b + bias. */
void ebb_product_init (EbbProduct *product,
                       const EbbView *a,
                       const EbbView *b,
                       const EbbView *bias,
                       const EbbView *c,
                       gboolean accumulate,
                       gint64 k_block);

typedef enum
{
  EBB_PRODUCT_DONE,
  EBB_PRODUCT_UNSUPPORTED, /* no good implementation for these dtypes or strides: see matmul-tiles.c */
  EBB_PRODUCT_FAILED       /* error is set */
} EbbProductResult;

/* @workspace: of as many bytes as the product needs, no more. */
EbbProductResult ebb_product_run_dnnl (const EbbProduct *product,
                                       const EbbProductData *data,
                                       void *workspace,
                                       gsize workspace_size,
                                       GError **error);
/* How many bytes of workspace it needs: 0 where it fails. FALSE: the product is unsupported. */
gboolean ebb_product_get_dnnl_workspace (const EbbProduct *product,
                                         gsize *size);
/* Frees what is kept of products that were met, code for the most part. A product that comes again makes it anew. */
void ebb_product_forget_dnnl (void);

/* The same for any dtypes and strides, by tiles in f32. @workspace is aligned to 64 bytes. */
gboolean ebb_product_run_tiles (const EbbProduct *product,
                                const EbbProductData *data,
                                void *workspace,
                                GError **error);
gsize ebb_product_get_tiles_workspace (const EbbProduct *product);

/* Copies and converts between views of the same shape, which may have any strides; can't fail. */
void ebb_cpu_copy_view (const EbbView *from,
                        const EbbView *to);

/* All operands are f32 with strides that every implementation takes: there is nothing simpler to convert them to. */
gboolean ebb_product_is_plain (const EbbProduct *product);

/* Element offsets of batch @index into a, b and c. */
void ebb_product_get_batch_offsets (const EbbProduct *product,
                                    gint64 index,
                                    gint64 *a,
                                    gint64 *b,
                                    gint64 *c);
gint64 ebb_product_get_n_batches (const EbbProduct *product);

/* "f32 [4, 8, 16] x [16, 32]" */
char *ebb_product_to_string (const EbbProduct *product);

G_END_DECLS
