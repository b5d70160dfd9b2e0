/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store-private.h"
#include "tensor/tensor-private.h"

/* Memory of saved tensors that a store answers for: a storage, or a small part of a large one. All tensors of that
 * memory share it as long as any of their handles lives; memory that was brought back is shared as long as it lives,
 * and that of sharded blocks (see ebb_activation_store_note_sharded ()) until two others were brought. */

G_BEGIN_DECLS

typedef struct _EbbRestored EbbRestored;

typedef struct
{
  guint64 birth;
  gsize start, end; /* bytes of the storage */
  guint version;    /* of the storage; 0 where the memory stays in place */
  gboolean in_place;
  gboolean is_apart; /* of a store that divides others */
  guint64 call;      /* of such a store: the outermost module call that put it; 0: none was open */
} EbbSharedBlockKey;

struct _EbbSharedBlock
{
  EbbSharedBlockKey key; /* first: the store's table looks up by it */
  EbbActivationStore *store;
  EbbDevice *device;
  EbbDType dtype;
  EbbHandle *stored; /* NULL: in place */
  guint64 group;     /* of the pack that put it */
  gboolean is_sharded;
  /* under the store's lock */
  EbbRestored *restored; /* the memory that was brought back last, while it lives */
  EbbStorage *held;      /* the same, of one of the latest sharded blocks */
  gsize held_offset;     /* bytes */
  guint held_version;
  GList link; /* in the list of blocks that were moved */
  guint n_users;
  gboolean is_coming; /* was prefetched, and not asked for since */
};

guint ebb_shared_block_hash (gconstpointer key);
gboolean ebb_shared_block_equal (gconstpointer a,
                                 gconstpointer b);

/* The block of the memory of @tensor, with one user more; it is put into the store unless it is there already. */
EbbSharedBlock *ebb_shared_block_enter (EbbActivationStore *store,
                                        EbbTensor *tensor,
                                        GError **error);
/* One user less; the last one frees it. */
void ebb_shared_block_leave (EbbSharedBlock *self);
/* A view of the block in memory: of memory that was brought back before, or that the store brings back now, which also
 * prefetches the blocks that will be asked for next. @offset: in bytes, from the block's start. */
EbbTensor *ebb_shared_block_get_view (EbbSharedBlock *self,
                                      const EbbView *view,
                                      gsize offset,
                                      GError **error);

G_END_DECLS
