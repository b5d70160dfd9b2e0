/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The thread that runs jobs in the background, and its behaviour across fork (). */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "offload/transfer/worker-private.h"

#include "tensor/thread-private.h"

#include <signal.h>
#include <unistd.h>

/* -- forks --------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t workers_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t workers_change = PTHREAD_COND_INITIALIZER;
static GList *workers;
static guint n_forks;   /* that wait for workers */
static guint n_entered; /* workers between enter and leave */

void
ebb_worker_enter (EbbWorker *self)
{
  EBB_AUTO_LOCK (&workers_lock);
  while (n_forks > 0)
    pthread_cond_wait (&workers_change, &workers_lock);
  n_entered++;
}

void
ebb_worker_leave (EbbWorker *self)
{
  EBB_AUTO_LOCK (&workers_lock);
  n_entered--;
  if (n_forks > 0)
    pthread_cond_broadcast (&workers_change);
}

static void
before_fork (void)
{
  pthread_mutex_lock (&workers_lock);
  n_forks++;
  while (n_entered > 0)
    pthread_cond_wait (&workers_change, &workers_lock);
  for (GList *l = workers; l != NULL; l = l->next)
    pthread_mutex_lock (&((EbbWorker *) l->data)->lock);
}

static void
unlock_all (void)
{
  for (GList *l = workers; l != NULL; l = l->next)
    pthread_mutex_unlock (&((EbbWorker *) l->data)->lock);
  pthread_mutex_unlock (&workers_lock);
}

static void
after_fork_in_parent (void)
{
  n_forks--;
  pthread_cond_broadcast (&workers_change);
  unlock_all ();
}

/* The threads that waited for a condition are not there any more. */
static void
after_fork_in_child (void)
{
  n_forks = 0;
  pthread_cond_init (&workers_change, NULL);
  for (GList *l = workers; l != NULL; l = l->next)
    {
      EbbWorker *self = l->data;

      pthread_cond_init (&self->work, NULL);
      pthread_cond_init (&self->change, NULL);
    }
  unlock_all ();
}

static void
watch_forks (EbbWorker *self)
{
  static gboolean watching;

  EBB_AUTO_LOCK (&workers_lock);
  if (!watching)
    watching = pthread_atfork (before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  workers = g_list_prepend (workers, self);
}

/* -- the thread ---------------------------------------------------------------------------------------------------- */

static void *
work (void *data)
{
  EbbWorker *self = data;

  ebb_thread.account = self->account;
  EBB_AUTO_LOCK (&self->lock);
  while (!self->quit)
    {
      GQueue *lane = self->urgent.head != NULL ? &self->urgent : &self->patient;
      EbbWorkerJob *job = g_queue_peek_head (lane);

      if (job != NULL)
        job->run (job);
      else
        pthread_cond_wait (&self->work, &self->lock);
    }
  return NULL;
}

void
ebb_worker_add (EbbWorker *self,
                GQueue *lane,
                EbbWorkerJob *job)
{
  job->link.data = job;
  job->lane = lane;
  g_queue_push_tail_link (lane, &job->link);
  pthread_cond_signal (&self->work);
}

void
ebb_worker_remove (EbbWorkerJob *job)
{
  g_queue_unlink (job->lane, &job->link);
  job->lane = NULL;
}

/* No signal is handled there; one for a file that grew too large would be the end of the process. */
static int
create_thread (EbbWorker *self)
{
  sigset_t all, old;
  int reason;

  g_clear_pointer (&self->account, ebb_memory_account_unref);
  if (ebb_thread.account != NULL)
    self->account = ebb_memory_account_ref (ebb_thread.account);
  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  reason = pthread_create (&self->thread, NULL, work, self);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
#ifdef __linux__
  if (reason == 0)
    pthread_setname_np (self->thread, self->thread_name);
#endif
  return reason;
}

gboolean
ebb_worker_start (EbbWorker *self,
                  GError **error)
{
  int reason = 0;

  pthread_mutex_lock (&self->lock);
  if (!self->has_thread)
    reason = create_thread (self);
  self->has_thread = reason == 0;
  pthread_mutex_unlock (&self->lock);
  return reason == 0
         || ebb_fail (error, EBB_ERROR_NO_MEMORY, "%s: can't start its thread: %s", self->owner_name,
                      g_strerror (reason));
}

void
ebb_worker_stop (EbbWorker *self)
{
  if (!self->has_thread || !ebb_worker_is_own (self))
    return;
  pthread_mutex_lock (&self->lock);
  self->quit = TRUE;
  pthread_cond_signal (&self->work);
  pthread_mutex_unlock (&self->lock);
  pthread_join (self->thread, NULL);
  self->has_thread = FALSE;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

void
ebb_worker_init (EbbWorker *self,
                 const char *thread_name,
                 const char *owner_name)
{
  self->thread_name = thread_name;
  self->owner_name = owner_name;
  self->owner = getpid ();
  pthread_mutex_init (&self->lock, NULL);
  pthread_cond_init (&self->work, NULL);
  pthread_cond_init (&self->change, NULL);
  watch_forks (self);
}

void
ebb_worker_clear (EbbWorker *self)
{
  pthread_mutex_lock (&workers_lock);
  workers = g_list_remove (workers, self);
  pthread_mutex_unlock (&workers_lock);
  pthread_cond_destroy (&self->work);
  pthread_cond_destroy (&self->change);
  pthread_mutex_destroy (&self->lock);
  g_clear_pointer (&self->account, ebb_memory_account_unref);
}

gboolean
ebb_worker_is_own (EbbWorker *self)
{
  return self->owner == getpid ();
}

/* -- waiting and counting ------------------------------------------------------------------------------------------ */

void
ebb_worker_wait (EbbWorker *self,
                 EbbDevice *device)
{
  EbbStall stall;

  ebb_stall_begin (&stall, device);
  pthread_cond_wait (&self->change, &self->lock);
  self->waited += ebb_stall_end (&stall);
}

void
ebb_worker_count_moving (EbbWorker *self,
                         gint64 start)
{
  self->moving += (double) (g_get_monotonic_time () - start) / G_USEC_PER_SEC;
}

void
ebb_worker_take_seconds (EbbWorker *self,
                         double *moving,
                         double *waited)
{
  EBB_AUTO_LOCK (&self->lock);
  *moving = self->moving;
  *waited = self->waited;
  self->moving = self->waited = 0;
}
