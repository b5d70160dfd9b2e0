/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <ebb/ebb.h>

/* Trainings on ranks that are threads, for tests of what is saved of them. */

G_BEGIN_DECLS

typedef enum
{
  TEST_SPLIT_NONE, /* each rank has all, and gradients are averaged */
  TEST_SPLIT_ROWS,
  TEST_SPLIT_FLAT,
  TEST_N_SPLITS
} TestSplit;

typedef struct
{
  EbbModule *model; /* a GPT of two blocks, tied */
  EbbOptimizer *optimizer;
  TestSplit split;
} TestShardRun;

/* The same weights on any number of ranks. @replicas: NULL, or those that hold the same shards. */
void test_shard_run_start (TestShardRun *run,
                           EbbProcessGroup *group,
                           EbbProcessGroup *replicas,
                           TestSplit split,
                           double dropout,
                           EbbMomentFormat moments);
/* The same with parameters of another type. */
void test_shard_run_start_in (EbbDType dtype,
                              TestShardRun *run,
                              EbbProcessGroup *group,
                              EbbProcessGroup *replicas,
                              TestSplit split,
                              double dropout,
                              EbbMomentFormat moments);
void test_shard_run_clear (TestShardRun *run);
/* Steps @first to @first + @n; the batch of a step is one of 12 rows, whatever the number of ranks. Adds the mean loss
 * of each step to @losses, if that is given. */
void test_shard_run_steps (TestShardRun *run,
                           EbbProcessGroup *group,
                           int first,
                           int n,
                           double *losses);
/* FALSE, with an error that names it, where two dictionaries of tensors or numbers differ in a name or a bit. */
gboolean test_same_dicts (EbbArgs *a,
                          EbbArgs *b,
                          GError **error);

/* Runs @func on @n_ranks threads and expects no error. */
void test_run_ranks (guint n_ranks,
                     EbbRankFunc func,
                     gpointer user_data);
char *test_make_folder (void);
/* Removes it with its files. */
void test_remove_folder (const char *folder);
/* Those whose name contains @part (NULL: all). */
guint test_count_files (const char *folder,
                        const char *part);

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (TestShardRun, test_shard_run_clear)

G_END_DECLS
