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

/* Unless a kernel's line says otherwise: floating dtypes are f32 and bf16, arithmetic is f32, outputs are contiguous,
 * do not overlap inputs, and are written whole. "same view" in-place use is allowed where the line says "in place".
 * Row kernels take contiguous inputs seen as [rows, columns]. A NULL input is an optional operand left out.
 *
 * Kernels whose line says "checks indices" fail on an index outside [0, limit) with EBB_ERROR_INDEX, see
 * ebb_index_fault_to_string (), and then write nothing that lasts. A device that works behind the caller's back keeps
 * the smallest position of the first launch with such an index and reports it by the next call that takes a GError;
 * until then the indices that it uses are valid ones, and kernels whose line says "lasting" change nothing.
 *
 * f64: an i64 view whose elements hold the bits of f64. No tensor of the library has that type; sums that ranks
 * exchange have. */
typedef enum
{
  /* -- elementwise: inputs are already expanded to the output's shape (strides 0), any strides, in place ----------- */
  EBB_KERNEL_COPY,          /* (x) -> y: any dtype to any dtype, any strides both; also cast and contiguous */
  EBB_KERNEL_FILL,          /* () -> y: fill.value; any dtype, any strides */
  EBB_KERNEL_ARANGE,        /* () -> y: arange.start + i * arange.step; any dtype but bool */
  EBB_KERNEL_UNARY,         /* (x) -> y of the same dtype: unary.op; NEG, ABS on integers too; LOGICAL_NOT gives bool */
  EBB_KERNEL_UNARY_GRAD,    /* (dy, x or NULL, y or NULL) -> dx: unary.op; which of x, y it needs: see EbbUnaryOp */
  EBB_KERNEL_BINARY,        /* (a, b) of one dtype -> y: binary.op; comparisons give bool; integers too */
  EBB_KERNEL_BINARY_SCALAR, /* (a, scalar f32 [1] or NULL) -> y: binary.op with the scalar as b, or as a if
                             * binary.reverse; the scalar is binary.value where it is NULL */
  EBB_KERNEL_WHERE,         /* (condition bool, a, b) -> y of a's dtype; any dtype */
  EBB_KERNEL_CLAMP,         /* (x) -> y: clamp.min, clamp.max; integers too */
  EBB_KERNEL_CLAMP_GRAD,    /* (dy, x) -> dx */
  EBB_KERNEL_ADD_SCALED,    /* (a, b) -> y = add_scaled.alpha * a + add_scaled.beta * b, floating; of a and b one may be
                             * bf16 where y is f32; in place on a */
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
  EBB_KERNEL_COLUMN_SUM, /* (x [rows, n]) -> y f32 [n], += if column_sum.accumulate: bias gradients. Rows of x may have
                          * any stride, as those of logits have. They are summed in a fixed order, blocks of rows in f32
                          * pairwise */

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
                                * PLACE by norm.momentum (unbiased variance; lasting), else the running ones are used */
  EBB_KERNEL_BATCH_NORM_GRAD,    /* (dy, x, weight or NULL, mean, rstd) -> dx, dweight f32 or NULL, dbias f32 or
                                * NULL; as above */
  EBB_KERNEL_ADD_LAYER_NORM,     /* (x, residual, weight, bias) -> sum = residual + dropout (x), y = norm (sum), mean,
                                * rstd; norm.p = 0: no draw; sum may be the same view as residual or x */
  EBB_KERNEL_ADD_RMS_NORM,       /* (x, residual, weight or NULL, branch weight or NULL) -> sum, y, rstd, branch rstd or
                                * NULL: as ADD_LAYER_NORM with RMS norms, norm.unit_offset; if norm.normalizes_branch,
                                * sum = residual + dropout (norm (x)), and sum is not the same view as another */
  EBB_KERNEL_CROSS_ENTROPY,      /* checks indices, in this kernel and the next two: targets other than
                                * xent.ignore_index, against all classes (xent.n_classes), also where the logits are
                                * of some of them; row r of the launch is at position xent.first_row + r; rows of
                                * logits and of dlogits are apart if the backend has a row_alignment.
                                * (logits [rows, n], target i64/i32 [rows], weight unused NULL) -> loss f32 [rows],
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

  /* -- indices: each checks indices, against the size of the dimension; a position is counted in the contiguous order
   *    of the index view ------------------------------------------------------------------------------------------- */
  EBB_KERNEL_INDEX_SELECT, /* (x [outer, n, inner], index i64/i32 [k]) -> y [outer, k, inner]; also embedding; any
                                * dtype */
  EBB_KERNEL_INDEX_ADD,    /* (source [outer, k, inner], index [k]) -> y [outer, n, inner] += source at index; y f32
                                * when floating, source f32 or bf16; a fixed order of additions per row of y, threads
                                * split y's rows (or inner), never atomics */
  EBB_KERNEL_GATHER,       /* (x, index i64 of y's shape) -> y: along index.dim; any strides */
  EBB_KERNEL_SCATTER_ADD,  /* (source, index) -> y += : along index.dim, y of its own shape; fixed order */

  /* -- positions --------------------------------------------------------------------------------------------------- */
  EBB_KERNEL_ROTARY, /* (x [B, T, H, D], inverse frequencies f32 [P], starts i64/i32 [B, T] or NULL) -> y: rotates x[i]
                      * and x[i + P], i < P, by f32 (position) * frequency i / rotary.ntk ^ (i / P), in f32, and
                      * multiplies by rotary.factor; the rest of D is copied. position = rotary.first + t - start, start
                      * being clamped to [0, first + t]. rotary.reversed: by minus the angle. Any strides of x and y but
                      * the last, which is 1, and any of starts; in place */

  /* -- products ---------------------------------------------------------------------------------------------------- */
  EBB_KERNEL_DEQUANTIZE, /* (codes u8, scales, then of nf4 the nested absmax f32, the map f32 [256] and the offset f32
                          * [1]) -> y [rows, columns] f32 or bf16: the elements from (dequantize.row, dequantize.column)
                          * on of a weight with rows of dequantize.width elements. The scales of nf4 are u8, one for
                          * each block, those of int8 f32, one for each row. See tensor/backend/quantized-private.h */
  EBB_KERNEL_MATMUL,         /* (a [.., M, K], b [.., K, N], bias [N] or NULL) -> c [.., M, N] : batches broadcast
                                * (strides 0), a and b with any strides of which one of the last two is 1;
                                * c += if matmul.accumulate; a and b f32 or both bf16; c f32 or bf16, its columns dense
                                * and its rows with any stride;
                                * of bf16 operands and to bf16, an f32 bias may be rounded before it is added.
                                * matmul.row_block: K is added up in blocks of so many, see EbbBackend; 0: as one sum */
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

  /* -- optimizers: contiguous, in place on outputs, lasting -------------------------------------------------------- */
  EBB_KERNEL_ADAMW, /* (scale f32 [1] or NULL; items): the data of items are gradient, parameter, exp_avg, exp_avg_sq,
                     * absmax f32 [blocks] of each or NULL; adamw.grad_dtype and adamw.dtype, the parameter's, are f32
                     * or bf16. The gradient counts times f32 (adamw.grad_scale * scale). Moments are of
                     * adamw.moment_dtype: f32; bf16, the second rounded at random; u8 codes with their absmax. A bf16
                     * parameter is rounded to the nearest, or at random. Element e of a full parameter draws 16 bits
                     * for each rounding: with b = e / EBB_MOMENT_BLOCK and p = e % EBB_MOMENT_BLOCK the low half
                     * (p < 128) or high half of word p % 128 from block philox.offset + b * 32 on; the seed is
                     * philox.seed ^ the item's philox_seed. Element i of an item is e = first_element + i */
  EBB_KERNEL_SGD,   /* (scale f32 [1] or NULL, grad) -> parameter f32 or bf16, momentum f32 or NULL: sgd.*; scale and
                     * rounding as above */
  EBB_KERNEL_MOMENT_ENCODE, /* (x f32) -> codes u8, absmax f32 [blocks]: moment.is_signed; new tensors */
  EBB_KERNEL_MOMENT_DECODE, /* (codes u8, absmax f32) -> x f32; a new tensor */

  /* -- norms of gradients, and what ranks exchange ----------------------------------------------------------------- */
  EBB_KERNEL_SQUARED_NORM, /* (items) -> y f32 [n_items]: the sum of squares of each item's data[0], dense, of
                            * squared_norm.dtype (f32 or bf16), in an order that its n_elements alone decides */
  EBB_KERNEL_NORM_SUM,     /* (x f32 or f64 [k, n], any strides) -> y f64 [n], any stride: over k, in its order and in
                            * f64, the sum, or the largest if norm_sum.max (NaN if one is NaN) */
  EBB_KERNEL_CLIP_FACTOR,  /* (total f64 [1], earlier factor f32 [1] or NULL) -> norm f32 [1], factor f32 [1]. In f64:
                            * scale = clip.scale * earlier factor; norm = |scale| * total^(1 / clip.p), a square root
                            * if p is 2, total if p is 1 or infinite; f = clip.max_norm / (norm + 1e-6); factor =
                            * scale * f if the norm is finite and f < 1, else scale */
  EBB_KERNEL_REDUCE_RANKS, /* (x [ranks, n], the ranks with any stride) -> y [n] of x's dtype: reduce_ranks.op, any
                            * dtype, rank after rank; f32 for 16-bit floats, i64 for integers; a NaN stays; sums of
                            * bool are logical or; means of integers round to zero. y may be one of x's rows */

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
