/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Shows what nested checkpoint wrappers and a store leave in memory, a row for each way to combine them. */
#include <ebb/ebb.h>

#include <locale.h>

typedef enum
{
  PARTS = 1, /* attention and MLP of each block */
  BLOCKS = 2,
  MODEL = 4,
} Wrapped;

typedef enum
{
  STAY,
  TO_HOST,
  TO_DISK,
} Place;

typedef struct
{
  const char *name;
  Wrapped wrapped;
  Place place; /* of the inputs that the outermost wrappers save */
  const char *text;
} Way;

static const Way ways[] = {
  { "none", 0, STAY,
    "Nothing is wrapped. All that backward needs is saved." },
  { "blocks", BLOCKS, STAY,
    "Each block saves its input (outer) and frees what it computes (inner); backward recomputes one block at a time." },
  { "model", MODEL, STAY,
    "The model saves only its input. Its one recompute brings everything back at once: the peak is that of none." },
  { "blocks in model", BLOCKS | MODEL, STAY,
    "The model's recompute makes the blocks' inputs again, and each block's recompute its inner activations: least "
    "saved, most recomputed." },
  { "parts in blocks", PARTS | BLOCKS, STAY,
    "While a block is recomputed, attention and MLP save only their inputs: the peak is lower than with blocks." },
  { "blocks, host", BLOCKS, TO_HOST,
    "Inputs go to host memory; the device holds the one that backward needs and the one that is fetched ahead." },
  { "blocks, disk", BLOCKS, TO_DISK,
    "Inputs go to a file: wrappers free the inner activations, the store takes the outer ones, and nothing is left." },
  { "blocks in model, disk", BLOCKS | MODEL, TO_DISK,
    "One input goes to the file. The model's recompute makes the blocks' inputs again, and they stay in memory." },
  { "parts in blocks, disk", PARTS | BLOCKS, TO_DISK,
    "Nothing is left in memory after forward, and at most one part's activations return with its block's inputs." },
};

/* -- the command line ---------------------------------------------------------------------------------------------- */

static int n_blocks = 4, width = 64, n_heads = 4, batch = 4, n_tokens = 64;
static double dropout = 0.1;
static char *device_name, *folder;
static EbbDevice *device;

/* The first five are sizes. */
static const GOptionEntry options[] = {
  { "blocks", 0, 0, G_OPTION_ARG_INT, &n_blocks, "Number of transformer blocks (4)", "N" },
  { "width", 0, 0, G_OPTION_ARG_INT, &width, "Size of a token's vector (64)", "N" },
  { "heads", 0, 0, G_OPTION_ARG_INT, &n_heads, "Attention heads; the number must divide the width (4)", "N" },
  { "batch", 0, 0, G_OPTION_ARG_INT, &batch, "Rows of tokens (4)", "N" },
  { "tokens", 0, 0, G_OPTION_ARG_INT, &n_tokens, "Tokens in a row (64)", "N" },
  { "dropout", 0, 0, G_OPTION_ARG_DOUBLE, &dropout, "Probability of dropout (0.1)", "P" },
  { "device", 0, 0, G_OPTION_ARG_STRING, &device_name, "Device to measure on (sim)", "NAME" },
  { "folder", 0, 0, G_OPTION_ARG_FILENAME, &folder, "Folder of the disk store's file (the temporary folder)", "DIR" },
  { NULL, 0, 0, 0, NULL, NULL, NULL },
};

static gboolean
read_options (int argc,
              char **argv,
              GError **error)
{
  g_autoptr (GOptionContext) context = g_option_context_new ("- what nested wrappers and stores leave in memory");

  g_option_context_add_main_entries (context, options, NULL);
  if (!g_option_context_parse (context, &argc, &argv, error))
    return FALSE;
  for (guint i = 0; i < 5; i++)
    if (*(int *) options[i].arg_data < 1)
      g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--%s %d: it must be at least 1",
                   options[i].long_name, *(int *) options[i].arg_data);
  if (*error == NULL && argc > 1)
    g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "%s: only options are taken", argv[1]);
  if (*error == NULL && !(dropout >= 0 && dropout < 1))
    g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--dropout %g: it must be at least 0 and below 1",
                 dropout);
  return *error == NULL;
}

/* -- a model, wrapped in one of the ways --------------------------------------------------------------------------- */

static EbbModule *
make_model (GError **error)
{
  g_autoptr (EbbModule) model = ebb_sequential_new ();

  ebb_manual_seed (1);
  for (int i = 0; i < n_blocks; i++)
    {
      g_autoptr (EbbModule) block = ebb_transformer_block_new (width, n_heads, dropout, TRUE, TRUE, error);

      if (block == NULL || !ebb_sequential_append (EBB_SEQUENTIAL (model), block, error))
        return NULL;
    }
  return ebb_module_to_device (model, device, error) ? g_steal_pointer (&model) : NULL;
}

static EbbSavedTensorHooks *
make_store (Place place,
            GError **error)
{
  EbbSavedTensorHooks *store = place == TO_HOST ? ebb_host_store_new () : ebb_disk_store_new (folder, error);

  /* Sources in flight are on the device, too; without any, the columns add up. */
  if (store != NULL)
    g_object_set (store, "least-size", (guint64) 0, "in-flight", 0, NULL);
  return store;
}

static gboolean
is_part (EbbModule *module,
         const char *name,
         gpointer user_data)
{
  return EBB_IS_MULTI_HEAD_ATTENTION (module) || EBB_IS_MLP (module);
}

static gboolean
wrap (EbbModule *model,
      Wrapped wrapped,
      EbbSavedTensorHooks *store,
      GError **error)
{
  g_autoptr (EbbCheckpointOptions) how = ebb_checkpoint_options_new ();
  g_autoptr (EbbModule) same = NULL;

  ebb_checkpoint_options_set_store (how, store);
  if ((wrapped & PARTS) != 0 && !ebb_checkpoint_wrap_if (model, is_part, NULL, NULL, error))
    return FALSE;
  if ((wrapped & BLOCKS) != 0 && !ebb_checkpoint_wrap_each (model, EBB_TYPE_BLOCK, how, error))
    return FALSE;
  return (wrapped & MODEL) == 0 || (same = ebb_checkpoint_wrapper (model, how, error)) != NULL;
}

/* -- a step, measured ---------------------------------------------------------------------------------------------- */

typedef struct
{
  guint n_blocks, n_parts; /* forwards, recomputes included */
} Counts;

static gboolean
count_call (EbbModule *module,
            EbbArgs *args,
            EbbArgs *result,
            gpointer counts,
            GError **error)
{
  if (EBB_IS_BLOCK (module))
    ((Counts *) counts)->n_blocks++;
  else if (is_part (module, NULL, NULL))
    ((Counts *) counts)->n_parts++;
  return TRUE;
}

/* Watches all modules' forwards; returns the bytes that wrappers hold, in any place. */
static guint64
visit_modules (EbbModule *model,
               Counts *watched)
{
  guint n;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);
  guint64 saved = 0;

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbModule) module = modules[i];
      g_autoptr (EbbCheckpointStats) stats = ebb_checkpoint_get_stats (module);

      saved += stats != NULL ? stats->saved_bytes : 0;
      if (watched != NULL)
        ebb_module_add_forward_pre_hook (module, count_call, watched, NULL);
    }
  return saved;
}

static EbbTensor *
run_forward (EbbModule *model,
             GError **error)
{
  const gint64 shape[] = { batch, n_tokens, width };
  g_autoptr (EbbTensor) input = ebb_randn (shape, G_N_ELEMENTS (shape), EBB_DTYPE_F32, device, NULL, error);
  g_autoptr (EbbTensor) output = ebb_module_call1 (model, input, error);

  return ebb_sum (output, NULL, 0, FALSE, error);
}

static gboolean
run_step (EbbModule *model,
          GError **error)
{
  g_autoptr (EbbTensor) loss = run_forward (model, error);

  return ebb_tensor_backward (loss, error);
}

static gboolean
print_row (EbbModule *model,
           const Way *way,
           EbbSavedTensorHooks *store,
           GError **error)
{
  EbbActivationStore *moving = store != NULL ? EBB_ACTIVATION_STORE (store) : NULL;
  Counts counts = { 0, 0 };
  guint64 inner, outer, in_store = 0, at_most;

  /* The first step makes the gradients, which must not count in the second one. */
  if (!run_step (model, error))
    return FALSE;
  visit_modules (model, &counts);
  ebb_memory_reset_peaks (device);
  g_autoptr (EbbMemoryStats) before = ebb_memory_get_stats (device);
  g_autoptr (EbbTensor) loss = run_forward (model, error);

  if (loss == NULL)
    return FALSE;
  g_autoptr (EbbMemoryStats) between = ebb_memory_get_stats (device);
  if (moving != NULL && ebb_activation_store_get_bytes_put (moving) > 0)
    in_store = ebb_activation_store_get_bytes_held (moving);
  outer = visit_modules (model, NULL) - in_store;
  inner = ebb_memory_stats_get_current (between, EBB_PURPOSE_ACTIVATION)
          - ebb_memory_stats_get_current (before, EBB_PURPOSE_ACTIVATION) - outer;
  if (!ebb_tensor_backward (loss, error))
    return FALSE;
  g_autoptr (EbbMemoryStats) after = ebb_memory_get_stats (device);
  at_most = ebb_memory_stats_get_peak_total (after) - ebb_memory_stats_get_total (before);
  g_print ("%-22s%12" G_GUINT64_FORMAT "%12" G_GUINT64_FORMAT "%12" G_GUINT64_FORMAT "%12" G_GUINT64_FORMAT "%8u%7u\n",
           way->name, inner, outer, in_store, at_most, counts.n_blocks, counts.n_parts);
  return TRUE;
}

/* Whether the gradients of both models are the same bits. */
static gboolean
compare_gradients (EbbModule *plain,
                   EbbModule *model,
                   const char *name,
                   GError **error)
{
  guint n;
  g_auto (GStrv) names = ebb_module_get_parameter_names (plain, TRUE);
  g_autofree EbbTensor **expected = ebb_module_get_parameters (plain, TRUE, &n);
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (model, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (EbbTensor) one = expected[i], other = parameters[i];
      g_autoptr (EbbTensor) one_grad = ebb_tensor_get_grad (one), other_grad = ebb_tensor_get_grad (other);

      if (*error == NULL && !ebb_tensor_equal (one_grad, other_grad))
        g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE,
                     "%s: the gradient of %s is not that of the model without wrappers", name, names[i]);
    }
  return *error == NULL;
}

static gboolean
show_table (GError **error)
{
  g_autoptr (EbbModule) plain = NULL;

  device = ebb_device_get (device_name != NULL ? device_name : "sim", error);
  if (device == NULL)
    return FALSE;
  g_print ("%d transformer blocks of width %d, %d x %d tokens, on %s; an input has %" G_GSIZE_FORMAT " bytes\n"
           "Bytes saved from forward to backward, the step's peak of bytes besides parameters and gradients, and\n"
           "forwards, recomputes included\n\n%-22s%12s%12s%12s%12s%8s%7s\n",
           n_blocks, width, batch, n_tokens, ebb_device_get_name (device),
           sizeof (float) * (gsize) batch * (gsize) n_tokens * (gsize) width, "wrapped", "inner", "outer", "in store",
           "at most", "blocks", "parts");
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    {
      g_autoptr (EbbModule) model = make_model (error);
      g_autoptr (EbbSavedTensorHooks) store = NULL;

      if (model == NULL || (ways[i].place != STAY && (store = make_store (ways[i].place, error)) == NULL)
          || !wrap (model, ways[i].wrapped, store, error) || !print_row (model, &ways[i], store, error))
        return FALSE;
      if (plain == NULL)
        plain = g_object_ref (model);
      else if (!compare_gradients (plain, model, ways[i].name, error))
        return FALSE;
    }
  g_print ("\n");
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    g_print ("%s: %s\n", ways[i].name, ways[i].text);
  g_print ("\nIn every row the gradients of all %d parameters are those of the first, bit for bit.\n", 12 * n_blocks);
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GError) error = NULL;

  setlocale (LC_ALL, "");
  if (read_options (argc, argv, &error) && show_table (&error))
    return 0;
  g_printerr ("%s: %s\n", g_get_prgname (), error->message);
  return error->domain == G_OPTION_ERROR ? 2 : 1;
}
