/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/profile/profiler.h"
#include "tensor/thread-private.h"

/* A profiler observes its thread, and records what the thread does as events. */

G_BEGIN_DECLS

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

  EbbThreadObserver observer;
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

/* The name of the range that counts as a step. */
#define EBB_PROFILE_STEP "optimizer step"

/* -- between the profiler's files ---------------------------------------------------------------------------------- */

/* work.c */
EbbOpWork *ebb_work_new (const EbbWorkKey *key,
                         const EbbLaunch *launch);
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
guint64 ebb_launch_count_elements (const EbbLaunch *launch);

/* profiler.c */
const char *ebb_phase_get_name (EbbPhase phase);
/* Nanoseconds. */
gint64 ebb_profiler_get_time (void);
/* The time of an op itself. */
gint64 ebb_event_get_time (const EbbEvent *event);
#define ebb_profiler_get_event(self, index) (&g_array_index ((self)->events, EbbEvent, index))
#define ebb_profiler_get_work(self, index) ((EbbOpWork *) g_ptr_array_index ((self)->works, index))

G_END_DECLS
