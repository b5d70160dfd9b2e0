/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <stdio.h>
#include <time.h>

/* Times what an op on a GPU costs the host, with tensors of eight f32: on the emulated GPU, whose runtime does nothing
 * (EBB_CUDAEMU_IDLE), or with --device cuda, where CUDA's own calls come on top of it. The figure is the median over
 * the rounds of the thread's processor time, in microseconds an op. The goal is at most 4, and 6 for a product. */

#define N_OPS 100

static int rounds = 101;
static gboolean as_json;
static char *device_name;

static const GOptionEntry entries[] = {
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds of which the median is taken", "N" },
  { "device", 0, 0, G_OPTION_ARG_STRING, &device_name, "cuda, cuda:1, or cudaemu (cudaemu)", "NAME" },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object", NULL },
  G_OPTION_ENTRY_NULL,
};

typedef struct
{
  EbbTensor *x, *matrix;
  EbbModule *linear, *norm;
} Operands;

typedef EbbTensor *(*OpFunc) (const Operands *operands,
                              EbbTensor *x,
                              GError **error);

static EbbTensor *
add (const Operands *operands,
     EbbTensor *x,
     GError **error)
{
  return ebb_add (x, operands->x, error);
}

static EbbTensor *
gelu (const Operands *operands,
      EbbTensor *x,
      GError **error)
{
  return ebb_gelu (x, EBB_GELU_TANH, error);
}

static EbbTensor *
multiply (const Operands *operands,
          EbbTensor *x,
          GError **error)
{
  return ebb_matmul (x, operands->matrix, error);
}

static EbbTensor *
run_linear (const Operands *operands,
            EbbTensor *x,
            GError **error)
{
  return ebb_module_call1 (operands->linear, x, error);
}

static EbbTensor *
normalize (const Operands *operands,
           EbbTensor *x,
           GError **error)
{
  return ebb_module_call1 (operands->norm, x, error);
}

static const struct
{
  const char *name;
  OpFunc run;
  gboolean is_product;
  gboolean has_graph; /* recorded, and gone back through */
} cases[] = {
  { "add", add, FALSE, FALSE },
  { "gelu", gelu, FALSE, FALSE },
  { "layer_norm", normalize, FALSE, FALSE },
  { "matmul", multiply, TRUE, FALSE },
  { "linear", run_linear, TRUE, FALSE },
  { "add, backward", add, FALSE, TRUE },
  { "linear, backward", run_linear, TRUE, TRUE },
};

static double
get_time (void)
{
  struct timespec now;

  clock_gettime (CLOCK_THREAD_CPUTIME_ID, &now);
  return (double) now.tv_sec * 1e6 + (double) now.tv_nsec * 1e-3;
}

static int
compare (const void *a,
         const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

/* Microseconds for each op, forward and backward counted as one. */
static double
run_chain (guint which,
           const Operands *operands)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = ebb_tensor_ref (operands->x);
  double start;

  start = get_time ();
  for (guint i = 0; i < N_OPS; i++)
    {
      EbbTensor *next = cases[which].run (operands, x, &error);

      g_assert_no_error (error);
      ebb_tensor_unref (x);
      x = next;
    }
  if (cases[which].has_graph)
    {
      g_autoptr (EbbTensor) sum = ebb_sum (x, NULL, 0, FALSE, &error);

      g_assert_true (ebb_tensor_backward (sum, &error) && ebb_tensor_set_grad (operands->x, NULL, &error));
    }
  g_clear_pointer (&x, ebb_tensor_unref);
  start = get_time () - start;
  g_assert_true (ebb_device_synchronize (ebb_tensor_get_device (operands->x), &error));
  return start / N_OPS;
}

static double
measure (guint which,
         const Operands *operands)
{
  g_autofree double *times = g_new (double, rounds);

  g_assert_true (ebb_tensor_set_requires_grad (operands->x, cases[which].has_graph, NULL));
  run_chain (which, operands);
  for (int i = 0; i < rounds; i++)
    times[i] = run_chain (which, operands);
  qsort (times, (gsize) rounds, sizeof *times, compare);
  return times[rounds / 2];
}

int
main (int argc,
      char *argv[])
{
  g_autoptr (GOptionContext) context = g_option_context_new ("- what an op on a GPU costs the host");
  g_autoptr (GError) error = NULL;
  EbbDevice *device;
  Operands operands;

  g_option_context_add_main_entries (context, entries, NULL);
  if (!g_option_context_parse (context, &argc, &argv, &error))
    {
      fprintf (stderr, "%s\n", error->message);
      return 2;
    }
  g_setenv ("EBB_CUDAEMU_IDLE", "1", TRUE);
  device = ebb_device_get (device_name != NULL ? device_name : "cudaemu", &error);
  if (device == NULL)
    {
      fprintf (stderr, "%s\n", error->message);
      return 1;
    }
  ebb_set_default_device (device);
  operands.x = ebb_ones ((const gint64[]){ 1, 8 }, 2, EBB_DTYPE_F32, device, &error);
  operands.matrix = ebb_ones ((const gint64[]){ 8, 8 }, 2, EBB_DTYPE_F32, device, &error);
  operands.linear = ebb_linear_new (8, 8, TRUE, &error);
  operands.norm = ebb_layer_norm_new (8, 1e-5, TRUE, &error);
  g_assert_no_error (error);
  if (as_json)
    printf ("{");
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      double time = measure (i, &operands);

      if (as_json)
        printf ("%s\"%s\": %.2f", i > 0 ? ", " : "", cases[i].name, time);
      else
        printf ("%-20s %5.2f us%s\n", cases[i].name, time, cases[i].is_product ? " (product)" : "");
    }
  if (as_json)
    printf ("}\n");
  g_object_unref (operands.linear);
  g_object_unref (operands.norm);
  ebb_tensor_unref (operands.matrix);
  ebb_tensor_unref (operands.x);
  return 0;
}
