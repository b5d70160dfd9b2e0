/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "tensor/error-private.h"
#include "tensor/partition-private.h"

/* Parameters that the ranks of a group shard, and how full tensors become shards. */

G_BEGIN_DECLS

/* A parameter and its partition: a plan until it is applied, then the owner of the partition. */
typedef struct _EbbCut EbbCut;

/* Plans to shard dimension @dim of @parameter, as @n_sections equal sections of which each is sharded. NULL with
 * @error, which says @name, if that is impossible. Nothing changes. */
EbbCut *ebb_cut_new (EbbTensor *parameter,
                     const char *name,
                     guint dim,
                     guint n_sections,
                     EbbProcessGroup *group,
                     GError **error);
/* Copies this rank's shard of the parameter and of its gradient. */
gboolean ebb_cut_take (EbbCut *self,
                       GError **error);
/* Gives the parameter the memory of the shard that was taken; it stays the same tensor. */
void ebb_cut_apply (EbbCut *self);
gboolean ebb_cut_is_like (EbbCut *self,
                          guint dim,
                          guint n_sections);
EbbCut *ebb_cut_ref (EbbCut *self);
/* The last reference to an applied cut removes the parameter's partition; the parameter stays a shard. */
void ebb_cut_unref (EbbCut *self);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbCut, ebb_cut_unref)

/* This rank's shard of @full, which has the partition's shape: new memory, no graph. Nothing is sent. */
EbbTensor *ebb_partition_take (EbbTensor *full,
                               const EbbPartition *partition,
                               GError **error);
/* The shape of this rank's shard. */
void ebb_partition_get_part_shape (const EbbPartition *partition,
                                   gint64 *shape);

G_END_DECLS
