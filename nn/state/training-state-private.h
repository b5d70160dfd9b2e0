/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/state/training-state.h"

/* A training's state without the module's and the optimizer's, as a tree. Where the tensors lie on several ranks, they
 * are saved apart, and each rank has a tree of its own. */

G_BEGIN_DECLS

typedef struct _EbbTrainingMark EbbTrainingMark;

struct _EbbTrainingState
{
  GObject parent_instance;

  EbbModule *module;
  EbbOptimizer *optimizer;
  EbbDataset *dataset;
  GHashTable *generators; /* name to EbbGenerator; the thread's default one is looked up when it is needed */
  EbbArgs *values;
  char *config;
  guint keep;
  EbbTrainingMark *mark; /* of ebb_training_state_mark (); NULL: none */
  gboolean trained_only;
  GHashTable *trained; /* the names that states of trained_only have had: they stay in, frozen or not */
  guint64 base;        /* the checksum of the tensors that trained_only leaves out, when it was last needed */
};

/* -- training-base.c */

/* Which elements of a tensor a rank has: from @begin to @end of a slice that has @row elements of each @stride, from
 * @first on. */
typedef struct
{
  gint64 row, stride, first, begin, end;
} EbbTrainingBasePart;

/* Adds the elements of @part, which @tensor has, to a checksum. The parts of all ranks add up to that of the full
 * tensor, in any order. */
gboolean ebb_training_base_add (guint64 *sum,
                                const char *name,
                                EbbTensor *tensor,
                                const EbbTrainingBasePart *part,
                                GError **error);
/* The names that a state to be saved has of the module, of those that it may leave out; not owned. */
GHashTable *ebb_training_state_note_trained (EbbTrainingState *self);
/* Of a state that was loaded: its names stay in those that are saved. */
void ebb_training_state_add_trained (EbbTrainingState *self,
                                     EbbArgs *tree,
                                     GHashTable *names);
/* Whether the tree leaves out the base: then the parts of a module that it has are those that count as trained. */
gboolean ebb_training_state_is_without_base (EbbArgs *tree);
/* Fails if the tree leaves out the base and trained-only is not set, or has a checksum other than that which was
 * found. */
gboolean ebb_training_state_check_base (EbbTrainingState *self,
                                        EbbArgs *tree,
                                        const char *folder,
                                        GError **error);

/* -- training-state.c */

/* Where a training stood before a step; training-mark.c says what the elements of its arrays are. */
struct _EbbTrainingMark
{
  GArray *parameters; /* each once */
  GHashTable *seen;   /* the same tensors */
  guint64 grad_bytes; /* of the gradients that there were */
  GArray *buffers;
  GArray *slots; /* of the optimizer */
  GArray *generators;
  EbbArgs *named; /* generators of this thread's tracker; NULL: none */
  gint64 position, n_steps;
  double grad_scale;
  EbbTensor *grad_factor;
};

void ebb_training_mark_free (EbbTrainingMark *mark);
/* Of the gradients that were there at the mark; after a rewind they aren't. */
guint64 ebb_training_state_get_marked_grad_bytes (EbbTrainingState *self);

EbbArgs *ebb_training_state_get_rest (EbbTrainingState *self,
                                      gint64 step);
/* Whether a state of this step can be saved. */
gboolean ebb_training_state_check_step (gint64 step,
                                        GError **error);
/* Fails if load_rest () would; gives the step. @folder names the state in errors: UTF-8, one line. */
gboolean ebb_training_state_check_rest (EbbTrainingState *self,
                                        EbbArgs *tree,
                                        const char *folder,
                                        gint64 *step,
                                        GError **error);
gboolean ebb_training_state_load_rest (EbbTrainingState *self,
                                       EbbArgs *tree,
                                       const char *folder,
                                       GError **error);
/* Makes the generators give other numbers: for a rank that has none saved and goes on from another one's. */
void ebb_training_state_reseed (EbbTrainingState *self,
                                guint64 stream);

/* Generators with names that each thread has elsewhere, as a dictionary. */
typedef struct
{
  EbbArgs *(*get) (void); /* NULL: none */
  gboolean (*set) (EbbArgs *states,
                   gboolean check_only,
                   GError **error);
} EbbNamedGenerators;
#define EBB_TRAINING_STATE_NAMED_GENERATORS "tracker" /* where a tree has them */
void ebb_training_state_set_named_generators (const EbbNamedGenerators *funcs);
/* NULL: there never were any. */
const EbbNamedGenerators *ebb_training_state_get_named_generators (void);

char *ebb_training_state_get_saved_config (EbbArgs *tree,
                                           const char *folder,
                                           GError **error);

G_END_DECLS
