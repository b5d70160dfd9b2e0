/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"
#include "nn/optim/optimizer.h"
#include "tensor/profile/timeline.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
void ebb_memory_timeline_name_module (EbbMemoryTimeline *self,
                                      EbbModule *module);

EBB_AVAILABLE_IN_ALL
void ebb_memory_timeline_name_optimizer (EbbMemoryTimeline *self,
                                         EbbOptimizer *optimizer);

G_END_DECLS
