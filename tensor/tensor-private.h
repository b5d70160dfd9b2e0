/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/backend/kernel-private.h"
#include "tensor/storage-private.h"
#include "tensor/tensor.h"

G_BEGIN_DECLS

typedef struct _EbbNode EbbNode;
typedef struct _EbbRematerialization EbbRematerialization;
struct _EbbParameterOwner;
struct _EbbPartition;

struct _EbbTensor
{
  EbbView view; /* first: a launch points at it. view.data is NULL while the storage is a placeholder */
  int ref_count;
  guint requires_grad : 1;
  guint is_parameter : 1; /* kept as itself, never as its storage: load, shard and to () swap the storage */
  guint is_buffer : 1;
  guint is_local_shard : 1; /* one rank's part of something, or its summand: ranks that share the work have others */
  guint16 output_index;     /* of node */
  guint16 n_zeroed;         /* how often ebb_tensor_zero_grad () was called */
  EbbStorage *storage;
  gint64 offset; /* in elements, from the storage's start */
  gint64 n_elements;
  EbbNode *node; /* that made it, if it requires a gradient and is not a leaf */
  EbbTensor *grad;
  EbbRematerialization *rematerialization; /* how to compute it again, if that is cheap; NULL: unknown */
  EbbTensor
      *original;     /* the parameter that this is but for its place in the graph: ops read and keep that; NULL: none */
  EbbTensor *shadow; /* a parameter's copy in a lower precision for autocast, valid for one version of the storage */
  guint64 shadow_birth;
  guint shadow_version;
  int n_uses; /* of a parameter: nodes of live graphs that hold it as an operand or for backward */
  struct _EbbParameterOwner *owner; /* of a parameter on several ranks, not owned; NULL: none */
  struct _EbbPartition *partition; /* of a parameter of which this rank has a part, not owned; NULL: it has the whole */
};

/* A new tensor over @storage (takes its own reference). @strides NULL: contiguous. */
EbbTensor *ebb_tensor_new_view (EbbStorage *storage,
                                gint64 offset,
                                const gint64 *shape,
                                const gint64 *strides,
                                guint n_dims,
                                EbbDType dtype);
/* A new tensor over new memory; never fails on shapes. NULL with @error if memory can't be met. */
EbbTensor *ebb_tensor_new_uninitialized (const gint64 *shape,
                                         guint n_dims,
                                         EbbDType dtype,
                                         EbbDevice *device,
                                         GError **error);
/* With a copy of @values, which lie in host memory. */
EbbTensor *ebb_tensor_new_from_values (const void *values,
                                       gsize n_values,
                                       const gint64 *shape,
                                       guint n_dims,
                                       EbbDType dtype,
                                       EbbDevice *device,
                                       GError **error);
/* Overwrites a contiguous tensor with @values from host memory; nothing happens to one without data. */
gboolean ebb_tensor_upload (EbbTensor *tensor,
                            const void *values,
                            GError **error);
/* Drops the gradient for good, that of a parameter's owner too: a step that does this doesn't depend on it. */
void ebb_tensor_zero_grad (EbbTensor *tensor);
/* The same view without graph; always a new tensor, a part if @tensor is one. */
EbbTensor *ebb_tensor_alias (EbbTensor *tensor);
/* Points @tensor at the storage of @other (same shape, dtype). For parameters: load, to (), shard. */
void ebb_tensor_swap_storage (EbbTensor *tensor,
                              EbbTensor *other);
/* TRUE if the holder of the one reference to @tensor may overwrite it: nobody else sees the tensor or its storage. */
gboolean ebb_tensor_is_unshared (EbbTensor *tensor);
/* The same of a tensor whose node, if it has one, doesn't read its values: TRUE if the result of the next op may lie in
 * its memory. */
gboolean ebb_tensor_is_spent (EbbTensor *tensor);
/* Every comparison of shapes is one of these two. */
gboolean ebb_view_has_shape (const EbbView *view,
                             const gint64 *shape,
                             guint n_dims);
#define ebb_shapes_equal(a, b) ebb_view_has_shape (a, (b)->shape, (guint) (b)->n_dims)
/* Requires a gradient: a leaf that asks for one, or made by a node. */
#define ebb_tensor_needs_grad(tensor) ((tensor)->requires_grad || (tensor)->node != NULL)
/* Data may be changed in place now? With grad mode on, not of a leaf that requires a gradient, nor of a node's result.
 */
gboolean ebb_tensor_check_writable (EbbTensor *tensor,
                                    const char *op_name,
                                    GError **error);

/* A tensor over foreign memory that @device can use, as ebb_tensor_new_from_pointer () makes it on the CPU. */
EbbTensor *ebb_tensor_new_over_memory (EbbDevice *device,
                                       guint64 address,
                                       const gint64 *shape,
                                       guint n_dims,
                                       const gint64 *strides,
                                       guint n_strides,
                                       EbbDType dtype,
                                       GDestroyNotify destroy,
                                       gpointer user_data,
                                       GError **error);

G_END_DECLS
