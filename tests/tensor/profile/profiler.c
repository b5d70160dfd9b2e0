/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/profiles.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* -- what is recorded ---------------------------------------------------------------------------------------------- */

/* The object of @array whose @member is @value; NULL if there is none. */
static JsonObject *
find (JsonObject *object,
      const char *array,
      const char *member,
      const char *value)
{
  JsonArray *items = json_object_get_array_member (object, array);

  for (guint i = 0; i < json_array_get_length (items); i++)
    {
      JsonObject *item = json_array_get_object_element (items, i);

      if (strcmp (json_object_get_string_member (item, member), value) == 0)
        return item;
    }
  return NULL;
}

static void
every_op_of_a_step_is_counted_in_its_phase (void)
{
  static const char *const names[] = { "linear", "tanh", "dropout", "square", "mean" };
  static const guint calls[] = { 2, 1, 1, 1, 1 };
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();
  g_autoptr (EbbModule) module = test_mlp_new (1);
  GError *error = NULL;
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 1e-3, &error);
  g_autoptr (EbbTensor) x = NULL;

  g_assert_no_error (error);
  test_profile_start (profiler);
  x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  test_profile_train (module, x, optimizer);
  ebb_profiler_stop (profiler);
  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, names[i]), ==, calls[i]);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_BACKWARD, names[i]), ==, calls[i]);
    }
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, 6);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, NULL), ==, 0);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_OTHER, "normal"), ==, 1);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_OTHER, NULL), ==, 1);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_OPTIMIZER, NULL), >, 0);
  g_assert_cmpuint (ebb_profiler_get_n_steps (profiler), ==, 1);
}

static void
times_add_up (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (module, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = test_profile_get_json (profiler, &parser);
  JsonArray *ops = json_object_get_array_member (object, "ops");
  double seconds = ebb_profiler_get_seconds (profiler), of_ops = 0, of_phases = 0;

  for (guint i = 0; i < json_array_get_length (ops); i++)
    of_ops += json_object_get_double_member (json_array_get_object_element (ops, i), "seconds");
  for (int phase = EBB_PHASE_FORWARD; phase <= EBB_PHASE_OTHER; phase++)
    of_phases += ebb_profiler_get_phase_seconds (profiler, (EbbPhase) phase);
  g_assert_cmpfloat_with_epsilon (of_ops, of_phases, 1e-9);
  g_assert_cmpfloat_with_epsilon (of_ops, json_object_get_double_member (object, "op_seconds"), 1e-9);
  g_assert_cmpfloat_with_epsilon (of_ops + json_object_get_double_member (object, "outside_seconds"), seconds, 1e-9);
  g_assert_cmpfloat (of_ops, >, 0);
  g_assert_cmpfloat (ebb_profiler_get_product_seconds (profiler), <=, of_ops);
}

/* -- checkpointing ------------------------------------------------------------------------------------------------- */

static void
what_is_recomputed_is_a_phase (void)
{
  for (int early_stop = 0; early_stop < 2; early_stop++)
    {
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbModule) blocks = NULL;
      g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
      g_autoptr (EbbProfiler) profiler = NULL;

      g_object_set (options, "early-stop", early_stop, NULL);
      blocks = test_profile_blocks_new (options);
      profiler = test_profile_new (blocks, x);
      /* Four products a block; what the last one and the sum after it give, backward does not need. */
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, "linear"), ==, 8);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "linear"), ==, early_stop ? 6 : 8);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "residual_dropout"), ==,
                        early_stop ? 0 : 2);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "self_attention"), ==, 2);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_BACKWARD, "linear"), ==, 8);
      g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_BACKWARD, "self_attention"), ==, 2);
      g_assert_cmpfloat (ebb_profiler_get_phase_seconds (profiler, EBB_PHASE_RECOMPUTE), >, 0);
    }
}

static EbbCheckpointPolicy
keep_attention (const char *op,
                guint ordinal,
                guint64 n_bytes,
                gpointer user_data,
                GError **error)
{
  return strcmp (op, "self_attention") == 0 ? EBB_CHECKPOINT_POLICY_MUST_SAVE
                                            : EBB_CHECKPOINT_POLICY_PREFER_RECOMPUTE;
}

static void
what_is_kept_is_not_recomputed (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = NULL;
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = NULL;

  ebb_checkpoint_options_set_policy (options, keep_attention, NULL, NULL);
  blocks = test_profile_blocks_new (options);
  profiler = test_profile_new (blocks, x);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "linear"), ==, 6);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, "self_attention"), ==, 2);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_RECOMPUTE, "self_attention"), ==, 0);
}

static void
ops_know_their_module_in_every_phase (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = test_profile_blocks_new (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (blocks, x);
  g_autoptr (JsonParser) parser = NULL;
  JsonObject *object = test_profile_get_json (profiler, &parser);
  JsonObject *attention = find (object, "modules", "path", "1.attn");

  g_assert_nonnull (attention);
  g_assert_nonnull (find (object, "modules", "path", "0.mlp"));
  g_assert_cmpfloat (json_object_get_double_member (attention, "forward"), >, 0);
  g_assert_cmpfloat (json_object_get_double_member (attention, "recompute"), >, 0);
  g_assert_cmpfloat (json_object_get_double_member (attention, "backward"), >, 0);
}

static void
a_profiler_changes_no_bit (void)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) blocks = test_profile_blocks_new (options);
  g_autoptr (EbbTensor) x = test_randn (2, 2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (TestOutcome) plain = test_train1 (blocks, x);
  g_autoptr (TestOutcome) profiled = NULL;
  g_autoptr (EbbProfiler) profiler = ebb_profiler_new ();

  test_profile_start (profiler);
  profiled = test_train1 (blocks, x);
  ebb_profiler_stop (profiler);
  test_assert_same_outcome (plain, profiled);
}

/* -- starting and stopping ----------------------------------------------------------------------------------------- */

static void
nothing_is_recorded_after_stop (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbProfiler) profiler = test_profile_new (module, x);
  guint64 n = ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL);
  double seconds = ebb_profiler_get_seconds (profiler);

  g_assert_false (ebb_profiler_is_running (profiler));
  test_profile_train (module, x, NULL);
  ebb_profiler_stop (profiler);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, n);
  g_assert_cmpfloat (ebb_profiler_get_seconds (profiler), ==, seconds);
  test_profile_start (profiler);
  test_profile_train (module, x, NULL);
  ebb_profiler_stop (profiler);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, 2 * n);
  ebb_profiler_clear (profiler);
  g_assert_cmpuint (ebb_profiler_count_ops (profiler, EBB_PHASE_FORWARD, NULL), ==, 0);
  g_assert_cmpfloat (ebb_profiler_get_seconds (profiler), ==, 0);
}

static void
one_profiler_runs_on_a_thread (void)
{
  g_autoptr (EbbProfiler) first = ebb_profiler_new ();
  g_autoptr (EbbProfiler) second = ebb_profiler_new ();
  g_autoptr (GError) twice = NULL;
  g_autoptr (GError) another = NULL;
  g_autoptr (GError) floor = NULL;

  test_profile_start (first);
  g_assert_true (ebb_profiler_is_running (first));
  g_assert_false (ebb_profiler_start (first, &twice));
  test_assert_error (twice, EBB_ERROR_INVALID_ARGUMENT, "runs already");
  g_assert_false (ebb_profiler_start (second, &another));
  test_assert_error (another, EBB_ERROR_INVALID_ARGUMENT, "another one", "stop it first");
  g_assert_false (ebb_profiler_start (second, &another)); /* an error that is set already stays */
  g_assert_false (ebb_profiler_measure_floor (first, &floor));
  test_assert_error (floor, EBB_ERROR_INVALID_ARGUMENT, "stop it");
  ebb_profiler_stop (first);
  test_profile_start (second);
  ebb_profiler_stop (second);
}

typedef enum
{
  START,
  STOP,
  CLEAR
} Deed;

typedef struct
{
  EbbProfiler *profiler;
  Deed deed;
} Meddling;

static EbbTensor *
meddle (EbbModule *self,
        EbbTensor *x,
        gpointer data,
        GError **error)
{
  Meddling *meddling = data;

  if (meddling->deed == START)
    test_profile_start (meddling->profiler);
  else if (meddling->deed == STOP)
    ebb_profiler_stop (meddling->profiler);
  else
    ebb_profiler_clear (meddling->profiler);
  return ebb_tanh (x, error);
}

static void
it_may_start_stop_and_be_cleared_inside_a_module (void)
{
  static const guint counts[] = { 2, 1, 2 };

  for (int deed = START; deed <= CLEAR; deed++)
    {
      Meddling meddling = { ebb_profiler_new (), (Deed) deed };
      g_autoptr (EbbModule) module = test_chain_new (ebb_tanh_new (), test_lambda1_new (meddle, &meddling),
                                                     ebb_tanh_new (), NULL);
      g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
      g_autoptr (EbbTensor) y = NULL;
      g_autofree char *table = NULL;
      GError *error = NULL;

      if (deed != START)
        test_profile_start (meddling.profiler);
      y = ebb_module_call1 (module, x, &error);
      g_assert_no_error (error);
      ebb_profiler_stop (meddling.profiler);
      g_assert_cmpuint (ebb_profiler_count_ops (meddling.profiler, EBB_PHASE_FORWARD, "tanh")
                            + ebb_profiler_count_ops (meddling.profiler, EBB_PHASE_OTHER, "tanh"),
                        ==, counts[deed]);
      table = ebb_profiler_get_table (meddling.profiler);
      g_assert_nonnull (table);
      g_object_unref (meddling.profiler);
    }
}

/* -- threads ------------------------------------------------------------------------------------------------------- */

static gpointer
run_thread (gpointer data)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);

  return test_profile_new (module, x);
}

static void
each_thread_has_its_own (void)
{
  g_autoptr (EbbProfiler) own = ebb_profiler_new ();
  g_autoptr (EbbProfiler) other = NULL;
  g_autoptr (EbbTensor) x = test_randn (2, 4, TEST_PROFILE_WIDTH, -1);
  g_autoptr (EbbTensor) y = NULL;
  GThread *thread;
  GError *error = NULL;

  test_profile_start (own);
  thread = g_thread_new ("other", run_thread, NULL);
  y = ebb_sqrt (x, &error);
  other = g_thread_join (thread);
  ebb_profiler_stop (own);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_profiler_count_ops (own, EBB_PHASE_FORWARD, NULL), ==, 0);
  g_assert_cmpuint (ebb_profiler_count_ops (own, EBB_PHASE_OTHER, NULL), ==, 1);
  g_assert_cmpuint (ebb_profiler_count_ops (other, EBB_PHASE_FORWARD, NULL), ==, 6);
  g_assert_cmpuint (ebb_profiler_count_ops (other, EBB_PHASE_FORWARD, "sqrt"), ==, 0);
}

static gpointer
start_alone (gpointer data)
{
  test_profile_start (data);
  return NULL;
}

static void
a_thread_that_ends_lets_go (void)
{
  EbbProfiler *profiler = ebb_profiler_new ();

  g_thread_join (g_thread_new ("ends", start_alone, profiler));
  g_assert_false (ebb_profiler_is_running (profiler));
  test_profile_start (profiler);
  ebb_profiler_stop (profiler);
  g_object_add_weak_pointer (G_OBJECT (profiler), (gpointer *) &profiler);
  g_object_unref (profiler);
  g_assert_null (profiler);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/profiler/every-op-of-a-step-is-counted-in-its-phase", every_op_of_a_step_is_counted_in_its_phase);
  g_test_add_func ("/profiler/times-add-up", times_add_up);
  g_test_add_func ("/profiler/what-is-recomputed-is-a-phase", what_is_recomputed_is_a_phase);
  g_test_add_func ("/profiler/what-is-kept-is-not-recomputed", what_is_kept_is_not_recomputed);
  g_test_add_func ("/profiler/ops-know-their-module-in-every-phase", ops_know_their_module_in_every_phase);
  g_test_add_func ("/profiler/changes-no-bit", a_profiler_changes_no_bit);
  g_test_add_func ("/profiler/nothing-is-recorded-after-stop", nothing_is_recorded_after_stop);
  g_test_add_func ("/profiler/one-runs-on-a-thread", one_profiler_runs_on_a_thread);
  g_test_add_func ("/profiler/starts-and-stops-inside-a-module", it_may_start_stop_and_be_cleared_inside_a_module);
  g_test_add_func ("/profiler/each-thread-has-its-own", each_thread_has_its_own);
  g_test_add_func ("/profiler/a-thread-that-ends-lets-go", a_thread_that_ends_lets_go);
  return g_test_run ();
}
