/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/backend-private.h"

/* A wait of the host, for memory or for bytes. While a device computes what was enqueued before, the host loses nothing
 * by waiting; and the waits of the device itself are counted with its transfers. */

G_BEGIN_DECLS

typedef struct
{
  EbbDevice *device;
  gint64 start;  /* microseconds */
  double before; /* seconds that the device had worked or waited then */
} EbbStall;

/* @device: whose computing the host goes on with afterwards; NULL: none, and the wait counts for nothing. */
void ebb_stall_begin (EbbStall *stall,
                      EbbDevice *device);
/* Seconds since then that the device had nothing to do. */
double ebb_stall_end (EbbStall *stall);

G_END_DECLS
