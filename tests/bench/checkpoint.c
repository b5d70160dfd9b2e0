/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The cost of checkpointing, in three parts:
 *
 *   a wrapped call    beyond the ops that it runs again, with gradients and without
 *   a GPT's step      its time and the most bytes kept for backward, for each strategy
 *
 * Figures are medians of rounds in which the variants take turns. */

static char *preset = NULL;
static int batch = 8, context = 512, rounds = 5, threads = 0, layers = 0;
static gboolean as_json, check, bf16, only_calls, only_steps;
static char **bounds = NULL;

static const GOptionEntry entries[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &preset, "Model: gpt2 (default), tiny, ...", "NAME" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &layers, "Layers instead of the preset's", "N" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &batch, "Sequences a step (default: 8)", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &context, "Tokens a sequence (default: 512)", "N" },
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Steps of each strategy that count, after one that doesn't", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &bf16, "Products in bf16", NULL },
  { "only-calls", 0, 0, G_OPTION_ARG_NONE, &only_calls, "Leave the GPT out", NULL },
  { "only-steps", 0, 0, G_OPTION_ARG_NONE, &only_steps, "Leave the calls out", NULL },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object", NULL },
  { "check", 0, 0, G_OPTION_ARG_NONE, &check, "Exit with 1 when a figure is above its bound", NULL },
  { "bound", 0, 0, G_OPTION_ARG_STRING_ARRAY, &bounds,
    "Another bound for a figure of the JSON object, as full.ratio=1.3; 0 for none", "NAME=N" },
  G_OPTION_ENTRY_NULL,
};

/* -- figures and their bounds -------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  double bound; /* 0: none. For GPT-2 124M at 8 x 512 */
  double value;
  gboolean is_there;
} Figure;

static Figure figures[] = {
  { "call.us", 20 },
  { "no_grad_call.us", 0.2 },
  { "none.gb", 1.85 },
  { "none.seconds", 0 },
  { "selective.gb", 1.45 },
  { "selective.ratio", 1.06 },
  { "selective_without_qkv.gb", 1.15 },
  { "selective_without_qkv.ratio", 1.10 },
  { "full.gb", 0.38 },
  { "full.ratio", 1.22 },
};

static Figure *
find_figure (const char *name)
{
  for (guint i = 0; i < G_N_ELEMENTS (figures); i++)
    if (strcmp (figures[i].name, name) == 0)
      return &figures[i];
  return NULL;
}

static void
set_figure (const char *strategy,
            const char *unit,
            double value)
{
  g_autofree char *name = g_strconcat (strategy, ".", unit, NULL);
  Figure *figure = find_figure (name);

  g_assert (figure != NULL);
  figure->value = value;
  figure->is_there = TRUE;
}

static gboolean
set_bounds (GError **error)
{
  for (guint i = 0; bounds != NULL && bounds[i] != NULL; i++)
    {
      char *number = strchr (bounds[i], '='), *end = NULL;
      g_autofree char *name = number ? g_strndup (bounds[i], (gsize) (number - bounds[i])) : NULL;
      Figure *figure = name ? find_figure (name) : NULL;
      double bound = number ? g_ascii_strtod (number + 1, &end) : 0;

      if (figure == NULL || end == number + 1 || *end != '\0')
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                       "--bound %s: must be NAME=NUMBER, with a name from the JSON object such as full.ratio",
                       bounds[i]);
          return FALSE;
        }
      figure->bound = bound;
    }
  return TRUE;
}

static gboolean
is_missed (const Figure *figure)
{
  return figure->is_there && figure->bound > 0 && !(figure->value <= figure->bound);
}

static void
print_json (void)
{
  printf ("{ \"version\": \"%s\", \"batch\": %d, \"context\": %d, \"threads\": %d", ebb_get_version_string (), batch,
          context, ebb_get_num_threads ());
  for (guint i = 0; i < G_N_ELEMENTS (figures); i++)
    if (figures[i].is_there)
      printf (",\n  \"%s\": %.6g", figures[i].name, figures[i].value);
  printf (" }\n");
}

static void
print_table (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (figures); i++)
    {
      const Figure *figure = &figures[i];

      if (!figure->is_there)
        continue;
      printf ("%-28s %9.3f", figure->name, figure->value);
      if (figure->bound > 0)
        printf ("   at most %.3g%s", figure->bound, is_missed (figure) ? "   MISSED" : "");
      printf ("\n");
    }
}

/* -- calls --------------------------------------------------------------------------------------------------------- */

#define N_TINY_OPS 8
#define N_STEPS 200
#define N_NO_GRAD_CALLS 20000
#define N_CALL_ROUNDS 41

/* A few ops that cost next to nothing on one number each. */
static EbbModule *
make_tiny (void)
{
  EbbModule *sequential = ebb_sequential_new ();

  for (int i = 0; i < N_TINY_OPS; i++)
    {
      g_autoptr (EbbModule) layer = ebb_tanh_new ();

      ebb_sequential_append (EBB_SEQUENTIAL (sequential), layer, NULL);
    }
  return sequential;
}

static EbbTensor *
make_scalar (gboolean requires_grad)
{
  EbbTensor *x = ebb_tensor_new_from_floats (&(float){ 0.5f }, 1, NULL, 0, NULL);

  if (requires_grad)
    ebb_tensor_set_requires_grad (x, TRUE, NULL);
  return x;
}

/* Microseconds of a forward, and of a backward too if @backward, in a loop of them. */
static double
time_calls (EbbModule *module,
            EbbTensor *x,
            int n,
            gboolean backward,
            GError **error)
{
  gint64 start = g_get_monotonic_time ();

  for (int i = 0; i < n; i++)
    {
      EbbTensor *y = ebb_module_call1 (module, x, error);

      if (y == NULL)
        return 0;
      if (backward && !ebb_tensor_backward (y, error))
        n = 0;
      ebb_tensor_unref (y);
    }
  return (double) (g_get_monotonic_time () - start) / MAX (n, 1);
}

/* A checkpointed step is a plain step, the forward once more (its last value is kept by the last op, so that none is
 * spared), and what is sought: the frame, the arguments through the door, the slots, the checks. */
static gboolean
measure_calls (GError **error)
{
  g_autoptr (EbbModule) plain = make_tiny ();
  g_autoptr (EbbModule) tiny = make_tiny ();
  g_autoptr (EbbModule) wrapped = ebb_checkpoint_wrapper (tiny, NULL, error);
  g_autoptr (EbbTensor) x = make_scalar (TRUE);
  double beyond[N_CALL_ROUNDS];

  for (int i = 0; *error == NULL && i < N_CALL_ROUNDS; i++)
    {
      double step = time_calls (plain, x, N_STEPS, TRUE, error);
      double forward = time_calls (plain, x, N_STEPS, FALSE, error);

      beyond[i] = time_calls (wrapped, x, N_STEPS, TRUE, error) - step - forward;
    }
  if (*error != NULL)
    return FALSE;
  set_figure ("call", "us", bench_median (beyond, N_CALL_ROUNDS));
  return TRUE;
}

/* One op each, so that what is sought is not lost in the ops' own time. */
static gboolean
measure_no_grad_calls (GError **error)
{
  g_autoptr (EbbModule) plain = ebb_tanh_new ();
  g_autoptr (EbbModule) tanh = ebb_tanh_new ();
  g_autoptr (EbbModule) wrapped = ebb_checkpoint_wrapper (tanh, NULL, error);
  g_autoptr (EbbTensor) x = make_scalar (FALSE);
  double beyond[N_CALL_ROUNDS];

  ebb_push_grad_enabled (FALSE);
  for (int i = 0; *error == NULL && i < N_CALL_ROUNDS; i++)
    {
      double without = time_calls (plain, x, N_NO_GRAD_CALLS, FALSE, error);

      beyond[i] = time_calls (wrapped, x, N_NO_GRAD_CALLS, FALSE, error) - without;
    }
  ebb_pop_grad_enabled ();
  if (*error != NULL)
    return FALSE;
  set_figure ("no_grad_call", "us", bench_median (beyond, N_CALL_ROUNDS));
  return TRUE;
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const char *name;
  EbbCheckpointOptions *(*make_options) (void); /* NULL: no checkpointing */
} Strategy;

/* Keeps what attention gives and the widest product; the one of queries, keys and values is run again. */
static EbbCheckpointPolicy
save_attention_and_widest (const char *op,
                           guint ordinal,
                           guint64 n_bytes,
                           gpointer user_data,
                           GError **error)
{
  const guint64 *widest = user_data;
  gboolean saves = strcmp (op, "linear") == 0 ? n_bytes >= *widest : strstr (op, "attention") != NULL;

  return saves ? EBB_CHECKPOINT_POLICY_MUST_SAVE : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static guint64 widest_bytes;

static EbbCheckpointOptions *
make_selective_without_qkv (void)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_policy (options, save_attention_and_widest, &widest_bytes, NULL);
  return options;
}

static const Strategy strategies[] = {
  { "none", NULL },
  { "selective", ebb_checkpoint_options_new_selective },
  { "selective_without_qkv", make_selective_without_qkv },
  { "full", ebb_checkpoint_options_new },
};

#define N_STRATEGIES G_N_ELEMENTS (strategies)

static EbbModule *
make_gpt (GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset (preset ? preset : "gpt2");

  if (config == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "no preset \"%s\"", preset);
      return NULL;
    }
  config->context = context;
  config->dropout = 0;
  if (layers > 0)
    config->layers = layers;
  widest_bytes = (guint64) batch * (guint64) context * 4 * (guint64) config->width
                 * (bf16 ? 2 : 4);
  return ebb_gpt_new (config, error);
}

static gboolean
wrap_blocks (EbbModule *model,
             const Strategy *strategy,
             GError **error)
{
  g_autofree EbbModule **modules = NULL;
  g_autoptr (EbbCheckpointOptions) options = NULL;
  guint n_modules;

  modules = ebb_module_get_modules (model, &n_modules);
  for (guint i = 0; i < n_modules; i++)
    {
      if (ebb_checkpoint_is_wrapped (modules[i]))
        ebb_checkpoint_unwrap (modules[i]);
      g_object_unref (modules[i]);
    }
  if (strategy->make_options == NULL)
    return TRUE;
  options = strategy->make_options ();
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error);
}

/* A whole optimizer step; the most bytes that were kept for backward at any moment of it. */
static gboolean
run_step (EbbModule *model,
          EbbOptimizer *optimizer,
          double *seconds,
          guint64 *peak,
          GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (model));
  const gint64 shape[] = { batch, context };
  gint64 vocab = config->vocab, start;
  g_autoptr (EbbTensor) tokens = ebb_randint (0, vocab, shape, 2, EBB_DTYPE_I64, NULL, NULL, error);
  g_autoptr (EbbTensor) targets = ebb_randint (0, vocab, shape, 2, EBB_DTYPE_I64, NULL, NULL, error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_memory_reset_peaks (NULL);
  start = g_get_monotonic_time ();
  ebb_push_autocast (bf16, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);
  ebb_pop_autocast ();
  if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (optimizer);
  *seconds = (double) (g_get_monotonic_time () - start) * 1e-6;
  stats = ebb_memory_get_stats (NULL);
  *peak = ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION);
  return TRUE;
}

/* The order of the strategies turns from round to round. A round's ratios are to its own step without checkpointing, so
 * that a slow drift of the machine cancels. */
static gboolean
measure_steps (GError **error)
{
  g_autoptr (EbbModule) model = make_gpt (error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 3e-4, error);
  g_autofree double *ratios = g_new0 (double, N_STRATEGIES *(gsize) rounds);
  double seconds[N_STRATEGIES] = { 0 };
  guint64 peaks[N_STRATEGIES] = { 0 };

  for (int round = -1; *error == NULL && round < rounds; round++) /* one that doesn't count */
    {
      for (guint i = 0; i < N_STRATEGIES; i++)
        {
          guint which = (i + (guint) (round + 1)) % N_STRATEGIES;

          if (!wrap_blocks (model, &strategies[which], error)
              || !run_step (model, optimizer, &seconds[which], &peaks[which], error))
            return FALSE;
        }
      for (guint i = 0; round >= 0 && i < N_STRATEGIES; i++)
        ratios[i * (guint) rounds + (guint) round] = i == 0 ? seconds[0] : seconds[i] / seconds[0];
      if (!as_json && round >= 0)
        fprintf (stderr, "round %d/%d: %.2f s without checkpointing\n", round + 1, rounds, seconds[0]);
    }
  if (*error != NULL)
    return FALSE;
  for (guint i = 0; i < N_STRATEGIES; i++)
    {
      set_figure (strategies[i].name, "gb", (double) peaks[i] * 1e-9);
      set_figure (strategies[i].name, i == 0 ? "seconds" : "ratio",
                  bench_median (ratios + i * (guint) rounds, (guint) rounds));
    }
  return TRUE;
}

/* -- program ------------------------------------------------------------------------------------------------------- */

static gboolean
measure (GError **error)
{
  if (batch < 1 || context < 1 || rounds < 1)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--batch, --context and --rounds must be at least 1");
      return FALSE;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  ebb_manual_seed (1);
  return set_bounds (error) && (only_steps || (measure_calls (error) && measure_no_grad_calls (error)))
         && (only_calls || measure_steps (error));
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- what checkpointing costs");
  g_autoptr (GError) error = NULL;
  gboolean missed = FALSE;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    {
      fprintf (stderr, "checkpoint: %s\n", error->message);
      return 2;
    }
  if (!measure (&error))
    {
      fprintf (stderr, "checkpoint: %s\n", error->message);
      return 2;
    }
  if (as_json)
    print_json ();
  else
    print_table ();
  for (guint i = 0; i < G_N_ELEMENTS (figures); i++)
    missed = missed || is_missed (&figures[i]);
  return check && missed ? 1 : 0;
}
