/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/host/store.h"
#include "offload/transfer/transfer-private.h"

/* Host memory that copies run from and to, in buffers that are used again and again: taking such memory from the system
 * is slow, and stops an accelerator. A buffer that was given back is used again at once, by copies that come after
 * those that still read it, so computing never waits for the host, and which tensors fit does not depend on how fast
 * copies are. */

G_BEGIN_DECLS

/* Seconds that a thread waits, at first. */
#define EBB_HOST_PATIENCE 60.0

typedef struct _EbbHostPool EbbHostPool;
typedef struct _EbbHostOwner EbbHostOwner;

typedef struct
{
  void *data;
  gsize size;
  EbbDevice *device;
  EbbMemoryAccount *account; /* of the dry run whose memory it is; NULL: real memory */
  /* for the pool */
  int ref_count;
  EbbHostPool *pool;
  gsize n_used; /* bytes that were asked for */
  EbbHostOwner *owner;
  EbbTransfer *in, *out; /* the last ones from and to it */
  GList link;
} EbbHostBuffer;

typedef struct
{
  guint64 n_bytes; /* that buffers may have together, those that are kept for later included */
  EbbWhenFull when_full;
  double patience; /* seconds to wait */
} EbbHostLimit;

EbbHostPool *ebb_host_pool_new (void);
/* No buffer may be in use. */
void ebb_host_pool_free (EbbHostPool *pool);
void ebb_host_pool_get_limit (EbbHostPool *pool,
                              EbbHostLimit *limit);
/* Threads that wait look at it again. */
void ebb_host_pool_set_limit (EbbHostPool *pool,
                              const EbbHostLimit *limit);
/* Memory for copies of @device, counted on the CPU as activations. NULL with EBB_ERROR_NO_MEMORY set. @waited: adds the
 * seconds that this thread waited for it while the device had nothing to compute. */
EbbHostBuffer *ebb_host_pool_take (EbbHostPool *pool,
                                   EbbDevice *device,
                                   gsize size,
                                   double *waited,
                                   GError **error);
EbbHostBuffer *ebb_host_buffer_ref (EbbHostBuffer *buffer);
/* The last one gives the memory back to the pool. */
void ebb_host_buffer_unref (EbbHostBuffer *buffer);
/* Gives memory that is kept for later back to the system; FALSE if a copy has failed. */
gboolean ebb_host_pool_trim (EbbHostPool *pool,
                             GError **error);
/* The same for the memory of a dry run that ends. */
void ebb_host_pool_end_dry_run (EbbHostPool *pool);
/* Bytes in use, and kept for later. */
void ebb_host_pool_get_bytes (EbbHostPool *pool,
                              guint64 *in_use,
                              guint64 *kept);

/* A copy of the buffer's bytes begins: the next one of the other direction comes after it. */
void ebb_host_buffer_note (EbbHostBuffer *buffer,
                           EbbTransfer *transfer,
                           gboolean to_host);
/* The last copy that reads the buffer, with a reference; NULL: none is running. */
EbbTransfer *ebb_host_buffer_get_reader (EbbHostBuffer *buffer);

G_END_DECLS
