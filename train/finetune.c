/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Finetuning in one call: opens the model of a folder and its data, chooses what is left open, trains, and saves. */
#include "train/finetune.h"

#include "dist/init.h"
#include "dist/rng-tracker.h"
#include "dist/tensor-parallel/parallelize.h"
#include "nn/data/open.h"
#include "nn/layers/block.h"
#include "nn/layers/quantize.h"
#include "nn/models/folder/model.h"
#include "nn/models/gpt.h"
#include "nn/optim/adam.h"
#include "tensor/dry-run.h"
#include "tensor/error-private.h"
#include "tensor/random.h"
#include "tensor/util/json-private.h"
#include "train/finetune-private.h"
#include "train/outputs-private.h"
#include "train/trainer-private.h"
#include "wrap/lora/wrapper.h"
#include "wrap/shard/fully-shard.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

/* Choices that suit many models. */
#define FULL_RATE 1e-5
#define ADAPTER_RATE 2e-4
#define WARMUP 0.03 /* of the steps */
#define MOST_CONTEXT 1024
#define EVALUATE_EVERY 100
#define SAVE_EVERY 500

#define CONFIG_MAX_SIZE ((gsize) 64 << 20)

typedef struct
{
  const char *folder, *out;
  EbbFinetuneOptions *options; /* a copy */
  EbbTokenizer *tokenizer;
  EbbDataset *data, *held_out; /* held_out: NULL if there is none */
  EbbTrainRanks ranks;
  EbbProcessGroup *tensor;            /* the ranks that share this one's model; NULL: there are none */
  EbbProcessGroup *shard, *replicate; /* the ranks among which models are sharded and replicated, or NULL */
  gboolean is_frozen;                 /* an adapter is trained over the weights */
  gboolean is_bf16;                   /* the folder has its weights in bf16 */
} Finetuning;

static void
finetuning_clear (Finetuning *self)
{
  g_clear_object (&self->options);
  g_clear_object (&self->tokenizer);
  g_clear_object (&self->data);
  g_clear_object (&self->held_out);
  ebb_train_ranks_clear (&self->ranks);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Finetuning, finetuning_clear)

static EbbTrainerSettings *
get_settings (gpointer options)
{
  return ebb_trainer_options_get_settings (options);
}

/* -- before the model is opened ------------------------------------------------------------------------------------ */

/* Whether a GGUF file's weights are opened in bf16. */
static gboolean
is_file_bf16 (const char *path)
{
  g_autoptr (EbbModule) model = NULL;
  g_autofree EbbTensor **parameters = NULL;
  gboolean is_bf16;
  guint n = 0;

  ebb_push_dry_run (); /* reads no weight */
  model = ebb_model_open (path, NULL);
  ebb_pop_dry_run ();
  parameters = model != NULL ? ebb_module_get_parameters (model, TRUE, &n) : NULL;
  is_bf16 = n > 0 && ebb_tensor_get_dtype (parameters[0]) == EBB_DTYPE_BF16;
  for (guint i = 0; i < n; i++)
    ebb_tensor_unref (parameters[i]);
  return is_bf16;
}

/* Whether the weights of a folder are in bf16. What is wrong with its configuration is reported where it is opened. */
static gboolean
is_folder_bf16 (const char *folder)
{
  g_autofree char *path = g_build_filename (folder, "config.json", NULL);
  g_autoptr (EbbJson) config = NULL;
  const char *name = NULL;

  if (g_str_has_suffix (folder, ".gguf"))
    return is_file_bf16 (folder);
  config = ebb_json_read_file (path, CONFIG_MAX_SIZE, NULL);
  if (!ebb_json_as_string (ebb_json_get (config, "dtype"), &name))
    ebb_json_as_string (ebb_json_get (config, "torch_dtype"), &name);
  return g_strcmp0 (name, "bfloat16") == 0;
}

static gboolean
check_out (const Finetuning *self,
           GError **error)
{
  struct stat base, target;

  if (self->out == NULL || stat (self->folder, &base) != 0 || stat (self->out, &target) != 0
      || base.st_dev != target.st_dev || base.st_ino != target.st_ino)
    return TRUE;
  return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "out %s: it is the model, which is only read: name another %s",
                   self->out, S_ISDIR (base.st_mode) ? "folder" : "file");
}

static gboolean
open_data (Finetuning *self,
           const char *const *data,
           GError **error)
{
  const char *held_out = self->options->held_out;

  if (!ebb_dataset_check_files (data, held_out, FALSE, error))
    return FALSE;
  self->tokenizer = ebb_tokenizer_open (self->folder, error);
  if (self->tokenizer == NULL)
    return FALSE;
  self->data = ebb_dataset_open (data, self->tokenizer, FALSE, self->options->seed, error);
  if (self->data == NULL || held_out == NULL)
    return self->data != NULL;
  self->held_out = ebb_dataset_open_held_out (held_out, self->data, self->tokenizer, FALSE, self->options->seed, error);
  return self->held_out != NULL;
}

/* Of the mesh's dimensions that aren't the model's, the last one is that of shards. */
static gboolean
find_groups (Finetuning *self,
             GError **error)
{
  EbbMesh *mesh = get_settings (self->options)->mesh;
  const char *model_dim = mesh != NULL ? ebb_mesh_get_model_dim (mesh) : NULL;
  g_auto (GStrv) names = mesh != NULL ? ebb_mesh_get_names (mesh) : NULL;

  for (guint i = 0; names != NULL && names[i] != NULL; i++)
    {
      EbbProcessGroup *group = ebb_mesh_get_group (mesh, names[i]);

      if (g_strcmp0 (names[i], model_dim) == 0)
        self->tensor = group;
      else if (self->replicate != NULL)
        return ebb_fail (
            error, EBB_ERROR_INVALID_ARGUMENT,
            "finetune: mesh: its dimension %s is one too many: models are replicated over one, and sharded "
            "over another",
            names[i]);
      else
        {
          self->replicate = self->shard;
          self->shard = group;
        }
    }
  return TRUE;
}

/* What a rank does by itself. */
static gboolean
open_files (Finetuning *self,
            const char *const *data,
            GError **error)
{
  if (!ebb_finetune_options_check (self->options, self->out, error) || !check_out (self, error)
      || !find_groups (self, error))
    return FALSE;
  self->is_frozen = ebb_finetune_options_have_adapter (self->options);
  self->is_bf16 = is_folder_bf16 (self->folder);
  return open_data (self, data, error);
}

static gboolean
finetuning_init (Finetuning *self,
                 const char *const *data,
                 EbbFinetuneOptions *options,
                 GError **error)
{
  g_autoptr (EbbFinetuneOptions) defaults = options == NULL ? ebb_finetune_options_new () : NULL;
  EbbTrainerOptions *given = EBB_TRAINER_OPTIONS (options != NULL ? options : defaults);

  self->options = EBB_FINETUNE_OPTIONS (ebb_trainer_options_copy (given));
  return ebb_train_ranks_init (&self->ranks, get_settings (given)->mesh, error)
         && ebb_train_ranks_agree (&self->ranks, open_files (self, data, error), error);
}

/* -- the model ----------------------------------------------------------------------------------------------------- */

static gboolean
may_take (const Finetuning *self,
          EbbConcessions change)
{
  EbbMemoryBudget *budget = get_settings (self->options)->budget;
  EbbConcessions allow;

  if (budget == NULL)
    return TRUE;
  g_object_get (budget, "allow", &allow, NULL);
  return (allow & change) != 0;
}

/* The type to compute in: that of the folder's weights, if none is set. */
static const char *
get_dtype (const Finetuning *self)
{
  const char *dtype = get_settings (self->options)->dtype;

  return dtype != NULL ? dtype : self->is_bf16 ? "bf16"
                                               : "f32";
}

static gboolean
check_model (const Finetuning *self,
             EbbModule *model,
             GError **error)
{
  const guint n_tokens = ebb_tokenizer_get_vocab_size (self->tokenizer);
  const EbbQuantization base = ebb_get_quantization (model);
  g_autoptr (EbbGptConfig) config = NULL;

  if (!EBB_IS_GPT (model))
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "model %s: it has a masked language model: ebb_finetune () trains models that write text",
                     self->folder);
  if (base != EBB_QUANTIZATION_NONE && !self->is_frozen)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT,
                     "model %s: its weights are %s and have no gradient: it needs lora-rank, lora, or adapter",
                     self->folder, ebb_quantization_get_name (base));
  config = ebb_gpt_get_config (EBB_GPT (model));
  if ((guint) config->vocab < n_tokens)
    return ebb_fail (
        error, EBB_ERROR_INVALID_ARGUMENT,
        "model %s: a vocabulary of %d, and its tokenizer has %u tokens: the model must have at least these",
        self->folder, config->vocab, n_tokens);
  return TRUE;
}

/* A model is tuned in the types in which it was trained. Below an adapter each tensor keeps its type; weights that move
 * stay in bf16 where @taken says so. */
static EbbModule *
open_model (const Finetuning *self,
            EbbConcessions taken,
            GError **error)
{
  const gboolean keeps_bf16 =
      self->is_bf16 && strcmp (get_dtype (self), "bf16") == 0 && (taken & EBB_CONCESSIONS_BF16_WEIGHTS) != 0;
  EbbQuantization base = EBB_QUANTIZATION_NONE;
  g_autoptr (EbbModule) model = NULL;
  EbbDevice *device = self->options->device != NULL ? self->options->device : ebb_get_default_device ();

  if (self->options->base != NULL && !ebb_quantization_from_name (self->options->base, &base, error))
    return NULL;
  model = ebb_model_open_quantized (
      self->folder, self->is_frozen ? EBB_MODEL_KEEP_DTYPE : keeps_bf16 ? EBB_DTYPE_BF16
                                                                        : EBB_DTYPE_F32,
      base, error);
  if (model == NULL || !check_model (self, model, error))
    return NULL;
  if ((taken & EBB_CONCESSIONS_BF16_RESIDUAL) != 0
      && !ebb_gpt_set_residual_dtype (EBB_GPT (model), EBB_DTYPE_BF16, error))
    return NULL;
  ebb_module_set_training (model, TRUE);
  ebb_manual_seed (self->options->seed);
  return ebb_module_to_device (model, device, error) ? g_steal_pointer (&model) : NULL;
}

/* Gives the model its adapter, if one is trained. */
static gboolean
add_adapter (const Finetuning *self,
             EbbModule *model,
             GError **error)
{
  const EbbFinetuneOptions *options = self->options;
  g_autoptr (EbbLoraOptions) lora = options->lora != NULL ? g_object_ref (options->lora) : NULL;
  g_autoptr (EbbModule) same = NULL;

  if (!self->is_frozen)
    return TRUE;
  if (options->lora_rank > 0)
    lora = g_object_new (EBB_TYPE_LORA_OPTIONS, "rank", options->lora_rank, NULL);
  if (lora != NULL)
    same = ebb_lora_wrap (model, lora, error);
  else
    same = ebb_lora_load (model, options->adapter, NULL, error);
  if (same == NULL && lora == NULL)
    g_prefix_error (error, "adapter %s: ", options->adapter);
  return same != NULL;
}

/* The type of the saved folder's weights is that of the folder, whatever type they are trained in. */
static int
get_save_dtype (const Finetuning *self)
{
  return self->is_bf16 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

static EbbOptimizer *
make_optimizer (const Finetuning *self,
                EbbModule *model,
                GError **error)
{
  const double rate = self->options->learning_rate, chosen = self->is_frozen ? ADAPTER_RATE : FULL_RATE;
  /* An adapter's moments are few. */
  const gboolean is_small = !self->is_frozen && may_take (self, EBB_CONCESSIONS_EIGHT_BIT_MOMENTS);
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (model, rate > 0 ? rate : chosen, error);

  if (optimizer == NULL || !ebb_optimizer_exclude_from_decay (optimizer, error))
    return NULL;
  g_object_set (optimizer, "moment-format", is_small ? EBB_MOMENT_FORMAT_EIGHT_BIT : EBB_MOMENT_FORMAT_F32,
                "weight-rounding", EBB_WEIGHT_ROUNDING_RANDOM, NULL);
  return g_steal_pointer (&optimizer);
}

/* -- the training -------------------------------------------------------------------------------------------------- */

/* Takes the model's context, which is often more than memory holds. */
static gboolean
choose_context (const Finetuning *self,
                EbbModule *model,
                EbbTrainerSettings *settings,
                GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (model));

  if (settings->context > config->context)
    return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "context %" G_GINT64_FORMAT ": the model %s has %d positions",
                     settings->context, self->folder, config->context);
  if (settings->context == 0)
    settings->context = MIN (config->context, MOST_CONTEXT);
  if (!ebb_dataset_check_context (self->data, settings->context, error))
    return FALSE;
  if (self->held_out == NULL || ebb_dataset_check_context (self->held_out, settings->context, error))
    return TRUE;
  g_prefix_error (error, "held-out %s: ", self->options->held_out);
  return FALSE;
}

static EbbSchedule *
make_schedule (gint64 n_steps)
{
  return ebb_cosine_schedule_new ((gint64) (WARMUP * (double) n_steps), MAX (n_steps, 1), 0);
}

static gboolean
choose_steps (const Finetuning *self,
              EbbTrainerSettings *settings,
              GError **error)
{
  const double epochs = settings->epochs > 0 ? settings->epochs : 1;
  const double n_rows = (double) ebb_dataset_get_n_rows (self->data, settings->context);

  if (settings->batch_size == 0)
    settings->batch_size = self->ranks.n_models;
  if (settings->steps == EBB_TRAINER_NO_STEPS)
    {
      settings->steps = (gint64) ceil (epochs * n_rows / ((double) settings->batch_size * settings->accumulate));
      settings->epochs = 0;
      if (settings->steps == 0)
        return ebb_fail (error, EBB_ERROR_INVALID_ARGUMENT, "epochs %g: there is nothing to train", epochs);
    }
  if (settings->schedule == NULL)
    settings->schedule = make_schedule (settings->steps);
  return TRUE;
}

/* Chooses what the settings of the training leave open. */
static EbbTrainerOptions *
choose (const Finetuning *self,
        EbbModule *model,
        GError **error)
{
  g_autoptr (EbbTrainerOptions) options = ebb_trainer_options_copy (EBB_TRAINER_OPTIONS (self->options));
  EbbTrainerSettings *settings = get_settings (options);

  if (!choose_context (self, model, settings, error) || !choose_steps (self, settings, error))
    return NULL;
  g_object_set (options, "dtype", get_dtype (self), "budget", NULL, NULL); /* make () is called within the budget */
  if (self->held_out != NULL)
    g_object_set (options, "evaluate", self->held_out, NULL);
  if (settings->evaluate != NULL && settings->evaluate_every == 0)
    settings->evaluate_every = EVALUATE_EVERY;
  if (self->held_out != NULL && self->out != NULL)
    g_object_set (options, "save-best", self->out, NULL);
  if (settings->resume != NULL && settings->save_every == 0)
    settings->save_every = SAVE_EVERY;
  return g_steal_pointer (&options);
}

/* Checks early that the result can be saved. One rank writes for all. */
static gboolean
check_output (const Finetuning *self,
              EbbModule *model,
              GError **error)
{
  return self->out == NULL || self->ranks.rank > 0 || ebb_is_dry_run ()
         || ebb_train_check_output ("out", self->out, model, get_save_dtype (self), error);
}

/* Adds what is trained: the adapter, if there is one, and the optimizer. */
static EbbOptimizer *
add_trained (const Finetuning *self,
             EbbModule *model,
             GError **error)
{
  if (!add_adapter (self, model, error) || (self->is_frozen && !check_output (self, model, error)))
    return NULL;
  return make_optimizer (self, model, error);
}

/* Ranks draw numbers of their own, but those that share a model. */
static gboolean
seed_ranks (const Finetuning *self,
            GError **error)
{
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = self->options->seed, offset = ebb_generator_get_offset (generator);

  if (!(self->tensor != NULL ? ebb_model_parallel_manual_seed (seed, G_OBJECT (self->tensor), error)
                             : ebb_seed_rank (seed, self->shard, error)))
    return FALSE;
  ebb_generator_set_state (generator, ebb_generator_get_seed (generator), offset);
  return TRUE;
}

/* Divides the model among ranks. */
static gboolean
wrap (const Finetuning *self,
      EbbModule *model,
      GError **error)
{
  g_autoptr (EbbFullyShardOptions) how = ebb_fully_shard_options_new ();

  g_object_set (how, "replicate-group", self->replicate, NULL);
  return (self->shard == NULL || ebb_fully_shard_wrap_each (model, EBB_TYPE_BLOCK, self->shard, how, error))
         && (self->ranks.mesh == NULL || seed_ranks (self, error));
}
/* -- besides training ---------------------------------------------------------------------------------------------- */

typedef struct
{
  EbbDataset *data;
  guint64 seed;
  gboolean has_evaluation;
  char *out;           /* NULL: nothing is saved */
  gboolean keeps_best; /* @out has the best weights */
  EbbMesh *mesh;       /* NULL: there are no ranks */
} Rest;

static void
rest_free (gpointer data)
{
  Rest *self = data;

  g_clear_object (&self->data);
  g_free (self->out);
  g_clear_object (&self->mesh);
  g_free (self);
}

/* The random numbers of a resumed training go on from its state. */
static void
note_seed (const Rest *self,
           EbbTrainer *trainer)
{
  g_autofree char *text = NULL;
  guint64 seed;

  g_object_get (self->data, "seed", &seed, NULL);
  if (seed == self->seed)
    return;
  text = g_strdup_printf ("resume: the training was begun with seed %" G_GUINT64_FORMAT
                          " and goes on with it, not with %" G_GUINT64_FORMAT,
                          seed, self->seed);
  g_signal_emit_by_name (trainer, "note", text);
}

/* Measures a model before its first step, and one that needs no more step as it is. */
static gboolean
begin (EbbTrainer *trainer,
       gpointer data,
       GCancellable *cancellable,
       GError **error)
{
  const Rest *self = data;
  gint64 step;
  double loss;

  note_seed (self, trainer);
  g_object_get (trainer, "step", &step, NULL);
  return !self->has_evaluation || (step > 0 && !ebb_trainer_is_done (trainer))
         || ebb_trainer_evaluate (trainer, NULL, &loss, cancellable, error);
}

/* Whether the best weights are there, in the eyes of the first rank. Collective. */
static gboolean
find_best (const Rest *self,
           EbbTrainer *trainer,
           gboolean *is_there,
           GError **error)
{
  EbbTrainRanks ranks;
  g_autofree gint64 *all = NULL;
  gint64 best_step, mine;
  gboolean ok;

  g_object_get (trainer, "best-step", &best_step, NULL);
  mine = *is_there = self->keeps_best && best_step > 0 && g_file_test (self->out, G_FILE_TEST_EXISTS);
  if (self->mesh == NULL)
    return TRUE;
  ok = ebb_train_ranks_init (&ranks, self->mesh, error);
  if (ok)
    {
      all = g_new (gint64, ranks.size);
      ok = ebb_train_ranks_gather (&ranks, &mine, 1, all, error);
      *is_there = ok && all[0] != 0;
    }
  ebb_train_ranks_clear (&ranks);
  return ok;
}

/* Saves the weights of the last step, unless those of the best step are there. Collective. */
static gboolean
finish (EbbTrainer *trainer,
        gpointer data,
        GError **error)
{
  const Rest *self = data;
  gboolean is_there;

  if (self->out == NULL)
    return TRUE;
  return find_best (self, trainer, &is_there, error)
         && (is_there || ebb_trainer_save_model (trainer, self->out, error));
}

static void
set_hooks (const Finetuning *self,
           EbbTrainer *trainer)
{
  const EbbTrainerSettings *settings = get_settings (self->options);
  Rest *rest = g_new (Rest, 1);

  *rest = (Rest){ .data = g_object_ref (self->data),
                  .seed = self->options->seed,
                  .has_evaluation = self->held_out != NULL || settings->evaluate != NULL,
                  .out = g_strdup (self->out),
                  .keeps_best = self->held_out != NULL,
                  .mesh = settings->mesh != NULL ? g_object_ref (settings->mesh) : NULL };
  ebb_trainer_set_hooks (trainer, &(EbbTrainerHooks){ begin, finish, rest, rest_free,
                                                      settings->schedule == NULL ? make_schedule : NULL,
                                                      get_save_dtype (self) });
}

/* An EbbTrainerMakeFunc: a trainer of the folder's model. */
static EbbTrainer *
make (EbbConcessions taken,
      gpointer user_data,
      GError **error)
{
  Finetuning *self = user_data;
  g_autoptr (EbbModule) model = open_model (self, taken, error);
  g_autoptr (EbbTrainerOptions) options = model != NULL ? choose (self, model, error) : NULL;
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  EbbTrainer *trainer;
  const gboolean is_opened = options != NULL && (self->is_frozen || check_output (self, model, error));

  if (!ebb_train_ranks_agree (&self->ranks, is_opened, error))
    return NULL;
  if (self->tensor != NULL && (same = ebb_parallelize (model, self->tensor, NULL, error)) == NULL)
    return NULL;
  optimizer = add_trained (self, model, error);
  if (!ebb_train_ranks_agree (&self->ranks, optimizer != NULL, error) || !wrap (self, model, error))
    return NULL;
  trainer = ebb_trainer_new (model, optimizer, self->data, options, error);
  if (trainer == NULL)
    return NULL;
  set_hooks (self, trainer);
  return trainer;
}

/**
 * ebb_finetune_new:
 * @model: (type filename): the model: a folder in Hugging Face's format, or a GGUF file; it is only read
 * @data: (array zero-terminated=1) (element-type filename): the files to train on: text, or JSON lines (`.jsonl`) with
 *   `messages`, with `prompt` and `completion`, or with `text`; of messages and completions the answers alone count
 * @out: (type filename) (nullable): where the model is saved, or the adapter alone if one is trained; %NULL: nowhere
 * @options: (nullable): the settings, which are copied; %NULL: the defaults
 * @error: return location for an error
 *
 * Opens the model of a folder and the data, and makes a trainer that tunes the model; ebb_trainer_run() trains, and
 * ebb_trainer_finish() saves the result in @out. What the settings leave open is chosen so:
 *
 * - one epoch of rows of the model's context, at most 1024 tokens, one row in a batch;
 * - a learning rate of 1e-5, for an adapter 2e-4, which rises over 3 % of the steps and falls as a cosine to 0;
 * - the type of the folder's weights to compute in;
 * - held-out data is measured before the first step and every 100 steps, and a state is saved every 500 steps.
 *
 * Without an adapter, weights that the folder has in bf16 stay so, rounded at random, and the moments take 8 bits. With
 * #EbbTrainerOptions:budget this is so if #EbbMemoryBudget:allow has %EBB_CONCESSIONS_BF16_WEIGHTS and
 * %EBB_CONCESSIONS_EIGHT_BIT_MOMENTS; else both are f32. The saved folder has the type of @model.
 *
 * With #EbbFinetuneOptions:held-out, @out has the weights whose loss on that data was the least, else those of the last
 * step.
 *
 * Returns: (transfer full): the trainer, or %NULL with @error set: %EBB_ERROR_INVALID_ARGUMENT if settings contradict
 *   each other or don't fit the model, %EBB_ERROR_IO and %EBB_ERROR_FORMAT for files
 */
EbbTrainer *
ebb_finetune_new (const char *model,
                  const char *const *data,
                  const char *out,
                  EbbFinetuneOptions *options,
                  GError **error)
{
  g_auto (Finetuning) self = { .folder = model, .out = out };
  EbbMemoryBudget *budget;

  if (!EBB_MAY_BEGIN (error, model, data))
    return NULL;
  g_return_val_if_fail (options == NULL || EBB_IS_FINETUNE_OPTIONS (options), NULL);

  if (!finetuning_init (&self, data, options, error))
    return NULL;
  budget = get_settings (self.options)->budget;
  return budget != NULL ? ebb_trainer_new_within (budget, make, &self, error)
                        : make (EBB_CONCESSIONS_BF16_WEIGHTS, &self, error);
}

/* Saves what a training that was cancelled has so far. Collective. */
static gboolean
finish_cancelled (EbbTrainer *trainer,
                  GError **error)
{
  double loss;

  g_object_get (trainer, "loss", &loss, NULL);
  return isnan (loss) || (ebb_trainer_prepare (trainer, NULL, error) && ebb_trainer_finish (trainer, error));
}

/**
 * ebb_finetune:
 * @model: (type filename): the model: a folder in Hugging Face's format, or a GGUF file; it is only read
 * @data: (array zero-terminated=1) (element-type filename): the files to train on
 * @out: (type filename) (nullable): where the model is saved, or the adapter alone if one is trained; %NULL: nowhere
 * @options: (nullable): the settings; %NULL: the defaults
 * @cancellable: (nullable): ends the training after the running step
 * @error: return location for an error
 *
 * Tunes the model of a folder in one call: ebb_finetune_new(), which says what is chosen, and ebb_trainer_run(). A
 * training that is cancelled saves in @out what it has so far, too.
 *
 * Returns: (transfer full): the trainer, which has finished, or %NULL with @error set; %G_IO_ERROR_CANCELLED if the
 *   training was cancelled
 */
EbbTrainer *
ebb_finetune (const char *model,
              const char *const *data,
              const char *out,
              EbbFinetuneOptions *options,
              GCancellable *cancellable,
              GError **error)
{
  g_autoptr (EbbTrainer) trainer = ebb_finetune_new (model, data, out, options, error);
  g_autoptr (GError) failure = NULL;

  if (trainer == NULL)
    return NULL;
  if (ebb_trainer_run (trainer, cancellable, &failure))
    return g_steal_pointer (&trainer);
  if (g_error_matches (failure, G_IO_ERROR, G_IO_ERROR_CANCELLED) && !finish_cancelled (trainer, error))
    return NULL;
  g_propagate_error (error, g_steal_pointer (&failure));
  return NULL;
}
