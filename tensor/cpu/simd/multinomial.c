/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "tensor/cpu/simd/cursor-private.h"
#include "tensor/cpu/simd/philox-private.h"
#include "tensor/cpu/simd/simd-private.h"
#include "tensor/error-private.h"

/* Draws indices in proportion to weights. */

/* cumulative[j] = weights[0] + … + weights[j]; FALSE if a weight is negative or not finite, or if all are 0. */
static gboolean
accumulate_weights (const float *weights,
                    gint64 n,
                    double *cumulative)
{
  double sum = 0;

  for (gint64 j = 0; j < n; j++)
    {
      if (!(weights[j] >= 0))
        return FALSE;
      sum += weights[j];
      cumulative[j] = sum;
    }
  return sum > 0 && isfinite (sum);
}

/* The first index whose cumulative weight is above the target. */
static gint64
find_above (const double *cumulative,
            gint64 n,
            double target)
{
  gint64 low = 0, high = n - 1;

  while (low < high)
    {
      gint64 middle = low + (high - low) / 2;

      if (cumulative[middle] > target)
        high = middle;
      else
        low = middle + 1;
    }
  return low;
}

EBB_SIMD_WORKSPACE (multinomial)
{
  gint64 rows, n;

  ebb_view_get_rows (launch->inputs[0], &rows, &n);
  return (gsize) n * sizeof (double);
}

EBB_SIMD_KERNEL (multinomial)
{
  EbbPhilox philox = launch->params.random.philox;
  const float *weights = launch->inputs[0]->data;
  gint64 *indices = launch->outputs[0]->data;
  gint64 rows, n, samples, output_rows;
  double *cumulative;
  gboolean ok = TRUE;

  ebb_view_get_rows (launch->inputs[0], &rows, &n);
  ebb_view_get_rows (launch->outputs[0], &output_rows, &samples);
  if (rows == 0 || samples == 0)
    return TRUE;
  cumulative = launch->workspace;
  for (gint64 row = 0; row < rows && ok; row++)
    {
      ok = accumulate_weights (weights + row * n, n, cumulative);
      for (gint64 s = 0; s < samples && ok; s++)
        {
          guint64 i = (guint64) (row * samples + s);
          guint32 draw;

          ebb_philox_fill (philox.seed, philox.offset, i, 1, &draw);
          indices[i] = find_above (cumulative, n, draw * 2.3283064365386963e-10 * cumulative[n - 1]);
        }
      if (!ok)
        ebb_error_set (
            error, EBB_ERROR_INVALID_ARGUMENT,
            "Row %" G_GINT64_FORMAT " of the weights to draw from must be finite, not negative and not all 0", row);
    }
  return ok;
}
