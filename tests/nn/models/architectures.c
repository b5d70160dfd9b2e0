/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/architectures.h"
#include "support/device.h"
#include "support/fixtures.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

/* Every architecture beside transformers: folders as save_pretrained () writes them are opened, and logits, gradients,
 * twenty steps and greedy text are those that transformers computed. A mistake planted in a configuration must show in
 * the logits, or the comparison would prove nothing. */

#define BF16_ROW_BOUND 1.2

static double
compare_logits (EbbModule *model, EbbArgs *expected, const char *name)
{
  g_autoptr (EbbTensor) theirs = test_fixture_tensor (expected, "%s", name);
  g_autoptr (EbbTensor) wide = ebb_cast (theirs, EBB_DTYPE_F32, NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) ours = NULL;

  ebb_push_grad_enabled (FALSE);
  logits = test_architecture_logits (model, expected, 0, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  ours = ebb_cast (logits, EBB_DTYPE_F32, &error);
  return test_difference (ours, wide);
}

static void
logits_and_gradients_are_transformers (gconstpointer data)
{
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  g_autoptr (EbbModule) model = test_architecture_open (data);
  g_autoptr (EbbTensor) their_loss = test_fixture_tensor (expected, "loss");
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = test_architecture_loss (model, expected, 0, &error);
  double logits, gradients, value;

  g_assert_no_error (error);
  g_assert_true (ebb_tensor_get_item (loss, &value, &error));
  g_assert_cmpfloat (fabs (value - (double) test_at (their_loss, 0)), <=, 2e-6 * value);
  ebb_tensor_backward (loss, &error);
  g_assert_no_error (error);
  logits = compare_logits (model, expected, "logits");
  gradients = test_architecture_compare_gradients (model, expected);
  g_test_message ("logits %g, gradients %g", logits, gradients);
  g_assert_cmpfloat (logits, <=, TEST_ARCHITECTURE_BOUND);
  g_assert_cmpfloat (gradients, <=, TEST_ARCHITECTURE_BOUND);
}

static void
twenty_steps_are_transformers (gconstpointer data)
{
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  g_autoptr (EbbModule) model = test_architecture_open (data);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbOptimizer) optimizer = test_architecture_optimizer (model, &error);
  double losses[TEST_ARCHITECTURE_STEPS], distance, bound;

  g_assert_no_error (error);
  g_assert_true (test_architecture_train (model, optimizer, expected, TEST_ARCHITECTURE_STEPS, losses, &error));
  distance = test_architecture_compare_losses (expected, losses, TEST_ARCHITECTURE_STEPS, &bound);
  g_test_message ("losses %g of %g", distance, bound);
  g_assert_cmpfloat (distance, <=, bound);
  g_assert_cmpfloat (losses[TEST_ARCHITECTURE_STEPS - 1], <, losses[0]);
}

/* In bf16, from f32: Ebb's logits and those that transformers computed. */
static void
measure_in_bf16 (const TestArchitecture *self, double *our_distance, double *their_distance)
{
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (self);
  g_autoptr (EbbModule) model = test_architecture_open (self);
  g_autoptr (EbbTensor) exact = test_fixture_tensor (expected, "logits");
  g_autoptr (EbbTensor) theirs = test_fixture_tensor (expected, "logits_bf16");
  g_autoptr (EbbTensor) wide = ebb_cast (theirs, EBB_DTYPE_F32, NULL);
  g_autoptr (EbbTensor) logits = NULL;
  g_autoptr (EbbTensor) ours = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_module_to_dtype (model, EBB_DTYPE_BF16, &error));
  ebb_push_grad_enabled (FALSE);
  logits = test_architecture_logits (model, expected, 0, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  ours = ebb_cast (logits, EBB_DTYPE_F32, &error);
  *our_distance = test_relative_difference (ours, exact);
  *their_distance = test_relative_difference (wide, exact);
  g_test_message ("%s: %g from f32, transformers %g", self->name, *our_distance, *their_distance);
}

/* Both round at every operation, in another order, which makes them two draws of the same distance: over all rows Ebb
 * is no farther from f32 than transformers. One row alone may be: with AVX2 those above 1 are llama2, qwen2 and
 * llama-dynamic, with 1.013, 1.005 and 1.070, with AVX-512 llama2 with 1.124. Over all rows the emulated GPU is as far
 * from f32 as the CPU (0.04318 and 0.04333), while the ratios of single rows have a standard deviation of 0.065, three
 * of which are allowed. */
static void
logits_in_bf16_are_as_near_as_transformers (void)
{
  double ours = 0, theirs = 0;

  for (guint i = 0; i < test_n_architectures; i++)
    {
      double our_distance, their_distance;

      measure_in_bf16 (&test_architectures[i], &our_distance, &their_distance);
      g_assert_cmpfloat (our_distance, <=, BF16_ROW_BOUND * their_distance);
      ours += our_distance * our_distance;
      theirs += their_distance * their_distance;
    }
  g_assert_cmpfloat (ours, <=, theirs);
}

static void
the_older_configuration_is_the_same_model (gconstpointer data)
{
  g_autofree char *config = test_architecture_read (data, "config-old.json");
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  g_autofree char *folder = NULL;
  g_autoptr (EbbModule) model = NULL;

  if (config == NULL)
    {
      g_test_skip ("it has no rotary positions: both forms of config.json are the same");
      return;
    }
  folder = test_architecture_copy_folder (data, config);
  model = test_architecture_open_folder (folder);
  g_assert_cmpfloat (compare_logits (model, expected, "logits"), <=, TEST_ARCHITECTURE_BOUND);
  test_architecture_remove_folder (folder);
}

static void
a_planted_mistake_shows (gconstpointer data)
{
  const TestArchitecture *self = data;
  g_autofree char *config = test_architecture_read (self, "config.json");
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (self);

  for (const TestMistake *mistake = self->mistakes; mistake->what != NULL; mistake++)
    {
      g_auto (GStrv) parts = g_strsplit (config, mistake->text, 2);
      g_autofree char *wrong = g_strjoinv (mistake->wrong, parts);
      g_autofree char *folder = test_architecture_copy_folder (self, wrong);
      g_autoptr (EbbModule) model = test_architecture_open_folder (folder);
      double distance = compare_logits (model, expected, "logits");

      g_assert_cmpuint (g_strv_length (parts), ==, 2);
      g_test_message ("another %s: logits %g", mistake->what, distance);
      g_assert_cmpfloat (distance, >, 5 * TEST_ARCHITECTURE_BOUND);
      test_architecture_remove_folder (folder);
    }
}

/* -- saved and opened again ---------------------------------------------------------------------------------------- */

static void
assert_same_state (EbbModule *a, EbbModule *b)
{
  g_autoptr (EbbArgs) first = ebb_module_get_state_dict (a);
  g_autoptr (EbbArgs) second = ebb_module_get_state_dict (b);

  g_assert_cmpuint (ebb_args_get_length (first), ==, ebb_args_get_length (second));
  for (guint i = 0; i < ebb_args_get_length (first); i++)
    {
      int other = ebb_args_find (second, ebb_args_get_key (first, i));
      g_autoptr (EbbTensor) x = ebb_args_get_tensor (first, i);
      g_autoptr (EbbTensor) y = ebb_args_get_tensor (second, (guint) MAX (other, 0));

      g_assert_cmpint (other, >=, 0);
      g_assert_cmpint (ebb_tensor_get_dtype (x), ==, ebb_tensor_get_dtype (y));
      g_assert_cmpint (ebb_tensor_get_n_bytes (x), ==, ebb_tensor_get_n_bytes (y));
      g_assert_cmpint (memcmp (test_read (x), test_read (y), ebb_tensor_get_n_bytes (x)), ==, 0);
    }
}

/* In the file's own type. */
static void
a_saved_folder_opens_with_the_same_bits (gconstpointer data)
{
  g_autofree char *source = test_architecture_get_folder (data);
  g_autofree char *folder = g_dir_make_tmp ("ebb-model-XXXXXX", NULL);
  g_autoptr (EbbArgs) expected = test_architecture_load_expected (data);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) model = ebb_model_open (source, &error);
  g_autoptr (EbbModule) again = NULL;

  g_assert_no_error (error);
  g_assert_true (ebb_model_save (model, folder, &error));
  g_assert_no_error (error);
  again = ebb_model_open (folder, &error);
  g_assert_no_error (error);
  assert_same_state (model, again);
  g_assert_true (ebb_module_to_dtype (again, EBB_DTYPE_F32, &error));
  g_assert_cmpfloat (compare_logits (again, expected, "logits"), <=, TEST_ARCHITECTURE_BOUND);
  test_architecture_remove_folder (folder);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  test_add_architectures ("/architectures/logits-and-gradients", logits_and_gradients_are_transformers);
  test_add_architectures ("/architectures/twenty-steps", twenty_steps_are_transformers);
  g_test_add_func ("/architectures/bf16", logits_in_bf16_are_as_near_as_transformers);
  test_add_architectures ("/architectures/older-configuration", the_older_configuration_is_the_same_model);
  test_add_architectures ("/architectures/planted-mistakes", a_planted_mistake_shows);
  test_add_architectures ("/architectures/saved-folder", a_saved_folder_opens_with_the_same_bits);
  return g_test_run ();
}
