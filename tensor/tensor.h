/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/device.h"
#include "tensor/dtype.h"

G_BEGIN_DECLS

#define EBB_TYPE_TENSOR (ebb_tensor_get_type ())

/**
 * EbbTensor:
 *
 * A view (shape, strides, offset) of a reference-counted storage on a device. A tensor is immutable as a view; its
 * data may be changed in place.
 */
typedef struct _EbbTensor EbbTensor;

EBB_AVAILABLE_IN_ALL
GType ebb_tensor_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_ref (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
void ebb_tensor_unref (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_empty (const gint64 *shape,
                                 guint n_dims,
                                 EbbDType dtype,
                                 EbbDevice *device,
                                 GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_from_floats (const float *values,
                                       gsize n_values,
                                       const gint64 *shape,
                                       guint n_dims,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_from_ints (const gint64 *values,
                                     gsize n_values,
                                     const gint64 *shape,
                                     guint n_dims,
                                     GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_from_bytes (GBytes *bytes,
                                      gsize offset,
                                      const gint64 *shape,
                                      guint n_dims,
                                      EbbDType dtype,
                                      GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_from_pointer (guint64 address,
                                        const gint64 *shape,
                                        guint n_dims,
                                        const gint64 *strides,
                                        guint n_strides,
                                        EbbDType dtype,
                                        GDestroyNotify destroy,
                                        gpointer user_data,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_new_from_address (guint64 address,
                                        const gint64 *shape,
                                        guint n_dims,
                                        const gint64 *strides,
                                        guint n_strides,
                                        EbbDType dtype,
                                        GObject *owner,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_tensor_dispose (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
guint ebb_tensor_get_n_dims (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
const gint64 *ebb_tensor_get_shape (EbbTensor *tensor,
                                    guint *n_dims);

EBB_AVAILABLE_IN_ALL
const gint64 *ebb_tensor_get_strides (EbbTensor *tensor,
                                      guint *n_dims);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tensor_get_dim (EbbTensor *tensor,
                           int dim);

EBB_AVAILABLE_IN_ALL
gint64 ebb_tensor_get_n_elements (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gsize ebb_tensor_get_n_bytes (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
EbbDType ebb_tensor_get_dtype (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
EbbDevice *ebb_tensor_get_device (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_is_contiguous (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_shares_storage (EbbTensor *a,
                                    EbbTensor *b);

EBB_AVAILABLE_IN_ALL
guint64 ebb_tensor_get_storage_id (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
guint ebb_tensor_get_version (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gpointer ebb_tensor_get_data (EbbTensor *tensor,
                              GError **error);

EBB_AVAILABLE_IN_ALL
guint64 ebb_tensor_get_address (EbbTensor *tensor,
                                GError **error);

EBB_AVAILABLE_IN_ALL
GBytes *ebb_tensor_get_bytes (EbbTensor *tensor,
                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_get_item (EbbTensor *tensor,
                              double *value,
                              GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_get_item_int (EbbTensor *tensor,
                                  gint64 *value,
                                  GError **error);

EBB_AVAILABLE_IN_ALL
char *ebb_tensor_to_string (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
char *ebb_tensor_shape_to_string (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_get_requires_grad (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_set_requires_grad (EbbTensor *tensor,
                                       gboolean requires_grad,
                                       GError **error);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_is_parameter (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_is_buffer (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_is_leaf (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_get_grad (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_set_grad (EbbTensor *tensor,
                              EbbTensor *grad,
                              GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_tensor_detach (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
gboolean ebb_tensor_equal (EbbTensor *a,
                           EbbTensor *b);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbTensor, ebb_tensor_unref)

G_END_DECLS
