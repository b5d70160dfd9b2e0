/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store.h"
#include "offload/transfer/transfer-private.h"

#include <pthread.h>

/* For kinds of stores whose copies run beside computing. Such a store begins a transfer in put, has the original held
 * by ebb_activation_store_hold () as long as that may read it, and hands each transfer to
 * ebb_activation_store_count_transfer (). */

G_BEGIN_DECLS

typedef struct _EbbBlock EbbBlock;
typedef struct _EbbOriginal EbbOriginal;
typedef struct _EbbStoreFilter EbbStoreFilter;

/* -- for kinds of stores ------------------------------------------------------------------------------------------- */

/* Keeps @block until @transfer, which reads it, no longer needs it: at a fixed point of the program computing is
 * ordered after the transfer and the block is let go. Packs between which this thread launched no kernel are one group;
 * the point is where the group "in-flight" later begins. NULL: there is nothing to keep, the copy was done at once. */
EbbOriginal *ebb_activation_store_hold (EbbActivationStore *self,
                                        EbbTensor *block,
                                        EbbTransfer *transfer);
/* The block, with a reference, if it is still held and was not changed since; NULL: it must be brought. @original may
 * be NULL. */
EbbTensor *ebb_original_get (EbbOriginal *original);
/* Whether ebb_original_get () would give the block. */
gboolean ebb_original_is_held (EbbOriginal *original);
/* With the handle that was put. NULL is fine. */
void ebb_original_free (EbbOriginal *original);

/* Adds what the transfer takes and what is waited for it to the counters, once it is done. */
void ebb_activation_store_count_transfer (EbbActivationStore *self,
                                          EbbTransfer *transfer);
/* Has computing come after @transfer, whose memory is about to be given back, where there is no way to tell a failure.
 */
void ebb_activation_store_settle (EbbActivationStore *self,
                                  EbbTransfer *transfer);
/* Keeps what failed where there was no way to tell: the next put, get or synchronize of this store tells it. Takes
 * @error, which may be NULL. */
void ebb_activation_store_note_failure (EbbActivationStore *self,
                                        GError *error);
/* Whether a tensor that finds no room goes to the fallback; so it is at first. What can't be written does always. */
void ebb_activation_store_set_spills (EbbActivationStore *self,
                                      gboolean spills);

/* What this thread hands in at the door of a store, while its put runs, or that of a store behind it. */
typedef struct
{
  EbbActivationStore *store; /* whose door it is; NULL: none */
  EbbTensor *tensor;
  gboolean is_divided; /* among ranks, says who has put it */
} EbbAtDoor;

const EbbAtDoor *ebb_activation_store_get_at_door (void);
/* The block of what is at the door was divided: to bring it back, or to begin so, all ranks are needed. When that is
 * done then follows from the program alone, and not from what else happens to live on this rank: what was put outside
 * of the outermost module call that put the block is not prefetched with it nor shares it, and what was brought back is
 * handed out again only if it was one of the last few. */
void ebb_activation_store_note_divided (void);
/* For a store that divides tensors among ranks, from the start: what it can't divide, parts of tensors
 * (tensor->is_local_shard) and results that a policy keeps, is stored apart from what looks at the same memory, and
 * nothing goes to the fallback but what put brings there itself, by ebb_activation_store_put_instead (). */
void ebb_activation_store_set_divides (EbbActivationStore *self);
/* Puts @block into the fallback after @why; NULL with @error set to that if there is none, or if that is no reason. The
 * fallback is given with a reference. */
EbbHandle *ebb_activation_store_put_instead (EbbActivationStore *self,
                                             EbbTensor *block,
                                             GError *why,
                                             EbbActivationStore **fallback,
                                             GError **error);

/* A setting that one thread may change while others read it. */
#define EBB_READ(setting) __atomic_load_n (&(setting), __ATOMIC_RELAXED)
#define EBB_WRITE(setting, value) __atomic_store_n (&(setting), (value), __ATOMIC_RELAXED)

/* -- between the parts of the base class --------------------------------------------------------------------------- */

/* So many divided blocks are held after they were brought back. */
#define EBB_N_LATEST 2

/* Packs between which one thread launched nothing. */
typedef struct
{
  gpointer thread;
  guint64 n_launches;
  guint64 number;
} EbbPackGroup;

typedef struct
{
  guint64 held, peak, put, got, spilled; /* bytes */
  guint64 n_packed, n_unpacked, n_kept;
  double moving, waited; /* seconds */
} EbbStoreCounters;

typedef struct
{
  /* set by whoever has the store while others use it: read and written whole, by EBB_READ and EBB_WRITE */
  guint64 least_size;
  guint prefetch, in_flight;
  gboolean never_spills;
  gboolean divides; /* from the start on */

  /* under the lock of blocks */
  EbbActivationStore *fallback;
  EbbStoreFilter *filter;
  GHashTable *blocks;             /* of EbbBlock, by itself */
  EbbBlock *first, *last;         /* those that were moved, as they were put */
  EbbBlock *latest[EBB_N_LATEST]; /* of those that are divided, the ones that were brought back last, and are held... */
  guint64 n_brought;              /* ...and how many were */
  GHashTable *tickets;            /* those that live: a handle from elsewhere is refused */
  GHashTable *places;             /* the same for what put_block gave */
  EbbStoreCounters counters;

  pthread_mutex_t flight_lock;
  EbbPackGroup group;
  EbbOriginal *oldest, *youngest;
  GQueue transfers; /* that may run... */
  GQueue settled;   /* and those that are done; neither is counted yet */
  GError *failure;
} EbbActivationStorePrivate;

EbbActivationStorePrivate *ebb_activation_store_peek (EbbActivationStore *self);

/* activation-store-settings.c */
void ebb_activation_store_install_settings (GObjectClass *object_class);
void ebb_activation_store_init_settings (EbbActivationStore *self);
void ebb_activation_store_dispose_settings (EbbActivationStore *self);
/* Asks the filter; FALSE, with @error set if that failed. */
gboolean ebb_activation_store_passes_filter (EbbActivationStore *self,
                                             EbbTensor *tensor,
                                             GError **error);
/* With a reference; NULL: there is none. */
EbbActivationStore *ebb_activation_store_ref_fallback (EbbActivationStore *self);

/* activation-store-chain.c */
/* The ways from one store to those behind it. */
#define EBB_N_LINKS 2
extern const char *const ebb_store_links[EBB_N_LINKS];
/* The store behind @self by link @i, with a reference; NULL: there is none. */
EbbActivationStore *ebb_activation_store_ref_behind (EbbActivationStore *self,
                                                     guint i);
/* @self and all stores behind it, each once, with references. */
GPtrArray *ebb_activation_store_get_chain (EbbActivationStore *self);

/* original.c */
/* A put begins: originals whose time has come are let go. */
gboolean ebb_activation_store_begin_put (EbbActivationStore *self,
                                         GError **error);
/* Of the put that began last. */
guint64 ebb_activation_store_get_group (EbbActivationStore *self);
/* Tells what was noted. */
gboolean ebb_activation_store_tell_failure (EbbActivationStore *self,
                                            GError **error);
/* Counts transfers that are done. */
void ebb_activation_store_sweep (EbbActivationStore *self);
/* Waits for all transfers. */
gboolean ebb_activation_store_wait (EbbActivationStore *self,
                                    GError **error);

/* activation-store-place.c */
void ebb_activation_store_count_held (EbbActivationStore *self,
                                      gint64 n_bytes);

G_END_DECLS
