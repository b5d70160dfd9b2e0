/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/option-table.h"
#include "common/options/rank-options.h"
#include "common/program.h"

#include <ebb/ebb.h>
#include <json-glib/json-glib.h>

/* The command line. Sizes that were not given are 0 until the model's configuration is known; then they are the
 * configuration's. */

G_BEGIN_DECLS

#define DEFAULT_PRESET "tiny"

typedef enum
{
  CHECKPOINT_NONE,
  CHECKPOINT_SELECTIVE,
  CHECKPOINT_FULL,
  CHECKPOINT_AUTO /* as the plan for the memory says */
} CheckpointKind;

struct _Options
{
  OptionState state; /* first */
  const Program *program;

  /* data */
  char **data;
  char *tokenizer, *eval;
  gboolean pack;
  gint64 eval_every;

  /* model */
  char *preset;
  int layers, width, heads, context, vocab;
  double dropout;
  gboolean changes_dropout; /* of the folder of --model */
  gboolean reads_bytes;     /* --model is trained on bytes, not with its folder's tokenizer */
  gboolean tied, bias;      /* these and the next two come from the file of --load */
  double norm_eps;
  EbbActivation activation;

  /* adapter */
  int lora; /* the rank of a new adapter; 0: no new adapter */
  char *lora_targets, *adapter, *merge, *base;
  double lora_alpha, lora_dropout;
  gboolean rslora;

  /* training */
  double epochs;
  gboolean steps_by_epochs; /* steps are what epochs make of the data, once that is open */
  int batch, micro_batch, accumulate;
  gint64 steps, warmup, seed;
  double lr, min_lr, weight_decay, clip;
  char *schedule, *decayed;
  gboolean saved_taken;

  /* machine and memory */
  char *allow;
  char *dtype, *weights, *rounding, *residual, *moments, *device, *checkpoint, *store, *store_folder, *store_fallback;
  char *memory_text, *store_limit_text, *loss_chunk_text; /* as they were typed, for the messages */
  guint64 memory, store_limit, loss_chunk;                /* bytes; 0: no budget, no limit, the device's choice */
  gboolean memory_is_auto;                                /* the budget is all that is free */
  gboolean step_in_backward, estimate;
  int threads, prefetch;
  CheckpointKind checkpoint_kind;

  /* files */
  char *model, *load, *save, *save_best, *resume, *plan;
  gboolean overwrite;
  gint64 save_every;

  RankOptions ranks; /* of a program on ranks */
  gboolean silenced;
  gboolean all_quiet; /* of a silenced rank: the first one is quiet, too */

  /* output */
  int sample, top_k;
  double temperature;
  char *prompt, *report, *log;
  gboolean quiet;

  /* profile */
  char *profile, *stream_trace, *memory_timeline;
  gint64 profile_steps;
};

void options_init (Options *self,
                   const Program *program);
void options_clear (Options *self);

/* Whether the program trains on many ranks. */
gboolean options_on_ranks (const Options *self);

/* Whether an adapter is trained instead of the weights. */
gboolean options_have_adapter (const Options *self);

/* Whether a plan keeps the training within a budget. */
gboolean options_have_plan (const Options *self);

/* Reads and checks the command line; FALSE with an error for the user. */
gboolean options_parse (Options *self,
                        int argc,
                        char **argv,
                        GError **error);

/* Takes options that the command line left out from @saved, the options_to_json () of the resumed training; NULL: there
 * is none. */
gboolean options_take_saved (Options *self,
                             const char *saved,
                             GError **error);
/* The type of the model's parameters. */
EbbDType options_get_weights_dtype (const Options *self);
EbbWeightRounding options_get_rounding (const Options *self);
/* For a rank whose output the first one prints. */
void options_silence (Options *self);
/* Takes over the sizes that took effect. */
void options_set_config (Options *self,
                         const EbbGptConfig *config);
void options_set_bert_config (Options *self,
                              const EbbBertConfig *config);
/* Adds an object with every option as it took effect, and with the names of those that were typed. */
void options_add_json (const Options *self,
                       JsonBuilder *builder);
/* Every option as text, for the state of the training. */
char *options_to_json (const Options *self);

extern const OptionRow gpt_options[];
extern const OptionStatus gpt_statuses[];

G_END_DECLS
