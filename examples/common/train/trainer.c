/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* One training: its parts, a step, and its state on disk. */
#include "common/train/trainer.h"

#include "common/interrupt.h"
#include "common/launcher.h"
#include "common/options/tuning-options.h"
#include "common/ranks/fault.h"
#include "common/ranks/shard.h"
#include "common/train/adapter.h"
#include "common/train/batch.h"
#include "common/train/data.h"
#include "common/train/model.h"
#include "common/train/output.h"
#include "common/train/rank-state.h"
#include "common/train/store.h"
#include "common/train/tokenizer.h"
#include "common/train/wrapping.h"

#include <math.h>
#include <string.h>

/* -- making -------------------------------------------------------------------------------------------------------- */

/* Of GPUs without a number each process of a machine takes its own, if there are so many. A launcher may also show each
 * process one GPU, and ranks may share one. */
static EbbDevice *
open_device (const Options *options,
             GError **error)
{
  const guint64 local_rank = options->ranks.n_ranks == 0 ? launcher_get_local_rank () : 0;
  EbbDevice *device = NULL;

  if (local_rank > 0 && options->device != NULL && g_str_has_prefix (options->device, "cuda")
      && strchr (options->device, ':') == NULL)
    {
      g_autofree char *name = g_strdup_printf ("%s:%" G_GUINT64_FORMAT, options->device, local_rank);

      device = ebb_device_get (name, NULL);
    }
  return device != NULL ? device : ebb_device_get (options->device, error);
}

static gboolean
set_machine_up (Trainer *self,
                GError **error)
{
  Options *options = self->options;

  self->device = open_device (options, error);
  if (self->device == NULL)
    return FALSE;
  if (options->threads > 0)
    ebb_set_num_threads (options->threads);
  options->threads = ebb_get_num_threads ();
  return TRUE;
}

static gboolean
make_model (Trainer *self,
            ModelSource *source,
            EbbArgs *weights,
            GError **error)
{
  ebb_manual_seed ((guint64) self->options->seed);
  self->model = model_make (self->options, source, weights, error);
  if (self->model == NULL)
    return FALSE;
  tokenizer_attach (self->tokenizer, self->model, self->options);
  self->n_parameters = self->n_trained = ebb_module_count_parameters (self->model);
  return ebb_module_to_device (self->model, self->device, error);
}

static gboolean
add_adapter (Trainer *self,
             GError **error)
{
  const guint64 n_before = ebb_module_count_parameters (self->model);
  /* With --eval the best adapter is saved, not the last. */
  const char *path = self->options->save != NULL ? self->options->save : self->options->save_best;

  if (!options_have_adapter (self->options))
    return TRUE;
  if (!adapter_add (self->model, self->options, error))
    return FALSE;
  if (path != NULL && !ebb_lora_check_save (self->model, path, NULL, error))
    {
      g_prefix_error (error, "--save %s: ", path);
      return FALSE;
    }
  self->n_trained = ebb_module_count_parameters (self->model) - n_before;
  return TRUE;
}

/* Ranks that share layers divide them first, and each then has its part of the adapter. */
static gboolean
is_adapted_later (const Trainer *self)
{
  return options_have_adapter (self->options) && self->ranks != NULL && self->ranks->tensor != NULL;
}

static EbbMomentFormat
get_moment_format (const Options *options)
{
  if (strcmp (options->moments, "bf16") == 0)
    return EBB_MOMENT_FORMAT_BF16;
  return strcmp (options->moments, "8bit") == 0 ? EBB_MOMENT_FORMAT_EIGHT_BIT : EBB_MOMENT_FORMAT_F32;
}

/* The group of norms and biases. */
#define SPARED 1

gboolean
trainer_set_optimizer (Trainer *self,
                       GError **error)
{
  const Options *options = self->options;

  /* States from before this group existed have one group. */
  if (ebb_optimizer_get_n_groups (self->optimizer) <= SPARED
      && !ebb_optimizer_add_group (self->optimizer, (const char *const *) self->spared, -1, 0, NULL, error))
    return FALSE;
  g_object_set (self->optimizer, "lr", options->lr, "weight-decay", options->weight_decay, NULL);
  ebb_optimizer_set_group_weight_decay (self->optimizer, SPARED, strcmp (options->decayed, "all") == 0 ? -1 : 0);
  return TRUE;
}

static gboolean
make_optimizer (Trainer *self,
                GError **error)
{
  const Options *options = self->options;
  double min_factor = strcmp (options->schedule, "constant") == 0 ? 1 : options->lr > 0 ? options->min_lr / options->lr
                                                                                        : 0;

  self->optimizer = ebb_adamw_new (self->model, options->lr, error);
  if (self->optimizer == NULL)
    return FALSE;
  /* Before the model is sharded: shards have other dimensions. */
  if (!ebb_optimizer_exclude_from_decay (self->optimizer, error))
    return FALSE;
  self->spared = ebb_optimizer_get_group_names (self->optimizer, SPARED);
  g_object_set (self->optimizer, "moment-format", get_moment_format (options), "step-in-backward",
                options->step_in_backward, "weight-rounding", options_get_rounding (options), NULL);
  self->schedule = ebb_cosine_schedule_new (options->warmup, MAX (options->steps, 1), min_factor);
  return trainer_set_optimizer (self, error);
}

/* Adds what is trained, after the last change to the model's layers. */
static gboolean
add_trained (Trainer *self,
             GError **error)
{
  return add_adapter (self, error) && output_check_replaced (self->options, self->model, error)
         && make_optimizer (self, error);
}

static double
get_number (EbbArgs *values,
            const char *name)
{
  int index = values != NULL ? ebb_args_find (values, name) : -1;

  return index >= 0 && ebb_args_get_value_kind (values, (guint) index) == EBB_VALUE_DOUBLE
             ? ebb_args_get_double (values, (guint) index)
             : 0;
}

void
trainer_take_best (Trainer *self)
{
  g_autoptr (EbbArgs) values = NULL;

  g_object_get (self->state, "values", &values, NULL);
  self->best_loss = get_number (values, "best_loss");
  self->best_step = (gint64) get_number (values, "best_step");
}

/* The best loss goes on with the training, so that a resumed one writes --save-best when the whole one does. */
static void
keep_best (Trainer *self)
{
  g_autoptr (EbbArgs) values = ebb_args_new (EBB_ARGS_DICT);

  if (self->best_step == 0)
    return;
  ebb_args_add_double (values, "best_loss", self->best_loss);
  ebb_args_add_double (values, "best_step", (double) self->best_step);
  g_object_set (self->state, "values", values, NULL);
}

/* Always FALSE. */
static gboolean
fail_resume (Trainer *self,
             GError **error)
{
  const Options *options = self->options;

  if (OPTION_WAS_GIVEN (options, model)) /* another model has other tokens, weights and sizes */
    g_prefix_error (error, "--resume with --model %s: ", options->model);
  else
    g_prefix_error (error, "--resume: ");
  return FALSE;
}

/* The state brings the optimizer's settings; those of the command line override them. */
static gboolean
load_state (Trainer *self,
            GError **error)
{
  const Options *options = self->options;
  g_autofree char *config = options_to_json (options);

  if (options->resume == NULL)
    return TRUE;
  self->state = adapter_make_state (self, self->optimizer);
  if (self->found != 0)
    {
      if (!(self->ranks != NULL ? ebb_training_state_load_sharded : ebb_training_state_load) (
              self->state, options->resume, &self->step, error))
        return fail_resume (self, error);
      if (!trainer_set_optimizer (self, error))
        return FALSE;
    }
  g_object_set (self->state, "config", config, NULL);
  trainer_take_best (self);
  self->first_step = self->saved_step = self->step;
  return TRUE;
}

/* Random numbers continue from the state, so the command line must not have another seed. */
static gboolean
take_seed (Options *options,
           const char *saved,
           GError **error)
{
  g_autoptr (JsonNode) root = option_table_parse_json (saved);
  gint64 seed = 0;

  if (root != NULL)
    seed = json_object_get_int_member_with_default (json_node_get_object (root), "seed", 0);
  if (OPTION_WAS_GIVEN (options, seed) && options->seed != seed)
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

/* Finds the state to continue from. A first save that never finished doesn't count: it begins an index before any
 * part. Parts without an index are an error: otherwise a new training would silently begin beside them. */
static gboolean
find_state (Trainer *self,
            GError **error)
{
  const char *folder = self->options->resume;

  if (!output_find_state (folder, &self->found, error)
      || (self->found == 0 && folder != NULL && !output_check_no_model (folder, error)))
    return FALSE;
  if ((self->found & FOUND_STATE) != 0)
    return TRUE;
  if (self->found != FOUND_PARTS)
    {
      self->found = 0;
      return TRUE;
    }
  g_set_error (
      error, EBB_ERROR, EBB_ERROR_STATE,
      "--resume %s: it holds parts of a state, but not its index.json: files are missing; remove the parts, or "
      "name another folder",
      folder);
  return FALSE;
}

/* Checks that all files can be written, and locks the folder of --resume while this program runs. */
static gboolean
take_outputs (Trainer *self,
              GError **error)
{
  const Options *options = self->options;

  if (ebb_is_dry_run ())
    return TRUE;
  if (!output_check (options, error))
    return FALSE;
  if (options->resume == NULL || (self->ranks != NULL && self->ranks->rank > 0))
    return TRUE;
  self->lock = ebb_folder_lock_new (options->resume, error);
  if (self->lock == NULL)
    g_prefix_error (error, "--resume: ");
  return self->lock != NULL;
}

/* How long a model is tuned, now that the data is open. */
static gboolean
take_steps (Trainer *self,
            gboolean is_resumed,
            GError **error)
{
  Options *options = self->options;

  if (!options->program->tunes)
    return TRUE;
  tuning_options_set_steps (
      options, self->dataset != NULL ? ebb_dataset_get_n_rows (self->dataset, options->context) : 0, is_resumed);
  if (self->dataset == NULL || options->steps > 0 || !options->steps_by_epochs)
    return TRUE;
  return options_refuse (error, "--epochs %g: there is nothing to train", options->epochs);
}

/* The parts that are this rank's own. */
static gboolean
prepare (Trainer *self,
         GError **error)
{
  Options *options = self->options;
  guint n_ranks = self->ranks != NULL ? self->ranks->size : 1;
  g_autoptr (EbbArgs) weights = NULL;
  g_autoptr (EbbArgs) metadata = NULL;
  g_auto (ModelSource) source = { 0 };
  g_autofree char *saved = NULL;

  if (!set_machine_up (self, error) || !find_state (self, error))
    return FALSE;
  if (self->found != 0)
    {
      saved = ebb_training_state_read_config (options->resume, error);
      if (saved == NULL)
        return fail_resume (self, error);
      if (!take_seed (options, saved, error))
        return FALSE;
    }
  else if (options->load != NULL)
    {
      weights = ebb_load_safetensors_full (options->load, &metadata, error);
      if (weights == NULL || !tokenizer_check_loaded (options, error))
        return FALSE;
    }
  if ((options->resume != NULL
       && (!options_take_saved (options, saved, error) || !model_check_remembered (options, saved, error)))
      || !output_check_base (options, error))
    return FALSE;
  ebb_device_set_loss_chunk (self->device, options->loss_chunk);
  self->tokenizer = tokenizer_make (options, error);
  if (self->tokenizer == NULL)
    return FALSE;
  if (!model_find (options, self->tokenizer, weights, metadata, saved, &source, error)
      || !model_check_tensor_ranks (options, error)
      || !data_open (options, self->tokenizer, &self->dataset, &self->held_out, error)
      || !take_steps (self, saved != NULL, error)
      || (!ebb_is_dry_run () && !options_have_plan (options)
          && !model_check_memory (options, source.opened, self->device, n_ranks, error)))
    return FALSE;
  self->store = store_make (options, self->ranks != NULL ? self->ranks->tensor : NULL, error);
  if (self->store == NULL || !make_model (self, &source, weights, error))
    return FALSE;
  if (is_adapted_later (self))
    return TRUE;
  return add_trained (self, error);
}

static void
estimate (Trainer *self,
          gboolean is_wanted)
{
  const Options *options = self->options;

  if (is_wanted && !ebb_is_dry_run () && options->checkpoint_kind != CHECKPOINT_NONE && self->step < options->steps)
    self->plain_activations = wrapping_estimate_plain (self->model, options, self->n_rows, self->device);
}

/* Divides the layers among the ranks of one model. */
static gboolean
parallelize (Trainer *self,
             GError **error)
{
  g_autoptr (EbbParallelOptions) how = NULL;
  g_autoptr (EbbModule) same = NULL;

  if (self->ranks->tensor == NULL)
    return TRUE;
  how = ebb_parallel_options_new ();
  g_object_set (how, "sequence-parallel", self->options->ranks.sequence_parallel, NULL);
  same = ebb_parallelize (self->model, self->ranks->tensor, how, error);
  return same != NULL;
}

/* The last wrapper goes around the earlier ones. */
static gboolean
wrap_on_ranks (Trainer *self,
               GError **error)
{
  const Options *options = self->options;
  gboolean outside = options->ranks.checkpoint_outside;

  return (outside || wrapping_apply (self->model, options, self->store, error))
         && shard_wrap (self->model, options, self->ranks, error)
         && (!outside || wrapping_apply (self->model, options, self->store, error));
}

gint64
trainer_get_n_models (const Trainer *self)
{
  return self->ranks != NULL ? self->ranks->n_models : 1;
}

static void
take_rows (Trainer *self)
{
  gint64 first;

  batch_share_rows (self, self->options->batch, &first, &self->n_rows);
  self->n_rows = MIN (self->n_rows, batch_get_part_rows (self, self->options->batch));
}

/* The options are compared first, so that all ranks make the same calls from there on. */
static gboolean
init_on_ranks (Trainer *self,
               GError **error)
{
  g_autofree char *options = options_to_json (self->options);
  guint n_tensor = (guint) self->options->ranks.tensor_parallel;
  gboolean told; /* by rank 0, for which those that share its model compute */

  if (!(self->ranks->has_same_options || ranks_check_same (self->ranks, "options", options, error))
      || (n_tensor > 1 && !ranks_split_models (self->ranks, n_tensor, error)))
    return FALSE;
  self->ranks->has_same_options = TRUE;
  if (self->ranks->rank > 0)
    options_silence (self->options);
  told = self->options->silenced ? !self->options->all_quiet : !self->options->quiet;
  if (!ranks_agree (self->ranks, take_outputs (self, error), error)
      || !ranks_agree (self->ranks, prepare (self, error), error) || !parallelize (self, error)
      || (is_adapted_later (self)
          && !ranks_agree (self->ranks, add_trained (self, error), error)))
    return FALSE;
  take_rows (self);
  estimate (self, told && self->ranks->model == 0);
  if (!wrap_on_ranks (self, error))
    return FALSE;
  ebb_memory_trim (self->device);
  return rank_state_seed (self, error) && load_state (self, error);
}

gboolean
trainer_init (Trainer *self,
              Options *options,
              Ranks *ranks,
              GError **error)
{
  *self = (Trainer){ .options = options,
                     .ranks = ranks,
                     .saved_step = -1,
                     .corrections = g_ptr_array_new_with_free_func (g_free),
                     .evaluations = g_array_new (FALSE, FALSE, sizeof (Evaluation)) };
  if (ranks != NULL)
    return init_on_ranks (self, error);
  if (!take_outputs (self, error) || !prepare (self, error) || !load_state (self, error))
    return FALSE;
  take_rows (self);
  estimate (self, !options->quiet);
  return wrapping_apply (self->model, options, self->store, error);
}

void
trainer_clear (Trainer *self)
{
  g_clear_object (&self->state);
  g_clear_object (&self->lock);
  g_clear_object (&self->schedule);
  g_clear_pointer (&self->spared, g_strfreev);
  g_clear_object (&self->optimizer);
  g_clear_object (&self->plan);
  g_clear_object (&self->memory);
  g_clear_object (&self->unplanned);
  g_clear_object (&self->model);
  g_clear_object (&self->store);
  g_clear_object (&self->held_out);
  g_clear_object (&self->dataset);
  g_clear_pointer (&self->evaluations, g_array_unref);
  g_clear_pointer (&self->corrections, g_ptr_array_unref);
  g_clear_object (&self->tokenizer);
}

/* -- training ------------------------------------------------------------------------------------------------------ */

static EbbTensor *
compute_loss (Trainer *self,
              const BatchPart *part,
              GError **error)
{
  gboolean lowered = strcmp (self->options->dtype, "bf16") == 0;
  gboolean offloads = store_is_used (self->options)
                      && (self->options->checkpoint_kind == CHECKPOINT_NONE
                          || self->options->checkpoint_kind == CHECKPOINT_AUTO)
                      && store_for_plan (self->options, self->store) == NULL;
  EbbTensor *loss;

  if (lowered)
    ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  if (offloads)
    ebb_push_saved_tensor_hooks (self->store);
  loss = model_loss (self->model, part->tokens, part->targets, part->starts, error);
  if (offloads)
    ebb_pop_saved_tensor_hooks ();
  if (lowered)
    ebb_pop_autocast ();
  return loss;
}

static gboolean
read_loss (EbbTensor *result,
           double *loss,
           GError **error)
{
  g_autoptr (EbbTensor) host = NULL;

  *loss = 0;
  if (ebb_is_dry_run ())
    return TRUE;
  host = ebb_to_device (result, ebb_device_get_cpu (), error);
  return host != NULL && ebb_tensor_get_item (host, loss, error);
}

gboolean
trainer_measure (Trainer *self,
                 EbbDataset *dataset,
                 gint64 n_rows,
                 double *loss,
                 gint64 *n_targets,
                 GError **error)
{
  g_auto (Batch) batch = { 0 };

  *loss = 0;
  if (!batch_take (&batch, self, dataset, n_rows, error))
    return FALSE;
  *n_targets = batch.n_targets;
  for (guint i = 0; i < batch.n_parts; i++)
    {
      g_auto (BatchPart) part = { 0 };
      g_autoptr (EbbTensor) result = NULL;
      double one;

      if (!batch_take_part (&batch, self, i, &part, error))
        return FALSE;
      ebb_push_grad_enabled (FALSE);
      result = compute_loss (self, &part, error);
      ebb_pop_grad_enabled ();
      if (result == NULL || !read_loss (result, &one, error))
        return FALSE;
      *loss += part.n_targets > 0 ? one * (double) part.n_targets : 0;
    }
  return TRUE;
}

/* Ranks average their gradients, and the parts of a step add theirs, so each part's loss is weighted by the tokens that
 * it predicts. Where these numbers vary from step to step, a weight of 1 is applied, too: a plan needs steps with the
 * same ops. */
static gboolean
run_backward (Trainer *self,
              const Batch *batch,
              const BatchPart *part,
              gint64 n_targets,
              EbbTensor *loss,
              GError **error)
{
  const gint64 n_models = trainer_get_n_models (self);
  const gboolean varies = self->options->program->is_masked || batch->starts != NULL;
  const gboolean is_whole = n_models == 1 && batch->n_parts == 1 && self->options->accumulate == 1;
  g_autoptr (EbbTensor) weighted = NULL;

  if (is_whole || (!varies && part->n_targets * n_models == n_targets))
    return ebb_tensor_backward (loss, error);
  weighted = ebb_mul_scalar (loss, (double) (part->n_targets * n_models) / (double) n_targets, error);
  return weighted != NULL && ebb_tensor_backward (weighted, error);
}

/* Adds the share that the part has in the loss of the step, whose batches have @n_targets, to @loss. */
static gboolean
run_part (Trainer *self,
          const Batch *batch,
          guint number,
          gint64 n_targets,
          double *loss,
          GError **error)
{
  g_auto (BatchPart) part = { 0 };
  g_autoptr (EbbTensor) result = NULL;
  double one;

  if (!batch_take_part (batch, self, number, &part, error)
      || !fault_meet (self->ranks, "forward", self->step + 1, error))
    return FALSE;
  result = compute_loss (self, &part, error);
  if (result == NULL || !fault_meet (self->ranks, "backward", self->step + 1, error)
      || !run_backward (self, batch, &part, n_targets, result, error) || !read_loss (result, &one, error))
    return FALSE;
  if (part.n_targets > 0) /* the loss of no token is NaN */
    *loss += one * ((double) part.n_targets / (double) n_targets);
  return TRUE;
}

static gboolean
run_batch (Trainer *self,
           const Batch *batch,
           gboolean is_last,
           gint64 n_targets,
           double *loss,
           GError **error)
{
  const gboolean keeps = self->ranks != NULL && !self->options->ranks.reduces_each_batch;
  gboolean ok = TRUE;

  for (guint i = 0; ok && i < batch->n_parts; i++)
    {
      if (keeps)
        ebb_push_gradient_sync (is_last && i == batch->n_parts - 1);
      ok = run_part (self, batch, i, n_targets, loss, error);
      if (keeps)
        ebb_pop_gradient_sync ();
    }
  return ok;
}

static gboolean
run_batches (Trainer *self,
             double *loss,
             GError **error)
{
  gint64 n_targets;
  g_autoptr (GArray) batches = batch_take_step (self, &n_targets, error);

  *loss = 0;
  for (guint i = 0; batches != NULL && i < batches->len; i++)
    if (!run_batch (self, &g_array_index (batches, Batch, i), i == batches->len - 1, n_targets, loss, error))
      return FALSE;
  return batches != NULL && fault_meet (self->ranks, "exchange", self->step + 1, error)
         && (self->ranks == NULL || ranks_sum (self->ranks, loss, error));
}

int
trainer_get_interrupt (const Trainer *self)
{
  return self->ranks != NULL ? self->ranks->interrupt : interrupt_get_status ();
}

gboolean
trainer_must_stop (const Trainer *self)
{
  const int status = trainer_get_interrupt (self);

  return status != 0 && (status != INTERRUPT_CLOSED || self->step > self->first_step);
}

gboolean
trainer_poll (Trainer *self,
              GError **error)
{
  return self->ranks == NULL || ranks_poll (self->ranks, error);
}

gboolean
trainer_step (Trainer *self,
              double *loss,
              GError **error)
{
  const Options *options = self->options;

  self->step_is_whole = FALSE;
  ebb_schedule_apply (self->schedule, self->optimizer); /* first: the backward pass may move parameters */
  if (!run_batches (self, loss, error))
    return FALSE;
  if (!isfinite (*loss))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "the loss of step %" G_GINT64_FORMAT " is %g: a smaller --lr than %g, or --clip 1, may help",
                   self->step + 1, isnan (*loss) ? (double) NAN : *loss, options->lr); /* without a sign */
      if (self->ranks != NULL)
        self->ranks->failure_shared = TRUE;
      return FALSE;
    }
  if (!fault_meet (self->ranks, "update", self->step + 1, error))
    return FALSE;
  if (options->clip > 0)
    {
      g_autoptr (EbbTensor) norm = ebb_optimizer_clip_grad_norm (self->optimizer, options->clip, error);

      if (norm == NULL)
        return FALSE;
    }
  if (!ebb_optimizer_step (self->optimizer, error))
    return FALSE;
  ebb_optimizer_zero_grad (self->optimizer);
  self->step++;
  self->step_is_whole = TRUE;
  return TRUE;
}

gboolean
trainer_run_step (EbbModule *model G_GNUC_UNUSED,
                  gpointer trainer,
                  GError **error)
{
  double loss;

  return trainer_step (trainer, &loss, error);
}

static gboolean
agree (Trainer *self,
       gboolean ok,
       GError **error)
{
  return self->ranks != NULL ? ranks_agree (self->ranks, ok, error) : ok;
}

/* Waits for the device, which reports now what failed since the last step was enqueued: then its weights are no step's.
 */
static gboolean
settle (Trainer *self,
        GError **error)
{
  gboolean ok = agree (self, ebb_device_synchronize (self->device, error), error);

  self->step_is_whole = self->step_is_whole && ok;
  return ok;
}

gboolean
trainer_finish (Trainer *self,
                GError **error)
{
  return settle (self, error)
         && agree (self, ebb_activation_store_synchronize (EBB_ACTIVATION_STORE (self->store), error), error);
}

gboolean
trainer_save_state (Trainer *self,
                    GError **error)
{
  if (self->state == NULL || self->step == self->saved_step)
    return TRUE;
  if (!settle (self, error))
    return FALSE;
  keep_best (self);
  if (self->ranks != NULL)
    {
      if (!rank_state_save (self, error))
        return FALSE;
    }
  else if (!ebb_training_state_save (self->state, self->options->resume, self->step, error))
    {
      g_prefix_error (error, "--resume: ");
      return FALSE;
    }
  self->saved_step = self->step;
  return TRUE;
}

gboolean
trainer_save_weights (Trainer *self,
                      const char *path,
                      GError **error)
{
  if (options_have_adapter (self->options))
    return adapter_save (self, path, error);
  return self->ranks != NULL ? rank_state_save_weights (self, path, error)
                             : model_save (self->model, self->options, path, error);
}
