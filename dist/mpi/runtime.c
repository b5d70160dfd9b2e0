/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* MPI in this process: its start and end, the lock under which all calls are made, and how it waits for the others. The
 * ranks of a machine watch each other's processes, since MPI over shared memory never notices that one has ended. */
#define _GNU_SOURCE
#include "dist/mpi/mpi-private.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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
static void (*leave_groups) (void); /* called when the process ends */

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
        return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "%s", reason);
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
  return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "%s: %s", function, text);
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

/* -- the other processes ------------------------------------------------------------------------------------------- */

typedef struct
{
  char machine[96]; /* and pid namespace */
  gint32 pid;
  guint32 padding;
  cpu_set_t cores;
} Identity;

typedef struct
{
  int fd;    /* readable once the process has ended; -1: isn't watched */
  int ended; /* atomic */
} Process;

static Process *processes; /* [n_processes] by rank of MPI_COMM_WORLD */
static int n_processes;
static int n_threads = 1;

static void
get_identity (Identity *self)
{
  g_autofree char *boot = NULL;
  char namespace[48] = "";

  memset (self, 0, sizeof *self);
  if (!g_file_get_contents ("/proc/sys/kernel/random/boot_id", &boot, NULL, NULL)
      || readlink ("/proc/self/ns/pid", namespace, sizeof namespace - 1) <= 0)
    g_snprintf (self->machine, sizeof self->machine, "%s", g_get_host_name ());
  else
    g_snprintf (self->machine, sizeof self->machine, "%s %s", g_strchomp (boot), namespace);
  self->pid = (gint32) getpid ();
  if (sched_getaffinity (0, sizeof self->cores, &self->cores) != 0)
    CPU_ZERO (&self->cores);
}

static void
watch (Process *process,
       const Identity *identity)
{
  process->fd = -1;
#ifdef SYS_pidfd_open
  process->fd = (int) syscall (SYS_pidfd_open, identity->pid, 0);
  g_atomic_int_set (&process->ended, process->fd < 0 && errno == ESRCH);
#endif
}

/* Shares the cores of this machine among its ranks, whether each is bound to cores of its own or all to the same ones.
 */
static int
share_cores (const Identity *identities,
             int rank)
{
  cpu_set_t cores;
  int n_here = 0, share;

  CPU_ZERO (&cores);
  for (int i = 0; i < n_processes; i++)
    if (strcmp (identities[i].machine, identities[rank].machine) == 0)
      {
        n_here++;
        CPU_OR (&cores, &cores, &identities[i].cores);
      }
  share = CPU_COUNT (&cores) / n_here;
  return MAX (1, MIN (share, CPU_COUNT (&identities[rank].cores)));
}

gboolean
ebb_mpi_is_alive (int world_rank)
{
  Process *process;
  struct pollfd poll_fd = { .events = POLLIN };

  if (processes == NULL)
    return TRUE;
  process = &processes[world_rank];
  poll_fd.fd = process->fd;
  if (process->fd >= 0 && poll (&poll_fd, 1, 0) > 0)
    g_atomic_int_set (&process->ended, TRUE);
  return !g_atomic_int_get (&process->ended);
}

gboolean
ebb_mpi_are_all_alive (void)
{
  for (int i = 0; processes != NULL && i < n_processes; i++)
    if (!ebb_mpi_is_alive (i))
      return FALSE;
  return TRUE;
}

gboolean
ebb_mpi_wait_one (MPI_Request *request,
                  double timeout,
                  const char *what,
                  GError **error)
{
  gboolean look, good = TRUE;
  EbbMpiPause pause;
  int done = 0;

  ebb_mpi_pause_begin (&pause, timeout);
  while (good && !done)
    {
      if (!ebb_mpi_lock (error))
        return FALSE;
      good = ebb_mpi_check (MPI_Test (request, &done, MPI_STATUS_IGNORE), what, error);
      ebb_mpi_unlock ();
      if (!good || done)
        break;
      if (!ebb_mpi_pause (&pause, &look))
        good = ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "%s: not all ranks came within %g s", what, timeout);
      else if (look && !ebb_mpi_are_all_alive ())
        good = ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "%s: the process of a rank has ended", what);
    }
  if (!good)
    ebb_mpi_abandon ();
  return good;
}

gboolean
ebb_mpi_meet (double timeout,
              GError **error)
{
  g_autofree Identity *identities = NULL;
  MPI_Request request;
  Identity own;
  int rank = 0, code;

  if (processes != NULL)
    return TRUE;
  get_identity (&own);
  if (!ebb_mpi_lock (error))
    return FALSE;
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &n_processes);
  identities = g_new0 (Identity, n_processes);
  code = MPI_Iallgather (&own, (int) sizeof own, MPI_BYTE, identities, (int) sizeof own, MPI_BYTE, MPI_COMM_WORLD,
                         &request);
  ebb_mpi_unlock ();
  if (!ebb_mpi_check (code, "MPI_Iallgather", error))
    return FALSE;
  if (!ebb_mpi_wait_one (&request, timeout, "MPI_Iallgather", error))
    return FALSE;
  processes = g_new0 (Process, n_processes);
  for (int i = 0; i < n_processes; i++)
    {
      processes[i].fd = -1;
      if (i != rank && strcmp (identities[i].machine, own.machine) == 0)
        watch (&processes[i], &identities[i]);
    }
  n_threads = share_cores (identities, rank);
  return TRUE;
}

int
ebb_mpi_get_n_threads (void)
{
  return n_threads;
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
    leave_groups ();
  if (finalized || !started || g_atomic_int_get (&failed) || !wait_for_all () || !ebb_mpi_lock (NULL))
    return;
  MPI_Finalize ();
  ebb_mpi_unlock ();
}

gboolean
ebb_mpi_init (void (*at_end) (void),
              GError **error)
{
  int initialized = 0, finalized = 0, provided = MPI_THREAD_SINGLE;

  if (pid != 0)
    return TRUE;
  if (!ebb_mpi_check (MPI_Initialized (&initialized), "MPI_Initialized", error)
      || !ebb_mpi_check (MPI_Finalized (&finalized), "MPI_Finalized", error))
    return FALSE;
  if (finalized)
    return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "this process has finalized MPI already");
  if (initialized)
    MPI_Query_thread (&provided);
  else if (!ebb_mpi_check (MPI_Init_thread (NULL, NULL, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread", error))
    return FALSE;
  if (provided < MPI_THREAD_SERIALIZED)
    return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP,
                         "MPI gives thread support %d here; MPI_THREAD_SERIALIZED (%d) is needed", provided,
                         MPI_THREAD_SERIALIZED);
  MPI_Comm_set_errhandler (MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  started = !initialized;
  leave_groups = at_end;
  pid = getpid ();
  atexit (finish);
  return TRUE;
}

void
ebb_mpi_set_longest_wait (double seconds)
{
  longest_wait = MAX (longest_wait, seconds);
}
