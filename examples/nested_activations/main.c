/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include "step.h"

#include "common/command.h"

#include <stdio.h>

/* Shows what nested checkpoint wrappers and a store leave in memory, a row for each way to combine them:
 * `nested_activations --help`. */

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

  sizes->device = ebb_device_get (sizes->device_name, error);
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

int
main (int argc,
      char **argv)
{
  Options options;
  g_autoptr (GError) error = NULL;
  int status = 0;

  command_init (argv);
  options_init (&options);
  if (!options_parse (&options, argc, argv, &error))
    status = option_table_fail (&options.state, error->message);
  else if (!option_table_is_question (&options.state) && !show (&options.sizes, &error))
    status = command_fail (1, error->message);
  status = command_finish (status);
  options_clear (&options);
  return status;
}
