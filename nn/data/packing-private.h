/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/document-store-private.h"

/* Which documents make which row of a context's length. A document that is longer than a row is split into pieces that
 * each fill one; pieces without a token to be learned are left out. Pieces are put into rows by the best fit, longest
 * ones first, which wastes little; a row's pieces are in the order of the data. */

G_BEGIN_DECLS

/* Inputs @begin to @begin + @n of the store: each of them is to predict the next token. */
typedef struct
{
  gint64 begin;
  guint32 n;
  guint32 row;
} EbbPiece;

typedef struct
{
  gint64 context;
  EbbPiece *pieces; /* in the order of the rows */
  guint32 *ends;    /* of each row: where its pieces end */
  guint32 n_pieces, n_rows;
  guint32 n_split; /* documents that were split */
} EbbPacking;

/* @documents: those of the store that are packed, of @n; NULL: the first @n. */
EbbPacking *ebb_packing_new (const EbbDocumentStore *store,
                             const gint64 *documents,
                             gint64 n,
                             gint64 context,
                             GError **error);
void ebb_packing_free (EbbPacking *self);

G_END_DECLS
