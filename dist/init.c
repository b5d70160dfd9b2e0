/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The default process group, and how it is made: by an engine in the library, or by one that is a module. */
#include "dist/init.h"

#include "dist/group/process-group-private.h"
#include "dist/group/rendezvous-private.h"
#include "tensor/backend/module-private.h"
#include "tensor/n-threads-private.h"
#include "tensor/random.h"
#include "tensor/util/lock-private.h"

#include <gmodule.h>
#include <pthread.h>
#include <string.h>

#define FILE_PREFIX "ebb-process-group-"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static EbbProcessGroup *process_default; /* of ebb_init_process_group () */
static EbbProcessGroup *alone;           /* the stand-in if there is none; never freed */
static __thread EbbProcessGroup *thread_default __attribute__ ((tls_model ("initial-exec")));

void
ebb_process_group_set_thread_default (EbbProcessGroup *group)
{
  g_set_object (&thread_default, group);
}

EbbProcessGroup *
ebb_process_group_get_thread_default (void)
{
  return thread_default;
}

gboolean
ebb_process_group_is_initialised (void)
{
  return thread_default != NULL || __atomic_load_n (&process_default, __ATOMIC_ACQUIRE) != NULL;
}

/**
 * ebb_process_group_get_default:
 *
 * The group of all ranks: on a thread of ebb_run_ranks() that of its rank, elsewhere the group that
 * ebb_init_process_group() made, or a group of one.
 *
 * Returns: (transfer none): the group
 */
EbbProcessGroup *
ebb_process_group_get_default (void)
{
  EbbProcessGroup *group = thread_default;

  if (group == NULL)
    group = __atomic_load_n (&process_default, __ATOMIC_ACQUIRE);
  if (group != NULL)
    return group;
  EBB_AUTO_LOCK (&lock);
  if (alone == NULL)
    alone = ebb_single_group_new ();
  return alone;
}

static guint
get_number (const char *variable)
{
  const char *text = g_getenv (variable);
  guint64 value = text != NULL ? g_ascii_strtoull (text, NULL, 10) : 0;

  return (guint) MIN (value, G_MAXINT);
}

guint
ebb_process_group_count_mpi_processes (void)
{
  /* Of Open MPI's mpirun, MPICH's and Intel's, MVAPICH's, and srun; within sbatch SLURM_NTASKS is set too, but nothing
   * is started together there. */
  static const char *const sizes[] = { "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS" };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    if (get_number (sizes[i]) > 0)
      return get_number (sizes[i]);
  /* A launcher that sets the rank only: there may be more processes. */
  return g_getenv ("PMIX_RANK") != NULL ? 2 : 0;
}

/* -- modules ------------------------------------------------------------------------------------------------------- */

static void
set_n_threads (int n_threads)
{
  if (g_getenv ("OMP_NUM_THREADS") == NULL)
    ebb_cpu_set_n_threads (n_threads);
}

const EbbProcessGroupHost ebb_process_group_host = {
  .version = EBB_PROCESS_GROUP_VERSION,
  .get_type = ebb_process_group_get_type,
  .error_set = ebb_error_set,
  .get_dtype_size = ebb_dtype_get_size,
  .get_rank = ebb_process_group_get_rank,
  .get_size = ebb_process_group_get_size,
  .get_timeout = ebb_process_group_get_timeout,
  .reduce = ebb_collective_reduce,
  .call_to_string = ebb_collective_call_to_string,
  .announce = ebb_collective_announce,
  .check_announcement = ebb_collective_check_announcement,
  .get_name = ebb_process_group_get_name,
  .count_mpi_processes = ebb_process_group_count_mpi_processes,
  .set_n_threads = set_n_threads,
  .find_rank = ebb_rendezvous_find_rank,
  .spread = ebb_rendezvous_spread,
  .load = ebb_process_group_load,
};

static EbbProcessGroup *
open_module (const char *path,
             const char *name,
             GError **error)
{
  GModule *module = g_module_open (path, G_MODULE_BIND_LOCAL);
  GError *failure = NULL;
  gpointer symbol = NULL;
  EbbProcessGroup *group;

  if (module == NULL)
    return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED, "process group \"%s\": %s", name, g_module_error ());
  if (!g_module_symbol (module, EBB_PROCESS_GROUP_MODULE_SYMBOL, &symbol) || symbol == NULL)
    {
      ebb_error_set (error, EBB_ERROR_NOT_SUPPORTED,
                     "process group \"%s\": %s has no symbol " EBB_PROCESS_GROUP_MODULE_SYMBOL, name, path);
      g_module_close (module);
      return NULL;
    }
  /* Its type is registered to the end. */
  g_module_make_resident (module);
  group = ((EbbProcessGroupOpen) symbol) (&ebb_process_group_host, &failure);
  if (group != NULL)
    return group;
  if (failure == NULL)
    ebb_error_set (&failure, EBB_ERROR_CALLBACK, "%s returned neither a group nor an error", path);
  g_prefix_error (&failure, "process group \"%s\": ", name);
  g_propagate_error (error, failure);
  return NULL;
}

EbbProcessGroup *
ebb_process_group_load (const char *name,
                        GError **error)
{
  g_autoptr (GString) tried = g_string_new (NULL);
  g_autofree char *path = ebb_module_find (FILE_PREFIX, name, tried);

  if (path == NULL)
    {
      g_auto (GStrv) names = ebb_module_list (FILE_PREFIX);
      g_autofree char *modules = g_strjoinv (", ", names);

      return ebb_fail_null (error, EBB_ERROR_NOT_SUPPORTED, "no process groups \"%s\" here; there is single%s%s%s%s%s",
                            name, *modules != '\0' ? ", " : "", modules, tried->len > 0 ? " (there is no " : "",
                            tried->str, tried->len > 0 ? ")" : "");
    }
  return open_module (path, name, error);
}

/* -- begin and end ------------------------------------------------------------------------------------------------- */

/* Picks the engine by the launcher: mpirun, Slurm and torchrun each set variables. */
static const char *
pick_backend (void)
{
  if (ebb_process_group_count_mpi_processes () > 1)
    return "mpi";
  return g_getenv ("RANK") != NULL && get_number ("WORLD_SIZE") > 1 ? "nccl" : "single";
}

/* Explains why "auto" failed. Processes of torchrun on a machine without GPUs can't go on: its variables are only
 * enough for NCCL. */
static void
explain_auto (const char *backend,
              GError **failure)
{
  const gboolean is_missing = g_error_matches (*failure, EBB_ERROR, EBB_ERROR_NOT_SUPPORTED)
                              || g_error_matches (*failure, EBB_ERROR, EBB_ERROR_DEVICE);
  g_autofree char *message = g_strdup ((*failure)->message);

  if (strcmp (backend, "nccl") != 0 || !is_missing)
    {
      g_prefix_error (failure, "this process was started for \"%s\": ", backend);
      return;
    }
  g_free ((*failure)->message);
  (*failure)->message = g_strdup_printf (
      "RANK and WORLD_SIZE, as torchrun sets them, choose NCCL, which is missing here (%s): start the program by "
      "\"mpirun -n %u ...\" instead, or run ranks as threads by ebb_run_ranks ()",
      message, get_number ("WORLD_SIZE"));
}

/**
 * ebb_init_process_group:
 * @backend: (nullable): "single", "mpi", "nccl", or "auto", the default, which chooses by the environment
 * @error: return location for an error
 *
 * Makes the group of all processes that were started together, once, and makes it the process' default.
 *
 * "auto" is "mpi" for processes that mpirun or srun started, "nccl" for those that have `RANK` and a `WORLD_SIZE` above
 * 1 (and find each other by `MASTER_ADDR` and `MASTER_PORT`), else "single". "mpi" and "nccl" are modules that are
 * built if MPI, or CUDA and NCCL, are found; "nccl" also needs a GPU for each rank. With "mpi" this thread gets its
 * share of the machine's cores, unless `OMP_NUM_THREADS` is set.
 *
 * Before each call ranks compare their calls, so that a difference is an error and not a deadlock. On hundreds of ranks
 * that costs time: set the environment variable `EBB_PROCESS_GROUP_CHECK=0` on all of them to turn it off.
 *
 * Returns: (transfer full) (nullable): the group, or %NULL with an error
 */
EbbProcessGroup *
ebb_init_process_group (const char *backend,
                        GError **error)
{
  const gboolean is_auto = backend == NULL || strcmp (backend, "auto") == 0;
  EbbProcessGroup *group;
  GError *failure = NULL;

  if (error != NULL && *error != NULL)
    return NULL;
  if (thread_default != NULL)
    return ebb_fail_null (
        error, EBB_ERROR_STATE,
        "process group \"%s\": this thread is rank %u of %u already: use the group that its function was given",
        is_auto ? "auto" : backend, ebb_process_group_get_rank (thread_default),
        ebb_process_group_get_size (thread_default));
  if (is_auto)
    backend = pick_backend ();
  if (__atomic_load_n (&process_default, __ATOMIC_ACQUIRE) != NULL)
    return ebb_fail_null (error, EBB_ERROR_STATE,
                          "process group \"%s\": there is one already; call ebb_destroy_process_group () first",
                          backend);
  group = strcmp (backend, "single") == 0 ? ebb_single_group_new () : ebb_process_group_load (backend, &failure);
  if (group == NULL)
    {
      if (is_auto)
        explain_auto (backend, &failure);
      g_propagate_error (error, failure);
      return NULL;
    }
  __atomic_store_n (&process_default, g_object_ref (group), __ATOMIC_RELEASE);
  return group;
}

/**
 * ebb_destroy_process_group:
 *
 * Releases the process' default group after its work is done. Call it on all ranks before they leave.
 */
void
ebb_destroy_process_group (void)
{
  EbbProcessGroup *group = __atomic_exchange_n (&process_default, NULL, __ATOMIC_ACQ_REL);

  if (group != NULL)
    {
      ebb_process_group_flush (group);
      g_object_unref (group);
    }
}

/* -- random numbers ------------------------------------------------------------------------------------------------ */

/* The finalizer of MurmurHash3: neighbours become strangers. */
static guint64
scatter (guint64 x)
{
  x = (x ^ (x >> 33)) * G_GUINT64_CONSTANT (0xff51afd7ed558ccd);
  x = (x ^ (x >> 33)) * G_GUINT64_CONSTANT (0xc4ceb9fe1a85ec53);
  return x ^ (x >> 33);
}

guint64
ebb_get_rank_seed (guint64 seed,
                   guint64 rank)
{
  return rank == 0 ? seed : scatter (seed ^ scatter (rank * G_GUINT64_CONSTANT (0x9e3779b97f4a7c15)));
}

/**
 * ebb_seed_rank:
 * @seed: which sequence of numbers
 * @group: (nullable): the ranks that draw different numbers; %NULL for ebb_process_group_get_default()
 * @error: return location for an error
 *
 * Puts this thread's default generator to the begin of a sequence of its own on each rank, for dropout that differs
 * between ranks that see different data and is the same in every run. Rank 0 has the sequence of
 * ebb_manual_seed (@seed). Call it after making the model, whose first values must be the same on all ranks.
 *
 * Returns: %FALSE if @error was set before
 */
gboolean
ebb_seed_rank (guint64 seed,
               EbbProcessGroup *group,
               GError **error)
{
  if (error != NULL && *error != NULL)
    return FALSE;
  group = group != NULL ? group : ebb_process_group_get_default ();
  ebb_manual_seed (ebb_get_rank_seed (seed, ebb_process_group_get_rank (group)));
  return TRUE;
}
