/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optimizer.h"
#include "tensor/op-private.h"

/* What the library's own optimizers share: the base holds, for each parameter, its state tensors and, where the
 * parameter is stored in less than 32 bits, a master copy; a kind only names its states and updates one parameter. */

G_BEGIN_DECLS

#define EBB_OPTIMIZER_MAX_STATES 2

typedef struct
{
  EbbTensor *target; /* f32, contiguous: the parameter or its master copy */
  EbbTensor *grad;   /* f32 or bf16, contiguous */
  EbbTensor **states;
  gint64 step; /* 1 at a parameter's first */
  double lr, weight_decay, grad_scale;
} EbbOptimizerUpdate;

typedef struct
{
  const char *name;
  const char *state_names[EBB_OPTIMIZER_MAX_STATES + 1];
  const char *option_names[6]; /* properties of type double or boolean that belong to the saved state */
  /* How many of the states are in use now; they are made as zeros before a parameter's first update. */
  guint (*count_states) (EbbOptimizer *self);
  gboolean (*update) (EbbOptimizer *self,
                      const EbbOptimizerUpdate *update,
                      GError **error);
} EbbOptimizerKind;

typedef struct
{
  char *name;
  EbbTensor *parameter;
  guint group;
  gint64 n_steps;
  EbbTensor *master;
  guint64 seen_birth; /* of the parameter's storage when the master was last equal to it */
  guint seen_version;
  EbbTensor *states[EBB_OPTIMIZER_MAX_STATES];
} EbbOptimizerSlot;

/* Negative: the optimizer's own. */
typedef struct
{
  double lr, weight_decay;
} EbbOptimizerGroup;

typedef struct
{
  EbbModule *module; /* while constructing */
  EbbOptimizerSlot *slots;
  guint n_slots;
  EbbOptimizerGroup *groups;
  guint n_groups;
  double lr, lr_scale, weight_decay, grad_scale;
  gint64 n_steps;
} EbbOptimizerPrivate;

EbbOptimizerPrivate *ebb_optimizer_get_private (EbbOptimizer *self);
const EbbOptimizerKind *ebb_optimizer_get_kind (EbbOptimizer *self);
void ebb_optimizer_slot_clear_state (EbbOptimizerSlot *slot);
/* Fails if ebb_optimizer_load_state () would, short of memory. */
gboolean ebb_optimizer_check_state (EbbOptimizer *self,
                                    EbbArgs *state,
                                    GError **error);
/* What a kind's constructor does. */
EbbOptimizer *ebb_optimizer_make (GType type,
                                  EbbModule *module,
                                  double lr,
                                  GError **error);

G_END_DECLS
