/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/data/document-store-private.h"

/* Assigns documents to rows of a context's length. A document that is longer than a row is split into segments of a
 * row's length, the last one shorter; a shorter document is one segment. Segments without a token to learn are left
 * out. Segments are put into rows by the best fit, longest first, which wastes little; within a row they are in the
 * order of the data. */

G_BEGIN_DECLS

/* Inputs @begin to @begin + @n of the store: each of them is to predict the next token. */
typedef struct
{
  gint64 begin;
  guint32 n;
  guint32 row;
} EbbSegment;

typedef struct
{
  gint64 context;
  EbbSegment *segments; /* in the order of the rows */
  guint32 *ends;        /* of each row: where its segments end */
  guint32 n_segments, n_rows;
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
