/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include "memory.h"
#include "model.h"
#include "output.h"
#include "store.h"

#include <math.h>
#include <string.h>

/* -- making -------------------------------------------------------------------------------------------------------- */

static gboolean
set_machine_up (Trainer *self,
                GError **error)
{
  Options *options = self->options;

  self->device = ebb_device_get (options->device, error);
  if (self->device == NULL)
    return FALSE;
  if (options->threads > 0)
    ebb_set_num_threads (options->threads);
  options->threads = ebb_get_num_threads ();
  if (options->memory > 0)
    ebb_memory_set_limit (self->device, (guint64) options->memory << 20);
  return TRUE;
}

static gboolean
read_data (Trainer *self,
           GError **error)
{
  Options *options = self->options;

  if (options->data == NULL)
    return TRUE;
  self->dataset = ebb_text_dataset_new ((const char *const *) options->data, self->tokenizer, (guint64) options->seed,
                                        error);
  return self->dataset != NULL
         && (options->steps == 0 || ebb_text_dataset_check_context (self->dataset, options->context, error));
}

static gboolean
make_model (Trainer *self,
            const EbbGptConfig *config,
            EbbArgs *weights,
            GError **error)
{
  g_autoptr (EbbGptConfig) copy = ebb_gpt_config_copy (config);
  EbbModule *model;

  ebb_manual_seed ((guint64) self->options->seed);
  if (weights != NULL)
    ebb_push_initialization_skipped ();
  model = ebb_gpt_new (copy, error);
  if (weights != NULL)
    ebb_pop_initialization_skipped ();
  if (model == NULL)
    return FALSE;
  self->model = EBB_GPT (model);
  if (weights != NULL && !ebb_gpt_load_gpt2 (self->model, weights, error))
    {
      g_prefix_error (error, "--load %s: ", self->options->load);
      return FALSE;
    }
  return ebb_module_to_device (model, self->device, error);
}

static EbbMomentFormat
get_moment_format (const Options *options)
{
  if (strcmp (options->moments, "bf16") == 0)
    return EBB_MOMENT_FORMAT_BF16;
  return strcmp (options->moments, "8bit") == 0 ? EBB_MOMENT_FORMAT_EIGHT_BIT : EBB_MOMENT_FORMAT_F32;
}

static gboolean
make_optimizer (Trainer *self,
                GError **error)
{
  const Options *options = self->options;
  double min_factor = strcmp (options->schedule, "constant") == 0 ? 1 : options->lr > 0 ? options->min_lr / options->lr
                                                                                        : 0;

  self->optimizer = ebb_adamw_new (EBB_MODULE (self->model), options->lr, error);
  if (self->optimizer == NULL)
    return FALSE;
  ebb_optimizer_set_weight_decay (self->optimizer, options->weight_decay);
  ebb_adamw_set_moment_format (EBB_ADAMW (self->optimizer), get_moment_format (options));
  ebb_optimizer_set_step_in_backward (self->optimizer, options->step_in_backward);
  self->schedule = ebb_cosine_schedule_new (options->warmup, MAX (options->steps, 1), min_factor);
  return TRUE;
}

/* The state carries the optimizer's settings as they were; those of the command line hold, if it has any. */
static gboolean
load_state (Trainer *self,
            GError **error)
{
  const Options *options = self->options;
  g_autofree char *config = options_to_json (options);

  if (options->resume == NULL)
    return TRUE;
  self->state = ebb_training_state_new (EBB_MODULE (self->model), self->optimizer, self->dataset);
  if (output_has_state (options->resume))
    {
      if (!ebb_training_state_load (self->state, options->resume, &self->step, error))
        {
          g_prefix_error (error, "--resume: ");
          return FALSE;
        }
      ebb_optimizer_set_lr (self->optimizer, options->lr);
      ebb_optimizer_set_weight_decay (self->optimizer, options->weight_decay);
    }
  ebb_training_state_set_config (self->state, config);
  self->first_step = self->saved_step = self->step;
  return TRUE;
}

/* Random numbers go on from the state, so the seed of the command line can't be another one. */
static gboolean
take_seed (Options *options,
           const char *saved,
           GError **error)
{
  g_autoptr (JsonNode) root = json_from_string (saved, NULL);
  gint64 seed = 0;

  if (root != NULL && JSON_NODE_HOLDS_OBJECT (root))
    seed = json_object_get_int_member_with_default (json_node_get_object (root), "seed", 0);
  if (options->seed_given && options->seed != seed)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                   "--seed %" G_GINT64_FORMAT ": the training in %s was begun with %" G_GINT64_FORMAT
                   ": leave the option out, or name another folder",
                   options->seed, options->resume, seed);
      return FALSE;
    }
  options->seed = seed;
  return TRUE;
}

gboolean
trainer_init (Trainer *self,
              Options *options,
              GError **error)
{
  g_autoptr (EbbArgs) weights = NULL;
  g_autoptr (EbbArgs) metadata = NULL;
  g_autoptr (EbbGptConfig) config = NULL;
  g_autofree char *saved = NULL;

  *self = (Trainer){ .options = options, .saved_step = -1 };
  if (!set_machine_up (self, error) || !output_check (options, error))
    return FALSE;
  if (options->resume != NULL && output_has_state (options->resume))
    {
      saved = ebb_training_state_read_config (options->resume, error);
      if (saved == NULL || !take_seed (options, saved, error))
        return FALSE;
    }
  else if (options->load != NULL)
    {
      weights = ebb_load_safetensors_full (options->load, &metadata, error);
      if (weights == NULL)
        return FALSE;
    }
  if (options->resume != NULL && !options_take_saved (options, saved, error))
    return FALSE;
  self->tokenizer = model_make_tokenizer (options, error);
  if (self->tokenizer == NULL)
    return FALSE;
  config = model_make_config (options, self->tokenizer, weights, metadata, saved, error);
  if (config == NULL)
    return FALSE;
  options_set_config (options, config);
  if (!read_data (self, error) || !model_check_memory (options, config, self->device, error))
    return FALSE;
  self->store = store_make (options, error);
  if (self->store == NULL || !make_model (self, config, weights, error) || !make_optimizer (self, error)
      || !load_state (self, error))
    return FALSE;
  if (options->checkpoint_kind != CHECKPOINT_NONE && !options->quiet && self->step < options->steps)
    self->plain_activations = memory_estimate_plain (self->model, options, self->device);
  return memory_wrap (self->model, options, self->store, error);
}

void
trainer_clear (Trainer *self)
{
  g_clear_object (&self->state);
  g_clear_object (&self->schedule);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->model);
  g_clear_object (&self->store);
  g_clear_object (&self->dataset);
  g_clear_object (&self->tokenizer);
}

/* -- training ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
compute_loss (Trainer *self,
              EbbTensor *tokens,
              EbbTensor *targets,
              GError **error)
{
  gboolean lowered = strcmp (self->options->dtype, "bf16") == 0;
  gboolean offloads = self->options->store_kind != STORE_KEEP && self->options->checkpoint_kind == CHECKPOINT_NONE;
  EbbTensor *loss;

  if (lowered)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  if (offloads)
    ebb_push_saved_tensor_hooks (self->store);
  loss = ebb_gpt_loss (self->model, tokens, targets, error);
  if (offloads)
    ebb_pop_saved_tensor_hooks ();
  if (lowered)
    ebb_pop_autocast ();
  return loss;
}

static gboolean
run_batch (Trainer *self,
           double *loss,
           GError **error)
{
  g_autoptr (EbbTensor) host_tokens = NULL;
  g_autoptr (EbbTensor) host_targets = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTensor) result = NULL;
  g_autoptr (EbbTensor) host_result = NULL;

  if (!ebb_text_dataset_get_batch (self->dataset, self->options->batch, self->options->context, &host_tokens,
                                   &host_targets, error))
    return FALSE;
  tokens = ebb_to_device (host_tokens, self->device, error);
  targets = ebb_to_device (host_targets, self->device, error);
  result = compute_loss (self, tokens, targets, error);
  if (result == NULL || !ebb_tensor_backward (result, error))
    return FALSE;
  host_result = ebb_to_device (result, ebb_device_get_cpu (), error);
  return host_result != NULL && ebb_tensor_get_item (host_result, loss, error);
}

gboolean
trainer_step (Trainer *self,
              double *loss,
              GError **error)
{
  const Options *options = self->options;
  double sum = 0;

  ebb_schedule_apply (self->schedule, self->optimizer); /* first: the backward pass may be what moves parameters */
  for (int i = 0; i < options->accumulate; i++)
    {
      double one;

      if (!run_batch (self, &one, error))
        return FALSE;
      sum += one;
    }
  *loss = sum / options->accumulate;
  if (!isfinite (*loss))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "the loss of step %" G_GINT64_FORMAT " is %g: a smaller --lr than %g, or --clip 1, may help",
                   self->step + 1, *loss, options->lr);
      return FALSE;
    }
  if (options->accumulate > 1)
    ebb_optimizer_scale_grad (self->optimizer, 1.0 / options->accumulate);
  if (options->clip > 0 && !ebb_optimizer_clip_grad_norm (self->optimizer, options->clip, NULL, error))
    return FALSE;
  if (!ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  self->step++;
  return TRUE;
}

gboolean
trainer_finish (Trainer *self,
                GError **error)
{
  return ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (self->store), error)
         && ebb_device_synchronize (self->device, error);
}

gboolean
trainer_save_state (Trainer *self,
                    GError **error)
{
  if (self->state == NULL || self->step == self->saved_step)
    return TRUE;
  if (!ebb_training_state_save (self->state, self->options->resume, self->step, error))
    {
      g_prefix_error (error, "--resume: ");
      return FALSE;
    }
  self->saved_step = self->step;
  return TRUE;
}
