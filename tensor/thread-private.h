/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "tensor/autograd/saved-tensor.h"
#include "tensor/memory-account-private.h"
#include "tensor/profile/profiler.h"

/* The state of one thread: the modes that its ops run under, and its counters. Every op reads it, so it is plain
 * data. */

G_BEGIN_DECLS

typedef struct _EbbOpObserver EbbOpObserver;
typedef struct _EbbRematerializationLog EbbRematerializationLog;
typedef struct _EbbGeneratorFork EbbGeneratorFork;

/* Sees every op that this thread runs, except views, and every generator before it is drawn from. Observers nest; push
 * sets @outer. A function may be NULL. */
struct _EbbOpObserver
{
  EbbOpObserver *outer;
  /* Before the op runs: may put finished tensors into call->outputs (of the described shapes) and set @cached: the op
   * is then not run. It is TRUE already if an outer observer has done so. */
  gboolean (*before) (EbbOpObserver *self,
                      EbbOpCall *call,
                      gboolean *cached,
                      GError **error);
  gboolean (*after) (EbbOpObserver *self,
                     EbbOpCall *call,
                     GError **error);
  void (*draw) (EbbOpObserver *self,
                EbbGenerator *generator);
  /* The memory at @data is read or written: by a kernel, in an op or on the way to one, or by the host. */
  void (*touch) (EbbOpObserver *self,
                 const void *data);
};

/* -- what a watched thread does ------------------------------------------------------------------------------------ */

/* Modules, ops and kernels say here what their thread does, to its observer and to those who watch its memory. Each
 * asks one question of the thread's data, which it has at hand anyway: nobody watches unless an observer or a memory
 * observer was started. */

typedef enum
{
  EBB_EVENT_RANGE,  /* a phase: a backward pass, a recompute, an optimizer's step */
  EBB_EVENT_MODULE, /* the call of a module */
  EBB_EVENT_OP,
  EBB_EVENT_KERNEL
} EbbEventKind;

/* Sees all that a thread runs, in its nesting; a profiler is one. A thread has one at a time. */
typedef struct _EbbThreadObserver EbbThreadObserver;

struct _EbbThreadObserver
{
  /* What begins; returns a number other than 0 for close (). The thread's phase and module are those of the event. */
  guint64 (*open) (EbbThreadObserver *self,
                   EbbEventKind kind,
                   const char *name);
  /* The same for an op of so many floating-point operations. */
  guint64 (*open_op) (EbbThreadObserver *self,
                      const char *name,
                      guint64 flop);
  void (*close) (EbbThreadObserver *self,
                 guint64 event);
  /* Launches the kernel and waits for it. */
  gboolean (*launch) (EbbThreadObserver *self,
                      EbbDevice *device,
                      EbbLaunch *launch,
                      GError **error);
};

/* -- modes --------------------------------------------------------------------------------------------------------- */

#define EBB_MODES_MAX_SLOTS 6

/* A module that works row by row is called on some of its rows, and draws what those rows draw in a call of all. */
typedef struct
{
  gint64 first, n; /* rows of... */
  gint64 of;       /* all of them; 0: no tile */
} EbbRowTile;

/* The modes that a thread's ops run under. A scope copies them, so this is plain data: references belong to the code
 * that entered the scope. */
typedef struct
{
  guint8 no_grad;
  guint8 autocast;
  guint8 autocast_dtype;
  guint8 in_backward;                             /* depth of backward passes */
  int stopped;                                    /* > 0: a recompute has all it needs: ops give placeholders */
  int recomputing;                                /* depth of recomputes */
  EbbSavedTensorHooks *hooks;                     /* innermost, that tensors are saved through; NULL: they are kept */
  EbbOpObserver *observers;                       /* innermost */
  const EbbOp *saving;                            /* whose tensor is being saved */
  guint64 frame; /* the number of the checkpointed forward or recompute that runs; 0: none */
  EbbRematerializationLog *rematerialization_log; /* of it */
  guint64 call;                                   /* the number of the outermost module call that runs; 0: none */
  EbbDevice *default_device;                      /* where new tensors are made; NULL: on the CPU */
  EbbGenerator *generator;                        /* the default one outside of forks; NULL: the thread's own */
  EbbGeneratorFork *forks;                        /* innermost */
  EbbRowTile tile;                                /* whose rows are computed */
  gpointer slots[EBB_MODES_MAX_SLOTS];            /* of upper layers */
} EbbModes;

typedef struct
{
  EbbThreadObserver *observer; /* of all that runs; NULL: none */
  EbbMemoryAccount *account;   /* of the rank, or of the dry run, that the thread works for; NULL: none */
  gboolean computes_dry;       /* in a dry run: launches run all the same, see run () in op.c */
  guint64 n_launches;          /* kernels so far, on any device */
  EbbGenerator *generator;     /* its own, made at first use */
  guint call_depth;            /* nested calls of modules, of their wrappers, of checkpointed functions */
  gboolean draws_torn;         /* a tile drew numbers that don't belong to rows */
  /* What a watched thread does now. */
  guint n_watchers;    /* profilers and memory observers of this thread; 0: nothing below is kept */
  guint watch;         /* the number of the time since the first of them came */
  GQuark module_path;  /* of the module whose call runs, or ran when the node that backward is at was made; 0: none */
  const char *op_name; /* of the op or the range that runs; NULL: none */
  guint8 phase;        /* an EbbPhase + 1; 0: none */
  /* saved by push functions */
  struct _EbbModeStack *grad_stack, *autocast_stack, *hooks_stack;
} EbbThread;

extern __thread EbbModes ebb_modes __attribute__ ((visibility ("hidden"), tls_model ("initial-exec")));
extern __thread EbbThread ebb_thread __attribute__ ((visibility ("hidden"), tls_model ("initial-exec")));

/* -- scopes -------------------------------------------------------------------------------------------------------- */

/* Pops the forks that were pushed inside @fork. */
void ebb_generator_pop_forks_to (EbbGeneratorFork *fork);

/* Runs the code that follows under @modes; returns the modes to leave to. */
static inline EbbModes
ebb_modes_enter (const EbbModes *modes)
{
  const EbbModes outer = ebb_modes;

  ebb_modes = *modes;
  return outer;
}

/* The same for the library's own work, which is no part of the forward that it happens in: it is neither recorded nor
 * cast, observed, stopped or saved. */
EbbModes ebb_modes_enter_internal (void);
/* Ends the scope, and the forks that were left open in it. */
static inline void
ebb_modes_leave (const EbbModes *outer)
{
  if (G_UNLIKELY (ebb_modes.forks != outer->forks))
    ebb_generator_pop_forks_to (outer->forks);
  ebb_modes = *outer;
}

/* The modes of the library's own work from here to the end of the scope. */
#define EBB_AUTO_INTERNAL_MODES() \
  const EbbModes outer_modes __attribute__ ((cleanup (ebb_modes_leave), unused)) = ebb_modes_enter_internal ()

/* The same for a part of a forward: an early stop that began in it goes on. */
static inline void
ebb_modes_leave_forward (const EbbModes *outer)
{
  const int stopped = ebb_modes.stopped;

  ebb_modes_leave (outer);
  ebb_modes.stopped = stopped;
}

/* Copies the modes of this thread as a recompute will need them, on any thread, with references. @generator: the
 * default one. */
void ebb_modes_capture (EbbModes *modes,
                        EbbGenerator *generator);
/* Captures the slots that were empty then. */
void ebb_modes_capture_rest (EbbModes *modes);
void ebb_modes_release (EbbModes *modes);

/* Registers a slot, in which an upper layer keeps a mode of its own. @capture references its current value and @release
 * drops that reference; both NULL: it is plain data. Called before there are other threads. */
guint ebb_modes_register_slot (gpointer (*capture) (void),
                               GDestroyNotify release);

/* -- observers, generators ----------------------------------------------------------------------------------------- */

void ebb_thread_push_observer (EbbOpObserver *observer);
void ebb_thread_pop_observer (EbbOpObserver *observer);

/* Another generator is this thread's default one until its fork is popped. */
struct _EbbGeneratorFork
{
  EbbGeneratorFork *outer;
  EbbGenerator *generator; /* a reference */
  gpointer owner;          /* that pushed it, not owned */
};

void ebb_generator_push_default (EbbGenerator *generator,
                                 gpointer owner);
void ebb_generator_pop_default (void);
/* A backward pass begins, which may touch anything. */
#define EBB_TOUCH_EVERYTHING GSIZE_TO_POINTER (G_MAXSIZE)
/* Calls touch () of all observers. */
void ebb_thread_touch (const void *data);

/* TRUE if ops give placeholders now. */
static inline gboolean
ebb_is_stopped (void)
{
  return ebb_modes.stopped > 0;
}

/* TRUE with @dtype set if products are to be done in a lower precision now. */
static inline gboolean
ebb_autocast_get (EbbDType *dtype)
{
  *dtype = (EbbDType) ebb_modes.autocast_dtype;
  return ebb_modes.autocast;
}

/* TRUE in a dry run: memory is placed and counted, but there are no data, and nothing runs. */
static inline gboolean
ebb_is_dry (void)
{
  return G_UNLIKELY (ebb_thread.account != NULL) && ebb_thread.account->is_dry;
}

/* TRUE for a storage whose memory nobody may read: of a dry run that is over, or without data. */
static inline gboolean
ebb_storage_is_dry (const EbbStorage *storage)
{
  return G_UNLIKELY (storage->account != NULL) && storage->account->is_dry;
}

/* Runs what follows for @account; returns the one to go back to. */
static inline EbbMemoryAccount *
ebb_thread_enter_account (EbbMemoryAccount *account)
{
  EbbMemoryAccount *outer = ebb_thread.account;

  ebb_thread.account = account;
  return outer;
}

/* A kernel of a dry run does not write @tensor. */
static inline void
ebb_tensor_note_dry_output (EbbTensor *tensor)
{
  if (G_UNLIKELY (ebb_storage_is_dry (tensor->storage)) && !ebb_thread.computes_dry)
    tensor->storage->no_data = TRUE;
}

/* The device of a new tensor if none is given. */
static inline EbbDevice *
ebb_device_or_default (EbbDevice *device)
{
  return device != NULL ? device : ebb_get_default_device ();
}

/* More calls in each other than this are an error, for each takes a part of the thread's stack: 2 KiB where a frame is
 * kept for a recompute. */
#define EBB_MAX_CALL_DEPTH 1000

/* A call begins that the stack must have room for, to be ended by lowering call_depth. FALSE: one too many. */
static inline gboolean
ebb_thread_deepen (void)
{
  if (G_UNLIKELY (ebb_thread.call_depth >= EBB_MAX_CALL_DEPTH))
    return FALSE;
  ebb_thread.call_depth++;
  return TRUE;
}

/* Says so of @name, which was called. */
void ebb_thread_report_depth (const char *name,
                              GError **error);

/* An outermost module call begins, unless one is open: TRUE if so. Numbers are never used twice, on any thread. */
gboolean ebb_thread_begin_call (void);

/* -- watching ------------------------------------------------------------------------------------------------------ */

/* Something looks on from here on, which ebb_thread_unwatch () ends: what the thread does is kept at hand. */
void ebb_thread_watch (void);
void ebb_thread_unwatch (void);

/* What an opening returns and its closing takes: what the thread did around it. A mark of an earlier watch closes
 * nothing. */
typedef struct
{
  guint watch;   /* 0: nobody watched */
  guint64 event; /* of the observer; 0: none */
  GQuark module_path;
  const char *op_name;
  guint8 phase;
} EbbProfileMark;

#define EBB_NO_PROFILE_MARK ((EbbProfileMark){ .watch = 0 })

#define ebb_is_watched() G_UNLIKELY (ebb_thread.n_watchers > 0)

/* Only where ebb_is_watched (). @name must stay for ever. */
EbbProfileMark ebb_profile_open_range (const char *name,
                                       EbbPhase phase);
EbbProfileMark ebb_profile_open_module (const char *type_name,
                                        GQuark path);
/* Of a call that is about to run, and of a node of the graph in a backward pass. */
EbbProfileMark ebb_profile_open_op (const char *name,
                                    gboolean needs_grad,
                                    guint64 flop);
EbbProfileMark ebb_profile_open_backward (const char *op_name,
                                          GQuark path);
void ebb_profile_close (EbbProfileMark mark);
/* Of what this thread does; %EBB_PHASE_OTHER if nobody watches. */
EbbPhase ebb_get_phase (void);
/* @name must stay for ever. */
static inline EbbProfileMark
ebb_profile_push_range (const char *name,
                        EbbPhase phase)
{
  return ebb_is_watched () ? ebb_profile_open_range (name, phase) : EBB_NO_PROFILE_MARK;
}

static inline void
ebb_profile_pop (EbbProfileMark mark)
{
  if (G_UNLIKELY (mark.watch != 0))
    ebb_profile_close (mark);
}

G_END_DECLS
