/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/macros.h"

#include <glib.h>

G_BEGIN_DECLS

/**
 * EbbTimingFunc:
 * @n_timed: kernels whose time is known
 * @n_kernels: all kernels of the step, each with each kind of operands once; 0 where the timing has ended
 * @user_data: user data
 *
 * Learns how many kernels of a step have been timed: before the first kernel is timed, after each kernel, and at the
 * end.
 */
typedef void (*EbbTimingFunc) (guint n_timed,
                               guint n_kernels,
                               gpointer user_data);

EBB_AVAILABLE_IN_ALL
void ebb_timing_set_func (EbbTimingFunc func,
                          gpointer user_data,
                          GDestroyNotify destroy);

G_END_DECLS
