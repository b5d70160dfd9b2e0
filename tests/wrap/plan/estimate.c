/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: one-thread */

#include "support/device.h"
#include "support/profiles.h"
#include "support/tensors.h"

#include <glib/gstdio.h>

/* A dry run of a training step counts what the step takes, to the byte and for each purpose, and changes nothing. */

typedef enum
{
  FULL = 1 << 0,
  SELECTIVE = 1 << 1,
  HOST = 1 << 2,
  DISK = 1 << 3,
  CONTIGUOUS = 1 << 4,
  EIGHT_BIT = 1 << 5,
  IN_BACKWARD = 1 << 6,
  CLIP = 1 << 7,
  AUTOCAST = 1 << 8,
  ACCUMULATE = 1 << 9,
  HOOKS = 1 << 10, /* the store is pushed around the forward instead of given to the checkpoints */
  TILES = 1 << 11,
} How;

typedef struct
{
  const char *name;
  guint how;
} Case;

static const Case cases[] = {
  { "none", 0 },
  { "full", FULL },
  { "selective", SELECTIVE },
  { "clip", CLIP },
  { "accumulate", ACCUMULATE },
  { "eight-bit-moments", EIGHT_BIT },
  { "step-in-backward", IN_BACKWARD },
  { "autocast", AUTOCAST },
  { "autocast-full", AUTOCAST | FULL },
  { "host", HOST | HOOKS },
  { "host-full", HOST | FULL },
  { "host-selective-clip", HOST | SELECTIVE | CLIP },
  { "disk", DISK | HOOKS },
  { "disk-full", DISK | FULL },
  { "contiguous-full", CONTIGUOUS | FULL },
  { "contiguous-host-full", CONTIGUOUS | HOST | FULL },
  { "tiles", TILES },
  { "tiles-full", TILES | FULL },
  { "tiles-selective-clip", TILES | SELECTIVE | CLIP },
  { "tiles-autocast", TILES | AUTOCAST },
  { "tiles-host", TILES | HOST | HOOKS },
  { "tiles-disk-full", TILES | DISK | FULL },
  { "tiles-step-in-backward", TILES | IN_BACKWARD },
};

typedef struct
{
  guint how;
  char *folder;
  EbbModule *gpt;
  EbbOptimizer *optimizer;
  EbbSavedTensorHooks *store;
  gboolean reads_loss;
  double loss; /* of the last step, where it was read */
} Training;

static EbbSavedTensorHooks *
make_store (Training *self)
{
  EbbActivationStore *store = NULL;
  GError *error = NULL;

  if (self->how & HOST)
    store = EBB_ACTIVATION_STORE (ebb_host_store_new ());
  else if (self->how & DISK)
    {
      self->folder = g_dir_make_tmp ("ebb-estimate-XXXXXX", &error);
      g_assert_no_error (error);
      store = EBB_ACTIVATION_STORE (ebb_disk_store_new (self->folder, &error));
      g_assert_no_error (error);
    }
  if (store != NULL)
    g_object_set (store, "least-size", (guint64) 1, NULL);
  if (self->how & CONTIGUOUS)
    {
      g_autoptr (EbbActivationStore) next = store;

      store = EBB_ACTIVATION_STORE (ebb_contiguous_store_new (4, next, &error));
      g_assert_no_error (error);
      g_object_set (store, "least-size", (guint64) 1, NULL);
    }
  return (EbbSavedTensorHooks *) store;
}

static void
wrap_blocks (Training *self)
{
  g_autoptr (EbbCheckpointOptions) options = (self->how & SELECTIVE) ? ebb_checkpoint_options_new_selective ()
                                                                     : ebb_checkpoint_options_new ();
  g_autofree EbbModule **modules = NULL;
  GError *error = NULL;
  guint n;

  if (self->how & TILES)
    ebb_tile_wrap_each (self->gpt, EBB_TYPE_MLP, 16, &error); /* four tiles */
  g_assert_no_error (error);
  if (!(self->how & (FULL | SELECTIVE)))
    return;
  if (self->store != NULL && !(self->how & HOOKS))
    ebb_checkpoint_options_set_store (options, self->store);
  modules = ebb_module_get_modules (self->gpt, &n);
  for (guint i = 0; i < n; i++)
    {
      if (EBB_IS_TRANSFORMER_BLOCK (modules[i]))
        {
          g_object_unref (ebb_checkpoint_wrapper (modules[i], options, &error));
          g_assert_no_error (error);
        }
      g_object_unref (modules[i]);
    }
}

static void
training_init (Training *self,
               guint how)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  GError *error = NULL;

  *self = (Training){ .how = how };
  config->layers = 3;
  config->width = 64;
  config->heads = 4;
  config->context = 32;
  config->vocab = 200;
  config->dropout = 0.1;
  ebb_manual_seed (7);
  self->gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  self->optimizer = EBB_OPTIMIZER (ebb_adamw_new (self->gpt, 1e-3, &error));
  g_assert_no_error (error);
  if (how & EIGHT_BIT)
    g_object_set (self->optimizer, "moment-format", EBB_MOMENT_FORMAT_EIGHT_BIT, NULL);
  if (how & IN_BACKWARD)
    g_object_set (self->optimizer, "step-in-backward", TRUE, NULL);
  self->store = make_store (self);
  wrap_blocks (self);
}

static void
training_clear (Training *self)
{
  g_clear_object (&self->optimizer);
  g_clear_object (&self->gpt);
  g_clear_object (&self->store);
  if (self->folder != NULL)
    g_rmdir (self->folder);
  g_free (self->folder);
}

static gboolean
forward_and_backward (Training *self,
                      GError **error)
{
  g_autoptr (EbbTensor) tokens = test_tokens (11, 200, 2, 32, -1);
  g_autoptr (EbbTensor) targets = test_tokens (12, 200, 2, 32, -1);
  g_autoptr (EbbTensor) loss = NULL;

  if (self->how & AUTOCAST)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  if (self->how & HOOKS)
    ebb_push_saved_tensor_hooks (self->store);
  loss = ebb_gpt_loss (EBB_GPT (self->gpt), tokens, targets, error);
  if (self->how & HOOKS)
    ebb_pop_saved_tensor_hooks ();
  if (self->how & AUTOCAST)
    ebb_pop_autocast ();
  if (loss != NULL && (self->how & ACCUMULATE))
    {
      EbbTensor *scaled = ebb_mul_scalar (loss, 0.5, error);

      ebb_tensor_unref (loss);
      loss = scaled;
    }
  return loss != NULL && (!self->reads_loss || ebb_tensor_get_item (loss, &self->loss, error))
         && ebb_tensor_backward (loss, error);
}

static gboolean
step (EbbModule *model,
      gpointer user_data,
      GError **error)
{
  Training *self = user_data;

  if (!forward_and_backward (self, error) || ((self->how & ACCUMULATE) && !forward_and_backward (self, error)))
    return FALSE;
  if (self->how & CLIP)
    {
      g_autoptr (EbbTensor) norm = ebb_optimizer_clip_grad_norm (self->optimizer, 0.01, error);

      if (norm == NULL)
        return FALSE;
    }
  if (!ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  return TRUE;
}

typedef struct
{
  guint64 current[EBB_N_PURPOSES + 2]; /* the last two: all, and all of the host */
  guint64 peak[EBB_N_PURPOSES + 2];
} Counts;

static Counts
count_now (void)
{
  g_autoptr (EbbMemoryStats) stats = ebb_memory_get_stats (test_device ());
  g_autoptr (EbbMemoryStats) host = ebb_memory_get_stats (NULL);
  Counts counts;

  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      counts.current[i] = ebb_memory_stats_get_current (stats, (EbbPurpose) i);
      counts.peak[i] = ebb_memory_stats_get_peak (stats, (EbbPurpose) i);
    }
  counts.current[EBB_N_PURPOSES] = ebb_memory_stats_get_total (stats);
  counts.peak[EBB_N_PURPOSES] = ebb_memory_stats_get_peak_total (stats);
  counts.current[EBB_N_PURPOSES + 1] = ebb_memory_stats_get_total (host);
  counts.peak[EBB_N_PURPOSES + 1] = ebb_memory_stats_get_peak_total (host);
  return counts;
}

/* Two steps as they are; the second is measured. */
static Counts
measure (guint how)
{
  const Counts before = count_now ();
  GError *error = NULL;
  Training training;
  Counts counts;

  training_init (&training, how);
  for (guint i = 0; i < 2; i++)
    {
      ebb_memory_reset_peaks (test_device ());
      ebb_memory_reset_peaks (NULL);
      step (training.gpt, &training, &error);
      g_assert_no_error (error);
    }
  counts = count_now ();
  for (guint i = 0; i < EBB_N_PURPOSES + 2; i++)
    counts.peak[i] -= before.current[i];
  training_clear (&training);
  return counts;
}

/* Who holds the peak adds up to it; the parameters and what the optimizer holds have names. */
static void
check_timeline (EbbMemoryEstimate *estimate)
{
  EbbMemoryTimeline *timeline = ebb_memory_estimate_get_timeline (estimate);
  g_autofree char *json = ebb_memory_timeline_get_json (timeline, G_MAXUINT);
  g_autofree char *text = ebb_memory_estimate_to_string (estimate);
  g_auto (GStrv) lines = g_strsplit (text, "\n", -1);
  g_autoptr (JsonParser) parser = NULL;
  JsonArray *holders = json_object_get_array_member (test_parse_json (json, &parser), "holders");
  guint64 sum = 0;
  gboolean has_parameter = FALSE, has_state = FALSE;
  guint first = 0;

  g_assert_cmpuint (ebb_memory_timeline_get_peak_total (timeline), ==, ebb_memory_estimate_get_peak_total (estimate));
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    g_assert_cmpuint (ebb_memory_timeline_get_peak (timeline, (EbbPurpose) i), ==,
                      ebb_memory_estimate_get_peak (estimate, (EbbPurpose) i));
  for (guint i = 0; i < json_array_get_length (holders); i++)
    {
      JsonObject *holder = json_array_get_object_element (holders, i);
      const char *name = json_object_get_string_member_with_default (holder, "name", "");

      sum += (guint64) json_object_get_int_member (holder, "bytes");
      has_parameter = has_parameter || g_str_equal (name, "h.*.mlp.c_fc.weight");
      has_state = has_state || g_str_has_prefix (name, "h.*.mlp.c_fc.weight (exp_avg");
    }
  g_assert_cmpuint (sum, ==, ebb_memory_estimate_get_peak_total (estimate));
  g_assert_true (has_parameter && has_state);
  while (lines[first] != NULL && !g_str_has_prefix (lines[first], "at the peak the largest"))
    first++;
  g_assert_cmpuint (g_strv_length (lines), ==, first + 1 + 10 + 1);
}

static void
estimate_is_the_measured_peak (gconstpointer data)
{
  const Case *self = data;
  const Counts measured = measure (self->how);
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  GError *error = NULL;
  Training training;

  training_init (&training, self->how);
  estimate = ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < EBB_N_PURPOSES; i++)
    {
      g_test_message ("%u: %" G_GUINT64_FORMAT " and %" G_GUINT64_FORMAT, i, measured.peak[i],
                      ebb_memory_estimate_get_peak (estimate, (EbbPurpose) i));
      g_assert_cmpuint (ebb_memory_estimate_get_peak (estimate, (EbbPurpose) i), ==, measured.peak[i]);
    }
  g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, measured.peak[EBB_N_PURPOSES]);
  g_assert_cmpuint (ebb_memory_estimate_get_host_peak_total (estimate), ==, measured.peak[EBB_N_PURPOSES + 1]);
  check_timeline (estimate);
  g_assert_cmpstr (ebb_memory_estimate_get_leak (estimate), ==, NULL);
  g_assert_cmpuint (ebb_memory_estimate_get_leaked_bytes (estimate), ==, 0);
  training_clear (&training);
}

/* The losses of four steps, with a dry run before the first and between the others or without. */
static void
run_training (guint how,
              gboolean is_estimated,
              double losses[4])
{
  GError *error = NULL;
  Training training;

  training_init (&training, how);
  for (guint i = 0; i < 4; i++)
    {
      if (is_estimated)
        {
          g_autoptr (EbbMemoryEstimate) estimate =
              ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);

          g_assert_no_error (error);
        }
      training.reads_loss = TRUE;
      step (training.gpt, &training, &error);
      g_assert_no_error (error);
      training.reads_loss = FALSE;
      losses[i] = training.loss;
    }
  training_clear (&training);
}

static void
training_goes_on_as_if_nothing_had_been (gconstpointer data)
{
  const Case *self = data;
  double with[4], without[4];
  const Counts before = count_now ();
  Counts after;

  run_training (self->how, FALSE, without);
  run_training (self->how, TRUE, with);
  for (guint i = 0; i < 4; i++)
    g_assert_cmpfloat (with[i], ==, without[i]);
  after = count_now ();
  for (guint i = 0; i < EBB_N_PURPOSES + 2; i++)
    g_assert_cmpuint (before.current[i], ==, after.current[i]);
}

static gboolean
read_result (EbbModule *module,
             EbbArgs *args,
             EbbArgs *result,
             gpointer user_data,
             GError **error)
{
  g_autoptr (EbbTensor) output = ebb_args_get_tensor (result, 0);
  g_autoptr (EbbTensor) sum = ebb_sum (output, NULL, 0, FALSE, error);
  double value;

  return sum != NULL && ebb_tensor_get_item (sum, &value, error);
}

/* The error names the module that reads. */
static void
values_are_not_there_in_a_module (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_autoptr (EbbModule) h = NULL, block = NULL;
  Training training;

  training_init (&training, 0);
  h = ebb_module_get_child (training.gpt, "h");
  block = ebb_module_list_get (EBB_MODULE_LIST (h), 1);
  ebb_module_add_forward_hook (block, read_result, NULL, NULL);
  estimate = ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);
  g_assert_null (estimate);
  test_assert_error (error, EBB_ERROR_DRY_RUN, "h.1: the values of the f32 tensor [] are read");
  training_clear (&training);
}

static void
values_are_not_there (void)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  Training training;

  training_init (&training, 0);
  training.reads_loss = TRUE;
  estimate = ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);
  g_assert_null (estimate);
  test_assert_error (error, EBB_ERROR_DRY_RUN, "f32 tensor []",
                     "read them outside of the step, or take real steps: ebb_memory_plan_new_measured ()");
  training_clear (&training);
}

/* Whichever way an op launches its kernels. */
static void
results_of_all_ops_have_no_values (void)
{
  g_autoptr (EbbTensor) weight = NULL, product = NULL, sum = NULL, mean = NULL, copy = NULL;
  EbbTensor *results[4];
  GError *error = NULL;

  ebb_push_dry_run ();
  weight = test_randn (1, 8, 8, -1);
  results[0] = product = ebb_linear (weight, weight, NULL, &error);
  results[1] = sum = ebb_sum (weight, NULL, 0, FALSE, &error);
  results[2] = mean = ebb_mean (product, NULL, 0, FALSE, &error);
  results[3] = copy = ebb_tanh (sum, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < G_N_ELEMENTS (results); i++)
    {
      g_autoptr (GError) refused = NULL;
      g_autoptr (GBytes) bytes = ebb_tensor_get_bytes (results[i], &refused);

      g_assert_null (bytes);
      test_assert_error (refused, EBB_ERROR_DRY_RUN, "dry run has none");
    }
  ebb_pop_dry_run ();
}

/* Tokens of a batch, which are more than what lies in small blocks, and views of them that are copied to be read. */
static void
integers_are_there (void)
{
  const gint64 shape[] = { 64, 96 };
  g_autofree gint64 *numbers = g_new (gint64, 64 * 96);
  g_autoptr (EbbTensor) tokens = NULL, columns = NULL;
  g_autoptr (GBytes) all = NULL, turned = NULL;
  GError *error = NULL;

  if (test_device () != ebb_device_get_cpu ())
    {
      g_test_skip ("nothing is copied from a device in a dry run");
      return;
    }
  for (gint64 i = 0; i < 64 * 96; i++)
    numbers[i] = i;
  ebb_push_dry_run ();
  tokens = ebb_tensor_new_from_ints (numbers, 64 * 96, shape, 2, &error);
  g_assert_no_error (error);
  columns = ebb_transpose (tokens, 0, 1, &error);
  g_assert_no_error (error);
  all = ebb_tensor_get_bytes (tokens, &error);
  g_assert_no_error (error);
  turned = ebb_tensor_get_bytes (columns, &error);
  g_assert_no_error (error);
  g_assert_cmpmem (g_bytes_get_data (all, NULL), g_bytes_get_size (all), numbers, 64 * 96 * sizeof *numbers);
  for (gint64 i = 0; i < 64 * 96; i++)
    g_assert_cmpint (((const gint64 *) g_bytes_get_data (turned, NULL))[i], ==, numbers[i % 64 * 96 + i / 64]);
  ebb_pop_dry_run ();
}

/* A model that is made in a dry run is as large as a real one, and of no use afterwards. */
static void
model_of_a_dry_run (void)
{
  const Counts measured = measure (0);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbMemoryEstimate) estimate = NULL;
  g_autoptr (EbbTensor) weight = NULL, sum = NULL;
  g_autofree EbbTensor **parameters = NULL;
  const Counts before = count_now ();
  Counts after;
  Training training;
  guint n;

  g_assert_false (ebb_is_dry_run ());
  ebb_push_dry_run ();
  g_assert_true (ebb_is_dry_run ());
  training_init (&training, 0);
  estimate = ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);
  g_assert_no_error (error);
  parameters = ebb_module_get_parameters (training.gpt, TRUE, &n);
  weight = ebb_tensor_ref (parameters[0]);
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  training_clear (&training);
  ebb_pop_dry_run ();
  g_assert_false (ebb_is_dry_run ());

  g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, measured.peak[EBB_N_PURPOSES]);
  after = count_now ();
  for (guint i = 0; i < EBB_N_PURPOSES + 2; i++)
    g_assert_cmpuint (before.current[i], ==, after.current[i]);
  sum = ebb_sum (weight, NULL, 0, FALSE, &error);
  g_assert_null (sum);
  test_assert_error (error, EBB_ERROR_DRY_RUN, "dry run that is over", "make the model again");
}

/* What a hook of the second block keeps of each step, of the last one, or of the second one. */
typedef struct
{
  GPtrArray *sums;
  gboolean keeps_last_only;
  guint n_most, n_calls;
} Keeper;

static gboolean
keep_sum (EbbModule *module,
          EbbArgs *args,
          EbbArgs *result,
          gpointer user_data,
          GError **error)
{
  Keeper *self = user_data;
  g_autoptr (EbbTensor) output = ebb_args_get_tensor (result, 0);
  g_autoptr (EbbTensor) values = ebb_tensor_detach (output);
  EbbTensor *sum = ebb_sum (values, NULL, 0, FALSE, error);

  if (sum == NULL)
    return FALSE;
  if (self->keeps_last_only)
    g_ptr_array_set_size (self->sums, 0);
  if (self->n_calls++ == 0 || self->sums->len >= self->n_most)
    ebb_tensor_unref (sum);
  else
    g_ptr_array_add (self->sums, sum);
  return TRUE;
}

static EbbMemoryEstimate *
estimate_with (Keeper *keeper)
{
  g_autoptr (EbbModule) h = NULL, block = NULL;
  EbbMemoryEstimate *estimate;
  GError *error = NULL;
  Training training;

  training_init (&training, 0);
  keeper->sums = g_ptr_array_new_with_free_func ((GDestroyNotify) ebb_tensor_unref);
  h = ebb_module_get_child (training.gpt, "h");
  block = ebb_module_list_get (EBB_MODULE_LIST (h), 1);
  ebb_module_add_forward_hook (block, keep_sum, keeper, NULL);
  estimate = ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);
  g_assert_no_error (error);
  g_ptr_array_unref (keeper->sums);
  training_clear (&training);
  return estimate;
}

static void
a_step_that_leaves_tensors_is_named (void)
{
  Keeper all = { .n_most = G_MAXUINT }, last = { .n_most = G_MAXUINT, .keeps_last_only = TRUE }, one = { .n_most = 1 };
  g_autoptr (EbbMemoryEstimate) leaking = estimate_with (&all);
  g_autoptr (EbbMemoryEstimate) replacing = estimate_with (&last);
  g_autoptr (EbbMemoryEstimate) once = estimate_with (&one);
  g_autofree char *text = ebb_memory_estimate_to_string (leaking);

  g_assert_cmpstr (
      ebb_memory_estimate_get_leak (leaking), ==,
      "each step leaves 4 bytes in 1 tensor made by h.1: sum (forward), f32 [1, 1, 1]: the training will grow");
  g_assert_cmpuint (ebb_memory_estimate_get_leaked_bytes (leaking), ==, 4);
  g_assert_true (g_str_has_suffix (text, ": the training will grow\n"));
  g_assert_cmpstr (ebb_memory_estimate_get_leak (replacing), ==, NULL);
  g_assert_cmpstr (ebb_memory_estimate_get_leak (once), ==, NULL);
  g_assert_cmpuint (ebb_memory_estimate_get_peak_total (leaking), ==, ebb_memory_estimate_get_peak_total (once));
}

/* -- what is in use on the device ---------------------------------------------------------------------------------- */

static EbbTensor *
new_on_device (gint64 n_elements)
{
  return ebb_zeros (&n_elements, 1, EBB_DTYPE_F32, test_device (), NULL);
}

/* A step whose data lies on the device and that compares with what a frozen model says. */
typedef struct
{
  Training training;
  EbbModule *teacher;
  EbbTensor *data;
} Distilling;

static gboolean
distilling_step (EbbModule *model,
                 gpointer user_data,
                 GError **error)
{
  Distilling *self = user_data;
  g_autoptr (EbbTensor) tokens = ebb_narrow (self->data, 0, 0, 2, error);
  g_autoptr (EbbTensor) wanted = NULL;
  g_autoptr (EbbTensor) got = NULL;
  g_autoptr (EbbTensor) difference = NULL;
  g_autoptr (EbbTensor) square = NULL;
  g_autoptr (EbbTensor) loss = NULL;

  ebb_push_grad_enabled (FALSE);
  wanted = tokens != NULL ? ebb_module_call1 (self->teacher, tokens, error) : NULL;
  ebb_pop_grad_enabled ();
  got = wanted != NULL ? ebb_module_call1 (model, tokens, error) : NULL;
  difference = ebb_sub (got, wanted, error);
  square = ebb_mul (difference, difference, error);
  loss = ebb_sum (square, NULL, 0, FALSE, error);
  if (loss == NULL || !ebb_tensor_backward (loss, error) || !ebb_optimizer_step (self->training.optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->training.optimizer);
  return TRUE;
}

/* Each byte counts once, however far the training is: what the step makes takes the place of what earlier ones made. */
static void
all_that_is_in_use_counts_once (void)
{
  g_autoptr (EbbTensor) other = new_on_device (5000);
  g_autoptr (GError) error = NULL;
  Distilling self = { 0 };
  Training teacher;
  Counts real;

  training_init (&self.training, FULL | CONTIGUOUS);
  training_init (&teacher, 0);
  self.teacher = teacher.gpt;
  g_assert_true (ebb_module_set_requires_grad (self.teacher, FALSE, &error));
  self.data = test_tokens (11, 200, 20, 32, -1);
  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbMemoryEstimate) estimate =
          ebb_memory_estimate_new (self.training.gpt, test_device (), distilling_step, &self, &error);

      g_assert_no_error (error);
      if (i > 0)
        {
          g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, real.peak[EBB_N_PURPOSES]);
          g_assert_cmpuint (ebb_memory_estimate_get_host_peak_total (estimate), ==, real.peak[EBB_N_PURPOSES + 1]);
          for (guint k = 0; k <= EBB_PURPOSE_OPTIMIZER; k++)
            g_assert_cmpuint (ebb_memory_estimate_get_peak (estimate, (EbbPurpose) k), ==, real.peak[k]);
        }
      for (guint k = 0; k < 2; k++)
        {
          ebb_memory_reset_peaks (test_device ());
          ebb_memory_reset_peaks (NULL);
          g_assert_true (distilling_step (self.training.gpt, &self, &error));
        }
      real = count_now ();
      g_assert_cmpuint (ebb_memory_estimate_get_peak_total (estimate), ==, real.peak[EBB_N_PURPOSES]);
      g_assert_cmpuint (ebb_memory_estimate_get_host_peak_total (estimate), ==, real.peak[EBB_N_PURPOSES + 1]);
    }
  ebb_tensor_unref (self.data);
  training_clear (&teacher);
  training_clear (&self.training);
}

/* A plan within a budget is one of the device, so its error names a least budget that is enough. */
static void
plans_count_all_that_is_in_use (void)
{
  g_autoptr (EbbTensor) other = new_on_device (100000);
  g_autoptr (EbbMemoryPlan) plan = NULL;
  g_autoptr (GError) error = NULL;
  Training training;
  guint64 least, predicted;

  training_init (&training, 0);
  g_assert_true (step (training.gpt, &training, &error));
  plan = ebb_memory_plan_new (training.gpt, test_device (), NULL, step, &training, G_MAXINT64, &error);
  g_assert_no_error (error);
  g_object_get (plan, "least-bytes", &least, NULL);
  g_clear_object (&plan);
  g_assert_null (ebb_memory_plan_new (training.gpt, test_device (), NULL, step, &training, least - 1, &error));
  test_assert_error (error, EBB_ERROR_NO_MEMORY, "is too small");
  g_clear_error (&error);
  plan = ebb_memory_plan_new (training.gpt, test_device (), NULL, step, &training, least, &error);
  g_assert_no_error (error);
  g_assert_true (ebb_memory_plan_apply (plan, &error));
  g_object_get (plan, "predicted-peak-bytes", &predicted, NULL);
  for (guint i = 0; i < 2; i++)
    {
      ebb_memory_reset_peaks (test_device ());
      g_assert_true (step (training.gpt, &training, &error));
    }
  g_assert_cmpuint (count_now ().peak[EBB_N_PURPOSES], ==, predicted);
  g_assert_cmpuint (predicted, <=, least);
  training_clear (&training);
}

/* Of each kernel of the step there is a time, which the next estimate finds again. */
static void
seconds_are_kept (void)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *folder = g_dir_make_tmp ("ebb-costs-XXXXXX", &error);
  g_autofree char *file = g_build_filename (folder, "costs.txt", NULL);
  double seconds[2];

  g_setenv ("EBB_COST_FILE", file, TRUE);
  for (guint i = 0; i < 2; i++)
    {
      g_autoptr (EbbMemoryEstimate) estimate = NULL;
      Training training;

      training_init (&training, FULL);
      estimate = ebb_memory_estimate_new (training.gpt, test_device (), step, &training, &error);
      g_assert_no_error (error);
      seconds[i] = ebb_memory_estimate_measure_seconds (estimate, i == 0 ? 20 : 0, &error);
      g_assert_no_error (error);
      training_clear (&training);
    }
  g_setenv ("EBB_COST_FILE", "", TRUE);
  g_assert_cmpint (g_remove (file), ==, 0);
  g_assert_cmpint (g_rmdir (folder), ==, 0);
  g_assert_cmpfloat (seconds[0], >, 0);
  g_assert_cmpfloat_with_epsilon (seconds[1], seconds[0], 1e-6 * seconds[0]); /* the file's digits */
}

int
main (int argc,
      char *argv[])
{
  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *peak = g_strconcat ("/estimate/peak/", cases[i].name, NULL);
      g_autofree char *training = g_strconcat ("/estimate/training/", cases[i].name, NULL);

      g_test_add_data_func (peak, &cases[i], estimate_is_the_measured_peak);
      g_test_add_data_func (training, &cases[i], training_goes_on_as_if_nothing_had_been);
    }
  g_test_add_func ("/estimate/values-are-not-there", values_are_not_there);
  g_test_add_func ("/estimate/values-are-not-there-in-a-module", values_are_not_there_in_a_module);
  g_test_add_func ("/estimate/no-op-has-values", results_of_all_ops_have_no_values);
  g_test_add_func ("/estimate/integers-are-there", integers_are_there);
  g_test_add_func ("/estimate/model-of-a-dry-run", model_of_a_dry_run);
  g_test_add_func ("/estimate/a-step-that-leaves-tensors-is-named", a_step_that_leaves_tensors_is_named);
  g_test_add_func ("/estimate/all-that-is-in-use-counts-once", all_that_is_in_use_counts_once);
  g_test_add_func ("/estimate/plans-count-all-that-is-in-use", plans_count_all_that_is_in_use);
  g_test_add_func ("/estimate/seconds-are-kept", seconds_are_kept);
  return g_test_run ();
}
