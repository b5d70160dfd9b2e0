/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/device.h"

G_BEGIN_DECLS

/**
 * EbbPurpose:
 * @EBB_PURPOSE_PARAMETER: parameters and buffers of modules
 * @EBB_PURPOSE_GRADIENT: gradients of parameters
 * @EBB_PURPOSE_OPTIMIZER: moments and other state of optimizers
 * @EBB_PURPOSE_ACTIVATION: what is kept from the forward pass for the backward pass
 * @EBB_PURPOSE_CACHE: keys and values of tokens that a model has seen, while it generates
 * @EBB_PURPOSE_WORKSPACE: everything else: intermediate results, scratch, data
 *
 * The use of memory. A tensor begins as workspace and is re-tagged when it is registered, saved for backward,
 * released, or becomes a gradient.
 */
typedef enum
{
  EBB_PURPOSE_PARAMETER,
  EBB_PURPOSE_GRADIENT,
  EBB_PURPOSE_OPTIMIZER,
  EBB_PURPOSE_ACTIVATION,
  EBB_PURPOSE_CACHE,
  EBB_PURPOSE_WORKSPACE
} EbbPurpose;

#define EBB_N_PURPOSES 6

#define EBB_TYPE_MEMORY_STATS (ebb_memory_stats_get_type ())

/**
 * EbbMemoryStats:
 *
 * Bytes of tensors on one device at one moment, by purpose.
 */
typedef struct _EbbMemoryStats EbbMemoryStats;

EBB_AVAILABLE_IN_ALL
GType ebb_memory_stats_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbMemoryStats *ebb_memory_get_stats (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
EbbMemoryStats *ebb_memory_stats_copy (EbbMemoryStats *stats);

EBB_AVAILABLE_IN_ALL
void ebb_memory_stats_free (EbbMemoryStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_stats_get_current (EbbMemoryStats *stats,
                                      EbbPurpose purpose);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_stats_get_peak (EbbMemoryStats *stats,
                                   EbbPurpose purpose);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_stats_get_total (EbbMemoryStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_stats_get_peak_total (EbbMemoryStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_stats_get_reserved (EbbMemoryStats *stats);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_stats_get_system_calls (EbbMemoryStats *stats);

EBB_AVAILABLE_IN_ALL
void ebb_memory_reset_peaks (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
void ebb_memory_set_limit (EbbDevice *device,
                           guint64 n_bytes);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_get_limit (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_get_available (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
void ebb_memory_trim (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_parse_size (const char *text,
                                guint64 *n_bytes,
                                GError **error);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbMemoryStats, ebb_memory_stats_free)

G_END_DECLS
