/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "dist/tensor-parallel/partition-private.h"
#include "support/model-folders.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "support/training.h"
#include "tensor/tensor-private.h"

#include <string.h>

/* Adapted models on ranks: divided, replicated and sharded ones compute what one rank does, and send nothing of the
 * frozen base. */

#define TOLERANCE 2e-4 /* gradients of small branches are differences of large terms */
#define RANK 4

/* -- adapters ------------------------------------------------------------------------------------------------------ */

/* B is zero at first, which would leave A without a gradient; and ranks must draw one B, of which they have parts. */
static gboolean
draw_factor (EbbTensor *factor,
             EbbGenerator *generator,
             GError **error)
{
  const EbbPartition *partition = factor->partition;
  g_autoptr (EbbTensor) full = ebb_randn (partition != NULL ? partition->shape : factor->view.shape, 2, EBB_DTYPE_F32,
                                          ebb_tensor_get_device (factor), generator, error);
  g_autoptr (EbbTensor) scaled = ebb_mul_scalar (full, 0.2, error);
  g_autoptr (EbbTensor) part = partition != NULL && scaled != NULL ? ebb_partition_take (scaled, partition, error)
                                                                   : NULL;

  return scaled != NULL && ebb_tensor_copy_from (factor, part != NULL ? part : scaled, error);
}

static gboolean
add (EbbModule *model,
     const char *adapter,
     const char *const *targets,
     double dropout,
     GError **error)
{
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbGenerator) generator = ebb_generator_new (5);
  g_autoptr (EbbModule) same = NULL;
  guint n;
  g_autofree EbbTensor **parameters = NULL;
  gboolean ok;

  g_object_set (options, "rank", RANK, "alpha", 5.0, "targets", targets, "adapter", adapter, "dropout", dropout,
                NULL);
  same = ebb_lora_wrap (model, options, error);
  ok = same != NULL;
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      ok = ok && (!ebb_tensor_get_requires_grad (parameters[i]) || draw_factor (parameters[i], generator, error));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
  return ok;
}

static gboolean
adapt (EbbModule *model,
       const char *target,
       GError **error)
{
  return add (model, "default", (const char *[]){ target, NULL }, 0, error);
}

static guint64
count_trained_bytes (EbbModule *model,
                     guint *n_parameters)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  guint64 n_bytes = 0;

  *n_parameters = 0;
  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        {
          n_bytes += ebb_tensor_get_n_bytes (parameters[i]);
          (*n_parameters)++;
        }
      ebb_tensor_unref (parameters[i]);
    }
  return n_bytes;
}

/* -- tensor ranks -------------------------------------------------------------------------------------------------- */

static gboolean
adapt_divided (const TestParallel *self,
               EbbModule *model,
               EbbProcessGroup *group,
               GError **error)
{
  return adapt (model, self->data, error);
}

static void
check_divided (TestParallel settings)
{
  TestParallel whole = settings;
  g_autoptr (TestParallelResult) expected = NULL;

  whole.is_full = TRUE;
  whole.n_ranks = 1;
  expected = test_parallel_run (&whole);
  settings.n_ranks = 2;
  for (int sequence = 0; sequence < 2; sequence++)
    {
      g_autoptr (TestParallelResult) plain = NULL;
      g_autoptr (TestParallelResult) checkpointed = NULL;

      settings.is_sequence_parallel = sequence;
      settings.is_checkpointed = FALSE;
      plain = test_parallel_run (&settings);
      test_parallel_assert_near (plain, expected, TOLERANCE);
      settings.is_checkpointed = TRUE;
      checkpointed = test_parallel_run (&settings);
      test_parallel_assert_same (checkpointed, plain);
    }
}

/* Products of one input, which enters once, and the row layers behind them. */
static void
tensor_ranks_compute_what_one_does (gconstpointer data)
{
  check_divided ((TestParallel){ .decoder = data, .has_documents = TRUE, .prepare = adapt_divided, .data = "*" });
}

/* GPT-2 joins queries, keys and values, and its head of its own has a branch as well. */
static void
joined_products_and_the_head_are_divided (void)
{
  check_divided ((TestParallel){ .is_untied = TRUE, .prepare = adapt_divided, .data = "*" });
}

static gboolean
adapt_columns (const TestParallel *self,
               EbbModule *model,
               EbbProcessGroup *group,
               GError **error)
{
  static const char *const joined[] = { "c_attn", "c_fc", NULL };
  static const char *const separate[] = { "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", NULL };

  return add (model, "default", self->decoder != NULL ? separate : joined, 0.5, error);
}

/* All ranks have the whole input of a column layer, so they drop the same elements of it as one rank does: within
 * attention and a sharded sequence, too. */
static void
dropout_of_column_layers_is_that_of_one_rank (gconstpointer data)
{
  check_divided ((TestParallel){ .decoder = data, .prepare = adapt_columns });
}

/* Codes and scales are divided as they are: of a column layer by rows, of a row layer by columns, of queries, keys and
 * values in one by rows of each. */
static void
quantised_products_are_divided (gconstpointer data)
{
  static const EbbQuantization quantizations[] = { EBB_QUANTIZATION_INT8, EBB_QUANTIZATION_NF4 };

  for (gsize q = 0; q < G_N_ELEMENTS (quantizations); q++)
    check_divided ((TestParallel){ .decoder = data,
                                   .is_untied = data == NULL,
                                   .quantization = quantizations[q],
                                   .width = 128,
                                   .prepare = adapt_divided,
                                   .data = "*" });
}

/* Rows of 24 elements: blocks of nf4 begin inside of them, and no rank has whole ones. */
static gboolean
divide_blocks (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  TestParallel settings = { .decoder = "llama3", .quantization = EBB_QUANTIZATION_NF4 };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) int8 = NULL;
  g_autoptr (GError) refused = NULL;

  if (model == NULL)
    return FALSE;
  g_assert_false (test_parallel_divide (&settings, model, group, &refused));
  test_assert_error (refused, EBB_ERROR_INVALID_ARGUMENT, "layers.0.self_attn.q_proj: its nf4 weight [24, 24]",
                     "whole blocks of 64 elements");
  settings.quantization = EBB_QUANTIZATION_INT8;
  int8 = test_parallel_model (&settings, error);
  return int8 != NULL && test_parallel_divide (&settings, int8, group, error);
}

static void
blocks_are_not_divided (void)
{
  test_ranks_run (2, divide_blocks, NULL);
}

static gboolean
adapt_twice (const TestParallel *self,
             EbbModule *model,
             EbbProcessGroup *group,
             GError **error)
{
  return add (model, "first", (const char *[]){ "*", NULL }, 0, error)
         && add (model, "second", (const char *[]){ "h.0.attn.c_attn", NULL }, 0, error);
}

/* The second adapter is chosen: layers with a branch in the first alone compute what they did without. */
static void
layers_without_a_branch_of_the_chosen_adapter_are_divided (void)
{
  check_divided ((TestParallel){ .is_untied = TRUE, .prepare = adapt_twice });
}

static gboolean
divide_adapted (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const TestParallel settings = { .decoder = "llama3" };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (GError) refused = NULL;

  if (model == NULL || !adapt (model, "q_proj", error))
    return FALSE;
  g_assert_false (test_parallel_divide (&settings, model, group, &refused));
  test_assert_error (refused, EBB_ERROR_STATE, "layers.0.self_attn.q_proj", "parallelize first, then wrap");
  return TRUE;
}

static void
an_adapted_model_is_not_divided (void)
{
  test_ranks_run (2, divide_adapted, NULL);
}

/* -- files --------------------------------------------------------------------------------------------------------- */

typedef enum
{
  WHOLE,
  DIVIDED,
  SHARDED
} Split;

typedef struct
{
  Split split;
  const char *folder, *copy;
} Saving;

static gboolean
save_on_a_rank (EbbProcessGroup *group,
                gpointer user_data,
                GError **error)
{
  const Saving *saving = user_data;
  const TestParallel settings = { .decoder = "llama3", .is_full = saving->split != DIVIDED };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbModule) sharded = NULL;
  g_autoptr (GError) refused = NULL;

  if (model == NULL || !test_parallel_divide (&settings, model, group, error))
    return FALSE;
  if (saving->copy == NULL)
    return adapt (model, "*", error) && ebb_lora_save (model, saving->folder, NULL, error);
  same = ebb_lora_load (model, saving->folder, "other", error);
  if (same == NULL || saving->split != SHARDED)
    return same != NULL && ebb_lora_save (model, saving->copy, "other", error);
  sharded = ebb_fully_shard (model, group, NULL, error);
  if (sharded == NULL || !ebb_lora_save (model, saving->copy, "other", error))
    return FALSE;
  g_assert_false (ebb_lora_merge (model, &refused));
  test_assert_error (refused, EBB_ERROR_STATE, "lora: the weight of layers.0.self_attn.q_proj is sharded",
                     "save the adapter");
  g_clear_error (&refused);
  g_assert_false (ebb_lora_unwrap (model, &refused));
  test_assert_error (refused, EBB_ERROR_STATE, "lora: layers.0.self_attn.q_proj is sharded or replicated",
                     "can't be removed");
  g_clear_error (&refused);
  g_assert_null (ebb_lora_load (model, saving->folder, "third", &refused));
  test_assert_error (refused, EBB_ERROR_STATE, "lora: the weight of layers.0.self_attn.q_proj",
                     "wrap before ebb_fully_shard ()");
  return TRUE;
}

/* What one rank has saved is read on ranks, and saved again, byte for byte. */
static void
ranks_save_one_adapter (void)
{
  for (Split split = DIVIDED; split <= SHARDED; split++)
    {
      g_autofree char *folder = test_scratch_path ("adapter");
      g_autofree char *copy = test_scratch_path ("copy");
      Saving saving = { WHOLE, folder, NULL };

      test_ranks_run (1, save_on_a_rank, &saving);
      saving.split = split;
      saving.copy = copy;
      test_ranks_run (2, save_on_a_rank, &saving);
      for (guint i = 0; i < 2; i++)
        {
          const char *names[] = { "adapter_model.safetensors", "adapter_config.json" };
          g_autofree char *first = g_build_filename (folder, names[i], NULL);
          g_autofree char *second = g_build_filename (copy, names[i], NULL);
          g_autofree char *a = NULL;
          g_autofree char *b = NULL;
          gsize n_a, n_b;

          g_assert_true (g_file_get_contents (first, &a, &n_a, NULL));
          g_assert_true (g_file_get_contents (second, &b, &n_b, NULL));
          g_assert_cmpmem (a, n_a, b, n_b);
        }
      test_remove_tree (folder);
      test_remove_tree (copy);
    }
}

/* Each rank adds its part of the product to its part of the weight. */
static gboolean
merge_divided (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  const TestParallel settings = { .decoder = "llama3" };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbTensor) before = NULL;
  g_autoptr (EbbTensor) after = NULL;
  g_autoptr (EbbTensor) without = NULL;

  if (model == NULL || !test_parallel_divide (&settings, model, group, error))
    return FALSE;
  without = test_parallel_loss (&settings, model, 0, error);
  if (!adapt (model, "*", error))
    return FALSE;
  before = test_parallel_loss (&settings, model, 0, error);
  if (!ebb_lora_merge (model, error) || !ebb_lora_unwrap (model, error))
    return FALSE;
  after = test_parallel_loss (&settings, model, 0, error);
  test_assert_near (after, before, 1e-5);
  g_assert_cmpfloat (test_difference (without, before), >, 1e-4);
  return TRUE;
}

static void
tensor_ranks_merge_their_parts (void)
{
  test_ranks_run (2, merge_divided, NULL);
}

/* -- replicas and shards ------------------------------------------------------------------------------------------- */

static gboolean
replicate_adapted (const TestParallel *self,
                   EbbModule *model,
                   EbbProcessGroup *group,
                   GError **error)
{
  g_autoptr (EbbModule) same = NULL;

  if (!adapt (model, "*", error))
    return FALSE;
  same = ebb_replicate (model, group, NULL, error);
  return same != NULL;
}

/* The mean of two equal gradients is the gradient. */
static void
replicas_train_alike (void)
{
  TestParallel settings = { .decoder = "llama3", .is_full = TRUE, .prepare = adapt_divided, .data = "*" };
  g_autoptr (TestParallelResult) expected = test_parallel_run (&settings);
  g_autoptr (TestParallelResult) result = NULL;

  settings.n_ranks = 2;
  settings.prepare = replicate_adapted;
  result = test_parallel_run (&settings);
  test_parallel_assert_same (result, expected);
}

typedef struct
{
  gboolean replicates, flattens, checkpoints, is_frozen_first;
  gboolean is_bf16;         /* the base; branches are in f32 */
  gboolean is_trained_only; /* states leave out the base */
} How;

static gboolean
wrap_on_ranks (EbbModule *gpt,
               EbbProcessGroup *group,
               gconstpointer data,
               GError **error)
{
  const How *how = data;
  g_autoptr (EbbFullyShardOptions) options = ebb_fully_shard_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if ((how->is_bf16 && !ebb_module_to_dtype (gpt, EBB_DTYPE_BF16, error))
      || !adapt (gpt, how->is_frozen_first ? "h.1.*" : "*", error)
      || (how->checkpoints && !ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, error)))
    return FALSE;
  if (ebb_process_group_get_size (group) == 1)
    return TRUE;
  if (how->replicates)
    {
      same = ebb_replicate (gpt, group, NULL, error);
      return same != NULL;
    }
  g_object_set (options, "flatten", how->flattens, NULL);
  return ebb_fully_shard_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, group, options, error);
}

/* Units so small that a layer is one, and a factor could be. */
static gboolean
wrap_each_layer (EbbModule *gpt,
                 EbbProcessGroup *group,
                 gconstpointer data,
                 GError **error)
{
  g_autoptr (EbbModule) factor = NULL;
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) refused = NULL;

  if (!adapt (gpt, "*", error))
    return FALSE;
  if (ebb_process_group_get_size (group) == 1)
    return TRUE;
  factor = ebb_module_get_child (gpt, "h.0.mlp.c_fc.lora_A.default");
  g_assert_null (ebb_fully_shard (factor, group, NULL, &refused));
  test_assert_error (refused, EBB_ERROR_NOT_SUPPORTED, "h.0.mlp.c_fc.lora_A.default", "never called");
  if (!ebb_fully_shard_auto_wrap (gpt, 16, group, NULL, error))
    return FALSE;
  g_assert_false (ebb_fully_shard_is_wrapped (factor));
  same = ebb_fully_shard_is_wrapped (gpt) ? g_object_ref (gpt) : ebb_fully_shard (gpt, group, NULL, error);
  return same != NULL;
}

static void
factors_belong_to_their_layer (void)
{
  TestRanks settings = { .n_ranks = 1, .n_steps = 3, .strategy = wrap_each_layer, .begins_equal = TRUE };
  g_autoptr (TestRanksResult) expected = test_ranks_train (&settings);
  g_autoptr (TestRanksResult) result = NULL;

  settings.n_ranks = 2;
  result = test_ranks_train (&settings);
  test_ranks_assert_near (result, expected, 1e-5);
}

static guint64 trained_bytes;

static void
note_trained_bytes (const TestRanks *self,
                    EbbModule *gpt,
                    EbbOptimizer *optimizer,
                    EbbProcessGroup *group)
{
  guint n;

  trained_bytes = count_trained_bytes (gpt, &n);
}

/* In one unit of a block are weights that are frozen and branches that are trained (pytorch/pytorch#148831), flattened
 * or not, and nothing of the block that comes first may need a gradient. The ranks send the gradients of the branches,
 * and a flag of two bytes for each parameter of a unit that says whether a rank has one. */
static void
ranks_train_as_one (gconstpointer data)
{
  const How *how = data;
  TestRanks settings = { .n_steps = 6, .strategy = wrap_on_ranks, .data = how, .begins_equal = TRUE };
  g_autoptr (TestRanksResult) expected = NULL;
  g_autoptr (TestRanksResult) result = NULL;
  const guint n_trained_units = how->is_frozen_first ? 1 : 2;
  const EbbCollective which = how->replicates ? EBB_COLLECTIVE_ALL_REDUCE : EBB_COLLECTIVE_REDUCE_SCATTER;
  guint64 n_bytes;

  settings.n_ranks = 1;
  settings.inspect = note_trained_bytes;
  expected = test_ranks_train (&settings);
  settings.n_ranks = 2;
  settings.inspect = NULL;
  result = test_ranks_train (&settings);
  test_ranks_assert_near (result, expected, how->is_bf16 ? 1e-3 : 1e-5);
  n_bytes = trained_bytes / (how->replicates ? 1 : 2); /* a rank's shard of them */
  g_assert_cmpuint (result->n_bytes[which], >=, n_bytes);
  g_assert_cmpuint (result->n_bytes[which], <=, n_bytes + 256);
  if (!how->replicates)
    g_assert_cmpuint (result->n_calls[which], ==, n_trained_units);
}

/* -- going on ------------------------------------------------------------------------------------------------------ */

static gboolean
step (EbbModule *gpt,
      EbbOptimizer *optimizer,
      guint from,
      guint to,
      EbbProcessGroup *group,
      GError **error)
{
  for (guint i = from; i < to; i++)
    {
      g_autoptr (EbbTensor) loss = test_ranks_loss (gpt, i, 8 * ebb_process_group_get_rank (group), 8, error);

      if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (optimizer, error))
        return FALSE;
      ebb_optimizer_zero_grad (optimizer);
    }
  return TRUE;
}

static gboolean
begin (const How *how,
       EbbProcessGroup *group,
       EbbModule **gpt,
       EbbOptimizer **optimizer,
       GError **error)
{
  *gpt = test_ranks_model (2, 0, 3);
  if (!wrap_on_ranks (*gpt, group, how, error))
    return FALSE;
  *optimizer = EBB_OPTIMIZER (ebb_adamw_new (*gpt, 1e-2, error));
  return *optimizer != NULL;
}

static const char *state_folder;

static gboolean
save_state (const How *how,
            EbbModule *gpt,
            EbbOptimizer *optimizer,
            GError **error)
{
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (gpt, optimizer, NULL);

  g_object_set (state, "trained-only", how->is_trained_only, NULL);
  return how->is_trained_only ? ebb_training_state_save_sharded (state, state_folder, 2, error)
                              : ebb_save_sharded_state (gpt, optimizer, state_folder, error);
}

static gboolean
load_state (const How *how,
            EbbModule *gpt,
            EbbOptimizer *optimizer,
            GError **error)
{
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (gpt, optimizer, NULL);

  g_object_set (state, "trained-only", how->is_trained_only, NULL);
  return how->is_trained_only ? ebb_training_state_load_sharded (state, state_folder, NULL, error)
                              : ebb_load_sharded_state (gpt, optimizer, state_folder, error);
}

static EbbArgs *saved_tensors; /* full, as the ranks that saved had them */

static gboolean
go_on (EbbProcessGroup *group,
       gpointer user_data,
       GError **error)
{
  const How *how = user_data;
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbModule) other = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbOptimizer) other_optimizer = NULL;
  g_autoptr (EbbArgs) tensors = NULL;

  if (!begin (how, group, &gpt, &optimizer, error) || !step (gpt, optimizer, 0, 2, group, error)
      || !save_state (how, gpt, optimizer, error) || (tensors = ebb_get_full_state_dict (gpt, TRUE, error)) == NULL
      || !step (gpt, optimizer, 2, 4, group, error) || !begin (how, group, &other, &other_optimizer, error)
      || !load_state (how, other, other_optimizer, error)
      || !step (other, other_optimizer, 2, 4, group, error))
    return FALSE;
  g_assert_cmpuint (test_ranks_hash (other), ==, test_ranks_hash (gpt));
  if (ebb_process_group_get_rank (group) == 0)
    saved_tensors = g_steal_pointer (&tensors);
  return TRUE;
}

static gboolean
take_over (EbbProcessGroup *group,
           gpointer user_data,
           GError **error)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbArgs) tensors = NULL;

  if (!begin (user_data, group, &gpt, &optimizer, error) || !load_state (user_data, gpt, optimizer, error)
      || (tensors = ebb_get_full_state_dict (gpt, FALSE, error)) == NULL)
    return FALSE;
  test_assert_args_equal (tensors, saved_tensors);
  return TRUE;
}

/* With three ranks, no rank has the shards that one had. */
static void
sharded_trainings_go_on_where_they_were (gconstpointer data)
{
  g_autofree char *folder = test_scratch_path ("state");

  state_folder = folder;
  test_ranks_run (2, go_on, (gpointer) data);
  test_ranks_run (1, take_over, (gpointer) data);
  test_ranks_run (3, take_over, (gpointer) data);
  g_clear_pointer (&saved_tensors, ebb_args_unref);
  test_remove_tree (folder);
}

/* -- states of one rank and of tensor ranks ------------------------------------------------------------------------ */

typedef struct
{
  EbbQuantization quantization;
  const char *decoder;
  gboolean is_full;
  const char *from, *to;    /* folders; NULL: it is trained, or not saved */
  gboolean is_other;        /* it has another base */
  EbbArgs *model, *moments; /* of the first, in full */
} Exchange;

static gboolean
take_or_compare (EbbArgs **first,
                 EbbArgs *state)
{
  if (state == NULL)
    return FALSE;
  if (*first == NULL)
    *first = ebb_args_ref (state);
  test_assert_args_equal (state, *first);
  return TRUE;
}

static gboolean
exchange_on_a_rank (EbbProcessGroup *group,
                    gpointer user_data,
                    GError **error)
{
  Exchange *self = user_data;
  const TestParallel settings = {
    .decoder = self->decoder,
    .quantization = self->quantization,
    .width = 128,
    .is_full = self->is_full
  };
  g_autoptr (EbbModule) model = test_parallel_model (&settings, error);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbTrainingState) state = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbArgs) tensors = NULL;
  g_autoptr (EbbArgs) moments = NULL;
  g_autoptr (GError) refused = NULL;

  if (model == NULL || (self->is_other && !ebb_module_to_dtype (model, EBB_DTYPE_BF16, error))
      || !test_parallel_divide (&settings, model, group, error) || !adapt (model, "*", error))
    return FALSE;
  optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-2, error));
  state = ebb_training_state_new (model, optimizer, NULL);
  g_object_set (state, "trained-only", TRUE, NULL);
  if (self->is_other)
    {
      g_assert_false (ebb_training_state_load_sharded (state, self->from, NULL, &refused));
      test_assert_error (refused, EBB_ERROR_STATE, self->from, "another base");
      return TRUE;
    }
  if (self->from != NULL && !ebb_training_state_load_sharded (state, self->from, NULL, error))
    return FALSE;
  if (self->from == NULL)
    {
      loss = test_parallel_loss (&settings, model, 0, error);
      if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (optimizer, error)
          || !ebb_training_state_save (state, self->to, 1, error))
        return FALSE;
    }
  else if (self->to != NULL && !ebb_training_state_save_sharded (state, self->to, 1, error))
    return FALSE;
  tensors = ebb_get_full_state_dict (model, FALSE, error);
  moments = ebb_get_full_optimizer_state (optimizer, FALSE, error);
  return take_or_compare (&self->model, tensors) && take_or_compare (&self->moments, moments);
}

/* What one rank has trained two take over, and the other way, each with all of the base, quantised or not. */
static void
tensor_ranks_and_one_take_over_states (gconstpointer decoder)
{
  for (EbbQuantization q = EBB_QUANTIZATION_NONE; q <= EBB_QUANTIZATION_NF4; q++)
    {
      g_autofree char *folder = test_scratch_path ("state");
      g_autofree char *other = test_scratch_path ("other");
      Exchange exchange = { .quantization = q, .decoder = decoder, .is_full = TRUE, .to = folder };

      test_ranks_run (1, exchange_on_a_rank, &exchange);
      exchange.is_full = FALSE;
      exchange.from = folder;
      exchange.to = other;
      test_ranks_run (2, exchange_on_a_rank, &exchange);
      exchange.is_other = TRUE;
      test_ranks_run (2, exchange_on_a_rank, &exchange);
      exchange.is_full = TRUE;
      exchange.from = other;
      exchange.to = NULL;
      test_ranks_run (1, exchange_on_a_rank, &exchange);
      exchange.is_other = FALSE;
      test_ranks_run (1, exchange_on_a_rank, &exchange);
      ebb_args_unref (exchange.model);
      ebb_args_unref (exchange.moments);
      test_remove_tree (folder);
      test_remove_tree (other);
    }
}

static const How replicated = { .replicates = TRUE };
static const How sharded = { .flattens = FALSE };
static const How flattened = { .flattens = TRUE };
static const How checkpointed = { .checkpoints = TRUE, .is_frozen_first = TRUE };
static const How flattened_and_checkpointed = { .flattens = TRUE, .checkpoints = TRUE, .is_frozen_first = TRUE };
static const How trained_only = { .flattens = TRUE, .is_trained_only = TRUE };
static const How flattened_bf16 = { .flattens = TRUE, .is_bf16 = TRUE };

int
main (int argc,
      char **argv)
{
  static const char *const decoders[] = { "llama3", "qwen3", "gemma3" };
  int result;

  g_test_init (&argc, &argv, NULL);
  test_scratch_begin ();
  for (guint i = 0; i < G_N_ELEMENTS (decoders); i++)
    {
      g_autofree char *path = g_strdup_printf ("/lora/tensor-ranks-compute-what-one-does/%s", decoders[i]);

      g_test_add_data_func (path, decoders[i], tensor_ranks_compute_what_one_does);
    }
  g_test_add_func ("/lora/joined-products-and-the-head-are-divided", joined_products_and_the_head_are_divided);
  g_test_add_data_func ("/lora/dropout-of-column-layers-is-that-of-one-rank/gpt2", NULL,
                        dropout_of_column_layers_is_that_of_one_rank);
  g_test_add_data_func ("/lora/dropout-of-column-layers-is-that-of-one-rank/llama3", "llama3",
                        dropout_of_column_layers_is_that_of_one_rank);
  g_test_add_data_func ("/lora/quantised-products-are-divided/gpt2", NULL, quantised_products_are_divided);
  g_test_add_data_func ("/lora/quantised-products-are-divided/llama3", "llama3", quantised_products_are_divided);
  g_test_add_func ("/lora/blocks-are-not-divided", blocks_are_not_divided);
  g_test_add_func ("/lora/layers-without-a-branch-of-the-chosen-adapter-are-divided",
                   layers_without_a_branch_of_the_chosen_adapter_are_divided);
  g_test_add_func ("/lora/an-adapted-model-is-not-divided", an_adapted_model_is_not_divided);
  g_test_add_func ("/lora/tensor-ranks-merge-their-parts", tensor_ranks_merge_their_parts);
  g_test_add_func ("/lora/ranks-save-one-adapter", ranks_save_one_adapter);
  g_test_add_func ("/lora/replicas-train-alike", replicas_train_alike);
  g_test_add_func ("/lora/factors-belong-to-their-layer", factors_belong_to_their_layer);
  g_test_add_data_func ("/lora/ranks-train-as-one/replicated", &replicated, ranks_train_as_one);
  g_test_add_data_func ("/lora/ranks-train-as-one/sharded", &sharded, ranks_train_as_one);
  g_test_add_data_func ("/lora/ranks-train-as-one/flattened", &flattened, ranks_train_as_one);
  g_test_add_data_func ("/lora/ranks-train-as-one/checkpointed", &checkpointed, ranks_train_as_one);
  g_test_add_data_func ("/lora/ranks-train-as-one/flattened-and-checkpointed", &flattened_and_checkpointed,
                        ranks_train_as_one);
  g_test_add_data_func ("/lora/ranks-train-as-one/flattened-with-a-base-in-bf16", &flattened_bf16, ranks_train_as_one);
  g_test_add_data_func ("/lora/sharded-trainings-go-on-where-they-were/rows", &sharded,
                        sharded_trainings_go_on_where_they_were);
  g_test_add_data_func ("/lora/sharded-trainings-go-on-where-they-were/trained-only", &trained_only,
                        sharded_trainings_go_on_where_they_were);
  g_test_add_data_func ("/lora/sharded-trainings-go-on-where-they-were/flattened", &flattened_and_checkpointed,
                        sharded_trainings_go_on_where_they_were);
  g_test_add_data_func ("/lora/tensor-ranks-and-one-take-over-states/gpt2", NULL,
                        tensor_ranks_and_one_take_over_states);
  g_test_add_data_func ("/lora/tensor-ranks-and-one-take-over-states/llama3", "llama3",
                        tensor_ranks_and_one_take_over_states);
  result = g_test_run ();
  test_scratch_end ();
  return result;
}
