/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/op-cases.h"

#include <math.h>
#include <string.h>

const OpCase *const *
op_cases_get_all (void)
{
  static const OpCase *const tables[] = { op_cases_pointwise, op_cases_shape, op_cases_layers };
  static const OpCase *all[256];
  guint n = 0;

  for (guint i = 0; i < G_N_ELEMENTS (tables); i++)
    for (const OpCase *op_case = tables[i]; op_case->name != NULL; op_case++)
      all[n++] = op_case;
  g_assert_cmpuint (n, <, G_N_ELEMENTS (all));
  all[n] = NULL;
  return all;
}

const OpCase *
op_cases_find (const char *name)
{
  for (const OpCase *const *op_case = op_cases_get_all (); *op_case != NULL; op_case++)
    if (strcmp ((*op_case)->name, name) == 0)
      return *op_case;
  return NULL;
}

/* -- values ------------------------------------------------------------------------------------------------------- */

static double
draw_normal (GRand *random)
{
  double u = 1.0 - g_rand_double (random), v = g_rand_double (random);

  return sqrt (-2.0 * log (u)) * cos (2.0 * G_PI * v);
}

/* Away from 0, where relu, abs and their kin have no derivative. */
static float
draw_off_zero (GRand *random)
{
  double value = draw_normal (random);

  return (float) (value + copysign (0.06, value));
}

/* Values 0.13 apart, in a random order; those of operand @index lie between those of the others. */
static void
fill_distinct (float *values,
               gsize n,
               guint index,
               GRand *random)
{
  for (gsize i = 0; i < n; i++)
    values[i] = (float) (((double) i - (double) (n / 2)) * 0.13 + 0.06 + 0.05 * index);
  for (gsize i = n; i-- > 1;)
    {
      gsize other = (gsize) g_rand_int_range (random, 0, (gint32) i + 1);
      float value = values[i];

      values[i] = values[other];
      values[other] = value;
    }
}

static void
fill_special (float *values,
              gsize n,
              guint index)
{
  static const float specials[] = { NAN, INFINITY, -INFINITY, 0.0f, -0.0f, 1.0f, -1.0f };
  const guint period = index == 0 ? 1 : G_N_ELEMENTS (specials); /* so that each meets each */

  for (gsize i = 0; i < n; i++)
    values[i] = specials[i / period % G_N_ELEMENTS (specials)];
}

static void
fill_floats (char kind,
             float *values,
             gsize n,
             guint index,
             GRand *random)
{
  if (kind == 'd')
    fill_distinct (values, n, index, random);
  else if (kind == 's')
    fill_special (values, n, index);
  else
    for (gsize i = 0; i < n; i++)
      values[i] = strchr ("pvq", kind) ? (float) g_rand_double_range (random, 0.5, 1.5) : draw_off_zero (random);
}

/* -- operands ----------------------------------------------------------------------------------------------------- */

typedef struct
{
  char kind;
  gint64 limit;
  gint64 shape[8];
  guint n_dims;
  gboolean transposed;
} Operand;

static void
parse_operand (const char *word,
               Operand *operand)
{
  const char *at = word + 1;
  char *end;

  memset (operand, 0, sizeof *operand);
  operand->kind = *word;
  if (*at != ':')
    {
      operand->limit = g_ascii_strtoll (at, &end, 10);
      at = end;
    }
  g_assert_cmpint (*at, ==, ':');
  at++;
  while (g_ascii_isdigit (*at))
    {
      operand->shape[operand->n_dims++] = g_ascii_strtoll (at, &end, 10);
      at = *end == 'x' ? end + 1 : end;
    }
  operand->transposed = *at == 't';
}

static gsize
count_elements (const Operand *operand)
{
  gsize n = 1;

  for (guint i = 0; i < operand->n_dims; i++)
    n *= (gsize) operand->shape[i];
  return n;
}

static EbbTensor *
make_on_cpu (const Operand *operand,
             guint index,
             GRand *random,
             GError **error)
{
  gsize n = count_elements (operand);
  g_autofree float *floats = g_new (float, n + 1);
  g_autofree gint64 *integers = g_new (gint64, n + 1);
  g_autoptr (EbbTensor) wide = NULL;
  const gint64 *shape = operand->shape;
  guint n_dims = operand->n_dims;

  if (operand->kind == 'i' || operand->kind == 'j')
    {
      for (gsize i = 0; i < n; i++)
        integers[i] = g_rand_int_range (random, 0, (gint32) operand->limit);
      wide = ebb_tensor_new_from_ints (integers, n, shape, n_dims, error);
      return operand->kind == 'i' ? g_steal_pointer (&wide) : ebb_cast (wide, EBB_DTYPE_I32, error);
    }
  if (operand->kind == 'b')
    {
      for (gsize i = 0; i < n; i++)
        integers[i] = g_rand_boolean (random);
      wide = ebb_tensor_new_from_ints (integers, n, shape, n_dims, error);
      return ebb_cast (wide, EBB_DTYPE_BOOL, error);
    }
  fill_floats (operand->kind, floats, n, index, random);
  wide = ebb_tensor_new_from_floats (floats, n, shape, n_dims, error);
  return operand->kind == 'h' || operand->kind == 'q' ? ebb_cast (wide, EBB_DTYPE_BF16, error)
                                                      : g_steal_pointer (&wide);
}

static EbbTensor *
make_operand (const char *word,
              guint index,
              GRand *random,
              EbbDevice *device,
              GError **error)
{
  Operand operand;
  g_autoptr (EbbTensor) tensor = NULL;
  g_autoptr (EbbTensor) moved = NULL;
  g_autoptr (EbbTensor) swapped = NULL;

  parse_operand (word, &operand);
  tensor = make_on_cpu (&operand, index, random, error);
  if (operand.transposed)
    {
      g_autoptr (EbbTensor) view = ebb_transpose (tensor, -2, -1, error);

      swapped = ebb_contiguous (view, error);
      moved = ebb_to_device (swapped, device, error);
      g_clear_pointer (&tensor, ebb_tensor_unref);
      tensor = ebb_transpose (moved, -2, -1, error);
    }
  else
    {
      moved = ebb_to_device (tensor, device, error);
      g_clear_pointer (&tensor, ebb_tensor_unref);
      tensor = g_steal_pointer (&moved);
    }
  if (tensor != NULL && strchr ("ndpshq", operand.kind) && !ebb_tensor_set_requires_grad (tensor, TRUE, error))
    return NULL;
  return g_steal_pointer (&tensor);
}

gboolean
op_case_make_inputs (const OpVariant *variant,
                     guint seed,
                     EbbDevice *device,
                     EbbTensor **x,
                     guint *n_inputs,
                     GError **error)
{
  g_auto (GStrv) words = g_strsplit (variant->operands, " ", -1);
  GRand *random = g_rand_new_with_seed (seed);
  gboolean ok = TRUE;
  guint n = 0;

  memset (x, 0, sizeof (EbbTensor *) * OP_CASE_MAX_INPUTS);
  for (; ok && words[n] != NULL; n++)
    {
      g_assert_cmpuint (n, <, OP_CASE_MAX_INPUTS);
      if (strcmp (words[n], "-") == 0 || *words[n] == '\0')
        continue;
      x[n] = make_operand (words[n], n, random, device, error);
      ok = x[n] != NULL;
    }
  *n_inputs = n;
  g_rand_free (random);
  if (!ok)
    op_case_clear (x, n);
  return ok;
}

/* -- running ------------------------------------------------------------------------------------------------------ */

gboolean
op_case_run (const OpCase *self,
             const OpVariant *variant,
             EbbTensor **x,
             EbbTensor **y,
             GError **error)
{
  gboolean ok;

  memset (y, 0, sizeof (EbbTensor *) * OP_CASE_MAX_OUTPUTS);
  ebb_manual_seed (42);
  if (self->unary != NULL)
    y[0] = self->unary (x[0], error);
  else if (self->binary != NULL)
    y[0] = self->binary (x[0], x[1], error);
  else if (self->scalar != NULL)
    y[0] = self->scalar (x[0], variant->numbers[0], error);
  else
    {
      ok = self->run (x, variant->numbers, y, error);
      if (!ok)
        op_case_clear (y, OP_CASE_MAX_OUTPUTS);
      return ok;
    }
  return y[0] != NULL;
}

void
op_case_clear (EbbTensor **tensors,
               guint n_tensors)
{
  for (guint i = 0; i < n_tensors; i++)
    g_clear_pointer (&tensors[i], ebb_tensor_unref);
}

/* -- reading ------------------------------------------------------------------------------------------------------ */

static double
read_element (const void *data,
              EbbDType dtype,
              gsize i)
{
  switch (dtype)
    {
    case EBB_DTYPE_F32: return ((const float *) data)[i];
    case EBB_DTYPE_I32: return ((const gint32 *) data)[i];
    case EBB_DTYPE_I64: return (double) ((const gint64 *) data)[i];
    default: return ((const guint8 *) data)[i];
    }
}

double *
op_case_read (EbbTensor *tensor,
              GError **error)
{
  g_autoptr (EbbTensor) plain = ebb_tensor_detach (tensor);
  g_autoptr (EbbTensor) moved = ebb_to_device (plain, ebb_device_get_cpu (), error);
  EbbDType dtype = ebb_tensor_get_dtype (tensor);
  gboolean is_half = dtype == EBB_DTYPE_BF16 || dtype == EBB_DTYPE_F16;
  g_autoptr (EbbTensor) wide = moved == NULL ? NULL
                               : is_half     ? ebb_cast (moved, EBB_DTYPE_F32, error)
                                             : ebb_tensor_ref (moved);
  g_autoptr (GBytes) bytes = wide != NULL ? ebb_tensor_get_bytes (wide, error) : NULL;
  gsize n = (gsize) ebb_tensor_get_n_elements (tensor);
  double *values;

  if (bytes == NULL)
    return NULL;
  values = g_new (double, n + 1);
  for (gsize i = 0; i < n; i++)
    values[i] = read_element (g_bytes_get_data (bytes, NULL), ebb_tensor_get_dtype (wide), i);
  return values;
}

EbbTensor *
op_case_make_normal (EbbTensor *like,
                     guint seed,
                     GError **error)
{
  guint n_dims;
  const gint64 *shape = ebb_tensor_get_shape (like, &n_dims);
  gsize n = (gsize) ebb_tensor_get_n_elements (like);
  g_autofree float *values = g_new (float, n + 1);
  GRand *random = g_rand_new_with_seed (seed);
  g_autoptr (EbbTensor) plain = NULL;
  g_autoptr (EbbTensor) moved = NULL;

  for (gsize i = 0; i < n; i++)
    values[i] = (float) draw_normal (random);
  g_rand_free (random);
  plain = ebb_tensor_new_from_floats (values, n, shape, n_dims, error);
  moved = ebb_to_device (plain, ebb_tensor_get_device (like), error);
  return ebb_cast (moved, ebb_tensor_get_dtype (like), error);
}
