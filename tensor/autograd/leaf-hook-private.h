/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/tensor-private.h"

/* Notifies a leaf's owner when its gradient is complete. Nothing in the backward pass reads the leaf after that, so the
 * owner may change it and drop its gradient while the pass goes on. */

G_BEGIN_DECLS

/* Returns FALSE with @error set to end the pass. */
typedef gboolean (*EbbLeafFunc) (EbbTensor *leaf,
                                 gpointer data,
                                 GError **error);

/* A leaf has one hook: the last one set. The leaf must outlive it. */
void ebb_leaf_set_hook (EbbTensor *leaf,
                        EbbLeafFunc func,
                        gpointer data);
/* Takes the hook away if it is the one with @data. */
void ebb_leaf_clear_hook (EbbTensor *leaf,
                          gpointer data);

/* For owners: the gradient of @leaf is final, so its hook is called, if there is one. */
gboolean ebb_leaf_notify (EbbTensor *leaf,
                          GError **error);

/* For a backward pass: how many uses of each leaf with a hook are still to come. */
typedef struct _EbbLeafCounts EbbLeafCounts;

/* NULL if no leaf has a hook. */
EbbLeafCounts *ebb_leaf_counts_new (EbbTensor **outputs,
                                    guint n_outputs);
void ebb_leaf_counts_free (EbbLeafCounts *self);
/* Counts one use down, and calls the hook after the last one if there is a gradient. A leaf with an owner is
 * skipped, since its owner notifies. */
gboolean ebb_leaf_counts_use (EbbLeafCounts *self,
                              EbbTensor *leaf,
                              GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbLeafCounts, ebb_leaf_counts_free)

G_END_DECLS
