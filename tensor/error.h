/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include <glib-object.h>

#include "tensor/macros.h"

G_BEGIN_DECLS

/**
 * EBB_ERROR:
 *
 * The error domain of Ebb.
 */
#define EBB_ERROR (ebb_error_quark ())

/**
 * EbbError:
 * @EBB_ERROR_INVALID_ARGUMENT: an argument has a value that makes no sense
 * @EBB_ERROR_SHAPE: shapes do not fit each other
 * @EBB_ERROR_DTYPE: an element type is not supported here
 * @EBB_ERROR_INDEX: an index is out of range
 * @EBB_ERROR_NO_MEMORY: an allocation cannot be met
 * @EBB_ERROR_DEVICE: a device is missing, or tensors are on different devices
 * @EBB_ERROR_GRAPH: the autograd graph does not allow what was asked
 * @EBB_ERROR_VERSION: a tensor that backward needs was changed in place
 * @EBB_ERROR_RECOMPUTE: a recompute did not give what the first forward gave
 * @EBB_ERROR_STATE: a state dict or a saved state does not fit
 * @EBB_ERROR_FORMAT: a file or text is not what it should be
 * @EBB_ERROR_IO: a file can't be read or written
 * @EBB_ERROR_CALLBACK: a callback or a virtual function failed without saying why
 * @EBB_ERROR_STOP: data of a tensor was read after the early stop of a recompute; absorbed by the recompute
 * @EBB_ERROR_CANCELLED: the work was cancelled
 * @EBB_ERROR_NOT_SUPPORTED: something that is not implemented for this case
 * @EBB_ERROR_RACE: work on a device was not ordered after what it depends on
 * @EBB_ERROR_DRY_RUN: values were read in a dry run, which computes none, or one of its tensors was used outside of it
 * @EBB_ERROR_PROCESS_GROUP: ranks didn't do the same, or one of them has left, has died or is late
 *
 * The codes of %EBB_ERROR.
 */
typedef enum
{
  EBB_ERROR_INVALID_ARGUMENT,
  EBB_ERROR_SHAPE,
  EBB_ERROR_DTYPE,
  EBB_ERROR_INDEX,
  EBB_ERROR_NO_MEMORY,
  EBB_ERROR_DEVICE,
  EBB_ERROR_GRAPH,
  EBB_ERROR_VERSION,
  EBB_ERROR_RECOMPUTE,
  EBB_ERROR_STATE,
  EBB_ERROR_FORMAT,
  EBB_ERROR_IO,
  EBB_ERROR_CALLBACK,
  EBB_ERROR_STOP,
  EBB_ERROR_CANCELLED,
  EBB_ERROR_NOT_SUPPORTED,
  EBB_ERROR_RACE,
  EBB_ERROR_DRY_RUN,
  EBB_ERROR_PROCESS_GROUP
} EbbError;

EBB_AVAILABLE_IN_ALL
GQuark ebb_error_quark (void);

G_END_DECLS
