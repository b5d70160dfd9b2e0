/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a machine watch each other's processes: MPI over shared memory never notices that one has ended. */
#define _GNU_SOURCE
#include "dist/mpi/mpi-private.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

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

int
ebb_mpi_get_n_threads (void)
{
  return n_threads;
}
