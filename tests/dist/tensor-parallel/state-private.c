/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers long-sim */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/sharding.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/autograd/parameter-owner-private.h"
#include "wrap/shard/state/state-private.h"

#include <math.h>

/* State and norms of parameters that are cut by hand among tensor-parallel ranks, and shared out among data ranks
 * besides, against those of the whole. */

#define N_STEPS 3
#define N_PARAMETERS 6

/* How each parameter is cut: one along its columns, two in three sections, one unevenly, so that the ranks' parts have
 * other numbers of blocks of moments, and two not at all. */
static const struct
{
  const char *name;
  guint n_dims;
  gint64 shape[2];
  gboolean is_cut;
  guint dim, n_sections;
} parameters[N_PARAMETERS] = {
  { "0.weight", 2, { 12, 8 }, TRUE, 0, 3 },
  { "0.bias", 1, { 12 }, TRUE, 0, 3 },
  { "1.weight", 2, { 8, 12 }, TRUE, 1, 1 },
  { "1.bias", 1, { 8 }, FALSE, 0, 1 },
  { "2.weight", 2, { 2049, 8 }, TRUE, 0, 1 },
  { "2.bias", 1, { 2049 }, FALSE, 0, 1 },
};

typedef struct
{
  EbbModule *model;
  EbbOptimizer *optimizer;
  EbbMesh *mesh;
  EbbTensor *tensors[N_PARAMETERS];
  EbbPartition partitions[N_PARAMETERS];
} Model;

static const double norm_types[] = { 1, 2, 3, INFINITY };
#define N_NORMS G_N_ELEMENTS (norm_types)

typedef struct
{
  guint n_tensor;
  TestSplit split; /* among data ranks; TEST_SPLIT_NONE: they are replicas */
  gint64 moment_format;
  const char *folder;
  EbbArgs *state, *optimizer; /* of the whole */
  double norms[N_NORMS];      /* by each of norm_types */
} Case;

static void
model_clear (Model *self)
{
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  for (guint i = 0; i < N_PARAMETERS; i++)
    if (self->tensors[i] != NULL)
      {
        self->tensors[i]->partition = NULL;
        ebb_tensor_unref (self->tensors[i]);
      }
  g_clear_object (&self->mesh);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Model, model_clear)

static gboolean
reduce_over_ranks (EbbPartition *partition, EbbReduceKind op, EbbTensor *values, GError **error)
{
  return ebb_process_group_reduce_norms (partition->ranks, op, values, "a norm over shards", error);
}

static const EbbPartitionFuncs partition_funcs = { reduce_over_ranks };

/* The parameter becomes this rank's part. */
static void
cut (Model *self, guint i, EbbProcessGroup *ranks)
{
  EbbPartition *partition = &self->partitions[i];
  EbbTensor *tensor = self->tensors[i];
  g_autoptr (EbbTensor) whole = ebb_tensor_alias (tensor);
  g_autoptr (EbbTensor) part = NULL;
  g_autoptr (EbbTensor) moved = NULL;
  g_autoptr (GError) error = NULL;
  EbbLocalShard shard;

  *partition = (EbbPartition){
    .funcs = &partition_funcs,
    .ranks = ranks,
    .n_parts = ebb_process_group_get_size (ranks),
    .index = ebb_process_group_get_rank (ranks),
    .dim = parameters[i].dim,
    .n_sections = parameters[i].n_sections,
    .n_dims = parameters[i].n_dims,
    .shape = { parameters[i].shape[0], parameters[i].shape[1] },
  };
  tensor->partition = partition;
  ebb_local_shard_init (&shard, tensor);
  if (shard.ranks != NULL)
    {
      gint64 shape[] = { shard.shape[0], shard.shape[1] };

      shape[shard.split.dim] = ebb_shard_slice_count (&shard.slice) * shape[shard.split.dim] / shard.n_elements;
      shard.slice_shape = shape;
      shard.end = ebb_shard_slice_count (&shard.slice);
      part = ebb_local_shard_extract (&shard, whole, &error);
      g_assert_no_error (error);
      moved = ebb_to_device (part, tensor->storage->device, &error);
      ebb_tensor_swap_storage (tensor, moved);
      tensor->is_local_shard = TRUE;
    }
}

static void
model_init (Model *self, EbbProcessGroup *group, const Case *it, guint64 seed)
{
  static const char *const names[] = { "data", "tensor" };
  const gint64 sizes[] = { -1, it->n_tensor };
  g_autoptr (GError) error = NULL;
  EbbProcessGroup *data;

  *self = (Model){ NULL };
  self->mesh = ebb_mesh_new (group, names, sizes, 2, &error);
  g_assert_no_error (error);
  data = ebb_mesh_get_group (self->mesh, "data");
  self->model =
      test_chain_new (test_linear (seed, 8, 12), test_linear (seed + 1, 12, 8), test_linear (seed + 2, 8, 2049), NULL);
  for (guint i = 0; i < N_PARAMETERS; i++)
    {
      g_autoptr (EbbModule) child = ebb_module_get_child (self->model, (char[]){ parameters[i].name[0], '\0' });

      self->tensors[i] = ebb_module_get_parameter (child, parameters[i].name + 2);
      if (parameters[i].is_cut)
        cut (self, i, ebb_mesh_get_group (self->mesh, "tensor"));
    }
  if (it->split == TEST_SPLIT_NONE)
    {
      g_autoptr (EbbModule) same = ebb_replicate (self->model, data, NULL, &error);

      g_assert_no_error (error);
    }
  else
    test_shard_children (self->model, data, it->split == TEST_SPLIT_FLAT);
  self->optimizer = ebb_adamw_new (self->model, 1e-2, &error);
  g_assert_no_error (error);
  g_object_set (self->optimizer, "moment-format", (int) it->moment_format, NULL);
}

/* The same gradients on any ranks. */
static void
set_gradients (Model *self, guint step)
{
  for (guint i = 0; i < N_PARAMETERS; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) whole =
          parameters[i].n_dims == 2
              ? test_randn (100 * step + i, parameters[i].shape[0], parameters[i].shape[1], -1)
              : test_randn (100 * step + i, parameters[i].shape[0], -1);
      g_autoptr (EbbTensor) part = NULL;
      g_autoptr (EbbTensor) own = NULL;
      EbbLocalShard shard;

      ebb_local_shard_init (&shard, self->tensors[i]);
      part = ebb_local_shard_extract (&shard, whole, &error);
      g_assert_no_error (error);
      own = ebb_to_device (part, shard.tensor->storage->device, &error);
      if (own == part)
        {
          ebb_tensor_unref (own);
          own = ebb_copy (part, &error);
        }
      ebb_tensor_set_grad (self->tensors[i], own, &error);
      g_assert_no_error (error);
    }
}

static void
train (Model *self)
{
  for (guint step = 0; step < N_STEPS; step++)
    {
      g_autoptr (GError) error = NULL;

      set_gradients (self, step);
      ebb_optimizer_step (self->optimizer, &error);
      g_assert_no_error (error);
    }
}

static void
case_clear (Case *it)
{
  g_clear_pointer (&it->state, ebb_args_unref);
  g_clear_pointer (&it->optimizer, ebb_args_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Case, case_clear)

static void
case_init (Case *it)
{
  const Case whole = { .n_tensor = 1 };
  g_auto (Model) model = { NULL };
  g_autoptr (GError) error = NULL;

  *it = (Case){ .n_tensor = 1 };
  model_init (&model, ebb_process_group_get_default (), &whole, 1);
  train (&model);
  it->state = ebb_get_full_state_dict (model.model, FALSE, &error);
  g_assert_no_error (error);
  it->optimizer = ebb_get_full_optimizer_state (model.optimizer, FALSE, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < N_NORMS; i++)
    {
      set_gradients (&model, N_STEPS);
      test_clip_grads_of (model.tensors, N_PARAMETERS, 1, norm_types[i], &it->norms[i], &error);
      g_assert_no_error (error);
    }
}

static gboolean
check_whole (const Case *it, Model *model, GError **error)
{
  g_autoptr (EbbArgs) state = ebb_get_full_state_dict (model->model, FALSE, error);
  g_autoptr (EbbArgs) optimizer = state != NULL ? ebb_get_full_optimizer_state (model->optimizer, FALSE, error) : NULL;

  return optimizer != NULL && test_same_dicts (state, it->state, error)
         && test_same_dicts (optimizer, it->optimizer, error);
}

/* -- whole --------------------------------------------------------------------------------------------------------- */

static gboolean
get_and_load (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *it = user_data;
  gboolean is_first = ebb_process_group_get_rank (group) == 0;
  g_auto (Model) model = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) optimizer = NULL;

  model_init (&model, group, it, 1);
  g_assert_cmpuint (ebb_module_count_parameters (model.model), ==, 12 * 8 + 12 + 8 * 12 + 8 + 2049 * 8 + 2049);
  train (&model);
  if (!check_whole (it, &model, error))
    return FALSE;
  state = ebb_get_full_state_dict (model.model, TRUE, error);
  optimizer = state != NULL ? ebb_get_full_optimizer_state (model.optimizer, TRUE, error) : NULL;
  if (optimizer == NULL)
    return FALSE;
  g_assert_cmpint (ebb_args_get_length (state) > 0, ==, is_first);
  g_assert_cmpint (ebb_args_get_length (optimizer) > 0, ==, is_first);
  for (int broadcast = 0; broadcast < 2; broadcast++)
    {
      g_auto (Model) other = { NULL };

      model_init (&other, group, it, 50);
      if (!ebb_load_full_state_dict (other.model, !broadcast || is_first ? it->state : NULL, broadcast, TRUE, error)
          || !ebb_load_full_optimizer_state (other.optimizer, !broadcast || is_first ? it->optimizer : NULL, broadcast,
                                             error)
          || !check_whole (it, &other, error))
        return FALSE;
    }
  return TRUE;
}

static const struct
{
  guint n_data, n_tensor;
} grids[] = { { 1, 2 }, { 1, 3 }, { 1, 4 }, { 2, 2 }, { 2, 1 }, { 1, 1 }, { 3, 2 } };

/* The mean of three equal gradients may be another one by a bit. */
static gboolean
is_exact (guint grid, int split)
{
  return grids[grid].n_data != 3 || split != TEST_SPLIT_NONE;
}

static void
test_whole (void)
{
  g_auto (Case) it = { 0 };

  case_init (&it);
  for (guint g = 0; g < G_N_ELEMENTS (grids); g++)
    for (int split = 0; split < TEST_N_SPLITS; split++)
      {
        if (!is_exact (g, split))
          continue;
        it.n_tensor = grids[g].n_tensor;
        it.split = (TestSplit) split;
        test_run_ranks (grids[g].n_data * grids[g].n_tensor, get_and_load, &it);
      }
}

/* -- in parts ------------------------------------------------------------------------------------------------------ */

static gboolean
save (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *it = user_data;
  g_auto (Model) model = { NULL };

  model_init (&model, group, it, 1);
  train (&model);
  return ebb_save_sharded_state (model.model, model.optimizer, it->folder, error);
}

static gboolean
load (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *it = user_data;
  g_auto (Model) model = { NULL };

  model_init (&model, group, it, 50);
  return ebb_load_sharded_state (model.model, model.optimizer, it->folder, error)
         && (it->moment_format != EBB_MOMENT_FORMAT_F32 || check_whole (it, &model, error));
}

static void
test_parts (void)
{
  g_auto (Case) it = { 0 };

  case_init (&it);
  for (guint g = 0; g < G_N_ELEMENTS (grids); g++)
    for (int split = 0; split < TEST_N_SPLITS; split++)
      {
        g_autofree char *folder = NULL;

        if (!is_exact (g, split))
          continue;
        it.folder = folder = test_make_folder ();
        it.n_tensor = grids[g].n_tensor;
        it.split = (TestSplit) split;
        test_run_ranks (grids[g].n_data * grids[g].n_tensor, save, &it);
        for (guint h = 0; h < G_N_ELEMENTS (grids); h++)
          {
            it.n_tensor = grids[h].n_tensor;
            it.split = (TestSplit) ((split + h) % TEST_N_SPLITS);
            test_run_ranks (grids[h].n_data * grids[h].n_tensor, load, &it);
          }
        test_remove_folder (folder);
      }
}

/* -- norms --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  const Case *it;
  double norms[N_NORMS][6];
  guint64 hashes[6];
} Norms;

static gboolean
clip (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Norms *norms = user_data;
  g_auto (Model) model = { NULL };

  model_init (&model, group, norms->it, 1);
  train (&model);
  for (guint i = 0; i < N_NORMS; i++)
    {
      EbbProcessGroup *data = ebb_mesh_get_group (model.mesh, "data");
      EbbProcessGroup *tensor = ebb_mesh_get_group (model.mesh, "tensor");
      double *norm = &norms->norms[i][ebb_process_group_get_rank (group)], after;

      set_gradients (&model, N_STEPS);
      ebb_process_group_reset_counters (data);
      ebb_process_group_reset_counters (tensor);
      if (!test_clip_grads_of (model.tensors, N_PARAMETERS, 1, norm_types[i], norm, error))
        return FALSE;
      g_assert_cmpuint (ebb_process_group_get_n_calls (data, EBB_COLLECTIVE_ALL_GATHER), <=, 1);
      g_assert_cmpuint (ebb_process_group_get_n_calls (tensor, EBB_COLLECTIVE_ALL_GATHER), <=, 1);
      if (!test_clip_grads_of (model.tensors, N_PARAMETERS, 1, norm_types[i], &after, error))
        return FALSE;
      g_assert_cmpfloat_with_epsilon (after, 1, 1e-5);
    }
  return TRUE;
}

static void
test_norms (void)
{
  g_auto (Case) it = { 0 };

  case_init (&it);
  for (guint g = 0; g < G_N_ELEMENTS (grids); g++)
    for (int split = 0; split < TEST_N_SPLITS; split++)
      {
        const guint n = grids[g].n_data * grids[g].n_tensor;
        Norms norms = { .it = &it };

        it.n_tensor = grids[g].n_tensor;
        it.split = (TestSplit) split;
        test_run_ranks (n, clip, &norms);
        for (guint i = 0; i < N_NORMS; i++)
          {
            g_assert_cmpfloat_with_epsilon (norms.norms[i][0], it.norms[i], 1e-6 * it.norms[i]);
            for (guint r = 1; r < n; r++)
              g_assert_cmpmem (&norms.norms[i][r], sizeof (double), &norms.norms[i][0], sizeof (double));
          }
      }
}

/* Moments of few bits are rounded by chance, but where ranks have the same parameter, by the same. */
static gboolean
round_moments (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Norms *norms = user_data;
  guint64 hash = G_GUINT64_CONSTANT (0xcbf29ce484222325);
  g_auto (Model) model = { NULL };
  g_autoptr (EbbArgs) state = NULL;

  model_init (&model, group, norms->it, 1);
  train (&model);
  state = ebb_get_full_state_dict (model.model, FALSE, error);
  for (guint i = 0; state != NULL && i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (state, i);
      const guint8 *bytes = ebb_tensor_get_data (tensor, error);

      for (gsize j = 0; j < ebb_tensor_get_n_bytes (tensor); j++)
        hash = (hash ^ bytes[j]) * G_GUINT64_CONSTANT (0x100000001b3);
    }
  norms->hashes[ebb_process_group_get_rank (group)] = hash;
  return state != NULL;
}

static void
test_rounding (void)
{
  static const EbbMomentFormat formats[] = { EBB_MOMENT_FORMAT_BF16, EBB_MOMENT_FORMAT_EIGHT_BIT };

  for (guint f = 0; f < G_N_ELEMENTS (formats); f++)
    for (int split = 0; split < TEST_N_SPLITS; split++)
      {
        const Case it = { .n_tensor = 2, .split = (TestSplit) split, .moment_format = formats[f] };
        Norms norms = { .it = &it };

        test_run_ranks (4, round_moments, &norms);
        for (guint r = 1; r < 4; r++)
          g_assert_cmphex (norms.hashes[r], ==, norms.hashes[0]);
      }
}

/* -- refusals ------------------------------------------------------------------------------------------------------ */

static gboolean
get_whole_8bit (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case *it = user_data;
  g_auto (Model) model = { NULL };
  g_autoptr (EbbArgs) state = NULL;

  model_init (&model, group, it, 1);
  train (&model);
  state = ebb_get_full_optimizer_state (model.optimizer, FALSE, error);
  return state != NULL;
}

static void
test_8bit (void)
{
  g_autofree char *folder = test_make_folder ();
  Case it = { .n_tensor = 2, .folder = folder, .moment_format = EBB_MOMENT_FORMAT_EIGHT_BIT };
  g_autoptr (GError) error = NULL;

  for (int split = 0; split < TEST_N_SPLITS; split++)
    {
      it.n_tensor = 2;
      it.split = (TestSplit) split;
      test_run_ranks (4, save, &it);
      test_run_ranks (4, load, &it);
    }
  it.n_tensor = 4;
  ebb_run_ranks (4, load, &it, &error);
  test_assert_error (error, EBB_ERROR_STATE, "4 ranks, 2 of them tensor-parallel ones; here are 4 and 4");
  g_clear_error (&error);
  it.n_tensor = 2;
  ebb_run_ranks (2, get_whole_8bit, &it, &error);
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "there is no full state");
  test_remove_folder (folder);
}

/* Functions for one rank refuse such models and name the function for several. */
static gboolean
use_alone (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case it = { .n_tensor = 2 };
  g_auto (Model) model = { NULL };
  g_autoptr (EbbTrainingState) training = NULL;
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (GError) failure = NULL;

  model_init (&model, group, &it, 1);
  training = ebb_training_state_new (model.model, model.optimizer, NULL);
  state = ebb_module_get_state_dict (model.model);
  g_assert_false (ebb_module_load_state_dict (model.model, state, TRUE, &failure));
  test_assert_error (failure, EBB_ERROR_STATE, "ebb_load_full_state_dict");
  g_clear_error (&failure);
  g_assert_false (ebb_training_state_save (training, user_data, 1, &failure));
  test_assert_error (failure, EBB_ERROR_STATE, "ebb_training_state_save_sharded");
  g_clear_error (&failure);
  g_assert_false (ebb_training_state_load (training, user_data, NULL, &failure));
  test_assert_error (failure, EBB_ERROR_STATE, "ebb_training_state_load_sharded");
  g_clear_error (&failure);
  return ebb_module_to_dtype (model.model, EBB_DTYPE_BF16, error)
         && ebb_module_to_dtype (model.model, EBB_DTYPE_F32, error);
}

static void
test_alone (void)
{
  g_autofree char *folder = test_make_folder ();

  test_run_ranks (2, use_alone, folder);
  test_remove_folder (folder);
}

/* Among tensor-parallel ranks there is nothing to be averaged or shared out. */
static gboolean
wrap_wrong_ranks (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  const Case it = { .n_tensor = 2 };
  g_auto (Model) model = { NULL };
  g_autoptr (EbbModule) same = NULL;

  model_init (&model, group, &it, 1);
  ebb_replicate_unwrap (model.model);
  same = *(gboolean *) user_data ? ebb_replicate (model.model, group, NULL, error)
                                 : ebb_fully_shard (model.model, group, NULL, error);
  return same != NULL;
}

static void
test_wrong_ranks (void)
{
  for (gboolean replicates = FALSE; replicates <= TRUE; replicates++)
    {
      g_autoptr (GError) error = NULL;

      ebb_run_ranks (2, wrap_wrong_ranks, &replicates, &error);
      test_assert_error (error, EBB_ERROR_PROCESS_GROUP, "tensor-parallel part 2 of 2");
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/internal-parallel-state/whole-states-are-those-of-the-whole-model", test_whole);
  g_test_add_func ("/internal-parallel-state/what-is-saved-loads-on-any-mesh", test_parts);
  g_test_add_func ("/internal-parallel-state/norms-are-those-of-the-whole-gradients", test_norms);
  g_test_add_func ("/internal-parallel-state/what-ranks-have-alike-is-rounded-alike", test_rounding);
  g_test_add_func ("/internal-parallel-state/eight-bit-moments-want-the-same-parts", test_8bit);
  g_test_add_func ("/internal-parallel-state/what-is-for-one-rank-names-what-is-for-all", test_alone);
  g_test_add_func ("/internal-parallel-state/tensor-parallel-ranks-are-no-data-ranks", test_wrong_ranks);
  return g_test_run ();
}
