/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/tensors.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"

#include <string.h>

/* A rank of a model that ranks share fails, leaves or stays away, in a forward or in the middle of a recompute, while
 * the others wait for its part of a sum or a gather: they end at once, or when their time is up, with an error that
 * names it, nothing hangs, and their models can still be freed. */

#define N_RANKS 4
#define FAILS 1

typedef enum
{
  IN_FORWARD,
  BEFORE_BACKWARD,
  AT_RECOMPUTE, /* when what it needs is about to be gathered */
  IN_RECOMPUTE, /* between two collectives */
  AFTER_RECOMPUTE,
  N_PHASES
} Phase;

static const char *const phase_names[] = { "in-forward", "before-backward", "at-recompute", "in-recompute",
                                           "after-recompute" };

typedef enum
{
  TENSOR,
  SEQUENCE,
  PARTITIONED,
  N_KINDS
} Kind;

static const char *const kind_names[] = { "tensor", "sequence", "partitioned" };

typedef enum
{
  FAILING,
  LEAVING, /* without an error */
  STAYING_AWAY,
  N_MANNERS
} Manner;

static const char *const manner_names[] = { "fails", "leaves", "stays-away" };

typedef struct
{
  Phase phase;
  Kind kind;
  Manner manner;
  char *messages[N_RANKS];
  /* For who stays away until the others have ended. */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  guint n_ended;
} Run;

typedef struct
{
  Run *run;
  EbbProcessGroup *group;
  guint n_recomputes;
  gboolean has_failed;
} Rank;

static gboolean
go (Rank *rank,
    GError **error)
{
  Run *run = rank->run;

  rank->has_failed = TRUE;
  pthread_mutex_lock (&run->mutex);
  while (run->manner == STAYING_AWAY && run->n_ended < N_RANKS - 1)
    pthread_cond_wait (&run->changed, &run->mutex);
  pthread_mutex_unlock (&run->mutex);
  g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the power went");
  return FALSE;
}

static gboolean
is_time (const Rank *rank,
         Phase phase)
{
  return rank->run->phase == phase && ebb_process_group_get_rank (rank->group) == FAILS && !rank->has_failed;
}

/* Of the feed-forward part of the second block: its attention has been summed already. */
static gboolean
look_at_call (EbbModule *module,
              EbbArgs *args,
              EbbArgs *result,
              gpointer user_data,
              GError **error)
{
  return is_time (user_data, ebb_is_recomputing () ? IN_RECOMPUTE : IN_FORWARD) ? go (user_data, error) : TRUE;
}

static gboolean
look_at_recompute (EbbModule *module,
                   EbbRecomputePhase phase,
                   gpointer user_data,
                   GError **error)
{
  Rank *rank = user_data;

  if (phase == EBB_RECOMPUTE_BEGIN)
    rank->n_recomputes++;
  /* The last block's comes first. */
  if (rank->n_recomputes != 1)
    return TRUE;
  return is_time (rank, phase == EBB_RECOMPUTE_BEGIN ? AT_RECOMPUTE : AFTER_RECOMPUTE) ? go (rank, error) : TRUE;
}

static EbbModule *
make_model (Rank *rank,
            const TestParallel *settings,
            GError **error)
{
  g_autoptr (EbbModule) gpt = test_parallel_model (settings, error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) block = ebb_module_get_child (blocks, "1");
  g_autoptr (EbbModule) mlp = ebb_module_get_child (block, "mlp");

  if (!test_parallel_divide (settings, gpt, rank->group, error))
    return NULL;
  ebb_module_add_forward_pre_hook (mlp, look_at_call, rank, NULL);
  ebb_checkpoint_options_set_recompute_func (options, look_at_recompute, rank, NULL);
  if (rank->run->kind == PARTITIONED)
    {
      g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (rank->group, NULL, error);

      g_object_set (store, "least-size", (guint64) 0, NULL);
      ebb_checkpoint_options_set_store (options, store);
    }
  return ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, options, error) ? g_steal_pointer (&gpt) : NULL;
}

static gboolean
train (Rank *rank,
       GError **error)
{
  const TestParallel settings = { .n_ranks = N_RANKS, .is_sequence_parallel = rank->run->kind == SEQUENCE };
  g_autoptr (EbbModule) gpt = make_model (rank, &settings, error);

  for (guint i = 0; gpt != NULL && i < 2; i++)
    {
      g_autoptr (EbbTensor) loss = test_parallel_loss (&settings, gpt, i, error);

      if (loss == NULL || (is_time (rank, BEFORE_BACKWARD) && !go (rank, error)) || !ebb_tensor_backward (loss, error))
        return FALSE;
    }
  return gpt != NULL;
}

static gboolean
run_rank (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  Run *run = user_data;
  Rank rank = { .run = run, .group = group };
  const guint number = ebb_process_group_get_rank (group);
  g_autoptr (GError) failure = NULL;

  ebb_set_default_device (test_device ());
  if (run->manner == STAYING_AWAY)
    ebb_process_group_set_timeout (group, 1.5);
  g_assert_false (train (&rank, &failure));
  g_assert_nonnull (failure);
  pthread_mutex_lock (&run->mutex);
  run->messages[number] = g_strdup (failure->message);
  run->n_ended++;
  pthread_cond_broadcast (&run->changed);
  pthread_mutex_unlock (&run->mutex);
  if (run->manner == LEAVING && number == FAILS)
    return TRUE;
  g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

static void
others_end_with_an_error_that_names_it (gconstpointer data)
{
  const guint number = GPOINTER_TO_UINT (data);
  Run run = { .phase = (Phase) (number % N_PHASES),
              .kind = (Kind) (number / N_PHASES % N_KINDS),
              .manner = (Manner) (number / N_PHASES / N_KINDS) };
  g_autoptr (GError) error = NULL;

  pthread_mutex_init (&run.mutex, NULL);
  pthread_cond_init (&run.changed, NULL);
  g_assert_false (ebb_run_ranks (N_RANKS, run_rank, &run, &error));
  g_assert_nonnull (error);
  for (guint i = 0; i < N_RANKS; i++)
    {
      const char *message = run.messages[i];

      g_test_message ("%u: %s", i, message);
      g_assert_null (strchr (message, '\n'));
      if (i == FAILS)
        g_assert_nonnull (strstr (message, "the power went"));
      else
        {
          g_assert_nonnull (strstr (message, "rank 1"));
          /* The message names the operation and the module. */
          if (run.phase == AT_RECOMPUTE || (run.phase == IN_RECOMPUTE && run.kind == SEQUENCE))
            g_assert_true (g_str_has_prefix (message, "recompute of h.1 (EbbTransformerBlock): "));
          if (run.phase != AT_RECOMPUTE || run.kind != PARTITIONED)
            g_assert_nonnull (strstr (message, "parallel"));
        }
      g_free (run.messages[i]);
    }
  pthread_mutex_destroy (&run.mutex);
  pthread_cond_destroy (&run.changed);
}

/* -- an input in parts --------------------------------------------------------------------------------------------- */

static EbbArgs *
run_function (EbbArgs *args,
              gpointer user_data,
              GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) sine = ebb_sin (x, error);
  g_autoptr (EbbTensor) y = ebb_sin (sine, error);

  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

/* The others wait for its part of the input, and for nothing else. */
static gboolean
keep_part_back (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  g_autoptr (EbbSavedTensorHooks) store = ebb_partitioned_store_new (group, NULL, error);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) x = ebb_full ((const gint64[]){ 3, 5 }, 2, 0.5, EBB_DTYPE_F32, test_device (), error);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) failure = NULL;

  g_object_set (store, "least-size", (guint64) 0, NULL);
  ebb_checkpoint_options_set_store (options, store);
  ebb_tensor_set_requires_grad (x, TRUE, error);
  ebb_args_add_tensor (args, NULL, x);
  result = ebb_checkpoint (run_function, NULL, NULL, args, options, error);
  y = result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
  loss = ebb_sum (y, NULL, 0, FALSE, error);
  if (loss == NULL)
    return FALSE;
  g_assert_cmpuint (test_get_double (store, "n-partitioned"), ==, 1);
  if (ebb_process_group_get_rank (group) == FAILS)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_CALLBACK, "the power went");
      return user_data == NULL ? FALSE : (g_clear_error (error), TRUE);
    }
  g_assert_false (ebb_tensor_backward (loss, &failure));
  g_assert_error (failure, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_test_message ("%s", failure->message);
  g_assert_true (g_str_has_prefix (failure->message, "recompute of "));
  g_assert_nonnull (strstr (failure->message, "all_gather"));
  g_assert_nonnull (strstr (failure->message, user_data == NULL ? "rank 1 has failed" : "rank 1 has left"));
  /* Nothing is half there. */
  g_assert_null (ebb_tensor_get_grad (x));
  return TRUE;
}

static void
a_part_of_an_input_that_never_comes_ends_the_recompute (gconstpointer data)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_run_ranks (N_RANKS, keep_part_back, (gpointer) data, &error) == (data != NULL));
}

/* One rank goes another way through the recompute than the others: told by all, with what each was about to do. */
static gboolean
take_another_way (EbbModule *module,
                  EbbArgs *args,
                  EbbArgs *result,
                  gpointer user_data,
                  GError **error)
{
  EbbProcessGroup *group = user_data;
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  if (!ebb_is_recomputing () || ebb_process_group_get_rank (group) != FAILS)
    return TRUE;
  x = ebb_zeros ((const gint64[]){ 3 }, 1, EBB_DTYPE_F32, NULL, error);
  sum = ebb_parallel_reduce (x, group, error);
  return sum != NULL;
}

static gboolean
run_apart (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  const TestParallel settings = { .n_ranks = N_RANKS };
  g_autoptr (EbbModule) gpt = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) blocks = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) block = ebb_module_get_child (blocks, "1");
  g_autoptr (EbbModule) mlp = ebb_module_get_child (block, "mlp");
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) failure = NULL;

  if (!test_parallel_divide (&settings, gpt, group, error)
      || !ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error))
    return FALSE;
  ebb_module_add_forward_pre_hook (mlp, take_another_way, group, NULL);
  loss = test_parallel_loss (&settings, gpt, 0, error);
  if (loss == NULL)
    return FALSE;
  g_assert_false (ebb_tensor_backward (loss, &failure));
  g_assert_error (failure, EBB_ERROR, EBB_ERROR_PROCESS_GROUP);
  g_test_message ("%s", failure->message);
  g_assert_nonnull (strstr (failure->message, "rank 1"));
  return TRUE;
}

static void
a_recompute_that_goes_another_way_is_an_error (void)
{
  test_ranks_run (N_RANKS, run_apart, NULL);
}

int
main (int argc,
      char **argv)
{
  const TestParallel settings = { 0 };
  g_autoptr (EbbModule) gpt = NULL;

  test_init (&argc, &argv);
  /* Before there are threads: how GLib orders the making of classes is hidden from ThreadSanitizer. */
  gpt = test_parallel_model (&settings, NULL);
  for (guint i = 0; i < N_PHASES * N_KINDS * N_MANNERS; i++)
    {
      g_autofree char *path = NULL;

      /* It takes its time. */
      if (i / N_PHASES / N_KINDS == STAYING_AWAY && i % N_PHASES != AT_RECOMPUTE)
        continue;
      path = g_strdup_printf ("/parallel-faults/others-end-with-an-error-that-names-it/%s/%s/%s",
                              kind_names[i / N_PHASES % N_KINDS], phase_names[i % N_PHASES],
                              manner_names[i / N_PHASES / N_KINDS]);

      g_test_add_data_func (path, GUINT_TO_POINTER (i), others_end_with_an_error_that_names_it);
    }
  g_test_add_data_func ("/parallel-faults/a-part-of-an-input-that-never-comes-ends-the-recompute/failed", NULL,
                        a_part_of_an_input_that_never_comes_ends_the_recompute);
  g_test_add_data_func ("/parallel-faults/a-part-of-an-input-that-never-comes-ends-the-recompute/left", "",
                        a_part_of_an_input_that_never_comes_ends_the_recompute);
  g_test_add_func ("/parallel-faults/a-recompute-that-goes-another-way-is-an-error",
                   a_recompute_that_goes_another_way_is_an_error);
  return g_test_run ();
}
