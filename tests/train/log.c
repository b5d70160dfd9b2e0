/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"

#include "train/log-private.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

static char *
make_folder (void)
{
  char *folder = g_dir_make_tmp ("ebb-log-XXXXXX", NULL);

  g_assert_nonnull (folder);
  return folder;
}

/* The one file of events. */
static char *
find_events (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  char *found = NULL;
  const char *name;

  while ((name = g_dir_read_name (dir)) != NULL)
    if (g_str_has_prefix (name, "events."))
      {
        g_assert_null (found);
        found = g_build_filename (folder, name, NULL);
      }
  g_assert_nonnull (found);
  return found;
}

static char *
read_lines (const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "steps.jsonl", NULL);
  char *text;

  g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
  return text;
}

static gsize
get_events_size (const char *folder)
{
  g_autofree char *path = find_events (folder);
  g_autofree char *bytes = NULL;
  gsize size;

  g_assert_true (g_file_get_contents (path, &bytes, &size, NULL));
  return size;
}

static void
append (const char *path, const char *text)
{
  FILE *file = g_fopen (path, "a");

  g_assert_cmpint (fputs (text, file), >=, 0);
  fclose (file);
}

static void
remove_folder (const char *folder)
{
  g_autoptr (GDir) dir = g_dir_open (folder, 0, NULL);
  const char *name;

  while ((name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);

      g_unlink (path);
    }
  g_rmdir (folder);
}

static void
add_steps (EbbTrainingLog *log, gint64 first, gint64 last)
{
  g_autoptr (GError) error = NULL;

  for (gint64 step = first; step <= last; step++)
    {
      const EbbLoggedStep one = { step, 1.0 / (double) step, 0.25, 0.5, 64, 4096, 8192 };

      g_assert_true (ebb_training_log_add_step (log, &one, NULL, &error));
      g_assert_no_error (error);
    }
}

static void
write_steps (const char *folder, const char *resume, gint64 first_step, gint64 last)
{
  g_autoptr (GError) error = NULL;
  EbbTrainingLog log;

  g_assert_true (ebb_training_log_open (&log, folder, resume, first_step, &error));
  g_assert_no_error (error);
  add_steps (&log, first_step + 1, last);
  ebb_training_log_close (&log);
}

static void
assert_refused (const char *folder, const char *resume, const char *before, const char *after)
{
  g_autofree char *wanted = g_strconcat (before, folder, after, NULL);
  g_autoptr (GError) error = NULL;
  EbbTrainingLog log;

  g_assert_false (ebb_training_log_open (&log, folder, resume, 0, &error));
  g_assert_nonnull (error);
  if (!g_str_has_prefix (error->message, wanted))
    g_error ("\"%s\" does not begin with \"%s\"", error->message, wanted);
  ebb_training_log_close (&log);
}

static void
a_line_has_each_number (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *text = NULL;
  g_autoptr (GError) error = NULL;
  const double loss = 0, first_loss = INFINITY;
  EbbLoggedStep step = { 1, NAN, 0.25, 0.5, 64, 4096, 8192 };
  EbbTrainingLog log;

  g_assert_true (ebb_training_log_open (&log, folder, NULL, 0, &error));
  g_assert_true (ebb_training_log_add_evaluation (&log, 0, first_loss, &error));
  g_assert_true (ebb_training_log_add_step (&log, &step, &loss, &error));
  step.seconds = 0;
  g_assert_true (ebb_training_log_add_step (&log, &step, NULL, &error));
  g_assert_no_error (error);
  text = read_lines (folder); /* before the log is closed */
  g_assert_cmpstr (text, ==,
                   "{\"step\": 0, \"eval_loss\": null, \"eval_perplexity\": null}\n"
                   "{\"step\": 1, \"loss\": null, \"lr\": 0.25, \"seconds\": 0.5, \"tokens_per_second\": 128, "
                   "\"peak_bytes\": 4096, \"rss_peak_bytes\": 8192, \"eval_loss\": 0, \"eval_perplexity\": 1}\n"
                   "{\"step\": 1, \"loss\": null, \"lr\": 0.25, \"seconds\": 0, \"tokens_per_second\": 0, "
                   "\"peak_bytes\": 4096, \"rss_peak_bytes\": 8192}\n");
  ebb_training_log_close (&log);
  remove_folder (folder);
}

static void
a_resumed_log_has_each_step_once (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *straight = make_folder ();
  g_autofree char *events = NULL;
  g_autofree char *lines = g_build_filename (folder, "steps.jsonl", NULL);
  g_autofree char *text = NULL;
  g_autofree char *wanted = NULL;

  write_steps (straight, NULL, 0, 200);
  write_steps (folder, NULL, 0, 150);
  events = find_events (folder);
  append (lines, "{\"step\": 15");
  append (events, "torn");
  write_steps (folder, "state", 140, 200);
  text = read_lines (folder);
  wanted = read_lines (straight);
  g_assert_cmpstr (text, ==, wanted);
  g_assert_cmpuint (get_events_size (folder), ==, get_events_size (straight));
  remove_folder (folder);
  remove_folder (straight);
}

static void
an_evaluation_is_there_once (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *before = NULL;
  g_autofree char *after = NULL;
  g_autoptr (GError) error = NULL;
  EbbTrainingLog log;

  write_steps (folder, NULL, 0, 3);
  before = read_lines (folder);
  g_assert_true (ebb_training_log_open (&log, folder, "state", 3, &error));
  g_assert_true (ebb_training_log_add_evaluation (&log, 3, 2.5, &error));
  g_assert_no_error (error);
  after = read_lines (folder);
  g_assert_cmpstr (before, ==, after);
  ebb_training_log_close (&log);
  remove_folder (folder);
}

static void
other_logs_are_refused (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *path = g_build_filename (folder, "steps.jsonl", NULL);

  write_steps (folder, NULL, 0, 7);
  assert_refused (folder, NULL, "log ",
                  ": it has the log of another training, up to step 7: name another folder, or resume the state "
                  "that goes on");
  append (path, "hello\n");
  assert_refused (folder, "state", "log ", ": the steps.jsonl there is no log of steps");
  remove_folder (folder);
}

static void
two_trainings_do_not_share_a_folder (void)
{
  g_autofree char *folder = make_folder ();
  g_autofree char *same = g_build_filename (folder, ".", NULL);
  g_autoptr (GError) error = NULL;
  EbbTrainingLog first, second;

  g_assert_true (ebb_training_log_open (&first, folder, NULL, 0, &error));
  assert_refused (folder, "state", "log: the folder ", " is in use by");
  /* The caller holds the lock of the folder that it resumes from. */
  g_assert_true (ebb_training_log_open (&second, folder, same, 0, &error));
  g_assert_no_error (error);
  ebb_training_log_close (&second);
  ebb_training_log_close (&first);
  remove_folder (folder);
}

static void
a_log_that_is_not_open_writes_nothing (void)
{
  EbbTrainingLog log = EBB_TRAINING_LOG_NONE;

  add_steps (&log, 1, 2);
  ebb_training_log_close (&log);
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/log/a-line-has-each-number", a_line_has_each_number);
  g_test_add_func ("/log/a-resumed-log-has-each-step-once", a_resumed_log_has_each_step_once);
  g_test_add_func ("/log/an-evaluation-is-there-once", an_evaluation_is_there_once);
  g_test_add_func ("/log/other-logs-are-refused", other_logs_are_refused);
  g_test_add_func ("/log/two-trainings-do-not-share-a-folder", two_trainings_do_not_share_a_folder);
  g_test_add_func ("/log/a-log-that-is-not-open-writes-nothing", a_log_that_is_not_open_writes_nothing);
  return g_test_run ();
}
