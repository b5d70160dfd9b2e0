/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#if !defined(EBB_INSIDE) && !defined(EBB_COMPILATION)
#error "Only <ebb/ebb.h> can be included directly."
#endif

#include "tensor/autograd/saved-tensor.h"

G_BEGIN_DECLS

#define EBB_TYPE_ACTIVATION_STORE (ebb_activation_store_get_type ())

EBB_AVAILABLE_IN_ALL
G_DECLARE_DERIVABLE_TYPE (EbbActivationStore, ebb_activation_store, EBB, ACTIVATION_STORE, EbbSavedTensorHooks)

/**
 * EbbActivationStoreClass:
 * @moves: whether tensors of a device are put elsewhere (the default); if not, they stay where they are and are counted
 * @put: stores a block of memory, a contiguous tensor of one dimension, and returns a handle for @get; the space is
 * freed with the handle. The block itself must be left as it is. May return before the bytes have moved; the store then
 *   holds the block as long as it needs it. With %EBB_ERROR_NO_MEMORY and %EBB_ERROR_IO the block goes to the fallback,
 *   if there is one
 * @get: makes a tensor of the same size and element type on the device where the block was, with its bytes, which
 *   computing that is enqueued from now on will find there
 * @prefetch: get will soon be asked for this handle: may begin to bring the bytes. get returns the error of a failure
 * @synchronize: waits until all work that was begun is done, and returns the error of a failure
 * @reserve: takes room for @n_bytes of tensors of a device, for a store that lays them out itself; the room is freed
 * with the handle. %NULL where a store can't do that
 * @put_at: as put, into a reserved room, from its byte @offset on
 * @reset_stats: sets counters of its own to 0; %NULL where there are none
 *
 * The functions of a kind of store. #EbbActivationStore itself decides which tensors are stored, and stores memory that
 * several tensors share once; for that it implements the hooks of #EbbSavedTensorHooks.
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
  void (*reset_stats) (EbbActivationStore *self);

  /*< private >*/
  void (*end_dry_run) (EbbActivationStore *self);
  gpointer padding[7];
};

/**
 * EbbActivationFilterFunc:
 * @tensor: a tensor that would be stored
 * @op: the op that needs it for backward, as "linear"; "checkpoint" for an input of a checkpoint
 * @user_data: user data
 * @error: return location for an error
 *
 * Decides what an #EbbActivationStore stores. A filter that sets @error makes the forward fail with it.
 *
 * Returns: %FALSE to leave @tensor where it is
 */
typedef gboolean (*EbbActivationFilterFunc) (EbbTensor *tensor,
                                             const char *op,
                                             gpointer user_data,
                                             GError **error);

/* -- settings */

EBB_AVAILABLE_IN_ALL
EbbActivationStore *ebb_activation_store_get_next (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
EbbActivationStore *ebb_activation_store_get_fallback (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
gboolean ebb_activation_store_set_fallback (EbbActivationStore *self,
                                            EbbActivationStore *fallback,
                                            GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_set_filter (EbbActivationStore *self,
                                      EbbActivationFilterFunc filter,
                                      gpointer user_data,
                                      GDestroyNotify destroy);

EBB_AVAILABLE_IN_ALL
gboolean ebb_activation_store_synchronize (EbbActivationStore *self,
                                           GError **error);

/* -- counters */

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
guint64 ebb_activation_store_get_bytes_spilled (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
double ebb_activation_store_get_seconds_moving (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
double ebb_activation_store_get_seconds_waited (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
double ebb_activation_store_get_hidden_share (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_get_chain_seconds (EbbActivationStore *self,
                                             double *moving,
                                             double *waited);

EBB_AVAILABLE_IN_ALL
char *ebb_activation_store_report (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
char *ebb_activation_store_report_json (EbbActivationStore *self);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_reset_stats (EbbActivationStore *self);

/* -- for kinds of stores, and for stores in front of another one */

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_activation_store_put_block (EbbActivationStore *self,
                                           EbbTensor *block,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
EbbTensor *ebb_activation_store_get_block (EbbActivationStore *self,
                                           EbbHandle *handle,
                                           GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_prefetch_block (EbbActivationStore *self,
                                          EbbHandle *handle);

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_activation_store_reserve (EbbActivationStore *self,
                                         EbbDevice *device,
                                         guint64 n_bytes,
                                         GError **error);

EBB_AVAILABLE_IN_ALL
EbbHandle *ebb_activation_store_put_at (EbbActivationStore *self,
                                        EbbHandle *room,
                                        guint64 offset,
                                        EbbTensor *block,
                                        GError **error);

EBB_AVAILABLE_IN_ALL
void ebb_activation_store_count_seconds (EbbActivationStore *self,
                                         double moving,
                                         double waited);

G_END_DECLS
