/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* Whatever fails, and wherever: its own error comes out, nothing is left behind, and the next step is right. */

typedef enum
{
  FORWARD,
  RECOMPUTE,
  POLICY,
  CALLBACK_BEFORE,
  CALLBACK_AFTER,
  PACK,
  UNPACK,
  HOOK_BEFORE,
  HOOK_AFTER,
  N_PLACES
} Place;

static const char *const place_names[] = { "forward", "recompute", "policy", "callback-before-recompute",
                                           "callback-after", "pack", "unpack", "hook-before",
                                           "hook-after" };

/* Fails once at @place, after some times that pass. */
typedef struct
{
  Place place;
  int n_to_pass;
  guint n_failures;
} Plot;

static gboolean
pass (Plot *plot, Place here, GError **error)
{
  if (plot->place != here || plot->n_to_pass-- != 0)
    return TRUE;
  plot->n_failures++;
  g_set_error (error, G_IO_ERROR, G_IO_ERROR_BUSY, "%s: told so", place_names[here]);
  return FALSE;
}

static EbbTensor *
plotting_forward (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);
  g_autoptr (EbbTensor) dropped = ebb_dropout (scaled, 0.2, TRUE, NULL, error);
  g_autoptr (EbbTensor) y = ebb_sin (dropped, error);
  g_autoptr (EbbTensor) z = ebb_tanh (y, error);

  return pass (data, ebb_is_recomputing () ? RECOMPUTE : FORWARD, error) ? ebb_exp (z, error) : NULL;
}

static EbbCheckpointPolicy
plotting_policy (const char *op, guint ordinal, guint64 n_bytes, gpointer data, GError **error)
{
  return pass (data, POLICY, error) && g_str_equal (op, "linear") ? EBB_CHECKPOINT_POLICY_MUST_SAVE
                                                                  : EBB_CHECKPOINT_POLICY_MUST_RECOMPUTE;
}

static gboolean
plotting_callback (EbbModule *module, EbbRecomputePhase phase, gpointer data, GError **error)
{
  return pass (data, phase == EBB_RECOMPUTE_BEGIN ? CALLBACK_BEFORE : CALLBACK_AFTER, error);
}

static gboolean
plotting_hook (EbbModule *module, EbbArgs *args, EbbArgs *result, gpointer data, GError **error)
{
  return pass (data, result == NULL ? HOOK_BEFORE : HOOK_AFTER, error);
}

G_DECLARE_FINAL_TYPE (PlottingStore, plotting_store, TEST, PLOTTING_STORE, EbbSavedTensorHooks)
struct _PlottingStore
{
  EbbSavedTensorHooks parent_instance;
  Plot *plot;
};
G_DEFINE_FINAL_TYPE (PlottingStore, plotting_store, EBB_TYPE_SAVED_TENSOR_HOOKS)

static EbbHandle *
plotting_store_pack (EbbSavedTensorHooks *self, EbbTensor *tensor, GError **error)
{
  return pass (TEST_PLOTTING_STORE (self)->plot, PACK, error) ? ebb_handle_new (tensor) : NULL;
}

static EbbTensor *
plotting_store_unpack (EbbSavedTensorHooks *self, EbbHandle *handle, GError **error)
{
  return pass (TEST_PLOTTING_STORE (self)->plot, UNPACK, error) ? ebb_handle_get_tensor (handle) : NULL;
}

static void
plotting_store_class_init (PlottingStoreClass *klass)
{
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->pack = plotting_store_pack;
  EBB_SAVED_TENSOR_HOOKS_CLASS (klass)->unpack = plotting_store_unpack;
}

static void
plotting_store_init (PlottingStore *self)
{
}

static EbbCheckpointOptions *
plotting_options (Plot *plot)
{
  EbbCheckpointOptions *options = ebb_checkpoint_options_new ();
  g_autoptr (PlottingStore) store = g_object_new (plotting_store_get_type (), NULL);

  store->plot = plot;
  ebb_checkpoint_options_set_store (options, EBB_SAVED_TENSOR_HOOKS (store));
  ebb_checkpoint_options_set_policy (options, plotting_policy, plot, NULL);
  ebb_checkpoint_options_set_recompute_func (options, plotting_callback, plot, NULL);
  return options;
}

/* -- the plots ----------------------------------------------------------------------------------------------------- */

enum
{
  WHOLE,
  PARTS,
  NESTED,
  N_WAYS
};

static EbbModule *
new_model (Plot *plot)
{
  EbbModule *middle = test_with_gain (test_lambda1_new (plotting_forward, plot), 2);

  ebb_module_add_forward_pre_hook (middle, plotting_hook, plot, NULL);
  ebb_module_add_forward_hook (middle, plotting_hook, plot, NULL);
  return test_chain_new (test_mlp_new (1), middle, test_mlp_new (3), NULL);
}

static void
wrap_model (EbbModule *model, EbbCheckpointOptions *options, guint way)
{
  if (way != WHOLE)
    test_wrap_leaves (model, options);
  if (way != PARTS)
    test_wrap (model, options);
}

/* One step that fails somewhere, or doesn't; FALSE if it failed. */
static gboolean
try_step (EbbModule *model, EbbTensor *x, guint way, GError **error)
{
  TestState before = test_state_now ();
  g_autoptr (EbbTensor) y = ebb_module_call1 (model, x, error);
  g_autoptr (EbbTensor) loss = NULL;
  gboolean ok;

  if (y == NULL)
    {
      if (way == PARTS) /* what the parts before it have drawn is drawn */
        before.offset = test_state_now ().offset;
      test_assert_state (before);
      return FALSE;
    }
  loss = test_loss (y);
  before = test_state_now ();
  ok = ebb_tensor_backward (loss, error);
  before.bytes = test_state_now ().bytes; /* gradients */
  test_assert_state (before);
  return ok;
}

static void
assert_training (EbbModule *model)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);

  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_module_get_training (modules[i]));
      g_object_unref (modules[i]);
    }
}

static void
failure_leaves_nothing_behind (gconstpointer data)
{
  const Place place = GPOINTER_TO_UINT (data);
  Plot plot = { N_PLACES, 0, 0 };

  for (guint way = 0; way < N_WAYS; way++)
    {
      g_autoptr (EbbModule) model = new_model (&plot);
      g_autoptr (EbbCheckpointOptions) options = plotting_options (&plot);
      g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
      g_autoptr (TestOutcome) plain = NULL;
      guint n_failures = 0;

      plot.place = N_PLACES;
      plain = test_train1 (model, x);
      wrap_model (model, options, way);
      for (guint n = 0;; n++)
        {
          g_autoptr (GError) error = NULL;
          g_autoptr (TestOutcome) next = NULL;
          guint64 before;
          gboolean ok, told = n % 2 == 0; /* a caller that passes no GError must be as safe */

          ebb_module_zero_grad (model);
          before = test_state_now ().bytes;
          plot = (Plot){ place, (int) n / 2, 0 };
          ok = try_step (model, x, way, told ? &error : NULL);
          g_assert_true (ok == (plot.n_failures == 0));
          if (ok)
            break;
          n_failures++;
          if (told)
            {
              g_assert_error (error, G_IO_ERROR, G_IO_ERROR_BUSY);
              g_assert_nonnull (strstr (error->message, place_names[place]));
            }
          ebb_module_zero_grad (model);
          g_assert_cmpuint (test_state_now ().bytes, ==, before);
          test_assert_counters (model, 0);
          assert_training (model);
          plot.place = N_PLACES;
          next = test_train1 (model, x);
          test_assert_same_outcome (plain, next);
        }
      g_assert_cmpuint (n_failures, >=, 2);
    }
}

/* The graph of a step that failed is still good for another try. */
static void
backward_may_be_tried_again_after_a_failure (void)
{
  const Place places[] = { RECOMPUTE, CALLBACK_BEFORE, CALLBACK_AFTER, UNPACK };

  for (guint i = 0; i < G_N_ELEMENTS (places); i++)
    {
      Plot plot = { N_PLACES, 0, 0 };
      g_autoptr (EbbModule) model = new_model (&plot);
      g_autoptr (EbbCheckpointOptions) options = plotting_options (&plot);
      g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
      g_autoptr (TestOutcome) plain = test_train1 (model, x);
      g_autoptr (TestOutcome) again = NULL;
      g_autoptr (EbbTensor) y = NULL;
      EbbTensor *loss;

      wrap_model (model, options, WHOLE);
      y = test_forward1 (model, x);
      loss = test_loss (y);
      plot = (Plot){ places[i], 0, 0 };
      g_assert_false (ebb_backward (&loss, 1, NULL, 0, NULL, 0, TRUE, NULL));
      test_assert_counters (model, places[i] == UNPACK ? ebb_module_get_forward_counter (model) : 0);
      plot.place = N_PLACES;
      ebb_module_zero_grad (model);
      g_assert_true (ebb_backward (&loss, 1, NULL, 0, NULL, 0, FALSE, NULL));
      ebb_tensor_unref (loss);
      again = test_outcome_new (model, NULL);
      for (guint j = 0; j < again->tensors->len; j++)
        g_assert_true (ebb_tensor_equal (again->tensors->pdata[j], plain->tensors->pdata[j]));
      test_assert_counters (model, 0);
    }
}

/* -- who says nothing ---------------------------------------------------------------------------------------------- */

static EbbTensor *
fail_silently (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  int *n_to_pass = data;

  return (*n_to_pass)-- != 0 ? ebb_exp (x, error) : NULL;
}

static gboolean
refuse_silently (EbbModule *module, EbbRecomputePhase phase, gpointer data, GError **error)
{
  return FALSE;
}

static void
silent_failures_get_an_error (void)
{
  for (int n_to_pass = 0; n_to_pass < 3; n_to_pass++)
    {
      g_autoptr (GError) error = NULL;
      int left = n_to_pass;
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbModule) model = test_chain_new (test_mlp_new (1), test_lambda1_new (fail_silently, &left), NULL);
      g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      if (n_to_pass == 2)
        ebb_checkpoint_options_set_recompute_func (options, refuse_silently, NULL, NULL);
      y = ebb_module_call1 (test_wrap (model, options), x, &error);
      g_assert_true ((y == NULL) == (n_to_pass == 0));
      if (y != NULL)
        {
          loss = test_loss (y);
          g_assert_false (ebb_tensor_backward (loss, &error));
        }
      test_assert_error (error, EBB_ERROR_CALLBACK, "without saying why");
    }
}

/* -- early stop, and errors of the forward's own ------------------------------------------------------------------- */

typedef struct
{
  guint calls;
  gboolean makes_its_own;
} Reader;

/* A forward that reads values, and passes the error on of one that it may not read, or makes its own of it; all of it
 * comes after the last thing that backward needs. */
static EbbTensor *
read_late (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) y = ebb_exp (x, error);
  g_autoptr (EbbTensor) sum = ebb_sum (y, NULL, 0, FALSE, error);
  g_autoptr (GError) local = NULL;
  double value = 0;

  Reader *reader = data;

  reader->calls++;
  if (sum != NULL && !ebb_tensor_get_item (sum, &value, &local))
    {
      if (reader->makes_its_own)
        g_set_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA, "no sum: %s", local->message);
      else
        g_propagate_prefixed_error (error, g_steal_pointer (&local), "no sum: ");
      return NULL;
    }
  return ebb_mul_scalar (y, 1 / value, error);
}

static void
reading_values_after_an_early_stop_fails_nothing (void)
{
  Reader reader = { 0 };
  g_autoptr (EbbModule) module = test_lambda1_new (read_late, &reader);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (TestOutcome) plain = NULL;
  g_autoptr (TestOutcome) wrapped = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  plain = test_train1 (module, x);
  wrapped = test_train1 (test_wrap (module, NULL), x);
  test_assert_same_outcome (plain, wrapped);
  g_assert_cmpuint (reader.calls, ==, 3);
}

/* Nobody can tell what else it may be: it comes out as itself. */
static void
an_error_that_the_forward_makes_of_it_comes_out (void)
{
  Reader reader = { .makes_its_own = TRUE };
  g_autoptr (EbbModule) module = test_wrap (test_lambda1_new (read_late, &reader), NULL);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (GError) error = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  y = ebb_module_call1 (module, x, NULL);
  loss = ebb_sum (y, NULL, 0, FALSE, NULL);
  g_assert_false (ebb_tensor_backward (loss, &error));
  g_assert_error (error, G_IO_ERROR, G_IO_ERROR_INVALID_DATA);
}

/* -- refused at the door ------------------------------------------------------------------------------------------- */

static void
an_error_that_is_set_stops_everything (void)
{
  Plot plot = { N_PLACES, 0, 0 };
  g_autoptr (GError) error = g_error_new_literal (G_IO_ERROR, G_IO_ERROR_BUSY, "already");
  g_autoptr (EbbModule) model = new_model (&plot);
  g_autoptr (EbbTensor) x = test_randn (1, 3, 8, -1);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);

  g_assert_null (ebb_checkpoint_wrapper (model, NULL, &error));
  g_assert_null (ebb_checkpoint_wrapper (NULL, NULL, NULL));
  g_assert_false (ebb_checkpoint_wrap_each (model, EBB_TYPE_LINEAR, NULL, &error));
  g_assert_false (ebb_checkpoint_is_wrapped (model));
  test_wrap (model, NULL);
  g_assert_null (ebb_module_call1 (model, x, &error));
  g_assert_null (ebb_module_call (model, args, &error));
  g_assert_null (ebb_module_call1 (model, NULL, NULL));
  g_assert_cmpstr (error->message, ==, "already");
  test_assert_counters (model, 0);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
#define TEST(name, func) g_test_add_func ("/checkpoint/errors/" name, func)
  for (guint place = 0; place < N_PLACES; place++)
    {
      g_autofree char *path =
          g_strconcat ("/checkpoint/errors/failure-leaves-nothing-behind/", place_names[place], NULL);

      g_test_add_data_func (path, GUINT_TO_POINTER (place), failure_leaves_nothing_behind);
    }
  TEST ("backward-may-be-tried-again-after-a-failure", backward_may_be_tried_again_after_a_failure);
  TEST ("silent-failures-get-an-error", silent_failures_get_an_error);
  TEST ("reading-values-after-an-early-stop-fails-nothing", reading_values_after_an_early_stop_fails_nothing);
  TEST ("an-error-that-the-forward-makes-of-it-comes-out", an_error_that_the_forward_makes_of_it_comes_out);
  TEST ("an-error-that-is-set-stops-everything", an_error_that_is_set_stops_everything);
  return g_test_run ();
}
