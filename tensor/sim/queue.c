/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tensor/sim/sim-private.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

/* A queue is a thread that does its work in order. Copies take place in a time of their own: one begins when the queue
 * was free, the copy enqueued and what it waits for done, however late the thread woke up, and ends when its bytes can
 * have gone through. So the times that are slept do not add up to more than was asked for. */

#define SECOND 1000000000

static gint64
get_time (void)
{
  struct timespec now;

  clock_gettime (CLOCK_MONOTONIC, &now);
  return (gint64) now.tv_sec * SECOND + now.tv_nsec;
}

/* With the device locked, which it unlocks while it sleeps; a device that hurries wakes it. */
static void
sleep_until (SimDevice *device,
             gint64 time)
{
  const struct timespec deadline = { .tv_sec = time / SECOND, .tv_nsec = time % SECOND };

  while (!device->hurried && pthread_cond_timedwait (&device->hurries, &device->lock, &deadline) != ETIMEDOUT)
    ;
}

SimEvent *
sim_event_ref (SimEvent *event)
{
  __atomic_add_fetch (&event->ref_count, 1, __ATOMIC_RELAXED);
  return event;
}

void
sim_free_event (gpointer data)
{
  SimEvent *event = data;

  if (__atomic_sub_fetch (&event->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  g_clear_error (&event->error);
  g_free (event);
}

SimWork *
sim_work_new (SimWorkKind kind,
              const char *name,
              guint n_views,
              guint n_items)
{
  SimWork *work = g_malloc (sizeof (SimWork) + n_views * sizeof (EbbView) + n_items * sizeof (EbbLaunchItem));

  memset (work, 0, sizeof *work);
  work->kind = kind;
  work->name = name;
  work->thread = sim_get_thread ();
  return work;
}

void
sim_queue_wait_for_room (SimQueue *queue)
{
  while (queue->n >= SIM_QUEUE_LENGTH)
    pthread_cond_wait (&queue->emptied, &queue->device->lock);
}

void
sim_queue_push (SimQueue *queue,
                SimWork *work)
{
  work->enqueued = get_time ();
  if (queue->last != NULL)
    queue->last->next = work;
  else
    queue->first = work;
  queue->last = work;
  queue->n++;
  queue->n_enqueued++;
  pthread_cond_signal (&queue->filled);
}

static SimWork *
take (SimQueue *queue)
{
  SimWork *work;

  while (queue->first == NULL && !queue->device->closing)
    pthread_cond_wait (&queue->filled, &queue->device->lock);
  work = queue->first;
  if (work == NULL)
    return NULL;
  queue->first = work->next;
  if (queue->first == NULL)
    queue->last = NULL;
  /* Half empty again: callers that wait for room are woken once for many pieces of work. */
  if (queue->n-- == SIM_QUEUE_LENGTH / 2 + 1)
    pthread_cond_broadcast (&queue->emptied);
  return work;
}

/* -- the thread; with the device locked, but while it really works ------------------------------------------------- */

static void
note_time (SimQueue *queue,
           const SimWork *work,
           gint64 start,
           gint64 end)
{
  queue->ready = end;
  queue->unmarked += end - start;
  queue->busy += end - start;
  sim_device_add_span (queue->device, queue->stream, FALSE, work->name, work->n_bytes, start, end);
}

static void
run_kernel (SimQueue *queue,
            SimWork *work)
{
  SimDevice *device = queue->device;
  const EbbLaunch *launch = &work->u.kernel.launch;
  GError *error = NULL;
  gint64 start, end;
  gboolean ok;

  pthread_mutex_unlock (&device->lock);
  start = get_time ();
  if (sim_host->get_n_threads () != work->u.kernel.n_threads)
    sim_host->set_n_threads (work->u.kernel.n_threads);
  if (work->fails)
    g_set_error (&error, EBB_ERROR, EBB_ERROR_DEVICE, "asked to fail");
  ok = !work->fails && sim_host->get_cpu_kernels ()[launch->kernel](launch, &error);
  end = get_time ();
  pthread_mutex_lock (&device->lock);
  note_time (queue, work, start, end);
  if (ok)
    return;
  /* An index out of range is the caller's mistake, reported as everywhere. */
  if (!g_error_matches (error, EBB_ERROR, EBB_ERROR_INDEX))
    g_prefix_error (&error, "%s: %s failed: ", device->name, work->name);
  sim_queue_poison (queue, work, error);
}

static void
run_copy (SimQueue *queue,
          SimWork *work)
{
  SimDevice *device = queue->device;
  EbbStream direction = work->u.copy.to_host ? EBB_STREAM_TO_HOST : EBB_STREAM_FROM_HOST;
  double rate = device->bytes_per_second[direction];
  gint64 start = MAX (queue->ready, work->enqueued), end = start + device->latency, now;
  double seconds = rate > 0 ? (double) work->n_bytes / rate : 0;

  if (work->fails)
    {
      sim_queue_poison (queue, work,
                        g_error_new (EBB_ERROR, EBB_ERROR_DEVICE,
                                     "%s: the copy of %" G_GSIZE_FORMAT " bytes %s failed: asked to fail", device->name,
                                     work->n_bytes, work->u.copy.to_host ? "to the host" : "from the host"));
      return;
    }
  /* Rounded up: never faster than was asked for. */
  end += (gint64) (seconds * SECOND) + (rate > 0);
  pthread_mutex_unlock (&device->lock);
  memcpy (work->u.copy.destination, work->u.copy.source, work->n_bytes);
  now = get_time ();
  pthread_mutex_lock (&device->lock);
  if (now < end)
    sleep_until (device, end);
  note_time (queue, work, start, MAX (now, end));
}

static void
run_record (SimQueue *queue,
            SimWork *work)
{
  SimEvent *event = work->u.event;

  event->time = MAX (queue->ready, work->enqueued);
  event->work = queue->unmarked;
  queue->unmarked = 0;
  if (queue->poison != NULL)
    event->error = g_error_copy (queue->poison);
  event->reached = TRUE;
  sim_device_announce_progress (queue->device);
}

/* The process ends: the queue drops the rest of its work, so that nobody waits for it. */
static void
give_up (SimQueue *queue)
{
  if (queue->poison == NULL)
    sim_device_check_open (queue->device, &queue->poison);
}

static void
run_wait (SimQueue *queue,
          SimWork *work)
{
  SimDevice *device = queue->device;
  SimEvent *event = work->u.event;

  if (!event->reached)
    {
      gint64 start = MAX (queue->ready, work->enqueued), end;

      while (!event->reached && !device->closing)
        sim_device_wait_for_progress (device);
      if (!event->reached)
        {
          give_up (queue);
          return;
        }
      /* A copy begins when it could have, however late the thread woke up. */
      end = queue->stream == EBB_STREAM_COMPUTE ? get_time () : MAX (start, event->time);
      queue->ready = end;
      /* The wait of a copy delays no computing. */
      if (queue->stream == EBB_STREAM_COMPUTE)
        event->waited += end - start;
      queue->waited += end - start;
      sim_device_add_span (device, queue->stream, TRUE, ebb_stream_get_name (event->stream), 0, start, end);
    }
  queue->ready = MAX (queue->ready, event->time);
  if (event->error != NULL && queue->poison == NULL)
    sim_queue_poison (queue, work, g_error_copy (event->error));
}

static void
run_work (SimQueue *queue,
          SimWork *work)
{
  if (work->kind == SIM_WORK_RECORD)
    run_record (queue, work);
  else if (work->kind == SIM_WORK_WAIT)
    run_wait (queue, work);
  else if (queue->device->closing)
    give_up (queue);
  else if (queue->poison != NULL)
    sim_queue_note_dropped (queue, work);
  else if (work->kind == SIM_WORK_LAUNCH)
    run_kernel (queue, work);
  else
    run_copy (queue, work);
}

void *
sim_queue_run (void *data)
{
  SimQueue *queue = data;
  SimDevice *device = queue->device;
  SimWork *work;

  /* Sleeps end when they are asked to, not up to 50 microseconds later. */
  prctl (PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  pthread_mutex_lock (&device->lock);
  while ((work = take (queue)) != NULL)
    {
      run_work (queue, work);
      queue->n_done++;
      sim_device_announce_progress (device);
      pthread_mutex_unlock (&device->lock);
      if (work->kind == SIM_WORK_RECORD || work->kind == SIM_WORK_WAIT)
        sim_free_event (work->u.event);
      g_free (work);
      pthread_mutex_lock (&device->lock);
    }
  pthread_mutex_unlock (&device->lock);
  return NULL;
}

void
sim_device_add_span (SimDevice *device,
                     EbbStream stream,
                     gboolean is_wait,
                     const char *name,
                     gsize n_bytes,
                     gint64 start,
                     gint64 end)
{
  const EbbStreamSpan span = { .stream = stream,
                               .is_wait = is_wait,
                               .name = name,
                               .n_bytes = n_bytes,
                               .start = (double) start * 1e-9,
                               .end = (double) end * 1e-9 };

  if (device->tracing)
    g_array_append_val (device->spans, span);
}

void
sim_get_seconds (int index,
                 EbbStream stream,
                 double *busy,
                 double *waited)
{
  SimDevice *device = sim_device_get (index);

  EBB_AUTO_LOCK (&device->lock);
  *busy = (double) device->queues[stream].busy * 1e-9;
  *waited = (double) device->queues[stream].waited * 1e-9;
}

void
sim_set_tracing (int index,
                 gboolean tracing)
{
  SimDevice *device = sim_device_get (index);

  EBB_AUTO_LOCK (&device->lock);
  device->tracing = tracing;
}

gsize
sim_take_spans (int index,
                EbbStreamSpan **spans)
{
  SimDevice *device = sim_device_get (index);
  gsize n;

  EBB_AUTO_LOCK (&device->lock);
  n = device->spans->len;
  *spans = n > 0 ? g_memdup2 (device->spans->data, n * sizeof (EbbStreamSpan)) : NULL;
  g_array_set_size (device->spans, 0);
  return n;
}
