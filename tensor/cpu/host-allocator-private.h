/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/error.h"

/* Memory for tensors on the host: cached, so that a training step in steady state asks the system for nothing. */

G_BEGIN_DECLS

void *ebb_host_alloc (gsize size,
                      GError **error);
void ebb_host_free (void *data,
                    gsize size);
/* For the structs that each op makes, from the same per-thread lists: tensors, storages, nodes, handles. Never NULL;
 * the contents are whatever they were. */
void *ebb_object_alloc (gsize size);
void ebb_object_free (void *object,
                      gsize size);
#define ebb_object_new(type) ((type *) ebb_object_alloc (sizeof (type)))
/* Gives the pages of unused blocks back to the system. */
void ebb_host_trim (void);
/* Bytes ever taken from the system and not given back; how often it was asked. */
guint64 ebb_host_get_reserved (void);
guint64 ebb_host_get_system_calls (void);
/* Of the machine, or of the control group if that has less. */
guint64 ebb_host_get_physical_memory (void);

G_END_DECLS
