/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The repetition penalty, the tokens that are ruled out or forced, temperature, top-k, top-p and min-p, and the draw.
 */
#include "nn/models/token-choice-private.h"

#include "nn/models/generation-options-private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct _EbbTokenChoice
{
  EbbGenerationOptions *options;
  double temperature, top_p, min_p;
  float penalty;
  gint64 vocab, top_k;
  float *scores;      /* [vocab] */
  float *heap;        /* [top_k]: the largest scores, the least of them first */
  guint8 *is_earlier; /* [vocab] */
  guint32 *tokens;    /* [vocab]: the candidates */
  double *weights;    /* [vocab]: theirs */
  gsize n_candidates;
  double total;
};

EbbTokenChoice *
ebb_token_choice_new (EbbGenerationOptions *options, gint64 vocab)
{
  EbbTokenChoice *self = g_new0 (EbbTokenChoice, 1);

  self->options = ebb_generation_options_copy (options);
  self->temperature = options->temperature;
  self->top_p = options->top_p;
  self->min_p = options->min_p;
  self->penalty = (float) options->repetition_penalty;
  self->vocab = vocab;
  self->top_k = options->top_k < vocab ? options->top_k : 0;
  self->scores = g_new (float, vocab);
  self->heap = g_new (float, self->top_k);
  self->is_earlier = g_new0 (guint8, vocab);
  self->tokens = g_new (guint32, vocab);
  self->weights = g_new (double, vocab);
  return self;
}

void
ebb_token_choice_free (EbbTokenChoice *self)
{
  g_object_unref (self->options);
  g_free (self->scores);
  g_free (self->heap);
  g_free (self->is_earlier);
  g_free (self->tokens);
  g_free (self->weights);
  g_free (self);
}

static void
penalize (EbbTokenChoice *self, const gint64 *earlier, gsize n_earlier)
{
  for (gsize i = 0; i < n_earlier; i++)
    if (earlier[i] < self->vocab && !self->is_earlier[earlier[i]])
      {
        float *score = &self->scores[earlier[i]];

        self->is_earlier[earlier[i]] = TRUE; /* a token that is there twice is penalized once */
        *score = *score < 0 ? *score * self->penalty : *score / self->penalty;
      }
  for (gsize i = 0; i < n_earlier; i++)
    if (earlier[i] < self->vocab)
      self->is_earlier[earlier[i]] = FALSE;
}

static void
rule_out (EbbTokenChoice *self, gint64 token)
{
  if (token < self->vocab) /* a token beyond the vocabulary is never chosen */
    self->scores[token] = -INFINITY;
}

static void
rule_out_all (EbbTokenChoice *self, const GArray *tokens)
{
  for (guint i = 0; i < tokens->len; i++)
    rule_out (self, g_array_index (tokens, gint64, i));
}

/* Rules out the tokens that have followed the last n - 1 tokens before. */
static void
rule_out_ngrams (EbbTokenChoice *self, const gint64 *earlier, gsize n_earlier)
{
  const gsize n = (gsize) self->options->no_repeat_ngram_size;

  for (gsize i = 0; n > 0 && i + n <= n_earlier; i++)
    if (memcmp (earlier + i, earlier + n_earlier - (n - 1), sizeof (gint64) * (n - 1)) == 0)
      rule_out (self, earlier[i + n - 1]);
}

static void
force (EbbTokenChoice *self, const gint64 *tokens, guint n)
{
  for (gint64 i = 0; i < self->vocab; i++)
    self->scores[i] = -INFINITY;
  for (guint i = 0; i < n; i++)
    if (tokens[i] < self->vocab)
      self->scores[tokens[i]] = 0;
}

/* What transformers' processors of logits do, in their order (its GenerationMixin, _get_logits_processor ()). */
static void
restrict_tokens (EbbTokenChoice *self, const gint64 *earlier, gsize n_earlier, gsize n_prompt)
{
  const EbbGenerationOptions *options = self->options;
  const gsize n_made = n_earlier - n_prompt, n_forced = options->forced_bos_token >= 0 && n_prompt == 1;

  rule_out_ngrams (self, earlier, n_earlier);
  if (n_earlier < (gsize) options->min_length || n_made < (gsize) options->min_tokens)
    rule_out_all (self, options->stop_tokens);
  if (n_forced && n_made == 0)
    force (self, &options->forced_bos_token, 1);
  if (options->forced_eos_tokens->len > 0 && n_made + 1 == (gsize) options->max_tokens)
    force (self, (const gint64 *) (gpointer) options->forced_eos_tokens->data, options->forced_eos_tokens->len);
  rule_out_all (self, options->suppress_tokens);
  if (n_made == n_forced)
    rule_out_all (self, options->begin_suppress_tokens);
}

/* The likeliest token, the first of equals. */
static gint64
find_largest (EbbTokenChoice *self)
{
  gint64 best = -1;

  for (gint64 i = 0; i < self->vocab; i++)
    if (best < 0 ? !isnan (self->scores[i]) : self->scores[i] > self->scores[best])
      best = i;
  return best;
}

static void
sift_down (float *heap, gint64 n, gint64 i)
{
  const float value = heap[i];

  for (gint64 child; (child = 2 * i + 1) < n; i = child)
    {
      if (child + 1 < n && heap[child + 1] < heap[child])
        child++;
      if (heap[child] >= value)
        break;
      heap[i] = heap[child];
    }
  heap[i] = value;
}

/* The k-th largest score: most scores are compared with the least of the k largest so far, and that is all. */
static float
find_kth (EbbTokenChoice *self)
{
  const gint64 k = self->top_k;

  memcpy (self->heap, self->scores, sizeof (float) * (gsize) k);
  for (gint64 i = k / 2; i-- > 0;)
    sift_down (self->heap, k, i);
  for (gint64 i = k; i < self->vocab; i++)
    if (self->scores[i] > self->heap[0])
      {
        self->heap[0] = self->scores[i];
        sift_down (self->heap, k, 0);
      }
  return self->heap[0];
}

/* The candidates are the tokens with scores of @least or more; their weights are exp (score - largest). */
static void
collect (EbbTokenChoice *self, float least, float largest)
{
  self->n_candidates = 0;
  self->total = 0;
  for (gint64 i = 0; i < self->vocab; i++)
    if (self->scores[i] >= least && self->scores[i] > -INFINITY)
      {
        const double weight = exp ((double) self->scores[i] - (double) largest);

        self->tokens[self->n_candidates] = (guint32) i;
        self->weights[self->n_candidates++] = weight;
        self->total += weight;
      }
}

static void
keep_weights (EbbTokenChoice *self, double least)
{
  gsize n = 0;

  self->total = 0;
  for (gsize i = 0; i < self->n_candidates; i++)
    if (self->weights[i] >= least)
      {
        self->tokens[n] = self->tokens[i];
        self->weights[n] = self->weights[i];
        self->total += self->weights[n++];
      }
  self->n_candidates = n;
}

static int
compare_descending (gconstpointer a, gconstpointer b)
{
  const double x = *(const double *) a, y = *(const double *) b;

  return x < y ? 1 : x > y ? -1
                           : 0;
}

/* Keeps the largest weights that together reach top_p of all. Weights of at most (1 - top_p) / n of the total add up to
 * less than what is dropped, so only the others are sorted. */
static void
keep_top_p (EbbTokenChoice *self)
{
  const double low = (1 - self->top_p) / (double) self->n_candidates * self->total;
  g_autofree double *sorted = g_new (double, self->n_candidates);
  double sum = 0, least;
  gsize n = 0, place = 0, n_equal = 0;

  for (gsize i = 0; i < self->n_candidates; i++)
    if (self->weights[i] > low)
      sorted[n++] = self->weights[i];
  if (n == 0) /* they are all equal, and none may be left */
    return;
  qsort (sorted, n, sizeof (double), compare_descending);
  while (place < n && (place == 0 || sum < self->top_p * self->total))
    sum += sorted[place++];
  least = sorted[place - 1];
  for (gsize i = place; i-- > 0 && sorted[i] == least;)
    n_equal++;
  /* Of equal weights, those that are not needed are dropped from the beginning, as a stable sort does. */
  for (gsize i = self->n_candidates; i-- > 0;)
    if (self->weights[i] == least)
      {
        if (n_equal > 0)
          n_equal--;
        else
          self->weights[i] = -1;
      }
  keep_weights (self, least);
}

static gint64
draw (EbbTokenChoice *self, double uniform)
{
  const double place = uniform * self->total;
  double sum = 0;
  gsize i = 0;

  for (; i + 1 < self->n_candidates; i++)
    {
      sum += self->weights[i];
      if (place < sum)
        break;
    }
  return self->n_candidates > 0 ? (gint64) self->tokens[i] : -1;
}

gint64
ebb_token_choice_choose (EbbTokenChoice *self,
                         const float *logits,
                         const gint64 *earlier,
                         gsize n_earlier,
                         gsize n_prompt,
                         double uniform)
{
  gint64 best;

  memcpy (self->scores, logits, sizeof (float) * (gsize) self->vocab);
  if (self->penalty != 1)
    penalize (self, earlier, n_earlier);
  if (find_largest (self) < 0)
    return -1;
  restrict_tokens (self, earlier, n_earlier, n_prompt);
  best = find_largest (self);
  if (best < 0 || self->scores[best] == -INFINITY)
    return EBB_TOKEN_CHOICE_NONE;
  if (self->temperature == 0)
    return best;
  for (gint64 i = 0; i < self->vocab; i++)
    self->scores[i] = self->scores[i] / (float) self->temperature;
  if (!isfinite (self->scores[best])) /* by a temperature near 0 */
    return best;
  collect (self, self->top_k > 0 ? find_kth (self) : -INFINITY, self->scores[best]);
  if (self->top_p < 1 && self->n_candidates > 0)
    keep_top_p (self);
  if (self->min_p > 0)
    keep_weights (self, self->min_p); /* the largest weight is 1 */
  return draw (self, uniform);
}
