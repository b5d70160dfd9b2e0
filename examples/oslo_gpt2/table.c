/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* Prints the memory of all ranks, one way after the other. */
#include "table.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define MOST_ROWS 8 /* of a way; with more ranks only the one with most is printed */

gboolean
table_add (Table *self,
           const Way *way,
           EbbProcessGroup *group,
           const gint64 *figures,
           GError **error)
{
  const gint64 shape[] = { N_FIGURES };
  g_autoptr (EbbTensor) mine = ebb_tensor_new_from_ints (figures, N_FIGURES, shape, 1, error);
  g_autoptr (EbbTensor) all = ebb_process_group_all_gather (group, mine, error);
  g_autoptr (GBytes) bytes = all != NULL ? ebb_tensor_get_bytes (all, error) : NULL;

  if (bytes == NULL)
    return FALSE;
  g_assert (self->n_ways < TABLE_MAX_WAYS);
  self->n_ranks = ebb_process_group_get_size (group);
  self->ways[self->n_ways] = way;
  self->figures[self->n_ways++] = g_memdup2 (g_bytes_get_data (bytes, NULL), g_bytes_get_size (bytes));
  return TRUE;
}

/* The largest figure of any rank. */
static double
get_most (const Table *self,
          guint way,
          Figure figure)
{
  gint64 most = 0;

  for (guint i = 0; i < self->n_ranks; i++)
    most = MAX (most, self->figures[way][i * N_FIGURES + figure]);
  return (double) most;
}

static double
get_loss (const Table *self,
          guint way,
          guint rank)
{
  double loss;

  memcpy (&loss, &self->figures[way][rank * N_FIGURES + LOSS], sizeof loss);
  return loss;
}

/* -- printing ------------------------------------------------------------------------------------------------------ */

void
table_print_head (void)
{
  printf ("MiB of each rank when the forward pass ends: what the checkpoints keep, on the device and in the host's\n"
          "memory, and all that is on the device; and the most in the step: activations, and all\n\n");
  printf ("%-18s %4s %11s %11s %11s %11s %11s %8s  %s\n", "checkpointing", "rank", "kept", "on host", "all then",
          "activations", "all", "s/step", "loss");
}

static void
print_row (const char *name,
           const char *rank,
           const double *figures,
           double loss)
{
  printf ("%-18s %4s", name, rank);
  for (guint i = 0; i <= ALL_PEAK; i++)
    printf (" %11.2f", figures[i] / MIB);
  printf (" %8.2f  %.6f\n", figures[MICROSECONDS] / G_USEC_PER_SEC, loss);
}

void
table_print_last (const Table *self)
{
  const guint way = self->n_ways - 1;
  const char *name = self->ways[way]->name;
  double figures[N_FIGURES];

  for (guint i = 0; i < self->n_ranks && self->n_ranks <= MOST_ROWS; i++)
    {
      g_autofree char *rank = g_strdup_printf ("%u", i);

      for (guint j = 0; j < N_FIGURES; j++)
        figures[j] = (double) self->figures[way][i * N_FIGURES + j];
      print_row (i == 0 ? name : "", rank, figures, get_loss (self, way, i));
    }
  for (guint j = 0; j < N_FIGURES; j++)
    figures[j] = get_most (self, way, j);
  if (self->n_ranks > MOST_ROWS)
    print_row (name, "most", figures, get_loss (self, way, 0));
  fflush (stdout);
}

static void
print_ratio (const char *what,
             double before,
             double after)
{
  if (after > before)
    printf ("  %s +%.0f %%", what, 100 * (after / before - 1));
  else if (after > 0)
    printf ("  %s 1/%.2f", what, before / after);
  else
    printf ("  %s none", what);
}

void
table_print_end (const Table *self)
{
  printf ("\nOf what the first row has:\n");
  for (guint i = 1; i < self->n_ways; i++)
    {
      printf ("%-18s", self->ways[i]->name);
      print_ratio ("kept on the device", get_most (self, 0, KEPT_ON_DEVICE), get_most (self, i, KEPT_ON_DEVICE));
      print_ratio ("activations at most", get_most (self, 0, ACTIVATIONS_PEAK), get_most (self, i, ACTIVATIONS_PEAK));
      print_ratio ("all at most", get_most (self, 0, ALL_PEAK), get_most (self, i, ALL_PEAK));
      printf ("\n");
    }
  printf ("The losses of all rows are equal, bit for bit.\n");
}

gboolean
table_check_losses (const Table *self,
                    GError **error)
{
  for (guint i = 0; i < self->n_ways; i++)
    for (guint j = 0; j < self->n_ranks; j++)
      if (self->figures[i][j * N_FIGURES + LOSS] != self->figures[0][LOSS])
        {
          g_set_error (error, EBB_ERROR, EBB_ERROR_RECOMPUTE, "%s: the loss of rank %u is %.17g, not %.17g as at first",
                       self->ways[i]->name, j, get_loss (self, i, j), get_loss (self, 0, 0));
          return FALSE;
        }
  return TRUE;
}

void
table_clear (Table *self)
{
  for (guint i = 0; i < self->n_ways; i++)
    g_free (self->figures[i]);
  self->n_ways = 0;
}
