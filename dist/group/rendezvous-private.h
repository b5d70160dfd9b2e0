/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* How processes that nothing has brought together yet get the same bytes from rank 0, over TCP. Each is told where that
 * is by the environment, as torchrun does: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; and a secret that
 * they share, EBB_RENDEZVOUS_TOKEN, which may be missing if MASTER_ADDR is this machine's loopback device. */

G_BEGIN_DECLS

/* FALSE with @error set if the environment contradicts itself; alone where it says nothing. */
gboolean ebb_rendezvous_find_rank (guint *rank,
                                   guint *size,
                                   GError **error);
/* @data: of rank 0 what it gives, of the others where it goes. @timeout in seconds. */
gboolean ebb_rendezvous_spread (guint rank,
                                guint size,
                                void *data,
                                gsize n_bytes,
                                double timeout,
                                GError **error);

G_END_DECLS
