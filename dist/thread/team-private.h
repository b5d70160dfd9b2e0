/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "tensor/util/lock-private.h"

#include <pthread.h>

/* Where ranks that are threads meet. A world is all of them, a team the ranks of one group. One lock guards a world,
 * for bookkeeping only. Nobody spins, and every wait ends: the other rank comes, leaves, fails, or is late. */

G_BEGIN_DECLS

typedef struct _EbbThreadTeam EbbThreadTeam;
typedef struct _EbbThreadWorld EbbThreadWorld;

typedef enum
{
  EBB_MEMBER_HERE,
  EBB_MEMBER_LEFT,  /* its function returned */
  EBB_MEMBER_FAILED /* with an error */
} EbbMemberState;

typedef struct
{
  EbbMemberState state;
  char *message;     /* of the failure */
  GPtrArray *groups; /* of GWeakRef: its groups */
} EbbMember;

struct _EbbThreadWorld
{
  int ref_count;
  pthread_mutex_t lock;
  guint n_members;
  EbbMember *members;
  GList *teams;  /* not held */
  GList *splits; /* of Split, see world.c */
};

/* One rank of a team. */
typedef struct
{
  const EbbCollectiveCall *call; /* that it has come with; NULL: not here */
  gboolean is_taken;             /* the other of the pair moves the bytes */
  gboolean is_gone;              /* it has released the group */
  guint64 n_done;
  EbbCollective last; /* that it did; valid if n_done > 0 */
} EbbSlot;

typedef enum
{
  EBB_BREAK_NONE,
  EBB_BREAK_MISMATCH, /* @rank called @text, @other called @other_text */
  EBB_BREAK_LEFT,     /* @rank, with @text saying how */
  EBB_BREAK_LATE      /* @rank, for which @other waited in @other_text; @text names its last call */
} EbbBreakKind;

struct _EbbThreadTeam
{
  int ref_count;
  EbbThreadWorld *world;
  pthread_cond_t changed;
  guint size;
  guint *members; /* [size] numbers in the world */
  EbbSlot *slots;
  guint n_arrived;
  guint64 generation; /* how often all have met */
  EbbBreakKind broken;
  guint rank, other;
  char *text, *other_text;
};

/* The member has left; @failure NULL: its function returned. */
void ebb_thread_world_leave (EbbThreadWorld *world,
                             guint member,
                             const GError *failure);
/* Waits until all that a member has started is done. */
void ebb_thread_world_flush (EbbThreadWorld *world,
                             guint member);

/* The team of all ranks of a new world, which lives as long as its teams. */
EbbThreadTeam *ebb_thread_team_new (guint size);
/* The team that all ranks with @color get from the @number-th split of @parent. */
EbbThreadTeam *ebb_thread_team_split (EbbThreadTeam *parent,
                                      guint64 number,
                                      guint color,
                                      const guint *ranks,
                                      guint size);
EbbThreadTeam *ebb_thread_team_ref (EbbThreadTeam *team);
void ebb_thread_team_unref (EbbThreadTeam *team);
/* @rank has released its group. */
void ebb_thread_team_go (EbbThreadTeam *team,
                         guint rank);
/* @rank has failed. */
void ebb_thread_team_fail (EbbThreadTeam *team,
                           guint rank,
                           const GError *failure);
/* Waits until all are here with the same call, at most @timeout seconds. All then see each other's calls until
 * ebb_thread_team_part (). */
gboolean ebb_thread_team_meet (EbbThreadTeam *team,
                               guint rank,
                               const EbbCollectiveCall *call,
                               double timeout,
                               GError **error);
/* Waits until all have come this far, between meet and part. */
void ebb_thread_team_sync (EbbThreadTeam *team);
void ebb_thread_team_part (EbbThreadTeam *team,
                           guint rank,
                           const EbbCollectiveCall *call);
/* Sends to or receives from call->peer. */
gboolean ebb_thread_team_pair (EbbThreadTeam *team,
                               guint rank,
                               const EbbCollectiveCall *call,
                               double timeout,
                               GError **error);

/* A group object for @rank of @team, which it holds. */
EbbProcessGroup *ebb_thread_group_new (EbbThreadTeam *team,
                                       guint rank,
                                       const char *name,
                                       double timeout); /* 0: the default */

G_END_DECLS
