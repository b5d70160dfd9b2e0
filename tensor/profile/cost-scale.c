/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Leaves some of the rows of a launch that would take long or much memory, so that its time can be extrapolated: its
 * kernel, dtypes and the order of its dimensions in memory stay. */
#include "tensor/profile/cost-private.h"

#include <math.h>

/* Sizes above it stay multiples of it, as real ones are. */
#define WHOLE 16

#define IN(k) (1u << (k))
#define OUT(k) (1u << (EBB_LAUNCH_MAX_INPUTS + (k)))

/* The dimensions of one operand, the main one, that may be made smaller, and which operands share them. */
typedef struct
{
  guint main;
  guint32 operands; /* ALL: those with the main one's number of dimensions, where sizes are equal */
  int end;          /* of the main one's dimensions; 0 or less: counted from the last one */
} Rows;

#define ALL G_MAXUINT32

static Rows
get_rows (EbbKernel kernel)
{
  const guint output = EBB_LAUNCH_MAX_INPUTS;

  switch (kernel)
    {
    case EBB_KERNEL_BIAS_GELU:
    case EBB_KERNEL_SOFTMAX:
    case EBB_KERNEL_MULTINOMIAL:
      return (Rows){ 0, IN (0) | OUT (0), -1 };
    case EBB_KERNEL_BIAS_GELU_GRAD:
    case EBB_KERNEL_SOFTMAX_GRAD:
    case EBB_KERNEL_GATED_ACTIVATION:
      return (Rows){ 0, IN (0) | IN (1) | OUT (0), -1 };
    case EBB_KERNEL_GATED_ACTIVATION_GRAD:
      return (Rows){ 0, IN (0) | IN (1) | IN (2) | OUT (0) | OUT (1), -1 };
    case EBB_KERNEL_COLUMN_SUM:
      return (Rows){ 0, IN (0), -1 };
    case EBB_KERNEL_TOPK:
      return (Rows){ 0, IN (0) | OUT (0) | OUT (1), -1 };
    case EBB_KERNEL_LAYER_NORM:
    case EBB_KERNEL_RMS_NORM:
      return (Rows){ 0, IN (0) | OUT (0) | OUT (1) | OUT (2), -1 };
    case EBB_KERNEL_LAYER_NORM_GRAD:
      return (Rows){ 0, IN (0) | IN (1) | IN (3) | IN (4) | IN (5) | OUT (0), -1 };
    case EBB_KERNEL_RMS_NORM_GRAD:
      return (Rows){ 0, IN (0) | IN (1) | IN (3) | IN (4) | OUT (0), -1 };
    case EBB_KERNEL_ADD_LAYER_NORM:
    case EBB_KERNEL_ADD_RMS_NORM:
      return (Rows){ 0, IN (0) | IN (1) | OUT (0) | OUT (1) | OUT (2) | OUT (3), -1 };
    case EBB_KERNEL_CROSS_ENTROPY:
    case EBB_KERNEL_CROSS_ENTROPY_PART:
      return (Rows){ 0, IN (0) | IN (1) | OUT (0) | OUT (1), -1 };
    case EBB_KERNEL_CROSS_ENTROPY_GRAD:
      return (Rows){ 1, IN (0) | IN (1) | IN (2) | IN (3) | OUT (0), -1 };
    case EBB_KERNEL_BATCH_NORM:
      return (Rows){ 0, IN (0) | OUT (0), 1 };
    case EBB_KERNEL_BATCH_NORM_GRAD:
      return (Rows){ 0, IN (0) | IN (1) | OUT (0), 1 };
    case EBB_KERNEL_ROTARY:
      return (Rows){ 0, IN (0) | IN (2) | OUT (0), 2 };
    case EBB_KERNEL_ATTENTION: /* batches, then heads of keys with the queries that share them */
      return (Rows){ 1, IN (0) | IN (1) | IN (2) | IN (3) | IN (4) | OUT (0) | OUT (1), 2 };
    case EBB_KERNEL_ATTENTION_GRAD:
      return (Rows){
        2, IN (0) | IN (1) | IN (2) | IN (3) | IN (4) | IN (5) | IN (6) | IN (7) | OUT (0) | OUT (1) | OUT (2), 2
      };
    case EBB_KERNEL_REDUCE:
    case EBB_KERNEL_VAR:
    case EBB_KERNEL_ARG_REDUCE:
      return (Rows){ 0, ALL, 0 };
    /* Of what has an order among more than two operands, or so little that nobody need save: as it is. */
    case EBB_KERNEL_CROSS_ENTROPY_JOIN:
    case EBB_KERNEL_MOMENT_ENCODE:
    case EBB_KERNEL_MOMENT_DECODE:
    case EBB_KERNEL_NORM_SUM:
    case EBB_KERNEL_CLIP_FACTOR:
    case EBB_KERNEL_ADAMW:
    case EBB_KERNEL_SQUARED_NORM:
      return (Rows){ output, 0, 0 };
    case EBB_KERNEL_TRIANGLE:
      return (Rows){ output, ALL, -1 };
    default: /* element by element */
      return (Rows){ output, ALL, 0 };
    }
}

/* Sets a size; strides of the dimensions outside of it shrink alike. */
static void
set_size (EbbView *view,
          int dim,
          gint64 size)
{
  const gint64 old = view->shape[dim], stride = view->strides[dim];

  view->shape[dim] = size;
  for (int i = 0; stride > 0 && i < view->n_dims; i++)
    if (i != dim && view->strides[i] >= stride * old)
      view->strides[i] = (gint64) ceil ((double) view->strides[i] * (double) size / (double) old);
}

/* Makes dimension @dim of an operand smaller by the factor @size / @old. */
static void
shrink (const Rows *rows,
        EbbView *view,
        int n_dims,
        int dim,
        gint64 old,
        gint64 size)
{
  const gboolean has_columns = rows->end < 0;

  if (view->n_dims <= 0)
    return;
  if (rows->operands == ALL)
    {
      if (view->n_dims == n_dims && view->shape[dim] == old)
        set_size (view, dim, size);
      return;
    }
  /* A row's own number or two may lie in one dimension of all rows. */
  if (has_columns && (dim >= MAX (view->n_dims - 1, 1) || view->shape[dim] != old))
    dim = 0;
  if (view->shape[dim] % old == 0)
    set_size (view, dim, view->shape[dim] / old * size);
}

static gint64
choose_size (gint64 old,
             double share)
{
  gint64 size = (gint64) ceil ((double) old * share);

  if (size > WHOLE)
    size = (size + WHOLE - 1) / WHOLE * WHOLE;
  return CLAMP (size, 1, old);
}

static double
scale_rows (const EbbCostLaunch *self,
            EbbView *views,
            double share)
{
  const Rows rows = get_rows (self->kernel);
  const EbbView *main = &views[rows.main];
  const int end = rows.end <= 0 ? main->n_dims + rows.end : MIN (rows.end, main->n_dims);
  const gboolean is_attention = self->kernel == EBB_KERNEL_ATTENTION || self->kernel == EBB_KERNEL_ATTENTION_GRAD;
  double left = 1;

  for (int round = 0; rows.operands != 0 && left > share && round < EBB_MAX_DIMS; round++)
    {
      int dim = -1;
      gint64 old, size;

      for (int i = 0; i < end; i++)
        if (main->shape[i] > 1 && (dim < 0 || main->shape[i] > main->shape[dim]))
          dim = i;
      if (dim < 0)
        break;
      old = main->shape[dim];
      size = choose_size (old, share / left);
      if (size == old)
        break;
      for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
        /* Starts of attention have no heads. */
        if (k != rows.main && (rows.operands & 1u << k) != 0
            && !(is_attention && dim > 0 && views[k].n_dims != main->n_dims))
          shrink (&rows, &views[k], main->n_dims, dim, old, size);
      set_size (&views[rows.main], dim, size);
      left *= (double) size / (double) old;
    }
  return left;
}

/* Terms of each sum that a product keeps at least, beside which the result's own traffic is small. */
#define LEAST_TERMS 1024

/* Batches; terms of the sums, where they are more than rows and columns, as in the gradient of a weight; then rows or
 * columns of the result, of which there are more. */
static double
scale_product (EbbView *views,
               double share)
{
  EbbView *a = &views[0], *b = &views[1], *bias = &views[2], *c = &views[EBB_LAUNCH_MAX_INPUTS];
  const gint64 n_terms = a->shape[a->n_dims - 1];
  double left = 1;

  for (int i = 0; i < c->n_dims - 2 && left > share; i++)
    {
      gint64 old = c->shape[i], size = choose_size (old, share / left);
      EbbView *operands[] = { a, b, c };

      for (guint k = 0; k < G_N_ELEMENTS (operands); k++)
        {
          int dim = i - (c->n_dims - operands[k]->n_dims);

          if (dim >= 0 && operands[k]->shape[dim] == old)
            set_size (operands[k], dim, size);
        }
      left *= (double) size / (double) MAX (old, 1);
    }
  if (left > share && n_terms > MAX (LEAST_TERMS, MAX (c->shape[c->n_dims - 2], c->shape[c->n_dims - 1])))
    {
      const gint64 size = MAX (choose_size (n_terms, share / left), LEAST_TERMS);

      set_size (a, a->n_dims - 1, size);
      set_size (b, b->n_dims - 2, size);
      left *= (double) size / (double) n_terms;
    }
  for (int round = 0; round < 2 && left > share; round++)
    {
      const gboolean is_row = c->shape[c->n_dims - 2] >= c->shape[c->n_dims - 1];
      const int dim = is_row ? c->n_dims - 2 : c->n_dims - 1;
      EbbView *other = is_row ? a : b;
      gint64 old = c->shape[dim], size = choose_size (old, share / left);

      set_size (c, dim, size);
      set_size (other, is_row ? other->n_dims - 2 : other->n_dims - 1, size);
      if (!is_row && bias->n_dims > 0)
        set_size (bias, bias->n_dims - 1, size);
      left *= (double) size / (double) MAX (old, 1);
    }
  return left;
}

/* Of the table and of what is picked from it alike. @table [outer, n, inner], @picked [outer, k, inner], @index [k]. */
static double
scale_picks (EbbView *table,
             EbbView *picked,
             EbbView *index,
             double share)
{
  gint64 old = picked->shape[1], size = choose_size (old, share);

  set_size (picked, 1, size);
  set_size (index, 0, size);
  share = (double) size / (double) MAX (old, 1);
  set_size (table, 1, choose_size (table->shape[1], share));
  return share;
}

/* Along a dimension that isn't indexed. */
static double
scale_gather (const EbbCostLaunch *self,
              EbbView *views,
              double share)
{
  const EbbView *index = &views[1];
  EbbView *operands[] = { &views[0], &views[1], &views[EBB_LAUNCH_MAX_INPUTS] };
  gint64 old, size;
  int dim = -1;

  for (int i = 0; i < index->n_dims; i++)
    if (i != self->params.index.dim && (dim < 0 || index->shape[i] > index->shape[dim]))
      dim = i;
  if (dim < 0)
    return 1;
  old = index->shape[dim];
  size = choose_size (old, share);
  for (guint k = 0; k < G_N_ELEMENTS (operands); k++)
    if (operands[k]->shape[dim] == old)
      set_size (operands[k], dim, size);
  return (double) size / (double) MAX (old, 1);
}

static double
scale_items (const EbbCostLaunch *self,
             EbbCostItem *items,
             double share)
{
  double before = 0, after = 0;

  for (guint i = 0; i < self->n_items; i++)
    {
      before += (double) items[i].n_elements;
      items[i].n_elements = choose_size (items[i].n_elements, share);
      after += (double) items[i].n_elements;
    }
  return before > 0 ? after / before : 1;
}

double
ebb_cost_launch_scale (const EbbCostLaunch *self,
                       EbbView *views,
                       EbbCostItem *items,
                       double share)
{
  if (share >= 1)
    return 1;
  switch (self->kernel)
    {
    case EBB_KERNEL_ADAMW:
    case EBB_KERNEL_SQUARED_NORM:
      return scale_items (self, items, share);
    case EBB_KERNEL_DEQUANTIZE: /* its parameters name places of the weight */
      return 1;
    case EBB_KERNEL_MATMUL:
      return scale_product (views, share);
    case EBB_KERNEL_INDEX_SELECT:
      return scale_picks (&views[0], &views[EBB_LAUNCH_MAX_INPUTS], &views[1], share);
    case EBB_KERNEL_INDEX_ADD:
      return scale_picks (&views[EBB_LAUNCH_MAX_INPUTS], &views[0], &views[1], share);
    case EBB_KERNEL_GATHER:
    case EBB_KERNEL_SCATTER_ADD:
      return scale_gather (self, views, share);
    case EBB_KERNEL_REDUCE_RANKS:
      {
        EbbView *x = &views[0], *y = &views[EBB_LAUNCH_MAX_INPUTS];
        gint64 old = y->shape[0], size = choose_size (old, share);

        set_size (x, 1, size);
        set_size (y, 0, size);
        return (double) size / (double) MAX (old, 1);
      }
    default:
      return scale_rows (self, views, share);
    }
}
