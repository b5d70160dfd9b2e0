/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "dist/mesh.h"
#include "nn/data/dataset.h"
#include "nn/optim/schedule.h"
#include "train/memory-budget.h"

G_BEGIN_DECLS

#define EBB_TYPE_TRAINER_OPTIONS (ebb_trainer_options_get_type ())

/**
 * EbbTrainerOptions:
 *
 * The settings of a training. A trainer copies them when it is made.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbTrainerOptions, ebb_trainer_options, EBB, TRAINER_OPTIONS, GObject)

/**
 * EbbTrainerOptionsClass:
 *
 * The class of settings. They are the library's own.
 */
struct _EbbTrainerOptionsClass
{
  GObjectClass parent_class;

  /*< private >*/
  gpointer padding[4];
};

EBB_AVAILABLE_IN_ALL
EbbTrainerOptions *ebb_trainer_options_new (void);

G_END_DECLS
