/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"

#include <json-glib/json-glib.h>
#include <string.h>

/* The counts of wrappers, and how they are reported. */

#define ROWS 3
#define WIDTH 8

static EbbModule *
append (EbbModule *sequence,
        EbbModule *module)
{
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (sequence), module, &error));
  g_assert_no_error (error);
  g_object_unref (module);
  return module;
}

/* Tanh, then a product: the tanh's result is all that it saves inside. */
static EbbModule *
make_part (void)
{
  EbbModule *part = ebb_sequential_new ();

  append (part, ebb_tanh_new ());
  append (part, ebb_linear_new (WIDTH, WIDTH, FALSE, NULL));
  return part;
}

static EbbTensor *
forward (EbbModule *module)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (5, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) y = ebb_module_call1 (module, x, &error);
  EbbTensor *loss = ebb_sum (y, NULL, 0, FALSE, &error);

  g_assert_no_error (error);
  return loss;
}

static void
backward (EbbTensor *loss)
{
  g_autoptr (GError) error = NULL;

  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
}

static void
wrap (EbbModule *module,
      EbbCheckpointOptions *options)
{
  g_object_unref (ebb_checkpoint_wrapper (module, options, NULL));
}

#define assert_stats(module, what, value)                                        \
  do                                                                             \
    {                                                                            \
      g_autoptr (EbbCheckpointStats) stats_ = ebb_checkpoint_get_stats (module); \
                                                                                 \
      g_assert_cmpuint (stats_->what, ==, value);                                \
    }                                                                            \
  while (0)

static void
a_wrapper_counts_what_it_does (void)
{
  const guint64 one = ROWS * WIDTH * sizeof (float);
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  EbbModule *first = append (model, make_part ()), *second = append (model, make_part ());
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) dropped = NULL;

  g_assert_null (ebb_checkpoint_get_stats (first));
  wrap (first, NULL);
  wrap (second, NULL);
  loss = forward (model);
  assert_stats (first, n_forwards, 1);
  assert_stats (first, n_recomputes, 0);
  assert_stats (first, saved_bytes, one);   /* its input */
  assert_stats (first, dropped_bytes, one); /* the tanh's result */
  assert_stats (second, saved_bytes, one);
  backward (loss);
  assert_stats (first, n_recomputes, 1);
  assert_stats (first, saved_bytes, 0);
  assert_stats (first, peak_saved_bytes, one);
  assert_stats (first, dropped_bytes, 0);
  assert_stats (first, peak_dropped_bytes, one);

  dropped = forward (model); /* without backward */
  g_clear_pointer (&dropped, ebb_tensor_unref);
  assert_stats (second, n_forwards, 2);
  assert_stats (second, n_recomputes, 1);
  assert_stats (second, saved_bytes, 0);
  assert_stats (second, dropped_bytes, 0);

  ebb_push_grad_enabled (FALSE);
  dropped = forward (model);
  ebb_pop_grad_enabled ();
  assert_stats (second, n_forwards, 2);

  ebb_checkpoint_reset_stats (model);
  assert_stats (first, n_forwards, 0);
  assert_stats (first, peak_dropped_bytes, 0);
}

/* An inner wrapper's input is the outer one's to recompute. */
static void
nested_wrappers_share_nothing_twice (void)
{
  const guint64 one = ROWS * WIDTH * sizeof (float);
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  EbbModule *first = append (model, make_part ()), *second = append (model, make_part ());
  g_autoptr (EbbTensor) loss = NULL;

  wrap (first, NULL);
  wrap (second, NULL);
  wrap (model, NULL);
  loss = forward (model);
  assert_stats (model, saved_bytes, one);
  assert_stats (model, dropped_bytes, one); /* the second one's input */
  assert_stats (second, saved_bytes, 0);
  assert_stats (second, dropped_bytes, one);
  backward (loss);
  assert_stats (model, n_recomputes, 1);
  assert_stats (second, n_recomputes, 1);
  assert_stats (second, n_forwards, 1); /* a forward inside a recompute is none */
}

static EbbCheckpointPolicy
keep_tanh (const char *op,
           guint ordinal,
           guint64 n_bytes,
           gpointer user_data,
           GError **error)
{
  return strcmp (op, "tanh") == 0 ? EBB_CHECKPOINT_POLICY_MUST_SAVE : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static void
what_a_policy_keeps_is_saved_and_not_recomputed (void)
{
  const guint64 one = ROWS * WIDTH * sizeof (float);
  g_autoptr (EbbModule) part = make_part ();
  g_autoptr (EbbModule) other = make_part ();
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) other_loss = NULL;

  ebb_checkpoint_options_set_policy (options, keep_tanh, NULL, NULL);
  wrap (part, options);
  wrap (other, NULL);
  loss = forward (part);
  other_loss = forward (other);
  assert_stats (part, saved_bytes, 2 * one);
  assert_stats (part, dropped_bytes, 0);
  assert_stats (other, saved_bytes, one);
  backward (loss);
  backward (other_loss);
  assert_stats (part, recompute_flop, 0);
  assert_stats (other, recompute_flop, ROWS * WIDTH); /* of the tanh; the product is spared by the early stop */
}

static void
the_report_has_a_row_for_each_wrapper (void)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();
  EbbModule *first = append (model, make_part ());
  g_autoptr (EbbTensor) loss = NULL;
  g_autofree char *nothing = ebb_checkpoint_report (model);
  g_autofree char *table = NULL;
  g_autofree char *text = NULL;
  g_autoptr (JsonNode) node = NULL;
  JsonArray *modules;
  JsonObject *row, *sum;

  g_assert_cmpstr (nothing, ==, "no module is checkpointed\n");
  append (model, make_part ());
  wrap (first, NULL);
  wrap (first, NULL);
  wrap (model, NULL);
  loss = forward (model);
  backward (loss);
  table = ebb_checkpoint_report (model);
  g_assert_true (g_str_has_prefix (table, "module"));
  g_assert_nonnull (strstr (table, "\n(root) "));
  g_assert_nonnull (strstr (table, "\n0 "));
  g_assert_nonnull (strstr (table, "\nsum "));

  text = ebb_checkpoint_report_json (model);
  node = json_from_string (text, NULL);
  modules = json_object_get_array_member (json_node_get_object (node), "modules");
  g_assert_cmpuint (json_array_get_length (modules), ==, 3);
  row = json_array_get_object_element (modules, 1);
  g_assert_cmpstr (json_object_get_string_member (row, "name"), ==, "0");
  g_assert_cmpstr (json_object_get_string_member (row, "type"), ==, "Sequential");
  /* The outer one of two on a module holds nothing but the inner one's arguments. */
  g_assert_cmpint (json_object_get_int_member (row, "recomputes"), ==, 0);
  row = json_array_get_object_element (modules, 2);
  g_assert_cmpint (json_object_get_int_member (row, "recomputes"), ==, 1);
  sum = json_object_get_object_member (json_node_get_object (node), "sum");
  g_assert_cmpint (json_object_get_int_member (sum, "forwards"), ==, 3);
  g_assert_cmpint (json_object_get_int_member (sum, "saved_bytes"), ==, 0);
}

typedef struct
{
  GString *log;
  EbbModule *module;
  EbbRecomputePhase fails; /* with @armed */
  gboolean armed;
} Listener;

static gboolean
listen (EbbModule *module,
        EbbRecomputePhase phase,
        gpointer user_data,
        GError **error)
{
  Listener *listener = user_data;

  g_assert_true (module == listener->module);
  g_assert_false (ebb_is_recomputing ());
  g_string_append (listener->log, phase == EBB_RECOMPUTE_BEGIN ? "(" : ")");
  if (listener->armed && phase == listener->fails)
    {
      g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "not now");
      return FALSE;
    }
  return TRUE;
}

static void
recomputes_are_announced (void)
{
  g_autoptr (EbbModule) part = make_part ();
  g_autoptr (GString) log = g_string_new (NULL);
  Listener listener = { .log = log, .module = part };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

  ebb_checkpoint_options_set_recompute_func (options, listen, &listener, NULL);
  wrap (part, options);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) loss = forward (part);

      backward (loss);
    }
  g_assert_cmpstr (log->str, ==, "()()");
}

static void
a_callback_that_fails_makes_backward_fail (gconstpointer data)
{
  g_autoptr (EbbModule) part = make_part ();
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (part, "1.weight");
  g_autoptr (GString) log = g_string_new (NULL);
  Listener listener = { log, part, (EbbRecomputePhase) GPOINTER_TO_INT (data), TRUE };
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) again = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (GError) error = NULL;

  ebb_checkpoint_options_set_recompute_func (options, listen, &listener, NULL);
  wrap (part, options);
  loss = forward (part);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
  g_assert_cmpstr (error->message, ==, "recompute of EbbSequential: not now");
  g_assert_cmpuint (ebb_module_get_forward_counter (part), ==, 0);
  g_assert_null (ebb_tensor_get_grad (weight));
  listener.armed = FALSE;
  again = forward (part);
  backward (again);
  grad = ebb_tensor_get_grad (weight);
  g_assert_nonnull (grad);
}

typedef struct
{
  EbbCheckpointOptions *options;
  guint *n_calls; /* of the one after this */
  gboolean is_gone;
} Replaced;

static gboolean
count_call (EbbModule *module,
            EbbRecomputePhase phase,
            gpointer user_data,
            GError **error)
{
  ++*(guint *) user_data;
  return TRUE;
}

static void
note_end (gpointer data)
{
  ((Replaced *) data)->is_gone = TRUE;
}

static gboolean
replace_itself (EbbModule *module,
                EbbRecomputePhase phase,
                gpointer user_data,
                GError **error)
{
  Replaced *replaced = user_data;

  ebb_checkpoint_options_set_recompute_func (replaced->options, count_call, replaced->n_calls, NULL);
  g_assert_false (replaced->is_gone); /* its data is still in use */
  return TRUE;
}

static void
a_callback_may_replace_itself (void)
{
  guint n_calls = 0;
  g_autoptr (EbbModule) part = make_part ();
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  Replaced replaced = { options, &n_calls, FALSE };
  g_autoptr (EbbTensor) loss = NULL;

  ebb_checkpoint_options_set_recompute_func (options, replace_itself, &replaced, note_end);
  wrap (part, options);
  loss = forward (part);
  backward (loss);
  g_assert_true (replaced.is_gone);
  g_assert_cmpuint (n_calls, ==, 1);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/checkpoint/report/a-wrapper-counts-what-it-does", a_wrapper_counts_what_it_does);
  g_test_add_func ("/checkpoint/report/nested-wrappers-share-nothing-twice", nested_wrappers_share_nothing_twice);
  g_test_add_func ("/checkpoint/report/what-a-policy-keeps-is-saved-and-not-recomputed",
                   what_a_policy_keeps_is_saved_and_not_recomputed);
  g_test_add_func ("/checkpoint/report/has-a-row-for-each-wrapper", the_report_has_a_row_for_each_wrapper);
  g_test_add_func ("/checkpoint/callback/recomputes-are-announced", recomputes_are_announced);
  g_test_add_func ("/checkpoint/callback/may-replace-itself", a_callback_may_replace_itself);
  g_test_add_data_func ("/checkpoint/callback/that-fails-at-the-begin", GINT_TO_POINTER (EBB_RECOMPUTE_BEGIN),
                        a_callback_that_fails_makes_backward_fail);
  g_test_add_data_func ("/checkpoint/callback/that-fails-at-the-end", GINT_TO_POINTER (EBB_RECOMPUTE_END),
                        a_callback_that_fails_makes_backward_fail);
  return g_test_run ();
}
