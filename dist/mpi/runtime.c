/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* MPI in this process: its start and end, and the lock under which all calls are made. */
#define _GNU_SOURCE
#include "dist/mpi/mpi-private.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

const EbbProcessGroupHost *ebb_mpi_host;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static gboolean started;        /* by this module, which then finalizes it */
static gboolean abandoned;      /* atomic */
static gboolean failed;         /* atomic */
static GThread *finisher;       /* atomic: the thread that ends the process */
static double longest_wait = 1; /* for others at the end, seconds */
static pid_t pid;

/* -- the lock ------------------------------------------------------------------------------------------------------ */

gboolean
ebb_mpi_lock (GError **error)
{
  for (guint n = 0;; n++)
    {
      const char *reason = NULL;

      if (g_atomic_int_get (&abandoned))
        reason = "a collective operation of this process failed halfway, after which it can't use MPI any more";
      else if (g_atomic_pointer_get (&finisher) != NULL && g_atomic_pointer_get (&finisher) != g_thread_self ())
        reason = "the process is about to end";
      else if (getpid () != pid)
        reason = "this process was forked from one that uses MPI";
      if (reason != NULL)
        {
          g_set_error_literal (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP, reason);
          return FALSE;
        }
      /* Not pthread_mutex_lock (): its holder may be stuck in MPI, see group.c, and never unlock it. */
      if (pthread_mutex_trylock (&mutex) == 0)
        return TRUE;
      if (n < 100)
        sched_yield ();
      else
        g_usleep (20);
    }
}

void
ebb_mpi_unlock (void)
{
  pthread_mutex_unlock (&mutex);
}

void
ebb_mpi_abandon (void)
{
  g_atomic_int_set (&failed, TRUE);
  g_atomic_int_set (&abandoned, TRUE);
}

void
ebb_mpi_note_failure (void)
{
  g_atomic_int_set (&failed, TRUE);
}

gboolean
ebb_mpi_check (int code,
               const char *function,
               GError **error)
{
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;

  if (code == MPI_SUCCESS)
    return TRUE;
  MPI_Error_string (code, text, &length);
  g_set_error (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP, "%s: %s", function, text);
  return FALSE;
}

/* -- pauses -------------------------------------------------------------------------------------------------------- */

#define SPIN_MICROSECONDS 50
#define LONGEST_NAP_NANOSECONDS 50000

void
ebb_mpi_pause_begin (EbbMpiPause *self,
                     double timeout)
{
  self->begin = g_get_monotonic_time ();
  self->timeout = timeout;
  self->n = 0;
}

gboolean
ebb_mpi_pause (EbbMpiPause *self,
               gboolean *look)
{
  gint64 waited = g_get_monotonic_time () - self->begin;
  struct timespec nap = { 0, 0 };

  *look = FALSE;
  if (waited < SPIN_MICROSECONDS)
    {
      sched_yield ();
      return TRUE;
    }
  self->n++;
  *look = self->n % 20 == 0;
  if ((double) waited > self->timeout * 1e6)
    return FALSE;
  nap.tv_nsec = MIN (5000L * (long) MIN (self->n, 1000), LONGEST_NAP_NANOSECONDS);
  nanosleep (&nap, NULL);
  return TRUE;
}

/* -- begin and end ------------------------------------------------------------------------------------------------- */

/* MPI_Finalize () waits for all ranks without a limit, so it is only called after all have come here. */
static gboolean
wait_for_all (void)
{
  MPI_Request request;
  int code;

  if (!ebb_mpi_lock (NULL))
    return FALSE;
  code = MPI_Ibarrier (MPI_COMM_WORLD, &request);
  ebb_mpi_unlock ();
  return code == MPI_SUCCESS && ebb_mpi_wait_one (&request, longest_wait, "MPI_Ibarrier", NULL);
}

static void
finish (void)
{
  int finalized = 0;

  if (getpid () != pid || g_atomic_int_get (&abandoned))
    return;
  g_atomic_pointer_set (&finisher, g_thread_self ());
  if (!ebb_mpi_lock (NULL))
    return;
  MPI_Finalized (&finalized);
  ebb_mpi_unlock ();
  if (!finalized)
    ebb_mpi_leave_all_groups ();
  if (finalized || !started || g_atomic_int_get (&failed) || !wait_for_all () || !ebb_mpi_lock (NULL))
    return;
  MPI_Finalize ();
  ebb_mpi_unlock ();
}

gboolean
ebb_mpi_init (GError **error)
{
  int initialized = 0, finalized = 0, provided = MPI_THREAD_SINGLE;

  if (pid != 0)
    return TRUE;
  if (!ebb_mpi_check (MPI_Initialized (&initialized), "MPI_Initialized", error)
      || !ebb_mpi_check (MPI_Finalized (&finalized), "MPI_Finalized", error))
    return FALSE;
  if (finalized)
    {
      g_set_error_literal (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP, "this process has finalized MPI already");
      return FALSE;
    }
  if (initialized)
    MPI_Query_thread (&provided);
  else if (!ebb_mpi_check (MPI_Init_thread (NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread", error))
    return FALSE;
  if (provided < MPI_THREAD_SERIALIZED)
    {
      g_set_error (error, EBB_MPI_ERROR, EBB_ERROR_PROCESS_GROUP,
                   "MPI gives thread support %d here; MPI_THREAD_SERIALIZED (%d) is needed", provided,
                   MPI_THREAD_SERIALIZED);
      return FALSE;
    }
  MPI_Comm_set_errhandler (MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  started = !initialized;
  pid = getpid ();
  atexit (finish);
  return TRUE;
}

void
ebb_mpi_set_longest_wait (double seconds)
{
  longest_wait = MAX (longest_wait, seconds);
}
