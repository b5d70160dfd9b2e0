/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/offload-runs.h"

#include <json-glib/json-glib.h>
#include <stdio.h>
#include <string.h>

/* The cost of stores for activations: one checkpointed training, with each store on the CPU and on the emulated device
 * `sim`, there with several bandwidths. Prints each one's step time beside that of keep, what it took off the device,
 * and how much of the moving stayed behind computing. */

static BenchSettings settings = { .layers = 6, .width = 256, .heads = 4, .vocab = 512, .batch = 8, .context = 256 };
static int rounds = 5, steps = 2, threads = 0, prefetch = 1;
static char *folder, *only, *factors, *trace, *memory;
static gboolean as_json;

static const GOptionEntry entries[] = {
  { "layers", 0, 0, G_OPTION_ARG_INT, &settings.layers, "Transformer blocks (6)", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &settings.width, "Size of a token's vector (256)", "N" },
  { "heads", 0, 0, G_OPTION_ARG_INT, &settings.heads, "Attention heads; they divide the width (4)", "N" },
  { "vocab", 0, 0, G_OPTION_ARG_INT, &settings.vocab, "Different tokens (512)", "N" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &settings.batch, "Sequences a step (8)", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &settings.context, "Tokens a sequence (256)", "N" },
  { "prefetch", 0, 0, G_OPTION_ARG_INT, &prefetch, "Inputs that are brought back ahead (1)", "N" },
  { "factors", 0, 0, G_OPTION_ARG_STRING, &factors,
    "Bandwidths of sim, in multiples of what the rule asks for (4,1,0.5,0.25,0.1)", "X,..." },
  { "only", 0, 0, G_OPTION_ARG_STRING, &only, "Part of it: cpu, or sim", "DEVICE" },
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Turns that the stores take (5)", "N" },
  { "steps", 0, 0, G_OPTION_ARG_INT, &steps, "Steps that count in each turn (2)", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "Threads; 0: all cores (0)", "N" },
  { "memory", 0, 0, G_OPTION_ARG_STRING, &memory, "Memory of sim (EBB_SIM_MEMORY, or 1G)", "BYTES" },
  { "folder", 0, 0, G_OPTION_ARG_FILENAME, &folder, "Where the disk store has its file (the system's)", "DIR" },
  { "trace", 0, 0, G_OPTION_ARG_FILENAME, &trace,
    "Write a step of the last run on sim there, for chrome://tracing or ui.perfetto.dev", "FILE" },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object: seconds (_s), bytes (_bytes)", NULL },
  G_OPTION_ENTRY_NULL,
};

#define MIB (1024.0 * 1024.0)

/* -- as a table ---------------------------------------------------------------------------------------------------- */

static void
print_head (const OffloadRuns *runs)
{
  printf ("GPT of %d layers, width %d, %d x %d tokens, f32, full checkpointing; %d threads\n", settings.layers,
          settings.width, settings.batch, settings.context, ebb_get_num_threads ());
  printf ("A block's input: %.2f MiB. A step with keep: %.1f GFLOP at %.1f GFLOP/s\n",
          (double) runs->input_bytes / MIB, runs->step_flop * 1e-9, runs->flop_per_second * 1e-9);
  printf ("The rule asks for %.1f MB/s to host memory and %.1f MB/s from there\n\n", runs->to_host * 1e-6,
          runs->from_host * 1e-6);
  printf ("%-12s%-4s%8s%9s%9s%7s%10s%10s%10s%10s%9s%9s%11s\n", "store", "on", "MB/s", "ms/step", "to keep", "rule",
          "peak MiB", "less MiB", "moved MiB", "moving s", "waited s", "hidden s", "bytes/bw s");
}

static double
get_expected_seconds (const OffloadRun *run)
{
  return run->bandwidth > 0 ? (double) (run->put + run->got) / run->bandwidth : 0;
}

static void
print_optional (double value,
                int width,
                int digits)
{
  if (value > 0)
    printf ("%*.*f", width, digits, value);
  else
    printf ("%*s", width, "-");
}

static void
print_run (OffloadRuns *runs,
           const OffloadRun *run)
{
  const OffloadRun *keep = offload_runs_get_keep (runs, run->on_sim);
  double waited = run->on_sim ? run->queues.waited : run->waited;

  printf ("%-12s%-4s", run->store, run->on_sim ? "sim" : "cpu");
  print_optional (run->bandwidth * 1e-6, 8, 1);
  printf ("%9.1f%9.3f", run->median * 1e3, run->ratio);
  print_optional (run->on_sim && run != keep ? offload_runs_predict (runs, run) : 0, 7, 3);
  printf ("%10.2f", (double) run->peak / MIB);
  printf ("%10.2f%10.2f", ((double) keep->peak - (double) run->peak) / MIB, (double) (run->put + run->got) / MIB);
  printf ("%10.3f%9.3f%9.3f", run->moving, waited, run->on_sim ? run->queues.hidden : run->moving - waited);
  print_optional (get_expected_seconds (run), 11, 3);
  printf ("\n");
}

/* -- as JSON ------------------------------------------------------------------------------------------------------- */

static void
add_number (JsonBuilder *builder,
            const char *name,
            double value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_double_value (builder, value);
}

static void
add_integer (JsonBuilder *builder,
             const char *name,
             guint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, (gint64) value);
}

static void
add_text (JsonBuilder *builder,
          const char *name,
          const char *value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_string_value (builder, value);
}

static void
add_run (JsonBuilder *builder,
         OffloadRuns *runs,
         const OffloadRun *run)
{
  json_builder_begin_object (builder);
  add_text (builder, "store", run->store);
  add_text (builder, "device", run->on_sim ? "sim" : "cpu");
  add_number (builder, "bandwidth", run->bandwidth);
  add_number (builder, "step_s", run->median);
  add_number (builder, "ratio_to_keep", run->ratio);
  add_number (builder, "predicted_ratio", offload_runs_predict (runs, run));
  add_integer (builder, "put_bytes", run->put);
  add_integer (builder, "got_bytes", run->got);
  add_integer (builder, "stored_bytes", run->stored);
  add_integer (builder, "peak_bytes", run->peak);
  add_number (builder, "expected_s", get_expected_seconds (run));
  add_number (builder, "moving_s", run->moving);
  add_number (builder, "waited_s", run->waited);
  if (run->on_sim)
    {
      add_number (builder, "queue_copying_s", run->queues.copying);
      add_number (builder, "queue_waited_s", run->queues.waited);
      add_number (builder, "queue_hidden_s", run->queues.hidden);
    }
  json_builder_end_object (builder);
}

static void
print_json (OffloadRuns *runs)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (JsonNode) root = NULL;
  g_autofree char *text = NULL;

  json_builder_begin_object (builder);
  add_integer (builder, "layers", (guint64) settings.layers);
  add_integer (builder, "width", (guint64) settings.width);
  add_integer (builder, "batch", (guint64) settings.batch);
  add_integer (builder, "context", (guint64) settings.context);
  add_integer (builder, "threads", (guint64) ebb_get_num_threads ());
  add_integer (builder, "prefetch", (guint64) prefetch);
  add_integer (builder, "input_bytes", runs->input_bytes);
  add_number (builder, "step_flop", runs->step_flop);
  add_number (builder, "flop_per_second", runs->flop_per_second);
  add_number (builder, "to_host_bandwidth", runs->to_host);
  add_number (builder, "from_host_bandwidth", runs->from_host);
  json_builder_set_member_name (builder, "runs");
  json_builder_begin_array (builder);
  for (guint i = 0; i < runs->runs->len; i++)
    add_run (builder, runs, g_ptr_array_index (runs->runs, i));
  json_builder_end_array (builder);
  json_builder_end_object (builder);
  root = json_builder_get_root (builder);
  text = json_to_string (root, FALSE);
  printf ("%s\n", text);
}

/* -- what is measured ---------------------------------------------------------------------------------------------- */

static gboolean
add_sim_runs (OffloadRuns *runs,
              GError **error)
{
  g_auto (GStrv) words = g_strsplit (factors != NULL ? factors : "4,1,0.5,0.25,0.1", ",", -1);

  offload_runs_add (runs, "keep", TRUE, 0);
  for (guint i = 0; words[i] != NULL; i++)
    {
      char *end;
      double factor = g_ascii_strtod (words[i], &end);

      if (end == words[i] || *end != '\0' || !(factor > 0))
        {
          g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE,
                       "--factors %s: they must be numbers above 0 with commas between", factors);
          return FALSE;
        }
      offload_runs_add (runs, "host", TRUE, factor);
    }
  return TRUE;
}

static void
add_cpu_runs (OffloadRuns *runs)
{
  offload_runs_add (runs, "keep", FALSE, 0);
  offload_runs_add (runs, "disk", FALSE, 0);
  offload_runs_add (runs, "contiguous", FALSE, 0);
}

static gboolean
check (GError **error)
{
  const struct
  {
    const char *option;
    int value;
  } numbers[] = {
    { "layers", settings.layers },
    { "width", settings.width },
    { "heads", settings.heads },
    { "vocab", settings.vocab },
    { "batch", settings.batch },
    { "context", settings.context },
    { "rounds", rounds },
    { "steps", steps },
  };

  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (numbers[i].value < 1)
      {
        g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--%s %d: it must be at least 1",
                     numbers[i].option, numbers[i].value);
        return FALSE;
      }
  if (only == NULL || strcmp (only, "cpu") == 0 || strcmp (only, "sim") == 0)
    return TRUE;
  g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--only %s: it must be cpu or sim", only);
  return FALSE;
}

static gboolean
show (OffloadRuns *runs,
      GError **error)
{
  if (!offload_runs_measure (runs, rounds, steps, error))
    return FALSE;
  if (as_json)
    print_json (runs);
  else
    {
      print_head (runs);
      for (guint i = 0; i < runs->runs->len; i++)
        print_run (runs, g_ptr_array_index (runs->runs, i));
    }
  return trace == NULL || offload_runs_trace (runs, trace, error);
}

static int
say (int status,
     GError *error)
{
  fprintf (stderr, "offload: %s%s\n", error->message, status == 2 ? " (--help lists the options)" : "");
  return status;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) context = g_option_context_new ("- what stores for activations cost");
  g_autoptr (GError) error = NULL;
  g_autoptr (OffloadRuns) runs = NULL;

  g_option_context_add_main_entries (context, entries, NULL);
  if (!g_option_context_parse (context, &argc, &argv, &error) || !check (&error))
    return say (2, error);
  if (memory != NULL)
    g_setenv ("EBB_SIM_MEMORY", memory, TRUE);
  if (threads > 0)
    ebb_set_num_threads (threads);
  runs = offload_runs_new (&settings, prefetch, folder);
  if (g_strcmp0 (only, "cpu") != 0 && !add_sim_runs (runs, &error))
    return say (2, error);
  if (g_strcmp0 (only, "sim") != 0)
    add_cpu_runs (runs);
  return show (runs, &error) ? 0 : say (1, error);
}
