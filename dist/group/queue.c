/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The queue of a group and its works, the handles of its calls. The queue's thread runs the calls one after another;
 * the first failure fails all that follow. The threads that start calls of a device enqueue them there; the queue's
 * thread watches them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "dist/group/group-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/thread-private.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

G_DEFINE_BOXED_TYPE (EbbWork, ebb_work, ebb_work_ref, ebb_work_unref)

EbbGroupQueue *
ebb_group_queue_new (const EbbGroupState *state)
{
  EbbGroupQueue *self = g_new0 (EbbGroupQueue, 1);

  self->ref_count = 1;
  self->state = state;
  self->owner = getpid ();
  pthread_mutex_init (&self->lock, NULL);
  ebb_cond_init (&self->started);
  pthread_cond_init (&self->finished, NULL);
  g_queue_init (&self->waiting);
  g_queue_init (&self->enqueued);
  g_queue_init (&self->done);
  return self;
}

EbbGroupQueue *
ebb_group_queue_ref (EbbGroupQueue *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

void
ebb_group_queue_unref (EbbGroupQueue *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  /* A condition that the parent's thread waits for would make its destruction in a child wait for that thread. */
  if (!ebb_group_queue_is_lost (self))
    {
      pthread_mutex_destroy (&self->lock);
      pthread_cond_destroy (&self->started);
      pthread_cond_destroy (&self->finished);
    }
  g_clear_error (&self->failure);
  g_free (self);
}

gboolean
ebb_group_queue_is_lost (EbbGroupQueue *self)
{
  return self->owner != getpid () && self->has_thread;
}

gboolean
ebb_group_queue_check (EbbGroupQueue *self,
                       gboolean is_alone,
                       GError **error)
{
  return (self->owner == getpid () || (is_alone && !self->has_thread))
         || ebb_fail (error, EBB_ERROR_PROCESS_GROUP,
                      "the process group belongs to process %d, of which this one is a child: make a group here",
                      (int) self->owner);
}

static EbbWork *
pop_done (EbbGroupQueue *self)
{
  EBB_AUTO_LOCK (&self->lock);
  return g_queue_pop_head (&self->done);
}

/* The queue may hold the last references. */
static void
release_done (EbbGroupQueue *self)
{
  EbbWork *work;

  while ((work = pop_done (self)) != NULL)
    {
      ebb_work_release (work);
      ebb_work_unref (work);
    }
}

/* Fails with the first failure of the queue if there was one. */
static void
do_work (EbbGroupQueue *self,
         EbbProcessGroup *group,
         EbbWork *work,
         gboolean is_queued)
{
  const gint64 begin = g_get_monotonic_time ();
  GError *error = NULL;

  pthread_mutex_lock (&self->lock);
  if (self->failure != NULL)
    error = g_error_copy (self->failure);
  pthread_mutex_unlock (&self->lock);
  if (error == NULL)
    ebb_process_group_do (group, work, &error);

  pthread_mutex_lock (&self->lock);
  if (error != NULL && self->failure == NULL)
    self->failure = g_error_copy (error);
  work->error = error;
  work->seconds = (double) (g_get_monotonic_time () - begin) * 1e-6;
  work->done = TRUE;
  if (is_queued)
    {
      g_queue_pop_head (&self->waiting);
      g_queue_push_tail (&self->done, work);
    }
  else if (work->finished != NULL)
    {
      g_queue_push_tail (&self->enqueued, ebb_work_ref (work));
      pthread_cond_signal (&self->started);
    }
  pthread_cond_broadcast (&self->finished);
  pthread_mutex_unlock (&self->lock);
}

/* -- calls on a device --------------------------------------------------------------------------------------------- */

#define LOOK_EVERY 2000 /* microseconds */

/* With the lock, which @self has while nobody calls it. */
static void
end_enqueued (EbbGroupQueue *self,
              const GError *failure)
{
  EbbWork *work = g_queue_pop_head (&self->enqueued);

  work->seconds = (double) (g_get_monotonic_time () - work->enqueued_at) * 1e-6;
  if (failure != NULL && work->error == NULL)
    work->error = g_error_copy (failure);
  g_queue_push_tail (&self->done, work);
  pthread_cond_broadcast (&self->finished);
}

/* Of work that the device is not done with: whether it may be in time, by the engine and the clock. */
static gboolean
check_enqueued (EbbGroupQueue *self,
                EbbProcessGroup *group,
                gint64 began,
                GError **error)
{
  const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (group);
  double timeout;

  __atomic_load (&self->state->timeout, &timeout, __ATOMIC_RELAXED);
  if (funcs->check != NULL && !funcs->check (group, error))
    return FALSE;
  return (double) (g_get_monotonic_time () - began) * 1e-6 < timeout
         || ebb_fail (error, EBB_ERROR_PROCESS_GROUP, "not all ranks did their part within %g s", timeout);
}

/* With the lock, which it releases while it looks at the oldest work; FALSE if there is nothing more to look at now. */
static gboolean
watch (EbbGroupQueue *self,
       EbbProcessGroup *group,
       gint64 *began)
{
  EbbWork *work = g_queue_peek_head (&self->enqueued);
  GError *failure = NULL;
  gboolean is_done;

  if (work == NULL)
    return FALSE;
  if (self->failure != NULL)
    {
      end_enqueued (self, self->failure);
      return TRUE;
    }
  pthread_mutex_unlock (&self->lock);
  is_done = work->call.device->backend->streams->query_event (work->finished);
  if (!is_done && !check_enqueued (self, group, MAX (*began, work->enqueued_at), &failure))
    {
      const EbbProcessGroupFuncs *funcs = ebb_process_group_get_funcs (group);

      ebb_process_group_prefix_failure (work, failure);
      if (funcs->fail != NULL)
        funcs->fail (group, failure);
    }
  pthread_mutex_lock (&self->lock);
  if (failure != NULL && self->failure == NULL)
    self->failure = g_error_copy (failure);
  if (is_done)
    {
      /* The next one's time begins when this one is over. */
      *began = g_get_monotonic_time ();
      end_enqueued (self, NULL);
    }
  is_done = is_done || failure != NULL;
  g_clear_error (&failure);
  return is_done;
}

/* -- the thread ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbGroupQueue *queue;
  EbbProcessGroup *group; /* whose dispose () waits for the thread */
  EbbDevice *default_device;
  EbbMemoryAccount *account; /* whose rank it works for */
} Start;

static void
run_waiting (EbbGroupQueue *self,
             EbbProcessGroup *group)
{
  gint64 began = 0;

  pthread_mutex_lock (&self->lock);
  for (;;)
    {
      EbbWork *work = g_queue_peek_head (&self->waiting);

      if (work == NULL)
        {
          if (watch (self, group, &began))
            continue;
          if (!g_queue_is_empty (&self->enqueued))
            ebb_cond_wait_until (&self->started, &self->lock, g_get_monotonic_time () + LOOK_EVERY);
          else if (self->closing)
            break;
          else
            pthread_cond_wait (&self->started, &self->lock);
          continue;
        }
      pthread_mutex_unlock (&self->lock);
      do_work (self, group, work, TRUE);
      pthread_mutex_lock (&self->lock);
    }
  pthread_mutex_unlock (&self->lock);
}

static void *
run_thread (void *data)
{
  Start start = *(Start *) data;

  g_free (data);
  ebb_modes.default_device = start.default_device;
  ebb_thread.account = start.account;
  run_waiting (start.queue, start.group);
  ebb_thread.account = NULL;
  if (start.account != NULL)
    ebb_memory_account_unref (start.account);
  return NULL;
}

static gboolean
make_thread (EbbGroupQueue *self,
             EbbProcessGroup *group,
             GError **error)
{
  Start *start = g_new0 (Start, 1);
  sigset_t all, old;
  int code;

  *start = (Start){ self, group, ebb_modes.default_device, ebb_thread.account };
  if (start->account != NULL)
    ebb_memory_account_ref (start->account);
  sigfillset (&all);
  pthread_sigmask (SIG_BLOCK, &all, &old);
  code = pthread_create (&self->thread, NULL, run_thread, start);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
  if (code != 0)
    {
      if (start->account != NULL)
        ebb_memory_account_unref (start->account);
      g_free (start);
      return ebb_fail (error, EBB_ERROR_NO_MEMORY, "can't start a thread for the collectives of a process group: %s",
                       g_strerror (code));
    }
  pthread_setname_np (self->thread, "ebb-collectives");
  self->has_thread = TRUE;
  self->owner = getpid ();
  return TRUE;
}

/* -- for the caller ------------------------------------------------------------------------------------------------ */

gboolean
ebb_group_queue_push (EbbGroupQueue *self,
                      EbbProcessGroup *group,
                      EbbWork *work,
                      GError **error)
{
  release_done (self);
  if (!self->has_thread && !make_thread (self, group, error))
    {
      ebb_work_release (work);
      ebb_work_unref (work);
      return FALSE;
    }
  EBB_AUTO_LOCK (&self->lock);
  g_queue_push_tail (&self->waiting, work);
  pthread_cond_signal (&self->started);
  return TRUE;
}

gboolean
ebb_group_queue_try_run (EbbGroupQueue *self,
                         EbbProcessGroup *group,
                         EbbWork *work)
{
  gboolean idle;

  release_done (self);
  pthread_mutex_lock (&self->lock);
  idle = g_queue_is_empty (&self->waiting);
  pthread_mutex_unlock (&self->lock);
  if (idle)
    do_work (self, group, work, FALSE);
  return idle;
}

void
ebb_group_queue_run (EbbGroupQueue *self,
                     EbbProcessGroup *group,
                     EbbWork *work)
{
  release_done (self);
  pthread_mutex_lock (&self->lock);
  while (!g_queue_is_empty (&self->waiting))
    pthread_cond_wait (&self->finished, &self->lock);
  pthread_mutex_unlock (&self->lock);
  do_work (self, group, work, FALSE);
}

gboolean
ebb_group_queue_enqueue (EbbGroupQueue *self,
                         EbbProcessGroup *group,
                         EbbWork *work,
                         GError **error)
{
  if (!self->has_thread && !make_thread (self, group, error))
    return FALSE;
  ebb_group_queue_run (self, group, work);
  return TRUE;
}

void
ebb_group_queue_flush (EbbGroupQueue *self)
{
  if (ebb_group_queue_is_lost (self))
    return;
  pthread_mutex_lock (&self->lock);
  while (!g_queue_is_empty (&self->waiting) || !g_queue_is_empty (&self->enqueued))
    pthread_cond_wait (&self->finished, &self->lock);
  pthread_mutex_unlock (&self->lock);
  release_done (self);
}

gboolean
ebb_group_queue_fail (EbbGroupQueue *self,
                      const GError *reason)
{
  EBB_AUTO_LOCK (&self->lock);
  if (self->failure != NULL)
    return FALSE;
  self->failure = g_error_copy (reason);
  return TRUE;
}

void
ebb_group_queue_close (EbbGroupQueue *self)
{
  if (ebb_group_queue_is_lost (self))
    return;
  if (self->has_thread)
    {
      pthread_mutex_lock (&self->lock);
      self->closing = TRUE;
      pthread_cond_signal (&self->started);
      pthread_mutex_unlock (&self->lock);
      pthread_join (self->thread, NULL);
      self->has_thread = FALSE;
      self->closing = FALSE;
    }
  release_done (self);
}

/* -- works --------------------------------------------------------------------------------------------------------- */

EbbWork *
ebb_work_new_done (void)
{
  EbbWork *self = g_new0 (EbbWork, 1);

  self->ref_count = 1;
  self->done = TRUE;
  return self;
}

static void
release (EbbTensor **place)
{
  EbbTensor *tensor = __atomic_exchange_n (place, NULL, __ATOMIC_ACQ_REL);

  if (tensor != NULL)
    ebb_tensor_unref (tensor);
}

gboolean
ebb_work_join (EbbWork *self,
               GError **error)
{
  EbbDevice *device = self->call.device;

  if (self->finished == NULL || __atomic_load_n (&self->is_joined, __ATOMIC_ACQUIRE))
    return TRUE;
  if (!device->backend->streams->wait (device->index, EBB_STREAM_COMPUTE, self->finished, error))
    return FALSE;
  __atomic_store_n (&self->is_joined, TRUE, __ATOMIC_RELEASE);
  return TRUE;
}

/* Several threads may wait for one work. Memory that it frees is used again by what is enqueued for computing. */
void
ebb_work_release (EbbWork *self)
{
  ebb_work_join (self, NULL);
  release (&self->workspace);
  for (guint i = 0; i < 2 * self->call.n_parts; i++)
    {
      release (&self->tensors[i]);
      release (&self->staged[i]);
    }
}

/**
 * ebb_work_ref:
 * @work: a work
 *
 * Returns: (transfer full): @work, with one more reference
 */
EbbWork *
ebb_work_ref (EbbWork *work)
{
  g_return_val_if_fail (work != NULL, NULL);

  __atomic_add_fetch (&work->ref_count, 1, __ATOMIC_RELAXED);
  return work;
}

/**
 * ebb_work_unref:
 * @work: (transfer full): a work
 *
 * Releases a work, which still runs to its end.
 */
void
ebb_work_unref (EbbWork *work)
{
  g_return_if_fail (work != NULL);

  if (__atomic_sub_fetch (&work->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  ebb_work_release (work);
  if (work->finished != NULL)
    work->call.device->backend->streams->free_event (work->finished);
  g_clear_pointer (&work->queue, ebb_group_queue_unref);
  g_clear_error (&work->error);
  g_free (work->buffers);
  g_free (work->tensors);
  g_free (work->staged);
  g_free (work->numbers);
  g_free (work->purpose);
  g_free (work);
}

/* FALSE if no error came. The error of work on a device may come after the work was waited for. */
static gboolean
copy_error (EbbWork *self,
            GError **error)
{
  gboolean has_failed;

  if (self->queue != NULL)
    pthread_mutex_lock (&self->queue->lock);
  has_failed = self->error != NULL;
  if (has_failed && error != NULL)
    *error = g_error_copy (self->error);
  if (self->queue != NULL)
    pthread_mutex_unlock (&self->queue->lock);
  return has_failed;
}

/**
 * ebb_work_wait:
 * @work: a work
 * @error: return location for an error
 *
 * Waits until @work is done: its tensors may then be used and changed. Works of one group are done in the order in
 * which they were started. Another call returns the same.
 *
 * Where NCCL works on the tensors' own device, the host doesn't wait: later kernels of the device do. If the work fails
 * on the device, a later call of the device or of the group reports the error.
 *
 * Returns: %FALSE with the error if the work failed
 */
gboolean
ebb_work_wait (EbbWork *work,
               GError **error)
{
  gboolean is_joined = TRUE;

  EBB_RETURN_UNLESS_BEGUN (FALSE, error, work);
  if (work->queue != NULL && ebb_group_queue_is_lost (work->queue))
    {
      if (!work->done)
        return ebb_group_queue_check (work->queue, FALSE, error);
    }
  else if (work->queue != NULL)
    {
      pthread_mutex_lock (&work->queue->lock);
      while (!work->done)
        pthread_cond_wait (&work->queue->finished, &work->queue->lock);
      pthread_mutex_unlock (&work->queue->lock);
      is_joined = ebb_work_join (work, error);
      ebb_work_release (work);
    }
  return is_joined && !copy_error (work, error);
}

double
ebb_work_get_seconds (EbbWork *work)
{
  if (work->queue == NULL)
    return work->seconds;
  EBB_AUTO_LOCK (&work->queue->lock);
  return work->seconds;
}

/**
 * ebb_work_is_done:
 * @work: a work
 *
 * Returns: %TRUE if ebb_work_wait() would not wait, on the host or on the device
 */
gboolean
ebb_work_is_done (EbbWork *work)
{
  gboolean done;

  g_return_val_if_fail (work != NULL, TRUE);

  if (work->queue == NULL)
    return work->done;
  pthread_mutex_lock (&work->queue->lock);
  done = work->done;
  pthread_mutex_unlock (&work->queue->lock);
  return done
         && (work->finished == NULL || __atomic_load_n (&work->is_joined, __ATOMIC_ACQUIRE)
             || work->call.device->backend->streams->query_event (work->finished));
}
