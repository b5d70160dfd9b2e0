/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/device.h"
#include "support/tensors.h"

#include <glib/gstdio.h>
#include <json-glib/json-glib.h>

/* The emulated accelerator as a user has it. Each test that sets its memory or speed takes a device of another number.
 */

#define VOCAB 31
#define CONTEXT 24
#define N_STEPS 3

static EbbDevice *
get_device (const char *name)
{
  g_autoptr (GError) error = NULL;
  EbbDevice *device = ebb_device_get (name, &error);

  g_assert_no_error (error);
  return device;
}

static EbbDevice *
open_with_memory (const char *name,
                  const char *memory)
{
  EbbDevice *device;

  g_setenv ("EBB_SIM_MEMORY", memory, TRUE);
  device = get_device (name);
  g_unsetenv ("EBB_SIM_MEMORY");
  return device;
}

/* -- training ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  EbbTensor *losses[N_STEPS];
  EbbTensor **parameters;
  guint n_parameters;
  guint64 peak;
} Training;

static void
training_clear (Training *training)
{
  for (guint i = 0; i < N_STEPS; i++)
    ebb_tensor_unref (training->losses[i]);
  for (guint i = 0; i < training->n_parameters; i++)
    ebb_tensor_unref (training->parameters[i]);
  g_free (training->parameters);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Training, training_clear)

static EbbModule *
make_gpt (EbbDevice *device)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->layers = 3;
  config->width = 64;
  config->heads = 4;
  config->context = CONTEXT;
  config->vocab = VOCAB;
  config->dropout = 0.1;
  ebb_manual_seed (3);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_module_to_device (gpt, device, &error));
  g_assert_no_error (error);
  return gpt;
}

static EbbTensor *
get_loss (EbbModule *gpt,
          guint step,
          EbbDevice *device,
          GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (100 + step, VOCAB, 8, CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (200 + step, VOCAB, 8, CONTEXT, -1);
  g_autoptr (EbbTensor) x = ebb_to_device (tokens, device, error);
  g_autoptr (EbbTensor) y = ebb_to_device (targets, device, error);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  if (x == NULL || y == NULL)
    return NULL;
  ebb_args_add_tensor (args, NULL, x);
  ebb_args_add_tensor (args, NULL, y);
  result = ebb_module_call (gpt, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

static void
train (EbbDevice *device,
       gboolean checkpoint,
       gboolean autocast,
       Training *training)
{
  g_autoptr (EbbModule) gpt = make_gpt (device);
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  g_autoptr (GError) error = NULL;

  if (checkpoint)
    g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error));
  optimizer = ebb_adamw_new (gpt, 1e-2, &error);
  g_assert_no_error (error);
  ebb_memory_reset_peaks (device);
  for (guint i = 0; i < N_STEPS; i++)
    {
      g_autoptr (EbbTensor) loss = NULL;

      if (autocast)
        ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
      loss = get_loss (gpt, i, device, &error);
      if (autocast)
        ebb_pop_autocast ();
      g_assert_no_error (error);
      ebb_tensor_backward (loss, &error);
      g_assert_no_error (error);
      test_clip_grad (optimizer, 1.0, 2, NULL, &error);
      ebb_optimizer_step (optimizer, &error);
      g_assert_no_error (error);
      ebb_optimizer_zero_grad (optimizer);
      training->losses[i] = ebb_to_device (loss, NULL, &error);
    }
  stats = ebb_memory_get_stats (device);
  training->peak = ebb_memory_stats_get_peak_total (stats);
  g_assert_true (ebb_module_to_device (gpt, ebb_device_get_cpu (), &error));
  training->parameters = ebb_module_get_parameters (gpt, TRUE, &training->n_parameters);
}

static void
assert_same_training (const Training *a,
                      const Training *b)
{
  for (guint i = 0; i < N_STEPS; i++)
    g_assert_true (ebb_tensor_equal (a->losses[i], b->losses[i]));
  g_assert_cmpuint (a->n_parameters, ==, b->n_parameters);
  for (guint i = 0; i < a->n_parameters; i++)
    g_assert_true (ebb_tensor_equal (a->parameters[i], b->parameters[i]));
}

static void
a_gpt_trains_as_on_the_cpu (gconstpointer data)
{
  int n_threads = GPOINTER_TO_INT (data);
  int before = ebb_get_num_threads ();

  ebb_set_num_threads (n_threads);
  for (guint i = 0; i < 4; i++)
    {
      g_auto (Training) cpu = { 0 };
      g_auto (Training) sim = { 0 };

      train (ebb_device_get_cpu (), i & 1, i & 2, &cpu);
      train (get_device ("sim"), i & 1, i & 2, &sim);
      assert_same_training (&cpu, &sim);
    }
  ebb_set_num_threads (before);
}

static guint64
get_current (EbbDevice *device)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (device);

  return ebb_memory_stats_get_total (stats);
}

static void
a_run_takes_the_same_memory_each_time (void)
{
  EbbDevice *device = get_device ("sim");
  guint64 before = get_current (device);
  g_auto (Training) first = { 0 };
  g_auto (Training) second = { 0 };

  train (device, TRUE, FALSE, &first);
  g_assert_cmpuint (get_current (device), ==, before);
  train (device, TRUE, FALSE, &second);
  g_assert_cmpuint (get_current (device), ==, before);
  g_assert_cmpuint (first.peak, >, 0);
  g_assert_cmpuint (first.peak, ==, second.peak);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static void
no_memory_names_its_users (void)
{
  EbbDevice *device = open_with_memory ("sim:10", "1M");
  const gint64 large[] = { 600 * 1024 }, small[] = { 100 * 1024 }, odd[] = { 64 };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = NULL;
  g_autoptr (EbbTensor) y = NULL;
  g_autoptr (EbbTensor) sum = NULL;

  g_assert_cmpuint (ebb_memory_get_limit (device), ==, 1024 * 1024);
  x = ebb_tensor_new_empty (small, 1, EBB_DTYPE_F32, device, &error);
  g_assert_no_error (error);
  ebb_tensor_set_requires_grad (x, TRUE, &error);
  y = ebb_tensor_new_empty (odd, 1, EBB_DTYPE_U8, device, &error);
  g_assert_no_error (error);
  g_assert_cmpuint (ebb_memory_get_available (device), ==, 638912);
  sum = ebb_tensor_new_empty (large, 1, EBB_DTYPE_F32, device, &error);
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "sim:10", "2457600 bytes asked for", "638912 of 1048576 free",
                     "in use: workspace 409664");
  g_clear_error (&error);
  sum = ebb_square (x, &error);
  g_assert_no_error (error);
  g_clear_pointer (&sum, ebb_tensor_unref);
  g_clear_pointer (&x, ebb_tensor_unref);
  x = ebb_tensor_new_empty (small, 1, EBB_DTYPE_I32, device, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_device_synchronize (device, &error));
}

static void
fragmented_memory_names_the_largest_piece (void)
{
  EbbDevice *device = open_with_memory ("sim:11", "64K");
  const gint64 quarter[] = { 16 * 1024 };
  g_autoptr (GError) error = NULL;
  EbbTensor *parts[4];
  EbbTensor *half;

  for (guint i = 0; i < 4; i++)
    parts[i] = ebb_tensor_new_empty (quarter, 1, EBB_DTYPE_U8, device, &error);
  g_assert_no_error (error);
  ebb_tensor_unref (parts[0]);
  ebb_tensor_unref (parts[2]);
  half = ebb_tensor_new_empty (quarter, 1, EBB_DTYPE_F16, device, &error);
  g_assert_null (half);
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "32768 bytes asked for", "32768 of 65536 free",
                     "pieces of at most 16384", "workspace 32768");
  g_clear_error (&error);
  ebb_tensor_unref (parts[1]);
  half = ebb_tensor_new_empty (quarter, 1, EBB_DTYPE_F16, device, &error);
  g_assert_no_error (error);
  ebb_tensor_unref (half);
  ebb_tensor_unref (parts[3]);
}

static void
a_model_that_does_not_fit_is_an_error (void)
{
  EbbDevice *device = open_with_memory ("sim:12", "1500K");
  g_autoptr (EbbModule) gpt = make_gpt (device);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) loss = get_loss (gpt, 0, device, &error);
  guint64 before = get_current (device);

  g_assert_null (loss);
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "out of memory on sim:12", "activations", "parameters");
  g_assert_cmpuint (get_current (device), ==, before);
}

/* -- settings ------------------------------------------------------------------------------------------------------ */

static void
a_wrong_setting_is_an_error_that_names_it (void)
{
  static const char *const settings[][2] = {
    { "EBB_SIM_MEMORY", "lots" },
    { "EBB_SIM_MEMORY", "0" },
    { "EBB_SIM_MEMORY", "1Q" },
    { "EBB_SIM_MEMORY", "-1G" },
    { "EBB_SIM_MEMORY", "9999999T" },
    { "EBB_SIM_MEMORY", "63" },
    { "EBB_SIM_BANDWIDTH", "fast" },
    { "EBB_SIM_BANDWIDTH", "1G,2G,3G" },
    { "EBB_SIM_BANDWIDTH", "1G," },
    { "EBB_SIM_LATENCY", "-5" },
    { "EBB_SIM_LATENCY", "5us" },
    { "EBB_SIM_FAIL", "launch" },
    { "EBB_SIM_FAIL", "magic:3" },
  };
  g_autoptr (GError) too_much = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (settings); i++)
    {
      g_autoptr (GError) error = NULL;

      g_setenv (settings[i][0], settings[i][1], TRUE);
      g_assert_null (ebb_device_get ("sim:20", &error));
      g_unsetenv (settings[i][0]);
      test_assert_error (error, EBB_ERROR_DEVICE, settings[i][0], settings[i][1], "must be");
    }
  g_setenv ("EBB_SIM_MEMORY", "100T", TRUE);
  g_assert_null (ebb_device_get ("sim:20", &too_much));
  g_unsetenv ("EBB_SIM_MEMORY");
  test_assert_error (too_much, EBB_ERROR_DEVICE, "a size from 64 bytes to 64TiB");
  get_device ("sim:20");
}

static void
a_device_that_is_not_there_is_an_error (void)
{
  static const char *const names[] = { "gpu", "sim/../sim", "Sim", "", ":1", "../ebb-backend-sim" };

  for (guint i = 0; i < G_N_ELEMENTS (names); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_null (ebb_device_get (names[i], &error));
      test_assert_error (error, EBB_ERROR_DEVICE, "there is cpu", "to use instead");
      g_assert_null (strstr (error->message, ".so"));
    }
}

/* -- traces -------------------------------------------------------------------------------------------------------- */

static void
a_trace_has_a_row_for_each_queue (void)
{
  EbbDevice *device = get_device ("sim");
  g_autoptr (JsonParser) parser = json_parser_new ();
  g_autoptr (GError) error = NULL;
  g_auto (Training) training = { 0 };
  g_autofree char *text = NULL;
  double busy = -1, waited = -1;
  guint n_kernels = 0, n_copies = 0;
  JsonArray *events;

  g_assert_null (ebb_stream_trace_stop (device, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "sim is not traced");
  g_clear_error (&error);
  g_assert_true (ebb_stream_trace_start (device, &error));
  train (device, FALSE, FALSE, &training);
  text = ebb_stream_trace_stop (device, &error);
  g_assert_no_error (error);
  g_assert_true (json_parser_load_from_data (parser, text, -1, &error));
  events = json_object_get_array_member (json_node_get_object (json_parser_get_root (parser)), "traceEvents");
  for (guint i = 0; i < json_array_get_length (events); i++)
    {
      JsonObject *event = json_array_get_object_element (events, i);
      const char *category;

      if (strcmp (json_object_get_string_member (event, "ph"), "M") == 0)
        continue;
      category = json_object_get_string_member (event, "cat");
      g_assert_cmpfloat (json_object_get_double_member (event, "ts"), >=, 0);
      g_assert_cmpfloat (json_object_get_double_member (event, "dur"), >=, 0);
      n_kernels += strcmp (category, "kernel") == 0;
      if (strcmp (category, "copy") == 0)
        {
          n_copies++;
          g_assert_cmpint (
              json_object_get_int_member (json_object_get_object_member (event, "args"), "bytes"), >, 0);
        }
    }
  g_assert_cmpuint (n_kernels, >, 100);
  g_assert_cmpuint (n_copies, >, 10);
  g_assert_true (ebb_stream_get_seconds (device, "compute", &busy, &waited, &error));
  g_assert_cmpfloat (busy, >, 0);
  g_assert_cmpfloat (waited, ==, 0);
  g_assert_false (ebb_stream_get_seconds (device, "copy", NULL, NULL, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "\"copy\"", "from_host");
  g_clear_error (&error);
  g_assert_false (ebb_stream_trace_start (ebb_device_get_cpu (), &error));
  test_assert_error (error, EBB_ERROR_NOT_SUPPORTED, "cpu");
}

static void
a_trace_is_saved_whole_or_not_at_all (void)
{
  EbbDevice *device = get_device ("sim");
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp ("ebb-trace-XXXXXX", &error);
  g_autofree char *path = g_build_filename (folder, "trace.json", NULL);
  g_autofree char *nowhere = g_build_filename (folder, "no", "trace.json", NULL);
  g_autoptr (JsonParser) parser = json_parser_new ();

  g_assert_true (ebb_stream_trace_start (device, &error));
  g_assert_false (ebb_stream_trace_save (device, nowhere, &error));
  test_assert_error (error, EBB_ERROR_IO, nowhere);
  g_clear_error (&error);
  /* The record is still there. */
  g_assert_true (ebb_stream_trace_save (device, path, &error));
  g_assert_true (json_parser_load_from_file (parser, path, &error));
  g_assert_no_error (error);
  g_assert_cmpint (g_remove (path), ==, 0);
  g_assert_cmpint (g_remove (folder), ==, 0);
}

int
main (int argc,
      char **argv)
{
  g_test_init (&argc, &argv, NULL);
  g_test_add_data_func ("/sim/a-gpt-trains-as-on-the-cpu/1", GINT_TO_POINTER (1), a_gpt_trains_as_on_the_cpu);
  g_test_add_data_func ("/sim/a-gpt-trains-as-on-the-cpu/2", GINT_TO_POINTER (2), a_gpt_trains_as_on_the_cpu);
  g_test_add_func ("/sim/a-run-takes-the-same-memory-each-time", a_run_takes_the_same_memory_each_time);
  g_test_add_func ("/sim/no-memory-names-its-users", no_memory_names_its_users);
  g_test_add_func ("/sim/fragmented-memory-names-the-largest-piece", fragmented_memory_names_the_largest_piece);
  g_test_add_func ("/sim/a-model-that-does-not-fit-is-an-error", a_model_that_does_not_fit_is_an_error);
  g_test_add_func ("/sim/a-wrong-setting-is-an-error-that-names-it", a_wrong_setting_is_an_error_that_names_it);
  g_test_add_func ("/sim/a-device-that-is-not-there-is-an-error", a_device_that_is_not_there_is_an_error);
  g_test_add_func ("/sim/a-trace-has-a-row-for-each-queue", a_trace_has_a_row_for_each_queue);
  g_test_add_func ("/sim/a-trace-is-saved-whole-or-not-at-all", a_trace_is_saved_whole_or_not_at_all);
  return g_test_run ();
}
