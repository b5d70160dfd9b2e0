/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

#include "command.h"
#include "output.h"
#include "remembered.h"
#include "store.h"

#include <math.h>
#include <string.h>

#define MAX_THREADS 1024
#define SIZE_NOT_GIVEN G_MININT
#define STEPS_NOT_GIVEN G_MININT64
#define STEPS 100
#define PROFILE_STEPS_NOT_GIVEN G_MININT64
#define PROFILE_STEPS 3

static const char *const dtype_names[] = { "f32", "bf16", NULL };
static const char *const moments_names[] = { "f32", "bf16", "8bit", NULL };
static const char *const checkpoint_names[] = { "none", "selective", "full", NULL };
static const char *const decayed_names[] = { "matrices", "all", NULL };
static const char *const schedule_names[] = { "constant", "cosine", NULL };

void
options_init (Options *self,
              const Program *program)
{
  *self = (Options){
    .program = program,
    .layers = SIZE_NOT_GIVEN,
    .width = SIZE_NOT_GIVEN,
    .heads = SIZE_NOT_GIVEN,
    .context = SIZE_NOT_GIVEN,
    .vocab = SIZE_NOT_GIVEN,
    .steps = STEPS_NOT_GIVEN,
    .seed = G_MININT64,
    .save_every = 500,
    .top_k = 40,
    .temperature = 0.8,
    .prefetch = 1,
    .profile_steps = PROFILE_STEPS_NOT_GIVEN,
  };
  rank_options_init (&self->ranks);
  remembered_init (self);
}

/* Texts have their defaults after the command line was read: GOption does not free what it replaces. */
static void
fill_texts (Options *self)
{
  const struct
  {
    char **text;
    const char *value;
  } defaults[] = {
    { &self->device, "cpu" },
    { &self->store_fallback, "none" },
    { &self->prompt, "\n" },
  };

  for (guint i = 0; i < G_N_ELEMENTS (defaults); i++)
    if (*defaults[i].text == NULL)
      *defaults[i].text = g_strdup (defaults[i].value);
}

void
options_clear (Options *self)
{
  char **texts[] = {
    &self->tokenizer, &self->preset, &self->schedule, &self->decayed, &self->dtype,
    &self->residual, &self->moments, &self->device, &self->checkpoint, &self->store,
    &self->store_folder, &self->store_fallback, &self->load, &self->save,
    &self->resume, &self->prompt, &self->report, &self->profile, &self->stream_trace,
    &self->memory_text, &self->store_limit_text
  };

  g_clear_pointer (&self->data, g_strfreev);
  for (guint i = 0; i < G_N_ELEMENTS (texts); i++)
    g_clear_pointer (texts[i], g_free);
  rank_options_clear (&self->ranks);
}

void
options_silence (Options *self)
{
  self->silenced = self->quiet = TRUE;
  g_clear_pointer (&self->report, g_free);
  g_clear_pointer (&self->profile, g_free);
  g_clear_pointer (&self->stream_trace, g_free);
}

gboolean
options_on_ranks (const Options *self)
{
  return self->program->on_ranks || self->ranks.tensor_parallel > 1 || self->ranks.n_ranks > 0;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static void
add_group (GOptionContext *context,
           const char *name,
           const char *title,
           const GOptionEntry *entries)
{
  GOptionGroup *group = g_option_group_new (name, title, "", NULL, NULL);

  g_option_group_add_entries (group, entries);
  g_option_context_add_group (context, group);
}

static void
add_data_and_model (GOptionContext *context,
                    Options *self)
{
  const GOptionEntry data[] = {
    { "data", 'd', 0, G_OPTION_ARG_FILENAME_ARRAY, &self->data, "UTF-8 text to train on; you may name several files",
      "FILE…" },
    { "tokenizer", 0, 0, G_OPTION_ARG_FILENAME, &self->tokenizer,
      "byte, or a folder with GPT-2's vocab.json and merges.txt (byte)", "byte|DIR" },
    { NULL }
  };
  const GOptionEntry model[] = {
    { "preset", 0, 0, G_OPTION_ARG_STRING, &self->preset,
      "Size of the model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl (tiny)", "NAME" },
    { "layers", 0, 0, G_OPTION_ARG_INT, &self->layers, "Number of transformer blocks (the preset's)", "N" },
    { "width", 0, 0, G_OPTION_ARG_INT, &self->width, "Size of a token's vector (the preset's)", "N" },
    { "heads", 0, 0, G_OPTION_ARG_INT, &self->heads, "Attention heads; the number must divide the width (the preset's)",
      "N" },
    { "context", 0, 0, G_OPTION_ARG_INT, &self->context, "Tokens in a row of text (the preset's)", "N" },
    { "vocab", 0, 0, G_OPTION_ARG_INT, &self->vocab,
      "Size of the vocabulary (the preset's, or else the tokenizer's: 256)", "N" },
    { "dropout", 0, 0, G_OPTION_ARG_DOUBLE, &self->dropout, "Probability of dropout (0.1)", "P" },
    { NULL }
  };

  add_group (context, "data", "Text:", data);
  add_group (context, "model", "Model:", model);
}

static void
add_training (GOptionContext *context,
              Options *self)
{
  const GOptionEntry entries[] = {
    { "steps", 'n', 0, G_OPTION_ARG_INT64, &self->steps,
      "Optimizer steps in all, including resumed ones (100; 0 with --load and --sample but no --data)", "N" },
    { "batch", 0, 0, G_OPTION_ARG_INT, &self->batch,
      self->program->on_ranks ? "Rows of text in a batch, of all ranks together (8)" : "Rows of text in a batch (8)",
      "N" },
    { "accumulate", 0, 0, G_OPTION_ARG_INT, &self->accumulate, "Batches whose gradients make one step (1)", "N" },
    { "lr", 0, 0, G_OPTION_ARG_DOUBLE, &self->lr, "Learning rate of AdamW (3e-4)", "X" },
    { "schedule", 0, 0, G_OPTION_ARG_STRING, &self->schedule,
      "How the learning rate changes: constant, cosine (constant)", "NAME" },
    { "warmup", 0, 0, G_OPTION_ARG_INT64, &self->warmup, "Steps over which the learning rate rises first (0)", "N" },
    { "min-lr", 0, 0, G_OPTION_ARG_DOUBLE, &self->min_lr, "Learning rate at the end of the cosine (0)", "X" },
    { "weight-decay", 0, 0, G_OPTION_ARG_DOUBLE, &self->weight_decay, "Decoupled weight decay (0.01)", "X" },
    { "decayed", 0, 0, G_OPTION_ARG_STRING, &self->decayed,
      "What weight decay applies to: matrices and embeddings, or norms and biases as well (matrices)", "matrices|all" },
    { "clip", 0, 0, G_OPTION_ARG_DOUBLE, &self->clip, "Clip the norm of all gradients to X; 0: don't clip (0)", "X" },
    { "seed", 0, 0, G_OPTION_ARG_INT64, &self->seed,
      "Seed of all random numbers: weights, order of the text, dropout (1)", "N" },
    { NULL }
  };

  add_group (context, "training", "Training:", entries);
}

static void
add_machine (GOptionContext *context,
             Options *self)
{
  const GOptionEntry entries[] = {
    { "checkpoint", 'c', 0, G_OPTION_ARG_STRING, &self->checkpoint,
      "Activation checkpointing per block: none, selective, full (none); on a terminal the run ends with a report",
      "KIND" },
    { "store", 0, 0, G_OPTION_ARG_STRING, &self->store,
      "Where saved activations wait for backward: keep: in place; host; disk; contiguous: in one buffer on the "
      "device; contiguous+host; contiguous+disk (keep)",
      "KIND" },
    { "store-folder", 0, 0, G_OPTION_ARG_FILENAME, &self->store_folder,
      "Folder of the disk store's file (the system's temporary folder)", "DIR" },
    { "store-limit", 0, 0, G_OPTION_ARG_STRING, &self->store_limit_text,
      "Limit of the bytes in the store, with or without a unit: 1.5GiB, 1500MB; 0: no limit (0)", "SIZE" },
    { "store-fallback", 0, 0, G_OPTION_ARG_STRING, &self->store_fallback,
      "Store for activations that the first store has no room for or can't write: none, keep, host, disk (none)",
      "KIND" },
    { "prefetch", 0, 0, G_OPTION_ARG_INT, &self->prefetch,
      "Fetch activations from the store this many blocks ahead of backward (1)", "N" },
    { "memory", 0, 0, G_OPTION_ARG_STRING, &self->memory_text,
      "Limit of the bytes of all tensors, with or without a unit: 1.5GiB, 1500MB; 0: the machine's memory (0)",
      "SIZE" },
    { "dtype", 0, 0, G_OPTION_ARG_STRING, &self->dtype,
      "Type to compute in: f32, or bf16 with f32 master weights (f32)", "NAME" },
    { "residual", 0, 0, G_OPTION_ARG_STRING, &self->residual,
      "Type of the residual stream with --dtype bf16: f32, or bf16, which halves it (f32)", "NAME" },
    { "moments", 0, 0, G_OPTION_ARG_STRING, &self->moments,
      "Type of AdamW's moments: f32, bf16 or 8bit, which take 8, 4 or 2 bytes a parameter (f32)", "NAME" },
    { "step-in-backward", 0, 0, G_OPTION_ARG_NONE, &self->step_in_backward,
      "Update each parameter as soon as its gradient is complete, and free the gradient (no)", NULL },
    { "device", 0, 0, G_OPTION_ARG_STRING, &self->device, command_describe_devices ("Device to train on", "cpu"),
      "NAME" },
    { "threads", 0, 0, G_OPTION_ARG_INT, &self->threads,
      self->program->on_ranks ? "Threads of each rank; 0: its share of the machine's cores (0)"
                              : "Number of threads; 0: one for each core (0)",
      "N" },
    { NULL }
  };

  add_group (context, "machine", "Memory and machine:", entries);
}

static void
add_files (GOptionContext *context,
           Options *self)
{
  const GOptionEntry files[] = {
    { "load", 0, 0, G_OPTION_ARG_FILENAME, &self->load,
      "Start from these weights: safetensors with GPT-2's names; the file, or the config.json beside it, gives the "
      "sizes that you don't",
      "FILE" },
    { "save", 0, 0, G_OPTION_ARG_FILENAME, &self->save, "Write the weights to FILE at the end", "FILE" },
    { "resume", 0, 0, G_OPTION_ARG_FILENAME, &self->resume,
      "Save the state of the training in DIR; if DIR has one, resume it, bit for bit and with its options", "DIR" },
    { "save-every", 0, 0, G_OPTION_ARG_INT64, &self->save_every,
      "Save the state every N steps; 0: only at the end and at Ctrl-C (500)", "N" },
    { NULL }
  };
  const GOptionEntry output[] = {
    { "sample", 's', 0, G_OPTION_ARG_INT, &self->sample, "Print N tokens of generated text at the end (0)", "N" },
    { "prompt", 0, 0, G_OPTION_ARG_FILENAME, &self->prompt, "Text that the generated text continues (a new line)",
      "TEXT" },
    { "temperature", 0, 0, G_OPTION_ARG_DOUBLE, &self->temperature,
      "Sampling temperature: lower is safer, higher is wilder (0.8)", "X" },
    { "top-k", 0, 0, G_OPTION_ARG_INT, &self->top_k, "Sample from the N likeliest tokens; 0: from all (40)", "N" },
    { "report", 'r', 0, G_OPTION_ARG_FILENAME, &self->report,
      "Write losses, times, memory and each block's checkpointing to FILE, as JSON", "FILE" },
    { "profile", 0, 0, G_OPTION_ARG_FILENAME, &self->profile,
      "Show where the time of a step goes, and write a trace to FILE for chrome://tracing or ui.perfetto.dev", "FILE" },
    { "profile-steps", 0, 0, G_OPTION_ARG_INT64, &self->profile_steps,
      "Profile N steps, from the third on, or the last ones of a shorter run (3)", "N" },
    { "stream-trace", 0, 0, G_OPTION_ARG_FILENAME, &self->stream_trace,
      "Write a trace of the device's queues in one step, the third or the last, to FILE", "FILE" },
    { "quiet", 'q', 0, G_OPTION_ARG_NONE, &self->quiet, "Print only errors and the generated text", NULL },
    COMMAND_ENTRIES (&self->version, &self->help),
    { NULL }
  };

  add_group (context, "files", "Files:", files);
  add_group (context, "output", "Output:", output);
}

static GOptionContext *
make_context (Options *self,
              char ***rest)
{
  GOptionContext *context = g_option_context_new (self->program->title);
  g_autoptr (GString) epilogue = g_string_new (self->program->epilogue);
  const GOptionEntry remaining[] = {
    { G_OPTION_REMAINING, 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_FILENAME_ARRAY, rest, NULL, NULL },
    { NULL }
  };

  g_option_context_set_help_enabled (context, FALSE);
  g_option_context_add_main_entries (context, remaining, NULL);
  add_data_and_model (context, self);
  add_training (context, self);
  if (self->program->on_ranks)
    rank_options_add_group (&self->ranks, context);
  rank_options_add_tensor_group (&self->ranks, self->program->on_ranks, context);
  add_machine (context, self);
  add_files (context, self);
  g_option_context_set_summary (context, "Defaults are in parentheses.");
  g_string_replace (epilogue, "PROGRAM", g_get_prgname (), 0);
  g_option_context_set_description (context, epilogue->str);
  return context;
}

char *
options_get_help (const Program *program)
{
  Options options;
  char **rest = NULL;
  g_autoptr (GOptionContext) context = NULL;
  char *help;

  options_init (&options, program);
  context = make_context (&options, &rest);
  help = command_get_help (context);
  options_clear (&options);
  return help;
}

/* -- checking ------------------------------------------------------------------------------------------------------ */

gboolean
options_refuse (GError **error,
                const char *format,
                ...)
{
  va_list args;
  g_autofree char *text = NULL;

  va_start (args, format);
  text = g_strdup_vprintf (format, args);
  va_end (args);
  g_set_error_literal (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, text);
  return FALSE;
}

gboolean
options_check_name (const char *option,
                    const char *value,
                    const char *const *names,
                    GError **error)
{
  g_autofree char *known = NULL;

  if (g_strv_contains (names, value))
    return TRUE;
  known = g_strjoinv (", ", (char **) names);
  return options_refuse (error, "--%s %s: it must be one of %s", option, value, known);
}

static gboolean
check_integers (const Options *self,
                GError **error)
{
  const struct
  {
    const char *option;
    gint64 value, least, most;
  } ranges[] = {
    { "batch", self->batch, 1, G_MAXINT },
    { "accumulate", self->accumulate, 1, G_MAXINT },
    { "steps", self->steps, 0, G_MAXINT64 },
    { "warmup", self->warmup, 0, G_MAXINT64 },
    { "seed", self->seed, 0, G_MAXINT64 },
    { "threads", self->threads, 0, MAX_THREADS },
    { "prefetch", self->prefetch, 0, G_MAXINT },
    { "save-every", self->save_every, 0, G_MAXINT64 },
    { "sample", self->sample, 0, G_MAXINT },
    { "top-k", self->top_k, 0, G_MAXINT },
    { "profile-steps", self->profile_steps, 1, G_MAXINT64 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (ranges); i++)
    {
      if (ranges[i].value > ranges[i].most)
        return options_refuse (error, "--%s %" G_GINT64_FORMAT ": it must be at most %" G_GINT64_FORMAT,
                               ranges[i].option, ranges[i].value, ranges[i].most);
      if (ranges[i].value < ranges[i].least)
        return options_refuse (error, "--%s %" G_GINT64_FORMAT ": it must be at least %" G_GINT64_FORMAT,
                               ranges[i].option, ranges[i].value, ranges[i].least);
    }
  return TRUE;
}

static gboolean
check_numbers (const Options *self,
               GError **error)
{
  const struct
  {
    const char *option;
    double value;
  } numbers[] = {
    { "lr", self->lr },
    { "min-lr", self->min_lr },
    { "weight-decay", self->weight_decay },
    { "clip", self->clip },
    { "temperature", self->temperature },
    { "dropout", self->dropout },
  };

  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (!isfinite (numbers[i].value) || numbers[i].value < 0)
      return options_refuse (error, "--%s %g: it must be 0 or more", numbers[i].option, numbers[i].value);
  if (self->dropout >= 1)
    return options_refuse (error, "--dropout %g: it must be below 1", self->dropout);
  /* In a training that is resumed either may be the saved one. */
  if (self->min_lr > self->lr && (self->resume == NULL || self->saved_taken))
    return options_refuse (error, "--min-lr %g: it must be at most --lr %g", self->min_lr, self->lr);
  return TRUE;
}

static gboolean
check_files (const Options *self,
             GError **error)
{
  const struct
  {
    const char *option, *value;
  } files[] = {
    { "tokenizer", self->tokenizer },
    { "load", self->load },
    { "save", self->save },
    { "resume", self->resume },
    { "report", self->report },
    { "profile", self->profile },
    { "stream-trace", self->stream_trace },
    { "store-folder", self->store_folder },
  },
    written[] = {
      { "save", self->save },
      { "report", self->report },
      { "profile", self->profile },
      { "stream-trace", self->stream_trace },
    };

  for (guint i = 0; i < G_N_ELEMENTS (files); i++)
    if (files[i].value != NULL && files[i].value[0] == '\0')
      return options_refuse (error, "--%s: a name is missing", files[i].option);
  for (guint i = 0; i < G_N_ELEMENTS (written); i++)
    for (guint j = 0; j < i; j++)
      if (written[i].value != NULL && written[j].value != NULL && strcmp (written[i].value, written[j].value) == 0)
        return options_refuse (error, "--%s and --%s both name %s: they must be two files", written[j].option,
                               written[i].option, written[i].value);
  if (self->profile != NULL && self->steps == 0)
    return options_refuse (error, "--profile %s: with --steps 0 there is no step to profile", self->profile);
  if (self->stream_trace != NULL && self->steps == 0)
    return options_refuse (error, "--stream-trace %s: with --steps 0 there is no step to trace", self->stream_trace);
  if (self->data == NULL && self->steps > 0)
    return options_refuse (error, "--data is missing: name a text to train on");
  return TRUE;
}

int
options_find_name (const char *const *names,
                   const char *name)
{
  int index = 0;

  while (names[index] != NULL && strcmp (names[index], name) != 0)
    index++;
  return index;
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

/* Names that may come from the command line or from the state that is resumed. */
static gboolean
check_names (const Options *self,
             GError **error)
{
  return options_check_name ("dtype", self->dtype, dtype_names, error)
         && options_check_name ("residual", self->residual, dtype_names, error)
         && options_check_name ("moments", self->moments, moments_names, error)
         && options_check_name ("schedule", self->schedule, schedule_names, error)
         && options_check_name ("decayed", self->decayed, decayed_names, error);
}

/* What can't be had together; in a training that is resumed some of it may be the saved one. */
static gboolean
check_pairs (const Options *self,
             GError **error)
{
  if (self->resume != NULL && !self->saved_taken)
    return TRUE;
  if (strcmp (self->residual, "bf16") == 0 && strcmp (self->dtype, "bf16") != 0)
    return options_refuse (error, "--residual bf16: it needs --dtype bf16, not %s", self->dtype);
  if (self->step_in_backward && self->clip > 0)
    return options_refuse (error, "--step-in-backward and --clip %g: the norm needs all gradients at once", self->clip);
  if (self->step_in_backward && self->accumulate > 1)
    return options_refuse (error,
                           "--step-in-backward and --accumulate %d: batches that are summed need gradients that stay",
                           self->accumulate);
  return TRUE;
}

/* What was typed for a size. One that was not given is 0 from here on, which nobody can type. */
static gboolean
take_sizes (Options *self,
            GError **error)
{
  const struct
  {
    const char *option;
    int *value;
  } sizes[] = {
    { "layers", &self->layers },
    { "width", &self->width },
    { "heads", &self->heads },
    { "context", &self->context },
    { "vocab", &self->vocab },
  };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    if (*sizes[i].value == SIZE_NOT_GIVEN)
      *sizes[i].value = 0;
    else if (*sizes[i].value < 1)
      return options_refuse (error, "--%s %d: it must be at least 1", sizes[i].option, *sizes[i].value);
  return TRUE;
}

/* Weights that are only sampled from need no text and no steps. */
static void
take_steps (Options *self)
{
  if (self->steps == STEPS_NOT_GIVEN)
    self->steps = self->data == NULL && self->load != NULL && self->sample > 0 ? 0 : STEPS;
}

static gboolean
take_bytes (Options *self,
            GError **error)
{
  return (self->memory_text == NULL || command_parse_size ("memory", self->memory_text, &self->memory, error))
         && (self->store_limit_text == NULL
             || command_parse_size ("store-limit", self->store_limit_text, &self->store_limit, error));
}

static gboolean
take_profile_steps (Options *self,
                    GError **error)
{
  if (self->profile_steps == PROFILE_STEPS_NOT_GIVEN)
    self->profile_steps = PROFILE_STEPS;
  else if (self->profile == NULL)
    return options_refuse (error, "--profile-steps %" G_GINT64_FORMAT ": it needs --profile FILE", self->profile_steps);
  return TRUE;
}

/* In a training that is resumed not all is known at first. */
static gboolean
check_ranks (Options *self,
             gboolean all_known,
             GError **error)
{
  RankOptions *ranks = &self->ranks;

  if (!(self->program->on_ranks ? rank_options_check (ranks, all_known, error)
                                : rank_options_check_alone (ranks, error)))
    return FALSE;
  if (ranks->nesting_given && all_known && self->checkpoint_kind == CHECKPOINT_NONE)
    return options_refuse (error, "--nesting %s: it needs --checkpoint selective or full", ranks->nesting);
  return rank_options_check_tensor (ranks, !all_known || self->checkpoint_kind == CHECKPOINT_FULL, error);
}

/* Checks what blocks forget, who shares what, and where the rest waits. */
static gboolean
find_kinds (Options *self,
            GError **error)
{
  if (!options_check_name ("checkpoint", self->checkpoint, checkpoint_names, error))
    return FALSE;
  self->checkpoint_kind = (CheckpointKind) options_find_name (checkpoint_names, self->checkpoint);
  return check_ranks (self, self->resume == NULL || self->saved_taken, error) && store_check (self, error);
}

/* What ranks have saved in parts goes on here with one rank that has all of them. */
static gboolean
take_parts (Options *self,
            GError **error)
{
  guint found = 0;

  if (!options_on_ranks (self) && !output_find_state (self->resume, &found, error))
    return FALSE;
  if ((found & FOUND_INDEX) != 0)
    self->ranks.n_ranks = 1;
  return TRUE;
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  g_auto (GStrv) words = g_new0 (char *, (gsize) argc + 1);
  g_auto (GStrv) rest = NULL;
  g_autoptr (GOptionContext) context = make_context (self, &rest);

  for (int i = 0; i < argc; i++)
    words[i] = g_strdup (argv[i]);
  if (!g_option_context_parse_strv (context, &words, error))
    return FALSE;
  if (self->help || self->version)
    return TRUE;
  fill_texts (self);
  remembered_fill (self);
  if (rest != NULL)
    take_rest (self, rest);
  take_steps (self);
  self->seed_given = self->seed != G_MININT64;
  if (!self->seed_given)
    self->seed = 1;
  if (!rank_options_fill (&self->ranks, error) || !take_sizes (self, error) || !take_bytes (self, error)
      || !take_profile_steps (self, error)
      || !check_names (self, error) || !find_kinds (self, error)
      || (self->preset != NULL
          && !options_check_name ("preset", self->preset, ebb_gpt_config_get_preset_names (), error))
      || !check_integers (self, error) || !check_numbers (self, error) || !check_pairs (self, error)
      || !check_files (self, error))
    return FALSE;
  return take_parts (self, error);
}

gboolean
options_take_saved (Options *self,
                    const char *saved,
                    GError **error)
{
  RankOptions *ranks = &self->ranks;

  if (saved != NULL && !remembered_take (self, saved, error))
    return FALSE;
  remembered_settle (self);
  if (ranks->tensor_parallel == 1) /* as many ranks as it takes now, whatever it had */
    {
      ranks->keeps_sequence_parallel = ranks->sequence_parallel;
      ranks->keeps_partition = ranks->partition;
      ranks->sequence_parallel = ranks->partition = FALSE;
    }
  self->saved_taken = TRUE;
  if (check_names (self, error) && find_kinds (self, error) && check_integers (self, error)
      && check_numbers (self, error) && check_pairs (self, error))
    return TRUE;
  if (saved != NULL)
    g_prefix_error (error, "--resume %s: ", self->resume);
  return FALSE;
}
