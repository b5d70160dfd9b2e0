/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <math.h>
#include <string.h>

/* AdamW with moments in 32, 16 and 8 bits: what it takes, what is saved, and what becomes of one format in another. */

#define ROWS 64
#define COLUMNS 320 /* more elements than stay f32 */
#define N_ELEMENTS (ROWS * (COLUMNS + 1))

static const char *const moments[] = { "exp_avg", "exp_avg_sq" };

typedef struct
{
  EbbModule *module;
  EbbOptimizer *optimizer;
} Training;

static void
training_clear (Training *self)
{
  g_clear_object (&self->module);
  g_clear_object (&self->optimizer);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Training, training_clear)

static void
training_start (Training *self, EbbMomentFormat format)
{
  g_autoptr (GError) error = NULL;

  ebb_manual_seed (1);
  self->module = ebb_linear_new (COLUMNS, ROWS, TRUE, &error);
  self->optimizer = ebb_adamw_new (self->module, 1e-3, &error);
  g_assert_no_error (error);
  g_object_set (self->optimizer, "moment-format", format, NULL);
}

/* Gradients are named by the step, so that a step is the same whenever it is taken. */
static void
training_run (Training *self, int first, int n)
{
  for (int step = first; step < first + n; step++)
    {
      g_autoptr (GError) error = NULL;
      guint n_parameters;
      EbbTensor **parameters = ebb_optimizer_get_parameters (self->optimizer, &n_parameters);

      for (guint i = 0; i < n_parameters; i++)
        {
          gint64 rows = ebb_tensor_get_dim (parameters[i], 0);
          g_autoptr (EbbTensor) grad = ebb_tensor_get_n_dims (parameters[i]) == 2
                                           ? test_randn ((guint64) step, (int) rows, COLUMNS, -1)
                                           : test_randn ((guint64) step, (int) rows, -1);

          g_assert_true (ebb_tensor_set_grad (parameters[i], grad, &error));
          ebb_tensor_unref (parameters[i]);
        }
      g_free (parameters);
      g_assert_true (ebb_optimizer_step (self->optimizer, &error));
      g_assert_no_error (error);
    }
}

static EbbTensor *
get_weight (Training *self)
{
  return ebb_module_get_parameter (self->module, "weight");
}

static guint64
optimizer_bytes (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_OPTIMIZER);
}

/* The tensor @key of the parameter @name; NULL if there is none. */
static EbbTensor *
get_state_of (EbbArgs *state, const char *name, const char *key)
{
  g_autoptr (EbbArgs) slots = ebb_args_get_args (state, (guint) ebb_args_find (state, "state"));
  g_autoptr (EbbArgs) slot = ebb_args_get_args (slots, (guint) ebb_args_find (slots, name));
  int index = ebb_args_find (slot, key);

  return index < 0 ? NULL : ebb_args_get_tensor (slot, (guint) index);
}

static EbbTensor *
get_state (EbbArgs *state, const char *key)
{
  return get_state_of (state, "weight", key);
}

static void
each_format_takes_what_it_says (void)
{
  static const double bytes[] = { 8, 4, 2.2 };

  for (int format = EBB_MOMENT_FORMAT_F32; format <= EBB_MOMENT_FORMAT_EIGHT_BIT; format++)
    {
      g_auto (Training) training = { NULL };
      guint64 before = optimizer_bytes ();

      training_start (&training, (EbbMomentFormat) format);
      training_run (&training, 0, 2);
      /* Each tensor is rounded up to the allocator's grain. */
      g_assert_cmpfloat ((double) (optimizer_bytes () - before) / N_ELEMENTS, <=, bytes[format]);
      g_assert_cmpfloat ((double) (optimizer_bytes () - before) / N_ELEMENTS, >, bytes[format] * 0.9);
    }
}

static void
small_parameters_keep_32_bits (void)
{
  g_auto (Training) training = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbArgs) slots = NULL;
  g_autoptr (EbbArgs) slot = NULL;
  g_autoptr (EbbTensor) tensor = NULL;

  training_start (&training, EBB_MOMENT_FORMAT_EIGHT_BIT);
  training_run (&training, 0, 1);
  state = ebb_optimizer_get_state (training.optimizer);
  slots = ebb_args_get_args (state, (guint) ebb_args_find (state, "state"));
  slot = ebb_args_get_args (slots, (guint) ebb_args_find (slots, "bias"));
  tensor = ebb_args_get_tensor (slot, (guint) ebb_args_find (slot, "exp_avg_sq"));
  g_assert_cmpint (ebb_tensor_get_dtype (tensor), ==, EBB_DTYPE_F32);
  g_assert_cmpint (ebb_args_find (slot, "exp_avg_absmax"), <, 0);
}

static void
the_last_block_may_be_shorter (void)
{
  g_autoptr (EbbModule) module = ebb_linear_new (65, 64, FALSE, NULL);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (module, 1e-3, NULL);
  g_autoptr (EbbTensor) weight = ebb_module_get_parameter (module, "weight");
  g_autoptr (EbbTensor) grad = test_randn (1, 64, 65, -1);
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbTensor) absmax = NULL;

  g_object_set (optimizer, "moment-format", EBB_MOMENT_FORMAT_EIGHT_BIT, NULL);
  g_assert_true (ebb_tensor_set_grad (weight, grad, NULL));
  g_assert_true (ebb_optimizer_step (optimizer, NULL));
  state = ebb_optimizer_get_state (optimizer);
  absmax = get_state (state, "exp_avg_absmax");
  test_assert_shape (absmax, "[17]"); /* 4160 elements in blocks of 256 */
}

/* The same noise in both would be a bias that no number of parameters averages out. */
static void
equal_parameters_round_differently (void)
{
  g_autoptr (EbbModule) layers = ebb_module_list_new ();
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  g_autoptr (EbbTensor) grad = test_randn (1, ROWS, COLUMNS, -1);
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbModule) layer = ebb_linear_new (COLUMNS, ROWS, FALSE, NULL);

      g_assert_true (ebb_module_register_child (layers, i == 0 ? "a" : "b", layer, NULL));
    }
  optimizer = ebb_adamw_new (layers, 1e-3, NULL);
  g_object_set (optimizer, "moment-format", EBB_MOMENT_FORMAT_BF16, NULL);
  parameters = ebb_optimizer_get_parameters (optimizer, &n);
  g_assert_cmpuint (n, ==, 2);
  for (guint i = 0; i < n; i++)
    {
      g_assert_true (ebb_tensor_set_grad (parameters[i], grad, NULL));
      ebb_tensor_unref (parameters[i]);
    }
  g_assert_true (ebb_optimizer_step (optimizer, NULL));
  state = ebb_optimizer_get_state (optimizer);
  a = get_state_of (state, "a.weight", "exp_avg_sq");
  b = get_state_of (state, "b.weight", "exp_avg_sq");
  g_assert_false (ebb_tensor_equal (a, b));
  test_assert_near (a, b, 1e-3 * 0.01 * 16); /* they are equal before they are rounded */
}

static void
a_saved_state_goes_on_bit_for_bit (gconstpointer data)
{
  EbbMomentFormat format = (EbbMomentFormat) GPOINTER_TO_INT (data);
  g_auto (Training) whole = { NULL };
  g_auto (Training) first = { NULL };
  g_auto (Training) second = { NULL };
  g_autoptr (EbbTrainingState) saved = NULL;
  g_autoptr (EbbTrainingState) loaded = NULL;
  g_autoptr (EbbTensor) a = NULL;
  g_autoptr (EbbTensor) b = NULL;
  g_autofree char *folder = g_dir_make_tmp ("ebb-moments-XXXXXX", NULL);
  g_autoptr (GError) error = NULL;
  gint64 step;

  training_start (&whole, format);
  training_run (&whole, 0, 8);

  training_start (&first, format);
  training_run (&first, 0, 4);
  saved = ebb_training_state_new (first.module, first.optimizer, NULL);
  g_assert_true (ebb_training_state_save (saved, folder, 4, &error));
  training_start (&second, format);
  loaded = ebb_training_state_new (second.module, second.optimizer, NULL);
  g_assert_true (ebb_training_state_load (loaded, folder, &step, &error));
  g_assert_no_error (error);
  training_run (&second, (int) step, 4);

  a = get_weight (&whole);
  b = get_weight (&second);
  g_assert_true (ebb_tensor_equal (a, b));
  for (guint i = 0; i < G_N_ELEMENTS (moments); i++)
    {
      g_autoptr (EbbArgs) one = ebb_optimizer_get_state (whole.optimizer);
      g_autoptr (EbbArgs) other = ebb_optimizer_get_state (second.optimizer);
      g_autoptr (EbbTensor) x = get_state (one, moments[i]);
      g_autoptr (EbbTensor) y = get_state (other, moments[i]);

      g_assert_true (ebb_tensor_equal (x, y));
    }
  test_remove_folder (folder);
}

/* A state of one format in an optimizer of another takes the other's bytes and goes on nearly as it would have. */
static void
a_state_is_converted_when_it_is_loaded (void)
{
  for (int from = EBB_MOMENT_FORMAT_F32; from <= EBB_MOMENT_FORMAT_EIGHT_BIT; from++)
    for (int to = EBB_MOMENT_FORMAT_F32; to <= EBB_MOMENT_FORMAT_EIGHT_BIT; to++)
      {
        g_auto (Training) first = { NULL };
        g_auto (Training) second = { NULL };
        g_auto (Training) native = { NULL };
        g_autoptr (EbbTensor) a = NULL;
        g_autoptr (EbbTensor) b = NULL;
        g_autoptr (EbbArgs) state = NULL;
        g_autoptr (GError) error = NULL;
        EbbMomentFormat kept;
        guint64 before = optimizer_bytes (), native_bytes;

        training_start (&native, (EbbMomentFormat) to);
        training_run (&native, 0, 1);
        native_bytes = optimizer_bytes () - before;
        training_start (&first, (EbbMomentFormat) from);
        training_run (&first, 0, 10);
        training_start (&second, (EbbMomentFormat) to);
        a = get_weight (&first);
        b = get_weight (&second);
        ebb_push_grad_enabled (FALSE);
        g_assert_true (ebb_tensor_copy_from (b, a, &error));
        ebb_pop_grad_enabled ();
        state = ebb_optimizer_get_state (first.optimizer);
        before = optimizer_bytes ();
        g_assert_true (ebb_optimizer_load_state (second.optimizer, state, &error));
        g_assert_no_error (error);
        g_assert_cmpuint (optimizer_bytes () - before, ==, native_bytes);
        training_run (&first, 10, 5);
        training_run (&second, 10, 5);
        /* Five steps of 1e-3 each; what the formats' rounding makes of them is a part of that. */
        test_assert_near (a, b, from == to ? 0 : 1.5e-3);
        g_object_get (second.optimizer, "moment-format", &kept, NULL);
        g_assert_cmpint (kept, ==, to);
      }
}

static void
the_format_may_change_on_the_way (void)
{
  g_auto (Training) training = { NULL };
  g_autoptr (EbbTensor) weight = NULL;
  guint64 before = optimizer_bytes ();

  training_start (&training, EBB_MOMENT_FORMAT_F32);
  training_run (&training, 0, 10);
  g_assert_cmpuint (optimizer_bytes () - before, >=, 8 * N_ELEMENTS);
  weight = get_weight (&training);
  g_object_set (training.optimizer, "moment-format", EBB_MOMENT_FORMAT_EIGHT_BIT, NULL);
  training_run (&training, 10, 1);
  g_assert_cmpuint (optimizer_bytes () - before, <, 3 * N_ELEMENTS);
  g_object_set (training.optimizer, "moment-format", EBB_MOMENT_FORMAT_BF16, NULL);
  training_run (&training, 11, 1);
  g_assert_cmpuint (optimizer_bytes () - before, <, 5 * N_ELEMENTS);
  g_assert_true (isfinite (test_sum (weight)));
}

/* A copy of @state where weight has @replacement for @key, or nothing if that is NULL. */
static EbbArgs *
replace (EbbArgs *state, const char *key, EbbTensor *replacement)
{
  g_autoptr (EbbArgs) slots = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbArgs) slot = ebb_args_new (EBB_ARGS_DICT);
  EbbArgs *copy = ebb_args_new (EBB_ARGS_DICT);
  static const char *const keys[] = { "exp_avg", "exp_avg_sq", "exp_avg_absmax", "exp_avg_sq_absmax" };

  ebb_args_add_int (slot, "n_steps", 2);
  for (guint i = 0; i < G_N_ELEMENTS (keys); i++)
    {
      g_autoptr (EbbTensor) own = get_state (state, keys[i]);
      EbbTensor *tensor = g_str_equal (keys[i], key) ? replacement : own;

      if (tensor != NULL)
        ebb_args_add_tensor (slot, keys[i], tensor);
    }
  ebb_args_add_args (slots, "weight", slot);
  for (guint i = 0; i < ebb_args_get_length (state); i++)
    {
      const char *name = ebb_args_get_key (state, i);
      g_autoptr (EbbArgs) inner = NULL;

      switch (ebb_args_get_value_kind (state, i))
        {
        case EBB_VALUE_ARGS:
          inner = g_str_equal (name, "state") ? ebb_args_ref (slots) : ebb_args_get_args (state, i);
          ebb_args_add_args (copy, name, inner);
          break;
        case EBB_VALUE_STRING: ebb_args_add_string (copy, name, ebb_args_get_string (state, i)); break;
        case EBB_VALUE_INT: ebb_args_add_int (copy, name, ebb_args_get_int (state, i)); break;
        default: ebb_args_add_double (copy, name, ebb_args_get_double (state, i)); break;
        }
    }
  return copy;
}

static void
a_state_with_half_of_a_format_is_refused (void)
{
  const gint64 shape[] = { ROWS, COLUMNS }, blocks = 3;
  g_auto (Training) training = { NULL };
  g_autoptr (EbbArgs) state = NULL;
  g_autoptr (EbbTensor) half = ebb_zeros (shape, 2, EBB_DTYPE_F16, NULL, NULL);
  g_autoptr (EbbTensor) wide = ebb_zeros (shape, 2, EBB_DTYPE_F32, NULL, NULL);
  g_autoptr (EbbTensor) few = ebb_zeros (&blocks, 1, EBB_DTYPE_F32, NULL, NULL);
  const struct
  {
    const char *key;
    EbbTensor *tensor;
    const char *text;
  } cases[] = {
    { "exp_avg_absmax", NULL, "weight has 8-bit moments without their absmax" },
    { "exp_avg_sq", NULL, "the optimizer's state of weight has no exp_avg_sq" },
    { "exp_avg_sq", wide, "weight has an absmax without 8-bit moments" },
    { "exp_avg_sq", half, "exp_avg_sq of weight is f16 [64, 320]: it must be f32, bf16 or u8 [64, 320]" },
    { "exp_avg_absmax", few, "exp_avg_absmax of weight is f32 [3]: it must be f32 [80]" },
  };

  training_start (&training, EBB_MOMENT_FORMAT_EIGHT_BIT);
  training_run (&training, 0, 2);
  state = ebb_optimizer_get_state (training.optimizer);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbArgs) bad = replace (state, cases[i].key, cases[i].tensor);
      g_autoptr (GError) error = NULL;

      g_assert_false (ebb_optimizer_load_state (training.optimizer, bad, &error));
      test_assert_error (error, EBB_ERROR_STATE, cases[i].text);
    }
  training_run (&training, 2, 1);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/moment-formats/each-format-takes-what-it-says", each_format_takes_what_it_says);
  g_test_add_func ("/moment-formats/small-parameters-keep-32-bits", small_parameters_keep_32_bits);
  g_test_add_func ("/moment-formats/the-last-block-may-be-shorter", the_last_block_may_be_shorter);
  g_test_add_func ("/moment-formats/equal-parameters-round-differently", equal_parameters_round_differently);
  g_test_add_data_func ("/moment-formats/a-saved-state-goes-on-bit-for-bit/f32",
                        GINT_TO_POINTER (EBB_MOMENT_FORMAT_F32), a_saved_state_goes_on_bit_for_bit);
  g_test_add_data_func ("/moment-formats/a-saved-state-goes-on-bit-for-bit/bf16",
                        GINT_TO_POINTER (EBB_MOMENT_FORMAT_BF16), a_saved_state_goes_on_bit_for_bit);
  g_test_add_data_func ("/moment-formats/a-saved-state-goes-on-bit-for-bit/8bit",
                        GINT_TO_POINTER (EBB_MOMENT_FORMAT_EIGHT_BIT), a_saved_state_goes_on_bit_for_bit);
  g_test_add_func ("/moment-formats/a-state-is-converted-when-it-is-loaded", a_state_is_converted_when_it_is_loaded);
  g_test_add_func ("/moment-formats/the-format-may-change-on-the-way", the_format_may_change_on_the_way);
  g_test_add_func ("/moment-formats/a-state-with-half-of-a-format-is-refused",
                   a_state_with_half_of_a_format_is_refused);
  return g_test_run ();
}
