/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* Which parts of a file are in use. Space that was given back is used again before the file grows. */

G_BEGIN_DECLS

typedef struct
{
  GArray *holes;  /* free parts below the end, by offset, never touching each other or the end */
  guint64 end;    /* nothing is in use from here on */
  guint64 in_use; /* bytes */
} EbbSpaceMap;

void ebb_space_map_init (EbbSpaceMap *self);
void ebb_space_map_clear (EbbSpaceMap *self);
/* FALSE if @size bytes would end beyond @limit. */
gboolean ebb_space_map_take (EbbSpaceMap *self,
                             guint64 size,
                             guint64 limit,
                             guint64 *offset);
void ebb_space_map_give (EbbSpaceMap *self,
                         guint64 offset,
                         guint64 size);

G_END_DECLS
