/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"
#include "wrap/checkpoint/wrapper.h"

/* The target of a checkpoint: a module behind an interceptor, or a function that may call modules. The wrapper and its
 * frames share it. It has only weak references to its modules. */

G_BEGIN_DECLS

#define EBB_CHECKPOINT_INTERCEPTOR "checkpoint" /* the kind; its data is a target */

/* A number of bytes and the most that it ever was. */
typedef struct
{
  guint64 now, peak;
} EbbCheckpointLevel;

/* Counts what a target's frames do. A graph may be dropped on another thread than the one that trains. */
typedef struct
{
  guint64 n_forwards, n_recomputes;
  EbbCheckpointLevel saved;   /* inputs and results saved by policy, without parameters */
  EbbCheckpointLevel dropped; /* freed after the forward, until they are recomputed */
  guint64 recompute_us;
  guint64 recompute_flop;
  guint64 forward_us, backward_us; /* with the option to profile */
} EbbCheckpointTally;

/* What all wrappers on modules of one type free together: see savings.c. */
typedef struct _EbbCheckpointSavings EbbCheckpointSavings;

typedef struct _EbbCheckpointTarget EbbCheckpointTarget;

struct _EbbCheckpointTarget
{
  int ref_count;
  EbbModuleWeak **modules; /* whose forward counters and training flags go with a frame, with all below them */
  guint n_modules;
  guint interceptor; /* of the only module, whose forward it is; 0: @func */
  EbbCheckpointFunc func;
  gpointer data;
  GDestroyNotify destroy;
  char *name; /* of a module: its type, for when it is gone */
  EbbCheckpointOptions *options;
  EbbCheckpointTally tally;
  EbbCheckpointSavings *savings; /* of a wrapped module; else NULL */
};

/* The forward of @module from its interceptor inwards, which the caller sets. */
EbbCheckpointTarget *ebb_checkpoint_target_new (EbbModule *module,
                                                EbbCheckpointOptions *options);
/* @func with @data, which @destroy frees; @name is what messages call it. @modules, which it calls, may be none. */
EbbCheckpointTarget *ebb_checkpoint_target_new_func (const char *name,
                                                     EbbCheckpointFunc func,
                                                     gpointer data,
                                                     GDestroyNotify destroy,
                                                     EbbModule *const *modules,
                                                     guint n_modules,
                                                     EbbCheckpointOptions *options);
EbbCheckpointTarget *ebb_checkpoint_target_ref (EbbCheckpointTarget *target);
void ebb_checkpoint_target_unref (EbbCheckpointTarget *target);

/* "h.3 (EbbTransformerBlock)". Owned. */
char *ebb_checkpoint_target_describe (EbbCheckpointTarget *target);
/* The target's modules, with references; NULL with EBB_ERROR_GRAPH if one was finalized. Never NULL otherwise. */
GPtrArray *ebb_checkpoint_target_get_modules (EbbCheckpointTarget *target,
                                              GError **error);
/* The target's modules and all below them, each once, with references. */
GPtrArray *ebb_checkpoint_target_expand (GPtrArray *modules);
/* Runs the plain forward. @modules are those of ebb_checkpoint_target_get_modules (). */
EbbArgs *ebb_checkpoint_target_run (EbbCheckpointTarget *target,
                                    GPtrArray *modules,
                                    EbbArgs *args,
                                    GError **error);

void ebb_checkpoint_level_add (EbbCheckpointLevel *level,
                               guint64 n_bytes);
void ebb_checkpoint_level_subtract (EbbCheckpointLevel *level,
                                    guint64 n_bytes);

/* Those of modules of @type, which live as long as the process. */
EbbCheckpointSavings *ebb_checkpoint_savings_get (GType type);
/* @savings may be NULL in all of these. */
void ebb_checkpoint_savings_add (EbbCheckpointSavings *savings,
                                 guint64 n_bytes);
void ebb_checkpoint_savings_subtract (EbbCheckpointSavings *savings,
                                      guint64 n_bytes);
/* A backward goes through one of them. */
void ebb_checkpoint_savings_note_backward (EbbCheckpointSavings *savings);
/* Called before a forward of @module, one of theirs: once a backward is behind them, says so if they save next to
 * nothing. */
void ebb_checkpoint_savings_judge (EbbCheckpointSavings *savings,
                                   EbbModule *module);

/* mode.c: TRUE if this thread runs plain forwards: without gradients, or with checkpointing disabled. */
gboolean ebb_checkpoint_is_plain (void);

G_END_DECLS
