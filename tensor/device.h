/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/error.h"

G_BEGIN_DECLS

#define EBB_TYPE_DEVICE (ebb_device_get_type ())

/**
 * EbbDevice:
 *
 * A place where tensors live: a backend and a number, like `cpu`, `sim` or `sim:1`. There is one object for each
 * device, which lives as long as the process.
 */
typedef struct _EbbDevice EbbDevice;

EBB_AVAILABLE_IN_ALL
GType ebb_device_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbDevice *ebb_device_get (const char *name,
                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbDevice *ebb_device_get_cpu (void);

EBB_AVAILABLE_IN_ALL
char **ebb_list_device_kinds (void);

EBB_AVAILABLE_IN_ALL
EbbDevice *ebb_get_default_device (void);

EBB_AVAILABLE_IN_ALL
void ebb_set_default_device (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
const char *ebb_device_get_name (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
gboolean ebb_device_synchronize (EbbDevice *device,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
guint64 ebb_device_get_native_stream (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
void ebb_device_set_loss_chunk (EbbDevice *device,
                                guint64 n_bytes);

EBB_AVAILABLE_IN_ALL
guint64 ebb_device_get_loss_chunk (EbbDevice *device);

EBB_AVAILABLE_IN_ALL
void ebb_set_num_threads (int n_threads);

EBB_AVAILABLE_IN_ALL
int ebb_get_num_threads (void);

G_END_DECLS
