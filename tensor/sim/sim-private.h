/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/module-private.h"
#include "tensor/util/block-heap-private.h"
#include "tensor/util/lock-private.h"

/* An accelerator emulated on the host: memory of its own that the host can't touch, queues that are threads, copies
 * that take as long as is set. One mutex guards a device: work is checked and put into its
 * queue in one piece, and the threads hold it only between two pieces of work.
 *
 * The module is not linked to the library, whose functions it finds in sim_host. */

G_BEGIN_DECLS

extern const EbbBackendHost *sim_host;

#undef EBB_ERROR
#define EBB_ERROR (sim_host->get_error_quark ())
/* As in tensor/error-private.h, of which modules have no function. */
#define ebb_fail(error, ...) (g_set_error (error, EBB_ERROR, __VA_ARGS__), FALSE)
#define ebb_fail_null(error, ...) (g_set_error (error, EBB_ERROR, __VA_ARGS__), NULL)

#define SIM_MAX_DEVICES 1024
#define SIM_ALIGNMENT 64
#define SIM_QUEUE_LENGTH 1024 /* pieces of work; with more, the caller waits */

/* -- the order of work (order.c) ----------------------------------------------------------------------------------- */

/* How many pieces of work of each queue are known to be done. */
typedef struct
{
  guint64 count[EBB_N_STREAMS];
} SimClock;

typedef struct
{
  gsize start, end; /* bytes of the block */
  guint64 count;    /* the piece of work, by its number in its queue; 0: none */
  EbbStream stream;
  gboolean writes;
  const char *name; /* of a kernel or "copy" */
} SimAccess;

/* The uses of a block: by computing, of which only the last read and write matter to the other queues, and by copies.
 */
typedef struct
{
  const char *kind; /* "block", "host block" */
  guint64 serial;
  gsize size;
  gboolean on_host;        /* it is the host that gives the memory back */
  guint64 born;            /* the work for computing that was enqueued before the block was there */
  SimAccess reads, writes; /* by computing: the range spans all of them that others may not know */
  GArray *copies;          /* of SimAccess; NULL: none */
} SimUses;

typedef struct _SimDevice SimDevice;

void sim_uses_init (SimUses *uses,
                    SimDevice *device,
                    const char *kind,
                    gsize size);
void sim_uses_clear (SimUses *uses);
/* FALSE with @error set if the next piece of work of @access->stream could run at the same time as one that it must
 * come after. Called with the device locked. */
gboolean sim_uses_check (const SimUses *uses,
                         SimDevice *device,
                         const SimAccess *access,
                         GError **error);
void sim_uses_add (SimUses *uses,
                   SimDevice *device,
                   const SimAccess *access);
/* The same for giving the memory back: to computing that is enqueued from now on, or to the host. */
gboolean sim_uses_check_free (const SimUses *uses,
                              SimDevice *device,
                              gboolean to_host,
                              GError **error);

/* -- memory (heap.c) -------------------------------------------------------------------------------- */

/* The memory is mapped twice: tensors carry addresses of @base, where nobody can read or write; kernels and copies use
 * the same bytes at a fixed distance. */
typedef struct
{
  char *base;
  gsize capacity;
  gsize mapped; /* whole pages */
  gsize distance;
  EbbBlockHeap blocks; /* whose data is the SimUses of each */
} SimHeap;

gboolean sim_heap_init (SimHeap *heap,
                        gsize capacity,
                        GError **error);
void sim_heap_clear (SimHeap *heap);
/* The block in use that @address lies in, or NULL. */
EbbHeapBlock *sim_heap_find (SimHeap *heap,
                             const void *address);

static inline gboolean
sim_heap_contains (const SimHeap *heap,
                   const void *address)
{
  return (gsize) address - (gsize) heap->base < heap->capacity;
}

static inline void *
sim_heap_get_alias (const SimHeap *heap,
                    const void *address)
{
  return (char *) address + heap->distance;
}

/* Host memory that copies run from and to. */
typedef struct
{
  char *data;
  gsize size, mapped;
  SimUses uses;
} SimHostBlock;

SimHostBlock *sim_host_block_find (SimDevice *device,
                                   const void *address);
void *sim_alloc_host (int index,
                      gsize size,
                      GError **error);
void sim_free_host (int index,
                    void *data,
                    gsize size);

/* -- the parts of a device ----------------------------------------------------------------------------------------- */

typedef struct _SimWork SimWork;

/* A point in a queue. Nanoseconds on the monotonic clock. */
typedef struct
{
  int ref_count;
  SimDevice *device;
  EbbStream stream;
  SimClock clock;
  gboolean reached;
  GError *error; /* of work before it; NULL: none failed */
  gint64 time;   /* when it was reached */
  gint64 work, waited;
} SimEvent;

typedef struct
{
  SimDevice *device;
  EbbStream stream;
  pthread_t thread;
  pthread_cond_t filled, emptied;
  SimWork *first, *last;
  guint n;
  guint64 n_enqueued, n_done;
  SimClock clock;  /* known to be done before its next work; count[stream]: the accesses enqueued so far */
  GError *poison;  /* all work is dropped */
  gint64 ready;    /* when its last work was done */
  gint64 unmarked; /* how long it has worked since its last event */
  gint64 busy, waited;
} SimQueue;

struct _SimDevice
{
  int index;
  char *name;
  gint64 memory;
  double bytes_per_second[EBB_N_STREAMS]; /* of copies TO_HOST and FROM_HOST; 0: as fast as they can */
  gint64 latency;                         /* nanoseconds */
  pthread_mutex_t lock;
  pthread_cond_t progress; /* work is done, or an event reached */
  guint n_waiting;         /* for it */
  pthread_cond_t hurries;  /* on the monotonic clock: copies sleep until then */
  SimHeap heap;
  GTree *host_blocks; /* by address */
  guint64 last_serial;
  SimQueue queues[EBB_N_STREAMS];
  SimClock host_clock;           /* work that the host knows to be done */
  GError *failure;               /* of work, not reported yet */
  guint64 n_reported;            /* failures before that one */
  GHashTable *dropped;           /* by thread: SimDropped, the last failure for which work of it was dropped */
  GError *race;                  /* found when memory was freed, not reported yet */
  guint64 fails[EBB_N_FAILURES]; /* how many are left until one fails; 0: none will */
  gboolean tracing, closing;
  gboolean hurried; /* copies take no longer than they must */
  gboolean forked;  /* this process has none of its threads */
  GArray *spans;
};

/* A failure that is still to be reported to a thread. */
typedef struct
{
  guint64 number; /* how many were reported before it */
  GError *error;
} SimDropped;

/* -- devices (device.c) -------------------------------------------------------------------------------------------- */

/* The device that was opened; never NULL. */
SimDevice *sim_device_get (int index);
/* From now on it is open. */
void sim_device_add (SimDevice *device);
/* FALSE with @error set: nobody does any work any more. */
gboolean sim_device_check_open (SimDevice *device,
                                GError **error);
guint64 sim_fail (int index,
                  EbbFailure what,
                  guint64 n);
/* TRUE: it is the one that was asked to fail. With the device locked. */
gboolean sim_device_take_failure (SimDevice *device,
                                  EbbFailure what);
void sim_clock_merge (SimClock *clock,
                      const SimClock *other);
void sim_device_wait_for_progress (SimDevice *device);
void sim_device_announce_progress (SimDevice *device);
/* The process ends: copies sleep no more. */
void sim_device_hurry (SimDevice *device);
/* Until all work that is enqueued now is done, which the host then knows; with the device locked, which it unlocks
 * meanwhile. */
void sim_device_drain (SimDevice *device);

/* -- work (work.c, queue.c) ---------------------------------------------------------------------------------------- */

/* Of memory and of work of the device; see EbbBackend and EbbStreamFuncs. */
gboolean sim_launch (int index,
                     const EbbLaunch *launch,
                     GError **error);
gboolean sim_launch_in (int index,
                        EbbStream stream,
                        const EbbLaunch *launch,
                        GError **error);
gboolean sim_copy (int index,
                   EbbStream stream,
                   void *destination,
                   const void *source,
                   gsize size,
                   gpointer *event,
                   GError **error);
gboolean sim_copy_now (int index,
                       void *destination,
                       const void *source,
                       gsize size,
                       gboolean to_host,
                       GError **error);
gpointer sim_record (int index,
                     EbbStream stream,
                     GError **error);
gboolean sim_wait (int index,
                   EbbStream stream,
                   gpointer event,
                   GError **error);
gboolean sim_synchronize_event (gpointer event,
                                GError **error);
gboolean sim_query_event (gpointer event);
void sim_get_times (gpointer event,
                    double *work,
                    double *waited);
SimEvent *sim_event_ref (SimEvent *event);
void sim_free_event (gpointer event);
gboolean sim_synchronize (int index,
                          GError **error);

typedef enum
{
  SIM_WORK_LAUNCH,
  SIM_WORK_COPY,
  SIM_WORK_RECORD,
  SIM_WORK_WAIT
} SimWorkKind;

struct _SimWork
{
  SimWork *next;
  SimWorkKind kind;
  guint64 thread; /* that enqueued it */
  gint64 enqueued;
  gboolean fails;
  const char *name;
  gsize n_bytes;
  union
  {
    struct
    {
      void *destination;
      const void *source;
      gboolean to_host;
    } copy;
    SimEvent *event;
    struct
    {
      int n_threads;
      EbbLaunch launch;
    } kernel;
  } u;
  EbbView views[]; /* the operands of the kernel; its items follow */
};

SimWork *sim_work_new (SimWorkKind kind,
                       const char *name,
                       guint n_views,
                       guint n_items);
/* The loop of a queue's thread, with the device locked, from the opening of the device to the end of the process. */
void *sim_queue_run (void *queue);
/* With the device locked, which it may unlock to wait until there is room. */
void sim_queue_wait_for_room (SimQueue *queue);
void sim_queue_push (SimQueue *queue,
                     SimWork *work);

/* -- failures (failure.c) ------------------------------------------------------------------------------------------ */

/* @work failed, or depends on what failed: it takes the error. With the device locked. */
void sim_queue_poison (SimQueue *queue,
                       const SimWork *work,
                       GError *error);
/* @work is not run since its queue is poisoned. */
void sim_queue_note_dropped (SimQueue *queue,
                             const SimWork *work);
/* FALSE with @error set if something has failed that was not reported to this thread; work goes on after that. With
 * the device locked. */
gboolean sim_device_report (SimDevice *device,
                            GError **error);
/* TRUE: sim_device_report () has nothing to report. */
gboolean sim_device_is_well (SimDevice *device);
void sim_dropped_free (gpointer dropped);
/* The number of the calling thread. */
guint64 sim_get_thread (void);

/* -- watching (queue.c, host-access.c, settings.c) ----------------------------------------------------------------- */

void sim_device_add_span (SimDevice *device,
                          EbbStream stream,
                          gboolean is_wait,
                          const char *name,
                          gsize n_bytes,
                          gint64 start,
                          gint64 end);
void sim_get_seconds (int index,
                      EbbStream stream,
                      double *busy,
                      double *waited);
void sim_set_tracing (int index,
                      gboolean tracing);
gsize sim_take_spans (int index,
                      EbbStreamSpan **spans);

/* From now on a host access to the device's memory is reported before the process dies of it. */
void sim_watch_host_access (SimDevice *device);

/* Reads EBB_SIM_MEMORY, EBB_SIM_BANDWIDTH, EBB_SIM_LATENCY and EBB_SIM_FAIL. */
gboolean sim_settings_read (SimDevice *device,
                            GError **error);

G_END_DECLS
