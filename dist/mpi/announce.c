/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Each rank announces its next call to the others, and makes it when all have announced the same. That takes about as
 * long as a barrier; without it, ranks with different calls would wait for each other or mix up their data. */
#include "dist/mpi/mpi-private.h"

/* -- the mailbox --------------------------------------------------------------------------------------------------- */

static gboolean
expect_message (EbbMpiGroup *self,
                guint rank,
                GError **error)
{
  self->arrived[rank] = FALSE;
  return ebb_mpi_check (MPI_Irecv (&self->incoming[rank], (int) sizeof (EbbAnnouncement), MPI_BYTE, (int) rank,
                                   EBB_MPI_TAG_MESSAGE, self->comm, &self->inbox[rank]),
                        "MPI_Irecv", error);
}

gboolean
ebb_mpi_open_mailbox (EbbMpiGroup *self,
                      GError **error)
{
  gboolean good = TRUE;

  self->outgoing = g_new0 (EbbAnnouncement, 1);
  self->incoming = g_new0 (EbbAnnouncement, self->size);
  self->outbox = g_new (MPI_Request, self->size);
  self->inbox = g_new (MPI_Request, self->size);
  self->arrived = g_new0 (gboolean, self->size);
  for (guint i = 0; i < self->size; i++)
    self->outbox[i] = self->inbox[i] = MPI_REQUEST_NULL;
  if (!ebb_mpi_lock (error))
    return FALSE;
  for (guint i = 0; good && i < self->size; i++)
    if (i != self->rank)
      good = expect_message (self, i, error);
  ebb_mpi_unlock ();
  return good;
}

void
ebb_mpi_close_mailbox (EbbMpiGroup *self)
{
  if (!ebb_mpi_lock (NULL))
    return;
  for (guint i = 0; self->inbox != NULL && i < self->size; i++)
    if (self->inbox[i] != MPI_REQUEST_NULL)
      {
        int done = 0;

        MPI_Cancel (&self->inbox[i]);
        MPI_Test (&self->inbox[i], &done, MPI_STATUS_IGNORE);
      }
  ebb_mpi_unlock ();
}

/* Needs the lock. TRUE: a message of that rank is there. */
static gboolean
has_message (EbbMpiGroup *self,
             guint rank,
             GError **error)
{
  int done = self->arrived[rank];

  if (!done && !ebb_mpi_check (MPI_Test (&self->inbox[rank], &done, MPI_STATUS_IGNORE), "MPI_Test", error))
    return FALSE;
  self->arrived[rank] = done != 0;
  return self->arrived[rank];
}

/* Messages that may still be on their way when their group is gone. */
static GPtrArray *last_messages;

#define LONGEST_REPORT 0.2 /* seconds */

void
ebb_mpi_report (EbbMpiGroup *self,
                EbbMpiMessageKind kind,
                const char *text)
{
  g_autofree MPI_Request *requests = NULL;
  EbbAnnouncement *message;
  EbbMpiPause pause;
  gboolean look;
  int done = 0;

  if (self->reported || self->inbox == NULL || !ebb_mpi_lock (NULL))
    return;
  self->reported = TRUE;
  requests = g_new (MPI_Request, self->size);
  message = g_new0 (EbbAnnouncement, 1);
  message->kind = kind;
  g_strlcpy (message->text, text, sizeof message->text);
  for (guint i = 0; i < self->size; i++)
    {
      requests[i] = MPI_REQUEST_NULL;
      if (i != self->rank && ebb_mpi_is_alive (self->world_ranks[i]))
        MPI_Isend (message, (int) sizeof *message, MPI_BYTE, (int) i, EBB_MPI_TAG_MESSAGE, self->comm, &requests[i]);
    }
  if (last_messages == NULL)
    last_messages = g_ptr_array_new ();
  g_ptr_array_add (last_messages, message);
  /* The process may not call MPI again after this. */
  ebb_mpi_pause_begin (&pause, LONGEST_REPORT);
  do
    MPI_Testall ((int) self->size, requests, &done, MPI_STATUSES_IGNORE);
  while (!done && ebb_mpi_pause (&pause, &look));
  ebb_mpi_unlock ();
}

/* -- failures ------------------------------------------------------------------------------------------------------ */

static gboolean
set_failure (EbbMpiGroup *self,
             guint rank,
             GError **error)
{
  return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "rank %u has failed: %s", rank, self->incoming[rank].text);
}

static gboolean
check_process (EbbMpiGroup *self,
               guint rank,
               GError **error)
{
  return rank == self->rank || ebb_mpi_is_alive (self->world_ranks[rank])
         || ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "rank %u has died: its process has ended", rank);
}

gboolean
ebb_mpi_look (EbbMpiGroup *self,
              GError **error)
{
  gboolean good = TRUE;
  GError *failure = NULL;

  if (!ebb_mpi_lock (error))
    return FALSE;
  for (guint i = 0; good && i < self->size; i++)
    if (i != self->rank)
      {
        if (has_message (self, i, &failure) && self->incoming[i].kind == EBB_MPI_FAILED)
          good = set_failure (self, i, error);
        /* One that has left the group may have done its part of this call before. */
        if (failure != NULL)
          {
            good = FALSE;
            g_propagate_error (error, failure);
          }
      }
  ebb_mpi_unlock ();
  for (guint i = 0; good && i < self->size; i++)
    good = check_process (self, i, error);
  return good;
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

static gboolean
takes_part (EbbMpiGroup *self,
            const EbbCollectiveCall *call,
            guint rank)
{
  return rank != self->rank && (!ebb_collective_is_pair (call->which) || rank == call->peer);
}

static gboolean
check_message (EbbMpiGroup *self,
               const EbbCollectiveCall *call,
               guint rank,
               GError **error)
{
  const EbbAnnouncement *message = &self->incoming[rank];

  if (message->kind == EBB_MPI_FAILED)
    return set_failure (self, rank, error);
  if (message->kind != EBB_MPI_LEFT)
    return ebb_mpi_host->check_announcement (call, self->rank, message, rank, error);
  return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "rank %u has left the group", rank);
}

/* Needs the lock. @all: every message has arrived, and the own one is sent. */
static gboolean
test_messages (EbbMpiGroup *self,
               const EbbCollectiveCall *call,
               gboolean *all,
               GError **error)
{
  *all = TRUE;
  for (guint i = 0; i < self->size; i++)
    {
      GError *failure = NULL;
      int sent = 0;

      if (!takes_part (self, call, i))
        continue;
      if (!ebb_mpi_check (MPI_Test (&self->outbox[i], &sent, MPI_STATUS_IGNORE), "MPI_Test", error))
        return FALSE;
      if (!has_message (self, i, &failure) || !sent)
        *all = FALSE;
      if (failure != NULL)
        {
          g_propagate_error (error, failure);
          return FALSE;
        }
      if (self->arrived[i] && !check_message (self, call, i, error))
        return FALSE;
    }
  return TRUE;
}

static gboolean
send_messages (EbbMpiGroup *self,
               const EbbCollectiveCall *call,
               GError **error)
{
  EbbAnnouncement *message = self->outgoing;
  gboolean good = TRUE;

  ebb_mpi_host->announce (call, message);
  if (!ebb_mpi_lock (error))
    return FALSE;
  for (guint i = 0; good && i < self->size; i++)
    if (takes_part (self, call, i))
      good = ebb_mpi_check (MPI_Isend (message, (int) sizeof *message, MPI_BYTE, (int) i, EBB_MPI_TAG_MESSAGE,
                                       self->comm, &self->outbox[i]),
                            "MPI_Isend", error);
  ebb_mpi_unlock ();
  return good;
}

/* Names the ranks that have announced nothing. */
static gboolean
set_timeout (EbbMpiGroup *self,
             const EbbCollectiveCall *call,
             double timeout,
             GError **error)
{
  g_autoptr (GString) ranks = g_string_new (NULL);
  guint n = 0;

  for (guint i = 0; i < self->size; i++)
    if (takes_part (self, call, i) && !self->arrived[i])
      g_string_append_printf (ranks, "%s%u", n++ > 0 ? ", " : "", i);
  if (n == 0)
    return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP,
                         "not every rank received this rank's announcement within %g s", timeout);
  return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "rank%s %s %s called nothing for %g s", n > 1 ? "s" : "",
                       ranks->str, n > 1 ? "have" : "has", timeout);
}

gboolean
ebb_mpi_announce (EbbMpiGroup *self,
                  const EbbCollectiveCall *call,
                  GError **error)
{
  double timeout = ebb_mpi_group_get_timeout (self);
  gboolean all = FALSE, good = TRUE, look;
  EbbMpiPause pause;

  if (!send_messages (self, call, error))
    return FALSE;
  ebb_mpi_pause_begin (&pause, timeout);
  while (!all)
    {
      if (!ebb_mpi_lock (error))
        return FALSE;
      good = test_messages (self, call, &all, error);
      ebb_mpi_unlock ();
      if (!good)
        return FALSE;
      if (all)
        break;
      if (!ebb_mpi_pause (&pause, &look))
        return set_timeout (self, call, timeout, error);
      for (guint i = 0; look && i < self->size; i++)
        if (takes_part (self, call, i) && !check_process (self, i, error))
          return FALSE;
    }
  if (!ebb_mpi_lock (error))
    return FALSE;
  for (guint i = 0; good && i < self->size; i++)
    if (takes_part (self, call, i))
      good = expect_message (self, i, error);
  ebb_mpi_unlock ();
  return good;
}
