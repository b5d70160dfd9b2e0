/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Makes the model that the options describe, and reads and writes its files. */
#include "model.h"

#include "shard.h"
#include "store.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

typedef struct
{
  int layers, width, heads, context, vocab;
} Sizes;

EbbTokenizer *
model_make_tokenizer (const Options *options,
                      GError **error)
{
  g_autofree char *vocab = NULL;
  g_autofree char *merges = NULL;

  if (strcmp (options->tokenizer, "byte") == 0)
    return ebb_byte_tokenizer_new ();
  vocab = g_build_filename (options->tokenizer, "vocab.json", NULL);
  merges = g_build_filename (options->tokenizer, "merges.txt", NULL);
  return ebb_bpe_tokenizer_new (vocab, merges, error);
}

/* -- sizes --------------------------------------------------------------------------------------------------------- */

/* The configuration in the file of --load and in a config.json beside it. */
static EbbGptConfig *
read_weights (const Options *options,
              EbbArgs *weights,
              EbbArgs *metadata,
              GError **error)
{
  g_autofree char *folder = g_path_get_dirname (options->load);
  g_autofree char *path = g_build_filename (folder, "config.json", NULL);
  gboolean is_there = access (path, F_OK) == 0 || errno != ENOENT;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_from_gpt2 (weights, metadata, is_there ? path : NULL, error);

  if (config == NULL)
    {
      g_prefix_error (error, "--load %s: ", options->load);
      return NULL;
    }
  if (config->heads > 0 || options->heads > 0 || options->preset != NULL)
    return g_steal_pointer (&config);
  g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
               "--load %s: nothing says how many heads there are: --heads, or a config.json beside it, must",
               options->load);
  return NULL;
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
                  EbbGptConfig *config,
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
  take_saved_form (config, object);
  return TRUE;
}

EbbGptConfig *
model_make_config (const Options *options,
                   EbbTokenizer *tokenizer,
                   EbbArgs *weights,
                   EbbArgs *metadata,
                   const char *saved,
                   GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;
  guint n_tokens = ebb_tokenizer_get_vocab_size (tokenizer);
  Sizes sizes = { 0 };

  config = weights != NULL ? read_weights (options, weights, metadata, error)
                           : ebb_gpt_config_new_preset (options->preset != NULL ? options->preset : "tiny");
  if (config == NULL || (saved != NULL && !read_saved_sizes (saved, options, &sizes, config, error)))
    return NULL;
  take_preset (options, config);
  if (options->preset == NULL && options->vocab == 0 && sizes.vocab == 0 && weights == NULL)
    config->vocab = (int) n_tokens;

#define TAKE(size)                         \
  if (options->size > 0 || sizes.size > 0) \
  config->size = options->size > 0 ? options->size : sizes.size
  TAKE (layers);
  TAKE (width);
  TAKE (heads);
  TAKE (context);
  TAKE (vocab);
#undef TAKE
  if (weights == NULL || OPTION_WAS_GIVEN (options, dropout))
    config->dropout = options->dropout;
  if (strcmp (options->residual, "bf16") == 0)
    config->residual_dtype = EBB_DTYPE_BF16;

  if (!ebb_gpt_config_check (config, error))
    return NULL;
  if ((guint) config->vocab < n_tokens)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a vocabulary of %d: --tokenizer %s has %u tokens, so --vocab must be at least that",
                   config->vocab, options->tokenizer, n_tokens);
      return NULL;
    }
  return g_steal_pointer (&config);
}

/* -- memory -------------------------------------------------------------------------------------------------------- */

static char *
format_mib (double bytes)
{
  return g_strdup_printf ("%.1f MiB", bytes / (1024 * 1024));
}

static double
get_moment_bytes (const Options *options)
{
  return strcmp (options->moments, "8bit") == 0 ? 2 : strcmp (options->moments, "bf16") == 0 ? 4
                                                                                             : 8;
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
           const EbbGptConfig *config,
           guint n_ranks)
{
  double width = config->width, layers = config->layers;
  double vocab = config->vocab, context = config->context;
  double n_parts = options->ranks.tensor_parallel;
  /* Norms, positions and the biases of what gives whole tensors are on all of the ranks that share the layers. */
  double n_words = config->tied ? 1 : 2;
  double root = width * (n_words * vocab / n_parts + context + 2), block = width * ((12 * width + 7) / n_parts + 6);
  double all = root + layers * block;
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
                 const EbbGptConfig *config,
                 EbbDevice *device,
                 guint n_ranks)
{
  double n_parts = options->ranks.tensor_parallel;
  double layers = config->layers, rows = ceil (options->batch * n_parts / n_ranks);
  double row = (double) config->width * config->context;
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
                    const EbbGptConfig *config,
                    EbbDevice *device,
                    guint n_ranks,
                    GError **error)
{
  Share share = get_share (options, config, n_ranks);
  guint n_here = MAX (options->ranks.n_ranks, 1); /* ranks that are threads share one memory */
  double training = options->steps > 0 ? 1 : 0;
  double parameters = 4 * (share.held + share.gathered), moments = training * share.held * get_moment_bytes (options);
  /* With steps in backward only the largest gradient, the embedding's, lives to the end. */
  double gradients = training * 4 * (options->step_in_backward ? share.largest : share.held);
  double activations = training * n_here * get_activations (options, config, device, n_ranks);
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
model_loss (EbbGpt *model,
            EbbTensor *tokens,
            EbbTensor *targets,
            EbbTensor *starts,
            GError **error)
{
  g_autoptr (EbbArgs) args = NULL;
  g_autoptr (EbbArgs) results = NULL;

  if (starts == NULL)
    return ebb_gpt_loss (model, tokens, targets, error);
  args = ebb_args_new (EBB_ARGS_TUPLE);
  ebb_args_add_tensor (args, NULL, tokens);
  ebb_args_add_tensor (args, "targets", targets);
  ebb_args_add_tensor (args, "starts", starts);
  results = ebb_module_call (EBB_MODULE (model), args, error);
  return results != NULL ? ebb_tensor_ref (ebb_args_get_tensor (results, 0)) : NULL;
}

/* -- files --------------------------------------------------------------------------------------------------------- */

gboolean
model_save (EbbGpt *model,
            const char *path,
            GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (model);
  g_autoptr (EbbArgs) state = ebb_gpt_to_gpt2_state (model, error);
  g_autoptr (EbbArgs) metadata = ebb_gpt_config_to_gpt2_metadata (config);

  return state != NULL && ebb_save_safetensors (path, state, metadata, error);
}
