/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <gio/gio.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

/* Ranks that don't do what the others do. This program is both: the test, which starts jobs, and with --rank the ranks
 * of such a job, of which rank 1 does what it is told to. */

#define N_RANKS 3
#define CULPRIT 1

/* -- the ranks ----------------------------------------------------------------------------------------------------- */

typedef gboolean (*Deed) (EbbProcessGroup *group,
                          EbbTensor *tensor,
                          GError **error);

static gboolean
do_as_all (EbbProcessGroup *group,
           EbbTensor *tensor,
           GError **error)
{
  return ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, error);
}

static gboolean
die (EbbProcessGroup *group,
     EbbTensor *tensor,
     GError **error)
{
  raise (SIGKILL);
  return do_as_all (group, tensor, error);
}

/* While the group's thread is somewhere in the call. */
static gboolean
die_inside (EbbProcessGroup *group,
            EbbTensor *tensor,
            GError **error)
{
  g_autoptr (EbbWork) work = ebb_process_group_all_reduce_async (group, tensor, EBB_REDUCE_OP_SUM, error);

  raise (SIGKILL);
  return work != NULL;
}

/* Once all ranks have announced the call, when it begins to move data. */
static gboolean dies_with_data;

static gboolean
die_with_data (EbbProcessGroup *group,
               EbbTensor *tensor,
               GError **error)
{
  dies_with_data = TRUE;
  return do_as_all (group, tensor, error);
}

/* MPI's profiling interface: these stand before the library's own functions, for the module of groups too. Of messages,
 * announcements are bytes and data are not. */
int
MPI_Isend (const void *data,
           int n,
           MPI_Datatype type,
           int to,
           int tag,
           MPI_Comm comm,
           MPI_Request *request)
{
  if (dies_with_data && type != MPI_BYTE)
    raise (SIGKILL);
  return PMPI_Isend (data, n, type, to, tag, comm, request);
}

int
MPI_Iallgather (const void *data,
                int n,
                MPI_Datatype type,
                void *all,
                int n_each,
                MPI_Datatype type_of_all,
                MPI_Comm comm,
                MPI_Request *request)
{
  if (dies_with_data)
    raise (SIGKILL);
  return PMPI_Iallgather (data, n, type, all, n_each, type_of_all, comm, request);
}

/* Before there is a group, once the ranks know each other's processes. */
static gboolean dies_in_setup;

int
MPI_Comm_idup (MPI_Comm comm,
               MPI_Comm *copy,
               MPI_Request *request)
{
  if (dies_in_setup)
    raise (SIGKILL);
  return PMPI_Comm_idup (comm, copy, request);
}

static gboolean
stop (EbbProcessGroup *group,
      EbbTensor *tensor,
      GError **error)
{
  raise (SIGSTOP);
  return do_as_all (group, tensor, error);
}

static gboolean
leave (EbbProcessGroup *group,
       EbbTensor *tensor,
       GError **error)
{
  (void) group;
  (void) tensor;
  (void) error;
  exit (0);
}

static gboolean
fail (EbbProcessGroup *group,
      EbbTensor *tensor,
      GError **error)
{
  (void) group;
  (void) tensor;
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "own trouble");
  return FALSE;
}

static gboolean
call_barrier (EbbProcessGroup *group,
              EbbTensor *tensor,
              GError **error)
{
  (void) tensor;
  return ebb_process_group_barrier (group, error);
}

static gboolean
send_instead (EbbProcessGroup *group,
              EbbTensor *tensor,
              GError **error)
{
  return ebb_process_group_send (group, tensor, 0, error);
}

static gboolean
take_mean (EbbProcessGroup *group,
           EbbTensor *tensor,
           GError **error)
{
  return ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_MEAN, error);
}

static gboolean
call_other_shape (EbbProcessGroup *group,
                  EbbTensor *tensor,
                  GError **error)
{
  const gint64 shape[] = { 7, 5 };
  g_autoptr (EbbTensor) other = ebb_zeros (shape, 2, EBB_DTYPE_F32, NULL, error);

  (void) tensor;
  return other != NULL && ebb_process_group_all_reduce (group, other, EBB_REDUCE_OP_SUM, error);
}

static gboolean
split_alone (EbbProcessGroup *group,
             EbbTensor *tensor,
             GError **error)
{
  g_autoptr (EbbProcessGroup) part = ebb_process_group_split (group, 0, error);

  (void) tensor;
  return part != NULL;
}

/* Two layers of the same shape, each sharded over all ranks. */
static gboolean
call_layer (EbbProcessGroup *group,
            const char *name,
            GError **error)
{
  static const char *const names[] = { "first", "second" };
  const gint64 shape[] = { 2, 4 };
  g_autoptr (EbbTensor) x = ebb_zeros (shape, 2, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbModule) layers = ebb_module_list_new ();
  g_autoptr (EbbModule) called = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (EbbModule) layer = ebb_linear_new (4, 6, FALSE, error);
      g_autoptr (EbbModule) same = NULL;

      if (layer == NULL || !ebb_module_register_child (layers, names[i], layer, error))
        return FALSE;
      same = ebb_fully_shard (layer, group, NULL, error);
      if (same == NULL)
        return FALSE;
    }
  called = ebb_module_get_child (layers, name);
  y = ebb_module_call1 (called, x, error);
  return y != NULL;
}

static gboolean
call_first_layer (EbbProcessGroup *group,
                  EbbTensor *tensor,
                  GError **error)
{
  (void) tensor;
  return call_layer (group, "first", error);
}

static gboolean
call_second_layer (EbbProcessGroup *group,
                   EbbTensor *tensor,
                   GError **error)
{
  (void) tensor;
  return call_layer (group, "second", error);
}

typedef struct
{
  const char *name;
  Deed deed;              /* NULL: it dies before there is a group */
  gint64 n_rows;          /* of the tensor [n_rows, 5] that the others reduce */
  const char *told;       /* to the other ranks */
  gboolean needs_cleanup; /* the culprit doesn't end by itself */
  Deed others;            /* NULL: do_as_all */
  const char *own;        /* what @others call */
} Fault;

static const Fault faults[] = {
  { "killed-before", die, 3, "rank 1 has died", FALSE },
  { "killed-inside", die_inside, 2000000, "rank 1 has died", FALSE },
  { "killed-with-data", die_with_data, 3, "rank 1 has died", FALSE },
  { "killed-with-much-data", die_with_data, 20000, "rank 1 has died", FALSE },
  { "killed-in-setup", NULL, 3, "MPI_Comm_idup: the process of a rank has ended", FALSE },
  { "left", leave, 3, "rank 1 has left the group", FALSE },
  { "failed-elsewhere", fail, 3, "rank 1 has left the group", FALSE },
  { "stopped", stop, 3, "rank 1 has called nothing for 2 s", TRUE },
  { "other-operation", call_barrier, 3, "rank 1 calls barrier", FALSE },
  { "other-reduction", take_mean, 3, "rank 1 calls all_reduce (mean) of f32 [3, 5]", FALSE },
  { "other-shape", call_other_shape, 3, "rank 1 calls all_reduce (sum) of f32 [7, 5]", FALSE },
  { "send-for-all-reduce", send_instead, 3, "rank 1 calls send (to 0) of f32 [3, 5]", FALSE },
  { "split-alone", split_alone, 3, "rank 1 calls all_gather", FALSE },
  { "other-unit", call_second_layer, 3, "rank 1 calls all_gather of f32 [24] for gathering second (EbbLinear)", FALSE,
    call_first_layer, "all_gather of f32 [24] for gathering first (EbbLinear)" },
};

/* One line for each rank, written at once. */
static int
tell (guint rank,
      const char *text)
{
  g_autofree char *line = g_strdup_printf ("rank %u: %s\n", rank, text);

  fputs (line, stderr);
  fflush (stderr);
  return EXIT_FAILURE;
}

static int
run_rank (const Fault *fault)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) again = NULL;
  g_autoptr (EbbProcessGroup) group = NULL;
  g_autoptr (EbbTensor) tensor = NULL;
  const gint64 shape[] = { fault->n_rows, 5 };
  guint rank = (guint) g_ascii_strtoull (g_getenv ("OMPI_COMM_WORLD_RANK"), NULL, 10);

  dies_in_setup = fault->deed == NULL && rank == CULPRIT;
  group = ebb_init_process_group ("auto", &error);
  tensor = ebb_full (shape, 2, 1, EBB_DTYPE_F32, NULL, &error);
  if (tensor == NULL)
    return tell (rank, error->message);
  g_assert_cmpuint (ebb_process_group_get_rank (group), ==, rank);
  if (!do_as_all (group, tensor, &error))
    return tell (rank, error->message);
  if ((rank == CULPRIT ? fault->deed : fault->others != NULL ? fault->others
                                                             : do_as_all) (group, tensor, &error))
    return tell (rank, "done");
  if (rank == CULPRIT)
    return tell (rank, error->message);
  if (ebb_process_group_barrier (group, &again))
    return tell (rank, "the group still works");
  if (!g_str_has_suffix (error->message, again->message)) /* a wrapper says first what it was at */
    return tell (rank, "the second call fails with another error");
  return tell (rank, error->message);
}

/* -- the test ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  const Fault *fault;
  gboolean recovers; /* mpirun lets the others live */
} Job;

static char *
run_job (const Job *job,
         int *status)
{
  g_autoptr (GSubprocessLauncher) launcher =
      g_subprocess_launcher_new (G_SUBPROCESS_FLAGS_STDOUT_PIPE | G_SUBPROCESS_FLAGS_STDERR_MERGE);
  g_autoptr (GSubprocess) process = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *program = g_file_read_link ("/proc/self/exe", NULL);
  char *output = NULL;

  g_subprocess_launcher_setenv (launcher, "EBB_PROCESS_GROUP_TIMEOUT", job->fault->needs_cleanup ? "2" : "60", TRUE);
  g_subprocess_launcher_setenv (launcher, "MPIRUN_OPTIONS", job->recovers ? "--enable-recovery" : "", TRUE);
  process = g_subprocess_launcher_spawn (launcher, &error, "timeout", "--kill-after=5", "100",
                                         g_getenv ("EBB_MPI_LAUNCH"), G_STRINGIFY (N_RANKS), program, "--rank",
                                         job->fault->name, NULL);
  g_assert_no_error (error);
  g_subprocess_communicate_utf8 (process, NULL, NULL, &output, NULL, &error);
  g_assert_no_error (error);
  *status = g_subprocess_get_if_exited (process) ? g_subprocess_get_exit_status (process) : -1;
  return output;
}

/* The error is that of one of the other ranks, and names this rank's own operation. */
static void
check_line (const Fault *fault,
            guint rank,
            const char *line)
{
  g_autofree char *reduced = g_strdup_printf ("all_reduce (sum) of f32 [%" G_GINT64_FORMAT ", 5]", fault->n_rows);
  g_autofree char *own = g_strdup_printf ("%s on rank %u of 3", fault->own != NULL ? fault->own : reduced, rank);

  if (fault->deed != NULL)
    g_assert_nonnull (strstr (line, own));
  /* Who looks later hears of it from another rank, or finds that one gone for the same reason. */
  if (strstr (line, fault->told) == NULL && strstr (line, "has died: its process has ended") == NULL)
    g_assert_nonnull (strstr (line, "has failed: "));
}

static void
test_fault (gconstpointer data)
{
  const Job *job = data;
  int status = 0;
  g_autofree char *output = run_job (job, &status);
  g_auto (GStrv) lines = g_strsplit (output, "\n", -1);
  guint n_told = 0;

  g_test_message ("exit status %d:\n%s", status, output);
  if (status == 77)
    {
      g_test_skip ("no mpirun");
      return;
    }
  g_assert_cmpint (status, !=, 124);
  for (guint i = 0; lines[i] != NULL; i++)
    for (guint rank = 0; rank < N_RANKS; rank++)
      {
        g_autofree char *start = g_strdup_printf ("rank %u: ", rank);

        if (rank == CULPRIT || !g_str_has_prefix (lines[i], start))
          continue;
        check_line (job->fault, rank, lines[i]);
        n_told++;
      }
  /* mpirun ends the others as soon as one of them has, or at once if one was killed. */
  if (job->recovers)
    g_assert_cmpuint (n_told, ==, N_RANKS - 1);
  else
    g_assert_cmpint (status, !=, 0);
  /* Rank 1 may find the difference first, and mpirun may end rank 0 before it writes: then rank 2 alone reports that.
   */
  if (n_told > 0 && (job->recovers || strstr (output, "rank 1 has failed: ") == NULL))
    g_assert_nonnull (strstr (output, job->fault->told));
}

int
main (int argc,
      char **argv)
{
  for (guint i = 0; argc > 2 && strcmp (argv[1], "--rank") == 0 && i < G_N_ELEMENTS (faults); i++)
    if (strcmp (argv[2], faults[i].name) == 0)
      return run_rank (&faults[i]);
  g_test_init (&argc, &argv, NULL);
  if (g_getenv ("EBB_MPI_LAUNCH") == NULL)
    {
      g_printerr ("EBB_MPI_LAUNCH must name the script that starts ranks\n");
      return 77;
    }
  for (guint i = 0; i < 2 * G_N_ELEMENTS (faults); i++)
    {
      const Fault *fault = &faults[i / 2];
      const gboolean recovers = i % 2;
      g_autofree char *path = g_strdup_printf ("/mpi-faults/%s/%s", fault->name, recovers ? "others-live" : "cleanup");
      Job *job;

      if (recovers && fault->needs_cleanup)
        continue;
      job = g_new (Job, 1);
      *job = (Job){ fault, recovers };
      g_test_add_data_func_full (path, job, test_fault, g_free);
    }
  return g_test_run ();
}
