/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/profile/profiler.h"
#include "tensor/thread-private.h"

/* How modules, ops and kernels report to a profiler, and say what the thread does to those who watch its memory. Each
 * asks one question of the thread's data, which it has at hand anyway: nobody watches unless a profiler or a memory
 * observer was started. */

G_BEGIN_DECLS

typedef enum
{
  EBB_EVENT_RANGE,  /* a phase: a backward pass, a recompute, an optimizer's step */
  EBB_EVENT_MODULE, /* the call of a module */
  EBB_EVENT_OP,
  EBB_EVENT_KERNEL
} EbbEventKind;

typedef struct
{
  const char *name;  /* static, or interned */
  gint64 start, end; /* nanoseconds since the profiler was first started */
  gint64 inside;     /* of an op: in other events than its own kernels, as a recompute */
  guint64 bytes;     /* read and written */
  guint64 flop;
  guint64 n_elements; /* of an op whose kernels are no products: what stands for flop */
  GQuark path;        /* of the module in whose call it runs, or whose forward it differentiates; 0: none */
  int parent;         /* index; -1: none */
  int work;           /* of a kernel: index into works; -1: neither a product nor attention */
  guint8 kind, phase;
  guint8 has_flop; /* of an op that said them itself, before it ran */
} EbbEvent;

/* The key of a launch of a product, or of attention: launches with equal keys do the same work. Padding bytes are 0. */
typedef struct
{
  EbbDevice *device;
  gint64 kernel;
  EbbView views[4];       /* a, b, bias, c of a product; q, k, v, o of attention: without data; n_dims -1: left out */
  EbbKernelParams params; /* those of a product; of attention whether it is causal */
} EbbWorkKey;

typedef struct
{
  EbbWorkKey key; /* first */
  guint64 count;
  gint64 time;  /* nanoseconds of all launches */
  guint64 flop; /* of one launch */
  double floor; /* seconds of one launch; below 0: not measured */
} EbbOpWork;

struct _EbbProfiler
{
  GObject parent_instance;

  GArray *events;     /* of EbbEvent, by start */
  GArray *open;       /* of int: indices of those that have not ended, outermost first */
  GPtrArray *works;   /* of EbbOpWork, by first use */
  GHashTable *by_key; /* of EbbOpWork */
  GThread *thread;    /* on which it runs; NULL: it does not */
  guint generation;   /* names the marks that were given out since the last start */
  guint n_steps;
  gint64 origin;  /* of all times; 0: never started */
  gint64 started; /* since when it runs */
  gint64 total;   /* of earlier runs */
};

/* What an opening returns and its closing takes: what the thread did around it. A mark of an earlier watch closes
 * nothing. */
typedef struct
{
  guint watch;   /* 0: nobody watched */
  guint64 event; /* of the profiler; 0: none */
  GQuark module_path;
  const char *op_name;
  guint8 phase;
} EbbProfileMark;

#define EBB_NO_PROFILE_MARK ((EbbProfileMark){ .watch = 0 })

#define ebb_is_profiling() G_UNLIKELY (ebb_thread.profiler != NULL)
#define ebb_is_watched() G_UNLIKELY (ebb_thread.n_watchers > 0)

/* activity.c, only where ebb_is_watched (). @name must stay for ever. */
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
/* Runs it and waits for it. */
gboolean ebb_profiler_run_kernel (EbbDevice *device,
                                  EbbLaunch *launch,
                                  GError **error);

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

/* The name of the range that counts as a step. */
#define EBB_PROFILE_STEP "optimizer step"

/* -- between the profiler's files ---------------------------------------------------------------------------------- */

/* profiler-work.c */
EbbOpWork *ebb_work_new (const EbbWorkKey *key);
guint ebb_work_hash (gconstpointer key);
gboolean ebb_work_equal (gconstpointer a,
                         gconstpointer b);
/* FALSE: @launch is neither a product nor attention. */
gboolean ebb_work_key_init (EbbWorkKey *key,
                            EbbDevice *device,
                            const EbbLaunch *launch);
gboolean ebb_work_is_product (const EbbOpWork *work);
/* "f32 [1024, 768] x [768, 2304] + bias, b transposed"; of attention its queries "to" its keys. */
char *ebb_work_to_string (const EbbOpWork *work);
/* Elements that are there in memory: along a dimension that is broadcast there is one. */
guint64 ebb_view_count_bytes (const EbbView *view);
guint64 ebb_launch_count_bytes (const EbbLaunch *launch);
/* That a launch of EBB_KERNEL_DEQUANTIZE reads of the input of that number. */
guint64 ebb_dequantize_count_bytes (const EbbLaunch *launch,
                                    guint input);
/* Of products and attention; 0 of other kernels. */
guint64 ebb_launch_count_flop (const EbbLaunch *launch);
guint64 ebb_launch_count_elements (const EbbLaunch *launch);

/* profiler.c: events of the profiler that runs on this thread, whose phase and module are the thread's. */
guint64 ebb_profiler_open (EbbEventKind kind,
                           const char *name);
guint64 ebb_profiler_open_op (const char *name,
                              guint64 flop);
void ebb_profiler_close (guint64 mark);
const char *ebb_phase_get_name (EbbPhase phase);
/* Nanoseconds. */
gint64 ebb_profiler_get_time (void);
/* The time of an op itself. */
gint64 ebb_event_get_time (const EbbEvent *event);
#define ebb_profiler_get_event(self, index) (&g_array_index ((self)->events, EbbEvent, index))
#define ebb_profiler_get_work(self, index) ((EbbOpWork *) g_ptr_array_index ((self)->works, index))

G_END_DECLS
