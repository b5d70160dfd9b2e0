/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/dtype.h"

/* The boundary between ops and backends. An op fills an EbbLaunch: which kernel, the views it reads and writes, its
 * typed parameters. A backend runs it now (cpu) or puts a copy of it on a stream (sim, cuda); so a launch holds plain
 * data only. Backends know nothing of tensors' graphs. The launcher has checked shapes and dtypes; indices are data,
 * which the kernels that read them check. */

G_BEGIN_DECLS

#define EBB_MAX_DIMS 8
#define EBB_LAUNCH_MAX_INPUTS 10
#define EBB_LAUNCH_MAX_OUTPUTS 6

/* Elements of an 8-bit moment that share a scale, see tensor/cpu/simd/moment-private.h. */
#define EBB_MOMENT_BLOCK 256

typedef struct
{
  void *data; /* first element */
  EbbDType dtype;
  int n_dims;
  gint64 shape[EBB_MAX_DIMS];
  gint64 strides[EBB_MAX_DIMS]; /* in elements; 0 broadcasts; never negative */
} EbbView;

static inline gint64
ebb_view_count_elements (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims; i++)
    n *= view->shape[i];
  return n;
}

static inline gboolean
ebb_view_is_contiguous (const EbbView *view)
{
  gint64 expected = 1;
  gboolean dense = TRUE;

  for (int i = view->n_dims; i-- > 0;)
    {
      if (view->shape[i] == 0) /* what has no elements is dense, whatever its strides are */
        return TRUE;
      dense = dense && (view->shape[i] == 1 || view->strides[i] == expected);
      expected *= view->shape[i];
    }
  return dense;
}

/* The kernels of tensor/backend/kernel-list-private.h. */
typedef enum
{
#define EBB_KERNEL(NUMBER, name, cost) EBB_KERNEL_##NUMBER,
#include "tensor/backend/kernel-list-private.h"
  EBB_N_KERNELS
} EbbKernel;

/* The comments name the tensor that the gradient needs, x, y or none; ebb_unary_ops[] (tensor/ops) has the same. */
typedef enum
{
  EBB_UNARY_NEG,
  EBB_UNARY_ABS,       /* x */
  EBB_UNARY_EXP,       /* y */
  EBB_UNARY_LOG,       /* x */
  EBB_UNARY_SQRT,      /* y */
  EBB_UNARY_RSQRT,     /* y */
  EBB_UNARY_SQUARE,    /* x */
  EBB_UNARY_SIN,       /* x */
  EBB_UNARY_COS,       /* x */
  EBB_UNARY_TANH,      /* y */
  EBB_UNARY_RELU,      /* y */
  EBB_UNARY_GELU,      /* x */
  EBB_UNARY_GELU_TANH, /* x */
  EBB_UNARY_SILU,      /* x */
  EBB_UNARY_SIGMOID,   /* y */
  EBB_UNARY_SOFT_CAP,  /* y: unary.cap * tanh (x / unary.cap) */
  EBB_UNARY_LOGICAL_NOT,
  EBB_N_UNARY_OPS
} EbbUnaryOp;

typedef enum
{
  EBB_BINARY_ADD,
  EBB_BINARY_SUB,
  EBB_BINARY_MUL,
  EBB_BINARY_DIV, /* integers: floor division; division by zero gives 0 */
  EBB_BINARY_POW,
  EBB_BINARY_MAXIMUM,
  EBB_BINARY_MINIMUM,
  EBB_BINARY_EQ,
  EBB_BINARY_NE,
  EBB_BINARY_LT,
  EBB_BINARY_LE,
  EBB_BINARY_GT,
  EBB_BINARY_GE,
  EBB_BINARY_AND, /* of bits for integers and bool, logical for floats */
  EBB_BINARY_OR,
  EBB_N_BINARY_OPS
} EbbBinaryOp;

typedef enum
{
  EBB_REDUCE_SUM,
  EBB_REDUCE_MEAN,
  EBB_REDUCE_MAX,
  EBB_REDUCE_MIN,
  EBB_REDUCE_PROD,
  EBB_REDUCE_SUM_SQUARES,
  EBB_REDUCE_SUM_ABS,
  EBB_REDUCE_MAX_ABS,
  EBB_REDUCE_ANY,
  EBB_REDUCE_ALL
} EbbReduceKind;

/* One draw's name: see tensor/random.c */
typedef struct
{
  guint64 seed;
  guint64 offset; /* in blocks of four 32-bit numbers */
} EbbPhilox;

typedef union
{
  struct
  {
    double value;
  } fill;
  struct
  {
    double start, step;
  } arange;
  struct
  {
    EbbUnaryOp op;
    double cap;
  } unary;
  struct
  {
    EbbBinaryOp op;
    double value;
    gboolean reverse;
  } binary;
  struct
  {
    double min, max;
  } clamp;
  struct
  {
    double alpha, beta;
  } add_scaled;
  struct
  {
    gint64 diagonal;
    gboolean upper;
  } triangle;
  struct
  {
    EbbPhilox philox;
    double low, high, mean, std, p;
  } random;
  struct
  {
    gboolean tanh;
  } gelu;
  struct
  {
    EbbUnaryOp op;
  } gated;
  struct
  {
    gboolean accumulate;
  } column_sum;
  struct
  {
    EbbReduceKind op;
    guint32 dims;
    double correction;
  } reduce;
  struct
  {
    gint64 k;
    gboolean largest;
  } topk;
  struct
  {
    gboolean log;
  } softmax;
  struct
  {
    double eps, momentum, p;
    EbbPhilox philox;
    gboolean training, accumulate_weight, accumulate_bias, unit_offset, normalizes_branch;
  } norm;
  struct
  {
    gint64 ignore_index;
    double smoothing;
    gint64 first; /* class of the first column */
    double cap;   /* 0: none */
    gint64 n_classes, first_row;
  } xent;
  struct
  {
    int dim;
  } index;
  struct
  {
    gint64 first;
    double factor, ntk;
    gboolean reversed;
  } rotary;
  struct
  {
    gint64 row, column, width;
  } dequantize;
  struct
  {
    gboolean accumulate;
    gint64 row_block;
  } matmul;
  struct
  {
    double scale, p, softcap; /* softcap: 0 without */
    EbbPhilox philox;
    gboolean causal;
    gint64 first_query, window; /* window: 0 without */
  } attention;
  struct
  {
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    gint64 step;
    EbbPhilox philox; /* of the second moment in bf16 */
    double l2;        /* of the parameter, that is added to the gradient */
    EbbDType grad_dtype, dtype, moment_dtype;
    gboolean rounds_at_random; /* the parameter */
    EbbPhilox rounding;        /* of the parameter then */
  } adamw;
  struct
  {
    double lr, momentum, weight_decay, dampening, grad_scale;
    gboolean nesterov, first, rounds_at_random;
    EbbPhilox rounding;
    gint64 first_element;
  } sgd;
  struct
  {
    gboolean is_signed;
  } moment;
  struct
  {
    EbbDType dtype;
  } squared_norm;
  struct
  {
    gboolean max;
  } norm_sum;
  struct
  {
    double scale, max_norm, p;
  } clip;
  struct
  {
    int op; /* a value of EbbReduceOp: 0 sum, 1 mean, 2 least, 3 greatest */
  } reduce_ranks;
} EbbKernelParams;

/* One tensor's part in a launch over many: see EBB_KERNEL_ADAMW and EBB_KERNEL_SQUARED_NORM. */
#define EBB_LAUNCH_ITEM_DATA 6

typedef struct
{
  void *data[EBB_LAUNCH_ITEM_DATA]; /* NULL: left out */
  gint64 n_elements;
  gint64 first_element; /* in the full parameter */
  guint64 philox_seed;
} EbbLaunchItem;

typedef struct
{
  EbbKernel kernel;
  guint n_inputs, n_outputs;
  const EbbView *inputs[EBB_LAUNCH_MAX_INPUTS]; /* NULL: left out */
  EbbView *outputs[EBB_LAUNCH_MAX_OUTPUTS];     /* NULL: not wanted */
  EbbKernelParams params;
  gboolean changes; /* an output had values before, which last: after an index fault the kernel leaves them */
  const char *op; /* the op that launches it, in messages; lives as long as the process. NULL: the kernel's own name */
  guint n_items;
  const EbbLaunchItem *items; /* a backend that enqueues copies them */
  /* The workspace that get_workspace () of the backend asked for, in its memory; ebb_device_launch () fills them in.
   * The kernel has it to itself, uninitialized, until it is done. */
  void *workspace;
  gsize workspace_size;
} EbbLaunch;

/* Returns FALSE with @error set; never on shapes, which the launcher has checked. */
typedef gboolean (*EbbKernelFunc) (const EbbLaunch *launch,
                                   GError **error);

const char *ebb_kernel_get_name (EbbKernel kernel);

/* Operands of a launch: its inputs, then from EBB_LAUNCH_MAX_INPUTS on its outputs. NULL: there is none. */
#define EBB_LAUNCH_MAX_OPERANDS (EBB_LAUNCH_MAX_INPUTS + EBB_LAUNCH_MAX_OUTPUTS)
const EbbView *ebb_launch_get_operand (const EbbLaunch *launch,
                                       guint k);

/* Bytes of the elements that are there in memory: along a dimension that is broadcast there is one. */
guint64 ebb_view_count_bytes (const EbbView *view);

/* The cost of a launch, by its kernel's row in the list: bytes that it reads or writes of one operand (0 if there is
 * none), bytes that it reads and writes in all, and operations (0 unless it is a product or attention). */
guint64 ebb_launch_count_operand_bytes (const EbbLaunch *launch,
                                        guint k);
guint64 ebb_launch_count_bytes (const EbbLaunch *launch);
guint64 ebb_launch_count_flop (const EbbLaunch *launch);

/* "embedding: index 7 at position 12 is out of range; indices must be in [0, 5)": what kernels that check indices
 * report.
 * @op: launch->op, or the kernel's name. */
char *ebb_index_fault_to_string (const char *op,
                                 gint64 index,
                                 gint64 position,
                                 gint64 limit);

/* The cost of attention with @params where each pair of a query and a key that see each other costs @of_pair: by
 * convention half of all pairs where it is causal and no more. Masks and starts don't count. */
guint64 ebb_attention_count_flop (const EbbKernelParams *params,
                                  gint64 n_queries,
                                  gint64 n_keys,
                                  guint64 of_pair);

G_END_DECLS
