/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */

#include "support/reference-private.h"

#include <math.h>

typedef struct
{
  const EbbView *q, *k, *v, *mask, *starts;
  gint64 n_batches, n_heads, n_queries, n_keys, width, n_shared;
  const EbbLaunch *launch;
} Attention;

static void
attention_init (Attention *self,
                const EbbLaunch *launch,
                guint first)
{
  self->launch = launch;
  self->q = launch->inputs[first];
  self->k = launch->inputs[first + 1];
  self->v = launch->inputs[first + 2];
  self->n_batches = self->q->shape[0];
  self->n_heads = self->q->shape[1];
  self->n_queries = self->q->shape[2];
  self->width = self->q->shape[3];
  self->n_keys = self->k->shape[2];
  self->n_shared = self->n_heads / self->k->shape[1];
}

static const EbbView *
get_input (const EbbLaunch *launch,
           guint index)
{
  return index < launch->n_inputs ? launch->inputs[index] : NULL;
}

static gint64
at (const EbbView *view,
    gint64 a,
    gint64 b,
    gint64 c,
    gint64 d)
{
  const gint64 position[4] = { a, b, c, d };
  gint64 offset = 0;

  for (int i = 0; i < 4; i++)
    offset += view->shape[i] == 1 ? 0 : position[i] * view->strides[i];
  return offset;
}

/* Whether query t may attend to key s as far as positions say. */
static gboolean
is_seen (const Attention *self,
         gint64 batch,
         gint64 t,
         gint64 s)
{
  gint64 position = self->launch->params.attention.first_query + t, window = self->launch->params.attention.window;
  double start = 0.0; /* any i64 will do */

  if (self->starts)
    start = ebb_reference_load (self->starts, batch * self->starts->strides[0] + t * self->starts->strides[1]);
  if (start > (double) position || (double) s < start)
    return FALSE;
  return (!self->launch->params.attention.causal || s <= position) && (window == 0 || s > position - window);
}

/* scale q k^T, capped, + mask, -inf where a key is hidden. slope: the derivative of that by scale q k^T. */
static double
get_score (const Attention *self,
           gint64 batch,
           gint64 head,
           gint64 t,
           gint64 s,
           double *slope)
{
  double sum = 0.0, cap = self->launch->params.attention.softcap;

  *slope = 1.0;
  if (!is_seen (self, batch, t, s))
    return -INFINITY;
  for (gint64 i = 0; i < self->width; i++)
    sum += ebb_reference_load (self->q, at (self->q, batch, head, t, i))
           * ebb_reference_load (self->k, at (self->k, batch, head / self->n_shared, s, i));
  sum *= self->launch->params.attention.scale;
  if (cap > 0.0)
    {
      *slope = 1.0 - tanh (sum / cap) * tanh (sum / cap);
      sum = cap * tanh (sum / cap);
    }
  if (self->mask && self->mask->dtype == EBB_DTYPE_BOOL)
    return ebb_reference_load (self->mask, at (self->mask, batch, head, t, s)) != 0.0 ? sum : -INFINITY;
  return self->mask ? sum + ebb_reference_load (self->mask, at (self->mask, batch, head, t, s)) : sum;
}

/* The factor that dropout gives a probability. */
static double
get_keep (const Attention *self,
          gint64 batch,
          gint64 head,
          gint64 t,
          gint64 s)
{
  double p = self->launch->params.attention.p;
  guint64 index = (guint64) ((batch * self->n_heads + head) * self->n_queries + t) * self->n_keys + s;

  if (p <= 0.0)
    return 1.0;
  return ebb_reference_draw (self->launch->params.attention.philox, index) >= p * 4294967296.0 ? 1.0 / (1.0 - p) : 0.0;
}

/* Fills @probabilities of a row, all 0 if there is no key, and @slopes of its scores, and gives its largest score and
 * the sum of exponentials beside that. */
static void
get_probabilities (const Attention *self,
                   gint64 batch,
                   gint64 head,
                   gint64 t,
                   double *probabilities,
                   double *slopes,
                   double *largest,
                   double *all)
{
  double best = -INFINITY, sum = 0.0;

  for (gint64 s = 0; s < self->n_keys; s++)
    {
      probabilities[s] = get_score (self, batch, head, t, s, &slopes[s]);
      best = MAX (best, probabilities[s]);
    }
  for (gint64 s = 0; s < self->n_keys; s++)
    {
      probabilities[s] = best == -INFINITY ? 0.0 : exp (probabilities[s] - best);
      sum += probabilities[s];
    }
  for (gint64 s = 0; s < self->n_keys; s++)
    probabilities[s] /= sum > 0.0 ? sum : 1.0;
  *largest = best;
  *all = sum;
}

gboolean
ebb_reference_attention (const EbbLaunch *launch,
                         GError **error)
{
  const EbbView *o = launch->outputs[0], *logsumexp = launch->outputs[1];
  Attention self = { .mask = get_input (launch, 3), .starts = get_input (launch, 4) };
  g_autofree double *p = NULL;

  attention_init (&self, launch, 0);
  p = g_new (double, 2 * self.n_keys + 1);
  for (gint64 row = 0; row < self.n_batches * self.n_heads * self.n_queries; row++)
    {
      gint64 t = row % self.n_queries, head = row / self.n_queries % self.n_heads;
      gint64 batch = row / self.n_queries / self.n_heads;
      double largest, all;

      get_probabilities (&self, batch, head, t, p, p + self.n_keys, &largest, &all);
      if (logsumexp)
        {
          ebb_reference_store (logsumexp, 2 * row, largest / G_LN2);
          ebb_reference_store (logsumexp, 2 * row + 1, all > 0.0 ? log2 (all) : 0.0);
        }
      for (gint64 i = 0; i < self.width; i++)
        {
          double sum = 0.0;

          for (gint64 s = 0; s < self.n_keys; s++)
            sum += p[s] * get_keep (&self, batch, head, t, s)
                   * ebb_reference_load (self.v, at (self.v, batch, head / self.n_shared, s, i));
          ebb_reference_store (o, at (o, batch, head, t, i), sum);
        }
    }
  return TRUE;
}

typedef struct
{
  double *q, *k, *v; /* contiguous */
} Gradients;

static void
differentiate_row (const Attention *self,
                   const EbbView *d_out,
                   Gradients *grads,
                   double *p,
                   double *d_p,
                   double *slopes,
                   gint64 batch,
                   gint64 head,
                   gint64 t)
{
  gint64 key_head = head / self->n_shared, n_key_heads = self->n_heads / self->n_shared;
  double *d_q = grads->q + ((batch * self->n_heads + head) * self->n_queries + t) * self->width;
  double *d_k = grads->k + (batch * n_key_heads + key_head) * self->n_keys * self->width;
  double *d_v = grads->v + (batch * n_key_heads + key_head) * self->n_keys * self->width;
  double delta = 0.0, largest, all;

  get_probabilities (self, batch, head, t, p, slopes, &largest, &all);
  for (gint64 s = 0; s < self->n_keys; s++)
    {
      double keep = get_keep (self, batch, head, t, s), sum = 0.0;

      for (gint64 i = 0; i < self->width; i++)
        {
          double d = ebb_reference_load (d_out, at (d_out, batch, head, t, i));

          sum += d * ebb_reference_load (self->v, at (self->v, batch, key_head, s, i));
          d_v[s * self->width + i] += p[s] * keep * d;
        }
      d_p[s] = sum * keep;
      delta += p[s] * d_p[s];
    }
  for (gint64 s = 0; s < self->n_keys; s++)
    {
      double d_s = p[s] * (d_p[s] - delta) * slopes[s] * self->launch->params.attention.scale;

      for (gint64 i = 0; i < self->width; i++)
        {
          d_q[i] += d_s * ebb_reference_load (self->k, at (self->k, batch, key_head, s, i));
          d_k[s * self->width + i] += d_s * ebb_reference_load (self->q, at (self->q, batch, head, t, i));
        }
    }
}

static void
store_all (const EbbView *view,
           const double *values)
{
  for (gint64 i = 0; view && i < ebb_reference_count (view); i++)
    ebb_reference_store (view, ebb_reference_offset (view, i), values[i]);
}

gboolean
ebb_reference_attention_grad (const EbbLaunch *launch,
                              GError **error)
{
  Attention self = { .mask = get_input (launch, 6), .starts = get_input (launch, 7) };
  Gradients grads;
  g_autofree double *row = NULL;

  attention_init (&self, launch, 1);
  grads.q = g_new0 (double, ebb_reference_count (self.q) + 1);
  grads.k = g_new0 (double, ebb_reference_count (self.k) + 1);
  grads.v = g_new0 (double, ebb_reference_count (self.v) + 1);
  row = g_new (double, 3 * self.n_keys + 1);
  for (gint64 batch = 0; batch < self.n_batches; batch++)
    for (gint64 head = 0; head < self.n_heads; head++)
      for (gint64 t = 0; t < self.n_queries; t++)
        differentiate_row (&self, launch->inputs[0], &grads, row, row + self.n_keys, row + 2 * self.n_keys, batch, head,
                           t);
  store_all (launch->outputs[0], grads.q);
  store_all (launch->outputs[1], grads.k);
  store_all (launch->outputs[2], grads.v);
  g_free (grads.q);
  g_free (grads.k);
  g_free (grads.v);
  return TRUE;
}
