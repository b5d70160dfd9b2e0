/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/memory.h"
#include "tensor/tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_MEMORY_TIMELINE (ebb_memory_timeline_get_type ())

/**
 * EbbMemoryTimeline:
 *
 * Records who holds which bytes of one device when: every allocation, every change of purpose and every free, with the
 * op, the module and the phase of the training step in which it happens.
 */
EBB_AVAILABLE_IN_ALL
G_DECLARE_FINAL_TYPE (EbbMemoryTimeline, ebb_memory_timeline, EBB, MEMORY_TIMELINE, GObject)

EBB_AVAILABLE_IN_ALL
EbbMemoryTimeline *ebb_memory_timeline_new (const char *name);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_timeline_start (EbbMemoryTimeline *self,
                                    EbbDevice *device,
                                    GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_memory_timeline_stop (EbbMemoryTimeline *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_timeline_is_running (EbbMemoryTimeline *self);

EBB_AVAILABLE_IN_ALL
void ebb_memory_timeline_name_tensor (EbbMemoryTimeline *self,
                                      EbbTensor *tensor,
                                      const char *name);

EBB_AVAILABLE_IN_ALL
void ebb_memory_timeline_set_name (EbbMemoryTimeline *self,
                                   const char *name);

EBB_AVAILABLE_IN_ALL
const char *ebb_memory_timeline_get_name (EbbMemoryTimeline *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_timeline_get_peak_total (EbbMemoryTimeline *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_timeline_get_peak (EbbMemoryTimeline *self,
                                      EbbPurpose purpose);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_timeline_get_n_changes (EbbMemoryTimeline *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_memory_timeline_get_n_launches (EbbMemoryTimeline *self);

EBB_AVAILABLE_IN_ALL
char *ebb_memory_timeline_get_table (EbbMemoryTimeline *self,
                                     guint n_holders);

EBB_AVAILABLE_IN_ALL
char *ebb_memory_timeline_get_json (EbbMemoryTimeline *self,
                                    guint n_holders);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_timeline_save_html (EbbMemoryTimeline **timelines,
                                        guint n_timelines,
                                        guint64 budget,
                                        const char *path,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_memory_timeline_save_svg (EbbMemoryTimeline **timelines,
                                       guint n_timelines,
                                       guint64 budget,
                                       const char *path,
                                       GError **error);

G_END_DECLS
