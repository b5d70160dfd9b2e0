/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <stdio.h>
#include <string.h>

/* Times what an op costs beyond its arithmetic: tensors of one and of eight f32, so the kernel is next to nothing.
 * Each case is a chain of a hundred ops; the figure is the median over the rounds, in microseconds an op. Backward
 * begins at the sum of the chain's end, which is one op more in a hundred. */

#define N_OPS 100

static int rounds = 51, repeats = 20;
static char *only;
static gboolean as_json;

static const GOptionEntry entries[] = {
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds of which the median is taken", "N" },
  { "repeats", 0, 0, G_OPTION_ARG_INT, &repeats, "Chains a round", "N" },
  { "only", 0, 0, G_OPTION_ARG_STRING, &only, "This case alone", "CASE" },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object", NULL },
  G_OPTION_ENTRY_NULL,
};

typedef struct
{
  EbbTensor *x, *factor;
  EbbModule *linear; /* 8 to 8 features */
} Chain;

typedef EbbTensor *(*OpFunc) (Chain *chain,
                              EbbTensor *x,
                              guint i,
                              GError **error);

typedef enum
{
  NO_GRAD,
  FORWARD,        /* recorded, and the graph dropped */
  BACKWARD,       /* recorded, and gone back through */
  BACKWARD_LEAVES /* the second operand wants a gradient too: a leaf's, summed up over the chain */
} Mode;

static EbbTensor *
add_or_multiply (Chain *chain,
                 EbbTensor *x,
                 guint i,
                 GError **error)
{
  return i % 2 ? ebb_mul (x, chain->factor, error) : ebb_add (x, chain->factor, error);
}

static EbbTensor *
reshape (Chain *chain,
         EbbTensor *x,
         guint i,
         GError **error)
{
  static const gint64 shapes[2][2] = { { 2, 4 }, { 4, 2 } };

  return ebb_reshape (x, shapes[i % 2], 2, error);
}

static EbbTensor *
call_linear (Chain *chain,
             EbbTensor *x,
             guint i,
             GError **error)
{
  return ebb_module_call1 (chain->linear, x, error);
}

static const struct
{
  const char *name;
  OpFunc func;
  gint64 rows, columns;
  Mode mode;
} cases[] = {
  { "no_grad_us", add_or_multiply, 1, 8, NO_GRAD },
  { "no_grad_1_us", add_or_multiply, 1, 1, NO_GRAD },
  { "forward_us", add_or_multiply, 1, 8, FORWARD },
  { "forward_backward_us", add_or_multiply, 1, 8, BACKWARD },
  { "forward_backward_1_us", add_or_multiply, 1, 1, BACKWARD },
  { "forward_backward_leaves_us", add_or_multiply, 1, 8, BACKWARD_LEAVES },
  { "view_no_grad_us", reshape, 1, 8, NO_GRAD },
  { "view_forward_backward_us", reshape, 1, 8, BACKWARD },
  { "linear_no_grad_us", call_linear, 4, 8, NO_GRAD },
  { "linear_forward_backward_us", call_linear, 4, 8, BACKWARD },
};

static gboolean
run_chain (Chain *chain,
           OpFunc func,
           Mode mode,
           GError **error)
{
  g_autoptr (EbbTensor) x = ebb_tensor_ref (chain->x);
  g_autoptr (EbbTensor) sum = NULL;

  for (guint i = 0; i < N_OPS; i++)
    {
      EbbTensor *y = func (chain, x, i, error);

      ebb_tensor_unref (x);
      x = y;
    }
  if (mode < BACKWARD)
    return x != NULL;
  sum = ebb_sum (x, NULL, 0, FALSE, error);
  return ebb_tensor_backward (sum, error) && ebb_tensor_set_grad (chain->x, NULL, error);
}

static int
compare (const void *a,
         const void *b)
{
  double x = *(const double *) a, y = *(const double *) b;

  return x < y ? -1 : x > y;
}

/* Microseconds an op. */
static double
measure (Chain *chain,
         OpFunc func,
         Mode mode,
         GError **error)
{
  g_autofree double *times = g_new0 (double, (gsize) rounds);
  gboolean ok = TRUE;

  for (int round = -1; ok && round < rounds; round++)
    {
      gint64 start = g_get_monotonic_time ();

      for (int i = 0; ok && i < repeats; i++)
        ok = run_chain (chain, func, mode, error);
      if (round >= 0)
        times[round] = (double) (g_get_monotonic_time () - start);
    }
  qsort (times, (gsize) rounds, sizeof times[0], compare);
  return times[rounds / 2] / (N_OPS * repeats);
}

static gboolean
run_case (guint which,
          gboolean is_first,
          GError **error)
{
  const gint64 shape[] = { cases[which].rows, cases[which].columns };
  Mode mode = cases[which].mode;
  g_autoptr (EbbTensor) x = ebb_ones (shape, 2, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbTensor) factor = ebb_full (shape, 2, 0.5, EBB_DTYPE_F32, NULL, error);
  g_autoptr (EbbModule) linear = ebb_linear_new (8, 8, TRUE, error);
  Chain chain = { x, factor, linear };
  double us;

  if (mode != NO_GRAD)
    ebb_tensor_set_requires_grad (x, TRUE, error);
  if (mode == BACKWARD_LEAVES)
    ebb_tensor_set_requires_grad (factor, TRUE, error);
  ebb_push_grad_enabled (mode != NO_GRAD);
  us = measure (&chain, cases[which].func, mode, error);
  ebb_pop_grad_enabled ();
  if (error != NULL && *error != NULL)
    return FALSE;
  if (as_json)
    printf ("%s\"%s\": %.4f", is_first ? "{" : ", ", cases[which].name, us);
  else
    printf ("%-28s %7.3f\n", cases[which].name, us);
  return TRUE;
}

int
main (int argc,
      char **argv)
{
  g_autoptr (GOptionContext) options = g_option_context_new (NULL);
  g_autoptr (GError) error = NULL;
  gboolean ok, is_first = TRUE;

  g_option_context_add_main_entries (options, entries, NULL);
  ok = g_option_context_parse (options, &argc, &argv, &error);
  if (!ok || rounds < 1 || repeats < 1)
    {
      fprintf (stderr, "tiny-op: %s\n", ok ? "--rounds and --repeats must be 1 or more" : error->message);
      return 2;
    }
  for (guint i = 0; ok && i < G_N_ELEMENTS (cases); i++)
    if (only == NULL || strcmp (only, cases[i].name) == 0)
      {
        ok = run_case (i, is_first, &error);
        is_first = FALSE;
      }
  if (!ok)
    {
      fprintf (stderr, "tiny-op: %s\n", error->message);
      return 1;
    }
  if (as_json)
    printf ("%s}\n", is_first ? "{" : "");
  return 0;
}
