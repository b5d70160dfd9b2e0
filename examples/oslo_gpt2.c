/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* OSLO's tutorial on activation checkpointing: a GPT-2 on tensor ranks, whose checkpointed activations are partitioned
 * over the ranks, laid out in contiguous memory, and offloaded to the host, one after the other. */
#include <ebb/ebb.h>

#include <locale.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

static const struct
{
  const char *name, *partitioned, *contiguous, *on_host; /* as JSON has them */
} ways[] = {
  { "plain", "false", "false", "false" },
  { "partitioned", "true", "false", "false" },
  { "+ contiguous", "true", "true", "false" },
  { "+ host", "true", "true", "true" },
};

#define N_WAYS G_N_ELEMENTS (ways)

/* One token a byte. */
static const char text[] =
    "At high water the channels are one sheet, and a boat can cross anywhere. Six hours later the same water is gone "
    "and the way is found again by its banks: what was covered has not moved, it only was not seen. Nobody carries "
    "the sea out and back. It leaves, and what is needed of it returns in time for the next boat, to the inch, "
    "because the same moon draws it over the same ground.\n";

/* Of one rank in the last step. All but the last two are bytes. */
typedef enum
{
  KEPT_ON_DEVICE, /* by the checkpoints, when the forward pass ends */
  KEPT_ON_HOST,
  ALL_THEN,         /* on the device */
  ACTIVATIONS_PEAK, /* in the step */
  ALL_PEAK,
  MICROSECONDS,
  LOSS, /* the bits of a double */
  N_FIGURES
} Figure;

/* -- the command line ---------------------------------------------------------------------------------------------- */

static char *preset, *device_name;
static int n_layers, width, n_heads, batch = 16, sequence = 128, n_steps = 1, n_ranks = 4;

static const GOptionEntry options[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &preset, "Size of the model: tiny, gpt2, gpt2-medium, … (gpt2)", "NAME" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &n_layers, "Number of transformer blocks (the preset's)", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &width, "Size of a token's vector (the preset's)", "N" },
  { "heads", 0, 0, G_OPTION_ARG_INT, &n_heads, "Attention heads, which the ranks divide (the preset's)", "N" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &batch, "Rows of text in a batch (16)", "N" },
  { "sequence", 0, 0, G_OPTION_ARG_INT, &sequence, "Tokens in a row (128)", "N" },
  { "steps", 0, 0, G_OPTION_ARG_INT, &n_steps, "Steps of each row of the table; the last is measured (1)", "N" },
  { "ranks", 0, 0, G_OPTION_ARG_INT, &n_ranks, "Threads that share the model; 0: the processes of mpirun (4)", "N" },
  { "device", 0, 0, G_OPTION_ARG_STRING, &device_name, "Device to train on (sim)", "NAME" },
  { NULL, 0, 0, 0, NULL, NULL, NULL },
};

static EbbGptConfig *
make_config (GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset (preset != NULL ? preset : "gpt2");

  if (config == NULL)
    return NULL;
  config->layers = n_layers > 0 ? n_layers : config->layers;
  config->width = width > 0 ? width : config->width;
  config->heads = n_heads > 0 ? n_heads : config->heads;
  config->context = MAX (sequence, config->context);
  config->vocab = MAX (256, config->vocab);
  config->dropout = 0.1;
  return ebb_gpt_config_check (config, error) ? g_steal_pointer (&config) : NULL;
}

/* -- a few steps, and this rank's memory --------------------------------------------------------------------------- */

/* Every way begins with the same weights and draws the same random numbers. */
static EbbModule *
make_model (guint way,
            EbbProcessGroup *group,
            EbbDevice *device,
            GError **error)
{
  g_autofree char *json = g_strdup_printf (
      "{\"model_parallelism\": {\"enable\": true, \"tensor_parallel_size\": %u}, "
      "\"activation_checkpointing\": {\"enable\": true, \"partitioned_checkpointing\": %s, "
      "\"contiguous_checkpointing\": %s, \"cpu_checkpointing\": %s}}",
      ebb_process_group_get_size (group), ways[way].partitioned, ways[way].contiguous, ways[way].on_host);
  g_autoptr (EbbGptConfig) config = make_config (error);
  g_autoptr (EbbModule) model = NULL, same = NULL;

  ebb_manual_seed (1);
  model = config != NULL ? ebb_gpt_new (config, error) : NULL;
  if (model == NULL || !ebb_module_to_device (model, device, error))
    return NULL;
  same = ebb_initialize (model, json, error);
  if (same == NULL || !ebb_model_parallel_manual_seed (1, NULL, error))
    return NULL;
  ebb_memory_trim (device);
  return g_steal_pointer (&model);
}

/* @n_rows rows of tokens on @device, which begin at byte @first of the text; it begins again where it ends. */
static EbbTensor *
make_rows (int first,
           int n_rows,
           EbbDevice *device,
           GError **error)
{
  const gint64 shape[] = { n_rows, sequence }, n = shape[0] * shape[1];
  g_autofree gint64 *tokens = g_new (gint64, n);
  g_autoptr (EbbTensor) host = NULL;

  for (gint64 i = 0; i < n; i++)
    tokens[i] = (guchar) text[(first + i) % (gint64) strlen (text)];
  host = ebb_tensor_new_from_ints (tokens, (gsize) n, shape, G_N_ELEMENTS (shape), error);
  return host != NULL ? ebb_to_device (host, device, error) : NULL;
}

/* What the checkpoints keep: in their store, or in place. */
static gboolean
measure_kept (guint way,
              EbbModule *model,
              EbbDevice *device,
              gint64 *figures,
              GError **error)
{
  EbbSavedTensorHooks *hooks = ebb_checkpoint_options_get_store (ebb_initialize_get_options (model));
  EbbActivationStore *store = hooks != NULL ? EBB_ACTIVATION_STORE (hooks) : NULL;
  const gboolean moves = strcmp (ways[way].on_host, "true") == 0 && device != ebb_device_get_cpu ();
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 saved = 0;

  if ((store != NULL && !ebb_activation_store_synchronize (store, error)) || !ebb_device_synchronize (device, error))
    return FALSE;
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbModule) module = modules[i];
      g_autoptr (EbbCheckpointStats) stats = ebb_checkpoint_get_stats (module);

      saved += stats != NULL ? stats->saved_bytes : 0;
    }
  figures[moves ? KEPT_ON_HOST : KEPT_ON_DEVICE] =
      (gint64) (store != NULL ? ebb_activation_store_get_bytes_held (store) : saved);
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
  figures[ALL_THEN] = (gint64) ebb_memory_stats_get_total (stats);
  return TRUE;
}

static gboolean
run_step (guint way,
          EbbModule *model,
          EbbOptimizer *optimizer,
          EbbDevice *device,
          int first,
          int n_rows,
          gint64 *figures,
          GError **error)
{
  const gint64 began = g_get_monotonic_time ();
  g_autoptr (EbbTensor) tokens = make_rows (first, n_rows, device, error);
  g_autoptr (EbbTensor) targets = tokens != NULL ? make_rows (first + 1, n_rows, device, error) : NULL;
  g_autoptr (EbbTensor) loss = NULL, host = NULL;
  double value;

  memset (figures, 0, N_FIGURES * sizeof *figures);
  ebb_memory_reset_peaks (device);
  loss = targets != NULL ? ebb_gpt_loss (EBB_GPT (model), tokens, targets, error) : NULL;
  if (loss == NULL || !measure_kept (way, model, device, figures, error) || !ebb_tensor_backward (loss, error)
      || !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  host = ebb_to_device (loss, ebb_device_get_cpu (), error);
  if (host == NULL || !ebb_tensor_get_item (host, &value, error))
    return FALSE;
  memcpy (&figures[LOSS], &value, sizeof value);
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);
  figures[ACTIVATIONS_PEAK] = (gint64) ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  figures[ALL_PEAK] = (gint64) ebb_memory_stats_get_peak_total (stats);
  figures[MICROSECONDS] = g_get_monotonic_time () - began;
  return TRUE;
}

static gboolean
run_way (guint way,
         EbbProcessGroup *group,
         EbbDevice *device,
         gint64 *figures,
         GError **error)
{
  g_autoptr (EbbModule) model = make_model (way, group, device, error);
  g_autoptr (EbbOptimizer) optimizer = model != NULL ? ebb_adamw_new (model, 3e-5, error) : NULL;

  /* One row first: the optimizer's state exists from its first step on. */
  if (optimizer == NULL || !run_step (way, model, optimizer, device, 0, 1, figures, error))
    return FALSE;
  for (int step = 0; step < n_steps; step++)
    if (!run_step (way, model, optimizer, device, step * batch * sequence, batch, figures, error))
      return FALSE;
  return TRUE;
}

/* -- the table ----------------------------------------------------------------------------------------------------- */

/* Prints the figures of all ranks, which are the same losses as those of the first way, @loss. */
static gboolean
print_rows (guint way,
            const gint64 *figures,
            guint size,
            gint64 loss,
            gboolean speaks,
            GError **error)
{
  for (guint rank = 0; rank < size; rank++, figures += N_FIGURES)
    {
      double value;

      memcpy (&value, &figures[LOSS], sizeof value);
      if (figures[LOSS] != loss)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE, "%s: the loss of rank %u is %.17g, not that of %s",
                       ways[way].name, rank, value, ways[0].name);
          return FALSE;
        }
      if (!speaks)
        continue;
      g_print ("%-18s %4u", rank == 0 ? ways[way].name : "", rank);
      for (guint i = 0; i <= ALL_PEAK; i++)
        g_print (" %11.2f", (double) figures[i] / MIB);
      g_print (" %8.2f  %.6f\n", (double) figures[MICROSECONDS] / G_USEC_PER_SEC, value);
    }
  return TRUE;
}

static gboolean
run_rank (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  const guint size = ebb_process_group_get_size (group);
  const gboolean speaks = ebb_process_group_get_rank (group) == 0;
  const gint64 shape[] = { N_FIGURES };
  g_autoptr (EbbGptConfig) config = make_config (error);
  EbbDevice *device = config != NULL ? ebb_device_get (device_name != NULL ? device_name : "sim", error) : NULL;
  gint64 loss = 0;

  if (device == NULL)
    return FALSE;
  if (speaks)
    g_print ("GPT-2 of %d layers, width %d, %d heads, vocabulary %d, on %u tensor ranks (%s) of %s; %d x %d tokens\n"
             "MiB of each rank when the forward pass ends: what the checkpoints keep, on the device and in the host's\n"
             "memory, and all that is on the device; and the most in the step: activations, and all\n\n"
             "%-18s %4s %11s %11s %11s %11s %11s %8s  %s\n",
             config->layers, config->width, config->heads, config->vocab, size, ebb_process_group_get_backend (group),
             ebb_device_get_name (device), batch, sequence, "checkpointing", "rank", "kept", "on host", "all then",
             "activations", "all", "s/step", "loss");
  for (guint way = 0; way < N_WAYS; way++)
    {
      gint64 figures[N_FIGURES];

      if (!run_way (way, group, device, figures, error))
        return FALSE;
      g_autoptr (EbbTensor) mine = ebb_tensor_new_from_ints (figures, N_FIGURES, shape, 1, error);
      g_autoptr (EbbTensor) all = ebb_process_group_all_gather (group, mine, error);
      g_autoptr (GBytes) bytes = all != NULL ? ebb_tensor_get_bytes (all, error) : NULL;
      const gint64 *gathered = bytes != NULL ? g_bytes_get_data (bytes, NULL) : NULL;

      if (gathered == NULL)
        return FALSE;
      loss = way == 0 ? gathered[LOSS] : loss;
      if (!print_rows (way, gathered, size, loss, speaks, error))
        return FALSE;
    }
  if (speaks)
    g_print ("The losses of all rows are equal, bit for bit.\n");
  return TRUE;
}

static gboolean
run (int argc,
     char **argv,
     GError **error)
{
  g_autoptr (GOptionContext) context = g_option_context_new ("- what OSLO's activation checkpointing saves");
  g_autoptr (EbbProcessGroup) group = NULL;

  g_option_context_add_main_entries (context, options, NULL);
  if (!g_option_context_parse (context, &argc, &argv, error))
    return FALSE;
  if (argc > 1 || MIN (MIN (batch, sequence), n_steps) < 1 || n_ranks < 0)
    {
      g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE,
                   "only options are taken, and --batch, --sequence, and --steps are at least 1");
      return FALSE;
    }
  /* Sources in flight are on the device, too; without any, the columns add up. */
  g_object_set (ebb_host_store_get_default (), "in-flight", 0, NULL);
  if (n_ranks > 0)
    return ebb_run_ranks ((guint) n_ranks, run_rank, NULL, error);
  group = ebb_init_process_group ("auto", error);
  if (group == NULL || !run_rank (group, NULL, error))
    return FALSE;
  g_clear_object (&group);
  ebb_destroy_process_group ();
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;

  setlocale (LC_ALL, "");
  /* The simulated device has 1 GiB by default; the system gives memory as it is used. */
  g_setenv ("EBB_SIM_MEMORY", "64GiB", FALSE);
  if (run (argc, argv, &error))
    return 0;
  g_printerr ("%s: %s\n", g_get_prgname (), error->message);
  return error->domain == G_OPTION_ERROR ? 2 : 1;
}
