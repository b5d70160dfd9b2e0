/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Shows the timing of kernels, for which a machine's first estimate or plan takes some seconds. */
#include "common/memory/timing.h"

#include "common/command.h"

#include <stdio.h>
#include <unistd.h>

static void
show (guint n_timed,
      guint n_kernels,
      gpointer user_data G_GNUC_UNUSED)
{
  g_autofree char *line =
      n_kernels > 0 ? g_strdup_printf ("Timing kernels, once on this machine: %u of %u", n_timed, n_kernels)
                    : g_strdup ("");

  /* A line that fills a terminal's last column may wrap. */
  fprintf (stderr, "\r%.*s\033[K", (int) command_get_columns (STDERR_FILENO, 1) - 1, line);
}

void
timing_show (const Options *options)
{
  const gboolean is_shown =
      !options->quiet && command_is_terminal (STDERR_FILENO) && command_get_columns (STDERR_FILENO, 0) > 0;

  ebb_timing_set_func (is_shown ? show : NULL, NULL, NULL);
}
