/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

#include "common/command.h"
#include "common/launcher.h"

#include <math.h>
#include <stdio.h>

#define DEFAULT_RANKS 4
#define MAX_RANKS 64
#define NOT_GIVEN G_MININT

void
options_init (Options *self)
{
  *self = (Options){ .batch = 16, .sequence = 128, .steps = 1, .prefetch = 1, .seed = 1, .lr = 3e-5, .dropout = 0.1 };
  self->layers = self->width = self->heads = self->ranks = NOT_GIVEN;
}

void
options_clear (Options *self)
{
  g_clear_pointer (&self->preset, g_free);
  g_clear_pointer (&self->device, g_free);
  g_clear_pointer (&self->data, g_free);
}

static GOptionContext *
make_context (Options *self)
{
  const GOptionEntry entries[] = {
    { "preset", 0, 0, G_OPTION_ARG_STRING, &self->preset,
      "Size of the model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl (gpt2)", "NAME" },
    { "layers", 0, 0, G_OPTION_ARG_INT, &self->layers, "Number of transformer blocks (the preset's)", "N" },
    { "width", 0, 0, G_OPTION_ARG_INT, &self->width, "Size of a token's vector (the preset's)", "N" },
    { "heads", 0, 0, G_OPTION_ARG_INT, &self->heads,
      "Attention heads; the number must divide the width, and the ranks must divide it (the preset's)", "N" },
    { "batch", 0, 0, G_OPTION_ARG_INT, &self->batch, "Rows of text in a batch (16)", "N" },
    { "sequence", 0, 0, G_OPTION_ARG_INT, &self->sequence, "Tokens in a row of text (128)", "N" },
    { "steps", 0, 0, G_OPTION_ARG_INT, &self->steps,
      "Steps for each row of the table, after one step with a single row of text; the last is measured (1)", "N" },
    { "lr", 0, 0, G_OPTION_ARG_DOUBLE, &self->lr, "Learning rate of AdamW (3e-5)", "X" },
    { "dropout", 0, 0, G_OPTION_ARG_DOUBLE, &self->dropout, "Probability of dropout (0.1)", "P" },
    { "seed", 0, 0, G_OPTION_ARG_INT64, &self->seed, "Seed of all random numbers (1)", "N" },
    { "data", 0, 0, G_OPTION_ARG_FILENAME, &self->data, "Text to train on, read byte by byte (a few lines)", "FILE" },
    { "device", 0, 0, G_OPTION_ARG_STRING, &self->device, command_describe_devices ("Device to train on", "sim"),
      "NAME" },
    { "ranks", 0, 0, G_OPTION_ARG_INT, &self->ranks,
      "Number of threads that share the model (4); under mpirun its processes share it", "N" },
    { "prefetch", 0, 0, G_OPTION_ARG_INT, &self->prefetch,
      "Gather and fetch the inputs of blocks this many blocks ahead of backward (1)", "N" },
    { "threads", 0, 0, G_OPTION_ARG_INT, &self->threads, "Threads of each rank (its share of the cores)", "N" },
    COMMAND_ENTRIES (&self->version, &self->help),
    { NULL }
  };
  GOptionContext *context =
      g_option_context_new ("- measure what OSLO's activation checkpointing saves of a GPT-2's memory on tensor ranks");

  g_option_context_set_help_enabled (context, FALSE);
  g_option_context_add_main_entries (context, entries, NULL);
  g_autofree char *description =
      g_strdup_printf ("Examples: %s --batch 64\n          %s --preset tiny --layers 12 --sequence 64\n"
                       "Exit status: 0; 1 for a failure or losses that differ; 2 for wrong options.\n",
                       g_get_prgname (), g_get_prgname ());

  g_option_context_set_description (context, description);
  return context;
}

static gboolean
refuse (GError **error,
        const char *option,
        gint64 value,
        const char *right)
{
  g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--%s %" G_GINT64_FORMAT ": %s", option, value, right);
  return FALSE;
}

G_GNUC_PRINTF (2, 3)
static gboolean
refuse_text (GError **error,
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

static gboolean
check (const Options *self,
       GError **error)
{
  const struct
  {
    const char *option;
    gint64 value, least, most;
    gboolean has_default; /* from elsewhere, so it may be left out */
  } numbers[] = {
    { "layers", self->layers, 1, G_MAXINT, TRUE },
    { "width", self->width, 1, G_MAXINT, TRUE },
    { "heads", self->heads, 1, G_MAXINT, TRUE },
    { "batch", self->batch, 1, G_MAXINT },
    { "sequence", self->sequence, 1, 1 << 20 },
    { "steps", self->steps, 1, G_MAXINT },
    { "seed", self->seed, 0, G_MAXINT64 },
    { "ranks", self->ranks, 2, MAX_RANKS, TRUE },
    { "threads", self->threads, 0, 1024 },
    { "prefetch", self->prefetch, 0, 1024 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (!(numbers[i].has_default && numbers[i].value == NOT_GIVEN)
        && (numbers[i].value < numbers[i].least || numbers[i].value > numbers[i].most))
      {
        g_autofree char *right = g_strdup_printf ("it must be from %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT,
                                                  numbers[i].least, numbers[i].most);

        return refuse (error, numbers[i].option, numbers[i].value, right);
      }
  if (!isfinite (self->lr) || self->lr < 0)
    return refuse_text (error, "--lr %g: it must be 0 or more", self->lr);
  if (!isfinite (self->dropout) || self->dropout < 0 || self->dropout >= 1)
    return refuse_text (error, "--dropout %g: it must be at least 0 and below 1", self->dropout);
  return TRUE;
}

/* Gives options that were left out their defaults. */
static gboolean
take_ranks (Options *self,
            GError **error)
{
  int *sizes[] = { &self->layers, &self->width, &self->heads };

  for (guint i = 0; i < G_N_ELEMENTS (sizes); i++)
    if (*sizes[i] == NOT_GIVEN)
      *sizes[i] = 0;
  if (self->ranks != NOT_GIVEN && launcher_count () > 1)
    return refuse (error, "ranks", self->ranks, "the processes that were started together are the ranks: leave it out");
  if (self->ranks == NOT_GIVEN && launcher_is_there () && launcher_count () == 1)
    return refuse_text (error, "one process was started, and partitioned activations need 2 ranks or more: start more, "
                               "or say --ranks %d for threads",
                        DEFAULT_RANKS);
  if (self->ranks == NOT_GIVEN)
    self->ranks = launcher_count () > 1 ? 0 : DEFAULT_RANKS;
  return TRUE;
}

/* Whether the device and the model exist, and the ranks divide the model. */
static gboolean
check_model (const Options *self,
             GError **error)
{
  const int n_ranks = self->ranks > 0 ? self->ranks : launcher_count ();
  g_autoptr (GError) failure = NULL;
  g_autoptr (EbbGptConfig) config = options_make_config (self, &failure);
  EbbDevice *device = config != NULL ? ebb_device_get (self->device, &failure) : NULL;

  if (config == NULL)
    return refuse_text (error, "%s", failure->message);
  if (device == NULL)
    return refuse_text (error, "--device %s: %s", self->device, failure->message);
  if (config->heads % n_ranks == 0)
    return TRUE;
  return refuse_text (error, "--heads %d: they can't be divided among %d ranks", config->heads,
                      n_ranks);
}

static void
print (const Options *self,
       GOptionContext *context)
{
  g_autofree char *help = command_get_help (context);

  if (self->help)
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
  self->printed = self->help || self->version;
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
  if (self->preset == NULL)
    self->preset = g_strdup ("gpt2");
  if (self->device == NULL)
    self->device = g_strdup ("sim");
  return check (self, error) && take_ranks (self, error) && check_model (self, error);
}

EbbGptConfig *
options_make_config (const Options *self,
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
