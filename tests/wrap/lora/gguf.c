/* Copyright The Ebb Authors. SPDX-License-Identifier: Apache-2.0 */
/* test: cpu-only */
#include "support/fixtures.h"
#include "support/model-folders.h"
#include "support/tensors.h"

#include <string.h>

/* Adapters as GGUF files. The Python package `gguf` wrote those in fixtures/gguf, from PEFT's in fixtures/lora. */

static const char *const rows[] = { "gpt2", "llama3" };

static char *
get_file (const char *row)
{
  g_autofree char *name = g_strdup_printf ("lora-%s.gguf", row);

  return g_test_build_filename (G_TEST_DIST, "fixtures", "gguf", name, NULL);
}

static EbbModule *
open_with (const char *row,
           const char *adapter)
{
  g_autoptr (EbbModule) model = test_model_open_fixture (row);
  g_autoptr (EbbModule) same = NULL;
  g_autoptr (GError) error = NULL;

  same = ebb_lora_load (model, adapter, NULL, &error);
  g_assert_no_error (error);
  return g_object_ref (model);
}

static EbbTensor *
compute (EbbModule *model,
         const char *row)
{
  g_autofree char *name = g_build_filename ("lora", row, "expected.safetensors", NULL);
  g_autoptr (EbbArgs) fixture = test_load_fixture (name);
  g_autoptr (EbbTensor) tokens = test_fixture_tensor (fixture, "tokens");
  g_autoptr (GError) error = NULL;
  EbbTensor *logits = ebb_module_call1 (model, tokens, &error);

  g_assert_no_error (error);
  return logits;
}

static void
a_foreign_adapter_is_the_same (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "lora", rows[i], NULL);
      g_autofree char *file = get_file (rows[i]);
      g_autoptr (EbbModule) a = open_with (rows[i], folder);
      g_autoptr (EbbModule) b = open_with (rows[i], file);
      g_autoptr (EbbModule) plain = test_model_open_fixture (rows[i]);
      g_autoptr (EbbTensor) x = compute (a, rows[i]);
      g_autoptr (EbbTensor) y = compute (b, rows[i]);
      g_autoptr (EbbTensor) without = compute (plain, rows[i]);

      g_assert_cmpfloat (test_relative_difference (x, y), <, 1e-6);
      g_assert_cmpfloat (test_relative_difference (without, y), >, 1e-2);
    }
}

/* What Ebb saves are the bytes of the Python package's tensors: the files end alike. */
static void
a_saved_adapter_has_the_same_tensors (void)
{
  for (guint i = 0; i < G_N_ELEMENTS (rows); i++)
    {
      g_autofree char *folder = g_test_build_filename (G_TEST_DIST, "fixtures", "lora", rows[i], NULL);
      g_autofree char *saved = test_scratch_path ("adapter.gguf");
      g_autoptr (EbbModule) a = open_with (rows[i], folder);
      g_autoptr (EbbModule) b = NULL;
      g_autoptr (EbbTensor) x = compute (a, rows[i]);
      g_autoptr (EbbTensor) y = NULL;
      g_autoptr (GError) error = NULL;

      ebb_lora_save (a, saved, NULL, &error);
      g_assert_no_error (error);
      b = open_with (rows[i], saved);
      y = compute (b, rows[i]);
      g_assert_cmpfloat (test_relative_difference (x, y), <, 1e-6);
    }
}

static void
assert_not_loaded (const char *row,
                   const char *path,
                   const char *expected)
{
  g_autoptr (EbbModule) model = test_model_open_fixture (row);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) same = ebb_lora_load (model, path, NULL, &error);

  g_assert_null (same);
  g_assert_nonnull (error);
  g_assert_nonnull (strstr (error->message, expected));
  g_assert_null (strchr (error->message, '\n'));
  g_assert_false (ebb_lora_is_wrapped (model));
}

static void
an_adapter_of_another_model_is_refused (void)
{
  g_autofree char *gpt2 = get_file ("gpt2");
  g_autofree char *llama3 = get_file ("llama3");
  g_autofree char *model = g_test_build_filename (G_TEST_DIST, "fixtures", "gguf", "qwen3.gguf", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (EbbModule) opened = NULL;

  assert_not_loaded ("qwen3", llama3,
                     "general.architecture is \"llama\": for an adapter of this model it must be \"qwen3\"");
  assert_not_loaded ("qwen3", model, "general.type is \"model\"");
  assert_not_loaded ("llama2", llama3, "it must be [");
  assert_not_loaded ("bert", gpt2, "llama.cpp has no Bert");
  opened = ebb_model_open (llama3, &error);
  g_assert_null (opened);
  g_assert_nonnull (strstr (error->message, "general.type is \"adapter\": it must be \"model\"; ebb_lora_load ()"));
}

int
main (int argc,
      char **argv)
{
  int status;

  g_test_init (&argc, &argv, NULL);
  test_scratch_begin ();
  g_test_add_func ("/lora/gguf/a-foreign-adapter-is-the-same", a_foreign_adapter_is_the_same);
  g_test_add_func ("/lora/gguf/a-saved-adapter-has-the-same-tensors", a_saved_adapter_has_the_same_tensors);
  g_test_add_func ("/lora/gguf/an-adapter-of-another-model-is-refused", an_adapter_of_another_model_is_refused);
  status = g_test_run ();
  test_scratch_end ();
  return status;
}
