/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Makes the model that the options describe, and reads and writes its files. */
#include "common/train/model.h"

#include "common/memory/concessions.h"
#include "common/ranks/shard.h"
#include "common/train/store.h"
#include "common/train/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct
{
  int layers, width, heads, context, vocab;
  double norm_eps; /* 0: an old state doesn't say */
} Sizes;

gboolean
model_check_remembered (const Options *options,
                        const char *saved,
                        GError **error)
{
  const struct
  {
    const char *name, *folder;
    gboolean is_given;
  } folders[] = {
    { "model", options->model, OPTION_WAS_GIVEN (options, model) },
    { "adapter", options->adapter, OPTION_WAS_GIVEN (options, adapter) },
    { "tokenizer", strcmp (options->tokenizer, "byte") == 0 ? "" : options->tokenizer,
      OPTION_WAS_GIVEN (options, tokenizer) },
  };

  for (guint i = 0; saved != NULL && i < G_N_ELEMENTS (folders); i++)
    if (*folders[i].folder != '\0' && !folders[i].is_given && !g_file_test (folders[i].folder, G_FILE_TEST_EXISTS))
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                     "--resume %s: the training was begun with --%s %s, and there is no such %s: say where it is by "
                     "--%s",
                     options->resume, folders[i].name, folders[i].folder,
                     g_str_has_suffix (folders[i].folder, ".gguf") ? "file" : "folder", folders[i].name);
        return FALSE;
      }
  return TRUE;
}

/* -- sizes --------------------------------------------------------------------------------------------------------- */

/* The path of the config.json beside the file of --load; NULL if no such file exists. */
static char *
find_beside (const Options *options)
{
  g_autofree char *folder = g_path_get_dirname (options->load);
  g_autofree char *path = g_build_filename (folder, "config.json", NULL);

  return access (path, F_OK) == 0 || errno != ENOENT ? g_steal_pointer (&path) : NULL;
}

/* Weights have the same shapes with any number of heads. */
static gboolean
check_heads (const Options *options,
             int heads,
             GError **error)
{
  if (heads > 0 || options->heads > 0 || options->preset != NULL)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "--load %s: nothing says how many heads there are: --heads, or a config.json beside it, must",
               options->load);
  return FALSE;
}

/* The configuration in the file of --load and in a config.json beside it. */
static EbbGptConfig *
read_weights (const Options *options,
              EbbArgs *weights,
              EbbArgs *metadata,
              GError **error)
{
  g_autofree char *path = find_beside (options);
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_from_gpt2 (weights, metadata, path, error);

  if (config == NULL)
    g_prefix_error (error, "--load %s: ", options->load);
  return config != NULL && check_heads (options, config->heads, error) ? g_steal_pointer (&config) : NULL;
}

/* Takes what a config.json beside the file of --load says, for a file of BERT's weights says nothing. */
static gboolean
take_beside (const Options *options,
             EbbBertConfig *config,
             GError **error)
{
  g_autofree char *path = find_beside (options);
  g_autofree char *folder = path != NULL ? g_path_get_dirname (path) : NULL;
  g_autoptr (EbbModule) model = NULL;
  g_autoptr (EbbBertConfig) beside = NULL;

  if (path == NULL)
    return check_heads (options, 0, error);
  ebb_push_dry_run (); /* reads no weight */
  model = ebb_model_open (folder, error);
  ebb_pop_dry_run ();
  if (model != NULL && !EBB_IS_BERT (model))
    g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "%s: it is of no masked language model", path);
  if (model == NULL || !EBB_IS_BERT (model))
    {
      g_prefix_error (error, "--load %s: ", options->load);
      return FALSE;
    }
  beside = ebb_bert_get_config (EBB_BERT (model));
  config->norm_eps = beside->norm_eps;
  if (options->preset != NULL)
    return TRUE;
  config->layers = beside->layers;
  config->width = beside->width;
  config->heads = beside->heads;
  config->context = beside->context;
  config->vocab = beside->vocab;
  return TRUE;
}

/* Sizes of the preset replace the file's. */
static void
take_preset (const Options *options,
             EbbGptConfig *config)
{
  g_autoptr (EbbGptConfig) preset = options->preset != NULL ? ebb_gpt_config_new_preset (options->preset) : NULL;

  if (preset == NULL)
    return;
  config->layers = preset->layers;
  config->width = preset->width;
  config->heads = preset->heads;
  config->context = preset->context;
  config->vocab = preset->vocab;
}

/* Fields that no option sets and old states lack. */
static void
take_saved_form (EbbGptConfig *config,
                 JsonObject *saved)
{
  const char *gelu = json_object_get_string_member_with_default (saved, "gelu", "tanh");

  config->tied = json_object_get_boolean_member_with_default (saved, "tied", TRUE);
  config->bias = json_object_get_boolean_member_with_default (saved, "bias", TRUE);
  config->norm_eps = json_object_get_double_member_with_default (saved, "norm_eps", 1e-5);
  config->activation = g_strcmp0 (gelu, "exact") == 0 ? EBB_ACTIVATION_GELU : EBB_ACTIVATION_GELU_TANH;
}

static gboolean
read_saved_sizes (const char *saved,
                  const Options *options,
                  Sizes *sizes,
                  EbbGptConfig *config, /* may be NULL */
                  GError **error)
{
  g_autoptr (JsonNode) root = option_table_parse_json (saved);
  JsonObject *object;
  const struct
  {
    const char *name;
    int *size;
    int given;
  } members[] = {
    { "layers", &sizes->layers, options->layers },
    { "width", &sizes->width, options->width },
    { "heads", &sizes->heads, options->heads },
    { "context", &sizes->context, options->context },
    { "vocab", &sizes->vocab, options->vocab },
  };

  if (root == NULL)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "--resume %s: that state was not saved by %s", options->resume,
                   g_get_prgname ());
      return FALSE;
    }
  object = json_node_get_object (root);
  for (guint i = 0; i < G_N_ELEMENTS (members); i++)
    {
      *members[i].size =
          (int) CLAMP (json_object_get_int_member_with_default (object, members[i].name, 0), 0, G_MAXINT);
      if (members[i].given != 0 && members[i].given != *members[i].size)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                       "--%s %d: the training in %s has %d: leave the option out, or name another folder",
                       members[i].name, members[i].given, options->resume, *members[i].size);
          return FALSE;
        }
    }
  sizes->norm_eps = json_object_get_double_member_with_default (object, "norm_eps", 0);
  if (config != NULL)
    take_saved_form (config, object);
  return TRUE;
}

/* Sizes of the command line replace saved ones, and those the preset's. */
#define TAKE(size)                         \
  if (options->size > 0 || sizes.size > 0) \
  config->size = options->size > 0 ? options->size : sizes.size

static gboolean
check_vocab (const Options *options,
             int vocab,
             guint n_tokens,
             GError **error)
{
  if ((guint) vocab >= n_tokens)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "a vocabulary of %d: %s %s has %u tokens, so %s must be at least that", vocab,
               tokenizer_is_of_model (options) ? "the tokenizer of" : "--tokenizer",
               tokenizer_is_of_model (options) ? options->model : options->tokenizer, n_tokens,
               options->model[0] != '\0' ? "the model's" : "--vocab");
  return FALSE;
}

/* The model of the default preset has the vocabulary of its tokenizer, whether --preset names it or not. */
static gboolean
is_default_preset (const Options *options)
{
  return options->preset == NULL || strcmp (options->preset, DEFAULT_PRESET) == 0;
}

static EbbGptConfig *
find_gpt (const Options *options,
          guint n_tokens,
          EbbArgs *weights,
          EbbArgs *metadata,
          const char *saved,
          GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;
  Sizes sizes = { 0 };

  config = weights != NULL ? read_weights (options, weights, metadata, error)
                           : ebb_gpt_config_new_preset (options->preset != NULL ? options->preset : DEFAULT_PRESET);
  if (config == NULL || (saved != NULL && !read_saved_sizes (saved, options, &sizes, config, error)))
    return NULL;
  take_preset (options, config);
  if (is_default_preset (options) && options->vocab == 0 && sizes.vocab == 0 && weights == NULL)
    config->vocab = (int) n_tokens;
  TAKE (layers);
  TAKE (width);
  TAKE (heads);
  TAKE (context);
  TAKE (vocab);
  if (weights == NULL || OPTION_WAS_GIVEN (options, dropout))
    {
      config->dropout = options->dropout;
      config->attention_dropout = -1;
    }
  if (strcmp (options->residual, "bf16") == 0)
    config->residual_dtype = EBB_DTYPE_BF16;
  return ebb_gpt_config_check (config, error) && check_vocab (options, config->vocab, n_tokens, error)
             ? g_steal_pointer (&config)
             : NULL;
}

static EbbBertConfig *
find_bert (const Options *options,
           guint n_tokens,
           gboolean is_loaded,
           const char *saved,
           GError **error)
{
  g_autoptr (EbbBertConfig) config =
      ebb_bert_config_new_preset (options->preset != NULL ? options->preset : DEFAULT_PRESET);
  Sizes sizes = { 0 };

  if (saved != NULL && !read_saved_sizes (saved, options, &sizes, NULL, error))
    return NULL;
  if (sizes.norm_eps > 0)
    config->norm_eps = sizes.norm_eps;
  if (is_default_preset (options) && options->vocab == 0 && sizes.vocab == 0)
    config->vocab = (int) n_tokens;
  if (is_loaded && !take_beside (options, config, error))
    return NULL;
  TAKE (layers);
  TAKE (width);
  TAKE (heads);
  TAKE (context);
  TAKE (vocab);
  config->hidden = 4 * config->width;
  config->dropout = options->dropout;
  return ebb_bert_config_check (config, error) && check_vocab (options, config->vocab, n_tokens, error)
             ? g_steal_pointer (&config)
             : NULL;
}

#undef TAKE

/* The number of tokens that a model needs: those of the tokenizer, and a mask if it has none. */
static guint
count_tokens (const Options *options,
              EbbTokenizer *tokenizer)
{
  const guint n = ebb_tokenizer_get_vocab_size (tokenizer);

  return n + (options->program->is_masked && ebb_tokenizer_get_special_token (tokenizer, EBB_SPECIAL_TOKEN_MASK) < 0);
}

/* The dtype that the weights of a GGUF file get. */
static int
find_file_dtype (const char *path)
{
  g_autoptr (EbbModule) model = NULL;
  g_autofree EbbTensor **parameters = NULL;
  guint n = 0;

  ebb_push_dry_run (); /* reads no weight */
  model = ebb_model_open (path, NULL);
  ebb_pop_dry_run ();
  parameters = model != NULL ? ebb_module_get_parameters (model, TRUE, &n) : NULL;
  return n > 0 ? (int) ebb_tensor_get_dtype (parameters[0]) : EBB_DTYPE_F32;
}

/* The dtype of the weights in the folder of --model, which is saved, whatever --weights they are trained in. */
static int
find_folder_dtype (const Options *options)
{
  if (g_str_has_suffix (options->model, ".gguf"))
    return find_file_dtype (options->model);

  g_autofree char *path = g_build_filename (options->model, "config.json", NULL);
  g_autoptr (JsonNode) root = option_table_read_json (path);
  const char *name = NULL;

  if (root != NULL)
    name = option_table_get_text (root, "dtype", option_table_get_text (root, "torch_dtype", NULL));
  return g_strcmp0 (name, "bfloat16") == 0 ? EBB_DTYPE_BF16 : EBB_DTYPE_F32;
}

/* A model is tuned in the types in which it was trained: what it computes in, and its weights. Below an adapter these
 * don't move, so they need no rounding. */
static gboolean
take_folder_dtypes (Options *options,
                    gboolean is_resumed,
                    GError **error)
{
  const gboolean is_frozen = options_have_adapter (options), is_bf16 = find_folder_dtype (options) == EBB_DTYPE_BF16;

  if (!is_resumed && !OPTION_WAS_GIVEN (options, dtype))
    {
      g_free (options->dtype);
      options->dtype = g_strdup (is_bf16 ? "bf16" : "f32");
    }
  if (!is_resumed && !OPTION_WAS_GIVEN (options, weights) && is_bf16
      && (is_frozen
          || (strcmp (options->dtype, "bf16") == 0 && concessions_may_take (options, EBB_CONCESSIONS_BF16_WEIGHTS))))
    {
      g_free (options->weights);
      options->weights = g_strdup ("bf16");
    }
  if (!is_frozen && strcmp (options->weights, "bf16") == 0 && strcmp (options->dtype, "bf16") != 0)
    return options_refuse (error, "--weights bf16: it needs --dtype bf16, not %s", options->dtype);
  if (strcmp (options->rounding, "random") != 0 && (is_frozen || strcmp (options->weights, "bf16") != 0))
    return options_refuse (error, "--rounding %s: %s", options->rounding,
                           is_frozen ? "the weights below an adapter don't move: leave it out"
                                     : "it needs --weights bf16, not f32");
  return TRUE;
}

/* Opens the folder of --model in the type of --weights; below an adapter, tensors of other types keep
 * theirs. */
static gboolean
open_folder (const Options *options,
             ModelSource *source,
             GError **error)
{
  const int dtype = (int) options_get_weights_dtype (options);
  EbbQuantization base = EBB_QUANTIZATION_NONE;

  if (strcmp (options->base, "auto") != 0 && !ebb_quantization_from_name (options->base, &base, error))
    return FALSE;
  source->opened = ebb_model_open_quantized (
      options->model,
      options_have_adapter (options) && dtype == find_folder_dtype (options) ? EBB_MODEL_KEEP_DTYPE : dtype, base,
      error);
  if (source->opened == NULL)
    return FALSE;
  if (EBB_IS_BERT (source->opened) != options->program->is_masked)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--model %s: it has %s model: train it by %s",
                   options->model, options->program->is_masked ? "no masked" : "a masked language",
                   options->program->is_masked ? "train_gpt" : "train_bert");
      return FALSE;
    }
  base = ebb_get_quantization (source->opened);
  if (base != EBB_QUANTIZATION_NONE && options->steps > 0 && !options_have_adapter (options))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "--model %s: its weights are %s and have no gradient: %s", options->model,
                   ebb_quantization_get_name (base),
                   options->program->tunes ? "it needs --lora RANK or --adapter DIR"
                                           : "train an adapter over them by finetune");
      return FALSE;
    }
  ebb_module_set_training (source->opened, TRUE);
  if (options->program->is_masked)
    source->bert = ebb_bert_get_config (EBB_BERT (source->opened));
  else
    source->gpt = ebb_gpt_get_config (EBB_GPT (source->opened));
  return TRUE;
}

/* Whether the folder has the model that the resumed training was begun with, as far as sizes say it. */
static gboolean
check_same_model (const Options *options,
                  const Sizes *saved,
                  const ModelSource *source,
                  GError **error)
{
  const EbbGptConfig *gpt = source->gpt;
  const EbbBertConfig *bert = source->bert;
  const struct
  {
    const char *name;
    int saved, here;
  } sizes[] = {
    { "layers", saved->layers, gpt != NULL ? gpt->layers : bert->layers },
    { "width", saved->width, gpt != NULL ? gpt->width : bert->width },
    { "heads", saved->heads, gpt != NULL ? gpt->heads : bert->heads },
    { "vocab", saved->vocab, gpt != NULL ? gpt->vocab : bert->vocab },
  };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    if (sizes[i].saved != sizes[i].here)
      {
        g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                     "--model %s: it is another model than that of the training in %s (%s %d in place of %d): name the "
                     "folder of that one",
                     options->model, options->resume, sizes[i].name, sizes[i].here, sizes[i].saved);
        return FALSE;
      }
  return TRUE;
}

/* -- dropout ------------------------------------------------------------------------------------------------------- */

static gboolean
was_dropout_given (const char *saved)
{
  g_autoptr (JsonNode) root = saved != NULL ? option_table_parse_json (saved) : NULL;

  return root != NULL
         && json_object_get_boolean_member_with_default (json_node_get_object (root), "changes_dropout", FALSE);
}

/* --dropout changes that of a folder's model, where its kind has any: models like Llama have it in attention alone. */
static gboolean
change_dropout (Options *options,
                const char *saved,
                ModelSource *source,
                GError **error)
{
  const double rate = options->dropout;
  gboolean ok;

  options->changes_dropout = OPTION_WAS_GIVEN (options, dropout) || was_dropout_given (saved);
  if (!options->changes_dropout)
    return TRUE;
  if (source->bert != NULL)
    {
      source->bert->dropout = rate;
      source->bert->attention_dropout = -1;
      return ebb_bert_set_dropout (EBB_BERT (source->opened), rate, -1, error);
    }
  if (source->gpt->layout == EBB_GPT_LAYOUT_LLAMA && source->gpt->dropout == 0)
    ok = ebb_gpt_set_dropout (EBB_GPT (source->opened), 0, rate, error);
  else
    ok = ebb_gpt_set_dropout (EBB_GPT (source->opened), rate, -1, error);
  g_clear_pointer (&source->gpt, ebb_gpt_config_free);
  source->gpt = ebb_gpt_get_config (EBB_GPT (source->opened));
  return ok;
}

/* Rows of a folder's model may be shorter than its context, which is often more than memory holds. */
#define MAX_FOLDER_CONTEXT 1024

static gboolean
take_folder_context (Options *options,
                     int context,
                     int *taken,
                     GError **error)
{
  if (*taken > context)
    return options_refuse (error, "--context %d: --model %s has %d positions", *taken, options->model, context);
  if (*taken == 0)
    *taken = MIN (context, MAX_FOLDER_CONTEXT);
  return TRUE;
}

gboolean
model_find (Options *options,
            EbbTokenizer *tokenizer,
            EbbArgs *weights,
            EbbArgs *metadata,
            const char *saved,
            ModelSource *source,
            GError **error)
{
  const guint n_tokens = count_tokens (options, tokenizer);
  int context = options->context;
  Sizes sizes = { 0 };

  *source = (ModelSource){ 0 };
  if (options->model[0] != '\0')
    {
      if (saved != NULL && !read_saved_sizes (saved, options, &sizes, NULL, error))
        return FALSE;
      context = MAX (context, sizes.context);
      if (options->program->tunes && !take_folder_dtypes (options, saved != NULL, error))
        return FALSE;
      if (!open_folder (options, source, error)
          || (saved != NULL && !check_same_model (options, &sizes, source, error))
          || !check_vocab (options, source->bert != NULL ? source->bert->vocab : source->gpt->vocab, n_tokens, error)
          || !change_dropout (options, saved, source, error))
        return FALSE;
    }
  else if (options->program->is_masked)
    source->bert = find_bert (options, n_tokens, weights != NULL, saved, error);
  else
    source->gpt = find_gpt (options, n_tokens, weights, metadata, saved, error);
  if (source->bert != NULL)
    options_set_bert_config (options, source->bert);
  else if (source->gpt != NULL)
    options_set_config (options, source->gpt);
  else
    return FALSE;
  if (source->opened == NULL)
    return TRUE;
  if (!take_folder_context (options, options->context, &context, error))
    return FALSE;
  options->context = context;
  return TRUE;
}

void
model_source_clear (ModelSource *source)
{
  g_clear_pointer (&source->gpt, ebb_gpt_config_free);
  g_clear_pointer (&source->bert, ebb_bert_config_free);
  g_clear_object (&source->opened);
}

EbbModule *
model_make (const Options *options,
            ModelSource *source,
            EbbArgs *weights,
            GError **error)
{
  g_autoptr (EbbModule) model = NULL;
  gboolean ok = TRUE;

  if (source->opened != NULL)
    return g_steal_pointer (&source->opened);
  if (weights != NULL)
    ebb_push_initialization_skipped ();
  ebb_push_parameter_dtype (options_get_weights_dtype (options));
  model = source->bert != NULL ? ebb_bert_new (source->bert, error) : ebb_gpt_new (source->gpt, error);
  ebb_pop_parameter_dtype ();
  if (weights != NULL)
    ebb_pop_initialization_skipped ();
  if (model == NULL)
    return NULL;
  if (weights != NULL)
    ok = source->bert != NULL ? ebb_bert_load_published (EBB_BERT (model), weights, error)
                              : ebb_gpt_load_gpt2 (EBB_GPT (model), weights, error);
  if (ok)
    return g_steal_pointer (&model);
  g_prefix_error (error, "--load %s: ", options->load);
  return NULL;
}

EbbModule *
model_make_full (EbbModule *model,
                 EbbArgs *state,
                 GError **error)
{
  g_autoptr (EbbModule) copy = NULL;
  g_autoptr (EbbTensor) first = ebb_args_get_tensor (state, 0);
  EbbGenerator *generator = ebb_generator_get_default ();
  const guint64 seed = ebb_generator_get_seed (generator), offset = ebb_generator_get_offset (generator);

  ebb_push_initialization_skipped ();
  ebb_push_parameter_dtype (ebb_tensor_get_dtype (first));
  if (EBB_IS_BERT (model))
    {
      g_autoptr (EbbBertConfig) config = ebb_bert_get_config (EBB_BERT (model));

      copy = ebb_bert_new (config, error);
    }
  else
    {
      g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (EBB_GPT (model));

      copy = ebb_gpt_new (config, error);
    }
  ebb_pop_parameter_dtype ();
  ebb_pop_initialization_skipped ();
  /* One rank alone makes the copy, and the training goes on with the same draws on all ranks. */
  ebb_generator_set_state (generator, seed, offset);
  return copy != NULL && ebb_module_load_state_dict (copy, state, TRUE, error) ? g_steal_pointer (&copy) : NULL;
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static char *
format_mib (double bytes)
{
  return g_strdup_printf ("%.1f MiB", bytes / (1024 * 1024));
}

static double
get_state_bytes (const Options *options)
{
  const double bytes = strcmp (options->moments, "8bit") == 0 ? 2 : strcmp (options->moments, "bf16") == 0 ? 4
                                                                                                           : 8;

  return options_get_rounding (options) == EBB_WEIGHT_ROUNDING_MASTER ? bytes + 4 : bytes;
}

static double
get_parameter_bytes (const Options *options)
{
  return options_get_weights_dtype (options) == EBB_DTYPE_BF16 ? 2 : 4;
}

/* How much of the model each rank has, in elements; in doubles: the sizes of a mistyped option would overflow integers,
 * and a rounded number is as good here. */
typedef struct
{
  double held;     /* of parameters, and of what goes with each of them */
  double gathered; /* besides, at the least */
  double largest;  /* gradient that is there before it is shared out */
} Share;

static Share
get_share (const Options *options,
           EbbModule *opened,
           guint n_ranks)
{
  double width = options->width, layers = options->layers;
  double vocab = options->vocab, context = options->context;
  double n_parts = options->ranks.tensor_parallel;
  /* Norms, positions and the biases of what gives whole tensors are on all of the ranks that share the layers. */
  double n_words = options->tied ? 1 : 2;
  double root = width * (n_words * vocab / n_parts + context + 2), block = width * ((12 * width + 7) / n_parts + 6);
  double all = opened != NULL ? (double) ebb_module_count_parameters (opened) / n_parts : root + layers * block;
  double n_shards = shard_get_size (&options->ranks, n_ranks / (guint) options->ranks.tensor_parallel);
  gboolean in_blocks = options->ranks.wraps_blocks;

  if (n_ranks == 1 || n_shards <= 1)
    return (Share){ .held = all, .largest = width * vocab / n_parts };
  if (!in_blocks)
    return (Share){ .held = all / n_shards, .gathered = options->ranks.wrap_least > 0 ? 0 : all };
  return (Share){ .held = all / n_shards, .gathered = root + block, .largest = MAX (root, block) };
}

/* The least bytes of activations that one rank saves. */
static double
get_activations (const Options *options,
                 EbbDevice *device,
                 guint n_ranks)
{
  double n_parts = options->ranks.tensor_parallel;
  double layers = options->layers, n_rows = ceil (options->batch * n_parts / n_ranks);
  /* Parts are as even as they can be. */
  double n_micro = options->micro_batch > 0 ? ceil (n_rows / options->micro_batch) : 1;
  double rows = ceil (n_rows / n_micro);
  double row = (double) options->width * options->context;
  double element = strcmp (options->dtype, "bf16") == 0 ? 2 : 4;
  /* A block saves at least its input, or the operands of its products and norms. A store fetches inputs one by one, and
   * some ahead. */
  double n_kept = store_leaves (options, device) ? MIN (layers, options->prefetch + 1.0) : layers;
  double kept = options->checkpoint_kind != CHECKPOINT_NONE ? 1 : store_leaves (options, device) ? 0
                                                                                                 : 12;
  gboolean divided = options->checkpoint_kind == CHECKPOINT_NONE || options->ranks.sequence_parallel
                     || options->ranks.partition;

  return element * kept * n_kept * row * rows / (divided ? n_parts : 1);
}

gboolean
model_check_memory (const Options *options,
                    EbbModule *opened,
                    EbbDevice *device,
                    guint n_ranks,
                    GError **error)
{
  Share share = get_share (options, opened, n_ranks);
  guint n_here = MAX (options->ranks.n_ranks, 1); /* ranks that are threads share one memory */
  double training = options->steps > 0 ? 1 : 0;
  double trained = options_have_adapter (options) ? 0 : training; /* an adapter is small beside the rest */
  double element = get_parameter_bytes (options);
  double parameters = element * (share.held + share.gathered);
  double moments = trained * share.held * get_state_bytes (options);
  /* With steps in backward only the largest gradient, the embedding's, lives to the end. */
  double gradients = trained * (options->step_in_backward ? 4 * share.largest : element * share.held);
  double activations = training * n_here * get_activations (options, device, n_ranks);
  double rest = n_here * (parameters + gradients + moments);
  double limit = (double) ebb_memory_get_limit (device);
  g_autofree char *all_text = NULL;
  g_autofree char *rest_text = NULL;
  g_autofree char *kept_text = NULL;
  g_autofree char *limit_text = NULL;
  g_autofree char *who = NULL;

  if (rest + activations <= limit)
    return TRUE;
  all_text = format_mib (rest + activations);
  rest_text = format_mib (rest);
  kept_text = format_mib (activations);
  limit_text = format_mib (limit);
  who = n_ranks == 1 ? g_strdup ("the model needs")
        : n_here > 1 ? g_strdup_printf ("%u ranks together need", n_ranks)
                     : g_strdup_printf ("each of %u ranks needs", n_ranks);
  g_set_error (error, EBB_ERROR, EBB_ERROR_NO_MEMORY,
               "not enough memory on %s: %s at least %s, %s for parameters, gradients and optimizer and %s "
               "for activations of --batch %d, and there are %s",
               ebb_device_get_name (device), who, all_text, rest_text, kept_text, options->batch, limit_text);
  return FALSE;
}

gboolean
model_check_tensor_ranks (const Options *options,
                          GError **error)
{
  const int n = options->ranks.tensor_parallel;

  if (options->heads % n != 0)
    return options_refuse (error, "--tensor-parallel %d: %d heads can't be divided among %d ranks", n, options->heads,
                           n);
  if (options->ranks.sequence_parallel && options->context % n != 0)
    return options_refuse (error, "--sequence-parallel: --context %d can't be divided among %d ranks",
                           options->context, n);
  return TRUE;
}

/* -- the loss ------------------------------------------------------------------------------------------------------ */

EbbTensor *
model_loss (EbbModule *model,
            EbbTensor *tokens,
            EbbTensor *targets,
            EbbTensor *starts,
            GError **error)
{
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) results = NULL;

  if (EBB_IS_BERT (model))
    return ebb_bert_loss (EBB_BERT (model), tokens, NULL, NULL, targets, error);
  if (starts == NULL)
    return ebb_gpt_loss (EBB_GPT (model), tokens, targets, error);
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  ebb_args_add_tensor (args, "starts", starts);
  results = ebb_module_call (model, args, error);
  return results != NULL ? ebb_args_get_tensor (results, 0) : NULL;
}

/* -- files --------------------------------------------------------------------------------------------------------- */

static gboolean
save_gpt (EbbGpt *model,
          const char *path,
          GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (model);
  g_autoptr (EbbArgs) state = ebb_gpt_to_gpt2_state (model, error);
  g_autoptr (EbbArgs) metadata = ebb_gpt_config_to_gpt2_metadata (config);

  return state != NULL && ebb_save_safetensors (path, state, metadata, error);
}

static gboolean
save_bert (EbbBert *model,
           const char *path,
           GError **error)
{
  g_autoptr (EbbArgs) state = ebb_bert_to_published_state (model, error);

  return state != NULL && ebb_save_safetensors (path, state, NULL, error);
}

gboolean
model_is_saved_whole (const Options *options,
                      const char *path)
{
  return options->program->tunes || options->model[0] != '\0' || g_str_has_suffix (path, G_DIR_SEPARATOR_S);
}

int
model_get_saved_dtype (const Options *options)
{
  return options->model[0] != '\0' && options->merge == NULL ? (int) find_folder_dtype (options) : EBB_MODEL_KEEP_DTYPE;
}

gboolean
model_save (EbbModule *model,
            const Options *options,
            const char *path,
            GError **error)
{
  /* The folder's dtype is kept: they are in f32 while they are trained. */
  if (model_is_saved_whole (options, path))
    return ebb_model_save_full (model, path,
                                model_get_saved_dtype (options), 0, error);
  return EBB_IS_BERT (model) ? save_bert (EBB_BERT (model), path, error) : save_gpt (EBB_GPT (model), path, error);
}
