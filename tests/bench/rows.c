/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include <ebb/ebb.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Times the ops that reduce rows, forward and backward: the norms, the variance, the cross entropy, attention. The
 * figure is the least of the rounds, in microseconds: what others do on the machine only adds. in_turns.py compares
 * two builds of the library by it. */

/* Elements that a round takes at least: short ops are repeated. */
#define ROUND_ELEMENTS (1 << 20)

static int rounds = 15, threads = 1;
static char *only;
static gboolean as_json;

static const GOptionEntry entries[] = {
  { "rounds", 0, 0, G_OPTION_ARG_INT, &rounds, "Rounds of which the least is taken", "N" },
  { "threads", 0, 0, G_OPTION_ARG_INT, &threads, "CPU threads", "N" },
  { "only", 0, 0, G_OPTION_ARG_STRING, &only, "This case alone", "CASE" },
  { "json", 0, 0, G_OPTION_ARG_NONE, &as_json, "Print one JSON object", NULL },
  G_OPTION_ENTRY_NULL,
};

typedef EbbTensor *(*OpFunc) (EbbTensor **x,
                              GError **error);

static EbbTensor *
layer_norm (EbbTensor **x,
            GError **error)
{
  return ebb_layer_norm (x[0], x[1], x[2], 1e-5, error);
}

static EbbTensor *
rms_norm (EbbTensor **x,
          GError **error)
{
  return ebb_rms_norm (x[0], x[1], 1e-5, error);
}

static EbbTensor *
batch_norm (EbbTensor **x,
            GError **error)
{
  return ebb_batch_norm (x[0], x[1], x[2], NULL, NULL, TRUE, 0.1, 1e-5, error);
}

static EbbTensor *
var (EbbTensor **x,
     GError **error)
{
  return ebb_var (x[0], (const int[]){ -1 }, 1, 1, FALSE, error);
}

static EbbTensor *
var_of_columns (EbbTensor **x,
                GError **error)
{
  return ebb_var (x[0], (const int[]){ 0 }, 1, 1, FALSE, error);
}

static EbbTensor *
cross_entropy (EbbTensor **x,
               GError **error)
{
  return ebb_cross_entropy (x[0], x[1], error);
}

static EbbTensor *
attention (EbbTensor **x,
           GError **error)
{
  return ebb_self_attention (x[0], 12, NULL, TRUE, 0, 0, NULL, error);
}

typedef enum
{
  NONE,
  VECTORS, /* weight and bias, as long as dimension 1 */
  TARGETS
} Others;

static const struct
{
  const char *name;
  OpFunc func;
  EbbDType dtype;
  gint64 shape[3]; /* the last may be 0: none */
  Others others;
} cases[] = {
  { "layer_norm_4096x768", layer_norm, EBB_DTYPE_F32, { 4096, 768 }, VECTORS },
  { "layer_norm_64x768", layer_norm, EBB_DTYPE_F32, { 64, 768 }, VECTORS },
  { "layer_norm_4096x768_bf16", layer_norm, EBB_DTYPE_BF16, { 4096, 768 }, VECTORS },
  { "layer_norm_64x768_bf16", layer_norm, EBB_DTYPE_BF16, { 64, 768 }, VECTORS },
  { "layer_norm_64x8192", layer_norm, EBB_DTYPE_F32, { 64, 8192 }, VECTORS },
  { "layer_norm_65536x33", layer_norm, EBB_DTYPE_F32, { 65536, 33 }, VECTORS },
  { "rms_norm_4096x768", rms_norm, EBB_DTYPE_F32, { 4096, 768 }, VECTORS },
  { "rms_norm_64x768", rms_norm, EBB_DTYPE_F32, { 64, 768 }, VECTORS },
  { "batch_norm_32x64x1024", batch_norm, EBB_DTYPE_F32, { 32, 64, 1024 }, VECTORS },
  { "batch_norm_4096x768", batch_norm, EBB_DTYPE_F32, { 4096, 768 }, VECTORS },
  { "var_4096x768", var, EBB_DTYPE_F32, { 4096, 768 }, NONE },
  { "var_of_columns_4096x768", var_of_columns, EBB_DTYPE_F32, { 4096, 768 }, NONE },
  { "cross_entropy_512x8192", cross_entropy, EBB_DTYPE_F32, { 512, 8192 }, TARGETS },
  { "cross_entropy_512x8192_bf16", cross_entropy, EBB_DTYPE_BF16, { 512, 8192 }, TARGETS },
  { "attention_4x512x12x64", attention, EBB_DTYPE_F32, { 4, 512, 2304 }, NONE },
};

static EbbTensor *
make_leaf (const gint64 *shape,
           guint n_dims,
           EbbDType dtype,
           GError **error)
{
  EbbTensor *leaf = ebb_randn (shape, n_dims, dtype, NULL, NULL, error);

  return leaf != NULL && ebb_tensor_set_requires_grad (leaf, TRUE, error) ? leaf : NULL;
}

/* Adds the microseconds forward and backward to @times. */
static gboolean
run_once (guint which,
          EbbTensor **x,
          guint n_wanted,
          gint64 times[2],
          GError **error)
{
  gint64 start = g_get_monotonic_time (), between;
  g_autoptr (EbbTensor) y = cases[which].func (x, error);
  g_autoptr (EbbTensor) dy = NULL;
  EbbTensor **grads;
  guint n_grads = 0;

  between = g_get_monotonic_time ();
  if (y == NULL || (dy = ebb_tensor_detach (y)) == NULL)
    return FALSE;
  times[0] += between - start;
  start = g_get_monotonic_time ();
  grads = ebb_grad (&y, 1, x, n_wanted, &dy, 1, FALSE, &n_grads, error);
  times[1] += g_get_monotonic_time () - start;
  for (guint i = 0; i < n_grads; i++)
    ebb_tensor_unref (grads[i]);
  g_free (grads);
  return n_grads > 0;
}

/* The least of all rounds. */
static gboolean
measure (guint which,
         double *forward,
         double *backward,
         GError **error)
{
  const gint64 *shape = cases[which].shape;
  guint n_dims = shape[2] > 0 ? 3 : 2, n_x = 1, n_wanted;
  int repeats = (int) MAX (1, ROUND_ELEMENTS / (shape[0] * shape[1] * MAX (shape[2], 1)));
  EbbTensor *x[3] = { make_leaf (shape, n_dims, cases[which].dtype, error) };

  if (cases[which].others == VECTORS)
    for (; n_x < 3; n_x++)
      x[n_x] = make_leaf (&shape[1], 1, EBB_DTYPE_F32, error);
  if (cases[which].others == TARGETS)
    x[n_x++] = ebb_randint (0, shape[1], shape, 1, EBB_DTYPE_I64, NULL, NULL, error);
  n_wanted = cases[which].others == TARGETS ? 1 : cases[which].func == rms_norm ? 2
                                                                                : n_x;
  *forward = *backward = G_MAXDOUBLE;
  for (int round = 0; round < rounds; round++)
    {
      gint64 times[2] = { 0, 0 };

      for (int i = 0; i < repeats; i++)
        if (!run_once (which, x, n_wanted, times, error))
          return FALSE;
      *forward = MIN (*forward, (double) times[0] / repeats);
      *backward = MIN (*backward, (double) times[1] / repeats);
    }
  for (guint i = 0; i < n_x; i++)
    ebb_tensor_unref (x[i]);
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
  if (!ok || rounds < 1 || threads < 1)
    {
      fprintf (stderr, "rows: %s\n", ok ? "--rounds and --threads must be 1 or more" : error->message);
      return 2;
    }
  ebb_set_num_threads (threads);
  for (guint i = 0; ok && i < G_N_ELEMENTS (cases); i++)
    if (only == NULL || strcmp (only, cases[i].name) == 0)
      {
        double forward = 0, backward = 0;

        ok = measure (i, &forward, &backward, &error);
        if (ok && as_json)
          printf ("%s\"%s\": %.2f, \"%s_backward\": %.2f", is_first ? "{" : ", ", cases[i].name, forward, cases[i].name,
                  backward);
        else if (ok)
          printf ("%-28s %9.1f forward %9.1f backward\n", cases[i].name, forward, backward);
        is_first = FALSE;
      }
  if (!ok)
    {
      fprintf (stderr, "rows: %s\n", error->message);
      return 1;
    }
  if (as_json)
    printf ("%s}\n", is_first ? "{" : "");
  return 0;
}
