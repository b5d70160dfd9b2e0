/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The engine over MPI: groups, how they are split, and the entry of the module. */
#include "dist/mpi/mpi-private.h"

#include <gmodule.h>
#include <pthread.h>

typedef struct
{
  EbbProcessGroupClass parent_class;
} EbbMpiGroupClass;

GType ebb_mpi_group_get_type (void);
G_DEFINE_TYPE (EbbMpiGroup, ebb_mpi_group, ebb_mpi_host->get_type ())

/* -- the groups of the process ------------------------------------------------------------------------------------- */

static GList *groups; /* with open mailboxes; needs groups_mutex */
static pthread_mutex_t groups_mutex = PTHREAD_MUTEX_INITIALIZER;

#define LEFT_TEXT "it has left the group"

static void
leave_all_groups (void)
{
  EBB_AUTO_LOCK (&groups_mutex);
  for (GList *l = groups; l != NULL; l = l->next)
    {
      ebb_mpi_report (l->data, EBB_MPI_LEFT, LEFT_TEXT);
      ebb_mpi_close_mailbox (l->data);
    }
}

/* -- the engine ---------------------------------------------------------------------------------------------------- */

static void
break_off (EbbMpiGroup *self,
           const char *text)
{
  ebb_mpi_note_failure ();
  ebb_mpi_report (self, EBB_MPI_FAILED, text);
  if (self->unfinished)
    ebb_mpi_abandon ();
}

static gboolean
run (EbbProcessGroup *group,
     const EbbCollectiveCall *call,
     GError **error)
{
  EbbMpiGroup *self = (EbbMpiGroup *) group;
  g_autofree char *own = NULL;
  g_autofree char *text = NULL;
  GError *failure = NULL;

  ebb_mpi_set_longest_wait (ebb_mpi_group_get_timeout (self));
  if ((!self->checks || ebb_mpi_announce (self, call, &failure))
      && (call->is_announcement || ebb_mpi_collective (self, call, &failure)))
    return TRUE;
  own = ebb_mpi_host->call_to_string (call);
  text = g_strdup_printf ("%s: %s", own, failure->message);
  break_off (self, text);
  g_propagate_error (error, failure);
  return FALSE;
}

static void
fail (EbbProcessGroup *group,
      const GError *reason)
{
  break_off ((EbbMpiGroup *) group, reason->message);
}

static EbbMpiGroup *
new_group (const char *name,
           guint rank,
           guint size)
{
  const char *check = g_getenv ("EBB_PROCESS_GROUP_CHECK");
  EbbMpiGroup *self = g_object_new (ebb_mpi_group_get_type (), "backend", "mpi", "name", name, "rank", rank, "size",
                                    size, NULL);

  self->rank = rank;
  self->size = size;
  self->checks = g_strcmp0 (check, "0") != 0;
  self->world_ranks = g_new0 (int, size);
  return self;
}

static gboolean
open_group (EbbMpiGroup *self,
            GError **error)
{
  MPI_Comm_set_errhandler (self->comm, MPI_ERRORS_RETURN);
  if (!ebb_mpi_open_mailbox (self, error))
    return FALSE;
  EBB_AUTO_LOCK (&groups_mutex);
  groups = g_list_append (groups, self);
  return TRUE;
}

/* MPI_Comm_create_group () waits for the other members without a limit, so it runs on a thread of its own, and the
 * caller waits up to the group's time limit. It is the only function that waits for others under the process' lock. The
 * members have exchanged their colors before, so they are coming, and calls of other groups here only take longer.
 * Waiting for these first would be worse: another rank may make its part of them after this split. */
typedef struct
{
  gint n_refs; /* atomic */
  gint done;   /* atomic */
  MPI_Comm parent, comm;
  int *members;
  guint n_members;
  GError *error;
} Split;

static void
split_unref (Split *split)
{
  if (!g_atomic_int_dec_and_test (&split->n_refs))
    return;
  g_free (split->members);
  g_clear_error (&split->error);
  g_free (split);
}

static gpointer
create_group (gpointer data)
{
  Split *split = data;
  MPI_Group parent, group;

  if (ebb_mpi_lock (&split->error))
    {
      MPI_Comm_group (split->parent, &parent);
      MPI_Group_incl (parent, (int) split->n_members, split->members, &group);
      ebb_mpi_check (MPI_Comm_create_group (split->parent, group, 0, &split->comm), "MPI_Comm_create_group",
                     &split->error);
      MPI_Group_free (&group);
      MPI_Group_free (&parent);
      ebb_mpi_unlock ();
    }
  g_atomic_int_set (&split->done, TRUE);
  split_unref (split);
  return NULL;
}

static gboolean
wait_for_split (EbbMpiGroup *self,
                Split *split,
                GError **error)
{
  double timeout = ebb_mpi_group_get_timeout (self);
  EbbMpiPause pause;
  gboolean look;

  ebb_mpi_pause_begin (&pause, timeout);
  while (!g_atomic_int_get (&split->done))
    {
      if (!ebb_mpi_pause (&pause, &look))
        {
          ebb_mpi_abandon ();
          return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP,
                               "MPI_Comm_create_group: not all members came within %g s", timeout);
        }
      for (guint i = 0; look && i < split->n_members; i++)
        if (!ebb_mpi_is_alive (self->world_ranks[split->members[i]]))
          {
            ebb_mpi_abandon ();
            return ebb_mpi_fail (error, EBB_ERROR_PROCESS_GROUP, "rank %d has died: its process has ended",
                                 split->members[i]);
          }
    }
  if (split->error == NULL)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&split->error));
  return FALSE;
}

static EbbProcessGroup *
split (EbbProcessGroup *group,
       guint color,
       const guint *members,
       guint n_members,
       guint rank,
       GError **error)
{
  EbbMpiGroup *self = (EbbMpiGroup *) group;
  g_autofree char *name = g_strdup_printf ("%s/%u", ebb_mpi_host->get_name (group), color);
  Split *wanted = g_new0 (Split, 1);
  EbbMpiGroup *child = NULL;

  wanted->n_refs = 2;
  wanted->parent = self->comm;
  wanted->comm = MPI_COMM_NULL;
  wanted->n_members = n_members;
  wanted->members = g_new (int, n_members);
  for (guint i = 0; i < n_members; i++)
    wanted->members[i] = (int) members[i];
  g_thread_unref (g_thread_new ("ebb-mpi-split", create_group, wanted));
  if (wait_for_split (self, wanted, error))
    {
      child = new_group (name, rank, n_members);
      child->comm = wanted->comm;
      for (guint i = 0; i < n_members; i++)
        child->world_ranks[i] = self->world_ranks[members[i]];
      if (!open_group (child, error))
        g_clear_object (&child);
    }
  split_unref (wanted);
  return (EbbProcessGroup *) child;
}

/* Communicators are never freed: that would take all ranks once more, and reports of an end may still be on their
 * way. */
static void
finalize (GObject *object)
{
  EbbMpiGroup *self = (EbbMpiGroup *) object;

  pthread_mutex_lock (&groups_mutex);
  groups = g_list_remove (groups, self);
  pthread_mutex_unlock (&groups_mutex);
  ebb_mpi_report (self, EBB_MPI_LEFT, LEFT_TEXT);
  ebb_mpi_close_mailbox (self);
  for (guint i = 0; i < G_N_ELEMENTS (self->rows); i++)
    {
      g_free (self->rows[i]);
      ebb_mpi_requests_free (&self->requests[i]);
    }
  g_free (self->outgoing);
  g_free (self->incoming);
  g_free (self->outbox);
  g_free (self->inbox);
  g_free (self->arrived);
  g_free (self->world_ranks);
  G_OBJECT_CLASS (ebb_mpi_group_parent_class)->finalize (object);
}

static const EbbProcessGroupFuncs funcs = {
  .run = run,
  .split = split,
  .fail = fail,
};

static void
ebb_mpi_group_class_init (EbbMpiGroupClass *klass)
{
  G_OBJECT_CLASS (klass)->finalize = finalize;
  klass->parent_class.funcs = &funcs;
}

static void
ebb_mpi_group_init (EbbMpiGroup *self)
{
  self->comm = MPI_COMM_NULL;
}

/* -- the module ---------------------------------------------------------------------------------------------------- */

static gboolean
open_world (EbbMpiGroup *self,
            GError **error)
{
  double timeout = ebb_mpi_group_get_timeout (self);
  MPI_Request request;
  int code;

  ebb_mpi_set_longest_wait (timeout);
  for (guint i = 0; i < self->size; i++)
    self->world_ranks[i] = (int) i;
  if (!ebb_mpi_meet (timeout, error) || !ebb_mpi_lock (error))
    return FALSE;
  code = MPI_Comm_idup (MPI_COMM_WORLD, &self->comm, &request);
  ebb_mpi_unlock ();
  return ebb_mpi_check (code, "MPI_Comm_idup", error)
         && ebb_mpi_wait_one (&request, timeout, "MPI_Comm_idup", error) && open_group (self, error);
}

G_MODULE_EXPORT EbbProcessGroup *ebb_process_group_open_v1 (const EbbProcessGroupHost *host,
                                                            GError **error);

G_MODULE_EXPORT EbbProcessGroup *
ebb_process_group_open_v1 (const EbbProcessGroupHost *host,
                           GError **error)
{
  EbbMpiGroup *self;
  int rank = 0, size = 1;

  ebb_mpi_host = host;
  if (!ebb_mpi_init (leave_all_groups, error) || !ebb_mpi_lock (error))
    return NULL;
  MPI_Comm_rank (MPI_COMM_WORLD, &rank);
  MPI_Comm_size (MPI_COMM_WORLD, &size);
  ebb_mpi_unlock ();
  self = new_group ("world", (guint) rank, (guint) size);
  if (!open_world (self, error))
    {
      g_object_unref (self);
      return NULL;
    }
  host->set_n_threads (ebb_mpi_get_n_threads ());
  return (EbbProcessGroup *) self;
}
