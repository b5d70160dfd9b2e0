/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "tensor/util/lock-private.h"

#include <mpi.h>

/* Process groups over MPI: a module of its own, which is not linked to the library.
 *
 * Several groups of a process may work at once, each on a thread of its own, with no more than MPI_THREAD_SERIALIZED:
 * every call of MPI is made under one lock. Nothing under the lock waits for another rank except
 * MPI_Comm_create_group (); waiting threads poll without it. */

G_BEGIN_DECLS

/* -- the process: runtime.c ---------------------------------------------------------------------------------------- */

extern const EbbProcessGroupHost *ebb_mpi_host;

#define ebb_mpi_fail(...) (ebb_mpi_host->error_set (__VA_ARGS__), FALSE)

/* Starts MPI, unless it runs. @at_end is called when the process ends. */
gboolean ebb_mpi_init (void (*at_end) (void),
                       GError **error);

/* FALSE with @error set if MPI can't be used (any more). */
gboolean ebb_mpi_lock (GError **error);
void ebb_mpi_unlock (void);
/* Turns the result of a function of MPI into an error. */
gboolean ebb_mpi_check (int code,
                        const char *function,
                        GError **error);
/* Gives MPI up: operations run that nobody will wait for, so that MPI may still use their memory. This process makes no
 * more calls of MPI and doesn't finalize it. */
void ebb_mpi_abandon (void);
/* A group has failed: MPI is not finalized, since that waits for all ranks. */
void ebb_mpi_note_failure (void);
/* How long the process waits for the others before it ends, at least; seconds. */
void ebb_mpi_set_longest_wait (double seconds);

/* Waits a little longer each time: first yields the core, then sleeps. */
typedef struct
{
  gint64 begin;
  double timeout; /* seconds */
  guint n;
} EbbMpiPause;

void ebb_mpi_pause_begin (EbbMpiPause *self,
                          double timeout);
/* FALSE: the time is over. @look: it is time to check whether the other processes live. */
gboolean ebb_mpi_pause (EbbMpiPause *self,
                        gboolean *look);

/* -- the others: runtime.c ----------------------------------------------------------------------------------------- */

/* Exchanges the processes of all ranks of MPI_COMM_WORLD; once. */
gboolean ebb_mpi_meet (double timeout,
                       GError **error);
/* FALSE: the process of that rank of MPI_COMM_WORLD has ended. Processes on other machines count as alive. */
gboolean ebb_mpi_is_alive (int world_rank);
gboolean ebb_mpi_are_all_alive (void);
/* Waits for one request. FALSE with @error set, and MPI abandoned, if the time is over or a process has ended. */
gboolean ebb_mpi_wait_one (MPI_Request *request,
                           double timeout,
                           const char *what,
                           GError **error);
/* The OpenMP threads that each rank on this machine may have. */
int ebb_mpi_get_n_threads (void);

/* -- the group: group.c -------------------------------------------------------------------------------------------- */

/* Of an EbbAnnouncement, which is sent before a call, or instead of one. */
typedef enum
{
  EBB_MPI_CALL,
  EBB_MPI_FAILED, /* text: why */
  EBB_MPI_LEFT
} EbbMpiMessageKind;

typedef struct
{
  MPI_Request *requests;
  int n, n_allocated;
  GPtrArray *arrays; /* that they read while they run */
} EbbMpiRequests;

typedef struct
{
  EbbProcessGroup parent_instance;

  MPI_Comm comm;
  guint rank, size;
  int *world_ranks;    /* [size] */
  gboolean checks;     /* calls are announced */
  gboolean reported;   /* to the others, that this rank has failed or left */
  gboolean unfinished; /* operations of MPI run that nobody waits for */
  /* messages: @inbox[r] always waits for one of rank r, unless it has arrived */
  EbbAnnouncement *outgoing, *incoming;
  MPI_Request *outbox, *inbox;
  gboolean *arrived;
  /* of collectives */
  EbbMpiRequests requests[2];
  char *rows[2];
} EbbMpiGroup;

#define EBB_MPI_TAG_MESSAGE 1
#define EBB_MPI_TAG_DATA 2

static inline double
ebb_mpi_group_get_timeout (EbbMpiGroup *self)
{
  return ebb_mpi_host->get_timeout ((EbbProcessGroup *) self);
}

/* -- messages: announce.c ------------------------------------------------------------------------------------------ */

gboolean ebb_mpi_open_mailbox (EbbMpiGroup *self,
                               GError **error);
void ebb_mpi_close_mailbox (EbbMpiGroup *self);
/* Announces @call to the others, and waits until they have announced the same. */
gboolean ebb_mpi_announce (EbbMpiGroup *self,
                           const EbbCollectiveCall *call,
                           GError **error);
/* Reports to the others that this rank has failed or left; once. */
void ebb_mpi_report (EbbMpiGroup *self,
                     EbbMpiMessageKind kind,
                     const char *text);
/* FALSE with @error set if a rank has failed, or its process has ended. */
gboolean ebb_mpi_look (EbbMpiGroup *self,
                       GError **error);

/* -- data: collective.c -------------------------------------------------------------------------------------------- */

void ebb_mpi_requests_free (EbbMpiRequests *self);
gboolean ebb_mpi_collective (EbbMpiGroup *self,
                             const EbbCollectiveCall *call,
                             GError **error);

G_END_DECLS
