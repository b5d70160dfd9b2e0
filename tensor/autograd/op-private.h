/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <string.h>

#include "tensor/autograd/autograd.h"
#include "tensor/backend/kernel-private.h"
#include "tensor/error-private.h"
#include "tensor/random.h"
#include "tensor/tensor-private.h"

/* How an op is made. A public function such as ebb_tanh () checks its operands, describes its outputs in an EbbOpCall
 * and hands it to ebb_op_finish (), the one gate through which every op except views passes:
 *
 *   EbbOpCall call;
 *
 *   if (!ebb_op_begin (&call, &ebb_unary_ops[EBB_UNARY_TANH].op, error, 1, x))
 *     // FALSE if an error is set already, an operand is NULL or devices differ
 *     return NULL;
 *   call.params.unary.op = EBB_UNARY_TANH;
 *   ebb_op_add_output_like (&call, x);
 *   ebb_op_save_output (&call, 0);                           // what backward will need
 *   return ebb_op_finish1 (&call, error);                    // allocate, run, record: the one result
 *
 * The gate allocates the outputs, runs the op (unless a recompute has cached them or has stopped), and records an
 * autograd node if a gradient can flow. */

G_BEGIN_DECLS

#define EBB_OP_MAX_INPUTS 10
#define EBB_OP_MAX_OUTPUTS 5
#define EBB_OP_MAX_SAVED 10
#define EBB_MAX_REMATERIALIZE 4

typedef struct _EbbOp EbbOp;
typedef struct _EbbOpCall EbbOpCall;
typedef struct _EbbBackward EbbBackward;

/* The kinds of ops that policies and profiles distinguish. */
typedef enum
{
  EBB_OP_POINTWISE,
  EBB_OP_REDUCTION,
  EBB_OP_NORMALIZATION,
  EBB_OP_PRODUCT,
  EBB_OP_ATTENTION,
  EBB_OP_LOSS,
  EBB_OP_INDEXING,
  EBB_OP_RANDOM,
  EBB_OP_COPY,       /* casts, copies: never kept, never counted */
  EBB_OP_VIEW,       /* shares its input's storage: no kernel */
  EBB_OP_COLLECTIVE, /* moves values between ranks: no arithmetic of its own, but worth keeping */
  EBB_OP_GRADIENT    /* runs in backward only */
} EbbOpKind;

/* Whether the results are local shards. */
typedef enum
{
  EBB_OP_GIVES_SHARD_IF_INPUT, /* if an operand is one */
  EBB_OP_GIVES_SHARD,
  EBB_OP_GIVES_FULL
} EbbOpShard;

struct _EbbOp
{
  const char *name; /* as in the public function: "layer_norm" */
  EbbOpKind kind;
  EbbKernel kernel; /* launched with the call's inputs and outputs, unless @run is set */
  gboolean (*run) (EbbOpCall *call,
                   GError **error);
  gboolean (*backward) (EbbBackward *ctx,
                        GError **error); /* NULL: not differentiable */
  gboolean asks; /* backward () calls ebb_backward_get_saved () for tensors that may have to be rematerialized */
  EbbOpShard shard;
};

/* The parameters of a call, from which a result is rematerialized together with the operands. */
typedef struct
{
  EbbKernelParams params;
  gint64 extra_i[EBB_MAX_DIMS + 4];
  GObject *owner;
} EbbRematerializeArgs;

/* Rematerializes an output of a call to @output: one kernel, or one collective, on @operands. An operand that was left
 * out is NULL. */
typedef gboolean (*EbbRematerializeFunc) (const EbbRematerializeArgs *args,
                                          EbbTensor **operands,
                                          EbbTensor *output,
                                          GError **error);

struct _EbbOpCall
{
  const EbbOp *op;
  guint n_inputs, n_outputs, n_saved;
  EbbTensor *inputs[EBB_OP_MAX_INPUTS]; /* not owned; NULL where an optional one is left out. The kernel's operands */
  EbbTensor *edges[EBB_OP_MAX_INPUTS];       /* not owned; whose gradient backward gives: the inputs unless changed, as
                                           * when an input is a cast or contiguous stand-in without a node */
  EbbTensor *outputs[EBB_OP_MAX_OUTPUTS];    /* owned until finished */
  guint32 non_differentiable;                /* bit mask of outputs: index, statistics, ... Integer ones are anyway */
  guint32 updated;                           /* bit mask of inputs that the op moves and its outputs don't depend on */
  guint32 saved_is_output;                   /* bit mask over saved */
  EbbTensor *saved[EBB_OP_MAX_SAVED];        /* not owned; NULL allowed, comes back NULL */
  EbbTensor *temporaries[EBB_OP_MAX_INPUTS]; /* owned stand-ins, see ebb_op_contiguous () */
  guint n_temporaries;
  EbbRematerializeFunc
      rematerialize;                /* of output @rematerialized_output, see ebb_op_rematerialize_output (); or NULL */
  gboolean rematerializes_operands; /* for that, operands that can be rematerialized themselves are not saved either */
  guint8 rematerialized_output, n_rematerialize;
  gint8 rematerialize_from[EBB_MAX_REMATERIALIZE];
  EbbDevice *device;   /* where the outputs are made if there are no inputs; NULL: the CPU */
  GObject *owner;      /* not owned; what backward talks over, as a process group: the node keeps it. NULL: nothing */
  gboolean needs_grad; /* set by ebb_op_begin (): grad mode is on and an edge requires a gradient */
  EbbKernelParams params;
  struct
  {
    double f[4];
    gint64 i[EBB_MAX_DIMS + 4];
  } extra; /* plain data of the op's own, copied to the node */
};

struct _EbbBackward
{
  const EbbOp *op;
  guint n_inputs, n_outputs;
  EbbTensor **grad_outputs; /* NULL where no gradient came: zero. The function may steal one: take it, set NULL */
  EbbTensor *saved[EBB_OP_MAX_SAVED];
  EbbTensor *grad_inputs[EBB_OP_MAX_INPUTS]; /* out, owned; NULL: none. A dtype other than the edge's is cast */
  guint32 needs;                             /* bit i: the gradient of edge i is wanted */
  const EbbKernelParams *params;
  const gint64 *extra_i;
  const double *extra_f;
  EbbDevice *device; /* of the gradients */
  GObject *owner;    /* the call's, not owned */
  struct _EbbNode *node;
};

/* Begins a call with @n_inputs required operands (use ebb_op_add_optional () for those that may be NULL). */
gboolean ebb_op_begin (EbbOpCall *call,
                       const EbbOp *op,
                       GError **error,
                       guint n_inputs,
                       ...);
/* An operand that may be NULL; still must be on the same device: FALSE with @error otherwise (and the call cleared). */
gboolean ebb_op_add_optional (EbbOpCall *call,
                              EbbTensor *tensor,
                              GError **error);
/* Replaces input @index by a contiguous copy where it is not contiguous, the edge stays. FALSE: error, call cleared. */
gboolean ebb_op_contiguous (EbbOpCall *call,
                            guint index,
                            GError **error);
/* Replaces input @index by a cast stand-in (cached for parameters under autocast), the edge stays. */
gboolean ebb_op_cast (EbbOpCall *call,
                      guint index,
                      EbbDType dtype,
                      GError **error);

/* Several ops that follow each other cast one input alike, as the products of queries, keys and values do. Between
 * begin and end the ops of this thread share one copy of @input, which each of them may save. Ops of another
 * checkpointed frame make their own, and so do those that come after a change of @input in place. */
typedef struct _EbbSharedCast EbbSharedCast;

struct _EbbSharedCast
{
  EbbTensor *input; /* not owned */
  EbbTensor *copy;  /* NULL: none was needed yet */
  guint64 frame;
  guint64 version, birth; /* of the storage of @input, when @copy was made */
  EbbSharedCast *outer;
};

void ebb_shared_cast_begin (EbbSharedCast *self,
                            EbbTensor *input);
void ebb_shared_cast_end (EbbSharedCast *self);
/* Replaces input @index by a view expanded to @shape (strides 0); the edge stays. The shapes were checked. */
void ebb_op_expand (EbbOpCall *call,
                    guint index,
                    const gint64 *shape,
                    guint n_dims);
/* Describes the next output; allocated by ebb_op_finish (). */
void ebb_op_add_output (EbbOpCall *call,
                        EbbDType dtype,
                        const gint64 *shape,
                        guint n_dims);
void ebb_op_add_output_like (EbbOpCall *call,
                             EbbTensor *tensor);
/* Each call adds a tensor to ctx->saved, where backward finds them in this order. An input that stands in for a
 * parameter is saved as the parameter. */
void ebb_op_save_input (EbbOpCall *call,
                        guint index);
void ebb_op_save_output (EbbOpCall *call,
                         guint index);
/* Says that one cheap kernel, @func, rematerializes output @index bit for bit from @n operands that backward keeps
 * anyway: inputs by their index, outputs by ~index. A node that would save the output saves these instead. */
void ebb_op_rematerialize_output (EbbOpCall *call,
                                  guint index,
                                  EbbRematerializeFunc func,
                                  guint n,
                                  ...);
/* Gives up: drops what the call holds. Returns FALSE. */
gboolean ebb_op_clear (EbbOpCall *call);
/* Checks and normalizes a dimension of the first input as ebb_normalize_dim () does; if that fails, gives up. */
gboolean ebb_op_normalize_dim (EbbOpCall *call,
                               int *dim,
                               GError **error);
/* Fails with @format..., gives up and returns FALSE. */
#define ebb_op_fail(call, error, code, format, ...) \
  (ebb_error_set (error, code, "%s: " format, (call)->op->name, ##__VA_ARGS__), ebb_op_clear (call))
/* The same for a function that returns a pointer. */
#define ebb_op_fail_null(...) (ebb_op_fail (__VA_ARGS__), NULL)

/* Allocates, runs, records. The outputs are then owned by the caller in call->outputs. */
gboolean ebb_op_finish (EbbOpCall *call,
                        GError **error);
/* The same with a single (first) result returned, the other outputs dropped (they may have been saved). */
EbbTensor *ebb_op_finish1 (EbbOpCall *call,
                           GError **error);
/* The floating-point operations of a described call, by convention: 2 M N K for products, and those inside attention
 * (of a causal one, half) and fused losses; else one for each element of the results. */
guint64 ebb_op_call_get_flop (const EbbOpCall *call);
/* For view ops: @view shares the input's storage; records the node. */
EbbTensor *ebb_op_finish_view (EbbOpCall *call,
                               EbbTensor *view,
                               GError **error);

/* The same for @call->outputs, several views of one input; they are then owned by the caller. */
gboolean ebb_op_finish_views (EbbOpCall *call,
                              GError **error);

/* Where the outputs are made. */
EbbDevice *ebb_op_call_get_device (EbbOpCall *call);

/* Launches one kernel on @device now. For run () and backward () functions that need more than one. Skipped, returning
 * TRUE, when a recompute has stopped early. */
gboolean ebb_launch (EbbDevice *device,
                     EbbLaunch *launch,
                     GError **error);
/* In two pieces that are a few stores each: the compiler clears larger ones by an instruction that takes several times
 * as long to begin (tests/bench/tiny-op.c). */
static inline void
ebb_kernel_params_clear (EbbKernelParams *params)
{
  memset (params, 0, 64);
  memset ((char *) params + 64, 0, sizeof *params - 64);
}

/* Convenience: clears @launch and sets its kernel; then set params; then add operands (NULL allowed). */
void ebb_launch_init (EbbLaunch *launch,
                      EbbKernel kernel);
void ebb_launch_input (EbbLaunch *launch,
                       EbbTensor *tensor);
void ebb_launch_output (EbbLaunch *launch,
                        EbbTensor *tensor);

/* Backward helpers. All of backward runs without recording. */

/* A dense tensor for the gradient of edge @index, filled by the caller: FRESH memory, or, when the edge is a leaf that
 * already has a gradient of @dtype and contiguous layout, that very gradient with *accumulate TRUE: then the caller
 * adds into it, and sets ctx->grad_inputs[index] to the returned tensor as always. */
EbbTensor *ebb_backward_grad_buffer (EbbBackward *ctx,
                                     guint index,
                                     EbbDType dtype,
                                     const gint64 *shape,
                                     guint n_dims,
                                     gboolean *accumulate,
                                     GError **error);
/* grad_outputs[index] made contiguous in @dtype, owned; in place reuse is allowed when ebb_tensor_is_unshared (). */
EbbTensor *ebb_backward_take_grad (EbbBackward *ctx,
                                   guint index,
                                   EbbDType dtype,
                                   GError **error);
/* saved[index], owned, and released by the node unless the graph is retained: the caller may overwrite it, or hand it
 * over as a gradient, when ebb_tensor_is_unshared (). */
EbbTensor *ebb_backward_take_saved (EbbBackward *ctx,
                                    guint index);
/* saved[index], not owned, for an op that asks: a tensor that has to be rematerialized is so at the first call. */
EbbTensor *ebb_backward_get_saved (EbbBackward *ctx,
                                   guint index,
                                   GError **error);
/* A tensor to write a result of @tensor's shape and dtype to: @tensor itself (a new reference) if nobody else can see
 * it, else new memory. */
EbbTensor *ebb_tensor_new_reusing (EbbTensor *tensor,
                                   GError **error);
/* Sums @grad to @shape where broadcasting had expanded it; takes a reference if nothing is to be done. */
EbbTensor *ebb_sum_to_shape (EbbTensor *grad,
                             const gint64 *shape,
                             guint n_dims,
                             GError **error);

/* Shape helpers for ops. */
gboolean ebb_broadcast_shapes (const char *op_name,
                               EbbTensor *a,
                               EbbTensor *b,
                               gint64 *shape,
                               guint *n_dims,
                               GError **error);
/* Makes @dim in [-n, n) to [0, n), else an error that names @op_name, the value and the range. */
gboolean ebb_normalize_dim (const char *op_name,
                            int *dim,
                            guint n_dims,
                            GError **error);
char *ebb_shape_to_string (const gint64 *shape,
                           guint n_dims);

/* Takes n_numbers 32-bit draws from @generator (NULL: the thread's default): returns the name of the first. */
EbbPhilox ebb_generator_take (EbbGenerator *generator,
                              guint64 n_numbers);

G_END_DECLS
