/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "tensor/dtype.h"

/* The boundary between ops and backends. An op fills an EbbLaunch: which kernel, the views it reads and writes, its
 * typed parameters. A backend runs it now (cpu) or puts a copy of it on a stream (sim, cuda); so a launch holds plain
 * data only. Backends know nothing of tensors' graphs; the launcher has checked shapes, dtypes and indices. */

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

/* Unless a kernel's line says otherwise: floating dtypes are f32 and bf16, arithmetic is f32, outputs are contiguous,
 * do not overlap inputs, and are written whole. "same view" in-place use is allowed where the line says "in place".
 * Row kernels take contiguous inputs seen as [rows, columns]. A NULL input is an optional operand left out. */
typedef enum
{
  /* -- elementwise: inputs are already expanded to the output's shape (strides 0), any strides, in place ----------- */
  EBB_KERNEL_COPY,          /* (x) -> y: any dtype to any dtype, any strides both; also cast and contiguous */
  EBB_KERNEL_FILL,          /* () -> y: fill.value; any dtype, any strides */
  EBB_KERNEL_ARANGE,        /* () -> y: arange.start + i * arange.step; any dtype but bool */
  EBB_KERNEL_UNARY,         /* (x) -> y of the same dtype: unary.op; NEG, ABS on integers too; LOGICAL_NOT gives bool */
  EBB_KERNEL_UNARY_GRAD,    /* (dy, x or NULL, y or NULL) -> dx: unary.op; which of x, y it needs: see EbbUnaryOp */
  EBB_KERNEL_BINARY,        /* (a, b) of one dtype -> y: binary.op; comparisons give bool; integers too */
  EBB_KERNEL_BINARY_SCALAR, /* (a) -> y: binary.op with the scalar binary.value as b, or as a if binary.reverse */
  EBB_KERNEL_WHERE,         /* (condition bool, a, b) -> y of a's dtype; any dtype */
  EBB_KERNEL_CLAMP,         /* (x) -> y: clamp.min, clamp.max; integers too */
  EBB_KERNEL_CLAMP_GRAD,    /* (dy, x) -> dx */
  EBB_KERNEL_ADD_SCALED,    /* (a, b) -> y = add_scaled.alpha * a + add_scaled.beta * b, floating; in place on a */
  EBB_KERNEL_TRIANGLE,      /* (x) [.., M, N] -> y: keeps column - row <= diagonal (lower) or >= (upper), else 0 */

  /* -- random: draw i of a call is lane i % 4 of Philox4x32-10 block offset + i / 4, i counted over the output in
   *    contiguous order ------------------------------------------------------------------------------------------- */
  EBB_KERNEL_UNIFORM,     /* () -> y: random.low + u * (random.high - random.low), u in [0, 1) with 24 bits */
  EBB_KERNEL_NORMAL,      /* () -> y: random.mean + random.std * z, Box-Muller on pairs of lanes */
  EBB_KERNEL_RANDINT,     /* () -> y i64/i32: low + draw % (high - low), 64-bit draws from two lanes each */
  EBB_KERNEL_DROPOUT,     /* (x) -> y = keep ? x / (1 - p) : 0; keep: u32 draw >= p * 2^32; contiguous; in place;
                            * its gradient is itself on dy */
  EBB_KERNEL_MULTINOMIAL, /* (weights f32 [rows, n]) -> index i64 [rows, samples], with replacement, by inverse
                            * cumulative sum */

  /* -- activations ------------------------------------------------------------------------------------------------- */
  EBB_KERNEL_BIAS_GELU,             /* (x [rows, n], bias [n] or NULL) -> y = gelu (x + bias): gelu.tanh; in place */
  EBB_KERNEL_BIAS_GELU_GRAD, /* (dy, x, bias or NULL) -> dx: in place on dy. (The bias gradient is a column sum.) */
  EBB_KERNEL_GATED_ACTIVATION,      /* (gate, up) -> y = f (gate) * up: gated.op is GELU, GELU_TANH or SILU; any strides
                                * of gate and up but the last, which is 1 */
  EBB_KERNEL_GATED_ACTIVATION_GRAD, /* (dy, gate, up) -> dgate or NULL, dup or NULL: dy contiguous, the others as above;
                                * either in place on dy */
  EBB_KERNEL_COLUMN_SUM,            /* (x [rows, n]) -> y f32 [n], += if column_sum.accumulate: bias gradients; rows are
                              * summed in a fixed order, blocks of rows in f32 pairwise */

  /* -- reductions: reduce.dims is a bit mask of reduced dimensions; any strides; the output has the kept dimensions
   *    with size 1 in the reduced ones ---------------------------------------------------------------------------- */
  EBB_KERNEL_REDUCE,     /* (x) -> y: reduce.op: SUM MEAN MAX MIN PROD SUM_SQUARES SUM_ABS MAX_ABS ANY ALL; integers
                         * sum in i64 */
  EBB_KERNEL_VAR,        /* (x) -> var, mean as the sum of two numbers: reduce.correction */
  EBB_KERNEL_ARG_REDUCE, /* (x) -> value, index i64 (first winner): one dimension: reduce.op MAX or MIN */
  EBB_KERNEL_TOPK,       /* (x [rows, n]) -> values, indices i64 [rows, topk.k], sorted, largest or smallest first */

  /* -- rows -------------------------------------------------------------------------------------------------------- */
  EBB_KERNEL_SOFTMAX,            /* (x [rows, n]) -> y; softmax.log for log-softmax; in place */
  EBB_KERNEL_SOFTMAX_GRAD,       /* (dy, y) -> dx; softmax.log */
  EBB_KERNEL_LAYER_NORM, /* (x [rows, n], weight or NULL, bias or NULL) -> y, mean f32 [rows], rstd f32 [rows] */
  EBB_KERNEL_LAYER_NORM_GRAD,    /* (dy, x, weight or NULL, mean, rstd, dsum or NULL) -> dx (+ dsum), dweight f32 or
                                * NULL, dbias f32 or NULL; += if norm.accumulate_weight / _bias; dx in place on dy or
                                * dsum */
  EBB_KERNEL_RMS_NORM,      /* (x, weight or NULL) -> y, rstd: any strides of x but the last, which is 1; the factor
                             * is 1 + weight if norm.unit_offset */
  EBB_KERNEL_RMS_NORM_GRAD, /* (dy, x, weight or NULL, rstd, dsum or NULL) -> dx (+ dsum), dweight f32 or NULL; x as
                             * above, the rest as of layer norm */
  EBB_KERNEL_BATCH_NORM,         /* (x [N, C, L], weight, bias, running_mean, running_var: each or NULL) -> y, mean f32
                                * [C], rstd f32 [C]; norm.training: batch statistics, and running ones are moved IN
                                * PLACE by norm.momentum (unbiased variance), else the running ones are used */
  EBB_KERNEL_BATCH_NORM_GRAD,    /* (dy, x, weight or NULL, mean, rstd) -> dx, dweight f32 or NULL, dbias f32 or
                                * NULL; as above */
  EBB_KERNEL_ADD_LAYER_NORM,     /* (x, residual, weight, bias) -> sum = residual + dropout (x), y = norm (sum), mean,
                                * rstd; norm.p = 0: no draw; sum may be the same view as residual or x */
  EBB_KERNEL_ADD_RMS_NORM,       /* (x, residual, weight or NULL, branch weight or NULL) -> sum, y, rstd, branch rstd or
                                * NULL: as ADD_LAYER_NORM with RMS norms, norm.unit_offset; if norm.normalizes_branch,
                                * sum = residual + dropout (norm (x)), and sum is not the same view as another */
  EBB_KERNEL_CROSS_ENTROPY,      /* (logits [rows, n], target i64/i32 [rows], weight unused NULL) -> loss f32 [rows],
                                * logsumexp f32 [rows, 2] as the sum of two numbers; ignored rows give 0;
                                * xent.smoothing; if xent.cap is not 0 each logit counts as cap * tanh (logit / cap),
                                * in the next two as well */
  EBB_KERNEL_CROSS_ENTROPY_GRAD, /* (dloss f32 [rows] (stride 0 allowed), logits, target, logsumexp) -> dlogits; in
                                * place on logits. The logits may be of classes xent.first on alone, of all of which
                                * logsumexp is; then without smoothing */
  EBB_KERNEL_CROSS_ENTROPY_PART, /* (logits [rows, n] of classes xent.first on, target) -> f32 [rows, 3]: their
                                * logsumexp as the sum of two numbers, the target's logit or 0 if it is not theirs;
                                * ignored rows give 0 */
  EBB_KERNEL_CROSS_ENTROPY_JOIN, /* (f32 [parts, rows, 3] of them, target) -> loss f32 [rows], logsumexp f32 [rows, 2];
                                * the parts are summed in their order */

  /* -- indices (checked by the launcher) --------------------------------------------------------------------------- */
  EBB_KERNEL_INDEX_SELECT, /* (x [outer, n, inner], index i64/i32 [k]) -> y [outer, k, inner]; also embedding; any
                                * dtype */
  EBB_KERNEL_INDEX_ADD,    /* (source [outer, k, inner], index [k]) -> y [outer, n, inner] += source at index; y f32
                                * when floating, source f32 or bf16; a fixed order of additions per row of y, threads
                                * split y's rows (or inner), never atomics */
  EBB_KERNEL_GATHER,       /* (x, index i64 of y's shape) -> y: along index.dim; any strides */
  EBB_KERNEL_SCATTER_ADD,  /* (source, index) -> y += : along index.dim, y of its own shape; fixed order */
  EBB_KERNEL_INDEX_CHECK,  /* (index i64/i32) -> worst i64 [1]: the first value outside [0, index.limit) other than
                                * index.ignore, or -1 << 62 if there is none; contiguous input */

  /* -- positions --------------------------------------------------------------------------------------------------- */
  EBB_KERNEL_ROTARY, /* (x [B, T, H, D], inverse frequencies f32 [P], starts i64/i32 [B, T] or NULL) -> y: rotates x[i]
                      * and x[i + P], i < P, by f32 (position) * frequency i / rotary.ntk ^ (i / P), in f32, and
                      * multiplies by rotary.factor; the rest of D is copied. position = rotary.first + t - start, start
                      * being clamped to [0, first + t]. rotary.reversed: by minus the angle. Any strides of x and y but
                      * the last, which is 1, and any of starts; in place */

  /* -- products ---------------------------------------------------------------------------------------------------- */
  EBB_KERNEL_MATMUL,         /* (a [.., M, K], b [.., K, N], bias [N] or NULL) -> c [.., M, N] : batches broadcast
                                * (strides 0), a and b with any strides of which one of the last two is 1;
                                * c += if matmul.accumulate; a and b f32 or both bf16; c f32 or bf16 */
  EBB_KERNEL_ATTENTION,      /* (q [B, H, T, D], k [B, Hk, S, D], v [B, Hk, S, D], mask or NULL, starts or NULL) -> o
                              * [B, H, T, D], logsumexp f32 [B, H, T, 2]: the largest score of a row, and the logarithm
                              * of its sum of powers beside that, both to base 2. Any strides but the last is 1 (o
                              * too). mask: bool, where true is to attend, expanded to [B, H or 1, T or 1, S] with
                              * strides 0, or a floating bias of that shape. starts: i64/i32 [B, T], any strides. Query
                              * t has position attention.first_query + t among the keys. It attends to keys from
                              * starts[b, t] on (one below 0 is 0, one above its position hides all), above position -
                              * window if there is a window, and up to its position if causal. softcap, unless 0:
                              * scores become softcap * tanh (score / softcap) before the mask. A row without any key
                              * gives 0, logsumexp -inf and 0. Dropout on the probabilities: draw index
                              * ((b * H + h) * T + t) * S + s. H a multiple of Hk */
  EBB_KERNEL_ATTENTION_GRAD, /* (do, q, k, v, o, logsumexp, mask or NULL, starts or NULL) -> dq, dk, dv with the
                              * strides given */

  /* -- optimizers: contiguous, in place on outputs ----------------------------------------------------------------- */
  EBB_KERNEL_ADAMW, /* (grad f32/bf16) -> parameter, exp_avg, exp_avg_sq: adamw.*; both f32, or both bf16, the second
                     * with stochastic rounding: element i of block b of EBB_MOMENT_BLOCK draws 16 bits from
                     * philox.offset + b * 32 on; or both u8 codes, then also -> absmax f32 [blocks] of each */
  EBB_KERNEL_SGD,           /* (grad) -> parameter, momentum f32 or NULL: sgd.* */
  EBB_KERNEL_MOMENT_ENCODE, /* (x f32) -> codes u8, absmax f32 [blocks]: moment.is_signed */
  EBB_KERNEL_MOMENT_DECODE, /* (codes u8, absmax f32) -> x f32 */

  EBB_N_KERNELS
} EbbKernel;

/* What a gradient needs: x, y or none; said in ebb_unary_ops[] (tensor/ops). */
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
  EBB_BINARY_AND, /* logical: bool */
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
  } xent;
  struct
  {
    int dim;
    gint64 limit, ignore;
    gboolean has_ignore;
  } index;
  struct
  {
    gint64 first;
    double factor, ntk;
    gboolean reversed;
  } rotary;
  struct
  {
    gboolean accumulate;
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
    EbbPhilox philox;
    double l2; /* of the parameter, that is added to the gradient */
  } adamw;
  struct
  {
    double lr, momentum, weight_decay, dampening, grad_scale;
    gboolean nesterov, first;
  } sgd;
  struct
  {
    gboolean is_signed;
  } moment;
} EbbKernelParams;

typedef struct
{
  EbbKernel kernel;
  guint n_inputs, n_outputs;
  const EbbView *inputs[EBB_LAUNCH_MAX_INPUTS]; /* NULL: left out */
  EbbView *outputs[EBB_LAUNCH_MAX_OUTPUTS];     /* NULL: not wanted */
  EbbKernelParams params;
} EbbLaunch;

/* Returns FALSE with @error set; never on shapes, which the launcher has checked. */
typedef gboolean (*EbbKernelFunc) (const EbbLaunch *launch,
                                   GError **error);

const char *ebb_kernel_get_name (EbbKernel kernel);

/* The cost of attention with @params where each pair of a query and a key that see each other costs @of_pair: by
 * convention half of all pairs where it is causal and no more. Masks and starts don't count. */
guint64 ebb_attention_count_flop (const EbbKernelParams *params,
                                  gint64 n_queries,
                                  gint64 n_keys,
                                  guint64 of_pair);

G_END_DECLS
