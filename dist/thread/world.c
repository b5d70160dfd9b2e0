/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Worlds and teams: their members, how they are made, split and left. */
#include "dist/thread/team-private.h"

typedef struct
{
  EbbThreadTeam *parent; /* not held: it is there while one of its ranks still has to come */
  guint64 number;
  guint color;
  guint n_left; /* ranks that have not got their team yet */
  EbbThreadTeam *team;
} Split;

static EbbThreadWorld *
world_new (guint n_members)
{
  EbbThreadWorld *self = g_new0 (EbbThreadWorld, 1);

  self->ref_count = 1;
  pthread_mutex_init (&self->lock, NULL);
  self->n_members = n_members;
  self->members = g_new0 (EbbMember, n_members);
  for (guint i = 0; i < n_members; i++)
    self->members[i].groups = g_ptr_array_new ();
  return self;
}

static void
world_unref (EbbThreadWorld *self)
{
  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  for (guint i = 0; i < self->n_members; i++)
    {
      g_free (self->members[i].message);
      g_ptr_array_unref (self->members[i].groups);
    }
  g_free (self->members);
  pthread_mutex_destroy (&self->lock);
  g_free (self);
}

void
ebb_thread_world_leave (EbbThreadWorld *self,
                        guint member,
                        const GError *failure)
{
  EBB_AUTO_LOCK (&self->lock);
  self->members[member].state = failure != NULL ? EBB_MEMBER_FAILED : EBB_MEMBER_LEFT;
  g_free (self->members[member].message);
  self->members[member].message = failure != NULL ? g_strdup (failure->message) : NULL;
  for (GList *l = self->teams; l != NULL; l = l->next)
    pthread_cond_broadcast (&((EbbThreadTeam *) l->data)->changed);
}

void
ebb_thread_world_flush (EbbThreadWorld *self,
                        guint member)
{
  g_autoptr (GPtrArray) groups = g_ptr_array_new_with_free_func (g_object_unref);

  pthread_mutex_lock (&self->lock);
  for (guint i = 0; i < self->members[member].groups->len; i++)
    {
      GObject *group = g_weak_ref_get (self->members[member].groups->pdata[i]);

      if (group != NULL)
        g_ptr_array_add (groups, group);
    }
  pthread_mutex_unlock (&self->lock);
  for (guint i = 0; i < groups->len; i++)
    ebb_process_group_flush (groups->pdata[i]);
}

/* -- teams --------------------------------------------------------------------------------------------------------- */

static EbbThreadTeam *
team_new_locked (EbbThreadWorld *world,
                 const guint *members,
                 guint size)
{
  EbbThreadTeam *self = g_new0 (EbbThreadTeam, 1);

  self->ref_count = 1;
  self->world = world;
  __atomic_add_fetch (&world->ref_count, 1, __ATOMIC_RELAXED);
  self->size = size;
  self->members = g_memdup2 (members, sizeof (guint) * size);
  self->slots = g_new0 (EbbSlot, size);
  ebb_cond_init (&self->changed);
  world->teams = g_list_prepend (world->teams, self);
  return self;
}

EbbThreadTeam *
ebb_thread_team_new (guint size)
{
  EbbThreadWorld *world = world_new (size);
  g_autofree guint *members = g_new (guint, size);
  EbbThreadTeam *self;

  for (guint i = 0; i < size; i++)
    members[i] = i;
  self = team_new_locked (world, members, size); /* nobody else knows the world yet */
  world_unref (world);
  return self;
}

EbbThreadTeam *
ebb_thread_team_ref (EbbThreadTeam *self)
{
  __atomic_add_fetch (&self->ref_count, 1, __ATOMIC_RELAXED);
  return self;
}

/* The splits that some ranks left without taking their team. */
static GList *
steal_splits_locked (EbbThreadTeam *self)
{
  GList *stolen = NULL;

  for (GList *l = self->world->splits, *next; l != NULL; l = next)
    {
      next = l->next;
      if (((Split *) l->data)->parent != self)
        continue;
      self->world->splits = g_list_remove_link (self->world->splits, l);
      stolen = g_list_concat (l, stolen);
    }
  return stolen;
}

static void
split_free (gpointer data)
{
  Split *split = data;

  ebb_thread_team_unref (split->team);
  g_free (split);
}

void
ebb_thread_team_unref (EbbThreadTeam *self)
{
  EbbThreadWorld *world = self->world;
  GList *splits;

  if (__atomic_sub_fetch (&self->ref_count, 1, __ATOMIC_ACQ_REL) != 0)
    return;
  pthread_mutex_lock (&world->lock);
  world->teams = g_list_remove (world->teams, self);
  splits = steal_splits_locked (self);
  pthread_mutex_unlock (&world->lock);
  g_list_free_full (splits, split_free);
  pthread_cond_destroy (&self->changed);
  g_free (self->members);
  g_free (self->slots);
  g_free (self->text);
  g_free (self->other_text);
  g_free (self);
  world_unref (world);
}

static Split *
find_split_locked (EbbThreadTeam *parent,
                   guint64 number,
                   guint color)
{
  for (GList *l = parent->world->splits; l != NULL; l = l->next)
    {
      Split *split = l->data;

      if (split->parent == parent && split->number == number && split->color == color)
        return split;
    }
  return NULL;
}

EbbThreadTeam *
ebb_thread_team_split (EbbThreadTeam *parent,
                       guint64 number,
                       guint color,
                       const guint *ranks,
                       guint size)
{
  EbbThreadWorld *world = parent->world;
  g_autofree guint *members = g_new (guint, size);
  EbbThreadTeam *team;
  Split *split;

  for (guint i = 0; i < size; i++)
    members[i] = parent->members[ranks[i]];
  EBB_AUTO_LOCK (&world->lock);
  split = find_split_locked (parent, number, color);
  if (split == NULL)
    {
      split = g_new0 (Split, 1);
      *split = (Split){ parent, number, color, size, team_new_locked (world, members, size) };
      world->splits = g_list_prepend (world->splits, split);
    }
  team = split->team;
  if (--split->n_left > 0)
    ebb_thread_team_ref (team);
  else /* the last one gets the split's own */
    {
      world->splits = g_list_remove (world->splits, split);
      g_free (split);
    }
  return team;
}

void
ebb_thread_team_go (EbbThreadTeam *self,
                    guint rank)
{
  EBB_AUTO_LOCK (&self->world->lock);
  self->slots[rank].is_gone = TRUE;
  pthread_cond_broadcast (&self->changed);
}
