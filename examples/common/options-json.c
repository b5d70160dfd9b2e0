/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* The options as JSON, for reports and saved states. */
#include "options.h"

void
options_set_config (Options *self,
                    const EbbGptConfig *config)
{
  self->layers = config->layers;
  self->width = config->width;
  self->heads = config->heads;
  self->context = config->context;
  self->vocab = config->vocab;
  self->dropout = config->dropout;
  self->tied = config->tied;
  self->bias = config->bias;
  self->norm_eps = config->norm_eps;
  self->gelu = config->gelu;
}

static void
add_text (JsonBuilder *builder,
          const char *name,
          const char *value)
{
  g_autofree char *text = value != NULL ? g_utf8_make_valid (value, -1) : NULL;

  json_builder_set_member_name (builder, name);
  if (text != NULL)
    json_builder_add_string_value (builder, text);
  else
    json_builder_add_null_value (builder);
}

static void
add_integer (JsonBuilder *builder,
             const char *name,
             gint64 value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_int_value (builder, value);
}

static void
add_number (JsonBuilder *builder,
            const char *name,
            double value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_double_value (builder, value);
}

static void
add_flag (JsonBuilder *builder,
          const char *name,
          gboolean value)
{
  json_builder_set_member_name (builder, name);
  json_builder_add_boolean_value (builder, value);
}

static void
add_model_json (const Options *self,
                JsonBuilder *builder)
{
  json_builder_set_member_name (builder, "data");
  json_builder_begin_array (builder);
  for (guint i = 0; self->data != NULL && self->data[i] != NULL; i++)
    {
      g_autofree char *name = g_filename_display_name (self->data[i]);

      json_builder_add_string_value (builder, name);
    }
  json_builder_end_array (builder);
  add_text (builder, "tokenizer", self->tokenizer);
  add_text (builder, "preset", self->preset);
  add_integer (builder, "layers", self->layers);
  add_integer (builder, "width", self->width);
  add_integer (builder, "heads", self->heads);
  add_integer (builder, "context", self->context);
  add_integer (builder, "vocab", self->vocab);
  add_number (builder, "dropout", self->dropout);
  add_flag (builder, "tied", self->tied);
  add_flag (builder, "bias", self->bias);
  add_number (builder, "norm_eps", self->norm_eps);
  add_text (builder, "gelu", self->gelu == EBB_GELU_TANH ? "tanh" : "exact");
}

static void
add_training_json (const Options *self,
                   JsonBuilder *builder)
{
  add_integer (builder, "steps", self->steps);
  add_integer (builder, "batch", self->batch);
  add_integer (builder, "accumulate", self->accumulate);
  add_number (builder, "lr", self->lr);
  add_text (builder, "schedule", self->schedule);
  add_integer (builder, "warmup", self->warmup);
  add_number (builder, "min_lr", self->min_lr);
  add_number (builder, "weight_decay", self->weight_decay);
  add_text (builder, "decayed", self->decayed);
  add_number (builder, "clip", self->clip);
  add_integer (builder, "seed", self->seed);
  add_text (builder, "checkpoint", self->checkpoint);
  add_text (builder, "store", self->store);
  add_text (builder, "store_folder", self->store_folder);
  add_integer (builder, "store_limit", (gint64) self->store_limit);
  add_text (builder, "store_fallback", self->store_fallback);
  add_integer (builder, "prefetch", self->prefetch);
  add_integer (builder, "memory", (gint64) self->memory);
  add_text (builder, "dtype", self->dtype);
  add_text (builder, "residual", self->residual);
  add_text (builder, "moments", self->moments);
  add_flag (builder, "step_in_backward", self->step_in_backward);
  add_integer (builder, "tensor_parallel", self->ranks.tensor_parallel);
  add_flag (builder, "sequence_parallel", self->ranks.sequence_parallel);
  add_flag (builder, "partition", self->ranks.partition);
  add_text (builder, "device", self->device);
  add_integer (builder, "threads", self->threads);
}

static void
add_file_json (const Options *self,
               JsonBuilder *builder)
{
  add_text (builder, "load", self->load);
  add_text (builder, "save", self->save);
  add_text (builder, "resume", self->resume);
  add_integer (builder, "save_every", self->save_every);
  add_integer (builder, "sample", self->sample);
  add_text (builder, "prompt", self->prompt);
  add_number (builder, "temperature", self->temperature);
  add_integer (builder, "top_k", self->top_k);
  add_text (builder, "report", self->report);
  add_text (builder, "profile", self->profile);
  add_text (builder, "stream_trace", self->stream_trace);
  add_integer (builder, "profile_steps", self->profile_steps);
  add_flag (builder, "quiet", self->quiet);
  if (self->program->on_ranks)
    rank_options_add_json (&self->ranks, builder);
}

void
options_add_json (const Options *self,
                  JsonBuilder *builder)
{
  json_builder_begin_object (builder);
  add_model_json (self, builder);
  add_training_json (self, builder);
  add_file_json (self, builder);
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
  options_add_json (&kept, builder);
  root = json_builder_get_root (builder);
  return json_to_string (root, FALSE);
}
