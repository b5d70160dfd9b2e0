/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, and what launches cost by it: bytes that they read and write, and operations. */
#include "tensor/backend/kernel-private.h"

#include "tensor/backend/launch-item-private.h"
#include "tensor/backend/quantized-private.h"

const EbbView *
ebb_launch_get_operand (const EbbLaunch *launch,
                        guint k)
{
  if (k < EBB_LAUNCH_MAX_INPUTS)
    return k < launch->n_inputs ? launch->inputs[k] : NULL;
  k -= EBB_LAUNCH_MAX_INPUTS;
  return k < launch->n_outputs ? launch->outputs[k] : NULL;
}

guint64
ebb_view_count_bytes (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims; i++)
    if (view->strides[i] != 0 || view->shape[i] == 0)
      n *= view->shape[i];
  return (guint64) n * ebb_dtype_get_size (view->dtype);
}

/* -- costs --------------------------------------------------------------------------------------------------------- */

/* The cost of a kernel. Without @count_operand it reads or writes all elements of each operand. */
typedef struct
{
  guint64 (*count_operand) (const EbbLaunch *launch, guint k, const EbbView *view);
  gboolean (*adds) (const EbbLaunch *launch);      /* whether it reads its first output as well; NULL: no */
  guint64 (*count_flop) (const EbbLaunch *launch); /* NULL: it is neither a product nor attention */
} Cost;

static gboolean
always_adds (const EbbLaunch *launch)
{
  return TRUE;
}

static const Cost operands = { 0 };

/* Of the table only the rows that the indices pick are read. */
static guint64
count_picks (const EbbLaunch *launch,
             guint k,
             const EbbView *view)
{
  return ebb_view_count_bytes (k == 0 ? launch->outputs[0] : view);
}

static const Cost picks = { .count_operand = count_picks };

/* Of the result only the rows that the indices pick are read and written. */
static guint64
count_additions (const EbbLaunch *launch,
                 guint k,
                 const EbbView *view)
{
  return ebb_view_count_bytes (k == EBB_LAUNCH_MAX_INPUTS ? launch->inputs[0] : view);
}

static const Cost additions = { .count_operand = count_additions, .adds = always_adds };

/* With the inputs x and bias the kernel multiplies, see quantized-private.h. */
static const EbbView *
get_panel_factor (const EbbLaunch *launch)
{
  return ebb_launch_get_operand (launch, 5);
}

/* Of a quantized weight only the codes and scales of the panel are read. */
static guint64
count_panel (const EbbLaunch *launch,
             guint k,
             const EbbView *view)
{
  const EbbView *x = get_panel_factor (launch), *y = launch->outputs[0];
  const gint64 n_rows = y->shape[x != NULL ? 1 : 0];
  const guint64 n = (guint64) (n_rows * (x != NULL ? x : y)->shape[1]);
  const gboolean is_nf4 = launch->inputs[1]->dtype == EBB_DTYPE_U8;

  if (k == 0)
    return is_nf4 ? (n + 1) / 2 : n;
  if (k == 1)
    return is_nf4 ? (n + EBB_NF4_BLOCK - 1) / EBB_NF4_BLOCK : (guint64) n_rows * ebb_dtype_get_size (EBB_DTYPE_F32);
  return ebb_view_count_bytes (view);
}

/* Two operations for each multiplication. */
static guint64
count_product_of (const EbbLaunch *launch,
                  const EbbView *factor)
{
  return 2 * (guint64) (ebb_view_count_elements (launch->outputs[0]) * factor->shape[factor->n_dims - 1]);
}

static guint64
count_panel_product (const EbbLaunch *launch)
{
  const EbbView *x = get_panel_factor (launch);

  return x != NULL ? count_product_of (launch, x) : 0;
}

static const Cost panel = { .count_operand = count_panel, .count_flop = count_panel_product };

static gboolean
product_adds (const EbbLaunch *launch)
{
  return launch->params.matmul.accumulate;
}

static guint64
count_product (const EbbLaunch *launch)
{
  return count_product_of (launch, launch->inputs[0]);
}

static const Cost product = { .adds = product_adds, .count_flop = count_product };

/* Of the products of attention, for queries @q and keys @k that see each other. */
static guint64
count_attention_products (const EbbLaunch *launch,
                          guint64 n_products,
                          const EbbView *q,
                          const EbbView *k)
{
  return ebb_attention_count_flop (&launch->params, q->shape[2], k->shape[2],
                                   2 * n_products * (guint64) (q->shape[0] * q->shape[1] * q->shape[3]));
}

static guint64
count_attention (const EbbLaunch *launch)
{
  return count_attention_products (launch, 2, launch->inputs[0], launch->inputs[1]);
}

static const Cost attention = { .count_flop = count_attention };

static guint64
count_attention_grad (const EbbLaunch *launch)
{
  return count_attention_products (launch, 5, launch->inputs[1], launch->inputs[2]);
}

static const Cost attention_grad = { .count_flop = count_attention_grad };

/* -- the table ----------------------------------------------------------------------------------------------------- */

static const struct
{
  const char *name;
  const Cost *cost;
} kernels[EBB_N_KERNELS] = {
#define EBB_KERNEL(NUMBER, name, cost) { #name, &cost },
#include "tensor/backend/kernel-list-private.h"
};

const char *
ebb_kernel_get_name (EbbKernel kernel)
{
  g_return_val_if_fail ((guint) kernel < EBB_N_KERNELS, NULL);

  return kernels[kernel].name;
}

guint64
ebb_launch_count_operand_bytes (const EbbLaunch *launch,
                                guint k)
{
  const Cost *cost = kernels[launch->kernel].cost;
  const EbbView *view = ebb_launch_get_operand (launch, k);

  if (view == NULL)
    return 0;
  return cost->count_operand != NULL ? cost->count_operand (launch, k, view) : ebb_view_count_bytes (view);
}

guint64
ebb_launch_count_bytes (const EbbLaunch *launch)
{
  const Cost *cost = kernels[launch->kernel].cost;
  guint64 n = 0;

  for (guint k = 0; k < EBB_LAUNCH_MAX_OPERANDS; k++)
    n += ebb_launch_count_operand_bytes (launch, k);
  if (cost->adds != NULL && cost->adds (launch))
    n += ebb_launch_count_operand_bytes (launch, EBB_LAUNCH_MAX_INPUTS);
  /* What an optimizer writes it has read. */
  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      {
        gboolean writes;
        gsize size = ebb_launch_item_get_size (launch, &launch->items[i], k, &writes);

        n += writes ? 2 * size : size;
      }
  return n;
}

guint64
ebb_launch_count_flop (const EbbLaunch *launch)
{
  const Cost *cost = kernels[launch->kernel].cost;

  return cost->count_flop != NULL ? cost->count_flop (launch) : 0;
}

char *
ebb_index_fault_to_string (const char *op,
                           gint64 index,
                           gint64 position,
                           gint64 limit)
{
  return g_strdup_printf ("%s: index %" G_GINT64_FORMAT " at position %" G_GINT64_FORMAT
                          " is out of range; indices must be in [0, %" G_GINT64_FORMAT ")",
                          op, index, position, limit);
}

/* The sum of [first, first + n), each number brought into [0, limit]. */
static gint64
sum_clamped (gint64 first,
             gint64 n,
             gint64 limit)
{
  gint64 begin = CLAMP (first, 0, limit), end = CLAMP (first + n, 0, limit);

  return (end - begin) * (begin + end - 1) / 2 + MAX (first + n - MAX (first, limit), 0) * limit;
}

guint64
ebb_attention_count_flop (const EbbKernelParams *params,
                          gint64 n_queries,
                          gint64 n_keys,
                          guint64 of_pair)
{
  gint64 first = params->attention.first_query, window = params->attention.window;
  gboolean causal = params->attention.causal;
  gint64 ends = causal ? sum_clamped (first + 1, n_queries, n_keys) : n_queries * n_keys;
  gint64 begins = window > 0 ? sum_clamped (first + 1 - window, n_queries, n_keys) : 0;

  if (window == 0 && first == 0)
    return of_pair * (guint64) (n_queries * n_keys) / (causal ? 2 : 1);
  return of_pair * (guint64) MAX (ends - begins, 0);
}
