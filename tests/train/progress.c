/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"

#include "train/progress-private.h"

#include <string.h>

static EbbProgress
make_progress (EbbMemoryStats *stats)
{
  return (EbbProgress){ .step = 7,
                        .n_steps = 1200,
                        .loss = 2.34567,
                        .tokens_per_second = 1234.4,
                        .seconds_left = 3723,
                        .stats = stats,
                        .owner = "" };
}

static void
figures_are_there_as_far_as_they_fit (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (NULL);
  EbbProgress progress = make_progress (stats);
  static const struct
  {
    guint n_columns;
    const char *line;
  } cases[] = {
    { 8, "" },
    { 9, "   7/1200" },
    { 20, "   7/1200" },
    { 21, "   7/1200 loss 2.3457" },
    { 32, "   7/1200 loss 2.3457 1234 tok/s" },
    { 45, "   7/1200 loss 2.3457 1234 tok/s 1:02:03 left" },
    { 62, "   7/1200 loss 2.3457 1234 tok/s 1:02:03 left 3 of 2048 MiB" },
  };

  progress.budget_bytes = (guint64) 2 << 30;
  progress.used_bytes = (guint64) 3 << 20;
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *line = ebb_progress_format (&progress, cases[i].n_columns);

      g_assert_cmpstr (line, ==, cases[i].line);
    }
}

static void
a_wide_line_has_words (void)
{
  g_autoptr (EbbMemoryStats) stats = NULL;
  const gint64 shape[] = { 3, 1 << 20 };
  g_autoptr (EbbTensor) tensor = ebb_tensor_new_empty (shape, 2, EBB_DTYPE_U8, ebb_device_get_cpu (), NULL);
  g_autofree char *narrow = NULL;
  g_autofree char *wide = NULL;
  EbbProgress progress;

  stats = ebb_memory_get_stats (NULL);
  progress = make_progress (stats);
  progress.owner = " of rank 0";
  wide = ebb_progress_format (&progress, EBB_PROGRESS_ROOMY);
  narrow = ebb_progress_format (&progress, EBB_PROGRESS_ROOMY - 1);
  g_assert_true (g_str_has_prefix (wide, "step    7/1200  loss 2.3457  1234 tokens/s  1:02:03 left  MiB of rank 0: "
                                         "parameters 0.0"));
  g_assert_cmpuint (strlen (wide), <=, EBB_PROGRESS_ROOMY);
  g_assert_true (g_str_has_prefix (narrow, "   7/1200 loss 2.3457 1234 tok/s 1:02:03 left MiB of rank 0: p 0.0 g 0.0"));
  g_free (wide);
  wide = ebb_progress_format (&progress, G_MAXUINT);
  g_assert_nonnull (strstr (wide, " peak 3.0"));
  g_assert_null (strstr (wide, "cache")); /* which training doesn't have */
}

static void
times_and_medians (void)
{
  static const double values[] = { 9, 1, 3, 2 };
  g_autoptr (GArray) array = g_array_new (FALSE, FALSE, sizeof (double));
  g_autofree char *short_time = ebb_progress_format_time (59.6);
  g_autofree char *long_time = ebb_progress_format_time (3599.5);

  g_assert_cmpstr (short_time, ==, "1:00");
  g_assert_cmpstr (long_time, ==, "1:00:00");
  g_assert_cmpfloat (ebb_progress_get_median (array, 10), ==, 0);
  g_array_append_vals (array, values, G_N_ELEMENTS (values));
  g_assert_cmpfloat (ebb_progress_get_median (array, 10), ==, 2.5);
  g_assert_cmpfloat (ebb_progress_get_median (array, 3), ==, 2);
  g_assert_cmpfloat (g_array_index (array, double, 1), ==, 1); /* they stay in order */
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/progress/figures-are-there-as-far-as-they-fit", figures_are_there_as_far_as_they_fit);
  g_test_add_func ("/progress/a-wide-line-has-words", a_wide_line_has_words);
  g_test_add_func ("/progress/times-and-medians", times_and_medians);
  return g_test_run ();
}
