/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/activation-store-private.h"
#include "offload/compressed/codec-private.h"
#include "offload/transfer/worker-private.h"
#include "tensor/tensor-private.h"

/* What a compressed store does beside the program, and the blocks that it was given.
 *
 * A record is a block of memory that was put. Its bytes are copied to staging memory, where a thread compresses them,
 * in the order in which they were put; when a later block needs the place they go to the next store. On the way back
 * the thread decompresses ahead what it was told will be asked for.
 *
 * The thread computes, and no more: the program takes and gives memory, and puts into the next store, at fixed points.
 * So the memory in use depends on what was put and asked for, and not on how fast the thread is. */

G_BEGIN_DECLS

typedef struct _EbbCompressQueue EbbCompressQueue;
typedef struct _EbbCompressRecord EbbCompressRecord;
typedef struct _EbbCompressFetch EbbCompressFetch;

typedef enum
{
  EBB_COMPRESS_WAITING, /* staging memory has the bytes, or will have them when the copy from the device is done */
  EBB_COMPRESS_RUNNING, /* the thread, or a caller, works on them */
  EBB_COMPRESS_DONE,    /* staging memory has what will be stored */
  EBB_COMPRESS_STORED,  /* in the next store */
  EBB_COMPRESS_LOST     /* the copy from the device failed */
} EbbCompressState;

struct _EbbCompressRecord
{
  EbbCompressQueue *queue;
  EbbDevice *device;
  EbbDType dtype;
  gint64 n_elements;
  gsize size;
  guint level;
  gboolean is_rounded; /* from f32 to bf16 */
  gsize payload;       /* bytes to compress... */
  gsize element;       /* ...in elements of so many */
  EbbOriginal *original;
  EbbCompressFetch *fetch; /* begun by a prefetch; taken under the lock */
  EbbHandle *inner;        /* what the next store gave */
  /* under the lock */
  EbbCompressState state;
  gboolean is_leaving; /* a caller brings it to the next store */
  guint n_readers;     /* of the staging memory */
  char *staging;
  gsize staging_size;
  gsize stored_size;
  EbbTransfer *filling; /* until somebody has waited for it */
  GList in_work, in_staged;
};

/* Bytes of a record on their way back. */
struct _EbbCompressFetch
{
  EbbCompressQueue *queue;
  EbbCompressRecord *record; /* NULL when the tensor was handed out */
  EbbDevice *device;
  EbbTensor *tensor;
  char *landing; /* host memory that the tensor is copied from; NULL: none is needed */
  gsize size;
  EbbTensor *stored;     /* what the next store gave */
  EbbTransfer *mark;     /* when the tensor's memory was taken */
  EbbTransfer *arriving; /* from landing */
  GError *error;
  gboolean is_done;
  gboolean is_queued, is_running; /* under the lock */
  GList in_work;
};

struct _EbbCompressQueue
{
  EbbActivationStore *store; /* whose queue it is; not held */
  EbbActivationStore *next;
  EbbCodec *codec; /* of the thread */
  EbbWorker worker;
  /* under the worker's lock */
  gboolean is_busy;
  GQueue compressions, fetches;
  GQueue staged;      /* records with staging memory, by age */
  guint64 n_staged;   /* bytes */
  GQueue lingering;   /* fetches that were handed out, whose copies may run */
  char *scratch;      /* of the thread */
  gsize scratch_size; /* bytes */
  EbbCodec *idle;     /* of a caller that is done with it */
  GQueue blocks;      /* host memory that was given back, of devices for which it is slow to get */
  guint64 bytes_raw, bytes_stored;
  float worst; /* relative error of rounding */
};

/* -- compress-queue.c ---------------------------------------------------------------------------------------------- */

EbbCompressQueue *ebb_compress_queue_new (EbbActivationStore *store,
                                          EbbActivationStore *next);
void ebb_compress_queue_free (EbbCompressQueue *queue);
/* FALSE with @error set in a process that was forked off, where there is no thread. */
gboolean ebb_compress_queue_start (EbbCompressQueue *queue,
                                   GError **error);
/* Adds the seconds since the last call to the store's counters. */
void ebb_compress_queue_count_seconds (EbbCompressQueue *queue);
EbbCodec *ebb_compress_queue_take_codec (EbbCompressQueue *queue,
                                         GError **error);
void ebb_compress_queue_give_codec (EbbCompressQueue *queue,
                                    EbbCodec *codec);
/* Host memory for copies of @device, counted on the CPU. What is given back is used again for the same size. */
char *ebb_compress_queue_take_host (EbbCompressQueue *queue,
                                    EbbDevice *device,
                                    gsize size,
                                    EbbPurpose purpose,
                                    GError **error);
void ebb_compress_queue_give_host (EbbCompressQueue *queue,
                                   EbbDevice *device,
                                   char *data,
                                   gsize size,
                                   EbbPurpose purpose);
/* Gives what is kept for later back to the system. */
void ebb_compress_queue_trim (EbbCompressQueue *queue);
/* Scratch memory of @size bytes at least for the thread. */
gboolean ebb_compress_queue_need_scratch (EbbCompressQueue *queue,
                                          gsize size,
                                          GError **error);

/* -- compress-record.c --------------------------------------------------------------------------------------------- */

/* Copies @block to staging memory, of which @limit bytes may be in use, and has it compressed. */
EbbCompressRecord *ebb_compress_record_new (EbbCompressQueue *queue,
                                            EbbTensor *block,
                                            guint level,
                                            gboolean is_rounded,
                                            guint64 limit,
                                            GError **error);
void ebb_compress_record_free (EbbCompressRecord *record);
/* Brings all that is compressed to the next store. */
gboolean ebb_compress_queue_flush (EbbCompressQueue *queue,
                                   GError **error);
/* With the lock, by the thread: compresses the first record. */
void ebb_compress_queue_run_compression (EbbCompressQueue *queue);

/* -- compress-fetch.c ---------------------------------------------------------------------------------------------- */

void ebb_compress_record_prefetch (EbbCompressRecord *record);
EbbTensor *ebb_compress_record_get (EbbCompressRecord *record,
                                    GError **error);
void ebb_compress_fetch_cancel (EbbCompressFetch *fetch);
/* Waits for the copies of fetches that were handed out, but for @n of them. */
void ebb_compress_queue_end_lingering (EbbCompressQueue *queue,
                                       guint n);
/* With the lock, by the thread: decompresses the first fetch. */
void ebb_compress_queue_run_fetch (EbbCompressQueue *queue);

G_END_DECLS
