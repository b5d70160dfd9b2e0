/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store-private.h"
#include "offload/disk/queue-private.h"
#include "tensor/tensor-private.h"

/* A block of memory that a disk store holds: in the file, in staging memory, or still in both, in pieces of at most
 * 4 MiB. One thread writes pieces in the order in which they were put, and reads in the order in which they are asked
 * for; reads come first, since somebody waits for them.
 *
 * The program alone takes and gives memory, at fixed points: a piece leaves the staging memory when a later one needs
 * its space, or comes enough groups of packs later, and it was written; or when its block is freed. So the memory in
 * use, and the bytes that must be read, depend on what was put and asked for, and not on how fast the disk is. */

G_BEGIN_DECLS

#define EBB_DISK_PIECE (4ul << 20)

typedef struct _EbbDiskPiece EbbDiskPiece;
typedef struct _EbbDiskBlock EbbDiskBlock;
typedef struct _EbbDiskRead EbbDiskRead;

typedef enum
{
  EBB_DISK_EMPTY,   /* no memory yet, or none any more that could be written */
  EBB_DISK_FILLING, /* memory was taken, and its bytes are on the way from the caller */
  EBB_DISK_QUEUED,
  EBB_DISK_WRITING,
  EBB_DISK_WRITTEN,
  EBB_DISK_FAILED, /* not in the file: in staging memory alone */
  EBB_DISK_LOST    /* the copy from the device failed: a reader gets the error */
} EbbDiskState;

/* Under the queue's lock, except the fields that are set once. */
struct _EbbDiskPiece
{
  EbbWorkerJob job; /* to write it */
  EbbDiskBlock *block;
  gsize start, size; /* bytes of the block */
  gsize head;        /* bytes of its first sector in the file that are not its own */
  guint64 checksum;
  EbbDiskState state;
  char *buffer; /* whole sectors; NULL: in the file alone */
  gsize buffer_size;
  EbbTransfer *filling; /* into the buffer, until the thread has waited for it */
  EbbTransfer *written; /* in a dry run: its writing, which nothing but an observer learns of */
  GSList *emptying;     /* copies out of the buffer: threads that share a store may read one block at a time */
  guint n_readers;      /* threads that copy out of the buffer */
  GList in_staged;
};

/* Space in the file, of one block or of several that lie side by side in a room. */
typedef struct
{
  int ref_count;
  EbbDiskQueue *queue;
  guint64 offset, size;
  gboolean is_room;
} EbbDiskSpace;

struct _EbbDiskBlock
{
  EbbStoredBlock base;
  EbbDiskQueue *queue;
  EbbDiskSpace *space;
  EbbDevice *device;
  EbbDType dtype;
  gint64 n_elements;
  gsize size;
  guint64 offset;     /* in the file */
  gboolean is_dry;    /* of a dry run: nothing is read or written, and no thread runs */
  guint64 group;      /* of the pack that put it */
  EbbDiskRead *ahead; /* begun by a prefetch; under the lock */
  EbbInFlight *source;
  guint n_pieces;
  EbbDiskPiece *pieces;
};

/* -- block.c ------------------------------------------------------------------------------------------------------- */

EbbDiskSpace *ebb_disk_space_new (EbbDiskQueue *queue,
                                  guint64 size,
                                  guint64 limit,
                                  GError **error);
void ebb_disk_space_unref (EbbDiskSpace *space);
/* A block of the bytes of @source, at @offset of @space. They are not put yet. */
EbbDiskBlock *ebb_disk_block_new (EbbActivationStore *store,
                                  EbbDiskSpace *space,
                                  guint64 offset,
                                  EbbTensor *source,
                                  GError **error);

/* Adds the seconds of the queue's thread to the counters of @store. */
void ebb_disk_count_seconds (EbbActivationStore *store,
                             EbbDiskQueue *queue);

/* -- write.c ------------------------------------------------------------------------------------------------------- */

/* Copies @source to staging memory, of which @limit bytes may be in use, and has it written. */
gboolean ebb_disk_block_put (EbbDiskBlock *block,
                             EbbTensor *source,
                             guint64 limit,
                             GError **error);
/* Waits until all is written, tries failed writes again, and gives the staging memory back. */
gboolean ebb_disk_queue_flush (EbbDiskQueue *queue,
                               GError **error);
/* With the lock: frees the memory of a piece whose block is freed. */
void ebb_disk_piece_drop (EbbDiskPiece *piece);

/* -- read.c -------------------------------------------------------------------------------------------------------- */

/* Begins to bring a block back; should that fail, get returns the error. */
void ebb_disk_block_prefetch (EbbDiskBlock *block);
EbbTensor *ebb_disk_block_get (EbbDiskBlock *block,
                               GError **error);
void ebb_disk_read_cancel (EbbDiskRead *read);

G_END_DECLS
