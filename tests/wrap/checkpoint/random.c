/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: one-thread */
#include "support/device.h"
#include "support/random-wrapping.h"

#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Random trees of modules, wrapped at random, must do what they do unwrapped, bit for bit: outputs, gradients, running
 * statistics, generators, flags, counters and memory. They run unwrapped on the CPU, or on the tested device where its
 * arithmetic is its own.
 *
 *   checkpoint-random --seed N             one program, and what it is made of
 *   checkpoint-random --seeds N [--from M] many */

#define N_WRAPPINGS 2 /* of each program */
#define N_SUITE_SEEDS 400

static TestStores stores;
static char current[128];
static guint n_own_blocks; /* wrappings that wrap a user's class of blocks */

static void
crashed (int signal_number)
{
  ssize_t n = write (STDERR_FILENO, current, strlen (current));

  signal (signal_number, SIG_DFL);
  raise (n > 0 ? signal_number : SIGABRT);
}

/* Returns what differs, or NULL. Owned. */
static char *
compare_with_unwrapped (guint64 seed,
                        guint which,
                        const TestTrace *plain,
                        GString *description)
{
  TestWrapping wrapping = { .seed = seed * N_WRAPPINGS + which + 1, .device = test_device (), .stores = &stores };
  TestTrace wrapped;
  char *difference;

  test_trace_init (&wrapped);
  test_program_run (seed, &wrapping, &wrapped);
  difference = test_trace_compare (plain, &wrapped);
  if (description != NULL || difference != NULL)
    g_string_append_printf (description, "wrapping %u:\n%s", which, wrapping.description->str);
  test_trace_clear (&wrapped);
  test_wrapping_clear (&wrapping);
  return difference;
}

/* Returns what differs, with all that is needed to see why; NULL: nothing. Owned. */
static char *
try_seed (guint64 seed,
          gboolean describe)
{
  TestWrapping none = { .device = test_device_of_same_bits (), .stores = &stores };
  g_autoptr (GString) description = g_string_new (NULL);
  g_autofree char *difference = NULL;
  TestTrace plain;

  g_snprintf (current, sizeof current, "crashed; reproduce it by checkpoint-random --seed %" G_GUINT64_FORMAT "\n",
              seed);
  test_trace_init (&plain);
  test_program_run (seed, &none, &plain);
  difference = test_trace_find_failure (&plain);
  for (guint i = 0; difference == NULL && i < N_WRAPPINGS; i++)
    {
      if (!describe)
        g_string_truncate (description, 0);
      difference = compare_with_unwrapped (seed, i, &plain, description);
      n_own_blocks += strstr (description->str, "  OwnBlock \"") != NULL;
    }
  test_trace_clear (&plain);
  if (difference != NULL || describe)
    {
      g_autofree char *tree = test_program_describe (seed);

      return g_strdup_printf ("%s%s\n%s\n%s\nreproduce it by checkpoint-random --seed %" G_GUINT64_FORMAT "\n",
                              difference ? "DIFFERENCE: " : "", difference ? difference : "no difference",
                              tree, description->str, seed);
    }
  return NULL;
}

static void
wrapped_trees_do_what_they_do_unwrapped (void)
{
  for (guint64 seed = 1; seed <= N_SUITE_SEEDS; seed++)
    {
      g_autofree char *text = try_seed (seed, FALSE);

      if (text != NULL)
        g_test_message ("%s", text);
      if (text != NULL)
        g_test_fail ();
    }
  test_stores_assert_used (&stores, test_device_is_cpu ());
  g_assert_cmpuint (n_own_blocks, >, 0);
}

static int
try_many (guint64 from,
          guint64 n)
{
  guint n_failures = 0;
  gboolean terminal = isatty (STDERR_FILENO);

  for (guint64 i = 0; i < n; i++)
    {
      g_autofree char *text = try_seed (from + i, FALSE);

      if (text != NULL)
        {
          n_failures++;
          printf ("seed %" G_GUINT64_FORMAT ": %s\n", from + i, text);
          fflush (stdout); /* a run may be cut short */
        }
      if (terminal && i % 16 == 0)
        fprintf (stderr, "\r%" G_GUINT64_FORMAT " of %" G_GUINT64_FORMAT " seeds, %u failures", i + 1, n, n_failures);
    }
  if (terminal)
    fprintf (stderr, "\n");
  printf ("%" G_GUINT64_FORMAT " seeds from %" G_GUINT64_FORMAT ": %u failures\n", n, from, n_failures);
  return n_failures > 0;
}

int
main (int argc,
      char **argv)
{
  gint64 seed = -1, n_seeds = 0, from = 1;
  const GOptionEntry entries[] = {
    { "seed", 0, 0, G_OPTION_ARG_INT64, &seed, "Try one program and describe it", "N" },
    { "seeds", 0, 0, G_OPTION_ARG_INT64, &n_seeds, "Try many programs", "N" },
    { "from", 0, 0, G_OPTION_ARG_INT64, &from, "The first of them", "N" },
    { NULL, 0, 0, G_OPTION_ARG_NONE, NULL, NULL, NULL }
  };
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;
  int status;

  setlocale (LC_ALL, "");
  g_option_context_add_main_entries (options, entries, NULL);
  g_option_context_set_ignore_unknown_options (options, TRUE);
  g_option_context_set_help_enabled (options, FALSE);
  if (!g_option_context_parse (options, &argc, &argv, &error))
    {
      fprintf (stderr, "%s\n", error->message);
      return 2;
    }
  test_init (&argc, &argv); /* has another use for --seed */
  signal (SIGABRT, crashed);
  signal (SIGSEGV, crashed);
  signal (SIGTRAP, crashed);
  test_stores_open (&stores);
  if (seed >= 0)
    {
      g_autofree char *text = try_seed ((guint64) seed, TRUE);

      printf ("%s", text);
      status = strstr (text, "DIFFERENCE") != NULL;
    }
  else if (n_seeds > 0)
    status = try_many ((guint64) from, (guint64) n_seeds);
  else
    {
      g_test_add_func ("/checkpoint/random-trees/do-wrapped-what-they-do-unwrapped",
                       wrapped_trees_do_what_they_do_unwrapped);
      status = g_test_run ();
    }
  test_stores_close (&stores);
  return status;
}
