/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/memory.h"

/* Copies between the memory of a device and host memory. A transfer is overlapped with the device's computing where the
 * device can do that; elsewhere, and on the CPU, it is done when it begins. */

G_BEGIN_DECLS

typedef struct _EbbTransfer EbbTransfer;

/* Of host memory; where a device has no queues, as much is taken and counted in front of it. */
#define EBB_TRANSFER_ALIGNMENT 4096

/* Host memory that transfers of @device can run from and to, aligned and counted on the CPU. */
void *ebb_transfer_alloc_host (EbbDevice *device,
                               gsize size,
                               EbbPurpose purpose,
                               GError **error);
void ebb_transfer_free_host (EbbDevice *device,
                             void *host,
                             gsize size,
                             EbbPurpose purpose);

/* Begins a copy that comes after all computing that was enqueued so far: it copies the bytes that computing has
 * written, and does not overwrite too early the bytes that computing reads. It also comes after @after, if that is not
 * NULL. Both memories must stay until it is done, or until computing was ordered after it where device memory is only
 * given back. Transfers of one direction run one after another. */
EbbTransfer *ebb_transfer_to_host_begin (EbbDevice *device,
                                         void *host,
                                         const void *data,
                                         gsize size,
                                         EbbTransfer *after,
                                         GError **error);
EbbTransfer *ebb_transfer_from_host_begin (EbbDevice *device,
                                           void *data,
                                           const void *host,
                                           gsize size,
                                           EbbTransfer *after,
                                           GError **error);
/* A transfer of nothing, done when all computing that was enqueued so far is. A copy that has a mark for @after comes
 * after the mark alone, as for a copy that another thread begins later, into memory that was taken at the mark. */
EbbTransfer *ebb_transfer_mark (EbbDevice *device,
                                GError **error);
/* In a dry run: what stands for bytes that a disk would write, or read, for a tensor of @device. */
EbbTransfer *ebb_transfer_of_dry_disk (EbbDevice *device,
                                       gboolean writes,
                                       gsize size,
                                       const EbbTransfer *after);
EbbTransfer *ebb_transfer_ref (EbbTransfer *transfer);
void ebb_transfer_unref (EbbTransfer *transfer);
EbbDevice *ebb_transfer_get_device (EbbTransfer *transfer);
/* Computing that is enqueued from now on comes after the transfer. */
gboolean ebb_transfer_order (EbbTransfer *transfer,
                             GError **error);
/* The same before memory of the transfer is given back, where no error can be returned. */
void ebb_transfer_settle (EbbTransfer *transfer);
/* The host waits for it: FALSE with @error set if it failed. */
gboolean ebb_transfer_wait (EbbTransfer *transfer,
                            GError **error);
/* The same, but not counted as waited: for the end of a step, say, where no computing could go on meanwhile. */
gboolean ebb_transfer_finish (EbbTransfer *transfer,
                              GError **error);
/* TRUE: it is over, and the host may use, overwrite or give back both memories. */
gboolean ebb_transfer_is_done (EbbTransfer *transfer);
/* The same for counters alone: nothing else may follow from it, since a run in which it is FALSE must be right too. */
gboolean ebb_transfer_is_over (EbbTransfer *transfer);
/* Of a transfer that is done: seconds that it took, and that computing and the host stood waiting for it. */
void ebb_transfer_get_times (EbbTransfer *transfer,
                             double *seconds,
                             double *waited);

/* Copies at once: done when the function returns. The host memory may be any. */
gboolean ebb_transfer_to_host (EbbDevice *device,
                               void *host,
                               const void *data,
                               gsize size,
                               GError **error);

G_END_DECLS
