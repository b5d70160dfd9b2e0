/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The engine for ranks that are threads of one process: each reads the others' memory and computes its own shard. */
#include "dist/thread/team-private.h"

#include <string.h>

typedef struct
{
  EbbProcessGroup parent_instance;

  EbbThreadTeam *team;
  guint rank;
  guint64 n_splits;
  GWeakRef *self; /* in the world's list */
} EbbThreadGroup;

typedef struct
{
  EbbProcessGroupClass parent_class;
} EbbThreadGroupClass;

GType ebb_thread_group_get_type (void);
G_DEFINE_TYPE (EbbThreadGroup, ebb_thread_group, EBB_TYPE_PROCESS_GROUP)

/* -- the shards ---------------------------------------------------------------------------------------------------- */

static char *
at (const EbbCollectiveBuffer *buffer,
    guint rank)
{
  return (char *) buffer->full + (gsize) buffer->starts[rank] * ebb_dtype_get_size (buffer->dtype);
}

static void
copy (void *to,
      const void *from,
      const EbbCollectiveBuffer *buffer,
      gint64 n_elements)
{
  if (n_elements > 0 && to != from)
    memcpy (to, from, (gsize) n_elements * ebb_dtype_get_size (buffer->dtype));
}

static const EbbCollectiveBuffer *
get_part (EbbThreadGroup *self,
          guint rank,
          guint part)
{
  return &self->team->slots[rank].call->parts[part];
}

/* This rank's shard of the reduction, to @to. */
static void
reduce_shard (EbbThreadGroup *self,
              const EbbCollectiveCall *call,
              guint part,
              void *to)
{
  const guint n = self->team->size;
  g_autofree const void **sources = g_new (const void *, n);
  const EbbCollectiveBuffer *buffer = &call->parts[part];

  if (buffer->counts[self->rank] == 0)
    return;
  for (guint r = 0; r < n; r++)
    sources[r] = at (get_part (self, r, part), self->rank);
  ebb_collective_reduce (to, sources, n, (gsize) buffer->counts[self->rank], buffer->dtype, call->op);
}

static void
all_reduce (EbbThreadGroup *self,
            const EbbCollectiveCall *call)
{
  for (guint i = 0; i < call->n_parts; i++)
    reduce_shard (self, call, i, at (&call->parts[i], self->rank));
  ebb_thread_team_sync (self->team);
  for (guint i = 0; i < call->n_parts; i++)
    for (guint r = 0; r < self->team->size; r++)
      copy (at (&call->parts[i], r), at (get_part (self, r, i), r), &call->parts[i], call->parts[i].counts[r]);
}

static void
move_shards (EbbThreadGroup *self,
             const EbbCollectiveCall *call,
             guint part)
{
  const EbbCollectiveBuffer *buffer = &call->parts[part];
  const gsize size = ebb_dtype_get_size (buffer->dtype);

  for (guint r = 0; r < self->team->size; r++)
    {
      const EbbCollectiveBuffer *other = get_part (self, r, part);

      if (call->which == EBB_COLLECTIVE_ALL_GATHER)
        copy (at (buffer, r), other->shard, buffer, buffer->counts[r]);
      else if (buffer->counts[r] > 0)
        copy ((char *) buffer->shard + (gsize) buffer->starts[r] * size, at (other, self->rank), buffer,
              buffer->counts[r]);
    }
}

static void
do_part (EbbThreadGroup *self,
         const EbbCollectiveCall *call,
         guint part)
{
  const EbbCollectiveBuffer *buffer = &call->parts[part];

  switch (call->which)
    {
    case EBB_COLLECTIVE_REDUCE_SCATTER: reduce_shard (self, call, part, buffer->shard); break;
    case EBB_COLLECTIVE_ALL_GATHER:
    case EBB_COLLECTIVE_ALL_TO_ALL: move_shards (self, call, part); break;
    case EBB_COLLECTIVE_BROADCAST:
      copy (buffer->full, get_part (self, call->peer, part)->full, buffer, buffer->n_elements);
      break;
    default: break;
    }
}

/* -- the engine ---------------------------------------------------------------------------------------------------- */

static gboolean
run (EbbProcessGroup *group,
     const EbbCollectiveCall *call,
     GError **error)
{
  EbbThreadGroup *self = (EbbThreadGroup *) group;
  const double timeout = ebb_process_group_get_timeout (group);

  if (ebb_collective_is_pair (call->which))
    return ebb_thread_team_pair (self->team, self->rank, call, timeout, error);
  if (!ebb_thread_team_meet (self->team, self->rank, call, timeout, error))
    return FALSE;
  if (call->which == EBB_COLLECTIVE_ALL_REDUCE)
    all_reduce (self, call);
  else
    for (guint i = 0; i < call->n_parts; i++)
      do_part (self, call, i);
  ebb_thread_team_part (self->team, self->rank, call);
  return TRUE;
}

static EbbProcessGroup *
split (EbbProcessGroup *group,
       guint color,
       const guint *members,
       guint n_members,
       guint rank,
       GError **error)
{
  EbbThreadGroup *self = (EbbThreadGroup *) group;
  g_autofree char *name = g_strdup_printf ("%s/%u", ebb_process_group_get_name (group), color);
  EbbThreadTeam *team = ebb_thread_team_split (self->team, self->n_splits++, color, members, n_members);
  EbbProcessGroup *part = ebb_thread_group_new (team, rank, name, ebb_process_group_get_timeout (group));

  ebb_thread_team_unref (team);
  return part;
}

static void
fail (EbbProcessGroup *group,
      const GError *reason)
{
  EbbThreadGroup *self = (EbbThreadGroup *) group;

  ebb_thread_team_fail (self->team, self->rank, reason);
}

static const EbbProcessGroupFuncs funcs = { .run = run, .split = split, .fail = fail };

/* -- the object ---------------------------------------------------------------------------------------------------- */

static void
ebb_thread_group_finalize (GObject *object)
{
  EbbThreadGroup *self = (EbbThreadGroup *) object;
  EbbThreadWorld *world = self->team->world;

  pthread_mutex_lock (&world->lock);
  g_ptr_array_remove_fast (world->members[self->team->members[self->rank]].groups, self->self);
  pthread_mutex_unlock (&world->lock);
  g_weak_ref_clear (self->self);
  g_free (self->self);
  ebb_thread_team_go (self->team, self->rank);
  ebb_thread_team_unref (self->team);
  G_OBJECT_CLASS (ebb_thread_group_parent_class)->finalize (object);
}

static void
ebb_thread_group_class_init (EbbThreadGroupClass *klass)
{
  EBB_PROCESS_GROUP_CLASS (klass)->funcs = &funcs;
  G_OBJECT_CLASS (klass)->finalize = ebb_thread_group_finalize;
}

static void
ebb_thread_group_init (EbbThreadGroup *self)
{
}

EbbProcessGroup *
ebb_thread_group_new (EbbThreadTeam *team,
                      guint rank,
                      const char *name,
                      double timeout)
{
  EbbProcessGroup *group = g_object_new (ebb_thread_group_get_type (), "rank", rank, "size", team->size, "backend",
                                         "thread", "name", name, NULL);
  EbbThreadGroup *self = (EbbThreadGroup *) group;
  EbbThreadWorld *world = team->world;

  self->team = ebb_thread_team_ref (team);
  self->rank = rank;
  self->self = g_new0 (GWeakRef, 1);
  g_weak_ref_init (self->self, self);
  if (timeout > 0)
    ebb_process_group_set_timeout (group, timeout);
  EBB_AUTO_LOCK (&world->lock);
  g_ptr_array_add (world->members[team->members[rank]].groups, self->self);
  return group;
}
