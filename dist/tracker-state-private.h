/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/generator-tracker.h"

G_BEGIN_DECLS

/* Has the generators of the thread's tracker saved and loaded with training states. */
void ebb_tracker_state_install (void);
/* The states of this thread's tracker, moved to where the generators of @saved with the same names were: for a rank that
 * goes on from another one's state, whose numbers must not be its own. */
EbbArgs *ebb_tracker_state_advance (EbbArgs *saved);

G_END_DECLS
