/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Values to blocks of Q8_0 and back. */
#include "nn/files/q8-private.h"

#include "tensor/util/half-private.h"

#include <math.h>
#include <string.h>

void
ebb_q8_encode (const float *values,
               void *blocks,
               gint64 n)
{
  guint8 *block = blocks;

  for (gint64 i = 0; i < n; i += EBB_Q8_BLOCK, block += EBB_Q8_BYTES)
    {
      float largest = 0, inverse;
      guint16 scale;

      for (gint64 k = i; k < i + EBB_Q8_BLOCK; k++)
        largest = MAX (largest, fabsf (values[k]));
      scale = GUINT16_TO_LE (ebb_f16_from_float (largest / 127));
      inverse = largest > 0 ? 1 / (largest / 127) : 0;
      memcpy (block, &scale, 2);
      for (gint64 k = 0; k < EBB_Q8_BLOCK; k++)
        {
          /* A NaN or an infinity has no place in a block: such values are the caller's, and become any byte. */
          const float quotient = roundf (values[i + k] * inverse);

          ((gint8 *) block + 2)[k] = (gint8) (quotient >= -127 && quotient <= 127 ? quotient : 0);
        }
    }
}

void
ebb_q8_decode (const void *blocks,
               float *values,
               gint64 n)
{
  const guint8 *block = blocks;

  for (gint64 i = 0; i < n; i += EBB_Q8_BLOCK, block += EBB_Q8_BYTES)
    {
      guint16 bits;
      float scale;

      memcpy (&bits, block, 2);
      scale = ebb_f16_to_float (GUINT16_FROM_LE (bits));
      for (gint64 k = 0; k < EBB_Q8_BLOCK; k++)
        values[i + k] = scale * (float) ((const gint8 *) block + 2)[k];
    }
}
