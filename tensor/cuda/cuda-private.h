/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/module-private.h"
#include "tensor/cuda/current-private.h"
#include "tensor/cuda/kernels-private.h"
#include "tensor/util/block-heap-private.h"
#include "tensor/util/lock-private.h"

/* NVIDIA GPUs as devices: the host's half. Each device has one mutex, which is held while work is enqueued. What a
 * caller waits for is waited for without it; with it the host waits where nothing may be enqueued meanwhile: to report
 * a fault, to take memory that no tensor reaches, to time a launch, and where a trace has become long.
 *
 * The module is not linked to the library, whose functions it finds in ebb_cuda_host. The same files make the module
 * of the emulated GPU, under another name and over a stand-in for CUDA. */

G_BEGIN_DECLS

extern const EbbBackendHost *ebb_cuda_host;

#undef EBB_ERROR
#define EBB_ERROR (ebb_cuda_host->get_error_quark ())
/* As in tensor/error-private.h, of which modules have no function. */
#define ebb_fail(error, ...) (g_set_error (error, EBB_ERROR, __VA_ARGS__), FALSE)
#define ebb_fail_null(error, ...) (g_set_error (error, EBB_ERROR, __VA_ARGS__), NULL)

/* The name of the kind of device. */
#ifndef EBB_CUDA_NAME
#define EBB_CUDA_NAME "cuda"
#endif

#define EBB_CUDA_MAX_DEVICES 1024
#define EBB_CUDA_ALIGNMENT EBB_DEVICE_ALIGNMENT
#define EBB_CUDA_PIECE ((gsize) 2 << 20) /* of memory, mapped at a time */

typedef struct _EbbCudaDevice EbbCudaDevice;

/* -- memory of the device (heap.c) --------------------------------------------------------------------------------- */

/* One range of addresses, of which pieces are given memory as blocks reach them. */
typedef struct
{
  gsize base;
  gsize reserved; /* addresses: whole pieces, of twice the capacity */
  gsize piece;
  gsize n_pieces;
  CUmemGenericAllocationHandle *memory; /* of each piece; 0: it has none */
  gsize n_mapped, most_mapped;          /* pieces with memory, and as many as the capacity takes */
  EbbBlockHeap blocks;
} EbbCudaHeap;

gboolean ebb_cuda_heap_init (EbbCudaDevice *device,
                             gsize capacity,
                             GError **error);
void ebb_cuda_heap_clear (EbbCudaDevice *device);
void *ebb_cuda_alloc (int index,
                      gsize size,
                      GError **error);
void ebb_cuda_free (int index,
                    void *data,
                    gsize size);
/* The bytes of the heap's pieces that have memory, and of pinned host memory; each may be NULL. */
void ebb_cuda_get_taken (int index,
                         guint64 *device,
                         guint64 *host);

static inline gboolean
ebb_cuda_heap_contains (const EbbCudaHeap *heap,
                        const void *address)
{
  return (gsize) address - heap->base < heap->reserved;
}

/* -- pinned host memory (host-memory.c) ---------------------------------------------------------------------------- */

void *ebb_cuda_alloc_host (int index,
                           gsize size,
                           GError **error);
void ebb_cuda_free_host (int index,
                         void *data,
                         gsize size);
void ebb_cuda_trim_host (int index);
guint64 ebb_cuda_get_pinned (void);
/* For a fork of the process, before the lock of any device: meanwhile no device is opened. */
void ebb_cuda_lock_host_memory (void);
void ebb_cuda_unlock_host_memory (void);

/* -- points and events (event.c) ----------------------------------------------------------------------------------- */

/* An event of CUDA, which goes back to the device's pool with its last reference. With the device locked. */
typedef struct _EbbCudaPoint EbbCudaPoint;

struct _EbbCudaPoint
{
  int ref_count;
  gboolean is_timed;
  cudaEvent_t event;
  EbbCudaPoint *next; /* in the pool */
};

/* The event of streams->record () and copy (). */
typedef struct
{
  int ref_count; /* the caller's, and those of work that is still to be measured */
  EbbCudaDevice *device;
  EbbStream stream;
  gboolean reached; /* the host has seen it; atomic */
  EbbCudaPoint *point;
  double work, waited; /* seconds, as far as they were measured */
} EbbCudaEvent;

/* NULL with @error set if CUDA has no more of them, or the stream takes no more. */
EbbCudaPoint *ebb_cuda_point_record (EbbCudaDevice *device,
                                     EbbStream stream,
                                     gboolean is_timed,
                                     GError **error);
EbbCudaPoint *ebb_cuda_point_ref (EbbCudaPoint *point);
void ebb_cuda_point_unref (EbbCudaDevice *device,
                           EbbCudaPoint *point);
EbbCudaEvent *ebb_cuda_event_new (EbbCudaDevice *device,
                                  EbbStream stream,
                                  EbbCudaPoint *point); /* takes @point over */
void ebb_cuda_event_unref_locked (EbbCudaEvent *event);

gboolean ebb_cuda_synchronize_event (gpointer event,
                                     GError **error);
gboolean ebb_cuda_query_event (gpointer event);
void ebb_cuda_free_event (gpointer event);

/* -- measuring (trace.c) ------------------------------------------------------------------------------------------- */

/* Work between two points of a stream, a wait between two points, or an event that the work before it is counted to. */
typedef enum
{
  EBB_CUDA_SPAN_WORK,
  EBB_CUDA_SPAN_WAIT,
  EBB_CUDA_SPAN_EVENT
} EbbCudaSpanKind;

typedef struct
{
  EbbCudaSpanKind kind;
  EbbCudaPoint *begin, *end;
  EbbCudaEvent *event; /* WAIT: that was waited for; EVENT: itself */
  const char *name;
  gsize n_bytes;
} EbbCudaSpan;

typedef struct
{
  cudaStream_t stream;
  GArray *spans; /* of EbbCudaSpan, not measured yet, in their order; those before first_span are done */
  guint first_span;
  double unmarked;       /* seconds worked since the last event */
  double busy, waited;   /* seconds */
  guint64 upload_serial; /* of the last upload that its work comes after, see staging.c */
} EbbCudaStream;

/* With the device locked. They take @begin and @end over. */
void ebb_cuda_add_work (EbbCudaDevice *device,
                        EbbStream stream,
                        EbbCudaPoint *begin,
                        EbbCudaPoint *end,
                        const char *name,
                        gsize n_bytes);
void ebb_cuda_add_wait (EbbCudaDevice *device,
                        EbbStream stream,
                        EbbCudaPoint *begin,
                        EbbCudaPoint *end,
                        EbbCudaEvent *event);
void ebb_cuda_add_event (EbbCudaDevice *device,
                         EbbCudaEvent *event);
/* Measures the spans that are done. */
void ebb_cuda_measure (EbbCudaDevice *device,
                       EbbStream stream);
void ebb_cuda_get_times (gpointer event,
                         double *work,
                         double *waited);
void ebb_cuda_get_seconds (int index,
                           EbbStream stream,
                           double *busy,
                           double *waited);
void ebb_cuda_set_tracing (int index,
                           gboolean tracing);
gsize ebb_cuda_take_spans (int index,
                           EbbStreamSpan **spans);

/* -- copies through pinned memory of the device's own (staging.c) -------------------------------------------------- */

#define EBB_CUDA_STAGING_SLOT ((gsize) 256 << 10)
#define EBB_CUDA_N_STAGING_SLOTS 32

/* Slots are used in turn; each has the point after its last copy. */
typedef struct
{
  char *data; /* NULL: nothing was copied yet */
  guint next;
  EbbCudaPoint *points[EBB_CUDA_N_STAGING_SLOTS]; /* NULL: it is free */
  EbbCudaPoint *last_upload;
  guint64 upload_serial;
  pthread_mutex_t lock; /* of one copy at a time, held before the device's */
} EbbCudaStaging;

gboolean ebb_cuda_copy_now (int index,
                            void *destination,
                            const void *source,
                            gsize size,
                            gboolean to_host,
                            GError **error);
/* The next work of @stream comes after all uploads, which count as done when they return. */
gboolean ebb_cuda_come_after_uploads (EbbCudaDevice *device,
                                      EbbStream stream,
                                      GError **error);

/* -- streams (stream.c) -------------------------------------------------------------------------------------------- */

gboolean ebb_cuda_streams_init (EbbCudaDevice *device,
                                GError **error);
void ebb_cuda_streams_clear (EbbCudaDevice *device);
gboolean ebb_cuda_enqueue_copy (int index,
                                EbbStream stream,
                                void *destination,
                                const void *source,
                                gsize size,
                                gpointer *event,
                                GError **error);
gpointer ebb_cuda_record (int index,
                          EbbStream stream,
                          GError **error);
gboolean ebb_cuda_wait (int index,
                        EbbStream stream,
                        gpointer event,
                        GError **error);
gboolean ebb_cuda_synchronize (int index,
                               GError **error);
gpointer ebb_cuda_get_native_stream (int index,
                                     EbbStream stream);

/* -- launches (launch.c, kernels.c) -------------------------------------------------------------------------------- */

extern const EbbCudaKernelFunc ebb_cuda_kernels[EBB_N_KERNELS];
/* NULL: the kernel needs none. */
extern const EbbCudaWorkspaceFunc ebb_cuda_workspaces[EBB_N_KERNELS];

gsize ebb_cuda_get_workspace (int index,
                              const EbbLaunch *launch);
gboolean ebb_cuda_launch (int index,
                          const EbbLaunch *launch,
                          GError **error);
gboolean ebb_cuda_launch_in (int index,
                             EbbStream stream,
                             const EbbLaunch *launch,
                             GError **error);
gboolean ebb_cuda_time_launches (int index,
                                 const EbbLaunch *launch,
                                 guint n,
                                 double *seconds,
                                 GError **error);

/* -- index faults (fault.c) ---------------------------------------------------------------------------------------- */

#define EBB_CUDA_N_INDEX_LAUNCHES 4096 /* more than can be enqueued before the device has run the first of them */

typedef struct
{
  EbbCudaFault *record;                       /* in the device's memory */
  volatile guint32 *flag;                     /* in host memory */
  pthread_mutex_t lock;                       /* of library_failure, and of the record where the host writes it */
  GError *library_failure;                    /* of work that a library put into a stream */
  cudaStream_t stream;                        /* in which nothing waits */
  guint32 serial;                             /* of the last launch that checks indices */
  const char *ops[EBB_CUDA_N_INDEX_LAUNCHES]; /* by serial */
} EbbCudaFaults;

gboolean ebb_cuda_faults_init (EbbCudaDevice *device,
                               GError **error);
void ebb_cuda_faults_clear (EbbCudaDevice *device);
/* The serial of @launch, 0 if it checks no indices. */
guint32 ebb_cuda_faults_note (EbbCudaDevice *device,
                              const EbbLaunch *launch);
/* Waits for the device; FALSE with @error set. With the device locked. */
gboolean ebb_cuda_faults_report (EbbCudaDevice *device,
                                 GError **error);
/* Of work that a library put into a stream: the next report gives it. */
void ebb_cuda_faults_set_failure (EbbCudaDevice *device,
                                  const GError *reason);

/* -- products (matmul.c, matmul-plan.c) ---------------------------------------------------------------------------- */

typedef struct _EbbCudaBlas EbbCudaBlas;

gsize ebb_cuda_matmul_get_workspace (EbbCudaDevice *device,
                                     const EbbLaunch *launch);

/* -- devices (device.c) -------------------------------------------------------------------------------------------- */

struct _EbbCudaDevice
{
  int index;
  char *name;
  int architecture, n_multiprocessors, shared_bytes;
  guint64 memory; /* of the GPU, all of it */
  gsize capacity;
  gboolean allows_tf32;
  pthread_mutex_t lock;
  const char *failure; /* why it has ended, a whole line; NULL: it works. Read without the lock */
  EbbCudaHeap heap;
  EbbCudaStream streams[EBB_N_STREAMS];
  EbbCudaPoint *free_points[2]; /* the pools: without times, timed */
  EbbCudaStaging staging;
  EbbCudaFaults faults;
  struct _EbbCudaHostMemory *host_memory;
  EbbCudaBlas *blas;       /* NULL: there was no product yet */
  const char *blas_status; /* of the last call of cuBLASLt that failed */
  gboolean tracing;
  EbbCudaPoint *trace_base;      /* whose time is trace_time */
  double trace_time;             /* seconds on the monotonic clock */
  GArray *trace;                 /* of EbbStreamSpan */
  guint64 fails[EBB_N_FAILURES]; /* how many are left until one fails; 0: none will */
};

/* The functions of the driver that the runtime lacks. */
typedef struct
{
  CUresult (*mem_address_reserve) (CUdeviceptr *address,
                                   size_t size,
                                   size_t alignment,
                                   CUdeviceptr fixed,
                                   unsigned long long flags);
  CUresult (*mem_address_free) (CUdeviceptr address,
                                size_t size);
  CUresult (*mem_create) (CUmemGenericAllocationHandle *handle,
                          size_t size,
                          const CUmemAllocationProp *properties,
                          unsigned long long flags);
  CUresult (*mem_release) (CUmemGenericAllocationHandle handle);
  CUresult (*mem_map) (CUdeviceptr address,
                       size_t size,
                       size_t offset,
                       CUmemGenericAllocationHandle handle,
                       unsigned long long flags);
  CUresult (*mem_unmap) (CUdeviceptr address,
                         size_t size);
  CUresult (*mem_set_access) (CUdeviceptr address,
                              size_t size,
                              const CUmemAccessDesc *access,
                              size_t n);
  CUresult (*mem_get_granularity) (size_t *granularity,
                                   const CUmemAllocationProp *properties,
                                   CUmemAllocationGranularity_flags option);
  CUresult (*get_error_name) (CUresult result,
                              const char **name);
} EbbCudaDriver;

extern EbbCudaDriver ebb_cuda_driver;

/* The device that was opened; never NULL. */
EbbCudaDevice *ebb_cuda_device_get (int index);
/* From now on it is open. */
void ebb_cuda_device_add (EbbCudaDevice *device);
guint64 ebb_cuda_get_capacity (int index);
gsize ebb_cuda_get_loss_chunk_bytes (int index);
guint64 ebb_cuda_fail (int index,
                       EbbFailure what,
                       guint64 n);
/* TRUE: it is the one that was asked to fail. With the device locked. */
gboolean ebb_cuda_take_failure (EbbCudaDevice *device,
                                EbbFailure what);

/* Locks the device, current. FALSE with @error set and nothing locked if it has ended or has an index fault to report;
 * without a place for the error only if it has ended. */
gboolean ebb_cuda_begin (EbbCudaDevice *device,
                         int *previous,
                         GError **error);
/* The same, but an index fault is left for others to report. */
gboolean ebb_cuda_begin_unreported (EbbCudaDevice *device,
                                    int *previous,
                                    GError **error);
void ebb_cuda_end (EbbCudaDevice *device,
                   int previous);

/* -- opening (opening.c) ------------------------------------------------------------------------------------------- */

gboolean ebb_cuda_device_open (int index,
                               GError **error);

/* -- errors (error.c) ---------------------------------------------------------------------------------------------- */

/* TRUE if @status is cudaSuccess. Else @error says what failed, as "cuda: layer_norm failed: ...", and the device has
 * ended if CUDA does no more for this process. */
gboolean ebb_cuda_check (EbbCudaDevice *device,
                         cudaError_t status,
                         const char *what,
                         GError **error);
/* FALSE with @error set if the device has ended. */
gboolean ebb_cuda_check_alive (const EbbCudaDevice *device,
                               GError **error);
/* Ends the device: a line for the rest of the process. */
void ebb_cuda_device_end (EbbCudaDevice *device,
                          const char *format,
                          ...) G_GNUC_PRINTF (2, 3);
/* "invalid argument (cudaErrorInvalidValue)" */
char *ebb_cuda_error_to_string (cudaError_t status);
char *ebb_cuda_driver_error_to_string (CUresult result);

G_END_DECLS
