/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "offload/compressed/rounding-private.h"

#include <string.h>

/* Worked on at a time: results go to a place of their own first, as source and target may be the same memory. */
#define CHUNK ((gsize) 1024)

#define INFINITE 0x7f800000u
#define MAGNITUDE 0x7fffffffu

typedef union
{
  float value;
  guint32 bits;
} Float;

static guint32
round_bits (guint32 bits)
{
  const guint32 rounded = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;

  return (bits & MAGNITUDE) > INFINITE ? (bits | 0x400000) & 0xffff0000u : rounded;
}

/* The bits of |y - x| / |x|, which compare as the number does; 0 where x is no number or 0. */
static guint32
relative_error (Float x,
                Float y)
{
  const guint32 magnitude = x.bits & MAGNITUDE;
  const Float error = { .value = (y.value - x.value) / x.value };

  return magnitude - 1 < INFINITE - 1 ? error.bits & MAGNITUDE : 0;
}

static guint32
round_chunk (const guint32 *restrict from,
             gsize n,
             guint16 *restrict to)
{
  guint32 worst = 0;

  for (gsize i = 0; i < n; i++)
    {
      const Float x = { .bits = from[i] };
      const Float y = { .bits = round_bits (from[i]) };
      const guint32 error = relative_error (x, y);

      to[i] = (guint16) (y.bits >> 16);
      worst = error > worst ? error : worst;
    }
  return worst;
}

float
ebb_round_to_bf16 (const float *from,
                   gsize n,
                   guint16 *to)
{
  Float worst = { .bits = 0 };
  guint32 chunk[CHUNK];
  guint16 rounded[CHUNK];

  for (gsize start = 0; start < n; start += CHUNK)
    {
      const gsize m = MIN (CHUNK, n - start);
      guint32 error;

      memcpy (chunk, from + start, m * sizeof *chunk);
      error = round_chunk (chunk, m, rounded);
      worst.bits = MAX (worst.bits, error);
      memcpy (to + start, rounded, m * sizeof *rounded);
    }
  return worst.value;
}

void
ebb_widen_bf16 (const guint16 *from,
                gsize n,
                float *to)
{
  guint16 chunk[CHUNK];
  guint32 wide[CHUNK];

  for (gsize start = 0; start < n; start += CHUNK)
    {
      const gsize m = MIN (CHUNK, n - start);

      memcpy (chunk, from + start, m * sizeof *chunk);
      for (gsize i = 0; i < m; i++)
        wide[i] = (guint32) chunk[i] << 16;
      memcpy (to + start, wide, m * sizeof *wide);
    }
}
