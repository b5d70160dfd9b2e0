/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

#include <string.h>

/* Models that are split over ranks, saved as folders. */

typedef struct
{
  const char *folder;
  gboolean is_bert;
  guint n_tensor; /* tensor ranks; the others are data ranks, which shard */
} Case;

/* The largest parameter, and all of them. */
static void
count_bytes (EbbArgs *state,
             guint64 *largest,
             guint64 *all)
{
  *largest = *all = 0;
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (state, i);

      *largest = MAX (*largest, ebb_tensor_get_n_bytes (tensor));
      *all += ebb_tensor_get_n_bytes (tensor);
    }
}

static guint64
get_total (gboolean peak)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (ebb_device_get_cpu ());

  return peak ? ebb_memory_stats_get_peak_total (stats) : ebb_memory_stats_get_total (stats);
}

static gboolean
save_on_rank (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  const Case *which = user_data;
  const TestParallel settings = { .is_bert = which->is_bert, .vocab = 29, .n_layers = 6 };
  const guint n_ranks = ebb_process_group_get_size (group);
  static const char *const names[] = { "data", "tensor" };
  const gint64 sizes[] = { n_ranks / which->n_tensor, which->n_tensor };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) whole = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) opened = NULL;
  g_autoptr (EbbArgs) expected = NULL;
  g_autoptr (EbbArgs) state = NULL;
  guint64 largest, all, before;

  if (mesh == NULL || whole == NULL
      || (which->n_tensor > 1
          && !test_parallel_divide (&settings, model, ebb_mesh_get_group (mesh, "tensor"), error))
      || (which->n_tensor < n_ranks
          && !ebb_fully_shard_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, ebb_mesh_get_group (mesh, "data"), NULL,
                                         error)))
    return FALSE;
  expected = ebb_module_get_state_dict (whole);
  count_bytes (expected, &largest, &all);
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  if (ebb_process_group_get_rank (group) == 0)
    ebb_memory_reset_peaks (ebb_device_get_cpu ());
  before = get_total (FALSE);
  if (!ebb_process_group_barrier (group, error) || !ebb_model_save_full (model, which->folder, -1, 20000, error)
      || !ebb_process_group_barrier (group, error))
    return FALSE;
  /* Ranks are threads here and share the account, which the first one reads. Each has its shard, the gathered shards
   * and the full tensor. */
  if (ebb_process_group_get_rank (group) == 0)
    g_assert_cmpuint (get_total (TRUE) - before, <=, n_ranks * 3 * largest + 2 * largest);
  g_assert_cmpuint (n_ranks * 3 * largest + 2 * largest, <, all);
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  opened = ebb_model_open (which->folder, error);
  if (opened == NULL)
    return FALSE;
  state = ebb_module_get_state_dict (opened);
  return test_same_dicts (state, expected, error);
}

static void
assert_saved (guint n_ranks,
              guint n_tensor,
              gboolean is_bert)
{
  g_autofree char *folder = test_make_folder ();
  Case which = { folder, is_bert, n_tensor };

  test_run_ranks (n_ranks, save_on_rank, &which);
  g_assert_cmpuint (test_count_files (folder, ".safetensors"), >, 5);
  test_remove_folder (folder);
}

static void
two_sharded_ranks_save_what_one_has (void)
{
  assert_saved (2, 1, FALSE);
}

static void
two_tensor_ranks_save_what_one_has (void)
{
  assert_saved (2, 2, FALSE);
  assert_saved (2, 2, TRUE);
}

static void
sharded_tensor_ranks_save_what_one_has (void)
{
  assert_saved (4, 2, FALSE);
}

typedef struct
{
  const char *folder, *decoder;
  EbbQuantization quantization;
} Quantized;

static gboolean
save_quantized_on_rank (EbbProcessGroup *group,
                        gpointer user_data,
                        GError **error)
{
  const Quantized *which = user_data;
  const TestParallel settings = { .decoder = which->decoder,
                                  .quantization = which->quantization,
                                  .width = 128,
                                  .is_full = ebb_process_group_get_size (group) == 1 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);

  return model != NULL && test_parallel_divide (&settings, model, group, error)
         && ebb_model_save (model, which->folder, error);
}

static void
assert_same_file (const char *folder,
                  const char *other,
                  const char *name)
{
  g_autofree char *path = g_build_filename (folder, name, NULL);
  g_autofree char *other_path = g_build_filename (other, name, NULL);
  g_autofree char *text = NULL;
  g_autofree char *other_text = NULL;
  gsize size, other_size;

  g_assert_true (g_file_get_contents (path, &text, &size, NULL));
  g_assert_true (g_file_get_contents (other_path, &other_text, &other_size, NULL));
  g_assert_cmpmem (text, size, other_text, other_size);
}

/* Codes and scales are gathered as they are: the files are those of one rank, byte for byte. */
static void
tensor_ranks_save_quantised_weights (void)
{
  static const Quantized cases[] = { { NULL, "llama3", EBB_QUANTIZATION_NF4 },
                                     { NULL, "llama3", EBB_QUANTIZATION_INT8 },
                                     { NULL, "phi3", EBB_QUANTIZATION_INT8 } };

  for (gsize i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *folder = test_make_folder ();
      g_autofree char *expected = test_make_folder ();
      Quantized one = cases[i], two = cases[i];

      one.folder = expected;
      two.folder = folder;
      test_run_ranks (1, save_quantized_on_rank, &one);
      test_run_ranks (2, save_quantized_on_rank, &two);
      assert_same_file (folder, expected, "model.safetensors");
      assert_same_file (folder, expected, "config.json");
      test_remove_folder (folder);
      test_remove_folder (expected);
    }
}

static gboolean
fail_on_rank (EbbProcessGroup *group,
              gpointer user_data,
              GError **error)
{
  const TestParallel settings = { .vocab = 29, .n_layers = 1 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (GError) failure = NULL;

  if (model == NULL || !ebb_fully_shard_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, group, NULL, error))
    return FALSE;
  g_assert_false (ebb_model_save (model, user_data, &failure));
  test_assert_error (failure, EBB_ERROR_IO, "/dev/null");
  return TRUE;
}

/* Rank 0 alone writes, and all of them fail with it. */
static void
a_failure_of_the_writer_reaches_all_ranks (void)
{
  test_run_ranks (2, fail_on_rank, (gpointer) "/dev/null/model");
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/model-folder/split/sharded-ranks", two_sharded_ranks_save_what_one_has);
  g_test_add_func ("/model-folder/split/tensor-ranks", two_tensor_ranks_save_what_one_has);
  g_test_add_func ("/model-folder/split/sharded-tensor-ranks", sharded_tensor_ranks_save_what_one_has);
  g_test_add_func ("/model-folder/split/quantised-tensor-ranks", tensor_ranks_save_quantised_weights);
  g_test_add_func ("/model-folder/split/failure-of-the-writer", a_failure_of_the_writer_reaches_all_ranks);
  return g_test_run ();
}
