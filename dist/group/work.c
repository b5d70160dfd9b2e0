/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The handle of a call that runs in the background. */
#include "dist/group/group-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/error-private.h"

G_DEFINE_BOXED_TYPE (EbbWork, ebb_work, ebb_work_ref, ebb_work_unref)

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
 * Where NCCL works on the tensors' own device, the host doesn't wait: what is computed there from now on does. If the
 * work fails there, a later call of the device or of the group reports it.
 *
 * Returns: %FALSE with the error if the work failed
 */
gboolean
ebb_work_wait (EbbWork *work,
               GError **error)
{
  gboolean is_joined = TRUE;

  if (!EBB_MAY_BEGIN (error, work))
    return FALSE;
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
  double seconds;

  if (work->queue == NULL)
    return work->seconds;
  pthread_mutex_lock (&work->queue->lock);
  seconds = work->seconds;
  pthread_mutex_unlock (&work->queue->lock);
  return seconds;
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
