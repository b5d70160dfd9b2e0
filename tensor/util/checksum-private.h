/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

/* The library's one checksum and its one hash, 64 bits each. The checksum is the same on every machine and guards
 * against what storage does to data, not against malice. Each of four lanes takes every fourth word by a step that can
 * be undone, so a change of one word always shows, and any other except with a chance of 2^-64 or so. The hash is for
 * keys in memory. */

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
/* @size may be any. */
guint64 ebb_checksum_of (const void *data,
                         gsize size);

/* Of @n elements of @element_size bytes (1, 2, 4 or 8) that begin with number @first of a row of them: the sum of their
 * terms, so that the parts of a row may be added up in any order. A change of one element always shows. */
guint64 ebb_checksum_sum (guint64 seed,
                          const void *data,
                          gsize element_size,
                          gint64 first,
                          gint64 n);

#define EBB_HASH_BEGIN G_GUINT64_CONSTANT (0x9e3779b97f4a7c15)

static inline guint64
ebb_hash_add (guint64 hash,
              guint64 word)
{
  hash = (hash ^ word) * G_GUINT64_CONSTANT (0xff51afd7ed558ccd);
  return hash ^ hash >> 32;
}

/* @size must be a multiple of 8. */
guint64 ebb_hash_of (const void *words,
                     gsize size);

G_END_DECLS
