/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */

/* A rank that goes away at each moment of a save. */

#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"
#include "dist/agree-private.h"

#define N_RANKS 3
#define LOST 2 /* the rank that goes */

typedef struct
{
  const char *folder;
  guint n_meetings; /* that the lost rank takes part in before it goes */
} Loss;

/* The exchanges of ranks in a save: they agree on a number, hear it, hear what each has, and agree that all
 * files are there. */
static gboolean
meet (EbbProcessGroup *group,
      guint meeting,
      GError **error)
{
  g_auto (GStrv) texts = NULL;

  if (meeting != 1 && meeting != 2)
    return ebb_agree_no_failure (group, NULL, error);
  texts = ebb_agree_gather_texts (group, "", error);
  return texts != NULL;
}

static gboolean
lose_rank (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  const Loss *loss = user_data;
  g_auto (TestShardRun) run = { NULL };
  g_autoptr (GError) failure = NULL;

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&run, group, 0, 1, NULL);
  if (ebb_process_group_get_rank (group) == LOST)
    {
      for (guint i = 0; i < loss->n_meetings; i++)
        if (!meet (group, i, error))
          return FALSE;
      g_set_error (error, EBB_ERROR, EBB_ERROR_CANCELLED, "this rank is lost");
      return FALSE;
    }
  g_assert_false (ebb_save_sharded_state (run.model, run.optimizer, loss->folder, &failure));
  test_assert_error (failure, EBB_ERROR_PROCESS_GROUP, "rank 2");
  g_propagate_error (error, g_steal_pointer (&failure));
  return FALSE;
}

static gboolean
save (EbbProcessGroup *group,
      gpointer user_data,
      GError **error)
{
  g_auto (TestShardRun) run = { NULL };

  test_shard_run_start (&run, group, NULL, TEST_SPLIT_FLAT, 0, EBB_MOMENT_FORMAT_F32);
  return ebb_save_sharded_state (run.model, run.optimizer, user_data, error);
}

static gboolean
load (EbbProcessGroup *group,
      gpointer user_data,
      GError **error)
{
  g_auto (TestShardRun) run = { NULL };
  g_auto (TestShardRun) fresh = { NULL };
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbArgs) state = NULL;

  test_shard_run_start (&fresh, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_start (&run, group, NULL, TEST_SPLIT_ROWS, 0, EBB_MOMENT_FORMAT_F32);
  test_shard_run_steps (&run, group, 0, 1, NULL);
  expected = ebb_get_full_state_dict (fresh.model, FALSE, error);
  if (expected == NULL || !ebb_load_sharded_state (run.model, run.optimizer, user_data, error))
    return FALSE;
  state = ebb_get_full_state_dict (run.model, FALSE, error);
  return state != NULL && test_same_dicts (state, expected, error);
}

static void
test_lost_rank (void)
{
  for (guint n = 0; n <= 4; n++)
    {
      g_autofree char *folder = test_make_folder ();
      Loss loss = { folder, n };
      g_autoptr (GError) error = NULL;

      test_run_ranks (N_RANKS, save, folder);
      g_assert_false (ebb_run_ranks (N_RANKS, lose_rank, &loss, &error));
      g_assert_nonnull (error);
      /* Before all have agreed that the files are there, the ranks take theirs back. */
      if (n < 4)
        g_assert_cmpuint (test_count_files (folder, NULL), ==, 3 * N_RANKS + 1);
      g_assert_cmpuint (test_count_files (folder, "partial"), ==, 0);
      test_run_ranks (2, load, folder);
      test_run_ranks (N_RANKS, save, folder);
      g_assert_cmpuint (test_count_files (folder, NULL), ==, 3 * N_RANKS + 1);
      test_run_ranks (1, load, folder);
      test_remove_folder (folder);
    }
}

/* -- what ranks tell each other ------------------------------------------------------------------------------------ */

static gboolean
exchange (EbbProcessGroup *group,
          gpointer user_data,
          GError **error)
{
  guint rank = ebb_process_group_get_rank (group), size = ebb_process_group_get_size (group);
  g_autofree char *text = g_strnfill (rank == 1 ? 0 : 10 * rank + 1, (char) ('a' + rank));
  g_auto (GStrv) texts = ebb_agree_gather_texts (group, text, error);
  g_autoptr (GError) failure = NULL;

  if (texts == NULL || !ebb_agree_no_failure (group, NULL, error))
    return FALSE;
  g_assert_cmpuint (g_strv_length (texts), ==, size);
  g_assert_cmpstr (texts[rank], ==, text);
  g_assert_cmpstr (texts[0], ==, "a");
  if (size > 1)
    g_assert_cmpstr (texts[1], ==, "");

  g_assert_false (ebb_agree_no_failure (group,
                                        rank == size - 1 ? g_error_new (EBB_ERROR, EBB_ERROR_SHAPE, "%s", "7 is odd")
                                                         : NULL,
                                        &failure));
  if (rank == size - 1)
    text = (g_free (text), g_strdup ("7 is odd"));
  else
    text = (g_free (text), g_strdup_printf ("rank %u: 7 is odd", size - 1));
  g_assert_error (failure, EBB_ERROR, EBB_ERROR_SHAPE);
  g_assert_cmpstr (failure->message, ==, text);
  return TRUE;
}

static void
test_texts (void)
{
  for (guint n = 1; n <= 4; n++)
    test_run_ranks (n, exchange, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/shard-save/a-rank-that-is-lost-leaves-the-state-before", test_lost_rank);
  g_test_add_func ("/shard-save/ranks-hear-what-each-says", test_texts);
  return g_test_run ();
}
