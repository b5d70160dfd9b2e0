/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/bench-training.h"

#include <stdlib.h>
#include <string.h>

#define LEARNING_RATE 3e-4
#define NO_TARGET (-100) /* of a row's last token */

const char *const bench_part_names[BENCH_N_PARTS] = { "forward", "backward", "optimizer", "enqueued", "step" };

/* The shape of Llama 3.2 1B: 1.24 billion parameters. Four heads share keys and values. */
static void
choose_llama (EbbGptConfig *config)
{
  config->layout = EBB_GPT_LAYOUT_LLAMA;
  config->vocab = 128256;
  config->width = 2048;
  config->heads = 32;
  config->layers = 16;
  config->tied = TRUE;
  config->activation = EBB_ACTIVATION_SILU;
  config->gated = TRUE;
  config->norm = EBB_NORM_RMS;
  config->bias = FALSE;
  config->positions = EBB_POSITIONS_ROTARY;
  config->rotary.theta = 5e5;
}

static EbbModule *
make_gpt (const BenchSettings *settings,
          int *vocab,
          GError **error)
{
  const gboolean is_llama = g_strcmp0 (settings->preset, "llama-1b") == 0;
  g_autoptr (EbbGptConfig) config =
      ebb_gpt_config_new_preset (settings->preset && !is_llama ? settings->preset : "gpt2");

  if (is_llama)
    choose_llama (config);
  config->context = settings->context;
  config->dropout = settings->dropout;
  if (g_strcmp0 (settings->residual, "bf16") == 0)
    config->residual_dtype = EBB_DTYPE_BF16;
  if (settings->layers > 0)
    config->layers = settings->layers;
  if (settings->width > 0)
    config->width = settings->width;
  if (settings->heads > 0)
    config->heads = settings->heads;
  if (settings->vocab > 0)
    config->vocab = settings->vocab;
  if (is_llama)
    {
      config->kv_heads = MAX (config->heads / 4, 1);
      config->hidden = 4 * config->width;
    }
  *vocab = config->vocab;
  return ebb_gpt_new (config, error);
}

static EbbModule *
make_bert (const BenchSettings *settings,
           int *vocab,
           GError **error)
{
  g_autoptr (EbbBertConfig) config = ebb_bert_config_new_preset (settings->preset);

  config->context = MAX (settings->context, config->context);
  config->dropout = settings->dropout;
  if (settings->layers > 0)
    config->layers = settings->layers;
  if (settings->width > 0)
    {
      config->width = settings->width;
      config->hidden = 0;
    }
  if (settings->heads > 0)
    config->heads = settings->heads;
  if (settings->vocab > 0)
    config->vocab = settings->vocab;
  *vocab = config->vocab;
  return ebb_bert_new (config, error);
}

static gboolean
is_bert (const BenchSettings *settings)
{
  return settings->preset != NULL && g_str_has_prefix (settings->preset, "bert-");
}

static EbbModule *
open_model (const BenchSettings *settings,
            int *vocab,
            GError **error)
{
  const EbbDType dtype = settings->bf16_weights ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
  g_autoptr (EbbModule) model = ebb_model_open_full (settings->folder, (int) dtype, error);
  g_autoptr (EbbGptConfig) config = NULL;

  if (model == NULL)
    return NULL;
  if (!EBB_IS_GPT (model))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: it must hold a decoder, not a %s",
                   settings->folder, G_OBJECT_TYPE_NAME (model));
      return NULL;
    }
  config = ebb_gpt_get_config (EBB_GPT (model));
  *vocab = config->vocab;
  ebb_module_set_training (model, TRUE);
  return g_steal_pointer (&model);
}

static EbbModule *
make_model (const BenchSettings *settings,
            int *vocab,
            GError **error)
{
  if (settings->folder != NULL)
    return open_model (settings, vocab, error);
  return is_bert (settings) ? make_bert (settings, vocab, error) : make_gpt (settings, vocab, error);
}

static gboolean
checkpoints (const BenchSettings *settings)
{
  return settings->strategy != NULL && strcmp (settings->strategy, "none") != 0;
}

static gboolean
wrap_blocks (EbbModule *model,
             const BenchSettings *settings,
             GError **error)
{
  const char *strategy = settings->strategy;
  g_autoptr (EbbCheckpointOptions) options = NULL;

  if (!checkpoints (settings))
    return TRUE;
  if (strcmp (strategy, "selective") == 0)
    options = ebb_checkpoint_options_new_selective ();
  else if (strcmp (strategy, "full") == 0)
    options = ebb_checkpoint_options_new ();
  else
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "checkpointing \"%s\": must be none, selective or full", strategy);
      return FALSE;
    }
  ebb_checkpoint_options_set_store (options, settings->store);
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error);
}

static gboolean
add_branches (EbbModule *model,
              const BenchSettings *settings,
              GError **error)
{
  g_autoptr (EbbLoraOptions) options = ebb_lora_options_new ();
  g_autoptr (EbbModule) same = NULL;

  if (settings->lora == 0)
    return TRUE;
  if (settings->base != EBB_QUANTIZATION_NONE && !ebb_quantize (model, settings->base, error))
    return FALSE;
  g_object_set (options, "rank", settings->lora, "dropout", settings->dropout, NULL);
  same = ebb_lora_wrap (model, options, error);
  return same != NULL;
}

static gboolean
check_settings (const BenchSettings *settings,
                GError **error)
{
  if (settings->batch > 0 && settings->context > 0)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "batch %d x context %d: both must be at least 1",
               settings->batch, settings->context);
  return FALSE;
}

static EbbTensor *
make_tokens (const BenchSettings *settings,
             int vocab,
             GError **error)
{
  const gint64 shape[] = { settings->batch, settings->context };
  g_autoptr (EbbTensor) tokens = ebb_randint (0, vocab, shape, 2, EBB_DTYPE_I64, NULL, NULL, error);

  return ebb_to_device (tokens, settings->device, error);
}

/* The numbers of torch_step.py: transformers trains on the same ones, and its loss of a folder is the same. */
static EbbTensor *
list_tokens (const BenchSettings *settings,
             int vocab,
             gboolean is_next,
             GError **error)
{
  const gint64 n = (gint64) settings->batch * settings->context, shape[] = { settings->batch, settings->context };
  g_autofree gint64 *values = g_new (gint64, n + 1);
  g_autoptr (EbbTensor) tokens = NULL;
  guint32 x = 1;

  for (gint64 i = 0; i < n; i++)
    {
      x = (x * 1103515245u + 12345u) & 0x7fffffffu;
      values[i] = (x >> 8) % (guint32) vocab;
    }
  for (gint64 i = settings->context; is_next && i <= n; i += settings->context)
    values[i] = NO_TARGET;
  tokens = ebb_tensor_new_from_ints (values + is_next, (gsize) n, shape, 2, error);
  return ebb_to_device (tokens, settings->device, error);
}

BenchTraining *
bench_training_new (const BenchSettings *settings,
                    GError **error)
{
  g_autoptr (BenchTraining) self = g_new0 (BenchTraining, 1);
  int vocab = 0;

  if (!check_settings (settings, error))
    return NULL;
  ebb_manual_seed (1);
  self->settings = *settings;
  if (settings->device == NULL)
    self->settings.device = ebb_device_get_cpu ();
  self->model = make_model (settings, &vocab, error);
  if (settings->store != NULL)
    g_object_ref (settings->store);
  if (self->model == NULL || !add_branches (self->model, settings, error)
      || !wrap_blocks (self->model, settings, error)
      || !ebb_module_to_device (self->model, self->settings.device, error))
    return NULL;
  self->optimizer = ebb_adamw_new (self->model, LEARNING_RATE, error);
  if (self->optimizer == NULL)
    return NULL;
  g_object_set (self->optimizer, "step-in-backward", settings->step_in_backward, "moment-format",
                g_strcmp0 (settings->moments, "bf16") == 0   ? EBB_MOMENT_FORMAT_BF16
                : g_strcmp0 (settings->moments, "8bit") == 0 ? EBB_MOMENT_FORMAT_EIGHT_BIT
                                                             : EBB_MOMENT_FORMAT_F32,
                "weight-rounding",
                settings->bf16_weights ? EBB_WEIGHT_ROUNDING_RANDOM : EBB_WEIGHT_ROUNDING_MASTER, NULL);
  if (settings->folder != NULL)
    {
      self->tokens = list_tokens (settings, vocab, FALSE, error);
      self->targets = self->tokens != NULL ? list_tokens (settings, vocab, TRUE, error) : NULL;
    }
  else
    {
      self->tokens = make_tokens (settings, vocab, error);
      self->targets = self->tokens != NULL ? make_tokens (settings, vocab, error) : NULL;
    }
  return self->targets != NULL ? g_steal_pointer (&self) : NULL;
}

void
bench_training_free (BenchTraining *self)
{
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  g_clear_pointer (&self->tokens, ebb_tensor_unref);
  g_clear_pointer (&self->targets, ebb_tensor_unref);
  g_clear_object (&self->settings.store);
  g_free (self);
}

static double
seconds_since (gint64 start)
{
  return (double) (g_get_monotonic_time () - start) * 1e-6;
}

static EbbTensor *
compute_loss (BenchTraining *self,
              GError **error)
{
  gboolean offloads = self->settings.store != NULL && !checkpoints (&self->settings);
  EbbTensor *loss;

  if (offloads)
    ebb_push_saved_tensor_hooks (self->settings.store);
  ebb_push_autocast (self->settings.bf16, EBB_DTYPE_BF16);
  loss = EBB_IS_BERT (self->model)
             ? ebb_bert_loss (EBB_BERT (self->model), self->tokens, NULL, NULL, self->targets, error)
             : ebb_gpt_loss (EBB_GPT (self->model), self->tokens, self->targets, error);
  ebb_pop_autocast ();
  if (offloads)
    ebb_pop_saved_tensor_hooks ();
  return loss;
}

gboolean
bench_training_accumulate (BenchTraining *self,
                           GError **error)
{
  g_autoptr (EbbTensor) loss = compute_loss (self, error);

  return loss != NULL && ebb_tensor_backward (loss, error) && ebb_device_synchronize (self->settings.device, error);
}

gboolean
bench_training_step (BenchTraining *self,
                     double *seconds,
                     double *loss_value,
                     GError **error)
{
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) host_loss = NULL;
  gint64 start = g_get_monotonic_time (), part = start;

  loss = compute_loss (self, error);
  seconds[BENCH_FORWARD] = seconds_since (part);
  part = g_get_monotonic_time ();
  if (loss == NULL || !ebb_tensor_backward (loss, error))
    return FALSE;
  seconds[BENCH_BACKWARD] = seconds_since (part);
  part = g_get_monotonic_time ();
  if (!ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  seconds[BENCH_ENQUEUED] = seconds_since (start);
  host_loss = ebb_to_device (loss, NULL, error); /* waits for a device that works behind the caller's back */
  if (host_loss == NULL)
    return FALSE;
  seconds[BENCH_OPTIMIZER] = seconds_since (part);
  seconds[BENCH_STEP] = seconds_since (start);
  return loss_value == NULL || ebb_tensor_get_item (host_loss, loss_value, error);
}

guint64
bench_training_count_parameters (BenchTraining *self)
{
  g_autofree EbbTensor **parameters = NULL;
  guint64 count = 0;
  guint n;

  parameters = ebb_module_get_parameters (self->model, TRUE, &n);
  for (guint i = 0; i < n; i++)
    {
      count += (guint64) ebb_tensor_get_n_elements (parameters[i]);
      ebb_tensor_unref (parameters[i]);
    }
  return count;
}

guint64
bench_get_resident_peak (void)
{
  g_autofree char *status = NULL;
  const char *line = NULL;

  if (g_file_get_contents ("/proc/self/status", &status, NULL, NULL))
    line = strstr (status, "VmHWM:");
  return line != NULL ? g_ascii_strtoull (line + strlen ("VmHWM:"), NULL, 10) * 1024 : 0;
}

static int
compare (const void *a,
         const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

double
bench_median (double *values,
              guint n)
{
  qsort (values, n, sizeof (double), compare);
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
