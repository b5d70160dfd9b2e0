/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/cpu/simd/vec-private.h"

/* The mean and the variance of numbers, from the sums of their distances to a centre, which is the first of them, and
 * of the squares of these (Chan, Golub, LeVeque 1983: shifted and corrected). Equal numbers have distances of 0, so
 * their mean and their variance are exact. The mean is right to the last place, as far as distances summed in f32 are,
 * and what that place leaves out is known too: far from zero it is not small beside the deviation. */
typedef struct
{
  float centre;   /* what distances are to be summed to */
  float mean;     /* rounded */
  float rest;     /* of the mean */
  float variance; /* of the population; a NaN if a number is one */
} EbbStatistics;

/* From the two sums of @n distances. FALSE: the centre was more than two standard deviations from the mean, so the
 * squares had little room for the variance, or none at all in f32: they are to be summed once more, and that is then
 * exact. */
EBB_VEC_INLINE gboolean
ebb_statistics_take (EbbStatistics *self,
                     double sum,
                     double squares,
                     double n)
{
  double distance = sum / n, mean = self->centre + distance, variance = squares / n - distance * distance;

  self->mean = self->centre = (float) mean;
  self->rest = (float) (mean - self->mean);
  self->variance = (float) MAX (0, variance); /* a NaN is not less */
  return !(distance * distance > 4 * variance) && !isinf (squares);
}
