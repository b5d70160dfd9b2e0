/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <json-glib/json-glib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Times whole optimizer steps of a model on random tokens: forward, loss, backward, AdamW, gradients dropped. Prints
 * each part's median in milliseconds, and what memory was used for; with --floor also what the products of a step take
 * alone.
 *
 * With --serve it is one side of scripts/bench, which lets several such programs take turns: each line of standard
 * input is a number of steps to take, or "floor" to measure that, and is answered by one line of JSON. */

static BenchSettings settings = { .batch = 4, .context = 256 };
static int steps = 5, threads = 0;
static char *device_name;
static gboolean serve, with_floor, as_json, offloads;
static guint64 library_bytes; /* resident before there is a model */

static const GOptionEntry entries[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &settings.preset, "Model: gpt2 (default), tiny, llama-1b, bert-large, ...",
    "NAME" },
  { "folder", 0, 0, G_OPTION_ARG_FILENAME, &settings.folder, "Train the model in this folder, instead of a new one",
    "FOLDER" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &settings.layers, "Layers instead of the preset's", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &settings.width, "Width instead of the preset's", "N" },
  { "heads", 0, 0, G_OPTION_ARG_INT, &settings.heads, "Attention heads instead of the preset's", "N" },
  { "vocab", 0, 0, G_OPTION_ARG_INT, &settings.vocab, "Different tokens instead of the preset's", "N" },
  { "lora", 0, 0, G_OPTION_ARG_INT, &settings.lora, "Train branches of this rank, instead of the model", "N" },
  { "checkpoint", 0, 0, G_OPTION_ARG_STRING, &settings.strategy, "none (default), selective or full", "HOW" },
  { "offload", 0, 0, G_OPTION_ARG_NONE, &offloads, "Keep what is saved for backward in host memory", NULL },
  { "batch", 0, 0, G_OPTION_ARG_INT, &settings.batch, "Sequences a step", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &settings.context, "Tokens a sequence", "N" },
  { "steps", 0, 0, G_OPTION_ARG_INT, &steps, "Steps that count, after two that don't", "N" },
  { "device", 0, 0, G_OPTION_ARG_STRING, &device_name, "cpu (default), cuda, sim, ...", "NAME" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &settings.bf16, "Products in bf16", NULL },
  { "bf16-weights", 0, 0, G_OPTION_ARG_NONE, &settings.bf16_weights,
    "Weights of --folder in bf16 alone, rounded at random where they move", NULL },
  { "residual", 0, 0, G_OPTION_ARG_STRING, &settings.residual, "GPT's residual stream with --bf16: f32 or bf16",
    "DTYPE" },
  { "moments", 0, 0, G_OPTION_ARG_STRING, &settings.moments, "AdamW's state: f32, bf16 or 8bit", "FORMAT" },
  { "step-in-backward", 0, 0, G_OPTION_ARG_NONE, &settings.step_in_backward, "Move parameters as gradients come",
    NULL },
  { "floor", 0, 0, G_OPTION_ARG_NONE, &with_floor, "Profile one more step, and measure its products alone", NULL },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object: seconds (_s) and bytes at most (_bytes)", NULL },
  { "serve", 0, 0, G_OPTION_ARG_NONE, &serve, "Take as many steps as each line of standard input says", NULL },
  G_OPTION_ENTRY_NULL,
};

static const char *const purpose_names[EBB_N_PURPOSES] = { "parameters", "gradients", "optimizer",
                                                           "activations", "cache", "workspace" };

/* The first steps allocate, and make oneDNN's primitives. */
#define N_LEFT_OUT 2

/* -- what a run has to show ---------------------------------------------------------------------------------------- */

typedef struct
{
  double product_seconds, attention_seconds; /* of the step that was recorded */
  double floor_seconds, attention_floor_seconds;
} Floor;

typedef struct
{
  double *all; /* [steps]: of whole ones */
  double medians[BENCH_N_PARTS], least[BENCH_N_PARTS], most[BENCH_N_PARTS];
  guint64 bytes[EBB_N_PURPOSES], total_bytes, reserved_bytes, resident_bytes;
  gboolean has_floor;
  Floor floor;
} Result;

static gboolean
take_times (Result *self,
            BenchTraining *training,
            GError **error)
{
  g_autofree double *seconds = g_new0 (double, BENCH_N_PARTS *((gsize) steps + N_LEFT_OUT));
  g_autofree double *times = g_new (double, (gsize) steps);

  for (int i = 0; i < steps + N_LEFT_OUT; i++)
    if (!bench_training_step (training, seconds + BENCH_N_PARTS * i, NULL, error))
      return FALSE;
  for (int part = 0; part < BENCH_N_PARTS; part++)
    {
      for (int i = 0; i < steps; i++)
        times[i] = seconds[BENCH_N_PARTS * (i + N_LEFT_OUT) + part];
      if (part == BENCH_STEP)
        memcpy (self->all, times, sizeof (double) * (gsize) steps);
      self->medians[part] = bench_median (times, (guint) steps);
      self->least[part] = times[0];
      self->most[part] = times[steps - 1];
    }
  return TRUE;
}

static void
take_memory (Result *self)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (settings.device);

  for (int i = 0; i < EBB_N_PURPOSES; i++)
    self->bytes[i] = ebb_memory_stats_get_peak (stats, (EbbPurpose) i);
  self->total_bytes = ebb_memory_stats_get_peak_total (stats);
  self->reserved_bytes = ebb_memory_stats_get_reserved (stats);
  self->resident_bytes = bench_get_resident_peak ();
}

/* One more step, recorded; then its products alone. @table may be NULL. */
static gboolean
measure_floor (BenchTraining *training,
               Floor *floor,
               char **table,
               GError **error)
{
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  double seconds[BENCH_N_PARTS];
  gboolean ok = ebb_profiler_start (profiler, error) && bench_training_step (training, seconds, NULL, error);

  ebb_profiler_stop (profiler);
  if (!ok || !ebb_profiler_measure_floor (profiler, error))
    return FALSE;
  floor->product_seconds = ebb_profiler_get_product_seconds (profiler);
  floor->attention_seconds = ebb_profiler_get_attention_seconds (profiler);
  floor->floor_seconds = ebb_profiler_get_floor_seconds (profiler);
  floor->attention_floor_seconds = ebb_profiler_get_attention_floor_seconds (profiler);
  if (table != NULL)
    {
      g_autofree char *ops = ebb_profiler_get_table (profiler);
      g_autofree char *products = ebb_profiler_get_product_table (profiler);

      *table = g_strconcat (ops, "\n", products, NULL);
    }
  return TRUE;
}

static void
print_text (const Result *self)
{
  double both = self->floor.floor_seconds + self->floor.attention_floor_seconds;

  for (int part = 0; part < BENCH_N_PARTS; part++)
    printf ("%-12s %8.1f ms (%.1f to %.1f)\n", bench_part_names[part], self->medians[part] * 1e3,
            self->least[part] * 1e3, self->most[part] * 1e3);
  for (int i = 0; i < EBB_N_PURPOSES; i++)
    printf ("%-12s %8.1f MB at most\n", purpose_names[i], (double) self->bytes[i] * 1e-6);
  printf ("%-12s %8.1f MB at most, %.1f MB reserved\n", "all", (double) self->total_bytes * 1e-6,
          (double) self->reserved_bytes * 1e-6);
  printf ("%-12s %8.1f MB, %.1f MB before there was a model\n", "resident", (double) self->resident_bytes * 1e-6,
          (double) library_bytes * 1e-6);
  if (!self->has_floor)
    return;
  printf ("%-12s %8.1f ms, %.1f %% of the step\n", "floor", self->floor.floor_seconds * 1e3,
          self->floor.floor_seconds / self->medians[BENCH_STEP] * 100);
  printf ("%-12s %8.1f ms, %.1f %% of the step, with the products inside attention\n", "", both * 1e3,
          both / self->medians[BENCH_STEP] * 100);
}

static void
add_number (JsonBuilder *builder,
            const char *name,
            const char *suffix,
            double value)
{
  g_autofree char *member = g_strconcat (name, suffix, NULL);

  json_builder_set_member_name (builder, member);
  json_builder_add_double_value (builder, value);
}

static void
add_bytes (JsonBuilder *builder,
           const char *name,
           guint64 value)
{
  g_autofree char *member = g_strconcat (name, "_bytes", NULL);

  json_builder_set_member_name (builder, member);
  json_builder_add_int_value (builder, (gint64) value);
}

static void
add_floor (JsonBuilder *builder,
           const Floor *floor)
{
  add_number (builder, "product", "_s", floor->product_seconds);
  add_number (builder, "attention", "_s", floor->attention_seconds);
  add_number (builder, "floor", "_s", floor->floor_seconds);
  add_number (builder, "attention_floor", "_s", floor->attention_floor_seconds);
}

static void
print_object (JsonBuilder *builder)
{
  g_autoptr (JsonNode) root = json_builder_get_root (builder);
  g_autofree char *text = json_to_string (root, FALSE);

  printf ("%s\n", text);
  fflush (stdout);
}

static void
print_json (const Result *self)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  json_builder_begin_object (builder);
  for (int part = 0; part < BENCH_N_PARTS; part++)
    add_number (builder, bench_part_names[part], "_s", self->medians[part]);
  json_builder_set_member_name (builder, "step_s_all");
  json_builder_begin_array (builder);
  for (int i = 0; i < steps; i++)
    json_builder_add_double_value (builder, self->all[i]);
  json_builder_end_array (builder);
  if (self->has_floor)
    add_floor (builder, &self->floor);
  for (int i = 0; i < EBB_N_PURPOSES; i++)
    add_bytes (builder, purpose_names[i], self->bytes[i]);
  add_bytes (builder, "total", self->total_bytes);
  add_bytes (builder, "reserved", self->reserved_bytes);
  add_bytes (builder, "resident_peak", self->resident_bytes);
  add_bytes (builder, "library_resident", library_bytes);
  json_builder_set_member_name (builder, "threads");
  json_builder_add_int_value (builder, ebb_get_num_threads ());
  json_builder_end_object (builder);
  print_object (builder);
}

static gboolean
show_steps (BenchTraining *training,
            GError **error)
{
  g_autofree double *all = g_new (double, (gsize) steps);
  g_autofree char *table = NULL;
  Result result = { .all = all };

  if (!take_times (&result, training, error))
    return FALSE;
  take_memory (&result);
  result.has_floor = with_floor;
  if (with_floor && !measure_floor (training, &result.floor, as_json ? NULL : &table, error))
    return FALSE;
  if (table != NULL)
    printf ("%s\n", table);
  if (as_json)
    print_json (&result);
  else
    print_text (&result);
  return TRUE;
}

/* -- in turn with others ------------------------------------------------------------------------------------------- */

static void
print_answer (const GString *seconds,
              const GString *enqueued,
              double first_loss,
              double loss)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (settings.device);

  printf ("{\"seconds\": [%s], \"enqueued\": [%s], \"first_loss\": %.9g, \"loss\": %.9g", seconds->str, enqueued->str,
          first_loss, loss);
  for (int i = 0; i < EBB_N_PURPOSES; i++)
    printf (", \"%s_bytes\": %" G_GUINT64_FORMAT, purpose_names[i], ebb_memory_stats_get_peak (stats, (EbbPurpose) i));
  printf (", \"kept_bytes\": %" G_GUINT64_FORMAT ", \"peak_bytes\": %" G_GUINT64_FORMAT,
          ebb_memory_stats_get_peak (stats, EBB_PURPOSE_ACTIVATION), ebb_memory_stats_get_peak_total (stats));
  if (settings.store != NULL)
    {
      EbbActivationStore *store = EBB_ACTIVATION_STORE (settings.store);

      printf (", \"moved_bytes\": %" G_GUINT64_FORMAT ", \"moving_s\": %.6g, \"waited_s\": %.6g",
              ebb_activation_store_get_bytes_put (store) + ebb_activation_store_get_bytes_got (store),
              ebb_activation_store_get_seconds_moving (store), ebb_activation_store_get_seconds_waited (store));
    }
  printf (", \"reserved_bytes\": %" G_GUINT64_FORMAT ", \"resident_bytes\": %" G_GUINT64_FORMAT "}\n",
          ebb_memory_stats_get_reserved (stats), bench_get_resident_peak ());
  fflush (stdout);
}

static gboolean
serve_floor (BenchTraining *training,
             GError **error)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  Floor floor;

  if (!measure_floor (training, &floor, NULL, error))
    return FALSE;
  json_builder_begin_object (builder);
  add_floor (builder, &floor);
  json_builder_end_object (builder);
  print_object (builder);
  return TRUE;
}

static gboolean
serve_n_steps (BenchTraining *training,
               int n,
               GError **error)
{
  g_autoptr (GString) text = g_string_new (NULL), enqueued = g_string_new (NULL);
  double seconds[BENCH_N_PARTS], first_loss = 0, loss = 0;

  n = MAX (n, 1);
  ebb_memory_reset_peaks (settings.device);
  if (settings.store != NULL)
    ebb_activation_store_reset_stats (EBB_ACTIVATION_STORE (settings.store));
  for (int i = 0; i < n; i++)
    {
      if (!bench_training_step (training, seconds, &loss, error))
        return FALSE;
      first_loss = i == 0 ? loss : first_loss;
      g_string_append_printf (text, "%s%.9g", i > 0 ? ", " : "", seconds[BENCH_STEP]);
      g_string_append_printf (enqueued, "%s%.9g", i > 0 ? ", " : "", seconds[BENCH_ENQUEUED]);
    }
  print_answer (text, enqueued, first_loss, loss);
  return TRUE;
}

static gboolean
serve_steps (BenchTraining *training,
             GError **error)
{
  char line[64];

  printf ("{\"version\": \"%s\", \"threads\": %d, \"parameters\": %" G_GUINT64_FORMAT, ebb_get_version_string (),
          ebb_get_num_threads (), bench_training_count_parameters (training));
  printf (", \"library_bytes\": %" G_GUINT64_FORMAT "}\n", library_bytes);
  fflush (stdout);
  while (fgets (line, sizeof line, stdin) != NULL)
    if (strcmp (g_strchomp (line), "floor") == 0 ? !serve_floor (training, error)
                                                 : !serve_n_steps (training, atoi (line), error))
      return FALSE;
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- steps of a training");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbSavedTensorHooks) store = NULL;
  g_autoptr (BenchTraining) training = NULL;

  library_bytes = bench_get_resident_peak ();
  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error) || steps < 1)
    {
      fprintf (stderr, "step: %s\n", error ? error->message : "--steps must be at least 1");
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  if (device_name != NULL)
    settings.device = ebb_device_get (device_name, &error);
  store = offloads ? ebb_host_store_new () : NULL;
  settings.store = store;
  if (error == NULL)
    training = bench_training_new (&settings, &error);
  if (training == NULL || !(serve ? serve_steps (training, &error) : show_steps (training, &error)))
    {
      fprintf (stderr, "step: %s\n", error->message);
      return 1;
    }
  return 0;
}
