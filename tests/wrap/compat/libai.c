/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
#include "support/device.h"
#include "support/tensors.h"

#include <string.h>

/* LiBai's switch of activation checkpointing: it wraps all blocks or none, and what is wrong is named. */

static EbbModule *
make_model (void)
{
  g_autoptr (EbbBertConfig) config = ebb_bert_config_new_preset ("tiny");
  g_autoptr (GError) error = NULL;
  EbbModule *model;

  config->layers = 3;
  config->width = 16;
  config->heads = 2;
  config->hidden = 32;
  config->context = 8;
  config->vocab = 11;
  model = ebb_bert_new (config, &error);
  g_assert_no_error (error);
  return model;
}

static guint
count_wrapped (EbbModule *model)
{
  guint n, n_wrapped = 0;
  g_autofree EbbModule **modules = ebb_module_get_modules (model, &n);

  for (guint i = 0; i < n; i++)
    {
      n_wrapped += ebb_checkpoint_is_wrapped (modules[i]);
      g_object_unref (modules[i]);
    }
  return n_wrapped;
}

static void
the_switch_is_read (void)
{
  g_autoptr (EbbModule) model = make_model ();
  g_autoptr (GError) error = NULL;

  g_assert_true (ebb_apply_libai_config (
      model, "{\"model\": {}, \"train\": {\"activation_checkpoint\": {\"enabled\": false}, \"amp\": 3}}", &error));
  g_assert_no_error (error);
  g_assert_cmpuint (count_wrapped (model), ==, 0);
  g_assert_true (
      ebb_apply_libai_config (model, "{\"train\": {\"activation_checkpoint\": {\"enabled\": true}}}", &error));
  g_assert_no_error (error);
  g_assert_cmpuint (count_wrapped (model), ==, 3);
  g_assert_false (
      ebb_apply_libai_config (model, "{\"train\": {\"activation_checkpoint\": {\"enabled\": true}}}", &error));
  test_assert_error (error, EBB_ERROR_STATE, "train.activation_checkpoint.enabled is true: ");
}

static void
what_is_wrong_is_named (void)
{
  static const struct
  {
    const char *json, *word;
    EbbError code;
  } cases[] = {
    { "{}", "lacks train.activation_checkpoint.enabled", EBB_ERROR_INVALID_ARGUMENT },
    { "{\"train\": {\"activation_checkpoint\": {}}}", "lacks train.activation_checkpoint.enabled",
      EBB_ERROR_INVALID_ARGUMENT },
    { "{\"train\": {\"activation_checkpointing\": {\"enabled\": true}}}", "lacks train.activation_checkpoint.enabled",
      EBB_ERROR_INVALID_ARGUMENT },
    { "{\"train\": 3}", "train", EBB_ERROR_INVALID_ARGUMENT },
    { "{\"train\": {\"activation_checkpoint\": true}}", "activation_checkpoint", EBB_ERROR_INVALID_ARGUMENT },
    { "{\"train\": {\"activation_checkpoint\": {\"enabled\": 1}}}", "true or false", EBB_ERROR_INVALID_ARGUMENT },
    { "{\"train\": {\"activation_checkpoint\": {\"enable\": true}}}", "enabled", EBB_ERROR_INVALID_ARGUMENT },
    { "{", "", EBB_ERROR_FORMAT },
  };
  g_autoptr (EbbModule) model = make_model ();

  for (guint i = 0; i < G_N_ELEMENTS (cases); i++)
    {
      g_autoptr (GError) error = NULL;

      g_assert_false (ebb_apply_libai_config (model, cases[i].json, &error));
      test_assert_error (error, cases[i].code, cases[i].word);
      g_assert_cmpuint (count_wrapped (model), ==, 0);
    }
}

int
main (int argc, char **argv)
{
  test_init (&argc, &argv);
  g_test_add_func ("/libai/switch", the_switch_is_read);
  g_test_add_func ("/libai/wrong", what_is_wrong_is_named);
  return g_test_run ();
}
