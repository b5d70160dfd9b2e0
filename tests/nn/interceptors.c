/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers */
#include <string.h>

#include "nn/module-private.h"
#include "support/device.h"
#include "support/tensors.h"
#include "support/test-modules.h"

typedef struct
{
  GString *log;
  const char *name;
  guint remove;   /* an interceptor to remove before going on */
  guint repeat;   /* how many times to call what is inside */
  gboolean block; /* does not go on at all */
} Plan;

static EbbArgs *
intercept (EbbModule *module, EbbArgs *args, const EbbForwardChain *inside, gpointer user_data, GError **error)
{
  Plan *plan = user_data;
  EbbArgs *result = NULL;

  g_string_append_printf (plan->log, "%s( ", plan->name);
  if (plan->remove != 0)
    g_assert_true (ebb_module_remove_interceptor (module, plan->remove));
  if (plan->block)
    return ebb_args_ref (args);
  for (guint i = 0; i < MAX (plan->repeat, 1); i++)
    {
      g_clear_pointer (&result, ebb_args_unref);
      result = ebb_forward_chain_call (inside, module, args, error);
    }
  g_string_append_printf (plan->log, ")%s ", plan->name);
  return result;
}

static void
forget (gpointer data)
{
  Plan *plan = data;

  g_string_append_printf (plan->log, "~%s ", plan->name);
}

static float
call_with (EbbModule *module, float value)
{
  g_autoptr (EbbTensor) x = test_floats (&value, 1, -1);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);

  g_assert_no_error (error);
  return test_at (y, 0);
}

static void
the_last_added_is_outermost (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  Plan a = { log, "a", 0, 0, FALSE }, b = { log, "b", 0, 2, FALSE };
  guint id_a = ebb_module_add_interceptor (scale, "checkpoint", intercept, &a, forget);
  guint id_b = ebb_module_add_interceptor (scale, "shard", intercept, &b, forget);

  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "b( a( )a a( )a )b ");
  g_assert_cmpuint (ebb_module_find_interceptor (scale, "checkpoint"), ==, id_a);
  g_assert_cmpuint (ebb_module_find_interceptor (scale, "shard"), ==, id_b);
  g_assert_cmpuint (ebb_module_find_interceptor (scale, "other"), ==, 0);
  g_assert_true (ebb_module_get_interceptor_data (scale, id_b) == &b);
  g_assert_false (ebb_module_remove_hook (scale, id_b)); /* not a hook */
  g_string_truncate (log, 0);
  g_assert_true (ebb_module_remove_interceptor (scale, id_a));
  g_assert_false (ebb_module_remove_interceptor (scale, id_a));
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "~a b( )b ");
}

static gboolean
blocks (gpointer user_data)
{
  return ((const Plan *) user_data)->block;
}

static gboolean
count_call (EbbModule *module, EbbArgs *args, EbbArgs *result, gpointer user_data, GError **error)
{
  ++*(guint *) user_data;
  return TRUE;
}

/* One that is not idle has all called, those around it too; and hooks are called however idle it is. */
static void
idle_ones_are_left_out_together (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  Plan a = { log, "a", 0, 0, TRUE }, b = { log, "b", 0, 0, TRUE };
  guint id_a, id_b;
  guint calls = 0, hook;

  ebb_module_add_idle_interceptor (scale, "x", intercept, blocks, &a, NULL, &id_a);
  ebb_module_add_idle_interceptor (scale, "x", intercept, blocks, &b, NULL, &id_b);
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "");
  a.block = FALSE;
  b.block = FALSE;
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "b( a( )a )b ");
  g_string_truncate (log, 0);
  a.block = TRUE; /* but b is not */
  g_assert_cmpfloat (call_with (scale, 2), ==, 2);
  g_assert_cmpstr (log->str, ==, "b( a( )b ");
  g_string_truncate (log, 0);
  b.block = TRUE;
  hook = ebb_module_add_forward_hook (scale, count_call, &calls, NULL);
  g_assert_true (ebb_module_remove_interceptor (scale, id_b));
  a.block = FALSE;
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpuint (calls, ==, 1);
  g_assert_true (ebb_module_remove_hook (scale, hook));
}

static void
removing_during_a_call_is_safe (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  Plan a = { log, "a", 0, 0, FALSE }, b = { log, "b", 0, 0, FALSE }, c = { log, "c", 0, 0, FALSE };

  b.remove = ebb_module_add_interceptor (scale, "x", intercept, &a, forget);
  c.remove = ebb_module_add_interceptor (scale, "x", intercept, &b, forget);
  ebb_module_add_interceptor (scale, "x", intercept, &c, forget);
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "c( a( )a )c ~b "); /* b was passed over, and freed when the call was over */
  g_string_truncate (log, 0);
  c.remove = 0;
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "c( a( )a )c ");
}

static void
an_interceptor_may_remove_itself (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  Plan a = { log, "a", 0, 0, FALSE };

  a.remove = ebb_module_add_interceptor (scale, "x", intercept, &a, forget);
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "a( )a ~a ");
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "a( )a ~a ");
}

static void
what_is_inside_is_found_again (void)
{
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  g_autoptr (EbbTensor) x = test_floats ((float[]){ 2 }, 1, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);
  Plan a = { log, "a", 0, 0, FALSE }, b = { log, "b", 0, 0, FALSE }, c = { log, "c", 0, 0, TRUE };
  guint id;

  ebb_module_add_interceptor (scale, "x", intercept, &a, forget);
  id = ebb_module_add_interceptor (scale, "x", intercept, &b, forget);
  ebb_module_add_interceptor (scale, "x", intercept, &c, forget);
  for (int i = 0; i < 2; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbArgs) result = ebb_module_call_inside (scale, id, args, &error);
      g_autoptr (EbbTensor) y = NULL;

      g_assert_no_error (error);
      y = ebb_args_get_tensor (result, 0);
      g_assert_cmpfloat (test_at (y, 0), ==, 6);
      g_assert_cmpstr (log->str, ==, "a( )a ");
      ebb_module_remove_interceptor (scale, id); /* also when it is gone */
      g_string_truncate (log, 0);
    }
  g_assert_cmpfloat (call_with (scale, 2), ==, 2); /* c goes no further */
  g_assert_cmpstr (log->str, ==, "c( ");
}

static gboolean switched_to;

static gboolean
switch_checkpointing (EbbModule *module, gboolean enabled, GError **error)
{
  switched_to = enabled;
  if (enabled)
    {
      static Plan plan;

      plan = (Plan){ g_object_get_data (G_OBJECT (module), "log"), "k", 0, 0, FALSE };
      return ebb_module_add_interceptor (module, "checkpoint", intercept, &plan, NULL) != 0;
    }
  return ebb_module_remove_interceptor (module, ebb_module_find_interceptor (module, "checkpoint"));
}

static gboolean
is_switched (EbbModule *module)
{
  return ebb_module_find_interceptor (module, "checkpoint") != 0;
}

static void
the_property_is_the_wrapper (void)
{
  static const EbbActivationCheckpointingFuncs funcs = { is_switched, switch_checkpointing };
  g_autoptr (GString) log = g_string_new (NULL);
  g_autoptr (EbbModule) scale = test_scale_new (3);
  gboolean enabled;

  g_object_set_data (G_OBJECT (scale), "log", log);
  ebb_module_set_activation_checkpointing_funcs (&funcs);
  g_object_set (scale, "activation-checkpointing", TRUE, NULL);
  g_object_get (scale, "activation-checkpointing", &enabled, NULL);
  g_assert_true (enabled && switched_to);
  g_assert_cmpfloat (call_with (scale, 2), ==, 6);
  g_assert_cmpstr (log->str, ==, "k( )k ");
  g_object_set (scale, "activation-checkpointing", FALSE, NULL);
  g_object_get (scale, "activation-checkpointing", &enabled, NULL);
  g_assert_false (enabled || switched_to);
}

static EbbArgs *
give_two (EbbModule *module, EbbArgs *args, const EbbForwardChain *inside, gpointer user_data, GError **error)
{
  g_autoptr (EbbArgs) result = ebb_forward_chain_call (inside, module, args, error);
  g_autoptr (EbbArgs) twice = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbTensor) tensor = result != NULL ? ebb_args_get_tensor (result, 0) : NULL;

  if (tensor == NULL)
    return NULL;
  ebb_args_add_tensor (twice, NULL, tensor);
  ebb_args_add_tensor (twice, NULL, tensor);
  return g_steal_pointer (&twice);
}

static EbbTensor *
compute_loss (EbbModule *module, EbbTensor *tokens, GError **error)
{
  if (EBB_IS_GPT (module))
    return ebb_gpt_loss (EBB_GPT (module), tokens, tokens, error);
  return ebb_bert_loss (EBB_BERT (module), tokens, NULL, NULL, tokens, error);
}

/* A loss that is not one tensor is an error, not NULL alone. */
static void
two_tensors_are_no_loss (void)
{
  g_autoptr (EbbGptConfig) gpt_config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbBertConfig) bert_config = ebb_bert_config_new_preset ("tiny");
  g_autoptr (EbbTensor) tokens = test_tokens (1, 64, 1, 4, -1);
  g_autoptr (EbbModule) gpt = ebb_gpt_new (gpt_config, NULL);
  g_autoptr (EbbModule) bert = ebb_bert_new (bert_config, NULL);
  EbbModule *const models[] = { gpt, bert };

  for (guint i = 0; i < G_N_ELEMENTS (models); i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) one = compute_loss (models[i], tokens, &error);
      g_autoptr (EbbTensor) two = NULL;

      g_assert_no_error (error);
      g_assert_nonnull (one);
      ebb_module_add_interceptor (models[i], "x", give_two, NULL, NULL);
      two = compute_loss (models[i], tokens, &error);
      g_assert_null (two);
      test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, ebb_module_get_type_name (models[i]),
                         "one tensor was asked for");
    }
}

static void
the_counter_counts (void)
{
  g_autoptr (EbbModule) scale = test_scale_new (3);

  ebb_module_add_to_forward_counter (scale, 2);
  ebb_module_add_to_forward_counter (scale, -1);
  g_assert_cmpuint (ebb_module_get_forward_counter (scale), ==, 1);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/interceptors/the-last-added-is-outermost", the_last_added_is_outermost);
  g_test_add_func ("/interceptors/idle-ones-are-left-out", idle_ones_are_left_out_together);
  g_test_add_func ("/interceptors/removing-during-a-call-is-safe", removing_during_a_call_is_safe);
  g_test_add_func ("/interceptors/an-interceptor-may-remove-itself", an_interceptor_may_remove_itself);
  g_test_add_func ("/interceptors/what-is-inside-is-found-again", what_is_inside_is_found_again);
  g_test_add_func ("/interceptors/the-property-is-the-wrapper", the_property_is_the_wrapper);
  g_test_add_func ("/interceptors/two-tensors-are-no-loss", two_tensors_are_no_loss);
  g_test_add_func ("/interceptors/the-counter-counts", the_counter_counts);
  return g_test_run ();
}
