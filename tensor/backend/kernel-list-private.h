/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Each kernel once: its contract, its name, and its cost, which is one of the structs in tensor/backend/kernel.c. No
 * header of its own: a file defines EBB_KERNEL (NUMBER, name, cost) and includes this list where the rows shall stand.
 *
 * Unless a kernel's line says otherwise: floating dtypes are f32 and bf16, arithmetic is f32, outputs are contiguous,
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

/* -- elementwise --------------------------------------------------------------------------------------------------- */
/* Inputs are already expanded to the output's shape (strides 0), any strides, in place. */

/* (x) -> y: any dtype to any dtype, any strides both; also cast and contiguous */
EBB_KERNEL (COPY, copy, operands)
/* () -> y: fill.value; any dtype, any strides */
EBB_KERNEL (FILL, fill, operands)
/* () -> y: arange.start + i * arange.step; any dtype but bool */
EBB_KERNEL (ARANGE, arange, operands)
/* (x) -> y of the same dtype: unary.op; NEG, ABS on integers too; LOGICAL_NOT gives bool */
EBB_KERNEL (UNARY, unary, operands)
/* (dy, x or NULL, y or NULL) -> dx: unary.op; which of x, y it needs: see EbbUnaryOp */
EBB_KERNEL (UNARY_GRAD, unary_grad, operands)
/* (a, b) of one dtype -> y: binary.op; comparisons give bool; integers too */
EBB_KERNEL (BINARY, binary, operands)
/* (a, scalar f32 [1] or NULL) -> y: binary.op with the scalar as b, or as a if binary.reverse; the scalar is
 * binary.value where it is NULL */
EBB_KERNEL (BINARY_SCALAR, binary_scalar, operands)
/* (condition bool, a, b) -> y of a's dtype; any dtype */
EBB_KERNEL (WHERE, where, operands)
/* (x) -> y: clamp.min, clamp.max; integers too */
EBB_KERNEL (CLAMP, clamp, operands)
/* (dy, x) -> dx */
EBB_KERNEL (CLAMP_GRAD, clamp_grad, operands)
/* (a, b) -> y = add_scaled.alpha * a + add_scaled.beta * b, floating; of a and b one may be bf16 where y is f32; in
 * place on a */
EBB_KERNEL (ADD_SCALED, add_scaled, operands)
/* (x) [.., M, N] -> y: keeps column - row <= diagonal (lower) or >= (upper), else 0 */
EBB_KERNEL (TRIANGLE, triangle, operands)

/* -- random -------------------------------------------------------------------------------------------------------- */
/* Draw i of a call is lane i % 4 of Philox4x32-10 block offset + i / 4. Draws are counted over the output in contiguous
 * order. */

/* () -> y: random.low + u * (random.high - random.low), u in [0, 1) with 24 bits */
EBB_KERNEL (UNIFORM, uniform, operands)
/* () -> y: random.mean + random.std * z, Box-Muller on pairs of lanes */
EBB_KERNEL (NORMAL, normal, operands)
/* () -> y i64/i32: low + draw % (high - low), 64-bit draws from two lanes each */
EBB_KERNEL (RANDINT, randint, operands)
/* (x) -> y = keep ? x / (1 - p) : 0; keep: u32 draw >= p * 2^32; contiguous; in place; its gradient is itself on dy */
EBB_KERNEL (DROPOUT, dropout, operands)
/* (weights f32 [rows, n]) -> index i64 [rows, samples], with replacement, by inverse cumulative sum */
EBB_KERNEL (MULTINOMIAL, multinomial, operands)

/* -- activations --------------------------------------------------------------------------------------------------- */
/* (x [rows, n], bias [n] or NULL) -> y = gelu (x + bias): gelu.tanh; in place */
EBB_KERNEL (BIAS_GELU, bias_gelu, operands)
/* (dy, x, bias or NULL) -> dx: in place on dy. (The bias gradient is a column sum.) */
EBB_KERNEL (BIAS_GELU_GRAD, bias_gelu_grad, operands)
/* (gate, up) -> y = f (gate) * up: gated.op is GELU, GELU_TANH or SILU; any strides of gate and up but the last, which
 * is 1 */
EBB_KERNEL (GATED_ACTIVATION, gated_activation, operands)
/* (dy, gate, up) -> dgate or NULL, dup or NULL: dy contiguous, the others as above; either in place on dy */
EBB_KERNEL (GATED_ACTIVATION_GRAD, gated_activation_grad, operands)
/* (x [rows, n]) -> y f32 [n], += if column_sum.accumulate: bias gradients. Rows of x may have any stride, as those of
 * logits have. They are summed in a fixed order, blocks of rows in f32 pairwise */
EBB_KERNEL (COLUMN_SUM, column_sum, operands)

/* -- reductions ---------------------------------------------------------------------------------------------------- */
/* The parameter reduce.dims is a bit mask of reduced dimensions; any strides; the output has the kept dimensions with
 * size 1 in the reduced ones. */

/* (x) -> y: reduce.op: SUM MEAN MAX MIN PROD SUM_SQUARES SUM_ABS MAX_ABS ANY ALL; integers sum in i64 */
EBB_KERNEL (REDUCE, reduce, operands)
/* (x) -> var, mean as the sum of two numbers: reduce.correction */
EBB_KERNEL (VAR, var, operands)
/* (x) -> value, index i64 (first winner): one dimension: reduce.op MAX or MIN */
EBB_KERNEL (ARG_REDUCE, arg_reduce, operands)
/* (x [rows, n]) -> values, indices i64 [rows, topk.k], sorted, largest or smallest first */
EBB_KERNEL (TOPK, topk, operands)

/* -- rows ---------------------------------------------------------------------------------------------------------- */
/* (x [rows, n]) -> y; softmax.log for log-softmax; in place */
EBB_KERNEL (SOFTMAX, softmax, operands)
/* (dy, y) -> dx; softmax.log */
EBB_KERNEL (SOFTMAX_GRAD, softmax_grad, operands)
/* (x [rows, n], weight or NULL, bias or NULL) -> y, mean f32 [rows], rstd f32 [rows] */
EBB_KERNEL (LAYER_NORM, layer_norm, operands)
/* (dy, x, weight or NULL, mean, rstd, dsum or NULL) -> dx (+ dsum), dweight f32 or NULL, dbias f32 or NULL; += if
 * norm.accumulate_weight / _bias; dx in place on dy or dsum */
EBB_KERNEL (LAYER_NORM_GRAD, layer_norm_grad, operands)
/* (x, weight or NULL) -> y, rstd: any strides of x but the last, which is 1; the factor is 1 + weight if
 * norm.unit_offset */
EBB_KERNEL (RMS_NORM, rms_norm, operands)
/* (dy, x, weight or NULL, rstd, dsum or NULL) -> dx (+ dsum), dweight f32 or NULL; x as above, the rest as of layer
 * norm */
EBB_KERNEL (RMS_NORM_GRAD, rms_norm_grad, operands)
/* (x [N, C, L], weight, bias, running_mean, running_var: each or NULL) -> y, mean f32 [C], rstd f32 [C]; norm.training:
 * batch statistics, and running ones are moved IN PLACE by norm.momentum (unbiased variance; lasting), else the running
 * ones are used */
EBB_KERNEL (BATCH_NORM, batch_norm, operands)
/* (dy, x, weight or NULL, mean, rstd) -> dx, dweight f32 or NULL, dbias f32 or NULL; as above */
EBB_KERNEL (BATCH_NORM_GRAD, batch_norm_grad, operands)
/* (x, residual, weight, bias) -> sum = residual + dropout (x), y = norm (sum), mean, rstd; norm.p = 0: no draw; sum may
 * be the same view as residual or x */
EBB_KERNEL (ADD_LAYER_NORM, add_layer_norm, operands)
/* (x, residual, weight or NULL, branch weight or NULL) -> sum, y, rstd, branch rstd or NULL: as ADD_LAYER_NORM with RMS
 * norms, norm.unit_offset; if norm.normalizes_branch, sum = residual + dropout (norm (x)), and sum is not the same view
 * as another */
EBB_KERNEL (ADD_RMS_NORM, add_rms_norm, operands)
/* (logits [rows, n], target i64/i32 [rows], weight unused NULL) -> loss f32 [rows], logsumexp f32 [rows, 2] as the sum
 * of two numbers; ignored rows give 0; xent.smoothing; if xent.cap is not 0 each logit counts as cap * tanh (logit /
 * cap), in the next two as well. Checks indices, in this kernel and the next two: targets other than xent.ignore_index,
 * against all classes (xent.n_classes), also where the logits are of some of them; row r of the launch is at position
 * xent.first_row + r; rows of logits and of dlogits are apart if the backend has a row_alignment */
EBB_KERNEL (CROSS_ENTROPY, cross_entropy, operands)
/* (dloss f32 [rows] (stride 0 allowed), logits, target, logsumexp) -> dlogits; in place on logits. The logits may be of
 * classes xent.first on alone, of all of which logsumexp is; then without smoothing */
EBB_KERNEL (CROSS_ENTROPY_GRAD, cross_entropy_grad, operands)
/* (logits [rows, n] of classes xent.first on, target) -> f32 [rows, 3]: their logsumexp as the sum of two numbers, the
 * target's logit or 0 if it is not theirs; ignored rows give 0 */
EBB_KERNEL (CROSS_ENTROPY_PART, cross_entropy_part, operands)
/* (f32 [parts, rows, 3] of them, target) -> loss f32 [rows], logsumexp f32 [rows, 2]; the parts are summed in their
 * order */
EBB_KERNEL (CROSS_ENTROPY_JOIN, cross_entropy_join, operands)

/* -- indices ------------------------------------------------------------------------------------------------------- */
/* Each checks indices, against the size of the dimension; a position is counted in the contiguous order of the index
 * view. */

/* (x [outer, n, inner], index i64/i32 [k]) -> y [outer, k, inner]; also embedding; any dtype */
EBB_KERNEL (INDEX_SELECT, index_select, picks)
/* (source [outer, k, inner], index [k]) -> y [outer, n, inner] += source at index; y f32 when floating, source f32 or
 * bf16; a fixed order of additions per row of y, threads split y's rows (or inner), never atomics */
EBB_KERNEL (INDEX_ADD, index_add, additions)
/* (x, index i64 of y's shape) -> y: along index.dim; any strides */
EBB_KERNEL (GATHER, gather, picks)
/* (source, index) -> y += : along index.dim, y of its own shape; fixed order */
EBB_KERNEL (SCATTER_ADD, scatter_add, additions)

/* -- positions ----------------------------------------------------------------------------------------------------- */
/* (x [B, T, H, D], inverse frequencies f32 [P], starts i64/i32 [B, T] or NULL) -> y: rotates x[i] and x[i + P], i < P,
 * by f32 (position) * frequency i / rotary.ntk ^ (i / P), in f32, and multiplies by rotary.factor; the rest of D is
 * copied. position = rotary.first + t - start, start being clamped to [0, first + t]. rotary.reversed: by minus the
 * angle. Any strides of x and y but the last, which is 1, and any of starts; in place */
EBB_KERNEL (ROTARY, rotary, operands)

/* -- products ------------------------------------------------------------------------------------------------------ */
/* (codes u8, scales, then of nf4 the nested absmax f32, the map f32 [256] and the offset f32 [1]) -> y [rows, columns]
 * f32 or bf16: the elements from (dequantize.row, dequantize.column) on of a weight with rows of dequantize.width
 * elements. The scales of nf4 are u8, one for each block, those of int8 f32, one for each row. See
 * tensor/backend/quantized-private.h */
EBB_KERNEL (DEQUANTIZE, dequantize, panel)
/* (a [.., M, K], b [.., K, N], bias [N] or NULL) -> c [.., M, N] : batches broadcast (strides 0), a and b with any
 * strides of which one of the last two is 1; c += if matmul.accumulate; a and b f32 or both bf16; c f32 or bf16, its
 * columns dense and its rows with any stride; of bf16 operands and to bf16, an f32 bias may be rounded before it is
 * added. matmul.row_block: K is added up in blocks of so many, see EbbBackend; 0: as one sum */
EBB_KERNEL (MATMUL, matmul, product)
/* (q [B, H, T, D], k [B, Hk, S, D], v [B, Hk, S, D], mask or NULL, starts or NULL) -> o [B, H, T, D], logsumexp f32 [B,
 * H, T, 2]: the largest score of a row, and the logarithm of its sum of powers beside that, both to base 2. Any strides
 * but the last is 1 (o too). mask: bool, where true is to attend, expanded to [B, H or 1, T or 1, S] with strides 0, or
 * a floating bias of that shape. starts: i64/i32 [B, T], any strides. Query t has position attention.first_query + t
 * among the keys. It attends to keys from starts[b, t] on (one below 0 is 0, one above its position hides all), above
 * position - window if there is a window, and up to its position if causal. softcap, unless 0: scores become softcap *
 * tanh (score / softcap) before the mask. A row without any key gives 0, logsumexp -inf and 0. Dropout on the
 * probabilities: draw index ((b * H + h) * T + t) * S + s. H a multiple of Hk */
EBB_KERNEL (ATTENTION, attention, attention)
/* (do, q, k, v, o, logsumexp, mask or NULL, starts or NULL) -> dq, dk, dv with the strides given */
EBB_KERNEL (ATTENTION_GRAD, attention_grad, attention_grad)

/* -- optimizers ---------------------------------------------------------------------------------------------------- */
/* Contiguous, in place on outputs, lasting. */

/* (scale f32 [1] or NULL; items): the data of items are gradient, parameter, exp_avg, exp_avg_sq, absmax f32 [blocks]
 * of each or NULL; adamw.grad_dtype and adamw.dtype, the parameter's, are f32 or bf16. The gradient counts times f32
 * (adamw.grad_scale * scale). Moments are of adamw.moment_dtype: f32; bf16, the second rounded at random; u8 codes with
 * their absmax. A bf16 parameter is rounded to the nearest, or at random. Element e of a full parameter draws 16 bits
 * for each rounding: with b = e / EBB_MOMENT_BLOCK and p = e % EBB_MOMENT_BLOCK the low half (p < 128) or high half of
 * word p % 128 from block philox.offset + b * 32 on; the seed is philox.seed ^ the item's philox_seed. Element i of an
 * item is e = first_element + i */
EBB_KERNEL (ADAMW, adamw, operands)
/* (scale f32 [1] or NULL, grad) -> parameter f32 or bf16, momentum f32 or NULL: sgd.*; scale and rounding as above */
EBB_KERNEL (SGD, sgd, operands)
/* (x f32) -> codes u8, absmax f32 [blocks]: moment.is_signed; new tensors */
EBB_KERNEL (MOMENT_ENCODE, moment_encode, operands)
/* (codes u8, absmax f32) -> x f32; a new tensor */
EBB_KERNEL (MOMENT_DECODE, moment_decode, operands)

/* -- norms of gradients, and what ranks exchange ------------------------------------------------------------------- */
/* (items) -> y f32 [n_items]: the sum of squares of each item's data[0], dense, of squared_norm.dtype (f32 or bf16), in
 * an order that its n_elements alone decides */
EBB_KERNEL (SQUARED_NORM, squared_norm, operands)
/* (x f32 or f64 [k, n], any strides) -> y f64 [n], any stride: over k, in its order and in f64, the sum, or the largest
 * if norm_sum.max (NaN if one is NaN) */
EBB_KERNEL (NORM_SUM, norm_sum, operands)
/* (total f64 [1], earlier factor f32 [1] or NULL) -> norm f32 [1], factor f32 [1]. In f64: scale = clip.scale * earlier
 * factor; norm = |scale| * total^(1 / clip.p), a square root if p is 2, total if p is 1 or infinite; f = clip.max_norm
 * / (norm + 1e-6); factor = scale * f if the norm is finite and f < 1, else scale */
EBB_KERNEL (CLIP_FACTOR, clip_factor, operands)
/* (x [ranks, n], the ranks with any stride) -> y [n] of x's dtype: reduce_ranks.op, any dtype, rank after rank; f32 for
 * 16-bit floats, i64 for integers; a NaN stays; sums of bool are logical or; means of integers round to zero. y may be
 * one of x's rows */
EBB_KERNEL (REDUCE_RANKS, reduce_ranks, operands)

#undef EBB_KERNEL
