/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>
#include <sys/types.h>

/* The parts of a group that don't depend on its engine: its state, its queue, its calls. */

G_BEGIN_DECLS

typedef struct _EbbGroupState EbbGroupState;

/* -- the queue: queue.c -------------------------------------------------------------------------------------------- */

/* The calls of a group in the order in which they were started, and the thread that runs them. Each work holds it too,
 * so that a work may outlive its group. */
typedef struct
{
  int ref_count;
  const EbbGroupState *state; /* of the group, while it lives: nothing runs after it */
  pthread_mutex_t lock;
  pthread_cond_t started, finished;
  /* under the lock */
  GQueue waiting;   /* of EbbWork, the one that runs first */
  GQueue enqueued;  /* of EbbWork: on a device that isn't done with it, in the device's order */
  GQueue done;      /* of EbbWork: a thread of the user releases their tensors */
  gboolean closing; /* the thread ends when nothing waits */
  GError *failure;  /* the first one: nothing runs after it */
  /* of the group's thread alone, which starts and ends it */
  pid_t owner; /* a child of fork () has neither the thread nor the other ranks */
  gboolean has_thread;
  pthread_t thread;
} EbbGroupQueue;

EbbGroupQueue *ebb_group_queue_new (const EbbGroupState *state);
EbbGroupQueue *ebb_group_queue_ref (EbbGroupQueue *queue);
void ebb_group_queue_unref (EbbGroupQueue *queue);
/* FALSE with @error set in a child of the process that made the group, which can't do without the other ranks. */
gboolean ebb_group_queue_check (EbbGroupQueue *queue,
                                gboolean is_alone,
                                GError **error);
/* TRUE in a child of the process that has the thread: nothing that was started ever ends here. */
gboolean ebb_group_queue_is_lost (EbbGroupQueue *queue);
/* Takes @work; starts the thread if there is none. FALSE with @error set if that fails. */
gboolean ebb_group_queue_push (EbbGroupQueue *queue,
                               EbbProcessGroup *group,
                               EbbWork *work,
                               GError **error);
/* Runs @work on this thread if nothing waits; FALSE if something does. */
gboolean ebb_group_queue_try_run (EbbGroupQueue *queue,
                                  EbbProcessGroup *group,
                                  EbbWork *work);
/* Runs @work on this thread after all that waits. */
void ebb_group_queue_run (EbbGroupQueue *queue,
                          EbbProcessGroup *group,
                          EbbWork *work);
/* Enqueues @work, which is a device's, on this thread after all that waits; the queue's thread watches it from then on.
 * FALSE with @error set if that thread can't be started. */
gboolean ebb_group_queue_enqueue (EbbGroupQueue *queue,
                                  EbbProcessGroup *group,
                                  EbbWork *work,
                                  GError **error);
/* Fails all later work with @reason; FALSE if the queue has failed before. Call it when nothing waits. */
gboolean ebb_group_queue_fail (EbbGroupQueue *queue,
                               const GError *reason);
/* Waits until nothing waits or runs, here or on a device. */
void ebb_group_queue_flush (EbbGroupQueue *queue);
/* The same, and ends the thread. */
void ebb_group_queue_close (EbbGroupQueue *queue);

/* -- one call: queue.c --------------------------------------------------------------------------------------------- */

struct _EbbWork
{
  int ref_count;
  EbbGroupQueue *queue; /* whose lock guards done and error; NULL: done from the start */
  gboolean done;
  gboolean is_dry; /* of a dry run: runs on the caller's thread */
  GError *error;
  /* Written before it is queued, then by the thread that runs it; the caller's thread releases the tensors. */
  EbbCollectiveCall call;
  EbbCollectiveBuffer *buffers;
  EbbTensor **tensors; /* [2 * n_parts] full, shard or NULL */
  EbbTensor **staged;  /* [2 * n_parts] on the host, where the engine can't reach the tensor */
  /* Of a call on a device. */
  EbbTensor *workspace;
  gpointer finished;  /* the event after it; NULL: it was not enqueued */
  gboolean is_joined; /* computing waits for it */
  gint64 enqueued_at; /* on the monotonic clock */
  gint64 *numbers;    /* counts and starts of all parts */
  char *purpose;      /* the call's */
  double seconds;     /* that it took, waiting for other ranks included; under the lock */
};

/* A work that is done: a collective in a recompute that has all it needs. */
EbbWork *ebb_work_new_done (void);
/* Releases the tensors. Not to be called on the group's thread, since freeing one may run code of the user. */
void ebb_work_release (EbbWork *work);
/* Lets computing on the device of @work, if it has one, wait for it. */
gboolean ebb_work_join (EbbWork *work,
                        GError **error);

/* -- the group ----------------------------------------------------------------------------------------------------- */

/* The ranks with which this one shares a model, see model-ranks.c. */
typedef struct
{
  GWeakRef owner; /* the model or mesh that says so */
  guint rank, size, first;
  gboolean several; /* others say something else */
} EbbModelRanks;

struct _EbbGroupState
{
  guint rank, size;
  gboolean is_split;      /* from another group, by ebb_process_group_split () */
  guint own, first;       /* numbers in the first group of all: this rank's, if @is_split, and that of rank 0 */
  gboolean has_model;     /* ebb_parallelize () has sharded one over it */
  EbbModelRanks known[2]; /* of the default group: by a model, by a mesh */
  char *backend, *name;
  double timeout;
  guint64 sequence; /* of the last call */
  guint64 n_calls[EBB_N_COLLECTIVES];
  guint64 n_bytes[EBB_N_COLLECTIVES];
  EbbGroupQueue *queue;
};

EbbGroupState *ebb_process_group_get_state (EbbProcessGroup *self);
#define ebb_process_group_get_funcs(self) ((const EbbProcessGroupFuncs *) EBB_PROCESS_GROUP_GET_CLASS (self)->funcs)

/* Sets the device of the call: the one that all its tensors are on, if the engine reaches it. */
void ebb_process_group_find_device (EbbProcessGroup *self,
                                    EbbWork *work);
/* Lets the engine run the call: on the device of the call, or on the host. There it copies the tensors to where the
 * engine reaches them, and the results back. */
gboolean ebb_process_group_do (EbbProcessGroup *self,
                               EbbWork *work,
                               GError **error);

/* Puts "all_reduce (sum) of f32 [2, 3] on rank 0 of 4: " before the message. */
void ebb_process_group_prefix_failure (EbbWork *work,
                                       GError *failure);

/* Gathers counts[r] elements of each rank r (NULL: @n of each), one after another; on the host, not counted. @n: of
 * @own. */
EbbTensor *ebb_process_group_exchange (EbbProcessGroup *self,
                                       const void *own,
                                       gint64 n,
                                       const gint64 *counts,
                                       EbbDType dtype,
                                       GError **error);

G_END_DECLS
