/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: long-sim */
#include "support/device.h"
#include "support/ranks.h"
#include "support/tensors.h"

/* The bytes that a rank keeps of one layer from forward to backward, in 16 bits and with dropout, beside what
 * Megatron-LM's formulas give (Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models,
 * arXiv 2205.05198, equations 2 to 4, section 5 and table 2). Counted, so the same in every run.
 *
 * In units of s b h (sequence, batch, width), per layer:
 *
 *   Megatron-LM         34 + 5 a s / h   the norms' results, GELU's, attention's probabilities and all dropout masks
 *   Ebb                 20               the input 2, queries, keys and values 6, attention's result 2, the sum 2 and
 *                                        what GELU takes 8: the others are rematerialized from these
 *
 * and beside them a few numbers a row: each norm's mean and deviation, the logsumexp of each head. */

#define BATCH 2
#define WIDTH 256
#define HEADS 4
#define VOCAB 64
#define DROPOUT 0.1

typedef enum
{
  NONE,
  TENSOR,
  SEQUENCE_PARALLEL,
  SELECTIVE, /* with sequence parallel */
  FULL,      /* with tensor parallel */
  FULL_SEQUENCE_PARALLEL,
  FULL_PARTITIONED /* with tensor parallel; a rank keeps its part of each input */
} Strategy;

typedef struct
{
  Strategy strategy;
  guint n_ranks;
  double units; /* what Ebb keeps, of s b h, without the numbers of each row */
  double bytes; /* measured, of rank 0 */
} Case;

static int
get_sequence (void)
{
  return test_device_is_slow () ? 64 : 256;
}

static double
get_unit (void)
{
  return (double) get_sequence () * BATCH * WIDTH;
}

static double
megatron (const Case *self)
{
  const double unit = get_unit (), t = self->n_ranks;
  const double scores = 5.0 * HEADS * get_sequence () / WIDTH;

  switch (self->strategy)
    {
    case NONE: return unit * (34 + scores);
    case TENSOR: return unit * (10 + 24 / t + scores / t);
    case SEQUENCE_PARALLEL: return unit / t * (34 + scores);
    case SELECTIVE: return unit / t * 34;
    case FULL: return unit * 2;
    case FULL_SEQUENCE_PARALLEL:
    case FULL_PARTITIONED: return unit / t * 2;
    default: g_assert_not_reached ();
    }
}

static gboolean
divide (EbbModule *model,
        Strategy strategy,
        EbbProcessGroup *group,
        GError **error)
{
  g_autoptr (EbbParallelOptions) options = ebb_parallel_options_new ();
  g_autoptr (EbbModule) same = NULL;
  gboolean by_tokens = strategy == SEQUENCE_PARALLEL || strategy == SELECTIVE || strategy == FULL_SEQUENCE_PARALLEL;

  g_object_set (options, "sequence-parallel", by_tokens, NULL);
  same = ebb_parallelize (model, group, options, error);
  return same != NULL;
}

static gboolean
wrap (EbbModule *model,
      Strategy strategy,
      EbbProcessGroup *group,
      GError **error)
{
  g_autoptr (EbbCheckpointOptions) options = NULL;
  g_autoptr (EbbSavedTensorHooks) store = NULL;

  if (strategy < SELECTIVE)
    return TRUE;
  options = strategy == SELECTIVE ? ebb_checkpoint_options_new_selective () : ebb_checkpoint_options_new ();
  if (strategy == FULL_PARTITIONED)
    {
      store = ebb_partitioned_store_new (group, NULL, error);
      if (store == NULL)
        return FALSE;
      ebb_checkpoint_options_set_store (options, store);
    }
  return ebb_checkpoint_wrap_each (model, EBB_TYPE_TRANSFORMER_BLOCK, options, error);
}

static EbbModule *
make_model (Strategy strategy,
            int layers,
            EbbProcessGroup *group,
            GError **error)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) model = NULL;

  config->vocab = VOCAB;
  config->context = get_sequence ();
  config->width = WIDTH;
  config->heads = HEADS;
  config->layers = layers;
  config->dropout = DROPOUT;
  config->residual_dtype = EBB_DTYPE_BF16;
  ebb_manual_seed (1);
  model = ebb_gpt_new (config, error);
  if (model == NULL || (strategy != NONE && !divide (model, strategy, group, error))
      || !wrap (model, strategy, group, error))
    return NULL;
  return g_steal_pointer (&model);
}

/* Of a model of so many layers, when its forward is done. */
static double
measure_kept (const Case *test,
              int layers,
              EbbProcessGroup *group,
              GError **error)
{
  g_autoptr (EbbModule) model = make_model (test->strategy, layers, group, error);
  g_autoptr (EbbTensor) tokens = test_tokens (2, VOCAB, BATCH, get_sequence (), -1);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;

  ebb_push_autocast (TRUE, EBB_DTYPE_BF16);
  loss = model ? ebb_gpt_loss (EBB_GPT (model), tokens, tokens, error) : NULL;
  ebb_pop_autocast ();
  stats = ebb_memory_get_stats (test_device ());
  g_assert_true (loss != NULL && ebb_tensor_backward (loss, error));
  return (double) ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
}

static gboolean
measure (EbbProcessGroup *group,
         gpointer data,
         GError **error)
{
  Case *test = data;
  const int layers = test_device_is_slow () ? 1 : 2;
  double few = measure_kept (test, layers, group, error), many = measure_kept (test, 2 * layers, group, error);

  if (ebb_process_group_get_rank (group) == 0)
    test->bytes = (many - few) / layers;
  return TRUE;
}

static void
check (gconstpointer data)
{
  Case test = *(const Case *) data;
  const double unit = get_unit ();

  test_ranks_run (test.n_ranks, measure, &test);
  g_test_message ("%.2f s b h; Megatron-LM %.2f, ratio %.3f", test.bytes / unit, megatron (&test) / unit,
                  test.bytes / megatron (&test));
  g_assert_cmpfloat (test.bytes, <=, 1.05 * megatron (&test));
  g_assert_cmpfloat (test.bytes, >=, test.units * unit);
  g_assert_cmpfloat (test.bytes, <=, 1.05 * test.units * unit);
}

int
main (int argc,
      char **argv)
{
  static const char *const names[] = { "none", "tensor", "sequence", "selective", "full", "full-sequence",
                                       "full-partitioned" };
  static const Case cases[] = {
    { NONE, 1, 20 },
    { TENSOR, 1, 20 },
    { TENSOR, 2, 12 },
    { TENSOR, 4, 8 },
    { SEQUENCE_PARALLEL, 2, 10 },
    { SEQUENCE_PARALLEL, 4, 5 },
    { SELECTIVE, 1, 16 },
    { SELECTIVE, 2, 8 },
    { SELECTIVE, 4, 4 },
    { FULL, 1, 2 },
    { FULL, 2, 2 },
    { FULL, 4, 2 },
    { FULL_SEQUENCE_PARALLEL, 2, 1 },
    { FULL_SEQUENCE_PARALLEL, 4, 0.5 },
    { FULL_PARTITIONED, 2, 1 },
    { FULL_PARTITIONED, 4, 0.5 },
  };

  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path =
          g_strdup_printf ("/parallel-activations/%s-%u", names[cases[i].strategy], cases[i].n_ranks);

      g_test_add_data_func (path, &cases[i], check);
    }
  return g_test_run ();
}
