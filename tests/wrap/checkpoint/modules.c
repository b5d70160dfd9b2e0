/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* A wrapped module stays the same module, and goes when it is dropped. */

/* -- same module --------------------------------------------------------------------------------------------------- */

/* All properties but the one that says whether it is wrapped. */
static char *
properties_to_string (EbbModule *module)
{
  guint n;
  g_autofree GParamSpec **specs = g_object_class_list_properties (G_OBJECT_GET_CLASS (module), &n);
  GString *text = g_string_new (G_OBJECT_TYPE_NAME (module));

  for (guint i = 0; i < n; i++)
    {
      g_auto (GValue) value = G_VALUE_INIT;
      g_autofree char *part = NULL;

      if (g_str_equal (specs[i]->name, "activation-checkpointing") || !(specs[i]->flags & G_PARAM_READABLE)
          || G_TYPE_FUNDAMENTAL (specs[i]->value_type) == G_TYPE_BOXED) /* whose text is an address */
        continue;
      g_value_init (&value, specs[i]->value_type);
      g_object_get_property (G_OBJECT (module), specs[i]->name, &value);
      part = g_strdup_value_contents (&value);
      g_string_append_printf (text, " %s=%s", specs[i]->name, part);
    }
  return g_string_free (text, FALSE);
}

static char *
names_to_string (EbbModule *module)
{
  g_auto (GStrv) parameters = ebb_module_get_parameter_names (module, TRUE);
  g_auto (GStrv) buffers = ebb_module_get_buffer_names (module, TRUE);
  g_auto (GStrv) modules = ebb_module_get_module_names (module);
  g_autofree char *a = g_strjoinv (" ", parameters);
  g_autofree char *b = g_strjoinv (" ", buffers);
  g_autofree char *c = g_strjoinv (" ", modules);
  g_autofree char *text = ebb_module_to_string (module);

  return g_strjoin ("\n", a, b, c, text, NULL);
}

static void
wrapping_changes_nothing_to_be_seen (void)
{
  EbbModule *modules[] = { test_gpt_new (), test_mlp_new (1), ebb_batch_norm1d_new (8, 1e-5, 0.1, NULL),
                           ebb_transformer_block_new (16, 2, 0.1, TRUE, TRUE, NULL) };

  for (guint i = 0; i < G_N_ELEMENTS (modules); i++)
    {
      g_autoptr (EbbModule) module = modules[i];
      g_autofree char *properties = properties_to_string (module);
      g_autofree char *names = names_to_string (module);
      g_autoptr (EbbArgs) state = ebb_module_get_state_dict (module);

      for (guint times = 1; times <= 2; times++)
        {
          GError *error = NULL;
          g_autoptr (EbbModule) same = ebb_checkpoint_wrapper (module, NULL, &error);
          g_autofree char *properties_now = properties_to_string (module);
          g_autofree char *names_now = names_to_string (module);
          g_autoptr (EbbArgs) state_now = ebb_module_get_state_dict (module);

          g_assert_no_error (error);
          g_assert_true (same == module);
          g_assert_cmpstr (properties, ==, properties_now);
          g_assert_cmpstr (names, ==, names_now);
          test_assert_args_equal (state, state_now);
          g_assert_true (ebb_module_load_state_dict (module, state, TRUE, &error));
        }
      g_assert_cmpuint (G_OBJECT (module)->ref_count, ==, 1);
    }
}

static void
wrapping_twice_nests (const TestMode *mode)
{
  guint calls = 0;
  g_autoptr (EbbModule) module = test_counting_new (1, &calls);
  g_autoptr (EbbTensor) x = test_input_in (mode, 3);
  g_autoptr (TestOutcome) plain = NULL;

  ebb_module_to_dtype (module, mode->dtype, NULL);
  plain = test_train1 (module, x);
  for (guint depth = 1; depth <= 3; depth++)
    {
      g_autoptr (TestOutcome) wrapped = NULL;

      test_wrap (module, NULL);
      calls = 0;
      wrapped = test_train1 (module, x);
      test_assert_same_outcome (plain, wrapped);
      /* Each wrapper's backward runs what is inside it: the inputs of the inner ones are the outermost one's. */
      g_assert_cmpuint (calls, ==, 2);
      g_assert_cmpuint (ebb_module_get_forward_counter (module), ==, 0);
    }
}

static void
unwrapping_takes_the_outermost_off (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
  EbbSavedTensorHooks *stores[2] = { ebb_keep_store_new (), ebb_keep_store_new () };
  const guint64 size = 3 * 8 * 4;

  g_assert_false (ebb_checkpoint_unwrap (module));
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

      g_object_set (stores[i], "least-size", (guint64) 1, NULL);
      ebb_checkpoint_options_set_store (options, stores[i]);
      test_wrap (module, options);
    }
  test_outcome_free (test_train1 (module, x));
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (stores[0])), ==, 0);
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (stores[1])), ==, size);
  g_assert_true (ebb_checkpoint_unwrap (module));
  g_assert_true (ebb_checkpoint_is_wrapped (module));
  ebb_activation_store_reset_stats (EBB_ACTIVATION_STORE (stores[1]));
  test_outcome_free (test_train1 (module, x));
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (stores[0])), ==, size);
  g_assert_cmpuint (ebb_activation_store_get_bytes_peak (EBB_ACTIVATION_STORE (stores[1])), ==, 0);
  g_assert_true (ebb_checkpoint_unwrap (module));
  g_assert_false (ebb_checkpoint_is_wrapped (module));
  g_assert_false (ebb_checkpoint_unwrap (module));
  g_object_unref (stores[0]);
  g_object_unref (stores[1]);
}

/* A recompute runs with the wrappers of its forward, whatever was wrapped or unwrapped since. */
static void
wrappers_may_change_before_backward (void)
{
  for (guint before = 1; before <= 2; before++)
    for (guint after = 0; after <= 3; after++)
      {
        guint calls = 0;
        g_autoptr (EbbModule) module = test_counting_new (1, &calls);
        g_autoptr (EbbTensor) x = test_randn (2, 3, 8, -1);
        g_autoptr (TestOutcome) plain = test_train1 (module, x);
        g_autoptr (EbbTensor) y = NULL;
        g_autoptr (EbbTensor) loss = NULL;
        g_autoptr (TestOutcome) outcome = NULL;

        for (guint i = 0; i < before; i++)
          test_wrap (module, NULL);
        calls = 0;
        y = test_forward1 (module, x);
        for (guint i = before; i > after; i--)
          g_assert_true (ebb_checkpoint_unwrap (module));
        for (guint i = before; i < after; i++)
          test_wrap (module, NULL);
        loss = test_loss (y);
        test_backward (loss);
        g_assert_cmpuint (calls, ==, 2);
        outcome = test_outcome_new (module, NULL);
        g_assert_true (ebb_tensor_equal (outcome->tensors->pdata[0], plain->tensors->pdata[0]));
        g_assert_cmpuint (ebb_module_get_forward_counter (module), ==, 0);
      }
}

static void
count_notes (GObject *object,
             GParamSpec *spec,
             gpointer user_data)
{
  (*(guint *) user_data)++;
}

/* Notified once for each change of the property, and only then. */
static void
assert_switch (EbbModule *module,
               gboolean expected,
               guint *n_notes,
               guint expected_notes)
{
  gboolean enabled;

  g_object_get (module, "activation-checkpointing", &enabled, NULL);
  g_assert_cmpint (enabled, ==, expected);
  g_assert_cmpint (ebb_module_get_activation_checkpointing (module), ==, expected);
  g_assert_cmpint (ebb_checkpoint_is_wrapped (module), ==, expected);
  g_assert_cmpuint (*n_notes, ==, expected_notes);
}

static void
the_property_wraps_and_unwraps (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbModule) plain = test_mlp_new (1);
  g_autoptr (EbbTensor) x = test_randn (3, 5, 8, -1);
  g_autoptr (TestOutcome) expected = test_train1 (plain, x);
  guint n_notes = 0;

  g_signal_connect (module, "notify::activation-checkpointing", G_CALLBACK (count_notes), &n_notes);
  assert_switch (module, FALSE, &n_notes, 0);
  g_object_set (module, "activation-checkpointing", FALSE, NULL);
  assert_switch (module, FALSE, &n_notes, 0);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (TestOutcome) outcome = NULL;

      g_object_set (module, "activation-checkpointing", TRUE, NULL);
      assert_switch (module, TRUE, &n_notes, 2 * i + 1);
      g_object_set (module, "activation-checkpointing", TRUE, NULL);
      assert_switch (module, TRUE, &n_notes, 2 * i + 1);
      outcome = test_train1 (module, x);
      test_assert_same_outcome (outcome, expected);
      g_assert_cmpuint (ebb_checkpoint_get_n_recomputes (module), ==, 1);
      g_object_set (module, "activation-checkpointing", FALSE, NULL);
      assert_switch (module, FALSE, &n_notes, 2 * i + 2);
    }
}

/* However it was wrapped: TRUE leaves that alone, FALSE takes all of it off, and wrappers below are none of its. */
static void
the_property_follows_other_wrappers (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);
  g_autoptr (EbbModule) below = ebb_module_get_child (module, "0");
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  guint n_notes = 0, ref_count = G_OBJECT (options)->ref_count;

  g_signal_connect (module, "notify::activation-checkpointing", G_CALLBACK (count_notes), &n_notes);
  test_wrap (below, NULL);
  assert_switch (module, FALSE, &n_notes, 0);
  test_wrap (module, options);
  assert_switch (module, TRUE, &n_notes, 1);
  g_object_set (module, "activation-checkpointing", TRUE, NULL);
  g_assert_true (ebb_checkpoint_unwrap (module)); /* there was one only */
  assert_switch (module, FALSE, &n_notes, 2);
  g_assert_false (ebb_checkpoint_unwrap (module));

  g_assert_true (ebb_checkpoint_wrap_uniform (module, 2, options, NULL));
  assert_switch (module, TRUE, &n_notes, 3);
  test_wrap (module, options);
  test_wrap (module, NULL);
  assert_switch (module, TRUE, &n_notes, 3);
  g_assert_true (ebb_checkpoint_unwrap (module));
  assert_switch (module, TRUE, &n_notes, 3);
  g_assert_true (ebb_module_set_activation_checkpointing (module, FALSE, NULL));
  assert_switch (module, FALSE, &n_notes, 4);
  g_assert_cmpuint (G_OBJECT (options)->ref_count, ==, ref_count);
  g_assert_true (ebb_module_get_activation_checkpointing (below));
}

static void
a_list_is_not_switched_on (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) list = ebb_module_list_new ();
  g_autoptr (EbbModule) layer = test_mlp_new (1);
  guint n_notes = 0;

  g_assert_true (ebb_module_list_append (EBB_MODULE_LIST (list), layer, NULL));
  g_assert_false (ebb_module_set_activation_checkpointing (list, TRUE, &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "ModuleList: activation_checkpointing", "on the modules");
  assert_switch (list, FALSE, &n_notes, 0);
  g_assert_false (ebb_module_set_activation_checkpointing (layer, TRUE, &error)); /* one is set already */
  g_assert_false (ebb_module_set_activation_checkpointing (NULL, TRUE, NULL));
  g_assert_true (ebb_checkpoint_wrap_uniform (list, 1, NULL, NULL));
  assert_switch (list, TRUE, &n_notes, 0);
  g_assert_true (ebb_module_set_activation_checkpointing (list, FALSE, NULL));
  assert_switch (list, FALSE, &n_notes, 0);
}

/* -- lifetime ------------------------------------------------------------------------------------------------------ */

typedef enum
{
  NEVER_CALLED,
  AFTER_FORWARD,
  AFTER_STEP,
  AFTER_ERROR_IN_FORWARD,
  AFTER_ERROR_IN_RECOMPUTE,
  N_MOMENTS
} Moment;

static EbbTensor *
fail_when_told (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  int *calls_left = data;
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) y = ebb_mul (x, gain, error);

  if ((*calls_left)-- == 0)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "told so");
      return NULL;
    }
  return ebb_sin (y, error);
}

static gboolean
use_until (EbbModule *model, EbbTensor *x, Moment moment, EbbTensor **loss)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = moment == NEVER_CALLED ? NULL : ebb_module_call1 (model, x, &error);

  if (y == NULL)
    return FALSE;
  *loss = test_loss (y);
  return moment == AFTER_STEP || moment == AFTER_ERROR_IN_RECOMPUTE ? ebb_tensor_backward (*loss, &error) : TRUE;
}

static void
dropped_module_goes_at_once (gconstpointer data)
{
  const guint wrappers = GPOINTER_TO_UINT (data); /* none, on the whole, on each part too */

  for (Moment moment = NEVER_CALLED; moment < N_MOMENTS; moment++)
    {
      g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
      g_autoptr (EbbTensor) loss = NULL;
      guint64 before = test_bytes_in_use ();
      int calls_left = moment == AFTER_ERROR_IN_FORWARD ? 0 : moment == AFTER_ERROR_IN_RECOMPUTE && wrappers ? 1
                                                                                                             : -1;
      EbbModule *inner = test_with_gain (test_lambda1_new (fail_when_told, &calls_left), 2), *gone_inner = inner;
      EbbModule *model = test_chain_new (ebb_tanh_new (), inner, test_mlp_new (3), NULL), *gone = model;
      gboolean will_work = moment != NEVER_CALLED && calls_left < 0, ok;

      g_object_add_weak_pointer (G_OBJECT (model), (gpointer *) &gone);
      g_object_add_weak_pointer (G_OBJECT (inner), (gpointer *) &gone_inner);
      if (wrappers > 1)
        test_wrap_leaves (model, NULL);
      if (wrappers > 0)
        test_wrap (model, NULL);
      ok = use_until (model, x, moment, &loss);
      g_assert_true (ok == will_work);
      g_object_unref (model);
      g_assert_null (gone);
      g_assert_null (gone_inner);
      if (moment == AFTER_FORWARD)
        {
          g_autoptr (GError) error = NULL;

          g_assert_true (ebb_tensor_backward (loss, &error) == (wrappers == 0));
          if (wrappers > 0)
            test_assert_error (error, EBB_ERROR_GRAPH, "EbbSequential", "finalized", "keep a reference");
        }
      g_clear_pointer (&loss, ebb_tensor_unref);
      g_assert_cmpuint (test_bytes_in_use (), ==, before);
    }
}

static EbbTensor *
add_gain (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");

  return ebb_mul (x, gain, error);
}

/* Of what it computes backward needs nothing that was made inside. */
static void
backward_may_not_need_the_module (void)
{
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (EbbTensor) gain = NULL;
  EbbModule *module = test_with_gain (test_lambda1_new (add_gain, NULL), 2);

  gain = ebb_module_get_parameter (module, "gain");
  y = test_forward1 (test_wrap (module, NULL), x);
  g_object_unref (module);
  loss = test_loss (y);
  test_backward (loss);
  grad = ebb_tensor_get_grad (gain);
  g_assert_nonnull (grad);
}

static void
dropped_part_is_named (void)
{
  guint calls = 0;
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbModule) kept = test_mlp_new (1);
  EbbModule *dropped = test_wrap (test_counting_new (2, &calls), NULL);
  g_autoptr (EbbTensor) hidden = test_forward1 (test_wrap (kept, NULL), x);
  g_autoptr (EbbTensor) y = test_forward1 (dropped, hidden);
  g_autoptr (EbbTensor) loss = test_loss (y);

  g_object_unref (dropped);
  g_assert_false (ebb_tensor_backward (loss, &error));
  test_assert_error (error, EBB_ERROR_GRAPH, "TestLambda", "finalized");
  g_assert_cmpuint (calls, ==, 1);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/modules/" name, func)
  TEST ("wrapping-changes-nothing-to-be-seen", wrapping_changes_nothing_to_be_seen);
  test_add_modes ("/checkpoint/modules/wrapping-twice-nests", wrapping_twice_nests);
  TEST ("unwrapping-takes-the-outermost-off", unwrapping_takes_the_outermost_off);
  TEST ("wrappers-may-change-before-backward", wrappers_may_change_before_backward);
  TEST ("the-property-wraps-and-unwraps", the_property_wraps_and_unwraps);
  TEST ("the-property-follows-other-wrappers", the_property_follows_other_wrappers);
  TEST ("a-list-is-not-switched-on", a_list_is_not_switched_on);
  g_test_add_data_func ("/checkpoint/modules/dropped-module-goes-at-once/unwrapped", GUINT_TO_POINTER (0),
                        dropped_module_goes_at_once);
  g_test_add_data_func ("/checkpoint/modules/dropped-module-goes-at-once/wrapped", GUINT_TO_POINTER (1),
                        dropped_module_goes_at_once);
  g_test_add_data_func ("/checkpoint/modules/dropped-module-goes-at-once/nested", GUINT_TO_POINTER (2),
                        dropped_module_goes_at_once);
  TEST ("backward-may-not-need-the-module", backward_may_not_need_the_module);
  TEST ("dropped-part-is-named", dropped_part_is_named);
  return g_test_run ();
}
