/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/op-cases.h"

#include <math.h>

/* Ops on single elements, and tensors made from nothing. */

#define SHAPES_UNARY                                                \
  {                                                                 \
    { "n:2x3x5" }, { "n:4x7t" }, { "n:" }, { "n:37" }, { "h:3x9" }, \
        { "n:0x4" },                                                \
    {                                                               \
      "s:7"                                                         \
    }                                                               \
  }
#define SHAPES_POSITIVE                    \
  {                                        \
    { "p:2x3x5" }, { "p:4x7t" }, { "p:" }, \
    {                                      \
      "q:3x9"                              \
    }                                      \
  }
#define SHAPES_BINARY                                                                                  \
  {                                                                                                    \
    { "d:2x3x4 d:2x3x4" }, { "d:2x3x4 d:4" }, { "d:3x1 d:2x1x5" }, { "d: d:4x3t" }, { "h:3x5 h:3x5" }, \
        { "h:3x5 d:5" },                                                                               \
    {                                                                                                  \
      "i9:7 i9:7"                                                                                      \
    }                                                                                                  \
  }
#define SHAPES_SCALAR                                                  \
  {                                                                    \
    { "d:2x3x5", { 0.75 } }, { "d:4x7t", { -1.5 } }, { "h:9", { 2 } }, \
    {                                                                  \
      "i9:7",                                                          \
      {                                                                \
        3                                                              \
      }                                                                \
    }                                                                  \
  }
#define TIME_UNARY \
  {                \
    "n:1024x3072"  \
  }
#define TIME_BINARY           \
  {                           \
    "n:1024x3072 n:1024x3072" \
  }

/* -- runs --------------------------------------------------------------------------------------------------------- */

static gboolean
run_where (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_where (x[0], x[1], x[2], error);
  return y[0] != NULL;
}

static gboolean
run_clamp (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_clamp (x[0], numbers[0], numbers[1], error);
  return y[0] != NULL;
}

static gboolean
run_tril (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_tril (x[0], (gint64) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_triu (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_triu (x[0], (gint64) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_cast (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_cast (x[0], (EbbDType) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_to_device (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  g_autoptr (EbbTensor) there = ebb_to_device (x[0], ebb_device_get_cpu (), error);

  y[0] = ebb_to_device (there, ebb_tensor_get_device (x[0]), error);
  return y[0] != NULL;
}

static gboolean
run_gelu (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_gelu (x[0], (EbbGeluKind) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_bias_gelu (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  y[0] = ebb_bias_gelu (x[0], x[1], (EbbGeluKind) numbers[0], error);
  return y[0] != NULL;
}

/* The second of two numbers chooses halves of one tensor, x[0], as gate and up. */
static gboolean
run_gated_activation (EbbTensor **x,
                      const double *numbers,
                      EbbTensor **y,
                      GError **error)
{
  g_autoptr (EbbTensor) gate = NULL;
  g_autoptr (EbbTensor) up = NULL;

  if (numbers[1] != 0)
    {
      gint64 half = ebb_tensor_get_dim (x[0], -1) / 2;

      gate = ebb_narrow (x[0], -1, 0, half, error);
      up = ebb_narrow (x[0], -1, half, half, error);
    }
  y[0] = ebb_gated_activation (gate ?: x[0], up ?: x[1], (EbbActivation) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_soft_cap (EbbTensor **x,
              const double *numbers,
              EbbTensor **y,
              GError **error)
{
  y[0] = ebb_soft_cap (x[0], numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_dropout (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  y[0] = ebb_dropout (x[0], numbers[0], numbers[1] != 0, NULL, error);
  return y[0] != NULL;
}

/* -- runs without operands: the one given says the shape and the device -------------------------------------------- */

#define SHAPE_OF(x) ebb_tensor_get_shape (x, NULL), ebb_tensor_get_n_dims (x)

static gboolean
run_zeros (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_zeros (SHAPE_OF (x[0]), (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), error);
  return y[0] != NULL;
}

static gboolean
run_ones (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_ones (SHAPE_OF (x[0]), (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), error);
  return y[0] != NULL;
}

static gboolean
run_full (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_full (SHAPE_OF (x[0]), numbers[1], (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), error);
  return y[0] != NULL;
}

static gboolean
run_make_scalar (EbbTensor **x,
                 const double *numbers,
                 EbbTensor **y,
                 GError **error)
{
  y[0] = ebb_scalar (numbers[1], (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), error);
  return y[0] != NULL;
}

static gboolean
run_arange (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  y[0] = ebb_arange (numbers[1], numbers[2], numbers[3], (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), error);
  return y[0] != NULL;
}

static gboolean
run_rand (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_rand (SHAPE_OF (x[0]), (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), NULL, error);
  return y[0] != NULL;
}

static gboolean
run_randn (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_randn (SHAPE_OF (x[0]), (EbbDType) numbers[0], ebb_tensor_get_device (x[0]), NULL, error);
  return y[0] != NULL;
}

static gboolean
run_randint (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  y[0] = ebb_randint ((gint64) numbers[1], (gint64) numbers[2], SHAPE_OF (x[0]), (EbbDType) numbers[0],
                      ebb_tensor_get_device (x[0]), NULL, error);
  return y[0] != NULL;
}

static gboolean
run_multinomial (EbbTensor **x,
                 const double *numbers,
                 EbbTensor **y,
                 GError **error)
{
  y[0] = ebb_multinomial (x[0], (gint64) numbers[0], NULL, error);
  return y[0] != NULL;
}

/* -- runs in place, on a copy -------------------------------------------------------------------------------------- */

static gboolean
run_fill (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  y[0] = ebb_copy (x[0], error);
  return ebb_tensor_fill (y[0], numbers[0], error);
}

static gboolean
run_copy_from (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  y[0] = ebb_copy (x[0], error);
  return ebb_tensor_copy_from (y[0], x[1], error);
}

/* A copy of x[0] in y[0] that is changed by x[1] or a number. */
#define IN_PLACE(op)                                                                             \
  static gboolean run_##op (EbbTensor **x, const double *numbers, EbbTensor **y, GError **error) \
  {                                                                                              \
    y[0] = ebb_copy (x[0], error);                                                               \
    return ebb_tensor_##op (y[0], x[1], error);                                                  \
  }
#define SCALAR_IN_PLACE(op)                                                                      \
  static gboolean run_##op (EbbTensor **x, const double *numbers, EbbTensor **y, GError **error) \
  {                                                                                              \
    y[0] = ebb_copy (x[0], error);                                                               \
    return ebb_tensor_##op (y[0], numbers[0], error);                                            \
  }
IN_PLACE (add_in_place)
IN_PLACE (sub_in_place)
IN_PLACE (mul_in_place)
IN_PLACE (div_in_place)
SCALAR_IN_PLACE (add_scalar_in_place)
SCALAR_IN_PLACE (sub_scalar_in_place)
SCALAR_IN_PLACE (mul_scalar_in_place)
SCALAR_IN_PLACE (div_scalar_in_place)

static gboolean
run_add_scaled (EbbTensor **x,
                const double *numbers,
                EbbTensor **y,
                GError **error)
{
  y[0] = ebb_copy (x[0], error);
  return ebb_tensor_add_scaled (y[0], x[1], numbers[0], error);
}

static gboolean
run_scale (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_copy (x[0], error);
  return ebb_tensor_scale (y[0], numbers[0], error);
}

static gboolean
run_fill_uniform (EbbTensor **x,
                  const double *numbers,
                  EbbTensor **y,
                  GError **error)
{
  y[0] = ebb_copy (x[0], error);
  return ebb_tensor_fill_uniform (y[0], numbers[0], numbers[1], NULL, error);
}

static gboolean
run_fill_normal (EbbTensor **x,
                 const double *numbers,
                 EbbTensor **y,
                 GError **error)
{
  y[0] = ebb_copy (x[0], error);
  return ebb_tensor_fill_normal (y[0], numbers[0], numbers[1], NULL, error);
}

/* -- the table ---------------------------------------------------------------------------------------------------- */

#define UNARY(op, shapes)                                                    \
  {                                                                          \
    .name = #op, .unary = ebb_##op, .variants = shapes, .timing = TIME_UNARY \
  }
#define BINARY(op, more)                                                                             \
  {                                                                                                  \
    .name = #op, .flags = more, .binary = ebb_##op, .variants = SHAPES_BINARY, .timing = TIME_BINARY \
  }
#define EXTREMUM(op)                                                                                              \
  {                                                                                                               \
    .name = #op, .binary = ebb_##op, .variants = { { "d:2x3x4 d:2x3x4" }, { "d:3x1 d:2x1x5" }, { "d: d:4x3t" },   \
                                                   { "h:3x5 h:3x5" },     { "i9:7 i9:7" },     { "s:49 s:49" } }, \
    .timing = TIME_BINARY                                                                                         \
  }
#define SCALAR(op, more)                                                      \
  {                                                                           \
    .name = #op, .flags = more, .scalar = ebb_##op, .variants = SHAPES_SCALAR \
  }

const OpCase op_cases_pointwise[] = {
  BINARY (add, 0),
  BINARY (sub, 0),
  BINARY (mul, 0),
  { .name = "div",
    .binary = ebb_div,
    .variants = { { "n:2x3x4 p:2x3x4" }, { "n:2x3x4 p:4" }, { "n: p:4x3t" }, { "h:3x5 q:3x5" }, { "i9:7 i5:7" } },
    .timing = { "n:1024x3072 p:1024x3072" } },
  { .name = "pow",
    .binary = ebb_pow,
    .variants = { { "p:2x3x4 n:2x3x4" }, { "p:2x3x4 n:4" }, { "p:4x3t n:" }, { "q:3x5 h:3x5" } },
    .timing = { "p:1024x3072 n:1024x3072" } },
  EXTREMUM (maximum),
  EXTREMUM (minimum),
  BINARY (eq, OP_CASE_CONSTANT),
  BINARY (ne, OP_CASE_CONSTANT),
  BINARY (lt, OP_CASE_CONSTANT),
  BINARY (le, OP_CASE_CONSTANT),
  BINARY (gt, OP_CASE_CONSTANT),
  BINARY (ge, OP_CASE_CONSTANT),
  { .name = "logical_and",
    .flags = OP_CASE_CONSTANT,
    .binary = ebb_logical_and,
    .variants = { { "b:3x4 b:3x4" }, { "b:3x4 b:4" } } },
  { .name = "logical_or",
    .flags = OP_CASE_CONSTANT,
    .binary = ebb_logical_or,
    .variants = { { "b:3x4 b:3x4" }, { "b:3x4t b:4" } } },
  { .name = "bitwise_and",
    .flags = OP_CASE_CONSTANT,
    .binary = ebb_bitwise_and,
    .variants = { { "i7:3x4 i7:3x4" }, { "i7:3x4 i7:4" }, { "b:3x4 b:4" } } },
  { .name = "bitwise_or",
    .flags = OP_CASE_CONSTANT,
    .binary = ebb_bitwise_or,
    .variants = { { "i7:3x4 i7:3x4" }, { "i7:3x4t i7:4" }, { "b:3x4t b:4" } } },
  { .name = "bitwise_not",
    .flags = OP_CASE_CONSTANT,
    .unary = ebb_bitwise_not,
    .variants = { { "i7:3x4" }, { "b:5x4t" } } },
  { .name = "logical_not",
    .flags = OP_CASE_CONSTANT,
    .unary = ebb_logical_not,
    .variants = { { "b:3x4" }, { "b:5x4t" } } },

  SCALAR (add_scalar, 0),
  SCALAR (sub_scalar, 0),
  SCALAR (mul_scalar, 0),
  SCALAR (div_scalar, 0),
  { .name = "pow_scalar",
    .scalar = ebb_pow_scalar,
    .variants = { { "p:2x3x5", { 1.7 } }, { "n:4x7t", { 2 } }, { "n:5", { 3 } }, { "q:9", { 0.5 } } } },
  SCALAR (rsub_scalar, 0),
  { .name = "rdiv_scalar",
    .scalar = ebb_rdiv_scalar,
    .variants = { { "p:2x3x5", { 1.7 } }, { "p:4x7t", { -2 } }, { "q:9", { 3 } } } },
  SCALAR (eq_scalar, OP_CASE_CONSTANT),
  SCALAR (ne_scalar, OP_CASE_CONSTANT),
  SCALAR (lt_scalar, OP_CASE_CONSTANT),
  SCALAR (le_scalar, OP_CASE_CONSTANT),
  SCALAR (gt_scalar, OP_CASE_CONSTANT),
  SCALAR (ge_scalar, OP_CASE_CONSTANT),

  UNARY (neg, SHAPES_UNARY),
  UNARY (abs, SHAPES_UNARY),
  UNARY (exp, SHAPES_UNARY),
  UNARY (log, SHAPES_POSITIVE),
  UNARY (sqrt, SHAPES_POSITIVE),
  UNARY (rsqrt, SHAPES_POSITIVE),
  UNARY (square, SHAPES_UNARY),
  UNARY (sin, SHAPES_UNARY),
  UNARY (cos, SHAPES_UNARY),
  UNARY (tanh, SHAPES_UNARY),
  UNARY (relu, SHAPES_UNARY),
  UNARY (silu, SHAPES_UNARY),
  UNARY (sigmoid, SHAPES_UNARY),
  { .name = "gelu",
    .run = run_gelu,
    .variants = { { "n:2x3x5", { EBB_GELU_EXACT } }, { "n:4x7t", { EBB_GELU_TANH } }, { "h:9", { EBB_GELU_TANH } } },
    .timing = { "n:1024x3072", { EBB_GELU_TANH } } },
  { .name = "bias_gelu",
    .run = run_bias_gelu,
    .variants = { { "n:2x3x5 n:5", { EBB_GELU_EXACT } },
                  { "n:6x35 n:35", { EBB_GELU_TANH } },
                  { "n:4x7t n:7", { EBB_GELU_TANH } },
                  { "h:3x9 n:9", { EBB_GELU_TANH } } },
    .timing = { "n:1024x3072 n:3072", { EBB_GELU_TANH } } },
  { .name = "gated_activation",
    .run = run_gated_activation,
    .variants = { { "n:2x3x5 n:2x3x5", { EBB_ACTIVATION_GELU } },
                  { "n:6x35 n:6x35", { EBB_ACTIVATION_GELU_TANH } },
                  { "n:3x40 n:3x40", { EBB_ACTIVATION_SILU } },
                  { "n:4x7t n:4x7", { EBB_ACTIVATION_SILU } },
                  { "n:2x3x22", { EBB_ACTIVATION_SILU, 1 } },
                  { "n:5x66", { EBB_ACTIVATION_GELU_TANH, 1 } },
                  { "c:4x9 n:4x9", { EBB_ACTIVATION_SILU } },
                  { "n:4x9 c:4x9", { EBB_ACTIVATION_GELU } },
                  { "n:4x9 h:4x9", { EBB_ACTIVATION_SILU } },
                  { "h:3x37 h:3x37", { EBB_ACTIVATION_SILU } },
                  { "h:3x37 h:3x37", { EBB_ACTIVATION_GELU } },
                  { "h:3x38", { EBB_ACTIVATION_GELU_TANH, 1 } } },
    .timing = { "n:1024x3072 n:1024x3072", { EBB_ACTIVATION_SILU } } },
  { .name = "soft_cap",
    .run = run_soft_cap,
    .variants = { { "n:2x3x5", { 3 } }, { "n:4x7t", { 0.5 } }, { "n:37", { 30 } }, { "h:9", { 2 } } },
    .timing = { "n:1024x3072", { 30 } } },
  { .name = "dropout",
    .run = run_dropout,
    .variants = { { "n:2x3x5", { 0.3, 1 } },
                  { "n:4x7t", { 0.5, 1 } },
                  { "n:9", { 0.5, 0 } },
                  { "n:9", { 0, 1 } },
                  { "n:9", { 1, 1 } },
                  { "h:5x7", { 0.1, 1 } } },
    .timing = { "n:1024x3072", { 0.1, 1 } } },

  { .name = "where",
    .run = run_where,
    .variants = { { "b:2x3x4 n:2x3x4 n:2x3x4" }, { "b:3x4 n:4 n:" }, { "b:4 n:3x4t n:4" }, { "b:5 h:5 h:5" } },
    .timing = { "b:1024x3072 n:1024x3072 n:1024x3072" } },
  { .name = "clamp",
    .run = run_clamp,
    .variants = { { "d:2x3x5", { -0.53, 0.51 } },
                  { "d:4x7t", { -0.53, 9 } },
                  { "h:9", { -0.53, 0.51 } },
                  { "i9:9", { 2, 5 } } },
    .timing = { "n:1024x3072", { -1, 1 } } },
  { .name = "tril",
    .flags = OP_CASE_EXACT,
    .run = run_tril,
    .variants = { { "n:4x5" }, { "n:2x5x4", { 1 } }, { "n:5x4t", { -2 } }, { "i9:3x3" }, { "h:3x3" } } },
  { .name = "triu",
    .flags = OP_CASE_EXACT,
    .run = run_triu,
    .variants = { { "n:4x5" }, { "n:2x5x4", { 1 } }, { "n:5x4t", { -2 } }, { "b:3x3" }, { "h:3x3" } } },
  { .name = "cast",
    .flags = OP_CASE_EXACT,
    .run = run_cast,
    .variants = { { "h:3x5", { EBB_DTYPE_F32 } },
                  { "c:4x5t", { EBB_DTYPE_BF16 } },
                  { "c:4x5t", { EBB_DTYPE_F16 } },
                  { "c:9", { EBB_DTYPE_I64 } },
                  { "i9:9", { EBB_DTYPE_F32 } },
                  { "i9:9", { EBB_DTYPE_I32 } },
                  { "i2:9", { EBB_DTYPE_BOOL } },
                  { "b:9", { EBB_DTYPE_U8 } },
                  { "n:2x3", { EBB_DTYPE_F32 } } },
    .timing = { "c:1024x3072", { EBB_DTYPE_BF16 } } },
  { .name = "copy",
    .flags = OP_CASE_EXACT,
    .unary = ebb_copy,
    .variants = { { "n:3x5" }, { "n:2x4x5t" }, { "h:4x5t" }, { "i9:9" }, { "b:5x6t" } },
    .timing = { "n:1024x3072t" } },
  { .name = "to_device",
    .flags = OP_CASE_EXACT,
    .run = run_to_device,
    .variants = { { "n:3x5" }, { "h:4x5t" }, { "i9:9" } } },

  { .name = "zeros",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_zeros,
    .variants = { { "c:3x5", { EBB_DTYPE_F32 } }, { "c:9", { EBB_DTYPE_I64 } } } },
  { .name = "ones",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_ones,
    .variants = { { "c:3x5", { EBB_DTYPE_BF16 } }, { "c:9", { EBB_DTYPE_BOOL } } } },
  { .name = "full",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_full,
    .variants = { { "c:3x5", { EBB_DTYPE_F32, 0.1 } },
                  { "c:", { EBB_DTYPE_BF16, 3 } },
                  { "c:9", { EBB_DTYPE_I32, -7 } } } },
  { .name = "scalar",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_make_scalar,
    .variants = { { "c:", { EBB_DTYPE_F32, 0.1 } }, { "c:", { EBB_DTYPE_I64, -7 } } } },
  { .name = "arange",
    .flags = OP_CASE_CONSTANT,
    .run = run_arange,
    .variants = { { "c:", { EBB_DTYPE_I64, 0, 9, 1 } },
                  { "c:", { EBB_DTYPE_F32, 1, 2, 0.1 } },
                  { "c:", { EBB_DTYPE_I32, 5, -5, -3 } } } },
  { .name = "rand",
    .flags = OP_CASE_CONSTANT,
    .run = run_rand,
    .variants = { { "c:5x7", { EBB_DTYPE_F32 } }, { "c:", { EBB_DTYPE_F32 } }, { "c:3x9", { EBB_DTYPE_BF16 } } },
    .timing = { "c:1024x3072", { EBB_DTYPE_F32 } } },
  { .name = "randn",
    .flags = OP_CASE_CONSTANT,
    .run = run_randn,
    .variants = { { "c:5x7", { EBB_DTYPE_F32 } }, { "c:", { EBB_DTYPE_F32 } }, { "c:3x9", { EBB_DTYPE_BF16 } } },
    .timing = { "c:1024x3072", { EBB_DTYPE_F32 } } },
  { .name = "randint",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_randint,
    .variants = { { "c:5x7", { EBB_DTYPE_I64, -3, 11 } }, { "c:9", { EBB_DTYPE_I32, 0, 1000000 } } } },
  { .name = "multinomial",
    .flags = OP_CASE_CONSTANT | OP_CASE_DISCRETE,
    .run = run_multinomial,
    .variants = { { "v:3x11", { 5 } }, { "v:7", { 40 } } },
    .timing = { "v:8x50257", { 1 } } },

  { .name = "tensor_fill",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_fill,
    .variants = { { "c:3x5", { 0.7 } }, { "i9:4", { 3 } } } },
  { .name = "tensor_copy_from",
    .flags = OP_CASE_CONSTANT | OP_CASE_EXACT,
    .run = run_copy_from,
    .variants = { { "c:3x5 c:3x5t" }, { "c:3x5 c:5" }, { "c:4 i9:4" } } },
  { .name = "tensor_add_scaled",
    .flags = OP_CASE_CONSTANT,
    .run = run_add_scaled,
    .variants = { { "c:3x5 c:3x5t", { -0.3 } }, { "c:3x5 c:3x5", { 2 } } },
    .timing = { "c:1024x3072 c:1024x3072", { 0.5 } } },
  { .name = "tensor_scale",
    .flags = OP_CASE_CONSTANT,
    .run = run_scale,
    .variants = { { "c:3x5", { -0.3 } }, { "c:4x5t", { 2 } } } },
  { .name = "tensor_add_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_add_in_place,
    .variants = { { "c:3x5 c:3x5t" }, { "c:3x5 c:5" } } },
  { .name = "tensor_sub_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_sub_in_place,
    .variants = { { "c:3x5 c:3x5t" }, { "c:3x5 c:5" } } },
  { .name = "tensor_mul_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_mul_in_place,
    .variants = { { "c:3x5 c:3x5t" }, { "c:3x5 c:5" } } },
  { .name = "tensor_div_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_div_in_place,
    .variants = { { "c:3x5 c:3x5t" }, { "c:3x5 c:5" } } },
  { .name = "tensor_add_scalar_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_add_scalar_in_place,
    .variants = { { "c:3x5", { -0.3 } }, { "c:4x5t", { 2 } } } },
  { .name = "tensor_sub_scalar_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_sub_scalar_in_place,
    .variants = { { "c:3x5", { -0.3 } }, { "c:4x5t", { 2 } } } },
  { .name = "tensor_mul_scalar_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_mul_scalar_in_place,
    .variants = { { "c:3x5", { -0.3 } }, { "c:4x5t", { 2 } } } },
  { .name = "tensor_div_scalar_in_place",
    .flags = OP_CASE_CONSTANT,
    .run = run_div_scalar_in_place,
    .variants = { { "c:3x5", { -0.3 } }, { "c:4x5t", { 2 } } } },
  { .name = "tensor_fill_uniform",
    .flags = OP_CASE_CONSTANT,
    .run = run_fill_uniform,
    .variants = { { "c:3x5", { -0.3, 0.9 } }, { "c:33", { 2, 4 } } } },
  { .name = "tensor_fill_normal",
    .flags = OP_CASE_CONSTANT,
    .run = run_fill_normal,
    .variants = { { "c:3x5", { 1, 0.02 } }, { "c:33", { 0, 4 } } } },
  { NULL }
};
