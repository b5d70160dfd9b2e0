/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group.h"
#include "dist/group/rendezvous-private.h"
#include "tensor/backend/kernel-private.h"
#include "tensor/error-private.h"

/* The interface of groups for wrappers, and that of engines: classes that derive from EbbProcessGroup. */

G_BEGIN_DECLS

/* -- for callers -------------------------------------------------------------------------------------------------- */

/* One tensor of a collective. All contiguous, of one dtype. */
typedef struct
{
  /* The shards of all ranks in the order of the ranks. all_reduce, broadcast, send, recv: the tensor. */
  EbbTensor *full;
  /* This rank's: source of a gather, result of a reduce-scatter; may lie inside @full at its place. all_to_all: the
   * result, as large as @full and apart from it. NULL elsewhere, and where this rank has no elements. */
  EbbTensor *shard;
  const gint64 *counts; /* [size] elements of each rank's shard; any may be 0; NULL: equal */
} EbbCollectivePart;

/* One collective over several tensors: counted as one call. Copies @parts, counts and @purpose, holds the tensors until
 * it is waited for. A reduce_scatter only reads @full, except for a shard that lies inside it.
 *
 * @purpose: (nullable): as in "gathering h.2 (EbbTransformerBlock)". Ranks compare it, so that they don't confuse two
 * calls of equal shapes. */
EbbWork *ebb_process_group_start (EbbProcessGroup *self,
                                  EbbCollective which,
                                  EbbReduceOp op,
                                  const EbbCollectivePart *parts,
                                  guint n_parts,
                                  guint peer,
                                  const char *purpose,
                                  GError **error);
/* Starts one and waits for it, on the caller's thread if nothing is queued. */
gboolean ebb_process_group_run (EbbProcessGroup *self,
                                EbbCollective which,
                                EbbReduceOp op,
                                const EbbCollectivePart *parts,
                                guint n_parts,
                                guint peer,
                                const char *purpose,
                                GError **error);
/* Takes this rank out of the group: every later call fails with @reason, here and, where the engine can report it, on
 * the other ranks. */
void ebb_process_group_fail (EbbProcessGroup *self,
                             const GError *reason);
/* How long a work took that is done, waiting for other ranks included. */
double ebb_work_get_seconds (EbbWork *work);
/* Waits until all that was started is done; reports no failure. */
void ebb_process_group_flush (EbbProcessGroup *self);

/* -- for engines --------------------------------------------------------------------------------------------------- */

/* One tensor of a call, in memory that the engine can reach. */
typedef struct
{
  EbbDType dtype;
  void *full;                 /* [n_elements] */
  void *shard;                /* [counts[rank]]; NULL where there is none */
  gint64 n_elements;          /* of @full */
  const gint64 *counts;       /* [size] elements of each shard; never NULL: without shards an even split */
  const gint64 *starts;       /* [size + 1] where each shard begins in @full, in elements */
  gint64 shape[EBB_MAX_DIMS]; /* of @full, for messages */
  guint n_dims;
} EbbCollectiveBuffer;

typedef struct
{
  EbbCollective which;
  EbbReduceOp op;    /* of all_reduce and reduce_scatter; else SUM */
  guint peer;        /* root, to, from; else 0 */
  guint64 sequence;  /* this rank's number of the call in this group, from 1 */
  guint64 signature; /* equal on all ranks iff they call the same; for send and recv: iff the tensors fit */
  /* NULL: the memory is the host's; else the device that the engine reaches, and get_workspace () bytes of its memory,
   * which are the call's until its work is done. */
  EbbDevice *device;
  void *workspace;
  guint n_parts;
  const EbbCollectiveBuffer *parts;
  gboolean is_announcement; /* another engine moves the bytes: only check that all ranks call the same */
  const char *purpose;      /* (nullable): in the signature and in the call's text */
} EbbCollectiveCall;

typedef struct
{
  /* Does one call to its end; on the caller's thread or the group's, one at a time. FALSE with @error set
   * (EBB_ERROR_PROCESS_GROUP; the name of the own call is put before it by the group): the group is then broken.
   *
   * With call->device, on the thread that started the call, so that all groups of a device enqueue in the order of the
   * program: enqueues the work to the device's EBB_STREAM_COLLECTIVE and returns. The group has ordered that after what
   * was enqueued for computing, and lets computing wait for it when somebody waits for the call. */
  gboolean (*run) (EbbProcessGroup *self,
                   const EbbCollectiveCall *call,
                   GError **error);
  /* A group of the ranks members[0 .. n_members), of which this one is members[rank]; called at the same time on all
   * ranks of @self, with nothing queued. @color as given by the caller. */
  EbbProcessGroup *(*split) (EbbProcessGroup *self,
                             guint color,
                             const guint *members,
                             guint n_members,
                             guint rank,
                             GError **error);
  /* Reaches the memory of @device itself, by a native stream of it; NULL: the host's alone. */
  gboolean (*reaches) (EbbProcessGroup *self,
                       EbbDevice *device);
  /* Tensors that it doesn't reach are gathered and broadcast, and refused for all else. */
  gboolean moves_host_only;
  /* Bytes of the device's memory that @call needs beside its tensors; NULL: none. */
  gsize (*get_workspace) (EbbProcessGroup *self,
                          const EbbCollectiveCall *call);
  /* Called on the group's thread now and then while enqueued work is not done. FALSE with @error set: it never will
   * be. */
  gboolean (*check) (EbbProcessGroup *self,
                     GError **error);
  /* Reports to the others that this rank has failed with @reason, and ends what is enqueued: of the latter the device
   * reports @reason too. NULL: the engine can't. */
  void (*fail) (EbbProcessGroup *self,
                const GError *reason);
} EbbProcessGroupFuncs;

/* An engine's class sets klass->funcs to its EbbProcessGroupFuncs, makes objects with the construct properties "rank",
 * "size", "backend" and "name", and frees what it has in finalize (), not in dispose (): calls may run until then. */

/* dest[i] = the reduction of sources[0 .. n)[i], in that order; f32 for 16-bit floats, 64 bits for integers. @dest may
 * be one of the sources. */
void ebb_collective_reduce (void *dest,
                            const void *const *sources,
                            guint n,
                            gsize n_elements,
                            EbbDType dtype,
                            EbbReduceOp op);
/* Replaces the f64 of @values (i64 [n], see kernel-private.h) by their sums over the ranks, or the largest, in the
 * order of the ranks, so that all have the same bits. On a device nothing waits unless the engine does. */
gboolean ebb_process_group_reduce_norms (EbbProcessGroup *self,
                                         EbbReduceKind op,
                                         EbbTensor *values,
                                         const char *purpose,
                                         GError **error);
/* "all_reduce (sum) of f32 [2, 3]", "all_gather of f32 [32] for gathering h.2 (EbbTransformerBlock)"; a long purpose is
 * shortened, so that it fits what an engine sends. */
char *ebb_collective_call_to_string (const EbbCollectiveCall *call);
const char *ebb_collective_get_name (EbbCollective which);
/* Of a call of a group of @size ranks, see EbbCollectiveCall. */
guint64 ebb_collective_get_signature (const EbbCollectiveCall *call,
                                      guint size);

static inline gboolean
ebb_collective_is_pair (EbbCollective which)
{
  return which == EBB_COLLECTIVE_SEND || which == EBB_COLLECTIVE_RECV;
}

static inline gboolean
ebb_collective_reduces (EbbCollective which)
{
  return which == EBB_COLLECTIVE_ALL_REDUCE || which == EBB_COLLECTIVE_REDUCE_SCATTER;
}

/* The message of a rank to the others before it runs a call, in engines without shared memory. It is small enough for
 * any network to send at once. */
typedef struct
{
  guint32 kind; /* the engine's own */
  guint32 which, peer, padding;
  guint64 sequence, signature;
  char text[480];
} EbbAnnouncement;

void ebb_collective_announce (const EbbCollectiveCall *call,
                              EbbAnnouncement *announcement);
/* FALSE with @error set unless @other, of @other_rank, is the same call as @call of @rank, or its counterpart. */
gboolean ebb_collective_check_announcement (const EbbCollectiveCall *call,
                                            guint rank,
                                            const EbbAnnouncement *other,
                                            guint other_rank,
                                            GError **error);

/* -- for engines that are modules ---------------------------------------------------------------------------------- */

/* ebb-process-group-NAME.so is not linked to the library, which passes it the functions that it needs. It returns the
 * group of all ranks that were started together. */
#define EBB_PROCESS_GROUP_VERSION 3
#define EBB_PROCESS_GROUP_MODULE_SYMBOL "ebb_process_group_open_v1"

typedef struct
{
  guint version;
  GType (*get_type) (void); /* EbbProcessGroup's */
  __typeof__ (ebb_error_set) *error_set;
  gsize (*get_dtype_size) (EbbDType dtype);
  guint (*get_rank) (EbbProcessGroup *group);
  guint (*get_size) (EbbProcessGroup *group);
  double (*get_timeout) (EbbProcessGroup *group);
  __typeof__ (ebb_collective_reduce) *reduce;
  char *(*call_to_string) (const EbbCollectiveCall *call);
  __typeof__ (ebb_collective_announce) *announce;
  __typeof__ (ebb_collective_check_announcement) *check_announcement;
  const char *(*get_name) (EbbProcessGroup *group);
  guint (*count_mpi_processes) (void);   /* 0: MPI didn't start this process */
  void (*set_n_threads) (int n_threads); /* of the calling thread, unless the environment says how many */
  __typeof__ (ebb_rendezvous_find_rank) *find_rank;
  __typeof__ (ebb_rendezvous_spread) *spread;
  /* The group of another module, for those that need it to find each other; its run () is called by hand. */
  EbbProcessGroup *(*load) (const char *name,
                            GError **error);
} EbbProcessGroupHost;

extern const EbbProcessGroupHost ebb_process_group_host;

typedef EbbProcessGroup *(*EbbProcessGroupOpen) (const EbbProcessGroupHost *host,
                                                 GError **error);

/* How many processes mpirun or Slurm started together, by the environment; 0: neither started this one. */
guint ebb_process_group_count_mpi_processes (void);
/* The group of all ranks, from the module of that name. */
EbbProcessGroup *ebb_process_group_load (const char *name,
                                         GError **error);

/* -- the engines within -------------------------------------------------------------------------------------------- */

EbbProcessGroup *ebb_single_group_new (void);
/* Sets the default group of this thread; takes a reference. NULL: the process' default. */
void ebb_process_group_set_thread_default (EbbProcessGroup *group);
/* Of a thread of ebb_run_ranks (); NULL elsewhere. Not owned. */
EbbProcessGroup *ebb_process_group_get_thread_default (void);
/* Whether get_default returns a group that was made, not the stand-in. */
gboolean ebb_process_group_is_initialised (void);
/* The seed of a rank, where rank 0 has @seed. */
guint64 ebb_get_rank_seed (guint64 seed,
                           guint64 rank);

G_END_DECLS
