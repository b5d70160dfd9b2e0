/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/profiles.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

/* A trace file, as the viewers read it. */

#define MAX_DEPTH 64

/* Each event begins and ends within the one around it: kernels in ops, ops never in kernels. */
static void
check_nesting (JsonArray *events)
{
  struct
  {
    double end;
    const char *category;
  } open[MAX_DEPTH];
  guint depth = 0, n_kernels = 0;

  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);
      double begin, end;

      if (strcmp (json_object_get_string_member (event, "ph"), "X") != 0)
        continue;
      begin = json_object_get_double_member (event, "ts");
      end = begin + json_object_get_double_member (event, "dur");
      /* Times are whole nanoseconds in microseconds. */
      while (depth > 0 && begin >= open[depth - 1].end - 1e-4)
        depth--;
      g_assert_cmpuint (depth, <, MAX_DEPTH);
      if (depth > 0)
        {
          g_assert_cmpfloat (end, <=, open[depth - 1].end + 1e-4);
          g_assert_cmpstr (open[depth - 1].category, !=, "kernel");
        }
      open[depth].end = end;
      open[depth].category = json_object_get_string_member (event, "cat");
      if (strcmp (open[depth].category, "kernel") == 0)
        {
          g_assert_cmpuint (depth, >, 0);
          g_assert_cmpstr (open[depth - 1].category, ==, "op");
          n_kernels++;
        }
      depth++;
    }
  g_assert_cmpuint (n_kernels, >, 0);
}

static guint
count_events (JsonArray *events,
              const char *category,
              const char *name)
{
  guint n = 0;

  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);

      n += json_object_has_member (event, "cat")
           && strcmp (json_object_get_string_member (event, "cat"), category) == 0
           && strcmp (json_object_get_string_member (event, "name"), name) == 0;
    }
  return n;
}

static void
a_trace_nests_phases_modules_ops_and_kernels (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = test_profile_blocks_new (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (blocks, x);
  g_autofree char *folder = g_dir_make_tmp ("ebb-profiler-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "trace.json", NULL);
  g_autofree char *text = NULL;
  g_autoptr (JsonParser) parser = NULL;
  GError *error = NULL;
  JsonArray *events;

  ebb_profiler_save_trace (profiler, path, &error);
  g_assert_no_error (error);
  g_assert_true (g_file_get_contents (path, &text, NULL, NULL));
  events = json_object_get_array_member (test_parse_json (text, &parser), "traceEvents");
  check_nesting (events);
  g_assert_cmpuint (count_events (events, "phase", "backward"), ==, 1);
  g_assert_cmpuint (count_events (events, "phase", "recompute"), ==, 2);
  g_assert_cmpuint (count_events (events, "module", "0.attn"), ==, 2); /* forward, and recomputed */
  g_assert_cmpuint (count_events (events, "op", "linear"), ==, 8 + 6 + 8);
  g_assert_cmpuint (count_events (events, "kernel", "attention_grad"), ==, 2);
  g_unlink (path);
  g_assert_cmpint (g_rmdir (folder), ==, 0); /* nothing else was left there */
}

static void
a_trace_that_cannot_be_written_is_an_error (void)
{
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autofree char *folder = g_dir_make_tmp ("ebb-profiler-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "none", "trace.json", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) is_folder = NULL;

  g_assert_false (ebb_profiler_save_trace (profiler, path, &error));
  test_assert_error (error, EBB_ERROR_IO, path);
  g_assert_false (ebb_profiler_save_trace (profiler, folder, &is_folder));
  test_assert_error (is_folder, EBB_ERROR_IO, folder);
  g_assert_cmpint (g_rmdir (folder), ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/profiler/trace/nests", a_trace_nests_phases_modules_ops_and_kernels);
  g_test_add_func ("/profiler/trace/cannot-be-written", a_trace_that_cannot_be_written_is_an_error);
  return g_test_run ();
}
