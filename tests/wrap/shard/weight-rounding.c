/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/gpt-step.h"
#include "support/ranks.h"
#include "support/tensors.h"

#include <ebb/ebb.h>

/* bf16 weights that are rounded at random: an element draws by its place in the full parameter, so that sharded weights
 * are those of one rank, bit for bit, however they are sharded. All ranks have the same rows, and gradients are reduced
 * in f32: their mean over two or four ranks is exact. */

#define VOCAB 29
#define N_STEPS 3

typedef enum
{
  WHOLE,
  ROWS,
  FLAT,
  HYBRID,
  REPLICATED
} Split;

typedef struct
{
  EbbMomentFormat format;
  Split split;
  gboolean in_backward;
  EbbArgs *expected; /* the state dict of one rank */
} Run;

static void
wrap (EbbModule *gpt,
      const Run *run,
      EbbProcessGroup *group,
      GError **error)
{
  static const char *const names[] = { "data", "shard" };
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbMesh) mesh = NULL;
  g_autoptr (EbbModule) same = NULL;

  if (run->split == REPLICATED)
    {
      same = ebb_replicate (gpt, group, NULL, error);
      return;
    }
  g_assert_true (ebb_fully_shard_options_set_reduce_dtype (options, EBB_DTYPE_F32, error));
  g_object_set (options, "flatten", run->split == FLAT, NULL);
  if (run->split == HYBRID)
    {
      mesh = ebb_mesh_new (group, names, (const gint64[]){ 2, 2 }, 2, error);
      g_object_set (options, "replicate-group", ebb_mesh_get_group (mesh, "data"), NULL);
      group = ebb_mesh_get_group (mesh, "shard");
    }
  ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, error);
}

/* The full weights after some steps, in f32. */
static EbbArgs *
train (const Run *run,
       EbbProcessGroup *group,
       GError **error)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;

  ebb_push_parameter_dtype (EBB_DTYPE_BF16);
  gpt = test_gpt_step_model (2, 0);
  ebb_pop_parameter_dtype ();
  if (run->split != WHOLE)
    wrap (gpt, run, group, error);
  optimizer = ebb_adamw_new (gpt, 1e-2, error);
  g_object_set (optimizer, "moment-format", run->format, "weight-rounding", EBB_WEIGHT_ROUNDING_RANDOM,
                "step-in-backward", run->in_backward, NULL);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  for (int step = 0; step < N_STEPS; step++)
    {
      g_autoptr (EbbTensor) tokens = test_tokens (100 + (guint64) step, VOCAB, 3, TEST_GPT_CONTEXT, -1);
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, error);

      if (!ebb_tensor_backward (loss, error) || !ebb_optimizer_step (optimizer, error))
        break;
      ebb_optimizer_zero_grad (optimizer);
    }
  ebb_pop_autocast ();
  return ebb_get_full_state_dict (gpt, FALSE, error);
}

static gboolean
compare (EbbProcessGroup *group,
         gpointer user_data,
         GError **error)
{
  const Run *run = user_data;
  g_autoptr (EbbArgs) state = train (run, group, error);

  if (state == NULL)
    return FALSE;
  g_assert_cmpuint (ebb_args_get_length (state), ==, ebb_args_get_length (run->expected));
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) a = ebb_args_get_tensor (state, i);
      g_autoptr (EbbTensor) b = ebb_args_get_tensor (run->expected, i);

      if (!ebb_tensor_equal (a, b))
        g_error ("%s differs on %u ranks", ebb_args_get_key (state, i), ebb_process_group_get_size (group));
    }
  return TRUE;
}

static void
check (Split split,
       gboolean in_backward)
{
  for (int format = EBB_MOMENT_FORMAT_F32; format <= EBB_MOMENT_FORMAT_BF16; format++)
    {
      g_autoptr (GError) error = NULL;
      Run run = { .format = (EbbMomentFormat) format };

      run.expected = train (&run, NULL, &error);
      g_assert_no_error (error);
      run.split = split;
      run.in_backward = in_backward;
      if (split != HYBRID)
        test_ranks_run (2, compare, &run);
      test_ranks_run (4, compare, &run);
      ebb_args_unref (run.expected);
    }
}

static void
shards_by_rows_have_the_bits_of_one_rank (void)
{
  check (ROWS, FALSE);
}

static void
flat_shards_have_the_bits_of_one_rank (void)
{
  check (FLAT, FALSE);
}

static void
hybrid_shards_have_the_bits_of_one_rank (void)
{
  check (HYBRID, FALSE);
}

static void
shards_that_step_in_backward_have_them (void)
{
  check (ROWS, TRUE);
}

/* Replicas average in bf16, and so the gradient of the embedding differs from one rank's, but not between ranks. */
static gboolean
compare_replicas (EbbProcessGroup *group,
                  gpointer user_data,
                  GError **error)
{
  g_autoptr (EbbArgs) state = train (user_data, group, error);

  for (guint i = 0; state != NULL && i < ebb_args_get_length (state); i++)
    {
      g_autoptr (EbbTensor) own = ebb_args_get_tensor (state, i);
      g_autoptr (EbbTensor) flat = ebb_reshape (own, (const gint64[]){ ebb_tensor_get_n_elements (own) }, 1, error);
      g_autoptr (EbbTensor) wide = ebb_cast (flat, EBB_DTYPE_F32, error);
      g_autoptr (EbbTensor) first = ebb_copy (wide, error);

      g_assert_cmpint (ebb_tensor_get_dtype (own), ==, EBB_DTYPE_BF16);
      if (!ebb_process_group_broadcast (group, first, 0, error))
        return FALSE;
      g_assert_true (ebb_tensor_equal (first, wide));
    }
  return state != NULL;
}

static void
replicas_stay_equal (void)
{
  Run run = { .format = EBB_MOMENT_FORMAT_EIGHT_BIT, .split = REPLICATED };

  test_ranks_run (2, compare_replicas, &run);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/weight-rounding/shards-by-rows-have-the-bits-of-one-rank",
                   shards_by_rows_have_the_bits_of_one_rank);
  g_test_add_func ("/weight-rounding/flat-shards-have-the-bits-of-one-rank", flat_shards_have_the_bits_of_one_rank);
  g_test_add_func ("/weight-rounding/hybrid-shards-have-the-bits-of-one-rank", hybrid_shards_have_the_bits_of_one_rank);
  g_test_add_func ("/weight-rounding/shards-that-step-in-backward-have-them", shards_that_step_in_backward_have_them);
  g_test_add_func ("/weight-rounding/replicas-stay-equal", replicas_stay_equal);
  return g_test_run ();
}
