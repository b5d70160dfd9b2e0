/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module.h"

G_BEGIN_DECLS

/* Visits the tensors of the state dict, parameters and persistent buffers, by each of their names. */
typedef void (*EbbStateVisitor) (const char *name,
                                 EbbTensor *tensor,
                                 gpointer user_data);
void ebb_module_visit_state (EbbModule *self,
                             EbbStateVisitor visit,
                             gpointer user_data);

/* The tensors that a training changes, and those that it leaves as they are. */
typedef enum
{
  EBB_STATE_ALL,
  EBB_STATE_TRAINED, /* parameters that require a gradient or are an adapter's, and buffers */
  EBB_STATE_FROZEN   /* the other parameters, and the buffers that are quantised weights */
} EbbStatePart;

/* @trained: a set of names that count as trained besides; NULL: none. */
void ebb_module_visit_state_part (EbbModule *self,
                                  EbbStatePart part,
                                  GHashTable *trained,
                                  EbbStateVisitor visit,
                                  gpointer user_data);

typedef struct
{
  EbbTensor *target; /* of the module */
  EbbTensor *source; /* of the state; owned */
} EbbStateTransfer;

/* The shape that the state has for @target, which may hold a part of it. */
typedef const gint64 *(*EbbFullShapeFunc) (EbbTensor *target,
                                           guint *n_dims);
/* The copies that ebb_module_load_state_dict () makes; NULL with its errors. @targets as below. */
GArray *ebb_module_match_state (EbbModule *self,
                                EbbArgs *targets,
                                EbbArgs *state,
                                gboolean strict,
                                EbbFullShapeFunc get_full_shape,
                                GError **error);
/* Copies; sources may have been replaced by others of the targets' shapes. */
gboolean ebb_state_transfers_run (GArray *transfers,
                                  GError **error);

/* Appends " LABEL (N): " and the first of @names to a list of what does not fit; nothing if there are none. */
void ebb_state_append_names (GString *text,
                             const char *label,
                             GPtrArray *names);

/* Loads @state as ebb_module_load_state_dict () does, but into @targets, tensors by name that share the memory of the
 * module's: for a layout of names and shapes other than the module's own. NULL: the module's own. */
gboolean ebb_module_load_state_into (EbbModule *self,
                                     EbbArgs *targets,
                                     EbbArgs *state,
                                     gboolean strict,
                                     GError **error);

G_END_DECLS
