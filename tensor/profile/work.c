/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "tensor/profile/profiler-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/backend/launch-item-private.h"
#include "tensor/backend/quantized-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

/* The operations of launches, from their views alone, and which of them are the same product, or the same attention. */

static gint64
count_elements (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims; i++)
    n *= view->shape[i];
  return n;
}

/* Elements that are there in memory: along a dimension that is broadcast there is one. */
guint64
ebb_view_count_bytes (const EbbView *view)
{
  gint64 n = 1;

  for (int i = 0; i < view->n_dims; i++)
    if (view->strides[i] != 0 || view->shape[i] == 0)
      n *= view->shape[i];
  return (guint64) n * ebb_dtype_get_size (view->dtype);
}

/* Of a quantised weight only the codes and scales of the panel are read. */
guint64
ebb_dequantize_count_bytes (const EbbLaunch *launch,
                            guint input)
{
  const gboolean multiplies = launch->n_inputs > 5;
  const gint64 n_rows = launch->outputs[0]->shape[multiplies ? 1 : 0];
  const guint64 n = (guint64) (n_rows * (multiplies ? launch->inputs[5] : launch->outputs[0])->shape[1]);
  const gboolean is_nf4 = launch->inputs[1]->dtype == EBB_DTYPE_U8;

  if (input == 0)
    return is_nf4 ? (n + 1) / 2 : n;
  if (input == 1)
    return is_nf4 ? (n + EBB_NF4_BLOCK - 1) / EBB_NF4_BLOCK
                  : (guint64) n_rows * ebb_dtype_get_size (EBB_DTYPE_F32);
  return launch->inputs[input] != NULL ? ebb_view_count_bytes (launch->inputs[input]) : 0;
}

/* A product that adds reads what it writes. Of what is indexed, only what is picked is read, or added to. */
guint64
ebb_launch_count_bytes (const EbbLaunch *launch)
{
  guint64 n = 0;

  switch (launch->kernel)
    {
    case EBB_KERNEL_INDEX_SELECT:
    case EBB_KERNEL_GATHER:
      return ebb_view_count_bytes (launch->inputs[1]) + 2 * ebb_view_count_bytes (launch->outputs[0]);
    case EBB_KERNEL_INDEX_ADD:
    case EBB_KERNEL_SCATTER_ADD:
      return ebb_view_count_bytes (launch->inputs[1]) + 3 * ebb_view_count_bytes (launch->inputs[0]);
    case EBB_KERNEL_DEQUANTIZE:
      for (guint i = 0; i < launch->n_inputs; i++)
        n += ebb_dequantize_count_bytes (launch, i);
      return n + ebb_view_count_bytes (launch->outputs[0]);
    default:
      break;
    }
  for (guint i = 0; i < launch->n_inputs; i++)
    if (launch->inputs[i] != NULL)
      n += ebb_view_count_bytes (launch->inputs[i]);
  for (guint i = 0; i < launch->n_outputs; i++)
    if (launch->outputs[i] != NULL)
      n += ebb_view_count_bytes (launch->outputs[i]);
  /* What an optimizer writes it has read. */
  for (guint i = 0; i < launch->n_items; i++)
    for (guint k = 0; k < EBB_LAUNCH_ITEM_DATA; k++)
      {
        gboolean writes;
        gsize size = ebb_launch_item_get_size (launch, &launch->items[i], k, &writes);

        n += writes ? 2 * size : size;
      }
  if (launch->kernel == EBB_KERNEL_MATMUL && launch->params.matmul.accumulate)
    n += ebb_view_count_bytes (launch->outputs[0]);
  return n;
}

guint64
ebb_launch_count_elements (const EbbLaunch *launch)
{
  guint64 n = 0;

  for (guint i = 0; i < launch->n_outputs; i++)
    if (launch->outputs[i] != NULL)
      n += (guint64) count_elements (launch->outputs[i]);
  for (guint i = 0; i < launch->n_items; i++)
    n += (guint64) launch->items[i].n_elements;
  return n;
}

/* -- products and attention ---------------------------------------------------------------------------------------- */

static void
take_view (EbbView *view,
           const EbbView *from)
{
  view->n_dims = from != NULL ? from->n_dims : -1;
  if (from == NULL)
    return;
  view->dtype = from->dtype;
  memcpy (view->shape, from->shape, sizeof (gint64) * (gsize) from->n_dims);
  memcpy (view->strides, from->strides, sizeof (gint64) * (gsize) from->n_dims);
}

/* The product that it is, with a weight in the dtype of x. */
static void
take_few_rows (EbbWorkKey *key,
               const EbbLaunch *launch)
{
  const EbbView *x = launch->inputs[5];

  key->kernel = EBB_KERNEL_MATMUL;
  take_view (&key->views[0], x);
  key->views[1] = (EbbView){ .dtype = x->dtype,
                             .n_dims = 2,
                             .shape = { x->shape[1], launch->outputs[0]->shape[1] },
                             .strides = { 1, x->shape[1] } };
  take_view (&key->views[2], launch->inputs[6]);
  take_view (&key->views[3], launch->outputs[0]);
}

gboolean
ebb_work_key_init (EbbWorkKey *key,
                   EbbDevice *device,
                   const EbbLaunch *launch)
{
  gboolean is_gradient = launch->kernel == EBB_KERNEL_ATTENTION_GRAD;

  memset (key, 0, sizeof *key);
  key->device = device;
  key->kernel = launch->kernel;
  if (launch->kernel == EBB_KERNEL_MATMUL)
    {
      for (guint i = 0; i < 3; i++)
        take_view (&key->views[i], i < launch->n_inputs ? launch->inputs[i] : NULL);
      take_view (&key->views[3], launch->outputs[0]);
      key->params.matmul = launch->params.matmul;
      return TRUE;
    }
  if (launch->kernel == EBB_KERNEL_DEQUANTIZE && launch->n_inputs > 5)
    {
      take_few_rows (key, launch);
      return TRUE;
    }
  if (launch->kernel != EBB_KERNEL_ATTENTION && !is_gradient)
    return FALSE;
  for (guint i = 0; i < 3; i++)
    take_view (&key->views[i], launch->inputs[is_gradient ? i + 1 : i]);
  take_view (&key->views[3], is_gradient ? launch->inputs[4] : launch->outputs[0]);
  key->params.attention.causal = launch->params.attention.causal;
  key->params.attention.first_query = launch->params.attention.first_query;
  key->params.attention.window = launch->params.attention.window;
  return TRUE;
}

guint
ebb_work_hash (gconstpointer key)
{
  G_STATIC_ASSERT (sizeof (EbbWorkKey) % sizeof (guint64) == 0);
  return (guint) ebb_hash_of (key, sizeof (EbbWorkKey));
}

gboolean
ebb_work_equal (gconstpointer a,
                gconstpointer b)
{
  return memcmp (a, b, sizeof (EbbWorkKey)) == 0;
}

gboolean
ebb_work_is_product (const EbbOpWork *work)
{
  return work->key.kernel == EBB_KERNEL_MATMUL;
}

/* Two for each multiplication; of attention, those of its products, two forward and five backward, for queries and keys
 * that see each other. */
static guint64
count_flop (const EbbWorkKey *key)
{
  const EbbView *views = key->views;

  if (key->kernel == EBB_KERNEL_MATMUL)
    return 2 * (guint64) count_elements (&views[3]) * (guint64) views[0].shape[views[0].n_dims - 1];
  return ebb_attention_count_flop (&key->params, views[0].shape[2], views[1].shape[2],
                                   (key->kernel == EBB_KERNEL_ATTENTION ? 4 : 10)
                                       * (guint64) (views[0].shape[0] * views[0].shape[1] * views[0].shape[3]));
}

guint64
ebb_launch_count_flop (const EbbLaunch *launch)
{
  EbbWorkKey key;

  return ebb_work_key_init (&key, NULL, launch) ? count_flop (&key) : 0;
}

EbbOpWork *
ebb_work_new (const EbbWorkKey *key)
{
  EbbOpWork *work = g_new0 (EbbOpWork, 1);

  work->key = *key;
  work->floor = -1;
  work->flop = count_flop (key);
  return work;
}

static gboolean
is_transposed (const EbbView *view)
{
  return view->n_dims >= 2 && view->strides[view->n_dims - 1] != 1 && view->shape[view->n_dims - 1] > 1;
}

static void
append_shape (GString *text,
              const EbbView *view)
{
  g_autofree char *shape = ebb_shape_to_string (view->shape, (guint) view->n_dims);

  g_string_append (text, shape);
}

char *
ebb_work_to_string (const EbbOpWork *work)
{
  const EbbView *views = work->key.views;
  GString *text = g_string_new (ebb_dtype_get_name (views[0].dtype));

  g_string_append_c (text, ' ');
  append_shape (text, &views[0]);
  g_string_append (text, ebb_work_is_product (work) ? " x " : " to ");
  append_shape (text, &views[1]);
  if (!ebb_work_is_product (work))
    {
      if (work->key.params.attention.causal)
        g_string_append (text, ", causal");
      if (work->key.params.attention.window > 0)
        g_string_append_printf (text, ", window %" G_GINT64_FORMAT, work->key.params.attention.window);
      if (work->key.kernel == EBB_KERNEL_ATTENTION_GRAD)
        g_string_append (text, ", gradient");
      return g_string_free (text, FALSE);
    }
  if (views[2].n_dims >= 0)
    g_string_append (text, " + bias");
  if (work->key.params.matmul.accumulate)
    g_string_append (text, " + c");
  if (views[3].dtype != views[0].dtype)
    g_string_append_printf (text, " to %s", ebb_dtype_get_name (views[3].dtype));
  if (is_transposed (&views[0]))
    g_string_append (text, ", a transposed");
  if (is_transposed (&views[1]))
    g_string_append (text, ", b transposed");
  return g_string_free (text, FALSE);
}
