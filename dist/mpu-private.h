/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"

G_BEGIN_DECLS

#define EBB_MPU_DIM "tensor" /* the default name of the mesh dimension whose ranks share a model */

/* Megatron-LM's and DeepSpeed's mpu, the model parallel unit: the ranks that share a model, and the number of their
 * model among those of the data parallel ranks. */
typedef struct
{
  guint world_size;       /* of the model's ranks; 0: there is no mpu */
  gint64 rank;            /* of this one among them; -1: not known */
  gint64 model;           /* a number that is the same on them, and another one on each other model's; -1: not known */
  EbbProcessGroup *group; /* NULL: none, or an object that gives their number and no more */
} EbbMpu;

/* @object: (nullable): a mesh, the group of a model's ranks, or any object with properties of the names that the
 * functions of Megatron-LM and DeepSpeed have. */
gboolean ebb_mpu_init (EbbMpu *self,
                       GObject *object,
                       GError **error);
/* The ranks of @group share a model. Always TRUE. */
gboolean ebb_mpu_init_group (EbbMpu *self,
                             EbbProcessGroup *group);
/* The ranks that are known to share a model, without their group; a rank alone where there are no others. */
gboolean ebb_mpu_init_known (EbbMpu *self,
                             GError **error);
void ebb_mpu_clear (EbbMpu *self);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (EbbMpu, ebb_mpu_clear)

/* Records @group as ranks that share a model while @owner lives: the model if @is_model, else a mesh. */
void ebb_mpu_note_group (EbbProcessGroup *group,
                         GObject *owner,
                         gboolean is_model);

G_END_DECLS
