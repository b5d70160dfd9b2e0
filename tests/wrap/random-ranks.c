/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */
#include "support/random-ranks.h"

#include "support/device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Small models with wrappers of all kinds put on at random. Each is compared, to the bit, with itself without
 * checkpoints and stores, and to rounding with the model that one rank trains as a whole.
 *
 * `random-ranks SEED [COUNT]` runs the seeds from SEED on. */

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define N_SEEDS 100
#else
#define N_SEEDS 600
#endif
#define F32_TOLERANCE 1e-3
#define BF16_TOLERANCE 0.5 /* bf16 alone changes gradients of such models by up to 0.4 */

/* Why a model may be refused: words of the messages. */
static const char *const refusals[] = { "lora: no linear layer of this", "quantize: Sequential has no linear layer",
                                        "is one rank's part already, not the same on the",
                                        NULL };

typedef struct
{
  guint n_runs, n_refused, n_failed;
} Tally;

/* -- what is compared ---------------------------------------------------------------------------------------------- */

/* The gradient of a parameter, of the ranks that share it, joined in their order. */
static GBytes *
join (const TestRankRun *run, guint tensor_rank, guint step, guint parameter)
{
  GByteArray *joined = g_byte_array_new ();

  for (guint i = tensor_rank; i < run->n_ranks; i += run->program.n_tensor)
    {
      gsize size;
      gconstpointer data = g_bytes_get_data (g_ptr_array_index (run->views[i].gradients[step], parameter), &size);

      g_byte_array_append (joined, data, (guint) size);
      if (!run->program.shards)
        break;
    }
  return g_byte_array_free_to_bytes (joined);
}

static char *
compare_to_the_bit (const TestRankRun *a, const TestRankRun *b)
{
  for (guint step = 0; step < TEST_RANK_STEPS; step++)
    for (guint i = 0; i < a->n_ranks; i++)
      {
        const TestRankView *one = &a->views[i], *other = &b->views[i];

        if (memcmp (&one->losses[step], &other->losses[step], sizeof (double)) != 0)
          return g_strdup_printf ("loss of step %u on rank %u: %.9g, without checkpoints and stores %.9g", step, i,
                                  one->losses[step], other->losses[step]);
        for (guint k = 0; k < a->n_parameters; k++)
          if (!g_bytes_equal (g_ptr_array_index (one->gradients[step], k),
                              g_ptr_array_index (other->gradients[step], k)))
            return g_strdup_printf ("gradient of %s in step %u on rank %u is not that without checkpoints and stores",
                                    a->names[k], step, i);
      }
  return NULL;
}

static double
get_norm (GBytes *bytes)
{
  gsize size;
  const float *values = g_bytes_get_data (bytes, &size);
  double sum = 0;

  for (gsize i = 0; i < size / sizeof (float); i++)
    sum += (double) values[i] * (double) values[i];
  return sqrt (sum);
}

/* @scale: the least norm with which the difference is compared: gradients that ought to be zero are noise. */
static char *
compare_values (GBytes *a, GBytes *b, double tolerance, double scale)
{
  gsize size, expected;
  const float *one = g_bytes_get_data (a, &size), *other = g_bytes_get_data (b, &expected);
  double norm = get_norm (b), sum = 0;

  if (size != expected)
    return g_strdup_printf ("%zu bytes, not %zu", size, expected);
  for (gsize i = 0; i < size / sizeof (float); i++)
    sum += ((double) one[i] - (double) other[i]) * ((double) one[i] - (double) other[i]);
  if (sqrt (sum) <= tolerance * MAX (norm, scale))
    return NULL;
  return g_strdup_printf ("the difference has a norm of %.3g, the gradient one of %.3g", sqrt (sum), norm);
}

/* Of one tensor rank of each. Where tensor ranks divide only one of the two, its gradients are gathered. */
static char *
compare_near (const TestRankRun *a, const TestRankRun *b, guint tensor_rank, double tolerance)
{
  gboolean gathers = a->program.n_tensor != b->program.n_tensor;
  double share = tolerance == BF16_TOLERANCE ? 1 : 0.1;
  /* Adapters have great gradients here, and their second step magnifies what bf16 rounded in the first. */
  guint n_steps = tolerance == BF16_TOLERANCE && a->program.adapts ? 1 : TEST_RANK_STEPS;

  if (!g_strv_equal ((const char *const *) a->names, (const char *const *) b->names))
    return g_strdup ("the parameters have other names");
  for (guint step = 0; step < n_steps; step++)
    {
      double loss = a->views[tensor_rank].losses[step];
      double expected = b->views[gathers ? 0 : tensor_rank].losses[step], norm = 0;
      g_autoptr (GPtrArray) all = g_ptr_array_new_with_free_func ((GDestroyNotify) g_bytes_unref);

      if (!(fabs (loss - expected) <= MIN (tolerance, 0.05) * fabs (expected)))
        return g_strdup_printf ("loss of step %u: %.9g, plain %.9g", step, loss, expected);
      for (guint k = 0; k < a->n_parameters; k++)
        {
          g_ptr_array_add (all, join (b, gathers ? 0 : tensor_rank, step, k));
          norm = hypot (norm, get_norm (all->pdata[k]));
        }
      for (guint k = 0; k < a->n_parameters; k++)
        {
          g_autoptr (GBytes) own = gathers ? g_bytes_ref (a->views[0].whole[step]->pdata[k])
                                           : join (a, tensor_rank, step, k);
          g_autofree char *difference = compare_values (own, all->pdata[k], tolerance, share * norm);

          if (difference != NULL)
            return g_strdup_printf ("gradient of %s in step %u: %s (plain)", a->names[k], step, difference);
        }
    }
  return NULL;
}

/* -- ways ---------------------------------------------------------------------------------------------------------- */

static TestRankRun *
run_without (const TestRankProgram *program, gboolean wraps, gboolean shards, gboolean divides, GError **error)
{
  TestRankProgram less = *program;

  if (!wraps)
    less.checkpoints = less.stores = 0;
  if (!shards)
    {
      less.shards = FALSE;
      less.n_data = 1;
    }
  if (!divides)
    {
      less.n_tensor = 1;
      less.sequence_parallel = FALSE;
    }
  return test_rank_program_run (&less, error);
}

/* Units on one rank or two give the same bits; three divide by three. In bf16 units round where they lower, and where
 * kernels that are one without them are several; beside adapters these differ in f32, too. */
static double
get_shard_tolerance (const TestRankProgram *program)
{
  if (program->lowers || (program->autocast && (program->units > 0 || program->n_data == 3)))
    return BF16_TOLERANCE;
  return program->n_data == 3 || program->adapts ? F32_TOLERANCE : 0;
}

static char *
compare (const TestRankProgram *program, TestRankRun **wrapped, GError **error)
{
  g_autoptr (TestRankRun) same = NULL;
  g_autoptr (TestRankRun) whole = NULL;
  g_autoptr (TestRankRun) plain = NULL;
  const TestRankRun *divided;
  char *difference = NULL;

  *wrapped = test_rank_program_run (program, error);
  same = *wrapped != NULL ? run_without (program, FALSE, TRUE, TRUE, error) : NULL;
  whole = same != NULL && program->shards ? run_without (program, FALSE, FALSE, TRUE, error) : NULL;
  if (same == NULL || (program->shards && whole == NULL))
    return NULL;
  difference = compare_to_the_bit (*wrapped, same);
  for (guint i = 0; difference == NULL && whole != NULL && i < program->n_tensor; i++)
    difference = compare_near (same, whole, i, get_shard_tolerance (program));
  if (difference != NULL || program->n_tensor == 1 || program->dropout > 0) /* tensor ranks draw other numbers */
    return difference;
  plain = run_without (program, FALSE, FALSE, FALSE, error);
  divided = whole != NULL ? whole : same;
  return plain != NULL ? compare_near (divided, plain, 0, program->autocast ? BF16_TOLERANCE : F32_TOLERANCE) : NULL;
}

static gboolean
is_known (const GError *error)
{
  for (guint i = 0; refusals[i] != NULL; i++)
    if (strstr (error->message, refusals[i]) != NULL)
      return TRUE;
  return FALSE;
}

static void
try_seed (guint64 seed, Tally *tally)
{
  TestRankProgram program;
  g_autoptr (TestRankRun) wrapped = NULL;
  g_autoptr (GError) error = NULL;
  g_autofree char *difference = NULL, *text = NULL;

  test_rank_program_draw (&program, seed);
  text = test_rank_program_describe (&program);
  difference = compare (&program, &wrapped, &error);
  tally->n_runs++;
  if (error != NULL && is_known (error))
    tally->n_refused++;
  else if (error != NULL || difference != NULL)
    {
      tally->n_failed++;
      g_printerr ("%s%s  %s\n", text, wrapped != NULL ? wrapped->text : "",
                  error != NULL ? error->message : difference);
    }
}

/* -- seeds --------------------------------------------------------------------------------------------------------- */

static guint64 first_seed = 1;
static guint n_seeds;

static void
wrapped_models_do_what_plain_ones_do (void)
{
  Tally tally = { 0 };

  for (guint i = 0; i < n_seeds; i++)
    try_seed (first_seed + i, &tally);
  g_test_message ("%u seeds from %" G_GUINT64_FORMAT ", %u refused, %u failed", tally.n_runs, first_seed,
                  tally.n_refused, tally.n_failed);
  g_assert_cmpuint (tally.n_failed, ==, 0);
  g_assert_cmpuint (tally.n_refused, <=, tally.n_runs / 5);
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_get_tmp_dir (); /* made once, before there are threads */
  n_seeds = N_SEEDS / test_stride ();
  if (argc > 1)
    {
      first_seed = g_ascii_strtoull (argv[1], NULL, 10);
      n_seeds = argc > 2 ? (guint) g_ascii_strtoull (argv[2], NULL, 10) : 1;
    }
  g_test_add_func ("/random-ranks/wrapped-models-do-what-plain-ones-do", wrapped_models_do_what_plain_ones_do);
  return g_test_run ();
}
