/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/mesh-runs.h"

#include "support/device.h"
#include "support/tensors.h"

#include <string.h>

#define LEARNING_RATE 3e-4
#define SEED 7

/* -- making -------------------------------------------------------------------------------------------------------- */

static gboolean
parallelize (TestMeshRun *self, GError **error)
{
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (self->settings->n_tensor <= 1)
    return TRUE;
  g_object_set (options, "sequence-parallel", self->settings->sequence_parallel, NULL);
  same = ebb_parallelize (self->model, self->tensor, options, error);
  g_assert_true (same == NULL || same == self->model);
  return same != NULL;
}

static gboolean
wrap (TestMeshRun *self, GError **error)
{
  const TestMesh *settings = self->settings;
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (settings->split == TEST_MESH_REPLICATED)
    {
      same = ebb_replicate (self->model, self->data, NULL, error);
      return same != NULL;
    }
  g_object_set (options, "flatten", settings->split == TEST_MESH_FLAT, NULL);
  if (settings->split == TEST_MESH_HYBRID)
    g_object_set (options, "replicate-group", ebb_mesh_get_group (self->mesh, "replica"), NULL);
  if (settings->compute_dtype != EBB_DTYPE_F32
      && !ebb_fully_shard_options_set_compute_dtype (options, settings->compute_dtype, error))
    return FALSE;
  return ebb_fully_shard_wrap_each (self->model, EBB_TYPE_TRANSFORMER_BLOCK,
                                    settings->split == TEST_MESH_HYBRID ? ebb_mesh_get_group (self->mesh, "shard")
                                                                        : self->data,
                                    options, error);
}

static gboolean
checkpoint (TestMeshRun *self, TestMeshCheckpoint place, GError **error)
{
  return self->settings->checkpoint != place
         || ebb_checkpoint_wrap_each (self->model, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error);
}

gboolean
test_mesh_run_start (TestMeshRun *self, const TestMesh *settings, EbbProcessGroup *group, GError **error)
{
  static const char *const names[] = { "replica", "shard", "tensor" };
  const gint64 sizes[] = { -1, settings->split == TEST_MESH_HYBRID ? 2 : 1, MAX (settings->n_tensor, 1) };

  *self = (TestMeshRun){ .settings = settings, .mesh = ebb_mesh_new (group, names, sizes, 3, error) };
  if (self->mesh == NULL)
    return FALSE;
  self->data = ebb_process_group_split (group, ebb_mesh_get_coordinate (self->mesh, "tensor"), error);
  if (self->data == NULL)
    return FALSE;
  self->tensor = ebb_mesh_get_group (self->mesh, "tensor");
  self->model = test_ranks_model (2, settings->dropout, SEED);
  if (!parallelize (self, error) || !checkpoint (self, TEST_MESH_CHECKPOINT_INSIDE, error) || !wrap (self, error)
      || !checkpoint (self, TEST_MESH_CHECKPOINT_OUTSIDE, error))
    return FALSE;
  self->optimizer = ebb_adamw_new (self->model, LEARNING_RATE, error);
  if (self->optimizer == NULL || !ebb_optimizer_exclude_from_decay (self->optimizer, error))
    return FALSE;
  g_object_set (self->optimizer, "moment-format", settings->moments, NULL);
  return ebb_model_parallel_manual_seed (SEED, G_OBJECT (self->mesh), error);
}

void
test_mesh_run_clear (TestMeshRun *self)
{
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  g_clear_object (&self->data);
  g_clear_object (&self->mesh);
}

/* -- steps --------------------------------------------------------------------------------------------------------- */

/* Adds the loss of this data rank's rows to @loss. All ranks have as many. */
static gboolean
run_pass (TestMeshRun *self, guint step, guint pass, double *loss, GError **error)
{
  const guint n_data = ebb_process_group_get_size (self->data), n_passes = MAX (self->settings->n_passes, 1);
  const gint64 n_rows = TEST_RANKS_ROWS / (n_data * n_passes);
  const gint64 first = TEST_RANKS_ROWS / n_passes * pass + n_rows * ebb_process_group_get_rank (self->data);
  g_autoptr (EbbTensor) mean = test_ranks_loss (self->model, step, first, n_rows, error);
  g_autoptr (EbbTensor) weighted = NULL;
  double value;

  if (mean == NULL || !ebb_tensor_get_item (mean, &value, error))
    return FALSE;
  *loss += value / n_passes;
  weighted = n_passes == 1 ? ebb_tensor_ref (mean) : ebb_mul_scalar (mean, 1.0 / n_passes, error);
  g_clear_pointer (&mean, ebb_tensor_unref);
  return weighted != NULL && ebb_tensor_backward (weighted, error);
}

/* In bits: f32 would lose some. */
static gboolean
gather_doubles (EbbProcessGroup *group, double value, double *values, GError **error)
{
  const gint64 n = sizeof value;
  g_autoptr (EbbTensor) own = ebb_tensor_new_empty (&n, 1, EBB_DTYPE_U8, ebb_device_get_cpu (), error);
  g_autoptr (EbbTensor) all = NULL;

  if (own == NULL)
    return FALSE;
  memcpy (ebb_tensor_get_data (own, NULL), &value, sizeof value);
  all = ebb_process_group_all_gather (group, own, error);
  if (all != NULL)
    memcpy (values, ebb_tensor_get_data (all, NULL), ebb_tensor_get_n_bytes (all));
  return all != NULL;
}

/* The mean over data ranks; tensor-parallel ranks have the same to the bit. */
static gboolean
average (TestMeshRun *self, double value, double *mean, GError **error)
{
  g_autofree double *parts = g_new (double, ebb_process_group_get_size (self->tensor));
  g_autofree double *values = g_new (double, ebb_process_group_get_size (self->data));

  if (!gather_doubles (self->tensor, value, parts, error) || !gather_doubles (self->data, value, values, error))
    return FALSE;
  *mean = 0;
  for (guint r = 0; r < ebb_process_group_get_size (self->tensor); r++)
    g_assert_cmpmem (&parts[r], sizeof (double), &value, sizeof (double));
  for (guint r = 0; r < ebb_process_group_get_size (self->data); r++)
    *mean += values[r] / ebb_process_group_get_size (self->data);
  return TRUE;
}

gboolean
test_mesh_run_step (TestMeshRun *self, guint step, double *loss, double *norm, GError **error)
{
  const guint n_passes = MAX (self->settings->n_passes, 1);
  double own = 0;
  gboolean ok = TRUE;

  *norm = 0;
  ebb_process_group_reset_counters (self->data);
  ebb_process_group_reset_counters (self->tensor);
  ebb_optimizer_zero_grad (self->optimizer);
  for (guint pass = 0; ok && pass < n_passes; pass++)
    {
      if (pass + 1 < n_passes)
        ebb_push_gradient_sync (FALSE);
      ok = run_pass (self, step, pass, &own, error);
      if (pass + 1 < n_passes)
        ebb_pop_gradient_sync ();
    }
  if (ok && self->settings->max_norm > 0)
    ok = test_clip_grad (self->optimizer, self->settings->max_norm, 2, norm, error);
  return ok && ebb_optimizer_step (self->optimizer, error) && average (self, own, loss, error);
}

gboolean
test_mesh_run_hash (TestMeshRun *self, guint64 *hash, GError **error)
{
  g_autoptr (EbbArgs) state = ebb_get_full_state_dict (self->model, FALSE, error);

  if (state == NULL)
    return FALSE;
  *hash = G_GUINT64_CONSTANT (0xcbf29ce484222325);
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (state, i);
      const guint8 *bytes = ebb_tensor_get_data (tensor, error);

      for (gsize j = 0; j < ebb_tensor_get_n_bytes (tensor); j++)
        *hash = (*hash ^ bytes[j]) * G_GUINT64_CONSTANT (0x100000001b3);
    }
  return TRUE;
}

/* -- on threads ---------------------------------------------------------------------------------------------------- */

typedef struct
{
  const TestMesh *settings;
  guint n_steps;
  TestRanksResult *result;
  guint64 *n_data_calls;
} Training;

static gboolean
train_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Training *training = user_data;
  TestRanksResult *result = training->result;
  const guint rank = ebb_process_group_get_rank (group);
  g_auto (TestMeshRun) run = { NULL };

  if (!test_mesh_run_start (&run, training->settings, group, error))
    return FALSE;
  for (guint step = 0; step < training->n_steps; step++)
    {
      double loss, norm;

      if (!test_mesh_run_step (&run, step, &loss, &norm, error))
        return FALSE;
      if (rank != 0)
        continue;
      result->losses[step] = loss;
      result->norms[step] = norm;
      for (guint i = 0; i < EBB_N_COLLECTIVES; i++)
        {
          result->n_calls[i] = ebb_process_group_get_n_calls (run.tensor, (EbbCollective) i);
          training->n_data_calls[i] = ebb_process_group_get_n_calls (run.data, (EbbCollective) i);
        }
    }
  return test_mesh_run_hash (&run, &result->hashes[rank], error);
}

TestRanksResult *
test_mesh_train (const TestMesh *settings, guint n_data, guint n_steps, guint64 n_data_calls[EBB_N_COLLECTIVES])
{
  const guint n_ranks = n_data * MAX (settings->n_tensor, 1);
  guint64 ignored[EBB_N_COLLECTIVES];
  TestRanksResult *result = g_new0 (TestRanksResult, 1);
  Training training = { settings, n_steps, result, n_data_calls != NULL ? n_data_calls : ignored };

  result->n_steps = n_steps;
  result->n_ranks = n_ranks;
  result->losses = g_new0 (double, n_steps);
  result->norms = g_new0 (double, n_steps);
  result->hashes = g_new0 (guint64, n_ranks);
  test_ranks_run (n_ranks, train_rank, &training);
  for (guint r = 1; r < n_ranks; r++)
    g_assert_cmphex (result->hashes[r], ==, result->hashes[0]);
  return result;
}
