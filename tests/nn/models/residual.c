/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: private-headers cpu-only */

/* A residual stream in bf16: from the embeddings on nothing of its size is cast, forward or backward. */

#include <ebb/ebb.h>

#include "support/device.h"
#include "support/tensors.h"
#include "tensor/backend/backend-private.h"

#define WIDTH 64
#define BATCH 2
#define CONTEXT 48
#define STREAM (BATCH * CONTEXT * WIDTH)

/* Whether models are made with another type, which is changed then. */
static gboolean changes_later;

typedef struct
{
  guint n_casts; /* of tensors as large as the stream, to another dtype */
  guint64 held;  /* for backward */
  double loss;
} Step;

static guint n_casts;
static EbbKernelFunc copy;

static gboolean
count_cast (const EbbLaunch *launch, GError **error)
{
  const EbbView *x = launch->inputs[0];
  gint64 n = 1;

  for (int i = 0; i < x->n_dims; i++)
    n *= x->shape[i];
  if (n == STREAM && x->dtype != launch->outputs[0]->dtype)
    n_casts++;
  return copy (launch, error);
}

static Step
take_step_in (EbbDType weights, int layers, double dropout, EbbDType residual, gboolean autocast)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) gpt = NULL;
  g_autoptr (EbbTensor) tokens = test_tokens (1, 256, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) targets = test_tokens (2, 256, BATCH, CONTEXT, -1);
  g_autoptr (EbbTensor) loss = NULL;
  g_autoptr (EbbMemoryStats) stats = NULL;
  EbbDevice *device = ebb_device_get_cpu ();
  const EbbKernelFunc *kernels = device->kernels;
  g_autofree EbbKernelFunc *counting = g_memdup2 (kernels, EBB_N_KERNELS * sizeof (EbbKernelFunc));
  Step step = { 0 };

  ebb_manual_seed (1);
  config->width = WIDTH;
  config->layers = layers;
  config->dropout = dropout;
  config->residual_dtype = !changes_later ? residual : residual == EBB_DTYPE_F32 ? EBB_DTYPE_BF16
                                                                                 : EBB_DTYPE_F32;
  ebb_push_parameter_dtype (weights);
  gpt = ebb_gpt_new (config, &error);
  ebb_pop_parameter_dtype ();
  if (changes_later)
    g_assert_true (ebb_gpt_set_residual_dtype (EBB_GPT (gpt), residual, &error));
  g_assert_no_error (error);

  n_casts = 0;
  copy = kernels[EBB_KERNEL_COPY];
  counting[EBB_KERNEL_COPY] = count_cast;
  device->kernels = counting;
  ebb_push_autocast (autocast, EBB_DTYPE_BF16);
  loss = ebb_gpt_loss (EBB_GPT (gpt), tokens, targets, &error);
  ebb_pop_autocast ();
  g_assert_no_error (error);
  ebb_tensor_get_item (loss, &step.loss, NULL);
  stats = ebb_memory_get_stats (device);
  step.held = ebb_memory_stats_get_current (stats, EBB_PURPOSE_ACTIVATION);
  g_assert_true (ebb_tensor_backward (loss, &error));
  device->kernels = kernels;
  step.n_casts = n_casts;
  return step;
}

static Step
take_step (int layers, double dropout, EbbDType residual, gboolean autocast)
{
  return take_step_in (EBB_DTYPE_F32, layers, dropout, residual, autocast);
}

/* Embeddings in bf16 don't make it so. */
static void
the_stream_is_of_the_dtype_of_the_model (void)
{
  Step f32 = take_step (2, 0, EBB_DTYPE_F32, TRUE), of_bf16 = take_step_in (EBB_DTYPE_BF16, 2, 0, EBB_DTYPE_F32, TRUE);
  Step bf16 = take_step_in (EBB_DTYPE_BF16, 2, 0, EBB_DTYPE_BF16, TRUE);

  g_assert_cmpuint (of_bf16.held, >=, f32.held);
  g_assert_cmpfloat (1.1 * (double) bf16.held, <, (double) of_bf16.held);
}

static void
the_stream_is_cast_once_each_way (void)
{
  for (int i = 0; i < 2; i++)
    {
      double dropout = i == 0 ? 0 : 0.1;
      Step wide = take_step (3, dropout, EBB_DTYPE_F32, TRUE);
      Step narrow = take_step (3, dropout, EBB_DTYPE_BF16, TRUE);

      g_assert_cmpuint (narrow.n_casts, ==, 2);
      g_assert_cmpuint (wide.n_casts, >, 2); /* the comparison sees what it must see */
    }
}

static void
blocks_keep_less_for_backward (void)
{
  Step wide[] = { take_step (2, 0, EBB_DTYPE_F32, TRUE), take_step (4, 0, EBB_DTYPE_F32, TRUE) };
  Step narrow[] = { take_step (2, 0, EBB_DTYPE_BF16, TRUE), take_step (4, 0, EBB_DTYPE_BF16, TRUE) };

  /* The input of each norm, two in a block, at 2 bytes instead of 4. */
  g_assert_cmpuint (wide[1].held - wide[0].held, >=, narrow[1].held - narrow[0].held + 2 * 2 * 2 * STREAM);
}

static void
a_model_that_is_there_changes (void)
{
  static const EbbDType dtypes[] = { EBB_DTYPE_F32, EBB_DTYPE_BF16 };
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (EbbModule) gpt = ebb_gpt_new (config, NULL);
  g_autoptr (GError) error = NULL;

  for (guint i = 0; i < G_N_ELEMENTS (dtypes); i++)
    {
      Step made = take_step (2, 0.1, dtypes[i], TRUE), changed;

      changes_later = TRUE;
      changed = take_step (2, 0.1, dtypes[i], TRUE);
      changes_later = FALSE;
      g_assert_cmpfloat (changed.loss, ==, made.loss);
      g_assert_cmpuint (changed.held, ==, made.held);
      g_assert_cmpuint (changed.n_casts, ==, made.n_casts);
    }
  g_assert_false (ebb_gpt_set_residual_dtype (EBB_GPT (gpt), EBB_DTYPE_F16, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the residual stream is f16, it must be f32 or bf16");
}

static void
without_autocast_nothing_changes (void)
{
  Step wide = take_step (2, 0.1, EBB_DTYPE_F32, FALSE);
  Step narrow = take_step (2, 0.1, EBB_DTYPE_BF16, FALSE);

  g_assert_cmpfloat (wide.loss, ==, narrow.loss);
  g_assert_cmpuint (narrow.n_casts, ==, 0);
}

static void
the_loss_is_nearly_the_same (void)
{
  Step wide = take_step (4, 0.1, EBB_DTYPE_F32, TRUE);
  Step narrow = take_step (4, 0.1, EBB_DTYPE_BF16, TRUE);

  g_assert_cmpfloat_with_epsilon (wide.loss, narrow.loss, 2e-3);
  g_assert_cmpfloat (wide.loss, !=, narrow.loss);
}

static void
other_dtypes_are_refused (void)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new_preset ("tiny");
  g_autoptr (GError) error = NULL;

  config->residual_dtype = EBB_DTYPE_F16;
  g_assert_false (ebb_gpt_config_check (config, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the residual stream is f16, it must be f32 or bf16");
  g_clear_error (&error);
  config->residual_dtype = (EbbDType) 77;
  g_assert_false (ebb_gpt_config_check (config, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT, "the residual stream is no dtype");
  g_clear_error (&error);
  config->residual_dtype = EBB_DTYPE_F32;
  config->activation = (EbbActivation) 9;
  g_assert_false (ebb_gpt_config_check (config, &error));
  test_assert_error (error, EBB_ERROR_INVALID_ARGUMENT,
                     "activation is 9, it must be 0 (GELU), 1 (GELU by tanh) or 2 (SiLU)");
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/residual/the-stream-is-of-the-dtype-of-the-model", the_stream_is_of_the_dtype_of_the_model);
  g_test_add_func ("/residual/the-stream-is-cast-once-each-way", the_stream_is_cast_once_each_way);
  g_test_add_func ("/residual/blocks-keep-less-for-backward", blocks_keep_less_for_backward);
  g_test_add_func ("/residual/a-model-that-is-there-changes", a_model_that_is_there_changes);
  g_test_add_func ("/residual/without-autocast-nothing-changes", without_autocast_nothing_changes);
  g_test_add_func ("/residual/the-loss-is-nearly-the-same", the_loss_is_nearly_the_same);
  g_test_add_func ("/residual/other-dtypes-are-refused", other_dtypes_are_refused);
  return g_test_run ();
}
