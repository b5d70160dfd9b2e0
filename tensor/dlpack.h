/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

EBB_AVAILABLE_IN_ALL
int ebb_tensor_get_dlpack_device (EbbTensor *tensor,
                                  int *index);

EBB_AVAILABLE_IN_ALL
guint64 ebb_tensor_to_dlpack (EbbTensor *tensor,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_from_dlpack (guint64 address,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_dlpack_release (guint64 address);

EBB_AVAILABLE_IN_ALL
guint64 ebb_dlpack_get_capsule_destructor (guint64 is_valid,
                                           guint64 get_pointer);

G_END_DECLS
