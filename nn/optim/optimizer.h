/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

#define EBB_TYPE_WEIGHT_ROUNDING (ebb_weight_rounding_get_type ())

/**
 * EbbWeightRounding:
 * @EBB_WEIGHT_ROUNDING_MASTER: a master copy in f32 moves and is rounded to the nearest: 4 more bytes a parameter
 * @EBB_WEIGHT_ROUNDING_RANDOM: the parameter moves itself and is rounded down or up at random, with the probabilities
 * that make the mean right
 * @EBB_WEIGHT_ROUNDING_NEAREST: the parameter moves itself and is rounded to the nearest, which undoes small steps
 *
 * How an optimizer moves parameters in bf16.
 */
typedef enum
{
  EBB_WEIGHT_ROUNDING_MASTER,
  EBB_WEIGHT_ROUNDING_RANDOM,
  EBB_WEIGHT_ROUNDING_NEAREST
} EbbWeightRounding;

EBB_AVAILABLE_IN_ALL
GType ebb_weight_rounding_get_type (void);

#define EBB_TYPE_OPTIMIZER (ebb_optimizer_get_type ())

/**
 * EbbOptimizer:
 *
 * Moves the parameters of a module, or of a list, along their gradients. Parameters are in groups, each with a learning
 * rate and a weight decay; group 0 holds all that were not put elsewhere.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbOptimizer, ebb_optimizer, EBB, OPTIMIZER, GObject)

/**
 * EbbOptimizerClass:
 * @step: changes the parameters that have a gradient; gradients are not recorded while it runs
 *
 * The class of optimizers. Take a step by ebb_optimizer_step(), never by this.
 */
struct _EbbOptimizerClass
{
  GObjectClass parent_class;

  gboolean (*step) (EbbOptimizer *self,
                    GError **error);

  /*< private >*/
  gconstpointer kind;
  gpointer padding[8];
};

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_step (EbbOptimizer *self,
                             GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_optimizer_zero_grad (EbbOptimizer *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_zero_grad_in_place (EbbOptimizer *self,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_optimizer_scale_grad (EbbOptimizer *self,
                               double factor);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_optimizer_clip_grad_norm (EbbOptimizer *self,
                                         double max_norm,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_optimizer_clip_grad_p_norm (EbbOptimizer *self,
                                           double max_norm,
                                           double p,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
gint64 ebb_optimizer_get_n_steps (EbbOptimizer *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_set_option (EbbOptimizer *self,
                                   const char *name,
                                   double value,
                                   GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_add_parameters (EbbOptimizer *self,
                                       EbbTensor **parameters,
                                       guint n_parameters,
                                       double lr,
                                       double weight_decay,
                                       guint *group,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_add_group (EbbOptimizer *self,
                                  const char *const *patterns,
                                  double lr,
                                  double weight_decay,
                                  guint *group,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_exclude_from_decay (EbbOptimizer *self,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
guint ebb_optimizer_get_n_groups (EbbOptimizer *self);

EBB_AVAILABLE_IN_ALL
double ebb_optimizer_get_group_lr (EbbOptimizer *self,
                                   guint group);

EBB_AVAILABLE_IN_ALL
void ebb_optimizer_set_group_lr (EbbOptimizer *self,
                                 guint group,
                                 double lr);

EBB_AVAILABLE_IN_ALL
double ebb_optimizer_get_group_weight_decay (EbbOptimizer *self,
                                             guint group);

EBB_AVAILABLE_IN_ALL
void ebb_optimizer_set_group_weight_decay (EbbOptimizer *self,
                                           guint group,
                                           double weight_decay);

EBB_AVAILABLE_IN_ALL
char **ebb_optimizer_get_group_names (EbbOptimizer *self,
                                      guint group);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_optimizer_get_group_parameters (EbbOptimizer *self,
                                                guint group,
                                                guint *n_parameters);

EBB_AVAILABLE_IN_ALL
EbbTensor **ebb_optimizer_get_parameters (EbbOptimizer *self,
                                          guint *n_parameters);

EBB_AVAILABLE_IN_ALL
EbbArgs *ebb_optimizer_get_state (EbbOptimizer *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_optimizer_load_state (EbbOptimizer *self,
                                   EbbArgs *state,
                                   GError **error);

G_END_DECLS
