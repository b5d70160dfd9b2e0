/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/optim/optimizer.h"

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

G_BEGIN_DECLS

#define EBB_TYPE_MOMENT_FORMAT (ebb_moment_format_get_type ())

/**
 * EbbMomentFormat:
 * @EBB_MOMENT_FORMAT_F32: 4 bytes each
 * @EBB_MOMENT_FORMAT_BF16: 2 bytes each. The second moment is rounded stochastically. Rounded to the nearest, it would
 *   stop moving once a step changes it by less than 2^-9, and with a beta2 of 0.999 it would never decrease. Philox
 *   draws the direction from the numbers of the step and the element, so a run repeats bit for bit on any number of
 *   threads, and no random state needs saving.
 * @EBB_MOMENT_FORMAT_EIGHT_BIT: 1 byte each and 8 for every 256 elements: block-wise dynamic quantisation (Dettmers et
 * al., "8-bit optimizers via block-wise quantization", 2022). Parameters of fewer than 4096 elements keep f32.
 *
 * How an optimizer stores its moments, the running means of gradients and of their squares.
 */
typedef enum
{
  EBB_MOMENT_FORMAT_F32,
  EBB_MOMENT_FORMAT_BF16,
  EBB_MOMENT_FORMAT_EIGHT_BIT
} EbbMomentFormat;

EBB_AVAILABLE_IN_ALL
GType ebb_moment_format_get_type (void);

#define EBB_TYPE_ADAM (ebb_adam_get_type ())

/**
 * EbbAdam:
 *
 * Adam, with L2 decay.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbAdam, ebb_adam, EBB, ADAM, EbbOptimizer)

struct _EbbAdamClass
{
  EbbOptimizerClass parent_class;

  /*< private >*/
  gpointer padding[4];
};

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_adam_new (EbbModule *module,
                            double lr,
                            GError **error);

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_adam_new_for_parameters (EbbTensor **parameters,
                                           guint n_parameters,
                                           double lr,
                                           GError **error);

#define EBB_TYPE_ADAMW (ebb_adamw_get_type ())

/**
 * EbbAdamW:
 *
 * Adam with decoupled weight decay.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbAdamW, ebb_adamw, EBB, ADAMW, EbbAdam)

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_adamw_new (EbbModule *module,
                             double lr,
                             GError **error);

EBB_AVAILABLE_IN_ALL
EbbOptimizer *ebb_adamw_new_for_parameters (EbbTensor **parameters,
                                            guint n_parameters,
                                            double lr,
                                            GError **error);

G_END_DECLS
