/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/memory-account-private.h"
#include "tensor/profile/profiler.h"
#include "tensor/profile/timeline.h"

/* Between the files of the memory timeline: what one has recorded, and who holds the memory at its peak. */

G_BEGIN_DECLS

#define EBB_TIMELINE_NEVER G_MAXUINT32

/* A range of memory from its allocation to its free. */
typedef struct
{
  gsize n_bytes;
  const void *data;  /* NULL: counted by hand */
  const char *op;    /* that was running; NULL: none */
  const char *name;  /* of a tensor that was named; NULL: not named */
  const char *shape; /* as its first kernel wrote it, "f32 [8, 128, 768]"; NULL: not known */
  GQuark path;       /* of the module in which it was made; 0: none */
  guint32 first;     /* the change that allocated it; EBB_TIMELINE_NEVER: it was there before the recording */
  guint32 last;      /* the change that freed it; EBB_TIMELINE_NEVER: it was still there */
  guint32 outer;     /* an older block at the same address, + 1; 0: none */
  guint8 phase;      /* in which it was made */
  guint8 was;        /* the purpose with which it began */
  guint8 purpose;    /* the last one */
} EbbTimelineBlock;

typedef struct
{
  gint64 time;      /* nanoseconds since the start */
  guint32 block;    /* index */
  guint32 position; /* launches before it */
  guint8 to;        /* purpose; EBB_N_PURPOSES: it was freed */
} EbbTimelineChange;

/* Launches in a row that belong to one phase. */
typedef struct
{
  gint64 time;
  guint32 position; /* of the first */
  guint8 phase;
} EbbTimelineSpan;

typedef struct
{
  EbbMemoryObserver observer; /* first */
  EbbMemoryTimeline *owner;
} EbbTimelineObserver;

struct _EbbMemoryTimeline
{
  GObject parent_instance;

  EbbTimelineObserver observer;
  EbbMemoryAccount *account; /* that is recorded, while it runs; NULL: all memory that belongs to none */
  EbbDevice *device;         /* the last one that was recorded; NULL: none yet */
  GThread *thread;           /* on which it runs; NULL: it does not */
  char *name;
  GArray *blocks, *changes, *spans;
  GHashTable *by_data; /* of the live block that lies at an address: its index + 1; by hand: NULL */
  GStringChunk *texts;
  gint64 rest[EBB_N_PURPOSES]; /* bytes that were there before the recording and belong to none of the blocks */
  guint64 current[EBB_N_PURPOSES + 1];
  guint64 peak[EBB_N_PURPOSES + 1];
  guint32 peak_change; /* after which all together were the most; EBB_TIMELINE_NEVER: at the start */
  guint32 n_launches;
  gint64 start, end;  /* nanoseconds; end: since the start */
  gboolean is_dry;    /* of a dry run */
  gboolean has_times; /* FALSE: of a dry run, until it is known how long its launches take */
};

#define ebb_timeline_get_block(self, index) (&g_array_index ((self)->blocks, EbbTimelineBlock, index))
#define ebb_timeline_get_change(self, index) (&g_array_index ((self)->changes, EbbTimelineChange, index))
#define ebb_timeline_get_span(self, index) (&g_array_index ((self)->spans, EbbTimelineSpan, index))

/* The purpose of each block after the change number @last (EBB_TIMELINE_NEVER: at the start); EBB_N_PURPOSES: it is not
 * there. */
guint8 *ebb_timeline_replay (EbbMemoryTimeline *self,
                             guint32 last);

/* The timelines that run on this thread, or NULL; the thread's. */
const GPtrArray *ebb_timeline_list_running (void);
/* Names the memory of @tensor for them. */
void ebb_timeline_name_tensor (EbbTensor *tensor,
                               const char *format,
                               ...) G_GNUC_PRINTF (2, 3);
/* Of a dry run, which takes no time: of each launch that it recorded, how long it would take. */
void ebb_timeline_set_seconds (EbbMemoryTimeline *self,
                               const double *seconds,
                               guint n_launches);

/* -- who holds the peak -------------------------------------------------------------------------------------------- */

/* Blocks with the same purpose, op, module, phase, name and shape. Modules that differ in numbers alone are the same
 * one: "h.0.mlp" and "h.1.mlp" together are "h.*.mlp". */
typedef struct
{
  EbbPurpose purpose;
  EbbPhase phase;                /* in which they were made */
  const char *op, *name, *shape; /* NULL: not known */
  const char *module;            /* its path; NULL: not known */
  const char *module_pattern;    /* with a star for each number */
  const char *name_pattern;
  gboolean is_older; /* they were there before the recording */
  guint n_blocks;    /* 0: not known */
  guint64 n_bytes;
} EbbMemoryHolder;

/* The @n largest ones of the moment with the most bytes in all, the largest first. The strings are @self's. */
GArray *ebb_memory_timeline_list_holders (EbbMemoryTimeline *self,
                                          guint n);
/* The addresses of tensors that it has seen being made and that were still there when it stopped; the same of those
 * that are in @addresses. */
GHashTable *ebb_memory_timeline_list_addresses (EbbMemoryTimeline *self);
GArray *ebb_memory_timeline_list_left (EbbMemoryTimeline *self,
                                       GHashTable *addresses);
/* A line for each of the @n largest. */
void ebb_memory_timeline_append_holders (EbbMemoryTimeline *self,
                                         guint n,
                                         GString *text);
/* "h.3.mlp.c_fc: linear (backward), f32 [8, 128, 768]" */
char *ebb_memory_holder_to_string (const EbbMemoryHolder *holder);

/* -- files --------------------------------------------------------------------------------------------------------- */

/* Whether there is something to save, and nothing of it runs. */
gboolean ebb_timeline_check (EbbMemoryTimeline **timelines,
                             guint n_timelines,
                             GError **error);

G_END_DECLS
