/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "shard.h"
#include "store.h"

#include <math.h>
#include <string.h>

/* A file with GPT-2's names does not say how many heads there are, so ours does; all published ones have 64 wide. */
#define HEADS_KEY "n_head"
#define USUAL_HEAD_WIDTH 64

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

/* "h.12.ln_1.weight" is of block 12; -1 for other names. */
static int
find_block (const char *name)
{
  char *end;
  guint64 index;

  if (g_str_has_prefix (name, "transformer."))
    name += strlen ("transformer.");
  if (!g_str_has_prefix (name, "h.") || !g_ascii_isdigit (name[2]))
    return -1;
  index = g_ascii_strtoull (name + 2, &end, 10);
  return *end == '.' && index < G_MAXINT ? (int) index : -1;
}

static void
read_weight_sizes (EbbArgs *weights,
                   EbbArgs *metadata,
                   Sizes *sizes)
{
  int heads = metadata != NULL ? ebb_args_find (metadata, HEADS_KEY) : -1;

  for (guint i = 0; i < ebb_args_get_length (weights); i++)
    {
      const char *name = ebb_args_get_key (weights, i);
      g_autoptr (EbbTensor) tensor = ebb_args_get_tensor (weights, i);
      gboolean is_matrix = tensor != NULL && ebb_tensor_get_n_dims (tensor) == 2;

      sizes->layers = MAX (sizes->layers, find_block (name) + 1);
      if (is_matrix && g_str_has_suffix (name, "wte.weight"))
        {
          sizes->vocab = (int) MIN (ebb_tensor_get_dim (tensor, 0), G_MAXINT);
          sizes->width = (int) MIN (ebb_tensor_get_dim (tensor, 1), G_MAXINT);
        }
      else if (is_matrix && g_str_has_suffix (name, "wpe.weight"))
        sizes->context = (int) MIN (ebb_tensor_get_dim (tensor, 0), G_MAXINT);
    }
  if (heads >= 0 && ebb_args_get_value_kind (metadata, (guint) heads) == EBB_VALUE_STRING)
    sizes->heads = (int) g_ascii_strtoll (ebb_args_get_string (metadata, (guint) heads), NULL, 10);
  else
    sizes->heads = sizes->width / USUAL_HEAD_WIDTH;
}

static gboolean
read_saved_sizes (const char *saved,
                  const Options *options,
                  Sizes *sizes,
                  GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new ();
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

  if (!json_parser_load_from_data (parser, saved, -1, NULL)
      || !JSON_NODE_HOLDS_OBJECT (json_parser_get_root (parser)))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_STATE, "--resume %s: that state was not saved by %s", options->resume,
                   g_get_prgname ());
      return FALSE;
    }
  object = json_node_get_object (json_parser_get_root (parser));
  for (guint i = 0; i < G_N_ELEMENTS (members); i++)
    {
      *members[i].size = (int) json_object_get_int_member_with_default (object, members[i].name, 0);
      if (members[i].given != 0 && members[i].given != *members[i].size)
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_STATE,
                       "--%s %d: the training in %s has %d: leave the option out, or name another folder",
                       members[i].name, members[i].given, options->resume, *members[i].size);
          return FALSE;
        }
    }
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
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset (options->preset != NULL ? options->preset : "tiny");
  guint n_tokens = ebb_tokenizer_get_vocab_size (tokenizer);
  Sizes sizes = { 0 };

  if (saved != NULL && !read_saved_sizes (saved, options, &sizes, error))
    return NULL;
  if (saved == NULL && weights != NULL && options->preset == NULL)
    read_weight_sizes (weights, metadata, &sizes);
  if (options->preset == NULL && options->vocab == 0 && sizes.vocab == 0)
    ebb_gpt_config_set_vocab (config, (int) n_tokens);

#define TAKE(size)                                                                        \
  do                                                                                      \
    if (options->size > 0 || sizes.size > 0)                                              \
      ebb_gpt_config_set_##size (config, options->size > 0 ? options->size : sizes.size); \
  while (0)
  TAKE (layers);
  TAKE (width);
  TAKE (heads);
  TAKE (context);
  TAKE (vocab);
#undef TAKE
  ebb_gpt_config_set_dropout (config, options->dropout);
  if (strcmp (options->residual, "bf16") == 0)
    ebb_gpt_config_set_residual_dtype (config, EBB_DTYPE_BF16);

  if (!ebb_gpt_config_check (config, error))
    return NULL;
  if ((guint) ebb_gpt_config_get_vocab (config) < n_tokens)
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
                   "a vocabulary of %d: --tokenizer %s has %u tokens, so --vocab must be at least that",
                   ebb_gpt_config_get_vocab (config), options->tokenizer, n_tokens);
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
  double width = ebb_gpt_config_get_width (config), layers = ebb_gpt_config_get_layers (config);
  double vocab = ebb_gpt_config_get_vocab (config), context = ebb_gpt_config_get_context (config);
  double n_parts = options->ranks.tensor_parallel;
  /* Norms, positions and the biases of what gives whole tensors are on all of the ranks that share the layers. */
  double root = width * (vocab / n_parts + context + 2), block = width * ((12 * width + 7) / n_parts + 6);
  double all = root + layers * block;
  double n_shards = shard_get_size (&options->ranks, n_ranks / (guint) options->ranks.tensor_parallel);
  gboolean in_blocks = options->ranks.wraps_blocks;

  if (n_ranks == 1 || n_shards <= 1)
    return (Share){ .held = all, .largest = width * vocab / n_parts };
  if (!in_blocks)
    return (Share){ .held = all / n_shards, .gathered = options->ranks.wrap_least > 0 ? 0 : all };
  return (Share){ .held = all / n_shards, .gathered = root + block, .largest = MAX (root, block) };
}

/* Bytes that one rank keeps of activations at the least. */
static double
get_activations (const Options *options,
                 const EbbGptConfig *config,
                 EbbDevice *device,
                 guint n_ranks)
{
  double n_parts = options->ranks.tensor_parallel;
  double layers = ebb_gpt_config_get_layers (config), rows = ceil (options->batch * n_parts / n_ranks);
  double row = (double) ebb_gpt_config_get_width (config) * ebb_gpt_config_get_context (config);
  double element = strcmp (options->dtype, "bf16") == 0 ? 2 : 4;
  /* What a block keeps at least: its input, or what its products and norms read. A store brings inputs back one by
   * one, and some ahead. */
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
  /* A parameter that moves at once leaves only the largest gradient, that of the embedding, to the end. */
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

/* -- files --------------------------------------------------------------------------------------------------------- */

gboolean
model_save (EbbGpt *model,
            const char *path,
            GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_get_config (model);
  g_autofree char *heads = g_strdup_printf ("%d", ebb_gpt_config_get_heads (config));
  g_autoptr (EbbArgs) state = ebb_gpt_to_gpt2_state (model, error);
  g_autoptr (EbbArgs) metadata = NULL;

  if (state == NULL)
    return FALSE;
  metadata = ebb_args_new (EBB_ARGS_DICT);
  ebb_args_add_string (metadata, "format", "pt"); /* what readers of GPT-2's file ask for */
  ebb_args_add_string (metadata, HEADS_KEY, heads);
  return ebb_save_safetensors (path, state, metadata, error);
}
