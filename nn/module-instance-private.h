/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "nn/module-private.h"
#include "tensor/profile/profiler-private.h"
#include "tensor/tensor-private.h"

#include <pthread.h>

/* The private struct of a module and functions over it, for the files of modules and layers. */

G_BEGIN_DECLS

typedef struct
{
  char *name;
  EbbTensor *tensor; /* NULL: a bound name with nothing registered */
  EbbTensor **field;
  gboolean persistent;
  gboolean is_exact; /* it keeps its dtype when the module's is changed */
} EbbNamedTensor;

typedef struct
{
  char *name;
  EbbModule *module; /* NULL: a bound name with nothing registered */
  EbbModule **field;
} EbbNamedModule;

typedef struct
{
  EbbNamedTensor *items;
  guint n_items;
} EbbTensorRegistry;

typedef struct _EbbCallPlan EbbCallPlan;
typedef struct _EbbLayerShare EbbLayerShare;

typedef struct
{
  EbbTensorRegistry parameters;
  EbbTensorRegistry buffers;
  EbbNamedModule *children;
  guint n_children;
  EbbModule *parent;    /* the first that has it as a child, not owned; NULL: none */
  EbbModuleWeak *weak;  /* made when first asked for */
  EbbCallPlan *plan;    /* hooks and interceptors; NULL: none; under @plan_lock */
  EbbLayerShare *share; /* how parameters come to ops; NULL: as they are. See nn/layers/layer-private.h */
  void (*free_plan) (EbbCallPlan *plan);
  void (*free_share) (EbbLayerShare *share);
  guint last_id; /* of hooks and interceptors; under @plan_lock */
  guint forward_counter;
  guint training : 1;
  guint is_built : 1;
  guint is_adapter : 1; /* its parameters count as trained while they are frozen, too */
  guint in_default_forward : 1;
  pthread_mutex_t plan_lock;
} EbbModulePrivate;

/* Where the instance's private data lies from its address; fixed once the class is there. */
extern gssize ebb_module_private_offset;

static inline EbbModulePrivate *
ebb_module_get_private (EbbModule *self)
{
  return G_STRUCT_MEMBER_P (self, ebb_module_private_offset);
}

/* Calls @visit for @self and everything below it, each module once, parents first, with the dotted path ("" for @self);
 * FALSE from @visit stops the walk. */
typedef gboolean (*EbbModuleVisitor) (EbbModule *module,
                                      const char *path,
                                      gpointer user_data);
gboolean ebb_module_visit (EbbModule *self,
                           EbbModuleVisitor visit,
                           gpointer user_data);
/* The same for every path: a module that is in several places is visited in each. */
void ebb_module_visit_paths (EbbModule *self,
                             EbbModuleVisitor visit,
                             gpointer user_data);
/* Fails, naming the first and saying @advice, if a parameter of @self or below is split over ranks at this moment;
 * @always: or is one that at times is. */
gboolean ebb_module_check_full (EbbModule *self,
                                gboolean always,
                                const char *advice,
                                GError **error);
/* The same if this rank has a part of a parameter by tensor parallelism. */
gboolean ebb_module_check_not_tensor_parallel (EbbModule *self,
                                               const char *advice,
                                               GError **error);
/* "path.name", or @name where @path is empty. */
char *ebb_module_join_path (const char *path,
                            const char *name);

/* What the class has until it is overridden. */
EbbArgs *ebb_module_default_forward (EbbModule *self,
                                     EbbArgs *args,
                                     GError **error);
EbbTensor *ebb_module_default_forward1 (EbbModule *self,
                                        EbbTensor *input,
                                        GError **error);

G_END_DECLS
