/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"
#include "tensor/autograd/op-private.h"
#include "tensor/autograd/rematerialization-private.h"
#include "tensor/error-private.h"
#include "tensor/thread-private.h"
#include "wrap/checkpoint/target-private.h"

/* A frame is one checkpointed forward whose backward is still to come. While the forward runs, its saved tensors are
 * packed by the frame, which looks at the birth of a tensor's storage:
 *
 *   younger than the frame    it was made inside: it becomes a slot, which describes the tensor, and its data is freed
 *   older                     it is a frame input, such as an argument, a parameter or something closed over: it is
 *                             saved once through the hooks outside, for the arguments and for all nodes
 *
 * When backward first asks for a slot, the frame runs the forward again from the arguments, packs its saved tensors
 * alone, and fills the slots in the same order. Results that a policy saves are restored instead of computed. The
 * packed handles that nodes hold keep a frame alive, and nothing else; it never holds its module. */

G_BEGIN_DECLS

/* A tensor from outside the frame that the forward needs. */
typedef struct
{
  EbbSavedTensor saved; /* through the hooks outside */
  EbbTensor *parameter; /* that it is, a reference; NULL: none */
  EbbStorage *storage;  /* that it came in, to compare; may be gone */
  EbbView view;         /* as it came in */
  gint64 offset;
  guint64 n_bytes;
  gboolean is_there;   /* a parameter or buffer, which nothing saves */
  EbbTensor *unpacked; /* until the backward pass ends; NULL: not yet */
  guint version;       /* of its storage then */
} EbbFrameInput;

/* A view of one. */
typedef struct
{
  guint input;
  gboolean is_parameter; /* the input itself, as its owner gives it in backward: the rest is not used */
  EbbView view;
  gint64 offset; /* from the input's first element */
  gboolean needs_grad;
  guint64 checksum; /* of an argument, with EBB_DETERMINISM_CHECK_VALUES */
} EbbInputView;

/* How a tensor that was made inside the frame looked, and its value after the recompute. */
typedef struct
{
  EbbView view; /* data unused */
  EbbDevice *device;
  const EbbOp *op;  /* that saved it */
  guint64 birth;    /* of its storage, and... */
  guint64 n_bytes;  /* its size */
  guint64 checksum; /* with EBB_DETERMINISM_CHECK_VALUES */
  guint version;    /* of the storage, when the value was saved again */
  gint64 offset;
  guint n_wanted; /* nodes that may still ask for it */
  guint n_taken;  /* how many of them have asked since it was filled */
  guint n_fills;
  guint64 again; /* birth of the recomputed storage */
  EbbTensor *value;
} EbbFrameSlot;

/* The results of one op that a policy saves. */
typedef struct
{
  const EbbOp *op;
  guint ordinal;
  guint n_outputs;
  guint pruned; /* bit mask of outputs that nothing will need, and that were freed after all */
  struct
  {
    EbbSavedTensor saved;
    const char *start; /* where it lay in the forward */
    guint64 n_bytes;
  } outputs[EBB_OP_MAX_OUTPUTS];
  gboolean is_placeholder; /* there was nothing to save: the op runs again */
} EbbSavedResult;

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
  EbbOpObserver base;
  EbbCheckpointFrame *frame;
} EbbFrameObserver;

struct _EbbCheckpointFrame
{
  EbbSavedTensorHooks parent_instance;

  EbbCheckpointTarget *target;
  EbbArgs *args;      /* with an empty tensor in the place of each tensor */
  EbbModes modes;     /* of the forward, for the recompute */
  guint64 mark;       /* births from here on are inside */
  GArray *inputs;     /* of EbbFrameInput */
  GArray *arg_views;  /* of EbbInputView: the tensors in args, in order */
  GArray *slots;      /* of EbbFrameSlot */
  GArray *results;    /* of EbbSavedResult, by ordinal */
  GArray *draws;      /* of EbbDraw: before the forward */
  GArray *current;    /* of EbbDraw: before the recompute, while it runs */
  GArray *cached;     /* of guint64: births of saved results that a recompute takes for fresh ones */
  GArray *reads;      /* of EbbRead */
  GArray *touched;    /* addresses that the op that runs now touches */
  GArray *unread;     /* saved results that nothing was seen to read */
  GPtrArray *owners;  /* of parameters, whose forward was running; NULL: none */
  GPtrArray *devices; /* that are synchronised at the boundaries; NULL: nothing is done there */
  gint64 begun;       /* when the forward or backward that runs began, in microseconds; 0: neither is timed */
  gpointer passing;   /* the thread of the backward pass that @begun is about */
  GArray *modules;    /* with their training flags, see frame-boundary.c; NULL: none */
  EbbRematerializationLog rematerialization_log;
  GError *policy_error;         /* why the policy failed in the forward; NULL: it did not */
  EbbArgs *call_args;           /* during the forward, not owned */
  EbbSavedTensorHooks *outside; /* the hooks outside, during the forward, not owned */
  guint n_ops;                  /* seen in this run of the forward */
  guint n_products;             /* matrix products among them */
  guint n_ops_needed;           /* before the last slot was packed */
  guint n_wanted;               /* packed handles that nodes still hold */
  guint64 saved_bytes;          /* as tallied: saved outside... */
  guint64 dropped_bytes;        /* and freed, until they are first recomputed */
  guint next_slot, next_arg, next_result;
  guint n_slots_needed; /* by this recompute: up to the last one that is wanted */
  gboolean recomputing;
  gboolean is_counted; /* the forward counters are up */
  gboolean stopped;    /* this recompute has all it needs */
  gboolean has_pruned; /* some saved results, so that a recompute must stop early */
  gboolean op_has_run; /* the op that is number n_ops, which only an inner frame knows */
  gboolean was_cached; /* the op that runs now: its result was saved */
  gboolean at_end;     /* the end of the backward pass will call */
  gboolean goes_back;  /* the forward runs a backward pass itself, through what it has made so far */
  EbbFrameObserver observer;
};

/* The slot of checkpointing: EBB_CHECKPOINT_INSIDE in the forward of a wrapped module, and EBB_CHECKPOINT_DISABLED for
 * each ebb_push_checkpointing_disabled(). */
#define EBB_CHECKPOINT_INSIDE 1u
#define EBB_CHECKPOINT_DISABLED 2u
extern guint ebb_checkpoint_slot;

#define ebb_frame_input(frame, i) (&g_array_index ((frame)->inputs, EbbFrameInput, i))
#define ebb_frame_slot(frame, i) (&g_array_index ((frame)->slots, EbbFrameSlot, i))
#define ebb_frame_result(frame, i) (&g_array_index ((frame)->results, EbbSavedResult, i))

/* Messages about a recompute that differs end with this. */
#define EBB_RECOMPUTE_CAUSES                                                                                       \
  "was an input changed in place, are there random numbers from outside Ebb's generators, or a branch on a state " \
  "that changes?"

/* Runs the target under a new frame. @inside is NULL for functions. */
EbbArgs *ebb_checkpoint_frame_run (EbbCheckpointTarget *target,
                                   const EbbForwardChain *inside,
                                   EbbArgs *args,
                                   GError **error);

/* frame-saved.c: tensors from outside the frame */
gboolean ebb_frame_take_input (EbbCheckpointFrame *self,
                               EbbTensor *tensor,
                               EbbInputView *view,
                               GError **error);
EbbTensor *ebb_frame_get_input (EbbCheckpointFrame *self,
                                const EbbInputView *view,
                                GError **error);
gboolean ebb_frame_save_args (EbbCheckpointFrame *self,
                              GError **error);
EbbArgs *ebb_frame_restore_args (EbbCheckpointFrame *self,
                                 GError **error);
/* FALSE with @error if the recompute has changed an input. */
gboolean ebb_frame_check_inputs (EbbCheckpointFrame *self,
                                 GError **error);

/* frame-saved.c: slots of tensors that were made inside */
/* 64 bits over the values in row-major order, whatever the strides; 0: there are none, as in a placeholder. */
guint64 ebb_slot_checksum (EbbTensor *tensor);
void ebb_slot_describe (EbbFrameSlot *slot,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check);
/* Fills the slot with the recomputed @tensor; FALSE with EBB_ERROR_RECOMPUTE if it is not what it was. */
gboolean ebb_slot_fill (EbbFrameSlot *slot,
                        guint index,
                        EbbTensor *tensor,
                        EbbDeterminismCheck check,
                        GError **error);
/* TRUE if @tensor is the slot's tensor of the forward or, if @again, of the recompute: it needs no other slot. */
gboolean ebb_slot_is_of (const EbbFrameSlot *slot,
                         EbbTensor *tensor,
                         gboolean again);
/* The value, which stays in the slot if @retain, or until all nodes that may ask have asked. */
EbbTensor *ebb_slot_take (EbbFrameSlot *slot,
                          gboolean retain,
                          GError **error);
static inline void
ebb_slot_clear (EbbFrameSlot *slot)
{
  if (slot->value == NULL)
    return;
  ebb_storage_drop_saved (slot->value->storage);
  g_clear_pointer (&slot->value, ebb_tensor_unref);
}

/* frame-saved.c: results that a policy saves */
gboolean ebb_frame_save_results (EbbCheckpointFrame *self,
                                 EbbOpCall *call,
                                 GError **error);
/* Restores the results of @call, and sets @cached, if they were saved. */
gboolean ebb_frame_restore_results (EbbCheckpointFrame *self,
                                    EbbOpCall *call,
                                    gboolean *cached,
                                    GError **error);
/* Frees the results of ops from number @from_ordinal on. */
void ebb_frame_drop_results (EbbCheckpointFrame *self,
                             guint from_ordinal);
/* A recompute will read again what was touched since the last op whose results are saved. */
void ebb_frame_flush_touched (EbbCheckpointFrame *self);
/* Frees results that no recompute will read. */
void ebb_frame_prune_results (EbbCheckpointFrame *self);
/* The same when the forward is done, and results after the last one that backward needs. */
void ebb_frame_finish_results (EbbCheckpointFrame *self);
gboolean ebb_frame_is_saved_result (EbbCheckpointFrame *self,
                                    guint64 birth);
guint64 ebb_frame_count_saved_results (EbbCheckpointFrame *self);

/* frame-observer.c: the ops and generators of the forward */
void ebb_frame_observer_init (EbbCheckpointFrame *self);
/* An array of EbbDraw. */
GArray *ebb_draws_new (void);
/* Notes where the generator is, if @draws does not have it yet. */
void ebb_draws_note (GArray *draws,
                     EbbGenerator *generator);
/* Puts the generators of @draws, of EbbDraw, back to where they were. */
void ebb_draws_put_back (GArray *draws);

/* recompute.c */
gboolean ebb_frame_recompute (EbbCheckpointFrame *self,
                              GError **error);

/* frame-boundary.c: counters and training flags */
void ebb_frame_enter_modules (EbbCheckpointFrame *self,
                              GPtrArray *modules);
void ebb_frame_count_up (EbbCheckpointFrame *self);
void ebb_frame_count_down (EbbCheckpointFrame *self);
void ebb_frame_swap_training (EbbCheckpointFrame *self);

/* frame-boundary.c: devices are synchronised and times are taken where a forward and its backward begin and end */
gboolean ebb_frame_begin_forward (EbbCheckpointFrame *self,
                                  GPtrArray *modules,
                                  GError **error);
/* Returns @result, or NULL with @error set. */
EbbArgs *ebb_frame_end_forward (EbbCheckpointFrame *self,
                                EbbArgs *result,
                                GError **error);
gboolean ebb_frame_begin_backward (EbbCheckpointFrame *self,
                                   GError **error);
/* No node needs the frame any more: its backward ends with the node that runs. */
void ebb_frame_leave_backward (EbbCheckpointFrame *self);
/* Drops what was recomputed or unpacked when the backward pass of this thread ends. */
void ebb_frame_call_at_end (EbbCheckpointFrame *self);
void ebb_frame_drop_values (EbbCheckpointFrame *self);
void ebb_frame_drop_unpacked (EbbCheckpointFrame *self);
/* Numbers the run of one forward or recompute: ebb_modes.frame. */
guint64 ebb_frame_take_number (void);
EbbDeterminismCheck ebb_frame_get_check (EbbCheckpointFrame *self);

G_END_DECLS
