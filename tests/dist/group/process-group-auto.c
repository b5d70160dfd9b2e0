/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include <ebb/ebb.h>

#include "support/tensors.h"

#include <string.h>

/* Which group a process gets. */

static const char *const variables[] = {
  "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMIX_RANK", "RANK",
  "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
};

static void
clear_environment (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (variables); i++)
    g_unsetenv (variables[i]);
}

static void
assert_single (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) group = ebb_init_process_group ("auto", &error);

  g_assert_no_error (error);
  g_assert_cmpstr (ebb_process_group_get_backend (group), ==, "single");
  ebb_destroy_process_group ();
}

static void
test_alone (void)
{
  clear_environment ();
  assert_single ();
  g_setenv ("OMPI_COMM_WORLD_SIZE", "1", TRUE);
  g_setenv ("PMIX_RANK", "0", TRUE);
  assert_single ();
  clear_environment ();
  /* Within a batch script, which is one process. */
  g_setenv ("SLURM_NTASKS", "4", TRUE);
  assert_single ();
  clear_environment ();
  g_setenv ("RANK", "0", TRUE);
  g_setenv ("WORLD_SIZE", "1", TRUE);
  assert_single ();
}

static void
test_what_is_not_there (void)
{
  g_autoptr (GError) error = NULL;

  clear_environment ();
  g_assert_null (ebb_init_process_group ("pigeon", &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "\"pigeon\"", "single");
  g_clear_error (&error);
  g_assert_null (ebb_init_process_group ("../sim", &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "\"../sim\"");
}

/* Whether the module is missing, the machine has no GPU, or rank 0 isn't there: the process doesn't go on alone. */
static void
test_ranks_of_a_launcher_are_not_alone (void)
{
  g_autoptr (GError) error = NULL;

  clear_environment ();
  g_setenv ("RANK", "1", TRUE);
  g_setenv ("WORLD_SIZE", "2", TRUE);
  g_assert_null (ebb_init_process_group ("auto", &error));
  g_assert_nonnull (error);
  if (g_error_matches (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP)) /* there are a module and a GPU */
    g_assert_nonnull (strstr (error->message, "this process was started for \"nccl\""));
  else
    {
      g_assert_nonnull (strstr (error->message, "RANK and WORLD_SIZE"));
      g_assert_nonnull (strstr (error->message, "\"mpirun -n 2 ...\""));
      g_assert_null (strchr (error->message, '\n'));
    }
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_func ("/process-group-auto/alone", test_alone);
  g_test_add_func ("/process-group-auto/what-is-not-there", test_what_is_not_there);
  g_test_add_func ("/process-group-auto/ranks-of-a-launcher-are-not-alone", test_ranks_of_a_launcher_are_not_alone);
  return g_test_run ();
}
