/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "dist/group/process-group-private.h"
#include "nn/module-private.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "tensor/thread-private.h"
#include "wrap/shard/options.h"
#include "wrap/shard/layout-private.h"

/* A unit: a module that was sharded, with the parameters below it that no unit further inside owns. It looks after
 * them: a parameter is the same tensor all the time, and what changes is where it points.
 *
 *   away     at this rank's shard, with the shard's gradient: what an optimizer sees
 *   here     at its place in what was gathered, with the gradient of this rank's batch, not yet reduced
 *
 * The gradient that belongs to the other state is kept aside. What was gathered has the birth and the version of the
 * shard: gathering is no change, and a change of the shard between forward and backward is seen. */

G_BEGIN_DECLS

#define EBB_SHARD_INTERCEPTOR "shard" /* the kind; its data is a unit */

typedef struct _EbbShardUnit EbbShardUnit;

/* The order in which the units of one root were last forwarded. */
typedef struct
{
  EbbShardUnit *root; /* NULL: it is gone */
  GPtrArray *units;   /* not owned: a unit that goes takes itself out */
  guint n;            /* of them in the forward that runs */
} EbbShardOrder;

typedef enum
{
  EBB_SHARD_AWAY,
  EBB_SHARD_COMING, /* the gather is under way */
  EBB_SHARD_HERE
} EbbShardState;

typedef struct
{
  EbbTensor *tensor; /* the parameter */
  char *name;        /* from the unit's module: "attn.qkv.weight" */
  EbbTensor *shard;  /* a view of its part of a piece */
  EbbTensor *aside;  /* the gradient of the other state */
} EbbShardEntry;

/* What moves in one part of a collective: one parameter, or all of them flattened. */
typedef struct
{
  EbbTensor *piece; /* [counts[rank]]: all that stays when the unit is away */
  EbbTensor *whole; /* [sum of counts], while the unit is here or coming, or cached; the piece itself where there is one
                     * rank */
  guint version;    /* of the piece when it was gathered */
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
  /* as the options were */
  EbbReshard reshard;
  gboolean prefetch, lowers, offload;
  EbbDType compute_dtype; /* of what is gathered, if @lowers */
  int reduce_dtype;       /* -1: the gradient's */
  double predivide;

  EbbShardEntry *entries;
  guint n_entries;
  EbbShardBuffer *buffers; /* as many as the layout has */
  EbbShardState state;
  gboolean is_cached; /* away, but what was gathered is still there */
  EbbWork *gathering;
  GPtrArray *borrowed; /* other units that own parameters of modules below this one */

  guint n_open;                         /* forwards that run now */
  guint n_summoned;                     /* ebb_summon_full_params () */
  gboolean forwarded;                   /* with gradients on, and nothing was reduced since */
  gboolean is_root;                     /* its last forward was the outermost */
  gboolean has_company;                 /* other forwards stand beside it in one graph, so that it is no root of all */
  struct _EbbShardThread *owner;        /* knows it in its lists; NULL: none does */
  gboolean is_orphan;                   /* the owner is to free it */
  EbbShardOrder *own_order;             /* if it is a root */
  EbbShardOrder *order;                 /* in which it was last forwarded; NULL: never */
  guint place;                          /* there */
  struct _EbbShardReduction *reduction; /* under way; NULL: none */

  guint64 n_gathers, n_prefetches, n_reductions, gathered_bytes, reduced_bytes;
};

/* The unit that owns @parameter, or NULL; the entry's number in @entry. */
EbbShardUnit *ebb_shard_unit_of (EbbTensor *parameter,
                                 guint *entry);
/* The unit on @module itself, or NULL. Not a reference. */
EbbShardUnit *ebb_shard_unit_on (EbbModule *module);
/* The units on @module and below it, outer ones first; the array holds references. */
GPtrArray *ebb_shard_units_below (EbbModule *module);

EbbShardUnit *ebb_shard_unit_new (EbbModule *module,
                                  EbbProcessGroup *group,
                                  EbbFullyShardOptions *options,
                                  GError **error);
EbbShardUnit *ebb_shard_unit_ref (EbbShardUnit *self);
void ebb_shard_unit_unref (EbbShardUnit *self);
/* What unref does at the end, on the right thread. */
void ebb_shard_unit_free (EbbShardUnit *self);

/* Begins to gather a unit that is away; it is coming then. Collective, as is all that waits for it. */
gboolean ebb_shard_unit_begin_gather (EbbShardUnit *self,
                                      GError **error);
/* Makes the unit be here. */
gboolean ebb_shard_unit_fetch (EbbShardUnit *self,
                               GError **error);
/* Frees what was gathered, cached or not; waits for it first if it is coming. */
gboolean ebb_shard_unit_reshard (EbbShardUnit *self,
                                 GError **error);
/* The same, but what was gathered is cached: the unit is away, and the next to ask for it gathers nothing, unless the
 * shards have changed by then. */
gboolean ebb_shard_unit_reshard_cached (EbbShardUnit *self,
                                        GError **error);
/* TRUE if nodes of live graphs hold a parameter of the unit. */
gboolean ebb_shard_unit_is_used (const EbbShardUnit *self);
/* Makes the parameters whole in their own type, and the unit stay here, until it is released. */
gboolean ebb_shard_unit_summon (EbbShardUnit *self,
                                GError **error);
gboolean ebb_shard_unit_release (EbbShardUnit *self,
                                 gboolean writeback,
                                 GError **error);
/* FALSE with @error if @call would come in between a forward and its backward, or such. */
gboolean ebb_shard_unit_check_idle (EbbShardUnit *self,
                                    const char *call,
                                    GError **error);
/* Takes the parameters out of the unit, whole. Collective. */
gboolean ebb_shard_unit_dissolve (EbbShardUnit *self,
                                  GError **error);
gint64 ebb_shard_unit_count_elements (const EbbShardUnit *self);

/* shard-gradients.c */
/* TRUE if a parameter has a gradient of this rank that was not reduced. */
gboolean ebb_shard_unit_has_gradients (EbbShardUnit *self);
/* Takes these gradients, zeros where there are none, and begins to reduce them. */
gboolean ebb_shard_unit_begin_reduce (EbbShardUnit *self,
                                      GError **error);
/* Waits for that, and adds what came to the gradients of the shards. */
gboolean ebb_shard_unit_finish_reduce (EbbShardUnit *self,
                                       GError **error);
void ebb_shard_unit_drop_reduction (EbbShardUnit *self);

/* shard-order.c: the forwards and the backward pass of a thread */
/* Before and after a forward of @self. */
gboolean ebb_shard_open (EbbShardUnit *self,
                         GError **error);
gboolean ebb_shard_close (EbbShardUnit *self,
                          GError **error);
/* The owner's functions in a backward pass. */
gboolean ebb_shard_meet (EbbShardUnit *self,
                         GError **error);
gboolean ebb_shard_leave (EbbShardUnit *self,
                          GError **error);
/* Reduces and reshards, whatever still uses the unit. */
gboolean ebb_shard_unit_settle (EbbShardUnit *self,
                                GError **error);
/* TRUE if another thread is to free the unit, whose last reference is gone. */
gboolean ebb_shard_leave_to_owner (EbbShardUnit *self);
EbbShardOrder *ebb_shard_order_new (EbbShardUnit *root);
/* The unit goes. */
void ebb_shard_forget_unit (EbbShardUnit *self);
/* A unit was gathered, or went away. */
void ebb_shard_note_here (EbbShardUnit *self,
                          gboolean here);
/* The units whose forward runs now, outermost first, with references; NULL: none. For what will run a part of these
 * again: it fetches those that a graph still uses, and the last one in any case if it @needs_last. */
GPtrArray *ebb_shard_get_open_units (void);
gboolean ebb_shard_fetch_units (GPtrArray *units,
                                gboolean needs_last,
                                GError **error);

/* What a unit does is no part of the forward that it happens in: it is neither recorded, nor watched, nor stopped with
 * it. ebb_thread_restore_modes () ends it. */
EbbThreadModes ebb_shard_begin_quiet (void);

/* Where the gradients of an entry are: of this rank's batch, and of its shard. */
static inline EbbTensor **
ebb_shard_get_whole_grad_place (EbbShardUnit *self,
                                EbbShardEntry *entry)
{
  return self->state == EBB_SHARD_HERE ? &entry->tensor->grad : &entry->aside;
}

static inline EbbTensor **
ebb_shard_get_shard_grad_place (EbbShardUnit *self,
                                EbbShardEntry *entry)
{
  return self->state == EBB_SHARD_HERE ? &entry->aside : &entry->tensor->grad;
}

G_END_DECLS
