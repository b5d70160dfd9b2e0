/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

/* Attention never holds the scores of all queries and keys. */

#define BATCH 1
#define HEADS 4
#define STEPS 2048
#define WIDTH 16 /* of a head */
#define SCORES_BYTES ((guint64) BATCH * HEADS * STEPS * STEPS * sizeof (float))

/* The peak of the call and its backward, results and gradients included, above what was there before. */
static guint64
measure_peak (const EbbAttentionForm *form,
              gboolean has_starts)
{
  g_autoptr (EbbTensor) qkv = test_randn (1, BATCH, STEPS, 3 * HEADS * WIDTH, -1);
  g_autoptr (EbbTensor) grad_out = test_randn (2, BATCH, STEPS, HEADS * WIDTH, -1);
  g_autoptr (EbbGenerator) generator = ebb_generator_new (3);
  g_autoptr (EbbTensor) starts = has_starts ? test_tokens (4, STEPS, BATCH, STEPS, -1) : NULL;
  g_autoptr (EbbMemoryStats) before = NULL;
  g_autoptr (EbbMemoryStats) after = NULL;
  g_autoptr (EbbTensor) out = NULL;
  g_autoptr (EbbTensor) grad = NULL;
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_tensor_set_requires_grad (qkv, TRUE, NULL));
  ebb_memory_reset_peaks (test_device ());
  before = ebb_memory_get_stats (test_device ());
  out = ebb_self_attention_full (qkv, HEADS, NULL, starts, form, generator, &error);
  g_assert_no_error (error);
  ebb_backward (&out, 1, &grad_out, 1, NULL, 0, FALSE, &error);
  g_assert_no_error (error);
  after = ebb_memory_get_stats (test_device ());
  grad = ebb_tensor_get_grad (qkv);
  g_assert_cmpuint (ebb_tensor_get_n_bytes (grad), ==, ebb_tensor_get_n_bytes (qkv));
  return ebb_memory_stats_get_peak_total (after) - ebb_memory_stats_get_total (before);
}

static void
attention_holds_no_scores (void)
{
  static const EbbAttentionForm forms[] = {
    { .causal = FALSE },
    { .causal = TRUE },
    { .causal = TRUE, .dropout_p = 0.1 },
    { .causal = TRUE, .window = 100, .softcap = 20 },
  };

  for (guint i = 0; i < G_N_ELEMENTS (forms); i++)
    {
      guint64 peak = measure_peak (&forms[i], i == 3);

      g_test_message ("%" G_GUINT64_FORMAT " bytes; the scores would be %" G_GUINT64_FORMAT, peak, SCORES_BYTES);
      g_assert_cmpuint (peak, <, SCORES_BYTES / 12);
    }
}

int
main (int argc,
      char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/attention-memory/holds-no-scores", attention_holds_no_scores);
  return g_test_run ();
}
