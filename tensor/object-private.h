/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Memory for the structs that each op makes: tensors, storages, nodes, handles. From the host allocator's per-thread
 * lists, without a lock or a call to malloc. Never NULL; the contents are whatever they were. */

G_BEGIN_DECLS

void *ebb_object_alloc (gsize size);
void ebb_object_free (void *object,
                      gsize size);
#define ebb_object_new(type) ((type *) ebb_object_alloc (sizeof (type)))

G_END_DECLS
