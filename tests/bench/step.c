/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Times whole optimizer steps of a model on random tokens: forward, loss, backward, AdamW, gradients dropped. Prints
 * each part's median in milliseconds, and what memory was used for.
 *
 * With --serve it is one side of scripts/bench, which lets several such programs take turns: each line of standard
 * input is a number of steps to take, and is answered by one line of JSON. */

static BenchSettings settings = { .batch = 4, .context = 256 };
static int steps = 5, threads = 0;
static gboolean serve;

static const GOptionEntry entries[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &settings.preset, "Model: gpt2 (default), tiny, ...", "NAME" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &settings.layers, "Layers instead of the preset's", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &settings.width, "Width instead of the preset's", "N" },
  { "heads", 0, 0, G_OPTION_ARG_INT, &settings.heads, "Attention heads instead of the preset's", "N" },
  { "vocab", 0, 0, G_OPTION_ARG_INT, &settings.vocab, "Different tokens instead of the preset's", "N" },
  { "checkpoint", 0, 0, G_OPTION_ARG_STRING, &settings.strategy, "none (default), selective or full", "HOW" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &settings.batch, "Sequences a step", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &settings.context, "Tokens a sequence", "N" },
  { "steps", 0, 0, G_OPTION_ARG_INT, &steps, "Steps that count, after two that don't", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &settings.bf16, "Products in bf16", NULL },
  { "serve", 0, 0, G_OPTION_ARG_NONE, &serve, "Take as many steps as each line of standard input says", NULL },
  G_OPTION_ENTRY_NULL,
};

static const char *const purpose_names[] = { "parameters", "gradients", "optimizer", "activations", "workspace" };

static void
print_memory (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  for (int i = 0; i < EBB_N_PURPOSES; i++)
    printf ("%-12s %8.1f MB at most\n", purpose_names[i],
            (double) ebb_memory_stats_get_peak (stats, (EbbPurpose) i) * 1e-6);
  printf ("%-12s %8.1f MB at most, %.1f MB reserved\n", "all", (double) ebb_memory_stats_get_peak_total (stats) * 1e-6,
          (double) ebb_memory_stats_get_reserved (stats) * 1e-6);
  printf ("%-12s %8.1f MB\n", "resident", (double) bench_get_resident_peak () * 1e-6);
}

static gboolean
print_steps (BenchTraining *training,
             GError **error)
{
  g_autofree double *seconds = g_new0 (double, BENCH_N_PARTS *((gsize) steps + 2));
  g_autofree double *times = g_new (double, (gsize) steps);

  for (int i = 0; i < steps + 2; i++)
    if (!bench_training_step (training, seconds + BENCH_N_PARTS * i, NULL, error))
      return FALSE;
  for (int part = 0; part < BENCH_N_PARTS; part++)
    {
      double median;

      for (int i = 0; i < steps; i++)
        times[i] = seconds[BENCH_N_PARTS * (i + 2) + part];
      median = bench_median (times, (guint) steps);
      printf ("%-12s %8.1f ms (%.1f to %.1f)\n", bench_part_names[part], median * 1e3, times[0] * 1e3,
              times[steps - 1] * 1e3);
    }
  print_memory ();
  return TRUE;
}

/* -- in turn with others ------------------------------------------------------------------------------------------- */

static void
print_answer (const GString *seconds,
              double loss)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);

  printf ("{\"seconds\": [%s], \"loss\": %.9g", seconds->str, loss);
  for (int i = 0; i < EBB_N_PURPOSES; i++)
    printf (", \"%s_bytes\": %" G_GUINT64_FORMAT, purpose_names[i], ebb_memory_stats_get_peak (stats, (EbbPurpose) i));
  printf (", \"kept_bytes\": %" G_GUINT64_FORMAT ", \"peak_bytes\": %" G_GUINT64_FORMAT,
          ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION), ebb_memory_stats_get_peak_total (stats));
  printf (", \"resident_bytes\": %" G_GUINT64_FORMAT "}\n", bench_get_resident_peak ());
  fflush (stdout);
}

static gboolean
serve_steps (BenchTraining *training,
             GError **error)
{
  char line[64];

  printf ("{\"version\": \"%s\", \"threads\": %d, \"parameters\": %" G_GUINT64_FORMAT "}\n", ebb_get_version_string (),
          ebb_get_num_threads (), bench_training_count_parameters (training));
  fflush (stdout);
  while (fgets (line, sizeof line, stdin) != NULL)
    {
      g_autoptr (GString) text = g_string_new (NULL);
      double seconds[BENCH_N_PARTS], loss = 0;
      int n = atoi (line);

      ebb_memory_reset_peaks (NULL);
      for (int i = 0; i < n; i++)
        {
          if (!bench_training_step (training, seconds, &loss, error))
            return FALSE;
          g_string_append_printf (text, "%s%.9g", i > 0 ? ", " : "", seconds[BENCH_STEP]);
        }
      print_answer (text, loss);
    }
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- steps of a training");
  g_autoptr (GError) error = NULL;
  g_autoptr (BenchTraining) training = NULL;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error) || steps < 1)
    {
      fprintf (stderr, "step: %s\n", error ? error->message : "--steps must be at least 1");
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  training = bench_training_new (&settings, &error);
  if (training == NULL || !(serve ? serve_steps (training, &error) : print_steps (training, &error)))
    {
      fprintf (stderr, "step: %s\n", error->message);
      return 1;
    }
  return 0;
}
