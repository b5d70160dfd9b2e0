/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/tensors.h"
#include "support/training.h"

#include <string.h>

/* The keys of "activation_checkpointing" on a device that works behind the caller's back, with copies that take their
 * time: the same gradients as without, fewer bytes on the device, and nothing in flight at a boundary. */

enum
{
  ROWS = 64,
  WIDTH = 64,
  N_BLOCKS = 4
};

#define INPUT_BYTES ((guint64) ROWS * WIDTH * 4)

static EbbDevice *sim;

static guint64
activations (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (sim);

  return ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static EbbModule *
new_model (EbbDevice *device)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();

  ebb_manual_seed (2);
  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = ebb_sequential_new ();
      g_autoptr (EbbModule) linear = ebb_linear_new (WIDTH, WIDTH, TRUE, NULL);
      g_autoptr (EbbModule) dropout = ebb_dropout_new (0.1, NULL);
      g_autoptr (EbbModule) gelu = ebb_gelu_new (EBB_GELU_EXACT);

      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (block), linear, NULL));
      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (block), dropout, NULL));
      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (block), gelu, NULL));
      g_assert_true (ebb_sequential_append (EBB_SEQUENTIAL (model), block, NULL));
    }
  g_assert_true (ebb_module_to_device (model, device, NULL));
  return g_steal_pointer (&model);
}

static void
wrap_blocks (EbbModule *model)
{
  g_autoptr (EbbCheckpointOptions) options = ebb_checkpointing_get_options ();
  EbbSavedTensorHooks *store = ebb_checkpoint_options_get_store (options);

  if (store != NULL)
    g_object_set (store, "least-size", (guint64) INPUT_BYTES, NULL);
  for (guint i = 0; i < N_BLOCKS; i++)
    {
      g_autoptr (EbbModule) block = ebb_sequential_get (EBB_SEQUENTIAL (model), i);

      test_wrap (block, options);
    }
}

/* Gradients on the CPU; *after_forward is what is on the device once all that was begun is done. */
static GPtrArray *
step (EbbModule *model, EbbDevice *device, guint64 *after_forward)
{
  GError *error = NULL;
  GPtrArray *grads = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  g_autoptr (EbbTensor) here = test_randn (9, ROWS, WIDTH, -1);
  g_autoptr (EbbTensor) there = ebb_to_device (here, device, &error);
  EbbTensor *x = ebb_copy (there, &error);
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n;

  ebb_manual_seed (5);
  y = ebb_module_call1 (model, x, &error);
  ebb_tensor_unref (x);
  g_assert_no_error (error);
  *after_forward = activations ();
  loss = ebb_sum (y, NULL, 0, FALSE, &error);
  test_backward (loss);
  parameters = ebb_module_get_parameters (model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) grad = ebb_tensor_get_grad (parameters[i]);

      g_ptr_array_add (grads, ebb_to_device (grad, ebb_device_get_cpu (), &error));
      g_assert_no_error (error);
      ebb_tensor_unref (parameters[i]);
    }
  return grads;
}

static void
gradients_are_those_of_the_cpu (void)
{
  static const struct
  {
    const char *section;
    guint n_inputs; /* of blocks that are on the device after the forward, the same in every run */
  } cases[] = {
    { "", N_BLOCKS },
    { "\"synchronize_checkpoint_boundary\": true", N_BLOCKS },
    { "\"cpu_checkpointing\": true", 1 }, /* the last one is on its way */
    { "\"cpu_checkpointing\": true, \"synchronize_checkpoint_boundary\": true, \"profile\": true", 1 },
    { "\"contiguous_memory_optimization\": true, \"number_checkpoints\": 4", N_BLOCKS },
    { "\"contiguous_memory_optimization\": true, \"number_checkpoints\": 4, \"cpu_checkpointing\": true", 1 },
  };
  g_autoptr (EbbModule) plain = new_model (ebb_device_get_cpu ());
  guint64 n_bytes;
  g_autoptr (GPtrArray) expected = step (plain, ebb_device_get_cpu (), &n_bytes);

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (EbbModule) model = new_model (sim);
      g_autofree char *json = g_strdup_printf ("{\"activation_checkpointing\": {%s}}", cases[i].section);

      g_assert_true (ebb_checkpointing_configure (NULL, json, NULL, NULL));
      wrap_blocks (model);
      for (guint repeat = 0; repeat < 2; repeat++)
        {
          g_autoptr (GPtrArray) grads = NULL;

          ebb_module_zero_grad (model);
          grads = step (model, sim, &n_bytes);
          g_test_message ("%s: %" G_GUINT64_FORMAT " bytes", cases[i].section, n_bytes);
          g_assert_cmpuint (n_bytes, ==, cases[i].n_inputs * INPUT_BYTES);
          for (guint j = 0; j < expected->len; j++)
            g_assert_true (ebb_tensor_equal (grads->pdata[j], expected->pdata[j]));
        }
      g_assert_true (ebb_device_synchronize (sim, NULL));
    }
}

/* The time of an idle copy engine is not the forward's: a profile waits for the work, and so measures it. */
static void
a_profile_measures_work_and_not_its_beginning (void)
{
  g_autoptr (EbbModule) model = new_model (sim);
  g_autoptr (EbbCheckpointStats) stats = NULL;
  g_autoptr (GPtrArray) grads = NULL;
  g_autoptr (EbbArgs) profile = NULL;
  const double seconds = N_BLOCKS * INPUT_BYTES / 4e6; /* that the copies to the host take */
  guint64 n_bytes;

  g_assert_true (ebb_checkpointing_configure (
      NULL, "{\"activation_checkpointing\": {\"cpu_checkpointing\": true, \"profile\": true}}", NULL, NULL));
  wrap_blocks (model);
  grads = step (model, sim, &n_bytes);
  profile = ebb_checkpointing_get_profile ();
  g_assert_cmpint (ebb_args_get_int (profile, (guint) ebb_args_find (profile, "forwards")), ==, N_BLOCKS);
  g_assert_cmpint (ebb_args_get_int (profile, (guint) ebb_args_find (profile, "backwards")), ==, N_BLOCKS);
  g_assert_cmpfloat (ebb_args_get_double (profile, (guint) ebb_args_find (profile, "forward_seconds")), >=, seconds);
}

int
main (int argc, char **argv)
{
  g_autoptr (GError) error = NULL;

  g_test_init (&argc, &argv, NULL);
  g_setenv ("EBB_SIM_BANDWIDTH", "4M", TRUE); /* an input takes 4 ms */
  sim = ebb_device_get ("sim:57", &error);
  g_unsetenv ("EBB_SIM_BANDWIDTH");
  g_assert_no_error (error);
#define TEST(name, func) g_test_add_func ("/checkpointing/sim/" name, func)
  TEST ("gradients-are-those-of-the-cpu", gradients_are_those_of_the_cpu);
  TEST ("a-profile-measures-work-and-not-its-beginning", a_profile_measures_work_and_not_its_beginning);
  return g_test_run ();
}
