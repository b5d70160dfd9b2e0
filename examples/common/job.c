/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* A training from the command line to the exit status. */
#include "common/job.h"

#include "common/command.h"
#include "common/interrupt.h"
#include "common/launcher.h"
#include "common/memory/estimate.h"
#include "common/memory/keep.h"
#include "common/memory/memory-timeline.h"
#include "common/memory/planning.h"
#include "common/memory/timing.h"
#include "common/ranks/launch.h"
#include "common/report/log.h"
#include "common/report/profile.h"
#include "common/report/report.h"
#include "common/report/streams.h"
#include "common/train/adapter.h"
#include "common/train/evaluate.h"
#include "common/train/output.h"
#include "common/train/sample.h"

#include <gio/gio.h>
#include <stdio.h>

static gboolean
train (Trainer *trainer,
       Keep *keep,
       Progress *progress,
       Profile *profile,
       Streams *streams,
       MemoryTimeline *timeline,
       Log *log,
       GError **error)
{
  const Options *options = trainer->options;

  if ((options->steps == 0 || (options->program->tunes && trainer->step == 0))
      && (!evaluate_if_due (trainer, error) || !log_begin (log, error)))
    return FALSE;
  progress_evaluation (progress);
  while (trainer->step < options->steps && !trainer_must_stop (trainer))
    {
      gint64 began = g_get_monotonic_time ();
      double loss, seconds;

      if (!profile_begin_step (profile, error) || !streams_begin_step (streams, error)
          || !memory_timeline_begin_step (timeline, error) || !keep_step (keep, &loss, error))
        return FALSE;
      memory_timeline_end_step (timeline);
      profile_end_step (profile);
      if (!streams_end_step (streams, error)) /* it may report a failure of the device */
        {
          trainer->step_is_whole = FALSE;
          return FALSE;
        }
      seconds = (double) (g_get_monotonic_time () - began) / G_USEC_PER_SEC;
      progress_step (progress, loss, seconds);
      if (!evaluate_if_due (trainer, error))
        return FALSE;
      progress_evaluation (progress);
      if (!log_step (log, loss, seconds, error))
        return FALSE;
      if (options->save_every > 0 && trainer->step % options->save_every == 0 && !trainer_save_state (trainer, error))
        return FALSE;
    }
  return TRUE;
}

/* The failures so far, of which the first is reported. */
typedef struct
{
  Ranks *ranks;
  GError *first;
  gboolean one_alone; /* only this rank has failed */
} Failures;

/* Notes whether something went well. What comes after a failure is tried all the same, unless on ranks the others don't
 * know of it and may be waiting for this one: then it is FALSE. */
static gboolean
attempt (Failures *self,
         gboolean ok,
         GError **failure)
{
  if (ok)
    return TRUE;
  if (self->first == NULL)
    self->first = g_steal_pointer (failure);
  g_clear_error (failure);
  if (self->ranks == NULL)
    return TRUE;
  self->one_alone = self->one_alone || !self->ranks->failure_shared;
  self->ranks->failure_shared = FALSE; /* or the next one would be taken for it */
  return !self->one_alone;
}

static gboolean
report (Failures *self,
        GError **error)
{
  if (self->ranks != NULL && self->first != NULL && !self->one_alone)
    self->ranks->failure_shared = TRUE;
  if (self->first == NULL)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&self->first));
  return FALSE;
}

/* Where the best weights are, if they are of this run. */
static void
note_best (Trainer *trainer,
           Progress *progress)
{
  gboolean is_written = FALSE;

  for (guint i = 0; i < trainer->evaluations->len; i++)
    is_written |= g_array_index (trainer->evaluations, Evaluation, i).is_best;
  if (is_written)
    progress_note (progress, "Best weights, of step %" G_GINT64_FORMAT ": %s", trainer->best_step,
                   trainer->options->save_best);
}

/* TRUE if no file has the best weights: none was measured, or before this run, without --save. The first rank's answer
 * counts. FALSE with an error only if the ranks can't exchange it. */
static gboolean
lacks_best (const Trainer *trainer,
            GError **error)
{
  const char *path = trainer->options->save_best;
  gint64 lacks = trainer->best_step == 0
                 || (trainer->best_step <= trainer->first_step && !g_file_test (path, G_FILE_TEST_EXISTS));
  g_autofree gint64 *all = NULL;

  if (trainer->ranks == NULL)
    return lacks != 0;
  all = g_new (gint64, trainer->ranks->size);
  return ranks_exchange (trainer->ranks, &lacks, 1, all, error) && all[0] != 0;
}

/* Saves state and weights, unless an interrupt came before the first step. */
static gboolean
save (Trainer *trainer,
      Progress *progress,
      const RankTable *table,
      const MemoryTimeline *timeline,
      Failures *failures)
{
  const Options *options = trainer->options;
  GError *failure = NULL;

  if (trainer_get_interrupt (trainer) != 0 && progress->losses->len == 0)
    return TRUE;
  if (!attempt (failures, trainer_save_state (trainer, &failure), &failure))
    return FALSE;
  if (options->save != NULL)
    {
      gboolean ok = trainer_save_weights (trainer, options->save, &failure);

      if (ok)
        progress_note (progress, "Weights: %s", options->save);
      if (!attempt (failures, ok, &failure))
        return FALSE;
    }
  if (options->save_best != NULL && options->program->tunes && lacks_best (trainer, &failure))
    {
      const gboolean ok = trainer_save_weights (trainer, options->save_best, &failure);

      if (ok)
        progress_note (progress, "Weights: %s", options->save_best);
      if (!attempt (failures, ok, &failure))
        return FALSE;
    }
  else if (failure != NULL)
    {
      if (!attempt (failures, FALSE, &failure))
        return FALSE;
    }
  else if (options->save_best != NULL)
    note_best (trainer, progress);
  attempt (failures, report_write (trainer, progress, table, timeline, &failure), &failure);
  if (options->resume != NULL && trainer->saved_step == trainer->step)
    progress_note (progress, "State of step %" G_GINT64_FORMAT ": %s%s", trainer->step, options->resume,
                   trainer->step < options->steps ? "; the same command goes on from there" : "");
  return TRUE;
}

/* From the first step to the last file. After a step that was broken off, or that the device did not finish, the
 * weights are no step's and nothing is saved; after any other failure all of the last step is saved. */
static gboolean
run_training (Trainer *trainer,
              Progress *progress,
              Profile *profile,
              Streams *streams,
              MemoryTimeline *timeline,
              Log *log,
              GError **error)
{
  const Options *options = trainer->options;
  RankTable table = { 0 };
  Failures failures = { .ranks = trainer->ranks };
  GError *failure = NULL;
  gboolean ok, finished;
  Keep keep;

  rank_table_begin (trainer);
  keep_init (&keep, trainer);
  ok = train (trainer, &keep, progress, profile, streams, timeline, log, &failure);
  keep_clear (&keep);
  ok = attempt (&failures, ok, &failure) && (ok || trainer->step_is_whole);
  finished = ok && trainer_finish (trainer, &failure);
  ok = ok && attempt (&failures, finished, &failure) && (finished || trainer->step_is_whole)
       && attempt (&failures, rank_table_init (&table, trainer, progress->losses->len, &failure), &failure);
  if (ok || progress->losses->len > 0)
    progress_end (progress);
  rank_table_print (&table, progress);
  if (ok && save (trainer, progress, &table, timeline, &failures)
      && attempt (&failures, profile_finish (profile, progress, &failure), &failure))
    attempt (&failures, memory_timeline_finish (timeline, progress, &failure), &failure);
  rank_table_clear (&table);
  if (!report (&failures, error))
    {
      keep_explain (trainer, error);
      return FALSE;
    }
  streams_print (streams, progress);
  if (options->sample == 0 || trainer_get_interrupt (trainer) != 0)
    return TRUE;
  progress_note (progress, "%s", "");
  return sample_print (trainer, error);
}

static gboolean
run (Options *options,
     Ranks *ranks,
     GError **error)
{
  Trainer trainer;
  Progress progress;
  Profile profile;
  Streams streams;
  MemoryTimeline timeline;
  Planning planning;
  Log log;
  gboolean ok;

  if (!planning_init (&planning, options, ranks, error))
    return FALSE;
  log_init_none (&log);
  ok = trainer_init (&trainer, options, ranks, error) && planning_apply (&planning, &trainer, error)
       && streams_init (&streams, &trainer, error) && log_init (&log, &trainer, error);
  if (ranks != NULL)
    ok = ranks_agree (ranks, ok, error);
  if (ok)
    {
      if (!options->silenced)
        output_print_message ();
      progress_init (&progress, &trainer);
      progress_begin (&progress);
      profile_init (&profile, &trainer);
      memory_timeline_init (&timeline, &trainer);
      ok = run_training (&trainer, &progress, &profile, &streams, &timeline, &log, error);
      memory_timeline_clear (&timeline);
      profile_clear (&profile);
      progress_clear (&progress);
      if (ok && !options->silenced)
        output_print_message (); /* as that checkpoints save next to nothing */
    }
  log_clear (&log);
  trainer_clear (&trainer);
  planning_clear (&planning);
  return ok;
}

static int
fail (int status,
      const char *message)
{
  output_print_error (message);
  return status;
}

/* One process prints errors that all have. */
static gboolean
speaks (const Options *options)
{
  return (!options_on_ranks (options) && launcher_count () <= 1) || launcher_speaks ();
}

static int
answer (Options *options)
{
  if (speaks (options))
    option_table_print (&options->state);
  return command_finish (0);
}

/* Training nothing. */
static gboolean
merge (const Options *options,
       GError **error)
{
  if (options->threads > 0)
    ebb_set_num_threads (options->threads);
  return output_check (options, error) && output_check_base (options, error) && adapter_merge (options, error);
}

static int
run_job (Options *options,
         int argc,
         char **argv)
{
  g_autoptr (GError) error = NULL;
  int status;
  gboolean ok;

  interrupt_watch ();
  timing_show (options);
  status = 0;
  if (options->merge != NULL)
    ok = merge (options, &error);
  else if (options_on_ranks (options))
    ok = launch_run (options, argc, argv, options->estimate ? estimate_run : run, &status, &error);
  else
    {
      ok = options->estimate ? estimate_run (options, NULL, &error) : run (options, NULL, &error);
      status = interrupt_get_status ();
    }
  if (ok)
    return command_finish (status);
  if (g_error_matches (error, G_IO_ERROR, G_IO_ERROR_CANCELLED))
    return fail (MAX (status, interrupt_get_status ()), error->message);
  if (error == NULL)
    return options_on_ranks (options) ? MAX (status, 1) : fail (1, "failed without saying why");
  return fail (error->domain == G_OPTION_ERROR ? 2 : 1, error->message);
}

static int
run_command (int argc,
             char **argv,
             Options *options)
{
  g_autoptr (GError) error = NULL;

  if (options_parse (options, argc, argv, &error))
    return option_table_is_question (&options->state) ? answer (options) : run_job (options, argc, argv);
  if (!speaks (options))
    return launcher_fail_silently ();
  return error->domain == G_OPTION_ERROR ? option_table_fail (&options->state, error->message)
                                         : fail (1, error->message);
}

int
job_main (const Program *program,
          int argc,
          char **argv)
{
  Options options;
  int status;

  command_init (argv);
  output_init ();
  options_init (&options, program);
  status = run_command (argc, argv, &options);
  options_clear (&options);
  return status;
}
