/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Kernels element by element: functions of one operand and their gradients, arithmetic and comparisons of two, where,
 * clamp, scaled sums. */
#include "tensor/cuda/kernels/elementwise.cuh"
#include "tensor/cuda/kernels/math.cuh"

/* y[i] = expression of a, for all elements at hand */
#define EACH(expression)                               \
  {                                                    \
    _Pragma ("unroll") for (int i = 0; i < COUNT; i++) \
    {                                                  \
      const float a = x[0][i];                         \
                                                       \
      y[i] = (expression);                             \
    }                                                  \
  }                                                    \
  break

/* The same of a and b. */
#define EACH_PAIR(expression)                          \
  {                                                    \
    _Pragma ("unroll") for (int i = 0; i < COUNT; i++) \
    {                                                  \
      const float a = x[0][i], b = x[1][i];            \
                                                       \
      y[i] = (expression);                             \
    }                                                  \
  }                                                    \
  break

/* -- one operand --------------------------------------------------------------------------------------------------- */

struct Unary
{
  EbbUnaryOp op;
  float cap;

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[1][COUNT],
          float (&y)[COUNT]) const
  {
    switch (op)
      {
      case EBB_UNARY_NEG: EACH (-a);
      case EBB_UNARY_ABS: EACH (fabsf (a));
      case EBB_UNARY_EXP: EACH (expf (a));
      case EBB_UNARY_LOG: EACH (logf (a));
      case EBB_UNARY_SQRT: EACH (sqrtf (a));
      case EBB_UNARY_RSQRT: EACH (1.0f / sqrtf (a));
      case EBB_UNARY_SQUARE: EACH (a * a);
      case EBB_UNARY_SIN: EACH (sinf (a));
      case EBB_UNARY_COS: EACH (cosf (a));
      case EBB_UNARY_TANH: EACH (tanhf (a));
      case EBB_UNARY_RELU: EACH (a <= 0.0f ? 0.0f : a);
      case EBB_UNARY_GELU: EACH (gelu (false, a));
      case EBB_UNARY_GELU_TANH: EACH (gelu (true, a));
      case EBB_UNARY_SILU: EACH (sigmoid (a) * a);
      case EBB_UNARY_SIGMOID: EACH (sigmoid (a));
      case EBB_UNARY_SOFT_CAP: EACH (soft_cap (a, cap));
      default: EACH (a == 0.0f);
      }
  }

  __device__ __forceinline__ gint64
  integer (const gint64 (&x)[1]) const
  {
    const guint64 a = (guint64) x[0];

    switch (op)
      {
      case EBB_UNARY_NEG: return (gint64) (0 - a);
      case EBB_UNARY_ABS: return x[0] < 0 ? (gint64) (0 - a) : x[0];
      case EBB_UNARY_SQUARE: return (gint64) (a * a);
      case EBB_UNARY_RELU: return x[0] > 0 ? x[0] : 0;
      default: return a == 0;
      }
  }
};

static bool
takes_integers (EbbUnaryOp op)
{
  return op == EBB_UNARY_NEG || op == EBB_UNARY_ABS || op == EBB_UNARY_SQUARE || op == EBB_UNARY_RELU
         || op == EBB_UNARY_LOGICAL_NOT;
}

EBB_CUDA_KERNEL (unary)
{
  const EbbView *const views[] = { launch->inputs[0], launch->outputs[0] };
  const Unary operation = { launch->params.unary.op, (float) launch->params.unary.cap };
  bool is_float = is_float_dtype (views[0]->dtype);

  if (!is_float && !takes_integers (operation.op))
    return cudaErrorNotSupported;
  return elementwise_launch<1> (views, is_float, operation, queue);
}

/* a is the gradient of the result, b the operand or the result, as the op saves it. */
struct UnaryGrad : NoIntegers
{
  EbbUnaryOp op;
  float cap;

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[2][COUNT],
          float (&y)[COUNT]) const
  {
    switch (op)
      {
      case EBB_UNARY_NEG: EACH (-a);
      case EBB_UNARY_ABS: EACH_PAIR (b > 0.0f ? a : (b < 0.0f ? -a : a * 0.0f)); /* 0 at 0 and at NaN */
      case EBB_UNARY_EXP: EACH_PAIR (a * b);
      case EBB_UNARY_LOG: EACH_PAIR (a / b);
      case EBB_UNARY_SQRT: EACH_PAIR (0.5f * a / b);
      case EBB_UNARY_RSQRT: EACH_PAIR (-0.5f * a * (b * b * b));
      case EBB_UNARY_SQUARE: EACH_PAIR (2.0f * a * b);
      case EBB_UNARY_SIN: EACH_PAIR (a * cosf (b));
      case EBB_UNARY_COS: EACH_PAIR (-a * sinf (b));
      case EBB_UNARY_TANH: EACH_PAIR ((1.0f - b * b) * a);
      case EBB_UNARY_RELU: EACH_PAIR (b <= 0.0f ? 0.0f : a); /* NaN lets it pass */
      case EBB_UNARY_GELU: EACH_PAIR (gelu_slope (false, b) * a);
      case EBB_UNARY_GELU_TANH: EACH_PAIR (gelu_slope (true, b) * a);
      case EBB_UNARY_SILU: EACH_PAIR (a * silu_slope (b));
      case EBB_UNARY_SIGMOID: EACH_PAIR (a * b * (1.0f - b));
      default: EACH_PAIR (a * soft_cap_slope (b, cap));
      }
  }
};

static bool
uses_result (EbbUnaryOp op)
{
  return op == EBB_UNARY_EXP || op == EBB_UNARY_SQRT || op == EBB_UNARY_RSQRT || op == EBB_UNARY_TANH
         || op == EBB_UNARY_RELU || op == EBB_UNARY_SIGMOID || op == EBB_UNARY_SOFT_CAP;
}

EBB_CUDA_KERNEL (unary_grad)
{
  EbbUnaryOp op = launch->params.unary.op;
  const EbbView *saved = op == EBB_UNARY_NEG ? launch->inputs[0] : launch->inputs[uses_result (op) ? 2 : 1];
  const EbbView *const views[] = { launch->inputs[0], saved, launch->outputs[0] };
  UnaryGrad operation;

  operation.op = op;
  operation.cap = (float) launch->params.unary.cap;
  return elementwise_launch<2> (views, true, operation, queue);
}

/* -- two operands -------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ gint64
floor_divide (gint64 a,
              gint64 b)
{
  if (b == 0)
    return 0;
  if (b == -1)
    return (gint64) (0 - (guint64) a);
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static __device__ __forceinline__ gint64
integer_power (gint64 base,
               gint64 exponent)
{
  guint64 result = 1;

  if (exponent < 0)
    return base == 1 ? 1 : (base != -1 ? 0 : 1 - 2 * (exponent & 1));
  for (guint64 square = (guint64) base; exponent > 0; exponent >>= 1, square *= square)
    if (exponent & 1)
      result *= square;
  return (gint64) result;
}

template <int COUNT>
static __device__ __forceinline__ void
binary_floats (EbbBinaryOp op,
               const float (&x)[2][COUNT],
               float (&y)[COUNT])
{
  switch (op)
    {
    case EBB_BINARY_ADD: EACH_PAIR (a + b);
    case EBB_BINARY_SUB: EACH_PAIR (a - b);
    case EBB_BINARY_MUL: EACH_PAIR (a * b);
    case EBB_BINARY_DIV: EACH_PAIR (a / b);
    case EBB_BINARY_POW: EACH_PAIR (powf (a, b));
    case EBB_BINARY_MAXIMUM: EACH_PAIR (a != a || a > b ? a : b); /* NaN wins */
    case EBB_BINARY_MINIMUM: EACH_PAIR (a != a || a < b ? a : b);
    case EBB_BINARY_EQ: EACH_PAIR (a == b);
    case EBB_BINARY_NE: EACH_PAIR (a != b);
    case EBB_BINARY_LT: EACH_PAIR (a < b);
    case EBB_BINARY_LE: EACH_PAIR (a <= b);
    case EBB_BINARY_GT: EACH_PAIR (a > b);
    case EBB_BINARY_GE: EACH_PAIR (a >= b);
    case EBB_BINARY_AND: EACH_PAIR (a != 0.0f && b != 0.0f);
    default: EACH_PAIR (a != 0.0f || b != 0.0f);
    }
}

static __device__ __forceinline__ gint64
binary_integer (EbbBinaryOp op,
                gint64 a,
                gint64 b)
{
  switch (op)
    {
    case EBB_BINARY_ADD: return (gint64) ((guint64) a + (guint64) b);
    case EBB_BINARY_SUB: return (gint64) ((guint64) a - (guint64) b);
    case EBB_BINARY_MUL: return (gint64) ((guint64) a * (guint64) b);
    case EBB_BINARY_DIV: return floor_divide (a, b);
    case EBB_BINARY_POW: return integer_power (a, b);
    case EBB_BINARY_MAXIMUM: return a > b ? a : b;
    case EBB_BINARY_MINIMUM: return a < b ? a : b;
    case EBB_BINARY_EQ: return a == b;
    case EBB_BINARY_NE: return a != b;
    case EBB_BINARY_LT: return a < b;
    case EBB_BINARY_LE: return a <= b;
    case EBB_BINARY_GT: return a > b;
    case EBB_BINARY_GE: return a >= b;
    case EBB_BINARY_AND: return a & b;
    default: return a | b;
    }
}

struct Binary
{
  EbbBinaryOp op;

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[2][COUNT],
          float (&y)[COUNT]) const
  {
    binary_floats (op, x, y);
  }

  __device__ __forceinline__ gint64
  integer (const gint64 (&x)[2]) const
  {
    return binary_integer (op, x[0], x[1]);
  }
};

EBB_CUDA_KERNEL (binary)
{
  const EbbView *const views[] = { launch->inputs[0], launch->inputs[1], launch->outputs[0] };
  const Binary operation = { launch->params.binary.op };

  return elementwise_launch<2> (views, is_float_dtype (views[0]->dtype), operation, queue);
}

/* The exponents that need no powf (). */
typedef enum
{
  POWER_ANY,
  POWER_1,
  POWER_2,
  POWER_3,
  POWER_HALF,
  POWER_MINUS_1,
  POWER_MINUS_HALF
} Power;

struct BinaryScalar
{
  EbbBinaryOp op;
  Power power;
  bool is_reversed;
  float value;
  gint64 integer_value;
  const float *scalar; /* on the device; NULL: value */

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[1][COUNT],
          float (&y)[COUNT]) const
  {
    const float other = scalar != NULL ? *scalar : value;
    float pair[2][COUNT];

    switch (power)
      {
      case POWER_1: EACH (a);
      case POWER_2: EACH (a * a);
      case POWER_3: EACH (a * a * a);
      case POWER_HALF: EACH (sqrtf (a));
      case POWER_MINUS_1: EACH (1.0f / a);
      case POWER_MINUS_HALF: EACH (1.0f / sqrtf (a));
      default:
#pragma unroll
        for (int i = 0; i < COUNT; i++)
          {
            pair[0][i] = is_reversed ? other : x[0][i];
            pair[1][i] = is_reversed ? x[0][i] : other;
          }
        binary_floats (op, pair, y);
      }
  }

  __device__ __forceinline__ gint64
  integer (const gint64 (&x)[1]) const
  {
    const gint64 other = scalar != NULL ? float_to_i64 (*scalar) : integer_value;

    return is_reversed ? binary_integer (op, other, x[0]) : binary_integer (op, x[0], other);
  }
};

static Power
find_power (EbbBinaryOp op,
            double value,
            bool is_reversed)
{
  static const struct
  {
    double exponent;
    Power power;
  } powers[] = { { 1, POWER_1 },      { 2, POWER_2 },        { 3, POWER_3 },
                 { 0.5, POWER_HALF }, { -1, POWER_MINUS_1 }, { -0.5, POWER_MINUS_HALF } };

  for (guint i = 0; op == EBB_BINARY_POW && !is_reversed && i < G_N_ELEMENTS (powers); i++)
    if (powers[i].exponent == value)
      return powers[i].power;
  return POWER_ANY;
}

EBB_CUDA_KERNEL (binary_scalar)
{
  const EbbView *const views[] = { launch->inputs[0], launch->outputs[0] };
  const EbbBinaryOp op = launch->params.binary.op;
  const double value = launch->params.binary.value;
  const bool is_reversed = launch->params.binary.reverse != FALSE;
  const EbbView *scalar = launch->n_inputs > 1 ? launch->inputs[1] : NULL;
  const BinaryScalar operation = { op,
                                   scalar != NULL ? POWER_ANY : find_power (op, value, is_reversed),
                                   is_reversed,
                                   (float) value,
                                   double_to_i64 (value),
                                   scalar != NULL ? (const float *) scalar->data : NULL };

  return elementwise_launch<1> (views, is_float_dtype (views[0]->dtype), operation, queue);
}

/* -- where, clamp, scaled sums ------------------------------------------------------------------------------------- */

struct Where
{
  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[3][COUNT],
          float (&y)[COUNT]) const
  {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      y[i] = x[0][i] != 0.0f ? x[1][i] : x[2][i];
  }

  __device__ __forceinline__ gint64
  integer (const gint64 (&x)[3]) const
  {
    return x[0] != 0 ? x[1] : x[2];
  }
};

EBB_CUDA_KERNEL (where)
{
  const EbbView *const views[] = { launch->inputs[0], launch->inputs[1], launch->inputs[2], launch->outputs[0] };

  return elementwise_launch<3> (views, is_float_dtype (views[1]->dtype), Where (), queue);
}

struct Clamp
{
  float low, high;
  gint64 integer_low, integer_high;

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[1][COUNT],
          float (&y)[COUNT]) const
  {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      {
        float a = x[0][i] < low ? low : x[0][i]; /* a NaN stays */

        y[i] = a > high ? high : a;
      }
  }

  __device__ __forceinline__ gint64
  integer (const gint64 (&x)[1]) const
  {
    gint64 a = x[0] < integer_low ? integer_low : x[0];

    return a > integer_high ? integer_high : a;
  }
};

EBB_CUDA_KERNEL (clamp)
{
  const EbbView *const views[] = { launch->inputs[0], launch->outputs[0] };
  const double low = launch->params.clamp.min, high = launch->params.clamp.max;
  const Clamp operation = { (float) low, (float) high, double_to_i64 (low), double_to_i64 (high) };

  return elementwise_launch<1> (views, is_float_dtype (views[0]->dtype), operation, queue);
}

/* 0 at a bound. Infinity is no bound: only infinity itself equals it. */
struct ClampGrad : NoIntegers
{
  float low, high;
  bool has_low, has_high;

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[2][COUNT],
          float (&y)[COUNT]) const
  {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      {
        float a = x[1][i];
        bool is_above = a > low || (!has_low && a == low), is_below = a < high || (!has_high && a == high);

        y[i] = is_above && is_below ? x[0][i] : 0.0f;
      }
  }
};

EBB_CUDA_KERNEL (clamp_grad)
{
  const EbbView *const views[] = { launch->inputs[0], launch->inputs[1], launch->outputs[0] };
  ClampGrad operation;

  operation.low = (float) launch->params.clamp.min;
  operation.high = (float) launch->params.clamp.max;
  operation.has_low = launch->params.clamp.min != -HUGE_VAL;
  operation.has_high = launch->params.clamp.max != HUGE_VAL;
  return elementwise_launch<2> (views, true, operation, queue);
}

struct AddScaled : NoIntegers
{
  float alpha, beta;

  template <int COUNT>
  __device__ __forceinline__ void
  floats (const float (&x)[2][COUNT],
          float (&y)[COUNT]) const
  {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
      y[i] = fmaf (alpha, x[0][i], beta * x[1][i]);
  }
};

EBB_CUDA_KERNEL (add_scaled)
{
  const EbbView *const views[] = { launch->inputs[0], launch->inputs[1], launch->outputs[0] };
  AddScaled operation;

  operation.alpha = (float) launch->params.add_scaled.alpha;
  operation.beta = (float) launch->params.add_scaled.beta;
  return elementwise_launch<2> (views, true, operation, queue);
}
