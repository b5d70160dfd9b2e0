/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <locale.h>
#include <stdio.h>
#include <string.h>

/* Times whole optimizer steps of a GPT on random tokens: forward, loss, backward, AdamW, gradients dropped. Prints each
 * part's median in milliseconds, and what memory was used for. */

static char *preset = NULL;
static char *strategy = NULL;
static int batch = 4, context = 256, steps = 5, threads = 0, layers = 0;
static gboolean bf16;

static const GOptionEntry entries[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &preset, "Model: gpt2 (default), tiny, ...", "NAME" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &layers, "Layers instead of the preset's", "N" },
  { "checkpoint", 0, 0, G_OPTION_ARG_STRING, &strategy, "none (default), selective or full", "HOW" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &batch, "Sequences a step", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &context, "Tokens a sequence", "N" },
  { "steps", 0, 0, G_OPTION_ARG_INT, &steps, "Steps that count, after two that don't", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &bf16, "Products in bf16", NULL },
  G_OPTION_ENTRY_NULL,
};

enum
{
  FORWARD,
  BACKWARD,
  OPTIMIZER,
  TOTAL,
  N_PARTS
};

static const char *const part_names[] = { "forward", "backward", "optimizer", "step" };

static int
compare (const void *a,
         const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

static EbbModule *
make_model (GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset (preset ? preset : "gpt2");
  g_autoptr (EbbCheckpointOptions) options = NULL;
  EbbModule *model;

  if (config == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "no preset \"%s\"", preset);
      return NULL;
    }
  ebb_gpt_config_set_context (config, context);
  ebb_gpt_config_set_dropout (config, 0);
  if (layers > 0)
    ebb_gpt_config_set_layers (config, layers);
  model = ebb_gpt_new (config, error);
  if (model == NULL || strategy == NULL || strcmp (strategy, "none") == 0)
    return model;
  options = strcmp (strategy, "selective") == 0 ? ebb_checkpoint_options_new_selective ()
                                                : ebb_checkpoint_options_new ();
  if (!ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error))
    g_clear_object (&model);
  return model;
}

static gboolean
run_step (EbbModule *model,
          EbbOptimizer *optimizer,
          gint64 vocab,
          double *seconds,
          GError **error)
{
  const gint64 shape[] = { batch, context };
  g_autoptr (EbbTensor) tokens = ebb_randint (0, vocab, shape, 2, EBB_DTYPE_I64, NULL, NULL, error);
  g_autoptr (EbbTensor) targets = ebb_randint (0, vocab, shape, 2, EBB_DTYPE_I64, NULL, NULL, error);
  g_autoptr (EbbTensor) loss = NULL;
  gint64 start = g_get_monotonic_time (), now;

  ebb_push_autocast (bf16, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);
  ebb_pop_autocast ();
  now = g_get_monotonic_time ();
  seconds[FORWARD] = (double) (now - start) * 1e-6;
  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  seconds[BACKWARD] = (double) (g_get_monotonic_time () - now) * 1e-6;
  now = g_get_monotonic_time ();
  if (!ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  seconds[OPTIMIZER] = (double) (g_get_monotonic_time () - now) * 1e-6;
  seconds[TOTAL] = (double) (g_get_monotonic_time () - start) * 1e-6;
  return TRUE;
}

static void
print_memory (void)
{
  static const char *const names[] = { "parameters", "gradients", "optimizer", "activations", "workspace" };
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);
  g_autofree char *status = NULL;
  const char *peak;

  for (int i = 0; i < EBB_N_PURPOSES; i++)
    printf ("%-12s %8.1f MB at most\n", names[i], (double) ebb_memory_stats_get_peak (stats, (EbbPurpose) i) * 1e-6);
  printf ("%-12s %8.1f MB at most, %.1f MB reserved\n", "all", (double) ebb_memory_stats_get_peak_total (stats) * 1e-6,
          (double) ebb_memory_stats_get_reserved (stats) * 1e-6);
  if (g_file_get_contents ("/proc/self/status", &status, NULL, NULL) && (peak = strstr (status, "VmHWM:")) != NULL)
    printf ("%-12s %8.1f MB\n", "resident", g_ascii_strtod (peak + 6, NULL) * 1.024e-3);
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbGptConfig) config = NULL;
  g_autofree double *seconds = NULL;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    {
      fprintf (stderr, "step: %s\n", error->message);
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  ebb_manual_seed (1);
  model = make_model (&error);
  optimizer = ebb_adamw_new (model, 3e-4, &error);
  config = model ? ebb_gpt_get_config (EBB_GPT (model)) : NULL;
  seconds = g_new0 (double, N_PARTS *(gsize) (steps + 2));
  for (int i = 0; error == NULL && i < steps + 2; i++)
    run_step (model, optimizer, ebb_gpt_config_get_vocab (config), seconds + N_PARTS * i, &error);
  if (error != NULL)
    {
      fprintf (stderr, "step: %s\n", error->message);
      return 1;
    }
  for (int part = 0; part < N_PARTS; part++)
    {
      g_autofree double *sorted = g_new (double, (gsize) steps);

      for (int i = 0; i < steps; i++)
        sorted[i] = seconds[N_PARTS * (i + 2) + part];
      qsort (sorted, (gsize) steps, sizeof (double), compare);
      printf ("%-12s %8.1f ms (%.1f to %.1f)\n", part_names[part], sorted[steps / 2] * 1e3, sorted[0] * 1e3,
              sorted[steps - 1] * 1e3);
    }
  print_memory ();
  return 0;
}
