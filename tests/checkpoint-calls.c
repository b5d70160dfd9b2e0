/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* A wrapped module takes and gives whatever the module does, and stays the same module. */

/* -- any call ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbTensor *x, *y; /* y is passed at three places */
  GObject *object;
} Things;

static EbbArgs *
new_list (const Things *things)
{
  EbbArgs *list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbArgs) pair = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) empty = ebb_args_new (EBB_ARGS_LIST);

  ebb_args_add_none (pair, NULL);
  ebb_args_add_tensor (pair, NULL, things->y);
  ebb_args_add_args (list, NULL, pair);
  ebb_args_add_args (list, NULL, empty);
  ebb_args_add_string (list, NULL, "");
  ebb_args_add_object (list, NULL, things->object);
  return list;
}

static EbbArgs *
new_dictionary (const Things *things)
{
  EbbArgs *dictionary = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) list = new_list (things);
  g_autoptr (EbbArgs) empty = ebb_args_new (EBB_ARGS_DICT);

  ebb_args_add_args (dictionary, "z", list);
  ebb_args_add_double (dictionary, "a", -0.0);
  ebb_args_add_tensor (dictionary, "y", things->y);
  ebb_args_add_args (dictionary, "nothing", empty);
  return dictionary;
}

/* (x, None, -7, {"z": [(None, y), [], "", object], ...}, "text", *, flag=True, y=y, none=None, ratio=0.1, deep=[...])
 */
static EbbArgs *
new_call (const Things *things)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) dictionary = new_dictionary (things);
  g_autoptr (EbbArgs) list = new_list (things);

  ebb_args_add_tensor (args, NULL, things->x);
  ebb_args_add_none (args, NULL);
  ebb_args_add_int (args, NULL, G_MININT64);
  ebb_args_add_args (args, NULL, dictionary);
  ebb_args_add_string (args, NULL, "na\xc3\xafve");
  ebb_args_add_boolean (args, "flag", TRUE);
  ebb_args_add_tensor (args, "y", things->y);
  ebb_args_add_none (args, "none");
  ebb_args_add_double (args, "ratio", 0.1);
  ebb_args_add_object (args, "object", things->object);
  ebb_args_add_args (args, "deep", list);
  return args;
}

typedef struct
{
  EbbArgs *expected;
  guint calls;
} Echo;

/* Computes with the tensors at each depth, and gives all that it got. */
static EbbArgs *
echo (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  Echo *echo = data;
  g_autoptr (EbbArgs) dictionary = ebb_args_get_args (args, 3);
  g_autoptr (EbbArgs) list = ebb_args_get_args (dictionary, 0);
  g_autoptr (EbbArgs) pair = ebb_args_get_args (list, 0);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_args_get_tensor (pair, 1);
  g_autoptr (EbbTensor) again = ebb_args_get_tensor (args, (guint) ebb_args_find (args, "y"));
  g_autoptr (EbbTensor) product = ebb_mul (x, y, error);
  g_autoptr (EbbTensor) sine = ebb_sin (product, error);
  g_autoptr (EbbTensor) result = ebb_mul (sine, again, error);
  EbbArgs *all;

  echo->calls++;
  if (echo->expected != NULL)
    test_assert_args_equal (args, echo->expected);
  if (result == NULL)
    return NULL;
  all = test_args_copy (args);
  ebb_args_add_tensor (all, "result", result);
  return all;
}

static Things
new_things (void)
{
  Things things = { test_randn (1, 3, 8, -1), test_randn (2, 3, 8, -1), g_object_new (G_TYPE_OBJECT, NULL) };

  g_assert_true (ebb_tensor_set_requires_grad (things.y, TRUE, NULL));
  return things;
}

static void
clear_things (Things *things)
{
  ebb_tensor_unref (things->x);
  ebb_tensor_unref (things->y);
  g_object_unref (things->object);
}

static void
every_value_comes_through (void)
{
  GError *error = NULL;
  Things things = new_things ();
  g_autoptr (EbbArgs) args = new_call (&things);
  g_autoptr (EbbArgs) same = new_call (&things);
  g_autoptr (EbbArgs) plain = NULL;
  g_autoptr (EbbArgs) wrapped = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  Echo seen = { same, 0 };
  g_autoptr (EbbModule) module = test_lambda_new (echo, &seen);

  plain = ebb_module_call (module, args, &error);
  wrapped = ebb_module_call (test_wrap (module, NULL), args, &error);
  g_assert_no_error (error);
  test_assert_args_equal (plain, wrapped);
  loss = test_loss_of_args (wrapped);
  test_backward (loss);
  g_assert_cmpuint (seen.calls, ==, 3); /* and the recompute got what the forward had got */
  test_assert_args_equal (args, same);
  clear_things (&things);
}

static EbbArgs *
give (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) y = ebb_exp (x, error);

  return y != NULL ? ebb_args_ref (data) : NULL;
}

static void
results_keep_their_kind (void)
{
  const EbbArgsKind kinds[] = { EBB_ARGS_BARE, EBB_ARGS_LIST, EBB_ARGS_TUPLE, EBB_ARGS_DICT };
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);

  for (guint i = 0; i < G_N_ELEMENTS (kinds); i++)
    for (guint n = 0; n < (kinds[i] == EBB_ARGS_BARE ? 2u : 3u); n++)
      {
        g_autoptr (EbbArgs) value = ebb_args_new (kinds[i]);
        g_autoptr (EbbModule) module = test_lambda_new (give, value);
        g_autoptr (EbbArgs) result = NULL;

        for (guint j = 0; j < n; j++)
          ebb_args_add_tensor (value, kinds[i] != EBB_ARGS_DICT ? NULL : j == 0 ? "b"
                                                                                : "a",
                               x);
        result = ebb_module_call (test_wrap (module, NULL), args, NULL);
        test_assert_args_equal (result, value);
      }
}

/* -- tensors at any depth ------------------------------------------------------------------------------------------ */

static void
nested_tensors_are_differentiated (const TestMode *mode)
{
  Things things = { NULL, NULL, g_object_new (G_TYPE_OBJECT, NULL) };
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = test_randn (2, 3, 8, -1);
  Echo seen = { NULL, 0 };
  g_autoptr (EbbModule) module = test_lambda_new (echo, &seen);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  things.x = ebb_cast (x, mode->dtype, NULL);
  things.y = ebb_cast (y, mode->dtype, NULL);
  ebb_tensor_set_requires_grad (things.x, TRUE, NULL);
  ebb_tensor_set_requires_grad (things.y, TRUE, NULL);
  args = new_call (&things);
  plain = test_train (module, args);
  wrapped = test_train (test_wrap (module, NULL), args);
  test_assert_same_outcome (plain, wrapped);
  clear_things (&things);
}

static void
nested_tensors_go_through_the_store (void)
{
  GError *error = NULL;
  Things things = new_things ();
  g_autoptr (EbbArgs) args = new_call (&things);
  g_autoptr (EbbSavedTensorHooks) store = test_disk_store_new (NULL);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  Echo seen = { NULL, 0 };
  g_autoptr (EbbModule) module = test_lambda_new (echo, &seen);
  g_autoptr (TestOutcome) plain = test_train (module, args);
  g_autoptr (TestOutcome) stored = NULL;

  ebb_checkpoint_options_set_store (options, store);
  stored = test_train (test_wrap (module, options), args);
  g_assert_no_error (error);
  test_assert_same_outcome (plain, stored);
  g_assert_cmpuint (ebb_activation_store_get_bytes_put (EBB_ACTIVATION_STORE (store)), ==, 2 * 3 * 8 * 4);
  g_assert_cmpuint (ebb_activation_store_get_bytes_got (EBB_ACTIVATION_STORE (store)), ==, 2 * 3 * 8 * 4);
  g_assert_cmpuint (test_held (store), ==, 0);
  clear_things (&things);
}

/* (x, x, [x, its transpose], *, row=its second row), and the same tensor closed over. */
static EbbArgs *
new_views (EbbTensor *x)
{
  EbbArgs *args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) list = ebb_args_new (EBB_ARGS_LIST);
  g_autoptr (EbbTensor) turned = ebb_transpose (x, 0, 1, NULL);
  g_autoptr (EbbTensor) row = ebb_narrow (x, 0, 1, 1, NULL);

  ebb_args_add_tensor (list, NULL, x);
  ebb_args_add_tensor (list, NULL, turned);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_args (args, NULL, list);
  ebb_args_add_tensor (args, "row", row);
  return args;
}

static EbbArgs *
use_views (EbbModule *self, EbbArgs *args, gpointer closed_over, GError **error)
{
  g_autoptr (EbbArgs) list = ebb_args_get_args (args, 2);
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) again = ebb_args_get_tensor (args, 1);
  g_autoptr (EbbTensor) turned = ebb_args_get_tensor (list, 1);
  g_autoptr (EbbTensor) row = ebb_args_get_tensor (args, 3);
  g_autoptr (EbbTensor) square = ebb_mul (x, again, error);
  g_autoptr (EbbTensor) product = ebb_matmul (square, turned, error);
  g_autoptr (EbbTensor) wide = ebb_matmul (product, closed_over, error);
  g_autoptr (EbbTensor) last = ebb_mul (wide, row, error);
  g_autoptr (EbbTensor) y = ebb_tanh (last, error);

  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
same_tensor_is_kept_once (void)
{
  GError *error = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 4, 8, -1);
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbSavedTensorHooks) store = ebb_keep_store_new ();
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) module = test_lambda_new (use_views, x);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  guint64 n_packed;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  args = new_views (x);
  plain = test_train (module, args);
  ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (store), 1);
  ebb_checkpoint_options_set_store (options, store);
  g_clear_pointer (&args, ebb_args_unref);
  args = new_views (x);
  wrapped = test_train (test_wrap (module, options), args);
  test_assert_same_outcome (plain, wrapped);

  g_clear_pointer (&args, ebb_args_unref);
  args = new_views (x);
  n_packed = ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (store));
  result = ebb_module_call (module, args, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_activation_store_get_n_packed (EBB_ACTIVATION_STORE (store)) - n_packed, ==, 1);
  g_assert_cmpuint (test_held (store), ==, 4 * 8 * 4);
  stats = ebb_memory_get_stats (NULL);
  g_assert_cmpuint (ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION), ==, 4 * 8 * 4);
}

typedef struct
{
  GBytes *bytes;
  const void *data;
  guint version;
  gboolean requires_grad, is_leaf;
  EbbTensor *grad;
} Look;

static Look
look_at (EbbTensor *tensor)
{
  return (Look){ ebb_tensor_get_bytes (tensor, NULL), ebb_tensor_get_data (tensor, NULL),
                 ebb_tensor_get_version (tensor), ebb_tensor_get_requires_grad (tensor),
                 ebb_tensor_is_leaf (tensor), ebb_tensor_get_grad (tensor) };
}

static void
assert_looks (EbbTensor *tensor, Look was)
{
  Look is = look_at (tensor);
  g_autoptr (GBytes) now = is.bytes;
  g_autoptr (GBytes) before = was.bytes;

  g_assert_true (g_bytes_equal (now, before));
  g_assert_true (is.data == was.data && is.version == was.version);
  g_assert_true (is.requires_grad == was.requires_grad && is.is_leaf == was.is_leaf);
  g_assert_true (is.grad == was.grad);
}

/* Neither leaves without gradient, nor results of earlier ops, nor views, nor what the module gave out; with stores
 * that take the data away and without. */
static void
callers_tensors_are_never_changed (void)
{
  for (guint kind = 0; kind < 3; kind++)
    {
      GError *error = NULL;
      g_autoptr (EbbTensor) leaf = test_randn (1, 4, 8, -1);
      g_autoptr (EbbTensor) start = test_randn (2, 4, 8, -1);
      g_autoptr (EbbTensor) made = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;
      g_autoptr (EbbArgs) args = new_views (leaf);
      g_autoptr (EbbArgs) same = test_args_copy (args);
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbSavedTensorHooks) store = kind == 0 ? NULL : kind == 1 ? ebb_host_store_new ()
                                                                           : test_disk_store_new (NULL);
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbModule) module = NULL;
      Look of_leaf, of_made, of_result;

      ebb_tensor_set_requires_grad (start, TRUE, NULL);
      made = ebb_tanh (start, &error);
      ebb_checkpoint_options_set_store (options, store);
      module = test_wrap (test_lambda_new (use_views, made), options);
      of_leaf = look_at (leaf);
      of_made = look_at (made);
      result = ebb_module_call (module, args, &error);
      g_assert_no_error (error);
      y = ebb_args_get_tensor (result, 0);
      of_result = look_at (y);
      loss = test_loss (y);
      test_backward (loss);
      assert_looks (leaf, of_leaf);
      assert_looks (made, of_made);
      assert_looks (y, of_result);
      test_assert_args_equal (args, same);
    }
}

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
  g_autoptr (EbbTensor) start = test_randn (2, 3, 8, -1);
  g_autoptr (EbbTensor) x = ebb_cast (start, mode->dtype, NULL);
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

      ebb_activation_store_set_least_size (EBB_ACTIVATION_STORE (stores[i]), 1);
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

static void
the_property_wraps_and_unwraps (void)
{
  g_autoptr (EbbModule) module = test_mlp_new (1);

  g_object_set (module, "activation-checkpointing", TRUE, NULL);
  g_assert_true (ebb_checkpoint_is_wrapped (module));
  g_object_set (module, "activation-checkpointing", FALSE, NULL);
  g_assert_false (ebb_checkpoint_is_wrapped (module));
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
  g_test_init (&argc, &argv, NULL);
#define TEST(name, func) g_test_add_func ("/checkpoint/calls/" name, func)
  TEST ("every-value-comes-through", every_value_comes_through);
  TEST ("results-keep-their-kind", results_keep_their_kind);
  test_add_modes ("/checkpoint/calls/nested-tensors-are-differentiated", nested_tensors_are_differentiated);
  TEST ("nested-tensors-go-through-the-store", nested_tensors_go_through_the_store);
  TEST ("same-tensor-is-kept-once", same_tensor_is_kept_once);
  TEST ("callers-tensors-are-never-changed", callers_tensors_are_never_changed);
  TEST ("wrapping-changes-nothing-to-be-seen", wrapping_changes_nothing_to_be_seen);
  test_add_modes ("/checkpoint/calls/wrapping-twice-nests", wrapping_twice_nests);
  TEST ("unwrapping-takes-the-outermost-off", unwrapping_takes_the_outermost_off);
  TEST ("the-property-wraps-and-unwraps", the_property_wraps_and_unwraps);
  g_test_add_data_func ("/checkpoint/calls/dropped-module-goes-at-once/unwrapped", GUINT_TO_POINTER (0),
                        dropped_module_goes_at_once);
  g_test_add_data_func ("/checkpoint/calls/dropped-module-goes-at-once/wrapped", GUINT_TO_POINTER (1),
                        dropped_module_goes_at_once);
  g_test_add_data_func ("/checkpoint/calls/dropped-module-goes-at-once/nested", GUINT_TO_POINTER (2),
                        dropped_module_goes_at_once);
  TEST ("backward-may-not-need-the-module", backward_may_not_need_the_module);
  TEST ("dropped-part-is-named", dropped_part_is_named);
  return g_test_run ();
}
