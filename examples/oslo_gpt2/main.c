/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/command.h"
#include "common/launcher.h"
#include "table.h"

#include <stdio.h>

/* The program of OSLO's tutorial on activation checkpointing: a GPT-2 on tensor ranks, whose checkpointed activations
 * are partitioned over the ranks, laid out in contiguous memory and offloaded to the host, one after the other.
 * `oslo_gpt2 --help`. Exit status: 0; 1 for a failure or losses that differ; 2 for wrong options. */

static const Way ways[] = {
  { "plain", FALSE, FALSE, FALSE },
  { "partitioned", TRUE, FALSE, FALSE },
  { "+ contiguous", TRUE, TRUE, FALSE },
  { "+ host", TRUE, TRUE, TRUE },
};

G_STATIC_ASSERT (G_N_ELEMENTS (ways) <= TABLE_MAX_WAYS);

typedef struct
{
  const Options *options;
  const EbbGptConfig *config;
} Job;

static void
print_head (const Job *job,
            EbbProcessGroup *group)
{
  const Options *options = job->options;
  const EbbGptConfig *config = job->config;

  printf ("%s of %d layer%s, width %d, %d heads, vocabulary %d, on %u tensor ranks (%s) of %s; %d x %d tokens\n",
          options->model != NULL ? options->model : "GPT-2",
          config->layers, config->layers == 1 ? "" : "s", config->width, config->heads,
          config->vocab, ebb_process_group_get_size (group),
          ebb_process_group_get_backend (group), options->device, options->batch, options->sequence);
  table_print_head ();
}

/* Runs one rank. */
static gboolean
run_rank (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  const Job *job = user_data;
  const Options *options = job->options;
  const gboolean speaks = ebb_process_group_get_rank (group) == 0;
  Table table = { 0 };
  Text text;
  gboolean ok = text_init (&text, options, error);

  if (options->threads > 0)
    ebb_set_num_threads (options->threads);
  if (ok && speaks)
    print_head (job, group);
  for (guint i = 0; ok && i < G_N_ELEMENTS (ways); i++)
    {
      gint64 figures[N_FIGURES] = { 0 };

      ok = way_run (&ways[i], options, &text, group, figures, error)
           && table_add (&table, &ways[i], group, figures, error);
      if (ok && speaks)
        table_print_last (&table);
    }
  ok = ok && table_check_losses (&table, error);
  if (ok && speaks)
    table_print_end (&table);
  table_clear (&table);
  text_clear (&text);
  return ok;
}

static gboolean
run (Options *options,
     GError **error)
{
  EbbProcessGroup *group = NULL;
  g_autoptr (EbbGptConfig) config = NULL;
  Job job = { .options = options };
  gboolean ok;

  /* Sources in flight are on the device too; without any the columns add up. */
  g_object_set (ebb_host_store_get_default (), "in-flight", 0, NULL);
  config = options_find_config (options, (guint) (options->ranks > 0 ? options->ranks : launcher_count ()), error);
  if (config == NULL)
    return FALSE;
  job.config = config;
  if (options->ranks > 0)
    return ebb_run_ranks ((guint) options->ranks, run_rank, &job, error);
  group = ebb_init_process_group ("auto", error);
  if (group == NULL)
    return FALSE;
  ok = run_rank (group, &job, error);
  g_object_unref (group);
  if (ok)
    ebb_destroy_process_group ();
  return ok;
}

int
main (int argc,
      char **argv)
{
  Options options;
  g_autoptr (GError) error = NULL;
  int status = 0;

  command_init (argv);
  /* The emulated device has 1 GiB by default, which is read when it is opened. The system gives memory as it is used.
   */
  g_setenv ("EBB_SIM_MEMORY", "64GiB", FALSE);
  options_init (&options);
  if (!options_parse (&options, argc, argv, &error))
    status = launcher_speaks () ? option_table_fail (&options.state, error->message) : launcher_fail_silently ();
  else if (!option_table_is_question (&options.state) && !run (&options, &error))
    status = command_fail (1, error->message);
  status = command_finish (status);
  options_clear (&options);
  return status;
}
