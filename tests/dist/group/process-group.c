/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/collective-cases.h"
#include "support/device.h"
#include "support/tensors.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Groups of one rank, and of threads. */

static void
test_single_does_all (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbProcessGroup) group = ebb_init_process_group ("single", &error);

  g_assert_no_error (error);
  g_assert_cmpuint (ebb_process_group_get_size (group), ==, 1);
  g_assert_cmpstr (ebb_process_group_get_backend (group), ==, "single");
  g_assert_true (ebb_process_group_get_default () == group);
  test_collectives (group, TRUE);
  g_assert_null (ebb_init_process_group ("single", &error));
  test_assert_error (error, EBB_ERROR_STATE, "one already");
  ebb_destroy_process_group ();
  g_assert_false (ebb_process_group_get_default () == group);
  g_assert_cmpuint (ebb_process_group_get_size (ebb_process_group_get_default ()), ==, 1);
}

static gboolean
run_case (EbbProcessGroup *group,
          gpointer data,
          GError **error)
{
  const TestCollectiveCase *one = data;

  g_assert_true (ebb_process_group_get_default () == group);
  g_assert_cmpstr (ebb_process_group_get_backend (group), ==, "thread");
  one->check (group);
  return TRUE;
}

static void
test_threads (gconstpointer data)
{
  for (guint n = 1; n <= 4; n++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_true (ebb_run_ranks (n, run_case, (gpointer) data, &error));
      g_assert_no_error (error);
    }
}

/* -- what belongs to a rank ---------------------------------------------------------------------------------------- */

static gboolean
look_around (EbbProcessGroup *group,
             gpointer data,
             GError **error)
{
  const guint n = ebb_process_group_get_size (group);

  g_assert_cmpint (ebb_get_num_threads (), ==, MAX (1, *(int *) data / (int) n));
  g_assert_true (ebb_get_default_device () == test_device ());
  g_assert_cmpstr (ebb_process_group_get_name (group), ==, "world");
  g_assert_cmpfloat (ebb_process_group_get_timeout (group), ==, 600);
  ebb_process_group_set_timeout (group, 5);
  g_assert_cmpfloat (ebb_process_group_get_timeout (group), ==, 5);
  return TRUE;
}

static void
test_rank_has_its_own (void)
{
  int n_threads = ebb_get_num_threads ();

  for (guint n = 1; n <= 3; n++)
    {
      g_autoptr (GError) error = NULL;

      ebb_run_ranks (n, look_around, &n_threads, &error);
      g_assert_no_error (error);
    }
  g_assert_cmpint (ebb_get_num_threads (), ==, n_threads);
}

/* The first number of each rank's generator. */
static gboolean
draw (EbbProcessGroup *group,
      gpointer data,
      GError **error)
{
  const gint64 one = 1;
  double *drawn = data;
  g_autoptr (EbbTensor) x = NULL;

  if (!ebb_seed_rank (7, NULL, error))
    return FALSE;
  x = ebb_rand (&one, 1, EBB_DTYPE_F32, NULL, NULL, error);
  return ebb_tensor_get_item (x, &drawn[ebb_process_group_get_rank (group)], error);
}

static void
test_seeds_differ_and_repeat (void)
{
  const gint64 one = 1;
  double first[4], second[4], plain;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = NULL;

  ebb_run_ranks (4, draw, first, &error);
  ebb_run_ranks (4, draw, second, &error);
  ebb_manual_seed (7);
  x = ebb_rand (&one, 1, EBB_DTYPE_F32, NULL, NULL, &error);
  ebb_tensor_get_item (x, &plain, &error);
  g_assert_no_error (error);
  g_assert_cmpfloat (first[0], ==, plain);
  for (guint i = 0; i < 4; i++)
    {
      g_assert_cmpfloat (first[i], ==, second[i]);
      for (guint j = 0; j < i; j++)
        g_assert_cmpfloat (first[i], !=, first[j]);
    }
}

/* -- what goes wrong ----------------------------------------------------------------------------------------------- */

typedef struct
{
  guint culprit;
  const char *const *words; /* that the others are told */
  gboolean (*stumble) (EbbProcessGroup *group,
                       GError **error);
  guint n_told;
} Fault;

static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static Fault *present_fault;

/* The others call all_reduce of f32 [5, 2], then anything, which fails with the same. */
static gboolean
run_fault (EbbProcessGroup *group,
           gpointer data,
           GError **error)
{
  Fault *fault = data;
  const gint64 shape[] = { 5, 2 };
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, EBB_DTYPE_F32, shape, 2);
  g_autoptr (GError) first = NULL;
  g_autoptr (GError) later = NULL;

  ebb_process_group_set_timeout (group, 0.2);
  if (rank == fault->culprit)
    return fault->stumble (group, error);
  g_assert_false (ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, &first));
  test_assert_error (first, EBB_ERROR_PROCESS_GROUP, "all_reduce (sum) of f32 [5, 2]");
  for (guint i = 0; fault->words[i] != NULL; i++)
    if (strstr (first->message, fault->words[i]) == NULL)
      g_error ("\"%s\" does not say \"%s\"", first->message, fault->words[i]);
  g_assert_false (ebb_process_group_barrier (group, &later));
  g_assert_error (later, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_assert_cmpstr (later->message, ==, first->message);
  pthread_mutex_lock (&told_lock);
  fault->n_told++;
  pthread_cond_signal (&told);
  pthread_mutex_unlock (&told_lock);
  return TRUE;
}

static void
check_fault (gboolean (*stumble) (EbbProcessGroup *group,
                                  GError **error),
             const char *const *words,
             gboolean fails)
{
  for (guint n = 2; n <= 4; n++)
    {
      Fault fault = { n - 1, words, stumble, 0 };
      g_autoptr (GError) error = NULL;

      present_fault = &fault;
      g_assert_true (ebb_run_ranks (n, run_fault, &fault, &error) == !fails);
      g_assert_cmpuint (fault.n_told, ==, n - 1);
      if (fails)
        {
          g_autofree char *name = g_strdup_printf ("rank %u of %u: ", n - 1, n);

          g_assert_true (g_str_has_prefix (error->message, name));
        }
    }
}

static gboolean
return_at_once (EbbProcessGroup *group,
                GError **error)
{
  return TRUE;
}

static void
test_rank_that_leaves (void)
{
  static const char *const words[] = { "has left: its function returned", NULL };

  check_fault (return_at_once, words, FALSE);
}

static gboolean
fail_by_itself (EbbProcessGroup *group,
                GError **error)
{
  g_set_error_literal (error, EBB_ERROR, EBB_ERROR_IO, "the disk is full");
  return FALSE;
}

static void
test_rank_that_fails (void)
{
  static const char *const words[] = { "has failed: the disk is full", NULL };

  check_fault (fail_by_itself, words, TRUE);
}

static gboolean
fail_silently (EbbProcessGroup *group,
               GError **error)
{
  return FALSE;
}

static void
test_rank_that_fails_silently (void)
{
  static const char *const words[] = { "without saying why", NULL };

  check_fault (fail_silently, words, TRUE);
}

static gboolean
call_something_else (EbbProcessGroup *group,
                     GError **error)
{
  const gint64 length = 3;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_I32, &length, 1);
  GError *failure = NULL;

  g_assert_false (ebb_process_group_broadcast (group, tensor, 1, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "broadcast (from 1) of i32 [3]",
                     "all_reduce (sum) of f32 [5, 2]");
  g_propagate_error (error, failure);
  return FALSE;
}

static void
test_rank_that_calls_something_else (void)
{
  static const char *const words[] = { "called broadcast (from 1) of i32 [3]", NULL };

  check_fault (call_something_else, words, TRUE);
}

static gboolean
call_with_other_shape (EbbProcessGroup *group,
                       GError **error)
{
  const gint64 shape[] = { 5, 3 };
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_F32, shape, 2);

  return ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, error);
}

static void
test_rank_with_other_shape (void)
{
  static const char *const words[] = { "called all_reduce (sum) of f32 [5, 3]", NULL };

  check_fault (call_with_other_shape, words, TRUE);
}

static gboolean
call_with_other_op (EbbProcessGroup *group,
                    GError **error)
{
  const gint64 shape[] = { 5, 2 };
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_F32, shape, 2);

  return ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_MEAN, error);
}

static void
test_rank_with_other_op (void)
{
  static const char *const words[] = { "called all_reduce (mean) of f32 [5, 2]", NULL };

  check_fault (call_with_other_op, words, TRUE);
}

static gboolean
take_from_one_that_does_not_give (EbbProcessGroup *group,
                                  GError **error)
{
  const gint64 shape[] = { 5, 2 };
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_F32, shape, 2);

  return ebb_process_group_recv (group, tensor, 0, error);
}

static void
test_rank_that_waits_in_a_pair (void)
{
  static const char *const words[] = { "called recv (from 0) of f32 [5, 2]", NULL };

  check_fault (take_from_one_that_does_not_give, words, TRUE);
}

/* After the others have given up; it is told when it comes. */
static gboolean
come_late (EbbProcessGroup *group,
           GError **error)
{
  const gint64 shape[] = { 5, 2 };
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_F32, shape, 2);
  GError *failure = NULL;

  pthread_mutex_lock (&told_lock);
  while (present_fault->n_told < ebb_process_group_get_size (group) - 1)
    pthread_cond_wait (&told, &told_lock);
  pthread_mutex_unlock (&told_lock);
  g_assert_false (ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "timed out in all_reduce (sum) of f32 [5, 2]");
  g_propagate_error (error, failure);
  return FALSE;
}

static void
test_rank_that_is_late (void)
{
  static const char *const words[] = { "has called nothing for 0.2 s, and nothing before", NULL };

  check_fault (come_late, words, TRUE);
}

/* A rank that has given once may still be late. */
static gboolean
give_twice (EbbProcessGroup *group,
            gpointer gave_up,
            GError **error)
{
  const gint64 length = 2;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (0, EBB_DTYPE_F32, &length, 1);
  g_autoptr (GError) failure = NULL;

  if (ebb_process_group_get_rank (group) == 1)
    {
      g_assert_true (ebb_process_group_recv (group, tensor, 0, error));
      pthread_mutex_lock (&told_lock);
      while (!*(gboolean *) gave_up)
        pthread_cond_wait (&told, &told_lock);
      pthread_mutex_unlock (&told_lock);
      return TRUE;
    }
  ebb_process_group_set_timeout (group, 0.2);
  g_assert_true (ebb_process_group_send (group, tensor, 1, error));
  g_assert_false (ebb_process_group_send (group, tensor, 1, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "has called nothing for 0.2 s after 1 calls, the last recv");
  pthread_mutex_lock (&told_lock);
  *(gboolean *) gave_up = TRUE;
  pthread_cond_signal (&told);
  pthread_mutex_unlock (&told_lock);
  return TRUE;
}

static void
test_rank_that_is_late_after_a_pair (void)
{
  g_autoptr (GError) error = NULL;
  gboolean gave_up = FALSE;

  ebb_run_ranks (2, give_twice, &gave_up, &error);
  g_assert_no_error (error);
}

/* Two who both want to give wait in vain, which is told without a time limit. */
static gboolean
give_both (EbbProcessGroup *group,
           gpointer data,
           GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  const gint64 length = 2;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, EBB_DTYPE_F32, &length, 1);
  g_autoptr (GError) failure = NULL;

  g_assert_false (ebb_process_group_send (group, tensor, 1 - rank, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP,
                     rank == 0 ? "rank 1 called send (to 0)" : "rank 0 called send (to 1)");
  return TRUE;
}

static void
test_two_that_give (void)
{
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (2, give_both, NULL, &error);
  g_assert_no_error (error);
}

/* A work that was started fails as a call does. */
static gboolean
start_and_leave (EbbProcessGroup *group,
                 gpointer data,
                 GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  const gint64 length = 2;
  g_autoptr (EbbTensor) tensor = test_collective_tensor (rank, EBB_DTYPE_F32, &length, 1);
  g_autoptr (EbbWork) first = NULL;
  g_autoptr (EbbWork) second = NULL;
  g_autoptr (GError) failure = NULL;

  first = ebb_process_group_all_reduce_async (group, tensor, EBB_REDUCE_OP_SUM, &failure);
  g_assert_no_error (failure);
  if (rank == 1)
    return TRUE; /* the first is done for the others all the same */
  second = ebb_process_group_all_reduce_async (group, tensor, EBB_REDUCE_OP_MAX, &failure);
  g_assert_no_error (failure);
  g_assert_true (ebb_work_wait (first, &failure));
  g_assert_no_error (failure);
  g_assert_false (ebb_work_wait (second, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "all_reduce (max)", "rank 1 has left");
  return TRUE;
}

static void
test_works_fail (void)
{
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (3, start_and_leave, NULL, &error);
  g_assert_no_error (error);
}

/* A rank that leaves is missed in every group that it was in, and its own outlive it. */
static gboolean
leave_a_part (EbbProcessGroup *group,
              gpointer data,
              GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  EbbProcessGroup **kept = data;
  g_autoptr (EbbProcessGroup) part = ebb_process_group_split (group, rank / 2, error);
  g_autoptr (GError) failure = NULL;

  g_assert_no_error (*error);
  if (rank == 3)
    {
      *kept = g_steal_pointer (&part);
      return TRUE;
    }
  if (rank != 2)
    return ebb_process_group_barrier (part, error);
  g_assert_false (ebb_process_group_barrier (part, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "barrier on rank 0 of 2 (world/1): rank 1 has left");
  return TRUE;
}

static void
test_parts_miss_who_left (void)
{
  g_autoptr (GError) error = NULL;
  EbbProcessGroup *kept = NULL;

  ebb_run_ranks (4, leave_a_part, &kept, &error);
  g_assert_no_error (error);
  g_assert_false (ebb_process_group_barrier (kept, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_object_unref (kept);
}

/* -- children of fork () ------------------------------------------------------------------------------------------- */

/* In the child: what needs the other ranks, or a thread of the parent, is an error, and goes without waiting. */
static void
use_group_of_parent (EbbProcessGroup *group,
                     EbbWork *started,
                     EbbTensor *tensor)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *words = g_strdup_printf ("belongs to process %d", (int) getppid ());

  g_assert_false (ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, &error));
  test_assert_error (error, EBB_ERROR_PROCESS_GROUP, words, "make a group here");
  g_clear_error (&error);
  g_assert_null (ebb_process_group_all_reduce_async (group, tensor, EBB_REDUCE_OP_SUM, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_clear_error (&error);
  if (started != NULL)
    {
      g_assert_false (ebb_work_wait (started, &error));
      g_assert_error (error, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
      g_clear_error (&error);
    }
  g_object_run_dispose (G_OBJECT (group));
}

static void
check_in_child (EbbProcessGroup *group,
                EbbWork *started,
                EbbTensor *tensor)
{
  int status = -1;
  pid_t child = fork ();

  g_assert_cmpint (child, >=, 0);
  if (child == 0)
    {
      alarm (60); /* the end of one that waits */
      use_group_of_parent (group, started, tensor);
      _exit (0);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
}

static gboolean
fork_on_rank_0 (EbbProcessGroup *group,
                gpointer data,
                GError **error)
{
  const gint64 shape = 3;
  g_autoptr (EbbTensor) tensor = ebb_zeros (&shape, 1, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbWork) work = NULL;
  gint *has_forked = data; /* atomic */

  if (ebb_process_group_get_rank (group) == 0)
    {
      check_in_child (group, NULL, tensor);
      work = ebb_process_group_all_reduce_async (group, tensor, EBB_REDUCE_OP_SUM, error); /* waits for rank 1 */
      check_in_child (group, work, tensor);
      g_atomic_int_set (has_forked, TRUE);
    }
  while (!g_atomic_int_get (has_forked))
    g_thread_yield ();
  return work != NULL ? ebb_work_wait (work, error)
                      : ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, error);
}

static void
test_group_of_a_parent (void)
{
  g_autoptr (GError) error = NULL;
  gint has_forked = FALSE;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  g_test_skip ("a sanitizer's locks may be held for good in a child, by a thread that isn't there");
  return;
#endif
  if (!test_device_is_cpu ())
    {
      g_test_skip ("no device but the CPU is there in a child");
      return;
    }
  g_assert_true (ebb_run_ranks (2, fork_on_rank_0, &has_forked, &error));
  g_assert_no_error (error);
}

static void
free_in_child (EbbProcessGroup *group)
{
  int status = -1;
  pid_t child = fork ();

  g_assert_cmpint (child, >=, 0);
  if (child == 0)
    {
      alarm (60); /* the end of one that waits */
      g_object_unref (group);
      _exit (0);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
}

/* The second call finds all of the first one freed, so that nothing but the group holds its queue, for whose work the
 * group's thread waits. */
static gboolean
fork_with_idle_thread (EbbProcessGroup *group,
                       gpointer data G_GNUC_UNUSED,
                       GError **error)
{
  const gint64 shape = 3;
  g_autoptr (EbbProcessGroup) own = ebb_process_group_split (group, 0, error);
  g_autoptr (EbbTensor) tensor = ebb_zeros (&shape, 1, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbWork) work = ebb_process_group_all_reduce_async (own, tensor, EBB_REDUCE_OP_SUM, error);

  if (!ebb_work_wait (work, error) || !ebb_process_group_all_reduce (own, tensor, EBB_REDUCE_OP_SUM, error))
    return FALSE;
  g_clear_pointer (&work, ebb_work_unref);
  if (ebb_process_group_get_rank (group) == 0)
    free_in_child (own);
  return ebb_process_group_all_reduce (own, tensor, EBB_REDUCE_OP_SUM, error);
}

static void
test_child_frees_group (void)
{
  g_autoptr (GError) error = NULL;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  g_test_skip ("a sanitizer's locks may be held for good in a child, by a thread that isn't there");
  return;
#endif
  if (!test_device_is_cpu ())
    {
      g_test_skip ("no device but the CPU is there in a child");
      return;
    }
  g_assert_true (ebb_run_ranks (2, fork_with_idle_thread, NULL, &error));
  g_assert_no_error (error);
}

/* Which takes part in nothing that others do. */
static void
test_single_group_of_a_parent (void)
{
  const gint64 shape = 3;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tensor = ebb_zeros (&shape, 1, EBB_DTYPE_F32, NULL, &error);
  g_autoptr (EbbProcessGroup) group = ebb_init_process_group ("single", &error);
  int status = -1;
  pid_t child;

  if (!test_device_is_cpu ())
    {
      g_test_skip ("no device but the CPU is there in a child");
      ebb_destroy_process_group ();
      return;
    }
  child = fork ();
  if (child == 0)
    {
      g_autoptr (EbbProcessGroup) own = NULL;

      alarm (60);
      g_assert_true (ebb_process_group_all_reduce (group, tensor, EBB_REDUCE_OP_SUM, &error));
      ebb_destroy_process_group ();
      own = ebb_init_process_group ("single", &error);
      g_assert_true (ebb_process_group_all_reduce (own, tensor, EBB_REDUCE_OP_SUM, &error));
      _exit (0);
    }
  g_assert_cmpint (waitpid (child, &status, 0), ==, child);
  g_assert_cmpint (status, ==, 0);
  ebb_destroy_process_group ();
}

static void
test_bad_numbers (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (0, look_around, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "n_ranks is 0");
  g_clear_error (&error);
  g_assert_null (ebb_init_process_group ("smoke", &error));
  g_assert_nonnull (error);
  g_assert_true (strstr (error->message, "smoke") != NULL);
}

int
main (int argc,
      char *argv[])
{
  test_init (&argc, &argv);
  g_test_add_func ("/process-group/single", test_single_does_all);
  for (guint i = 0; i < n_test_collective_cases; i++)
    {
      g_autofree char *path = g_strconcat ("/process-group/threads/", test_collective_cases[i].name, NULL);

      g_test_add_data_func (path, &test_collective_cases[i], test_threads);
    }
  g_test_add_func ("/process-group/a-rank-has-its-own", test_rank_has_its_own);
  g_test_add_func ("/process-group/seeds-differ-and-repeat", test_seeds_differ_and_repeat);
  g_test_add_func ("/process-group/faults/leaves", test_rank_that_leaves);
  g_test_add_func ("/process-group/faults/fails", test_rank_that_fails);
  g_test_add_func ("/process-group/faults/fails-silently", test_rank_that_fails_silently);
  g_test_add_func ("/process-group/faults/something-else", test_rank_that_calls_something_else);
  g_test_add_func ("/process-group/faults/other-shape", test_rank_with_other_shape);
  g_test_add_func ("/process-group/faults/other-op", test_rank_with_other_op);
  g_test_add_func ("/process-group/faults/waits-in-a-pair", test_rank_that_waits_in_a_pair);
  g_test_add_func ("/process-group/faults/late", test_rank_that_is_late);
  g_test_add_func ("/process-group/faults/late-after-a-pair", test_rank_that_is_late_after_a_pair);
  g_test_add_func ("/process-group/faults/two-that-give", test_two_that_give);
  g_test_add_func ("/process-group/faults/works-fail", test_works_fail);
  g_test_add_func ("/process-group/faults/parts-miss-who-left", test_parts_miss_who_left);
  g_test_add_func ("/process-group/a-child-has-no-group-of-its-parent", test_group_of_a_parent);
  g_test_add_func ("/process-group/a-child-frees-the-group-of-its-parent", test_child_frees_group);
  g_test_add_func ("/process-group/a-child-goes-on-alone", test_single_group_of_a_parent);
  g_test_add_func ("/process-group/bad-numbers", test_bad_numbers);
  return g_test_run ();
}
