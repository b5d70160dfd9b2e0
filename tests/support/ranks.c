/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/ranks.h"

#include "support/device.h"
#include "support/tensors.h"

#include <math.h>
#include <string.h>

#define LEARNING_RATE 3e-4
#define SEED 7

/* -- model and data ------------------------------------------------------------------------------------------------ */

EbbModule *
test_ranks_model (guint n_layers, double dropout, guint64 seed)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->layers = (int) n_layers;
  config->width = TEST_RANKS_WIDTH;
  config->heads = 4;
  config->context = TEST_RANKS_CONTEXT;
  config->vocab = TEST_RANKS_VOCAB;
  config->dropout = dropout;
  ebb_manual_seed (seed);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  return gpt;
}

EbbTensor *
test_ranks_loss (EbbModule *gpt, guint step, gint64 first, gint64 n_rows, GError **error)
{
  guint batch = step % 4;
  g_autoptr (EbbTensor) tokens = test_tokens (100 + batch, TEST_RANKS_VOCAB, TEST_RANKS_ROWS, TEST_RANKS_CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (200 + batch, TEST_RANKS_VOCAB, TEST_RANKS_ROWS, TEST_RANKS_CONTEXT, -1);
  g_autoptr (EbbTensor) own_tokens = ebb_narrow (tokens, 0, first, n_rows, error);
  g_autoptr (EbbTensor) own_targets = ebb_narrow (targets, 0, first, n_rows, error);
  g_autoptr (EbbArgs) args = ebb_args_new (EBB_ARGS_TUPLE);
  g_autoptr (EbbArgs) result = NULL;

  if (own_tokens == NULL || own_targets == NULL)
    return NULL;
  ebb_args_add_tensor (args, NULL, own_tokens);
  ebb_args_add_tensor (args, NULL, own_targets);
  result = ebb_module_call (gpt, args, error);
  return result != NULL ? ebb_args_get_tensor (result, 0) : NULL;
}

guint64
test_ranks_hash (EbbModule *module)
{
  guint64 hash = G_GUINT64_CONSTANT (0xcbf29ce484222325);
  guint n;
  g_autofree EbbTensor **parameters = ebb_module_get_parameters (module, TRUE, &n);

  for (guint i = 0; i < n; i++)
    {
      g_autoptr (GError) error = NULL;
      g_autoptr (EbbTensor) detached = ebb_tensor_detach (parameters[i]);
      g_autoptr (EbbTensor) host = ebb_to_device (detached, ebb_device_get_cpu (), &error);
      const guint8 *bytes = ebb_tensor_get_data (host, &error);

      g_assert_no_error (error);
      for (gsize j = 0; j < ebb_tensor_get_n_bytes (host); j++)
        hash = (hash ^ bytes[j]) * G_GUINT64_CONSTANT (0x100000001b3);
      ebb_tensor_unref (parameters[i]);
    }
  return hash;
}

/* -- training ------------------------------------------------------------------------------------------------------ */

typedef struct
{
  TestRanks settings;
  EbbDevice *device;
  double *parts; /* [rank][step]: the sums of its tokens' losses */
  TestRanksResult *result;
} Run;

typedef struct
{
  Run *run;
  EbbModule *gpt;
  EbbOptimizer *optimizer;
  EbbProcessGroup *group;
  guint rank;
} Rank;

/* The rows of one pass are split as evenly as can be. */
static void
get_rows (const Run *run, guint rank, guint pass, gint64 *first, gint64 *n_rows)
{
  gint64 n = TEST_RANKS_ROWS / run->settings.n_passes, begin = n * rank / run->settings.n_ranks;

  *first = n * pass + begin;
  *n_rows = n * (rank + 1) / run->settings.n_ranks - begin;
}

/* So weighted, the mean over ranks of the sum over passes is the gradient of the mean over all tokens. */
static gboolean
run_pass (Rank *self, guint step, guint pass, GError **error)
{
  const TestRanks *settings = &self->run->settings;
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbTensor) weighted = NULL;
  gint64 first, n_rows;
  double value, weight;

  get_rows (self->run, self->rank, pass, &first, &n_rows);
  weight = (double) n_rows * settings->n_ranks / TEST_RANKS_ROWS;
  loss = test_ranks_loss (self->gpt, step, first, n_rows, error);
  if (loss == NULL || !ebb_tensor_get_item (loss, &value, error))
    return FALSE;
  self->run->parts[self->rank * settings->n_steps + step] += value * (double) n_rows;
  weighted = weight == 1 ? ebb_tensor_ref (loss) : ebb_mul_scalar (loss, weight, error);
  g_clear_pointer (&loss, ebb_tensor_unref);
  return weighted != NULL && ebb_tensor_backward (weighted, error);
}

static gboolean
run_step (Rank *self, guint step, GError **error)
{
  const TestRanks *settings = &self->run->settings;
  gboolean ok = TRUE;
  double norm = 0;

  if (step + 1 == settings->n_steps)
    ebb_process_group_reset_counters (self->group);
  ebb_optimizer_zero_grad (self->optimizer);
  for (guint pass = 0; ok && pass < settings->n_passes; pass++)
    {
      gboolean syncs = settings->syncs_all || pass + 1 == settings->n_passes;

      if (!syncs)
        ebb_push_gradient_sync (FALSE);
      ok = run_pass (self, step, pass, error);
      if (!syncs)
        ebb_pop_gradient_sync ();
    }
  if (ok && settings->max_norm > 0)
    ok = test_clip_grad (self->optimizer, settings->max_norm, 2, &norm, error);
  if (self->rank == 0)
    self->run->result->norms[step] = norm;
  return ok && ebb_optimizer_step (self->optimizer, error);
}

static EbbOptimizer *
make_optimizer (const TestRanks *settings, EbbModule *gpt, GError **error)
{
  g_autoptr (EbbOptimizer) optimizer = ebb_adamw_new (gpt, LEARNING_RATE, error);

  if (optimizer == NULL || !ebb_optimizer_exclude_from_decay (optimizer, error))
    return NULL;
  g_object_set (optimizer, "step-in-backward", settings->steps_in_backward, NULL);
  return g_steal_pointer (&optimizer);
}

static void
take_counters (Rank *self)
{
  for (guint i = 0; self->rank == 0 && i < EBB_N_COLLECTIVES; i++)
    {
      self->run->result->n_calls[i] = ebb_process_group_get_n_calls (self->group, (EbbCollective) i);
      self->run->result->n_bytes[i] = ebb_process_group_get_n_bytes (self->group, (EbbCollective) i);
    }
}

static gboolean
prepare (Rank *self, GError **error)
{
  const TestRanks *settings = &self->run->settings;

  self->gpt = test_ranks_model (settings->n_layers, settings->dropout,
                                SEED + (settings->begins_equal ? 0 : 1000 * (guint64) self->rank));
  if (settings->dtype != EBB_DTYPE_F32 && !ebb_module_to_dtype (self->gpt, settings->dtype, error))
    return FALSE;
  if (self->rank == 0)
    {
      self->run->result->n_parameters = ebb_module_count_parameters (self->gpt);
      self->run->result->parameter_bytes =
          self->run->result->n_parameters * ebb_dtype_get_size (settings->dtype);
    }
  if (settings->optimizer_is_first)
    self->optimizer = make_optimizer (settings, self->gpt, error);
  if (settings->strategy != NULL && !settings->strategy (self->gpt, self->group, settings->data, error))
    return FALSE;
  if (self->optimizer == NULL)
    self->optimizer = make_optimizer (settings, self->gpt, error);
  return self->optimizer != NULL && ebb_seed_rank (SEED, self->group, error);
}

static gboolean
run_rank (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Run *run = user_data;
  Rank self = { .run = run, .group = group, .rank = ebb_process_group_get_rank (group) };
  gboolean ok;

  ebb_set_default_device (run->device);
  ok = prepare (&self, error);
  for (guint step = 0; ok && step < run->settings.n_steps; step++)
    ok = run_step (&self, step, error);
  if (ok)
    {
      take_counters (&self);
      run->result->hashes[self.rank] = test_ranks_hash (self.gpt);
      if (run->settings.inspect != NULL)
        run->settings.inspect (&run->settings, self.gpt, self.optimizer, group);
    }
  g_clear_object (&self.optimizer);
  g_clear_object (&self.gpt);
  return ok;
}

TestRanksResult *
test_ranks_try (const TestRanks *self, GError **error)
{
  Run run = { .settings = *self, .device = test_device () };
  g_autoptr (TestRanksResult) result = g_new0 (TestRanksResult, 1);
  g_autofree double *parts = NULL;
  TestRanks *settings = &run.settings;

  settings->n_ranks = MAX (settings->n_ranks, 1);
  settings->n_steps = settings->n_steps > 0 ? settings->n_steps : 50;
  settings->n_layers = settings->n_layers > 0 ? settings->n_layers : 2;
  settings->n_passes = MAX (settings->n_passes, 1);
  run.result = result;
  run.parts = parts = g_new0 (double, (gsize) settings->n_ranks * settings->n_steps);
  result->n_steps = settings->n_steps;
  result->n_ranks = settings->n_ranks;
  result->losses = g_new0 (double, settings->n_steps);
  result->norms = g_new0 (double, settings->n_steps);
  result->hashes = g_new0 (guint64, settings->n_ranks);
  if (!ebb_run_ranks (settings->n_ranks, run_rank, &run, error))
    return NULL;
  for (guint step = 0; step < settings->n_steps; step++)
    {
      for (guint rank = 0; rank < settings->n_ranks; rank++)
        result->losses[step] += parts[rank * settings->n_steps + step];
      result->losses[step] /= TEST_RANKS_ROWS;
    }
  return g_steal_pointer (&result);
}

TestRanksResult *
test_ranks_train (const TestRanks *self)
{
  g_autoptr (GError) error = NULL;
  TestRanksResult *result = test_ranks_try (self, &error);

  g_assert_no_error (error);
  return result;
}

void
test_ranks_result_free (TestRanksResult *self)
{
  g_free (self->losses);
  g_free (self->norms);
  g_free (self->hashes);
  g_free (self);
}

/* -- comparing ----------------------------------------------------------------------------------------------------- */

static double
get_difference (double a, double b)
{
  return a == b ? 0 : fabs (a - b) / MAX (fabs (a), fabs (b));
}

void
test_ranks_assert_near (const TestRanksResult *a, const TestRanksResult *b, double tolerance)
{
  double largest = 0;

  g_assert_cmpuint (a->n_steps, ==, b->n_steps);
  for (guint i = 0; i < a->n_steps; i++)
    {
      double loss = get_difference (a->losses[i], b->losses[i]), norm = get_difference (a->norms[i], b->norms[i]);

      /* Norms vary more than losses: they are no mean. */
      if (!(loss <= tolerance) || !(norm <= 100 * tolerance))
        g_error ("step %u: losses %.9g and %.9g, norms %.9g and %.9g", i, a->losses[i], b->losses[i], a->norms[i],
                 b->norms[i]);
      largest = MAX (largest, loss);
    }
  g_test_message ("%u and %u ranks: losses differ by %.2g at most", a->n_ranks, b->n_ranks, largest);
}

void
test_ranks_assert_same (const TestRanksResult *a, const TestRanksResult *b)
{
  g_assert_cmpuint (a->n_steps, ==, b->n_steps);
  g_assert_cmpuint (a->n_ranks, ==, b->n_ranks);
  g_assert_cmpmem (a->losses, a->n_steps * sizeof (double), b->losses, b->n_steps * sizeof (double));
  g_assert_cmpmem (a->norms, a->n_steps * sizeof (double), b->norms, b->n_steps * sizeof (double));
  g_assert_cmpmem (a->hashes, a->n_ranks * sizeof (guint64), b->hashes, b->n_ranks * sizeof (guint64));
}

/* -- anything else on ranks ---------------------------------------------------------------------------------------- */

typedef struct
{
  EbbRankFunc func;
  gpointer user_data;
  EbbDevice *device;
} Anything;

static gboolean
run_anything (EbbProcessGroup *group, gpointer user_data, GError **error)
{
  Anything *self = user_data;

  ebb_set_default_device (self->device);
  return self->func (group, self->user_data, error);
}

void
test_ranks_run (guint n_ranks, EbbRankFunc func, gpointer user_data)
{
  Anything anything = { func, user_data, test_device () };
  g_autoptr (GError) error = NULL;

  ebb_run_ranks (n_ranks, run_anything, &anything, &error);
  g_assert_no_error (error);
}
