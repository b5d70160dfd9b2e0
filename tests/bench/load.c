/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>

/* Times what stands before the first step, medians in milliseconds: a GPT with drawn weights, one whose weights are
 * left to be loaded, and weights from a file in GPT-2's layout and in our own; and how long a program takes to say what
 * its options are. Each is done in a process of its own, since memory that was in use before costs less; the file is
 * read from the system's cache. */

static char *preset = NULL;
static char *program = NULL;
static char *part = NULL;
static char *file = NULL;
static int repeats = 7, threads = 0;

static const GOptionEntry entries[] = {
  { "preset", 0, 0, G_OPTION_ARG_STRING, &preset, "Model: gpt2 (default), tiny, ...", "NAME" },
  { "program", 0, 0, G_OPTION_ARG_FILENAME, &program, "Time FILE --help as well", "FILE" },
  { "repeats", 0, 0, G_OPTION_ARG_INT, &repeats, "How often, after once that doesn't count", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "part", 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_STRING, &part, "What this process is to do", "NAME" },
  { "file", 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_FILENAME, &file, "With which file", "FILE" },
  G_OPTION_ENTRY_NULL,
};

/* The times that a process prints, in order. */
#define MAX_TIMES 4

static const struct
{
  const char *part, *file;
  const char *times[MAX_TIMES];
} parts[] = {
  { "draw", NULL, { "model with drawn weights" } },
  { "gpt2",
    "gpt2.safetensors",
    { "model, weights left to be loaded", "its file in GPT-2's layout opened", "weights copied, matrices turned",
      "all three" } },
  { "own",
    "own.safetensors",
    { "model, weights left to be loaded", "its file in our own layout opened", "weights copied", "all three" } },
};

static double
now (void)
{
  return (double) g_get_monotonic_time () * 1e-3;
}

/* -- in a process of its own --------------------------------------------------------------------------------------- */

static EbbModule *
make_model (gboolean drawn,
            GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset (preset ? preset : "gpt2");
  EbbModule *model;

  ebb_manual_seed (1);
  if (!drawn)
    ebb_push_initialization_skipped ();
  model = ebb_gpt_new (config, error);
  if (!drawn)
    ebb_pop_initialization_skipped ();
  return model;
}

static gboolean
save (const char *folder,
      GError **error)
{
  g_autoptr (EbbModule) model = make_model (TRUE, error);
  g_autoptr (EbbArgs) published = ebb_gpt_to_gpt2_state ((EbbGpt *) model, error);
  g_autoptr (EbbArgs) own = model != NULL ? ebb_module_get_state_dict (model) : NULL;
  g_autofree char *path = g_build_filename (folder, parts[1].file, NULL);
  g_autofree char *own_path = g_build_filename (folder, parts[2].file, NULL);

  return ebb_save_safetensors (path, published, NULL, error) && ebb_save_safetensors (own_path, own, NULL, error);
}

static gboolean
draw (GError **error)
{
  double start = now ();
  g_autoptr (EbbModule) model = make_model (TRUE, error);

  printf ("%.3f\n", now () - start);
  return model != NULL;
}

static gboolean
load (gboolean own,
      GError **error)
{
  double start = now (), built, opened, copied;
  g_autoptr (EbbModule) model = make_model (FALSE, error);
  g_autoptr (EbbArgs) weights = NULL;

  built = now ();
  weights = ebb_load_safetensors (file, error);
  opened = now ();
  if (weights == NULL
      || !(own ? ebb_module_load_state_dict (model, weights, TRUE, error)
               : ebb_gpt_load_gpt2 (EBB_GPT (model), weights, error)))
    return FALSE;
  copied = now ();
  printf ("%.3f %.3f %.3f %.3f\n", built - start, opened - built, copied - opened, copied - start);
  return TRUE;
}

static gboolean
run_part (GError **error)
{
  if (strcmp (part, "save") == 0)
    return save (file, error);
  return strcmp (part, "draw") == 0 ? draw (error) : load (strcmp (part, "own") == 0, error);
}

/* -- all of them --------------------------------------------------------------------------------------------------- */

static gboolean
spawn (const char *const *arguments,
       char **output,
       GError **error)
{
  int status;

  return g_spawn_sync (NULL, (char **) arguments, NULL, G_SPAWN_DEFAULT, NULL, NULL, output, NULL, &status, error)
         && g_spawn_check_wait_status (status, error);
}

static gboolean
spawn_part (const char *self,
            const char *name,
            const char *path,
            char **output,
            GError **error)
{
  g_autofree char *thread_count = g_strdup_printf ("--threads=%d", threads);
  const char *arguments[] = { self, thread_count, "--part", name, "--preset", preset ? preset : "gpt2", "--file",
                              path ? path : "", NULL };

  return spawn (arguments, output, error);
}

static void
print_times (const char *name,
             double *times)
{
  double median = bench_median (times, (guint) repeats);

  printf ("%-36s %8.1f ms (%.1f to %.1f)\n", name, median, times[0], times[repeats - 1]);
}

static gboolean
measure_part (const char *self,
              const char *folder,
              guint index,
              GError **error)
{
  g_autofree double *times = g_new0 (double, (gsize) repeats *MAX_TIMES);
  g_autofree char *path = parts[index].file != NULL ? g_build_filename (folder, parts[index].file, NULL) : NULL;

  for (int i = -1; i < repeats; i++)
    {
      g_autofree char *output = NULL;
      char *position;

      if (!spawn_part (self, parts[index].part, path, &output, error))
        return FALSE;
      position = output;
      for (int j = 0; i >= 0 && j < MAX_TIMES && parts[index].times[j] != NULL; j++)
        times[j * repeats + i] = g_ascii_strtod (position, &position);
    }
  for (int j = 0; j < MAX_TIMES && parts[index].times[j] != NULL; j++)
    print_times (parts[index].times[j], times + j * repeats);
  return TRUE;
}

static gboolean
measure_help (GError **error)
{
  const char *arguments[] = { program, "--help", NULL };
  g_autofree double *times = g_new0 (double, (gsize) repeats);

  for (int i = -1; i < repeats; i++)
    {
      g_autofree char *output = NULL;
      double start = now ();

      if (!spawn (arguments, &output, error))
        return FALSE;
      if (i >= 0)
        times[i] = now () - start;
    }
  print_times ("--help", times);
  return TRUE;
}

static gboolean
measure (const char *self,
         GError **error)
{
  g_autofree char *folder = g_dir_make_tmp ("ebb-load-XXXXXX", error);
  gboolean ok = folder != NULL && spawn_part (self, "save", folder, NULL, error);

  for (guint i = 0; ok && i < G_N_ELEMENTS (parts); i++)
    ok = measure_part (self, folder, i, error);
  for (guint i = 0; folder != NULL && i < G_N_ELEMENTS (parts); i++)
    if (parts[i].file != NULL)
      {
        g_autofree char *path = g_build_filename (folder, parts[i].file, NULL);

        g_unlink (path);
      }
  if (folder != NULL)
    g_rmdir (folder);
  return ok && (program == NULL || measure_help (error));
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new ("- what stands before the first step");
  g_autoptr (GError) error = NULL;

  g_option_context_add_main_entries (options, entries, NULL);
  if (!g_option_context_parse (options, &argc, &argv, &error) || repeats < 1)
    {
      fprintf (stderr, "load: %s\n", error ? error->message : "--repeats must be at least 1");
      return 2;
    }
  if (threads > 0)
    ebb_set_num_threads (threads);
  if (!(part != NULL ? run_part (&error) : measure (argv[0], &error)))
    {
      fprintf (stderr, "load: %s\n", error->message);
      return 1;
    }
  return 0;
}
