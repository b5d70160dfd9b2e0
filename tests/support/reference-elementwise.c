/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

static double
load (const EbbView *view,
      gint64 i)
{
  return ebb_reference_load (view, ebb_reference_offset (view, i));
}

static gint64
load_integer (const EbbView *view,
              gint64 i)
{
  return ebb_reference_load_integer (view, ebb_reference_offset (view, i));
}

static void
store (const EbbView *view,
       gint64 i,
       double value)
{
  ebb_reference_store (view, ebb_reference_offset (view, i), value);
}

static void
store_integer (const EbbView *view,
               gint64 i,
               gint64 value)
{
  ebb_reference_store_integer (view, ebb_reference_offset (view, i), value);
}

static gboolean
is_floating (const EbbView *view)
{
  return view->dtype == EBB_DTYPE_F32 || view->dtype == EBB_DTYPE_BF16 || view->dtype == EBB_DTYPE_F16;
}

gboolean
ebb_reference_copy (const EbbLaunch *launch,
                    GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    if (is_floating (x))
      store (y, i, load (x, i));
    else
      store_integer (y, i, load_integer (x, i));
  return TRUE;
}

gboolean
ebb_reference_fill (const EbbLaunch *launch,
                    GError **error)
{
  const EbbView *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, launch->params.fill.value);
  return TRUE;
}

gboolean
ebb_reference_arange (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, launch->params.arange.start + (double) i * launch->params.arange.step);
  return TRUE;
}

static double
gelu (gboolean is_tanh,
      double x)
{
  if (is_tanh)
    return 0.5 * x * (1 + tanh (sqrt (2 / G_PI) * (x + 0.044715 * x * x * x)));
  return 0.5 * x * erfc (-x / sqrt (2));
}

static double
gelu_slope (gboolean is_tanh,
            double x)
{
  double u = sqrt (2 / G_PI) * (x + 0.044715 * x * x * x), t = tanh (u);

  if (is_tanh)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt (2 / G_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * erfc (-x / sqrt (2)) + x * exp (-0.5 * x * x) / sqrt (2 * G_PI);
}

static double
compute_unary (EbbUnaryOp op,
               double cap,
               double x)
{
  switch (op)
    {
    case EBB_UNARY_NEG: return -x;
    case EBB_UNARY_ABS: return fabs (x);
    case EBB_UNARY_EXP: return exp (x);
    case EBB_UNARY_LOG: return log (x);
    case EBB_UNARY_SQRT: return sqrt (x);
    case EBB_UNARY_RSQRT: return 1 / sqrt (x);
    case EBB_UNARY_SQUARE: return x * x;
    case EBB_UNARY_SIN: return sin (x);
    case EBB_UNARY_COS: return cos (x);
    case EBB_UNARY_TANH: return tanh (x);
    case EBB_UNARY_RELU: return isnan (x) || x > 0 ? x : 0;
    case EBB_UNARY_GELU: return gelu (FALSE, x);
    case EBB_UNARY_GELU_TANH: return gelu (TRUE, x);
    case EBB_UNARY_SILU: return x / (1 + exp (-x));
    case EBB_UNARY_SIGMOID: return 1 / (1 + exp (-x));
    case EBB_UNARY_SOFT_CAP: return cap * tanh (x / cap);
    default: return x == 0;
    }
}

gboolean
ebb_reference_unary (const EbbLaunch *launch,
                     GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, compute_unary (launch->params.unary.op, launch->params.unary.cap, load (x, i)));
  return TRUE;
}

static double
compute_slope (EbbUnaryOp op,
               double cap,
               double x,
               double y)
{
  switch (op)
    {
    case EBB_UNARY_NEG: return -1;
    case EBB_UNARY_ABS: return (x > 0) - (x < 0);
    case EBB_UNARY_EXP: return y;
    case EBB_UNARY_LOG: return 1 / x;
    case EBB_UNARY_SQRT: return 0.5 / y;
    case EBB_UNARY_RSQRT: return -0.5 * y * y * y;
    case EBB_UNARY_SQUARE: return 2 * x;
    case EBB_UNARY_SIN: return cos (x);
    case EBB_UNARY_COS: return -sin (x);
    case EBB_UNARY_TANH: return 1 - y * y;
    case EBB_UNARY_RELU: return !(y <= 0);
    case EBB_UNARY_GELU: return gelu_slope (FALSE, x);
    case EBB_UNARY_GELU_TANH: return gelu_slope (TRUE, x);
    case EBB_UNARY_SILU: return (1 + x * (1 - 1 / (1 + exp (-x)))) / (1 + exp (-x));
    case EBB_UNARY_SIGMOID: return y * (1 - y);
    case EBB_UNARY_SOFT_CAP: return 1 - (y / cap) * (y / cap);
    default: return 0;
    }
}

gboolean
ebb_reference_unary_grad (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *dy = launch->inputs[0], *x = launch->inputs[1], *y = launch->inputs[2], *dx = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (dx); i++)
    store (dx, i,
           load (dy, i)
               * compute_slope (launch->params.unary.op, launch->params.unary.cap, x != NULL ? load (x, i) : 0,
                                y != NULL ? load (y, i) : 0));
  return TRUE;
}

static double
compute_binary (EbbBinaryOp op,
                gboolean is_integer,
                double a,
                double b)
{
  switch (op)
    {
    case EBB_BINARY_ADD: return a + b;
    case EBB_BINARY_SUB: return a - b;
    case EBB_BINARY_MUL: return a * b;
    case EBB_BINARY_DIV: return is_integer ? (b == 0 ? 0 : floor (a / b)) : a / b;
    case EBB_BINARY_POW: return is_integer ? trunc (pow (a, b)) : pow (a, b);
    case EBB_BINARY_MAXIMUM: return isnan (a) || isnan (b) ? NAN : MAX (a, b);
    case EBB_BINARY_MINIMUM: return isnan (a) || isnan (b) ? NAN : MIN (a, b);
    case EBB_BINARY_EQ: return a == b;
    case EBB_BINARY_NE: return a != b;
    case EBB_BINARY_LT: return a < b;
    case EBB_BINARY_LE: return a <= b;
    case EBB_BINARY_GT: return a > b;
    case EBB_BINARY_GE: return a >= b;
    case EBB_BINARY_AND: return is_integer ? (double) ((gint64) a & (gint64) b) : a != 0 && b != 0;
    default: return is_integer ? (double) ((gint64) a | (gint64) b) : a != 0 || b != 0;
    }
}

gboolean
ebb_reference_binary (const EbbLaunch *launch,
                      GError **error)
{
  const EbbView *a = launch->inputs[0], *b = launch->inputs[1], *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, compute_binary (launch->params.binary.op, !is_floating (a), load (a, i), load (b, i)));
  return TRUE;
}

/* The device's, where there is one. */
static double
get_scalar (const EbbLaunch *launch)
{
  return launch->n_inputs > 1 && launch->inputs[1] != NULL ? ebb_reference_load (launch->inputs[1], 0)
                                                           : launch->params.binary.value;
}

gboolean
ebb_reference_binary_scalar (const EbbLaunch *launch,
                             GError **error)
{
  const EbbView *a = launch->inputs[0], *y = launch->outputs[0];
  EbbBinaryOp op = launch->params.binary.op;
  double value = get_scalar (launch);

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    if (launch->params.binary.reverse)
      store (y, i, compute_binary (op, !is_floating (a), value, load (a, i)));
    else
      store (y, i, compute_binary (op, !is_floating (a), load (a, i), value));
  return TRUE;
}

gboolean
ebb_reference_where (const EbbLaunch *launch,
                     GError **error)
{
  const EbbView *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      const EbbView *taken = launch->inputs[load_integer (launch->inputs[0], i) != 0 ? 1 : 2];

      if (is_floating (taken))
        store (y, i, load (taken, i));
      else
        store_integer (y, i, load_integer (taken, i));
    }
  return TRUE;
}

gboolean
ebb_reference_clamp (const EbbLaunch *launch,
                     GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      double value = load (x, i);

      if (value < launch->params.clamp.min)
        value = launch->params.clamp.min;
      if (value > launch->params.clamp.max)
        value = launch->params.clamp.max;
      store (y, i, value);
    }
  return TRUE;
}

gboolean
ebb_reference_clamp_grad (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *dy = launch->inputs[0], *x = launch->inputs[1], *dx = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (dx); i++)
    {
      double value = load (x, i), min = launch->params.clamp.min, max = launch->params.clamp.max;
      gboolean inside =
          (value > min || (value == min && isinf (min))) && (value < max || (value == max && isinf (max)));

      store (dx, i, inside ? load (dy, i) : 0);
    }
  return TRUE;
}

gboolean
ebb_reference_add_scaled (const EbbLaunch *launch,
                          GError **error)
{
  const EbbView *a = launch->inputs[0], *b = launch->inputs[1], *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, launch->params.add_scaled.alpha * load (a, i) + launch->params.add_scaled.beta * load (b, i));
  return TRUE;
}

gboolean
ebb_reference_triangle (const EbbLaunch *launch,
                        GError **error)
{
  const EbbView *x = launch->inputs[0], *y = launch->outputs[0];
  gint64 height = x->shape[x->n_dims - 2], width = x->shape[x->n_dims - 1];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    {
      gint64 above = i % width - i / width % height;
      gboolean kept = launch->params.triangle.upper ? above >= launch->params.triangle.diagonal
                                                    : above <= launch->params.triangle.diagonal;

      store (y, i, kept ? load (x, i) : 0);
    }
  return TRUE;
}

gboolean
ebb_reference_bias_gelu (const EbbLaunch *launch,
                         GError **error)
{
  const EbbView *x = launch->inputs[0], *bias = launch->inputs[1], *y = launch->outputs[0];
  gint64 columns = x->shape[x->n_dims - 1];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, gelu (launch->params.gelu.tanh, load (x, i) + (bias != NULL ? load (bias, i % columns) : 0)));
  return TRUE;
}

gboolean
ebb_reference_bias_gelu_grad (const EbbLaunch *launch,
                              GError **error)
{
  const EbbView *dy = launch->inputs[0], *x = launch->inputs[1], *bias = launch->inputs[2], *dx = launch->outputs[0];
  gint64 columns = x->shape[x->n_dims - 1];

  for (gint64 i = 0; i < ebb_reference_count (dx); i++)
    {
      double biased = load (x, i) + (bias != NULL ? load (bias, i % columns) : 0);

      store (dx, i, load (dy, i) * gelu_slope (launch->params.gelu.tanh, biased));
    }
  return TRUE;
}

gboolean
ebb_reference_gated_activation (const EbbLaunch *launch,
                                GError **error)
{
  const EbbView *gate = launch->inputs[0], *up = launch->inputs[1], *y = launch->outputs[0];

  for (gint64 i = 0; i < ebb_reference_count (y); i++)
    store (y, i, compute_unary (launch->params.gated.op, 0, load (gate, i)) * load (up, i));
  return TRUE;
}

gboolean
ebb_reference_gated_activation_grad (const EbbLaunch *launch,
                                     GError **error)
{
  const EbbView *dy = launch->inputs[0], *gate = launch->inputs[1], *up = launch->inputs[2];
  const EbbView *dgate = launch->outputs[0], *dup = launch->outputs[1];

  for (gint64 i = 0; i < ebb_reference_count (gate); i++)
    {
      double g = load (dy, i), x = load (gate, i), factor = load (up, i);

      if (dgate != NULL)
        store (dgate, i, g * factor * compute_slope (launch->params.gated.op, 0, x, 0));
      if (dup != NULL)
        store (dup, i, g * compute_unary (launch->params.gated.op, 0, x));
    }
  return TRUE;
}
