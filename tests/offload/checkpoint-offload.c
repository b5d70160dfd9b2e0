/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/card.h"
#include "support/device.h"
#include "support/stores.h"
#include "support/tensors.h"
#include "support/training.h"

/* Inner activations, which checkpointing frees, and outer ones, which offload takes off the device, add up. */

enum
{
  ROWS = 16,
  WIDTH = 16,
  N_BLOCKS = 4
};

#define INPUT_BYTES ((guint64) ROWS * WIDTH * 4)

static EbbDevice *card;

static guint64
activations (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

/* -- a model whose activations have known sizes -------------------------------------------------------------------- */

/* sin (x * gain) keeps x and the product: one outer, one inner activation. */
static EbbTensor *
scale_and_bend (EbbModule *self, EbbTensor *x, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) gain = ebb_module_get_parameter (self, "gain");
  g_autoptr (EbbTensor) scaled = ebb_mul (x, gain, error);

  return ebb_sin (scaled, error);
}

static EbbModule *
new_model (void)
{
  EbbModule *model = ebb_sequential_new ();

  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = test_lambda1_new (scale_and_bend, NULL);
      g_autoptr (EbbTensor) gain = test_randn (i, WIDTH, -1);
      g_autofree char *name = g_strdup_printf ("%u", i);

      ebb_module_register_parameter (block, "gain", gain, NULL);
      ebb_module_register_child (model, name, block, NULL);
    }
  g_assert_true (ebb_module_to_device (model, card, NULL));
  return model;
}

typedef enum
{
  UNWRAPPED = -1,
  PLAIN,
  OFFLOADED
} Wrapping;

static void
wrap_parts (EbbModule *model, Wrapping each, Wrapping whole)
{
  for (guint i = 0; i < 2; i++)
    {
      Wrapping wrapping = i == 0 ? each : whole;
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();

      g_object_set (options, "offload-to-cpu", wrapping == OFFLOADED, NULL);
      g_assert_cmpint (test_get_flag (options, "offload-to-cpu"), ==, wrapping == OFFLOADED);
      if (wrapping == UNWRAPPED)
        continue;
      if (i == 0)
        test_wrap_leaves (model, options);
      else
        test_wrap (model, options);
    }
}

/* One step; what lies on both sides after the forward. */
static void
measure (Wrapping each, Wrapping whole, guint64 *on_card, guint64 *on_host, GPtrArray *grads)
{
  GError *error = NULL;
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) start = ebb_to_device (here, card, &error);
  /* A result of something, as inputs within a model are; nobody else keeps it. */
  EbbTensor *x = ebb_copy (start, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  wrap_parts (model, each, whole);
  y = ebb_module_call1 (model, x, &error);
  ebb_tensor_unref (x);
  g_assert_no_error (error);
  *on_card = activations (card);
  *on_host = activations (NULL);
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  test_backward (loss);
  g_assert_cmpuint (activations (card), ==, 0);
  g_assert_cmpuint (activations (NULL), ==, 0);
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_ptr_array_add (grads, ebb_to_device (grad, ebb_device_get_cpu (), NULL));
      ebb_tensor_unref (parameters[i]);
    }
}

static void
inner_and_outer_savings_add_up (void)
{
  /* The bytes left on the device and on the host, in inputs of a block. */
  const struct
  {
    Wrapping each, whole;
    guint64 on_card, on_host;
  } cases[] = {
    { UNWRAPPED, UNWRAPPED, 2 * N_BLOCKS, 0 },
    { PLAIN, UNWRAPPED, N_BLOCKS, 0 },     /* inner ones go */
    { OFFLOADED, UNWRAPPED, 0, N_BLOCKS }, /* and outer ones */
    { UNWRAPPED, PLAIN, 1, 0 },            /* to the whole, all but its input are inner */
    { UNWRAPPED, OFFLOADED, 0, 1 },
    { PLAIN, PLAIN, 1, 0 },     /* inputs of the parts were made inside the whole */
    { OFFLOADED, PLAIN, 1, 0 }, /* which will make them again: nothing is copied */
    { PLAIN, OFFLOADED, 0, 1 },
    { OFFLOADED, OFFLOADED, 0, 1 },
  };
  g_autoptr (GPtrArray) expected = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GPtrArray) grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
      guint64 on_card, on_host;

      test_card.bytes_to_host = test_card.bytes_from_host = 0;
      measure (cases[i].each, cases[i].whole, &on_card, &on_host, grads);
      g_test_message ("case %u: %" G_GUINT64_FORMAT " on the card, %" G_GUINT64_FORMAT " on the host", i, on_card,
                      on_host);
      g_assert_cmpuint (on_card, ==, cases[i].on_card * INPUT_BYTES);
      g_assert_cmpuint (on_host, ==, cases[i].on_host * INPUT_BYTES);
      if (expected == NULL)
        expected = g_steal_pointer (&grads);
      else
        for (guint j = 0; j < grads->len; j++)
          g_assert_true (ebb_tensor_equal (grads->pdata[j], expected->pdata[j]));
    }
}

/* An input goes there and back once, however many use it, and comes back where it was, as it was. */
static EbbArgs *
check_place (EbbModule *self, EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) again = ebb_args_get_tensor (args, 1);
  g_autoptr (EbbTensor) here = ebb_args_get_tensor (args, 2);
  g_autoptr (EbbTensor) product = ebb_mul (x, again, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (again, 0, 1, error);
  g_autoptr (EbbTensor) square = ebb_matmul (product, turned, error);
  g_autoptr (EbbTensor) y = ebb_tanh (square, error);

  g_assert_true (ebb_tensor_get_device (x) == card && ebb_tensor_get_device (here) == ebb_device_get_cpu ());
  g_assert_cmpint (ebb_tensor_is_contiguous (again), ==, FALSE);
  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
inputs_cross_once_and_come_back_in_place (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) module = test_lambda_new (check_place, NULL);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) here = test_randn (1, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (here, card, NULL);
  g_autoptr (EbbTensor) turned = NULL;
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  turned = ebb_transpose (x, 0, 1, NULL);
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, NULL, turned);
  ebb_args_add_tensor (args, NULL, here); /* already on the host: stays */
  g_object_set (options, "offload-to-cpu", TRUE, NULL);
  test_card.bytes_to_host = test_card.bytes_from_host = 0;
  result = ebb_module_call (test_wrap (module, options), args, &error);
  g_assert_no_error (error);
  y = ebb_args_get_tensor (result, 0);
  loss = ebb_sum (y, NULL, 0, FALSE, NULL);
  test_backward (loss);
  g_assert_cmpuint (test_card.bytes_to_host, ==, INPUT_BYTES);
  g_assert_cmpuint (test_card.bytes_from_host, ==, INPUT_BYTES);
  g_assert_true (ebb_tensor_get_device (x) == card);
}

static void
parameters_are_not_offloaded (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) linear = ebb_linear_new (WIDTH, WIDTH, TRUE, NULL);
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbTensor) here = test_randn (1, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (here, card, NULL);
  g_autoptr (EbbTensor) y = NULL;

  g_assert_true (ebb_module_to_device (linear, card, NULL));
  g_object_set (options, "offload-to-cpu", TRUE, NULL);
  test_card.bytes_to_host = 0;
  y = ebb_module_call1 (test_wrap (linear, options), x, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (test_card.bytes_to_host, ==, INPUT_BYTES);
}

static void
a_store_of_ones_own_comes_before_the_flag (void)
{
  GError *error = NULL;
  g_autoptr (EbbModule) model = new_model ();
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
  g_autoptr (EbbSavedTensorHooks) store = ebb_keep_store_new ();
  g_autoptr (EbbTensor) here = test_randn (1, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (here, card, NULL);
  g_autoptr (EbbTensor) y = NULL;

  g_object_set (store, "least-size", (guint64) 1, NULL);
  g_object_set (options, "offload-to-cpu", TRUE, NULL);
  ebb_checkpoint_options_set_store (options, store);
  test_card.bytes_to_host = 0;
  y = ebb_module_call1 (test_wrap (model, options), x, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (test_card.bytes_to_host, ==, 0);
  g_assert_cmpuint (test_held (store), ==, INPUT_BYTES);
}

static void
copies_that_fail_fail_the_step_alone (void)
{
  for (guint in_backward = 0; in_backward < 2; in_backward++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbModule) model = new_model ();
      g_autoptr (EbbTensor) here = test_randn (1, ROWS, WIDTH, -1);
      g_autoptr (EbbTensor) x = ebb_to_device (here, card, NULL);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      wrap_parts (model, OFFLOADED, UNWRAPPED);
      test_card.copies_fail = !in_backward;
      y = ebb_module_call1 (model, x, &error);
      loss = ebb_sum (y, NULL, 0, FALSE, NULL);
      test_card.copies_fail = TRUE;
      g_assert_true (in_backward ? !ebb_tensor_backward (loss, &error) : y == NULL);
      test_assert_error (error, EBB_ERROR_DEVICE, "the copy failed");
      g_clear_error (&error);
      test_card.copies_fail = FALSE;
      g_clear_pointer (&y, ebb_tensor_unref);
      g_clear_pointer (&loss, ebb_tensor_unref);
      test_assert_counters (model, 0);
      g_assert_cmpuint (activations (card) + activations (NULL), ==, 0);
      y = ebb_module_call1 (model, x, &error);
      loss = ebb_sum (y, NULL, 0, FALSE, &error);
      test_backward (loss);
    }
}

/* sin of a transposed x: on the second call, of one that is larger by one. */
static EbbArgs *
drift (EbbArgs *args, gpointer data, GError **error)
{
  g_autoptr (EbbTensor) x = ebb_args_get_tensor (args, 0);
  g_autoptr (EbbTensor) moved = ebb_add_scalar (x, (*(guint *) data)++, error);
  g_autoptr (EbbTensor) turned = ebb_transpose (moved, 0, 1, error);
  g_autoptr (EbbTensor) y = ebb_sin (turned, error);

  return y != NULL ? ebb_args_new_for_tensor (y) : NULL;
}

static void
other_values_on_a_device_are_found (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (here, card, &error);
  g_autoptr (EbbArgs) args = ebb_args_new_for_tensor (x);

  ebb_tensor_set_requires_grad (x, TRUE, NULL);
  for (EbbDeterminismCheck check = EBB_DETERMINISM_CHECK_DEFAULT; check <= EBB_DETERMINISM_CHECK_VALUES; check++)
    {
      guint n_calls = 0;
      g_autoptr (EbbCheckpointOptions) options = ebb_checkpoint_options_new ();
      g_autoptr (EbbArgs) result = NULL;
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (EbbTensor) loss = NULL;

      g_object_set (options, "determinism-check", check, NULL);
      result = ebb_checkpoint (drift, &n_calls, NULL, args, options, &error);
      y = ebb_args_get_tensor (result, 0);
      loss = ebb_sum (y, NULL, 0, FALSE, &error);
      g_assert_no_error (error);
      g_assert_true (ebb_tensor_backward (loss, &error) == (check == EBB_DETERMINISM_CHECK_DEFAULT));
    }
  test_assert_error (error, EBB_ERROR_RECOMPUTE, "with other values in the recompute");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  card = test_card_open ();
  g_object_set (ebb_host_store_get_default (), "least-size", (guint64) 1, NULL);
#define TEST(name, func) g_test_add_func ("/checkpoint/offload/" name, func)
  TEST ("inner-and-outer-savings-add-up", inner_and_outer_savings_add_up);
  TEST ("inputs-cross-once-and-come-back-in-place", inputs_cross_once_and_come_back_in_place);
  TEST ("parameters-are-not-offloaded", parameters_are_not_offloaded);
  TEST ("a-store-of-ones-own-comes-before-the-flag", a_store_of_ones_own_comes_before_the_flag);
  TEST ("copies-that-fail-fail-the-step-alone", copies_that_fail_fail_the_step_alone);
  TEST ("other-values-on-a-device-are-found", other_values_on_a_device_are_found);
  return g_test_run ();
}
