/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only cudaemu */
#include "support/device.h"
#include "support/shard-runs.h"
#include "support/sharding.h"
#include "support/tensors.h"
#include "support/waits.h"

/* A training step makes the host wait for the device nowhere: forward, backward, clipping and the optimizer only
 * enqueue work. What the caller asks for, waits once. */

#define BATCH 2
#define CONTEXT 8

/* The one under test, or sim where that is the CPU. */
static EbbDevice *
open_counting (void)
{
  g_autoptr (GError) error = NULL;
  EbbDevice *device = test_device_is_cpu () ? ebb_device_get ("sim", &error) : test_device ();

  g_assert_no_error (error);
  test_waits_begin (device);
  return device;
}

typedef struct
{
  const char *name;
  EbbMomentFormat moments;
  gboolean autocast, checkpoint, accumulate, sgd;
  double dropout;
} Case;

static EbbTensor *
take_loss (const Case *kind,
           EbbModule *gpt,
           EbbTensor *tokens,
           EbbTensor *targets,
           GError **error)
{
  EbbTensor *loss;

  ebb_push_autocast (kind->autocast, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, error);
  ebb_pop_autocast ();
  return loss;
}

static void
take_step (const Case *kind,
           EbbModule *gpt,
           EbbOptimizer *optimizer,
           EbbTensor *tokens,
           EbbTensor *targets)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbTensor) norm = NULL;

  for (int i = 0; i <= kind->accumulate; i++)
    {
      g_autoptr (EbbTensor) loss = take_loss (kind, gpt, tokens, targets, &error);
      g_autoptr (EbbTensor) part = ebb_mul_scalar (loss, 0.5, &error);

      ebb_tensor_backward (kind->accumulate ? part : loss, &error);
    }
  if (kind->accumulate)
    ebb_optimizer_scale_grad (optimizer, 0.5);
  norm = ebb_optimizer_clip_grad_norm (optimizer, 0.01, &error);
  ebb_optimizer_step (optimizer, &error);
  ebb_optimizer_zero_grad (optimizer);
  g_assert_no_error (error);
}

static void
a_step_waits_nowhere (gconstpointer data)
{
  const Case *kind = data;
  EbbDevice *device = open_counting ();
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbOptimizer) optimizer = NULL;
  g_autoptr (EbbTensor) tokens = NULL;
  g_autoptr (EbbTensor) targets = NULL;
  g_autoptr (EbbTensor) loss = NULL;
  double value;

  config->dropout = kind->dropout;
  if (test_device_is_slow ())
    {
      config->layers = 1;
      config->width = 32;
    }
  ebb_set_default_device (device);
  gpt = ebb_gpt_new (config, &error);
  tokens = test_tokens (1, 256, BATCH, CONTEXT, -1);
  targets = test_tokens (2, 256, BATCH, CONTEXT, -1);
  g_assert_no_error (error);
  if (kind->checkpoint)
    g_assert_true (ebb_checkpoint_wrap_each (gpt, EBB_TYPE_TRANSFORMER_BLOCK, NULL, &error));
  optimizer = kind->sgd ? ebb_sgd_new (gpt, 0.1, &error) : ebb_adamw_new (gpt, 0.1, &error);
  if (!kind->sgd)
    g_object_set (optimizer, "moment-format", kind->moments, NULL);
  take_step (kind, gpt, optimizer, tokens, targets);
  test_waits_reset ();
  take_step (kind, gpt, optimizer, tokens, targets);
  take_step (kind, gpt, optimizer, tokens, targets);
  g_assert_cmpuint (test_waits_get_n (), ==, 0);

  loss = take_loss (kind, gpt, tokens, targets, &error);
  g_assert_cmpuint (test_waits_get_n (), ==, 0);
  g_assert_true (ebb_tensor_get_item (loss, &value, &error));
  g_assert_cmpuint (test_waits_get_n (), ==, 1);
  ebb_set_default_device (NULL);
}

/* The engine of threads moves bytes through the host, for which collectives copy; nothing else waits. */
static gboolean
train_sharded (EbbProcessGroup *group,
               gpointer user_data,
               GError **error)
{
  g_autoptr (EbbModule) chain = test_shard_chain (NULL);
  g_autoptr (EbbOptimizer) optimizer = NULL;

  test_shard_children (chain, group, TRUE);
  optimizer = ebb_adamw_new (chain, 0.1, error);
  for (int i = 0; i < 3; i++)
    {
      g_autoptr (EbbTensor) norm = NULL;

      test_shard_step (chain, group);
      norm = ebb_optimizer_clip_grad_norm (optimizer, 0.01, error);
      if (norm == NULL || !ebb_optimizer_step (optimizer, error))
        return FALSE;
      ebb_optimizer_zero_grad (optimizer);
    }
  return TRUE;
}

static void
a_sharded_step_synchronizes_nowhere (void)
{
  ebb_set_default_device (open_counting ());
  test_run_ranks (2, train_sharded, NULL);
  g_assert_cmpuint (test_waits_get_n_synchronized (), ==, 0);
  ebb_set_default_device (NULL);
}

int
main (int argc,
      char **argv)
{
  static const Case cases[] = {
    { "f32", EBB_MOMENT_FORMAT_F32 },
    { "autocast", EBB_MOMENT_FORMAT_F32, .autocast = TRUE, .dropout = 0.1 },
    { "checkpoint", EBB_MOMENT_FORMAT_F32, .checkpoint = TRUE, .dropout = 0.1 },
    { "checkpoint-and-autocast", EBB_MOMENT_FORMAT_BF16, .checkpoint = TRUE, .autocast = TRUE },
    { "bf16-moments", EBB_MOMENT_FORMAT_BF16 },
    { "8-bit-moments", EBB_MOMENT_FORMAT_EIGHT_BIT, .autocast = TRUE },
    { "accumulated", EBB_MOMENT_FORMAT_F32, .accumulate = TRUE },
    { "sgd", EBB_MOMENT_FORMAT_F32, .sgd = TRUE },
  };

  test_init (&argc, &argv);
  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autofree char *path = g_strdup_printf ("/waits/%s", cases[i].name);

      g_test_add_data_func (path, &cases[i], a_step_waits_nowhere);
    }
  g_test_add_func ("/waits/fully-shard", a_sharded_step_synchronizes_nowhere);
  return g_test_run ();
}
