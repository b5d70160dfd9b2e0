/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/device.h"

#include "train/report-private.h"

#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

typedef struct
{
  EbbModule *model;
  GArray *losses, *seconds, *evaluations;
  EbbTrainingReport report;
} Fixture;

static void
set_up (Fixture *self, gconstpointer data G_GNUC_UNUSED)
{
  static const double losses[] = { 3.5, 0.1 + 0.2, 1.0 / 3 }, seconds[] = { 4, 1, 0.5 };

  self->model = ebb_linear_new (3, 2, TRUE, NULL);
  self->losses = g_array_append_vals (g_array_new (FALSE, FALSE, sizeof (double)), losses, G_N_ELEMENTS (losses));
  self->seconds = g_array_append_vals (g_array_new (FALSE, FALSE, sizeof (double)), seconds, G_N_ELEMENTS (seconds));
  self->evaluations = g_array_new (FALSE, FALSE, sizeof (EbbEvaluation));
  self->report = (EbbTrainingReport){ .model = self->model,
                                      .device = ebb_device_get_cpu (),
                                      .losses = self->losses,
                                      .seconds = self->seconds,
                                      .evaluations = self->evaluations,
                                      .step_tokens = 64,
                                      .first_step = 4,
                                      .last_step = 7,
                                      .n_parameters = 8,
                                      .rss_peak_before_bytes = 12345 };
}

static void
tear_down (Fixture *self, gconstpointer data G_GNUC_UNUSED)
{
  g_object_unref (self->model);
  g_array_unref (self->losses);
  g_array_unref (self->seconds);
  g_array_unref (self->evaluations);
}

static JsonNode *
make (const Fixture *self)
{
  g_autofree char *text = ebb_training_report_to_json (&self->report);
  g_autoptr (GError) error = NULL;
  JsonNode *root;

  g_assert_null (strchr (text, '\n'));
  root = json_from_string (text, &error);
  g_assert_no_error (error);
  return root;
}

/* One line without blanks. */
static void
assert_member (JsonObject *object, const char *name, const char *wanted)
{
  JsonNode *node = json_object_get_member (object, name);
  g_autofree char *text = NULL;

  g_assert_nonnull (node);
  text = json_to_string (node, FALSE);
  g_assert_cmpstr (text, ==, wanted);
}

static void
numbers_of_steps (Fixture *self, gconstpointer data G_GNUC_UNUSED)
{
  g_autoptr (JsonNode) root = make (self);
  JsonObject *object = json_node_get_object (root);
  JsonArray *losses = json_object_get_array_member (object, "losses");

  g_assert_cmpuint (json_array_get_length (losses), ==, 3);
  for (guint i = 0; i < 3; i++)
    g_assert_true (json_array_get_double_element (losses, i) == g_array_index (self->losses, double, i));
  g_assert_true (json_object_get_double_member (object, "final_loss") == 1.0 / 3);
  assert_member (object, "step_seconds", "[4,1,0.5]");
  assert_member (object, "tokens_per_second", "64"); /* of the median */
  assert_member (object, "first_step", "4");
  assert_member (object, "last_step", "7");
  assert_member (object, "parameters", "8");
  assert_member (object, "recomputed_blocks", "0");
  assert_member (object, "rss_peak_before_bytes", "12345");
  g_assert_cmpint (json_object_get_int_member (object, "rss_peak_bytes"), >, 1 << 20);
  g_assert_cmpint (json_object_get_int_member (object, "parameter_bytes"), >=, 8 * 4);
  g_assert_cmpstr (json_object_get_string_member (object, "version"), ==, ebb_get_version_string ());
  g_assert_true (json_object_has_member (json_object_get_object_member (object, "checkpointing"), "sum"));
  for (guint i = 0; i < 4; i++)
    g_assert_false (json_object_has_member (object, (const char *[]){ "store", "ranks", "best_step", "plan" }[i]));
}

static void
losses_that_are_no_numbers (Fixture *self, gconstpointer data G_GNUC_UNUSED)
{
  const EbbEvaluation all[] = { { 0, NAN, FALSE }, { 7, 0, TRUE } };
  g_autoptr (JsonNode) root = NULL;
  JsonObject *object;

  g_array_set_size (self->losses, 0);
  g_array_set_size (self->seconds, 0);
  g_array_append_vals (self->evaluations, all, G_N_ELEMENTS (all));
  self->report.best_step = 7;
  self->report.best_loss = 0.25;
  root = make (self);
  object = json_node_get_object (root);
  assert_member (object, "final_loss", "null");
  assert_member (object, "tokens_per_second", "0");
  assert_member (object, "losses", "[]");
  assert_member (object, "evaluations",
                 "[{\"step\":0,\"loss\":null,\"perplexity\":null},{\"step\":7,\"loss\":0,\"perplexity\":1}]");
  assert_member (object, "best_loss", "0.25");
  assert_member (object, "best_step", "7");
}

static void
members_of_the_budget_and_the_store (Fixture *self, gconstpointer data G_GNUC_UNUSED)
{
  g_autoptr (EbbSavedTensorHooks) store = EBB_SAVED_TENSOR_HOOKS (ebb_host_store_new ());
  g_autoptr (JsonNode) root = NULL;
  JsonObject *object, *stored;

  self->report.budget = "{\n  \"budget_bytes\": 5,\n  \"plan\": {\"blocks\": []},\n  \"corrections\": [\"a\"]\n}\n";
  self->report.store = EBB_ACTIVATION_STORE (store);
  root = make (self);
  object = json_node_get_object (root);
  assert_member (object, "budget_bytes", "5");
  assert_member (object, "plan", "{\"blocks\":[]}");
  assert_member (object, "corrections", "[\"a\"]");
  stored = json_object_get_object_member (object, "store");
  g_assert_cmpstr (json_object_get_string_member (stored, "kind"), ==, "host");
  g_assert_cmpuint (json_object_get_size (stored), >, 1);
}

static void
communication_is_that_of_a_step (Fixture *self, gconstpointer data G_GNUC_UNUSED)
{
  gint64 values[2 * EBB_N_RANK_VALUES];
  g_autoptr (JsonNode) root = NULL;
  JsonObject *object;
  JsonArray *ranks;

  ebb_training_report_take_rank (ebb_device_get_cpu (), NULL, 0, values);
  ebb_training_report_take_rank (ebb_device_get_cpu (), NULL, 0, values + EBB_N_RANK_VALUES);
  values[EBB_N_RANK_VALUES - 2 * EBB_N_COLLECTIVES] = 6;     /* calls of the first collective */
  values[EBB_N_RANK_VALUES - EBB_N_COLLECTIVES] = 1000;      /* its bytes */
  values[2 * EBB_N_RANK_VALUES - 2 * EBB_N_COLLECTIVES] = 9; /* of the other rank */
  values[2 * EBB_N_RANK_VALUES - EBB_N_COLLECTIVES] = 3000;
  self->report.rank_values = values;
  self->report.n_ranks = 2;
  root = make (self);
  object = json_node_get_object (root);
  ranks = json_object_get_array_member (object, "ranks");
  g_assert_cmpuint (json_array_get_length (ranks), ==, 2);
  assert_member (json_array_get_object_element (ranks, 1), "rank", "1");
  assert_member (json_array_get_object_element (ranks, 1), "communication",
                 "{\"all_reduce\":{\"calls\":3,\"bytes\":1000}}");
  g_assert_cmpint (json_object_get_int_member (json_array_get_object_element (ranks, 0), "parameter_bytes_held"), >=,
                   8 * 4);
  assert_member (object, "communication", "{\"all_reduce\":{\"calls\":2,\"bytes\":333.33333333333331}}");
}

#define ADD(name, function) g_test_add ("/report/" name, Fixture, NULL, set_up, function, tear_down)

int
main (int argc, char **argv)
{
  g_test_init (&argc, &argv, NULL);
  ADD ("numbers-of-steps", numbers_of_steps);
  ADD ("losses-that-are-no-numbers", losses_that_are_no_numbers);
  ADD ("members-of-the-budget-and-the-store", members_of_the_budget_and_the_store);
  ADD ("communication-is-that-of-a-step", communication_is_that_of_a_step);
  return g_test_run ();
}
