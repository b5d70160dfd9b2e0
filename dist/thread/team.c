/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of a team meet, and what breaks it. Functions in _locked need the world's lock. */
#include "dist/thread/team-private.h"

#include <string.h>

/* -- what went wrong ----------------------------------------------------------------------------------------------- */

static void
break_locked (EbbThreadTeam *self,
              EbbBreakKind kind,
              guint rank,
              char *text,
              guint other,
              char *other_text)
{
  self->broken = kind;
  self->rank = rank;
  self->other = other;
  self->text = text;
  self->other_text = other_text;
  pthread_cond_broadcast (&self->changed);
}

/* From @rank's point of view. */
static void
report_locked (EbbThreadTeam *self,
               guint rank,
               GError **error)
{
  const gboolean is_own = rank == self->rank;

  if (self->broken == EBB_BREAK_MISMATCH && (is_own || rank == self->other))
    ebb_error_set (error, EBB_ERROR_PROCESS_GROUP, "rank %u called %s", is_own ? self->other : self->rank,
                   is_own ? self->other_text : self->text);
  else if (self->broken == EBB_BREAK_MISMATCH)
    ebb_error_set (error, EBB_ERROR_PROCESS_GROUP, "rank %u called %s while rank %u called %s", self->rank, self->text,
                   self->other, self->other_text);
  else if (self->broken == EBB_BREAK_LATE && is_own)
    ebb_error_set (error, EBB_ERROR_PROCESS_GROUP, "rank %u timed out in %s", self->other, self->other_text);
  else
    ebb_error_set (error, EBB_ERROR_PROCESS_GROUP, "rank %u %s", self->rank, self->text);
}

static void
break_mismatch_locked (EbbThreadTeam *self,
                       guint rank,
                       guint other)
{
  break_locked (self, EBB_BREAK_MISMATCH, rank, ebb_collective_call_to_string (self->slots[rank].call), other,
                ebb_collective_call_to_string (self->slots[other].call));
}

static void
break_late_locked (EbbThreadTeam *self,
                   guint rank,
                   guint waiting,
                   double timeout)
{
  const EbbSlot *slot = &self->slots[rank];
  GString *text = g_string_new (NULL);

  if (slot->call != NULL) /* of a pair: it waits for somebody else */
    {
      g_autofree char *what = ebb_collective_call_to_string (slot->call);

      g_string_append_printf (text, "was in %s for %g s", what, timeout);
    }
  else if (slot->n_done > 0)
    g_string_append_printf (text, "has called nothing for %g s after %" G_GUINT64_FORMAT " calls, the last %s", timeout,
                            slot->n_done, ebb_collective_get_name (slot->last));
  else
    g_string_append_printf (text, "has called nothing for %g s, and nothing before", timeout);
  break_locked (self, EBB_BREAK_LATE, rank, g_string_free (text, FALSE), waiting,
                ebb_collective_call_to_string (self->slots[waiting].call));
}

/* TRUE if @rank has left: the team is broken then. */
static gboolean
has_left_locked (EbbThreadTeam *self,
                 guint rank)
{
  const EbbMember *member = &self->world->members[self->members[rank]];

  if (self->slots[rank].call != NULL)
    return FALSE;
  if (member->state == EBB_MEMBER_FAILED)
    break_locked (self, EBB_BREAK_LEFT, rank, g_strdup_printf ("has failed: %s", member->message), rank, NULL);
  else if (member->state == EBB_MEMBER_LEFT)
    break_locked (self, EBB_BREAK_LEFT, rank, g_strdup ("has left: its function returned"), rank, NULL);
  else if (self->slots[rank].is_gone)
    break_locked (self, EBB_BREAK_LEFT, rank, g_strdup ("has left: it released the group"), rank, NULL);
  else
    return FALSE;
  return TRUE;
}

void
ebb_thread_team_fail (EbbThreadTeam *self,
                      guint rank,
                      const GError *failure)
{
  EBB_AUTO_LOCK (&self->world->lock);
  if (self->broken == EBB_BREAK_NONE)
    break_locked (self, EBB_BREAK_LEFT, rank, g_strdup_printf ("has failed: %s", failure->message), rank, NULL);
}

/* -- waiting ------------------------------------------------------------------------------------------------------- */

static gint64
get_deadline (double timeout)
{
  return g_get_monotonic_time () + (gint64) (timeout * G_USEC_PER_SEC);
}

/* FALSE: it is too late. */
static gboolean
wait_locked (EbbThreadTeam *self,
             gint64 deadline)
{
  return ebb_cond_wait_until (&self->changed, &self->world->lock, deadline);
}

/* -- all together -------------------------------------------------------------------------------------------------- */

/* Compares with the ranks that are here already: one that waits for this rank in a pair waits in vain. */
static gboolean
check_meeting_locked (EbbThreadTeam *self,
                      guint rank)
{
  const EbbCollectiveCall *call = self->slots[rank].call;

  for (guint r = 0; r < self->size; r++)
    {
      const EbbCollectiveCall *other = self->slots[r].call;

      if (r == rank || other == NULL)
        continue;
      if (ebb_collective_is_pair (other->which) ? other->peer == rank && !self->slots[r].is_taken
                                                : other->signature != call->signature)
        {
          break_mismatch_locked (self, rank, r);
          return FALSE;
        }
    }
  return TRUE;
}

/* The first rank that isn't here. */
static guint
find_missing_locked (EbbThreadTeam *self)
{
  guint r = 0;

  while (r + 1 < self->size && self->slots[r].call != NULL && !ebb_collective_is_pair (self->slots[r].call->which))
    r++;
  return r;
}

static gboolean
has_any_left_locked (EbbThreadTeam *self)
{
  for (guint r = 0; r < self->size; r++)
    if (has_left_locked (self, r))
      return TRUE;
  return FALSE;
}

static void
wait_for_all_locked (EbbThreadTeam *self,
                     guint rank,
                     double timeout)
{
  const gint64 deadline = get_deadline (timeout);
  const guint64 generation = self->generation;

  if (++self->n_arrived == self->size)
    {
      self->n_arrived = 0;
      self->generation++;
      pthread_cond_broadcast (&self->changed);
      return;
    }
  while (self->generation == generation && self->broken == EBB_BREAK_NONE && !has_any_left_locked (self))
    if (!wait_locked (self, deadline) && self->generation == generation && self->broken == EBB_BREAK_NONE)
      break_late_locked (self, find_missing_locked (self), rank, timeout);
}

gboolean
ebb_thread_team_meet (EbbThreadTeam *self,
                      guint rank,
                      const EbbCollectiveCall *call,
                      double timeout,
                      GError **error)
{
  guint64 generation;

  EBB_AUTO_LOCK (&self->world->lock);
  generation = self->generation;
  if (self->broken == EBB_BREAK_NONE)
    {
      self->slots[rank].call = call;
      if (check_meeting_locked (self, rank))
        wait_for_all_locked (self, rank, timeout);
    }
  /* A rank that has met the others goes on, whatever has happened since. */
  if (self->generation != generation)
    return TRUE;
  self->slots[rank].call = NULL;
  report_locked (self, rank, error);
  return FALSE;
}

/* All are in the same call, so no rank is waited for longer than its share takes. @ends: the call is over. */
static void
sync_team (EbbThreadTeam *self,
           gboolean ends)
{
  guint64 generation;

  EBB_AUTO_LOCK (&self->world->lock);
  generation = self->generation;
  if (++self->n_arrived == self->size)
    {
      self->n_arrived = 0;
      self->generation++;
      for (guint r = 0; ends && r < self->size; r++)
        self->slots[r].call = NULL;
      pthread_cond_broadcast (&self->changed);
    }
  while (self->generation == generation)
    pthread_cond_wait (&self->changed, &self->world->lock);
}

void
ebb_thread_team_sync (EbbThreadTeam *self)
{
  sync_team (self, FALSE);
}

void
ebb_thread_team_part (EbbThreadTeam *self,
                      guint rank,
                      const EbbCollectiveCall *call)
{
  EbbSlot *slot = &self->slots[rank];

  pthread_mutex_lock (&self->world->lock);
  slot->n_done++;
  slot->last = call->which;
  pthread_mutex_unlock (&self->world->lock);
  sync_team (self, TRUE);
}

/* -- in pairs ------------------------------------------------------------------------------------------------------ */

/* TRUE if the peer waits for this rank with the other half of the call. FALSE otherwise; the team is broken if the peer
 * waits for something that can't come before this call is done. */
static gboolean
find_partner_locked (EbbThreadTeam *self,
                     guint rank)
{
  const EbbCollectiveCall *call = self->slots[rank].call, *other = self->slots[call->peer].call;

  if (other == NULL || (ebb_collective_is_pair (other->which) && other->peer != rank))
    return FALSE;
  if (ebb_collective_is_pair (other->which) && other->which != call->which && other->signature == call->signature)
    return TRUE;
  break_mismatch_locked (self, rank, call->peer);
  return FALSE;
}

static void
end_pair_locked (EbbThreadTeam *self,
                 guint rank)
{
  EbbSlot *slot = &self->slots[rank];

  slot->n_done++;
  slot->last = slot->call->which;
  slot->call = NULL;
  slot->is_taken = FALSE;
}

static void
move (const EbbCollectiveCall *a,
      const EbbCollectiveCall *b)
{
  const EbbCollectiveCall *from = a->which == EBB_COLLECTIVE_SEND ? a : b, *to = from == a ? b : a;

  for (guint i = 0; i < from->n_parts; i++)
    if (from->parts[i].n_elements > 0)
      memcpy (to->parts[i].full, from->parts[i].full,
              (gsize) from->parts[i].n_elements * ebb_dtype_get_size (from->parts[i].dtype));
}

/* The rank that comes second moves the bytes, without the lock; the first one can't leave meanwhile. */
static void
serve_locked (EbbThreadTeam *self,
              guint rank)
{
  const EbbCollectiveCall *call = self->slots[rank].call;
  const guint peer = call->peer;

  self->slots[rank].is_taken = self->slots[peer].is_taken = TRUE;
  pthread_mutex_unlock (&self->world->lock);
  move (call, self->slots[peer].call);
  pthread_mutex_lock (&self->world->lock);
  end_pair_locked (self, rank);
  end_pair_locked (self, peer);
  pthread_cond_broadcast (&self->changed);
}

static void
wait_for_partner_locked (EbbThreadTeam *self,
                         guint rank,
                         double timeout)
{
  const EbbCollectiveCall *call = self->slots[rank].call;
  const gint64 deadline = get_deadline (timeout);
  EbbSlot *slot = &self->slots[rank];

  while (slot->call == call)
    {
      if (slot->is_taken)
        {
          pthread_cond_wait (&self->changed, &self->world->lock);
          continue;
        }
      if (self->broken != EBB_BREAK_NONE || has_left_locked (self, call->peer))
        return;
      if (!wait_locked (self, deadline) && slot->call == call && !slot->is_taken && self->broken == EBB_BREAK_NONE)
        break_late_locked (self, call->peer, rank, timeout);
    }
}

gboolean
ebb_thread_team_pair (EbbThreadTeam *self,
                      guint rank,
                      const EbbCollectiveCall *call,
                      double timeout,
                      GError **error)
{
  EbbSlot *slot = &self->slots[rank];
  gboolean done = FALSE;

  EBB_AUTO_LOCK (&self->world->lock);
  if (self->broken == EBB_BREAK_NONE)
    {
      slot->call = call;
      if (find_partner_locked (self, rank))
        serve_locked (self, rank);
      else if (self->broken == EBB_BREAK_NONE)
        wait_for_partner_locked (self, rank, timeout);
      done = slot->call != call;
    }
  if (done)
    return TRUE;
  slot->call = NULL;
  report_locked (self, rank, error);
  return FALSE;
}
