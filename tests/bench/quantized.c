/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <stdio.h>
#include <stdlib.h>

/* Times linear layers with weights in int8 and nf4 beside the same layers in the dtype of their input: forward and the
 * gradient of the input. Each round times all of them in turn, and the median over the rounds of the ratio to the plain
 * layer counts, so that what others do on the machine falls on all alike. */

static int rounds = 9, threads = 0, n_rows = 1024, n_inputs = 2048, n_outputs = 2048;
static gboolean f32;

static const GOptionEntry entries[] = {
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds, of whose ratios the median counts (9)", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "rows", 0, 0, G_OPTION_ARG_INT, &n_rows, "Rows of the input (1024)", "N" },
  { "inputs", 0, 0, G_OPTION_ARG_INT, &n_inputs, "Columns of the weight (2048)", "N" },
  { "outputs", 0, 0, G_OPTION_ARG_INT, &n_outputs, "Rows of the weight (2048)", "N" },
  { "f32", 0, 0, G_OPTION_ARG_NONE, &f32, "An input in f32 instead of bf16", NULL },
  G_OPTION_ENTRY_NULL,
};

#define N_KINDS 3 /* plain, int8, nf4 */

typedef struct
{
  EbbModule *layers[N_KINDS];
  EbbTensor *x, *sent;
} Operands;

static gboolean
operands_init (Operands *self,
               GError **error)
{
  const EbbDType dtype = f32 ? EBB_DTYPE_F32 : EBB_DTYPE_BF16;
  const gint64 x[] = { n_rows, n_inputs }, sent[] = { n_rows, n_outputs };

  for (int i = 0; i < N_KINDS; i++)
    {
      self->layers[i] = ebb_linear_new (n_inputs, n_outputs, FALSE, error);
      if (self->layers[i] == NULL || !ebb_module_to_dtype (self->layers[i], dtype, error)
          || !ebb_module_set_requires_grad (self->layers[i], FALSE, error)
          || (i > 0 && !ebb_quantize (self->layers[i], i == 1 ? EBB_QUANTIZATION_INT8 : EBB_QUANTIZATION_NF4, error)))
        return FALSE;
    }
  self->x = ebb_randn (x, 2, dtype, NULL, NULL, error);
  self->sent = ebb_randn (sent, 2, dtype, NULL, NULL, error);
  return self->x != NULL && self->sent != NULL && ebb_tensor_set_requires_grad (self->x, TRUE, error);
}

static void
operands_clear (Operands *self)
{
  for (int i = 0; i < N_KINDS; i++)
    g_clear_object (&self->layers[i]);
  g_clear_pointer (&self->x, ebb_tensor_unref);
  g_clear_pointer (&self->sent, ebb_tensor_unref);
}

/* Seconds of forward and of backward. */
static gboolean
run (const Operands *self,
     int kind,
     double seconds[2],
     GError **error)
{
  gint64 start = g_get_monotonic_time (), middle;
  g_autoptr (EbbTensor) y = ebb_module_call1 (self->layers[kind], self->x, error);
  EbbTensor *sent = self->sent, *outputs[] = { y };

  middle = g_get_monotonic_time ();
  if (y == NULL || !ebb_backward (outputs, 1, &sent, 1, NULL, 0, FALSE, error))
    return FALSE;
  seconds[0] = (double) (middle - start) * 1e-6;
  seconds[1] = (double) (g_get_monotonic_time () - middle) * 1e-6;
  return TRUE;
}

static int
compare (const void *a,
         const void *b)
{
  const double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

static double
take_median (double *values)
{
  qsort (values, (gsize) rounds, sizeof values[0], compare);
  return values[rounds / 2];
}

static gboolean
measure (const Operands *self,
         GError **error)
{
  static const char *const names[] = { "plain", "int8", "nf4" };
  g_autofree double *times = g_new (double, (gsize) (N_KINDS * 2 * rounds));
  const double flop = 2.0 * n_rows * n_inputs * n_outputs;
  double ignored[2];

  for (int kind = 0; kind < N_KINDS; kind++)
    if (!run (self, kind, ignored, error))
      return FALSE;
  for (int round = 0; round < rounds; round++)
    for (int kind = 0; kind < N_KINDS; kind++)
      {
        double seconds[2];

        if (!run (self, kind, seconds, error))
          return FALSE;
        for (int pass = 0; pass < 2; pass++)
          times[(kind * 2 + pass) * rounds + round] = seconds[pass];
      }
  for (int kind = N_KINDS - 1; kind >= 0; kind--)
    for (int pass = 0; pass < 2; pass++)
      {
        double *own = &times[(kind * 2 + pass) * rounds];
        g_autofree double *ratios = g_new (double, (gsize) rounds);

        for (int round = 0; round < rounds; round++)
          ratios[round] = times[pass * rounds + round] / own[round];
        printf ("%-5s %-8s %8.1f GFLOP/s, %5.2f of plain's speed\n", names[kind], pass == 0 ? "forward" : "gradient",
                flop * 1e-9 / take_median (own), take_median (ratios));
      }
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) context = g_option_context_new ("- time products with quantised weights");
  g_autoptr (GError) error = NULL;
  Operands operands = { { NULL } };
  gboolean ok;

  g_option_context_add_main_entries (context, entries, NULL);
  ok = g_option_context_parse (context, &argc, &argv, &error);
  if (ok && threads > 0)
    ebb_set_num_threads (threads);
  rounds = MAX (rounds, 1);
  ok = ok && operands_init (&operands, &error) && measure (&operands, &error);
  operands_clear (&operands);
  if (!ok)
    fprintf (stderr, "quantized: %s\n", error->message);
  return ok ? 0 : 1;
}
