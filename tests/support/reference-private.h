/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Programs that link the library's public side use this too: no symbol of the library that is not public is needed. */
#ifndef EBB_COMPILATION
#define EBB_COMPILATION
#endif

#include "tensor/backend/kernel-private.h"

/* Every kernel once more, in the plainest way: loops over elements, arithmetic in float64, one rounding at the end. */

G_BEGIN_DECLS

extern const EbbKernelFunc ebb_reference_kernels[EBB_N_KERNELS];

/* Element @offset (not a position: strides are counted already) of any dtype, as double. */
double ebb_reference_load (const EbbView *view,
                           gint64 offset);
gint64 ebb_reference_load_integer (const EbbView *view,
                                   gint64 offset);
/* Rounds to the nearest, ties to even. */
void ebb_reference_store (const EbbView *view,
                          gint64 offset,
                          double value);
void ebb_reference_store_integer (const EbbView *view,
                                  gint64 offset,
                                  gint64 value);

gint64 ebb_reference_count (const EbbView *view);
/* The offset of element @position, counted in contiguous order. */
gint64 ebb_reference_offset (const EbbView *view,
                             gint64 position);

/* Number @index of the 32-bit draws that @philox names. */
guint32 ebb_reference_draw (EbbPhilox philox,
                            guint64 index);

#define EBB_REFERENCE(name)                               \
  gboolean ebb_reference_##name (const EbbLaunch *launch, \
                                 GError **error)

/* reference-elementwise.c */
EBB_REFERENCE (copy);
EBB_REFERENCE (fill);
EBB_REFERENCE (arange);
EBB_REFERENCE (unary);
EBB_REFERENCE (unary_grad);
EBB_REFERENCE (binary);
EBB_REFERENCE (binary_scalar);
EBB_REFERENCE (where);
EBB_REFERENCE (clamp);
EBB_REFERENCE (clamp_grad);
EBB_REFERENCE (add_scaled);
EBB_REFERENCE (triangle);
EBB_REFERENCE (bias_gelu);
EBB_REFERENCE (bias_gelu_grad);
EBB_REFERENCE (gated_activation);
EBB_REFERENCE (gated_activation_grad);

/* reference-random.c */
EBB_REFERENCE (uniform);
EBB_REFERENCE (normal);
EBB_REFERENCE (randint);
EBB_REFERENCE (dropout);
EBB_REFERENCE (multinomial);

/* reference-reduce.c */
EBB_REFERENCE (column_sum);
EBB_REFERENCE (reduce);
EBB_REFERENCE (var);
EBB_REFERENCE (arg_reduce);
EBB_REFERENCE (topk);

/* reference-norm.c */
EBB_REFERENCE (softmax);
EBB_REFERENCE (softmax_grad);
EBB_REFERENCE (layer_norm);
EBB_REFERENCE (layer_norm_grad);
EBB_REFERENCE (add_layer_norm);
EBB_REFERENCE (add_rms_norm);
EBB_REFERENCE (rms_norm);
EBB_REFERENCE (rms_norm_grad);
EBB_REFERENCE (batch_norm);
EBB_REFERENCE (batch_norm_grad);

/* reference-rotary.c, reference-matmul.c, reference-attention.c, reference-cross-entropy.c, reference-index.c,
 * reference-optimizer.c */
EBB_REFERENCE (rotary);
EBB_REFERENCE (dequantize);
EBB_REFERENCE (matmul);
EBB_REFERENCE (attention);
EBB_REFERENCE (attention_grad);
EBB_REFERENCE (cross_entropy);
EBB_REFERENCE (cross_entropy_grad);
EBB_REFERENCE (cross_entropy_part);
EBB_REFERENCE (cross_entropy_join);
EBB_REFERENCE (index_select);
EBB_REFERENCE (index_add);
EBB_REFERENCE (gather);
EBB_REFERENCE (scatter_add);
EBB_REFERENCE (adamw);
EBB_REFERENCE (sgd);
EBB_REFERENCE (squared_norm);

/* reference-ranks.c */
EBB_REFERENCE (norm_sum);
EBB_REFERENCE (clip_factor);
EBB_REFERENCE (reduce_ranks);

G_END_DECLS
