/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>
#include <signal.h>

/* Ctrl-C, SIGTERM, a terminal that closes (SIGHUP), and a closed output (SIGPIPE) are noted, so that the step can end
 * and be saved. A second Ctrl-C or SIGTERM ends the program at once. */

G_BEGIN_DECLS

void interrupt_watch (void);
/* The exit status that a signal asks for, 128 + its number; 0 without a signal. */
int interrupt_get_status (void);
/* The status of a closed output. */
#define INTERRUPT_CLOSED (128 + SIGPIPE)

G_END_DECLS
