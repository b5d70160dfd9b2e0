/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Threads that wait until others give memory back, and whether any will: only a thread that holds some, that has not
 * ended and that does not wait itself can be expected to. A pool's own lock is taken within ebb_host_wait_begin () and
 * end, not around them. */

G_BEGIN_DECLS

typedef struct _EbbHostOwner EbbHostOwner;

/* This thread, with a reference. */
EbbHostOwner *ebb_host_owner_get (void);
void ebb_host_owner_unref (EbbHostOwner *owner);
/* Around a look at a pool and the waits for it: other threads that begin to wait, or end, do so before or after. */
void ebb_host_wait_begin (void);
void ebb_host_wait_end (void);
/* Between them: whether that thread, another one, may yet give back the memory it holds. */
gboolean ebb_host_owner_may_give (EbbHostOwner *owner);
/* Between them: until memory was given back, or @deadline on the monotonic clock in microseconds. FALSE: it has passed.
 */
gboolean ebb_host_wait (gint64 deadline);
/* Memory was given back, or a limit changed; without the pool's lock. */
void ebb_host_announce (void);

G_END_DECLS
