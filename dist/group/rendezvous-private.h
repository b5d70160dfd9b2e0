/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Gives processes that nothing has connected yet the same bytes from rank 0, over TCP. They find it by the variables
 * that torchrun sets, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and share a secret, EBB_RENDEZVOUS_TOKEN, which
 * may be missing if MASTER_ADDR is this machine's loopback device. */

G_BEGIN_DECLS

/* FALSE with @error set if the environment contradicts itself; alone where it says nothing. */
gboolean ebb_rendezvous_find_rank (guint *rank,
                                   guint *size,
                                   GError **error);
/* @data: on rank 0 the bytes, elsewhere where they go. @timeout in seconds. */
gboolean ebb_rendezvous_spread (guint rank,
                                guint size,
                                void *data,
                                gsize n_bytes,
                                double timeout,
                                GError **error);

G_END_DECLS
