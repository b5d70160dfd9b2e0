/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/autograd/autograd.h"
#include "tensor/autograd/op-private.h"
#include "tensor/autograd/saved-tensor.h"

/* The graph: a node for each recorded op, with an edge for each operand and the tensors its backward needs. Nodes are
 * numbered as they are made; a node's consumers have greater numbers, so running the greatest first is always right,
 * and the order in which gradients are summed is the same however the graph's tensors are kept. */

G_BEGIN_DECLS

static inline void
ebb_auto_pop_grad_enabled (const gboolean *pushed)
{
  ebb_pop_grad_enabled ();
}

/* Gradients are off from here to the end of the scope. */
#define EBB_AUTO_NO_GRAD()                                                               \
  const gboolean no_grad __attribute__ ((cleanup (ebb_auto_pop_grad_enabled), unused)) = \
      (ebb_push_grad_enabled (FALSE), TRUE)

typedef struct
{
  EbbNode *node;   /* the operand was made by it, as its output number... */
  EbbTensor *leaf; /* or it is a leaf that wants a gradient; both NULL: no gradient flows */
  guint16 output_index;
} EbbEdge;

typedef struct _EbbRematerialized EbbRematerialized;
typedef struct _EbbPacked EbbPacked;

typedef struct
{
  EbbRematerialized *rematerialized; /* how backward computes it, or... */
  EbbTensor *tensor;                 /* the tensor itself, or... */
  EbbHandle *handle;                 /* that the hooks returned for it */
  EbbPacked *packed;                 /* with @handle: the hooks, and the tensor that they packed */
  guint64 birth;                     /* of its storage */
  guint version;
  guint held : 1;      /* counted as saved */
  guint used : 1;      /* counted among the uses of a parameter */
  guint as_shadow : 1; /* @tensor is a parameter whose copy in shadow_dtype was the operand */
  guint shadow_dtype : 8;
} EbbSavedTensor;

struct _EbbNode
{
  int ref_count;
  guint8 n_inputs, n_outputs, n_saved;
  guint16 size;               /* of this node with what follows it, in bytes */
  guint8 released;            /* a backward pass has used it up */
  guint8 has_released_leaves; /* it no longer counts among the uses of its leaves */
  GQuark module_path;         /* of the module whose call has made it, for those who watch; 0: not known */
  const EbbOp *op;
  guint64 sequence;
  EbbRematerialization *rematerialization; /* that its result carries; NULL: none */
  GObject *owner;                          /* of the call: what backward talks over; NULL: nothing */
  gpointer task;                           /* the backward pass that has gradients waiting here */
  EbbKernelParams params;
  double extra_f[4];
  gint64 extra_i[EBB_MAX_DIMS + 4];
  guint8 output_dtypes[EBB_OP_MAX_OUTPUTS];
  EbbTensor **grads;     /* [n_outputs], waiting */
  EbbEdge *edges;        /* [n_inputs] */
  EbbSavedTensor *saved; /* [n_saved] */
};

/* Makes the node of a call that is about to run, with its operands saved; NULL with @error if a hook fails. */
EbbNode *ebb_node_begin (EbbOpCall *call,
                         GError **error);
/* Saves the results of a call that has run (@ok), hangs @node behind them, and gives the reference to @node up. */
gboolean ebb_node_end (EbbNode *node,
                       EbbOpCall *call,
                       gboolean ok,
                       GError **error);
EbbNode *ebb_node_ref (EbbNode *node);
void ebb_node_unref (EbbNode *node);
const EbbOp *ebb_node_get_op (EbbNode *node);
/* No pass will go through @node any more: its leaves are counted as used once less. */
void ebb_node_release_leaves (EbbNode *node);

gboolean ebb_saved_tensor_save (EbbSavedTensor *saved,
                                const EbbOp *op,
                                EbbTensor *tensor,
                                EbbTensor *edge,
                                GError **error);
/* Saves the copy of @parameter in @dtype, which may be gone already: @parameter is kept, and its copy made again. */
gboolean ebb_saved_tensor_save_shadow (EbbSavedTensor *saved,
                                       const EbbOp *op,
                                       EbbTensor *parameter,
                                       EbbDType dtype,
                                       GError **error);
EbbTensor *ebb_saved_tensor_unpack (EbbSavedTensor *saved,
                                    const EbbOp *op,
                                    GError **error);
void ebb_saved_tensor_clear (EbbSavedTensor *saved);
#define ebb_saved_tensor_is_empty(saved) \
  ((saved)->rematerialized == NULL && (saved)->tensor == NULL && (saved)->handle == NULL)

EbbTensor *ebb_tensor_new_zeros_like (EbbTensor *tensor,
                                      GError **error);
/* The copy of a parameter in @dtype, made anew when the parameter has changed. */
EbbTensor *ebb_tensor_get_shadow (EbbTensor *parameter,
                                  EbbDType dtype,
                                  GError **error);
EbbTensor *ebb_tensor_convert (EbbTensor *tensor,
                               EbbDType dtype,
                               GError **error);

/* TRUE if the backward pass that runs @node returns gradients instead of adding to those of leaves. */
gboolean ebb_backward_pass_captures (EbbNode *node);

/* Called once when the outermost backward pass of this thread has ended, in whatever way; or as soon as the node that
 * runs on this thread has given its gradients. FALSE with @error set makes the pass fail. */
typedef gboolean (*EbbBackwardEndFunc) (gpointer data,
                                        GError **error);
void ebb_backward_call_at_end (EbbBackwardEndFunc func,
                               gpointer data);
void ebb_backward_call_after_node (EbbBackwardEndFunc func,
                                   gpointer data);
gboolean ebb_backward_run_at_end (GError **error);
gboolean ebb_backward_run_after_node (GError **error);
/* A pass inside a node of another pass runs the functions of its own nodes and leaves those of that node: begin returns
 * them, end restores them. The end of a failed pass runs the functions that the pass has not come to. */
gpointer ebb_backward_begin_pass (void);
gboolean ebb_backward_end_pass (gpointer outer,
                                GError **error);

G_END_DECLS
