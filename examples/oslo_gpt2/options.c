/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Reads and checks the command line. */
#include "options.h"

#include "common/launcher.h"

#define DEFAULT_RANKS 4

void
options_init (Options *self)
{
  *self = (Options){ .preset = NULL };
  option_table_init (&self->state, &program_page);
}

void
options_clear (Options *self)
{
  option_table_clear (&self->state);
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

static gboolean
check (Options *self,
       GError **error)
{
  if (!option_table_check (&self->state, error))
    return FALSE;
  if (self->dropout >= 1)
    return options_refuse (error, "--dropout %g: it must be at least 0 and below 1", self->dropout);
  return check_folder (self, error) && take_ranks (self, error) && check_model (self, error);
}

gboolean
options_parse (Options *self,
               int argc,
               char **argv,
               GError **error)
{
  if (!option_table_parse (&self->state, argc, argv, NULL, error))
    return FALSE;
  if (option_table_is_question (&self->state))
    {
      if (launcher_speaks ())
        option_table_print (&self->state);
      return TRUE;
    }
  return option_table_fill (&self->state, error)
         && option_table_finish (&self->state, check (self, error), error);
}

static EbbGptConfig *
make_config (const Options *self,
             GError **error)
{
  g_autoptr (EbbGptConfig) config = NULL;

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
