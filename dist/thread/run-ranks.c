/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs a function on several threads, each a rank. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_setname_np */
#endif
#include "dist/thread/run-ranks.h"

#include "dist/thread/team-private.h"
#include "tensor/memory-account-private.h"
#include "tensor/thread-private.h"

#define MAX_RANKS 1024

typedef struct
{
  EbbThreadTeam *team;
  guint number;
  int n_threads;
  EbbDevice *default_device;
  EbbRankFunc func;
  gpointer user_data;
  gboolean has_thread;
  pthread_t thread;
  guint *n_failed; /* of all ranks so far */
  GError *error;   /* what it ended with */
  guint order;     /* of those that failed */
} Rank;

/* Its work ends before it leaves; a failure is reported to the others at once. */
static void
leave (Rank *self,
       EbbProcessGroup *group,
       gboolean done,
       GError *error)
{
  EbbThreadWorld *world = self->team->world;

  if (!done && error == NULL)
    ebb_error_set (&error, EBB_ERROR_CALLBACK, "its function failed without saying why");
  if (done)
    g_clear_error (&error);
  if (!done)
    {
      self->order = __atomic_add_fetch (self->n_failed, 1, __ATOMIC_RELAXED);
      ebb_thread_world_leave (world, self->number, error);
    }
  ebb_thread_world_flush (world, self->number);
  if (done)
    ebb_thread_world_leave (world, self->number, NULL);
  self->error = error;
}

static void *
run_rank (void *data)
{
  Rank *self = data;
  EbbMemoryAccount *account = ebb_memory_account_new ();
  EbbProcessGroup *group = ebb_thread_group_new (self->team, self->number, "world", 0);
  GError *error = NULL;
  gboolean done;

  ebb_thread.account = account;
  ebb_modes.default_device = self->default_device;
  ebb_set_num_threads (self->n_threads);
  ebb_process_group_set_thread_default (group);
  done = self->func (group, self->user_data, &error);
  leave (self, group, done, error);
  ebb_process_group_set_thread_default (NULL);
  g_object_unref (group);
  ebb_thread.account = NULL;
  ebb_memory_account_unref (account);
  return NULL;
}

static void
start_rank (Rank *self)
{
  g_autofree char *name = g_strdup_printf ("ebb-rank-%u", self->number);
  int code = pthread_create (&self->thread, NULL, run_rank, self);

  self->has_thread = code == 0;
  if (self->has_thread)
    {
      pthread_setname_np (self->thread, name);
      return;
    }
  ebb_error_set (&self->error, EBB_ERROR_NO_MEMORY, "can't start its thread: %s", g_strerror (code));
  ebb_thread_world_leave (self->team->world, self->number, self->error);
}

/* The first one; failures that only report another rank come last. */
static const Rank *
find_culprit (const Rank *ranks,
              guint n)
{
  const Rank *culprit = NULL;
  guint64 least = G_MAXUINT64;

  for (guint i = 0; i < n; i++)
    {
      const GError *error = ranks[i].error;
      const guint64 order = error != NULL ? ranks[i].order : G_MAXUINT32;
      const guint64 place = g_error_matches (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP) ? order + MAX_RANKS : order;

      if (error == NULL || place >= least)
        continue;
      culprit = &ranks[i];
      least = place;
    }
  return culprit;
}

static gboolean
run_all (Rank *ranks,
         guint n,
         GError **error)
{
  const Rank *culprit;

  for (guint i = 0; i < n; i++)
    start_rank (&ranks[i]);
  for (guint i = 0; i < n; i++)
    if (ranks[i].has_thread)
      pthread_join (ranks[i].thread, NULL);
  culprit = find_culprit (ranks, n);
  if (culprit == NULL)
    return TRUE;
  if (error != NULL)
    {
      *error = g_error_copy (culprit->error);
      g_prefix_error (error, "rank %u of %u: ", culprit->number, n);
    }
  return FALSE;
}

/**
 * ebb_run_ranks:
 * @n_ranks: how many ranks
 * @func: (scope call) (closure user_data): the function of each rank
 * @user_data: user data for @func
 * @error: return location for an error
 *
 * Runs @func on @n_ranks threads of this process at once, each a rank of one group with the backend "thread", and waits
 * for all. On such a thread the group is ebb_process_group_get_default(), the default device is that of the caller,
 * kernels use this thread's ebb_get_num_threads() divided by the number of ranks (at least one), ebb_memory_get_stats()
 * counts this rank's tensors, and the default generator is a new one. If a rank's function returns or fails while
 * others wait for it, these fail with an error that names it; work that it has started is done before.
 *
 * Returns: %FALSE with the error of the rank that failed first, and its number
 */
gboolean
ebb_run_ranks (guint n_ranks,
               EbbRankFunc func,
               gpointer user_data,
               GError **error)
{
  g_autofree Rank *ranks = NULL;
  EbbThreadTeam *team;
  guint n_failed = 0;
  gboolean done;

  g_return_val_if_fail (func != NULL, FALSE);

  if (error != NULL && *error != NULL)
    return FALSE;
  if (n_ranks == 0 || n_ranks > MAX_RANKS)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "run_ranks: n_ranks is %u; it must be from 1 to %d", n_ranks,
                     MAX_RANKS);
  g_type_class_unref (g_type_class_ref (EBB_TYPE_PROCESS_GROUP)); /* its making needs no threads that race for it */
  ranks = g_new0 (Rank, n_ranks);
  team = ebb_thread_team_new (n_ranks);
  for (guint i = 0; i < n_ranks; i++)
    ranks[i] = (Rank){
      .team = team,
      .number = i,
      .n_threads = MAX (1, ebb_get_num_threads () / (int) n_ranks),
      .default_device = ebb_modes.default_device,
      .func = func,
      .user_data = user_data,
      .n_failed = &n_failed,
    };
  done = run_all (ranks, n_ranks, error);
  for (guint i = 0; i < n_ranks; i++)
    g_clear_error (&ranks[i].error);
  ebb_thread_team_unref (team);
  return done;
}
