/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Counts how often the host waits for a device, on any thread. */

G_BEGIN_DECLS

/* Begins to count at 0, for one device in a program. */
void test_waits_begin (EbbDevice *device);
void test_waits_reset (void);
/* All: the host also waits for a copy between it and the device. */
guint test_waits_get_n (void);
/* Without the copies. */
guint test_waits_get_n_synchronized (void);

G_END_DECLS
