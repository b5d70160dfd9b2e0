/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/decoders.h"
#include "support/stores.h"
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensor-parallel.h"
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
    { "{}", EBB_ERROR_INVALID_ARGUMENT, { "is empty", "model_parallelism, activation_checkpointing" } },
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
      { "model_parallelism lacks enable", "true or false" } },
    { PARALLEL (""), EBB_ERROR_INVALID_ARGUMENT, { "model_parallelism lacks enable" } },
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
    { "{} {}", EBB_ERROR_FORMAT, { "expected the end" } },
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
                     "Sequential has no Block", "ebb_checkpoint_wrapper ()");
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
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "ebb_initialize: model is NULL");
  g_clear_error (&error);
  g_assert_null (ebb_initialize (model, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "ebb_initialize: json is NULL");
  g_clear_error (&error);
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

/* -- what ranks do ------------------------------------------------------------------------------------------------- */

enum
{
  N_ROWS = 4,
  N_ELEMENTS = N_ROWS * TEST_RANKS_CONTEXT * TEST_RANKS_WIDTH, /* of a block's input */
  N_MARKS = 32 /* elements that a part may have beside its own, to compare */
};

/* The observed values of one step on one rank. */
typedef struct
{
  double loss;
  guint64 on_device; /* bytes of activations after the forward */
  guint64 n_recomputes, n_reductions, n_gathers;
  TestOutcome *outcome;
} Step;

static EbbActivationStore *
get_store (EbbModule *model)
{
  EbbCheckpointOptions *options = ebb_initialize_get_options (model);

  return options != NULL ? (EbbActivationStore *) ebb_checkpoint_options_get_store (options) : NULL;
}

static void
run_step (EbbModule *model, EbbProcessGroup *group, Step *step)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryStats) before = ebb_memory_get_stats (test_device ());
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  g_assert_true (ebb_model_parallel_manual_seed (7, G_OBJECT (group), &error));
  ebb_process_group_reset_counters (group);
  loss = test_ranks_loss (model, 0, 0, N_ROWS, &error);
  g_assert_no_error (error);
  after = ebb_memory_get_stats (test_device ());
  step->on_device = ebb_memory_stats_get_current (after, EBB_PURPOSE_ACTIVATION)
                    - ebb_memory_stats_get_current (before, EBB_PURPOSE_ACTIVATION);
  step->loss = (double) test_at (loss, 0);
  test_backward (loss);
  step->n_recomputes = count_recomputes (model);
  step->n_reductions = ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_REDUCE);
  step->n_gathers = ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER);
  step->outcome = test_outcome_new (model, NULL);
}

/* The chain of stores as its types. */
static char *
describe_store (EbbModule *model)
{
  GString *text = g_string_new (NULL);
  EbbActivationStore *store = get_store (model);

  while (store != NULL)
    {
      EbbActivationStore *next = NULL;

      g_string_append_printf (text, "%s%s", text->len > 0 ? " " : "", G_OBJECT_TYPE_NAME (store) + strlen ("Ebb"));
      if (g_object_class_find_property (G_OBJECT_GET_CLASS (store), "next") != NULL)
        g_object_get (store, "next", &next, NULL);
      if (next != NULL)
        g_object_unref (next);
      store = next;
    }
  return g_string_free (text, FALSE);
}

/* Each asks for one thing more than a case before it, whose number is @than. */
static const struct
{
  const char *section; /* NULL: none */
  const char *store;
  guint than;
} cases[] = {
  { NULL, "", 0 },
  { "", "", 0 },
  { ", \"cpu_checkpointing\": true", "HostStore", 1 },
  { ", \"partitioned_checkpointing\": true", "PartitionedStore", 1 },
  { ", \"partitioned_checkpointing\": true, \"cpu_checkpointing\": true", "PartitionedStore HostStore", 3 },
  { ", \"partitioned_checkpointing\": true, \"contiguous_checkpointing\": true", "PartitionedStore ContiguousStore",
    3 },
  { ", \"partitioned_checkpointing\": true, \"contiguous_checkpointing\": true, \"cpu_checkpointing\": true",
    "PartitionedStore ContiguousStore HostStore", 5 },
};

static char *
write_config (guint n_ranks, const char *section)
{
  g_autofree char *rest = section != NULL
                              ? g_strdup_printf (", \"activation_checkpointing\": {\"enable\": true%s}", section)
                              : g_strdup ("");

  return g_strdup_printf ("{\"model_parallelism\": {\"enable\": true, \"tensor_parallel_size\": %u}%s}", n_ranks,
                          rest);
}

static void
check_step (guint i, EbbModule *model, guint n_ranks, const Step *steps)
{
  const Step *step = &steps[i], *before = &steps[cases[i].than];
  const guint64 part = (N_ELEMENTS / n_ranks + N_MARKS) * 4, input = N_ELEMENTS * 4;
  const gboolean divides = cases[i].section != NULL && strstr (cases[i].section, "partitioned") != NULL;
  const gboolean moves = cases[i].section != NULL && strstr (cases[i].section, "cpu") != NULL && !test_device_is_cpu ();
  EbbActivationStore *store = get_store (model);
  g_autofree char *chain = describe_store (model);

  g_assert_cmpstr (chain, ==, cases[i].store);
  test_assert_same_outcome (step->outcome, steps[0].outcome); /* where inputs lie changes no bit */
  g_assert_cmpfloat (step->loss, ==, steps[0].loss);
  g_assert_cmpuint (step->n_recomputes, ==, cases[i].section != NULL ? N_BLOCKS : 0);
  g_assert_cmpuint (step->n_reductions - steps[0].n_reductions, ==, cases[i].section != NULL ? N_BLOCKS : 0);
  g_assert_cmpuint (step->n_gathers - steps[0].n_gathers, ==, divides ? N_BLOCKS : 0);
  if (i == 0)
    return;
  if (i == 1)
    g_assert_cmpuint (step->on_device, <, before->on_device);
  if (i == 3)
    g_assert_cmpuint (step->on_device, <=, before->on_device - N_BLOCKS * (input - part));
  if (moves) /* the last one is on its way */
    g_assert_cmpuint (step->on_device, <=, before->on_device - (N_BLOCKS - 1) * (divides ? input / n_ranks : input));
  else if (i != 3 && i != 1)
    g_assert_cmpuint (step->on_device, >=, before->on_device);
  if (divides)
    {
      g_autoptr (EbbProcessGroup) group = NULL;

      g_object_get (store, "group", &group, NULL);
      g_assert_true (group == ebb_mesh_get_group (ebb_initialize_get_mesh (model), "tensor"));
      g_assert_cmpuint (test_get_double (store, "n-gathers"), ==, N_BLOCKS);
    }
}

static gboolean
run_cases (EbbProcessGroup *world,
           gpointer data,
           GError **error)
{
  const guint n_tensor = GPOINTER_TO_UINT (data), n_ranks = ebb_process_group_get_size (world);
  Step steps[G_N_ELEMENTS (cases)] = { { 0 } };

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *json = write_config (n_tensor, cases[i].section);
      g_autoptr (EbbModule) model = test_ranks_model (N_BLOCKS, 0.1, 1);
      g_autoptr (EbbModule) same = ebb_initialize (model, json, error);
      EbbMesh *mesh;

      if (same == NULL)
        return FALSE;
      g_assert_true (same == model);
      mesh = ebb_initialize_get_mesh (model);
      g_assert_cmpuint (ebb_mesh_get_size (mesh, "tensor"), ==, n_tensor);
      g_assert_cmpuint (ebb_mesh_get_size (mesh, "data"), ==, n_ranks / n_tensor);
      run_step (model, ebb_mesh_get_group (mesh, "tensor"), &steps[i]);
      g_test_message ("%s: %" G_GUINT64_FORMAT " bytes", json, steps[i].on_device);
      check_step (i, model, n_tensor, steps);
    }
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    test_outcome_free (steps[i].outcome);
  return TRUE;
}

static void
every_key_acts (void)
{
  test_ranks_run (2, run_cases, GUINT_TO_POINTER (2));
  test_ranks_run (4, run_cases, GUINT_TO_POINTER (4));
  test_ranks_run (4, run_cases, GUINT_TO_POINTER (2));
}

static gboolean
run_whole (EbbProcessGroup *world,
           gpointer data,
           GError **error)
{
  const double *expected = data;
  g_autofree char *json = write_config (ebb_process_group_get_size (world), cases[6].section);
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbModule) same = ebb_initialize (model, json, error);
  Step step;

  if (same == NULL)
    return FALSE;
  run_step (model, ebb_mesh_get_group (ebb_initialize_get_mesh (model), "tensor"), &step);
  g_assert_cmpfloat_with_epsilon (step.loss, *expected, 1e-5 * *expected);
  test_outcome_free (step.outcome);
  return TRUE;
}

static void
the_loss_is_that_of_one_rank (void)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbTensor) loss = test_ranks_loss (model, 0, 0, N_ROWS, NULL);
  double expected = (double) test_at (loss, 0);

  test_ranks_run (2, run_whole, &expected);
  test_ranks_run (4, run_whole, &expected);
}

static const TestParallel bert = { .is_bert = TRUE, .has_mask = TRUE, .n_layers = 3 };

static gboolean
run_bert (EbbProcessGroup *world,
          gpointer data,
          GError **error)
{
  g_autoptr (EbbModule) whole = test_parallel_model (&bert, error);
  g_autoptr (EbbModule) model = test_parallel_model (&bert, error);
  g_autofree char *json = write_config (2, cases[6].section);
  g_autoptr (EbbModule) same = ebb_initialize (model, json, error);
  g_autoptr (EbbTensor) loss = same != NULL ? test_parallel_loss (&bert, model, 0, error) : NULL;
  g_autoptr (EbbTensor) expected = loss != NULL ? test_parallel_loss (&bert, whole, 0, error) : NULL;

  if (expected == NULL)
    return FALSE;
  g_assert_cmpfloat_with_epsilon (test_at (loss, 0), test_at (expected, 0), 1e-5 * test_at (expected, 0));
  g_assert_cmpuint (test_get_double (get_store (model), "n-partitioned"), >=, 3);
  return ebb_tensor_backward (loss, error);
}

static void
a_bert_is_divided_as_well (void)
{
  test_ranks_run (2, run_bert, NULL);
}

static gboolean
keep_several (EbbProcessGroup *world,
              gpointer data,
              GError **error)
{
  g_autofree char *json = write_config (2, cases[5].section);
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbModule) same = ebb_initialize (model, json, error);
  EbbTensor *losses[2];
  EbbContiguousStore *contiguous;

  if (same == NULL)
    return FALSE;
  contiguous =
      EBB_CONTIGUOUS_STORE (ebb_activation_store_get_next (EBB_ACTIVATION_STORE (get_store (model))));
  g_assert_cmpuint (test_get_double (contiguous, "n-checkpoints"), ==, N_BLOCKS);
  for (guint i = 0; i < 2; i++)
    {
      losses[i] = test_ranks_loss (model, i, 0, N_ROWS, error);
      if (losses[i] == NULL)
        return FALSE;
      g_assert_cmpuint (test_get_double (contiguous, "n-parts"), ==, (i + 1) * N_BLOCKS);
      g_assert_cmpuint (test_get_double (contiguous, "n-buffers"), ==, i + 1);
    }
  for (guint i = 0; i < 2; i++)
    {
      test_backward (losses[i]);
      ebb_tensor_unref (losses[i]);
    }
  g_assert_cmpuint (test_get_double (contiguous, "n-parts"), ==, 0);
  return TRUE;
}

static void
buffers_are_for_all_blocks_and_grow (void)
{
  test_ranks_run (2, keep_several, NULL);
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

/* A block that says nothing of ranks. */
typedef EbbModule PlainBlock;
typedef EbbModuleClass PlainBlockClass;
static GType plain_block_get_type (void);
G_DEFINE_TYPE_WITH_CODE (PlainBlock,
                         plain_block,
                         EBB_TYPE_MODULE,
                         G_IMPLEMENT_INTERFACE (EBB_TYPE_BLOCK, NULL))

static void
plain_block_class_init (PlainBlockClass *klass)
{
}

static void
plain_block_init (PlainBlock *self)
{
}

static gboolean
divide_heads (EbbProcessGroup *group,
              gpointer data,
              GError **error)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbModule) blocks = ebb_sequential_new ();
  g_autoptr (EbbModule) block = g_object_new (plain_block_get_type (), NULL);
  g_autoptr (EbbModule) fine = NULL;
  g_autoptr (GError) local = NULL;
  const char *json = BOTH (3, "\"partitioned_checkpointing\": true");

  g_assert_null (ebb_initialize (model, json, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "model_parallelism: tensor_parallel_size is 3: ",
                     "4 heads can't be divided among 3 ranks");
  assert_untouched (model);
  g_clear_error (&local);

  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (blocks), block, NULL));
  g_assert_null (ebb_initialize (blocks, json, &local));
  g_test_message ("%s", local->message);
  test_assert_error (local, EBB_ERROR_NOT_SUPPORTED, "model_parallelism: tensor_parallel_size is 3: ", "Sequential");
  assert_untouched (blocks);
  g_clear_error (&local);

  /* Nothing is left of it. */
  fine = ebb_initialize (model, "{\"activation_checkpointing\": {\"enable\": true}}", &local);
  g_assert_no_error (local);
  return TRUE;
}

static void
models_that_cant_be_divided_are_refused (void)
{
  test_ranks_run (3, divide_heads, NULL);
}

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

static gboolean
misread (EbbProcessGroup *group,
         gpointer data,
         GError **error)
{
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbModule) same = ebb_initialize (
      model, ebb_process_group_get_rank (group) == 1 ? "{\"model\": 1}" : BOTH (2, "\"cpu_checkpointing\": true"),
      error);
  return same != NULL;
}

static void
a_rank_that_fails_alone_is_named (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_run_ranks (2, misread, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "rank 1 of 2", "has no key \"model\"");
}

/* Blocks are found by their type, whatever their layout calls them. */
static void
blocks_of_llama_are_checkpointed (void)
{
  g_autoptr (EbbModule) model = test_decoder_new ("gemma2", 1);
  g_autoptr (EbbModule) layers = ebb_module_get_child (model, "layers");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_initialize (model, "{\"activation_checkpointing\": {\"enable\": true}}", &error);

  g_assert_no_error (error);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (layers), i);

      g_assert_true (ebb_checkpoint_is_wrapped (block));
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_object_set (ebb_host_store_get_default (), "least-size", (guint64) 0, NULL);
#define TEST(name, func) g_test_add_func ("/initialize/" name, func)
  TEST ("what-is-wrong-is-named", what_is_wrong_is_named);
  TEST ("a-wrong-file-is-named", a_wrong_file_is_named);
  TEST ("models-that-it-is-not-for-are-refused", models_that_it_is_not_for_are_refused);
  TEST ("nothing-is-done-for-nothing-or-after-an-error", nothing_is_done_for_nothing_or_after_an_error);
  TEST ("sections-that-are-off-do-nothing", sections_that_are_off_do_nothing);
  TEST ("blocks-are-checkpointed-on-one-rank", blocks_are_checkpointed_on_one_rank);
  TEST ("blocks-of-llama-are-checkpointed", blocks_of_llama_are_checkpointed);
  TEST ("every-key-acts", every_key_acts);
  TEST ("the-loss-is-that-of-one-rank", the_loss_is_that_of_one_rank);
  TEST ("a-bert-is-divided-as-well", a_bert_is_divided_as_well);
  TEST ("buffers-are-for-all-blocks-and-grow", buffers_are_for_all_blocks_and_grow);
  TEST ("models-that-cant-be-divided-are-refused", models_that_cant_be_divided_are_refused);
  TEST ("ranks-must-be-divisible", ranks_must_be_divisible);
  TEST ("ranks-must-be-configured-alike", ranks_must_be_configured_alike);
  TEST ("a-rank-that-fails-alone-is-named", a_rank_that_fails_alone_is_named);
  return g_test_run ();
}
