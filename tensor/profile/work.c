/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Which launches are the same product, or the same attention, and what they compute. */
#include "tensor/profile/profiler-private.h"

#include "tensor/backend/backend-private.h"
#include "tensor/util/checksum-private.h"

#include <string.h>

guint64
ebb_launch_count_elements (const EbbLaunch *launch)
{
  guint64 n = 0;

  for (guint i = 0; i < launch->n_outputs; i++)
    if (launch->outputs[i] != NULL)
      n += (guint64) ebb_view_count_elements (launch->outputs[i]);
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

EbbOpWork *
ebb_work_new (const EbbWorkKey *key,
              const EbbLaunch *launch)
{
  EbbOpWork *work = g_new0 (EbbOpWork, 1);

  work->key = *key;
  work->floor = -1;
  work->flop = ebb_launch_count_flop (launch);
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
