/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <omp.h>
#include <stdio.h>

/* Times products of few rows with the weights of a model, and attention of few queries to cached keys and values, as
 * when text is generated, beside plainly reading their bytes with as many threads: what is left of a read's speed. The
 * shortest time of the rounds counts: others on the machine only add. */

typedef struct
{
  const char *name;
  gint64 outputs, inputs;
} Shape;

/* Of a Llama with 100 million parameters, 12 blocks. */
static const Shape shapes[] = {
  { "q_proj", 768, 768 },
  { "k_proj", 256, 768 },
  { "gate_proj", 2048, 768 },
  { "down_proj", 768, 2048 },
  { "lm_head", 32000, 768 },
};

/* Read between two products with the same weights: more than a cache holds. */
#define OTHER_BYTES ((gint64) 192 << 20)

static int rounds = 7, threads = 0, only_rows = 0;
static char *only = NULL;
static gboolean only_bf16, only_f32;

static const GOptionEntry entries[] = {
  { "only", 0, 0, G_OPTION_ARG_STRING, &only, "One shape of the table", "NAME" },
  { "rows", 0, 0, G_OPTION_ARG_INT, &only_rows, "This number of rows alone", "N" },
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds, of which the shortest counts", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &only_bf16, "bf16 weights alone", NULL },
  { "f32", 0, 0, G_OPTION_ARG_NONE, &only_f32, "f32 weights alone", NULL },
  G_OPTION_ENTRY_NULL,
};

static volatile guint64 sink;

/* Seconds that reading takes, with 8 sums under way in each thread. */
static double
time_read (const void *data,
           gint64 n_bytes)
{
  const guint64 *words = data;
  gint64 n = n_bytes / 8, start = g_get_monotonic_time ();
  guint64 all = 0;

#pragma omp parallel for reduction(+ \
                                   : all) schedule(static)
  for (gint64 i = 0; i < n / 64; i++)
    {
      guint64 sums[8] = { 0 };

      for (int j = 0; j < 64; j++)
        sums[j % 8] += words[i * 64 + j];
      for (int j = 0; j < 8; j++)
        all += sums[j];
    }
  sink += all;
  return (double) (g_get_monotonic_time () - start) * 1e-6;
}

static gboolean
time_products (EbbTensor *x,
               EbbTensor **weights,
               int n,
               double *seconds,
               GError **error)
{
  gint64 start = g_get_monotonic_time ();

  for (int i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) y = ebb_linear (x, weights[i], NULL, error);

      if (y == NULL)
        return FALSE;
    }
  *seconds = (double) (g_get_monotonic_time () - start) * 1e-6;
  return TRUE;
}

/* Enough weights that none is still in a cache when its turn comes again. */
static gboolean
time_shape (const Shape *shape,
            gint64 n_rows,
            EbbDType dtype,
            GError **error)
{
  const gint64 x_sizes[] = { n_rows, shape->inputs };
  gint64 n_bytes = shape->outputs * shape->inputs * (gint64) ebb_dtype_get_size (dtype);
  int n = (int) MAX (OTHER_BYTES / n_bytes, 2);
  g_autoptr (EbbTensor) x = ebb_randn (x_sizes, 2, dtype, NULL, NULL, error);
  g_autoptr (EbbTensor) all = ebb_full ((gint64[]){ n, shape->outputs, shape->inputs }, 3, 0.01, dtype, NULL, error);
  g_autofree double *products = g_new (double, (gsize) rounds);
  g_autofree double *reads = g_new (double, (gsize) rounds);
  EbbTensor **weights = g_new0 (EbbTensor *, (gsize) n);
  gboolean ok = x != NULL && all != NULL;

  for (int i = 0; ok && i < n; i++)
    {
      weights[i] = ebb_select (all, 0, i, error);
      ok = weights[i] != NULL;
    }
  for (int i = 0; ok && i < rounds; i++)
    {
      reads[i] = time_read (ebb_tensor_get_data (all, NULL), n * n_bytes);
      ok = time_products (x, weights, n, &products[i], error);
    }
  for (int i = 0; i < n; i++)
    g_clear_pointer (&weights[i], ebb_tensor_unref);
  g_free (weights);
  if (!ok)
    return FALSE;
  for (int i = 1; i < rounds; i++)
    {
      products[0] = MIN (products[0], products[i]);
      reads[0] = MIN (reads[0], reads[i]);
    }
  printf ("%-10s %3d rows %-5s %8.2f GB/s, read %6.2f GB/s: %5.2f\n", shape->name, (int) n_rows,
          ebb_dtype_get_name (dtype), (double) (n * n_bytes) * 1e-9 / products[0],
          (double) (n * n_bytes) * 1e-9 / reads[0], reads[0] / products[0]);
  return TRUE;
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

#define HEADS 12
#define GROUPS 4
#define HEAD_WIDTH 64
#define KEYS 600
#define CAPACITY 640

static gboolean
time_attention_calls (EbbTensor *q,
                      EbbTensor **keys,
                      EbbTensor **values,
                      int n,
                      double *seconds,
                      GError **error)
{
  EbbAttentionForm form = { .causal = TRUE, .first_query = KEYS - ebb_tensor_get_dim (q, 2) };
  gint64 start = g_get_monotonic_time ();

  for (int i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) y = ebb_attention (q, keys[i], values[i], NULL, NULL, &form, NULL, error);

      if (y == NULL)
        return FALSE;
    }
  *seconds = (double) (g_get_monotonic_time () - start) * 1e-6;
  return TRUE;
}

/* As many layers' keys and values, in caches with room for more, as are no longer in a cache when their turn comes. */
static gboolean
time_attention (gint64 n_rows,
                EbbDType dtype,
                GError **error)
{
  const gint64 q_sizes[] = { 1, HEADS, n_rows, HEAD_WIDTH };
  gint64 size = GROUPS * CAPACITY * HEAD_WIDTH * (gint64) ebb_dtype_get_size (dtype);
  int n = (int) (OTHER_BYTES / 2 / size);
  g_autoptr (EbbTensor) q = ebb_randn (q_sizes, 4, dtype, NULL, NULL, error);
  g_autoptr (EbbTensor) all =
      ebb_full ((gint64[]){ 2 * n, 1, GROUPS, CAPACITY, HEAD_WIDTH }, 5, 0.01, dtype, NULL, error);
  EbbTensor **parts = g_new0 (EbbTensor *, (gsize) (2 * n));
  double best = G_MAXDOUBLE, best_read = G_MAXDOUBLE, bytes = 2.0 * n * (double) size * KEYS / CAPACITY;
  gboolean ok = q != NULL && all != NULL;

  for (int i = 0; ok && i < 2 * n; i++)
    {
      g_autoptr (EbbTensor) one = ebb_select (all, 0, i, error);

      parts[i] = ebb_narrow (one, 2, 0, KEYS, error);
      ok = parts[i] != NULL;
    }
  for (int i = 0; ok && i < rounds; i++)
    {
      double seconds = 0;

      best_read = MIN (best_read, time_read (ebb_tensor_get_data (all, NULL), (gint64) bytes));
      ok = time_attention_calls (q, parts, parts + n, n, &seconds, error);
      best = MIN (best, seconds);
    }
  for (int i = 0; i < 2 * n; i++)
    g_clear_pointer (&parts[i], ebb_tensor_unref);
  g_free (parts);
  if (ok)
    printf ("%-10s %3d rows %-5s %8.2f GB/s, read %6.2f GB/s: %5.2f\n", "attention", (int) n_rows,
            ebb_dtype_get_name (dtype), bytes * 1e-9 / best, bytes * 1e-9 / best_read, best_read / best);
  return ok;
}

static gboolean
is_wanted (const char *name)
{
  return only == NULL || g_strcmp0 (only, name) == 0;
}

int
main (int argc,
      char **argv)
{
  static const gint64 rows[] = { 1, 2, 4, 8, 16 };
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    {
      fprintf (stderr, "few-rows: %s\n", error->message);
      return 2;
    }
  if (threads > 0)
    {
      ebb_set_num_threads (threads);
      omp_set_num_threads (threads);
    }
  for (gsize i = 0; i < G_N_ELEMENTS (rows); i++)
    for (int b = 0; b < 2; b++)
      for (gsize j = 0; j < G_N_ELEMENTS (shapes); j++)
        {
          if ((only_rows > 0 && only_rows != rows[i]) || (b == 0 ? only_bf16 : only_f32))
            continue;
          if ((is_wanted (shapes[j].name)
               && !time_shape (&shapes[j], rows[i], b ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, &error))
              || (j == 0 && is_wanted ("attention")
                  && !time_attention (rows[i], b ? EBB_DTYPE_BF16 : EBB_DTYPE_F32, &error)))
            {
              fprintf (stderr, "few-rows: %s\n", error->message);
              return 1;
            }
        }
  return 0;
}
