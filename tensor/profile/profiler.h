/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/device.h"

G_BEGIN_DECLS

/**
 * EbbPhase:
 * @EBB_PHASE_FORWARD: the call of a module, and ops outside of one that are recorded for the backward pass
 * @EBB_PHASE_RECOMPUTE: what a checkpoint runs again in the backward pass
 * @EBB_PHASE_BACKWARD: a backward pass, without what is recomputed in it
 * @EBB_PHASE_OPTIMIZER: the clipping of gradients and the step of an optimizer
 * @EBB_PHASE_OTHER: anything else, as the making of data
 *
 * The parts of a training step.
 */
typedef enum
{
  EBB_PHASE_FORWARD,
  EBB_PHASE_RECOMPUTE,
  EBB_PHASE_BACKWARD,
  EBB_PHASE_OPTIMIZER,
  EBB_PHASE_OTHER
} EbbPhase;

#define EBB_TYPE_PROFILER (ebb_profiler_get_type ())

/**
 * EbbProfiler:
 *
 * Records what one thread computes: each op with its phase, the module in whose call it runs, its time, the bytes that
 * its kernels read and write, its floating-point operations, and each kernel in it.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbProfiler, ebb_profiler, EBB, PROFILER, GObject)

EBB_AVAILABLE_IN_ALL
EbbProfiler *ebb_profiler_new (void);

EBB_AVAILABLE_IN_ALL
gboolean ebb_profiler_start (EbbProfiler *self,
                             GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_profiler_stop (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
void ebb_profiler_clear (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_profiler_is_running (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_profiler_count_ops (EbbProfiler *self,
                                EbbPhase phase,
                                const char *name);

EBB_AVAILABLE_IN_ALL
guint ebb_profiler_get_n_steps (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_seconds (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_phase_seconds (EbbProfiler *self,
                                       EbbPhase phase);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_product_seconds (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_attention_seconds (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_profiler_measure_floor (EbbProfiler *self,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_floor_seconds (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_attention_floor_seconds (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
double ebb_profiler_get_floor_share (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
char *ebb_profiler_get_table (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
char *ebb_profiler_get_product_table (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
char *ebb_profiler_get_json (EbbProfiler *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_profiler_save_trace (EbbProfiler *self,
                                  const char *path,
                                  GError **error);

G_END_DECLS
