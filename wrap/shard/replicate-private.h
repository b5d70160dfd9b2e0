/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "wrap/shard/replicate-options.h"

/* The owner of a replicated module's parameters. The gradient of a parameter is in one of these states, in turn:
 *
 *   local      this rank's sum since the last reduction
 *   in flight  its bucket is being reduced, in place
 *   reduced    the same on all ranks; before more is added it is stashed, so that it is not averaged again, and it is
 *              added to the next sum when that is reduced
 *
 * A sweep begins the reduction of all buckets, always in the same order, so ranks stay in step whatever the order of
 * their gradients. It begins with the first complete gradient and ends with the pass, unless live graphs will add to
 * gradients: then it continues in the next pass, or the optimizer ends it. */

G_BEGIN_DECLS

#define EBB_REPLICA_NO_BUCKET G_MAXUINT

typedef struct
{
  char *name;
  EbbTensor *parameter;
  EbbTensor *stashed_grad; /* NULL: none */
  guint bucket;            /* EBB_REPLICA_NO_BUCKET: frozen */
  /* of the parameter when the buckets were made */
  EbbDType dtype;
  EbbDevice *device;
  guint is_trainable : 1;

  guint is_reduced : 1;
  guint in_flight : 1;
  guint is_ready : 1;  /* its gradient is complete; in a sweep */
  guint was_begun : 1; /* in this sweep */
  guint is_padded : 1; /* in flight as zeros, since this rank has no gradient */
} EbbReplicaEntry;

typedef struct
{
  GArray *members; /* numbers of entries */
  guint64 n_bytes;
  EbbWork *work;    /* NULL: not in flight */
  EbbTensor *flags; /* with @work, where unused parameters are allowed: [members], how many ranks have a gradient */
} EbbReplicaBucket;

typedef struct
{
  EbbParameterOwner base; /* first */
  int ref_count;
  EbbProcessGroup *group;
  EbbReplicaEntry *entries; /* in reverse order of registration, about that of backward */
  guint n_entries;
  GHashTable *by_parameter; /* numbers of entries */
  GArray *buckets;          /* of EbbReplicaBucket */
  guint64 bucket_bytes;
  EbbUnusedParameters unused_parameters;
  gboolean is_open;     /* a sweep has begun */
  guint next;           /* bucket of it */
  gboolean is_awaiting; /* the end of the pass */
  gboolean is_detached; /* the module was freed or unwrapped */
  /* for the report */
  guint64 n_sweeps, n_reductions, n_bytes;
  double seconds; /* waited */
} EbbReplica;

/* TRUE if there is a gradient that is neither reduced nor in flight. */
gboolean ebb_replica_entry_is_local (const EbbReplicaEntry *entry);

/* replicate-bucket.c */

/* Makes new buckets if parameters were frozen, unfrozen or converted since. */
void ebb_replica_update_buckets (EbbReplica *self);
/* Waits for a bucket that is in flight, and adds the stashed gradients. Calls the leaves' hooks if @notify. */
gboolean ebb_replica_finish_bucket (EbbReplica *self,
                                    guint bucket,
                                    gboolean notify,
                                    GError **error);
/* Begins the buckets of the sweep that are complete. */
gboolean ebb_replica_begin_ready (EbbReplica *self,
                                  GError **error);
/* Reduces all local gradients and ends the sweep. */
gboolean ebb_replica_end_sweep (EbbReplica *self,
                                gboolean in_backward,
                                GError **error);
void ebb_replica_close_sweep (EbbReplica *self);
void ebb_replica_clear_buckets (EbbReplica *self);

G_END_DECLS
