/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "nn/module.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
void ebb_checkpoint_reset_stats (EbbModule *root);

EBB_AVAILABLE_IN_ALL
char *ebb_checkpoint_report (EbbModule *root);

EBB_AVAILABLE_IN_ALL
char *ebb_checkpoint_report_json (EbbModule *root);

G_END_DECLS
