/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/gpt-step.h"
#include "support/shard-runs.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* Parameters in bf16 without a master copy: the mean of what rounding at random does is right, it repeats whatever else
 * moves, and there is no copy of a weight in f32. */

#define ROWS 64
#define COLUMNS 320
#define N_ELEMENTS (ROWS * COLUMNS)
#define ULP (1.0 / 128) /* of bf16 from 1 to 2 */

static EbbModule *
new_linear (void)
{
  g_autoptr (GError) error = NULL;
  EbbModule *module;

  ebb_manual_seed (1);
  ebb_push_parameter_dtype (EBB_DTYPE_BF16);
  module = ebb_linear_new (COLUMNS, ROWS, FALSE, &error);
  ebb_pop_parameter_dtype ();
  g_assert_no_error (error);
  return module;
}

static EbbOptimizer *
new_adamw (EbbModule *module,
           EbbMomentFormat format,
           EbbWeightRounding rounding)
{
  g_autoptr (GError) error = NULL;
  EbbOptimizer *optimizer = ebb_adamw_new (module, 1e-3, &error);

  g_assert_no_error (error);
  g_object_set (optimizer, "moment-format", format, "weight-rounding", rounding, NULL);
  return optimizer;
}

static guint64
get_bytes (EbbPurpose purpose)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, purpose);
}

static EbbTensor *
copy_of (EbbTensor *tensor)
{
  g_autoptr (EbbTensor) detached = ebb_tensor_detach (tensor);

  return ebb_copy (detached, NULL);
}

/* -- the mean ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  const char *optimizer;
  EbbMomentFormat format;
  double tolerance; /* of the movement, for what rounded moments make of it */
} Way;

/* All elements go from 1.25 by @n_steps steps of a sixteenth of a unit in the last place. Returns their mean movement,
 * in such units. */
static double
walk (const Way *way,
      EbbWeightRounding rounding,
      int n_steps)
{
  g_autoptr (EbbModule) module = new_linear ();
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) grad = ebb_ones ((const gint64[]){ ROWS, COLUMNS }, 2, EBB_DTYPE_BF16, NULL, NULL);
  g_autoptr (EbbTensor) wide = NULL;
  g_autoptr (GError) error = NULL;

  ebb_push_grad_enabled (FALSE);
  g_assert_true (ebb_tensor_fill (weight, 1.25, &error));
  if (strcmp (way->optimizer, "sgd") == 0)
    optimizer = ebb_sgd_new (module, ULP / 16, &error);
  else
    optimizer = new_adamw (module, way->format, rounding);
  g_object_set (optimizer, "lr", ULP / 16, "weight-decay", 0.0, "weight-rounding", rounding, NULL);
  for (int step = 0; step < n_steps; step++)
    {
      g_assert_true (ebb_tensor_set_grad (weight, grad, &error));
      g_assert_true (ebb_optimizer_step (optimizer, &error));
    }
  wide = ebb_cast (weight, EBB_DTYPE_F32, &error);
  ebb_pop_grad_enabled ();
  g_assert_no_error (error);
  return (1.25 - test_sum (wide) / N_ELEMENTS) / ULP;
}

/* Each rounding adds noise of a variance of at most a quarter of a unit's square. */
static void
the_mean_moves_as_it_should (void)
{
  static const Way ways[] = {
    { "sgd", EBB_MOMENT_FORMAT_F32, 0 },
    { "adamw", EBB_MOMENT_FORMAT_F32, 1e-4 },
    { "adamw", EBB_MOMENT_FORMAT_BF16, 3e-3 },
    { "adamw", EBB_MOMENT_FORMAT_EIGHT_BIT, 1e-4 },
  };
  const int n_steps = 64;

  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      const double noise = 5 * 0.5 * sqrt (n_steps) / sqrt (N_ELEMENTS), expected = n_steps / 16.0;

      g_assert_cmpfloat_with_epsilon (walk (&ways[i], EBB_WEIGHT_ROUNDING_RANDOM, n_steps), expected,
                                      noise + ways[i].tolerance * expected);
      g_assert_cmpfloat (walk (&ways[i], EBB_WEIGHT_ROUNDING_NEAREST, n_steps), ==, 0);
      g_assert_cmpfloat_with_epsilon (walk (&ways[i], EBB_WEIGHT_ROUNDING_MASTER, n_steps), expected,
                                      ways[i].tolerance * expected + 1e-3);
    }
}

/* -- bits ---------------------------------------------------------------------------------------------------------- */

/* Two layers of one parameter each, with the names "a" and "b"; in that order or the other. */
static EbbModule *
new_pair (gboolean reversed)
{
  EbbModule *pair = ebb_module_list_new ();

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) layer = new_linear ();

      g_assert_true (ebb_module_register_child (pair, (i == 0) != reversed ? "a" : "b", layer, NULL));
    }
  return pair;
}

static EbbTensor *
get_weight (EbbModule *module,
            const char *name)
{
  g_autoptr (EbbModule) child = ebb_module_get_child (module, name);

  return ebb_module_get_parameter (child, "weight");
}

static void
step_pair (EbbModule *pair,
           EbbOptimizer *optimizer,
           int first,
           int n)
{
  static const char *const names[] = { "a", "b" };
  g_autoptr (GError) error = NULL;

  for (int step = first; step < first + n; step++)
    {
      for (guint i = 0; i < 2; i++)
        {
          g_autoptr (EbbTensor) weight = get_weight (pair, names[i]);
          g_autoptr (EbbTensor) grad = test_randn ((guint64) step, ROWS, COLUMNS, -1); /* the same for both */

          g_assert_true (ebb_tensor_set_grad (weight, grad, &error));
        }
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
    }
}

static void
assert_same_pair (EbbModule *x,
                  EbbModule *y)
{
  static const char *const names[] = { "a", "b" };

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbTensor) a = get_weight (x, names[i]);
      g_autoptr (EbbTensor) b = get_weight (y, names[i]);

      g_assert_true (ebb_tensor_equal (a, b));
    }
}

/* Neither does it matter what else moves; and equal parameters draw other numbers. */
static void
the_order_of_parameters_changes_no_bit (void)
{
  for (int format = EBB_MOMENT_FORMAT_F32; format <= EBB_MOMENT_FORMAT_EIGHT_BIT; format++)
    {
      g_autoptr (EbbModule) pair = new_pair (FALSE);
      g_autoptr (EbbModule) reversed = new_pair (TRUE);
      g_autoptr (EbbOptimizer) one = new_adamw (pair, (EbbMomentFormat) format, EBB_WEIGHT_ROUNDING_RANDOM);
      g_autoptr (EbbOptimizer) other = new_adamw (reversed, (EbbMomentFormat) format, EBB_WEIGHT_ROUNDING_RANDOM);
      g_autoptr (EbbTensor) a = get_weight (pair, "a");
      g_autoptr (EbbTensor) b = get_weight (pair, "b");

      g_assert_true (ebb_tensor_equal (a, b));
      step_pair (pair, one, 0, 3);
      step_pair (reversed, other, 0, 3);
      assert_same_pair (pair, reversed);
      g_assert_false (ebb_tensor_equal (a, b));
    }
}

static void
a_saved_training_goes_on_bit_for_bit (void)
{
  for (int format = EBB_MOMENT_FORMAT_F32; format <= EBB_MOMENT_FORMAT_EIGHT_BIT; format++)
    {
      g_autoptr (EbbModule) whole = new_pair (FALSE);
      g_autoptr (EbbModule) first = new_pair (FALSE);
      g_autoptr (EbbModule) second = new_pair (FALSE);
      g_autoptr (EbbOptimizer) a = new_adamw (whole, (EbbMomentFormat) format, EBB_WEIGHT_ROUNDING_RANDOM);
      g_autoptr (EbbOptimizer) b = new_adamw (first, (EbbMomentFormat) format, EBB_WEIGHT_ROUNDING_RANDOM);
      g_autoptr (EbbOptimizer) c = new_adamw (second, (EbbMomentFormat) format, EBB_WEIGHT_ROUNDING_RANDOM);
      g_autoptr (EbbTrainingState) saved = ebb_training_state_new (first, b, NULL);
      g_autoptr (EbbTrainingState) loaded = ebb_training_state_new (second, c, NULL);
      g_autofree char *folder = g_dir_make_tmp ("ebb-rounding-XXXXXX", NULL);
      g_autoptr (EbbArgs) state = NULL;
      g_autofree char *text = NULL;
      g_autoptr (GError) error = NULL;
      gint64 step;

      step_pair (whole, a, 0, 6);
      step_pair (first, b, 0, 3);
      state = ebb_optimizer_get_state (b);
      text = ebb_args_to_string (state);
      g_assert_null (strstr (text, "master"));
      g_assert_true (ebb_training_state_save (saved, folder, 3, &error));
      g_assert_true (ebb_training_state_load (loaded, folder, &step, &error));
      g_assert_no_error (error);
      step_pair (second, c, (int) step, 3);
      assert_same_pair (whole, second);
      test_remove_folder (folder);
    }
}

/* All weights of a small GPT after @n_steps steps, one tensor after the other. */
static GPtrArray *
train_gpt (gboolean in_backward,
           EbbMomentFormat format)
{
  GPtrArray *weights = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  ebb_push_parameter_dtype (EBB_DTYPE_BF16);
  gpt = test_gpt_step_model (2, 0);
  ebb_pop_parameter_dtype ();
  optimizer = new_adamw (gpt, format, EBB_WEIGHT_ROUNDING_RANDOM);
  g_object_set (optimizer, "step-in-backward", in_backward, NULL);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  for (int step = 0; step < 3; step++)
    {
      g_autoptr (EbbTensor) tokens = test_tokens ((guint64) step, 29, 2, TEST_GPT_CONTEXT, -1);
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, &error);

      g_assert_true (ebb_tensor_backward (loss, &error));
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (optimizer);
    }
  ebb_pop_autocast ();
  parameters = ebb_module_get_parameters (gpt, TRUE, &n);
  for (guint i = 0; i < n; i++)
    g_ptr_array_add (weights, parameters[i]);
  return weights;
}

static void
a_step_in_backward_gives_the_same_bits (void)
{
  for (int format = EBB_MOMENT_FORMAT_F32; format <= EBB_MOMENT_FORMAT_EIGHT_BIT; format++)
    {
      g_autoptr (GPtrArray) a = train_gpt (FALSE, (EbbMomentFormat) format);
      g_autoptr (GPtrArray) b = train_gpt (TRUE, (EbbMomentFormat) format);

      g_assert_cmpuint (a->len, ==, b->len);
      for (guint i = 0; i < a->len; i++)
        {
          g_assert_cmpint (ebb_tensor_get_dtype (a->pdata[i]), ==, EBB_DTYPE_BF16);
          g_assert_true (ebb_tensor_equal (a->pdata[i], b->pdata[i]));
        }
    }
}

/* -- bytes --------------------------------------------------------------------------------------------------------- */

/* Also no copy of a weight for the forward or for backward: products, norms and embeddings read bf16. */
static void
a_weight_takes_two_bytes (void)
{
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens (3, 29, 2, TEST_GPT_CONTEXT, -1);
  g_autoptr (GError) error = NULL;
  const guint64 before = get_bytes (EBB_PURPOSE_PARAMETER), optimizer_before = get_bytes (EBB_PURPOSE_OPTIMIZER);
  guint64 parameters, moments;
  guint n;

  ebb_memory_reset_peaks (test_device ());
  ebb_push_parameter_dtype (EBB_DTYPE_BF16);
  gpt = test_gpt_step_model (2, 0);
  ebb_pop_parameter_dtype ();
  n = ebb_module_count_parameters (gpt);
  parameters = get_bytes (EBB_PURPOSE_PARAMETER) - before;
  g_assert_cmpuint (parameters, <, 2 * n * 1.1); /* each tensor is rounded up to the allocator's grain */
  optimizer = new_adamw (gpt, EBB_MOMENT_FORMAT_F32, EBB_WEIGHT_ROUNDING_RANDOM);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  for (int step = 0; step < 2; step++)
    {
      g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, &error);

      g_assert_true (ebb_tensor_backward (loss, &error));
      g_assert_true (ebb_optimizer_step (optimizer, &error));
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (optimizer);
    }
  ebb_pop_autocast ();
  stats = ebb_memory_get_stats (test_device ());
  g_assert_cmpuint (ebb_memory_stats_get_peak (stats, EBB_PURPOSE_PARAMETER) - before, ==, parameters);
  moments = get_bytes (EBB_PURPOSE_OPTIMIZER) - optimizer_before;
  g_assert_cmpuint (moments, >=, 8 * n);
  g_assert_cmpuint (moments, <, 8 * n * 1.1);

  /* And with master copies 4 bytes more. */
  g_object_set (optimizer, "weight-rounding", EBB_WEIGHT_ROUNDING_MASTER, NULL);
  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  {
    g_autoptr (EbbTensor) loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, tokens, &error);

    g_assert_true (ebb_tensor_backward (loss, &error));
  }
  ebb_pop_autocast ();
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_OPTIMIZER) - optimizer_before, >=, 12 * n);
  /* Which go again. */
  g_object_set (optimizer, "weight-rounding", EBB_WEIGHT_ROUNDING_RANDOM, NULL);
  g_assert_true (ebb_optimizer_step (optimizer, &error));
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_OPTIMIZER) - optimizer_before, ==, moments);
}

/* A state with master copies, as it was saved by such a training, goes on without them. */
static void
a_state_with_masters_loads_without (void)
{
  g_autoptr (EbbModule) pair = new_pair (FALSE);
  g_autoptr (EbbModule) other = new_pair (FALSE);
  g_autoptr (EbbOptimizer) master = new_adamw (pair, EBB_MOMENT_FORMAT_BF16, EBB_WEIGHT_ROUNDING_MASTER);
  g_autoptr (EbbOptimizer) random = new_adamw (other, EBB_MOMENT_FORMAT_BF16, EBB_WEIGHT_ROUNDING_RANDOM);
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (GError) error = NULL;
  guint64 before;

  step_pair (pair, master, 0, 2);
  state = ebb_optimizer_get_state (master);
  before = get_bytes (EBB_PURPOSE_OPTIMIZER);
  g_assert_true (ebb_optimizer_load_state (random, state, &error));
  g_assert_no_error (error);
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_OPTIMIZER) - before, ==, 2 * 4 * N_ELEMENTS);
  step_pair (other, random, 2, 1);
  g_assert_cmpuint (get_bytes (EBB_PURPOSE_OPTIMIZER) - before, ==, 2 * 4 * N_ELEMENTS);
}

/* -- what is made and refused -------------------------------------------------------------------------------------- */

static void
parameters_are_made_in_bf16 (void)
{
  g_autoptr (EbbModule) narrow = new_linear ();
  g_autoptr (EbbModule) wide = NULL;
  g_autoptr (EbbTensor) a = ebb_module_get_parameter (narrow, "weight");
  g_autoptr (EbbTensor) b = NULL;

  ebb_manual_seed (1);
  wide = ebb_linear_new (COLUMNS, ROWS, FALSE, NULL);
  b = ebb_module_get_parameter (wide, "weight");
  g_assert_cmpint (ebb_tensor_get_dtype (b), ==, EBB_DTYPE_F32);
  test_assert_near (a, b, 0x1p-12); /* a unit in the last place of the largest ones, which stay within their range */
}

static void
f16_is_refused (void)
{
  g_autoptr (EbbModule) module = new_linear ();
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) grad = ebb_zeros ((const gint64[]){ ROWS, COLUMNS }, 2, EBB_DTYPE_F16, NULL, NULL);
  g_autoptr (EbbTensor) before = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_module_to_dtype (module, EBB_DTYPE_F16, &error));
  before = copy_of (weight);
  optimizer = new_adamw (module, EBB_MOMENT_FORMAT_F32, EBB_WEIGHT_ROUNDING_RANDOM);
  g_assert_true (ebb_tensor_set_grad (weight, grad, &error));
  g_assert_false (ebb_optimizer_step (optimizer, &error));
  test_assert_error (error, EBB_ERROR_DTYPE, "the parameter weight is f16: without a master copy only bf16 moves: set "
                                             "weight-rounding to \"master\", or cast it to bf16");
  g_assert_true (ebb_tensor_equal (weight, before));
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/weight-rounding/the-mean-moves-as-it-should", the_mean_moves_as_it_should);
  g_test_add_func ("/weight-rounding/the-order-of-parameters-changes-no-bit", the_order_of_parameters_changes_no_bit);
  g_test_add_func ("/weight-rounding/a-saved-training-goes-on-bit-for-bit", a_saved_training_goes_on_bit_for_bit);
  g_test_add_func ("/weight-rounding/a-step-in-backward-gives-the-same-bits", a_step_in_backward_gives_the_same_bits);
  g_test_add_func ("/weight-rounding/a-weight-takes-two-bytes", a_weight_takes_two_bytes);
  g_test_add_func ("/weight-rounding/a-state-with-masters-loads-without", a_state_with_masters_loads_without);
  g_test_add_func ("/weight-rounding/parameters-are-made-in-bf16", parameters_are_made_in_bf16);
  g_test_add_func ("/weight-rounding/f16-is-refused", f16_is_refused);
  return g_test_run ();
}
