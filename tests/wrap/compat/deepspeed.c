/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/tensors.h"
#include "support/training.h"

#include <glib/gstdio.h>
#include <string.h>

/* How "activation_checkpointing" is read: what comes last counts, and what is wrong is named and changes nothing. */

static void
configure (const char *section)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *json = g_strdup_printf ("{\"activation_checkpointing\": {%s}}", section);

  g_assert_true (ebb_checkpointing_configure (NULL, json, NULL, &error));
  g_assert_no_error (error);
}

static void
assert_config (const char *expected)
{
  g_autoptr (EbbArgs) config = ebb_checkpointing_get_config ();
  g_autofree char *text = ebb_args_to_string (config);

  g_assert_cmpint (ebb_args_get_kind (config), ==, EBB_ARGS_DICT);
  g_assert_cmpstr (text, ==, expected);
}

#define CONFIG(partition, cpu, contiguous, number, synchronize, profile)                    \
  "{\"partition_activations\": " #partition ", \"cpu_checkpointing\": " #cpu                \
  ", \"contiguous_memory_optimization\": " #contiguous ", \"number_checkpoints\": " #number \
  ", \"synchronize_checkpoint_boundary\": " #synchronize ", \"profile\": " #profile "}"

static void
defaults_then_json_then_arguments (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbArgs) overrides = ebb_args_new (EBB_ARGS_DICT);
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "ebb-test-XXXXXX", NULL);
  const char *whole = " \n{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 2, \"profile\": \"none\"}, "
                      "\"activation_checkpointing\": {\"cpu_checkpointing\": true, \"number_checkpoints\": 4, "
                      "\"synchronize_checkpoint_boundary\": true}}";
  int file = g_mkstemp (path);

  g_assert_false (ebb_checkpointing_is_configured ());
  assert_config (CONFIG (false, false, false, none, false, false));
  g_assert_true (ebb_checkpointing_configure (NULL, NULL, NULL, &error));
  g_assert_true (ebb_checkpointing_is_configured ());
  assert_config (CONFIG (false, false, false, none, false, false));

  g_assert_true (ebb_checkpointing_configure (NULL, whole, NULL, &error));
  assert_config (CONFIG (false, true, false, 4, true, false));

  ebb_args_add_boolean (overrides, "checkpoint_in_cpu", FALSE);
  ebb_args_add_none (overrides, "synchronize");
  ebb_args_add_boolean (overrides, "profile", TRUE);
  ebb_args_add_int (overrides, "num_checkpoints", 7);
  g_assert_true (ebb_checkpointing_configure (NULL, whole, overrides, &error));
  assert_config (CONFIG (false, false, false, 7, true, true));

  g_assert_true (ebb_checkpointing_configure (NULL, NULL, overrides, &error)); /* nothing is left of before */
  assert_config (CONFIG (false, false, false, 7, false, true));

  g_assert_cmpint (file, >=, 0);
  g_close (file, NULL);
  g_assert_true (g_file_set_contents (path, whole, -1, NULL));
  g_assert_true (ebb_checkpointing_configure (NULL, path, NULL, &error));
  assert_config (CONFIG (false, true, false, 4, true, false));
  g_assert_true (ebb_checkpointing_configure (NULL, "{\"fp16\": {}}", NULL, &error));
  assert_config (CONFIG (false, false, false, none, false, false));
  g_assert_true (ebb_checkpointing_configure (NULL, "{\"activation_checkpointing\": {\"number_checkpoints\": null}}",
                                              NULL, &error));
  g_assert_no_error (error);
  g_remove (path);
}

static void
what_is_wrong_is_named (void)
{
#define IN(text) "{\"activation_checkpointing\": {" text "}}"
  static const struct
  {
    const char *json;
    EbbError code;
    const char *words[4];
  } cases[] = {
    { IN ("\"cpu_checkpoint\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "\"cpu_checkpoint\"", "which is true",
        "its keys are partition_activations, cpu_checkpointing, contiguous_memory_optimization, number_checkpoints, "
        "synchronize_checkpoint_boundary and profile" } },
    { IN ("\"enable\": true"), EBB_ERROR_INVALID_ARGUMENT, { "activation_checkpointing has no key \"enable\"" } },
    { IN ("\"cpu_checkpointing\": \"yes\""),
      EBB_ERROR_INVALID_ARGUMENT,
      { "the configuration: activation_checkpointing: cpu_checkpointing is \"yes\"", "true or false" } },
    { IN ("\"profile\": null"), EBB_ERROR_INVALID_ARGUMENT, { "profile is null", "true or false" } },
    { IN ("\"profile\": 1"), EBB_ERROR_INVALID_ARGUMENT, { "profile is 1", "true or false" } },
    { IN ("\"profile\": {\"a\": [1]}"), EBB_ERROR_INVALID_ARGUMENT, { "profile is {\"a\": [1]}", "true or false" } },
    { IN ("\"number_checkpoints\": 0"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "number_checkpoints is 0", "from 1 to 2147483647, or null" } },
    { IN ("\"number_checkpoints\": -3"), EBB_ERROR_INVALID_ARGUMENT, { "number_checkpoints is -3" } },
    { IN ("\"number_checkpoints\": 4.5"), EBB_ERROR_INVALID_ARGUMENT, { "number_checkpoints is 4.5" } },
    { IN ("\"number_checkpoints\": 3000000000"), EBB_ERROR_INVALID_ARGUMENT, { "number_checkpoints is 3000000000" } },
    { IN ("\"number_checkpoints\": true"), EBB_ERROR_INVALID_ARGUMENT, { "number_checkpoints is true" } },
    { IN ("\"contiguous_memory_optimization\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "contiguous_memory_optimization", "is true", "number_checkpoints", "from 1 to 2147483647" } },
    { IN ("\"partition_activations\": true"),
      EBB_ERROR_INVALID_ARGUMENT,
      { "partition_activations is true and there is no mpu", "at least 2", "takes false" } },
    { IN ("\"profile\": true, \"profile\": false"), EBB_ERROR_FORMAT, { "\"profile\" stands twice" } },
    { "{\"fp16\": 1, \"fp16\": 2}", EBB_ERROR_FORMAT, { "\"fp16\" stands twice" } },
    { "{\"cpu_checkpointing\": true}",
      EBB_ERROR_INVALID_ARGUMENT,
      { "cpu_checkpointing stands outside of \"activation_checkpointing\"" } },
    { "{\"activation_checkpointing\": true}", EBB_ERROR_INVALID_ARGUMENT, { "is true", "must be an object" } },
    { "{\"activation_checkpointing\": {", EBB_ERROR_FORMAT, { "the configuration is not JSON" } },
    { "{} {}", EBB_ERROR_FORMAT, { "the configuration is not JSON", "expected the end" } },
    { "{\"a\": \"}\\\"{\"} 5", EBB_ERROR_FORMAT, { "the configuration is not JSON", "expected the end" } },
    { "{\"a\": \"}\\\"}", EBB_ERROR_FORMAT, { "the configuration is not JSON" } },
    { "[1]", EBB_ERROR_IO, { "the configuration \"[1]\" is no JSON object", "nor a file" } },
    { "/no/such/folder/ds.json", EBB_ERROR_IO, { "\"/no/such/folder/ds.json\"", "No such file" } },
    { "", EBB_ERROR_IO, { "the configuration \"\" is no JSON object" } },
  };

  configure ("\"profile\": true");
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      GError *error = NULL;

      g_assert_false (ebb_checkpointing_configure (NULL, cases[i].json, NULL, &error));
      g_test_message ("%s", error->message);
      test_assert_error (error, cases[i].code, cases[i].words[0], cases[i].words[1], cases[i].words[2],
                         cases[i].words[3]);
      g_assert_false (ebb_checkpointing_configure (NULL, cases[i].json, NULL, NULL));
      g_assert_false (ebb_checkpointing_configure (NULL, NULL, NULL, &error)); /* one is set already */
      g_clear_error (&error);
      assert_config (CONFIG (false, false, false, none, false, true));
    }
}

static void
a_wrong_file_is_named (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *path = g_build_filename (g_get_tmp_dir (), "ebb-test-XXXXXX", NULL);
  int file = g_mkstemp (path);

  g_close (file, NULL);
  g_assert_true (g_file_set_contents (path, "{}\0{}", 5, NULL));
  g_assert_false (ebb_checkpointing_configure (NULL, path, NULL, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, path, "zero byte");
  g_clear_error (&error);
  g_assert_true (g_file_set_contents (path, "[]", -1, NULL));
  g_assert_false (ebb_checkpointing_configure (NULL, path, NULL, &error));
  test_assert_error (error, EBB_ERROR_FORMAT, path, "holds no JSON object");
  g_clear_error (&error);
  g_assert_true (g_file_set_contents (path, IN ("\"profile\": 3"), -1, NULL));
  g_assert_false (ebb_checkpointing_configure (NULL, path, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, path, "profile is 3");
  g_remove (path);
}

static void
assert_refused (EbbArgs *overrides, const char *what, const char *choice)
{
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_checkpointing_configure (NULL, NULL, overrides, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, what, choice);
}

static void
wrong_arguments_are_named (void)
{
  static const struct
  {
    const char *key, *value, *choice;
  } cases[] = {
    { "checkpoint_in_cpu", "the arguments: checkpoint_in_cpu is \"x\"", "true or false" },
    { "num_checkpoints", "num_checkpoints is \"x\"", "from 1 to 2147483647, or null" },
    { "cpu_checkpointing", "no argument \"cpu_checkpointing\" (which is \"x\")",
      "the arguments are partition_activations, checkpoint_in_cpu, contiguous_checkpointing, num_checkpoints, "
      "synchronize and profile" },
  };
  g_autoptr (EbbArgs) nameless = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) zero = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) contiguous = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) partition = ebb_args_new (EBB_ARGS_DICT);

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbArgs) overrides = ebb_args_new (EBB_ARGS_DICT);

      ebb_args_add_string (overrides, cases[i].key, "x");
      assert_refused (overrides, cases[i].value, cases[i].choice);
    }
  ebb_args_add_boolean (nameless, NULL, TRUE);
  assert_refused (nameless, "no argument without a name", "the arguments are");
  ebb_args_add_int (zero, "num_checkpoints", 0);
  assert_refused (zero, "num_checkpoints is 0", "from 1 to");
  ebb_args_add_boolean (contiguous, "contiguous_checkpointing", TRUE);
  assert_refused (contiguous, "contiguous_checkpointing", "num_checkpoints");
  ebb_args_add_boolean (partition, "partition_activations", TRUE);
  assert_refused (partition, "partition_activations is true", "at least 2");
}

/* A model-parallel unit. */
typedef struct
{
  GObject parent_instance;
  int world_size;
  EbbProcessGroup *group; /* not owned */
} Unit;
typedef GObjectClass UnitClass;

static GType unit_get_type (void);

G_DEFINE_TYPE (Unit, unit, G_TYPE_OBJECT)

static void
unit_get_property (GObject *object, guint id, GValue *value, GParamSpec *spec)
{
  if (id == 2)
    g_value_set_object (value, ((Unit *) object)->group);
  else
    g_value_set_int (value, ((Unit *) object)->world_size);
}

static void
unit_class_init (UnitClass *klass)
{
  klass->get_property = unit_get_property;
  g_object_class_install_property (
      klass, 1, g_param_spec_int ("world-size", NULL, NULL, G_MININT, G_MAXINT, 1, G_PARAM_READABLE));
  g_object_class_install_property (
      klass, 2,
      g_param_spec_object ("tensor-model-parallel-group", NULL, NULL, EBB_TYPE_PROCESS_GROUP, G_PARAM_READABLE));
}

static void
unit_init (Unit *self)
{
}

static void
partitioning_demands_ranks (void)
{
  static const struct
  {
    int world_size;
    EbbError code;
    const char *what;
  } cases[] = {
    { 1, EBB_ERROR_INVALID_ARGUMENT, "partition_activations is true and mpu has one rank" },
    { 2, EBB_ERROR_NOT_SUPPORTED, "partition_activations is true and mpu has 2 ranks" },
    { 0, EBB_ERROR_INVALID_ARGUMENT, "world-size 0" },
  };
  g_autoptr (GObject) module = G_OBJECT (test_mlp_new (1));
  g_autoptr (GObject) mpu = g_object_new (unit_get_type (), NULL);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      ((Unit *) mpu)->world_size = cases[i].world_size;
      g_assert_false (ebb_checkpointing_configure (mpu, IN ("\"partition_activations\": true"), NULL, &error));
      test_assert_error (error, cases[i].code, cases[i].what);
      g_clear_error (&error);
    }
  ((Unit *) mpu)->world_size = 4;
  g_assert_true (ebb_checkpointing_configure (mpu, NULL, NULL, &error));
  g_assert_false (ebb_checkpointing_configure (module, NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "mpu is a EbbSequential", "world-size");
}

/* -- ranks --------------------------------------------------------------------------------------------------------- */

static gboolean
look_at_ranks (EbbProcessGroup *group, gpointer data, GError **error)
{
  static const char *const names[] = { "data", "tensor" }, *const other[] = { "data", "shard" };
  static const gint64 sizes[] = { -1, 1 };
  g_autoptr (EbbMesh) one = ebb_mesh_new (group, names, sizes, 2, NULL);
  g_autoptr (EbbMesh) none = ebb_mesh_new (group, other, sizes, 2, NULL);
  g_autoptr (GError) local = NULL;

  g_assert_false (ebb_checkpointing_configure (G_OBJECT (one), IN ("\"partition_activations\": true"), NULL, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "partition_activations is true and mpu has one rank");
  g_clear_error (&local);
  g_assert_false (ebb_checkpointing_configure (G_OBJECT (none), NULL, NULL, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "mpu is a mesh of data=2 shard=1",
                     "must have a dimension \"tensor\"");
  return TRUE;
}

static void
an_mpu_is_a_mesh_with_tensor_parallel_ranks (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_run_ranks (2, look_at_ranks, NULL, &error));
  g_assert_no_error (error);
}

/* Each rank computes the same of its own copy of the same tensors. */
static EbbArgs *
compute (EbbArgs *args, gpointer data, GError **error)
{
  return ebb_module_call (data, args, error);
}

static EbbSavedTensorHooks *
get_next (EbbSavedTensorHooks *store)
{
  return (EbbSavedTensorHooks *) ebb_activation_store_get_next (EBB_ACTIVATION_STORE (store));
}

static gboolean
partition (EbbProcessGroup *group, gpointer data, GError **error)
{
  static const char *const names[] = { "data", "tensor" };
  static const struct
  {
    const char *section;
    const char *next; /* type of the store inside; NULL: none */
  } cases[] = {
    { "", NULL },
    { "\"partition_activations\": true", NULL },
    { "\"partition_activations\": true, \"cpu_checkpointing\": true", "EbbHostStore" },
    { "\"partition_activations\": true, \"contiguous_memory_optimization\": true, \"number_checkpoints\": 1",
      "EbbContiguousStore" },
    { "\"partition_activations\": true, \"contiguous_memory_optimization\": true, \"number_checkpoints\": 1, "
      "\"cpu_checkpointing\": true",
      "EbbContiguousStore" },
  };
  const guint n_ranks = ebb_process_group_get_size (group);
  const gint64 sizes[] = { -1, n_ranks };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (EbbModule) module = test_mlp_new (1);
  TestOutcome *expected = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *json = g_strdup_printf ("{\"activation_checkpointing\": {%s}}", cases[i].section);
      g_autoptr (EbbCheckpointOptions) options = NULL;
      g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) x = test_randn (3, 51, 8, -1); /* not divisible */
      g_autoptr (EbbTensor) loss = NULL;
      EbbSavedTensorHooks *store;
      TestOutcome *outcome;

      if (!ebb_checkpointing_configure (i % 2 ? G_OBJECT (group) : G_OBJECT (mesh), json, NULL, error))
        return FALSE;
      options = ebb_checkpointing_get_options ();
      store = ebb_checkpoint_options_get_store (options);
      g_assert_true (store == NULL ? i == 0 : EBB_IS_PARTITIONED_STORE (store));
      if (i > 0)
        g_assert_cmpstr (get_next (store) != NULL ? G_OBJECT_TYPE_NAME (get_next (store)) : NULL, ==, cases[i].next);
      ebb_module_zero_grad (module);
      ebb_manual_seed (2);
      ebb_process_group_reset_counters (group);
      ebb_args_add_tensor (args, NULL, x);
      result = ebb_checkpointing_checkpoint (compute, g_object_ref (module), g_object_unref, args, error);
      if (result == NULL)
        return FALSE;
      if (i > 0)
        {
          const guint64 n_bytes = ebb_activation_store_get_bytes_held (EBB_ACTIVATION_STORE (store));

          g_assert_cmpuint (n_bytes, >=, 51 * 8 * 4 / n_ranks);
          g_assert_cmpuint (n_bytes, <=, (51 * 8 / n_ranks + 1 + 32) * 4);
        }
      loss = test_loss_of_args (result);
      test_backward (loss);
      g_assert_cmpuint (ebb_process_group_get_n_calls (group, EBB_COLLECTIVE_ALL_GATHER), ==, i > 0);
      outcome = test_outcome_new (module, NULL);
      if (i == 0)
        expected = outcome;
      else
        {
          test_assert_same_outcome (outcome, expected);
          test_outcome_free (outcome);
        }
    }
  test_outcome_free (expected);
  return TRUE;
}

static void
activations_are_partitioned_over_the_mpu (void)
{
  for (guint n = 2; n <= 4; n += 2)
    {
      g_autoptr (GError) error = NULL;

      g_assert_true (ebb_run_ranks (n, partition, NULL, &error));
      g_assert_no_error (error);
    }
}

/* Settings of an object, and a mesh whose dimensions have other names. */
static gboolean
partition_by_other_names (EbbProcessGroup *group, gpointer data, GError **error)
{
  static const char *const names[] = { "replica", "mp" };
  static const gint64 sizes[] = { 2, 2 };
  g_autoptr (EbbMesh) mesh = ebb_mesh_new (group, names, sizes, 2, error);
  g_autoptr (GObject) unit = g_object_new (unit_get_type (), NULL);
  g_autoptr (GError) local = NULL;
  GObject *const mpus[] = { unit, G_OBJECT (mesh), unit };

  ((Unit *) unit)->group = ebb_mesh_get_group (mesh, "mp");
  ((Unit *) unit)->world_size = 4;
  g_assert_false (ebb_checkpointing_configure (unit, NULL, NULL, &local));
  test_assert_error (local, EBB_ERROR_INVALID_ARGUMENT, "mpu has a model parallel group", "of 2", "of 4", "agree");
  ((Unit *) unit)->world_size = 2;
  g_assert_true (ebb_mesh_set_model_dim (mesh, "mp", error));
  for (guint i = 0; i < G_N_ELEMENTS (mpus); i++)
    {
      g_autoptr (EbbCheckpointOptions) options = NULL;
      EbbProcessGroup *expected = ((Unit *) unit)->group;
      g_autoptr (EbbProcessGroup) of_store = NULL;

      if (i == 2) /* no group, but as many as there are: these */
        {
          ((Unit *) unit)->group = NULL;
          ((Unit *) unit)->world_size = 4;
          expected = group;
        }
      if (!ebb_checkpointing_configure (mpus[i], IN ("\"partition_activations\": true"), NULL, error))
        return FALSE;
      options = ebb_checkpointing_get_options ();
      g_object_get (ebb_checkpoint_options_get_store (options), "group", &of_store, NULL);
      g_assert_true (of_store == expected);
    }
  return TRUE;
}

static void
any_mpu_with_a_group_partitions (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_run_ranks (4, partition_by_other_names, NULL, &error));
  g_assert_no_error (error);
}

/* One checkpoint more than there is room for is an error; reset () reaches the buffers inside. */
static gboolean
fill (EbbProcessGroup *group, gpointer data, GError **error)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (GError) local = NULL;
  EbbArgs *results[3] = { NULL };

  if (!ebb_checkpointing_configure (
          G_OBJECT (group),
          IN ("\"partition_activations\": true, \"contiguous_memory_optimization\": true, \"number_checkpoints\": 1"),
          NULL, error))
    return FALSE;
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) x = test_randn (i, 16, 8, -1);
      g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);

      ebb_args_add_tensor (args, NULL, x);
      results[i] = ebb_checkpointing_checkpoint (compute, g_object_ref (module), g_object_unref, args, &local);
      g_assert_true ((results[i] == NULL) == (i == 1));
      if (i != 1)
        continue;
      test_assert_error (local, EBB_ERROR_NO_MEMORY, "contiguous store");
      g_clear_error (&local);
      ebb_checkpointing_reset ();
    }
  for (guint i = 0; i < 3; i += 2)
    {
      g_autoptr (EbbTensor) loss = test_loss_of_args (results[i]);

      test_backward (loss);
      ebb_args_unref (results[i]);
    }
  return TRUE;
}

static void
buffers_of_parts_are_reset (void)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_run_ranks (2, fill, NULL, &error));
  g_assert_no_error (error);
}

static gboolean
configure_rank (EbbProcessGroup *group, gpointer data, GError **error)
{
  const guint rank = ebb_process_group_get_rank (group);
  g_autoptr (EbbCheckpointOptions) before = ebb_checkpointing_get_options ();
  g_autoptr (EbbCheckpointOptions) after = NULL;

  assert_config (CONFIG (false, true, false, none, false, false)); /* the process' */
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  if (rank == 0)
    configure ("\"profile\": true");
  else if (rank == 1)
    configure ("\"number_checkpoints\": 3");
  if (!ebb_process_group_barrier (group, error))
    return FALSE;
  after = ebb_checkpointing_get_options ();
  g_assert_true ((after == before) == (rank == 2));
  if (rank == 0)
    assert_config (CONFIG (false, false, false, none, false, true));
  else if (rank == 1)
    assert_config (CONFIG (false, false, false, 3, false, false));
  else
    assert_config (CONFIG (false, true, false, none, false, false));
  return TRUE;
}

static void
a_rank_configures_itself_alone (void)
{
  g_autoptr (GError) error = NULL;

  configure ("\"cpu_checkpointing\": true");
  g_assert_true (ebb_run_ranks (3, configure_rank, NULL, &error));
  g_assert_no_error (error);
  assert_config (CONFIG (false, true, false, none, false, false));
}

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
#define TEST(name, func) g_test_add_func ("/checkpointing/config/" name, func)
  TEST ("defaults-then-json-then-arguments", defaults_then_json_then_arguments);
  TEST ("what-is-wrong-is-named", what_is_wrong_is_named);
  TEST ("a-wrong-file-is-named", a_wrong_file_is_named);
  TEST ("wrong-arguments-are-named", wrong_arguments_are_named);
  TEST ("partitioning-demands-ranks", partitioning_demands_ranks);
  TEST ("an-mpu-is-a-mesh-with-tensor-parallel-ranks", an_mpu_is_a_mesh_with_tensor_parallel_ranks);
  TEST ("activations-are-partitioned-over-the-mpu", activations_are_partitioned_over_the_mpu);
  TEST ("any-mpu-with-a-group-partitions", any_mpu_with_a_group_partitions);
  TEST ("buffers-of-parts-are-reset", buffers_of_parts_are_reset);
  TEST ("a-rank-configures-itself-alone", a_rank_configures_itself_alone);
  return g_test_run ();
}
