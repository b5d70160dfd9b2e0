/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/thread-private.h"
#include "wrap/checkpoint/slot-private.h"
#include "wrap/checkpoint/target-private.h"

/* A frame is one checkpointed forward whose backward is still to come. It stands at the door of saved tensors while the
 * forward runs, and judges what a node wants to keep by the birth of its storage:
 *
 *   younger than the frame    made inside: becomes a numbered slot, a note of what it looked like; the data goes
 *   older                     an argument, a parameter, a buffer, something gathered or closed over: passes once
 * through the door outside and is shared with the frame's arguments
 *
 * When backward first asks for a slot, the forward is run again from the arguments, with this frame alone at the door,
 * and the slots fill in the same order. A frame is kept alive by the handles that it gave to nodes, and by nothing
 * else; it never holds its module. */

G_BEGIN_DECLS

/* A tensor behind the door outside. */
typedef struct
{
  EbbSavedTensor saved;
  EbbView view; /* as it came in */
  gint64 offset;
  guint64 birth;
  guint64 n_bytes;
  gboolean is_parameter; /* or a buffer: there anyway */
  EbbTensor *cached;     /* unpacked, until the backward pass ends or nobody wants it */
  guint version;         /* of its storage then */
} EbbOuter;

/* A view of one of these. */
typedef struct
{
  guint outer;
  EbbView view;
  gint64 offset; /* from the outer's first element */
  gboolean needs_grad;
  guint64 checksum; /* of an argument, with EBB_DETERMINISM_CHECK_VALUES */
} EbbPart;

/* The results of one op that a policy keeps. */
typedef struct
{
  const EbbOp *op;
  guint ordinal;
  guint n_outputs;
  guint pruned; /* bit mask of outputs that nothing will need, and that were let go after all */
  struct
  {
    EbbSavedTensor saved;
    const char *start; /* where it lay in the forward */
    guint64 n_bytes;
  } outputs[EBB_OP_MAX_OUTPUTS];
  gboolean is_placeholder; /* there was nothing to keep: the op runs again */
} EbbKept;

/* A storage older than the frame, as an op first read it. */
typedef struct
{
  guint64 birth;
  guint version;
} EbbRead;

/* Where a generator was. */
typedef struct
{
  EbbGenerator *generator;
  guint64 seed, offset;
} EbbDraw;

#define EBB_TYPE_CHECKPOINT_FRAME (ebb_checkpoint_frame_get_type ())
G_DECLARE_FINAL_TYPE (EbbCheckpointFrame, ebb_checkpoint_frame, EBB, CHECKPOINT_FRAME, EbbSavedTensorHooks)

typedef struct
{
  EbbOpObserver observer;
  EbbCheckpointFrame *frame;
} EbbFrameWatch;

struct _EbbCheckpointFrame
{
  EbbSavedTensorHooks parent_instance;

  EbbCheckpointTarget *target;
  EbbArgs *args;      /* with an empty tensor in the place of each tensor */
  EbbModes modes;     /* of the forward, for the recompute */
  guint64 mark;       /* births from here on are inside */
  GArray *outers;     /* of EbbOuter */
  GArray *parts;      /* of EbbPart: the tensors in args, in order */
  GArray *slots;      /* of EbbSlot */
  GArray *kept;       /* of EbbKept, by ordinal */
  GArray *draws;      /* of EbbDraw: before the forward */
  GArray *current;    /* of EbbDraw: before the recompute, while it runs */
  GArray *provided;   /* of guint64: births of kept results that stand in for fresh ones */
  GArray *reads;      /* of EbbRead */
  GArray *touched;    /* addresses that the op that runs now touches */
  GArray *open;       /* results that are kept, and that nobody was seen to read */
  GPtrArray *owners;  /* of parameters, whose forward was running; NULL: none */
  GPtrArray *devices; /* that are synchronised at the boundaries; NULL: nothing is done there */
  gint64 begun;       /* when the forward or backward that runs began, in microseconds; 0: none is watched */
  gpointer passing;   /* tells the thread of the backward pass that @begun is about */
  GArray *modules;    /* with their training flags, see frame-modules.c; NULL: none */
  EbbRematerializationLog rematerialization_log;
  GError *policy_error;         /* why the policy failed in the forward; NULL: it did not */
  EbbArgs *call_args;           /* during the forward, not owned */
  EbbSavedTensorHooks *outside; /* the door outside, during the forward, not owned */
  guint n_ops;                  /* seen in this run of the forward */
  guint n_products;             /* matrix products among them */
  guint n_ops_needed;           /* before the last slot was packed */
  guint n_wanted;               /* handles that nodes still hold */
  guint64 saved_bytes;          /* as tallied: held outside... */
  guint64 dropped_bytes;        /* and let go, until they are first recomputed */
  guint next_slot, next_part, next_kept;
  guint n_slots_needed; /* by this recompute: up to the last one that is wanted */
  gboolean recomputing;
  gboolean is_counted;   /* the forward counters are up */
  gboolean stopped;      /* this recompute has all it needs */
  gboolean has_pruned;   /* some of what is kept, so that a recompute must stop early */
  gboolean op_has_run;   /* the op that is number n_ops, of which a frame inside has been told alone */
  gboolean was_provided; /* the op that runs now: its result was kept */
  gboolean at_end;       /* the end of the backward pass will call */
  gboolean goes_back;    /* the forward runs a backward pass itself, through what it has made so far */
  EbbFrameWatch watch;
};

/* The slot of checkpointing: EBB_CHECKPOINT_INSIDE in the forward of a wrapped module, and EBB_CHECKPOINT_DISABLED for
 * each ebb_push_checkpointing_disabled(). */
#define EBB_CHECKPOINT_INSIDE 1u
#define EBB_CHECKPOINT_DISABLED 2u
extern guint ebb_checkpoint_slot;

#define ebb_frame_outer(frame, i) (&g_array_index ((frame)->outers, EbbOuter, i))
#define ebb_frame_slot(frame, i) (&g_array_index ((frame)->slots, EbbSlot, i))
#define ebb_frame_kept(frame, i) (&g_array_index ((frame)->kept, EbbKept, i))

/* Runs the target under a new frame. @inside is NULL for functions. */
EbbArgs *ebb_checkpoint_frame_run (EbbCheckpointTarget *target,
                                   const EbbForwardChain *inside,
                                   EbbArgs *args,
                                   GError **error);

/* frame-outer.c: what is older than the frame */
/* Through the door outside. */
gboolean ebb_frame_save_outside (EbbCheckpointFrame *self,
                                 EbbSavedTensor *saved,
                                 const EbbOp *op,
                                 EbbTensor *tensor,
                                 GError **error);
gboolean ebb_frame_find_part (EbbCheckpointFrame *self,
                              EbbTensor *tensor,
                              EbbPart *part,
                              GError **error);
EbbTensor *ebb_frame_get_part (EbbCheckpointFrame *self,
                               const EbbPart *part,
                               GError **error);
gboolean ebb_frame_save_args (EbbCheckpointFrame *self,
                              GError **error);
EbbArgs *ebb_frame_restore_args (EbbCheckpointFrame *self,
                                 GError **error);
/* FALSE with @error if a forward that was run again has changed what it began with. */
gboolean ebb_frame_check_outers (EbbCheckpointFrame *self,
                                 GError **error);

/* frame-kept.c: what a policy keeps */
gboolean ebb_frame_keep_results (EbbCheckpointFrame *self,
                                 EbbOpCall *call,
                                 GError **error);
/* Puts what was kept of @call's results in their place, if it was; *provided says whether. */
gboolean ebb_frame_provide_results (EbbCheckpointFrame *self,
                                    EbbOpCall *call,
                                    gboolean *provided,
                                    GError **error);
/* Lets the results of ops from number @from_ordinal on go. */
void ebb_frame_drop_kept (EbbCheckpointFrame *self,
                          guint from_ordinal);
/* What was touched since the last op whose results are kept, a recompute will touch again. */
void ebb_frame_flush_touched (EbbCheckpointFrame *self);
/* Lets results go that no recompute will read. */
void ebb_frame_prune_kept (EbbCheckpointFrame *self);
/* The same when the forward is done, and those that come after the last thing that backward needs. */
void ebb_frame_finish_kept (EbbCheckpointFrame *self);
gboolean ebb_frame_is_among_kept (EbbCheckpointFrame *self,
                                  guint64 birth);
guint64 ebb_frame_count_kept (EbbCheckpointFrame *self);

/* frame-watch.c: ops and generators seen on the way */
void ebb_frame_watch_init (EbbCheckpointFrame *self);
void ebb_frame_note_draw (EbbCheckpointFrame *self,
                          EbbGenerator *generator);
void ebb_frame_clear_draw (gpointer draw);
/* Tells @self and the frames open inside it that a storage of this birth is as good as a fresh result. */
void ebb_frame_note_provided (EbbCheckpointFrame *self,
                              guint64 birth);

/* Puts the generators of @draws, of EbbDraw, where they were. */
void ebb_frame_put_back_generators (GArray *draws);

/* recompute.c */
gboolean ebb_frame_recompute (EbbCheckpointFrame *self,
                              GError **error);

/* frame-modules.c: counters and training flags */
void ebb_frame_enter_modules (EbbCheckpointFrame *self,
                              GPtrArray *modules);
void ebb_frame_count_up (EbbCheckpointFrame *self);
void ebb_frame_count_down (EbbCheckpointFrame *self);
void ebb_frame_swap_training (EbbCheckpointFrame *self);

/* frame-boundary.c: devices are synchronised and times are taken where a forward and its backward begin and end */
gboolean ebb_frame_begin_forward (EbbCheckpointFrame *self,
                                  GPtrArray *modules,
                                  GError **error);
/* Gives @result back, or NULL with @error set. */
EbbArgs *ebb_frame_end_forward (EbbCheckpointFrame *self,
                                EbbArgs *result,
                                GError **error);
gboolean ebb_frame_begin_backward (EbbCheckpointFrame *self,
                                   GError **error);
/* No node needs it any more: its backward ends with the node that runs. */
void ebb_frame_leave_backward (EbbCheckpointFrame *self);
gboolean ebb_frame_end_backward (EbbCheckpointFrame *self,
                                 GError **error);

/* frame.c */
/* Tells the run of one forward, or of one recompute, from all others: ebb_modes.frame. */
guint64 ebb_frame_take_number (void);
void ebb_frame_drop_values (EbbCheckpointFrame *self);
EbbDeterminismCheck ebb_frame_get_check (EbbCheckpointFrame *self);
/* Has what was recomputed or unpacked dropped when the backward pass of this thread ends. */
void ebb_frame_call_at_end (EbbCheckpointFrame *self);

G_END_DECLS
