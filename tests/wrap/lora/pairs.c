/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/decoders.h"
#include "support/device.h"
#include "support/model-folders.h"
#include "support/random-stores.h"
#include "support/ranks.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>

/* Adapted models together with checkpoints, stores and autocast: outputs and gradients are the same bit for bit. The
 * tokens require no gradient, and no parameter before the first branch does. Then what a frozen base costs, and how a
 * training of branches goes on. */

static void
randomize (EbbModule *model)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGenerator) generator = ebb_generator_new (7);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  ebb_push_grad_enabled (FALSE);
  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        g_assert_true (ebb_tensor_fill_normal (parameters[i], 0, 0.2, generator, &error));
      ebb_tensor_unref (parameters[i]);
    }
  ebb_pop_grad_enabled ();
}

/* How the weights below the branches are held. */
typedef struct
{
  EbbDType dtype;
  EbbQuantization quantization;
} Base;

static const Base f32 = { EBB_DTYPE_F32, EBB_QUANTIZATION_NONE };
static const Base bf16 = { EBB_DTYPE_BF16, EBB_QUANTIZATION_NONE };
static const Base int8 = { EBB_DTYPE_F32, EBB_QUANTIZATION_INT8 };
static const Base nf4 = { EBB_DTYPE_F32, EBB_QUANTIZATION_NF4 };

static EbbModule *
new_adapted_in (const Base *base,
                EbbDType branches,
                const char *targets)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbModule) same = NULL;
  const char *list[] = { targets, NULL };

  ebb_push_parameter_dtype (base->dtype);
  model = test_decoder_new ("llama3", 1);
  ebb_pop_parameter_dtype ();
  g_assert_true (base->quantization == EBB_QUANTIZATION_NONE || ebb_quantize (model, base->quantization, &error));
  g_object_set (options, "rank", 3, "alpha", 5.0, "dropout", 0.25, "targets", list, NULL);
  ebb_push_parameter_dtype (branches);
  same = ebb_lora_wrap (model, options, &error);
  ebb_pop_parameter_dtype ();
  g_assert_no_error (error);
  randomize (model);
  return g_object_ref (model);
}

static EbbModule *
new_adapted (const char *targets)
{
  return new_adapted_in (&f32, EBB_DTYPE_F32, targets);
}

static void
wrap_blocks (EbbModule *model,
             gboolean checkpoints,
             EbbSavedTensorHooks *store)
{
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < 2; i++)
    {
      g_autofree char *name = g_strdup_printf ("layers.%u", i);
      g_autoptr (EbbModule) block = ebb_module_get_child (model, name);
      g_autoptr (EbbModule) same = NULL;

      g_assert_nonnull (block);
      if (checkpoints)
        test_wrap (block, NULL);
      if (store != NULL)
        same = ebb_offload_wrapper (block, store, &error);
      g_assert_no_error (error);
    }
}

static void
compare_in (const Base *base,
            gboolean checkpoints,
            EbbSavedTensorHooks *store,
            const char *targets)
{
  g_autoptr (EbbModule) plain = new_adapted_in (base, EBB_DTYPE_F32, targets);
  g_autoptr (EbbModule) wrapped = new_adapted_in (base, EBB_DTYPE_F32, targets);
  g_autoptr (EbbTensor) tokens = test_tokens (3, 64, 2, 9, -1);
  g_autoptr (TestOutcome) expected = NULL;
  g_autoptr (TestOutcome) outcome = NULL;

  wrap_blocks (wrapped, checkpoints, store);
  expected = test_train1 (plain, tokens);
  outcome = test_train1 (wrapped, tokens);
  test_assert_same_outcome (expected, outcome);
}

static void
compare (gboolean checkpoints,
         EbbSavedTensorHooks *store,
         const char *targets)
{
  compare_in (&f32, checkpoints, store, targets);
}

static void
with_checkpoints (void)
{
  compare (TRUE, NULL, "*");
}

/* Nothing in the first block is trained, and nothing that enters the second one requires a gradient
 * (deepspeedai/DeepSpeed#8148). */
static void
with_checkpoints_of_a_frozen_block (void)
{
  compare (TRUE, NULL, "layers.1.*");
}

/* Nothing behind the first block is trained: its backward goes through frozen blocks. */
static void
with_checkpoints_below_frozen_blocks (void)
{
  compare (TRUE, NULL, "layers.0.self_attn.q_proj");
}

static void
compare_stores (const Base *base,
                EbbProcessGroup *group)
{
  TestStores stores = { .group = group };

  test_stores_open (&stores);
  for (guint i = 0; i < TEST_N_STORES; i++)
    for (guint checkpoints = 0; checkpoints < 2; checkpoints++)
      compare_in (base, checkpoints, stores.stores[i], "*");
  test_stores_assert_used (&stores, test_device_is_cpu ());
  test_stores_settle (&stores);
  test_stores_close (&stores);
}

static void
with_each_store (gconstpointer base)
{
  compare_stores (base, NULL);
}

static gboolean
compare_partitioned (EbbProcessGroup *group,
                     gpointer user_data,
                     GError **error)
{
  compare_stores (user_data, group);
  return TRUE;
}

static void
with_each_partitioned_store (gconstpointer base)
{
  test_ranks_run (2, compare_partitioned, (gpointer) base);
}

static void
with_autocast (void)
{
  for (guint checkpoints = 0; checkpoints < 2; checkpoints++)
    {
      ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
      compare (checkpoints, NULL, "*");
      ebb_pop_autocast ();
    }
}

static void
with_bf16_weights (void)
{
  for (guint checkpoints = 0; checkpoints < 2; checkpoints++)
    {
      ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
      compare_in (&bf16, checkpoints, NULL, "*");
      ebb_pop_autocast ();
    }
}

static void
with_quantised_weights (gconstpointer base)
{
  for (guint autocast = 0; autocast < 2; autocast++)
    {
      ebb_push_autocast (autocast, EBB_DTYPE_BF16);
      compare_in (base, TRUE, NULL, "*");
      ebb_pop_autocast ();
    }
}

/* -- what the base costs ------------------------------------------------------------------------------------------- */

static guint64
count_trained_bytes (EbbModule *model)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);
  guint64 n_bytes = 0;

  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        n_bytes += ebb_tensor_get_n_bytes (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  return n_bytes;
}

static guint64
get_bytes (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, purpose);
}

static void
step (EbbModule *model,
      EbbOptimizer *optimizer,
      guint64 seed)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens (seed, 64, 2, 9, -1);
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, tokens, &error);
  g_autoptr (EbbTensor) loss = test_loss (y);

  test_backward (loss);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_no_error (error);
}

/* The allocator rounds each tensor up by less than this. */
#define ROUNDING 256

static void
the_base_has_no_gradients_and_no_moments (void)
{
  const guint64 gradients = get_bytes (EBB_PURPOSE_GRADIENT), moments = get_bytes (EBB_PURPOSE_OPTIMIZER);
  g_autoptr (EbbModule) model = new_adapted ("*");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-2, &error));
  const guint64 trained = count_trained_bytes (model);
  const guint64 slack = (trained / 64) + 28 * 2 * ROUNDING;

  g_assert_no_error (error);
  step (model, optimizer, 3);
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_GRADIENT) - gradients, >=, trained);
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_GRADIENT) - gradients, <=, trained + slack);
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_OPTIMIZER) - moments, >=, 2 * trained);
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_OPTIMIZER) - moments, <=, 2 * (trained + slack));
}

/* -- going on ------------------------------------------------------------------------------------------------------ */

static void
run (EbbModule *model,
     EbbOptimizer *optimizer,
     guint64 first,
     guint64 last)
{
  for (guint64 i = first; i < last; i++)
    {
      ebb_optimizer_zero_grad (optimizer);
      step (model, optimizer, i);
    }
}

static guint64
count_file_bytes (const char *folder)
{
  g_autoptr (GDir) names = g_dir_open (folder, 0, NULL);
  guint64 n_bytes = 0;

  for (const char *name; (name = g_dir_read_name (names)) != NULL;)
    {
      g_autofree char *path = g_build_filename (folder, name, NULL);
      GStatBuf status;

      g_assert_cmpint (g_stat (path, &status), ==, 0);
      n_bytes += (guint64) status.st_size;
    }
  return n_bytes;
}

/* Names and shapes of tensors, and the rest of a state. */
#define STATE_TEXT 40960

/* With dropout in the branches, whose draws go on where they were. What is in bf16 has no master copy. A state of what
 * is trained has as many bytes as branches and moments. */
static void
check_going_on (const Base *base,
                EbbDType branches,
                gboolean trained_only)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) untrained = new_adapted_in (base, branches, "*");
  g_autoptr (EbbModule) model = new_adapted_in (base, branches, "*");
  g_autoptr (EbbModule) other = new_adapted_in (base, branches, "*");
  g_autoptr (EbbOptimizer) optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-2, &error));
  g_autoptr (EbbOptimizer) other_optimizer = EBB_OPTIMIZER (ebb_adamw_new (other, 1e-2, &error));
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, optimizer, NULL);
  g_autoptr (EbbTrainingState) other_state = ebb_training_state_new (other, other_optimizer, NULL);
  gint64 n_steps = 0;
  guint n;
  g_autofree EbbTensor **a = NULL;
  g_autofree EbbTensor **b = NULL;
  g_autofree EbbTensor **before = NULL;

  g_object_set (optimizer, "weight-rounding", EBB_WEIGHT_ROUNDING_RANDOM, NULL);
  g_object_set (other_optimizer, "weight-rounding", EBB_WEIGHT_ROUNDING_RANDOM, NULL);
  g_object_set (state, "trained-only", trained_only, NULL);
  g_object_set (other_state, "trained-only", trained_only, NULL);
  ebb_push_autocast (base->dtype == EBB_DTYPE_BF16, EBB_DTYPE_BF16);
  ebb_manual_seed (4);
  run (model, optimizer, 0, 3);
  g_assert_true (ebb_training_state_save (state, folder, 3, &error));
  if (trained_only)
    g_assert_cmpuint (count_file_bytes (folder), <=, 5 * count_trained_bytes (model) + STATE_TEXT);
  else
    g_assert_cmpuint (count_file_bytes (folder), >, 5 * count_trained_bytes (model) + STATE_TEXT);
  run (model, optimizer, 3, 6);
  ebb_manual_seed (5);
  g_assert_true (ebb_training_state_load (other_state, folder, &n_steps, &error));
  g_assert_no_error (error);
  g_assert_cmpint (n_steps, ==, 3);
  run (other, other_optimizer, 3, 6);
  ebb_pop_autocast ();
  before = ebb_module_get_parameters (untrained, TRUE, &n);
  a = ebb_module_get_parameters (model, TRUE, &n);
  b = ebb_module_get_parameters (other, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_equal (a[i], b[i]));
      g_assert_true (ebb_tensor_get_requires_grad (a[i]) == ebb_tensor_get_requires_grad (b[i]));
      g_assert_true (ebb_tensor_equal (a[i], before[i]) != ebb_tensor_get_requires_grad (a[i]));
      g_assert_cmpint (ebb_tensor_get_dtype (a[i]), ==, ebb_tensor_get_requires_grad (a[i]) ? branches : base->dtype);
      ebb_tensor_unref (before[i]);
      ebb_tensor_unref (a[i]);
      ebb_tensor_unref (b[i]);
    }
  test_remove_tree (folder);
}

static void
goes_on_where_it_was (void)
{
  check_going_on (&f32, EBB_DTYPE_F32, FALSE);
  check_going_on (&f32, EBB_DTYPE_F32, TRUE);
}

static void
goes_on_over_bf16_weights (void)
{
  check_going_on (&bf16, EBB_DTYPE_F32, TRUE);
  check_going_on (&bf16, EBB_DTYPE_BF16, TRUE);
}

static void
goes_on_over_quantised_weights (void)
{
  check_going_on (&int8, EBB_DTYPE_F32, TRUE);
  check_going_on (&nf4, EBB_DTYPE_F32, TRUE);
}

static void
check_state_is_refused (EbbModule *model,
                        const char *folder,
                        gboolean trained_only,
                        const char *problem)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = EBB_OPTIMIZER (ebb_adamw_new (model, 1e-2, &error));
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, optimizer, NULL);

  g_object_set (state, "trained-only", trained_only, NULL);
  g_assert_false (ebb_training_state_load (state, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, folder, problem);
}

/* One weight of the base differs in one bit of one element, or is held in another way. */
static void
other_bases_are_refused (void)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autofree char *full = test_scratch_path ("full");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_adapted ("*");
  g_autoptr (EbbModule) other = new_adapted ("*");
  g_autoptr (EbbModule) quantised = new_adapted_in (&nf4, EBB_DTYPE_F32, "*");
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, NULL, NULL);
  g_autoptr (EbbModule) layer = ebb_module_get_child (other, "layers.1.mlp.down_proj");
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (layer, "weight");
  g_autoptr (EbbTensor) element = NULL;

  g_assert_true (ebb_training_state_save (state, full, 3, &error));
  g_object_set (state, "trained-only", TRUE, NULL);
  g_assert_true (ebb_training_state_save (state, folder, 3, &error));
  g_assert_no_error (error);
  ebb_push_grad_enabled (FALSE);
  element = ebb_narrow (weight, 1, 7, 1, &error);
  g_assert_true (ebb_tensor_fill (element, 0.5, &error));
  ebb_pop_grad_enabled ();
  check_state_is_refused (other, folder, TRUE, "another base");
  check_state_is_refused (quantised, folder, TRUE, "another base");
  check_state_is_refused (model, folder, FALSE, "only the weights that were trained");
  test_remove_tree (folder);
  test_remove_tree (full);
}

static EbbTensor *
get_weight (EbbModule *model,
            const char *path)
{
  g_autoptr (EbbModule) layer = ebb_module_get_child (model, path);

  return ebb_module_get_parameter (layer, "weight");
}

static void
fill (EbbTensor *tensor,
      double value)
{
  g_autoptr (GError) error = NULL;

  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (tensor, value, &error));
  ebb_pop_grad_enabled ();
}

static void
fill_trained (EbbModule *model,
              double value)
{
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      if (ebb_tensor_get_requires_grad (parameters[i]))
        fill (parameters[i], value);
      ebb_tensor_unref (parameters[i]);
    }
}

static void
save_trained (EbbTrainingState *state,
              const char *folder)
{
  g_autoptr (GError) error = NULL;

  g_object_set (state, "trained-only", TRUE, NULL);
  g_assert_true (ebb_training_state_save (state, folder, 3, &error));
  g_assert_no_error (error);
}

/* Loads the state into @other, which then has the tensors of @model, and is saved and loaded once more. */
static void
check_taken_over (EbbModule *model,
                  EbbModule *other,
                  const char *folder)
{
  g_autofree char *again = test_scratch_path ("again");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (other, NULL, NULL);
  g_autoptr (EbbArgs) expected = ebb_module_get_state_dict (model);
  g_autoptr (EbbArgs) tensors = ebb_module_get_state_dict (other);

  g_object_set (state, "trained-only", TRUE, NULL);
  for (guint i = 0; i < 2; i++)
    {
      g_assert_true (ebb_training_state_load (state, i == 0 ? folder : again, NULL, &error));
      g_assert_no_error (error);
      test_assert_args_equal (tensors, expected);
      save_trained (state, again);
    }
  test_remove_tree (again);
}

/* A layer that is unfrozen comes into the state, and stays in it when it is frozen again. The base is the other weights
 * as they are when the state is saved. */
static void
states_follow_what_is_trained (void)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_adapted ("*");
  g_autoptr (EbbModule) unfrozen = new_adapted ("*");
  g_autoptr (EbbModule) frozen = new_adapted ("*");
  g_autoptr (EbbModule) changed = new_adapted ("*");
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, NULL, NULL);
  g_autoptr (EbbTensor) weight = get_weight (model, "layers.1.mlp.down_proj");
  g_autoptr (EbbTensor) norm = get_weight (model, "norm");
  g_autoptr (EbbTensor) changed_norm = get_weight (changed, "norm");

  save_trained (state, folder);
  g_assert_true (ebb_tensor_set_requires_grad (weight, TRUE, &error));
  fill_trained (model, 0.25);
  save_trained (state, folder);
  check_taken_over (model, unfrozen, folder);
  g_assert_true (ebb_tensor_set_requires_grad (weight, FALSE, &error));
  save_trained (state, folder);
  check_taken_over (model, frozen, folder);
  fill (norm, 0.5);
  save_trained (state, folder);
  check_state_is_refused (frozen, folder, TRUE, "another base");
  fill (changed_norm, 0.5);
  check_taken_over (model, changed, folder);
  test_remove_tree (folder);
}

/* A layer that was unfrozen, trained and frozen again with no state in between isn't of the base any more. */
static void
states_have_what_was_trained_meanwhile (void)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_adapted ("*");
  g_autoptr (EbbModule) other = new_adapted ("*");
  g_autoptr (EbbOptimizer) optimizer = EBB_OPTIMIZER (ebb_sgd_new (model, 1e-2, &error));
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, optimizer, NULL);
  g_autoptr (EbbTensor) weight = get_weight (model, "layers.1.mlp.down_proj");

  save_trained (state, folder);
  g_assert_true (ebb_tensor_set_requires_grad (weight, TRUE, &error));
  run (model, optimizer, 0, 2);
  g_assert_true (ebb_tensor_set_requires_grad (weight, FALSE, &error));
  save_trained (state, folder);
  check_taken_over (model, other, folder);
  test_remove_tree (folder);
}

static EbbModule *
new_with_two_adapters (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_adapted ("*");
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbModule) same = NULL;

  g_object_set (options, "rank", 2, "adapter", "second", NULL);
  same = ebb_lora_wrap (model, options, &error);
  g_assert_no_error (error);
  return g_steal_pointer (&model);
}

/* One that isn't chosen is no part of the base: its branches are saved, too. */
static void
states_have_all_adapters (void)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_with_two_adapters ();
  g_autoptr (EbbModule) before = new_with_two_adapters ();
  g_autoptr (EbbModule) after = new_with_two_adapters ();
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, NULL, NULL);

  fill_trained (model, 0.25);
  g_assert_true (ebb_lora_set_adapter (model, "default", &error));
  fill_trained (model, 0.5);
  save_trained (state, folder);
  check_taken_over (model, before, folder);
  g_assert_true (ebb_lora_set_adapter (model, "second", &error));
  fill_trained (model, 0.75);
  save_trained (state, folder);
  check_taken_over (model, after, folder);
  test_remove_tree (folder);
}

/* With the property switched off a full state follows, which is loaded in full, with the property or not. */
static void
full_states_are_loaded_in_full (void)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = new_adapted_in (&int8, EBB_DTYPE_F32, "*");
  g_autoptr (EbbModule) other = new_adapted_in (&int8, EBB_DTYPE_F32, "*");
  g_autoptr (EbbModule) full = new_adapted_in (&int8, EBB_DTYPE_F32, "*");
  g_autoptr (EbbModule) with_more = new_with_two_adapters ();
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (model, NULL, NULL);
  g_autoptr (EbbTrainingState) full_state = ebb_training_state_new (full, NULL, NULL);
  g_autoptr (EbbTrainingState) other_state = ebb_training_state_new (other, NULL, NULL);
  g_autoptr (EbbTrainingState) more_state = ebb_training_state_new (with_more, NULL, NULL);
  g_autoptr (EbbTensor) norm = get_weight (model, "norm");
  g_autoptr (EbbArgs) expected = ebb_module_get_state_dict (model);
  g_autoptr (EbbArgs) tensors = ebb_module_get_state_dict (full);
  g_autoptr (EbbArgs) other_tensors = ebb_module_get_state_dict (other);

  save_trained (state, folder);
  fill_trained (model, 0.25);
  fill (norm, 0.5);
  g_object_set (state, "trained-only", FALSE, NULL);
  g_assert_true (ebb_training_state_save (state, folder, 3, &error));
  g_assert_true (ebb_training_state_load (full_state, folder, NULL, &error));
  g_assert_no_error (error);
  test_assert_args_equal (tensors, expected);
  g_object_set (other_state, "trained-only", TRUE, NULL);
  g_assert_true (ebb_training_state_load_sharded (other_state, folder, NULL, &error));
  g_assert_no_error (error);
  test_assert_args_equal (other_tensors, expected);
  fill (norm, 0.75);
  g_assert_true (ebb_training_state_save (state, folder, 3, &error));
  g_assert_true (ebb_training_state_load (other_state, folder, NULL, &error));
  test_assert_args_equal (other_tensors, expected);
  g_object_set (more_state, "trained-only", TRUE, NULL);
  g_assert_false (ebb_training_state_load (more_state, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "missing", "lora_A.second");
  g_clear_error (&error);
  g_assert_false (ebb_training_state_load_sharded (more_state, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "missing", "lora_A.second");
  test_remove_tree (folder);
}

/* No frozen weight may be missing of one. */
static void
full_states_have_all_weights (void)
{
  g_autofree char *folder = test_scratch_path ("state");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) module = ebb_linear_new (2, 3, FALSE, &error);
  g_autoptr (EbbModule) with_bias = ebb_linear_new (2, 3, TRUE, &error);
  g_autoptr (EbbTrainingState) state = ebb_training_state_new (module, NULL, NULL);
  g_autoptr (EbbTrainingState) other = ebb_training_state_new (with_bias, NULL, NULL);

  g_assert_true (ebb_module_set_requires_grad (with_bias, FALSE, &error));
  g_object_set (other, "trained-only", TRUE, NULL);
  g_assert_true (ebb_training_state_save (state, folder, 3, &error));
  g_assert_false (ebb_training_state_load (other, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "missing", "bias");
  g_clear_error (&error);
  g_assert_false (ebb_training_state_load_sharded (other, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "missing", "bias");
  g_clear_error (&error);
  test_remove_tree (folder);
  g_assert_true (ebb_training_state_save_sharded (state, folder, 3, &error));
  g_assert_false (ebb_training_state_load_sharded (other, folder, NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "missing", "bias");
  test_remove_tree (folder);
}

int
main (int argc,
      char **argv)
{
  static const Base *const bases[] = { &f32, &int8, &nf4 };
  int result;

  test_init (&argc, &argv);
  test_scratch_begin ();
  g_test_add_func ("/lora/with-checkpoints", with_checkpoints);
  g_test_add_func ("/lora/with-checkpoints-of-a-frozen-block", with_checkpoints_of_a_frozen_block);
  g_test_add_func ("/lora/with-checkpoints-below-frozen-blocks", with_checkpoints_below_frozen_blocks);
  for (guint i = 0; i < G_N_ELEMENTS (bases); i++)
    {
      const char *name = bases[i]->quantization != EBB_QUANTIZATION_NONE
                             ? ebb_quantization_get_name (bases[i]->quantization)
                             : "f32";
      g_autofree char *each = g_strconcat ("/lora/with-each-store/", name, NULL);
      g_autofree char *partitioned = g_strconcat ("/lora/with-each-partitioned-store/", name, NULL);
      g_autofree char *checkpoints = g_strconcat ("/lora/with-quantised-weights/", name, NULL);

      g_test_add_data_func (each, bases[i], with_each_store);
      g_test_add_data_func (partitioned, bases[i], with_each_partitioned_store);
      if (bases[i]->quantization != EBB_QUANTIZATION_NONE)
        g_test_add_data_func (checkpoints, bases[i], with_quantised_weights);
    }
  g_test_add_func ("/lora/with-autocast", with_autocast);
  g_test_add_func ("/lora/with-bf16-weights", with_bf16_weights);
  g_test_add_func ("/lora/the-base-has-no-gradients-and-no-moments", the_base_has_no_gradients_and_no_moments);
  g_test_add_func ("/lora/goes-on-where-it-was", goes_on_where_it_was);
  g_test_add_func ("/lora/goes-on-over-bf16-weights", goes_on_over_bf16_weights);
  g_test_add_func ("/lora/goes-on-over-quantised-weights", goes_on_over_quantised_weights);
  g_test_add_func ("/lora/other-bases-are-refused", other_bases_are_refused);
  g_test_add_func ("/lora/states-follow-what-is-trained", states_follow_what_is_trained);
  g_test_add_func ("/lora/states-have-what-was-trained-meanwhile", states_have_what_was_trained_meanwhile);
  g_test_add_func ("/lora/states-have-all-adapters", states_have_all_adapters);
  g_test_add_func ("/lora/full-states-are-loaded-in-full", full_states_are_loaded_in_full);
  g_test_add_func ("/lora/full-states-have-all-weights", full_states_have_all_weights);
  result = g_test_run ();
  test_scratch_end ();
  return result;
}
