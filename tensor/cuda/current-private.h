/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <glib.h>

#include "tensor/cuda/runtime-private.h"

/* The current device of a thread. The modules of devices and of process groups over NCCL are compiled with it. */

G_BEGIN_DECLS

/* Makes @index CUDA's current device of this thread and gives the one that was, for ebb_cuda_leave (). */
int ebb_cuda_enter (int index);
void ebb_cuda_leave (int previous);
/* A function of the driver, which the runtime knows by name; FALSE: it has none. */
gboolean ebb_cuda_find_function (const char *name,
                                 void *function);

G_END_DECLS
