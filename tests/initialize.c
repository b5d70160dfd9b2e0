/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>
#include <string.h>

/* OSLO's configuration: what is wrong in it is named and changes nothing, and what is asked for is done. */

enum
{
  N_BLOCKS = 3
};

/* -- what is wrong ------------------------------------------------------------------------------------------------- */

static EbbModule *
new_model (void)
{
  return test_ranks_model (N_BLOCKS, 0, 1);
}

static void
assert_untouched (EbbModule *model)
{
  g_autofree EbbModule **modules = NULL;
  guint n;

  g_assert_null (ebb_initialize_get_mesh (model));
  g_assert_null (ebb_initialize_get_options (model));
  modules = ebb_module_get_modules (model, &n);
  for (guint i = 0; i < n; i++)
    {
      g_assert_false (ebb_checkpoint_is_wrapped (modules[i]));
      g_object_unref (modules[i]);
    }
}

static void
what_is_wrong_is_named (void)
{
#define PARALLEL(text) "{\"model_parallelism\": {" text "}}"
#define CHECKPOINTING(text) "{\"activation_checkpointing\": {\"enable\": true, " text "}}"
#define BOTH(n, text)                                                              \
  "{\"model_parallelism\": {\"enable\": true, \"tensor_parallel_size\": " #n "}, " \
  "\"activation_checkpointing\": {\"enable\": true, " text "}}"
  static const struct
  {
    const char *json;
    EbbError code;
    const char *words[4];
  } cases[] = {
    { "{\"model_parallel\": {\"enable\": true}}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "the configuration has no key \"model_parallel\"",
        "its keys are model_parallelism, activation_checkpointing and kernel_fusion" } },
    { "{}", EBB_ERROR_INVALID_ARGUMENT, { "asks for nothing", "model_parallelism, activation_checkpointing" } },
    { PARALLEL ("\"enable\": true, \"tensor_size\": 2"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "model_parallelism has no key \"tensor_size\" (which is 2)",
        "its keys are enable, tensor_parallel_size and pipeline_parallel_size" } },
    { CHECKPOINTING ("\"cpu\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "activation_checkpointing has no key \"cpu\"",
        "enable, cpu_checkpointing, partitioned_checkpointing and contiguous_checkpointing" } },
    { PARALLEL ("\"enable\": \"yes\""), EBB_ERROR_INVALID_ARGUMENT, { "enable is \"yes\"", "true or false" } },
    { PARALLEL ("\"enable\": true, \"tensor_parallel_size\": 0"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "model_parallelism: tensor_parallel_size is 0", "a whole number from 1 to 2147483647" } },
    { PARALLEL ("\"enable\": true, \"tensor_parallel_size\": 2.5"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "tensor_parallel_size is 2.5" } },
    { PARALLEL ("\"enable\": true, \"tensor_parallel_size\": null"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "tensor_parallel_size is null" } },
    { PARALLEL ("\"enable\": true, \"tensor_parallel_size\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "tensor_parallel_size is true" } },
    { PARALLEL ("\"enable\": false, \"tensor_parallel_size\": \"two\""), /* off, and wrong all the same */
      EBB_ERROR_INVALID_ARGUMENT,
      { "tensor_parallel_size is \"two\"" } },
    { CHECKPOINTING ("\"cpu_checkpointing\": 1"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "activation_checkpointing: cpu_checkpointing is 1", "true or false" } },
    { "{\"model_parallelism\": true}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "model_parallelism is true", "must be an object" } },
    { PARALLEL ("\"tensor_parallel_size\": 2"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "model_parallelism has no enable", "true or false" } },
    { PARALLEL (""), EBB_ERROR_INVALID_ARGUMENT, { "model_parallelism has no enable" } },
    { CHECKPOINTING ("\"contiguous_checkpointing\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "contiguous_checkpointing is true", "partitioned_checkpointing is false", "both must be true" } },
    { CHECKPOINTING ("\"partitioned_checkpointing\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "partitioned_checkpointing is true", "model_parallelism: enable is false", "tensor_parallel_size",
        "at least 2" } },
    { BOTH (1, "\"partitioned_checkpointing\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "partitioned_checkpointing is true", "tensor_parallel_size is 1", "at least 2" } },
    { BOTH (2, "\"partitioned_checkpointing\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "tensor_parallel_size is 2", "has 1 rank:", "multiple" } },
    { PARALLEL ("\"enable\": true, \"tensor_parallel_size\": 2, \"pipeline_parallel_size\": 2"),
      EBB_ERROR_NOT_SUPPORTED,
      { "pipeline_parallel_size is 2", "must be 1" } },
    { "{\"kernel_fusion\": {\"enable\": true, \"custom_cuda_kernels\": [\"x\"]}}",
      EBB_ERROR_NOT_SUPPORTED,
      { "kernel_fusion: enable is true", "must be false" } },
    { "{\"kernel_fusion\": {\"enable\": true, \"custom_cuda_kernels\": \"x\"}}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "custom_cuda_kernels is \"x\"", "an array" } },
    { PARALLEL ("\"enable\": true, \"enable\": false"), EBB_ERROR_FORMAT, { "\"enable\" stands twice" } },
    { "{\"model_parallelism\": {", EBB_ERROR_FORMAT, { "the configuration is not JSON" } },
    { "{} {}", EBB_ERROR_FORMAT, { "after its object" } },
    { "/no/such/folder/oslo.json", EBB_ERROR_IO, { "\"/no/such/folder/oslo.json\"", "No such file" } },
  };
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbProcessGroup) group = NULL;
  g_autoptr (GError) failure = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_null (ebb_initialize (model, cases[i].json, &error));
      g_assert_nonnull (error);
      g_test_message ("%s", error->message);
      test_assert_error (error, cases[i].code, cases[i].words[0], cases[i].words[1], cases[i].words[2],
                         cases[i].words[3]);
      g_assert_null (ebb_initialize (model, cases[i].json, NULL));
      assert_untouched (model);
    }
  /* Nor is the group left that it has made for some of them. */
  group = ebb_init_process_group ("single", &failure);
  g_assert_no_error (failure);
  ebb_destroy_process_group ();
}

static void
a_wrong_file_is_named (void)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "ebb-test-XXXXXX", NULL);

  g_close (g_mkstemp (path), NULL);
  g_assert_true (g_file_set_contents (path, "[1]", -1, NULL));
  g_assert_null (ebb_initialize (model, path, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, path, "holds no JSON object", "model_parallelism");
  g_clear_error (&error);
  g_assert_true (g_file_set_contents (path, PARALLEL ("\"enable\": 3"), -1, NULL));
  g_assert_null (ebb_initialize (model, path, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, path, "model_parallelism: enable is 3");
  assert_untouched (model);
  g_remove (path);
}

static void
models_that_it_is_not_for_are_refused (void)
{
  static const char *const json = "{\"activation_checkpointing\": {\"enable\": true}}";
  g_autoptr (EbbModule) mlp = test_mlp_new (1);
  g_autoptr (EbbModule) wrapped = new_model ();
  g_autoptr (EbbModule) chunked = new_model ();
  g_autoptr (EbbModule) list = ebb_module_get_child (wrapped, "h");
  g_autoptr (EbbModule) stack = ebb_module_get_child (chunked, "h");
  g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (list), 1);
  g_autoptr (GError) error = NULL;

  g_assert_null (ebb_initialize (mlp, json, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "activation_checkpointing: enable is true",
                     "Sequential has no TransformerBlock", "ebb_checkpoint_wrapper ()");
  assert_untouched (mlp);
  g_clear_error (&error);

  test_wrap (block, NULL);
  g_assert_null (ebb_initialize (wrapped, json, &error));
  test_assert_error (error, EBB_ERROR_STATE, "h.1 (TransformerBlock) is checkpointed already");
  g_clear_error (&error);
  g_assert_true (ebb_checkpoint_unwrap (block));
  assert_untouched (wrapped);

  g_assert_true (ebb_checkpoint_wrap_uniform (stack, 2, NULL, &error));
  g_assert_null (ebb_initialize (chunked, json, &error));
  test_assert_error (error, EBB_ERROR_STATE, "h (ModuleList) is checkpointed already");
}

static void
nothing_is_done_for_nothing_or_after_an_error (void)
{
  g_autoptr (EbbModule) model = new_model ();
  GError *error = g_error_new_literal (EBB_ERROR, EBB_ERROR_STATE, "before");

  g_assert_null (ebb_initialize (model, "{\"activation_checkpointing\": {\"enable\": true}}", &error));
  g_assert_cmpstr (error->message, ==, "before");
  g_clear_error (&error);
  g_assert_null (ebb_initialize (NULL, "{}", &error));
  g_assert_null (ebb_initialize (model, NULL, &error));
  g_assert_no_error (error);
  assert_untouched (model);
}

/* -- what is done -------------------------------------------------------------------------------------------------- */

static guint64
count_recomputes (EbbModule *model)
{
  g_autoptr (EbbModule) list = ebb_module_get_child (model, "h");
  guint64 n = 0;

  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (list), i);

      n += ebb_checkpoint_get_n_recomputes (block);
    }
  return n;
}

static void
sections_that_are_off_do_nothing (void)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_initialize (
      model,
      "{\"model_parallelism\": {\"enable\": false, \"tensor_parallel_size\": 4, \"pipeline_parallel_size\": 2}, "
      "\"activation_checkpointing\": {\"enable\": false, \"contiguous_checkpointing\": true}, "
      "\"kernel_fusion\": {\"enable\": false, \"memory_efficient_fusion\": true}}",
      &error);

  g_assert_no_error (error);
  g_assert_true (same == model);
  assert_untouched (model);
  g_assert_null (ebb_initialize (model, "{\"activation_checkpointing\": {\"enable\": true}}", &error));
  test_assert_error (error, EBB_ERROR_STATE, "Gpt", "ebb_initialize () already");
}

static void
blocks_are_checkpointed_on_one_rank (void)
{
  g_autoptr (EbbModule) plain = new_model ();
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = NULL;
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "ebb-test-XXXXXX", NULL);
  EbbModule *models[] = { plain, model };
  g_autoptr (EbbTensor) first = NULL;

  g_close (g_mkstemp (path), NULL);
  g_assert_true (g_file_set_contents (path,
                                      " {\"activation_checkpointing\": {\"enable\": true}, \"model_parallelism\": "
                                      "{\"enable\": true}}\n",
                                      -1, NULL));
  same = ebb_initialize (model, path, &error);
  g_assert_no_error (error);
  g_assert_true (same == model);
  g_remove (path);
  g_assert_null (ebb_checkpoint_options_get_store (ebb_initialize_get_options (model)));
  g_assert_cmpuint (ebb_mesh_get_size (ebb_initialize_get_mesh (model), "tensor"), ==, 1);
  g_assert_cmpuint (ebb_mesh_get_size (ebb_initialize_get_mesh (model), "data"), ==, 1);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) loss = test_ranks_loss (models[i], 0, 0, 4, &error);

      g_assert_no_error (error);
      test_backward (loss);
      if (i == 0)
        first = g_steal_pointer (&loss);
      else
        g_assert_true (ebb_tensor_equal (loss, first));
    }
  g_assert_cmpuint (count_recomputes (plain), ==, 0);
  g_assert_cmpuint (count_recomputes (model), ==, N_BLOCKS);
  ebb_destroy_process_group (); /* which it has made */
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

static gboolean
divide_badly (EbbProcessGroup *group,
              gpointer data,
              GError **error)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (GError) local = NULL;

  g_assert_null (ebb_initialize (model, BOTH (3, "\"partitioned_checkpointing\": true"), &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "model_parallelism: tensor_parallel_size is 3",
                     "has 4 ranks", "multiple");
  assert_untouched (model);
  return TRUE;
}

static void
ranks_must_be_divisible (void)
{
  test_ranks_run (4, divide_badly, NULL);
}

static gboolean
disagree (EbbProcessGroup *group,
          gpointer data,
          GError **error)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (GError) local = NULL;
  const char *json = ebb_process_group_get_rank (group) == 0 ? BOTH (2, "\"cpu_checkpointing\": true")
                                                             : BOTH (2, "\"cpu_checkpointing\": false");

  g_assert_null (ebb_initialize (model, json, &local));
  test_assert_error (local, EBB_ERROR_PROCESS_GROUP, "the configuration", "cpu_checkpointing 1",
                     "cpu_checkpointing 0");
  assert_untouched (model);
  return TRUE;
}

static void
ranks_must_be_configured_alike (void)
{
  test_ranks_run (2, disagree, NULL);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/initialize/" name, func)
  TEST ("what-is-wrong-is-named", what_is_wrong_is_named);
  TEST ("a-wrong-file-is-named", a_wrong_file_is_named);
  TEST ("models-that-it-is-not-for-are-refused", models_that_it_is_not_for_are_refused);
  TEST ("nothing-is-done-for-nothing-or-after-an-error", nothing_is_done_for_nothing_or_after_an_error);
  TEST ("sections-that-are-off-do-nothing", sections_that_are_off_do_nothing);
  TEST ("blocks-are-checkpointed-on-one-rank", blocks_are_checkpointed_on_one_rank);
  TEST ("ranks-must-be-divisible", ranks_must_be_divisible);
  TEST ("ranks-must-be-configured-alike", ranks_must_be_configured_alike);
  return g_test_run ();
}
