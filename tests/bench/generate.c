/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <stdio.h>
#include <string.h>

/* The seconds that greedy text takes after a prompt of random tokens: of the first token, which is mostly the prompt's
 * time, and of all; and the seconds in which the same threads copy as many bytes as the weights have, which is the
 * least that a token can take where the weights don't fit the caches. Prints one JSON object. */

static char *folder, *dtype = NULL;
static int threads = 0, n_prompt = 512, n_tokens = 128, batch = 1, rounds = 3;

static const GOptionEntry entries[] = {
  { "folder", 0, 0, G_OPTION_ARG_FILENAME, &folder, "The model's folder", "FOLDER" },
  { "dtype", 0, 0, G_OPTION_ARG_STRING, &dtype, "Of the weights: f32 or bf16 (the folder's)", "DTYPE" },
  { "prompt", 0, 0, G_OPTION_ARG_INT, &n_prompt, "Tokens of a prompt (512)", "N" },
  { "tokens", 0, 0, G_OPTION_ARG_INT, &n_tokens, "Tokens after it (128)", "N" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &batch, "Prompts (1)", "N" },
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Measurements, after one that does not count (3)", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  G_OPTION_ENTRY_NULL,
};

typedef struct
{
  EbbModule *model;
  EbbTensor **prompts;
  guint64 weight_bytes;
  char *from, *to; /* as many bytes as the weights */
} Bench;

static double
seconds_since (gint64 start)
{
  return (double) (g_get_monotonic_time () - start) * 1e-6;
}

/* NULL with @error set, or what was written. */
static EbbGeneration *
generate (const Bench *self, int n, double *seconds, GError **error)
{
  g_autoptr (EbbGenerationOptions) options = ebb_generation_options_new ();
  const gint64 start = g_get_monotonic_time ();
  EbbGeneration *written;

  g_object_set (options, "max-tokens", n, "temperature", 0.0, NULL);
  ebb_generation_options_set_stop_tokens (options, NULL, 0);
  written = ebb_model_generate (self->model, self->prompts, (gsize) batch, options, NULL, NULL, NULL, error);
  *seconds = seconds_since (start);
  return written;
}

static double
copy_weights (const Bench *self)
{
  const gint64 start = g_get_monotonic_time (), n = ebb_get_num_threads ();
  const gsize part = self->weight_bytes / (gsize) n;

#pragma omp parallel for schedule(static) num_threads((int) n)
  for (gint64 i = 0; i < n; i++)
    memcpy (self->to + (gsize) i * part, self->from + (gsize) i * part,
            i + 1 < n ? part : self->weight_bytes - (gsize) i * part);
  return seconds_since (start);
}

static gboolean
prepare (Bench *self, GError **error)
{
  const int wanted = g_strcmp0 (dtype, "f32") == 0    ? (int) EBB_DTYPE_F32
                     : g_strcmp0 (dtype, "bf16") == 0 ? (int) EBB_DTYPE_BF16
                                                      : EBB_MODEL_KEEP_DTYPE;
  g_autoptr (EbbGptConfig) config = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  self->model = ebb_model_open_full (folder, wanted, error);
  if (self->model == NULL)
    return FALSE;
  config = ebb_gpt_get_config (EBB_GPT (self->model));
  parameters = ebb_module_get_parameters (self->model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      self->weight_bytes += ebb_tensor_get_n_bytes (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  ebb_manual_seed (2);
  self->prompts = g_new0 (EbbTensor *, batch);
  for (int i = 0; i < batch; i++)
    {
      const gint64 shape[] = { n_prompt };

      self->prompts[i] = ebb_randint (3, config->vocab, shape, 1, EBB_DTYPE_I64, NULL, NULL, error);
      if (self->prompts[i] == NULL)
        return FALSE;
    }
  self->from = g_malloc (self->weight_bytes);
  self->to = g_malloc (self->weight_bytes);
  memset (self->from, 1, self->weight_bytes);
  memset (self->to, 2, self->weight_bytes);
  return TRUE;
}

static void
bench_clear (Bench *self)
{
  for (int i = 0; self->prompts != NULL && i < batch; i++)
    g_clear_pointer (&self->prompts[i], ebb_tensor_unref);
  g_free (self->prompts);
  g_clear_object (&self->model);
  g_free (self->from);
  g_free (self->to);
}

static gboolean
measure (Bench *self, GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL);
  guint64 cache_bytes = 0;

  if (!prepare (self, error))
    return FALSE;
  for (int i = -1; i < rounds; i++)
    {
      double first, whole;
      g_autoptr (EbbGeneration) one = generate (self, 1, &first, error);
      g_autoptr (EbbGeneration) all = one != NULL ? generate (self, n_tokens, &whole, error) : NULL;
      double copied;

      if (all == NULL)
        return FALSE;
      cache_bytes = ebb_generation_get_cache_bytes (all);
      copied = copy_weights (self);
      if (i >= 0)
        g_string_append_printf (text, "%s{\"prompt_s\": %.6f, \"whole_s\": %.6f, \"copy_s\": %.6f}", i > 0 ? ", " : "",
                                first, whole, copied);
    }
  printf ("{\"rounds\": [%s], \"weight_bytes\": %" G_GUINT64_FORMAT ", \"cache_bytes\": %" G_GUINT64_FORMAT
          ", \"resident_bytes\": %" G_GUINT64_FORMAT "}\n",
          text->str, self->weight_bytes, cache_bytes, bench_get_resident_peak ());
  return TRUE;
}

int
main (int argc, char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- time to generate text");
  g_autoptr (GError) error = NULL;
  Bench bench = { 0 };
  gboolean ok;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error) || folder == NULL || MIN (n_prompt, n_tokens) < 2
      || MIN (batch, rounds) < 1)
    {
      fprintf (stderr, "generate: %s\n",
               error ? error->message : "--folder FOLDER is needed, 2 tokens or more, and 1 prompt and round or more");
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  ok = measure (&bench, &error);
  if (!ok)
    fprintf (stderr, "generate: %s\n", error->message);
  bench_clear (&bench);
  return ok ? 0 : 1;
}
