/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/shard-runs.h"

#include "support/gpt-step.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <string.h>

#define N_ROWS 12
#define VOCAB 29

void
test_shard_run_start (TestShardRun *run,
                      EbbProcessGroup *group,
                      EbbProcessGroup *replicas,
                      TestSplit split,
                      double dropout,
                      EbbMomentFormat moments)
{
  test_shard_run_start_in (EBB_DTYPE_F32, run, group, replicas, split, dropout, moments);
}

void
test_shard_run_start_in (EbbDType dtype,
                         TestShardRun *run,
                         EbbProcessGroup *group,
                         EbbProcessGroup *replicas,
                         TestSplit split,
                         double dropout,
                         EbbMomentFormat moments)
{
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) error = NULL;

  *run = (TestShardRun){ .split = split };
  run->model = test_gpt_step_model (2, dropout);
  ebb_module_to_dtype (run->model, dtype, &error);
  g_assert_no_error (error);
  g_object_set (options, "flatten", split == TEST_SPLIT_FLAT, "replicate-group", replicas, NULL);
  if (split == TEST_SPLIT_NONE)
    same = ebb_replicate (run->model, group, NULL, &error);
  else
    ebb_fully_shard_wrap_each (run->model, EBB_TYPE_TRANSFORMER_BLOCK, group, options, &error);
  g_assert_no_error (error);
  run->optimizer = ebb_adamw_new (run->model, 1e-2, &error);
  g_assert_no_error (error);
  g_object_set (run->optimizer, "moment-format", moments, NULL);
  ebb_optimizer_exclude_from_decay (run->optimizer, &error);
  g_assert_no_error (error);
}

void
test_shard_run_clear (TestShardRun *run)
{
  g_clear_object (&run->optimizer);
  g_clear_object (&run->model);
}

static double
get_mean (EbbProcessGroup *group,
          EbbTensor *loss)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) value = ebb_tensor_detach (loss);
  g_autoptr (EbbTensor) all = ebb_reshape (value, (const gint64[]){ 1 }, 1, &error);
  g_autoptr (EbbTensor) gathered = ebb_process_group_all_gather (group, all, &error);

  g_assert_no_error (error);
  return test_sum (gathered) / ebb_process_group_get_size (group);
}

static EbbTensor *
get_rows (EbbProcessGroup *group,
          int seed)
{
  guint n = ebb_process_group_get_size (group), rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbTensor) all = test_tokens ((guint64) seed, VOCAB, N_ROWS, TEST_GPT_CONTEXT, -1);
  g_autoptr (GError) error = NULL;
  EbbTensor *rows = ebb_narrow (all, 0, N_ROWS / n * rank, N_ROWS / n, &error);

  g_assert_no_error (error);
  return rows;
}

void
test_shard_run_steps (TestShardRun *run,
                      EbbProcessGroup *group,
                      int first,
                      int n,
                      double *losses)
{
  for (int step = first; step < first + n; step++)
    {
      g_autoptr (EbbTensor) tokens = get_rows (group, 100 + step);
      g_autoptr (EbbTensor) targets = get_rows (group, 200 + step);
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (run->model), tokens, targets, &error);

      g_assert_no_error (error);
      if (losses != NULL)
        losses[step] = get_mean (group, loss);
      ebb_tensor_backward (loss, &error);
      g_assert_no_error (error);
      ebb_optimizer_step (run->optimizer, &error);
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (run->optimizer);
    }
}

static gboolean
same_value (EbbArgs *a,
            EbbArgs *b,
            guint index)
{
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbArgs) p = NULL;
  g_autoptr (EbbArgs) q = NULL;

  if (g_strcmp0 (ebb_args_get_key (a, index), ebb_args_get_key (b, index)) != 0
      || ebb_args_get_value_kind (a, index) != ebb_args_get_value_kind (b, index))
    return FALSE;
  switch (ebb_args_get_value_kind (a, index))
    {
    case EBB_VALUE_TENSOR:
      x = ebb_args_get_tensor (a, index);
      y = ebb_args_get_tensor (b, index);
      return ebb_tensor_get_dtype (x) == ebb_tensor_get_dtype (y) && ebb_tensor_equal (x, y);
    case EBB_VALUE_ARGS:
      p = ebb_args_get_args (a, index);
      q = ebb_args_get_args (b, index);
      return test_same_dicts (p, q, NULL);
    case EBB_VALUE_INT:
      return ebb_args_get_int (a, index) == ebb_args_get_int (b, index);
    case EBB_VALUE_DOUBLE:
      return ebb_args_get_double (a, index) == ebb_args_get_double (b, index);
    default:
      return TRUE;
    }
}

gboolean
test_same_dicts (EbbArgs *a,
                 EbbArgs *b,
                 GError **error)
{
  if (ebb_args_get_length (a) != ebb_args_get_length (b))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "%u values, not %u", ebb_args_get_length (a),
                   ebb_args_get_length (b));
      return FALSE;
    }
  for (guint i = 0; i < ebb_args_get_length (a); i++)
    if (!same_value (a, b, i))
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "value %u, %s, differs from %s", i, ebb_args_get_key (a, i),
                     ebb_args_get_key (b, i));
        return FALSE;
      }
  return TRUE;
}

void
test_run_ranks (guint n_ranks,
                EbbRankFunc func,
                gpointer user_data)
{
  g_autoptr (GError) error = NULL;

  /* Types are made under GLib's locks, which ThreadSanitizer doesn't see: better before there are threads. */
  g_type_class_unref (g_type_class_ref (EBB_TYPE_ADAMW));
  ebb_run_ranks (n_ranks, func, user_data, &error);
  g_assert_no_error (error);
}

char *
test_make_folder (void)
{
  g_autoptr (GError) error = NULL;
  char *folder = g_dir_make_tmp ("ebb-shards-XXXXXX", &error);

  g_assert_no_error (error);
  return folder;
}

guint
test_count_files (const char *folder,
                  const char *part)
{
  GDir *dir = g_dir_open (folder, 0, NULL);
  const char *name;
  guint n = 0;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    n += part == NULL || strstr (name, part) != NULL;
  if (dir != NULL)
    g_dir_close (dir);
  return n;
}

void
test_remove_folder (const char *folder)
{
  GDir *dir = g_dir_open (folder, 0, NULL);
  const char *name;

  while (dir != NULL && (name = g_dir_read_name (dir)) != NULL)
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);

      g_remove (path);
    }
  if (dir != NULL)
    g_dir_close (dir);
  g_rmdir (folder);
}
