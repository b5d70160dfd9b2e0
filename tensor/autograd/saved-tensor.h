/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_HANDLE (ebb_handle_get_type ())

/**
 * EbbHandle:
 *
 * The packed handle that a hook returned in place of a saved tensor: it holds a tensor, or anything else.
 */
typedef struct _EbbHandle EbbHandle;

EBB_AVAILABLE_IN_ALL
GType ebb_handle_get_type (void);

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_handle_new (EbbTensor *tensor);

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_handle_new_for_data (gpointer data,
                                    GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_handle_new_for_object (GObject *object);

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_handle_ref (EbbHandle *handle);

EBB_AVAILABLE_IN_ALL
void ebb_handle_unref (EbbHandle *handle);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_handle_get_tensor (EbbHandle *handle);

EBB_AVAILABLE_IN_ALL
gpointer ebb_handle_get_data (EbbHandle *handle);

EBB_AVAILABLE_IN_ALL
GObject *ebb_handle_get_object (EbbHandle *handle);

G_DEFINE_AUTOPTR_CLEANUP_FUNC (EbbHandle, ebb_handle_unref)

#define EBB_TYPE_SAVED_TENSOR_HOOKS (ebb_saved_tensor_hooks_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbSavedTensorHooks, ebb_saved_tensor_hooks, EBB, SAVED_TENSOR_HOOKS, GObject)

/**
 * EbbSavedTensorHooksClass:
 * @pack: called with each tensor that an autograd node wants to keep; returns what is kept instead
 * @unpack: called when backward needs the tensor; returns one of the same shape, dtype, device and values
 *
 * Packs and unpacks every tensor that backward needs.
 */
struct _EbbSavedTensorHooksClass
{
  GObjectClass parent_class;

  EbbHandle *(*pack) (EbbSavedTensorHooks *self,
                      EbbTensor *tensor,
                      GError **error);
  EbbTensor *(*unpack) (EbbSavedTensorHooks *self,
                        EbbHandle *handle,
                        GError **error);

  /*< private >*/
  gpointer padding[8];
};

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_saved_tensor_hooks_pack (EbbSavedTensorHooks *self,
                                        EbbTensor *tensor,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_saved_tensor_hooks_unpack (EbbSavedTensorHooks *self,
                                          EbbHandle *handle,
                                          GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_push_saved_tensor_hooks (EbbSavedTensorHooks *hooks);

EBB_AVAILABLE_IN_ALL
void ebb_pop_saved_tensor_hooks (void);

G_END_DECLS
