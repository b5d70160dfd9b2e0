/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/transfer/stall-private.h"
#include "tensor/error-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

/* A thread that runs the jobs that it is handed, overlapped with the program. With a lock and two conditions, and the
 * seconds of its work and of threads that waited for it. It is started when there is work for the first time.
 *
 * A child of fork () has no such thread, but all of their locks, as they are at that moment. So a fork waits until no
 * worker is between ebb_worker_enter () and ebb_worker_leave (), and has the locks itself then: the child finds none of
 * them taken, and can free all that it has of the worker's owner. */

G_BEGIN_DECLS

typedef struct _EbbWorkerJob EbbWorkerJob;

/* The start of a larger struct. */
struct _EbbWorkerJob
{
  /* With the lock, on the thread: does one part of the work, for which it may release the lock. Called again until it
   * takes the job out of its lane. */
  void (*run) (EbbWorkerJob *self);
  GList link;
  GQueue *lane; /* under the lock; NULL: it is not queued */
};

typedef struct
{
  const char *thread_name; /* at most 15 characters */
  const char *owner_name;  /* for errors */
  pid_t owner;
  EbbMemoryAccount *account; /* of the thread that started it */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t work, change; /* there is work; something was done */
  /* under the lock */
  GQueue urgent, patient; /* of EbbWorkerJob: the urgent ones are run first */
  gboolean has_thread, quit;
  double moving, waited; /* seconds */
} EbbWorker;

void ebb_worker_init (EbbWorker *worker,
                      const char *thread_name,
                      const char *owner_name);
/* Has the thread end when its current part of a job is done. */
void ebb_worker_stop (EbbWorker *worker);
/* Of one that was stopped. */
void ebb_worker_clear (EbbWorker *worker);
/* FALSE in a process that was forked off, where there is no thread. */
gboolean ebb_worker_is_own (EbbWorker *worker);
/* Starts the thread unless it runs. */
gboolean ebb_worker_start (EbbWorker *worker,
                           GError **error);
/* With the lock: puts a job into a lane of the worker, or takes it out again. */
void ebb_worker_add (EbbWorker *worker,
                     GQueue *lane,
                     EbbWorkerJob *job);
void ebb_worker_remove (EbbWorkerJob *job);
/* Around work during which the process must not fork, without the lock: moving bytes to where the child finds them too,
 * or taking other locks. They do not nest. */
void ebb_worker_enter (EbbWorker *worker);
void ebb_worker_leave (EbbWorker *worker);
/* With the lock, not on the thread: until something has changed. @device: see ebb_stall_begin (). */
void ebb_worker_wait (EbbWorker *worker,
                      EbbDevice *device);
/* With the lock: seconds of work since @start, of g_get_monotonic_time (). */
void ebb_worker_count_moving (EbbWorker *worker,
                              gint64 start);
/* Seconds since the last call. */
void ebb_worker_take_seconds (EbbWorker *worker,
                              double *moving,
                              double *waited);

G_END_DECLS
