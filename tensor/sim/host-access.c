/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/sim/sim-private.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The process dies of a host access to device memory; before, it reports which memory was accessed. */

#define MAX_WATCHED 64
#define N_TRIES 1000 /* a millisecond each */

static SimDevice *watched[MAX_WATCHED];
static guint n_watched;
static struct sigaction old_action;

static void
report (SimDevice *device,
        const void *address)
{
  const struct timespec moment = { .tv_nsec = 1000000 };
  char line[256];
  int length;
  EbbHeapBlock *block = NULL;
  const SimUses *uses = NULL;
  gboolean locked = FALSE;

  /* Looking it up takes no memory. The threads hold the lock for moments; if this one does, it goes without. */
  for (guint i = 0; i < N_TRIES && !locked; i++)
    {
      locked = pthread_mutex_trylock (&device->lock) == 0;
      if (!locked)
        nanosleep (&moment, NULL);
    }
  if (locked)
    {
      block = sim_heap_find (&device->heap, address);
      uses = block != NULL ? block->data : NULL;
      pthread_mutex_unlock (&device->lock);
    }
  if (block != NULL)
    length =
        snprintf (line, sizeof line,
                  "Ebb: the host touched memory of %s: byte %zu of block %llu, which has %zu bytes; copy the tensor "
                  "to cpu first\n",
                  device->name, (gsize) address - (gsize) device->heap.base - block->offset,
                  (unsigned long long) uses->serial, uses->size);
  else
    length = snprintf (line, sizeof line, "Ebb: the host touched memory of %s, at byte %zu, which is in no tensor\n",
                       device->name, (gsize) address - (gsize) device->heap.base);
  if (length > 0 && write (STDERR_FILENO, line, MIN ((gsize) length, sizeof line - 1)) < 0)
    return;
}

static void
handle_host_access (int signal_number,
                    siginfo_t *info,
                    void *context)
{
  guint n = __atomic_load_n (&n_watched, __ATOMIC_ACQUIRE);

  for (guint i = 0; i < n; i++)
    if (sim_heap_contains (&watched[i]->heap, info->si_addr))
      report (watched[i], info->si_addr);
  /* Do as the old handler would; returning repeats the access. */
  if (old_action.sa_flags & SA_SIGINFO)
    old_action.sa_sigaction (signal_number, info, context);
  else if (old_action.sa_handler != SIG_DFL && old_action.sa_handler != SIG_IGN)
    old_action.sa_handler (signal_number);
  else
    signal (signal_number, SIG_DFL);
}

void
sim_watch_host_access (SimDevice *device)
{
  struct sigaction action;

  if (n_watched == 0)
    {
      memset (&action, 0, sizeof action);
      action.sa_sigaction = handle_host_access;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
      sigemptyset (&action.sa_mask);
      sigaction (SIGSEGV, &action, &old_action);
    }
  if (n_watched == MAX_WATCHED)
    return;
  watched[n_watched] = device;
  __atomic_store_n (&n_watched, n_watched + 1, __ATOMIC_RELEASE);
}
