/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/disk/file-private.h"
#include "offload/transfer/transfer-private.h"
#include "offload/transfer/worker-private.h"

/* A file and the thread that reads and writes it, with the staging memory between them and the program. The thread
 * runs jobs that it is handed. One for each process that uses a store. */

G_BEGIN_DECLS

typedef struct
{
  gboolean is_pending; /* not returned to a caller yet */
  guint n_in_turn;     /* failures since something was written */
  guint64 size, beside;
  int reason;
} EbbDiskFailure;

/* Memory that bytes are read into, with the last copy from each. */
typedef struct
{
  EbbDevice *device;
  gsize size; /* of each */
  guint n;
  struct
  {
    char *memory;
    EbbTransfer *transfer;
  } buffers[2];
} EbbDiskBuffers;

typedef struct
{
  int ref_count;
  EbbDiskFile *file;
  char *sector; /* of the thread, for the ends of blocks that lie side by side */
  EbbWorker worker;
  /* under the worker's lock */
  GQueue staged;    /* pieces with memory, by age */
  guint64 n_staged; /* bytes */
  GQueue lingering; /* of EbbDiskBuffers, whose last copies may run */
  guint n_blocks;
  EbbDiskFailure failure; /* the first that is pending */
} EbbDiskQueue;

EbbDiskQueue *ebb_disk_queue_new (const char *folder,
                                  GError **error);
EbbDiskQueue *ebb_disk_queue_ref (EbbDiskQueue *queue);
void ebb_disk_queue_unref (EbbDiskQueue *queue);
/* With the lock: FALSE with @error set if a failure is pending, or there were so many in turn that nothing more is to
 * be written until the queue is flushed. */
gboolean ebb_disk_queue_return_failure (EbbDiskQueue *queue,
                                        GError **error);
/* On the queue's own thread, for which nobody waits: until @transfer is done. Counts its time and releases it. */
gboolean ebb_disk_queue_end_transfer (EbbDiskQueue *queue,
                                      EbbTransfer *transfer,
                                      GError **error);
/* On a thread of the program: until @transfer, which may be NULL, is over; releases it. Should it have failed, the
 * reader of its bytes gets the error. */
void ebb_disk_wait_for_transfer (EbbTransfer *transfer);

void ebb_disk_buffers_clear (EbbDiskBuffers *buffers);
/* Takes over @buffers, for whose last copies nobody waits now. */
void ebb_disk_queue_linger (EbbDiskQueue *queue,
                            EbbDiskBuffers *buffers);
/* Waits for the last copies of all lingering buffers but the @n youngest. */
void ebb_disk_queue_end_lingering (EbbDiskQueue *queue,
                                   guint n);

G_END_DECLS
