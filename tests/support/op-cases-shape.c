/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/op-cases.h"

/* Reductions, views, joins and indices. */

/* -- reductions: numbers are whether to keep the dimensions, how many there are, and which ------------------------- */

typedef EbbTensor *(*ReduceFunc) (EbbTensor *x,
                                  const int *dims,
                                  guint n_dims,
                                  gboolean keep_dims,
                                  GError **error);

static gboolean
reduce (ReduceFunc func,
        EbbTensor **x,
        const double *numbers,
        EbbTensor **y,
        GError **error)
{
  int dims[] = { (int) numbers[2], (int) numbers[3] };

  y[0] = func (x[0], dims, (guint) numbers[1], numbers[0] != 0, error);
  return y[0] != NULL;
}

#define REDUCTION(op)                               \
  static gboolean                                   \
      run_##op (EbbTensor **x,                      \
                const double *numbers,              \
                EbbTensor **y,                      \
                GError **error)                     \
  {                                                 \
    return reduce (ebb_##op, x, numbers, y, error); \
  }

REDUCTION (sum)
REDUCTION (mean)
REDUCTION (max)
REDUCTION (min)

static gboolean
run_var (EbbTensor **x,
         const double *numbers,
         EbbTensor **y,
         GError **error)
{
  int dims[] = { (int) numbers[2], (int) numbers[3] };

  y[0] = ebb_var (x[0], dims, (guint) numbers[1], numbers[4], numbers[0] != 0, error);
  return y[0] != NULL;
}

static gboolean
run_argmax (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  y[0] = ebb_argmax (x[0], (int) numbers[0], numbers[1] != 0, error);
  return y[0] != NULL;
}

static gboolean
run_max_along (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  return ebb_max_along (x[0], (int) numbers[0], numbers[1] != 0, &y[0], &y[1], error);
}

static gboolean
run_topk (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  return ebb_topk (x[0], (gint64) numbers[0], numbers[1] != 0, &y[0], &y[1], error);
}

static gboolean
run_softmax (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  y[0] = ebb_softmax (x[0], (int) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_log_softmax (EbbTensor **x,
                 const double *numbers,
                 EbbTensor **y,
                 GError **error)
{
  y[0] = ebb_log_softmax (x[0], (int) numbers[0], error);
  return y[0] != NULL;
}

/* -- views: what follows the first number is up to the op ---------------------------------------------------------- */

static guint
get_shape (const double *numbers,
           gint64 *shape)
{
  for (guint i = 0; i < (guint) numbers[0]; i++)
    shape[i] = (gint64) numbers[i + 1];
  return (guint) numbers[0];
}

static gboolean
run_reshape (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  gint64 shape[OP_CASE_MAX_NUMBERS];
  guint n_dims = get_shape (numbers, shape);

  y[0] = ebb_reshape (x[0], shape, n_dims, error);
  return y[0] != NULL;
}

static gboolean
run_view (EbbTensor **x,
          const double *numbers,
          EbbTensor **y,
          GError **error)
{
  gint64 shape[OP_CASE_MAX_NUMBERS];
  guint n_dims = get_shape (numbers, shape);

  y[0] = ebb_view (x[0], shape, n_dims, error);
  return y[0] != NULL;
}

static gboolean
run_expand (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  gint64 shape[OP_CASE_MAX_NUMBERS];
  guint n_dims = get_shape (numbers, shape);

  y[0] = ebb_expand (x[0], shape, n_dims, error);
  return y[0] != NULL;
}

static gboolean
run_permute (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  int dims[] = { (int) numbers[0], (int) numbers[1], (int) numbers[2] };

  y[0] = ebb_permute (x[0], dims, 3, error);
  return y[0] != NULL;
}

static gboolean
run_transpose (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  y[0] = ebb_transpose (x[0], (int) numbers[0], (int) numbers[1], error);
  return y[0] != NULL;
}

static gboolean
run_squeeze (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  y[0] = ebb_squeeze (x[0], (int) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_unsqueeze (EbbTensor **x,
               const double *numbers,
               EbbTensor **y,
               GError **error)
{
  y[0] = ebb_unsqueeze (x[0], (int) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_flatten (EbbTensor **x,
             const double *numbers,
             EbbTensor **y,
             GError **error)
{
  y[0] = ebb_flatten (x[0], (int) numbers[0], (int) numbers[1], error);
  return y[0] != NULL;
}

static gboolean
run_narrow (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  y[0] = ebb_narrow (x[0], (int) numbers[0], (gint64) numbers[1], (gint64) numbers[2], error);
  return y[0] != NULL;
}

static gboolean
run_select (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  y[0] = ebb_select (x[0], (int) numbers[0], (gint64) numbers[1], error);
  return y[0] != NULL;
}

static gboolean
run_slice (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_slice (x[0], (int) numbers[0], (gint64) numbers[1], (gint64) numbers[2], (gint64) numbers[3], error);
  return y[0] != NULL;
}

static gboolean
take_parts (EbbTensor **parts,
            guint n_parts,
            EbbTensor **y)
{
  if (parts == NULL)
    return FALSE;
  g_assert_cmpuint (n_parts, <=, OP_CASE_MAX_OUTPUTS);
  for (guint i = 0; i < n_parts; i++)
    y[i] = parts[i];
  g_free (parts);
  return TRUE;
}

static gboolean
run_split (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  guint n_parts = 0;
  EbbTensor **parts = ebb_split (x[0], (gint64) numbers[0], (int) numbers[1], &n_parts, error);

  return take_parts (parts, n_parts, y);
}

static gboolean
run_chunk (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  guint n_parts = 0;
  EbbTensor **parts = ebb_chunk (x[0], (gint64) numbers[0], (int) numbers[1], &n_parts, error);

  return take_parts (parts, n_parts, y);
}

static guint
count_tensors (EbbTensor **x)
{
  guint n = 0;

  while (n < OP_CASE_MAX_INPUTS && x[n] != NULL)
    n++;
  return n;
}

static gboolean
run_cat (EbbTensor **x,
         const double *numbers,
         EbbTensor **y,
         GError **error)
{
  y[0] = ebb_cat (x, count_tensors (x), (int) numbers[0], error);
  return y[0] != NULL;
}

static gboolean
run_stack (EbbTensor **x,
           const double *numbers,
           EbbTensor **y,
           GError **error)
{
  y[0] = ebb_stack (x, count_tensors (x), (int) numbers[0], error);
  return y[0] != NULL;
}

/* -- indices ------------------------------------------------------------------------------------------------------ */

static gboolean
run_index_select (EbbTensor **x,
                  const double *numbers,
                  EbbTensor **y,
                  GError **error)
{
  y[0] = ebb_index_select (x[0], (int) numbers[0], x[1], error);
  return y[0] != NULL;
}

static gboolean
run_gather (EbbTensor **x,
            const double *numbers,
            EbbTensor **y,
            GError **error)
{
  y[0] = ebb_gather (x[0], (int) numbers[0], x[1], error);
  return y[0] != NULL;
}

static gboolean
run_scatter_add (EbbTensor **x,
                 const double *numbers,
                 EbbTensor **y,
                 GError **error)
{
  y[0] = ebb_scatter_add (x[0], (int) numbers[0], x[1], x[2], error);
  return y[0] != NULL;
}

/* -- the table ---------------------------------------------------------------------------------------------------- */

#define SHAPES_REDUCE(kind)                                                                               \
  {                                                                                                       \
    { kind ":2x3x5", { 0, 0 } }, { kind ":2x3x5", { 1, 0 } }, { kind ":2x3x5", { 0, 1, -1 } },            \
        { kind ":2x3x5", { 1, 1, 1 } }, { kind ":2x3x5", { 0, 2, 0, 2 } }, { kind ":4x7t", { 0, 1, 0 } }, \
        { kind ":", { 0, 0 } }, { "h:3x9", { 0, 1, 1 } }, { "i9:3x4", { 0, 1, 0 } },                      \
    {                                                                                                     \
      "n:3x700",                                                                                          \
      {                                                                                                   \
        0, 1, 1                                                                                           \
      }                                                                                                   \
    }                                                                                                     \
  }

const OpCase op_cases_shape[] = {
  { .name = "sum", .run = run_sum, .variants = SHAPES_REDUCE ("n"), .timing = { "n:1024x3072", { 0, 1, 0 } } },
  { .name = "mean",
    .run = run_mean,
    .variants = { { "n:2x3x5", { 0, 0 } },
                  { "n:2x3x5", { 1, 1, -2 } },
                  { "n:2x3x5", { 0, 2, 0, 2 } },
                  { "n:4x7t", { 0, 1, 0 } },
                  { "h:3x9", { 0, 1, 1 } } },
    .timing = { "n:1024x3072", { 0, 1, 1 } } },
  { .name = "max",
    .run = run_max,
    .variants = { { "d:2x3x5", { 0, 0 } },
                  { "d:2x3x5", { 1, 1, -2 } },
                  { "d:2x3x5", { 0, 2, 0, 2 } },
                  { "d:4x7t", { 0, 1, 0 } },
                  { "h:3x9", { 0, 1, 1 } },
                  { "s:2x7", { 0, 0 } },
                  { "s:2x7", { 0, 1, 0 } },
                  { "i9:3x4", { 0, 1, 0 } } } },
  { .name = "min",
    .run = run_min,
    .variants = { { "d:2x3x5", { 0, 0 } },
                  { "d:2x3x5", { 1, 1, -2 } },
                  { "d:2x3x5", { 0, 2, 0, 2 } },
                  { "d:4x7t", { 0, 1, 0 } },
                  { "h:3x9", { 0, 1, 1 } },
                  { "s:2x7", { 0, 0 } },
                  { "s:2x7", { 0, 1, 0 } },
                  { "i9:3x4", { 0, 1, 0 } } } },
  { .name = "var",
    .run = run_var,
    .variants = { { "n:2x3x5", { 0, 0, 0, 0, 1 } },
                  { "n:2x3x5", { 1, 1, -2, 0, 0 } },
                  { "n:2x3x5", { 0, 2, 0, 2, 1 } },
                  { "n:4x7t", { 0, 1, 0, 0, 1 } },
                  { "h:3x9", { 0, 1, 1, 0, 1 } } },
    .timing = { "n:1024x3072", { 0, 1, 1, 0, 1 } } },
  { .name = "norm",
    .unary = ebb_norm,
    .variants = { { "n:2x3x5" }, { "n:4x7t" }, { "h:3x9" } },
    .timing = { "n:1024x3072" } },
  { .name = "argmax",
    .flags = OP_CASE_CONSTANT,
    .run = run_argmax,
    .variants = { { "d:2x3x5", { -1, 0 } }, { "d:2x3x5", { 1, 1 } }, { "d:4x7t", { 0, 0 } }, { "i3:3x9", { 1, 0 } } },
    .timing = { "n:8x50257", { -1, 0 } } },
  { .name = "max_along",
    .run = run_max_along,
    .variants = { { "d:2x3x5", { -1, 0 } }, { "d:2x3x5", { 1, 1 } }, { "d:4x7t", { 0, 0 } }, { "i3:3x9", { 1, 0 } } } },
  { .name = "topk",
    .run = run_topk,
    .variants = { { "d:2x3x7", { 3, 1 } }, { "d:9", { 4, 0 } }, { "d:5x4t", { 4, 1 } }, { "h:3x9", { 2, 1 } } },
    .timing = { "n:8x50257", { 40, 1 } } },
  { .name = "softmax",
    .run = run_softmax,
    .variants = { { "n:2x3x7", { -1 } },
                  { "n:2x7x3", { 1 } },
                  { "n:5x4t", { 1 } },
                  { "n:3x70", { -1 } },
                  { "h:3x9", { -1 } } },
    .timing = { "n:1024x3072", { -1 } } },
  { .name = "log_softmax",
    .run = run_log_softmax,
    .variants = { { "n:2x3x7", { -1 } },
                  { "n:2x7x3", { 1 } },
                  { "n:5x4t", { 1 } },
                  { "n:3x70", { -1 } },
                  { "h:3x9", { -1 } } },
    .timing = { "n:1024x3072", { -1 } } },

  { .name = "reshape",
    .flags = OP_CASE_EXACT,
    .run = run_reshape,
    .variants = { { "n:2x3x4", { 2, 6, 4 } },
                  { "n:2x3x4", { 2, -1, 8 } },
                  { "n:3x4t", { 1, 12 } },
                  { "n:1", { 0 } },
                  { "h:6", { 3, 1, 2, 3 } } } },
  { .name = "view",
    .flags = OP_CASE_EXACT,
    .run = run_view,
    .variants = { { "n:2x3x4", { 2, 6, 4 } }, { "n:3x4t", { 3, 3, 1, 4 } }, { "i9:6", { 2, 2, 3 } } } },
  { .name = "permute",
    .flags = OP_CASE_EXACT,
    .run = run_permute,
    .variants = { { "n:2x3x4", { 2, 0, 1 } }, { "n:2x3x4t", { 0, -1, 1 } }, { "h:2x3x4", { 1, 0, 2 } } } },
  { .name = "transpose",
    .flags = OP_CASE_EXACT,
    .run = run_transpose,
    .variants = { { "n:2x3x4", { 0, 2 } }, { "n:3x4t", { -1, -2 } }, { "b:2x3", { 0, 1 } } } },
  { .name = "expand",
    .flags = 0,
    .run = run_expand,
    .variants = { { "n:3x1", { 3, 2, 3, 4 } },
                  { "n:", { 2, 2, 3 } },
                  { "n:1x4", { 2, -1, 4 } },
                  { "h:4", { 2, 3, 4 } } } },
  { .name = "contiguous",
    .flags = OP_CASE_EXACT,
    .unary = ebb_contiguous,
    .variants = { { "n:3x4" }, { "n:2x3x4t" }, { "h:5x6t" } } },
  { .name = "squeeze",
    .flags = OP_CASE_EXACT,
    .run = run_squeeze,
    .variants = { { "n:3x1x4", { 1 } }, { "n:3x4x1", { -1 } } } },
  { .name = "unsqueeze",
    .flags = OP_CASE_EXACT,
    .run = run_unsqueeze,
    .variants = { { "n:3x4", { 1 } }, { "n:3x4t", { -1 } }, { "n:", { 0 } } } },
  { .name = "flatten",
    .flags = OP_CASE_EXACT,
    .run = run_flatten,
    .variants = { { "n:2x3x4", { 0, -1 } }, { "n:2x3x4", { 1, 2 } }, { "n:2x3x4t", { 1, -1 } } } },
  { .name = "narrow",
    .flags = OP_CASE_EXACT,
    .run = run_narrow,
    .variants = { { "n:5x4", { 0, 1, 3 } }, { "n:2x3x6t", { -1, 2, 2 } }, { "h:7", { 0, 0, 0 } } } },
  { .name = "select",
    .flags = OP_CASE_EXACT,
    .run = run_select,
    .variants = { { "n:5x4", { 0, 1 } }, { "n:2x3x6t", { -1, -2 } }, { "i9:7", { 0, 3 } } } },
  { .name = "slice",
    .flags = OP_CASE_EXACT,
    .run = run_slice,
    .variants = { { "n:7x4", { 0, 1, 6, 2 } }, { "n:2x3x6t", { -1, -4, 99, 1 } }, { "h:7", { 0, 5, 2, 1 } } } },
  { .name = "split",
    .flags = OP_CASE_EXACT,
    .run = run_split,
    .variants = { { "n:7x4", { 3, 0 } }, { "n:2x3x6t", { 2, -1 } }, { "i9:7", { 9, 0 } } } },
  { .name = "chunk",
    .flags = OP_CASE_EXACT,
    .run = run_chunk,
    .variants = { { "n:7x4", { 3, 0 } }, { "n:2x3x6t", { 2, -1 } }, { "h:4", { 4, 0 } } } },
  { .name = "cat",
    .flags = OP_CASE_EXACT,
    .run = run_cat,
    .variants = { { "n:2x3 n:4x3 n:1x3", { 0 } },
                  { "n:2x3t n:2x5", { -1 } },
                  { "n:2x0 n:2x5", { 1 } },
                  { "h:3 h:4", { 0 } },
                  { "i9:3 i9:4", { 0 } } },
    .timing = { "n:1024x768 n:1024x768 n:1024x768", { 1 } } },
  { .name = "stack",
    .flags = OP_CASE_EXACT,
    .run = run_stack,
    .variants = { { "n:2x3 n:2x3 n:2x3t", { 0 } },
                  { "n:2x3 n:2x3", { -1 } },
                  { "n: n:", { 0 } },
                  { "b:3 b:3", { 1 } } } },

  { .name = "embedding",
    .binary = ebb_embedding,
    .variants = { { "n:7x4 i7:2x5" }, { "n:7x4t j7:5" }, { "n:3x5 i3:40" }, { "h:7x4 i7:3" }, { "n:7x4 i7:" } },
    .timing = { "n:1024x768 i1024:4x256" } },
  { .name = "index_select",
    .run = run_index_select,
    .variants = { { "n:7x4 i7:5", { 0 } },
                  { "n:2x7x4 i7:9", { 1 } },
                  { "n:3x7t j7:5", { -1 } },
                  { "h:7x4 i4:3", { 1 } },
                  { "i9:7x4 i4:3", { 1 } } } },
  { .name = "gather",
    .run = run_gather,
    .variants = { { "n:7x4 i7:5x4", { 0 } },
                  { "n:3x7 i7:3x9", { 1 } },
                  { "n:3x7t i7:2x2", { -1 } },
                  { "h:7x4 i4:7x3", { 1 } } } },
  { .name = "scatter_add",
    .run = run_scatter_add,
    .variants = { { "n:7x4 i7:5x4 n:5x4", { 0 } },
                  { "n:3x7 i7:3x9 n:3x9", { 1 } },
                  { "n:3x7t i7:2x2 n:3x5", { -1 } },
                  { "i9:3x7 i7:3x9 i9:3x9", { 1 } } } },
  { NULL }
};
