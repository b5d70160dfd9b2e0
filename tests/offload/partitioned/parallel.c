/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include "support/device.h"
#include "support/partitions.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"

#include <string.h>

/* Checkpointed inputs of blocks that ranks share, in pieces: losses and gradients are those without, to the bit. */

#define N_LAYERS 3

typedef struct
{
  gboolean is_divided; /* inputs are kept in pieces */
  TestBehind behind;
  gboolean checks_values;
} Keeping;

static gboolean
checkpoint_blocks (const TestParallel *self,
                   EbbModule *model,
                   EbbProcessGroup *group,
                   GError **error)
{
  const Keeping *keeping = self->data;
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbSavedTensorHooks) store =
      keeping->is_divided ? test_partitioned_store_new (group, keeping->behind) : NULL;

  ebb_checkpoint_options_set_store (options, store);
  if (keeping->checks_values)
    g_object_set (options, "determinism-check", EBB_DETERMINISM_CHECK_VALUES, NULL);
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error);
}

typedef struct
{
  const char *name;
  TestParallel settings;
  guint n_inputs; /* of a block */
} Case;

static const Case cases[] = {
  { "gpt-2", { .n_ranks = 2, .n_layers = N_LAYERS, .n_passes = 2, .dropout = 0.1 }, 1 },
  { "gpt-4", { .n_ranks = 4, .n_layers = N_LAYERS, .n_passes = 2, .dropout = 0.1 }, 1 },
  { "gpt-bf16-4", { .n_ranks = 4, .n_layers = N_LAYERS, .n_passes = 2, .dropout = 0.1, .is_bf16 = TRUE }, 1 },
  { "bert-2", { .n_ranks = 2, .n_layers = N_LAYERS, .n_passes = 2, .dropout = 0.1, .is_bert = TRUE }, 1 },
};

static void
partition_changes_no_bit (gconstpointer data)
{
  static const TestBehind behind[] = { TEST_BEHIND_NOTHING, TEST_BEHIND_CONTIGUOUS_HOST, TEST_BEHIND_DISK };
  const Case *test = data;

  for (guint i = 0; i < G_N_ELEMENTS (behind); i++)
    {
      const Keeping whole = { FALSE }, divided = { TRUE, behind[i], i % 2 == 1 };
      TestParallel settings = test->settings;
      g_autoptr (TestParallelResult) a = NULL;
      g_autoptr (TestParallelResult) b = NULL;

      settings.prepare = checkpoint_blocks;
      settings.data = &whole;
      a = test_parallel_run (&settings);
      settings.data = &divided;
      b = test_parallel_run (&settings);
      test_parallel_assert_same (a, b);
      for (guint k = 0; k < EBB_N_COLLECTIVES; k++)
        g_assert_cmpuint (b->n_calls[k], ==,
                          a->n_calls[k]
                              + (k == EBB_COLLECTIVE_ALL_GATHER ? settings.n_passes * N_LAYERS * test->n_inputs : 0));
    }
}

/* -- sequence parallel --------------------------------------------------------------------------------------------- */

static gboolean
run_sequence_parallel (EbbProcessGroup *group,
                       gpointer user_data,
                       GError **error)
{
  const Keeping divided = { TRUE, TEST_BEHIND_NOTHING, FALSE };
  const TestParallel settings = { .n_ranks = 2,
                                  .n_layers = N_LAYERS,
                                  .is_sequence_parallel = TRUE,
                                  .data = &divided };
  g_autoptr (EbbModule) gpt = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) refused = NULL;

  if (gpt == NULL || !test_parallel_divide (&settings, gpt, group, error)
      || !checkpoint_blocks (&settings, gpt, group, error))
    return FALSE;
  loss = test_parallel_loss (&settings, gpt, 0, &refused);
  g_assert_null (loss);
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "argument 0", "checkpoint", "f32 [4, 8, 32]",
                     "one rank's part", "sequence parallelism leave partitioning out");
  /* Off, as for sampling, the input is whole. */
  if (!ebb_parallel_set_sequence_parallel (gpt, FALSE, error))
    return FALSE;
  loss = test_parallel_loss (&settings, gpt, 0, error);
  return loss != NULL && ebb_tensor_backward (loss, error);
}

static void
a_sequence_parallel_input_is_refused (void)
{
  test_ranks_run (2, run_sequence_parallel, NULL);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_get_tmp_dir (); /* made once, before there are threads */
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strconcat ("/partitioned/changes-no-bit/", cases[i].name, NULL);

      g_test_add_data_func (path, &cases[i], partition_changes_no_bit);
    }
  g_test_add_func ("/partitioned/a-sequence-parallel-input-is-refused", a_sequence_parallel_input_is_refused);
  return g_test_run ();
}
