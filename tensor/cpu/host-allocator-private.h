/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* Memory for tensors on the host: cached, so that a training step in steady state asks the system for nothing. */

G_BEGIN_DECLS

void *ebb_host_alloc (gsize size,
                      GError **error);
void ebb_host_free (void *data,
                    gsize size);
/* Gives the pages of unused blocks back to the system. */
void ebb_host_trim (void);
/* Whether the system may make memory that nobody has touched yet of huge pages; it may as long as nobody says
 * otherwise. Huge pages are read faster later, and where the system has to find them first they take longer to get. */
void ebb_host_allow_huge_pages (void *data,
                                gsize size,
                                gboolean allow);
/* The same for all memory that was never handed out. Making many large tensors that nobody writes yet touches a few
 * bytes in front of each, and a huge page for these costs far more. */
void ebb_host_allow_huge_pages_ahead (gboolean allow);
/* Bytes ever taken from the system and not given back; how often it was asked. */
guint64 ebb_host_get_reserved (void);
guint64 ebb_host_get_system_calls (void);
/* Bytes of address space that the process may still map; G_MAXSIZE where it is not limited. */
gsize ebb_host_get_address_space (void);
/* Of the machine, or of the control group if that has less. */
guint64 ebb_host_get_physical_memory (void);

G_END_DECLS
