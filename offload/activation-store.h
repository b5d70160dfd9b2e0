/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/saved-tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_ACTIVATION_STORE (ebb_activation_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbActivationStore, ebb_activation_store, EBB, ACTIVATION_STORE, EbbSavedTensorHooks)

/**
 * EbbActivationStoreClass:
 * @moves: whether tensors of a device are put elsewhere (the default); if not, they stay where they are and are counted
 * @put: stores a block of memory, a contiguous tensor of one dimension, and returns what it can be had back from; the
 *   space goes with the handle. The block itself must be left as it is. May return before the bytes have moved; the
 *   store then holds the block as long as it needs it
 * @get: makes a tensor of the same size and element type on the device where the block was, with its bytes, which
 *   computing that is enqueued from now on will find there
 * @prefetch: get will soon be asked for this handle: may begin to bring the bytes. A failure is told by get
 * @synchronize: waits until all that was begun is done, and tells of what failed
 * @reserve: takes room for @n_bytes of tensors of a device, for a store that lays them out itself; the room goes with
 *   the handle. %NULL where a store can't do that
 * @put_at: as put, into a reserved room, from its byte @offset on
 *
 * What a kind of store brings. Which tensors are stored, and that memory which several tensors look at is stored once,
 * is the business of #EbbActivationStore, which takes the hooks of #EbbSavedTensorHooks for it.
 */
struct _EbbActivationStoreClass
{
  EbbSavedTensorHooksClass parent_class;

  gboolean (*moves) (EbbActivationStore *self,
                     EbbDevice *device);
  EbbHandle *(*put) (EbbActivationStore *self,
                     EbbTensor *block,
                     GError **error);
  EbbTensor *(*get) (EbbActivationStore *self,
                     EbbHandle *handle,
                     GError **error);
  void (*prefetch) (EbbActivationStore *self,
                    EbbHandle *handle);
  gboolean (*synchronize) (EbbActivationStore *self,
                           GError **error);
  EbbHandle *(*reserve) (EbbActivationStore *self,
                         EbbDevice *device,
                         guint64 n_bytes,
                         GError **error);
  EbbHandle *(*put_at) (EbbActivationStore *self,
                        EbbHandle *room,
                        guint64 offset,
                        EbbTensor *block,
                        GError **error);

  /*< private >*/
  gpointer padding[9];
};

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_least_size (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_set_least_size (EbbActivationStore *self,
                                          guint64 n_bytes);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_bytes_held (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_bytes_peak (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_bytes_put (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_bytes_got (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_n_packed (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_n_unpacked (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
guint64 ebb_activation_store_get_n_kept (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_reset_stats (EbbActivationStore *self);

G_END_DECLS
