/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "common/command.h"
#include "step.h"

#include <math.h>
#include <stdio.h>

/* Shows what nested checkpoint wrappers and a store leave in memory, a row for each way to combine them:
 * `nested_activations --help`. Exit status: 0; 1 for a failure or gradients that differ; 2 for wrong options. */

static const Way ways[] = {
  { "none", 0, STAY,
    "Nothing is wrapped. All that backward needs is saved." },
  { "blocks", WRAP_BLOCKS, STAY,
    "Each block saves its input (outer) and frees what it computes (inner); backward recomputes one block at a time." },
  { "model", WRAP_MODEL, STAY,
    "The model saves only its input. Its one recompute brings everything back at once: the peak is that of none." },
  { "blocks in model", WRAP_BLOCKS | WRAP_MODEL, STAY,
    "The model's recompute makes the blocks' inputs again, and each block's recompute its inner activations: least "
    "saved, most recomputed." },
  { "parts in blocks", WRAP_PARTS | WRAP_BLOCKS, STAY,
    "While a block is recomputed, attention and MLP save only their inputs: the peak is lower than with blocks." },
  { "blocks, host", WRAP_BLOCKS, TO_HOST,
    "Inputs go to host memory; the device holds the one that backward needs and the one that is fetched ahead." },
  { "blocks, disk", WRAP_BLOCKS, TO_DISK,
    "Inputs go to a file: wrappers free the inner activations, the store takes the outer ones, and nothing is left." },
  { "blocks in model, disk", WRAP_BLOCKS | WRAP_MODEL, TO_DISK,
    "One input goes to the file. The model's recompute makes the blocks' inputs again, and they stay in memory." },
  { "parts in blocks, disk", WRAP_PARTS | WRAP_BLOCKS, TO_DISK,
    "Nothing is left in memory after forward, and at most one part's activations return with its block's inputs." },
};

static void
print_head (const Sizes *sizes)
{
  guint64 n_bytes = (guint64) sizes->batch * (guint64) sizes->tokens * (guint64) sizes->width * sizeof (float);

  printf ("%d transformer blocks of width %d, %d x %d tokens, on %s; an input has %" G_GUINT64_FORMAT " bytes\n",
          sizes->blocks, sizes->width, sizes->batch, sizes->tokens, ebb_device_get_name (sizes->device), n_bytes);
  printf ("Bytes saved from forward to backward, the step's peak of bytes besides parameters and gradients, and\n"
          "forwards, recomputes included\n\n");
  printf ("%-22s%12s%12s%12s%12s%8s%7s\n", "wrapped", "inner", "outer", "in store", "at most", "blocks", "parts");
}

static void
print_row (const Way *way,
           const Step *step)
{
  printf ("%-22s%12" G_GUINT64_FORMAT "%12" G_GUINT64_FORMAT "%12" G_GUINT64_FORMAT "%12" G_GUINT64_FORMAT "%8u%7u\n",
          way->name, step->inner, step->outer, step->in_store, step->at_most, step->n_blocks, step->n_parts);
}

static void
print_texts (const Step *first)
{
  printf ("\n");
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    printf ("%s: %s\n", ways[i].name, ways[i].text);
  printf ("\nIn every row the gradients of all %u parameters are those of the first, bit for bit.\n",
          first->gradients->len);
}

/* Runs and prints a row; @first is NULL for the first one. */
static gboolean
show_row (Step *step,
          const Sizes *sizes,
          const Way *way,
          const Step *first,
          GError **error)
{
  const char *different;

  if (!step_run (step, sizes, way, error))
    return FALSE;
  print_row (way, step);
  different = first != NULL ? step_find_difference (first, step) : NULL;
  if (different == NULL)
    return TRUE;
  g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE,
               "%s: the gradient of %s is not that of the model without wrappers", way->name, different);
  return FALSE;
}

static gboolean
show (Sizes *sizes,
      GError **error)
{
  Step steps[G_N_ELEMENTS (ways)] = { 0 };
  gboolean ok = TRUE;

  sizes->device = ebb_device_get (sizes->device_name != NULL ? sizes->device_name : "sim", error);
  if (sizes->device == NULL)
    return FALSE;
  print_head (sizes);
  for (guint i = 0; i < G_N_ELEMENTS (ways) && ok; i++)
    ok = show_row (&steps[i], sizes, &ways[i], i > 0 ? &steps[0] : NULL, error);
  if (ok)
    print_texts (&steps[0]);
  for (guint i = 0; i < G_N_ELEMENTS (ways); i++)
    step_clear (&steps[i]);
  return ok;
}

/* -- command line -------------------------------------------------------------------------------------------------- */

static gboolean
check (const Sizes *sizes,
       GError **error)
{
  const struct
  {
    const char *option;
    int value;
  } numbers[] = {
    { "blocks", sizes->blocks },
    { "width", sizes->width },
    { "heads", sizes->heads },
    { "batch", sizes->batch },
    { "tokens", sizes->tokens },
  };

  for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
    if (numbers[i].value < 1)
      {
        g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE,
                     "--%s %d: it must be a whole number of at least 1", numbers[i].option, numbers[i].value);
        return FALSE;
      }
  if (isfinite (sizes->dropout) && sizes->dropout >= 0 && sizes->dropout < 1)
    return TRUE;
  g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_BAD_VALUE, "--dropout %g: it must be at least 0 and below 1",
               sizes->dropout);
  return FALSE;
}

/* @printed: whether the command line asked for --help or --version, which was printed. */
static gboolean
parse (Sizes *sizes,
       gboolean *printed,
       int argc,
       char **argv,
       GError **error)
{
  gboolean help = FALSE, version = FALSE;
  const GOptionEntry entries[] = {
    { "blocks", 0, 0, G_OPTION_ARG_INT, &sizes->blocks, "Number of transformer blocks (4)", "N" },
    { "width", 0, 0, G_OPTION_ARG_INT, &sizes->width, "Size of a token's vector (64)", "N" },
    { "heads", 0, 0, G_OPTION_ARG_INT, &sizes->heads, "Attention heads; the number must divide the width (4)", "N" },
    { "batch", 0, 0, G_OPTION_ARG_INT, &sizes->batch, "Rows of tokens (4)", "N" },
    { "tokens", 0, 0, G_OPTION_ARG_INT, &sizes->tokens, "Tokens in a row (64)", "N" },
    { "dropout", 0, 0, G_OPTION_ARG_DOUBLE, &sizes->dropout, "Probability of dropout (0.1)", "P" },
    { "device", 0, 0, G_OPTION_ARG_STRING, &sizes->device_name,
      command_describe_devices ("Device to measure on", "sim"), "NAME" },
    { "folder", 0, 0, G_OPTION_ARG_FILENAME, &sizes->folder,
      "Folder of the disk store's file (the system's temporary folder)", "DIR" },
    COMMAND_ENTRIES (&version, &help),
    { NULL }
  };
  g_autoptr (GOptionContext) context =
      g_option_context_new ("- measure what nested checkpoint wrappers and stores leave in memory");

  g_option_context_set_help_enabled (context, FALSE);
  g_option_context_add_main_entries (context, entries, NULL);
  g_option_context_set_description (
      context, "Exit status: 0; 1 for a failure or gradients that differ; 2 for wrong options.\n");
  if (!g_option_context_parse (context, &argc, &argv, error))
    return FALSE;
  *printed = help || version;
  if (help)
    {
      g_autofree char *text = command_get_help (context);

      fputs (text, stdout);
    }
  else if (version)
    command_print_version ();
  if (*printed)
    return TRUE;
  if (argc == 1)
    return check (sizes, error);
  g_set_error (error, G_OPTION_ERROR, G_OPTION_ERROR_FAILED, "%s: only options are allowed", argv[1]);
  return FALSE;
}

int
main (int argc,
      char **argv)
{
  Sizes sizes = { .blocks = 4, .width = 64, .heads = 4, .batch = 4, .tokens = 64, .dropout = 0.1 };
  g_autoptr (GError) error = NULL;
  gboolean printed = FALSE;
  int status = 0;

  command_init (argv);
  if (!parse (&sizes, &printed, argc, argv, &error))
    status = command_fail_usage (error->message);
  else if (!printed && !show (&sizes, &error))
    status = command_fail (1, error->message);
  status = command_finish (status);
  g_free (sizes.folder);
  g_free (sizes.device_name);
  return status;
}
