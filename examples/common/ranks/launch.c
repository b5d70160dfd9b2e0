/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Runs a function on ranks: threads of this process, or processes that a launcher started. */
#include "common/ranks/launch.h"

typedef struct
{
  const Program *program;
  int argc;
  char **argv;
  LaunchFunc func;
  int interrupt;   /* rank 0's */
  int failed;      /* the exit status of a failure that another process reports */
  GError *failure; /* that all ranks share, from rank 0 */
} Launch;

static gboolean
run_rank (const Options *options,
          EbbProcessGroup *group,
          Launch *launch,
          Ranks *ranks,
          GError **error)
{
  Options own;
  gboolean ok;

  if (options->ranks.timeout > 0)
    ebb_process_group_set_timeout (group, options->ranks.timeout);
  options_init (&own, launch->program);
  ok = options_parse (&own, launch->argc, launch->argv, error) && ranks_init (ranks, group, error)
       && launch->func (&own, ranks, error);
  if (ranks->group != NULL && ranks->rank == 0)
    launch->interrupt = ranks->interrupt;
  options_clear (&own);
  return ok;
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const Options *options;
  Launch *launch;
} ThreadLaunch;

static gboolean
run_thread (EbbProcessGroup *group,
            gpointer user_data,
            GError **error)
{
  ThreadLaunch *data = user_data;
  Ranks ranks = { 0 };
  gboolean ok = run_rank (data->options, group, data->launch, &ranks, error);

  if (ranks.failure_shared && ranks.rank == 0 && error != NULL)
    data->launch->failure = g_error_copy (*error);
  ranks_clear (&ranks);
  return ok;
}

/* -- processes ----------------------------------------------------------------------------------------------------- */

/* If only this rank has failed, the others may be waiting for it. It exits without finalizing, which the launcher or a
 * failed call reports to them. */
static gboolean
run_process (const Options *options,
             Launch *launch,
             GError **error)
{
  Ranks ranks = { 0 };
  g_autoptr (EbbProcessGroup) group = NULL;
  gboolean ok, silent, leaves;

  group = ebb_init_process_group (options->ranks.backend, error);
  if (group == NULL)
    return FALSE;
  ok = run_rank (options, group, launch, &ranks, error);
  silent = !ok && ranks.failure_shared && ranks.rank > 0;
  leaves = ok || ranks.failure_shared;
  if (!ok && !ranks.failure_shared && ranks.size > 1)
    g_prefix_error (error, "rank %u: ", ranks.rank);
  ranks_clear (&ranks);
  g_clear_object (&group);
  if (leaves)
    ebb_destroy_process_group ();
  if (silent)
    {
      launch->failed = error != NULL && g_error_matches (*error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE) ? 2 : 1;
      g_clear_error (error);
    }
  return ok;
}

static gboolean
run_threads (const Options *options,
             Launch *launch,
             GError **error)
{
  ThreadLaunch data = { .options = options, .launch = launch };

  return ebb_run_ranks ((guint) options->ranks.n_ranks, run_thread, &data, error);
}

gboolean
launch_run (Options *options,
            int argc,
            char **argv,
            LaunchFunc func,
            int *status,
            GError **error)
{
  Launch launch = { .program = options->program, .argc = argc, .argv = argv, .func = func };
  gboolean ok;

  if (options->ranks.timeout > 0)
    {
      char text[G_ASCII_DTOSTR_BUF_SIZE];

      g_setenv ("EBB_PROCESS_GROUP_TIMEOUT", g_ascii_dtostr (text, sizeof text, options->ranks.timeout), TRUE);
    }
  ok = options->ranks.n_ranks > 0 ? run_threads (options, &launch, error) : run_process (options, &launch, error);
  *status = launch.failed > 0 ? launch.failed : launch.interrupt;
  if (launch.failure != NULL) /* rather than one rank's */
    {
      g_clear_error (error);
      g_propagate_error (error, launch.failure);
    }
  return ok;
}
