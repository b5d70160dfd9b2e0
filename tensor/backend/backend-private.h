/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/device.h"
#include "tensor/backend/kernel-private.h"
#include "tensor/memory-account-private.h"

/* The functions of a device's driver: memory, copies, kernels, and for a device that works asynchronously its
 * queues. Plain functions; the version guards loaded modules. */

G_BEGIN_DECLS

#define EBB_BACKEND_VERSION 8

/* The queues of a device. The work of one runs in the order in which it was enqueued; only events order one after
 * another. */
typedef enum
{
  EBB_STREAM_COMPUTE, /* launches, and copies that are done when the function returns */
  EBB_STREAM_TO_HOST,
  EBB_STREAM_FROM_HOST,
  EBB_STREAM_COLLECTIVE, /* what process groups enqueue: by the native stream, or launches of their own */
  EBB_N_STREAMS
} EbbStream;

static inline const char *
ebb_stream_get_name (EbbStream stream)
{
  static const char *const names[EBB_N_STREAMS] = { "compute", "to_host", "from_host", "collective" };

  return names[stream];
}

/* One piece of work in a queue, or the time that the queue stood waiting for another one. */
typedef struct
{
  EbbStream stream;
  gboolean is_wait;
  const char *name;  /* of the kernel, or of what is waited for; lives as long as the process */
  gsize n_bytes;     /* of a copy */
  double start, end; /* seconds on the monotonic clock */
} EbbStreamSpan;

/* A failure of enqueued work is reported by any function of the device that is given a place for a GError. A function
 * called with NULL goes on as if nothing had failed and leaves the report to others. Nothing is to be computed from
 * data that never arrived:
 *
 * - Where work can be dropped (sim), the failed queue and those that wait for it drop all later work until the failure
 *   was reported; then the device goes on.
 * - An index out of range (EBB_ERROR_INDEX, see kernel-private.h) drops no work where that can't be done (cuda):
 * lasting changes are left out until it was reported; then the device goes on.
 * - Any other failure of a kernel on cuda is sticky. It ends the device for the process: every later call with a place
 * for a GError fails with one line that says so, and the CPU goes on. */
typedef struct
{
  /* Host memory that the queues copy from and to. */
  void *(*alloc_host) (int index,
                       gsize size,
                       GError **error); /* aligned to 4096 bytes */
  void (*free_host) (int index,
                     void *data,
                     gsize size);
  /* Gives memory that free_host keeps for later back to the system. NULL: it keeps none. */
  void (*trim_host) (int index);
  /* Enqueues a copy between memory of the device and memory of alloc_host. @event, if not NULL, gets the point just
   * after it, with nothing of another thread between them. */
  gboolean (*copy) (int index,
                    EbbStream stream,
                    void *destination,
                    const void *source,
                    gsize size,
                    gpointer *event,
                    GError **error);
  /* A point in a queue: it is reached when all that was enqueued before is done. NULL with @error set. */
  gpointer (*record) (int index,
                      EbbStream stream,
                      GError **error);
  /* Work that is enqueued from now on runs after @event. */
  gboolean (*wait) (int index,
                    EbbStream stream,
                    gpointer event,
                    GError **error);
  gboolean (*synchronize_event) (gpointer event,
                                 GError **error);
  /* TRUE: reached, or never will be since the work failed. The host may act on that only after synchronize_event, which
   * then costs nothing: an answer that depends on the time must not be what makes a program right. */
  gboolean (*query_event) (gpointer event);
  /* Of an event that was reached: how long its queue has worked since its last event before that one, and how long
   * computing stood waiting for it; seconds. Work of COMPUTE may be measured only while the device is traced, else it
   * is 0; copies and waits always are. */
  void (*get_times) (gpointer event,
                     double *work,
                     double *waited);
  void (*free_event) (gpointer event);
  void (*get_seconds) (int index,
                       EbbStream stream,
                       double *busy,
                       double *waited); /* since the device was opened: worked (as above), and stood waiting for other
                                           queues */
  /* Spans from now on are kept until they are taken; take gives the number and an array for g_free (). */
  void (*set_tracing) (int index,
                       gboolean tracing);
  gsize (*take_spans) (int index,
                       EbbStreamSpan **spans);
  /* As EbbBackend's launch, in a queue of choice: of kernels without workspace, which is of the queue for computing. In
   * the queue of collectives it may leave out the report of an earlier failure, for which it would wait for work of
   * other ranks amid a call. */
  gboolean (*launch) (int index,
                      EbbStream stream,
                      const EbbLaunch *launch,
                      GError **error);
  /* The stream that the vendor's libraries enqueue to (a cudaStream_t); NULL if the device has none. */
  gpointer (*get_native_stream) (int index,
                                 EbbStream stream);
  /* Of work that a library enqueued to a native stream: it failed, and what comes after it computes from data that
   * never arrived. Lasting changes are left out from now on, until a function reports @reason once, as with an index
   * out of range; one that runs at the moment, from data that did arrive, may be made in part. It doesn't wait for
   * work, nor for a thread that does. NULL where there are no native streams. */
  void (*set_failure) (int index,
                       const GError *reason);
} EbbStreamFuncs;

/* The kinds of calls that a test may let fail. */
typedef enum
{
  EBB_FAILURE_ALLOC,
  EBB_FAILURE_ALLOC_HOST,
  EBB_FAILURE_LAUNCH,
  EBB_FAILURE_TO_HOST, /* copies of any queue */
  EBB_FAILURE_FROM_HOST,
  EBB_N_FAILURES
} EbbFailure;

/* A multiple of the rows of any of oneDNN's register tiles. With it the products of a step take 0.3 % longer. */
#define EBB_HOST_ROW_BLOCK 960

#define EBB_LOSS_CHUNK_BYTES (64 * 1024 * 1024)

/* Storages on a device that works behind the caller's back begin at its multiples. */
#define EBB_DEVICE_ALIGNMENT 256

typedef struct
{
  guint version;
  const char *name;
  gboolean host_memory; /* the host may read and write its memory at any time */
  /* Gradients that are sums over rows add up blocks of so many rows, the last block first, so that tiles of such blocks
   * give the same bits as all rows at once. 0: one sum over all rows, which is faster there. */
  gint64 row_block;
  /* Called once for each device before anything else; NULL: nothing to do. */
  gboolean (*open) (int index,
                    GError **error);
  guint64 (*get_capacity) (int index); /* bytes; NULL: it says itself when there is no more */
  /* What seconds on the device depend on besides its name and capacity, on one line: measured ones are kept for it
   * alone. NULL: nothing. */
  char *(*describe_speed) (int index);
  void *(*alloc) (
      int index,
      gsize size,
      GError **error); /* aligned to 64 bytes at least; usable by what is enqueued for computing from now on */
  void (*free) (int index,
                void *data,
                gsize size); /* may be used again by what is enqueued for computing from now on */
  /* The bytes that it took for tensors, of the device and of host memory for copies; what it holds unused counts too.
   * NULL: the host's allocator has them. */
  void (*get_taken) (int index,
                     guint64 *device,
                     guint64 *host);
  /* Between this device and any host memory: after what was enqueued for computing, and done when it returns. NULL
   * where host_memory. */
  gboolean (*copy) (int index,
                    void *destination,
                    const void *source,
                    gsize size,
                    gboolean to_host,
                    GError **error);
  gboolean (*synchronize) (int index,
                           GError **error); /* waits for all queues; NULL: nothing runs behind the caller's back */
  /* How many bytes of workspace @launch needs beside its operands: a function of the kernel, shapes, strides, dtypes
   * and parameters, on the CPU of the thread's number of threads, on a GPU of where in their storages views begin;
   * never of addresses (a GPU's storages begin at multiples of 256 bytes) or of what is free. NULL: none. */
  gsize (*get_workspace) (int index,
                          const EbbLaunch *launch);
  /* Enqueues a copy of @launch for computing; NULL: its kernel is called. */
  gboolean (*launch) (int index,
                      const EbbLaunch *launch,
                      GError **error);
  const EbbKernelFunc *(*get_kernels) (void); /* EBB_N_KERNELS of them; NULL: the backend lacks that kernel */
  const EbbStreamFuncs *streams;              /* NULL: whatever a function is asked for is done when it returns */
  /* Runs @launch @n times, one after another, and gives the device's time for each in seconds[n]. NULL: the host's
   * clock around a launch and synchronize () says it. */
  gboolean (*time_launches) (int index,
                             const EbbLaunch *launch,
                             guint n,
                             double *seconds,
                             GError **error);
  /* How many bytes of logits a fused loss holds at a time; NULL: EBB_LOSS_CHUNK_BYTES. Always the same for a device. */
  gsize (*get_loss_chunk_bytes) (int index);
  gint64 most_head_width; /* of attention's heads; 0: any */
  gsize
      row_alignment; /* in bytes, of matrices that only kernels see: products are fastest with it; 0: rows are dense */
  /* For tests: lets the @n-th @what from now on fail, allocations at once, work when it is run; 0: none. Gives the
   * number that was left of the last such wish: 0 if it has failed. NULL: nothing can be made to fail. */
  guint64 (*fail) (int index,
                   EbbFailure what,
                   guint64 n);
} EbbBackend;

/* Makes a device of that name available; the backend must stay. A name is registered once. */
void ebb_backend_register (const EbbBackend *backend);

struct _EbbDevice
{
  const EbbBackend *backend;
  int index;
  char *name;
  const EbbKernelFunc *kernels;
  /* accounting, in bytes; see memory.c */
  guint64 current[7]; /* by purpose, then the total */
  guint64 peak[7];
  guint64 limit;
  guint64 loss_chunk; /* bytes of logits that a fused loss holds; 0: the backend's choice */
  guint number;       /* of those that are open */
  double trace_start; /* of its queues, see stream-trace.c; 0: they are not traced */
};

/* Runs a kernel, or enqueues it: the one place that allocates workspace, counts it and hands it over. */
gboolean ebb_device_launch (EbbDevice *device,
                            EbbLaunch *launch,
                            GError **error);

extern const EbbBackend ebb_cpu_backend;

/* Memory of @device counted under @purpose. */
void *ebb_device_alloc (EbbDevice *device,
                        gsize size,
                        guint8 purpose,
                        GError **error);
void ebb_device_free (EbbDevice *device,
                      void *data,
                      gsize size,
                      guint8 purpose);
/* The same for memory that another thread may have asked for: @account is the one that it was counted to, or NULL. All
 * others of these functions count to the present thread's account, if it has one. */
void ebb_device_free_of (EbbDevice *device,
                         void *data,
                         gsize size,
                         guint8 purpose,
                         EbbMemoryAccount *account);
/* FALSE with @error set if @size bytes more, beside @beside that are taken but not counted, are beyond the limit. */
gboolean ebb_device_check_limit (EbbDevice *device,
                                 gsize size,
                                 guint64 beside,
                                 GError **error);
/* Counts memory from elsewhere, or moves counted bytes from one purpose to another. */
void ebb_device_count (EbbDevice *device,
                       guint8 purpose,
                       gint64 n_bytes);
void ebb_device_recount (EbbDevice *device,
                         guint8 from,
                         guint8 to,
                         gsize n_bytes);
/* Of memory whose bytes are counted elsewhere. */
void ebb_device_free_uncounted (EbbDevice *device,
                                void *data,
                                gsize size,
                                EbbMemoryAccount *account);
/* @n_bytes at @data (NULL: a part of counted memory, or none) pass from one purpose to another; EBB_N_PURPOSES stands
 * for free memory. */
void ebb_device_change (EbbDevice *device,
                        const void *data,
                        guint8 from,
                        guint8 to,
                        gsize n_bytes,
                        EbbMemoryAccount *account);

G_END_DECLS
