/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* Times attention alone, forward and backward, and prints its rate. FLOP are those of products of queries and keys that
 * see each other: two products forward, five backward. With --window or --documents they still are those of plain
 * attention: what is skipped shows as a higher rate. */

typedef struct
{
  const char *name;
  gint64 batch, heads, length, width; /* width: of a head */
  gboolean causal;
} Shape;

static const Shape shapes[] = {
  { "gpt2-8x512", 8, 12, 512, 64, TRUE },
  { "gpt2-4x256", 4, 12, 256, 64, TRUE },
  { "bert-large", 8, 16, 128, 64, FALSE },
  { "small", 12, 4, 64, 32, TRUE },
  { "context-2048", 1, 12, 2048, 64, TRUE },
  { "context-4096", 1, 12, 4096, 64, TRUE },
  { "one-head-4096", 1, 1, 4096, 128, TRUE },
};

static char *only = NULL;
static int rounds = 9, threads = 0;
static double dropout = 0;
static gint64 window = 0, documents = 1;
static gboolean only_bf16, only_f32;

static const GOptionEntry entries[] = {
  { "only", 0, 0, G_OPTION_ARG_STRING, &only, "One shape of the table", "NAME" },
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds that count, after one that doesn't", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "dropout", 0, 0, G_OPTION_ARG_DOUBLE, &dropout, "Probability of dropping a weight", "P" },
  { "window", 0, 0, G_OPTION_ARG_INT64, &window, "How many keys a query attends to at most", "N" },
  { "documents", 0, 0, G_OPTION_ARG_INT64, &documents, "Documents of equal length in each row", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &only_bf16, "bf16 alone", NULL },
  { "f32", 0, 0, G_OPTION_ARG_NONE, &only_f32, "f32 alone", NULL },
  G_OPTION_ENTRY_NULL,
};

/* Standard normal values. */
static EbbTensor *
make_values (gint64 batch,
             gint64 length,
             gint64 width,
             EbbDType dtype,
             GError **error)
{
  const gint64 shape[] = { batch, length, width };

  return ebb_randn (shape, 3, dtype, NULL, NULL, error);
}

/* Calls enough for a few milliseconds, so that the clock's grain and the region's start are not what is measured. */
static gboolean
time_calls (const Shape *shape,
            EbbTensor *qkv,
            EbbTensor *grad,
            EbbTensor *starts,
            int n_calls,
            double *forward,
            double *backward,
            GError **error)
{
  EbbAttentionForm form = { .causal = shape->causal, .window = window, .dropout_p = dropout };
  gint64 ticks[2] = { 0, 0 };

  for (int i = 0; i < n_calls; i++)
    {
      gint64 start = g_get_monotonic_time (), now;
      g_autoptr (EbbTensor) out = ebb_self_attention_full (qkv, (guint) shape->heads, NULL, starts, &form, NULL, error);

      now = g_get_monotonic_time ();
      if (out == NULL || !ebb_backward (&out, 1, &grad, 1, NULL, 0, FALSE, error))
        return FALSE;
      ticks[0] += now - start;
      ticks[1] += g_get_monotonic_time () - now;
      ebb_tensor_set_grad (qkv, NULL, NULL);
    }
  *forward = (double) ticks[0] * 1e-6 / n_calls;
  *backward = (double) ticks[1] * 1e-6 / n_calls;
  return TRUE;
}

/* Of one row; NULL for one document. */
static EbbTensor *
make_starts (gint64 length,
             GError **error)
{
  g_autofree gint64 *values = g_new (gint64, (gsize) length);
  gint64 size = MAX (length / documents, 1);

  for (gint64 t = 0; t < length; t++)
    values[t] = t / size * size;
  return ebb_tensor_new_from_ints (values, (gsize) length, (const gint64[]){ 1, length }, 2, error);
}

static gboolean
time_shape (const Shape *shape,
            EbbDType dtype,
            GError **error)
{
  double pairs = (double) (shape->causal ? shape->length * (shape->length + 1) / 2 : shape->length * shape->length);
  double product = 2.0 * (double) (shape->batch * shape->heads * shape->width) * pairs;
  gint64 width = shape->heads * shape->width;
  g_autoptr (EbbTensor) qkv = make_values (shape->batch, shape->length, 3 * width, dtype, error);
  g_autoptr (EbbTensor) grad = qkv ? make_values (shape->batch, shape->length, width, dtype, error) : NULL;
  g_autoptr (EbbTensor) starts = documents > 1 ? make_starts (shape->length, error) : NULL;
  g_autofree double *forward = g_new0 (double, (gsize) rounds + 1);
  g_autofree double *backward = g_new0 (double, (gsize) rounds + 1);
  int n_calls = 1 + (int) (1e9 / (7 * product));

  if (grad == NULL || (documents > 1 && starts == NULL) || !ebb_tensor_set_requires_grad (qkv, TRUE, error))
    return FALSE;
  for (int i = 0; i <= rounds; i++)
    if (!time_calls (shape, qkv, grad, starts, n_calls, &forward[i], &backward[i], error))
      return FALSE;
  forward[0] = bench_median (forward + 1, (guint) rounds);
  backward[0] = bench_median (backward + 1, (guint) rounds);
  printf ("%-14s %-5s %9.3f ms %6.1f GFLOP/s   %9.3f ms %6.1f GFLOP/s\n", shape->name, ebb_dtype_get_name (dtype),
          forward[0] * 1e3, 2 * product / forward[0] * 1e-9, backward[0] * 1e3, 5 * product / backward[0] * 1e-9);
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  setlocale (LC_ALL, "");
  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    {
      fprintf (stderr, "attention: %s\n", error->message);
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  ebb_manual_seed (1);
  printf ("%-20s %28s %30s\n", "", "forward", "backward");
  for (gsize i = 0; i < G_N_ELEMENTS (shapes); i++)
    for (int b = 0; b < 2; b++)
      {
        if ((only && g_strcmp0 (only, shapes[i].name) != 0) || (b == 0 ? only_bf16 : only_f32))
          continue;
        if (!time_shape (&shapes[i], b ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, &error))
          {
            fprintf (stderr, "attention: %s\n", error->message);
            return 1;
          }
      }
  return 0;
}
