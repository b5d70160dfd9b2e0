/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* A 64-bit checksum against what storage does to data, not against malice. Each of four lanes takes every fourth word
 * by a step that can be undone, so a change of one word always shows, and any other but with a chance of 2^-64 or so.
 */

G_BEGIN_DECLS

typedef struct
{
  guint64 lanes[4];
  guint64 size;
} EbbChecksum;

void ebb_checksum_init (EbbChecksum *self);
/* @size must be a multiple of 32. */
void ebb_checksum_update (EbbChecksum *self,
                          const void *data,
                          gsize size);
guint64 ebb_checksum_finish (const EbbChecksum *self);
/* Of @size bytes, whatever that is. */
guint64 ebb_checksum_of (const void *data,
                         gsize size);

G_END_DECLS
