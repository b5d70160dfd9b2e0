/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

#include <gio/gio.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Ranks that don't do what the others do, where NCCL works on a device and nobody waits for it. This program is both:
 * the test, which starts jobs, and with --rank the ranks of such a job, of which rank 1 does what it is told to. */

#define N_RANKS 2
#define CULPRIT 1
#define TIMEOUT 0.5 /* seconds, where a rank waits in vain */

/* -- the ranks ----------------------------------------------------------------------------------------------------- */

static gboolean
all_reduce (EbbProcessGroup *group,
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
  return all_reduce (group, tensor, error);
}

static gboolean
call_something_else (EbbProcessGroup *group,
                     EbbTensor *tensor,
                     GError **error)
{
  g_autoptr (EbbTensor) gathered = ebb_process_group_all_gather (group, tensor, error);

  return gathered != NULL && ebb_device_synchronize (test_device (), error);
}

static gboolean
reduce_halves (EbbProcessGroup *group,
               EbbTensor *tensor,
               GError **error)
{
  g_autoptr (EbbTensor) halves = ebb_cast (tensor, EBB_DTYPE_BF16, error);

  return halves != NULL && all_reduce (group, halves, error) && ebb_device_synchronize (test_device (), error);
}

static gboolean
leave (EbbProcessGroup *group,
       EbbTensor *tensor,
       GError **error)
{
  return TRUE;
}

typedef struct
{
  const char *name;
  gboolean (*deed) (EbbProcessGroup *group,
                    EbbTensor *tensor,
                    GError **error);
  gboolean checks;      /* ranks compare their calls before they make them */
  const char *reported; /* by the other rank */
  void (*suffer) (EbbProcessGroup *group,
                  EbbTensor *tensor,
                  const char *reported); /* NULL: it trains */
} Fault;

static void meet_a_busy_device (EbbProcessGroup *group,
                                EbbTensor *tensor,
                                const char *reported);
static void meet_a_refused_launch (EbbProcessGroup *group,
                                   EbbTensor *tensor,
                                   const char *reported);

static const Fault faults[] = {
  { "death", die, FALSE, "not all ranks did their part within 0.5 s" },
  { "death-before-the-check", die, TRUE, "not all ranks did their part within 0.5 s" },
  { "another-call", call_something_else, FALSE, "rank 1 makes another call" },
  { "another-call-is-found", call_something_else, TRUE, "rank 1 calls all_gather of f32 [6, 2]" },
  { "busy-device", leave, FALSE, "not all ranks did their part within 0.5 s", meet_a_busy_device },
  { "refused-launch", reduce_halves, FALSE, "reduce_ranks failed: asked to fail", meet_a_refused_launch },
};

static EbbTensor *
read_parameter (EbbModule *model,
                GError **error)
{
  g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, "weight");

  return parameter != NULL ? ebb_to_device (parameter, ebb_device_get_cpu (), error) : NULL;
}

/* Trains with a gradient that never comes; nothing lasts of it. */
static void
suffer (EbbProcessGroup *group,
        EbbModule *model,
        EbbOptimizer *optimizer,
        const char *reported)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GError) again = NULL;
  g_autoptr (EbbTensor) before = read_parameter (model, &error);
  g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, "weight");
  g_autoptr (EbbTensor) after = NULL;
  g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameter);

  g_assert_no_error (error);
  if (all_reduce (group, grad, &error) && ebb_optimizer_step (optimizer, &error))
    after = read_parameter (model, &error);
  g_assert_null (after);
  g_assert_nonnull (error);
  printf ("%s\n", error->message);
  g_assert_nonnull (strstr (error->message, reported));
  g_assert_nonnull (strstr (error->message, "all_reduce (sum) of f32 [3, 2] on rank 0 of 2: "));
  /* The device goes on, the group doesn't. */
  after = read_parameter (model, &again);
  g_assert_no_error (again);
  g_assert_cmpmem (test_read (after), 24, test_read (before), 24);
  g_assert_false (all_reduce (group, grad, &again));
  g_assert_nonnull (strstr (again->message, reported));
}

/* -- a device that another thread holds ---------------------------------------------------------------------------- */

static EbbStreamFuncs streams;
static const EbbStreamFuncs *real_streams;
static int has_failed; /* atomic */

static void
note_failure (int index,
              const GError *reason)
{
  real_streams->set_failure (index, reason);
  g_atomic_int_set (&has_failed, TRUE);
}

/* Returns when the group has given up, as if a thread with the device's lock had waited for what the group enqueued. */
static gboolean
launch_late (int index,
             EbbStream stream,
             const EbbLaunch *launch,
             GError **error)
{
  const gint64 until = g_get_monotonic_time () + (gint64) (40 * TIMEOUT * G_USEC_PER_SEC);

  while (!g_atomic_int_get (&has_failed))
    {
      if (g_get_monotonic_time () > until)
        g_error ("the group can't fail while a call of its waits for the device");
      g_usleep (1000);
    }
  return real_streams->launch (index, stream, launch, error);
}

/* The group gives up on a call that the other rank doesn't make, although a later call holds it. */
static void
meet_a_busy_device (EbbProcessGroup *group,
                    EbbTensor *tensor,
                    const char *reported)
{
  static EbbBackend backend;
  EbbDevice *device = test_device ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) halves = ebb_cast (tensor, EBB_DTYPE_BF16, &error);

  real_streams = device->backend->streams;
  streams = *real_streams;
  streams.launch = launch_late;
  streams.set_failure = note_failure;
  backend = *device->backend;
  backend.streams = &streams;
  device->backend = &backend;
  g_assert_true (all_reduce (group, tensor, &error));
  g_assert_no_error (error);
  if (all_reduce (group, halves, &error))
    ebb_device_synchronize (device, &error);
  g_assert_nonnull (error);
  printf ("%s\n", error->message);
  g_assert_nonnull (strstr (error->message, reported));
}

static void
meet_a_refused_launch (EbbProcessGroup *group,
                       EbbTensor *tensor,
                       const char *reported)
{
  EbbDevice *device = test_device ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) halves = ebb_cast (tensor, EBB_DTYPE_BF16, &error);

  g_assert_no_error (error);
  device->backend->fail (device->index, EBB_FAILURE_LAUNCH, 1);
  g_assert_false (all_reduce (group, halves, &error));
  printf ("%s\n", error->message);
  g_assert_nonnull (strstr (error->message, reported));
}

/* -- the rank ------------------------------------------------------------------------------------------------------ */

static int
run_rank (const Fault *fault)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) group = ebb_init_process_group ("nccl", &error);
  g_autoptr (EbbModule) model = ebb_linear_new (2, 3, FALSE, &error);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, 0.1, &error);
  g_autoptr (EbbTensor) input = test_randn (1, (gint64) 4, (gint64) 2, (gint64) -1);
  g_autoptr (EbbTensor) output = ebb_module_call1 (model, input, &error);
  g_autoptr (EbbTensor) loss = ebb_sum (output, NULL, 0, FALSE, &error);
  g_autoptr (EbbTensor) parameter = ebb_module_get_parameter (model, "weight");
  g_autoptr (EbbTensor) grad = NULL;

  g_assert_no_error (error);
  ebb_tensor_backward (loss, &error);
  grad = ebb_tensor_get_grad (parameter);
  /* All have come, and connections are made. */
  all_reduce (group, grad, &error);
  ebb_device_synchronize (test_device (), &error);
  ebb_process_group_barrier (group, &error);
  g_assert_no_error (error);
  if (fault->deed == die || fault->suffer != NULL)
    ebb_process_group_set_timeout (group, TIMEOUT);
  if (ebb_process_group_get_rank (group) == CULPRIT)
    fault->deed (group, grad, &error);
  else if (fault->suffer != NULL)
    fault->suffer (group, grad, fault->reported);
  else
    suffer (group, model, optimizer, fault->reported);
  g_clear_object (&group);
  ebb_destroy_process_group ();
  return 0;
}

/* -- the test ------------------------------------------------------------------------------------------------------ */

static const char *own_path;

static void
test_fault (gconstpointer data)
{
  const Fault *fault = data;
  g_autoptr (GSubprocessLauncher) launcher =
      g_subprocess_launcher_new (G_SUBPROCESS_FLAGS_STDOUT_PIPE | G_SUBPROCESS_FLAGS_STDERR_MERGE);
  g_autoptr (GError) error = NULL;
  g_autoptr (GSubprocess) job = NULL;
  g_autofree char *output = NULL;
  g_autofree char *n_ranks = g_strdup_printf ("%d", N_RANKS);

  g_subprocess_launcher_setenv (launcher, "EBB_PROCESS_GROUP_CHECK", fault->checks ? "1" : "0", TRUE);
  job = g_subprocess_launcher_spawn (launcher, &error, g_getenv ("EBB_NCCL_LAUNCH"), n_ranks, own_path, "--rank",
                                     fault->name, NULL);
  g_assert_no_error (error);
  g_subprocess_communicate_utf8 (job, NULL, NULL, &output, NULL, &error);
  g_assert_no_error (error);
  g_test_message ("%s", output);
  /* Of the first rank that didn't end well. */
  g_assert_true (g_subprocess_get_if_exited (job));
  g_assert_cmpint (g_subprocess_get_exit_status (job), ==, fault->deed == die ? 128 + SIGKILL : 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  for (guint i = 0; argc > 2 && strcmp (argv[1], "--rank") == 0 && i < G_N_ELEMENTS (faults); i++)
    if (strcmp (argv[2], faults[i].name) == 0)
      return run_rank (&faults[i]);
  own_path = argv[0];
  if (g_getenv ("EBB_NCCL_LAUNCH") == NULL)
    {
      g_printerr ("EBB_NCCL_LAUNCH must name the script that starts ranks\n");
      return 77;
    }
  for (guint i = 0; i < G_N_ELEMENTS (faults); i++)
    {
      g_autofree char *path = g_strconcat ("/nccl-faults/", faults[i].name, NULL);

      g_test_add_data_func (path, &faults[i], test_fault);
    }
  return g_test_run ();
}
