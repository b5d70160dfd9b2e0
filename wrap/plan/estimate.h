/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "tensor/memory.h"
#include "tensor/profile/timeline.h"

G_BEGIN_DECLS

/**
 * EbbStepFunc:
 * @model: the model
 * @user_data: user data
 * @error: return location for an error
 *
 * One training step as the program does it: takes a batch, runs the forward and the backward pass, lets the optimizer
 * move, and drops the gradients. It reads no values that ops have computed, such as the loss: a dry run has none.
 *
 * Returns: %FALSE with @error set if the step failed
 */
typedef gboolean (*EbbStepFunc) (EbbModule *model,
                                 gpointer user_data,
                                 GError **error);

#define EBB_TYPE_MEMORY_ESTIMATE (ebb_memory_estimate_get_type ())

/**
 * EbbMemoryEstimate:
 *
 * The memory that a training step needs, from a dry run of it.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMemoryEstimate, ebb_memory_estimate, EBB, MEMORY_ESTIMATE, GObject)

EBB_AVAILABLE_IN_ALL
EbbMemoryEstimate *ebb_memory_estimate_new (EbbModule *model,
                                            EbbDevice *device,
                                            EbbStepFunc step,
                                            gpointer user_data,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_estimate_get_peak (EbbMemoryEstimate *self,
                                      EbbPurpose purpose);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_estimate_get_peak_total (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_estimate_get_host_peak_total (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_estimate_get_extent (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_estimate_get_leaked_bytes (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
const char *ebb_memory_estimate_get_leak (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
double ebb_memory_estimate_measure_seconds (EbbMemoryEstimate *self,
                                            double max_seconds,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_estimate_is_disturbed (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
EbbMemoryTimeline *ebb_memory_estimate_get_timeline (EbbMemoryEstimate *self);

EBB_AVAILABLE_IN_ALL
char *ebb_memory_estimate_to_string (EbbMemoryEstimate *self);

G_END_DECLS
