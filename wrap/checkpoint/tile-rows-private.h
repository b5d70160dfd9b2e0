/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/tensor.h"

/* Rows of a tensor are taken tile by tile and their results put together, so that backward has one gradient of the
 * input and one of the output, and no tile's gradient is added to zeros. A row is what the last dimension holds. */

G_BEGIN_DECLS

/* Of a tensor with a last dimension. */
gint64 ebb_tile_count_rows (EbbTensor *tensor);

/* The @n rows of the contiguous *@rest from number @first on, as a view [1, .., n, columns]. *@rest becomes the tensor
 * from which the next tile is taken: tiles are taken in order, and the last one leaves NULL. */
EbbTensor *ebb_tile_take (EbbTensor **rest,
                          gint64 first,
                          gint64 n,
                          GError **error);

/* Copies @tile to the rows of *@whole, which was made for it, from number @first on. *@whole becomes a tensor whose
 * gradient flows to @tile as well. */
gboolean ebb_tile_put (EbbTensor **whole,
                       EbbTensor *tile,
                       gint64 first,
                       GError **error);

G_END_DECLS
