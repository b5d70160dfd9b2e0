/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads from the environment which processes mpirun, Slurm or another launcher started together. */
#include "common/launcher.h"

/* The first of these variables that is a number; -1: none is. */
static int
read_environment (const char *const *names)
{
  for (; *names != NULL; names++)
    {
      const char *text = g_getenv (*names);

      if (text != NULL && g_ascii_isdigit (text[0]))
        return (int) MIN (g_ascii_strtoull (text, NULL, 10), G_MAXINT);
    }
  return -1;
}

gboolean
launcher_speaks (void)
{
  static const char *const names[] = { "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", NULL };
  static const char *const others[] = { "RANK", NULL }, *const sizes[] = { "WORLD_SIZE", NULL };

  /* A number alone may be left from elsewhere: only where there are several is there a rank 0 that says the same. */
  if (launcher_count () > 1 && read_environment (names) > 0)
    return FALSE;
  return read_environment (sizes) <= 1 || read_environment (others) <= 0;
}

int
launcher_fail_silently (void)
{
  g_usleep (G_USEC_PER_SEC);
  return 2;
}

static const char *const size_names[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS" };

int
launcher_count (void)
{
  gint64 most = 1;

  for (guint i = 0; i < G_N_ELEMENTS (size_names); i++)
    if (g_getenv (size_names[i]) != NULL)
      most = MAX (most, g_ascii_strtoll (g_getenv (size_names[i]), NULL, 10));
  return (int) MIN (most, G_MAXINT);
}

guint64
launcher_get_local_rank (void)
{
  static const char *const variables[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                           "SLURM_LOCALID" };
  guint64 rank = 0;

  for (guint i = 0; i < G_N_ELEMENTS (variables); i++)
    if (g_getenv (variables[i]) != NULL
        && g_ascii_string_to_unsigned (g_getenv (variables[i]), 10, 0, G_MAXINT, &rank, NULL))
      return rank;
  return 0;
}
