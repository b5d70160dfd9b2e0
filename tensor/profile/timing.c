/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Tells the program how far the timing of kernels is. */
#include "tensor/profile/timing.h"

#include "tensor/profile/cost-private.h"

static struct
{
  EbbTimingFunc func;
  gpointer user_data;
  GDestroyNotify destroy;
} timing;

/**
 * ebb_timing_set_func:
 * @func: (nullable) (scope notified) (closure user_data) (destroy destroy): called while kernels are timed, on the
 *   thread that times them; %NULL: nobody is told
 * @user_data: user data of @func
 * @destroy: (nullable): frees @user_data when another function is set
 *
 * Shows the progress of estimates and plans that time kernels: ebb_memory_estimate_measure_seconds() and
 * ebb_memory_plan_new() take some seconds on a machine that has not timed the kernels of the step before. Where all
 * times are known, @func is not called. There is one function in a process: set it while no kernels are timed.
 */
void
ebb_timing_set_func (EbbTimingFunc func,
                     gpointer user_data,
                     GDestroyNotify destroy)
{
  if (timing.destroy != NULL)
    timing.destroy (timing.user_data);
  timing.func = func;
  timing.user_data = user_data;
  timing.destroy = destroy;
}

void
ebb_timing_notify (guint n_timed,
                   guint n_kernels)
{
  if (timing.func != NULL)
    timing.func (n_timed, n_kernels, timing.user_data);
}
