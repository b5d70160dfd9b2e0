/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/op-private.h"
#include "tensor/autograd/saved-tensor.h"

/* What belongs to one thread: modes, and who stands at the doors. Read on the way of every op, so it is plain data. */

G_BEGIN_DECLS

typedef struct _EbbOpObserver EbbOpObserver;
typedef struct _EbbRematerializationLog EbbRematerializationLog;
typedef struct _EbbGeneratorFork EbbGeneratorFork;
struct _EbbProfiler;
struct _EbbMemoryAccount;

/* Someone who sees every op that this thread runs (but views), and every generator before it is drawn from. Observers
 * nest; @outer is set by push. A function may be NULL. */
struct _EbbOpObserver
{
  EbbOpObserver *outer;
  /* Before the op runs: may put finished tensors into call->outputs (of the described shapes) and return TRUE in
   * @provided: the op is then not run. Where somebody outside has done so it is TRUE already. */
  gboolean (*before) (EbbOpObserver *self,
                      EbbOpCall *call,
                      gboolean *provided,
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

typedef struct
{
  guint8 no_grad;
  guint8 autocast;
  guint8 autocast_dtype;
  guint8 in_backward;
  int stopped;                                    /* > 0: a recompute has all it needs: ops give placeholders */
  EbbSavedTensorHooks *hooks;                     /* innermost door, NULL: keep */
  EbbOpObserver *observers;                       /* innermost */
  struct _EbbProfiler *profiler;                  /* that records what runs; NULL: none */
  struct _EbbMemoryAccount *account;              /* of the rank that the thread works for; NULL: none */
  guint64 n_launches;                             /* kernels so far, on any device */
  guint64 frame; /* the number of the checkpointed forward or recompute that runs; 0: none */
  EbbRematerializationLog *rematerialization_log; /* of it */
  guint64 call;                                   /* the number of the outermost module call that is open; 0: none */
  const EbbOp *saving;                            /* whose tensor is at the door */
  EbbGenerator *generator;                        /* the default one, made at first use */
  EbbGeneratorFork *forks;                        /* what was the default before, innermost first */
  GObject *tracker;                               /* of named generators, made at first use */
  EbbDevice *default_device;                      /* of what is made anew; NULL: the CPU */
  guint8 compares_values; /* of what is saved now with other ranks', where a store can do that */
  guint8 saves_result;    /* of an op, which a checkpoint's policy keeps: it may never be asked for again */
  gconstpointer divided;  /* whose sequence ranks have divided where the thread is; NULL: nobody's */
  guint call_depth;       /* calls in each other: of modules, of their wrappers, of checkpointed functions */
  int checkpointing_disabled;
  int checkpointing;  /* depth of checkpointed forwards */
  int recomputing;    /* depth of recomputes */
  GQuark module_path; /* of the module whose call runs, while there is a profiler; 0: none */
  /* saved by push functions */
  struct _EbbModeStack *grad_stack, *autocast_stack, *hooks_stack;
} EbbThread;

extern __thread EbbThread ebb_thread __attribute__ ((visibility ("hidden"), tls_model ("initial-exec")));

void ebb_thread_push_observer (EbbOpObserver *observer);
void ebb_thread_pop_observer (EbbOpObserver *observer);

/* Another generator is this thread's default one until its fork is popped. */
struct _EbbGeneratorFork
{
  EbbGeneratorFork *outer;
  EbbGenerator *generator, *before; /* references */
  gpointer owner;                   /* who pushed it, not owned */
};

void ebb_generator_push_default (EbbGenerator *generator,
                                 gpointer owner);
void ebb_generator_pop_default (void);
/* Pops what was pushed since @fork was the innermost one, and left there. */
void ebb_generator_pop_forks_to (EbbGeneratorFork *fork);
/* A backward pass begins, which may touch anything. */
#define EBB_TOUCH_EVERYTHING GSIZE_TO_POINTER (G_MAXSIZE)
/* Tells all observers that memory is touched. */
void ebb_thread_touch (const void *data);

/* TRUE if ops give placeholders now. */
static inline gboolean
ebb_is_stopped (void)
{
  return ebb_thread.stopped > 0;
}

/* TRUE with @dtype set if products are to be done in a lower precision now. */
static inline gboolean
ebb_autocast_get (EbbDType *dtype)
{
  *dtype = (EbbDType) ebb_thread.autocast_dtype;
  return ebb_thread.autocast;
}

/* Where something is made that nobody has said a device for. */
static inline EbbDevice *
ebb_device_or_default (EbbDevice *device)
{
  return device != NULL ? device : ebb_get_default_device ();
}

/* All modes of a thread as one value, to run something as if at another time. */
typedef struct
{
  guint8 no_grad, autocast, autocast_dtype;
  int stopped;
  EbbSavedTensorHooks *hooks;
  EbbOpObserver *observers;
  guint64 frame;
  EbbRematerializationLog *rematerialization_log;
  guint64 call;
  EbbDevice *default_device;
  gconstpointer divided;
} EbbThreadModes;

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

EbbThreadModes ebb_thread_save_modes (void);
void ebb_thread_restore_modes (const EbbThreadModes *modes);

G_END_DECLS
