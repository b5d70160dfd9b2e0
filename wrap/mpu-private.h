/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/process-group.h"

G_BEGIN_DECLS

#define EBB_MPU_DIM "tensor" /* of a mesh: the ranks that a model is divided among */

/* What Megatron-LM and DeepSpeed call an mpu, the model parallel unit: who knows the ranks that a model is divided
 * among. */
typedef struct
{
  guint world_size;       /* 0: there is no mpu */
  EbbProcessGroup *group; /* not owned; NULL: none, or an object that tells their number and no more */
} EbbMpu;

/* @object: (nullable): a mesh, a group, or any object with a number as its property "world-size". */
gboolean ebb_mpu_init (EbbMpu *self,
                       GObject *object,
                       GError **error);

G_END_DECLS
