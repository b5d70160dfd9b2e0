/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/trainers.h"

#include "support/device.h"

EbbModule *
test_trainer_model (double dropout)
{
  g_autoptr (EbbGptConfig) config = ebb_gpt_config_new ();
  g_autoptr (GError) error = NULL;
  EbbModule *gpt;

  config->layers = 2;
  config->width = 16;
  config->heads = 2;
  config->context = TEST_TRAINER_CONTEXT;
  config->vocab = 256;
  config->dropout = dropout;
  ebb_manual_seed (5);
  gpt = ebb_gpt_new (config, &error);
  g_assert_no_error (error);
  ebb_module_to_device (gpt, test_device (), &error);
  g_assert_no_error (error);
  return gpt;
}

EbbDataset *
test_trainer_text (void)
{
  g_autoptr (EbbTokenizer) tokenizer = ebb_byte_tokenizer_new ();
  g_autoptr (GString) text = g_string_new (NULL);
  g_autoptr (GBytes) bytes = NULL;
  g_autoptr (GError) error = NULL;
  EbbTextDataset *data;

  for (guint i = 0; i < 60; i++)
    g_string_append_printf (text, "%u is followed by %u, ", i * i, (i + 1) * (i + 1));
  bytes = g_bytes_new (text->str, text->len);
  data = ebb_text_dataset_new_from_bytes (bytes, tokenizer, 3, &error);
  g_assert_no_error (error);
  return EBB_DATASET (data);
}

static EbbTensor *
make_rows (gint64 number, gint64 n_rows, gboolean are_targets)
{
  const gint64 shape[] = { n_rows, TEST_TRAINER_CONTEXT };
  g_autoptr (GError) error = NULL;
  EbbTensor *rows = ebb_tensor_new_empty (shape, 2, EBB_DTYPE_I64, ebb_device_get_cpu (), &error);
  gint64 *data = ebb_tensor_get_data (rows, &error);

  g_assert_no_error (error);
  for (gint64 i = 0; i < n_rows * TEST_TRAINER_CONTEXT; i++)
    {
      const gint64 row = number * n_rows + i / TEST_TRAINER_CONTEXT, column = i % TEST_TRAINER_CONTEXT;
      const gboolean is_masked = row % 4 == 1 || column < row % 4;

      data[i] = are_targets && is_masked ? -100 : (row * 7 + (column + are_targets) * 5) % 100;
    }
  return rows;
}

EbbArgs *
test_trainer_batch (gint64 number, gint64 n_rows)
{
  EbbArgs *batch = ebb_args_new (EBB_ARGS_DICT);
  g_autoptr (EbbTensor) tokens = make_rows (number, n_rows, FALSE);
  g_autoptr (EbbTensor) targets = make_rows (number, n_rows, TRUE);

  ebb_args_add_tensor (batch, "tokens", tokens);
  ebb_args_add_tensor (batch, "targets", targets);
  return batch;
}

EbbTrainerOptions *
test_trainer_options (const char *first, ...)
{
  EbbTrainerOptions *options = ebb_trainer_options_new ();
  va_list args;

  va_start (args, first);
  g_object_set_valist (G_OBJECT (options), first, args);
  va_end (args);
  return options;
}
