/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>
#include <string.h>

/* Megatron-LM's options: what is wrong in them is named and changes nothing, and what is asked for is done. */

enum
{
  N_LAYERS = 4
};

static EbbModule *
new_model (void)
{
  return test_ranks_model (N_LAYERS, 0.1, 1);
}

static EbbModule *
get_block (EbbModule *model, guint index)
{
  g_autoptr (EbbModule) list = ebb_module_get_child (model, "h");

  return ebb_module_list_get (EBB_MODULE_LIST (list), index);
}

static gboolean
is_touched (EbbModule *model)
{
  g_autofree EbbModule **modules = NULL;
  gboolean result = FALSE;
  guint n;

  modules = ebb_module_get_modules (model, &n);
  for (guint i = 0; i < n; i++)
    {
      result = result || ebb_checkpoint_is_wrapped (modules[i]);
      g_object_unref (modules[i]);
    }
  return result;
}

/* -- what is wrong ------------------------------------------------------------------------------------------------- */

#define FULL(text) "{\"recompute_granularity\": \"full\", " text "}"
#define SELECTIVE(text) "{\"recompute_granularity\": \"selective\", " text "}"

static void
what_is_wrong_is_named (void)
{
  static const struct
  {
    const char *json;
    EbbError code;
    const char *words[4];
  } cases[] = {
    { "{\"recompute\": \"full\"}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "the configuration has no key \"recompute\" (which is \"full\")",
        "its keys are recompute_granularity, recompute_method, recompute_num_layers, distribute_saved_activations and "
        "recompute_activations" } },
    { "{\"recompute_granularity\": \"half\"}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_granularity is \"half\"", "\"full\", \"selective\", or null" } },
    { "{\"recompute_granularity\": true}", EBB_ERROR_INVALID_ARGUMENT, { "recompute_granularity is true" } },
    { FULL ("\"recompute_method\": \"equal\""),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_method is \"equal\"", "\"uniform\", \"block\", or null" } },
    { FULL ("\"recompute_num_layers\": 0"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_num_layers is 0", "from 1 to 2147483647, or null" } },
    { FULL ("\"distribute_saved_activations\": \"yes\""),
      EBB_ERROR_INVALID_ARGUMENT,
      { "distribute_saved_activations is \"yes\"", "true or false" } },
    { FULL ("\"recompute_num_layers\": 1"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_granularity is \"full\" and recompute_method is null", "\"uniform\" or \"block\"" } },
    { FULL ("\"recompute_method\": \"uniform\""),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_method is \"uniform\" and recompute_num_layers is null", "layers of a chunk" } },
    { FULL ("\"recompute_method\": \"block\""),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_method is \"block\" and recompute_num_layers is null", "layers to recompute" } },
    { FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 5"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_num_layers is 5", "4 layers", "from 1 to 4" } },
    { FULL ("\"recompute_method\": \"uniform\", \"recompute_num_layers\": 9"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_num_layers is 9", "4 layers", "from 1 to 4" } },
    { SELECTIVE ("\"recompute_method\": \"block\""),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_method is \"block\" and recompute_granularity is \"selective\"", "for \"full\" alone" } },
    { SELECTIVE ("\"recompute_num_layers\": 2"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_num_layers is 2 and recompute_granularity is \"selective\"", "for \"full\" alone" } },
    { SELECTIVE ("\"distribute_saved_activations\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "distribute_saved_activations is true and recompute_granularity is \"selective\"" } },
    { "{\"recompute_method\": \"uniform\"}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_method is \"uniform\" and recompute_granularity is null", "for \"full\" alone" } },
    { FULL ("\"recompute_activations\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "recompute_activations is true and recompute_granularity is \"full\"", "short for \"selective\"" } },
    { FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 1, \"distribute_saved_activations\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "distribute_saved_activations is true and there is no mpu", "at least 2" } },
    { "[]", EBB_ERROR_IO, { "the configuration \"[]\" is no JSON object" } },
    { "{\"recompute_granularity\": null", EBB_ERROR_FORMAT, { "the configuration is not JSON" } },
  };
  g_autoptr (EbbModule) model = new_model ();

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_false (ebb_recompute_configure (model, cases[i].json, NULL, &error));
      g_assert_nonnull (error);
      g_test_message ("%s", error->message);
      test_assert_error (error, cases[i].code, cases[i].words[0], cases[i].words[1], cases[i].words[2],
                         cases[i].words[3]);
      g_assert_false (ebb_recompute_configure (model, cases[i].json, NULL, NULL));
      g_assert_false (is_touched (model));
    }
}

static void
models_that_it_is_not_for_are_refused (void)
{
  static const char *const block = FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 1");
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbModule) other = new_model ();
  g_autoptr (EbbModule) both = ebb_sequential_new ();
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_recompute_configure (mlp, block, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "Sequential has no Block");
  g_clear_error (&error);
  g_assert_false (ebb_recompute_configure (model, block, G_OBJECT (mlp), &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "mpu is a EbbSequential", "EbbMesh", "world-size");
  g_clear_error (&error);

  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (both), model, NULL));
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (both), other, NULL));
  g_assert_false (ebb_recompute_configure (both, block, NULL, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "Sequential has 2 stacks", "there must be exactly one");
  g_clear_error (&error);
  g_assert_false (is_touched (both));

  g_assert_true (ebb_recompute_configure (model, block, NULL, &error));
  g_assert_no_error (error);
  g_assert_false (ebb_recompute_configure (model, "{\"recompute_activations\": true}", NULL, &error));
  test_assert_error (error, EBB_ERROR_STATE, "h.0 (TransformerBlock) is checkpointed already");
}

static void
nothing_is_done_for_nothing_or_after_an_error (void)
{
  g_autoptr (EbbModule) model = new_model ();
  GError *error = NULL;

  g_assert_true (ebb_recompute_configure (model, "{}", NULL, &error));
  g_assert_true (ebb_recompute_configure (
      model, "{\"recompute_granularity\": null, \"recompute_method\": null, \"distribute_saved_activations\": false}",
      NULL, &error));
  g_assert_no_error (error);
  g_assert_false (ebb_recompute_configure (NULL, "{}", NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "model is NULL");
  g_clear_error (&error);
  g_assert_false (ebb_recompute_configure (model, NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "json is NULL");
  g_clear_error (&error);
  error = g_error_new_literal (EBB_ERROR, EBB_ERROR_STATE, "before");
  g_assert_false (ebb_recompute_configure (model, "{\"recompute_activations\": true}", NULL, &error));
  g_assert_cmpstr (error->message, ==, "before");
  g_clear_error (&error);
  g_assert_false (is_touched (model));
}

/* -- what is done -------------------------------------------------------------------------------------------------- */

/* Of a forward: the bytes that its graph keeps; loss and gradients must be those of @expected. */
static guint64
step (EbbModule *model, TestOutcome **outcome)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryStats) before = ebb_memory_get_stats (test_device ());
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_manual_seed (7);
  loss = test_ranks_loss (model, 0, 0, 4, &error);
  g_assert_no_error (error);
  after = ebb_memory_get_stats (test_device ());
  test_backward (loss);
  *outcome = test_outcome_new (model, NULL);
  return ebb_memory_stats_get_current (after, EBB_PURPOSE_ACTIVATION)
         - ebb_memory_stats_get_current (before, EBB_PURPOSE_ACTIVATION);
}

/* Which blocks, or chunks of the stack, were recomputed once. */
static void
assert_recomputed (EbbModule *model, const char *expected)
{
  g_autoptr (EbbModule) list = ebb_module_get_child (model, "h");
  g_autoptr (GString) text = g_string_new (NULL);

  g_string_append_printf (text, "%" G_GUINT64_FORMAT ":", ebb_checkpoint_get_n_recomputes (list));
  for (guint i = 0; i < N_LAYERS; i++)
    {
      g_autoptr (EbbModule) block = get_block (model, i);

      g_string_append_printf (text, " %" G_GUINT64_FORMAT, ebb_checkpoint_get_n_recomputes (block));
    }
  g_assert_cmpstr (text->str, ==, expected);
}

static void
every_choice_acts (void)
{
  static const struct
  {
    const char *json;
    const char *recomputed; /* chunks: blocks */
    guint n_kept;           /* the same bytes are kept as by the case of that number; itself: fewer than before */
  } cases[] = {
    { "{}", "0: 0 0 0 0", 0 },
    { SELECTIVE ("\"recompute_method\": null"), "0: 1 1 1 1", 1 },
    { "{\"recompute_activations\": true}", "0: 1 1 1 1", 1 },
    { FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 3"), "0: 1 1 1 0", 3 },
    { FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 4"), "0: 1 1 1 1", 4 },
    { FULL ("\"recompute_method\": \"uniform\", \"recompute_num_layers\": 1"), "4: 0 0 0 0", 4 },
    { FULL ("\"recompute_method\": \"uniform\", \"recompute_num_layers\": 2"), "2: 0 0 0 0", 6 },
    { FULL ("\"recompute_method\": \"uniform\", \"recompute_num_layers\": 3"), "2: 0 0 0 0", 6 },
    { FULL ("\"recompute_method\": \"uniform\", \"recompute_num_layers\": 4"), "1: 0 0 0 0", 8 },
  };
  guint64 kept[G_N_ELEMENTS (cases)];
  TestOutcome *expected = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbModule) model = new_model ();
      g_autoptr (GError) error = NULL;
      TestOutcome *outcome;

      g_assert_true (ebb_recompute_configure (model, cases[i].json, NULL, &error));
      g_assert_no_error (error);
      kept[i] = step (model, &outcome);
      g_test_message ("%s: %" G_GUINT64_FORMAT " bytes", cases[i].json, kept[i]);
      assert_recomputed (model, cases[i].recomputed);
      if (i == 0)
        {
          expected = outcome;
          continue;
        }
      test_assert_same_outcome (outcome, expected);
      test_outcome_free (outcome);
      if (cases[i].n_kept == i)
        g_assert_cmpuint (kept[i], <, kept[i - 1]);
      else
        g_assert_cmpuint (kept[i], ==, kept[cases[i].n_kept]);
    }
  test_outcome_free (expected);
}

static void
a_file_is_read (void)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp ("ebb-test-XXXXXX", NULL);
  g_autofree char *path = g_build_filename (folder, "megatron.json", NULL);
  TestOutcome *outcome;

  g_assert_true (g_file_set_contents (path, FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 1"), -1,
                                      NULL));
  g_assert_true (ebb_recompute_configure (model, path, NULL, &error));
  g_assert_no_error (error);
  step (model, &outcome);
  assert_recomputed (model, "0: 1 0 0 0");
  test_outcome_free (outcome);
  g_unlink (path);
  g_rmdir (folder);
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

#define DISTRIBUTE(method, n)                                                 \
  FULL ("\"recompute_method\": \"" method "\", \"recompute_num_layers\": " #n \
        ", \"distribute_saved_activations\": true")

static EbbModule *
new_parallel (EbbProcessGroup *group, gboolean sequence_parallel)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (GError) error = NULL;

  g_object_set (options, "sequence-parallel", sequence_parallel, NULL);
  g_object_unref (ebb_parallelize (model, group, options, &error));
  g_assert_no_error (error);
  g_assert_true (ebb_model_parallel_manual_seed (7, G_OBJECT (group), &error));
  return g_steal_pointer (&model);
}

static guint64
count_gathers (EbbProcessGroup *group)
{
  return ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER);
}

static gboolean
distribute (EbbProcessGroup *group,
            gpointer data,
            GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  const gint64 sizes[] = { 1, ebb_process_group_get_size (group) };
  static const struct
  {
    const char *json;
    const char *recomputed;
    guint n_inputs;
  } cases[] = {
    { FULL ("\"recompute_method\": \"block\", \"recompute_num_layers\": 4"), "0: 1 1 1 1", 0 },
    { DISTRIBUTE ("block", 4), "0: 1 1 1 1", 4 },
    { DISTRIBUTE ("block", 2), "0: 1 1 0 0", 2 },
    { DISTRIBUTE ("uniform", 2), "2: 0 0 0 0", 2 },
    { SELECTIVE ("\"distribute_saved_activations\": false"), "0: 1 1 1 1", 0 },
  };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  GObject *const mpus[] = { NULL, G_OBJECT (mesh), G_OBJECT (group) };
  TestOutcome *expected = NULL;
  guint64 kept[G_N_ELEMENTS (cases)], n_gathers = 0;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbModule) model = new_parallel (group, FALSE);
      TestOutcome *outcome;

      if (!ebb_recompute_configure (model, cases[i].json, mpus[i % G_N_ELEMENTS (mpus)], error))
        return FALSE;
      ebb_process_group_reset_counters (group);
      kept[i] = step (model, &outcome);
      assert_recomputed (model, cases[i].recomputed);
      if (i == 0)
        n_gathers = count_gathers (group);
      g_assert_cmpuint (count_gathers (group), ==, n_gathers + cases[i].n_inputs);
      if (i == 0)
        expected = outcome;
      else
        {
          test_assert_same_outcome (outcome, expected);
          test_outcome_free (outcome);
        }
    }
  g_assert_cmpuint (kept[1], <, kept[0]);
  test_outcome_free (expected);
  return TRUE;
}

static void
saved_activations_are_distributed (void)
{
  test_ranks_run (2, distribute, NULL);
  test_ranks_run (4, distribute, NULL);
}

/* The layers of a BERT are those of its stack "layer". */
static gboolean
distribute_bert (EbbProcessGroup *group,
                 gpointer data,
                 GError **error)
{
  static const TestParallel bert = { .is_bert = TRUE, .has_mask = TRUE, .n_layers = 3 };
  g_autoptr (EbbModule) model = test_parallel_model (&bert, error);
  g_autoptr (EbbModule) stack = ebb_module_get_child (model, "layer");
  g_autoptr (EbbModule) same = ebb_parallelize (model, group, NULL, error);
  g_autoptr (EbbTensor) loss = NULL;

  if (same == NULL || !ebb_recompute_configure (model, DISTRIBUTE ("uniform", 2), NULL, error))
    return FALSE;
  ebb_process_group_reset_counters (group);
  loss = test_parallel_loss (&bert, model, 0, error);
  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (stack), ==, 2);
  g_assert_cmpuint (count_gathers (group), >=, 2);
  return TRUE;
}

static void
a_bert_has_layers_as_well (void)
{
  test_ranks_run (2, distribute_bert, NULL);
}

static gboolean
contradict (EbbProcessGroup *group,
            gpointer data,
            GError **error)
{
  static const char *const names[] = { "tensor", "data" };
  const gint64 sizes[] = { 1, -1 };
  g_autoptr (EbbMesh) one = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) sequential = new_parallel (group, TRUE);
  g_autoptr (EbbModule) whole = new_model ();
  g_autoptr (GError) local = NULL;

  g_assert_false (ebb_recompute_configure (sequential, DISTRIBUTE ("block", 1), NULL, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "distribute_saved_activations is true",
                     "sequence_parallel is true", "one of them must be false");
  g_assert_false (is_touched (sequential));
  g_clear_error (&local);

  g_assert_false (ebb_recompute_configure (whole, DISTRIBUTE ("block", 1), G_OBJECT (one), &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "distribute_saved_activations is true",
                     "one tensor-parallel rank", "at least 2");
  g_assert_false (is_touched (whole));
  g_clear_error (&local);

  /* All else goes together with sequence parallelism. */
  g_assert_true (ebb_recompute_configure (
      sequential, FULL ("\"recompute_method\": \"uniform\", \"recompute_num_layers\": 2"), NULL, &local));
  g_assert_no_error (local);
  return TRUE;
}

static void
distribution_and_sequence_parallelism_are_named (void)
{
  test_ranks_run (2, contradict, NULL);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/recompute-config/" name, func)
  TEST ("what-is-wrong-is-named", what_is_wrong_is_named);
  TEST ("models-that-it-is-not-for-are-refused", models_that_it_is_not_for_are_refused);
  TEST ("nothing-is-done-for-nothing-or-after-an-error", nothing_is_done_for_nothing_or_after_an_error);
  TEST ("every-choice-acts", every_choice_acts);
  TEST ("a-file-is-read", a_file_is_read);
  TEST ("saved-activations-are-distributed", saved_activations_are_distributed);
  TEST ("a-bert-has-layers-as-well", a_bert_has_layers_as_well);
  TEST ("distribution-and-sequence-parallelism-are-named", distribution_and_sequence_parallelism_are_named);
  return g_test_run ();
}
