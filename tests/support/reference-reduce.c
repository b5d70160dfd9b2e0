/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

/* Calls of one reduction: the outputs are numbered in contiguous order over the kept dimensions, the elements of one
 * output over the reduced ones. */
typedef struct
{
  EbbView kept;
  EbbView reduced;
} Split;

static Split
split (const EbbView *x,
       guint32 dims)
{
  Split result = { *x, *x };

  for (int d = 0; d < x->n_dims; d++)
    if (dims >> d & 1)
      result.kept.shape[d] = 1;
    else
      result.reduced.shape[d] = 1;
  return result;
}

static gint64
get_offset (const Split *parts,
            gint64 output,
            gint64 element)
{
  return ebb_reference_offset (&parts->kept, output) + ebb_reference_offset (&parts->reduced, element);
}

static double
accumulate (EbbReduceKind op,
            gboolean is_first,
            double sum,
            double x)
{
  switch (op)
    {
    case EBB_REDUCE_MAX: return is_first || isnan (x) || x > sum ? x : sum;
    case EBB_REDUCE_MIN: return is_first || isnan (x) || x < sum ? x : sum;
    case EBB_REDUCE_PROD: return is_first ? x : sum * x;
    case EBB_REDUCE_SUM_SQUARES: return sum + x * x;
    case EBB_REDUCE_SUM_ABS: return sum + fabs (x);
    case EBB_REDUCE_MAX_ABS: return isnan (x) || fabs (x) > sum ? fabs (x) : sum;
    case EBB_REDUCE_ANY: return sum != 0 || x != 0;
    case EBB_REDUCE_ALL: return (is_first || sum != 0) && x != 0;
    default: return sum + x;
    }
}

gboolean
ebb_reference_reduce (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];
  EbbReduceKind op = launch->params.reduce.op;
  Split parts = split (x, launch->params.reduce.dims);
  gint64 n = ebb_reference_count (&parts.reduced);

  for (gint64 output = 0; output < ebb_reference_count (&parts.kept); output++)
    {
      double sum = 0;

      for (gint64 i = 0; i < n; i++)
        sum = accumulate (op, i == 0, sum, ebb_reference_load (x, get_offset (&parts, output, i)));
      ebb_reference_store (y, output, op == EBB_REDUCE_MEAN ? sum / (double) n : sum);
    }
  return TRUE;
}

gboolean
ebb_reference_var (const EbbLaunch *launch,
                   GError **error)
{
  const EbbView *x = launch->inputs[0];
  Split parts = split (x, launch->params.reduce.dims);
  gint64 n = ebb_reference_count (&parts.reduced);

  for (gint64 output = 0; output < ebb_reference_count (&parts.kept); output++)
    {
      double mean = 0, squares = 0;

      for (gint64 i = 0; i < n; i++)
        mean += ebb_reference_load (x, get_offset (&parts, output, i)) / (double) n;
      for (gint64 i = 0; i < n; i++)
        squares += pow (ebb_reference_load (x, get_offset (&parts, output, i)) - mean, 2);
      ebb_reference_store (launch->outputs[0], output,
                           squares / MAX ((double) n - launch->params.reduce.correction, 0));
      ebb_reference_store (launch->outputs[1], output, mean);
      if (launch->n_outputs > 2 && launch->outputs[2] != NULL)
        ebb_reference_store (launch->outputs[2], output, mean - (float) mean);
    }
  return TRUE;
}

gboolean
ebb_reference_arg_reduce (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *x = launch->inputs[0];
  Split parts = split (x, launch->params.reduce.dims);

  for (gint64 output = 0; output < ebb_reference_count (&parts.kept); output++)
    {
      gint64 winner = 0;

      for (gint64 i = 1; i < ebb_reference_count (&parts.reduced); i++)
        {
          double best = ebb_reference_load (x, get_offset (&parts, output, winner));
          double value = ebb_reference_load (x, get_offset (&parts, output, i));
          gboolean wins = launch->params.reduce.op == EBB_REDUCE_MAX ? value > best : value < best;

          if (wins || (isnan (value) && !isnan (best)))
            winner = i;
        }
      if (launch->outputs[0] != NULL)
        ebb_reference_store (launch->outputs[0], output, ebb_reference_load (x, get_offset (&parts, output, winner)));
      if (launch->outputs[1] != NULL)
        ebb_reference_store_integer (launch->outputs[1], output, winner);
    }
  return TRUE;
}

/* By selection: k times the best that is not taken. */
gboolean
ebb_reference_topk (const EbbLaunch *launch,
                    GError **error)
{
  const EbbView *x = launch->inputs[0];
  gint64 n = x->shape[x->n_dims - 1], k = launch->params.topk.k;

  for (gint64 row = 0; row < ebb_reference_count (x) / n; row++)
    {
      gboolean *taken = g_new0 (gboolean, n);

      for (gint64 j = 0; j < k; j++)
        {
          gint64 best = -1;

          for (gint64 i = 0; i < n; i++)
            {
              double value = ebb_reference_load (x, row * n + i);
              double other = best >= 0 ? ebb_reference_load (x, row * n + best) : 0;

              if (!taken[i] && (best < 0 || (launch->params.topk.largest ? value > other : value < other)))
                best = i;
            }
          taken[best] = TRUE;
          ebb_reference_store (launch->outputs[0], row * k + j, ebb_reference_load (x, row * n + best));
          ebb_reference_store_integer (launch->outputs[1], row * k + j, best);
        }
      g_free (taken);
    }
  return TRUE;
}

gboolean
ebb_reference_column_sum (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];
  gint64 columns = x->shape[x->n_dims - 1];

  for (gint64 j = 0; j < columns; j++)
    {
      double sum = launch->params.column_sum.accumulate ? ebb_reference_load (y, j) : 0;

      for (gint64 row = 0; row < ebb_reference_count (x) / columns; row++)
        sum += ebb_reference_load (x, row * columns + j);
      ebb_reference_store (y, j, sum);
    }
  return TRUE;
}
