/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "nn/module-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"
#include "wrap/shard/layout-private.h"
#include "wrap/shard/options.h"

/* A unit is a sharded module with the parameters below it that no inner unit owns, or a bucket of a replicated module:
 * a unit of a group of one, whose parameters stay where they are. Each parameter is the same tensor all the time; what
 * changes is the memory that it points to:
 *
 *   sharded    at this rank's shard, with the shard's gradient, as an optimizer sees it
 *   unsharded  at its place in the full buffer, with the gradient of this rank's batch, which is not reduced yet
 *
 * The gradient of the other state is stashed. The full buffer has the birth and the version of the shard: unsharding is
 * no change, and a change of the shard between forward and backward is noticed. */

G_BEGIN_DECLS

typedef struct _EbbShardUnit EbbShardUnit;

/* The order in which the units of one root were last forwarded. */
typedef struct
{
  EbbShardUnit *root; /* NULL: it was freed */
  GPtrArray *units;   /* not owned: a unit that is freed removes itself */
  guint n;            /* how many of them the running forward has reached */
} EbbShardOrder;

/* The lists of a thread: which of its units wait for what. */
typedef struct
{
  GPtrArray *unsharded;   /* the units that are unsharded or unsharding */
  GPtrArray *forwarded;   /* the units whose gradients are to be reduced */
  EbbShardUnit *reducing; /* the unit whose reduction is in flight; a reference, or NULL */
  EbbShardOrder *last;    /* of the root that was last forwarded; NULL: none */
  gboolean at_end;        /* pass_ended () will be called */
  guint64 pass;           /* Number of the current backward pass, or of the next one between passes. Unique among all
                           threads. */
  gboolean has_gradients; /* this pass gave some */
  GPtrArray *orphans;     /* units whose last reference another thread has dropped; NULL: the thread has ended */
  gboolean has_taken;     /* some in the next one; atomic */
  GPtrArray *taken;       /* units that another thread has taken, which may be gone: compared with the lists alone */
} EbbShardThread;

/* The reduction of a unit's gradients, in flight. */
typedef struct
{
  guint n_buffers;
  EbbTensor **full; /* by buffer; NULL: nothing in it is trained */
  EbbTensor **shards;
  EbbTensor *flags; /* bf16 [ranks, entries]: 1 where this rank has a gradient; NULL: there is one rank, or all have */
  EbbTensor *flag_shard;
  gboolean *present; /* by entry: some rank has a gradient */
  EbbWork *work;
} EbbShardReduction;

typedef enum
{
  EBB_SHARD_SHARDED,
  EBB_SHARD_UNSHARDING, /* the all-gather is in flight */
  EBB_SHARD_UNSHARDED
} EbbShardState;

typedef struct
{
  EbbTensor *tensor;       /* the parameter */
  char *name;              /* from the unit's module: "attn.qkv.weight" */
  EbbTensor *shard;        /* a view of its elements in a buffer's shard */
  EbbTensor *stashed_grad; /* the gradient of the other state */
} EbbShardEntry;

/* One part of a collective: one parameter, or several flattened. */
typedef struct
{
  EbbTensor *shard; /* [counts[rank]]: all that stays when the unit is sharded */
  EbbTensor *full;  /* [sum of counts], while the unit is unsharded or unsharding, or cached; with one rank the shard */
  guint version;    /* of the shard when it was gathered */
} EbbShardBuffer;

struct _EbbShardUnit
{
  EbbParameterOwner base; /* first */
  int ref_count;
  EbbModuleWeak *module;
  char *name; /* its path when it was sharded, and its type */
  EbbProcessGroup *group;
  EbbProcessGroup *replicas; /* NULL: none */
  EbbShardLayout *layout;
  EbbDevice *device; /* where it computes */
  /* options */
  EbbReshard reshard;
  gboolean prefetch, lowers, offload;
  EbbDType compute_dtype; /* of the full parameters, if @lowers */
  int reduce_dtype;       /* -1: the gradient's */
  double predivide;

  EbbShardEntry *entries;
  guint n_entries;
  EbbShardBuffer *buffers; /* [layout->n_buffers] */
  EbbShardState state;
  gboolean is_in_place; /* a bucket: its parameters are their shards, and nothing is gathered */
  gboolean is_cached;   /* sharded, but the full buffers are still allocated */
  EbbWork *gathering;
  GPtrArray *borrowed; /* other units that own parameters of modules below this one */

  guint n_forwards;             /* that are running */
  guint n_summoned;             /* ebb_summon_full_params () */
  gboolean forwarded;           /* with gradients on, and nothing was reduced since */
  gboolean is_root;             /* its last forward was the outermost */
  gboolean has_siblings;        /* it shares its graph with the forwards of other roots */
  EbbShardThread *owner;        /* has it in its lists; NULL: no thread does */
  gboolean is_orphan;           /* the owner will free it */
  EbbShardOrder *own_order;     /* if it is a root */
  EbbShardOrder *order;         /* in which it was last forwarded; NULL: never */
  guint position;               /* in @order */
  EbbShardReduction *reduction; /* in flight; NULL: none */

  guint64 n_gathers, n_prefetches, n_reductions, gathered_bytes, reduced_bytes;
  double seconds; /* waited for reductions */

  /* Fails if a backward pass may not leave out a parameter that has no gradient; NULL: it may. */
  gboolean (*check_unused) (gpointer data,
                            GError **error);
  gpointer check_data;
  guint64 last_pass; /* Pass (EbbShardThread.pass) that last reduced this unit. */
};

/* The unit on @module itself, or NULL. Not a reference. */
static inline EbbShardUnit *
ebb_shard_unit_on (EbbModule *module)
{
  return (EbbShardUnit *) ebb_module_get_parameter_owner (module);
}

/* unit.c: a unit's parameters between sharded and unsharded; all but the queries are collective */
EbbShardUnit *ebb_shard_unit_ref (EbbShardUnit *self);
void ebb_shard_unit_unref (EbbShardUnit *self);
/* Frees what @entry has; the parameter has no owner any more. */
void ebb_shard_entry_clear (EbbShardUnit *self,
                            EbbShardEntry *entry);
/* Begins to gather a sharded unit, in the dtype of compute if @lowers. */
gboolean ebb_shard_unit_begin_gather (EbbShardUnit *self,
                                      gboolean lowers,
                                      GError **error);
/* If the gather fails, the unit is sharded again. */
gboolean ebb_shard_unit_finish_gather (EbbShardUnit *self,
                                       GError **error);
/* Begins to gather a sharded unit, which is unsharding then. */
gboolean ebb_shard_unit_begin_unshard (EbbShardUnit *self,
                                       GError **error);
gboolean ebb_shard_unit_unshard (EbbShardUnit *self,
                                 GError **error);
/* Frees the full buffers, cached or not; waits first if the unit is unsharding. */
gboolean ebb_shard_unit_reshard (EbbShardUnit *self,
                                 GError **error);
/* Keeps the full buffers as a cache: the next unshard gathers nothing, unless the shards have changed by then. */
gboolean ebb_shard_unit_reshard_cached (EbbShardUnit *self,
                                        GError **error);
/* TRUE if nodes of live graphs hold a parameter of the unit. */
gboolean ebb_shard_unit_is_used (const EbbShardUnit *self);
/* Of the full parameters. */
gint64 ebb_shard_unit_count_elements (const EbbShardUnit *self);
/* Copies @n elements of contiguous tensors, in their flattened order, between any devices and dtypes. */
gboolean ebb_shard_copy_elements (EbbTensor *source,
                                  gint64 source_begin,
                                  gint64 n,
                                  EbbTensor *target,
                                  gint64 target_begin,
                                  GError **error);

/* Waits for the reduction in flight and drops its result. */
void ebb_shard_unit_drop_reduction (EbbShardUnit *self);
void ebb_shard_reduction_free (EbbShardReduction *self);

/* unit.c: the lists of this thread, and the order of a root's units */
EbbShardThread *ebb_shard_get_thread (void);
/* Makes this thread the owner of the unit, which leaves the lists of another one for those of this one: the thread that
 * forwards or gathers a unit frees it. */
EbbShardThread *ebb_shard_take_thread (EbbShardUnit *self);
/* A unit is no longer sharded, or is sharded again. */
void ebb_shard_note_unsharded (EbbShardUnit *self,
                               gboolean unsharded);
/* A number that no other backward pass has. */
guint64 ebb_shard_make_pass (void);
/* Frees the units whose last reference another thread has dropped. */
void ebb_shard_free_orphans (EbbShardThread *self,
                             gboolean ends);
EbbShardOrder *ebb_shard_order_new (EbbShardUnit *root);
void ebb_shard_order_unref (EbbShardOrder *order);
/* Takes the unit out of its order. */
void ebb_shard_order_remove (EbbShardUnit *self);

/* gradients.c */
/* TRUE if a parameter has a gradient of this rank that was not reduced. */
gboolean ebb_shard_unit_has_gradients (EbbShardUnit *self);
/* Takes these gradients, zeros where there are none, and begins to reduce them. */
gboolean ebb_shard_unit_begin_reduce (EbbShardUnit *self,
                                      GError **error);
/* Waits for the reduction, and adds its result to the gradients of the shards. */
gboolean ebb_shard_unit_finish_reduce (EbbShardUnit *self,
                                       GError **error);

/* order.c: the forwards and the backward pass of a thread */
gboolean ebb_shard_unit_pre_forward (EbbShardUnit *self,
                                     GError **error);
gboolean ebb_shard_unit_post_forward (EbbShardUnit *self,
                                      GError **error);
gboolean ebb_shard_unit_pre_backward (EbbShardUnit *self,
                                      GError **error);
gboolean ebb_shard_unit_post_backward (EbbShardUnit *self,
                                       GError **error);
/* TRUE if this backward pass isn't @pass, which becomes the number of this one. */
gboolean ebb_shard_begins_pass (guint64 *pass);
/* This backward pass reduces the units in this order, whatever the order of their gradients. */
void ebb_shard_reduce_in_pass (GPtrArray *units);
/* Unshards the parameters in their own dtype until they are released. */
gboolean ebb_shard_unit_summon (EbbShardUnit *self,
                                GError **error);
gboolean ebb_shard_unit_release (EbbShardUnit *self,
                                 gboolean writeback,
                                 GError **error);
/* The unit that owns @parameter, or NULL; the entry's number in @entry. */
EbbShardUnit *ebb_shard_unit_of (EbbTensor *parameter,
                                 guint *entry);
extern const EbbParameterOwnerFuncs ebb_shard_unit_funcs;

/* parameters.c: making a unit */
EbbShardUnit *ebb_shard_unit_new (EbbModule *module,
                                  EbbProcessGroup *group,
                                  EbbFullyShardOptions *options,
                                  GError **error);
/* A unit of parameters that every rank of @replicas has; it takes over @entries, of EbbShardEntry. */
EbbShardUnit *ebb_shard_unit_new_bucket (const EbbParameterOwnerFuncs *funcs,
                                         EbbProcessGroup *replicas,
                                         GArray *entries,
                                         char *name);
/* Takes the full parameters out of the unit. Collective. */
gboolean ebb_shard_unit_dissolve (EbbShardUnit *self,
                                  GError **error);

/* Where an entry's gradient of this rank's batch is. */
static inline EbbTensor **
ebb_shard_full_grad (EbbShardUnit *self,
                     EbbShardEntry *entry)
{
  return self->state == EBB_SHARD_UNSHARDED ? &entry->tensor->grad : &entry->stashed_grad;
}

G_END_DECLS
