/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "tensor/partition-private.h"

/* Parameters that the ranks of a group have in parts, and the way between a part and the full. */

G_BEGIN_DECLS

/* A parameter and its partition: describes at first what is to be done, then looks after what was. */
typedef struct _EbbCut EbbCut;

/* Dimension @dim of @parameter as @n_sections equal sections, each divided among the ranks. NULL with @error where it
 * can't be divided so; @name is for that. Nothing changes. */
EbbCut *ebb_cut_new (EbbTensor *parameter,
                     const char *name,
                     guint dim,
                     guint n_sections,
                     EbbProcessGroup *group,
                     GError **error);
/* Makes this rank's part of the parameter, and of its gradient, ready from the values that they have now. */
gboolean ebb_cut_take (EbbCut *self,
                       GError **error);
/* The parameter becomes its part, which was taken: the same tensor with other memory. */
void ebb_cut_apply (EbbCut *self);
/* The one that has cut @parameter; NULL: none. Not a new reference. */
EbbCut *ebb_cut_get (EbbTensor *parameter);
gboolean ebb_cut_is_like (EbbCut *self,
                          guint dim,
                          guint n_sections);
EbbTensor *ebb_cut_get_parameter (EbbCut *self);
EbbCut *ebb_cut_ref (EbbCut *self);
/* With the last reference to a cut that was made the parameter has no partition any more; it stays a part. */
void ebb_cut_unref (EbbCut *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbCut, ebb_cut_unref)

/* The full that @part, of the shape of this rank's part, is one of: a parameter's, its gradient's, a moment's.
 * Collective over the partition's ranks; new memory, no graph. */
EbbTensor *ebb_partition_gather (EbbTensor *part,
                                 const EbbPartition *partition,
                                 GError **error);
/* This rank's part of @full, which has the partition's shape: new memory, no graph. Nothing is sent. */
EbbTensor *ebb_partition_take (EbbTensor *full,
                               const EbbPartition *partition,
                               GError **error);
/* The shape of this rank's part. */
void ebb_partition_get_part_shape (const EbbPartition *partition,
                                   gint64 *shape);

G_END_DECLS
