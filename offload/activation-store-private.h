/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store.h"
#include "offload/transfer/transfer-private.h"
#include "tensor/autograd/handle-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"
#include "tensor/util/lock-private.h"

/* Declarations for kinds of stores and the parts of their base class.
 *
 * This happens to one saved tensor with a partitioned over a contiguous over a host store:
 *
 *  1. An op saves the tensor: pack of the partitioned store gets it and checks whether its memory is stored already.
 *  2. If not, it makes a shared block for that memory and puts the bytes, as a tensor of one dimension, into itself.
 *  3. The partitioned store copies this rank's shard into memory of its own and puts it into the contiguous store.
 *  4. The contiguous store takes the next part of a buffer and puts the shard at its offset into the buffer's room,
 *     which is reserved in the host store.
 *  5. The host store begins a copy to host memory on the device's copy queue and keeps the source in flight; the source
 *     is freed at a fixed point, "in-flight" groups later, when computing was ordered after the copy.
 *  6. So the packed handle holds a shared block, which holds a chain of stored blocks, one for each store: the shard,
 *     the part, the bytes in host memory. Each is a handle with {store, funcs, bytes}, counted by its store while it
 *     lives.
 *  7. Backward unpacks the handle: the shared block asks the partitioned store, which asks the contiguous store, which
 *     asks the host store, which copies the shard back; the ranks all_gather the full bytes, and the tensor's view is
 *     laid on them.
 *  8. That also prefetches the blocks that were put just before: their copies and gathers run while backward computes.
 *  9. The shared block remembers the memory that was brought back, without a reference, so another view of the block
 *     finds the same memory.
 * 10. Dropping the last handle frees its stored blocks: the shard's bytes are returned and the part is free. */

G_BEGIN_DECLS

/* A checkpoint's hints about the tensor that this thread saves now. */
typedef enum
{
  EBB_SAVE_HINT_COMPARE_VALUES = 1, /* ranks that store it together verify that their values match */
  EBB_SAVE_HINT_RESULT = 2          /* an op's result, saved by a policy: backward may never ask for it */
} EbbSaveHint;

gboolean ebb_save_has_hint (EbbSaveHint hint);
/* Sets the hints in @modes; there may be several. */
void ebb_modes_set_save_hints (EbbModes *modes,
                               guint hints);

typedef struct _EbbStoredBlock EbbStoredBlock;
typedef struct _EbbSharedBlock EbbSharedBlock;
typedef struct _EbbInFlight EbbInFlight;
typedef struct _EbbStoreFilter EbbStoreFilter;

/* -- stored blocks, for kinds of stores ---------------------------------------------------------------------------- */

/* The functions of one kind of store for its stored blocks. */
typedef struct
{
  gsize size; /* of the struct that begins with an EbbStoredBlock */
  /* As those of EbbActivationStoreClass. @get: NULL for a reserved room. @prefetch and @clear may be NULL. */
  EbbTensor *(*get) (EbbStoredBlock *self,
                     GError **error);
  void (*prefetch) (EbbStoredBlock *self);
  void (*clear) (EbbStoredBlock *self);
} EbbStoredBlockFuncs;

/* The bytes of a block of memory in one store, or a room that is reserved there: put, put_at and reserve return it. A
 * kind of store lets its own struct begin with it. */
struct _EbbStoredBlock
{
  EbbHandle handle;
  const EbbStoredBlockFuncs *funcs;
  EbbActivationStore *store; /* with a reference */
  guint64 birth;             /* of the storage that it was put from */
  gsize n_bytes;             /* that count as held; 0 when put returns: all of the block */
  gboolean is_counted;       /* put has succeeded */
};

/* A block with zeros behind the base, for put to return. */
gpointer ebb_stored_block_new (const EbbStoredBlockFuncs *funcs,
                               EbbActivationStore *store);
/* Returns the bytes of @handle: from its store if it is a stored block, else the tensor that it keeps. */
EbbTensor *ebb_stored_block_get (EbbHandle *handle,
                                 GError **error);
void ebb_stored_block_prefetch (EbbHandle *handle);
/* Puts @block into the fallback after @why; NULL with @error set to @why if there is no
 * fallback, or if @why is no reason for it. */
EbbHandle *ebb_activation_store_put_instead (EbbActivationStore *self,
                                             EbbTensor *block,
                                             GError *why,
                                             GError **error);

/* -- sources in flight --------------------------------------------------------------------------------------------- */

/* Keeps @block, the source of a copy, until @transfer, which reads it, no longer needs it: at a fixed point of the
 * program computing is ordered after the transfer and the block is freed. Packs between which this thread launched no
 * kernel are one group; the point is where the group "in-flight" later begins. NULL: there is nothing to keep, the copy
 * was done at once. */
EbbInFlight *ebb_activation_store_hold (EbbActivationStore *self,
                                        EbbTensor *block,
                                        EbbTransfer *transfer);
/* The block, with a reference, if it is still held and was not changed since; NULL: it must be brought. @source may be
 * NULL. */
EbbTensor *ebb_in_flight_get (EbbInFlight *source);
/* Whether ebb_in_flight_get () would return the block. */
gboolean ebb_in_flight_is_held (EbbInFlight *source);
/* With the stored block. NULL is fine. */
void ebb_in_flight_free (EbbInFlight *source);

/* Adds the seconds of the transfer, and those waited for it, to the counters once it is done. */
void ebb_activation_store_count_transfer (EbbActivationStore *self,
                                          EbbTransfer *transfer);
/* Keeps a failure that could not be returned: the next put, get or synchronize of this store returns it. Takes @error,
 * which may be NULL. */
void ebb_activation_store_note_failure (EbbActivationStore *self,
                                        GError *error);

/* -- services for kinds of stores ------------------------------------------------------------------------------ */

/* Whether a tensor that finds no room goes to the fallback; so it is at first. A tensor that can't be written always
 * does. */
void ebb_activation_store_set_spills (EbbActivationStore *self,
                                      gboolean spills);
void ebb_activation_store_count_held (EbbActivationStore *self,
                                      gint64 n_bytes);

/* Whether a kind of store has functions of its own for reserved rooms. */
gboolean ebb_activation_store_can_reserve (const EbbActivationStoreClass *klass);

/* The tensor that this thread packs, while the put of a store or of one behind it runs. */
typedef struct
{
  EbbActivationStore *store; /* the store that packs it; NULL if no put runs */
  EbbTensor *tensor;
  gboolean is_sharded; /* put reports that it was divided among ranks */
} EbbPacking;

const EbbPacking *ebb_activation_store_get_packing (void);
/* The block that is being packed was divided, so bringing it back needs all ranks. The moment of that must follow from
 * the program alone, not from the other tensors that happen to live on this rank: blocks put outside of the same
 * outermost module call are not prefetched with it and do not share it, and a tensor that was brought back is returned
 * again only if it was one of the last few. */
void ebb_activation_store_note_sharded (void);
/* For a store that divides tensors among ranks, from the start: the tensors that it can't divide, local shards
 * (tensor->is_local_shard) and results that a policy saves, are stored apart from other tensors of the same memory, and
 * only put itself moves a tensor to the fallback, by ebb_activation_store_put_instead (). */
void ebb_activation_store_set_shards (EbbActivationStore *self);

/* A setting that one thread may change while others read it. */
#define EBB_READ(setting) __atomic_load_n (&(setting), __ATOMIC_RELAXED)
#define EBB_WRITE(setting, value) __atomic_store_n (&(setting), (value), __ATOMIC_RELAXED)

/* Settings that are fields of their object, read and written atomically. A class installs each under its field's
 * offset, as with ebb_property_get_field (), and takes these for get_property and set_property; they notify of a
 * change. */
void ebb_setting_get_property (GObject *object,
                               guint id,
                               GValue *value,
                               GParamSpec *spec);
void ebb_setting_set_property (GObject *object,
                               guint id,
                               const GValue *value,
                               GParamSpec *spec);

/* -- between the parts of the base class --------------------------------------------------------------------------- */

/* The number of sharded blocks that are held after they were brought back. */
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
  /* settings: read and written atomically, by EBB_READ and EBB_WRITE */
  guint64 least_size;
  guint prefetch, in_flight;
  gboolean never_spills;
  gboolean shards; /* from the start on */

  pthread_mutex_t lock; /* held for a look-up, and never while data moves or a foreign object is freed */
  /* under the lock */
  EbbActivationStore *fallback;
  EbbStoreFilter *filter;
  GHashTable *blocks;                   /* of EbbSharedBlock, by itself */
  GQueue moved;                         /* those that were moved, as they were put */
  EbbSharedBlock *latest[EBB_N_LATEST]; /* of those that are sharded, the ones brought back last, and held... */
  guint64 n_brought;                    /* ...and how many were */
  EbbStoreCounters counters;

  pthread_mutex_t flight_lock;
  /* under that lock */
  EbbPackGroup group;
  GQueue sources;   /* of EbbInFlight, the oldest first */
  GQueue transfers; /* that may run... */
  GQueue settled;   /* and those that are done; neither is counted yet */
  GError *failure;

  struct _EbbDryRun *run;  /* that this store takes part in, or NULL... */
  EbbStoreCounters before; /* ...and its counters from before that */
  gboolean is_dry_cache;   /* it may keep memory of the run for the next step */
} EbbActivationStorePrivate;

EbbActivationStorePrivate *ebb_activation_store_peek (EbbActivationStore *self);
void ebb_activation_store_lock (EbbActivationStore *self);
void ebb_activation_store_unlock (EbbActivationStore *self);

/* stored-block.c */
/* For get and prefetch of the class. */
EbbTensor *ebb_activation_store_real_get (EbbActivationStore *self,
                                          EbbHandle *handle,
                                          GError **error);
void ebb_activation_store_real_prefetch (EbbActivationStore *self,
                                         EbbHandle *handle);

/* settings */
void ebb_activation_store_dispose_settings (EbbActivationStore *self);
/* Asks the filter; FALSE, with @error set if that failed. */
gboolean ebb_activation_store_passes_filter (EbbActivationStore *self,
                                             EbbTensor *tensor,
                                             GError **error);
/* With a reference; NULL: there is none. */
EbbActivationStore *ebb_activation_store_ref_fallback (EbbActivationStore *self);

/* The ways from one store to those behind it. */
#define EBB_N_LINKS 2
extern const char *const ebb_store_links[EBB_N_LINKS];
/* The store behind @self by link @i, with a reference; NULL: there is none. */
EbbActivationStore *ebb_activation_store_ref_behind (EbbActivationStore *self,
                                                     guint i);
/* @self and all stores behind it, each once, with references. */
GPtrArray *ebb_activation_store_get_chain (EbbActivationStore *self);

/* sources in flight */
/* A put begins: sources whose time has come are freed. */
gboolean ebb_activation_store_begin_put (EbbActivationStore *self,
                                         GError **error);
/* Of the put that began last. */
guint64 ebb_activation_store_get_group (EbbActivationStore *self);
/* FALSE with the failure that was noted, if there is one. */
gboolean ebb_activation_store_return_failure (EbbActivationStore *self,
                                              GError **error);
/* Counts transfers that are done. */
void ebb_activation_store_sweep (EbbActivationStore *self);
/* Waits for all transfers. */
gboolean ebb_activation_store_wait (EbbActivationStore *self,
                                    GError **error);

G_END_DECLS
