/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"

#include <pthread.h>
#include <sys/types.h>

/* The calls of a group in the order in which they were started, and the thread that does them. It is held by each work
 * too, so that a work may outlive its group. */

G_BEGIN_DECLS

typedef struct
{
  int ref_count;
  pthread_mutex_t lock;
  pthread_cond_t started, finished;
  /* under the lock */
  GQueue waiting;   /* of EbbWork, the one that runs first */
  GQueue done;      /* of EbbWork: their tensors are to be let go of by a thread of the user */
  gboolean closing; /* the thread ends when nothing waits */
  GError *failure;  /* the first one: nothing runs after it */
  /* of the group's thread alone, which starts and ends it */
  pid_t owner; /* a child of fork () has neither the thread nor the other ranks */
  gboolean has_thread;
  pthread_t thread;
} EbbGroupQueue;

EbbGroupQueue *ebb_group_queue_new (void);
EbbGroupQueue *ebb_group_queue_ref (EbbGroupQueue *queue);
void ebb_group_queue_unref (EbbGroupQueue *queue);
/* FALSE with @error set in a child of the process that made the group, which can't do without the other ranks. */
gboolean ebb_group_queue_check (EbbGroupQueue *queue,
                                gboolean is_alone,
                                GError **error);
/* TRUE in a child of the process that has the thread: what was started will never be done here. */
gboolean ebb_group_queue_is_lost (EbbGroupQueue *queue);
/* Takes @work; makes the thread if there is none. FALSE with @error set if that fails. */
gboolean ebb_group_queue_push (EbbGroupQueue *queue,
                               EbbProcessGroup *group,
                               EbbWork *work,
                               GError **error);
/* Does @work on this thread if nothing waits: FALSE if something does. */
gboolean ebb_group_queue_try_run (EbbGroupQueue *queue,
                                  EbbProcessGroup *group,
                                  EbbWork *work);
/* Nothing runs any more, for @reason; FALSE if it has failed before. To be called when nothing waits. */
gboolean ebb_group_queue_fail (EbbGroupQueue *queue,
                               const GError *reason);
/* Waits until nothing waits or runs. */
void ebb_group_queue_flush (EbbGroupQueue *queue);
/* The same, and ends the thread. */
void ebb_group_queue_close (EbbGroupQueue *queue);

G_END_DECLS
