/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>
#include <string.h>

const EbbKernelFunc ebb_reference_kernels[EBB_N_KERNELS] = {
  /* elementwise */
  [EBB_KERNEL_COPY] = ebb_reference_copy,
  [EBB_KERNEL_FILL] = ebb_reference_fill,
  [EBB_KERNEL_ARANGE] = ebb_reference_arange,
  [EBB_KERNEL_UNARY] = ebb_reference_unary,
  [EBB_KERNEL_UNARY_GRAD] = ebb_reference_unary_grad,
  [EBB_KERNEL_BINARY] = ebb_reference_binary,
  [EBB_KERNEL_BINARY_SCALAR] = ebb_reference_binary_scalar,
  [EBB_KERNEL_WHERE] = ebb_reference_where,
  [EBB_KERNEL_CLAMP] = ebb_reference_clamp,
  [EBB_KERNEL_CLAMP_GRAD] = ebb_reference_clamp_grad,
  [EBB_KERNEL_ADD_SCALED] = ebb_reference_add_scaled,
  [EBB_KERNEL_TRIANGLE] = ebb_reference_triangle,
  [EBB_KERNEL_BIAS_GELU] = ebb_reference_bias_gelu,
  [EBB_KERNEL_BIAS_GELU_GRAD] = ebb_reference_bias_gelu_grad,
  [EBB_KERNEL_GATED_ACTIVATION] = ebb_reference_gated_activation,
  [EBB_KERNEL_GATED_ACTIVATION_GRAD] = ebb_reference_gated_activation_grad,

  /* random */
  [EBB_KERNEL_UNIFORM] = ebb_reference_uniform,
  [EBB_KERNEL_NORMAL] = ebb_reference_normal,
  [EBB_KERNEL_RANDINT] = ebb_reference_randint,
  [EBB_KERNEL_DROPOUT] = ebb_reference_dropout,
  [EBB_KERNEL_MULTINOMIAL] = ebb_reference_multinomial,

  /* reductions */
  [EBB_KERNEL_COLUMN_SUM] = ebb_reference_column_sum,
  [EBB_KERNEL_REDUCE] = ebb_reference_reduce,
  [EBB_KERNEL_VAR] = ebb_reference_var,
  [EBB_KERNEL_ARG_REDUCE] = ebb_reference_arg_reduce,
  [EBB_KERNEL_TOPK] = ebb_reference_topk,

  /* rows */
  [EBB_KERNEL_SOFTMAX] = ebb_reference_softmax,
  [EBB_KERNEL_SOFTMAX_GRAD] = ebb_reference_softmax_grad,
  [EBB_KERNEL_LAYER_NORM] = ebb_reference_layer_norm,
  [EBB_KERNEL_LAYER_NORM_GRAD] = ebb_reference_layer_norm_grad,
  [EBB_KERNEL_ADD_LAYER_NORM] = ebb_reference_add_layer_norm,
  [EBB_KERNEL_ADD_RMS_NORM] = ebb_reference_add_rms_norm,
  [EBB_KERNEL_RMS_NORM] = ebb_reference_rms_norm,
  [EBB_KERNEL_RMS_NORM_GRAD] = ebb_reference_rms_norm_grad,
  [EBB_KERNEL_BATCH_NORM] = ebb_reference_batch_norm,
  [EBB_KERNEL_BATCH_NORM_GRAD] = ebb_reference_batch_norm_grad,
  [EBB_KERNEL_CROSS_ENTROPY] = ebb_reference_cross_entropy,
  [EBB_KERNEL_CROSS_ENTROPY_GRAD] = ebb_reference_cross_entropy_grad,
  [EBB_KERNEL_CROSS_ENTROPY_PART] = ebb_reference_cross_entropy_part,
  [EBB_KERNEL_CROSS_ENTROPY_JOIN] = ebb_reference_cross_entropy_join,

  /* indices */
  [EBB_KERNEL_INDEX_SELECT] = ebb_reference_index_select,
  [EBB_KERNEL_INDEX_ADD] = ebb_reference_index_add,
  [EBB_KERNEL_GATHER] = ebb_reference_gather,
  [EBB_KERNEL_SCATTER_ADD] = ebb_reference_scatter_add,

  /* products, positions */
  [EBB_KERNEL_ROTARY] = ebb_reference_rotary,
  [EBB_KERNEL_DEQUANTIZE] = ebb_reference_dequantize,
  [EBB_KERNEL_MATMUL] = ebb_reference_matmul,
  [EBB_KERNEL_ATTENTION] = ebb_reference_attention,
  [EBB_KERNEL_ATTENTION_GRAD] = ebb_reference_attention_grad,

  /* optimizers */
  [EBB_KERNEL_ADAMW] = ebb_reference_adamw,
  [EBB_KERNEL_SGD] = ebb_reference_sgd,
  [EBB_KERNEL_SQUARED_NORM] = ebb_reference_squared_norm,

  /* norms, ranks */
  [EBB_KERNEL_NORM_SUM] = ebb_reference_norm_sum,
  [EBB_KERNEL_CLIP_FACTOR] = ebb_reference_clip_factor,
  [EBB_KERNEL_REDUCE_RANKS] = ebb_reference_reduce_ranks,
};

gint64
ebb_reference_load_integer (const EbbView *view,
                            gint64 offset)
{
  switch (view->dtype)
    {
    case EBB_DTYPE_I32: return ((const gint32 *) view->data)[offset];
    case EBB_DTYPE_I64: return ((const gint64 *) view->data)[offset];
    case EBB_DTYPE_U8:
    case EBB_DTYPE_BOOL: return ((const guint8 *) view->data)[offset];
    default: return (gint64) ebb_reference_load (view, offset);
    }
}

static double
load_f16 (guint16 bits)
{
  int exponent = (bits >> 10) & 31;
  double fraction = bits & 1023, value;

  if (exponent == 31)
    value = fraction != 0.0 ? NAN : INFINITY;
  else
    value = exponent == 0 ? ldexp (fraction, -24) : ldexp (fraction + 1024.0, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

double
ebb_reference_load (const EbbView *view,
                    gint64 offset)
{
  switch (view->dtype)
    {
    case EBB_DTYPE_F32: return ((const float *) view->data)[offset];
    case EBB_DTYPE_F16: return load_f16 (((const guint16 *) view->data)[offset]);
    case EBB_DTYPE_BF16:
      {
        guint32 word = (guint32) ((const guint16 *) view->data)[offset] << 16;
        float value;

        memcpy (&value, &word, sizeof value);
        return value;
      }
    default: return (double) ebb_reference_load_integer (view, offset);
    }
}

/* @bits of fraction, the least exponent of a normal number, and of the largest. */
static double
round_to (double value,
          int bits,
          int least,
          int largest)
{
  int exponent;
  double unit, rounded;

  if (value == 0.0 || !isfinite (value))
    return value;
  frexp (value, &exponent);
  unit = ldexp (1.0, MAX (exponent - 1, least) - bits);
  rounded = nearbyint (value / unit) * unit;
  return fabs (rounded) >= ldexp (1.0, largest + 1) ? copysign (INFINITY, value) : rounded;
}

static guint16
bits_of_f16 (double value)
{
  double rounded = round_to (value, 10, -14, 15), size = fabs (rounded);
  guint16 sign = signbit (value) ? 0x8000 : 0;
  int exponent;

  if (isnan (rounded))
    return sign | 0x7e00;
  if (isinf (rounded))
    return sign | 0x7c00;
  if (size < ldexp (1.0, -14))
    return sign | (guint16) ldexp (size, 24);
  frexp (size, &exponent);
  return sign | (guint16) ((exponent + 14) << 10) | (guint16) (ldexp (size, 11 - exponent) - 1024.0);
}

static guint16
bits_of_bf16 (double value)
{
  float rounded = (float) round_to (value, 7, -126, 127);
  guint32 word;

  memcpy (&word, &rounded, sizeof word);
  return isnan (value) ? 0x7fc0 : (guint16) (word >> 16);
}

void
ebb_reference_store_integer (const EbbView *view,
                             gint64 offset,
                             gint64 value)
{
  switch (view->dtype)
    {
    case EBB_DTYPE_I32: ((gint32 *) view->data)[offset] = (gint32) value; break;
    case EBB_DTYPE_I64: ((gint64 *) view->data)[offset] = value; break;
    case EBB_DTYPE_U8: ((guint8 *) view->data)[offset] = (guint8) value; break;
    case EBB_DTYPE_BOOL: ((guint8 *) view->data)[offset] = value != 0; break;
    default: ebb_reference_store (view, offset, (double) value);
    }
}

void
ebb_reference_store (const EbbView *view,
                     gint64 offset,
                     double value)
{
  switch (view->dtype)
    {
    case EBB_DTYPE_F32: ((float *) view->data)[offset] = (float) value; break;
    case EBB_DTYPE_F16: ((guint16 *) view->data)[offset] = bits_of_f16 (value); break;
    case EBB_DTYPE_BF16: ((guint16 *) view->data)[offset] = bits_of_bf16 (value); break;
    case EBB_DTYPE_BOOL: ((guint8 *) view->data)[offset] = value != 0.0; break;
    default: ebb_reference_store_integer (view, offset, isfinite (value) ? (gint64) value : 0);
    }
}

gint64
ebb_reference_count (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims; i++)
    n *= view->shape[i];
  return n;
}

gint64
ebb_reference_offset (const EbbView *view,
                      gint64 position)
{
  gint64 offset = 0;

  for (int i = view->n_dims - 1; i >= 0; i--)
    {
      offset += position % view->shape[i] * view->strides[i];
      position /= view->shape[i];
    }
  return offset;
}

/* Philox4x32-10 (Salmon et al., 2011), written out: a block's number is the counter, the seed is the key. */
guint32
ebb_reference_draw (EbbPhilox philox,
                    guint64 index)
{
  guint64 block = philox.offset + index / 4;
  guint32 counter[4] = { (guint32) block, (guint32) (block >> 32), 0, 0 };
  guint32 key[2] = { (guint32) philox.seed, (guint32) (philox.seed >> 32) };

  for (int round = 0; round < 10; round++)
    {
      guint64 first = (guint64) counter[0] * 0xd2511f53u, second = (guint64) counter[2] * 0xcd9e8d57u;
      guint32 next[4] = { (guint32) (second >> 32) ^ counter[1] ^ key[0], (guint32) second,
                          (guint32) (first >> 32) ^ counter[3] ^ key[1], (guint32) first };

      memcpy (counter, next, sizeof counter);
      key[0] += 0x9e3779b9u;
      key[1] += 0xbb67ae85u;
    }
  return counter[index % 4];
}
