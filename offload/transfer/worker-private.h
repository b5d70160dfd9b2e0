/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "offload/transfer/stall-private.h"
#include "tensor/memory-account-private.h"

#include <pthread.h>

/* A thread that works beside the program, for a store: with a lock and two conditions, and the seconds of its work and
 * of those who waited for it. It is started when there is work for the first time.
 *
 * A child of fork () has none of these threads, but all of their locks, as they are at that moment. So a fork waits
 * until no worker is between ebb_worker_enter () and ebb_worker_leave (), and has the locks itself then: the child
 * finds none of them taken, and can let go all that it has of the store. */

G_BEGIN_DECLS

typedef struct
{
  const char *thread_name; /* at most 15 characters */
  const char *store;       /* for errors */
  gboolean asks_others;    /* between enter and leave it may wait for another worker */
  /* With the lock, on the thread: does one piece of work, for which it may let the lock go; FALSE: there is none. */
  gboolean (*work) (gpointer data);
} EbbWorkerKind;

typedef struct
{
  const EbbWorkerKind *kind;
  gpointer data;
  pid_t owner;
  EbbMemoryAccount *account; /* of the thread that started it */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t work, change; /* there is work; something was done */
  /* under the lock */
  gboolean has_thread, quit;
  double moving, waited; /* seconds */
} EbbWorker;

void ebb_worker_init (EbbWorker *worker,
                      const EbbWorkerKind *kind,
                      gpointer data);
/* Has the thread end when it has done what it is at. */
void ebb_worker_stop (EbbWorker *worker);
/* Of one that was stopped. */
void ebb_worker_clear (EbbWorker *worker);
/* FALSE in a process that was forked off, where there is no thread. */
gboolean ebb_worker_is_own (EbbWorker *worker);
/* Starts the thread unless it runs. */
gboolean ebb_worker_start (EbbWorker *worker,
                           GError **error);
/* Around what a fork must not come between, without the lock: moving bytes to where the child finds them too, or taking
 * locks of others. Not one within the other. */
void ebb_worker_enter (EbbWorker *worker);
void ebb_worker_leave (EbbWorker *worker);
/* With the lock, not on the thread: until something has changed. @device: see ebb_stall_begin (). */
void ebb_worker_wait (EbbWorker *worker,
                      EbbDevice *device);
/* With the lock: seconds of work since @start, of g_get_monotonic_time (). */
void ebb_worker_count_moving (EbbWorker *worker,
                              gint64 start);
/* With the lock: the same for what a caller does itself, since @stall began. */
void ebb_worker_count_own (EbbWorker *worker,
                           EbbStall *stall);
/* Seconds since the last call. */
void ebb_worker_take_seconds (EbbWorker *worker,
                              double *moving,
                              double *waited);

G_END_DECLS
