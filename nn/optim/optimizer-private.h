/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"
#include "nn/optim/optimizer.h"
#include "tensor/autograd/op-support-private.h"
#include "tensor/util/property-private.h"

/* Shared by the library's own optimizers: the base holds, for each parameter, its state tensors and, where the
 * parameter is stored in less than 32 bits and weight-rounding is "master", a master copy; a kind only names its states
 * and updates one parameter. */

G_BEGIN_DECLS

#define EBB_OPTIMIZER_MAX_STATES 4

/* Philox counts blocks of four numbers: each step of a parameter has 2^40, enough for 2^43 elements. */
#define EBB_OPTIMIZER_STEP_SHIFT 40
#define EBB_OPTIMIZER_ROUNDING_SEED G_GUINT64_CONSTANT (0x7765696768747321) /* of bf16 parameters */

typedef struct
{
  EbbTensor *target; /* f32 or bf16, contiguous: the parameter or its master copy */
  EbbTensor *grad;   /* f32 or bf16, contiguous */
  EbbTensor **states;
  gint64 step; /* 1 at a parameter's first */
  /* Rounding draws by the parameter's name, the step and the element's place in the full parameter. */
  guint64 philox_seed;
  gint64 first_element;
  gboolean rounds_at_random; /* the target is bf16 */
  double lr, weight_decay, grad_scale;
  EbbTensor *grad_factor; /* f32 [1] on the target's device, or NULL: scales the gradient besides */
} EbbOptimizerUpdate;

typedef struct
{
  guint dtypes; /* bits of those that are right */
  guint n_dims;
  gint64 shape[EBB_MAX_DIMS];
  gboolean per_block; /* has no value for each element, but one for each block of them */
} EbbOptimizerLayout;

/* A property that is a number of 0 or more and less than @below (INFINITY: finite), or a boolean if @below is 0. */
typedef struct
{
  const char *name;
  double below;
} EbbOptimizerOption;

typedef struct
{
  const char *name;
  const char *state_names[EBB_OPTIMIZER_MAX_STATES + 1];
  EbbOptimizerOption options[6]; /* of the kind alone; they belong to the saved state */
  /* Makes the states of @parameter what its next update takes: zeros where there are none yet, and in another format
   * where they were made or loaded in a different one. */
  gboolean (*prepare) (EbbOptimizer *self,
                       EbbTensor *parameter,
                       EbbTensor **states,
                       GError **error);
  /* The dtypes and shape that a loaded state may have. NULL: f32 and the parameter's shape. */
  void (*describe) (guint state,
                    EbbTensor *parameter,
                    EbbOptimizerLayout *layout);
  /* Whether loaded states, of which some may be NULL, belong together; NULL: they always do. */
  gboolean (*check) (const char *name,
                     EbbTensor **states,
                     GError **error);
  /* Moves @n parameters, in as few launches as it can. */
  gboolean (*update) (EbbOptimizer *self,
                      const EbbOptimizerUpdate *updates,
                      guint n,
                      GError **error);
  /* Moves one parameter of the optimizer @data as soon as a backward pass has completed its gradient. */
  gboolean (*move) (EbbTensor *parameter,
                    gpointer data,
                    GError **error);
} EbbOptimizerKind;

typedef struct
{
  char *name;
  EbbTensor *parameter;
  guint group;
  gint64 n_steps;
  guint64 philox_seed;
  gboolean moved;    /* by a backward pass, since the last step */
  gint64 n_elements; /* of the parameter, when its state was made */
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
  EbbModule *module;   /* while constructing; this one... */
  EbbArgs *parameters; /* or this one */
  EbbOptimizerSlot *slots;
  guint n_slots;
  EbbOptimizerGroup *groups;
  guint n_groups;
  double lr, lr_scale, weight_decay, grad_scale;
  EbbTensor *grad_factor; /* f32 [1]: of clipping, on a device; or NULL */
  gint64 n_steps;
  gboolean step_in_backward;
  EbbWeightRounding weight_rounding;
  GHashTable *by_parameter; /* the slots' numbers; while step_in_backward */
  struct _EbbDryRun *run;   /* the dry run in which it moves, or NULL */
} EbbOptimizerPrivate;

EbbOptimizerPrivate *ebb_optimizer_get_private (EbbOptimizer *self);
const EbbOptimizerKind *ebb_optimizer_get_kind (EbbOptimizer *self);
/* The draws of one step of bf16 parameters; the parameter's own seed is yet to be mixed in. */
static inline EbbPhilox
ebb_optimizer_get_rounding (const EbbOptimizerUpdate *update)
{
  return (EbbPhilox){ EBB_OPTIMIZER_ROUNDING_SEED, (guint64) update->step << EBB_OPTIMIZER_STEP_SHIFT };
}
/* Gradients count once again. */
static inline void
ebb_optimizer_reset_scale (EbbOptimizerPrivate *priv)
{
  priv->grad_scale = 1;
  g_clear_pointer (&priv->grad_factor, ebb_tensor_unref);
}
void ebb_optimizer_slot_clear_state (EbbOptimizerSlot *slot);
/* The parameters that have moved: a set of tensors. */
GHashTable *ebb_optimizer_list_moved (EbbOptimizer *self);
/* Whether a master copy of @parameter moves in its place. */
static inline gboolean
ebb_optimizer_keeps_master (const EbbOptimizerPrivate *priv,
                            EbbTensor *parameter)
{
  return priv->weight_rounding == EBB_WEIGHT_ROUNDING_MASTER && parameter->view.dtype != EBB_DTYPE_F32;
}
/* Before anything of @self changes: what a dry run changes is as it was at the run's end. */
void ebb_optimizer_join_dry_run (EbbOptimizer *self);
/* The step () of a class that has a kind. */
gboolean ebb_optimizer_move_all (EbbOptimizer *self,
                                 GError **error);
/* The kind's move (). */
gboolean ebb_optimizer_move_parameter (EbbTensor *parameter,
                                       gpointer data,
                                       GError **error);
/* Names the parameters and the state for the memory timelines that run on this thread. */
void ebb_optimizer_name_memory (EbbOptimizer *self);
/* The type's name as people know it, "AdamW" for EbbAdamW: how messages begin. */
const char *ebb_optimizer_get_type_name (EbbOptimizer *self);
/* The rest of a message that the optimizer has no parameter @name; may be "". */
const char *ebb_optimizer_explain_numbers (EbbOptimizerPrivate *priv,
                                           const char *name);
/* Makes *@state zeros of @dtype where it is NULL. */
gboolean ebb_optimizer_ensure_state (EbbTensor **state,
                                     const gint64 *shape,
                                     guint n_dims,
                                     EbbDType dtype,
                                     EbbDevice *device,
                                     GError **error);
/* TRUE if the state tensor @key of @parameter has a value of its own for each of the parameter's elements. */
gboolean ebb_optimizer_state_follows_elements (EbbOptimizer *self,
                                               EbbTensor *parameter,
                                               const char *key,
                                               EbbDType dtype);
/* Fails if ebb_optimizer_load_state () would, short of memory. */
gboolean ebb_optimizer_check_state (EbbOptimizer *self,
                                    EbbArgs *state,
                                    GError **error);
/* For the constructors of a kind. */
EbbOptimizer *ebb_optimizer_make (GType type,
                                  EbbModule *module,
                                  double lr,
                                  GError **error);
EbbOptimizer *ebb_optimizer_make_for_parameters (GType type,
                                                 EbbTensor **parameters,
                                                 guint n_parameters,
                                                 double lr,
                                                 GError **error);
/* The param spec of an option, which lets any number pass: what makes no sense is an error of init, not a warning. */
GParamSpec *ebb_optimizer_option_spec (const char *name,
                                       double initial,
                                       GParamFlags flags);
gboolean ebb_optimizer_check_option (EbbOptimizer *self,
                                     const char *name,
                                     double value,
                                     GError **error);
/* The set_property () of all optimizers: takes an option that is no number of its range with a warning alone, or
 * refuses it aloud once init is over. */
void ebb_optimizer_set_property (GObject *object,
                                 guint id,
                                 const GValue *value,
                                 GParamSpec *spec);

G_END_DECLS
