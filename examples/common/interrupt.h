/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Ctrl-C and SIGTERM: the first is noted, so that the step can end and be saved; the second ends the program at once.
 */

G_BEGIN_DECLS

void interrupt_watch (void);
/* The exit status that a signal asks for, 128 + its number; 0 without a signal. */
int interrupt_get_status (void);

G_END_DECLS
