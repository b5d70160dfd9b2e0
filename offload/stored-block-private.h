/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store-private.h"
#include "tensor/tensor-private.h"

/* A piece of memory that a store is responsible for: a whole storage, or a small part of a large one. All tensors that
 * look into it share it as long as any of their handles lives; what was brought back is shared as long as anybody holds
 * it, and of divided blocks (see ebb_activation_store_note_divided ()) until two others are. Blocks of all stores stand
 * under one lock, which is held for a look-up and never while data moves or a foreign object is let go. */

G_BEGIN_DECLS

typedef struct _EbbRestored EbbRestored;

typedef struct
{
  guint64 birth;
  gsize start, end; /* bytes of the storage */
  guint version;    /* of the storage; of no account for what stays in place */
  gboolean in_place;
  gboolean is_apart; /* of a store that divides others */
  guint64 call;      /* of such a store: the outermost module call that put it; 0: none was open */
} EbbBlockKey;

struct _EbbBlock
{
  EbbBlockKey key; /* first: tables look up by it */
  EbbActivationStore *store;
  EbbDevice *device;
  EbbDType dtype;
  EbbHandle *handle; /* what put_block gave; NULL: in place */
  guint64 group;     /* of the pack that put it */
  gboolean is_divided;
  /* under the lock */
  EbbRestored *restored; /* what get_block gave last, while it lives */
  EbbStorage *held;      /* the same, of one of the latest divided blocks */
  gsize held_offset;     /* bytes */
  guint held_version;
  EbbBlock *previous, *next;
  guint n_users;
  gboolean is_coming; /* was prefetched, and not asked for since */
};

/* Which part of its storage stands for @tensor. */
void ebb_block_key_init (EbbBlockKey *key,
                         EbbTensor *tensor,
                         gboolean in_place);
/* A block of @key with one user and nothing in it. */
EbbBlock *ebb_block_new (EbbActivationStore *store,
                         const EbbBlockKey *key,
                         EbbTensor *tensor);
void ebb_block_free (EbbBlock *block);
guint ebb_block_hash (gconstpointer key);
gboolean ebb_block_equal (gconstpointer a,
                          gconstpointer b);

/* Into the list of what was moved, and out of it again; under the lock. */
void ebb_block_link (EbbBlock *block);
void ebb_block_unlink (EbbBlock *block);
/* One user less; the last one frees it. */
void ebb_block_leave (EbbBlock *block);
/* A view of the block as it is in memory now: with a new reference to what was brought back, or brought back by the
 * store, which then is told what will be asked for next. @offset: in bytes, from the block's start. */
EbbTensor *ebb_block_get_view (EbbBlock *block,
                               const EbbView *view,
                               gsize offset,
                               GError **error);

void ebb_blocks_lock (void);
void ebb_blocks_unlock (void);

G_END_DECLS
