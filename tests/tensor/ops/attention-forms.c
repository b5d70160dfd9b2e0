/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

/* Forms of attention beside each other: documents in a row and alone, queries at once and one after the other. */

#define HEADS 4
#define GROUPS 2
#define WIDTH 16

typedef struct
{
  EbbTensor *x[3], *grads[3]; /* queries, keys, values */
  EbbTensor *out;
} Run;

static void
run_clear (Run *run)
{
  for (guint i = 0; i < 3; i++)
    {
      g_clear_pointer (&run->x[i], ebb_tensor_unref);
      g_clear_pointer (&run->grads[i], ebb_tensor_unref);
    }
  g_clear_pointer (&run->out, ebb_tensor_unref);
}

G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (Run, run_clear)

static EbbTensor *
make_starts (const gint64 *values,
             gint64 batch,
             gint64 length)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *starts = ebb_tensor_new_from_ints (values, (gsize) (batch * length), (const gint64[]){ batch, length }, 2,
                                                &error);

  g_assert_no_error (error);
  return starts;
}

static EbbTensor *
narrow (EbbTensor *x,
        gint64 begin,
        gint64 length)
{
  g_autoptr (GError) error = NULL;
  EbbTensor *part = ebb_narrow (x, 2, begin, length, &error);

  g_assert_no_error (error);
  return part;
}

/* Attention of tokens [begin, begin + length) of @x, forward, and backward from the same tokens of @grad_out. */
static void
run (Run *result,
     EbbTensor *const x[3],
     EbbTensor *grad_out,
     gint64 begin,
     gint64 length,
     EbbTensor *starts,
     const EbbAttentionForm *form)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) grad = narrow (grad_out, begin, length);

  for (guint i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) part = narrow (x[i], begin, length);

      result->x[i] = ebb_copy (part, &error);
      g_assert_true (ebb_tensor_set_requires_grad (result->x[i], TRUE, &error));
    }
  result->out = ebb_attention (result->x[0], result->x[1], result->x[2], NULL, starts, form, NULL, &error);
  g_assert_no_error (error);
  ebb_backward (&result->out, 1, &grad, 1, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  for (guint i = 0; i < 3; i++)
    result->grads[i] = ebb_tensor_get_grad (result->x[i]);
}

static void
make_inputs (EbbTensor *x[4],
             gint64 batch,
             gint64 length)
{
  x[0] = test_randn (1, (int) batch, HEADS, (int) length, WIDTH, -1);
  x[1] = test_randn (2, (int) batch, GROUPS, (int) length, WIDTH, -1);
  x[2] = test_randn (3, (int) batch, GROUPS, (int) length, WIDTH, -1);
  x[3] = test_randn (4, (int) batch, HEADS, (int) length, WIDTH, -1);
}

static void
free_inputs (EbbTensor *x[4])
{
  for (guint i = 0; i < 4; i++)
    ebb_tensor_unref (x[i]);
}

static void
assert_part_is (EbbTensor *all,
                gint64 begin,
                gint64 length,
                EbbTensor *alone,
                double allowed)
{
  g_autoptr (EbbTensor) part = narrow (all, begin, length);

  g_assert_cmpfloat (test_difference (part, alone), <=, allowed);
}

/* Documents that begin where blocks of keys do have the same bits. */
static void
documents_in_a_row_are_as_alone (void)
{
  static const gint64 lengths[2][3] = { { 64, 128, 37 }, { 50, 93, 61 } };
  static const EbbAttentionForm forms[] = { { .causal = TRUE },
                                            { .causal = TRUE, .window = 20 },
                                            { .causal = TRUE, .window = 70, .softcap = 2 } };

  for (guint i = 0; i < 2; i++)
    for (guint j = 0; j < G_N_ELEMENTS (forms); j++)
      {
        gint64 total = lengths[i][0] + lengths[i][1] + lengths[i][2], begin = 0;
        gint64 values[256];
        EbbTensor *x[4];
        g_auto (Run) all = { { NULL } };
        g_autoptr (EbbTensor) starts = NULL;

        for (gint64 d = 0, t = 0; d < 3; d++)
          for (gint64 n = 0, first = t; n < lengths[i][d]; n++)
            values[t++] = first;
        make_inputs (x, 1, total);
        starts = make_starts (values, 1, total);
        run (&all, x, x[3], 0, total, starts, &forms[j]);
        for (guint d = 0; d < 3; begin += lengths[i][d], d++)
          {
            g_auto (Run) alone = { { NULL } };

            run (&alone, x, x[3], begin, lengths[i][d], NULL, &forms[j]);
            assert_part_is (all.out, begin, lengths[i][d], alone.out, i == 0 ? 0 : 1e-6);
            for (guint k = 0; k < 3; k++)
              assert_part_is (all.grads[k], begin, lengths[i][d], alone.grads[k], i == 0 ? 0 : 4e-6);
          }
        free_inputs (x);
      }
}

/* Prompts of different lengths, with padding before them. */
static void
padding_gives_and_gets_nothing (void)
{
  const EbbAttentionForm form = { .causal = TRUE };
  const gint64 paddings[] = { 0, 5, 70 }, length = 80;
  gint64 values[3];
  EbbTensor *x[4];
  g_auto (Run) all = { { NULL } };
  g_autoptr (EbbTensor) starts = NULL;

  memcpy (values, paddings, sizeof values);
  make_inputs (x, 3, length);
  starts = make_starts (values, 3, 1);
  run (&all, x, x[3], 0, length, starts, &form);
  for (gint64 b = 0; b < 3; b++)
    for (guint k = 0; k < 4; k++)
      {
        g_autoptr (EbbTensor) row = ebb_narrow (k < 3 ? all.grads[k] : all.out, 0, b, 1, NULL);
        g_autoptr (EbbTensor) pad = narrow (row, 0, paddings[b]);
        g_autoptr (EbbTensor) none = ebb_mul_scalar (pad, 0, NULL);
        g_autoptr (EbbTensor) kept = narrow (row, paddings[b], 1);

        if (paddings[b] > 0)
          g_assert_cmpfloat (test_difference (pad, none), ==, 0);
        /* Of a single key neither the query nor the key has a gradient, the others do. */
        if (k > 1)
          g_assert_cmpfloat (fabs (test_sum (kept)), >, 0);
      }
  free_inputs (x);
}

/* One or three queries against all keys up to theirs, as from a cache, have the bits of all queries at once. */
static void
queries_after_cached_keys_are_as_all_at_once (void)
{
  static const EbbAttentionForm forms[] = { { .causal = TRUE },
                                            { .causal = TRUE, .window = 30 },
                                            { .causal = TRUE, .softcap = 3 } };
  const gint64 length = 150, first[] = { 0, 63, 64, 100, 149 };

  for (guint j = 0; j < G_N_ELEMENTS (forms); j++)
    for (guint i = 0; i < G_N_ELEMENTS (first); i++)
      for (gint64 n = 1; n <= 3; n += 2)
        {
          EbbAttentionForm form = forms[j];
          g_autoptr (GError) error = NULL;
          gint64 count = MIN (n, length - first[i]);
          EbbTensor *x[4];
          g_autoptr (EbbTensor) starts = make_starts ((const gint64[]){ 0, 40 }, 2, 1);
          g_autoptr (EbbTensor) all = NULL;
          g_autoptr (EbbTensor) few = NULL;
          g_autoptr (EbbTensor) q = NULL;
          g_autoptr (EbbTensor) k = NULL;
          g_autoptr (EbbTensor) v = NULL;

          make_inputs (x, 2, length);
          all = ebb_attention (x[0], x[1], x[2], NULL, starts, &form, NULL, &error);
          form.first_query = first[i];
          q = narrow (x[0], first[i], count);
          k = narrow (x[1], 0, first[i] + count);
          v = narrow (x[2], 0, first[i] + count);
          few = ebb_attention (q, k, v, NULL, starts, &form, NULL, &error);
          g_assert_no_error (error);
          assert_part_is (all, first[i], count, few, 0);
          free_inputs (x);
        }
}

/* Queries that are a transposed [B, T, H, D] give a result that is one too. */
static void
a_result_lies_as_its_queries (void)
{
  const EbbAttentionForm form = { .causal = TRUE };
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) x = test_randn (1, 2, 9, HEADS, WIDTH, -1);
  g_autoptr (EbbTensor) q = ebb_transpose (x, 1, 2, &error);
  g_autoptr (EbbTensor) dense = ebb_contiguous (q, &error);
  g_autoptr (EbbTensor) out = ebb_attention (q, q, q, NULL, NULL, &form, NULL, &error);
  g_autoptr (EbbTensor) expected = ebb_attention (dense, dense, dense, NULL, NULL, &form, NULL, &error);
  g_autoptr (EbbTensor) by_token = ebb_transpose (out, 1, 2, &error);

  g_assert_no_error (error);
  g_assert_true (ebb_tensor_is_contiguous (by_token));
  g_assert_true (ebb_tensor_is_contiguous (expected));
  g_assert_cmpfloat (test_difference (out, expected), ==, 0);
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/attention-forms/documents", documents_in_a_row_are_as_alone);
  g_test_add_func ("/attention-forms/padding", padding_gives_and_gets_nothing);
  g_test_add_func ("/attention-forms/cached-keys", queries_after_cached_keys_are_as_all_at_once);
  g_test_add_func ("/attention-forms/layout", a_result_lies_as_its_queries);
  return g_test_run ();
}
