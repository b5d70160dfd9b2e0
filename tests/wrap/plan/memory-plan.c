/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers one-thread */
/* Memory plans: which blocks they find, how they are put on and taken off, their table and their files. */
#include "wrap/plan/blocks-private.h"
#include "wrap/plan/memory-plan-private.h"

#include "support/device.h"
#include "support/gpt-step.h"

#include <glib/gstdio.h>
#include <string.h>

#define N_LAYERS 4

/* -- blocks -------------------------------------------------------------------------------------------------------- */

static void
check_blocks (EbbModule *model, const char *wanted)
{
  g_autoptr (GArray) blocks = ebb_plan_find_blocks (model);
  g_autoptr (GString) found = g_string_new (NULL);

  for (guint i = 0; i < blocks->len; i++)
    {
      const EbbPlanBlock *block = &g_array_index (blocks, EbbPlanBlock, i);

      g_string_append_printf (found, "%s%s%s", i > 0 ? " " : "", block->path, block->is_taken ? "*" : "");
    }
  g_assert_cmpstr (found->str, ==, wanted);
}

static EbbModule *
make_sequence (guint n_children)
{
  EbbModule *sequence = ebb_sequential_new ();

  for (guint i = 0; i < n_children; i++)
    {
      g_autoptr (EbbModule) linear = ebb_linear_new (2, 2, TRUE, NULL);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (sequence), linear, NULL));
    }
  return sequence;
}

static void
wrap_at (EbbModule *model, const char *path)
{
  guint n_modules;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n_modules);
  g_auto (GStrv) names = ebb_module_get_module_names (model);

  for (guint i = 0; i < n_modules; i++)
    {
      if (strcmp (names[i], path) == 0)
        g_object_unref (ebb_checkpoint_wrapper (modules[i], NULL, NULL));
      g_object_unref (modules[i]);
    }
}

static void
test_finds_blocks (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (3, 0);
  g_autoptr (EbbModule) outer = make_sequence (2);
  g_autoptr (EbbModule) inner = make_sequence (3);
  g_autoptr (EbbModule) linear = ebb_linear_new (2, 2, TRUE, NULL);

  check_blocks (gpt, "h.0 h.1 h.2");
  wrap_at (gpt, "h.1.mlp");
  check_blocks (gpt, "h.0 h.1* h.2");
  wrap_at (gpt, "h.2");
  check_blocks (gpt, "h.0 h.1* h.2*");
  wrap_at (gpt, "");
  check_blocks (gpt, "h.0* h.1* h.2*");

  check_blocks (linear, "");
  check_blocks (outer, "0 1");
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (outer), inner, NULL));
  check_blocks (outer, "0 1 2");
  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (inner), linear, NULL));
  check_blocks (outer, "2.0 2.1 2.2 2.3");
}

/* -- applying ------------------------------------------------------------------------------------------------------ */

/* One plan with a row of each kind; the second block is the user's if @takes. */
static EbbMemoryPlan *
make_plan (EbbModule *gpt, gboolean takes)
{
  static const EbbPlanOp products[] = { { 1, "linear" }, { 2, "self_attention" } };
  EbbMemoryPlan *plan = ebb_memory_plan_new_empty (gpt);
  EbbPlanRow rows[N_LAYERS] = {
    { .is_checkpoint = TRUE, .kept_bytes = 4096, .freed_bytes = 3 << 20, .seconds = 0.25 },
    { .is_checkpoint = TRUE, .n_saved = 2, .kept_bytes = 8192, .freed_bytes = 2 << 20, .seconds = 0.125 },
    { .is_checkpoint = TRUE, .place = EBB_MEMORY_PLACE_DISK, .freed_bytes = 3 << 20, .seconds = 0.25 },
    { .kept_bytes = 3 << 20 },
  };

  rows[1].is_taken = takes;
  for (guint i = 0; i < N_LAYERS; i++)
    {
      rows[i].path = g_strdup_printf ("h.%u", i);
      rows[i].saved = rows[i].n_saved > 0 ? g_memdup2 (products, sizeof products) : NULL;
      for (guint op = 0; op < rows[i].n_saved; op++)
        rows[i].saved[op].name = g_intern_string (rows[i].saved[op].name);
      ebb_memory_plan_add_row (plan, &rows[i]);
    }
  ebb_memory_plan_add_rung (plan, "mlp-tiles", ebb_tile_get_least_rows ());
  plan->budget_bytes = 20 << 20;
  plan->predicted_peak_bytes = 19 << 20;
  plan->unplanned_peak_bytes = 27 << 20;
  plan->least_bytes = 17 << 20;
  plan->seconds = 0.625;
  plan->step_seconds = 3.125;
  g_free (plan->binds);
  plan->binds = g_strdup ("the backward of h.3");
  g_free (plan->step);
  plan->step = g_strdup ("f32 [2, 16, 32]");
  plan->needs = g_strsplit ("8bit-moments step-in-backward", " ", -1);
  return plan;
}

static guint
count_wrapped (EbbModule *gpt)
{
  g_autoptr (EbbModule) h = ebb_module_get_child (gpt, "h");
  guint n = 0;

  for (guint i = 0; i < N_LAYERS; i++)
    {
      g_autoptr (EbbModule) block = ebb_module_list_get (EBB_MODULE_LIST (h), i);

      n += ebb_checkpoint_is_wrapped (block);
    }
  return n;
}

static guint64
get_saved (EbbModule *gpt, const char *index)
{
  g_autoptr (EbbModule) h = ebb_module_get_child (gpt, "h");
  g_autoptr (EbbModule) block = ebb_module_get_child (h, index);
  g_autoptr (EbbCheckpointStats) stats = ebb_checkpoint_get_stats (block);

  return stats->peak_saved_bytes;
}

static void
test_applies (void)
{
  enum
  {
    UNIT = TEST_GPT_BATCH * TEST_GPT_CONTEXT * TEST_GPT_WIDTH * 4
  };
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0.1);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, FALSE);
  g_auto (TestGptStep) plain = { 0 };
  g_auto (TestGptStep) planned = { 0 };
  g_auto (TestGptStep) after = { 0 };
  g_autoptr (GError) error = NULL;

  test_gpt_step_run (gpt, FALSE, &plain);
  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  g_assert_cmpuint (count_wrapped (gpt), ==, 3);
  test_gpt_step_run (gpt, FALSE, &planned);
  test_assert_same_gpt_step (&plain, &planned);
  g_assert_cmpuint (planned.held, <, plain.held);
  g_assert_cmpuint (get_saved (gpt, "0"), ==, UNIT);
  g_assert_cmpuint (get_saved (gpt, "1"), >=, 5 * UNIT);

  g_assert_false (ebb_memory_plan_apply (plan, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  ebb_memory_plan_unapply (plan);
  g_assert_cmpuint (count_wrapped (gpt), ==, 0);
  test_gpt_step_run (gpt, FALSE, &after);
  test_assert_same_gpt_step (&plain, &after);
  g_assert_cmpuint (after.held, ==, plain.held);
}

static void
check_refused (EbbMemoryPlan *plan, EbbModule *gpt, const char *message)
{
  const guint n_wrapped = count_wrapped (gpt);
  g_autoptr (GError) error = NULL;

  g_assert_false (ebb_memory_plan_apply (plan, &error));
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_cmpstr (error->message, ==, message);
  g_assert_cmpuint (count_wrapped (gpt), ==, n_wrapped);
}

static void
test_leaves_the_users_wrappers (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, TRUE), other = make_plan (gpt, FALSE);

  check_refused (plan, gpt, "h.1 was wrapped by you when the step was planned, and is not wrapped now");
  wrap_at (gpt, "h.1");
  check_refused (other, gpt,
                 "h.1, which the plan is to wrap, is wrapped already, or a part of it or what it is in");
  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  wrap_at (gpt, "h.0"); /* around the plan's */
  ebb_memory_plan_unapply (plan);
  g_assert_cmpuint (count_wrapped (gpt), ==, 2);
  g_assert_true (ebb_memory_plan_apply (other, NULL) == FALSE);
}

/* A plan may be dropped once it is applied. */
static void
test_wrappers_outlive_the_plan (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  EbbMemoryPlan *plan = make_plan (gpt, FALSE);

  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  g_object_unref (plan);
  g_assert_cmpuint (count_wrapped (gpt), ==, 3);
}

static void
test_needs_a_partitioned_store (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, FALSE);

  g_array_index (plan->rows, EbbPlanRow, 2).place = EBB_MEMORY_PLACE_PARTITIONED;
  check_refused (plan, gpt,
                 "the plan divides inputs among ranks, and has no store for that: set a partitioned store by "
                 "ebb_memory_plan_set_store ()");
}

static void
test_another_op_is_refused (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, FALSE);
  const gint64 shape[] = { 1, 4 };
  g_autoptr (EbbTensor) tokens = ebb_zeros (shape, 2, EBB_DTYPE_I64, NULL, NULL);
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (GError) error = NULL;

  g_array_index (plan->rows, EbbPlanRow, 1).saved[0].name = g_intern_string ("tanh");
  g_assert_true (ebb_memory_plan_apply (plan, NULL));
  logits = ebb_module_call1 (gpt, tokens, &error);
  g_assert_null (logits);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_STATE);
  g_assert_nonnull (strstr (error->message,
                            "the plan saves op 1 of h.1, which was tanh when it was planned and is linear now"));
}

/* -- text ---------------------------------------------------------------------------------------------------------- */

static void
test_table (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, FALSE);
  g_autofree char *text = NULL;

  g_array_index (plan->rows, EbbPlanRow, 2).place = EBB_MEMORY_PLACE_HOST;
  g_free (g_array_index (plan->rows, EbbPlanRow, 1).saved);
  g_array_index (plan->rows, EbbPlanRow, 1).saved = NULL;
  g_array_index (plan->rows, EbbPlanRow, 1).n_saved = 0;
  text = ebb_memory_plan_to_string (plan);
  g_assert_cmpstr (text, ==,
                   "blocks      keep        recompute   move     seconds  freed MiB\n"
                   "h.0 to h.1  inputs      everything            0.3750        5.0\n"
                   "h.2         inputs      everything  to host   0.2500        3.0\n"
                   "h.3         everything  nothing               0.0000        0.0\n"
                   "mlp-tiles: each MLP on 960 rows at a time\n"
                   "3 of 4 blocks recompute, the last one not: its backward comes first\n"
                   "peak 19.0 MiB of 20.0 MiB, in the backward of h.3; without the plan 27.0 MiB, and no plan needs "
                   "less than 17.0 MiB\n"
                   "0.6250 s a step longer: 3.1250 s, 25.0 % more\n");
}

/* -- files --------------------------------------------------------------------------------------------------------- */

typedef struct
{
  char *folder, *path;
} File;

static void
file_open (File *file)
{
  file->folder = g_dir_make_tmp ("ebb-plan-XXXXXX", NULL);
  file->path = g_build_filename (file->folder, "plan.json", NULL);
}

static void
file_close (File *file)
{
  g_remove (file->path);
  g_assert_cmpint (g_rmdir (file->folder), ==, 0);
  g_free (file->folder);
  g_free (file->path);
}

static void
test_round_trip (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, TRUE), loaded = NULL;
  g_autofree char *before = NULL, *after = NULL, *step = NULL;
  g_auto (GStrv) needs = NULL;
  g_autoptr (GError) error = NULL;
  guint64 budget;
  File file;

  file_open (&file);
  g_assert_true (ebb_memory_plan_save (plan, file.path, &error));
  loaded = ebb_memory_plan_load (gpt, file.path, &error);
  g_assert_no_error (error);
  before = ebb_memory_plan_to_json (plan);
  after = ebb_memory_plan_to_json (loaded);
  g_assert_cmpstr (before, ==, after);
  g_object_get (loaded, "budget-bytes", &budget, "step", &step, "needs", &needs, NULL);
  g_assert_cmpstr (needs[0], ==, "8bit-moments");
  g_assert_cmpstr (needs[1], ==, "step-in-backward");
  g_assert_null (needs[2]);
  g_assert_cmpuint (budget, ==, 20 << 20);
  g_assert_cmpstr (step, ==, "f32 [2, 16, 32]");
  file_close (&file);
}

/* With the first @old of the file replaced. */
static void
check_damaged (EbbModule *model, const char *json, const char *old, const char *new, const char *message)
{
  const char *place = strstr (json, old);
  g_autofree char *wanted = NULL, *text = NULL;
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;
  File file;

  g_assert_nonnull (place);
  text = g_strdup_printf ("%.*s%s%s", (int) (place - json), json, new, place + strlen (old));
  file_open (&file);
  wanted = g_strdup_printf ("%s: %s", file.path, message);
  g_assert_true (g_file_set_contents (file.path, text, -1, NULL));
  plan = ebb_memory_plan_load (model, file.path, &error);
  g_assert_null (plan);
  g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
  g_assert_cmpstr (error->message, ==, wanted);
  file_close (&file);
}

static void
test_damaged_files (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0), deeper = test_gpt_step_model (N_LAYERS + 1, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, FALSE);
  g_autofree char *json = ebb_memory_plan_to_json (plan);

  check_damaged (gpt, json, "ebb_memory_plan", "ebb_plan", "this is no memory plan: it has no \"ebb_memory_plan\"");
  check_damaged (gpt, json, "\"on_ranks\": false", "\"on_ranks\": 0", "\"on_ranks\" must be true or false");
  check_damaged (gpt, json, "\"8bit-moments\"", "8", "\"needs\" must be a list of names");
  check_damaged (gpt, json, "\"needs\"", "\"wants\"", "\"needs\" must be a list of names");
  check_damaged (gpt, json, "plan\": 2", "plan\": 1",
                 "a memory plan of version 1; this Ebb reads version 2, so plan again");
  check_damaged (gpt, json, "h.0.ln_1.weight\": \"f32 [32]", "h.0.ln_1.weight\": \"bf16 [64]",
                 "a plan for another model: its h.0.ln_1.weight is \"bf16 [64]\", and here it is \"f32 [32]\"");
  check_damaged (gpt, json, "h.0.ln_1.weight", "h.0.norm.weight",
                 "a plan for another model: it has no parameter h.0.ln_1.weight");
  check_damaged (deeper, json, "1", "1", "a plan for another model: it has no parameter h.4.ln_1.weight");
  check_damaged (gpt, json, "\"block\": \"h.2\"", "\"block\": \"h.7\"",
                 "a plan for another model: its block 2 is \"h.7\", and here it is \"h.2\"");
  check_damaged (gpt, json, "\"checkpoint\"", "\"forget\"", "block \"h.0\": \"do\" must be keep, checkpoint or leave");
  check_damaged (gpt, json, "\"disk\"", "\"tape\"",
                 "block \"h.2\": \"place\" must be device, host, disk or partitioned");
  check_damaged (gpt, json, "\"linear\"", "\"line\\n\"", "block \"h.1\": \"op\" must be the name of an op");
  check_damaged (gpt, json, "\"number\": 1", "\"number\": 2",
                 "block \"h.1\": \"saves\" must be a list of ops in the order of their numbers");
  check_damaged (gpt, json, "\"number\": 1", "\"number\": -1", "block \"h.1\": \"number\" must be the number of an op");
  check_damaged (gpt, json, "\"budget_bytes\": 20971520", "\"budget_bytes\": -20971520",
                 "\"budget_bytes\" must be a number of bytes");
  check_damaged (gpt, json, "\"seconds\": 0.625", "\"seconds\": \"0.625\"",
                 "\"seconds\" must be a number of seconds");
  check_damaged (gpt, json, "\"mlp-tiles\": 960", "\"mlp-tiles\": []", "\"rungs\" must be an object of integers");
  check_damaged (gpt, json, "\"mlp-tiles\": 960", "\"mlp-tiles\": 0",
                 "the plan has tiles of 0 rows; a tile has one or more");
  check_damaged (gpt, json, "\"mlp-tiles\"", "\"chant\"",
                 "the plan wants \"chant\", which this Ebb doesn't know: plan again");
}

static void
test_truncated_files (void)
{
  g_autoptr (EbbModule) gpt = test_gpt_step_model (N_LAYERS, 0);
  g_autoptr (EbbMemoryPlan) plan = make_plan (gpt, FALSE);
  g_autofree char *json = ebb_memory_plan_to_json (plan);
  File file;

  file_open (&file);
  for (gssize length = (gssize) strlen (json) - 2; length >= 0; length -= 37)
    {
      g_autoptr (EbbMemoryPlan) loaded = NULL;
      g_autoptr (GError) error = NULL;

      g_assert_true (g_file_set_contents (file.path, json, length, NULL));
      loaded = ebb_memory_plan_load (gpt, file.path, &error);
      g_assert_null (loaded);
      g_assert_error (error, EBB_ERROR, EBB_ERROR_FORMAT);
      g_assert_null (strchr (error->message, '\n'));
    }
  g_remove (file.path);
  g_assert_null (ebb_memory_plan_load (gpt, file.path, NULL));
  file_close (&file);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  ebb_set_num_threads (1); /* tiles of 960 rows */
  g_test_add_func ("/plan/blocks", test_finds_blocks);
  g_test_add_func ("/plan/apply/gradients-are-bitwise-equal", test_applies);
  g_test_add_func ("/plan/apply/leaves-wrappers-of-the-user", test_leaves_the_users_wrappers);
  g_test_add_func ("/plan/apply/wrappers-outlive-the-plan", test_wrappers_outlive_the_plan);
  g_test_add_func ("/plan/apply/needs-a-partitioned-store", test_needs_a_partitioned_store);
  g_test_add_func ("/plan/apply/another-op-is-refused", test_another_op_is_refused);
  g_test_add_func ("/plan/table", test_table);
  g_test_add_func ("/plan/file/round-trip", test_round_trip);
  g_test_add_func ("/plan/file/another-model-or-version-or-damaged", test_damaged_files);
  g_test_add_func ("/plan/file/truncated", test_truncated_files);
  return g_test_run ();
}
