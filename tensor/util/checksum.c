/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Computes the library's checksum and its hash. */
#include "tensor/util/checksum-private.h"

#include <string.h>

/* Odd, so that a product modulo 2^64 can be undone. */
#define MULTIPLIER G_GUINT64_CONSTANT (0xd1342543de82ef95)

static inline guint64
rotate (guint64 word,
        guint by)
{
  return word << by | word >> (64 - by);
}

static inline guint64
step (guint64 lane,
      guint64 word)
{
  return (rotate (lane, 29) ^ word) * MULTIPLIER;
}

void
ebb_checksum_init (EbbChecksum *self)
{
  *self = (EbbChecksum){ .lanes = { 1, 2, 3, 4 } };
}

void
ebb_checksum_update (EbbChecksum *self,
                     const void *data,
                     gsize size)
{
  guint64 a = self->lanes[0], b = self->lanes[1], c = self->lanes[2], d = self->lanes[3];

  g_assert (size % 32 == 0);
  for (const char *at = data, *end = at + size; at < end; at += 32)
    {
      guint64 words[4];

      memcpy (words, at, sizeof words);
      a = step (a, GUINT64_FROM_LE (words[0]));
      b = step (b, GUINT64_FROM_LE (words[1]));
      c = step (c, GUINT64_FROM_LE (words[2]));
      d = step (d, GUINT64_FROM_LE (words[3]));
    }
  self->lanes[0] = a;
  self->lanes[1] = b;
  self->lanes[2] = c;
  self->lanes[3] = d;
  self->size += size;
}

guint64
ebb_checksum_finish (const EbbChecksum *self)
{
  guint64 sum = self->size;

  for (guint i = 0; i < 4; i++)
    {
      sum = step (sum, self->lanes[i]);
      sum ^= sum >> 32;
    }
  return sum;
}

guint64
ebb_checksum_of (const void *data,
                 gsize size)
{
  const gsize whole = size - size % 32;
  EbbChecksum checksum;
  char rest[32] = { 0 };

  ebb_checksum_init (&checksum);
  if (whole > 0)
    ebb_checksum_update (&checksum, data, whole);
  if (whole < size)
    {
      memcpy (rest, (const char *) data + whole, size - whole);
      ebb_checksum_update (&checksum, rest, sizeof rest);
      checksum.size = size;
    }
  return ebb_checksum_finish (&checksum);
}

guint64
ebb_hash_of (const void *words,
             gsize size)
{
  guint64 hash = EBB_HASH_BEGIN;

  g_assert (size % sizeof (guint64) == 0);
  for (gsize i = 0; i < size / sizeof (guint64); i++)
    hash = ebb_hash_add (hash, ((const guint64 *) words)[i]);
  return hash;
}

#define ADD_TERMS(Type)                                                              \
  for (gint64 i = 0; i < n; i++)                                                     \
    {                                                                                \
      const guint64 place = (seed + (guint64) (first + i)) * MULTIPLIER;             \
                                                                                     \
      sum += (((const Type *) data)[i] + (guint64) 1) * ((place ^ place >> 32) | 1); \
    }

guint64
ebb_checksum_sum (guint64 seed,
                  const void *data,
                  gsize element_size,
                  gint64 first,
                  gint64 n)
{
  guint64 sum = 0;

  switch (element_size)
    {
    case 1: ADD_TERMS (guint8); break;
    case 2: ADD_TERMS (guint16); break;
    case 4: ADD_TERMS (guint32); break;
    default: ADD_TERMS (guint64);
    }
  return sum;
}
