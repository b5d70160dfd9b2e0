/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "common/options/options.h"

#include "common/command.h"
#include "common/launcher.h"
#include "common/options/tuning-options.h"
#include "common/train/data.h"
#include "common/train/output.h"
#include "common/train/store.h"

#include <string.h>

void
options_init (Options *self,
              const Program *program)
{
  *self = (Options){ .program = program };
  option_table_init (&self->state, &program_page);
}

void
options_clear (Options *self)
{
  option_table_clear (&self->state);
}

void
options_silence (Options *self)
{
  if (!self->silenced)
    self->all_quiet = self->quiet;
  self->silenced = self->quiet = TRUE;
  g_clear_pointer (&self->report, g_free);
  g_clear_pointer (&self->log, g_free);
  g_clear_pointer (&self->profile, g_free);
  g_clear_pointer (&self->stream_trace, g_free);
  g_clear_pointer (&self->memory_timeline, g_free);
}

gboolean
options_on_ranks (const Options *self)
{
  const gboolean are_there = self->program->tunes
                             && (launcher_count () > 1 || g_strcmp0 (self->ranks.backend, "mpi") == 0
                                 || g_strcmp0 (self->ranks.backend, "nccl") == 0);

  return self->program->on_ranks || are_there || self->ranks.tensor_parallel > 1 || self->ranks.n_ranks > 0;
}

gboolean
options_have_plan (const Options *self)
{
  return self->memory > 0 || self->memory_is_auto || self->plan != NULL;
}

/* -- checking ------------------------------------------------------------------------------------------------------ */

static gboolean
check_numbers (const Options *self,
               GError **error)
{
  if (self->dropout >= 1)
    return options_refuse (error, "--dropout %g: it must be below 1", self->dropout);
  /* In a training that is resumed either may be the saved one. */
  if (self->min_lr > self->lr && (self->resume == NULL || self->saved_taken))
    return options_refuse (error, "--min-lr %g: it must be at most --lr %g", self->min_lr, self->lr);
  return TRUE;
}

/* The folder of --model says what these would. */
static gboolean
check_model (const Options *self,
             GError **error)
{
  const struct
  {
    const char *name;
    gboolean given;
  } others[] = {
    { "preset", OPTION_WAS_GIVEN (self, preset) },
    { "layers", OPTION_WAS_GIVEN (self, layers) },
    { "width", OPTION_WAS_GIVEN (self, width) },
    { "heads", OPTION_WAS_GIVEN (self, heads) },
    { "vocab", OPTION_WAS_GIVEN (self, vocab) },
    { "residual", OPTION_WAS_GIVEN (self, residual) },
    { "load", OPTION_WAS_GIVEN (self, load) },
  };

  if (self->model[0] == '\0')
    return !OPTION_WAS_GIVEN (self, model) || options_refuse (error, "--model: a name is missing");
  for (guint i = 0; i < G_N_ELEMENTS (others); i++)
    if (others[i].given)
      return options_refuse (error, "--model %s and --%s: the folder has the weights and says how the model is built",
                             self->model, others[i].name);
  return TRUE;
}

/* Whether there is something to do without a step. */
static gboolean
has_output (const Options *self)
{
  return self->eval[0] != '\0' || self->sample > 0 || (self->resume != NULL && !self->saved_taken);
}

static gboolean
check_files (const Options *self,
             GError **error)
{
  const struct
  {
    const char *option, *value;
  } written[] = {
    { "save", self->save },
    { self->program->tunes ? "save" : "save-best", self->save_best },
    { "report", self->report },
    { "log", self->log },
    { "profile", self->profile },
    { "stream-trace", self->stream_trace },
    { "memory-timeline", self->memory_timeline },
    { "plan", self->plan },
  };

  for (guint i = 0; i < G_N_ELEMENTS (written); i++)
    for (guint j = 0; j < i; j++)
      if (written[i].value != NULL && written[j].value != NULL && strcmp (written[i].value, written[j].value) == 0)
        return options_refuse (error, "--%s and --%s both name %s: they must be two files", written[j].option,
                               written[i].option, written[i].value);
  if (self->overwrite && self->save == NULL && self->save_best == NULL && self->report == NULL && self->profile == NULL
      && self->stream_trace == NULL && self->memory_timeline == NULL)
    return options_refuse (error, "--overwrite: it needs --save%s or another option that names a file to write",
                           self->program->tunes ? "" : ", --save-best,");
  if (OPTION_WAS_GIVEN (self, profile_steps) && self->profile == NULL)
    return options_refuse (error, "--profile-steps %" G_GINT64_FORMAT ": it needs --profile FILE", self->profile_steps);
  if (self->profile != NULL && self->steps == 0)
    return options_refuse (error, "--profile %s: with --steps 0 there is no step to profile", self->profile);
  if (self->stream_trace != NULL && self->steps == 0)
    return options_refuse (error, "--stream-trace %s: with --steps 0 there is no step to trace", self->stream_trace);
  if (self->memory_timeline != NULL && self->steps == 0)
    return options_refuse (error, "--memory-timeline %s: with --steps 0 there is no step to record",
                           self->memory_timeline);
  if (self->memory_timeline != NULL && !g_str_has_suffix (self->memory_timeline, ".html")
      && !g_str_has_suffix (self->memory_timeline, ".svg"))
    return options_refuse (error, "--memory-timeline %s: the name must end in .html or in .svg", self->memory_timeline);
  if (self->data == NULL && self->steps > 0 && !(self->estimate && !self->program->is_masked))
    return options_refuse (error, "--data is missing: name a text to train on");
  if (self->program->tunes && self->data == NULL && self->steps == 0 && self->merge == NULL && !has_output (self))
    return options_refuse (error, "--data is missing: name texts or conversations to train on");
  return TRUE;
}

/* More files may follow the first one of --data, so what stands alone is one. */
static void
take_rest (Options *self,
           char **rest)
{
  GStrvBuilder *builder = g_strv_builder_new ();

  if (self->data != NULL)
    g_strv_builder_addv (builder, (const char **) self->data);
  g_strv_builder_addv (builder, (const char **) rest);
  g_strfreev (self->data);
  self->data = g_strv_builder_end (builder);
  g_strv_builder_unref (builder);
}

EbbDType
options_get_weights_dtype (const Options *self)
{
  return strcmp (self->weights, "bf16") == 0 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

EbbWeightRounding
options_get_rounding (const Options *self)
{
  if (strcmp (self->rounding, "master") == 0)
    return EBB_WEIGHT_ROUNDING_MASTER;
  return strcmp (self->rounding, "nearest") == 0 ? EBB_WEIGHT_ROUNDING_NEAREST : EBB_WEIGHT_ROUNDING_RANDOM;
}

/* Steps in backward have no gradients at once. */
static gboolean
check_steps (const Options *self,
             GError **error)
{
  if (self->step_in_backward && self->clip > 0)
    return options_refuse (error, "--step-in-backward and --clip %g: the norm needs all gradients at once", self->clip);
  if (self->step_in_backward && self->accumulate > 1)
    return options_refuse (error,
                           "--step-in-backward and --accumulate %d: batches that are summed need gradients that stay",
                           self->accumulate);
  if (self->step_in_backward && self->micro_batch > 0 && self->micro_batch < self->batch)
    return options_refuse (error,
                           "--step-in-backward and --micro-batch %d: parts that are summed need gradients that stay",
                           self->micro_batch);
  return TRUE;
}

/* A GGUF file is saved with its tokenizer, and programs that read such files have none of bytes. */
static gboolean
check_gguf (const Options *self,
            GError **error)
{
  const char *path = self->save != NULL ? self->save : self->save_best;

  if (!self->reads_bytes || path == NULL || !g_str_has_suffix (path, ".gguf") || options_have_adapter (self))
    return TRUE;
  return options_refuse (error, "--tokenizer byte and --save %s: a GGUF file has no tokenizer of bytes: save a folder",
                         path);
}

/* Options that contradict each other; in a resumed training one of them may be the saved one. */
static gboolean
check_pairs (const Options *self,
             GError **error)
{
  if (self->resume != NULL && !self->saved_taken)
    return TRUE;
  if (!check_gguf (self, error))
    return FALSE;
  if (strcmp (self->residual, "bf16") == 0 && strcmp (self->dtype, "bf16") != 0)
    return options_refuse (error, "--residual bf16: it needs --dtype bf16, not %s", self->dtype);
  if (self->program->tunes) /* the folder says the types that are not given: they are checked with it */
    return check_steps (self, error);
  if (strcmp (self->weights, "bf16") == 0 && strcmp (self->dtype, "bf16") != 0)
    return options_refuse (error, "--weights bf16: it needs --dtype bf16, not %s", self->dtype);
  if (strcmp (self->rounding, "random") != 0 && strcmp (self->weights, "bf16") != 0)
    return options_refuse (error, "--rounding %s: it needs --weights bf16, not %s", self->rounding, self->weights);
  return check_steps (self, error);
}

/* Sampling from loaded weights needs no text and no steps. */
static void
take_steps (Options *self)
{
  if (!OPTION_WAS_GIVEN (self, steps) && self->data == NULL && (self->load != NULL || self->model[0] != '\0')
      && self->sample > 0)
    self->steps = 0;
}

static gboolean
take_bytes (Options *self,
            GError **error)
{
  self->memory_is_auto = g_strcmp0 (self->memory_text, "auto") == 0
                         || (self->memory_text == NULL && strcmp (self->checkpoint, "auto") == 0);
  return (self->memory_text == NULL || self->memory_is_auto
          || (command_parse_size ("memory", self->memory_text, &self->memory, error)
              && (self->memory > 0
                  || options_refuse (error, "--memory %s: leave the option out to train without a budget",
                                     self->memory_text))))
         && (self->store_limit_text == NULL
             || command_parse_size ("store-limit", self->store_limit_text, &self->store_limit, error))
         && (self->loss_chunk_text == NULL
             || command_parse_size ("loss-chunk", self->loss_chunk_text, &self->loss_chunk, error));
}

/* Finds what the names mean, and checks which of them go together. In a training that is resumed not all is known at
 * first. */
static gboolean
find_kinds (Options *self,
            GError **error)
{
  const gboolean all_known = self->resume == NULL || self->saved_taken;

  self->checkpoint_kind = (CheckpointKind) OPTION_CHOICE (self, checkpoint);
  if (!(program_may_shard (self->program) ? rank_options_check (self, all_known, error)
                                          : rank_options_check_alone (self, error)))
    return FALSE;
  if (OPTION_WAS_GIVEN (self, ranks.nesting) && all_known
      && (self->checkpoint_kind == CHECKPOINT_NONE || self->checkpoint_kind == CHECKPOINT_AUTO))
    return options_refuse (error, "--nesting %s: it needs --checkpoint selective or full", self->ranks.nesting);
  return rank_options_check_tensor (&self->ranks, !all_known || self->checkpoint_kind == CHECKPOINT_FULL, error)
         && (!all_known || store_check (self, error));
}

static gboolean
check (Options *self,
       GError **error)
{
  return option_table_check (&self->state, error) && take_bytes (self, error) && find_kinds (self, error)
         && check_model (self, error) && (!self->program->tunes || tuning_options_check (self, error))
         && check_numbers (self, error) && check_pairs (self, error) && check_files (self, error)
         && (self->resume != NULL || data_check (self, error));
}

/* "byte" that was not given stands for the tokenizer of --model. @saved: of the resumed training; may be NULL. */
static void
take_bytes_of_model (Options *self,
                     const char *saved)
{
  g_autoptr (JsonNode) root = saved != NULL ? option_table_parse_json (saved) : NULL;
  const gboolean was_given = OPTION_WAS_GIVEN (self, tokenizer)
                             || (root != NULL
                                 && json_object_get_boolean_member_with_default (json_node_get_object (root),
                                                                                 "reads_bytes", FALSE));

  self->reads_bytes = self->model[0] != '\0' && was_given && strcmp (self->tokenizer, "byte") == 0;
}

/* Weights become a folder where there is one. From here on its name ends with a slash. */
static void
mark_folder (char **path)
{
  char *marked;

  if (*path == NULL || g_str_has_suffix (*path, G_DIR_SEPARATOR_S) || !g_file_test (*path, G_FILE_TEST_IS_DIR))
    return;
  marked = g_strconcat (*path, G_DIR_SEPARATOR_S, NULL);
  g_free (*path);
  *path = marked;
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  g_auto (GStrv) rest = NULL;

  if (!option_table_parse (&self->state, argc, argv, &rest, error))
    return FALSE;
  if (option_table_is_question (&self->state))
    return TRUE;
  if (rest != NULL)
    take_rest (self, rest);
  if (!option_table_fill (&self->state, error))
    return FALSE;
  if (OPTION_WAS_GIVEN (self, ranks.n_ranks) && !OPTION_WAS_GIVEN (self, ranks.backend))
    {
      g_free (self->ranks.backend);
      self->ranks.backend = g_strdup ("thread");
    }
  take_bytes_of_model (self, NULL);
  if (self->program->tunes)
    tuning_options_fill (self);
  else
    {
      take_steps (self);
      mark_folder (&self->save);
      mark_folder (&self->save_best);
    }
  return option_table_finish (&self->state, check (self, error), error);
}

/* An option of the command line switches off saved ones that contradict it. */
static void
settle (Options *self)
{
  RankOptions *ranks = &self->ranks;

  if (!OPTION_WAS_GIVEN (self, ranks.partition)
      && ((OPTION_WAS_GIVEN (self, ranks.sequence_parallel) && ranks->sequence_parallel)
          || (OPTION_WAS_GIVEN (self, checkpoint) && strcmp (self->checkpoint, "full") != 0)))
    ranks->partition = FALSE;
  if (!OPTION_WAS_GIVEN (self, ranks.sequence_parallel) && OPTION_WAS_GIVEN (self, ranks.partition) && ranks->partition)
    ranks->sequence_parallel = FALSE;
  if (!OPTION_WAS_GIVEN (self, step_in_backward)
      && ((OPTION_WAS_GIVEN (self, clip) && self->clip > 0)
          || (OPTION_WAS_GIVEN (self, accumulate) && self->accumulate > 1)
          || (OPTION_WAS_GIVEN (self, micro_batch) && self->micro_batch > 0)))
    self->step_in_backward = FALSE;
}

gboolean
options_take_saved (Options *self,
                    const char *saved,
                    GError **error)
{
  RankOptions *ranks = &self->ranks;

  if (saved != NULL && !option_table_take_json (&self->state, saved, self->resume, error))
    return FALSE;
  settle (self);
  take_bytes_of_model (self, saved);
  if (self->program->tunes)
    {
      tuning_options_keep_best (self);
      if (saved != NULL)
        tuning_options_take_saved (self, saved);
    }
  if (ranks->tensor_parallel == 1) /* the number of ranks may differ from the saved one */
    {
      ranks->keeps_sequence_parallel = ranks->sequence_parallel;
      ranks->keeps_partition = ranks->partition;
      ranks->sequence_parallel = ranks->partition = FALSE;
    }
  self->saved_taken = TRUE;
  if (option_table_check (&self->state, error) && (!self->program->tunes || tuning_options_check (self, error))
      && find_kinds (self, error) && check_numbers (self, error)
      && check_pairs (self, error) && data_check (self, error))
    return TRUE;
  if (saved != NULL)
    g_prefix_error (error, "--resume %s: ", self->resume);
  return FALSE;
}

/* -- as they took effect ------------------------------------------------------------------------------------------- */

void
options_set_config (Options *self,
                    const EbbGptConfig *config)
{
  self->layers = config->layers;
  self->width = config->width;
  self->heads = config->heads;
  self->context = config->context;
  self->vocab = config->vocab;
  if (!self->changes_dropout)
    self->dropout = config->dropout > 0 ? config->dropout : MAX (config->attention_dropout, 0);
  self->tied = config->tied;
  self->bias = config->bias;
  self->norm_eps = config->norm_eps;
  self->activation = config->activation;
}

void
options_set_bert_config (Options *self,
                         const EbbBertConfig *config)
{
  self->layers = config->layers;
  self->width = config->width;
  self->heads = config->heads;
  self->context = config->context;
  self->vocab = config->vocab;
  self->dropout = config->dropout;
  self->tied = self->bias = TRUE;
  self->norm_eps = config->norm_eps;
  self->activation = EBB_ACTIVATION_GELU;
}

/* Sizes that a folder says instead of options: a resumed training compares them. */
static void
add_sizes (const Options *self,
           JsonBuilder *builder)
{
  const struct
  {
    const char *name;
    int size;
  } sizes[] = {
    { "layers", self->layers },
    { "width", self->width },
    { "heads", self->heads },
    { "vocab", self->vocab },
  };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    {
      json_builder_set_member_name (builder, sizes[i].name);
      json_builder_add_int_value (builder, sizes[i].size);
    }
}

static void
add_members (const Options *self,
             gboolean full_paths,
             JsonBuilder *builder)
{
  option_table_add_json (&self->state, full_paths, builder);
  if (self->program->tunes)
    {
      add_sizes (self, builder);
      json_builder_set_member_name (builder, "steps_by_epochs");
      json_builder_add_boolean_value (builder, self->steps_by_epochs);
    }
  json_builder_set_member_name (builder, "changes_dropout");
  json_builder_add_boolean_value (builder, self->changes_dropout);
  json_builder_set_member_name (builder, "reads_bytes");
  json_builder_add_boolean_value (builder, self->reads_bytes);
  json_builder_set_member_name (builder, "tied");
  json_builder_add_boolean_value (builder, self->tied);
  json_builder_set_member_name (builder, "bias");
  json_builder_add_boolean_value (builder, self->bias);
  json_builder_set_member_name (builder, "norm_eps");
  json_builder_add_double_value (builder, self->norm_eps);
  json_builder_set_member_name (builder, "gelu");
  json_builder_add_string_value (builder, self->activation == EBB_ACTIVATION_GELU_TANH ? "tanh" : "exact");
}

void
options_add_json (const Options *self,
                  JsonBuilder *builder)
{
  Options shown = *self;

  if (self->program->tunes && self->save == NULL)
    shown.save = self->save_best;
  json_builder_begin_object (builder);
  add_members (&shown, TRUE, builder);
  option_table_add_given (&self->state, builder);
  json_builder_end_object (builder);
}

char *
options_to_json (const Options *self)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  g_autoptr (JsonNode) root = NULL;
  Options kept = *self;

  kept.ranks.sequence_parallel |= self->ranks.keeps_sequence_parallel;
  kept.ranks.partition |= self->ranks.keeps_partition;
  json_builder_begin_object (builder);
  add_members (&kept, FALSE, builder);
  json_builder_end_object (builder);
  root = json_builder_get_root (builder);
  return json_to_string (root, FALSE);
}
