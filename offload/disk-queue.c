/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "offload/disk-queue-private.h"

#include "offload/stall-private.h"

#include <pthread.h>
#include <signal.h>

/* Failures in turn after which a disk is left alone. */
#define MANY 4

/* -- forks --------------------------------------------------------------------------------------------------------- */

/* A child has none of the threads, but the locks as they are at the fork: so none is held by such a thread then, and no
 * bytes are under way to memory that is about to be shared. */
static pthread_mutex_t queues_lock = PTHREAD_MUTEX_INITIALIZER;
static GList *queues;

static void
before_fork (void)
{
  pthread_mutex_lock (&queues_lock);
  for (GList *l = queues; l != NULL; l = l->next)
    {
      EbbDiskQueue *self = l->data;

      pthread_mutex_lock (&self->at_disk);
      pthread_mutex_lock (&self->lock);
    }
}

static void
after_fork_in_parent (void)
{
  for (GList *l = queues; l != NULL; l = l->next)
    {
      EbbDiskQueue *self = l->data;

      pthread_mutex_unlock (&self->lock);
      pthread_mutex_unlock (&self->at_disk);
    }
  pthread_mutex_unlock (&queues_lock);
}

static void
after_fork_in_child (void)
{
  for (GList *l = queues; l != NULL; l = l->next)
    {
      EbbDiskQueue *self = l->data;

      /* Those who waited are not there any more. */
      pthread_cond_init (&self->work, NULL);
      pthread_cond_init (&self->change, NULL);
    }
  after_fork_in_parent ();
}

static void
watch_forks (EbbDiskQueue *self)
{
  static gboolean watching;

  pthread_mutex_lock (&queues_lock);
  if (!watching)
    watching = pthread_atfork (before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  queues = g_list_prepend (queues, self);
  pthread_mutex_unlock (&queues_lock);
}

/* -- the thread ---------------------------------------------------------------------------------------------------- */

static void *
run (void *data)
{
  EbbDiskQueue *self = data;

  pthread_mutex_lock (&self->lock);
  while (!self->quit)
    if (self->reads.head != NULL)
      ebb_disk_queue_run_read (self);
    else if (self->writes.head != NULL)
      ebb_disk_queue_run_write (self);
    else
      pthread_cond_wait (&self->work, &self->lock);
  pthread_mutex_unlock (&self->lock);
  return NULL;
}

/* No signal is handled there; one for a file that grew too large would be the end of the process. */
static int
create_thread (EbbDiskQueue *self)
{
  sigset_t all, old;
  int reason;

  sigfillset (&all);
  pthread_sigmask (SIG_SETMASK, &all, &old);
  reason = pthread_create (&self->thread, NULL, run, self);
  pthread_sigmask (SIG_SETMASK, &old, NULL);
#ifdef __linux__
  if (reason == 0)
    pthread_setname_np (self->thread, "ebb-disk");
#endif
  return reason;
}

gboolean
ebb_disk_queue_start (EbbDiskQueue *self,
                      GError **error)
{
  int reason = 0;

  pthread_mutex_lock (&self->lock);
  if (!self->has_thread)
    reason = create_thread (self);
  self->has_thread = reason == 0;
  pthread_mutex_unlock (&self->lock);
  if (reason == 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_IO, "disk store: can't start a thread that writes: %s",
               g_strerror (reason));
  return FALSE;
}

/* -- object -------------------------------------------------------------------------------------------------------- */

EbbDiskQueue *
ebb_disk_queue_new (const char *folder,
                    GError **error)
{
  EbbDiskFile *file = ebb_disk_file_new (folder, error);
  EbbDiskQueue *self;

  if (file == NULL)
    return NULL;
  self = g_new0 (EbbDiskQueue, 1);
  self->ref_count = 1;
  self->file = file;
  pthread_mutex_init (&self->at_disk, NULL);
  pthread_mutex_init (&self->lock, NULL);
  pthread_cond_init (&self->work, NULL);
  pthread_cond_init (&self->change, NULL);
  watch_forks (self);
  return self;
}

EbbDiskQueue *
ebb_disk_queue_ref (EbbDiskQueue *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

/* Records hold the queue, so there is nothing to do any more when it goes; nor does its own thread hold it. */
void
ebb_disk_queue_unref (EbbDiskQueue *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  if (self->has_thread && ebb_disk_queue_is_own (self))
    {
      pthread_mutex_lock (&self->lock);
      self->quit = TRUE;
      pthread_cond_signal (&self->work);
      pthread_mutex_unlock (&self->lock);
      pthread_join (self->thread, NULL);
    }
  pthread_mutex_lock (&queues_lock);
  queues = g_list_remove (queues, self);
  pthread_mutex_unlock (&queues_lock);
  ebb_disk_queue_end_lingering (self, 0);
  ebb_disk_file_unref (self->file);
  pthread_cond_destroy (&self->work);
  pthread_cond_destroy (&self->change);
  pthread_mutex_destroy (&self->lock);
  pthread_mutex_destroy (&self->at_disk);
  g_aligned_free (self->block);
  g_free (self);
}

gboolean
ebb_disk_queue_is_own (EbbDiskQueue *self)
{
  return ebb_disk_file_is_own (self->file);
}

/* -- waiting and counting ------------------------------------------------------------------------------------------ */

void
ebb_disk_queue_wait (EbbDiskQueue *self,
                     EbbDevice *device)
{
  EbbStall stall;

  ebb_stall_begin (&stall, device);
  pthread_cond_wait (&self->change, &self->lock);
  self->waited += ebb_stall_end (&stall);
}

void
ebb_disk_queue_take_seconds (EbbDiskQueue *self,
                             double *moving,
                             double *waited)
{
  pthread_mutex_lock (&self->lock);
  *moving = self->moving;
  *waited = self->waited;
  self->moving = self->waited = 0;
  pthread_mutex_unlock (&self->lock);
}

gboolean
ebb_disk_queue_end_transfer (EbbDiskQueue *self,
                             EbbTransfer *transfer,
                             GError **error)
{
  double seconds = 0, waited = 0;
  gboolean ok = ebb_transfer_finish (transfer, NULL) || ebb_transfer_finish (transfer, error);

  if (ok)
    ebb_transfer_get_times (transfer, &seconds, &waited);
  ebb_transfer_unref (transfer);
  pthread_mutex_lock (&self->lock);
  self->moving += seconds;
  pthread_mutex_unlock (&self->lock);
  return ok;
}

void
ebb_disk_wait_for_transfer (EbbTransfer *transfer)
{
  if (transfer == NULL)
    return;
  ebb_transfer_wait (transfer, NULL);
  ebb_transfer_unref (transfer);
}

gboolean
ebb_disk_queue_tell (EbbDiskQueue *self,
                     GError **error)
{
  EbbDiskFailure *failure = &self->failure;

  if (!failure->is_untold && failure->n_in_turn < MANY)
    return TRUE;
  failure->is_untold = FALSE;
  ebb_disk_file_set_write_error (self->file, failure->size, failure->beside, failure->reason, error);
  return FALSE;
}
