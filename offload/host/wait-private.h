/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Threads that wait until others give memory back, and whether any will: only a thread that holds some, that has not
 * ended and that does not wait itself can be expected to. One lock for all pools. */

G_BEGIN_DECLS

typedef struct _EbbHostOwner EbbHostOwner;

void ebb_host_lock (void);
void ebb_host_unlock (void);

/* This thread, with a reference. */
EbbHostOwner *ebb_host_owner_get (void);
void ebb_host_owner_unref (EbbHostOwner *owner);
/* Under the lock: whether that thread, another one, may yet give back what it holds. */
gboolean ebb_host_owner_may_give (EbbHostOwner *owner);

/* Under the lock, which is left meanwhile: until something was given back, or @deadline on the monotonic clock in
 * microseconds. FALSE: it has passed. */
gboolean ebb_host_wait (gint64 deadline);
/* Under the lock: something was given back. */
void ebb_host_announce (void);

G_END_DECLS
