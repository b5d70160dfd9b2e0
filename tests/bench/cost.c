/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/bench-training.h"
#include "tensor/memory-account-private.h"
#include "tensor/profile/cost-private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints what a training step would take, by the costs of its launches, beside what it takes. Steps before and after
 * the costs are measured count, so that both meet the same machine. With --kernels each kernel's part of both. */

static BenchSettings settings = { .batch = 4, .context = 256 };
static int steps = 5, threads = 0;
static double seconds_at_most = 60;
static char *device_name;
static gboolean with_kernels;

static const GOptionEntry entries[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &settings.preset, "Model: gpt2 (default), tiny, ...", "NAME" },
  { "layers", 0, 0, G_OPTION_ARG_INT, &settings.layers, "Layers instead of the preset's", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &settings.width, "Width instead of the preset's", "N" },
  { "heads", 0, 0, G_OPTION_ARG_INT, &settings.heads, "Attention heads instead of the preset's", "N" },
  { "vocab", 0, 0, G_OPTION_ARG_INT, &settings.vocab, "Different tokens instead of the preset's", "N" },
  { "checkpoint", 0, 0, G_OPTION_ARG_STRING, &settings.strategy, "none (default), selective or full", "HOW" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &settings.batch, "Sequences a step", "N" },
  { "context", 0, 0, G_OPTION_ARG_INT, &settings.context, "Tokens a sequence", "N" },
  { "steps", 0, 0, G_OPTION_ARG_INT, &steps, "Steps that count, before the costs are measured and after", "N" },
  { "seconds", 0, 0, G_OPTION_ARG_DOUBLE, &seconds_at_most, "How long costs are measured at most", "S" },
  { "device", 0, 0, G_OPTION_ARG_STRING, &device_name, "cpu (default), cuda, sim, ...", "NAME" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "bf16", 0, 0, G_OPTION_ARG_NONE, &settings.bf16, "Products in bf16", NULL },
  { "moments", 0, 0, G_OPTION_ARG_STRING, &settings.moments, "AdamW's state: f32, bf16 or 8bit", "FORMAT" },
  { "kernels", 0, 0, G_OPTION_ARG_NONE, &with_kernels, "Each kernel's part, of a profiled step too", NULL },
  G_OPTION_ENTRY_NULL,
};

#define N_LEFT_OUT 2

/* -- what a step launches ------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbMemoryObserver observer; /* first */
  EbbCostTable *table;
  GArray *launches; /* of guint: their numbers, in order */
} Recorder;

static void
launched (EbbMemoryObserver *observer, EbbDevice *device, const EbbLaunch *launch)
{
  Recorder *self = (Recorder *) observer;
  guint index = ebb_cost_table_add (self->table, launch);

  g_array_append_val (self->launches, index);
}

/* The second step: in the first one the cache is empty. */
static gboolean
record_step (Recorder *self, BenchTraining *training, GError **error)
{
  double seconds[BENCH_N_PARTS];
  gboolean ok = TRUE;

  self->observer.launched = launched;
  ebb_memory_account_push_observer (NULL, &self->observer);
  for (int i = 0; i < 2 && ok; i++)
    {
      g_array_set_size (self->launches, 0);
      ok = bench_training_step (training, seconds, NULL, error);
    }
  ebb_memory_account_pop_observer (NULL, &self->observer);
  return ok;
}

static gboolean
take_steps (BenchTraining *training, GArray *times, int n_left_out, GError **error)
{
  double seconds[BENCH_N_PARTS];

  for (int i = 0; i < steps + n_left_out; i++)
    {
      if (!bench_training_step (training, seconds, NULL, error))
        return FALSE;
      if (i >= n_left_out)
        g_array_append_val (times, seconds[BENCH_STEP]);
    }
  return TRUE;
}

/* -- what is shown ------------------------------------------------------------------------------------------------- */

static gboolean
print_kernels (const Recorder *recorder, BenchTraining *training, GError **error)
{
  g_autofree double *seconds = g_new0 (double, EBB_N_KERNELS);
  g_autofree guint *counts = g_new0 (guint, EBB_N_KERNELS);
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autofree char *table = NULL;
  double parts[BENCH_N_PARTS];
  gboolean ok;

  for (guint i = 0; i < recorder->launches->len; i++)
    {
      guint index = g_array_index (recorder->launches, guint, i);
      const EbbCostLaunch *launch = ebb_cost_table_get_launch (recorder->table, index);

      seconds[launch->kernel] += ebb_cost_table_get_seconds (recorder->table, index);
      counts[launch->kernel]++;
    }
  for (guint k = 0; k < EBB_N_KERNELS; k++)
    if (counts[k] > 0)
      printf ("  %-24s %5u launches, %9.3f ms\n", ebb_kernel_get_name ((EbbKernel) k), counts[k], seconds[k] * 1e3);
  ok = ebb_profiler_start (profiler, error) && bench_training_step (training, parts, NULL, error);
  ebb_profiler_stop (profiler);
  if (!ok)
    return FALSE;
  table = ebb_profiler_get_table (profiler);
  printf ("%s\n", table);
  return TRUE;
}

/* Adding a product with a bias that was seen before. */
static double
time_add (EbbCostTable *table, int n)
{
  EbbView views[] = { { .n_dims = 2, .shape = { 4, 8 }, .strides = { 8, 1 } },
                      { .n_dims = 2, .shape = { 8, 16 }, .strides = { 16, 1 } },
                      { .n_dims = 1, .shape = { 16 }, .strides = { 1 } },
                      { .n_dims = 2, .shape = { 4, 16 }, .strides = { 16, 1 } } };
  EbbLaunch launch = { .kernel = EBB_KERNEL_MATMUL, .n_inputs = 3, .n_outputs = 1 };
  gint64 began;

  for (gsize k = 0; k < G_N_ELEMENTS (views); k++)
    views[k].data = GSIZE_TO_POINTER ((k + 1) << 24);
  for (guint k = 0; k < 3; k++)
    launch.inputs[k] = &views[k];
  launch.outputs[0] = &views[3];
  ebb_cost_table_add (table, &launch);
  began = g_get_monotonic_time ();
  for (int i = 0; i < n; i++)
    ebb_cost_table_add (table, &launch);
  return (double) (g_get_monotonic_time () - began) * 1e-6 / n;
}

static gboolean
show (BenchTraining *training, GError **error)
{
  g_autoptr (EbbCostTable) table =
      ebb_cost_table_new (settings.device != NULL ? settings.device : ebb_device_get_cpu ());
  g_autoptr (GArray) launches = g_array_new (FALSE, FALSE, sizeof (guint));
  g_autoptr (GArray) times = g_array_new (FALSE, FALSE, sizeof (double));
  Recorder recorder = { .table = table, .launches = launches };
  double estimate = 0, measured, began, took;
  guint n_launches;
  EbbCostRates rates;

  if (!take_steps (training, times, N_LEFT_OUT, error) || !record_step (&recorder, training, error))
    return FALSE;
  began = (double) g_get_monotonic_time () * 1e-6;
  if (!ebb_cost_table_measure (table, seconds_at_most, 0, error))
    return FALSE;
  took = (double) g_get_monotonic_time () * 1e-6 - began;
  if (!take_steps (training, times, 1, error))
    return FALSE;
  for (guint i = 0; i < launches->len; i++)
    estimate += ebb_cost_table_get_seconds (table, g_array_index (launches, guint, i));
  measured = bench_median ((double *) (void *) times->data, times->len);
  printf ("measured     %9.2f ms (%.2f to %.2f)\n", measured * 1e3, g_array_index (times, double, 0) * 1e3,
          g_array_index (times, double, times->len - 1) * 1e3);
  printf ("estimate     %9.2f ms, %+.1f %%\n", estimate * 1e3, (estimate / measured - 1) * 100);
  n_launches = ebb_cost_table_get_n_launches (table);
  printf ("launches     %9u, %u distinct, %u measured in %.2f s; %.3f us to add one; the host %.2f us\n", launches->len,
          n_launches, ebb_cost_table_get_n_measured (table), took,
          time_add (table, 100000) * 1e6, table->host_seconds * 1e6);
  if (!ebb_cost_measure_host (table->device, EBB_COST_MAX_BYTES, &rates, error))
    return FALSE;
  printf ("host         %9.2f GB/s to it, %.2f GB/s from it\n", rates.out * 1e-9, rates.in * 1e-9);
  if (!ebb_cost_measure_folder (g_get_tmp_dir (), &rates, error))
    return FALSE;
  printf ("%-12s %9.2f GB/s to it, %.2f GB/s from it\n", g_get_tmp_dir (), rates.out * 1e-9, rates.in * 1e-9);
  return !with_kernels || print_kernels (&recorder, training, error);
}

int
main (int argc, char **argv)
{
  g_autoptr (GOptionContext) context = g_option_context_new (NULL);
  g_autoptr (BenchTraining) training = NULL;
  g_autoptr (GError) error = NULL;
  gboolean ok;

  g_option_context_add_main_entries (context, entries, NULL);
  ok = g_option_context_parse (context, &argc, &argv, &error);
  if (ok && device_name != NULL)
    ok = (settings.device = ebb_device_get (device_name, &error)) != NULL;
  if (ok && threads > 0)
    ebb_set_num_threads (threads);
  if (ok)
    ok = (training = bench_training_new (&settings, &error)) != NULL;
  if (ok)
    ok = show (training, &error);
  if (!ok)
    printf ("cost: %s\n", error->message);
  return ok ? 0 : 1;
}
