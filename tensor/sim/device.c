/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The devices that are open, and what all that a device does asks of it: whether it is open, failures that were asked
 * for, and waits until its queues have done work. */
#include "tensor/sim/sim-private.h"

const EbbBackendHost *sim_host;

static SimDevice *devices[SIM_MAX_DEVICES];

SimDevice *
sim_device_get (int index)
{
  return __atomic_load_n (&devices[index], __ATOMIC_ACQUIRE);
}

void
sim_device_add (SimDevice *device)
{
  __atomic_store_n (&devices[device->index], device, __ATOMIC_RELEASE);
}

gboolean
sim_device_check_open (SimDevice *device,
                       GError **error)
{
  return G_LIKELY (!device->closing)
         || ebb_fail (error, EBB_ERROR_DEVICE, "%s does no more work: %s", device->name,
                      device->forked ? "this process was forked from the one that opened it" : "the process ends");
}

/* -- failures that were asked for --------------------------------------------------------------------------------- */

guint64
sim_fail (int index,
          EbbFailure what,
          guint64 n)
{
  SimDevice *device = sim_device_get (index);
  guint64 left;

  EBB_AUTO_LOCK (&device->lock);
  left = device->fails[what];
  device->fails[what] = n;
  return left;
}

gboolean
sim_device_take_failure (SimDevice *device,
                         EbbFailure what)
{
  return device->fails[what] > 0 && --device->fails[what] == 0;
}

/* -- waits --------------------------------------------------------------------------------------------------------- */

void
sim_clock_merge (SimClock *clock,
                 const SimClock *other)
{
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    clock->count[i] = MAX (clock->count[i], other->count[i]);
}

void
sim_device_wait_for_progress (SimDevice *device)
{
  device->n_waiting++;
  pthread_cond_wait (&device->progress, &device->lock);
  device->n_waiting--;
}

void
sim_device_announce_progress (SimDevice *device)
{
  if (device->n_waiting > 0)
    pthread_cond_broadcast (&device->progress);
}

void
sim_device_hurry (SimDevice *device)
{
  device->hurried = TRUE;
  pthread_cond_broadcast (&device->hurries);
}

void
sim_device_drain (SimDevice *device)
{
  SimClock clocks[EBB_N_STREAMS];

  for (guint i = 0; i < EBB_N_STREAMS; i++)
    clocks[i] = device->queues[i].clock;
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    {
      SimQueue *queue = &device->queues[i];
      guint64 n = queue->n_enqueued;

      while (queue->n_done < n)
        sim_device_wait_for_progress (device);
    }
  for (guint i = 0; i < EBB_N_STREAMS; i++)
    sim_clock_merge (&device->host_clock, &clocks[i]);
}
