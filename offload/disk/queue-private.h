/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store-private.h"
#include "offload/disk/file-private.h"
#include "offload/transfer/worker-private.h"
#include "tensor/tensor-private.h"

/* What a disk store does beside the program, and the bytes that it is done with.
 *
 * A record is a block of memory that was put: in the file, in staging memory, or still in both, in pieces of at most
 * 4 MiB. One thread writes pieces in the order in which they were put, and reads in the order in which they are asked
 * for; what is read comes first, since somebody waits for it.
 *
 * The program alone takes and gives memory, at fixed points: a piece leaves the staging memory when a later one needs
 * its place, or comes enough groups of packs later, and it was written; or when its record goes. So the memory in use,
 * and what has to be read, depend on what was put and asked for, and not on how fast the disk is. */

G_BEGIN_DECLS

#define EBB_DISK_PIECE (4ul << 20)

typedef struct _EbbDiskQueue EbbDiskQueue;
typedef struct _EbbDiskRoom EbbDiskRoom;
typedef struct _EbbDiskPiece EbbDiskPiece;
typedef struct _EbbDiskRecord EbbDiskRecord;
typedef struct _EbbDiskRead EbbDiskRead;

typedef enum
{
  EBB_DISK_EMPTY,   /* no memory yet, or none any more that could be written */
  EBB_DISK_FILLING, /* memory was taken, and its bytes are on the way from the caller */
  EBB_DISK_QUEUED,
  EBB_DISK_WRITING,
  EBB_DISK_WRITTEN,
  EBB_DISK_FAILED, /* not in the file: in staging memory alone */
  EBB_DISK_LOST    /* the copy from the device failed: of no use but to be told */
} EbbDiskState;

/* Under the queue's lock, but for what is set once. */
struct _EbbDiskPiece
{
  EbbDiskRecord *record;
  gsize start, size; /* bytes of the record */
  gsize head;        /* bytes of its first block in the file that are not its own */
  guint64 checksum;
  EbbDiskState state;
  char *buffer; /* whole blocks; NULL: in the file alone */
  gsize buffer_size;
  EbbTransfer *filling;  /* into the buffer, until the thread has waited for it */
  EbbTransfer *emptying; /* the last one out of the buffer */
  guint n_readers;       /* threads that copy out of the buffer */
  GList in_staged, in_writes;
};

struct _EbbDiskRecord
{
  EbbDiskQueue *queue;
  EbbActivationStore *store; /* which outlives it */
  EbbDiskRoom *room;         /* NULL: the space is its own */
  EbbDevice *device;
  EbbDType dtype;
  gint64 n_elements;
  gsize size;
  guint64 offset;     /* in the file */
  guint64 group;      /* of the pack that put it */
  EbbDiskRead *ahead; /* begun by a prefetch; under the lock */
  EbbOriginal *original;
  guint n_pieces;
  EbbDiskPiece pieces[];
};

/* Space in the file for records that lie side by side. */
struct _EbbDiskRoom
{
  int ref_count;
  EbbDiskQueue *queue;
  guint64 offset, size;
};

typedef struct
{
  char *memory;
  EbbTransfer *transfer;
} EbbDiskBuffer;

/* Bytes of a record on their way back. */
struct _EbbDiskRead
{
  EbbDiskQueue *queue;
  EbbActivationStore *store;
  EbbDevice *device;
  EbbDiskRecord *record; /* gone, maybe, when it has been handed out */
  EbbTensor *tensor;
  EbbTransfer *mark;    /* when the tensor's memory was taken */
  GPtrArray *transfers; /* computing must come after them */
  EbbDiskBuffer buffers[2];
  gsize buffer_size;
  guint n_buffers;
  guint *todo; /* pieces that are in the file alone */
  guint n_todo;
  /* under the lock */
  guint n_done;
  gboolean is_queued, is_running;
  int reason;    /* why the piece todo[n_done] can't be read */
  GError *error; /* why it can't be copied */
  GList in_reads;
};

typedef struct
{
  gboolean is_untold;
  guint n_in_turn; /* failures since something was written */
  guint64 size, beside;
  int reason;
} EbbDiskFailure;

struct _EbbDiskQueue
{
  int ref_count;
  EbbDiskFile *file;
  char *block; /* of the thread, for the ends of what lies side by side */
  EbbWorker worker;
  /* under the worker's lock */
  GQueue reads, writes;
  GQueue staged;    /* pieces with memory, by age */
  guint64 n_staged; /* bytes */
  GQueue lingering; /* reads that were handed out, whose last copies may run */
  guint n_records;
  EbbDiskFailure failure; /* the first that nobody was told of */
};

/* -- disk-queue.c -------------------------------------------------------------------------------------------------- */

EbbDiskQueue *ebb_disk_queue_new (const char *folder,
                                  GError **error);
EbbDiskQueue *ebb_disk_queue_ref (EbbDiskQueue *queue);
void ebb_disk_queue_unref (EbbDiskQueue *queue);
/* With the lock: FALSE with @error set if there is a failure that nobody was told of, or there were so many in turn
 * that nothing more is to be written until the queue is flushed. */
gboolean ebb_disk_queue_tell (EbbDiskQueue *queue,
                              GError **error);
/* On the queue's own thread, for which nobody waits: until @transfer is done. Counts its time and lets it go. */
gboolean ebb_disk_queue_end_transfer (EbbDiskQueue *queue,
                                      EbbTransfer *transfer,
                                      GError **error);
/* On a thread of the program: until @transfer, which may be NULL, is over; lets it go. Should it have failed, whoever
 * needs what it brings is told. */
void ebb_disk_wait_for_transfer (EbbTransfer *transfer);

/* -- disk-record.c ------------------------------------------------------------------------------------------------- */

EbbDiskRecord *ebb_disk_record_new (EbbDiskQueue *queue,
                                    EbbActivationStore *store,
                                    EbbTensor *block,
                                    guint64 limit,
                                    GError **error);
EbbDiskRoom *ebb_disk_room_new (EbbDiskQueue *queue,
                                guint64 size,
                                guint64 limit,
                                GError **error);
EbbDiskRoom *ebb_disk_room_ref (EbbDiskRoom *room);
void ebb_disk_room_unref (EbbDiskRoom *room);
EbbDiskRecord *ebb_disk_record_new_in_room (EbbDiskRoom *room,
                                            EbbActivationStore *store,
                                            guint64 offset,
                                            EbbTensor *block,
                                            GError **error);
void ebb_disk_record_free (EbbDiskRecord *record);

/* -- disk-write.c -------------------------------------------------------------------------------------------------- */

/* Copies @block to staging memory, of which @limit bytes may be in use, and has it written. */
gboolean ebb_disk_record_put (EbbDiskRecord *record,
                              EbbTensor *block,
                              guint64 limit,
                              GError **error);
/* Waits until all is written, tries again what failed, and gives the staging memory back. */
gboolean ebb_disk_queue_flush (EbbDiskQueue *queue,
                               GError **error);
/* With the lock, by the thread: writes the first piece. */
void ebb_disk_queue_run_write (EbbDiskQueue *queue);
/* With the lock: what is left of a piece whose record goes. */
void ebb_disk_piece_drop (EbbDiskPiece *piece);

/* -- disk-read.c --------------------------------------------------------------------------------------------------- */

/* Begins to bring a record back; what keeps it from that is told by get. */
void ebb_disk_record_prefetch (EbbDiskRecord *record);
EbbTensor *ebb_disk_record_get (EbbDiskRecord *record,
                                GError **error);
void ebb_disk_read_cancel (EbbDiskRead *read);
/* Waits for the last copies of reads that were handed out, but for @n of them. */
void ebb_disk_queue_end_lingering (EbbDiskQueue *queue,
                                   guint n);
/* With the lock, by the thread: reads the next piece of the first read. */
void ebb_disk_queue_run_read (EbbDiskQueue *queue);

G_END_DECLS
