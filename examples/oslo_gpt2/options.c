/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

#include "common/command.h"
#include "common/launcher.h"

#include <stdio.h>

#define DEFAULT_RANKS 4
#define MAX_RANKS 64

#define AT(member) .place = G_STRUCT_OFFSET (Options, member)
#define POSITIVE .least = 1, .most = G_MAXINT

/* clang-format off */
static const OptionRow rows[] = {
  { OPTION_GROUP, "options", .metavar = "Options:" },
  { OPTION_PATH, "model", AT (model), .metavar = "FOLDER", .shown = "random weights",
    .help = "GPT-2, Llama or another decoder in Hugging Face's format: its weights, its configuration and its "
            "tokenizer, which pads with the token that ends a text. The ranks must divide its heads, and those of keys "
            "and values. A line of --data is a text" },
  { OPTION_TEXT, "preset", AT (preset), .metavar = "NAME", .fallback = "gpt2",
    .help = "Size of the model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl" },
  { OPTION_INT, "layers", AT (layers), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Number of transformer blocks" },
  { OPTION_INT, "width", AT (width), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Size of a token's vector" },
  { OPTION_INT, "heads", AT (heads), .metavar = "N", .fallback = "0", .shown = "the preset's", POSITIVE,
    .help = "Attention heads; the number must divide the width, and the ranks must divide it" },
  { OPTION_INT, "batch", AT (batch), .metavar = "N", .fallback = "16", POSITIVE, .help = "Rows of text in a batch" },
  { OPTION_INT, "sequence", AT (sequence), .metavar = "N", .fallback = "128", .least = 1, .most = 1 << 20,
    .help = "Tokens in a row of text" },
  { OPTION_INT, "steps", AT (steps), .metavar = "N", .fallback = "1", POSITIVE,
    .help = "Steps for each row of the table, after one step with a single row of text; the last is measured" },
  { OPTION_DOUBLE, "lr", AT (lr), .metavar = "X", .fallback = "3e-5", .help = "Learning rate of AdamW" },
  { OPTION_DOUBLE, "dropout", AT (dropout), .metavar = "P", .fallback = "0.1", .shown = "0.1, with --model its own",
    .help = "Probability of dropout" },
  { OPTION_INT64, "seed", AT (seed), .metavar = "N", .fallback = "1", .least = 0, .most = G_MAXINT64,
    .help = "Seed of all random numbers" },
  { OPTION_PATH, "data", AT (data), .metavar = "FILE", .shown = "a few lines",
    .help = "Text to train on, read byte by byte, or line by line with --model" },
  { OPTION_DEVICE, "device", AT (device), .metavar = "NAME", .fallback = "sim", .help = "Device to train on" },
  { OPTION_INT, "ranks", AT (ranks), .metavar = "N", .fallback = "0", .shown = "4", .least = 2, .most = MAX_RANKS,
    .help = "Number of threads that share the model; under mpirun its processes share it" },
  { OPTION_INT, "prefetch", AT (prefetch), .metavar = "N", .fallback = "1", .least = 0, .most = 1024,
    .help = "Gather and fetch the inputs of blocks this many blocks ahead of backward" },
  { OPTION_INT, "threads", AT (threads), .metavar = "N", .fallback = "0", .shown = "its share of the cores", .least = 0,
    .most = 1024, .help = "Threads of each rank" },
  { .name = NULL },
};
/* clang-format on */

void
options_init (Options *self)
{
  *self = (Options){ .printed = FALSE };
  option_table_init (&self->state, rows, FALSE, NULL);
}

void
options_clear (Options *self)
{
  option_table_clear (&self->state);
}

static GOptionContext *
make_context (Options *self)
{
  GOptionContext *context =
      g_option_context_new ("- measure what OSLO's activation checkpointing saves of a GPT-2's memory on tensor ranks");

  g_option_context_set_help_enabled (context, FALSE);
  option_table_add_groups (&self->state, context);
  g_autofree char *description =
      g_strdup_printf ("Examples: %s --batch 64\n          %s --preset tiny --layers 12 --sequence 64\n"
                       "Exit status: 0; 1 for a failure or losses that differ; 2 for wrong options.\n",
                       g_get_prgname (), g_get_prgname ());

  g_option_context_set_description (context, description);
  return context;
}

/* Finds the number of ranks. */
static gboolean
take_ranks (Options *self,
            GError **error)
{
  if (self->ranks > 0 && launcher_count () > 1)
    return options_refuse (error, "--ranks %d: the processes that were started together are the ranks: leave it out",
                           self->ranks);
  if (self->ranks == 0 && launcher_is_there () && launcher_count () == 1)
    return options_refuse (error,
                           "one process was started, and partitioned activations need 2 ranks or more: start more, "
                           "or say --ranks %d for threads",
                           DEFAULT_RANKS);
  if (self->ranks == 0)
    self->ranks = launcher_count () > 1 ? 0 : DEFAULT_RANKS;
  return TRUE;
}

static EbbGptConfig *make_config (const Options *self,
                                  GError **error);

/* Whether the device and the model exist, and the ranks divide the model. A folder is checked where it is opened. */
static gboolean
check_model (const Options *self,
             GError **error)
{
  const int n_ranks = self->ranks > 0 ? self->ranks : launcher_count ();
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbGptConfig) config = make_config (self, &failure);
  EbbDevice *device = config != NULL ? ebb_device_get (self->device, &failure) : NULL;

  if (config == NULL)
    return options_refuse (error, "%s", failure->message);
  if (device == NULL)
    return options_refuse (error, "--device %s: %s", self->device, failure->message);
  if (self->model != NULL || config->heads % n_ranks == 0)
    return TRUE;
  return options_refuse (error, "--heads %d: they can't be divided among %d ranks", config->heads,
                         n_ranks);
}

/* A folder has the model's sizes. */
static gboolean
check_folder (const Options *self,
              GError **error)
{
  static const struct
  {
    const char *name;
    gsize place;
  } sizes[] = { { "preset", G_STRUCT_OFFSET (Options, preset) },
                { "layers", G_STRUCT_OFFSET (Options, layers) },
                { "width", G_STRUCT_OFFSET (Options, width) },
                { "heads", G_STRUCT_OFFSET (Options, heads) } };

  for (guint i = 0; self->model != NULL && i < G_N_ELEMENTS (sizes); i++)
    if (option_table_was_given (&self->state, sizes[i].place))
      return options_refuse (error, "--model and --%s: the folder has the model's sizes, leave --%s out",
                             sizes[i].name, sizes[i].name);
  return TRUE;
}

static void
print (const Options *self,
       GOptionContext *context)
{
  g_autofree char *help = command_get_help (context);

  if (self->state.help)
    fputs (help, stdout);
  else
    command_print_version ();
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  g_autoptr (GOptionContext) context = make_context (self);

  if (!g_option_context_parse (context, &argc, &argv, error))
    return FALSE;
  self->printed = self->state.help || self->state.version;
  if (self->printed)
    {
      if (launcher_speaks ())
        print (self, context);
      return TRUE;
    }
  if (argc > 1)
    {
      g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_FAILED, "%s: only options are allowed",
                   argv[1]);
      return FALSE;
    }
  option_table_fill (&self->state);
  if (!option_table_check (&self->state, error))
    return FALSE;
  if (self->dropout >= 1)
    return options_refuse (error, "--dropout %g: it must be at least 0 and below 1", self->dropout);
  return check_folder (self, error) && take_ranks (self, error) && check_model (self, error);
}

static EbbGptConfig *
make_config (const Options *self,
             GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;

  if (!g_strv_contains (ebb_gpt_config_get_preset_names (), self->preset))
    {
      g_autofree char *known = g_strjoinv (", ", (char **) ebb_gpt_config_get_preset_names ());

      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--preset %s: it must be one of %s", self->preset,
                   known);
      return NULL;
    }
  config = ebb_gpt_config_new_preset (self->preset);
  if (self->layers > 0)
    config->layers = self->layers;
  if (self->width > 0)
    config->width = self->width;
  if (self->heads > 0)
    config->heads = self->heads;
  config->context = MAX (self->sequence, config->context);
  config->vocab = MAX (256, config->vocab);
  config->dropout = self->dropout;
  return ebb_gpt_config_check (config, error) ? g_steal_pointer (&config) : NULL;
}

/* Products of the same weights on every rank need whole heads. */
static EbbModule *
open_folder (const Options *self,
             GError **error)
{
  g_autoptr (EbbModule) model = ebb_model_open_full (self->model, EBB_DTYPE_F32, error);
  g_autoptr (EbbGptConfig) config = NULL;

  if (model == NULL)
    return NULL;
  if (!EBB_IS_GPT (model))
    {
      g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--model %s: it must hold a decoder, as GPT-2",
                   self->model);
      return NULL;
    }
  config = ebb_gpt_get_config (EBB_GPT (model));
  ebb_module_set_training (model, TRUE);
  if (self->sequence <= config->context)
    return g_steal_pointer (&model);
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT, "--sequence %d: the model has %d positions",
               self->sequence, config->context);
  return NULL;
}

EbbModule *
options_make_model (const Options *self,
                    GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;

  if (self->model != NULL)
    return open_folder (self, error);
  config = make_config (self, error);
  return config != NULL ? ebb_gpt_new (config, error) : NULL;
}

EbbGptConfig *
options_find_config (const Options *self,
                     guint n_ranks,
                     GError **error)
{
  g_autoptr (EbbModule) model = self->model != NULL ? options_make_model (self, error) : NULL;
  g_autoptr (EbbGptConfig) config = NULL;
  int kv_heads, divisor;

  if (self->model == NULL)
    return make_config (self, error);
  if (model == NULL)
    return NULL;
  config = ebb_gpt_get_config (EBB_GPT (model));
  kv_heads = config->kv_heads > 0 ? config->kv_heads : config->heads;
  if (config->heads % (int) n_ranks == 0 && kv_heads % (int) n_ranks == 0)
    return g_steal_pointer (&config);
  for (divisor = MIN (kv_heads, (int) n_ranks); config->heads % divisor != 0 || kv_heads % divisor != 0;)
    divisor--;
  g_set_error (error, EBB_ERROR, EBB_ERROR_INVALID_ARGUMENT,
               "--model %s: its %d heads and %d heads of keys and values can't be divided among %u ranks: take %d",
               self->model, config->heads, kv_heads, n_ranks, divisor);
  return NULL;
}
